//! CORS preflights: rules count them by the keys they carry, and leave out those without.

use super::*;

const ORIGIN: (&str, &str) = ("origin", "https://shop.example");
const METHOD: (&str, &str) = ("access-control-request-method", "POST");

/// An OPTIONS request from 192.0.2.1.
fn options(path: &str, headers: &[(&str, &str)]) -> Request<String> {
    let mut request = asking(&format!("OPTIONS {path}"), headers);
    let peer = PeerAddr("192.0.2.1:50000".parse().unwrap());
    request.extensions_mut().insert(peer);
    request
}

fn preflight(path: &str) -> Request<String> {
    options(path, &[ORIGIN, METHOD])
}

fn once(key: impl KeyExtractor) -> Rule {
    Limit::per_hour(1).by(key)
}

fn user() -> FromHeader {
    FromHeader::new("x-user")
}

fn of(rules: impl IntoRules) -> RateLimitLayerBuilder {
    RateLimitLayer::builder(&MemoryStore::new()).otherwise(rules)
}

/// The statuses of these requests, one after the other.
async fn statuses<const N: usize>(
    layer: RateLimitLayerBuilder,
    requests: [Request<String>; N],
) -> [u16; N] {
    let layer = layer.build().unwrap();
    let mut statuses = [0; N];
    for (status, request) in statuses.iter_mut().zip(requests) {
        *status = code(&layer, request).await;
    }
    statuses
}

/// Returns the statuses of three preflights from one address.
async fn three(layer: RateLimitLayerBuilder) -> [u16; 3] {
    statuses(layer, [0; 3].map(|_| preflight("/"))).await
}

#[tokio::test]
async fn a_rule_counts_by_the_key_it_finds_and_leaves_out_what_has_none() {
    let secret = Secret::new("k1", [7; 32]).unwrap();
    let (counted, left_out) = ([200, 429, 429], [200; 3]);
    for (layer, expected) in [
        (of(once(PeerIp)), counted),
        (of(once(Constant("all"))), counted),
        (of(Limit::per_hour(1)), counted),
        (of(once(Route::new())), counted),
        (of(once(user().or(PeerIp))), counted),
        (of(once(user().or_shared())), counted),
        (of(once(PeerIp.digest(&secret))), counted),
        (of(once(user())), left_out),
        (of(once(user().digest(&secret))), left_out),
        (of(once(user().or_skip())), left_out),
        (of(once((PeerIp, user()))), left_out),
        (of(once(user()).shadow()), left_out),
        (of(once(FromParts(|_: &_| None::<String>))), left_out),
        // Wherever they stand in a list.
        (of([once(user()).named("user"), once(PeerIp)]), counted),
        (of([once(PeerIp), once(user()).named("user")]), counted),
    ] {
        let shown = format!("{layer:?}");
        assert_eq!(three(layer).await, expected, "{shown}");
    }
}

#[tokio::test]
async fn nothing_else_is_excused() {
    let refused = async |request| statuses(of(once(user())), [request]).await;
    for headers in [&[ORIGIN][..], &[METHOD], &[]] {
        assert_eq!(refused(options("/", headers)).await, [401], "{headers:?}");
    }
    let mut get = preflight("/");
    *get.method_mut() = Method::GET;
    assert_eq!(refused(get).await, [401]);
    // No browser sends the key, and none sends it twice.
    let twice = [ORIGIN, METHOD, ("x-user", "ann"), ("x-user", "bob")];
    assert_eq!(refused(options("/", &twice)).await, [401]);
    // What is the server's fault stays one.
    let mut nowhere = preflight("/");
    nowhere.extensions_mut().clear();
    assert_eq!(statuses(of(once(PeerIp)), [nowhere.clone()]).await, [500]);
    let either = of(once(user().or(PeerIp)));
    assert_eq!(statuses(either, [nowhere]).await, [500]);
}

/// An empty value is no key, here as everywhere.
#[tokio::test]
async fn a_key_that_is_there_counts() {
    let asked = |user: &str| options("/", &[ORIGIN, METHOD, ("x-user", user)]);
    let requests = [asked("ann"), asked("ann"), asked("bob"), asked("")];
    let found = statuses(of(once(user())), requests).await;
    assert_eq!(found, [200, 429, 200, 200]);
    // Signs that come twice are signs.
    let signs = [ORIGIN, ORIGIN, METHOD, METHOD];
    let requests = [options("/", &signs), options("/", &signs)];
    assert_eq!(statuses(of(once(user())), requests).await, [200, 200]);
}

/// It is an OPTIONS request, whatever method it asks for.
#[tokio::test]
async fn entries_meet_it_by_its_own_method() {
    let table = |pattern: &str| {
        RateLimitLayer::builder(&MemoryStore::new())
            .on(pattern, once(PeerIp).named("login"))
            .otherwise(Limit::per_hour(2).by(PeerIp).named("rest"))
    };
    for (pattern, expected) in [
        ("POST /login", [200, 200, 429]),
        ("OPTIONS /login", [200, 429, 429]),
        ("/login", [200, 429, 429]),
    ] {
        let requests = [0; 3].map(|_| preflight("/login"));
        let found = statuses(table(pattern), requests).await;
        assert_eq!(found, expected, "{pattern}");
    }
    // Its preflights use up nothing of a login.
    let mut login = preflight("/login");
    *login.method_mut() = Method::POST;
    let requests = [preflight("/login"), preflight("/login"), login];
    let found = statuses(table("POST /login"), requests).await;
    assert_eq!(found, [200; 3]);
}

#[tokio::test]
async fn lists_go_before() {
    let rules = || Rules::new().otherwise(once(PeerIp));
    let layer = || RateLimitLayer::builder(&MemoryStore::new());
    let preflights = || Requests::on_request(|parts| parts.method == Method::OPTIONS);
    let allowed = rules().allow(preflights());
    assert_eq!(three(layer().rules(allowed)).await, [200; 3]);
    for layer in [layer(), layer().skip_preflight()] {
        let denied = rules().deny(preflights());
        assert_eq!(three(layer.rules(denied)).await, [403; 3]);
    }
}

#[tokio::test]
async fn they_pass_uncounted_where_the_layer_says_so() {
    // A store that cannot be asked.
    let store = RedisStore::open("redis://127.0.0.1:1/").unwrap();
    let rule = || once(PeerIp).on_failure(FailurePolicy::Deny);
    let layer = || RateLimitLayer::builder(&store).otherwise(rule());
    assert_eq!(three(layer()).await, [503; 3]);
    assert_eq!(three(layer().skip_preflight()).await, [200; 3]);
    let found = statuses(layer().skip_preflight(), [options("/", &[ORIGIN])]).await;
    assert_eq!(found, [503]);
}
