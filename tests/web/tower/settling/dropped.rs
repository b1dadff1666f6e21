//! The final charge of a request wherever it is dropped, and bodies that are read.

use super::*;
use http_body::{Frame, SizeHint};

/// A handler's call on its charge.
#[derive(Clone, Copy, Debug)]
enum Word {
    Set(u32),
    Add(u32),
    Refund,
    Nothing,
}

impl Word {
    fn say(self, charge: &Grant) -> bool {
        match self {
            Self::Set(permits) => charge.set(permits),
            Self::Add(permits) => charge.add(permits),
            Self::Refund => charge.set(0),
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
#[derive(Clone, Debug, Default)]
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
struct Course {
    charge: Option<Grant>,
    said: Option<u32>,
    answered: bool,
    /// Set if the charge was closed while its response, read to the end, was still kept.
    closed: bool,
}

/// A body that pauses before each frame.
struct Stream {
    play: Play,
    seen: Arc<Mutex<Course>>,
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
fn perform(play: &Play) -> (Course, u64) {
    let store = MemoryStore::new();
    let mut limited = rule("play").cost(play.taken);
    if play.counts_failures {
        limited = limited.charge_if(|outcome| !outcome.is_success());
    }
    let seen = Arc::new(Mutex::new(Course::default()));
    let (recorded, acted) = (Arc::clone(&seen), play.clone());
    let inner = service_fn(move |request: Request<String>| {
        let (play, seen) = (acted.clone(), Arc::clone(&recorded));
        async move {
            let charge = request.extensions().get::<Grant>().unwrap().clone();
            seen.lock().unwrap().charge = Some(charge.clone());
            for word in &play.before {
                tokio::task::yield_now().await;
                assert!(word.say(&charge));
                let mut seen = seen.lock().unwrap();
                seen.said = word.foresee(seen.said, play.taken);
            }
            seen.lock().unwrap().answered = true;
            let success = play.success;
            let cost = play.cost;
            let mut response = Response::new(stream(play, seen));
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
        for _ in 0..play.polls {
            if poll(&mut exchange).is_ready() {
                break;
            }
        }
    }
    let limiter = RateLimiter::new(&store, "play").unwrap();
    let Poll::Ready(left) = poll(&mut pin!(limiter.available_permits())) else {
        panic!("a store in memory answers at once")
    };
    let left = left.map_or(0, |left| ALL - left);
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
            prop_assert!(!charge.set(77) && !charge.add(1) && !charge.set(0), "it is over");
        }
    }

    #[test]
    fn a_body_that_was_read_is_settled_while_it_is_still_kept(play in play()) {
        let polls = play.before.len() + play.during.len() + 3;
        let (seen, _) = perform(&Play { polls, ..play });
        prop_assert!(seen.closed);
    }
}

/// gRPC's answers end with trailers, and clients go by what the body says of itself.
#[tokio::test]
async fn a_body_says_of_itself_what_the_inner_one_says() {
    let play = |trailers, knows_its_end| Play {
        taken: 1,
        during: vec![Word::Nothing; 2],
        trailers,
        knows_its_end,
        success: true,
        ..Play::default()
    };
    let with = |charge| {
        let seen = Course {
            charge,
            ..Course::default()
        };
        Arc::new(Mutex::new(seen))
    };
    for (trailers, knows_its_end) in [(false, false), (false, true), (true, false), (true, true)] {
        let kept = Arc::new(Mutex::new(None));
        let keep = Arc::clone(&kept);
        let inner = service_fn(move |request: Request<String>| {
            let charge = request.extensions().get::<Grant>().cloned();
            *keep.lock().unwrap() = charge.clone();
            let body = stream(play(trailers, knows_its_end), with(charge));
            std::future::ready(Ok::<_, Infallible>(Response::new(body)))
        });
        let service = RateLimitLayer::new(&MemoryStore::new(), rule("kept")).layer(inner);
        let mut wrapped = service.oneshot(request("a")).await.unwrap().into_body();
        let charge = kept.lock().unwrap().clone();
        let mut bare = stream(play(trailers, knows_its_end), with(charge.clone()));
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

fn stream(play: Play, seen: Arc<Mutex<Course>>) -> Stream {
    Stream {
        play,
        seen,
        place: 0,
        paused: false,
    }
}
