//! The cursor: the hash chain of a sequence that grows, and sometimes shrinks.
//!
//! A cursor contains the chain of the full blocks, and the tokens of the last block if it is only
//! partly filled. An appended token is only stored until its block is full. Then the block is hashed,
//! once. Invariant: at any time, the chain equals the chain that results from hashing all tokens at
//! once.
//!
//! A turn of a conversation may add multimodal items together with its tokens
//! ([`HashCursor::append_with`]). An item begins after the existing tokens, so existing digests never
//! change.
//!
//! [`HashCursor::append`] cannot fail, because the extra keys are checked when the cursor is made, and
//! any tokens can be hashed.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::extra::ItemIndex;
use super::hasher::ChainState;
use super::{BlockHash, BlockHasher, ExtraKeys, HashChain, HashError, KnownBlocks, MultimodalItem};

/// The largest number of tokens for which a partial block gets memory in advance.
const MOST_RESERVED: usize = 256;

/// Hashes one sequence as it grows.
///
/// ```
/// use std::sync::Arc;
/// use kvpool_hash::{BlockHasher, ExtraKeys, HashCursor, HasherConfig};
/// let hasher = Arc::new(BlockHasher::new(HasherConfig { block_size: 4, ..HasherConfig::default() })?);
/// let mut cursor = HashCursor::new(hasher, ExtraKeys::default())?;
/// assert_eq!(cursor.append(&[1, 2, 3, 4, 5, 6]), 1);
/// assert_eq!(cursor.tail(), [5, 6]);
/// assert_eq!(cursor.append(&[7]), 0);
/// assert_eq!(cursor.append(&[8]), 1);
/// assert_eq!(cursor.chain().len(), 2);
///
/// // A rejected draft: back to six tokens, without hashing anything.
/// cursor.truncate(6)?;
/// assert_eq!((cursor.chain().len(), cursor.tail()), (1, [5, 6].as_slice()));
/// # Ok::<(), kvpool_hash::HashError>(())
/// ```
#[derive(Clone)]
pub struct HashCursor {
    hasher: Arc<BlockHasher>,
    chain: HashChain,
    /// The tokens after the last full block. Their number is smaller than the block size.
    tail: Vec<u32>,
    /// The inputs of the hashes other than tokens. They are behind a pointer, so that a decode step
    /// reads few cache lines per sequence.
    seed: Arc<Seed>,
    hashed_blocks: u64,
}

/// The inputs of the hashes other than tokens. Clones of a cursor share one `Seed` until one of the
/// clones changes it.
#[derive(Clone)]
struct Seed {
    extra: ExtraKeys,
    items: ItemIndex,
    /// The digest and the fingerprint of the empty prefix, which is the parent of the first block.
    root: ChainState,
}

impl Seed {
    fn edit_items(&mut self, edit: impl FnOnce(&mut Vec<MultimodalItem>)) {
        edit(&mut self.extra.multimodal);
        self.items = ItemIndex::new(&self.extra.multimodal);
    }
}

/// Prints the length of the sequence, but not its tokens.
impl fmt::Debug for HashCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HashCursor")
            .field("num_tokens", &self.num_tokens())
            .field("extra", &self.seed.extra)
            .finish_non_exhaustive()
    }
}

impl HashCursor {
    /// Makes a cursor at the start of a sequence, and computes the digest of the empty prefix, which
    /// depends on the extra keys.
    ///
    /// # Errors
    /// The errors of [`BlockHasher::check_extra`].
    pub fn new(hasher: Arc<BlockHasher>, extra: ExtraKeys) -> Result<Self, HashError> {
        let root = hasher.root(&extra)?;
        let chain = HashChain::new(&hasher, extra.epoch);
        let items = ItemIndex::new(&extra.multimodal);
        let seed = Arc::new(Seed { extra, items, root });
        Ok(Self { hasher, chain, tail: Vec::new(), seed, hashed_blocks: 0 })
    }

    /// Appends tokens, and returns the number of blocks that they completed. If they complete no block,
    /// nothing is hashed.
    ///
    /// Cost: a copy of the tokens, and one hash per completed block. On average, appending does not
    /// allocate per block.
    #[inline]
    pub fn append(&mut self, tokens: &[u32]) -> usize {
        let missing = self.chain.block_size() - self.tail.len();
        if tokens.len() < missing {
            if self.tail.capacity() - self.tail.len() < tokens.len() {
                self.tail.reserve(missing.min(MOST_RESERVED));
            }
            // Decoding appends one token at a time. `push` avoids a call of memcpy for it.
            match tokens {
                [token] => self.tail.push(*token),
                _ => self.tail.extend_from_slice(tokens),
            }
            return 0;
        }
        self.append_blocks(tokens, missing)
    }

    /// Appends the tokens of a turn that adds multimodal items, and returns the number of blocks that
    /// they completed. Positions of items are counted from the start of the sequence, as in
    /// [`ExtraKeys::multimodal`]. The digests are the same as if the cursor had got all tokens and
    /// items at once. An item may begin after the tokens that are appended with it.
    ///
    /// Costs as much as [`HashCursor::append`]. With items, it also takes `O(n log n)` for all `n`
    /// items of the sequence.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use kvpool_hash::{BlockHasher, ExtraKeys, HashCursor, HasherConfig, MultimodalItem};
    /// let hasher = Arc::new(BlockHasher::new(HasherConfig { block_size: 4, ..HasherConfig::default() })?);
    /// let image = MultimodalItem { identifier: (*b"digest of the image").into(), offset: 7, length: 2 };
    ///
    /// let mut turns = HashCursor::new(Arc::clone(&hasher), ExtraKeys::default())?;
    /// turns.append(&[1, 2, 3, 4, 5, 6]);
    /// turns.append_with(&[7, 0, 0, 8], &[image.clone()])?;
    ///
    /// let extra = ExtraKeys { multimodal: vec![image], ..ExtraKeys::default() };
    /// let mut once = HashCursor::new(hasher, extra)?;
    /// once.append(&[1, 2, 3, 4, 5, 6, 7, 0, 0, 8]);
    /// assert_eq!(turns.chain(), once.chain());
    /// # Ok::<(), kvpool_hash::HashError>(())
    /// ```
    ///
    /// # Errors
    /// [`HashError::ItemAppended`] for an item that begins before the end of the existing tokens;
    /// [`HashError::ItemRange`], [`HashError::TooManyItems`] and [`HashError::ExtraNotUtf8`] as in
    /// [`BlockHasher::check_extra`]. If an error is returned, the cursor is unchanged.
    pub fn append_with(&mut self, tokens: &[u32], multimodal: &[MultimodalItem]) -> Result<usize, HashError> {
        if !multimodal.is_empty() {
            self.add_items(multimodal)?;
        }
        Ok(self.append(tokens))
    }

    /// Adds items, which must begin at or after the end of the existing tokens.
    #[cold]
    fn add_items(&mut self, items: &[MultimodalItem]) -> Result<(), HashError> {
        self.hasher.check_items(items, self.seed.extra.multimodal.len())?;
        let len = self.num_tokens();
        if let Some(index) = items.iter().position(|item| item.offset < len as u64) {
            return Err(HashError::ItemAppended { index, offset: items[index].offset, len });
        }
        Arc::make_mut(&mut self.seed).edit_items(|known| known.extend_from_slice(items));
        Ok(())
    }

    /// Appends leading tokens like [`HashCursor::append`], but copies the states of blocks that `known`
    /// contains instead of hashing them. The cursor is afterwards equal to one that has hashed these
    /// tokens.
    ///
    /// The call hashes a block only if `known` has no state for it: the first block, blocks that
    /// multimodal items overlap, and the first block after a branch. It stops after a hashed block
    /// that `known` does not contain, because `known` then rarely contains the blocks after it, or
    /// after at least `most_blocks` blocks. Returns the number of appended tokens. Append the others
    /// with [`HashCursor::append`]; after `most_blocks` blocks, this function can continue.
    ///
    /// Costs: a copy and a comparison of the tokens per known block.
    pub fn append_known(
        &mut self,
        tokens: &[u32],
        known: &mut impl KnownBlocks,
        most_blocks: usize,
    ) -> usize {
        let block_size = self.hasher.block_size();
        let mut at = 0;
        if !self.tail.is_empty() {
            at = tokens.len().min(block_size - self.tail.len());
            self.append(&tokens[..at]);
        }
        let enough = at.saturating_add(most_blocks.saturating_mul(block_size)).min(tokens.len());
        let mut found = self.chain.last_state().is_some_and(|state| known.find(&state));
        while tokens.len() - at >= block_size && at < enough {
            if found {
                at += self.follow(&tokens[at..enough], known);
            }
            let Some(block) = tokens[at..].get(..block_size).filter(|_| at < enough) else { break };
            self.append(block);
            at += block_size;
            found = self.chain.last_state().is_some_and(|state| known.find(&state));
            if !found {
                return at;
            }
        }
        if tokens.len() - at < block_size {
            self.append(&tokens[at..]);
            at = tokens.len();
        }
        at
    }

    /// Appends the states of whole blocks that `known` contains after the last block. Returns the
    /// number of their tokens.
    fn follow(&mut self, tokens: &[u32], known: &mut impl KnownBlocks) -> usize {
        let block_size = self.hasher.block_size();
        let Some(state) = self.chain.last_state() else { return 0 };
        let Seed { extra, items, .. } = &*self.seed;
        let start = self.chain.tokens().len() as u64;
        let plain = items.plain_tokens(&extra.multimodal, start, tokens.len());
        let tokens = &tokens[..plain - plain % block_size];
        let appended = self.chain.push_known(tokens, self.hasher.has_fingerprints(), |states| {
            known.follow(&state, tokens, states);
        });
        appended * block_size
    }

    /// Does the work of [`HashCursor::append`] if the tokens complete a block. The first `missing` of
    /// the tokens complete the partly filled block.
    fn append_blocks(&mut self, tokens: &[u32], missing: usize) -> usize {
        let block_size = self.hasher.block_size();
        let before = self.chain.len();
        let mut rest = tokens;
        if !self.tail.is_empty() {
            let (head, after) = tokens.split_at(missing);
            let mut block = std::mem::take(&mut self.tail);
            block.extend_from_slice(head);
            self.hash(&block);
            // The next partly filled block reuses the memory of the completed one.
            block.clear();
            self.tail = block;
            rest = after;
        }
        let (blocks, tail) = rest.split_at(rest.len() - rest.len() % block_size);
        if !blocks.is_empty() {
            self.hash(blocks);
        }
        self.tail.extend_from_slice(tail);
        self.chain.len() - before
    }

    fn hash(&mut self, blocks: &[u32]) {
        let Seed { extra, items, root } = &*self.seed;
        let state = self.chain.last_state().unwrap_or(*root);
        self.hasher.extend_unchecked(&mut self.chain, state, extra, items, blocks);
        self.hashed_blocks += (blocks.len() / self.hasher.block_size()) as u64;
    }

    /// Removes all tokens after the first `num_tokens` tokens. A block that is no longer full loses its
    /// hash. Nothing is hashed.
    ///
    /// A multimodal item is removed if its first token is removed. To add it again, append it with its
    /// tokens. An item that begins before the new end remains, with its full length. An item that
    /// begins after the old end of the tokens, because it was added before its tokens, also remains.
    ///
    /// Cost: O(removed tokens). If items are removed, also `O(n log n)` for all `n` items.
    ///
    /// # Errors
    /// [`HashError::TruncateBeyondEnd`] if the sequence has fewer tokens. The cursor is then unchanged.
    pub fn truncate(&mut self, num_tokens: usize) -> Result<(), HashError> {
        let len = self.num_tokens();
        if num_tokens > len {
            return Err(HashError::TruncateBeyondEnd { requested: num_tokens, len });
        }
        if self.seed.items.reaches(&self.seed.extra.multimodal, num_tokens as u64) {
            self.drop_items(num_tokens as u64..len as u64);
        }
        let hashed = self.chain.tokens().len();
        if num_tokens >= hashed {
            self.tail.truncate(num_tokens - hashed);
            return Ok(());
        }
        let blocks = num_tokens / self.hasher.block_size();
        let start = blocks * self.hasher.block_size();
        self.tail.clear();
        self.tail.extend_from_slice(&self.chain.tokens()[start..num_tokens]);
        self.chain.truncate(blocks);
        Ok(())
    }

    #[cold]
    fn drop_items(&mut self, gone: Range<u64>) {
        Arc::make_mut(&mut self.seed).edit_items(|items| items.retain(|item| !gone.contains(&item.offset)));
    }

    /// Changes the epoch (the version of the model's weights) of the sequence. All blocks are hashed
    /// again if the epoch changes and the hashes depend on it. With vLLM's encodings and without
    /// fingerprints they do not, and only the chain's stored epoch changes.
    ///
    /// # Errors
    /// The errors of [`BlockHasher::check_extra`]. The cursor is then unchanged.
    pub fn rebase(&mut self, epoch: u64) -> Result<(), HashError> {
        if epoch == self.epoch() {
            return Ok(());
        }
        // The check cannot fail today: these extra keys were accepted when the cursor was made, and
        // every epoch is accepted. It is here in case that a later rule depends on the epoch.
        self.hasher.check_extra(&self.seed.extra)?;
        let seed = Arc::make_mut(&mut self.seed);
        seed.extra.epoch = epoch;
        if !self.hasher.depends_on_epoch() {
            self.chain.set_epoch(epoch);
            return Ok(());
        }
        let old = std::mem::replace(&mut self.chain, HashChain::new(&self.hasher, epoch));
        seed.root = self.hasher.root_unchecked(&seed.extra);
        self.hash(old.tokens());
        Ok(())
    }

    /// Returns the hashes that a range of blocks has in another epoch. `before` is the hash that the
    /// block before the range has in that epoch; `None` if the range begins with the first block.
    ///
    /// Costs: one hash per block of the range, or a copy if the hashes do not depend on the epoch.
    ///
    /// # Panics
    /// If the chain does not contain the range.
    #[must_use]
    pub fn hashes_in_epoch(
        &self,
        epoch: u64,
        blocks: Range<usize>,
        before: Option<BlockHash>,
    ) -> Vec<BlockHash> {
        if epoch == self.epoch() || !self.hasher.depends_on_epoch() {
            return self.chain.hashes()[blocks].to_vec();
        }
        let Seed { extra, items, .. } = &*self.seed;
        // Only the root contains the epoch, and no digest depends on a fingerprint.
        let state = before.map_or_else(
            || self.hasher.root_unchecked(&ExtraKeys { epoch, ..extra.clone() }),
            |before| ChainState::new(before, 0),
        );
        let size = self.hasher.block_size();
        let mut hashes = Vec::with_capacity(blocks.len());
        let tokens = &self.chain.tokens()[blocks.start * size..blocks.end * size];
        let start = (blocks.start * size) as u64;
        self.hasher.run(state, start, tokens, extra, items, |state| hashes.push(state.digest()));
        hashes
    }

    /// The number of tokens in the sequence, including those of a partly filled last block.
    #[inline]
    #[must_use]
    pub fn num_tokens(&self) -> usize {
        self.chain.tokens().len() + self.tail.len()
    }

    /// The tokens after the last full block. Their number is smaller than the block size.
    #[inline]
    #[must_use]
    pub fn tail(&self) -> &[u32] {
        &self.tail
    }

    /// The token at `position`, counted from the start of the sequence.
    #[inline]
    #[must_use]
    pub fn token_at(&self, position: usize) -> Option<u32> {
        let hashed = self.chain.tokens();
        match position.checked_sub(hashed.len()) {
            None => hashed.get(position).copied(),
            Some(in_tail) => self.tail.get(in_tail).copied(),
        }
    }

    /// The hashes of the full blocks.
    #[inline]
    #[must_use]
    pub fn chain(&self) -> &HashChain {
        &self.chain
    }

    /// The extra keys of the sequence, including the items of all its turns.
    #[inline]
    #[must_use]
    pub fn extra(&self) -> &ExtraKeys {
        &self.seed.extra
    }

    /// The hasher.
    #[inline]
    #[must_use]
    pub fn hasher(&self) -> &Arc<BlockHasher> {
        &self.hasher
    }

    /// The epoch of the sequence.
    #[inline]
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.chain.epoch()
    }

    /// The number of blocks that this cursor has hashed. A block that was hashed twice counts twice, so
    /// tests can measure the work that was done.
    #[inline]
    #[must_use]
    pub fn hashed_blocks(&self) -> u64 {
        self.hashed_blocks
    }
}
