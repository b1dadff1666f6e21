//! What a row cannot be measured without.

use std::{
    env,
    ffi::OsStr,
    process::{Command, Stdio},
};

use crate::peers::redisson;

/// Something outside of this program. Peers in Rust are compiled in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contender {
    Redis,
    /// Its script alone
    RedissonScript,
    /// Itself, in its own process
    Redisson,
}

/// What is to be installed before rows with these needs can be measured.
pub(crate) fn missing(needs: &[Contender]) -> Vec<String> {
    let all = [
        Contender::Redis,
        Contender::RedissonScript,
        Contender::Redisson,
    ];
    let needed = all.into_iter().filter(|it| needs.contains(it));
    let mut missing: Vec<_> = needed.filter_map(Contender::missing).collect();
    missing.dedup();
    missing
}

impl Contender {
    fn missing(self) -> Option<String> {
        match self {
            Self::Redis => {
                let server = env::var_os("REDIS_SERVER_BIN").unwrap_or("redis-server".into());
                (!runs(&server, "--version")).then(|| {
                    format!(
                        "{} cannot be run: install the package `redis-server` (apt) or `redis` (dnf, apk, brew), or \
                         name another binary in REDIS_SERVER_BIN",
                        server.display()
                    )
                })
            }
            Self::RedissonScript => redisson::script().err(),
            Self::Redisson => {
                if !runs("java", "-version") {
                    return Some(String::from(
                        "`java` cannot be run: install a JDK, 17 or newer (apt: openjdk-17-jdk-headless)",
                    ));
                }
                redisson::script().err()
            }
        }
    }
}

fn runs(program: impl AsRef<OsStr>, argument: &str) -> bool {
    Command::new(program)
        .arg(argument)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}
