//! `Counts`: the differences between the reference counts that vLLM sees and those of the core.
//!
//! vLLM writes reference counts by hand, and moves blocks out of and into its queue without changing
//! counts. The core always counts: it holds one reference to a block that was taken from the queue by
//! hand, and the shown count omits that reference. The shown count is the core's count plus the
//! difference stored here.
//!
//! In ordinary operation there are no differences, because a count that is written for a block in use
//! becomes the core's count.

use hashbrown::HashMap;

/// Differences by block; none of them is 0.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    differences: HashMap<u32, i64>,
}

impl Counts {
    /// Whether the shown counts are the core's counts.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.differences.is_empty()
    }

    pub(crate) fn of(&self, block: u32) -> i64 {
        if self.is_empty() { 0 } else { self.differences.get(&block).copied().unwrap_or(0) }
    }

    pub(crate) fn set(&mut self, block: u32, difference: i64) {
        if difference == 0 {
            self.differences.remove(&block);
        } else {
            self.differences.insert(block, difference);
        }
    }

    pub(crate) fn add(&mut self, block: u32, difference: i64) {
        self.set(block, self.of(block) + difference);
    }
}
