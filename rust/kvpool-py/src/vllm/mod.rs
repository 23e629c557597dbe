//! What `kvpool.integrations.vllm` is made of: blocks as vLLM sees them, its pool, its request hasher, and its manager's
//! calls for one group of full attention, and for several groups.

mod block;
mod caching;
mod feed;
mod group;
mod groups;
mod hasher;
mod hits;
mod keys;
mod memo;
mod pool;
mod slots;
mod states;
mod steps;

pub(crate) use block::{PyVllmBlock, block_ids};
pub(crate) use feed::PyVllmFeed;
pub(crate) use groups::PyVllmGroups;
pub(crate) use hasher::PyVllmHasher;
pub(crate) use pool::PyVllmPool;
pub(crate) use slots::PyVllmSlots;
