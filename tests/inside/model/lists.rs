//! Random histories of limiters that are asked together, and each on its own in between.

use super::{
    histories::{Whose, permits},
    slots::note_in,
    *,
};
use crate::store::redis::redisson::{
    sliding_log::{ACQUIRE_LIST, SCRIPTS},
    slots,
};

const LIMITERS: usize = 3;

type Limiter = LimiterState<SlidingLog>;

#[derive(Clone, Debug)]
enum ListStep {
    /// On one limiter
    One(usize, Step),
    Advance(i64),
    Demand {
        /// Which limiters are asked.
        which: [bool; LIMITERS],
        whose: [Whose; LIMITERS],
        exact: bool,
        /// Whether each limit is the stored one, as the code says it
        by_code: bool,
        callers: Vec<NewCaller>,
    },
    /// A list that was sent before, whatever became of it
    Resend(Index),
}

#[derive(Clone, Debug)]
struct NewCaller {
    waits: bool,
    takes: [(u32, bool); LIMITERS],
}

/// A list as it was sent.
#[derive(Clone, Debug)]
struct SentList {
    which: Vec<usize>,
    whose: [Whose; LIMITERS],
    exact: bool,
    by_code: bool,
    /// For each caller whether it waits, and for each limiter what it takes and whether as a trial.
    callers: Vec<(bool, Vec<(Sent, bool)>)>,
}

/// A step in which some limiters may count in slots.
fn slotted_step() -> impl Strategy<Value = ListStep> {
    let note = (0..LIMITERS, note_in());
    prop_oneof![
        12 => list_step(),
        3 => note.prop_map(|(limiter, step)| ListStep::One(limiter, step)),
    ]
}

fn list_step() -> impl Strategy<Value = ListStep> {
    let one = (0..LIMITERS, step::<Limiter>()).prop_filter("moves all clocks", |(_, step)| {
        !matches!(step, Step::Advance(_))
    });
    let take = || (permits::<Limiter>(), proptest::bool::weighted(0.2));
    let caller = (any::<bool>(), proptest::array::uniform3(take()))
        .prop_map(|(waits, takes)| NewCaller { waits, takes });
    let few = || {
        (
            prop_oneof![4 => Just(1), 1 => Just(2_u32)],
            proptest::bool::weighted(0.1),
        )
    };
    let alone = (any::<bool>(), proptest::array::uniform3(few()))
        .prop_map(|(waits, takes)| vec![NewCaller { waits, takes }]);
    let callers = prop_oneof![
        3 => (Just(false), proptest::collection::vec(caller, 1..4)).boxed(),
        2 => (Just(true), alone).boxed(),
    ];
    let demand = (
        proptest::array::uniform3(proptest::bool::weighted(0.7)),
        proptest::array::uniform3(whose::<Limiter>()),
        any::<bool>(),
        callers,
    );
    prop_oneof![
        6 => one.prop_map(|(limiter, step)| ListStep::One(limiter, step)),
        6 => Limiter::moves().prop_map(ListStep::Advance),
        12 => demand.prop_map(|(which, whose, exact, (by_code, callers))| ListStep::Demand {
            which,
            whose,
            exact,
            by_code,
            callers,
        }),
        3 => any::<Index>().prop_map(ListStep::Resend),
    ]
}

struct Stage {
    pairs: [Pair; LIMITERS],
    sent: Vec<SentList>,
}

impl Stage {
    fn new(rate_type: RateType, clock: Clock) -> Self {
        Self {
            pairs: [(); LIMITERS].map(|()| Pair::new(rate_type, clock)),
            sent: Vec::new(),
        }
    }

    fn take(&mut self, step: ListStep) {
        match step {
            ListStep::One(limiter, step) => take(&mut self.pairs[limiter], step),
            ListStep::Advance(by) => self.pairs.iter_mut().for_each(|pair| pair.advance(by)),
            ListStep::Demand {
                which,
                whose,
                exact,
                by_code,
                callers,
            } => {
                let which: Vec<_> = (0..LIMITERS).filter(|limiter| which[*limiter]).collect();
                if which.is_empty() {
                    return;
                }
                let callers = callers
                    .into_iter()
                    .map(|caller| (caller.waits, self.takes(&which, &caller)));
                let list = SentList {
                    callers: callers.collect(),
                    which,
                    whose,
                    exact,
                    by_code,
                };
                self.sent.push(list.clone());
                let _ = self.send(&list);
            }
            ListStep::Resend(which) if !self.sent.is_empty() => {
                let list = which.get(&self.sent).clone();
                // Nothing of slots is sent again.
                if self.slots_of(&list.which).is_none() {
                    let _ = self.send(&list);
                }
            }
            ListStep::Resend(_) => {}
        }
    }

    /// The script that decides where one of these limiters has slots.
    fn slots_of(&self, which: &[usize]) -> Option<&'static Script> {
        let slotted = |limiter: &usize| self.pairs[*limiter].counting.slots().is_some();
        which.iter().any(slotted).then_some(&slots::ACQUIRE_LIST)
    }

    fn takes(&mut self, which: &[usize], caller: &NewCaller) -> Vec<(Sent, bool)> {
        let take = |limiter: &usize| {
            let (permits, shadow) = caller.takes[*limiter];
            let pair = &mut self.pairs[*limiter];
            let sent = pair.unsent(permits);
            pair.sent.push(sent);
            (sent, shadow)
        };
        which.iter().map(take).collect()
    }

    /// Has the script and the pure function decide, and compares. What both say.
    fn send(&mut self, list: &SentList) -> Result<Vec<Answer>, ErrorKind> {
        let hows: Vec<_> = list
            .which
            .iter()
            .map(|limiter| {
                let pair = &self.pairs[*limiter];
                let mut how = list.whose[*limiter].how(pair);
                how.exact = list.exact;
                if let (true, Some(stored)) = (list.by_code, pair.model.limit) {
                    let [rate, interval] = [stored.rate, stored.interval].map(i64::unsigned_abs);
                    how.limit = LimitSource::Code(pair.limit(rate, interval));
                }
                how
            })
            .collect();
        let charges: Vec<Vec<Charge>> = list
            .callers
            .iter()
            .map(|(_, takes)| {
                let charges = takes.iter().zip(&list.which).zip(&hows);
                charges
                    .map(|(((sent, shadow), limiter), how)| Charge {
                        shadow: *shadow,
                        ..self.pairs[*limiter].charge(*sent, how.limit)
                    })
                    .collect()
            })
            .collect();
        let clock = self.pairs[0].clock;
        let limiters = charges[0].iter().zip(&hows);
        let limiters: Vec<_> = limiters
            .map(|(charge, how)| (charge, how.rewrite))
            .collect();
        let callers = charges.iter().zip(&list.callers);
        let run =
            callers.map(|(charges, (waits, _))| Demand::caller(charges.iter().cloned(), *waits));
        let run: Vec<_> = run.collect();
        let in_slots = self.slots_of(&list.which);
        let asks = self.pairs[0].asks(list.exact);
        let general = in_slots.unwrap_or(&ACQUIRE_LIST);
        let command = redisson::acquire_command(general, &limiters, &run, asks);
        // The cheaper script, where it serves.
        let cheaper = match &list.callers[..] {
            [_] if charges[0].len() > 1 && in_slots.is_none() => {
                let caller = Demand::caller(charges[0].clone(), false);
                let cheaper = (SCRIPTS.brief)(std::slice::from_ref(&caller), &limiters, asks);
                cheaper.map(|(call, read)| (call, read, caller))
            }
            _ => None,
        };
        let replied = match cheaper {
            Some((call, read, caller)) => {
                let reply = self.pairs[0].call(call.script, &call.command).unwrap();
                let answers = read(&reply, &[caller], asks);
                match answers.map_err(|error| error.kind()) {
                    Ok(Some(answers)) => Ok(answers.to_vec()),
                    Ok(None) => panic!("the script did not decide"),
                    Err(kind) => Err(kind),
                }
            }
            None => {
                let reply = self.pairs[0].call(general, &command).unwrap();
                replied(&reply, list.which.len(), list.callers.len())
            }
        };
        let now = match (clock, &replied) {
            (Clock::Given(now), _) => now,
            (Clock::Server, Ok(answers)) => answers[0].now.tick,
            // Errors of the model come before it looks at the time.
            (Clock::Server, Err(_)) => 0,
        };

        let waiting = list.callers.iter().map(|(waits, _)| *waits);
        let run = charges.into_iter().zip(waiting).map(|(charges, waits)| {
            let by = charges.into_iter().zip(&hows).zip(&list.which);
            let by = by.map(|((charge, how), limiter)| {
                let charge = charge.by(self.pairs[*limiter].of_model(*how).limit);
                // If one of them counts in slots, no grant of the list is known again.
                charge.made(charge.made.filter(|_| in_slots.is_none()))
            });
            Demand {
                wants_remaining: list.exact,
                ..Demand::caller(by, waits)
            }
        });
        let run: Vec<_> = run.collect();
        let instant = self.pairs[0].instant(now);
        let asked = self.pairs.iter_mut().enumerate();
        let asked = asked.filter(|(limiter, _)| list.which.contains(limiter));
        let limiters = asked.map(|(_, pair)| &mut pair.model as &mut LimiterState);
        let expected = decide_all(limiters, &run, instant);
        assert_eq!(replied, expected, "{list:?}");
        self.pairs.iter_mut().for_each(Pair::compare);
        expected
    }
}

fn live(rate_type: RateType, clock: Clock, steps: Vec<ListStep>) {
    let mut stage = Stage::new(rate_type, clock);
    for step in steps {
        stage.take(step);
    }
}

// Redis ends a script where it stands: what one limiter's limit became must not be written before
// it is known that the others' keys are what they should be.
#[test]
fn a_key_that_is_no_log_changes_nothing() {
    let mut stage = Stage::new(RateType::Overall, Clock::Given(START));
    let [first, second, _] = &mut stage.pairs;
    first.set_rate(first.limit(100, 1000), false, false);
    second.set_rate(second.limit(100, 1000), false, false);
    let log = second.log_key();
    second.command(&["SET", &log, "no log"]);
    let lower = LimitSource::Code(first.limit(10, 1000));
    let sent = first.unsent(1);
    let charges = [&*first, &*second].map(|pair| pair.charge(sent, lower));
    let limiters = charges.each_ref().map(|charge| (charge, true));
    let run = [Demand::caller(charges.iter().cloned(), false)];
    let command = redisson::acquire_command(&ACQUIRE_LIST, &limiters, &run, first.asks(true));
    let before = first.raw();
    first.call(&ACQUIRE_LIST, &command).unwrap_err();
    assert_eq!(first.raw(), before);
}

proptest! {
    #![proptest_config(config(800))]

    #[test]
    fn a_history_of_lists(
        rate_type in rate_type(4),
        clock in clock(),
        steps in proptest::collection::vec(list_step(), 1..40),
    ) {
        live(rate_type, clock, steps);
    }

    #[test]
    fn a_history_of_lists_in_slots(
        rate_type in rate_type(4),
        clock in clock(),
        steps in proptest::collection::vec(slotted_step(), 1..40),
    ) {
        live(rate_type, clock, steps);
    }
}
