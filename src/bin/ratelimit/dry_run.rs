//! A real layer whose clock its requests move, and what its rules do: [`DryRun`].

use std::{
    collections::HashMap,
    convert::Infallible,
    future::{Ready, ready},
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::Duration,
};

use http::{Request, Response};
use tower_layer::Layer;
use tower_ratelimit::{
    ConfigError, Limit, MemoryStore, MemoryStoreBuilder, RateLimit, RateLimitLayer, Rules,
    observe::{Decided, Observer, RequestResult, RuleResult},
    testing::ManualClock,
};
use tower_service::Service;

/// The requests after which idle limiters are dropped: a pass over all limiters costs little more
/// than as many requests.
const FORGET_EVERY: u64 = 1 << 16;

/// The effect of the rules of a file.
#[derive(Debug, Default)]
pub(crate) struct Effect {
    /// The requests that did not pass.
    pub(crate) refused: u64,
    /// The requests that would wait for permits.
    pub(crate) waiting: u64,
    pub(crate) rules: Vec<RuleEffect>,
    /// The result of the last request.
    pub(crate) last: Option<RequestResult>,
}

#[derive(Debug, Default)]
pub(crate) struct RuleEffect {
    pub(crate) name: String,
    /// `None` if it is the store's, or no request had the key.
    pub(crate) limit: Option<Limit>,
    pub(crate) shadow: bool,
    /// The permits that the last request asked for.
    pub(crate) cost: u32,
    pub(crate) met: u64,
    pub(crate) refused: u64,
    pub(crate) shadow_refused: u64,
    pub(crate) without_key: u64,
    /// Its callers by their hashes, and whether it refused them, or would have.
    pub(crate) callers: HashMap<u64, bool>,
}

impl RuleEffect {
    /// Returns its limit as rules write it.
    pub(crate) fn limit(&self) -> String {
        self.limit.map_or("?".to_owned(), |it| it.to_string())
    }

    /// Returns the number of callers that it refused, or would have.
    pub(crate) fn touched(&self) -> u64 {
        self.callers.values().filter(|touched| **touched).count() as u64
    }
}

/// Returns whether a request was not let through.
pub(crate) fn is_refused(result: RequestResult) -> bool {
    use RequestResult::{Allow, AllowedByList, Cancelled, NoRule, Preflight};
    !matches!(
        result,
        Allow | NoRule | AllowedByList | Preflight | Cancelled
    )
}

#[derive(Debug, Default)]
struct Recorder(Mutex<Effect>);

impl Recorder {
    fn lock(&self) -> MutexGuard<'_, Effect> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for Recorder {
    fn decided(&self, event: &Decided<'_>) {
        let mut effect = self.lock();
        effect.last = Some(event.result);
        effect.refused += u64::from(is_refused(event.result));
        effect.waiting += u64::from(event.result == RequestResult::Cancelled);
        for met in event.rules {
            let name = met.rule.unwrap_or_default();
            let at = effect.rules.iter().position(|row| row.name == name);
            let at = at.unwrap_or(effect.rules.len());
            if at == effect.rules.len() {
                effect.rules.push(RuleEffect::default());
            }
            let row = &mut effect.rules[at];
            name.clone_into(&mut row.name);
            row.limit = met.limit.or(row.limit);
            (row.shadow, row.cost) = (met.shadow, met.permits);
            row.met += 1;
            if met.result == RuleResult::MissingKey {
                row.without_key += 1;
                continue;
            }
            let in_shadow = [RuleResult::ShadowDeny, RuleResult::ShadowBanned];
            let refused = [met.result.is_refusal(), in_shadow.contains(&met.result)];
            row.refused += u64::from(refused[0]);
            row.shadow_refused += u64::from(refused[1]);
            *row.callers.entry(met.key_hash()).or_default() |= refused != [false; 2];
        }
    }
}

/// The service behind the layer: it answers as the log says.
#[derive(Clone)]
struct Logged;

impl Service<Request<()>> for Logged {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<()>) -> Self::Future {
        let mut response = Response::new(String::new());
        *response.status_mut() = request.extensions().get().copied().unwrap_or_default();
        ready(Ok(response))
    }
}

/// A real layer, whose clock the requests move.
pub(crate) struct DryRun {
    pub(crate) layer: RateLimitLayer,
    service: RateLimit<Logged>,
    store: MemoryStore,
    sent: u64,
    clock: ManualClock,
    recorder: Arc<Recorder>,
}

impl DryRun {
    /// Makes the layer. It is not known for which store the rules are: they count in our own
    /// format, or in Redisson's if one of them needs that, as for slots.
    pub(crate) fn new(rules: Rules) -> Result<Self, ConfigError> {
        let in_own = Self::on(rules.clone(), MemoryStore::builder());
        in_own.or_else(|error| {
            // No file asks for Redisson's format: its errors would be about what is not written.
            Self::on(rules, MemoryStore::builder().redisson()).map_err(|_| error)
        })
    }

    fn on(rules: Rules, store: MemoryStoreBuilder) -> Result<Self, ConfigError> {
        let clock = ManualClock::new();
        clock.set(Duration::ZERO);
        // No bound, and so no estimates: each caller is counted exactly.
        let store = store.max_limiters(usize::MAX).clock(clock.clone());
        // Names are those that a service gives them in Redis.
        let store = store.prefix("ratelimit").build();
        let recorder = Arc::new(Recorder::default());
        let layer = RateLimitLayer::builder(&store)
            .rules(rules)
            .headers([])
            .count_remaining(false)
            .observe(Arc::clone(&recorder) as Arc<dyn Observer>)
            .build()?;
        Ok(Self {
            service: layer.layer(Logged),
            layer,
            store,
            sent: 0,
            clock,
            recorder,
        })
    }

    /// Sends a request; times do not fall. One that would wait for permits leaves at once, and is
    /// [`Cancelled`](RequestResult::Cancelled).
    pub(crate) fn send(&mut self, time: Duration, request: Request<()>) -> RequestResult {
        self.clock.set(time);
        self.sent += 1;
        if self.sent.is_multiple_of(FORGET_EVERY) {
            self.store.forget_idle();
        }
        {
            let answer = pin!(self.service.call(request));
            // A response that is dropped here has ended, and its charge is corrected.
            let _ = answer.poll(&mut Context::from_waker(Waker::noop()));
        }
        let last = self.recorder.lock().last;
        last.unwrap_or(RequestResult::NoRule)
    }

    /// Returns what its rules did.
    pub(crate) fn end(self) -> Effect {
        std::mem::take(&mut self.recorder.lock())
    }
}
