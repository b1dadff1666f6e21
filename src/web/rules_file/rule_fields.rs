//! Reads the tables below `rules`, one for each rule.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Arc, LazyLock},
    time::Duration,
};

use http::{Method, request::Parts};
use serde::Deserialize;
use toml::Spanned;

use super::{
    RulesFile,
    keys::Keys,
    reader::{
        ByName, Fail, Mistake, Table, Texts, given, in_order, line_at, need, only_with, span,
    },
};
use crate::{
    values::{
        compiled_limit::ChargeIf,
        failure_policy::FailurePolicy,
        limit::{Algorithm, Ban, Limit, time},
        name::check_rule_name,
    },
    web::{
        charge::{self, Outcome},
        key::{AnyKey, KeyExtractor, intern},
        rule::{CostOf, LimitOf, Rule, Tiers, pattern},
    },
};

/// The outcomes that files may name without code.
pub(super) const OUTCOMES: [&str; 2] = ["success", "failure"];

/// What they charge: the same in all files, so that layers of one file charge a request once.
static CHARGED: LazyLock<[ChargeIf; OUTCOMES.len()]> = LazyLock::new(|| {
    OUTCOMES
        .map(|name| charge::charge_if(move |of: &Outcome| of.is_success() == (name == "success")))
});

/// An empty file is refused, because an editor may be about to write it.
const NO_RULES: &str = "there are no rules, and nothing would be limited: write one, as \
                        `[rules.api]`, and name it in the `rules` of an `[[on]]` or `[otherwise]`";

/// A table below `rules`.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct RuleFields {
    rate: Option<Spanned<Limit>>,
    tiers: Option<Spanned<ByName<Limit>>>,
    tier_by: Option<Spanned<String>>,
    shared: Option<Spanned<String>>,
    init: Option<Spanned<Limit>>,
    by: Option<Spanned<Texts>>,
    cost: Option<Spanned<CostField>>,
    algorithm: Option<Spanned<String>>,
    slots: Option<u32>,
    lease: Option<Spanned<Time>>,
    keep_alive: Option<Spanned<Time>>,
    per_client: Option<Spanned<bool>>,
    on_failure: Option<Spanned<OnFailure>>,
    charge_if: Option<Spanned<String>>,
    ban: Option<Spanned<Table<BanFields>>>,
    unit: Option<String>,
    hide_headers: bool,
    observe_keys: bool,
    shadow: bool,
    enforce_share: Option<Spanned<u8>>,
    wait: Option<Time>,
    queue: Option<usize>,
}

/// A cost: a number, a name that code registers, or numbers by method.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "it is neither a number of permits, such as `10`, nor a name of the code's, nor \
                 numbers by method, as in `{ GET = 1, otherwise = 2 }`"
)]
enum CostField {
    Fixed(u32),
    Named(String),
    ByMethod(BTreeMap<String, u32>),
}

/// A failure policy: a word, or a share of the limit.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "it is neither `\"allow\"` nor `\"deny\"` nor a share, as in `{ local = 0.25 }`"
)]
enum OnFailure {
    Policy(#[serde(with = "PolicyOfFile")] FailurePolicy),
}

/// A [`FailurePolicy`], as a file writes it.
#[derive(Deserialize)]
#[serde(remote = "FailurePolicy", rename_all = "kebab-case")]
enum PolicyOfFile {
    Allow,
    Local(f64),
    Deny,
}

/// The table `{ after = 10, within = "1m", for = "15m" }`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct BanFields {
    after: Option<u32>,
    within: Option<Time>,
    r#for: Option<Time>,
    doubling_to: Option<Time>,
    status: Option<u16>,
}

/// A time: `500ms`, `90s`, `1h`.
#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "String")]
struct Time(Duration);

impl TryFrom<String> for Time {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let form = "write a whole number and one of ms, s, m, h or d, as in `90s`";
        let refuse = || format!("{text:?} is not a time: {form}");
        time(&text).map(Self).ok_or_else(refuse)
    }
}

/// A rule, the place of its name, and whether an entry has named it.
pub(super) struct NamedRule {
    pub(super) at: Range<usize>,
    pub(super) rule: Rule,
    pub(super) used: bool,
}

pub(super) fn named_rules(
    registered: &RulesFile,
    keys: &Keys,
    text: &str,
    rules: Option<Spanned<ByName<Table<RuleFields>>>>,
) -> Result<BTreeMap<String, NamedRule>, Mistake> {
    let all = span(&rules).unwrap_or_default();
    let mut named = BTreeMap::new();
    let (mut line, mut counted) = (1, 0);
    for (name, table) in rules.map(Spanned::into_inner).map_or(Vec::new(), in_order) {
        name.at_this(check_rule_name(name.get_ref()))?;
        let mut rule = rule(registered, keys, name.get_ref(), &table)?;
        // Counted on from the last rule: from the start each time would be quadratic in the text.
        let (at, used) = (name.span(), false);
        line += line_at(&text[counted..], at.start - counted) - 1;
        counted = at.start;
        rule.line = Some(line);
        named.insert(name.into_inner(), NamedRule { at, rule, used });
    }
    if named.is_empty() {
        Err(all.fail(NO_RULES))
    } else {
        Ok(named)
    }
}

fn rule(
    registered: &RulesFile,
    keys: &Keys,
    name: &str,
    table: &Spanned<Table<RuleFields>>,
) -> Result<Rule, Mistake> {
    let fields = &table.get_ref().0;
    let limit = limit_of(registered, table)?;
    let key = fields.by.as_ref().map(|by| key(keys, by)).transpose()?;
    let mut rule = Rule::with_defaults(Some(name.to_owned()), limit, key);
    let init = fields.init.as_ref();
    rule.init = init.map(|init| limit_of_rate(fields, init)).transpose()?;
    if let Some(cost) = &fields.cost {
        rule.cost = cost_of(registered, &rule, cost)?;
    }
    if let Some(algorithm) = &fields.algorithm {
        let algorithms = Algorithm::ALL.map(|algorithm| (algorithm.facts().word, algorithm));
        rule.algorithm = given(algorithm, "value", algorithm.get_ref(), algorithms)?;
    }
    rule.slots = fields.slots;
    if let Some(lease) = &fields.lease {
        let time = lease.get_ref().0;
        lease.at_this(rule.check_lease(time))?;
        rule.lease = time;
    }
    if let Some(of_file) = &fields.on_failure {
        let OnFailure::Policy(policy) = *of_file.get_ref();
        of_file.at_this(policy.check(name))?;
        rule = rule.on_failure(policy);
    }
    if let Some(outcome) = &fields.charge_if {
        rule.charge_if = Some(charge_if(registered, outcome)?);
    }
    if let Some(table) = &fields.ban {
        rule.ban = Some(ban(&rule, table)?);
    }
    rule.unit.clone_from(&fields.unit);
    rule.hide_headers = fields.hide_headers;
    rule.observe_keys = fields.observe_keys;
    rule.wait = fields.wait.map(|wait| wait.0);
    rule.queue = fields.queue;
    match (&fields.enforce_share, fields.shadow) {
        (Some(share), true) => {
            Err(share.fail("with `shadow` the rule refuses no request: choose one of the two"))
        }
        (Some(share), false) => Ok(rule.enforce_share(*share.get_ref())),
        (None, true) => Ok(rule.shadow()),
        (None, false) => Ok(rule),
    }
}

/// Reads `{ after = 10, within = "1m", for = "15m", doubling-to = "1d" }`.
fn ban(of: &Rule, table: &Spanned<Table<BanFields>>) -> Result<Ban, Mistake> {
    let fields = &table.get_ref().0;
    let mut ban = Ban::after(need(fields.after, table, "after", "10")?);
    ban = (fields.within).map_or(ban, |Time(within)| ban.within(within));
    ban = (fields.r#for).map_or(ban, |Time(lasting)| ban.lasting(lasting));
    ban = (fields.doubling_to).map_or(ban, |Time(longest)| ban.doubling_to(longest));
    ban = (fields.status).map_or(ban, |status| ban.status(status));
    table.at_this(of.check_ban(&ban))?;
    Ok(ban)
}

fn key(keys: &Keys, by: &Spanned<Texts>) -> Result<AnyKey, Mistake> {
    let key = keys.key(by)?;
    let traits = key.check().ok();
    match traits.and_then(|traits| traits.exposed_credential) {
        Some(header) => Err(by.fail(format!(
            "the header {header:?} holds a credential, which would be visible in Redis: define a \
             key with `from = \"credential:{header}\"` and the `digest` of a secret that the code \
             registers, or with `from = \"header:{header}\"` and `plain = true` if it may be \
             visible"
        ))),
        None => Ok(key),
    }
}

/// Reads one of `rate`, `tiers` and `shared`, with the fields that belong to it.
fn limit_of(
    registered: &RulesFile,
    table: &Spanned<Table<RuleFields>>,
) -> Result<LimitOf, Mistake> {
    let fields = &table.get_ref().0;
    let (tiers, shared) = (&fields.tiers, &fields.shared);
    let has_limit = shared.is_none() || fields.init.is_some();
    let settings = span(&fields.keep_alive).or(span(&fields.per_client));
    for (owner, has_owner, field) in [
        ("tiers", tiers.is_some(), span(&fields.tier_by)),
        ("shared", shared.is_some(), span(&fields.init)),
        ("init", has_limit, settings),
    ] {
        only_with(has_owner, &format!("`{owner}`, which is missing"), field)?;
    }
    match (&fields.rate, tiers, shared) {
        (Some(rate), None, None) => Ok(LimitOf::Fixed(limit_of_rate(fields, rate)?)),
        (None, Some(tiers), None) => {
            let by = need(fields.tier_by.as_ref(), table, "tier-by", "\"plan\"")?;
            let choose = given(by, "chooser of tiers", by.get_ref(), &registered.tiers)?;
            let mut limits = Vec::new();
            for (name, rate) in in_order(tiers.get_ref().clone()) {
                name.at_this(check_rule_name(name.get_ref()))?;
                limits.push((intern(name.get_ref()), limit_of_rate(fields, &rate)?));
            }
            if limits.is_empty() {
                let example = "`{ free = \"10/1m\", paid = \"100/1m\" }`";
                return Err(tiers.fail(format!("there are no tiers, as in {example}")));
            }
            let choose = Arc::clone(choose);
            Ok(LimitOf::Tiers(Tiers { limits, choose }))
        }
        (None, None, Some(shared)) => Ok(LimitOf::Shared(shared.get_ref().clone())),
        (None, None, None) => {
            Err(table.fail("it lacks `rate`, as in `rate = \"100/1m\"`; or `tiers`, or `shared`"))
        }
        _ => Err(table.fail("`rate`, `tiers` and `shared` exclude each other: choose one")),
    }
}

/// Returns the limit of a rate, with the settings of the rule for all its rates.
fn limit_of_rate(fields: &RuleFields, rate: &Spanned<Limit>) -> Result<Limit, Mistake> {
    let mut limit = *rate.get_ref();
    if matches!(&fields.per_client, Some(flag) if *flag.get_ref()) {
        limit = limit.per_client();
    }
    match &fields.keep_alive {
        Some(time) => time.at_this(limit.keep_alive(time.get_ref().0)),
        None => Ok(limit),
    }
}

fn cost_of(
    registered: &RulesFile,
    rule: &Rule,
    cost: &Spanned<CostField>,
) -> Result<CostOf, Mistake> {
    let methods = match cost.get_ref() {
        CostField::Fixed(permits) => {
            cost.at_this(rule.check_cost(*permits))?;
            return Ok(CostOf::Fixed(*permits));
        }
        CostField::Named(name) => {
            let by_code = given(cost, "cost", name, &registered.costs)?;
            return Ok(CostOf::Parts(Arc::clone(by_code)));
        }
        CostField::ByMethod(methods) => methods,
    };
    let mut by_method: Vec<(Method, u32)> = Vec::new();
    let mut otherwise = 1;
    for (name, permits) in methods {
        // A cost of zero makes sense only for single methods.
        if *permits > 0 {
            cost.at_this(rule.check_cost(*permits))?;
        }
        if name == "otherwise" {
            otherwise = *permits;
        } else {
            let method = pattern::method_of(name).map_err(|reason| {
                cost.fail(format!(
                    "{name:?}: {reason}; all other methods are `otherwise`"
                ))
            })?;
            by_method.push((method, *permits));
        }
    }
    if otherwise == 0 && by_method.iter().all(|(_, permits)| *permits == 0) {
        return Err(
            cost.fail("every method is free, and the rule would limit nothing: leave it out")
        );
    }
    // A cost for HEAD or CONNECT takes precedence over that for GET.
    by_method.sort_by_key(|(method, _)| *method == Method::GET);
    Ok(CostOf::Parts(Arc::new(move |parts: &Parts| {
        let mut costs = by_method.iter();
        let cost = costs.find(|(method, _)| pattern::counts_as(parts, method));
        cost.map_or(otherwise, |(_, cost)| *cost)
    })))
}

fn charge_if(registered: &RulesFile, outcome: &Spanned<String>) -> Result<ChargeIf, Mistake> {
    let own = OUTCOMES.into_iter().zip(&*CHARGED);
    let code = registered.charges.iter();
    let known = own.chain(code.map(|(name, counts)| (name.as_str(), counts)));
    let known = known.map(|(name, counts)| (name, Arc::clone(counts)));
    given(outcome, "outcome", outcome.get_ref(), known)
}
