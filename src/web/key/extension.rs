//! A value from an outer layer as the key.

use std::{any::type_name, fmt, marker::PhantomData};

use http::request::Parts;

use super::{Key, KeyExtractor, NoKey, push_non_empty};

/// A value from the request's extensions: the user that an outer layer has authenticated.
///
/// That layer must be outside of this one. With axum's `Router::layer` the layer added last is the
/// outermost.
///
/// # Example
///
/// ```
/// use tower_ratelimit::key::FromExtension;
///
/// #[derive(Clone)]
/// struct UserId(u64);
///
/// impl std::fmt::Display for UserId {
///     fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
///         self.0.fmt(f)
///     }
/// }
///
/// let user = FromExtension::<UserId>::key();
/// let same = FromExtension::by(|user: &UserId| user.0.to_string());
/// ```
#[derive(Clone)]
#[must_use = "an extractor does nothing until a rule has it"]
pub struct FromExtension<T, F = fn(&T) -> String> {
    text: F,
    /// Whether it is the value's own text.
    is_to_string: bool,
    of: PhantomData<fn() -> T>,
}

impl<T: fmt::Display> FromExtension<T> {
    /// Counts by the value's text.
    pub fn key() -> Self {
        Self {
            text: T::to_string,
            is_to_string: true,
            of: PhantomData,
        }
    }
}

impl<T, F> FromExtension<T, F> {
    /// Counts by what a closure returns for the value; an empty text is a missing key.
    pub fn by<K>(text: F) -> Self
    where
        F: Fn(&T) -> K + Send + Sync + 'static,
        K: AsRef<[u8]>,
    {
        Self {
            text,
            is_to_string: false,
            of: PhantomData,
        }
    }
}

impl<T, F, K> KeyExtractor for FromExtension<T, F>
where
    T: Send + Sync + 'static,
    F: Fn(&T) -> K + Send + Sync + 'static,
    K: AsRef<[u8]>,
{
    fn extract(&self, parts: &Parts, key: &mut Key) -> Result<(), NoKey> {
        push_non_empty(key, parts.extensions.get::<T>().map(&self.text), "identity")
    }

    fn fingerprint(&self) -> Option<u64> {
        // The type tells closures apart that capture nothing.
        let is_known = self.is_to_string || size_of::<F>() == 0;
        is_known.then_some(self.is_to_string.into())
    }
}

impl<T, F> fmt::Debug for FromExtension<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FromExtension<{}>", type_name::<T>())
    }
}
