//! `adaptive`: kvpool's own policy. It behaves like LRU until a sample of the traffic shows that
//! another order would have more hits.
//!
//! All blocks are in one order (`order`). It stores recency and frequency separately, so the weight of
//! frequency can change at any time without moving a block. The weights come from one of six *modes*
//! (`mode`). The unit of a weight is one capacity, which is the number of blocks of the pool: with a
//! weight of 2, a block is treated as if it had been released later, by as many admitted blocks as two
//! pools have.
//!
//! | mode | used again | each further doubling | proven | good at |
//! |---|---|---|---|---|
//! | 0 | | | | LRU: sessions that continue for a while, then end |
//! | 1 | 1 | | | chats mixed with one-time prompts |
//! | 2 | 2 | | | the same in a smaller cache |
//! | 3 | 4 | | | bursts of scans, drifting popularity |
//! | 4 | 8 | 8 | | documents of steady popularity: frequency first, recency second |
//! | 5 | | | 4 | loops larger than the cache: old blocks stay, and some new blocks replace others |
//!
//! Each mode has a shadow (`shadow`, `contest`): a simulated cache with an eighth of the capacity that
//! serves the same releases as the pool, but only for one in 8 keys. The prefix hits of the shadows are
//! compared 64 times per capacity of references. The best mode becomes active when its lead is more
//! than noise ([`Choice`]).
//!
//! Recent evictions are remembered exactly, with the numbers of uses of their blocks (`recent`). For
//! figures and limits see `benches/results/2026-11-28-eviction-study.md`.
//!
//! There are no parameters. All arithmetic is in integers, so the order depends only on the calls, not
//! on the host.
//!
//! When a pool grows, blocks and evictions keep their state, and the active mode and the sums from
//! which it was chosen remain. Bonuses, windows and the half-life of uses are computed for the new
//! capacity. The shadows keep their contents, unless a smaller part of the keys is sampled from now on,
//! which happens only in pools that had fewer than 8,192 blocks. Then they start empty.
//!
//! Cost: O(1) amortized. An eviction takes 16 comparisons. The release of a sampled key takes 6 more
//! accesses, which are made when the next release begins. Memory in pools of 8,192 blocks or more: 111
//! bytes per block (order 31, evictions 30, shadows 47, waiting releases 2). Smaller pools sample a
//! larger part of the keys: 160 bytes per block from 4,096 blocks on, 258 from 2,048 on, and 455 below,
//! which is at most 0.9 MB.
//!
//! Do not use `adaptive` where evictions must be as cheap as in LRU. If the cache holds a large part of
//! the working set, LRU has the same hits, and `adaptive` behaves like LRU. Do not use it without a
//! pool in very small caches either, because there the best mode changes faster than shadows can
//! detect.

mod choice;
mod contest;
mod mode;
mod order;
mod recent;
mod shadow;

pub use choice::Choice;
use contest::Contest;
use kvpool::BlockId;
use kvpool::parts::ensure;
use kvpool::parts::try_reserve;
use kvpool::{Content, Policy, Release};
use kvpool::{InvariantViolation, PoolError};
pub use mode::Mode;
use order::Order;
use recent::{REMEMBERED, Recent};

/// The `adaptive` policy: orders blocks by recency and frequency, with weights that are chosen by small
/// simulated caches.
///
/// ```
/// use kvpool::{BlockId, Content, Policy};
/// use kvpool_policies::Adaptive;
/// let (first, second) = (BlockId::new(1), BlockId::new(2));
/// let mut order = Adaptive::new(8)?;
/// for block in [first, second] {
///     order.admit(block, Content { key: block.get().into(), depth: 0 });
///     order.release(block);
/// }
/// // The policy is LRU until its shadow caches choose another mode.
/// assert_eq!(order.pop(), Some(first));
/// # Ok::<(), kvpool::PoolError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Adaptive {
    order: Order,
    /// The key of each block's content. The list is empty if the mode is fixed.
    keys: Vec<u64>,
    depths: Vec<u32>,
    evictions: Recent,
    /// The contest that chooses the mode; `None` if the mode is fixed.
    contest: Option<Box<Contest>>,
}

impl Adaptive {
    /// Makes an empty order for blocks `1..num_blocks`.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there is not enough memory for this number of blocks.
    pub fn new(num_blocks: usize) -> Result<Self, PoolError> {
        Self::with(num_blocks, Mode::ALL[0], Some(Box::default()))
    }

    /// Like [`Self::new`], with a mode that never changes, and without simulated caches to choose it.
    /// Comparisons of the modes use this.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there is not enough memory for this number of blocks.
    pub fn fixed(num_blocks: usize, mode: Mode) -> Result<Self, PoolError> {
        Self::with(num_blocks, mode, None)
    }

    fn with(num_blocks: usize, mode: Mode, contest: Option<Box<Contest>>) -> Result<Self, PoolError> {
        let order = Order::new(mode)?;
        let (keys, depths, evictions) = (Vec::new(), Vec::new(), Recent::new());
        let mut policy = Self { order, keys, depths, evictions, contest };
        policy.grow(num_blocks)?;
        Ok(policy)
    }

    /// The active mode.
    #[must_use]
    pub const fn mode(&self) -> Mode {
        self.order.mode()
    }

    /// Switches to the mode whose simulated cache has had the most hits.
    fn follow(&mut self) {
        if let Some(mode) = self.contest.as_deref().map(Contest::mode)
            && mode != self.mode()
        {
            self.order.set_mode(mode);
        }
    }

    fn note(&mut self, block: BlockId, content: Content) {
        let at = block.index();
        if at < self.keys.len() {
            (self.keys[at], self.depths[at]) = (content.key, content.depth);
        }
    }
}

impl Policy for Adaptive {
    fn name(&self) -> &'static str {
        "adaptive"
    }

    fn admit(&mut self, block: BlockId, content: Content) {
        self.order.admit(block, self.evictions.take(content.key));
        self.note(block, content);
    }

    fn hit(&mut self, block: BlockId) {
        self.order.hit(block);
    }

    fn begin_release(&mut self, _release: &Release<'_>) {
        self.order.begin_release();
    }

    fn release(&mut self, block: BlockId) {
        let Some(begins) = self.order.release(block) else { return };
        if let Some(contest) = &mut self.contest {
            if begins {
                contest.end_release();
            }
            contest.release(self.keys[block.index()], self.depths[block.index()]);
        }
        self.follow();
    }

    fn pop(&mut self) -> Option<BlockId> {
        self.order.pop()
    }

    fn take(&mut self, block: BlockId) {
        self.order.take(block);
    }

    fn unpop(&mut self, block: BlockId) {
        self.order.unpop(block);
    }

    fn evicted(&mut self, block: BlockId, content: Content) {
        if let Some(uses) = self.order.uses(block) {
            self.evictions.push(content.key, uses);
            self.forget(block);
        }
    }

    fn forget(&mut self, block: BlockId) {
        self.order.forget(block);
        self.note(block, Content::default());
    }

    fn clear(&mut self) {
        self.order.clear();
        self.keys.fill(0);
        self.depths.fill(0);
        self.evictions.clear();
        if let Some(contest) = &mut self.contest {
            contest.clear();
        }
        self.follow();
    }

    fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        if num_blocks <= self.order.capacity() + 1 && self.order.capacity() > 0 {
            return Ok(());
        }
        let remembered = num_blocks.saturating_sub(1).saturating_mul(REMEMBERED);
        self.order.reserve(num_blocks)?;
        self.evictions.reserve(0, remembered)?;
        if let Some(contest) = &mut self.contest {
            try_reserve(&mut self.keys, num_blocks)?;
            try_reserve(&mut self.depths, num_blocks)?;
            contest.grow(num_blocks.saturating_sub(1))?; // nothing after this can fail
            self.keys.resize(num_blocks, 0);
            self.depths.resize(num_blocks, 0);
        }
        self.order.resize(num_blocks);
        self.evictions.grow(0, remembered, 0);
        Ok(())
    }

    fn check_block(&self, block: BlockId) -> Result<(), InvariantViolation> {
        self.order.check_block(block)
    }

    #[cfg(feature = "fault-injection")]
    fn corrupt(&mut self, block: BlockId, what: usize, to: u32) -> bool {
        self.order.corrupt(block, what, to)
    }

    fn check_invariants(&self) -> Result<(), InvariantViolation> {
        const NAME: &str = "AD7 (the mode is the one that was chosen)";
        self.order.check_invariants()?;
        self.evictions.check_invariants(0)?;
        let Some(contest) = &self.contest else { return Ok(()) };
        contest.check_invariants()?;
        ensure(self.mode() == contest.mode(), NAME, || format!("{:?}, not {:?}", self.mode(), contest.mode()))
    }
}
