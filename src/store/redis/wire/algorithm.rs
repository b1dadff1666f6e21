//! An algorithm in Redis, which a file of its own knows.

use redis::Value;

use super::{
    format::Ask,
    reply::{numbers, read_answers},
    script::{Call, Script},
};
use crate::{
    algorithm::answer::Answer,
    clock::Millis,
    demand::{Acquire, Charge},
    error::Error,
    limit::{RateType, StoredLimit},
    list::List,
    name::Name,
    receipt::Receipt,
};

/// The scripts of one algorithm: what they take, and how their replies are read.
pub(crate) trait Scripts: Sync {
    /// Returns the script that decides for any callers. Its arguments are those of [`acquire`].
    fn acquire(&self) -> &'static Script;

    /// Returns the script of the verbs: see `lua/lib/verbs.lua`.
    fn verbs(&self) -> &'static Script;

    /// Returns whether an acquire may be sent twice, because each grant is an entry of its own.
    fn is_idempotent(&self) -> bool {
        false
    }

    /// Returns whether one call decides for limiters of several names.
    fn takes_lists(&self) -> bool {
        false
    }

    /// Returns the call of a cheaper script for one caller of one limiter, if one can decide.
    ///
    /// `rewrites` is whether a differing limit is rewritten.
    fn lone(&self, _caller: &Acquire, _rewrites: bool, _ask: Ask<'_>) -> Option<Call> {
        None
    }

    /// Reads the reply to that call; `None` if the decision is left to [`Scripts::acquire`].
    fn lone_answer(
        &self,
        _reply: &Value,
        _charge: &Charge,
        _now: Option<Millis>,
    ) -> Result<Option<Answer>, Error> {
        Ok(None)
    }

    /// Reads the reply of [`Scripts::acquire`]: an answer for each caller and limiter, those of the
    /// first caller first.
    fn answers(
        &self,
        reply: &Value,
        limiters: usize,
        callers: usize,
    ) -> Result<List<Answer>, Error> {
        read_answers(&numbers(reply)?, limiters, callers, None)
    }

    /// Returns the call that leaves `keep` permits of what an acquire took, or charges what is more;
    /// `None` if a receipt does not say enough to be settled, or was settled before.
    fn settle(
        &self,
        receipt: &Receipt,
        keep: u32,
        client_id: &str,
        now: Option<Millis>,
    ) -> Option<Call>;

    /// Returns the keys that hold all of a limiter whose limit is stored in no hash, each with the
    /// type of limit that it is used for.
    fn values(&self, _name: &Name, _client_id: &str) -> Vec<(String, RateType)> {
        Vec::new()
    }

    /// Returns the limit that such a key holds.
    fn limit_of(&self, _value: &Value, _rate_type: RateType) -> Option<StoredLimit> {
        None
    }
}
