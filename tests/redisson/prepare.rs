//! `prepare.sh` as benches/README.md and examples/README.md call it.

use std::{env, fs, path::Path, process::Command};

use super::oracle;
use kit::unique;

// Maven takes a relative folder relative to `pom.xml`.
#[test]
fn the_jars_are_brought_into_a_relative_folder() {
    let version = oracle::versions().remove(0);
    let here = env::temp_dir().join(unique("prepare"));
    fs::create_dir(&here).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/redisson/prepare.sh");
    let prepared = Command::new(script)
        .args(["target/redisson", &version])
        .current_dir(&here)
        .status()
        .unwrap();
    assert!(prepared.success());
    let home = here.join("target/redisson").join(&version);
    assert!(home.join("complete").exists());
    let jar = format!("redisson-{version}.jar");
    assert!(home.join("lib").join(jar).exists());
    fs::remove_dir_all(here).unwrap();
}
