//! Compares the pool's advisor with exact figures: for LRU at every capacity with those of `sizing`,
//! and for other policies with those of the pool itself.
//!
//! The blocks of a trace are hashed as chains of one token each, so a block of the pool is a block of
//! the trace. The last test reads recorded traces, which are third-party data and not in the
//! repository:
//!
//! ```text
//! KVPOOL_TRACES=/where/they/are cargo test --release -p kvpool-replay --test advisor -- --nocapture
//! ```

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]
#![expect(clippy::print_stdout, reason = "the tables are what a run by hand is for")]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvpool::retention::TenantId;
use kvpool::{
    BlockHasher, BlockPool, EvictionPolicy, ExtraKeys, HashChain, HashCursor, HasherConfig, PoolConfig,
};
use kvpool_observe::{Advice, AdvisorConfig, PoolWatch, WatchConfig};
use kvpool_replay::generate::{GeneratorConfig, generate};
use kvpool_replay::reader::ReadOptions;
use kvpool_replay::sizing::{Blocks, HitCurve, References, lru_distances, stream};
use kvpool_replay::trace::Trace;

/// The window over which the advisor counts references. It never ends, so all references of the trace
/// have the same weight.
const NEVER: Option<u64> = Some(u64::MAX);

fn generated(requests: usize, seed: u64) -> References {
    let config = GeneratorConfig { requests, seed, ..GeneratorConfig::default() };
    References::new(&generate(&config).unwrap(), Blocks::All).unwrap()
}

/// Returns the prompts of a trace as hash chains with one block per token. `salt` gives each tenant its
/// own blocks.
fn chains(references: &References, salt: &str) -> Vec<HashChain> {
    let hasher =
        Arc::new(BlockHasher::new(HasherConfig { block_size: 1, ..HasherConfig::default() }).unwrap());
    let chain = |index| {
        let salt = (!salt.is_empty()).then(|| salt.as_bytes().into());
        let mut cursor = HashCursor::new(hasher.clone(), ExtraKeys { salt, ..ExtraKeys::default() }).unwrap();
        cursor.append(references.request(index));
        cursor.chain().clone()
    };
    (0..references.requests()).map(chain).collect()
}

fn pool(capacity: usize, eviction: EvictionPolicy, advisor: Option<AdvisorConfig>) -> BlockPool {
    let num_blocks = capacity + 1;
    let config = PoolConfig { num_blocks, block_size: 1, eviction, ..PoolConfig::default() };
    let watch = WatchConfig { advisor, ..WatchConfig::default() };
    BlockPool::new(config).unwrap().watched(&watch).unwrap()
}

/// Serves one request as `sizing` defines it: looks up and stores its blocks, and releases them at
/// once.
fn serve(pool: &mut BlockPool, chain: &HashChain, tenant: TenantId) {
    let mut table = pool.match_and_acquire_for(chain, usize::MAX, tenant).unwrap();
    let hits = table.len();
    let missing = (chain.len() - hits).min(pool.num_available());
    pool.allocate_into(missing, &mut table).unwrap();
    pool.register(&table[hits..], chain, hits).unwrap();
    pool.mark_computed(&table[hits..]).unwrap();
    pool.release_table(&table).unwrap();
}

fn hit_rate(pool: &BlockPool) -> f64 {
    let stats = pool.stats();
    stats.hits as f64 / (stats.hits + stats.misses) as f64
}

/// Returns the errors of the advisor's curve in percentage points, one per point of the curve.
fn off(advice: &Advice, exact: &HitCurve) -> Vec<f64> {
    let point = |point: &kvpool_observe::advisor::CurvePoint| {
        (point.block_hit_rate - exact.block_rate(exact.at(point.blocks))) * 100.0
    };
    advice.curve.iter().map(point).collect()
}

fn worst(differences: &[f64]) -> f64 {
    differences.iter().fold(0.0, |worst, difference| difference.abs().max(worst))
}

/// With the default sample, the errors of the advisor's curve are within bounds, for three seeds.
/// `--nocapture` prints a table of the measured errors in percentage points.
#[test]
fn the_curve_is_that_of_sizing() {
    let references = generated(10_000, 0);
    let exact = lru_distances(&references).into_curve();
    let chains = chains(&references, "");
    for (capacity, mean_bound, worst_bound) in [(1_500, 0.6, 1.5), (6_000, 0.8, 2.0), (24_000, 0.8, 2.0)] {
        for seed in 0..3 {
            let config = AdvisorConfig { window: NEVER, seed, policies: vec![], ..AdvisorConfig::default() };
            let mut pool = pool(capacity, kvpool_policies::LRU, Some(config));
            chains.iter().for_each(|chain| serve(&mut pool, chain, TenantId(0)));
            let advice = pool.advice().unwrap();
            let off = off(&advice, &exact);
            let mean = off.iter().map(|off| off.abs()).sum::<f64>() / off.len() as f64;
            println!("{capacity} blocks, rate {:.3}, seed {seed}: {off:.2?}, mean {mean:.2}", advice.rate);
            assert!(mean < mean_bound && worst(&off) < worst_bound, "{capacity} {seed}: {off:.2?}");
            assert_eq!(advice.references, references.len() as u64);
            assert!((advice.hit_rate - hit_rate(&pool)).abs() < 1e-12);
        }
    }
}

/// If every block is in the sample, the curve is exact up to the width of its buckets, which is 3 %.
/// The result for each policy equals the pool's, because the evictor is the same.
#[test]
fn a_sample_of_everything_is_exact() {
    let references = generated(1_500, 1);
    let exact = lru_distances(&references).into_curve();
    let chains = chains(&references, "");
    let policies: Vec<_> = kvpool_policies::ALL
        .iter()
        .copied()
        .filter(|&policy| policy != kvpool_policies::LAST_ACCESS)
        .collect();
    for capacity in [40, 700] {
        let config = AdvisorConfig {
            window: NEVER,
            max_sampled_blocks: 8_192,
            policies: policies.clone(),
            ..AdvisorConfig::default()
        };
        let mut advised = pool(capacity, kvpool_policies::LRU, Some(config));
        chains.iter().for_each(|chain| serve(&mut advised, chain, TenantId(0)));
        let advice = advised.advice().unwrap();
        assert!(advice.rate == 1.0 && advice.sampled_references == advice.references);
        assert!(worst(&off(&advice, &exact)) < 0.1, "{:?}", off(&advice, &exact));
        advised.check_invariants().unwrap();
        for (ghost, &policy) in advice.policies.iter().zip(&policies) {
            let mut shipped = pool(capacity, policy, None);
            chains.iter().for_each(|chain| serve(&mut shipped, chain, TenantId(0)));
            assert_eq!(
                (ghost.policy, ghost.block_hit_rate),
                (policy, hit_rate(&shipped)),
                "{capacity} blocks"
            );
        }
        // There is only one tenant, which has all references. A cache of its own with the pool's size
        // gives it the hits of LRU.
        let [tenant] = &advice.tenants[..] else { panic!("{:?}", advice.tenants) };
        assert_eq!((&tenant.curve, tenant.hit_rate), (&advice.curve, advice.hit_rate));
        assert_eq!(tenant.alone, advice.curve[..tenant.alone.len()]);
    }
}

#[test]
fn ghosts_of_a_sample_are_close() {
    let references = generated(10_000, 2);
    let chains = chains(&references, "");
    let config = AdvisorConfig { window: NEVER, ..AdvisorConfig::default() };
    let mut advised = pool(8_000, kvpool_policies::LRU, Some(config));
    chains.iter().for_each(|chain| serve(&mut advised, chain, TenantId(0)));
    let advice = advised.advice().unwrap();
    assert!(advice.rate < 0.3);
    for ghost in &advice.policies {
        let mut shipped = pool(8_000, ghost.policy, None);
        chains.iter().for_each(|chain| serve(&mut shipped, chain, TenantId(0)));
        let off = (ghost.block_hit_rate - hit_rate(&shipped)) * 100.0;
        println!("{}: {:.2} %, off by {off:.2} points", ghost.policy.name(), ghost.block_hit_rate * 100.0);
        assert!(off.abs() < 1.5, "{}: {off:.2} points", ghost.policy.name());
    }
}

/// Two tenants have different traffic. The estimate for a tenant in the shared pool equals the exact
/// curve of the mixed stream. The estimate for a tenant in a cache of its own equals the exact curve of
/// its own stream.
#[test]
fn tenants_are_counted_apart() {
    let traces = [generated(3_000, 3), generated(1_000, 4)];
    let both = [chains(&traces[0], "a"), chains(&traces[1], "b")];
    let config = AdvisorConfig { window: NEVER, policies: vec![], ..AdvisorConfig::default() };
    let mut pool = pool(4_000, kvpool_policies::LRU, Some(config));
    // The test sends the requests of the two tenants in turn: three of the first tenant, then one of the
    // second.
    for (index, small) in both[1].iter().enumerate() {
        both[0][3 * index..3 * index + 3].iter().for_each(|chain| serve(&mut pool, chain, TenantId(7)));
        serve(&mut pool, small, TenantId(5));
    }
    let advice = pool.advice().unwrap();
    let [small, large] = &advice.tenants[..] else { panic!("{:?}", advice.tenants) };
    assert_eq!([small.tenant, large.tenant], [TenantId(5), TenantId(7)]);
    assert_eq!(small.references + large.references, advice.references);
    for (tenant, trace) in [(small, &traces[1]), (large, &traces[0])] {
        assert_eq!(tenant.references, trace.len() as u64);
        let exact = lru_distances(trace).into_curve();
        for point in &tenant.alone {
            let off = (point.block_hit_rate - exact.block_rate(exact.at(point.blocks))) * 100.0;
            println!("{:?} alone with {} blocks: off by {off:.2} points", tenant.tenant, point.blocks);
            assert!(off.abs() < 3.0, "{off:.2} points");
        }
        let here = tenant.curve.iter().find(|point| point.blocks == 4_000).unwrap();
        let off = (here.block_hit_rate - tenant.hit_rate) * 100.0;
        println!("{:?} in the pool: off by {off:.2} points", tenant.tenant);
        assert!(off.abs() < 2.0, "{off:.2} points");
        // In the shared pool, a tenant has fewer hits than in a cache of its own.
        assert!(tenant.alone.last().unwrap().block_hit_rate > here.block_hit_rate - 0.02);
    }
}

/// The traffic changes: half a trace of one workload is followed by half a trace of another. At the
/// end, the advice is that of the second half.
#[test]
fn a_drifting_load_is_followed() {
    let config = |seed, agent_fraction| GeneratorConfig {
        requests: 8_000,
        seed,
        agent_fraction,
        chat_fraction: 0.4,
        ..GeneratorConfig::default()
    };
    let halves = [config(5, 0.0), config(6, 0.6)]
        .map(|config| References::new(&generate(&config).unwrap(), Blocks::All).unwrap());
    let exact = [&halves[0], &halves[1]].map(|half| lru_distances(half).into_curve());
    let window = Some(halves[1].len() as u64 / 6);
    let advisor = AdvisorConfig { window, policies: vec![kvpool_policies::LRU], ..AdvisorConfig::default() };
    let mut pool = pool(3_000, kvpool_policies::LRU, Some(advisor));
    chains(&halves[0], "first").iter().for_each(|chain| serve(&mut pool, chain, TenantId(0)));
    let first = pool.advice().unwrap();
    chains(&halves[1], "second").iter().for_each(|chain| serve(&mut pool, chain, TenantId(0)));
    let second = pool.advice().unwrap();
    // Compare only capacities up to four pools. In larger caches, the hit rate still rises while a half
    // of the trace runs, because more and more blocks are used again.
    let near = |advice: &Advice, exact: &HitCurve| worst(&off(advice, exact)[..9]);
    println!("own half: {:.2}, {:.2}", near(&first, &exact[0]), near(&second, &exact[1]));
    println!("other half: {:.2}, {:.2}", near(&first, &exact[1]), near(&second, &exact[0]));
    assert!(near(&first, &exact[1]) > 15.0 && near(&second, &exact[0]) > 15.0);
    assert!(near(&second, &exact[1]) < 5.0);
    assert!((second.policies[0].block_hit_rate - second.hit_rate).abs() < 0.02);
    assert_eq!(second.seen, (halves[0].len() + halves[1].len()) as u64);
    assert!(second.references < 2 * second.window + 200);
}

fn recorded(name: &str, references: &References) {
    let exact = lru_distances(references).into_curve();
    let chains = chains(references, "");
    let unique = references.unique_blocks();
    for percent in [2, 10] {
        let capacity = unique * percent / 100;
        let time = |advisor| {
            let mut pool = pool(capacity, kvpool_policies::LRU, advisor);
            let mut took = Duration::ZERO;
            for chain in &chains {
                let started = Instant::now();
                serve(&mut pool, chain, TenantId(0));
                took += started.elapsed();
            }
            (pool, took.as_nanos() as f64 / references.len() as f64)
        };
        let config = AdvisorConfig { window: NEVER, ..AdvisorConfig::default() };
        let (pool_with, with) = time(Some(config.clone()));
        let (_, without) = time(None);
        let (_, curve_only) = time(Some(AdvisorConfig { policies: vec![], max_tenants: 0, ..config }));
        let advice = pool_with.advice().unwrap();
        println!(
            "\n{name}, {capacity} blocks ({percent} %), rate {:.4}, {} of {} references sampled, {} kB",
            advice.rate,
            advice.sampled_references,
            advice.references,
            advice.memory_bytes / 1000
        );
        println!("per reference: {without:.0} ns without, {curve_only:.0} with a curve, {with:.0} with all");
        println!("hit rate {:.2} %", advice.hit_rate * 100.0);
        for (point, off) in advice.curve.iter().zip(off(&advice, &exact)) {
            println!(
                "  {:>8} blocks: {:5.2} %, off by {off:5.2}",
                point.blocks,
                point.block_hit_rate * 100.0
            );
        }
        for ghost in &advice.policies {
            let mut shipped = pool(capacity, ghost.policy, None);
            chains.iter().for_each(|chain| serve(&mut shipped, chain, TenantId(0)));
            let mut order = ghost.policy.order(capacity + 2).unwrap().unwrap();
            let streamed = stream(references, capacity, order.as_mut()).unwrap().outcome().block_rate();
            let (estimate, exact) = (ghost.block_hit_rate * 100.0, hit_rate(&shipped) * 100.0);
            println!(
                "  {:>8}: {estimate:5.2} %, pool {exact:5.2} (off by {:5.2}), stream form {:5.2}",
                ghost.policy.name(),
                estimate - exact,
                streamed * 100.0
            );
            assert!((estimate - exact).abs() < 3.0);
        }
        assert!(worst(&off(&advice, &exact)) < 3.0);
    }
}

#[test]
fn recorded_traces_are_estimated() {
    let Some(folder) = std::env::var_os("KVPOOL_TRACES").map(PathBuf::from) else {
        println!("SKIPPED: set KVPOOL_TRACES to the folder of the traces");
        return;
    };
    for name in ["conversation_trace.jsonl", "agentic_s120.jsonl.gz"] {
        match Trace::from_path(folder.join(name), &ReadOptions::default()) {
            Ok(trace) => recorded(name, &References::new(&trace, Blocks::All).unwrap()),
            Err(error) => println!("SKIPPED {name}: {error}"),
        }
    }
}
