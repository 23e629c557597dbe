//! Measures the cost of the observers that check a pool: the per-block operations with a digest of the
//! state, the digest itself, the scrubber, and metrics.
//!
//! Limits: a digest costs a few nanoseconds per changed block, and the scrubber costs some tens of
//! nanoseconds per checked block. Except for cache misses, neither depends on the size of the pool.
//! Compare the results with the benchmark `pool`, which has no digest.
#![expect(clippy::unwrap_used, reason = "a bench stops at the first error")]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kvpool::{BlockId, BlockPool, HashChain, PoolError};
use kvpool_benches::{REQUEST_BLOCKS, fill, pool, store, time};
use kvpool_observe::{PoolWatch, Scrubber, WatchConfig};

const SIZES: [usize; 2] = [1 << 16, 1 << 20];

struct State {
    pool: BlockPool,
    scrubber: Scrubber,
    chains: Vec<HashChain>,
    turn: usize,
    table: Vec<BlockId>,
}

impl State {
    fn full(num_blocks: usize, watched: &str) -> Self {
        let (digest, metrics) = (watched == "_digested", watched == "_metered");
        let watch = WatchConfig { digest, metrics, ..WatchConfig::default() };
        let mut pool = pool(num_blocks).unwrap().watched(&watch).unwrap();
        let chains = fill(&mut pool).unwrap();
        Self { pool, scrubber: Scrubber::default(), chains, turn: 0, table: Vec::new() }
    }

    fn hit(&mut self) -> Result<(), PoolError> {
        self.turn = (self.turn + 37) % self.chains.len();
        self.table = self.pool.match_and_acquire(&self.chains[self.turn], usize::MAX)?;
        Ok(())
    }

    fn release(&mut self) -> Result<(), PoolError> {
        self.pool.release_table(&self.table)
    }

    fn evict(&mut self) -> Result<(), PoolError> {
        self.pool.drop_cached(&self.table)?;
        self.release()
    }

    fn store(&mut self) -> Result<(), PoolError> {
        self.turn = (self.turn + 37) % self.chains.len();
        store(&mut self.pool, &self.chains[self.turn], &mut self.table)
    }
}

fn per_block(criterion: &mut Criterion) {
    for size in SIZES {
        let mut group = criterion.benchmark_group("evidence");
        group.throughput(Throughput::Elements(REQUEST_BLOCKS as u64));
        for watched in ["", "_digested", "_metered"] {
            let id = |name: &str| BenchmarkId::new(format!("{name}{watched}"), size);
            let mut state = State::full(size, watched);
            state.pool.observe_time(1.0).unwrap();
            group.bench_function(id("hit"), |bencher| {
                bencher.iter_custom(|n| time(n, &mut state, State::hit, State::release).unwrap());
            });
            group.bench_function(id("release"), |bencher| {
                bencher.iter_custom(|n| {
                    state.hit().unwrap();
                    let time = time(n, &mut state, State::release, State::hit).unwrap();
                    state.release().unwrap();
                    time
                });
            });
            group.bench_function(id("scrub"), |bencher| {
                let scrub = |s: &mut State| s.scrubber.scrub(&mut s.pool, REQUEST_BLOCKS).map(drop);
                bencher.iter_custom(|n| time(n, &mut state, scrub, |_| Ok(())).unwrap());
            });
            if watched == "_digested" {
                group.bench_function(id("digest"), |bencher| {
                    bencher.iter_custom(|n| {
                        let count = |s: &mut State| {
                            s.pool.state_digest();
                            Ok::<_, PoolError>(())
                        };
                        let touch = |s: &mut State| s.hit().and_then(|()| s.release());
                        touch(&mut state).unwrap();
                        time(n, &mut state, count, touch).unwrap()
                    });
                });
            }
            state.pool.reset().unwrap();
            group.bench_function(id("store_cold"), |bencher| {
                bencher.iter_custom(|n| time(n, &mut state, State::store, State::evict).unwrap());
            });
        }
        group.finish();
    }
}

criterion_group!(benches, per_block);
criterion_main!(benches);
