//! Parses what proxies wrote about the origin of a request, from the right: the nearest proxy wrote
//! last.
//!
//! All field lines are one list (RFC 9110, section 5.3). An element is split off by its own
//! contents and what is to its right, so that what a client wrote before a proxy added to it cannot
//! change how the proxy's own element is parsed. Each byte is read a fixed number of times.

use std::{borrow::Cow, iter, net::IpAddr, str};

/// The header in which proxies record where a request came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ForwardedHeader {
    /// X-Forwarded-For: addresses, each perhaps with a port, IPv6 perhaps in brackets. Without
    /// brackets, what could be an address alone is one: `2001:db8::1:443` has no port
    #[default]
    XForwardedFor,
    /// `Forwarded` of RFC 7239, its addresses written as in X-Forwarded-For
    Forwarded,
    /// A header with one address, written as in X-Forwarded-For, which an edge server sets:
    /// `cf-connecting-ip`, `x-real-ip`. It is ignored if it is repeated. In
    /// `cloudfront-viewer-address` what follows the last colon is a port
    Single(&'static str),
}

/// The header that has a port after each address, IPv6 without brackets.
const WITH_PORT: &str = "cloudfront-viewer-address";

/// Returns the hops in a header's field lines, from the right; `None` is an element without an
/// address.
///
/// An empty element is one, too. RFC 9110 (section 5.6.1) would have it ignored; but then a proxy
/// that appends nothing, as for a peer on a Unix socket, would leave the choice to what the client
/// wrote before.
pub(crate) fn hops<'h>(
    header: ForwardedHeader,
    lines: impl DoubleEndedIterator<Item = &'h [u8]>,
) -> impl Iterator<Item = Option<IpAddr>> {
    let mut lines = lines.rev();
    let mut rest = lines.next();
    iter::from_fn(move || {
        let line = rest?;
        if let ForwardedHeader::Single(name) = header {
            // With two field lines it is unknown which one the proxy wrote.
            rest = None;
            return Some(match (lines.next(), text(line)) {
                (None, Some(text)) if name.eq_ignore_ascii_case(WITH_PORT) => {
                    with_port(text).or_else(|| alone(text))
                }
                (None, Some(text)) => address(text),
                (_, None) | (Some(_), _) => None,
            });
        }
        let is_rfc_7239 = header == ForwardedHeader::Forwarded;
        let (before, element) = split_last(line, is_rfc_7239);
        rest = before.or_else(|| lines.next());
        Some(if is_rfc_7239 {
            for_node(element)
        } else {
            text(element).and_then(address)
        })
    })
}

/// Splits off the last element of a list, and what is before its comma. Commas in quotes do not
/// separate.
fn split_last(line: &[u8], quotes: bool) -> (Option<&[u8]>, &[u8]) {
    let mut quoted = false;
    for (at, byte) in line.iter().enumerate().rev() {
        match byte {
            b'"' if quotes => {
                let before = line.iter().take(at).rev();
                let escapes = before.take_while(|byte| **byte == b'\\').count();
                quoted ^= escapes % 2 == 0;
            }
            b',' if !quoted => {
                let (before, from_comma) = line.split_at(at);
                return (Some(before), from_comma.get(1..).unwrap_or_default());
            }
            _ => {}
        }
    }
    (None, line)
}

fn text(element: &[u8]) -> Option<&str> {
    str::from_utf8(element.trim_ascii()).ok()
}

/// Parses an address as proxies write it: alone, in brackets, with a port. RFC 7239 (section 6)
/// requires brackets around IPv6, and not all proxies write them. `unknown` and `_hidden` are none.
fn address(text: &str) -> Option<IpAddr> {
    alone(text).or_else(|| with_port(text))
}

fn alone(text: &str) -> Option<IpAddr> {
    text.parse::<IpAddr>().ok().map(|ip| ip.to_canonical())
}

/// Returns the address of the only `for` in an element of `Forwarded`.
fn for_node(element: &[u8]) -> Option<IpAddr> {
    let mut found = None;
    let mut rest = element.trim_ascii();
    while !rest.is_empty() {
        if let Some(next) = rest.strip_prefix(b";") {
            rest = next.trim_ascii();
            continue;
        }
        let equals = rest.iter().position(|byte| *byte == b'=')?;
        let (name, value) = rest.split_at(equals);
        if name.is_empty() || !name.iter().copied().all(is_token) {
            return None;
        }
        let (value, after) = value_of(value.get(1..)?)?;
        if name.eq_ignore_ascii_case(b"for") && found.replace(value).is_some() {
            return None;
        }
        rest = after.trim_ascii();
        if !rest.is_empty() && !rest.starts_with(b";") {
            return None;
        }
    }
    address(str::from_utf8(&found?).ok()?)
}

/// Splits off a value. Colons and brackets may lack the quotes that RFC 7239 requires around them.
fn value_of(text: &[u8]) -> Option<(Cow<'_, [u8]>, &[u8])> {
    let Some(quoted) = text.strip_prefix(b"\"") else {
        let ends = |byte: u8| !is_token(byte) && !b":[]".contains(&byte);
        let end = text.iter().position(|byte| ends(*byte));
        let (value, rest) = text.split_at(end.unwrap_or(text.len()));
        return (!value.is_empty()).then_some((Cow::Borrowed(value), rest));
    };
    let mut value = Vec::new();
    let mut bytes = quoted.iter().copied().enumerate();
    loop {
        match bytes.next()? {
            (at, b'"') => return Some((Cow::Owned(value), quoted.get(at + 1..)?)),
            (_, b'\\') => value.push(bytes.next()?.1),
            (_, byte) => value.push(byte),
        }
    }
}

/// Parses an address in front of a port, and IPv6 in brackets also without one.
fn with_port(text: &str) -> Option<IpAddr> {
    let (address, port) = match text.rsplit_once(':') {
        Some((address, port)) if !port.ends_with(']') => (address, Some(port)),
        _ => (text, None),
    };
    let bracketed = address
        .strip_prefix('[')
        .and_then(|it| it.strip_suffix(']'));
    let address = match bracketed {
        Some(address) => IpAddr::V6(address.parse().ok()?),
        None => address.parse().ok()?,
    };
    port.is_none_or(is_port).then(|| address.to_canonical())
}

/// Returns whether this is a number, or a label after an underscore.
fn is_port(port: &str) -> bool {
    match port.strip_prefix('_') {
        Some(label) => crate::values::name::is_word(label),
        None => port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok(),
    }
}

/// Returns whether this is a character of a token (RFC 9110, section 5.6.2).
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SINGLE: ForwardedHeader = ForwardedHeader::Single("x-real-ip");
    const HEADERS: [ForwardedHeader; 3] = [
        ForwardedHeader::XForwardedFor,
        ForwardedHeader::Forwarded,
        SINGLE,
    ];

    fn read(header: ForwardedHeader, lines: &[&[u8]]) -> Vec<Option<IpAddr>> {
        hops(header, lines.iter().copied()).collect()
    }

    fn ip(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    // `tests/pure/client_ip/*.toml` has whole chains, and the ways to write an address.

    #[test]
    fn quotes_have_a_meaning_only_in_forwarded() {
        let line = br#"192.0.2.1,",192.0.2.2",192.0.2.3"#;
        let found = [ip("192.0.2.3"), None, None, ip("192.0.2.1")];
        assert_eq!(read(ForwardedHeader::XForwardedFor, &[line]), found);
        assert_eq!(read(SINGLE, &[b" 192.0.2.1 "]), [ip("192.0.2.1")]);
        for (line, first) in [
            (&br#"for="\"1,2\\",for=192.0.2.1"#[..], ip("192.0.2.1")),
            (br#"for="192.0.2.1"#, None),
        ] {
            let found = read(ForwardedHeader::Forwarded, &[line]);
            assert_eq!(found.first(), Some(&first), "{}", line.escape_ascii());
        }
    }

    fn lines() -> impl Strategy<Value = Vec<Vec<u8>>> {
        // Pieces with a meaning are made likely.
        let piece = prop_oneof![
            4 => prop::sample::select(vec![
                "for=", "For=\"", "\"", "\\", ",", ";", "=", ":", "[", "]", " ", "192.0.2.1",
                "2001:db8::1", "_x", "unknown", "by=",
            ])
            .prop_map(|text| text.as_bytes().to_vec()),
            1 => prop::collection::vec(any::<u8>(), 0..4),
        ];
        let line = prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat());
        prop::collection::vec(line, 0..4)
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(lines in lines()) {
            for header in HEADERS {
                let bytes: usize = lines.iter().map(|line| line.len() + 1).sum();
                prop_assert!(hops(header, lines.iter().map(Vec::as_slice)).count() <= bytes);
            }
        }
    }

    /// A quadratic parser would take hours.
    #[test]
    fn long_headers_are_read_in_one_go() {
        for piece in [
            "\"", "\\", "\\\"", ",", ";", "for=\"", "=", "[", " ", "for=\"\\",
        ] {
            let line = piece.repeat(400_000 / piece.len());
            for header in HEADERS {
                assert!(hops(header, iter::once(line.as_bytes())).all(|hop| hop.is_none()));
            }
        }
    }
}
