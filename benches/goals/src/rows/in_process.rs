//! What a layer adds to a request that it answers without a call to a server, beside layers that
//! count in memory.

use std::time::{Duration, Instant};

use http::StatusCode;
use tokio::runtime::Runtime;
use tower::Layer;

use super::Pace;
use crate::{
    figures::median,
    governor::{self, Direct},
    in_process::{Asker, MANY, SCENES, asker},
    requests::{nothing, one_thread},
    row::{
        Contest,
        Goal::{RatioAtMost, Reported},
        Rounds, Row, figure,
    },
};

/// So short that most are not interrupted: what else the machine does falls out of the median.
const CHUNK: usize = 50;

#[derive(Clone, Copy, Debug)]
enum Peer {
    TowerGovernor,
    Governor,
}
use Peer::{Governor, TowerGovernor};

type Case = (&'static str, Peer, Option<f64>);

/// A scene beside a peer, with the goal: how many times the peer's. Both peers count by GCRA, and
/// write no fields.
#[rustfmt::skip]
const CASES: [Case; 27] = [
    ("by hand, extension and fields", Governor, None),
    ("by hand, admitted, GCRA", Governor, None),
    ("by hand, admitted, GCRA, without fields", Governor, None),
    ("by hand, admitted, sliding log", Governor, None),
    ("by hand, admitted, lease", Governor, None),
    ("by hand, admitted, GCRA, 100,000 keys", TowerGovernor, None),
    ("by hand, admitted, sliding log, 100,000 keys", TowerGovernor, None),
    ("by hand, refused, without fields", Governor, None),
    ("by hand, refused", Governor, None),
    ("by hand, refused, 100,000 keys", TowerGovernor, None),
    ("admitted, GCRA", Governor, None),
    ("admitted, GCRA, decision in the response", Governor, None),
    ("admitted, GCRA, without fields", Governor, None),
    ("admitted, fixed window", Governor, None),
    ("admitted, sliding log", Governor, None),
    ("admitted, list of three limits", Governor, None),
    ("admitted, GCRA", TowerGovernor, None),
    ("admitted, GCRA, 100,000 keys", TowerGovernor, None),
    ("admitted, sliding log, 100,000 keys", TowerGovernor, None),
    ("refused, GCRA, without fields", Governor, None),
    ("refused, GCRA", Governor, None),
    ("refused, GCRA", TowerGovernor, Some(0.03)),
    ("refused, GCRA, 100,000 keys", TowerGovernor, Some(0.03)),
    ("refused, deny cache, no observer", Governor, None),
    ("refused, deny cache", Governor, None),
    ("refused, deny cache, metrics", Governor, None),
    ("admitted, lease", Governor, None),
];

pub(super) fn rows(pace: Pace) -> impl Iterator<Item = Row> {
    let chunks = pace.pick(501, 101);
    let rounds = Rounds::of(2, pace.pick(21, 3));
    CASES.into_iter().map(move |(scene, peer, ratio)| {
        let (name, beside) = match peer {
            TowerGovernor => ("tower_governor", "tower_governor through its layer"),
            Governor => ("governor", "governor called directly by a service"),
        };
        let goal = ratio.map_or(Reported, RatioAtMost);
        Row {
            name: format!("in process, {scene}, {name}"),
            parameters: format!(
                "Service::call and its answer, one thread, no network, the median of {chunks} times {CHUNK} calls a turn"
            ),
            beside,
            needs: &[],
            rounds,
            figures: vec![figure("ns added per request", goal)],
            begin: Box::new(move || {
                let calls = (rounds.warm_up + rounds.counted) * chunks * CHUNK;
                Box::new(Layers::begin(scene, peer, chunks, calls))
            }),
        }
    })
}

struct Layers {
    runtime: Runtime,
    chunks: usize,
    bare: Asker,
    ours: Asker,
    theirs: Asker,
}

impl Layers {
    fn begin(scene: &str, peer: Peer, chunks: usize, calls: usize) -> Self {
        let runtime = one_thread();
        let ours = SCENES.iter().find(|known| known.name == scene);
        let mut ours = (ours.expect("a scene").begin)(&runtime, calls);
        let keys = if scene.ends_with("100,000 keys") {
            MANY
        } else {
            1
        };
        let (burst, refill) = if ours.status == StatusCode::OK {
            (u32::MAX, Duration::from_nanos(1))
        } else {
            (1, Duration::from_secs(3600))
        };
        let mut theirs = match peer {
            TowerGovernor => {
                let layer = governor::layer(burst, refill);
                asker(layer.layer(nothing()), keys, ours.status)
            }
            Governor => asker(Direct::new(nothing(), burst, refill), keys, ours.status),
        };
        let inside = runtime.enter();
        for asker in [&mut ours, &mut theirs] {
            for _ in 0..asker.before {
                (asker.ask)();
            }
        }
        drop(inside);
        Self {
            runtime,
            chunks,
            bare: asker(nothing(), keys, StatusCode::OK),
            ours,
            theirs,
        }
    }
}

/// What a layer adds: the service alone has its chunks between.
fn added(chunks: usize, bare: &mut Asker, with: &mut Asker) -> f64 {
    let (mut alone, mut limited) = (Vec::new(), Vec::new());
    for _ in 0..chunks {
        alone.push(chunk(bare));
        limited.push(chunk(with));
    }
    median(limited) - median(alone)
}

/// Nanoseconds per request.
pub(crate) fn chunk(asker: &mut Asker) -> f64 {
    let began = Instant::now();
    for _ in 0..CHUNK {
        assert_eq!((asker.ask)(), asker.status);
    }
    began.elapsed().as_nanos() as f64 / CHUNK as f64
}

impl Contest for Layers {
    fn ours(&mut self) -> Vec<f64> {
        let _inside = self.runtime.enter();
        vec![added(self.chunks, &mut self.bare, &mut self.ours)]
    }

    fn theirs(&mut self) -> Vec<Option<f64>> {
        vec![Some(added(self.chunks, &mut self.bare, &mut self.theirs))]
    }
}
