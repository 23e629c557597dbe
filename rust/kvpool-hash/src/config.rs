//! What a hasher is made of.
//!
//! All inputs that decide a digest, apart from the request itself, are stated here: nothing is read from the
//! environment and nothing is random, so the same configuration gives the same digests in every process.
//! `Debug` hides the key and the seed, because configurations get logged.

use std::fmt;

use super::{HashAlgorithm, HashError, Verify};

/// The largest block size: the token count of a block is 32 bits in the native encoding.
pub const MAX_BLOCK_SIZE: usize = u32::MAX as usize;

/// Says that there is a value without saying which.
pub(crate) fn hidden<T>(value: Option<&T>) -> impl fmt::Debug {
    value.map(|_| format_args!("hidden"))
}

/// Configuration of a [`BlockHasher`](super::BlockHasher).
///
/// ```
/// use kvpool_hash::{HashAlgorithm, HasherConfig};
/// let algorithm = HashAlgorithm::Blake3;
/// let config = HasherConfig { algorithm, key: Some([7; 32]), ..HasherConfig::default() };
/// assert_eq!(config.block_size, 16);
/// assert!(!format!("{config:?}").contains("7, 7"));
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct HasherConfig {
    /// Hash function and encoding. Default: SHA-256 over the native encoding.
    pub algorithm: HashAlgorithm,
    /// Tokens per block, 1 or more. Default: 16.
    pub block_size: usize,
    /// How hits are verified; decides whether fingerprints are computed. Default: [`Verify::None`].
    pub verify: Verify,
    /// Secret key: BLAKE3 in keyed mode, and the key of the fingerprints. Refused where neither is used.
    pub key: Option<[u8; 32]>,
    /// Shared by all processes that share blocks. For vLLM's encodings what `PYTHONHASHSEED` is there (the
    /// text of the root digest); it also seeds [`HashAlgorithm::Xxh3`] and the key of the fingerprints, for
    /// which it must be secret. SHA-256 and BLAKE3 digests over the native encoding do not depend on it.
    pub seed: Option<String>,
}

impl Default for HasherConfig {
    fn default() -> Self {
        Self { algorithm: HashAlgorithm::Sha256, block_size: 16, verify: Verify::None, key: None, seed: None }
    }
}

impl HasherConfig {
    /// Checks the fields against each other.
    pub(crate) fn check(&self) -> Result<(), HashError> {
        if self.block_size == 0 || self.block_size > MAX_BLOCK_SIZE {
            return Err(HashError::BlockSize { block_size: self.block_size, max: MAX_BLOCK_SIZE });
        }
        if self.key.is_some() && self.algorithm != HashAlgorithm::Blake3 && self.verify < Verify::Fingerprint
        {
            return Err(HashError::KeyNotSupported {
                algorithm: self.algorithm,
                supported: HashAlgorithm::Blake3,
            });
        }
        Ok(())
    }
}

impl fmt::Debug for HasherConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HasherConfig")
            .field("algorithm", &self.algorithm)
            .field("block_size", &self.block_size)
            .field("verify", &self.verify)
            .field("key", &hidden(self.key.as_ref()))
            .field("seed", &hidden(self.seed.as_ref()))
            .finish()
    }
}
