//! An invalid limit or layer panics with the user's line, not with one inside the crate.

use kit::scene::*;
use std::{panic, panic::AssertUnwindSafe};

use crate::ALONE;

/// Alone: the panic hook belongs to the whole process.
#[test]
fn panics_point_at_the_caller() {
    let _alone = ALONE.blocking_lock();
    let seen = Arc::new(Mutex::new(None));
    let noted = Arc::clone(&seen);
    panic::set_hook(Box::new(move |panic| {
        let location = panic.location().map(|it| (it.file().to_owned(), it.line()));
        *noted.lock().unwrap() = location;
    }));
    let mut cases = Vec::new();
    // The line of the call is the line of the macro's use.
    macro_rules! points_here {
        ($($call:expr,)*) => { $(
            let line = line!();
            let refused = panic::catch_unwind(AssertUnwindSafe(|| { let _ = $call; })).is_err();
            let found = seen.lock().unwrap().take();
            cases.push((stringify!($call), line, refused, found));
        )* };
    }
    let store = MemoryStore::new();
    points_here!(Limit::new(0, Duration::from_secs(1)),);
    points_here!(Limit::new(1, Duration::ZERO),);
    points_here!(Limit::per_second(0),);
    points_here!(Limit::per_minute(0),);
    points_here!(Limit::per_hour(0),);
    points_here!(Limit::per_day(u64::MAX),);
    points_here!(RateLimitLayer::new(
        &store,
        Limit::per_day(1).by(FromHeader::new("a b"))
    ),);
    let _ = panic::take_hook();
    for (call, line, refused, found) in cases {
        assert!(refused, "{call}");
        let found = found.expect("a location");
        assert_eq!(found, (file!().to_owned(), line), "{call}");
    }
}
