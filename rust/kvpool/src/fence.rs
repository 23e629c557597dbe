//! `FenceSet`: references that a running step or transfer still holds.
//!
//! Under asynchronous scheduling a request can end while a step that reads or writes its blocks is still running on the
//! device. `release_after(step)` hands its references to a fence; `complete_step(step)` gives up every fence of that
//! step and of earlier ones (vLLM #45357, tpu-inference #3449: blocks freed early were overwritten by a running step).
//!
//! A *pin* is a fence that no step ends: the source or destination of a copy that is planned and not yet handed out. All
//! pins end together, when the plan is taken.
//!
//! Owns: how many of a block's references belong to fences, and the number of *fenced* blocks: those with no other
//! reference. The references themselves are counted by the allocator.
//!
//! Invariants: F1: a block's fence references never exceed its reference count; F2: a block is fenced exactly if both are
//! equal and above 0; F3: the fence references of all blocks are counted.
//!
//! Costs: O(1) per block, O(log s) for s open steps; 4 bytes per block of the pool, from the first fence on.

use std::collections::BTreeMap;

use hashbrown::HashMap;

use crate::block::BlockId;
use crate::error::{InvariantViolation, ensure};

/// Open fences by step.
#[derive(Clone, Debug, Default)]
pub(crate) struct FenceSet {
    /// Fence references per block; empty until the first fence.
    references: Vec<u32>,
    open: BTreeMap<u64, Vec<BlockId>>,
    /// Blocks of copies that are planned and not yet handed out, one entry per reference.
    pinned: Vec<BlockId>,
    /// How many of them are of each block.
    pins: HashMap<BlockId, u32>,
    /// Blocks whose every reference belongs to a fence.
    fenced: usize,
    /// The last completed step.
    completed: Option<u64>,
    /// References of all fences and pins.
    total: u64,
}

impl FenceSet {
    pub(crate) const fn num_fenced(&self) -> usize {
        self.fenced
    }

    /// Fence references of all blocks.
    pub(crate) const fn num_references(&self) -> u64 {
        self.total
    }

    /// Whether no fence is open: the hot paths then skip this part.
    pub(crate) fn is_idle(&self) -> bool {
        self.open.is_empty() && self.pinned.is_empty()
    }

    /// Whether `step` has completed, so that a fence on it would open at once.
    pub(crate) fn is_completed(&self, step: u64) -> bool {
        self.completed.is_some_and(|completed| step <= completed)
    }

    /// The last completed step.
    pub(crate) const fn completed(&self) -> Option<u64> {
        self.completed
    }

    pub(crate) fn references(&self, block: BlockId) -> u32 {
        self.references.get(block.index()).copied().unwrap_or(0)
    }

    /// Whether fences hold all of the block's `ref_count` references.
    pub(crate) fn is_fenced(&self, block: BlockId, ref_count: u32) -> bool {
        ref_count > 0 && self.references(block) == ref_count
    }

    /// Hands one reference of each block, already counted, to a fence on `step`; to a pin without one.
    pub(crate) fn add(
        &mut self,
        step: Option<u64>,
        blocks: &[BlockId],
        num_blocks: usize,
        ref_count: impl Fn(BlockId) -> u32,
    ) {
        if self.references.len() < num_blocks {
            self.references.resize(num_blocks, 0);
        }
        for &block in blocks {
            if let Some(references) = self.references.get_mut(block.index()) {
                *references = references.saturating_add(1);
                self.fenced = self.fenced.wrapping_add(usize::from(*references == ref_count(block)));
            }
        }
        self.total = self.total.wrapping_add(blocks.len() as u64);
        let fence = match step {
            Some(step) => self.open.entry(step).or_default(),
            None => {
                blocks.iter().for_each(|&block| *self.pins.entry(block).or_default() += 1);
                &mut self.pinned
            }
        };
        fence.extend_from_slice(blocks);
    }

    /// A reference was added to a block that had `before`.
    pub(crate) fn on_acquire(&mut self, block: BlockId, before: u32) {
        self.fenced = self.fenced.wrapping_sub(usize::from(self.is_fenced(block, before)));
    }

    /// A reference that no fence holds was dropped from a block, which has `after` left.
    pub(crate) fn on_release(&mut self, block: BlockId, after: u32) {
        self.fenced = self.fenced.wrapping_add(usize::from(self.is_fenced(block, after)));
    }

    /// Ends the fences of `step` and before. Returns their blocks in the order in which they were fenced: the caller
    /// ends one reference of each by [`Self::end_one`] and drops it.
    pub(crate) fn complete(&mut self, step: u64) -> Vec<BlockId> {
        self.completed = self.completed.max(Some(step));
        let later = step.checked_add(1).map(|next| self.open.split_off(&next)).unwrap_or_default();
        std::mem::replace(&mut self.open, later).into_values().flatten().collect()
    }

    /// Ends all pins, as [`Self::complete`] does with fences.
    pub(crate) fn end_pins(&mut self) -> Vec<BlockId> {
        self.pins = HashMap::new();
        std::mem::take(&mut self.pinned)
    }

    /// Pins of a block.
    pub(crate) fn pins(&self, block: BlockId) -> u32 {
        if self.pins.is_empty() { 0 } else { self.pins.get(&block).copied().unwrap_or(0) }
    }

    /// Takes back one ended reference of a block that has `ref_count` references, this one included. False, and nothing
    /// changed, if it has none: F1 is broken.
    #[must_use]
    pub(crate) fn end_one(&mut self, block: BlockId, ref_count: u32) -> bool {
        let was_fenced = self.is_fenced(block, ref_count);
        let Some(references) =
            self.references.get_mut(block.index()).filter(|held| (1..=ref_count).contains(*held))
        else {
            return false;
        };
        *references -= 1;
        let is_fenced = self.is_fenced(block, ref_count - 1);
        // Totals that are wrong are found by the sums, not here.
        self.fenced = self.fenced.wrapping_sub(usize::from(was_fenced)).wrapping_add(usize::from(is_fenced));
        self.total = self.total.wrapping_sub(1);
        true
    }

    /// Recounts the fences from the open steps.
    pub(crate) fn check_invariants(
        &self,
        ref_count: impl Fn(BlockId) -> u32,
    ) -> Result<(), InvariantViolation> {
        let mut recount = vec![0u32; self.references.len()];
        for block in self.open.values().flatten().chain(&self.pinned) {
            recount[block.index()] += 1;
        }
        let total = recount.iter().map(|&count| u64::from(count)).sum::<u64>();
        ensure(total == self.total, "F3 (fence references are counted)", || {
            format!("{total} found, {} counted", self.total)
        })?;
        ensure(recount == self.references, "F1 (fence references are those of open steps)", || {
            format!("counted {:?}, open {recount:?}", self.references)
        })?;
        let fenced =
            (1..recount.len() as u32).map(BlockId::new).filter(|&b| self.is_fenced(b, ref_count(b))).count();
        let exceeds =
            (1..recount.len() as u32).map(BlockId::new).find(|&b| self.references(b) > ref_count(b));
        ensure(exceeds.is_none(), "F1 (fence references are those of open steps)", || {
            format!("{exceeds:?} has more fence references than references")
        })?;
        ensure(fenced == self.fenced, "F2 (fenced blocks are counted)", || {
            format!("{fenced} fenced, {} counted", self.fenced)
        })
    }
}

#[cfg(feature = "fault-injection")]
impl FenceSet {
    /// Changes a block's fence references, the number of fenced blocks or that of fence references behind the set's back: 0 to 2.
    pub(crate) fn corrupt(&mut self, block: BlockId, what: usize, to: u32) -> bool {
        match (what, self.references.get_mut(block.index())) {
            (0, Some(count)) => std::mem::replace(count, to) != to,
            (1, _) => std::mem::replace(&mut self.fenced, to as usize) != to as usize,
            (2, _) => std::mem::replace(&mut self.total, u64::from(to)) != u64::from(to),
            _ => false,
        }
    }
}
