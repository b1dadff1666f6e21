//! The time of the simulation, which each thread has for itself.

use std::cell::Cell;

thread_local! {
    static NOW: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Sets the present, in nanoseconds since the simulation began; `None` for the machine's own time.
pub(super) fn set(now: Option<u64>) {
    NOW.set(now);
}

/// Returns the present of this thread, if a simulation runs in it.
pub fn now() -> Option<u64> {
    NOW.get()
}

/// Has the library draw the seed of its tables in this thread.
pub fn seed_hashes() {
    drop(crate::values::name::Name::known(""));
}
