//! `Namespace`: everything that KV bytes depend on besides the tokens. Two stores share objects exactly
//! if their namespaces are equal.
//!
//! Owns: the fields and their digest, which every object contains. If a property is missing here, it
//! can change without notice. An engine would then read the bytes of another model, the heads of
//! another rank, or the same numbers in another order. Therefore all fields are required, and `extra`
//! holds further properties of an engine.
//!
//! The digest is the SHA-256 of a domain string, [`FORMAT_VERSION`], and all fields as JSON in the
//! order of the struct and without blanks. Two different namespaces therefore never have the same text.
//! Back ends store the text, so that `kvpool store show` can display the namespace of stored objects.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Version of the byte layout. The store does not read objects of another version.
pub const FORMAT_VERSION: u32 = 1;

/// Everything that the bytes of an object depend on, besides its tokens.
///
/// ```
/// use kvpool_store::{Layout, Namespace, Span};
/// let namespace = Namespace {
///     model: "llama-3-8b".into(),
///     weights: "rev-5f0b02c".into(),
///     kv_dtype: "fp8_e4m3".into(),
///     scales: "per-tensor:9b1c".into(),
///     layouts: vec![Layout {
///         group: 0,
///         order: "LKNHD".into(),
///         shape: vec![32, 2, 16, 8, 128],
///         strides: vec![32768, 16384, 1024, 128, 1],
///     }],
///     block_size: 16,
///     layers: Span { first: 0, count: 32 },
///     heads: Span { first: 0, count: 8 },
///     hash_algorithm: "sha256".into(),
///     hash_seed: vec![],
///     extra: Default::default(),
/// };
/// let other = Namespace { heads: Span { first: 8, count: 8 }, ..namespace.clone() };
/// assert_ne!(namespace.digest(), other.digest());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Namespace {
    /// Name of the model.
    pub model: String,
    /// Revision of the weights. It changes with every update of the weights.
    pub weights: String,
    /// Data type of the stored KV.
    pub kv_dtype: String,
    /// How the stored KV is scaled (quantized), and where the scales come from. An empty text if the KV
    /// is not scaled.
    pub scales: String,
    /// Memory layout of a block, for every KV-cache group.
    pub layouts: Vec<Layout>,
    /// Number of tokens per hashed block.
    pub block_size: u32,
    /// The layers that this rank holds.
    pub layers: Span,
    /// The KV heads that this rank holds.
    pub heads: Span,
    /// Algorithm of the block hashes.
    pub hash_algorithm: String,
    /// Seed of the hash algorithm. Empty if there is no seed.
    pub hash_seed: Vec<u8>,
    /// Anything else that the bytes depend on, such as the engine's name and version.
    pub extra: BTreeMap<String, String>,
}

/// Memory layout of a block of one KV-cache group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layout {
    /// Number of the KV-cache group.
    pub group: u32,
    /// Names of the dimensions, outermost first.
    pub order: String,
    /// Number of items per dimension.
    pub shape: Vec<u64>,
    /// Stride per dimension: the distance, in items, between two consecutive indices.
    pub strides: Vec<u64>,
}

/// A range of consecutive layers or heads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Span {
    /// Index of the first layer or head.
    pub first: u32,
    /// Number of layers or heads.
    pub count: u32,
}

/// The digest of a [`Namespace`].
///
/// ```
/// use kvpool_store::NamespaceDigest;
/// let digest = NamespaceDigest::from_bytes([0xab; 32]);
/// assert_eq!(digest.to_string(), "ab".repeat(32));
/// assert_eq!(digest.to_string().parse(), Ok(digest));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamespaceDigest([u8; 32]);

impl NamespaceDigest {
    /// Makes a digest from stored bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes of the digest.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl FromStr for NamespaceDigest {
    type Err = ParseDigestError;

    fn from_str(text: &str) -> Result<Self, ParseDigestError> {
        let wrong = || ParseDigestError { text: text.chars().take(80).collect() };
        let digits = text.as_bytes().as_chunks::<2>();
        let mut bytes = [0; 32];
        if digits.0.len() != bytes.len() || !digits.1.is_empty() {
            return Err(wrong());
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.0) {
            let hex = |digit: u8| char::from(digit).to_digit(16);
            let [high, low] = pair.map(hex);
            // Both hexadecimal digits are below 16, so their combination fits into a byte.
            *byte = high.zip(low).map(|(high, low)| (high * 16 + low) as u8).ok_or_else(wrong)?;
        }
        Ok(Self(bytes))
    }
}

/// The error for text that is not the digest of a namespace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not the digest of a namespace, which has 64 hexadecimal digits")]
pub struct ParseDigestError {
    /// The first characters of the refused text.
    pub text: String,
}

impl fmt::Display for NamespaceDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for NamespaceDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Namespace {
    /// Returns the digest that every object of the namespace contains.
    #[must_use]
    pub fn digest(&self) -> NamespaceDigest {
        let mut hasher = Sha256::new();
        hasher.update(b"kvpool-store namespace\0");
        hasher.update(FORMAT_VERSION.to_le_bytes());
        hasher.update(self.to_json());
        NamespaceDigest(hasher.finalize().into())
    }

    /// Returns the fields as JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Never fails: the fields are strings, numbers, and maps of strings, which JSON can represent.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Parses a text that [`Self::to_json`] or a user wrote. The text must contain every field and no
    /// unknown field.
    ///
    /// # Errors
    /// The position and cause of the first error.
    pub fn from_json(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }
}
