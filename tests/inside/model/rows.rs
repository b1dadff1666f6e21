//! Single cases as rows of steps: what is taken, settled and free of a log, and when. Each step is
//! held against the model, and says its result.

use super::{
    pair::{Clock, How, Key, Pair, START},
    slots::{Slotted, granted, log, plant_stray, settle},
};
use crate::{
    algorithm::answer::Verdict,
    error::ErrorKind,
    limit::{LimitSource, RateType},
};

/// Steps on a log of ten permits in 1000 ms, overall and per client.
const OF_A_LOG: &[(&str, &str)] = &[
    (
        "what stays expires when it would have, and what comes late finds nothing",
        "take 8, +400, settle 0 at 3 is 5, free 7, refuse 8 for 600, +600, free 10, \
         settle 0 at 0 is 0, free 10",
    ),
    (
        "as much again is another member",
        "take 3, settle 0 at 6 is -3, free 4",
    ),
    (
        "debt is paid before anybody is admitted: not when the first permit has expired",
        "take 1, +500, settle 0 at 26 is -25, free -16, refuse 1 for 1000, +500, free -15, \
         refuse 1 for 500, +499, refuse 1 for 1, +1, take 10",
    ),
    (
        "what has expired is charged more all the same",
        "take 2, +5000, settle 0 at 6 is -4, settle 0 at 6 is 0, free 6, +1000, free 10",
    ),
    (
        "a limiter that vanished is found in debt, and vanishes again when it is paid",
        "take 2, +90000, lose all, settle 0 at 50 is unset, renew 0 at 50 is -48, \
         renew 0 at 50 is 0, mortal, refuse 1 for 1000, +1000, free 10",
    ),
    (
        "an acquire that comes late is settled by the second sending",
        "take 8, settle 0 at 3 is 5, release 3, +1, again 0, settle 0 at 3 is 5, free 7, \
         settle 0 at 3 is 0, +1000, free 10",
    ),
    (
        "what stays is not counted twice: the duplicate's settlement finds what the first left",
        "take 4, settle 0 at 2 is 2, +1, again 0, settle 0 at 2 is 4, free 8",
    ),
    (
        "a release makes one of a receipt's two members what the other is",
        "take 2, settle 0 at 26 is -24, +1, settle 0 at 17 is -15, release 11, +1000, free 10",
    ),
    (
        "two entries of one acquire shrink one after the other",
        "take 3, release 1, again 0, release 3, free 8",
    ),
    (
        "the largest numbers are counted exactly",
        "rate 9007199254740991, take 4294967295, +1, take 4294967295, +1, take 4294967295, +1, \
         free 9007186369839106, +1000, free 9007199254740991",
    ),
    (
        "permits of unknown age are restored in parts that fit a member",
        "rate 12884901888, value 1, refuse 7 for 1000, entries 4, +1000, free 12884901888",
    ),
    (
        "a repair does not block the server where an operator has raised the rate by hand",
        "rate 9007199254740991, value 5, refuse 6 for 1000, entries 100, take 5, +1000, \
         free 9007199254740991",
    ),
];

/// Steps on 20 permits in 1000 ms, noted in slots of 10 ms.
const IN_SLOTS: &[(&str, &str)] = &[
    (
        "grants of one slot are one entry, also beside other slots that end then, and no slots",
        "take 2, log 0:2, +1, take 3, +1, take 3, log 0:2 10:6, slots 20, take 1, \
         log 0:2 10:6 50:1, +46, take 1, slots 100, take 1, log 0:2 10:6 50:3, slots 0, take 1, \
         log 0:2 10:6 48:1 50:3",
    ),
    (
        "a slot counts until an interval after its end",
        "+1, take 20, refuse 1 for 1009, +1008, refuse 1 for 1, +1, take 20",
    ),
    (
        "an entry that was set back stays beside its slot's, which has the same bytes",
        "take 1, stray 10 of 2 at 4, +5, take 2, log 0:1 4:2 10:2, take 2, log 0:1 4:2 10:2 10:2, \
         take 3, stray 10 of 4 at 4, free 6, +1000, free 13",
    ),
    (
        "what was taken in a slot is given back, but no more than is there",
        "+1, take 5, take 3, settle 0 at 1 is 4, log 10:4, settle 1 at 0 is 3, log 10:1, free 19, \
         take 2, release 2, settle 2 at 0 is 1, free 20, settle 2 at 0 is 0",
    ),
    (
        "more is charged in the present slot, beyond the limit, and where the limiter vanished",
        "+1, take 2, +500, settle 0 at 30 is -28, log 10:2 510:28, free -10, settle 0 at 3 is -1, \
         log 10:2 510:29, lose all, settle 0 at 0 is 0, settle 0 at 9 is unset, \
         renew 0 at 9 is -7, mortal, free 13",
    ),
    (
        "a full entry makes room for another, also of several callers at once",
        "rate 1099511627776, take 4294967294, entries 1, take 1, entries 1, take 1, entries 2, \
         take 4294967295, entries 3, take 7, entries 4, take 4294967288, entries 4, \
         run 4294967295 4294967295 5 4294967290, free 1073741824005, +1000, free 1099511627776",
    ),
    (
        "a new slot takes the place of two that have expired, and what is refused makes none",
        "rate 1000000, take 1, +10, take 1, +10, take 1, +10, take 1, +10, take 1, +10, +980, \
         entries 5, take 1, entries 4, left 999996, take 1, entries 4, left 999995, +1, take 1, \
         log 40:1 1030:2 1040:1, +1500, never 1000001, entries 3",
    ),
];

/// A limiter, and what was granted of it.
struct Row {
    pair: Pair,
    rate: u64,
    how: How,
    granted: Vec<Slotted>,
}

impl Row {
    fn new(rate_type: RateType, rate: u64, slots: Option<u32>) -> Self {
        let mut pair = Pair::new(rate_type, Clock::Given(START));
        assert!(pair.try_set_rate(pair.limit(rate, 1000)));
        pair.note_in(slots);
        let how = slots.map_or(How::EXACT, |_| How::STORED);
        let granted = Vec::new();
        Self {
            pair,
            rate,
            how,
            granted,
        }
    }

    fn step(&mut self, step: &str) {
        let (pair, how) = (&mut self.pair, self.how);
        let words: Vec<_> = step.split_whitespace().collect();
        let number = |place: usize| words[place].parse::<i64>().unwrap();
        let permits = |place: usize| words[place].parse::<u32>().unwrap();
        match words[0] {
            "take" => {
                let answer = pair.grants(permits(1), how);
                let slotted = granted(pair, Ok(answer));
                let (sent, end) = (*pair.sent.last().unwrap(), 0);
                self.granted.push(slotted.unwrap_or(Slotted { sent, end }));
            }
            "refuse" => assert_eq!(pair.refuses(permits(1), how), number(3)),
            "never" => {
                let answer = pair.acquire(permits(1), how).unwrap();
                assert_eq!(answer.verdict, Verdict::AboveRate);
            }
            "run" => {
                let run = pair.unsent_run([1, 2, 3, 4].map(permits));
                pair.send_run(&run, how).unwrap();
            }
            "rate" => pair.set_rate(pair.limit(number(1).unsigned_abs(), 1000), false, false),
            "value" => pair.set_value(number(1)),
            "left" => assert_eq!(pair.model.state.value, Some(number(1))),
            "entries" => assert_eq!(log(pair).len() as i64, number(1)),
            "again" => {
                let sent = self.granted[number(1) as usize].sent;
                let answer = pair.send(sent, how).unwrap();
                assert_eq!(answer.verdict, Verdict::Granted);
            }
            verb @ ("settle" | "renew") => {
                let limit = match verb {
                    "settle" => LimitSource::Store,
                    _ => LimitSource::Code(pair.limit(self.rate, 1000).for_request_key()),
                };
                let which = self.granted[number(1) as usize];
                let credited = match pair.name.slots() {
                    Some(_) => settle(pair, which, permits(3), limit),
                    None => pair.settle(which.sent, permits(3), limit),
                };
                let expected = words[5].parse().map_err(|_| ErrorKind::NotInitialized);
                assert_eq!(credited, expected);
            }
            "release" => pair.release(permits(1)),
            "free" => assert_eq!(pair.available(), Ok(number(1))),
            "lose" => [Key::Limit, Key::Value, Key::Log]
                .into_iter()
                .for_each(|key| pair.lose(key)),
            "mortal" => assert!(pair.ttls().iter().all(|ttl| *ttl > 1000)),
            "slots" => pair.note_in(Some(permits(1)).filter(|slots| *slots > 0)),
            "stray" => plant_stray(pair, START + number(1), permits(3), START + number(5)),
            "log" => {
                let entries = log(pair).into_iter();
                let entries = entries.map(|(score, permits)| format!("{score}:{permits}"));
                assert_eq!(entries.collect::<Vec<_>>(), words[1..]);
            }
            time => pair.advance(time.strip_prefix('+').unwrap().parse().unwrap()),
        }
    }
}

#[test]
#[allow(clippy::print_stdout, reason = "it names the row that fails")]
fn every_row_goes_as_it_says() {
    let both = [RateType::Overall, RateType::PerClient];
    let of_a_log = both.map(|rate_type| (OF_A_LOG, rate_type, 10, None));
    let in_slots = (IN_SLOTS, RateType::Overall, 20, Some(100));
    for (rows, rate_type, rate, slots) in of_a_log.into_iter().chain([in_slots]) {
        for (name, steps) in rows {
            println!("{name}, {rate_type:?}: {steps}");
            let mut row = Row::new(rate_type, rate, slots);
            steps.split(',').for_each(|step| row.step(step));
        }
    }
}
