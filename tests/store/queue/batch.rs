//! Calls of different limiters that come together are one call, and each is decided as if it were
//! alone.

use std::{
    future::poll_fn,
    sync::atomic::{AtomicUsize, Ordering},
    task::Poll,
    thread,
};

use tokio::runtime::{self, Runtime};

use super::*;
use crate::support::{permissions, wait_until};

/// How many calls are in flight before others wait to go together.
const IN_FLIGHT: usize = 8;

async fn limiters(store: &RedisStore, count: usize) -> Vec<RateLimiter> {
    let mut limiters = Vec::new();
    for _ in 0..count {
        limiters.push(limited(store, Limit::per_hour(80)).await);
    }
    limiters
}

type Asking = Pin<Box<dyn Future<Output = (usize, Result<Decision, Error>)> + Send>>;

/// Has all limiters asked at once; their answers in order, and how many scripts that took.
async fn ask_all(
    server: &mut RedisServer,
    limiters: &[RateLimiter],
) -> (Vec<Result<Decision, Error>>, u64) {
    let next = AtomicUsize::new(0);
    let ask = || -> Asking {
        let place = next.fetch_add(1, Ordering::Relaxed);
        let limiter = limiters[place].clone();
        Box::pin(async move { (place, limiter.try_acquire().await) })
    };
    let (mut answers, scripts) = crowd(server, ask).await;
    answers.sort_by_key(|(place, _)| *place);
    (
        answers.into_iter().map(|(_, answer)| answer).collect(),
        scripts,
    )
}

fn in_use(server: &RedisServer, limiter: &RateLimiter) -> usize {
    let log = format!("{{{}}}:permits", limiter.name());
    server.entries(&log).len()
}

fn is_allowed(answer: &Result<Decision, Error>) -> bool {
    answer.as_ref().is_ok_and(Decision::is_allowed)
}

/// Has a crowd of limiters asked again and again, by so many scripts from the second round on.
async fn are_granted_in_rounds(server: &mut RedisServer, scripts: u64) {
    let store = patient(server).build().unwrap();
    let limiters = limiters(&store, CROWD).await;
    for round in 1..4 {
        let (answers, called) = ask_all(server, &limiters).await;
        assert!(answers.iter().all(is_allowed), "{answers:?}");
        if round > 1 {
            assert_eq!(called, scripts);
        }
        for limiter in &limiters {
            assert_eq!(in_use(server, limiter), round);
        }
    }
}

#[tokio::test]
async fn limiters_that_are_asked_together_share_a_call() {
    let mut server = RedisServer::start();
    // In the first round the server learns the scripts.
    are_granted_in_rounds(&mut server, IN_FLIGHT as u64 + 1).await;
}

#[tokio::test]
async fn an_error_is_that_of_its_limiter_alone() {
    let mut server = RedisServer::start();
    let store = patient(&server).build().unwrap();
    let limiters = limiters(&store, CROWD).await;
    ask_all(&mut server, &limiters).await;
    let [hash, value, log, absent] = [20, 30, 40, 50];
    let name = |limiter: usize| limiters[limiter].name().to_owned();
    server.command(&["SET", &name(hash), "no hash"]);
    server.command(&["SET", &format!("{{{}}}:value", name(value)), "no number"]);
    server.command(&["SET", &format!("{{{}}}:permits", name(log)), "no log"]);
    server.command(&["DEL", &name(absent)]);
    // The server learns the script of those that are asked alone.
    ask_all(&mut server, &limiters).await;
    let (answers, scripts) = ask_all(&mut server, &limiters).await;
    // Two whose decision ends in an error are asked alone, and may be given back.
    let least = IN_FLIGHT as u64 + 3;
    assert!((least..least + 3).contains(&scripts), "{scripts}");
    for (place, answer) in answers.iter().enumerate() {
        if [hash, log, absent].contains(&place) {
            let alone = limiters[place].try_acquire().await.unwrap_err();
            assert_eq!(answer.as_ref().unwrap_err().kind(), alone.kind());
        } else {
            assert!(is_allowed(answer), "{answer:?}");
            assert_eq!(in_use(&server, &limiters[place]), 3);
        }
    }
}

#[tokio::test]
async fn a_forbidden_key_is_the_loss_of_its_limiter_alone() {
    let mut server = RedisServer::start();
    let url = format!("redis://limiter:secret@127.0.0.1:{}/", server.port());
    let keys = ["~queue*", "~{queue*"];
    let commands = permissions();
    let commands = commands.iter().filter(|rule| !rule.starts_with('~'));
    let rules: Vec<_> = commands
        .copied()
        .filter(|rule| !rule.starts_with('>'))
        .collect();
    let user = ["ACL", "SETUSER", "limiter", "reset", "on", ">secret"];
    assert_eq!(server.cli(&[&user[..], &rules, &keys].concat()), "OK");
    let admin = patient(&server).build().unwrap();
    let store = crate::scene::patient(url)
        .prefix("queue")
        .deny_cache(Duration::ZERO);
    let store = store.build().unwrap();
    let mut limiters = Vec::new();
    for place in 0..CROWD {
        let name = unique(if place == 40 { "forbidden" } else { "queue" });
        let limiter = RateLimiter::new(&admin, &name).unwrap();
        limiter.set_rate(Limit::per_hour(80)).await.unwrap();
        limiters.push(RateLimiter::new(&store, &name).unwrap());
    }
    for round in 1..3 {
        let (answers, _) = ask_all(&mut server, &limiters).await;
        for (place, answer) in answers.iter().enumerate() {
            if place == 40 {
                assert_eq!(answer.as_ref().unwrap_err().kind(), ErrorKind::Rejected);
            } else {
                assert!(is_allowed(answer), "{answer:?}");
                assert_eq!(in_use(&server, &limiters[place]), round);
            }
        }
    }
}

/// As behind an endpoint that stands for a Cluster: keys of different hash slots are refused.
#[tokio::test]
async fn where_hash_slots_do_not_mix_each_limiter_is_asked_alone() {
    let mut server = RedisServer::start_with(&["--cluster-enabled", "yes"]);
    let slots: Vec<_> = (0..16_384).map(|slot| slot.to_string()).collect();
    let slots = slots.iter().map(String::as_str);
    let all: Vec<_> = ["CLUSTER", "ADDSLOTS"].into_iter().chain(slots).collect();
    assert_eq!(server.cli(&all), "OK");
    wait_until("the server has all hash slots", || {
        server
            .cli(&["CLUSTER", "INFO"])
            .contains("cluster_state:ok")
    });
    // Once refused, in the first round, no batch is sent any more.
    are_granted_in_rounds(&mut server, CROWD as u64).await;
    let refused = server.cli(&["INFO", "errorstats"]);
    assert!(
        refused.contains("errorstat_CROSSSLOT:count=1\r"),
        "{refused}"
    );
}

/// A `RateLimiter` gives back what its caller did not learn of; nothing else is in use.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_that_leave_and_connections_that_are_cut_cost_nothing() {
    const LIMITERS: usize = 16;
    let server = RedisServer::start();
    let store = patient(&server).build().unwrap();
    let limiters = limiters(&store, LIMITERS).await;
    let mut granted = [0; LIMITERS];
    for round in 0..30 {
        let mut callers = Vec::new();
        for caller in 0..8 * LIMITERS {
            let limiter = limiters[caller % LIMITERS].clone();
            callers.push(tokio::spawn(async move { limiter.try_acquire().await }));
            if caller % 37 == round {
                settle().await;
            }
        }
        if round % 3 == 0 {
            server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
        }
        for (caller, task) in callers.iter().enumerate() {
            if (caller * 7 + round) % 5 == 0 {
                task.abort();
            }
        }
        for (caller, task) in callers.into_iter().enumerate() {
            // One that was aborted has no answer, or had it before.
            if let Ok(answer) = task.await {
                granted[caller % LIMITERS] += usize::from(is_allowed(&answer));
            }
        }
        store.close().await;
        for (limiter, granted) in limiters.iter().zip(&mut granted) {
            // Who left a call that others share may be given back after these have their answers.
            wait_until("nothing else is in use", || {
                in_use(&server, limiter) == *granted
            });
            limiter.set_rate(Limit::per_hour(80)).await.unwrap();
            *granted = 0;
        }
    }
}

/// The callers of a runtime that is alive, and not driven, delay those of no other.
#[tokio::test]
async fn a_runtime_that_is_not_driven_delays_its_own_callers_alone() {
    let server = RedisServer::start();
    let store = patient(&server).build().unwrap();
    let limiters = limiters(&store, CROWD).await;
    let (idle, busy) = limiters.split_at(CROWD / 2);
    let mut builder = runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build().unwrap();
    let mut left: Vec<_> = idle
        .iter()
        .map(|limiter| {
            let limiter = limiter.clone();
            Box::pin(async move { limiter.try_acquire().await })
        })
        .collect();
    poll_once_on(&runtime, &mut left);
    let mut callers = JoinSet::new();
    for limiter in busy {
        let limiter = limiter.clone();
        callers.spawn(async move { limiter.try_acquire().await });
    }
    let answers = callers.join_all().await;
    assert!(answers.iter().all(is_allowed), "{answers:?}");
    drop(left);
    runtime.shutdown_background();
}

/// Polls each of them once on a runtime.
fn poll_once_on<F: Future + Unpin + Send>(runtime: &Runtime, left: &mut [F]) {
    let once = poll_fn(|context| {
        for future in &mut *left {
            assert!(Pin::new(future).poll(context).is_pending());
        }
        Poll::Ready(())
    });
    // A runtime is not entered from within another one.
    thread::scope(|scope| scope.spawn(|| runtime.block_on(once)).join().unwrap());
}
