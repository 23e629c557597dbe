//! Steps that stand on their own, run anew and recorded as a journal of their own.

use std::fmt::Write as _;

use kvpool::journal::JournalHeader;

use crate::error::ReplayError;
use crate::subject::{Step, Subject};

/// Runs steps on a new subject with a journal, and tells each as a person reads it.
pub(crate) fn record<S: Subject>(
    header: &JournalHeader,
    steps: &[Step<S::Operation>],
) -> Result<(Vec<u8>, Vec<String>), ReplayError> {
    let mut subject = S::recorded(header)?;
    let mut told = Vec::with_capacity(steps.len());
    for step in steps {
        if let Some(answer) = subject.run_alone(step)? {
            let mut line = crate::replay::shown(&step.operation);
            // Writing to a text cannot fail.
            let _written = write!(line, " -> {}", answer.told);
            told.push(line);
        }
    }
    Ok((subject.take_image(), told))
}
