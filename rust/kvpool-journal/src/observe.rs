//! A journal looked at: what its pool or manager says of itself at moments of the replay, with
//! observers that it was recorded without.
//!
//! Observers change no answer, so a replay with them is compared as any other. What they say is of the
//! replay: its tokens are made up, so an explanation never says from which token inside of a block on
//! two prompts differ; and a journal has the times that retention was told, and no others.

use crate::{JournalReader, JournalSource};

use crate::error::ReplayError;
use crate::observers::{Observed, Observers};
use crate::replay::{Options, Report, drive_on, of_kind};
use crate::subject::Subject;

/// Replays a journal on this build, watched, and shows it to `seen` with the operations so far: after
/// every `every` of them, 0 for none, and at the end. `progress` is as for [`crate::replay`].
///
/// ```
/// use kvpool::{BlockPool, PoolConfig};
/// use kvpool_journal::{Journal, JournalConfig, Journaled, Observed, Observers, PoolCalls, observe};
/// let journal = Journal::ring(1 << 20, JournalConfig::default())?;
/// let config = PoolConfig { num_blocks: 64, ..PoolConfig::default() };
/// let mut pool = Journaled::<BlockPool>::with_journal(config, journal)?;
/// let blocks = pool.allocate(3)?;
/// pool.release(&blocks)?;
///
/// let image = pool.journal_image().unwrap_or_default();
/// let mut active = Vec::new();
/// let mut seen = |operations: u64, observed: Observed<'_>| {
///     if let Observed::Pool(pool) = observed {
///         active.push((operations, pool.stats().active));
///     }
/// };
/// let report = observe(&image, &Observers::default(), Default::default(), 1, &mut seen, &mut |_| true)?;
/// assert_eq!((report.difference, active), (None, vec![(1, 3), (2, 0)]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// As [`crate::replay`]; settings of an observer that are refused.
pub fn observe<'a>(
    journal: impl Into<JournalSource<'a>>,
    observers: &Observers,
    options: Options,
    every: u64,
    seen: &mut dyn FnMut(u64, Observed<'_>),
    progress: &mut dyn FnMut(u64) -> bool,
) -> Result<Report, ReplayError> {
    over(journal.into(), observers, options, every, seen, progress)
}

/// The same, compiled here and not for each kind of source.
fn over(
    journal: JournalSource<'_>,
    observers: &Observers,
    options: Options,
    every: u64,
    seen: &mut dyn FnMut(u64, Observed<'_>),
    progress: &mut dyn FnMut(u64) -> bool,
) -> Result<Report, ReplayError> {
    let reader = JournalReader::new(journal)?;
    of_kind!(reader, S => watched::<S>(&reader, observers, options, every, seen, progress))
}

fn watched<S: Subject>(
    reader: &JournalReader<'_>,
    observers: &Observers,
    options: Options,
    every: u64,
    seen: &mut dyn FnMut(u64, Observed<'_>),
    progress: &mut dyn FnMut(u64) -> bool,
) -> Result<Report, ReplayError> {
    let mut subject = S::new(reader.header())?;
    subject.watch(reader.header(), observers)?;
    let mut last = None;
    let mut look = |operations: u64, subject: &S| {
        if every > 0 && operations.is_multiple_of(every) {
            last = Some(operations);
            seen(operations, subject.observed());
        }
    };
    let (report, subject) = drive_on(subject, reader, options, progress, None, Some(&mut look))?;
    if last != Some(report.operations) {
        seen(report.operations, subject.observed());
    }
    Ok(report)
}
