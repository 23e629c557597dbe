//! Computes the answer of each call of vLLM's pool, and the blocks that its callers hold afterwards.
//! The model has one list for the queue of free blocks, a record per block, and an entry per key. A
//! refused call changes nothing.

use std::collections::BTreeMap;

use kvpool::retention::Retention;
use kvpool_journal::{Answer, Value, VllmCall as C};
use kvpool_vllm::{Key, Removed, VllmError};

use crate::Failure;
use crate::world::vllm::{Setting, VllmWorld};

type Outcome<T> = Result<T, VllmError>;

/// The answer that a call must give.
#[derive(Clone, Debug, PartialEq)]
pub enum Expected {
    /// The call succeeds and returns this value.
    Is(Value),
    /// The pool refuses the call with this error.
    Refused(VllmError),
    /// The call is refused with any error of the core.
    RefusedByCore,
    /// The report about a hint for several blocks. If none of the blocks has a hash, the hint is
    /// applied to none.
    Hint {
        /// Number of blocks in the call, without the null block.
        blocks: u64,
        /// Number of blocks in the call that have a hash.
        hashed: u64,
        /// Whether the pool may also refuse the call.
        may_refuse: bool,
    },
    /// The call succeeds. The value that it returns depends on hints, so the model does not know it.
    Done,
}

/// A content that a block has or had.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Content {
    /// A number that identifies the content. A block gets a new content when it gets a hash, and
    /// contents are numbered in this order.
    nth: u64,
    /// The previous block of the table, and the number of the content that it had when this content
    /// began.
    parent: Option<(u32, u64)>,
}

/// A block.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Block {
    /// Number of references.
    pub refs: i32,
    /// The hash of the block, with the number of tokens that it covers.
    pub hash: Option<(Key, Option<u32>)>,
    /// The keys that the block has in addition to its hash.
    pub further: Vec<Key>,
    content: Option<Content>,
    /// Whether the block was put at the back of the queue while it had no hash.
    at_back: bool,
    /// Whether a caller put the block at the front of the queue while it had a hash.
    at_front: bool,
}

/// The blocks that have a certain key.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Entry {
    /// The blocks that have the key, in the order in which they got it.
    pub copies: Vec<u32>,
    /// Whether two blocks had the key at the same time. The value becomes false when no block has the
    /// key any more.
    pub was_shared: bool,
}

/// The model of vLLM's pool.
#[derive(Clone, Debug)]
pub struct Model {
    setting: Setting,
    keeps_time: bool,
    pub(crate) blocks: Vec<Block>,
    /// The queue of free blocks. The first block is reused next.
    pub(crate) queue: Vec<u32>,
    /// For each key in the index, the blocks that have it.
    entries: BTreeMap<Vec<u8>, (Key, Entry)>,
    /// Number of blocks in the queue that do not count as free, because a caller withholds them.
    withheld: usize,
    pub(crate) removals: u64,
    chained: Vec<u32>,
    /// Number of contents that blocks have got so far.
    contents: u64,
    now: Option<f64>,
    /// The keys that the latest call removed from the index.
    pub(crate) removed: Vec<Removed>,
    /// For each block that the latest call cached, whether the index did not contain its key before.
    pub(crate) stored: Vec<Option<bool>>,
}

fn ids(blocks: &[u32]) -> Value {
    Value::List(blocks.iter().map(|&block| Value::Number(block.into())).collect())
}

fn keys(removed: &[Removed]) -> Value {
    let one = |one: &Removed| {
        Value::List(vec![Value::Bytes(one.key.as_bytes().to_vec()), Value::Flag(one.last_copy)])
    };
    Value::List(removed.iter().map(one).collect())
}

fn known<T>(outcome: Outcome<T>, value: impl FnOnce(T) -> Value) -> Expected {
    outcome.map_or_else(Expected::Refused, |answer| Expected::Is(value(answer)))
}

fn done(outcome: Outcome<()>) -> Expected {
    known(outcome, |()| Value::Nothing)
}

impl Model {
    /// Creates the model of a new pool with these settings.
    #[must_use]
    pub fn new(setting: &Setting, keeps_time: bool) -> Self {
        Self {
            setting: setting.clone(),
            keeps_time,
            blocks: vec![Block::default(); setting.num_blocks],
            queue: (1..setting.num_blocks as u32).collect(),
            entries: BTreeMap::new(),
            withheld: setting.withheld(),
            removals: 0,
            chained: Vec::new(),
            contents: 0,
            now: None,
            removed: Vec::new(),
            stored: Vec::new(),
        }
    }

    /// Returns the number of blocks that are counted as free.
    #[must_use]
    pub fn num_free(&self) -> usize {
        self.queue.len().saturating_sub(self.withheld)
    }

    /// Returns the blocks that have the key `key`.
    #[must_use]
    pub fn entry(&self, key: &Key) -> &Entry {
        static NOWHERE: Entry = Entry { copies: Vec::new(), was_shared: false };
        self.entries.get(key.as_bytes()).map_or(&NOWHERE, |(_, entry)| entry)
    }

    /// Iterates over the keys in the index.
    pub fn leading(&self) -> impl Iterator<Item = &Key> {
        self.entries.values().map(|(key, _)| key)
    }

    /// Returns the block that a lookup of a key finds.
    #[must_use]
    pub fn find(&self, key: &Key) -> Option<u32> {
        self.entries.get(key.as_bytes())?.1.copies.first().copied()
    }

    /// Returns each block as often as it has references, in the order of block ids.
    #[must_use]
    pub fn held(&self) -> Vec<u32> {
        let references = |(id, block): (usize, &Block)| vec![id as u32; block.refs.max(0) as usize];
        self.blocks.iter().enumerate().flat_map(references).collect()
    }

    /// Returns the blocks, without the null block, for which `holds` is true.
    pub(crate) fn blocks_that(&self, holds: impl Fn(u32, &Block) -> bool) -> Vec<u32> {
        let ids = 1..self.blocks.len() as u32;
        ids.filter(|&id| holds(id, &self.blocks[id as usize])).collect()
    }

    /// Returns whether the eviction policy of the pool uses the time.
    #[must_use]
    pub const fn keeps_time(&self) -> bool {
        self.keeps_time
    }

    /// Returns whether each block of a group depends on the block before it.
    #[must_use]
    pub fn is_chained(&self, group: u32) -> bool {
        self.chained.contains(&group)
    }

    /// Returns whether these invariants hold, which a caller can break by writing data directly: a
    /// block is in the queue exactly if it has no references; the index maps a key to a block exactly
    /// if the block has the key; no block that was put at the front of the queue has a hash.
    #[must_use]
    pub fn is_consistent(&self) -> bool {
        let mut leads =
            self.entries.values().flat_map(|(key, entry)| entry.copies.iter().map(move |copy| (key, copy)));
        let carries = |block: &Block, key: &Key| {
            block.hash.is_some_and(|(hash, _)| hash == *key) || block.further.contains(key)
        };
        let mut blocks = (0..).zip(&self.blocks);
        blocks.all(|(id, block)| {
            let own = block.hash.iter().map(|(hash, _)| hash).chain(&block.further);
            let is_found = |key: &Key| self.entry(key).copies.contains(&id);
            (id == 0 || (block.refs > 0) != self.queue.contains(&id))
                && !block.at_front
                && own.into_iter().all(is_found)
        }) && leads.all(|(key, &id)| carries(&self.blocks[id as usize], key))
    }

    /// Returns pairs of free blocks in which a hit on the first block needs the second.
    pub(crate) fn free_children(&self) -> Vec<(u32, u32)> {
        let parent = |&id: &u32| {
            let (parent, nth) = self.blocks[id as usize].content?.parent?;
            let is_there = self.blocks[parent as usize].content.is_some_and(|content| content.nth == nth);
            (is_there && self.queue.contains(&parent)).then_some((id, parent))
        };
        self.queue.iter().filter_map(parent).collect()
    }

    /// Returns for each block of the queue, in order, whether it has a hash. Leaves out blocks that
    /// were put at the back of the queue without a hash.
    pub(crate) fn cached_in_order(&self) -> Vec<bool> {
        let placed = self.queue.iter().map(|&id| &self.blocks[id as usize]).filter(|block| !block.at_back);
        placed.map(|block| block.hash.is_some()).collect()
    }

    /// Copies the order of the queue from the pool under test, because the model does not know the
    /// order of its policy.
    pub(crate) fn follow(&mut self, order: Vec<u32>) {
        self.queue = order;
    }

    /// Applies a call to the model. Returns the answer that the pool must give.
    pub(crate) fn expected(&mut self, call: &C) -> Expected {
        self.removed.clear();
        self.stored.clear();
        match call {
            C::Allocate { blocks } => known(self.allocate(*blocks), |taken| ids(&taken)),
            C::Claim { blocks } => done(self.check_all(blocks).map(|()| self.take_over(blocks))),
            C::Touch { blocks } => done(self.touch(blocks)),
            C::Free { blocks } => done(self.free(blocks)),
            C::Unpin { blocks } => done(self.unpin(blocks)),
            C::InsertHash { key, block, num_tokens, depth, parent } => {
                let before = parent.as_ref().and_then(|parent| self.find(parent)).filter(|_| *depth > 0);
                Expected::Is(Value::Flag(self.insert_hash(*key, *block, *num_tokens, before)))
            }
            C::CacheFull { start, blocks, keys, block_size } => {
                let tokens_of = |at: usize| ((start.first + at + 1) * block_size) as u32;
                done(self.cache_full(start.before.filter(|_| start.first > 0), blocks, keys, tokens_of))
            }
            C::InsertInIndex { key, block } => done(self.check(*block).map(|()| self.lead_to(*key, *block))),
            C::RemoveFromIndex { key, block } => {
                Expected::Is(Value::Flag(self.remove_from_index(key, *block).is_some()))
            }
            C::ClearIndex {} => {
                self.clear_index();
                Expected::Is(Value::Nothing)
            }
            C::RemoveHashes { block } => {
                self.remove_hashes(*block);
                Expected::Is(keys(&self.removed))
            }
            C::MoveHashes { from, to } => done(self.move_hashes(*from, *to)),
            C::Evict { block, reuse_first } => {
                let evicted = self.evict(*block, *reuse_first);
                known(evicted, |()| keys(&self.removed))
            }
            C::Reset {} => Expected::Is(Value::Flag(self.reset())),
            C::SetRefCount { block, count } => {
                if let Some(block) = self.blocks.get_mut(*block as usize) {
                    block.refs = *count;
                }
                Expected::Is(Value::Nothing)
            }
            C::SetHash { block, key, num_tokens } => {
                self.set_hash(*block, Some((*key, *num_tokens)));
                Expected::Is(Value::Nothing)
            }
            C::ResetHash { block } => {
                self.set_hash(*block, None);
                Expected::Is(Value::Nothing)
            }
            C::ChainGroup { group } => {
                self.chained.push(*group);
                Expected::Is(Value::Nothing)
            }
            C::QueuePop { blocks } => {
                let taken = self.leave_queue(*blocks);
                Expected::Is(ids(&taken))
            }
            C::QueueRemove { block } => Expected::Is(Value::Flag(self.remove_from_queue(*block))),
            C::QueuePush { blocks, front } => {
                self.push_to_queue(blocks, *front);
                Expected::Is(Value::Nothing)
            }
            C::Retain { blocks, retention } => self.retain(blocks, retention.retention()),
            C::AssignTenant { blocks, .. } => match self.check_all(blocks) {
                Ok(()) if !self.setting.retention => Expected::RefusedByCore,
                checked => done(checked),
            },
            C::AdvanceTime { now } => {
                let fine = self.keeps_time && now.is_finite() && self.now.is_none_or(|before| *now >= before);
                self.now = if fine { Some(*now) } else { self.now };
                if fine { Expected::Done } else { Expected::RefusedByCore }
            }
            C::Signal { blocks, .. } => done(self.check_all(blocks)),
        }
    }

    fn check(&self, block: u32) -> Outcome<()> {
        let last = self.blocks.len() as u32 - 1;
        if block <= last { Ok(()) } else { Err(VllmError::UnknownBlock { block, last }) }
    }

    fn check_all(&self, blocks: &[u32]) -> Outcome<()> {
        blocks.iter().try_for_each(|&block| self.check(block))
    }

    fn leave_queue(&mut self, n: usize) -> Vec<u32> {
        let taken: Vec<u32> = self.queue.drain(..n.min(self.queue.len())).collect();
        taken.iter().for_each(|&block| self.left(block));
        taken
    }

    fn left(&mut self, block: u32) {
        let block = &mut self.blocks[block as usize];
        (block.at_back, block.at_front) = (false, false);
    }

    fn allocate(&mut self, n: usize) -> Outcome<Vec<u32>> {
        if n > self.num_free() {
            return Err(VllmError::OutOfBlocks { wanted: n, free: self.num_free() });
        }
        let taken = self.leave_queue(n);
        self.take_over(&taken);
        Ok(taken)
    }

    /// Allocates blocks that were in the queue: removes their keys, and sets their reference counts to
    /// 1.
    fn take_over(&mut self, blocks: &[u32]) {
        for &block in blocks {
            if self.setting.caching {
                self.remove_hashes(block);
            }
            self.blocks[block as usize].refs = 1;
        }
    }

    fn touch(&mut self, blocks: &[u32]) -> Outcome<()> {
        self.check_all(blocks)?;
        for &block in blocks.iter().filter(|&&block| block != 0) {
            if self.blocks[block as usize].refs == 0 {
                self.remove_from_queue(block);
            }
            self.blocks[block as usize].refs += 1;
        }
        Ok(())
    }

    /// Removes references. Returns the blocks that have no references afterwards and are not in the
    /// queue yet.
    fn drop_references(&mut self, blocks: &[u32]) -> Outcome<Vec<u32>> {
        let mut refs: Vec<i32> = self.blocks.iter().map(|block| block.refs).collect();
        let mut free = Vec::new();
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

    /// Puts blocks without a hash at the front of the queue, and blocks with a hash at the back. Both
    /// groups keep their order.
    fn free(&mut self, blocks: &[u32]) -> Outcome<()> {
        let blocks: Vec<u32> = blocks.iter().copied().filter(|&block| block != 0).collect();
        let free = self.drop_references(&blocks)?;
        let is_kept = |block: &u32| self.setting.caching && self.blocks[*block as usize].hash.is_some();
        let (kept, reused): (Vec<u32>, Vec<u32>) = free.into_iter().partition(is_kept);
        self.queue.splice(0..0, reused);
        self.queue.extend(kept);
        Ok(())
    }

    fn unpin(&mut self, blocks: &[u32]) -> Outcome<()> {
        let free = self.drop_references(blocks)?;
        free.iter().for_each(|&block| self.queued(block, false));
        self.queue.extend(free);
        Ok(())
    }

    /// Records that a block has come to the front or the back of the queue, with or without a hash.
    fn queued(&mut self, block: u32, front: bool) {
        let block = &mut self.blocks[block as usize];
        block.at_front = front && block.hash.is_some();
        block.at_back = !front && block.hash.is_none();
    }

    fn cache_full(
        &mut self,
        before: Option<u32>,
        blocks: &[u32],
        keys: &[Option<Key>],
        tokens_of: impl Fn(usize) -> u32,
    ) -> Outcome<()> {
        let key_of = |at: usize| keys.get(at).copied().flatten();
        for (at, &block) in blocks.iter().enumerate() {
            self.check(block)?;
            let (hash, wanted) = (self.blocks[block as usize].hash, tokens_of(at));
            let cached = hash.filter(|_| key_of(at).is_some()).map(|(_, tokens)| tokens);
            // If the number of tokens of a content is unknown, it may be large enough, so the block
            // counts as cached.
            if let Some(cached) = cached.filter(|cached| cached.is_none_or(|cached| cached >= wanted)) {
                return Err(VllmError::AlreadyCached { block, cached: cached.unwrap_or(0), wanted });
            }
        }
        for (at, &block) in blocks.iter().enumerate() {
            let stored = key_of(at).map(|key| {
                self.remove_hashes(block);
                let before = if at == 0 { before } else { Some(blocks[at - 1]) };
                self.insert_hash(key, block, Some(tokens_of(at)), before)
            });
            self.stored.push(stored);
        }
        Ok(())
    }

    /// Gives the block a key. Returns whether the key was unused.
    fn insert_hash(&mut self, key: Key, block: u32, tokens: Option<u32>, before: Option<u32>) -> bool {
        let Some(state) = self.blocks.get(block as usize) else { return false };
        let copies = &self.entry(&key).copies;
        let is_new = copies.is_empty();
        if copies.contains(&block) || state.hash.is_some_and(|(hash, _)| hash == key) {
            return false;
        }
        if state.hash.is_none() {
            self.begin(block, (key, tokens), before);
        } else if !state.further.contains(&key) {
            self.blocks[block as usize].further.push(key);
        }
        self.lead_to(key, block);
        is_new
    }

    /// Gives a hash to a block that had none, so a new content begins. The content depends on that of
    /// the previous block, unless the block is the first of its table.
    fn begin(&mut self, block: u32, (key, tokens): (Key, Option<u32>), before: Option<u32>) {
        let before = before.filter(|_| self.is_chained(key.group()));
        let parent =
            before.and_then(|id| self.blocks.get(id as usize)?.content.map(|content| (id, content.nth)));
        self.contents += 1;
        let state = &mut self.blocks[block as usize];
        state.hash = Some((key, tokens));
        state.content = Some(Content { nth: self.contents, parent });
        (state.at_back, state.at_front) = (false, false);
    }

    fn lead_to(&mut self, key: Key, block: u32) {
        let (_, entry) =
            self.entries.entry(key.as_bytes().to_vec()).or_insert_with(|| (key, Entry::default()));
        if !entry.copies.contains(&block) {
            entry.was_shared |= !entry.copies.is_empty();
            entry.copies.push(block);
        }
    }

    /// Removes a block from the blocks of a key. Returns whether no block has the key afterwards, or
    /// `None` if the block did not have the key.
    fn remove_from_index(&mut self, key: &Key, block: u32) -> Option<bool> {
        let (_, entry) = self.entries.get_mut(key.as_bytes())?;
        let at = entry.copies.iter().position(|&copy| copy == block)?;
        entry.copies.remove(at);
        let is_last = entry.copies.is_empty();
        if is_last {
            self.entries.remove(key.as_bytes());
        }
        self.removals += 1;
        Some(is_last)
    }

    fn clear_index(&mut self) {
        self.entries.clear();
        self.removals += 1;
    }

    /// Removes the hash of a block, and then its additional keys. If the block has no hash, its
    /// additional keys stay.
    fn remove_hashes(&mut self, block: u32) {
        let Some(state) = self.blocks.get_mut(block as usize) else { return };
        let Some((hash, _)) = state.hash.take() else { return };
        let further = std::mem::take(&mut state.further);
        (state.content, state.at_front) = (None, false);
        for key in std::iter::once(hash).chain(further) {
            if let Some(last_copy) = self.remove_from_index(&key, block) {
                self.removed.push(Removed { block, key, last_copy });
            }
        }
    }

    fn move_hashes(&mut self, from: u32, to: u32) -> Outcome<()> {
        self.check_all(&[from, to])?;
        let tokens = self.blocks[from as usize].hash.and_then(|(_, tokens)| tokens);
        if let Some((_, cached)) = self.blocks[to as usize].hash {
            let (cached, wanted) = (cached.unwrap_or(0), tokens.unwrap_or(0));
            return Err(VllmError::AlreadyCached { block: to, cached, wanted });
        }
        self.remove_hashes(from);
        for Removed { key, .. } in std::mem::take(&mut self.removed) {
            self.insert_hash(key, to, tokens, None);
        }
        Ok(())
    }

    fn evict(&mut self, block: u32, reuse_first: bool) -> Outcome<()> {
        self.check(block)?;
        self.remove_hashes(block);
        let queued = self.queue.iter().position(|&queued| queued == block);
        if let Some(at) = queued
            && reuse_first
            && !self.removed.is_empty()
            && self.blocks[block as usize].refs == 0
        {
            self.queue[..=at].rotate_right(1);
        }
        Ok(())
    }

    fn reset(&mut self) -> bool {
        if self.num_free() + 1 != self.blocks.len() {
            return false;
        }
        for block in &mut self.blocks {
            *block = Block { refs: block.refs, ..Block::default() };
        }
        self.clear_index();
        true
    }

    fn set_hash(&mut self, block: u32, hash: Option<(Key, Option<u32>)>) {
        let Some(state) = self.blocks.get_mut(block as usize) else { return };
        match hash {
            Some(hash) => self.begin(block, hash, None),
            None => (state.hash, state.content, state.at_front) = (None, None, false),
        }
    }

    fn remove_from_queue(&mut self, block: u32) -> bool {
        let at = self.queue.iter().position(|&queued| queued == block);
        if let Some(at) = at {
            self.queue.remove(at);
            self.left(block);
        }
        at.is_some()
    }

    fn push_to_queue(&mut self, blocks: &[u32], front: bool) {
        let mut pushed = Vec::new();
        for &block in blocks {
            let is_queued = self.queue.contains(&block) || pushed.contains(&block);
            if block != 0 && self.check(block).is_ok() && !is_queued {
                pushed.push(block);
                self.queued(block, front);
            }
        }
        let at = if front { 0 } else { self.queue.len() };
        self.queue.splice(at..at, pushed);
    }

    fn retain(&mut self, blocks: &[u32], hint: Retention) -> Expected {
        if let Err(error) = self.check_all(blocks) {
            return Expected::Refused(error);
        }
        if !self.setting.retention {
            return Expected::RefusedByCore;
        }
        let named: Vec<u32> = blocks.iter().copied().filter(|&block| block != 0).collect();
        let hashed = named.iter().filter(|&&block| self.blocks[block as usize].hash.is_some()).count() as u64;
        let may_refuse = hint.check().is_err() || hint.ttl.is_some() && self.now.is_none();
        Expected::Hint { blocks: named.len() as u64, hashed, may_refuse }
    }
}

/// Records the blocks that callers hold after a call that succeeded.
pub(crate) fn after(world: &mut VllmWorld, call: &C, answer: &Answer) {
    match call {
        C::Allocate { .. } => world.allocated(answer.blocks.iter().map(|block| block.get()).collect()),
        C::Touch { blocks } => world.touched(blocks.iter().copied().filter(|&block| block != 0).collect()),
        C::Free { blocks } | C::Unpin { blocks } => world.let_go(blocks),
        C::CacheFull { start, blocks, .. } => world.cached(start.first, blocks),
        C::AdvanceTime { now } => world.now = *now,
        C::Claim { .. }
        | C::InsertHash { .. }
        | C::InsertInIndex { .. }
        | C::RemoveFromIndex { .. }
        | C::ClearIndex {}
        | C::RemoveHashes { .. }
        | C::MoveHashes { .. }
        | C::Evict { .. }
        | C::Reset {}
        | C::SetRefCount { .. }
        | C::SetHash { .. }
        | C::ResetHash { .. }
        | C::ChainGroup { .. }
        | C::QueuePop { .. }
        | C::QueueRemove { .. }
        | C::QueuePush { .. }
        | C::Retain { .. }
        | C::AssignTenant { .. }
        | C::Signal { .. } => {}
    }
}

/// Makes a call with the method that also returns the removed and the new keys. Returns `None` if the
/// settings do not use this method.
pub(crate) fn watched(world: &mut VllmWorld, call: &C) -> Option<Result<Answer, Failure>> {
    let (mut removed, mut stored, mut out) = (Vec::new(), Vec::new(), vec![u32::MAX]);
    let outcome = world.subject.unrecorded(|pool| match call {
        C::Allocate { blocks } => Some(pool.allocate(*blocks, &mut out, Some(&mut removed))),
        C::Claim { blocks } => Some(pool.claim(blocks, Some(&mut removed))),
        C::CacheFull { start, blocks, keys, block_size } => {
            let key_of = |at: usize| keys.get(at).copied().flatten();
            let start = (*start).into();
            Some(pool.cache_full(start, blocks, key_of, *block_size, &mut removed, Some(&mut stored)))
        }
        C::RemoveHashes { block } => {
            removed = pool.remove_hashes(*block);
            Some(Ok(()))
        }
        C::Evict { block, reuse_first } => Some(pool.evict(*block, *reuse_first).map(|gone| removed = gone)),
        _ => None,
    })?;
    let handed = out.split_off(1);
    let expected = (&world.model.removed, &world.model.stored, vec![u32::MAX]);
    if (&removed, &stored, out) != expected {
        let what = format!("removed {removed:?}, stored {stored:?}, expected {expected:?}");
        return Some(Err(Failure::new("keys that a call reports", what)));
    }
    let value = match (&outcome, call) {
        (Err(error), _) => Value::Text(error.to_string()),
        (Ok(()), C::Allocate { .. }) => ids(&handed),
        (Ok(()), C::RemoveHashes { .. } | C::Evict { .. }) => keys(&removed),
        (Ok(()), _) => Value::Nothing,
    };
    let blocks = handed.into_iter().map(kvpool::BlockId::new).collect();
    Some(Ok(Answer { refused: outcome.is_err(), blocks, value, ..Answer::default() }))
}
