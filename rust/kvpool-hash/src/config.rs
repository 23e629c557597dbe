//! The configuration of a hasher.
//!
//! The configuration contains all inputs that determine a digest, apart from the request itself.
//! Nothing is read from the environment, and nothing is random. So the same configuration gives the
//! same digests in every process. `Debug` hides the key and the seed, because configurations are often
//! logged.

use std::fmt;

use super::{HashAlgorithm, HashError, Verify};

/// The maximum block size: the native encoding has 32 bits for the number of tokens of a block.
pub const MAX_BLOCK_SIZE: usize = u32::MAX as usize;

/// Formats an optional secret: shows whether it is set, but not its value.
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
    /// The hash function and encoding. Default: SHA-256 over the native encoding.
    pub algorithm: HashAlgorithm,
    /// The block size in tokens, 1 or more. Default: 16.
    pub block_size: usize,
    /// How hits are verified, which determines whether fingerprints are computed. Default:
    /// [`Verify::None`].
    pub verify: Verify,
    /// A secret key, for BLAKE3 in keyed mode and for fingerprints. Refused if neither is used.
    pub key: Option<[u8; 32]>,
    /// A seed that must be the same in all processes that share blocks. For vLLM's encodings it is the
    /// value of `PYTHONHASHSEED` (the text of the root digest). It also seeds [`HashAlgorithm::Xxh3`]
    /// and the key of the fingerprints, and must be secret for fingerprints. SHA-256 and BLAKE3 digests
    /// over the native encoding do not depend on it.
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
