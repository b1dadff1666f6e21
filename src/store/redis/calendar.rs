//! Decides by the calendar, whose limiters are in [our own format](super::packed).

use std::iter;

use redis::Value;

use super::{
    batch::Failure,
    packed::{
        self,
        calendar::{KNOWN, Row, State, ask, freed, may_ask_again, read, release, together},
    },
    server::Server,
    wire,
};
use crate::{
    charge::Charge,
    clock::{SystemClock, millis},
    compiled_limit::Limiter,
    decision::Decision,
    demand::Demand,
    error::{Error, ErrorKind},
    list::List,
    store::random_id,
};

impl Server {
    /// Decides for the first of these callers: all of them, unless they wait for permits and ask
    /// for different numbers, as one that waits must not pass another.
    pub(super) async fn call_calendar(&self, run: &[Demand]) -> Result<List<Decision>, Failure> {
        let Some(first) = run.first() else {
            return Ok(List::new());
        };
        let (mut now, mut again) = (None, false);
        loop {
            let rows = first.charges().map(|charge| self.row(&charge.limiter, now));
            let rows: List<Row> = rows.collect::<Result<_, _>>()?;
            let asked = together(run);
            let names = first.charges.iter().map(Charge::name);
            let mut call = ask(&rows, asked, again).call(names, asked.len());
            // Each who asks again and takes is a grant of its own.
            call.once = !again || asked.len() > KNOWN;
            let reply = match self.batches.send(call, first, asked, again).await {
                // It may have been carried out, which its limiter knows by the ids.
                Err(failure) if failure.connection_lost && !again && may_ask_again(asked) => {
                    again = true;
                    continue;
                }
                reply => reply?,
            };
            let reply = read(&rows, &reply, run, again)?;
            match reply.answers {
                Some(answers) => return Ok(self.decisions(run, &answers)),
                // At most once: the windows fit the server's time, unless its clock jumps.
                None if now.is_some() => return Err(wire::unreadable().into()),
                None => now = Some(reply.now),
            }
        }
    }

    /// Counts the permits left in the window that counts.
    pub(super) async fn left_by_calendar(&self, limiter: &Limiter) -> Result<i64, Error> {
        let mut now = None;
        loop {
            let row = self.row(limiter, now)?;
            let call = row
                .ask_left(random_id()?)
                .call(iter::once(&limiter.name), 0);
            let reply = call.send(&self.connection).await.map_err(wire::failure)?;
            match row.read_left(&reply)? {
                (_, Some(left)) => return Ok(left),
                _ if now.is_some() => return Err(wire::unreadable()),
                (time, None) => now = Some(time),
            }
        }
    }

    /// Releases permits of the window that counts. Returns how many: fewer if fewer are used.
    pub(super) async fn release_by_calendar(
        &self,
        limiter: &Limiter,
        permits: u32,
    ) -> Result<i64, Error> {
        let state = match self.command("GET", &[packed::key(&limiter.name)]).await? {
            Value::Nil => return Ok(0),
            Value::BulkString(bytes) => State::of(&bytes).ok_or_else(packed::foreign)?,
            _ => return Err(wire::unreadable()),
        };
        let call = release(&limiter.name, random_id()?, state.label, permits);
        let reply = call.send(&self.connection).await.map_err(wire::failure)?;
        freed(&reply)
    }

    /// Returns the row of a limiter, by a time of the server or else the caller's clock.
    fn row(&self, limiter: &Limiter, now: Option<i64>) -> Result<Row, Error> {
        let (limit, counting) = (limiter.of.limit, limiter.of.counting);
        let (Some(limit), Some(calendar)) = (limit.given(), counting.calendar) else {
            return Err(ErrorKind::Limit.into());
        };
        let now = now.unwrap_or_else(|| {
            let now = millis(self.clock.as_deref().unwrap_or(&SystemClock));
            i64::try_from(now).unwrap_or(i64::MAX)
        });
        Ok(Row {
            rate: limit.stored().rate,
            windows: calendar.windows(now),
        })
    }
}
