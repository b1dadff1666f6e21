//! Digests keys that must not be readable in Redis, such as tokens and e-mail addresses.

use std::{fmt, sync::Arc};

use hmac_sha256::HMAC;
use http::request::Parts;

use super::{Key, KeyExtractor, KeyTraits, NoKey, fingerprint_of};
use crate::values::{
    error::{ConfigError, bail},
    name::{is_word, push_hex},
};

/// The shortest secret: as long as the output of SHA-256 (RFC 2104, section 3).
const SHORTEST: usize = 32;
/// The longest key id. It is part of every name.
const LONGEST_ID: usize = 16;
/// The length of the digest that counts: 128 bits, as in the names of long identities.
const BYTES: usize = 16;

/// A secret for digests of keys: see [`KeyExtractor::digest`].
///
/// All processes that share a limit need the same secret under the same id. Create one with
/// `openssl rand -hex 32`, and keep it where the service's other secrets are.
///
/// # Rotation
///
/// Another id makes other names, so a new secret resets the limits that are counted by it; the old
/// limiters expire by themselves. Give each new secret a new id: two secrets under one id silently
/// count one caller twice.
///
/// # Example
///
/// ```
/// use tower_ratelimit::key::Secret;
///
/// let secret = Secret::new("k1", "3f1d7a0c55e94b6f8a2be07d41c9631e")?;
/// assert_eq!(format!("{secret:?}"), "Secret(k1, ..)");
/// # Ok::<_, tower_ratelimit::ConfigError>(())
/// ```
#[derive(Clone)]
pub struct Secret {
    pub(crate) id: Arc<str>,
    mac: HMAC,
}

impl Secret {
    /// Creates a secret of these bytes, at least 32 of them, under an id of 1 to 16 of `A-Z a-z 0-9
    /// . _ -`.
    ///
    /// # Errors
    ///
    /// Returns an error of kind [`Secret`](crate::ConfigErrorKind::Secret) for an id that is none,
    /// or too few bytes. Neither is shown: the one may be the other.
    pub fn new(id: &str, bytes: impl AsRef<[u8]>) -> Result<Self, ConfigError> {
        let bytes = bytes.as_ref();
        if !is_word(id) || id.len() > LONGEST_ID {
            bail!(Secret: "a secret's key id has 1 to 16 of A-Z a-z 0-9 . _ -");
        }
        if bytes.len() < SHORTEST {
            bail!(Secret: "a secret of a key needs at least 32 bytes, not {}", bytes.len());
        }
        Ok(Self {
            id: id.into(),
            mac: HMAC::new(bytes),
        })
    }

    /// Returns `<id>.` and the first 128 bits of HMAC-SHA-256 in hexadecimal; `docs/keys.md` is the
    /// contract.
    fn digest(&self, identity: &str) -> String {
        let mut mac = self.mac.clone();
        mac.update(identity);
        let mut digest = String::with_capacity(self.id.len() + 1 + 2 * BYTES);
        digest.push_str(&self.id);
        digest.push('.');
        push_hex(&mut digest, mac.finalize().iter().take(BYTES));
        digest
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({}, ..)", self.id)
    }
}

/// An extractor that adds only a digest to a key. Made by [`KeyExtractor::digest`].
#[derive(Clone, Debug)]
pub struct Digested<K> {
    pub(super) secret: Secret,
    pub(super) inner: K,
}

impl<K: KeyExtractor> KeyExtractor for Digested<K> {
    fn extract(&self, parts: &Parts, key: &mut Key) -> Result<(), NoKey> {
        let mut found = Key::default();
        let extracted = found.add(&self.inner, parts);
        key.mistakes |= found.mistakes;
        extracted?;
        key.push(self.secret.digest(found.identity.as_str()));
        Ok(())
    }

    fn check(&self) -> Result<KeyTraits, ConfigError> {
        Ok(KeyTraits {
            exposed_credential: None,
            is_secret: true,
            ..self.inner.check()?
        })
    }

    fn fingerprint(&self) -> Option<u64> {
        // Equal digests mean equal secrets, and so equal keys.
        fingerprint_of((self.secret.digest(""), self.inner.fingerprint()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::web::key::{FromHeader, name_by};

    const BYTES_1: &str = "0123456789abcdef0123456789abcdef";
    const BYTES_2: &str = "0123456789abcdef0123456789abcdeF";

    fn name(extractor: &impl KeyExtractor, token: &str) -> Result<String, NoKey> {
        name_by(extractor, &[("authorization", token)])
    }

    fn digested(id: &str, bytes: &str) -> Digested<FromHeader> {
        FromHeader::new("authorization").digest(&Secret::new(id, bytes).unwrap())
    }

    #[test]
    fn a_digest_is_spelled_as_promised() {
        // printf %s 'Bearer%20abc' | openssl dgst -sha256 -hmac 0123456789abcdef0123456789abcdef \
        //     | tail -c 65 | cut -c 1-32
        assert_eq!(
            name(&digested("k1", BYTES_1), "Bearer abc").unwrap(),
            "k1.76cd5e78b66b0107c8fb1502f6b16538"
        );
    }

    #[test]
    fn value_secret_and_id_all_count() {
        let first = name(&digested("k1", BYTES_1), "a").unwrap();
        assert_eq!(name(&digested("k1", BYTES_1), "a").unwrap(), first);
        assert_ne!(name(&digested("k1", BYTES_1), "b").unwrap(), first);
        assert_ne!(name(&digested("k1", BYTES_2), "a").unwrap(), first);
        assert_ne!(name(&digested("k2", BYTES_1), "a").unwrap(), first);
    }

    #[test]
    fn nothing_shows_a_secret() {
        for (id, bytes) in [
            ("k1", "hush"),
            (BYTES_1, "k1"),
            ("", BYTES_1),
            ("k 1", BYTES_1),
        ] {
            let error = Secret::new(id, bytes).unwrap_err();
            for shown in [format!("{error:?}"), error.to_string()] {
                assert!(
                    !shown.contains("hush") && !shown.contains(BYTES_1),
                    "{shown}"
                );
            }
        }
        let shown = format!("{:?}", digested("k1", BYTES_1));
        assert!(shown.contains("k1") && !shown.contains(BYTES_1), "{shown}");
    }
}
