//! Measures the manager: a decode step of a batch, a cold 32k prompt from tokens to block table, and
//! forks.
//!
//! These are the costs per step and per request for a scheduler.
#![expect(clippy::unwrap_used, reason = "a bench stops at the first error")]

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kvpool::{CacheManager, Computed, ExtraKeys, ManagerConfig, RequestRef};

fn manager(num_blocks: usize) -> CacheManager {
    CacheManager::new(ManagerConfig { num_blocks, ..ManagerConfig::default() }).unwrap()
}

/// Measures a decode step: every request commits its tokens and gets a new one. A request hashes a
/// block in every 16th step, when it crosses a block boundary.
fn decode(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("decode_append");
    for batch in [1usize, 256, 1024] {
        group.throughput(Throughput::Elements(batch as u64));
        group.bench_function(BenchmarkId::from_parameter(batch), |bencher| {
            let mut manager = manager(1 << 19);
            let names: Vec<_> = (0..batch).map(|i| format!("request-{i:06}")).collect();
            let ids: Vec<_> = names.iter().map(|name| RequestRef::Str(name)).collect();
            let admit = |manager: &mut CacheManager| {
                for (i, name) in names.iter().enumerate() {
                    // The lengths of the prompts differ, so that in each step a sixteenth of the batch
                    // crosses a block boundary.
                    let prompt: Vec<u32> = (0..512 + i as u32 % 16).map(|t| t + 1000 * i as u32).collect();
                    let cursor = manager.prepare(&prompt, ExtraKeys::default()).unwrap();
                    manager.admit(name.as_str(), cursor).unwrap();
                }
            };
            admit(&mut manager);
            let tokens = vec![7; batch];
            let mut steps = 0;
            bencher.iter(|| {
                steps += 1;
                if steps % 4096 == 0 {
                    // Begin again with new requests before the pool is full.
                    for name in &names {
                        manager.release(name.as_str(), None).unwrap();
                    }
                    admit(&mut manager);
                }
                black_box(manager.append(&ids, &tokens, Computed::AllButLast).unwrap());
            });
        });
    }
    group.finish();
}

fn cold_prompt(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("prompt_32k");
    let mut manager = manager(1 << 16);
    let mut salt = 0u32;
    group.bench_function("cold", |bencher| {
        bencher.iter(|| {
            salt += 1;
            let tokens: Vec<u32> = (0..32_768).map(|i| i ^ (salt << 15)).collect();
            let cursor = manager.prepare(&tokens, ExtraKeys::default()).unwrap();
            manager.admit(1, cursor).unwrap();
            manager.commit(1, tokens.len()).unwrap();
            manager.release(1, None).unwrap();
        });
    });
    let tokens: Vec<u32> = (0..32_768).collect();
    group.bench_function("cached", |bencher| {
        let cursor = manager.prepare(&tokens, ExtraKeys::default()).unwrap();
        manager.admit(1, cursor).unwrap();
        manager.commit(1, tokens.len()).unwrap();
        manager.release(1, None).unwrap();
        bencher.iter(|| {
            let cursor = manager.prepare(&tokens, ExtraKeys::default()).unwrap();
            manager.admit(1, cursor).unwrap();
            manager.release(1, None).unwrap();
        });
    });
    group.finish();
}

/// Measures a fork, the append of a token in a copy of the shared last block, and the release of the
/// fork. The cost is linear in the number of the request's blocks.
fn fork(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("fork_append_release");
    for blocks in [2048usize, 1_000_000] {
        let mut manager = manager(2 * blocks + 64);
        let tokens: Vec<u32> = (0..(blocks * 16 + 5) as u32).collect();
        manager.admit(0, manager.prepare(&tokens, ExtraKeys::default()).unwrap()).unwrap();
        manager.commit(0, tokens.len()).unwrap();
        group.throughput(Throughput::Elements(blocks as u64));
        group.sample_size(if blocks > 10_000 { 10 } else { 100 });
        group.bench_function(BenchmarkId::from_parameter(blocks), |bencher| {
            bencher.iter(|| {
                manager.fork(0, 1).unwrap();
                black_box(manager.append_tokens(1, &[7], 0).unwrap());
                black_box(manager.take_plan().unwrap());
                manager.release(1, None).unwrap();
            });
        });
    }
    group.finish();
}

criterion_group!(benches, decode, cold_prompt, fork);
criterion_main!(benches);
