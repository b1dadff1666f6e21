//! A call of the script, before it is bytes: so calls that come together are joined in one.

use redis::Value;

use super::{DECIDE, Numbers, ONLY_SETTLES, SETTLES, ban, bytes::Buffer, row::Row};
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
        name::Name,
    },
};

/// What the reply begins with: the time; and before each request how many numbers it has.
const TELLS: u8 = 1;
const COUNTS: u8 = 2;

/// What a key of a call counts by.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Terms {
    Row(Row),
    Ban(Ban),
}

/// Requests for permits of limiters, as the head of `lua/packed/decide.lua` describes them.
#[derive(Clone)]
pub(crate) struct Call {
    now: Option<Millis>,
    /// Each the name of a limiter, and what its key ends with
    keys: List<(Name, &'static str)>,
    /// What charges count by. Until calls are joined, each is at the index of its key
    terms: List<Terms>,
    requests: Buffer,
    /// Where the requests name a key, and behind it its terms
    named_at: List<usize>,
    /// How many requests there are.
    pub(super) count: usize,
    callers: usize,
}

impl Call {
    /// Begins a call by this clock.
    pub(super) fn new(now: Option<Millis>) -> Self {
        Self {
            now,
            keys: List::new(),
            terms: List::new(),
            requests: Buffer::new(),
            named_at: List::new(),
            count: 0,
            callers: 0,
        }
    }

    /// Adds a limiter, whose index is the number of those before it.
    pub(super) fn limiter(&mut self, name: &Name, row: Row) {
        self.keys.push((name.clone(), row.suffix()));
        self.terms.push(Terms::Row(row));
    }

    /// Adds a limiter of which only the ban matters. For one in Redisson's format, a key of that
    /// format that nothing has stands for its state: its user may not be allowed to reach ours.
    pub(super) fn beside_ban(&mut self, Limiter { name, compiled }: &Limiter) {
        let row = Row::any(Algorithm::Gcra);
        let suffix = if compiled.counting.in_own_format() {
            row.suffix()
        } else {
            ":ban~~"
        };
        self.keys.push((name.clone(), suffix));
        self.terms.push(Terms::Row(row));
    }

    /// Adds the ban of a limiter in the same way.
    pub(super) fn ban(&mut self, Limiter { name, compiled }: &Limiter, ban: Ban) {
        let suffix = keys::of_ban(compiled.counting.in_own_format());
        self.keys.push((name.clone(), suffix));
        self.terms.push(Terms::Ban(ban));
    }

    /// Begins a request of new callers for so many charges. Only a log knows each by its own id.
    pub(super) fn request(
        &mut self,
        callers: impl ExactSizeIterator<Item = PermitId>,
        charges: usize,
        flags: u8,
    ) {
        (self.count, self.callers) = (self.count + 1, self.callers + callers.len());
        self.requests
            .put(&[byte(callers.len()), byte(charges), flags]);
        callers.for_each(|id| self.requests.put(&id.short()));
    }

    /// Begins one of a caller that came before: at this index behind the caller of this id.
    pub(super) fn again(&mut self, id: PermitId, index: usize, charges: usize, flags: u8) {
        self.requests.put(&[0]);
        self.requests.put(&id.short());
        self.requests.put(&[byte(index), byte(charges), flags]);
        (self.count, self.callers) = (self.count + 1, self.callers + 1);
    }

    /// Adds a request that leaves the caller of this id `keep` of the permits that it `took` of the
    /// first limiter. Its grant is found by the two numbers that its kind has for that.
    pub(super) fn settle(&mut self, id: PermitId, [took, keep]: [u32; 2], mark: [i64; 2]) {
        self.count += 1;
        self.requests.put(&[1, 1, SETTLES]);
        self.requests.put(&id.short());
        self.charge(0, 0, keep);
        self.requests.number(took.into(), 4);
        let requests = &mut self.requests;
        mark.iter().for_each(|number| requests.number(*number, 7));
    }

    /// Adds a charge of the limiter at this index.
    pub(super) fn charge(&mut self, index: usize, flags: u8, permits: u32) {
        self.name(index);
        self.requests.put(&[flags]);
        self.requests.number(permits.into(), 4);
    }

    /// Adds to the charge its ban, which is at this index.
    pub(super) fn banning(&mut self, index: usize, carried: Carried) {
        self.name(index);
        self.requests.number(carried.number.into(), 4);
        let age = i64::try_from(carried.age).unwrap_or(i64::MAX);
        self.requests.number(age, 6);
    }

    /// Adds to the charge what it fetches ahead.
    pub(super) fn ahead(&mut self, permits: u32, lead: i64, id: PermitId) {
        self.requests.number(permits.into(), 4);
        self.requests.number(lead, 6);
        self.requests.put(&id.short());
    }

    fn name(&mut self, index: usize) {
        self.named_at.push(self.requests.0.len());
        let index = byte(index + 1);
        self.requests.put(&[index, index]);
    }

    /// Returns it as a command, which must not be sent twice.
    pub(crate) fn command(&self) -> ScriptCall {
        self.written(TELLS)
    }

    /// Returns it as that of settlements, which must not be sent twice.
    pub(crate) fn settlement(&self) -> ScriptCall {
        match (self.count, self.terms.first()) {
            // Of a lone one the script needs no more than this.
            (1, Some(Terms::Row(row))) => {
                let (id, took) = (&self.requests.0[3..11], &self.requests.0[14..]);
                let mut argument = Buffer::new();
                argument.put(id);
                argument.time(self.now);
                argument.put(&[ONLY_SETTLES]);
                row.put(&mut argument);
                argument.put(took);
                self.sent(argument)
            }
            _ => self.written(0),
        }
    }

    /// Returns whether each of its limiters knows a grant by a record of its own, so that it is
    /// settled once however often this call is sent.
    pub(crate) fn is_repeatable(&self) -> bool {
        let mut terms = self.terms.iter();
        terms.all(|terms| matches!(terms, Terms::Row(row) if row.has_records()))
    }

    /// Returns it as that of a verb, which may be sent again.
    pub(super) fn verb(&mut self) -> ScriptCall {
        self.callers = 0;
        ScriptCall {
            once: false,
            ..self.command()
        }
    }

    fn written(&self, flags: u8) -> ScriptCall {
        let mut rows: List<&Terms> = List::new();
        // Most have the terms of another: each is written once.
        let each = self.terms.iter().map(|terms| index_in(&mut rows, terms));
        let row_of: List<u8> = each.map(|row| byte(row + 1)).collect();
        let mut argument = Buffer::new();
        argument.0.reserve(80 + self.requests.0.len());
        argument.put(&[0; 8]);
        argument.time(self.now);
        argument.put(&[byte(rows.len()), flags]);
        for row in &rows {
            match row {
                Terms::Row(row) => row.put(&mut argument),
                Terms::Ban(ban) => ban::put(&mut argument, ban),
            }
        }
        let begin = argument.0.len();
        argument.put(&self.requests.0);
        for at in &self.named_at {
            let row = &mut argument.0[begin + at + 1];
            *row = row_of[usize::from(*row) - 1];
        }
        self.sent(argument)
    }

    /// Returns the command with this argument.
    fn sent(&self, argument: Buffer) -> ScriptCall {
        let mut command = DECIDE.start(self.keys.len(), 1);
        for (name, suffix) in &self.keys {
            keys::add_suffixed(&mut command, name, suffix);
        }
        command.arg(&*argument.0);
        ScriptCall::new(&DECIDE, command, self.callers, true)
    }
}

/// Calls that go in one command.
#[derive(Default)]
pub(crate) struct Joined {
    call: Option<Call>,
    /// How many requests each of them has.
    counts: Vec<usize>,
}

impl Joined {
    /// Adds a call, by the same clock as the others.
    pub(crate) fn add(&mut self, call: Call) {
        self.counts.push(call.count);
        match &mut self.call {
            None => self.call = Some(call),
            Some(all) => all.join(call),
        }
    }

    /// Returns the command of all, which must not be sent twice; `None` if there are no calls.
    pub(crate) fn command(&self) -> Option<ScriptCall> {
        let flags = match self.counts.len() {
            1 => TELLS,
            _ => TELLS | COUNTS,
        };
        Some(self.call.as_ref()?.written(flags))
    }

    /// Returns the numbers that answer each of the calls, and the time by which they counted;
    /// `None` for those that the reply does not answer, and for all behind one of these.
    pub(crate) fn replies<'r>(
        &self,
        reply: &'r Value,
    ) -> impl Iterator<Item = Option<(Numbers<'r>, i64)>> {
        let mut all = Numbers::with_time(reply).ok();
        self.counts.iter().map(move |count| {
            if self.counts.len() == 1 {
                return all.take();
            }
            let (mut rest, time) = all.take()?;
            let part = rest.of_requests(*count)?;
            all = Some((rest, time));
            Some((part, time))
        })
    }
}

impl Call {
    /// Adds the requests of another call, by the same clock.
    pub(crate) fn join(&mut self, other: Self) {
        let begin = self.requests.0.len();
        let each = other.terms.into_iter();
        let each = each.map(|terms| index_in(&mut self.terms, terms));
        let terms_of: List<u8> = each.map(|terms| byte(terms + 1)).collect();
        // Each state is read once and written once, so a key has one index.
        let each = other.keys.into_iter();
        let each = each.map(|key| index_in(&mut self.keys, key));
        let key_of: List<u8> = each.map(|key| byte(key + 1)).collect();
        self.now = self.now.max(other.now);
        self.requests.put(&other.requests.0);
        for at in other.named_at {
            let at = begin + at;
            self.named_at.push(at);
            if let [key, terms, ..] = &mut self.requests.0[at..] {
                *key = key_of[usize::from(*key) - 1];
                *terms = terms_of[usize::from(*terms) - 1];
            }
        }
        self.count += other.count;
        self.callers += other.callers;
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
