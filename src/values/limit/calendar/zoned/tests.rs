use proptest::prelude::*;

use super::*;
use crate::ConfigErrorKind;

const DAY: i64 = 86_400_000;

fn at(text: &str) -> i64 {
    text.parse::<Timestamp>().unwrap().as_millisecond()
}

fn length(window: Window) -> i64 {
    window.end - window.start
}

fn limit(text: &str) -> Limit {
    text.parse().unwrap()
}

fn windows(limit: Limit, now: i64) -> [Window; 2] {
    limit.calendar().unwrap().windows(now)
}

/// Each row: an instant, the label and the bounds of its window, and the limit.
const WINDOWS: &str = "
    2026-11-24T10:00Z        20261101 2026-11-01T00:00Z 2026-12-01T00:00Z 1/month
    2026-11-30T22:59:59.999Z 20261101 2026-10-31T23:00Z 2026-11-30T23:00Z 1/month Europe/Berlin
    2026-11-30T23:00Z        20261201 2026-11-30T23:00Z 2026-12-31T23:00Z 1/month Europe/Berlin
    2026-11-14T23:59Z        20261015 2026-10-15T00:00Z 2026-11-15T00:00Z 1/month from 15
    2027-02-27T12:00Z        20270131 2027-01-31T00:00Z 2027-02-28T00:00Z 1/month from 31
    2027-03-30T12:00Z        20270228 2027-02-28T00:00Z 2027-03-31T00:00Z 1/month from 31
    2028-02-29T12:00Z        20280229 2028-02-29T00:00Z 2028-03-30T00:00Z 1/month from 30
    2026-11-29T12:00Z        20261123 2026-11-23T00:00Z 2026-11-30T00:00Z 1/week
    2026-11-28T12:00Z        20261122 2026-11-22T00:00Z 2026-11-29T00:00Z 1/week from sunday
    2026-11-29T12:00Z        20261129 2026-11-29T00:00Z 2026-12-06T00:00Z 1/week from sunday
    # 23 and 25 hours.
    2026-03-29T12:00Z        20260329 2026-03-28T23:00Z 2026-03-29T22:00Z 1/day Europe/Berlin
    2026-10-25T12:00Z        20261025 2026-10-24T22:00Z 2026-10-25T23:00Z 1/day Europe/Berlin
    # There is no midnight: clocks went from 00:00 to 01:00.
    2018-11-04T12:00Z        20181104 2018-11-04T03:00Z 2018-11-05T02:00Z 1/day America/Sao_Paulo
    # Nor here: from 23:30 to 00:30.
    1919-03-31T12:00Z        19190331 1919-03-31T04:30Z 1919-04-01T04:00Z 1/day America/Toronto
    # There are two: from 01:00 back to 00:00.
    2025-11-02T05:30Z        20251102 2025-11-02T04:00Z 2025-11-03T05:00Z 1/day America/Havana
    # At 00:01 back to 23:01: the date falls, and the window does not.
    2006-10-29T03:00Z        20061029 2006-10-29T02:30Z 2006-10-30T03:30Z 1/day America/St_Johns
    # The 30th was left out.
    2011-12-30T09:59Z        20111229 2011-12-29T10:00Z 2011-12-30T10:00Z 1/day Pacific/Apia
    2011-12-30T10:00Z        20111231 2011-12-30T10:00Z 2011-12-31T10:00Z 1/day Pacific/Apia
";

#[test]
fn a_window_begins_at_the_first_instant_of_its_date() {
    let rows = WINDOWS.lines().map(str::trim);
    for row in rows.filter(|row| !row.is_empty() && !row.starts_with('#')) {
        let (columns, text) = row.split_at(70);
        let columns: Vec<_> = columns.split_whitespace().collect();
        let [now, label, start, end] = columns[..] else {
            panic!("{row}");
        };
        let [present, next] = windows(limit(text), at(now));
        let expected = Window {
            label: label.parse().unwrap(),
            start: at(start),
            end: at(end),
        };
        assert_eq!(present, expected, "{row}");
        assert_eq!(next.start, present.end, "{row}");
    }
}

fn any_limit() -> impl Strategy<Value = Limit> {
    const ZONES: &[&str] = &[
        "UTC",
        "Europe/Berlin",
        "America/St_Johns",
        "Pacific/Apia",
        "Asia/Beirut",
    ];
    const DAYS: &[&str] = &["monday", "sunday", "thursday"];
    let period = prop_oneof![
        Just((Limit::daily(7), None)),
        proptest::sample::select(DAYS)
            .prop_map(|day| (Limit::weekly(7), Some(day.parse().unwrap()))),
        (1u8..=31).prop_map(|day| (Limit::monthly(7), Some(Day(day)))),
    ];
    (period, proptest::sample::select(ZONES)).prop_map(|((limit, day), zone)| {
        let limit = limit.in_zone(zone).unwrap();
        day.map_or(limit, |day| limit.starting_on(day).unwrap())
    })
}

proptest! {
    #[test]
    fn windows_follow_each_other_and_are_the_same_from_every_instant(
        limit in any_limit(),
        now in at("1960-01-01T00:00Z")..at("2100-01-01T00:00Z"),
        part in 0i64..1000,
    ) {
        let [present, next] = windows(limit, now);
        prop_assert!(present.holds(now));
        prop_assert_eq!(present.end, next.start);
        prop_assert!(present.label < next.label && length(next) > 0);
        prop_assert!(length(present) <= 31 * DAY + DAY / 12);
        for instant in [
            present.start,
            present.start + length(present) * part / 1000,
            present.end - 1,
        ] {
            prop_assert_eq!(windows(limit, instant), [present, next]);
        }
        prop_assert_eq!(windows(limit, present.end)[0], next);
        prop_assert_eq!(windows(limit, present.start - 1)[1], present);
    }

    #[test]
    fn what_is_written_is_read(limit in any_limit()) {
        prop_assert_eq!(limit.to_string().parse::<Limit>().unwrap(), limit);
    }
}

#[test]
fn a_clock_that_no_calendar_reaches_has_no_window() {
    for now in [i64::MIN / 2, i64::MAX / 2] {
        assert_eq!(windows(Limit::monthly(1), now), [Window::default(); 2]);
    }
}

#[test]
fn mistakes_are_named() {
    let monthly = Limit::monthly(5);
    for (result, says) in [
        (Limit::per_minute(5).in_zone("UTC"), "5/1m has no zone"),
        (
            monthly.in_zone("Mars/Olympus"),
            "\"Mars/Olympus\" is not a time zone: write an IANA name",
        ),
        (
            monthly.in_zone("../etc/passwd"),
            "\"../etc/passwd\" is not a time zone",
        ),
        (monthly.in_zone(""), "\"\" is not a time zone"),
        (Limit::daily(5).starting_on(1), "5/day cannot start on "),
        (monthly.starting_on(0), "5/month cannot start on "),
        (monthly.starting_on(32), "5/month cannot start on "),
        (monthly.starting_on(Monday), "5/month cannot start on "),
        (Limit::weekly(5).starting_on(3), "5/week cannot start on "),
        (Limit::per_day(5).starting_on(3), "5/1d cannot start on "),
        (
            "0/month".parse(),
            "a limit takes 1 to 2^53 - 1 permits, not 0",
        ),
        ("5/month Mars".parse(), "\"Mars\" is not a time zone"),
        ("5/month from".parse(), "\"from\" is not a time zone"),
        ("5/month UTC 3".parse(), "\"UTC 3\" is not a time zone"),
        ("5/month from 3 4".parse(), "\"3 4\" is not a day"),
        (
            "5/month from noon".parse(),
            "\"noon\" is not a day: write `15`, or",
        ),
        (
            "5/fortnight".parse(),
            "\"5/fortnight\" is not a rate: write permits",
        ),
    ] {
        let error = result.unwrap_err();
        assert!(error.to_string().starts_with(says), "{error}");
        assert_eq!(error.kind(), ConfigErrorKind::Limit);
    }
    let kept = monthly.keep_alive(Duration::from_secs(9_999_999));
    assert!(
        kept.unwrap_err()
            .to_string()
            .contains("expires with its window")
    );
    assert_eq!(monthly.keep_alive_time(), None);
}
