//! The results of one simulation, with the hits of each request.
//!
//! [`Outcome`] is the result of every estimator for a single capacity. [`PolicyRun`] adds the evictions
//! and insertions of a policy.

use super::curve::{CurvePoint, share};
use super::references::References;
use super::turnover::Turnover;

/// The hits of each request in a cache of one capacity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    total: CurvePoint,
    references: u64,
    prompt_tokens: u64,
    hits: Vec<u32>,
}

impl Outcome {
    /// Makes an outcome. `hits` has an entry for each request: the number of blocks that hit, counted
    /// from the start of its prompt.
    pub(super) fn new(references: &References, capacity_blocks: usize, hits: Vec<u32>) -> Self {
        let mut total = CurvePoint { capacity_blocks: capacity_blocks as u64, ..CurvePoint::default() };
        for (index, &blocks) in hits.iter().enumerate() {
            total.block_hits += u64::from(blocks);
            total.token_hits += references.tokens_of(index, blocks);
        }
        let (blocks, prompt_tokens) = (references.len() as u64, references.prompt_tokens());
        Self { total, references: blocks, prompt_tokens, hits }
    }

    /// The capacity, and the hits over the whole trace.
    #[must_use]
    pub fn total(&self) -> CurvePoint {
        self.total
    }

    /// The number of blocks of each request that hit, counted from the start of its prompt.
    #[must_use]
    pub fn hits(&self) -> &[u32] {
        &self.hits
    }

    /// The hits as a share of all block references, 0 to 1.
    #[must_use]
    pub fn block_rate(&self) -> f64 {
        share(self.total.block_hits, self.references)
    }

    /// The hit tokens as a share of all prompt tokens, 0 to 1.
    #[must_use]
    pub fn token_rate(&self) -> f64 {
        share(self.total.token_hits, self.prompt_tokens)
    }
}

/// The result of running a policy over a trace at one capacity.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyRun {
    outcome: Outcome,
    evictions: u64,
    insertions: u64,
    turnovers: Vec<f64>,
}

impl PolicyRun {
    pub(super) fn new(outcome: Outcome, evictions: u64, turnover: Turnover) -> Self {
        let insertions = turnover.insertions();
        Self { outcome, evictions, insertions, turnovers: turnover.into_shares() }
    }

    /// The hits of each request, and the total.
    #[must_use]
    pub const fn outcome(&self) -> &Outcome {
        &self.outcome
    }

    /// The number of blocks that the policy evicted during the run.
    #[must_use]
    pub const fn evictions(&self) -> u64 {
        self.evictions
    }

    /// The number of blocks inserted. It is the number of references to blocks that were not cached,
    /// without those that did not fit.
    #[must_use]
    pub fn insertions(&self) -> u64 {
        self.insertions
    }

    /// The turnover of each window of `capacity` insertions into the full cache, 0 to 1. It is the
    /// share of the blocks in the cache at the end of the window that were inserted during the window.
    /// If blocks are evicted in the order of their insertion, it is always 1. A policy that stagnates
    /// approaches 0, because it evicts new contents at once.
    #[must_use]
    pub fn turnovers(&self) -> &[f64] {
        &self.turnovers
    }

    /// The mean of [`Self::turnovers`]; `None` if the trace ends before the end of the first window.
    #[must_use]
    pub fn turnover(&self) -> Option<f64> {
        let windows = self.turnovers.len();
        (windows > 0).then(|| self.turnovers.iter().sum::<f64>() / windows as f64)
    }
}
