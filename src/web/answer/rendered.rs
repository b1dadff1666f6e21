//! Refusals over HTTP. Many in a short time have the same answer, so only the first is rendered,
//! and the others are copies of it.

use bytes::Bytes;
use http::Response;

use super::{
    DecisionKind, Fields,
    copies::{self, Copies},
    problem,
};
use crate::values::{
    clock::Millis,
    decision::{Refusal, RefusalKind},
};

thread_local! {
    static ANSWERS: Copies<Shown, Response<Bytes>> = const { copies::none() };
}

/// The part of a refusal by one limit that its answer shows, apart from what its rule says.
#[derive(Clone, Copy, PartialEq)]
struct Shown {
    permits: u64,
    interval: Millis,
    remaining: Option<u64>,
    retry_after: Option<u64>,
    fields: Fields,
    as_text: bool,
}

/// Returns the answer over HTTP, or a copy of an earlier one that is the same.
///
/// Only refusals by one limit that is exceeded are kept: they come in floods. `retry_after` is in
/// seconds.
pub(super) fn answer(
    refusal: &Refusal,
    retry_after: Option<u64>,
    fields: Fields,
    as_text: bool,
) -> Response<Bytes> {
    let render = || render(refusal, retry_after, fields, as_text);
    let [limit] = &refusal.charges[..] else {
        return render();
    };
    let is_plain =
        refusal.kind == RefusalKind::OverLimit && limit.standing.refused && !limit.shadow;
    let is_plain = is_plain && limit.each.is_none() && !limit.compiled().is_in_flight();
    if !is_plain || fields.have_a_time() {
        return render();
    }
    let shown = Shown {
        permits: limit.standing.permits,
        interval: limit.standing.interval,
        remaining: limit.standing.remaining,
        retry_after,
        fields,
        as_text,
    };
    let number = retry_after.unwrap_or(0);
    copies::copy_of(&ANSWERS, limit.compiled(), number, shown, render)
}

/// Builds the answer, with its header fields.
fn render(
    refusal: &Refusal,
    retry_after: Option<u64>,
    fields: Fields,
    as_text: bool,
) -> Response<Bytes> {
    let (mut head, body) = problem::answer(refusal, retry_after, as_text).into_parts();
    let kind = DecisionKind::Refused(retry_after);
    fields.write(&refusal.charges, kind, &mut head);
    Response::from_parts(head, body)
}

#[cfg(test)]
mod tests {
    use std::{fmt, sync::Arc, time::Duration};

    use http::{HeaderMap, StatusCode};
    use proptest::{prelude::*, sample::select};

    use super::*;
    use crate::{
        values::{
            charge::{Charge, Standing},
            compiled_limit::CompiledLimit,
            decision::Source,
            limit::{Limit, LimitSource},
        },
        web::answer::{HeaderStyle, copies::CELLS, headers},
    };

    fn looks(answer: &Response<Bytes>) -> (StatusCode, HeaderMap, Bytes, String) {
        let (status, headers) = (answer.status(), answer.headers().clone());
        let wrote = format!("{:?}", answer.extensions().len());
        (status, headers, answer.body().clone(), wrote)
    }

    fn styles() -> impl Strategy<Value = Fields> {
        let styles = vec![
            vec![],
            vec![HeaderStyle::Draft11],
            vec![HeaderStyle::Draft6, HeaderStyle::Legacy],
            vec![HeaderStyle::Draft11, HeaderStyle::LegacyEpoch],
        ];
        select(styles).prop_map(|styles| Fields::new(&styles).unwrap())
    }

    #[derive(Clone)]
    struct Case(Refusal, Option<u64>, Fields, bool);

    impl fmt::Debug for Case {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            let Self(refusal, retry_after, fields, as_text) = self;
            write!(f, "{refusal:?} {retry_after:?} {fields:?} {as_text}")
        }
    }

    /// Two rules whose answers have the same cell, if all else that is shown is the same, and one
    /// that hides its limit; the limit of a request is a rate, or places in flight.
    fn rules() -> Vec<Arc<CompiledLimit>> {
        let cell = |name: &String| CompiledLimit::new(name, false).answer_hash as usize % CELLS;
        let mut names = (0..).map(|number| format!("rule-{number}"));
        let one = names.next().unwrap();
        let other = names.find(|name| cell(name) == cell(&one)).unwrap();
        let rules = [(&one, false), (&other, false), (&one, true)];
        let places = LimitSource::Code(Limit::in_flight(9, Duration::from_secs(60)));
        let both = |(name, hidden): (&String, bool)| {
            let rule = CompiledLimit::new(name, hidden);
            [rule.with_limit(places), rule]
        };
        rules.map(both).concat()
    }

    fn mostly() -> impl Strategy<Value = bool> + Clone {
        prop::bool::weighted(0.8)
    }

    /// Refusals that differ in little, so that many share a cell, and some are the same.
    fn cases() -> impl Strategy<Value = Case> {
        let rules = rules();
        let shown = (0..rules.len(), 8u64..10);
        let state = (
            select(vec![1, 60]),
            prop::option::of(0u64..1),
            mostly(),
            mostly(),
        );
        let limit = (shown, state).prop_map(move |(shown, state)| {
            let ((rule, permits), (seconds, left, refused, enforced)) = (shown, state);
            let standing = Standing {
                permits,
                interval: seconds * 1000,
                remaining: left,
                wait: Some(Duration::from_secs(1)),
                reset_after: Duration::from_secs(seconds),
                refused,
                banned: false,
                granted: false,
            };
            Charge {
                shadow: !enforced,
                ..Charge::by_hand(Arc::clone(&rules[rule]), standing)
            }
        });
        let limits = prop_oneof![4 => prop::collection::vec(limit.clone(), 1), 1 => prop::collection::vec(limit, 2)];
        let wait = prop::option::weighted(0.8, select(vec![1u64, 2, 65]));
        (limits, wait, styles(), any::<bool>()).prop_map(|(limits, wait, fields, as_text)| {
            let limits = limits.into_iter().collect();
            let refusal = Refusal::by_limits(limits, wait.map(Duration::from_secs), Source::Store);
            Case(refusal, wait, fields, as_text)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// A copy of an answer or a policy equals the same rendered again.
        #[test]
        fn a_copy_equals_a_new_rendering(cases in prop::collection::vec(cases(), 1..200)) {
            for Case(refusal, retry_after, fields, as_text) in cases {
                let fields = fields.as_of_now();
                let found = answer(&refusal, retry_after, fields, as_text);
                let rendered = render(&refusal, retry_after, fields, as_text);
                prop_assert_eq!(looks(&found), looks(&rendered));
                for limit in headers::shown(&refusal.charges) {
                    prop_assert_eq!(headers::policy(limit), headers::render_policy(limit));
                }
            }
        }
    }

    #[test]
    fn copies_keep_nothing_of_a_rule_that_is_gone() {
        let wait = Duration::from_secs(1);
        let refusal = Refusal::for_test(RefusalKind::OverLimit);
        let refusal = refusal.with_limit("gone", Limit::per_minute(10), wait);
        let of = Arc::downgrade(refusal.charges[0].compiled());
        let fields = Fields::new(&[HeaderStyle::Draft11]).unwrap();
        let answer = answer(&refusal, Some(1), fields, false);
        drop(refusal);
        assert!(of.upgrade().is_none(), "{answer:?}");
    }

    #[test]
    fn the_same_refusal_is_rendered_once() {
        let wait = Duration::from_secs(1);
        let limit = |refusal: Refusal| refusal.with_limit("api", Limit::per_minute(10), wait);
        let refusal = limit(Refusal::for_test(RefusalKind::OverLimit));
        let fields = Fields::new(&[HeaderStyle::Draft11]).unwrap();
        let bodies = [0; 2].map(|_| answer(&refusal, Some(1), fields, false).into_body());
        assert_eq!(bodies[0].as_ptr(), bodies[1].as_ptr(), "one text for both");
    }
}
