//! A full MemoryStore: names without a place are counted by an estimate, never too much.

use kit::scene::*;
use std::{collections::HashMap, sync::Barrier};

use proptest::prelude::*;

use super::{FewPlaces, Service, erased, now};

const INTERVAL: Duration = millis(800);
const EIGHTH: Duration = millis(100);

fn rule(name: &str, permits: u64) -> Rule {
    Limit::new(permits, INTERVAL)
        .by(FromHeader::new("user"))
        .named(name)
        .cost_by(|parts| parts.headers["cost"].to_str().unwrap().parse().unwrap())
}

/// Returns whether a request was granted, and what decided.
fn is_from(decision: &Decision, source: Source) -> bool {
    decision.is_allowed() && decision.source() == source
}

fn request(user: &str, cost: u32) -> Request<()> {
    let request = Request::builder().header("user", user).header("cost", cost);
    request.body(()).unwrap()
}

fn ask(service: &Service, user: &str, cost: u32) -> Decision {
    let answer = now(service.clone().oneshot(request(user, cost))).unwrap();
    decision_of(&answer).clone()
}

fn takes(service: &Service, user: &str, cost: u32) -> bool {
    ask(service, user, cost).is_allowed()
}

/// Returns how many of these requests are granted.
fn passed(service: &Service, user: &str, requests: usize) -> usize {
    (0..requests).filter(|_| takes(service, user, 1)).count()
}

/// Fills all places by others, for an interval.
fn fill(service: &Service) {
    let mut other = 0;
    while ask(service, &format!("other-{other}"), 1).source() == Source::Store {
        other += 1;
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Ask(u8, u32),
    Pause(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (0..14_u8, 1..4_u32).prop_map(|(user, cost)| Step::Ask(user, cost)),
        1 => (0..200_u8, 1..3_u32).prop_map(|(user, cost)| Step::Ask(user, cost)),
        3 => (0..150_u64).prop_map(Step::Pause),
        1 => prop::sample::select(vec![400_u64, 799, 800, 801, 900]).prop_map(Step::Pause),
    ];
    prop::collection::vec(step, 1..150)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Names come to a place and lose it again; places are few, and the sketch is small. In any
    /// interval a name has no more than its limit, or than its algorithm says.
    #[test]
    fn no_name_gets_more_than_its_limit(
        places in 1..6_usize,
        way in 0..Way::ALL.len(),
        limit in 3..9_u32,
        steps in steps(),
    ) {
        let way = Way::ALL[way];
        let world = FewPlaces::of(places);
        let service = world.service(way.rule(rule("api", limit.into())));
        let (mut time, mut estimated) = (0, 0);
        let mut taken: HashMap<u8, Vec<(u64, u32)>> = HashMap::new();
        for step in steps {
            let (user, cost) = match step {
                Step::Pause(millis) => {
                    world.clock.advance(Duration::from_millis(millis));
                    time += millis;
                    continue;
                }
                Step::Ask(user, cost) => (user, cost),
            };
            let decision = ask(&service, &user.to_string(), cost);
            estimated += u64::from(decision.source() == Source::Estimate);
            if let Decision::Deny(refusal) = &decision {
                prop_assert_eq!(refusal.kind(), RefusalKind::OverLimit);
                let longest = INTERVAL + EIGHTH + millis(1);
                prop_assert!(refusal.retry_after().unwrap() <= longest, "{:?}", refusal);
                continue;
            }
            let own = taken.entry(user).or_default();
            for &(from, _) in own.iter().rev() {
                let span = u32::try_from(time - from).unwrap();
                let within = own.iter().filter(|(at, _)| *at >= from);
                let bound = match way {
                    Way::Log | Way::Slots(_) | Way::OwnLog => limit,
                    Way::Window | Way::OwnWindow => 2 * limit,
                    Way::Gcra => limit + limit * span.min(800).div_ceil(800),
                };
                if span < 800 {
                    let had = cost + within.map(|(_, cost)| cost).sum::<u32>();
                    prop_assert!(had <= bound, "{way:?}: {had} of {limit} for {user}: {own:?}");
                }
            }
            own.push((time, cost));
        }
        prop_assert_eq!(world.store.estimated(), estimated);
        prop_assert!(world.store.len() <= places);
    }

    /// If no other caller takes anything, an untracked name is refused until its wait is over,
    /// and granted then.
    #[test]
    fn the_wait_of_an_untracked_name_is_exact(
        taken in prop::collection::vec((1..4_u32, 0..200_u64), 1..12),
        cost in 1..9_u32,
        way in 0..Way::ALL.len(),
    ) {
        let world = FewPlaces::occupied();
        let service = world.service(Way::ALL[way].rule(rule("api", 8)));
        for (cost, pause) in taken {
            let decision = ask(&service, "ann", cost);
            prop_assert_eq!(decision.source(), Source::Estimate);
            world.clock.advance(Duration::from_millis(pause));
        }
        if let Decision::Deny(refusal) = ask(&service, "ann", cost) {
            let Some(wait) = refusal.retry_after() else {
                prop_assert!(cost > 8);
                return Ok(());
            };
            let before = wait - millis(1);
            world.clock.advance(before);
            let early = ask(&service, "ann", cost);
            prop_assert!(!early.is_allowed(), "{before:?} of {wait:?}");
            world.clock.advance(millis(1));
            prop_assert!(takes(&service, "ann", cost));
        }
    }
}

/// The flood that locked newcomers out: ten times the places, which all fits into the sketch.
///
/// With `TOWER_RATELIMIT_KEYS=1000000`, and best in release, it has the size of a default store.
#[test]
fn a_flood_of_made_up_keys_locks_no_user_out() {
    let keys = std::env::var("TOWER_RATELIMIT_KEYS").map_or(30_000, |keys| keys.parse().unwrap());
    let (places, newcomers) = (keys / 10, (keys / 150).clamp(200, 1000));
    let world = FewPlaces::of(places);
    let hourly = Limit::per_hour(100).by(FromHeader::new("user"));
    let service = world.service(hourly);
    let known = ["ann", "bob", "eve"];
    for user in known {
        assert_eq!(passed(&service, user, 1), 1);
    }
    for number in 0..keys {
        let made_up = format!("made-up-{number}");
        assert!(takes(&service, &made_up, 1), "{number}");
    }
    assert_eq!(world.store.len(), places);
    let (mut refused, mut most) = (0, 0);
    for number in 0..newcomers {
        let newcomer = format!("newcomer-{number}");
        refused += 50 - passed(&service, &newcomer, 50);
        if number % 20 == 0 {
            most = most.max(50 + passed(&service, &newcomer, 100));
        }
    }
    let asked = 50 * newcomers;
    assert!(200 * refused <= asked, "{refused} of {asked}");
    assert!(most <= 100, "{most} of 100");
    for user in known {
        let decision = ask(&service, user, 1);
        assert!(is_from(&decision, Source::Store));
        assert_eq!(passed(&service, user, 200), 98, "{user}");
    }
    assert!(world.store.estimated() > 0);
}

/// Whatever it sends, and however full the sketch gets.
#[test]
fn a_spent_stranger_gains_nothing_by_a_flood() {
    let world = FewPlaces::of(100);
    let service = world.service(rule("api", 5));
    fill(&service);
    assert_eq!(passed(&service, "eve", 50), 5);
    let mut regulars = [0; 20];
    // So many that each cell of the sketch is full in the end.
    for number in 0..45_000 {
        let _ = ask(&service, &format!("made-up-{number}"), 1);
        if number % 300 == 0 {
            assert!(!takes(&service, "eve", 1), "after {number}");
            for (user, had) in regulars.iter_mut().enumerate() {
                *had += passed(&service, &format!("regular-{user}"), 1);
                assert!(*had <= 5, "{had} after {number}");
            }
        }
    }
    // What is new is refused, too.
    assert_eq!(passed(&service, "newcomer", 50), 0);
    // It heals an interval and an eighth after the last grant.
    world.clock.advance(INTERVAL + EIGHTH);
    assert_eq!(passed(&service, "eve", 50), 5);
}

/// A look for idle limiters visits all of them: a full store looks once for so many strangers.
#[test]
fn a_stranger_is_turned_away_once() {
    let world = FewPlaces::of(1000);
    let service = world.service(rule("api", 5));
    fill(&service);
    world.clock.advance(INTERVAL + EIGHTH);
    let is_placed = |number: &usize| {
        let decision = ask(&service, &format!("stranger-{number}"), 1);
        is_from(&decision, Source::Store)
    };
    // `fill` has ended with the first of 110.
    assert_eq!((2..).find(is_placed), Some((1000 - 128) / 8 + 1));
}

#[test]
fn a_stranger_that_gets_a_place_keeps_its_debt() {
    for way in Way::ALL {
        let world = FewPlaces::of(1);
        let service = world.service(way.rule(rule("api", 5)));
        assert!(takes(&service, "other", 5));
        world.clock.advance(INTERVAL / 2);
        assert_eq!(ask(&service, "ann", 3).source(), Source::Estimate);
        // The other one is idle now: a window is one tick later.
        world.clock.advance(INTERVAL / 2 + millis(1));
        let decision = ask(&service, "ann", 1);
        assert!(is_from(&decision, Source::Store), "{way:?}");
        let left = decision.limits().next().unwrap().remaining().unwrap();
        let most = if way == Way::Gcra { 4 } else { 1 };
        assert!(left <= most, "{way:?}: {left}");
        assert!(passed(&service, "ann", 50) <= left as usize, "{way:?}");
        // And no more than its debt: the part that it was taken in may last an eighth more.
        world.clock.advance(INTERVAL + EIGHTH);
        assert_eq!(passed(&service, "ann", 50), 5, "{way:?}");
    }
}

/// Places come free while threads ask: names move from the estimate to a place between any two of
/// their grants. The clock stands still, so that nothing leaves.
#[test]
fn names_that_move_while_threads_ask_keep_their_limit() {
    const PLACES: usize = 12;
    const THREADS: usize = 4;
    for round in 0..20 {
        let world = FewPlaces::of(PLACES);
        let daily = world.service(Limit::per_day(9).by(FromHeader::new("user")).named("place"));
        let occupant = |number| format!("occupant-{number}");
        (0..PLACES).for_each(|number| assert!(takes(&daily, &occupant(number), 1)));
        let service = world.service([rule("api", 5), rule("more", 7)]);
        let start = Barrier::new(THREADS + 1);
        let granted: Vec<usize> = thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let (service, start) = (service.clone(), &start);
                    scope.spawn(move || {
                        start.wait();
                        let asked = (0..200).map(|number| (number * (thread + 1) + round) % 10);
                        let granted = asked.filter(|user| takes(&service, &user.to_string(), 1));
                        granted.collect::<Vec<_>>()
                    })
                })
                .collect();
            start.wait();
            for number in 0..PLACES {
                let limiter = world.limiter(&occupant(number), "place");
                assert!(now(limiter.delete()).unwrap());
                (0..round).for_each(|_| thread::yield_now());
            }
            threads
                .into_iter()
                .flat_map(|thread| thread.join().unwrap())
                .collect()
        });
        for user in 0..10 {
            let had = granted.iter().filter(|other| **other == user).count();
            assert_eq!(had, 5, "{user} in round {round}");
        }
        assert!(world.store.len() <= PLACES);
    }
}

/// A verb takes a place, too.
#[test]
fn a_place_that_a_verb_takes_begins_with_the_debt() {
    let world = FewPlaces::of(1);
    let service = world.service(rule("api", 5));
    assert!(takes(&service, "other", 1));
    world.clock.advance(INTERVAL / 2);
    assert!(takes(&service, "ann", 3));
    world.clock.advance(INTERVAL / 2);
    let ann = world.limiter("ann", "api");
    assert!(now(ann.try_set_rate(Limit::new(5, INTERVAL))).unwrap());
    assert_eq!(world.left("ann", "api"), 2);
}

#[test]
fn verbs_answer_by_the_estimate() {
    let world = FewPlaces::of(1);
    let service = world.service(rule("api", 5));
    fill(&service);
    let ann = world.limiter("ann", "api");
    fails(now(ann.available_permits()), ErrorKind::NotInitialized);
    assert_eq!(now(ann.limit()).unwrap(), None);
    assert!(takes(&service, "ann", 3));
    assert_eq!(now(ann.available_permits()).unwrap(), 2);
    assert_eq!(now(ann.limit()).unwrap().unwrap().permits(), 5);
    fails(
        now(ann.try_set_rate(Limit::new(5, INTERVAL))),
        ErrorKind::Full,
    );
    fails(now(ann.release(1)), ErrorKind::NotInitialized);
    assert!(!now(ann.delete()).unwrap());
    assert_eq!(now(ann.available_permits()).unwrap(), 2);
}

/// Other callers of the same rule have other limits, and there are more kinds of names than a store
/// remembers the limits of.
#[test]
fn the_permits_left_go_by_the_limit_of_who_asks() {
    let world = FewPlaces::occupied();
    let user = || FromHeader::new("user");
    let plan = limit_by(|parts| {
        let permits = parts.headers["permits"].to_str().unwrap().parse();
        Limit::new(permits.unwrap(), INTERVAL)
    });
    let orders = Rule::shared("user:<key>:orders").or_init(Limit::new(5, INTERVAL));
    let rules = [
        Rule::new("plan", plan, user()),
        orders.by(user()).named("orders"),
    ];
    let layer = layer_of(&world.store, rules);
    let service = erased(layer.layer(service_fn(serve)));
    let request = |user: u64| {
        let mut request = request(&user.to_string(), 1);
        let permits = [5, 100][user as usize % 2];
        request.headers_mut().insert("permits", permits.into());
        request
    };
    for user in 0..70 {
        for _ in 0..3 {
            let answer = now(service.clone().oneshot(request(user))).unwrap();
            assert!(is_from(decision_of(&answer), Source::Estimate), "{user}");
        }
    }
    for user in 0..70 {
        let limiters = layer.limiters_of(&request(user).into_parts().0);
        let left = limiters
            .iter()
            .map(|it| now(it.available_permits()).unwrap());
        let plan = [2, 97][user as usize % 2];
        assert_eq!(left.collect::<Vec<_>>(), [plan, 2], "{user}");
    }
}

/// As it would be without a sketch: its limiter is not made.
#[test]
fn a_limit_that_no_sketch_can_count_finds_a_full_store() {
    let world = FewPlaces::of(1);
    let large = |permits| world.service(rule(&format!("large-{permits}"), permits));
    let first = world.service(rule("api", 5));
    assert!(takes(&first, "ann", 1));
    let error = |decision| refused(decision).error().unwrap().kind();
    const LARGEST: u64 = u32::MAX as u64;
    for permits in [255, 256, 65_535, 65_536, LARGEST] {
        let service = large(permits);
        for taken in [1, permits - 2] {
            let decision = ask(&service, "bob", taken as u32);
            assert_eq!(decision.source(), Source::Estimate);
        }
        assert_eq!(passed(&service, "bob", 3), 1, "{permits}");
    }
    assert_eq!(error(ask(&large(LARGEST + 1), "bob", 1)), ErrorKind::Full);

    // Four intervals, and a fifth only when one of them has had no untracked names for an interval.
    let every = |seconds: u64| {
        let limit = Limit::new(5, Duration::from_secs(seconds)).by(FromHeader::new("user"));
        world.service(limit.named(&format!("every-{seconds}")))
    };
    world.clock.advance(2 * INTERVAL);
    world.occupy();
    for seconds in [10, 20, 30, 40] {
        assert_eq!(ask(&every(seconds), "ann", 1).source(), Source::Estimate);
    }
    assert_eq!(error(ask(&every(50), "ann", 1)), ErrorKind::Full);
    world.clock.advance(Duration::from_secs(12));
    assert_eq!(ask(&every(50), "ann", 1).source(), Source::Estimate);
    assert_eq!(passed(&every(20), "ann", 50), 4);
}

/// A list is granted whole or not at all, both tracked limiters and untracked names.
#[test]
fn a_list_that_is_refused_charges_neither() {
    let world = FewPlaces::of(1);
    let kept = Limit::per_day(9).by(FromHeader::new("user")).named("kept");
    let both = world.service([kept, rule("strange", 3)]);
    for left in [8, 7, 6] {
        let decision = ask(&both, "ann", 1);
        assert!(is_from(&decision, Source::Estimate));
        assert_eq!(permits_taken(&granted(decision)).len(), 2);
        assert_eq!(world.left("ann", "kept"), left);
    }
    assert!(!takes(&both, "ann", 1));
    assert_eq!(world.left("ann", "kept"), 6);
    // The other way round: what the own limiter refuses is not added to the estimate.
    let world = FewPlaces::of(1);
    let kept = Limit::per_day(2).by(FromHeader::new("user")).named("kept");
    let both = world.service([kept, rule("strange", 3)]);
    assert_eq!(passed(&both, "ann", 20), 2);
    assert_eq!(world.left("ann", "strange"), 1);
    // Both are untracked.
    let world = FewPlaces::of(1);
    fill(&world.service(rule("api", 5)));
    let both = world.service([rule("five", 5), rule("three", 3)]);
    assert_eq!(passed(&both, "ann", 20), 3);
    assert_eq!(world.left("ann", "five"), 2);
}

/// A service whose handlers settle at what the header says.
fn settling(world: &FewPlaces, rule: Rule) -> Service {
    let inner = service_fn(async |request: Request<()>| {
        let used = request.headers()["used"].to_str().unwrap().parse().unwrap();
        assert!(request.extensions().get::<Grant>().unwrap().set(used));
        Ok::<_, Infallible>(answer_to(&request, ""))
    });
    erased(RateLimitLayer::new(&world.store, rule).layer(inner))
}

#[test]
fn a_stranger_is_charged_more_and_given_back_nothing() {
    for way in Way::ALL {
        let world = FewPlaces::of(1);
        fill(&world.service(rule("api", 5)));
        let service = settling(&world, way.rule(rule("tokens", 10)));
        let left = |user: &str| world.left(user, "tokens");
        let uses = |user: &str, used: &str| {
            let mut request = request(user, 2);
            request.headers_mut().insert("used", used.parse().unwrap());
            let answer = now(service.clone().oneshot(request)).unwrap();
            answer.extensions().get::<Decision>().unwrap().clone()
        };
        // Its cells may be others', too.
        assert!(uses("ann", "0").is_allowed());
        assert_eq!(left("ann"), 8, "{way:?}");
        assert!(uses("ann", "5").is_allowed());
        assert_eq!(left("ann"), 3, "{way:?}");
        // Debt beyond the limit, also where cells cannot count it.
        assert!(uses("bob", "1000000").is_allowed());
        assert_eq!(left("bob"), 0, "{way:?}");
        let refused = uses("bob", "0");
        assert!(!refused.is_allowed(), "{way:?}");
        assert_eq!(refused.source(), Source::Estimate, "{way:?}");
        world.clock.advance(INTERVAL + EIGHTH);
        assert!(uses("bob", "2").is_allowed(), "{way:?}");
    }
}

/// The receipt is of an untracked name, and the name has a place by the time it is settled.
#[test]
fn a_strangers_debt_is_charged_to_its_place() {
    for way in Way::ALL {
        let world = FewPlaces::of(1);
        let layer = RateLimitLayer::new(&world.store, way.rule(rule("api", 10)));
        let service = erased(layer.layer(service_fn(serve)));
        assert!(takes(&service, "other", 1));
        world.clock.advance(INTERVAL / 2);
        let [grant, other] = [(); 2].map(|()| granted(ask(&service, "ann", 2)));
        world.clock.advance(INTERVAL / 2 + millis(1));
        assert_eq!(ask(&service, "ann", 1).source(), Source::Store, "{way:?}");
        let ann = layer.limiter("api", ["ann"]).unwrap();
        let left = now(ann.available_permits()).unwrap();
        ann.settle(&grant, 4);
        assert_eq!(now(ann.available_permits()).unwrap(), left - 2, "{way:?}");
        ann.give_back(&other);
        assert_eq!(now(ann.available_permits()).unwrap(), left - 2, "{way:?}");
    }
}

/// Permits count for an interval of the clock that goes on from there.
#[test]
fn a_clock_that_is_set_back_frees_no_stranger_and_keeps_none() {
    let world = FewPlaces::occupied();
    let service = world.service(rule("api", 5));
    let start = Clock::now(&world.clock);
    assert_eq!(passed(&service, "ann", 3), 3);
    for back in [EIGHTH, HOUR] {
        world.clock.set(start - back);
        let free = if back == HOUR { 0 } else { 2 };
        assert_eq!(passed(&service, "ann", 50), free, "{back:?}");
    }
    world.clock.advance(INTERVAL - millis(1));
    assert_eq!(passed(&service, "ann", 50), 0);
    world.clock.advance(EIGHTH + millis(1));
    assert_eq!(passed(&service, "ann", 50), 5);
}

#[tokio::test]
async fn a_stranger_that_waits_is_let_pass_when_its_parts_have_left() {
    let world = FewPlaces::occupied();
    let long = rule("api", 2).wait(Duration::from_secs(60));
    let (service, long) = (world.service(rule("api", 2)), world.service(long));
    assert_eq!(passed(&service, "ann", 50), 2);
    let mut waiting = Vec::new();
    for cost in [1, 1] {
        waiting.push(tokio::spawn(long.clone().oneshot(request("ann", cost))));
    }
    until("they wait", async || world.clock.sleepers() > 0).await;
    let wait = refused(ask(&service, "ann", 1)).retry_after();
    world.clock.advance(wait.unwrap());
    for waiter in waiting {
        let answer = waiter.await.unwrap().unwrap();
        assert!(is_from(decision_of(&answer), Source::Estimate));
    }
    // One that cannot wait so long is refused with that wait.
    let short = world.service(rule("api", 2).wait(EIGHTH));
    let answer = short.oneshot(request("ann", 1)).await.unwrap();
    let refusal = refused(decision_of(&answer).clone());
    assert!(refusal.retry_after().unwrap() > EIGHTH);
}
