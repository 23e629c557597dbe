//! `PrefixIndex`: block hash -> the blocks that hold that content.
//!
//! Owns: which blocks are registered, under which hash, at which depth of their chain, whether they are computed, and
//! what verifies a hit. It knows nothing of reference counts: a registered block may be held or cached-free.
//!
//! Several blocks may carry one hash (two requests computed the same prompt at once): those that are computed form a ring,
//! in the order in which they became so, and the others form one, in the order in which they were registered. Each ring has
//! an entry of the table, so that a lookup looks at one block, and a copy that becomes computed finds the end of its new
//! ring, however many there are. The oldest computed copy, the one that became computed first of those that are left, is the
//! one that hits.
//!
//! Invariants:
//! - P1: the table's entries of a hash are the heads of the rings of exactly the blocks registered under it.
//! - P2: a ring is of computed copies, or of uncomputed ones. A lookup never returns an uncomputed block.
//! - P3: every entry points to a block whose stored hash is its key; removing a block leaves no entry behind
//!   (vLLM #4761, kvcached #362).
//! - A second chain with an equal hash and other content (a collision) is never indexed over the first: it is counted.
//!
//! Costs: O(1) per block; 44 bytes per block, about 5 to 10 of table, and with verification 16 (fingerprint) or
//! `4 x block_size` more (tokens).
//!
//! ```
//! use std::sync::Arc;
//! use kvpool::{BlockHasher, BlockId, ExtraKeys, HashCursor, HasherConfig, PrefixIndex, Verify};
//! let hasher = Arc::new(BlockHasher::new(HasherConfig { block_size: 2, ..Default::default() })?);
//! let mut cursor = HashCursor::new(hasher, ExtraKeys::default())?;
//! cursor.append(&[1, 2, 3, 4, 5]);
//! let mut index = PrefixIndex::new(8, 2, Verify::None, false)?;
//! index.insert(BlockId::new(3), cursor.chain(), 0)?;
//! assert_eq!(index.find(cursor.chain(), 0), None); // registered, not computed
//! index.mark_computed(BlockId::new(3))?;
//! assert_eq!(index.find(cursor.chain(), 0), Some(BlockId::new(3)));
//! # Ok::<(), kvpool::PoolError>(())
//! ```

mod rings;

use std::fmt;
use std::hash::BuildHasher;

use hashbrown::HashTable;

use crate::block::BlockId;
use crate::block_list::{no_memory, try_reserve};
use crate::error::PoolError;
use crate::free_list::check_num_blocks;
use crate::hash::{BlockHash, Fingerprint, HashAlgorithm, HashChain, LinkRef, MAX_BLOCK_SIZE, Verify};

/// What [`PrefixIndex::insert`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inserted {
    /// The block is registered.
    Registered,
    /// Another content has the same hash: the block is not registered.
    Collision,
}

/// A change of what can be matched, that a listener may want to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Visibility {
    Unchanged,
    Appeared,
    Vanished,
}

/// Depth in the low bits, flags above.
const REGISTERED: u32 = 1 << 31;
const COMPUTED: u32 = 1 << 30;
const HEAD: u32 = 1 << 29;
const DEPTH: u32 = HEAD - 1;

/// Positions of a chain that an index can note.
pub(crate) const MAX_POSITIONS: usize = HEAD as usize;

#[derive(Clone)]
struct Entry {
    hash: BlockHash,
    /// Ring of the blocks with this hash.
    prev: u32,
    next: u32,
    depth_and_flags: u32,
}

const EMPTY: Entry = Entry { hash: BlockHash::from_bytes([0; 32]), prev: 0, next: 0, depth_and_flags: 0 };

impl Entry {
    /// See [`PrefixIndex::content_check`]. A bit more or less of the hash or of `depth_and_flags` changes it.
    #[inline]
    fn check(&self, depth_and_flags: u32) -> u64 {
        let word = |at: usize| {
            let bytes: [u8; 8] = std::array::from_fn(|i| self.hash.as_bytes()[at + i]);
            u64::from_le_bytes(bytes)
        };
        (word(0) ^ word(8) ^ word(16) ^ word(24)).wrapping_add(u64::from(depth_and_flags & !HEAD))
    }

    fn is(&self, flag: u32) -> bool {
        self.depth_and_flags & flag != 0
    }
}

/// Block hash -> blocks, for the blocks of one pool.
#[derive(Clone)]
pub struct PrefixIndex {
    table: HashTable<u32>,
    table_key: TableKey,
    /// By block id, up to the highest block registered so far: the rest is reserved but not written.
    entries: Vec<Entry>,
    num_blocks: usize,
    block_size: usize,
    verify: Verify,
    /// That of what was registered last. As long as anything is, all others must have it, for digests of several are not
    /// comparable; an empty index has none.
    algorithm: Option<HashAlgorithm>,
    fingerprints: Vec<Fingerprint>,
    tokens: Vec<u32>,
    /// Parent hashes, kept only for whoever asks for them. The block's own hash, which no content has as its parent, says
    /// that none is known.
    keep_parents: bool,
    parents: Vec<BlockHash>,
    registered: usize,
    /// The checks of all contents, summed up modulo 2^64 as they came and went: see [`Self::content_check`].
    content_sum: u64,
    /// Rings: entries of the table.
    heads: usize,
    /// Hashes that have two of them: computed copies, and others.
    mixed: usize,
    /// A change met links that do not mirror each other, or a table that does not lead to a ring's head: the content that it
    /// met is not found any more, and the index can no longer be trusted.
    torn: bool,
}

/// Where a digest goes in the table. Digests of ours are uniform, but chains made elsewhere may carry anything, so it is
/// keyed: nobody can choose digests that meet. Nothing depends on the order that this gives.
#[derive(Clone, Copy)]
struct TableKey(u64, u64);

impl TableKey {
    fn random() -> Self {
        let state = std::collections::hash_map::RandomState::new();
        Self(state.hash_one(0u8), state.hash_one(1u8))
    }

    #[inline]
    fn hash(self, digest: &BlockHash) -> u64 {
        let word = |at: usize| {
            let bytes: [u8; 8] = std::array::from_fn(|i| digest.as_bytes()[at + i]);
            u64::from_le_bytes(bytes)
        };
        let fold = |a: u64, b: u64| {
            let product = u128::from(a) * u128::from(b);
            product as u64 ^ (product >> 64) as u64
        };
        let first = fold(word(0) ^ self.0, word(8) ^ self.1);
        fold(first ^ word(16) ^ self.1, word(24) ^ self.0)
    }
}

impl PrefixIndex {
    /// An empty index for blocks `1..num_blocks` of `block_size` tokens. With `keep_parents` each block also remembers
    /// its parent's hash (32 bytes per block), for event listeners and for evictors that keep the cache prefix-closed.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] for a number of blocks or a block size out of range.
    pub fn new(
        num_blocks: usize,
        block_size: usize,
        verify: Verify,
        keep_parents: bool,
    ) -> Result<Self, PoolError> {
        check_num_blocks(num_blocks)?;
        if !(1..=MAX_BLOCK_SIZE).contains(&block_size) {
            return Err(PoolError::InvalidConfig {
                field: "block_size",
                value: block_size.to_string(),
                expected: format!("from 1 to {MAX_BLOCK_SIZE} tokens"),
            });
        }
        let mut index = Self {
            table: HashTable::new(),
            table_key: TableKey::random(),
            entries: Vec::new(),
            num_blocks: 0,
            block_size,
            verify,
            algorithm: None,
            fingerprints: Vec::new(),
            tokens: Vec::new(),
            keep_parents,
            parents: Vec::new(),
            registered: 0,
            content_sum: 0,
            heads: 0,
            mixed: 0,
            torn: false,
        };
        index.grow(num_blocks)?;
        Ok(index)
    }

    /// Takes the memory for blocks up to `num_blocks - 1` at once, so that nothing allocates later.
    pub(crate) fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        let entries = &self.entries;
        let more = (num_blocks - 1).saturating_sub(self.table.len());
        let key = self.table_key;
        let rehash = |&head: &u32| entries.get(head as usize).map_or(0, |entry| key.hash(&entry.hash));
        let reserved = self.table.try_reserve(more, rehash);
        reserved.map_err(|_| no_memory(num_blocks))?;
        try_reserve(&mut self.entries, num_blocks)?;
        if self.verify >= Verify::Fingerprint {
            try_reserve(&mut self.fingerprints, num_blocks)?;
        }
        if self.verify >= Verify::Tokens {
            let tokens = num_blocks.saturating_mul(self.block_size);
            try_reserve(&mut self.tokens, tokens).map_err(|_| no_memory(num_blocks))?;
        }
        if self.keep_parents {
            try_reserve(&mut self.parents, num_blocks)?;
        }
        self.num_blocks = num_blocks;
        Ok(())
    }

    /// Whether blocks remember their parents' hashes.
    pub(crate) const fn keeps_parents(&self) -> bool {
        self.keep_parents
    }

    /// From now on blocks remember their parents' hashes. Of what is registered already none is known.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there is no memory; then nothing has changed.
    pub(crate) fn keep_parents(&mut self) -> Result<(), PoolError> {
        try_reserve(&mut self.parents, self.num_blocks)?;
        self.keep_parents = true;
        let known = self.parents.len();
        self.parents.extend(self.entries.iter().skip(known).map(|entry| entry.hash));
        Ok(())
    }

    /// Writes the reserved entries up to that of `block`.
    #[cold]
    fn extend_to(&mut self, block: BlockId) {
        let len = block.index() + 1;
        self.entries.resize(len, EMPTY);
        if self.verify >= Verify::Fingerprint {
            self.fingerprints.resize(len, 0);
        }
        if self.verify >= Verify::Tokens {
            self.tokens.resize(len * self.block_size, 0);
        }
        if self.keep_parents {
            self.parents.resize(len, EMPTY.hash);
        }
    }

    /// Whether a change met broken links: see [`Self::check_block`].
    #[must_use]
    pub const fn is_torn(&self) -> bool {
        self.torn
    }

    /// Blocks that are registered, computed or not.
    #[must_use]
    pub const fn num_registered(&self) -> usize {
        self.registered
    }

    /// A number that another hash, depth or computed bit of a block would change; 0 without a content.
    #[inline]
    pub(crate) fn content_check(&self, block: BlockId) -> u64 {
        let entry = self.entries.get(block.index()).filter(|entry| entry.is(REGISTERED));
        entry.map_or(0, |entry| entry.check(entry.depth_and_flags))
    }

    /// The checks of all contents, summed up modulo 2^64 as they came and went.
    pub(crate) const fn content_sum(&self) -> u64 {
        self.content_sum
    }

    /// Distinct hashes among them.
    #[must_use]
    pub fn num_hashes(&self) -> usize {
        self.table.len().saturating_sub(self.mixed) // found by the sums, if it is wrong
    }

    /// The hash algorithm of what is registered; `None` while nothing is, and then a chain of any algorithm may be.
    #[must_use]
    pub const fn algorithm(&self) -> Option<HashAlgorithm> {
        if self.registered == 0 { None } else { self.algorithm }
    }

    /// How hits are verified.
    #[must_use]
    pub const fn verify(&self) -> Verify {
        self.verify
    }

    /// Tokens per block.
    #[must_use]
    pub const fn block_size(&self) -> usize {
        self.block_size
    }

    /// Whether `block` is registered.
    #[must_use]
    pub fn contains(&self, block: BlockId) -> bool {
        self.entries.get(block.index()).is_some_and(|entry| entry.is(REGISTERED))
    }

    /// Whether `block` is registered and computed: whether a hit may return it.
    #[must_use]
    pub fn is_computed(&self, block: BlockId) -> bool {
        self.entries.get(block.index()).is_some_and(|entry| entry.is(COMPUTED))
    }

    /// The hash under which `block` is registered.
    #[must_use]
    pub fn hash_of(&self, block: BlockId) -> Option<BlockHash> {
        self.contains(block).then(|| self.entries[block.index()].hash)
    }

    /// What a digest of the state takes in of a registered block: its depth and bits, and the first 8 bytes of its hash.
    /// Zeros without a content.
    #[inline]
    pub(crate) fn content_word(&self, block: BlockId) -> (u32, u64) {
        match self.entries.get(block.index()) {
            Some(entry) if entry.is(REGISTERED) => (entry.depth_and_flags & !HEAD, entry.hash.key()),
            _ => (0, 0),
        }
    }

    /// The position of a registered block in its chain: 0 for the first block of a prompt.
    #[must_use]
    pub fn depth_of(&self, block: BlockId) -> Option<u32> {
        self.contains(block).then(|| self.entries[block.index()].depth_and_flags & DEPTH)
    }

    /// The parent's hash of a registered block; `None` for the first block of a chain, if none is known, or without
    /// `keep_parents`.
    #[must_use]
    pub fn parent_of(&self, block: BlockId) -> Option<BlockHash> {
        if self.depth_of(block)? == 0 {
            return None;
        }
        let own = &self.entries[block.index()].hash;
        self.parents.get(block.index()).copied().filter(|parent| parent != own)
    }

    /// The blocks registered under `hash`: computed ones, in the order in which they became so, then the others, in the order
    /// in which they were registered.
    #[must_use]
    pub fn copies(&self, hash: &BlockHash) -> Vec<BlockId> {
        let (computed, others) = self.heads_of(hash);
        let mut out = Vec::new();
        for head in computed.into_iter().chain(others) {
            let mut at = head;
            // Never longer than the pool: a broken ring ends, it does not hang.
            while let Some(entry) = self.entries.get(at as usize).filter(|entry| entry.hash == *hash)
                && out.len() < self.entries.len()
            {
                out.push(BlockId::new(at));
                at = entry.next;
                if at == head {
                    break;
                }
            }
        }
        out
    }

    /// Whether a computed copy of the block's content exists beside `block`.
    #[must_use]
    pub fn has_other_computed_copy(&self, block: BlockId) -> bool {
        self.other_computed_copy(block).is_some()
    }

    /// The computed copy of the block's content that a lookup would find if `block` were not there.
    pub(crate) fn other_computed_copy(&self, block: BlockId) -> Option<BlockId> {
        let entry = self.entries.get(block.index()).filter(|entry| entry.is(REGISTERED))?;
        // It is the head of the computed ones; or that is this block, and the other one is next.
        let first = entry.is(HEAD) && entry.is(COMPUTED);
        let other = if first { entry.next } else { self.ring_of(&entry.hash, true)? };
        let copy = self.entries.get(other as usize).filter(|copy| copy.hash == entry.hash);
        let computed = other != block.get() && copy.is_some_and(|copy| copy.is(COMPUTED));
        computed.then_some(BlockId::new(other))
    }

    /// The block under `hash` that a lookup would find first: the oldest computed one, else the oldest.
    #[inline]
    fn head_of(&self, hash: &BlockHash) -> Option<u32> {
        let mut uncomputed = None;
        let leads = |&head: &u32| match self.entries.get(head as usize) {
            Some(entry) if entry.hash == *hash => {
                if !entry.is(COMPUTED) {
                    uncomputed = Some(head);
                }
                entry.is(COMPUTED)
            }
            _ => false,
        };
        self.table.find(self.table_key.hash(hash), leads).copied().or(uncomputed)
    }

    /// The head of the ring of the computed blocks under `hash`, or of the others.
    fn ring_of(&self, hash: &BlockHash, computed: bool) -> Option<u32> {
        let leads = |&head: &u32| {
            let entry = self.entries.get(head as usize);
            entry.is_some_and(|entry| entry.is(COMPUTED) == computed && entry.hash == *hash)
        };
        self.table.find(self.table_key.hash(hash), leads).copied()
    }

    /// Both: the head of the computed ones, and that of the others.
    fn heads_of(&self, hash: &BlockHash) -> (Option<u32>, Option<u32>) {
        let (mut computed, mut uncomputed) = (None, None);
        let both = |&head: &u32| {
            if let Some(entry) = self.entries.get(head as usize).filter(|entry| entry.hash == *hash) {
                *(if entry.is(COMPUTED) { &mut computed } else { &mut uncomputed }) = Some(head);
            }
            computed.is_some() && uncomputed.is_some()
        };
        self.table.find(self.table_key.hash(hash), both);
        (computed, uncomputed)
    }

    /// Whether `block` holds the content that `chain` names at `position`, by the index's own verification.
    #[inline]
    fn verifies(&self, block: u32, chain: &HashChain, position: usize) -> bool {
        self.verify == Verify::None
            || chain.link(position).is_some_and(|link| self.verifies_link(block, &link))
    }

    fn verifies_link(&self, block: u32, link: &LinkRef<'_>) -> bool {
        let block = block as usize;
        if self.verify >= Verify::Fingerprint && link.fingerprint.as_ref() != self.fingerprints.get(block) {
            return false;
        }
        self.verify < Verify::Tokens || link.tokens == self.block_tokens(block)
    }

    fn block_tokens(&self, block: usize) -> Option<&[u32]> {
        self.tokens.get(block * self.block_size..(block + 1) * self.block_size)
    }

    /// The block registered under `hash` that a lookup would find first, computed or not.
    pub(crate) fn head_of_hash(&self, hash: &BlockHash) -> Option<BlockId> {
        self.head_of(hash).map(BlockId::new)
    }

    /// What is known of a registered block: enough to register another one with its content, in another tier.
    pub(crate) fn link_of(&self, block: BlockId) -> Option<LinkRef<'_>> {
        Some(LinkRef {
            algorithm: self.algorithm?,
            hash: self.hash_of(block)?,
            fingerprint: self.fingerprints.get(block.index()).copied(),
            tokens: self.block_tokens(block.index()),
            depth: self.depth_of(block)?,
            parent: self.parent_of(block),
        })
    }

    /// The block registered with this content that a lookup would find first, computed or not; `Err(())` if blocks with
    /// its hash hold other content.
    pub(crate) fn find_link(&self, link: &LinkRef<'_>) -> Result<Option<BlockId>, ()> {
        let Some(head) = self.head_of(&link.hash) else { return Ok(None) };
        if self.verifies_link(head, link) { Ok(Some(BlockId::new(head))) } else { Err(()) }
    }

    /// Checks that a block of `block_size` tokens, hashed with `algorithm`, can be registered here.
    pub(crate) fn check_kind(&self, algorithm: HashAlgorithm, block_size: usize) -> Result<(), PoolError> {
        if block_size != self.block_size {
            return Err(PoolError::BlockSizeMismatch { chain: block_size, pool: self.block_size });
        }
        if let Some(pool) = self.algorithm().filter(|&known| known != algorithm) {
            return Err(PoolError::AlgorithmMismatch { chain: algorithm, pool });
        }
        if self.verify == Verify::None && !algorithm.is_cryptographic() {
            return Err(PoolError::UnverifiedAlgorithm { algorithm });
        }
        Ok(())
    }

    /// Checks that the positions up to `last` of a chain can be noted here.
    pub(crate) const fn check_depth(last: usize) -> Result<(), PoolError> {
        if last < MAX_POSITIONS {
            return Ok(());
        }
        Err(PoolError::TooDeep { position: last, most: MAX_POSITIONS - 1 })
    }

    /// Checks that chains of this kind can be looked up and registered here.
    ///
    /// # Errors
    /// [`PoolError::BlockSizeMismatch`], [`PoolError::AlgorithmMismatch`], [`PoolError::UnverifiedAlgorithm`] for a non-cryptographic digest without
    /// verification, [`PoolError::MissingVerification`] for a chain without the fingerprints or tokens to compare.
    pub fn check_chain(&self, chain: &HashChain) -> Result<(), PoolError> {
        self.check_kind(chain.algorithm(), chain.block_size())?;
        let lacks_fingerprints =
            self.verify >= Verify::Fingerprint && chain.fingerprints().len() != chain.len();
        let lacks_tokens =
            self.verify >= Verify::Tokens && chain.tokens().len() != chain.len() * self.block_size;
        if lacks_fingerprints || lacks_tokens {
            return Err(PoolError::MissingVerification {
                verify: if lacks_fingerprints { "fingerprints" } else { "tokens" },
            });
        }
        Ok(())
    }

    /// The computed block that holds the content of the chain's block `position`, or `None`. O(1).
    ///
    /// The caller has passed the chain to [`Self::check_chain`]. A collision is a miss.
    #[must_use]
    pub fn find(&self, chain: &HashChain, position: usize) -> Option<BlockId> {
        self.find_or_collision(chain, position).ok().flatten()
    }

    /// As [`Self::find`]; `Err(())` if blocks with this hash exist and hold other content.
    #[inline]
    pub(crate) fn find_or_collision(
        &self,
        chain: &HashChain,
        position: usize,
    ) -> Result<Option<BlockId>, ()> {
        let Some(head) = chain.hashes().get(position).and_then(|hash| self.head_of(hash)) else {
            return Ok(None);
        };
        if !self.verifies(head, chain, position) {
            return Err(());
        }
        Ok(self.entries[head as usize].is(COMPUTED).then_some(BlockId::new(head)))
    }

    /// Whether some block, computed or not, is registered under the chain's hash at `position`.
    #[must_use]
    pub fn is_registered(&self, chain: &HashChain, position: usize) -> bool {
        let head = chain.hashes().get(position).and_then(|hash| self.head_of(hash));
        head.is_some_and(|head| self.verifies(head, chain, position))
    }
}

/// How much there is, and not what: the tokens that verify a hit are users' prompts, and the table's key is a secret.
impl fmt::Debug for PrefixIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrefixIndex")
            .field("num_blocks", &self.num_blocks)
            .field("block_size", &self.block_size)
            .field("verify", &self.verify)
            .field("algorithm", &self.algorithm)
            .field("registered", &self.registered)
            .finish_non_exhaustive()
    }
}
