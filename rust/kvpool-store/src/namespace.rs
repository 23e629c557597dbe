//! `Namespace`: what bytes mean. Two stores share objects exactly if theirs are equal.
//!
//! Owns: the list of what KV bytes depend on besides the tokens, and its digest, which every object carries. What is not in here can
//! change without anybody noticing, and then an engine reads another model's bytes, another rank's heads, or another order of the
//! same numbers: so all fields are required, and what an engine has beyond them goes into `extra`.
//!
//! The digest is SHA-256 of a canonical encoding: a domain, [`FORMAT_VERSION`], and every field as tag (1 byte), length (8 bytes,
//! little endian) and content, in a fixed order. Lists are their number of items and the items, each with its length: no two
//! namespaces have one encoding.

use std::collections::BTreeMap;
use std::fmt;

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
#[derive(Clone, Debug, PartialEq, Eq)]
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
#[derive(Clone, Debug, PartialEq, Eq)]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
        NamespaceDigest(Sha256::digest(self.encode()).into())
    }

    /// The canonical encoding.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        // Every field by name: a new one that is forgotten here does not compile.
        let Self { model, weights, kv_dtype, scales, layouts, block_size, .. } = self;
        let Self { layers, heads, hash_algorithm, hash_seed, extra, .. } = self;
        let mut out = Encoder(b"kvpool-store namespace\0".to_vec());
        out.field(0, &FORMAT_VERSION.to_le_bytes());
        out.field(1, model.as_bytes());
        out.field(2, weights.as_bytes());
        out.field(3, kv_dtype.as_bytes());
        out.field(4, scales.as_bytes());
        out.list(5, layouts.iter().map(Layout::encode));
        out.field(6, &block_size.to_le_bytes());
        out.field(7, &layers.encode());
        out.field(8, &heads.encode());
        out.field(9, hash_algorithm.as_bytes());
        out.field(10, hash_seed);
        out.list(
            11,
            extra.iter().flat_map(|(name, value)| [name.clone().into_bytes(), value.clone().into_bytes()]),
        );
        out.0
    }
}

impl Layout {
    fn encode(&self) -> Vec<u8> {
        let Self { group, order, shape, strides } = self;
        let numbers = |items: &[u64]| items.iter().flat_map(|item| item.to_le_bytes()).collect::<Vec<_>>();
        let mut out = Encoder(Vec::new());
        out.field(0, &group.to_le_bytes());
        out.field(1, order.as_bytes());
        out.field(2, &numbers(shape));
        out.field(3, &numbers(strides));
        out.0
    }
}

impl Span {
    fn encode(self) -> Vec<u8> {
        [self.first.to_le_bytes(), self.count.to_le_bytes()].concat()
    }
}

struct Encoder(Vec<u8>);

impl Encoder {
    fn field(&mut self, tag: u8, content: &[u8]) {
        self.0.push(tag);
        self.0.extend_from_slice(&(content.len() as u64).to_le_bytes());
        self.0.extend_from_slice(content);
    }

    fn list(&mut self, tag: u8, items: impl Iterator<Item = Vec<u8>>) {
        let mut all = Encoder(Vec::new());
        let mut count = 0_u64;
        for item in items {
            all.field(0, &item);
            count += 1;
        }
        all.0.extend_from_slice(&count.to_le_bytes());
        self.field(tag, &all.0);
    }
}
