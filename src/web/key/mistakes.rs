//! Mistakes in a setup that only requests reveal, as bits: logged once per rule, with the remedy.

use crate::{macros::warning, sync::Once};

/// The remedy if a server does not record the peer's address.
const PEER_HINT: &str = "with axum, enable the feature `axum` and \
     serve `router.into_make_service_with_connect_info::<SocketAddr>()`; with tonic, enable the \
     feature `tonic`; with another server, put a `tower_ratelimit::key::PeerAddr` into the \
     request's extensions; with `ClientIp::peer`, its closure found no address";

/// A forwarding header came from a peer that is not trusted.
pub(crate) const UNTRUSTED_PEER: u8 = 1;
/// `Forwarded` is present as well as the header that is read.
pub(crate) const FORWARDED_TOO: u8 = 1 << 1;
/// A trusted proxy's header cannot be parsed to the end.
pub(crate) const UNREADABLE: u8 = 1 << 2;
/// The server has not recorded the peer's address.
pub(crate) const NO_PEER: u8 = 1 << 3;

/// Logs the mistakes that extractors have seen, unless they were logged already. The headers are
/// left out, because callers choose their contents.
pub(crate) fn warn(rule: &str, mistakes: u8, logged: &Once) {
    let new = logged.set(mistakes);
    for (mistake, what, hint) in [
        (
            UNTRUSTED_PEER,
            "a forwarding header came from a peer that is not trusted, and was ignored",
            "if the peer is your proxy, its clients share one limit: count by \
             `ClientIp::behind` with the proxy's addresses; otherwise a client has invented \
             the header",
        ),
        (
            FORWARDED_TOO,
            "a request has `Forwarded` as well as the header that is read",
            "one header counts: if your proxy writes `Forwarded`, name it with \
             `ClientIp::header`; otherwise let the proxy remove it, as clients may send it",
        ),
        (
            UNREADABLE,
            "a trusted proxy's forwarding header could not be parsed, and the last valid \
             address was counted",
            "let the proxy write one plain address for each hop, and at most 64 of them; a \
             header of one address must not be repeated",
        ),
        (
            NO_PEER,
            "the server does not record the peer's address: requests are refused with 500, or \
             counted by the key that stands in for it, and no list of networks allows one",
            PEER_HINT,
        ),
    ] {
        if new & mistake != 0 {
            warning!(rule, hint, "{what}");
        }
    }
}
