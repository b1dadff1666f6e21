//! A Redis server without guards: carries out each operation by a script or a command.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use super::{
    classify, keys,
    node::Failure,
    packed::{self, verbs::GrantToSettle},
    redisson::{self, verbs},
    reply,
    script::{CallReport, ScriptCall},
    settle_queue::{SettleCall, SettleQueue},
    transport::connection::Connection,
};
use crate::{
    algorithm::answer::{Answer, Changed},
    macros::warning,
    store::{
        Answered, Calls, Decide, Joins, Listeners, Op, OpResult,
        guard::{
            Cache,
            deny_cache::bans::{BanCall, BanState, Bans},
            policy,
        },
        prepare_call, random_id,
    },
    values::{
        List,
        charge::{Charge, PermitId},
        clock::{Clock, moment, sent_millis},
        compiled_limit::{Limiter, Warning},
        decision::{Decision, Refusal},
        demand::Demand,
        error::{Error, ErrorKind},
        limit::{Algorithm, LimitSource, StoredLimit},
        name::{Name, push_hex},
    },
};

/// The time for which this process does not rewrite a limit again. While two versions of a service
/// run side by side, each would otherwise overwrite the other's limit with every request. So each
/// process rewrites a limit at most once a minute.
const REWRITTEN_AGAIN_AFTER: Duration = Duration::from_secs(60);
/// The maximum number of names remembered for that. A forgotten one may be rewritten early.
pub(super) const MOST_REWRITTEN: usize = 1024;

/// A run shares a command only if its bans count at most so many refusals, and then with at most so
/// many callers: the script reads each refusal, and writes one for each caller.
const MOST_STRIKES: u32 = 100;
const MOST_BANNED: usize = 8;

/// A server, and the state that this process keeps about it.
pub(crate) struct Server {
    pub(crate) connection: Arc<Connection>,
    /// Set when the server, or what stands in front of it, takes no keys of different hash slots.
    pub(super) no_cross_slot: Arc<AtomicBool>,
    pub(super) settle_queue: SettleQueue,
    /// Created when first needed, unless the user has set one.
    pub(crate) client_id: OnceLock<Arc<str>>,
    /// The clock of this process, if it decides; `None` for the server's.
    pub(crate) clock: Option<Arc<dyn Clock>>,
    /// The names whose stored limit this process has rewritten, and when.
    pub(super) rewritten: Cache<Name, Instant>,
    pub(crate) listeners: Listeners,
    pub(super) bans: Arc<Bans>,
}

impl Decide for Server {
    /// Fails while a breaker is open. All else is decided by the server, and not at once.
    fn decide_at_once(&self, demand: &mut Demand) -> Option<Result<Decision, Error>> {
        prepare_call(self.connection.dial.nodes.refuses(demand), demand)
    }

    async fn manage(&self, limiter: &Limiter, op: &Op) -> Result<OpResult, Error> {
        if let Some(result) = self.manage_ban(limiter, op).await? {
            return Ok(result);
        }
        let Some(scripts) = redisson::scripts(limiter.compiled.counting) else {
            return self.manage_own(limiter, op).await;
        };
        match (
            op,
            verbs::call(scripts.verbs, limiter, op, self.call_settings()?)?,
        ) {
            (_, Some(call)) => {
                let reply = call
                    .send(&self.connection)
                    .await
                    .map_err(classify::failure)?;
                verbs::outcome(&reply)
            }
            (Op::Delete, None) => {
                let mut keys = redisson::keys(&limiter.name, self.client_id()?).to_vec();
                keys.push(keys::ban(&limiter.name, false));
                let deleted = reply::count(&self.command("DEL", &keys).await?)?;
                Ok(OpResult::Changed(deleted > 0))
            }
            (Op::Inspect, None) => self.stored_limit(limiter).await.map(OpResult::Limit),
            (Op::TimeToLive, None) => {
                let left = self.command("PTTL", &[limiter.name.as_str()]).await?;
                reply::time_to_live(&left).map(OpResult::TimeToLive)
            }
            (_, None) => Err(ErrorKind::Limit.into()),
        }
    }

    fn strike(&self, demand: &Demand, refusal: &mut Refusal) {
        self.bans.count(demand, refusal);
    }
}

impl Calls for Server {
    fn acquire_run(
        &self,
        run: &[Demand],
        again: bool,
    ) -> impl Future<Output = Result<List<Decision>, Error>> + Send {
        self.acquire_callers(run, again)
    }

    fn acquire_joint(&self, runs: &[&[Demand]]) -> impl Future<Output = List<Answered>> + Send {
        self.call_joint(runs)
    }

    /// Those in our own format, on one server. On a Cluster none: their hash slots differ.
    fn joins(&self, demand: &Demand) -> Option<Joins> {
        let mut charges = demand.charges();
        let goes = |charge: &Charge| {
            let counting = charge.compiled().counting;
            let ban = charge.compiled().ban;
            counting.in_own_format()
                && !self.has_other_clock(counting.algorithm)
                && ban.is_none_or(|ban| ban.after <= MOST_STRIKES)
        };
        let joins = !self.has_slots() && demand.max_wait.is_none() && charges.all(goes);
        let bans = || {
            demand
                .charges()
                .filter(|charge| charge.compiled().ban.is_some())
        };
        joins.then(|| Joins {
            terms: demand.charges.len() + bans().count(),
            callers: match bans().next() {
                Some(_) => MOST_BANNED,
                None => usize::MAX,
            },
        })
    }

    fn ready(&self) -> impl Future<Output = ()> + Send {
        self.connection.ready()
    }

    fn decides_together(&self, demand: &Demand) -> bool {
        let (first, in_slots) = (demand.first(), self.has_slots());
        let mut others = demand.charges().skip(1);
        demand.charges.len() <= packed::MOST_TOGETHER
            && others.all(|charge| self.go_together(first, charge, in_slots))
    }

    fn settle(&self, receipt: Charge, keep: u32) {
        self.queue_settlement(&receipt, keep, false);
    }
}

impl Server {
    /// Returns whether limiters with different hash tags need a call each: the server is a Cluster,
    /// or an address that has refused keys of several hash slots in one call.
    pub(super) fn has_slots(&self) -> bool {
        self.connection.source.is_cluster || self.no_cross_slot.load(Relaxed)
    }

    /// Returns whether the limiters of an algorithm are counted by the server's clock, while others
    /// are counted by that of this process: one call has one clock.
    fn has_other_clock(&self, algorithm: Algorithm) -> bool {
        self.clock.is_some() && algorithm.facts().waits_by_server
    }

    /// Settles at `keep` permits, in the background. `undone` marks what a saga took before it was
    /// refused: see [`SettleQueue::push`].
    pub(super) fn queue_settlement(&self, receipt: &Charge, keep: u32, undone: bool) {
        if keep == receipt.permits {
            return;
        }
        let counting = receipt.compiled().counting;
        let call = match redisson::scripts(counting) {
            Some(scripts) => match self.call_settings() {
                Ok(settings) => (scripts.settle)(receipt, keep, settings).map(SettleCall::Redisson),
                // Without a client id nothing was taken either.
                Err(_) => None,
            },
            None => {
                let joins = !self.has_slots() && !self.has_other_clock(counting.algorithm);
                let now = self.stamp(receipt.id, &receipt.limiter).now;
                GrantToSettle::of(receipt, now, keep).map(|grant| SettleCall::Own { grant, joins })
            }
        };
        if let Some(call) = call {
            self.settle_queue.push(receipt, keep, call, undone);
        }
    }

    /// Decides for all callers in one call, or for the first alone if one script cannot reach all
    /// of its limiters.
    pub(super) async fn acquire_callers(
        &self,
        run: &[Demand],
        again: bool,
    ) -> Result<List<Decision>, Error> {
        let Some(first) = run.first() else {
            return Ok(List::new());
        };
        if !self.decides_together(first) {
            // One at a time: each caller gets its decision at once, and holds nothing while others
            // are decided.
            let decision = Box::pin(self.acquire_in_calls(first)).await?;
            return Ok(List::from([decision]));
        }
        // Boxed where it is rare or large, so that it does not enlarge the future of calls in our
        // own format.
        let called = match first.check() {
            Err(error) => Err(error.into()),
            Ok(()) if first.first().compiled().counting.in_own_format() => {
                self.call_own(first, run, again).await
            }
            Ok(()) if first.has_ban() => Box::pin(self.call_banning(first, run, again)).await,
            Ok(()) => {
                let answers = Box::pin(self.call_counting(first, run)).await;
                answers.map(|answers| self.decided(run, &answers, None))
            }
        };
        match called {
            Ok(decisions) => Ok(decisions),
            Err(failure) => Box::pin(self.after_failure(first, run, failure)).await,
        }
    }

    /// Asks once more after a failure for which a smaller call may be the remedy; if there is none,
    /// gives back the grants of callers that will not receive them.
    async fn after_failure(
        &self,
        first: &Demand,
        run: &[Demand],
        failure: Failure,
    ) -> Result<List<Decision>, Error> {
        let mut others = first.charges().skip(1);
        if failure.error.kind() == ErrorKind::OtherSlot
            && others.any(|it| !self.go_together(first.first(), it, true))
        {
            // One address that stands for several shards. Such a call has taken nothing. Others
            // that were sent before it was known come here, too.
            self.no_cross_slot.store(true, Relaxed);
            let decision = self.acquire_in_calls(first).await?;
            return Ok(List::from([decision]));
        }
        // Enforced rules alone are tried again by the same ids, so nothing may be given back first.
        if let Some(enforced) = policy::without_shadows(run, &failure.error) {
            return self
                .acquire_callers(&enforced, failure.unacknowledged)
                .await;
        }
        if failure.unacknowledged {
            self.give_back_all(run);
        }
        Err(failure.error)
    }

    /// Gives back what a call for these callers may have taken.
    pub(super) fn give_back_all(&self, run: &[Demand]) {
        for demand in run {
            for charge in demand.charges() {
                // No younger than the call.
                self.queue_settlement(&charge.made(demand.asked_at), 0, false);
            }
        }
    }

    /// Calls the scripts of Redisson's format, which know no bans. Returns an answer for each
    /// caller and limiter, the first caller's first.
    pub(super) async fn call_counting(
        &self,
        first: &Demand,
        run: &[Demand],
    ) -> Result<List<Answer>, Failure> {
        // The scripts with slots, if any limiter has slots.
        let mut each = first.charges();
        let slotted = each.find(|charge| charge.compiled().counting.slots().is_some());
        let counting = slotted.unwrap_or(first.first()).compiled().counting;
        let scripts = redisson::scripts(counting).ok_or(Error::new(ErrorKind::Limit))?;
        let settings = redisson::CallSettings {
            exact: run.iter().any(|demand| demand.wants_remaining),
            ..self.call_settings()?
        };
        let limiters = self.with_rewrites(first);
        let brief = (scripts.brief)(run, &limiters, settings);
        let may_have_taken = brief.is_some();
        if let Some((call, read)) = brief {
            let reply = call.decide(&self.connection, &[run]).await?;
            if let Some(answers) = read(&reply, run, settings)? {
                return Ok(answers);
            }
        }
        let command = redisson::acquire_command(scripts.acquire, &limiters, run, settings);
        let call = ScriptCall {
            script: scripts.acquire,
            command,
            once: redisson::is_sent_once(first),
            callers: run.len(),
        };
        let reply = call.decide(&self.connection, &[run]).await;
        let reply = reply.map_err(|failure| failure.after(may_have_taken))?;
        Ok(redisson::read_answers(&reply, limiters.len(), run.len())?)
    }

    /// Returns the decisions, and reports what the call has changed, and how the bans stand that it
    /// has asked for. `answers` has one answer for each caller and limiter, the first caller's
    /// first.
    pub(super) fn decided(
        &self,
        run: &[Demand],
        answers: &[Answer],
        bans: Option<(&BanCall, &[BanState])>,
    ) -> List<Decision> {
        let Some(first) = run.first() else {
            return List::new();
        };
        for (charge, answer) in first.charges().zip(answers) {
            if answer.changed != Changed::Nothing {
                self.listeners.changed(charge.name());
            }
            if answer.changed == Changed::Rewritten {
                self.rewritten.insert(charge.name().clone(), moment());
                if charge.compiled().claim_warning(Warning::Rewritten) {
                    warning!(
                        rule = charge.compiled().for_logs(),
                        "the stored limit differed and was rewritten: expected after a deployment \
                         that changes it"
                    );
                }
            }
            if answer.repaired > 0 && charge.compiled().claim_warning(Warning::Repaired) {
                warning!(
                    rule = charge.compiled().for_logs(),
                    entries = answer.repaired,
                    "grant timestamps that lay in the future were reset: a process with a wrong \
                     clock shares this limit"
                );
            }
        }
        let each = run.iter().zip(answers.chunks(first.charges.len()));
        let decisions: List<_> = each
            .map(|(demand, answers)| demand.decision(answers))
            .collect();
        if let (Some((asked, found)), Some(decision)) = (bans, decisions.first()) {
            self.bans.learn(first, asked, found, decision.charges());
        }
        decisions
    }

    pub(super) async fn stored_limit(
        &self,
        limiter: &Limiter,
    ) -> Result<Option<StoredLimit>, Error> {
        let name = limiter.name.as_str();
        let fields = [name, "rate", "interval", "type", "keepAliveTime"];
        redisson::stored_limit(&self.command("HMGET", &fields).await?)
    }

    /// Returns the charges, each with a flag that has a differing limit rewritten.
    fn with_rewrites<'a>(&self, demand: &'a Demand) -> List<(&'a Charge, bool)> {
        let is_late = |at| moment().duration_since(at) >= REWRITTEN_AGAIN_AFTER;
        let charges = demand.charges().map(|charge| {
            let is_of_code = matches!(charge.limit(), LimitSource::Code(_));
            let rewrite = is_of_code && self.rewritten.get(charge.name()).is_none_or(is_late);
            (charge, rewrite)
        });
        charges.collect()
    }

    /// Sends a plain command that is safe to repeat.
    pub(super) async fn command(
        &self,
        verb: &'static str,
        arguments: &[impl redis::ToRedisArgs],
    ) -> Result<redis::Value, Error> {
        let mut command = redis::cmd(verb);
        command.arg(arguments);
        let report = CallReport::new(&self.connection, verb, 0);
        let reply = report.ended(self.connection.send(&command, false).await);
        reply.map_err(classify::failure)
    }

    /// Returns the settings of a call whose callers do not want the exact number of permits left.
    fn call_settings(&self) -> Result<redisson::CallSettings<'_>, Error> {
        Ok(redisson::CallSettings {
            client_id: self.client_id()?,
            now: self.clock.as_deref().map(sent_millis),
            exact: false,
        })
    }

    pub(crate) fn client_id(&self) -> Result<&str, Error> {
        if let Some(id) = self.client_id.get() {
            return Ok(id);
        }
        let id = uuid(random_id()?);
        // If several callers come at once, the first one's id is used by all.
        Ok(self.client_id.get_or_init(|| id.into()))
    }
}

/// Returns a random UUID as text, in the shape of Redisson's client ids (RFC 9562, version 4).
fn uuid(PermitId(mut bytes): PermitId) -> String {
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let mut text = String::with_capacity(36);
    push_hex(&mut text, &bytes);
    for end in [8, 13, 18, 23] {
        text.insert(end, '-');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_id_looks_like_redissons() {
        assert_eq!(
            uuid(PermitId([0xff; 16])),
            "ffffffff-ffff-4fff-bfff-ffffffffffff"
        );
        assert_eq!(
            uuid(PermitId([0; 16])),
            "00000000-0000-4000-8000-000000000000"
        );
    }
}
