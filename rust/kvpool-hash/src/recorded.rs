//! Digests of a recorded run, which a replay looks up instead of computing them.
//!
//! A journal contains no tokens. For each block, it contains only the first eight bytes of the digest
//! and, if hits are verified, of the fingerprint. A replay therefore invents prompts: the last token of
//! each block is the index of the block's entry in a table of digests. With the recorded digests,
//! cursors, chains and the index then work as in the recorded run.

use std::sync::{Arc, PoisonError, RwLock};

use super::{BlockHash, ChainState, Fingerprint};

/// The table of digests of a replay. Its clones share one table, and one of them is in the
/// [`super::BlockHasher`].
///
/// ```
/// use kvpool_hash::{BlockHasher, ExtraKeys, HashCursor, HasherConfig, RecordedHashes};
/// let recorded = RecordedHashes::default();
/// let token = recorded.push(0x1234, 0).unwrap();
/// let config = HasherConfig { block_size: 2, ..HasherConfig::default() };
/// let hasher = BlockHasher::recorded(config, recorded)?;
/// let mut prompt = HashCursor::new(hasher.into(), ExtraKeys::default())?;
/// prompt.append(&[0, token]);
/// assert_eq!(prompt.chain().hashes()[0].key(), 0x1234);
/// # Ok::<(), kvpool_hash::HashError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct RecordedHashes(Arc<RwLock<Vec<(u64, u64)>>>);

impl RecordedHashes {
    /// Adds an entry with the first eight bytes of a digest and of a fingerprint, and returns the token
    /// that refers to the entry. Returns `None` once all 2^32 tokens are used.
    #[must_use]
    pub fn push(&self, key: u64, fingerprint: u64) -> Option<u32> {
        let mut table = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let token = u32::try_from(table.len()).ok()?;
        table.push((key, fingerprint));
        Some(token)
    }

    /// Replaces the entry that a token refers to, for example if the same tokens are hashed for another
    /// epoch. Returns false if the token has no entry.
    #[must_use]
    pub fn replace(&self, token: u32, key: u64, fingerprint: u64) -> bool {
        let mut table = self.0.write().unwrap_or_else(PoisonError::into_inner);
        table.get_mut(token as usize).is_some_and(|entry| {
            *entry = (key, fingerprint);
            true
        })
    }

    /// Removes all entries. The next entry gets token 0 again.
    pub fn clear(&self) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Vec::new();
    }

    /// Returns the digest and the fingerprint for a block whose last token is `token`. They are 0 if
    /// the token has no entry.
    pub(super) fn state(&self, token: Option<u32>) -> ChainState {
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let entry = token.and_then(|token| table.get(token as usize)).copied();
        let (key, fingerprint) = entry.unwrap_or_default();
        ChainState::new(BlockHash::from_key(key), Fingerprint::from(fingerprint))
    }
}
