//! The answer of each call of vLLM's pool, and the blocks that its callers hold after it. The model has one
//! list for the queue, a record per block, and an entry per key. A call that is refused changes
//! nothing.

use std::collections::BTreeMap;

use kvpool::retention::Retention;
use kvpool_journal::{Answer, Value, VllmCall as C};
use kvpool_vllm::{Key, Removed, VllmError};

use crate::Failure;
use crate::world::vllm::{Setting, VllmWorld};

type Outcome<T> = Result<T, VllmError>;

/// What an answer must be.
#[derive(Clone, Debug, PartialEq)]
pub enum Expected {
    /// The answer.
    Is(Value),
    /// The call is refused with this error.
    Refused(VllmError),
    /// The call is refused. The core gives the reason.
    RefusedByCore,
    /// A hint: it is about this number of blocks; none of them takes it if none has a hash.
    Hint {
        /// Blocks, the null block left out.
        blocks: u64,
        /// Blocks that have a hash.
        hashed: u64,
        /// Whether the call may also be refused.
        may_refuse: bool,
    },
    /// The call succeeds. Its answer depends on hints.
    Done,
}

/// A content of a block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Content {
    /// Its number among all contents that there ever were.
    nth: u64,
    /// The block before it, and the number of that block's content then.
    parent: Option<(u32, u64)>,
}

/// A block.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Block {
    /// References.
    pub refs: i32,
    /// Its hash, with the number of tokens.
    pub hash: Option<(Key, Option<u32>)>,
    /// Further keys.
    pub further: Vec<Key>,
    content: Option<Content>,
    /// Whether it came to the back of the queue without a hash.
    at_back: bool,
    /// Whether somebody put it at the front of the queue with a hash.
    at_front: bool,
}

/// What a key leads to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Entry {
    /// Blocks, the oldest first.
    pub copies: Vec<u32>,
    /// Whether there were two blocks at once since there was none.
    pub was_shared: bool,
}

/// The model of a pool.
#[derive(Clone, Debug)]
pub struct Model {
    setting: Setting,
    keeps_time: bool,
    pub(crate) blocks: Vec<Block>,
    /// The free blocks, in the order of reuse.
    pub(crate) queue: Vec<u32>,
    /// The keys that lead somewhere, by their bytes.
    entries: BTreeMap<Vec<u8>, (Key, Entry)>,
    /// Blocks of the queue that do not count as free.
    withheld: usize,
    pub(crate) removals: u64,
    chained: Vec<u32>,
    /// The number of contents so far.
    contents: u64,
    now: Option<f64>,
    /// What the latest call removed.
    pub(crate) removed: Vec<Removed>,
    /// Of each block that the latest call cached, whether its key was new.
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
    /// The model of a pool that was just made.
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

    /// Blocks that count as free.
    #[must_use]
    pub fn num_free(&self) -> usize {
        self.queue.len().saturating_sub(self.withheld)
    }

    /// The blocks that a key leads to.
    #[must_use]
    pub fn entry(&self, key: &Key) -> &Entry {
        static NOWHERE: Entry = Entry { copies: Vec::new(), was_shared: false };
        self.entries.get(key.as_bytes()).map_or(&NOWHERE, |(_, entry)| entry)
    }

    /// The keys that lead somewhere.
    pub fn leading(&self) -> impl Iterator<Item = &Key> {
        self.entries.values().map(|(key, _)| key)
    }

    /// The block that a lookup finds.
    #[must_use]
    pub fn find(&self, key: &Key) -> Option<u32> {
        self.entries.get(key.as_bytes())?.1.copies.first().copied()
    }

    /// Every reference, in the order of the blocks.
    #[must_use]
    pub fn held(&self) -> Vec<u32> {
        let references = |(id, block): (usize, &Block)| vec![id as u32; block.refs.max(0) as usize];
        self.blocks.iter().enumerate().flat_map(references).collect()
    }

    /// The blocks, but for the null block, of which something holds.
    pub(crate) fn blocks_that(&self, holds: impl Fn(u32, &Block) -> bool) -> Vec<u32> {
        let ids = 1..self.blocks.len() as u32;
        ids.filter(|&id| holds(id, &self.blocks[id as usize])).collect()
    }

    /// Whether a time can pass.
    #[must_use]
    pub const fn keeps_time(&self) -> bool {
        self.keeps_time
    }

    /// Whether blocks of a group depend on those before them.
    #[must_use]
    pub fn is_chained(&self, group: u32) -> bool {
        self.chained.contains(&group)
    }

    /// Whether no write by hand has broken an invariant: a block is in the queue exactly if it has
    /// no references, a key leads to a block exactly if the block carries it, and no block is at
    /// the front with a hash.
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

    /// The free blocks that depend on another free block, with that one.
    pub(crate) fn free_children(&self) -> Vec<(u32, u32)> {
        let parent = |&id: &u32| {
            let (parent, nth) = self.blocks[id as usize].content?.parent?;
            let is_there = self.blocks[parent as usize].content.is_some_and(|content| content.nth == nth);
            (is_there && self.queue.contains(&parent)).then_some((id, parent))
        };
        self.queue.iter().filter_map(parent).collect()
    }

    /// Whether each block of the queue is cached, in its order. Blocks that came to the back
    /// without a hash are left out.
    pub(crate) fn cached_in_order(&self) -> Vec<bool> {
        let placed = self.queue.iter().map(|&id| &self.blocks[id as usize]).filter(|block| !block.at_back);
        placed.map(|block| block.hash.is_some()).collect()
    }

    /// Takes the order of a pool whose policy chooses.
    pub(crate) fn follow(&mut self, order: Vec<u32>) {
        self.queue = order;
    }

    /// Changes the model as a call changes the pool; returns what the pool must answer.
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

    /// The next blocks of the queue, which are in it no longer.
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

    /// Blocks that are out of the queue lose their keys, and have one reference.
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

    /// Drops references. Returns the blocks that have none then, and are not in the queue already.
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

    /// Without a hash: to the front. With one: to the back. Both keep their order.
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

    /// A block has come to the front or the back of the queue, hash or not.
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
            // A number of tokens that is unknown may be as large.
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

    /// Whether the key led nowhere, and is the block's now.
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

    /// A block without a hash has one from now on: a content begins. It depends on the content of
    /// the block before it, if it is not the first block of its table.
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

    /// Whether the key leads nowhere now; `None` if it did not lead to the block.
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

    /// Takes the hash of a block away first, and then its further keys. A block without a hash keeps them.
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

/// Notes what callers hold after a call that succeeded.
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

/// Runs a call whose callers ask which keys it removed, and which were new. `None` if they cannot ask.
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
