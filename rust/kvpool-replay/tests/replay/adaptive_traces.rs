//! Compares the policy `adaptive` on recorded traces, in both forms, with the best of LRU, ARC and
//! S3-FIFO at each capacity. The traces are third-party data and not in the repository:
//!
//! ```text
//! KVPOOL_TRACES=/where/they/are cargo test --release -p kvpool-replay --test adaptive_traces -- --nocapture
//! ```
//!
//! The command reads the traces that `sizing_traces.rs` lists and prints tables like those of
//! `benches/results/2026-11-28-eviction-study.md`. It fails if the hit rate of `adaptive` is half a
//! percentage point below the best of the three.

#![expect(clippy::print_stdout, clippy::expect_used, reason = "the tables are what the run is for")]

use std::{path::PathBuf, time::Instant};

use kvpool::EvictionPolicy;
use kvpool_replay::{
    error::TraceError,
    reader::ReadOptions,
    sizing::{Blocks, Form, References, run_policy},
    trace::Trace,
};

/// Capacities of the cache, in percent of the distinct blocks of the trace, rounded down.
const PERCENT: [f64; 10] = [1.0, 2.0, 3.0, 5.0, 7.0, 10.0, 15.0, 20.0, 30.0, 50.0];
const FILES: [&str; 2] = ["conversation_trace.jsonl", "agentic_s120.jsonl.gz"];
/// Largest allowed distance of the policy's hit rate from the best of the three, in percentage points.
const BOUND: f64 = 0.5;

type Row = [f64; PERCENT.len()];

/// Returns the hit rates of a policy, and prints them with the time per reference.
fn rates(references: &References, policy: EvictionPolicy, form: Form) -> Row {
    let unique = references.unique_blocks() as f64;
    let started = Instant::now();
    let row = PERCENT.map(|percent| {
        let capacity = (percent * unique / 100.0) as usize;
        let run = run_policy(references, capacity, policy, form).expect("memory");
        run.outcome().block_rate() * 100.0
    });
    let each = started.elapsed().as_secs_f64() * 1e9 / (references.len() * PERCENT.len()) as f64;
    print(&format!("{} ({each:.0} ns)", policy.name()), &row);
    row
}

fn print(name: &str, row: &Row) {
    let shown: Vec<_> = row.iter().map(|rate| format!("{rate:6.2}")).collect();
    println!("  {name:<20} {}", shown.join(" "));
}

fn check(references: &References, form: Form) -> Vec<String> {
    use kvpool_policies::{ADAPTIVE, ARC, LRU, S3_FIFO};
    println!("{form:?} form, block hits, % (per reference)");
    let [lru, arc, s3_fifo, adaptive] =
        [LRU, ARC, S3_FIFO, ADAPTIVE].map(|policy| rates(references, policy, form));
    let best: Row = std::array::from_fn(|at| lru[at].max(arc[at]).max(s3_fifo[at]));
    let over_best: Row = std::array::from_fn(|at| adaptive[at] - best[at]);
    let over_lru: Row = std::array::from_fn(|at| adaptive[at] - lru[at]);
    print("over the best", &over_best);
    print("over lru", &over_lru);
    let behind = |than: &str, row: Row| {
        let found = PERCENT.into_iter().zip(row).filter(|&(_, points)| points < -BOUND);
        let said =
            found.map(|(percent, points)| format!("{form:?} form, {percent} %: {points:.2} than {than}"));
        said.collect::<Vec<_>>()
    };
    [behind("the best", over_best), behind("LRU", over_lru)].concat()
}

#[test]
fn adaptive_is_as_good_as_the_best_of_three() {
    let Some(folder) = std::env::var_os("KVPOOL_TRACES").map(PathBuf::from) else {
        println!("SKIPPED: set KVPOOL_TRACES to the folder of the traces");
        return;
    };
    let mut behind = Vec::new();
    for file in FILES {
        match Trace::from_path(folder.join(file), &ReadOptions::default()) {
            Ok(trace) => {
                println!("\n{file}, at {PERCENT:?} % of the unique blocks");
                let references = References::new(&trace, Blocks::All).expect("a checked trace");
                for form in [Form::Pool, Form::Stream] {
                    behind.extend(check(&references, form).into_iter().map(|what| format!("{file}: {what}")));
                }
            }
            Err(TraceError::Open { path, source }) => println!("SKIPPED {}: {source}", path.display()),
            Err(error) => panic!("{error}"),
        }
    }
    assert!(behind.is_empty(), "{behind:#?}");
}
