//! The journal of a [`Pool`]: every call that changes it, as plain data.
//!
//! The format is that of [`kvpool_record`]; keys are in it whole, since the same key has to lead to the same block. No digest
//! of the state is written: each operation has the check of its answer, and the order of reuse shows in every allocation.

use kvpool::{EvictionPolicy, PoolError};
use kvpool_record::{Check, Journal, JournalHeader, Outcome};
use serde::de::{Deserialize, Deserializer, Error};
use serde::{Serialize, Serializer};

use crate::error::VllmError;
use crate::key::Key;
use crate::pool::{Pool, Removed};

/// A call of a [`Pool`]. The order of variants is the format: new ones go to the end.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[expect(missing_docs, reason = "the fields are the arguments of the calls named")]
pub enum VllmOperation {
    /// [`Pool::allocate`]
    Allocate { blocks: usize },
    /// [`Pool::claim`]
    Claim { blocks: Vec<u32> },
    /// [`Pool::touch`]
    Touch { blocks: Vec<u32> },
    /// [`Pool::free`]
    Free { blocks: Vec<u32> },
    /// [`Pool::unpin`]
    Unpin { blocks: Vec<u32> },
    /// [`Pool::insert_hash_behind`]
    InsertHash { key: Key, block: u32, num_tokens: Option<u32>, depth: u32, parent: Option<Key> },
    /// [`Pool::cache_full`]
    CacheFull {
        first: usize,
        before: Option<u32>,
        blocks: Vec<u32>,
        keys: Vec<Option<Key>>,
        block_size: usize,
    },
    /// [`Pool::insert_in_index`]
    InsertInIndex { key: Key, block: u32 },
    /// [`Pool::remove_from_index`]
    RemoveFromIndex { key: Key, block: u32 },
    /// [`Pool::clear_index`]
    ClearIndex,
    /// [`Pool::remove_hashes`]
    RemoveHashes { block: u32 },
    /// [`Pool::move_hashes`]
    MoveHashes { from: u32, to: u32 },
    /// [`Pool::evict`]
    Evict { block: u32, reuse_first: bool },
    /// [`Pool::reset`]
    Reset,
    /// [`Pool::set_ref_count`]
    SetRefCount { block: u32, count: i32 },
    /// [`Pool::set_hash`]
    SetHash { block: u32, key: Key, num_tokens: Option<u32> },
    /// [`Pool::reset_hash`]
    ResetHash { block: u32 },
    /// [`Pool::chain_group`]
    ChainGroup { group: u32 },
    /// [`Pool::pop_from_queue`]
    QueuePop { blocks: usize },
    /// [`Pool::remove_from_queue`]
    QueueRemove { block: u32 },
    /// [`Pool::push_to_queue`]
    QueuePush { blocks: Vec<u32>, front: bool },
}

impl Pool {
    /// As [`Self::with_policy`], with a journal of what it is asked.
    ///
    /// # Errors
    /// As [`Self::with_policy`].
    pub fn with_journal(
        num_blocks: usize,
        caching: bool,
        policy: EvictionPolicy,
        mut journal: Journal,
    ) -> Result<Self, VllmError> {
        let mut pool = Self::with_policy(num_blocks, caching, policy)?;
        journal.begin(&JournalHeader::of_vllm_pool(num_blocks, policy, caching, journal.config()));
        pool.journal = Some(Box::new(journal));
        Ok(pool)
    }

    /// The journal, if there is one.
    #[must_use]
    pub fn journal(&self) -> Option<&Journal> {
        self.journal.as_deref()
    }

    /// Ends the journal and hands it over.
    pub fn take_journal(&mut self) -> Option<Journal> {
        self.journal.take().map(|journal| *journal)
    }

    /// Writes what the journal has collected; of a ring, all that it holds is the answer.
    pub fn flush_journal(&mut self) -> Option<Vec<u8>> {
        self.journal.as_mut().and_then(|journal| journal.image())
    }

    /// Runs an operation and writes it; calls that it makes are not written again.
    pub(crate) fn recorded<T: Outcome>(
        &mut self,
        operation: impl FnOnce(&Self) -> VllmOperation,
        run: impl FnOnce(&mut Self) -> T,
    ) -> T {
        let Some(journal) = self.journal.take() else { return run(self) };
        let operation = operation(self);
        let answer = run(self);
        self.note(journal, &operation, Check::of(&answer));
        answer
    }

    /// Writes an operation that has run, and takes the journal back.
    pub(crate) fn note(&mut self, mut journal: Box<Journal>, operation: &VllmOperation, check: u32) {
        let _no_digests = journal.record(operation, check);
        self.journal = Some(journal);
    }
}

/// Block ids as an answer.
pub(crate) struct Told<T>(pub(crate) T);

impl<T: AsRef<[u32]>> Outcome for Told<T> {
    fn add_to(&self, check: &mut Check) {
        self.0.as_ref().iter().for_each(|&block| check.add(block.into()));
    }
}

impl Outcome for Removed {
    fn add_to(&self, check: &mut Check) {
        check.add(u64::from(self.block) << 1 | u64::from(self.last_copy));
        check.add(self.key.content());
    }
}

// Errors by kind. The numbers are part of the format: new kinds get new ones.
impl Outcome for VllmError {
    fn add_to(&self, check: &mut Check) {
        check.add(match self {
            Self::OutOfBlocks { wanted, .. } => (*wanted as u64) << 16 | 501,
            Self::NotHeld { .. } => 502,
            Self::UnknownBlock { .. } => 503,
            Self::AlreadyCached { .. } => 504,
            Self::KeyTooLong { .. } => 505,
            Self::Pool(PoolError::Poisoned { .. }) => 506,
            Self::Pool(_) => 507,
        });
    }
}

impl Serialize for Key {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.as_bytes())
    }
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = serde_bytes::ByteBuf::deserialize(deserializer)?;
        Self::from_bytes(&bytes).map_err(D::Error::custom)
    }
}
