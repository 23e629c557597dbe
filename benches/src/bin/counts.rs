//! Runs operations of the pool for `tools/bench_counts.py`, which counts their instructions. Each
//! operation is a separate function, so that only its own instructions are counted. The operations are
//! those of the core, of vLLM's pool, of a manager and of a pool with each observer. Pools with
//! `hazard` and with LRU inside the same `Closed` show the cost of `Closed`. Prints the number of
//! blocks of each operation, or of rows for a decode step.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a tool that stops at the first error")]

use std::hint::black_box;
use std::sync::Arc;

use kvpool::{
    Admission, BlockHasher, BlockId, BlockPool, CacheManager, Computed, EvictionPolicy, ExtraKeys, HashChain,
    HashCursor, HasherConfig, ManagerConfig, PoolConfig, PoolError, RequestRef,
};
use kvpool_benches::{REQUEST_BLOCKS, chain, fill, pool, store, vllm};
use kvpool_observe::publish::{Group, Publisher, SinkConfig};
use kvpool_observe::{AdvisorConfig, FeedBatch, PoolWatch, WatchConfig};
use kvpool_vllm::Pool;

const BLOCKS: usize = 1 << 16;
const REQUESTS: usize = 64;

#[inline(never)]
fn counted_hit(pool: &mut BlockPool, chain: &HashChain) -> Vec<BlockId> {
    pool.match_and_acquire(chain, usize::MAX).unwrap()
}

#[inline(never)]
fn counted_release(pool: &mut BlockPool, table: &[BlockId]) {
    pool.release_table(table).unwrap();
}

#[inline(never)]
fn counted_store_cold(pool: &mut BlockPool, chain: &HashChain, table: &mut Vec<BlockId>) {
    store(pool, chain, table).unwrap();
}

#[inline(never)]
fn counted_store_evicting(pool: &mut BlockPool, chain: &HashChain, table: &mut Vec<BlockId>) {
    store(pool, chain, table).unwrap();
}

#[inline(never)]
fn counted_hit_fenced(pool: &mut BlockPool, chain: &HashChain) -> Vec<BlockId> {
    pool.match_and_acquire(chain, usize::MAX).unwrap()
}

#[inline(never)]
fn counted_release_fenced(pool: &mut BlockPool, table: &[BlockId]) {
    pool.release_table(table).unwrap();
}

#[inline(never)]
fn counted_vllm_hit(pool: &mut Pool, chain: &HashChain, table: &mut Vec<u32>) {
    vllm::hit(pool, chain, table).unwrap();
}

#[inline(never)]
fn counted_vllm_release(pool: &mut Pool, table: &[u32]) {
    pool.free(table.iter().rev().copied()).unwrap();
}

#[inline(never)]
fn counted_vllm_store_cold(pool: &mut Pool, chain: &HashChain, table: &mut Vec<u32>) {
    vllm::store(pool, chain, table).unwrap();
}

#[inline(never)]
fn counted_vllm_store_evicting(pool: &mut Pool, chain: &HashChain, table: &mut Vec<u32>) {
    vllm::store(pool, chain, table).unwrap();
}

#[inline(never)]
fn counted_manager_admit_cold(manager: &mut CacheManager, id: i64, prompt: HashCursor) -> Admission {
    manager.admit(id, prompt).unwrap()
}

#[inline(never)]
fn counted_manager_admit_cached(manager: &mut CacheManager, id: i64, prompt: HashCursor) -> Admission {
    manager.admit(id, prompt).unwrap()
}

#[inline(never)]
fn counted_manager_commit(manager: &mut CacheManager, id: i64, tokens: usize) {
    manager.commit(id, tokens).unwrap();
}

#[inline(never)]
fn counted_manager_release(manager: &mut CacheManager, id: i64) {
    manager.release(id, None).unwrap();
}

#[inline(never)]
fn counted_manager_append(manager: &mut CacheManager, ids: &[RequestRef<'_>], tokens: &[u32]) {
    manager.append(ids, tokens, Computed::AllButLast).unwrap();
}

/// Runs whole requests in a manager with one KV-cache group. The instructions to hash the prompts are
/// not counted.
fn manager() {
    let mut manager =
        CacheManager::new(ManagerConfig { num_blocks: BLOCKS, ..ManagerConfig::default() }).unwrap();
    let length = REQUEST_BLOCKS * 16 + 1;
    let prompt = |manager: &CacheManager, nth: usize| {
        let tokens: Vec<u32> = (0..length).map(|at| (nth * length + at) as u32).collect();
        manager.prepare(&tokens, ExtraKeys::default()).unwrap()
    };
    for nth in 0..REQUESTS {
        let id = nth as i64;
        let cold = prompt(&manager, nth);
        counted_manager_admit_cold(&mut manager, id, cold);
        counted_manager_commit(&mut manager, id, length);
        manager.release(id, None).unwrap();
    }
    for nth in 0..REQUESTS {
        let id = nth as i64;
        let cached = prompt(&manager, nth);
        counted_manager_admit_cached(&mut manager, id, cached);
        counted_manager_release(&mut manager, id);
    }
    let ids: Vec<_> = (0..256).map(RequestRef::Int).collect();
    for nth in 0..ids.len() {
        // The lengths of the prompts differ, so that in each step a sixteenth of the batch fills a
        // block.
        let tokens: Vec<u32> =
            (0..(100 + nth % 16) as u32).map(|at| 1 << 30 | (nth as u32) << 10 | at).collect();
        let cursor = manager.prepare(&tokens, ExtraKeys::default()).unwrap();
        manager.admit(nth as i64, cursor).unwrap();
    }
    for step in 0..(REQUESTS * REQUEST_BLOCKS / ids.len()) as u32 {
        counted_manager_append(&mut manager, &ids, &vec![step; ids.len()]);
    }
}

/// Counts hits, releases, and stores that evict, in a pool with one observer or with a policy other
/// than LRU.
macro_rules! watched {
    ($run:ident, $pool:expr, $hit:ident, $release:ident, $store:ident) => {
        #[inline(never)]
        fn $hit(pool: &mut BlockPool, chain: &HashChain) -> Vec<BlockId> {
            pool.match_and_acquire(chain, usize::MAX).unwrap()
        }

        #[inline(never)]
        fn $release(pool: &mut BlockPool, table: &[BlockId]) {
            pool.release_table(table).unwrap();
        }

        #[inline(never)]
        fn $store(pool: &mut BlockPool, chain: &HashChain, table: &mut Vec<BlockId>) {
            store(pool, chain, table).unwrap();
        }

        fn $run() {
            let made: fn() -> Result<BlockPool, PoolError> = $pool;
            let mut pool = made().unwrap();
            let chains = fill(&mut pool).unwrap();
            for nth in 0..REQUESTS {
                let table = $hit(&mut pool, &chains[nth * 37 % chains.len()]);
                $release(&mut pool, &table);
                pool.take_events();
            }
            let mut table = Vec::new();
            for nth in 0..REQUESTS as u64 {
                let new = chain(1 << 33 | nth, REQUEST_BLOCKS).unwrap();
                $store(&mut pool, &new, &mut table);
                pool.release_table(&table).unwrap();
                pool.take_events();
            }
        }
    };
}

watched!(
    events,
    || pool(BLOCKS)?.watched(&WatchConfig { event_capacity: 1 << 20, ..WatchConfig::default() }),
    counted_hit_events,
    counted_release_events,
    counted_store_evicting_events
);
watched!(
    digest,
    || pool(BLOCKS)?.watched(&WatchConfig { digest: true, ..WatchConfig::default() }),
    counted_hit_digest,
    counted_release_digest,
    counted_store_evicting_digest
);
watched!(
    journal_digest,
    || {
        let mut pool = pool(BLOCKS)?;
        pool.keep_digest().map(|()| pool)
    },
    counted_hit_journal_digest,
    counted_release_journal_digest,
    counted_store_evicting_journal_digest
);
watched!(
    advisor,
    || {
        let advisor = Some(AdvisorConfig::default());
        pool(BLOCKS)?.watched(&WatchConfig { advisor, ..WatchConfig::default() })
    },
    counted_hit_advisor,
    counted_release_advisor,
    counted_store_evicting_advisor
);

/// Stores new blocks into a pool with free blocks and into a full one, with and without a feed. Also
/// runs a publisher over the resulting feed: one stored block and one removed block.
macro_rules! fed {
    ($run:ident, $feed:expr, $store:ident, $evicting:ident, $publish:ident) => {
        #[inline(never)]
        fn $store(pool: &mut BlockPool, chain: &HashChain, table: &mut Vec<BlockId>) {
            store(pool, chain, table).unwrap();
        }

        #[inline(never)]
        fn $evicting(pool: &mut BlockPool, chain: &HashChain, table: &mut Vec<BlockId>) {
            // `black_box` makes the body differ from that of the function above. The compiler would
            // merge two equal functions.
            store(pool, black_box(chain), table).unwrap();
        }

        #[inline(never)]
        fn $publish(publisher: &mut Publisher, batch: &FeedBatch) {
            publisher.take_in(0, batch);
            black_box(publisher.flush(0.0, 1e9));
        }

        fn $run() {
            let mut pool = pool(BLOCKS).unwrap();
            if $feed {
                pool.keep_feed(1 << 22).unwrap();
            }
            let hasher = Arc::new(BlockHasher::new(HasherConfig::default()).unwrap());
            // Hash the chains from real tokens, as a manager does.
            let chain = |nth: u32| {
                let size = hasher.block_size() as u32;
                let mut cursor = HashCursor::new(hasher.clone(), ExtraKeys::default()).unwrap();
                let first = nth * REQUEST_BLOCKS as u32 * size;
                cursor.append(&(first..first + REQUEST_BLOCKS as u32 * size).collect::<Vec<u32>>());
                cursor.chain().clone()
            };
            let mut publisher = Publisher::new(vec![Group::full(hasher.block_size())], 0, 1).unwrap();
            publisher.add(SinkConfig { replay_batches: 1, ..SinkConfig::default() });
            let (mut table, mut batch) = (Vec::new(), FeedBatch::default());
            let full = BLOCKS / REQUEST_BLOCKS;
            for nth in 0..full + REQUESTS {
                match nth {
                    _ if nth < REQUESTS => $store(&mut pool, &chain(nth as u32), &mut table),
                    _ if nth < full => store(&mut pool, &chain(nth as u32), &mut table).unwrap(),
                    _ => $evicting(&mut pool, &chain(nth as u32), &mut table),
                }
                pool.release_table(&table).unwrap();
                pool.take_feed(&mut batch);
                if nth < full {
                    publisher.take_in(0, &batch);
                    publisher.flush(0.0, 1e9);
                } else {
                    $publish(&mut publisher, &batch);
                }
            }
        }
    };
}

fed!(unfed, false, counted_store_unfed, counted_store_evicting_unfed, counted_publish_nothing);
fed!(feed, true, counted_store_fed, counted_store_evicting_fed, counted_publish);

/// The LRU policy inside `Closed`, which a pool with retention uses. Its instructions are counted
/// without retention here.
const CLOSED_LRU: EvictionPolicy =
    kvpool_policies::eviction_policy!("closed-lru", kvpool_policies::Recency::new);

fn with_policy(eviction: EvictionPolicy) -> Result<BlockPool, PoolError> {
    BlockPool::new(PoolConfig { num_blocks: BLOCKS, eviction, ..PoolConfig::default() })
}

watched!(
    hazard,
    || with_policy(kvpool_policies::HAZARD),
    counted_hit_hazard,
    counted_release_hazard,
    counted_store_evicting_hazard
);
watched!(
    closed,
    || with_policy(CLOSED_LRU),
    counted_hit_closed,
    counted_release_closed,
    counted_store_evicting_closed
);

/// The operations of vLLM's pool.
fn face() {
    let mut pool = Pool::new(BLOCKS, true).unwrap();
    let mut table = Vec::new();
    for nth in 0..REQUESTS as u64 {
        let cold = chain(1 << 32 | nth, REQUEST_BLOCKS).unwrap();
        counted_vllm_store_cold(&mut pool, &cold, &mut table);
        pool.free(table.iter().rev().copied()).unwrap();
    }
    assert!(pool.reset());
    let chains = vllm::fill(&mut pool).unwrap();
    for nth in 0..REQUESTS {
        counted_vllm_hit(&mut pool, &chains[nth * 37 % chains.len()], &mut table);
        counted_vllm_release(&mut pool, &table);
    }
    for nth in 0..REQUESTS as u64 {
        let new = chain(1 << 33 | nth, REQUEST_BLOCKS).unwrap();
        counted_vllm_store_evicting(&mut pool, &new, &mut table);
        pool.free(table.iter().rev().copied()).unwrap();
    }
}

fn main() {
    face();
    manager();
    events();
    digest();
    journal_digest();
    advisor();
    unfed();
    feed();
    hazard();
    closed();
    let mut pool = pool(BLOCKS).unwrap();
    let mut table = Vec::new();
    for nth in 0..REQUESTS as u64 {
        let cold = chain(1 << 32 | nth, REQUEST_BLOCKS).unwrap();
        counted_store_cold(&mut pool, &cold, &mut table);
        pool.release_table(&table).unwrap();
    }
    pool.reset().unwrap();
    let chains = fill(&mut pool).unwrap();
    for nth in 0..REQUESTS {
        let table = counted_hit(&mut pool, &chains[nth * 37 % chains.len()]);
        counted_release(&mut pool, &table);
    }
    let held = pool.allocate(REQUEST_BLOCKS).unwrap();
    pool.release_after(&held, 1).unwrap();
    for nth in 0..REQUESTS {
        let table = counted_hit_fenced(&mut pool, &chains[nth * 37 % chains.len()]);
        counted_release_fenced(&mut pool, &table);
    }
    pool.complete_step(1).unwrap();
    for nth in 0..REQUESTS as u64 {
        let new = chain(1 << 33 | nth, REQUEST_BLOCKS).unwrap();
        counted_store_evicting(&mut pool, &new, &mut table);
        pool.release_table(&table).unwrap();
    }
    println!("{}", REQUESTS * REQUEST_BLOCKS);
}
