//! Keeps decisions away from a server that does not answer. While its breaker is open, no call is
//! sent to the server, and no request waits for it.
//!
//! The breaker is for a server that can be reached but is slow, hangs, or is busy with other
//! things. If the server cannot be reached, the connection pauses, and commands fail at once; the
//! breaker does not count those. Any answer in time counts as a success, even an error.
//!
//! [`Nodes::refuses`] is asked before there is a future. [`Nodes::enter`] is asked once for
//! each call and node, right before the call is sent. `n` failures among the last `2n` calls open a
//! breaker. After a pause one call passes, the probe. If it is answered, all pass.
//!
//! A call that all its callers have left counts as a failure only if they left at their deadline
//! and the server was silent: see [`silence`](super::silence). Callers that hang up early do not
//! count: otherwise any client could open the breaker by sending requests and leaving. A server
//! that answers others in the meantime is overloaded by a burst; an open breaker would lift the
//! limits of all callers because of the burst of one. An answer that comes too late, while a caller
//! still waits, does not count either.
//!
//! A probe is sent alone, so its time is the server's own.

use std::{sync::Arc, time::Duration};

use super::{
    breaker::{Breaker, BreakerState, MOST_FAILURES, Open, Signal},
    nodes::Nodes,
};
use crate::{
    macros::{notice, warning},
    sync::atomic::Ordering,
    values::{charge::Charge, demand::Demand, error::Error, name::Name},
};

/// The longest time of a probe: after it another one passes, in case the task of the first is not
/// polled.
const LONGEST_PROBE: Duration = Duration::from_secs(1);

impl Nodes {
    /// Gives them breakers, which so many failures open; with none they never do. The error of an
    /// open one names the store's address. `turned` is called with the index of a node whose
    /// breaker has opened, or closed.
    pub(crate) fn with_breakers(
        mut self,
        failures: u32,
        address: Option<&Arc<str>>,
        turned: impl Fn(usize, bool) + Send + Sync + 'static,
    ) -> Self {
        let breakers = &mut self.breakers;
        breakers.failures = failures.min(MOST_FAILURES);
        breakers.open = breakers.open.clone().with_address(address);
        breakers.turned = Box::new(turned);
        self
    }

    /// Returns the error of a decision that needs a node whose breaker is open. To be asked before
    /// there is a future.
    ///
    /// Returns `None` for the caller whose call would be the probe.
    pub(crate) fn refuses(&self, demand: &Demand) -> Option<Error> {
        if !self.has_failures() {
            return None;
        }
        let now = self.clock.now();
        let refuses = |charge: &Charge| {
            let node = self.node(self.index(charge.name()));
            node.breaker.refuses(now)
        };
        // A shadow limit is no reason to refuse.
        let counts = |charge: &&Charge| !charge.shadow || demand.is_all_shadow();
        let mut charges = demand.charges().filter(counts);
        charges.any(refuses).then(|| self.breakers.open.clone())
    }

    /// Lets a call of this name pass, which reports its end. `waited` is the longest time that one
    /// of its callers has waited for it.
    ///
    /// # Errors
    ///
    /// Returns an error of kind [`Unavailable`](crate::ErrorKind::Unavailable) while the breaker is
    /// open, except for the probe.
    pub(crate) fn enter(&self, name: &Name, waited: Duration) -> Result<Pass<'_>, Error> {
        let index = self.index(name);
        let began = self.clock.now();
        let enters = |breaker: &mut Breaker, _| {
            if breaker.refuses(began) {
                return Err(self.breakers.open.clone());
            }
            if let Some(open) = &mut breaker.open {
                open.until = began.saturating_add(LONGEST_PROBE);
                open.is_probed = true;
            }
            Ok(breaker.open)
        };
        let entered = self.has_failures().then(|| self.change(index, enters));
        let probe = entered.transpose()?.flatten();
        if !self.is_watched() {
            self.sent(index);
        }
        Ok(Pass {
            nodes: self,
            index,
            probe,
            began,
            waited,
            has_ended: false,
        })
    }

    /// Returns the state of each breaker, for how long it lasts, and the failures among the last
    /// calls while it is closed. Empty where there is no breaker.
    pub(crate) fn look(&self) -> Vec<(BreakerState, Duration, u32)> {
        if self.breakers.failures == 0 {
            return Vec::new();
        }
        let now = self.clock.now();
        let looks = |breaker: &Breaker| {
            let lasts = now.saturating_sub(breaker.since);
            (breaker.state(now), lasts, breaker.row.count_ones())
        };
        self.each().map(|node| looks(&node.breaker)).collect()
    }

    /// Changes a breaker, and logs if that opens or closes it.
    fn change<R>(&self, index: usize, change: impl FnOnce(&mut Breaker, Duration) -> R) -> R {
        let (now, breakers) = (self.clock.now(), &self.breakers);
        let mut node = self.node(index);
        let breaker = &mut node.breaker;
        let (was_open, was_troubled) = (breaker.open.is_some(), breaker.has_failures());
        let changed = change(breaker, now);
        let is_open = breaker.open.is_some();
        let turns = was_open != is_open;
        if turns {
            (breaker.since, breaker.row) = (now, 0);
        }
        match (was_troubled, breaker.has_failures()) {
            (false, true) => drop(breakers.troubled.fetch_add(1, Ordering::AcqRel)),
            (true, false) => drop(breakers.troubled.fetch_sub(1, Ordering::AcqRel)),
            _ => {}
        }
        let warns = turns && breakers.count_change(is_open, now);
        drop(node);
        if turns {
            (breakers.turned)(index, is_open);
        }
        if warns && is_open {
            warning!(
                failures = breakers.failures,
                "circuit breaker open: one probe per pause until the rate limit store answers in \
                 time"
            );
        } else if warns {
            notice!("circuit breaker closed: the rate limit store answers in time");
        }
        changed
    }

    fn has_failures(&self) -> bool {
        self.breakers.troubled.load(Ordering::Acquire) > 0
    }
}

/// One call, until it is over. Dropping it says that none of its callers waits any longer.
#[must_use = "a call that does not report its end has failed, or was not waited for"]
pub(crate) struct Pass<'a> {
    nodes: &'a Nodes,
    index: usize,
    /// The state that it made, if it is a probe.
    probe: Option<Open>,
    began: Duration,
    /// The time that its callers had waited before it.
    waited: Duration,
    has_ended: bool,
}

impl Pass<'_> {
    /// Reports the end of the call. An answer that took longer than callers wait is none, but shows
    /// that the server is not silent.
    pub(crate) fn ends(mut self, signal: Signal) {
        if signal == Signal::Answered {
            self.nodes.replied(self.index);
        }
        let late = signal == Signal::Answered && self.took() >= self.nodes.bounds.deadline;
        self.report(match self.probe {
            _ if !late => signal,
            Some(_) => Signal::Failed,
            None => Signal::Nothing,
        });
    }

    /// Reports that the connection no longer waits for an answer.
    pub(crate) fn ends_unanswered(mut self) {
        self.report_unanswered(self.took().min(self.nodes.bounds.deadline));
    }

    fn took(&self) -> Duration {
        self.nodes.clock.now().saturating_sub(self.began)
    }

    /// Reports a call that is given up after `max_wait`: it failed if the server was silent for as
    /// long, during this call or since an earlier one that stood before it in its line.
    fn report_unanswered(&mut self, max_wait: Duration) {
        let waited = if self.took() >= nearly(max_wait) {
            Duration::ZERO
        } else {
            self.waited
        };
        let asked = self.began.saturating_sub(waited);
        let silent = self.nodes.was_silent(self.index, asked, max_wait);
        self.report(if silent || self.probe.is_some() {
            Signal::Failed
        } else {
            Signal::Nothing
        });
    }

    fn report(&mut self, signal: Signal) {
        self.has_ended = true;
        let (nodes, failed) = (self.nodes, signal == Signal::Failed);
        if let Some(probe) = self.probe {
            return self.probed(probe, signal);
        }
        let failures = nodes.breakers.failures;
        if failures == 0 || signal == Signal::Nothing || !failed && !nodes.has_failures() {
            return;
        }
        nodes.change(self.index, |breaker, now| {
            // A call that began before the breaker opened does not count after it has closed.
            if breaker.open.is_some() || self.began < breaker.since {
                return;
            }
            let among = u64::MAX >> (64 - 2 * failures);
            breaker.row = (breaker.row << 1 | u64::from(failed)) & among;
            if breaker.row.count_ones() >= failures {
                breaker.open = Some(Open::pausing(0, now, nodes.breakers.spread(now)));
            }
        });
    }

    /// Reports the end of a probe.
    fn probed(&self, probe: Open, signal: Signal) {
        self.nodes.change(self.index, |breaker, now| {
            let Some(open) = breaker.open.filter(|_| self.began >= breaker.since) else {
                return;
            };
            breaker.open = match signal {
                // Also if there is another probe by now: this is an answer since the last pause.
                Signal::Answered if open.pauses == probe.pauses => None,
                Signal::Failed if open == probe => Some(Open::pausing(
                    open.pauses,
                    now,
                    self.nodes.breakers.spread(now),
                )),
                // Nothing was learnt: the next probe may go at once. This is no probe any longer,
                // or an older one whose time ends now would be taken for it.
                Signal::Nothing if open == probe => Some(Open {
                    until: now,
                    is_probed: false,
                    ..open
                }),
                _ => return,
            };
        });
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        // The first callers of a line that is longer than a run leave while their call is young:
        // they have waited before it.
        let slow = self.nodes.bounds.deadline;
        if !self.has_ended && self.waited + self.took() >= nearly(slow) {
            self.report_unanswered(slow);
        } else if !self.has_ended {
            self.report(Signal::Nothing);
        }
    }
}

/// Returns the least time after which a caller that leaves does so at its deadline.
fn nearly(deadline: Duration) -> Duration {
    deadline / 10 * 9
}

#[cfg(test)]
mod tests;
