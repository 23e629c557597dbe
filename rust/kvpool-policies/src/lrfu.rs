//! LRFU: Lee, Choi, Kim, Noh, Min, Cho, Kim: "LRFU: A Spectrum of Policies that Subsumes the Least Recently Used and Least
//! Frequently Used Policies", IEEE Transactions on Computers 50(12), 2001; with a memory of evicted contents.
//!
//! Every use of a block counts 1 and decays to a half in each *half-life*; the block with the smallest sum is evicted. A short
//! half-life is LRU, a long one LFU. Time is counted in admitted blocks, and half-lives in capacities of them: a cache
//! is as old as what it has taken in. The sum does not decay while a block is in use.
//!
//! **In integers.** The order of decayed sums does not change while time goes by, so a key is made at each release and kept:
//! the time in half-lives plus log2 of the sum, both with 32 fractional bits. log2 and its inverse are linear between powers of
//! 2, exact at them and at most 0.087 of a half-life off between, and monotonic; the two undo each other.
//!
//! Ghosts keep the key, which is value and time in one: content that comes back goes on from its decayed sum.
//!
//! Parameters: half-life in 1/16 of a capacity, 8 by default; ghosts per block, 1 by default. No half-life is good everywhere
//! (`docs/eviction-study.md`, where `adaptive` chooses for itself). In the stream form, with the default against LRU: a chat
//! trace 20.4 % against 19.6 at 5 % of its blocks, 28.3 against 27.9 at 10 %; an agentic one 86.9 against 91.1 and 90.6 against 94.8.
//! 4 is closer to LRU on both, 128 (8 capacities) hits 14.6 against 7.9 at 2 % of the chats and 53.6 against 72.5 of the agents.
//!
//! Cost: O(log n) per release and eviction; 44 bytes per block, 31 per ghost: 75 bytes per block.
//!
//! When not to use it: where sessions end and their blocks stay popular for nothing, as agents' do: their counts outlive them.

use crate::ghosts::Ghosts;
use crate::heap::BlockHeap;
use kvpool::parts::try_reserve;
use kvpool::{BlockId, Content, InvariantViolation, Policy, PoolError};

/// Fractional bits of times, keys and logarithms.
const BITS: u32 = 32;
const ONE: u64 = 1 << BITS;
/// log2 of the largest sum that is told from a larger one.
const MOST: u64 = 30;

/// The logarithm to base 2 of the sum of one use and an earlier sum; the earlier one's logarithm is negative once it has
/// decayed below 1.
fn log2_of_one_more(log2: i64) -> u64 {
    let log2 = log2.min((MOST << BITS) as i64);
    let (floor, fraction) = (log2 >> BITS, log2 as u64 & (ONE - 1));
    let mantissa = ONE + fraction;
    let decayed = if floor >= 0 { mantissa << floor } else { mantissa >> floor.unsigned_abs().min(63) };
    let sum = ONE + decayed; // below 2^(MOST + 1 + BITS) + 2^BITS
    let power = u64::from(sum.ilog2()); // BITS or more
    let fraction = (sum >> (power - u64::from(BITS))) - ONE;
    ((power - u64::from(BITS)) << BITS) + fraction
}

#[derive(Clone, Copy, Debug, Default)]
struct Use {
    /// log2 of the sum at the last use.
    log2: u64,
    /// In use: the sum does not decay.
    held: bool,
}

/// Least decayed use count.
#[derive(Clone, Debug)]
pub struct Lrfu {
    heap: BlockHeap,
    uses: Vec<Use>,
    ghosts: Ghosts<u64>,
    releases: u64,
    /// The time, in half-lives.
    now: u64,
    /// What one admission adds to it.
    step: u64,
    half_life: u32,
    ghosts_per_block: usize,
}

impl Lrfu {
    /// The half-life in 1/16 of a capacity, unless stated.
    pub const HALF_LIFE: u32 = 8;
    /// Ghosts per block, unless stated.
    pub const GHOSTS: usize = 1;

    /// An empty order for blocks `1..num_blocks`.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there is no memory for so many blocks.
    pub fn new(num_blocks: usize) -> Result<Self, PoolError> {
        Self::with(num_blocks, Self::HALF_LIFE, Self::GHOSTS)
    }

    /// An empty order for blocks `1..num_blocks`: sums halve in `half_life` / 16 capacities of admitted blocks, and
    /// `ghosts` evicted contents per block are remembered.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] for a `half_life` of 0, or if there is no memory for so many blocks or ghosts.
    pub fn with(num_blocks: usize, half_life: u32, ghosts: usize) -> Result<Self, PoolError> {
        if half_life == 0 {
            return Err(PoolError::config("half_life", half_life, "1 or more sixteenths of a capacity"));
        }
        let mut policy = Self {
            heap: BlockHeap::new(0)?,
            uses: Vec::new(),
            ghosts: Ghosts::new(1, 0)?,
            releases: 0,
            now: 0,
            step: ONE,
            half_life,
            ghosts_per_block: ghosts,
        };
        policy.grow(num_blocks)?;
        Ok(policy)
    }

    /// log2 of a sum whose key is `key`, as it has decayed by now.
    fn decayed(&self, key: u64) -> i64 {
        key.wrapping_sub(self.now) as i64 // both are far below 2^63
    }
}

impl Policy for Lrfu {
    fn name(&self) -> &'static str {
        "lrfu"
    }

    fn admit(&mut self, block: BlockId, content: Content) {
        self.heap.remove(block);
        self.now = self.now.saturating_add(self.step).min(i64::MAX as u64 >> 1);
        let log2 = self.ghosts.take(content.key).map_or(0, |(_, key)| log2_of_one_more(self.decayed(key)));
        if let Some(used) = self.uses.get_mut(block.index()) {
            *used = Use { log2, held: true };
        }
    }

    fn hit(&mut self, block: BlockId) {
        self.heap.remove(block);
        let decayed = self.decayed(self.heap.rank(block).0);
        if let Some(used) = self.uses.get_mut(block.index()) {
            let log2 = if used.held { used.log2 as i64 } else { decayed };
            *used = Use { log2: log2_of_one_more(log2), held: true };
        }
    }

    fn release(&mut self, block: BlockId) {
        let decayed = self.decayed(self.heap.rank(block).0);
        let Some(used) = self.uses.get_mut(block.index()) else { return };
        let log2 = if used.held { used.log2 as i64 } else { decayed };
        used.held = false;
        self.releases += 1;
        self.heap.push(block, (self.now.saturating_add_signed(log2), self.releases));
    }

    fn pop(&mut self) -> Option<BlockId> {
        self.heap.pop()
    }

    fn take(&mut self, block: BlockId) {
        self.heap.remove(block);
    }

    fn unpop(&mut self, block: BlockId) {
        self.heap.restore(block);
    }

    fn evicted(&mut self, block: BlockId, content: Content) {
        self.ghosts.push(0, content.key, self.heap.rank(block).0);
        self.forget(block);
    }

    fn forget(&mut self, block: BlockId) {
        self.heap.remove(block);
        if let Some(used) = self.uses.get_mut(block.index()) {
            *used = Use { log2: 0, held: true };
        }
    }

    fn clear(&mut self) {
        self.heap.clear();
        self.uses.fill(Use { log2: 0, held: true });
        self.ghosts.clear();
        self.now = 0;
    }

    fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        let num_blocks = num_blocks.max(self.uses.len());
        let capacity = num_blocks.saturating_sub(1);
        try_reserve(&mut self.uses, num_blocks)?;
        self.ghosts.grow(capacity.saturating_mul(self.ghosts_per_block))?;
        self.heap.grow(num_blocks)?;
        self.uses.resize(num_blocks, Use { log2: 0, held: true });
        let half_life = (capacity as u64).saturating_mul(u64::from(self.half_life)).max(1);
        self.step = (ONE * 16 / half_life).max(1);
        Ok(())
    }

    fn check_block(&self, block: BlockId) -> Result<(), InvariantViolation> {
        self.heap.check_block(block)?;
        self.ghosts.check_block(block, self.uses.len())
    }

    #[cfg(feature = "fault-injection")]
    fn corrupt(&mut self, block: BlockId, what: usize, to: u32) -> bool {
        match what.checked_sub(BlockHeap::FAULTS) {
            None => self.heap.corrupt(block, what, to),
            Some(what) => self.ghosts.corrupt(block, what, to),
        }
    }

    fn check_invariants(&self) -> Result<(), InvariantViolation> {
        self.heap.check_invariants()?;
        self.ghosts.check_invariants()
    }
}
