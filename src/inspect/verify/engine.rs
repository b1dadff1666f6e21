//! Which row of `docs/engines.md` a server is on, by what it says of itself in INFO.

use crate::inspect::finding::{Finding, finding};

/// A row of that page; the field of INFO that only this engine has, or has with these words; and
/// the newest major version on which the tests run, 0 if they run on none.
type Engine = (&'static str, &'static str, &'static str, u64);

/// All but Valkey and Redis have a `redis_version`, too, for old clients. So these come last.
const ENGINES: &[Engine] = &[
    ("Dragonfly", "dragonfly_version", "", 0),
    ("Kvrocks", "kvrocks_version", "", 0),
    ("Garnet", "garnet_version", "", 0),
    ("Upstash", "upstash_version", "", 0),
    ("Redis Enterprise", "rlec_version", "", 0),
    ("KeyDB", "mvcc_depth", "", 0),
    ("MemoryDB", "os", "Amazon MemoryDB", 0),
    ("ElastiCache", "os", "Amazon ElastiCache", 0),
    ("Valkey", "valkey_version", "", 9),
    ("Redis", "redis_version", "", 8),
];

/// What a server says that it is.
pub(super) struct Known<'a> {
    engine: Option<Engine>,
    /// A product and its version. A service runs one of another name.
    pub(super) version: Option<(&'a str, &'a str)>,
}

impl<'a> Known<'a> {
    /// Reads the reply of INFO.
    pub(super) fn read(info: &'a str) -> Self {
        let field = |name: &str| field(info, name);
        let has_mark =
            |(_, mark, words, _): &&Engine| field(mark).is_some_and(|value| value.contains(words));
        let engine = ENGINES.iter().find(has_mark).copied();
        if engine.is_none_or(|(row, ..)| row == "Redis")
            && let Some(fork) = fork(info)
        {
            return Self {
                engine: None,
                version: Some(fork),
            };
        }
        let version = engine.and_then(|(row, mark, ..)| match mark {
            "os" => field("valkey_version")
                .map(|version| ("Valkey", version))
                .or_else(|| Some(("Redis", field("redis_version")?))),
            mark if mark.ends_with("_version") => Some((row, field(mark)?)),
            _ => Some((row, field("redis_version")?)),
        });
        Self { engine, version }
    }

    /// Returns the row of the page; `None` if it has none for this server.
    pub(super) fn row(&self) -> Option<&'static str> {
        self.engine.map(|(row, ..)| row)
    }

    /// Returns what is to be said of an engine on which the tests do not run.
    pub(super) fn untested(&self) -> Option<Finding> {
        let Some((row, .., tested)) = self.engine else {
            return Some(
                finding!(Note "unknown_engine": "it is no engine that this version knows, \
                so whether limits work there is untested: see what else is found here, and try"),
            );
        };
        let (_, version) = self.version?;
        let major: u64 = version.split('.').next()?.parse().unwrap_or(tested);
        match tested {
            0 => Some(
                finding!(Note "untested": "the tests do not run on {row}: `docs::engines` \
                has what is known of it"),
            ),
            _ if major > tested => Some(finding!(Note "untested": "the tests run on {row} up to \
                version {tested}, and it is a newer one")),
            _ => None,
        }
    }
}

/// Returns the value of a field of INFO.
pub(super) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    let value = |line: &'a str| line.strip_prefix(name)?.strip_prefix(':');
    info.lines().find_map(value).map(str::trim)
}

/// Returns the name and version of a server that says of itself that it is another one.
fn fork(info: &str) -> Option<(&str, &str)> {
    // Modules have versions in later parts.
    let first = info.trim_start().split("\n#").next()?;
    let versions = first
        .lines()
        .filter_map(|line| line.split_once("_version:"));
    let mut forks = versions.filter(|(name, _)| !["redis", "gcc"].contains(name));
    forks.next().map(|(name, version)| (name, version.trim()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const PAGE: &str = include_str!("../../docs/engines.md");

    /// The cells of a table: of the first one below this heading.
    fn table(heading: &str) -> Vec<Vec<&'static str>> {
        let (_, section) = PAGE.split_once(&format!("\n## {heading}\n")).unwrap();
        let rows = section.lines().skip_while(|line| !line.starts_with("|--"));
        let rows = rows.skip(1).map_while(|line| line.strip_prefix("| "));
        rows.map(|row| row.split(" | ").collect()).collect()
    }

    /// An INFO, its row, and the product and version.
    type Said = (
        &'static str,
        Option<&'static str>,
        Option<(&'static str, &'static str)>,
    );

    /// What INFO begins with there. Those of others than Redis and Valkey are from what has been
    /// published of them.
    const SAID: &[Said] = &[
        (
            "redis_version:7.0.15\r\nredis_mode:standalone\r\nos:Linux 6.1\r\ngcc_version:12.2.0",
            Some("Redis"),
            Some(("Redis", "7.0.15")),
        ),
        (
            "redis_version:9.0.0",
            Some("Redis"),
            Some(("Redis", "9.0.0")),
        ),
        (
            "redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:9.1.2",
            Some("Valkey"),
            Some(("Valkey", "9.1.2")),
        ),
        (
            "redis_version:7.2.4\r\nvalkey_version:8.1.0\r\nos:Amazon ElastiCache",
            Some("ElastiCache"),
            Some(("Valkey", "8.1.0")),
        ),
        (
            "redis_version:6.2.5\r\nredis_mode:standalone\r\nos:Amazon ElastiCache",
            Some("ElastiCache"),
            Some(("Redis", "6.2.5")),
        ),
        (
            "redis_version:6.2.6\r\nos:Amazon MemoryDB",
            Some("MemoryDB"),
            Some(("Redis", "6.2.6")),
        ),
        (
            "redis_version:7.4.0\r\ndragonfly_version:df-v1.37.0\r\nredis_mode:standalone",
            Some("Dragonfly"),
            Some(("Dragonfly", "df-v1.37.0")),
        ),
        (
            "version:2.10.0\r\nkvrocks_version:2.10.0\r\nredis_version:4.0.0",
            Some("Kvrocks"),
            Some(("Kvrocks", "2.10.0")),
        ),
        (
            "garnet_version:1.0.84\r\nserver_name:garnet\r\nos:Unix\r\nredis_version:7.4.3",
            Some("Garnet"),
            Some(("Garnet", "1.0.84")),
        ),
        (
            "upstash_version:1.10.5\r\nredis_version:6.2.6",
            Some("Upstash"),
            Some(("Upstash", "1.10.5")),
        ),
        (
            "redis_version:7.4.0\r\nrlec_version:7.22.0-28",
            Some("Redis Enterprise"),
            Some(("Redis Enterprise", "7.22.0-28")),
        ),
        (
            "redis_version:6.3.4\r\nexecutable:/data/keydb-server\r\n\r\n# KeyDB\r\nmvcc_depth:0",
            Some("KeyDB"),
            Some(("KeyDB", "6.3.4")),
        ),
        (
            "redis_version:7.2.4\r\nredict_version:7.3.0",
            None,
            Some(("redict", "7.3.0")),
        ),
        // Of a module, behind what is said of the server.
        (
            "redis_version:8.2.3\r\n\r\n# Modules\r\nsearch_version:8.2.5",
            Some("Redis"),
            Some(("Redis", "8.2.3")),
        ),
        ("whatever:1", None, None),
    ];

    #[test]
    fn servers_are_on_their_rows() {
        for &(info, row, version) in SAID {
            let info = format!("# Server\r\n{info}\r\n");
            let known = Known::read(&info);
            assert_eq!((known.row(), known.version), (row, version), "{info}");
            let found = known.untested().map(|finding| finding.code());
            let expected = match row {
                None => Some("unknown_engine"),
                Some("Redis") if info.contains("9.0.0") => Some("untested"),
                Some("Redis" | "Valkey") => None,
                Some(_) => Some("untested"),
            };
            assert_eq!(found, expected, "{info}");
        }
    }

    #[test]
    fn each_row_that_can_be_named_stands_in_the_page_and_no_other() {
        let rows = table("Rows that `verify` names");
        let listed: Vec<_> = rows.iter().map(|row| row[0]).collect();
        let listed_once: BTreeSet<_> = listed.iter().copied().collect();
        assert_eq!(listed_once.len(), listed.len(), "a row stands there twice");
        let named = BTreeSet::from_iter(ENGINES.iter().map(|(row, ..)| *row));
        assert_eq!(listed_once, named);
        let said = BTreeSet::from_iter(SAID.iter().filter_map(|(_, row, _)| *row));
        assert_eq!(said, named, "each is read above");
        for row in rows {
            let (.., tested) = ENGINES.iter().find(|(it, ..)| *it == row[0]).unwrap();
            assert_eq!(row[1].starts_with("no"), *tested == 0, "{row:?}");
        }
        for service in table("Services that look like another row") {
            assert!(named.contains(service[1]), "{service:?}");
        }
    }
}
