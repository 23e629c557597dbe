//! Stores KV-cache blocks outside of the GPU's memory, within a bound, with checks, and across
//! restarts. No call blocks an engine.
//!
//! When an engine's memory is full, it evicts blocks that later requests need again. A [`Store`] keeps
//! them in a [`Backend`], for example a disk, and gives four guarantees:
//!
//! * **No wrong bytes.** Every object has a [`Header`] with its [`Namespace`], its [`ObjectKey`], its
//!   length, and checksums. Every load compares the header. An object that does not match is a miss and
//!   is removed. After a change of the weights or of the memory layout, no older object matches: the
//!   store starts cold.
//! * **No waiting.** No call waits for a back end. A back end that is slow, full, broken or blocked
//!   leads to misses. After several failures in a row the store stops calling it for a while. The slot
//!   of a blocked load remains in use until the load has ended.
//! * **A strict bound.** The store has a fixed number of places, one per object. All places together
//!   fit the bound. One of the core's policies chooses the objects to evict. By default an object is
//!   written only when it is offered for the second time.
//! * **Persistence.** The objects survive a restart, even if the process was killed.
//!
//! The disk back end gives all four guarantees. The other back ends are shared by several engines, and
//! each of them documents to what extent it gives the last two.
//!
//! ```text
//!   Store        jobs, deadlines: decides everything, on the caller's thread, in the order of the calls
//!     Directory    key -> place; the order of eviction
//!     Admission    which objects are worth a write          Breaker    when the back end is not called
//!     OfferedBlocks    which blocks of a hash chain have to be offered: the new and the lost ones
//!     Arena        slots of host memory, and their users    Queue, workers    move and check bytes
//!   Backend      moves bytes, and may fail: disk, a shared folder, Redis
//! ```
//!
//! ```
//! # let folder = std::env::temp_dir().join(format!("kvpool-store-doc-{}", std::process::id()));
//! use std::time::{Duration, Instant};
//! use kvpool_store::disk::{DiskBackend, DiskConfig};
//! use kvpool_store::{Admit, Arena, Get, Namespace, ObjectKey, Put, Store, StoreConfig, TokenRange};
//!
//! # fn namespace() -> Namespace {
//! #     let (first, count) = (0, 1);
//! #     let span = kvpool_store::Span { first, count };
//! #     Namespace {
//! #         model: "m".into(), weights: "w".into(), kv_dtype: "bf16".into(), scales: String::new(),
//! #         layouts: vec![], block_size: 16, layers: span, heads: span, hash_algorithm: "sha256".into(),
//! #         hash_seed: vec![], extra: Default::default(),
//! #     }
//! # }
//! // 64 MiB of a disk for blocks of up to 64 KiB, and 8 slots of host memory.
//! let disk_config = DiskConfig { free_floor: 0, ..DiskConfig::new(&folder, 64 << 20, 64 << 10) };
//! let disk = DiskBackend::open(&disk_config)?;
//! let arena = Arena::new(8, 64 << 10)?;
//! let config = StoreConfig { admission: Admit::Always, ..StoreConfig::default() };
//! # let config = StoreConfig { deadline: Duration::from_secs(600), ..config }; // for busy machines
//! let mut store = Store::open(disk, arena.clone(), &namespace(), config)?;
//! let clock = Instant::now();
//!
//! arena.write(0)?.fill(7);
//! let key = ObjectKey { hash: [1; 32].into(), group: 0 };
//! let tokens = TokenRange { first: 0, count: 16 };
//! store.put(&[Put { key, tokens, len: 64 << 10, slot: 0, admit: None }], clock.elapsed())?;
//! let mut done = Vec::new();
//! while done.is_empty() {
//!     store.wait(clock.elapsed(), Duration::from_secs(1), &mut done); // a scheduler calls `poll` instead
//! }
//! assert_eq!(done[0].objects, [Ok(())]);
//!
//! let job = store.get(&[Get { key, len: 64 << 10, slot: 1 }], clock.elapsed())?;
//! while done.iter().all(|done| done.job != job) {
//!     store.wait(clock.elapsed(), Duration::from_secs(1), &mut done);
//! }
//! assert_eq!(done[1].objects, [Ok(())]);
//! assert!(arena.read(1)?.iter().all(|&byte| byte == 7));
//! store.close();
//! # std::fs::remove_dir_all(folder).unwrap();
//! # Ok::<(), kvpool_store::StoreError>(())
//! ```
//!
//! Two files contain unsafe code. `arena` makes slices of its memory, and its guards ensure that no
//! code reads a slot while other code writes to it. `disk/ring` passes addresses to the kernel, and
//! keeps the memory until the kernel has finished.

#![deny(unsafe_code)]

mod admission;
mod arena;
mod backend;
mod breaker;
mod calls;
mod directory;
pub mod disk;
mod ends;
mod error;
pub mod folder;
mod generation;
mod header;
mod locked;
mod namespace;
mod object;
mod offered;
mod private;
mod queue;
pub mod redis;
mod staging;
mod stats;
mod store;
mod transfer;
pub mod warm;
mod worker;

pub use admission::Admit;
pub use arena::{Arena, Reading, Writing};
pub use backend::{Backend, Lane};
pub use breaker::BreakerConfig;
pub use calls::{Completion, Get, JobId, Presence, Put, StoreConfig};
pub use ends::Waiter;
pub use error::{BackendError, StoreError, Why};
pub use generation::Generation;
pub use header::{HEADER_BYTES, Header, HeaderError, Mismatch, TokenRange};
pub use namespace::{FORMAT_VERSION, Layout, Namespace, NamespaceDigest, ParseDigestError, Span};
pub use object::{Object, ObjectKey, ObjectMut, ObjectName, PAGE, Page, ParseNameError, Place, places};
pub use offered::{OfferedBlocks, UnofferedBlock};
pub use stats::Stats;
pub use store::Store;
pub use transfer::Transfer;

/// Runs the example of the README as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
