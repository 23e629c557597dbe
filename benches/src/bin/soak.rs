//! `make soak`: see [`kvpool_benches::soak`].
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command")]

use std::alloc::System;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use kvpool_benches::soak::{Limit, Line, Machine, PRESETS, Preset, Settings, Soak, resident};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Bytes of heap in use; growth in place is counted as allocated, too.
fn heap() -> usize {
    let stats = ALLOCATOR.stats();
    stats.bytes_allocated.saturating_sub(stats.bytes_deallocated)
}

/// Keeps full pools under load, checks them all the time, and reports latencies and memory.
///
/// One manager per eviction policy, each with other settings, takes turns in one thread: admissions with shared prefixes, decode
/// steps, drafts, forks, swaps, preemptions, step plans, hints, epochs, resets, growth, requests that end in every state, and calls that
/// must be refused. The driver keeps books and the KV itself, so a wrong sum, a wrong error or a block with another
/// request's content ends the run: it prints what is wrong, the seed and the operation, and exits with 1. So does heap in
/// use that grew by more than 5 % (at least 1 MiB) after the first tenth of the run
/// and 50,000 turns of each configuration.
///
/// The same seed makes the same operations; with --operations the digest at the end is the same each time.
#[derive(Debug, Parser)]
#[command(
    name = "soak",
    after_help = "\
Examples:
  soak --minutes 10 --out benches/results    a run for the record: writes benches/results/DATE-soak.md
  soak --minutes 1 --configs lru,adaptive    two of the configurations
  soak --operations 2000000 --seed 7         a run that can be repeated: compare the digests
  soak --seed 7 --operations 812345 --check-every 1000   towards a failure, with a recount every 1,000 operations"
)]
struct Arguments {
    /// How long to run.
    #[arg(long, default_value_t = 10.0, value_name = "N", conflicts_with = "operations")]
    minutes: f64,
    /// Run for so many operations instead.
    #[arg(long, value_name = "N")]
    operations: Option<u64>,
    /// All choices follow from it.
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Blocks of each device pool at the start; it grows by half.
    #[arg(long, default_value_t = 8192, value_name = "N", value_parser = clap::value_parser!(u32).range(128..=1 << 24))]
    blocks: u32,
    /// Tokens per block.
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    block_size: u32,
    /// Configurations by name, separated by commas; all without.
    #[arg(long, value_delimiter = ',', value_name = "NAME", value_parser = names())]
    configs: Vec<String>,
    /// Recount everything after so many operations, too, not only with each line.
    #[arg(long, value_name = "N")]
    check_every: Option<u64>,
    /// Seconds between two lines.
    #[arg(long, default_value_t = 60.0, value_name = "SECONDS")]
    every: f64,
    /// Write the report as Markdown: a file, or a folder for DATE-soak.md.
    #[arg(long, value_name = "PATH")]
    out: Option<PathBuf>,
    /// Print the report as JSON instead of tables; lines go to standard error.
    #[arg(long)]
    json: bool,
}

fn names() -> clap::builder::PossibleValuesParser {
    PRESETS.iter().map(Preset::name).collect::<Vec<_>>().into()
}

impl Arguments {
    fn settings(&self) -> Result<Settings, String> {
        let seconds = |value: f64, what: &str| {
            let sound = value.is_finite() && value > 0.0;
            let refused = || format!("{what} is {value}: must be more than 0");
            Duration::try_from_secs_f64(value).ok().filter(|_| sound).ok_or_else(refused)
        };
        let time = Limit::Time(seconds(self.minutes * 60.0, "--minutes in seconds")?);
        let chosen = |name: &str| self.configs.is_empty() || self.configs.iter().any(|chosen| chosen == name);
        Ok(Settings {
            seed: self.seed,
            limit: self.operations.map_or(time, Limit::Operations),
            blocks: self.blocks as usize,
            block_size: self.block_size as usize,
            presets: PRESETS.iter().filter(|preset| chosen(preset.name())).copied().collect(),
            check_every: self.check_every,
            line_every: seconds(self.every, "--every")?,
            heap: Some(heap),
            ..Settings::default()
        })
    }
}

/// A line, and what its columns are.
fn show(line: &Line) -> String {
    let mib = |bytes: i64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    let resident = line.resident.map_or_else(|| "?".to_owned(), |bytes| mib(bytes as i64));
    let seconds = line.elapsed.as_secs();
    let micro = |nanoseconds: u64| nanoseconds as f64 / 1e3;
    format!(
        "{:3}:{:02}  {:>11} operations  {:>8.0}/s  hits {:>4.1} %  refused {:>8}  preempted {:>7}  evicted {:>9}  \
         p50 {:.2}  p99 {:.1}  max {:.0} us  heap {}  resident {resident}",
        seconds / 60,
        seconds % 60,
        line.operations,
        line.rate,
        line.hit_rate * 100.0,
        line.refusals,
        line.preemptions,
        line.evictions,
        micro(line.latencies.p50),
        micro(line.latencies.p99),
        micro(line.latencies.max),
        mib(line.heap),
    )
}

/// The file that a report goes to.
fn file(out: &Path, machine: &Machine) -> PathBuf {
    if out.is_dir() { out.join(format!("{}-soak.md", machine.date)) } else { out.to_owned() }
}

fn run(arguments: &Arguments) -> Result<(), String> {
    let settings = arguments.settings()?;
    let command: Vec<_> = std::env::args().skip(1).collect();
    let machine = Machine::here(format!("soak {}", command.join(" ")).trim_end().to_owned());
    if resident().is_none() {
        eprintln!(
            "soak: NO RESIDENT SET: this system has no /proc/self/status; heap in use is checked all the same"
        );
    }
    let soak = Soak::new(&settings).map_err(|failure| failure.to_string())?;
    let report = soak.run(|line| {
        if arguments.json {
            eprintln!("{}", show(&line));
        } else {
            println!("{}", show(&line));
        }
    });
    let report = report.map_err(|failure| {
        let again = failure.operation + 1;
        format!("{failure}\n  the same again: these options, with --operations {again} instead of --minutes")
    })?;
    if !report.memory.judged {
        eprintln!(
            "soak: MEMORY NOT JUDGED: the run is too short; a minute or two is enough on an idle machine"
        );
    }
    let text = report.markdown(&machine, settings.limit);
    if arguments.json {
        let whole = serde_json::json!({ "machine": machine, "report": report });
        println!("{}", serde_json::to_string_pretty(&whole).map_err(|error| error.to_string())?);
    } else {
        println!("\n{text}");
    }
    if let Some(out) = &arguments.out {
        let file = file(out, &machine);
        std::fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))?;
        eprintln!("soak: wrote {}", file.display());
    }
    Ok(())
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            eprintln!("soak: FAILED: {what}");
            ExitCode::FAILURE
        }
    }
}
