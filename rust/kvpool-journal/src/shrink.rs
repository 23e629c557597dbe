//! Shrinking: the fewest operations that still go wrong.
//!
//! Delta debugging ([`minimize`]) over operations that stand on their own; then arguments are made smaller.

use crate::{JournalReader, JournalSource};

use crate::calls::Simpler;
use crate::error::ReplayError;
use crate::minimize::minimize;
use crate::record::record;
use crate::replay::{Options, of_kind, steps};
use crate::subject::{Step, Subject};

/// What has to stay as it is while operations are left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// An invariant is broken, or the pool is poisoned.
    Broken,
    /// The operation with this number is answered as it was, in words.
    Answer(u64),
}

/// A journal made smaller.
#[derive(Clone, Debug)]
pub struct Shrunk {
    /// Operations before.
    pub before: usize,
    /// Operations that are left, as a person reads them.
    pub operations: Vec<String>,
    /// What goes wrong.
    pub failure: String,
    /// The journal of them.
    pub journal: Vec<u8>,
    /// Runs that it took.
    pub runs: usize,
}

/// The fewest operations of a journal that still reach the goal; `None` if all of them do not.
/// `progress` is told the number of operations left after each run, and may stop the shrinking by
/// answering false: then what was reached so far counts.
///
/// # Errors
/// As [`crate::replay`].
pub fn shrink<'a>(
    journal: impl Into<JournalSource<'a>>,
    goal: Goal,
    progress: &mut dyn FnMut(usize) -> bool,
) -> Result<Option<Shrunk>, ReplayError> {
    over(journal.into(), goal, progress)
}

/// The same, compiled here and not for each kind of source.
fn over(
    journal: JournalSource<'_>,
    goal: Goal,
    progress: &mut dyn FnMut(usize) -> bool,
) -> Result<Option<Shrunk>, ReplayError> {
    let reader = JournalReader::new(journal)?;
    of_kind!(reader, S => shrink_in::<S>(&reader, goal, progress))
}

fn shrink_in<S: Subject>(
    reader: &JournalReader<'_>,
    goal: Goal,
    progress: &mut dyn FnMut(usize) -> bool,
) -> Result<Option<Shrunk>, ReplayError> {
    let all = steps::<S>(reader, Options::default())?;
    let before = all.len();
    let wanted = match goal {
        Goal::Broken => None,
        Goal::Answer(number) => all.iter().find(|step| step.number == number).cloned(),
    };
    if wanted.is_none() && goal != Goal::Broken {
        return Ok(None);
    }
    let try_steps = |steps: &[Step<S::Call>]| fails::<S>(reader, steps, wanted.as_ref());
    if try_steps(&all)?.is_none() {
        return Ok(None);
    }
    let (mut runs, mut going) = (1, true);
    let mut problem = None;
    let mut still = |steps: &[Step<S::Call>]| {
        runs += 1;
        going = going && progress(steps.len());
        match try_steps(steps) {
            Ok(failure) => going && failure.is_some(),
            Err(error) => {
                problem = Some(error);
                false
            }
        }
    };
    let mut least = minimize(all, &mut still);
    simplify(&mut least, &mut still);
    least = minimize(least, &mut still);
    if let Some(problem) = problem {
        return Err(problem);
    }
    let failure = try_steps(&least)?.unwrap_or_default();
    let (journal, operations) = record::<S>(reader.header(), &least)?;
    Ok(Some(Shrunk { before, operations, failure, journal, runs }))
}

/// Runs steps on their own, and says what goes wrong.
fn fails<S: Subject>(
    reader: &JournalReader<'_>,
    steps: &[Step<S::Call>],
    wanted: Option<&Step<S::Call>>,
) -> Result<Option<String>, ReplayError> {
    let mut subject = S::new(reader.header())?;
    for step in steps {
        let answer = subject.run_alone(step)?;
        match wanted {
            Some(wanted) if wanted.number == step.number => {
                return Ok((wanted.answer.told == answer.told).then_some(answer.told));
            }
            Some(_) => {}
            None => {
                if let Err(broken) = subject.check() {
                    return Ok(Some(broken.to_string()));
                }
            }
        }
    }
    Ok(None)
}

/// Makes arguments smaller, one step at a time, as long as the steps still fail.
fn simplify<O: Simpler + Clone>(steps: &mut Vec<Step<O>>, still: &mut dyn FnMut(&[Step<O>]) -> bool) {
    for at in 0..steps.len() {
        let mut tried = 0;
        while let Some(simpler) = steps[at].operation.simpler(tried) {
            let mut changed = steps.clone();
            changed[at].operation = simpler;
            if still(&changed) {
                *steps = changed;
                tried = 0;
            } else {
                tried += 1;
            }
        }
    }
}
