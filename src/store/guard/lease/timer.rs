//! How long ago a lease was asked for, by the clock that its score goes by.

use std::{sync::Arc, time::Duration};

use crate::clock::{Clock, Since, millis};

/// The clock of the logs, if it is this process's; none for the server's.
pub(crate) struct Timer(Option<Arc<dyn Clock>>);

/// When a call was sent, or something else began.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stamp {
    /// By the clock by which the call itself is made, as it tells it
    Own(Duration),
    /// The server's clock goes on as this process's do, also while the machine sleeps
    Server(Since),
}

impl Timer {
    pub(crate) fn new(own_clock: Option<Arc<dyn Clock>>) -> Self {
        Self(own_clock)
    }

    pub(crate) fn stamp(&self) -> Stamp {
        match &self.0 {
            Some(clock) => Stamp::Own(whole_millis(&**clock)),
            None => Stamp::Server(Since::now()),
        }
    }

    /// How long it is ago; without end where the clock was set back, as nobody knows then.
    pub(crate) fn elapsed(&self, stamp: &Stamp) -> Duration {
        match (stamp, &self.0) {
            (Stamp::Own(then), Some(clock)) => {
                let since = whole_millis(&**clock).checked_sub(*then);
                since.unwrap_or(Duration::MAX)
            }
            (Stamp::Own(_), None) => Duration::MAX,
            (Stamp::Server(since), _) => since.elapsed(),
        }
    }
}

fn whole_millis(clock: &dyn Clock) -> Duration {
    Duration::from_millis(millis(clock))
}
