//! Runs targets without a fuzzer:
//!
//! ```text
//! kvpool-fuzz random TARGET --seconds 60 [--seed N] [--corpus FOLDER]
//! kvpool-fuzz shrink TARGET FILE
//! kvpool-fuzz replay TARGET FILE...
//! ```
//!
//! `random` runs random inputs until one fails or the time is up. `shrink` prints a failing input as a
//! small Rust test. `replay` runs inputs that must not fail.
//!
//! Exit codes: 0 if nothing failed, 1 if something failed, 2 for wrong usage. The first failing input
//! is written to `crash-TARGET` in the folder of `--artifacts`, if one is given.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program speaks")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use kvpool_fuzz::random::Inputs;
use kvpool_fuzz::{TARGETS, Target};

const USAGE: &str = "usage: kvpool-fuzz random TARGET --seconds N [--seed N] [--corpus FOLDER] \
     [--artifacts FOLDER]\n       kvpool-fuzz shrink TARGET FILE\n       kvpool-fuzz replay TARGET FILE...";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("kvpool-fuzz: {error}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: &[String]) -> Result<bool, String> {
    let [command, name, rest @ ..] = arguments else {
        return Err("a command and a target are needed".into());
    };
    let known: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
    let target = TARGETS.iter().find(|target| target.name == name);
    let target = target.ok_or_else(|| format!("no target {name:?}: there are {}", known.join(", ")))?;
    match command.as_str() {
        "random" => random(target, rest),
        "shrink" | "replay" if !rest.is_empty() => {
            let mut fine = true;
            for path in rest {
                fine &= tell(target, Path::new(path), command == "shrink")?;
            }
            Ok(fine)
        }
        _ => Err(format!("no command {command:?} with {} arguments", rest.len())),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn tell(target: &Target, path: &Path, must_fail: bool) -> Result<bool, String> {
    match (target.report)(&read(path)?) {
        Ok(()) if must_fail => Err(format!("{} does not fail", path.display())),
        Ok(()) => Ok(true),
        Err(report) => {
            println!("{}: {report}", path.display());
            Ok(false)
        }
    }
}

/// The command-line options, as pairs of name and value.
struct Options {
    seconds: f64,
    seed: u64,
    corpus: Option<PathBuf>,
    artifacts: Option<PathBuf>,
}

impl Options {
    fn parse(arguments: &[String]) -> Result<Self, String> {
        let mut options = Self { seconds: 60.0, seed: 0, corpus: None, artifacts: None };
        for pair in arguments.chunks(2) {
            let [name, value] = pair else { return Err(format!("{:?} needs a value", pair[0])) };
            let wrong = || format!("{name} cannot be {value:?}");
            match name.as_str() {
                "--seconds" => options.seconds = value.parse().map_err(|_| wrong())?,
                "--seed" => options.seed = value.parse().map_err(|_| wrong())?,
                "--corpus" => options.corpus = Some(value.into()),
                "--artifacts" => options.artifacts = Some(value.into()),
                _ => return Err(format!("no option {name:?}")),
            }
        }
        if options.seconds.is_finite() { Ok(options) } else { Err("--seconds is no time".into()) }
    }
}

fn folder(path: &Path) -> Result<Vec<Vec<u8>>, String> {
    let wrong = |error| format!("{}: {error}", path.display());
    let mut paths: Vec<_> = fs::read_dir(path)
        .map_err(wrong)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()
        .map_err(wrong)?;
    paths.sort();
    paths.iter().filter(|path| path.is_file()).map(|path| read(path)).collect()
}

fn random(target: &Target, arguments: &[String]) -> Result<bool, String> {
    let options = Options::parse(arguments)?;
    let corpus = options.corpus.as_deref().map(folder).transpose()?.unwrap_or_default();
    let (start, most) = (Instant::now(), Duration::from_secs_f64(options.seconds.max(0.0)));
    let mut inputs = Inputs::new(options.seed, corpus.clone());
    let mut corpus = corpus.into_iter();
    let mut runs = 0_u64;
    while start.elapsed() < most {
        let input = corpus.next().unwrap_or_else(|| inputs.next_input());
        runs += 1;
        if (target.check)(&input).is_err() {
            let seconds = start.elapsed().as_secs_f64();
            println!("{}: input {runs} fails after {seconds:.1} s", target.name);
            if let Some(folder) = &options.artifacts {
                let path = folder.join(format!("crash-{}", target.name));
                fs::write(&path, &input).map_err(|error| format!("{}: {error}", path.display()))?;
            }
            if let Err(report) = (target.report)(&input) {
                println!("{report}");
            }
            return Ok(false);
        }
    }
    println!("{}: {runs} inputs in {:.1} s, nothing found", target.name, start.elapsed().as_secs_f64());
    Ok(true)
}
