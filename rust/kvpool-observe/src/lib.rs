//! What watches kvpool's pools and managers, from outside: they know of none of it.
//!
//! | what | asked with |
//! |---|---|
//! | events: which contents became findable, and which are no longer | [`PoolWatch::take_events`] |
//! | a feed: the same with tokens, for a publisher outside of the step | [`PoolWatch::take_feed`], [`ManagerWatch::take_feed`] |
//! | batches of KV events for routers, in the bytes of vLLM, SGLang and Dynamo | [`publish`] |
//! | payloads: what hangs on a content, handed out when it is evicted | [`PoolWatch::set_payloads`], [`PoolWatch::take_evicted`] |
//! | a digest of the state: equal histories, equal numbers | [`PoolWatch::state_digest`] |
//! | the scrubber: a few blocks per step, checked against all that is known of them | [`Scrubber`], [`ManagerScrubber`] |
//! | the advisor: other sizes, other policies, tenants | [`PoolWatch::advice`] |
//! | why prompts missed the cache | [`ManagerWatch::explain`] |
//! | metrics: ages at hits and evictions, causes, tenants | [`PoolWatch::metrics`], [`ManagerWatch::metrics`] |
//!
//! A pool is watched from [`PoolWatch::watched`] on, a manager from [`ManagerWatch::watched`]. Each
//! tells one observer ([`kvpool::observe`]); this crate's is all of the above that a configuration asks
//! for. An observer of one's own is made of the same contract. Pools of [`kvpool::Tiers`] are watched
//! by tier: [`TierWatch`].
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod advisor;
mod changes;
mod digest;
mod events;
pub mod explain;
mod feed;
mod manager;
pub mod metrics;
mod payloads;
pub mod publish;
mod scrub;
mod tiers;
mod watch;

pub use advisor::{Advice, AdvisorConfig};
pub use events::{BlockEvent, EventBatch};
pub use explain::{ExplainConfig, ExplainError, Explanation, GroupReach, MissReason, MissStats};
pub use feed::{FeedBatch, FeedEvent, Learned, ParentLink, TokenSpan};
pub use manager::{ManagerWatch, ManagerWatchConfig};
pub use metrics::PoolMetrics;
pub use payloads::{Evicted, Payload, PayloadError};
pub use scrub::{ManagerScrubber, ScrubReport, Scrubber};
pub use tiers::TierWatch;
pub use watch::{PoolWatch, Watch, WatchConfig};

/// The example of the README is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
