//! Who is compared, each set as its documentation advises, in a file of its own.

mod axum_governor;
mod bucket4j;
mod governor;
mod limitador;
mod ours;
mod process;
mod rate_limiter_flexible;
mod redisson;
mod throttle_kit;
mod tower_governor;
mod tower_rate_limit_redis;
mod tower_rate_limiter;
mod tower_redis_cell;
mod tower_resilience;
mod trypema;

use std::sync::Arc;

use tower::layer::util::Stack;

use crate::{
    contest::{Around, Bare, BoxFuture, Guarded, Layered, Limit, stacked},
    work::Contestant,
};

/// A contestant, as it is built and what is known of it.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) name: &'static str,
    pub(crate) package: &'static str,
    /// None where it is that of Cargo.lock.
    pub(crate) version: Option<&'static str>,
    pub(crate) state: State,
    pub(crate) form: Form,
    pub(crate) promise: Promise,
    /// Whether it has keys; else all requests count together.
    pub(crate) keyed: bool,
    /// Whether a request can cost more than one permit.
    pub(crate) weighs: bool,
    /// The commands that it sends, as opposed to those of its scripts.
    pub(crate) sends: &'static [&'static str],
    /// Those whose calls add up to what it sends, where its scripts call what it sends, too; else
    /// none.
    pub(crate) counted: &'static [&'static str],
    /// Why it cannot be measured here.
    pub(crate) missing: fn() -> Option<String>,
    pub(crate) build: fn(Vec<Limit>, Place) -> Built,
}

/// Ready to be asked, or none where that cannot be.
pub(crate) type Built = BoxFuture<'static, Option<Arc<dyn Contestant>>>;

/// Where it keeps what it has counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Process,
    Redis,
}

/// How it is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// A request through its layer, and an answer
    Layer,
    /// A call, with neither
    Call,
}

/// What its documentation promises of one interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Promise {
    /// At most the limit in any interval
    Interval,
    /// A token bucket: at most twice the limit
    Bucket,
    /// A fixed window: at most twice the limit, around an edge
    Window,
    /// It says itself that it may exceed the limit.
    Estimate,
}

/// The server, and a name that no other contestant's keys contain.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) url: String,
    pub(crate) label: String,
}

impl Entry {
    const NONE: Self = Self {
        name: "",
        package: "",
        version: None,
        state: State::Redis,
        form: Form::Layer,
        promise: Promise::Interval,
        keyed: true,
        weighs: false,
        sends: &[],
        counted: &[],
        missing: || None,
        build: |_, _| Box::pin(async { None }),
    };

    pub(crate) fn on_redis(&self) -> bool {
        self.state == State::Redis
    }

    /// Its name as users' names can begin with it.
    pub(crate) fn label(&self) -> String {
        self.name.replace([' ', ','], "")
    }

    /// Builds it, which `missing` has said to be possible.
    pub(crate) async fn built(
        &self,
        limits: &[Limit],
        url: &str,
        label: &str,
    ) -> Arc<dyn Contestant> {
        let place = Place {
            url: url.to_owned(),
            label: label.to_owned(),
        };
        (self.build)(limits.to_vec(), place)
            .await
            .expect("what it needs is there")
    }
}

/// This crate first, then by where they count.
pub(crate) fn all() -> Vec<Entry> {
    [
        &ours::ENTRIES[..2],
        &tower_governor::ENTRIES,
        &axum_governor::ENTRIES,
        &throttle_kit::ENTRIES[..1],
        &tower_resilience::ENTRIES,
        &governor::ENTRIES,
        &limitador::ENTRIES,
        &trypema::ENTRIES[..1],
        &ours::ENTRIES[2..],
        &tower_rate_limiter::ENTRIES,
        &tower_rate_limit_redis::ENTRIES,
        &tower_redis_cell::ENTRIES,
        &throttle_kit::ENTRIES[1..],
        &trypema::ENTRIES[1..],
        &redisson::ENTRIES,
        &bucket4j::ENTRIES,
        &rate_limiter_flexible::ENTRIES,
    ]
    .concat()
}

fn contestant(built: impl Contestant + 'static) -> Option<Arc<dyn Contestant>> {
    Some(Arc::new(built))
}

/// One layer, or three of them around each other.
fn layers<L>(mut layers: Vec<L>) -> Option<Arc<dyn Contestant>>
where
    L: Around<Bare> + Around<Guarded>,
    Stack<Stack<L, L>, L>: Around<Bare> + Around<Guarded>,
{
    match layers.len() {
        1 => contestant(Layered::new(layers.remove(0))),
        _ => contestant(Layered::new(stacked(layers))),
    }
}
