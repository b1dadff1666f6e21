//! The verbs for permits that were taken: release, settle, count and repair.

use super::RateLimiter;
use crate::{
    store::Op,
    values::{
        decision::Grant,
        error::{Error, ErrorKind},
        limit::at_least_zero,
    },
};

impl RateLimiter {
    /// Gives back, whole, what a grant took: exactly its permits, and only while they are in use.
    ///
    /// Returns at once; a store in Redis learns of it in the background. Giving back twice has no
    /// further effect. Grants of other limiters have no effect here, and neither have those of an
    /// [`Algorithm::FixedWindow`](crate::Algorithm::FixedWindow) that has ended, of a slot that has
    /// expired, or of a log that has [merged](crate::Algorithm::SlidingLog) them with others. With
    /// [`Algorithm::Gcra`](crate::Algorithm::Gcra), what still lies ahead is given back.
    pub fn give_back(&self, grant: &Grant) {
        self.settle(grant, 0);
    }

    /// Settles a grant at what was really used: `permits` in all, whatever it took.
    ///
    /// If it used less, the rest is given back while it is still in use. If it used more, the rest
    /// is debt: it counts from now on, also beyond the limit, and no caller is admitted until
    /// enough of it has left the interval, which takes one interval at most. With
    /// [`Algorithm::Gcra`](crate::Algorithm::Gcra) no more than twice the limit is in use then,
    /// which takes up to two intervals. A limiter that was deleted meanwhile owes nothing.
    ///
    /// Returns at once; a store in Redis learns of it in the background. A grant is settled once:
    /// of several settlements with different permits any may count. Of a grant by several limiters,
    /// this one settles its part; it has no effect on others.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Decision, Limit, MemoryStore, RateLimiter};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let tokens = RateLimiter::new(&MemoryStore::new(), "tokens")?;
    /// tokens.try_set_rate(Limit::per_minute(1000)).await?;
    ///
    /// // Reserve what it may take, settle what it took.
    /// if let Decision::Allow(grant) = tokens.try_acquire_many(200).await? {
    ///     tokens.settle(&grant, 37);
    /// }
    /// assert_eq!(tokens.available_permits().await?, 963);
    /// # Ok(())
    /// # }
    /// ```
    pub fn settle(&self, grant: &Grant, permits: u32) {
        for charge in grant
            .taken()
            .filter(|charge| *charge.name() == self.limiter.name)
        {
            charge.report(permits);
            self.store.settle(charge.clone(), permits);
        }
    }

    /// Gives back up to `permits` of the oldest permits in use, and returns how many it gave back.
    ///
    /// With an [`Algorithm::FixedWindow`](crate::Algorithm::FixedWindow) these are of the present
    /// window; with [`Algorithm::Gcra`](crate::Algorithm::Gcra) they are the last ones.
    ///
    /// With a [`Grant`], use [`give_back`](Self::give_back): it gives back exactly what was
    /// taken, and is safe to repeat.
    ///
    /// # Errors
    ///
    /// Returns an error of kind [`NotInitialized`](ErrorKind::NotInitialized) if no limit is set,
    /// of kind [`Limit`](ErrorKind::Limit) if [no store has it](Self::of_rule), of kind
    /// [`Permits`](ErrorKind::Permits) if `permits` is zero, and the errors of a store that cannot
    /// be called. It is never sent twice: after a lost connection it is unknown whether it
    /// was carried out.
    ///
    /// # Cancel safety
    ///
    /// Dropping it may leave the permits given back or not.
    pub async fn release(&self, permits: u32) -> Result<u64, Error> {
        if permits == 0 {
            return Err(ErrorKind::Permits.into());
        }
        let released = self.manage_permits(Op::Release(permits)).await?;
        Ok(at_least_zero(released))
    }

    /// Returns how many permits are free now; zero if more are in use than a lowered limit allows.
    ///
    /// Exact, except that a full [`MemoryStore`](crate::MemoryStore#bounds) that counts by an
    /// estimate returns a lower bound.
    ///
    /// # Errors
    ///
    /// Returns an error of kind [`NotInitialized`](ErrorKind::NotInitialized) if no limit is set,
    /// of kind [`Limit`](ErrorKind::Limit) if [no store has it](Self::of_rule), and the errors of a
    /// store that cannot be called.
    ///
    /// # Cancel safety
    ///
    /// Dropping it has no effect.
    pub async fn available_permits(&self) -> Result<u64, Error> {
        let left = self.manage_permits(Op::Available).await?;
        Ok(at_least_zero(left))
    }

    /// Counts the permits left again, from the log of grants. Returns how many permits had been
    /// lost; below zero, how many were counted twice.
    ///
    /// Every call already corrects the errors of count that this crate can recognise. This verb is
    /// for the others: Redisson's `release` and its resent calls, or a key changed by hand. Permits
    /// in use stay in use, so afterwards the permits left may be below zero; then no caller is
    /// admitted until enough has expired. Expired grants that were not credited yet are not lost
    /// permits. Returns zero if nothing was counted before.
    ///
    /// Grants that are further ahead of the clock than a tenth of the interval are set back to
    /// that: only a clock that was wrong, or was set back since, can have written them.
    ///
    /// An [`Algorithm::FixedWindow`](crate::Algorithm::FixedWindow) has no log: there it makes sure
    /// that no more than the limit is left, and that the window ends. With
    /// [`Algorithm::Gcra`](crate::Algorithm::Gcra), by the calendar, and of any limiter in [our own
    /// format](crate::docs::guide#what-each-kind-of-name-can-do) there is nothing to repair: it
    /// returns zero.
    ///
    /// It reads the whole log in one step: some 40 milliseconds for 100 000 grants, in which a
    /// Redis server does nothing else. It is never sent twice: after a lost connection it is
    /// unknown whether it was carried out.
    ///
    /// # Errors
    ///
    /// Returns an error of kind [`NotInitialized`](ErrorKind::NotInitialized) if no limit is set,
    /// [`ForeignState`](ErrorKind::ForeignState) if a grant in the log cannot be read (nothing is
    /// changed then), and the errors of a store that cannot be called.
    ///
    /// # Cancel safety
    ///
    /// Dropping it may leave it done or not.
    pub async fn repair(&self) -> Result<i64, Error> {
        self.manage_permits(Op::Repair).await
    }
}
