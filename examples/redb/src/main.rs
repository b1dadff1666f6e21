//! Limits in a redb file, which outlive the process and need no server: a store of one's own with
//! transactions. The program checks the laws on it: `cargo run`.

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use tower_ratelimit::{
    Error, ErrorKind,
    backend::{Backend, BackendStore, Settings, Swap, failure, laws},
    testing::ManualClock,
};

const LIMITS: TableDefinition<&str, &[u8]> = TableDefinition::new("limits");

/// Limiters in a redb database.
#[derive(Debug)]
struct Redb(Database);

impl Redb {
    fn open(path: impl AsRef<std::path::Path>) -> Result<Self, redb::Error> {
        let database = Database::create(path)?;
        let write = database.begin_write()?;
        write.open_table(LIMITS)?;
        write.commit()?;
        Ok(Self(database))
    }

    fn get(&self, key: &str) -> Result<Option<Vec<u8>>, redb::Error> {
        let table = self.0.begin_read()?.open_table(LIMITS)?;
        Ok(table.get(key)?.map(|value| value.value().to_vec()))
    }

    fn swap(&self, swaps: &[Swap<'_>]) -> Result<bool, redb::Error> {
        // Each grant waits for the disk: with less durability, a crash would forget them.
        let write = self.0.begin_write()?;
        let mut table = write.open_table(LIMITS)?;
        for Swap { key, old, new } in swaps {
            if table.get(key)?.as_ref().map(|value| value.value()) != *old {
                return Ok(false);
            }
            match new {
                Some(new) => drop(table.insert(key, new)?),
                None => drop(table.remove(key)?),
            }
        }
        drop(table);
        write.commit()?;
        Ok(true)
    }
}

fn gone(error: redb::Error) -> Error {
    failure(ErrorKind::Unavailable, error)
}

impl Backend for Redb {
    async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, Error> {
        self.get(key).map_err(gone)
    }

    async fn swap(&self, swap: Swap<'_>) -> Result<bool, Error> {
        self.swap(&[swap]).map_err(gone)
    }

    async fn swap_all(&self, swaps: &[Swap<'_>]) -> Result<Option<bool>, Error> {
        self.swap(swaps).map(Some).map_err(gone)
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (folder, clock) = (tempfile::tempdir()?, ManualClock::new());
    let redb = Redb::open(folder.path().join("limits.redb"))?;
    laws::swaps(&redb, 7).await;
    let settings = Settings {
        clock: Some(std::sync::Arc::new(clock.clone())),
        ..Settings::default()
    };
    laws::check(&BackendStore::new(redb, settings)?, &clock, 7, 20).await;
    println!("20 histories, and no law is broken");
    Ok(())
}
