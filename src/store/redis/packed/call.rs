//! A call of the script, before it is bytes: those that come together are one.

use redis::Value;

use super::{DECIDE, Numbers, ONLY_SETTLES, SETTLES, ban, put_number, row::Row, sent_once};
use crate::{
    store::{
        guard::deny_cache::bans::Carried,
        redis::{keys, script::ScriptCall},
    },
    values::{
        List,
        charge::PermitId,
        clock::Millis,
        compiled_limit::Limiter,
        limit::{Algorithm, Ban},
        name::{Name, Short},
    },
};

/// What the reply begins with: the time; and before each request how many numbers it has.
const TELLS: u8 = 1;
const COUNTS: u8 = 2;
/// No key is named twice, so what a request takes may be written before the next is decided.
const ONCE: u8 = 4;

/// What a key of a call counts by.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Terms {
    Row(Row),
    Ban(Ban),
}

/// Requests for permits of limiters, as the head of `lua/packed/decide.lua` describes them, in one
/// part or in several that have one clock.
#[derive(Default)]
pub(crate) struct Call<'a> {
    now: Option<Millis>,
    /// Each the name of a limiter, and what its key ends with. A key is there once, as its state
    /// is written once.
    keys: List<(&'a Name, &'static str)>,
    /// What charges count by. Most have the terms of another: each is written once.
    terms: List<Terms>,
    requests: Short,
    /// How many requests each part has
    parts: List<usize>,
    /// How requests of the present part name its limiters and bans: a key, and its terms
    named: List<[u8; 2]>,
    /// The keys that requests have named, a bit each, and whether one was named twice
    seen: [u64; 4],
    names_twice: bool,
    callers: usize,
}

impl<'a> Call<'a> {
    /// Begins a call by this clock.
    pub(super) fn new(now: Option<Millis>) -> Self {
        let mut call = Self::default();
        call.begin(now);
        call
    }

    /// Begins a part.
    pub(super) fn begin(&mut self, now: Option<Millis>) {
        self.now = self.now.max(now);
        self.parts.push(0);
        self.named.clear();
    }

    /// Adds a limiter, whose index is the number of those before it in its part.
    pub(super) fn limiter(&mut self, name: &'a Name, row: Row) {
        self.add(name, row.suffix(), Terms::Row(row));
    }

    /// Adds a limiter of which only the ban matters. For one in Redisson's format, a key of that
    /// format that nothing has stands for its state: its user may not be allowed to reach ours.
    pub(super) fn beside_ban(&mut self, Limiter { name, compiled }: &'a Limiter) {
        let row = Row::any(Algorithm::Gcra);
        let suffix = if compiled.counting.in_own_format() {
            row.suffix()
        } else {
            ":ban~~"
        };
        self.add(name, suffix, Terms::Row(row));
    }

    /// Adds the ban of a limiter in the same way.
    pub(super) fn ban(&mut self, Limiter { name, compiled }: &'a Limiter, ban: Ban) {
        let suffix = keys::of_ban(compiled.counting.in_own_format());
        self.add(name, suffix, Terms::Ban(ban));
    }

    fn add(&mut self, name: &'a Name, suffix: &'static str, terms: Terms) {
        let key = index_in(&mut self.keys, (name, suffix));
        let terms = index_in(&mut self.terms, terms);
        self.named.push([key, terms].map(|index| byte(index + 1)));
    }

    /// Begins a request of new callers for so many charges. Only a log knows each by its own id.
    pub(super) fn request(
        &mut self,
        callers: impl ExactSizeIterator<Item = PermitId>,
        charges: usize,
        flags: u8,
    ) {
        self.count(callers.len());
        self.requests
            .push(&[byte(callers.len()), byte(charges), flags]);
        callers.for_each(|id| self.requests.push(&id.short()));
    }

    /// Begins one of a caller that came before: at this index behind the caller of this id.
    pub(super) fn again(&mut self, id: PermitId, index: usize, charges: usize, flags: u8) {
        self.count(1);
        self.requests.push(&[0]);
        self.requests.push(&id.short());
        self.requests.push(&[byte(index), byte(charges), flags]);
    }

    fn count(&mut self, callers: usize) {
        self.callers += callers;
        if let Some(requests) = self.parts.last_mut() {
            *requests += 1;
        }
    }

    /// Adds a request that leaves the caller of this id `keep` of the permits that it `took` of the
    /// first limiter. Its grant is found by the two numbers that its kind has for that.
    pub(super) fn settle(&mut self, id: PermitId, [took, keep]: [u32; 2], mark: [i64; 2]) {
        self.count(0);
        self.requests.push(&[1, 1, SETTLES]);
        self.requests.push(&id.short());
        self.charge(0, 0, keep);
        put_number(&mut self.requests, took.into(), 4);
        for number in mark {
            put_number(&mut self.requests, number, 7);
        }
    }

    /// Adds a charge of the limiter at this index.
    pub(super) fn charge(&mut self, index: usize, flags: u8, permits: u32) {
        self.name(index);
        self.requests.push(&[flags]);
        put_number(&mut self.requests, permits.into(), 4);
    }

    fn name(&mut self, index: usize) {
        let named @ [key, _] = self.named[index];
        let (word, bit) = (&mut self.seen[usize::from(key / 64)], 1 << (key % 64));
        self.names_twice |= *word & bit != 0;
        *word |= bit;
        self.requests.push(&named);
    }

    /// Adds to the charge its ban, which is at this index.
    pub(super) fn banning(&mut self, index: usize, carried: Carried) {
        self.name(index);
        put_number(&mut self.requests, carried.number.into(), 4);
        let age = i64::try_from(carried.age).unwrap_or(i64::MAX);
        put_number(&mut self.requests, age, 6);
    }

    /// Adds to the charge what it fetches ahead.
    pub(super) fn ahead(&mut self, permits: u32, lead: i64, id: PermitId) {
        put_number(&mut self.requests, permits.into(), 4);
        put_number(&mut self.requests, lead, 6);
        self.requests.push(&id.short());
    }

    /// Returns it as a command, which must not be sent twice.
    pub(crate) fn command(&self) -> ScriptCall {
        let has_parts = self.parts.len() > 1;
        self.written(TELLS + u8::from(has_parts) * COUNTS)
    }

    /// Returns it as that of settlements, which must not be sent twice.
    pub(super) fn settlement(&self) -> ScriptCall {
        let ([1], [Terms::Row(row)]) = (&*self.parts, &*self.terms) else {
            return self.written(0);
        };
        // Of a lone one the script needs no more than this.
        let mut argument = Short::default();
        argument.push(&self.requests[3..11]);
        put_number(&mut argument, self.now.map_or(0, Millis::cast_signed), 6);
        argument.push(&[ONLY_SETTLES]);
        row.put(&mut argument);
        argument.push(&self.requests[14..]);
        sent_once(&DECIDE, &self.keys, &argument, self.callers)
    }

    fn written(&self, flags: u8) -> ScriptCall {
        let mut argument = Short::default();
        argument.push(&[0; 8]);
        put_number(&mut argument, self.now.map_or(0, Millis::cast_signed), 6);
        let once = if self.names_twice { 0 } else { ONCE };
        argument.push(&[byte(self.terms.len()), flags + once]);
        for terms in &self.terms {
            match terms {
                Terms::Row(row) => row.put(&mut argument),
                Terms::Ban(ban) => ban::put(&mut argument, ban),
            }
        }
        argument.push(&self.requests);
        sent_once(&DECIDE, &self.keys, &argument, self.callers)
    }

    /// Returns it as that of a verb, which may be sent again.
    pub(super) fn verb(&self) -> ScriptCall {
        ScriptCall {
            once: false,
            callers: 0,
            ..self.command()
        }
    }

    /// Returns the numbers that answer each of its parts, and the time by which they counted;
    /// `None` for those that the reply does not answer, and for all behind one of these.
    pub(crate) fn replies<'r>(
        &self,
        reply: &'r Value,
    ) -> impl Iterator<Item = Option<(Numbers<'r>, i64)>> {
        let mut all = Numbers::with_time(reply).ok();
        self.parts.iter().map(move |requests| {
            if self.parts.len() == 1 {
                return all.take();
            }
            let (mut rest, time) = all.take()?;
            let part = rest.of_requests(*requests)?;
            all = Some((rest, time));
            Some((part, time))
        })
    }
}

/// Returns the index of a value among others, with which it is put if it is not there.
fn index_in<T: PartialEq>(all: &mut List<T>, value: T) -> usize {
    let known = all.iter().position(|it| *it == value);
    known.unwrap_or_else(|| {
        all.push(value);
        all.len() - 1
    })
}

fn byte(number: usize) -> u8 {
    u8::try_from(number).unwrap_or(u8::MAX)
}
