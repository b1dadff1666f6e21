//! Decides and carries out verbs for limiters in [our own format](super::packed).

use redis::Value;

use super::{
    batch::Failure,
    packed::{
        self, Stamp, calendar, gcra,
        requests::{Asked, KNOWN, has_ban, may_ask_again, together},
        row::Row,
        verbs,
    },
    server::Server,
    wire::{self, script::ScriptCall},
};
use crate::{
    algorithm::gcra::Pace,
    charge::PermitId,
    clock::{Millis, SystemClock, millis},
    compiled_limit::Limiter,
    decision::Decision,
    demand::Demand,
    error::{Error, ErrorKind},
    limit::Algorithm,
    list::List,
    store::{Op, OpResult, random_id},
};

impl Server {
    /// Decides for the first of these callers: all of them, unless they wait for permits and ask
    /// for different numbers, as one that waits must not pass another, or are more than 64.
    pub(super) async fn call_own(&self, run: &[Demand]) -> Result<List<Decision>, Failure> {
        let Some(first) = run.first() else {
            return Ok(List::new());
        };
        let bans = has_ban(first).then(|| self.bans.ask(first));
        let carried = bans.as_ref().map_or(&[][..], |bans| &*bans.carried);
        let asked = together(run);
        let stamp = self.stamp(first.first().id, &first.first().limiter);
        let (mut now, mut again, mut is_usual) = (None, false, true);
        loop {
            let rows = first.charges().map(|charge| self.row(&charge.limiter, now));
            let rows: List<Row> = rows.collect::<Result<_, _>>()?;
            let call = Asked {
                stamp,
                rows: &rows,
                carried,
                again,
            };
            let lone = is_usual.then(|| call.lone(asked)).flatten();
            is_usual = lone.is_some();
            let mut command = lone.unwrap_or_else(|| call.call(asked));
            // Asked again, each caller is a grant of its own, and a state knows four.
            command.once = !again || asked.len() > KNOWN;
            let reply = match self.batches.send(command, first, asked, again).await {
                // It may have been carried out, which its limiter knows by the ids.
                Err(failure) if failure.connection_lost && !again && may_ask_again(asked) => {
                    again = true;
                    continue;
                }
                reply => reply?,
            };
            let reply = match is_usual {
                true => call.read_lone(&reply, run)?,
                false => Some(call.read(&reply, run)?),
            };
            let Some(reply) = reply else {
                is_usual = false;
                continue;
            };
            let Some(answers) = reply.answers else {
                if now.is_some() {
                    return Err(wire::unreadable().into());
                }
                // At most once: the windows fit the server's time, unless its clock jumps.
                now = Some(reply.now / 1000);
                continue;
            };
            let decisions = self.decisions(run, &answers);
            if let (Some(bans), Some(decision)) = (bans, decisions.first()) {
                self.bans
                    .learn(first, &bans, &reply.found, decision.charges());
            }
            return Ok(decisions);
        }
    }

    /// Carries out a verb.
    pub(super) async fn manage_own(&self, limiter: &Limiter, op: &Op) -> Result<OpResult, Error> {
        let (name, stamp) = (&limiter.name, self.stamp(random_id()?, limiter));
        let keys = || [packed::key(name), packed::ban::key(name)];
        Ok(match op {
            Op::Available => OpResult::Number(self.left(limiter, stamp).await?),
            Op::Release(permits) => OpResult::Number(self.release(limiter, stamp, *permits).await?),
            Op::Ban(millis) => {
                let call = verbs::ban_for(name, stamp, *millis);
                verbs::read_ban(&self.reply(&call).await?)?;
                OpResult::Changed(true)
            }
            Op::BannedUntil => {
                let [now, until] = self.ban(limiter, stamp).await?;
                OpResult::Number(if until > now { until } else { 0 })
            }
            Op::Unban => {
                let [now, until] = self.ban(limiter, stamp).await?;
                self.command("UNLINK", &keys()[1..]).await?;
                OpResult::Changed(until > now)
            }
            Op::Delete => {
                let deleted = wire::count(&self.command("DEL", &keys()).await?)?;
                OpResult::Changed(deleted > 0)
            }
            Op::TimeToLive => {
                let left = self.command("PTTL", &keys()[..1]).await?;
                OpResult::TimeToLive(wire::time_to_live(&left)?)
            }
            // Its limit is in the code.
            _ => return Err(ErrorKind::Limit.into()),
        })
    }

    /// Counts the permits left.
    async fn left(&self, limiter: &Limiter, stamp: Stamp) -> Result<i64, Error> {
        let mut now = None;
        loop {
            let row = self.row(limiter, now)?;
            let call = verbs::ask_left(&row, &limiter.name, stamp);
            match verbs::read_left(&row, &self.reply(&call).await?)? {
                (_, Some(left)) => return Ok(left),
                _ if now.is_some() => return Err(wire::unreadable()),
                (time, None) => now = Some(time / 1000),
            }
        }
    }

    /// Releases permits, the last ones. Returns how many: fewer if fewer are used.
    async fn release(&self, limiter: &Limiter, stamp: Stamp, permits: u32) -> Result<i64, Error> {
        let name = &limiter.name;
        let call = match limiter.of.counting.algorithm {
            Algorithm::Gcra => gcra::release(name, stamp, permits),
            _ => match self.command("GET", &[packed::key(name)]).await? {
                Value::Nil => return Ok(0),
                Value::BulkString(bytes) => {
                    let state = calendar::State::of(&bytes).ok_or_else(packed::foreign)?;
                    calendar::release(name, stamp, &state, permits)
                }
                _ => return Err(wire::unreadable()),
            },
        };
        packed::freed(&self.reply(&call).await?)
    }

    /// Returns the time by which bans count and that at which the ban of a caller ends, in ms.
    async fn ban(&self, limiter: &Limiter, stamp: Stamp) -> Result<[i64; 2], Error> {
        let call = verbs::ask_ban(&limiter.name, stamp);
        verbs::read_ban(&self.reply(&call).await?)
    }

    async fn reply(&self, call: &ScriptCall) -> Result<Value, Error> {
        call.send(&self.connection).await.map_err(wire::failure)
    }

    /// Returns that of a call for limiters such as this.
    fn stamp(&self, id: PermitId, limiter: &Limiter) -> Stamp {
        let now = self.own_now(limiter.of.counting.algorithm);
        Stamp { id, now }
    }

    /// Returns the time of the caller's clock, if limiters are counted by that.
    pub(super) fn own_now(&self, algorithm: Algorithm) -> Option<Millis> {
        let clock = self.clock.as_deref();
        clock.filter(|_| !algorithm.waits_by_server()).map(millis)
    }

    /// Returns the row of a limiter: of one by the calendar, by a time of the server or else the
    /// caller's clock.
    fn row(&self, limiter: &Limiter, now: Option<i64>) -> Result<Row, Error> {
        let (limit, counting) = (limiter.of.limit, limiter.of.counting);
        let Some(limit) = limit.given() else {
            return Err(ErrorKind::Limit.into());
        };
        let stored = limit.stored();
        let Some(calendar) = counting.calendar else {
            let pace = Pace::of(stored.rate, stored.interval);
            let pace = pace.ok_or(Error::new(ErrorKind::Limit))?;
            return Ok(Row::Gcra(gcra::Row(pace)));
        };
        let now = now.unwrap_or_else(|| {
            let now = millis(self.clock.as_deref().unwrap_or(&SystemClock));
            i64::try_from(now).unwrap_or(i64::MAX)
        });
        Ok(Row::Calendar(calendar::Row {
            rate: stored.rate,
            windows: calendar.windows(now),
        }))
    }
}
