//! The nodes of a server or a Cluster: which of them a limiter has, and what a failed call says
//! about its node.

use std::{ops::RangeInclusive, sync::Arc, time::Duration};

use super::{
    classify::{self, Class},
    keys,
    transport::{connection::Failed, source::ConnectionSource},
};
use crate::{
    store::guard::outbox::{Nodes, breaker::Signal},
    values::{
        clock::SteadyClock,
        error::Error,
        name::Name,
        observe::{Observers, StateChange},
    },
};

/// The number of hash slots of a Cluster that share a node's state. redis-rs shows only its
/// strategies for replica reads which master has which slots, and with such a strategy it sends
/// READONLY: a replica would then refuse by old data.
const SLOTS_TOGETHER: u16 = 512;
pub(crate) const SLOTS: u16 = 16_384;

/// Returns the nodes of a store: one for its server, or one for each [`SLOTS_TOGETHER`].
pub(super) fn nodes(
    failures: u32,
    deadline: Duration,
    observers: Observers,
    source: &ConnectionSource,
) -> Nodes {
    let is_cluster = source.is_cluster;
    let (count, index_of): (_, fn(&Name) -> usize) = if is_cluster {
        (usize::from(SLOTS / SLOTS_TOGETHER), index_of)
    } else {
        (1, |_| 0)
    };
    // That of the logs may stand still, or jump.
    let nodes = Nodes::new(count, index_of, deadline, Arc::new(SteadyClock::new()));
    let address = source.shown.clone();
    nodes.with_breakers(failures, source.shown.as_ref(), move |index, open| {
        let slots = slots_of(u16::try_from(index).unwrap_or_default());
        let node = if is_cluster {
            &*format!("slots {}-{}", slots.start(), slots.end())
        } else {
            address.as_deref().unwrap_or_default()
        };
        observers.changed(&StateChange::Breaker { node, open });
    })
}

/// A call for permits that failed.
#[derive(Clone)]
pub(super) struct Failure {
    pub(super) error: Error,
    /// Set if it may have been carried out all the same.
    pub(super) unacknowledged: bool,
    /// Set if its connection is of no more use.
    pub(super) connection_lost: bool,
    /// Set if every call would fail so, or none of its callers may ask again.
    pub(super) fails_for_all: bool,
}

impl Failure {
    /// Returns the same, of a call that may have been carried out before if it was made `again`.
    pub(super) fn after(self, again: bool) -> Self {
        Self {
            unacknowledged: self.unacknowledged || again,
            ..self
        }
    }
}

impl From<Error> for Failure {
    /// The call was not sent, or was answered.
    fn from(error: Error) -> Self {
        Self {
            error,
            unacknowledged: false,
            connection_lost: false,
            fails_for_all: true,
        }
    }
}

impl From<Failed> for Failure {
    fn from(failed: Failed) -> Self {
        let class = Class::of(&failed.error);
        Self {
            unacknowledged: failed.unacknowledged,
            connection_lost: class.ends_connection(),
            // A script that is refused a command may have written for the first limiters of a list:
            // who asked again would be found there, and take nothing of the others.
            fails_for_all: matches!(
                class,
                Class::Unable | Class::Unwritable | Class::Silent | Class::RefusedWithin
            ),
            error: classify::failure(failed),
        }
    }
}

/// Returns what a failed call says about the server, which is one of several if `is_cluster`.
pub(crate) fn signal(failed: &Failed, is_cluster: bool) -> Signal {
    match Class::of(&failed.error) {
        // The other hash slots of its node are not affected.
        Class::Moving => Signal::Nothing,
        // The calls that are sent once are all lost with their connection, and the next one is
        // opened at once, or after its own pause. A node of a Cluster has no such pauses.
        Class::Lost if !is_cluster => Signal::Nothing,
        _ if failed.unacknowledged => Signal::Failed,
        class => class.signal(),
    }
}

/// Returns the hash slots that have the breaker at this index.
pub(super) fn slots_of(index: u16) -> RangeInclusive<u16> {
    let first = index * SLOTS_TOGETHER;
    first..=first + (SLOTS_TOGETHER - 1)
}

/// Returns the index of a limiter's breaker, on a Cluster.
pub(crate) fn index_of(name: &Name) -> usize {
    usize::from(slot(keys::tag(name)) / SLOTS_TOGETHER)
}

/// Returns the hash slot of a hash tag: its CRC16, in the XMODEM variant.
pub(crate) fn slot(tag: &str) -> u16 {
    let crc = tag.bytes().fold(0, |crc: u16, byte| {
        (0..8).fold(crc ^ u16::from(byte) << 8, |crc, _| {
            let carry = crc & 0x8000 != 0;
            crc << 1 ^ if carry { 0x1021 } else { 0 }
        })
    });
    crc % SLOTS
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn a_call_that_was_not_sent_proves_nothing_and_one_without_a_reply_is_a_failure() {
        // The last column: the call was sent, and lost with the connection to the only server.
        for (kind, lost) in [
            (io::ErrorKind::ConnectionRefused, Signal::Nothing),
            (io::ErrorKind::ConnectionReset, Signal::Nothing),
            (io::ErrorKind::TimedOut, Signal::Failed),
        ] {
            for (unacknowledged, is_cluster, expected) in [
                (false, false, Signal::Nothing),
                (true, false, lost),
                (true, true, Signal::Failed),
            ] {
                let failed = Failed {
                    error: io::Error::from(kind).into(),
                    unacknowledged,
                };
                let row = format!("{kind}, sent: {unacknowledged}, cluster: {is_cluster}");
                assert_eq!(signal(&failed, is_cluster), expected, "{row}");
            }
        }
        // What each answer says is in the table of the page on failures.
        for (code, unacknowledged, expected) in [
            ("LOADING", false, Signal::Failed),
            ("OOM", false, Signal::Answered),
            ("TRYAGAIN", true, Signal::Nothing),
        ] {
            let reply = format!("-{code} in so many words\r\n");
            let value = redis::parse_redis_value(reply.as_bytes()).unwrap();
            let failed = Failed {
                error: value.extract_error().unwrap_err(),
                unacknowledged,
            };
            for is_cluster in [false, true] {
                assert_eq!(
                    signal(&failed, is_cluster),
                    expected,
                    "{code}, cluster: {is_cluster}"
                );
            }
        }
    }

    // As printed by `redis-cli CLUSTER KEYSLOT`.
    #[test]
    fn slots_are_those_of_redis() {
        for (tag, expected) in [("", 0), ("123456789", 12_739), ("foo", 12_182)] {
            assert_eq!(slot(tag), expected, "{tag}");
        }
        for tag in 0..1000 {
            assert!(index_of(&Name::exact(&format!("a{tag}")).unwrap()) < 32);
        }
    }
}
