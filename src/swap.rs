//! A value that all requests read and that can be replaced meanwhile.

use std::{fmt, ops::Deref};

/// A plain value if the feature that replaces it is off.
pub(crate) struct Swap<T> {
    #[cfg(feature = "config")]
    value: arc_swap::ArcSwap<T>,
    #[cfg(not(feature = "config"))]
    value: T,
}

impl<T> Swap<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            #[cfg(feature = "config")]
            value: arc_swap::ArcSwap::from_pointee(value),
            #[cfg(not(feature = "config"))]
            value,
        }
    }

    /// Returns the current value, which stays valid for its holder. Do not hold it across an await.
    #[cfg(feature = "config")]
    pub(crate) fn load(&self) -> impl Deref<Target = T> + use<T> {
        struct Loaded<T>(arc_swap::Guard<std::sync::Arc<T>>);
        impl<T> Deref for Loaded<T> {
            type Target = T;
            fn deref(&self) -> &T {
                &self.0
            }
        }
        Loaded(self.value.load())
    }

    #[cfg(not(feature = "config"))]
    pub(crate) fn load(&self) -> impl Deref<Target = T> + '_ {
        &self.value
    }

    #[cfg(feature = "config")]
    pub(crate) fn store(&self, value: T) {
        self.value.store(std::sync::Arc::new(value));
    }
}

impl<T: fmt::Debug> fmt::Debug for Swap<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.load().fmt(f)
    }
}
