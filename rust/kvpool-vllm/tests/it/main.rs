//! Tests of vLLM's pool in one program: what many test programs have in common is compiled and linked once.

#[path = "../group.rs"]
mod group;
#[path = "../history.rs"]
mod history;
#[path = "../lookup.rs"]
mod lookup;
#[path = "../parts.rs"]
mod parts;
