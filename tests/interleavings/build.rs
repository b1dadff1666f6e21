//! Says to the library that it is built for loom.

fn main() {
    println!("cargo::rustc-check-cfg=cfg(interleavings)");
    println!("cargo::rustc-cfg=interleavings");
    println!("cargo::rerun-if-changed=build.rs");
}
