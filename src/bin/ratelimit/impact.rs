//! What files of rules would have refused of an access log.

use std::{collections::HashMap, path::Path};

use serde_json::json;

use crate::{
    Stop,
    out::{Format, objects, table},
    replay::ASSUMED,
    rules::{Assumptions, Loaded},
    smallest::{Search, Searched},
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
pub(crate) fn run(
    settings: &Columns,
    assumptions: &Assumptions,
    rules: &Path,
    log: &Path,
    share: Option<f64>,
    format: &Format,
) -> Result<bool, Stop> {
    let Loaded {
        rules: [loaded],
        code,
    } = assumptions.load([rules])?;
    let stage = Stage::new(loaded?)?;
    let Impact { read, effects, .. } = send(settings, log, None, [stage])?;
    let [effect] = effects;
    let rows = effect.rules.iter().map(|row| {
        vec![
            ("rule", json!(row.name)),
            ("limit", json!(row.limit())),
            ("requests", json!(row.met)),
            ("refused", json!(row.refused)),
            ("shadow_refused", json!(row.in_shadow)),
            ("without_key", json!(row.without_key)),
            ("callers", json!(row.touched.len())),
            ("approximate", json!(row.is_coarse(&read))),
        ]
    });
    let rows: Vec<_> = rows.collect();
    let mut object = read.object();
    object["refused"] = effect.refused.into();
    object["waiting"] = effect.waiting.into();
    object["rules"] = objects(&rows);
    let requests = read.requests();
    let mut words = format!(
        "{}\n{} of {requests} requests refused.\n",
        table(&rows),
        effect.refused
    );
    if effect.waiting > 0 {
        words += &format!(
            "{} would wait for permits, and are not counted further.\n",
            effect.waiting
        );
    }
    words += ASSUMED;
    if let Some(share) = share {
        let searched = Searched {
            settings,
            assumptions,
            code: &code,
            rules,
            log,
            share,
        };
        let found = searched.find(&effect.rules)?;
        let found: Vec<_> = found.iter().map(Search::fields).collect();
        object["smallest"] = objects(&found);
        if !found.is_empty() {
            words += "\n\nThe smallest limit of each rule, by runs of it and of one permit less:\n";
            words += &table(&found);
        }
    }
    format.print(&words, object)?;
    Ok(read.report(&effect.rules))
}
