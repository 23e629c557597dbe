//! Compares the sizing of recorded traces with published values. The traces are third-party data and
//! not in the repository:
//!
//! ```text
//! KVPOOL_TRACES=/where/they/are cargo test --release -p kvpool-replay --test sizing_traces -- --nocapture
//! ```
//!
//! The command reads `conversation_trace.jsonl` (Mooncake, FAST'25 release) and `agentic_s120.jsonl.gz`
//! (merged Claude Code sessions) in that folder, and prints the results next to the published values.
//! It fails if a value differs by more than the stated difference.

#![expect(clippy::print_stdout, clippy::expect_used, reason = "the tables are what the run is for")]

use std::{path::PathBuf, time::Instant};

use kvpool::retention::RetentionConfig;
use kvpool_replay::{
    error::TraceError,
    reader::ReadOptions,
    sizing::{
        Blocks, HintConfig, KvBytes, Outcome, References, SampleConfig, SampledLru, lru, lru_distances,
        lru_with_hints, optimal, over_time, pool_form_with_hints,
    },
    trace::Trace,
};

/// Capacities in percent of the unique blocks, rounded down.
const PERCENT: [f64; 6] = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0];
type Row = [f64; 6];

struct Reference {
    file: &'static str,
    /// Block hit rates in percent.
    lru: Row,
    optimal: Row,
    /// The token hit rates of LRU and of the optimum, in percent.
    tokens: Option<[Row; 2]>,
    /// The hit rates of LRU with hints, one row per accuracy of the hints.
    hints: &'static [(f64, Row)],
}

const REFERENCES: [Reference; 2] = [
    Reference {
        file: "conversation_trace.jsonl",
        lru: [5.25, 7.93, 19.58, 27.89, 34.53, 36.31],
        optimal: [24.64, 31.42, 36.64, 36.64, 36.64, 36.64],
        tokens: Some([[5.35, 8.08, 19.96, 28.44, 35.21, 37.03], [25.12, 32.04, 37.36, 37.36, 37.36, 37.36]]),
        hints: &[
            (0.5, [6.20, 12.87, 25.42, 33.07, 36.02, 36.64]),
            (0.8, [8.69, 18.25, 30.99, 35.97, 36.64, 36.64]),
            (1.0, [13.28, 24.96, 36.64, 36.64, 36.64, 36.64]),
        ],
    },
    Reference {
        file: "agentic_s120.jsonl.gz",
        lru: [49.25, 72.48, 91.06, 94.84, 95.60, 95.73],
        optimal: [66.91, 82.98, 93.42, 95.57, 95.74, 95.74],
        tokens: None,
        hints: &[],
    },
];

/// Runs a simulation, prints its time, and returns the largest difference from the reference.
fn row(name: &str, reference: &Row, capacities: &[usize], run: impl Fn(usize) -> Outcome) -> f64 {
    let started = Instant::now();
    let outcomes: Vec<_> = capacities.iter().map(|&capacity| run(capacity)).collect();
    let each = started.elapsed().as_secs_f64() * 1e3 / capacities.len() as f64;
    let mut worst = 0.0_f64;
    print!("{name:<14}");
    for (outcome, &expected) in outcomes.iter().zip(reference) {
        let (blocks, tokens) = (outcome.block_rate() * 100.0, outcome.token_rate() * 100.0);
        print!(" {blocks:5.2}/{tokens:5.2} ({expected:5.2})");
        worst = worst.max((blocks - expected).abs());
    }
    println!("   {each:.2} ms each, off by {worst:.2} at most");
    worst
}

fn check(trace: &Trace, reference: &Reference) {
    let started = Instant::now();
    let references = References::new(trace, Blocks::All).expect("a checked trace");
    let built = started.elapsed();
    let distances = lru_distances(&references);
    let curve = distances.curve();
    println!(
        "references {:.1} ms, {:.1} MB; LRU at every capacity {:.2} ms, {} points; {} runs of {} \
         references, {} requests",
        built.as_secs_f64() * 1e3,
        references.heap_bytes() as f64 / 1e6,
        (started.elapsed() - built).as_secs_f64() * 1e3,
        curve.points().len(),
        references.runs().len(),
        references.len(),
        references.requests(),
    );
    let unique = references.unique_blocks();
    let capacities = PERCENT.map(|percent| (percent * unique as f64 / 100.0) as usize);
    println!("blocks/tokens hit, % (reference, blocks) at {capacities:?} of {unique} blocks");
    let lru_off = row("LRU", &reference.lru, &capacities, |capacity| lru(&references, capacity));
    for (index, capacity) in capacities.into_iter().enumerate() {
        assert_eq!(curve.at(capacity as u64), lru(&references, capacity).total());
        if let Some(tokens) = reference.tokens {
            let found = [lru(&references, capacity), optimal(&references, capacity)];
            for (outcome, row) in found.iter().zip(&tokens) {
                assert!((outcome.token_rate() * 100.0 - row[index]).abs() < 0.006, "{capacity} blocks");
            }
        }
    }
    let optimal_off =
        row("optimum", &reference.optimal, &capacities, |capacity| optimal(&references, capacity));
    let (mut hints_off, mut pool_hints_off) = (0.0_f64, 0.0_f64);
    for (accuracy, expected) in reference.hints {
        let config = HintConfig { accuracy: *accuracy, seed: 0 };
        let run = |capacity| lru_with_hints(&references, capacity, config).expect("in range");
        hints_off = hints_off.max(row(&format!("hints {accuracy}"), expected, &capacities, run));
        // Run the evictor and the retention of the pool. Each draw decides for all dead blocks of a
        // request whether they get a hint.
        let rate = |capacity: usize, seed| {
            let retention = RetentionConfig::default();
            let mut evictor = kvpool_policies::LRU.build(capacity + 1, Some(&retention)).expect("fits");
            let config = HintConfig { accuracy: *accuracy, seed };
            let run =
                pool_form_with_hints(&references, capacity, evictor.as_mut(), config).expect("in range");
            run.outcome().block_rate() * 100.0
        };
        print!("  through the pool, mean of 16 seeds, lowest");
        for (&capacity, &expected) in capacities.iter().zip(expected) {
            let rates: Vec<f64> = (0..16).map(|seed| rate(capacity, seed)).collect();
            let mean = rates.iter().sum::<f64>() / 16.0;
            print!("  {mean:.2} {:.2}", rates.iter().copied().fold(100.0, f64::min));
            pool_hints_off = pool_hints_off.max((mean - expected).abs());
        }
        println!();
    }

    let full = References::new(trace, Blocks::Full).expect("a checked trace");
    let ceiling = curve.ceiling();
    println!(
        "ceiling: blocks {:.2} %, tokens {:.2} %, full blocks {:.2} %",
        curve.block_rate(ceiling) * 100.0,
        curve.token_rate(ceiling) * 100.0,
        full.reused() as f64 * 100.0 / full.len() as f64
    );
    let quantiles = [0.25, 0.5, 0.75, 0.9, 0.99].map(|fraction| distances.quantile(fraction).unwrap_or(0));
    println!("reuse distance, quartiles, 90 %, 99 %: {quantiles:?}");
    let llama_8b = KvBytes::attention(32, 8, 128, 2).expect("a shape");
    if let Some(knee) = curve.knee(None) {
        let gib = llama_8b.gib_of(knee.point.capacity_blocks, trace.block_tokens()).expect("a size");
        let rate = curve.token_rate(knee.point) * 100.0;
        println!("knee: {gib:.0} GiB of Llama-8B, {rate:.2} % of tokens, prominence {:.2}", knee.prominence);
    }
    for worth in curve.worth(llama_8b, &[60.0, 250.0, 500.0, 1000.0, 4000.0], 10_000.0).expect("sizes") {
        println!(
            "{:5.0} GiB: {:5.2} % of tokens, {:6.0} s of prefill saved at 10,000 tokens/s, {:6.0} tokens \
             per further GiB",
            worth.gib,
            worth.token_rate * 100.0,
            worth.seconds_saved,
            worth.tokens_per_gib
        );
    }
    let span = references.times_ms().last().copied().unwrap_or(0.0);
    let windows = over_time(&references, &lru(&references, capacities[3]), span / 7.5).expect("windows");
    let rates: Vec<_> = windows.iter().map(|window| format!("{:.1}", window.token_rate() * 100.0)).collect();
    println!("LRU at 10 % over time, % of tokens: {}", rates.join(" "));

    for (rate, max_blocks) in [(0.1, None), (0.01, None), (1.0, Some(8192))] {
        let started = Instant::now();
        let config = SampleConfig { rate, max_blocks, ..SampleConfig::default() };
        let mut sampled = SampledLru::new(config).expect("in range");
        trace.requests().iter().for_each(|request| sampled.push(request));
        let estimate = sampled.finish().into_curve();
        let off = capacities.map(|capacity| {
            let capacity = capacity as u64;
            (estimate.block_rate(estimate.at(capacity)) - curve.block_rate(curve.at(capacity))) * 100.0
        });
        let took = started.elapsed().as_secs_f64() * 1e3;
        println!("sampled, rate {rate}, at most {max_blocks:?}: {took:.1} ms, off by {off:.2?} points");
    }
    // The reference values have two decimals, so smaller differences are rounding.
    assert!(lru_off < 0.006, "LRU");
    assert!(optimal_off < 0.006, "optimum");
    assert!(hints_off < 0.5, "hints");
    assert!(
        pool_hints_off < 0.7,
        "hints through the pool, which holds a request's dead blocks while it runs"
    );
}

#[test]
fn recorded_traces_give_the_published_figures() {
    let Some(folder) = std::env::var_os("KVPOOL_TRACES").map(PathBuf::from) else {
        println!("SKIPPED: set KVPOOL_TRACES to the folder of the traces");
        return;
    };
    for reference in REFERENCES {
        let started = Instant::now();
        match Trace::from_path(folder.join(reference.file), &ReadOptions::default()) {
            Ok(trace) => {
                println!("\n{}, read in {:.0} ms", reference.file, started.elapsed().as_secs_f64() * 1e3);
                check(&trace, &reference);
            }
            Err(TraceError::Open { path, source }) => println!("SKIPPED {}: {source}", path.display()),
            Err(error) => panic!("{error}"),
        }
    }
}
