//! Says where the columns of a log are, by what they hold: [`suggestion`].

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashSet},
};

use serde_json::Value;

use super::super::{
    Rows,
    address::ip_of,
    kind::{KINDS, Kind, is_most, says_nothing},
};
use super::{Shape, SplitLine, Words, cells, layout, skip, text_of};

/// The words before a line that may be a prefix, at most.
const LONGEST_PREFIX: usize = 12;

/// Returns the option that reads these lines, or what they lack.
pub(in super::super) fn suggestion(sample: &[&str], wanted: &Rows) -> String {
    for words in (0..=LONGEST_PREFIX).filter(|words| *words != wanted.skip) {
        let behind = sample.iter().filter(|line| is_whole(skip(line, words)));
        if !sample.is_empty() && is_most(behind.count(), sample.len()) {
            return format!("; the option `--skip-fields {words}` reads it");
        }
    }
    Columns::of_sample(sample, wanted).suggestion(wanted)
}

/// Returns why another column may be the one of the callers: nearly all of these lines have few
/// addresses in this place, and the other has many. Proxies have few.
pub(in super::super) fn rival(sample: &[&str], wanted: &Rows, place: &str) -> Option<String> {
    if wanted.needs("forwarded") || wanted.placed("ip").is_some() {
        return None;
    }
    let columns = Columns::of_sample(sample, wanted);
    let count = |name: &str| columns.found.get(name).map(FoundColumn::different);
    let few = count(place)?;
    let is_rival = |it: &&&str| **it != place && !wanted.needs(it) && count(it) > Some(few * 5);
    let addresses = columns.columns_of(Kind::Addresses);
    let rival = addresses.iter().find(is_rival)?.escape_debug();
    let place = place.escape_debug();
    Some(format!(
        "ip={place}, which holds few addresses, as of proxies, and {rival} holds many: \
         `--client-ip-from {rival} --trusted NETWORK` counts these where a proxy has written them \
         (with rules, `--field x-forwarded-for={rival}`), `--columns ip={rival}` always, and \
         `--columns ip={place}` counts the few"
    ))
}

/// Returns whether a line is JSON, or of the combined format, without anything before it.
fn is_whole(line: &str) -> bool {
    if line.starts_with('{') {
        return serde_json::from_str::<Value>(line).is_ok();
    }
    let words: Vec<_> = Words::of(line, b' ').take(8).collect();
    let first = words.first().is_some_and(|word| ip_of(word).is_some());
    first && layout(&words, line).is_some() && Kind::Request.holds(words.get(4).unwrap_or(&""))
}

/// The columns of some lines by their names.
#[derive(Default)]
struct Columns {
    lines: usize,
    found: BTreeMap<String, FoundColumn>,
}

struct FoundColumn {
    /// Its index among those that were found.
    index: usize,
    /// What it says, line by line.
    texts: Vec<String>,
}

impl FoundColumn {
    /// Returns how many different texts it has; of addresses with ports, the addresses count.
    fn different(&self) -> usize {
        let texts = self.texts.iter();
        let texts = texts.map(|text| ip_of(text).map_or(text.clone(), |it| it.to_string()));
        texts.collect::<HashSet<_>>().len()
    }
}

impl Columns {
    fn of_sample(sample: &[&str], wanted: &Rows) -> Self {
        let mut columns = Self::default();
        let mut header = None;
        for line in sample.iter().map(|line| skip(line, wanted.skip)) {
            let shape = Shape::of(line);
            if shape.header.is_some() && header.is_none() {
                header = Some(shape);
            } else {
                columns.add(line, header.as_ref().unwrap_or(&shape));
            }
        }
        columns
    }

    fn add(&mut self, line: &str, shape: &Shape) {
        let mut found = Vec::new();
        match shape.line(line, usize::MAX) {
            Ok(SplitLine::Json(value)) => members(&value, "", &mut found),
            Ok(SplitLine::Words(all)) => cells(&all, shape.header.as_deref(), &mut found),
            Err(_) => return,
        }
        self.lines += 1;
        for (name, text) in found.into_iter().filter(|(_, text)| !says_nothing(text)) {
            let index = self.found.len();
            let texts = Vec::new();
            let found = self.found.entry(name);
            let found = found.or_insert(FoundColumn { index, texts });
            found.texts.push(text);
        }
    }

    /// Returns the columns that nearly always hold this kind, the best one first.
    fn columns_of(&self, kind: Kind) -> Vec<&str> {
        let is_good = |(_, found): &(&String, &FoundColumn)| {
            let (texts, said) = (found.texts.iter(), found.texts.len());
            // Proxies say nothing of clients that came by another way.
            said * 2 > self.lines && is_most(texts.filter(|text| kind.holds(text)).count(), said)
        };
        let mut good: Vec<_> = self.found.iter().filter(is_good).collect();
        let is_address = matches!(kind, Kind::Address | Kind::Addresses);
        good.sort_by_cached_key(|(name, it)| {
            // A server has few addresses of its own, and few of its proxies.
            let different = if is_address { it.different() } else { 0 };
            // Two words are a time together where no one is.
            (name.contains('+'), Reverse(different), it.index)
        });
        good.into_iter().map(|(name, _)| &**name).collect()
    }

    fn suggestion(&self, wanted: &Rows) -> String {
        let (mut columns, mut also, mut lacks) = (Vec::new(), String::new(), false);
        let request = !self.columns_of(Kind::Request).is_empty();
        for (kind, name, noun) in KINDS {
            let is_needed = match kind {
                Kind::Address => wanted.needs(name),
                Kind::Method | Kind::Path => !request,
                Kind::Time | Kind::Request | Kind::Status => true,
                Kind::Addresses | Kind::Duration | Kind::Host | Kind::Any => false,
            };
            match &self.columns_of(kind)[..] {
                _ if !is_needed => {}
                // No option adds these.
                [] if matches!(kind, Kind::Address | Kind::Time) => {
                    also += &format!("; no column holds {noun}");
                    lacks = true;
                }
                [] => {}
                [first, others @ ..] => {
                    columns.push(format!("{name}={first}"));
                    if name == "ip" && !others.is_empty() {
                        also += &format!("; addresses are also in {}", others.join(", "));
                    }
                }
            }
        }
        let (columns, also) = (columns.join(","), also.escape_debug());
        if columns.is_empty() || lacks {
            return also.to_string();
        }
        let columns = columns.escape_debug();
        format!("; by what they hold: `--columns {columns}`{also}")
    }
}

/// Adds the members of a JSON value that are texts, by their names.
fn members(value: &Value, before: &str, cells: &mut Vec<(String, String)>) {
    for (name, value) in value.as_object().into_iter().flatten() {
        let name = format!("{before}{name}");
        match text_of(value) {
            Some(text) => cells.push((name, text)),
            None => members(value, &format!("{name}."), cells),
        }
    }
}
