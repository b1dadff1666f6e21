//! Keys of limiters in Redis, and what stands in them.

/// A script that lets a server's clock jump, from the view of some keys.
pub const MOVE: &str = include_str!("move.lua");

/// Returns the name of a key of a limiter other than its hash, as Redisson spells it.
pub fn companion(name: &str, suffix: &str) -> String {
    if name.contains('{') {
        format!("{name}:{suffix}")
    } else {
        format!("{{{name}}}:{suffix}")
    }
}

/// Returns the key of a limiter that is one string, in our own format.
pub fn state_key(name: &str) -> String {
    if name.contains('{') {
        format!("{name}~")
    } else {
        format!("{{{name}}}~")
    }
}

/// Returns whether a key is that of a limiter's state in our own format, and none of a ban.
pub fn is_state_key(key: &str) -> bool {
    key.ends_with("~:calendar") || key.ends_with('~') && !key.ends_with(":ban~")
}

/// Returns that of a limiter by the calendar.
pub fn calendar_key(name: &str) -> String {
    format!("{}:calendar", state_key(name))
}

/// Returns the label of a calendar's window and the permits used, from its state.
///
/// # Panics
///
/// If it is another state.
pub fn label_and_used(state: &[u8]) -> (u64, i64) {
    assert!(
        state.len() == 74 && state.ends_with(&[21, 183]),
        "{state:?}"
    );
    (
        number_of(&state[..6]),
        number_of(&state[12..19]).cast_signed(),
    )
}

/// Returns the number of these bytes, the lowest first.
pub fn number_of(bytes: &[u8]) -> u64 {
    let number = |sum, byte: &u8| sum << 8 | u64::from(*byte);
    bytes.iter().rev().fold(0, number)
}

/// Returns the permits of a log's member: its last four bytes, in the members of all releases of
/// Redisson.
pub fn permits_of(member: &[u8]) -> u32 {
    u32::from_le_bytes(*member.last_chunk().expect("packed permits"))
}

/// Returns the permits of each window of this length that begins with a grant: grants are instants
/// and permits, in order.
pub fn windows<T>(grants: impl Iterator<Item = (T, i64)>, length: T) -> Vec<i64>
where
    T: Copy + PartialOrd + std::ops::Sub<Output = T>,
{
    let grants: Vec<_> = grants.collect();
    let (mut end, mut within) = (0, 0);
    let mut windows = Vec::new();
    for &(begin, permits) in &grants {
        while let Some(&(_, more)) = grants.get(end).filter(|(at, _)| *at - begin < length) {
            within += more;
            end += 1;
        }
        windows.push(within);
        within -= permits;
    }
    windows
}
