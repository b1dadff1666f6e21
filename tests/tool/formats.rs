//! Logs in the formats that people have. Each gives the right figures, or an error that names the
//! option with which it does.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{Ran, contains, file, run};
use kit::random::Random;

const CALLERS: u64 = 200;
/// In seconds since the epoch. All times are whole seconds, so that each format writes the same.
const START: i64 = 1_791_640_536;
const LIMIT: (usize, i64) = (30, 60);
const LOGINS: (usize, i64) = (3, 60);

/// A request that was logged.
struct Sent {
    time: i64,
    caller: u64,
    ip: String,
    method: &'static str,
    path: &'static str,
    status: u16,
    number: u64,
}

impl Sent {
    /// Its time by `strftime`, as of UTC.
    fn at(&self, format: &str) -> String {
        let time = Timestamp::from_second(self.time).unwrap();
        time.strftime(format).to_string()
    }

    /// Returns a line of `formats.toml` with what it says of this request.
    fn line(&self, line: &str) -> String {
        let (stem, query) = self.path.split_once('?').unwrap_or((self.path, "-"));
        let is_ipv6 = self.ip.contains(':');
        let mapped = if is_ipv6 { "{ip}" } else { "::ffff:{ip}" };
        let mut line = line.replace('\n', " ");
        // Some are made of those behind them.
        for (word, text) in [
            ("combined", "{common} {agent}"),
            ("common", COMMON),
            ("agent", "\"-\" \"curl/8 (x, y)\""),
            ("clf", "{%d/%b/%Y:%H:%M:%S +0000}"),
            ("iso", "{%Y-%m-%dT%H:%M:%S.000000Z}"),
            (
                "uuid",
                &format!("cc21d9b0-cf5c-432b-8c7e-{:012x}", self.number * 7919),
            ),
            ("mapped", mapped),
            ("ip", &self.ip),
            ("port", &(40_000 + self.number % 20_000).to_string()),
            ("method", self.method),
            ("path", self.path),
            ("stem", stem),
            ("query", query),
            ("status", &self.status.to_string()),
            ("bytes", &(1000 + self.number).to_string()),
            ("number", &(1 + self.number).to_string()),
            ("time", &self.time.to_string()),
        ] {
            line = line.replace(&format!("{{{word}}}"), text);
        }
        while let Some((before, behind)) = line.split_once("{%") {
            let (format, behind) = behind.split_once('}').expect("the end of a time");
            line = format!("{before}{}{behind}", self.at(&format!("%{format}")));
        }
        line
    }
}

const COMMON: &str = "{ip} - - [{clf}] \"{method} {path} HTTP/1.1\" {status} {bytes}";

/// A format of `formats.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Format {
    name: String,
    #[serde(default)]
    option: String,
    #[serde(default)]
    header: String,
    line: String,
}

/// All callers come for five minutes, and every tenth more often than the limit.
fn traffic() -> Vec<Sent> {
    let mut random = Random(35);
    let mut sent = Vec::new();
    for caller in 0..CALLERS {
        let is_busy = caller % 10 == 3;
        let requests = if is_busy { 80 } else { 2 + random.below(6) };
        for _ in 0..requests {
            let within = if is_busy { 90 } else { 300 };
            let (time, is_login) = (START + random.within(0, within), random.one_in(5));
            let ip = match caller {
                190.. => format!("2001:db8:{caller:x}::7"),
                100.. => format!("198.51.100.{}", caller - 99),
                _ => format!("203.0.113.{}", caller + 1),
            };
            let (method, path) = if is_login {
                ("POST", "/login")
            } else {
                ("GET", "/orders?id=7&q=a,b")
            };
            sent.push(Sent {
                time,
                caller,
                ip,
                method,
                path,
                status: if random.one_in(9) { 404 } else { 200 },
                number: 0,
            });
        }
    }
    sent.sort_by_key(|it| it.time);
    (0..)
        .zip(&mut sent)
        .for_each(|(number, it)| it.number = number);
    sent
}

/// The callers and requests that a sliding log refuses.
fn refused<'s>(sent: impl Iterator<Item = &'s Sent>, (most, within): (usize, i64)) -> [u64; 2] {
    let mut grants = BTreeMap::<u64, Vec<i64>>::new();
    let mut refused = BTreeMap::<u64, u64>::new();
    for it in sent {
        let grants = grants.entry(it.caller).or_default();
        let live = grants.iter().filter(|grant| **grant + within > it.time);
        if live.count() < most {
            grants.push(it.time);
        } else {
            *refused.entry(it.caller).or_default() += 1;
        }
    }
    [refused.len() as u64, refused.values().sum()]
}

/// Returns the option that an error names.
fn named(ran: &Ran, line: &str) -> String {
    assert_eq!(
        (ran.status, ran.output.as_str()),
        (2, ""),
        "{line}: {}",
        ran.said
    );
    let (_, option) = ran.said.split_once("`--").expect(&ran.said);
    let (option, _) = option.split_once('`').expect(&ran.said);
    format!("--{option}")
}

/// Runs a command bare, and with the option that its error names, if that is not empty. Returns the
/// line that gives figures.
fn settled(line: &str, option: &str) -> String {
    let ran = run(line);
    if option.is_empty() {
        assert_eq!((ran.status, ran.said.as_str()), (0, ""), "{line}");
        return line.to_owned();
    }
    let named = named(&ran, line);
    let option = match option.split_once(" --trusted ") {
        Some((column, _)) => {
            assert_eq!(named, format!("{column} --trusted NETWORK"), "{line}");
            option
        }
        None => &*named,
    };
    contains(
        &named,
        option.split(" --trusted ").next().unwrap_or_default(),
    );
    format!("{line} {option}")
}

#[test]
fn every_format_gives_the_right_figures_or_names_the_option_with_which_it_does() {
    let sent = traffic();
    let [touched, over] = refused(sent.iter(), LIMIT);
    let logins = || sent.iter().filter(|it| it.path == "/login");
    let [callers, refused_logins] = refused(logins(), LOGINS);
    assert!(touched == 20 && over > 300, "{touched} {over}");
    assert!(
        callers > 15 && refused_logins > 50,
        "{callers} {refused_logins}"
    );
    let rules = "[rules.login]\nrate = \"3/1m\"\nby = \"peer\"\n[[on]]\nroute = \"POST /login\"\n\
                 rules = [\"login\"]\n";
    let rules = file("formats.toml", rules.as_bytes());
    let formats = include_str!("formats.toml");
    let mut formats: BTreeMap<String, Vec<Format>> = toml::from_str(formats).unwrap();
    let formats = formats.remove("format").unwrap();
    assert!(formats.len() > 35, "{}", formats.len());
    for (number, format) in formats.iter().enumerate() {
        let Format {
            name,
            option,
            header,
            line,
        } = format;
        let lines = sent.iter().map(|it| it.line(line) + "\n");
        let text = lines.fold(header.clone(), |text, line| text + &line);
        let log = file(&format!("format{number}.log"), text.as_bytes());
        let line = format!("replay '{}' --limit 30/1m", log.display());
        let with = settled(&line, option);
        let options = with.strip_prefix(&line).unwrap_or_default();
        let ran = run(&with);
        assert_eq!((ran.status, ran.said.as_str()), (0, ""), "{name}: {with}");
        let (columns, figures) = ran.output.split_once('\n').unwrap();
        assert!(columns.starts_with("Columns: ip="), "{name}: {columns}");
        contains(columns, ",time=");
        let requests = sent.len();
        assert!(
            figures.starts_with(&format!("{requests} requests of {CALLERS} callers\n")),
            "{name}: {with}: {figures}"
        );
        let object: Value = serde_json::from_str(&run(&format!("{with} --json")).output).unwrap();
        let candidate = &object["candidates"][0];
        assert_eq!(candidate["refused"], json!([over, over]), "{name}");
        assert_eq!(candidate["touched"], json!([touched, touched]), "{name}");
        assert_eq!(object["unreadable"], 0, "{name}");
        let shown = object["columns"]["ip"].as_str().expect(name);
        contains(columns, &format!("ip={shown},"));
        if option.contains("--trusted") {
            continue;
        }
        let line = format!(
            "replay '{}' --rules '{}' --json",
            log.display(),
            rules.display()
        );
        let ran = run(&format!("{line} {options}"));
        assert_eq!(ran.status, 0, "{name}: {}", ran.said);
        let object: Value = serde_json::from_str(&ran.output).unwrap();
        assert_eq!(object["refused"], refused_logins, "{name}: {object}");
        assert_eq!(object["rules"][0]["callers"], callers, "{name}");
    }
}
