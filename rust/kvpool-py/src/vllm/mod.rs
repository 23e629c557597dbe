//! The Rust side of `kvpool.integrations.vllm`: vLLM's view of blocks, its pool, its request hasher,
//! and the calls of its KV-cache manager for any KV-cache groups.

mod block;
mod caching;
mod feed;
mod group;
mod groups;
mod hasher;
mod hits;
mod keys;
mod pool;
mod steps;

pub(crate) use block::{PyVllmBlock, block_ids};
pub(crate) use feed::PyVllmFeed;
pub(crate) use groups::PyVllmGroups;
pub(crate) use hasher::PyVllmHasher;
pub(crate) use pool::PyVllmPool;
