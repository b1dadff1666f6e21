//! Names of limiters in Redis.
//!
//! Limiters that rules create are named `<prefix>:{<identity>}:<rule>`. The bytes are fixed,
//! because another spelling would reset every limit. `docs/keys.md` is the contract.

mod address;
mod text;

use std::{
    cmp::Ordering,
    fmt,
    hash::{BuildHasher, BuildHasherDefault, Hash, Hasher, RandomState},
    str,
    sync::{Arc, LazyLock},
};

pub(crate) use self::{
    address::{IPV6_PREFIX, spell},
    text::{Identity, Short},
};
use crate::{
    macros::opaque,
    values::error::{ConfigError, bail, config_error},
};

/// The longest identity that is written out; a longer one is digested.
const LONGEST_IDENTITY: usize = 128;
/// The endings of a limiter's keys other than its hash: those that `keys`, `packed` and `redisson`
/// in `store/redis` make.
const KEYS: [&str; 4] = [":value", ":permits", ":ban", "~"];
/// Where the identity stands in a shared name.
const PLACEHOLDER: &str = "<key>";

/// The secret of this process: no outsider can choose names that collide in its tables.
static SEED: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// The Redis key of a limiter's hash, from which its other keys are derived. Its own hash is
/// computed once for all tables.
#[derive(Clone)]
pub(crate) struct Name {
    hash: u64,
    bytes: Short,
}

impl Name {
    /// Returns the name of these bytes, which are UTF-8.
    fn of(bytes: Short) -> Self {
        let mut hasher = SEED.build_hasher();
        hasher.write(&bytes);
        Self {
            hash: hasher.finish(),
            bytes,
        }
    }

    /// Returns the name that Redisson would use for `getRateLimiter(name)`.
    ///
    /// # Errors
    ///
    /// Returns an error of kind [`Name`](crate::ConfigErrorKind::Name) if its keys would be in
    /// different hash slots of a Cluster, or be another limiter's.
    pub(crate) fn exact(name: &str) -> Result<Self, ConfigError> {
        check_exact(name).map_err(|reason| refused(name, reason))?;
        Ok(Self::known(name))
    }

    /// Returns a name without checking it: one that a store had, or that of no limiter.
    pub(crate) fn known(text: &str) -> Self {
        let mut bytes = Short::default();
        bytes.push(text.as_bytes());
        Self::of(bytes)
    }

    /// Returns the text, which may hold an identity: keep it out of logs.
    pub(crate) fn as_str(&self) -> &str {
        str::from_utf8(&self.bytes).unwrap_or_default()
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the identity between texts of these lengths.
    pub(crate) fn identity(&self, (before, after): (usize, usize)) -> Option<&str> {
        let end = self.as_str().len().checked_sub(after)?;
        self.as_str().get(before..end)
    }

    /// Returns its hash, in which every bit counts as much as any other.
    pub(crate) fn seeded_hash(&self) -> u64 {
        self.hash
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash && *self.bytes == *other.bytes
    }
}

impl Eq for Name {}

impl Ord for Name {
    fn cmp(&self, other: &Self) -> Ordering {
        self.bytes[..].cmp(&other.bytes[..])
    }
}

impl PartialOrd for Name {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

// A name holds an identity, which logs must not.
opaque!(Name);

/// Builds the hashers of tables whose keys are names, or contain some.
pub(crate) type BuildSpread = BuildHasherDefault<Spread>;

/// Hashes what is already hashed by the secret of this process: it only spreads the given numbers.
#[derive(Clone, Default)]
pub(crate) struct Spread(u64);

impl Hasher for Spread {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64((*byte).into());
        }
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn write_u64(&mut self, number: u64) {
        // An odd number with as many ones as zeros. Both halves of the product count, so that all
        // bits of one affect all bits of the other.
        const FACTOR: u128 = 0x9e37_79b9_7f4a_7c15;
        let product = u128::from(self.0 ^ number).wrapping_mul(FACTOR);
        self.0 = (product as u64).rotate_left(5) ^ (product >> 64) as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The way a rule makes a name from an identity.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Naming {
    /// The name up to the identity, with its punctuation: as each name begins.
    before: Short,
    after: Arc<str>,
    /// Set if names differ by identity: else there is one name, with nothing after it.
    pub(crate) takes_identity: bool,
}

impl Naming {
    pub(crate) fn derived(prefix: &str, rule: &str) -> Result<Self, ConfigError> {
        check_word("a prefix", prefix)?;
        check_rule_name(rule)?;
        let (before, after) = (format!("{prefix}:{{"), format!("}}:{rule}"));
        Ok(Self::new(&before, &after, true))
    }

    pub(crate) fn shared(name: &str) -> Result<Self, ConfigError> {
        let Some((before, after)) = name.split_once(PLACEHOLDER) else {
            check_exact(name).map_err(|reason| refused(name, reason))?;
            return Ok(Self::new(name, "", false));
        };
        if after.contains(PLACEHOLDER) {
            return Err(refused(name, "it may contain `<key>` only once"));
        }
        // An identity has no braces and is never empty, so one sample stands for all.
        check_exact(&format!("{before}x{after}")).map_err(|reason| refused(name, reason))?;
        Ok(Self::new(before, after, true))
    }

    fn new(before: &str, after: &str, takes_identity: bool) -> Self {
        let mut name = Short::default();
        name.push(before.as_bytes());
        Self {
            before: name,
            after: after.into(),
            takes_identity,
        }
    }

    /// Returns the lengths of what stands before and after the identity.
    pub(crate) fn around(&self) -> (usize, usize) {
        (self.before.len(), self.after.len())
    }

    pub(crate) fn name(&self, identity: &Identity) -> Name {
        let mut name = self.before.clone();
        if self.takes_identity && identity.0.len() > LONGEST_IDENTITY {
            name.push(digested(&identity.0).as_bytes());
        } else if self.takes_identity {
            name.push(&identity.0);
        }
        name.push(self.after.as_bytes());
        Name::of(name)
    }
}

impl fmt::Display for Naming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = if self.takes_identity { PLACEHOLDER } else { "" };
        let before = String::from_utf8_lossy(&self.before);
        write!(f, "{before}{key}{}", self.after)
    }
}

fn check_exact(name: &str) -> Result<(), &'static str> {
    if name.is_empty() {
        return Err("it is empty");
    }
    let Some((_, rest)) = name.split_once('{') else {
        return if name.contains('}') {
            Err("it has a `}` without a `{`")
        } else {
            Ok(())
        };
    };
    let end = rest.find('}').ok_or("it has a `{` that is not closed")?;
    let tail = &rest[end..];
    let is_of_another =
        |suffix: &&str| tail.ends_with(*suffix) || tail.contains(&format!("{suffix}:"));
    if end == 0 {
        Err("its hash tag `{}` is empty")
    } else if KEYS.iter().any(is_of_another) {
        Err("it reads like a key that belongs to another limiter")
    } else {
        Ok(())
    }
}

fn refused(name: &str, reason: &str) -> ConfigError {
    config_error!(Name: "{name:?} cannot name a limiter: {reason}")
}

pub(crate) fn check_rule_name(name: &str) -> Result<(), ConfigError> {
    check_word("a rule's name", name)
}

/// Checks that a text is a [word](is_word).
pub(crate) fn check_word(what: &str, text: &str) -> Result<(), ConfigError> {
    if is_word(text) {
        return Ok(());
    }
    bail!(Name: "{what} has one or more of A-Z a-z 0-9 . _ -, not {text:?}")
}

/// Returns whether the text is a label: one or more of `A-Z a-z 0-9 . _ -`.
pub(crate) fn is_word(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

/// Returns `!`, with which no encoding begins, and the first 128 bits of SHA-256 in hexadecimal.
fn digested(identity: &[u8]) -> String {
    let hash = hmac_sha256::Hash::hash(identity);
    let mut digest = String::with_capacity(33);
    digest.push('!');
    push_hex(&mut digest, &hash[..16]);
    digest
}

/// Adds bytes in lower-case hexadecimal.
pub(crate) fn push_hex<'b>(text: &mut String, bytes: impl IntoIterator<Item = &'b u8>) {
    for byte in bytes {
        for nibble in [byte >> 4, byte & 15] {
            text.push(char::from_digit(nibble.into(), 16).unwrap_or_default());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn identity(components: &[&[u8]]) -> Identity {
        let mut identity = Identity::default();
        for component in components {
            identity.push(component);
        }
        identity
    }

    fn derived(components: &[&[u8]]) -> String {
        let naming = Naming::derived("shop", "login").unwrap();
        naming.name(&identity(components)).as_str().to_owned()
    }

    #[test]
    fn a_derived_name_is_spelled_as_promised() {
        assert_eq!(derived(&[b"alice"]), "shop:{alice}:login");
        assert_eq!(derived(&[b"a:b", b"{c}"]), "shop:{a%3Ab,%7Bc%7D}:login");
        assert_eq!(derived(&["é%".as_bytes()]), "shop:{%C3%A9%25}:login");
        // printf 'a%.0s' {1..129} | sha256sum | cut -c 1-32
        assert_eq!(
            derived(&[&[b'a'; 129]]),
            "shop:{!c12cb024a2e5551cca0e08fce8f1c5e3}:login"
        );
        assert_eq!(
            derived(&[&[b'a'; 128]]),
            format!("shop:{{{}}}:login", "a".repeat(128))
        );
    }

    #[test]
    fn a_template_is_filled_with_the_encoded_identity() {
        let naming = Naming::shared("user:<key>:orders").unwrap();
        assert_eq!(
            naming.name(&identity(&[b"x{y"])).as_str(),
            "user:x%7By:orders"
        );
        assert!(Naming::shared("<key>:<key>").is_err());
        assert!(Naming::shared("{<key>").is_err());
        assert!(Naming::shared("{<key>}:orders").is_ok());
        assert!(!Naming::shared("orders").unwrap().takes_identity);
    }

    #[test]
    fn the_identity_stands_between_what_the_rule_wrote() {
        for naming in [
            Naming::derived("shop", "login"),
            Naming::shared("user:<key>:orders"),
            Naming::shared("<key>"),
        ] {
            let naming = naming.unwrap();
            let name = naming.name(&identity(&[b"ann", b"b"]));
            assert_eq!(name.identity(naming.around()), Some("ann,b"), "{naming}");
            assert_eq!(name.identity((0, 99)), None);
        }
    }

    /// A real Cluster shows the others: `tests/topologies/cluster.rs`.
    #[test]
    fn names_that_redis_cluster_cannot_place_are_refused() {
        for name in ["", "{a}:value", "{a}:permits", "{a}:value:7d9"] {
            let error = Name::exact(name).unwrap_err();
            assert_eq!(error.kind(), crate::ConfigErrorKind::Name, "{name}");
        }
        for name in ["{a}", "{a}b", "{a{b}"] {
            assert_eq!(Name::exact(name).unwrap().as_str(), name);
        }
    }

    /// Logs and debug output show which limiters there are, and no identity.
    #[test]
    fn what_is_shown_of_a_name_has_no_identity() {
        let naming = Naming::shared("user:<key>:orders").unwrap();
        assert_eq!(
            format!("{:?}", naming.name(&identity(&[b"alice"]))),
            "Name(..)"
        );
        assert_eq!(naming.to_string(), "user:<key>:orders");
        let derived = Naming::derived("shop", "login").unwrap();
        assert_eq!(derived.to_string(), "shop:{<key>}:login");
        assert_eq!(Naming::shared("orders").unwrap().to_string(), "orders");
        assert!(derived.takes_identity && naming.takes_identity);
    }

    fn components() -> impl Strategy<Value = Vec<Vec<u8>>> {
        // Bytes with a meaning in names are made likely.
        let byte = prop_oneof![
            3 => prop::sample::select(&b"{}:,%!+*ab1"[..]),
            1 => any::<u8>(),
        ];
        prop::collection::vec(prop::collection::vec(byte, 0..12), 1..4)
    }

    proptest! {
        // L6: a request decides nothing but which limiter of its own it meets.
        #[test]
        fn different_components_have_different_names(a in components(), b in components()) {
            let [first, second] = [&a, &b].map(|parts| {
                derived(&parts.iter().map(Vec::as_slice).collect::<Vec<_>>())
            });
            prop_assert_eq!(a == b, first == second);
        }

        #[test]
        fn components_choose_neither_slot_nor_companion(a in components()) {
            let name = derived(&a.iter().map(Vec::as_slice).collect::<Vec<_>>());
            let tag = name.strip_prefix("shop:{").and_then(|rest| rest.strip_suffix("}:login"));
            let tag = tag.expect("the outer parts are the rule's");
            prop_assert!(!tag.is_empty());
            prop_assert!(tag.bytes().all(|b| b.is_ascii_alphanumeric() || b"._~-%,!".contains(&b)));
            prop_assert!(Name::exact(&name).is_ok());
        }
    }
}
