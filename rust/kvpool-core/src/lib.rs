//! The core of kvpool: which physical blocks hold which keys and values, which of them are computed, and what to evict.
//!
//! An engine owns the memory; this crate owns who holds what. The crate `kvpool` has block tables, tiers and requests over it, and
//! shows all that is here under its own name: schedulers take that one. Policies, faces and observers need no more than this one.
//!
//! ```text
//!   BlockPool           all-or-nothing operations: the only place where the parts meet
//!     BlockAllocator    reference counts, over a FreeBlockList
//!     PrefixIndex       block hash -> blocks, computed bits, duplicates, verification
//!     Evictor           the order of cached-free blocks
//!     fences            references that running steps still hold
//!   groups              what a hit needs of each KV-cache group of a hybrid model: arithmetic alone
//!   BlockHasher         tokens -> HashChain, incrementally by HashCursor: of the crate kvpool-hash, needs none of the above
//! ```
//!
//! | operation | cost |
//! |---|---|
//! | allocate, acquire, release, register, match, evict | O(1) per block, whatever the size of the pool |
//! | construct | one allocation per array |
//! | memory | 73 bytes per block, 16 more with fingerprints, all of it taken at construction |
//!
//! Everything is deterministic: the same calls give the same results on any host. Nothing panics on data: errors are typed,
//! and a failed call has changed nothing. The crate is single-threaded by design (`&mut self`): callers lock.
//!
//! Who watches, records or speaks for a pool is outside: [`observe`] says what an observer is told.
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
mod pool;
mod prefix_index;
mod record;
pub mod retention;
mod stats;

pub use allocator::BlockAllocator;
pub use block::{BlockId, BlockState, MAX_BLOCKS, NULL_BLOCK};
pub use error::{ConfigDetail, InvariantViolation, PoolError, Refusal};
pub use evictor::{
    Candidate, Content, EvictionPolicy, Evictor, Finish, Kept, LruEvictor, Outlook, Policy, Release, Signal,
};
pub use fence::{Ticket, Until};
pub use free_list::FreeBlockList;
pub use kvpool_hash as hash;
pub use kvpool_hash::{
    Adapter, BlockHash, BlockHasher, ChainLink, ExtraKeys, Fingerprint, HashAlgorithm, HashChain, HashCursor,
    HashError, HasherConfig, MultimodalItem, Verify,
};
#[cfg(feature = "fault-injection")]
pub use pool::Fault;
pub use pool::observe;
pub use pool::{
    BlockPool, DuplicatePolicy, Match, PoolConfig, PoolImage, Probe, Registered, Restored, SavedBlock,
};
pub use prefix_index::{Inserted, PrefixIndex};
pub use record::Name;
pub use stats::PoolStats;

/// What the sister crates are made of, and engines need not: it may change in any release.
#[doc(hidden)]
pub mod parts {
    pub use crate::error::ensure;
    pub use crate::evictor::lru::sort_deepest_first;
    pub use crate::free_list::check_id;
    pub use crate::groups::keep::Kept;
    pub use crate::list::{END, Link, Links, List, try_reserve};
    pub use crate::pool::{Carried, PrefixMatch};
    pub use crate::record::MAX_POSITIONS;
    pub use crate::retention::no_clock;
}

/// The example of the README is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
