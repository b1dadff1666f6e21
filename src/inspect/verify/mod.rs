//! Checks the servers before the first request: everything that a store does must work there.

mod engine;
mod report;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, ops::RangeInclusive, sync::LazyLock, time::Duration};

use redis::{Cmd, RedisError, Value};

pub use self::report::Verification;
use self::report::{VerifiedServer, command_refused, node_of_cluster, not_understood, replica};
use super::{
    Look, exact,
    finding::{Finding, Severity, add, finding},
    format_of, parsed,
};
use crate::{
    store::random_id,
    store::redis::{
        RedisStore,
        classify::{self, Class, Meaning},
        keys,
        node::{SLOTS, slot},
        packed, redisson, reply,
        script::Script,
    },
    values::{
        clock::{SystemClock, check_timer, moment},
        error::{Error, ErrorKind},
        name::{Name, push_hex},
    },
};

/// Tries the commands that the other scripts call, and compiles their texts.
pub(crate) static VERIFY: LazyLock<Script> =
    LazyLock::new(|| Script::new("verify", include_str!("../../../lua/verify.lua")));

/// The tolerated error of a clock of this process that limits count by: the score offset of a limit
/// per second.
const CLIENT_CLOCK_SLACK: Duration = Duration::from_millis(100);
/// The tolerated error of the time of day if no limit counts by it.
const WALL_SLACK: Duration = Duration::from_secs(1);

impl RedisStore {
    /// Checks whether Redis is set up as this store needs it, at the start of a service or for an
    /// operator.
    ///
    /// It says which row of [`docs::engines`](crate::docs::engines) the server is on, and whether
    /// that is tested. It checks the version, whether every script can be compiled and called, each
    /// command that the scripts call, the keys that the user may access under the
    /// [`prefix`](crate::RedisStoreBuilder::prefix), eviction, the role and the clocks; on a
    /// Cluster, each master, and whether every hash slot has one. Each [`Finding`] has a
    /// severity and a remedy. Limiters with exact names have keys of their own:
    /// [`diagnose`](Self::diagnose) is refused if the user may not access them.
    ///
    /// The commands of scripts are tried in a script, on an unused name and without changing
    /// anything. So the result is what requests will get, whatever the version of Redis, also for a
    /// user who may not read permissions. Afterwards the server's cache has one more script and, if
    /// something was refused, its `ACL LOG` has new lines.
    ///
    /// Besides the permissions of the store it needs `+info` for the engine, version, eviction and
    /// role, and on a Cluster `+config|get`; without them it leaves that part out and reports it.
    /// It sends some twenty commands, one after the other, each for at most the timeouts of
    /// connecting and of a response together.
    ///
    /// # Errors
    ///
    /// Returns an error of kind [`Unavailable`](ErrorKind::Unavailable),
    /// [`Timeout`](ErrorKind::Timeout), [`Tls`](ErrorKind::Tls) or
    /// [`Rejected`](ErrorKind::Rejected) if the server cannot be queried, and of kind
    /// [`Name`](ErrorKind::Name) if the prefix cannot name a limiter. A command that a server
    /// refuses is a finding and not an error; so is a reply that this version does not know.
    ///
    /// # Cancel safety
    ///
    /// Dropping it has no effect.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use tower_ratelimit::{RedisStore, inspect::Severity};
    ///
    /// let store = RedisStore::builder("redis://127.0.0.1/").prefix("shop").build()?;
    /// let verification = store.verify().await?;
    /// println!("{verification}");
    /// if verification.worst() == Some(Severity::Error) {
    ///     return Err("limits cannot work with this Redis".into());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn verify(&self) -> Result<Verification, Error> {
        check_timer()?;
        let look = Look(self);
        let mut verification = Verification::default();
        if !look.connection().source.is_cluster {
            let mut seen = VerifiedServer::default();
            look.server(None, &mut seen).await?;
            verification.servers.push(seen);
            return Ok(verification);
        }
        let masters = look.masters().await?;
        let covered = masters.values().flatten();
        let covered: usize = covered.map(ExactSizeIterator::len).sum();
        let missing = usize::from(SLOTS).saturating_sub(covered);
        if missing > 0 {
            add!(verification.findings, Error "slots_without_master": "{missing} hash slots of the \
                Cluster have no master: see `CLUSTER INFO`, and assign one");
        }
        for (address, slots) in masters {
            let mut seen = VerifiedServer {
                address: Some(address),
                ..VerifiedServer::default()
            };
            // The other masters are still reported.
            if let Err(error) = look.server(Some(&*slots), &mut seen).await {
                add!(seen.findings, Error "unasked": "it could not be queried, {error}: see \
                    whether it runs");
            }
            verification.servers.push(seen);
        }
        Ok(verification)
    }
}

/// The hash slots of a master of a Cluster.
type SlotRanges = [RangeInclusive<u16>];

fn first_slot(slots: &SlotRanges) -> Option<u16> {
    slots.first().map(|range| *range.start())
}

impl Look<'_> {
    async fn server(
        &self,
        master: Option<&SlotRanges>,
        seen: &mut VerifiedServer,
    ) -> Result<(), Error> {
        let to = master.and_then(first_slot);
        // First without a script, so that an unreachable server is reported as such.
        self.clocks(to, seen).await?;
        match self.attempt(to, &redis::cmd("INFO")).await? {
            Ok(info) => seen.read(&text(&info), master.is_some()),
            Err(_) => seen.add(finding!(Note "not_permitted": "engine, version, eviction \
                and role are unknown: check with another user, or allow `INFO` for once")),
        }
        if master.is_some() {
            self.coverage(to, seen).await?;
        }
        self.scripts(master, seen).await
    }

    async fn clocks(&self, to: Option<u16>, seen: &mut VerifiedServer) -> Result<(), Error> {
        let client_clock = self.0.settings.clock.as_deref();
        let clock = client_clock.unwrap_or(&SystemClock);
        let (began, before) = (moment(), clock.now());
        let reply = self.attempt(to, &redis::cmd("TIME")).await?;
        let round_trip = moment().duration_since(began);
        // A clock that is moved by hand stands still meanwhile.
        let here = before + clock.now().saturating_sub(before) / 2;
        let reply = match reply {
            Ok(reply) => reply,
            Err(refused) => {
                // A refusal is found again by the scripts, which need TIME too.
                if classify::meaning(&refused).class == Class::Other {
                    seen.add(self.refused("TIME", &refused));
                }
                return Ok(());
            }
        };
        let (seconds, micros): (u64, u64) = parsed(reply)?;
        let there = Duration::from_secs(seconds).saturating_add(Duration::from_micros(micros));
        let (apart, ahead) = (there.abs_diff(here), there >= here);
        seen.clock = Some((apart, ahead));
        seen.round_trip = round_trip;
        let (slack, severity, then) = match client_clock {
            Some(_) => (
                CLIENT_CLOCK_SLACK,
                Severity::Warning,
                "limits count by the latter: run NTP on both, or leave `client_clock` out",
            ),
            None => (
                WALL_SLACK,
                Severity::Note,
                "limits count by the former, so this matters only for logs, and for Java, which \
                 counts by its own: run NTP on both",
            ),
        };
        if apart.saturating_sub(round_trip / 2) > slack {
            let direction = if ahead { "ahead of" } else { "behind" };
            add!(seen.findings, (severity) "clocks_apart": "its clock is {apart:.1?} {direction} \
                the one of this process, and {then}");
        }
        Ok(())
    }

    async fn coverage(&self, to: Option<u16>, seen: &mut VerifiedServer) -> Result<(), Error> {
        let mut config = redis::cmd("CONFIG");
        config.arg("GET").arg("cluster-require-full-coverage");
        match self.attempt(to, &config).await? {
            Ok(reply) => {
                let settings: BTreeMap<String, String> = parsed(reply)?;
                if settings.values().any(|value| value == "yes") {
                    seen.add(finding!(Warning "wants_full_coverage": "if one master is \
                        down, all hash slots are refused: set `cluster-require-full-coverage no`, \
                        so that the limits in other hash slots go on"));
                }
            }
            Err(_) => seen.add(
                finding!(Note "not_permitted": "a setting is unknown: check \
                with another user, or allow `CONFIG GET` for once"),
            ),
        }
        Ok(())
    }

    async fn scripts(
        &self,
        master: Option<&SlotRanges>,
        seen: &mut VerifiedServer,
    ) -> Result<(), Error> {
        let to = master.and_then(first_slot);
        // Like any other script: by its text, where it cannot be loaded.
        let load = self.attempt(to, &VERIFY.load()).await?;
        let how = match &load {
            Ok(_) => "EVALSHA",
            Err(load) if Class::of(load) == Class::Refused => "SCRIPT|LOAD",
            Err(_) => "EVAL",
        };
        let sent = |by_hash: &Cmd| match load {
            Ok(_) => by_hash.clone(),
            Err(_) => VERIFY.whole(by_hash),
        };
        let (name, mut reached, mut refusals) = (self.name_on(master)?, None, Vec::new());
        for own in [true, false] {
            let keys = self.keys(&name, own)?;
            match self.attempt(to, &sent(&call(&keys, "1"))).await? {
                Ok(tried) => reached = Some((own, keys, tried)),
                Err(refused) => refusals.push((own, self.refused(how, &refused))),
            }
        }
        for (own, refusal) in refusals {
            seen.add(match &reached {
                Some(_) if refusal.code == "keys_forbidden" => self.forbidden(own),
                _ => refusal,
            });
        }
        let Some((own, keys, tried)) = reached else {
            return Ok(());
        };
        let (tried, _): Verified = parsed(tried)?;
        for (command, said) in tried.iter().filter(|(_, said)| !said.is_empty()) {
            let allowed = |(of, words): &(&str, &str)| of == command && said.contains(words);
            if !ARGUMENTS_REFUSED.iter().any(allowed) {
                seen.add(self.judged(command, classify::meaning_of_text(said), said));
            }
        }
        // The server has the script by now.
        if let Err(refused) = self.attempt(to, &call(&keys, "1")).await? {
            seen.add(self.refused("EVALSHA", &refused));
        }
        if master.is_none() {
            self.shards(&keys, own, seen).await?;
        }
        for script in scripts() {
            let compiles = sent(call(&keys, "").arg(script.text()));
            match self.attempt(to, &compiles).await? {
                Ok(reply) => seen.add_unreadable(&parsed::<Verified>(reply)?.1),
                Err(refused) => seen.add(self.refused(how, &refused)),
            }
        }
        Ok(())
    }

    /// Returns the keys of a limiter in one format. A user may reach those of one alone.
    fn keys(&self, name: &Name, own: bool) -> Result<Vec<String>, Error> {
        let mut keys = if own {
            vec![packed::key(name), packed::calendar::key(name)]
        } else {
            redisson::keys(name, self.0.server().client_id()?).to_vec()
        };
        keys.push(keys::ban(name, own));
        Ok(keys)
    }

    /// Returns the finding that a user may access the keys of the other format alone.
    fn forbidden(&self, own: bool) -> Finding {
        let (settings, format) = (&self.0.settings, format_of(own));
        let severity = if settings.prefers_redisson == own {
            Severity::Warning
        } else {
            Severity::Error
        };
        let prefix = settings.prefix.escape_debug();
        finding!((severity) "keys_forbidden": "the user may not access the keys of {format} under \
            {prefix}, so nothing counts in it: allow them with `ACL SETUSER .. ~{prefix}:*`")
    }

    /// Tries a call for two limiters, these keys being one's: behind an address that stands for
    /// several shards, they may be on two.
    async fn shards(
        &self,
        keys: &[String],
        own: bool,
        seen: &mut VerifiedServer,
    ) -> Result<(), Error> {
        let other = self.keys(&self.name_on(None)?, own)?;
        let mut both = VERIFY.start(keys.len() + other.len(), 1);
        both.arg(keys).arg(&other).arg("");
        if let Err(refused) = self.attempt(None, &both).await?
            && classify::meaning(&refused).kind == ErrorKind::OtherSlot
        {
            seen.add(
                finding!(Note "keys_in_several_slots": "it stands for several shards, which take \
                no call for several limits: a request costs a call for each of its limits"),
            );
        }
        Ok(())
    }

    /// Returns the meaning of a command that was refused.
    fn refused(&self, command: &str, refused: &RedisError) -> Finding {
        let said = [refused.code(), refused.detail()].map(Option::unwrap_or_default);
        let said = said.join(" ");
        self.judged(command, classify::meaning(refused), &said)
    }

    fn judged(&self, command: &str, meaning: Meaning, said: &str) -> Finding {
        match meaning.class {
            _ if meaning.kind == ErrorKind::OtherSlot => {
                finding!(Error "keys_in_several_slots": "the \
                keys of one limiter are in several hash slots: Redis never does this, so look for \
                a proxy in between")
            }
            _ if meaning == classify::NO_LUA => finding!(Error "no_lua": "it runs no Lua, so no \
                limit works: load its module `lua`, or use a server with Lua"),
            // "access one of the keys", "access the '..' key"; commands are run.
            Class::Refused | Class::RefusedWithin if said.contains("access") => {
                let prefix = self.0.settings.prefix.escape_debug();
                finding!(Error "keys_forbidden": "the user may not access the keys under {prefix}: \
                    allow them with `ACL SETUSER .. ~{prefix}:*`")
            }
            Class::Refused | Class::RefusedWithin => command_refused(command),
            Class::Moving => node_of_cluster(),
            Class::ReadOnly => replica(),
            Class::Unwritable => {
                let remedy = meaning.remedy.unwrap_or_default();
                finding!(Warning "cannot_write": "it cannot write at present, so it grants no \
                    permits: {remedy}")
            }
            _ => not_understood(command, said),
        }
    }

    /// Returns an unused name under the prefix, of a limiter on that master.
    fn name_on(&self, master: Option<&SlotRanges>) -> Result<Name, Error> {
        let mut id = String::new();
        push_hex(&mut id, &random_id()?.0);
        // A master has at least one of 16384 hash slots; this many random names find it.
        for number in 0..100 * u32::from(SLOTS) {
            let tag = format!("verify.{id}.{number}");
            let has = |slots: &SlotRanges| slots.iter().any(|range| range.contains(&slot(&tag)));
            if master.is_none_or(has) {
                return exact(&format!("{}:{{{tag}}}:verify", self.0.settings.prefix));
            }
        }
        Err(ErrorKind::Unavailable.into())
    }

    /// Returns the masters of a Cluster by their addresses.
    async fn masters(&self) -> Result<BTreeMap<String, Vec<RangeInclusive<u16>>>, Error> {
        let mut slots = redis::cmd("CLUSTER");
        slots.arg("SLOTS");
        let reply = self
            .attempt(None, &slots)
            .await?
            .map_err(classify::failure)?;
        let ranges: Vec<Vec<Value>> = parsed(reply)?;
        let mut masters: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for range in ranges {
            let [first, last, Value::Array(node), ..] = &*range else {
                return Err(reply::unreadable());
            };
            let [host, port, ..] = &**node else {
                return Err(reply::unreadable());
            };
            let number = |value: &Value| parsed::<u16>(value.clone());
            let address = format!("{}:{}", text(host), number(port)?);
            let range = number(first)?..=number(last)?;
            masters.entry(address).or_default().push(range);
        }
        Ok(masters)
    }

    /// Sends a command, whose refusal to this user is no error.
    async fn attempt(
        &self,
        to: Option<u16>,
        command: &Cmd,
    ) -> Result<Result<Value, RedisError>, Error> {
        match self.ask(to, command).await? {
            Ok(reply) => Ok(Ok(reply)),
            Err(error) => match Class::of(&error) {
                // Without a password nothing can be checked.
                _ if error.code() == Some("NOAUTH") => Err(classify::failure(error)),
                Class::Refused | Class::RefusedWithin | Class::Moving => Ok(Err(error)),
                // An unknown message of the server, and not a failure within redis-rs.
                Class::Other if error.code().is_some() => Ok(Err(error)),
                _ => Err(classify::failure(error)),
            },
        }
    }
}

/// Returns every script that a limiter can need.
fn scripts() -> impl Iterator<Item = &'static Script> {
    redisson::all()
        .into_iter()
        .chain(packed::requests::scripts())
}

/// Returns the call that tries the commands on these keys, if it is to, and compiles texts.
fn call(keys: &[String], tries: &str) -> Cmd {
    let mut command = VERIFY.start(keys.len(), 2);
    command.arg(keys).arg(tries).take()
}

/// A reply of `verify.lua`.
type Verified = (Vec<(String, String)>, Vec<String>);

/// The replies to commands that may be called. They are tried so that they change nothing: see
/// `verify.lua`.
const ARGUMENTS_REFUSED: &[(&str, &str)] = &[
    ("RENAME", "no such key"),
    ("HSET", "wrong number of arguments"),
    ("INCRBY", "not an integer"),
    ("SETRANGE", "offset is out of range"),
];

fn text(reply: &Value) -> String {
    match reply {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::VerbatimString { text, .. } | Value::SimpleString(text) => text.clone(),
        _ => String::new(),
    }
}
