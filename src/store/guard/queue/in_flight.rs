//! The bound on calls in flight to a node.
//!
//! Calls beyond what a server answers in time only make each other late, so some wait here before
//! they are sent, in the order of arrival, and the others are overload: their callers are answered
//! by policy, and the breaker learns nothing. The bound falls where calls take longer than half of
//! a deadline. A call that is older than a deadline does not count, whoever holds it.

use std::{
    collections::VecDeque,
    error, fmt, future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::oneshot;

use crate::{
    clock::Clock,
    error::{Error, ErrorKind},
    name::Name,
};

/// The most calls in flight to a node, and the least bound.
const MOST: usize = 256;
const LEAST: usize = 16;

/// The calls in flight to the nodes of a store.
pub(crate) struct InFlight {
    /// By the number of the node.
    nodes: Mutex<Vec<Node>>,
    node_of: Box<dyn Fn(&Name) -> usize + Send + Sync>,
    pub(super) bounds: Bounds,
    clock: Arc<dyn Clock>,
}

/// For how long a call counts, and between what numbers the bound is.
#[derive(Clone, Copy)]
pub(super) struct Bounds {
    pub(super) deadline: Duration,
    pub(super) most: usize,
    pub(super) least: usize,
}

struct Node {
    bound: usize,
    /// When the bound was lowered last.
    lowered: Duration,
    last: u64,
    /// When each call was sent, with its number.
    sent: VecDeque<(u64, Duration)>,
    /// Since when each call waits to be sent.
    waiting: VecDeque<(Duration, oneshot::Sender<Place>)>,
}

/// A call's place among those in flight. Dropping it lets another one go.
pub(super) struct Place {
    in_flight: Arc<InFlight>,
    node: usize,
    call: u64,
    /// Whether it was handed out later than it was asked for.
    pub(super) has_waited: bool,
}

impl InFlight {
    /// `clock` is one that never jumps. `deadline` is for how long a caller waits for the server.
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

    pub(super) fn now(&self) -> Duration {
        self.clock.now()
    }

    /// Waits by the clock of calls; without end where there is no timer, as the end of a call wakes
    /// those that wait for it.
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

    /// Waits until a call may be sent to the node of `name`. A call for callers that wait for
    /// permits is never overload: they have time.
    ///
    /// # Errors
    ///
    /// Overload, at once, if as many calls wait as may be in flight, or one for half a deadline.
    ///
    /// # Cancel safety
    ///
    /// Dropping it gives the place up.
    pub(super) async fn enter(self: &Arc<Self>, name: &Name, waits: bool) -> Result<Place, Error> {
        let index = (self.node_of)(name);
        let mut has_waited = false;
        loop {
            match self.try_enter(index, waits) {
                Entered::Sent(call) => {
                    let mut place = self.place(index, call);
                    place.has_waited = has_waited;
                    return Ok(place);
                }
                Entered::Overload => return Err(overload()),
                Entered::Waits(place) => {
                    let mut place = place.await.map_err(|_| overload())?;
                    has_waited = true;
                    place.has_waited = true;
                    if self.renew(&mut place) {
                        return Ok(place);
                    }
                }
            }
        }
    }

    fn try_enter(self: &Arc<Self>, index: usize, waits: bool) -> Entered {
        let now = self.now();
        let (ready, entered) = {
            let mut nodes = self.lock();
            if nodes.len() <= index {
                nodes.resize_with(index + 1, || Node::new(self.bounds.most));
            }
            let node = &mut nodes[index];
            let ready = node.admit(now, &self.bounds);
            (ready, node.enter(now, &self.bounds, waits))
        };
        self.hand_out(index, ready);
        entered
    }

    /// Has a place that was handed out some time ago count from now on. Returns whether it counts
    /// still: this task may not have been polled for as long.
    fn renew(&self, place: &mut Place) -> bool {
        let now = self.now();
        let mut nodes = self.lock();
        let Some(node) = nodes.get_mut(place.node) else {
            return false;
        };
        let counts = node.remove(place.call).is_some();
        if counts {
            place.call = node.send(now);
        }
        counts
    }

    fn leave(self: &Arc<Self>, index: usize, call: u64) {
        let now = self.now();
        let ready = match self.lock().get_mut(index) {
            Some(node) => {
                node.leave(call, now, &self.bounds);
                node.admit(now, &self.bounds)
            }
            None => return,
        };
        self.hand_out(index, ready);
    }

    /// Hands out places, with nothing locked: one that finds its call gone comes back at once.
    fn hand_out(self: &Arc<Self>, node: usize, ready: Vec<(u64, oneshot::Sender<Place>)>) {
        for (call, waiting) in ready {
            drop(waiting.send(self.place(node, call)));
        }
    }

    fn place(self: &Arc<Self>, node: usize, call: u64) -> Place {
        Place {
            in_flight: Arc::clone(self),
            node,
            call,
            has_waited: false,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Node>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how many calls are in flight to a node, and its bound.
    #[cfg(test)]
    pub(super) fn count(&self, node: usize) -> (usize, usize) {
        let nodes = self.lock();
        nodes
            .get(node)
            .map_or((0, self.bounds.most), |node| (node.sent.len(), node.bound))
    }
}

enum Entered {
    Sent(u64),
    Waits(oneshot::Receiver<Place>),
    Overload,
}

impl Node {
    fn new(bound: usize) -> Self {
        Self {
            bound,
            lowered: Duration::ZERO,
            last: 0,
            sent: VecDeque::new(),
            waiting: VecDeque::new(),
        }
    }

    fn enter(&mut self, now: Duration, bounds: &Bounds, waits: bool) -> Entered {
        if self.waiting.is_empty() && self.sent.len() < self.bound {
            return Entered::Sent(self.send(now));
        }
        let oldest = self.waiting.front().map_or(now, |(since, _)| *since);
        let is_late = now.saturating_sub(oldest) >= bounds.deadline / 2;
        if !waits && (is_late || self.waiting.len() >= self.bound) {
            return Entered::Overload;
        }
        let (sender, receiver) = oneshot::channel();
        self.waiting.push_back((now, sender));
        Entered::Waits(receiver)
    }

    /// Takes a call out, and returns when it was sent.
    fn remove(&mut self, call: u64) -> Option<Duration> {
        let at = self.sent.binary_search_by_key(&call, |(call, _)| *call);
        at.ok()
            .and_then(|at| self.sent.remove(at))
            .map(|(_, sent)| sent)
    }

    fn send(&mut self, now: Duration) -> u64 {
        self.last += 1;
        self.sent.push_back((self.last, now));
        self.last
    }

    /// Forgets old calls. Returns those that may be sent now.
    fn admit(&mut self, now: Duration, bounds: &Bounds) -> Vec<(u64, oneshot::Sender<Place>)> {
        while let Some((_, sent)) = self.sent.front()
            && now >= sent.saturating_add(bounds.deadline)
        {
            self.sent.pop_front();
            self.lower(now, bounds);
        }
        let mut ready = Vec::new();
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
        ready
    }

    fn leave(&mut self, call: u64, now: Duration, bounds: &Bounds) {
        let was_full = self.sent.len() >= self.bound;
        let Some(sent) = self.remove(call) else {
            return;
        };
        if now.saturating_sub(sent) > bounds.deadline / 2 {
            self.lower(now, bounds);
        } else if was_full {
            self.bound = (self.bound + 1).min(bounds.most);
        }
    }

    /// Lowers the bound, once a deadline.
    fn lower(&mut self, now: Duration, bounds: &Bounds) {
        if now.saturating_sub(self.lowered) >= bounds.deadline {
            self.lowered = now;
            self.bound = (self.bound / 4 * 3).max(bounds.least);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.in_flight.leave(self.node, self.call);
    }
}

/// The source of the error of a caller whose call was not sent, so that it took nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unsent;

impl Unsent {
    pub(crate) fn is_why(error: &Error) -> bool {
        error::Error::source(error).is_some_and(|source| source.is::<Self>())
    }
}

impl fmt::Display for Unsent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("more calls are asked for than the server answers in time")
    }
}

impl error::Error for Unsent {}

fn overload() -> Error {
    Error::new(ErrorKind::Timeout).caused_by(Unsent)
}

impl fmt::Debug for InFlight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InFlight")
            .field("deadline", &self.bounds.deadline)
            .finish_non_exhaustive()
    }
}
