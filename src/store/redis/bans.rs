//! Bans of callers by limiters in Redisson's format, which has none: the ban is a state of [our
//! own](super::packed), met by calls of its own.
//!
//! A call before that of the limiters reports what this process has refused from memory, and asks
//! for bans in force. If callers are refused then, a call after it reports that. So a ban may begin
//! between the two calls of another caller, which is decided all the same.

use super::{
    keys,
    node::Failure,
    packed::{Stamp, verbs},
    server::Server,
};
use crate::{
    algorithm::{answer::Answer, ban::JoinedAnswer},
    store::{
        Op, OpResult,
        guard::deny_cache::bans::{BanState, Carried},
        random_id,
    },
    values::{
        List,
        charge::Charge,
        clock::Now,
        compiled_limit::Limiter,
        decision::Decision,
        demand::Demand,
        error::Error,
        limit::{Ban, Limit},
    },
};

/// The callers that a limiter has refused in a way that counts towards its ban, each with its index
/// among the callers and the ms until the limit has room for it.
#[derive(Default)]
struct RefusedCallers(List<(usize, i64)>);

impl RefusedCallers {
    /// Returns the refusal that makes them too many, by a ban that stood so before, or the last.
    fn banning(&self, ban: &Ban, before: &BanState) -> Option<&(usize, i64)> {
        let missing = ban.after.saturating_sub(before.strikes).saturating_sub(1);
        let missing = usize::try_from(missing).unwrap_or(usize::MAX);
        self.0.get(missing).or(self.0.last())
    }

    /// Returns them as they are reported.
    fn strikes(&self, ban: Option<Ban>, before: &BanState) -> (Carried, i64) {
        let number = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        let last = ban.and_then(|ban| self.banning(&ban, before).copied());
        (
            Carried {
                number,
                ..Carried::default()
            },
            last.unwrap_or_default().1,
        )
    }

    /// Returns the index of the first caller that is banned, by a ban that stood so `before` they
    /// were refused and stands so `now`. Others may have refused the caller meanwhile.
    fn banned_from(&self, ban: &Ban, before: &BanState, now: &BanState) -> Option<usize> {
        if before.left > 0 {
            return Some(0);
        }
        let last = self.banning(ban, before).filter(|_| now.left > 0);
        last.map(|(index, _)| *index)
    }
}

/// Returns for each limiter the callers that strike it. `before` says how the bans stood.
fn refused(run: &[Demand], answers: &[Answer], before: &[BanState]) -> List<RefusedCallers> {
    let mut refused: List<_> = before.iter().map(|_| RefusedCallers::default()).collect();
    let callers = run.iter().zip(answers.chunks(before.len().max(1)));
    for (index, (caller, answers)) in callers.enumerate() {
        let outcome = JoinedAnswer::of(caller, answers);
        let each = caller
            .charges()
            .zip(answers)
            .zip(before.iter().zip(&mut refused));
        for ((charge, answer), (before, refused)) in each {
            let has_ban = charge.compiled().ban.is_some() && before.left == 0;
            if has_ban && outcome.strikes(caller, charge, answer) {
                refused.0.push((index, outcome.wait));
            }
        }
    }
    refused
}

/// Marks the answers to callers that are banned `now`.
fn mark(
    run: &[Demand],
    answers: &mut [Answer],
    refused: &[RefusedCallers],
    [before, now]: [&[BanState]; 2],
) {
    let callers = run.iter().zip(answers.chunks_mut(now.len().max(1)));
    for (index, (caller, answers)) in callers.enumerate() {
        let is_granted = JoinedAnswer::of(caller, answers).is_granted;
        let each = caller.charges().zip(answers).zip(refused);
        for (((charge, answer), refused), (before, now)) in each.zip(before.iter().zip(now)) {
            let ban = charge.compiled().ban;
            let from = ban.and_then(|ban| refused.banned_from(&ban, before, now));
            if from.is_some_and(|from| from <= index) && (charge.shadow || !is_granted) {
                answer.ban(now.back);
            }
        }
    }
}

impl Server {
    /// Decides for callers of limiters in Redisson's format, some with a ban. They may have asked
    /// before, and ask `again`.
    ///
    /// # Errors
    ///
    /// Those of the calls. Refusals that cannot be reported do not count.
    ///
    /// # Cancel safety
    ///
    /// As a call without bans. Refusals that no caller learns of may not count.
    pub(super) async fn call_banning(
        &self,
        first: &Demand,
        run: &[Demand],
        again: bool,
    ) -> Result<List<Decision>, Failure> {
        let asked = self.bans.ask(first);
        let carried = asked.carried.iter().map(|carried| (*carried, 0));
        let carried: List<_> = carried.collect();
        let before = self.report(first, run, &carried).await;
        let before = before.map_err(|failure| Failure {
            unacknowledged: again,
            ..failure
        })?;
        let is_banned = |(charge, found): (&Charge, &BanState)| !charge.shadow && found.left > 0;
        if first.charges().zip(&before).any(is_banned) {
            if again {
                self.give_back_all(run);
            }
            let answers = self.banned(first, run, &before).await;
            return Ok(self.decided(run, &answers, Some((&asked, &before))));
        }
        let answers = self.call_counting(first, run).await;
        let mut answers = answers.map_err(|failure| failure.after(again))?;
        let refused = refused(run, &answers, &before);
        let mut now = None;
        if refused.iter().any(|it| !it.0.is_empty()) {
            let each = first.charges().zip(&refused).zip(&before);
            let strikes =
                each.map(|((charge, it), before)| it.strikes(charge.compiled().ban, before));
            let strikes: List<_> = strikes.collect();
            now = self.report(first, run, &strikes).await.ok();
        }
        let now = now.as_ref().unwrap_or(&before);
        mark(run, &mut answers, &refused, [&before, now]);
        Ok(self.decided(run, &answers, Some((&asked, now))))
    }

    /// Reports refusals to the bans of these callers' limiters, for each limiter so many, and the
    /// ms until it has room. Returns how the bans stand.
    async fn report(
        &self,
        first: &Demand,
        run: &[Demand],
        strikes: &[(Carried, i64)],
    ) -> Result<List<BanState>, Failure> {
        let stamp = self.stamp(random_id()?, &first.first().limiter);
        let call = verbs::report(first, strikes, stamp);
        let reply = call.decide(&self.connection, &[run]).await?;
        Ok(verbs::read_report(&reply, first)?)
    }

    /// Returns the answers to callers that a ban in force refuses, one for each limiter.
    async fn banned(&self, first: &Demand, run: &[Demand], found: &[BanState]) -> List<Answer> {
        let mut answers: List<Answer> = List::new();
        for (charge, found) in first.charges().zip(found) {
            let limit = match charge.limit().given() {
                Some(limit) => Some(Limit::stored(limit)),
                // Where nothing can be read, a ban is a ban.
                None => self.stored_limit(&charge.limiter).await.ok().flatten(),
            };
            let back = (found.left > 0).then_some(found.back);
            answers.push(Answer::of_banned(limit, back, Now::millis(0)));
        }
        let all = answers.iter().cycle().take(answers.len() * run.len());
        all.cloned().collect()
    }

    /// Carries out a verb for bans, in either format; `None` for others.
    pub(super) async fn manage_ban(
        &self,
        limiter: &Limiter,
        op: &Op,
    ) -> Result<Option<OpResult>, Error> {
        let stamp = || Ok::<_, Error>(self.stamp(random_id()?, limiter));
        Ok(Some(match op {
            Op::Ban(millis) => {
                verbs::read_ban(
                    &self
                        .reply(&verbs::ban_for(limiter, stamp()?, *millis))
                        .await?,
                )?;
                OpResult::Changed(true)
            }
            Op::BannedUntil => {
                let [now, until] = self.ban(limiter, stamp()?).await?;
                OpResult::Number(if until > now { until } else { 0 })
            }
            Op::Unban => {
                let [now, until] = self.ban(limiter, stamp()?).await?;
                let key = keys::ban(&limiter.name, limiter.compiled.counting.in_own_format());
                self.command("UNLINK", &[key]).await?;
                OpResult::Changed(until > now)
            }
            _ => return Ok(None),
        }))
    }

    /// Returns the time by which bans count and that at which the ban of a caller ends, in ms.
    async fn ban(&self, limiter: &Limiter, stamp: Stamp) -> Result<[i64; 2], Error> {
        let call = verbs::ask_ban(limiter, stamp);
        verbs::read_ban(&self.reply(&call).await?)
    }
}
