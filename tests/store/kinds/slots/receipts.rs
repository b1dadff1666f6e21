//! Receipts of what was taken in a slot, and requests that are charged by their answers.

use super::*;
use crate::scene::on_both_by_a_clock;

on_both_by_a_clock!(answers_are_charged);

/// By the server's clock, too: the slot is the one that the script noted it in.
#[tokio::test]
async fn a_receipt_knows_its_slot_by_the_servers_clock() {
    let store = redis_store().build().unwrap();
    let slotted = limited(&store, Limit::new(50, HOUR / 10)).await;
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
