//! `Order`: the blocks that may be evicted, with recency and frequency stored separately, so that the
//! active mode can weigh them at each eviction.
//!
//! It has one list per class of uses, and for each block its stamp and its uses (`mode` defines these).
//! A shadow has an order of its own, for its entries.
//!
//! Invariant: a block in the order is on the list of its class.
//!
//! Costs: O(1). A pop compares the front blocks of 16 lists. A block takes 19 bytes, allocated only by
//! [`Order::reserve`].

use super::mode::{LISTS, Mode, TICK, Uses};
use crate::block_lists::BlockLists;
use kvpool::parts::{ensure, try_reserve};
use kvpool::{BlockId, InvariantViolation, PoolError};

/// If a block is not used again, its number of uses is halved each time that this number of capacities
/// was admitted. A capacity is the number of blocks of the pool.
const HALF_LIFE: u64 = 16;
/// Number of windows into which the clock divides the admission of one capacity (the pool's number of
/// blocks). One window in `PRIVILEGED` is privileged: the blocks that are released in it count as
/// proven.
const WINDOWS: u64 = 8;
const PRIVILEGED: u64 = 4;

#[derive(Clone, Debug)]
pub(super) struct Order {
    lists: BlockLists,
    /// For each block, the value of the clock at its last release.
    stamps: Vec<u64>,
    uses: Vec<Uses>,
    clock: u64,
    /// The half-life of uses, in units of the clock. It depends on the number of blocks of the pool.
    half_life: u64,
    window: u64,
    bonuses: [u64; LISTS],
    mode: Mode,
    /// Whether the last call released a block, so that another released block belongs to the same
    /// release.
    releasing: bool,
}

impl Order {
    pub(super) fn new(mode: Mode) -> Result<Self, PoolError> {
        let lists = BlockLists::new(LISTS, 0)?;
        Ok(Self {
            lists,
            stamps: Vec::new(),
            uses: Vec::new(),
            clock: 0,
            half_life: 1,
            window: 1,
            bonuses: [0; LISTS],
            mode,
            releasing: false,
        })
    }

    pub(super) const fn mode(&self) -> Mode {
        self.mode
    }

    pub(super) fn set_mode(&mut self, mode: Mode) {
        self.mode = mode;
        self.bonuses = mode.bonuses(self.capacity());
    }

    /// The number of blocks for which there is memory, without the null block.
    pub(super) const fn capacity(&self) -> usize {
        self.stamps.len().saturating_sub(1)
    }

    pub(super) const fn len(&self) -> usize {
        self.lists.num_linked()
    }

    pub(super) fn uses(&self, block: BlockId) -> Option<u8> {
        self.uses.get(block.index()).map(|uses| uses.count)
    }

    fn note(&mut self, block: BlockId, stamp: u64, uses: Uses) {
        let at = block.index();
        if at < self.stamps.len() {
            (self.stamps[at], self.uses[at]) = (stamp, uses);
        }
    }

    /// Sets a new content of `block`. `before` is the content's number of uses at its eviction, or
    /// `None` if that is not remembered.
    pub(super) fn admit(&mut self, block: BlockId, before: Option<u8>) {
        self.releasing = false;
        self.lists.remove(block);
        self.clock = self.clock.saturating_add(TICK);
        let count = before.map_or(1, |count| count.saturating_add(1));
        self.note(block, self.clock, Uses { count, proven: false });
    }

    pub(super) fn hit(&mut self, block: BlockId) {
        self.releasing = false;
        self.lists.remove(block);
        if let Some(uses) = self.uses.get(block.index()) {
            let age = self.clock.saturating_sub(self.stamps[block.index()]);
            let halvings = (age / self.half_life).min(7);
            let count = (uses.count >> halvings).saturating_add(1);
            self.note(block, self.clock, Uses { count, proven: true });
        }
    }

    /// Makes the next released block the first of a new release.
    pub(super) const fn begin_release(&mut self) {
        self.releasing = false;
    }

    /// Adds `block` to the order. Returns whether it is the first block of a release. If there is no
    /// such block, changes nothing and returns `None`.
    pub(super) fn release(&mut self, block: BlockId) -> Option<bool> {
        let at = block.index();
        if block.is_null() || at >= self.stamps.len() {
            return None;
        }
        let begins = !std::mem::replace(&mut self.releasing, true);
        self.clock = self.clock.saturating_add(begins.into());
        self.lists.remove(block);
        self.stamps[at] = self.clock;
        self.uses[at].proven |= (self.clock / self.window).is_multiple_of(PRIVILEGED);
        self.lists.push_back(self.uses[at].list(), block);
        Some(begins)
    }

    /// Removes and returns the block with the lowest sum of stamp (time of release) and bonus of its
    /// list.
    pub(super) fn pop(&mut self) -> Option<BlockId> {
        let fronts = (0..LISTS).filter_map(|list| {
            let front = self.lists.front(list)?;
            Some((self.stamps.get(front.index())?.saturating_add(self.bonuses[list]), list))
        });
        let (_, list) = fronts.min()?;
        self.lists.pop_front(list)
    }

    pub(super) fn take(&mut self, block: BlockId) {
        self.lists.remove(block);
    }

    pub(super) fn unpop(&mut self, block: BlockId) {
        if let Some(uses) = self.uses.get(block.index()) {
            self.lists.push_front(uses.list(), block);
        }
    }

    pub(super) fn forget(&mut self, block: BlockId) {
        self.lists.remove(block);
        self.note(block, 0, Uses::default());
    }

    pub(super) fn clear(&mut self) {
        self.lists.clear();
        self.stamps.fill(0);
        self.uses.fill(Uses::default());
        self.clock = 0;
        self.releasing = false;
    }

    /// Allocates memory for the blocks `1..num_blocks`. The order does not change.
    pub(super) fn reserve(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        try_reserve(&mut self.stamps, num_blocks)?;
        try_reserve(&mut self.uses, num_blocks)?;
        self.lists.grow(num_blocks) // blocks that the other arrays lack are never put on a list
    }

    /// Grows the order to the blocks `1..num_blocks`, after [`Self::reserve`].
    pub(super) fn resize(&mut self, num_blocks: usize) {
        let num_blocks = num_blocks.max(self.stamps.len());
        self.stamps.resize(num_blocks, 0);
        self.uses.resize(num_blocks, Uses::default());
        let capacity = self.capacity() as u64;
        self.half_life = (HALF_LIFE * TICK).saturating_mul(capacity).max(1);
        self.window = (TICK.saturating_mul(capacity) / WINDOWS).max(1);
        self.set_mode(self.mode);
    }

    pub(super) fn check_block(&self, block: BlockId) -> Result<(), InvariantViolation> {
        self.lists.check_block(block)?;
        let list = self.lists.list_of(block);
        let belongs = self.uses.get(block.index()).map(|uses| uses.list());
        let stamp = self.stamps.get(block.index()).copied().unwrap_or_default();
        let sound = (list.is_none() || list == belongs) && stamp <= self.clock;
        ensure(sound, "AD2 (a block in the order is on the list of its class)", || {
            format!(
                "{block:?} is on list {list:?}, belongs to {belongs:?}; stamp {stamp}, clock {}",
                self.clock
            )
        })
    }

    #[cfg(feature = "fault-injection")]
    pub(super) fn corrupt(&mut self, block: BlockId, what: usize, to: u32) -> bool {
        self.lists.corrupt(block, what, to)
    }

    pub(super) fn check_invariants(&self) -> Result<(), InvariantViolation> {
        const NAME: &str = "AD6 (the bonuses equal those of the mode)";
        self.lists.check_invariants()?;
        (0..self.stamps.len() as u32).try_for_each(|block| self.check_block(BlockId::new(block)))?;
        let bonuses = self.mode.bonuses(self.capacity());
        ensure(self.bonuses == bonuses, NAME, || format!("bonuses {:?}, not {bonuses:?}", self.bonuses))
    }
}
