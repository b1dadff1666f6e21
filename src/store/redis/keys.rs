//! The keys of a limiter, which share a hash slot of a Cluster.

use crate::values::name::Name;

/// Returns the brackets around a name that make it a hash tag, of which keys begin.
///
/// RedissonObject.suffixName: a name that contains a `{` keeps its own hash tag, any other becomes
/// one.
pub(super) fn brackets(name: &Name) -> [&'static str; 2] {
    if name.as_bytes().contains(&b'{') {
        ["", ""]
    } else {
        ["{", "}"]
    }
}

/// Returns the key of a limiter that ends so.
pub(super) fn suffixed(name: &Name, suffix: &str) -> String {
    let [open, close] = brackets(name);
    [open, name.as_str(), close, suffix].concat()
}

/// Returns the key of the ban of a limiter's caller. A limiter by the same name in the other format
/// is another one.
pub(crate) fn ban(name: &Name, in_own_format: bool) -> String {
    suffixed(name, of_ban(in_own_format))
}

/// Returns what that key ends with.
pub(super) fn of_ban(in_own_format: bool) -> &'static str {
    if in_own_format { "~:ban" } else { ":ban~" }
}

/// Returns the part of a limiter's keys that decides their hash slot in a Cluster.
///
/// Redis Cluster specification, "hash tags": the text between the first `{` and the first `}` after
/// it, else the whole name.
pub(crate) fn tag(name: &Name) -> &str {
    let name = name.as_str();
    let tagged = name
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'));
    tagged.map_or(name, |(tag, _)| tag)
}
