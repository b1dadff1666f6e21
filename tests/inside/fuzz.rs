//! Replies and errors that no server of ours gives: read without a panic, and taken for nothing
//! that they are not.

use proptest::prelude::*;
use redis::{RedisError, Value, parse_redis_value};

use super::{
    classify, keys,
    redisson::{self, sliding_log},
    reply,
};
use crate::{
    algorithm::gcra::Pace,
    store::redis::packed::{
        Stamp,
        calendar::CalendarRow,
        call::Call,
        gcra::GcraRow,
        log::LogRow,
        requests::{Asked, RunReply},
        row::Row,
        window::WindowRow,
    },
    values::{
        List,
        charge::{Charge, PermitId},
        compiled_limit::CompiledLimit,
        demand::Demand,
        error::{Error, ErrorKind},
        limit::{Algorithm, Ban, Limit, LimitSource, Slots, calendar::Window},
        name::Name,
    },
};

/// Numbers at which arithmetic ends are made likely, and small ones, which mean something.
fn number() -> impl Strategy<Value = i64> {
    const EDGES: [i64; 8] = [i64::MIN, i64::MIN + 1, -4, -1, 0, 1, 2, i64::MAX];
    prop_oneof![
        2 => prop::sample::select(&EDGES[..]),
        3 => -5_i64..2000,
        1 => any::<i64>(),
    ]
}

/// Bytes: numbers with blanks between them, doubles, and anything.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let text = |numbers: Vec<i64>| {
        let texts: Vec<_> = numbers.iter().map(ToString::to_string).collect();
        texts.join(" ").into_bytes()
    };
    let doubles = |numbers: Vec<f64>| numbers.iter().flat_map(|it| it.to_le_bytes()).collect();
    let whole = (-9_007_199_254_740_992_i64..=9_007_199_254_740_992).prop_map(|it| it as f64);
    prop_oneof![
        prop::collection::vec(number(), 0..12).prop_map(text),
        prop::collection::vec(any::<f64>(), 0..4).prop_map(doubles),
        prop::collection::vec(whole, 3).prop_map(doubles),
        prop::collection::vec(any::<u8>(), 0..30),
    ]
}

/// Whatever RESP2 and RESP3 can say, two levels deep.
fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Nil),
        Just(Value::Okay),
        number().prop_map(Value::Int),
        bytes().prop_map(Value::BulkString),
        "[ -~]{0,20}".prop_map(Value::SimpleString),
        any::<f64>().prop_map(Value::Double),
        any::<bool>().prop_map(Value::Boolean),
    ];
    leaf.prop_recursive(2, 40, 12, |inner| {
        let many = || prop::collection::vec(inner.clone(), 0..14);
        prop_oneof![
            many().prop_map(Value::Array),
            many().prop_map(Value::Set),
            prop::collection::vec((inner.clone(), inner.clone()), 0..4).prop_map(Value::Map),
        ]
    })
}

/// Replies that nearly are ours.
fn near() -> impl Strategy<Value = Value> {
    let numbers = || prop::collection::vec(number(), 0..16);
    let begun = numbers().prop_map(|mut numbers| {
        numbers.insert(0, 1);
        numbers
    });
    prop_oneof![numbers().boxed(), begun.boxed()]
        .prop_map(|numbers| Value::Array(numbers.into_iter().map(Value::Int).collect()))
}

fn any_reply() -> impl Strategy<Value = Value> {
    prop_oneof![
        value(),
        near(),
        bytes().prop_map(Value::BulkString),
        number().prop_map(Value::Int),
    ]
}

fn acquire(algorithm: Algorithm, slots: Option<Slots>, limiters: usize) -> Demand {
    let limit = LimitSource::Code(Limit::per_minute(5));
    let of = CompiledLimit::unnamed("fuzz");
    let charge = |number: usize| {
        let name = Name::exact(&format!("{{fuzz}}:{number}")).unwrap();
        let charge = Charge {
            id: PermitId([7; 16]),
            ..Charge::named(name, limit, &of, 1)
        };
        charge.counted(|of| (of.counting.algorithm, of.counting.slots) = (algorithm, slots))
    };
    Demand {
        wants_remaining: true,
        ..Demand::caller((0..limiters).map(charge), false)
    }
}

/// The kinds of error that a reply can be.
fn is_of_replies(error: &Error) -> bool {
    let kinds = [
        ErrorKind::Unavailable,
        ErrorKind::NotInitialized,
        ErrorKind::RateTypeDiffers,
        ErrorKind::ForeignState,
    ];
    kinds.contains(&error.kind())
}

/// The error that a server's line is.
fn error_of(line: &str) -> RedisError {
    match parse_redis_value(line.as_bytes()) {
        Err(error) => error,
        Ok(Value::ServerError(error)) => RedisError::from(error),
        Ok(other) => panic!("{other:?}"),
    }
}

/// The numbers of a reply, read the plain way; `None` where there is anything else.
fn plainly(reply: &Value) -> Option<Vec<i64>> {
    match reply {
        Value::Array(items) => items
            .iter()
            .map(|item| match item {
                Value::Int(number) => Some(*number),
                _ => None,
            })
            .collect(),
        Value::BulkString(bytes) => String::from_utf8(bytes.clone())
            .ok()?
            .split(' ')
            .map(|number| number.parse().ok())
            .collect(),
        _ => None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1500,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// What is decided by a reply was said in it: right in length, with words that scripts have.
    #[test]
    fn a_reply_decides_only_what_it_says(
        reply in any_reply(),
        shaped in prop::option::of((prop::collection::vec(number(), 30), 0_usize..5)),
        limiters in 1_usize..3,
        callers in 1_usize..3,
    ) {
        let length = 2 + 7 * limiters + 2 * limiters * callers;
        // Of the right form, except perhaps its length.
        let reply = match shaped {
            Some((mut numbers, more)) => {
                numbers[0] = 1;
                for status in numbers.iter_mut().skip(2 + 7 * limiters).step_by(2) {
                    *status = status.rem_euclid(4);
                }
                numbers.truncate(length + more - 2);
                Value::Array(numbers.into_iter().map(Value::Int).collect())
            }
            None => reply,
        };
        match redisson::read_answers(&reply, limiters, callers) {
            Ok(answers) => {
                let numbers = plainly(&reply);
                let numbers = numbers.expect("numbers, and nothing else");
                prop_assert_eq!(numbers[0], 1);
                prop_assert_eq!(numbers.len(), length);
                prop_assert_eq!(answers.len(), limiters * callers);
                let statuses = numbers[2 + 7 * limiters..].iter().step_by(2);
                for (answer, status) in answers.iter().zip(statuses) {
                    let granted = answer.verdict == crate::algorithm::answer::Verdict::Granted;
                    prop_assert!((0..=2).contains(status), "{}", status);
                    prop_assert_eq!(granted, *status == 1);
                }
            }
            Err(error) => prop_assert!(is_of_replies(&error), "{:?}", error),
        }
    }

    /// However absurd the numbers: a decision is made of them, and everything that it tells can be
    /// asked for.
    #[test]
    fn absurd_numbers_make_a_decision(numbers in prop::collection::vec(number(), 8), status in 0_i64..3) {
        let algorithms = [
            (Algorithm::SlidingLog, None),
            (Algorithm::SlidingLog, Slots::try_new(10, "a", true, std::iter::empty()).ok()),
            (Algorithm::FixedWindow, None),
            (Algorithm::Gcra, None),
        ];
        let mut all = vec![1];
        all.extend(&numbers);
        all.extend([status, numbers[0]]);
        let reply = Value::Array(all.into_iter().map(Value::Int).collect());
        let answers = redisson::read_answers(&reply, 1, 1).unwrap();
        for (algorithm, slots) in algorithms {
            let decision = acquire(algorithm, slots, 1).decision(&answers);
            prop_assert_eq!(decision.is_allowed(), status == 1);
            let _ = format!("{decision:?}");
        }
    }

    #[test]
    fn no_other_reply_is_taken_for_one_of_ours(reply in any_reply()) {
        let demand = acquire(Algorithm::SlidingLog, None, 1);
        let asked = redisson::CallSettings { client_id: "", now: None, exact: true };
        if let Ok(answers) = sliding_log::brief_answers(&reply, std::slice::from_ref(&demand), asked) {
            let brief = matches!(reply, Value::Int(_)) || plainly(&reply).is_some();
            prop_assert!(brief, "{:?}", reply);
            let granted = demand.decision(&answers).is_allowed();
            if let Value::Int(number) = reply {
                prop_assert_eq!(granted, number >= 0);
            }
        }
        if let Ok(flag) = redisson::reply::flag(&reply) {
            prop_assert_eq!(reply.clone(), Value::Int(flag.into()));
        }
        if let Ok(count) = reply::count(&reply) {
            prop_assert_eq!(reply.clone(), Value::Int(count));
        }
        let _ = (redisson::reply::second(&reply), reply::time_to_live(&reply));
        if let Ok(Some(limit)) = redisson::stored_limit(&reply) {
            let Value::Array(fields) = &reply else { panic!("{reply:?}") };
            let text = |place: usize| match &fields[place] {
                Value::BulkString(bytes) => String::from_utf8(bytes.clone()).unwrap(),
                other => panic!("{other:?}"),
            };
            prop_assert_eq!(text(0).parse::<i64>().unwrap(), limit.rate);
            prop_assert_eq!(text(1).parse::<i64>().unwrap(), limit.interval);
        }
    }

    /// Of every kind, with and without bans.
    #[test]
    fn our_own_format_reads_no_other_reply(
        reply in any_reply(),
        numbers in prop::option::of(prop::collection::vec(number(), 0..14)),
        callers in 1_usize..4,
        bans: bool,
        again: bool,
    ) {
        let limit = LimitSource::Code(Limit::per_minute(5));
        let ban = bans.then(|| Ban::after(3));
        let of = |charge: Charge| charge.by(limit).counted(|of| of.ban = ban);
        let demand = acquire(Algorithm::Gcra, None, 1);
        let charge = of(demand.first().clone());
        let run = vec![Demand::caller([charge], false); callers];
        let reply = numbers.map_or(reply, |numbers| {
            Value::Array(numbers.into_iter().map(Value::Int).collect())
        });
        let window = |label| Window { label, start: 0, end: 9000 * label };
        let by_calendar = CalendarRow { rate: 5, windows: [window(1), window(2)] };
        let pace = Pace::of(5, 60_000).unwrap();
        let (rate, interval) = (5, 60_000);
        let several = Limit::per_minute(5).and(Limit::per_second(2));
        for row in [
            Row::Gcra(GcraRow(pace)),
            Row::Calendar(by_calendar),
            Row::Log(LogRow::of(&Limit::per_minute(5))),
            Row::Log(LogRow::of(&several)),
            Row::Window(WindowRow { rate, interval }),
        ] {
            let stamp = Stamp { id: PermitId::NONE, now: None };
            let asked = Asked { stamp, rows: List::from([row]), bans: None, again };
            if let (Row::Gcra(_), Ok(Some(read))) = (row, asked.read_lone(&reply, &run[..1])) {
                let answers = read.answers.unwrap();
                let is_grant = matches!(&reply, Value::BulkString(bytes) if bytes.len() == 24);
                prop_assert_eq!(run[0].decision(&answers).is_allowed(), is_grant);
            }
            if let (Row::Log(_), Ok(Some(read))) = (row, asked.read_lone(&reply, &run[..1])) {
                let is_grant = match &reply {
                    Value::Int(number) => *number >= 0,
                    Value::Array(numbers) => matches!(numbers[0], Value::Int(0..)),
                    _ => panic!("{reply:?}"),
                };
                let answers = read.answers.unwrap();
                prop_assert_eq!(run[0].decision(&answers).is_allowed(), is_grant);
            }
            match asked.read(&reply, &run) {
                Ok(read) => {
                    let answers = read.answers.unwrap_or_default();
                    prop_assert!([0, callers].contains(&answers.len()));
                    for answer in answers {
                        let _ = format!("{:?}", run[0].decision(&[answer]));
                    }
                }
                Err(error) => prop_assert!(is_of_replies(&error), "{:?}", error),
            }
        }
    }

    /// Each call is answered as if it had been sent alone, or by an error if its requests are told
    /// more or less than they need.
    #[test]
    fn a_joint_reply_is_parted_among_its_calls(
        told in prop::collection::vec(
            prop::collection::vec(
                prop_oneof![
                    9 => (0..300_000_i64).prop_map(|number| vec![number]),
                    1 => prop::collection::vec(-9..300_000_i64, 0..4),
                ],
                1..4,
            ),
            1..6,
        ),
        other in any_reply(),
    ) {
        let limit = LimitSource::Code(Limit::per_minute(5));
        let demand = acquire(Algorithm::SlidingLog, None, 1);
        let row = Row::Log(LogRow::of(&Limit::per_minute(5)));
        let stamp = Stamp { id: PermitId::NONE, now: None };
        let asked = Asked { stamp, rows: List::from([row]), bans: None, again: false };
        // A request of each caller, as no two ask for the same.
        let runs: Vec<Vec<_>> = told.iter().map(|requests| {
            let permits = 1_u32..=requests.len() as u32;
            permits.map(|permits| {
                let charge = demand.first().clone().by(limit);
                Demand::caller([Charge { permits, ..charge }], false)
            }).collect()
        }).collect();
        let mut joined = Call::default();
        runs.iter().for_each(|run| asked.add_to(&mut joined, run));
        let read = |read: Result<RunReply, Error>| read.map(|it| it.answers).map_err(|it| it.kind());
        let array = |numbers: Vec<i64>| {
            let all = [1_790_000_000_000_000].into_iter().chain(numbers);
            Value::Array(all.map(Value::Int).collect())
        };
        let has_counts = told.len() > 1;
        let count = |numbers: &Vec<i64>| has_counts.then_some(numbers.len() as i64);
        let all = told.iter().flatten().flat_map(|it| count(it).into_iter().chain(it.clone()));
        let reply = array(all.collect());
        let mut parts = joined.replies(&reply);
        for (requests, run) in told.iter().zip(&runs) {
            let part = parts.next().flatten().unwrap();
            let alone = read(asked.read(&array(requests.concat()), run));
            let read = read(asked.read_part(part, run));
            prop_assert!(read == alone || read.is_err(), "{:?} {:?}", read, alone);
            let is_usual = requests.iter().all(|told| told.len() == 1 && told[0] >= 0);
            prop_assert!(read.is_ok() || !is_usual, "{:?}", read);
        }
        // Behind a count that is too great nothing is read.
        if has_counts && let Value::Array(mut numbers) = reply.clone() {
            numbers[1] = Value::Int(1000);
            let cut = Value::Array(numbers);
            prop_assert!(joined.replies(&cut).all(|part| part.is_none()));
        }
        // Another reply is an error at most.
        for (part, run) in joined.replies(&other).zip(&runs) {
            let read = part.map(|part| asked.read_part(part, run));
            if let Some(Err(error)) = read {
                prop_assert!(is_of_replies(&error), "{:?}", error);
            }
        }
    }

    /// As they come from the socket.
    #[test]
    fn any_bytes_of_a_server_are_read(bytes in prop::collection::vec(any::<u8>(), 0..40), mark in "[-+:$*%~_#,(=>!|]") {
        let bytes = [mark.as_bytes(), &bytes, b"\r\n"].concat();
        match parse_redis_value(&bytes) {
            Ok(reply) => {
                let _ = redisson::read_answers(&reply, 1, 1);
            }
            Err(error) => {
                let kind = classify::failure(error).kind();
                prop_assert!(kind != ErrorKind::NotInitialized, "{:?}", kind);
            }
        }
    }

    /// A word of the server's never becomes a decision, or a kind that says that nothing of ours is
    /// there.
    #[test]
    fn whatever_a_server_says_has_a_class(code in "[A-Z]{1,12}", said in "[ -~]{0,60}") {
        let failed = classify::failure(error_of(&format!("-{code} {said}\r\n")));
        let known = [
            ErrorKind::Unavailable,
            ErrorKind::Rejected,
            ErrorKind::ForeignState,
            ErrorKind::OtherSlot,
            ErrorKind::Timeout,
        ];
        prop_assert!(known.contains(&failed.kind()), "{:?}", failed);
        let shown = failed.to_string();
        prop_assert!(said.len() < 12 || !shown.contains(&said), "{}", shown);
    }
}

/// Members and keys: what was packed is found again, and nothing else is taken for it.
mod encoders {
    use super::*;

    /// The second is often made from the first, as a limiter's other keys are.
    fn two_names() -> impl Strategy<Value = (String, String)> {
        let name = || "[a{}:]{1,8}(:value|:permits)?";
        let ways = ["", "{", "}", ":value", ":permits", ":value:c", ":permits:c"];
        let way = || prop::sample::select(ways.to_vec());
        (name(), name(), way(), way(), any::<bool>()).prop_map(|(a, b, before, behind, related)| {
            let b = if related {
                format!("{before}{a}{behind}")
            } else {
                b
            };
            (a, b)
        })
    }

    proptest! {
        // A failure prints its case: a file of seeds would stand in `src`, by this file's path.
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn members_are_those_that_were_packed(id in any::<[u8; 16]>(), permits: u32) {
            let member = redisson::format::member(PermitId(id), permits);
            prop_assert_eq!(redisson::permits(&member), Some(permits));
        }

        #[test]
        fn other_members_are_foreign(member in prop::collection::vec(any::<u8>(), 0..40)) {
            let held = redisson::permits(&member);
            prop_assert_eq!(held.is_some(), [8, 13, 20, 21].contains(&member.len()));
        }

        /// Two names have no key in common, and the keys of one are in one slot. Redisson's rule
        /// has one exception: `{a}` keeps its braces, `a` gets them, and their values and logs are
        /// the same.
        #[test]
        fn keys_are_apart((a, b) in two_names()) {
            let (Ok(first), Ok(second)) = (Name::exact(&a), Name::exact(&b)) else { return Ok(()) };
            let keys = [&first, &second].map(|name| redisson::keys(name, "c"));
            let enclosed = |name: &str, other: &str| name == format!("{{{other}}}");
            if a != b && !enclosed(&a, &b) && !enclosed(&b, &a) {
                for key in &keys[0] {
                    prop_assert!(!keys[1].contains(key), "{} and {}: {}", a, b, key);
                }
            }
            for key in &keys[0] {
                let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
                let slot = tag.map_or(key.as_str(), |(tag, _)| tag);
                prop_assert_eq!(slot, keys::tag(&first), "{}", key);
            }
        }
    }
}

/// What a server quotes of a command is a key.
#[test]
fn the_words_of_a_command_are_not_repeated() {
    let said = "-ERR unknown command 'EVALSHA', with args beginning with: 'f00' '5' 'ratelimit:{marker}:api' \r\n";
    let error = error_of(said);
    assert!(error.to_string().contains("marker"), "{error}");
    let failed = classify::failure(error);
    assert_eq!(failed.kind(), ErrorKind::Rejected);
    assert!(
        !format!("{failed:?} {failed}").contains("marker"),
        "{failed:?}"
    );
}
