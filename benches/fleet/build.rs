//! Says to the library that it is built for the fleet.

fn main() {
    println!("cargo::rustc-check-cfg=cfg(fleet)");
    println!("cargo::rustc-cfg=fleet");
    println!("cargo::rerun-if-changed=build.rs");
}
