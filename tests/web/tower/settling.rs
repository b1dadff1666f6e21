//! The final charge of a request: by its handler and by its response.

mod dropped;

use super::*;
use tower_ratelimit::Ban;

const ALL: u64 = 100_000;

/// A rule on a limiter that can be asked what is left of it.
fn rule(limiter: &str) -> Rule {
    Rule::shared(limiter).or_init(Limit::per_hour(ALL))
}

async fn used(store: &impl Store, limiter: &str) -> u64 {
    let limiter = RateLimiter::new(store, limiter).unwrap();
    ALL - limiter.available_permits().await.unwrap()
}

/// Answers with the cost that the `x-cost` header of a request says, and keeps the charges.
#[derive(Clone, Default)]
struct Answers(Arc<Mutex<Vec<Grant>>>);

impl Answers {
    fn service(
        &self,
    ) -> impl Service<Request<String>, Response = Response<String>, Error = Infallible, Future: Send>
    + Clone
    + use<> {
        let charges = Arc::clone(&self.0);
        service_fn(move |request: Request<String>| {
            let charge = request.extensions().get::<Grant>().cloned();
            charges.lock().unwrap().extend(charge);
            let mut response = Response::new("body".to_owned());
            if let Some(cost) = request.headers().get("x-cost") {
                let cost = cost.to_str().unwrap().parse().unwrap();
                response.extensions_mut().insert(Cost(cost));
            }
            std::future::ready(Ok(response))
        })
    }

    fn last(&self) -> Grant {
        self.0.lock().unwrap().last().unwrap().clone()
    }
}

fn costing(cost: &str) -> Request<String> {
    asking("GET /", &[("x-key", "a"), ("x-cost", cost)])
}

/// Sends a request and reads its answer to the end.
async fn exchange<S, B>(service: &S, request: Request<String>) -> StatusCode
where
    S: Service<Request<String>, Response = Response<B>, Error = Infallible> + Clone,
    B: Body<Data = Bytes>,
{
    let answer = service.clone().oneshot(request).await.unwrap();
    let (head, body) = answer.into_parts();
    assert!(body.collect().await.is_ok());
    head.status
}

on_both_stores!(a_handlers_cost_is_charged,);

async fn a_handlers_cost_is_charged(store: impl Settles) {
    let name = unique("cost");
    let layer = RateLimitLayer::new(&store, rule(&name).cost(10));
    let service = layer.layer(Answers::default().service());
    for (cost, expected) in [("10", 10), ("3", 13), ("0", 13), ("50", 63)] {
        exchange(&service, costing(cost)).await;
        store.settled().await;
        assert_eq!(used(&store, &name).await, expected, "{cost}");
    }
    assert_eq!(exchange(&service, request("a")).await, StatusCode::OK);
    assert_eq!(used(&store, &name).await, 73, "nothing was said");
}

#[tokio::test]
async fn a_plain_value_is_for_the_innermost_layer_and_a_name_for_any() {
    let store = MemoryStore::new();
    let answers = Answers::default();
    let inner = RateLimitLayer::new(&store, rule("inner").cost(3)).layer(answers.service());
    let service = RateLimitLayer::new(&store, rule("outer").cost(5)).layer(inner);

    let answer = service.clone().oneshot(request("a")).await.unwrap();
    assert!(answers.last().set(10));
    assert!(answers.last().rule("unknown").is_none());
    let outer = answers.last().rule("outer").unwrap();
    assert!(outer.add(1) && outer.add(1));
    drop(answer);
    assert!(!outer.set(1) && !answers.last().set(1));
    assert_eq!(used(&store, "inner").await, 10);
    assert_eq!(used(&store, "outer").await, 7);

    let taken = service.clone().oneshot(costing("0"));
    let answer = taken.await.unwrap();
    assert!(answer.extensions().get::<Cost>().is_none(), "it was taken");
    drop(answer);
    assert_eq!(used(&store, "inner").await, 10);
    assert_eq!(used(&store, "outer").await, 12);
}

/// Narrowed to a rule, a grant has that rule's limit alone.
#[tokio::test]
async fn the_grant_of_a_rule_is_a_part_of_the_whole() {
    let store = MemoryStore::new();
    let answers = Answers::default();
    let rules = [rule("in").named("in").cost(3), rule("out").named("out")];
    let service = layer_of(&store, rules).layer(answers.service());
    let answer = service.oneshot(request("a")).await.unwrap();
    let whole = answers.last();
    assert_eq!(
        (whole.limits().count(), permits_taken(&whole).len()),
        (2, 2)
    );
    let part = whole.rule("in").unwrap();
    let names: Vec<_> = part.limits().map(|it| it.name().to_owned()).collect();
    assert_eq!(names, ["in"]);
    assert_eq!(permits_taken(&part), [3]);
    assert!(part.rule("out").is_none());
    assert!(part.set(7) && part.add(1) && whole.rule("out").unwrap().set(0));
    drop(answer);
    assert_eq!(
        (used(&store, "in").await, used(&store, "out").await),
        (8, 0)
    );
}

/// The ban of a shadow rule refuses nothing, so what fits its limit is taken, and can be corrected.
#[tokio::test]
async fn what_a_shadow_rule_took_while_it_would_ban_is_given_back() {
    let (store, clock) = MemoryStore::builder().build_manual();
    let ban = Ban::after(1).within(secs(3600)).lasting(secs(3600));
    let rule = Rule::shared("shade").or_init(Limit::per_minute(1));
    let rule = rule.named("shade").ban(ban).shadow();
    let answers = Answers::default();
    let service = layer_of(&store, [rule]).layer(answers.service());
    for _ in 0..2 {
        exchange(&service, request("a")).await;
    }
    clock.advance(secs(61));
    let answer = service.oneshot(request("a")).await.unwrap();
    let grant = answers.last();
    let limit = grant.limits().next().unwrap();
    assert!(limit.is_banned());
    assert_eq!(limit.taken(), 1);
    assert!(grant.set(0));
    drop(answer);
    let limiter = RateLimiter::new(&store, "shade").unwrap();
    assert_eq!(limiter.available_permits().await.unwrap(), 1);
}

/// No response ends it.
#[tokio::test]
async fn the_grant_of_a_limiter_is_settled_by_the_limiter() {
    let store = MemoryStore::new();
    let limiter = RateLimiter::new(&store, "alone").unwrap();
    limiter.try_set_rate(Limit::per_hour(ALL)).await.unwrap();
    let grant = granted(limiter.try_acquire_many(5).await.unwrap());
    assert!(!grant.set(1) && !grant.add(1) && !grant.set(0));
    assert!(!grant.rule("alone").unwrap().set(1));
    assert_eq!(grant.layers().count(), 1);
    assert_eq!(used(&store, "alone").await, 5);
    limiter.settle(&grant, 2);
    assert_eq!(used(&store, "alone").await, 2);
}

#[tokio::test]
async fn a_service_that_fails_is_charged() {
    let store = MemoryStore::new();
    let rule = rule("fails").cost(4).charge_if(|_| false);
    let broken = service_fn(async |request: Request<String>| {
        let charge = request.extensions().get::<Grant>().unwrap().clone();
        if request.headers().contains_key("x-cost") {
            charge.set(9);
        }
        Err::<Response<String>, _>("broken")
    });
    let mut service = RateLimitLayer::new(&store, rule).layer(broken);
    let mut kept = pin!(service.call(request("a")));
    assert!(kept.as_mut().await.is_err());
    assert_eq!(used(&store, "fails").await, 4);
    let mut kept = pin!(service.call(costing("")));
    assert!(kept.as_mut().await.is_err());
    // It is over, though its future is still here.
    assert_eq!(used(&store, "fails").await, 13);
}

/// It stands in the head of an answer without a body, or in the trailers. Clients read a response
/// that ends without one as UNKNOWN, with and without trailers.
#[tokio::test]
async fn a_response_counts_by_its_grpc_status() {
    use http_body::Frame;
    use http_body_util::StreamBody;
    use tonic::codegen::tokio_stream;

    // What the head says, whether the body has data, and what its trailers say, if it has some.
    let bodies = [
        (None, false, None, 2),
        (None, true, None, 2),
        (None, false, Some(None), 2),
        (None, true, Some(None), 2),
        (None, true, Some(Some("0")), 0),
        (None, true, Some(Some("5")), 5),
        (Some("0"), false, None, 0),
        (Some("12"), false, None, 12),
    ];
    for (head, has_data, trailers, expected) in bodies {
        for is_known_empty in [!has_data && trailers.is_none(), false] {
            let store = MemoryStore::new();
            let seen = Arc::new(Mutex::new(Vec::new()));
            let keep = Arc::clone(&seen);
            let rule = rule("status").cost(4).charge_if(move |outcome| {
                keep.lock().unwrap().push(outcome.grpc_status());
                false
            });
            let inner = service_fn(move |_: Request<String>| {
                let data = has_data.then(|| Frame::data(Bytes::from_static(b"x")));
                let trailers = trailers.map(|status| {
                    let status =
                        status.map(|it| ("grpc-status".parse().unwrap(), it.parse().unwrap()));
                    Frame::trailers(status.into_iter().collect())
                });
                let frames = data.into_iter().chain(trailers).map(Ok::<_, Infallible>);
                let body = if is_known_empty {
                    http_body_util::Empty::new().boxed()
                } else {
                    StreamBody::new(tokio_stream::iter(frames.collect::<Vec<_>>())).boxed()
                };
                let response = Response::builder().header("content-type", "application/grpc");
                let response = head
                    .into_iter()
                    .fold(response, |it, status| it.header("grpc-status", status));
                std::future::ready(response.body(body))
            });
            let service = RateLimitLayer::new(&store, rule).layer(inner);
            let answer = service.oneshot(request("a")).await.unwrap();
            drop(answer.into_body().collect().await.unwrap());
            assert_eq!(*seen.lock().unwrap(), [Some(expected)]);
            assert_eq!(used(&store, "status").await, 0);
        }
    }
}

#[tokio::test]
async fn what_a_policy_let_pass_has_a_charge_without_effect() {
    let down = RedisStore::open("redis://127.0.0.1:1/").unwrap();
    let answers = Answers::default();
    let rule = Rule::from(Limit::per_hour(1)).on_failure(FailurePolicy::Allow);
    let layer = RateLimitLayer::new(&down, rule);
    let service = layer.clone().layer(layer.layer(answers.service()));
    let answer = service.clone().oneshot(request("a")).await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    assert!(answers.last().set(5));
    assert!(answers.last().rule("default").is_none());
    drop(answer);
    assert!(!answers.last().set(5));
    assert_eq!(
        (down.health().lost_charges, down.health().lost_receipts),
        (0, 0)
    );
}

/// An empty answer is over before it is sent.
#[tokio::test]
async fn an_answer_without_a_body_is_settled_at_once() {
    let store = MemoryStore::new();
    let refund = service_fn(async |request: Request<String>| {
        request.extensions().get::<Grant>().unwrap().set(0);
        Ok::<_, Infallible>(Response::new(String::new()))
    });
    let service = RateLimitLayer::new(&store, rule("empty")).layer(refund);
    let answer = service.oneshot(request("a")).await.unwrap();
    assert_eq!(used(&store, "empty").await, 0);
    drop(answer);
}

/// An answer can last longer than an idle limiter is kept.
#[tokio::test]
async fn debt_brings_back_a_limiter_that_has_vanished() {
    for way in Way::OWN {
        debt_brings_back(way).await;
    }
}

async fn debt_brings_back(way: Way) {
    let rule = |limit: Limit| way.rule(limit.by(FromHeader::new("x-key")));
    // As long as so many permits take.
    let seconds = if way == Way::Gcra { 2 } else { 1 };
    let (memory, clock) = MemoryStore::builder().max_limiters(1).build_manual();
    let layer = RateLimitLayer::new(&memory, rule(Limit::per_second(10)));
    let answers = Answers::default();
    let service = layer.layer(answers.service());
    let answer = service.clone().oneshot(request("a")).await.unwrap();
    assert!(answers.last().set(25));
    clock.advance(Duration::from_secs(5));
    assert_eq!(exchange(&service, request("b")).await, 200);
    clock.advance(Duration::from_secs(5));
    drop(answer);
    for expected in [429, 200] {
        let found = exchange(&service, request("a")).await;
        assert_eq!(found, expected, "{way:?}");
        // A window ends a millisecond later.
        clock.advance(Duration::from_millis(1000 * seconds + 1));
    }

    let prefix = unique("t");
    let redis = redis().prefix(&prefix).build().unwrap();
    let layer = RateLimitLayer::new(&redis, rule(Limit::per_hour(10)));
    let service = layer.layer(answers.service());
    let answer = service.clone().oneshot(request("a")).await.unwrap();
    assert!(answers.last().set(25));
    let limiter = layer.limiter("default", ["a"]).unwrap();
    assert!(limiter.delete().await.unwrap());
    drop(answer);
    redis.close().await;
    assert_eq!(exchange(&service, request("a")).await, 429, "{way:?}");
    let left = limiter.time_to_live().await.unwrap();
    assert!(matches!(left, TimeToLive::Left(_)), "{way:?}");
}
