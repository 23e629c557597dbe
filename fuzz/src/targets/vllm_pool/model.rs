//! vLLM's pool in as few words as possible: one list for the queue, a record per block, an entry per key. Keys are numbers.
//!
//! Written from what `kvpool_vllm` says of its calls, not from how it makes them. What is refused is refused before anything changes.

use kvpool_vllm::VllmError;

type Outcome<T> = Result<T, VllmError>;
/// A block, a key that led to it, and whether it led nowhere else.
pub type Removal = (u32, usize, bool);
/// Whether the key of a cached block is new; `None` for a block that was left out.
pub type Stored = Option<bool>;

/// What a block has.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Block {
    /// References.
    pub refs: i32,
    /// Its hash, with the tokens that it stands for.
    pub hash: Option<(usize, Option<u32>)>,
    /// Keys beyond that.
    pub further: Vec<usize>,
}

/// What a key leads to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Entry {
    /// Blocks, the oldest first.
    pub copies: Vec<u32>,
    /// Whether there were two at once since there was none.
    pub was_shared: bool,
}

/// The pool.
#[derive(Clone, Debug)]
pub(super) struct Model {
    caching: bool,
    pub(super) blocks: Vec<Block>,
    pub(super) queue: Vec<u32>,
    /// By the key's number.
    entries: Vec<Entry>,
    /// Blocks of the queue that do not count as free.
    withheld: usize,
    pub(super) removals: u64,
}

impl Model {
    pub(super) fn new(num_blocks: usize, caching: bool, num_keys: usize) -> Self {
        Self {
            caching,
            blocks: vec![Block::default(); num_blocks],
            queue: (1..num_blocks as u32).collect(),
            entries: vec![Entry::default(); num_keys],
            withheld: 0,
            removals: 0,
        }
    }

    pub(super) fn num_free(&self) -> usize {
        self.queue.len().saturating_sub(self.withheld)
    }

    pub(super) fn find(&self, key: usize) -> Option<u32> {
        self.entries.get(key)?.copies.first().copied()
    }

    /// The keys that lead somewhere.
    pub(super) fn entries(&self) -> Vec<(usize, Entry)> {
        let all = self.entries.iter().cloned().enumerate();
        all.filter(|(_, entry)| *entry != Entry::default()).collect()
    }

    /// Every reference, in the order of the blocks.
    pub(super) fn held(&self) -> Vec<u32> {
        let references = |(id, block): (usize, &Block)| vec![id as u32; block.refs.max(0) as usize];
        self.blocks.iter().enumerate().flat_map(references).collect()
    }

    /// Blocks with references and without a hash.
    pub(super) fn bare(&self) -> Vec<u32> {
        let mut held = self.held();
        held.dedup();
        held.retain(|&id| self.blocks[id as usize].hash.is_none());
        held
    }

    /// Blocks that nobody has, and the queue neither.
    pub(super) fn loose(&self) -> Vec<u32> {
        let is_loose = |id: &u32| self.blocks[*id as usize].refs == 0 && !self.queue.contains(id);
        (1..self.blocks.len() as u32).filter(is_loose).collect()
    }

    fn check(&self, block: u32) -> Outcome<()> {
        let last = self.blocks.len() as u32 - 1;
        if block <= last { Ok(()) } else { Err(VllmError::UnknownBlock { block, last }) }
    }

    fn check_all(&self, blocks: &[u32]) -> Outcome<()> {
        blocks.iter().try_for_each(|&block| self.check(block))
    }

    pub(super) fn allocate(&mut self, n: usize) -> Outcome<(Vec<u32>, Vec<Removal>)> {
        if n > self.num_free() {
            return Err(VllmError::OutOfBlocks { wanted: n, free: self.num_free() });
        }
        let taken: Vec<u32> = self.queue.drain(..n).collect();
        let removed = self.take_over(&taken);
        Ok((taken, removed))
    }

    /// What is left to do for blocks that are out of the queue.
    fn take_over(&mut self, blocks: &[u32]) -> Vec<Removal> {
        let mut removed = Vec::new();
        for &block in blocks {
            if self.caching {
                removed.extend(self.remove_hashes(block));
            }
            self.blocks[block as usize].refs = 1;
        }
        removed
    }

    pub(super) fn claim(&mut self, blocks: &[u32]) -> Outcome<Vec<Removal>> {
        self.check_all(blocks)?;
        Ok(self.take_over(blocks))
    }

    pub(super) fn touch(&mut self, blocks: &[u32]) -> Outcome<()> {
        self.check_all(blocks)?;
        for &block in blocks.iter().filter(|&&block| block != 0) {
            let refs = &mut self.blocks[block as usize].refs;
            if *refs == 0 {
                self.queue.retain(|&queued| queued != block);
            }
            *refs += 1;
        }
        Ok(())
    }

    /// Drops references: the blocks that have none then, and are not in the queue already.
    fn drop_references(&mut self, blocks: &[u32]) -> Outcome<Vec<u32>> {
        let (mut refs, mut free) =
            (self.blocks.iter().map(|block| block.refs).collect::<Vec<_>>(), Vec::new());
        for &block in blocks {
            self.check(block)?;
            let left = &mut refs[block as usize];
            if block == 0 || *left <= 0 {
                return Err(VllmError::NotHeld { block });
            }
            *left -= 1;
            if *left == 0 && !self.queue.contains(&block) {
                free.push(block);
            }
        }
        self.blocks.iter_mut().zip(refs).for_each(|(block, left)| block.refs = left);
        Ok(free)
    }

    pub(super) fn free(&mut self, blocks: &[u32]) -> Outcome<()> {
        let blocks: Vec<u32> = blocks.iter().copied().filter(|&block| block != 0).collect();
        let free = self.drop_references(&blocks)?;
        let is_kept = |block: &u32| self.caching && self.blocks[*block as usize].hash.is_some();
        let (kept, reused): (Vec<u32>, Vec<u32>) = free.into_iter().partition(is_kept);
        self.queue.splice(0..0, reused);
        self.queue.extend(kept);
        Ok(())
    }

    pub(super) fn unpin(&mut self, blocks: &[u32]) -> Outcome<()> {
        let free = self.drop_references(blocks)?;
        self.queue.extend(free);
        Ok(())
    }

    pub(super) fn cache_full(
        &mut self,
        first: usize,
        blocks: &[u32],
        keys: &[Option<usize>],
        block_size: usize,
    ) -> Outcome<(Vec<Removal>, Vec<Stored>)> {
        let tokens_of = |position: usize| ((first + position + 1) * block_size) as u32;
        for (position, (&block, key)) in blocks.iter().zip(keys).enumerate() {
            self.check(block)?;
            let (hash, wanted) = (self.blocks[block as usize].hash, tokens_of(position));
            let cached = hash.filter(|_| key.is_some()).map(|(_, tokens)| tokens);
            // Nobody knows that it is fewer if nobody said how many.
            if let Some(cached) = cached.filter(|cached| cached.is_none_or(|cached| cached >= wanted)) {
                return Err(VllmError::AlreadyCached { block, cached: cached.unwrap_or(0), wanted });
            }
        }
        let mut removed = Vec::new();
        let mut cache = |position: usize, block: u32, key: usize| {
            removed.extend(self.remove_hashes(block));
            self.insert_hash(key, block, Some(tokens_of(position)))
        };
        let each = blocks.iter().zip(keys).enumerate();
        let stored = each.map(|(at, (&block, key))| key.map(|key| cache(at, block, key))).collect();
        Ok((removed, stored))
    }

    /// Whether the key led nowhere, and is the block's now.
    pub(super) fn insert_hash(&mut self, key: usize, block: u32, tokens: Option<u32>) -> bool {
        let Some(state) = self.blocks.get_mut(block as usize) else { return false };
        let leads_there = self.entries[key].copies.contains(&block);
        if leads_there || state.hash.is_some_and(|(hash, _)| hash == key) {
            return false;
        }
        if state.hash.is_none() {
            state.hash = Some((key, tokens));
        } else if !state.further.contains(&key) {
            state.further.push(key);
        }
        let is_new = self.entries[key].copies.is_empty();
        self.lead_to(key, block);
        is_new
    }

    fn lead_to(&mut self, key: usize, block: u32) {
        let entry = &mut self.entries[key];
        if !entry.copies.contains(&block) {
            entry.was_shared |= !entry.copies.is_empty();
            entry.copies.push(block);
        }
    }

    pub(super) fn insert_in_index(&mut self, key: usize, block: u32) -> Outcome<()> {
        self.check(block)?;
        self.lead_to(key, block);
        Ok(())
    }

    /// Whether the key led to the block.
    pub(super) fn remove_from_index(&mut self, key: usize, block: u32) -> bool {
        let entry = &mut self.entries[key];
        let Some(at) = entry.copies.iter().position(|&copy| copy == block) else { return false };
        entry.copies.remove(at);
        entry.was_shared &= !entry.copies.is_empty();
        self.removals += 1;
        true
    }

    pub(super) fn clear_index(&mut self) {
        self.entries.fill(Entry::default());
        self.removals += 1;
    }

    /// Its hash goes first. A block without one has no further keys that anybody looks for.
    pub(super) fn remove_hashes(&mut self, block: u32) -> Vec<Removal> {
        let Some(state) = self.blocks.get_mut(block as usize) else { return Vec::new() };
        let Some((hash, _)) = state.hash.take() else { return Vec::new() };
        let further = std::mem::take(&mut state.further);
        let mut removed = Vec::new();
        for key in std::iter::once(hash).chain(further) {
            if self.remove_from_index(key, block) {
                removed.push((block, key, self.entries[key].copies.is_empty()));
            }
        }
        removed
    }

    pub(super) fn move_hashes(&mut self, from: u32, to: u32) -> Outcome<()> {
        self.check_all(&[from, to])?;
        let tokens = self.blocks[from as usize].hash.and_then(|(_, tokens)| tokens);
        if let Some((_, cached)) = self.blocks[to as usize].hash {
            let (cached, wanted) = (cached.unwrap_or(0), tokens.unwrap_or(0));
            return Err(VllmError::AlreadyCached { block: to, cached, wanted });
        }
        for (_, key, _) in self.remove_hashes(from) {
            self.insert_hash(key, to, tokens);
        }
        Ok(())
    }

    pub(super) fn evict(&mut self, block: u32, reuse_first: bool) -> Outcome<Vec<Removal>> {
        self.check(block)?;
        let removed = self.remove_hashes(block);
        let queued = self.queue.iter().position(|&queued| queued == block);
        if let Some(at) = queued
            && reuse_first
            && !removed.is_empty()
            && self.blocks[block as usize].refs == 0
        {
            self.queue[..=at].rotate_right(1);
        }
        Ok(removed)
    }

    pub(super) fn reset(&mut self) -> bool {
        if self.num_free() + 1 != self.blocks.len() {
            return false;
        }
        for block in &mut self.blocks {
            *block = Block { refs: block.refs, ..Block::default() };
        }
        self.clear_index();
        true
    }

    pub(super) fn pop_from_queue(&mut self, n: usize) -> Vec<u32> {
        self.queue.drain(..n.min(self.queue.len())).collect()
    }

    pub(super) fn remove_from_queue(&mut self, block: u32) -> bool {
        let before = self.queue.len();
        self.queue.retain(|&queued| queued != block);
        self.queue.len() < before
    }

    pub(super) fn push_to_queue(&mut self, blocks: &[u32], front: bool) {
        let mut pushed = Vec::new();
        for &block in blocks {
            let is_queued = self.queue.contains(&block) || pushed.contains(&block);
            if block != 0 && self.check(block).is_ok() && !is_queued {
                pushed.push(block);
            }
        }
        let at = if front { 0 } else { self.queue.len() };
        self.queue.splice(at..at, pushed);
    }

    pub(super) fn set_num_free(&mut self, count: usize) -> bool {
        let fits = count <= self.queue.len();
        if fits {
            self.withheld = self.queue.len() - count;
        }
        fits
    }
}
