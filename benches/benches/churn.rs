//! How long single calls take at worst: 512 blocks at a time, new content into a full pool of 917,505 blocks, whose index has been
//! as full as it gets from the start. Prints mean, median, 99th percentile and the worst of each call, in microseconds.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a report, not a library")]

use std::time::Instant;

use kvpool_benches::{REQUEST_BLOCKS, chain, pool};

const BLOCKS: usize = 917_505;
const REQUESTS: u64 = 8_000;

fn main() {
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
    println!("call of {REQUEST_BLOCKS} blocks   mean      p50      p99    worst us");
    for (call, times) in ["allocate", "register", "mark_computed", "release"].iter().zip(&mut times) {
        times.sort_by(f64::total_cmp);
        let mean = times.iter().sum::<f64>() / times.len() as f64;
        let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
        println!("{call:<18} {mean:8.1} {:8.1} {:8.1} {:8.1}", at(0.5), at(0.99), at(1.0));
    }
}
