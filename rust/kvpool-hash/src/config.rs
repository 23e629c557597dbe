//! The configuration of a hasher.
//!
//! A digest depends only on the configuration and on the request, because the hasher reads no
//! environment variable and draws no random number. So the same configuration gives the same digests in
//! every process. `Debug` hides the key and the seed, because configurations are often logged.

use std::fmt;

use super::{HashAlgorithm, HashError, Verify};

/// The largest block size, in tokens. The native encoding stores the number of tokens of a block in 32
/// bits.
pub const MAX_BLOCK_SIZE: usize = u32::MAX as usize;

/// Formats an optional secret for logs. The output shows whether the secret is set, but not its value.
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
    /// How hits are verified. This setting also determines whether fingerprints are computed. Default:
    /// [`Verify::None`].
    pub verify: Verify,
    /// A secret key, used by BLAKE3 in keyed mode and by fingerprints. A key is refused if the
    /// configuration uses neither.
    pub key: Option<[u8; 32]>,
    /// A seed that must be the same in all processes that share blocks.
    ///
    /// For vLLM's encodings it is the value of `PYTHONHASHSEED`, from which vLLM computes the digest of
    /// the empty prefix. It is also the seed of [`HashAlgorithm::Xxh3`], and one of the inputs of the
    /// key of fingerprints, for which it must be secret. SHA-256 and BLAKE3 digests over the native
    /// encoding do not depend on it.
    pub seed: Option<String>,
}

impl Default for HasherConfig {
    fn default() -> Self {
        Self { algorithm: HashAlgorithm::Sha256, block_size: 16, verify: Verify::None, key: None, seed: None }
    }
}

impl HasherConfig {
    /// Checks that the block size is valid, and that a configured key is used.
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
