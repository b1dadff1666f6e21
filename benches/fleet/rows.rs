//! The fleets that are simulated.

use std::time::Duration;

use tower_ratelimit_fleet::fleet::{Algorithm, Scenario, Trouble};

const LEASE: Option<Duration> = Some(Duration::from_millis(50));

/// One limit of 50,000 a second that all share, and twice as many requests.
const SHARED: Scenario = Scenario::PLAIN;

/// A limit of 100 a second for each of a million keys.
const MANY: Scenario = Scenario {
    processes: 100,
    keys: 1_000_000,
    limit: 100,
    rate: 200_000.0,
    ..Scenario::PLAIN
};

/// Two million requests a second on ten million keys.
const HUGE: Scenario = Scenario {
    processes: 1000,
    keys: 10_000_000,
    rate: 2_000_000.0,
    seconds: 2,
    ..MANY
};

/// What happens to a fleet of 50.
const FLEET: Scenario = Scenario {
    processes: 50,
    keys: 1000,
    limit: 1000,
    rate: 100_000.0,
    seconds: 8,
    ..Scenario::PLAIN
};

/// Returns all rows, or all with a tenth of their traffic.
pub(crate) fn all(quick: bool) -> Vec<Scenario> {
    let rows = [shared(), many(), troubled()].concat();
    if !quick {
        return rows;
    }
    let quick = |row: Scenario| Scenario {
        rate: row.rate / 10.0,
        keys: row.keys.min(100_000),
        limit: if row.keys == 1 { row.limit / 10 } else { row.limit },
        processes: row.processes.min(200),
        ..row
    };
    rows.into_iter().map(quick).collect()
}

fn shared() -> Vec<Scenario> {
    let of = |name, processes, lease| Scenario {
        name,
        processes,
        lease,
        ..SHARED
    };
    let below = |name, lease| Scenario {
        rate: 40_000.0,
        ..of(name, 100, lease)
    };
    vec![
        of("one limit, 1 process", 1, None),
        of("one limit, 10 processes", 10, None),
        of("one limit, 100 processes", 100, None),
        of("one limit, 1000 processes", 1000, None),
        of("one limit, 1 process, lease", 1, LEASE),
        of("one limit, 10 processes, lease", 10, LEASE),
        of("one limit, 100 processes, lease", 100, LEASE),
        of("one limit, 1000 processes, lease", 1000, LEASE),
        below("one limit, within it", None),
        below("one limit, within it, lease", LEASE),
        Scenario {
            slots: 100,
            ..of("one limit, 100 processes, slots", 100, None)
        },
        Scenario {
            algorithm: Algorithm::Gcra,
            ..of("one limit, 100 processes, GCRA", 100, None)
        },
    ]
}

fn many() -> Vec<Scenario> {
    let gcra = Algorithm::Gcra;
    let of = |name, nodes, scenario| Scenario {
        name,
        nodes,
        ..scenario
    };
    let counted = |scenario| Scenario {
        algorithm: gcra,
        ..scenario
    };
    vec![
        of("million keys, log", 1, MANY),
        of("million keys, GCRA", 1, counted(MANY)),
        of("million keys, log, Cluster of 6", 6, MANY),
        of("million keys, GCRA, Cluster of 6", 6, counted(MANY)),
        of("ten million keys, log, Cluster of 64", 64, HUGE),
        of("ten million keys, GCRA, one Redis", 1, counted(HUGE)),
        of("ten million keys, GCRA, Cluster of 32", 32, counted(HUGE)),
    ]
}

fn troubled() -> Vec<Scenario> {
    let of = |name, trouble, lease| Scenario {
        name,
        trouble,
        lease,
        ..FLEET
    };
    vec![
        of("fleet of 50, calm", Trouble::Calm, None),
        of("fleet of 50, crashes", Trouble::Crashes, None),
        of("fleet of 50, crashes, lease", Trouble::Crashes, LEASE),
        of("fleet of 50, partition", Trouble::Partition, None),
        of("fleet of 50, partition, lease", Trouble::Partition, LEASE),
        of("fleet of 50, deploy", Trouble::Deploy, None),
        of("fleet of 50, deploy, lease", Trouble::Deploy, LEASE),
    ]
}
