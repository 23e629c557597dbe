//! The hasher: configuration, hash function and encoding in one immutable object.
//!
//! A [`ChainState`] contains the digest (and the fingerprint) of a prefix. Hashing a block computes the
//! next state from the state before it. So one hasher serves all threads, and any thread can continue a
//! chain from its last state.
//!
//! Cost per block: the encoding, and one call of the hash function over the encoded block. Text blocks
//! are encoded into a buffer on the stack, which all blocks of a call reuse. There is no allocation per
//! block.

use std::fmt;

use super::canonical::{self, BlockMessage, Scratch, TextMessage};
use super::config::HasherConfig;
use super::extra::ItemIndex;
use super::fingerprint::Fingerprinter;
#[cfg(feature = "xxh3")]
use super::fingerprint::first_words;
use super::sha256::sha256;
#[cfg(feature = "vllm")]
use super::vllm::{self, RequestExtra};
use super::{BlockHash, ExtraKeys, Fingerprint, HashAlgorithm, HashChain, HashError, MultimodalItem, Verify};

#[cfg(feature = "xxh3")]
const XXH3_SEED_TAG: &[u8] = b"kvpool xxh3 seed 1";

/// The hash state of a prefix: its digest, and its fingerprint if the hasher computes fingerprints.
///
/// ```
/// use kvpool_hash::{BlockHasher, ChainState, ExtraKeys, HasherConfig};
/// let hasher = BlockHasher::new(HasherConfig { block_size: 2, ..HasherConfig::default() })?;
/// let extra = ExtraKeys::default();
/// let first = hasher.hash_block(&hasher.root(&extra)?, 0, &[1, 2], &extra)?;
/// // A stored digest is enough to continue the chain later.
/// let stored = ChainState::new(first.digest(), 0);
/// let next = |state| hasher.hash_block(state, 2, &[3, 4], &extra);
/// assert_eq!(next(&stored)?, next(&first)?);
/// # Ok::<(), kvpool_hash::HashError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChainState {
    digest: BlockHash,
    fingerprint: Fingerprint,
}

impl ChainState {
    /// Makes a state from a digest and a fingerprint that were computed before. `fingerprint` is 0 if
    /// the hasher computes none.
    #[must_use]
    pub const fn new(digest: BlockHash, fingerprint: Fingerprint) -> Self {
        Self { digest, fingerprint }
    }

    /// The digest of all blocks of the prefix.
    #[inline]
    #[must_use]
    pub const fn digest(&self) -> BlockHash {
        self.digest
    }

    /// The fingerprint of all blocks of the prefix. It is 0 if the hasher computes no fingerprints.
    #[inline]
    #[must_use]
    pub const fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }
}

/// The hash function of a hasher, with its key or seed.
#[derive(Clone)]
enum Method {
    Sha256,
    #[cfg(feature = "blake3")]
    Blake3,
    #[cfg(feature = "blake3")]
    Blake3Keyed(Box<[u8; 32]>),
    #[cfg(feature = "xxh3")]
    Xxh3 {
        seed: u64,
    },
    #[cfg(feature = "vllm")]
    Vllm {
        method: vllm::Method,
        none_hash: BlockHash,
    },
    /// No hash function: the digest of a block is looked up in a table, by the block's last token.
    #[cfg(feature = "recorded")]
    Recorded(super::RecordedHashes),
    /// SHA-256 for tests of collisions: of each digest, only the bits of this mask in the first eight
    /// bytes remain, and all others are 0.
    #[cfg(feature = "recorded")]
    Truncated(u64),
}

/// Hashes blocks. Immutable, shared by all sequences of a pool, and cheap to clone.
///
/// ```
/// use kvpool_hash::{BlockHasher, ExtraKeys, HashChain, HasherConfig};
/// let hasher = BlockHasher::new(HasherConfig { block_size: 4, ..HasherConfig::default() })?;
/// let extra = ExtraKeys::default();
/// let mut chain = HashChain::new(&hasher, extra.epoch);
/// hasher.extend(&mut chain, &extra, &[1, 2, 3, 4, 5, 6, 7, 8])?;
/// assert_eq!(chain.len(), 2);
///
/// // The same block after another prefix has another hash.
/// let mut other = HashChain::new(&hasher, extra.epoch);
/// hasher.extend(&mut other, &extra, &[0, 0, 0, 0, 5, 6, 7, 8])?;
/// assert_ne!(chain.hashes()[1], other.hashes()[1]);
/// # Ok::<(), kvpool_hash::HashError>(())
/// ```
#[derive(Clone)]
pub struct BlockHasher {
    config: HasherConfig,
    method: Method,
    fingerprinter: Option<Fingerprinter>,
}

impl BlockHasher {
    /// Makes a hasher. Reuse it for all requests, because this call derives keys and seeds.
    ///
    /// # Errors
    /// [`HashError::BlockSize`] for a block size that is 0 or too large. [`HashError::KeyNotSupported`]
    /// for a key that neither the algorithm nor a fingerprint uses. [`HashError::SeedRequired`] for
    /// vLLM's `xxhash` algorithms without a seed. [`HashError::NotCompiledIn`] if this build does not
    /// contain the algorithm.
    pub fn new(config: HasherConfig) -> Result<Self, HashError> {
        config.check()?;
        let method = Method::new(&config)?;
        let fingerprinter = (config.verify >= Verify::Fingerprint).then(|| Fingerprinter::new(&config));
        Ok(Self { config, method, fingerprinter })
    }

    /// Makes a hasher that looks digests up in a table instead of computing them. Replays of journals
    /// need it, because journals contain no tokens.
    ///
    /// # Errors
    /// [`HashError::BlockSize`] for a block size that is 0 or too large.
    #[cfg(feature = "recorded")]
    pub fn recorded(config: HasherConfig, hashes: super::RecordedHashes) -> Result<Self, HashError> {
        HasherConfig { block_size: config.block_size, ..HasherConfig::default() }.check()?;
        let fingerprinter = (config.verify >= Verify::Fingerprint).then(|| Fingerprinter::new(&config));
        Ok(Self { config, method: Method::Recorded(hashes), fingerprinter })
    }

    /// Makes a hasher whose SHA-256 digests keep their first `bits` bits, at most 64, and end in zeros,
    /// so that many prompts have the same digest. Fingerprints keep all of their bits. Use this only
    /// for tests of collisions.
    ///
    /// # Errors
    /// As [`Self::new`].
    #[cfg(feature = "recorded")]
    pub fn truncated(config: HasherConfig, bits: u32) -> Result<Self, HashError> {
        let kept = u64::MAX.checked_shl(64_u32.saturating_sub(bits)).unwrap_or(0);
        let hasher = Self::new(HasherConfig { algorithm: HashAlgorithm::Sha256, ..config })?;
        Ok(Self { method: Method::Truncated(kept), ..hasher })
    }

    /// The configuration.
    #[inline]
    #[must_use]
    pub const fn config(&self) -> &HasherConfig {
        &self.config
    }

    /// Returns the block size, in tokens.
    #[inline]
    #[must_use]
    pub const fn block_size(&self) -> usize {
        self.config.block_size
    }

    /// Returns the hash function together with the encoding of its input.
    #[inline]
    #[must_use]
    pub const fn algorithm(&self) -> HashAlgorithm {
        self.config.algorithm
    }

    /// Returns how the hasher's blocks are verified at a hit.
    #[inline]
    #[must_use]
    pub const fn verify(&self) -> Verify {
        self.config.verify
    }

    /// Whether the hasher also computes fingerprints.
    #[inline]
    #[must_use]
    pub const fn has_fingerprints(&self) -> bool {
        self.fingerprinter.is_some()
    }

    /// Whether digests or fingerprints depend on the epoch. If not, chains only store the epoch.
    pub(super) const fn depends_on_epoch(&self) -> bool {
        self.has_fingerprints() || !self.config.algorithm.is_vllm()
    }

    /// Checks that the hasher's algorithm can hash these extra keys.
    ///
    /// # Errors
    /// [`HashError::ItemRange`] or [`HashError::TooManyItems`] for invalid multimodal items. For vLLM's
    /// encodings also [`HashError::ExtraNotRepresentable`] (tenant, user, empty salt) and
    /// [`HashError::ExtraNotUtf8`].
    pub fn check_extra(&self, extra: &ExtraKeys) -> Result<(), HashError> {
        self.check_items(&extra.multimodal, 0)?;
        #[cfg(feature = "vllm")]
        if let Method::Vllm { .. } = self.method {
            return vllm::check_extra(self.config.algorithm, extra);
        }
        Ok(())
    }

    /// Does the part of [`BlockHasher::check_extra`] for multimodal items. `before` is the number of
    /// items that the sequence already has.
    pub(super) fn check_items(&self, items: &[MultimodalItem], before: usize) -> Result<(), HashError> {
        MultimodalItem::check(items, before)?;
        #[cfg(feature = "vllm")]
        if let Method::Vllm { .. } = self.method {
            return vllm::check_items(self.config.algorithm, items);
        }
        Ok(())
    }

    /// Returns the state of the empty prefix, which is the parent of the first block. It depends on the
    /// extra keys.
    ///
    /// # Errors
    /// The errors of [`BlockHasher::check_extra`].
    pub fn root(&self, extra: &ExtraKeys) -> Result<ChainState, HashError> {
        self.check_extra(extra)?;
        Ok(self.root_unchecked(extra))
    }

    /// Like [`BlockHasher::root`], without checks of the extra keys.
    pub(super) fn root_unchecked(&self, extra: &ExtraKeys) -> ChainState {
        let message = canonical::root_message(extra);
        let digest = self.method.root(&message);
        let fingerprint = self.fingerprinter.map_or(0, |f| f.hash(&message));
        ChainState { digest, fingerprint }
    }

    /// Hashes one block that starts at token position `start` of its request. For many blocks,
    /// [`BlockHasher::extend`] is faster.
    ///
    /// # Errors
    /// [`HashError::NotOneBlock`] for another number of tokens than one block.
    /// [`HashError::BlockStart`] if `start` is not a multiple of the block size. The errors of
    /// [`BlockHasher::check_extra`].
    pub fn hash_block(
        &self,
        parent: &ChainState,
        start: u64,
        tokens: &[u32],
        extra: &ExtraKeys,
    ) -> Result<ChainState, HashError> {
        let block_size = self.config.block_size;
        if tokens.len() != block_size {
            return Err(HashError::NotOneBlock { tokens: tokens.len(), block_size });
        }
        if !start.is_multiple_of(block_size as u64) {
            return Err(HashError::BlockStart { start, block_size });
        }
        self.check_extra(extra)?;
        Ok(self.run(*parent, start, tokens, extra, &ItemIndex::new(&extra.multimodal), |_| ()))
    }

    /// Hashes whole blocks and appends them to `chain`, whose blocks must have been hashed with the
    /// same hasher and extra keys. Returns the number of appended blocks.
    ///
    /// # Errors
    /// [`HashError::NotBlockAligned`] if the tokens are not whole blocks. [`HashError::ChainMismatch`]
    /// if the chain has another algorithm, block size or epoch. [`HashError::ChainNotExtendable`] if
    /// the chain's digests were computed elsewhere. The errors of [`BlockHasher::check_extra`]. An
    /// error leaves the chain unchanged.
    pub fn extend(
        &self,
        chain: &mut HashChain,
        extra: &ExtraKeys,
        tokens: &[u32],
    ) -> Result<usize, HashError> {
        let block_size = self.config.block_size;
        if !tokens.len().is_multiple_of(block_size) {
            return Err(HashError::NotBlockAligned { tokens: tokens.len(), block_size });
        }
        chain.check_extendable(self, extra.epoch)?;
        self.check_extra(extra)?;
        let state = chain.last_state().unwrap_or_else(|| self.root_unchecked(extra));
        self.extend_unchecked(chain, state, extra, &ItemIndex::new(&extra.multimodal), tokens);
        Ok(tokens.len() / block_size)
    }

    /// Like [`BlockHasher::extend`], without checks. `state` is the state of the chain's last block, or
    /// that of the empty prefix.
    pub(super) fn extend_unchecked(
        &self,
        chain: &mut HashChain,
        state: ChainState,
        extra: &ExtraKeys,
        items: &ItemIndex,
        tokens: &[u32],
    ) -> ChainState {
        let start = chain.tokens().len() as u64;
        chain.push_tokens(tokens, self.has_fingerprints());
        let fingerprints = self.has_fingerprints();
        if !items.is_empty() {
            let size = self.config.block_size as u64;
            for at in 0..tokens.len() as u64 / size {
                let first = start + at * size;
                if items.overlapping(&extra.multimodal, first, first + size).next().is_some() {
                    chain.push_item_block(first / size);
                }
            }
        }
        self.run(state, start, tokens, extra, items, |state| chain.push_state(state, fingerprints))
    }

    /// Hashes the whole blocks of `tokens` one after the other. Calls `each` with the state after each
    /// block, and returns the last state.
    pub(super) fn run(
        &self,
        mut state: ChainState,
        mut start: u64,
        tokens: &[u32],
        extra: &ExtraKeys,
        items: &ItemIndex,
        mut each: impl FnMut(&ChainState),
    ) -> ChainState {
        let digest_len = self.config.algorithm.digest_len();
        let mut scratch = Scratch::new();
        if items.is_empty() && self.method.is_native() {
            let mut message = TextMessage::new(&mut scratch, digest_len, self.config.block_size);
            for block in tokens.chunks_exact(self.config.block_size) {
                message.set(state.digest.as_bytes(), block);
                state.digest = self.method.text_block(&message);
                if let Some(f) = &self.fingerprinter {
                    state.fingerprint = f.hash(message.with_fingerprint_parent(state.fingerprint));
                }
                each(&state);
            }
            return state;
        }
        for block in tokens.chunks_exact(self.config.block_size) {
            let end = start + block.len() as u64;
            let overlapping = (!items.is_empty()).then(|| items.overlapping(&extra.multimodal, start, end));
            match &self.method {
                #[cfg(feature = "vllm")]
                Method::Vllm { method, .. } => {
                    let request = RequestExtra { extra, items, start, end };
                    let parent = state.digest;
                    let parent = &parent.as_bytes()[..digest_len];
                    state.digest = if request.is_none() {
                        method.text_block(&mut scratch, parent, block)
                    } else {
                        method.block(&mut scratch, parent, block, &request)
                    };
                    if let Some(f) = &self.fingerprinter {
                        let mut message =
                            BlockMessage::encode(&mut scratch, &[0; 32], 16, block, start, overlapping);
                        state.fingerprint = f.hash(message.with_fingerprint_parent(state.fingerprint));
                    }
                }
                #[cfg(feature = "recorded")]
                Method::Recorded(hashes) => state = hashes.state(block.last().copied()),
                native => {
                    let mut message = BlockMessage::encode(
                        &mut scratch,
                        state.digest.as_bytes(),
                        digest_len,
                        block,
                        start,
                        overlapping,
                    );
                    state.digest = native.block(&mut message);
                    if let Some(f) = &self.fingerprinter {
                        state.fingerprint = f.hash(message.with_fingerprint_parent(state.fingerprint));
                    }
                }
            }
            each(&state);
            start = end;
        }
        state
    }
}

impl Method {
    fn new(config: &HasherConfig) -> Result<Self, HashError> {
        let algorithm = config.algorithm;
        if algorithm == HashAlgorithm::Sha256 {
            return Ok(Self::Sha256);
        }
        #[cfg(feature = "blake3")]
        if algorithm == HashAlgorithm::Blake3 {
            return Ok(config.key.map_or(Self::Blake3, |key| Self::Blake3Keyed(Box::new(key))));
        }
        #[cfg(feature = "xxh3")]
        if algorithm == HashAlgorithm::Xxh3 {
            return Ok(Self::Xxh3 { seed: xxh3_seed(config.seed.as_deref()) });
        }
        #[cfg(feature = "vllm")]
        if algorithm.is_vllm() {
            let none_hash = vllm::none_hash(algorithm, config.seed.as_deref())?;
            return Ok(Self::Vllm { method: vllm::Method::new(algorithm)?, none_hash });
        }
        Err(HashError::NotCompiledIn { algorithm })
    }

    /// Returns the digest of the empty prefix. `message` is its native encoding, which vLLM's
    /// algorithms do not use.
    fn root(&self, message: &[u8]) -> BlockHash {
        #[cfg(feature = "vllm")]
        if let Self::Vllm { none_hash, .. } = self {
            return *none_hash;
        }
        self.digest(message)
    }

    /// Whether digests are computed from the native encoding of blocks.
    const fn is_native(&self) -> bool {
        match self {
            #[cfg(feature = "vllm")]
            Self::Vllm { .. } => false,
            #[cfg(feature = "recorded")]
            Self::Recorded(_) => false,
            _ => true,
        }
    }

    #[inline]
    fn text_block(&self, message: &TextMessage<'_>) -> BlockHash {
        if matches!(self, Self::Sha256) {
            return message.sha256();
        }
        self.digest(message.bytes())
    }

    #[inline]
    fn block(&self, message: &mut BlockMessage<'_>) -> BlockHash {
        if matches!(self, Self::Sha256) {
            return message.sha256();
        }
        self.digest(message.bytes())
    }

    #[inline]
    fn digest(&self, message: &[u8]) -> BlockHash {
        match self {
            Self::Sha256 => sha256(message),
            // This line is never reached, because vLLM's algorithms do not hash native messages.
            #[cfg(feature = "vllm")]
            Self::Vllm { .. } => sha256(message),
            #[cfg(feature = "recorded")]
            Self::Recorded(_) => sha256(message),
            #[cfg(feature = "recorded")]
            Self::Truncated(kept) => BlockHash::from_key(sha256(message).key() & kept),
            #[cfg(feature = "blake3")]
            Self::Blake3 => BlockHash::from_bytes(*blake3::hash(message).as_bytes()),
            #[cfg(feature = "blake3")]
            Self::Blake3Keyed(key) => BlockHash::from_bytes(*blake3::keyed_hash(key, message).as_bytes()),
            #[cfg(feature = "xxh3")]
            Self::Xxh3 { seed } => {
                BlockHash::from_u128_be(xxhash_rust::xxh3::xxh3_128_with_seed(message, *seed))
            }
        }
    }
}

/// Derives the 64-bit seed of XXH3: the first 8 bytes of the SHA-256 of a tag and the configured seed.
/// Without a configured seed it is 0, which is the default of XXH3.
#[cfg(feature = "xxh3")]
fn xxh3_seed(seed: Option<&str>) -> u64 {
    seed.map_or(0, |seed| first_words(&[XXH3_SEED_TAG, seed.as_bytes()].concat()).0)
}

impl fmt::Debug for BlockHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Derived keys and seeds must not appear in logs. The configuration hides its key and seed
        // itself.
        f.debug_struct("BlockHasher").field("config", &self.config).finish_non_exhaustive()
    }
}
