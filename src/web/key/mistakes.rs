//! Logs mistakes in a setup that only requests reveal, once per rule, with the remedy.

use crate::{macros::warning, sync::Once};

/// The remedy if a server does not record the peer's address.
pub(crate) const PEER_HINT: &str = "with axum, enable the feature `axum` and \
     serve `router.into_make_service_with_connect_info::<SocketAddr>()`; with tonic, enable the \
     feature `tonic`; with another server, put a `tower_ratelimit::key::PeerAddr` into the \
     request's extensions; with `ClientIp::peer`, its closure found no address";

/// The mistakes that extractors and rules have seen, as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mistakes(u8);

impl Mistakes {
    /// A forwarding header came from a peer that is not trusted
    pub(crate) const UNTRUSTED_PEER: Self = Self(1);
    /// `Forwarded` is present beside the header that is read
    pub(crate) const FORWARDED_BESIDE: Self = Self(1 << 1);
    /// A trusted proxy's header cannot be parsed to the end
    pub(crate) const UNREADABLE: Self = Self(1 << 2);
    /// The server has not recorded the peer's address
    pub(crate) const NO_PEER: Self = Self(1 << 3);
    /// A request lacks the key of a rule
    pub(crate) const MISSING_KEY: Self = Self(1 << 4);
    /// A header is longer than the key of a rule accepts
    pub(crate) const LONG_KEY: Self = Self(1 << 5);
    /// A list of networks cannot be used without the peer's address
    pub(crate) const UNUSED_LIST: Self = Self(1 << 6);

    pub(crate) fn add(&mut self, other: Self) {
        self.0 |= other.0;
    }

    fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// The mistakes that were warned about.
#[derive(Debug, Default)]
pub(crate) struct Warned(Once);

impl Warned {
    /// Records this mistake, and returns whether it is the first of its kind.
    pub(crate) fn is_first(&self, mistake: Mistakes) -> bool {
        self.0.set(mistake.0) != 0
    }

    /// Logs the mistakes of extractors that are new. The headers are left out, because callers
    /// choose their contents.
    pub(crate) fn warn(&self, rule: &str, mistakes: Mistakes) {
        let new = Mistakes(self.0.set(mistakes.0));
        for (mistake, what, hint) in [
            (
                Mistakes::UNTRUSTED_PEER,
                "a forwarding header came from a peer that is not trusted, and was ignored",
                "if the peer is your proxy, its clients share one limit: count by \
                 `ClientIp::behind` with the proxy's addresses; otherwise a client has invented \
                 the header",
            ),
            (
                Mistakes::FORWARDED_BESIDE,
                "a request has `Forwarded` beside the header that is read",
                "one header counts: if your proxy writes `Forwarded`, name it with \
                 `ClientIp::header`; otherwise let the proxy remove it, as clients may send it",
            ),
            (
                Mistakes::UNREADABLE,
                "a trusted proxy's forwarding header could not be parsed, and the last valid \
                 address was counted",
                "let the proxy write one plain address for each hop, and at most 64 of them; a \
                 header of one address must not be repeated",
            ),
            (
                Mistakes::NO_PEER,
                "the server does not record the peer's address: requests are refused with 500, or \
                 counted by the key that stands in for it",
                PEER_HINT,
            ),
        ] {
            if new.has(mistake) {
                warning!(rule, hint, "{what}");
            }
        }
    }
}
