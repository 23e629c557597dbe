//! [`Journaled`]: a pool or a manager, together with the journal of its calls.
//!
//! Owns: the subject (the pool or manager), its journal, and the calls that change the subject
//! ([`crate::PoolCalls`], [`crate::ManagerCalls`], [`crate::VllmCalls`]). The subject does not depend
//! on the journal.
//!
//! Invariants:
//! - Running the recorded calls on a new subject leads to the subject's present state, because every
//!   call is recorded here in order.
//! - The journal is stored here while an operation runs. If the operation panics, for example in a
//!   caller's own policy, only that operation is lost.
//! - After an operation that detects a broken invariant, and after every later refusal, all collected
//!   bytes are written.
//!
//! Costs: without a journal, a branch per operation. With a journal, the record, the check of the
//! answer, and a digest of the state every [`JournalConfig::digest_every`] operations.

use std::fmt;
use std::ops::Deref;

use crate::{Check, Flush, Journal, JournalConfig, JournalHeader, Outcome};
use kvpool::retention::RetentionConfig;
use kvpool::{
    BlockPool, CacheManager, EvictionPolicy, ManagerError, PoolError, PoolImage, Restored, SavedBlock,
};
use serde::Serialize;

/// A pool or manager whose calls can be recorded. It is called the *subject*.
pub trait Recordable: Sized {
    /// Settings with which the pool or manager is created.
    type Config;
    /// Settings of the observers of the pool or manager.
    type Watch: Default;
    /// The error that [`Self::create`] returns for invalid settings.
    type Error;
    /// The record of one call of the pool or manager.
    type Record: Serialize;
    /// The state with which a replay reconstructs arguments from their records, such as the tokens of
    /// prompts.
    type Memory;

    /// Creates a pool or manager. If its state is too large to be read completely for each digest of
    /// the journal, it keeps a digest that it updates at every change.
    ///
    /// # Errors
    /// The error of the pool or manager for its settings.
    fn create(config: Self::Config, watch: &Self::Watch, journal: JournalConfig)
    -> Result<Self, Self::Error>;

    /// Returns the header of a journal of a pool or manager with these settings.
    fn header(config: &Self::Config, watch: &Self::Watch, journal: JournalConfig) -> JournalHeader;

    /// Returns the digest of the state, if this kind of pool supports digests.
    fn digest(&mut self) -> Option<u64>;

    /// Returns whether the pool or manager refuses work because it has detected a broken invariant.
    fn is_poisoned(&self) -> bool;
}

/// The type of the record of a call of `S`, which is a pool or manager.
type RecordOf<S> = <S as Recordable>::Record;

/// Runs calls of a pool or manager, and records them if there is a journal.
pub trait Recording {
    /// The type of the pool or manager whose calls are recorded.
    type Subject: Recordable;

    /// Runs a call with `run`. If there is a journal, `before` collects data before the call runs, and
    /// `after` makes the record after it. If `after` returns `None`, nothing is recorded.
    fn call<B, A: Outcome>(
        &mut self,
        before: impl FnOnce(&Self::Subject, &mut Journal) -> B,
        run: impl FnOnce(&mut Self::Subject) -> A,
        after: impl FnOnce(B, &Self::Subject, &mut Journal, &A) -> Option<RecordOf<Self::Subject>>,
    ) -> A;
}

/// A pool or a manager, with or without a journal. Methods that only read are those of the pool or
/// manager itself ([`Deref`]). Methods that change it are those of [`crate::PoolCalls`],
/// [`crate::ManagerCalls`] or [`crate::VllmCalls`].
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
    /// Wraps a pool or manager, without a journal.
    fn from(subject: S) -> Self {
        Self { subject, journal: None }
    }
}

impl<S: Recordable> Journaled<S> {
    /// Creates a pool or manager whose operations `journal` records.
    ///
    /// # Errors
    /// The error of the pool or manager for its settings.
    pub fn with_journal(config: S::Config, journal: Journal) -> Result<Self, S::Error> {
        Self::with_watch(config, &S::Watch::default(), journal)
    }

    /// Creates a pool or manager with observers, whose operations `journal` records. The header of the
    /// journal contains the settings of the observers, because their answers are recorded.
    ///
    /// # Errors
    /// The error of the pool or manager for its settings.
    pub fn with_watch(config: S::Config, watch: &S::Watch, journal: Journal) -> Result<Self, S::Error> {
        let header = S::header(&config, watch, journal.config());
        let subject = S::create(config, watch, journal.config())?;
        Ok(Self::begin(subject, &header, journal))
    }

    /// Wraps a new pool or manager that the caller has created. Replays use this to record themselves.
    pub(crate) fn begin(subject: S, header: &JournalHeader, mut journal: Journal) -> Self {
        journal.begin(header);
        Self { subject, journal: Some(Box::new(journal)) }
    }

    /// Collects data before a call runs, if there is a journal.
    #[inline]
    pub(crate) fn before<T>(&mut self, take: impl FnOnce(&S, &mut Journal) -> T) -> Option<T> {
        self.journal.as_deref_mut().map(|journal| take(&self.subject, journal))
    }

    /// Like [`Recording::call`], but `write` writes the record and the check of the answer to the
    /// journal, and returns whether a digest of the state is due.
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

    /// Ends a recorded call: writes a digest if it is due, and flushes the journal if the pool or
    /// manager is poisoned (it has detected a broken invariant).
    fn finish(subject: &mut S, journal: &mut Journal, digest_is_due: bool) {
        if digest_is_due && let Some(digest) = subject.digest() {
            journal.digest(digest);
        }
        if subject.is_poisoned() {
            journal.flush();
        }
    }

    /// Runs an operation without recording it, such as a step of a scrubber, a digest of the state, or
    /// the calls of a feed (`keep_feed`, `take_feed`). There is no other mutable access to the pool or
    /// manager. The operation must not change later answers: a replay does not run it, so its answers
    /// would differ.
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
    /// Calls [`BlockPool::restore`], which a journal does not record.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there is a journal, because a replay would not begin with the
    /// restored blocks. The errors of [`BlockPool::restore`].
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
    /// Calls [`CacheManager::restore`], which a journal does not record.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there is a journal, because a replay would not begin with the
    /// restored blocks. The errors of [`CacheManager::restore`].
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

    /// Returns the journal, if there is one. Use it to read its length and its error.
    #[must_use]
    pub fn journal(&self) -> Option<&Journal> {
        self.journal.as_deref()
    }

    /// Ends the journal and returns it. Later operations are not recorded.
    pub fn take_journal(&mut self) -> Option<Journal> {
        self.journal.take().map(|journal| *journal)
    }

    /// Flushes the journal. Returns the content of a ring as the bytes of a file.
    pub fn journal_image(&mut self) -> Option<Vec<u8>> {
        self.journal.as_mut()?.image()
    }

    /// Writes the collected bytes, and waits until they are written. A crash would lose bytes that are
    /// not written.
    pub fn flush_journal(&mut self) {
        if let Some(flush) = self.start_flush() {
            flush.wait();
        }
    }

    /// Starts to write the collected bytes. The returned object waits without access to the pool or
    /// manager, so the caller can release a lock of it first. `None` without a journal.
    pub fn start_flush(&mut self) -> Option<Flush> {
        Some(self.journal.as_mut()?.start_flush())
    }
}

/// Limit for the number of blocks divided by the number of operations between two digests. Up to this
/// limit, each digest reads all blocks. A larger pool records which blocks change, which costs about
/// 0.1 us per operation.
const RECOUNT_LIMIT: usize = 4;

/// Returns whether a pool of this size records which blocks have changed since the last digest.
pub(crate) const fn tracks_changes(num_blocks: usize, journal: JournalConfig) -> bool {
    journal.digest_every > 0 && num_blocks / RECOUNT_LIMIT > journal.digest_every as usize
}

/// Settings of a [`kvpool_vllm::Pool`].
#[derive(Clone, Debug)]
pub struct VllmConfig {
    /// Number of blocks of the pool, including the null block.
    pub num_blocks: usize,
    /// Whether blocks keep their hashes, as with prefix caching.
    pub caching: bool,
    /// The policy that determines the order of eviction.
    pub policy: EvictionPolicy,
    /// Pin budget and limits of tenants. `None` if the pool does not accept retention hints
    /// (priorities, times to live, pins).
    pub retention: Option<RetentionConfig>,
}
