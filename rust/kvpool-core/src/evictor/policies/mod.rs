//! The orders that the core has, one file or folder each: what it evicts, its paper, its cost, and when not to use it. The
//! others are in the crate `kvpool-policies`, and with them the models that all of them are tested against.

pub mod adaptive;
mod recency;
mod s3_fifo;

pub use adaptive::Adaptive;
pub use recency::Recency;
pub use s3_fifo::S3Fifo;
