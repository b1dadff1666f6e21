//! `ratelimit get`, `watch`, `set-rate`, `delete`, `ban`, `unban`, `diagnose` and `repair`: one
//! limiter in Redis.

use std::{
    fmt::Write as _,
    io::{self, BufRead, IsTerminal},
    time::Duration,
};

use serde_json::{Value, json};
use tower_ratelimit::{Algorithm, Diagnosis, Limit, RateLimiter, RateType, RedisStore, TimeToLive};

use crate::{
    Answer, Stop, print,
    redis::{Connection, Which},
    replay::{Named, SCHEMA, time},
    say,
    verify::listed,
};

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

/// Asks before it writes.
#[derive(clap::Args)]
pub(crate) struct Write {
    #[command(flatten)]
    one: One,
    /// Write without asking
    #[arg(long)]
    yes: bool,
    /// Say what would be written, and write nothing
    #[arg(long)]
    dry_run: bool,
}

/// Show a limiter as it stands in Redis: its limit, the permits left, and when more are free.
///
/// It only reads. Exits with 4 if there is no such limiter.
#[derive(clap::Args)]
pub(crate) struct Get {
    #[command(flatten)]
    one: One,
}

/// Show a limiter again and again, a line each time, until it is interrupted.
///
/// The whole log is read each time: look at a large one less often. Refusals and waiting requests
/// are in no store; the metrics have them.
#[derive(clap::Args)]
pub(crate) struct Watch {
    #[command(flatten)]
    one: One,
    /// The time between two lines
    #[arg(long, default_value = "1s", value_parser = time, value_name = "TIME")]
    every: Duration,
    /// End after so many lines
    #[arg(long, value_name = "LINES")]
    count: Option<u64>,
}

/// Set the limit of a limiter, and go on counting what is in use.
///
/// A rule with a limit of its own sets that again at the next request: change the rule there.
#[derive(clap::Args)]
pub(crate) struct SetRate {
    #[command(flatten)]
    write: Write,
    /// The limit, as in `60/1m`
    #[arg(long, value_name = "RATE")]
    rate: Limit,
    /// Begin anew: all permits are free
    #[arg(long)]
    reset: bool,
}

/// Delete a limiter: its limit, and all that is in use of it.
#[derive(clap::Args)]
pub(crate) struct Delete {
    #[command(flatten)]
    write: Write,
}

/// Ban the caller of a limiter, by every rule that bans callers.
#[derive(clap::Args)]
pub(crate) struct Ban {
    #[command(flatten)]
    write: Write,
    /// For how long, from now on
    #[arg(long = "for", value_parser = time, value_name = "TIME")]
    lasting: Duration,
}

/// End the ban of a caller, and forget its refusals. Exits with 4 if it is not banned.
#[derive(clap::Args)]
pub(crate) struct Unban {
    #[command(flatten)]
    write: Write,
}

/// Say what looks wrong with a limiter, and what to do. Exits with 1 if something does.
#[derive(clap::Args)]
pub(crate) struct Diagnose {
    #[command(flatten)]
    one: One,
}

/// Count the permits left of a limiter anew, where they and the log differ.
#[derive(clap::Args)]
pub(crate) struct Repair {
    #[command(flatten)]
    write: Write,
}

impl One {
    /// Returns the store, the name and what Redis has under it.
    async fn found(&self) -> Result<(RedisStore, String, Diagnosis), Stop> {
        let store = self.connection.open()?;
        let name = self.which.name(&store)?;
        let seen = store.look_at(&name).await?;
        let is_there = |life: &TimeToLive| *life != TimeToLive::Missing;
        if !seen.time_to_live.iter().any(is_there) {
            return Err(Stop::NotFound(format!("there is no limiter {name:?}")));
        }
        Ok((store, name, seen))
    }

    /// Prints a result in words, or as an object.
    fn print(&self, words: &str, object: &Value) -> Result<Answer, Stop> {
        let text = if self.json {
            object.to_string()
        } else {
            words.to_owned()
        };
        print(&format!("{text}\n"))?;
        Ok(Answer::Yes)
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

impl Get {
    pub(crate) async fn run(&self) -> Result<Answer, Stop> {
        let (_, name, seen) = self.one.found().await?;
        let seen = Seen::of(&seen);
        self.one.print(&seen.page(&name), &seen.object(&name))
    }
}

impl Watch {
    pub(crate) async fn run(&self) -> Result<Answer, Stop> {
        let (store, name, mut seen) = self.one.found().await?;
        let mut lines = 0;
        loop {
            let shown = Seen::of(&seen);
            self.one.print(&shown.line(), &shown.object(&name))?;
            lines += 1;
            if self.count.is_some_and(|count| lines >= count) {
                return Ok(Answer::Yes);
            }
            tokio::time::sleep(self.every).await;
            seen = store.look_at(&name).await?;
        }
    }
}

impl SetRate {
    pub(crate) async fn run(&self) -> Result<Answer, Stop> {
        let one = &self.write.one;
        let store = one.connection.open()?;
        let name = one.which.name(&store)?;
        let limiter = RateLimiter::new(&store, &name)?.by_tool();
        let before = limiter.limit().await?;
        let limit = like(self.rate, before)?;
        let was = before.map_or_else(|| "no limit".to_owned(), |limit| limit.to_string());
        let anew = if self.reset { ", and begin anew" } else { "" };
        let what = format!("set {name:?} from {was} to {limit}{anew}");
        if !self.write.may(&what)? {
            return Ok(Answer::Yes);
        }
        match self.reset {
            true => limiter.set_rate(limit).await?,
            false => limiter.set_or_update_rate(limit).await?,
        }
        let object = json!({"schema": SCHEMA, "name": name, "limit": limit_of(Some(limit))});
        one.print(&format!("{name}: {was} -> {limit}"), &object)
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

impl Delete {
    pub(crate) async fn run(&self) -> Result<Answer, Stop> {
        let (store, name, _) = self.write.one.found().await?;
        if !self.write.may(&format!("delete {name:?}"))? {
            return Ok(Answer::Yes);
        }
        RateLimiter::new(&store, &name)?.by_tool().delete().await?;
        let object = json!({"schema": SCHEMA, "name": name, "deleted": true});
        self.write.one.print(&format!("{name}: deleted"), &object)
    }
}

impl Ban {
    pub(crate) async fn run(&self) -> Result<Answer, Stop> {
        let one = &self.write.one;
        let store = one.connection.open()?;
        let name = one.which.name(&store)?;
        if !self
            .write
            .may(&format!("ban {name:?} for {:?}", self.lasting))?
        {
            return Ok(Answer::Yes);
        }
        RateLimiter::new(&store, &name)?
            .ban_for(self.lasting)
            .await?;
        let object = json!({"schema": SCHEMA, "name": name, "banned_ms": millis(self.lasting)});
        one.print(&format!("{name}: banned for {:?}", self.lasting), &object)
    }
}

impl Unban {
    pub(crate) async fn run(&self) -> Result<Answer, Stop> {
        let one = &self.write.one;
        let store = one.connection.open()?;
        let name = one.which.name(&store)?;
        if !self.write.may(&format!("unban {name:?}"))? {
            return Ok(Answer::Yes);
        }
        if !RateLimiter::new(&store, &name)?.unban().await? {
            return Err(Stop::NotFound(format!("{name:?} is not banned")));
        }
        let object = json!({"schema": SCHEMA, "name": name, "banned_ms": 0});
        one.print(&format!("{name}: not banned any more"), &object)
    }
}

impl Diagnose {
    pub(crate) async fn run(&self) -> Result<Answer, Stop> {
        let (store, name, _) = self.one.found().await?;
        let seen = store.diagnose(&name).await?;
        let findings = seen.findings();
        let mut object = Seen::of(&seen).object(&name);
        object["findings"] = listed(&findings);
        self.one.print(&seen.to_string(), &object)?;
        Ok(if findings.is_empty() {
            Answer::Yes
        } else {
            Answer::No
        })
    }
}

impl Repair {
    pub(crate) async fn run(&self) -> Result<Answer, Stop> {
        let (store, name, seen) = self.write.one.found().await?;
        let drift = match seen.drift {
            Some(drift) => format!("{drift} permits"),
            None => "an unknown number of permits".to_owned(),
        };
        if !self
            .write
            .may(&format!("repair {name:?}, which has lost {drift}"))?
        {
            return Ok(Answer::Yes);
        }
        let limiter = RateLimiter::new(&store, &name)?
            .by_tool()
            .algorithm(seen.algorithm);
        let lost = limiter.repair().await?;
        let object = json!({"schema": SCHEMA, "name": name, "lost": lost});
        let words = format!("{name}: {lost} permits had been lost");
        self.write.one.print(&words, &object)
    }
}

/// A limiter as it is shown.
struct Seen {
    limit: Option<(u64, Duration)>,
    algorithm: Algorithm,
    left: Option<i64>,
    granted_lately: u64,
    next_free: Option<Duration>,
    expires: TimeToLive,
}

impl Seen {
    fn of(seen: &Diagnosis) -> Self {
        let field = |name: &str| {
            let stored = seen.fields.iter().find(|(field, _)| *field == name);
            stored.and_then(|(_, text)| text.parse::<u64>().ok())
        };
        let limit = field("rate").zip(field("interval").map(Duration::from_millis));
        let rate = limit.and_then(|(rate, _)| i64::try_from(rate).ok());
        let value = seen.value.as_deref().and_then(|value| value.parse().ok());
        let in_use = i64::try_from(seen.live_permits).unwrap_or(i64::MAX);
        let left = match seen.algorithm {
            // Expired permits are free, whether or not a call has credited them.
            Algorithm::SlidingLog => rate.map(|rate| {
                rate.saturating_sub(in_use)
                    .saturating_sub(seen.drift.unwrap_or(0))
            }),
            _ => value.or(rate),
        };
        let [expires, value_expires, ..] = seen.time_to_live;
        let window_ends = match (seen.algorithm, value_expires) {
            (Algorithm::FixedWindow, TimeToLive::Left(left)) => Some(left),
            _ => None,
        };
        Self {
            limit,
            algorithm: seen.algorithm,
            left,
            granted_lately: seen.granted_lately,
            next_free: seen.next_free.or(window_ends),
            expires,
        }
    }

    fn page(&self, name: &str) -> String {
        let mut page = format!(
            "name       {}\nlimit      {}\n",
            name.escape_debug(),
            self.rate()
        );
        let _ = writeln!(page, "left       {}", shown(self.left));
        let _ = writeln!(page, "next free  {}", in_time(self.next_free));
        let expires = match self.expires {
            TimeToLive::Left(left) => in_time(Some(left)),
            _ => "never".to_owned(),
        };
        let _ = writeln!(page, "expires    {expires}");
        let _ = write!(page, "algorithm  {}", Named::of(self.algorithm));
        page
    }

    fn line(&self) -> String {
        format!(
            "{} left of {}, {} granted in the last second, next free {}",
            shown(self.left),
            self.rate(),
            self.granted_lately,
            in_time(self.next_free)
        )
    }

    fn rate(&self) -> String {
        let limit = self
            .limit
            .and_then(|(permits, per)| Limit::try_new(permits, per).ok());
        limit.map_or_else(|| "none".to_owned(), |limit| limit.to_string())
    }

    fn object(&self, name: &str) -> Value {
        let limit = self
            .limit
            .and_then(|(permits, per)| Limit::try_new(permits, per).ok());
        let expires = match self.expires {
            TimeToLive::Left(left) => Some(left),
            _ => None,
        };
        json!({
            "schema": SCHEMA,
            "name": name,
            "limit": limit_of(limit),
            "algorithm": Named::of(self.algorithm),
            "left": self.left,
            "granted_in_last_second": self.granted_lately,
            "next_free_ms": self.next_free.map(millis),
            "expires_ms": expires.map(millis),
        })
    }
}

fn limit_of(limit: Option<Limit>) -> Value {
    limit.map_or(
        Value::Null,
        |limit| json!({"permits": limit.permits(), "interval_ms": millis(limit.interval())}),
    )
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn shown(number: Option<i64>) -> String {
    number.map_or_else(|| "unknown".to_owned(), |number| number.to_string())
}

fn in_time(time: Option<Duration>) -> String {
    time.map_or_else(|| "-".to_owned(), |time| format!("in {:.1?}", time))
}
