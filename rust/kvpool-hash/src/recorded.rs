//! Digests of a recorded run, looked up instead of computed.
//!
//! A journal holds no tokens: of a block it holds the first eight bytes of its digest, and of its
//! fingerprint where hits are verified. A replay makes up a prompt whose blocks end in a token that
//! names an entry here, so cursors, chains and the index do what they did, with the digests that they
//! had.

use std::sync::{Arc, PoisonError, RwLock};

use super::{BlockHash, ChainState, Fingerprint};

/// The table of a replay, shared with its [`super::BlockHasher`].
#[derive(Clone, Debug, Default)]
pub struct RecordedHashes(Arc<RwLock<Vec<(u64, u64)>>>);

impl RecordedHashes {
    /// Notes a digest and a fingerprint, by their first eight bytes, and returns the token that names
    /// them; `None` once all 2^32 are taken.
    #[must_use]
    pub fn push(&self, key: u64, fingerprint: u64) -> Option<u32> {
        let mut table = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let token = u32::try_from(table.len()).ok()?;
        table.push((key, fingerprint));
        Some(token)
    }

    /// Gives a token another digest: the same tokens in another epoch. False for a token that names nothing.
    #[must_use]
    pub fn replace(&self, token: u32, key: u64, fingerprint: u64) -> bool {
        let mut table = self.0.write().unwrap_or_else(PoisonError::into_inner);
        table.get_mut(token as usize).is_some_and(|entry| {
            *entry = (key, fingerprint);
            true
        })
    }

    /// Forgets all digests: tokens begin anew.
    pub fn clear(&self) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Vec::new();
    }

    /// What a block that ends in `token` hashes to; all zeros for a token that names nothing.
    pub(super) fn state(&self, token: Option<u32>) -> ChainState {
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let entry = token.and_then(|token| table.get(token as usize)).copied();
        let (key, fingerprint) = entry.unwrap_or_default();
        ChainState::new(BlockHash::from_key(key), Fingerprint::from(fingerprint))
    }
}
