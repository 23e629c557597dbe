//! What a journal costs: a trace through the manager without one, with a ring, and with a file; then the file replayed.
//!
//! Guards the claim of docs/journal.md: less than 10 % more time, a few bytes per operation, bit-exact replay.
//!
//! `cargo bench -p kvpool-benches --bench journal -- TRACE [MAX_RUNNING] [ROUNDS]`; without a trace one is made up. Few running
//! requests make many small steps, which is where a journal costs most. The ways alternate within one process. The time is
//! that of the thread that calls the manager, as the kernel counts it (Linux): the threads that hash prompts ahead are not in it,
//! and neither are other programs.
#![expect(clippy::print_stdout, reason = "a report, not a library")]

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use kvpool::journal::{Journal, JournalConfig};
use kvpool_journal::Options;
use kvpool_replay::generate::{GeneratorConfig, generate};
use kvpool_replay::reader::ReadOptions;
use kvpool_replay::replay::{Mode, Replay, ReplayConfig};
use kvpool_replay::trace::Trace;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Nanoseconds that this thread has run.
fn thread_ns() -> Outcome<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    Ok(text.split_whitespace().next().ok_or("no schedstat")?.parse()?)
}

/// Seconds that the whole process has run, hashing threads included; in ticks of 10 ms.
fn process_seconds() -> Outcome<f64> {
    let text = std::fs::read_to_string("/proc/self/stat")?;
    let behind_name = text.rsplit_once(')').ok_or("no stat")?.1;
    let ticks = behind_name.split_whitespace().skip(11).take(2).map(str::parse::<u64>);
    Ok(ticks.sum::<Result<u64, _>>()? as f64 / 100.0)
}

#[derive(Clone, Copy, PartialEq)]
enum Way {
    Without,
    NoDigests,
    Ring,
    File,
}

const WAYS: [(Way, &str); 4] = [
    (Way::Without, "no journal"),
    (Way::NoDigests, "ring, no digests"),
    (Way::Ring, "ring"),
    (Way::File, "file"),
];

struct Run {
    thread_ms: f64,
    process_ms: f64,
    wall_ms: f64,
    operations: u64,
    bytes: u64,
}

fn run(trace: &Arc<Trace>, config: &ReplayConfig, way: Way, path: &Path) -> Outcome<Run> {
    let settings = JournalConfig::default();
    let mut replay = match way {
        Way::Without => Replay::new(trace.clone(), config.clone())?,
        Way::NoDigests => {
            let settings = JournalConfig { digest_every: 0, ..settings };
            Replay::with_journal(trace.clone(), config.clone(), Journal::ring(64 << 20, settings)?)?
        }
        Way::Ring => Replay::with_journal(trace.clone(), config.clone(), Journal::ring(64 << 20, settings)?)?,
        Way::File => {
            drop(std::fs::remove_file(path));
            Replay::with_journal(trace.clone(), config.clone(), Journal::create(path, settings)?)?
        }
    };
    let (thread, process, wall) = (thread_ns()?, process_seconds()?, Instant::now());
    replay.advance(usize::MAX)?;
    replay.flush_journal();
    let run = Run {
        thread_ms: (thread_ns()? - thread) as f64 / 1e6,
        process_ms: (process_seconds()? - process) * 1e3,
        wall_ms: wall.elapsed().as_secs_f64() * 1e3,
        operations: replay.journal().map_or(0, Journal::operations),
        bytes: replay.journal().map_or(0, Journal::bytes),
    };
    Ok(run)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> Outcome<()> {
    let arguments: Vec<_> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let trace = match arguments.first() {
        Some(path) => Trace::from_path(path, &ReadOptions::default())?,
        None => generate(&GeneratorConfig { requests: 2000, ..Default::default() })?,
    };
    let trace = Arc::new(trace);
    let max_running = arguments.get(1).map_or(Ok(256), |text| text.parse())?;
    let rounds: usize = arguments.get(2).map_or(Ok(5), |text| text.parse())?;
    let config = ReplayConfig { mode: Mode::Engine, max_running, ..ReplayConfig::default() };
    let path: PathBuf = std::env::temp_dir().join(format!("kvpool-bench-{}.kvj", std::process::id()));

    let mut runs: Vec<Vec<Run>> = WAYS.iter().map(|_| Vec::new()).collect();
    for round in 0..rounds {
        for turn in 0..WAYS.len() {
            let at = (round + turn) % WAYS.len();
            runs[at].push(run(&trace, &config, WAYS[at].0, &path)?);
        }
    }
    let operations = runs[3].first().map_or(0, |run| run.operations);
    println!(
        "{} requests, at most {max_running} at once, {operations} operations, {rounds} rounds, medians",
        trace.requests().len()
    );
    println!(
        "way                thread ms  slower   ns/operation  process ms  wall ms      bytes  bytes/operation"
    );
    let of = |runs: &[Run], what: fn(&Run) -> f64| median(runs.iter().map(what).collect());
    let base = of(&runs[0], |run| run.thread_ms);
    for ((_, name), runs) in WAYS.iter().zip(&runs) {
        let thread = of(runs, |run| run.thread_ms);
        let bytes = runs.first().map_or(0, |run| run.bytes);
        println!(
            "{name:<17} {thread:>10.1} {:>6.1}% {:>14.1} {:>11.0} {:>8.0} {bytes:>10} {:>16.2}",
            (thread / base - 1.0) * 100.0,
            (thread - base) * 1e6 / operations as f64,
            of(runs, |run| run.process_ms),
            of(runs, |run| run.wall_ms),
            bytes as f64 / operations as f64,
        );
    }
    let bytes = std::fs::read(&path)?;
    let began = thread_ns()?;
    let report = kvpool_journal::replay(&bytes, Options::default(), &mut |_| true)?;
    let ns = (thread_ns()? - began) as f64;
    std::fs::remove_file(&path)?;
    println!(
        "replayed: {} operations, {} digests, {}, {:.0} ms, {:.0} ns per operation",
        report.operations,
        report.digests,
        report.difference.map_or_else(|| "bit-exact".into(), |difference| format!("{difference:?}")),
        ns / 1e6,
        ns / report.operations as f64,
    );
    Ok(())
}
