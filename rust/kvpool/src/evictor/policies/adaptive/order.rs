//! `Order`: recency and frequency kept apart, so that the weight of frequency can change at any moment.
//!
//! Owns: for each block its key, uses, stamp and whether it is *proven*, the lists, and what was lately evicted. A block with
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
//! Costs: O(1), 16 comparisons per victim; 27 bytes per block, and 2 evictions remembered per block, 30 bytes.

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

    /// By list.
    fn bonuses(self, capacity: usize) -> [u64; LISTS] {
        std::array::from_fn(|list| {
            let class = (list % CLASSES) as u64;
            let uses = class.checked_sub(1).map_or(0, |further| self.used_again + self.doubling * further);
            let capacities = uses + if list >= CLASSES { self.proven } else { 0 };
            (capacities * TICK).saturating_mul(capacity as u64)
        })
    }
}

const NAME: &str = "AD2 (a block in the order is on the list of its class)";

#[derive(Clone, Copy, Debug, Default)]
struct Uses {
    count: u8,
    proven: bool,
}

impl Uses {
    /// The list of a block that was used so.
    fn list(self) -> usize {
        let class = self.count.max(1).ilog2() as usize;
        if self.proven { CLASSES + class } else { class }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Order {
    lists: BlockLists,
    /// By block, as the stamps and the uses.
    pub(super) keys: Vec<u64>,
    stamps: Vec<u64>,
    uses: Vec<Uses>,
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
            keys: Vec::new(),
            stamps: Vec::new(),
            uses: Vec::new(),
            clock: 0,
            half_life: 1,
            window: 1,
            bonuses: [0; LISTS],
            mode,
            evictions: Recent::new(),
        })
    }

    pub(super) const fn capacity(&self) -> usize {
        self.keys.len().saturating_sub(1)
    }

    pub(super) const fn mode(&self) -> Mode {
        self.mode
    }

    pub(super) fn set_mode(&mut self, mode: Mode) {
        self.mode = mode;
        self.bonuses = mode.bonuses(self.capacity());
    }

    fn note(&mut self, block: BlockId, key: u64, stamp: u64, uses: Uses) {
        let at = block.index();
        if at < self.keys.len() {
            (self.keys[at], self.stamps[at], self.uses[at]) = (key, stamp, uses);
        }
    }

    /// `block` has a new content.
    pub(super) fn admit(&mut self, block: BlockId, key: u64) {
        self.lists.remove(block);
        self.clock = self.clock.saturating_add(TICK);
        let count = self.evictions.take(key).map_or(1, |count| count.saturating_add(1));
        self.note(block, key, self.clock, Uses { count, proven: false });
    }

    pub(super) fn hit(&mut self, block: BlockId) {
        self.lists.remove(block);
        let at = block.index();
        if at < self.uses.len() {
            let age = self.clock.saturating_sub(self.stamps[at]);
            let halvings = (age / self.half_life).min(7);
            let count = (self.uses[at].count >> halvings).saturating_add(1);
            (self.stamps[at], self.uses[at]) = (self.clock, Uses { count, proven: true });
        }
    }

    /// A moment of release begins.
    pub(super) fn begin_release(&mut self) {
        self.clock = self.clock.saturating_add(1);
    }

    pub(super) fn release(&mut self, block: BlockId) {
        self.lists.remove(block);
        let at = block.index();
        if !block.is_null() && at < self.uses.len() {
            self.stamps[at] = self.clock;
            self.uses[at].proven |= (self.clock / self.window).is_multiple_of(PRIVILEGED);
            self.lists.push_back(self.uses[at].list(), block);
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
        if let Some(uses) = self.uses.get(block.index()) {
            self.lists.push_front(uses.list(), block);
        }
    }

    /// The content of `block` is evicted.
    pub(super) fn evicted(&mut self, block: BlockId) {
        if let Some(uses) = self.uses.get(block.index()) {
            self.evictions.push(self.keys[block.index()], uses.count);
            self.forget(block);
        }
    }

    pub(super) fn forget(&mut self, block: BlockId) {
        self.lists.remove(block);
        self.note(block, 0, 0, Uses::default());
    }

    /// All contents are gone, and what was remembered.
    pub(super) fn clear(&mut self) {
        self.lists.clear();
        self.keys.fill(0);
        self.stamps.fill(0);
        self.uses.fill(Uses::default());
        self.clock = 0;
        self.evictions.clear();
    }

    /// Takes the memory for blocks up to `num_blocks - 1`, and changes nothing that is seen.
    pub(super) fn reserve(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        try_reserve(&mut self.keys, num_blocks)?;
        try_reserve(&mut self.stamps, num_blocks)?;
        try_reserve(&mut self.uses, num_blocks)?;
        self.evictions.reserve(num_blocks.saturating_sub(1).saturating_mul(REMEMBERED))?;
        self.lists.grow(num_blocks) // blocks that the others do not have yet are never put on a list
    }

    /// Has blocks up to `num_blocks - 1` from now on, after [`Self::reserve`].
    pub(super) fn grow(&mut self, num_blocks: usize) {
        let num_blocks = num_blocks.max(self.uses.len());
        self.keys.resize(num_blocks, 0);
        self.stamps.resize(num_blocks, 0);
        self.uses.resize(num_blocks, Uses::default());
        self.evictions.grow(self.capacity().saturating_mul(REMEMBERED));
        let capacity = self.capacity() as u64;
        self.half_life = (HALF_LIFE * TICK).saturating_mul(capacity).max(1);
        self.window = (TICK.saturating_mul(capacity) / WINDOWS).max(1);
        self.set_mode(self.mode);
    }

    /// Blocks in the order.
    pub(super) const fn len(&self) -> usize {
        self.lists.num_linked()
    }

    /// Whether the eviction of `key` is remembered.
    pub(super) fn remembers(&self, key: u64) -> bool {
        self.evictions.contains(key)
    }

    pub(super) fn check_block(&self, block: BlockId) -> Result<(), InvariantViolation> {
        self.lists.check_block(block)?;
        let list = self.lists.list_of(block);
        let belongs = self.uses.get(block.index()).map(|uses| uses.list());
        ensure(list.is_none() || list == belongs, NAME, || {
            format!("{block:?}, on list {list:?}, is of {belongs:?}")
        })
    }

    #[cfg(feature = "fault-injection")]
    pub(super) fn corrupt(&mut self, block: BlockId, what: usize, to: u32) -> bool {
        self.lists.corrupt(block, what, to)
    }

    pub(super) fn check_invariants(&self) -> Result<(), InvariantViolation> {
        self.lists.check_invariants()?;
        self.evictions.check_invariants()?;
        for (block, &stamp) in (0..).map(BlockId::new).zip(&self.stamps) {
            self.check_block(block)?;
            ensure(stamp <= self.clock, NAME, || format!("{block:?}: stamp {stamp} of {}", self.clock))?;
        }
        let bonuses = self.mode.bonuses(self.capacity());
        ensure(self.bonuses == bonuses, NAME, || format!("bonuses {:?}, not {bonuses:?}", self.bonuses))
    }
}
