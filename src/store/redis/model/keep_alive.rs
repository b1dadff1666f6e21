//! How long the keys live.
