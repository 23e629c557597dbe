//! Shrinking: finds a minimal list of a journal's operations that still causes the failure.
//!
//! Delta debugging ([`minimize`]) removes operations. Each operation is self-contained, so the others
//! still run. Afterwards the arguments are made smaller.

use crate::{JournalReader, JournalSource};

use crate::calls::Simpler;
use crate::error::ReplayError;
use crate::minimize::minimize;
use crate::record::record;
use crate::replay::{Options, of_kind, steps};
use crate::subject::{Step, Subject};

/// The failure that must still occur after operations were removed.
///
/// ```
/// use kvpool_journal::{Journal, JournalConfig, Journaled, Goal, PoolCalls, shrink};
/// let journal = Journal::ring(1 << 20, JournalConfig::default())?;
/// let mut pool = Journaled::<kvpool::BlockPool>::with_journal(kvpool::PoolConfig::default(), journal)?;
/// pool.allocate(3)?;
/// pool.allocate(usize::MAX).unwrap_err();
/// let image = pool.journal_image().unwrap_or_default();
/// // Only the refused call is needed to reach the same answer again.
/// let shrunk = shrink(&image, Goal::Answer(1), &mut |_| true)?;
/// assert!(shrunk.is_some_and(|shrunk| shrunk.operations.len() <= 2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// An invariant is broken, or the pool refuses work because it has detected a broken invariant.
    Broken,
    /// The operation with this number still gives the same answer. Answers are compared as text.
    Answer(u64),
}

/// The result of shrinking a journal.
#[derive(Clone, Debug)]
pub struct Shrunk {
    /// Number of operations in the original journal.
    pub before: usize,
    /// The operations that remain, as readable text.
    pub operations: Vec<String>,
    /// The failure that the remaining operations cause, as text.
    pub failure: String,
    /// A journal that contains only the remaining operations.
    pub journal: Vec<u8>,
    /// Number of times that the shrinker ran operations.
    pub runs: usize,
}

/// Shrinks a journal to a minimal list of operations that still reaches the goal. Returns `None` if the
/// whole journal does not reach it. After each run, `progress` is called with the number of remaining
/// operations. If it returns false, shrinking stops, and the result so far is returned.
///
/// # Errors
/// Like [`crate::replay`].
pub fn shrink<'a>(
    journal: impl Into<JournalSource<'a>>,
    goal: Goal,
    progress: &mut dyn FnMut(usize) -> bool,
) -> Result<Option<Shrunk>, ReplayError> {
    over(journal.into(), goal, progress)
}

/// Implements [`shrink`] without type parameters, so that the compiler does not repeat it for each kind
/// of journal.
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

/// Runs self-contained steps, and returns the failure, if there is one.
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

/// Makes arguments smaller, one change at a time, as long as the steps still fail.
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
