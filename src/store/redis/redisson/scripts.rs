//! What the scripts of one algorithm have in common.

use redis::Value;

use crate::{
    algorithm::answer::Answer,
    store::redis::script::{LazyScript, ScriptCall},
    values::{List, charge::Charge, clock::Millis, demand::Demand, error::Error},
};

/// The scripts of one algorithm, with the functions that make their calls and read their replies.
pub(crate) struct Scripts {
    /// Decides for any callers. [`acquire_command`](super::acquire_command) writes its arguments.
    pub(crate) acquire: &'static LazyScript,
    /// Carries out the verbs: see `lua/lib/verbs.lua`.
    pub(crate) verbs: &'static LazyScript,
    /// Makes the call of a cheaper script for these callers, if there is one that can decide.
    pub(crate) brief: MakeBrief,
    /// Makes the call that settles a receipt at a number of permits: fewer than it took are given
    /// back, more are charged. `None` if the receipt lacks what that needs.
    pub(crate) settle: fn(&Charge, u32, CallSettings<'_>) -> Option<ScriptCall>,
}

/// Makes a call of these callers. Their limiters are the charges of the first, each with a flag
/// that has a differing limit rewritten.
type MakeBrief =
    fn(&[Demand], &[(&Charge, bool)], CallSettings<'_>) -> Option<(ScriptCall, ReadBrief)>;

/// Reads the reply to such a call, whose callers and settings it gets.
/// Returns `None` if [`Scripts::acquire`] must decide.
pub(super) type ReadBrief =
    fn(&Value, &[Demand], CallSettings<'_>) -> Result<Option<List<Answer>>, Error>;

/// The part of a call that does not depend on its limiters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallSettings<'a> {
    pub(crate) client_id: &'a str,
    /// The caller's time; `None` for the server's.
    pub(crate) now: Option<Millis>,
    /// Set if the caller wants the exact number of permits left.
    pub(crate) exact: bool,
}
