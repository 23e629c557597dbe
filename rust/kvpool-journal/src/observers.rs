//! The observers of a replay in addition to those of its journal, and the subject that a caller can
//! inspect.

use kvpool::{BlockPool, CacheManager};
use kvpool_observe::{AdvisorConfig, ExplainConfig};
use kvpool_vllm::Pool;

/// The observers of a replay, in addition to those of the journal.
///
/// ```
/// use kvpool_journal::Observers;
/// let observers = Observers { metrics: true, ..Observers::default() };
/// assert!(observers.advisor.is_none());
/// ```
#[derive(Clone, Debug, Default)]
pub struct Observers {
    /// An advisor, which replaces that of the journal.
    pub advisor: Option<AdvisorConfig>,
    /// For a manager: explains why prompts missed.
    pub explain: Option<ExplainConfig>,
    /// Metrics: ages, causes of evictions, tenants.
    pub metrics: bool,
}

/// The subject of a journal, for reading.
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
