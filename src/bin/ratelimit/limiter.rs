//! `ratelimit get`, `watch`, `set-rate`, `delete`, `ban`, `unban`, `diagnose` and `repair`: one
//! limiter in Redis. `ratelimit verify`: the server.

use std::{
    io::{self, BufRead, IsTerminal},
    num::NonZeroU64,
    time::Duration,
};

use serde_json::{Value, json};
use tower_ratelimit::{
    ConfigError, Error, ErrorKind, Limit, RateLimiter, RedisStore, inspect::Diagnosis,
};

use crate::{
    Stop,
    out::{Format, counted, label, say, words},
    parsers::lasting,
    redis::{RedisOptions, Which},
};

/// What is shown of a limiter.
const SHOWN: &str =
    "name limit left used granted_in_last_second next_free_ms banned_ms expires_ms algorithm";
/// What is shown of a change.
const CHANGED: &str = "name limit was banned_ms lost deleted";

#[derive(clap::Subcommand)]
pub(crate) enum LimiterCommand {
    /// Show a limiter in Redis: its limit, permits, and ban.
    ///
    /// It only reads. The numbers are permits. `next free` is the time until the first permit in
    /// use is free, `banned` the rest of a ban, `expires` the time until Redis forgets it; a dash
    /// says that there is none, or that it is not known. A banned caller is refused whatever is
    /// left: `ratelimit unban` ends that.
    ///
    /// Examples: `ratelimit get orders`, and `ratelimit get --rule login --key ann`.
    ///
    /// Exits with 0 if there is such a limiter or a ban, with 3 if Redis cannot be asked, and with
    /// 4 if there is neither.
    Get(One),
    /// Show a limiter again and again, a line each time.
    ///
    /// It goes on until it is interrupted or its reader leaves, and shows what `get` does. It reads
    /// the whole log each time: look at a large one less often. Refusals and waiting requests are
    /// in no store; the metrics have them.
    ///
    /// Example: `ratelimit watch orders --every 5s`.
    ///
    /// Exits with 0 after `--count` lines or without a reader, with 3 if Redis cannot be asked, and
    /// with 4 if there is neither such a limiter nor a ban at first.
    Watch {
        #[command(flatten)]
        one: One,
        /// The time between two lines
        ///
        /// As in `500ms` or `5s`.
        #[arg(long, default_value = "1s", value_parser = lasting, value_name = "TIME")]
        every: Duration,
        /// End after this many lines [default: never]
        #[arg(long, value_name = "LINES")]
        count: Option<NonZeroU64>,
    },
    /// Set the limit of a limiter, and go on counting what is in use.
    ///
    /// It is for limiters that Java shares. Those of a rule have their limit in the code alone,
    /// except in a service that keeps them in Redisson's format, and that sets its own again at the
    /// next request: change the rule there. A ban stays.
    ///
    /// Example: `ratelimit set-rate orders --rate 200/1m`.
    ///
    /// Exits with 0 if it is set or the answer is no, with 2 if the limit is in the code alone, and
    /// with 3 if Redis cannot be asked.
    SetRate {
        #[command(flatten)]
        change: Change,
        /// The limit, as in `60/1m`
        ///
        /// Permits, and an interval in ms, s, m, h or d.
        #[arg(long, value_name = "RATE")]
        rate: Limit,
        /// Make all permits free
        ///
        /// Of a limit per client, those of `--client`.
        #[arg(long)]
        reset: bool,
    },
    /// Delete a limiter: its limit, what is in use, and a ban.
    ///
    /// The limit of a rule is in the code and stays: all of its permits are free again.
    ///
    /// Example: `ratelimit delete --rule login --key ann`.
    ///
    /// Exits with 0 if it is deleted or the answer is no, with 3 if Redis cannot be asked, and with
    /// 4 if there is neither such a limiter nor a ban.
    Delete(Change),
    /// Ban the caller of a limiter, for every rule that bans callers.
    ///
    /// It takes the place of the ban that the caller has. `ratelimit get` shows how long it lasts,
    /// and `ratelimit unban` ends it.
    ///
    /// Example: `ratelimit ban --rule login --key 192.0.2.7 --for 1h`.
    ///
    /// Exits with 0 if it is banned or the answer is no, and with 3 if Redis cannot be asked.
    Ban {
        #[command(flatten)]
        change: Change,
        /// For how long from now on, as in `15m` or `7d`
        #[arg(long = "for", value_parser = lasting, value_name = "TIME")]
        lasting: Duration,
    },
    /// End the ban of a caller, and forget its refusals.
    ///
    /// Services learn of it as soon as they ask Redis again: one that knows of the ban may repeat
    /// it for as long as its deny cache says.
    ///
    /// Example: `ratelimit unban --rule login --key 192.0.2.7`.
    ///
    /// Exits with 0 if it was banned or the answer is no, with 3 if Redis cannot be asked, and with
    /// 4 if it was not banned.
    Unban(Change),
    /// Say what looks wrong with a limiter, and what to do.
    ///
    /// It only reads: the limiter, its ban, other clients' keys, and which releases of Redisson
    /// have used the server.
    ///
    /// Example: `ratelimit diagnose orders`.
    ///
    /// Exits with 0 if nothing looks wrong, with 1 if something does, with 3 if Redis cannot be
    /// asked, and with 4 if there is neither such a limiter nor a ban.
    Diagnose(One),
    /// Count the permits left of a limiter again, from its log.
    ///
    /// It is for limiters that Java shares, if `ratelimit diagnose` says so.
    ///
    /// Example: `ratelimit repair orders`.
    ///
    /// Exits with 0 if they were counted or the answer is no, with 3 if Redis cannot be asked, and
    /// with 4 if there is no such limiter, or only a ban.
    Repair(Change),
    /// Check that a server can keep limits.
    ///
    /// It looks at the version, permissions, memory policy and clock, and writes and deletes keys
    /// of its own.
    ///
    /// Example: `ratelimit verify --redis redis://127.0.0.1/`.
    ///
    /// Exits with 0 if it finds nothing, with 1 if it does, and with 3 if Redis cannot be asked.
    Verify {
        #[command(flatten)]
        connection: RedisOptions,
        #[command(flatten)]
        format: Format,
    },
}

/// The limiter of a command, and how its result is printed.
#[derive(clap::Args)]
pub(crate) struct One {
    #[command(flatten)]
    connection: RedisOptions,
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    format: Format,
}

/// The limiter that a command changes.
#[derive(clap::Args)]
pub(crate) struct Change {
    #[command(flatten)]
    one: One,
    /// Write without asking
    #[arg(long)]
    yes: bool,
    /// Say what would be written, and write nothing
    #[arg(long)]
    dry_run: bool,
}

impl LimiterCommand {
    /// Returns whether the answer is yes.
    pub(crate) async fn run(self) -> Result<bool, Stop> {
        match self {
            Self::Get(one) => {
                let found = one.found(Diagnosis::exists).await?;
                one.format.print_members(SHOWN, shown(&found.seen))?;
            }
            Self::Watch { one, every, count } => one.watch(every, count).await?,
            Self::SetRate {
                change,
                rate,
                reset,
            } => change.set_rate(rate, reset).await?,
            Self::Delete(change) => change.delete().await?,
            Self::Ban { change, lasting } => change.ban(lasting).await?,
            Self::Unban(change) => change.unban().await?,
            Self::Repair(change) => change.repair().await?,
            Self::Diagnose(one) => {
                let Found { store, seen } = one.found(Diagnosis::exists).await?;
                let seen = store.diagnose(seen.name()).await?;
                let (findings, mut object) = (seen.findings(), shown(&seen));
                object["findings"] = json!(findings);
                one.format.print(&seen.to_string(), object)?;
                return Ok(findings.is_empty());
            }
            Self::Verify { connection, format } => {
                let verified = connection.open()?.verify().await?;
                format.print(&verified.to_string(), json!(verified))?;
                return Ok(verified.worst().is_none());
            }
        }
        Ok(true)
    }
}

impl One {
    /// Returns what Redis has of the limiter, which must be there.
    async fn found(&self, is_there: fn(&Diagnosis) -> bool) -> Result<Found, Stop> {
        let found = self.look().await?;
        if is_there(&found.seen) {
            Ok(found)
        } else {
            Err(found.lacks(format!("there is no limiter {:?}", found.seen.name())))
        }
    }

    /// Returns what Redis has under the name of the limiter. Says what no verb may pass over: that
    /// the caller is banned, and what this user may not see.
    async fn look(&self) -> Result<Found, Stop> {
        let store = self.connection.open()?;
        let seen = store.look_at(&self.which.name(&store)?).await?;
        if let Some(left) = seen.banned_for() {
            say(format!(
                "its caller is banned for {left:.1?} more: `ratelimit unban` ends that"
            ));
        }
        if let Some(format) = seen.unseen() {
            say(format!(
                "what Redis has of it in {format} is unknown: this user may not read that"
            ));
        }
        Ok(Found { store, seen })
    }

    async fn watch(&self, every: Duration, count: Option<NonZeroU64>) -> Result<(), Stop> {
        let Found { store, mut seen } = self.found(Diagnosis::exists).await?;
        let mut lines = 0;
        loop {
            let shown = shown(&seen);
            // It has one name on all lines.
            let line = SHOWN.split(' ').skip(1);
            let line = line.map(|it| label(it) + " " + &words(it, &shown[it]));
            let line = line.collect::<Vec<_>>().join(", ");
            let is_read = self.format.print(&line, shown)?;
            lines += 1;
            if !is_read || count.is_some_and(|count| lines >= count.get()) {
                return Ok(());
            }
            tokio::time::sleep(every).await;
            seen = store.look_at(seen.name()).await?;
        }
    }
}

/// What Redis has under the name of a limiter.
struct Found {
    store: RedisStore,
    seen: Diagnosis,
}

impl Found {
    /// Returns why a command ends that does not find what it needs.
    fn lacks(&self, what: String) -> Stop {
        let seen = self.seen.unseen().map(|_| ", as far as this user may see");
        Stop(4, what + seen.unwrap_or_default())
    }

    fn in_format(&self, own: bool) -> Result<RateLimiter, ConfigError> {
        let (store, name) = (&self.store, self.seen.name());
        if own {
            RateLimiter::of_rule(store, name)
        } else {
            RateLimiter::new(store, name)
        }
    }

    /// Returns the limiter as its permits seem to be counted.
    fn as_counted(&self) -> Result<RateLimiter, ConfigError> {
        let limiter = self.in_format(self.seen.in_own_format())?;
        Ok(limiter.algorithm(self.seen.algorithm()))
    }

    /// Changes the ban of the caller. Each format has bans of its own, and Redis does not show in
    /// which one a service counts a caller that has nothing in use. Returns whether any has
    /// changed, and why the other was not reached.
    async fn in_both_formats(
        &self,
        change: impl AsyncFn(RateLimiter) -> Result<bool, Error>,
    ) -> Result<(bool, Option<Error>), Stop> {
        let (mut changed, mut refused) = (false, None);
        for (own, format) in [(true, "our own"), (false, "Redisson's")] {
            let is_its_own = self.seen.exists() && self.seen.in_own_format() == own;
            match change(self.in_format(own)?).await {
                // A user of one format may not be allowed to reach the keys of the other.
                Err(error)
                    if error.kind() == ErrorKind::Rejected && !is_its_own && refused.is_none() =>
                {
                    say(format!("nothing was changed in {format} format: {error}"));
                    refused = Some(error);
                }
                done => changed |= done?,
            }
        }
        Ok((changed, refused))
    }
}

impl Change {
    /// Asks whether to do this. Stops if the answer is no.
    fn confirm(&self, what: &str) -> Result<(), Stop> {
        if self.dry_run {
            return Err(Stop(0, format!("would {what}")));
        }
        if self.yes {
            return Ok(());
        }
        if !io::stdin().is_terminal() {
            return Err(Stop::usage(format!(
                "the standard input is no terminal to ask at: add `--yes` to {what}"
            )));
        }
        say(format!("{what}? [y/N]"));
        let mut answer = String::new();
        let read = io::stdin().lock().read_line(&mut answer);
        read.map_err(|error| format!("the answer cannot be read: {error}"))?;
        match answer.trim() {
            "y" | "Y" | "yes" => Ok(()),
            _ => Err(Stop(0, "nothing was changed".to_owned())),
        }
    }

    /// Prints what has changed.
    fn changed(&self, object: Value) -> Result<(), Stop> {
        self.one.format.print_members(CHANGED, object)?;
        Ok(())
    }

    async fn set_rate(&self, rate: Limit, reset: bool) -> Result<(), Stop> {
        let limiter = self.one.look().await?.as_counted()?;
        let (name, before) = (limiter.name(), limiter.limit().await?);
        let limit = before.map_or(Ok(rate), |before| like(rate, &before))?;
        let was = before.map(|limit| limit.to_string());
        let from = was.as_deref().unwrap_or("no limit");
        let freed = if reset { ", and free all permits" } else { "" };
        self.confirm(&format!("set {name:?} from {from} to {limit}{freed}"))?;
        if reset {
            limiter.set_rate(limit).await?;
        } else {
            limiter.set_or_update_rate(limit).await?;
        }
        let limit = limit.to_string();
        self.changed(json!({ "name": name, "limit": limit, "was": was }))
    }

    async fn delete(&self) -> Result<(), Stop> {
        let found = self.one.found(Diagnosis::exists).await?;
        let (limiter, name) = (found.as_counted()?, found.seen.name());
        let ban = found.seen.banned_for();
        let ban = ban.map(|_| ", and end the ban of its caller");
        self.confirm(&format!("delete {name:?}{}", ban.unwrap_or_default()))?;
        limiter.delete().await?;
        if ban.is_some() {
            // That of its format went with it.
            found.in_both_formats(async |it| it.unban().await).await?;
        }
        self.changed(json!({ "name": name, "deleted": true }))
    }

    async fn ban(&self, lasting: Duration) -> Result<(), Stop> {
        let found = self.one.look().await?;
        let name = found.seen.name();
        self.confirm(&format!("ban {name:?} for {lasting:?}"))?;
        let ban = async |it: RateLimiter| it.ban_for(lasting).await.map(|()| true);
        found.in_both_formats(ban).await?;
        let millis = u64::try_from(lasting.as_millis()).unwrap_or(u64::MAX);
        self.changed(json!({ "name": name, "banned_ms": millis }))
    }

    async fn unban(&self) -> Result<(), Stop> {
        let found = self.one.look().await?;
        let name = found.seen.name();
        self.confirm(&format!("unban {name:?}"))?;
        match found.in_both_formats(async |it| it.unban().await).await? {
            // The ban that was seen is where this user may only read.
            (false, Some(error)) if found.seen.banned_for().is_some() => return Err(error.into()),
            (false, _) => return Err(found.lacks(format!("{name:?} is not banned"))),
            (true, _) => {}
        }
        self.changed(json!({ "name": name, "banned_ms": null }))
    }

    async fn repair(&self) -> Result<(), Stop> {
        let found = self.one.found(Diagnosis::has_state).await?;
        let limiter = found.as_counted()?;
        let name = limiter.name();
        let drift = match json!(found.seen)["drift"].as_i64() {
            Some(lost @ 0..) => format!("which has lost {}", counted(lost, "permit")),
            Some(twice) => format!("which counts {} twice", counted(-twice, "permit")),
            None => "whose drift is unknown".to_owned(),
        };
        self.confirm(&format!("repair {name:?}, {drift}"))?;
        let lost = limiter.repair().await?;
        self.changed(json!({ "name": name, "lost": lost }))
    }
}

/// Returns the limit with the kind and the keep-alive time of the one that it replaces.
fn like(mut limit: Limit, before: &Limit) -> Result<Limit, ConfigError> {
    if before.is_per_client() {
        limit = limit.per_client();
    }
    let time = before.keep_alive_time();
    time.map_or(Ok(limit), |time| limit.keep_alive(time))
}

/// Returns what is shown of a limiter, and in JSON the format that this user may not read.
fn shown(seen: &Diagnosis) -> Value {
    let mut all = json!(seen);
    let names = SHOWN.split(' ').chain(["unseen"]);
    names.map(|it| (it, all[it].take())).collect()
}
