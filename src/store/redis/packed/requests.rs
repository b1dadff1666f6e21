//! The requests of callers for permits of the same limiters: one call, and its reply.
//!
//! The callers of one limiter that ask for the same are one request. Those of limits with a ban are
//! a request each, as a refusal may ban those behind it.

use std::mem;

use redis::Value;

use super::{
    DECIDE, FETCHES, Group, HAS_BAN, Numbers, SHADOW, Stamp, Stands, WAITS,
    answers::{CallerReply, RunAnswers},
    ban,
    call::Call,
    gcra::{self, GcraRow},
    row::Row,
};
use crate::{
    algorithm::answer::{Answer, Verdict},
    store::{
        MOST_CALLERS,
        guard::deny_cache::bans::{BanCall, BanState, Carried},
        redis::{
            reply,
            script::{Script, ScriptCall},
        },
    },
    values::{
        List,
        charge::{Charge, Taken},
        demand::Demand,
        error::Error,
    },
};

/// How many grants a state knows: each of callers who asked together for the same.
pub(crate) const KNOWN: usize = 4;

/// Returns the scripts that a limiter in this format can need.
pub(crate) fn scripts() -> [&'static Script; 2] {
    [&DECIDE, &gcra::LONE]
}

/// The reply to callers of the same limiters.
pub(crate) struct RunReply {
    /// The time by which it counted, in us
    pub(crate) now: i64,
    /// Of the first callers, one for each limiter; `None` if no window holds that time.
    pub(crate) answers: Option<List<Answer>>,
    /// The state of the ban of each limiter.
    pub(crate) found: List<BanState>,
}

impl RunReply {
    fn of_no_window(now: i64) -> Self {
        let (answers, found) = (None, List::new());
        Self {
            now,
            answers,
            found,
        }
    }
}

/// What a call asks for callers of the same limiters. Asked `again`, after a lost connection, a log
/// finds what each caller took by its record; other limiters find it among their last four grants.
pub(crate) struct Asked {
    pub(crate) stamp: Stamp,
    /// One for each limiter
    pub(crate) rows: List<Row>,
    /// `None` for limiters without a ban.
    pub(crate) bans: Option<BanCall>,
    pub(crate) again: bool,
}

/// Returns the first callers that one call decides for. One that waits must not pass another, so
/// those that wait ask for the same.
pub(crate) fn together(run: &[Demand]) -> &[Demand] {
    // What they fetch ahead goes with them.
    let fetches = run.get(MOST_CALLERS).is_some_and(|it| it.first().lead > 0);
    let run = run
        .get(..MOST_CALLERS + usize::from(fetches))
        .unwrap_or(run);
    let waits = |demand: &Demand| demand.max_wait.is_some();
    if run.first().is_some_and(waits) {
        return of_same(run).next().unwrap_or(run);
    }
    run.split(waits).next().unwrap_or(run)
}

/// Returns whether these may ask again after a call that may have been carried out: each of them is
/// found then, by a record of its own, or if no others have taken meanwhile. Of a list without
/// records, each limiter would have to say so for itself.
pub(crate) fn may_ask_again(rows: &[Row], run: &[Demand]) -> bool {
    let is_recorded = |demand: &Demand| {
        let mut each = demand.charges().zip(rows);
        each.any(|(charge, row)| row.has_records() && !charge.shadow)
    };
    let has_few = groups(run).count() <= KNOWN;
    let mut each = run.iter();
    each.all(|demand| is_recorded(demand) || has_few && !demand.is_list())
}

/// Returns callers, those together that ask for the same of one limiter.
fn of_same(run: &[Demand]) -> impl Iterator<Item = &[Demand]> {
    let asked = |demand: &Demand| {
        let Charge { permits, lead, .. } = *demand.first();
        (permits, lead, demand.max_wait.is_some())
    };
    run.chunk_by(move |a, b| asked(a) == asked(b) && !a.is_list())
}

/// Returns the requests of callers that ask for the first time. Each has its own if it may be
/// banned.
fn groups(run: &[Demand]) -> impl Iterator<Item = &[Demand]> {
    let is_apart = run.first().is_some_and(Demand::has_ban);
    of_same(run).flat_map(move |same| same.chunks(if is_apart { 1 } else { same.len() }))
}

/// Returns callers, and behind them what they fetch ahead.
fn with_ahead(run: &[Demand]) -> (&[Demand], Option<&Demand>) {
    match run.split_last() {
        Some((ahead, callers)) if ahead.first().lead > 0 => (callers, Some(ahead)),
        _ => (run, None),
    }
}

/// Returns the flags of a caller's request.
fn flags(demand: &Demand) -> u8 {
    u8::from(demand.max_wait.is_some()) * WAITS
}

impl Asked {
    /// Makes the call of those [`together`].
    pub(crate) fn command(&self, run: &[Demand]) -> ScriptCall {
        let mut call = Call::default();
        self.add_to(&mut call, run);
        call.command()
    }

    /// Adds the same to a call of several.
    pub(crate) fn add_to<'a>(&self, call: &mut Call<'a>, run: &'a [Demand]) {
        call.begin(self.stamp.now);
        let of_first = || run.first().into_iter().flat_map(Demand::charges);
        for (charge, row) in of_first().zip(&self.rows) {
            call.limiter(charge.name(), *row);
        }
        for charge in of_first() {
            if let Some(ban) = charge.compiled().ban {
                call.ban(&charge.limiter, ban);
            }
        }
        let (callers, ahead) = with_ahead(run);
        // Refusals that this process has not reported yet are reported once.
        let bans = self.bans.as_ref();
        let mut carried = bans.map_or(&[][..], |bans| &*bans.carried);
        let has_records = self.rows.iter().any(Row::has_records);
        for group in groups(callers) {
            let is_last = group.as_ptr_range().end == callers.as_ptr_range().end;
            let ahead = ahead.filter(|_| is_last && !self.again);
            if !self.again {
                let ids = group.iter().map(|it| it.first().id);
                call.request(ids, self.rows.len(), flags(&group[0]));
                self.charges(call, &group[0], mem::take(&mut carried), ahead);
                continue;
            }
            for (index, caller) in group.iter().enumerate() {
                // Of these, each is known by its own id, or by that of the first. If that has left
                // meanwhile, the others are not found, and take once more.
                let (id, index) = if has_records {
                    (caller.first().id, 0)
                } else {
                    (group[0].first().id, index)
                };
                call.again(id, index, self.rows.len(), flags(caller));
                self.charges(call, caller, mem::take(&mut carried), None);
            }
        }
    }

    /// Adds the charges of a request.
    fn charges(
        &self,
        call: &mut Call<'_>,
        demand: &Demand,
        carried: &[Carried],
        ahead: Option<&Demand>,
    ) {
        let mut next_ban = self.rows.len();
        for (index, charge) in demand.charges().enumerate() {
            let has_ban = charge.compiled().ban.is_some();
            let fetches = ahead.is_some();
            let flags = u8::from(charge.shadow) * SHADOW
                + u8::from(has_ban) * HAS_BAN
                + u8::from(fetches) * FETCHES;
            call.charge(index, flags, charge.permits);
            if has_ban {
                let carried = carried.get(index).copied().unwrap_or_default();
                call.banning(next_ban, carried);
                next_ban += 1;
            }
            if let Some(ahead) = ahead {
                let Charge {
                    permits, lead, id, ..
                } = *ahead.first();
                call.ahead(permits, lead, id);
            }
        }
    }

    /// Makes the call for the usual case of a lone caller; `None` if there is no such call.
    pub(crate) fn lone(&self, run: &[Demand]) -> Option<ScriptCall> {
        let ([row], [lone], false) = (&*self.rows, run, self.again) else {
            return None;
        };
        let (stamp, charge) = (self.stamp, lone.first());
        match row {
            _ if charge.compiled().ban.is_some() => None,
            Row::Log(row) => Some(row.lone(stamp, charge)),
            Row::Gcra(row) => row.lone(stamp, charge),
            // Their grants need the time, which the reply of a lone call does not have.
            Row::Window(_) | Row::Calendar(_) => None,
        }
    }

    /// Reads the reply to it; `None` if [`command`](Self::command) must decide.
    pub(crate) fn read_lone(
        &self,
        reply: &Value,
        run: &[Demand],
    ) -> Result<Option<RunReply>, Error> {
        let ([row], [first, ..]) = (&*self.rows, run) else {
            return Err(reply::unreadable());
        };
        let (now, group) = match row {
            Row::Gcra(_) => match GcraRow::read_lone(reply)? {
                None => return Ok(None),
                Some(read) => read,
            },
            row => {
                let now = self.stamp.now.and_then(|now| i64::try_from(now).ok());
                let mut numbers = Numbers::alone(reply)?;
                let group = row.group(&mut numbers, 1, None)?;
                numbers.end()?;
                let group = group.ok_or_else(reply::unreadable)?;
                (now.unwrap_or(0).saturating_mul(1000), group)
            }
        };
        if run.len() == 1 {
            return answered_alone(row, first, now, group).map(Some);
        }
        let mut counted = Said::new(&self.rows);
        counted.add(together(run), &mut [group]);
        Ok(Some(self.answered(run, now, counted)))
    }

    /// Reads the reply to [`command`](Self::command).
    pub(crate) fn read(&self, reply: &Value, run: &[Demand]) -> Result<RunReply, Error> {
        self.read_part(Numbers::with_time(reply)?, run)
    }

    /// Reads the same as a part of the reply to several calls. Where one that waits is refused, so
    /// are those behind it that wait.
    pub(crate) fn read_part(
        &self,
        (mut numbers, now): (Numbers<'_>, i64),
        run: &[Demand],
    ) -> Result<RunReply, Error> {
        if let ([row], [lone], false) = (&*self.rows, run, self.again)
            && lone.first().compiled().ban.is_none()
            && lone.first().lead == 0
        {
            numbers.begin()?;
            let Some(group) = row.group(&mut numbers, 1, None)? else {
                return Ok(RunReply::of_no_window(now));
            };
            numbers.end()?;
            return answered_alone(row, lone, now, group);
        }
        let mut counted = Said::new(&self.rows);
        let (callers, ahead) = with_ahead(together(run));
        for group in groups(callers) {
            let size = if self.again { 1 } else { group.len() };
            for group in group.chunks(size) {
                let is_last = group.as_ptr_range().end == callers.as_ptr_range().end;
                let ahead = ahead.filter(|_| is_last && !self.again);
                if !counted.read(&self.rows, &mut numbers, group, ahead)? {
                    return Ok(RunReply::of_no_window(now));
                }
            }
        }
        numbers.end()?;
        Ok(self.answered(run, now, counted))
    }

    fn answered(&self, run: &[Demand], now: i64, counted: Said) -> RunReply {
        let line = RunAnswers::new(&self.rows, now, &counted.standings, &counted.callers);
        let mut answers = line.answer_all(run, &counted.callers);
        if self.again {
            // Others may have taken since it was asked first, and what they took lies behind: of
            // these grants nothing is known to lie ahead.
            for answer in &mut answers {
                if let Some(Taken::Tat(tat)) = &mut answer.taken {
                    tat.at = now;
                }
            }
        }
        RunReply {
            now,
            answers: Some(answers),
            found: counted.found,
        }
    }
}

/// Returns what is answered to a caller alone, of one limiter without a ban.
fn answered_alone(row: &Row, lone: &Demand, now: i64, said: Group) -> Result<RunReply, Error> {
    let permits = i64::from(lone.first().permits);
    // Only a ban leaves it out, and here is none.
    let (standing, each) = said.standing.ok_or_else(reply::unreadable)?;
    let answer = Answer {
        each,
        ..row.answer(now, standing)
    };
    let answer = if said.granted > 0 {
        answer.for_caller(Verdict::Granted, 0)
    } else if permits > row.most() {
        answer.for_caller(Verdict::AboveRate, 0)
    } else if answer.remaining < permits {
        let wait = row.wait(&answer, standing, permits);
        answer.for_caller(Verdict::Refused, wait.max(said.wait))
    } else {
        return Err(reply::unreadable());
    };
    Ok(RunReply {
        now,
        answers: Some(List::from([answer])),
        found: List::from([BanState::default()]),
    })
}

/// What the reply has said, up to some caller.
struct Said {
    /// Of each limiter: how it stands, with each of several limits, if it has counted for any.
    standings: List<Option<Stands>>,
    found: List<BanState>,
    callers: List<CallerReply>,
}

impl Said {
    fn new(rows: &[Row]) -> Self {
        Self {
            standings: rows.iter().map(|_| None).collect(),
            found: rows.iter().map(|_| BanState::default()).collect(),
            callers: List::new(),
        }
    }

    /// Reads what is said of the next callers, which ask for the same. Returns false if no window
    /// holds the time.
    fn read(
        &mut self,
        rows: &[Row],
        numbers: &mut Numbers<'_>,
        run: &[Demand],
        ahead: Option<&Demand>,
    ) -> Result<bool, Error> {
        numbers.begin()?;
        let mut groups: List<Group> = List::new();
        for (row, standing) in rows.iter().zip(&self.standings) {
            match row.group(numbers, run.len(), standing.as_ref().map(|(said, _)| *said))? {
                None => return Ok(false),
                Some(group) => groups.push(group),
            }
        }
        let has_fetched = ahead.map(|_| numbers.next()).transpose()?;
        for (charge, found) in run[0].charges().zip(&mut self.found) {
            if charge.compiled().ban.is_some() {
                *found = ban::read(numbers)?;
            }
        }
        self.add(run, &mut groups);
        if let Some(fetched @ 0..=1) = has_fetched {
            self.callers.push(CallerReply {
                is_granted: fetched == 1,
                has_room: List::from([fetched == 1]),
                ..CallerReply::default()
            });
        }
        Ok(true)
    }

    /// Adds callers, for each limiter a group.
    fn add(&mut self, run: &[Demand], groups: &mut [Group]) {
        let is_banned = groups.iter().any(|group| group.standing.is_none());
        for (group, standing) in groups.iter_mut().zip(&mut self.standings) {
            if let Some((said, mut each)) = group.standing.take() {
                if let (Some(each), Some((_, Some(before)))) = (&mut each, &*standing) {
                    // A refusal does not say it.
                    for (of, before) in each.iter_mut().zip(before.iter()) {
                        of.next = if of.next > 0 { of.next } else { before.next };
                    }
                }
                *standing = Some((said, each));
            }
        }
        self.callers.reserve(run.len());
        for (number, demand) in run.iter().enumerate() {
            let has_room = groups.iter().map(|group| number < group.granted);
            let has_room: List<_> = has_room.collect();
            let mut enforced = demand.charges().zip(&has_room);
            let is_granted = enforced.all(|(charge, has_room)| charge.shadow || *has_room);
            self.callers.push(CallerReply {
                is_granted: is_granted && !is_banned,
                is_banned,
                has_room,
                waits: groups.iter().map(|group| group.wait).collect(),
                found: self.found.clone(),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::packed::calendar::CalendarRow;
    use crate::values::{
        charge::{Charge, PermitId, Taken},
        compiled_limit::CompiledLimit,
        error::ErrorKind,
        limit::{Limit, LimitSource, calendar::Window},
        name::Name,
    };

    const NOW: i64 = 5000;
    const ROW: Row = Row::Calendar(CalendarRow {
        rate: 100,
        windows: [window(1, 0, 9000), window(2, 9000, 30_000)],
    });
    const STAMP: Stamp = Stamp {
        id: PermitId::NONE,
        now: None,
    };

    const fn window(label: i64, start: i64, end: i64) -> Window {
        Window { label, start, end }
    }

    /// Callers of so many permits each.
    fn run<const N: usize>(permits: [u32; N]) -> [Demand; N] {
        permits.map(|permits| {
            let limit = LimitSource::Code(Limit::per_hour(100));
            let name = Name::exact("quota").unwrap();
            let of = CompiledLimit::unnamed("rule");
            Demand::caller([Charge::named(name, limit, &of, permits)], false)
        })
    }

    fn read(reply: &Value, run: &[Demand]) -> Result<RunReply, Error> {
        let asked = Asked {
            stamp: STAMP,
            rows: List::from([ROW]),
            bans: None,
            again: false,
        };
        asked.read(reply, run)
    }

    fn reply<const N: usize>(numbers: [i64; N]) -> Value {
        let time = Value::Int(NOW * 1000);
        let numbers = numbers.map(Value::Int);
        Value::Array([time].into_iter().chain(numbers).collect())
    }

    #[test]
    fn replies_that_are_not_ours_are_errors() {
        let unit = 30_001;
        for (reply, callers) in [
            (reply([]), 1),
            (reply([7 * unit]), 1),
            (reply([7 * unit + 4000, 1]), 1),
            (reply([-4000]), 1),
            (reply([-4000, i64::MIN]), 1),
            (reply([3, 7 * unit + 4000]), 2),
            (reply([-1, 7 * unit + 4000]), 2),
            (reply([0, 5, 3]), 2),
            (Value::Nil, 1),
            (Value::Array(vec![]), 1),
            (Value::Array(vec![Value::Nil, Value::Int(-4000)]), 1),
            (Value::Array(vec![Value::Int(-1), Value::Int(4000)]), 1),
        ] {
            let run = run([1, 1]);
            let read = read(&reply, &run[..callers]);
            let kind = read.err().map(|error| error.kind());
            assert_eq!(kind, Some(ErrorKind::Unavailable), "{reply:?}");
        }
        let foreign = Value::Array(vec![Value::Int(NOW * 1000), Value::Nil]);
        let read = read(&foreign, &run([1]));
        assert_eq!(read.err().unwrap().kind(), ErrorKind::ForeignState);
    }

    /// Not of one that lies between those of the call.
    #[test]
    fn only_a_label_that_the_call_knows_is_settled() {
        let unit = 30_001;
        for (ends, label) in [(4000, Some(1)), (25_000, Some(2)), (9000, None)] {
            let read = read(&reply([7 * unit + ends]), &run([1]));
            let answers = read.unwrap().answers.unwrap();
            let end = NOW + ends;
            let taken = label.map(|label| Taken::Date { label, end });
            assert_eq!((answers[0].taken, answers[0].reset), (taken, ends));
        }
    }

    /// A call is for 64 callers at most, and a state knows its last four grants.
    #[test]
    fn so_many_callers_ask_and_so_many_ask_again() {
        assert_eq!(together(&run([1; 300])).len(), 64);
        assert!(may_ask_again(&[ROW], &run([1, 2, 2, 3, 4])));
        assert!(!may_ask_again(&[ROW], &run([1, 2, 1, 2, 1])));
    }
}
