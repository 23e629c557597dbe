//! `Feed`: a log of the changes of a pool's contents, with their tokens, for publishers of events. The
//! changes are those of [`crate::BlockEvent`].
//!
//! Routers outside of the engine need the tokens that belong to each hash, but the pool does not store
//! tokens. So when a block is registered, the feed copies the tokens of the block into a slot that
//! belongs to the block. When the content becomes computed, so that lookups find it, the feed copies
//! the tokens into its log, because the scheduler may reuse the block later. A publisher takes the log
//! periodically and processes it in its own thread.
//!
//! The log is bounded. If it is full before a publisher takes it, all changes in it are dropped. The
//! next batch then contains all contents that the pool has at that time, as if they had just been
//! stored. An event has tokens only if the content was registered on the device, with its hash chain.
//! If changes are dropped, the tokens of contents that have moved to another tier are lost.
//!
//! Costs: 4 bytes per token slot of the pool and 1 byte per block. Each new content takes about 10 ns
//! for 16 tokens. After changes were dropped, the next batch takes O(blocks) under the pool's lock,
//! about 30 ns per block.

use std::ops::Range;
use std::sync::Arc;

use kvpool::observe::{Computed, ContentView, NewContents, Removed};
use kvpool::{BlockHash, BlockId, BlockPool, CacheManager, ExtraKeys, HashAlgorithm, HashCursor, PoolError};

/// A range of tokens in a [`FeedBatch`]; [`FeedBatch::tokens`] returns them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenSpan {
    start: u32,
    len: u32,
}

/// Refers to the previous content of a hash chain, in a [`FeedBatch`]. [`FeedBatch::parent`] returns
/// its hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParentLink {
    /// The content has no predecessor, or its predecessor is unknown.
    None,
    /// The predecessor is the content of the previous event in the batch.
    Before,
    /// The predecessor is given by the index of its hash in this batch.
    Other(u32),
}

/// A change of the contents of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FeedEvent {
    /// The first computed copy of a content was registered: see [`crate::BlockEvent::Stored`].
    Stored {
        /// Its hash.
        hash: BlockHash,
        /// Its KV-cache group.
        group: u16,
        /// The previous block of the hash chain, if a hit in this KV-cache group needs it.
        parent: ParentLink,
        /// The position of the content in its hash chain. It may be 0 in KV-cache groups other than
        /// full attention.
        depth: u32,
        /// The tokens of the content, if they are known.
        tokens: Option<TokenSpan>,
    },
    /// The last computed copy of a content was removed.
    Removed {
        /// Its hash.
        hash: BlockHash,
        /// Its KV-cache group.
        group: u16,
    },
    /// All contents of the pool were removed.
    Cleared,
}

/// The tokens and extra keys of a content, which its pool does not store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Learned {
    /// Its hash.
    pub hash: BlockHash,
    /// Its KV-cache group.
    pub group: u16,
    /// The hash of the previous block in the hash chain.
    pub parent: Option<BlockHash>,
    /// Its tokens.
    pub tokens: TokenSpan,
    /// The extra keys of the content; `None` if it was hashed without any.
    pub extra: Option<Arc<ExtraKeys>>,
    /// The position of the content's first token in its request.
    pub first_token: usize,
}

/// The batch that [`crate::PoolWatch::take_feed`] returns.
///
/// ```
/// use kvpool::BlockHash;
/// use kvpool_observe::FeedBatch;
/// let (first, second) = (BlockHash::from_bytes([1; 32]), BlockHash::from_bytes([2; 32]));
/// let mut batch = FeedBatch::default();
/// batch.stored(first, 0, None, 0, Some(&[1, 2]));
/// batch.stored(second, 0, Some(first), 1, Some(&[3, 4]));
/// assert_eq!(batch.parent(1), Some(first));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeedBatch {
    /// Changes in order. If changes were lost, the list is a [`FeedEvent::Cleared`], followed by all
    /// contents that the pool has.
    pub events: Vec<FeedEvent>,
    /// Tokens and extra keys that became known after the last batch. They belong to contents of this
    /// batch or of earlier batches.
    pub learned: Vec<Learned>,
    /// Whether changes were lost, because the log was full.
    pub lost: bool,
    /// The length of a digest in bytes: the first bytes of each hash. 0 means all bytes.
    pub digest_len: usize,
    tokens: Vec<u32>,
    parents: Vec<BlockHash>,
}

impl FeedBatch {
    /// Returns the tokens in a span (range of tokens) of this batch.
    #[must_use]
    pub fn tokens(&self, span: TokenSpan) -> &[u32] {
        let start = span.start as usize;
        self.tokens.get(start..start + span.len as usize).unwrap_or_default()
    }

    /// The hash of the predecessor of the content of event `at`, if it is known.
    #[must_use]
    pub fn parent(&self, at: usize) -> Option<BlockHash> {
        let Some(FeedEvent::Stored { parent, .. }) = self.events.get(at) else { return None };
        match *parent {
            ParentLink::None => None,
            ParentLink::Before => match self.events.get(at.checked_sub(1)?)? {
                FeedEvent::Stored { hash, .. } => Some(*hash),
                _ => None,
            },
            ParentLink::Other(at) => self.parents.get(at as usize).copied(),
        }
    }

    /// Adds an event for a stored content. Use this in an engine integration that does not use a pool
    /// of kvpool.
    pub fn stored(
        &mut self,
        hash: BlockHash,
        group: u16,
        parent: Option<BlockHash>,
        depth: u32,
        tokens: Option<&[u32]>,
    ) {
        self.note_stored(&hash, group, parent.as_ref(), depth, tokens);
    }

    #[inline]
    fn note_stored(
        &mut self,
        hash: &BlockHash,
        group: u16,
        parent: Option<&BlockHash>,
        depth: u32,
        tokens: Option<&[u32]>,
    ) {
        // A token span has 32-bit positions. If the batch has more tokens, treat these tokens as
        // unknown.
        let has_room = |tokens: &&[u32]| self.tokens.len() + tokens.len() <= u32::MAX as usize;
        let tokens = tokens.filter(has_room).map(|tokens| self.add(tokens));
        let parent = match (parent, self.events.last()) {
            (None, _) => ParentLink::None,
            // Usually the parent is the content of the previous event, because blocks are registered in
            // the order of their chain.
            (Some(parent), Some(FeedEvent::Stored { hash, .. })) if hash == parent => ParentLink::Before,
            (Some(parent), _) => {
                self.parents.push(*parent);
                ParentLink::Other((self.parents.len() - 1) as u32)
            }
        };
        self.events.push(FeedEvent::Stored { hash: *hash, group, parent, depth, tokens });
    }

    /// Adds an event for the removal of the last copy of a content.
    pub fn removed(&mut self, hash: BlockHash, group: u16) {
        self.events.push(FeedEvent::Removed { hash, group });
    }

    /// Drops all earlier changes, and adds an event for the removal of all contents.
    pub fn cleared(&mut self) {
        self.clear();
        self.events.push(FeedEvent::Cleared);
    }

    /// Whether the batch is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.events.is_empty() && self.learned.is_empty()
    }

    /// Adds the tokens and extra keys of known contents that another batch contains.
    pub(crate) fn absorb(&mut self, other: Self) {
        let offset = self.tokens.len();
        self.tokens.extend_from_slice(&other.tokens);
        self.learned.extend(other.learned.into_iter().map(|mut learned| {
            learned.tokens.start += offset as u32;
            learned
        }));
    }

    pub(crate) fn add(&mut self, tokens: &[u32]) -> TokenSpan {
        let start = self.tokens.len() as u32;
        match <&UsualBlock>::try_from(tokens) {
            Ok(usual) => self.tokens.extend_from_slice(usual),
            Err(_) => self.tokens.extend_from_slice(tokens),
        }
        TokenSpan { start, len: tokens.len() as u32 }
    }

    /// Empties the batch for reuse. The allocated memory is kept.
    pub fn renew(&mut self) {
        self.clear();
        (self.lost, self.digest_len) = (false, 0);
    }

    fn clear(&mut self) {
        self.events.clear();
        self.learned.clear();
        self.tokens.clear();
        self.parents.clear();
    }
}

/// The tokens of a block of 16 tokens, which is the usual size. A copy of a fixed size is faster,
/// because the compiler inlines it.
type UsualBlock = [u32; 16];

#[inline]
fn copy(tokens: &[u32], to: &mut [u32]) {
    match (<&UsualBlock>::try_from(tokens), <&mut UsualBlock>::try_from(&mut *to)) {
        (Ok(tokens), Ok(to)) => *to = *tokens,
        _ => to.copy_from_slice(tokens),
    }
}

/// The largest capacity that a feed can be configured to have, in changes.
const MAX_CAPACITY: usize = 1 << 32;

/// The maximum number of tokens in a batch.
const MAX_TOKENS: usize = 1 << 31;

#[derive(Clone, Debug)]
pub(crate) struct Feed {
    capacity: usize,
    block_tokens: usize,
    batch: FeedBatch,
    /// The tokens of each block, one slot of `block_size` tokens per block.
    slots: Vec<u32>,
    /// For each block, whether `tokens` contains the tokens of the content that is registered in the
    /// block.
    is_known: Vec<bool>,
}

impl Feed {
    pub(crate) fn new(capacity: usize, pool: &BlockPool) -> Result<Self, PoolError> {
        if capacity == 0 || capacity > MAX_CAPACITY {
            return Err(PoolError::config("capacity", capacity, format!("1 to {MAX_CAPACITY} changes")));
        }
        let block_tokens = pool.block_size();
        let mut feed = Self {
            capacity,
            block_tokens,
            batch: FeedBatch::default(),
            slots: Vec::new(),
            is_known: Vec::new(),
        };
        feed.grow(pool.blocks().len())?;
        // Report contents that the pool already has in the same way as after a loss of changes.
        feed.batch.lost =
            (1..pool.blocks().len() as u32).any(|block| pool.is_registered(BlockId::new(block)));
        Ok(feed)
    }

    pub(crate) fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        let tokens = num_blocks.saturating_mul(self.block_tokens);
        let refused = |_| PoolError::config("num_blocks", num_blocks, "memory for the tokens of each block");
        self.slots.try_reserve_exact(tokens.saturating_sub(self.slots.len())).map_err(refused)?;
        self.is_known.try_reserve_exact(num_blocks.saturating_sub(self.is_known.len())).map_err(refused)?;
        self.slots.resize(tokens.max(self.slots.len()), 0);
        self.is_known.resize(num_blocks.max(self.is_known.len()), false);
        Ok(())
    }

    pub(crate) fn registered(&mut self, new: &NewContents<'_>) {
        let size = self.block_tokens;
        let tokens = new.chain.and_then(|(chain, start)| {
            let span = start.checked_mul(size)?..(start + new.blocks.len()).checked_mul(size)?;
            chain.tokens().get(span).filter(|_| chain.block_size() == size)
        });
        let mut tokens = tokens.map(|tokens| tokens.chunks_exact(size));
        for block in new.blocks {
            let some = tokens.as_mut().and_then(Iterator::next);
            if let Some(known) = self.is_known.get_mut(block.index()) {
                *known = some.is_some();
            }
            let start = block.index() * size;
            if let (Some(some), Some(slot)) = (some, self.slots.get_mut(start..start + size)) {
                copy(some, slot);
            }
        }
    }

    /// Whether there is room for one more change. If not, all changes are dropped.
    #[inline]
    fn has_room(&mut self) -> bool {
        // Token spans use 32-bit positions, so the number of tokens is limited, too.
        let is_full = self.batch.events.len() >= self.capacity || self.batch.tokens.len() >= MAX_TOKENS;
        if is_full && !self.batch.lost {
            self.batch.clear();
            self.batch.lost = true;
        }
        !self.batch.lost
    }

    fn slot(&self, block: BlockId) -> Option<&[u32]> {
        let start = block.index() * self.block_tokens;
        let known = self.is_known.get(block.index()).copied().unwrap_or(false);
        self.slots.get(start..start + self.block_tokens).filter(|_| known)
    }

    pub(crate) fn computed(&mut self, computed: &Computed) {
        let &Computed { block, ref content, ref parent, algorithm, first, .. } = computed;
        if !first {
            return;
        }
        if let Some(algorithm) = algorithm {
            self.batch.digest_len = algorithm.digest_len();
        }
        if !self.has_room() {
            return;
        }
        let start = block.index() * self.block_tokens;
        let known = self.is_known.get(block.index()).copied().unwrap_or(false);
        let tokens = self.slots.get(start..start + self.block_tokens).filter(|_| known);
        self.batch.note_stored(&content.hash, content.group, parent.as_ref(), content.depth, tokens);
    }

    pub(crate) fn removed(&mut self, removed: &Removed) {
        if removed.last && self.has_room() {
            self.batch.removed(removed.content.hash, removed.content.group);
        }
    }

    pub(crate) fn cleared(&mut self) {
        // The removal of all contents makes all earlier changes obsolete, even if some of them were
        // lost.
        self.batch.cleared();
        self.batch.lost = false;
    }

    /// Drops all changes and all tokens. This is called when tokens or extra keys of contents were
    /// lost.
    pub(crate) fn forget(&mut self) {
        self.batch.clear();
        self.batch.lost = true;
        self.is_known.fill(false);
    }

    pub(crate) const fn is_lost(&self) -> bool {
        self.batch.lost
    }

    /// Moves the changes since the last call into `batch`, and reuses the memory of `batch` for the
    /// next changes. If changes were lost, adds `held`: all contents that the pool has.
    pub(crate) fn take(&mut self, held: Vec<Held>, algorithm: Option<HashAlgorithm>, batch: &mut FeedBatch) {
        batch.renew();
        std::mem::swap(&mut self.batch, batch);
        if batch.lost {
            batch.cleared();
            batch.digest_len = algorithm.map_or(0, HashAlgorithm::digest_len);
            for Held { block, content, parent } in held {
                batch.stored(content.hash, content.group, parent, content.depth, self.slot(block));
            }
        }
    }
}

/// A log of data about contents that the pool does not store: extra keys, if a content was hashed with
/// any, and the tokens of contents if there are KV-cache groups. It has the same bound as a feed. If it
/// overflows, the caller calls [`Feed::forget`] on the feed.
#[derive(Debug, Default)]
pub(crate) struct LearnedLog {
    capacity: usize,
    batch: FeedBatch,
}

impl LearnedLog {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { capacity, ..Self::default() }
    }

    /// Records the extra keys and tokens of the hash units that a request has registered or computed.
    pub(crate) fn published(&mut self, slot: usize, units: Range<usize>, manager: &CacheManager) {
        let Some(request) = manager.request_at(slot).filter(|_| self.capacity > 0) else { return };
        let (cursor, groups) = (request.cursor, manager.groups());
        let extra = cursor.extra();
        let is_plain = extra.adapter.is_none()
            && extra.salt.is_none()
            && extra.tenant.is_none()
            && extra.user.is_none()
            && extra.multimodal.is_empty();
        if is_plain && groups.is_none() {
            return;
        }
        let extra = (!is_plain).then(|| Arc::new(extra.clone()));
        let Some(groups) = groups else {
            units.for_each(|unit| self.learn(cursor, 0, unit..unit + 1, extra.as_ref()));
            return;
        };
        for (group, spec) in groups.specs().iter().enumerate() {
            let per_block = spec.block_tokens / groups.unit();
            // Record each block whose last hash unit (part with a digest) is in the range `units`.
            for at in units.start / per_block..units.end / per_block {
                self.learn(cursor, group as u16, at * per_block..(at + 1) * per_block, extra.as_ref());
            }
        }
    }

    fn learn(
        &mut self,
        cursor: &HashCursor,
        group: u16,
        units: Range<usize>,
        extra: Option<&Arc<ExtraKeys>>,
    ) {
        if self.batch.learned.len() >= self.capacity {
            self.batch.lost = true;
        }
        if self.batch.lost {
            self.batch.clear();
            return;
        }
        let chain = cursor.chain();
        let size = chain.block_size();
        let tokens = chain.tokens().get(units.start * size..units.end * size);
        let hash = units.end.checked_sub(1).and_then(|last| chain.hashes().get(last));
        let (Some(&hash), Some(tokens)) = (hash, tokens) else { return };
        let parent = units.start.checked_sub(1).and_then(|before| chain.hashes().get(before)).copied();
        let (tokens, extra) = (self.batch.add(tokens), extra.map(Arc::clone));
        let first_token = units.start * size;
        self.batch.learned.push(Learned { hash, group, parent, tokens, extra, first_token });
    }

    /// Returns the extra keys and tokens that were recorded since the last call. `None` if some were
    /// lost.
    pub(crate) fn take(&mut self) -> Option<FeedBatch> {
        let batch = std::mem::take(&mut self.batch);
        (!batch.lost).then_some(batch)
    }
}

/// A block that has a computed content, with the content's hash and position.
pub(crate) struct Held {
    block: BlockId,
    content: ContentView,
    parent: Option<BlockHash>,
}

/// Returns all blocks that have a computed content. O(blocks).
pub(crate) fn held(pool: &BlockPool) -> Vec<Held> {
    let blocks = pool.blocks();
    let ids = (1..blocks.len() as u32).map(BlockId::new);
    let computed = ids.filter_map(|block| {
        let content = blocks.get(block).content.filter(|content| content.computed)?;
        Some(Held { block, content, parent: pool.parent_of(block) })
    });
    computed.collect()
}
