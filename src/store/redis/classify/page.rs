//! Reads the table of errors, `errors.md`, for tests.

const PAGE: &str = include_str!("errors.md");

/// Returns its rows: the message, redis-rs' kind, carried out, class, kind, connection, breaker,
/// what to do.
pub fn rows() -> Vec<[&'static str; 8]> {
    let lines = PAGE.lines().filter(|line| line.starts_with('|'));
    let rows = lines.skip(2).map(|line| {
        let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
        <[&str; 8]>::try_from(cells).unwrap_or_else(|cells| panic!("{cells:?}"))
    });
    rows.collect()
}
