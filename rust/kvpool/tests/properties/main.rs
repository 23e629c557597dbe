//! Tests properties that historical bugs of KV-cache systems violated. Each module tests one property,
//! and code with the bug fails the test.
//!
//! The numbers are from the list of 25 bugs on which the design is based; `design/properties.md`
//! contains this list. Where possible, these tests try every interleaving. They check what an engine
//! would see: an [`Engine`] keeps simulated KV memory and reads it back on every hit.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail by panicking, as tests do")]

mod engine;
mod histories;
mod p01_freed_twice;
mod p02_one_list;
mod p03_impossible_allocation;
mod p04_failed_calls;
mod p05_two_owners;
mod p06_free_before_cached;
mod p07_fenced;
mod p08_preemption_ends;
mod p09_window_in_flight;
mod p10_abort_in_any_state;
mod p11_stale_readers;
mod p12_open_lease;
mod p13_events_replayed;
mod p14_event_parents;
mod p15_event_lengths;
mod p16_indexed_content;
mod p17_superseded_partial;
mod p18_extra_keys;
mod p19_same_digests;
mod p20_duplicates;
mod p21_exact_sums;
mod p22_eviction_ends;
mod p23_evictable_can_be_had;
mod p24_failed_steps_and_epochs;
mod p25_hits_add_up;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use kvpool::hash::{HashChain, MultimodalItem};
use kvpool::{
    Adapter, Admission, BlockHash, BlockHasher, BlockId, BlockPool, BlockState, CacheManager, Candidate,
    ChainLink, Computed, DuplicatePolicy, EvictionPolicy, Evictor, ExtraKeys, HashAlgorithm, HashCursor,
    HasherConfig, InvariantViolation, LruEvictor, ManagerConfig, ManagerError, PoolConfig, PoolError,
    PrefixIndex, Refusal, RequestRef, RequestState, SwapId, TierError, Tiers, Verify,
};
use kvpool_observe::{BlockEvent, ManagerWatch, ManagerWatchConfig, PoolWatch, TierWatch, WatchConfig};
use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence, TestRunner};

use engine::*;

/// Number of tokens per block in all of these tests.
const B: usize = 2;

fn id(id: u32) -> BlockId {
    BlockId::new(id)
}

fn ids(ids: &[u32]) -> Vec<BlockId> {
    ids.iter().copied().map(BlockId::new).collect()
}

fn raw(blocks: &[BlockId]) -> Vec<u32> {
    blocks.iter().map(|block| block.get()).collect()
}

fn pool(usable: usize) -> BlockPool {
    BlockPool::new(PoolConfig { num_blocks: usable + 1, block_size: B, ..Default::default() }).unwrap()
}

/// Returns the settings of pool observers with only an event log.
fn events(event_capacity: usize) -> WatchConfig {
    WatchConfig { event_capacity, ..Default::default() }
}

/// Returns the settings of manager observers with only an event log.
fn manager_events(event_capacity: usize) -> ManagerWatchConfig {
    ManagerWatchConfig { event_capacity, ..Default::default() }
}

fn hasher() -> Arc<BlockHasher> {
    static HASHER: OnceLock<Arc<BlockHasher>> = OnceLock::new();
    let make = || Arc::new(BlockHasher::new(HasherConfig { block_size: B, ..Default::default() }).unwrap());
    Arc::clone(HASHER.get_or_init(make))
}

/// Returns the chain of `tokens` in an epoch.
fn chain_in(epoch: u64, tokens: &[u32]) -> HashChain {
    let mut cursor = HashCursor::new(hasher(), ExtraKeys { epoch, ..Default::default() }).unwrap();
    cursor.append(tokens);
    cursor.chain().clone()
}

fn chain(tokens: &[u32]) -> HashChain {
    chain_in(0, tokens)
}

/// Allocates blocks for `tokens`, registers them and marks them as computed. Returns the blocks, which
/// remain held.
fn fill(pool: &mut BlockPool, tokens: &[u32]) -> Vec<BlockId> {
    let chain = chain_in(pool.epoch(), tokens);
    let blocks = pool.allocate(chain.len()).unwrap();
    pool.register(&blocks, &chain, 0).unwrap();
    pool.mark_computed(&blocks).unwrap();
    blocks
}

/// Calls [`fill`] and releases the blocks, which are then cached-free.
fn cache(pool: &mut BlockPool, tokens: &[u32]) -> Vec<BlockId> {
    let blocks = fill(pool, tokens);
    pool.release_table(&blocks).unwrap();
    blocks
}

fn all_blocks(pool: &BlockPool) -> impl Iterator<Item = BlockId> + use<> {
    (0..pool.num_blocks() as u32).map(BlockId::new)
}

/// Returns everything that a caller can read of a pool's state.
fn observe(pool: &BlockPool) -> impl PartialEq + std::fmt::Debug + use<> {
    let block = |b| {
        (pool.ref_count(b), pool.fence_references(b), pool.state(b), pool.hash_of(b), pool.is_computed(b))
    };
    let blocks: Vec<_> = all_blocks(pool).map(block).collect();
    (pool.free_order(), pool.eviction_order(), pool.stats(), pool.epoch(), blocks)
}

/// Returns everything that a caller can read of a manager's state. The number of refused calls is left
/// out, because a refusal changes it.
fn observe_manager(manager: &CacheManager) -> impl PartialEq + std::fmt::Debug + use<> {
    let mut stats = manager.stats();
    stats.refusals = 0;
    let request = |id: i64| (manager.request(id).ok(), manager.block_table(id).ok().map(<[_]>::to_vec));
    (observe(manager.pool()), stats, (0..12).map(request).collect::<Vec<_>>())
}

/// Returns the numbers of blocks that are (free, cached-free, active, fenced). They are counted from
/// the lists and the references, not read from the pool's counters.
fn recount(pool: &BlockPool) -> (usize, usize, usize, usize) {
    let held = |b: &BlockId| pool.ref_count(*b).unwrap() > 0;
    let fenced = |b: &BlockId| held(b) && pool.ref_count(*b) == Some(pool.fence_references(*b));
    let usable = || all_blocks(pool).skip(1);
    (
        usable().filter(|b| !held(b) && pool.free_order().contains(b)).count(),
        usable().filter(|b| !held(b) && pool.eviction_order().contains(b)).count(),
        usable().filter(|b| held(b) && !fenced(b)).count(),
        usable().filter(fenced).count(),
    )
}

fn sums(pool: &BlockPool) -> (usize, usize, usize, usize) {
    let stats = pool.stats();
    (stats.free, stats.cached_free, stats.active, stats.fenced)
}

/// Returns all permutations of the numbers `0..n`.
fn permutations(n: usize) -> Vec<Vec<usize>> {
    if n == 0 {
        return vec![Vec::new()];
    }
    let shorter = permutations(n - 1);
    let insert = |order: &Vec<usize>, at| {
        let mut order = order.clone();
        order.insert(at, n - 1);
        order
    };
    shorter.iter().flat_map(|order| (0..n).map(move |at| insert(order, at))).collect()
}

/// Returns all interleavings of `programs` programs with `steps` steps each. An interleaving lists, for
/// each step, the program that runs it.
fn interleavings(programs: usize, steps: usize) -> Vec<Vec<usize>> {
    fn go(left: &mut [usize], so_far: &mut Vec<usize>, out: &mut Vec<Vec<usize>>) {
        if left.iter().all(|&n| n == 0) {
            out.push(so_far.clone());
        }
        for at in 0..left.len() {
            if left[at] > 0 {
                left[at] -= 1;
                so_far.push(at);
                go(left, so_far, out);
                so_far.pop();
                left[at] += 1;
            }
        }
    }
    let mut out = Vec::new();
    go(&mut vec![steps; programs], &mut Vec::new(), &mut out);
    out
}

/// Returns a runner for `cases` cases of the tests of `file`. A failing case is shrunk, and its seed is
/// stored beside the file.
fn runner(file: &'static str, cases: u32) -> TestRunner {
    TestRunner::new(Config {
        cases,
        source_file: Some(file),
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..Config::default()
    })
}
