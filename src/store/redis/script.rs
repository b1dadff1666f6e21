//! The scripts, and how one is called: by its hash, and with its text where the server does not know the hash.

use std::sync::LazyLock;

use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, Value};

use super::connection::{Connection, Failed};
use crate::limit::Algorithm;

macro_rules! text {
    ($file:literal) => {
        concat!(
            include_str!("../../../lua/lib/state.lua"),
            include_str!(concat!("../../../lua/", $file))
        )
    };
}

/// Joins the shared pieces and one operation at compile time; before them, what may do without.
macro_rules! script {
    ($file:literal) => {
        Script::new(text!($file))
    };
    ($first:literal, $file:literal) => {
        Script::new(concat!(
            include_str!(concat!("../../../lua/", $first)),
            text!($file)
        ))
    };
}

/// The same for an algorithm of its own: the piece that its scripts share, and one operation.
macro_rules! fixed_window {
    ($file:literal) => {
        Script::new(concat!(
            include_str!("../../../lua/lib/state.lua"),
            include_str!("../../../lua/lib/fixed_window.lua"),
            include_str!(concat!("../../../lua/fixed_window/", $file))
        ))
    };
}

pub(crate) static ACQUIRE: LazyLock<Script> =
    LazyLock::new(|| script!("acquire.lua", "acquire_list.lua"));
pub(crate) static ACQUIRE_LIST: LazyLock<Script> = LazyLock::new(|| script!("acquire_list.lua"));
pub(crate) static AVAILABLE: LazyLock<Script> = LazyLock::new(|| script!("available.lua"));
pub(crate) static CLEAR_EXPIRE: LazyLock<Script> = LazyLock::new(|| script!("clear_expire.lua"));
pub(crate) static DIAGNOSE: LazyLock<Script> = LazyLock::new(|| script!("diagnose.lua"));
pub(crate) static EXPIRE: LazyLock<Script> = LazyLock::new(|| script!("expire.lua"));
pub(crate) static RELEASE: LazyLock<Script> = LazyLock::new(|| script!("release.lua"));
pub(crate) static RENAME: LazyLock<Script> = LazyLock::new(|| script!("rename.lua"));
pub(crate) static REPAIR: LazyLock<Script> = LazyLock::new(|| script!("repair.lua"));
pub(crate) static SET_RATE: LazyLock<Script> = LazyLock::new(|| script!("set_rate.lua"));
pub(crate) static SETTLE: LazyLock<Script> = LazyLock::new(|| script!("settle.lua"));
pub(crate) static TRY_SET_RATE: LazyLock<Script> = LazyLock::new(|| script!("try_set_rate.lua"));

/// The operations that count otherwise in a fixed window. The others know nothing of how permits are counted.
pub(crate) mod fixed_window {
    use super::{LazyLock, Script};

    pub(crate) static ACQUIRE: LazyLock<Script> = LazyLock::new(|| fixed_window!("acquire.lua"));
    pub(crate) static AVAILABLE: LazyLock<Script> =
        LazyLock::new(|| fixed_window!("available.lua"));
    pub(crate) static CLEAR_EXPIRE: LazyLock<Script> =
        LazyLock::new(|| fixed_window!("clear_expire.lua"));
    pub(crate) static EXPIRE: LazyLock<Script> = LazyLock::new(|| fixed_window!("expire.lua"));
    pub(crate) static RELEASE: LazyLock<Script> = LazyLock::new(|| fixed_window!("release.lua"));
    pub(crate) static REPAIR: LazyLock<Script> = LazyLock::new(|| fixed_window!("repair.lua"));
    pub(crate) static SET_RATE: LazyLock<Script> = LazyLock::new(|| fixed_window!("set_rate.lua"));
    pub(crate) static SETTLE: LazyLock<Script> = LazyLock::new(|| fixed_window!("settle.lua"));
}

/// What the verbs of one algorithm are carried out by.
pub(crate) struct Verbs {
    pub(crate) available: &'static Script,
    pub(crate) clear_expire: &'static Script,
    pub(crate) expire: &'static Script,
    pub(crate) release: &'static Script,
    pub(crate) repair: &'static Script,
    pub(crate) set_rate: &'static Script,
}

impl Verbs {
    pub(crate) fn of(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::SlidingLog => Self {
                available: &AVAILABLE,
                clear_expire: &CLEAR_EXPIRE,
                expire: &EXPIRE,
                release: &RELEASE,
                repair: &REPAIR,
                set_rate: &SET_RATE,
            },
            Algorithm::FixedWindow => Self {
                available: &fixed_window::AVAILABLE,
                clear_expire: &fixed_window::CLEAR_EXPIRE,
                expire: &fixed_window::EXPIRE,
                release: &fixed_window::RELEASE,
                repair: &fixed_window::REPAIR,
                set_rate: &fixed_window::SET_RATE,
            },
        }
    }
}

/// One operation's text and its hash.
#[derive(Debug)]
pub(crate) struct Script {
    text: &'static str,
    sha1: String,
}

impl Script {
    fn new(text: &'static str) -> Self {
        Self {
            text,
            sha1: redis::Script::new(text).get_hash().to_owned(),
        }
    }

    /// Calls it: one command, and one more where the server has lost, or never had, the script.
    ///
    /// That second command carries the whole text, so that it loads the script on the very node that lacks it; SCRIPT
    /// LOAD would go to every node of a Cluster and fail with the first that is down.
    ///
    /// # Cancel safety
    ///
    /// Dropping it may leave the script executed or not.
    pub(crate) async fn call(
        &self,
        connection: &Connection,
        arguments: &Arguments,
    ) -> Result<Value, Failed> {
        match connection
            .send(&arguments.command("EVALSHA", &self.sha1))
            .await
        {
            Err(failed) if is_unknown_script(&failed.error) => {
                connection.send(&arguments.command("EVAL", self.text)).await
            }
            reply => reply,
        }
    }

    /// Calls it at most once: a lost connection is an error, as nobody knows whether it ran.
    pub(crate) async fn call_once(
        &self,
        connection: &Connection,
        arguments: &Arguments,
    ) -> Result<Value, Failed> {
        match connection
            .send_once(&arguments.command("EVALSHA", &self.sha1))
            .await
        {
            // It certainly did not run.
            Err(failed) if is_unknown_script(&failed.error) => {
                connection
                    .send_once(&arguments.command("EVAL", self.text))
                    .await
            }
            reply => reply,
        }
    }

    /// Whether a call names it, by hash or text.
    #[cfg(test)]
    pub(crate) fn is_named(&self, script: &[u8]) -> bool {
        script == self.sha1.as_bytes() || script == self.text.as_bytes()
    }

    /// The command by hash, or, if `whole`, by text.
    pub(crate) fn command(&self, arguments: &Arguments, whole: bool) -> Cmd {
        if whole {
            arguments.command("EVAL", self.text)
        } else {
            arguments.command("EVALSHA", &self.sha1)
        }
    }
}

/// The KEYS and ARGV of a call.
#[derive(Debug)]
pub(crate) struct Arguments {
    keys: Vec<String>,
    argv: Vec<Vec<u8>>,
}

impl Arguments {
    pub(crate) fn new(keys: impl Into<Vec<String>>, argv: Vec<Vec<u8>>) -> Self {
        Self {
            keys: keys.into(),
            argv,
        }
    }

    /// The same for other keys.
    #[cfg(test)]
    pub(crate) fn on(self, keys: impl Into<Vec<String>>) -> Self {
        Self::new(keys, self.argv)
    }

    fn command(&self, verb: &str, script: &str) -> Cmd {
        let bytes: usize = self.keys.iter().map(String::len).sum::<usize>()
            + self.argv.iter().map(Vec::len).sum::<usize>();
        let mut command = Cmd::with_capacity(
            3 + self.keys.len() + self.argv.len(),
            16 + script.len() + bytes,
        );
        command.arg(verb).arg(script).arg(self.keys.len());
        for key in &self.keys {
            command.arg(key);
        }
        for argument in &self.argv {
            command.arg(argument.as_slice());
        }
        command
    }
}

pub(crate) fn is_unknown_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}
