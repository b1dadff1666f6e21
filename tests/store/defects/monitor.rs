//! The commands that concern one limiter, as the shared server executes them.

use kit::{
    monitor::{Feed, Seen},
    scene::*,
};

pub(crate) struct Monitor(Feed);

impl Monitor {
    /// Sees what is executed from now on.
    pub(crate) fn start() -> Self {
        Self(Feed::open(RedisServer::shared()))
    }

    /// Returns the commands since the last call on the keys or scripts of one limiter.
    pub(crate) fn seen(&mut self, name: &str) -> Vec<Seen> {
        let mut seen = self.0.until_now(RedisServer::shared());
        let other_key = format!("{{{name}}}:");
        let concerns = |word: &String| word == name || word.starts_with(&other_key);
        seen.retain(|seen| seen.words.iter().any(concerns));
        seen
    }

    /// Returns how often a script was called on one limiter.
    pub(crate) fn calls(&mut self, name: &str) -> usize {
        let seen = self.seen(name);
        // A script that the server does not know runs no command, and is called again.
        let ran = |pair: &&[Seen]| pair[0].is_script() && pair[1].by_script;
        seen.windows(2).filter(ran).count()
    }
}
