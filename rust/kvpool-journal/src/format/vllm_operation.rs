//! What can be asked of vLLM's pool, as plain data, and the checks of what it answers.
//!
//! Keys are written whole, since the same key has to lead to the same block.
//!
//! The order of variants is the format: new ones go to the end.

use kvpool::PoolError;
use kvpool_vllm::{Key, Removed, VllmError};
use serde::{Deserialize, Serialize};

use crate::{Check, Outcome, RetentionRecord, SignalRecord};

/// A call of a [`kvpool_vllm::Pool`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are the arguments of the calls named")]
pub enum VllmOperation {
    /// [`kvpool_vllm::Pool::allocate`]
    Allocate { blocks: usize },
    /// [`kvpool_vllm::Pool::claim`]
    Claim { blocks: Vec<u32> },
    /// [`kvpool_vllm::Pool::touch`]
    Touch { blocks: Vec<u32> },
    /// [`kvpool_vllm::Pool::free`]
    Free { blocks: Vec<u32> },
    /// [`kvpool_vllm::Pool::unpin`]
    Unpin { blocks: Vec<u32> },
    /// [`kvpool_vllm::Pool::insert_hash_behind`]
    InsertHash { key: Key, block: u32, num_tokens: Option<u32>, depth: u32, parent: Option<Key> },
    /// [`kvpool_vllm::Pool::cache_full`]
    CacheFull {
        first: usize,
        before: Option<u32>,
        blocks: Vec<u32>,
        keys: Vec<Option<Key>>,
        block_size: usize,
    },
    /// [`kvpool_vllm::Pool::insert_in_index`]
    InsertInIndex { key: Key, block: u32 },
    /// [`kvpool_vllm::Pool::remove_from_index`]
    RemoveFromIndex { key: Key, block: u32 },
    /// [`kvpool_vllm::Pool::clear_index`]
    ClearIndex,
    /// [`kvpool_vllm::Pool::remove_hashes`]
    RemoveHashes { block: u32 },
    /// [`kvpool_vllm::Pool::move_hashes`]
    MoveHashes { from: u32, to: u32 },
    /// [`kvpool_vllm::Pool::evict`]
    Evict { block: u32, reuse_first: bool },
    /// [`kvpool_vllm::Pool::reset`]
    Reset,
    /// [`kvpool_vllm::Pool::set_ref_count`]
    SetRefCount { block: u32, count: i32 },
    /// [`kvpool_vllm::Pool::set_hash`]
    SetHash { block: u32, key: Key, num_tokens: Option<u32> },
    /// [`kvpool_vllm::Pool::reset_hash`]
    ResetHash { block: u32 },
    /// [`kvpool_vllm::Pool::chain_group`]
    ChainGroup { group: u32 },
    /// [`kvpool_vllm::Pool::pop_from_queue`]
    QueuePop { blocks: usize },
    /// [`kvpool_vllm::Pool::remove_from_queue`]
    QueueRemove { block: u32 },
    /// [`kvpool_vllm::Pool::push_to_queue`]
    QueuePush { blocks: Vec<u32>, front: bool },
    /// [`kvpool_vllm::Pool::retain`]
    Retain { blocks: Vec<u32>, retention: RetentionRecord },
    /// [`kvpool_vllm::Pool::assign_tenant`]
    AssignTenant { blocks: Vec<u32>, tenant: u32 },
    /// [`kvpool_vllm::Pool::advance_time`]
    AdvanceTime { now: f64 },
    /// [`kvpool_vllm::Pool::signal`]
    Signal { blocks: Vec<u32>, signal: SignalRecord },
}

impl Outcome for Removed {
    fn add_to(&self, check: &mut Check) {
        check.add(u64::from(self.block) << 1 | u64::from(self.last_copy));
        check.add(self.key.content());
    }
}

// Errors by kind. The numbers are part of the format: new kinds get new ones.
impl Outcome for VllmError {
    fn add_to(&self, check: &mut Check) {
        check.add(match self {
            Self::OutOfBlocks { wanted, .. } => (*wanted as u64) << 16 | 501,
            Self::NotHeld { .. } => 502,
            Self::UnknownBlock { .. } => 503,
            Self::AlreadyCached { .. } => 504,
            Self::KeyTooLong { .. } => 505,
            Self::Pool(PoolError::Poisoned { .. }) => 506,
            Self::Pool(_) => 507,
            // Kinds that came later: they get numbers here when they come.
            _ => 599,
        });
    }
}
