//! Measures hybrid models: lookups of a 32k prompt that is entirely cached, and whole requests in a
//! manager, with one group and with several.
//!
//! Limits: a lookup of six groups costs at most three times as much as one of a single group.
//! Admission, commit and release cost at most 1.5 times as much per block and group.
#![expect(clippy::unwrap_used, reason = "a bench stops at the first error")]

use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, criterion_group, criterion_main};
use kvpool::groups::{GroupKind, GroupSpec, Groups, Keep, Tokens};
use kvpool::{
    BlockHasher, BlockPool, CacheManager, ExtraKeys, HashCursor, HasherConfig, ManagerConfig, PoolConfig,
    Until,
};

const TOKENS: usize = 32_768;
const BLOCK: usize = 16;

fn prompt() -> HashCursor {
    let hasher = BlockHasher::new(HasherConfig { block_size: BLOCK, ..Default::default() }).unwrap();
    let mut prompt = HashCursor::new(Arc::new(hasher), ExtraKeys::default()).unwrap();
    prompt.append(&(0..TOKENS as u32).collect::<Vec<_>>());
    prompt
}

fn full() -> GroupSpec {
    GroupSpec::new(GroupKind::Full, BLOCK)
}

fn window() -> GroupSpec {
    GroupSpec::new(GroupKind::Sliding { window: 1024 }, BLOCK)
}

/// Returns a group of full attention whose blocks are as large as those of a group of states.
fn large(partial_hits: bool) -> GroupSpec {
    GroupSpec { partial_hits, ..GroupSpec::new(GroupKind::Full, 32 * BLOCK) }
}

fn lookup(criterion: &mut Criterion) {
    let mut bench = criterion.benchmark_group("lookup_32k");
    let prompt = prompt();
    let hashes = prompt.chain().hashes();
    let gemma = || std::iter::once(full()).chain((0..5).map(|_| window())).collect::<Vec<_>>();
    let state = GroupSpec::new(GroupKind::State, 32 * BLOCK);
    for (name, specs, cached) in [
        ("one full group", vec![full()], 1.0),
        ("six groups: full, five windows", gemma(), 1.0),
        ("the same, windows cached up to the half", gemma(), 0.5),
        ("the same, windows not cached", gemma(), 0.0),
        ("full and state", vec![full(), state], 1.0),
        ("blocks of 512", vec![large(false)], 1.0),
        ("blocks of 512, the hit ends inside one", vec![large(true)], 1.0),
    ] {
        let groups = Groups::new(specs, Some(BLOCK)).unwrap();
        let config = PoolConfig { num_blocks: 7 * TOKENS / BLOCK, block_size: BLOCK, ..Default::default() };
        let mut pool = BlockPool::new(config).unwrap();
        for (group, spec) in groups.specs().iter().enumerate() {
            let per_block = spec.block_tokens / BLOCK;
            let share = if group == 0 { 1.0 } else { cached };
            let names: Vec<_> = hashes.iter().skip(per_block - 1).step_by(per_block).copied().collect();
            let names = &names[..(share * names.len() as f64) as usize];
            let blocks = pool.allocate(names.len()).unwrap();
            pool.register_named(&blocks, names, group as u16, |_, _| {}).unwrap();
            if spec.partial_hits {
                pool.keep_interior(groups.interior_units()).unwrap();
                for (block, hashes) in blocks.iter().zip(hashes.chunks(per_block)) {
                    pool.name_interior(*block, &hashes[..per_block - 1], group as u16).unwrap();
                }
            }
        }
        bench.bench_function(name, |bencher| {
            bencher
                .iter(|| black_box(pool.find_groups(&groups, prompt.chain(), Tokens(TOKENS - 1)).unwrap()));
        });
        if name.starts_with("one") {
            bench.bench_function("no groups: probe", |bencher| {
                bencher.iter(|| black_box(pool.probe(prompt.chain(), TOKENS / BLOCK - 1).unwrap()));
            });
        }
    }
    bench.finish();
}

/// Measures requests with new prompts of 2,048 tokens, one after another, in a pool with room for 33 of
/// them. The blocks that a prompt allocates are evicted from any KV-cache group.
fn life(criterion: &mut Criterion) {
    const PROMPT: usize = 128 * BLOCK;
    const PROMPTS: usize = 256;
    let mut bench = criterion.benchmark_group("life_2k");
    let windows = |keep| {
        let window = GroupSpec { keep, ..window() };
        std::iter::once(full()).chain((0..5).map(|_| window)).collect::<Vec<_>>()
    };
    for (name, specs) in [
        ("no groups", None),
        ("one full group", Some(vec![full()])),
        ("six groups: full, five windows", Some(windows(Keep::All))),
        ("the same, windows kept at junctions", Some(windows(Keep::Junctions))),
        ("full and state", Some(vec![full(), GroupSpec::new(GroupKind::State, 32 * BLOCK)])),
        ("blocks of 512", Some(vec![large(false)])),
        ("blocks of 512, hits may end inside", Some(vec![large(true)])),
    ] {
        let groups = specs.map(|specs| Groups::new(specs, Some(BLOCK)).unwrap());
        let per_prompt = groups.as_ref().map_or(1, |groups| groups.specs().len()) * PROMPT / BLOCK;
        let num_blocks = per_prompt * 33;
        let config = ManagerConfig { num_blocks, block_size: BLOCK, groups, ..Default::default() };
        let mut manager = CacheManager::new(config).unwrap();
        let prompts: Vec<_> = (0..PROMPTS as u32)
            .map(|at| {
                let tokens: Vec<u32> = (0..PROMPT as u32).map(|token| token + (at << 20)).collect();
                manager.prepare(&tokens, ExtraKeys::default()).unwrap()
            })
            .collect();
        let mut next = 0;
        bench.bench_function(name, |bencher| {
            bencher.iter_batched(
                || {
                    next = (next + 1) % PROMPTS;
                    prompts[next].clone()
                },
                |prompt| {
                    manager.admit(1, prompt).unwrap();
                    manager.commit(1, PROMPT).unwrap();
                    manager.take_plan().unwrap();
                    manager.release(1, Until::Now).unwrap();
                },
                criterion::BatchSize::SmallInput,
            );
        });
    }
    bench.finish();
}

criterion_group!(benches, lookup, life);
criterion_main!(benches);
