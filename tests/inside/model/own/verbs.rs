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
        match one {
            One::Settle(which, keep, times) => {
                let receipts = &mut self.sides[limiter].receipts;
                if !receipts.is_empty() {
                    let which = which.index(receipts.len());
                    let receipt = receipts.swap_remove(which);
                    self.settle(limiter, &receipt, *keep, *times);
                }
            }
            One::Release(permits) => self.release(limiter, *permits),
            One::Left(by) => {
                let now = self.now() + by;
                // By a caller's clock, also where limiters count by the server's.
                let stamp = stamp(self.id(), Some(now - self.moved()));
                self.compare_at(limiter, stamp, Some(now));
            }
            One::Lose => {
                let key = packed::key(&self.sides[limiter].name);
                self.write(&["DEL", &key]);
                self.sides[limiter].lose();
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
        let side = &mut self.sides[limiter];
        let by_memory = match side.memory.limit {
            Some(_) => {
                let memory = &mut side.memory;
                memory.release(permits.into(), instant(now), stamp.id)
            }
            None => Ok(0),
        };
        assert_eq!(packed::freed(&reply).unwrap(), by_memory.unwrap());
        // What a grant has left is no longer known.
        side.receipts.clear();
        side.gave_back = now;
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
                ..side.charge(receipt.permits)
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
            let side = &mut self.sides[limiter];
            let taken = receipt.taken.map(in_memory);
            let memory = &mut side.memory;
            let by_memory = memory.settle(&marked(taken), taken, keep, instant(now));
            side.gave_back = now;
            // A record is found also where nothing of it counts any more.
            let lives = receipt.time > now - side.terms.1.cast_signed();
            if kind != Algorithm::SlidingLog || lives {
                assert_eq!(Ok(freed), by_memory, "{receipt:?} at {keep}");
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
