//! Requests of a log, sent through a layer whose clock the log moves.

use std::{
    collections::BTreeSet,
    convert::Infallible,
    future::{Future, Ready, poll_fn, ready},
    net::{IpAddr, SocketAddr},
    path::Path,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::{Duration, UNIX_EPOCH},
};

use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, header::HOST};
use serde_json::{Value, json};
use tower_layer::Layer;
use tower_ratelimit::{
    Clock, ConfigError, Limit, MemoryStore, RateLimit, RateLimitLayer, ResponseFuture, Rules,
    key::PeerAddr,
    observe::{Decided, Observer, RequestResult, RuleResult},
    replay::{Rows, RowsRead},
};
use tower_service::Service;

use crate::{Answer, replay, rules, rules::Found, say};

/// The share of lines that may be unreadable or late.
pub(crate) const LOST: f64 = 0.01;

/// How a log is read.
#[derive(clap::Args)]
pub(crate) struct Columns {
    /// Put lines in order that are apart by up to this time
    #[arg(long, default_value = "60s", value_parser = replay::time, value_name = "TIME")]
    pub(crate) reorder: Duration,
    /// The column of the time, if it has no usual name
    #[arg(long, value_name = "COLUMN")]
    pub(crate) time_field: Option<String>,
    /// Subtract the duration in this column, because lines are written when requests end; in
    /// seconds, or with a unit, as in `took:ms` or `11:us`
    #[arg(long, value_parser = replay::duration, value_name = "COLUMN")]
    pub(crate) duration_field: Option<(String, Duration)>,
    /// The column of a header, as in `x-forwarded-for=xff`, or of a key that code defines
    #[arg(long, value_parser = rules::fixed::<String>, value_name = "NAME=COLUMN")]
    pub(crate) field: Vec<(String, String)>,
}

/// A request of a log.
pub(crate) struct Line {
    pub(crate) time: Duration,
    pub(crate) request: Request<()>,
    /// Its column of the caller.
    pub(crate) caller: Option<Box<str>>,
}

/// What was read.
pub(crate) struct Read {
    pub(crate) rows: RowsRead,
    /// Lines whose method or path HTTP does not allow.
    pub(crate) invalid: u64,
}

/// The columns of each request, in the order in which they are read.
const USUAL: [&str; 5] = ["ip", "method", "path", "host", "status"];

impl Columns {
    /// Reads a log, whose callers are in a column.
    pub(crate) fn read(
        &self,
        log: &Path,
        by: Option<&str>,
        mut each: impl FnMut(Line),
    ) -> Result<Read, String> {
        let rows = match by {
            Some(by) => Rows::of([by]),
            None => Rows::of([]).optional("ip"),
        };
        let mut rows = rows.reorder(self.reorder);
        rows = USUAL.into_iter().fold(rows, Rows::optional);
        // They follow the usual ones, and a log must have them: a typing error would be silent.
        rows = self
            .field
            .iter()
            .fold(rows, |rows, (_, column)| rows.column(column));
        if let Some(column) = &self.time_field {
            rows = rows.time_column(column);
        }
        if let Some((column, unit)) = &self.duration_field {
            rows = rows.duration_column(column, *unit);
        }
        let names = self.field.iter().map(|(name, _)| name.as_str());
        let names: Vec<_> = names.collect();
        let file = replay::open(log).map_err(|error| in_log(log, &error))?;
        let mut invalid = 0;
        let read = rows.read(file, |time, fields| {
            let [caller, ip, method, path, host, status, others @ ..] = fields else {
                return;
            };
            let usual = [ip, method, path, host, status];
            let others = names
                .iter()
                .copied()
                .zip(others.iter().map(Option::as_deref));
            match request(usual.map(Option::as_deref), others) {
                None => invalid += 1,
                Some(request) => each(Line {
                    time: time.duration_since(UNIX_EPOCH).unwrap_or_default(),
                    request,
                    caller: caller.clone(),
                }),
            }
        });
        let mut rows = read.map_err(|error| in_log(log, &error))?;
        rows.missing.dedup();
        Ok(Read { rows, invalid })
    }
}

fn in_log(log: &Path, error: &dyn std::fmt::Display) -> String {
    format!("{}: {error}", log.display())
}

/// Builds a request; `None` if HTTP has none like it.
pub(crate) fn request<'a>(
    [ip, method, path, host, status]: [Option<&str>; 5],
    others: impl Iterator<Item = (&'a str, Option<&'a str>)>,
) -> Option<Request<()>> {
    let mut request = Request::new(());
    *request.method_mut() = Method::from_bytes(method.unwrap_or("GET").as_bytes()).ok()?;
    *request.uri_mut() = path.unwrap_or("/").parse::<Uri>().ok()?;
    if let Some(host) = host.filter(|host| !matches!(*host, "" | "-")) {
        request.headers_mut().insert(HOST, host.parse().ok()?);
    }
    let mut found = Found::default();
    for (name, value) in others {
        let value = value.filter(|value| !matches!(*value, "" | "-"));
        let Some(value) = value else { continue };
        // A name may be a header's, a key's of the code, or both: rules tell them apart.
        let header = HeaderName::try_from(name)
            .ok()
            .zip(value.parse::<HeaderValue>().ok());
        if let Some((name, value)) = header {
            request.headers_mut().append(name, value);
        }
        found.0.push((name.to_owned(), value.to_owned()));
    }
    let extensions = request.extensions_mut();
    if !found.0.is_empty() {
        extensions.insert(found);
    }
    let address = |text: &str| match text.parse::<IpAddr>() {
        Ok(ip) => Some(SocketAddr::new(ip, 0)),
        Err(_) => text.parse().ok(),
    };
    if let Some(address) = ip.and_then(address) {
        extensions.insert(PeerAddr(address));
    }
    let status = status.and_then(|status| status.parse::<StatusCode>().ok());
    extensions.insert(status.unwrap_or(StatusCode::OK));
    Some(request)
}

impl Read {
    /// Says what was assumed, left out, and is not exact. The answer is no if too much is left out.
    pub(crate) fn report<'r>(&self, rules: impl IntoIterator<Item = &'r Rule>) -> Answer {
        let coarse = rules.into_iter().filter(|rule| rule.is_coarse(self));
        // Two files may have the same rule.
        for name in coarse.map(|rule| &rule.name).collect::<BTreeSet<_>>() {
            let resolution = self.rows.resolution;
            say(format!(
                "times are {resolution:?} apart, so the figures of {name:?} are approximate"
            ));
        }
        for column in &self.rows.missing {
            match column.as_str() {
                "ip" => say("the log has no addresses, so rules by `peer` miss their key"),
                "method" => say("the log has no methods: each request counts as GET"),
                "path" => say("the log has no paths: each request counts as one to /"),
                "status" => say("the log has no status: each response counts as 200"),
                _ => {}
            }
        }
        for (line, text) in &self.rows.samples {
            say(format!("line {line} is unreadable: {text}"));
        }
        for (lines, what) in [
            (self.rows.late, "too late"),
            (self.invalid, "no valid requests"),
        ] {
            if lines > 0 {
                say(format!(
                    "{lines} of {} lines left out: {what}",
                    self.rows.lines
                ));
            }
        }
        if self.rows.lost() > LOST {
            say("more than 1 % of the lines were left out, so the figures may be too low");
            return Answer::No;
        }
        Answer::Yes
    }

    pub(crate) fn object(&self) -> Value {
        json!({
            "schema": replay::SCHEMA,
            "lines": self.rows.lines,
            "unreadable": self.rows.unreadable,
            "late": self.rows.late,
            "invalid": self.invalid,
            "requests": self.rows.requests - self.invalid,
            "resolution_us": self.rows.resolution.as_micros() as u64,
        })
    }
}

/// What rules decided about a request.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) result: RequestResult,
    /// In the time of the log: the event's own is that of the process.
    pub(crate) has_waited: bool,
    pub(crate) rules: Vec<Met>,
}

/// A rule that it met.
#[derive(Clone, Debug)]
pub(crate) struct Met {
    /// Its place in [`Stage::rules`].
    pub(crate) rule: usize,
    pub(crate) result: RuleResult,
    pub(crate) shadow: bool,
    pub(crate) permits: u32,
    pub(crate) key_hash: u64,
}

impl Event {
    /// Returns whether the request was not let through.
    pub(crate) fn is_refused(&self) -> bool {
        use RequestResult::{Allow, AllowedByList, NoRule, Preflight};
        !matches!(self.result, Allow | NoRule | AllowedByList | Preflight)
    }
}

/// Keeps the last decision.
#[derive(Debug, Default)]
struct Recorder(Mutex<Recorded>);

/// A rule that some request has met.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    pub(crate) name: String,
    limit: Option<(u64, Duration)>,
}

impl Rule {
    /// Returns its limit as rules write it.
    pub(crate) fn limit(&self) -> String {
        let limit = self
            .limit
            .map(|(permits, interval)| Limit::try_new(permits, interval));
        match limit {
            Some(Ok(limit)) => limit.to_string(),
            // It is the store's, or no request had the key.
            _ => "?".to_owned(),
        }
    }

    /// Returns whether the times of a log are too far apart for its interval.
    pub(crate) fn is_coarse(&self, read: &Read) -> bool {
        let steps = read.rows.resolution * 20;
        self.limit.is_some_and(|(_, interval)| steps > interval)
    }
}

#[derive(Debug, Default)]
struct Recorded {
    rules: Vec<Rule>,
    last: Option<Event>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Observer for Recorder {
    fn decided(&self, event: &Decided<'_>) {
        let mut recorded = lock(&self.0);
        let rules = event.rules.iter().map(|met| {
            let name = met.rule.unwrap_or_default();
            let known = recorded.rules.iter().position(|rule| rule.name == name);
            let place = known.unwrap_or(recorded.rules.len());
            match recorded.rules.get_mut(place) {
                Some(rule) => rule.limit = met.limit.or(rule.limit),
                None => recorded.rules.push(Rule {
                    name: name.to_owned(),
                    limit: met.limit,
                }),
            }
            Met {
                rule: place,
                result: met.result,
                shadow: met.shadow,
                permits: met.permits,
                key_hash: met.key_hash(),
            }
        });
        let rules = rules.collect();
        recorded.last = Some(Event {
            result: event.result,
            has_waited: false,
            rules,
        });
    }
}

/// The time of the log, and the times that waiting requests wait for.
#[derive(Clone, Debug, Default)]
struct LogClock(Arc<Mutex<(Duration, BTreeSet<Duration>)>>);

impl Clock for LogClock {
    fn now(&self) -> Duration {
        lock(&self.0).0
    }

    fn sleep_until(&self, time: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let clock = self.clone();
        // Nothing is woken: all who wait are polled when the clock moves.
        Box::pin(poll_fn(move |_| {
            let mut times = lock(&clock.0);
            if times.0 >= time {
                return Poll::Ready(());
            }
            times.1.insert(time);
            Poll::Pending
        }))
    }

    fn can_sleep(&self) -> bool {
        true
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

type Answering = Pin<Box<ResponseFuture<Logged, ()>>>;

/// A real layer, whose clock the requests move. Those that wait for permits do so in its time. `T`
/// is what is kept of a request until it is decided.
pub(crate) struct Stage<T> {
    pub(crate) layer: RateLimitLayer,
    service: RateLimit<Logged>,
    store: MemoryStore,
    /// The number of limiters from which on idle ones are dropped.
    many: usize,
    sent: u64,
    clock: LogClock,
    recorder: Arc<Recorder>,
    waiting: Vec<(T, Answering)>,
}

impl<T> Stage<T> {
    pub(crate) fn new(rules: Rules) -> Result<Self, ConfigError> {
        let clock = LogClock::default();
        // No bound, and so no estimates: each caller is counted exactly.
        let store = MemoryStore::new()
            .max_limiters(usize::MAX)
            .clock(clock.clone());
        let recorder = Arc::new(Recorder::default());
        let layer = RateLimitLayer::builder(&store)
            .rules(rules)
            .headers([])
            .count_remaining(false)
            .extensions(false)
            .observe(Arc::clone(&recorder) as Arc<dyn Observer>)
            .build()?;
        Ok(Self {
            service: layer.layer(Logged),
            layer,
            store,
            many: 4096,
            sent: 0,
            clock,
            recorder,
            waiting: Vec::new(),
        })
    }

    /// Returns the rules that were met so far.
    pub(crate) fn rules(&self) -> Vec<Rule> {
        lock(&self.recorder.0).rules.clone()
    }

    /// Sends a request; times do not fall. `each` gets all requests that are decided by then.
    pub(crate) fn send(
        &mut self,
        time: Duration,
        request: Request<()>,
        kept: T,
        each: &mut impl FnMut(T, Event),
    ) {
        self.advance(time, each);
        self.sent += 1;
        if self.sent.is_multiple_of(1024) && self.store.len() >= self.many {
            self.store.forget_idle();
            self.many = (self.store.len() * 2).max(4096);
        }
        let mut future = Box::pin(self.service.call(request));
        match self.poll(future.as_mut()) {
            Some(event) => each(kept, event),
            None => self.waiting.push((kept, future)),
        }
    }

    /// Moves the clock to a time, and on the way to each for which a request waits.
    fn advance(&mut self, time: Duration, each: &mut impl FnMut(T, Event)) {
        loop {
            let next = {
                let mut times = lock(&self.clock.0);
                let due = times.1.first().copied().filter(|next| *next <= time);
                times.0 = due.unwrap_or(time).max(times.0);
                due.inspect(|due| {
                    times.1.remove(due);
                })
            };
            if next.is_none() {
                return;
            }
            // One that leaves may let others pass.
            while self.poll_waiting(each) {}
        }
    }

    /// Polls all requests that wait. Returns whether one was decided.
    fn poll_waiting(&mut self, each: &mut impl FnMut(T, Event)) -> bool {
        let mut still = Vec::with_capacity(self.waiting.len());
        let before = self.waiting.len();
        for (kept, mut future) in std::mem::take(&mut self.waiting) {
            match self.poll(future.as_mut()) {
                Some(event) => each(
                    kept,
                    Event {
                        has_waited: true,
                        ..event
                    },
                ),
                None => still.push((kept, future)),
            }
        }
        self.waiting = still;
        self.waiting.len() < before
    }

    fn poll(&self, future: Pin<&mut ResponseFuture<Logged, ()>>) -> Option<Event> {
        let mut context = Context::from_waker(Waker::noop());
        if future.poll(&mut context).is_pending() {
            return None;
        }
        // A response that is dropped here has ended, and its charge is corrected.
        let last = lock(&self.recorder.0).last.take();
        debug_assert!(last.is_some(), "every request is decided");
        Some(last.unwrap_or(Event {
            result: RequestResult::NoRule,
            has_waited: false,
            rules: Vec::new(),
        }))
    }

    /// Returns how many requests wait for permits.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

/// Returns rows as a table, whose columns have the width of their longest cell.
pub(crate) fn columns(rows: &[Vec<String>]) -> String {
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (place, cell) in row.iter().enumerate() {
            let cells = rows.iter().filter_map(|row| row.get(place));
            let width = cells.map(|cell| cell.chars().count()).max().unwrap_or(0);
            line.push_str(&format!("{cell:width$}  "));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}
