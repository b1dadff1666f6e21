//! Receipts of what was taken in a slot, and requests that are charged by their answers.

use super::*;
use crate::scene::on_both_by_a_clock;

on_both_by_a_clock!(what_was_used_is_settled, answers_are_charged);

async fn what_was_used_is_settled(store: impl Settles, _: ManualClock) {
    let slotted = slotted(&store, Limit::new(20, HOUR), 10).await;
    let plain = RateLimiter::new(&store, slotted.name()).unwrap();
    take(&slotted, 10).await;
    // Who notes otherwise has the same limiter.
    let (in_slot, by_itself) = (take(&slotted, 2).await, take(&plain, 3).await);
    plain.give_back(&in_slot.receipts()[0]);
    slotted.settle(&by_itself.receipts()[0], 1);
    store.settled().await;
    assert_eq!(free(&plain).await, 9);
    // A part, and more than was taken: also than there is.
    let (part, more) = (take(&slotted, 5).await, take(&slotted, 1).await);
    slotted.settle(&part.receipts()[0], 2);
    slotted.settle(&more.receipts()[0], 8);
    store.settled().await;
    assert_eq!(free(&slotted).await, 0);
    assert_eq!(plain.release(1).await.unwrap(), 1);
    assert_eq!(free(&slotted).await, 0);
    assert_eq!(plain.release(1).await.unwrap(), 1);
    assert_eq!(free(&slotted).await, 1);
}

/// By the server's clock, too: the slot is the one that the script noted it in.
#[tokio::test]
async fn a_receipt_knows_its_slot_by_the_servers_clock() {
    let store = redis_store().build().unwrap();
    let slotted = limiter(&store, Limit::new(50, HOUR / 10)).await;
    let slotted = slotted.slots(10_000).unwrap();
    let slot = || RedisServer::shared().micros() / 36_000;
    let mut grants = Vec::new();
    for _ in 0..10 {
        let in_slots = slot();
        grants.push(take(&slotted, 5).await);
        until("the slot is over", async || slot() > in_slots).await;
    }
    assert_eq!(free(&slotted).await, 0);
    for grant in grants {
        slotted.give_back(&grant.receipts()[0]);
    }
    store.close().await;
    assert_eq!(free(&slotted).await, 50);
}

#[tokio::test]
async fn a_receipt_is_void_when_its_slot_has_expired() {
    for late in [0, 1] {
        let clock = ManualClock::new();
        let store = MemoryStore::new().clock(clock.clone());
        let slotted = slotted(&store, Limit::per_second(5), 10).await;
        let grant = take(&slotted, 3).await;
        clock.advance(SECOND - millis(1 - late));
        take(&slotted, 2).await;
        slotted.give_back(&grant.receipts()[0]);
        assert_eq!(free(&slotted).await, 3);
    }
}

async fn answers_are_charged(store: impl Settles, _: ManualClock) {
    let name = unique("answers");
    let rule = || Rule::new(&name, Limit::new(3, HOUR), Constant("all")).slots(100);
    let layer = RateLimitLayer::new(&store, rule().charge_if(|outcome| !outcome.is_success()));
    let inner = service_fn(async |request: Request<String>| {
        let mut answer = Response::new(String::new());
        if request.body() == "fails" {
            *answer.status_mut() = StatusCode::UNAUTHORIZED;
        }
        Ok::<_, Infallible>(answer)
    });
    let service = layer.layer(inner);
    let send = async |body: &str| {
        let answer = service.clone().oneshot(Request::new(body.to_owned()));
        let status = answer.await.unwrap().status().as_u16();
        store.settled().await;
        status
    };
    for _ in 0..5 {
        assert_eq!(send("succeeds").await, 200);
    }
    for _ in 0..3 {
        assert_eq!(send("fails").await, 401);
    }
    assert_eq!(send("succeeds").await, 429);
}
