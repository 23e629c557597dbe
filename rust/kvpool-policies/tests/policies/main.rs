//! Tests of the policies of this crate and of the core's LRU. [`contract`] checks the guarantees of the
//! [`Policy`] trait. [`models`], [`random`], [`adaptive`] and [`hazard`] compare each policy with a
//! model that is written from its definition. [`golden`] contains small examples computed by hand, and
//! [`parts`] tests the data structures of the policies.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail by panicking, as tests do")]

mod adaptive;
mod chained;
mod contract;
mod golden;
mod hazard;
mod hazard_model;
mod models;
mod parts;
mod random;

use kvpool::evictor::{Content, Policy};
use kvpool::{BlockId, PoolError};
use kvpool_policies::{Adaptive, AdaptiveReplacement, Chained, Hazard, Recency, S3Fifo};

fn id(block: u32) -> BlockId {
    BlockId::new(block)
}

fn content(key: u64) -> Content {
    Content { key, depth: (key % 5) as u32 }
}

/// Makes a policy. The argument is its number of blocks, including the null block.
type Make = fn(usize) -> Result<Box<dyn Policy>, PoolError>;

fn boxed<P: Policy + 'static>(policy: Result<P, PoolError>) -> Result<Box<dyn Policy>, PoolError> {
    Ok(Box::new(policy?))
}

const POLICIES: [(&str, Make); 6] = [
    ("lru", |blocks| boxed(Recency::new(blocks))),
    ("s3-fifo", |blocks| boxed(S3Fifo::new(blocks))),
    ("arc", |blocks| boxed(AdaptiveReplacement::new(blocks))),
    ("adaptive", |blocks| boxed(Adaptive::new(blocks))),
    ("hazard", |blocks| boxed(Hazard::new(blocks))),
    ("hazard", |blocks| boxed(Chained::new(Hazard::new(blocks)?, blocks))),
];
