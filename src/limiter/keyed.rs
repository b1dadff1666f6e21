//! Limits by key without HTTP: [`Keyed`], made by a [`RateLimiterBuilder`].

mod key;

use std::{fmt, sync::Arc};

pub use self::key::LimiterKey;
use super::RateLimiter;
use crate::{
    store::{Store, rule_names::NameHolder},
    values::{
        compiled_limit::{CompiledLimit, Limiter},
        error::{ConfigError, bail},
        limit::{Algorithm, Ban, Counting, Limit, LimitSource},
        name::{Identity, Naming},
        observe::ObservedRule,
    },
};

/// The key of a limiter for all callers together: that of a rule made of a [`Limit`] alone.
const ALL: &str = "all";

/// A limit with a name, for limiters without HTTP. Made by [`Limit::named`].
///
/// # Example
///
/// See [`Keyed`].
#[derive(Clone, Debug)]
#[must_use = "it limits nothing until `keyed` or `single` takes a store"]
pub struct RateLimiterBuilder {
    name: String,
    limit: Limit,
    algorithm: Algorithm,
    ban: Option<Ban>,
}

impl Limit {
    /// Names this limit, for limiters without HTTP: [`keyed`](RateLimiterBuilder::keyed) makes one
    /// for each key, and [`single`](RateLimiterBuilder::single) one for all callers together.
    ///
    /// The name is part of the limiters' names in Redis, and the one that decisions and observers
    /// have. Characters: `A-Z a-z 0-9 . _ -`.
    ///
    /// # Example
    ///
    /// See [`Keyed`].
    pub fn named(self, name: &str) -> RateLimiterBuilder {
        RateLimiterBuilder {
            name: name.to_owned(),
            limit: self,
            algorithm: Algorithm::default(),
            ban: None,
        }
    }
}

impl RateLimiterBuilder {
    /// Sets how permits in use are counted. Default: [`Algorithm::SlidingLog`]. All users of a name
    /// must choose the same: see there.
    pub fn algorithm(mut self, algorithm: Algorithm) -> Self {
        self.algorithm = algorithm;
        self
    }

    /// Bans a caller that is refused too often. Default: none is banned.
    ///
    /// As [`Rule::ban`](crate::Rule::ban): a banned caller is refused as
    /// [`RefusalKind::Banned`](crate::RefusalKind::Banned), and one that would
    /// [wait](RateLimiter::acquire) gets an error of kind [`Banned`](crate::ErrorKind::Banned).
    pub fn ban(mut self, ban: Ban) -> Self {
        self.ban = Some(ban);
        self
    }

    /// Makes a limiter for each key, in this store. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// Returns an error of kind
    ///
    /// - [`Name`](crate::ConfigErrorKind::Name) if the name has other characters;
    /// - [`Limit`](crate::ConfigErrorKind::Limit) if the algorithm cannot count by the limit, or if
    ///   that is [per client](Limit::per_client) or has a [`keep_alive`](Limit::keep_alive), which
    ///   only Redisson's format has;
    /// - [`Rule`](crate::ConfigErrorKind::Rule) if a number of the ban is out of range;
    /// - [`Duplicate`](crate::ConfigErrorKind::Duplicate) if a rule or another limit of this name
    ///   is in use with the store, and differs in limit, algorithm or ban.
    pub fn keyed(self, store: &impl Store) -> Result<Keyed, ConfigError> {
        let store = store.handle().0;
        let about = store.about();
        let naming = Naming::derived(&about.prefix, &self.name)?;
        let counting = Counting {
            algorithm: self.algorithm,
            prefers_redisson: about.prefers_redisson == Some(true),
            ..Counting::default()
        };
        let (name, limit) = (&self.name, &self.limit);
        limit.check_counting(name, self.algorithm, counting.prefers_redisson)?;
        if let Some(ban) = &self.ban {
            ban.check(name, false)?;
        }
        let compiled = CompiledLimit {
            limit: LimitSource::Code(limit.for_request_key()),
            counting: counting.for_limit(Some(limit)),
            observers: about.observers.clone(),
            observed: ObservedRule::new(Some(self.limit), None).into(),
            ban: self.ban,
            ..CompiledLimit::with_defaults(&self.name, true, false)
        };
        about.check(&self.name, &compiled)?;
        let holder = NameHolder::default();
        let names = &about.rule_names;
        if let Err((name, _)) = names.claim(&compiled, &naming, None, &holder) {
            bail!(Duplicate: "another limit or rule of this store is named {name:?} and differs in \
                limit, algorithm or ban: rename one of them");
        }
        let all = limiter_of(&naming, ALL, &compiled.into());
        let any = RateLimiter {
            _holder: Some(holder.into()),
            ..RateLimiter::with(store, all)
        };
        Ok(Keyed { naming, any })
    }

    /// Makes one limiter for all callers together, in this store. Nothing is sent yet.
    ///
    /// It is the limiter of the key `all`, and that of a rule made of a [`Limit`] alone.
    ///
    /// # Errors
    ///
    /// As [`keyed`](Self::keyed).
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Limit, MemoryStore};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let quota = Limit::per_day(10_000).named("quota").single(&MemoryStore::new())?;
    /// assert!(quota.try_acquire_many(300).await?.is_allowed());
    /// assert_eq!(quota.available_permits().await?, 9_700);
    /// # Ok(())
    /// # }
    /// ```
    pub fn single(self, store: &impl Store) -> Result<RateLimiter, ConfigError> {
        Ok(self.keyed(store)?.any)
    }
}

/// A limit for each key, without HTTP: each user, peer or tenant has a limiter of its own. Made by
/// [`Limit::named`] and [`RateLimiterBuilder::keyed`].
///
/// The limit is the code's: it needs no call that sets it, and a limit that a deploy changes holds
/// from the next call on, as a rule's. A rule of the same name and limit, on the same store, counts
/// the same key in the same limiter. Clones are cheap.
///
/// What [`of`](Self::of) returns takes permits, waits, settles, is taken together with others and
/// is banned as any [`RateLimiter`]. The verbs that would change the limit, the expiry or the name
/// return an error of kind [`Limit`](crate::ErrorKind::Limit).
///
/// # Example
///
/// ```
/// use tower_ratelimit::{Decision, Limit, MemoryStore};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mails = Limit::per_hour(20).named("mails").keyed(&MemoryStore::new())?;
///
/// let user = 7;
/// match mails.of(user).try_acquire().await? {
///     Decision::Allow(_) => println!("send it"),
///     Decision::Deny(refusal) => println!("later: {:?}", refusal.retry_after()),
/// }
/// assert_eq!(mails.of(user).available_permits().await?, 19);
/// assert_eq!(mails.of(("acme", "ann@example.org")).available_permits().await?, 20);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Keyed {
    naming: Naming,
    /// One of its limiters, whose settings all have.
    any: RateLimiter,
}

impl Keyed {
    /// Returns the limiter of a key. Nothing is sent, and nothing is kept for it here.
    ///
    /// The key becomes part of the limiter's name, which is visible in Redis: give a digest of what
    /// must not be read there.
    pub fn of(&self, key: impl LimiterKey) -> RateLimiter {
        RateLimiter {
            limiter: limiter_of(&self.naming, key, &self.any.limiter.compiled),
            ..self.any.clone()
        }
    }
}

impl fmt::Debug for Keyed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keyed({})", self.naming)
    }
}

/// Returns the limiter of a key, by the limit of the code.
fn limiter_of(naming: &Naming, key: impl LimiterKey, compiled: &Arc<CompiledLimit>) -> Limiter {
    let mut identity = Identity::default();
    key.add_to(&mut identity);
    Limiter {
        name: naming.name(&identity),
        compiled: Arc::clone(compiled),
    }
}
