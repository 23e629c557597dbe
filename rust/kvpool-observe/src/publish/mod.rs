//! What routers are told of a kvpool: which worker can find which prefixes, in the formats that engines
//! have made common.
//!
//! ```text
//!   pools' feeds        what came and went, with tokens (of this crate, or of an engine's face)
//!     Contents            what can be found, and what of it was told
//!     Publisher           numbers, first words, gaps, heartbeats, replays; one sequence per sink
//!       encode              a batch as bytes, in any Form
//!   sockets             not here: the Python package has them, and any other transport may be put in their place
//! ```
//!
//! Nothing of this runs within a step: a pool's feed is all that a step pays for. `docs/events.md`
//! specifies the bytes, and what consumers make of them.
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
