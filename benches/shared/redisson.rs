//! The acquire script of the real Redisson, out of the jar that `tests/redisson/prepare.sh` has
//! brought.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use tower_ratelimit::redis;

pub(crate) const VERSION: &str = "4.7.0";
/// The hash by which Redisson 3.52.0 to 4.7.0 call it.
pub(crate) const HASH: &str = "861d9229367b5aa9889ee26c5c31be7baeba2153";

/// The folder of the jars: in the checkout, whatever folder cargo builds in.
pub(crate) fn jars() -> PathBuf {
    // The packages of several folders share this file.
    let mut above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let checkout = above.find(|folder| folder.join("tests/redisson").is_dir());
    let home = checkout.unwrap_or(Path::new("")).join("target/redisson");
    home.join(VERSION).join("lib")
}

/// The text of the script, or what is missing.
pub(crate) fn script() -> Result<String, String> {
    let jar = jars().join(format!("redisson-{VERSION}.jar"));
    let class = Command::new("unzip")
        .arg("-p")
        .arg(&jar)
        .arg("org/redisson/RedissonRateLimiter.class")
        .output()
        .map_err(|error| format!("`unzip` cannot be run, install it: {error}"))?
        .stdout;
    // A text in a class file: two bytes of length before it. There are several scripts; the hash
    // tells which.
    let start = b"local rate = redis.call(";
    class
        .windows(start.len())
        .enumerate()
        .filter(|(_, bytes)| bytes == start)
        .filter_map(|(at, _)| {
            let size = class.get(at.checked_sub(2)?..at)?;
            let size = usize::from(u16::from_be_bytes([size[0], size[1]]));
            String::from_utf8(class.get(at..at + size)?.to_vec()).ok()
        })
        .find(|text| redis::Script::new(text).get_hash() == HASH)
        .ok_or_else(|| {
            format!(
                "no script of Redisson {VERSION} in {}: tests/redisson/prepare.sh target/redisson {VERSION} brings it",
                jar.display()
            )
        })
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_jars_are_in_the_checkout() {
        let jars = super::jars();
        let checkout = jars.ancestors().nth(4).expect("a folder");
        assert!(checkout.join("tests/redisson/prepare.sh").is_file());
    }
}
