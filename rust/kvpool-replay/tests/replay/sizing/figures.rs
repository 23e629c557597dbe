//! Sizing of generated traces: compares the results with pinned values, with the real pool, and with
//! bounds. Invalid input is refused.

use std::{collections::HashSet, sync::Arc};

use kvpool_replay::{
    generate::{GeneratorConfig, generate},
    reader::ReadOptions,
    replay::{Replay, ReplayConfig},
    sizing::{
        Blocks, HintConfig, HitCurve, KvBytes, References, SampleConfig, SampledLru, SizingError, lru,
        lru_distances, lru_with_hints, optimal, over_time,
    },
    trace::Trace,
};

use super::models::forest;

fn generated(requests: usize) -> Trace {
    generate(&GeneratorConfig { requests, ..GeneratorConfig::default() }).unwrap()
}

/// The estimators return exactly the same hits, in blocks and tokens, as the real pool.
#[test]
fn lru_is_the_shipped_pool() {
    let trace = Arc::new(generated(500));
    let curve = lru_distances(&References::new(&trace, Blocks::All).unwrap()).into_curve();
    for capacity_blocks in [1, 30, 400, 3_000] {
        let config = ReplayConfig { block_size: 512, capacity_blocks, ..ReplayConfig::default() };
        let mut replay = Replay::new(trace.clone(), config).unwrap();
        while replay.advance(1_000).unwrap() < replay.total() {}
        let report = replay.report();
        let point = curve.at(capacity_blocks as u64);
        assert_eq!((point.block_hits, point.token_hits), (report.hits.block_hits, report.hits.token_hits));
        assert_eq!(curve.token_rate(point), report.token_hit_rate);
    }
}

/// The results for one generated trace are pinned. If one of them changes, a definition has changed.
#[test]
fn figures_are_pinned() {
    let trace = generated(2_000);
    let references = References::new(&trace, Blocks::All).unwrap();
    let distances = lru_distances(&references);
    let unique = references.unique_blocks();
    assert_eq!((references.len(), unique, references.prompt_tokens()), (51_975, 11_040, 26_115_671));
    let rows = [1, 2, 5, 10, 20, 50].map(|percent| {
        let capacity = unique * percent / 100;
        let hints = HintConfig { accuracy: 0.5, seed: 0 };
        [
            distances.curve().at(capacity as u64).block_hits,
            lru_with_hints(&references, capacity, hints).unwrap().total().block_hits,
            optimal(&references, capacity).total().block_hits,
        ]
    });
    assert_eq!(rows, ROWS);
    let quantiles = [0.25, 0.5, 0.75, 0.9, 0.99].map(|fraction| distances.quantile(fraction).unwrap());
    assert_eq!(quantiles, QUANTILES);
    let knee = distances.curve().knee(None).unwrap();
    assert_eq!((knee.point.capacity_blocks, knee.point.block_hits, knee.point.token_hits), KNEE);
}

/// Hits of LRU, of LRU with hints for half of the dead blocks, and of the optimum, at 1, 2, 5, 10, 20
/// and 50 % of the unique blocks.
const ROWS: [[u64; 3]; 6] = [
    [4_615, 5_036, 13_352],
    [7_005, 7_665, 18_377],
    [12_203, 13_742, 29_049],
    [24_343, 27_898, 38_068],
    [39_216, 40_297, 40_935],
    [40_915, 40_935, 40_935],
];
const QUANTILES: [u64; 5] = [421, 932, 1_433, 1_799, 3_384];
const KNEE: (u64, u64, u64) = (1_959, 38_320, 19_619_840);

/// Returns the mean absolute difference between two curves, over evenly spaced capacities. It is a
/// difference of block hit rates.
fn mean_error(exact: &HitCurve, estimate: &HitCurve) -> f64 {
    let most = exact.ceiling().capacity_blocks;
    let errors = (1..=100).map(|step| {
        let capacity = most * step / 100;
        (exact.block_rate(exact.at(capacity)) - estimate.block_rate(estimate.at(capacity))).abs()
    });
    errors.sum::<f64>() / 100.0
}

#[test]
fn sampling_is_close() {
    let trace = generated(20_000);
    let exact = lru_distances(&References::new(&trace, Blocks::All).unwrap()).into_curve();
    let error = |rate, max_blocks, seed| {
        let config = SampleConfig { rate, max_blocks, seed, ..SampleConfig::default() };
        let mut sampled = SampledLru::new(config).unwrap();
        trace.requests().iter().for_each(|request| sampled.push(request));
        mean_error(&exact, sampled.finish().curve())
    };
    for (rate, max_blocks, mean_bound, worst_bound) in [
        (0.1, None, 0.004, 0.01),
        (0.01, None, 0.012, 0.03),
        (1.0, Some(8_192), 0.003, 0.006),
        (1.0, Some(1_024), 0.01, 0.02),
    ] {
        let errors: Vec<f64> = (0..10).map(|seed| error(rate, max_blocks, seed)).collect();
        let mean = errors.iter().sum::<f64>() / errors.len() as f64;
        let worst = errors.iter().copied().fold(0.0, f64::max);
        println!("rate {rate}, at most {max_blocks:?} blocks: mean error {mean:.5}, worst {worst:.5}");
        assert!(mean < mean_bound && worst < worst_bound);
    }
}

#[test]
fn bytes_are_those_of_the_models() {
    let llama_70b = KvBytes::attention(80, 8, 128, 2).unwrap();
    assert_eq!((llama_70b.bytes_per_token(), llama_70b.blocks_in(0.5, 16).unwrap()), (327_680, 102));
    assert_eq!(llama_70b.bytes_per_block(512).unwrap(), 160 << 20);
    assert_eq!(KvBytes::per_token(131_072).unwrap().gib_of(16, 512).unwrap(), 1.0);
    assert_eq!(llama_70b.blocks_in(1e300, 16).unwrap(), u64::MAX / (16 * 327_680));
}

#[test]
fn each_gib_is_counted_once() {
    let references = References::new(&generated(500), Blocks::All).unwrap();
    let curve = lru_distances(&references).into_curve();
    let kv = KvBytes::attention(32, 8, 128, 2).unwrap();
    let sizes = [0.0, 4.0, 16.0, 100.0, 1e6];
    let rows = curve.worth(kv, &sizes, 20_000.0).unwrap();
    let mut tokens = 0.0;
    for (row, pair) in rows[1..].iter().zip(sizes.windows(2)) {
        tokens += row.tokens_per_gib * (pair[1] - pair[0]);
        assert!((tokens - row.point.token_hits as f64).abs() < 1e-6 * tokens);
        assert!((row.seconds_saved - tokens / 20_000.0).abs() < 1e-6 * row.seconds_saved);
        assert!((row.seconds_per_gib * 20_000.0 - row.tokens_per_gib).abs() < 1e-6 * row.tokens_per_gib);
    }
    assert_eq!((rows[0].point.token_hits, rows[0].tokens_per_gib), (0, 0.0));
    assert_eq!(rows[4].point.block_hits, curve.ceiling().block_hits);
    assert_eq!(curve.capacity_for(1.0), Some(curve.ceiling()));
    let half = curve.capacity_for(0.5).unwrap();
    assert!(half.token_hits * 2 >= curve.ceiling().token_hits);
    assert!(curve.at(half.capacity_blocks - 1).token_hits * 2 < curve.ceiling().token_hits);
    assert_eq!((curve.capacity_for(1.1), curve.capacity_for(f64::NAN)), (None, None));
}

/// In this trace no block is used twice, and every prompt is shorter than a block. The curves are
/// empty, and nothing divides by zero.
#[test]
fn nothing_to_hit() {
    let lonely = forest(&[0, 0, 0], &[(0, 1), (1, 2), (2, 3)]);
    for blocks in [Blocks::All, Blocks::Full] {
        let references = References::new(&lonely, blocks).unwrap();
        let distances = lru_distances(&references);
        let curve = distances.curve();
        assert_eq!(references.is_empty(), blocks == Blocks::Full);
        assert_eq!((curve.points().len(), curve.block_rate(curve.at(9)), curve.knee(None)), (0, 0.0, None));
        assert_eq!((distances.quantile(0.5), distances.histogram().len()), (None, 0));
        assert_eq!(optimal(&references, 9).block_rate(), 0.0);
        assert!(references.runs().is_empty() && references.request(7).is_empty());
        assert_eq!(references.runs().to(7).len() + references.runs().from(7).count(), 0);
    }
}

#[test]
fn broken_prefixes_are_refused() {
    let read = |second: &str| {
        let line = |ids: &str| {
            format!(
                "{{\"timestamp\": 0, \"input_length\": 1024, \"output_length\": 1, \"hash_ids\": [{ids}]}}\n"
            )
        };
        let options = ReadOptions { check_prefixes: false, ..ReadOptions::default() };
        Trace::from_reader((line("1, 2") + &line(second)).as_bytes(), &options).unwrap()
    };
    let refused = |second, id, position| {
        let error = References::new(&read(second), Blocks::All).unwrap_err();
        assert_eq!(error, SizingError::BrokenPrefix { request: 2, id, position });
    };
    refused("3, 2", 2, 1);
    refused("2, 3", 2, 0);
    refused("7, 7", 7, 1);
    assert!(References::new(&read("1, 3"), Blocks::All).is_ok());
    // Sampling works at the smallest possible rates, and accepts a trace whose ids violate the rule on
    // prefixes.
    for rate in [f64::MIN_POSITIVE, 1e-19, 6e-20, 1e-18] {
        let mut sampled = SampledLru::new(SampleConfig { rate, ..SampleConfig::default() }).unwrap();
        generated(500).requests().iter().for_each(|request| sampled.push(request));
        assert!(sampled.finish().reused() <= generated(500).summary().block_references);
    }
    let mut sampled =
        SampledLru::new(SampleConfig { max_blocks: Some(1), ..SampleConfig::default() }).unwrap();
    read("7, 7").requests().iter().for_each(|request| sampled.push(request));
    assert!(sampled.finish().reused() <= 4);
}

#[test]
fn settings_out_of_range_are_named() {
    let references = References::new(&generated(50), Blocks::All).unwrap();
    let curve = lru_distances(&references).into_curve();
    let kv = KvBytes::per_token(1).unwrap();
    let sample = |config| SampledLru::new(config).map(|_| ()).unwrap_err();
    let default = SampleConfig::default();
    let mut errors = vec![
        sample(SampleConfig { max_blocks: Some(0), ..default }),
        sample(SampleConfig { max_blocks: Some(usize::MAX), ..default }),
        sample(SampleConfig { block_tokens: 0, ..default }),
        curve.worth(kv, &[4.0, 4.0], 1.0).unwrap_err(),
        curve.worth(kv, &[-1.0], 1.0).unwrap_err(),
        KvBytes::per_token(0).unwrap_err(),
        KvBytes::latent(0, 1, 1).unwrap_err(),
        KvBytes::per_token(u64::MAX).unwrap().bytes_per_block(2).unwrap_err(),
    ];
    for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        errors.push(over_time(&references, &lru(&references, 1), bad.min(1e-9)).unwrap_err());
        errors.push(sample(SampleConfig { rate: bad, ..default }));
        errors.push(curve.worth(kv, &[1.0], bad).unwrap_err());
        if bad != 0.0 {
            let hints = HintConfig { accuracy: bad, seed: 0 };
            errors.push(lru_with_hints(&references, 1, hints).unwrap_err());
            errors.push(kv.blocks_in(bad, 1).unwrap_err());
        }
    }
    let mut names = HashSet::new();
    for error in errors {
        let SizingError::Setting { name, .. } = &error else { panic!("{error}") };
        assert!(error.to_string().contains("; allowed: "));
        names.insert(*name);
    }
    assert_eq!(names.len(), 9, "{names:?}");
}
