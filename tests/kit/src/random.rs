//! Random numbers that a seed repeats.

/// SplitMix64: small, and the same sequence for a seed on every machine and in every version.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.draw() % end
    }

    /// A place among so many.
    pub fn place(&mut self, among: usize) -> usize {
        (self.draw() % among as u64) as usize
    }

    pub fn one_in(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }

    pub fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    pub fn of<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.place(choices.len())].clone()
    }

    pub fn within(&mut self, from: i64, to: i64) -> i64 {
        from + self.below((to - from + 1) as u64) as i64
    }
}

/// The seed of a random run: of the environment, or one that no run had before. It is printed where
/// a test fails.
pub fn seed() -> u64 {
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    let seed = setting("TOWER_RATELIMIT_SEED", now.as_nanos() as u64);
    println!("TOWER_RATELIMIT_SEED={seed}");
    seed
}

/// Leaves out steps as long as what is left still fails. `play` says in which step, and how.
pub fn shrink<S: Clone>(
    mut steps: Vec<S>,
    mut failure: (usize, String),
    mut play: impl FnMut(&[S]) -> Result<(), (usize, String)>,
) -> (Vec<S>, (usize, String)) {
    steps.truncate(failure.0 + 1);
    let mut size = steps.len();
    while size > 0 {
        let mut from = 0;
        while from < steps.len() {
            let mut fewer = steps.clone();
            fewer.drain(from..(from + size).min(steps.len()));
            match play(&fewer) {
                Err(still) => {
                    fewer.truncate(still.0 + 1);
                    (steps, failure) = (fewer, still);
                }
                Ok(()) => from += size,
            }
        }
        size /= 2;
    }
    (steps, failure)
}

/// A number that the environment sets, or another one.
pub fn setting<T: std::str::FromStr>(name: &str, otherwise: T) -> T {
    let given = std::env::var(name).ok();
    given.map_or(otherwise, |text| {
        let number = text.parse().ok();
        number.unwrap_or_else(|| panic!("{name} is {text:?}, not a number"))
    })
}
