//! Tests callers that wait for permits: their order, and which are refused.

use super::{
    super::wait_queue::{Times, Turn, Until, WaitQueue, own_turn, wait_of},
    *,
};

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A world in which the limit of 3 in 200 ms is used up.
fn full() -> (World, Vec<Caller>) {
    fill(World::new())
}

fn fill(mut world: World) -> (World, Vec<Caller>) {
    let mut requests = Vec::new();
    for _ in 0..3 {
        let mut request = world.comes(1);
        world.answer_all();
        assert!(granted(&world, &mut request));
        requests.push(request);
    }
    (world, requests)
}

fn granted(world: &World, caller: &mut Caller) -> bool {
    let outcome = world.poll(caller);
    outcome.is_some_and(|outcome| outcome.is_ok_and(|decision| decision.is_allowed()))
}

fn refused(world: &World, caller: &mut Caller) -> Option<Refusal> {
    match world.poll(caller)? {
        Ok(Decision::Deny(refusal)) => Some(refusal),
        other => panic!("{other:?}"),
    }
}

/// Requests take no place of those that wait, and do not ask for them.
#[test]
fn a_request_behind_those_that_wait_goes_at_once() {
    let (mut world, _full) = full();
    let _waiting = world.waits(1);
    world.answer_all();
    let calls = world.calls().len();
    let mut request = world.comes(1);
    assert_eq!(world.calls()[calls..], [vec![request.id]]);
    world.answer_all();
    assert!(refused(&world, &mut request).is_some());
    assert_eq!(world.calls().len(), calls + 1);
}

#[test]
fn a_caller_that_cannot_be_served_in_time_is_refused_at_once() {
    // The limit is 3 in 200 ms, and one waits already.
    for (permits, turn) in [(1, 200), (2, 200), (3, 400)] {
        for (max_wait, is_refused) in [(turn - 1, true), (turn, false)] {
            let (mut world, _full) = full();
            let _waiting = world.waits(1);
            world.answer_all();
            let calls = world.calls().len();
            let mut late = world.acquire(1, Some(MaxWait::at_most(millis(max_wait))));
            late.charges[0].permits = permits;
            let mut late = world.caller(Some(0), late);
            let refusal = refused(&world, &mut late);
            assert_eq!(refusal.is_some(), is_refused, "{permits} {max_wait}");
            if let Some(refusal) = refusal {
                assert_eq!(refusal.retry_after(), Some(millis(turn)));
                assert!(refusal.behind);
            }
            assert_eq!(world.calls().len(), calls);
        }
    }
}

#[test]
fn a_caller_that_finds_enough_waiting_is_turned_away() {
    let (mut world, _full) = full();
    let _first = world.waits(1);
    world.answer_all();
    let queue = |longest| MaxWait {
        queue: Some(longest),
        ..MaxWait::at_most(millis(10_000))
    };
    let mut second = world.acquire(1, Some(queue(1)));
    second.charges[0].permits = 1;
    let mut second = world.caller(Some(0), second);
    world.advance(60);
    let refusal = refused(&world, &mut second).expect("one waits already");
    assert_eq!(refusal.kind(), RefusalKind::QueueFull);
    assert_eq!(refusal.retry_after(), Some(millis(140)));
    let third = world.acquire(1, Some(queue(2)));
    let mut third = world.caller(Some(0), third);
    assert!(refused(&world, &mut third).is_none());
    // When it is the turn of the first, none is known to wait.
    world.advance(140);
    let fourth = world.acquire(1, Some(queue(1)));
    let mut fourth = world.caller(Some(0), fourth);
    assert!(refused(&world, &mut fourth).is_none());
}

/// Its turn may come after it gives up, and then those behind it go.
#[test]
fn a_caller_whose_time_is_over_is_refused_and_those_behind_it_go() {
    let (mut world, _full) = full();
    let mut first = world.waits(1);
    let wait = MaxWait::at_most(millis(30));
    let late = world.acquire(1, Some(wait));
    let mut late = world.caller(Some(0), late);
    let mut behind = world.waits(1);
    assert!(world.poll(&mut late).is_none());
    world.answer_all();
    assert!(world.run(&mut [&mut first, &mut late]).is_empty());
    world.advance(30);
    assert!(refused(&world, &mut late).is_some());
    assert!(world.poll(&mut first).is_none());
    world.advance(200);
    world.answer_all();
    assert!(granted(&world, &mut first) && granted(&world, &mut behind));
}

/// The first two see to the queue, but their runtimes may stand still.
#[test]
fn one_further_behind_looks_when_its_own_time_is_over() {
    let (mut world, mut queue) = (World::new(), WaitQueue::default());
    let asks = world.acquire(1, Some(MaxWait::ENDLESS));
    let times = Times {
        now: Duration::ZERO,
        of_calls: Duration::ZERO,
        hold: DEADLINE,
    };
    for (number, deadline) in [(1, None), (2, None), (3, None), (4, Some(millis(30)))] {
        queue.push(number, &asks, deadline, times.now);
    }
    let turn = |queue: &mut WaitQueue, number| {
        let turn = queue.turn(number, 5, times, &Context::from_waker(Waker::noop()));
        turn.expect("it is in the queue")
    };
    assert!(matches!(turn(&mut queue, 1), Turn::Ask(5)));
    queue.ask(5, DEADLINE);
    let refused = Ok(Decision::Deny(refusal(&asks, millis(200))));
    queue.answer(5, &[1], &mut vec![refused], times.now, None);
    queue.end(5, true);
    let room = millis(200) + DEADLINE;
    for (number, expected) in [(1, millis(30)), (2, millis(30)), (3, room), (4, millis(30))] {
        let Turn::Sleep(Until::Due(until)) = turn(&mut queue, number) else {
            panic!("{number} waits");
        };
        assert_eq!(until, expected, "{number}");
    }
}

/// One that waits for several permits, and one behind it for one.
fn wants_more(world: &mut World, permits: u32) -> (Caller, Caller) {
    let mut first = world.acquire(1, Some(MaxWait::ENDLESS));
    first.charges[0].permits = permits;
    let mut first = world.caller(Some(0), first);
    assert!(world.poll(&mut first).is_none());
    (first, world.waits(1))
}

#[test]
fn those_behind_one_that_leaves_are_asked_for() {
    let (mut world, mut requests) = full();
    let (mut first, mut behind) = wants_more(&mut world, 2);
    world.answer_all();
    requests.remove(0).leave_and_give_back(&world);
    assert!(world.run(&mut [&mut first, &mut behind]).is_empty());
    drop(first);
    assert!(world.run(&mut [&mut behind]).is_empty());
    world.answer_all();
    assert!(granted(&world, &mut behind));
}

#[test]
fn those_behind_one_that_is_served_wait_for_their_turn() {
    let (mut world, _full) = full();
    let (mut first, mut behind) = wants_more(&mut world, 3);
    world.answer_all();
    assert!(world.run(&mut [&mut first, &mut behind]).is_empty());
    world.advance(200);
    assert!(world.run(&mut [&mut first, &mut behind]).is_empty());
    world.answer_all();
    assert!(granted(&world, &mut first));
    let calls = world.calls().len();
    assert!(world.run(&mut [&mut behind]).is_empty());
    assert_eq!(world.calls().len(), calls);
}

#[test]
fn only_a_refusal_by_the_limit_is_waited_for() {
    let refusal = |kind| Refusal {
        kind,
        ..Refusal::banned(Charges::default(), millis(200), Source::Store)
    };
    let wait = |kind| wait_of(&Ok(Decision::Deny(refusal(kind))));
    assert_eq!(wait(RefusalKind::OverLimit), Some(millis(200)));
    assert_eq!(wait(RefusalKind::Banned), None);
}

/// Permits that are given back make room at once.
#[test]
fn those_that_wait_are_asked_for_when_there_may_be_room() {
    let (mut world, mut requests) = full();
    let mut waiting = world.waits(1);
    world.answer_all();
    requests.remove(0).leave_and_give_back(&world);
    assert!(world.waits.is_waited_for(&waiting.demand));
    let other = world.acquire(2, None);
    assert!(!world.waits.is_waited_for(&other));
    world.nudge(1);
    assert!(world.poll(&mut waiting).is_none());
    world.answer_all();
    assert!(granted(&world, &mut waiting));
    assert!(!world.waits.is_waited_for(&waiting.demand));
}

/// Lists of several calls give back what they took before one of them refused: that is no room for
/// other lists, which would ask for each other without end.
#[test]
fn what_a_list_undoes_is_no_room_for_lists() {
    for (together, undone, asks) in [
        (true, true, true),
        (false, true, false),
        (false, false, true),
    ] {
        let (mut world, _full) = fill(World::with(1, BOUNDS, together));
        let mut waiting = world.waits(1);
        world.answer_all();
        assert!(world.run(&mut [&mut waiting]).is_empty());
        let calls = world.calls().len();
        world.waits.room(waiting.demand.first().name(), undone);
        assert!(world.run(&mut [&mut waiting]).is_empty());
        assert_eq!(world.calls().len() > calls, asks, "{together} {undone}");
    }
}

/// The first of a call is refused as any caller would be; the others are refused behind it.
#[test]
fn a_refusal_says_whether_it_counts_those_before() {
    let (mut world, _full) = full();
    let soon = MaxWait::at_most(millis(100));
    let mut callers: Vec<_> = (0..3)
        .map(|_| world.comes_to(Some(0), 1, Some(soon)))
        .collect();
    world.answer_all();
    assert!(!refused(&world, &mut callers[0]).expect("too late").behind);
    assert!(refused(&world, &mut callers[1]).is_none());
    world.answer_all();
    assert!(!refused(&world, &mut callers[1]).expect("too late").behind);
    assert!(refused(&world, &mut callers[2]).expect("too late").behind);
}

/// A caller does not wait if only a change of the limit could admit it.
#[test]
fn a_caller_that_asks_for_more_than_the_rate_does_not_wait() {
    let mut world = World::new();
    let mut asks = world.acquire(1, Some(MaxWait::ENDLESS));
    asks.charges[0].permits = 4;
    let mut caller = world.caller(Some(0), asks);
    assert!(world.poll(&mut caller).is_none());
    world.answer_all();
    let refusal = refused(&world, &mut caller).expect("refused for ever");
    assert_eq!(refusal.kind(), RefusalKind::AboveRate);
}

/// The wait of those behind it counts its permits, too.
#[test]
fn a_caller_that_is_turned_away_leaves_its_room_to_those_behind() {
    let (mut world, _full) = full();
    let mut first = world.waits(1);
    let queue = MaxWait {
        queue: Some(1),
        ..MaxWait::at_most(millis(10_000))
    };
    let mut turned_away = world.comes_to(Some(0), 1, Some(queue));
    let behind = [world.waits(1), world.waits(1)];
    let calls = world.calls().len();
    world.answer_all();
    assert!(world.poll(&mut first).is_none());
    let refusal = refused(&world, &mut turned_away).expect("one waits already");
    assert_eq!(refusal.kind(), RefusalKind::QueueFull);
    let asked = [first.id, behind[0].id, behind[1].id];
    assert_eq!(world.calls()[calls..], [asked]);
}

#[test]
fn a_caller_that_is_late_when_its_turn_has_come_learns_what_the_store_says() {
    let (mut world, _full) = full();
    let mut first = world.waits(1);
    world.answer_all();
    assert!(world.poll(&mut first).is_none());
    world.advance(195);
    let mut late = world.comes_to(Some(0), 1, Some(MaxWait::at_most(millis(20))));
    // None is polled before its time is over, and by then there is room for both.
    world.advance(100);
    assert!(world.poll(&mut late).is_none());
    assert_eq!(world.calls().last(), Some(&vec![first.id, late.id]));
    world.answer_all();
    assert!(granted(&world, &mut late) && granted(&world, &mut first));
}

/// It may have needed more.
#[test]
fn what_the_last_waiter_was_refused_by_is_not_about_the_next() {
    let (mut world, _full) = full();
    let mut first = world.waits(1);
    world.answer_all();
    assert!(world.poll(&mut first).is_none());
    drop(first);
    let next = world.comes_to(Some(0), 1, Some(MaxWait::at_most(millis(10))));
    assert_eq!(world.calls().last(), Some(&vec![next.id]));
}

#[test]
fn room_in_one_limiter_wakes_none_that_waits_for_another() {
    let (mut world, _full) = full();
    let mut waiting = world.waits(1);
    world.answer_all();
    assert!(world.poll(&mut waiting).is_none());
    world.nudge(2);
    assert!(!waiting.is_woken());
    world.nudge(1);
    assert!(waiting.is_woken());
}

/// Calls to a silent node take each other's place, and each fails in its time. What another one
/// took is given back at once: its task may end after the store is closed.
#[test]
fn a_waiter_ends_with_the_first_error_of_its_calls() {
    for (fails, arrives) in [(0, 1), (1, 0)] {
        let mut world = World::new();
        let mut waiting = world.waits(1);
        world.advance(50);
        assert!(world.run(&mut [&mut waiting]).is_empty());
        assert_eq!(world.calls().len(), 2);
        world.server.fail(fails);
        world.settle();
        world.server.carry_out(arrives);
        assert_eq!(world.held(), [waiting.id]);
        assert!(
            world
                .poll(&mut waiting)
                .is_some_and(|outcome| outcome.is_err())
        );
        assert_eq!(world.held(), [0; 0], "{fails} fails");
        drop(waiting);
        world.answer_all();
        assert_eq!(world.held(), [0; 0], "{fails} fails");
        world.is_empty();
    }
}

/// What other processes do to the limit is not seen here.
#[test]
fn a_waiter_is_asked_for_again_before_it_is_due() {
    let (mut world, _full) = fill(World::looking(1, BOUNDS, true, Some(millis(60))));
    let mut waiting = world.waits(1);
    world.answer_all();
    assert!(world.poll(&mut waiting).is_none());
    for looks in 1..=3 {
        let calls = world.calls().len();
        world.advance(59);
        assert!(world.poll(&mut waiting).is_none());
        assert_eq!(world.calls().len(), calls, "{looks}");
        world.advance(1);
        assert!(world.poll(&mut waiting).is_none());
        assert_eq!(world.calls()[calls..], [vec![waiting.id]], "{looks}");
        world.answer_all();
        assert!(world.poll(&mut waiting).is_none());
    }
    // It is due before the next look.
    world.advance(20);
    assert!(world.poll(&mut waiting).is_none());
    world.answer_all();
    assert!(granted(&world, &mut waiting));
}

/// It leaves some turns to others, and comes in time all the same.
#[test]
fn a_waiter_that_yields_comes_back_later_and_in_time() {
    let mut late = 0;
    for offset in 0..20 {
        for max_wait in [None, Some(201), Some(200)] {
            let (mut world, _full) = full();
            world.advance(200 + 100 * offset);
            let _again = [(); 3].map(|()| {
                let mut request = world.comes(1);
                world.answer_all();
                assert!(granted(&world, &mut request));
            });
            let yields = MaxWait {
                longest: max_wait.map(millis),
                yields: true,
                ..MaxWait::ENDLESS
            };
            let mut waiting = world.comes_to(Some(0), 1, Some(yields));
            world.answer_all();
            assert!(world.poll(&mut waiting).is_none());
            let calls = world.calls().len();
            world.advance(200);
            if max_wait != Some(200) {
                world.run(&mut [&mut waiting]);
                late += usize::from(world.calls().len() == calls);
                world.advance(max_wait.map_or(110, |max_wait| max_wait - 200));
            }
            assert!(world.poll(&mut waiting).is_none());
            world.answer_all();
            assert!(granted(&world, &mut waiting));
        }
    }
    assert!((8..=32).contains(&late), "{late} of 40");
}

#[test]
fn a_caller_whose_turn_comes_after_its_time_is_refused_at_once() {
    for (max_wait, is_refused) in [(199, true), (200, false)] {
        let (mut world, _full) = full();
        let mut late = world.comes_to(Some(0), 1, Some(MaxWait::at_most(millis(max_wait))));
        world.answer_all();
        assert_eq!(
            refused(&world, &mut late).is_some(),
            is_refused,
            "{max_wait}"
        );
    }
}

/// The last one that a call tries may be late; one behind it is refused.
#[test]
fn callers_that_a_call_tries_may_be_late_and_no_others() {
    let (mut world, _full) = full();
    let mut first = world.waits(1);
    let short = MaxWait::at_most(millis(20));
    let longest = |index| if index < 64 { MaxWait::ENDLESS } else { short };
    let mut behind: Vec<_> = (2..=65)
        .map(|index| world.comes_to(Some(0), 1, Some(longest(index))))
        .collect();
    world.answer_all();
    world.advance(20);
    world.nudge(1);
    assert!(world.poll(&mut first).is_none());
    let mut asked = vec![first.id];
    asked.extend(behind[..63].iter().map(|caller| caller.id));
    assert_eq!(world.calls().last(), Some(&asked));
    assert!(refused(&world, &mut behind[62]).is_none());
    assert!(refused(&world, &mut behind[63]).is_some());
}

#[test]
fn half_of_the_time_is_left_to_others_and_no_turn_is_far() {
    let begin = Duration::from_secs(1_704_153_600);
    let late = |millis| {
        own_turn(begin + Duration::from_millis(millis)) - begin - Duration::from_millis(millis)
    };
    for interval in [1, 100, 110, 220, 500, 1000, 3000] {
        let late: Vec<_> = (0..3000).map(|turn| late(turn * interval)).collect();
        let own = late.iter().filter(|late| late.is_zero()).count();
        assert!(
            (1200..=1800).contains(&own),
            "{own} of 3000 every {interval} ms"
        );
        assert!(late.iter().all(|late| *late <= Duration::from_millis(110)));
    }
    // All processes have the same slices.
    for (due, turn) in [
        (0, 0),
        (109, 109),
        (110, 220),
        (150, 260),
        (330, 330),
        (440, 550),
    ] {
        assert_eq!(own_turn(millis(due)), millis(turn));
    }
}
