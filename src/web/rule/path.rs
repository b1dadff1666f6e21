//! Paths: how a pattern's text is compared with a request's, and what else a service may make of
//! the path that it was sent.
//!
//! axum's router compares segments as they were sent. A service behind it may not: `ServeDir`
//! decodes them, `%2F` included, and drops empty ones and `.`; some gateways resolve `..`. The
//! layer cannot see what the service does, so a request meets the rules of every reading here.

use std::borrow::Cow;

use percent_encoding::percent_encode_byte;

/// What services drop of a path's segments, one step after the other: most of them nothing, some
/// `..` before or behind the empty segments. With `..` goes the segment before it, as in RFC 3986
/// (section 5.2.4), which may be an empty one.
const DROPPED: [&[&[&str]]; 6] = [
    &[],
    &[&[""]],
    &[&["", "."]],
    &[&["", ".", ".."]],
    &[&[".", ".."]],
    &[&[".", ".."], &[""]],
];

/// Returns whether a path has one reading. Reads each byte without a branch, as this is done for
/// each request.
pub(super) fn is_plain(path: &str) -> bool {
    let bytes = path.as_bytes();
    let after = bytes.get(1..).unwrap_or_default();
    let is_odd = |(before, byte): (&u8, &u8)| {
        // A dot is 0x2E, and a slash 0x2F.
        let splits = (*before == b'/') & (*byte | 1 == b'/');
        splits | (*byte == b'%') | !byte.is_ascii()
    };
    let pairs = bytes.iter().zip(after);
    !pairs.fold(false, |odd, pair| odd | is_odd(pair))
}

/// Returns a text or a path in its one spelling: percent-encoded is what is not ASCII, a control
/// character, a space, and an encoded `%`, `/`, `?` or `#`, and nothing else.
pub(super) fn canonical(text: &str) -> Cow<'_, str> {
    if text
        .bytes()
        .all(|byte| byte.is_ascii_graphic() && byte != b'%')
    {
        return Cow::Borrowed(text);
    }
    let mut written = String::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        let mut ahead = bytes.clone();
        let digits = ahead.next().zip(ahead.next());
        let encoded = digits.filter(|_| byte == b'%').and_then(hex);
        let byte = match encoded {
            Some(encoded) => {
                bytes = ahead;
                encoded
            }
            None => byte,
        };
        let stays = match byte {
            b'%' => false,
            b'/' | b'?' | b'#' => encoded.is_none(),
            _ => byte.is_ascii_graphic(),
        };
        if stays {
            written.push(char::from(byte));
        } else {
            written.push_str(percent_encode_byte(byte));
        }
    }
    Cow::Owned(written)
}

/// Returns the byte that two hexadecimal digits write.
fn hex((high, low): (u8, u8)) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    u8::try_from(digit(high)? << 4 | digit(low)?).ok()
}

/// Returns the readings of a path, without the one as it was sent; of a path that a router
/// `compared` as it was sent, only the one with its parameters decoded.
pub(super) fn readings(path: &str, compared: bool) -> Vec<String> {
    let decoded = canonical(path);
    let mut readings = vec![decoded.to_string()];
    if !compared {
        let split = decoded.replace("%2F", "/");
        for path in [path, &decoded, &split] {
            for steps in DROPPED {
                let reading = steps.iter().fold(path.to_owned(), simplified);
                if !readings.contains(&reading) {
                    readings.push(reading);
                }
            }
        }
    }
    readings.retain(|reading| reading != path);
    readings
}

fn simplified(path: String, dropped: &&[&str]) -> String {
    let Some(rest) = path.strip_prefix('/') else {
        return path;
    };
    let (mut segments, mut parts) = (Vec::new(), rest.split('/').peekable());
    let mut ends_with_slash = false;
    while let Some(segment) = parts.next() {
        let is_last = parts.peek().is_none();
        match segment {
            "" if is_last => ends_with_slash = true,
            _ if !dropped.contains(&segment) => segments.push(segment),
            ".." => _ = segments.pop(),
            _ => {}
        }
    }
    let end = if ends_with_slash && !segments.is_empty() {
        "/"
    } else {
        ""
    };
    format!("/{}{end}", segments.join("/"))
}

/// Returns the path with a slash at its end if it has none, and without one if it has.
pub(super) fn with_other_end(path: &str) -> Cow<'_, str> {
    match path.strip_suffix('/') {
        Some(path) => Cow::Borrowed(path),
        None => Cow::Owned(format!("{path}/")),
    }
}

/// Returns the last two segments of a longer path with the slash before them: the path of a gRPC
/// call behind a prefix.
pub(super) fn call_of(path: &str) -> Option<&str> {
    let (start, _) = path.rmatch_indices('/').nth(1)?;
    path.get(start..).filter(|_| start > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_has_one_spelling() {
        for (text, expected) in [
            ("a.bin", "a.bin"),
            ("%61%2Ebin", "a.bin"),
            ("a@b", "a@b"),
            ("a%40b", "a@b"),
            ("café", "caf%C3%A9"),
            ("caf%c3%a9", "caf%C3%A9"),
            ("a b", "a%20b"),
            ("a%2fb%3F%23%25", "a%2Fb%3F%23%25"),
            ("%252F", "%252F"),
            ("100%", "100%25"),
            ("%4", "%254"),
            ("%zz%+1%é", "%25zz%25+1%25%C3%A9"),
            ("%FF", "%FF"),
            ("/a//%62/", "/a//b/"),
        ] {
            assert_eq!(canonical(text), expected, "{text}");
            assert_eq!(canonical(expected), expected);
        }
    }

    #[test]
    fn a_path_is_plain_if_it_has_one_reading() {
        for path in ["/", "/a", "/a/", "/a/b.c/d~e", "*", "", "/a@b:c;d=e"] {
            assert!(is_plain(path), "{path}");
            assert_eq!(readings(path, true), [""; 0], "{path}");
            if path.starts_with('/') {
                assert_eq!(readings(path, false), [""; 0], "{path}");
            }
        }
        for path in [
            "//", "/./a", "/a/.", "/a/..", "/a//b", "/%61", "/é", "/a/.b",
        ] {
            assert!(!is_plain(path), "{path}");
        }
    }

    #[test]
    fn a_path_is_read_in_every_way_that_services_have() {
        for (path, expected) in [
            ("//a//", &["/a/"][..]),
            ("/a/.", &["/a"]),
            (
                "//a/./%62",
                &[
                    "//a/./b", "/a/./%62", "/a/%62", "//a/%62", "/a/./b", "/a/b", "//a/b",
                ],
            ),
            ("/a//../b", &["/a/../b", "/b", "/a/b"]),
            ("/a%2fb", &["/a%2Fb", "/a/b"]),
            ("/a/%2E%2e/b", &["/a/../b", "/b"]),
            ("/../..", &["/"]),
            ("/%252e%252e/a", &[]),
            ("//", &["/"]),
        ] {
            assert_eq!(readings(path, false), expected, "{path}");
        }
        // axum decodes parameters, and has split the path before.
        assert_eq!(readings("//a/%62%2fc/", true), ["//a/b%2Fc/"]);
    }

    #[test]
    fn a_call_behind_a_prefix_is_the_end_of_the_path() {
        for (path, expected) in [
            ("/rpc/a.B/C", Some("/a.B/C")),
            ("/x/y/a.B/C", Some("/a.B/C")),
            ("/a.B/C", None),
            ("/a", None),
            ("*", None),
        ] {
            assert_eq!(call_of(path), expected, "{path}");
        }
    }
}
