//! Runs the laboratory:
//!
//! ```text
//! kvpool-lab pool|manager|vllm --seconds 10 [--seed 1] [--calls N] [--report FILE] [--python FOLDER]
//! kvpool-lab soak --minutes 10 [--seed 1] [--calls N] [--blocks N] [--configs NAME,...] [--out PATH]
//! ```
//!
//! Exit codes: 0 if no failure was found, 1 if one was found, 2 for wrong usage. A run of random calls
//! prints one line. With `--report` it writes the shrunk run to a file, and the journal of the run
//! beside it. With `--python` it writes each run to the folder as a Python test.
//!
//! A soak is a long run of large managers. It prints a line each minute, and a report at the end
//! ([`kvpool_lab::run::soak`]). With `--out` it writes the report to a file, or to DATE-soak.md in a
//! folder. With `--json` it writes the numbers to a file.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program prints")]

use std::alloc::System;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use kvpool_lab::run::random::{Bytes, Until, random};
use kvpool_lab::run::report::{python, report};
use kvpool_lab::run::soak::{PRESETS, Settings, soak};
use kvpool_lab::world::World;
use kvpool_lab::world::manager::ManagerWorld;
use kvpool_lab::world::pool::PoolWorld;
use kvpool_lab::world::vllm::VllmWorld;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

/// Counts the bytes of heap in use. A soak reports them.
#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const USAGE: &str = "usage: kvpool-lab pool|manager|vllm [--seconds N | --calls N] [--seed N] [--report \
     FILE] \
     [--python FOLDER]
       kvpool-lab soak [--minutes N | --seconds N | --calls N] [--seed N] [--blocks N] [--round N] \
       [--configs NAME,...] \
     [--every SECONDS] [--out PATH] [--json FILE]";

struct Options {
    until: Until,
    seed: u64,
    report: Option<PathBuf>,
    python: Option<PathBuf>,
    soak: Settings,
    out: Option<PathBuf>,
    json: Option<PathBuf>,
}

impl Options {
    fn parse(arguments: &[String]) -> Result<Self, String> {
        let (until, soak) = (Until::Time(Duration::from_secs(10)), Settings::default());
        let mut options = Self { until, seed: 1, report: None, python: None, soak, out: None, json: None };
        for pair in arguments.chunks(2) {
            let [name, value] = pair else { return Err(format!("{:?} needs a value", pair[0])) };
            let wrong = || format!("{name} cannot be {value:?}");
            match name.as_str() {
                "--seconds" | "--minutes" => {
                    let count: f64 = value.parse().map_err(|_| wrong())?;
                    let seconds = if name == "--minutes" { 60.0 * count } else { count };
                    options.until = Until::Time(Duration::try_from_secs_f64(seconds).map_err(|_| wrong())?);
                }
                "--calls" => options.until = Until::Calls(value.parse().map_err(|_| wrong())?),
                "--seed" => options.seed = value.parse().map_err(|_| wrong())?,
                "--python" => options.python = Some(value.into()),
                "--blocks" => {
                    let blocks = value.parse().ok().filter(|blocks| (64..=1 << 20).contains(blocks));
                    options.soak.blocks = blocks.ok_or_else(wrong)?;
                }
                "--round" => options.soak.round = value.parse().map_err(|_| wrong())?,
                "--every" => {
                    let seconds = value.parse().map_err(|_| wrong())?;
                    options.soak.line_every = Duration::try_from_secs_f64(seconds).map_err(|_| wrong())?;
                }
                "--configs" => {
                    let named = |name: &str| PRESETS.iter().find(|preset| preset.name() == name).copied();
                    let presets = value.split(',').map(named).collect::<Option<_>>();
                    options.soak.presets = presets.ok_or_else(wrong)?;
                }
                "--out" => options.out = Some(value.into()),
                "--json" => options.json = Some(value.into()),
                "--report" => options.report = Some(value.into()),
                _ => return Err(format!("no option {name:?}")),
            }
        }
        Ok(options)
    }
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), String> {
    std::fs::write(path, bytes).map_err(|error| format!("{}: {error}", path.display()))
}

fn explore<W: World>(name: &str, options: &Options) -> Result<bool, String> {
    let outcome = random::<W>(options.seed, options.until);
    if let Some(folder) = &options.python {
        for (nth, data) in (0..outcome.runs).zip(Bytes::new(options.seed)) {
            if let Some(text) =
                python(&kvpool_lab::run::run::<W>(&data)).map_err(|failure| failure.to_string())?
            {
                write(&folder.join(format!("{name}-{nth}.py")), text.as_bytes())?;
            }
        }
    }
    let (runs, calls, seconds) = (outcome.runs, outcome.calls, outcome.seconds);
    let Some(failed) = outcome.failed else {
        println!("{name}: nothing found in {seconds:.2} s, {runs} runs, {calls} calls");
        return Ok(true);
    };
    let failure = failed.failure.as_ref().map_or_else(String::new, ToString::to_string);
    let failure = failure.replace('\n', " ");
    println!("{name}: found after {seconds:.3} s, {runs} runs, {calls} calls: {failure}");
    if let Some(path) = &options.report
        && let Some(report) = report(&failed)
    {
        write(path, report.to_string().as_bytes())?;
        write(&path.with_extension("journal"), &report.journal)?;
    }
    Ok(false)
}

/// Returns the bytes of heap in use. The allocator also counts an allocation that grows in place as
/// allocated bytes.
fn heap() -> usize {
    let stats = ALLOCATOR.stats();
    stats.bytes_allocated.saturating_sub(stats.bytes_deallocated)
}

/// Runs a soak (a long run of large managers). Returns true if no failure was found.
fn endure(options: &Options) -> Result<bool, String> {
    let Options { until, seed, soak: settings, out, json, .. } = options;
    let settings = Settings { until: *until, seed: *seed, heap: Some(heap), ..settings.clone() };
    let report = match soak(&settings, |line| println!("{line}")) {
        Ok(report) => report,
        Err(failure) => {
            println!("soak: found: {failure}");
            return Ok(false);
        }
    };
    println!("\n{report}");
    if let Some(out) = out {
        let in_folder = || out.join(format!("{}-soak.md", report.date));
        write(&if out.is_dir() { in_folder() } else { out.clone() }, report.to_string().as_bytes())?;
    }
    if let Some(json) = json {
        let text = serde_json::to_string_pretty(&report).map_err(|error| error.to_string())?;
        write(json, text.as_bytes())?;
    }
    Ok(true)
}

fn run(arguments: &[String]) -> Result<bool, String> {
    let [subject, rest @ ..] = arguments else { return Err("a subject is needed".into()) };
    let options = Options::parse(rest)?;
    match subject.as_str() {
        "pool" => explore::<PoolWorld>("pool", &options),
        "manager" => explore::<ManagerWorld>("manager", &options),
        "vllm" => explore::<VllmWorld>("vllm", &options),
        "soak" => endure(&options),
        _ => Err(format!("no subject {subject:?}: there are pool, manager, vllm and soak")),
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("kvpool-lab: {error}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}
