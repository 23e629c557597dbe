//! `Counts`: the differences between the reference counts that vLLM sees and the reference counts in
//! the core.
//!
//! vLLM writes reference counts directly, and moves blocks out of its queue and into it without
//! changing counts. The core always counts. It holds one reference to a block that vLLM took out of the
//! queue directly. The count that vLLM sees (the shown count) does not include that reference. The
//! shown count is the core's count plus the difference stored here.
//!
//! In ordinary operation there are no differences. If vLLM writes the count of a block in use, the
//! core's count is usually set to the same value.

use hashbrown::HashMap;

/// Differences by block. A difference of 0 is not stored.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    differences: HashMap<u32, i64>,
}

impl Counts {
    /// Whether there are no differences, so that the shown counts equal the core's counts.
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
