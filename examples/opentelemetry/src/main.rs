//! Serves on a free port, counts in Redis at `REDIS_URL`, and prints each span.

#![allow(clippy::print_stdout, reason = "an example prints its results")]

use std::{env, error::Error};

use opentelemetry_sdk::trace::SdkTracerProvider;
use tokio::net::TcpListener;
use tower_ratelimit::RedisStore;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // In production, `opentelemetry-otlp` and a batch exporter in place of this one.
    let provider = SdkTracerProvider::builder()
        .with_simple_exporter(opentelemetry_stdout::SpanExporter::default())
        .build();
    tracing::subscriber::set_global_default(tower_ratelimit_opentelemetry::subscriber(&provider))?;

    let url = env::var("REDIS_URL").unwrap_or_else(|_| String::from("redis://127.0.0.1/"));
    let store = RedisStore::open(&url)?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, tower_ratelimit_opentelemetry::service(&store)).await?;
    Ok(())
}
