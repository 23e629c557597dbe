//! Tests of the observers in one program: what many test programs have in common is compiled and linked once.

#[path = "../explain/main.rs"]
mod explain;
#[path = "../pools/main.rs"]
mod pools;
#[path = "../publish/main.rs"]
mod publish;
#[path = "../units.rs"]
mod units;
