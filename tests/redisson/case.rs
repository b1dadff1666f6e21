//! Random sequences of steps on one limiter.

use std::fmt;

use super::model::{Condition, Generation, Limit};
use kit::random::Random;

/// Who does a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Actor {
    /// One of two Redisson instances, perhaps of two versions
    Java(usize),
    /// 0 has a client id of its own, 1 that of the first Redisson instance
    Rust(usize),
    /// A server that evicts a key
    Redis,
}

#[derive(Clone, Debug)]
pub enum Op {
    Demand(i64),
    /// So many acquires of one permit, a millisecond apart
    Burst(i64),
    /// The actor's last acquire comes again, byte for byte
    Resend,
    /// The actor's last grant, by its receipt, at so many permits
    Settle(i64),
    Available,
    TrySetRate(Limit),
    /// Redisson's older form, which says nothing of the state
    SetRate(Limit),
    /// setRate(args), with or without keepState
    Set(Limit, bool),
    /// updateRate(args), with or without keepState
    Update(Limit, bool),
    Release(i64),
    Config,
    Expire(i64, Condition),
    ClearExpire,
    Life,
    Delete,
    Exists,
    /// To the other name
    Rename,
    LoseValue(bool),
    LoseLog(bool),
    /// No call comes until every key that has a time to live has vanished
    Idle,
}

#[derive(Clone, Debug)]
pub struct Step {
    pub actor: Actor,
    /// Which of the two names
    pub on: usize,
    /// Milliseconds since the case began
    pub at: i64,
    pub op: Op,
}

#[derive(Clone)]
pub struct Case {
    pub seed: u64,
    /// What stands before and behind the unique part of the names
    pub names: (&'static str, &'static str),
    /// Which of the versions the two Redisson instances have
    pub versions: [usize; 2],
    /// How far each clock is off: two of Java, two of Rust
    pub skews: [i64; 4],
    /// By how many slots Rust notes what it grants; none: each grant by itself
    pub slots: Option<u32>,
    pub steps: Vec<Step>,
    /// Whether nothing that happens may disturb Java
    pub is_peer: bool,
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            names,
            versions,
            skews,
            slots,
            steps,
            ..
        } = self;
        writeln!(
            f,
            "names {names:?}, versions {versions:?}, skews {skews:?}, slots {slots:?}"
        )?;
        for (number, Step { actor, on, at, op }) in steps.iter().enumerate() {
            writeln!(f, "{number:>3}  {at:>6} ms  name {on}  {actor:?}  {op:?}")?;
        }
        Ok(())
    }
}

pub const HOUR: i64 = 3_600_000;

impl Case {
    /// `generations` are those of the versions in this run.
    pub fn random(seed: u64, generations: &[Generation]) -> Self {
        let mut random = Random(seed);
        let random = &mut random;
        let versions = [
            random.place(generations.len()),
            random.place(generations.len()),
        ];
        let names = random.of(&[
            ("", ""),
            ("svc{", "}:api"),
            ("", ":ключ/é"),
            ("a b\"\\", "{t}"),
        ]);
        let skews = if random.percent(70) {
            [0; 4]
        } else {
            [0; 4].map(|_: i64| random.of(&[0, 5, -5, 50, -300, 1000, -7000]))
        };
        let slots = random.of(&[Some(10), Some(100), Some(10_000)]);
        let slots = slots.filter(|_| random.percent(15));
        let temper = Temper {
            per_client: random.percent(40),
            keep_alive: random.percent(40),
            // Java's release and what is no number of permits spoil the books; most cases do
            // without.
            releases: random.percent(35),
            odd_permits: random.percent(10),
            losses: random.percent(35),
            many: random.percent(8),
            interval: random.of(&[5, 200, 1000, 1000, 3000]),
        };
        let mut at = 0;
        let mut steps = Vec::new();
        for number in 0..random.within(5, 60) {
            at += if temper.many && random.percent(30) {
                // Many entries have expired, and the newest have not.
                temper.interval - random.within(1, 100)
            } else {
                random.of(&[
                    0, 0, 0, 0, 0, 1, 3, 7, 50, 50, 200, 200, 500, 999, 1000, 1001, 3000,
                ])
            };
            let step = temper.step(random, number, at);
            // Nothing of slots is sent again.
            let is_sent =
                slots.is_none() || !matches!((step.actor, &step.op), (Actor::Rust(_), Op::Resend));
            if is_sent && supports(&step, generations, versions) {
                if let Op::Burst(count) = step.op {
                    at += count;
                }
                steps.push(step);
            }
        }
        Self {
            seed,
            names,
            versions,
            skews,
            slots,
            steps,
            is_peer: false,
        }
    }

    /// Returns a case of these steps, without those that the first version lacks.
    pub fn of(steps: impl Iterator<Item = Step>, generations: &[Generation]) -> Self {
        Self {
            seed: 0,
            names: ("", ""),
            versions: [0; 2],
            skews: [0; 4],
            slots: None,
            is_peer: false,
            steps: steps
                .filter(|step| supports(step, generations, [0; 2]))
                .collect(),
        }
    }

    /// Java acquires beside Rust, which lowers rates, gives back, and whose scores run ahead as
    /// those of leases and of slots do.
    pub fn peer(seed: u64, generations: &[Generation]) -> Self {
        let mut case = Self::random(seed, generations);
        let mut random = Random(!seed);
        let interval = random.of(&[200, 1000, 3000]);
        case.is_peer = true;
        case.skews = [
            0,
            0,
            random.of(&[0, interval / 10]),
            random.of(&[0, interval / 10]),
        ];
        for step in &mut case.steps {
            step.on = 0;
            if let Op::TrySetRate(limit) | Op::Set(limit, _) | Op::Update(limit, _) = &mut step.op {
                limit.per_client = false;
                limit.interval = interval;
            }
        }
        case.steps.retain(|step| match step.actor {
            Actor::Java(_) => match step.op {
                Op::Demand(permits) => permits > 0,
                _ => matches!(step.op, Op::Available | Op::Config | Op::Life),
            },
            Actor::Rust(_) => !matches!(step.op, Op::Delete | Op::Rename),
            Actor::Redis => matches!(step.op, Op::Idle),
        });
        // What Redisson did last leaves `value` behind with no call of ours in it.
        let steps = case.steps.into_iter().flat_map(|step| {
            let ask = Step {
                actor: Actor::Rust(0),
                op: Op::Demand(1),
                ..step
            };
            let asked = matches!(step.op, Op::Idle).then_some(ask);
            asked.into_iter().chain([step])
        });
        case.steps = steps.collect();
        case
    }
}

/// What one case is inclined to.
#[derive(Clone, Copy, Debug)]
struct Temper {
    per_client: bool,
    keep_alive: bool,
    releases: bool,
    odd_permits: bool,
    losses: bool,
    /// Hundreds of entries
    many: bool,
    interval: i64,
}

impl Temper {
    fn step(self, random: &mut Random, number: i64, at: i64) -> Step {
        let actor = if random.percent(50) {
            Actor::Java(random.place(2))
        } else {
            Actor::Rust(usize::from(random.percent(30)))
        };
        let on = usize::from(random.percent(12));
        let step = |op| Step { actor, on, at, op };
        if number == 0 && random.percent(90) {
            return Step {
                on: 0,
                ..step(Op::TrySetRate(self.limit(random)))
            };
        }
        let permits = |random: &mut Random| {
            let java = matches!(actor, Actor::Java(_));
            match random.place(10) {
                0 if self.odd_permits && java => random.of(&[0, 0, -1, -3]),
                0 if self.odd_permits => 0,
                0..5 => 1,
                _ => random.within(1, 9),
            }
        };
        match random.place(106) {
            52..56 => step(Op::Resend),
            56..59 if matches!(actor, Actor::Rust(_)) => {
                let keep = if random.percent(40) {
                    0
                } else {
                    random.within(0, 14)
                };
                step(Op::Settle(keep))
            }
            56..66 => step(Op::Available),
            66..71 => step(Op::TrySetRate(self.limit(random))),
            71..76 if self.releases => step(Op::Release(random.within(0, 6))),
            76 => step(Op::SetRate(self.limit(random))),
            77 => step(Op::Set(self.limit(random), random.percent(50))),
            78..82 => step(Op::Update(self.limit(random), random.percent(70))),
            82 | 83 => step(Op::Config),
            84..87 => {
                let condition = random.of(&[
                    Condition::Always,
                    Condition::IfSet,
                    Condition::IfNotSet,
                    Condition::IfGreater,
                    Condition::IfLess,
                ]);
                // Two of a case are never so near that the time between them decides which is the
                // longer.
                step(Op::Expire(
                    HOUR + number * 120_000 + random.of(&[0, 4 * HOUR]),
                    condition,
                ))
            }
            87 => step(Op::ClearExpire),
            88 => step(Op::Life),
            89 => step(Op::Exists),
            90 => step(Op::Delete),
            91 => step(Op::Rename),
            92..96 if self.losses => {
                let lost = if random.percent(50) {
                    Op::LoseValue
                } else {
                    Op::LoseLog
                };
                Step {
                    actor: Actor::Redis,
                    ..step(lost(self.per_client))
                }
            }
            104..106 => Step {
                actor: Actor::Redis,
                ..step(Op::Idle)
            },
            96..99 if self.many => step(Op::Burst(random.within(150, 250))),
            // Half of all steps, and those that a case does without.
            _ => step(Op::Demand(permits(random))),
        }
    }

    fn limit(self, random: &mut Random) -> Limit {
        Limit {
            rate: if self.many {
                random.within(500, 600)
            } else {
                random.within(1, 10)
            },
            // A changed interval is a case of its own.
            interval: if random.percent(85) {
                self.interval
            } else {
                random.of(&[5, 200, 1000, 3000])
            },
            per_client: self.per_client != random.percent(4),
            keep_alive: Some(if self.keep_alive && random.percent(80) {
                3 * HOUR + 60_000
            } else {
                0
            }),
            ttl: None,
        }
    }
}

fn supports(step: &Step, generations: &[Generation], versions: [usize; 2]) -> bool {
    let java = match step.actor {
        Actor::Java(instance) => generations[versions[instance]],
        Actor::Rust(_) => {
            // Ours is the newer form.
            return !matches!(step.op, Op::SetRate(_));
        }
        Actor::Redis => return true,
    };
    java == Generation::KeepsAlive
        || !matches!(step.op, Op::Set(..) | Op::Update(..) | Op::Release(_))
}
