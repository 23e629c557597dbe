//! vLLM's contract for a block pool, as a face of kvpool's.
//!
//! vLLM's pool differs from [`kvpool::BlockPool`] in what its callers may do: they name blocks one by
//! one, set reference counts themselves, give a block several keys, and expect one queue with an exact
//! order. This crate adds those words to one [`kvpool::BlockPool`] and nothing else: no counts, lists
//! or tables of its own. It knows no Python; the bindings convert, and `kvpool.integrations.vllm`
//! decides when vLLM gets to see any of it.
//!
//! - [`Pool`]: reference counts, hash keys, the queue, eviction; [`Start`]: where a run of blocks
//!   stands in its table.
//! - [`Keys`]: the keys of blocks, and the blocks of keys in the order in which they were cached.
//! - [`LastHit`]: the last lookup, for the next one to go on from.
//! - [`find_window`]: the lookup of a sliding window, which skips what can't hit.
//! - [`Hits`]: the blocks of the longest hit of a request, by group; [`Lookup`]: how long it is.
//! - [`Group`]: what vLLM's manager of a group decides about a request, over the caller's tables ([`Table`]).
//! - [`Finals`], [`Retention`]: which blocks of a request are cached.
//! - [`Arrival`], [`Growth`]: what a request that comes, or a step of one that runs, asks of each of
//!   its groups; [`Room`]: whether it may take that.
//! - [`FeedLog`]: what came and went, for a publisher of KV events.
//!
//! The semantics are those of vLLM 0.32 and 0.33 (`vllm/v1/core/block_pool.py`); where they differ, or
//! kvpool departs from both, the item says so.
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
//! // Block 2 carries no hash and is reused first; block 1 can be hit until everything else is in use.
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

/// The example of the README is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
