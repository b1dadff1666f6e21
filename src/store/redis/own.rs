//! Decides and carries out verbs for limiters in [our own format](super::packed).

use std::sync::atomic::Ordering::Relaxed;

use redis::Value;

use super::{
    classify, keys,
    node::Failure,
    packed::{
        self, Numbers, Stamp,
        calendar::{self, CalendarRow},
        call::Call,
        gcra::GcraRow,
        log::LogRow,
        requests::{Asked, KNOWN, RunReply, may_ask_again, together},
        row::Row,
        verbs,
        window::WindowRow,
    },
    reply,
    script::ScriptCall,
    server::Server,
};
use crate::{
    algorithm::gcra::Pace,
    store::{Answered, Op, OpResult, TimeToLive, guard::policy, random_id},
    values::{
        List,
        charge::PermitId,
        clock::{SystemClock, millis_of, sent_millis},
        compiled_limit::Limiter,
        decision::Decision,
        demand::Demand,
        error::{Error, ErrorKind},
        limit::Algorithm,
    },
};

impl Server {
    /// Decides for the first of these callers: at most `MOST_CALLERS`, and of those that wait for
    /// permits only the ones that ask for as many as the first, as none of them may pass another.
    /// They may have asked before, and ask `again`.
    pub(super) async fn call_own(
        &self,
        first: &Demand,
        run: &[Demand],
        mut again: bool,
    ) -> Result<List<Decision>, Failure> {
        let callers = together(run);
        let mut asked = self.asked(first)?;
        // A connection that repeats commands may send each several times, unless another beside it
        // does not.
        let source = &self.connection.source;
        let repeats = source.repeats && source.once.is_none();
        asked.again = again || repeats && asked.rows.iter().all(Row::has_records);
        let (mut tries_lone, mut is_second, mut has_time) = (true, false, false);
        loop {
            let lone = tries_lone.then(|| asked.lone(callers)).flatten();
            let is_lone = lone.is_some();
            let mut call = lone.unwrap_or_else(|| asked.command(callers));
            // Asked again, each caller is a grant of its own, and a state knows only so many.
            call.once = !asked.again || callers.len() > KNOWN;
            let sent = call.decide(&self.connection, &[callers]).await;
            let reply = match sent.map_err(|failure| failure.after(asked.again)) {
                Err(failure) if failure.connection_lost && !is_second => {
                    is_second = true;
                    // It may have been carried out, which its limiters know by the ids.
                    again |= failure.unacknowledged;
                    if again && !may_ask_again(&asked.rows, callers) {
                        return Err(failure);
                    }
                    asked.again |= again;
                    continue;
                }
                reply => reply,
            };
            let reply = reply.inspect_err(|it| self.put_back(first, &asked, !it.unacknowledged))?;
            let read = if is_lone {
                asked.read_lone(&reply, run)
            } else {
                asked.read(&reply, run).map(Some)
            };
            let failed = |error| Failure::from(error).after(asked.again);
            // Asked again, they may have been reported.
            let is_unjudged = |error: &Error| error.kind() == ErrorKind::ForeignState && !again;
            let read = read.inspect_err(|it| self.put_back(first, &asked, is_unjudged(it)));
            match read.map_err(failed)? {
                None => tries_lone = false,
                Some(reply) if reply.answers.is_none() && !has_time => {
                    // At most once: the windows fit the server's time, unless its clock jumps.
                    has_time = true;
                    asked.rows = self.rows(first, Some(reply.now / 1000))?;
                }
                Some(reply) => {
                    if again {
                        self.give_up_ahead(callers);
                    }
                    let answers = reply.answers.ok_or_else(|| failed(reply::unreadable()))?;
                    let bans = asked.bans.as_ref().map(|bans| (bans, &*reply.found));
                    return Ok(self.decided(run, &answers, bans));
                }
            }
        }
    }

    /// Returns what a call asks for the first time.
    fn asked(&self, first: &Demand) -> Result<Asked, Error> {
        let rows = self.rows(first, None)?;
        Ok(Asked {
            stamp: self.stamp(first.first().id, &first.first().limiter),
            rows,
            bans: first.has_ban().then(|| self.bans.ask(first)),
            again: false,
        })
    }

    /// Takes back the refusals that a call was to report, if it is `unjudged`: it was not sent, or
    /// has found a state that is foreign, and so has judged none of its callers.
    fn put_back(&self, first: &Demand, asked: &Asked, unjudged: bool) {
        if let Some(bans) = asked.bans.as_ref().filter(|_| unjudged) {
            self.bans.put_back(first, bans);
        }
    }

    /// Decides for several runs in one command.
    pub(super) async fn call_joint(&self, runs: &[&[Demand]]) -> List<Answered> {
        let mut joined = Call::default();
        let joins: Vec<_> = runs.iter().map(|run| self.join(run, &mut joined)).collect();
        let outcome = if joins.iter().any(Result::is_ok) {
            joined.command().decide(&self.connection, runs).await
        } else {
            Ok(Value::Nil)
        };
        let is_unsent = outcome
            .as_ref()
            .is_err_and(|failure| !failure.unacknowledged);
        let mut replies = outcome.as_ref().map(|reply| joined.replies(reply));
        let each = runs.iter().zip(joins).map(|(run, join)| {
            let answered = match (&join, &mut replies) {
                (Err(error), _) => failed_alone(run, error.clone()),
                (Ok(asked), Ok(replies)) => self.read_joint(run, asked, replies.next().flatten()),
                (Ok(_), Err(failure)) => self.not_joined(run, failure),
            };
            let is_unjudged = match &answered {
                Answered::Apart { was_sent } => !was_sent,
                Answered::Decided(Err(error)) => error.kind() == ErrorKind::ForeignState,
                Answered::Decided(Ok(_)) => false,
            };
            if let (Ok(asked), Some(first)) = (&join, run.first()) {
                self.put_back(first, asked, is_unsent || is_unjudged);
            }
            answered
        });
        each.collect()
    }

    /// Adds the call of a run to a command.
    fn join<'a>(&self, run: &'a [Demand], joined: &mut Call<'a>) -> Result<Asked, Error> {
        let first = run.first().ok_or(Error::new(ErrorKind::Permits))?;
        first.check()?;
        let asked = self.asked(first)?;
        asked.add_to(joined, run);
        Ok(asked)
    }

    /// Reads what the reply to a command says of one of its runs.
    fn read_joint(
        &self,
        run: &[Demand],
        asked: &Asked,
        reply: Option<(Numbers<'_>, i64)>,
    ) -> Answered {
        let read = reply.ok_or_else(reply::unreadable);
        let read = read.and_then(|reply| asked.read_part(reply, run));
        match read {
            Ok(RunReply {
                answers: Some(answers),
                found,
                ..
            }) => {
                let bans = asked.bans.as_ref().map(|bans| (bans, &*found));
                Answered::Decided(Ok(self.decided(run, &answers, bans)))
            }
            // No window holds the time of the server.
            Ok(_) => Answered::Apart { was_sent: false },
            Err(error) => failed_alone(run, error),
        }
    }

    /// Returns the answer to one of several runs whose command has failed: the next command is for
    /// it alone, unless that would fail, too.
    fn not_joined(&self, run: &[Demand], failure: &Failure) -> Answered {
        // One forbidden key, or keys of different hash slots, makes the server refuse all.
        if failure.error.kind() == ErrorKind::OtherSlot {
            self.no_cross_slot.store(true, Relaxed);
        }
        let may_ask = || {
            let rows = run.first().map(|first| self.rows(first, None));
            rows.is_some_and(|rows| rows.is_ok_and(|rows| may_ask_again(&rows, run)))
        };
        if !failure.fails_for_all && (!failure.unacknowledged || may_ask()) {
            return Answered::Apart {
                was_sent: failure.unacknowledged,
            };
        }
        if failure.unacknowledged {
            self.give_back_all(run);
        }
        Answered::Decided(Err(failure.error.clone()))
    }

    /// Returns the rows of a caller's limiters: see [`row`](Self::row).
    fn rows(&self, demand: &Demand, now: Option<i64>) -> Result<List<Row>, Error> {
        let charges = demand.charges();
        charges
            .map(|charge| self.row(&charge.limiter, now))
            .collect()
    }

    /// Gives back what callers who asked again may have fetched ahead the first time: a
    /// call that asks again fetches nothing.
    fn give_up_ahead(&self, run: &[Demand]) {
        let ahead = run.last().filter(|demand| demand.first().lead > 0);
        for charge in ahead.into_iter().flat_map(Demand::charges) {
            self.queue_settlement(&charge.to_send(), 0, false);
        }
    }

    /// Carries out a verb.
    pub(super) async fn manage_own(&self, limiter: &Limiter, op: &Op) -> Result<OpResult, Error> {
        let (name, stamp) = (&limiter.name, self.stamp(random_id()?, limiter));
        Ok(match op {
            Op::Available => OpResult::Number(self.left(limiter, stamp).await?),
            Op::Release(permits) => OpResult::Number(self.release(limiter, stamp, *permits).await?),
            Op::Delete => {
                // Another version of the service may count in the other of the first two.
                let keys = [
                    packed::key(name),
                    calendar::key(name),
                    keys::ban(name, true),
                ];
                let deleted = reply::count(&self.command("DEL", &keys).await?)?;
                OpResult::Changed(deleted > 0)
            }
            Op::TimeToLive => {
                let mut keys = [packed::key(name), calendar::key(name)];
                if limiter.compiled.counting.algorithm == Algorithm::Calendar {
                    keys.reverse();
                }
                // By a bare name, or while another version counts, the other may be the state.
                for key in keys {
                    let left = reply::time_to_live(&self.command("PTTL", &[key]).await?)?;
                    if left != TimeToLive::Missing {
                        return Ok(OpResult::TimeToLive(left));
                    }
                }
                OpResult::TimeToLive(TimeToLive::Missing)
            }
            // The others need a stored limit, and here it is in the code.
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
                _ if now.is_some() => return Err(reply::unreadable()),
                (time, None) => now = Some(time / 1000),
            }
        }
    }

    /// Releases permits of any callers. Returns how many: fewer if fewer are used.
    async fn release(&self, limiter: &Limiter, stamp: Stamp, permits: u32) -> Result<i64, Error> {
        let algorithm = limiter.compiled.counting.algorithm;
        let call = verbs::release(algorithm, &limiter.name, stamp, permits);
        packed::freed(&self.reply(&call).await?)
    }

    pub(super) async fn reply(&self, call: &ScriptCall) -> Result<Value, Error> {
        call.send(&self.connection).await.map_err(classify::failure)
    }

    /// Returns the stamp of a call for limiters such as this.
    pub(super) fn stamp(&self, id: PermitId, limiter: &Limiter) -> Stamp {
        let facts = limiter.compiled.counting.algorithm.facts();
        let clock = self.clock.as_deref().filter(|_| !facts.waits_by_server);
        let now = clock.map(sent_millis);
        Stamp { id, now }
    }

    /// Returns the row of a limiter: of one by the calendar, by a time of the server or else the
    /// caller's clock.
    fn row(&self, limiter: &Limiter, now: Option<i64>) -> Result<Row, Error> {
        let (limit, counting) = (limiter.compiled.limit, limiter.compiled.counting);
        let Some(limit) = limit.given() else {
            return Err(ErrorKind::Limit.into());
        };
        let stored = limit.stored();
        let (rate, interval) = (stored.rate, stored.interval);
        match counting.algorithm {
            Algorithm::SlidingLog => return Ok(Row::Log(LogRow::of(limit))),
            Algorithm::FixedWindow => return Ok(Row::Window(WindowRow { rate, interval })),
            Algorithm::Gcra => {
                let pace = Pace::of(rate, interval);
                let pace = pace.ok_or(Error::new(ErrorKind::Limit))?;
                return Ok(Row::Gcra(GcraRow(pace)));
            }
            Algorithm::Calendar => {}
        }
        let calendar = counting.calendar.ok_or(Error::new(ErrorKind::Limit))?;
        let now =
            now.unwrap_or_else(|| millis_of(self.clock.as_deref().unwrap_or(&SystemClock).now()));
        Ok(Row::Calendar(CalendarRow {
            rate,
            windows: calendar.windows(now),
        }))
    }
}

/// Returns the answer to one of several runs that took nothing, by an error that concerns it alone:
/// where a shadow rule may be why, it is asked alone, which the enforced rules do not suffer from.
fn failed_alone(run: &[Demand], error: Error) -> Answered {
    let is_of_shadow = |first| policy::is_of_shadow(first, &error);
    if run.first().is_some_and(is_of_shadow) {
        Answered::Apart { was_sent: false }
    } else {
        Answered::Decided(Err(error))
    }
}
