//! What the command line says.

use std::env;

use crate::plots;

pub(crate) const HELP: &str = "\
Usage: benches/goals.sh [--quick] [--rows PATTERN]... [--list] [--help]
       benches/goals.sh --write

Measures what tower-ratelimit is to reach, each row beside its contender, in turns, and prints a table as Markdown.

Options:
    --quick            few and short rounds: that it runs, not how fast it is; judges nothing
    --rows PATTERN     only rows whose name contains this; more than once: or this
    --list             instead: the names of the rows, with what each measures, and beside what
    --write            alone: a whole run, whose table goes into benches/README.md, too
    --plot NAME        instead: measures what a plot shows, and writes benches/plots/NAME.csv and
                       .svg; more than once, or `all`: latency, rate, log, keys
    --instructions     instead, as the first: counts instructions and fails where a row lost 5 %;
                       with --write, puts the counts into benches/goals/instructions.toml and
                       benches/README.md
    -h, --help         this text

Needs redis-server on the PATH or in REDIS_SERVER_BIN; for rows beside Redisson java, unzip, and its jars:
    tests/redisson/prepare.sh target/redisson 4.7.0
Nothing is left out: where a contender is missing, nothing is measured, and what to install is named.
";

/// What this process is to do.
#[derive(Debug)]
pub(crate) enum Order {
    Measure(Arguments),
    /// Be the HTTP server of a row. This program says so to a copy of itself.
    Serve {
        scene: String,
        redis: String,
    },
    /// Read a log, and print what it cost. This program says so to a copy of itself.
    Read {
        log: String,
        replayed: bool,
    },
    /// Measure and draw these.
    Plot(Vec<String>),
    Help,
}

#[derive(Debug, Default)]
pub(crate) struct Arguments {
    pub(crate) quick: bool,
    pub(crate) list: bool,
    pub(crate) patterns: Vec<String>,
}

impl Arguments {
    pub(crate) fn read() -> Result<Order, String> {
        let mut read = Self::default();
        let mut plots = Vec::new();
        let mut given = env::args().skip(1);
        while let Some(argument) = given.next() {
            match argument.as_str() {
                "--quick" => read.quick = true,
                "--list" => read.list = true,
                "--write" => return Err("--write takes a whole run, and stands alone".into()),
                "--rows" => {
                    let pattern = given.next().ok_or("--rows needs a pattern")?;
                    read.patterns.push(pattern);
                }
                "--plot" => match given.next().ok_or("--plot needs a name")?.as_str() {
                    "all" => plots.extend(plots::names().map(str::to_owned)),
                    name if plots::names().any(|it| it == name) => plots.push(name.to_owned()),
                    other => return Err(format!("no plot is named {other:?}")),
                },
                "-h" | "--help" => return Ok(Order::Help),
                "serve" => {
                    let mut next = || given.next().ok_or("serve: a scene and an address");
                    let (scene, redis) = (next()?, next()?);
                    return Ok(Order::Serve { scene, redis });
                }
                "replay" | "lines" => {
                    let log = given.next().ok_or("replay: a log")?;
                    let replayed = argument == "replay";
                    return Ok(Order::Read { log, replayed });
                }
                other => return Err(format!("unknown argument {other:?}")),
            }
        }
        if !plots.is_empty() {
            return Ok(Order::Plot(plots));
        }
        Ok(Order::Measure(read))
    }

    /// Whether a row is to be measured.
    pub(crate) fn wants(&self, row: &str) -> bool {
        let patterns = &self.patterns;
        patterns.is_empty() || patterns.iter().any(|it| row.contains(&**it))
    }
}
