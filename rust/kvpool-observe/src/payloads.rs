//! Payloads: what a caller hangs on the content of a block, kept until the content leaves the block,
//! and handed out then.
//!
//! Owns: which content has which payload. A payload is the caller's own, a node of its tree or an
//! address in another store; nothing here looks at it, and no answer of a pool depends on it, so it is
//! in no digest and in no journal. It stays with the block: content that is copied or swapped to
//! another one has none there.
//!
//! Bounded, and none is lost: as long as as many wait to be [taken](crate::PoolWatch::take_evicted) as
//! the pool has blocks, no further ones can be [set](crate::PoolWatch::set_payloads). So there are
//! never more than two per block.
//!
//! Costs: some 90 bytes per block that has one, and the bytes of those that are bytes; a look into a
//! map per content that leaves.

use std::collections::HashMap;

use kvpool::observe::Blocks;
use kvpool::{BlockHash, BlockId, HashAlgorithm, InvariantViolation, PoolError};

/// What hangs on a content.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Payload {
    /// A number, such as an index or an address.
    Number(u64),
    /// Bytes of any length.
    Bytes(Box<[u8]>),
}

/// A content that left its block, and what hung on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evicted {
    /// The block that held it.
    pub block: BlockId,
    /// Its hash.
    pub hash: BlockHash,
    /// The algorithm of the hash, which says how many of its bytes count.
    pub algorithm: Option<HashAlgorithm>,
    /// What hung on it.
    pub payload: Payload,
}

/// Why payloads were not set; none was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PayloadError {
    /// A pool that keeps none.
    #[error("this pool keeps no payloads: make it with payloads to set some")]
    NotKept,
    /// Not one for each block.
    #[error("{payloads} payloads for {blocks} blocks: must be as many")]
    Lengths {
        /// Blocks.
        blocks: usize,
        /// Payloads.
        payloads: usize,
    },
    /// A block without a content.
    #[error("block {block} is not registered: no payload can hang on it (position {position} of this call)")]
    NotRegistered {
        /// The block.
        block: BlockId,
        /// Its position in the call.
        position: usize,
    },
    /// Too many were not taken.
    #[error("{waiting} payloads of evicted contents wait, {most} may: take them first")]
    NotTaken {
        /// Payloads that wait.
        waiting: usize,
        /// So many may: the blocks of the pool.
        most: usize,
    },
    /// The pool refuses work.
    #[error(transparent)]
    Pool(#[from] PoolError),
}

/// The payloads of a pool.
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

    /// All contents are gone.
    pub(crate) fn cleared(&mut self) {
        let first = self.waiting.len();
        self.waiting.extend(self.kept.drain().map(|(_, gone)| gone));
        // The same on any host.
        self.waiting[first..].sort_unstable_by_key(|gone| gone.block);
    }

    pub(crate) fn take(&mut self) -> Vec<Evicted> {
        std::mem::take(&mut self.waiting)
    }

    /// X4: a payload hangs on the content that its block has. O(payloads).
    pub(crate) fn check(&self, blocks: Blocks<'_>) -> Result<(), InvariantViolation> {
        let hash = |block| blocks.get(block).content.map(|content| content.hash);
        let wrong = self.kept.values().filter(|kept| hash(kept.block) != Some(kept.hash));
        wrong.min_by_key(|kept| kept.block).map_or(Ok(()), |kept| {
            let detail = format!("{:?} holds {:?}, not {:?}", kept.block, hash(kept.block), kept.hash);
            Err(InvariantViolation::new("X4 (a payload hangs on the content of its block)", detail))
        })
    }
}
