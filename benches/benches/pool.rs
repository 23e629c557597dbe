//! Measures the pool per block, over pool sizes: cold allocate and register, hit, release, allocation
//! with eviction.
//!
//! Checked rule: "cost never depends on pool size". Each figure is for a request of 512 blocks. Each
//! iteration uses other chains, and the chains cover the whole pool. So the figures for a large pool
//! include its cache misses.
#![expect(clippy::unwrap_used, reason = "a bench stops at the first error")]

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kvpool::{BlockId, BlockPool, HashChain, PoolError};
use kvpool_benches::{REQUEST_BLOCKS, chain, fill, pool, store, time};
use kvpool_observe::{AdvisorConfig, PoolWatch, WatchConfig};

/// Numbers of blocks of the pools. The records of 64 k blocks fit partly into the processor's
/// second-level cache, and those of 16 M blocks fit into no cache.
const SIZES: [usize; 4] = [1 << 16, 1 << 20, 1 << 22, 1 << 24];

/// Returns a pool with the advisor that the Python package uses by default.
fn advised(num_blocks: usize) -> Result<BlockPool, PoolError> {
    let advisor = Some(AdvisorConfig::default());
    pool(num_blocks)?.watched(&WatchConfig { advisor, ..WatchConfig::default() })
}

struct State {
    pool: BlockPool,
    chains: Vec<HashChain>,
    turn: usize,
    table: Vec<BlockId>,
}

impl State {
    fn full(num_blocks: usize) -> Self {
        Self::of(pool(num_blocks).unwrap())
    }

    fn of(mut pool: BlockPool) -> Self {
        let chains = fill(&mut pool).unwrap();
        Self { pool, chains, turn: 0, table: Vec::new() }
    }

    /// Returns the number of the next chain. It is far from the number that the previous call returned,
    /// so that its blocks are not in the processor's caches.
    fn next(&mut self) -> usize {
        self.turn = (self.turn + 37) % self.chains.len();
        self.turn
    }
}

fn per_block(criterion: &mut Criterion) {
    for size in SIZES {
        let mut group = criterion.benchmark_group("pool");
        group.throughput(Throughput::Elements(REQUEST_BLOCKS as u64));
        group.sample_size(if size > 1 << 20 { 20 } else { 100 });

        let mut state = State::full(size);
        group.bench_function(BenchmarkId::new("hit", size), |bencher| {
            bencher.iter_custom(|n| {
                let hit = |s: &mut State| {
                    let at = s.next();
                    s.table = s.pool.match_and_acquire(&s.chains[at], usize::MAX)?;
                    Ok(())
                };
                time(n, &mut state, hit, |s| s.pool.release_table(&s.table)).unwrap()
            });
        });
        // Measure hits with an advisor. Its sample represents the pool by 2,048 blocks, so most
        // references are not sampled.
        let mut advised = State::of(advised(size).unwrap());
        group.bench_function(BenchmarkId::new("hit_advised", size), |bencher| {
            bencher.iter_custom(|n| {
                let hit = |s: &mut State| {
                    let at = s.next();
                    s.table = s.pool.match_and_acquire(&s.chains[at], usize::MAX)?;
                    Ok(())
                };
                time(n, &mut advised, hit, |s| s.pool.release_table(&s.table)).unwrap()
            });
        });
        drop(advised);
        group.bench_function(BenchmarkId::new("release", size), |bencher| {
            bencher.iter_custom(|n| {
                let take = |s: &mut State| {
                    let at = s.next();
                    s.table = s.pool.match_and_acquire(&s.chains[at], usize::MAX)?;
                    Ok::<_, PoolError>(())
                };
                take(&mut state).unwrap();
                let time = time(n, &mut state, |s| s.pool.release_table(&s.table), take).unwrap();
                state.pool.release_table(&state.table).unwrap();
                time
            });
        });
        group.bench_function(BenchmarkId::new("probe", size), |bencher| {
            bencher.iter_custom(|n| {
                let probe = |s: &mut State| {
                    let at = s.next();
                    black_box(s.pool.probe(&s.chains[at], usize::MAX)?);
                    Ok::<_, PoolError>(())
                };
                time(n, &mut state, probe, |_| Ok(())).unwrap()
            });
        });
        // Stores new content in a full pool, so that every block evicts another one.
        let mut fresh = 1 << 40;
        group.bench_function(BenchmarkId::new("store_evicting", size), |bencher| {
            bencher.iter_custom(|n| {
                let mut next = chain(fresh, REQUEST_BLOCKS).unwrap();
                let mut total = std::time::Duration::ZERO;
                for _ in 0..n {
                    let start = std::time::Instant::now();
                    store(&mut state.pool, &next, &mut state.table).unwrap();
                    total += start.elapsed();
                    state.pool.release_table(&state.table).unwrap();
                    fresh += 1;
                    next = chain(fresh, REQUEST_BLOCKS).unwrap();
                }
                total
            });
        });
        // The next benchmark stores new content in an empty pool.
        state.pool.reset().unwrap();
        group.bench_function(BenchmarkId::new("store_cold", size), |bencher| {
            bencher.iter_custom(|n| {
                let cold = |s: &mut State| {
                    let at = s.next();
                    store(&mut s.pool, &s.chains[at], &mut s.table)
                };
                let clean = |s: &mut State| {
                    s.pool.drop_cached(&s.table)?;
                    s.pool.release_table(&s.table)
                };
                time(n, &mut state, cold, clean).unwrap()
            });
        });
        group.finish();
    }
}

fn construction(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("construct");
    group.sample_size(10);
    for size in [1 << 16, 1 << 24] {
        group.bench_function(BenchmarkId::from_parameter(size), |bencher| {
            bencher.iter_with_large_drop(|| pool(size).unwrap());
        });
    }
    group.finish();
}

criterion_group!(benches, per_block, construction);
criterion_main!(benches);
