//! What watches a replay besides what is part of its journal, and what is shown of it.

use kvpool::{BlockPool, CacheManager};
use kvpool_observe::{AdvisorConfig, ExplainConfig};
use kvpool_vllm::Pool;

/// What watches a replay, besides what is part of the journal.
#[derive(Clone, Debug, Default)]
pub struct Observers {
    /// In the place of the journal's own advisor, if it has one.
    pub advisor: Option<AdvisorConfig>,
    /// Of a manager: why prompts missed.
    pub explain: Option<ExplainConfig>,
    /// Ages, causes of evictions, tenants.
    pub metrics: bool,
}

/// What a journal is of, to look at.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Observed<'a> {
    /// A pool.
    Pool(&'a BlockPool),
    /// A manager.
    Manager(&'a CacheManager),
    /// A pool of vLLM's, which no observer watches.
    Vllm(&'a Pool),
}
