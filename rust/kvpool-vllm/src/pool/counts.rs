//! `Counts`: by how much the references that vLLM sees differ from those that are.
//!
//! vLLM writes reference counts by hand, and takes blocks out of its queue and puts them back without
//! counting. The core counts on: a block that was taken from the queue by hand is held, once, and shown
//! without that reference. What is shown is what the core has and the difference noted here.
//!
//! In ordinary operation this is empty: a count that is written for a block in use becomes the core's.

use hashbrown::HashMap;

/// Differences by block, none of them 0.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    differences: HashMap<u32, i64>,
}

impl Counts {
    /// Whether the core's counts are those that are shown.
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
