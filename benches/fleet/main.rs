//! Simulates fleets of processes that share limits: `benches/fleet.sh --help`.
//!
//! The guards are those of the crate, and each process has its own: deny cache, leases, queues,
//! deadline, breaker, failure policy. Servers are the crate's pure algorithms, each with a measured
//! cost. Clock, network and servers are simulated: see `world/mod.rs`, which is compiled into the
//! library under the cfg `fleet`.

mod machine;
#[path = "../shared/plot.rs"]
mod plot;
mod rows;
mod table;

use std::{
    fs,
    process::ExitCode,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::Instant,
};

use plot::Plot;
use tower_ratelimit_fleet::fleet::{self, Broken, Outcome, Scenario};

const HELP: &str = "\
Usage: benches/fleet.sh [--rows WORD]... [--seed NUMBER] [--break WHAT] [--quick] [--list]
       benches/fleet.sh --plot [--seed NUMBER]

Simulates fleets of processes that share limits, and prints a table as Markdown. Equal seeds print
equal tables. Fails if an interval has more permits than its limit allows.

Options:
    --rows WORD      only rows with WORD in their names
    --seed NUMBER    another seed than 1
    --break WHAT     breaks something on purpose, so that it must fail: `store` forgets each
                     hundredth grant, `lease` counts leased permits too early, `reply` hands a
                     grant to two callers
    --quick          a tenth of the traffic and of the limits that are shared
    --list           the names of the rows, and nothing else
    --plot           instead: writes benches/plots/fleet.csv and .svg, what fleets of different size
                     use of their limits
";

const PLOT: &str = "benches/plots/fleet";
/// Numbers of processes.
const SIZES: [usize; 7] = [1, 3, 10, 30, 100, 300, 1000];

struct Arguments {
    rows: Vec<Scenario>,
    seed: u64,
    list: bool,
    plot: bool,
}

fn main() -> ExitCode {
    let arguments = match read(std::env::args().skip(1)) {
        Ok(Some(arguments)) => arguments,
        Ok(None) => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Err(reason) => {
            eprint!("benches/fleet.sh: {reason}\n\n{HELP}");
            return ExitCode::from(2);
        }
    };
    if arguments.list {
        arguments
            .rows
            .iter()
            .for_each(|row| println!("{}", row.name));
        return ExitCode::SUCCESS;
    }
    let outcomes = run(&arguments.rows, arguments.seed);
    if arguments.plot {
        let plot = plot_of(&outcomes, arguments.seed);
        let written = fs::write(format!("{PLOT}.csv"), plot.text())
            .and_then(|()| fs::write(format!("{PLOT}.svg"), plot.svg()));
        if let Err(error) = written {
            eprintln!("benches/fleet.sh: {PLOT}: {error}");
            return ExitCode::FAILURE;
        }
    } else {
        print!("{}", table::markdown(&arguments.rows, &outcomes));
    }
    let over: u64 = outcomes.iter().map(|outcome| outcome.over).sum();
    if over > 0 {
        eprintln!("benches/fleet.sh: {over} permits beyond what an interval may have");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Returns the arguments, or none where help is wanted.
fn read(mut arguments: impl Iterator<Item = String>) -> Result<Option<Arguments>, String> {
    let (mut words, mut seed, mut broken) = (Vec::new(), 1, None);
    let (mut quick, mut list, mut plot) = (false, false, false);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match &*argument {
            "--rows" => words.push(value()?),
            "--seed" => seed = value()?.parse().map_err(|_| "a seed is a number")?,
            "--break" => broken = Some(value()?),
            "--quick" => quick = true,
            "--list" => list = true,
            "--plot" => plot = true,
            "--help" | "-h" => return Ok(None),
            _ => return Err(format!("unknown argument {argument:?}")),
        }
    }
    let broken = match broken.as_deref() {
        None => None,
        Some("store") => Some(Broken::Store),
        Some("lease") => Some(Broken::Lease),
        Some("reply") => Some(Broken::Reply),
        Some(other) => return Err(format!("{other:?} is nothing that can be broken")),
    };
    if plot {
        if quick || list || broken.is_some() || !words.is_empty() {
            return Err("--plot goes with --seed alone".into());
        }
        let rows = of_each_size(rows::lines());
        return Ok(Some(Arguments {
            rows,
            seed,
            list,
            plot,
        }));
    }
    let wanted =
        |row: &Scenario| words.is_empty() || words.iter().any(|word| row.name.contains(word));
    let rows = rows::all(quick).into_iter().filter(wanted);
    let rows: Vec<_> = rows.map(|row| Scenario { broken, ..row }).collect();
    if rows.is_empty() {
        return Err("no row has such a name: --list names all".into());
    }
    Ok(Some(Arguments {
        rows,
        seed,
        list,
        plot,
    }))
}

/// Returns the rows of a plot, line by line.
fn of_each_size(lines: impl IntoIterator<Item = Scenario>) -> Vec<Scenario> {
    let sizes = |line: Scenario| SIZES.map(|processes| Scenario { processes, ..line });
    lines.into_iter().flat_map(sizes).collect()
}

/// Returns the plot of what was found of these rows.
fn plot_of(outcomes: &[Outcome], seed: u64) -> Plot {
    let used = |outcome: &Outcome| outcome.used.map(|used| (used * 1e3).round() / 1e3);
    let row = |(place, size): (usize, usize)| {
        let figures = outcomes.chunks(SIZES.len()).map(|line| used(&line[place]));
        (size as f64, figures.collect())
    };
    Plot {
        title: "What a fleet uses of its limits, by processes".into(),
        measured: format!("simulated, seed {seed}"),
        below: "processes".into(),
        beside: "part of what the limits allow".into(),
        lines: rows::lines().map(|line| line.name.to_owned()).into(),
        rows: SIZES.into_iter().enumerate().map(row).collect(),
    }
}

/// Runs all rows, two at a time.
fn run(rows: &[Scenario], seed: u64) -> Vec<Outcome> {
    machine::seed_hashes();
    let (next, began) = (AtomicUsize::new(0), Instant::now());
    let outcomes: Vec<_> = rows.iter().map(|_| Mutex::new(None)).collect();
    let work = || {
        while let Some(place) = Some(next.fetch_add(1, Relaxed)).filter(|place| *place < rows.len())
        {
            let mut last = 0;
            let tells = |part: f64| {
                let fifths = (part * 5.0) as u32;
                if std::mem::replace(&mut last, fifths) != fifths {
                    eprintln!("{:3} %  {}", fifths * 20, rows[place].name);
                }
            };
            // On a thread of its own: hash tables differ by how many a thread has made.
            let outcome = thread::scope(|scope| {
                let row = scope.spawn(|| fleet::run(&rows[place], seed, tells));
                row.join().expect("a row that ends")
            });
            if let Ok(mut found) = outcomes[place].lock() {
                *found = Some(outcome);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(work);
        }
    });
    eprintln!("{} rows in {} s", rows.len(), began.elapsed().as_secs());
    let outcomes = outcomes
        .into_iter()
        .map(|outcome| outcome.into_inner().ok().flatten());
    outcomes
        .map(|outcome| outcome.expect("a row that was run"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quick(words: &[&str], broken: Option<Broken>) -> Vec<Scenario> {
        let rows = rows::all(true).into_iter();
        let rows = rows.filter(|row| words.iter().any(|word| row.name.contains(word)));
        rows.map(|row| Scenario { broken, ..row }).collect()
    }

    fn over(words: &[&str], broken: Option<Broken>) -> u64 {
        let rows = quick(words, broken);
        assert!(!rows.is_empty(), "{words:?}");
        run(&rows, 1).iter().map(|outcome| outcome.over).sum()
    }

    #[test]
    fn equal_seeds_print_equal_tables_and_others_do_not() {
        let rows = quick(&["1 limit, 10 processes", "crashes", "partition"], None);
        let table = |seed| table::markdown(&rows, &run(&rows, seed));
        let first = table(1);
        assert_eq!(first, table(1));
        assert_ne!(first, table(2));
        // And whatever other rows run beside it.
        for row in rows {
            let alone = table::markdown(&[row], &run(&[row], 1));
            assert!(first.contains(alone.lines().last().unwrap()), "{alone}");
        }
    }

    #[test]
    fn the_plot_has_a_figure_for_each_line_and_size() {
        let plot = plot_of(&run(&of_each_size(rows::lines().map(rows::tenth)), 1), 1);
        let sizes: Vec<_> = plot.rows.iter().map(|(size, _)| *size as usize).collect();
        assert_eq!(sizes, SIZES);
        assert_eq!(Plot::read(&plot.text()), Some(plot.clone()));
        for (size, figures) in plot.rows {
            assert_eq!(figures.len(), plot.lines.len());
            let is_part = |used: &Option<f64>| used.is_some_and(|used| used > 0.0 && used <= 1.0);
            assert!(figures.iter().all(is_part), "{size}: {figures:?}");
        }
    }

    #[test]
    fn no_interval_has_more_than_the_limit() {
        assert_eq!(over(&[""], None), 0);
    }

    #[test]
    fn a_store_that_forgets_a_grant_is_found() {
        assert!(over(&["1 limit, 10 processes"], Some(Broken::Store)) > 0);
    }

    #[test]
    fn a_lease_that_counts_too_early_is_found() {
        assert!(over(&["1 limit, 10 processes, lease"], Some(Broken::Lease)) > 0);
    }

    #[test]
    fn a_grant_that_two_callers_receive_is_found() {
        assert!(over(&["1 limit, 10 processes"], Some(Broken::Reply)) > 0);
    }
}
