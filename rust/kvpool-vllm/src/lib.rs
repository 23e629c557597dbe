//! vLLM's block pool, implemented on top of kvpool's block pool.
//!
//! vLLM's pool allows more than [`kvpool::BlockPool`]: its callers select single blocks by id, write
//! reference counts, give a block several keys, and expect one queue with an exact order. This crate
//! adds these operations to one [`kvpool::BlockPool`]. It has no counts, lists or tables of its own. It
//! does not depend on Python. The Python bindings convert arguments, and `kvpool.integrations.vllm`
//! connects the crate to vLLM.
//!
//! - [`Pool`]: the block pool, with reference counts, hash keys, the queue of free blocks, and
//!   eviction. [`Start`]: the position in a block table at which a list of blocks begins.
//! - [`Keys`]: finds the keys of a block, and the blocks of a key in the order in which they were
//!   cached.
//! - [`Hits`]: finds the blocks of the longest hit of a request, for each group. [`Lookup`]: finds the
//!   length of that hit. [`LastHit`]: the blocks of the latest lookup, which the next one reuses.
//!   [`find_window`]: the lookup of a sliding window, which skips positions that cannot hit.
//! - [`Group`]: makes the decisions of vLLM's manager for one group and one request. It reads the
//!   caller's block tables ([`Table`]).
//! - [`Finals`], [`Retention`]: select the blocks of a request that are cached.
//! - [`Arrival`], [`Growth`]: how many blocks an arriving request, or a step of a running request,
//!   needs in each group. [`Room`]: whether enough blocks are free for them.
//! - [`FeedLog`]: a log of stored and removed contents. A publisher of KV events reads it.
//!
//! The semantics are those of vLLM 0.32 and 0.33 (`vllm/v1/core/block_pool.py`). If the two versions
//! differ, or kvpool differs from both, the documentation of the item describes the difference.
//!
//! ```
//! use kvpool_vllm::{Key, Pool};
//! let mut pool = Pool::new(8, true)?;
//! let mut blocks = Vec::new();
//! pool.allocate(2, &mut blocks, None)?;
//! assert_eq!(blocks, [1, 2]); // block 0 is the null block
//! let key = Key::new(&[7; 32], 0)?;
//! pool.insert_hash(key, 1, Some(16));
//! pool.free([2, 1])?;
//! // Block 2 has no hash and is reused first. Block 1 can be hit until all other blocks are in use.
//! assert_eq!(pool.order().collect::<Vec<_>>(), [2, 3, 4, 5, 6, 7, 1]);
//! assert_eq!(pool.find(&key), Some(1));
//! # Ok::<(), kvpool_vllm::VllmError>(())
//! ```
#![forbid(unsafe_code)]

mod error;
mod feed;
mod group;
mod groups;
mod hits;
mod key;
mod last_hit;
mod lookup;
mod pool;
mod retain;
mod states;
mod window;

pub use error::VllmError;
pub use feed::{FeedKeys, FeedLog, FeedRun, Link};
pub use group::{Arrived, Caching, Change, Group, Noted, Table, Tail};
pub use groups::{Arrival, Call, Growth, Room, Step};
pub use hits::{GroupFound, Hits};
pub use key::Key;
pub use last_hit::{Digests, LastHit};
pub use lookup::{Family, Found, GroupsHit, Index, Lookup, Reads};
pub use pool::history::Start;
pub use pool::keys::Keys;
pub use pool::{Pool, Removed};
pub use retain::{Finals, Prompt, Retains, Retention};
pub use states::{Move, NoState, States};
pub use window::{Window, WindowSearch, find_window};

/// Lets `cargo test` run the example in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
