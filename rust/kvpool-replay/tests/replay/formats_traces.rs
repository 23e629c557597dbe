//! Compares statistics of recorded traces with published ones. The traces are third-party data and not
//! in the repository:
//!
//! ```text
//! KVPOOL_TRACES=/where/they/are cargo test --release -p kvpool-replay --test formats_traces -- --nocapture
//! ```
//!
//! The command reads `conversation_trace.jsonl` (Mooncake, FAST'25 release) and `agentic_s120.jsonl.gz`
//! (merged Claude Code sessions) in that folder, and prints the results next to the published values.
//! It fails if a value differs beyond the last published digit.

#![expect(clippy::expect_used, reason = "helpers of tests may panic as tests do")]

use std::{path::PathBuf, time::Instant};

use kvpool_replay::{
    error::TraceError,
    formats::{TraceFormat, write_trace},
    reader::{ReadOptions, TraceLoader, read_trace},
    stats::TraceStats,
};

/// A compared value: its name, the measured value, the published value, and half a unit of the
/// published value's last digit.
type Figure = (&'static str, f64, f64, f64);

fn figures(stats: &TraceStats, file: &str) -> Vec<Figure> {
    let some = |value: Option<f64>| value.expect("a trace with such values");
    let percent_once = stats.blocks_used_once as f64 * 100.0 / stats.unique_blocks as f64;
    let at_most_1_hit = stats.requests_with_at_most_1_hit as f64 * 100.0 / stats.requests as f64;
    let (lengths, outputs, reuse) = (stats.input_length, stats.output_length, stats.reuse_time_s);
    let found = [
        ("requests", stats.requests as f64, 0.0),
        ("tokens in", stats.input_tokens as f64, 0.0),
        ("tokens out", stats.output_tokens as f64, 0.0),
        ("in p50", some(lengths.p50), 0.5),
        ("in p90", some(lengths.p90), 0.5),
        ("in p99", some(lengths.p99), 0.5),
        ("in max", some(lengths.max), 0.0),
        ("out p50", some(outputs.p50), 0.5),
        ("out p90", some(outputs.p90), 0.5),
        ("out max", some(outputs.max), 0.0),
        ("block references", stats.block_references as f64, 0.0),
        ("unique blocks", stats.unique_blocks as f64, 0.0),
        ("references per block", some(stats.reuse_ratio), 0.05),
        ("blocks used once, %", percent_once, 0.05),
        ("ideal, blocks, %", stats.ideal_block_hit_rate * 100.0, 0.005),
        ("ideal, tokens, %", stats.ideal_token_hit_rate * 100.0, 0.005),
        ("ideal, full blocks, %", stats.ideal_full_block_hit_rate * 100.0, 0.005),
        ("request hit p50, %", some(stats.request_hit_rate.p50) * 100.0, 0.5),
        ("request hit p90, %", some(stats.request_hit_rate.p90) * 100.0, 0.5),
        ("at most 1 block hit, %", at_most_1_hit, 0.5),
        ("reuse time p50, s", some(reuse.p50), 0.5),
        ("reuse time p90, s", some(reuse.p90), 0.5),
        ("reuse time p99, s", some(reuse.p99), 0.5),
        ("violations", stats.prefix_violations as f64, 0.0),
    ];
    let published: [f64; 24] = match file {
        "conversation_trace.jsonl" => [
            12_031.0,
            144_793_823.0,
            4_122_048.0,
            6_909.0,
            27_367.0,
            85_400.0,
            126_195.0,
            350.0,
            597.0,
            2_000.0,
            288_500.0,
            182_790.0,
            1.58,
            75.8,
            36.64,
            37.36,
            38.19,
            36.0,
            95.0,
            61.0,
            114.0,
            519.0,
            1_578.0,
            0.0,
        ],
        _ => [
            7_077.0,
            809_862_735.0,
            2_999_465.0,
            97_543.0,
            188_582.0,
            566_175.0,
            868_539.0,
            221.0,
            852.0,
            10_029.0,
            1_578_214.0,
            67_188.0,
            23.5,
            4.9,
            95.74,
            95.53,
            95.74,
            98.9,
            99.6,
            1.9,
            21.0,
            138.0,
            1_836.0,
            0.0,
        ],
    };
    found.iter().zip(published).map(|(&(name, value, within), known)| (name, value, known, within)).collect()
}

#[test]
fn recorded_traces_have_the_published_figures() {
    let Some(folder) = std::env::var_os("KVPOOL_TRACES").map(PathBuf::from) else {
        println!("SKIPPED: set KVPOOL_TRACES to the folder of the traces");
        return;
    };
    for file in ["conversation_trace.jsonl", "agentic_s120.jsonl.gz"] {
        let started = Instant::now();
        let read = match TraceLoader::open(folder.join(file), &ReadOptions::default()) {
            Ok(loader) => loader.finish().expect("a good trace"),
            Err(TraceError::Open { path, source }) => {
                println!("SKIPPED {}: {source}", path.display());
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        let took = started.elapsed();
        let started = Instant::now();
        let stats = TraceStats::new(&read.trace);
        println!("\n{file}: {}, read in {took:.0?}, figures in {:.0?}", read.format, started.elapsed());
        for (name, found, published, within) in figures(&stats, file) {
            println!("{name:<24} {found:>16.3} {published:>16.2}");
            assert!((found - published).abs() <= within + 1e-9, "{file}, {name}: {found} for {published}");
        }
        let second_half = (file == "conversation_trace.jsonl").then_some(39.81);
        let last_half = stats.ideal_last_half_token_hit_rate * 100.0;
        println!("ideal, last half, % {last_half:.2} {second_half:?}");
        if let Some(published) = second_half {
            assert!((last_half - published).abs() < 0.006);
        }
        println!(
            "arrivals: {:.2}/s, at most {} in 1 s, {} different times",
            stats.arrivals_per_s.expect("a span"),
            stats.most_arrivals_in_1_s,
            stats.distinct_arrivals
        );
        // A conversion to smaller blocks does not change the number of tokens that hit. Writing and
        // reading in another format does not change the trace.
        let started = Instant::now();
        let small = read.trace.with_block_tokens(64).expect("a divisor");
        let made = started.elapsed();
        let of_small = TraceStats::new(&small);
        assert!((of_small.ideal_token_hit_rate - stats.ideal_token_hit_rate).abs() < 1e-9);
        let mut text = Vec::new();
        write_trace(&small, TraceFormat::Bailian, &mut text).expect("memory");
        let options = ReadOptions { block_tokens: Some(64), ..ReadOptions::default() };
        let started = Instant::now();
        let again = read_trace(&text[..], &options).expect("what was written");
        println!(
            "64-token blocks: {} references in {made:.0?}; bailian, {:.0} MB, read in {:.0?}",
            of_small.block_references,
            text.len() as f64 / 1e6,
            started.elapsed()
        );
        assert_eq!((again.format, again.notes.unchained), (TraceFormat::Bailian, 0));
        assert_eq!(again.trace.requests(), small.requests());
    }
}
