//! The addresses of callers.

use std::{
    borrow::Cow,
    collections::hash_map::RandomState,
    hash::BuildHasher,
    net::{IpAddr, Ipv6Addr, SocketAddr},
};

use tower_ratelimit::command::caller_of;

/// Returns the text under which a caller counts: of an address without its port, and of IPv6 the
/// network. The caller has no blanks around it.
pub(crate) fn counted_as(caller: &str) -> Cow<'_, str> {
    // Most keys that are no address begin with a letter that no address has.
    let may_begin = |first: u8| first.is_ascii_hexdigit() || matches!(first, b':' | b'[');
    let address = caller.bytes().next().filter(|first| may_begin(*first));
    match address.and_then(|_| ip_of(caller)) {
        None => Cow::Borrowed(caller),
        Some(IpAddr::V4(_)) if !caller.contains(':') => Cow::Borrowed(caller),
        Some(address) => Cow::Owned(caller_of(address)),
    }
}

/// Returns a caller by its key, or by a digest with a secret of this run.
pub(crate) fn shown_caller(caller: &str, show_keys: bool, secret: &RandomState) -> String {
    if show_keys {
        caller.escape_debug().collect()
    } else {
        format!("{:016x}", secret.hash_one(caller))
    }
}

/// Reads an address, with or without a port, and with or without blanks around it.
pub(crate) fn ip_of(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    let with_port = || Some(text.parse::<SocketAddr>().ok()?.ip());
    // HAProxy and others write no brackets.
    let bare = || {
        let (address, port) = text.rsplit_once(':')?;
        let _: u16 = port.parse().ok()?;
        address.parse::<Ipv6Addr>().ok().map(IpAddr::V6)
    };
    text.parse().ok().or_else(with_port).or_else(bare)
}
