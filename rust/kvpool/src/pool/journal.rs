//! The journal of a [`BlockPool`]: which calls are written, and when.
//!
//! Every public call that changes anything runs inside [`BlockPool::recorded`]. None of them calls another, and the journal
//! stays in the pool meanwhile: a panic does not lose it. The pools of a manager have none: the manager writes what it was
//! asked.

use super::{BlockPool, PoolConfig};
use crate::error::PoolError;
use crate::hash::HashChain;
use crate::journal::{ChainRecord, Check, Journal, JournalHeader, Outcome, PoolOperation};

impl BlockPool {
    /// A new pool whose operations `journal` records: see [`crate::journal`].
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_journal(config: PoolConfig, mut journal: Journal) -> Result<Self, PoolError> {
        let header = JournalHeader::of_pool(&config, journal.config());
        let mut pool = Self::new(config)?;
        journal.begin(&header);
        pool.journal = Some(Box::new(journal));
        Ok(pool)
    }

    /// The journal, if there is one: how long it is, and whether it stopped.
    #[must_use]
    pub fn journal(&self) -> Option<&Journal> {
        self.journal.as_deref()
    }

    /// Ends the journal and hands it over.
    pub fn take_journal(&mut self) -> Option<Journal> {
        self.journal.take().map(|journal| *journal)
    }

    /// What the journal holds, if it is a ring: flushed, as the bytes of a file.
    pub fn journal_image(&mut self) -> Option<Vec<u8>> {
        self.journal.as_mut()?.image()
    }

    /// Writes what the journal has collected: what a crash would lose.
    pub fn flush_journal(&mut self) {
        if let Some(journal) = &mut self.journal {
            journal.flush();
        }
    }

    /// Runs an operation, and writes it and the check of its result. `operation` is asked afterwards.
    pub(super) fn recorded<T: Outcome>(
        &mut self,
        operation: impl FnOnce(&Self, &mut Journal, &Result<T, PoolError>) -> PoolOperation,
        run: impl FnOnce(&mut Self) -> Result<T, PoolError>,
    ) -> Result<T, PoolError> {
        let result = run(self);
        let Some(mut journal) = self.journal.take() else { return result };
        let operation = operation(self, &mut journal, &result);
        self.note(journal, &operation, Check::of(&result));
        result
    }

    /// Writes an operation that has run, and takes the journal back.
    pub(super) fn note(&mut self, mut journal: Box<Journal>, operation: &PoolOperation, check: u32) {
        journal.record(operation, check);
        if self.poison.get().is_some() {
            journal.flush();
        }
        self.journal = Some(journal);
    }

    /// What is written of a chain. Of its first `indexed` blocks the last, if it is in the index now, was recorded before.
    pub(super) fn chain_record(
        &self,
        journal: &mut Journal,
        chain: &HashChain,
        indexed: usize,
    ) -> ChainRecord {
        let is_indexed =
            indexed.checked_sub(1).is_some_and(|last| self.index.is_registered(&self.records, chain, last));
        let tokens = chain.len().saturating_mul(chain.block_size());
        journal.chain(chain, tokens, if is_indexed { indexed } else { 0 })
    }
}
