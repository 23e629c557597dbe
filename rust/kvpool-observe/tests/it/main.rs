//! Tests of the observers in one program, so that their common code is compiled and linked only once.

#[path = "../explain/main.rs"]
mod explain;
#[path = "../pools/main.rs"]
mod pools;
#[path = "../publish/main.rs"]
mod publish;
#[path = "../units.rs"]
mod units;
