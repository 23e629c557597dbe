//! Observers for kvpool's pools and managers. The core notifies them and does not depend on them.
//!
//! | observer | call |
//! |---|---|
//! | events: contents that lookups can now find, or can no longer find | [`PoolWatch::take_events`] |
//! | a feed: events with tokens, for a publisher in another thread | [`PoolWatch::take_feed`] |
//! | batches of KV events for routers, in the formats of vLLM, SGLang and Dynamo | [`publish`] |
//! | payloads: user data of a content, returned at its eviction | [`PoolWatch::set_payloads`] |
//! | a digest of the state: equal sequences of calls give equal digests | [`PoolWatch::state_digest`] |
//! | the scrubber: checks a few blocks per step | [`Scrubber`], [`ManagerScrubber`] |
//! | the advisor: hit rates at other sizes, with other policies, by tenant | [`PoolWatch::advice`] |
//! | the explainer: why prompts missed the cache | [`ManagerWatch::explain`] |
//! | metrics: ages at hits and evictions, causes, tenants | [`PoolWatch::metrics`] |
//!
//! Call [`PoolWatch::watched`] to watch a pool, and [`ManagerWatch::watched`] to watch a manager. Most
//! of the calls in the table exist in both traits. A pool or manager notifies one observer
//! ([`kvpool::observe`]). The observer of this crate is one object with all the parts that the
//! configuration enables. To write your own observer, implement the same trait of the core. For the
//! pools of [`kvpool::Tiers`], use [`TierWatch`], which watches each tier separately.
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

/// Lets `cargo test` run the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
