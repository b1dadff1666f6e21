//! Measures the memory of limiters in Redis: the table of `src/docs/capacity.md`.

use kit::scene::*;

const PAGE: &str = include_str!("../../src/docs/capacity.md");
/// So many limiters for each cell of the table, and the grants of each.
const CELLS: [(usize, usize); 3] = [(2000, 1), (1000, 10), (400, 100)];
const AT_ONCE: usize = 50;
/// By so many bytes the server's own memory differs meanwhile.
const OWN: i64 = 60_000;

/// The memory of the server, as it counts it itself.
fn used(server: &RedisServer) -> i64 {
    let used = server.figure("memory", "used_memory:");
    used.expect("its memory").cast_signed()
}

/// Returns the bytes of a limiter with so many grants, one after the other: the mean of many, which
/// a rule made.
async fn weight(way: Way, limit: Limit, (limiters, grants): (usize, usize)) -> i64 {
    let server = RedisServer::start();
    // On a loaded machine it has up to 128 commands, some kB each.
    server.cli(&["CONFIG", "SET", "slowlog-log-slower-than", "-1"]);
    let mut store = patient(server.url());
    if !Way::OWN.contains(&way) {
        store = store.redisson();
    }
    let store = store.build().expect("a store");
    let rule = way.rule(Rule::new("address", limit, FromHeader::new("x-key")));
    let layer = RateLimitLayer::new(&store, rule);
    let ask = |number: usize| {
        let (layer, key) = (
            layer.clone(),
            format!("10.0.{:03}.{:03}", number / 250, number % 250),
        );
        let request = Request::builder().header("x-key", key).body(());
        async move {
            let answer = send(&layer, request.expect("a request")).await;
            assert_eq!(answer.status(), StatusCode::OK);
        }
    };
    // What a store needs for itself: then by another connection, as the buffer in which the text of
    // a script came is freed some time later.
    for _ in 0..2 {
        let warm_up = (limiters..limiters + AT_ONCE).map(ask);
        warm_up.collect::<JoinSet<_>>().join_all().await;
        server.kill_clients();
    }
    ask(limiters).await;
    let before = used(&server);
    for _ in 0..grants {
        // So few at a time that none is answered by policy.
        for first in (0..limiters).step_by(AT_ONCE) {
            let calls = (first..first + AT_ONCE).map(ask);
            calls.collect::<JoinSet<_>>().join_all().await;
        }
    }
    (used(&server) - before) / limiters as i64
}

/// The hash tables of a server double now and then, which is a tenth of a small limiter.
#[tokio::test]
async fn limiters_weigh_what_the_page_on_capacity_says() {
    // A slot of it is ten days, so that the test crosses none.
    let limit = Limit::new(1_000_000, Duration::from_secs(1000 * 86_400));
    let ways = [
        ("sliding log", Way::OwnLog, limit),
        ("fixed window", Way::OwnWindow, limit),
        ("GCRA", Way::Gcra, limit),
        ("calendar", Way::OwnLog, Limit::daily(1_000_000)),
        ("Redisson's log", Way::Log, limit),
        ("the same in 100 slots", Way::Slots(100), limit),
        ("Redisson's window", Way::Window, limit),
    ];
    for (name, way, limit) in ways {
        let row = PAGE
            .lines()
            .rfind(|line| line.starts_with(&format!("| {name} |")));
        let row = row.unwrap_or_else(|| panic!("the page has no row {name:?}"));
        let figures = row
            .split('|')
            .skip(2)
            .map(|cell| cell.trim().replace(' ', ""));
        let figures: Vec<i64> = figures.filter_map(|cell| cell.parse().ok()).collect();
        assert_eq!(figures.len(), CELLS.len(), "{row}");
        for (said, cell) in figures.iter().zip(CELLS) {
            let found = weight(way, limit, cell).await;
            println!(
                "{name}, {} grants: {found} bytes, {said} on the page",
                cell.1
            );
            assert!(
                (found - said).abs() <= said / 5 + OWN / cell.0 as i64,
                "{name}, {} grants: {found}",
                cell.1
            );
        }
    }
}
