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
//! Publishing does not run within an engine step. A step only pays for the feed of its pool.
//! `docs/events.md` specifies the bytes and how consumers process them.
//!
//! ```
//! use kvpool_observe::publish::{Digest, Group, Publisher, SinkConfig, base};
//!
//! let groups = vec![Group { name: Default::default(), block_tokens: 2, chained: true }];
//! let mut publisher = Publisher::new(groups, 0, base(1_700_000_000))?;
//! publisher.add(SinkConfig::default());
//! publisher.stored(0, 0, Digest::of_number(7), None, Some(&[1, 2]));
//! for batch in publisher.flush(1.0, 5.0) {
//!     println!("sink {}, batch {}", batch.sink, batch.number);
//! }
//! # Ok::<(), kvpool_observe::publish::PublisherError>(())
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
