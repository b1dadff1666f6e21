//! A header's value as the key.

use http::{HeaderName, request::Parts};

use super::{Key, KeyExtractor, NoKey, push_non_empty};
use crate::error::ConfigError;

/// The value of a header: an API key, a tenant.
///
/// A header that is absent, empty or sent twice identifies nobody. Bytes count as they are: no trimming, no folding of
/// case.
///
/// # Caveat
///
/// Whoever sends the request chooses the value. Unless something in front has checked it, a caller gets a fresh limit with
/// every value that it makes up: put an address limit in front, or check first and use [`Extension`](super::Extension).
/// The value becomes part of a key in Redis, where operators can see it.
#[derive(Clone, Debug)]
pub struct Header(Result<(HeaderName, &'static str), &'static str>);

impl Header {
    /// The header of this name.
    ///
    /// A name that HTTP does not allow is a [`ConfigError::HeaderName`] when the layer is built.
    #[must_use]
    pub fn new(name: &'static str) -> Self {
        Self(match HeaderName::from_bytes(name.as_bytes()) {
            Ok(header) => Ok((header, name)),
            Err(_) => Err(name),
        })
    }
}

impl KeyExtractor for Header {
    fn extract(&self, parts: &Parts, key: &mut Key) -> Result<(), NoKey> {
        let (header, name) = match &self.0 {
            Ok((header, name)) => (header, *name),
            Err(name) => return Err(NoKey::missing(name)),
        };
        let mut values = parts.headers.get_all(header).iter();
        let only = match (values.next(), values.next()) {
            (Some(value), None) => Some(value.as_bytes()),
            _ => None,
        };
        push_non_empty(key, only, name)
    }

    fn check(&self) -> Result<(), ConfigError> {
        match &self.0 {
            Ok(_) => Ok(()),
            Err(name) => Err(ConfigError::HeaderName((*name).to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    #[test]
    fn only_one_value_identifies() {
        let key = |values: &[&[u8]]| {
            let mut request = Request::builder();
            for value in values {
                request = request.header("x-api-key", *value);
            }
            let (parts, ()) = request.body(()).unwrap().into_parts();
            let mut key = Key::default();
            Header::new("X-Api-Key")
                .extract(&parts, &mut key)
                .map(|()| key.0)
        };
        assert_eq!(key(&[]).err(), Some(NoKey::missing("X-Api-Key")));
        assert!(key(&[b""]).is_err());
        assert!(key(&[b"a", b"a"]).is_err());
        assert!(key(&[b"a"]).is_ok());
        assert!(key(b"A".chunks(1).collect::<Vec<_>>().as_slice()) != key(&[b"a"]));
        assert!(key(&[b"\xff"]).is_ok());
    }

    #[test]
    fn a_name_that_http_does_not_allow_is_found_when_built() {
        assert_eq!(
            Header::new("x api key").check(),
            Err(ConfigError::HeaderName("x api key".to_owned()))
        );
        assert_eq!(Header::new("x-api-key").check(), Ok(()));
    }
}
