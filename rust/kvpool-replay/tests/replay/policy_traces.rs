//! Compares the policies of the core on recorded traces, in stream form, with published values. The
//! traces are third-party data and not in the repository:
//!
//! ```text
//! KVPOOL_TRACES=/where/they/are cargo test --release -p kvpool-replay --test policy_traces -- --nocapture
//! ```
//!
//! The command reads the traces that `sizing_traces.rs` lists and prints the whole table. It fails if a
//! value differs from its reference by more than 0.3 percentage points.

#![expect(clippy::print_stdout, clippy::expect_used, reason = "the tables are what the run is for")]

use std::{path::PathBuf, time::Instant};

use kvpool::{Policy, PoolError};
use kvpool_policies::{AdaptiveReplacement, Recency, S3Fifo};
use kvpool_replay::{
    error::TraceError,
    reader::ReadOptions,
    sizing::{Blocks, References, stream},
    trace::Trace,
};

/// Capacities in percent of the unique blocks, rounded down. The tables contain block hit rates at
/// these capacities.
const PERCENT: [f64; 8] = [1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 50.0];
/// The capacities for which reference values exist (1, 2, 5, 10, 20 and 50 %), as indices into
/// [`PERCENT`].
const KNOWN: [usize; 6] = [0, 1, 3, 4, 5, 7];
type Row = [f64; 6];

struct Reference {
    file: &'static str,
    /// Block hit rates in percent, by policy.
    rows: &'static [(&'static str, Row)],
}

const REFERENCES: [Reference; 2] = [
    Reference {
        file: "conversation_trace.jsonl",
        rows: &[
            ("lru", [5.25, 7.93, 19.58, 27.89, 34.53, 36.31]),
            ("s3-fifo", [7.55, 10.81, 19.10, 24.37, 30.67, 36.27]),
            ("arc", [6.49, 9.00, 21.02, 28.43, 32.01, 36.27]),
        ],
    },
    Reference {
        file: "agentic_s120.jsonl.gz",
        rows: &[
            ("lru", [49.25, 72.48, 91.06, 94.84, 95.60, 95.73]),
            ("s3-fifo", [48.76, 69.55, 87.94, 93.14, 95.43, 95.72]),
            ("arc", [52.52, 72.76, 90.16, 94.41, 95.50, 95.67]),
        ],
    },
];

fn policies(num_blocks: usize) -> Result<Vec<Box<dyn Policy>>, PoolError> {
    Ok(vec![
        Box::new(Recency::new(num_blocks)?),
        Box::new(S3Fifo::new(num_blocks)?),
        Box::new(AdaptiveReplacement::new(num_blocks)?),
    ])
}

fn check(reference: &Reference, references: &References) {
    let unique = references.unique_blocks();
    let capacities = PERCENT.map(|percent| (percent * unique as f64 / 100.0) as usize);
    println!(
        "block hits, % (largest difference from the reference), turnover, ns per reference; capacities \
         {capacities:?}"
    );
    let started = Instant::now();
    let mut failures = Vec::new();
    for row in 0..policies(2).expect("memory").len() {
        let mut name = "";
        let mut rates = PERCENT;
        let mut turnovers = Vec::new();
        let policy_started = Instant::now();
        for (rate, &capacity) in rates.iter_mut().zip(&capacities) {
            let mut policy = policies(capacity + 2).expect("memory").swap_remove(row);
            name = policy.name();
            let streamed = stream(references, capacity, &mut *policy).expect("memory");
            policy.check_invariants().expect("intact");
            *rate = streamed.outcome().block_rate() * 100.0;
            turnovers.extend(streamed.turnovers().last().map(|share| (share * 100.0).round() as u32));
        }
        let each = policy_started.elapsed().as_secs_f64() * 1e9 / (references.len() * PERCENT.len()) as f64;
        let shown: Vec<_> = rates.iter().map(|rate| format!("{rate:5.2}")).collect();
        let off = reference.rows.iter().find(|(known, _)| *known == name).map(|(_, expected)| {
            let off = KNOWN
                .iter()
                .zip(expected)
                .fold(0.0_f64, |most, (&at, &rate)| most.max((rates[at] - rate).abs()));
            if off > 0.3 {
                failures.push(format!("{name} is off by {off:.2}"));
            }
            format!("{off:.2}")
        });
        println!(
            "{name:<8} {} ({}) {turnovers:?} {each:.0} ns",
            shown.join(" "),
            off.as_deref().unwrap_or("-")
        );
    }
    println!("{:.2} s in all", started.elapsed().as_secs_f64());
    assert!(failures.is_empty(), "{failures:?}");
}

#[test]
fn recorded_traces_give_the_published_figures() {
    let Some(folder) = std::env::var_os("KVPOOL_TRACES").map(PathBuf::from) else {
        println!("SKIPPED: set KVPOOL_TRACES to the folder of the traces");
        return;
    };
    for reference in REFERENCES {
        match Trace::from_path(folder.join(reference.file), &ReadOptions::default()) {
            Ok(trace) => {
                println!("\n{}", reference.file);
                check(&reference, &References::new(&trace, Blocks::All).expect("a checked trace"));
            }
            Err(TraceError::Open { path, source }) => println!("SKIPPED {}: {source}", path.display()),
            Err(error) => panic!("{error}"),
        }
    }
}
