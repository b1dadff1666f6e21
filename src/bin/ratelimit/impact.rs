//! Replays an access log through the rules of a file, for `replay --rules` and `diff --log`.

use std::{collections::HashMap, path::Path};

use serde_json::json;

use crate::{
    Stop,
    out::{objects, table},
    replay::{ASSUMED, Arguments},
    smallest::{self, Search},
    traffic::{Columns, Effect, Read, Stage, is_refused},
};

/// A log that went through `N` files.
pub(crate) struct Impact<const N: usize> {
    pub(crate) read: Read,
    pub(crate) effects: [Effect; N],
    /// The callers that a file refuses, with the requests that each one refuses of them.
    pub(crate) callers: HashMap<Box<str>, [u64; N]>,
}

/// Sends a log through files, by the callers in this column.
pub(crate) fn send<const N: usize>(
    settings: &Columns,
    log: &Path,
    by: Option<&str>,
    mut stages: [Stage; N],
) -> Result<Impact<N>, Stop> {
    let mut callers = HashMap::<Box<str>, [u64; N]>::new();
    let read = settings.read(log, by, |time, request, caller| {
        let mut refused = [0; N];
        for (stage, refused) in stages.iter_mut().zip(&mut refused) {
            let result = stage.send(time, request.clone());
            *refused = u64::from(is_refused(result));
        }
        let caller = caller.filter(|caller| !matches!(&**caller, "" | "-"));
        if let Some(caller) = caller.filter(|_| refused != [0; N]) {
            let sums = callers.entry(caller).or_insert([0; N]);
            for (sum, one) in sums.iter_mut().zip(refused) {
                *sum += one;
            }
        }
    })?;
    Ok(Impact {
        read,
        effects: stages.map(Stage::end),
        callers,
    })
}

/// Runs `ratelimit replay --rules`.
pub(crate) fn run(arguments: &Arguments, rules: &Path, log: &Path) -> Result<bool, Stop> {
    let loaded = arguments.assumptions.load([rules])?;
    let [in_file] = loaded.rules;
    let stages = [Stage::new(in_file?)?];
    let impact = send(&arguments.columns, log, None, stages)?;
    let (read, [effect]) = (impact.read, impact.effects);
    let rows = effect.rules.iter().map(|row| {
        vec![
            ("rule", json!(row.name)),
            ("limit", json!(row.limit())),
            ("requests", json!(row.met)),
            ("refused", json!(row.refused)),
            ("shadow_refused", json!(row.in_shadow)),
            ("without_key", json!(row.without_key)),
            ("callers", json!(row.touched())),
            ("approximate", json!(row.is_coarse(&read))),
        ]
    });
    let rows: Vec<_> = rows.collect();
    let mut object = read.object();
    object["rules"] = objects(&rows);
    let (requests, refused, waiting) = (read.requests(), effect.refused, effect.waiting);
    let mut words = table(&rows);
    words += &format!("\n{refused} of {requests} requests refused.\n");
    if waiting > 0 {
        words += &format!("{waiting} would wait for permits, and are not counted further.\n");
    }
    (object["refused"], object["waiting"]) = (refused.into(), waiting.into());
    words += ASSUMED;
    if let Some(share) = arguments.share {
        let files = [rules, log];
        let found = smallest::find(arguments, files, &loaded.code, &effect.rules, share)?;
        let found: Vec<_> = found.iter().map(Search::fields).collect();
        object["smallest"] = objects(&found);
        if !found.is_empty() {
            words += "\n\nThe smallest limit of each rule, by runs of it and of one permit less:\n";
            words += &table(&found);
        }
    }
    arguments.format.print(&words, object)?;
    Ok(read.report(&effect.rules))
}
