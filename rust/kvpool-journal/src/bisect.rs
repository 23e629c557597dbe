//! Finds the first operation of a journal that fails in a replay, by bisection. Also compares two
//! journals, and finds the first record that differs.

use crate::{Entry, JournalReader, JournalSource};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::calls::Words;
use crate::error::ReplayError;
use crate::replay::{Difference, Options, Report, drive, of_kind, shown};
use crate::subject::Subject;

/// Finds the first operation whose answer in this build differs from the recorded one, or after which
/// an invariant of the pool is broken. If only a digest differs, checks the operations since the
/// previous digest one by one for a broken invariant. If no invariant is broken, the failing operation
/// lies somewhere between the last equal digest and the first different one.
///
/// O(operations) to the first different answer. For an invariant that breaks without a different
/// answer, O(operations log operations).
///
/// # Errors
/// Like [`crate::replay`].
pub fn bisect<'a>(
    journal: impl Into<JournalSource<'a>>,
    progress: &mut dyn FnMut(u64) -> bool,
) -> Result<Report, ReplayError> {
    over(journal.into(), progress)
}

/// Implements [`bisect`] without type parameters, so that the compiler does not repeat it for each kind
/// of journal.
fn over(journal: JournalSource<'_>, progress: &mut dyn FnMut(u64) -> bool) -> Result<Report, ReplayError> {
    let reader = JournalReader::new(journal)?;
    of_kind!(reader, S => bisect_in::<S>(&reader, progress))
}

fn bisect_in<S: Subject>(
    reader: &JournalReader<'_>,
    progress: &mut dyn FnMut(u64) -> bool,
) -> Result<Report, ReplayError> {
    let mut probe = |until: Option<u64>| -> Result<Report, ReplayError> {
        Ok(drive::<S>(reader, Options { until, check_every: 0 }, progress, None)?.0)
    };
    let whole = probe(None)?;
    // `good` is an operation before which all invariants hold. `bad` is an operation after which an
    // invariant is broken or a result differs.
    let (mut good, mut bad, mut found) = match &whole.difference {
        None => return Ok(whole),
        Some(Difference::Answer { operation, .. }) => (0, *operation, whole.clone()),
        Some(Difference::Digest { operations, since }) => (*since, *operations, whole.clone()),
        Some(Difference::Invariant { .. }) => (0, whole.operations, whole.clone()),
    };
    let broken = |report: &Report| matches!(report.difference, Some(Difference::Invariant { .. }));
    if !broken(&whole) {
        // Check whether an invariant of the pool broke before the first different answer.
        let before = probe(Some(bad))?;
        if !broken(&before) {
            return Ok(found);
        }
        found = before;
    }
    while bad - good > 1 {
        let middle = good + (bad - good) / 2;
        let report = probe(Some(middle))?;
        if broken(&report) {
            (bad, found) = (middle, report);
        } else {
            good = middle;
        }
    }
    // Replay once more, to get the text of the failing operation.
    let mut asked = String::new();
    let mut name = |step: crate::subject::Step<S::Call>, _: &S| {
        if step.number + 1 == bad {
            asked = shown(&step.operation);
        }
        Ok(())
    };
    drive::<S>(reader, Options { until: Some(bad), check_every: 0 }, &mut |_| true, Some(&mut name))?;
    if let Some(Difference::Invariant { operation, asked: what, .. }) = &mut found.difference {
        (*operation, *what) = (bad - 1, asked);
    }
    Ok(found)
}

/// The first record in which two journals differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Divergence {
    /// Number of the operation. If the record is a digest, the number of the next operation.
    pub operation: u64,
    /// Record of the first journal. `None` if this journal has ended.
    pub first: Option<String>,
    /// Record of the second journal. `None` if this journal has ended.
    pub second: Option<String>,
}

/// Compares two journals record by record. Returns `None` if they are equal, or if one is the beginning
/// of the other. O(bytes). Only one frame of each file is in memory at a time.
///
/// # Errors
/// [`ReplayError`] for a journal that cannot be read; [`ReplayError::Settings`] for journals with
/// different settings.
pub fn compare<'a>(
    first: impl Into<JournalSource<'a>>,
    second: impl Into<JournalSource<'a>>,
) -> Result<Option<Divergence>, ReplayError> {
    between(first.into(), second.into())
}

/// Implements [`compare`] without type parameters, so that the compiler does not repeat it for each
/// kind of journal.
fn between(first: JournalSource<'_>, second: JournalSource<'_>) -> Result<Option<Divergence>, ReplayError> {
    let (first, second) = (JournalReader::new(first)?, JournalReader::new(second)?);
    if first.header() != second.header() {
        let settings = format!("{:?} and {:?}", first.header(), second.header());
        return Err(ReplayError::Settings(format!("the journals have different settings: {settings}")));
    }
    of_kind!(first, S => compare_in::<<S as Subject>::Call>(&first, &second))
}

fn compare_in<O: DeserializeOwned + Serialize + PartialEq + Words>(
    first: &JournalReader<'_>,
    second: &JournalReader<'_>,
) -> Result<Option<Divergence>, ReplayError> {
    let described = |entry: &Entry<O>| match entry {
        Entry::Operation(operation, check) => format!("{}, answered {check:08x}", shown(operation)),
        Entry::Digest(digest) => format!("digest {digest:016x}"),
    };
    for (one, other) in first.records::<O>().zip(second.records::<O>()) {
        let ((operation, one), (_, other)) = (one?, other?);
        if one != other {
            let (first, second) = (Some(described(&one)), Some(described(&other)));
            return Ok(Some(Divergence { operation, first, second }));
        }
    }
    Ok(None)
}
