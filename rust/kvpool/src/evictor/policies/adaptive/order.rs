//! `Order`: recency and frequency kept apart, so that the weight of frequency can change at any moment.
//!
//! Owns: for each block its uses, its stamp and whether it is *proven*, the lists, and what was lately evicted. A block with
//! u uses is of class floor(log2 u), 0 to 7. There is a list per class, and one per class for proven blocks: 16. Each is in
//! order of release. The victim is the front with the smallest `stamp + bonus of its list`, of equals that of the first list.
//! With all bonuses 0 that is LRU, whatever the lists are. A change of mode changes 16 numbers and moves no block.
//!
//! - *Stamp*: the clock at the last release. The clock counts admitted blocks, and a little for each moment of release.
//! - *Uses*: 1 when admitted, one more for each hit, 255 at most; halved for every 16 capacities since the last one. A
//!   content whose eviction is remembered goes on from the uses that it had.
//! - *Proven*: hit since it was admitted, or released in a privileged window: the clock is cut into windows of an eighth of a
//!   capacity, and every fourth one is privileged. In a loop larger than the cache no block is ever hit; so some must be kept.
//!
//! Invariant: a block on a list is on that of its class.
//!
//! Costs: O(1), 16 comparisons per victim; 19 bytes per block, and 2 evictions remembered per block, 30 bytes.

use super::recent::Recent;
use crate::block::BlockId;
use crate::block_lists::BlockLists;
use crate::error::{InvariantViolation, PoolError, ensure};
use crate::list::try_reserve;

/// Classes of uses.
const CLASSES: usize = 8;
const LISTS: usize = 2 * CLASSES;
/// What one admitted block adds to the clock; a moment of release adds 1.
const TICK: u64 = 1 << 16;
/// Evictions remembered per block.
const REMEMBERED: usize = 2;
/// Capacities without a use after which the uses count half.
const HALF_LIFE: u64 = 16;
/// Windows per capacity, and of how many one is privileged.
const WINDOWS: u64 = 8;
const PRIVILEGED: u64 = 4;

/// What uses are worth: how many capacities of admitted blocks a block counts as younger than it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    /// Of class 1, 2 to 3 uses.
    pub used_again: u64,
    /// For each further doubling of the uses.
    pub doubling: u64,
    /// For a proven block, whatever its class.
    pub proven: u64,
}

impl Mode {
    const fn of(used_again: u64, doubling: u64, proven: u64) -> Self {
        Self { used_again, doubling, proven }
    }

    /// The modes that there are; the first is LRU.
    pub const ALL: [Self; 6] = [
        Self::of(0, 0, 0),
        Self::of(1, 0, 0),
        Self::of(2, 0, 0),
        Self::of(4, 0, 0),
        Self::of(8, 8, 0),
        Self::of(0, 0, 4),
    ];

    fn bonus(self, list: usize, capacity: usize) -> u64 {
        let class = (list % CLASSES) as u64;
        let uses = class.checked_sub(1).map_or(0, |further| self.used_again + self.doubling * further);
        let capacities = uses + if list >= CLASSES { self.proven } else { 0 };
        (capacities * TICK).saturating_mul(capacity as u64)
    }
}

#[derive(Clone, Debug)]
pub(super) struct Order {
    lists: BlockLists,
    /// By block.
    stamps: Vec<u64>,
    counts: Vec<u8>,
    proven: Vec<bool>,
    clock: u64,
    /// On the clock, of this capacity.
    half_life: u64,
    window: u64,
    bonuses: [u64; LISTS],
    mode: Mode,
    evictions: Recent,
}

impl Order {
    /// Without room.
    pub(super) fn new(mode: Mode) -> Result<Self, PoolError> {
        Ok(Self {
            lists: BlockLists::new(LISTS, 1)?,
            stamps: Vec::new(),
            counts: Vec::new(),
            proven: Vec::new(),
            clock: 0,
            half_life: 1,
            window: 1,
            bonuses: [0; LISTS],
            mode,
            evictions: Recent::new(),
        })
    }

    fn capacity(&self) -> usize {
        self.counts.len().saturating_sub(1)
    }

    pub(super) const fn mode(&self) -> Mode {
        self.mode
    }

    pub(super) fn set_mode(&mut self, mode: Mode) {
        self.mode = mode;
        self.bonuses = std::array::from_fn(|list| mode.bonus(list, self.capacity()));
    }

    fn list_of(&self, at: usize) -> usize {
        let class = self.counts[at].max(1).ilog2() as usize;
        if self.proven[at] { CLASSES + class } else { class }
    }

    /// `block` has a new content.
    pub(super) fn admit(&mut self, block: BlockId, key: u64) {
        self.lists.remove(block);
        self.clock = self.clock.saturating_add(TICK);
        let uses = self.evictions.take(key).map_or(1, |uses| uses.saturating_add(1));
        let at = block.index();
        if at < self.counts.len() {
            self.counts[at] = uses;
            self.proven[at] = false;
            self.stamps[at] = self.clock;
        }
    }

    pub(super) fn hit(&mut self, block: BlockId) {
        self.lists.remove(block);
        let at = block.index();
        if at < self.counts.len() {
            let age = self.clock.saturating_sub(self.stamps[at]);
            let halvings = (age / self.half_life).min(7);
            self.counts[at] = (self.counts[at] >> halvings).saturating_add(1);
            self.proven[at] = true;
            self.stamps[at] = self.clock;
        }
    }

    /// A moment of release begins.
    pub(super) fn begin_release(&mut self) {
        self.clock = self.clock.saturating_add(1);
    }

    pub(super) fn release(&mut self, block: BlockId) {
        self.lists.remove(block);
        let at = block.index();
        if !block.is_null() && at < self.counts.len() {
            self.stamps[at] = self.clock;
            self.proven[at] |= (self.clock / self.window).is_multiple_of(PRIVILEGED);
            self.lists.push_back(self.list_of(at), block);
        }
    }

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
        if block.index() < self.counts.len() {
            self.lists.push_front(self.list_of(block.index()), block);
        }
    }

    /// The content of `block` is evicted.
    pub(super) fn evicted(&mut self, block: BlockId, key: u64) {
        if let Some(&uses) = self.counts.get(block.index()) {
            self.evictions.push(key, uses);
            self.forget(block);
        }
    }

    pub(super) fn forget(&mut self, block: BlockId) {
        self.lists.remove(block);
        let at = block.index();
        if at < self.counts.len() {
            self.counts[at] = 0;
            self.proven[at] = false;
            self.stamps[at] = 0;
        }
    }

    /// All contents are gone, and what was remembered.
    pub(super) fn clear(&mut self) {
        self.lists.clear();
        self.stamps.fill(0);
        self.counts.fill(0);
        self.proven.fill(false);
        self.clock = 0;
        self.evictions.clear();
    }

    /// Takes the memory for blocks up to `num_blocks - 1`, and changes nothing that is seen.
    pub(super) fn reserve(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        try_reserve(&mut self.stamps, num_blocks)?;
        try_reserve(&mut self.counts, num_blocks)?;
        try_reserve(&mut self.proven, num_blocks)?;
        self.evictions.reserve(num_blocks.saturating_sub(1).saturating_mul(REMEMBERED))?;
        self.lists.grow(num_blocks) // blocks that the others do not have yet are never put on a list
    }

    /// Has blocks up to `num_blocks - 1` from now on, after [`Self::reserve`]. Blocks, clock and evictions stay; bonuses, windows
    /// and half-life are those of the new capacity.
    pub(super) fn grow(&mut self, num_blocks: usize) {
        let num_blocks = num_blocks.max(self.counts.len());
        self.stamps.resize(num_blocks, 0);
        self.counts.resize(num_blocks, 0);
        self.proven.resize(num_blocks, false);
        self.evictions.grow(self.capacity().saturating_mul(REMEMBERED));
        let capacity = self.capacity() as u64;
        self.half_life = (HALF_LIFE * TICK).saturating_mul(capacity).max(1);
        self.window = (TICK.saturating_mul(capacity) / WINDOWS).max(1);
        self.set_mode(self.mode);
    }

    /// Blocks in the order.
    pub(super) fn len(&self) -> usize {
        (0..LISTS).map(|list| self.lists.len(list)).sum()
    }

    /// Whether the eviction of `key` is remembered.
    pub(super) fn remembers(&self, key: u64) -> bool {
        self.evictions.contains(key)
    }

    pub(super) fn check_block(&self, block: BlockId) -> Result<(), InvariantViolation> {
        self.lists.check_block(block)?;
        let list = self.lists.list_of(block);
        let belongs = self.counts.get(block.index()).map(|_| self.list_of(block.index()));
        ensure(
            list.is_none() || list == belongs,
            "AD2 (a block in the order is on the list of its class)",
            || format!("{block:?}, on list {list:?}, is of {belongs:?}"),
        )
    }

    #[cfg(feature = "fault-injection")]
    pub(super) fn corrupt(&mut self, block: BlockId, what: usize, to: u32) -> bool {
        self.lists.corrupt(block, what, to)
    }

    pub(super) fn check_invariants(&self) -> Result<(), InvariantViolation> {
        const NAME: &str = "AD2 (a block in the order is on the list of its class)";
        self.lists.check_invariants()?;
        self.evictions.check_invariants()?;
        for list in 0..LISTS {
            for block in self.lists.iter(list) {
                let (belongs, stamp) = (self.list_of(block.index()), self.stamps[block.index()]);
                ensure(belongs == list && stamp <= self.clock, NAME, || {
                    format!("block {block}, on list {list}, is of {belongs}, stamp {stamp} of {}", self.clock)
                })?;
            }
            let expected = self.mode.bonus(list, self.capacity());
            ensure(self.bonuses[list] == expected, NAME, || {
                format!("list {list} has a bonus of {}, not {expected}", self.bonuses[list])
            })?;
        }
        Ok(())
    }
}
