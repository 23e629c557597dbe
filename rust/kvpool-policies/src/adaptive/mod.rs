//! `adaptive`: kvpool's own policy. It is LRU until a sample of the traffic shows that something else would hit more.
//!
//! One order of the blocks (`mode`) in which recency and frequency are kept apart, so that what a use is worth can change
//! at any moment without moving a block. Six *modes* say what it is worth, in capacities of admitted blocks that a block
//! counts as younger than it is:
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
//! A shadow per mode, a cache of one of 8 keys with an eighth of the capacity (`shadow`, `contest`), serves what is released;
//! prefix hits are compared 64 times per capacity of references; the best mode takes over when its lead is more than noise
//! ([`Choice`]). What was evicted lately is remembered with its uses, exactly (`recent`). Definition, figures and limits:
//! `docs/eviction-study.md`.
//!
//! Parameters: none. Integers only; the same calls give the same order on any host.
//!
//! *Growing*: what is known of blocks and evictions stays, and so do the mode in office and the sums that chose it; bonuses,
//! windows and half-life are those of the new capacity. Shadows grow with what they hold, or start empty if the sample becomes
//! thinner, below 8,192 blocks.
//!
//! Cost: O(1) amortized: 16 comparisons per eviction, 6 more accesses per sampled release, which come together when the
//! next release begins. 111 bytes per block: order 31, evictions 30, shadows 47, releases that wait 2; from
//! 8,192 blocks on. Smaller pools sample more keys: 160 from 4,096 blocks, 258 from 2,048, 455 below, which is 0.9 MB at most.
//!
//! When not to use it: where evictions must cost as little as LRU's; where the cache holds a large part of the working set (LRU
//! hits the same, and `adaptive` becomes LRU); without a pool around it in the smallest caches, where the best mode
//! changes faster than shadows can tell.

mod choice;
mod contest;
mod mode;
mod recent;
mod shadow;

use crate::block_lists::BlockLists;
pub use choice::Choice;
use contest::Contest;
use kvpool_core::BlockId;
use kvpool_core::parts::ensure;
use kvpool_core::parts::try_reserve;
use kvpool_core::{Content, Policy, Release};
use kvpool_core::{InvariantViolation, PoolError};
pub use mode::Mode;
use mode::{LISTS, TICK, Uses};
use recent::Recent;

/// Evictions remembered per block.
const REMEMBERED: usize = 2;
/// Capacities without a use after which the uses count half.
const HALF_LIFE: u64 = 16;
/// Windows per capacity, and of how many one is privileged.
const WINDOWS: u64 = 8;
const PRIVILEGED: u64 = 4;

/// Modes between recency and frequency, chosen by shadows.
#[derive(Clone, Debug)]
pub struct Adaptive {
    lists: BlockLists,
    /// By block, as the stamps, the uses, and, with a contest, the depths.
    keys: Vec<u64>,
    stamps: Vec<u64>,
    uses: Vec<Uses>,
    depths: Vec<u32>,
    clock: u64,
    /// On the clock, of this capacity.
    half_life: u64,
    window: u64,
    bonuses: [u64; LISTS],
    mode: Mode,
    evictions: Recent,
    /// Blocks were released, and nothing was hit or admitted since.
    releasing: bool,
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
        let mut policy = Self {
            lists: BlockLists::new(LISTS, 0)?,
            keys: Vec::new(),
            stamps: Vec::new(),
            uses: Vec::new(),
            depths: Vec::new(),
            clock: 0,
            half_life: 1,
            window: 1,
            bonuses: [0; LISTS],
            mode,
            evictions: Recent::new(),
            releasing: false,
            contest,
        };
        policy.grow(num_blocks)?;
        Ok(policy)
    }

    /// The mode in office.
    #[must_use]
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    const fn capacity(&self) -> usize {
        self.keys.len().saturating_sub(1)
    }

    fn set_mode(&mut self, mode: Mode) {
        self.mode = mode;
        self.bonuses = mode.bonuses(self.capacity());
    }

    /// Takes the mode that the contest has chosen.
    fn follow(&mut self) {
        if let Some(mode) = self.contest.as_deref().map(Contest::mode)
            && mode != self.mode
        {
            self.set_mode(mode);
        }
    }

    fn note(&mut self, block: BlockId, content: Content, stamp: u64, uses: Uses) {
        let at = block.index();
        if at < self.keys.len() {
            (self.keys[at], self.stamps[at], self.uses[at]) = (content.key, stamp, uses);
        }
        if let Some(depth) = self.depths.get_mut(at) {
            *depth = content.depth;
        }
    }

    /// Takes the memory for blocks up to `num_blocks - 1`, and changes nothing that is seen.
    fn reserve(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        try_reserve(&mut self.keys, num_blocks)?;
        try_reserve(&mut self.stamps, num_blocks)?;
        try_reserve(&mut self.uses, num_blocks)?;
        self.evictions.reserve(num_blocks.saturating_sub(1).saturating_mul(REMEMBERED))?;
        self.lists.grow(num_blocks) // blocks that the others do not have yet are never put on a list
    }

    /// Has blocks up to `num_blocks - 1` from now on, after [`Self::reserve`].
    fn resize(&mut self, num_blocks: usize) {
        let num_blocks = num_blocks.max(self.keys.len());
        self.keys.resize(num_blocks, 0);
        self.stamps.resize(num_blocks, 0);
        self.uses.resize(num_blocks, Uses::default());
        self.evictions.grow(self.capacity().saturating_mul(REMEMBERED));
        let capacity = self.capacity() as u64;
        self.half_life = (HALF_LIFE * TICK).saturating_mul(capacity).max(1);
        self.window = (TICK.saturating_mul(capacity) / WINDOWS).max(1);
        self.set_mode(self.mode);
    }
}

impl Policy for Adaptive {
    fn name(&self) -> &'static str {
        "adaptive"
    }

    fn admit(&mut self, block: BlockId, content: Content) {
        self.releasing = false;
        self.lists.remove(block);
        self.clock = self.clock.saturating_add(TICK);
        let count = self.evictions.take(content.key).map_or(1, |count| count.saturating_add(1));
        self.note(block, content, self.clock, Uses { count, proven: false });
    }

    fn hit(&mut self, block: BlockId) {
        self.releasing = false;
        self.lists.remove(block);
        let at = block.index();
        if at < self.uses.len() {
            let age = self.clock.saturating_sub(self.stamps[at]);
            let halvings = (age / self.half_life).min(7);
            let count = (self.uses[at].count >> halvings).saturating_add(1);
            (self.stamps[at], self.uses[at]) = (self.clock, Uses { count, proven: true });
        }
    }

    fn begin_release(&mut self, _release: &Release<'_>) {
        self.releasing = false;
    }

    fn release(&mut self, block: BlockId) {
        let at = block.index();
        if block.is_null() || at >= self.keys.len() {
            return;
        }
        let begins = !std::mem::replace(&mut self.releasing, true);
        self.clock = self.clock.saturating_add(begins.into());
        self.lists.remove(block);
        self.stamps[at] = self.clock;
        self.uses[at].proven |= (self.clock / self.window).is_multiple_of(PRIVILEGED);
        self.lists.push_back(self.uses[at].list(), block);
        if let Some(contest) = &mut self.contest {
            if begins {
                contest.end_release();
            }
            contest.release(self.keys[at], self.depths[at]);
        }
        self.follow();
    }

    fn pop(&mut self) -> Option<BlockId> {
        let fronts = (0..LISTS).filter_map(|list| {
            let front = self.lists.front(list)?;
            Some((self.stamps.get(front.index())?.saturating_add(self.bonuses[list]), list))
        });
        let (_, list) = fronts.min()?;
        self.lists.pop_front(list)
    }

    fn take(&mut self, block: BlockId) {
        self.lists.remove(block);
    }

    fn unpop(&mut self, block: BlockId) {
        if let Some(uses) = self.uses.get(block.index()) {
            self.lists.push_front(uses.list(), block);
        }
    }

    fn evicted(&mut self, block: BlockId, content: Content) {
        if let Some(uses) = self.uses.get(block.index()) {
            self.evictions.push(content.key, uses.count);
            self.forget(block);
        }
    }

    fn forget(&mut self, block: BlockId) {
        self.lists.remove(block);
        self.note(block, Content::default(), 0, Uses::default());
    }

    fn clear(&mut self) {
        self.lists.clear();
        self.keys.fill(0);
        self.stamps.fill(0);
        self.uses.fill(Uses::default());
        self.depths.fill(0);
        self.clock = 0;
        self.evictions.clear();
        self.releasing = false;
        if let Some(contest) = &mut self.contest {
            contest.clear();
        }
        self.follow();
    }

    fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        if num_blocks <= self.keys.len() && !self.keys.is_empty() {
            return Ok(());
        }
        self.reserve(num_blocks)?;
        if let Some(contest) = &mut self.contest {
            try_reserve(&mut self.depths, num_blocks)?;
            contest.grow(num_blocks.saturating_sub(1))?; // the last that can fail
            self.depths.resize(num_blocks, 0);
        }
        self.resize(num_blocks);
        Ok(())
    }

    fn check_block(&self, block: BlockId) -> Result<(), InvariantViolation> {
        self.lists.check_block(block)?;
        let list = self.lists.list_of(block);
        let belongs = self.uses.get(block.index()).map(|uses| uses.list());
        let stamp = self.stamps.get(block.index()).copied().unwrap_or_default();
        let sound = (list.is_none() || list == belongs) && stamp <= self.clock;
        ensure(sound, "AD2 (a block in the order is on the list of its class)", || {
            format!("{block:?}, on list {list:?}, is of {belongs:?}, stamp {stamp} of {}", self.clock)
        })
    }

    #[cfg(feature = "fault-injection")]
    fn corrupt(&mut self, block: BlockId, what: usize, to: u32) -> bool {
        self.lists.corrupt(block, what, to)
    }

    fn check_invariants(&self) -> Result<(), InvariantViolation> {
        const NAME: &str = "AD6 (the order is in the mode that was chosen)";
        self.lists.check_invariants()?;
        self.evictions.check_invariants()?;
        (0..self.keys.len() as u32).try_for_each(|block| self.check_block(BlockId::new(block)))?;
        let bonuses = self.mode.bonuses(self.capacity());
        ensure(self.bonuses == bonuses, NAME, || format!("bonuses {:?}, not {bonuses:?}", self.bonuses))?;
        let Some(contest) = &self.contest else { return Ok(()) };
        contest.check_invariants()?;
        ensure(self.mode == contest.mode(), NAME, || format!("{:?}, not {:?}", self.mode, contest.mode()))
    }
}
