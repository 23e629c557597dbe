//! Pools with every policy but `lru`, as a scheduler uses them: requests with shared prompts in two groups, one chained and
//! one whose first blocks are freed while the request runs, beside all that may drop a hash. The order is the policy's
//! own, so the model says what must hold of any: who is free, what is cached, what may go before what, and that the order
//! that is shown is the order that is taken. Behind it, by name, what policies and chains are told.
//!
//! `KVPOOL_MODEL_OPERATIONS` sets how many operations run in all (default 200,000).
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test stops at the first error")]

use std::collections::HashSet;

use kvpool::EvictionPolicy;
use kvpool_vllm::{Key, Pool, Start};
use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence, TestRunner};

const BLOCK_SIZE: usize = 4;
const NUM_BLOCKS: u32 = 14;
/// The group of full attention. Group 1 is a sliding window.
const CHAINED: u32 = 0;

/// The prompts that requests draw from: they share beginnings of several lengths.
const PROMPTS: [[u8; 6]; 4] =
    [[1, 2, 3, 4, 5, 6], [1, 2, 3, 9, 9, 9], [1, 7, 7, 7, 7, 7], [8, 8, 8, 8, 8, 8]];

fn key(prompt: &[u8], group: u32) -> Key {
    let mut digest = [0; 32];
    digest[..prompt.len()].copy_from_slice(prompt);
    digest[31] = prompt.len() as u8;
    Key::new(&digest, group).unwrap()
}

/// The key for half of a block behind `prompt`.
fn half(prompt: &[u8], group: u32) -> Key {
    let mut digest = [0xff; 32];
    digest[..prompt.len()].copy_from_slice(prompt);
    Key::new(&digest, group).unwrap()
}

#[derive(Clone, Debug)]
enum Operation {
    /// A request with so many blocks of a prompt, which looks for a hit or does not.
    Begin {
        prompt: usize,
        len: usize,
        group: u32,
        looks: bool,
    },
    /// Caches what is not cached, up to so many blocks; with the null block before some of it, as a mask does.
    Cache {
        request: usize,
        upto: usize,
        masked: usize,
    },
    /// Caches the first half of the block that is cached next.
    CacheHalf(usize),
    Grow(usize),
    /// Frees the first blocks of a request in the window's group.
    Slide(usize),
    End(usize),
    Unpin(usize),
    Touch(u32),
    Evict {
        block: u32,
        reuse_first: bool,
    },
    RemoveHashes(u32),
    ResetHash(u32),
    SetHash(u32),
    Move {
        from: u32,
        to: u32,
    },
    Reset,
}

fn operation() -> BoxedStrategy<Operation> {
    let id = || 0..NUM_BLOCKS;
    let request = || 0usize..5;
    prop_oneof![
        8 => (0..PROMPTS.len(), 1usize..6, 0u32..2, prop::bool::weighted(0.8))
            .prop_map(|(prompt, len, group, looks)| Operation::Begin { prompt, len, group, looks }),
        8 => (request(), 1usize..7, prop_oneof![3 => Just(0usize), 1 => 0usize..3])
            .prop_map(|(request, upto, masked)| Operation::Cache { request, upto, masked }),
        2 => request().prop_map(Operation::CacheHalf),
        4 => request().prop_map(Operation::Grow),
        2 => request().prop_map(Operation::Slide),
        7 => request().prop_map(Operation::End),
        1 => request().prop_map(Operation::Unpin),
        1 => id().prop_map(Operation::Touch),
        2 => (id(), any::<bool>()).prop_map(|(block, reuse_first)| Operation::Evict { block, reuse_first }),
        1 => id().prop_map(Operation::RemoveHashes),
        1 => id().prop_map(Operation::ResetHash),
        1 => id().prop_map(Operation::SetHash),
        1 => (id(), 1..NUM_BLOCKS).prop_map(|(from, to)| Operation::Move { from, to }),
        1 => Just(Operation::Reset),
    ]
    .boxed()
}

/// A block's content: which of all that ever were, and which it hangs on.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Content {
    nth: u64,
    parent: Option<(u32, u64)>,
}

#[derive(Clone, Debug, Default)]
struct Block {
    refs: usize,
    content: Option<Content>,
    /// Unpinned without a content, or given one while it was free: it may stand anywhere.
    anywhere: bool,
}

#[derive(Clone, Debug)]
struct Request {
    prompt: usize,
    group: u32,
    table: Vec<u32>,
    cached: usize,
    /// Whether the block that is cached next carries the key of its first half.
    has_half: bool,
}

struct Machine {
    pool: Pool,
    blocks: Vec<Block>,
    requests: Vec<Request>,
    contents: u64,
    touched: u8,
}

impl Machine {
    fn new(policy: EvictionPolicy) -> Self {
        let mut pool = Pool::with_policy(NUM_BLOCKS as usize, true, policy).unwrap();
        pool.chain_group(CHAINED);
        let blocks = vec![Block::default(); NUM_BLOCKS as usize];
        Self { pool, blocks, requests: Vec::new(), contents: 0, touched: 0 }
    }

    fn begins(&mut self, block: u32, before: Option<u32>, group: u32) {
        self.contents += 1;
        let parent = before.filter(|_| group == CHAINED);
        let parent = parent.and_then(|id| self.blocks[id as usize].content.map(|content| (id, content.nth)));
        self.blocks[block as usize].content = Some(Content { nth: self.contents, parent });
    }

    fn begins_where_it_is(&mut self, block: u32) {
        let state = &mut self.blocks[block as usize];
        state.anywhere |= state.refs == 0 && state.content.is_none();
        self.begins(block, None, CHAINED);
    }

    fn free_blocks(&self) -> Vec<u32> {
        (1..NUM_BLOCKS).filter(|&block| self.blocks[block as usize].refs == 0).collect()
    }

    fn allocate(&mut self, n: usize) -> Option<Vec<u32>> {
        let free = self.free_blocks();
        let (expected, mut taken) = (self.pool.peek(n), Vec::new());
        let result = self.pool.allocate(n, &mut taken, None);
        assert_eq!(result.is_ok(), n <= free.len(), "{n} of {} free blocks", free.len());
        if result.is_err() {
            assert!(taken.is_empty());
            return None;
        }
        assert_eq!(taken, expected, "what is shown first is taken first");
        assert_eq!(taken.iter().collect::<HashSet<_>>().len(), n, "{taken:?}");
        for &block in &taken {
            let state = &mut self.blocks[block as usize];
            assert_eq!(state.refs, 0, "block {block} is in use");
            *state = Block { refs: 1, ..Block::default() };
        }
        Some(taken)
    }

    fn release(&mut self, block: u32) {
        if block != 0 {
            self.blocks[block as usize].refs -= 1;
            self.blocks[block as usize].anywhere = false;
        }
    }

    fn begin(&mut self, prompt: usize, len: usize, group: u32, looks: bool) {
        let found = |at| self.pool.find(&key(&PROMPTS[prompt][..=at], group));
        let hit: Vec<u32> = if looks { (0..len).map_while(found).collect() } else { Vec::new() };
        self.pool.touch(&hit).unwrap();
        for &block in &hit {
            self.blocks[block as usize].refs += 1;
        }
        let cached = hit.len();
        let Some(new) = self.allocate(len - cached) else {
            self.pool.free(hit.iter().rev().copied()).unwrap();
            hit.iter().for_each(|&block| self.release(block));
            return;
        };
        let table = [hit, new].concat();
        self.requests.push(Request { prompt, group, table, cached, has_half: false });
    }

    fn cache(&mut self, at: usize, upto: usize, masked: usize) {
        let Request { prompt, group, ref table, cached: first, .. } = self.requests[at];
        let (table, end) = (table.clone(), upto.min(table.len()));
        if first >= end {
            return;
        }
        // What was written by hand meanwhile can't be cached again.
        let has_room = |at: usize| {
            let cached = self.pool.keys().hash_of(table[at]);
            cached.is_none_or(|(_, tokens)| {
                tokens.is_some_and(|tokens| (tokens as usize) < (at + 1) * BLOCK_SIZE)
            })
        };
        let chosen: Vec<bool> =
            (first..end).map(|at| table[at] != 0 && at >= first + masked && has_room(at)).collect();
        let key_of = |i: usize| chosen[i].then(|| key(&PROMPTS[prompt][..=first + i], group));
        let start = Start { first, before: first.checked_sub(1).map(|before| table[before]) };
        self.pool.cache_full(start, &table[first..end], key_of, BLOCK_SIZE, &mut Vec::new(), None).unwrap();
        for i in (first..end).filter(|&i| chosen[i - first]) {
            self.begins(table[i], i.checked_sub(1).map(|before| table[before]), group);
        }
        self.requests[at].cached = end;
        self.requests[at].has_half = false;
    }

    fn cache_half(&mut self, at: usize) {
        let Request { prompt, group, ref table, cached, has_half } = self.requests[at];
        let Some(&block) = table.get(cached).filter(|&&block| block != 0 && !has_half) else { return };
        let before = cached.checked_sub(1).map(|before| key(&PROMPTS[prompt][..=before], group));
        let found = before.and_then(|before| self.pool.find(&before));
        let (key, tokens) = (half(&PROMPTS[prompt][..cached], group), (cached * BLOCK_SIZE + 2) as u32);
        let had_hash = self.blocks[block as usize].content.is_some();
        self.pool.insert_hash_behind(key, block, Some(tokens), cached as u32, before.as_ref());
        if !had_hash {
            self.begins(block, found, group);
        }
        self.requests[at].has_half = true;
    }

    fn run(&mut self, operation: &Operation) {
        let nth = |n: usize, len: usize| n % len.max(1);
        let request = |n: usize| nth(n, self.requests.len());
        match *operation {
            Operation::Begin { prompt, len, group, looks } => self.begin(prompt, len, group, looks),
            Operation::Cache { request: n, .. }
            | Operation::CacheHalf(n)
            | Operation::Grow(n)
            | Operation::Slide(n)
            | Operation::End(n)
            | Operation::Unpin(n)
                if self.requests.is_empty() =>
            {
                assert_eq!(request(n), 0);
            }
            Operation::Cache { request: n, upto, masked } => self.cache(request(n), upto, masked),
            Operation::CacheHalf(n) => self.cache_half(request(n)),
            Operation::Grow(n) => {
                let at = request(n);
                if self.requests[at].table.len() < PROMPTS[0].len()
                    && let Some(new) = self.allocate(1)
                {
                    self.requests[at].table.extend(new);
                }
            }
            Operation::Slide(n) => {
                let at = request(n);
                if self.requests[at].group != CHAINED {
                    let upto = self.requests[at].cached / 2;
                    let gone: Vec<u32> = self.requests[at].table[..upto].iter().rev().copied().collect();
                    self.requests[at].table[..upto].fill(0);
                    gone.iter().for_each(|&block| self.release(block));
                    self.pool.free(gone).unwrap();
                }
            }
            Operation::End(n) => {
                let table = self.requests.remove(request(n)).table;
                self.pool.free(table.iter().rev().copied()).unwrap();
                table.iter().for_each(|&block| self.release(block));
            }
            Operation::Unpin(n) => {
                let table: Vec<u32> = self.requests.remove(request(n)).table;
                let table: Vec<u32> = table.into_iter().filter(|&block| block != 0).collect();
                self.pool.unpin(&table).unwrap();
                for block in table {
                    self.release(block);
                    let state = &mut self.blocks[block as usize];
                    state.anywhere = state.refs == 0 && state.content.is_none();
                }
            }
            Operation::Touch(block) => {
                if block != 0 && self.touched < 3 {
                    // As a connector does: it is given back at once.
                    self.touched += 1;
                    self.pool.touch(&[block, 0]).unwrap();
                    assert!(!self.pool.order().any(|free| free == block));
                    self.pool.free([block]).unwrap();
                    self.blocks[block as usize].anywhere &= self.blocks[block as usize].refs > 0;
                }
            }
            Operation::Evict { block, reuse_first } => {
                self.pool.evict(block, reuse_first).unwrap();
                self.drop_content(block);
            }
            Operation::RemoveHashes(block) => {
                self.pool.remove_hashes(block);
                self.drop_content(block);
            }
            Operation::ResetHash(block) => {
                // The index as well: what leads to a block without a hash is for the model of calls by hand.
                let keys: Vec<Key> =
                    self.pool.keys().hash_of(block).map(|(key, _)| *key).into_iter().collect();
                if self.pool.keys().further_keys(block).is_empty() {
                    self.pool.reset_hash(block);
                    keys.iter().for_each(|key| assert!(self.pool.remove_from_index(key, block)));
                    self.drop_content(block);
                }
            }
            Operation::SetHash(block) => {
                let is_alone = self.pool.keys().further_keys(block).is_empty();
                if block != 0 && is_alone {
                    if let Some(known) = self.pool.keys().hash_of(block).map(|(key, _)| *key) {
                        self.pool.remove_from_index(&known, block);
                    }
                    let new = key(&[40, block as u8], CHAINED);
                    self.pool.set_hash(block, new, None);
                    self.pool.insert_in_index(new, block).unwrap();
                    self.begins_where_it_is(block);
                }
            }
            Operation::Move { from, to } => {
                if self.pool.move_hashes(from, to).is_ok() && self.blocks[from as usize].content.is_some() {
                    self.drop_content(from);
                    self.begins_where_it_is(to);
                }
            }
            Operation::Reset => {
                let may = self.free_blocks().len() as u32 == NUM_BLOCKS - 1;
                assert_eq!(self.pool.reset(), may);
                if may {
                    self.blocks.fill(Block::default());
                }
            }
        }
    }

    fn drop_content(&mut self, block: u32) {
        self.blocks[block as usize].content = None;
    }

    fn check(&self, operation: &Operation) {
        self.pool.check_invariants().unwrap_or_else(|broken| panic!("after {operation:?}: {broken}"));
        let order: Vec<u32> = self.pool.order().collect();
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, self.free_blocks(), "free blocks after {operation:?}");
        assert_eq!(self.pool.num_free(), order.len());
        for (id, block) in self.blocks.iter().enumerate() {
            assert_eq!(
                self.pool.ref_count(id as u32),
                block.refs as i32,
                "references of {id} after {operation:?}"
            );
            let hash = self.pool.keys().hash_of(id as u32);
            assert_eq!(hash.is_some(), block.content.is_some(), "hash of {id} after {operation:?}");
        }
        // What has a content is taken when nothing else is left.
        let mut placed = order.iter().map(|&id| &self.blocks[id as usize]).filter(|block| !block.anywhere);
        let is_cached = |block: &&Block| block.content.is_some();
        assert!(
            placed.by_ref().skip_while(|block| !is_cached(block)).all(|block| is_cached(&block)),
            "{operation:?}"
        );
        let place = |wanted: u32| order.iter().position(|&block| block == wanted);
        for (at, &block) in order.iter().enumerate() {
            let state = &self.blocks[block as usize];
            let content = state.content;
            // Prefix-closed: the parent, if it is free and holds what it held then, goes later.
            if let Some((parent, nth)) = content.and_then(|content| content.parent)
                && self.blocks[parent as usize].content.is_some_and(|content| content.nth == nth)
                && let Some(parent_at) = place(parent)
            {
                assert!(
                    parent_at > at,
                    "{parent} goes before {block}, which hangs on it, after {operation:?}"
                );
            }
        }
    }
}

fn policies() -> impl Iterator<Item = EvictionPolicy> {
    let has_history = |policy: &EvictionPolicy| policy.build(2, None).unwrap().wants_history();
    EvictionPolicy::ALL.iter().copied().filter(has_history)
}

#[test]
fn every_policy_keeps_what_any_must() {
    const STEPS: u32 = 60;
    let operations: u32 =
        std::env::var("KVPOOL_MODEL_OPERATIONS").map_or(200_000, |number| number.parse().unwrap());
    let policies: Vec<EvictionPolicy> = policies().collect();
    assert!(policies.len() >= 9, "{policies:?}");
    let config = Config {
        cases: (operations / STEPS).max(1),
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..Config::default()
    };
    let strategy =
        (prop::sample::select(policies), prop::collection::vec(operation(), 1..2 * STEPS as usize));
    let run = |(policy, operations): (EvictionPolicy, Vec<Operation>)| {
        let mut machine = Machine::new(policy);
        for operation in &operations {
            machine.run(operation);
            machine.check(operation);
        }
        Ok(())
    };
    TestRunner::new(config).run(&strategy, run).unwrap_or_else(|failure| panic!("{failure}"));
}
