//! The whole pool against a model that works as vLLM's does: one list for the queue, one list of keys with their
//! blocks in order, a plain record per block. Random operations, valid and not; after each, results, errors, queue
//! order, every key's blocks, every block's keys and all invariants, the core's included, are compared. With another policy than `lru`, everything
//! but the order: the blocks that the pool takes must be free in the model, and no cached one before those without a content.
//!
//! `KVPOOL_MODEL_OPERATIONS` sets how many operations run in all (default 100,000).
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test stops at the first error")]

use kvpool::EvictionPolicy;
use kvpool_vllm::{Key, Pool, Removed, Start, VllmError};
use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence, TestRunner};

const BLOCK_SIZE: usize = 4;
/// Keys that the operations draw from: few, so that blocks share them.
const KEYS: u8 = 6;
/// The same, with keys that the core has no name for.
const ALL_KEYS: u8 = 11;

/// The keys differ in their group alone, or in their digest alone; beyond [`KEYS`] in the length of the digest, in the high bits of
/// the group, or in the length of the whole key.
fn key(nth: u8) -> Key {
    match nth {
        6 => Key::new(&[0; 16], 0),
        7 => Key::new(&[0; 32], 1 << 16),
        8 => Key::new(&[0; 32], u32::MAX),
        9 => Key::new(&[0; 35], 0),
        10 => Key::from_bytes(&[0; 3]),
        _ => Key::new(&[nth / 2; 32], u32::from(nth % 2)),
    }
    .unwrap()
}

#[derive(Clone, Debug)]
enum Operation {
    Allocate {
        n: usize,
        observed: bool,
    },
    Touch(Vec<u32>),
    Free(Vec<u32>),
    /// Frees what is held, up to so many references from so far in.
    FreeHeld {
        from: usize,
        n: usize,
    },
    Unpin(Vec<u32>),
    UnpinHeld {
        from: usize,
        n: usize,
    },
    InsertHash {
        key: u8,
        block: u32,
        num_tokens: Option<u32>,
    },
    CacheFull {
        first: usize,
        blocks: Vec<u32>,
        keys: Vec<Option<u8>>,
        observed: bool,
    },
    /// Caches held blocks that are not cached, as a request does.
    CacheHeld {
        first: usize,
        keys: Vec<u8>,
    },
    Evict {
        block: u32,
        reuse_first: bool,
    },
    MoveHashes {
        from: u32,
        to: u32,
    },
    RemoveHashes(u32),
    Reset,
    Peek(usize),
    ByHand(ByHand),
}

/// What vLLM and its tests do to the parts themselves. The invariants may be gone afterwards; the model still holds.
#[derive(Clone, Debug)]
enum ByHand {
    SetHash {
        key: u8,
        block: u32,
        num_tokens: Option<u32>,
    },
    ResetHash(u32),
    IndexInsert {
        key: u8,
        block: u32,
    },
    IndexRemove {
        key: u8,
        block: u32,
    },
    ClearIndex,
    SetRefCount {
        block: u32,
        count: i32,
    },
    /// Takes blocks out; the count follows, or does not.
    QueuePop(usize, bool),
    QueueRemove(u32, bool),
    /// Gives blocks a reference, wherever they are.
    Claim(Vec<u32>),
    /// Puts blocks into the queue that are not in it.
    QueuePush {
        blocks: Vec<u32>,
        front: bool,
        counted: bool,
    },
    /// Writes the count of free blocks.
    SetNumFree(usize),
}

fn operation(by_hand: bool) -> BoxedStrategy<Operation> {
    let keys =
        || if by_hand { prop_oneof![4 => 0..KEYS, 1 => 0..ALL_KEYS].boxed() } else { (0..KEYS).boxed() };
    // Some ids are the null block, some are of no block.
    let id = || 0u32..10;
    let ids = || prop::collection::vec(0u32..10, 0..4);
    let tokens = || prop::option::weighted(0.8, 1u32..20);
    let ordinary = prop_oneof![
        8 => (0usize..5, any::<bool>()).prop_map(|(n, observed)| Operation::Allocate { n, observed }),
        3 => ids().prop_map(Operation::Touch),
        2 => ids().prop_map(Operation::Free),
        8 => (0usize..12, 1usize..5).prop_map(|(from, n)| Operation::FreeHeld { from, n }),
        1 => ids().prop_map(Operation::Unpin),
        2 => (0usize..12, 1usize..3).prop_map(|(from, n)| Operation::UnpinHeld { from, n }),
        6 => (keys(), 1u32..8, tokens())
            .prop_map(|(key, block, num_tokens)| Operation::InsertHash { key, block, num_tokens }),
        3 => (0usize..3, prop::collection::vec((id(), prop::option::weighted(0.8, keys())), 0..4), any::<bool>())
            .prop_map(|(first, pairs, observed)| {
                let (blocks, keys) = pairs.into_iter().unzip();
                Operation::CacheFull { first, blocks, keys, observed }
            }),
        8 => (0usize..3, prop::collection::vec(keys(), 1..4))
            .prop_map(|(first, keys)| Operation::CacheHeld { first, keys }),
        4 => (id(), any::<bool>()).prop_map(|(block, reuse_first)| Operation::Evict { block, reuse_first }),
        3 => (id(), id()).prop_map(|(from, to)| Operation::MoveHashes { from, to }),
        2 => id().prop_map(Operation::RemoveHashes),
        1 => Just(Operation::Reset),
        1 => (0usize..10).prop_map(Operation::Peek),
    ];
    if !by_hand {
        return ordinary.boxed();
    }
    let block = || 1u32..8;
    let by_hand = prop_oneof![
        3 => (keys(), block(), tokens())
            .prop_map(|(key, block, num_tokens)| ByHand::SetHash { key, block, num_tokens }),
        3 => id().prop_map(ByHand::ResetHash),
        4 => (keys(), block()).prop_map(|(key, block)| ByHand::IndexInsert { key, block }),
        4 => (keys(), id()).prop_map(|(key, block)| ByHand::IndexRemove { key, block }),
        1 => Just(ByHand::ClearIndex),
        2 => (id(), prop_oneof![4 => -1i32..4, 1 => -70..140]).prop_map(|(block, count)| ByHand::SetRefCount { block, count }),
        1 => (0usize..3, any::<bool>()).prop_map(|(n, counted)| ByHand::QueuePop(n, counted)),
        1 => (id(), any::<bool>()).prop_map(|(block, counted)| ByHand::QueueRemove(block, counted)),
        1 => ids().prop_map(ByHand::Claim),
        2 => (ids(), any::<bool>(), any::<bool>())
            .prop_map(|(blocks, front, counted)| ByHand::QueuePush { blocks, front, counted }),
        2 => (0usize..10).prop_map(ByHand::SetNumFree),
    ];
    prop_oneof![4 => ordinary, 1 => by_hand.prop_map(Operation::ByHand)].boxed()
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Block {
    refs: i32,
    hash: Option<(Key, Option<u32>)>,
    further: Vec<Key>,
}

/// The blocks of a key, the oldest first, and whether there ever were two.
type Entry = (Key, Vec<u32>, bool);

/// vLLM's pool, in as few words as possible.
#[derive(Clone, Debug, PartialEq)]
struct Model {
    caching: bool,
    blocks: Vec<Block>,
    queue: Vec<u32>,
    /// By how much vLLM's count of free blocks is off the queue's length, once somebody has written it.
    count_off: isize,
    index: Vec<Entry>,
    /// How often a key was taken from a block.
    removals: u64,
}

type Outcome<T> = Result<T, VllmError>;

impl Model {
    fn new(num_blocks: usize, caching: bool) -> Self {
        Self {
            caching,
            blocks: vec![Block::default(); num_blocks],
            queue: (1..num_blocks as u32).collect(),
            count_off: 0,
            index: Vec::new(),
            removals: 0,
        }
    }

    /// vLLM's counter, which goes below zero where blocks are taken by hand.
    fn num_free(&self) -> usize {
        (self.queue.len() as isize + self.count_off).max(0) as usize
    }

    fn check(&self, block: u32) -> Outcome<()> {
        let last = self.blocks.len() as u32 - 1;
        if block <= last { Ok(()) } else { Err(VllmError::UnknownBlock { block, last }) }
    }

    fn entry(&self, key: &Key) -> Option<&Entry> {
        self.index.iter().find(|entry| entry.0 == *key)
    }

    fn leads_to(&self, key: &Key, block: u32) -> bool {
        self.entry(key).is_some_and(|entry| entry.1.contains(&block))
    }

    fn index_insert(&mut self, key: Key, block: u32) {
        match self.index.iter_mut().find(|entry| entry.0 == key) {
            None => self.index.push((key, vec![block], false)),
            Some(entry) if entry.1.contains(&block) => {}
            Some(entry) => {
                entry.1.push(block);
                entry.2 = true;
            }
        }
    }

    /// Whether it was there, and whether it was the last.
    fn index_remove(&mut self, key: &Key, block: u32) -> Option<bool> {
        if !self.leads_to(key, block) {
            return None;
        }
        let at = self.index.iter().position(|entry| entry.0 == *key).unwrap();
        self.index[at].1.retain(|&copy| copy != block);
        self.removals += 1;
        let last = self.index[at].1.is_empty();
        if last {
            self.index.remove(at);
        }
        Some(last)
    }

    /// Whether the key led nowhere before, if the block did not have it.
    fn insert_hash(&mut self, key: Key, block: u32, num_tokens: Option<u32>) -> bool {
        let is_hash = self.blocks[block as usize].hash.is_some_and(|(hash, _)| hash == key);
        if is_hash || self.leads_to(&key, block) {
            return false;
        }
        let state = &mut self.blocks[block as usize];
        if state.hash.is_none() {
            state.hash = Some((key, num_tokens));
        } else if !state.further.contains(&key) {
            state.further.push(key);
        }
        let is_new = self.entry(&key).is_none();
        self.index_insert(key, block);
        is_new
    }

    fn remove_hashes(&mut self, block: u32) -> Vec<Removed> {
        let Some(state) = self.blocks.get_mut(block as usize) else { return Vec::new() };
        // Without a hash there is nothing to remove.
        let Some((hash, _)) = state.hash.take() else { return Vec::new() };
        let further = std::mem::take(&mut state.further);
        std::iter::once(hash)
            .chain(further)
            .filter_map(|key| {
                self.index_remove(&key, block).map(|last_copy| Removed { block, key, last_copy })
            })
            .collect()
    }

    /// Puts `chosen` first, where the order is not vLLM's.
    fn reorder(&mut self, chosen: &[u32]) {
        for (at, block) in chosen.iter().enumerate() {
            let from = self.queue.iter().position(|queued| queued == block);
            let from = from.unwrap_or_else(|| panic!("block {block} is taken, and not free"));
            assert!(from >= at, "block {block} is taken twice");
            let block = self.queue.remove(from);
            self.queue.insert(at, block);
        }
    }

    fn allocate(&mut self, n: usize) -> Outcome<(Vec<u32>, Vec<Removed>)> {
        if n > self.num_free() {
            return Err(VllmError::OutOfBlocks { wanted: n, free: self.num_free() });
        }
        let taken: Vec<u32> = self.queue.drain(..n).collect();
        let mut removed = Vec::new();
        for &block in &taken {
            if self.caching {
                removed.extend(self.remove_hashes(block));
            }
            self.blocks[block as usize].refs = 1;
        }
        Ok((taken, removed))
    }

    fn touch(&mut self, blocks: &[u32]) -> Outcome<()> {
        for &block in blocks {
            self.check(block)?;
        }
        for &block in blocks.iter().filter(|&&block| block != 0) {
            if self.blocks[block as usize].refs == 0 {
                self.queue.retain(|&queued| queued != block);
            }
            self.blocks[block as usize].refs += 1;
        }
        Ok(())
    }

    /// Drops references one by one; the error of the first that can't be.
    fn drop_references(&mut self, blocks: &[u32]) -> Outcome<Vec<u32>> {
        let mut free = Vec::new();
        for &block in blocks {
            self.check(block)?;
            let refs = &mut self.blocks[block as usize].refs;
            if *refs <= 0 {
                return Err(VllmError::NotHeld { block });
            }
            *refs -= 1;
            if *refs == 0 {
                free.push(block);
            }
        }
        // What somebody has left in the queue stays where it is.
        free.retain(|block| !self.queue.contains(block));
        Ok(free)
    }

    fn free(&mut self, blocks: &[u32]) -> Outcome<()> {
        let held: Vec<u32> = blocks.iter().copied().filter(|&block| block != 0).collect();
        let free = self.drop_references(&held)?;
        let keeps = |block: &u32| self.caching && self.blocks[*block as usize].hash.is_some();
        let (last, first): (Vec<u32>, Vec<u32>) = free.into_iter().partition(keeps);
        self.queue.splice(0..0, first);
        self.queue.extend(last);
        Ok(())
    }

    fn unpin(&mut self, blocks: &[u32]) -> Outcome<()> {
        let null = blocks.iter().position(|&block| block == 0).unwrap_or(blocks.len());
        let free = self.drop_references(&blocks[..null])?;
        if null < blocks.len() {
            return Err(VllmError::NotHeld { block: 0 });
        }
        self.queue.extend(free);
        Ok(())
    }

    fn cache_full(
        &mut self,
        first: usize,
        blocks: &[u32],
        keys: &[Option<Key>],
    ) -> Outcome<(Vec<Removed>, Vec<Option<bool>>)> {
        let tokens_of = |position: usize| ((first + position + 1) * BLOCK_SIZE) as u32;
        for (position, &block) in blocks.iter().enumerate() {
            self.check(block)?;
            let wanted = tokens_of(position);
            match self.blocks[block as usize].hash {
                Some((_, Some(cached))) if keys[position].is_some() && cached >= wanted => {
                    return Err(VllmError::AlreadyCached { block, cached, wanted });
                }
                Some((_, None)) if keys[position].is_some() => {
                    return Err(VllmError::AlreadyCached { block, cached: 0, wanted });
                }
                _ => {}
            }
        }
        let (mut removed, mut stored) = (Vec::new(), Vec::new());
        for (position, &block) in blocks.iter().enumerate() {
            stored.push(keys[position].map(|key| {
                removed.extend(self.remove_hashes(block));
                self.insert_hash(key, block, Some(tokens_of(position)))
            }));
        }
        Ok((removed, stored))
    }

    fn evict(&mut self, block: u32, reuse_first: bool) -> Outcome<Vec<Removed>> {
        self.check(block)?;
        let removed = self.remove_hashes(block);
        let is_free = self.blocks[block as usize].refs == 0;
        if reuse_first && is_free && !removed.is_empty() && self.queue.contains(&block) {
            self.queue.retain(|&queued| queued != block);
            self.queue.insert(0, block);
        }
        Ok(removed)
    }

    fn move_hashes(&mut self, from: u32, to: u32) -> Outcome<()> {
        self.check(from)?;
        self.check(to)?;
        let num_tokens = self.blocks[from as usize].hash.and_then(|(_, num_tokens)| num_tokens);
        if let Some((_, cached)) = self.blocks[to as usize].hash {
            let (cached, wanted) = (cached.unwrap_or(0), num_tokens.unwrap_or(0));
            return Err(VllmError::AlreadyCached { block: to, cached, wanted });
        }
        for removed in self.remove_hashes(from) {
            self.insert_hash(removed.key, to, num_tokens);
        }
        Ok(())
    }

    fn reset(&mut self) -> bool {
        if self.num_free() + 1 != self.blocks.len() {
            return false;
        }
        self.index.clear();
        self.removals += 1;
        for block in &mut self.blocks {
            block.hash = None;
            block.further.clear();
        }
        true
    }

    /// Every held reference, in the order of the blocks.
    fn held(&self) -> Vec<u32> {
        let references =
            |(id, block): (usize, &Block)| std::iter::repeat_n(id as u32, block.refs.max(0) as usize);
        self.blocks.iter().enumerate().flat_map(references).collect()
    }

    fn some_held(&self, from: usize, n: usize) -> Vec<u32> {
        let held = self.held();
        let from = if held.is_empty() { 0 } else { from % held.len() };
        held.into_iter().skip(from).take(n).collect()
    }
}

/// The pool, the model, and whether the invariants must hold.
struct Pair {
    pool: Pool,
    model: Model,
    is_ordered: bool,
    touched_by_hand: bool,
}

impl Pair {
    fn new(num_blocks: usize, caching: bool, policy: EvictionPolicy) -> Self {
        let mut pool = Pool::with_policy(num_blocks, caching, policy).unwrap();
        pool.chain_group(0);
        let is_ordered = policy == kvpool_policies::LRU;
        Self { pool, model: Model::new(num_blocks, caching), is_ordered, touched_by_hand: false }
    }

    fn apply(&mut self, operation: &Operation) {
        let before = self.model.clone();
        if self.run(operation).is_err() {
            // What was refused has changed nothing, in the pool neither.
            self.model = before;
        }
        self.compare(operation);
    }

    fn agree<T: PartialEq + std::fmt::Debug>(got: &Outcome<T>, expected: &Outcome<T>) -> Result<(), ()> {
        assert_eq!(got, expected);
        expected.as_ref().map(|_| ()).map_err(|_| ())
    }

    fn run(&mut self, operation: &Operation) -> Result<(), ()> {
        match operation {
            Operation::Allocate { n, observed } => {
                let (mut out, mut removed) = (vec![99], Vec::new());
                let got = self.pool.allocate(*n, &mut out, observed.then_some(&mut removed));
                assert_eq!(out.remove(0), 99, "what was in the list stays");
                if !self.is_ordered {
                    self.model.reorder(&out);
                }
                let expected = self.model.allocate(*n);
                let told =
                    |(blocks, removed): (Vec<u32>, _)| (blocks, if *observed { removed } else { vec![] });
                let got = got.map(|()| (out, removed));
                Self::agree(&got, &expected.map(told))
            }
            Operation::Touch(blocks) => {
                let got = self.pool.touch(blocks);
                let expected = self.model.touch(blocks);
                Self::agree(&got, &expected)
            }
            Operation::Free(blocks) => self.free(blocks),
            Operation::FreeHeld { from, n } => self.free(&self.model.some_held(*from, *n)),
            Operation::Unpin(blocks) => self.unpin(blocks),
            Operation::UnpinHeld { from, n } => self.unpin(&self.model.some_held(*from, *n)),
            Operation::InsertHash { key: nth, block, num_tokens } => {
                let got = self.pool.insert_hash(key(*nth), *block, *num_tokens);
                let known = (*block as usize) < self.model.blocks.len();
                let expected = known && self.model.insert_hash(key(*nth), *block, *num_tokens);
                Self::agree(&Ok(got), &Ok(expected))
            }
            Operation::CacheFull { first, blocks, keys, observed } => {
                let keys: Vec<Option<Key>> = keys.iter().map(|nth| nth.map(key)).collect();
                self.cache_full(*first, blocks, &keys, *observed)
            }
            Operation::CacheHeld { first, keys } => {
                let mut held = self.model.held();
                held.dedup();
                held.retain(|&block| self.model.blocks[block as usize].hash.is_none());
                held.truncate(keys.len());
                let keys: Vec<Option<Key>> = keys[..held.len()].iter().map(|&nth| Some(key(nth))).collect();
                self.cache_full(*first, &held, &keys, true)
            }
            Operation::Evict { block, reuse_first } => {
                let got = self.pool.evict(*block, *reuse_first);
                let expected = self.model.evict(*block, *reuse_first);
                Self::agree(&got, &expected)
            }
            Operation::MoveHashes { from, to } => {
                let got = self.pool.move_hashes(*from, *to);
                let expected = self.model.move_hashes(*from, *to);
                Self::agree(&got, &expected)
            }
            Operation::RemoveHashes(block) => {
                let got = self.pool.remove_hashes(*block);
                let expected = self.model.remove_hashes(*block);
                Self::agree(&Ok(got), &Ok(expected))
            }
            Operation::Reset => {
                let got = self.pool.reset();
                let expected = self.model.reset();
                Self::agree(&Ok(got), &Ok(expected))
            }
            Operation::Peek(n) => {
                let got = self.pool.peek(*n);
                let model_order = self.model.queue.clone();
                let order = if self.is_ordered { model_order } else { self.pool.order().collect() };
                let expected = order.into_iter().take(*n).collect();
                Self::agree(&Ok(got), &Ok(expected))
            }
            Operation::ByHand(by_hand) => {
                self.touched_by_hand = true;
                self.run_by_hand(by_hand);
                Ok(())
            }
        }
    }

    fn free(&mut self, blocks: &[u32]) -> Result<(), ()> {
        let got = self.pool.free(blocks.iter().copied());
        let expected = self.model.free(blocks);
        Self::agree(&got, &expected)
    }

    fn unpin(&mut self, blocks: &[u32]) -> Result<(), ()> {
        let got = self.pool.unpin(blocks);
        let expected = self.model.unpin(blocks);
        Self::agree(&got, &expected)
    }

    fn cache_full(
        &mut self,
        first: usize,
        blocks: &[u32],
        keys: &[Option<Key>],
        observed: bool,
    ) -> Result<(), ()> {
        let (mut removed, mut stored) = (Vec::new(), Vec::new());
        let told = observed.then_some(&mut stored);
        let got = self.pool.cache_full(Start::at(first), blocks, |i| keys[i], BLOCK_SIZE, &mut removed, told);
        let expected = self.model.cache_full(first, blocks, keys);
        let expected = expected.map(|(removed, stored)| (removed, if observed { stored } else { vec![] }));
        let refused = got.is_err();
        assert!(!refused || (removed.is_empty() && stored.is_empty()), "a refused call tells nothing");
        Self::agree(&got.map(|()| (removed, stored)), &expected)
    }

    fn run_by_hand(&mut self, by_hand: &ByHand) {
        let (pool, model) = (&mut self.pool, &mut self.model);
        match by_hand {
            ByHand::SetHash { key: nth, block, num_tokens } => {
                pool.set_hash(*block, key(*nth), *num_tokens);
                if let Some(state) = model.blocks.get_mut(*block as usize) {
                    state.hash = Some((key(*nth), *num_tokens));
                }
            }
            ByHand::ResetHash(block) => {
                pool.reset_hash(*block);
                if let Some(state) = model.blocks.get_mut(*block as usize) {
                    state.hash = None;
                }
            }
            ByHand::IndexInsert { key: nth, block } => {
                // Its callers look a block up before.
                if (*block as usize) < model.blocks.len() {
                    pool.insert_in_index(key(*nth), *block).unwrap();
                    model.index_insert(key(*nth), *block);
                }
            }
            ByHand::IndexRemove { key: nth, block } => {
                let removed = pool.remove_from_index(&key(*nth), *block);
                assert_eq!(removed, model.index_remove(&key(*nth), *block).is_some());
            }
            ByHand::ClearIndex => {
                pool.clear_index();
                model.index.clear();
                model.removals += 1;
            }
            ByHand::SetRefCount { block, count } => {
                // The queue does not follow, whatever the count says.
                pool.set_ref_count(*block, *count);
                if let Some(state) = model.blocks.get_mut(*block as usize) {
                    state.refs = *count;
                }
            }
            ByHand::QueuePop(n, counted) => {
                let mut taken = Vec::new();
                taken.extend(pool.pop_from_queue(*n));
                if !self.is_ordered {
                    model.reorder(&taken);
                }
                let n = (*n).min(model.queue.len());
                let expected: Vec<u32> = model.queue.drain(..n).collect();
                assert_eq!(taken, expected);
                for block in taken.into_iter().filter(|_| *counted) {
                    // Whoever takes a block out counts its reference, or nobody does.
                    pool.set_ref_count(block, 1);
                    model.blocks[block as usize].refs = 1;
                }
            }
            ByHand::QueueRemove(block, counted) => {
                let removed = pool.remove_from_queue(*block);
                assert_eq!(removed, model.queue.contains(block));
                model.queue.retain(|queued| queued != block);
                if removed && *counted {
                    pool.set_ref_count(*block, 1);
                    model.blocks[*block as usize].refs = 1;
                }
            }
            ByHand::Claim(blocks) => {
                let mut removed = Vec::new();
                let got = pool.claim(blocks, Some(&mut removed)).map(|()| removed);
                let known = blocks.iter().try_for_each(|&block| model.check(block));
                let expected = known.map(|()| {
                    let gone = blocks.iter().filter(|_| model.caching).copied().collect::<Vec<_>>();
                    let gone = gone.into_iter().flat_map(|block| model.remove_hashes(block)).collect();
                    blocks.iter().for_each(|&block| model.blocks[block as usize].refs = 1);
                    gone
                });
                assert_eq!(got, expected);
            }
            ByHand::QueuePush { blocks, front, counted } => {
                let mut absent: Vec<u32> = Vec::new();
                for &block in blocks {
                    let is_block = block != 0 && (block as usize) < model.blocks.len();
                    if is_block && !model.queue.contains(&block) && !absent.contains(&block) {
                        absent.push(block);
                    }
                }
                for &block in absent.iter().filter(|_| *counted) {
                    pool.set_ref_count(block, 0);
                    model.blocks[block as usize].refs = 0;
                }
                if *front {
                    pool.push_to_queue(&absent, true);
                    model.queue.splice(0..0, absent);
                } else {
                    pool.push_to_queue(&absent, false);
                    model.queue.extend(absent);
                }
            }
            ByHand::SetNumFree(count) => {
                let queued = model.queue.len();
                assert_eq!(pool.set_num_free(*count).is_ok(), *count <= queued);
                if *count <= queued {
                    model.count_off = *count as isize - queued as isize;
                }
            }
        }
    }

    fn compare(&self, operation: &Operation) {
        let (pool, model) = (&self.pool, &self.model);
        let mut order: Vec<u32> = pool.order().collect();
        assert_eq!(pool.peek(3), order.iter().copied().take(3).collect::<Vec<_>>());
        let mut queue = model.queue.clone();
        if !self.is_ordered {
            order.sort_unstable();
            queue.sort_unstable();
        }
        assert_eq!(order, queue, "the order after {operation:?}");
        assert_eq!(pool.num_free(), model.num_free(), "free blocks after {operation:?}");
        assert_eq!(pool.num_blocks(), model.blocks.len());
        assert_eq!(pool.removals(), model.removals, "removals after {operation:?}");
        let keys = pool.keys();
        assert_eq!(keys.len(), model.index.len(), "keys after {operation:?}");
        assert_eq!(keys.is_empty(), model.index.is_empty());
        let mut listed: Vec<Vec<u8>> = keys.iter().map(|key| key.as_bytes().to_vec()).collect();
        let mut expected: Vec<Vec<u8>> =
            model.index.iter().map(|entry| entry.0.as_bytes().to_vec()).collect();
        listed.sort();
        expected.sort();
        assert_eq!(listed, expected);
        for nth in 0..ALL_KEYS {
            let key = key(nth);
            let entry = model.entry(&key);
            let copies = entry.map_or(&[][..], |entry| &entry.1);
            assert_eq!(pool.find(&key), copies.first().copied(), "{key:?} after {operation:?}");
            assert_eq!(keys.copies(&key), copies, "{key:?} after {operation:?}");
            assert_eq!(
                keys.was_shared(&key),
                entry.is_some_and(|entry| entry.2),
                "{key:?} after {operation:?}"
            );
            for block in 0..model.blocks.len() as u32 {
                assert_eq!(keys.leads_to(&key, block), copies.contains(&block));
            }
        }
        let mut with_further: Vec<u32> = keys.blocks_with_further_keys().collect();
        with_further.sort_unstable();
        let mut expected = Vec::new();
        for (id, block) in model.blocks.iter().enumerate() {
            let id = id as u32;
            assert_eq!(pool.ref_count(id), block.refs, "references of {id} after {operation:?}");
            let hash = keys.hash_of(id);
            assert_eq!(hash, block.hash, "hash of {id} after {operation:?}");
            assert_eq!(keys.further_keys(id), block.further, "further keys of {id} after {operation:?}");
            if !block.further.is_empty() {
                expected.push(id);
            }
        }
        assert_eq!(with_further, expected);
        let all: Vec<u32> = (0..model.blocks.len() as u32 + 2).collect();
        let free = model.blocks.iter().skip(1).filter(|block| block.refs == 0).count();
        // Ids of no block count as free: nobody holds them.
        assert_eq!(pool.num_evictable(&all), free + 2);
        pool.check_representation().unwrap_or_else(|broken| panic!("after {operation:?}: {broken}"));
        if !self.touched_by_hand {
            pool.check_invariants().unwrap_or_else(|broken| panic!("after {operation:?}: {broken}"));
        }
    }
}

fn run_model(by_hand: bool, share: u32) {
    const STEPS: u32 = 40;
    let operations: u32 =
        std::env::var("KVPOOL_MODEL_OPERATIONS").map_or(100_000, |number| number.parse().unwrap());
    let config = Config {
        cases: (operations / STEPS / share).max(1),
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..Config::default()
    };
    let strategy = (
        1usize..9,
        prop::bool::weighted(0.8),
        prop_oneof![1 => Just(kvpool_policies::LRU), 1 => prop::sample::select(kvpool_policies::ALL)],
        prop::collection::vec(operation(by_hand), 1..2 * STEPS as usize),
    );
    let run = |(num_blocks, caching, policy, operations): (usize, bool, EvictionPolicy, Vec<Operation>)| {
        let mut pair = Pair::new(num_blocks, caching, policy);
        for operation in &operations {
            pair.apply(operation);
        }
        Ok(())
    };
    TestRunner::new(config).run(&strategy, run).unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn the_pool_does_what_the_model_does() {
    run_model(false, 2);
}

#[test]
fn calls_by_hand_do_to_the_pool_what_they_do_to_the_model() {
    run_model(true, 2);
}

// Appendix A of the notes on vLLM, point by point.

fn pool(num_blocks: usize) -> Pool {
    Pool::new(num_blocks, true).unwrap()
}

fn order(pool: &Pool) -> Vec<u32> {
    pool.order().collect()
}

fn allocate(pool: &mut Pool, n: usize) -> Vec<u32> {
    let mut out = Vec::new();
    pool.allocate(n, &mut out, None).unwrap();
    out
}

fn key_of(removed: &[Removed]) -> Vec<(u32, Key, bool)> {
    removed.iter().map(|removed| (removed.block, removed.key, removed.last_copy)).collect()
}

#[test]
fn a1_the_null_block_is_never_queued_and_never_counted() {
    let mut pool = pool(3);
    pool.touch(&[0, 0]).unwrap();
    pool.free([0, 0, 0]).unwrap();
    assert_eq!((pool.ref_count(0), order(&pool)), (0, vec![1, 2]));
    assert_eq!(pool.unpin(&[0]), Err(VllmError::NotHeld { block: 0 }));
    assert_eq!(pool.num_evictable(&[0]), 0);
    pool.check_invariants().unwrap();
}

#[test]
fn a2_the_first_order_is_that_of_the_ids() {
    assert_eq!(order(&pool(5)), [1, 2, 3, 4]);
    let alone = pool(1);
    assert_eq!((alone.num_free(), order(&alone)), (0, vec![]));
    alone.check_invariants().unwrap();
    let error = Pool::new(0, true).unwrap_err();
    assert!(error.to_string().contains("num_gpu_blocks"), "{error}");
}

#[test]
fn a3_an_allocation_that_is_too_large_takes_nothing() {
    let mut pool = pool(4);
    let mut out = vec![7];
    let error = pool.allocate(4, &mut out, None).unwrap_err();
    assert_eq!(error, VllmError::OutOfBlocks { wanted: 4, free: 3 });
    assert!(error.to_string().starts_with("Cannot get 4 free blocks from the pool"));
    assert_eq!((out, order(&pool)), (vec![7], vec![1, 2, 3]));
}

#[test]
fn a3_an_allocation_takes_all_keys_of_a_block_its_hash_first() {
    let mut pool = pool(3);
    allocate(&mut pool, 2);
    pool.insert_hash(key(0), 1, Some(8));
    pool.insert_hash(key(1), 1, Some(4));
    pool.insert_hash(key(0), 2, Some(8));
    pool.free([1]).unwrap();
    let (mut out, mut removed) = (Vec::new(), Vec::new());
    pool.allocate(1, &mut out, Some(&mut removed)).unwrap();
    // Block 2 is left under the first of the keys, nothing under the second.
    assert_eq!(key_of(&removed), [(1, key(0), false), (1, key(1), true)]);
    assert_eq!((pool.find(&key(0)), pool.find(&key(1))), (Some(2), None));
}

#[test]
fn a3_without_caching_an_allocation_leaves_hashes_alone() {
    let mut pool = Pool::new(2, false).unwrap();
    pool.insert_hash(key(0), 1, None);
    let (mut out, mut removed) = (Vec::new(), Vec::new());
    pool.allocate(1, &mut out, Some(&mut removed)).unwrap();
    assert_eq!((removed, pool.find(&key(0))), (vec![], Some(1)));
}

#[test]
fn a4_blocks_without_a_hash_go_to_the_front_as_they_are_given_and_the_others_to_the_back() {
    let mut pool = pool(7);
    allocate(&mut pool, 5);
    pool.insert_hash(key(0), 2, Some(4));
    pool.insert_hash(key(1), 4, Some(4));
    pool.free([5, 4, 3, 2, 1]).unwrap();
    assert_eq!(order(&pool), [5, 3, 1, 6, 4, 2]);
}

#[test]
fn a4_without_caching_everything_is_reused_at_once() {
    let mut pool = Pool::new(4, false).unwrap();
    allocate(&mut pool, 2);
    pool.insert_hash(key(0), 1, Some(4));
    pool.free([2, 1]).unwrap();
    assert_eq!(order(&pool), [2, 1, 3]);
}

#[test]
fn a4_a_block_named_twice_is_queued_once_if_it_has_two_references() {
    let mut pool = pool(3);
    allocate(&mut pool, 1);
    pool.touch(&[1]).unwrap();
    pool.free([1, 1]).unwrap();
    assert_eq!(order(&pool), [1, 2]);
    pool.check_invariants().unwrap();
}

#[test]
fn a_double_free_is_refused_and_frees_nothing() {
    let mut pool = pool(4);
    allocate(&mut pool, 2);
    assert_eq!(pool.free([2, 1, 2]), Err(VllmError::NotHeld { block: 2 }));
    assert_eq!(pool.free([1, 9]), Err(VllmError::UnknownBlock { block: 9, last: 3 }));
    assert_eq!((pool.ref_count(1), pool.ref_count(2), order(&pool)), (1, 1, vec![3]));
}

#[test]
fn a5_a_touch_takes_a_block_from_wherever_it_is_queued() {
    let mut pool = pool(5);
    allocate(&mut pool, 2);
    pool.insert_hash(key(0), 1, Some(4));
    pool.free([2, 1]).unwrap();
    assert_eq!(order(&pool), [2, 3, 4, 1]);
    pool.touch(&[1, 1, 3]).unwrap();
    assert_eq!((pool.ref_count(1), pool.ref_count(3), order(&pool)), (2, 1, vec![2, 4]));
    assert_eq!(pool.touch(&[4, 5]), Err(VllmError::UnknownBlock { block: 5, last: 4 }));
    assert_eq!(pool.ref_count(4), 0, "a refused touch has touched nothing");
    // The hit keeps its hash and returns to the back.
    pool.free([1, 1]).unwrap();
    assert_eq!(order(&pool), [2, 4, 1]);
}

#[test]
fn a6_a_lookup_finds_the_block_that_was_cached_first_and_is_still_there() {
    let mut pool = pool(5);
    allocate(&mut pool, 3);
    assert!(pool.insert_hash(key(0), 3, Some(4)));
    assert!(!pool.insert_hash(key(0), 1, Some(4)));
    assert!(!pool.insert_hash(key(0), 2, Some(4)));
    assert_eq!(pool.keys().copies(&key(0)), [3, 1, 2]);
    assert_eq!(key_of(&pool.remove_hashes(3)), [(3, key(0), false)]);
    assert_eq!(pool.find(&key(0)), Some(1));
    // Cached again, it is the youngest.
    pool.insert_hash(key(0), 3, Some(4));
    assert_eq!(pool.keys().copies(&key(0)), [1, 2, 3]);
}

#[test]
fn a6_a_key_that_a_block_has_is_not_given_again() {
    let mut pool = pool(3);
    allocate(&mut pool, 1);
    pool.insert_hash(key(0), 1, Some(4));
    pool.insert_hash(key(1), 1, Some(2));
    assert!(!pool.insert_hash(key(0), 1, Some(9)));
    assert!(!pool.insert_hash(key(1), 1, Some(9)));
    let (hash, num_tokens) = pool.keys().hash_of(1).unwrap();
    assert_eq!((hash, num_tokens), (key(0), Some(4)));
    assert_eq!(pool.keys().further_keys(1), [key(1)]);
    assert_eq!(pool.keys().len(), 2);
}

#[test]
fn a7_a_full_block_replaces_all_keys_of_fewer_tokens() {
    let mut pool = pool(3);
    allocate(&mut pool, 1);
    pool.insert_hash(key(0), 1, Some(2));
    pool.insert_hash(key(1), 1, Some(3));
    let (mut removed, mut stored) = (Vec::new(), Vec::new());
    pool.cache_full(Start::at(0), &[1], |i| [Some(key(2))][i], 4, &mut removed, Some(&mut stored)).unwrap();
    assert_eq!(key_of(&removed), [(1, key(0), true), (1, key(1), true)]);
    assert_eq!(stored, [Some(true)]);
    assert_eq!(pool.keys().hash_of(1).map(|(_, tokens)| tokens), Some(Some(4)));
    assert_eq!(pool.keys().further_keys(1), []);
}

#[test]
fn a7_a_block_that_is_cached_for_as_many_tokens_is_refused_before_anything_changes() {
    let mut pool = pool(4);
    allocate(&mut pool, 2);
    pool.insert_hash(key(0), 2, Some(8));
    let mut removed = Vec::new();
    let keys = [Some(key(1)), Some(key(2))];
    let got = pool.cache_full(Start::at(0), &[1, 2], |i| keys[i], 4, &mut removed, None);
    assert_eq!(got, Err(VllmError::AlreadyCached { block: 2, cached: 8, wanted: 8 }));
    assert_eq!((pool.keys().hash_of(1), pool.find(&key(1))), (None, None));
    // A block that is left out may be cached for anything.
    pool.cache_full(Start::at(0), &[1, 2], |i| [Some(key(1)), None][i], 4, &mut removed, None).unwrap();
    assert_eq!(pool.find(&key(1)), Some(1));
}

#[test]
fn a8_moved_keys_lead_to_the_other_block_with_their_tokens() {
    let mut pool = pool(4);
    allocate(&mut pool, 3);
    pool.insert_hash(key(0), 1, Some(4));
    pool.insert_hash(key(1), 1, Some(2));
    pool.insert_hash(key(2), 3, Some(6));
    let refused = pool.move_hashes(1, 3);
    assert_eq!(refused, Err(VllmError::AlreadyCached { block: 3, cached: 6, wanted: 4 }));
    assert_eq!(pool.find(&key(0)), Some(1));
    pool.move_hashes(1, 2).unwrap();
    assert_eq!((pool.find(&key(0)), pool.find(&key(1))), (Some(2), Some(2)));
    assert_eq!(pool.keys().hash_of(2), Some((key(0), Some(4))));
    assert_eq!(pool.keys().further_keys(2), [key(1)]);
    assert_eq!(pool.keys().hash_of(1), None);
    assert_eq!(pool.keys().further_keys(1), []);
    pool.check_invariants().unwrap();
}

#[test]
fn a9_an_eviction_by_id_leaves_the_queue_and_the_references_alone() {
    let mut pool = pool(5);
    allocate(&mut pool, 3);
    for block in 1..4 {
        pool.insert_hash(key(block as u8), block, Some(4));
    }
    pool.free([1, 2]).unwrap();
    assert_eq!(order(&pool), [4, 1, 2]);
    assert_eq!(key_of(&pool.evict(2, false).unwrap()), [(2, key(2), true)]);
    assert_eq!(key_of(&pool.evict(3, true).unwrap()), [(3, key(3), true)]);
    assert_eq!((order(&pool), pool.ref_count(3)), (vec![4, 1, 2], 1));
    // kvpool's own way, for a free block: nothing can hit it, so it is reused next.
    assert_eq!(key_of(&pool.evict(1, true).unwrap()), [(1, key(1), true)]);
    assert_eq!(order(&pool), [1, 4, 2]);
    // It carries nothing any more: it stays where it is.
    assert_eq!(pool.evict(2, true).unwrap(), []);
    assert_eq!(order(&pool), [1, 4, 2]);
    assert_eq!(pool.evict(5, false).unwrap_err(), VllmError::UnknownBlock { block: 5, last: 4 });
}

#[test]
fn a10_a_reset_needs_every_block_and_forgets_every_key() {
    let mut pool = pool(4);
    allocate(&mut pool, 2);
    pool.insert_hash(key(0), 1, Some(4));
    pool.insert_hash(key(1), 1, Some(2));
    let before = pool.removals();
    assert!(!pool.reset());
    assert_eq!((pool.find(&key(0)), pool.removals()), (Some(1), before));
    pool.free([2, 1]).unwrap();
    let queued = order(&pool);
    assert!(pool.reset());
    assert_eq!(order(&pool), queued);
    assert!(pool.keys().is_empty());
    assert_eq!((pool.keys().hash_of(1), pool.keys().further_keys(1)), (None, &[][..]));
    assert!(pool.removals() > before, "a lookup's result does not stand");
    // The null block alone is no use.
    assert!(Pool::new(1, true).unwrap().reset());
}

#[test]
fn a11_an_unpinned_block_is_reused_last_hash_or_not() {
    let mut pool = pool(5);
    allocate(&mut pool, 3);
    pool.insert_hash(key(0), 2, Some(4));
    pool.touch(&[3]).unwrap();
    pool.unpin(&[3, 1, 2]).unwrap();
    // Block 3 has another holder.
    assert_eq!((order(&pool), pool.ref_count(3)), (vec![4, 1, 2], 1));
    assert_eq!(pool.unpin(&[3, 3]), Err(VllmError::NotHeld { block: 3 }));
    assert_eq!(pool.unpin(&[3, 9]), Err(VllmError::UnknownBlock { block: 9, last: 4 }));
    assert_eq!(pool.ref_count(3), 1);
}

#[test]
fn a12_what_is_stored_is_told_block_by_block() {
    let mut pool = pool(6);
    allocate(&mut pool, 4);
    pool.insert_hash(key(1), 4, Some(8));
    let (mut removed, mut stored) = (Vec::new(), Vec::new());
    let keys = [Some(key(0)), Some(key(1)), None];
    pool.cache_full(Start::at(2), &[1, 2, 3], |i| keys[i], 4, &mut removed, Some(&mut stored)).unwrap();
    assert_eq!((stored, removed), (vec![Some(true), Some(false), None], vec![]));
    let tokens = |block| pool.keys().hash_of(block).and_then(|(_, tokens)| tokens);
    assert_eq!((tokens(1), tokens(2), tokens(3)), (Some(12), Some(16), None));
}
