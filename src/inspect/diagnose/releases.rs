//! Redisson's releases, recognized by the acquire script that each of them sends.

use std::fmt;

/// A range of Redisson's releases that share one acquire script.
///
/// Redis keeps every script it receives until a restart or `SCRIPT FLUSH`. Redis 7.4 and newer drop
/// the scripts that were sent by EVAL, as releases before 3.46.0 do, once there are many. So a
/// release that is listed has been at work since then, and may have been stopped meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RedissonReleases {
    /// The first of them
    pub(super) from: &'static str,
    /// The first known release that sends another script; `None` for the newest known
    pub(super) before: Option<&'static str>,
    /// The script's SHA-1, in hexadecimal
    pub(super) sha1: &'static str,
    /// Set if they can read the entries that this crate writes
    pub(super) reads_our_entries: bool,
}

impl fmt::Display for RedissonReleases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.before {
            Some(before) => write!(f, "{} or newer, before {before}", self.from),
            None => write!(f, "{} or newer", self.from),
        }
    }
}

/// All acquire scripts of Redisson up to 4.7.0, oldest first.
#[rustfmt::skip]
pub(super) const ALL: [RedissonReleases; 13] = [
    releases("3.7.1", Some("3.10.1"), "2196ed0c58d4886d2110f3fbb65ebce68fd011f2", false),
    releases("3.10.1", Some("3.10.7"), "f43ed01cee38376aa0dca14a3ddb7be16cb69e53", false),
    releases("3.10.7", Some("3.13.3"), "5bec93211d737622365d15a9a4f2537f9de8bea2", false),
    releases("3.13.3", Some("3.14.0"), "df5536206d0c440727a5f17ab38851a31af682c7", false),
    releases("3.14.0", Some("3.15.3"), "d66032e767a3ea7814ca959c0a81ae0baa165f75", false),
    releases("3.15.3", Some("3.15.4"), "cc6c24798156175238565240019400ec8d2ed5da", false),
    releases("3.15.4", Some("3.16.2"), "873b6a3c0be138fbd885d12401aef7b45672df07", false),
    releases("3.16.2", Some("3.16.4"), "a0fa40a1774eac6441c6b7418489ce2fe6b927a1", false),
    releases("3.16.4", Some("3.17.0"), "a23369f7eb133a5016039b245b3fd2482bcafcc3", false),
    releases("3.17.0", Some("3.17.3"), "885213617b048a7030de9bae0c125407047d6c55", true),
    releases("3.17.3", Some("3.35.0"), "f65fa99baa7d5568e00f123d0e62332001e4e223", true),
    // That of 3.37.0 is unknown: its change may not have been to this script.
    releases("3.35.0", Some("3.38.0"), "71bab5abd65f60b576de6705d631e9c801e0039a", true),
    releases("3.38.0", None, "861d9229367b5aa9889ee26c5c31be7baeba2153", true),
];

const fn releases(
    from: &'static str,
    before: Option<&'static str>,
    sha1: &'static str,
    reads_our_entries: bool,
) -> RedissonReleases {
    RedissonReleases {
        from,
        before,
        sha1,
        reads_our_entries,
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
        for pair in ALL.windows(2) {
            assert_eq!(pair[0].before, Some(pair[1].from));
            assert!(version(pair[0].from) < version(pair[1].from));
        }
        assert_eq!(ALL[12].before, None);
        for releases in ALL {
            // 3.17.0 introduced the length byte.
            let reads = version(releases.from) >= version("3.17.0");
            assert_eq!(releases.reads_our_entries, reads, "{releases}");
            let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
            assert!(
                releases.sha1.len() == 40 && releases.sha1.bytes().all(hex),
                "{releases}"
            );
        }
        let hashes: BTreeSet<_> = ALL.iter().map(|releases| releases.sha1).collect();
        assert_eq!(hashes.len(), ALL.len());
        assert_eq!(ALL[8].to_string(), "3.16.4 or newer, before 3.17.0");
        assert_eq!(ALL[12].to_string(), "3.38.0 or newer");
    }
}
