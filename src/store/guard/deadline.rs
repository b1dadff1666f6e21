//! Ends a decision at the deadline, so that a slow store delays a request by no more than that.

use std::{pin::pin, time::Duration};

use super::{late::Late, outbox::Nodes};
use crate::values::{
    clock::{check_timer, moment},
    decision::Decision,
    demand::Demand,
    error::Error,
};

impl Nodes {
    /// Waits for a call no longer than the deadline and the time that its caller is ready to wait
    /// for permits. `call` makes it.
    ///
    /// If it gives a call up, it does not give back what the call may have taken: only the fallback
    /// knows whether a share of the limit admits the caller, which then stays charged.
    ///
    /// # Errors
    ///
    /// Those of the call, [`Late`] at the deadline, and that there is no timer.
    ///
    /// # Cancel safety
    ///
    /// Dropping it leaves the outcome open: the code that drops it decides whether to give back.
    pub(crate) async fn within<F>(
        &self,
        demand: &Demand,
        call: impl FnOnce() -> F,
    ) -> Result<Decision, Error>
    where
        F: Future<Output = Result<Decision, Error>>,
    {
        check_timer()?;
        let wait = demand.max_wait.map(|wait| wait.longest);
        let Some(wait) = wait.unwrap_or(Some(Duration::ZERO)) else {
            return call().await;
        };
        let longest = self.deadline().saturating_add(wait);
        // Pinned here, as it is large, and would be moved twice.
        match tokio::time::timeout(longest, pin!(call())).await {
            Ok(decision) => decision,
            Err(_) => {
                // Its own wait says nothing about the server.
                let asked = demand.asked_at;
                let waited = asked.map_or(longest, |asked| moment().duration_since(asked));
                let asked = self.clock.now().saturating_sub(waited);
                let asked = asked.saturating_add(wait);
                let late = if self.any_was_silent(demand, asked, self.deadline()) {
                    Late::Silence
                } else {
                    Late::Slow
                };
                Err(late.error())
            }
        }
    }
}
