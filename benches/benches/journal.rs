//! Measures the cost of a journal: runs a trace through managers without one, with a ring, and with a
//! file, and then replays the file.
//!
//! Checks the claims of design/journal.md: the time of recording, the bytes per operation, and a
//! bit-exact replay.
//!
//! `cargo bench -p kvpool-benches --bench journal -- TRACE [MAX_RUNNING [WAY]]`
//!
//! Without a trace, one is generated. A small number of running requests makes many small steps. WAY is
//! the beginning of a name: only that way runs, for a profiler. All ways take turns in one thread, a
//! few requests at a time, so that other load of the machine affects them equally. The time is the
//! thread's time from the kernel. Separate threads hash the prompts: their time is the process's time
//! less the thread's, and it is the same for every way.
#![expect(clippy::print_stdout, reason = "a report, not a library")]

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cpu_time::{ProcessTime, ThreadTime};
use kvpool_journal::{Journal, JournalConfig, JournalError, Options};
use kvpool_replay::generate::{GeneratorConfig, generate};
use kvpool_replay::reader::ReadOptions;
use kvpool_replay::replay::{Mode, Replay, ReplayConfig};
use kvpool_replay::trace::Trace;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Number of requests that one variant runs before the next variant runs its requests.
const TURN: usize = 8;
/// Size of the ring in bytes, as a server might use it. The ring is soon full, and afterwards its
/// memory is reused.
const RING: usize = 1 << 23;

struct Way {
    name: &'static str,
    replay: Replay,
    time: Duration,
}

fn ways(trace: &Arc<Trace>, config: &ReplayConfig, path: &Path, only: &str) -> Outcome<Vec<Way>> {
    let with = JournalConfig::default();
    let ring = |digest_every| Journal::ring(RING, JournalConfig { digest_every, ..with });
    type Begin<'a> = &'a dyn Fn() -> Option<Result<Journal, JournalError>>;
    let journals: [(&'static str, Begin<'_>); 7] = [
        ("no journal", &|| None),
        // This variant is the same as the first one, without a journal. The difference between their
        // times is the resolution of the measurement.
        ("no journal, again", &|| None),
        ("ring, no digests", &|| Some(ring(0))),
        ("ring, every 65536", &|| Some(ring(65_536))),
        ("ring, every 4096", &|| Some(ring(4096))),
        ("ring, every 256", &|| Some(ring(256))),
        ("file", &|| Some(Journal::create(path, with))),
    ];
    let mut ways = Vec::new();
    for (name, journal) in journals.into_iter().filter(|(name, _)| name.starts_with(only)) {
        let replay = match journal() {
            None => Replay::new(trace.clone(), config.clone())?,
            Some(journal) => Replay::with_journal(trace.clone(), config.clone(), journal?)?,
        };
        ways.push(Way { name, replay, time: Duration::ZERO });
    }
    Ok(ways)
}

fn main() -> Outcome<()> {
    let arguments: Vec<_> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let trace = match arguments.first() {
        Some(path) => Trace::from_path(path, &ReadOptions::default())?,
        None => generate(&GeneratorConfig { requests: 2000, ..Default::default() })?,
    };
    let trace = Arc::new(trace);
    let max_running = arguments.get(1).map_or(Ok(256), |text| text.parse())?;
    let config = ReplayConfig { mode: Mode::Engine, max_running, ..ReplayConfig::default() };
    let path: PathBuf = std::env::temp_dir().join(format!("kvpool-bench-{}.kvj", std::process::id()));

    let process = ProcessTime::now();
    let only = arguments.get(2).map_or("", String::as_str);
    let mut ways = ways(&trace, &config, &path, only)?;
    if ways.is_empty() {
        return Err(format!("no way begins with {only:?}").into());
    }
    for first in (0..ways.len()).cycle() {
        let mut left = false;
        for turn in 0..ways.len() {
            let at = (first + turn) % ways.len();
            let way = &mut ways[at];
            let began = ThreadTime::now();
            left |= way.replay.advance(TURN)? < way.replay.total();
            way.time += began.elapsed();
        }
        if !left {
            break;
        }
    }
    let process = process.elapsed();
    for way in &mut ways {
        let began = ThreadTime::now();
        way.replay.flush_journal();
        way.time += began.elapsed();
    }
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let all: Duration = ways.iter().map(|way| way.time).sum();
    let hashing = ms(process.saturating_sub(all)) / ways.len() as f64;
    let operations = ways.iter().filter_map(|way| way.replay.journal()).map(Journal::operations).max();
    let operations = operations.unwrap_or(0).max(1) as f64;
    println!(
        "{} requests, at most {max_running} at once, {operations} operations; hashing {hashing:.0} ms \
         more each",
        trace.requests().len()
    );
    println!(
        "way                  thread ms  slower  with hashing  ns/operation      bytes  bytes/operation"
    );
    let base = ms(ways[0].time);
    for way in &ways {
        let (time, bytes) = (ms(way.time), way.replay.journal().map_or(0, Journal::bytes));
        let slower = |rest: f64| ((time + rest) / (base + rest) - 1.0) * 100.0;
        println!(
            "{:<18} {time:>11.0} {:>6.1}% {:>12.1}% {:>13.0} {bytes:>10} {:>16.2}",
            way.name,
            slower(0.0),
            slower(hashing),
            (time - base) * 1e6 / operations,
            bytes as f64 / operations,
        );
    }
    if !path.exists() {
        return Ok(());
    }
    let bytes = std::fs::read(&path)?;
    let began = ThreadTime::now();
    let report = kvpool_journal::replay(&bytes, Options::default(), &mut |_| true)?;
    let time = ms(began.elapsed());
    std::fs::remove_file(&path)?;
    println!(
        "replayed: {} operations, {} digests, {}, {time:.0} ms, {:.0} ns per operation",
        report.operations,
        report.digests,
        report.difference.map_or_else(|| "bit-exact".into(), |difference| format!("{difference:?}")),
        time * 1e6 / report.operations as f64,
    );
    Ok(())
}
