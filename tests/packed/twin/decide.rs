//! A whole call on the keys of a server: reads all, decides the requests in order, and writes each
//! key that has changed once.

use std::iter;

use super::{
    Clock, Id, MOST,
    ban::{Ban, Strike, Terms},
    call::{ASKS, BANS, Banning, Call, Charge, REPORTS, Request, Row, Settled, WAITS},
    count::{self, Count},
    keys::{Held, Keys},
    reply::{Group, Outcome, Refusal, Reply},
    state::{Foreign, State},
};

/// The place of refusals that were answered from memory. No caller has it.
const FROM_MEMORY: u8 = 255;

/// Decides the call at the server's time in us, on the keys of these names.
pub fn decide(call: &Call, names: &[String], keys: &mut Keys, server_us: i64) -> Reply {
    if let Some(empty) = empty_of_lone(call, names, keys) {
        // It is met as if it were none, until it is to be written.
        let mut reply = decide(call, names, keys, server_us);
        if keys.insert(names[0].clone(), empty).is_some() {
            reply.requests = vec![Outcome::Foreign];
        }
        return reply;
    }
    let clock = Clock::of(call.now, server_us);
    let held = names.iter().map(|name| Held::of(keys.get(name)));
    let mut deciding = Deciding {
        call,
        clock,
        held: held.collect(),
        place: 0,
    };
    let requests = call.requests.iter().map(|request| {
        let outcome = deciding.request(request);
        deciding.place += request.places();
        outcome.unwrap_or(Outcome::Foreign)
    });
    let reply = Reply {
        time: call.tells.then_some(clock.us),
        requests: requests.collect(),
    };
    for (held, name) in deciding.held.into_iter().zip(names) {
        held.write(name, keys, clock);
    }
    reply
}

/// Takes the key of a call in the short form away, if it holds an empty string.
fn empty_of_lone(call: &Call, names: &[String], keys: &mut Keys) -> Option<super::keys::Stored> {
    let stored = keys.get(names.first()?)?;
    let is_empty = stored.bytes.as_ref().is_some_and(Vec::is_empty);
    (call.is_lone && is_empty).then(|| keys.remove(&names[0]))?
}

/// A call that is being decided.
struct Deciding<'c> {
    call: &'c Call,
    clock: Clock,
    /// Of each key, as the requests before have left it
    held: Vec<Held>,
    /// Where the ids of the request begin
    place: i64,
}

/// A charge of a request, with what it takes from.
struct Counted<'r> {
    charge: &'r Charge,
    count: Box<dyn Count>,
    /// How many callers have room
    room: i64,
    /// How many took their permits
    taken: i64,
}

impl Counted<'_> {
    fn is_above_rate(&self) -> bool {
        self.room == 0 && self.count.wait(self.charge.permits).is_none()
    }

    /// Returns how it stands for so many callers.
    fn group(&self, callers: i64, ahead: Option<bool>) -> Group {
        let refusal = || self.count.refusal(self.charge.permits);
        Group {
            room: (self.room > 0).then(|| self.count.standing()),
            refusal: (self.room < callers).then(refusal),
            each: self.count.each(self.charge.permits),
            ahead,
        }
    }
}

impl Deciding<'_> {
    fn request(&mut self, request: &Request) -> Result<Outcome, Foreign> {
        for charge in &request.charges {
            self.limiter(charge)?;
        }
        for banning in bannings(request) {
            self.ban(&banning)?;
        }
        if request
            .charges
            .iter()
            .any(|charge| self.has_no_window(charge))
        {
            return Ok(Outcome::NoWindow);
        }
        self.set_back(request)?;
        let first = request.resent.unwrap_or(self.call.id(self.place));
        let charge = &request.charges[0];
        if let Some(settled) = charge.settled {
            return Ok(Outcome::Settled(self.settle(charge, &settled, first)?));
        }
        if request.has(ASKS | BANS) {
            return self.tell(request);
        }
        let found = |charge| {
            let state = self.limiter(charge).ok().flatten();
            state.is_some_and(|state| state.holds(first, self.clock))
        };
        let is_resent = request.resent.is_some() && !request.has(REPORTS);
        if is_resent && request.charges.iter().any(found) {
            return self.found(request);
        }
        for charge in &request.charges {
            self.report(request, charge, first)?;
        }
        if self.is_banned(request)? {
            let banned = |charge: &Charge| Group {
                refusal: Some(Refusal::Banned),
                ahead: charge.ahead.map(|_| false),
                ..Group::default()
            };
            let charges = request.charges.iter().map(banned).collect();
            return self.decided(0, charges, request);
        }
        if request.has(REPORTS) {
            return self.tell(request);
        }
        self.serve(request, first)
    }

    fn decided(
        &self,
        granted: i64,
        charges: Vec<Group>,
        request: &Request,
    ) -> Result<Outcome, Foreign> {
        let standing = |banning| Ok(self.ban(&banning)?.0.standing(self.clock.now()));
        Ok(Outcome::Decided(
            granted,
            charges,
            bannings(request).map(standing).collect::<Result<_, _>>()?,
        ))
    }

    /// Returns the state that a charge takes from.
    fn limiter(&self, charge: &Charge) -> Result<Option<&State>, Foreign> {
        match self.held(charge.key)?.state.as_ref() {
            Ok(Some(State::Ban(_))) | Err(Foreign) => Err(Foreign),
            Ok(state) => Ok(state.as_ref()),
        }
    }

    /// Returns a ban as it counts by its terms now, and these.
    fn ban(&self, banning: &Banning) -> Result<(Ban, Terms), Foreign> {
        let mut ban = match &self.held(banning.key)?.state {
            Ok(Some(State::Ban(ban))) => ban.clone(),
            Ok(None) => Ban::default(),
            _ => return Err(Foreign),
        };
        let Some(Row::Ban(terms)) = self.call.row(banning.row) else {
            return Err(Foreign);
        };
        ban.count_by(terms.within, self.clock.now());
        Ok((ban, *terms))
    }

    fn held(&self, key: u8) -> Result<&Held, Foreign> {
        self.held
            .get(usize::from(key).wrapping_sub(1))
            .ok_or(Foreign)
    }

    fn write(&mut self, key: u8, state: State, whole: bool, lead: i64) {
        // What a request of the call has found due stays so.
        let whole = whole || matches!(&state, State::Gcra(gcra) if gcra.is_due(self.clock));
        if let Some(held) = self.held.get_mut(usize::from(key).wrapping_sub(1)) {
            held.change(state, whole, lead);
        }
    }

    /// Writes what the server's clock has set back, so that the next call finds nothing of it.
    fn set_back(&mut self, request: &Request) -> Result<(), Foreign> {
        for charge in &request.charges {
            if let Some(mut state) = self.limiter(charge)?.cloned()
                && state.set_back(self.clock)
            {
                self.write(charge.key, state, true, 0);
            }
        }
        for banning in bannings(request) {
            let mut state = State::Ban(self.ban(&banning)?.0);
            if state.set_back(self.clock) {
                self.write(banning.key, state, true, 0);
            }
        }
        Ok(())
    }

    fn count(&self, charge: &Charge) -> Result<Box<dyn Count>, Foreign> {
        let row = self.call.row(charge.row).ok_or(Foreign)?;
        count::count(self.limiter(charge)?, row, self.clock).ok_or(Foreign)
    }

    /// Counts for each charge, and how many of so many callers have room.
    fn counted<'r>(&self, request: &'r Request) -> Result<Vec<Counted<'r>>, Foreign> {
        let each = request.charges.iter().map(|charge| {
            let count = self.count(charge)?;
            let room = count.room(charge.permits).min(request.callers.into());
            Ok(Counted {
                charge,
                count,
                room,
                taken: 0,
            })
        });
        each.collect()
    }

    fn has_no_window(&self, charge: &Charge) -> bool {
        let now = self.clock.now();
        match self.call.row(charge.row) {
            Some(Row::Calendar { dates, .. }) => !dates.iter().any(|dates| dates.hold(now)),
            _ => false,
        }
    }

    /// Settles what a caller took of one limiter.
    fn settle(&mut self, charge: &Charge, settled: &Settled, id: Id) -> Result<i64, Foreign> {
        let (clock, permits) = (self.clock, charge.permits);
        let mut state = self.limiter(charge)?.cloned();
        let done = match (&mut state, self.call.row(charge.row)) {
            (Some(State::Log(log)), Some(Row::Log(_))) if settled.mark == MOST => {
                Some(log.release(settled.was, clock.now()))
            }
            (Some(State::Log(log)), Some(Row::Log(_))) => {
                Some(log.settle(id, permits, settled.was, clock.now()))
            }
            (Some(State::Gcra(gcra)), Some(Row::Gcra(_))) => {
                Some(gcra.settle(permits, settled, clock.us))
            }
            // What was taken in another window counts no more.
            (Some(State::Calendar(window)), Some(Row::Calendar { .. }))
                if settled.mark != MOST
                    && (window.label > settled.mark
                        || window.label < settled.mark && window.is_open(clock)) =>
            {
                Some(0)
            }
            (Some(State::Window(window)), Some(Row::Window(_)))
            | (Some(State::Calendar(window)), Some(Row::Calendar { .. })) => {
                window.settle(permits, settled, clock)
            }
            _ => None,
        };
        let more = (permits - settled.was).max(0);
        let freed = done.unwrap_or(-more);
        if let Some(state) = state.filter(|_| done.is_some() && freed != 0) {
            self.write(charge.key, state, false, 0);
        } else if freed != 0 {
            // Taken elsewhere: it is charged here, as a grant.
            let mut count = self.count(charge)?;
            count.owe(id, more);
            let (state, whole, lead) = count.state();
            self.write(charge.key, state, whole, lead);
        }
        Ok(freed)
    }

    /// Tells how the limiters stand, and bans the callers that the request names, if it does that.
    fn tell(&mut self, request: &Request) -> Result<Outcome, Foreign> {
        let counted = self.counted(request)?;
        let groups = counted
            .iter()
            .map(|counted| counted.group(1, None))
            .collect();
        for banning in bannings(request).filter(|_| request.has(BANS)) {
            let (mut ban, _) = self.ban(&banning)?;
            ban.ban_for(banning.age, self.clock.now());
            self.write(banning.key, State::Ban(ban), true, 0);
        }
        let mut each = counted.iter();
        let fits = each.all(|counted| counted.charge.is_shadow || counted.room > 0);
        self.decided(fits.into(), groups, request)
    }

    /// Answers a caller that was granted before: it takes nothing, and learns how all limits
    /// stand now.
    fn found(&self, request: &Request) -> Result<Outcome, Foreign> {
        let each = request.charges.iter().map(|charge| {
            let count = self.count(charge)?;
            Ok(Group {
                room: Some(count.standing()),
                refusal: None,
                each: count.each(charge.permits),
                ahead: charge.ahead.map(|_| false),
            })
        });
        self.decided(1, each.collect::<Result<_, _>>()?, request)
    }

    /// Decides a request that no ban refuses.
    fn serve(&mut self, request: &Request, first: Id) -> Result<Outcome, Foreign> {
        let callers = i64::from(request.callers);
        let mut counted = self.counted(request)?;
        let mut each = counted.iter();
        let fits = each.all(|counted| counted.charge.is_shadow || counted.room > 0);
        let mut groups = Vec::new();
        for counted in &mut counted {
            if fits && counted.room > 0 {
                let others = (1..counted.room).map(|place| self.call.id(self.place + place));
                let callers: Vec<_> = iter::once(first).chain(others).collect();
                counted.count.take(&callers, counted.charge.permits);
                counted.taken = counted.room;
            }
            let ahead = counted.charge.ahead.map(|ahead| {
                let behind = self.place + if request.resent.is_some() { 0 } else { callers };
                counted.taken == callers && counted.count.fetch(self.call.id(behind), ahead)
            });
            groups.push(counted.group(callers, ahead));
            if counted.taken > 0 {
                let (state, whole, lead) = counted.count.state();
                self.write(counted.charge.key, state, whole, lead);
            }
        }
        let granted = match counted.as_slice() {
            [one] => one.taken.max(i64::from(callers == 1 && fits)),
            _ => i64::from(fits),
        };
        self.judge(request, first, &counted, fits)?;
        self.decided(granted, groups, request)
    }

    /// Records the refusals, bans after too many, and forgives those that are granted after all.
    ///
    /// Only lack of room of a charge itself strikes, where waiting helps. A caller that waits asks
    /// again, so that its refusal is none, unless a shadow charge has it next to a grant.
    fn judge(
        &mut self,
        request: &Request,
        first: Id,
        counted: &[Counted<'_>],
        fits: bool,
    ) -> Result<(), Foreign> {
        let callers = i64::from(request.callers);
        let enforced = || counted.iter().filter(|counted| !counted.charge.is_shadow);
        let is_above_rate = enforced().any(Counted::is_above_rate);
        let short = enforced().filter(|counted| counted.room < callers);
        let wait = short.filter_map(|counted| counted.count.wait(counted.charge.permits));
        let wait = wait.max().unwrap_or(0);
        for counted in counted {
            let Some(banning) = counted.charge.banning else {
                continue;
            };
            if counted.room > 0 && request.resent.is_some() {
                self.forgive(&banning, first)?;
            }
            let is_last = !request.has(WAITS) || counted.charge.is_shadow && fits;
            let never = is_above_rate || counted.is_above_rate();
            for place in counted.room..if is_last && !never { callers } else { 0 } {
                let strike = Strike {
                    id: first.plus(place),
                    number: 1,
                    time: self.clock.now(),
                };
                self.strike(request, &banning, strike, wait)?;
            }
        }
        Ok(())
    }

    /// Adds a strike, unless a ban is in force, or a caller that came before has it.
    fn strike(
        &mut self,
        request: &Request,
        banning: &Banning,
        strike: Strike,
        wait: i64,
    ) -> Result<(), Foreign> {
        let now = self.clock.now();
        let (mut ban, terms) = self.ban(banning)?;
        let is_known = request.resent.is_some() && ban.holds(strike.id);
        if !is_known && !ban.is_in_force(now) {
            let bans = ban.strike(&terms, strike, wait, now);
            self.write(banning.key, State::Ban(ban), bans, 0);
        }
        Ok(())
    }

    /// Adds the refusals that the process reports: it has answered them from its memory, or by a
    /// limiter of another format, which has room after so many ms.
    fn report(&mut self, request: &Request, charge: &Charge, first: Id) -> Result<(), Foreign> {
        let Some(banning) = charge.banning.filter(|banning| banning.carried > 0) else {
            return Ok(());
        };
        let strike = Strike {
            id: Id {
                place: FROM_MEMORY,
                ..first
            },
            number: banning.carried,
            time: (self.clock.now() - banning.age).max(0),
        };
        let wait = if request.has(REPORTS) {
            charge.permits
        } else {
            0
        };
        if banning.age < self.ban(&banning)?.1.within {
            self.strike(request, &banning, strike, wait)
        } else {
            Ok(())
        }
    }

    /// Removes the strike of a caller that came before and has room now.
    fn forgive(&mut self, banning: &Banning, id: Id) -> Result<(), Foreign> {
        let (mut ban, _) = self.ban(banning)?;
        if !ban.is_in_force(self.clock.now()) && ban.forgive(id) {
            self.write(banning.key, State::Ban(ban), true, 0);
        }
        Ok(())
    }

    /// Returns whether a ban in force refuses the request.
    fn is_banned(&self, request: &Request) -> Result<bool, Foreign> {
        let enforced = request.charges.iter().filter(|charge| !charge.is_shadow);
        for banning in enforced.filter_map(|charge| charge.banning) {
            if self.ban(&banning)?.0.is_in_force(self.clock.now()) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn bannings(request: &Request) -> impl Iterator<Item = Banning> + '_ {
    request.charges.iter().filter_map(|charge| charge.banning)
}
