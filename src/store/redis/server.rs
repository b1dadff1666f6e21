//! Redis without guards: each verb is a script or a command.

use std::{
    fmt,
    sync::{Arc, OnceLock},
    time::Duration,
};

use super::{
    classify::Class,
    node,
    returns::Returns,
    rewritten::Rewritten,
    saga::{self, OneCall},
    transport::connection::Connection,
    wire::{
        self,
        arguments::{Arguments, Word},
        gcra,
        script::{self, ACQUIRE, ACQUIRE_LIST, RENAME, Script, Verbs},
    },
};
use crate::{
    algorithm::answer::{Answer, Changed},
    clock::{Clock, Millis, millis, moment},
    decision::Decision,
    demand::{Acquire, Charge, Warning},
    error::{Error, ErrorKind},
    limit::{Algorithm, LimitSource, StoredLimit},
    list::List,
    macros::warning,
    name::Name,
    receipt::{PermitId, Receipt, Taken},
    store::{
        Decide, DecideRuns, ExpireWhen, Listeners, Op, Outcome, TimeToLive,
        guard::{
            breaker::{Breakers, Told},
            policy,
        },
    },
};

/// A server, and the state that this process keeps about it.
pub(crate) struct Server {
    pub(crate) connection: Arc<Connection>,
    pub(crate) returns: Returns,
    /// Created when first needed, unless the user has set one.
    pub(crate) client_id: OnceLock<Arc<str>>,
    /// The caller's clock; `None` for the server's.
    pub(crate) clock: Option<Arc<dyn Clock>>,
    pub(crate) rewritten: Rewritten,
    pub(crate) listeners: Listeners,
    /// The breakers that keep decisions away from failing servers. Verbs and receipts pass them:
    /// for these an operator waits, or no caller at all.
    pub(crate) breakers: Breakers,
}

impl Decide for Server {
    /// Decides nothing but that a breaker is open.
    fn decide_at_once(&self, acquire: &mut Acquire) -> Option<Result<Decision, Error>> {
        if let Some(error) = self.breakers.refuses(acquire) {
            return Some(Err(error));
        }
        match wire::random_id() {
            Ok(id) => {
                acquire.identify(id);
                acquire.share();
                acquire.asked = Some(moment());
                None
            }
            // Without entropy nothing can be sent.
            Err(error) => Some(Err(error)),
        }
    }

    /// # Cancel safety
    ///
    /// Dropping it leaves it open whether the permits were taken. A receipt made before the call
    /// gives them back in either case.
    async fn acquire(&self, acquire: &Acquire) -> Result<Decision, Error> {
        let decisions = self.acquire_all(std::slice::from_ref(acquire)).await?;
        let decision = decisions.into_iter().next();
        decision.ok_or_else(|| ErrorKind::Permits.into())
    }

    async fn manage(&self, name: &Name, op: &Op) -> Result<Outcome, Error> {
        let arguments = |argv: &[Word]| -> Result<Arguments, Error> {
            Ok(Arguments::new(wire::keys(name, self.client_id()?), argv))
        };
        let verbs = Verbs::of(name.algorithm());
        match op {
            Op::TrySetRate(limit) => {
                let arguments = arguments(&wire::limit_fields(limit))?;
                wire::flag(&self.call(verbs.try_set_rate, &arguments).await?).map(Outcome::Changed)
            }
            Op::SetRate {
                limit,
                keep,
                existing,
            } => {
                let [rate, interval, rate_type, keep_alive] = wire::limit_fields(limit);
                let (keep, existing) = (wire::flag_byte(*keep), wire::flag_byte(*existing));
                let now = wire::time(self.now());
                let argv = [rate, interval, rate_type, keep_alive, now, keep, existing];
                wire::flag(&self.call(verbs.set_rate, &arguments(&argv)?).await?)
                    .map(Outcome::Changed)
            }
            Op::Release(permits) => {
                let id = Word::from(wire::random_id()?.0);
                let argv = [Word::number(permits), wire::time(self.now()), id];
                let reply = self.call_once(verbs.release, &arguments(&argv)?).await?;
                wire::second(&reply).map(Outcome::Permits)
            }
            Op::Expire(millis, when) => {
                let when = match when {
                    ExpireWhen::Always => Word::default(),
                    ExpireWhen::NotSet => Word::from(*b"NX"),
                    ExpireWhen::Set => Word::from(*b"XX"),
                    ExpireWhen::Greater => Word::from(*b"GT"),
                    ExpireWhen::Less => Word::from(*b"LT"),
                };
                let arguments = arguments(&[Word::number(millis), when])?;
                wire::flag(&self.call(verbs.expire, &arguments).await?).map(Outcome::Changed)
            }
            Op::ClearExpire => {
                let arguments = arguments(&[])?;
                wire::flag(&self.call(verbs.clear_expire, &arguments).await?).map(Outcome::Changed)
            }
            Op::TimeToLive => {
                let reply = self.command("PTTL", &[name.as_str()]).await?;
                match wire::time_to_live(&reply)? {
                    TimeToLive::Missing if name.algorithm() == Algorithm::Gcra => {
                        self.life_of_value(name).await
                    }
                    left => Ok(left),
                }
                .map(Outcome::TimeToLive)
            }
            Op::Delete => {
                let reply = self
                    .command("DEL", &wire::keys(name, self.client_id()?))
                    .await?;
                wire::count(&reply).map(|deleted| Outcome::Changed(deleted > 0))
            }
            Op::Inspect => {
                let fields = [name.as_str(), "rate", "interval", "type", "keepAliveTime"];
                match wire::stored_limit(&self.command("HMGET", &fields).await?)? {
                    None if name.algorithm() == Algorithm::Gcra => self.limit_of_value(name).await,
                    limit => Ok(limit),
                }
                .map(Outcome::Limit)
            }
            Op::Available => {
                let argv = [wire::time(self.now()), Word::from(wire::random_id()?.0)];
                let reply = self.call(verbs.available, &arguments(&argv)?).await?;
                wire::second(&reply).map(Outcome::Permits)
            }
            Op::Repair => {
                let arguments = arguments(&[wire::time(self.now())])?;
                // A second call would find nothing to repair, and report that.
                let reply = self.call_once(verbs.repair, &arguments).await?;
                wire::second(&reply).map(Outcome::Permits)
            }
            Op::Rename(new_name) => {
                let client_id = self.client_id()?;
                let mut keys = Vec::from(wire::keys(name, client_id));
                keys.extend(wire::keys(new_name, client_id));
                let reply = self
                    .call_once(&RENAME, &Arguments::new(keys, &[] as &[Word]))
                    .await?;
                wire::flag(&reply).map(Outcome::Changed)
            }
        }
    }

    fn settle(&self, receipt: Receipt, keep: u32) {
        self.settle(&receipt, keep, false);
    }
}

impl DecideRuns for Server {
    async fn acquire_run(&self, run: &[Acquire]) -> Result<Vec<Decision>, Error> {
        self.acquire_all(run).await.map(Vec::from)
    }

    fn decides_together(&self, acquire: &Acquire) -> bool {
        let names = acquire.charges().map(|charge| charge.name());
        wire::is_one_call(names, self.connection.has_nodes())
    }
}

impl OneCall for Server {
    fn in_hash_slots(&self) -> bool {
        self.connection.has_nodes()
    }

    fn settle(&self, receipt: &Receipt, keep: u32) {
        self.settle(receipt, keep, true);
    }

    /// Decides for callers of limiters that one script reaches.
    async fn acquire_at_once(
        &self,
        first: &Acquire,
        run: &[Acquire],
    ) -> Result<List<Decision>, Error> {
        let limiters = 1 + first.rest.len();
        let in_slots = first
            .charges()
            .any(|charge| charge.name().slots().is_some());
        let algorithm = first.first.name().algorithm();
        let lone = algorithm == Algorithm::SlidingLog && !in_slots && limiters == 1 && is_lone(run);
        let script = match algorithm {
            Algorithm::SlidingLog if in_slots => &*script::slots::ACQUIRE,
            Algorithm::SlidingLog if lone => &*ACQUIRE,
            Algorithm::SlidingLog => &*ACQUIRE_LIST,
            Algorithm::FixedWindow => &*script::fixed_window::ACQUIRE,
            Algorithm::Gcra => match self.acquire_lone(run).await? {
                Some(answer) => return Ok(self.decisions(run, &[answer])),
                None => &*script::gcra::ACQUIRE_RUN,
            },
        };
        let charges: List<_> = first
            .charges()
            .map(|charge| (charge, self.rewrites(charge)))
            .collect();
        let callers = run
            .iter()
            .map(|acquire| (acquire.charges(), acquire.patience.is_some()));
        let ask = wire::Ask {
            client_id: self.client_id()?,
            now: self.now(),
            exact: run.iter().any(|acquire| acquire.remaining),
        };
        let arguments = wire::acquire(charges.iter().copied(), callers, ask);
        let reply = self.call_for(script, &arguments, run).await?;
        let answers = match algorithm {
            Algorithm::SlidingLog if lone => {
                List::one(wire::lone_answer(&reply, &first.first, ask.now)?)
            }
            Algorithm::SlidingLog | Algorithm::FixedWindow => {
                wire::answers(&reply, limiters, run.len())?
            }
            Algorithm::Gcra => gcra::answers(&reply, run.len())?,
        };
        Ok(self.decisions(run, &answers))
    }
}

impl Server {
    /// Settles at `keep` permits. `undone` marks what a saga took before it was refused, see
    /// `Returns`.
    pub(crate) fn settle(&self, receipt: &Receipt, keep: u32, undone: bool) {
        if keep == receipt.permits {
            return;
        }
        // Without a client id nothing was taken either.
        let Ok(client_id) = self.client_id() else {
            return;
        };
        let arguments = match receipt.name().algorithm() {
            Algorithm::SlidingLog if receipt.name().slots().is_none() => {
                wire::settle(receipt, keep, client_id, self.now())
            }
            Algorithm::SlidingLog | Algorithm::FixedWindow | Algorithm::Gcra => match receipt
                .settle()
            {
                Some(Taken::Window(end)) => wire::settle_in_window(receipt, keep, end, client_id),
                Some(Taken::Slot(end)) => {
                    let Some(slots) = receipt.name().slots() else {
                        return;
                    };
                    wire::settle_in_slot(receipt, keep, (slots, end), client_id, self.now())
                }
                Some(Taken::Tat(tat)) => gcra::settle(receipt, keep, tat, client_id, self.now()),
                Some(Taken::Estimate) | None => return,
            },
        };
        self.returns.push(receipt, keep, arguments, undone);
    }

    async fn acquire_all(&self, run: &[Acquire]) -> Result<List<Decision>, Error> {
        match self.acquire_together(run).await {
            Err(error) => match policy::without_trials(run, &error) {
                Some(enforced) => self.acquire_together(&enforced).await,
                None => Err(error),
            },
            decisions => decisions,
        }
    }

    /// Decides for callers of the same limiters, in one call or one after the other.
    async fn acquire_together(&self, run: &[Acquire]) -> Result<List<Decision>, Error> {
        let Some(first) = run.first() else {
            return Ok(List::EMPTY);
        };
        first.check()?;
        if self.decides_together(first) {
            return self.acquire_at_once(first, run).await;
        }
        // One at a time: each caller gets its decision at once, and holds nothing while others are
        // decided. Boxed, so that callers without a saga have no room for it in their futures.
        let saga = Box::pin(saga::acquire(self, first));
        saga.await.map(List::one)
    }

    /// Decides for a lone caller of a GCRA limiter that a rule made, by the script that reads no
    /// stored limit; `None` if that script does not apply.
    async fn acquire_lone(&self, run: &[Acquire]) -> Result<Option<Answer>, Error> {
        let [Acquire { first, .. }] = run else {
            return Ok(None);
        };
        let lone = match first.limiter.limit {
            // This script cannot notice a stored limit that differs and is left alone for now.
            LimitSource::Code(limit) if self.rewrites(first) => {
                gcra::Lone::new(first, &limit.stored())
            }
            _ => None,
        };
        let Some(lone) = lone else {
            return Ok(None);
        };
        let arguments = lone.arguments(first.name(), self.client_id()?, self.now());
        let acquire = &*script::gcra::ACQUIRE;
        let reply = self.call_for(acquire, &arguments, run).await?;
        lone.answer(&reply)
    }

    /// Calls, and gives back the grants of callers that will not receive them.
    async fn call_for(
        &self,
        script: &Script,
        arguments: &Arguments,
        run: &[Acquire],
    ) -> Result<redis::Value, Error> {
        // Made before the call: see `Receipt`.
        let receipts: List<_> = run
            .iter()
            .flat_map(Acquire::charges)
            .map(Charge::receipt)
            .collect();
        let mut names = run
            .iter()
            .flat_map(Acquire::charges)
            .map(|charge| charge.name());
        let Some(first) = run.first() else {
            return Err(ErrorKind::Permits.into());
        };
        // All limiters of one call are on one node.
        let pass = self.breakers.enter(first.first.name(), longest_wait(run))?;
        let called = if names.all(Name::tells_grants_apart) {
            script.call(&self.connection, arguments).await
        } else {
            // A second call would take again. Permits of a lost reply stay in use until they
            // expire.
            script.call_once(&self.connection, arguments).await
        };
        match called {
            Ok(reply) => {
                self.breakers.traffic().replied_for(first.first.name());
                pass.ends(Told::Answered);
                Ok(reply)
            }
            Err(failed) => {
                let silent = Class::of(&failed.error) == Class::Silent;
                if silent && failed.unheard {
                    pass.ends_unanswered();
                } else {
                    pass.ends(node::told(&failed, self.connection.has_nodes()));
                }
                if failed.unheard {
                    receipts
                        .iter()
                        .for_each(|receipt| self.settle(receipt, 0, false));
                }
                Err(wire::failure(failed))
            }
        }
    }

    /// Returns the decisions. `answers` has one answer for each caller and limiter, the first
    /// caller's first.
    fn decisions(&self, run: &[Acquire], answers: &[Answer]) -> List<Decision> {
        let Some(first) = run.first() else {
            return List::EMPTY;
        };
        for (charge, answer) in first.charges().zip(answers) {
            self.note(charge, answer);
        }
        run.iter()
            .zip(answers.chunks(1 + first.rest.len()))
            .map(|(acquire, answers)| acquire.decision(answers))
            .collect()
    }

    /// Returns when a GCRA limiter expires that a rule made, and that therefore has no hash.
    async fn life_of_value(&self, name: &Name) -> Result<TimeToLive, Error> {
        let mut left = TimeToLive::Missing;
        for (key, _) in gcra::values(name, self.client_id()?) {
            if left == TimeToLive::Missing {
                left = wire::time_to_live(&self.command("PTTL", &[key]).await?)?;
            }
        }
        Ok(left)
    }

    /// Returns the limit of a GCRA limiter that a rule made.
    async fn limit_of_value(&self, name: &Name) -> Result<Option<StoredLimit>, Error> {
        for (key, rate_type) in gcra::values(name, self.client_id()?) {
            let value = self.command("GET", &[key]).await?;
            if let Some(limit) = gcra::limit_of(&value, rate_type) {
                return Ok(Some(limit));
            }
        }
        Ok(None)
    }

    fn rewrites(&self, charge: &Charge) -> bool {
        matches!(charge.limit(), LimitSource::Code(_)) && !self.rewritten.lately(charge.name())
    }

    async fn call(&self, script: &Script, arguments: &Arguments) -> Result<redis::Value, Error> {
        script
            .call(&self.connection, arguments)
            .await
            .map_err(wire::failure)
    }

    /// Calls a script that must not run twice. A lost connection is an error, because it is unknown
    /// whether the script ran.
    async fn call_once(
        &self,
        script: &Script,
        arguments: &Arguments,
    ) -> Result<redis::Value, Error> {
        script
            .call_once(&self.connection, arguments)
            .await
            .map_err(wire::failure)
    }

    /// Sends a plain command that is safe to repeat.
    async fn command(
        &self,
        verb: &str,
        arguments: &[impl redis::ToRedisArgs],
    ) -> Result<redis::Value, Error> {
        let mut command = redis::cmd(verb);
        command.arg(arguments);
        self.connection.send(&command).await.map_err(wire::failure)
    }

    /// Returns the caller's time; `None` for the server's.
    fn now(&self) -> Option<Millis> {
        self.clock.as_deref().map(millis)
    }

    pub(crate) fn client_id(&self) -> Result<&str, Error> {
        if self.client_id.get().is_none() {
            let id = uuid(wire::random_id()?);
            // The first caller sets the id; none is used before.
            let _ = self.client_id.set(id.into());
        }
        Ok(self.client_id.get().map_or("", |id| id))
    }

    /// Records and logs the side effects of an acquire.
    fn note(&self, charge: &Charge, answer: &Answer) {
        if answer.changed != Changed::Nothing {
            self.listeners.changed(charge.name());
        }
        if answer.changed == Changed::Rewritten {
            self.rewritten.note(charge.name());
            if charge.labels.is_to_warn(Warning::Rewritten) {
                warning!(
                    rule = charge.labels.for_logs(),
                    "the stored limit differed and was rewritten: another process has other code, or an older version"
                );
            }
        }
        if answer.repaired > 0 && charge.labels.is_to_warn(Warning::Repaired) {
            warning!(
                rule = charge.labels.for_logs(),
                entries = answer.repaired,
                "grants from the future were set back: a process with a wrong clock shares this limit"
            );
        }
    }
}

/// Returns how long the call has waited in the queue, for callers that do not wait for permits.
fn longest_wait(run: &[Acquire]) -> Duration {
    let hurried = run.iter().filter(|acquire| acquire.patience.is_none());
    let oldest = hurried.filter_map(|acquire| acquire.asked).min();
    oldest.map_or(Duration::ZERO, |asked| {
        moment().saturating_duration_since(asked)
    })
}

/// Returns whether there is one caller, which takes its permits now or not at all. Then it does not
/// matter whether it waits.
fn is_lone(run: &[Acquire]) -> bool {
    matches!(run, [acquire] if !acquire.first.shadow && acquire.first.lead == 0)
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("connection", &self.connection)
            .finish_non_exhaustive()
    }
}

/// Returns a random UUID as text, in the shape of Redisson's client ids (RFC 9562, version 4).
fn uuid(PermitId(mut bytes): PermitId) -> String {
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let mut text = String::with_capacity(36);
    for (index, byte) in bytes.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demand::Labels;

    // The script for lone callers does not read how a charge is taken.
    #[test]
    fn a_caller_is_lone_that_takes_now_and_in_earnest() {
        let acquire = |shadow, lead| Acquire {
            first: Charge {
                shadow,
                lead,
                ..Charge::named(
                    Name::exact("orders").unwrap(),
                    LimitSource::Store,
                    Labels::new("orders", false, None),
                    1,
                )
            },
            rest: Vec::new(),
            on_failure: None,
            remaining: true,
            patience: None,
            asked: None,
        };
        assert!(is_lone(&[acquire(false, 0)]));
        assert!(!is_lone(&[acquire(true, 0)]));
        assert!(!is_lone(&[acquire(false, 50)]));
        assert!(!is_lone(&[acquire(false, 0), acquire(false, 0)]));
    }

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
