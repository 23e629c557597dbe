//! Measures the worst time of single calls. Each call handles 512 blocks of new content in a full pool
//! of 917,505 blocks, whose index is as full as possible from the start. Prints the mean, the median,
//! the 99th percentile and the worst time of each call, in microseconds.
//!
//! The same calls are made in several runs, and the best time of each call is used. If a call is slow
//! in every run, the pool is the cause. If it is slow in one run, another process used the core. The
//! last column is the worst time of all runs, whatever its cause.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a report, not a library")]

use std::time::Instant;

use kvpool_benches::{REQUEST_BLOCKS, chain, pool};

const BLOCKS: usize = 917_505;
const REQUESTS: u64 = 8_000;
const RUNS: usize = 5;

/// Returns the time of every call in microseconds: allocate, register, `mark_computed`, release.
fn run() -> [Vec<f64>; 4] {
    let mut pool = pool(BLOCKS).unwrap();
    let mut table = Vec::with_capacity(REQUEST_BLOCKS);
    let mut times = [const { Vec::new() }; 4];
    let mut nth = 0;
    while nth < REQUESTS + (BLOCKS / REQUEST_BLOCKS) as u64 {
        let chain = chain(nth, REQUEST_BLOCKS).unwrap();
        nth += 1;
        table.clear();
        let measured = pool.stats().free < REQUEST_BLOCKS;
        let mut at = Instant::now();
        let mut took = |call: usize| {
            let now = Instant::now();
            if measured {
                times[call].push((now - at).as_secs_f64() * 1e6);
            }
            at = Instant::now();
        };
        pool.allocate_into(REQUEST_BLOCKS, &mut table).unwrap();
        took(0);
        pool.register(&table, &chain, 0).unwrap();
        took(1);
        pool.mark_computed(&table).unwrap();
        took(2);
        pool.release_table(&table).unwrap();
        took(3);
    }
    times
}

fn main() {
    let runs: Vec<_> = (0..RUNS).map(|_| run()).collect();
    println!("call of {REQUEST_BLOCKS} blocks   mean      p50      p99    worst us   worst of all runs");
    for (call, name) in ["allocate", "register", "mark_computed", "release"].iter().enumerate() {
        let best = |i| runs.iter().map(|run: &[Vec<f64>; 4]| run[call][i]).fold(f64::INFINITY, f64::min);
        let mut times: Vec<f64> = (0..runs[0][call].len()).map(best).collect();
        times.sort_by(f64::total_cmp);
        let mean = times.iter().sum::<f64>() / times.len() as f64;
        let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
        let worst = runs.iter().flat_map(|run| &run[call]).fold(0.0_f64, |a, &b| a.max(b));
        println!("{name:<18} {mean:8.1} {:8.1} {:8.1} {:8.1} {worst:12.1}", at(0.5), at(0.99), at(1.0));
    }
}
