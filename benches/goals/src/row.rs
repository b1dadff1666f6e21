//! A row: the same work by two sides, in turns.

use crate::{contenders::Contender, figures::median};

/// Work that has a goal.
pub(crate) struct Row {
    pub(crate) name: String,
    /// What was measured, exactly
    pub(crate) parameters: String,
    /// Who stands beside this crate
    pub(crate) beside: &'static str,
    pub(crate) needs: &'static [Contender],
    pub(crate) rounds: Rounds,
    pub(crate) figures: Vec<Figure>,
    /// Makes both sides ready.
    pub(crate) begin: Box<dyn FnOnce() -> Box<dyn Contest>>,
}

/// How often each side has its turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rounds {
    /// At first, not counted
    pub(crate) warm_up: usize,
    pub(crate) counted: usize,
}

impl Rounds {
    /// For what is exact.
    pub(crate) const ONCE: Self = Self::of(0, 1);

    pub(crate) const fn of(warm_up: usize, counted: usize) -> Self {
        Self { warm_up, counted }
    }
}

/// One number that a turn yields.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figure {
    pub(crate) name: &'static str,
    pub(crate) goal: Goal,
}

pub(crate) const fn figure(name: &'static str, goal: Goal) -> Figure {
    Figure { name, goal }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Goal {
    /// Of what the other side needs
    RatioAtMost(f64),
    /// Of what the other side reaches
    RatioAtLeast(f64),
    /// Whatever the other side needs
    AtMost(f64),
    /// None: the figure is reported only.
    Reported,
}

/// Two sides, ready to be measured.
pub(crate) trait Contest {
    /// One turn of this crate: a number for each figure.
    fn ours(&mut self) -> Vec<f64>;

    /// One turn of the other side; none where a figure says nothing about it.
    fn theirs(&mut self) -> Vec<Option<f64>>;
}

/// What a row has shown.
pub(crate) struct Measured {
    pub(crate) name: String,
    pub(crate) figures: Vec<Compared>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Compared {
    pub(crate) figure: Figure,
    pub(crate) ours: Spread,
    pub(crate) beside: Option<Beside>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Beside {
    /// The median
    pub(crate) theirs: f64,
    /// Of the medians
    pub(crate) ratio: f64,
    /// Of each round
    pub(crate) ratios: Spread,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Row {
    /// Its name, and below it what is measured, beside what, and in how many rounds.
    pub(crate) fn description(&self) -> String {
        format!(
            "{}\n    {}; beside {}; rounds: {}",
            self.name, self.parameters, self.beside, self.rounds.counted
        )
    }

    pub(crate) fn measure(self) -> Measured {
        let mut contest = (self.begin)();
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for round in 0..self.rounds.warm_up + self.rounds.counted {
            // Each goes first every other time.
            let (our, their) = if round % 2 == 0 {
                let our = contest.ours();
                (our, contest.theirs())
            } else {
                let their = contest.theirs();
                (contest.ours(), their)
            };
            if round >= self.rounds.warm_up {
                ours.push(our);
                theirs.push(their);
            }
        }
        let compared = |(place, figure): (usize, &Figure)| {
            let ours: Vec<f64> = ours.iter().map(|turn| turn[place]).collect();
            let theirs: Option<Vec<f64>> = theirs.iter().map(|turn| turn[place]).collect();
            Compared {
                figure: *figure,
                ours: Spread::of(&ours),
                beside: theirs.map(|theirs| Beside::of(&ours, &theirs)),
            }
        };
        Measured {
            figures: self.figures.iter().enumerate().map(compared).collect(),
            name: self.name,
        }
    }
}

impl Beside {
    fn of(ours: &[f64], theirs: &[f64]) -> Self {
        let ratios: Vec<f64> = ours
            .iter()
            .zip(theirs)
            .map(|(ours, theirs)| ours / theirs)
            .collect();
        let theirs = median(theirs.to_vec());
        Self {
            theirs,
            ratio: median(ours.to_vec()) / theirs,
            ratios: Spread::of(&ratios),
        }
    }
}

impl Spread {
    fn of(numbers: &[f64]) -> Self {
        Self {
            median: median(numbers.to_vec()),
            min: numbers.iter().copied().fold(f64::INFINITY, f64::min),
            max: numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        }
    }
}

impl Compared {
    /// Whether the goal is met, if it is one.
    pub(crate) fn met(&self) -> Option<bool> {
        let ratio = || self.beside.map_or(f64::NAN, |beside| beside.ratio);
        match self.figure.goal {
            Goal::RatioAtMost(most) => Some(ratio() <= most),
            Goal::RatioAtLeast(least) => Some(ratio() >= least),
            Goal::AtMost(most) => Some(self.ours.median <= most),
            Goal::Reported => None,
        }
    }
}
