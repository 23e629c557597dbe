//! Replays a journal on two subjects, one of which is restarted, to check that a warm restart changes
//! no answer.
//!
//! Two subjects run a journal side by side. One subject is never restarted. Whenever no caller holds a
//! block, the other is replaced by a new subject that is restored from its image. From then on, both
//! must give the same answers, with the same block ids, and must have the same cached blocks in the
//! same order.
//!
//! The following numbers are not compared, because they start again in a new process: tickets of
//! fences, counters, and events. The digests of the journal are not compared either, because they
//! include counters.
//!
//! Costs: both runs, and O(blocks log blocks) per restart and per comparison of the cached blocks.

use std::cell::Cell;

use crate::{JournalHeader, JournalReader, JournalSource, Tail};
use hashbrown::HashMap;
use kvpool::PoolImage;

use crate::calls::{Mention, Slot, Slots, Words};
use crate::error::ReplayError;
use crate::replay::{Difference, Options, Report, drive_on, of_kind, shown};
use crate::subject::{Step, Subject};
use crate::value::Value;

/// The result of [`replay_restarting`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestartReport {
    /// Number of operations that were run, each on both pools or managers.
    pub operations: u64,
    /// Number of times that the second pool or manager was restarted.
    pub restarts: u64,
    /// Number of restored blocks, summed over all restarts.
    pub blocks: u64,
    /// The first difference between the two pools or managers. The run stops there.
    pub difference: Option<RestartDifference>,
    /// Whether the journal's last frame is complete.
    pub tail: Tail,
}

/// The first difference between the restarted pool or manager and the one that was never restarted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RestartDifference {
    /// The pool or manager that was never restarted differs from the journal, as in [`crate::replay`].
    Journal(Difference),
    /// The two pools or managers answer an operation differently.
    Answer {
        /// Number of the operation whose answers differ.
        operation: u64,
        /// The call and its arguments as text.
        asked: String,
        /// The answer of the pool or manager that was never restarted.
        stayed: String,
        /// The answer of the restarted pool or manager.
        restarted: String,
    },
    /// After an operation, the two pools or managers have different cached blocks, a different order,
    /// or different retention.
    Cached {
        /// Number of the operation after which the blocks differ.
        operation: u64,
        /// The call and its arguments as text.
        asked: String,
        /// The first item that differs, as the pool that was never restarted has it.
        stayed: String,
        /// The first item that differs, as the restarted pool has it.
        restarted: String,
    },
    /// An invariant of the restarted pool or manager is broken.
    Invariant {
        /// Number of the operation after which a check found the broken invariant.
        operation: u64,
        /// The broken invariant, and the values that the check found.
        broken: String,
    },
}

/// Replays a journal on two subjects. One of them is restarted after every operation that leaves no
/// block held by a caller. The cached blocks of both are compared at restarts, at the end, and every
/// [`Options::check_every`] operations unless that is 0.
///
/// With LRU there is no difference, as long as the run uses nothing that a restart loses: retention,
/// swapped requests, and hits inside of blocks.
///
/// # Errors
/// Like [`crate::replay`]. [`ReplayError::Settings`] for a subject that does not support images: vLLM's
/// pools, and subjects that verify hits.
pub fn replay_restarting<'a>(
    journal: impl Into<JournalSource<'a>>,
    options: Options,
    progress: &mut dyn FnMut(u64) -> bool,
) -> Result<RestartReport, ReplayError> {
    over(journal.into(), options, progress)
}

/// Implements [`replay_restarting`] without type parameters, so that the compiler does not repeat it
/// for each kind of journal.
fn over(
    journal: JournalSource<'_>,
    options: Options,
    progress: &mut dyn FnMut(u64) -> bool,
) -> Result<RestartReport, ReplayError> {
    let reader = JournalReader::new(journal)?;
    of_kind!(reader, S => run::<S>(&reader, options, progress))
}

/// The restarted subject.
struct Restarted<'a, S> {
    subject: S,
    header: &'a JournalHeader,
    /// Maps the tickets of open fences from the pool or manager that was never restarted to the
    /// restarted one.
    tickets: HashMap<u64, u64>,
    report: RestartReport,
}

impl<S: Subject> Restarted<'_, S> {
    /// Runs an operation that the pool or manager without restarts has already run, and returns the
    /// first difference. If `image` is given, which is the image of that pool, the cached blocks are
    /// compared, too.
    fn follow(
        &mut self,
        mut step: Step<S::Call>,
        image: Option<PoolImage>,
    ) -> Result<Option<RestartDifference>, ReplayError> {
        let operation = step.number;
        let asked = shown(&step.operation);
        let mut named = Vec::new();
        for mention in step.operation.slots().into_iter().flat_map(Slot::mentions) {
            if let Mention::Ticket(ticket) = mention {
                named.push(*ticket);
                // A ticket without an entry is open in neither of the two pools or managers, so use any
                // number that is not a ticket.
                *ticket = self.tickets.get(ticket).copied().unwrap_or(u64::MAX);
            }
        }
        let answer = self.subject.run_alone(&step)?;
        self.report.operations = operation + 1;
        let call = step.operation.call();
        let alike = match (call, &step.answer.value, &answer.value) {
            // Do not compare the tickets of fences, because each of the two pools or managers assigns
            // its own numbers. Map them to each other.
            ("fence", &Value::Number(stayed), &Value::Number(here)) => {
                self.tickets.insert(stayed, here);
                true
            }
            (_, stayed, here) => {
                let names_itself = answer.refused && !named.is_empty();
                stayed == here || names_itself || call == "take_events"
            }
        };
        if call == "end_fence" && !answer.refused {
            named.iter().for_each(|ticket| _ = self.tickets.remove(ticket));
        }
        let same = alike && (answer.refused, &answer.blocks) == (step.answer.refused, &step.answer.blocks);
        if !same {
            let (stayed, restarted) = (step.answer.told, answer.told);
            return Ok(Some(RestartDifference::Answer { operation, asked, stayed, restarted }));
        }
        image.map_or(Ok(None), |image| self.compare(operation, asked, &image))
    }

    /// Compares the cached blocks of the restarted pool with an image of the pool that was never
    /// restarted, and returns the first difference.
    fn compare(
        &mut self,
        operation: u64,
        asked: String,
        image: &PoolImage,
    ) -> Result<Option<RestartDifference>, ReplayError> {
        let here = self.subject.device().image()?;
        if let Some((stayed, restarted)) = first_difference(image, &here) {
            return Ok(Some(RestartDifference::Cached { operation, asked, stayed, restarted }));
        }
        let broken = self.subject.check().err().map(|broken| broken.to_string());
        Ok(broken.map(|broken| RestartDifference::Invariant { operation, broken }))
    }

    fn restart(&mut self) -> Result<(), ReplayError> {
        self.report.blocks += self.subject.restart(self.header)? as u64;
        self.report.restarts += 1;
        Ok(())
    }
}

/// Returns the first difference between two images. Compares the cached blocks in the order of
/// eviction, and the free blocks in the order of allocation.
fn first_difference(one: &PoolImage, other: &PoolImage) -> Option<(String, String)> {
    if one == other {
        return None;
    }
    let blocks = one.blocks.iter().zip(&other.blocks).find(|(one, other)| one != other);
    let free = || one.free.iter().zip(&other.free).find(|(one, other)| one != other);
    let rest = |image: &PoolImage| {
        let PoolImage { blocks, free, epoch, algorithm, .. } = image;
        format!("{} cached, {} free, epoch {epoch}, {algorithm:?}", blocks.len(), free.len())
    };
    Some(match (blocks, free()) {
        (Some((one, other)), _) => (format!("{one:?}"), format!("{other:?}")),
        (None, Some((one, other))) => (format!("free {one}"), format!("free {other}")),
        _ => (rest(one), rest(other)),
    })
}

fn run<S: Subject>(
    reader: &JournalReader<'_>,
    options: Options,
    progress: &mut dyn FnMut(u64) -> bool,
) -> Result<RestartReport, ReplayError> {
    let header = reader.header();
    let (operations, restarts, blocks, difference, tail) = (0, 0, 0, None, reader.tail());
    let report = RestartReport { operations, restarts, blocks, difference, tail };
    let mut restarted = Restarted { subject: S::new(header)?, header, tickets: HashMap::new(), report };
    restarted.restart()?;
    // Whether no caller holds a block of the pool that was never restarted, and its image, both after
    // its last operation.
    let (idle, image) = (Cell::new(false), Cell::new(None));
    let mut look = |operations: u64, subject: &S| {
        idle.set(subject.is_idle());
        let is_compared = options.check_every > 0 && operations.is_multiple_of(options.check_every);
        image.set((is_compared || idle.get()).then(|| subject.device().image().ok()).flatten());
    };
    let mut found = None;
    let mut each = |step: Step<S::Call>, _: &S| {
        found = restarted.follow(step, image.take())?;
        if found.is_some() {
            return Err(ReplayError::Stopped);
        }
        // Do not restart while a ticket is open, because its step or transfer has not finished.
        if idle.get() && restarted.tickets.is_empty() { restarted.restart() } else { Ok(()) }
    };
    let stayed = drive_on(S::new(header)?, reader, options, progress, Some(&mut each), Some(&mut look));
    restarted.report.difference = match stayed {
        Err(ReplayError::Stopped) if found.is_some() => found,
        Err(error) => return Err(error),
        Ok((Report { difference: Some(difference), .. }, _)) => Some(RestartDifference::Journal(difference)),
        Ok((_, stayed)) => {
            let last = restarted.report.operations.saturating_sub(1);
            restarted.compare(last, "the operations so far".into(), &stayed.device().image()?)?
        }
    };
    Ok(restarted.report)
}
