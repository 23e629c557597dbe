//! GDSF, GreedyDual-Size-Frequency: Cherkasova, "Improving WWW Proxies Performance with Greedy-Dual-Size-Frequency Caching
//! Policy", HP Laboratories report HPL-98-69R1, 1998; for prefix caches Jin et al., "`RAGCache`: Efficient Knowledge Caching
//! for Retrieval-Augmented Generation", 2024, as PGDSF.
//!
//! The key of a block is `age + uses x cost / size`; the lowest is evicted, and the age becomes its key. Blocks are of equal
//! size. The cost is that of recomputing the block, and it grows with the position in the prompt: the weights are applied to
//! each token once, attention looks at all tokens before it.
//!
//! ```text
//!   cost = 1 + depth / doubling       doubling: the depth, in blocks, at which attention costs as much as the weights
//! ```
//!
//! With P parameters, L layers and hidden size d, a token costs 2 P flops for the weights and 4 L d flops per token before it:
//! they are equal at P / (2 L d) tokens. Llama-3-8B (P = 8.0e9, L = 32, d = 4096): 30,500 tokens, 1,900 blocks of 16.
//! Parameter: `doubling`, 2,048 blocks by default, for such models and blocks of 16 tokens; 64 for blocks of 512.
//!
//! Cost: O(log n) per release and eviction; 40 bytes per block. No ghosts.
//!
//! When not to use it: when the hit rate matters and not the compute saved, or when prompts are short against `doubling`: it is
//! LFU-DA then. A pool evicts a parent after its children whatever they cost, so only the order between chains is
//! this policy's.

use crate::ranked::Ranked;
use kvpool::parts::try_reserve;
use kvpool::{BlockId, Content, InvariantViolation, Policy, PoolError};

/// The cost of a block at depth 0.
const UNIT: u64 = 1 << 16;

/// Frequency times recompute cost, with aging.
#[derive(Clone, Debug)]
pub struct Gdsf {
    ranked: Ranked,
    /// By block: what recomputing it costs, in 1 / [`UNIT`] of a block at depth 0.
    costs: Vec<u64>,
    /// The key of what was evicted last.
    age: u64,
    doubling: u32,
}

impl Gdsf {
    /// The depth, in blocks, at which a block costs twice what the first one does, unless stated.
    pub const DOUBLING: u32 = 2048;

    /// An empty order for blocks `1..num_blocks`.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there is no memory for so many blocks.
    pub fn new(num_blocks: usize) -> Result<Self, PoolError> {
        Self::with_doubling(num_blocks, Self::DOUBLING)
    }

    /// An empty order for blocks `1..num_blocks`, in which a block at depth `doubling` costs twice what one at depth 0 does.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] for a `doubling` of 0, or if there is no memory for so many blocks.
    pub fn with_doubling(num_blocks: usize, doubling: u32) -> Result<Self, PoolError> {
        if doubling == 0 {
            return Err(PoolError::config("doubling", doubling, "1 or more"));
        }
        let mut policy = Self { ranked: Ranked::new(0)?, costs: Vec::new(), age: 0, doubling };
        policy.grow(num_blocks)?;
        Ok(policy)
    }
}

impl Policy for Gdsf {
    fn name(&self) -> &'static str {
        "gdsf"
    }

    fn admit(&mut self, block: BlockId, content: Content) {
        self.ranked.admit(block);
        if let Some(cost) = self.costs.get_mut(block.index()) {
            *cost = UNIT + UNIT * u64::from(content.depth) / u64::from(self.doubling);
        }
    }

    fn hit(&mut self, block: BlockId) {
        self.ranked.hit(block);
    }

    fn release(&mut self, block: BlockId) {
        let cost = self.costs.get(block.index()).copied().unwrap_or(UNIT);
        let worth = self.ranked.uses(block).saturating_mul(cost);
        self.ranked.release(block, self.age.saturating_add(worth));
    }

    fn pop(&mut self) -> Option<BlockId> {
        self.ranked.pop()
    }

    fn take(&mut self, block: BlockId) {
        self.ranked.take(block);
    }

    fn unpop(&mut self, block: BlockId) {
        self.ranked.unpop(block);
    }

    fn evicted(&mut self, block: BlockId, _content: Content) {
        self.age = self.age.max(self.ranked.key(block));
        self.ranked.forget(block);
    }

    fn forget(&mut self, block: BlockId) {
        self.ranked.forget(block);
    }

    fn clear(&mut self) {
        self.ranked.clear();
        self.costs.fill(UNIT);
        self.age = 0;
    }

    fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        try_reserve(&mut self.costs, num_blocks)?;
        self.ranked.grow(num_blocks)?;
        self.costs.resize(num_blocks.max(self.costs.len()), UNIT);
        Ok(())
    }

    fn check_block(&self, block: BlockId) -> Result<(), InvariantViolation> {
        self.ranked.check_block(block)
    }

    #[cfg(feature = "fault-injection")]
    fn corrupt(&mut self, block: BlockId, what: usize, to: u32) -> bool {
        self.ranked.corrupt(block, what, to)
    }

    fn check_invariants(&self) -> Result<(), InvariantViolation> {
        self.ranked.check_invariants()
    }
}
