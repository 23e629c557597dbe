//! `Mode`: recency and frequency kept apart, so that the weight of frequency can change at any moment.
//!
//! A block with u uses is of class floor(log2 u), 0 to 7. There is a list per class, and one per class
//! for *proven* blocks: 16. Each is in order of release. The victim is the front with the smallest
//! `stamp + bonus of its list`, of equals that of the first list. With all bonuses 0 that is LRU,
//! whatever the lists are. A change of mode changes 16 numbers and moves no block.
//!
//! - *Stamp*: the clock at the last release. The clock counts admitted blocks, and a little for each
//!   moment of release.
//! - *Uses*: 1 when admitted, one more for each hit, 255 at most; halved for every 16 capacities since
//!   the last one. A content whose eviction is remembered goes on from the uses that it had.
//! - *Proven*: hit since it was admitted, or released in a privileged window: the clock is cut into
//!   windows of an eighth of a capacity, and every fourth one is privileged. In a loop larger than the
//!   cache no block is ever hit; so some must be kept.

/// Classes of uses.
const CLASSES: usize = 8;
pub(super) const LISTS: usize = 2 * CLASSES;
/// What one admitted block adds to the clock; a moment of release adds 1.
pub(super) const TICK: u64 = 1 << 16;

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

    /// By list, in a pool of `capacity` blocks.
    pub(super) fn bonuses(self, capacity: usize) -> [u64; LISTS] {
        std::array::from_fn(|list| {
            let class = (list % CLASSES) as u64;
            let uses = class.checked_sub(1).map_or(0, |further| self.used_again + self.doubling * further);
            let capacities = uses + if list >= CLASSES { self.proven } else { 0 };
            (capacities * TICK).saturating_mul(capacity as u64)
        })
    }
}

/// Of the content of a block.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Uses {
    pub(super) count: u8,
    pub(super) proven: bool,
}

impl Uses {
    /// The list of a block that was used so.
    pub(super) fn list(self) -> usize {
        let class = self.count.max(1).ilog2() as usize;
        if self.proven { CLASSES + class } else { class }
    }
}
