//! The plainest store of one's own there is: a map. The laws hold, says the program, which checks
//! them in a hundred random histories:
//! `cargo run --example backend --features test-util,unstable-store`.

#![allow(clippy::print_stdout, reason = "an example prints its results")]

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use tower_ratelimit::{
    Error,
    backend::{Backend, BackendStore, Settings, Swap, laws},
    testing::ManualClock,
};

/// The values of limiters, in this process.
#[derive(Debug, Default)]
pub struct Plain(Mutex<HashMap<String, Vec<u8>>>);

impl Backend for Plain {
    async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, Error> {
        let values = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(values.get(key).cloned())
    }

    async fn swap(&self, Swap { key, old, new }: Swap<'_>) -> Result<bool, Error> {
        let mut values = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_old = values.get(key).map(Vec::as_slice) == old;
        match new {
            _ if !is_old => {}
            Some(new) => drop(values.insert(key.to_owned(), new.to_owned())),
            None => drop(values.remove(key)),
        }
        Ok(is_old)
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let clock = ManualClock::new();
    let settings = Settings {
        // By default, the system's clock.
        clock: Some(Arc::new(clock.clone())),
        ..Settings::default()
    };
    laws::swaps(&Plain::default(), 7).await;
    let store = BackendStore::new(Plain::default(), settings)?;
    laws::check(&store, &clock, 7, 100).await;
    println!("100 histories, and no law is broken");
    Ok(())
}
