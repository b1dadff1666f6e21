//! Limits of what is in flight at once: places that are given back when their requests end.

use std::time::Duration;

use super::Limit;
use crate::values::error::{ConfigError, bail};

/// The most places of a limiter: as many grants stay single in a log, so that each can be given
/// back.
const MOST_PLACES: u64 = 1000;

/// After how long a refused caller asks again at the latest: a place comes back when a request
/// ends, which no log knows ahead.
pub(crate) const ASKS_AGAIN: Duration = Duration::from_secs(1);

impl Limit {
    /// Limits to `places` requests at once, of all processes together, each for up to `longest`.
    ///
    /// A request takes a place, and a layer gives it back when the body of the response has ended
    /// or was dropped, and when there is no response. A WebSocket keeps it as long as its task
    /// keeps the request's [`Grant`](crate::Grant). Without HTTP, the holder gives it back, by
    /// [`RateLimiter::give_back`](crate::RateLimiter::give_back). See
    /// [the guide](crate::docs::guide#places-in-flight).
    ///
    /// Units: places are whole numbers from 1 to 1,000, `longest` is in whole milliseconds, up to a
    /// century.
    ///
    /// Worst case: there is no heartbeat. What takes longer than `longest` no longer counts, so
    /// that more are in flight; and the places of a process that dies, or that are not given back,
    /// are missing for as long. A refusal says to come back within a second, which is no promise.
    ///
    /// # Panics
    ///
    /// If [`try_in_flight`](Self::try_in_flight) would fail; at compile time in a constant.
    ///
    /// # Example
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::{Decision, Limit, MemoryStore};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let renders = Limit::in_flight(2, Duration::from_secs(60)).named("renders");
    /// let ann = renders.keyed(&MemoryStore::new())?.of("ann");
    ///
    /// let (first, second) = (ann.acquire().await?, ann.acquire().await?);
    /// assert!(!ann.try_acquire().await?.is_allowed());
    /// ann.give_back(&first);
    /// assert!(ann.try_acquire().await?.is_allowed());
    /// # let _ = second;
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub const fn in_flight(places: u64, longest: Duration) -> Self {
        assert!(
            places <= MOST_PLACES,
            "a limit of what is in flight has 1 to 1000 places"
        );
        Self {
            in_flight: true,
            ..Self::new(places, longest)
        }
    }

    /// Limits to `places` requests at once, as [`in_flight`](Self::in_flight), for values from
    /// outside of the code.
    ///
    /// # Errors
    ///
    /// Returns an error of kind [`Limit`](crate::ConfigErrorKind::Limit), with the value, if one is
    /// out of range.
    pub fn try_in_flight(places: u64, longest: Duration) -> Result<Self, ConfigError> {
        if !(1..=MOST_PLACES).contains(&places) {
            bail!(Limit: "a limit of what is in flight has 1 to {MOST_PLACES} places, not {places}");
        }
        Ok(Self {
            in_flight: true,
            ..Self::try_new(places, longest)?
        })
    }
}
