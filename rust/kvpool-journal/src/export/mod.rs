//! Exports a journal as a Rust or Python test. The test makes the recorded calls, and expects the same
//! answers.
//!
//! The test contains no recorded digest. Its prompts are made-up tokens, which the test hashes again.
//! Two made-up prompts have the same first blocks if the recorded prompts had. Block ids are those of
//! the journal, because the same calls return the same ids. The expected answers are those of this
//! build, up to the first answer that differs from the journal. After every call the test checks all
//! invariants. A test of vLLM's pool does not check them, because vLLM may break them temporarily.
//!
//! Costs: the exporter runs the journal at most twice. It writes the text while it runs. Its memory contains
//! the pool, the contents that the journal names, and one frame of the journal's file.

mod arguments;
mod calls;
mod lines;
mod python;
mod slots;
mod source;
mod templates;
mod text;
mod vllm;

use std::io::Write;

use crate::{JournalReader, JournalSource, Kind};

use crate::error::ReplayError;
use crate::manager::ManagerSubject;
use crate::numbers::Numbers;
use crate::pool::PoolSubject;
use crate::replay::{Difference, Options, drive};
use crate::subject::{Step, Subject};
use source::Source;
pub use text::Language;

/// The default limit for the number of operations of a test. Longer tests are hard to read.
pub const EXPORT_LIMIT: u64 = 10_000;

/// Exports a journal as a test. Writes the text to `out` piece by piece, and returns the number of
/// operations.
///
/// ```
/// use kvpool::{BlockPool, PoolConfig};
/// use kvpool_journal::{EXPORT_LIMIT, Journal, JournalConfig, Journaled, Language, PoolCalls, export};
/// let config = PoolConfig { num_blocks: 8, ..PoolConfig::default() };
/// let ring = Journal::ring(1 << 20, JournalConfig::default())?;
/// let mut pool = Journaled::<BlockPool>::with_journal(config, ring)?;
/// pool.allocate(3)?;
/// let image = pool.journal_image().unwrap_or_default();
///
/// let mut text = Vec::new();
/// assert_eq!(export(&image, Language::Python, EXPORT_LIMIT, &mut text, &mut |_| true)?, 1);
/// assert!(String::from_utf8(text)?.contains("assert answer(pool.allocate, 3) == [1, 2, 3]"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// The errors of [`crate::replay`]. [`ReplayError::TooLong`] if there are more operations than `limit`;
/// then nothing is written. [`ReplayError::NoCall`] if the language has no call for an operation.
/// [`ReplayError::Write`] if writing fails. After `NoCall` and `Write`, the written test is incomplete.
pub fn export<'a>(
    journal: impl Into<JournalSource<'a>>,
    language: Language,
    limit: u64,
    out: &mut dyn Write,
    progress: &mut dyn FnMut(u64) -> bool,
) -> Result<u64, ReplayError> {
    over(journal.into(), language, limit, out, progress)
}

/// Like [`export`], but without a generic parameter, so that the compiler does not repeat it for each
/// type of output.
fn over(
    journal: JournalSource<'_>,
    language: Language,
    limit: u64,
    out: &mut dyn Write,
    progress: &mut dyn FnMut(u64) -> bool,
) -> Result<u64, ReplayError> {
    let reader = JournalReader::new(journal)?;
    let operations = reader.operations().saturating_sub(reader.first_operation());
    if operations > limit {
        return Err(ReplayError::TooLong { operations, limit });
    }
    match reader.header().subject {
        Kind::Pool => {
            let numbers = drive::<PoolSubject>(&reader, Options::default(), progress, None)?.1.numbers();
            let source = Source::new(language, reader.header(), numbers, out)?;
            write(&reader, source, progress, calls::pool)
        }
        Kind::Manager => {
            let numbers = drive::<ManagerSubject>(&reader, Options::default(), progress, None)?.1.numbers();
            let source = Source::new(language, reader.header(), numbers, out)?;
            write(&reader, source, progress, calls::manager)
        }
        Kind::VllmPool => {
            let source = Source::new(language, reader.header(), Numbers::default(), out)?;
            write(&reader, source, progress, vllm::call)
        }
    }
}

/// Replays the journal, and calls the function `call` for each operation, which writes it.
fn write<S: Subject>(
    reader: &JournalReader<'_>,
    mut source: Source<'_>,
    progress: &mut dyn FnMut(u64) -> bool,
    call: impl Fn(&mut Source<'_>, &Step<S::Call>, &S) -> Result<(), ReplayError>,
) -> Result<u64, ReplayError> {
    let mut each = |step: Step<S::Call>, subject: &S| call(&mut source, &step, subject);
    let report = drive::<S>(reader, Options::default(), progress, Some(&mut each))?.0;
    if let Some(difference) = report.difference {
        source.remark(match difference {
            Difference::Answer { .. } => "The last answer differs from the journal. The test ends here.",
            Difference::Digest { .. } => "The state differs from the journal here. The test ends here.",
            Difference::Invariant { .. } => "An invariant is broken here. The test ends here.",
        })?;
    }
    source.finish()?;
    Ok(report.operations)
}
