//! What rules ask of a request: [`Need`].

use std::collections::BTreeSet;

use serde_json::Value;
use tower_ratelimit::Limit;

use crate::out::harmless;

/// A part of a request that decides by which rules and as which caller it is counted.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Need {
    /// One of the usual columns of a log.
    Column(&'static str),
    /// A header, or a key of the code.
    Field(String),
    /// What no log shows, and what that means here.
    Unseen(String),
}

/// What it means that no router is here.
pub(crate) const NO_ROUTER: &str = "only a router knows the route of a request, so by `route` all \
                                    HTTP requests of a method count as one here";

/// Returns what the rules of a file ask for, which is known to be good.
pub(crate) fn needs(file: &Value) -> BTreeSet<Need> {
    let mut needs = BTreeSet::new();
    for list in ["on", "deny", "allow"] {
        let entries = file[list].as_array().into_iter().flatten();
        entries.for_each(|entry| of_entry(file, entry, &mut needs));
    }
    let rules = file["rules"].as_object().into_iter().flatten();
    for (name, rule) in rules {
        let tiers = rule["tiers"].as_object().into_iter().flatten();
        let rates = tiers.map(|(_, rate)| rate).chain([&rule["rate"]]);
        let mut limits = rates.filter_map(|it| it.as_str()?.parse::<Limit>().ok());
        if limits.any(|limit| limit.is_in_flight()) {
            needs.insert(Need::Unseen(format!(
                "a replay ends each request at once, so {:?}, which counts what is in flight, \
                 refuses nothing here",
                harmless(name)
            )));
        }
        add_key(file, &rule["by"], &mut needs);
        if rule["cost"].is_object() {
            needs.insert(Need::Column("method"));
        }
        if !rule["charge-if"].is_null() {
            needs.insert(Need::Column("status"));
        }
    }
    needs
}

fn of_entry(file: &Value, entry: &Value, needs: &mut BTreeSet<Need>) {
    let has = |field: &str| !entry[field].is_null();
    let route = entry["route"].as_str();
    let has_method = route.is_some_and(|it| !it.starts_with('/'));
    for (asks, column) in [
        (has_method || has("method") || has("grpc"), "method"),
        (has("route") || has("grpc"), "path"),
        (has("host"), "host"),
    ] {
        if asks {
            needs.insert(Need::Column(column));
        }
    }
    if has("grpc") {
        needs.insert(Need::Field("content-type".to_owned()));
    }
    add_key(file, &entry["by"], needs);
}

/// Adds what a key is made of: an expression, or several.
fn add_key(file: &Value, by: &Value, needs: &mut BTreeSet<Need>) {
    let many = by.as_array().into_iter().flatten();
    let texts = many.chain([by]).filter_map(Value::as_str);
    for term in texts.flat_map(|text| text.split(" or ")).map(str::trim) {
        let key = &file["keys"][term];
        let need = match (term, term.split_once(':')) {
            (_, Some(("header" | "credential", name))) => Need::Field(name.to_owned()),
            (_, Some(_)) | ("shared" | "skip", _) => continue,
            ("peer", _) => Need::Column("ip"),
            ("route", _) => {
                needs.extend(["method", "path"].map(Need::Column));
                Need::Unseen(NO_ROUTER.to_owned())
            }
            _ if key["from"] == "client-ip" => {
                let header = key["header"].as_str().unwrap_or("x-forwarded-for");
                needs.insert(Need::Column("ip"));
                Need::Field(header.to_ascii_lowercase())
            }
            // A key is made of those before it, so this ends.
            _ if key.is_object() => {
                add_key(file, &key["from"], needs);
                continue;
            }
            _ => Need::Field(term.to_owned()),
        };
        needs.insert(need);
    }
}
