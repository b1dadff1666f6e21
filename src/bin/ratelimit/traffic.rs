//! Sends the requests of a log through a layer whose clock the log moves.

use std::{
    collections::{BTreeSet, HashMap},
    convert::Infallible,
    future::{Ready, ready},
    net::{IpAddr, SocketAddr},
    path::Path,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::{Duration, UNIX_EPOCH},
};

use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, header::HOST};
use ipnet::Ipv6Net;
use serde_json::{Value, json};
use tower_layer::Layer;
use tower_ratelimit::{
    ConfigError, Limit, ManualClock, MemoryStore, RateLimit, RateLimitLayer, Rules,
    key::PeerAddr,
    observe::{Decided, Observer, RequestResult, RuleResult},
    replay::{Rows, RowsRead},
};
use tower_service::Service;

use crate::{replay, rules, rules::Found, say};

/// The share of lines that may be unreadable or late.
const LOST: f64 = 0.01;

/// The requests after which idle limiters are dropped: a pass over all limiters costs little more
/// than as many requests.
const FORGET_EVERY: u64 = 1 << 16;

/// The bits of an IPv6 address that distinguish callers, as in `PeerIp`.
const IPV6_PREFIX: u8 = 56;

/// How a log is read.
#[derive(clap::Args)]
pub(crate) struct Columns {
    /// Sort lines within this time
    ///
    /// Lines that are apart by more are left out.
    #[arg(
        long,
        default_value = "60s",
        value_parser = replay::time,
        value_name = "TIME",
        hide_short_help = true
    )]
    pub(crate) reorder: Duration,
    /// The column of the time, if it has no usual name
    #[arg(long, value_name = "COLUMN", hide_short_help = true)]
    pub(crate) time_field: Option<String>,
    /// The column of a duration to subtract
    ///
    /// Lines are written when requests end. It is in seconds, or in a unit, as in `took:ms` or
    /// `11:us`.
    #[arg(long, value_parser = replay::duration, value_name = "COLUMN", hide_short_help = true)]
    pub(crate) duration_field: Option<(String, Duration)>,
    /// The column of a header, or of a key of the code
    ///
    /// As in `x-forwarded-for=xff`. A log must have it.
    #[arg(long, value_parser = rules::fixed::<String>, value_name = "NAME=COL")]
    pub(crate) field: Vec<(String, String)>,
}

/// The log that was read.
pub(crate) struct Read {
    pub(crate) rows: RowsRead,
    /// Lines whose method or path HTTP does not allow.
    pub(crate) invalid: u64,
}

/// The columns of each request, in the order in which they are read, and what it means that a log
/// lacks one; nothing where that is usual.
const USUAL: [(&str, &str); 5] = [
    ("ip", "addresses, so rules by `peer` miss their key"),
    ("method", "methods: each request counts as GET"),
    ("path", "paths: each request counts as one to /"),
    ("host", ""),
    ("status", "status: each response counts as 200"),
];

impl Columns {
    /// Returns rows that are read so.
    pub(crate) fn rows(&self, rows: Rows) -> Rows {
        let mut rows = rows.reorder(self.reorder);
        if let Some(column) = &self.time_field {
            rows = rows.time_column(column);
        }
        match &self.duration_field {
            Some((column, unit)) => rows.duration_column(column, *unit),
            None => rows,
        }
    }

    /// Reads a log, and calls `each` with the time, request and caller of each line. Callers are in
    /// a column.
    pub(crate) fn read(
        &self,
        log: &Path,
        by: Option<&str>,
        mut each: impl FnMut(Duration, Request<()>, Option<Box<str>>),
    ) -> Result<Read, String> {
        let rows = match by {
            Some(by) => Rows::of([by]),
            None => Rows::of([]).optional("ip"),
        };
        let usual = USUAL.into_iter().map(|(column, _)| column);
        let rows = usual.fold(self.rows(rows), Rows::optional);
        // They follow the usual ones, and a log must have them: a typing error would be silent.
        let columns = self.field.iter().map(|(_, column)| column);
        let rows = columns.fold(rows, |rows, column| rows.column(column));
        let in_log = |error: &dyn std::fmt::Display| format!("{}: {error}", log.display());
        let file = replay::open(log).map_err(|error| in_log(&error))?;
        let mut invalid = 0;
        let read = rows.read(file, |time, fields| {
            let [caller, ip, method, path, host, status, others @ ..] = fields else {
                return;
            };
            let usual = [ip, method, path, host, status];
            let names = self.field.iter().map(|(name, _)| name.as_str());
            let others = names.zip(others.iter().map(Option::as_deref));
            let time = time.duration_since(UNIX_EPOCH).unwrap_or_default();
            let caller = match by {
                Some("ip") => caller.as_deref().map(grouped),
                _ => caller.clone(),
            };
            match request(usual.map(Option::as_deref), others) {
                None => invalid += 1,
                Some(request) => each(time, request, caller),
            }
        });
        let rows = read.map_err(|error| in_log(&error))?;
        Ok(Read { rows, invalid })
    }
}

/// Reads an address, with or without a port.
fn address(text: &str) -> Option<SocketAddr> {
    match text.parse::<IpAddr>() {
        Ok(ip) => Some(SocketAddr::new(ip, 0)),
        Err(_) => text.parse().ok(),
    }
}

/// Returns an address as rules by `peer` count it: without a port, and of IPv6 the network.
fn grouped(caller: &str) -> Box<str> {
    match address(caller).map(|address| address.ip().to_canonical()) {
        Some(IpAddr::V6(ip)) => {
            let network = Ipv6Net::new(ip, IPV6_PREFIX).map(|it| it.trunc().to_string());
            network.unwrap_or_default().into()
        }
        Some(ip) => ip.to_string().into(),
        None => caller.into(),
    }
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
        // A name may be a header's, a key's of the code, or both: rules distinguish them.
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
    if let Some(address) = ip.and_then(address) {
        extensions.insert(PeerAddr(address));
    }
    let status = status.and_then(|status| status.parse::<StatusCode>().ok());
    extensions.insert(status.unwrap_or(StatusCode::OK));
    Some(request)
}

impl Read {
    /// Says what was assumed, left out, and is not exact. Returns whether enough is left.
    pub(crate) fn report<'r>(&self, rules: impl IntoIterator<Item = &'r Row>) -> bool {
        let coarse = rules.into_iter().filter(|rule| rule.is_coarse(self));
        // Two files may have the same rule.
        for name in coarse.map(|rule| &rule.name).collect::<BTreeSet<_>>() {
            let resolution = self.rows.resolution;
            say(format!(
                "times are {resolution:?} apart, so the figures of {name:?} are approximate"
            ));
        }
        for (column, meaning) in USUAL.iter().filter(|(_, meaning)| !meaning.is_empty()) {
            if self.rows.missing.iter().any(|missing| missing == column) {
                say(format!("the log has no {meaning}"));
            }
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
        is_enough(&self.rows)
    }

    pub(crate) fn object(&self) -> Value {
        json!({
            "lines": self.rows.lines,
            "unreadable": self.rows.unreadable,
            "late": self.rows.late,
            "invalid": self.invalid,
            "requests": self.requests(),
            "resolution_us": self.rows.resolution.as_micros() as u64,
        })
    }

    pub(crate) fn requests(&self) -> u64 {
        self.rows.requests - self.invalid
    }
}

/// Says which lines are unreadable. Returns whether no more than a hundredth was left out.
pub(crate) fn is_enough(read: &RowsRead) -> bool {
    for (line, text) in &read.samples {
        say(format!("line {line} is unreadable: {text}"));
    }
    let is_enough = read.lost() <= LOST;
    if !is_enough {
        say("more than 1 % of the lines were left out, so the figures may be too low");
    }
    is_enough
}

/// The effect of the rules of a file.
#[derive(Debug, Default)]
pub(crate) struct Effect {
    /// The requests that did not pass, and those that would wait for permits.
    pub(crate) refused: u64,
    pub(crate) waiting: u64,
    pub(crate) rules: Vec<Row>,
    /// The result of the last request.
    pub(crate) last: Option<RequestResult>,
}

/// The effect of one rule.
#[derive(Debug, Default)]
pub(crate) struct Row {
    pub(crate) name: String,
    limit: Option<Limit>,
    pub(crate) shadow: bool,
    /// The permits that the last request asked for.
    pub(crate) cost: u32,
    pub(crate) met: u64,
    pub(crate) refused: u64,
    pub(crate) in_shadow: u64,
    pub(crate) without_key: u64,
    /// Its callers by their hashes, and whether it refused them, or would have.
    pub(crate) callers: HashMap<u64, bool>,
}

impl Row {
    /// Returns its limit as rules write it.
    pub(crate) fn limit(&self) -> String {
        // An unknown one is the store's, or no request had the key.
        self.limit.map_or("?".to_owned(), |it| it.to_string())
    }

    /// Returns the number of callers that it refused, or would have.
    pub(crate) fn touched(&self) -> u64 {
        self.callers
            .values()
            .map(|touched| u64::from(*touched))
            .sum()
    }

    /// Returns whether the times of a log are too far apart for its interval.
    pub(crate) fn is_coarse(&self, read: &Read) -> bool {
        let steps = read.rows.resolution * 20;
        self.limit.is_some_and(|limit| steps > limit.interval())
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
            let known = effect.rules.iter().position(|row| row.name == name);
            let at = known.unwrap_or_else(|| {
                effect.rules.push(Row {
                    name: name.to_owned(),
                    ..Row::default()
                });
                effect.rules.len() - 1
            });
            let row = &mut effect.rules[at];
            let limit = met.limit.and_then(|(of, per)| Limit::try_new(of, per).ok());
            row.limit = limit.or(row.limit);
            (row.shadow, row.cost) = (met.shadow, met.permits);
            row.met += 1;
            if met.result == RuleResult::MissingKey {
                row.without_key += 1;
                continue;
            }
            let refused = met.result.is_refusal();
            let in_shadow = matches!(
                met.result,
                RuleResult::ShadowDeny | RuleResult::ShadowBanned
            );
            row.refused += u64::from(refused);
            row.in_shadow += u64::from(in_shadow);
            *row.callers.entry(met.key_hash()).or_default() |= refused || in_shadow;
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
pub(crate) struct Stage {
    pub(crate) layer: RateLimitLayer,
    service: RateLimit<Logged>,
    store: MemoryStore,
    sent: u64,
    clock: ManualClock,
    recorder: Arc<Recorder>,
}

impl Stage {
    pub(crate) fn new(rules: Rules) -> Result<Self, ConfigError> {
        let clock = ManualClock::starting_at(Duration::ZERO);
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
