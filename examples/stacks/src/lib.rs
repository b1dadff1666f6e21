//! Limits in other stacks: a module each, which the page
//! [Stacks](https://docs.rs/tower-ratelimit/latest/tower_ratelimit/docs/stacks) explains. Each ends
//! with a test that meets the refusal; `tests/run.sh --stacks` runs them all, and
//! `cargo test --manifest-path examples/stacks/Cargo.toml --features salvo` one of them.

#[cfg(test)]
mod ask;

#[cfg(feature = "actix-web")]
pub mod actix_web;
#[cfg(feature = "aide")]
pub mod aide;
#[cfg(feature = "axum-login")]
pub mod axum_login;
#[cfg(feature = "dioxus")]
pub mod dioxus;
#[cfg(feature = "jsonwebtoken")]
pub mod jsonwebtoken;
#[cfg(feature = "kube")]
pub mod kube;
#[cfg(feature = "lambda_http")]
pub mod lambda_http;
#[cfg(feature = "leptos_axum")]
pub mod leptos_axum;
#[cfg(feature = "loco-rs")]
pub mod loco_rs;
#[cfg(feature = "poem")]
pub mod poem;
#[cfg(feature = "reqwest")]
pub mod reqwest;
#[cfg(feature = "rmcp")]
pub mod rmcp;
#[cfg(feature = "rocket")]
pub mod rocket;
#[cfg(feature = "salvo")]
pub mod salvo;
#[cfg(feature = "utoipa")]
pub mod utoipa;
#[cfg(feature = "warp")]
pub mod warp;
