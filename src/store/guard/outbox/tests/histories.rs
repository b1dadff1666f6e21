//! Tests random histories by seed, each against all laws.

use std::hash::{BuildHasher, Hasher, RandomState};

use super::{server::limiter_of, world::LIMIT, *};

/// A generator of numbers that a seed repeats.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % sides.max(1)
    }

    fn one_in(&mut self, sides: usize) -> bool {
        self.roll(sides) == 0
    }
}

/// Names the seed where a history breaks a law.
struct Seed(u64);

impl Drop for Seed {
    #[allow(clippy::print_stderr, reason = "the harness shows it with the failure")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {}: TOWER_RATELIMIT_SEED={0} plays it alone", self.0);
        }
    }
}

const RUNTIMES: usize = 3;
const MOST: usize = 4;

struct History {
    world: World,
    dice: Dice,
    callers: Vec<Caller>,
    /// The callers that are no longer polled, and not dropped.
    neglected: Vec<Caller>,
    /// For each runtime, whether it is driven.
    driven: [bool; RUNTIMES],
    /// The grants that callers keep, each with its time.
    kept: Vec<(u64, PermitId)>,
    /// Requests that hung up, whose permits stay taken if a call was sent.
    hung_up: Vec<u64>,
    /// Callers that left, whatever they had taken being given back.
    unsent: Vec<u64>,
    limiters: usize,
}

impl History {
    fn new(seed: u64) -> Self {
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        dice.roll(2);
        let bounds = Bounds {
            deadline: DEADLINE,
            most: MOST,
            least: 2,
            most_callers: 3,
        };
        let world = World::with(RUNTIMES, bounds, true);
        let joins = dice.one_in(2);
        world.server.joins.store(joins, Ordering::SeqCst);
        Self {
            world,
            limiters: 1 + dice.roll(6),
            dice,
            callers: Vec::new(),
            neglected: Vec::new(),
            driven: [true; RUNTIMES],
            kept: Vec::new(),
            hung_up: Vec::new(),
            unsent: Vec::new(),
        }
    }

    fn step(&mut self) {
        match self.dice.roll(40) {
            0..=7 => self.comes(),
            8..=15 => self.polls(),
            16..=23 => {
                let at = self.dice.roll(RUNTIMES);
                if self.driven[at] {
                    let steps = 1 + self.dice.roll(6);
                    self.world.drive(at, steps);
                }
            }
            24..=29 => self.serves(),
            30..=32 => {
                let by = [0, 1, 3, 10, 26, 50][self.dice.roll(6)];
                self.world.advance(by);
                self.leave_late();
            }
            33..=35 => self.leaves(),
            36 => {
                let limiter = self.dice.roll(self.limiters) as u64;
                self.world.nudge(limiter);
            }
            37 => self.stops_driving(),
            38 => self.shuts_down(),
            _ => {
                let arrives = self.dice.one_in(2);
                self.world.server.state().arrives = arrives;
            }
        }
    }

    fn comes(&mut self) {
        let limiter = self.dice.roll(self.limiters) as u64;
        let max_wait = match self.dice.roll(8) {
            0 => Some(MaxWait::ENDLESS),
            1 => Some(MaxWait::at_most(Duration::from_millis(
                self.dice.roll(400) as u64
            ))),
            2 => Some(MaxWait {
                queue: Some(self.dice.roll(4)),
                yields: self.dice.one_in(2),
                ..MaxWait::at_most(Duration::from_millis(300))
            }),
            _ => None,
        };
        // One that waits may be on no runtime at all.
        let at = self.dice.roll(RUNTIMES * 2);
        let runtime = Some(at % RUNTIMES).filter(|_| at > 0 || max_wait.is_none());
        if runtime.is_none_or(|at| self.driven[at]) {
            let demand = self.world.acquire(limiter, max_wait);
            let caller = self.world.caller(runtime, demand);
            self.callers.push(caller);
            self.poll(self.callers.len() - 1);
        }
    }

    fn is_driven(&self, caller: &Caller) -> bool {
        caller.runtime.is_none_or(|at| self.driven[at])
    }

    fn polls(&mut self) {
        let at = self.dice.roll(self.callers.len());
        let anyway = self.dice.one_in(8);
        if let Some(caller) = self.callers.get(at)
            && self.is_driven(caller)
            && (caller.is_woken() || anyway)
        {
            self.poll(at);
        }
    }

    /// Returns whether it is decided for.
    fn poll(&mut self, at: usize) -> bool {
        let Some(outcome) = self.world.poll(&mut self.callers[at]) else {
            return false;
        };
        let caller = self.callers.swap_remove(at);
        self.records(&caller, outcome);
        true
    }

    fn records(&mut self, caller: &Caller, outcome: Result<Decision, Error>) {
        match outcome {
            Ok(Decision::Allow(grant)) => {
                self.kept.push((caller.id, grant.charges()[0].id));
            }
            Ok(Decision::Deny(_)) => {}
            Err(error) => {
                let full = error.kind() == ErrorKind::Timeout;
                assert!(!full || !self.world.server.state().sent.contains(&caller.id));
                self.unsent.extend(full.then_some(caller.id));
            }
        }
    }

    /// The node carries out, answers, loses or fails a call.
    fn serves(&mut self) {
        let open = self.world.server.open();
        let Some(at) = open.get(self.dice.roll(open.len())) else {
            return;
        };
        match self.dice.roll(10) {
            // Also once more, as a call whose connection was lost.
            0..=3 => self.world.server.carry_out(*at),
            4 => self.world.server.fail(*at),
            5 => {
                let was_sent = self.dice.one_in(2);
                self.world.server.refuse_joint(*at, was_sent);
            }
            _ => self.world.server.reply(*at),
        }
    }

    fn leave_late(&mut self) {
        let now = self.world.clock.now();
        let late = |this: &Self| {
            let mut callers = this.callers.iter();
            callers.position(|caller| caller.is_late(now) && this.is_driven(caller))
        };
        while let Some(at) = late(self) {
            self.leave(at);
        }
    }

    fn leaves(&mut self) {
        if !self.callers.is_empty() {
            let at = self.dice.roll(self.callers.len());
            self.leave(at);
        }
    }

    fn leave(&mut self, at: usize) {
        let caller = self.callers.swap_remove(at);
        if !self.world.server.state().sent.contains(&caller.id) {
            self.unsent.push(caller.id);
        }
        if caller.waits() {
            drop(caller);
        } else if self.dice.one_in(2) {
            caller.leave_and_give_back(&self.world);
        } else {
            self.hung_up.push(caller.id);
            drop(caller);
        }
    }

    fn stops_driving(&mut self) {
        let at = self.dice.roll(RUNTIMES);
        self.driven[at] = !self.driven[at];
    }

    /// Its tasks are dropped, and with them some of its callers. Others go on elsewhere.
    fn shuts_down(&mut self) {
        let at = self.dice.roll(RUNTIMES);
        let mut others = Vec::new();
        for mut caller in std::mem::take(&mut self.callers) {
            if caller.runtime != Some(at) {
                others.push(caller);
            } else if self.dice.one_in(2) {
                let runtime = self.dice.roll(RUNTIMES);
                caller.runtime = Some(runtime).filter(|runtime| *runtime != at);
                others.push(caller);
            } else {
                if !caller.waits() {
                    self.hung_up.push(caller.id);
                }
                drop(caller);
            }
        }
        self.callers = others;
        self.world.shuts_down(at);
        self.world.runtimes[at] = World::runtime();
        self.driven[at] = true;
    }

    /// Callers of a runtime that is not driven are forgotten; all others are decided for.
    fn ends(&mut self) {
        let (driven, neglected) = std::mem::take(&mut self.callers)
            .into_iter()
            .partition(|caller| self.is_driven(caller));
        (self.callers, self.neglected) = (driven, neglected);
        for round in 0.. {
            let left: Vec<_> = self.callers.iter().map(|caller| caller.id).collect();
            assert!(
                round < 3000,
                "held up: {left:x?}, calls {:x?}",
                self.world.calls()
            );
            for at in 0..RUNTIMES {
                if self.driven[at] {
                    self.world.drive(at, 12);
                }
            }
            let mut polled = false;
            let mut at = 0;
            while at < self.callers.len() {
                let woken = self.callers[at].is_woken();
                polled |= woken;
                at += usize::from(!(woken && self.poll(at)));
            }
            if self.callers.is_empty() {
                break;
            }
            let open = self.world.server.open();
            if polled {
                continue;
            } else if open.is_empty() || round % 50 == 49 {
                self.world.advance(10);
                // A call of a runtime that is not driven costs its callers one deadline.
                if self.driven.contains(&false) {
                    self.leave_late();
                }
            } else {
                open.into_iter().for_each(|at| self.world.server.reply(at));
            }
        }
        for caller in std::mem::take(&mut self.neglected) {
            if !caller.waits() {
                self.hung_up.push(caller.id);
            }
            drop(caller);
        }
    }

    fn judge(&self) {
        // Also what was lost on its way arrives, and all runtimes find an end.
        for _ in 0..4 {
            self.world.settle();
            for at in self.world.server.open() {
                self.world.server.reply(at);
            }
            self.world.advance(100);
        }
        self.world.settle();
        let state = self.world.server.state();
        for held @ (id, _) in state.held.keys() {
            let known = self.kept.contains(held) || self.hung_up.contains(id);
            assert!(known, "{id:x} is held by no caller");
        }
        for held @ (id, _) in &self.kept {
            assert!(
                state.held.contains_key(held),
                "{id:x} was granted, and is not held"
            );
        }
        // Hanging up is not free. Only a server that fails, or refuses a call that is sent again,
        // gives back for these callers.
        for id in &self.hung_up {
            assert!(!state.given_back.contains(id), "{id:x} hung up for free");
        }
        for id in &self.unsent {
            assert!(!state.sent.contains(id), "{id:x} left unsent, and was sent");
            assert!(!state.holds(*id), "{id:x} took something unsent");
        }
        assert!(state.most <= MOST, "{} in flight", state.most);
        // No window has more than the rate.
        let mut grants: Vec<_> = self.kept.iter().collect();
        grants.sort_by_key(|held| state.held[*held]);
        for (at, first) in grants.iter().enumerate() {
            let begin = state.held[*first];
            let same = |held: &&&(u64, PermitId)| limiter_of(held.0) == limiter_of(first.0);
            let within = |held: &&&(u64, PermitId)| state.held[**held] < begin + LIMIT.interval();
            let count = grants[at..].iter().filter(same).filter(within).count();
            assert!(count as u64 <= LIMIT.permits(), "{count} in a window");
        }
        drop(state);
        self.world.is_empty();
    }
}

fn play(seed: u64) {
    let _seed = Seed(seed);
    let mut history = History::new(seed);
    let steps = 10 + history.dice.roll(150);
    for _ in 0..steps {
        history.step();
    }
    history.ends();
    history.judge();
}

/// Half of them are others each time. `TOWER_RATELIMIT_HISTORIES` says how many,
/// `TOWER_RATELIMIT_SEED` which one alone.
#[test]
fn whatever_happens_every_law_is_kept() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    if let Some(seed) = number("TOWER_RATELIMIT_SEED") {
        return play(seed);
    }
    let count = if cfg!(inside) { 8000 } else { 2000 };
    let half = number("TOWER_RATELIMIT_HISTORIES").unwrap_or(count) / 2;
    let other = RandomState::new().build_hasher().finish() >> 1;
    (1..=half).chain(other..other + half).for_each(play);
}
