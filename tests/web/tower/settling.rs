//! The final charge of a request: by its handler, by its response, and wherever it is dropped.

use crate::scene::*;
use std::future::poll_fn;

use bytes::Bytes;
use http::HeaderValue;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use proptest::prelude::*;
use tower::Service;
use tower_ratelimit::{Cost, Outcome};

use super::{Inner, redis, request, status};

const ALL: u64 = 100_000;

/// A rule on a limiter that can be asked what is left of it.
fn rule(limiter: &str) -> Rule {
    Rule::shared(limiter).or_init(Limit::per_hour(ALL))
}

async fn used(store: &impl Store, limiter: &str) -> u64 {
    let limiter = RateLimiter::new(store, limiter).unwrap();
    ALL - limiter.available_permits().await.unwrap()
}

/// Pending once, without a runtime.
async fn pause() {
    let mut paused = false;
    poll_fn(|cx| {
        if paused {
            return Poll::Ready(());
        }
        paused = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// A handler's call on its charge.
#[derive(Clone, Copy, Debug)]
enum Word {
    Set(u32),
    Add(u32),
    Refund,
    Nothing,
}

impl Word {
    fn say(self, charge: &Charge) -> bool {
        match self {
            Self::Set(permits) => charge.set(permits),
            Self::Add(permits) => charge.add(permits),
            Self::Refund => charge.refund(),
            Self::Nothing => true,
        }
    }

    fn foresee(self, said: Option<u32>, taken: u32) -> Option<u32> {
        match self {
            Self::Set(permits) => Some(permits),
            Self::Add(permits) => Some(said.unwrap_or(taken) + permits),
            Self::Refund => Some(0),
            Self::Nothing => said,
        }
    }
}

/// The course of a request: how it is answered, and the calls on its charge.
#[derive(Clone, Debug)]
struct Play {
    taken: u32,
    before: Vec<Word>,
    /// One frame for each, said before it.
    during: Vec<Word>,
    trailers: bool,
    /// Set if the body knows that its last frame was the last
    knows_its_end: bool,
    success: bool,
    cost: Option<u32>,
    counts_failures: bool,
    /// After how many polls the caller hangs up
    polls: usize,
}

/// The observed course.
#[derive(Default)]
struct Seen {
    charge: Option<Charge>,
    said: Option<u32>,
    answered: bool,
    /// Set if the charge was closed while its response, read to the end, was still kept.
    closed: bool,
}

/// A body that pauses before each frame.
struct Stream {
    play: Play,
    seen: Arc<Mutex<Seen>>,
    place: usize,
    paused: bool,
}

impl Body for Stream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if !self.paused {
            self.paused = true;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.paused = false;
        let place = self.place;
        self.place += 1;
        let frames = self.play.during.len();
        let mut seen = self.seen.lock().unwrap();
        let Some(word) = self.play.during.get(place) else {
            if place == frames && self.play.trailers {
                return Poll::Ready(Some(Ok(Frame::trailers(HeaderMap::new()))));
            }
            return Poll::Ready(None);
        };
        let charge = seen.charge.clone().unwrap();
        assert!(word.say(&charge), "the answer is not over");
        seen.said = word.foresee(seen.said, self.play.taken);
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"x")))))
    }

    fn is_end_stream(&self) -> bool {
        self.play.knows_its_end && !self.play.trailers && self.place >= self.play.during.len()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.play.during.len().saturating_sub(self.place) as u64)
    }
}

/// Sends one request, disconnects if the play says so, and returns the course and the charge.
fn perform(play: &Play) -> (Seen, u64) {
    let store = MemoryStore::new();
    let mut limited = rule("play").cost(play.taken);
    if play.counts_failures {
        limited = limited.charge_if(|outcome| !outcome.is_success());
    }
    let seen = Arc::new(Mutex::new(Seen::default()));
    let (recorded, acted) = (Arc::clone(&seen), play.clone());
    let inner = service_fn(move |request: Request<String>| {
        let (play, seen) = (acted.clone(), Arc::clone(&recorded));
        async move {
            let charge = request.extensions().get::<Charge>().unwrap().clone();
            seen.lock().unwrap().charge = Some(charge.clone());
            for word in &play.before {
                pause().await;
                assert!(word.say(&charge));
                let mut seen = seen.lock().unwrap();
                seen.said = word.foresee(seen.said, play.taken);
            }
            seen.lock().unwrap().answered = true;
            let success = play.success;
            let cost = play.cost;
            let mut response = Response::new(Stream {
                play,
                seen,
                place: 0,
                paused: false,
            });
            if !success {
                *response.status_mut() = StatusCode::UNAUTHORIZED;
            }
            if let Some(cost) = cost {
                response.extensions_mut().insert(Cost(cost));
            }
            Ok::<_, Infallible>(response)
        }
    });
    let mut service = RateLimitLayer::new(&store, limited).layer(inner);
    {
        let mut exchange = pin!(async {
            let answer = service.call(request("a")).await.unwrap();
            let mut body = pin!(answer.into_body());
            while let Some(frame) = body.frame().await {
                frame.unwrap();
            }
            let mut seen = seen.lock().unwrap();
            seen.closed = seen.charge.as_ref().is_some_and(|charge| !charge.set(77));
        });
        let mut cx = Context::from_waker(Waker::noop());
        for _ in 0..play.polls {
            if exchange.as_mut().poll(&mut cx).is_ready() {
                break;
            }
        }
    }
    let limiter = RateLimiter::new(&store, "play").unwrap();
    let left = match pin!(limiter.available_permits()).poll(&mut Context::from_waker(Waker::noop()))
    {
        Poll::Ready(left) => left.map_or(0, |left| ALL - left),
        Poll::Pending => panic!("a store in memory answers at once"),
    };
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    (seen, left)
}

fn word() -> impl Strategy<Value = Word> {
    prop_oneof![
        (0u32..20).prop_map(Word::Set),
        (0u32..20).prop_map(Word::Add),
        Just(Word::Refund),
        Just(Word::Nothing),
    ]
}

prop_compose! {
    fn play()(
        taken in 1u32..9,
        before in proptest::collection::vec(word(), 0..4),
        during in proptest::collection::vec(word(), 0..4),
        (trailers, knows_its_end, success) in any::<(bool, bool, bool)>(),
        (cost, counts_failures) in (proptest::option::of(0u32..30), any::<bool>()),
    ) -> Play {
        Play { taken, before, during, trailers, knows_its_end, success, cost, counts_failures, polls: 0 }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn wherever_a_request_is_dropped_what_was_said_by_then_is_charged(play in play()) {
        // One poll more than there are places to pause at.
        for polls in 0..=play.before.len() + play.during.len() + 3 {
            let play = Play { polls, ..play.clone() };
            let (seen, charged) = perform(&play);
            if polls == 0 {
                prop_assert_eq!(charged, 0, "not sent");
                continue;
            }
            let by_status = play.counts_failures && play.success;
            let answer = play.cost.or(by_status.then_some(0)).filter(|_| seen.answered);
            let expected = seen.said.or(answer).unwrap_or(play.taken);
            prop_assert_eq!(charged, u64::from(expected), "{:?}", play);
            let charge = seen.charge.unwrap();
            prop_assert!(!charge.set(77) && !charge.add(1) && !charge.refund(), "it is over");
        }
    }

    #[test]
    fn a_body_that_was_read_is_settled_while_it_is_still_kept(play in play()) {
        let polls = play.before.len() + play.during.len() + 3;
        let (seen, _) = perform(&Play { polls, ..play });
        prop_assert!(seen.closed);
    }
}

/// Answers with what the `x-answer` header of a request says, and keeps the charges.
#[derive(Clone, Default)]
struct Answers(Arc<Mutex<Vec<Charge>>>);

impl Answers {
    fn service(
        &self,
    ) -> impl Service<Request<String>, Response = Response<String>, Error = Infallible, Future: Send>
    + Clone
    + use<> {
        let charges = Arc::clone(&self.0);
        service_fn(move |request: Request<String>| {
            let charge = request.extensions().get::<Charge>().cloned();
            charges.lock().unwrap().extend(charge);
            let mut response = Response::new("body".to_owned());
            if let Some(answer) = request.headers().get("x-answer") {
                *response.status_mut() = StatusCode::from_bytes(answer.as_bytes()).unwrap();
            }
            if let Some(cost) = request.headers().get("x-cost") {
                let cost = cost.to_str().unwrap().parse().unwrap();
                response.extensions_mut().insert(Cost(cost));
            }
            std::future::ready(Ok(response))
        })
    }

    fn last(&self) -> Charge {
        self.0.lock().unwrap().last().unwrap().clone()
    }
}

fn answered(name: &'static str, value: &'static str) -> Request<String> {
    let mut request = request("a");
    request
        .headers_mut()
        .insert(name, HeaderValue::from_static(value));
    request
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

on_both_stores!(
    only_failed_logins_count,
    a_handlers_cost_is_charged,
    what_was_used_beyond_the_limit_is_paid_by_those_who_come,
);

async fn only_failed_logins_count(store: impl Settles) {
    let failures = Limit::per_hour(2)
        .by(FromHeader::new("x-key"))
        .named("login")
        .charge_if(|outcome: &Outcome| outcome.status() == StatusCode::UNAUTHORIZED);
    let answers = Answers::default();
    let service = RateLimitLayer::new(&store, failures).layer(answers.service());
    for (answer, expected) in [
        ("200", 200),
        ("200", 200),
        ("401", 401),
        ("503", 503),
        ("200", 200),
        ("401", 401),
        ("200", 429),
    ] {
        let status = exchange(&service, answered("x-answer", answer)).await;
        assert_eq!(status.as_u16(), expected, "{answer}");
        store.settled().await;
    }
}

async fn a_handlers_cost_is_charged(store: impl Settles) {
    let name = unique("cost");
    let layer = RateLimitLayer::new(&store, rule(&name).cost(10));
    let service = layer.layer(Answers::default().service());
    for (cost, expected) in [("10", 10), ("3", 13), ("0", 13), ("50", 63)] {
        exchange(&service, answered("x-cost", cost)).await;
        store.settled().await;
        assert_eq!(used(&store, &name).await, expected, "{cost}");
    }
    assert_eq!(exchange(&service, request("a")).await, StatusCode::OK);
    assert_eq!(used(&store, &name).await, 73, "nothing was said");
}

async fn what_was_used_beyond_the_limit_is_paid_by_those_who_come(store: impl Settles) {
    let layer = RateLimitLayer::new(&store, Limit::per_hour(5).by(FromHeader::new("x-key")));
    let service = layer.layer(Answers::default().service());
    assert_eq!(
        exchange(&service, answered("x-cost", "500")).await,
        StatusCode::OK
    );
    store.settled().await;
    assert_eq!(
        exchange(&service, request("a")).await,
        StatusCode::TOO_MANY_REQUESTS
    );
    assert_eq!(exchange(&service, request("b")).await, StatusCode::OK);
}

#[tokio::test]
async fn one_layer_that_is_met_twice_charges_once() {
    let (memory, redis) = (MemoryStore::new(), redis().build().unwrap());
    for (layer, other) in [
        (
            RateLimitLayer::new(&memory, rule("twice").cost(7)),
            RateLimitLayer::new(&memory, rule("twice").cost(7)),
        ),
        (
            RateLimitLayer::new(&redis, rule("twice").cost(7)),
            RateLimitLayer::new(&redis, rule("twice").cost(7)),
        ),
    ] {
        let answers = Answers::default();
        let nested = layer.clone().layer(layer.layer(answers.service()));
        let twice = other.layer(nested);
        // Another layer of the same rule charges no more.
        for left in [ALL - 7, ALL - 14] {
            let answer = twice.clone().oneshot(request("a")).await.unwrap();
            let extensions = answer.extensions();
            assert!(extensions.get::<tower_ratelimit::Decisions>().is_none());
            let decision = extensions.get::<Decision>().unwrap();
            assert_eq!(decision.limits().next().unwrap().remaining(), Some(left));
        }
    }
}

/// An answer that is over lets its request be sent on as a new one.
#[tokio::test]
async fn the_same_request_after_its_answer_is_another() {
    let store = MemoryStore::new();
    let layer = RateLimitLayer::new(&store, rule("again"));
    let kept = Arc::new(Mutex::new(None));
    let keep = Arc::clone(&kept);
    let service = layer.layer(service_fn(move |request: Request<String>| {
        *keep.lock().unwrap() = Some(request.into_parts().0.extensions);
        std::future::ready(Ok::<_, Infallible>(Response::new(String::new())))
    }));
    exchange(&service, request("a")).await;
    let mut again = request("a");
    *again.extensions_mut() = kept.lock().unwrap().take().unwrap();
    exchange(&service, again).await;
    assert_eq!(used(&store, "again").await, 2);
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

    let answer = service
        .clone()
        .oneshot(answered("x-cost", "0"))
        .await
        .unwrap();
    assert!(answer.extensions().get::<Cost>().is_none(), "it was taken");
    drop(answer);
    assert_eq!(used(&store, "inner").await, 10);
    assert_eq!(used(&store, "outer").await, 12);
}

#[tokio::test]
async fn a_service_that_fails_is_charged() {
    let store = MemoryStore::new();
    let rule = rule("fails").cost(4).charge_if(|_| false);
    let broken = service_fn(async |request: Request<String>| {
        let charge = request.extensions().get::<Charge>().unwrap().clone();
        if request.headers().contains_key("x-cost") {
            charge.set(9);
        }
        Err::<Response<String>, _>("broken")
    });
    let mut service = RateLimitLayer::new(&store, rule).layer(broken);
    let mut kept = pin!(service.call(request("a")));
    assert!(kept.as_mut().await.is_err());
    assert_eq!(used(&store, "fails").await, 4);
    let mut kept = pin!(service.call(answered("x-cost", "")));
    assert!(kept.as_mut().await.is_err());
    // It is over, though its future is still here.
    assert_eq!(used(&store, "fails").await, 13);
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
    assert_eq!((down.lost_charges(), down.lost_receipts()), (0, 0));
}

/// gRPC's answers end with trailers, and clients go by what the body says of itself.
#[tokio::test]
async fn a_body_says_of_itself_what_the_inner_one_says() {
    let play = |trailers, knows_its_end| Play {
        taken: 1,
        before: vec![],
        during: vec![Word::Nothing; 2],
        trailers,
        knows_its_end,
        success: true,
        cost: None,
        counts_failures: false,
        polls: 0,
    };
    for (trailers, knows_its_end) in [(false, false), (false, true), (true, false), (true, true)] {
        let kept = Arc::new(Mutex::new(None));
        let keep = Arc::clone(&kept);
        let store = MemoryStore::new();
        let service = RateLimitLayer::new(&store, rule("kept")).layer(service_fn(
            move |request: Request<String>| {
                let charge = request.extensions().get::<Charge>().cloned();
                *keep.lock().unwrap() = charge.clone();
                std::future::ready(Ok::<_, Infallible>(Response::new(stream(
                    play(trailers, knows_its_end),
                    charge,
                ))))
            },
        ));
        let mut wrapped = service.oneshot(request("a")).await.unwrap().into_body();
        let charge = kept.lock().unwrap().clone();
        let mut bare = stream(play(trailers, knows_its_end), charge.clone());
        loop {
            assert_eq!(wrapped.is_end_stream(), bare.is_end_stream());
            if wrapped.is_end_stream() {
                let charge = charge.as_ref().unwrap();
                assert!(!charge.set(0), "servers may drop it without a further poll");
            }
            assert_eq!(wrapped.size_hint().exact(), bare.size_hint().exact());
            // The bare one first: it may not speak when the answer is over.
            let (one, other) = (bare.frame().await, wrapped.frame().await);
            let (Some(one), Some(other)) = (one, other) else {
                break;
            };
            let (one, other) = (one.unwrap(), other.unwrap());
            assert_eq!(one.data_ref(), other.data_ref());
            assert_eq!(one.trailers_ref(), other.trailers_ref());
        }
        assert!(!charge.unwrap().set(0), "over, though the body is kept");
        drop(wrapped);
    }
}

fn stream(play: Play, charge: Option<Charge>) -> Stream {
    Stream {
        play,
        seen: Arc::new(Mutex::new(Seen {
            charge,
            ..Seen::default()
        })),
        place: 0,
        paused: false,
    }
}

/// An empty answer is over before it is sent.
#[tokio::test]
async fn an_answer_without_a_body_is_settled_at_once() {
    let store = MemoryStore::new();
    let refund = service_fn(async |request: Request<String>| {
        request.extensions().get::<Charge>().unwrap().refund();
        Ok::<_, Infallible>(Response::new(String::new()))
    });
    let service = RateLimitLayer::new(&store, rule("empty")).layer(refund);
    let answer = service.oneshot(request("a")).await.unwrap();
    assert_eq!(used(&store, "empty").await, 0);
    drop(answer);
}

/// Without the response, it is unknown whether the request counts.
#[tokio::test]
async fn a_dropped_request_stays_charged_whatever_counts() {
    let store = MemoryStore::new();
    let inner = Inner {
        pauses: 3,
        ..Inner::default()
    };
    let service = RateLimitLayer::new(&store, rule("dropped").charge_if(|_| false)).layer(inner);
    for polls in 1..4 {
        assert!(
            super::polled(service.clone().oneshot(request("a")), polls)
                .await
                .is_none()
        );
        assert_eq!(used(&store, "dropped").await, polls as u64);
    }
    assert_eq!(status(&service, request("a")).await, StatusCode::OK);
    assert_eq!(used(&store, "dropped").await, 3);
}

/// An answer can last longer than an idle limiter is kept.
#[tokio::test]
async fn debt_brings_back_a_limiter_that_has_vanished() {
    for (algorithm, slots, seconds) in [
        (Algorithm::SlidingLog, None, 1),
        (Algorithm::FixedWindow, None, 1),
        // As long as so many permits take.
        (Algorithm::Gcra, None, 2),
        (Algorithm::SlidingLog, Some(1000), 1),
    ] {
        debt_brings_back(algorithm, slots, seconds).await;
    }
}

async fn debt_brings_back(algorithm: Algorithm, slots: Option<u32>, seconds: u64) {
    let noted = |rule: Rule| match slots {
        Some(slots) => rule.slots(slots),
        None => rule,
    };
    let clock = ManualClock::new();
    let memory = MemoryStore::new().clock(clock.clone()).max_limiters(1);
    let layer = RateLimitLayer::new(
        &memory,
        noted(
            Limit::per_second(10)
                .by(FromHeader::new("x-key"))
                .algorithm(algorithm),
        ),
    );
    let answers = Answers::default();
    let service = layer.layer(answers.service());
    let answer = service.clone().oneshot(request("a")).await.unwrap();
    assert!(answers.last().set(25));
    clock.advance(Duration::from_secs(5));
    assert_eq!(exchange(&service, request("b")).await, StatusCode::OK);
    clock.advance(Duration::from_secs(5));
    drop(answer);
    for expected in [StatusCode::TOO_MANY_REQUESTS, StatusCode::OK] {
        assert_eq!(exchange(&service, request("a")).await, expected);
        // A window ends a millisecond later.
        clock.advance(Duration::from_millis(1000 * seconds + 1));
    }

    let prefix = unique("t");
    let redis = redis().prefix(&prefix).build().unwrap();
    let layer = RateLimitLayer::new(
        &redis,
        noted(
            Limit::per_hour(10)
                .by(FromHeader::new("x-key"))
                .algorithm(algorithm),
        ),
    );
    let service = layer.layer(answers.service());
    let answer = service.clone().oneshot(request("a")).await.unwrap();
    assert!(answers.last().set(25));
    let limiter = RateLimiter::new(&redis, &format!("{prefix}:{{a}}:default"));
    let limiter = limiter.unwrap().algorithm(algorithm);
    assert!(limiter.delete().await.unwrap());
    drop(answer);
    redis.close().await;
    assert_eq!(exchange(&service, request("a")).await, 429);
    assert!(matches!(
        limiter.time_to_live().await.unwrap(),
        TimeToLive::Left(_)
    ));
}
