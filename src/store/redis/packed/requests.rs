//! The requests of callers for permits of the same limiters: one call, and its reply.
//!
//! The callers of one limiter that ask for the same are one request. Those of limits with a ban are
//! a request each, as a refusal may ban those behind it.

use redis::Value;

use super::{
    Argument, DECIDE, HAS_BAN, Numbers, SHADOW, Stamp, Standing, WAITS, ban, byte, gcra, key,
    line::{Caller, Line},
    row::{Group, Row},
};
use crate::{
    algorithm::answer::Answer,
    charge::Taken,
    demand::Demand,
    error::Error,
    list::List,
    store::{
        guard::deny_cache::bans::{Carried, Found},
        redis::wire::{
            self,
            script::{Script, ScriptCall},
        },
    },
};

/// How many grants a state knows: each of callers who asked together for the same.
pub(crate) const KNOWN: usize = 4;
/// The most callers of a call, which have one byte for their places.
const CALLERS: usize = 64;

/// Returns the scripts that a limiter in this format can need.
pub(crate) fn scripts() -> [&'static Script; 2] {
    [&DECIDE, &gcra::LONE]
}

/// The reply to callers of the same limiters.
pub(crate) struct Reply {
    /// The time by which it counted, in us
    pub(crate) now: i64,
    /// Of the first callers, one for each limiter; `None` if no window holds that time.
    pub(crate) answers: Option<List<Answer>>,
    /// The state of the ban of each limiter.
    pub(crate) found: List<Found>,
}

/// What a call carries for callers that ask once, or `again` after a lost connection: then the
/// limiters know what they took before, if no others have taken four times since.
#[derive(Clone, Copy)]
pub(crate) struct Asked<'a> {
    pub(crate) stamp: Stamp,
    /// One for each limiter
    pub(crate) rows: &'a [Row],
    /// What this process has not reported yet; of limiters without a ban nothing.
    pub(crate) carried: &'a [Carried],
    pub(crate) again: bool,
}

/// Returns the first callers that one call decides for. One that waits must not pass another, so
/// those that wait ask for the same.
pub(crate) fn together(run: &[Demand]) -> &[Demand] {
    let run = run.get(..CALLERS).unwrap_or(run);
    let waits = |demand: &Demand| demand.max_wait.is_some();
    if run.first().is_some_and(waits) {
        return of_same(run).next().unwrap_or(run);
    }
    run.split(waits).next().unwrap_or(run)
}

/// Returns whether these may ask again after a call that may have been carried out: each of them is
/// found then, if no others have taken meanwhile. Of a list, each limiter would have to say so for
/// itself.
pub(crate) fn may_ask_again(run: &[Demand]) -> bool {
    groups(run, false).count() <= KNOWN && run.iter().all(|demand| !demand.is_list())
}

/// Returns callers, those together that ask for the same of one limiter.
fn of_same(run: &[Demand]) -> impl Iterator<Item = &[Demand]> {
    let asked = |demand: &Demand| (demand.first().permits, demand.max_wait.is_some());
    run.chunk_by(move |a, b| asked(a) == asked(b) && !a.is_list())
}

/// Returns the requests of callers. Each has its own if they ask `again`, or may be banned.
fn groups(run: &[Demand], again: bool) -> impl Iterator<Item = &[Demand]> {
    let is_apart = again || run.first().is_some_and(has_ban);
    of_same(run).flat_map(move |same| same.chunks(if is_apart { 1 } else { same.len() }))
}

/// Returns whether a limit of a caller may ban it.
pub(crate) fn has_ban(demand: &Demand) -> bool {
    demand.charges().any(|charge| charge.of().ban.is_some())
}

impl Asked<'_> {
    /// Makes the call of those [`together`].
    pub(crate) fn call(&self, run: &[Demand]) -> ScriptCall {
        let (rows, stamp) = (self.rows, self.stamp);
        let of_first = || run.first().into_iter().flat_map(Demand::charges);
        let bans = || of_first().filter_map(|charge| Some((charge, charge.of().ban?)));
        let mut argument = Argument::new(stamp, rows.len() + bans().count());
        argument = rows
            .iter()
            .fold(argument, |argument, row| row.put(argument));
        argument = bans().fold(argument, |argument, (_, ban)| ban::put(argument, &ban));
        let (mut callers, mut carried) = (0, self.carried);
        for group in groups(run, self.again) {
            let first = &group[0];
            let flags = if first.max_wait.is_some() { WAITS } else { 0 };
            let by = self.again.then_some((stamp.id, byte(callers)));
            callers += group.len();
            argument = argument.request(byte(group.len()), by, rows.len(), flags);
            let mut next_ban = rows.len();
            for (place, charge) in first.charges().enumerate() {
                let has_ban = charge.of().ban.is_some();
                let flags = u8::from(charge.shadow) * SHADOW + u8::from(has_ban) * HAS_BAN;
                argument = argument.charge(place, flags, charge.permits);
                if has_ban {
                    let carried = carried.get(place).copied().unwrap_or_default();
                    argument = argument.ban(next_ban, carried);
                    next_ban += 1;
                }
            }
            // They are reported once.
            carried = &[];
        }
        let keys: List<_> = of_first()
            .map(|charge| key(charge.name()))
            .chain(bans().map(|(charge, _)| ban::key(charge.name())))
            .collect();
        argument.call(keys.into_iter(), run.len())
    }

    /// Makes the call of a script that decides the usual case of a lone caller; `None` if there is
    /// no such script.
    pub(crate) fn lone(&self, run: &[Demand]) -> Option<ScriptCall> {
        match (self.rows, run) {
            ([Row::Gcra(row)], [lone]) if !self.again => row.lone(self.stamp, lone.first()),
            _ => None,
        }
    }

    /// Reads the reply to it; `None` if [`call`](Self::call) must decide.
    pub(crate) fn read_lone(&self, reply: &Value, run: &[Demand]) -> Result<Option<Reply>, Error> {
        let Some((now, is_granted, standing)) = gcra::Row::read_lone(reply)? else {
            return Ok(None);
        };
        let asked = together(run);
        let permits = asked.first().map_or(0, |first| first.first().permits);
        let left = self
            .rows
            .first()
            .map(|row| row.answer(now, standing).remaining);
        if !is_granted && left >= Some(permits.into()) {
            return Err(wire::unreadable());
        }
        let mut counted = Said::new(self.rows);
        let group = Group {
            granted: usize::from(is_granted),
            wait: 0,
            standing: Some(standing),
        };
        counted.add(asked, &[group]);
        Ok(Some(self.answered(run, now, counted)))
    }

    /// Reads the reply to [`call`](Self::call). Where one that waits is refused, so are those
    /// behind it that wait.
    pub(crate) fn read(&self, reply: &Value, run: &[Demand]) -> Result<Reply, Error> {
        let (mut numbers, now) = Numbers::of(reply)?;
        let mut counted = Said::new(self.rows);
        for group in groups(together(run), self.again) {
            if !counted.read(self.rows, &mut numbers, group)? {
                return Ok(Reply {
                    now,
                    answers: None,
                    found: List::new(),
                });
            }
        }
        numbers.end()?;
        Ok(self.answered(run, now, counted))
    }

    fn answered(&self, run: &[Demand], now: i64, counted: Said) -> Reply {
        let line = Line::new(self.rows, now, &counted.standings, &counted.callers);
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
        Reply {
            now,
            answers: Some(answers),
            found: counted.found,
        }
    }
}

/// What the reply has said, up to some caller.
struct Said {
    /// Of each limiter: how it stands, if it has counted for any.
    standings: List<Option<Standing>>,
    found: List<Found>,
    callers: List<Caller>,
}

impl Said {
    fn new(rows: &[Row]) -> Self {
        Self {
            standings: rows.iter().map(|_| None).collect(),
            found: rows.iter().map(|_| Found::default()).collect(),
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
    ) -> Result<bool, Error> {
        let mut groups: List<Group> = List::new();
        for (row, standing) in rows.iter().zip(&self.standings) {
            match row.group(numbers, run.len(), *standing)? {
                None => return Ok(false),
                Some(group) => groups.push(group),
            }
        }
        for (charge, found) in run[0].charges().zip(&mut self.found) {
            if charge.of().ban.is_some() {
                *found = ban::read(numbers)?;
            }
        }
        self.add(run, &groups);
        Ok(true)
    }

    /// Adds callers, for each limiter a group.
    fn add(&mut self, run: &[Demand], groups: &[Group]) {
        for (group, standing) in groups.iter().zip(&mut self.standings) {
            *standing = group.standing.or(*standing);
        }
        let is_banned = groups.iter().any(|group| group.standing.is_none());
        for (number, demand) in run.iter().enumerate() {
            let has_room = groups.iter().map(|group| number < group.granted);
            let has_room: List<_> = has_room.collect();
            let mut enforced = demand.charges().zip(&has_room);
            let is_granted = enforced.all(|(charge, has_room)| charge.shadow || *has_room);
            self.callers.push(Caller {
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
    use crate::store::redis::packed::calendar;
    use crate::{
        charge::{Charge, PermitId, Taken},
        compiled_limit::CompiledLimit,
        error::ErrorKind,
        limit::{Limit, LimitSource, calendar::Window},
        name::Name,
    };

    const NOW: i64 = 5000;
    const ROW: Row = Row::Calendar(calendar::Row {
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
            Demand::of([Charge::named(name, limit, &of, permits)], false)
        })
    }

    fn read(reply: &Value, run: &[Demand]) -> Result<Reply, Error> {
        let asked = Asked {
            stamp: STAMP,
            rows: &[ROW],
            carried: &[],
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

    /// A call has so many places, and a state knows as many grants again.
    #[test]
    fn so_many_callers_ask_and_so_many_ask_again() {
        assert_eq!(together(&run([1; 300])).len(), 64);
        assert!(may_ask_again(&run([1, 2, 2, 3, 4])));
        assert!(!may_ask_again(&run([1, 2, 1, 2, 1])));
    }
}
