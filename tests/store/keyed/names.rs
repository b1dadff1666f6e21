//! Which keys are one, which names they have, and which limits may share a name.

use std::net::IpAddr;

use kit::observed::Observed;

use super::*;

/// What stands between the prefix and the name of a limiter.
fn identity(key: impl LimiterKey) -> String {
    let mails = Limit::per_hour(5).named("mails");
    let mails = mails.keyed(&MemoryStore::new()).unwrap();
    let name = mails.of(key).name().to_owned();
    let tail = name.strip_prefix("memory:{").unwrap();
    tail.strip_suffix("}:mails").unwrap().to_owned()
}

fn ip(address: &str) -> IpAddr {
    address.parse().unwrap()
}

#[test]
fn a_key_is_encoded_as_that_of_a_rule() {
    assert_eq!(identity("ann"), "ann");
    assert_eq!(identity(String::from("a b")), "a%20b");
    assert_eq!(identity("}:mails{%7D"), "%7D%3Amails%7B%257D");
    assert_eq!(identity(b"\xff\x00"), "%FF%00");
    assert_eq!(identity(vec![b'x', 0xe9]), "x%E9");
    assert_eq!(identity(7), "7");
    assert_eq!(identity(7), identity("7"));
    assert_eq!(identity(i64::MIN), "-9223372036854775808");
    assert_eq!(identity(("acme", &7_u64)), "acme,7");
    assert_ne!(identity(("a,b", "c")), identity(("a", "b,c")));
    assert_ne!(identity("a,b"), identity(("a", "b")));
    assert_eq!(identity(""), "%");
    assert_eq!(identity(("", "")), "%,%");
    assert_ne!(identity("%"), identity(""));
    assert_eq!(
        identity("a".repeat(129)),
        "!c12cb024a2e5551cca0e08fce8f1c5e3"
    );
    // As `PeerIp`: no caller has as many limiters as addresses of its network.
    assert_eq!(identity(ip("192.0.2.7")), "192.0.2.7");
    assert_eq!(identity(ip("::ffff:192.0.2.7")), "192.0.2.7");
    assert_eq!(
        identity(ip("2001:db8:1:2ff::9")),
        "2001%3Adb8%3A1%3A200%3A%3A%2F56"
    );
}

/// L6: a key is who it says, whatever its bytes are.
#[test]
fn components_of_any_bytes_are_those_of_a_rule() {
    let store = MemoryStore::new();
    let limit = Limit::per_hour(5);
    let mails = limit.named("mails").keyed(&store).unwrap();
    let layer = layer_of(&store, limit.by(FromHeader::new("x-key")).named("mails"));
    let bytes = || {
        let byte = prop_oneof![
            3 => proptest::sample::select(&b"{}:,%!+*ab1"[..]),
            1 => any::<u8>(),
        ];
        proptest::collection::vec(byte, 0..90)
    };
    check(500, &(bytes(), bytes()), |(first, second)| {
        let of_one = layer.limiter("mails", [&first]).unwrap();
        assert_eq!(mails.of(&first).name(), of_one.name());
        let of_both = layer.limiter("mails", [&first, &second]).unwrap();
        assert_eq!(mails.of((&first, &second[..])).name(), of_both.name());
    });
}

#[tokio::test]
async fn observers_see_the_name_of_the_limit_and_no_key() {
    let seen = Observed::by(|decided| {
        let rules = decided.rules.iter();
        let shown = rules.map(|it| (it.rule.map(str::to_owned), it.key().is_some()));
        shown.collect::<Vec<_>>()
    });
    let store = MemoryStore::builder().observe(seen.clone()).build();
    let mails = Limit::per_hour(5).named("mails").keyed(&store).unwrap();
    take(&mails.of("ann"), 1).await;
    assert_eq!(seen.take(), [[(Some("mails".to_owned()), false)]]);
}

#[test]
fn a_name_has_one_limit_while_it_is_in_use() {
    let store = MemoryStore::new();
    let limit = Limit::per_hour(5);
    let keyed = |limit: Limit| limit.named("mails").keyed(&store);
    let differs = "another limit or rule of this store is named \"mails\" and differs in limit,";
    let refuses = |built| mistake(built, ConfigErrorKind::Duplicate, differs);

    let mails = keyed(limit).unwrap();
    keyed(limit).unwrap();
    refuses(keyed(Limit::per_hour(6)));
    refuses(
        limit
            .named("mails")
            .algorithm(Algorithm::Gcra)
            .keyed(&store),
    );
    refuses(limit.named("mails").ban(Ban::after(9)).keyed(&store));
    limit
        .named("sms")
        .algorithm(Algorithm::Gcra)
        .keyed(&store)
        .unwrap();
    limit.named("mails").single(&MemoryStore::new()).unwrap();

    // One limiter is enough.
    let one = mails.of("ann");
    drop(mails);
    refuses(keyed(Limit::per_hour(6)));
    let rule = |limit: Limit| limit.by(FromHeader::new("x-key")).named("mails");
    let build = |rule: Rule| RateLimitLayer::builder(&store).otherwise(rule).build();
    let said = "a rule of another layer on this store, or a `Limit::named`, is named \"mails\" and \
                differs in limit, key, algorithm, ban or shared name: rename one of them, or clone \
                one layer";
    mistake(
        build(rule(Limit::per_hour(6))),
        ConfigErrorKind::Duplicate,
        said,
    );
    let layer = build(rule(limit)).unwrap();
    // Whatever it counts by, but another rule must count by the same.
    let by_peer = limit.by(PeerIp).named("mails");
    mistake(build(by_peer.clone()), ConfigErrorKind::Duplicate, said);
    drop(layer);
    drop(build(by_peer).unwrap());
    drop(one);
    let layer = build(rule(Limit::per_hour(6))).unwrap();
    refuses(keyed(limit));
    keyed(Limit::per_hour(6)).unwrap();
    drop(layer);
    keyed(limit).unwrap();
}

/// Which limits no format counts, see `known.toml` of the web's tests.
#[test]
fn what_it_cannot_have_is_named() {
    let store = MemoryStore::new();
    let limit = Limit::per_hour(5);
    for name in ["a b", ""] {
        let said = format!("a rule's name has one or more of A-Z a-z 0-9 . _ -, not {name:?}");
        mistake(
            limit.named(name).keyed(&store),
            ConfigErrorKind::Name,
            &said,
        );
    }
    let built = limit.named("api").ban(Ban::after(0)).single(&store);
    let said = "rule \"api\" bans after 1 to 10000 refusals, not 0";
    mistake(built, ConfigErrorKind::Rule, said);
    let banning = limit
        .named("banning")
        .ban(Ban::after(9))
        .single(&store)
        .unwrap();
    let said = "rule \"banning\" leases permits and bans callers";
    mistake(banning.lease(SECOND), ConfigErrorKind::Rule, said);
    let quota = Limit::monthly(5).named("quota").single(&store).unwrap();
    let said = "\"memory:{all}:quota\" cannot have 10 slots: only a sliding log has slots";
    mistake(quota.clone().slots(10), ConfigErrorKind::Limit, said);
    let said = "\"memory:{all}:quota\" cannot lease permits for 1s: a window of the calendar has";
    mistake(quota.lease(SECOND), ConfigErrorKind::Limit, said);
    let brief = Limit::new(5, millis(9)).named("brief");
    let brief = brief.single(&store).unwrap();
    let said = "\"memory:{all}:brief\" cannot lease permits for 1ms: it is longer than a tenth";
    mistake(brief.clone().lease(millis(1)), ConfigErrorKind::Limit, said);
    let said = "\"memory:{all}:brief\" needs no slots";
    mistake(brief.slots(10), ConfigErrorKind::Limit, said);
}
