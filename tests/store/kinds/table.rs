//! The table of the guide, "What each kind of name can do": each row as it stands there, and the
//! tests that hold both of its cells, on the stores that they name.

mod both;
mod in_redis;

use tower_ratelimit::Ban;

use self::{both::*, in_redis::*};
use super::*;

/// Makes of each `async fn check(kinds: Kinds<..>)` a test on each of its stores, which `Kinds`
/// has.
macro_rules! table {
    ($([$what:literal, $own:literal, $redissons:literal]
        $($check:ident($($store:ident),+))+;)+) => {
        const ROWS: &[[&str; 3]] = &[$([$what, $own, $redissons]),+];

        $($(mod $check {
            $(#[tokio::test]
            async fn $store() {
                let kinds = crate::kinds::table::Kinds::$store();
                kit::scene::in_time(super::$check(kinds)).await;
            })+
        })+)+
    };
}

table! {
    ["algorithms", "sliding log, fixed window, GCRA, calendar",
     "sliding log, also in slots, and fixed window"]
        algorithms(memory, server) states_of_algorithms(server);
    ["limit", "in the code: goes with each call",
     "stored: set by `try_set_rate` or in Java, or that of the code, rewritten at most once a minute"]
        limit(memory, server) limits_side_by_side(server);
    ["keys in Redis", "one, and one for a ban", "two or three, and one for a ban"]
        keys_in_redis(server) keys_of_bans(server);
    ["take and wait, `lease`, bans, lists, shadow rules", "yes", "yes; with a ban, two calls, and a third after a refusal"]
        take_and_wait(memory, server) lease(memory, server) bans(memory, server)
        lists(memory, server) shadow_rules(memory, server);
    ["`settle`, `give_back`, `release`", "yes", "yes"]
        settle_and_give_back(memory, server);
    ["`available_permits`, `limit`, `exists`, `time_to_live`", "yes", "yes"]
        what_is_read(memory, server) unused(memory, server);
    ["`delete`, `ban_for`, `unban`, `banned_until`", "yes", "yes"]
        delete_and_ban(memory, server);
    ["`set_rate` and its kin, `expire`, `clear_expire`, `rename`", "an `ErrorKind::Limit`",
     "yes, of exact names alone"]
        what_changes_a_limit(memory, server);
    ["`repair`", "nothing to do: 0", "yes"]
        repair(memory, server) repair_of_what_is_lost(server);
    ["`slots`, `Limit::keep_alive`, `Limit::per_client`", "a `ConfigError`", "yes"]
        settings(memory, server) keys_of_settings(server);
    ["many callers of one key in one call", "yes", "yes"]
        many_callers(server);
    ["many keys in one command", "yes", "no"]
        many_keys(server);
    // `tests/redisson` has Java look.
    ["Java", "cannot read it", "`redisson.getRateLimiter(name)`"]
        what_java_looks_for(server);
}

#[test]
fn the_guide_has_these_rows() {
    let guide = include_str!("../../../src/docs/guide.md");
    let (_, section) = guide
        .split_once("\n### What each kind of name can do\n")
        .expect("the section");
    let lines = section.lines().skip_while(|line| !line.starts_with('|'));
    let rows = lines.take_while(|line| line.starts_with('|')).skip(2);
    let rows: Vec<Vec<_>> = rows
        .map(|row| row.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    assert_eq!(rows, ROWS);
}

/// A store as it is by default, and one that keeps all limiters in Redisson's format.
struct Kinds<S> {
    own: S,
    redisson: S,
    clock: ManualClock,
    /// Where both are, unless that is in memory.
    server: Option<RedisServer>,
}

impl Kinds<MemoryStore> {
    fn memory() -> Self {
        let clock = ManualClock::new();
        let store = || MemoryStore::builder().clock(clock.clone());
        Self {
            own: store().build(),
            redisson: store().redisson().build(),
            server: None,
            clock,
        }
    }
}

impl Kinds<RedisStore> {
    /// A server of its own, which has no other keys, and may stand still.
    fn server() -> Self {
        let (server, clock) = (RedisServer::start(), ManualClock::new());
        let store = || by_clock(&server, &clock).deny_cache(Duration::ZERO);
        Self {
            own: store().prefix("own").build().unwrap(),
            redisson: store().prefix("redisson").redisson().build().unwrap(),
            server: Some(server),
            clock,
        }
    }

    /// Returns the endings of the keys of a name, which has no other.
    fn suffixes(&self, name: &str) -> Vec<String> {
        let keys = self.cli(&["KEYS", "*"]);
        let suffix = |key: &str| {
            let key = key.replace(&format!("{{{name}}}"), name);
            key.strip_prefix(name).map(str::to_owned)
        };
        let mut suffixes: Vec<_> = keys.lines().filter_map(suffix).collect();
        suffixes.sort();
        suffixes
    }

    fn cli(&self, words: &[&str]) -> String {
        self.server.as_ref().expect("a server").cli(words)
    }
}

fn key() -> FromHeader {
    FromHeader::new("x-key")
}

impl<S: Settles> Kinds<S> {
    /// Limiters of our own format: of a key, of all callers, of a rule.
    fn of_own(&self, limit: Limit) -> Vec<RateLimiter> {
        let named = || limit.named(&unique("own"));
        let name = unique("rule");
        let layer = layer_of(&self.own, limit.by(key()).named(&name));
        vec![
            named().keyed(&self.own).unwrap().of("ann"),
            named().single(&self.own).unwrap(),
            layer.limiter(&name, ["ann"]).unwrap(),
        ]
    }

    /// Limiters of Redisson's format: by an exact name, whose limit is set here or by a rule.
    async fn of_exact(&self, limit: Limit) -> Vec<RateLimiter> {
        let (shared, name) = (unique("shared"), unique("rule"));
        let rule = Rule::shared(&shared).or_init(limit).named(&name);
        let of_rule = layer_of(&self.own, rule).limiter(&name, [""; 0]);
        vec![limited(&self.own, limit).await, of_rule.unwrap()]
    }

    /// The others of Redisson's format, of a store that keeps all so: of a key, of a rule.
    fn of_redisson(&self, limit: Limit) -> Vec<RateLimiter> {
        let name = unique("rule");
        let layer = layer_of(&self.redisson, limit.by(key()).named(&name));
        vec![
            limit
                .named(&unique("keyed"))
                .keyed(&self.redisson)
                .unwrap()
                .of("ann"),
            layer.limiter(&name, ["ann"]).unwrap(),
        ]
    }

    /// Waits until receipts have been carried out.
    async fn settled(&self) {
        self.own.settled().await;
        self.redisson.settled().await;
    }

    /// Limiters by the calendar, which are of our own format in each store.
    fn by_calendar(&self, permits: u64) -> Vec<RateLimiter> {
        let of = |store: &S| by_day(permits).named(&unique("quota")).keyed(store);
        vec![
            of(&self.own).unwrap().of("ann"),
            of(&self.redisson).unwrap().of("ann"),
        ]
    }

    /// Limiters of nine permits, of each kind of name and by each way to count.
    async fn nine(&self) -> Vec<RateLimiter> {
        let by_hour = self.all(Limit::per_hour(9)).await;
        [by_hour, self.by_ways(9).await, self.by_calendar(9)].concat()
    }

    /// A limiter by each way to count.
    async fn by_ways(&self, permits: u64) -> Vec<RateLimiter> {
        let mut all = Vec::new();
        for way in Way::ALL {
            all.push(way.limited(&self.own, Limit::per_hour(permits)).await);
        }
        all
    }

    async fn all(&self, limit: Limit) -> Vec<RateLimiter> {
        let exact = self.of_exact(limit).await;
        [self.of_own(limit), exact, self.of_redisson(limit)].concat()
    }

    /// A rule of each kind with one permit, by the calendar, too.
    fn rules_of_one(&self) -> Vec<(&S, Rule)> {
        let quota = (&self.own, rule_of(by_day(1)));
        let by_hour = self.rules(Limit::per_hour(1)).into_iter();
        by_hour.chain([quota]).collect()
    }

    /// A rule of each kind, and the store of its layer: our own, of an exact name, of a rule in
    /// Redisson's format.
    fn rules(&self, limit: Limit) -> [(&S, Rule); 3] {
        let rule = || rule_of(limit);
        let shared = Rule::shared(&unique("shared")).or_init(limit);
        let shared = shared.named(&unique("rule"));
        [
            (&self.own, rule()),
            (&self.own, shared),
            (&self.redisson, rule()),
        ]
    }
}

/// A rule of each key that no other test has.
fn rule_of(limit: Limit) -> Rule {
    limit.by(key()).named(&unique("rule"))
}

/// The ways of our own: three by intervals, and the calendar.
fn own_ways(store: &impl Store) -> Vec<RateLimiter> {
    let of = |limit: Limit, algorithm| {
        let limit = limit.named(&unique("way")).algorithm(algorithm);
        limit.single(store).unwrap()
    };
    vec![
        of(Limit::per_hour(2), Algorithm::SlidingLog),
        of(Limit::per_hour(2), Algorithm::FixedWindow),
        of(Limit::per_hour(2), Algorithm::Gcra),
        of(by_day(2), Algorithm::default()),
    ]
}

/// By the calendar, in a zone whose windows do not end while a test runs.
fn by_day(permits: u64) -> Limit {
    let zone = zone_by_day();
    format!("{permits}/day {zone}").parse().unwrap()
}

/// Returns the name of the limiter of a layer's one rule for ann.
fn name_of(layer: &RateLimitLayer) -> String {
    let limiters = layer.limiters_of(&asking("GET /", &[("x-key", "ann")]).into_parts().0);
    limiters[0].name().to_owned()
}
