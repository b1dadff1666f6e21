//! What the standard library asks the system for: the time, and the seed of its hash tables.
//!
//! The functions of libc stand here under their own names, and so are what `Instant`, `SystemTime`
//! and `RandomState` call, in the library and in its dependencies.

use std::{collections::hash_map::RandomState, ffi::c_int};

use tower_ratelimit_fleet::fleet::clock;

/// When each simulation begins, in seconds: by the clock that never jumps, and by the time of day.
const BEGAN: [i64; 2] = [1_000_000, 1_700_000_000];

/// Tells the simulated time in a thread that has one, and the machine's elsewhere.
///
/// # Safety
///
/// As of the function of libc: `time` can be written to.
#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(which: libc::clockid_t, time: *mut libc::timespec) -> c_int {
    let Some(now) = clock::now() else {
        // SAFETY: these are the arguments of the system's call.
        return unsafe { libc::syscall(libc::SYS_clock_gettime, which, time) } as c_int;
    };
    let began = BEGAN[usize::from(which == libc::CLOCK_REALTIME)];
    let present = libc::timespec {
        tv_sec: began + (now / 1_000_000_000) as i64,
        tv_nsec: (now % 1_000_000_000) as i64,
    };
    // SAFETY: the caller says so.
    unsafe { time.write(present) };
    0
}

/// Gives the same bytes each time: no secret is made here, and tables must not differ between runs.
///
/// # Safety
///
/// As of the function of libc: `len` bytes can be written at `bytes`.
#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(bytes: *mut u8, len: usize, _flags: u32) -> isize {
    // SAFETY: the caller says so.
    unsafe { bytes.write_bytes(7, len) };
    len as isize
}

/// Draws the seed of the library's tables, whichever thread needs it first.
pub(crate) fn seed_hashes() {
    clock::seed_hashes();
    drop(RandomState::new());
}
