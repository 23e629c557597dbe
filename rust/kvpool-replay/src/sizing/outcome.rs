//! What a cache of one size does with a trace, request by request.
//!
//! Owns [`Outcome`], which every estimator for a single capacity gives.

use super::curve::{CurvePoint, share};
use super::references::References;

/// Hits of each request in a cache of one capacity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    total: CurvePoint,
    references: u64,
    prompt_tokens: u64,
    hits: Vec<u32>,
}

impl Outcome {
    /// `hits` has an entry for each request: the blocks that it hits, from the root on.
    pub(super) fn new(references: &References, capacity_blocks: usize, hits: Vec<u32>) -> Self {
        let mut total = CurvePoint { capacity_blocks: capacity_blocks as u64, ..CurvePoint::default() };
        for (index, &blocks) in hits.iter().enumerate() {
            total.block_hits += u64::from(blocks);
            total.token_hits += references.tokens_of(index, blocks);
        }
        let (blocks, prompt_tokens) = (references.len() as u64, references.prompt_tokens());
        Self { total, references: blocks, prompt_tokens, hits }
    }

    /// Capacity, and hits over the whole trace.
    #[must_use]
    pub fn total(&self) -> CurvePoint {
        self.total
    }

    /// Blocks that each request hits, from the root on.
    #[must_use]
    pub fn hits(&self) -> &[u32] {
        &self.hits
    }

    /// Hits as a share of all references, 0 to 1.
    #[must_use]
    pub fn block_rate(&self) -> f64 {
        share(self.total.block_hits, self.references)
    }

    /// Hit tokens as a share of all prompt tokens, 0 to 1.
    #[must_use]
    pub fn token_rate(&self) -> f64 {
        share(self.total.token_hits, self.prompt_tokens)
    }
}
