//! Redis users that may read the keys of both formats, or of one: by every verb, whatever there is.

use std::process::Output;

use serde_json::Value;

use crate::{
    assert_documented, contains,
    limiters::{object, said},
    tool, words,
};
use kit::{RedisServer, scene::*, unique};

/// The formats, in words; the first is our own.
const FORMATS: [(bool, &str); 2] = [(true, "our own format"), (false, "Redisson's format")];

/// What there is by a name: nothing, or a limiter or a ban in a format.
const KINDS: [Option<(bool, bool)>; 5] = [
    None,
    Some((true, true)),
    Some((true, false)),
    Some((false, true)),
    Some((false, false)),
];

/// A user that reaches the keys of some formats.
struct User<'a> {
    server: &'a RedisServer,
    reaches: &'a [bool],
}

impl User<'_> {
    /// Lets it reach the keys of a limiter, or of all that are called so.
    fn obeys(&self, name: &str) {
        let keys = self.reaches.iter().map(|own| {
            let end = if *own { "~" } else { "" };
            format!("~{name}{end} ~{name}{end}:*")
        });
        let keys = keys.collect::<Vec<_>>().join(" ");
        self.is_made(&format!("{keys} +@all"));
    }

    fn is_made(&self, rules: &str) {
        let user = format!("ACL SETUSER user on >secret resetkeys -@all {rules}");
        self.server.obeys(&user);
    }

    fn run(&self, line: &str) -> Output {
        let url = format!("redis://user:secret@{}/", self.server.address());
        let line = format!("{line} --redis {url}");
        tool().args(words(&line)).output().unwrap()
    }

    /// Returns the format that it may not read.
    fn unseen(&self) -> Option<&'static str> {
        let mut formats = FORMATS.into_iter();
        let unseen = formats.find(|(own, _)| !self.reaches.contains(own));
        unseen.map(|(_, format)| format)
    }
}

fn in_format(store: &RedisStore, name: &str, own: bool) -> RateLimiter {
    if own {
        RateLimiter::of_rule(store, name).unwrap()
    } else {
        RateLimiter::new(store, name).unwrap()
    }
}

/// Makes what there is by a name, which it returns.
async fn make(store: &RedisStore, kind: Option<(bool, bool)>) -> String {
    let limit = Limit::per_hour(10).named(&unique("user"));
    let limiter = limit.single(store).unwrap();
    let name = limiter.name().to_owned();
    match kind {
        None => {}
        Some((true, own)) => {
            let redissons = in_format(store, &name, false);
            if !own {
                redissons.set_rate(Limit::per_hour(10)).await.unwrap();
            }
            take(if own { &limiter } else { &redissons }, 4).await;
        }
        Some((false, own)) => in_format(store, &name, own).ban_for(HOUR).await.unwrap(),
    }
    name
}

/// The verbs, with what they ask for.
const VERBS: [&str; 8] = [
    "get",
    "watch --count 1",
    "diagnose",
    "set-rate --rate 20/1h --yes",
    "repair --yes",
    "delete --yes",
    "ban --for 15m --yes",
    "unban --yes",
];

/// Returns the status of a verb, where the user sees what there is or nothing.
fn status(verb: &str, seen: Option<(bool, bool)>, user: &User<'_>) -> i32 {
    let found = |is_found| if is_found { 0 } else { 4 };
    match verb.split(' ').next().unwrap() {
        "diagnose" if seen.is_some() => i32::from(user.unseen().is_some()),
        "set-rate" => match seen {
            Some((_, true)) => 2,
            _ if user.reaches.contains(&false) => 0,
            _ => 3,
        },
        "repair" => found(seen.is_some_and(|(is_limiter, _)| is_limiter)),
        "ban" => 0,
        "unban" => found(seen.is_some_and(|(is_limiter, _)| !is_limiter)),
        _ => found(seen.is_some()),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_of_one_format_does_what_it_may_and_learns_of_the_rest() {
    let server = RedisServer::start();
    let store = patient(server.url()).build().unwrap();
    for reaches in [&[true, false][..], &[true], &[false]] {
        let user = User {
            server: &server,
            reaches,
        };
        for (kind, verb) in KINDS
            .iter()
            .flat_map(|kind| VERBS.map(|verb| (*kind, verb)))
        {
            let name = make(&store, kind).await;
            user.obeys(&name);
            let seen = kind.filter(|(_, own)| reaches.contains(own));
            let what = format!("{reaches:?}, {kind:?}, {verb}");
            let output = user.run(&format!("{verb} {name}"));
            let told = String::from_utf8(output.stderr).unwrap();
            let expected = status(verb, seen, &user);
            assert_eq!(output.status.code(), Some(expected), "{what}: {told}");
            match user.unseen() {
                Some(format) => contains(&told, &format!("of it in {format} is unknown")),
                None => assert!(!told.contains("unknown"), "{what}: {told}"),
            }
            let is_partly = told.contains("as far as this user may see");
            let is_part = user.unseen().is_some() && expected == 4;
            assert_eq!(is_partly, is_part, "{what}: {told}");
            for own in [true, false] {
                let until = in_format(&store, &name, own).banned_until().await.unwrap();
                let was = kind == Some((false, own));
                let is_banned = match verb.split(' ').next().unwrap() {
                    "ban" => was || reaches.contains(&own),
                    "unban" | "delete" => was && !reaches.contains(&own),
                    _ => was,
                };
                assert_eq!(until.is_some(), is_banned, "{what}, {own}");
            }
        }
    }
}

/// What is there is unknown for another reason than its keys, and the ban is there still.
#[tokio::test(flavor = "multi_thread")]
async fn a_user_that_lacks_a_command_or_may_only_read_learns_why() {
    let server = RedisServer::start();
    let store = patient(server.url()).build().unwrap();
    let user = User {
        server: &server,
        reaches: &[],
    };
    for (kind, rules, verb) in [
        ((true, false), "~* +@all -zcard", "get"),
        ((true, true), "~* +@all -eval -evalsha", "get"),
        ((false, true), "~{} ~{}:* %R~{}~* +@all", "unban --yes"),
    ] {
        let name = make(&store, Some(kind)).await;
        user.is_made(&rules.replace("{}", &name));
        let output = user.run(&format!("{verb} {name}"));
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(3), "{rules}: {told}");
        assert!(!told.contains("unknown"), "{rules}: {told}");
        let until = in_format(&store, &name, true).banned_until().await;
        assert_eq!(until.unwrap().is_some(), kind == (false, true), "{rules}");
    }
}

/// Both look alike to a script that reads the result alone.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_user_may_not_see_is_in_the_result() {
    let server = RedisServer::start();
    let store = patient(server.url()).build().unwrap();
    for (own, word, unseen) in [
        (true, "redisson", FORMATS[1].1),
        (false, "own", FORMATS[0].1),
    ] {
        let reaches = &[own];
        let (server, name) = (&server, make(&store, Some((true, own))).await);
        let user = User { server, reaches };
        user.obeys(&name);
        let seen = object(user.run(&format!("get {name} --json")));
        assert_eq!((&seen["left"], &seen["unseen"]), (&6.into(), &word.into()));
        let found = said(user.run(&format!("diagnose {name} --json")), 1);
        let found: Value = serde_json::from_str(&found).unwrap();
        assert_documented(&found);
        assert_eq!(found["unseen"], word);
        assert_eq!(found["findings"][0]["kind"], "not_permitted");
        contains(found["findings"][0]["text"].as_str().unwrap(), unseen);
        // Rules count in our own format by such a store.
        user.obeys("ratelimit:*:verify");
        let output = user.run("verify --json");
        let verified: Value = serde_json::from_slice(&output.stdout).unwrap();
        let mut findings = verified["findings"].as_array().unwrap().iter();
        let forbidden = findings.find(|it| it["kind"] == "keys_forbidden").unwrap();
        contains(forbidden["text"].as_str().unwrap(), unseen);
        let severity = if own { "warning" } else { "error" };
        assert_eq!(forbidden["severity"], severity);
        assert!(findings.all(|it| it["kind"] != "keys_forbidden"));
    }
    let (server, reaches) = (&server, &[true, false]);
    let user = User { server, reaches };
    let name = make(&store, Some((true, true))).await;
    user.obeys(&name);
    let seen = object(user.run(&format!("get {name} --json")));
    assert_eq!(seen["unseen"], Value::Null);
}
