//! Sizing: the hits of a cache of any size, without running the pool.
//!
//! [`replay`](crate::replay) runs one policy at one capacity through the real pool. This module
//! evaluates a whole trace at once. It answers how much cache you need, and what the maximum is that
//! any cache could hit.
//!
//! | question | answer |
//! |---|---|
//! | LRU at every capacity, exact | [`lru_distances`] |
//! | LRU at every capacity, for traces that do not fit into memory | [`SampledLru`] |
//! | distances between uses | [`ReuseDistances`] |
//! | the best that any policy could do | [`optimal()`] |
//! | the value of knowing which blocks are dead | [`lru_with_hints`] |
//! | a policy at one capacity, as in the pool or as in papers | [`run_policy`], [`pool_form`], [`stream()`] |
//! | a policy with hints to the pool's retention | [`pool_form_with_hints`] |
//! | which requests hit, and when | [`lru()`], [`over_time()`] |
//! | GiB of a model, the knee, the value of each GiB | [`HitCurve`] |
//!
//! All use one definition, that of replay's lookup mode, which [`references`] states: whole prompts one
//! after the other, a hit needs all blocks before it, and blocks are released tail first. The LRU
//! results equal those of the real pool, to the block.
//!
//! All start from [`References`], which finds in one pass the [`Run`]s in which blocks are used again.
//! There are 1 to 2 runs per request, while requests have tens to hundreds of blocks, and the
//! estimators use only the runs. Times measured on two shared cores of 2026
//! (`tests/replay/sizing_traces.rs`, which also compares with published figures, to the last digit for
//! LRU and the optimum):
//!
//! | trace, 512-token blocks | references | LRU, all capacities | optimum, one capacity |
//! |---|---|---|---|
//! | conversation, 12,031 requests, 288,500 references | 20 ms, 1.8 MB | 1.1 ms | 0.4 ms |
//! | agents, 7,077 requests, 1,578,214 references | 22 ms, 6.6 MB | 0.5 to 5 ms | 0.2 ms |
//!
//! Everything is deterministic: the same trace and settings give the same results on any host.

mod curve;
mod error;
mod hints;
mod lru;
mod optimal;
mod outcome;
mod over_time;
mod policy_run;
mod pool_form;
pub mod references;
pub mod runs;
mod sampled;
pub mod stack;
mod stream;
mod turnover;

pub use curve::{CurvePoint, HitCurve, Knee, KvBytes, Worth};
pub use error::SizingError;
pub use hints::{HintConfig, lru_with_hints};
pub use lru::lru;
pub use optimal::optimal;
pub use outcome::{Outcome, PolicyRun};
pub use over_time::{MAX_WINDOWS, Window, over_time};
pub use policy_run::{Form, run_policy};
pub use pool_form::{pool_form, pool_form_with_hints};
pub use references::{Blocks, References};
pub use runs::{Run, Runs};
pub use sampled::{SampleConfig, SampledLru};
pub use stack::{DistanceBucket, ReuseDistances, lru_distances};
pub use stream::stream;
