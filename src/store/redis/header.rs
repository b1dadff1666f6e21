//! The line that a store has in front of its scripts: [`Header`].

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use crate::{
    sync::lock,
    values::error::{ConfigError, bail},
};

/// A line in front of each script, and the hashes of scripts with it.
pub(crate) struct Header {
    line: Box<str>,
    /// By the address of the script's text.
    hashes: Mutex<HashMap<usize, Arc<str>>>,
}

impl Header {
    /// # Errors
    ///
    /// It is more than one line, or neither a `#!` line nor a comment.
    pub(crate) fn new(line: &str) -> Result<Arc<Self>, ConfigError> {
        // A comment in brackets would go on behind the line.
        let is_comment = line.starts_with("--") && !line.starts_with("--[");
        if line.contains(['\n', '\r']) || !(line.starts_with("#!") || is_comment) {
            bail!(Store: "the header of scripts {line:?} is not one line that begins with `#!` or \
                `--`");
        }
        Ok(Arc::new(Self {
            line: line.into(),
            hashes: Mutex::default(),
        }))
    }

    /// Returns a script with the line in front of it.
    pub(crate) fn before(&self, script: &str) -> String {
        format!("{}\n{script}", self.line)
    }

    /// Returns the hash of that text.
    pub(crate) fn sha1(&self, script: &'static str) -> Arc<str> {
        let mut hashes = lock(&self.hashes);
        let hash = hashes.entry(script.as_ptr().addr());
        let hash = hash.or_insert_with(|| {
            let script = redis::Script::new(&self.before(script));
            script.get_hash().into()
        });
        Arc::clone(hash)
    }
}
