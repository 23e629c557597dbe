//! Settings of additional observers for a replay, and the replayed pool or manager that a caller can
//! inspect.

use kvpool::{BlockPool, CacheManager};
use kvpool_observe::{AdvisorConfig, ExplainConfig};
use kvpool_vllm::Pool;

/// Observers of a replay, in addition to the observers that the journal specifies.
///
/// ```
/// use kvpool_journal::Observers;
/// let observers = Observers { metrics: true, ..Observers::default() };
/// assert!(observers.advisor.is_none());
/// ```
#[derive(Clone, Debug, Default)]
pub struct Observers {
    /// Settings of an advisor, which replaces the advisor of the journal.
    pub advisor: Option<AdvisorConfig>,
    /// Settings for explanations of misses, which only managers support.
    pub explain: Option<ExplainConfig>,
    /// Whether to collect metrics: ages, causes of evictions, tenants.
    pub metrics: bool,
}

/// The replayed pool or manager, which a caller can read but not change.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Observed<'a> {
    /// A pool.
    Pool(&'a BlockPool),
    /// A manager.
    Manager(&'a CacheManager),
    /// A pool of vLLM, which has no observers.
    Vllm(&'a Pool),
}
