//! Sizing: computes the hits of a cache of any size, without running the pool.
//!
//! [`replay`](crate::replay) runs one policy at one capacity through the real pool. This module
//! evaluates a whole trace at once. It answers how large a cache has to be, and how much any cache
//! could hit at most.
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
//! All functions use the same definition, which is that of replay's lookup mode and is stated in
//! [`references`]: whole prompts run one after the other, a hit needs all blocks before it, and the
//! blocks of a prompt are released last block first. The LRU results equal those of the real pool
//! exactly.
//!
//! All functions start from [`References`], which finds in one pass the [`Run`]s (ranges of
//! neighbouring blocks) in which blocks are used again. The estimators use only the runs. There are 1
//! to 2 runs per request, while requests have tens to hundreds of blocks. The times in the table were
//! measured on two shared cores of 2026. `tests/replay/sizing_traces.rs` also compares the results with
//! published figures; for LRU and the optimum, every digit is equal.
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
