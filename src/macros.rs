//! Logs under one target, and writes what errors print.
//!
//! Events carry rule names and error kinds, never a key: whoever sends requests must not choose what is logged.

macro_rules! warning {
    ($($arg:tt)*) => {
        tracing::warn!(target: "tower_ratelimit", $($arg)*)
    };
}

macro_rules! detail {
    ($($arg:tt)*) => {
        tracing::debug!(target: "tower_ratelimit", $($arg)*)
    };
}

// Only servers and files change.
#[cfg(any(feature = "redis", feature = "config"))]
macro_rules! notice {
    ($($arg:tt)*) => {
        tracing::info!(target: "tower_ratelimit", $($arg)*)
    };
}

#[rustfmt::skip]
/// Writes an enum whose `Debug` begins with its `Display`: `main` and `unwrap` print `Debug`, and a
/// variant's name alone does not say what to do. The variant and its fields follow in parentheses.
macro_rules! debug_after_display {
    ($(#[$meta:meta])* pub enum $name:ident { $(
        $(#[$doc:meta])* $variant:ident
        $(($only:ty))?
        $({ $($(#[$field_doc:meta])* $field:ident: $type:ty,)* })?
    ,)* }) => {
        $(#[$meta])*
        pub enum $name { $(
            $(#[$doc])* $variant
            $(($only))?
            $({ $($(#[$field_doc])* $field: $type,)* })?
        ,)* }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{self} (")?;
                match self { $(
                    debug_after_display!(@pattern $variant, only $(, $only)? $(, { $($field)* })?)
                        => debug_after_display!(@fields f, $variant, only $(, $only)? $(, { $($field)* })?),
                )* }?;
                f.write_str(")")
            }
        }
    };
    (@pattern $variant:ident, $only:ident) => { Self::$variant };
    (@pattern $variant:ident, $only:ident, { $($field:ident)* }) => { Self::$variant { $($field),* } };
    (@pattern $variant:ident, $only:ident, $type:ty) => { Self::$variant($only) };
    (@fields $f:ident, $variant:ident, $only:ident) => { $f.write_str(stringify!($variant)) };
    (@fields $f:ident, $variant:ident, $only:ident, { $($field:ident)* }) => {
        $f.debug_struct(stringify!($variant))$(.field(stringify!($field), $field))*.finish()
    };
    (@fields $f:ident, $variant:ident, $only:ident, $type:ty) => {
        $f.debug_tuple(stringify!($variant)).field($only).finish()
    };
}

pub(crate) use debug_after_display;
pub(crate) use detail;
#[cfg(any(feature = "redis", feature = "config"))]
pub(crate) use notice;
pub(crate) use warning;

#[cfg(test)]
pub(crate) mod logged;
