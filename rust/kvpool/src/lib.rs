//! kvpool, the KV-cache block manager for LLM inference engines: requests, block tables and tiers over a pool of blocks.
//!
//! An engine's scheduler asks it which physical blocks hold a sequence's keys and values, which of them are already
//! computed, and what to evict. The engine owns the memory; this crate owns who holds what.
//!
//! ```text
//!   CacheManager        requests by id: admit, append, commit, preempt, release; step plans
//!     Sequence          block tables with a mutable tail, one per KV-cache group: fork, copy-on-write, trim
//!     Tiers             one pool per tier; planned copies, two-phase swaps
//!       BlockPool       of the crate kvpool-core, the core: allocation, prefix cache, eviction, fences
//! ```
//!
//! All that the core has is here, too, under the same names.
//!
//! | operation | cost |
//! |---|---|
//! | allocate, acquire, release, register, match, evict | O(1) per block, whatever the size of the pool |
//! | admit, resume | one lookup and one allocation, O(blocks of the prompt) |
//! | append a token | O(1); a hash and a block every `block_size` tokens |
//!
//! Everything is deterministic: the same calls give the same results on any host. Nothing panics on data: errors are typed,
//! and a failed call has changed nothing. The crate is single-threaded by design (`&mut self`): callers lock.
//!
//! Who watches, records or speaks for a pool is outside: [`observe`] says what an observer is told, `kvpool-observe` has events,
//! digests, the scrubber, the advisor and explanations, `kvpool-journal` records and replays.
//!
#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod manager;
pub mod observe;
mod sequence;
mod shorten;
mod tiers;

#[cfg(feature = "fault-injection")]
pub use kvpool_core::Fault;
pub use kvpool_core::hash::{
    Adapter, BlockHash, BlockHasher, ChainLink, ExtraKeys, Fingerprint, HashAlgorithm, HashChain, HashCursor,
    HashError, HasherConfig, MultimodalItem, Verify,
};
#[doc(hidden)]
pub use kvpool_core::parts;
pub use kvpool_core::{
    BlockAllocator, BlockId, BlockPool, BlockState, Candidate, ConfigDetail, Content, DuplicatePolicy,
    EvictionPolicy, Evictor, Finish, FreeBlockList, Inserted, InvariantViolation, Kept, LruEvictor,
    MAX_BLOCKS, Match, NULL_BLOCK, Name, Outlook, Policy, PoolConfig, PoolError, PoolImage, PoolStats,
    PrefixIndex, Probe, Refusal, Registered, Release, Restored, SavedBlock, Signal, Ticket, Until, evictor,
    groups, hash, retention,
};
pub use manager::{
    Admission, AdmissionFit, AdmitOptions, CacheManager, Computed, Covered, GroupFit, Loaded, ManagerConfig,
    ManagerError, ManagerStats, NewBlock, PlannedOperation, Refused, RequestId, RequestInfo, RequestRef,
    RequestState, RetentionRange, Rows, StepOutcome, StepPlan,
};
pub use sequence::{Part, TableChange};
pub use shorten::shorten;
pub use tiers::{Fit, Place, PlanError, Run, SwapId, TierError, Tiers, Transfer, TransferPlan, runs};
