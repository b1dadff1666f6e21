//! What files of rules would have refused of an access log.

use std::{collections::HashMap, path::Path};

use serde_json::{Value, json};

use crate::{
    Answer, Stop,
    out::{columns, print},
    rules::{Assumptions, Loaded},
    smallest::{Search, Searched},
    traffic::{Columns, Effect, Read, Row, Stage, is_refused},
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
    as_json: bool,
) -> Result<Answer, Stop> {
    let Loaded {
        rules: [loaded],
        code,
    } = assumptions.load([rules])?;
    let stage = Stage::new(loaded?)?;
    let Impact { read, effects, .. } = send(settings, log, None, [stage])?;
    let [effect] = effects;
    let searched = share.map(|share| Searched {
        settings,
        assumptions,
        code: &code,
        rules,
        log,
        share,
    });
    let found = searched.map_or_else(|| Ok(Vec::new()), |it| it.find(&effect.rules))?;
    print(&match as_json {
        true => {
            let mut object = read.object();
            object["refused"] = effect.refused.into();
            object["waiting"] = effect.waiting.into();
            object["rules"] = effect.rules.iter().map(|row| shown(row, &read)).collect();
            if share.is_some() {
                object["smallest"] = found.iter().map(Search::object).collect();
            }
            format!("{object:#}\n")
        }
        false => {
            let sentences = found.iter().map(|it| it.sentence() + "\n");
            table(&effect, &read) + &sentences.collect::<String>()
        }
    })?;
    Ok(read.report(&effect.rules))
}

fn shown(row: &Row, read: &Read) -> Value {
    json!({
        "rule": row.name,
        "limit": row.limit(),
        "requests": row.met,
        "refused": row.refused,
        "shadow_refused": row.in_shadow,
        "without_key": row.without_key,
        "callers": row.touched.len(),
        "approximate": row.is_coarse(read),
    })
}

fn table(effect: &Effect, read: &Read) -> String {
    let head = "rule,limit,requests,refused,in shadow,without key,callers";
    let mut rows = vec![head.split(',').map(str::to_owned).collect()];
    rows.extend(effect.rules.iter().map(|row| {
        let figures = [row.met, row.refused, row.in_shadow, row.without_key];
        let mut cells = vec![row.name.clone(), row.limit()];
        cells.extend(figures.map(|figure| figure.to_string()));
        cells.push(row.touched.len().to_string());
        cells
    }));
    let waiting = match effect.waiting {
        0 => String::new(),
        waiting => format!("{waiting} would wait for permits, and are not counted further.\n"),
    };
    format!(
        "{}\n{} of {} requests refused.\n{waiting}Callers would have sent the same requests had \
         they been refused: that is assumed.\n",
        columns(&rows),
        effect.refused,
        read.requests(),
    )
}
