//! Measures the time of each policy per block, for several pool sizes. One benchmark hits and releases
//! blocks. The other evicts blocks, with all work that an eviction causes.
//!
//! Checked limit: the time is "flat from 64 k to 4 M blocks" for every policy, except those that state
//! O(log n). Each figure is for a request of 512 blocks in a full pool. Each iteration uses other
//! chains, and the chains cover the whole pool. So the figures for a large pool include its cache
//! misses. `lru` is measured twice: in a plain pool, and inside `Closed` with retention (`+r`), because
//! all other policies run in that form.
#![expect(clippy::unwrap_used, reason = "a bench stops at the first error")]

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kvpool::retention::RetentionConfig;
use kvpool::{BlockId, BlockPool, EvictionPolicy, HashChain, PoolConfig, PoolError};
use kvpool_benches::{REQUEST_BLOCKS, chain, fill, store, time};

const SIZES: [usize; 4] = [1 << 16, 1 << 18, 1 << 20, 1 << 22];

struct State {
    pool: BlockPool,
    chains: Vec<HashChain>,
    turn: usize,
    table: Vec<BlockId>,
    fresh: u64,
}

impl State {
    fn full(num_blocks: usize, eviction: EvictionPolicy, retention: Option<RetentionConfig>) -> Self {
        let config = PoolConfig { num_blocks, eviction, retention, ..PoolConfig::default() };
        let mut pool = BlockPool::new(config).unwrap();
        let chains = fill(&mut pool).unwrap();
        Self { pool, chains, turn: 0, table: Vec::new(), fresh: 1 << 40 }
    }

    /// Returns the number of the next chain. It is 37 more than the number that the previous call
    /// returned, so that the blocks of the chain are not in the processor's caches.
    fn next(&mut self) -> usize {
        self.turn = (self.turn + 37) % self.chains.len();
        self.turn
    }

    fn hit_and_release(&mut self) -> Result<(), PoolError> {
        let at = self.next();
        self.table = self.pool.match_and_acquire(&self.chains[at], usize::MAX)?;
        self.pool.release_table(&self.table)
    }
}

fn per_block(criterion: &mut Criterion) {
    let retention = Some(RetentionConfig::default());
    let with = kvpool_policies::ALL.iter().map(|&policy| (policy, retention.clone()));
    let cases = kvpool_policies::ALL.iter().map(|&policy| (policy, None)).chain(with);
    for (policy, retention) in cases {
        if policy.build(8, retention.as_ref()).is_err() {
            continue; // access times do not support retention
        }
        let name = format!("evictors/{}{}", policy.name(), if retention.is_some() { "+r" } else { "" });
        let mut group = criterion.benchmark_group(name);
        group.throughput(Throughput::Elements(REQUEST_BLOCKS as u64));
        group.sample_size(20);
        for size in SIZES {
            let mut state = None; // filled when the first bench that the filter selects needs it
            let full = || State::full(size, policy, retention.clone());
            group.bench_function(BenchmarkId::new("hit_and_release", size), |bencher| {
                let state = state.get_or_insert_with(full);
                bencher.iter_custom(|n| time(n, state, State::hit_and_release, |_| Ok(())).unwrap());
            });
            // Stores new content in a full pool, so that every block evicts another one. The times to
            // create the chain and to release its blocks are not included.
            group.bench_function(BenchmarkId::new("evict", size), |bencher| {
                let state = state.get_or_insert_with(full);
                bencher.iter_custom(|n| {
                    let mut new = chain(state.fresh, REQUEST_BLOCKS).unwrap();
                    let evict = |(s, new): &mut (&mut State, &mut HashChain)| {
                        store(&mut s.pool, new, &mut s.table)?;
                        black_box(&s.table);
                        Ok(())
                    };
                    let after = |(s, new): &mut (&mut State, &mut HashChain)| {
                        s.fresh += 1;
                        **new = chain(s.fresh, REQUEST_BLOCKS)?;
                        s.pool.release_table(&s.table)
                    };
                    time::<_, PoolError>(n, &mut (&mut *state, &mut new), evict, after).unwrap()
                });
            });
        }
        group.finish();
    }
}

criterion_group!(benches, per_block);
criterion_main!(benches);
