//! kvpool is a KV-cache block manager for LLM inference engines. It manages requests, block tables and
//! tiers over a pool of blocks.
//!
//! An engine's scheduler asks kvpool which physical blocks hold a sequence's keys and values, which of
//! them are already computed, and which blocks to evict. The engine owns the memory, and this crate
//! owns the bookkeeping of its blocks.
//!
//! ```text
//!   CacheManager        requests by id: admit, append, commit, preempt, release; step plans
//!     Sequence          block tables with a mutable tail, one per KV-cache group: fork, copy-on-write, trim
//!     Tiers             one pool per tier; planned copies, two-phase swaps
//!       BlockPool       all-or-nothing operations on blocks; the only place where the parts below meet
//!         BlockAllocator    reference counts, over a FreeBlockList
//!         PrefixIndex       block hash -> blocks, computed bits, duplicates, verification
//!         Evictor           the order of cached-free blocks
//!         fences            references that running steps still hold
//!     groups            the blocks that a hit needs in each KV-cache group of a hybrid model
//!   BlockHasher         tokens -> HashChain, incrementally by HashCursor; crate kvpool-hash, usable alone
//! ```
//!
//! | task | start with |
//! |---|---|
//! | admit requests, with prefix caching | [`CacheManager::admit`], [`CacheManager::fit`] |
//! | run a step for a batch | [`CacheManager::append_ragged`], or a [`StepPlan`] |
//! | finish, preempt and resume requests | [`CacheManager::release`], [`CacheManager::preempt`] |
//! | share blocks: parallel sampling, beam search | [`CacheManager::fork`] |
//! | swap requests to host memory | [`CacheManager::begin_swap_out`], [`Tiers`] |
//! | explain what happened | [`CacheManager::stats`], [`mod@observe`], the crate `kvpool-observe` |
//! | serve a hybrid model | [`mod@groups`], [`ManagerConfig::groups`] |
//! | influence eviction | [`mod@evictor`], [`mod@retention`] |
//! | manage blocks without requests | [`BlockPool`] |
//!
//! | operation | cost |
//! |---|---|
//! | allocate, acquire, release, register, match, evict | O(1) per block, for any size of the pool |
//! | construct a pool | one allocation per array; 73 bytes per block, 16 more with fingerprints |
//! | admit, resume | one lookup and one allocation, O(blocks of the prompt) |
//! | append a token | O(1); a hash and a block every `block_size` tokens |
//!
//! Everything is deterministic: the same calls give the same results on any host. No call panics
//! because of its arguments: errors are typed, and a failed call changes nothing. The crate is
//! single-threaded by design (`&mut self`), so callers that use several threads need a lock.
//!
//! Observers and recorders are in other crates. [`mod@observe`] defines the notifications.
//! `kvpool-observe` contains events, digests, the scrubber, the advisor and explanations, and
//! `kvpool-journal` records and replays calls.
#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod allocator;
mod block;
mod error;
pub mod evictor;
mod fence;
mod free_list;
pub mod groups;
mod list;
mod manager;
pub mod observe;
mod pool;
mod prefix_index;
mod record;
pub mod retention;
mod sequence;
mod shorten;
mod stats;
mod tiers;

pub use allocator::BlockAllocator;
pub use block::{BlockId, BlockState, MAX_BLOCKS, NULL_BLOCK};
pub use error::{ConfigDetail, InvariantViolation, PoolError, Refusal};
pub use evictor::{
    CacheTime, Candidate, Content, EvictionPolicy, Evictor, Finish, LruEvictor, Outlook, Policy, Release,
    Signal,
};
pub use fence::{Ticket, Until};
pub use free_list::FreeBlockList;
pub use kvpool_hash as hash;
pub use kvpool_hash::{
    Adapter, BlockHash, BlockHasher, ChainLink, ExtraKeys, Fingerprint, HashAlgorithm, HashChain, HashCursor,
    HashError, HasherConfig, MultimodalItem, Verify,
};
pub use manager::{
    Admission, AdmissionFit, AdmitOptions, CacheManager, Computed, Covered, GroupFit, Loaded, ManagerConfig,
    ManagerError, ManagerStats, NewBlock, PlannedOperation, Refused, RequestId, RequestInfo, RequestRef,
    RequestState, RetentionRange, Rows, StepOutcome, StepPlan,
};
#[cfg(feature = "fault-injection")]
pub use pool::Fault;
pub use pool::{
    BlockPool, DuplicatePolicy, Match, PoolConfig, PoolImage, Probe, Registered, Restored, SavedBlock,
};
pub use prefix_index::{Inserted, PrefixIndex};
pub use record::Name;
pub use sequence::{Part, TableChange};
pub use shorten::shorten;
pub use stats::PoolStats;
pub use tiers::{Fit, Place, PlanError, Run, SwapId, TierError, Tiers, Transfer, TransferPlan, runs};

/// The former name of [`CacheTime`].
#[deprecated(since = "0.2.0", note = "use `CacheTime`")]
pub type Kept = CacheTime;

/// Items that the other kvpool crates use, and that engines do not need. They may change in any
/// release.
#[doc(hidden)]
pub mod parts {
    pub use crate::error::ensure;
    pub use crate::evictor::lru::sort_deepest_first;
    pub use crate::list::{END, Link, Links, List, try_reserve};
    pub use crate::retention::no_clock;
}
