//! Callers that are banned in a real Redis: who looks at them learns of it.

use serde_json::{Value, json};
use tower_ratelimit::Ban;

use crate::{
    assert_documented, contains,
    limiters::{in_use, object, on, said, shared},
    tool, words,
};
use kit::{RedisServer, scene::*, unique};

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_is_banned_and_let_in_again() {
    let (server, store) = shared();
    let prefix = unique("tool");
    let store_of_rule = patient(server.url()).prefix(&prefix).build().unwrap();
    let rule = Rule::new("login", Limit::per_hour(9), FromHeader::new("x-key"));
    let layer = layer_of(&store_of_rule, rule.ban(Ban::after(3)));
    let limiter = layer.limiter("login", ["ann"]).unwrap();
    let which = format!("--prefix {prefix} --rule login --key ann --yes");
    let run = |command: &str| on(server, &format!("{command} {which}"));
    let banned = said(run("ban --for 15m"), 0);
    assert!(banned.ends_with("\nbanned  900.0s\n"), "{banned}");
    let refusal = refused(decide(&layer, asking("GET /", &[("x-key", "ann")])).await);
    assert_eq!(refusal.kind(), RefusalKind::Banned);
    assert!(limiter.banned_until().await.unwrap().is_some());
    let seen = store.diagnose(limiter.name()).await.unwrap();
    assert!(json!(seen)["banned_ms"].as_u64() > Some(800_000), "{seen}");
    assert!(seen.to_string().contains("banned for"), "{seen}");
    said(run("unban"), 0);
    assert_eq!(limiter.banned_until().await.unwrap(), None);
    contains(&said(run("unban"), 4), "is not banned");
}

/// By every verb, in both formats, with permits in use and without, and where a service counts in
/// one format and a ban of the other is left.
#[tokio::test(flavor = "multi_thread")]
async fn no_verb_passes_over_a_ban() {
    let (server, store) = shared();
    let of_format = |is_own: bool, name: &str| {
        let limiter = if is_own {
            RateLimiter::of_rule(&store, name)
        } else {
            RateLimiter::new(&store, name)
        };
        limiter.unwrap()
    };
    for counted in [None, Some(false), Some(true)] {
        for is_own in [false, true] {
            let limiter = match counted {
                None => of_format(is_own, &unique("tool")),
                Some(false) => in_use(&store, 4).await,
                Some(true) => {
                    let limit = Limit::per_hour(10).named(&unique("tool"));
                    let limiter = limit.single(&store).unwrap();
                    take(&limiter, 4).await;
                    limiter
                }
            };
            let (name, what) = (limiter.name(), format!("{counted:?}, {is_own}"));
            let banned = of_format(is_own, name);
            banned.ban_for(secs(890)).await.unwrap();
            let learns = |verb: &str, more: &str| {
                let output = on(server, &format!("{verb} {name} {more}"));
                let said = String::from_utf8(output.stderr.clone()).unwrap();
                let of_ban = ["its caller is banned for 8", "`ratelimit unban` ends that"];
                of_ban.iter().for_each(|part| contains(&said, part));
                let (output, is_json) = (self::said(output, 0), more.contains("--json"));
                if is_json && !["set-rate", "repair"].contains(&verb) {
                    let object: Value = serde_json::from_str(&output).unwrap();
                    assert_documented(&object);
                    let left = object["banned_ms"].as_u64();
                    assert!(left > Some(800_000), "{what}: {object}");
                }
                output
            };
            let page = learns("get", "");
            contains(&page, "\nbanned                  8");
            let left = if counted.is_some() { "6" } else { "-" };
            contains(&page, &format!("\nleft                    {left}\n"));
            contains(&learns("watch", "--count 1"), ", banned 8");
            contains(&learns("diagnose", ""), "`unban` ends it");
            for (verb, more) in [("get", ""), ("watch", "--count 1"), ("diagnose", "")] {
                learns(verb, &format!("{more} --json"));
            }
            if counted == Some(false) {
                learns("set-rate", "--rate 20/1h --yes --json");
                learns("repair", "--yes --json");
            }
            learns("ban", "--for 850s --yes --json");
            assert!(banned.banned_until().await.unwrap().is_some(), "{what}");
            learns("unban", "--dry-run");
            said(on(server, &format!("unban {name} --yes")), 0);
            assert_eq!(banned.banned_until().await.unwrap(), None, "{what}");
            contains(
                &said(on(server, &format!("unban {name} --yes")), 4),
                "is not banned",
            );
            let (status, seen) = match counted {
                Some(_) => (0, "\nbanned                  -\n"),
                None => (4, "there is no limiter"),
            };
            contains(&said(on(server, &format!("get {name}")), status), seen);
            // Whoever deletes it lets the caller in.
            banned.ban_for(secs(890)).await.unwrap();
            learns("delete", "--dry-run");
            said(on(server, &format!("delete {name} --yes")), 0);
            assert_eq!(banned.banned_until().await.unwrap(), None, "{what}");
            contains(
                &said(on(server, &format!("delete {name} --yes")), 4),
                "there is no",
            );
        }
    }
}

/// Redis does not show by which format a service counts a caller that has nothing in use.
#[tokio::test(flavor = "multi_thread")]
async fn a_caller_without_permits_in_use_is_banned_in_either_format() {
    let (server, _) = shared();
    for is_redissons in [false, true] {
        let prefix = unique("tool");
        let store = patient(server.url()).prefix(&prefix);
        let store = if is_redissons {
            store.redisson()
        } else {
            store
        };
        let rule = Rule::new("login", Limit::per_hour(9), FromHeader::new("x-key"));
        let layer = layer_of(&store.build().unwrap(), rule.ban(Ban::after(3)));
        let which = format!("--prefix {prefix} --rule login --key ann");
        said(on(server, &format!("ban {which} --for 15m --yes")), 0);
        let refusal = refused(decide(&layer, asking("GET /", &[("x-key", "ann")])).await);
        assert_eq!(refusal.kind(), RefusalKind::Banned, "{is_redissons}");
        let seen = object(on(server, &format!("get {which} --json")));
        assert!(seen["banned_ms"].as_u64() > Some(800_000), "{seen}");
        said(on(server, &format!("diagnose {which}")), 0);
        said(on(server, &format!("unban {which} --yes")), 0);
        said(on(server, &format!("get {which}")), 4);
    }
}

/// The other format's ban would be told as if the service saw it.
#[tokio::test(flavor = "multi_thread")]
async fn a_ban_that_the_limiters_own_format_refuses_has_failed() {
    let server = RedisServer::start();
    let store = patient(server.url()).build().unwrap();
    let orders = Limit::per_hour(10).named("orders").single(&store).unwrap();
    take(&orders, 4).await;
    let name = orders.name();
    let keys = format!("~{name} ~{name}:* ~{name}~ %R~{name}~:*");
    server.obeys(&format!("ACL SETUSER looker on >secret {keys} +@all"));
    let url = format!("redis://looker:secret@{}/", server.address());
    let line = format!("ban {name} --for 15m --yes --redis {url}");
    said(tool().args(words(&line)).output().unwrap(), 3);
    assert_eq!(orders.banned_until().await.unwrap(), None);
}

/// Both formats have its ban then, and nothing else says that its limit is in the code.
#[tokio::test(flavor = "multi_thread")]
async fn a_ban_gives_a_rules_limiter_no_limit_in_redis() {
    let (server, store) = shared();
    let name = unique("tool");
    said(on(server, &format!("ban {name} --for 15m --yes")), 0);
    let run = on(server, &format!("set-rate {name} --rate 5/1m --yes"));
    contains(&said(run, 2), "in the code");
    assert!(store.look_at(&name).await.unwrap().in_own_format());
}
