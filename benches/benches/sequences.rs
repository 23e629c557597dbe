//! Sequences: forks, copy-on-write, swap planning, and chains of a million blocks.
//!
//! Guards: fork and free linear in the blocks of a sequence, copy-on-write independent of them, swaps per block.
#![expect(clippy::unwrap_used, reason = "a bench stops at the first error")]

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kvpool::{BlockHasher, ExtraKeys, HashCursor, HasherConfig, PoolConfig, SequenceId, Sequences, Tiers};

const BLOCK_SIZE: usize = 16;

/// A sequence of so many blocks and a partial one, computed, and room for twice as many in each of two tiers.
fn sequence(blocks: usize) -> (Sequences, SequenceId) {
    let hasher = Arc::new(BlockHasher::new(HasherConfig::default()).unwrap());
    let tier = PoolConfig { num_blocks: 2 * blocks + 64, block_size: BLOCK_SIZE, ..Default::default() };
    let mut sequences =
        Sequences::new(Tiers::new(vec![tier.clone(), tier]).unwrap(), Arc::clone(&hasher)).unwrap();
    let tokens: Vec<u32> = (0..(blocks * BLOCK_SIZE + 5) as u32).collect();
    let mut prompt = HashCursor::new(hasher, ExtraKeys::default()).unwrap();
    prompt.append(&tokens);
    let id = sequences.admit(prompt, 0).unwrap();
    sequences.commit(id, tokens.len()).unwrap();
    (sequences, id)
}

fn fork_and_free(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("sequence_fork_free");
    for blocks in [2048usize, 1_000_000] {
        let (mut sequences, id) = sequence(blocks);
        group.throughput(Throughput::Elements(blocks as u64));
        group.sample_size(if blocks > 10_000 { 10 } else { 100 });
        group.bench_function(BenchmarkId::from_parameter(blocks), |bencher| {
            bencher.iter(|| {
                let child = sequences.fork(id).unwrap();
                sequences.free(black_box(child), None).unwrap();
            });
        });
    }
    group.finish();
}

fn copy_on_write(criterion: &mut Criterion) {
    let (mut sequences, id) = sequence(2048);
    criterion.bench_function("sequence_cow/fork_append_free_2048", |bencher| {
        bencher.iter_batched(
            || (),
            |()| {
                // Fork's own cost is in sequence_fork_free; here it is the setup of a shared tail.
                let child = sequences.fork(id).unwrap();
                black_box(sequences.append(child, &[7], 0).unwrap());
                black_box(sequences.take_plan().unwrap());
                sequences.free(child, None).unwrap();
            },
            BatchSize::SmallInput,
        );
    });
}

fn swap(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("sequence_swap");
    let blocks = 4096;
    let (mut sequences, id) = sequence(blocks);
    group.throughput(Throughput::Elements(blocks as u64));
    group.bench_function("plan/4096", |bencher| {
        bencher.iter(|| {
            let swap = sequences.begin_swap(&[id], 1).unwrap();
            black_box(sequences.take_plan().unwrap());
            sequences.abort_swap(swap).unwrap();
        });
    });
    group.finish();
}

criterion_group!(benches, fork_and_free, copy_on_write, swap);
criterion_main!(benches);
