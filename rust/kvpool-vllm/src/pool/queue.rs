//! vLLM's direct changes of reference counts and of its queue of free blocks.
//!
//! If vLLM takes a block out of the queue directly, the core holds a reference to it. The count that
//! vLLM sees (the *shown* count) does not include this reference. When the block is put back, the core
//! releases the reference. If vLLM writes the count of a block in use, the core's count is set to the
//! same value if it is close; otherwise the difference is stored. Therefore the core's counts and lists
//! are always consistent, regardless of the counts that vLLM writes.
//!
//! Costs: O(1) per block. While there are differences, each call also looks up the difference of each
//! block.

use hashbrown::HashMap;
use kvpool::{BlockId, PoolError};

use crate::error::VllmError;
use crate::pool::{Pool, Removed};

/// If the reference count that vLLM writes differs from the core's count by at most this number, the
/// core adds or drops references. Larger differences are stored.
const NEAR: i64 = 64;

impl Pool {
    /// Returns the reference count of `block` that vLLM sees.
    #[must_use]
    #[inline]
    pub fn ref_count(&self, block: u32) -> i32 {
        let shown = self.shown(block);
        i32::try_from(shown).unwrap_or(if shown < 0 { i32::MIN } else { i32::MAX })
    }

    fn shown(&self, block: u32) -> i64 {
        if (block as usize) < self.num_blocks {
            i64::from(self.held(block)) + self.counts.of(block)
        } else {
            0
        }
    }

    /// Writes a reference count directly, as vLLM does for the source and the destination of a copy.
    /// The queue does not change.
    pub fn set_ref_count(&mut self, block: u32, count: i32) {
        // An error is ignored, because it means that an invariant is broken and the pool refuses all
        // calls.
        let _refused = self.set_shown(block, count.into());
    }

    /// Sets the reference count of `block` that vLLM sees.
    fn set_shown(&mut self, block: u32, count: i64) -> Result<(), PoolError> {
        if block as usize >= self.num_blocks {
            return Ok(());
        }
        let held = i64::from(self.held(block));
        let missing = count - held;
        let is_near = held > 0 && count > 0 && missing.abs() <= NEAR;
        if is_near && missing != 0 {
            let references = vec![BlockId::new(block); missing.unsigned_abs() as usize];
            if missing > 0 {
                self.core.acquire(&references)?;
            } else {
                self.core.release(&references)?;
            }
        }
        self.counts.set(block, if is_near { 0 } else { missing });
        Ok(())
    }

    /// Takes the first `n` blocks out of the queue, or all blocks if there are fewer. The counts that
    /// vLLM sees do not change.
    pub fn pop_from_queue(&mut self, n: usize) -> Vec<u32> {
        self.try_pop(n).unwrap_or_default()
    }

    fn try_pop(&mut self, n: usize) -> Result<Vec<u32>, PoolError> {
        self.ids.clear();
        self.core.allocate_as_they_are(n.min(self.queue_len()), &mut self.ids)?;
        let blocks: Vec<u32> = self.ids.iter().map(|block| block.get()).collect();
        for &block in &blocks {
            self.settle(block)?;
            self.counts.add(block, -1);
        }
        Ok(blocks)
    }

    /// Takes a block out of the queue. The count that vLLM sees does not change. Returns whether the
    /// block was in the queue.
    pub fn remove_from_queue(&mut self, block: u32) -> bool {
        if !self.is_queued(block) {
            // The block is already in use. Count one more use of its content for the eviction policy.
            let _poisoned = self.core.count_use(BlockId::new(block));
            return false;
        }
        self.gather(&[block]);
        let is_taken = self.acquire_held().is_ok();
        self.counts.add(block, -i64::from(is_taken));
        is_taken
    }

    /// Adds blocks to the queue, at its front or its back. Blocks that are already in the queue stay
    /// where they are.
    pub fn push_to_queue(&mut self, blocks: &[u32], front: bool) {
        let _refused = self.try_push(blocks, front);
    }

    fn try_push(&mut self, blocks: &[u32], front: bool) -> Result<(), PoolError> {
        let mut references = Vec::new();
        for &block in blocks {
            let id = BlockId::new(block);
            let is_here = block != 0 && (block as usize) < self.num_blocks && !references.contains(&id);
            let held = if is_here { self.held(block) } else { 0 };
            if front && held > 0 {
                // At the front of the queue, a block is a free block of the core, which has no content.
                self.detach(block)?;
                self.drop_content(block)?;
            }
            references.extend(std::iter::repeat_n(id, held as usize));
            self.counts.add(block, held.into());
        }
        self.ids = references;
        self.release(!front)
    }

    /// Does the second half of [`Self::allocate`] for blocks that vLLM has taken out of the queue:
    /// removes their keys and sets their reference counts to 1.
    ///
    /// # Errors
    /// [`VllmError::UnknownBlock`] for an unknown id.
    pub fn claim(&mut self, blocks: &[u32], mut removed: Option<&mut Vec<Removed>>) -> Result<(), VllmError> {
        blocks.iter().try_for_each(|&block| self.check(block))?;
        if self.caching {
            for &block in blocks {
                self.remove_hashes_into(block, &mut removed)?;
            }
        }
        for &block in blocks {
            self.set_shown(block, 1)?;
        }
        Ok(())
    }

    /// For each block in the buffer, adds one to the count that vLLM sees. A block in the queue leaves
    /// it if vLLM saw no references to it.
    #[cold]
    pub(crate) fn acquire_shown(&mut self) -> Result<(), VllmError> {
        if !self.counts.is_empty() {
            let Self { ids, counts, core, .. } = self;
            // If vLLM has written a reference count to a block in the queue, the block stays in the
            // queue.
            ids.retain(|block| {
                let stays = core.ref_count(*block) == Some(0) && counts.of(block.get()) != 0;
                if stays {
                    counts.add(block.get(), 1);
                }
                !stays
            });
        }
        self.acquire_held()
    }

    /// For each block in the buffer, adds one reference in the core.
    pub(crate) fn acquire_held(&mut self) -> Result<(), VllmError> {
        let mut first = 0;
        if self.hidden > 0 {
            for at in 0..self.ids.len() {
                let (id, block) = (self.ids[at], self.ids[at].get());
                let keeps = self.caching && self.overlay.hashes.contains_key(&block);
                if self.held(block) == 0 && self.core.is_hidden(id) && !keeps {
                    // When a block without a hash leaves the queue, its hidden content ends. The loop
                    // notifies the policy of each block in order.
                    self.core.acquire_by_id(&self.ids[first..at]).map_err(|error| self.refusal(error))?;
                    self.drop_content(block)?;
                    first = at;
                }
            }
        }
        self.core.acquire_by_id(&self.ids[first..]).map_err(|error| self.refusal(error))?;
        if !self.overlay.hashes.is_empty() {
            for at in 0..self.ids.len() {
                self.settle(self.ids[at].get())?;
            }
        }
        Ok(())
    }

    /// For each block in the buffer, subtracts one from the count that vLLM sees. If an error occurs,
    /// no count changes. Afterwards the buffer contains the references that the core has to drop. For a
    /// block that vLLM then sees without references, these are all of its references in the core.
    #[cold]
    pub(crate) fn drop_shown(&mut self) -> Result<(), VllmError> {
        let mut left: HashMap<u32, i64> = HashMap::new();
        for block in self.ids.iter().map(|block| block.get()) {
            self.check(block)?;
            let shown = left.entry(block).or_insert_with(|| self.shown(block));
            if *shown <= 0 || block == 0 {
                return Err(VllmError::NotHeld { block });
            }
            *shown -= 1;
        }
        let mut dropped = Vec::new();
        let mut held: HashMap<u32, u32> = HashMap::new();
        for &id in &self.ids {
            let block = id.get();
            let held = held.entry(block).or_insert_with(|| self.core.ref_count(id).unwrap_or(0));
            let shown = i64::from(*held) + self.counts.of(block) - 1;
            let to_drop = if shown == 0 { *held } else { u32::from(*held > 1) };
            dropped.extend(std::iter::repeat_n(id, to_drop as usize));
            *held -= to_drop;
            self.counts.set(block, shown - i64::from(*held));
        }
        self.ids = dropped;
        Ok(())
    }

    /// Makes `block`, which is in the queue, the next block to be allocated.
    pub(crate) fn reuse_next(&mut self, block: u32) -> Result<(), PoolError> {
        let id = [BlockId::new(block)];
        if self.core.is_registered(id[0]) {
            return self.drop_content(block);
        }
        self.core.acquire_by_id(&id)?;
        self.core.release_in_order(&id)
    }
}
