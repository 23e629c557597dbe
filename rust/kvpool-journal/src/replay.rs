//! Replay: every operation again, on this build, with every answer and every digest compared.
//!
//! Costs: memory for the pool, for each distinct content that the journal names (`contents.rs` says how
//! much), and a frame of its file.

use crate::{Entry, JournalReader, JournalSource, Tail};

use crate::calls::Words;
use crate::error::ReplayError;
use crate::subject::{Step, Subject};
use crate::value::Answer;

/// Where a replay and its journal differ first.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Difference {
    /// An operation that was answered otherwise.
    Answer {
        /// Its number.
        operation: u64,
        /// What was asked.
        asked: String,
        /// What this build answers.
        told: String,
    },
    /// The state after so many operations. The answers of the operations since the last digest were the same.
    Digest {
        /// Operations until then.
        operations: u64,
        /// Operations at the digest before it, which was the same.
        since: u64,
    },
    /// An invariant that does not hold.
    Invariant {
        /// The operation after which it did not hold first.
        operation: u64,
        /// What was asked.
        asked: String,
        /// The invariant and what was found.
        broken: String,
    },
}

/// What a replay found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Operations run.
    pub operations: u64,
    /// Digests that were the same.
    pub digests: u64,
    /// The first difference, behind which nothing was run.
    pub difference: Option<Difference>,
    /// Whether the journal's last frame is whole.
    pub tail: Tail,
}

/// How to replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The operation to stop before; `None` is the end.
    pub until: Option<u64>,
    /// Operations from one recount of all invariants to the next; 0 recounts at the end alone.
    pub check_every: u64,
}

/// Evaluates an expression with the type of the subject that a journal is of.
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

/// Replays a journal on this build. `progress` is told the operations so far every few thousand, and
/// may stop it by answering false.
///
/// # Errors
/// [`ReplayError`]: a journal that cannot be replayed. Differences are no errors: [`Report::difference`].
pub fn replay<'a>(
    journal: impl Into<JournalSource<'a>>,
    options: Options,
    progress: &mut dyn FnMut(u64) -> bool,
) -> Result<Report, ReplayError> {
    over(journal.into(), options, progress)
}

/// The same, compiled here and not for each kind of source.
fn over(
    journal: JournalSource<'_>,
    options: Options,
    progress: &mut dyn FnMut(u64) -> bool,
) -> Result<Report, ReplayError> {
    let reader = JournalReader::new(journal)?;
    of_kind!(reader, S => Ok(drive::<S>(&reader, options, progress, None)?.0))
}

/// All operations of a journal on their own, up to the first difference.
///
/// # Errors
/// As [`replay`].
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

/// Operations between two calls of `progress`.
const PROGRESS: u64 = 4096;

/// Gets each operation that has run, and the subject after it. An error ends the run.
pub(crate) type Each<'a, S> = dyn FnMut(Step<<S as Subject>::Call>, &S) -> Result<(), ReplayError> + 'a;

/// What is shown the subject after each operation, with how many there were.
pub(crate) type Look<'a, S> = dyn FnMut(u64, &S) + 'a;

pub(crate) fn drive<S: Subject>(
    reader: &JournalReader<'_>,
    options: Options,
    progress: &mut dyn FnMut(u64) -> bool,
    each: Option<&mut Each<'_, S>>,
) -> Result<(Report, S), ReplayError> {
    drive_on(S::new(reader.header())?, reader, options, progress, each, None)
}

/// The same on a subject that is as it was before the first operation.
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

/// An operation as a person reads it, cut where it is long.
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
