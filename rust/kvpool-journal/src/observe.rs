//! Provides a pool or manager at chosen moments of a replay, with observers that the recorded run did
//! not have.
//!
//! Observers change no answer, so the replay compares answers as usual. The reports of the observers
//! describe the replay, not the recorded run. The tokens of a replay are generated, so an explanation
//! of a miss cannot contain the position inside of a block at which two prompts differ. The only times
//! in a journal are those that the caller passed for retention.

use crate::{JournalReader, JournalSource};

use crate::error::ReplayError;
use crate::observers::{Observed, Observers};
use crate::replay::{Options, Report, drive_on, of_kind};
use crate::subject::Subject;

/// Replays a journal on this build with observers. Calls `seen` with the number of operations so far,
/// after every `every` operations (0 means never) and at the end. `progress` has the same meaning as in
/// [`crate::replay`].
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
/// The errors of [`crate::replay`], and [`ReplayError::Settings`] for invalid settings of an observer.
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

/// Implements [`observe`] without type parameters, so that the compiler does not repeat it for each
/// kind of journal.
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
