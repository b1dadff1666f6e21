//! `axum-governor`, as its README and its example `stacked` show it, with the extractor for a
//! header. It writes its fields by default, and cleans up by a task of its own.

use std::num::NonZeroU32;

use axum_governor::{GovernorConfigBuilder, GovernorLayer, Quota, extractor::Header};

use super::{Entry, Form, Promise, State, contestant};
use crate::contest::{Layered, Limit, USER};

pub(super) const ENTRIES: [Entry; 1] = [Entry {
    name: "axum-governor",
    package: "axum-governor",
    state: State::Process,
    form: Form::Layer,
    promise: Promise::Bucket,
    build: |limits, _| Box::pin(async move { contestant(Layered::new(layer(&limits))) }),
    ..Entry::NONE
}];

/// Its quotas are by second, minute or hour, or seconds for a request; with a burst each of the
/// rates here is one of them.
fn quota(limit: Limit) -> Quota {
    let burst = NonZeroU32::new(limit.permits).unwrap();
    let seconds = u32::try_from(limit.seconds).unwrap();
    let quota = if limit.permits.is_multiple_of(seconds) {
        Quota::requests_per_second(NonZeroU32::new(limit.permits / seconds).unwrap())
    } else {
        assert!(seconds.is_multiple_of(limit.permits), "{limit:?}");
        Quota::seconds_per_request(NonZeroU32::new(seconds / limit.permits).unwrap())
    };
    quota.burst(burst)
}

fn layer(limits: &[Limit]) -> GovernorLayer<String> {
    let config = GovernorConfigBuilder::default()
        .with_extractor(Header(&USER))
        .quota_default(quota(limits[0]));
    let names = ["second", "third"];
    let config = limits[1..]
        .iter()
        .zip(names)
        .fold(config, |config, (limit, name)| {
            config.stack(name, Header(&USER), quota(*limit))
        });
    GovernorLayer::new(config.finish().unwrap())
}
