//! Places in flight come back however a request ends: its body is read, dropped or broken, its
//! handler fails or panics, or its caller leaves before there is a response.

use tower_ratelimit::{Ban, Outcome};

use super::*;
use http_body::Frame;
use http_body_util::{StreamBody, combinators::BoxBody};
use tonic::codegen::tokio_stream as stream;

/// The end of a request, as its handler and its caller make it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Empty,
    Read,
    Dropped,
    Broken,
    Fails,
    Panics,
    /// Its caller leaves while the handler works
    LeftHandler,
    /// Its caller leaves while the store decides
    LeftStore,
    /// Whatever else was corrected
    Corrected,
}

use End::*;

const ENDS: [End; 9] = [
    Empty,
    Read,
    Dropped,
    Broken,
    Fails,
    Panics,
    LeftHandler,
    LeftStore,
    Corrected,
];

type Frames = BoxBody<Bytes, BoxError>;

async fn handle(end: End, request: Request<String>) -> Result<Response<Frames>, BoxError> {
    let frame = || Ok(Frame::data(Bytes::from_static(b"x")));
    let frames: Vec<Result<_, BoxError>> = match end {
        Fails => return Err("it fails".into()),
        Panics => panic!("the handler panics"),
        LeftHandler => return std::future::pending().await,
        Empty => vec![],
        Broken => vec![frame(), Err("it breaks".into())],
        Read | Dropped | LeftStore | Corrected => vec![frame(), frame()],
    };
    let mut response = Response::new(StreamBody::new(stream::iter(frames)).boxed());
    if end == Corrected {
        assert!(request.extensions().get::<Grant>().unwrap().set(7));
        response.extensions_mut().insert(Cost(3));
    }
    Ok(response)
}

on_both_stores!(places_come_back_however_a_request_ends);

async fn places_come_back_however_a_request_ends(store: impl Settles) {
    let name = unique("flight");
    let limit = Limit::in_flight(2, secs(3600));
    let rules = [
        limit.by(Constant("all")).named(&name),
        Limit::per_hour(100)
            .by(Constant("all"))
            .named(&format!("{name}-rate")),
    ];
    let layer = layer_of(&store, rules);
    let limiter = layer.limiter(&name, ["all"]).unwrap();
    for end in ENDS {
        let inner = service_fn(move |request| handle(end, request));
        let service = layer.layer(inner);
        let mut request = Box::pin(service.oneshot(request("a")));
        if end == LeftStore {
            // In memory there is nothing to wait for.
            let _ = poll(&mut request);
            settle().await;
            drop(request);
        } else if end == LeftHandler {
            until("the handler works", async || {
                assert!(poll(&mut request).is_pending());
                free(&limiter).await == 1
            })
            .await;
            drop(request);
        } else if end == Panics {
            let task = tokio::spawn(request);
            assert!(task.await.unwrap_err().is_panic());
        } else if let Ok(response) = request.await {
            let (_head, mut body) = response.into_parts();
            if end != Empty {
                assert!(body.frame().await.unwrap().is_ok());
                assert_eq!(free(&limiter).await, 1, "{end:?}");
            }
            match end {
                Dropped => drop(body),
                _ => assert_eq!(body.collect().await.is_err(), end == Broken),
            }
        }
        until(&format!("{end:?}"), async || free(&limiter).await == 2).await;
    }
}

const LIMIT: Limit = Limit::in_flight(4, secs(30));

/// What contradicts places that are given back is named when the layer is built: the rest is in
/// `known.toml`.
#[tokio::test]
async fn what_cannot_go_with_places_is_refused() {
    let store = MemoryStore::builder().redisson().build();
    let rule = || LIMIT.by(Constant("all")).named("render");
    let build = |rule: Rule| RateLimitLayer::builder(&store).otherwise(rule).build();
    let ban = Ban::after(3).within(secs(60)).lasting(secs(60));
    for (rule, says) in [
        (
            rule().charge_if(Outcome::is_success),
            "\"render\" counts 4 in flight/30s: each place comes back",
        ),
        (
            rule().ban(ban),
            "\"render\" counts 4 in flight/30s: its callers are to ask again",
        ),
    ] {
        mistake(build(rule), ConfigErrorKind::Limit, says);
    }
    let all = rule().wait(SECOND).cost(2).unit("renders");
    assert!(build(all.hide_headers().shadow()).is_ok());

    let named = || LIMIT.named("render");
    let says = "\"render\" counts 4 in flight/30s: ";
    mistake(
        named().ban(ban).single(&store),
        ConfigErrorKind::Limit,
        says,
    );
    let limiter = named().single(&store).unwrap();
    mistake(limiter.clone().slots(10), ConfigErrorKind::Limit, says);
    let error = limiter.lease(millis(100)).unwrap_err();
    assert!(
        error
            .reason()
            .ends_with("a place that nothing holds would be taken")
    );
    let by_name = RateLimiter::new(&store, &unique("render")).unwrap();
    fails(by_name.try_set_rate(LIMIT).await, ErrorKind::Limit);

    // A limit that only requests say is checked with them.
    let limit = limit_by(|_: &Parts| LIMIT);
    for (rule, status) in [
        (Rule::new("by", limit.clone(), Constant("all")), 200),
        (
            Rule::new("by", limit, Constant("all")).algorithm(Algorithm::Gcra),
            503,
        ),
    ] {
        let layer = RateLimitLayer::new(&MemoryStore::new(), rule);
        assert_eq!(send(&layer, request("a")).await.status(), status);
    }
}

/// A shadow rule counts as well, and tiers have their own places.
#[tokio::test]
async fn shadows_and_tiers_have_places() {
    let store = MemoryStore::new();
    let tiers = [("free", Limit::in_flight(1, secs(60))), ("paid", LIMIT)];
    let tiers = Tiers::new(tiers, |parts: &Parts| {
        if parts.headers["x-key"] == "paid" {
            "paid"
        } else {
            "free"
        }
    });
    let rules = [
        Rule::new("tiers", tiers, Constant("all")),
        Limit::in_flight(1, secs(60))
            .by(Constant("all"))
            .named("shade")
            .shadow(),
    ];
    let layer = layer_of(&store, rules);
    let free_of = async |rule: &str| free(&layer.limiter(rule, ["all"]).unwrap()).await;
    let service = layer.layer(service_fn(|request| handle(Read, request)));
    let answer = async |key: &str| service.clone().oneshot(request(key)).await.unwrap();
    let held = [
        answer("free").await,
        answer("paid").await,
        answer("paid").await,
    ];
    assert_eq!(answer("free").await.status(), 429);
    assert_eq!(
        (free_of("tiers.free").await, free_of("tiers.paid").await),
        (0, 2)
    );
    assert_eq!(free_of("shade").await, 0);
    drop(held);
    assert_eq!(
        (free_of("tiers.free").await, free_of("tiers.paid").await),
        (1, 4)
    );
    assert_eq!(free_of("shade").await, 1);
}

/// A place may come back, and an hour's quota does not.
#[tokio::test]
async fn a_place_beside_a_quota_that_is_spent_makes_no_one_wait() {
    for is_shadow in [true, false] {
        let place = Limit::in_flight(1, secs(600))
            .by(Constant("all"))
            .named("place");
        let place = if is_shadow { place.shadow() } else { place };
        let quota = Limit::per_hour(1).by(Constant("all")).named("quota");
        let layer = RateLimitLayer::builder(&MemoryStore::new()).otherwise([place, quota]);
        let layer = layer.wait(secs(60)).build().unwrap();
        let service = layer.layer(service_fn(|it| handle(Read, it)));
        let answer = || service.clone().oneshot(request("a"));
        let held = answer().await.unwrap();
        let refused = tokio::time::timeout(secs(30), answer()).await;
        assert_eq!(refused.expect("no wait").unwrap().status(), 429);
        drop(held);
    }
}
