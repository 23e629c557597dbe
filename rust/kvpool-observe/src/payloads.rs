//! Payloads: user data that a caller attaches to the content of a block. The pool keeps a payload until
//! the content leaves the block, and then returns it to the caller.
//!
//! A payload is the caller's own data, for example a node of its tree or an address in another store.
//! The pool never reads it, and no result of a pool depends on it, so payloads are not part of digests
//! or journals. A payload belongs to one block: if the content is copied or swapped to another block,
//! it has no payload there.
//!
//! The number of payloads is bounded, and no payload is lost. Payloads of evicted contents wait until
//! the caller [takes](crate::PoolWatch::take_evicted) them. If the number of waiting payloads reaches
//! the number of blocks of the pool, no more payloads can be [set](crate::PoolWatch::set_payloads). So
//! there are never more than two payloads per block.
//!
//! Costs: about 90 bytes per block with a payload, plus the bytes of [`Payload::Bytes`]. For each
//! content that leaves its block, there is one lookup in a map.

use std::collections::HashMap;

use kvpool::observe::Blocks;
use kvpool::{BlockHash, BlockId, HashAlgorithm, InvariantViolation, PoolError};

/// User data that is attached to a content.
///
/// ```
/// use kvpool_observe::Payload;
/// assert_ne!(Payload::Number(7), Payload::Bytes((*b"node 7").into()));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Payload {
    /// A number, such as an index or an address of the caller.
    Number(u64),
    /// Bytes of the caller, of any length.
    Bytes(Box<[u8]>),
}

/// A content that left its block, with its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evicted {
    /// The block that held the content.
    pub block: BlockId,
    /// Its hash.
    pub hash: BlockHash,
    /// The algorithm of the hash, which determines how many of its bytes are used.
    pub algorithm: Option<HashAlgorithm>,
    /// The payload that was attached to the content.
    pub payload: Payload,
}

/// The reason why payloads were not set. If a call returns an error, it has set no payload.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PayloadError {
    /// The pool keeps no payloads, because [`WatchConfig::payloads`](crate::WatchConfig::payloads) is
    /// not set.
    #[error("this pool keeps no payloads: make it with payloads to set some")]
    NotKept,
    /// The number of payloads differs from the number of blocks.
    #[error("{payloads} payloads for {blocks} blocks: the numbers must be equal")]
    Lengths {
        /// The number of blocks that the caller passed.
        blocks: usize,
        /// The number of payloads that the caller passed.
        payloads: usize,
    },
    /// One of the blocks has no content to attach a payload to.
    #[error("block {block} is not registered: no payload can be attached (position {position} of this call)")]
    NotRegistered {
        /// The block.
        block: BlockId,
        /// The position of this block in the list that was passed.
        position: usize,
    },
    /// Too many payloads of evicted contents wait for the caller to take them.
    #[error("{waiting} payloads of evicted contents wait, the limit is {most}: take them first")]
    NotTaken {
        /// The number of payloads that wait for the caller to take them.
        waiting: usize,
        /// The maximum number of waiting payloads, which is the number of blocks of the pool.
        most: usize,
    },
    /// The pool refused the call with this error.
    #[error(transparent)]
    Pool(#[from] PoolError),
}

/// The payloads of a pool's contents, and those that wait to be taken.
#[derive(Debug, Default)]
pub(crate) struct Payloads {
    kept: HashMap<BlockId, Evicted>,
    waiting: Vec<Evicted>,
}

impl Payloads {
    pub(crate) fn set(
        &mut self,
        named: &[BlockId],
        payloads: Vec<Payload>,
        algorithm: Option<HashAlgorithm>,
        blocks: Blocks<'_>,
    ) -> Result<(), PayloadError> {
        if named.len() != payloads.len() {
            return Err(PayloadError::Lengths { blocks: named.len(), payloads: payloads.len() });
        }
        let (waiting, most) = (self.waiting.len(), blocks.len());
        if waiting >= most {
            return Err(PayloadError::NotTaken { waiting, most });
        }
        let hash = |(position, &block)| {
            let content = blocks.get(block).content;
            content.map(|content| content.hash).ok_or(PayloadError::NotRegistered { block, position })
        };
        let hashes = named.iter().enumerate().map(hash).collect::<Result<Vec<_>, _>>()?;
        for ((&block, hash), payload) in named.iter().zip(hashes).zip(payloads) {
            self.kept.insert(block, Evicted { block, hash, algorithm, payload });
        }
        Ok(())
    }

    pub(crate) fn removed(&mut self, block: BlockId) {
        self.waiting.extend(self.kept.remove(&block));
    }

    /// Moves all payloads to the list of those that wait for the caller, because all contents were
    /// removed.
    pub(crate) fn cleared(&mut self) {
        let first = self.waiting.len();
        self.waiting.extend(self.kept.drain().map(|(_, gone)| gone));
        // Sort the payloads, so that their order is the same on any host.
        self.waiting[first..].sort_unstable_by_key(|gone| gone.block);
    }

    pub(crate) fn take(&mut self) -> Vec<Evicted> {
        std::mem::take(&mut self.waiting)
    }

    /// Checks X4: each payload belongs to the current content of its block. O(payloads).
    pub(crate) fn check(&self, blocks: Blocks<'_>) -> Result<(), InvariantViolation> {
        let hash = |block| blocks.get(block).content.map(|content| content.hash);
        let wrong = self.kept.values().filter(|kept| hash(kept.block) != Some(kept.hash));
        wrong.min_by_key(|kept| kept.block).map_or(Ok(()), |kept| {
            let detail = format!("{:?} holds {:?}, not {:?}", kept.block, hash(kept.block), kept.hash);
            Err(InvariantViolation::new("X4 (a payload belongs to the content of its block)", detail))
        })
    }
}
