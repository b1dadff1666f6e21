//! The page of errors, end to end: a server sends each of them, and the page describes the effect.

use super::page;
use kit::{scene::*, scripted::ScriptedServer};

/// A row of "Errors, one by one" that a server can say.
#[derive(Debug)]
struct Row<'a> {
    said: &'a str,
    class: &'a str,
    kind: &'a str,
    is_replaced: bool,
    is_failure: bool,
    remedy: Option<&'a str>,
}

fn rows() -> Vec<Row<'static>> {
    let said = page::rows()
        .into_iter()
        .filter(|row| row[0].starts_with("`-"));
    let rows = said.map(
        |[said, _, _, class, kind, connection, breaker, remedy]| Row {
            said: said.trim_matches('`'),
            class,
            kind: kind.trim_matches('`'),
            is_replaced: match connection {
                "replaced" => true,
                "kept" => false,
                other => panic!("{other}"),
            },
            is_failure: match breaker {
                "failure" => true,
                "answer" | "nothing" => false,
                other => panic!("{other}"),
            },
            remedy: Some(remedy).filter(|remedy| *remedy != "-"),
        },
    );
    rows.collect()
}

fn store(server: &ScriptedServer) -> RedisStore {
    patient(server.url())
        // One failure opens it, so that one call tells.
        .breaker(1)
        .build()
        .unwrap()
}

/// Returns the error that this server makes of a call.
async fn error_of(server: &ScriptedServer, algorithm: Algorithm) -> tower_ratelimit::Error {
    let limiter = RateLimiter::new(&store(server), "scripted").unwrap();
    let limiter = limiter.algorithm(algorithm);
    limiter.try_acquire().await.unwrap_err()
}

#[tokio::test]
async fn each_error_is_met_as_the_page_says() {
    let rows = rows();
    assert!(rows.len() > 25, "{}", rows.len());
    for row in rows {
        let reply = format!("{}\r\n", row.said).into_bytes();
        let server = ScriptedServer::start(move |_| reply.clone());
        let store = store(&server);
        let limiter = RateLimiter::new(&store, "scripted").unwrap();

        let error = limiter.try_acquire().await.unwrap_err();
        assert_eq!(format!("{:?}", error.kind()), row.kind, "{row:?}");
        let message = error.to_string();
        assert!(
            row.remedy.is_none_or(|remedy| message.contains(remedy)),
            "{row:?}: {message}"
        );
        let opened = store.health().nodes[0].breaker != BreakerState::Closed;
        assert_eq!(opened, row.is_failure, "{row:?}");
        // A command is sent once more over another connection where this one is of no more use.
        let connections = 1 + usize::from(row.is_replaced);
        assert_eq!(server.connections(), connections, "{row:?}");
        let expected: &[&str] = match row.class {
            "UnknownScript" => &["EVALSHA", "SCRIPT", "EVAL"],
            _ if row.is_replaced => &["EVALSHA", "EVALSHA"],
            _ => &["EVALSHA"],
        };
        assert_eq!(server.commands(), expected, "{row:?}");
    }
}

#[tokio::test]
async fn the_text_of_a_script_may_meet_another_error_than_its_hash() {
    const OOM: &str = "-OOM command not allowed when used memory > 'maxmemory'.";
    const OTHER: &str = "-ERR something else";
    const NOPERM: &str = "-NOPERM this user has no permissions to run the 'eval' command";
    // And forgotten before the hash comes.
    const GONE: &str = "+loaded";
    const RAN: &str = "-WRONGTYPE it has run";
    let kinds = [Algorithm::SlidingLog, Algorithm::FixedWindow];
    for (load, eval, kind, words) in [
        (OOM, OOM, ErrorKind::Unavailable, "maxmemory"),
        (OTHER, NOPERM, ErrorKind::Rejected, "permission"),
        (GONE, RAN, ErrorKind::ForeignState, ""),
    ] {
        for algorithm in kinds {
            let server = ScriptedServer::of([
                ("EVALSHA", "-NOSCRIPT No matching script."),
                ("EVAL", eval),
                ("", load),
            ]);
            let error = error_of(&server, algorithm).await;
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(words), "{error}");
            let commands: &[&str] = match load {
                GONE => &["EVALSHA", "SCRIPT", "EVALSHA", "EVAL"],
                _ => &["EVALSHA", "SCRIPT", "EVAL"],
            };
            assert_eq!(server.commands(), commands, "{algorithm:?} {eval}");
            assert_eq!(server.connections(), 1, "{algorithm:?} {eval}");
        }
    }
}

#[tokio::test]
async fn what_may_have_run_by_its_hash_is_given_back_though_its_text_failed() {
    let calls = AtomicUsize::new(0);
    let server = ScriptedServer::start(move |_| {
        let reply = match calls.fetch_add(1, Ordering::Relaxed) {
            // Perhaps it has run.
            0 => "",
            1 => "-NOSCRIPT No matching script.\r\n",
            2 | 3 => "-OOM command not allowed when used memory > 'maxmemory'.\r\n",
            _ => ":1\r\n",
        };
        reply.as_bytes().to_vec()
    });
    let store = store(&server);
    let limiter = RateLimiter::new(&store, "scripted").unwrap();
    let error = limiter.try_acquire().await.unwrap_err();
    assert!(error.to_string().contains("maxmemory"), "{error}");
    until("given back", || async { server.commands().len() > 4 }).await;
    assert_eq!(
        server.commands()[..5],
        ["EVALSHA", "EVALSHA", "SCRIPT", "EVAL", "EVALSHA"]
    );
}

#[tokio::test]
async fn what_is_no_reply_ends_the_connection_and_what_is_none_of_ours_does_not() {
    for (reply, connections) in [
        // It is unknown where the next reply begins.
        (&b"?\r\n"[..], 2),
        (b"$3\r\nabcdef\r\n", 2),
        (b"+OK\r\n", 1),
        (b"*2\r\n$1\r\na\r\n:1\r\n", 1),
        (b"$-1\r\n", 1),
    ] {
        let server = ScriptedServer::start(move |_| reply.to_vec());
        let error = error_of(&server, Algorithm::SlidingLog).await;
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{reply:?}");
        assert_eq!(server.connections(), connections, "{reply:?}");
    }
}

/// A caller whose zone data knows no window of the server's time learns that time once.
#[tokio::test]
async fn windows_that_miss_the_servers_time_twice_are_an_error() {
    let server = ScriptedServer::of([("EVALSHA", "*2\r\n:1893456000000000\r\n:-9007199254740989")]);
    let quota = Limit::monthly(10).named("scripted");
    let quota = quota.single(&store(&server)).unwrap();
    let error = fails(quota.try_acquire().await, ErrorKind::Unavailable);
    assert!(error.to_string().contains("unexpected reply"), "{error}");
    assert_eq!(server.commands(), ["EVALSHA", "EVALSHA"]);
}

/// Whatever a server says of its time, and of what a limiter has.
#[tokio::test]
async fn a_diagnosis_of_any_clock_and_any_state_is_a_text() {
    const STATES: [(u8, usize); 4] = [(17, 62), (18, 76), (19, 74), (21, 74)];
    for now in [i64::MIN, -1, 0, i64::MAX] {
        for (filled, (kind, length)) in [1, 255]
            .into_iter()
            .flat_map(|it| STATES.map(|of| (it, of)))
        {
            let mut state = vec![filled; length];
            state[length - 4..].copy_from_slice(&[0, 1, kind, 183]);
            let state = [format!("${length}\r\n").as_bytes(), &state, b"\r\n"].concat();
            let missing = "$-1\r\n".repeat(4);
            let first = format!(
                "*6\r\n:{now}\r\n*4\r\n{missing}*5\r\n{}$-1\r\n:0\r\n*0\r\n",
                ":-2\r\n".repeat(5)
            );
            let server = ScriptedServer::start(move |command| {
                let is_own = command.get(1).is_some_and(|key| key.ends_with(b"~"));
                match &*String::from_utf8_lossy(&command[0]).to_uppercase() {
                    "EVALSHA" | "EVAL" => first.clone().into_bytes(),
                    "GET" if is_own => state.clone(),
                    "GET" => b"$-1\r\n".to_vec(),
                    "PTTL" => b":1000\r\n".to_vec(),
                    "SCRIPT" => b"*0\r\n".to_vec(),
                    _ => b"-ERR no\r\n".to_vec(),
                }
            });
            let read = patient(server.url()).build().unwrap();
            let read = read.diagnose("orders").await.unwrap();
            assert!(read.in_own_format(), "{now} {kind} {filled}: {read}");
        }
    }
}
