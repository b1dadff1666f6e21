//! Observers that call the store are called with no lock held, so that they do not hang.

use std::{cell::Cell, collections::BTreeMap, sync::OnceLock, sync::mpsc, thread};

use kit::scene::*;
use tower_ratelimit::observe::{Decided, Observer, StateChange, StoreCall};

/// Calls its store at each event.
#[derive(Debug, Default)]
struct Again {
    store: OnceLock<RedisStore>,
    limiter: OnceLock<RateLimiter>,
    grants: Mutex<Vec<Grant>>,
    seen: Mutex<BTreeMap<&'static str, u32>>,
}

thread_local! {
    /// Set while it calls: the events of that call lead to no other.
    static ASKING: Cell<bool> = const { Cell::new(false) };
}

impl Again {
    fn ask(&self, event: &'static str) {
        let mut seen = self.seen.lock().unwrap();
        let times = seen.entry(event).or_default();
        *times += 1;
        // Or each call would lead to another one, without end.
        let is_enough = *times > 20;
        drop(seen);
        let (Some(store), Some(limiter)) = (self.store.get(), self.limiter.get()) else {
            return;
        };
        if is_enough || ASKING.replace(true) {
            return;
        }
        let _ = store.health();
        let _ = poll(&mut Box::pin(limiter.try_acquire()));
        let grant = self.grants.lock().unwrap().pop();
        if let Some(grant) = grant {
            limiter.settle(&grant, 0);
        }
        ASKING.set(false);
    }
}

impl Observer for Again {
    fn decided(&self, _: &Decided<'_>) {
        self.ask("decided");
    }

    fn called(&self, _: &StoreCall<'_>) {
        self.ask("called");
    }

    fn changed(&self, event: &StateChange<'_>) {
        self.ask(match event {
            StateChange::Breaker { .. } => "breaker",
            StateChange::Connection { .. } => "connection",
            StateChange::Settled { .. } => "settled",
            StateChange::Managed { .. } => "managed",
            StateChange::Lost { .. } => "lost",
            StateChange::Waiting { .. } => "waiting",
            _ => "other",
        });
    }
}

/// Ends, or the test fails.
fn ends(what: impl FnOnce() + Send + 'static) {
    let (sender, ended) = mpsc::channel();
    let running = thread::spawn(move || {
        what();
        sender.send(()).unwrap();
    });
    if ended.recv_timeout(2 * LONG) == Err(mpsc::RecvTimeoutError::Timeout) {
        panic!("an observer that asks again hangs");
    }
    running.join().unwrap();
}

#[test]
fn an_observer_may_ask_its_store_again() {
    ends(|| {
        let mut server = RedisServer::start();
        let again = Arc::new(Again::default());
        let store = patient(server.url()).observe(again.clone());
        let store = store.build().unwrap();
        let first = runtime();
        let limiter = first.block_on(async {
            let limiter = limited(&store, Limit::per_hour(100_000)).await;
            limiter.lease(secs(60)).unwrap()
        });
        again.store.set(store.clone()).unwrap();
        again.limiter.set(limiter.clone()).unwrap();
        // Some out of one lease, which then ends: each that comes back corrects it.
        let mut grants = Vec::new();
        first.block_on(async {
            while grants.len() < 8 {
                let decision = limiter.try_acquire().await.unwrap();
                if decision.source() == Source::Lease {
                    grants.push(granted(decision));
                }
            }
            limiter
                .set_or_update_rate(Limit::per_hour(100_001))
                .await
                .unwrap();
            let _ = limiter.try_acquire_for(1, secs(1)).await.unwrap();
            again.grants.lock().unwrap().extend(grants.drain(..3));
            limiter.settle(&grants.pop().unwrap(), 0);
            store.close().await;
        });
        assert_eq!(store.health().lost_receipts, 0);
        drop(first);
        // No runtime is left that could send it.
        again.grants.lock().unwrap().extend(grants.drain(..3));
        limiter.settle(&grants.pop().unwrap(), 0);
        assert!(store.health().lost_receipts > 0);
        server.stop_process();
        let hasty = hasty(server.url(), millis(30)).breaker(1);
        let hasty = hasty.observe(again.clone()).build().unwrap();
        let hasty = RateLimiter::new(&hasty, limiter.name()).unwrap();
        runtime().block_on(until("the breaker opens", async || {
            let _ = hasty.try_acquire().await;
            again.seen.lock().unwrap().contains_key("breaker")
        }));
        let seen = again.seen.lock().unwrap();
        let events = "decided called breaker connection settled managed lost waiting";
        for event in events.split(' ') {
            assert!(seen.contains_key(event), "{event}: {seen:?}");
        }
    });
}
