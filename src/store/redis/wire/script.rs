//! The scripts, and how one is called: by its hash, and with its text where the server does not know the hash.

use std::sync::LazyLock;

use redis::{Cmd, RedisError, Value};

use super::arguments::Arguments;
use crate::{
    limit::Algorithm,
    store::redis::{
        classify::Class,
        transport::{
            connection::{Connection, Failed},
            link::To,
        },
    },
};

/// Joins files at compile time.
macro_rules! joined {
    ($($file:literal),+) => {
        Script::new(concat!($(include_str!(concat!("../../../../lua/", $file))),+))
    };
}

/// What all scripts know of the state, what some of them share, and one operation.
macro_rules! script {
    ($($file:literal),+) => {
        joined!("lib/state.lua", $($file),+)
    };
}

/// The same for an algorithm of its own: the piece that its scripts share, and one operation.
macro_rules! script_of {
    ($algorithm:literal, $file:literal) => {
        Script::new(concat!(
            include_str!("../../../../lua/lib/state.lua"),
            include_str!(concat!("../../../../lua/lib/", $algorithm, ".lua")),
            include_str!(concat!("../../../../lua/", $algorithm, "/", $file))
        ))
    };
}

/// What may do without all that comes first, and leaves what is not usual to that.
pub(crate) static ACQUIRE: LazyLock<Script> = LazyLock::new(|| {
    joined!(
        "acquire.lua",
        "lib/state.lua",
        "lib/entries.lua",
        "acquire_list.lua"
    )
});
pub(crate) static ACQUIRE_LIST: LazyLock<Script> =
    LazyLock::new(|| script!("lib/entries.lua", "acquire_list.lua"));
pub(crate) static AVAILABLE: LazyLock<Script> = LazyLock::new(|| script!("available.lua"));
pub(crate) static CLEAR_EXPIRE: LazyLock<Script> = LazyLock::new(|| script!("clear_expire.lua"));
pub(crate) static EXPIRE: LazyLock<Script> = LazyLock::new(|| script!("expire.lua"));
pub(crate) static RELEASE: LazyLock<Script> = LazyLock::new(|| script!("release.lua"));
pub(crate) static RENAME: LazyLock<Script> = LazyLock::new(|| script!("rename.lua"));
pub(crate) static REPAIR: LazyLock<Script> = LazyLock::new(|| script!("repair.lua"));
pub(crate) static SET_RATE: LazyLock<Script> = LazyLock::new(|| script!("set_rate.lua"));
pub(crate) static SETTLE: LazyLock<Script> =
    LazyLock::new(|| script!("lib/entries.lua", "settle.lua"));
pub(crate) static TRY_SET_RATE: LazyLock<Script> = LazyLock::new(|| script!("try_set_rate.lua"));

/// The operations that count otherwise in a fixed window. The others know nothing of how permits are counted.
pub(crate) mod fixed_window {
    use super::{LazyLock, Script};

    pub(crate) static ACQUIRE: LazyLock<Script> =
        LazyLock::new(|| script_of!("fixed_window", "acquire.lua"));
    pub(crate) static AVAILABLE: LazyLock<Script> =
        LazyLock::new(|| script_of!("fixed_window", "available.lua"));
    pub(crate) static CLEAR_EXPIRE: LazyLock<Script> =
        LazyLock::new(|| script_of!("fixed_window", "clear_expire.lua"));
    pub(crate) static EXPIRE: LazyLock<Script> =
        LazyLock::new(|| script_of!("fixed_window", "expire.lua"));
    pub(crate) static RELEASE: LazyLock<Script> =
        LazyLock::new(|| script_of!("fixed_window", "release.lua"));
    pub(crate) static REPAIR: LazyLock<Script> =
        LazyLock::new(|| script_of!("fixed_window", "repair.lua"));
    pub(crate) static SET_RATE: LazyLock<Script> =
        LazyLock::new(|| script_of!("fixed_window", "set_rate.lua"));
    pub(crate) static SETTLE: LazyLock<Script> =
        LazyLock::new(|| script_of!("fixed_window", "settle.lua"));
}

/// The operations that count otherwise by GCRA. The first stands alone.
pub(crate) mod gcra {
    use super::{LazyLock, Script};

    pub(crate) static ACQUIRE: LazyLock<Script> =
        LazyLock::new(|| Script::new(include_str!("../../../../lua/gcra/acquire.lua")));
    pub(crate) static ACQUIRE_RUN: LazyLock<Script> =
        LazyLock::new(|| script_of!("gcra", "acquire_run.lua"));
    pub(crate) static AVAILABLE: LazyLock<Script> =
        LazyLock::new(|| script_of!("gcra", "available.lua"));
    pub(crate) static EXPIRE: LazyLock<Script> = LazyLock::new(|| script_of!("gcra", "expire.lua"));
    pub(crate) static RELEASE: LazyLock<Script> =
        LazyLock::new(|| script_of!("gcra", "release.lua"));
    pub(crate) static REPAIR: LazyLock<Script> = LazyLock::new(|| script_of!("gcra", "repair.lua"));
    pub(crate) static SET_RATE: LazyLock<Script> =
        LazyLock::new(|| script_of!("gcra", "set_rate.lua"));
    pub(crate) static SETTLE: LazyLock<Script> = LazyLock::new(|| script_of!("gcra", "settle.lua"));
    pub(crate) static TRY_SET_RATE: LazyLock<Script> =
        LazyLock::new(|| script_of!("gcra", "try_set_rate.lua"));
}

/// The operations that note grants, where they note them in slots. All others find a log as any.
pub(crate) mod slots {
    use super::{LazyLock, Script};

    pub(crate) static ACQUIRE: LazyLock<Script> = LazyLock::new(|| {
        script!(
            "lib/entries.lua",
            "lib/slots.lua",
            "slots/acquire.lua",
            "acquire_list.lua"
        )
    });
    pub(crate) static SETTLE: LazyLock<Script> = LazyLock::new(|| {
        script!(
            "lib/entries.lua",
            "lib/slots.lua",
            "slots/settle.lua",
            "settle.lua"
        )
    });
}

/// What the verbs of one algorithm are carried out by.
pub(crate) struct Verbs {
    pub(crate) available: &'static Script,
    pub(crate) clear_expire: &'static Script,
    pub(crate) expire: &'static Script,
    pub(crate) release: &'static Script,
    pub(crate) repair: &'static Script,
    pub(crate) set_rate: &'static Script,
    pub(crate) settle: &'static Script,
    pub(crate) try_set_rate: &'static Script,
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
                settle: &SETTLE,
                try_set_rate: &TRY_SET_RATE,
            },
            Algorithm::FixedWindow => Self {
                available: &fixed_window::AVAILABLE,
                clear_expire: &fixed_window::CLEAR_EXPIRE,
                expire: &fixed_window::EXPIRE,
                release: &fixed_window::RELEASE,
                repair: &fixed_window::REPAIR,
                set_rate: &fixed_window::SET_RATE,
                settle: &fixed_window::SETTLE,
                try_set_rate: &TRY_SET_RATE,
            },
            Algorithm::Gcra => Self {
                available: &gcra::AVAILABLE,
                clear_expire: &fixed_window::CLEAR_EXPIRE,
                expire: &gcra::EXPIRE,
                release: &gcra::RELEASE,
                repair: &gcra::REPAIR,
                set_rate: &gcra::SET_RATE,
                settle: &gcra::SETTLE,
                try_set_rate: &gcra::TRY_SET_RATE,
            },
        }
    }
}

/// Every script that a limiter can need.
#[cfg(any(test, feature = "inspect"))]
pub(crate) fn all() -> Vec<&'static Script> {
    let mut scripts: Vec<&'static Script> = vec![
        &ACQUIRE,
        &ACQUIRE_LIST,
        &RENAME,
        &fixed_window::ACQUIRE,
        &gcra::ACQUIRE,
        &gcra::ACQUIRE_RUN,
        &slots::ACQUIRE,
        &slots::SETTLE,
    ];
    for algorithm in [
        Algorithm::SlidingLog,
        Algorithm::FixedWindow,
        Algorithm::Gcra,
    ] {
        let of = Verbs::of(algorithm);
        scripts.extend([of.available, of.clear_expire, of.expire, of.release]);
        scripts.extend([of.repair, of.set_rate, of.settle, of.try_set_rate]);
    }
    // Some serve several algorithms.
    scripts.sort_by_key(|script| &script.sha1);
    scripts.dedup_by_key(|script| &script.sha1);
    scripts
}

/// One operation's text and its hash.
#[derive(Debug)]
pub(crate) struct Script {
    text: &'static str,
    sha1: String,
}

impl Script {
    pub(crate) fn new(text: &'static str) -> Self {
        Self {
            text,
            sha1: redis::Script::new(text).get_hash().to_owned(),
        }
    }

    /// Calls it: one command, and one more where the server has lost, or never had, the script.
    ///
    /// That second command carries the whole text, so that it loads the script on the very node
    /// that lacks it. Newer servers drop what came so once 500 other texts have come: where it is
    /// lacked again within a minute, and where the user may not send texts that are run at once,
    /// the node gets the text by SCRIPT LOAD, and the hash again.
    ///
    /// # Cancel safety
    ///
    /// Dropping it may leave the script executed or not.
    pub(crate) async fn call(
        &self,
        connection: &Connection,
        arguments: &Arguments,
    ) -> Result<Value, Failed> {
        let by_hash = self.command(arguments, false);
        // By its hash it may have run before a connection was lost.
        let mut unheard = match connection.send(&by_hash).await {
            Err(failed) if is_unknown_script(&failed.error) => failed.unheard,
            reply => return reply,
        };
        let or_earlier = |reply: Result<Value, Failed>, unheard: bool| {
            reply.map_err(|last| Failed {
                unheard: unheard || last.unheard,
                ..last
            })
        };
        if self.is_kept(connection, arguments).await {
            match connection.send(&by_hash).await {
                // Gone again since it was loaded: only with its text it cannot be.
                Err(failed) if is_unknown_script(&failed.error) => unheard |= failed.unheard,
                reply => return or_earlier(reply, unheard),
            }
        }
        let whole = connection.send(&self.command(arguments, true)).await;
        let reply = match self.after_text(connection, arguments, whole).await {
            Some(reply) => reply,
            None => connection.send(&by_hash).await,
        };
        or_earlier(reply, unheard)
    }

    /// Calls it at most once: a lost connection is an error, as it may have run.
    ///
    /// # Cancel safety
    ///
    /// Dropping it may leave the script executed or not.
    pub(crate) async fn call_once(
        &self,
        connection: &Connection,
        arguments: &Arguments,
    ) -> Result<Value, Failed> {
        let by_hash = self.command(arguments, false);
        match connection.send_once(&by_hash).await {
            // It certainly did not run, nor does what is refused.
            Err(failed) if is_unknown_script(&failed.error) => {}
            reply => return reply,
        }
        if self.is_kept(connection, arguments).await {
            match connection.send_once(&by_hash).await {
                // Gone again since it was loaded.
                Err(failed) if is_unknown_script(&failed.error) => {}
                reply => return reply,
            }
        }
        let whole = connection.send_once(&self.command(arguments, true)).await;
        match self.after_text(connection, arguments, whole).await {
            Some(reply) => reply,
            None => connection.send_once(&by_hash).await,
        }
    }

    /// Whether the node of these keys lacked it within the last minute as well, and now keeps it.
    async fn is_kept(&self, connection: &Connection, arguments: &Arguments) -> bool {
        if !connection.lacked.again(self.text) {
            return false;
        }
        let is_loaded = self.load_on(connection, arguments).await;
        // Where the user may not load it, the next minute is spent without asking.
        connection.lacked.note(self.text, is_loaded);
        is_loaded
    }

    /// The reply to its text; none where that was refused, and the node has it now all the same.
    async fn after_text(
        &self,
        connection: &Connection,
        arguments: &Arguments,
        reply: Result<Value, Failed>,
    ) -> Option<Result<Value, Failed>> {
        match reply {
            Err(refused) if is_refused(&refused.error) => {
                let is_loaded = self.load_on(connection, arguments).await;
                (!is_loaded).then_some(Err(refused))
            }
            reply => {
                // Not before: calls that were under way together lacked it once.
                connection.lacked.note_first(self.text);
                Some(reply)
            }
        }
    }

    /// Whether the node of these keys has it now.
    async fn load_on(&self, connection: &Connection, arguments: &Arguments) -> bool {
        // By itself redis-rs would load it into every node of a Cluster, and fail with the first that is down.
        let to = arguments.iter().next().map_or(To::Any, To::Key);
        connection.send_to(to, &self.load()).await.is_ok()
    }

    /// The command that has a server know it, and does not run it.
    pub(crate) fn load(&self) -> Cmd {
        let mut command = redis::cmd("SCRIPT");
        command.arg("LOAD").arg(self.text);
        command
    }

    #[cfg(any(test, feature = "inspect"))]
    pub(crate) fn text(&self) -> &'static str {
        self.text
    }

    /// Whether a call names it, by hash or text.
    #[cfg(all(test, inside))]
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

pub(crate) fn is_unknown_script(error: &RedisError) -> bool {
    Class::of(error) == Class::UnknownScript
}

/// Whether it was refused before it ran, as where this user may not send texts, or there is no such command.
pub(crate) fn is_refused(error: &RedisError) -> bool {
    Class::of(error) == Class::Refused
}
