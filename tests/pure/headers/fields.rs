//! The header fields with the permits left.

use super::*;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::{SystemTime, UNIX_EPOCH},
};

use proptest::prelude::*;
use serde::Deserialize;
use sfv::{BareItem, ListEntry, Parser};
use tower_ratelimit::{HeaderStyle, Requests, Rules};

const DRAFT11: HeaderStyle = HeaderStyle::Draft11;
const DRAFT6: HeaderStyle = HeaderStyle::Draft6;
const DELTA: HeaderStyle = HeaderStyle::Legacy;
const EPOCH: HeaderStyle = HeaderStyle::LegacyEpoch;

fn layer(store: &impl Store, rule: impl Into<Rule>, styles: &[HeaderStyle]) -> RateLimitLayer {
    let builder = RateLimitLayer::builder(store).otherwise(rule.into());
    builder.headers(styles.to_vec()).build().unwrap()
}

/// An item of a list, as the parser understands it: its bare item, then its parameters.
fn items(lines: &[&str]) -> Vec<(BareItem, Vec<(String, i64)>)> {
    let list: sfv::List = Parser::new(&lines.join(", ")).parse().expect("RFC 9651");
    let parameter = |(name, value): (sfv::Key, BareItem)| match value {
        BareItem::Integer(number) => (name.as_str().to_owned(), i64::from(number)),
        other => panic!("{other:?}"),
    };
    let item = |entry| match entry {
        ListEntry::Item(item) => {
            let parameters = item.params.into_iter().map(parameter);
            (item.bare_item, parameters.collect())
        }
        other => panic!("{other:?}"),
    };
    list.into_iter().map(item).collect()
}

/// The rules' names in a field of draft-11, in their order.
fn names(lines: &[&str]) -> Vec<String> {
    let name = |(item, _)| match item {
        BareItem::String(name) => String::from(name),
        other => panic!("{other:?}"),
    };
    items(lines).into_iter().map(name).collect()
}

/// The unit of a rule is in its policy; that of requests is left out, as clients assume it.
#[tokio::test]
async fn a_policy_has_the_unit_of_its_rule() {
    let minute = Limit::per_minute(9);
    for (unit, expected) in [
        (None, r#""r";q=9;w=60"#),
        (Some("requests"), r#""r";q=9;w=60"#),
        (Some("content-bytes"), r#""r";q=9;qu="content-bytes";w=60"#),
        (Some("llm.tokens_1"), r#""r";q=9;qu="llm.tokens_1";w=60"#),
    ] {
        let rule = by_key(minute).named("r");
        let rule = unit.into_iter().fold(rule, Rule::unit);
        let layer = layer(&MemoryStore::new(), rule, &[DRAFT11]);
        // Refusals of two rules that differ in nothing else are not copies of each other.
        for _ in 0..10 {
            assert_eq!(
                ask(&layer, get(&[])).await.one("ratelimit-policy"),
                expected
            );
        }
        let list: sfv::List = Parser::new(expected).parse().expect("RFC 9651");
        assert_eq!(list.len(), 1);
    }
    for unit in ["", "to kens", "\"", "tokens;w=1", "b\u{fc}te", "a\r\nb"] {
        let built = RateLimitLayer::builder(&MemoryStore::new())
            .otherwise(by_key(minute).unit(unit))
            .build();
        let error = built.unwrap_err();
        assert_eq!(error.kind(), ConfigErrorKind::Name);
        assert!(error.to_string().contains(&format!("{unit:?}")), "{error}");
    }
}

/// Each of several limits has an entry, the closest to exhaustion first; the longer ones add their
/// interval to the name. Three numbers are those of the first.
#[tokio::test]
async fn each_of_several_limits_is_named() {
    let limit = "2/s and 3/90s".parse::<Limit>().unwrap();
    let (store, clock) = MemoryStore::builder().build_manual();
    let layer = layer(&store, by_key(limit).named("api"), &[DRAFT11, DELTA]);
    let said = |answer: &Answer| {
        let numbers = ["limit", "remaining", "reset"]
            .map(|field| answer.one(&format!("x-ratelimit-{field}")).to_owned());
        (answer.one("ratelimit").to_owned(), numbers.join(" "))
    };
    for (pause, of_all, of_first, violated) in [
        (0, r#""api";r=1;t=1, "api.90s";r=2;t=90"#, "2 1 1", None),
        (0, r#""api";r=0;t=1, "api.90s";r=1;t=90"#, "2 0 1", None),
        (500, r#""api";r=0;t=1, "api.90s";r=1"#, "2 0 1", Some("api")),
        (500, r#""api.90s";r=0;t=89, "api";r=1;t=1"#, "3 0 90", None),
        (
            0,
            r#""api.90s";r=0;t=89, "api";r=1"#,
            "3 0 89",
            Some("api.90s"),
        ),
    ] {
        clock.advance(millis(pause));
        let answer = ask(&layer, get(&[])).await;
        assert_eq!(said(&answer), (of_all.to_owned(), of_first.to_owned()));
        let mut policies = [r#""api";q=2;w=1"#, r#""api.90s";q=3;w=90"#];
        if of_all.starts_with(r#""api.90s"#) {
            policies.reverse();
        }
        assert_eq!(answer.one("ratelimit-policy"), policies.join(", "));
        let body = violated.map(|name| format!(r#""violated-policies":["{name}"]"#));
        assert_eq!(answer.status, if body.is_some() { 429 } else { 200 });
        assert!(
            body.is_none_or(|body| answer.body.contains(&body)),
            "{}",
            answer.body
        );
    }
}

/// They have the same names where nothing was counted, and whatever a thread rendered before.
#[tokio::test]
async fn each_of_several_limits_has_its_name_always() {
    let limit = "2/s and 500/h".parse::<Limit>().unwrap();
    let (store, _clock) = MemoryStore::builder().build_manual();
    let cost = |parts: &http::request::Parts| {
        let cost = parts.headers.get("x-cost");
        cost.map_or(1, |cost| cost.to_str().unwrap().parse().unwrap())
    };
    let rule = by_key(limit).named("api").cost_by(cost);
    let plain = Limit::per_hour(500).by(Constant("plain")).named("plain");
    let counted = layer(&store, rule.clone(), &[DRAFT11]);
    let uncounted = RateLimitLayer::builder(&store).otherwise([rule, plain]);
    let uncounted = uncounted
        .count_remaining(false)
        .headers([DRAFT11])
        .build()
        .unwrap();
    for (layer, cost, status) in [
        (&counted, "3", 429),
        (&uncounted, "1", 200),
        (&counted, "1", 200),
        (&counted, "1", 429),
    ] {
        let answer = ask(layer, get(&[("x-cost", cost)])).await;
        assert_eq!(answer.status, status);
        let policy = answer.one("ratelimit-policy");
        for item in [r#""api";q=2;w=1"#, r#""api.1h";q=500;w=3600"#] {
            assert!(policy.contains(item), "{policy}");
        }
    }
    // Of one rule, some with the longer limit alone.
    let by_plan = limit_by(|parts| match parts.headers.get("x-plan") {
        None => Limit::per_hour(500),
        Some(_) => Limit::per_second(2).and(Limit::per_hour(500)),
    });
    let rule = Rule::new("plan", by_plan, FromHeader::new("x-key"));
    let layer = layer(&store, rule, &[DRAFT11]);
    for (plan, name) in [(None, "plan"), (Some("both"), "plan.1h"), (None, "plan")] {
        let headers: Vec<_> = plan.into_iter().map(|plan| ("x-plan", plan)).collect();
        let answer = ask(&layer, get(&headers)).await;
        let policy = answer.one("ratelimit-policy");
        let item = format!(r#""{name}";q=500;w=3600"#);
        assert!(policy.contains(&item), "{policy}");
    }
}

/// What the styles say of one limit of two permits, see `styles.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Said {
    styles: Vec<String>,
    interval: u64,
    says: [String; 3],
}

/// The fields of the first request, the last, and one too many half an interval later.
#[tokio::test]
async fn each_style_says_the_same_in_its_own_words() {
    let style = |name: &String| match &**name {
        "draft-11" => DRAFT11,
        "draft-6" => DRAFT6,
        "legacy-delta" => DELTA,
        other => panic!("no style {other}"),
    };
    let mut table: BTreeMap<String, Vec<Said>> =
        toml::from_str(include_str!("styles.toml")).unwrap();
    for said in table.remove("said").unwrap() {
        let styles: Vec<_> = said.styles.iter().map(style).collect();
        let limit = Limit::new(2, millis(said.interval));
        let (store, clock) = MemoryStore::builder().build_manual();
        let layer = layer(&store, by_key(limit).named("api"), &styles);
        for (nth, expected) in said.says.iter().enumerate() {
            if nth == 2 {
                clock.advance(limit.interval() / 2);
            }
            let answer = ask(&layer, get(&[])).await;
            assert_eq!(answer.status, if nth < 2 { 200 } else { 429 });
            let fields = answer.limit_fields().into_iter();
            let said = fields.map(|(name, value)| format!("{name} {value}"));
            let said: Vec<_> = said.collect();
            assert_eq!(said.join(", "), *expected, "{styles:?}, request {nth}");
        }
    }
}

#[tokio::test]
async fn an_instant_is_a_time_of_day() {
    let now = || {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        now.as_secs()
    };
    let (store, _clock) = MemoryStore::builder().build_manual();
    let layer = layer(&store, by_key(Limit::per_minute(1)), &[EPOCH]);
    for status in [200, 429] {
        let before = now();
        let answer = ask(&layer, get(&[])).await;
        assert_eq!(answer.status, status);
        let reset: u64 = answer.one("x-ratelimit-reset").parse().unwrap();
        assert!((before + 60..=now() + 61).contains(&reset), "{reset}");
    }
}

#[tokio::test]
async fn styles_that_contradict_each_other_are_refused() {
    let limit = Limit::per_second(1);
    for (styles, field) in [
        ([DRAFT11, DRAFT6], "RateLimit-Policy"),
        ([DRAFT6, DRAFT11], "RateLimit-Policy"),
        ([EPOCH, DELTA], "X-RateLimit-Reset"),
    ] {
        let builder = RateLimitLayer::builder(&MemoryStore::new()).otherwise(limit);
        let built = builder.headers(styles).build();
        let said = format!("two header styles write {field} differently: ");
        mistake(built, ConfigErrorKind::Rule, &said);
    }
}

#[tokio::test]
async fn permits_that_are_not_counted_have_no_field() {
    for (style, granted) in [
        (DRAFT11, ("ratelimit-policy", r#""default";q=1;w=60"#)),
        (DRAFT6, ("ratelimit-policy", "1;w=60")),
        (DELTA, ("x-ratelimit-limit", "1")),
    ] {
        let (store, _clock) = MemoryStore::builder().build_manual();
        let layer = RateLimitLayer::builder(&store).otherwise(by_key(Limit::per_minute(1)));
        let layer = layer.headers([style]).count_remaining(false);
        let layer = layer.build().unwrap();
        assert_eq!(ask(&layer, get(&[])).await.limit_fields(), [granted]);
        let refused = ask(&layer, get(&[])).await;
        assert_eq!(refused.status, 429);
        assert!(refused.limit_fields().len() > 2, "{style:?}");
    }
}

#[tokio::test]
async fn a_hidden_rule_has_no_fields() {
    let (store, _clock) = MemoryStore::builder().build_manual();
    let rule = by_key(Limit::per_minute(1)).named("account").hide_headers();
    let hidden = layer(&store, rule, &[DRAFT11, DELTA]);
    assert_eq!(ask(&hidden, get(&[])).await.limit_fields(), []);
    let refused = ask(&hidden, get(&[])).await;
    assert_eq!(refused.limit_fields(), [("retry-after", "60")]);
    assert!(!refused.body.contains("account"), "{}", refused.body);

    // Nor is it seen in what a layer around it says.
    let around = layer(&store, by_key(Limit::per_hour(9)).named("all"), &[DRAFT11]);
    let nested = around.layer(hidden.layer(inner(&[])));
    let answer = call(nested, get(&[("x-key", "b")])).await;
    assert_eq!(answer.all("ratelimit"), [r#""all";r=8;t=3600"#]);
}

/// `t` of draft-11 is the time until additional quota is there, and those of the older styles until
/// all is.
#[tokio::test]
async fn a_grant_tells_when_the_next_permit_is_free() {
    let (store, clock) = MemoryStore::builder().redisson().build_manual();
    // At 0, 10 and 20 s; after each: until one more is free, and until all are.
    for (way, expected) in [
        (Way::Log, [(60, 60), (50, 60), (40, 60)]),
        (Way::Slots(10), [(66, 66), (56, 62), (46, 64)]),
        (Way::Gcra, [(20, 20), (10, 30), (20, 40)]),
        (Way::Window, [(61, 61), (51, 51), (41, 41)]),
    ] {
        let name = unique("way");
        let rule = way.rule(by_key(Limit::per_minute(3)).named(&name));
        let layer = layer(&store, rule, &[DRAFT11, DELTA]);
        // Where a slot begins.
        clock.set(Duration::from_millis(1_704_153_600_001));
        for (next, all) in expected {
            let answer = ask(&layer, get(&[])).await;
            assert_eq!(answer.status, 200, "{way:?}");
            let (_, parameters) = &items(&answer.all("ratelimit"))[0];
            assert_eq!(parameters[1], ("t".to_owned(), next), "{way:?}");
            assert_eq!(answer.one("x-ratelimit-reset"), all.to_string(), "{way:?}");
            clock.advance(Duration::from_secs(10));
        }
    }
}

#[tokio::test]
async fn layers_add_to_one_another_and_the_tightest_is_first() {
    let (store, _clock) = MemoryStore::builder().build_manual();
    let of = |name, permits, styles: &[HeaderStyle]| {
        layer(&store, by_key(Limit::per_hour(permits)).named(name), styles)
    };
    let wide = of("wide", 100, &[DRAFT11, DELTA]);
    let mid = of("mid", 50, &[DRAFT11, DELTA]);
    let tight = of("tight", 3, &[DRAFT11, DELTA]);
    // However they are nested.
    let nested = [
        call(wide.layer(mid.layer(tight.layer(inner(&[])))), get(&[])).await,
        call(tight.layer(mid.layer(wide.layer(inner(&[])))), get(&[])).await,
        call(mid.layer(tight.layer(wide.layer(inner(&[])))), get(&[])).await,
    ];
    for (answer, left) in nested.into_iter().zip(["2", "1", "0"]) {
        assert_eq!(answer.status, 200);
        for field in ["ratelimit", "ratelimit-policy"] {
            let mut named = names(&answer.all(field));
            assert_eq!(named[0], "tight", "{field}: {named:?}");
            named.sort();
            assert_eq!(named, ["mid", "tight", "wide"]);
        }
        assert_eq!(answer.one("x-ratelimit-limit"), "3");
        assert_eq!(answer.one("x-ratelimit-remaining"), left);
    }
    // A refusal within is the first, however little another has left.
    let outer = of("outer", 1, &[DRAFT11, DELTA]);
    let refused = call(outer.layer(tight.layer(inner(&[]))), get(&[])).await;
    assert_eq!(refused.status, 429);
    assert_eq!(names(&refused.all("ratelimit")), ["tight", "outer"]);
    assert_eq!(refused.one("x-ratelimit-limit"), "3");
    assert_eq!(refused.one("retry-after"), "3600");
    // One that shows nothing leaves the order to the layers around it.
    let denied = Rules::new().deny(Requests::on("/"));
    let denied = RateLimitLayer::builder(&store).rules(denied.otherwise(Limit::per_hour(9)));
    let denied = denied.build().unwrap().layer(inner(&[]));
    let refused = call(mid.layer(wide.layer(denied)), get(&[])).await;
    assert_eq!(refused.status, 403);
    assert_eq!(names(&refused.all("ratelimit")), ["mid", "wide"]);
    assert_eq!(refused.one("x-ratelimit-limit"), "50");
}

#[tokio::test]
async fn fields_of_another_limiter_stay() {
    const OTHERS: &[(&str, &str)] = &[
        ("ratelimit", r#""cdn";r=7;t=1"#),
        ("ratelimit", r#""waf";r=8"#),
        ("ratelimit-policy", r#""cdn";q=9"#),
        ("x-ratelimit-limit", "5000"),
        ("x-ratelimit-used", "1"),
    ];
    let (store, _clock) = MemoryStore::builder().build_manual();
    let rule = by_key(Limit::per_hour(9)).named("ours");
    let all = layer(&store, rule, &[DRAFT11, DELTA]);
    let answer = call(all.layer(inner(OTHERS)), get(&[])).await;
    assert_eq!(names(&answer.all("ratelimit")), ["cdn", "waf", "ours"]);
    assert_eq!(names(&answer.all("ratelimit-policy")), ["cdn", "ours"]);
    // Three numbers of two limiters would belong to neither.
    assert_eq!(answer.all("x-ratelimit-limit"), ["5000"]);
    assert_eq!(answer.all("x-ratelimit-remaining"), [""; 0]);
    assert_eq!(answer.one("x-ratelimit-used"), "1");
}

/// That it has the same limit as ours does not make it ours, and the closer limit of an outer layer
/// is not mixed with it, whether its fields are all there or some.
#[tokio::test]
async fn fields_of_another_limiter_with_the_same_number_stay() {
    const OTHERS: &[(&str, &str)] = &[
        ("x-ratelimit-limit", "9"),
        ("x-ratelimit-remaining", "7"),
        ("x-ratelimit-reset", "5"),
        ("ratelimit-limit", "9"),
        ("ratelimit-remaining", "7"),
        ("ratelimit-reset", "5"),
    ];
    let (store, _clock) = MemoryStore::builder().build_manual();
    let styles = [DRAFT6, DELTA];
    let within = layer(&store, by_key(Limit::per_hour(9)).named("in"), &styles);
    let around = layer(&store, by_key(Limit::per_hour(1)).named("out"), &styles);
    for (key, others) in [("a", OTHERS), ("b", &OTHERS[..1])] {
        let nested = around.layer(within.layer(inner(others)));
        let answer = call(nested, get(&[("x-key", key)])).await;
        for (name, said) in others {
            assert_eq!(answer.one(name), *said, "{name}");
        }
        let remaining = answer.all("x-ratelimit-remaining").len();
        assert_eq!(remaining, usize::from(key == "a"), "{key}");
    }
}

/// Fields that a layer between two of ours has changed stay changed.
#[tokio::test]
async fn changed_fields_stay() {
    let (store, _clock) = MemoryStore::builder().build_manual();
    let within = layer(&store, by_key(Limit::per_hour(9)).named("in"), &[DELTA]);
    let around = layer(&store, by_key(Limit::per_hour(1)).named("out"), &[DELTA]);
    let between = within.layer(inner(&[])).map_response(|mut response| {
        let fields = response.headers_mut();
        fields.insert("x-ratelimit-remaining", 4.into());
        response
    });
    let answer = call(around.layer(between), get(&[])).await;
    assert_eq!(answer.one("x-ratelimit-limit"), "9");
    assert_eq!(answer.one("x-ratelimit-remaining"), "4");
}

#[tokio::test]
async fn no_time_contradicts_the_inner_services_own_retry_after() {
    let (store, _clock) = MemoryStore::builder().build_manual();
    let layer = layer(&store, by_key(Limit::per_hour(2)), &[DRAFT11]);
    let busy = layer.layer(inner(&[("retry-after", "5")]));
    let answer = call(busy, get(&[])).await;
    assert_eq!(answer.one("retry-after"), "5");
    assert_eq!(answer.one("ratelimit"), r#""default";r=1"#);
}

#[tokio::test]
async fn jitter_delays_all_fields_by_the_same_time() {
    let (store, _clock) = MemoryStore::builder().build_manual();
    let layer = RateLimitLayer::builder(&store).otherwise(by_key(Limit::per_minute(1)));
    let layer = layer.headers([DRAFT11, DELTA]).retry_jitter(secs(1000));
    let layer = layer.build().unwrap();
    // A gRPC client waits exactly as long as the pushback says, without jitter of its own.
    let call = async |timeout: &str| {
        let grpc = ("content-type", "application/grpc");
        let call = request("POST", &[grpc, ("grpc-timeout", timeout)]);
        let refused = ask(&layer, call).await;
        let status = tonic::Status::from_header_map(&refused.headers).unwrap();
        let info = tonic_types::StatusExt::get_details_retry_info(&status).unwrap();
        let pushback: i128 = refused.one("grpc-retry-pushback-ms").parse().unwrap();
        (pushback, info.retry_delay.unwrap().as_millis() as i128)
    };
    let granted = ask(&layer, get(&[])).await;
    assert_eq!(granted.one("ratelimit"), r#""default";r=0;t=60"#);
    let mut waits = [(); 2].map(|()| BTreeSet::new());
    for _ in 0..50 {
        let refused = ask(&layer, get(&[])).await;
        let wait = refused.one("retry-after");
        let expected = format!(r#""default";r=0;t={wait}"#);
        assert_eq!(refused.one("ratelimit"), expected);
        assert_eq!(refused.one("x-ratelimit-reset"), wait);
        let said = format!("retry after {wait} seconds");
        assert!(refused.body.contains(&said), "{said}: {}", refused.body);
        waits[0].insert(1000 * wait.parse::<i128>().unwrap());

        let (pushback, delay) = call("1H").await;
        assert_eq!(pushback, delay, "both say the same");
        waits[1].insert(pushback);
        // Half of these waits end after the call; the announced wait is what counts.
        let (pushback, delay) = call("560S").await;
        let announced = if delay >= 560_000 { -1 } else { delay };
        assert_eq!(pushback, announced, "{delay}");
    }
    for waits in waits {
        let mut all = waits.iter();
        assert!(all.all(|it| (60_000..=1_060_000).contains(it)), "{waits:?}");
        assert!(waits.len() > 10, "scattered: {waits:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn whatever_is_configured_is_valid_and_says_so(
        name in "[A-Za-z0-9._-]{1,40}",
        permits in prop_oneof![1_u64..100, Just((1 << 53) - 1), 1_u64..(1 << 53)],
        millis in prop_oneof![1_u64..10_000, (1_u64..100_000).prop_map(|s| s * 1000), 1_u64..3_155_760_000_000],
        cost in 1_u32..3,
    ) {
        let (store, _clock) = MemoryStore::builder().build_manual();
        let limit = Limit::new(permits, Duration::from_millis(millis));
        let rule = limit.by(FromHeader::new("x-key")).named(&name).cost_by(move |_| cost);
        let layer = layer(&store, rule, &[DRAFT11, DELTA]);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let answer = runtime.block_on(ask(&layer, get(&[])));

        let clamped = |number: u64| i64::try_from(number.min(999_999_999_999_999)).unwrap();
        let bare = BareItem::String(sfv::String::from_string(name).unwrap());
        let parameter = |name: &str, number| (name.to_owned(), clamped(number));
        let mut policy = vec![parameter("q", permits)];
        if millis % 1000 == 0 {
            policy.push(parameter("w", millis / 1000));
        }
        prop_assert_eq!(items(&answer.all("ratelimit-policy")), vec![(bare.clone(), policy)]);
        if u64::from(cost) <= permits {
            prop_assert_eq!(answer.status, 200);
            let left = permits - u64::from(cost);
            let state = vec![parameter("r", left), parameter("t", millis.div_ceil(1000))];
            prop_assert_eq!(items(&answer.all("ratelimit")), vec![(bare, state)]);
            let remaining: i64 = answer.one("x-ratelimit-remaining").parse().unwrap();
            prop_assert_eq!(remaining, clamped(left));
        } else {
            prop_assert_eq!(answer.all("ratelimit"), Vec::<&str>::new());
        }
        // The canonical form is one of many, and the one that the RFC wants sent.
        for field in ["ratelimit", "ratelimit-policy"] {
            for line in answer.all(field) {
                let list: sfv::List = Parser::new(line).parse().unwrap();
                let mut serializer = sfv::ListSerializer::new();
                serializer.members(&list);
                prop_assert_eq!(serializer.finish().unwrap(), line);
            }
        }
    }
}
