//! Ways to count: what the guide says of each kind of name, on both stores, is in `table`; the rest
//! is one kind's own.

mod calendar;
mod gcra;
mod slots;
mod table;
mod window;

use kit::scene::*;

async fn send(layer: &RateLimitLayer, key: &str) -> Response<RateLimitBody<String>> {
    kit::scene::send(layer, asking("GET /", &[("x-key", key)])).await
}
