//! TLS that breaks while requests come, and heals.

use crate::scene::*;
use std::{net::Ipv4Addr, net::TcpListener};

use super::{
    believing, certificates::Authority, certificates::HERE, lenient, patient,
    support::redis_server::Tls, traffic::Traffic, traffic::ask, traffic::service, wait::until,
};

const LIMIT: Limit = Limit::per_hour(1_000_000);

/// Puts other files in the place of a running server's, and cuts its connections.
fn replace(server: &RedisServer, tls: &Tls) {
    tls.write_to(server.dir());
    let set = [
        "CONFIG",
        "SET",
        "tls-cert-file",
        "server.pem",
        "tls-key-file",
        "server.key",
    ];
    assert_eq!(server.cli(&set), "OK");
    // None, if the store is waiting to connect again.
    let killed = server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
    assert!(matches!(killed, Reply::Int(_)), "{killed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewed_certificates_and_killed_connections_cost_no_decision() {
    let authority = Authority::new("ours");
    let server = lenient(&authority.issue(HERE));
    let store = believing(&server, &authority).deny_cache(Duration::ZERO);
    let traffic = Traffic::start(&patient(store));
    traffic.answered(100).await;
    traffic.all_by_store("before");
    for _ in 0..5 {
        replace(&server, &authority.issue(HERE));
        traffic.answered(100).await;
        traffic.all_by_store("during and after");
    }
    traffic.end().await;
}

/// Permits that were taken stay taken, requests meet their policy meanwhile, and no restart is
/// needed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expired_certificate_meets_the_policy_until_it_is_renewed() {
    let authority = Authority::new("ours");
    let server = lenient(&authority.issue(HERE));
    let store = patient(believing(&server, &authority));
    let limiter = RateLimiter::new(&store, &unique("orders")).unwrap();
    limiter.try_set_rate(Limit::per_hour(10)).await.unwrap();
    assert!(limiter.try_acquire_many(4).await.unwrap().is_allowed());
    let deny = service(&store, LIMIT, FailurePolicy::Deny);
    let allow = service(&store, LIMIT, FailurePolicy::Allow);
    for service in [&deny, &allow] {
        assert_eq!(ask(service).await, (StatusCode::OK, Source::Store));
    }

    replace(&server, &authority.issue_for(HERE, (2001, 2002)));
    until("the policy decides", || async {
        ask(&allow).await == (StatusCode::OK, Source::FailurePolicy)
    })
    .await;
    let (began, mut answers) = (Instant::now(), 0);
    while began.elapsed() < Duration::from_secs(1) {
        let denied = (StatusCode::SERVICE_UNAVAILABLE, Source::FailurePolicy);
        assert_eq!(ask(&deny).await, denied);
        assert_eq!(ask(&allow).await, (StatusCode::OK, Source::FailurePolicy));
        answers += 2;
    }
    println!("{answers} answers in {:?}", began.elapsed());
    assert!(answers > 2, "{answers}");
    let error = limiter.try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Tls, "{error}");

    replace(&server, &authority.issue(HERE));
    let healed = until("Redis decides again", || async {
        ask(&deny).await == (StatusCode::OK, Source::Store)
    })
    .await;
    println!("decisions come from Redis again {healed:?} after the renewal");
    assert_eq!(limiter.available_permits().await.unwrap(), 6);
}

/// A server accepts connections but sends no byte of the handshake: no caller waits longer than the
/// deadline.
#[tokio::test]
async fn a_stalled_handshake_delays_no_caller() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!("rediss://{}/", listener.local_addr().unwrap());
    let attempts = Arc::new(AtomicU64::new(0));
    let counting = Arc::clone(&attempts);
    // Ends with the process, and keeps what it has taken open until then.
    thread::spawn(move || {
        let mut held = Vec::new();
        for connection in listener.incoming() {
            counting.fetch_add(1, Ordering::SeqCst);
            held.push(connection);
        }
    });
    let connecting = Duration::from_secs(5);
    let store = RedisStore::builder(url)
        .certificates(Authority::new("ours").believed())
        .deadline(Duration::from_millis(20))
        .connect_timeout(connecting)
        .build()
        .unwrap();
    let allow = service(&store, LIMIT, FailurePolicy::Allow);
    let mut longest = Duration::ZERO;
    for _ in 0..20 {
        let asked = Instant::now();
        assert_eq!(ask(&allow).await, (StatusCode::OK, Source::FailurePolicy));
        longest = longest.max(asked.elapsed());
    }
    let attempts = attempts.load(Ordering::SeqCst);
    println!("{attempts} attempts, the longest answer took {longest:?}");
    // A busy machine adds to the deadline, and a caller that waited for the handshake would take
    // all of this.
    assert!(longest < connecting / 2, "{longest:?}");
    assert!((1..=2).contains(&attempts), "{attempts}");
}
