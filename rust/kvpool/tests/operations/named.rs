//! Operations of engines that name blocks and contents by themselves, against a model of two lists and a map: free blocks in order,
//! cached ones in order of eviction, and of each name its blocks, the oldest first. After each operation orders, names, references
//! and all invariants are compared, and the digest with one counted from scratch; what is refused has changed nothing.
//!
//! With other policies than LRU everything but the order of eviction. Fences are open now and then: then orders are not compared.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test stops at the first error")]

use kvpool::hash::BlockHash;
use kvpool::{BlockId, BlockPool, Name, PoolConfig, PoolError, Ticket, Verify};
use kvpool_observe::{PoolWatch, Scrubber, WatchConfig};
use proptest::prelude::*;

const BLOCKS: usize = 9;
const NAMES: usize = 6;

/// Names that differ in their group alone, or in their digest alone; one digest is all zeros, as a blank record's.
fn name(nth: usize) -> (BlockHash, u16) {
    (BlockHash::from_bytes([nth as u8 / 3; 32]), [0, 1, Name::MAX_GROUP][nth % 3])
}

fn ids(blocks: &[u32]) -> Vec<BlockId> {
    blocks.iter().copied().map(BlockId::new).collect()
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Content {
    Named(usize),
    Hidden,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    refs: Vec<u32>,
    contents: Vec<Option<Content>>,
    free: Vec<u32>,
    cached: Vec<u32>,
    names: Vec<Vec<u32>>,
}

impl Model {
    fn new() -> Self {
        Self {
            refs: vec![0; BLOCKS],
            contents: vec![None; BLOCKS],
            free: (1..BLOCKS as u32).collect(),
            cached: Vec::new(),
            names: vec![Vec::new(); NAMES],
        }
    }

    fn forget(&mut self, block: u32) -> Option<(usize, bool)> {
        match self.contents[block as usize].take()? {
            Content::Hidden => None,
            Content::Named(name) => {
                self.names[name].retain(|&copy| copy != block);
                Some((name, self.names[name].is_empty()))
            }
        }
    }

    fn acquire(&mut self, block: u32) {
        self.free.retain(|&other| other != block);
        self.cached.retain(|&other| other != block);
        self.refs[block as usize] += 1;
    }

    /// Blocks that nobody holds any more, in the order in which they were given up; `None` if one is named too often.
    fn release(&mut self, blocks: &[u32]) -> Option<Vec<u32>> {
        let mut idle = Vec::new();
        for &block in blocks {
            let refs = self.refs.get_mut(block as usize).filter(|refs| **refs > 0 && block != 0)?;
            *refs -= 1;
            if *refs == 0 {
                idle.push(block);
            }
        }
        Some(idle)
    }
}

#[derive(Clone, Debug)]
enum Operation {
    Allocate(usize),
    AllocateAsTheyAre(usize),
    Acquire(Vec<u32>),
    Release(Vec<u32>),
    ReleaseHeld(usize, usize),
    ReleaseToBack(Vec<u32>),
    ReleaseHeldToBack(usize, usize),
    Register(Vec<u32>, Vec<usize>, u16),
    RegisterHeld(Vec<usize>),
    RegisterBehind(u32, usize, u32, Option<u32>),
    RegisterHidden(u32, u8),
    Hide(u32),
    Drop(Vec<u32>),
    Reset,
    Fence(Vec<u32>),
    EndFence,
}

fn operation() -> BoxedStrategy<Operation> {
    let block = || 0..BLOCKS as u32 + 1;
    let blocks = || prop::collection::vec(block(), 0..4);
    prop_oneof![
        6 => (0usize..5).prop_map(Operation::Allocate),
        1 => (0usize..4).prop_map(Operation::AllocateAsTheyAre),
        3 => blocks().prop_map(Operation::Acquire),
        1 => blocks().prop_map(Operation::Release),
        6 => (0usize..9, 1usize..5).prop_map(|(from, n)| Operation::ReleaseHeld(from, n)),
        1 => blocks().prop_map(Operation::ReleaseToBack),
        2 => (0usize..9, 1usize..4).prop_map(|(from, n)| Operation::ReleaseHeldToBack(from, n)),
        2 => (blocks(), prop::collection::vec(0..NAMES / 3, 0..4), 0u16..3)
            .prop_map(|(blocks, names, group)| Operation::Register(blocks, names, group)),
        8 => prop::collection::vec(0..NAMES, 1..4).prop_map(Operation::RegisterHeld),
        2 => (block(), 0..NAMES, 0u32..3, prop::option::of(block()))
            .prop_map(|(block, name, depth, parent)| Operation::RegisterBehind(block, name, depth, parent)),
        1 => (block(), 0u8..3).prop_map(|(block, hash)| Operation::RegisterHidden(block, hash)),
        3 => block().prop_map(Operation::Hide),
        1 => blocks().prop_map(Operation::Drop),
        1 => Just(Operation::Reset),
        1 => blocks().prop_map(Operation::Fence),
        2 => Just(Operation::EndFence),
    ]
    .boxed()
}

struct Pair {
    pool: BlockPool,
    model: Model,
    is_lru: bool,
    fence: Option<(Ticket, Vec<u32>)>,
}

impl Pair {
    fn held(&self) -> Vec<u32> {
        (1..BLOCKS as u32).filter(|&block| self.model.refs[block as usize] > 0).collect()
    }

    /// The blocks that the pool took are those that the model would: any cached ones, where the order is a policy's.
    fn take(&mut self, taken: &[BlockId], n: usize) -> Vec<u32> {
        let taken: Vec<u32> = taken.iter().map(|block| block.get()).collect();
        assert_eq!(taken.len(), n);
        for (at, block) in taken.iter().enumerate() {
            let model = &mut self.model;
            if model.free.is_empty() {
                let ordered = self.is_lru && self.fence.is_none();
                assert!(
                    model.cached.contains(block) && (!ordered || model.cached[0] == *block),
                    "{taken:?} {at}"
                );
            } else {
                assert_eq!(model.free[0], *block);
            }
            model.acquire(*block);
        }
        taken
    }

    fn register(&mut self, blocks: &[u32], names: &[usize]) -> bool {
        let (hashes, groups): (Vec<_>, Vec<_>) = names.iter().map(|&nth| name(nth)).unzip();
        let mut told = Vec::new();
        let done = self.pool.register_named(
            &ids(blocks),
            &hashes,
            groups.first().copied().unwrap_or(0),
            |at, is_new| {
                assert_eq!(at, told.len());
                told.push(is_new);
            },
        );
        let mut seen = Vec::new();
        let may = blocks.len() == names.len()
            && blocks.iter().all(|&block| {
                let is_held = block != 0 && self.model.refs.get(block as usize).is_some_and(|&refs| refs > 0);
                let is_new =
                    is_held && self.model.contents[block as usize].is_none() && !seen.contains(&block);
                seen.push(block);
                is_new
            });
        assert_eq!(done.is_ok(), may, "{done:?}");
        if may {
            let mut expected = Vec::new();
            for (&block, &name) in blocks.iter().zip(names) {
                expected.push(self.model.names[name].is_empty());
                self.model.names[name].push(block);
                self.model.contents[block as usize] = Some(Content::Named(name));
            }
            assert_eq!(told, expected);
        } else {
            assert!(told.is_empty());
        }
        may
    }

    fn release(&mut self, blocks: &[u32], to_back: bool) -> bool {
        let mut after = self.model.clone();
        let released = after.release(blocks);
        let done = if to_back {
            self.pool.release_to_back(&ids(blocks))
        } else {
            self.pool.release_in_order(&ids(blocks)).map(|()| 0)
        };
        assert_eq!(done.is_ok(), released.is_some(), "{done:?}");
        let Some(idle) = released else { return false };
        let (mut kept, mut freed, mut hidden) = (Vec::new(), Vec::new(), 0);
        for block in idle {
            // What fences hold stays where it is until they end.
            if self.fence.as_ref().is_some_and(|(_, fenced)| fenced.contains(&block)) {
                panic!("a fenced block is held");
            }
            if to_back && after.contents[block as usize].is_none() {
                after.contents[block as usize] = Some(Content::Hidden);
                hidden += 1;
            }
            let is_kept = after.contents[block as usize].is_some();
            if is_kept { kept.push(block) } else { freed.push(block) }
        }
        after.free.splice(0..0, freed);
        after.cached.extend(kept);
        if to_back {
            assert_eq!(done.unwrap(), hidden);
        }
        self.model = after;
        true
    }

    fn run(&mut self, operation: &Operation) {
        let (before, free_before) = (self.model.clone(), self.pool.free_order());
        let available = self.model.free.len() + self.model.cached.len();
        let done = match operation {
            Operation::Allocate(n) => {
                let (mut out, mut gone) = (Vec::new(), Vec::new());
                let expected = self.pool.peek(*n);
                let done = self.pool.allocate_named(*n, &mut out, |block, name, last| {
                    gone.push((block.get(), name.map(|name| (*name.hash, name.group)), last));
                });
                assert_eq!(done.is_ok(), *n <= available);
                if done.is_ok() {
                    assert_eq!(out, expected, "what is shown first is taken first");
                    for block in self.take(&out, *n) {
                        if let Some(content) = self.model.contents[block as usize] {
                            let forgotten = self.model.forget(block);
                            let (victim, told, last) = gone.remove(0);
                            let named = matches!(content, Content::Named(_));
                            assert_eq!((victim, told.is_some()), (block, named));
                            let told = told.map(|told| (told, last));
                            assert_eq!(told, forgotten.map(|(nth, last)| (name(nth), last)));
                        }
                    }
                    assert!(gone.is_empty());
                }
                done.is_ok()
            }
            Operation::AllocateAsTheyAre(n) => {
                let mut out = Vec::new();
                let done = self.pool.allocate_as_they_are(*n, &mut out);
                assert_eq!(done.is_ok(), *n <= available);
                if done.is_ok() {
                    self.take(&out, *n);
                }
                done.is_ok()
            }
            Operation::Acquire(blocks) => {
                let done = self.pool.acquire_by_id(&ids(blocks));
                let known = blocks.iter().all(|&block| block != 0 && (block as usize) < BLOCKS);
                assert_eq!(done.is_ok(), known, "{done:?}");
                if known {
                    blocks.iter().for_each(|&block| self.model.acquire(block));
                }
                known
            }
            Operation::Release(blocks) => self.release(blocks, false),
            Operation::ReleaseToBack(blocks) => self.release(blocks, true),
            Operation::ReleaseHeld(from, n) | Operation::ReleaseHeldToBack(from, n) => {
                let held = self.held();
                let from = if held.is_empty() { 0 } else { from % held.len() };
                let mut some: Vec<u32> = held.into_iter().skip(from).take(*n).collect();
                some.reverse();
                self.release(&some, matches!(operation, Operation::ReleaseHeldToBack(..)))
            }
            Operation::Register(blocks, names, group) => {
                let names: Vec<_> = names.iter().map(|nth| nth * 3 + usize::from(*group)).collect();
                self.register(blocks, &names)
            }
            Operation::RegisterHeld(names) => {
                let mut held = self.held();
                held.retain(|&block| self.model.contents[block as usize].is_none());
                held.truncate(names.len());
                // A run is of one group.
                let group = names[0] % 3;
                let names: Vec<_> = names[..held.len()].iter().map(|nth| nth / 3 * 3 + group).collect();
                self.register(&held, &names)
            }
            Operation::RegisterBehind(block, nth, depth, parent) => {
                let (hash, group) = name(*nth);
                let (id, parent) = (BlockId::new(*block), parent.map(BlockId::new));
                // With LRU, of one release the deepest goes first: the model has one depth.
                let depth = if self.is_lru { 0 } else { *depth };
                let done = self.pool.register_behind(id, Name { hash: &hash, group }, depth, parent);
                let at = *block as usize;
                let may = *block != 0
                    && self.model.refs.get(at).is_some_and(|&refs| refs > 0)
                    && self.model.contents[at].is_none();
                assert_eq!(done.is_ok(), may);
                if may {
                    assert_eq!(done.unwrap(), self.model.names[*nth].is_empty());
                    self.model.names[*nth].push(*block);
                    self.model.contents[at] = Some(Content::Named(*nth));
                }
                may
            }
            Operation::RegisterHidden(block, hash) => {
                let at = *block as usize;
                let done = self.pool.register_hidden(
                    BlockId::new(*block),
                    &BlockHash::from_bytes([*hash; 32]),
                    0,
                    None,
                );
                let may = *block != 0
                    && self.model.refs.get(at).is_some_and(|&refs| refs > 0)
                    && self.model.contents[at].is_none();
                assert_eq!(done.is_ok(), may);
                if may {
                    self.model.contents[at] = Some(Content::Hidden);
                }
                may
            }
            Operation::Hide(block) => {
                let done = self.pool.hide(BlockId::new(*block));
                let content = self.model.contents.get(*block as usize).copied().flatten();
                assert_eq!(done.is_ok(), content.is_some(), "{done:?}");
                if content.is_some() {
                    let gone = self.model.forget(*block);
                    self.model.contents[*block as usize] = Some(Content::Hidden);
                    assert_eq!(done.unwrap(), gone.is_some_and(|(_, last)| last));
                }
                content.is_some()
            }
            Operation::Drop(blocks) => {
                let done = self.pool.drop_cached(&ids(blocks));
                let known = blocks.iter().all(|&block| block != 0 && (block as usize) < BLOCKS);
                assert_eq!(done.is_ok(), known);
                for &block in blocks.iter().filter(|_| known) {
                    if self.model.contents[block as usize].is_some() {
                        self.model.forget(block);
                        if self.model.cached.contains(&block) {
                            self.model.cached.retain(|&other| other != block);
                            self.model.free.insert(0, block);
                        }
                    }
                }
                known
            }
            Operation::Reset => {
                let order = self.pool.eviction_order();
                let done = self.pool.reset_in_order();
                let may = self.model.refs.iter().all(|&refs| refs == 0);
                assert_eq!(done.is_ok(), may);
                if may {
                    self.model.cached.clear();
                    self.model.free.extend(order.into_iter().map(BlockId::get));
                    self.model.contents.fill(None);
                    self.model.names.iter_mut().for_each(Vec::clear);
                }
                may
            }
            Operation::Fence(blocks) => {
                // Blocks that have another holder beside the fence, so that the model need not know it.
                let known = |block: &u32| self.model.refs.get(*block as usize).is_some_and(|&refs| refs > 1);
                let mut chosen: Vec<u32> = blocks.iter().copied().filter(known).collect();
                chosen.dedup();
                chosen.truncate(1);
                if self.fence.is_none() && !chosen.is_empty() {
                    self.pool.acquire(&ids(&chosen)).unwrap();
                    let ticket = self.pool.fence().unwrap();
                    self.pool.release_until(&ids(&chosen), ticket).unwrap();
                    self.fence = Some((ticket, chosen));
                }
                true
            }
            Operation::EndFence => {
                if let Some((ticket, _)) = self.fence.take() {
                    self.pool.end_fence(ticket).unwrap();
                }
                true
            }
        };
        if !done {
            assert_eq!(self.model, before, "{operation:?}");
            assert_eq!(self.pool.free_order(), free_before, "what is refused changes nothing: {operation:?}");
        }
    }

    fn compare(&mut self) {
        let (pool, model) = (&mut self.pool, &self.model);
        assert_eq!(pool.state_digest(), Some(pool.state_digest_from_scratch()));
        pool.check_invariants().unwrap();
        Scrubber::default().scrub(pool, BLOCKS).unwrap();
        let (mut order, mut cached) = (pool.eviction_order(), ids(&model.cached));
        assert_eq!(pool.peek(usize::MAX / 2), [pool.free_order(), order.clone()].concat());
        if !self.is_lru {
            order.sort();
            cached.sort();
        }
        assert_eq!((pool.free_order(), order), (ids(&model.free), cached));
        let fenced = |block: u32| {
            self.fence.as_ref().map_or(0, |(_, on)| on.iter().filter(|&&at| at == block).count())
        };
        for block in 1..BLOCKS as u32 {
            let (id, at) = (BlockId::new(block), block as usize);
            assert_eq!(pool.ref_count(id), Some(model.refs[at] + fenced(block) as u32));
            let named = pool.name_of(id).map(|name| (*name.hash, name.group));
            let expected = match model.contents[at] {
                Some(Content::Named(nth)) => Some(name(nth)),
                _ => None,
            };
            assert_eq!((named, pool.is_hidden(id)), (expected, model.contents[at] == Some(Content::Hidden)));
        }
        for (nth, copies) in model.names.iter().enumerate() {
            let (hash, group) = name(nth);
            let name = Name { hash: &hash, group };
            assert_eq!(pool.copies_named(name), ids(copies));
            let first = copies.first().copied().map(BlockId::new);
            assert_eq!(pool.find_named(name), first);
            let mut run = Vec::new();
            pool.find_named_run(&[hash, hash], group, &mut run);
            assert_eq!(run, first.map_or_else(Vec::new, |first| vec![first; 2]));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2500))]

    #[test]
    fn the_pool_does_what_the_model_does(
        policy in prop_oneof![Just(kvpool_policies::LRU), prop::sample::select(kvpool_policies::ALL)],
        operations in prop::collection::vec(operation(), 1..70),
    ) {
        let config = PoolConfig { num_blocks: BLOCKS, eviction: policy, ..PoolConfig::default() };
        let digest = WatchConfig { digest: true, ..WatchConfig::default() };
        let pool = BlockPool::new(config).unwrap().watched(&digest).unwrap();
        let is_lru = policy == kvpool_policies::LRU;
        let mut pair = Pair { pool, model: Model::new(), is_lru, fence: None };
        for operation in &operations {
            // What a fence holds alone is in no part of the model.
            let fenced = pair.fence.as_ref().map_or(0, |(_, on)| on[0]);
            let left = pair.model.refs[fenced as usize];
            if fenced != 0 && left < 4 && !matches!(operation, Operation::EndFence) {
                pair.run(&Operation::EndFence);
            }
            pair.run(operation);
            pair.compare();
        }
    }
}

#[test]
fn no_name_is_one_of_a_hidden_content_or_of_a_blank_record() {
    let mut pool = BlockPool::new(PoolConfig { num_blocks: 4, ..PoolConfig::default() }).unwrap();
    let blocks = pool.allocate(3).unwrap();
    let hash = BlockHash::from_bytes([0; 32]);
    for group in [Name::MAX_GROUP + 1, u16::MAX] {
        let refused = pool.register_named(&blocks, &[hash; 3], group, |_, _| {});
        assert!(matches!(refused, Err(PoolError::InvalidConfig { field: "group", .. })), "{refused:?}");
        let refused = pool.register_behind(blocks[0], Name { hash: &hash, group }, 0, None);
        assert!(matches!(refused, Err(PoolError::InvalidConfig { field: "group", .. })), "{refused:?}");
        pool.register_hidden(blocks[0], &hash, 0, None).unwrap();
        assert_eq!(pool.find_named(Name { hash: &hash, group }), None);
        assert!(pool.copies_named(Name { hash: &hash, group }).is_empty());
        let mut run = Vec::new();
        pool.find_named_run(&[hash], group, &mut run);
        assert!(run.is_empty());
        pool.drop_cached(&blocks).unwrap();
    }
}

#[test]
fn a_digest_of_zeros_is_not_the_null_blocks() {
    // Where a digest goes is random: only some tables have an empty slot that looks like one with its tag.
    for _ in 0..2000 {
        let mut pool = BlockPool::new(PoolConfig { num_blocks: 4, ..PoolConfig::default() }).unwrap();
        let blocks = pool.allocate(3).unwrap();
        let hash = BlockHash::from_bytes([0; 32]);
        pool.register_named(&blocks, &[hash; 3], 0, |_, _| {}).unwrap();
        assert_eq!(pool.copies(&hash), blocks);
        pool.hide(blocks[1]).unwrap();
        assert_eq!(pool.copies(&hash), [blocks[0], blocks[2]]);
        pool.check_invariants().unwrap();
    }
}

#[test]
fn what_a_pool_verifies_has_no_names() {
    let config = PoolConfig { num_blocks: 4, verify: Verify::Fingerprint, ..PoolConfig::default() };
    let mut pool = BlockPool::new(config).unwrap();
    let blocks = pool.allocate(1).unwrap();
    let refused = pool.register_named(&blocks, &[BlockHash::from_bytes([1; 32])], 0, |_, _| {});
    assert!(matches!(refused, Err(PoolError::MissingVerification { .. })), "{refused:?}");
    let refused = pool.release_to_back(&blocks);
    assert!(matches!(refused, Err(PoolError::MissingVerification { .. })), "{refused:?}");
    assert_eq!(pool.num_references(), 1);
}
