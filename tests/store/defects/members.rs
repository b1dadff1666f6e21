//! Members of every generation, strangers among them, and bursts of them.

use super::{
    monitor::Monitor, world::Answer, world::Keys, world::START, world::Specimen, world::books,
    world::member, world::member_with, world::redis,
};
use kit::{permits_of, scene::*};

/// One grant in the bytes of each generation.
fn generations(permits: u32) -> [Vec<u8>; 4] {
    [
        // 3.13.3 to 3.16.3: a random number as a float, `fI`.
        member_with(&[], &[], permits),
        // 3.16.4 to 3.16.8: the length of the id in eight bytes, `Lc0I`.
        member_with(&[8, 0, 0, 0, 0, 0, 0, 0], &[0x1d; 4], permits),
        // 3.17.0 to 3.20.x: the length in one byte, `Bc0I` with eight bytes.
        member_with(&[8], &[0x2e; 4], permits),
        // Since 3.21.0: `Bc0I` with sixteen bytes.
        member(permits),
    ]
}

// Section 8.9, #5900: Redisson reads members of other generations as garbage, or fails with "data
// string too short". Here they are all there is to count by: the value was lost.
#[tokio::test]
async fn members_of_every_generation_are_recounted() {
    for permits in [1, 5, 300] {
        for member in generations(permits) {
            let world = Specimen::written_by_java("1000", 1000);
            world.keys.plant_member(0, &member);
            world.at(1);
            let asked = 1001 - permits;
            assert_eq!(world.take(asked).await, Answer::Wait(999), "{member:02x?}");
            let left = 1000 - i64::from(permits);
            assert_eq!(world.books(), books(left, &[(0, permits)]));
            assert_eq!(world.take(asked - 1).await, Answer::Granted);
        }
    }
}

// Section 8.9: members of any other length are not Redisson's; Redisson counts garbage or throws a
// Lua error.
#[tokio::test]
async fn members_of_other_lengths_are_an_error_that_changes_nothing() {
    let foreign = ErrorKind::ForeignState;
    for length in [0, 1, 4, 7, 9, 12, 14, 19, 22, 24, 37, 260] {
        let stranger = vec![b'7'; length];
        // If too little is left, it is found on the way to the wait; if the value is lost, when the
        // log is counted.
        for value in [Some("0"), None] {
            let world = Specimen::written_by_java("5", 1000);
            if let Some(value) = value {
                world.keys.plant_value(value);
            }
            world.keys.plant_member(0, &stranger);
            world.keys.plant(100, 2);
            world.at(200);
            let before = (world.keys.entries(), world.keys.fields());
            for permits in [1, 5] {
                let taken = world.limiter.try_acquire_many(permits).await;
                assert_eq!(taken.unwrap_err().kind(), foreign, "{length} {value:?}");
            }
            let released = world.limiter.release(1).await;
            assert_eq!(released.unwrap_err().kind(), foreign, "{length} {value:?}");
            if value.is_none() {
                let counted = world.limiter.available_permits().await;
                assert_eq!(counted.unwrap_err().kind(), foreign, "{length}");
            }
            assert_eq!((world.keys.entries(), world.keys.fields()), before);
            let kept = RedisServer::shared().cli(&["GET", &world.keys.value]);
            assert_eq!(kept, value.unwrap_or("(nil)"));
        }
    }
}

// Section 8.9: a foreign member among expired entries. Permits credited before it are credited and
// removed, and nothing else is: the books agree. Once within the first page that is swept, once
// after it.
#[tokio::test]
async fn a_stranger_among_expired_entries_loses_no_permits() {
    for (before, credited) in [(80, 0), (100, 100)] {
        let world = Specimen::written_by_java("150", 1000);
        for time in 0..before {
            world.keys.plant(time, 1);
        }
        world.keys.plant_member(before, b"stranger!");
        world.keys.plant(900, 30);
        let left = 150 - 30 - before;
        world.keys.plant_value(&left.to_string());
        world.at(1200);
        let taken = world.limiter.try_acquire().await;
        assert_eq!(taken.unwrap_err().kind(), ErrorKind::ForeignState);
        let value: i64 = redis(&["GET", &world.keys.value]).parse().unwrap();
        assert_eq!(value, left + credited);
        let logged: u32 = (world.keys.entries().iter())
            .filter(|(_, member)| member.len() == 21)
            .map(|(_, member)| permits_of(member))
            .sum();
        assert_eq!(value + i64::from(logged), 150);
        // When the last entry has expired the stranger goes with it.
        world.at(1900);
        assert_eq!(world.take(150).await, Answer::Granted);
        assert_eq!(world.books(), books(0, &[(1900, 150)]));
    }
}

// Section 8.9: a foreign member found for one caller: callers that shared its call get the same
// error, so nothing may be taken for them either.
#[tokio::test]
async fn a_stranger_takes_nothing_from_callers_in_the_same_call() {
    let world = Specimen::written_by_java("5", 1000);
    world.keys.plant_value("2");
    world.keys.plant_member(-10, b"stranger!");
    world.keys.plant(0, 3);
    world.at(100);
    let mut monitor = Monitor::start();
    // The first goes alone; the others have come by the time it is answered, and share a call.
    let limiter = &world.limiter;
    let (first, second, third) =
        tokio::join!(limiter.acquire(), limiter.acquire(), limiter.acquire());
    assert_eq!(monitor.calls(limiter.name()), 2);
    first.unwrap();
    assert_eq!(third.unwrap_err().kind(), ErrorKind::ForeignState);
    let granted = 1 + i64::from(second.is_ok());
    let left: i64 = redis(&["GET", &world.keys.value]).parse().unwrap();
    assert_eq!(left, 2 - granted, "{granted} were granted");
    assert_eq!(world.keys.logged().cast_signed(), 2 + granted);
}

/// So many grants of one permit each, one a millisecond from the start, in few commands.
fn plant_many(keys: &Keys, count: i64) {
    let times: Vec<_> = (0..count).collect();
    for times in times.chunks(1000) {
        let mut command = vec![b"ZADD".to_vec(), keys.log.clone().into_bytes()];
        for time in times {
            command.push((START + time).to_string().into_bytes());
            command.push(member(1));
        }
        let added = RedisServer::shared().command(&command);
        assert_eq!(added, Reply::Int(i64::try_from(times.len()).unwrap()));
    }
}

// Section 8.10 and 5: Redisson removes all expired entries in one script: 1.67 s of blocking for a
// million, 71 ms for 100,000. Here a call removes what it needs and, if it returns the permits
// left, a page.
#[tokio::test]
async fn a_burst_of_expired_entries_is_swept_in_small_parts() {
    let world = Specimen::written_by_java("20000", 20_000);
    plant_many(&world.keys, 10_000);
    // One that is still live: a log that has expired whole is dropped at once.
    world.keys.plant(15_000, 1);
    world.keys.plant_value("9999");
    world.at(30_000);
    let mut logged = world.keys.logged();
    assert_eq!(logged, 10_001);
    let mut calls = 0;
    while logged > 200 {
        assert_eq!(world.take(3).await, Answer::Granted);
        calls += 1;
        let now = world.keys.logged();
        let removed = logged + 1 - now;
        assert!((1..=103).contains(&removed), "{removed} in one call");
        logged = now;
    }
    assert!(calls > 90, "{calls}");
    // Nothing was lost on the way.
    let books = world.books();
    let sum: u32 = books.log.iter().map(|(_, permits)| permits).sum();
    assert_eq!(books.value.unwrap(), (20_000 - sum).to_string());
    assert_eq!(world.available().await, 20_000 - 1 - 3 * calls);
}
