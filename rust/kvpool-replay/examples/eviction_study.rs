//! What policies hit on traces, for the tables of `docs/eviction-study.md`: one line of JSON for each trace, form and policy.
//!
//! ```text
//! eviction_study [--part tune|rest] [--forms pool,stream] [--sizes 1,2,5] [--policies lru,hazard] TRACE...
//! ```
//!
//! Sizes are per cent of the unique blocks of the requests that are used. `--part tune` takes a third of the sessions, by a hash of their
//! names, or of the second block of a prompt where a trace has no sessions; `--part rest` the other two thirds.
//!
//! A policy is a name, or a name and what it is told of the ends of requests: `hazard` is told the length of the answer;
//! `hazard+finish` the finish reason too; `hazard+shuffled` the finish reason of another request; `hazard-` nothing.
//! `tools/eviction_study.py` runs this over all traces.

#![expect(clippy::print_stdout, reason = "lines of figures are what it is for")]

use std::{error::Error, path::Path, time::Instant};

use kvpool::{Finish, Signal};
use kvpool_replay::{
    labels::Labels,
    reader::ReadOptions,
    sizing::{Blocks, Form, References, run_policy},
    trace::Trace,
};

struct Options {
    part: Option<bool>,
    forms: Vec<(String, Form)>,
    sizes: Vec<f64>,
    policies: Vec<String>,
    traces: Vec<String>,
}

fn options() -> Result<Options, Box<dyn Error>> {
    let mut given = Options {
        part: None,
        forms: Vec::new(),
        sizes: vec![1.0, 2.0, 3.0, 5.0, 7.0, 10.0, 15.0, 20.0, 30.0, 50.0],
        policies: ["lru", "arc", "s3-fifo", "2q", "adaptive", "hazard"].map(str::to_owned).to_vec(),
        traces: Vec::new(),
    };
    let (mut forms, mut arguments) = ("pool,stream".to_owned(), std::env::args().skip(1));
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
        match argument.as_str() {
            "--part" => given.part = Some(value()? == "tune"),
            "--forms" => forms = value()?,
            "--sizes" => given.sizes = value()?.split(',').map(str::parse).collect::<Result<_, _>>()?,
            "--policies" => given.policies = value()?.split(',').map(str::to_owned).collect(),
            _ => given.traces.push(argument),
        }
    }
    for form in forms.split(',') {
        given.forms.push((form.to_owned(), form.parse()?));
    }
    Ok(given)
}

/// FNV-1a.
fn hash(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// A third of the sessions of a trace, or the others.
fn part(trace: &Trace, tune: bool) -> Result<Trace, Box<dyn Error>> {
    let (mut requests, mut labels) = (Vec::new(), Labels::default());
    for (index, request) in trace.requests().iter().enumerate() {
        let label = trace.labels().get(index);
        let second = || request.hash_ids.get(1).or_else(|| request.hash_ids.first()).copied().unwrap_or(0);
        let named = label.session.map_or_else(|| hash(&second().to_le_bytes()), |name| hash(name.as_bytes()));
        if (named >> 32).is_multiple_of(3) == tune {
            requests.push(request.clone());
            labels.push(label);
        }
    }
    Ok(Trace::new(requests, trace.block_tokens())?.with_labels(labels)?)
}

/// The references, as a policy that is told so much knows them.
fn told(references: &References, how: &str) -> Result<References, Box<dyn Error>> {
    let (mut told, requests) = (references.clone(), references.requests());
    match how {
        "" => told.change_signals(|_, signal| Signal { finish: Finish::Unknown, ..signal }),
        "-" => told.change_signals(|_, _| Signal::default()),
        "+finish" => {}
        "+shuffled" => told.change_signals(|index, signal| {
            // Any other request's, the same in every run.
            let other = hash(&(index as u64).to_le_bytes()) as usize % requests.max(1);
            Signal { finish: references.signal(other).finish, ..signal }
        }),
        _ => return Err(format!("{how} is nothing that can be told").into()),
    }
    Ok(told)
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = options()?;
    for file in &options.traces {
        let mut trace = Trace::from_path(file, &ReadOptions::default())?;
        if let Some(tune) = options.part {
            trace = part(&trace, tune)?;
        }
        let references = References::new(&trace, Blocks::All)?;
        for policy in &options.policies {
            let name = policy.trim_end_matches("+finish").trim_end_matches("+shuffled").trim_end_matches('-');
            let told = told(&references, &policy[name.len()..])?;
            let order = kvpool_policies::by_name(name)?;
            for (form_name, form) in &options.forms {
                let (started, mut rates) = (Instant::now(), Vec::new());
                for percent in &options.sizes {
                    let capacity = (percent * told.unique_blocks() as f64 / 100.0) as usize;
                    let run = run_policy(&told, capacity, order, *form)?;
                    rates.push(format!("{:.3}", run.outcome().block_rate() * 100.0));
                }
                let each =
                    started.elapsed().as_nanos() as f64 / (told.len() * options.sizes.len()).max(1) as f64;
                println!(
                    "{{\"trace\": {:?}, \"form\": {form_name:?}, \"policy\": {policy:?}, \"ns\": {each:.0}, \"hits\": [{}]}}",
                    Path::new(file).file_name().unwrap_or_default().to_string_lossy(),
                    rates.join(", ")
                );
            }
        }
    }
    Ok(())
}
