//! Writes a failing run as a journal and as a test.

use std::fmt;

use kvpool_journal::{EXPORT_LIMIT, Language, Words, export, record};

use super::shrink::shrink;
use super::{Run, run};
use crate::failure::{Failure, guarded};
use crate::world::World;

/// The description of a run that failed, after shrinking.
#[derive(Clone, Debug)]
pub struct Report {
    /// The failure.
    pub failure: Failure,
    /// The settings.
    pub setting: String,
    /// The calls of the shrunk run, as readable text.
    pub calls: Vec<String>,
    /// The journal of the shrunk run. It is empty if its calls cannot be recorded.
    pub journal: Vec<u8>,
    /// The calls of the shrunk run as a Rust test.
    pub test: String,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { failure, setting, calls, test, .. } = self;
        writeln!(f, "{failure}\n\nshrunk to {} operations:\n\n{setting}", calls.len())?;
        calls.iter().try_for_each(|call| writeln!(f, "    {call}"))?;
        write!(f, "\n{test}")
    }
}

/// Shrinks a run that failed, and describes it.
#[must_use]
pub fn report<W: World>(run: &Run<W>) -> Option<Report> {
    let failure = run.failure.clone()?;
    let (least, failure) = shrink(run).unwrap_or_else(|| (run.clone(), failure));
    let calls = least.steps.iter().map(|step| {
        let (call, words, told) = (step.operation.call(), step.operation.words(), &step.answer.told);
        format!("{call} {words} -> {told}")
    });
    let calls = calls.collect();
    let (journal, test) = written(&least);
    Some(Report { failure, setting: format!("{:?}", least.setting), calls, journal, test })
}

/// Returns the journal of a run. Makes the calls of the run again on a new pool or manager that records
/// them.
///
/// # Errors
/// A call cannot be recorded, or panics.
pub fn journal<W: World>(run: &Run<W>, steps: usize) -> Result<Vec<u8>, Failure> {
    let header = W::header(&run.setting)?;
    guarded(|| {
        let recorded = record::<W::Subject>(&header, &run.steps[..steps]);
        recorded.map(|(journal, _)| journal).map_err(|error| Failure::new("record", error.to_string()))
    })
}

/// Converts a journal to a test.
///
/// # Errors
/// The journal cannot be replayed, or a call panics.
pub fn test(journal: &[u8], language: Language) -> Result<String, Failure> {
    let mut text = Vec::new();
    guarded(|| {
        let written = export(journal, language, EXPORT_LIMIT, &mut text, &mut |_| true);
        written.map_err(|error| Failure::new("export", error.to_string()))
    })?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Converts a run to a Python test, up to the first call that does not exist in Python. Returns `None`
/// for settings with which Python gives different answers.
///
/// # Errors
/// The settings cannot be written to a journal, or a call panics.
pub fn python<W: World>(run: &Run<W>) -> Result<Option<String>, Failure> {
    if !W::is_of_python(&run.setting) {
        return Ok(None);
    }
    let text = |steps| test(&journal(run, steps)?, Language::Python);
    let lengths: Vec<usize> = (1..=run.steps.len()).collect();
    let to_the_first = || text(lengths.partition_point(|&steps| text(steps).is_ok()));
    text(run.steps.len()).or_else(|_| to_the_first()).map(Some)
}

/// Returns the journal and the test of a run. Leaves out a call that panics, because no journal
/// contains it.
fn written<W: World>(run: &Run<W>) -> (Vec<u8>, String) {
    let all = run.steps.len();
    let recorded = journal(run, all).or_else(|_| journal(run, all.saturating_sub(1)));
    let Ok(journal) = recorded else { return Default::default() };
    let text = test(&journal, Language::Rust).unwrap_or_else(|failure| format!("// {failure}\n"));
    (journal, text)
}

/// Runs the calls that the bytes encode.
///
/// # Errors
/// The failure of the run. It is not shrunk.
pub fn check<W: World>(data: &[u8]) -> Result<(), Failure> {
    run::<W>(data).failure.map_or(Ok(()), Err)
}
