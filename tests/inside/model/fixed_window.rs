//! A fixed window in Redis and as a [`Limiter`].
//!
//! Keys vanish by the server's clock, which cannot be moved: so what a window has left is, and
//! windows are so long that a busy machine does not end one. The model reads the keys before each
//! step; times may differ by what passes meanwhile.

use super::{
    pair::{assert_near, assert_same},
    *,
};
use crate::{
    algorithm::fixed_window::{FixedWindow, StoredWindow},
    store::redis::redisson::fixed_window::{ACQUIRE, SCRIPTS},
};

type Limiter = LimiterState<FixedWindow>;

/// What a busy machine may lose between two commands, in ms.
const TOLERANCE: i64 = 2_000;
/// Windows that have no more left than this count as over, so that none ends by itself.
const OVER: i64 = 5_000;

impl Kind for Limiter {
    const ALGORITHM: Algorithm = Algorithm::FixedWindow;
    const RATES: &'static [u64] = &[5, 5, 5, 5, 5, 5, 1, 3, 10];
    const INTERVALS: &'static [u64] = &[
        100_000, 100_000, 100_000, 100_000, 100_000, 100_000, 20_000, 600_000,
    ];
    const MANY: u32 = 30;

    fn moves() -> BoxedStrategy<i64> {
        let moves = [100_000, 40_000, 7_000, 700_000, 15_000];
        proptest::sample::select(moves.to_vec()).boxed()
    }

    fn new(_rate_type: RateType) -> Self {
        Self::default()
    }

    fn limit(&self) -> Option<StoredLimit> {
        self.limit
    }

    fn verb<T>(&mut self, verb: impl FnOnce(&mut LimiterState) -> T) -> T {
        verb(self)
    }

    fn available(&mut self, now: Now, id: PermitId) -> Result<i64, ErrorKind> {
        let before = self.state.0;
        let left = self.verb(|limiter| limiter.available(now, id));
        // Only an acquire writes what is left.
        self.state.0 = before.map(|window| StoredWindow {
            end: self.state.0.and_then(|mended| mended.end),
            ..window
        });
        left
    }

    /// It is read before the next step.
    fn lose(&mut self, _key: Key) {}

    fn read(pair: &mut Pair<Self>) {
        pair.model.limit = pair.stored_limit();
        pair.model.state.0 = pair.stored_window();
    }

    fn compare(pair: &mut Pair<Self>) {
        assert_eq!(pair.stored_limit(), pair.model.limit);
        let (stored, now) = (pair.stored_window(), pair.now());
        let is_open = |window: &StoredWindow| window.end.is_none_or(|end| end >= now);
        let modelled = pair.model.state.0.filter(is_open);
        let value = |window: Option<StoredWindow>| window.map(|window| window.value);
        assert_eq!(value(stored), value(modelled));
        let end = |window: Option<StoredWindow>| window.and_then(|window| window.end);
        match (end(stored), end(modelled)) {
            (Some(stored), Some(modelled)) => assert_near(stored, modelled, TOLERANCE),
            (stored, modelled) => assert_eq!(stored, modelled),
        }
    }

    fn set_back(pair: &mut Pair<Self>, by: i64) {
        let value = pair.value_key();
        let left: i64 = pair.ask(&["PTTL", &value]);
        if left < 0 {
            return;
        }
        let by = if left - by < OVER { left } else { by };
        for (_, taken) in &mut pair.granted {
            if let Taken::Window(end) = taken {
                *end -= by;
            }
        }
        if left == by {
            pair.command(&["DEL", &value]);
        } else {
            pair.command(&["PEXPIRE", &value, &(left - by).to_string()]);
        }
    }

    fn acquire(pair: &mut Pair<Self>, run: &[(Sent, bool)], how: How) {
        let command = pair.run_command(run, how);
        let demands = pair.acquires(run, pair.of_model(how));
        let reply = pair.call(&ACQUIRE, &command).unwrap();
        let replied = replied(&reply, 1, run.len());
        let now = replied.as_ref().map_or(0, |answers| answers[0].now.tick);
        let expected = decide(&mut pair.model, &demands, Now::millis(now));
        assert_eq!(replied.as_ref().err(), expected.as_ref().err());
        let answers = replied.unwrap_or_default();
        for (replied, expected) in answers.iter().zip(&expected.unwrap_or_default()) {
            assert_same(replied, expected, TOLERANCE);
        }
        for (answer, (sent, _)) in answers.iter().zip(run) {
            if answer.verdict == Verdict::Granted {
                let end = answer.now.tick + answer.reset - 1;
                pair.granted.push((*sent, Taken::Window(end)));
            }
        }
        pair.compare();
        if answers
            .iter()
            .any(|answer| answer.remaining > 0 || answer.wait > 0)
        {
            pair.check_lives();
        }
    }

    fn settle(pair: &mut Pair<Self>, which: Index, keep: u32, limit: LimitSource) {
        let (sent, taken) = pair.grant(which, Taken::Window(0));
        let Taken::Window(end) = taken else {
            panic!("{taken:?} of a window");
        };
        let now = Now::millis(pair.now());
        let receipt = pair.receipt(sent, limit).marked(taken);
        let call = (SCRIPTS.settle)(&receipt, keep, pair.asks(false)).unwrap();
        let (_, replied) = pair.number(call.script, &call.command);
        let live = pair.model.state.0.and_then(|window| window.end);
        let apart = live.map_or(i64::MAX, |live| (live - end).abs());
        let mut settle = |end| {
            let taken = Some(Taken::Window(end));
            pair.model.settle(&receipt, taken, keep, now)
        };
        let expected = if keep > sent.permits {
            settle(end)
        } else if (4..100).contains(&apart) {
            // A window that was ended by hand, and another soon after: here they cannot
            // be told apart.
            return;
        } else if apart < 4 {
            settle(live.unwrap_or(end))
        } else if pair.model.limit.is_none() {
            Err(ErrorKind::NotInitialized)
        } else {
            Ok(0)
        };
        assert_eq!(
            replied, expected,
            "{sent:?} until {end} at {keep}: {:?}",
            pair.model
        );
        pair.compare();
    }

    fn drift(pair: &mut Pair<Self>, value: i64) {
        let key = pair.value_key();
        pair.command(&["SET", &key, &value.to_string(), "XX", "KEEPTTL"]);
    }

    /// As a sliding log leaves it, with a log or without.
    fn plant(pair: &mut Pair<Self>, plant: Plant) {
        let (value, log) = (pair.value_key(), pair.log_key());
        pair.command(&["PERSIST", &value]);
        if plant.counted && pair.model.state.0.is_some() {
            pair.command(&["ZADD", &log, "1", "an entry"]);
        }
    }
}

impl Pair<Limiter> {
    fn stored_window(&mut self) -> Option<StoredWindow> {
        let key = self.value_key();
        let value = self.ask::<Option<i64>>(&["GET", &key])?;
        let left: i64 = self.ask(&["PTTL", &key]);
        let now = self.now();
        Some(StoredWindow {
            value,
            end: (left >= 0).then_some(now + left),
        })
    }

    /// Of a call that counts: the window ends within an interval, and has no log; the limit
    /// outlives it.
    fn check_lives(&mut self) {
        let limit = self.model.limit.unwrap();
        let [hash, value, log] = self.ttls();
        assert!(
            value == -2 || (0..=limit.interval).contains(&value),
            "{value}"
        );
        if value != -2 {
            assert_eq!(log, -2);
        }
        if limit.keep_alive == 0 {
            assert_eq!(hash, -1);
        } else {
            let keep_alive = limit.keep_alive.cast_signed();
            let enough = limit.interval.max(keep_alive / 2);
            assert!(hash >= enough - TOLERANCE, "{hash} {limit:?}");
        }
    }
}

proptest! {
    #![proptest_config(config(240))]

    #[test]
    fn a_history(rate_type in rate_type(1), steps in steps::<Limiter>(60)) {
        live(Pair::<Limiter>::of_kind(rate_type, Clock::Server), steps);
    }
}

/// Not by the model, whose times may differ: Redis keeps a key through the millisecond of its end,
/// so the wait is one more than it has left.
#[test]
fn a_wait_ends_with_the_millisecond_after_the_window() {
    let mut pair = Pair::<Limiter>::of_kind(RateType::Overall, Clock::Server);
    pair.try_set_rate(pair.limit(5, 100_000));
    let (end, value) = (pair.now() + 50_000, pair.value_key());
    let _: Value = pair.ask(&["SET", &value, "1", "PXAT", &end.to_string()]);
    let sent = pair.unsent(2);
    let command = pair.acquire_command(sent, How::STORED);
    let mut exact = 0;
    for _ in 0..100 {
        let reply = pair.call(&ACQUIRE, &command).unwrap();
        let answer = redisson::read_answers(&reply, 1, 1).unwrap().remove(0);
        assert_eq!(answer.wait, answer.reset);
        exact += u32::from(answer.now.tick + answer.wait == end + 1);
    }
    // Before Redis 7.2 time may move on between TIME and PTTL.
    assert!(exact > 50, "{exact}");
}
