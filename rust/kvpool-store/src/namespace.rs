//! `Namespace`: what bytes mean. Two stores share objects exactly if theirs are equal.
//!
//! Owns: the list of what KV bytes depend on besides the tokens, and its digest, which every object
//! carries. What is not in here can change without anybody noticing, and then an engine reads another
//! model's bytes, another rank's heads, or another order of the same numbers: so all fields are
//! required, and what an engine has beyond them goes into `extra`.
//!
//! The digest is SHA-256 of a domain, [`FORMAT_VERSION`] and the fields as JSON, all of them, in the
//! order of the struct and without blanks: no two namespaces have one text. Back ends keep the text, so
//! `kvpool store show` can say whose objects lie somewhere.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The version of the byte layout. Of another one nothing is read.
pub const FORMAT_VERSION: u32 = 1;

/// All that the bytes of an object depend on, besides its tokens.
///
/// ```
/// use kvpool_store::{Layout, Namespace, Span};
/// let namespace = Namespace {
///     model: "llama-3-8b".into(),
///     weights: "rev-5f0b02c".into(),
///     kv_dtype: "fp8_e4m3".into(),
///     scales: "per-tensor:9b1c".into(),
///     layouts: vec![Layout { group: 0, order: "LKNHD".into(), shape: vec![32, 2, 16, 8, 128], strides: vec![32768, 16384, 1024, 128, 1] }],
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
    /// The model's name.
    pub model: String,
    /// The revision of its weights: another after every update.
    pub weights: String,
    /// The type of the numbers.
    pub kv_dtype: String,
    /// How they are scaled, and by what; empty for none.
    pub scales: String,
    /// How a block lies in memory, for every KV-cache group.
    pub layouts: Vec<Layout>,
    /// Tokens per block that is hashed.
    pub block_size: u32,
    /// The layers that this rank holds.
    pub layers: Span,
    /// The KV heads that this rank holds.
    pub heads: Span,
    /// What makes digests of tokens.
    pub hash_algorithm: String,
    /// What it is seeded with; empty for nothing.
    pub hash_seed: Vec<u8>,
    /// Whatever else the bytes depend on: an engine's name and version, for one.
    pub extra: BTreeMap<String, String>,
}

/// How a block of one KV-cache group lies in memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layout {
    /// The group.
    pub group: u32,
    /// The names of the dimensions, outermost first.
    pub order: String,
    /// Items per dimension.
    pub shape: Vec<u64>,
    /// Items from one to the next, per dimension.
    pub strides: Vec<u64>,
}

/// Consecutive layers or heads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Span {
    /// The first.
    pub first: u32,
    /// How many.
    pub count: u32,
}

/// The digest of a [`Namespace`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamespaceDigest([u8; 32]);

impl NamespaceDigest {
    /// A digest that was written down.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
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
            *byte = high.zip(low).map(|(high, low)| (high * 16 + low) as u8).ok_or_else(wrong)?; // both below 16
        }
        Ok(Self(bytes))
    }
}

/// No digest of a namespace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no digest of a namespace: 64 hexadecimal digits")]
pub struct ParseDigestError {
    /// How it begins.
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
    /// What every object of it carries.
    #[must_use]
    pub fn digest(&self) -> NamespaceDigest {
        let mut hasher = Sha256::new();
        hasher.update(b"kvpool-store namespace\0");
        hasher.update(FORMAT_VERSION.to_le_bytes());
        hasher.update(self.to_json());
        NamespaceDigest(hasher.finalize().into())
    }

    /// Its fields as JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default() // strings, numbers and maps of strings: nothing that JSON does not have
    }

    /// The namespace of a text that [`Self::to_json`] made, or somebody wrote: every field has to be
    /// there, and no other.
    ///
    /// # Errors
    /// What is wrong with it, and where.
    pub fn from_json(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }
}
