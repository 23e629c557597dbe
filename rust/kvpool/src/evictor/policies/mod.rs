//! The policies of the literature and [`adaptive`], one file or folder each: what it evicts, its paper, its cost, and when not to use it.

pub mod adaptive;
mod arc;
mod fifo;
mod gdsf;
mod lfu;
mod lrfu;
mod ranked;
mod recency;
mod s3_fifo;
mod sieve;
mod two_q;

pub use adaptive::Adaptive;
pub use arc::AdaptiveReplacement;
pub use fifo::Fifo;
pub use gdsf::Gdsf;
pub use lfu::{Lfu, LfuDa};
pub use lrfu::Lrfu;
pub use recency::Recency;
pub use s3_fifo::S3Fifo;
pub use sieve::Sieve;
pub use two_q::TwoQ;
