//! A header's value as the key.

use http::{HeaderName, HeaderValue, header, request::Parts};

use super::{Key, KeyExtractor, KeyTraits, NoKey, fingerprint_of, push_non_empty};
use crate::values::{
    decision::Fault,
    error::{ConfigError, config_error},
};

/// The default maximum length. Servers' own limits for all headers together are seldom lower, and
/// hashing this much takes a fraction of a millisecond.
const LONGEST: usize = 16 << 10;

/// Headers that hold credentials, by convention.
const CREDENTIALS: [&str; 10] = [
    "api-key",
    "apikey",
    "authorization",
    "cookie",
    "proxy-authorization",
    "x-access-token",
    "x-amz-security-token",
    "x-api-key",
    "x-auth-token",
    "x-goog-api-key",
];

/// The value of a header: an API key, a tenant.
///
/// A header that is absent or empty is a missing key. A repeated one is refused with 401, whatever
/// [`or`](KeyExtractor::or), [`or_shared`](KeyExtractor::or_shared) or
/// [`or_skip`](KeyExtractor::or_skip) says: a caller could otherwise leave its limit by repeating
/// its key. Bytes count as they are: no trimming, no folding of case.
///
/// Cookie may be sent in several field lines over HTTP/2 (RFC 9113, section 8.2.3). They count as
/// one, joined as there with `; `, so that a client does not get another limit with every way to
/// split them.
///
/// # Length
///
/// A value of more than 16 KiB, or more than [`max_len`](Self::max_len), is refused with 431 (in
/// gRPC INVALID_ARGUMENT) before it is hashed, as
/// [`RefusalKind::KeyTooLong`](crate::RefusalKind::KeyTooLong): the answer names the header, and
/// one warning the rule, too. `or`, `or_shared` and `or_skip` do not excuse it. All lines of Cookie
/// count together.
///
/// # Credentials
///
/// The value becomes part of a key in Redis, where operators can see it. So a header that holds a
/// credential must be [digested](KeyExtractor::digest): without that it is a [`ConfigError`] when
/// the layer is built. Credentials are the headers of [`credential`](Self::credential) and, by
/// name, Authorization, Cookie, Proxy-Authorization, X-Api-Key, Api-Key, Apikey, X-Auth-Token,
/// X-Access-Token, X-Goog-Api-Key and X-Amz-Security-Token.
///
/// # Caveat
///
/// The sender of the request chooses the value. Unless something in front has checked it, a caller
/// gets a fresh limit with every invented value, and with another spelling of a valid one
/// (`bearer`, `BEARER`): put an address limit in front, or authenticate first and use
/// [`FromExtension`](super::FromExtension).
///
/// # Example
///
/// ```
/// use tower_ratelimit::key::{FromHeader, KeyExtractor, Secret};
///
/// let tenant = FromHeader::new("x-tenant");
/// let secret = Secret::new("k1", "3f1d7a0c55e94b6f8a2be07d41c9631e")?;
/// let token = FromHeader::new("authorization").digest(&secret);
/// let session = FromHeader::credential("x-shop-session").digest(&secret);
/// # Ok::<_, tower_ratelimit::ConfigError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "an extractor does nothing until a rule has it"]
pub struct FromHeader {
    /// `None` if HTTP does not allow the name.
    header: Option<HeaderName>,
    name: &'static str,
    is_credential: bool,
    is_plain: bool,
    longest: usize,
}

impl FromHeader {
    /// Counts by the header of this name.
    ///
    /// A name that HTTP does not allow is a [`ConfigError`] when the layer is built.
    pub fn new(name: &'static str) -> Self {
        let header = HeaderName::from_bytes(name.as_bytes()).ok();
        let known = header.as_ref().map(HeaderName::as_str);
        Self {
            is_credential: known.is_some_and(|known| CREDENTIALS.contains(&known)),
            is_plain: false,
            header,
            name,
            longest: LONGEST,
        }
    }

    /// Counts by the header of this name, which holds a credential: it must be
    /// [digested](KeyExtractor::digest).
    pub fn credential(name: &'static str) -> Self {
        Self {
            is_credential: true,
            ..Self::new(name)
        }
    }

    /// Puts the value into keys as it is, although its name is a credential's. It is then visible
    /// in Redis.
    pub fn plain(mut self) -> Self {
        self.is_plain = true;
        self
    }

    /// Accepts at most this many bytes of the header. Default: 16 KiB. A longer value is refused
    /// with 431.
    ///
    /// A sender makes the server hash up to this many bytes for each rule that counts by the
    /// header, before any limit applies.
    pub fn max_len(mut self, bytes: usize) -> Self {
        self.longest = bytes;
        self
    }
}

impl KeyExtractor for FromHeader {
    fn extract(&self, parts: &Parts, key: &mut Key) -> Result<(), NoKey> {
        let name = self.name;
        let Some(header) = &self.header else {
            return Err(NoKey::missing(name));
        };
        let mut values = parts.headers.get_all(header).iter();
        let joined: Vec<u8>;
        let value = match (values.next(), values.next()) {
            (Some(_), Some(_)) if *header == header::COOKIE => {
                let lines = parts.headers.get_all(header).iter();
                let lines: Vec<_> = lines.map(HeaderValue::as_bytes).collect();
                joined = lines.join(&b"; "[..]);
                &joined[..]
            }
            (Some(_), Some(_)) => return Err(NoKey::with_fault(name, Fault::Ambiguous)),
            (value, _) => value.map_or(&[][..], HeaderValue::as_bytes),
        };
        let most = self.longest;
        if value.len() > most {
            return Err(NoKey::with_fault(name, Fault::TooLong { most }));
        }
        push_non_empty(key, Some(value), name)
    }

    fn check(&self) -> Result<KeyTraits, ConfigError> {
        if self.header.is_none() {
            return Err(no_header_name(self.name));
        }
        Ok(KeyTraits {
            exposed_credential: (self.is_credential && !self.is_plain).then_some(self.name),
            is_secret: self.is_credential,
            is_bounded: false,
        })
    }

    fn fingerprint(&self) -> Option<u64> {
        fingerprint_of((&self.header, self.longest))
    }
}

pub(super) fn no_header_name(name: &str) -> ConfigError {
    config_error!(Key: "{name:?} is not a header's name")
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;
    use crate::web::key::Secret;

    /// The key that a request with these lines of a header has.
    fn key(header: &'static str, lines: &[&[u8]]) -> Result<String, NoKey> {
        let mut request = Request::builder();
        for line in lines {
            request = request.header(header, *line);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let mut key = Key::default();
        FromHeader::new(header).extract(&parts, &mut key)?;
        Ok(key.identity.as_str().to_owned())
    }

    #[test]
    fn only_one_value_identifies() {
        let key = |lines: &[&[u8]]| key("X-Api-Key", lines);
        let (missing, twice) = (
            NoKey::missing("X-Api-Key"),
            NoKey::with_fault("X-Api-Key", Fault::Ambiguous),
        );
        assert_eq!(key(&[]), Err(missing));
        assert!(key(&[b""]).is_err());
        assert_eq!(key(&[b"a", b"a"]), Err(twice));
        assert!(key(&[b"", b"a"]).is_err());
        assert!(key(&[b"a"]).is_ok());
        assert_ne!(key(&[b"A"]), key(&[b"a"]));
        assert!(key(&[b"\xff"]).is_ok());
    }

    #[test]
    fn cookies_count_as_one_however_they_are_split() {
        let key = |lines: &[&str]| {
            let lines: Vec<_> = lines.iter().map(|line| line.as_bytes()).collect();
            key("Cookie", &lines)
        };
        let whole = key(&["a=1; b=2; c=3"]).unwrap();
        for split in [
            &["a=1", "b=2", "c=3"][..],
            &["a=1; b=2", "c=3"],
            &["a=1", "b=2; c=3"],
        ] {
            assert_eq!(key(split).unwrap(), whole, "{split:?}");
        }
        assert_ne!(key(&["b=2", "a=1", "c=3"]).unwrap(), whole);
        assert_eq!(key(&[""]), Err(NoKey::missing("Cookie")));
    }

    fn exposed(key: &dyn KeyExtractor) -> Option<&'static str> {
        key.check().unwrap().exposed_credential
    }

    #[test]
    fn credentials_are_known_by_name_or_mark() {
        for name in CREDENTIALS
            .into_iter()
            .chain(["Authorization", "x-api-key"])
        {
            assert_eq!(exposed(&FromHeader::new(name)), Some(name));
        }
        assert_eq!(exposed(&FromHeader::new("x-tenant")), None);
        let marked = FromHeader::credential("x-tenant");
        assert_eq!(exposed(&marked), Some("x-tenant"));
        assert_eq!(exposed(&FromHeader::new("cookie").plain()), None);
    }

    #[test]
    fn only_a_digest_hides_a_credential() {
        let secret = Secret::new("k1", [7; 32]).unwrap();
        let open = || FromHeader::new("cookie");
        let hidden = || open().digest(&secret);
        let tenant = || FromHeader::new("x-tenant");
        let all = (tenant(), open().or(hidden()).or_skip());
        let hiding: [&dyn KeyExtractor; 4] = [
            &hidden(),
            &(tenant(), hidden()),
            &tenant().or(hidden()),
            &all.clone().digest(&secret),
        ];
        let exposing: [&dyn KeyExtractor; 4] = [
            &(tenant(), open()),
            &tenant().or(open()),
            &open().or_skip(),
            &all,
        ];
        for (keys, expected) in [(hiding, None), (exposing, Some("cookie"))] {
            for key in keys {
                assert_eq!(exposed(key), expected, "{key:?}");
            }
        }
    }
}
