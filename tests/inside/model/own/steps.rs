//! What happens to limiters in our own format.

use super::*;

#[derive(Clone, Debug)]
pub(super) enum Step {
    /// In one command, if there are several
    Ask(Vec<Question>),
    Advance(i64),
    At(usize, One),
}

/// Callers ask for permits of some limiters.
#[derive(Clone, Debug)]
pub(super) struct Question {
    pub(super) which: Vec<usize>,
    pub(super) callers: Vec<[u32; LIMITERS]>,
    pub(super) shadow: [bool; LIMITERS],
    pub(super) waits: bool,
    /// Permits, and by how many thousandths of the interval
    pub(super) ahead: Option<(u32, i64)>,
    pub(super) again: Again,
    /// Set if a lone caller asks as one, if it can.
    pub(super) is_lone: bool,
    /// Set if the first caller gives up before its call arrives.
    pub(super) gives_up: bool,
}

/// Whether callers ask once more, as the connection was lost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Again {
    Never,
    /// After the call was carried out, so many times, and so many ms later
    After(usize, i64),
    /// As it was not carried out
    Instead,
}

/// What happens to one limiter.
#[derive(Clone, Debug)]
pub(super) enum One {
    /// So many times
    Settle(Index, u32, usize),
    Release(u32),
    /// It is asked for what is left, so many ms later.
    Left(i64),
    Lose,
}

fn question() -> impl Strategy<Value = Question> {
    let which = prop_oneof![
        3 => (0..LIMITERS).prop_map(|limiter| vec![limiter]),
        2 => proptest::sample::subsequence((0..LIMITERS).collect::<Vec<_>>(), 2..=LIMITERS),
    ];
    let permits = || prop_oneof![8 => 1u32..4, 3 => 1u32..7, 1 => Just(6000u32)];
    let equal = (uniform3(permits()), 1usize..6).prop_map(|(permits, count)| vec![permits; count]);
    let callers = prop_oneof![
        3 => proptest::collection::vec(uniform3(permits()), 1..5),
        2 => equal,
        3 => uniform3(permits()).prop_map(|permits| vec![permits]),
    ];
    let again = prop_oneof![
        6 => Just(Again::Never),
        1 => (1usize..3, prop_oneof![Just(0i64), 1i64..45])
            .prop_map(|(times, by)| Again::After(times, by)),
        1 => Just(Again::Instead),
    ];
    let ahead = proptest::option::weighted(0.25, (1u32..5, 1i64..=100));
    let ways = (any::<bool>(), any::<bool>(), proptest::bool::weighted(0.1));
    let shadow = uniform3(proptest::bool::weighted(0.15));
    (which, callers, shadow, ahead, again, ways).prop_map(
        |(which, callers, shadow, ahead, again, (waits, is_lone, gives_up))| Question {
            which,
            callers,
            shadow,
            waits,
            ahead,
            again,
            is_lone,
            gives_up,
        },
    )
}

pub(super) fn step() -> impl Strategy<Value = Step> {
    let moves = || {
        prop_oneof![
            3 => proptest::sample::select(
                &[0i64, 1, 1, 7, 49, 50, 99, 100, 399, 400, 401, 600, 999, 1000, 1001, 3000][..]
            ),
            2 => 0i64..700,
        ]
    };
    let one = prop_oneof![
        5 => (any::<Index>(), 0u32..9, 1usize..3)
            .prop_map(|(which, keep, times)| One::Settle(which, keep, times)),
        1 => (1u32..9).prop_map(One::Release),
        2 => moves().prop_map(One::Left),
        1 => Just(One::Lose),
    ];
    prop_oneof![
        5 => question().prop_map(|question| Step::Ask(vec![question])),
        2 => proptest::collection::vec(question(), 2..5).prop_map(Step::Ask),
        3 => moves().prop_map(Step::Advance),
        3 => (0..LIMITERS, one).prop_map(|(limiter, one)| Step::At(limiter, one)),
    ]
}
