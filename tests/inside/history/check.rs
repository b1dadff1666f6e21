//! Checks whether there is an order in which the bare store could have given all answers of a
//! history.
//!
//! The search of Wing and Gong: at each point of the order one of those steps comes next that no
//! other one had ended before; a state that leads nowhere is not tried twice (Lowe). A legal order
//! is a proof, however it was guessed: what a server showed of its own order only says where to
//! look first.

use super::{
    spec::{State, Taken},
    ways::{Guide, Hint, Ways},
    *,
};

/// More attempts than a true history has ever taken, by far.
const MOST_ATTEMPTS: usize = 50_000;

#[derive(Debug)]
pub(crate) enum Verdict {
    /// With the number of attempts that it took to find the order
    Legal(usize),
    /// There is no such order: what was found of one, and why it went no further
    Illegal(String),
    /// There are too many to try them all
    Undecided(String),
}

/// Searches for an order: at first among those that agree with the hints, then among all.
pub(crate) fn check(history: &History, hints: &[Hint]) -> Verdict {
    let mut guided = Search::new(history, hints, true);
    if let OpResult::Found = guided.run() {
        return Verdict::Legal(guided.attempts);
    }
    let mut search = Search::new(history, hints, false);
    let outcome = search.run();
    // That of the guided search is the nearer to what has happened, if it was guided at all.
    let story = format!("{}\nwithout hints, {}", guided.longest.1, search.longest.1);
    match outcome {
        OpResult::Found => Verdict::Legal(guided.attempts + search.attempts),
        OpResult::None => Verdict::Illegal(story),
        OpResult::TooMany => Verdict::Undecided(story),
    }
}

enum OpResult {
    Found,
    None,
    TooMany,
}

struct Search<'a> {
    history: &'a History,
    guide: Guide<'a>,
    taken: Vec<bool>,
    /// States that lead nowhere, by what was taken before.
    dead: HashMap<Vec<u64>, Vec<State>>,
    attempts: usize,
    /// The longest order that was found, and why it ends.
    longest: (usize, String),
}

/// One place in the order: the state there, and what may come next.
struct Place<'a> {
    state: State,
    /// What led here.
    step: Option<(usize, Taken)>,
    choices: Ways<'a>,
    why: Vec<(usize, String)>,
}

impl<'a> Search<'a> {
    fn new(history: &'a History, hints: &'a [Hint], guided: bool) -> Self {
        Self {
            history,
            guide: Guide {
                history,
                hints,
                strict: guided,
            },
            taken: vec![false; history.steps.len()],
            dead: HashMap::new(),
            attempts: 0,
            longest: (0, String::new()),
        }
    }

    fn run(&mut self) -> OpResult {
        let first = self.place(State::new(self.history), None);
        let mut places = vec![first];
        while let Some(place) = places.last_mut() {
            let Some((step, taken)) = place.choices.next() else {
                self.leave(&mut places);
                continue;
            };
            self.attempts += 1;
            if self.attempts > MOST_ATTEMPTS {
                self.note(&places);
                return OpResult::TooMany;
            }
            let state = match place.state.after(self.history, step, taken) {
                Ok(state) => state,
                Err(why) => {
                    place.why.push((step, why));
                    continue;
                }
            };
            self.taken[step] = true;
            if places.len() == self.history.steps.len() {
                return OpResult::Found;
            }
            let known = self.dead.get(&self.key());
            if known.is_some_and(|states| states.contains(&state)) {
                self.taken[step] = false;
                continue;
            }
            let place = self.place(state, Some((step, taken)));
            places.push(place);
        }
        OpResult::None
    }

    fn place(&self, state: State, step: Option<(usize, Taken)>) -> Place<'a> {
        Place {
            choices: self.choices(&state),
            state,
            step,
            why: Vec::new(),
        }
    }

    /// Goes back to where another step may come instead.
    fn leave(&mut self, places: &mut Vec<Place<'a>>) {
        self.note(places);
        let Some(place) = places.pop() else {
            return;
        };
        self.dead.entry(self.key()).or_default().push(place.state);
        if let Some((step, _)) = place.step {
            self.taken[step] = false;
        }
    }

    fn note(&mut self, places: &[Place<'a>]) {
        if places.len() > self.longest.0 {
            self.longest = (places.len(), self.story(places));
        }
    }

    /// Everything that began before anything else that is left was over, in the order of the hints.
    fn next(&self) -> Vec<usize> {
        let steps = &self.history.steps;
        let left = || (0..steps.len()).filter(|step| !self.taken[*step]);
        let first_end = left().filter_map(|step| steps[step].ended).min();
        let first_end = first_end.unwrap_or(u64::MAX);
        let mut next: Vec<_> = left()
            .filter(|step| steps[*step].begun < first_end)
            .filter(|step| steps[*step].before.iter().all(|before| self.taken[*before]))
            .collect();
        next.sort_by_key(|step| (self.guide.place(*step, &self.taken), *step));
        next
    }

    /// What may come next.
    fn choices(&self, state: &State) -> Ways<'a> {
        let next = self.next();
        // What has no place does not delay what has one.
        let left = (0..self.taken.len()).filter(|step| !self.taken[*step]);
        let latest = left.filter_map(|step| self.guide.earliest(step));
        let latest = match self.history.clock {
            Counted::ByServer => latest.min().unwrap_or(i64::MAX),
            Counted::ByHand(_) => i64::MAX,
        };
        let first = next
            .iter()
            .filter_map(|step| self.guide.place(*step, &self.taken))
            .min();
        let agrees = |step: &usize| {
            let place = self.guide.place(*step, &self.taken);
            !self.guide.strict || place.is_none() || place == first
        };
        let next = next.into_iter().filter(agrees);
        let ways: Vec<_> = next
            .map(|step| self.guide.ways(state.now, step, &self.taken, latest))
            .collect();
        Box::new(ways.into_iter().flatten())
    }

    fn key(&self) -> Vec<u64> {
        let words = self.taken.chunks(64).map(|chunk| {
            let bits = chunk.iter().enumerate();
            bits.fold(0, |word, (bit, taken)| word | u64::from(*taken) << bit)
        });
        words.collect()
    }

    /// Shows what went wrong.
    fn story(&self, places: &[Place<'a>]) -> String {
        let path: Vec<_> = places.iter().filter_map(|place| place.step).collect();
        let mut story = format!("{} of {} taken, at last:\n", path.len(), self.taken.len());
        for (step, taken) in &path[path.len().saturating_sub(25)..] {
            story += &format!("  {taken:?}: {}\n", self.shown(*step));
        }
        if let Some(last) = places.last() {
            story += &format!("then {:?}\n", last.state);
            let mut why = last.why.clone();
            why.dedup();
            for (step, why) in why.iter().take(24) {
                story += &format!("  not {}: {why}\n", self.shown(*step));
            }
            for step in self.next() {
                story += &format!("  left {}\n", self.shown(step));
            }
        }
        story
    }

    fn shown(&self, step: usize) -> String {
        format!(
            "{} {:?}",
            self.history.step(step),
            self.guide.hint(step, &self.taken)
        )
    }
}
