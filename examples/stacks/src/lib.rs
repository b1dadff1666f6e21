//! Limits in other stacks: a module each, which the page
//! [Stacks](https://docs.rs/tower-ratelimit/latest/tower_ratelimit/docs/stacks) explains. Each ends
//! with a test that meets the refusal; `tests/run.sh --stacks` runs them all, and
//! `cargo test --manifest-path examples/stacks/Cargo.toml --features salvo` one of them.

#[cfg(test)]
mod ask;

#[cfg(feature = "axum-login")]
pub mod axum_login;
#[cfg(feature = "jwt")]
pub mod jwt;
#[cfg(feature = "kube")]
pub mod kube;
#[cfg(feature = "lambda")]
pub mod lambda;
#[cfg(feature = "loco")]
pub mod loco;
#[cfg(feature = "reqwest")]
pub mod reqwest;
#[cfg(feature = "rmcp")]
pub mod rmcp;
#[cfg(feature = "salvo")]
pub mod salvo;
#[cfg(feature = "utoipa")]
pub mod utoipa;
#[cfg(feature = "warp")]
pub mod warp;
