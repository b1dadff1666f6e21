//! Decides and carries out verbs for limiters in [our own format](super::packed).

use redis::Value;

use super::{
    batch::Failure,
    packed::{
        self, Stamp, calendar, gcra, log,
        requests::{Asked, Reply, has_ban, may_ask_again, together},
        row::Row,
        verbs, window,
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
    store::{Op, OpResult, guard::deny_cache::bans::BanCall, random_id},
};

impl Server {
    /// Decides for the first of these callers: all of them, unless they wait for permits and ask
    /// for different numbers, as one that waits must not pass another, or are more than 64. They
    /// may have asked before, and ask `again`.
    pub(super) async fn call_own(
        &self,
        run: &[Demand],
        mut again: bool,
    ) -> Result<List<Decision>, Failure> {
        let Some(first) = run.first() else {
            return Ok(List::new());
        };
        let bans = has_ban(first).then(|| self.bans.ask(first));
        let carried = bans.as_ref().map_or(&[][..], |bans| &*bans.carried);
        let asked = together(run);
        let stamp = self.stamp(first.first().id, &first.first().limiter);
        let (mut now, mut tries_lone, mut is_second) = (None, true, false);
        loop {
            let rows = first.charges().map(|charge| self.row(&charge.limiter, now));
            let rows: List<Row> = rows.collect::<Result<_, _>>()?;
            // Such a connection may send each command several times.
            let repeats = self.connection.source.repeats_all() && rows.iter().all(Row::has_records);
            let call = Asked {
                stamp,
                rows: &rows,
                carried,
                again: again || repeats,
            };
            let sent = self.batches.send_own(&call, asked, tries_lone).await;
            let read = match sent {
                Err(failure) if failure.connection_lost && !is_second => {
                    is_second = true;
                    // It may have been carried out, which its limiters know by the ids.
                    again |= failure.unacknowledged;
                    if again && !may_ask_again(&rows, asked) {
                        return Err(failure);
                    }
                    continue;
                }
                // It stood among others, whose call may have been carried out.
                Ok((Value::Nil, false)) if !call.again => {
                    again = true;
                    continue;
                }
                Ok((reply, true)) => call.read_lone(&reply, run),
                Ok((reply, false)) => call.read(&reply, run).map(Some),
                Err(failure) => return Err(failure),
            };
            match read.map_err(|error| Failure::read(error, call.again))? {
                None => tries_lone = false,
                Some(reply) if reply.answers.is_none() && now.is_none() => {
                    // At most once: the windows fit the server's time, unless its clock jumps.
                    now = Some(reply.now / 1000);
                }
                Some(reply) => {
                    if again {
                        self.give_up_ahead(asked);
                    }
                    let decided = self.decided(run, &reply, bans.as_ref());
                    return decided.ok_or_else(|| Failure::read(wire::unreadable(), call.again));
                }
            }
        }
    }

    /// Returns the decisions of a reply, and learns from it what it says of bans. `None` if it
    /// knows no window.
    fn decided(
        &self,
        run: &[Demand],
        reply: &Reply,
        bans: Option<&BanCall>,
    ) -> Option<List<Decision>> {
        let decisions = self.decisions(run, reply.answers.as_ref()?);
        if let (Some(bans), [first, ..], [decision, ..]) = (bans, run, &*decisions) {
            let charges = decision.charges();
            self.bans.learn(first, bans, &reply.found, charges);
        }
        Some(decisions)
    }

    /// Gives back what callers who asked again may have fetched ahead the first time: then they
    /// fetch nothing.
    fn give_up_ahead(&self, run: &[Demand]) {
        let ahead = run.last().filter(|demand| demand.first().lead > 0);
        for charge in ahead.into_iter().flat_map(Demand::charges) {
            self.queue_settlement(&charge.to_send(), 0, false);
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

    /// Releases permits of any callers. Returns how many: fewer if fewer are used.
    async fn release(&self, limiter: &Limiter, stamp: Stamp, permits: u32) -> Result<i64, Error> {
        let algorithm = limiter.of.counting.algorithm;
        let call = verbs::release(algorithm, &limiter.name, stamp, permits);
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
        let (rate, interval) = (stored.rate, stored.interval);
        match counting.algorithm {
            Algorithm::SlidingLog => return Ok(Row::Log(log::Row { rate, interval })),
            Algorithm::FixedWindow => return Ok(Row::Window(window::Row { rate, interval })),
            Algorithm::Gcra => {
                let pace = Pace::of(rate, interval);
                let pace = pace.ok_or(Error::new(ErrorKind::Limit))?;
                return Ok(Row::Gcra(gcra::Row(pace)));
            }
            Algorithm::Calendar => {}
        }
        let calendar = counting.calendar.ok_or(Error::new(ErrorKind::Limit))?;
        let now = now.unwrap_or_else(|| {
            let now = millis(self.clock.as_deref().unwrap_or(&SystemClock));
            i64::try_from(now).unwrap_or(i64::MAX)
        });
        Ok(Row::Calendar(calendar::Row {
            rate,
            windows: calendar.windows(now),
        }))
    }
}
