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
        Goal::{AtMost, RatioAtMost, Reported},
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

type Case = (&'static str, Peer, Option<f64>, Option<f64>);

/// A scene beside a peer, with the goals: nanoseconds, and how many times the peer's. Both peers
/// count by GCRA, and write no fields.
#[rustfmt::skip]
const CASES: [Case; 27] = [
    ("by hand, extension and fields", Governor, None, None),
    ("by hand, admitted, GCRA", Governor, None, None),
    ("by hand, admitted, GCRA, without fields", Governor, None, None),
    ("by hand, admitted, sliding log", Governor, None, None),
    ("by hand, admitted, lease", Governor, None, None),
    ("by hand, admitted, GCRA, 100,000 keys", TowerGovernor, None, None),
    ("by hand, admitted, sliding log, 100,000 keys", TowerGovernor, None, None),
    ("by hand, refused, without fields", Governor, None, None),
    ("by hand, refused", Governor, None, None),
    ("by hand, refused, 100,000 keys", TowerGovernor, None, None),
    ("admitted, GCRA", Governor, Some(300.0), Some(4.8)),
    ("admitted, GCRA, decision in the response", Governor, None, None),
    ("admitted, GCRA, without fields", Governor, None, None),
    ("admitted, fixed window", Governor, None, None),
    ("admitted, sliding log", Governor, Some(350.0), None),
    ("admitted, list of three limits", Governor, None, None),
    ("admitted, GCRA", TowerGovernor, None, None),
    ("admitted, GCRA, 100,000 keys", TowerGovernor, None, Some(1.5)),
    ("admitted, sliding log, 100,000 keys", TowerGovernor, None, Some(1.5)),
    ("refused, GCRA, without fields", Governor, Some(285.0), Some(2.2)),
    ("refused, GCRA", Governor, Some(330.0), None),
    ("refused, GCRA", TowerGovernor, None, Some(0.03)),
    ("refused, GCRA, 100,000 keys", TowerGovernor, None, Some(0.03)),
    ("refused, deny cache, no observer", Governor, None, None),
    ("refused, deny cache", Governor, Some(330.0), None),
    ("refused, deny cache, metrics", Governor, None, None),
    ("admitted, lease", Governor, Some(420.0), None),
];

pub(super) fn rows(pace: Pace) -> impl Iterator<Item = Row> {
    let chunks = pace.pick(501, 101);
    let rounds = Rounds::of(2, pace.pick(21, 3));
    CASES.into_iter().map(move |(scene, peer, most, ratio)| {
        let (name, beside) = match peer {
            TowerGovernor => ("tower_governor", "tower_governor through its layer"),
            Governor => ("governor", "governor called directly by a service"),
        };
        let goals = [most.map(AtMost), ratio.map(RatioAtMost)];
        let goals: Vec<_> = goals.into_iter().flatten().collect();
        let goals = if goals.is_empty() { vec![Reported] } else { goals };
        let figures = goals.into_iter().map(|goal| figure("ns added per request", goal));
        let figures: Vec<_> = figures.collect();
        Row {
            name: format!("in process, {scene}, {name}"),
            parameters: format!(
                "Service::call and its answer, one thread, no network, the median of {chunks} times {CHUNK} calls a turn"
            ),
            beside,
            needs: &[],
            rounds,
            figures: figures.clone(),
            begin: Box::new(move || {
                let calls = (rounds.warm_up + rounds.counted) * chunks * CHUNK;
                Box::new(Layers::begin(scene, peer, chunks, calls, figures.len()))
            }),
        }
    })
}

struct Layers {
    runtime: Runtime,
    chunks: usize,
    /// How many goals the same number has.
    figures: usize,
    bare: Asker,
    ours: Asker,
    theirs: Asker,
}

impl Layers {
    fn begin(scene: &str, peer: Peer, chunks: usize, calls: usize, figures: usize) -> Self {
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
            figures,
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
        vec![added(self.chunks, &mut self.bare, &mut self.ours); self.figures]
    }

    fn theirs(&mut self) -> Vec<Option<f64>> {
        vec![Some(added(self.chunks, &mut self.bare, &mut self.theirs)); self.figures]
    }
}
