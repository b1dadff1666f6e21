//! Redisson's releases, recognized by the acquire script that each of them sends.

/// The acquire scripts of Redisson up to 4.7.0, oldest first: the first release that sends it, and
/// its SHA-1.
///
/// Redis keeps every script it receives until a restart or `SCRIPT FLUSH`. Redis 7.4 and newer drop
/// the scripts that were sent by EVAL, as releases before 3.46.0 do, once there are many. So a
/// release that is listed has been at work since then, and may have been stopped meanwhile.
pub(super) const RELEASES: [(&str, &str); 13] = [
    ("3.7.1", "2196ed0c58d4886d2110f3fbb65ebce68fd011f2"),
    ("3.10.1", "f43ed01cee38376aa0dca14a3ddb7be16cb69e53"),
    ("3.10.7", "5bec93211d737622365d15a9a4f2537f9de8bea2"),
    ("3.13.3", "df5536206d0c440727a5f17ab38851a31af682c7"),
    ("3.14.0", "d66032e767a3ea7814ca959c0a81ae0baa165f75"),
    ("3.15.3", "cc6c24798156175238565240019400ec8d2ed5da"),
    ("3.15.4", "873b6a3c0be138fbd885d12401aef7b45672df07"),
    ("3.16.2", "a0fa40a1774eac6441c6b7418489ce2fe6b927a1"),
    ("3.16.4", "a23369f7eb133a5016039b245b3fd2482bcafcc3"),
    ("3.17.0", "885213617b048a7030de9bae0c125407047d6c55"),
    ("3.17.3", "f65fa99baa7d5568e00f123d0e62332001e4e223"),
    // That of 3.37.0 is unknown: its change may not have been to this script.
    ("3.35.0", "71bab5abd65f60b576de6705d631e9c801e0039a"),
    ("3.38.0", "861d9229367b5aa9889ee26c5c31be7baeba2153"),
];

/// The index of 3.17.0, the first that can read the entries that this crate writes.
pub(super) const READS_OURS: usize = 9;

/// Returns the releases at an index of the table.
pub(super) fn words_of(index: usize) -> String {
    let from = |index: usize| RELEASES.get(index).map_or("", |(from, _)| from);
    match from(index + 1) {
        "" => format!("{} or newer", from(index)),
        before => format!("{} or newer, before {before}", from(index)),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn version(text: &str) -> Vec<u32> {
        text.split('.').map(|part| part.parse().unwrap()).collect()
    }

    #[test]
    fn the_table_has_each_release_once() {
        let versions: Vec<_> = RELEASES.iter().map(|(from, _)| version(from)).collect();
        assert!(versions.is_sorted_by(|one, other| one < other));
        let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        let is_hash = |sha1: &str| sha1.len() == 40 && sha1.bytes().all(hex);
        assert!(RELEASES.iter().all(|(_, sha1)| is_hash(sha1)));
        let hashes: BTreeSet<_> = RELEASES.iter().map(|(_, sha1)| sha1).collect();
        assert_eq!(hashes.len(), RELEASES.len());
        // It introduced the length byte.
        assert_eq!(words_of(READS_OURS), "3.17.0 or newer, before 3.17.3");
        assert_eq!(words_of(12), "3.38.0 or newer");
    }
}
