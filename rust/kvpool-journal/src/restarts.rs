//! Replays beside a second one that stops and is restored: what shows whether a warm restart can be
//! told from none.
//!
//! Two subjects run a journal side by side. One never stops. The other one ends wherever nobody holds a
//! block, and what comes in its place is a new one, made warm by its image. From then on both have to
//! answer the same, block for block, and have the same cached, in the same order.
//!
//! What numbers itself begins anew in a new process and is not compared: the tickets of fences; what
//! was counted; events, which a new process tells from its beginning. Nor are the journal's digests, of
//! which counters are part.
//!
//! Costs: both runs; O(blocks log blocks) per restart, and per comparison of what is cached.

use std::cell::Cell;

use crate::{JournalHeader, JournalReader, JournalSource, Tail};
use hashbrown::HashMap;
use kvpool::PoolImage;

use crate::calls::{Mention, Slot, Slots, Words};
use crate::error::ReplayError;
use crate::replay::{Difference, Options, Report, drive_on, of_kind, shown};
use crate::subject::{Step, Subject};
use crate::value::Value;

/// What [`replay_restarting`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestartReport {
    /// Operations run.
    pub operations: u64,
    /// Restarts among them.
    pub restarts: u64,
    /// Blocks that they restored, summed up.
    pub blocks: u64,
    /// The first difference between the two, behind which nothing was run.
    pub difference: Option<RestartDifference>,
    /// Whether the journal's last frame is whole.
    pub tail: Tail,
}

/// Where the one that was restarted and the one that never stopped differ first.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RestartDifference {
    /// The one that never stopped differs from the journal already: see [`crate::replay`].
    Journal(Difference),
    /// An operation that the two answer otherwise.
    Answer {
        /// Its number.
        operation: u64,
        /// What was asked.
        asked: String,
        /// What the one that never stopped answers.
        stayed: String,
        /// What the other one does.
        restarted: String,
    },
    /// What they have cached behind an operation, in which order, or what was said of it.
    Cached {
        /// Its number.
        operation: u64,
        /// What was asked.
        asked: String,
        /// The first thing that is another one, of the one that never stopped.
        stayed: String,
        /// Of the other one.
        restarted: String,
    },
    /// The one that was restarted is broken.
    Invariant {
        /// The operation behind which it is.
        operation: u64,
        /// The invariant and what was found.
        broken: String,
    },
}

/// Replays a journal beside a pool or manager that is restarted behind every operation after which
/// nobody holds a block. [`Options::check_every`] is also how often what both have cached is compared;
/// 0 compares it at restarts and at the end.
///
/// With LRU there is no difference, as far as there is nothing that does not last: retention, swapped
/// requests, hits inside of blocks.
///
/// # Errors
/// As [`crate::replay`]; [`ReplayError::Settings`] of a subject that has no image: vLLM's pools, and
/// those that verify hits.
pub fn replay_restarting<'a>(
    journal: impl Into<JournalSource<'a>>,
    options: Options,
    progress: &mut dyn FnMut(u64) -> bool,
) -> Result<RestartReport, ReplayError> {
    over(journal.into(), options, progress)
}

/// The same, compiled here and not for each kind of source.
fn over(
    journal: JournalSource<'_>,
    options: Options,
    progress: &mut dyn FnMut(u64) -> bool,
) -> Result<RestartReport, ReplayError> {
    let reader = JournalReader::new(journal)?;
    of_kind!(reader, S => run::<S>(&reader, options, progress))
}

/// The one that is restarted.
struct Restarted<'a, S> {
    subject: S,
    header: &'a JournalHeader,
    /// Open tickets of the one that never stopped -> its own.
    tickets: HashMap<u64, u64>,
    report: RestartReport,
}

impl<S: Subject> Restarted<'_, S> {
    /// Runs what the other one has run; says where they differ. `image` is that of the other one, if
    /// they are to be compared.
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
                // A ticket that is not open here must not be open there, whatever its number.
                *ticket = self.tickets.get(ticket).copied().unwrap_or(u64::MAX);
            }
        }
        let answer = self.subject.run_alone(&step)?;
        self.report.operations = operation + 1;
        let call = step.operation.call();
        let alike = match (call, &step.answer.value, &answer.value) {
            // A number of its own.
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

    /// Where what is cached here is not what an image says.
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

/// What is not the same in two images: all that is cached, from the next to be evicted on; free blocks,
/// from the next one on.
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
    // What cannot be restarted is refused here.
    restarted.restart()?;
    // Of the one that never stopped, behind its last operation.
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
        // An open ticket is somebody's who has not ended.
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
