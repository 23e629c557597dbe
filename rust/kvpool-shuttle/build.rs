//! Compiles everything in this package with the threads and locks of the crate `shuttle`, which runs a
//! test under many thread schedules.

fn main() {
    println!("cargo::rustc-cfg=shuttle");
    println!("cargo::rerun-if-changed=build.rs");
}
