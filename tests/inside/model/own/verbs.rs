//! Verbs of one limiter in our own format, beside what they must do.

use super::{
    stage::{Receipt, Stage},
    *,
};
use crate::store::redis::packed::{
    self,
    verbs::{self, GrantToSettle, release},
};

impl Stage {
    pub(super) fn at(&mut self, limiter: usize, one: &One) {
        let stamp = stamp(self.id(), self.given());
        let (kind, name) = (self.sides[limiter].kind, self.sides[limiter].name.clone());
        match one {
            One::Settle(which, keep, times) => {
                let receipts = &mut self.sides[limiter].receipts;
                if !receipts.is_empty() {
                    let which = which.index(receipts.len());
                    let receipt = receipts.swap_remove(which);
                    self.settle(limiter, &receipt, *keep, *times);
                }
            }
            One::Release(permits) if self.has_one_limit() => self.release(limiter, *permits),
            // Which records give depends on the longest window.
            One::Release(_) => {}
            One::Left(version, by) => {
                let row = row(kind, self.terms(limiter, *version));
                let now = self.now() + by;
                // By a caller's clock, also where limiters count by the server's.
                let stamp = spec::stamp(stamp.id, Some(now - self.moved()));
                let reply = self.call(&verbs::ask_left(&row, &name, stamp));
                let (_, left) = verbs::read_left(&row, &reply).unwrap();
                self.is_left(limiter, *version, now, left.unwrap());
            }
            One::Lose => {
                self.write(&["DEL", &packed::key(&name)]);
                let side = &mut self.sides[limiter];
                (side.spec, side.memory) = (Spec::new(kind), AnyLimiter::new(kind));
                side.receipts.clear();
            }
        }
    }

    fn release(&mut self, limiter: usize, permits: u32) {
        let stamp = stamp(self.id(), self.given());
        let (kind, name) = (self.sides[limiter].kind, self.sides[limiter].name.clone());

        let call = release(kind, &name, stamp, permits);
        let (reply, Some(now)) = self.call_at(&call) else {
            return;
        };
        let freed = packed::freed(&reply);
        let terms = self.terms(limiter, 0);
        let side = &mut self.sides[limiter];
        let permits = i64::from(permits);
        let expected = side.spec.release(now, terms, permits);
        let by_memory = match side.memory.limit {
            Some(_) => side
                .memory
                .release(permits, instant(now), stamp.id)
                .unwrap(),
            None => 0,
        };
        assert_eq!(freed.unwrap(), expected.unwrap_or(by_memory));
        assert_eq!(expected.unwrap_or(by_memory), by_memory);
        // What a grant has left is no longer known.
        side.receipts.clear();
    }

    fn settle(&mut self, limiter: usize, receipt: &Receipt, keep: u32, times: usize) {
        let kind = self.sides[limiter].kind;
        let times = if kind == Algorithm::SlidingLog {
            times
        } else {
            1
        };
        let moved = self.moved();
        for time in 0..times {
            let side = &mut self.sides[limiter];
            let charge = Charge {
                id: receipt.id,
                ..side.charge(receipt.terms, receipt.permits)
            };
            let stored = receipt.taken.map(|taken| match taken {
                Taken::Date { label, end } => Taken::Date {
                    label: label - moved,
                    end: end - moved,
                },
                taken => taken,
            });
            let marked = |taken: Option<Taken>| match taken {
                Some(taken) => charge.to_send().marked(taken),
                None => charge.to_send(),
            };
            let grant = GrantToSettle::of(&marked(stored), self.now_given(), keep).unwrap();
            let call = verbs::settle([(charge.name(), &grant)]);
            let before = self.state(limiter);
            let (reply, now) = self.call_at(&call);
            let freed = packed::freed(&reply).unwrap();
            if time > 0 {
                assert_eq!(freed, 0, "settled twice");
                assert_eq!(self.state(limiter), before);
                continue;
            }
            let Some(now) = now else {
                return;
            };
            let numbers = (receipt.id, i64::from(receipt.permits), i64::from(keep));
            let label = match receipt.taken {
                Some(Taken::Date { label, .. }) => label,
                _ => 0,
            };
            let side = &mut self.sides[limiter];
            let expected = side.spec.settle(now, receipt.terms, numbers, label);
            let taken = receipt.taken.map(in_memory);
            let memory = &mut side.memory;
            let by_memory = memory.settle(&marked(taken), taken, keep, instant(now));
            if matches!(side.spec, Spec::Gcra) {
                assert_eq!(Ok(freed), by_memory);
            }
            if let Some(expected) = expected {
                assert_eq!(freed, expected, "{receipt:?} at {keep}");
            }
        }
    }
}

/// The mark of a grant as the algorithm in memory has it.
fn in_memory(taken: Taken) -> Taken {
    match taken {
        Taken::Date { end, .. } => Taken::Window(end - 1),
        taken => taken,
    }
}
