//! `ratelimit get`, `watch`, `set-rate`, `delete`, `ban`, `unban`, `diagnose` and `repair`: one
//! limiter in Redis.

use std::{
    io::{self, BufRead, IsTerminal},
    time::Duration,
};

use serde_json::{Value, json};
use tower_ratelimit::{Diagnosis, Limit, RateLimiter, RateType, RedisStore, TimeToLive};

use crate::{
    Answer, Stop,
    out::{columns, print, say},
    redis::{Connection, Which},
    replay::{SCHEMA, time},
    verify::listed,
};

#[derive(clap::Subcommand)]
pub(crate) enum Command {
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
        /// End after so many lines
        #[arg(long, value_name = "LINES")]
        count: Option<u64>,
    },
    /// Set the limit of a limiter, and go on counting what is in use.
    ///
    /// A rule with a limit of its own sets that again at the next request: change the rule there.
    SetRate {
        #[command(flatten)]
        one: One,
        #[command(flatten)]
        write: Write,
        /// The limit, as in `60/1m`
        #[arg(long, value_name = "RATE")]
        rate: Limit,
        /// Begin anew: all permits are free
        ///
        /// Of a limit per client those of `--client`.
        #[arg(long)]
        reset: bool,
    },
    /// Delete a limiter: its limit, and all that is in use of it.
    Delete {
        #[command(flatten)]
        one: One,
        #[command(flatten)]
        write: Write,
    },
    /// Ban the caller of a limiter, for every rule that bans callers.
    Ban {
        #[command(flatten)]
        one: One,
        #[command(flatten)]
        write: Write,
        /// For how long, from now on
        #[arg(long = "for", value_parser = time, value_name = "TIME")]
        lasting: Duration,
    },
    /// End the ban of a caller, and forget its refusals.
    ///
    /// Exits with 4 if it is not banned.
    Unban {
        #[command(flatten)]
        one: One,
        #[command(flatten)]
        write: Write,
    },
    /// Say what looks wrong with a limiter, and what to do.
    ///
    /// Exits with 1 if something does.
    Diagnose(One),
    /// Count the permits left of a limiter anew, by its log.
    Repair {
        #[command(flatten)]
        one: One,
        #[command(flatten)]
        write: Write,
    },
}

/// The limiter of a command, and how its result is printed.
#[derive(clap::Args)]
pub(crate) struct One {
    #[command(flatten)]
    connection: Connection,
    #[command(flatten)]
    which: Which,
    /// Print JSON, one object a line
    #[arg(long)]
    json: bool,
}

/// The option by which a command writes.
#[derive(clap::Args)]
pub(crate) struct Write {
    /// Write without asking
    #[arg(long)]
    yes: bool,
    /// Say what would be written, and write nothing
    #[arg(long)]
    dry_run: bool,
}

impl Command {
    pub(crate) async fn run(self) -> Result<Answer, Stop> {
        match self {
            Self::Get(one) => {
                let (_, _, seen) = one.found().await?;
                let rows = shown(&seen)
                    .into_iter()
                    .map(|(name, _, words)| vec![name, words]);
                let page = columns(&rows.collect::<Vec<_>>());
                one.print(page.trim_end(), &object(&seen))
            }
            Self::Watch { one, every, count } => one.watch(every, count).await,
            Self::SetRate {
                one,
                write,
                rate,
                reset,
            } => one.set_rate(&write, rate, reset).await,
            Self::Delete { one, write } => {
                let (store, name, seen) = one.found().await?;
                if !write.may(&format!("delete {name:?}"))? {
                    return Ok(Answer::Yes);
                }
                let limiter = RateLimiter::new(&store, &name)?.by_tool();
                limiter.algorithm(seen.algorithm).delete().await?;
                let object = json!({"schema": SCHEMA, "name": name, "deleted": true});
                one.print(&format!("{}: deleted", name.escape_debug()), &object)
            }
            Self::Ban {
                one,
                write,
                lasting,
            } => one.ban(&write, Some(lasting)).await,
            Self::Unban { one, write } => one.ban(&write, None).await,
            Self::Diagnose(one) => one.diagnose().await,
            Self::Repair { one, write } => one.repair(&write).await,
        }
    }
}

impl One {
    /// Returns the store, the name and what Redis has under it.
    async fn found(&self) -> Result<(RedisStore, String, Diagnosis), Stop> {
        let store = self.connection.open()?;
        let name = self.which.name(&store)?;
        let seen = store.look_at(&name).await?;
        let is_there = |life: &TimeToLive| *life != TimeToLive::Missing;
        if !seen.time_to_live.iter().any(is_there) {
            return Err(Stop::not_found(format!("there is no limiter {name:?}")));
        }
        Ok((store, name, seen))
    }

    /// Prints a result in words, or as an object.
    fn print(&self, words: &str, object: &Value) -> Result<Answer, Stop> {
        print(&match self.json {
            true => format!("{object}\n"),
            false => format!("{words}\n"),
        })?;
        Ok(Answer::Yes)
    }

    async fn watch(&self, every: Duration, count: Option<u64>) -> Result<Answer, Stop> {
        let (store, name, mut seen) = self.found().await?;
        let mut lines = 0;
        loop {
            let words = shown(&seen).into_iter().skip(1);
            let words = words.map(|(label, _, words)| format!("{label} {words}"));
            self.print(&words.collect::<Vec<_>>().join(", "), &object(&seen))?;
            lines += 1;
            if count.is_some_and(|count| lines >= count) {
                return Ok(Answer::Yes);
            }
            tokio::time::sleep(every).await;
            seen = store.look_at(&name).await?;
        }
    }

    async fn set_rate(&self, write: &Write, rate: Limit, reset: bool) -> Result<Answer, Stop> {
        let store = self.connection.open()?;
        let name = self.which.name(&store)?;
        let limiter = RateLimiter::new(&store, &name)?.by_tool();
        let before = limiter.limit().await?;
        let limit = like(rate, before)?;
        let was = before.map_or_else(|| "no limit".to_owned(), |limit| limit.to_string());
        let anew = if reset { ", and begin anew" } else { "" };
        if !write.may(&format!("set {name:?} from {was} to {limit}{anew}"))? {
            return Ok(Answer::Yes);
        }
        match reset {
            true => limiter.set_rate(limit).await?,
            false => limiter.set_or_update_rate(limit).await?,
        }
        let object = json!({"schema": SCHEMA, "name": name, "limit": limit_of(limit)});
        self.print(
            &format!("{}: {was} -> {limit}", name.escape_debug()),
            &object,
        )
    }

    /// Bans a caller for a time, or ends its ban.
    async fn ban(&self, write: &Write, lasting: Option<Duration>) -> Result<Answer, Stop> {
        let store = self.connection.open()?;
        let name = self.which.name(&store)?;
        let limiter = RateLimiter::new(&store, &name)?.by_tool();
        let (what, words) = match lasting {
            Some(time) => (
                format!("ban {name:?} for {time:?}"),
                format!("banned for {time:?}"),
            ),
            None => (format!("unban {name:?}"), "not banned any more".to_owned()),
        };
        if !write.may(&what)? {
            return Ok(Answer::Yes);
        }
        match lasting {
            Some(time) => limiter.ban_for(time).await?,
            None if limiter.unban().await? => {}
            None => return Err(Stop::not_found(format!("{name:?} is not banned"))),
        }
        let object = json!({"schema": SCHEMA, "name": name, "banned_ms": lasting.map(millis)});
        self.print(&format!("{name}: {words}"), &object)
    }

    async fn diagnose(&self) -> Result<Answer, Stop> {
        let (store, name, _) = self.found().await?;
        let seen = store.diagnose(&name).await?;
        let findings = seen.findings();
        let mut object = object(&seen);
        object["findings"] = listed(&findings);
        self.print(&seen.to_string(), &object)?;
        Ok(Answer::is(findings.is_empty()))
    }

    async fn repair(&self, write: &Write) -> Result<Answer, Stop> {
        let (store, name, seen) = self.found().await?;
        let drift = match seen.drift {
            Some(drift) => format!("{drift} permits"),
            None => "an unknown number of permits".to_owned(),
        };
        if !write.may(&format!("repair {name:?}, which has lost {drift}"))? {
            return Ok(Answer::Yes);
        }
        let limiter = RateLimiter::new(&store, &name)?
            .by_tool()
            .algorithm(seen.algorithm);
        let lost = limiter.repair().await?;
        let object = json!({"schema": SCHEMA, "name": name, "lost": lost});
        self.print(
            &format!("{}: {lost} permits had been lost", name.escape_debug()),
            &object,
        )
    }
}

impl Write {
    /// Returns whether to write, after the question whether to do that.
    fn may(&self, what: &str) -> Result<bool, Stop> {
        if self.dry_run {
            say(format!("would {what}"));
            return Ok(false);
        }
        if self.yes {
            return Ok(true);
        }
        if !io::stdin().is_terminal() {
            return Err(Stop::usage(format!(
                "to {what} without being asked, add `--yes`"
            )));
        }
        say(format!("{what}? [y/N]"));
        let mut answer = String::new();
        let read = io::stdin().lock().read_line(&mut answer);
        read.map_err(|error| Stop::usage(format!("the answer cannot be read: {error}")))?;
        Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
    }
}

/// Returns the limit with the kind and the keep-alive time of the one that it replaces.
fn like(limit: Limit, before: Option<Limit>) -> Result<Limit, Stop> {
    let Some(before) = before else {
        return Ok(limit);
    };
    let limit = match before.rate_type() {
        RateType::PerClient => limit.per_client(),
        RateType::Overall => limit,
    };
    Ok(match before.keep_alive_time() {
        Some(time) => limit.keep_alive(time)?,
        None => limit,
    })
}

/// Returns what is shown of a limiter: labels, values and words. The labels with `_` for each space
/// are the names in JSON, where those of times end in `_ms`.
fn shown(seen: &Diagnosis) -> Vec<(String, Value, String)> {
    let limit = seen.limit();
    let number = |it: Option<i64>| {
        (
            json!(it),
            it.map_or("unknown".to_owned(), |it| it.to_string()),
        )
    };
    let time = |it: Option<Duration>, none: &str| {
        let words = it.map_or_else(|| none.to_owned(), |it| format!("in {it:.1?}"));
        (json!(it.map(millis)), words)
    };
    let lately = seen.granted_lately;
    let algorithm = seen.algorithm.to_string();
    let expires = match seen.time_to_live[0].max(seen.time_to_live[1]) {
        TimeToLive::Left(left) => Some(left),
        _ => None,
    };
    let limit_words = limit.map_or_else(|| "none".to_owned(), |it| it.to_string());
    let rows = [
        (
            "name",
            (json!(seen.name()), seen.name().escape_debug().to_string()),
        ),
        ("limit", (json!(limit.map(limit_of)), limit_words)),
        ("left", number(seen.left())),
        ("used", number(seen.used())),
        (
            "granted in last second",
            (json!(lately), lately.to_string()),
        ),
        ("next free", time(seen.next_free, "-")),
        ("expires", time(expires, "never")),
        ("algorithm", (json!(algorithm), algorithm)),
    ];
    let rows = rows
        .into_iter()
        .map(|(label, (value, words))| (label.to_owned(), value, words));
    rows.collect()
}

fn object(seen: &Diagnosis) -> Value {
    let mut object = json!({ "schema": SCHEMA });
    for (label, value, _) in shown(seen) {
        let unit = if matches!(&*label, "next free" | "expires") {
            "_ms"
        } else {
            ""
        };
        object[label.replace(' ', "_") + unit] = value;
    }
    object
}

fn limit_of(limit: Limit) -> Value {
    json!({"permits": limit.permits(), "interval_ms": millis(limit.interval())})
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
