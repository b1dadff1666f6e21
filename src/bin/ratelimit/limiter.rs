//! `ratelimit get`, `watch`, `set-rate`, `delete`, `ban`, `unban`, `diagnose` and `repair`: one
//! limiter in Redis. `ratelimit verify`: the server.

use std::{
    io::{self, BufRead, IsTerminal},
    time::Duration,
};

use serde_json::{Value, json};
use tower_ratelimit::{Limit, RateLimiter, RedisStore, inspect::Diagnosis};

use crate::{
    Stop,
    out::{Format, counted, label, say, words},
    parsers::time,
    redis::{RedisOptions, Which},
};

#[derive(clap::Subcommand)]
pub(crate) enum LimiterCommand {
    /// Show a limiter in Redis: its limit, and the permits left and used.
    ///
    /// It only reads. Exits with 4 if there is no such limiter.
    Get(One),
    /// Show a limiter again and again, a line each time.
    ///
    /// It goes on until it is interrupted. The whole log is read each time: look at a large one
    /// less often. Refusals and waiting requests are in no store; the metrics have them.
    Watch {
        #[command(flatten)]
        one: One,
        /// The time between two lines
        #[arg(long, default_value = "1s", value_parser = time, value_name = "TIME")]
        every: Duration,
        /// End after this many lines
        #[arg(long, value_name = "LINES")]
        count: Option<u64>,
    },
    /// Set the limit of a limiter, and go on counting what is in use.
    ///
    /// It is for limiters that Java shares. Those of a rule have their limit in the code alone,
    /// except in a service that keeps them in Redisson's format, and that sets its own again at the
    /// next request: change the rule there.
    SetRate {
        #[command(flatten)]
        change: Change,
        /// The limit, as in `60/1m`
        #[arg(long, value_name = "RATE")]
        rate: Limit,
        /// Make all permits free
        ///
        /// Of a limit per client, those of `--client`.
        #[arg(long)]
        reset: bool,
    },
    /// Delete a limiter: its limit, and all that is in use of it.
    Delete(Change),
    /// Ban the caller of a limiter, for every rule that bans callers.
    Ban {
        #[command(flatten)]
        change: Change,
        /// For how long, from now on
        #[arg(long = "for", value_parser = time, value_name = "TIME")]
        lasting: Duration,
    },
    /// End the ban of a caller, and forget its refusals.
    ///
    /// Exits with 4 if it is not banned.
    Unban(Change),
    /// Say what looks wrong with a limiter, and what to do.
    ///
    /// Exits with 1 if something does.
    Diagnose(One),
    /// Count the permits left of a limiter again, from its log.
    Repair(Change),
    /// Check that a server can keep limits.
    ///
    /// It looks at the version, permissions, memory policy and clock, and writes and deletes keys
    /// of its own. Exits with 1 if it finds something.
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
                let seen = shown(&one.found().await?.1);
                one.format.print_members(SHOWN, seen)?;
            }
            Self::Watch { one, every, count } => one.watch(every, count).await?,
            Self::SetRate {
                change,
                rate,
                reset,
            } => change.set_rate(rate, reset).await?,
            Self::Delete(change) => change.delete().await?,
            Self::Ban { change, lasting } => change.ban(Some(lasting)).await?,
            Self::Unban(change) => change.ban(None).await?,
            Self::Repair(change) => change.repair().await?,
            Self::Diagnose(one) => return one.diagnose().await,
            Self::Verify { connection, format } => return verify(&connection, &format).await,
        }
        Ok(true)
    }
}

impl One {
    /// Returns the store, and what Redis has of the limiter.
    async fn found(&self) -> Result<(RedisStore, Diagnosis), Stop> {
        let (store, seen) = self.look().await?;
        if seen.exists() {
            Ok((store, seen))
        } else {
            Err(Stop(4, format!("there is no limiter {:?}", seen.name())))
        }
    }

    /// Returns the store, and what Redis has under the name of the limiter.
    async fn look(&self) -> Result<(RedisStore, Diagnosis), Stop> {
        let store = self.connection.open()?;
        let name = self.which.name(&store)?;
        let seen = store.look_at(&name).await?;
        Ok((store, seen))
    }

    async fn watch(&self, every: Duration, count: Option<u64>) -> Result<(), Stop> {
        let (store, mut seen) = self.found().await?;
        let mut lines = 0;
        loop {
            let shown = shown(&seen);
            // It has one name on all lines.
            let line = SHOWN.split(' ').skip(1);
            let line = line.map(|it| label(it) + " " + &words(it, &shown[it]));
            self.format
                .print(&line.collect::<Vec<_>>().join(", "), shown)?;
            lines += 1;
            if count.is_some_and(|count| lines >= count) {
                return Ok(());
            }
            tokio::time::sleep(every).await;
            seen = store.look_at(seen.name()).await?;
        }
    }

    async fn diagnose(&self) -> Result<bool, Stop> {
        let (store, seen) = self.found().await?;
        let seen = store.diagnose(seen.name()).await?;
        let (findings, mut object) = (seen.findings(), shown(&seen));
        object["findings"] = json!(findings);
        self.format.print(&seen.to_string(), object)?;
        Ok(findings.is_empty())
    }
}

impl Change {
    /// Returns the limiter. One that Redis does not have is that of a rule, if its name is of one.
    async fn limiter(&self) -> Result<RateLimiter, Stop> {
        let (store, seen) = self.one.look().await?;
        let is_known = seen.in_own_format() || seen.exists();
        let limiter = if is_known || !self.one.connection.makes(seen.name()) {
            as_counted(&store, &seen)?
        } else {
            RateLimiter::of_rule(&store, seen.name())?
        };
        Ok(limiter.by_tool())
    }

    /// Returns the limiter as its permits are counted, and what Redis has of it.
    async fn found(&self) -> Result<(RateLimiter, Diagnosis), Stop> {
        let (store, seen) = self.one.found().await?;
        Ok((as_counted(&store, &seen)?, seen))
    }

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

    /// Prints what has changed: these members.
    fn changed(&self, names: &str, object: Value) -> Result<(), Stop> {
        Ok(self.one.format.print_members(names, object)?)
    }

    async fn set_rate(&self, rate: Limit, reset: bool) -> Result<(), Stop> {
        let (store, seen) = self.one.look().await?;
        let limiter = as_counted(&store, &seen)?;
        let (name, before) = (limiter.name(), limiter.limit().await?);
        let limit = like(rate, before)?;
        let was = before.map(|limit| limit.to_string());
        let from = was.as_deref().unwrap_or("no limit");
        let freed = if reset { ", and free all permits" } else { "" };
        self.confirm(&format!("set {name:?} from {from} to {limit}{freed}"))?;
        if reset {
            limiter.set_rate(limit).await?;
        } else {
            limiter.set_or_update_rate(limit).await?;
        }
        let changed = json!({ "name": name, "limit": limit.to_string(), "was": was });
        self.changed("name limit was", changed)
    }

    async fn delete(&self) -> Result<(), Stop> {
        let (limiter, _) = self.found().await?;
        let name = limiter.name();
        self.confirm(&format!("delete {name:?}"))?;
        limiter.delete().await?;
        self.changed("name deleted", json!({ "name": name, "deleted": true }))
    }

    /// Bans a caller for a time, or ends its ban.
    async fn ban(&self, lasting: Option<Duration>) -> Result<(), Stop> {
        let limiter = self.limiter().await?;
        let name = limiter.name();
        self.confirm(&match lasting {
            Some(time) => format!("ban {name:?} for {time:?}"),
            None => format!("unban {name:?}"),
        })?;
        match lasting {
            Some(time) => limiter.ban_for(time).await?,
            None if limiter.unban().await? => {}
            None => return Err(Stop(4, format!("{name:?} is not banned"))),
        }
        let banned = json!({ "name": name, "banned_ms": lasting.map(millis) });
        self.changed("name banned_ms", banned)
    }

    async fn repair(&self) -> Result<(), Stop> {
        let (limiter, seen) = self.found().await?;
        let name = limiter.name();
        let drift = match json!(seen)["drift"].as_i64() {
            Some(lost @ 0..) => format!("which has lost {}", counted(lost, "permit")),
            Some(twice) => format!("which counts {} twice", counted(-twice, "permit")),
            None => "whose drift is unknown".to_owned(),
        };
        self.confirm(&format!("repair {name:?}, {drift}"))?;
        let lost = limiter.repair().await?;
        self.changed("name lost", json!({ "name": name, "lost": lost }))
    }
}

async fn verify(connection: &RedisOptions, format: &Format) -> Result<bool, Stop> {
    let verified = connection.open()?.verify().await?;
    format.print(&verified.to_string(), json!(verified))?;
    Ok(verified.worst().is_none())
}

/// Returns the limiter as its permits seem to be counted.
fn as_counted(store: &RedisStore, seen: &Diagnosis) -> Result<RateLimiter, Stop> {
    let limiter = if seen.in_own_format() {
        RateLimiter::of_rule(store, seen.name())?
    } else {
        RateLimiter::new(store, seen.name())?
    };
    Ok(limiter.by_tool().algorithm(seen.algorithm()))
}

/// Returns the limit with the kind and the keep-alive time of the one that it replaces.
fn like(limit: Limit, before: Option<Limit>) -> Result<Limit, Stop> {
    let Some(before) = before else {
        return Ok(limit);
    };
    let limit = if before.is_per_client() {
        limit.per_client()
    } else {
        limit
    };
    Ok(match before.keep_alive_time() {
        Some(time) => limit.keep_alive(time)?,
        None => limit,
    })
}

/// What is shown of a limiter.
const SHOWN: &str = "name limit left used granted_in_last_second next_free_ms expires_ms algorithm";

/// Returns what is shown of a limiter.
fn shown(seen: &Diagnosis) -> Value {
    let seen = json!(seen);
    SHOWN
        .split(' ')
        .map(|member| (member, seen[member].clone()))
        .collect()
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
