//! vLLM's block hashes, bit for bit: `hash_fn((parent, tuple(tokens), extra_keys or None))`.
//!
//! There are two ways to compute them. [`hash_block`] is for engines that build the tuples of extra
//! keys themselves. It takes these tuples with the identities of their objects, because pickle writes a
//! repeated object as a reference (see [`ObjectId`]). [`BlockHasher`](super::BlockHasher) converts
//! [`ExtraKeys`] to the tuples that vLLM makes, in vLLM's order:
//!
//! ```text
//! ("lora", id, path)
//! ("mm", identifier, relative offset)   for each item of the block
//! ("cache_salt", salt)                  on the first block
//! ```
//!
//! `BlockHasher` also chooses the identities of the objects. Each of the three constants (`"lora"`,
//! `"mm"`, `"cache_salt"`) is one interned object. Every id, path, identifier and salt is a separate
//! object, as in a process that received them over a network. `CPython` has only one object for the
//! empty string, and for each string of one Latin-1 character, so equal strings of these kinds have one
//! identity.
//!
//! Tenants, users and empty salts cannot be represented in these encodings and are refused. The epoch
//! is not part of the digest.

use super::canonical::Scratch;
use super::cbor::{self, Cbor};
use super::encoder::Encoder;
pub use super::encoder::ObjectId;
use super::extra::{ExtraKeys, ItemIndex};
use super::pickle::{self, Pickler};
use super::{BlockHash, HashAlgorithm, HashError, MultimodalItem};

/// The seed that vLLM uses for its cryptographic algorithms if `PYTHONHASHSEED` is not set.
pub const DEFAULT_SEED: &str = "vllm-none-hash";

/// A value in a tuple of a block's extra keys.
///
/// ```
/// use kvpool_hash::HashAlgorithm::VllmSha256;
/// use kvpool_hash::vllm::{self, Atom, ObjectId};
/// let image = vec![Atom::str("mm", ObjectId(1)), Atom::str("digest", ObjectId(2)), Atom::Int(5)];
/// let hash = vllm::hash_block(VllmSha256, &[0; 32], &[1, 2], Some(&[image]))?;
/// assert_ne!(hash, vllm::hash_block(VllmSha256, &[0; 32], &[1, 2], None)?);
/// # Ok::<(), kvpool_hash::HashError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Atom {
    /// `None`.
    None,
    /// A Python `int`, but not a `bool`.
    Int(i64),
    /// A Python `str` without surrogates, so that it is valid UTF-8.
    Str {
        /// The text.
        text: Box<str>,
        /// The identity of the Python `str` object.
        object: ObjectId,
    },
    /// A Python `bytes` object.
    Bytes {
        /// The bytes.
        bytes: Box<[u8]>,
        /// The identity of the Python `bytes` object.
        object: ObjectId,
    },
}

impl Atom {
    /// Makes a `str`.
    #[must_use]
    pub fn str(text: &str, object: ObjectId) -> Self {
        Self::Str { text: text.into(), object }
    }

    /// Makes a `bytes`.
    #[must_use]
    pub fn bytes(bytes: &[u8], object: ObjectId) -> Self {
        Self::Bytes { bytes: bytes.into(), object }
    }
}

/// One tuple of a block's extra keys. Its first member names the kind of key, as in
/// `("mm", identifier, offset)`.
pub type ExtraTuple = Vec<Atom>;

/// Computes vLLM's digest of one block.
///
/// `parent` is the digest of the previous block, or [`none_hash`] for the first block. `extra` is
/// `None` if vLLM passes `None`. An empty slice means an empty tuple, which gives another digest than
/// `None`. The call allocates only for extra keys, and for blocks of more than about 60 tokens.
///
/// ```
/// use kvpool_hash::HashAlgorithm::VllmSha256;
/// use kvpool_hash::vllm::{self, Atom, ObjectId};
/// let root = vllm::none_hash(VllmSha256, None)?;
/// let parent = root.digest(VllmSha256);
/// let text = vllm::hash_block(VllmSha256, parent, &[1, 2, 3, 4], None)?;
/// let salted = vec![Atom::str("cache_salt", ObjectId(1)), Atom::str("s", ObjectId(2))];
/// assert_ne!(text, vllm::hash_block(VllmSha256, parent, &[1, 2, 3, 4], Some(&[salted]))?);
/// # Ok::<(), kvpool_hash::HashError>(())
/// ```
///
/// # Errors
/// [`HashError::NotVllm`] for an algorithm that is not one of vLLM's. [`HashError::NotCompiledIn`] if
/// this build does not contain the algorithm.
pub fn hash_block(
    algorithm: HashAlgorithm,
    parent: &[u8],
    tokens: &[u32],
    extra: Option<&[ExtraTuple]>,
) -> Result<BlockHash, HashError> {
    let method = Method::new(algorithm)?;
    let mut scratch = Scratch::new();
    Ok(match extra {
        None => method.text_block(&mut scratch, parent, tokens),
        Some(tuples) => method.block(&mut scratch, parent, tokens, &tuples),
    })
}

/// Computes vLLM's digests of consecutive blocks without extra keys. Each whole block of `tokens` is
/// hashed as by [`hash_block`], with the previous digest as its parent. Tokens after the last whole
/// block are ignored.
///
/// ```
/// use kvpool_hash::HashAlgorithm::VllmSha256;
/// use kvpool_hash::vllm;
/// let run = vllm::hash_text_blocks(VllmSha256, &[0; 32], &[1, 2, 3, 4, 5], 2)?;
/// assert_eq!(run[1], vllm::hash_block(VllmSha256, run[0].digest(VllmSha256), &[3, 4], None)?);
/// assert_eq!(run.len(), 2);
/// # Ok::<(), kvpool_hash::HashError>(())
/// ```
///
/// # Errors
/// The errors of [`hash_block`]; [`HashError::BlockSize`] for a block size of 0.
pub fn hash_text_blocks(
    algorithm: HashAlgorithm,
    parent: &[u8],
    tokens: &[u32],
    block_size: usize,
) -> Result<Vec<BlockHash>, HashError> {
    let method = Method::new(algorithm)?;
    if block_size == 0 {
        return Err(HashError::BlockSize { block_size, max: super::MAX_BLOCK_SIZE });
    }
    let mut scratch = Scratch::new();
    let mut hashes: Vec<BlockHash> = Vec::with_capacity(tokens.len() / block_size);
    for block in tokens.chunks_exact(block_size) {
        let hash = match hashes.last() {
            None => method.text_block(&mut scratch, parent, block),
            Some(parent) => method.text_block(&mut scratch, parent.digest(algorithm), block),
        };
        hashes.push(hash);
    }
    Ok(hashes)
}

/// Returns vLLM's `NONE_HASH`: the digest that is the parent of every first block.
///
/// `seed` is the value of the environment variable `PYTHONHASHSEED` in vLLM's process, or `None` if it
/// is not set there.
///
/// # Errors
/// The errors of [`hash_block`]. [`HashError::SeedRequired`] if the seed is `None` for an `xxhash`
/// algorithm, because vLLM then draws a random seed.
pub fn none_hash(algorithm: HashAlgorithm, seed: Option<&str>) -> Result<BlockHash, HashError> {
    let method = Method::new(algorithm)?;
    let seed = match seed {
        Some(seed) => seed,
        None if algorithm.is_cryptographic() => DEFAULT_SEED,
        None => return Err(HashError::SeedRequired { algorithm }),
    };
    let mut out = Vec::new();
    method.encode(&mut out, |encoder| encoder.str(seed, None));
    Ok(method.digest(&out))
}

/// The extra keys of one block, which can write themselves as tuples.
pub(super) trait BlockExtra {
    /// Returns the number of tuples of extra keys that the block has.
    fn count(&self) -> usize;
    fn encode(&self, encoder: &mut dyn Encoder);
}

impl BlockExtra for &[ExtraTuple] {
    fn count(&self) -> usize {
        self.len()
    }

    fn encode(&self, encoder: &mut dyn Encoder) {
        for tuple in *self {
            encoder.begin_tuple(tuple.len());
            for atom in tuple {
                match atom {
                    Atom::None => encoder.none(),
                    Atom::Int(value) => encoder.int(*value),
                    Atom::Str { text, object } => encoder.str(text, Some(*object)),
                    Atom::Bytes { bytes, object } => encoder.bytes(bytes, Some(*object)),
                }
            }
            encoder.end_tuple(tuple.len());
        }
    }
}

/// The extra keys of one block, computed from the extra keys of its request. All strings are valid
/// UTF-8: [`check_extra`] and [`check_items`] have checked them.
pub(super) struct RequestExtra<'a> {
    pub(super) extra: &'a ExtraKeys,
    pub(super) items: &'a ItemIndex,
    /// The position of the block's first token. The block has the token positions `start..end`.
    pub(super) start: u64,
    pub(super) end: u64,
}

impl RequestExtra<'_> {
    fn salt(&self) -> Option<&[u8]> {
        self.extra.salt.as_deref().filter(|_| self.start == 0)
    }

    /// Whether the block has no extra keys. vLLM then passes `None`.
    pub(super) fn is_none(&self) -> bool {
        self.extra.adapter.is_none() && self.salt().is_none() && self.items_of_block().next().is_none()
    }

    fn items_of_block(&self) -> impl Iterator<Item = &MultimodalItem> + Clone {
        self.items.overlapping(&self.extra.multimodal, self.start, self.end)
    }
}

impl BlockExtra for RequestExtra<'_> {
    fn count(&self) -> usize {
        usize::from(self.extra.adapter.is_some())
            + self.items_of_block().count()
            + usize::from(self.salt().is_some())
    }

    fn encode(&self, encoder: &mut dyn Encoder) {
        if let Some(adapter) = &self.extra.adapter {
            encoder.begin_tuple(3);
            encoder.str("lora", Some(LORA));
            put_text(encoder, &adapter.id);
            match &adapter.path {
                None => encoder.none(),
                Some(path) => put_text(encoder, path.as_bytes()),
            }
            encoder.end_tuple(3);
        }
        for item in self.items_of_block() {
            encoder.begin_tuple(3);
            encoder.str("mm", Some(MM));
            put_text(encoder, &item.identifier);
            encoder.int(item.relative_offset(self.start));
            encoder.end_tuple(3);
        }
        if let Some(salt) = self.salt() {
            encoder.begin_tuple(2);
            encoder.str("cache_salt", Some(CACHE_SALT));
            put_text(encoder, salt);
            encoder.end_tuple(2);
        }
    }
}

const LORA: ObjectId = ObjectId(1);
const MM: ObjectId = ObjectId(2);
const CACHE_SALT: ObjectId = ObjectId(3);
const EMPTY: ObjectId = ObjectId(4);
/// The object id of the string that consists of the character U+0000. The ids of U+0001 to U+00FF
/// follow.
const ONE_CHARACTER: u64 = 0x100;

fn put_text(encoder: &mut dyn Encoder, bytes: &[u8]) {
    // The bytes were checked to be UTF-8. If a caller skipped the check, the lossy conversion avoids a
    // panic.
    let text = String::from_utf8_lossy(bytes);
    let mut chars = text.chars();
    let object = match (chars.next(), chars.next()) {
        (None, _) => Some(EMPTY),
        (Some(only), None) if u32::from(only) <= 0xff => Some(ObjectId(ONE_CHARACTER + u64::from(only))),
        _ => None,
    };
    encoder.str(&text, object);
}

fn utf8(algorithm: HashAlgorithm, field: &'static str, bytes: &[u8]) -> Result<(), HashError> {
    match std::str::from_utf8(bytes) {
        Ok(_) => Ok(()),
        Err(error) => Err(HashError::ExtraNotUtf8 { algorithm, field, valid_up_to: error.valid_up_to() }),
    }
}

/// Checks that vLLM's encodings can represent these multimodal items.
pub(super) fn check_items(algorithm: HashAlgorithm, items: &[MultimodalItem]) -> Result<(), HashError> {
    items.iter().try_for_each(|item| utf8(algorithm, "a multimodal identifier", &item.identifier))
}

/// Checks that vLLM's encodings can represent the extra keys of a request. Multimodal items are checked
/// by [`check_items`].
pub(super) fn check_extra(algorithm: HashAlgorithm, extra: &ExtraKeys) -> Result<(), HashError> {
    let refuse = |field| Err(HashError::ExtraNotRepresentable { algorithm, field });
    if extra.tenant.is_some() {
        return refuse("a tenant");
    }
    if extra.user.is_some() {
        return refuse("a user");
    }
    // vLLM treats an empty salt as no salt. A request with an empty salt would then share blocks with
    // requests without a salt.
    if extra.salt.as_deref().is_some_and(<[u8]>::is_empty) {
        return refuse("an empty salt");
    }
    if let Some(adapter) = &extra.adapter {
        utf8(algorithm, "the adapter id", &adapter.id)?;
    }
    if let Some(salt) = &extra.salt {
        utf8(algorithm, "the salt", salt)?;
    }
    Ok(())
}

/// A serializer and a hash function. There are four combinations, one for each algorithm of vLLM.
#[derive(Debug, Clone, Copy)]
pub(super) struct Method {
    pickle: bool,
    function: Function,
}

#[derive(Debug, Clone, Copy)]
enum Function {
    Sha256,
    #[cfg(feature = "xxh3")]
    Xxh3,
}

impl Method {
    pub(super) fn new(algorithm: HashAlgorithm) -> Result<Self, HashError> {
        let (pickle, function) = match algorithm {
            HashAlgorithm::VllmSha256 => (true, Function::Sha256),
            HashAlgorithm::VllmSha256Cbor => (false, Function::Sha256),
            #[cfg(feature = "xxh3")]
            HashAlgorithm::VllmXxhash => (true, Function::Xxh3),
            #[cfg(feature = "xxh3")]
            HashAlgorithm::VllmXxhashCbor => (false, Function::Xxh3),
            #[cfg(not(feature = "xxh3"))]
            HashAlgorithm::VllmXxhash | HashAlgorithm::VllmXxhashCbor => {
                return Err(HashError::NotCompiledIn { algorithm });
            }
            HashAlgorithm::Sha256 | HashAlgorithm::Blake3 | HashAlgorithm::Xxh3 => {
                return Err(HashError::NotVllm { algorithm });
            }
        };
        Ok(Self { pickle, function })
    }

    fn digest(self, message: &[u8]) -> BlockHash {
        match self.function {
            Function::Sha256 => super::sha256::sha256(message),
            #[cfg(feature = "xxh3")]
            Function::Xxh3 => BlockHash::from_u128_be(xxhash_rust::xxh3::xxh3_128(message)),
        }
    }

    fn encode(self, out: &mut Vec<u8>, value: impl FnOnce(&mut dyn Encoder)) {
        if self.pickle {
            let mut pickler = Pickler::new(out);
            value(&mut pickler);
            pickler.finish();
        } else {
            value(&mut Cbor::new(out));
        }
    }

    /// Returns vLLM's digest of a block without extra keys.
    pub(super) fn text_block(self, scratch: &mut Scratch, parent: &[u8], tokens: &[u32]) -> BlockHash {
        let in_one_frame = (1..=pickle::ONE_FRAME_TOKENS).contains(&tokens.len());
        if !in_one_frame || !(1..=32).contains(&parent.len()) {
            let out = scratch.vec();
            self.encode(out, |encoder| put_block(encoder, parent, tokens, None));
            return self.digest(out);
        }
        if self.pickle {
            let buffer = scratch.get(pickle::text_block_capacity(tokens.len()));
            let len = pickle::text_block(buffer, parent, tokens);
            self.digest(&buffer[..len])
        } else {
            let buffer = scratch.get(cbor::text_block_capacity(tokens.len()));
            let len = cbor::text_block(buffer, parent, tokens);
            self.digest(&buffer[..len])
        }
    }

    /// Returns vLLM's digest of a block with extra keys.
    pub(super) fn block(
        self,
        scratch: &mut Scratch,
        parent: &[u8],
        tokens: &[u32],
        extra: &dyn BlockExtra,
    ) -> BlockHash {
        let out = scratch.vec();
        self.encode(out, |encoder| put_block(encoder, parent, tokens, Some(extra)));
        self.digest(out)
    }
}

fn put_block(encoder: &mut dyn Encoder, parent: &[u8], tokens: &[u32], extra: Option<&dyn BlockExtra>) {
    encoder.begin_tuple(3);
    encoder.bytes(parent, None);
    encoder.begin_tuple(tokens.len());
    for &token in tokens {
        encoder.int(i64::from(token));
    }
    encoder.end_tuple(tokens.len());
    match extra {
        None => encoder.none(),
        Some(extra) => {
            let count = extra.count();
            encoder.begin_tuple(count);
            extra.encode(encoder);
            encoder.end_tuple(count);
        }
    }
    encoder.end_tuple(3);
}
