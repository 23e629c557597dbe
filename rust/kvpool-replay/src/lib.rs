//! Request traces for kvpool: read them, generate them, replay them.
//!
//! | module | owns |
//! |---|---|
//! | [`trace`] | a trace in memory, and how it is written |
//! | [`reader`] | Mooncake JSONL, plain or gzip |
//! | [`validate`] | what makes a trace consistent |
//! | [`generate`] | a deterministic generator of chats and agent sessions |
//! | [`expand`] | block ids -> made-up tokens |
//! | [`replay`] | a trace through the shipped pool and manager, and what came of it |
//! | [`sizing`] | hits at every capacity at once, the optimum, the value of hints, the knee in GiB |
#![forbid(unsafe_code)]

pub mod error;
pub mod expand;
pub mod generate;
pub mod reader;
pub mod replay;
pub mod sizing;
pub mod trace;
pub mod validate;
