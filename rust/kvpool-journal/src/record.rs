//! Runs operations of a journal that are in self-contained form ([`Step`]) again, and records them in a
//! new journal.

use crate::JournalHeader;

use crate::error::ReplayError;
use crate::subject::{Step, Subject};

/// Runs steps on a new pool or manager that has a journal. Returns the journal, and each step as
/// readable text.
///
/// # Errors
/// Like [`crate::replay`].
pub fn record<S: Subject>(
    header: &JournalHeader,
    steps: &[Step<S::Call>],
) -> Result<(Vec<u8>, Vec<String>), ReplayError> {
    let mut subject = S::recorded(header)?;
    let mut told = Vec::with_capacity(steps.len());
    for step in steps {
        let answer = subject.run_alone(step)?;
        told.push(format!("{} -> {}", crate::replay::shown(&step.operation), answer.told));
    }
    Ok((subject.take_image(), told))
}
