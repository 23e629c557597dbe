//! Events for routers: they report which worker has which prefixes cached, in the common formats of
//! engines.
//!
//! ```text
//!    pools' feeds  changes with tokens, from this crate or from an engine integration
//!      Contents    the matchable contents, and which of them consumers know
//!     Publisher    numbers, gaps, heartbeats, replays; one sequence per sink
//!       encode     a batch as bytes, in any Form
//!      sockets     not in this crate: in the Python package, or any other transport
//! ```
//!
//! Publishing does not run within an engine step. In a step, the pool only adds its changes to the
//! feed. `docs/events.md` specifies the bytes and how consumers process them.
//!
//! ```
//! use std::time::{Instant, SystemTime, UNIX_EPOCH};
//!
//! use kvpool::{CacheManager, ExtraKeys, ManagerConfig};
//! use kvpool_observe::publish::{Group, Publisher, SinkConfig, base};
//! use kvpool_observe::{FeedBatch, ManagerWatch};
//!
//! let config = ManagerConfig { num_blocks: 64, block_size: 4, ..Default::default() };
//! let mut manager = CacheManager::new(config)?;
//! manager.keep_feed(1 << 20)?; // before the first request
//! let began = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
//! let mut publisher = Publisher::new(Group::all_of(&manager), 0, base(began))?;
//! publisher.add(SinkConfig::default());
//! let (clock, mut changes) = (Instant::now(), FeedBatch::default());
//!
//! manager.admit("a", manager.prepare(&[1, 2, 3, 4, 5], ExtraKeys::default())?)?;
//! manager.commit("a", 5)?;
//!
//! manager.take_feed(0, &mut changes); // tier 0 is the device
//! publisher.take_in(0, &changes);
//! for batch in publisher.flush(clock.elapsed().as_secs_f64(), 5.0) {
//!     println!("sink {}, batch {}, {} bytes", batch.sink, batch.number, batch.payload.len());
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod contents;
mod encode;
mod event;
mod form;
mod keys;
mod msgpack;
mod publisher;

pub use contents::{Contents, Keys, MAX_TIERS};
pub use encode::encode;
pub use event::{Digest, Event, Extra, GroupName, Label};
pub use form::{Dialect, Form, HashForm, Layout, UnknownForm};
pub use publisher::{Batch, Group, Publisher, PublisherError, SinkConfig, Snapshot, base};
