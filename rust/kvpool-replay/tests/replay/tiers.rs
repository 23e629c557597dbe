//! Compares tiers beneath the device, in engine mode, with a simulation of a chain of caches, and with
//! computed times.
#![expect(clippy::unwrap_used, reason = "a test stops at the first error")]

use std::sync::Arc;

use kvpool_replay::replay::{Mode, Replay, ReplayConfig, ReplayError, Report, TierConfig};
use kvpool_replay::trace::{Trace, TraceRequest};
use proptest::prelude::*;

/// Number of tokens per block, in the trace and in the pool.
const B: usize = 4;
const STEP_MS: f64 = 10.0;

fn request(timestamp_ms: f64, blocks: &[u64]) -> TraceRequest {
    let tokens = (blocks.len() * B) as u32;
    TraceRequest { timestamp_ms, input_length: tokens, output_length: 1, hash_ids: blocks.into() }
}

/// Returns a configuration in which prefill takes one millisecond per token.
fn config(capacity_blocks: usize, tiers: &[(usize, f64)]) -> ReplayConfig {
    ReplayConfig {
        mode: Mode::Engine,
        block_size: B,
        capacity_blocks,
        step_ms: STEP_MS,
        prefill_tokens_per_s: 1000.0,
        tiers: tiers
            .iter()
            .map(|&(blocks, load_ms_per_block)| TierConfig { blocks, load_ms_per_block })
            .collect(),
        ..ReplayConfig::default()
    }
}

fn run(requests: Vec<TraceRequest>, config: ReplayConfig) -> Report {
    let total = requests.len();
    let mut replay = Replay::new(Arc::new(Trace::new(requests, B).unwrap()), config).unwrap();
    while replay.advance(1).unwrap() < total {}
    replay.check_invariants().unwrap();
    replay.report()
}

/// An LRU list: the most recently used block is last.
#[derive(Default)]
struct Cache(Vec<u64>);

impl Cache {
    fn touch(&mut self, block: u64) {
        self.0.retain(|&other| other != block);
        self.0.push(block);
    }
}

/// Returns how many prompt blocks the device and each tier supply, if the prompts run one after
/// another.
fn simulated(prompts: &[Vec<u64>], device: usize, tiers: &[usize]) -> Vec<u64> {
    let mut caches: Vec<Cache> = (0..=tiers.len()).map(|_| Cache::default()).collect();
    let mut served = vec![0; caches.len()];
    for prompt in prompts {
        // The last token of a prompt is always computed, so its last block is never a hit.
        let reusable = &prompt[..prompt.len() - 1];
        let cached = reusable.iter().take_while(|block| caches[0].0.contains(block)).count();
        served[0] += cached as u64;
        for block in &reusable[cached..] {
            let Some(tier) = (1..caches.len()).find(|&at| caches[at].0.contains(block)) else { break };
            served[tier] += 1;
        }
        // The device needs one block per block of the prompt, and one for the output. It evicts the
        // oldest blocks to make room.
        let hits = &prompt[..cached];
        let needed = prompt.len() + 1 - cached;
        let mut others = caches[0].0.iter().filter(|block| !hits.contains(block)).count();
        while others + cached + needed > device {
            let oldest = caches[0].0.iter().position(|block| !hits.contains(block)).unwrap();
            caches[0].0.remove(oldest);
            others -= 1;
        }
        for (at, cache) in caches.iter_mut().enumerate() {
            prompt.iter().rev().for_each(|&block| cache.touch(block));
            if at > 0 {
                let beyond = cache.0.len().saturating_sub(tiers[at - 1]);
                cache.0.drain(..beyond);
            }
        }
    }
    served
}

/// Draws prompts as paths from the root of a tree, so that every block has one parent. Each prompt ends
/// with a unique block. The last block is always computed again, so if it were cached, it would exist
/// twice.
fn prompts() -> impl Strategy<Value = Vec<Vec<u64>>> {
    (
        proptest::collection::vec(any::<prop::sample::Index>(), 1..14),
        proptest::collection::vec(any::<prop::sample::Index>(), 1..40),
    )
        .prop_map(|(parents, ends)| {
            let parents: Vec<_> =
                parents.iter().enumerate().map(|(block, parent)| parent.index(block + 1)).collect();
            let path = |mut block: usize| {
                let mut path = vec![block as u64 + 1];
                while parents[block] < block {
                    block = parents[block];
                    path.push(block as u64 + 1);
                }
                path.reverse();
                path
            };
            let with_end = |(own, end): (u64, &prop::sample::Index)| {
                let mut path = path(end.index(parents.len()));
                path.push(1000 + own);
                path
            };
            (0..).zip(&ends).map(with_end).collect()
        })
}

proptest! {
    #[test]
    fn tiers_have_the_hits_of_stacked_caches(
        prompts in prompts(), device in 15_usize..24, host in 1_usize..20, disk in 1_usize..30,
    ) {
        let requests = (0..).zip(&prompts).map(|(at, blocks)| request(f64::from(at) * 1e6, blocks)).collect();
        let report = run(requests, config(device, &[(host, 0.5), (disk, 2.0)]));
        let expected = simulated(&prompts, device, &[host, disk]);
        let found: Vec<_> = [report.hits.block_hits].into_iter()
            .chain(report.tiers.iter().map(|tier| tier.block_hits)).collect();
        prop_assert_eq!(found, expected);
        // No request waits for another, so the mean time to the first token follows from the numbers of
        // loaded and computed tokens.
        let tokens = report.hits.tokens as f64;
        let (host, disk) = (report.tiers[0].block_hits as f64, report.tiers[1].block_hits as f64);
        let computed = tokens - (report.hits.block_hits as f64 + host + disk) * B as f64;
        let all_ms = report.hits.requests as f64 * STEP_MS + computed + (host + disk) * 0.5 + disk * 2.0;
        let found_ms = report.engine.unwrap().mean_time_to_first_token_ms * report.hits.requests as f64;
        prop_assert!((found_ms - all_ms).abs() < 1e-3, "{} ms, expected {}", found_ms, all_ms);
    }

    /// A device as large as all tiers together serves as many blocks as a small device with a tier that
    /// loads in no time.
    #[test]
    fn what_the_device_lacks_a_tier_without_end_has(prompts in prompts()) {
        let requests: Vec<_> =
            (0..).zip(&prompts).map(|(at, blocks)| request(f64::from(at) * 1e6, blocks)).collect();
        let large = run(requests.clone(), config(1000, &[]));
        let small = run(requests, config(15, &[(1000, 0.0)]));
        prop_assert_eq!(large.hits.block_hits, small.hits.block_hits + small.tiers[0].block_hits);
        prop_assert_eq!(large.engine.unwrap().mean_time_to_first_token_ms,
            small.engine.unwrap().mean_time_to_first_token_ms);
    }

    /// If requests overlap, every request finishes and is counted once, and loads take at least the
    /// time that the links need. This holds for any gap between arrivals.
    #[test]
    fn crowds_are_served(prompts in prompts(), gap in 0_u32..60, capacity in 15_usize..40,
        running in 1_usize..6) {
        let requests: Vec<_> =
            (0..).zip(&prompts).map(|(at, blocks)| request(f64::from(at * gap), blocks)).collect();
        let settings = |threads| ReplayConfig {
            max_running: running, threads, ..config(capacity, &[(12, 3.0), (1000, 11.0)]) };
        let report = run(requests.clone(), settings(1));
        let engine = report.engine.unwrap();
        prop_assert_eq!((report.hits.requests, engine.rejected), (prompts.len() as u64, 0));
        let [host, disk] = &report.tiers[..] else { panic!("two tiers") };
        let busy = (host.block_hits + disk.block_hits) as f64 * 0.003;
        prop_assert!((host.busy_seconds - busy).abs() < 1e-9);
        prop_assert!(engine.virtual_seconds + 1e-9 >= host.busy_seconds.max(disk.busy_seconds));
        prop_assert!(report.hits.token_hits + host.token_hits + disk.token_hits <= report.hits.tokens);
        prop_assert_eq!(report, run(requests, settings(3)));
    }
}

/// A link moves one load at a time, so the second load waits. Computation does not wait for it.
#[test]
fn a_link_moves_one_load_at_a_time() {
    let long: Vec<u64> = (1..=9).collect();
    let other: Vec<u64> = (101..=109).collect();
    let fill: Vec<u64> = (201..=230).collect();
    let mut requests = vec![request(0.0, &long), request(1e5, &other), request(2e5, &fill)];
    // The blocks of both prompts (8 each) are only in host memory, and a load takes 5 ms per block.
    requests.extend([request(3e5, &long), request(3e5, &other)]);
    let report = run(requests.clone(), config(31, &[(1000, 5.0)]));
    assert_eq!((report.hits.block_hits, report.tiers[0].block_hits), (0, 16));
    assert_eq!(report.tiers[0].busy_seconds, 0.08);
    // The first load ends after 40 ms, and then the last block is computed. The second load ends after
    // 80 ms.
    let alone = |blocks: f64| STEP_MS + blocks * B as f64;
    let expected = alone(9.0) * 2.0 + alone(30.0) + 40.0 + alone(1.0) + 80.0 + alone(1.0);
    let found = report.engine.unwrap().mean_time_to_first_token_ms * 5.0;
    assert!((found - expected).abs() < 1e-6, "{found} ms, expected {expected}");
    // Without the tier, the server computes all blocks, which takes much longer than loading them.
    assert!(run(requests, config(31, &[])).engine.unwrap().mean_time_to_first_token_ms > found / 5.0);
}

#[test]
fn settings_out_of_range_are_refused() {
    let requests = vec![request(0.0, &[1, 2])];
    let trace = Arc::new(Trace::new(requests, B).unwrap());
    for (settings, field) in [
        (config(10, &[(0, 1.0)]), "blocks of a tier"),
        (config(10, &[(1, -1.0)]), "load_ms_per_block"),
        (config(10, &[(1, f64::NAN)]), "load_ms_per_block"),
        (config(10, &[(1, f64::INFINITY)]), "load_ms_per_block"),
        (ReplayConfig { mode: Mode::Lookup, ..config(10, &[(1, 1.0)]) }, "tiers"),
    ] {
        let refused = Replay::new(trace.clone(), settings).unwrap_err();
        assert!(
            matches!(&refused, ReplayError::InvalidConfig { field: found, .. } if *found == field),
            "{refused}"
        );
    }
}
