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

/// What one Redis has time for.
const CALM: Scenario = Scenario {
    rate: 50_000.0,
    ..MANY
};

/// Some three times what one Redis can.
const TOO_MUCH: Scenario = Scenario {
    rate: 400_000.0,
    ..MANY
};

/// Two million requests a second on ten million keys.
const HUGE: Scenario = Scenario {
    processes: 1000,
    keys: 10_000_000,
    rate: 2_000_000.0,
    seconds: 2,
    ..MANY
};

/// What happens to a 50 processes, whose Redis has time for it.
const FLEET: Scenario = Scenario {
    processes: 50,
    keys: 1000,
    limit: 500,
    rate: 40_000.0,
    seconds: 8,
    ..Scenario::PLAIN
};

/// Returns all rows, or all with a tenth of their traffic.
pub(crate) fn all(quick: bool) -> Vec<Scenario> {
    let rows = [shared(), many(), troubled()].concat();
    if quick {
        rows.into_iter().map(tenth).collect()
    } else {
        rows
    }
}

/// Returns the scenario with a tenth of its traffic.
pub(crate) fn tenth(row: Scenario) -> Scenario {
    Scenario {
        rate: row.rate / 10.0,
        keys: row.keys.min(100_000),
        limit: if row.keys == 1 {
            row.limit / 10
        } else {
            row.limit
        },
        processes: row.processes.min(200),
        ..row
    }
}

/// Returns the lines of the plot, each for fleets of any size.
pub(crate) fn lines() -> [Scenario; 4] {
    let of = |name, row| Scenario { name, ..row };
    let leased = Scenario {
        lease: LEASE,
        ..SHARED
    };
    [
        of("one limit", SHARED),
        of("one limit by leases", leased),
        of("1M keys", CALM),
        of("1M keys: too much", TOO_MUCH),
    ]
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
        of("1 limit, 1 process", 1, None),
        of("1 limit, 10 processes", 10, None),
        of("1 limit, 100 processes", 100, None),
        of("1 limit, 1000 processes", 1000, None),
        of("1 limit, 1 process, lease", 1, LEASE),
        of("1 limit, 10 processes, lease", 10, LEASE),
        of("1 limit, 100 processes, lease", 100, LEASE),
        of("1 limit, 1000 processes, lease", 1000, LEASE),
        below("1 limit, within it", None),
        below("1 limit, within it, lease", LEASE),
        Scenario {
            slots: 100,
            ..of("1 limit, 100 processes, slots", 100, None)
        },
        Scenario {
            algorithm: Algorithm::Gcra,
            ..of("1 limit, 100 processes, GCRA", 100, None)
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
        Scenario {
            processes: 10,
            ..of("1M keys, too much, 10 processes", 1, TOO_MUCH)
        },
        of("1M keys, too much, 100 processes", 1, TOO_MUCH),
        of("1M keys, log", 1, CALM),
        of("1M keys, GCRA", 1, counted(CALM)),
        of("1M keys, log, 6 nodes", 6, MANY),
        of("1M keys, GCRA, 6 nodes", 6, counted(MANY)),
        of("10M keys, log, 32 nodes", 32, HUGE),
        of("10M keys, GCRA, 32 nodes", 32, counted(HUGE)),
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
        of("50 processes, calm", Trouble::Calm, None),
        of("50 processes, crashes", Trouble::Crashes, None),
        of("50 processes, crashes, lease", Trouble::Crashes, LEASE),
        of("50 processes, partition", Trouble::Partition, None),
        of("50 processes, partition, lease", Trouble::Partition, LEASE),
        of("50 processes, deploy", Trouble::Deploy, None),
        of("50 processes, deploy, lease", Trouble::Deploy, LEASE),
    ]
}
