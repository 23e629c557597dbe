//! Slow and simple reference models of the pool and of the manager ([`ReferenceManager`]).
//!
//! The models hash nothing: a block's content is its whole prefix, token by token, with its extra keys
//! and epoch. Their lists are plain vectors. Their results and block ids must equal those of the core,
//! and so must the orders of the free list and of eviction.
//!
//! Their blocks contain KV ([`Kv`]), which depends on the weights. So the model can check which
//! contents a pool removes, and whether the remaining contents are those that the current weights would
//! compute. [`ReferencePool::check_kv`] checks the remaining contents.

mod manager;

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use kvpool::{BlockId, Until};
pub use manager::{ReferenceManager, ReferenceOutcome, ReferenceRequest, ReferenceStep};

/// The content of a cached block: the salt, the epoch, and every token from the start of the prompt to
/// the block's end.
pub type Content = (Vec<u8>, u64, Vec<u32>);

/// A stand-in for the KV of a computed token. It depends on the tokens up to this one and on the
/// weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kv {
    /// The version of the weights that computed the KV. Every reset and every new epoch changes the
    /// weights.
    pub weights: u64,
    /// A hash of the prefix from which the KV was computed.
    pub prefix: u64,
}

impl Kv {
    /// Returns the KV of the last token of a prefix.
    #[must_use]
    pub fn of(weights: u64, salt: &[u8], prefix: &[u32]) -> Self {
        let mut hasher = DefaultHasher::new();
        (salt, prefix).hash(&mut hasher);
        Self { weights, prefix: hasher.finish() }
    }
}

#[derive(Clone, Debug, Default)]
struct Block {
    references: usize,
    /// Number of references to the block that fences hold, and number that pins hold.
    fences: usize,
    pins: usize,
    content: Option<Content>,
    computed: bool,
    /// The KV by slot, or `None` for slots that were not written since the block was allocated.
    kv: Vec<Option<Kv>>,
}

/// The pool's reference model.
#[derive(Clone, Debug)]
pub struct ReferencePool {
    blocks: Vec<Block>,
    block_size: usize,
    drop_duplicates: bool,
    /// The free blocks. The first one is allocated next.
    pub free: Vec<usize>,
    /// The order of eviction. The first block is evicted next. If the last holder of a pinned block
    /// releases it, the block keeps its place in the order until it would be evicted.
    pub evictable: Vec<usize>,
    copies: BTreeMap<Content, Vec<usize>>,
    open_fences: BTreeMap<u64, Vec<usize>>,
    tickets: BTreeMap<u64, Vec<usize>>,
    next_ticket: u64,
    pinned: Vec<usize>,
    completed: Option<u64>,
    epoch: u64,
    dropped: u64,
}

impl ReferencePool {
    /// Creates a pool whose blocks are all free.
    #[must_use]
    pub fn new(num_blocks: usize, block_size: usize, drop_duplicates: bool) -> Self {
        let free = (1..num_blocks).collect();
        let blocks = vec![Block::default(); num_blocks];
        let (copies, open_fences, evictable) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        Self {
            blocks,
            block_size,
            drop_duplicates,
            free,
            evictable,
            copies,
            open_fences,
            tickets: BTreeMap::new(),
            next_ticket: 0,
            pinned: Vec::new(),
            completed: None,
            epoch: 0,
            dropped: 0,
        }
    }

    /// Returns the content of the block at position `position` of a prompt.
    #[must_use]
    pub fn content(&self, salt: &[u8], tokens: &[u32], position: usize) -> Content {
        (salt.to_vec(), self.epoch, tokens[..(position + 1) * self.block_size].to_vec())
    }

    /// Returns the numbers of blocks that are free, cached-free, active and fenced.
    #[must_use]
    pub fn sums(&self) -> (usize, usize, usize, usize) {
        let held = self.blocks.iter().filter(|b| b.references > 0).count();
        let fenced = self.blocks.iter().filter(|b| b.references > 0 && b.references == b.fences).count();
        (self.free.len(), self.eviction_order().len(), held - fenced, fenced)
    }

    /// Returns the number of blocks with a content, and the number of those that have a reference.
    #[must_use]
    pub fn registered(&self) -> (usize, usize) {
        let registered = || self.blocks.iter().filter(|block| block.content.is_some());
        (registered().count(), registered().filter(|block| block.references > 0).count())
    }

    /// Returns the blocks that allocations take if no block is free, the next one first.
    #[must_use]
    pub fn eviction_order(&self) -> Vec<usize> {
        self.evictable.iter().copied().filter(|&block| self.blocks[block].references == 0).collect()
    }

    /// Returns the number of blocks, including the null block.
    #[must_use]
    pub const fn num_blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Returns the number of blocks that an allocation can take.
    #[must_use]
    pub fn available(&self) -> usize {
        self.free.len() + self.eviction_order().len()
    }

    /// Returns the number of references to a block, except those of fences and pins.
    #[must_use]
    pub fn holders(&self, block: usize) -> usize {
        self.blocks[block].references - self.blocks[block].fences
    }

    /// Returns the number of references to a block, except those of pins.
    fn users(&self, block: usize) -> usize {
        self.blocks[block].references - self.blocks[block].pins
    }

    /// Returns whether a block has a content.
    #[must_use]
    pub fn is_registered(&self, block: usize) -> bool {
        self.registered_content(block).is_some()
    }

    /// Returns the content of a block, whether it is computed or not.
    #[must_use]
    pub fn registered_content(&self, block: usize) -> Option<&Content> {
        self.blocks.get(block)?.content.as_ref()
    }

    /// Returns the number of references to a block, and how many of them fences and pins hold.
    #[must_use]
    pub fn references(&self, block: usize) -> (usize, usize) {
        self.blocks.get(block).map_or((0, 0), |block| (block.references, block.fences))
    }

    /// Returns whether the content of a block is computed, so that a lookup may return the block.
    #[must_use]
    pub fn is_computed(&self, block: usize) -> bool {
        self.content_of(block).is_some()
    }

    /// Returns the number of released duplicates that were freed because another copy is cached.
    #[must_use]
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Returns the contents of all computed blocks, which a lookup may return.
    pub fn cached_contents(&self) -> impl Iterator<Item = &Content> {
        self.blocks.iter().filter(|block| block.computed).filter_map(|block| block.content.as_ref())
    }

    /// Allocates `n` blocks. Returns `None` if too few are available.
    pub fn allocate(&mut self, n: usize) -> Option<Vec<usize>> {
        (n <= self.available()).then(|| (0..n).map(|_| self.allocate_one()).collect())
    }

    fn allocate_one(&mut self) -> usize {
        // If a pinned block is the next to be evicted, it is only removed from the order of eviction.
        let mut next = || if self.free.is_empty() { self.evictable.remove(0) } else { self.free.remove(0) };
        let mut block = next();
        while self.blocks[block].references > 0 {
            block = next();
        }
        self.unregister(block);
        self.blocks[block].references = 1;
        self.blocks[block].kv = vec![None; self.block_size];
        block
    }

    /// Compares the blocks that a lookup may return with the KV that the current weights would write.
    ///
    /// # Errors
    /// The first block with other content: KV of other tokens, or of older weights.
    pub fn check_kv(&self, weights: u64) -> Result<(), String> {
        for (b, block) in self.blocks.iter().enumerate().filter(|(_, block)| block.computed) {
            let Some((salt, _, tokens)) = &block.content else { continue };
            let start = tokens.len() - self.block_size;
            for (slot, &found) in block.kv.iter().enumerate() {
                let expected = Kv::of(weights, salt, &tokens[..=start + slot]);
                if found != Some(expected) {
                    return Err(format!(
                        "block {b} is cached with {found:?} in slot {slot}, not {expected:?}"
                    ));
                }
            }
        }
        Ok(())
    }

    fn unregister(&mut self, block: usize) {
        if let Some(content) = self.blocks[block].content.take() {
            self.copies.entry(content).or_default().retain(|&copy| copy != block);
        }
        self.blocks[block].computed = false;
    }

    /// Adds a reference to each block. Returns false and changes nothing if a block has no reference.
    pub fn acquire(&mut self, blocks: &[usize]) -> bool {
        let valid = blocks.iter().all(|&b| self.blocks.get(b).is_some_and(|block| block.references > 0));
        blocks.iter().filter(|_| valid).for_each(|&b| self.hold(b));
        valid
    }

    fn releasable(&self, blocks: &[usize]) -> bool {
        let named = |b: usize| blocks.iter().filter(|&&other| other == b).count();
        let spare = |block: &Block| block.references - block.fences;
        blocks.iter().all(|&b| self.blocks.get(b).is_some_and(|block| spare(block) >= named(b)))
    }

    /// Removes references. Returns false and changes nothing if a block has too few references.
    pub fn release(&mut self, blocks: &[usize]) -> bool {
        self.releasable(blocks) && self.drop_references(blocks)
    }

    fn drop_references(&mut self, blocks: &[usize]) -> bool {
        let mut idle = Vec::new();
        for &b in blocks {
            self.blocks[b].references -= 1;
            // Pins are not counted as holders. A block that only pins hold counts as released, but the
            // pins prevent its allocation.
            if self.blocks[b].references == self.blocks[b].pins {
                idle.push(b);
            }
        }
        let mut cached = Vec::new();
        for b in idle {
            if cached.contains(&b) {
                continue; // placed with a copy that was dropped
            }
            let Block { content, computed, .. } = self.blocks[b].clone();
            let content = content.filter(|_| self.drop_duplicates);
            let twin = content.and_then(|content| {
                self.copies[&content].iter().copied().find(|&copy| copy != b && self.blocks[copy].computed)
            });
            if computed && twin.is_none() {
                cached.push(b);
                continue;
            }
            self.dropped += u64::from(twin.is_some());
            self.unregister(b);
            if self.blocks[b].references == 0 {
                self.free.insert(0, b);
            }
            // The block that keeps the content must not be evicted before the blocks that follow the
            // dropped block in its prompt.
            let waits = |&twin: &usize| {
                let Block { references, pins, .. } = self.blocks[twin];
                self.evictable.contains(&twin) || pins > 0 && references == pins
            };
            if let Some(twin) = twin.filter(waits).filter(|twin| computed && !cached.contains(twin)) {
                self.evictable.retain(|&other| other != twin);
                cached.push(twin);
            }
        }
        cached.sort_by_key(|&b| {
            std::cmp::Reverse(self.blocks[b].content.as_ref().map(|content| content.2.len()))
        });
        self.evictable.extend(cached);
        true
    }

    /// Releases blocks when a step completes. Returns false and changes nothing if a block has too few
    /// references.
    pub fn release_after(&mut self, blocks: &[usize], step: u64) -> bool {
        if self.completed.is_some_and(|completed| step <= completed) {
            return self.release(blocks);
        }
        let valid = self.releasable(blocks);
        if valid {
            blocks.iter().for_each(|&b| self.blocks[b].fences += 1);
            self.open_fences.entry(step).or_default().extend(blocks);
        }
        valid
    }

    /// Ends fences up to `step`. Returns the number of references that they held.
    pub fn complete_step(&mut self, step: u64) -> usize {
        self.completed = self.completed.max(Some(step));
        let ended: Vec<_> = self.open_fences.range(..=step).flat_map(|(_, blocks)| blocks.clone()).collect();
        self.open_fences.retain(|&open, _| open > step);
        ended.iter().for_each(|&b| self.blocks[b].fences -= 1);
        self.drop_references(&ended);
        ended.len()
    }

    /// Opens a fence. Returns its ticket.
    pub fn fence(&mut self) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.tickets.insert(ticket, Vec::new());
        ticket
    }

    /// Returns the open tickets in the order in which they were opened.
    #[must_use]
    pub fn open_tickets(&self) -> Vec<u64> {
        self.tickets.keys().copied().collect()
    }

    /// Releases blocks when a fence ends. Returns false and changes nothing if the ticket is not open,
    /// or if a block has too few references.
    pub fn release_until(&mut self, blocks: &[usize], ticket: u64) -> bool {
        let valid = self.tickets.contains_key(&ticket) && self.releasable(blocks);
        if valid {
            blocks.iter().for_each(|&b| self.blocks[b].fences += 1);
            self.tickets.entry(ticket).or_default().extend(blocks);
        }
        valid
    }

    /// Returns whether a release waits for the end of a fence.
    fn holds_back(&self, until: Until) -> bool {
        match until {
            Until::Now => false,
            Until::Step(step) => self.completed.is_none_or(|completed| step > completed),
            Until::Ticket(_) => true,
        }
    }

    /// Releases blocks immediately, or when a step completes or a fence ends.
    pub fn release_until_then(&mut self, blocks: &[usize], until: Until) -> bool {
        match until {
            Until::Now => self.release(blocks),
            Until::Step(step) => self.release_after(blocks, step),
            Until::Ticket(ticket) => self.release_until(blocks, ticket.get()),
        }
    }

    /// Ends a fence. Returns the number of references that it held, or `None` if it is not open.
    pub fn end_fence(&mut self, ticket: u64) -> Option<usize> {
        let ended = self.tickets.remove(&ticket)?;
        ended.iter().for_each(|&b| self.blocks[b].fences -= 1);
        self.drop_references(&ended);
        Some(ended.len())
    }

    /// Adds a reference to a held block until [`Self::unpin`]. A block gets at most one such reference.
    fn pin(&mut self, b: usize) {
        if !self.pinned.contains(&b) {
            self.blocks[b].references += 1;
            self.blocks[b].fences += 1;
            self.blocks[b].pins += 1;
            self.pinned.push(b);
        }
    }

    fn unpin(&mut self) {
        let ended = std::mem::take(&mut self.pinned);
        for &b in &ended {
            self.blocks[b].fences -= 1;
            self.blocks[b].pins -= 1;
        }
        for &b in &ended {
            self.blocks[b].references -= 1;
            // A block that was released while it was pinned is already in the order of eviction, unless
            // it was removed when it would have been evicted.
            if self.blocks[b].references == 0 && !self.evictable.contains(&b) {
                self.unregister(b);
                self.free.insert(0, b);
            }
        }
    }

    fn hold(&mut self, block: usize) {
        self.evictable.retain(|&other| other != block);
        self.blocks[block].references += 1;
    }

    fn content_of(&self, block: usize) -> Option<&Content> {
        self.blocks[block].content.as_ref().filter(|_| self.blocks[block].computed)
    }

    /// Returns the blocks with the same content as `block`. The block that a lookup returns comes
    /// first. Returns an empty list if the block has no content.
    #[must_use]
    pub fn copies_of(&self, block: usize) -> &[usize] {
        let content = self.blocks[block].content.as_ref();
        content.and_then(|content| self.copies.get(content)).map_or(&[], Vec::as_slice)
    }

    /// Returns the block that a lookup of this content returns. Such a block is always computed.
    fn find(&self, content: &Content) -> Option<usize> {
        self.copies.get(content)?.first().copied().filter(|&b| self.blocks[b].computed)
    }

    fn register_copy(&mut self, block: usize, content: &Content) {
        if self.blocks[block].content.is_none() {
            self.copies.entry(content.clone()).or_default().push(block);
            self.blocks[block].content = Some(content.clone());
            self.mark_computed(&[block]);
        }
    }

    /// Registers blocks. Returns false and changes nothing if a block is not held or already
    /// registered.
    pub fn register(&mut self, blocks: &[usize], salt: &[u8], tokens: &[u32], start: usize) -> bool {
        let twice = (1..blocks.len()).any(|i| blocks[..i].contains(&blocks[i]));
        let fit = |b: &usize| {
            self.blocks.get(*b).is_some_and(|block| block.references > 0 && block.content.is_none())
        };
        if twice || !blocks.iter().all(fit) || (start + blocks.len()) * self.block_size > tokens.len() {
            return false;
        }
        for (i, &b) in blocks.iter().enumerate() {
            let content = self.content(salt, tokens, start + i);
            self.copies.entry(content.clone()).or_default().push(b);
            self.blocks[b].content = Some(content);
        }
        true
    }

    /// Marks blocks as computed. Returns false and changes nothing if a block is not registered.
    pub fn mark_computed(&mut self, blocks: &[usize]) -> bool {
        let valid = blocks.iter().all(|&b| self.blocks.get(b).is_some_and(|block| block.content.is_some()));
        for &b in blocks.iter().filter(|_| valid) {
            let Block { content: Some(content), computed: false, .. } = self.blocks[b].clone() else {
                continue;
            };
            self.blocks[b].computed = true;
            let ring = self.copies.entry(content).or_default();
            ring.retain(|&copy| copy != b);
            // Move the copy behind the copies that became computed earlier, and before all copies that
            // are not computed.
            let computed = ring.iter().take_while(|&&copy| self.blocks[copy].computed).count();
            ring.insert(computed, b);
        }
        valid
    }

    /// Returns the blocks of the longest computed prefix. Acquires them if `acquire` is set.
    pub fn lookup(&mut self, salt: &[u8], tokens: &[u32], max_blocks: usize, acquire: bool) -> Vec<usize> {
        let hit = |position| self.find(&self.content(salt, tokens, position));
        let found: Vec<_> = (0..max_blocks.min(tokens.len() / self.block_size)).map_while(hit).collect();
        found.iter().filter(|_| acquire).for_each(|&b| self.hold(b));
        found
    }

    /// Returns the longest list of consecutive cached blocks of a prompt, beginning at block `start`.
    /// With `refresh`, the lookup makes them the most recently used blocks.
    pub fn find_run(
        &mut self,
        salt: &[u8],
        tokens: &[u32],
        (start, max_blocks): (usize, usize),
        refresh: bool,
    ) -> Vec<usize> {
        let run = |model: &Self| {
            let positions = (start..tokens.len() / model.block_size).take(max_blocks);
            positions.map_while(|position| model.find(&model.content(salt, tokens, position))).collect()
        };
        let found: Vec<usize> = run(self);
        if !refresh {
            return found;
        }
        found.iter().for_each(|&b| self.hold(b));
        let tail_first: Vec<_> = found.iter().rev().copied().collect();
        self.drop_references(&tail_first);
        run(self) // a copy may have been dropped
    }

    /// Acquires blocks that must still have these contents. Returns false and changes nothing if a
    /// block has another content.
    pub fn acquire_match(&mut self, blocks: &[usize], contents: &[Content]) -> bool {
        let fresh = |(&b, content)| b < self.blocks.len() && self.content_of(b) == Some(content);
        let fine = blocks.iter().zip(contents).all(fresh);
        blocks.iter().filter(|_| fine).for_each(|&b| self.hold(b));
        fine
    }

    /// Registers a held block as block `position` of the prompt. If another block is already registered
    /// with that content, holds that block instead, even if it is not computed. Returns the block that
    /// is held afterwards. Returns `None` and changes nothing if only fences hold the block, or if it
    /// is already registered.
    pub fn promote(&mut self, block: usize, salt: &[u8], tokens: &[u32], position: usize) -> Option<usize> {
        let fine = self.blocks.get(block).is_some_and(|b| b.references > b.fences && b.content.is_none());
        if !fine {
            return None;
        }
        let content = self.content(salt, tokens, position);
        let Some(shared) = self.copies.get(&content).and_then(|copies| copies.first().copied()) else {
            self.copies.entry(content.clone()).or_default().push(block);
            self.blocks[block].content = Some(content);
            return Some(block);
        };
        self.hold(shared);
        self.drop_references(&[block]);
        Some(shared)
    }

    /// Removes the contents of blocks from the index.
    pub fn drop_cached(&mut self, blocks: &[usize]) {
        for &b in blocks {
            self.unregister(b);
            if let Some(at) = self.evictable.iter().position(|&other| other == b) {
                self.evictable.remove(at);
                if self.blocks[b].references == 0 {
                    self.free.insert(0, b);
                }
            }
        }
    }

    /// Returns the positions of a prompt at which another block than the given one is cached, with that
    /// block.
    fn changes(&self, blocks: &[usize], contents: &[Content]) -> Vec<(usize, usize)> {
        let cached = |(at, (b, content)): (usize, (&usize, &Content))| {
            self.find(content).filter(|cached| cached != b).map(|cached| (at, cached))
        };
        blocks.iter().zip(contents).enumerate().filter_map(cached).collect()
    }

    /// Registers held blocks for a prompt and marks them as computed. At positions where a block is
    /// already cached, uses that block instead. Returns `None` and changes nothing if a block is not
    /// held, has another content, or is listed twice and has no content.
    pub fn register_table(
        &mut self,
        blocks: &[usize],
        salt: &[u8],
        tokens: &[u32],
        start: usize,
    ) -> Option<Vec<(usize, usize)>> {
        let contents = self.contents(blocks.len(), salt, tokens, start)?;
        for (at, (&b, content)) in blocks.iter().zip(&contents).enumerate() {
            let block = self.blocks.get(b).filter(|block| block.references > block.fences)?;
            let fits = block.content.as_ref().map_or(!blocks[..at].contains(&b), |own| own == content);
            if !fits {
                return None;
            }
        }
        let changes = self.changes(blocks, &contents);
        let given_up: Vec<_> = changes.iter().rev().map(|&(at, _)| blocks[at]).collect();
        if !self.releasable(&given_up) {
            return None;
        }
        self.enter(blocks, &contents, &changes);
        self.drop_references(&given_up);
        Some(changes)
    }

    /// Returns the contents of blocks of a prompt, if the prompt is long enough.
    fn contents(&self, blocks: usize, salt: &[u8], tokens: &[u32], start: usize) -> Option<Vec<Content>> {
        let fits = (start + blocks) * self.block_size <= tokens.len();
        fits.then(|| (start..start + blocks).map(|at| self.content(salt, tokens, at)).collect())
    }

    fn enter(&mut self, blocks: &[usize], contents: &[Content], changes: &[(usize, usize)]) {
        let stays = |at: &usize| changes.iter().all(|(changed, _)| changed != at);
        let kept: Vec<_> = (0..blocks.len()).filter(stays).collect();
        for &at in &kept {
            if self.blocks[blocks[at]].content.is_none() {
                self.copies.entry(contents[at].clone()).or_default().push(blocks[at]);
                self.blocks[blocks[at]].content = Some(contents[at].clone());
            }
        }
        self.mark_computed(&kept.iter().map(|&at| blocks[at]).collect::<Vec<_>>());
        changes.iter().for_each(|&(_, cached)| self.hold(cached));
    }

    /// Like the method `register_table`, but for free blocks. Afterwards they are held, unless a cached
    /// block replaces them. Returns `None` and changes nothing if a block is not free or is listed
    /// twice.
    pub fn adopt(
        &mut self,
        blocks: &[usize],
        salt: &[u8],
        tokens: &[u32],
        start: usize,
    ) -> Option<Vec<(usize, usize)>> {
        let contents = self.contents(blocks.len(), salt, tokens, start)?;
        let fits = |(at, b): (usize, &usize)| self.free.contains(b) && !blocks[..at].contains(b);
        if !blocks.iter().enumerate().all(fits) {
            return None;
        }
        let changes = self.changes(blocks, &contents);
        for (at, &b) in blocks.iter().enumerate() {
            if changes.iter().all(|&(changed, _)| changed != at) {
                self.free.retain(|&other| other != b);
                self.blocks[b].references = 1;
            }
        }
        self.enter(blocks, &contents, &changes);
        Some(changes)
    }

    /// Like the method `find`, but does not return a block that was removed from the order of eviction
    /// while only pins held it. The parents of such a block may have been evicted.
    fn find_in_place(&self, content: &Content) -> Option<usize> {
        let overtaken =
            |b: usize| self.blocks[b].references == self.blocks[b].pins && !self.evictable.contains(&b);
        self.find(content).filter(|&b| !overtaken(b))
    }

    /// Releases blocks and removes their contents. Returns false and changes nothing if a block does
    /// not have exactly one holder.
    pub fn disown(&mut self, blocks: &[usize]) -> bool {
        let alone = |b: &usize| self.blocks.get(*b).is_some_and(|one| one.references == 1 && one.fences == 0);
        let fine = blocks.iter().all(alone) && self.releasable(blocks);
        if fine {
            self.drop_cached(blocks);
            self.drop_references(&blocks.iter().rev().copied().collect::<Vec<_>>());
        }
        fine
    }

    /// Evicts up to `n` blocks. They are free afterwards and are allocated next.
    pub fn evict(&mut self, n: usize) -> Vec<usize> {
        let mut victims = Vec::new();
        while victims.len() < n && !self.eviction_order().is_empty() {
            let next = self.evictable.remove(0);
            victims.extend((self.blocks[next].references == 0).then_some(next));
        }
        victims.iter().for_each(|&b| self.unregister(b));
        self.free.splice(..0, victims.iter().copied());
        victims
    }

    /// Returns whether the pool is idle: no block has a reference.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.blocks.iter().all(|block| block.references == 0)
    }

    /// Removes all cached content. Returns false and changes nothing if a block has a reference.
    pub fn reset(&mut self) -> bool {
        let idle = self.is_idle();
        if idle {
            self.forget();
        }
        idle
    }

    /// Removes all cached content and starts a new epoch.
    pub fn bump_epoch(&mut self) {
        self.epoch += 1;
        self.forget();
    }

    fn forget(&mut self) {
        let freed = self.eviction_order();
        (0..self.blocks.len()).for_each(|b| self.unregister(b));
        self.evictable.clear();
        freed.into_iter().for_each(|b| self.free.insert(0, b));
    }

    /// Adds free blocks with the next ids, as a resize of the pool does.
    pub fn resize(&mut self, num_blocks: usize) {
        self.free.extend(self.blocks.len()..num_blocks);
        self.blocks.resize(num_blocks, Block::default());
    }
}

/// Converts the block ids of the core to the numbers by which the model identifies blocks.
#[must_use]
pub fn indices(blocks: &[BlockId]) -> Vec<usize> {
    blocks.iter().map(|block| block.index()).collect()
}

/// Converts the numbers by which the model identifies blocks to block ids of the core.
#[must_use]
pub fn block_ids(blocks: &[usize]) -> Vec<BlockId> {
    blocks.iter().map(|&block| BlockId::new(block as u32)).collect()
}
