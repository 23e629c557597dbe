//! `Counts`: the differences between the reference counts that vLLM sees and those in the core pool.
//!
//! vLLM writes reference counts directly, and moves blocks out of its queue and into it without
//! changing counts. The core always counts. For example, it holds one reference to a block that vLLM
//! took out of the queue directly, but vLLM does not count this reference. The count that vLLM sees
//! (the *shown* count) is the core's count plus the difference stored here.
//!
//! In ordinary operation there are no differences. If vLLM writes the count of a block in use, the
//! core's count is usually set to the same value.

use hashbrown::HashMap;

/// For each block, the reference count that vLLM sees minus the core's count. Blocks without a
/// difference have no entry.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    differences: HashMap<u32, i64>,
}

impl Counts {
    /// Returns whether the reference count that vLLM sees equals the core's count for every block.
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
