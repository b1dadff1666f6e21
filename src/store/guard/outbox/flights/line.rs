//! The callers of one limiter, one behind the other: [`Line`].

use std::{collections::VecDeque, time::Duration};

use tokio::{runtime::Handle, sync::oneshot};

use super::super::caller::{Caller, Member, Reply};
use crate::{store::Joins, values::demand::Demand};

/// The callers of a limiter, of one list or of one limit. It is there while a command is in flight
/// for it, or a caller waits to be sent.
#[derive(Default)]
pub(super) struct Line {
    /// What it needs of a command that it shares with others.
    pub(super) joins: Option<Joins>,
    /// The command for those that stood before these, and when it was sent.
    pub(super) command: Option<(u64, Duration)>,
    /// In the order of arrival
    pub(super) behind: VecDeque<Member>,
    /// So many of the first go apart from others: a command that may have been carried out did not
    /// answer them.
    pub(super) apart: usize,
    pub(super) was_sent: bool,
}

impl Line {
    /// Adds a caller, which has this number here. Returns what it waits for.
    pub(super) fn push(
        &mut self,
        number: u64,
        demand: &Demand,
        runtime: Handle,
        now: Duration,
    ) -> oneshot::Receiver<Reply> {
        let (reply, receiver) = oneshot::channel();
        let caller = Caller {
            number,
            since: now,
            reply,
            runtime,
        };
        self.behind.push_back((demand.clone(), caller));
        receiver
    }
}
