//! Builds the tests of vLLM's pool as one program, so that their common code is compiled and linked
//! only once.

#[path = "../group.rs"]
mod group;
#[path = "../history.rs"]
mod history;
#[path = "../lookup.rs"]
mod lookup;
#[path = "../parts.rs"]
mod parts;
