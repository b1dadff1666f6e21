//! TLS that breaks while requests come, and heals.

use kit::{
    certificates::{Authority, HERE},
    scene::*,
    scripted::ScriptedServer,
    traffic::{ALLOWED, DENIED, ask, by_redis, deny_and_allow},
};

use super::{believing, lenient};
use crate::patient;

/// Permits that were taken stay taken, requests meet their policy meanwhile, and no restart is
/// needed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expired_certificate_meets_the_policy_until_it_is_renewed() {
    let authority = Authority::new("ours");
    let server = lenient(&authority.issue(HERE));
    let store = patient(believing(&server, &authority));
    let limiter = limited(&store, Limit::per_hour(10)).await;
    take(&limiter, 4).await;
    let services = deny_and_allow(&store);
    by_redis(&services).await;

    server.renew(&authority.issue_for(HERE, (2001, 2002)));
    until("the policy decides", async || {
        ask(&services[1]).await == ALLOWED
    })
    .await;
    let (began, mut answers) = (Instant::now(), 0);
    while began.elapsed() < SECOND || answers <= 2 {
        assert_eq!(ask(&services[0]).await, DENIED);
        assert_eq!(ask(&services[1]).await, ALLOWED);
        answers += 2;
    }
    println!("{answers} answers in {:?}", began.elapsed());
    assert!(began.elapsed() < LONG, "a caller waits for a connection");
    fails(limiter.try_acquire().await, ErrorKind::Tls);

    server.renew(&authority.issue(HERE));
    let healed = by_redis(&services[..1]).await;
    println!("decisions come from Redis again {healed:?} after the renewal");
    assert_eq!(limiter.available_permits().await.unwrap(), 6);
}

/// A server accepts connections but sends no byte of the handshake: no caller waits longer than the
/// deadline.
#[tokio::test]
async fn a_stalled_handshake_delays_no_caller() {
    let silent = ScriptedServer::stranger(None);
    let url = format!("rediss://{}/", silent.address());
    let connecting = LONG;
    let store = Authority::new("ours")
        .believed(RedisStore::builder(url))
        .deadline(Duration::from_millis(20))
        .connect_timeout(connecting)
        .build()
        .unwrap();
    let [_, allow] = deny_and_allow(&store);
    let mut longest = Duration::ZERO;
    for _ in 0..20 {
        let asked = Instant::now();
        assert_eq!(ask(&allow).await, ALLOWED);
        longest = longest.max(asked.elapsed());
    }
    let attempts = silent.connections();
    println!("{attempts} attempts, the longest answer took {longest:?}");
    // A busy machine adds to the deadline, and a caller that waited for the handshake would take
    // all of this.
    assert!(longest < connecting / 2, "{longest:?}");
    assert!((1..=2).contains(&attempts), "{attempts}");
}
