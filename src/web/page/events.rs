//! The stream of one open page: [`Events`].

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame};
use tokio::{
    sync::OwnedSemaphorePermit,
    time::{self, Instant, Interval, MissedTickBehavior},
};

use crate::{observe::Activity, sync::lock};

/// The time between two snapshots.
const EVERY: Duration = Duration::from_secs(1);
/// What a stream may find too young to take another snapshot: not quite a second, so that one that
/// wakes a moment early does not send the same twice.
const FRESH: Duration = Duration::from_millis(900);
/// A stream ends after this time, so that a proxy that keeps it open without a browser does not
/// keep its place.
const LASTS: Duration = Duration::from_secs(5 * 60);

/// A response body that sends a snapshot now, and then once a second.
pub(super) struct Events {
    snapshots: Arc<Snapshots>,
    ticks: Interval,
    end: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// Its place among the streams that may be open.
    _place: OwnedSemaphorePermit,
}

impl Events {
    pub(super) fn new(snapshots: &Arc<Snapshots>, place: OwnedSemaphorePermit) -> Self {
        let mut ticks = time::interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut closed = snapshots.activity.closed();
        let end = async move {
            let _ = time::timeout(LASTS, closed.wait_for(|closed| *closed)).await;
        };
        Self {
            snapshots: Arc::clone(snapshots),
            ticks,
            end: Box::pin(end),
            _place: place,
        }
    }
}

impl Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.end.as_mut().poll(context).is_ready() {
            return Poll::Ready(None);
        }
        let now = ready!(self.ticks.poll_tick(context));
        Poll::Ready(Some(Ok(Frame::data(self.snapshots.event(now)))))
    }
}

/// The newest snapshot, which all streams share.
pub(super) struct Snapshots {
    activity: Arc<Activity>,
    taken: Mutex<Option<(Instant, Bytes)>>,
}

impl Snapshots {
    pub(super) fn of(activity: &Arc<Activity>) -> Self {
        Self {
            activity: Arc::clone(activity),
            taken: Mutex::default(),
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        *self.activity.closed().borrow()
    }

    /// Returns the newest snapshot as an event, taken anew if it is a second old.
    fn event(&self, now: Instant) -> Bytes {
        let mut taken = lock(&self.taken);
        let fresh = taken.as_ref().filter(|(at, _)| now < *at + FRESH);
        if let Some((_, event)) = fresh {
            return event.clone();
        }
        // JSON has no line end, so it is one line of data.
        let event = Bytes::from(format!(
            "retry: 500\ndata: {}\n\n",
            self.activity.snapshot()
        ));
        *taken = Some((now, event.clone()));
        event
    }
}
