//! The hash algorithms, and the ways to verify a hit.
//!
//! An algorithm is a hash function *and* an encoding of its input. Two engines share blocks only if
//! both agree, so the pair has one name. This name is used in configuration files, events and the
//! published test vectors. The meaning of a name never changes: a new encoding gets a new name.

use std::fmt;
use std::str::FromStr;

use super::HashError;

/// A hash function together with the encoding of its input.
///
/// ```
/// use kvpool_hash::HashAlgorithm;
/// let algorithm: HashAlgorithm = "vllm-sha256-cbor".parse()?;
/// assert_eq!(algorithm, HashAlgorithm::VllmSha256Cbor);
/// assert_eq!(algorithm.digest_len(), 32);
/// assert!(!HashAlgorithm::Xxh3.is_cryptographic());
/// # Ok::<(), kvpool_hash::HashError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[non_exhaustive]
pub enum HashAlgorithm {
    /// SHA-256 over the native encoding. The default.
    #[default]
    Sha256,
    /// BLAKE3 over the native encoding. It runs in keyed mode if
    /// [`HasherConfig::key`](super::HasherConfig::key) is set.
    Blake3,
    /// XXH3-128 over the native encoding. The algorithm is not cryptographic, so hits have to be
    /// verified.
    Xxh3,
    /// vLLM's `sha256`: SHA-256 over pickle protocol 5.
    VllmSha256,
    /// vLLM's `sha256_cbor`: SHA-256 over canonical CBOR.
    VllmSha256Cbor,
    /// vLLM's `xxhash`: XXH3-128 over pickle protocol 5. The algorithm is not cryptographic.
    VllmXxhash,
    /// vLLM's `xxhash_cbor`: XXH3-128 over canonical CBOR. The algorithm is not cryptographic.
    VllmXxhashCbor,
}

impl HashAlgorithm {
    /// All algorithms, in the order in which the enum declares them.
    pub const ALL: &'static [Self] = &[
        Self::Sha256,
        Self::Blake3,
        Self::Xxh3,
        Self::VllmSha256,
        Self::VllmSha256Cbor,
        Self::VllmXxhash,
        Self::VllmXxhashCbor,
    ];

    /// The algorithm's name in configuration files, events and the published test vectors.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Blake3 => "blake3",
            Self::Xxh3 => "xxh3",
            Self::VllmSha256 => "vllm-sha256",
            Self::VllmSha256Cbor => "vllm-sha256-cbor",
            Self::VllmXxhash => "vllm-xxhash",
            Self::VllmXxhashCbor => "vllm-xxhash-cbor",
        }
    }

    /// The number of bytes of a digest: 16 or 32. In a [`BlockHash`](super::BlockHash), which always
    /// has 32 bytes, zeros follow the digest.
    #[inline]
    #[must_use]
    pub const fn digest_len(self) -> usize {
        match self {
            Self::Sha256 | Self::Blake3 | Self::VllmSha256 | Self::VllmSha256Cbor => 32,
            Self::Xxh3 | Self::VllmXxhash | Self::VllmXxhashCbor => 16,
        }
    }

    /// Whether it is infeasible to make two prefixes with the same digest. If false, every hit has to
    /// be verified.
    #[inline]
    #[must_use]
    pub const fn is_cryptographic(self) -> bool {
        match self {
            Self::Sha256 | Self::Blake3 | Self::VllmSha256 | Self::VllmSha256Cbor => true,
            Self::Xxh3 | Self::VllmXxhash | Self::VllmXxhashCbor => false,
        }
    }

    /// Whether the algorithm uses one of vLLM's encodings (pickle or CBOR).
    #[inline]
    #[must_use]
    pub const fn is_vllm(self) -> bool {
        match self {
            Self::Sha256 | Self::Blake3 | Self::Xxh3 => false,
            Self::VllmSha256 | Self::VllmSha256Cbor | Self::VllmXxhash | Self::VllmXxhashCbor => true,
        }
    }

    /// The cargo features that the algorithm needs, comma-separated, as an argument of `--features`.
    #[must_use]
    pub const fn features(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Blake3 => "blake3",
            Self::Xxh3 => "xxh3",
            Self::VllmSha256 | Self::VllmSha256Cbor => "vllm",
            Self::VllmXxhash | Self::VllmXxhashCbor => "vllm,xxh3",
        }
    }

    /// Whether this build can compute the algorithm's digests. If not,
    /// [`BlockHasher::new`](super::BlockHasher::new) returns [`HashError::NotCompiledIn`]. Chains of
    /// digests that were computed elsewhere are accepted in every build.
    #[must_use]
    pub const fn is_compiled_in(self) -> bool {
        match self {
            Self::Sha256 => true,
            Self::Blake3 => cfg!(feature = "blake3"),
            Self::Xxh3 => cfg!(feature = "xxh3"),
            Self::VllmSha256 | Self::VllmSha256Cbor => cfg!(feature = "vllm"),
            Self::VllmXxhash | Self::VllmXxhashCbor => cfg!(all(feature = "vllm", feature = "xxh3")),
        }
    }

    /// The names of all algorithms, separated by commas, for error messages.
    pub(crate) fn known_names() -> String {
        Self::ALL.iter().map(|a| a.name()).collect::<Vec<_>>().join(", ")
    }
}

impl fmt::Display for HashAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for HashAlgorithm {
    type Err = HashError;

    fn from_str(name: &str) -> Result<Self, HashError> {
        Self::ALL
            .iter()
            .copied()
            .find(|a| a.name() == name)
            .ok_or_else(|| HashError::UnknownAlgorithm { name: name.to_owned() })
    }
}

/// The ways to verify a hit of the prefix index before its blocks are used, ordered from weakest to
/// strongest.
///
/// ```
/// use kvpool_hash::Verify;
/// assert!(Verify::None < Verify::Fingerprint && Verify::Fingerprint < Verify::Tokens);
/// assert_eq!("tokens".parse(), Ok(Verify::Tokens));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[non_exhaustive]
pub enum Verify {
    /// A hit needs only an equal digest. This is enough for a cryptographic algorithm.
    #[default]
    None,
    /// A hit also needs an equal fingerprint, which is an independent keyed 128-bit hash of the whole
    /// prefix. This takes 16 bytes of memory per block.
    Fingerprint,
    /// A hit needs an equal fingerprint and equal tokens. This takes 16 bytes of memory per block and 4
    /// per token.
    Tokens,
}

impl Verify {
    /// All ways to verify a hit, weakest first.
    pub const ALL: &'static [Self] = &[Self::None, Self::Fingerprint, Self::Tokens];

    /// The name of this way to verify hits in configuration files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Fingerprint => "fingerprint",
            Self::Tokens => "tokens",
        }
    }
}

impl fmt::Display for Verify {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Verify {
    type Err = HashError;

    fn from_str(name: &str) -> Result<Self, HashError> {
        Self::ALL
            .iter()
            .copied()
            .find(|v| v.name() == name)
            .ok_or_else(|| HashError::UnknownVerify { name: name.to_owned() })
    }
}
