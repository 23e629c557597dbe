//! What `kvpool.integrations.vllm` is made of: blocks as vLLM sees them, its pool, its request hasher, and its manager's
//! calls for any KV-cache groups.

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
