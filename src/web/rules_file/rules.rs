//! The tables below `rules`: one for each rule.

use std::{borrow::Cow, sync::Arc};

use http::{Method, request::Parts};

use super::{
    RulesFile,
    keys::Keys,
    reader::{Node, Table, fail, no_such},
    values,
};
use crate::{
    error::ConfigError,
    failure_policy::FailurePolicy,
    limit::{Algorithm, Limit},
    name::check_rule_name,
    web::{
        charge::ChargeIf,
        key::{Any, KeyExtractor},
        rule::{Cost, LimitOf, Rule, Tiers, check_cost, pattern},
    },
};

/// Outcomes that files may name without being told what they are.
pub(crate) const OUTCOMES: [&str; 2] = ["success", "failure"];

const FIELDS: [&str; 19] = [
    "rate",
    "tiers",
    "tier-by",
    "shared",
    "init",
    "by",
    "cost",
    "algorithm",
    "slots",
    "lease",
    "keep-alive",
    "per-client",
    "on-failure",
    "charge-if",
    "hide-headers",
    "shadow",
    "enforce-share",
    "wait",
    "queue",
];

/// A file that is about to be written looks like one that is to limit nothing.
const NO_RULES: &str = "there are no rules, and nothing would be limited: write one, as \
                        `[rules.api]`, and name it in the `rules` of an `[[on]]` or `[otherwise]`";

/// A rule, and whether an entry has named it.
pub(crate) struct Named<'a> {
    pub(crate) name: &'a str,
    pub(crate) rule: Rule,
    pub(crate) table: Table<'a>,
    pub(crate) used: bool,
}

pub(crate) fn read<'a>(
    code: &RulesFile,
    keys: &Keys,
    rules: Option<Node<'a>>,
) -> Result<Vec<Named<'a>>, ConfigError> {
    let Some(rules) = rules else {
        return Err(fail(1, "rules", NO_RULES));
    };
    let mut named = Vec::new();
    for (name, node) in rules.table()?.fields() {
        check_rule_name(name).map_err(|error| node.fail(error))?;
        let table = node.table()?;
        named.push(Named {
            name,
            rule: rule(code, keys, name, &table)?,
            table,
            used: false,
        });
    }
    if named.is_empty() {
        return Err(rules.fail(NO_RULES));
    }
    Ok(named)
}

fn rule(code: &RulesFile, keys: &Keys, name: &str, table: &Table<'_>) -> Result<Rule, ConfigError> {
    table.known(&FIELDS)?;
    let limit = limit_of(code, table)?;
    let takes_key = match &limit {
        LimitOf::Shared { name, .. } => name.contains("<key>"),
        _ => true,
    };
    let key = match table.get("by") {
        Some(by) => Some(key(keys, &by)?),
        None if takes_key => {
            return Err(table.fail(
                "it lacks `by`, which says whom it counts, as in `by = \"peer\"`; everybody together is \
                 `by = \"constant:all\"`",
            ));
        }
        None => None,
    };
    let mut rule = Rule::of(Some(name.to_owned()), limit, key.map(|key| key.0));
    rule.line = Some(table.line());
    if let Some(cost) = table.get("cost") {
        rule.cost = cost_of(code, name, &rule.limit, &cost)?;
    }
    if let Some(algorithm) = table.get("algorithm") {
        rule = rule.algorithm(algorithm.one_of(&[
            ("sliding-log", Algorithm::SlidingLog),
            ("fixed-window", Algorithm::FixedWindow),
            ("gcra", Algorithm::Gcra),
        ])?);
    }
    if let Some(slots) = table.get("slots") {
        rule = rule.slots(slots.number()?);
    }
    if let Some(lease) = table.get("lease") {
        let time = values::duration(lease.text()?).map_err(|reason| lease.fail(reason))?;
        rule.check_lease(time).map_err(|error| lease.fail(error))?;
        rule = rule.lease(time);
    }
    if let Some(policy) = table.get("on-failure") {
        rule = rule.on_failure(failure_policy(name, &policy)?);
    }
    if let Some(outcome) = table.get("charge-if") {
        rule.charge_if = Some(charge_if(code, &outcome)?);
    }
    if table
        .get("hide-headers")
        .map_or(Ok(false), |hide| hide.flag())?
    {
        rule = rule.hide_headers();
    }
    if let Some(wait) = table.get("wait") {
        rule = rule.wait(values::duration(wait.text()?).map_err(|reason| wait.fail(reason))?);
    }
    if let Some(queue) = table.get("queue") {
        rule = rule.queue(queue.number()?);
    }
    let shadow = table
        .get("shadow")
        .map_or(Ok(false), |shadow| shadow.flag())?;
    match table.get("enforce-share") {
        Some(share) if shadow => {
            return Err(share.fail("`shadow` says that it refuses nobody: choose one of the two"));
        }
        Some(share) => rule = rule.enforce_share(share.number()?),
        None if shadow => rule = rule.shadow(),
        None => {}
    }
    Ok(rule)
}

/// `"allow"`, `"deny"`, or `{ local = 0.25 }`, perhaps with what comes then: `{ local = 0.25, for = "30s", then = "deny" }`.
fn failure_policy(rule: &str, node: &Node<'_>) -> Result<FailurePolicy, ConfigError> {
    if !node.is_table() {
        return node.one_of(&[
            ("allow", FailurePolicy::Allow),
            ("deny", FailurePolicy::Deny),
        ]);
    }
    let table = node.table()?;
    table.known(&["local", "for", "then"])?;
    let share = table.need("local", "0.25")?;
    let local = FailurePolicy::local(share.fraction()?);
    let policy = FailurePolicy::from(local);
    policy.check(rule).map_err(|error| share.fail(error))?;
    match (table.get("for"), table.get("then")) {
        (None, None) => Ok(policy),
        (Some(longest), Some(then)) => {
            let time =
                values::duration(longest.text()?).map_err(|reason| longest.fail(reason))?;
            then.one_of(&[
                ("allow", local.then_allow_after(time).into()),
                ("deny", local.then_deny_after(time).into()),
            ])
        }
        (Some(longest), None) => Err(longest.fail(
            "it needs `then`, which says what comes after that time: `then = \"deny\"` or `then = \"allow\"`",
        )),
        (None, Some(then)) => Err(then.fail(
            "it needs `for`, which says after what time: `for = \"30s\"`",
        )),
    }
}

fn key(keys: &Keys, by: &Node<'_>) -> Result<Any, ConfigError> {
    let key = keys.key(by)?;
    match KeyExtractor::exposed_credential(&key) {
        Some(header) => Err(by.fail(format!(
            "the header {header:?} holds a credential, which would be seen in Redis: define a key with \
             `from = \"credential:{header}\"` and the `digest` of a secret that the code names, or with \
             `from = \"header:{header}\"` and `plain = true` if it may be seen"
        ))),
        None => Ok(key),
    }
}

/// One of `rate`, `tiers` and `shared`, with what belongs to it.
fn limit_of(code: &RulesFile, table: &Table<'_>) -> Result<LimitOf, ConfigError> {
    let sources = ["rate", "tiers", "shared"].map(|name| table.get(name));
    for (field, owner, its) in [
        ("tier-by", "tiers", &sources[1]),
        ("init", "shared", &sources[2]),
    ] {
        if let (Some(field), None) = (table.get(field), its) {
            return Err(field.fail(format!("it belongs to `{owner}`, which is not there")));
        }
    }
    match sources {
        [Some(rate), None, None] => Ok(LimitOf::Fixed(limit(table, &rate)?)),
        [None, Some(tiers), None] => {
            let by = table.need("tier-by", "\"plan\"")?;
            let Some(choose) = code.tiers.get(by.text()?) else {
                let known: Vec<_> = code.tiers.keys().map(String::as_str).collect();
                return Err(by.fail(no_such("chooser of tiers", by.text()?, &known)));
            };
            let mut limits = Vec::new();
            for (name, rate) in tiers.table()?.fields() {
                check_rule_name(name).map_err(|error| rate.fail(error))?;
                limits.push((Cow::Owned(name.to_owned()), limit(table, &rate)?));
            }
            if limits.is_empty() {
                return Err(tiers
                    .fail("there are no tiers, as in `{ free = \"10/1m\", paid = \"100/1m\" }`"));
            }
            Ok(LimitOf::Tiers(Tiers {
                tiers: limits,
                choose: Arc::clone(choose),
            }))
        }
        [None, None, Some(shared)] => {
            let init = table.get("init");
            for field in ["keep-alive", "per-client"] {
                if let (Some(field), None) = (table.get(field), &init) {
                    return Err(field.fail("it belongs to `init`, which is not there"));
                }
            }
            Ok(LimitOf::Shared {
                name: shared.text()?.to_owned(),
                init: init.map(|init| limit(table, &init)).transpose()?,
            })
        }
        [None, None, None] => {
            Err(table.fail("it lacks `rate`, as in `rate = \"100/1m\"`; or `tiers`, or `shared`"))
        }
        _ => Err(table.fail("`rate`, `tiers` and `shared` exclude each other: choose one")),
    }
}

/// A rate, and what the rule says of all its rates.
fn limit(table: &Table<'_>, rate: &Node<'_>) -> Result<Limit, ConfigError> {
    let limit = values::rate(rate.text()?).map_err(|reason| rate.fail(reason))?;
    let per_client = table
        .get("per-client")
        .map_or(Ok(false), |flag| flag.flag())?;
    let Some(keep_alive) = table.get("keep-alive") else {
        return values::kept(limit, per_client, None);
    };
    let time = values::duration(keep_alive.text()?).map_err(|reason| keep_alive.fail(reason))?;
    values::kept(limit, per_client, Some(time)).map_err(|error| keep_alive.fail(error))
}

/// A number, a name that the code knows, or numbers by method.
fn cost_of(
    code: &RulesFile,
    rule: &str,
    limit: &LimitOf,
    cost: &Node<'_>,
) -> Result<Cost, ConfigError> {
    let permits = |node: &Node<'_>| {
        let permits = node.number()?;
        let fixed = Cost::Fixed(permits);
        let check = |limit| check_cost(rule, &fixed, limit).map_err(|error| node.fail(error));
        match limit {
            LimitOf::Fixed(limit) => check(Some(limit))?,
            LimitOf::Tiers(tiers) => {
                for (_, limit) in &tiers.tiers {
                    check(Some(limit))?;
                }
            }
            LimitOf::Shared { init, .. } => check(init.as_ref())?,
            LimitOf::Parts(_) => check(None)?,
        }
        Ok(permits)
    };
    if cost.is_text() {
        let name = cost.text()?;
        let known: Vec<_> = code.costs.keys().map(String::as_str).collect();
        let found = code.costs.get(name).cloned().map(Cost::Parts);
        return found.ok_or_else(|| cost.fail(no_such("cost", name, &known)));
    }
    if !cost.is_table() {
        return Ok(Cost::Fixed(permits(cost)?));
    }
    cost_by_method(cost, permits)
}

fn cost_by_method(
    cost: &Node<'_>,
    permits: impl Fn(&Node<'_>) -> Result<u32, ConfigError>,
) -> Result<Cost, ConfigError> {
    let mut by_method: Vec<(Method, u32)> = Vec::new();
    let mut otherwise = 1;
    for (name, node) in cost.table()?.fields() {
        // Free methods are the one cost of zero that makes sense.
        let permits = match node.number::<u32>()? {
            0 => 0,
            _ => permits(&node)?,
        };
        if name == "otherwise" {
            otherwise = permits;
        } else {
            let method = pattern::method_of(name).map_err(|reason| {
                node.fail(format!("{reason}; all other methods are `otherwise`"))
            })?;
            by_method.push((method, permits));
        }
    }
    if otherwise == 0 && by_method.iter().all(|(_, permits)| *permits == 0) {
        return Err(
            cost.fail("every method is free, and the rule would limit nothing: leave it out")
        );
    }
    Ok(Cost::Parts(Arc::new(move |parts: &Parts| {
        // What is said of HEAD goes before what is said of GET.
        let exact = by_method.iter().find(|(method, _)| *method == parts.method);
        let counted = || {
            let mut costs = by_method.iter();
            costs.find(|(method, _)| pattern::counts_as(&parts.method, method))
        };
        exact.or_else(counted).map_or(otherwise, |(_, cost)| *cost)
    })))
}

fn charge_if(code: &RulesFile, outcome: &Node<'_>) -> Result<ChargeIf, ConfigError> {
    let name = outcome.text()?;
    match name {
        "success" => return Ok(Arc::new(|outcome| outcome.is_success())),
        "failure" => return Ok(Arc::new(|outcome| !outcome.is_success())),
        _ => {}
    }
    let mut known = OUTCOMES.to_vec();
    known.extend(code.charges.keys().map(String::as_str));
    let found = code.charges.get(name).cloned();
    found.ok_or_else(|| outcome.fail(no_such("outcome", name, &known)))
}
