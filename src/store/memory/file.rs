//! A store in memory that outlives its process: [`MemoryStore::save`] and [`MemoryStore::load`].
//!
//! ```text
//! the beginning, for each name its length (4 bytes), the name, the length of its value (4 bytes),
//! and that; the SHA-256 of all this. Numbers are little-endian.
//! ```

use std::io::{self, Read, Write};

use super::{
    MemoryStore,
    saved::{bytes_of, held},
    shard::Held,
};
use crate::{sync::lock, values::name::Name};

/// The beginning of a file; its last byte is the version.
const BEGIN: &[u8] = b"tower-ratelimit store\n\x01";
/// The length of the SHA-256 of all before it, with which a file ends.
const END: usize = 32;

impl MemoryStore {
    /// Writes all limiters and bans that count, for [`load`](Self::load) in the process that
    /// follows this one. Without it, a restart gives every caller its whole limit again.
    ///
    /// The file holds the names of limiters, and so the keys of callers: by
    /// [`digest`](crate::key::KeyExtractor::digest) where these are secret. Permits that a full
    /// store has counted [by an estimate](Self#bounds) are not in it. What is decided while it
    /// writes may be in it or not: stop the service first. A name and its limiter take some 70 to
    /// 120 bytes, and 28 for each grant of the last interval.
    ///
    /// It blocks for as long as the writer does, and locks no more than a part of the store at a
    /// time, to copy it.
    ///
    /// # Errors
    ///
    /// Those of the writer: what was written then is no whole file, which `load` refuses.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Limit, MemoryStore};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = MemoryStore::new();
    /// let logins = Limit::per_hour(5).named("logins").keyed(&store)?;
    /// assert!(logins.of("alice").try_acquire_many(5).await?.is_allowed());
    /// let mut file = Vec::new();
    /// store.save(&mut file)?;
    ///
    /// let after = MemoryStore::new();
    /// after.load(&file[..])?;
    /// let logins = Limit::per_hour(5).named("logins").keyed(&after)?;
    /// assert!(!logins.of("alice").try_acquire().await?.is_allowed());
    /// # Ok(())
    /// # }
    /// ```
    pub fn save(&self, mut to: impl Write) -> io::Result<()> {
        let mut hash = hmac_sha256::Hash::new();
        let mut write = |bytes: &[u8]| {
            hash.update(bytes);
            to.write_all(bytes)
        };
        write(BEGIN)?;
        for shard in &self.shared.shards {
            let mut part = Vec::new();
            lock(shard).each(|name, limiter, record| {
                // Those who hold places end with this process.
                let limiter = limiter.filter(|limiter| !limiter.in_flight);
                let Some(bytes) = bytes_of(name, limiter, record, self.shared.now()) else {
                    return;
                };
                for bytes in [name.as_bytes(), &bytes] {
                    // A name is a limited text, and no log has as many entries.
                    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
                    part.extend_from_slice(&length.to_le_bytes());
                    part.extend_from_slice(bytes);
                }
            });
            write(&part)?;
        }
        to.write_all(&hash.finalize())?;
        to.flush()
    }

    /// Takes over what another store has [saved](Self::save). Returns how many names that are.
    ///
    /// A name that this store has counted already keeps what it has. What no longer counts, and
    /// what finds no room, is left out: give the store a bound as large as that of the other.
    /// Limits are those of the code, as after any deploy that changes one.
    ///
    /// # Errors
    ///
    /// Those of the reader; of kind [`InvalidData`](io::ErrorKind::InvalidData) if the file is no
    /// such file, is damaged or cut, or was written by a later version. The store is as before
    /// then.
    pub fn load(&self, mut from: impl Read) -> io::Result<usize> {
        let mut file = Vec::new();
        from.read_to_end(&mut file)?;
        let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
        let mut taken_over = 0;
        for (name, held) in read(&file).map_err(invalid)? {
            let (name, now) = (Name::known(name), self.shared.now());
            taken_over += usize::from(self.shared.shard(&name).put_held(&name, held, now));
        }
        Ok(taken_over)
    }
}

/// Reads the names of a file, or says why it is none.
fn read(file: &[u8]) -> Result<Vec<(&str, Held)>, String> {
    let whole = file.split_last_chunk::<END>();
    let Some((file, mut rest)) =
        whole.and_then(|(file, _)| Some((file, file.strip_prefix(BEGIN)?)))
    else {
        return Err("it is no saved store, or one of a later version".into());
    };
    if whole.is_some_and(|(_, end)| *end != hmac_sha256::Hash::hash(file)) {
        return Err("it is a saved store that is damaged, or was not written to its end".into());
    }
    let mut names = Vec::new();
    while !rest.is_empty() {
        let (Some(name), Some(bytes)) = (part(&mut rest), part(&mut rest)) else {
            return Err("it is no saved store".into());
        };
        let name = str::from_utf8(name).map_err(|error| format!("a name is no text: {error}"))?;
        names.push((name, held(name, bytes).map_err(|error| error.to_string())?));
    }
    Ok(names)
}

/// Takes the next part of a file, behind its length.
fn part<'f>(rest: &mut &'f [u8]) -> Option<&'f [u8]> {
    let (length, after) = rest.split_first_chunk()?;
    let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
    let (part, after) = after.split_at_checked(length)?;
    *rest = after;
    Some(part)
}
