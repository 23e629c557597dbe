//! Measures vLLM's pool and the core's own pool in one run: hit, release, cold store and store with
//! eviction, per block.
//!
//! Limit: vLLM's pool costs at most a third more than the core for the same request.
#![expect(clippy::unwrap_used, reason = "a bench stops at the first error")]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kvpool::{BlockId, BlockPool, HashChain, PoolError};
use kvpool_benches::{REQUEST_BLOCKS, chain, fill, pool, store, time, vllm};
use kvpool_vllm::{Pool, VllmError};

/// Numbers of blocks of the pools. The records of the first pool fit partly into the processor's
/// second-level cache, and those of the other into no cache.
const SIZES: [usize; 2] = [1 << 16, 1 << 22];

struct Core {
    pool: BlockPool,
    table: Vec<BlockId>,
}

struct Face {
    pool: Pool,
    table: Vec<u32>,
}

fn free(face: &mut Face) -> Result<(), VllmError> {
    face.pool.free(face.table.iter().rev().copied())
}

fn both(criterion: &mut Criterion) {
    for size in SIZES {
        let mut group = criterion.benchmark_group("vllm");
        group.throughput(Throughput::Elements(REQUEST_BLOCKS as u64));
        group.sample_size(20);
        let mut core = Core { pool: pool(size).unwrap(), table: Vec::new() };
        let mut face = Face { pool: Pool::new(size, true).unwrap(), table: Vec::new() };
        let chains = fill(&mut core.pool).unwrap();
        vllm::fill(&mut face.pool).unwrap();
        let mut turn = 0;
        let mut next = || {
            turn = (turn + 37) % chains.len();
            chains[turn].clone()
        };
        group.bench_function(BenchmarkId::new("hit_core", size), |bencher| {
            let hit = |core: &mut Core, chain: &HashChain| {
                core.table = core.pool.match_and_acquire(chain, usize::MAX)?;
                Ok::<_, PoolError>(())
            };
            bencher.iter_custom(|n| {
                let chain = next();
                time(n, &mut core, |core| hit(core, &chain), |core| core.pool.release_table(&core.table))
                    .unwrap()
            });
        });
        group.bench_function(BenchmarkId::new("hit_face", size), |bencher| {
            bencher.iter_custom(|n| {
                let chain = next();
                time(n, &mut face, |face| vllm::hit(&mut face.pool, &chain, &mut face.table), free).unwrap()
            });
        });
        group.bench_function(BenchmarkId::new("release_core", size), |bencher| {
            let take = |core: &mut Core, chain: &HashChain| {
                core.table = core.pool.match_and_acquire(chain, usize::MAX)?;
                Ok::<_, PoolError>(())
            };
            bencher.iter_custom(|n| {
                let chain = next();
                take(&mut core, &chain).unwrap();
                let time = time(
                    n,
                    &mut core,
                    |core| core.pool.release_table(&core.table),
                    |core| take(core, &chain),
                );
                core.pool.release_table(&core.table).unwrap();
                time.unwrap()
            });
        });
        group.bench_function(BenchmarkId::new("release_face", size), |bencher| {
            bencher.iter_custom(|n| {
                let chain = next();
                let take = |face: &mut Face| vllm::hit(&mut face.pool, &chain, &mut face.table);
                take(&mut face).unwrap();
                let time = time(n, &mut face, free, take).unwrap();
                free(&mut face).unwrap();
                time
            });
        });
        // Stores new content in a full pool, so that every block evicts another one.
        let mut fresh = 1 << 40;
        group.bench_function(BenchmarkId::new("store_evicting_core", size), |bencher| {
            bencher.iter_custom(|n| {
                let new = |nth: u64| chain(nth, REQUEST_BLOCKS).unwrap();
                let mut state = (&mut core, new(fresh));
                let stored = |(core, chain): &mut (&mut Core, HashChain)| {
                    store(&mut core.pool, chain, &mut core.table)
                };
                let after = |(core, chain): &mut (&mut Core, HashChain)| {
                    fresh += 1;
                    *chain = new(fresh);
                    core.pool.release_table(&core.table)
                };
                time(n, &mut state, stored, after).unwrap()
            });
        });
        group.bench_function(BenchmarkId::new("store_evicting_face", size), |bencher| {
            bencher.iter_custom(|n| {
                let new = |nth: u64| chain(nth, REQUEST_BLOCKS).unwrap();
                let mut state = (&mut face, new(fresh));
                let stored = |(face, chain): &mut (&mut Face, HashChain)| {
                    vllm::store(&mut face.pool, chain, &mut face.table)
                };
                let after = |(face, chain): &mut (&mut Face, HashChain)| {
                    fresh += 1;
                    *chain = new(fresh);
                    free(face)
                };
                time(n, &mut state, stored, after).unwrap()
            });
        });
        group.finish();
    }
}

criterion_group!(benches, both);
criterion_main!(benches);
