//! A Redis server without guards: carries out each operation by a script or a command.

use std::{
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use super::{
    batch::{Batches, Failure},
    settle_queue::SettleQueue,
    transport::connection::Connection,
    wire::{
        self,
        script::{Calling, ScriptCall, Scripts},
        verbs,
    },
};
use crate::{
    algorithm::answer::{Answer, Changed},
    clock::{Clock, millis, moment},
    decision::{Decision, Refusal},
    demand::{Acquire, LimiterCharge},
    error::{Error, ErrorKind},
    labels::Warning,
    limit::{LimitSource, StoredLimit},
    list::List,
    macros::warning,
    name::{Name, Text, push_hex},
    receipt::{PermitId, Receipt},
    store::{
        Calls, Decide, Listeners, Op, OpResult, TimeToLive, begin,
        guard::{Cache, deny_cache::bans::Bans, policy},
    },
};

/// The time for which this process does not rewrite a limit again. While two versions of a service
/// run side by side, each would otherwise overwrite the other's limit with every request. So the
/// limit changes at most twice a minute.
const REWRITTEN_AGAIN_AFTER: Duration = Duration::from_secs(60);
/// The maximum number of names remembered for that. A forgotten one may be rewritten early.
pub(super) const MOST_REWRITTEN: usize = 1024;

/// A server, and the state that this process keeps about it.
pub(crate) struct Server {
    pub(crate) connection: Arc<Connection>,
    pub(super) batches: Arc<Batches>,
    pub(super) settle_queue: SettleQueue,
    /// Created when first needed, unless the user has set one.
    pub(crate) client_id: OnceLock<Arc<str>>,
    /// The clock of this process, if it decides; `None` for the server's.
    pub(crate) clock: Option<Arc<dyn Clock>>,
    /// The names whose stored limit this process has rewritten, and when.
    pub(super) rewritten: Cache<Text, Instant>,
    pub(crate) listeners: Listeners,
    pub(super) bans: Arc<Bans>,
}

impl Decide for Server {
    /// Fails at once while a breaker is open, and decides nothing else.
    fn decide_at_once(&self, acquire: &mut Acquire) -> Option<Result<Decision, Error>> {
        prepare_call(self.batches.breakers.refuses(acquire), acquire)
    }

    async fn manage(&self, name: &Name, op: &Op) -> Result<OpResult, Error> {
        let ask = self.ask()?;
        match (op, verbs::call(wire::scripts(name).verbs, name, op, ask)?) {
            (_, Some(call)) => {
                let reply = call.send(&self.connection).await.map_err(wire::failure)?;
                verbs::outcome(&reply)
            }
            (Op::Delete, None) => {
                let mut keys = wire::own_keys(name, ask.client_id);
                keys.extend(wire::ban::keys(name));
                let deleted = wire::count(&self.command("DEL", &keys).await?)?;
                Ok(OpResult::Changed(deleted > 0))
            }
            (Op::Inspect, None) => self.stored_limit(name).await.map(OpResult::Limit),
            (_, None) => self.time_to_live(name).await.map(OpResult::TimeToLive),
        }
    }

    fn strike(&self, acquire: &Acquire, refusal: &mut Refusal) {
        self.bans.count(acquire, refusal);
    }
}

impl Calls for Server {
    /// Decides for all callers in one call, or for the first alone if one script cannot reach all
    /// of its limiters.
    async fn acquire_run(&self, run: &[Acquire]) -> Result<List<Decision>, Error> {
        let Some(first) = run.first() else {
            return Ok(List::new());
        };
        if self.decides_together(first) {
            return self.acquire_part(first, run).await;
        }
        // One at a time: each caller gets its decision at once, and holds nothing while others are
        // decided.
        let decision = Box::pin(self.acquire_parts(first)).await?;
        Ok(List::from([decision]))
    }

    fn decides_together(&self, acquire: &Acquire) -> bool {
        let (first, is_cluster) = (acquire.first.name(), self.connection.source.is_cluster);
        let mut rest = acquire.rest.iter();
        rest.all(|charge| wire::go_together(first, charge.name(), is_cluster))
    }

    fn settle(&self, receipt: Receipt, keep: u32) {
        self.settle(&receipt, keep, false);
    }
}

impl Server {
    /// Settles at `keep` permits. `undone` marks what a saga took before it was refused, see
    /// `SettleQueue`.
    pub(crate) fn settle(&self, receipt: &Receipt, keep: u32, undone: bool) {
        if keep == receipt.permits {
            return;
        }
        // Without a client id nothing was taken either.
        let Ok(ask) = self.ask() else {
            return;
        };
        let scripts = wire::scripts(receipt.name());
        if let Some(call) = (scripts.settle)(receipt, keep, ask) {
            self.settle_queue.push(receipt, keep, call, undone);
        }
    }

    /// Decides for callers of limiters that one script reaches, and gives back the grants of
    /// callers that will not receive them.
    pub(super) async fn acquire_part(
        &self,
        first: &Acquire,
        run: &[Acquire],
    ) -> Result<List<Decision>, Error> {
        let failure = match self.ask_for(first, run).await {
            Ok(decisions) => return Ok(decisions),
            Err(failure) => failure,
        };
        // Enforced rules alone are tried again by the same ids, so nothing may be given back first.
        if let Some(enforced) = policy::without_shadows(run, &failure.error)
            && let Some(first) = enforced.first()
        {
            // Boxed because it is rare, so that it does not enlarge the future.
            return Box::pin(self.acquire_part(first, &enforced)).await;
        }
        if failure.unacknowledged {
            for acquire in run {
                for charge in acquire.charges() {
                    // No younger than the call: see `Receipt`.
                    self.settle(&charge.receipt(acquire.asked_at), 0, false);
                }
            }
        }
        Err(failure.error)
    }

    /// Does what [`acquire_part`](Self::acquire_part) does, except that it gives nothing back.
    async fn ask_for(&self, first: &Acquire, run: &[Acquire]) -> Result<List<Decision>, Failure> {
        first.check()?;
        // Those of slots, if one of the limiters has slots.
        let slotted = first
            .charges()
            .find(|charge| charge.name().slots().is_some());
        let scripts = wire::scripts(slotted.unwrap_or(&first.first).name());
        let mut ask = wire::Ask {
            exact: run.iter().any(|acquire| acquire.wants_remaining),
            ..self.ask()?
        };
        if first.charges().any(|charge| charge.labels.ban.is_some()) {
            // Boxed, so that it does not enlarge the future of calls without bans.
            return Box::pin(self.acquire_or_ban(first, run, scripts, ask)).await;
        }
        let (mut knows_time, mut may_have_taken) = (false, false);
        while let Some((call, read)) = (scripts.brief)(run, &|charge| self.rewrites(charge), ask) {
            let reply = self.batches.send(call, first, run, false).await?;
            match read(&reply, run, ask)? {
                Ok(answers) => return Ok(self.decisions(run, &answers)),
                Err(None) => {
                    may_have_taken = true;
                    break;
                }
                // Only once: windows made for the server's time hold it, unless its clock jumps.
                Err(Some(_)) if knows_time => return Err(wire::unreadable().into()),
                Err(now) => (ask.now, knows_time) = (now, true),
            }
        }
        let charges = self.with_rewrites(first);
        let command = wire::acquire(scripts.acquire, &charges, run, ask);
        let once = wire::is_sent_once(first);
        let call = ScriptCall::new(scripts.acquire, command, run.len(), once);
        let reply = self.batches.send(call, first, run, may_have_taken).await?;
        let answers = wire::read_answers(&reply, charges.len(), run.len(), scripts.taken)?;
        Ok(self.decisions(run, &answers))
    }

    /// Decides for callers of limits with a ban, where one script reaches all limiters.
    async fn acquire_or_ban(
        &self,
        first: &Acquire,
        run: &[Acquire],
        scripts: &Scripts,
        ask: wire::Ask<'_>,
    ) -> Result<List<Decision>, Failure> {
        let ask = ask.at(first.first.name());
        let banning = scripts.banning.ok_or(Error::new(ErrorKind::Limit))?;
        let asked = self.bans.ask(first);
        let limiters = self.with_rewrites(first);
        let call = || {
            let command = wire::ban::acquire(banning, &limiters, &asked.carried, run, ask);
            ScriptCall::new(banning, command, run.len(), wire::is_sent_once(first))
        };
        let mut reply = self.batches.send(call(), first, run, false).await?;
        if reply == redis::Value::Nil {
            reply = self.batches.send(call(), first, run, true).await?;
        }
        let (answers, found) = wire::ban::read(&reply, run, scripts)?;
        let decisions = self.decisions(run, &answers);
        if let Some(decision) = decisions.first() {
            self.bans.learn(first, &asked, &found, decision.states());
        }
        Ok(decisions)
    }

    /// Returns the decisions, and reports what the call has changed. `answers` has one answer for
    /// each caller and limiter, the first caller's first.
    fn decisions(&self, run: &[Acquire], answers: &[Answer]) -> List<Decision> {
        let Some(first) = run.first() else {
            return List::new();
        };
        for (charge, answer) in first.charges().zip(answers) {
            if answer.changed != Changed::Nothing {
                self.listeners.changed(charge.name());
            }
            if answer.changed == Changed::Rewritten {
                let name = charge.name().text().clone();
                self.rewritten.insert(name, moment());
                if charge.labels.is_to_warn(Warning::Rewritten) {
                    warning!(
                        rule = charge.labels.for_logs(),
                        "the stored limit differed and was rewritten: expected after a deployment \
                         that changes it"
                    );
                }
            }
            if answer.repaired > 0 && charge.labels.is_to_warn(Warning::Repaired) {
                warning!(
                    rule = charge.labels.for_logs(),
                    entries = answer.repaired,
                    "grant timestamps that lay in the future were reset: a process with a wrong \
                     clock shares this limit"
                );
            }
        }
        run.iter()
            .zip(answers.chunks(1 + first.rest.len()))
            .map(|(acquire, answers)| acquire.decision(answers))
            .collect()
    }

    async fn time_to_live(&self, name: &Name) -> Result<TimeToLive, Error> {
        let keys = wire::own_keys(name, self.client_id()?);
        let left = wire::time_to_live(&self.command("PTTL", &keys[..1]).await?)?;
        if left == TimeToLive::Missing && wire::scripts(name).limit_of.is_some() {
            for (key, _) in wire::values(name, self.client_id()?) {
                let left = wire::time_to_live(&self.command("PTTL", &[key]).await?)?;
                if left != TimeToLive::Missing {
                    return Ok(left);
                }
            }
        }
        Ok(left)
    }

    async fn stored_limit(&self, name: &Name) -> Result<Option<StoredLimit>, Error> {
        let fields = [name.as_str(), "rate", "interval", "type", "keepAliveTime"];
        let stored = wire::stored_limit(&self.command("HMGET", &fields).await?)?;
        if let (None, Some(limit_of)) = (stored, wire::scripts(name).limit_of) {
            for (key, rate_type) in wire::values(name, self.client_id()?) {
                let limit = limit_of(&self.command("GET", &[key]).await?, rate_type);
                if limit.is_some() {
                    return Ok(limit);
                }
            }
        }
        Ok(stored)
    }

    /// Returns the charges, each with a flag: whether a stored limit that differs is rewritten.
    fn with_rewrites<'a>(&self, acquire: &'a Acquire) -> List<(&'a LimiterCharge, bool)> {
        let charges = acquire.charges();
        charges
            .map(|charge| (charge, self.rewrites(charge)))
            .collect()
    }

    /// Returns whether a stored limit that differs from this one is rewritten.
    fn rewrites(&self, charge: &LimiterCharge) -> bool {
        let is_late = |at| moment().duration_since(at) >= REWRITTEN_AGAIN_AFTER;
        matches!(charge.limit(), LimitSource::Code(_))
            && self.rewritten.get(charge.name().text()).is_none_or(is_late)
    }

    /// Sends a plain command that is safe to repeat.
    async fn command(
        &self,
        verb: &'static str,
        arguments: &[impl redis::ToRedisArgs],
    ) -> Result<redis::Value, Error> {
        let mut command = redis::cmd(verb);
        command.arg(arguments);
        let calling = Calling::new(&self.connection, verb, 0);
        let reply = calling.ended(self.connection.send(&command, false).await);
        reply.map_err(wire::failure)
    }

    /// Returns the part of a call that does not depend on its limiters.
    fn ask(&self) -> Result<wire::Ask<'_>, Error> {
        Ok(wire::Ask {
            client_id: self.client_id()?,
            now: self.clock.as_deref().map(millis),
            exact: false,
        })
    }

    pub(crate) fn client_id(&self) -> Result<&str, Error> {
        if self.client_id.get().is_none() {
            let id = uuid(wire::random_id()?);
            // If several callers come at once, the first one's id is used by all.
            let _ = self.client_id.set(id.into());
        }
        Ok(self.client_id.get().map_or("", |id| id))
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
