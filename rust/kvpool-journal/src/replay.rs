//! Replay: runs every operation of a journal again on this build, and compares every answer and every
//! digest.
//!
//! Costs: memory for the pool, for each distinct content in the journal (see `contents.rs`), and for
//! one frame of the file.

use crate::{Entry, JournalReader, JournalSource, Tail};

use crate::calls::Words;
use crate::error::ReplayError;
use crate::subject::{Step, Subject};
use crate::value::Answer;

/// The first difference between a replay and its journal.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Difference {
    /// The answer of an operation in this build differs from the recorded answer.
    Answer {
        /// Number of the operation whose answer differs.
        operation: u64,
        /// The call and its arguments as text.
        asked: String,
        /// The answer that the replay in this build gave.
        told: String,
    },
    /// The digests of the state differ, although all answers since the previous digest are equal.
    Digest {
        /// Number of operations before the digest that differs.
        operations: u64,
        /// Number of operations before the previous digest, which was equal.
        since: u64,
    },
    /// The replay has found that an invariant is broken.
    Invariant {
        /// Number of the first operation after which a check found the broken invariant.
        operation: u64,
        /// The call and its arguments as text.
        asked: String,
        /// The broken invariant, and the values that the check found.
        broken: String,
    },
}

/// The result of a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Number of operations that the replay ran.
    pub operations: u64,
    /// Number of digests that were compared and equal.
    pub digests: u64,
    /// The first difference. The replay stops there.
    pub difference: Option<Difference>,
    /// Whether the last frame of the journal is complete.
    pub tail: Tail,
}

/// Options of a replay.
///
/// ```
/// use kvpool_journal::Options;
/// // Replays the first 1,000 operations, and checks all invariants after every 100.
/// let options = Options { until: Some(1000), check_every: 100 };
/// # assert_ne!(options.until, Options::default().until);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Number of the operation before which the replay stops. `None` means that all operations run.
    pub until: Option<u64>,
    /// Number of operations between two checks of all invariants. 0 means that they are checked only at
    /// the end.
    pub check_every: u64,
}

/// Evaluates an expression with a type name that stands for the kind of subject (pool or manager) that
/// the journal needs.
macro_rules! of_kind {
    ($reader:expr, $subject:ident => $run:expr) => {
        match $reader.header().subject {
            $crate::Kind::Pool => {
                type $subject = $crate::PoolSubject;
                $run
            }
            $crate::Kind::Manager => {
                type $subject = $crate::ManagerSubject;
                $run
            }
            $crate::Kind::VllmPool => {
                type $subject = $crate::VllmSubject;
                $run
            }
        }
    };
}

pub(crate) use of_kind;

/// Replays a journal on this build. After every few thousand operations, it calls `progress` with the
/// number of operations so far. If `progress` returns false, the replay stops.
///
/// # Errors
/// [`ReplayError`] for a journal that cannot be replayed. A difference is not an error;
/// [`Report::difference`] contains it.
pub fn replay<'a>(
    journal: impl Into<JournalSource<'a>>,
    options: Options,
    progress: &mut dyn FnMut(u64) -> bool,
) -> Result<Report, ReplayError> {
    over(journal.into(), options, progress)
}

/// Implements [`replay`] without type parameters, so that the compiler does not repeat it for each kind
/// of journal.
fn over(
    journal: JournalSource<'_>,
    options: Options,
    progress: &mut dyn FnMut(u64) -> bool,
) -> Result<Report, ReplayError> {
    let reader = JournalReader::new(journal)?;
    of_kind!(reader, S => Ok(drive::<S>(&reader, options, progress, None)?.0))
}

/// Returns the operations of a journal up to the first difference. Each operation is self-contained: it
/// does not refer to earlier records.
///
/// # Errors
/// Like [`replay`].
pub(crate) fn steps<S: Subject>(
    reader: &JournalReader<'_>,
    options: Options,
) -> Result<Vec<Step<S::Call>>, ReplayError> {
    let mut steps = Vec::new();
    let mut keep = |step, _: &S| {
        steps.push(step);
        Ok(())
    };
    drive::<S>(reader, options, &mut |_| true, Some(&mut keep))?;
    Ok(steps)
}

/// Number of operations between two calls of the function `progress`.
const PROGRESS: u64 = 4096;

/// A callback that receives each operation after it ran, and the replayed pool or manager. If it
/// returns an error, the replay ends.
pub(crate) type Each<'a, S> = dyn FnMut(Step<<S as Subject>::Call>, &S) -> Result<(), ReplayError> + 'a;

/// A callback that runs after each operation. It receives the number of operations so far, and the
/// replayed pool or manager.
pub(crate) type Look<'a, S> = dyn FnMut(u64, &S) + 'a;

pub(crate) fn drive<S: Subject>(
    reader: &JournalReader<'_>,
    options: Options,
    progress: &mut dyn FnMut(u64) -> bool,
    each: Option<&mut Each<'_, S>>,
) -> Result<(Report, S), ReplayError> {
    drive_on(S::new(reader.header())?, reader, options, progress, each, None)
}

/// Like [`drive`], on a given pool or manager, which must be in its state before the first operation.
pub(crate) fn drive_on<S: Subject>(
    mut subject: S,
    reader: &JournalReader<'_>,
    options: Options,
    progress: &mut dyn FnMut(u64) -> bool,
    mut each: Option<&mut Each<'_, S>>,
    mut look: Option<&mut Look<'_, S>>,
) -> Result<(Report, S), ReplayError> {
    if reader.first_operation() > 0 {
        return Err(ReplayError::NoBeginning { first: reader.first_operation() });
    }
    let mut report = Report { operations: 0, digests: 0, difference: None, tail: reader.tail() };
    let mut since = 0;
    for entry in reader.records::<S::Call>() {
        let (number, entry) = entry?;
        let Entry::Operation(operation, check) = entry else {
            if let Entry::Digest(digest) = entry {
                if subject.digest() != digest {
                    report.difference = Some(Difference::Digest { operations: number, since });
                    break;
                }
                since = number;
                report.digests += 1;
            }
            continue;
        };
        if options.until.is_some_and(|until| number >= until) {
            break;
        }
        let alone = if each.is_some() { subject.resolve(&operation)? } else { operation.clone() };
        let epoch = subject.epoch();
        let answer = subject.run(&operation)?;
        report.operations = number + 1;
        if let Some(look) = &mut look {
            look(report.operations, &subject);
        }
        let differs = answer.check != check;
        let Answer { told, .. } = &answer;
        if differs {
            let (asked, told) = (shown(&alone), told.clone());
            report.difference = Some(Difference::Answer { operation: number, asked, told });
        } else if options.check_every > 0
            && (number + 1).is_multiple_of(options.check_every)
            && let Err(broken) = subject.check()
        {
            let (asked, broken) = (shown(&alone), broken.to_string());
            report.difference = Some(Difference::Invariant { operation: number, asked, broken });
        }
        if let Some(each) = &mut each {
            each(Step { number, operation: alone, epoch, answer }, &subject)?;
        }
        if report.difference.is_some() {
            break;
        }
        if report.operations.is_multiple_of(PROGRESS) && !progress(report.operations) {
            return Err(ReplayError::Stopped);
        }
    }
    if report.difference.is_none()
        && let Err(broken) = subject.check()
    {
        let operation = report.operations.saturating_sub(1);
        let asked = "the operations so far".into();
        report.difference = Some(Difference::Invariant { operation, asked, broken: broken.to_string() });
    }
    Ok((report, subject))
}

/// Returns an operation as readable text. A long text is truncated.
pub(crate) fn shown(operation: &impl Words) -> String {
    const LONGEST: usize = 600;
    let mut text = format!("{} {}", operation.call(), operation.words());
    text.truncate(text.trim_end().len());
    if let Some((end, _)) = text.char_indices().nth(LONGEST) {
        text.truncate(end);
        text.push_str(" ...");
    }
    text
}
