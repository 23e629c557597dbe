//! `adaptive`: kvpool's own policy. It is LRU until a sample of the traffic shows that something else
//! would hit more.
//!
//! One order of the blocks (`order`) in which recency and frequency are kept apart, so that what a use
//! is worth can change at any moment without moving a block. Six *modes* (`mode`) say what it is worth,
//! in capacities of admitted blocks that a block counts as younger than it is:
//!
//! | mode | used again | each doubling more | proven | good at |
//! |---|---|---|---|---|
//! | 0 | | | | LRU: sessions that go on, and end |
//! | 1 | 1 | | | chats with one-shots between them |
//! | 2 | 2 | | | the same, in a smaller cache |
//! | 3 | 4 | | | bursts of scans, popularity that drifts |
//! | 4 | 8 | 8 | | documents of steady popularity: frequency first, recency within |
//! | 5 | | | 4 | loops larger than the cache: what is there stays, some of what is new replaces it |
//!
//! A shadow per mode, a cache of one of 8 keys with an eighth of the capacity (`shadow`, `contest`),
//! serves what is released; prefix hits are compared 64 times per capacity of references; the best mode
//! takes over when its lead is more than noise ([`Choice`]). What was evicted lately is remembered with
//! its uses, exactly (`recent`). Figures and limits: `benches/results/2026-11-28-eviction-study.md`.
//!
//! Parameters: none. Integers only; the same calls give the same order on any host.
//!
//! *Growing*: what is known of blocks and evictions stays, and so do the mode in office and the sums
//! that chose it; bonuses, windows and half-life are those of the new capacity. Shadows grow with what
//! they hold, or start empty if the sample becomes thinner, below 8,192 blocks.
//!
//! Cost: O(1) amortized: 16 comparisons per eviction, 6 more accesses per sampled release, which come
//! together when the next release begins. 111 bytes per block: order 31, evictions 30, shadows 47,
//! releases that wait 2; from 8,192 blocks on. Smaller pools sample more keys: 160 from 4,096 blocks,
//! 258 from 2,048, 455 below, which is 0.9 MB at most.
//!
//! When not to use it: where evictions must cost as little as LRU's; where the cache holds a large part
//! of the working set (LRU hits the same, and `adaptive` becomes LRU); without a pool around it in the
//! smallest caches, where the best mode changes faster than shadows can tell.

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

/// Modes between recency and frequency, chosen by shadows.
#[derive(Clone, Debug)]
pub struct Adaptive {
    order: Order,
    /// By block, as the depths, where there is a contest.
    keys: Vec<u64>,
    depths: Vec<u32>,
    evictions: Recent,
    /// `None` if the mode is fixed.
    contest: Option<Box<Contest>>,
}

impl Adaptive {
    /// An empty order for blocks `1..num_blocks`.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there is no memory for so many blocks.
    pub fn new(num_blocks: usize) -> Result<Self, PoolError> {
        Self::with(num_blocks, Mode::ALL[0], Some(Box::default()))
    }

    /// The same, always in one mode: to compare. It has no shadows.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there is no memory for so many blocks.
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

    /// The mode in office.
    #[must_use]
    pub const fn mode(&self) -> Mode {
        self.order.mode()
    }

    /// Takes the mode that the contest has chosen.
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
            contest.grow(num_blocks.saturating_sub(1))?; // the last that can fail
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
