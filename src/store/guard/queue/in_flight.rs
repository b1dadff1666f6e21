//! Limits the calls in flight to each node.
//!
//! More calls than a server answers in time only make each other late. So a call beyond the bound
//! waits here, in the order of arrival, until it may be sent. If too many wait, or the first has
//! waited for half a deadline, the call fails with overload: its callers are answered by the
//! failure policy, and the breaker does not count it.
//!
//! The bound adapts. A call that takes longer than half a deadline halves it, at most once in a
//! deadline. It grows by one after as many calls as the bound have ended in time while it was
//! reached. A call older than a deadline no longer counts as in flight.

use std::{
    collections::VecDeque,
    future,
    pin::Pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::sync::oneshot;

use crate::{clock::Clock, error::Error, name::Name, store::guard::late::Late, sync::lock};

/// The largest and the smallest bound.
const MOST: usize = 256;
const LEAST: usize = 1;

/// The calls in flight to the nodes of a store.
pub(crate) struct InFlight {
    /// By the number of the node.
    nodes: Mutex<Vec<Node>>,
    node_of: Box<dyn Fn(&Name) -> usize + Send + Sync>,
    pub(super) bounds: Bounds,
    /// A monotonic clock.
    pub(super) clock: Arc<dyn Clock>,
}

/// The time for which a call counts as in flight, and the limits of the bound.
#[derive(Clone, Copy)]
pub(super) struct Bounds {
    pub(super) deadline: Duration,
    pub(super) most: usize,
    pub(super) least: usize,
}

struct Node {
    bounds: Bounds,
    bound: usize,
    /// The number of calls that ended in time while the bound was reached, since it last grew.
    in_time: usize,
    /// When the bound was last lowered.
    lowered: Duration,
    last: u64,
    /// The number of each call, and when it was sent.
    sent: VecDeque<(u64, Duration)>,
    /// The calls that wait to be sent, and since when.
    waiting: VecDeque<(Duration, oneshot::Sender<InFlightPlace>)>,
}

/// The state of a call that is to be sent.
enum NewCall {
    Sent(u64),
    Waits(oneshot::Receiver<InFlightPlace>),
    Overload,
}

/// A call's place among those in flight. Dropping it lets the next call be sent.
pub(super) struct InFlightPlace {
    in_flight: Arc<InFlight>,
    node: usize,
    call: u64,
    /// Set if the call had to wait for it.
    pub(super) has_waited: bool,
}

impl InFlight {
    /// `clock` must be monotonic. `deadline` is the time that a caller waits for the server.
    pub(crate) fn new(
        deadline: Duration,
        clock: Arc<dyn Clock>,
        node_of: impl Fn(&Name) -> usize + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            nodes: Mutex::default(),
            node_of: Box::new(node_of),
            bounds: Bounds {
                deadline,
                most: MOST,
                least: LEAST,
            },
            clock,
        })
    }

    /// Sleeps by the clock of calls. Without a timer it never ends: the end of a call then wakes
    /// the callers that wait for it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    pub(super) fn sleep_until(&self, time: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        if self.clock.can_sleep() {
            self.clock.sleep_until(time)
        } else {
            Box::pin(future::pending())
        }
    }

    /// Waits until a call may be sent to the node of `name`. With `waits`, its callers wait for
    /// permits, and so have time: the call is never refused for overload.
    ///
    /// # Errors
    ///
    /// Overload, at once, if as many calls wait as the bound, or if the first of them has waited
    /// for half a deadline.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives the place up.
    pub(super) async fn take_place(
        self: &Arc<Self>,
        name: &Name,
        waits: bool,
    ) -> Result<InFlightPlace, Error> {
        let node = (self.node_of)(name);
        let mut has_waited = false;
        loop {
            match self.with(node, |node, now| node.send_or_wait(now, waits)) {
                NewCall::Sent(call) => return Ok(self.place(node, call, has_waited)),
                NewCall::Overload => return Err(Late::Unsent.error()),
                NewCall::Waits(place) => {
                    let mut place = place.await.map_err(|_| Late::Unsent.error())?;
                    // The call counts from now on. If it has counted for a deadline already,
                    // because this task was not polled, the place is lost.
                    let renew = |node: &mut Node, now| {
                        node.remove(place.call)?;
                        Some(node.send(now))
                    };
                    if let Some(call) = self.with(node, renew) {
                        place.call = call;
                        return Ok(place);
                    }
                    has_waited = true;
                }
            }
        }
    }

    /// Hands out the places that are free before and after `act`. The lock is released first: a
    /// place whose receiver is gone is dropped at once, and then takes the lock again.
    fn with<T>(self: &Arc<Self>, index: usize, act: impl FnOnce(&mut Node, Duration) -> T) -> T {
        let now = self.clock.now();
        let mut ready = Vec::new();
        let acted = {
            let mut nodes = lock(&self.nodes);
            if nodes.len() <= index {
                nodes.resize_with(index + 1, || Node::new(self.bounds));
            }
            let node = &mut nodes[index];
            node.admit(now, &mut ready);
            let acted = act(node, now);
            node.admit(now, &mut ready);
            acted
        };
        for (call, waiting) in ready {
            drop(waiting.send(self.place(index, call, true)));
        }
        acted
    }

    fn place(self: &Arc<Self>, node: usize, call: u64, has_waited: bool) -> InFlightPlace {
        InFlightPlace {
            in_flight: Arc::clone(self),
            node,
            call,
            has_waited,
        }
    }

    /// Returns how many calls are in flight to a node, and its bound.
    #[cfg(test)]
    pub(super) fn count(&self, node: usize) -> (usize, usize) {
        let nodes = lock(&self.nodes);
        nodes
            .get(node)
            .map_or((0, self.bounds.most), |node| (node.sent.len(), node.bound))
    }
}

impl Node {
    fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            bound: bounds.most,
            in_time: 0,
            lowered: Duration::ZERO,
            last: 0,
            sent: VecDeque::new(),
            waiting: VecDeque::new(),
        }
    }

    fn send_or_wait(&mut self, now: Duration, waits: bool) -> NewCall {
        if self.waiting.is_empty() && self.sent.len() < self.bound {
            return NewCall::Sent(self.send(now));
        }
        let oldest = self.waiting.front().map_or(now, |(since, _)| *since);
        let is_late = now.saturating_sub(oldest) >= self.bounds.deadline / 2;
        if !waits && (is_late || self.waiting.len() >= self.bound) {
            return NewCall::Overload;
        }
        let (sender, receiver) = oneshot::channel();
        self.waiting.push_back((now, sender));
        NewCall::Waits(receiver)
    }

    fn send(&mut self, now: Duration) -> u64 {
        self.last += 1;
        self.sent.push_back((self.last, now));
        self.last
    }

    /// Takes a call out, and returns when it was sent.
    fn remove(&mut self, call: u64) -> Option<Duration> {
        take_out(&mut self.sent, call, |(call, _)| *call).map(|(_, sent)| sent)
    }

    /// Forgets old calls, and sends those that wait while there is room.
    fn admit(&mut self, now: Duration, ready: &mut Vec<(u64, oneshot::Sender<InFlightPlace>)>) {
        while let Some((_, sent)) = self.sent.front()
            && now >= sent.saturating_add(self.bounds.deadline)
        {
            self.sent.pop_front();
            self.lower(now);
        }
        while let Some((_, first)) = self.waiting.front() {
            if !first.is_closed() && self.sent.len() >= self.bound {
                break;
            }
            if let Some((_, first)) = self.waiting.pop_front()
                && !first.is_closed()
            {
                ready.push((self.send(now), first));
            }
        }
    }

    fn leave(&mut self, call: u64, now: Duration) {
        let was_full = self.sent.len() >= self.bound;
        let Some(sent) = self.remove(call) else {
            return;
        };
        if now.saturating_sub(sent) > self.bounds.deadline / 2 {
            self.lower(now);
        } else if was_full {
            self.in_time += 1;
            if self.in_time >= self.bound {
                self.in_time = 0;
                self.bound = (self.bound + 1).min(self.bounds.most);
            }
        }
    }

    /// Lowers the bound, once a deadline.
    fn lower(&mut self, now: Duration) {
        if now.saturating_sub(self.lowered) >= self.bounds.deadline {
            self.lowered = now;
            self.bound = (self.bound / 2).max(self.bounds.least);
        }
    }
}

impl Drop for InFlightPlace {
    fn drop(&mut self) {
        let call = self.call;
        self.in_flight
            .with(self.node, |node, now| node.leave(call, now));
    }
}

/// Takes the member with this number out of a queue in the order of numbers.
pub(crate) fn take_out<T>(
    queue: &mut VecDeque<T>,
    number: u64,
    number_of: impl FnMut(&T) -> u64,
) -> Option<T> {
    let at = queue.binary_search_by_key(&number, number_of);
    queue.remove(at.ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Some time, and as many milliseconds.
    fn at(after: u64) -> Duration {
        Duration::from_millis(1000 + after)
    }

    fn node(bound: usize) -> Node {
        Node {
            bound,
            ..Node::new(Bounds {
                deadline: Duration::from_millis(100),
                most: 4,
                least: 1,
            })
        }
    }

    fn sends(node: &mut Node, now: Duration) -> u64 {
        match node.send_or_wait(now, false) {
            NewCall::Sent(call) => call,
            _ => panic!("there is room"),
        }
    }

    #[test]
    fn a_call_that_takes_longer_than_half_a_deadline_halves_the_bound() {
        for (took, bound) in [(50, 4), (51, 2)] {
            let mut node = node(4);
            let call = sends(&mut node, at(0));
            node.leave(call, at(took));
            assert_eq!(node.bound, bound);
        }
    }

    #[test]
    fn the_bound_grows_by_as_many_calls_in_time_as_it_lets_through_while_it_is_reached() {
        let mut node = node(2);
        let alone = sends(&mut node, at(0));
        node.leave(alone, at(1));
        for bound in [2, 3] {
            let calls = [sends(&mut node, at(2)), sends(&mut node, at(2))];
            for call in calls {
                // When the second leaves, there is room.
                node.leave(call, at(3));
            }
            assert_eq!(node.bound, bound);
        }
    }

    #[test]
    fn one_more_call_waits_until_the_first_has_waited_for_half_a_deadline() {
        for (waits, after, is_overload) in
            [(false, 49, false), (false, 50, true), (true, 50, false)]
        {
            let mut node = node(2);
            for _ in 0..2 {
                sends(&mut node, at(0));
            }
            let first = node.send_or_wait(at(10), false);
            let next = node.send_or_wait(at(10 + after), waits);
            assert!(matches!(first, NewCall::Waits(_)));
            assert_eq!(matches!(next, NewCall::Overload), is_overload, "{after}");
        }
    }
}
