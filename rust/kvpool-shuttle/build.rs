//! Compiles everything in this package against shuttle's primitives.

fn main() {
    println!("cargo::rustc-cfg=shuttle");
    println!("cargo::rerun-if-changed=build.rs");
}
