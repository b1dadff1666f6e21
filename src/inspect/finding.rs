//! One finding of an inspection, with its remedy: [`Finding`].

use std::fmt;

/// A problem with a server or with a limiter. `Display` has the remedy.
///
/// With the feature `serde` it is serialized as a map of `kind`, its [`code`](Self::code),
/// `severity` and `text`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub(super) code: &'static str,
    pub(super) severity: Severity,
    pub(super) text: String,
}

impl Finding {
    /// Returns what is found as a word that stays the same, for alerts and scripts: [a table] has
    /// all of them. The text is for people, and may change.
    ///
    /// [a table]: https://docs.rs/tower-ratelimit/latest/tower_ratelimit/docs/operations#findings
    pub fn code(&self) -> &'static str {
        self.code
    }

    /// Returns how severe it is.
    pub fn severity(&self) -> Severity {
        self.severity
    }
}

/// Makes a [`Finding`]: `finding!(Error "no_lua": "it runs no Lua")`, or with a variable in
/// parentheses, `finding!((severity) "evicts": "it evicts keys")`.
macro_rules! finding {
    ($severity:ident $code:literal: $($text:tt)*) => {
        $crate::inspect::finding::finding!(($crate::inspect::Severity::$severity) $code: $($text)*)
    };
    (($severity:expr) $code:literal: $($text:tt)*) => {
        $crate::inspect::Finding {
            code: $code,
            severity: $severity,
            text: format!($($text)*),
        }
    };
}
pub(super) use finding;

/// Adds a [`Finding`] to others: `add!(found, Error "no_lua": "it runs no Lua")`.
macro_rules! add {
    ($found:expr, $($finding:tt)*) => {
        $found.push($crate::inspect::finding::finding!($($finding)*))
    };
}
pub(super) use add;

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for Finding {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let severity = self.severity.to_string();
        super::members!(to, "kind": self.code, "severity": severity, "text": self.text)
    }
}

/// Writes a line for each finding.
pub(super) fn write_findings(f: &mut fmt::Formatter<'_>, findings: &[Finding]) -> fmt::Result {
    let mut findings = findings.iter();
    findings.try_for_each(|finding| write!(f, "\n- {}: {finding}", finding.severity))
}

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Severity {
    /// Good to know
    Note,
    /// It works now, and may fail when it matters
    Warning,
    /// Limits do not work, or only in part
    Error,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format!("{self:?}").to_lowercase())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    #[test]
    fn each_code_stands_in_the_table() {
        let sources = [
            include_str!("diagnose/report.rs"),
            include_str!("verify/engine.rs"),
            include_str!("verify/mod.rs"),
            include_str!("verify/report.rs"),
        ];
        let severities = ["Error \"", "Warning \"", "Note \"", "(severity) \""];
        let mut given = BTreeSet::new();
        for (source, severity) in sources.iter().flat_map(|it| severities.map(|by| (it, by))) {
            let after = source.split(severity).skip(1);
            let codes = after.filter_map(|rest| rest.split_once("\": \"").map(|(code, _)| code));
            given.extend(codes);
        }
        let page = include_str!("../docs/operations.md");
        let (_, section) = page.split_once("\n## Findings\n").unwrap();
        let section = section.split("\n## ").next().unwrap();
        let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
        let listed: Vec<_> = rows.map(|row| row.split('`').next().unwrap()).collect();
        let known: BTreeSet<_> = listed.iter().copied().collect();
        assert_eq!(given, known);
        assert_eq!(listed.len(), known.len(), "a code stands there twice");
    }
}
