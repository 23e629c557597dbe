//! Runs the laboratory:
//!
//! ```text
//! kvpool-lab pool|manager|vllm --seconds 10 [--seed 1] [--calls N] [--report FILE] [--python FOLDER]
//! ```
//!
//! Exit codes: 0 nothing was found, 1 something was, 2 wrong usage. The program prints one line. With
//! `--report` it writes the shrunk run to a file, and the journal of the run beside it. With `--python` it
//! writes each run to the folder as a test of Python.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program prints")]

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use kvpool_lab::run::random::{Bytes, Until, random};
use kvpool_lab::run::report::{python, report};
use kvpool_lab::world::World;
use kvpool_lab::world::manager::ManagerWorld;
use kvpool_lab::world::pool::PoolWorld;
use kvpool_lab::world::vllm::VllmWorld;

const USAGE: &str = "usage: kvpool-lab pool|manager|vllm [--seconds N | --calls N] [--seed N] [--report FILE] \
                     [--python FOLDER]";

struct Options {
    until: Until,
    seed: u64,
    report: Option<PathBuf>,
    python: Option<PathBuf>,
}

impl Options {
    fn parse(arguments: &[String]) -> Result<Self, String> {
        let mut options =
            Self { until: Until::Time(Duration::from_secs(10)), seed: 1, report: None, python: None };
        for pair in arguments.chunks(2) {
            let [name, value] = pair else { return Err(format!("{:?} needs a value", pair[0])) };
            let wrong = || format!("{name} cannot be {value:?}");
            match name.as_str() {
                "--seconds" => {
                    let seconds: f64 = value.parse().map_err(|_| wrong())?;
                    options.until = Until::Time(Duration::try_from_secs_f64(seconds).map_err(|_| wrong())?);
                }
                "--calls" => options.until = Until::Calls(value.parse().map_err(|_| wrong())?),
                "--seed" => options.seed = value.parse().map_err(|_| wrong())?,
                "--python" => options.python = Some(value.into()),
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

/// Returns whether nothing was found.
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

fn run(arguments: &[String]) -> Result<bool, String> {
    let [subject, rest @ ..] = arguments else { return Err("a subject is needed".into()) };
    let options = Options::parse(rest)?;
    match subject.as_str() {
        "pool" => explore::<PoolWorld>("pool", &options),
        "manager" => explore::<ManagerWorld>("manager", &options),
        "vllm" => explore::<VllmWorld>("vllm", &options),
        _ => Err(format!("no subject {subject:?}: there are pool, manager and vllm")),
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
