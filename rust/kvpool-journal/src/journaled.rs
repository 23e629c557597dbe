//! [`Journaled`]: a pool or a manager, and the journal of what it is asked.
//!
//! Owns: the subject, its journal, and the ways to change it: its calls ([`crate::PoolCalls`],
//! [`crate::ManagerCalls`], [`crate::VllmCalls`]). The subject knows nothing of it.
//!
//! Invariants:
//! - What a journal holds leads from a new subject to the one there is: every call goes through here,
//!   in its order.
//! - The journal stays here while an operation runs. A panic loses that operation, and no other: a
//!   policy of the caller's own may panic.
//! - Behind an operation that met a broken invariant, and behind every refusal from then on, all that
//!   was collected is written.
//!
//! Costs: without a journal a branch per operation. With one, the record and the check of the answer; every
//! [`JournalConfig::digest_every`] operations a digest of the state.

use std::fmt;
use std::ops::Deref;

use crate::{Check, Flush, Journal, JournalConfig, JournalHeader, Outcome};
use kvpool::retention::RetentionConfig;
use kvpool::{
    BlockPool, CacheManager, EvictionPolicy, ManagerError, PoolError, PoolImage, Restored, SavedBlock,
};
use serde::Serialize;

/// What a journal can be kept of.
pub trait Recordable: Sized {
    /// Its settings.
    type Config;
    /// What watches it.
    type Watch: Default;
    /// What it says to settings that it refuses.
    type Error;
    /// The record of one of its calls.
    type Record: Serialize;
    /// What a replay keeps to make the arguments of recorded calls.
    type Memory;

    /// A new one. If the journal is to have digests of a state that is too large to be counted for each
    /// of them, it keeps one.
    ///
    /// # Errors
    /// What the subject says of its settings.
    fn create(config: Self::Config, watch: &Self::Watch, journal: JournalConfig)
    -> Result<Self, Self::Error>;

    /// What its journal begins with.
    fn header(config: &Self::Config, watch: &Self::Watch, journal: JournalConfig) -> JournalHeader;

    /// The digest of its state, if it can have one.
    fn digest(&mut self) -> Option<u64>;

    /// Whether it refuses work because an invariant broke.
    fn is_poisoned(&self) -> bool;
}

/// Runs calls of a subject, and records them if there is a journal.
pub trait Recording {
    /// The pool or manager that is called.
    type Subject: Recordable;

    /// Runs a call with `run`. If there is a journal, `before` takes what must be taken before the call runs,
    /// and `after` makes the record; without a record nothing is written.
    fn call<B, A: Outcome>(
        &mut self,
        before: impl FnOnce(&Self::Subject, &mut Journal) -> B,
        run: impl FnOnce(&mut Self::Subject) -> A,
        after: impl FnOnce(B, &Self::Subject, &mut Journal, &A) -> Option<<Self::Subject as Recordable>::Record>,
    ) -> A;
}

/// A pool or a manager with or without a journal. Methods that only look are those of the subject
/// ([`Deref`]). Methods that change it are those of [`crate::PoolCalls`], [`crate::ManagerCalls`] or
/// [`crate::VllmCalls`].
///
/// ```
/// use kvpool::{BlockPool, PoolConfig};
/// use kvpool_journal::{Journal, JournalConfig, Journaled, PoolCalls};
/// let journal = Journal::ring(1 << 20, JournalConfig::default())?;
/// let config = PoolConfig { num_blocks: 64, ..PoolConfig::default() };
/// let mut pool = Journaled::<BlockPool>::with_journal(config, journal)?;
/// let blocks = pool.allocate(3)?;
/// assert_eq!(pool.num_available(), 60);
/// pool.release(&blocks)?;
///
/// let image = pool.journal_image().unwrap_or_default();
/// let report = kvpool_journal::replay(&image, Default::default(), &mut |_| true)?;
/// assert_eq!((report.operations, report.difference), (2, None));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Journaled<S> {
    subject: S,
    journal: Option<Box<Journal>>,
}

impl<S: fmt::Debug> fmt::Debug for Journaled<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Journaled").field("subject", &self.subject).field("journal", &self.journal).finish()
    }
}

impl<S> Deref for Journaled<S> {
    type Target = S;

    #[inline]
    fn deref(&self) -> &S {
        &self.subject
    }
}

impl<S> From<S> for Journaled<S> {
    /// Without a journal.
    fn from(subject: S) -> Self {
        Self { subject, journal: None }
    }
}

impl<S: Recordable> Journaled<S> {
    /// A new subject whose operations `journal` records.
    ///
    /// # Errors
    /// What the subject says of its settings.
    pub fn with_journal(config: S::Config, journal: Journal) -> Result<Self, S::Error> {
        Self::with_watch(config, &S::Watch::default(), journal)
    }

    /// The same of a subject that is watched, too: what watches it is part of the journal's header, for
    /// what it says is recorded.
    ///
    /// # Errors
    /// What the subject says of its settings.
    pub fn with_watch(config: S::Config, watch: &S::Watch, journal: Journal) -> Result<Self, S::Error> {
        let header = S::header(&config, watch, journal.config());
        let subject = S::create(config, watch, journal.config())?;
        Ok(Self::begin(subject, &header, journal))
    }

    /// A subject that has done nothing yet and was made by other means, for replays that are recorded
    /// themselves.
    pub(crate) fn begin(subject: S, header: &JournalHeader, mut journal: Journal) -> Self {
        journal.begin(header);
        Self { subject, journal: Some(Box::new(journal)) }
    }

    /// Takes something before a call runs, if there is a journal.
    #[inline]
    pub(crate) fn before<T>(&mut self, take: impl FnOnce(&S, &mut Journal) -> T) -> Option<T> {
        self.journal.as_deref_mut().map(|journal| take(&self.subject, journal))
    }

    /// [`Recording::call`], but `write` writes the record, with the check of the answer. It returns whether a
    /// digest is due.
    #[inline]
    pub(crate) fn write<B, A: Outcome>(
        &mut self,
        before: impl FnOnce(&S, &mut Journal) -> B,
        run: impl FnOnce(&mut S) -> A,
        write: impl FnOnce(B, &S, &mut Journal, &A, u32) -> bool,
    ) -> A {
        match &mut self.journal {
            None => run(&mut self.subject),
            Some(journal) => Self::run_and_write(&mut self.subject, journal, before, run, write),
        }
    }

    #[inline(never)]
    fn run_and_write<B, A: Outcome>(
        subject: &mut S,
        journal: &mut Journal,
        before: impl FnOnce(&S, &mut Journal) -> B,
        run: impl FnOnce(&mut S) -> A,
        write: impl FnOnce(B, &S, &mut Journal, &A, u32) -> bool,
    ) -> A {
        let taken = before(subject, journal);
        let answer = run(subject);
        let check = Check::of(&answer);
        let digest_is_due = write(taken, subject, journal, &answer, check);
        Self::finish(subject, journal, digest_is_due);
        answer
    }

    /// Ends a recorded call: writes a digest that is due, and everything if the subject is poisoned.
    fn finish(subject: &mut S, journal: &mut Journal, digest_is_due: bool) {
        if digest_is_due && let Some(digest) = subject.digest() {
            journal.digest(digest);
        }
        if subject.is_poisoned() {
            journal.flush();
        }
    }

    /// Runs what has no record: a scrubber's turn, a digest of the state. Whatever changes an answer
    /// has an operation: done here, it is missing from the journal, whose replay goes another way.
    pub fn unrecorded<T>(&mut self, call: impl FnOnce(&mut S) -> T) -> T {
        let result = call(&mut self.subject);
        if let Some(journal) = &mut self.journal
            && self.subject.is_poisoned()
        {
            journal.flush();
        }
        result
    }
}

impl<S: Recordable> Recording for Journaled<S> {
    type Subject = S;

    #[inline]
    fn call<B, A: Outcome>(
        &mut self,
        before: impl FnOnce(&S, &mut Journal) -> B,
        run: impl FnOnce(&mut S) -> A,
        after: impl FnOnce(B, &S, &mut Journal, &A) -> Option<S::Record>,
    ) -> A {
        self.write(before, run, |taken, subject, journal, answer, check| {
            let record = after(taken, subject, journal, answer);
            record.is_some_and(|record| journal.record(&record, check))
        })
    }
}

impl Journaled<BlockPool> {
    /// [`BlockPool::restore`], which is no operation of a journal.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there is a journal: its replay would not begin warm; and as
    /// [`BlockPool::restore`].
    pub fn restore(
        &mut self,
        image: &PoolImage,
        elapsed: f64,
        agrees: impl FnMut(&SavedBlock) -> bool,
    ) -> Result<Restored, PoolError> {
        self.check_no_journal()?;
        self.subject.restore(image, elapsed, agrees)
    }
}

impl Journaled<CacheManager> {
    /// [`CacheManager::restore`], which is no operation of a journal.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there is a journal: its replay would not begin warm; and as
    /// [`CacheManager::restore`].
    pub fn restore(
        &mut self,
        image: &PoolImage,
        elapsed: f64,
        agrees: impl FnMut(&SavedBlock) -> bool,
    ) -> Result<Restored, ManagerError> {
        self.check_no_journal()?;
        self.subject.restore(image, elapsed, agrees)
    }
}

impl<S> Journaled<S> {
    fn check_no_journal(&self) -> Result<(), PoolError> {
        let refused = || PoolError::config("journal", "on", "none: its replay would not begin warm");
        if self.journal.is_some() { Err(refused()) } else { Ok(()) }
    }

    /// The journal, if there is one: how long it is, and whether it stopped.
    #[must_use]
    pub fn journal(&self) -> Option<&Journal> {
        self.journal.as_deref()
    }

    /// Ends the journal and hands it over. What is done from now on is in none.
    pub fn take_journal(&mut self) -> Option<Journal> {
        self.journal.take().map(|journal| *journal)
    }

    /// What the journal holds, if it is a ring: flushed, as the bytes of a file.
    pub fn journal_image(&mut self) -> Option<Vec<u8>> {
        self.journal.as_mut()?.image()
    }

    /// Writes what the journal has collected, and waits until it is written: what a crash would lose.
    pub fn flush_journal(&mut self) {
        if let Some(flush) = self.start_flush() {
            flush.wait();
        }
    }

    /// The same, to be waited for without the subject, which may be behind a lock; `None` without a journal.
    pub fn start_flush(&mut self) -> Option<Flush> {
        Some(self.journal.as_mut()?.start_flush())
    }
}

/// Blocks per operation between two digests, up to which each digest counts all of them: an operation
/// pays for no more than so many. Beyond it is noted which blocks change, which costs every operation
/// some 0.1 us.
const COUNTED_ANEW: usize = 4;

/// Whether it is noted which blocks have changed since a digest.
pub(crate) const fn notes_changes(num_blocks: usize, journal: JournalConfig) -> bool {
    journal.digest_every > 0 && num_blocks / COUNTED_ANEW > journal.digest_every as usize
}

/// The settings of a [`kvpool_vllm::Pool`].
#[derive(Clone, Debug)]
pub struct VllmConfig {
    /// Its blocks, the null block included.
    pub num_blocks: usize,
    /// Whether it keeps hashes.
    pub caching: bool,
    /// The order of eviction.
    pub policy: EvictionPolicy,
    /// Priorities, times to live, pins and tenants' limits, if it takes hints.
    pub retention: Option<RetentionConfig>,
}
