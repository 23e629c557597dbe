//! Pools with every policy but `lru`, as a scheduler uses them: requests with shared prompts in two groups, one chained and
//! one whose first blocks are freed while the request runs, beside all that may drop a hash. The order is the policy's
//! own, so the model says what must hold of any: who is free, what is cached, what may go before what, and that the order
//! that is shown is the order that is taken; and the same where somebody says what blocks are worth, `lru` included. Behind it, by name, what policies and chains are told.
//!
//! `KVPOOL_MODEL_OPERATIONS` sets how many operations run in all (default 100,000).
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test stops at the first error")]

use std::collections::HashSet;

use kvpool::evictor::{self, Policy};
use kvpool::retention::{Keep, Priority, Retention, RetentionConfig, TenantId, TenantLimits, Then, Ttl};
use kvpool::{BlockId, EvictionPolicy, InvariantViolation, PoolError};
use kvpool_policies::eviction_policy;
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
    /// Somebody says what a block is worth, or whose it is; refused without retention.
    Say {
        block: u32,
        keep: u8,
        ttl: Option<u8>,
    },
    Tenant {
        block: u32,
        tenant: u32,
    },
    Time(u8),
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
        3 => (id(), any::<u8>(), prop::option::of(0u8..9))
            .prop_map(|(block, keep, ttl)| Operation::Say { block, keep, ttl }),
        1 => (id(), 0u32..3).prop_map(|(block, tenant)| Operation::Tenant { block, tenant }),
        1 => (0u8..5).prop_map(Operation::Time),
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
    /// Unpinned without a content: it may stand anywhere.
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
    hinted: bool,
    now: Option<f64>,
}

impl Machine {
    fn new(policy: EvictionPolicy, retention: Option<RetentionConfig>) -> Self {
        let mut pool = Pool::with_retention(NUM_BLOCKS as usize, true, policy, retention).unwrap();
        pool.chain_group(CHAINED);
        let blocks = vec![Block::default(); NUM_BLOCKS as usize];
        let hinted = pool.retention_stats().is_some();
        Self { pool, blocks, requests: Vec::new(), contents: 0, touched: 0, hinted, now: None }
    }

    fn begins(&mut self, block: u32, before: Option<u32>, group: u32) {
        self.contents += 1;
        let parent = before.filter(|_| group == CHAINED);
        let parent = parent.and_then(|id| self.blocks[id as usize].content.map(|content| (id, content.nth)));
        self.blocks[block as usize].content = Some(Content { nth: self.contents, parent });
        self.blocks[block as usize].anywhere = false;
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
                    self.pool.keys().hash_of(block).map(|(key, _)| key).into_iter().collect();
                if self.pool.keys().further_keys(block).is_empty() {
                    self.pool.reset_hash(block);
                    keys.iter().for_each(|key| assert!(self.pool.remove_from_index(key, block)));
                    self.drop_content(block);
                }
            }
            Operation::SetHash(block) => {
                let is_alone = self.pool.keys().further_keys(block).is_empty();
                if block != 0 && is_alone {
                    if let Some(known) = self.pool.keys().hash_of(block).map(|(key, _)| key) {
                        self.pool.remove_from_index(&known, block);
                    }
                    let new = key(&[40, block as u8], CHAINED);
                    self.pool.set_hash(block, new, None);
                    self.pool.insert_in_index(new, block).unwrap();
                    self.begins(block, None, CHAINED);
                }
            }
            Operation::Move { from, to } => {
                if self.pool.move_hashes(from, to).is_ok() && self.blocks[from as usize].content.is_some() {
                    self.drop_content(from);
                    self.begins(to, None, CHAINED);
                }
            }
            Operation::Say { block, keep, ttl } => {
                let keep = match keep {
                    0..=100 => Keep::Priority(Priority::new(keep).unwrap()),
                    101..=150 => Keep::Pinned,
                    _ => Keep::Demoted,
                };
                let ttl = ttl.map(|seconds| Ttl::Idle(f64::from(seconds)));
                let said = self.pool.retain(&[block, 0], Retention { keep, ttl, then: Then::Demote });
                // A time to live needs a clock, unless nothing is kept.
                let has_clock = ttl.is_none() || self.now.is_some();
                assert!(!has_clock || said.is_ok() == self.hinted, "{said:?}");
                // One block was spoken of: never the null block, and nothing is kept of one without a hash.
                let is_cached = block != 0 && self.blocks[block as usize].content.is_some();
                if let Ok(said) = said {
                    assert_eq!(said.accepted + said.clipped + said.ignored, usize::from(block != 0));
                    assert!(
                        is_cached || said.accepted + said.clipped == 0,
                        "{said:?} of a block without a hash"
                    );
                }
            }
            Operation::Tenant { block, tenant } => {
                assert_eq!(self.pool.assign_tenant(&[block], TenantId(tenant)).is_ok(), self.hinted);
            }
            Operation::Time(seconds) => {
                let now = self.now.unwrap_or(0.0) + f64::from(seconds);
                let passed = self.pool.advance_time(now);
                assert!(passed.is_ok() || !self.hinted, "{passed:?}");
                self.now = Some(now);
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
    kvpool_policies::ALL.iter().copied().filter(has_history)
}

#[test]
fn every_policy_keeps_what_any_must() {
    const STEPS: u32 = 60;
    let operations: u32 =
        std::env::var("KVPOOL_MODEL_OPERATIONS").map_or(100_000, |number| number.parse().unwrap());
    let policies: Vec<EvictionPolicy> = policies().collect();
    assert!(policies.len() >= 4, "{policies:?}");
    let config = Config {
        cases: (operations / STEPS).max(1),
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..Config::default()
    };
    let limits = |tenant, floor, ceiling| TenantLimits { tenant: TenantId(tenant), floor, ceiling };
    let retention =
        RetentionConfig { pin_budget: 3, tenants: vec![limits(0, 2, None), limits(1, 0, Some(3))] };
    // Hints make a history of `lru`, too.
    let kinds: Vec<_> = (policies.iter().map(|&policy| (policy, None)))
        .chain(
            [kvpool_policies::LRU, policies[0], policies[1]].map(|policy| (policy, Some(retention.clone()))),
        )
        .collect();
    let strategy = (prop::sample::select(kinds), prop::collection::vec(operation(), 1..2 * STEPS as usize));
    let run =
        |((policy, retention), operations): ((EvictionPolicy, Option<RetentionConfig>), Vec<Operation>)| {
            let mut machine = Machine::new(policy, retention);
            for operation in &operations {
                machine.run(operation);
                machine.check(operation);
            }
            Ok(())
        };
    TestRunner::new(config).run(&strategy, run).unwrap_or_else(|failure| panic!("{failure}"));
}

// By name: what a policy is told, and what follows.

fn pool(policy: &str) -> Pool {
    let mut pool = Pool::with_policy(8, true, kvpool_policies::by_name(policy).unwrap()).unwrap();
    pool.chain_group(CHAINED);
    pool
}

fn take(pool: &mut Pool, n: usize) -> Vec<u32> {
    let mut taken = Vec::new();
    pool.allocate(n, &mut taken, None).unwrap();
    pool.check_invariants().unwrap();
    taken
}

/// Caches blocks of a table from `start` on, each under the key of a prompt of its length.
fn cache(pool: &mut Pool, start: Start, blocks: &[u32], prompt: &[u8], group: u32) {
    let key_of = |i: usize| Some(key(&prompt[..=start.first + i], group));
    pool.cache_full(start, blocks, key_of, BLOCK_SIZE, &mut Vec::new(), None).unwrap();
}

/// Prompts of one block each, in blocks of their own, none of them in use.
fn singles(pool: &mut Pool, prompts: &[u8]) {
    let blocks = take(pool, prompts.len());
    for (&block, &prompt) in blocks.iter().zip(prompts) {
        cache(pool, Start::at(0), &[block], &[prompt], CHAINED);
        pool.free([block]).unwrap();
    }
}

fn cached(pool: &Pool) -> Vec<u32> {
    pool.order().filter(|&block| pool.keys().hash_of(block).is_some()).collect()
}

#[test]
fn a_use_of_a_free_block_is_told() {
    let mut pool = pool("s3-fifo");
    singles(&mut pool, &[1, 2, 3]);
    pool.touch(&[1]).unwrap();
    pool.free([1]).unwrap();
    pool.touch(&[3]).unwrap();
    pool.free([3]).unwrap();
    pool.touch(&[3]).unwrap();
    pool.free([3]).unwrap();
    assert_eq!(cached(&pool), [2, 1, 3]);
}

#[test]
fn a_use_of_a_block_that_is_in_use_is_told() {
    let mut pool = pool("s3-fifo");
    let blocks = take(&mut pool, 2);
    cache(&mut pool, Start::at(0), &[1], &[1], CHAINED);
    cache(&mut pool, Start::at(0), &[2], &[2], CHAINED);
    pool.touch(&[1]).unwrap();
    pool.free([1, 1]).unwrap();
    pool.free([2]).unwrap();
    assert_eq!((blocks, cached(&pool)), (vec![1, 2], vec![2, 1]));
}

#[test]
fn an_evicted_content_that_comes_back_is_known_again() {
    let reused = |prompt: u8| {
        let mut pool = pool("arc");
        singles(&mut pool, &[1, 2, 3, 4, 5, 6, 7]);
        for _ in 0..4 {
            pool.touch(&[1]).unwrap();
            pool.free([1]).unwrap();
        }
        // Six cold ones go, then the hot one.
        assert_eq!(take(&mut pool, 7).last(), Some(&1));
        for (block, prompt) in (1..8).zip([prompt, 12, 13, 14, 15, 16, 17]) {
            cache(&mut pool, Start::at(0), &[block], &[prompt], CHAINED);
            pool.free([block]).unwrap();
        }
        cached(&pool).iter().position(|&block| block == 1)
    };
    // The same key: it was used before, and goes last. Another: it came first, and goes first.
    assert_eq!((reused(1), reused(11)), (Some(6), Some(0)));
}

#[test]
fn a_chain_is_evicted_from_its_end_whatever_call_cached_it() {
    let mut pool = pool("s3-fifo");
    let table = take(&mut pool, 3);
    cache(&mut pool, Start::at(0), &table[..2], &[1, 2, 3], CHAINED);
    cache(&mut pool, Start { first: 2, before: Some(table[1]) }, &table[2..], &[1, 2, 3], CHAINED);
    // From the front: only the chain makes the last block go first.
    for &block in &table {
        pool.free([block]).unwrap();
    }
    assert_eq!(cached(&pool), [3, 2, 1]);
}

#[test]
fn a_block_behind_one_that_is_not_cached_hangs_on_nothing() {
    let mut pool = pool("s3-fifo");
    let table = take(&mut pool, 3);
    cache(&mut pool, Start::at(0), &table[..1], &[1], CHAINED);
    cache(&mut pool, Start { first: 2, before: Some(table[1]) }, &table[2..], &[1, 2, 3], CHAINED);
    for block in table {
        pool.free([block]).unwrap();
    }
    assert_eq!(cached(&pool), [1, 3]);
    // The null block is nothing either.
    let mut pool = self::pool("s3-fifo");
    take(&mut pool, 1);
    cache(&mut pool, Start { first: 1, before: Some(0) }, &[1], &[1, 2], CHAINED);
    pool.free([1]).unwrap();
    assert_eq!(cached(&pool), [1]);
}

#[test]
fn a_block_may_hang_on_one_with_its_own_key() {
    // Block 1 was given by hand what is cached behind it.
    let mut pool = pool("s3-fifo");
    let table = take(&mut pool, 2);
    pool.insert_hash(key(&[1, 2], CHAINED), 1, Some(8));
    cache(&mut pool, Start { first: 1, before: Some(1) }, &table[1..], &[1, 2], CHAINED);
    pool.check_invariants().unwrap();
    pool.free([1]).unwrap();
    pool.free([2]).unwrap();
    assert_eq!(cached(&pool), [2, 1]);
    pool.check_invariants().unwrap();
}

#[test]
fn a_window_is_no_chain() {
    let mut pool = pool("s3-fifo");
    let table = take(&mut pool, 3);
    cache(&mut pool, Start::at(0), &table, &[1, 2, 3], 1);
    pool.free([1]).unwrap();
    pool.free([3, 2]).unwrap();
    // What slid out of the window goes first, though the others stand behind it.
    assert_eq!(cached(&pool), [1, 3, 2]);
}

/// An order by the depth that the pool passes with a content, the least deep first.
#[derive(Clone, Debug)]
struct ByDepth {
    depths: Vec<u32>,
    order: Vec<BlockId>,
}

impl ByDepth {
    fn new(num_blocks: usize) -> Result<Self, PoolError> {
        Ok(Self { depths: vec![0; num_blocks], order: Vec::new() })
    }
}

impl Policy for ByDepth {
    fn name(&self) -> &'static str {
        "by-depth"
    }
    fn admit(&mut self, block: BlockId, content: evictor::Content) {
        self.depths[block.index()] = content.depth;
    }
    fn hit(&mut self, _: BlockId) {}
    fn release(&mut self, block: BlockId) {
        self.take(block);
        self.order.push(block);
    }
    fn pop(&mut self) -> Option<BlockId> {
        let least = self.order.iter().copied().min_by_key(|block| self.depths[block.index()])?;
        self.take(least);
        Some(least)
    }
    fn take(&mut self, block: BlockId) {
        self.order.retain(|&other| other != block);
    }
    fn unpop(&mut self, block: BlockId) {
        self.release(block);
    }
    fn forget(&mut self, block: BlockId) {
        self.take(block);
    }
    fn clear(&mut self) {
        self.order.clear();
    }
    fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        self.depths.resize(num_blocks, 0);
        Ok(())
    }
    fn check_invariants(&self) -> Result<(), InvariantViolation> {
        Ok(())
    }
}

#[test]
fn of_one_release_the_deepest_goes_first_and_the_depth_is_the_position_in_the_table() {
    let mut pool = pool("s3-fifo");
    let table = take(&mut pool, 3);
    cache(&mut pool, Start::at(0), &table[..2], &[1, 2, 3], 1);
    cache(&mut pool, Start::at(2), &table[2..], &[1, 2, 3], 1);
    pool.free(table).unwrap();
    assert_eq!(cached(&pool), [3, 2, 1]);
    // What is deep goes last, though it came first.
    let by_depth = || {
        let mut pool = Pool::with_policy(8, true, eviction_policy!("by-depth", ByDepth::new)).unwrap();
        pool.chain_group(CHAINED);
        pool
    };
    let mut pool = by_depth();
    let table = take(&mut pool, 2);
    cache(&mut pool, Start::at(2), &table[..1], &[1, 2, 3], CHAINED);
    pool.free([1]).unwrap();
    cache(&mut pool, Start::at(0), &table[1..], &[9], CHAINED);
    pool.free([2]).unwrap();
    assert_eq!(cached(&pool), [2, 1]);
    // Moved, it is as deep as it was.
    let mut pool = by_depth();
    let table = take(&mut pool, 3);
    cache(&mut pool, Start::at(2), &table[..1], &[1, 2, 3], CHAINED);
    pool.move_hashes(1, 3).unwrap();
    pool.free([3]).unwrap();
    cache(&mut pool, Start::at(0), &table[1..2], &[9], CHAINED);
    pool.free([2]).unwrap();
    assert_eq!(cached(&pool), [2, 3]);
}

#[test]
fn a_group_is_chained_from_the_time_it_is_said_to_be() {
    let mut pool = Pool::with_policy(8, true, kvpool_policies::S3_FIFO).unwrap();
    let table = take(&mut pool, 4);
    cache(&mut pool, Start::at(0), &table[..2], &[1, 2], 5);
    pool.chain_group(5);
    pool.chain_group(5);
    cache(&mut pool, Start::at(0), &table[2..], &[3, 4], 5);
    for block in table {
        pool.free([block]).unwrap();
    }
    assert_eq!(cached(&pool), [1, 2, 4, 3]);
}

#[test]
fn of_two_copies_each_hangs_on_its_own() {
    let mut pool = pool("s3-fifo");
    let table = take(&mut pool, 4);
    cache(&mut pool, Start::at(0), &table[..2], &[1, 2], CHAINED);
    cache(&mut pool, Start::at(0), &table[2..], &[1, 2], CHAINED);
    pool.free([1, 3, 2]).unwrap();
    // Block 4 is in use, and so is not in the way of block 3.
    assert_eq!(cached(&pool), [2, 1, 3]);
    pool.free([4]).unwrap();
    assert_eq!(cached(&pool), [2, 1, 4, 3]);
}

#[test]
fn a_part_of_a_block_hangs_on_the_block_under_the_parents_key_and_the_full_block_is_another_content() {
    let mut pool = pool("s3-fifo");
    let table = take(&mut pool, 2);
    let parent = key(&[1], CHAINED);
    cache(&mut pool, Start::at(0), &table[..1], &[1], CHAINED);
    pool.insert_hash_behind(half(&[1], CHAINED), 2, Some(6), 1, Some(&parent));
    pool.free([1]).unwrap();
    pool.free([2]).unwrap();
    assert_eq!(cached(&pool), [2, 1]);
    // Used as a part, it is no favourite as the full block that takes its place.
    for _ in 0..3 {
        pool.touch(&[2]).unwrap();
        pool.free([2]).unwrap();
    }
    pool.touch(&[2]).unwrap();
    singles(&mut pool, &[9]);
    pool.touch(&[3]).unwrap();
    pool.free([3]).unwrap();
    cache(&mut pool, Start { first: 1, before: Some(1) }, &[2], &[1, 2], CHAINED);
    pool.free([2]).unwrap();
    pool.check_invariants().unwrap();
    assert_eq!(cached(&pool), [2, 1, 3]);
}

#[test]
fn a_free_block_whose_hash_is_dropped_is_reused_next() {
    for drop in [0, 1, 2, 3] {
        let mut pool = pool("s3-fifo");
        singles(&mut pool, &[1, 2, 3]);
        match drop {
            0 | 1 => assert_eq!(pool.evict(2, drop == 1).unwrap().len(), 1),
            2 => assert_eq!(pool.remove_hashes(2).len(), 1),
            _ => {
                pool.reset_hash(2);
                assert!(pool.remove_from_index(&key(&[2], CHAINED), 2));
            }
        }
        pool.check_invariants().unwrap();
        assert_eq!(pool.order().collect::<Vec<_>>(), [2, 4, 5, 6, 7, 1, 3], "way {drop}");
        assert_eq!(take(&mut pool, 7), [2, 4, 5, 6, 7, 1, 3]);
    }
}

#[test]
fn what_hung_on_a_dropped_block_hangs_on_nothing() {
    let mut pool = pool("s3-fifo");
    let table = take(&mut pool, 3);
    cache(&mut pool, Start::at(0), &table, &[1, 2, 3], CHAINED);
    for block in table {
        pool.free([block]).unwrap();
    }
    assert_eq!(cached(&pool), [3, 2, 1]);
    pool.evict(2, true).unwrap();
    assert_eq!(pool.order().collect::<Vec<_>>(), [2, 4, 5, 6, 7, 1, 3]);
}

#[test]
fn a_reset_forgets_the_history_and_every_block_is_free_again() {
    let mut pool = pool("s3-fifo");
    singles(&mut pool, &[1, 2, 3]);
    for _ in 0..3 {
        pool.touch(&[1]).unwrap();
        pool.free([1]).unwrap();
    }
    assert!(pool.reset());
    pool.check_invariants().unwrap();
    assert_eq!(pool.order().collect::<Vec<_>>(), [4, 5, 6, 7, 2, 3, 1]);
    assert_eq!(take(&mut pool, 7), [4, 5, 6, 7, 2, 3, 1]);
    for block in [1, 2] {
        cache(&mut pool, Start::at(0), &[block], &[block as u8], CHAINED);
        pool.free([block]).unwrap();
    }
    assert_eq!(cached(&pool), [1, 2], "what was used often before the reset is not known");
}

#[test]
fn a_block_that_is_unpinned_without_a_hash_may_be_cached_where_it_stands() {
    for policy in policies() {
        let mut pool = Pool::with_policy(4, true, policy).unwrap();
        take(&mut pool, 2);
        pool.unpin(&[1, 2]).unwrap();
        assert!(pool.insert_hash(key(&[1], CHAINED), 1, Some(4)));
        pool.check_invariants().unwrap();
        let mut all = pool.order().collect::<Vec<_>>();
        all.sort_unstable();
        assert_eq!(all, [1, 2, 3], "{policy:?}");
        pool.touch(&[1, 2]).unwrap();
        pool.free([2, 1]).unwrap();
        assert_eq!(pool.order().collect::<Vec<_>>(), [2, 3, 1], "{policy:?}");
    }
}

#[test]
fn what_is_made_up_for_a_block_without_a_hash_ends_with_its_stay() {
    let mut pool = pool("s3-fifo");
    take(&mut pool, 2);
    for _ in 0..3 {
        pool.unpin(&[1]).unwrap();
        pool.touch(&[1]).unwrap();
    }
    pool.unpin(&[1]).unwrap();
    pool.unpin(&[2]).unwrap();
    assert_eq!(pool.order().collect::<Vec<_>>(), [3, 4, 5, 6, 7, 1, 2]);
}

#[test]
fn a_further_key_is_no_new_content() {
    let mut pool = pool("s3-fifo");
    singles(&mut pool, &[1, 2]);
    pool.touch(&[1]).unwrap();
    pool.touch(&[1]).unwrap();
    pool.insert_hash(half(&[1], CHAINED), 1, Some(6));
    pool.free([1, 1]).unwrap();
    assert_eq!(cached(&pool), [2, 1], "the two uses before it count");
}

#[test]
fn what_is_taken_out_of_the_queue_by_hand_is_known_until_somebody_claims_it() {
    let mut pool = pool("s3-fifo");
    singles(&mut pool, &[1]);
    let taken = pool.pop_from_queue(7);
    assert_eq!((taken.last(), pool.find(&key(&[1], CHAINED))), (Some(&1), Some(1)));
    pool.check_representation().unwrap();
    let mut removed = Vec::new();
    pool.claim(&taken, Some(&mut removed)).unwrap();
    assert_eq!((removed.len(), pool.find(&key(&[1], CHAINED))), (1, None));
    pool.check_invariants().unwrap();
}

#[test]
fn what_is_popped_and_claimed_was_evicted_as_far_as_the_policy_knows() {
    // As an allocation that somebody watches: the content is known again when it comes back.
    let reused = |by_hand: bool| {
        let mut pool = pool("arc");
        singles(&mut pool, &[1, 2, 3, 4, 5, 6, 7]);
        for _ in 0..4 {
            pool.touch(&[1]).unwrap();
            pool.free([1]).unwrap();
        }
        if by_hand {
            let taken = pool.pop_from_queue(7);
            pool.claim(&taken, None).unwrap();
        } else {
            take(&mut pool, 7);
        }
        for (block, prompt) in (1..8).zip([1, 12, 13, 14, 15, 16, 17]) {
            cache(&mut pool, Start::at(0), &[block], &[prompt], CHAINED);
            pool.free([block]).unwrap();
        }
        cached(&pool)
    };
    assert_eq!(reused(true), reused(false));
    assert_eq!(reused(true).last(), Some(&1));
}

#[test]
fn without_caching_no_policy_is_told_anything() {
    for policy in policies() {
        let mut pool = Pool::with_policy(4, false, policy).unwrap();
        assert!(!pool.keeps_history());
        take(&mut pool, 2);
        pool.insert_hash(key(&[1], CHAINED), 1, Some(4));
        pool.free([2, 1]).unwrap();
        pool.check_invariants().unwrap();
        assert_eq!(pool.order().collect::<Vec<_>>(), [2, 1, 3], "{policy:?}");
    }
    assert!(!Pool::new(4, true).unwrap().keeps_history());
}
