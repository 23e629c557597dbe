//! What is fuzzed, one file each.

pub mod free_list;
pub mod index;
pub mod manager;
pub mod pool;
pub mod trace_reader;
