//! `Mode`: the weights of frequency and recency, which can change at any time.
//!
//! A block with u uses has class floor(log2 u), 0 to 7. There are 16 lists: one per class, and one per
//! class for *proven* blocks. Each list is in order of release. The victim is the front block with the
//! smallest `stamp + bonus of its list`; ties go to the first list. If all bonuses are 0, that is LRU,
//! whatever the lists contain. A change of mode changes 16 numbers and moves no block.
//!
//! - *Stamp*: the clock at the last release. The clock counts admitted blocks, and a small amount for
//!   each release, of any number of blocks.
//! - *Uses*: 1 at admission, plus one for each hit, at most 255. They are halved for every 16
//!   capacities since the last use. A content whose eviction is remembered continues with the uses that
//!   it had.
//! - *Proven*: the block was hit since its admission, or was released in a privileged window. The clock
//!   is divided into windows of an eighth of a capacity, and every fourth window is privileged. In a
//!   loop larger than the cache, no block is ever hit, so some blocks must be kept without a hit.

/// The number of classes of uses.
const CLASSES: usize = 8;
pub(super) const LISTS: usize = 2 * CLASSES;
/// The amount that one admitted block adds to the clock. A release of any number of blocks adds 1.
pub(super) const TICK: u64 = 1 << 16;

/// The weight of uses: the number of capacities of admitted blocks by which a block counts as younger
/// than it is.
///
/// ```
/// use kvpool_policies::Adaptive;
/// use kvpool_policies::adaptive::Mode;
/// let frequency = Mode::ALL[4];
/// assert_eq!(Adaptive::fixed(8, frequency)?.mode(), frequency);
/// # Ok::<(), kvpool::PoolError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    /// For blocks of class 1, with 2 to 3 uses.
    pub used_again: u64,
    /// Added for each further doubling of the uses.
    pub doubling: u64,
    /// Added for a proven block of any class.
    pub proven: u64,
}

impl Mode {
    const fn of(used_again: u64, doubling: u64, proven: u64) -> Self {
        Self { used_again, doubling, proven }
    }

    /// All modes. The first is LRU.
    pub const ALL: [Self; 6] = [
        Self::of(0, 0, 0),
        Self::of(1, 0, 0),
        Self::of(2, 0, 0),
        Self::of(4, 0, 0),
        Self::of(8, 8, 0),
        Self::of(0, 0, 4),
    ];

    /// The bonus of each list, in a pool of `capacity` blocks.
    pub(super) fn bonuses(self, capacity: usize) -> [u64; LISTS] {
        std::array::from_fn(|list| {
            let class = (list % CLASSES) as u64;
            let uses = class.checked_sub(1).map_or(0, |further| self.used_again + self.doubling * further);
            let capacities = uses + if list >= CLASSES { self.proven } else { 0 };
            (capacities * TICK).saturating_mul(capacity as u64)
        })
    }
}

/// The uses of the content of a block.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Uses {
    pub(super) count: u8,
    pub(super) proven: bool,
}

impl Uses {
    /// The list of a block with these uses.
    pub(super) fn list(self) -> usize {
        let class = self.count.max(1).ilog2() as usize;
        if self.proven { CLASSES + class } else { class }
    }
}
