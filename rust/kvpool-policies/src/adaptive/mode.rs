//! `Mode`: how much the `adaptive` policy weighs frequency against recency. The mode can change at any
//! time.
//!
//! A block belongs to one of 8 classes by its number of uses: class floor(log2 uses). There are 16
//! lists: one per class, and another one per class for *proven* blocks. Each list is in order of
//! release. The victim is the front block with the smallest `stamp + bonus of its list`. Among equals,
//! it is that of the first list. If all bonuses are 0, this order is LRU, whatever the lists contain. A
//! change of mode changes the 16 bonuses and moves no block.
//!
//! - *Stamp*: the clock at the last release of the block. The clock advances by a fixed amount for each
//!   admitted block. For each release, it advances by a much smaller amount, regardless of the number
//!   of blocks.
//! - *Uses*: 1 at admission, plus one for each hit, at most 255. They are halved for every 16
//!   capacities (numbers of blocks in the pool) of blocks that are admitted after the last use. If the
//!   eviction of a content is remembered, the content keeps its earlier uses when it is admitted again.
//! - *Proven*: the block was hit since its admission, or was released in a privileged window. Windows
//!   divide the clock: each is as long as the admission of an eighth of a capacity. Every fourth window
//!   is privileged. In a loop larger than the cache, no block is ever hit, so some blocks must be kept
//!   without a hit.

/// The number of classes into which blocks are divided by their number of uses.
const CLASSES: usize = 8;
pub(super) const LISTS: usize = 2 * CLASSES;
/// The amount that one admitted block adds to the clock. A release of any number of blocks adds 1.
pub(super) const TICK: u64 = 1 << 16;

/// The weights of blocks in one mode. A block with weight w is treated as if it had been released
/// later, by w times as many admitted blocks as the pool has blocks.
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
    /// The weight of a block that has 2 or 3 uses (class 1).
    pub used_again: u64,
    /// The weight that a block gets in addition for each further doubling of its number of uses (each
    /// class above 1).
    pub doubling: u64,
    /// The weight that a proven block (one that was hit since its admission, or released in a
    /// privileged window) gets in addition.
    pub proven: u64,
}

impl Mode {
    const fn of(used_again: u64, doubling: u64, proven: u64) -> Self {
        Self { used_again, doubling, proven }
    }

    /// All modes of the policy. The first one orders blocks as LRU does.
    pub const ALL: [Self; 6] = [
        Self::of(0, 0, 0),
        Self::of(1, 0, 0),
        Self::of(2, 0, 0),
        Self::of(4, 0, 0),
        Self::of(8, 8, 0),
        Self::of(0, 0, 4),
    ];

    /// Returns, for each list, the bonus that is added to the stamps (times of release) of its blocks,
    /// in a pool of `capacity` blocks.
    pub(super) fn bonuses(self, capacity: usize) -> [u64; LISTS] {
        std::array::from_fn(|list| {
            let class = (list % CLASSES) as u64;
            let uses = class.checked_sub(1).map_or(0, |further| self.used_again + self.doubling * further);
            let capacities = uses + if list >= CLASSES { self.proven } else { 0 };
            (capacities * TICK).saturating_mul(capacity as u64)
        })
    }
}

/// How often the content of a block was used, and whether the block is proven.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Uses {
    pub(super) count: u8,
    pub(super) proven: bool,
}

impl Uses {
    /// Returns the number of the list that contains the blocks with these uses.
    pub(super) fn list(self) -> usize {
        let class = self.count.max(1).ilog2() as usize;
        if self.proven { CLASSES + class } else { class }
    }
}
