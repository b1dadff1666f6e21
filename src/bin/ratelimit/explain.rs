//! `ratelimit explain`: shows which rules apply to a request.

use std::{path::PathBuf, time::Duration};

use serde_json::json;

use crate::{
    Stop,
    assumptions::{Assumptions, FileText},
    dry_run::{DryRun, is_refused},
    needs::{NO_ROUTER, Need, needs},
    out::{Format, harmless, say, table},
    parsers,
    requests::request,
};

/// Show which rules a request meets, and what each of them counts.
///
/// It prints a line for each rule with its limit and the permits that the request costs, then the
/// names that its limiters have in Redis with the usual prefix, which `ratelimit get` takes. Names
/// that only code defines are assumed and listed. No server is asked, so a ban is not seen.
///
/// Example: `ratelimit explain limits.toml --method POST --path /login`.
///
/// Exits with 0 if the request would pass, with 1 if it would be refused even with nothing counted
/// before, and with 2 if the file has an error.
#[derive(clap::Args)]
pub(crate) struct ExplainArguments {
    /// The rules file, in TOML
    file: PathBuf,
    /// The request's method
    #[arg(long, default_value = "GET")]
    method: String,
    /// Its path, as in `/login`, or its whole URI
    #[arg(long)]
    path: String,
    /// Its host, as in `api.example` [default: none]
    #[arg(long)]
    host: Option<String>,
    /// The address that it comes from
    #[arg(long, default_value = "192.0.2.1", value_name = "ADDRESS")]
    ip: std::net::IpAddr,
    /// A header field, as in `x-api-key: abc`
    ///
    /// Repeat it for others.
    #[arg(long, value_parser = parsers::header)]
    header: Vec<(String, String)>,
    /// A key that code finds, as in `user=ann`
    ///
    /// Repeat it for others. Default: none, so that a rule by this key alone does not count.
    #[arg(long, value_parser = parsers::fixed::<String>, value_name = "NAME=VALUE")]
    key: Vec<(String, String)>,
    #[command(flatten)]
    assumptions: Assumptions,
    #[command(flatten)]
    format: Format,
}

pub(crate) fn run(arguments: &ExplainArguments) -> Result<bool, Stop> {
    let file = FileText::read(&arguments.file)?;
    let ([rules], code) = arguments.assumptions.load([&file])?;
    let mut names = arguments.key.iter().map(|(name, _)| ("key", name.clone()));
    if let Some((_, name)) = names.find(|it| !code.contains(it)) {
        let reason = format!("no rule counts by a key {name:?} of the code");
        return Err(Stop::usage(reason));
    }
    let mut dry_run = DryRun::new(rules?)?;
    if needs(&file.toml).contains(&Need::Unseen(NO_ROUTER.to_owned())) {
        say(NO_ROUTER);
    }
    let (method, path) = (arguments.method.as_str(), arguments.path.as_str());
    let (ip, host) = (arguments.ip.to_string(), arguments.host.as_deref());
    let others = arguments.header.iter().chain(&arguments.key);
    let others = others.map(|(name, value)| (name.as_str(), Some(value.as_str())));
    let request = request([Some(&ip), Some(method), Some(path), host, None], others)
        .ok_or_else(|| Stop::usage(format!("{method:?} {path:?} is no HTTP request")))?;
    let (parts, ()) = request.clone().into_parts();
    let limiters = dry_run.layer.limiters_of(&parts);
    let result = dry_run.send(Duration::ZERO, request);
    let rules = dry_run.end().rules.into_iter().map(|it| {
        json!({
            "rule": it.name, "limit": it.limit(), "cost": it.cost, "shadow": it.shadow,
            "missing_key": it.without_key > 0,
        })
    });
    let rules: Vec<_> = rules.collect();
    let limiters: Vec<_> = limiters.iter().map(|it| it.name()).collect();
    let mut words = table("rule limit cost shadow missing_key", &rules);
    for limiter in &limiters {
        words += &format!("limiter {}\n", harmless(limiter));
    }
    words += &format!("result {}\n", result.as_str().replace('_', " "));
    let object = json!({ "result": result.as_str(), "rules": rules, "limiters": limiters });
    arguments.format.print(&words, object)?;
    Ok(!is_refused(result))
}
