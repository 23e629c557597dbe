//! `Feed`: what a publisher of events is told of a pool: the changes that [`crate::BlockEvent`] has,
//! with the tokens of what came.
//!
//! Routers outside want to know which tokens a hash stands for, and the pool knows none. So the feed
//! copies them when blocks are registered, a place for each block, and again into its log when a
//! block's content can be found: by then a scheduler may have put something else into the block. A
//! publisher takes the log away from time to time, and works on it in its own thread.
//!
//! Owns: the tokens of what is registered in each block, and the log. Bounded: a log that nobody takes
//! for too long is dropped, and so is nothing else: whoever takes it next is told what the pool holds
//! by then, as if all of it had just come. Tokens are of what was registered with its chain, on the
//! device; of what moved to another tier meanwhile a loss loses them.
//!
//! Costs: 4 bytes per token slot of the pool and 1 per block; per content that comes some 10 ns for 16
//! tokens. What is told anew costs O(blocks), under the pool's lock, some 30 ns each.

use std::ops::Range;
use std::sync::Arc;

use kvpool::observe::{Computed, ContentView, NewContents, Removed};
use kvpool::{BlockHash, BlockId, BlockPool, CacheManager, ExtraKeys, HashAlgorithm, HashCursor, PoolError};

/// Tokens of a [`FeedBatch`]: [`FeedBatch::tokens`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenSpan {
    start: u32,
    len: u32,
}

/// What is before a content in its chain, in a [`FeedBatch`]: [`FeedBatch::parent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParentLink {
    /// Nothing, or nothing that is known.
    None,
    /// The content of the event before.
    Before,
    /// A hash of this batch's.
    Other(u32),
}

/// A change of the contents of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FeedEvent {
    /// The first computed copy of a content: see [`crate::BlockEvent::Stored`].
    Stored {
        /// Its hash.
        hash: BlockHash,
        /// Its KV-cache group.
        group: u16,
        /// The block before it in its chain, as far as its group needs one.
        parent: ParentLink,
        /// Its position in its chain; in groups other than full attention it may be 0.
        depth: u32,
        /// Its tokens, if the pool was told of them.
        tokens: Option<TokenSpan>,
    },
    /// The last computed copy is gone.
    Removed {
        /// Its hash.
        hash: BlockHash,
        /// Its KV-cache group.
        group: u16,
    },
    /// Everything was forgotten.
    Cleared,
}

/// What is known of a content beside what its pool was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Learned {
    /// Its hash.
    pub hash: BlockHash,
    /// Its KV-cache group.
    pub group: u16,
    /// The hash of the block before it in its chain.
    pub parent: Option<BlockHash>,
    /// Its tokens.
    pub tokens: TokenSpan,
    /// What it was hashed with beside them; `None` if nothing.
    pub extra: Option<Arc<ExtraKeys>>,
    /// Its first token's position in its request.
    pub first_token: usize,
}

/// What [`crate::PoolWatch::take_feed`] hands out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeedBatch {
    /// Changes in order. After a loss what the pool holds now, behind a [`FeedEvent::Cleared`].
    pub events: Vec<FeedEvent>,
    /// What became known meanwhile of contents, these or earlier ones.
    pub learned: Vec<Learned>,
    /// Whether changes were lost, because nobody took them.
    pub lost: bool,
    /// Bytes that count of each hash; 0 is all of them.
    pub digest_len: usize,
    tokens: Vec<u32>,
    parents: Vec<BlockHash>,
}

impl FeedBatch {
    /// The tokens of a span of this batch.
    #[must_use]
    pub fn tokens(&self, span: TokenSpan) -> &[u32] {
        let start = span.start as usize;
        self.tokens.get(start..start + span.len as usize).unwrap_or_default()
    }

    /// The hash of what is before the content of event `at`, as far as it is known.
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

    /// A content can be found: for engines' faces that know of their contents by themselves.
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
        // What a span cannot say is not known.
        let has_room = |tokens: &&[u32]| self.tokens.len() + tokens.len() <= u32::MAX as usize;
        let tokens = tokens.filter(has_room).map(|tokens| self.add(tokens));
        let parent = match (parent, self.events.last()) {
            (None, _) => ParentLink::None,
            // Most often: blocks come in the order of their chains.
            (Some(parent), Some(FeedEvent::Stored { hash, .. })) if hash == parent => ParentLink::Before,
            (Some(parent), _) => {
                self.parents.push(*parent);
                ParentLink::Other((self.parents.len() - 1) as u32)
            }
        };
        self.events.push(FeedEvent::Stored { hash: *hash, group, parent, depth, tokens });
    }

    /// The last copy of a content is gone.
    pub fn removed(&mut self, hash: BlockHash, group: u16) {
        self.events.push(FeedEvent::Removed { hash, group });
    }

    /// Everything was forgotten: what was told before matters no more.
    pub fn cleared(&mut self) {
        self.clear();
        self.events.push(FeedEvent::Cleared);
    }

    /// Whether there is nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.events.is_empty() && self.learned.is_empty()
    }

    /// Takes in what was learned beside.
    pub(crate) fn absorb(&mut self, other: Self) {
        let offset = self.tokens.len();
        self.tokens.extend_from_slice(&other.tokens);
        self.learned.extend(other.learned.into_iter().map(|mut learned| {
            learned.tokens.start += offset as u32;
            learned
        }));
    }

    /// Appends tokens.
    pub(crate) fn add(&mut self, tokens: &[u32]) -> TokenSpan {
        let start = self.tokens.len() as u32;
        match <&Usual>::try_from(tokens) {
            Ok(usual) => self.tokens.extend_from_slice(usual),
            Err(_) => self.tokens.extend_from_slice(tokens),
        }
        TokenSpan { start, len: tokens.len() as u32 }
    }

    /// Empties it, and keeps its room.
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

/// Tokens of a block of the usual size: as many as that are copied in place, without a call.
type Usual = [u32; 16];

/// Copies the tokens of a block to a place for them.
#[inline]
fn copy(tokens: &[u32], to: &mut [u32]) {
    match (<&Usual>::try_from(tokens), <&mut Usual>::try_from(&mut *to)) {
        (Ok(tokens), Ok(to)) => *to = *tokens,
        _ => to.copy_from_slice(tokens),
    }
}

/// More changes than any publisher can be behind.
const MAX_CAPACITY: usize = 1 << 32;

/// Tokens that a batch has at most.
const MAX_TOKENS: usize = 1 << 31;

/// The feed of one pool.
#[derive(Clone, Debug)]
pub(crate) struct Feed {
    capacity: usize,
    block_tokens: usize,
    batch: FeedBatch,
    /// Tokens by block.
    slots: Vec<u32>,
    /// Whether they are those of what is registered in it.
    is_known: Vec<bool>,
}

impl Feed {
    /// Of a pool, with room for so many changes.
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
        // What is there already is told, as far as it can be.
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

    /// Whether there is room for one change more. If not, all of them are lost.
    #[inline]
    fn has_room(&mut self) -> bool {
        // Spans of tokens are counted in 32 bits.
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
        // Nothing that was lost before matters any more.
        self.batch.cleared();
        self.batch.lost = false;
    }

    /// Forgets the tokens of everything: what was to be said of it beside them is lost.
    pub(crate) fn forget(&mut self) {
        self.batch.clear();
        self.batch.lost = true;
        self.is_known.fill(false);
    }

    pub(crate) const fn is_lost(&self) -> bool {
        self.batch.lost
    }

    /// Exchanges the changes since the last call, after a loss what the pool holds, for an empty
    /// batch's room.
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

/// What is known of contents beside what their pool was told: of those that were hashed with more than
/// tokens, and of those of KV-cache groups. Bounded as a feed is; whoever drops it makes the feed
/// [`Feed::forget`].
#[derive(Debug, Default)]
pub(crate) struct Learning {
    capacity: usize,
    batch: FeedBatch,
}

impl Learning {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { capacity, ..Self::default() }
    }

    /// A request has registered, or computed, hash units.
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
            // Each block whose last unit is one of these.
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

    /// What was learned since the last call; `None` if some of it was lost.
    pub(crate) fn take(&mut self) -> Option<FeedBatch> {
        let batch = std::mem::take(&mut self.batch);
        (!batch.lost).then_some(batch)
    }
}

/// A block with a computed content.
pub(crate) struct Held {
    block: BlockId,
    content: ContentView,
    parent: Option<BlockHash>,
}

/// All of them. O(blocks).
pub(crate) fn held(pool: &BlockPool) -> Vec<Held> {
    let blocks = pool.blocks();
    let ids = (1..blocks.len() as u32).map(BlockId::new);
    let computed = ids.filter_map(|block| {
        let content = blocks.get(block).content.filter(|content| content.computed)?;
        Some(Held { block, content, parent: pool.parent_of(block) })
    });
    computed.collect()
}
