//! Matches a prompt by its tokens: reads the hashes of known blocks instead of computing them.
//!
//! For each registered block, the index can keep its tokens, the state of the block before it (its
//! digest, or with verification its fingerprint), and a guess of the block after it. A block's state
//! depends only on these tokens and on that state. So if both are equal to those of the next block of
//! a prompt, the prompt's block has the same state. This holds for every hash function, also for one
//! whose digests collide, and while blocks are evicted or registered: a match computes nothing, and
//! proves nothing about which KV a block contains. Lookups find and verify blocks as for a prompt that
//! was hashed.
//!
//! A match starts at a block that a lookup found by its digest, and follows the guesses. A wrong guess
//! costs one hash, because the block is then hashed and looked up.
//!
//! Memory per block: 4 bytes per token, 4 for the guess, 1, and 32 for the digest of the block before,
//! or 16 for its fingerprint. With [`Verify::Tokens`], the index keeps the tokens anyway.

use std::hint::black_box;

use kvpool_prefetch::prefetch;

use super::index::Index;
use super::rings::LOOKAHEAD;
use crate::block::BlockId;
use crate::error::PoolError;
use crate::hash::{BlockHash, ChainState, Fingerprint, HashChain, KnownBlocks, KnownStates, Verify};
use crate::list::{no_memory, try_reserve};
use crate::record::{ByBlock, Name, Records};

/// The data of each block with which the index matches prompts by tokens. The data of a block that is not
/// registered are outdated.
#[derive(Clone, Default)]
pub(crate) struct Known {
    /// Whether the block can be matched by its tokens: see [`HashChain::text_blocks`].
    is_text: Vec<bool>,
    /// The block that was last registered after this block. It is only a guess.
    next: Vec<u32>,
    /// The digest of the block before. Empty if the index keeps fingerprints.
    parents: Vec<BlockHash>,
    /// The fingerprint of the block before. Empty if the index keeps no fingerprints.
    parent_fingerprints: Vec<Fingerprint>,
    /// The tokens of each block. Empty if the index itself keeps them, to verify hits.
    tokens: Vec<u32>,
}

impl Known {
    /// Allocates memory for blocks up to `num_blocks - 1`.
    pub(super) fn grow(
        &mut self,
        num_blocks: usize,
        block_size: usize,
        verify: Verify,
    ) -> Result<(), PoolError> {
        let has_fingerprints = verify >= Verify::Fingerprint;
        let of_tokens = if verify >= Verify::Tokens { 0 } else { num_blocks.saturating_mul(block_size) };
        let (of_parents, of_fingerprints) = if has_fingerprints { (0, num_blocks) } else { (num_blocks, 0) };
        try_reserve(&mut self.is_text, num_blocks)?;
        try_reserve(&mut self.next, num_blocks)?;
        try_reserve(&mut self.parents, of_parents)?;
        try_reserve(&mut self.parent_fingerprints, of_fingerprints)?;
        try_reserve(&mut self.tokens, of_tokens).map_err(|_| no_memory(num_blocks))?;
        self.is_text.resize(num_blocks, false);
        self.next.resize(num_blocks, 0);
        self.parents.resize(of_parents, BlockHash::from_bytes([0; 32]));
        self.parent_fingerprints.resize(of_fingerprints, 0);
        self.tokens.resize(of_tokens, 0);
        Ok(())
    }

    /// Prefetches the cache lines of the data of `block`.
    #[inline(always)]
    fn ask(&self, block: u32, size: usize) {
        let at = block as usize;
        if let Some(tokens) = self.tokens.get(at * size) {
            prefetch(tokens);
        }
        if let Some(parent) = self.parents.get(at) {
            prefetch(parent);
        }
    }

    /// Sets the guess of the block after `before`.
    #[inline(always)]
    fn lead(&mut self, before: Option<BlockId>, block: BlockId) {
        if let Some(guess) = before.and_then(|before| self.next.get_mut(before.index())) {
            *guess = block.get();
        }
    }

    /// Forgets the tokens of a block, which is registered without them or in another way.
    #[inline]
    pub(super) fn forget(&mut self, block: BlockId) {
        if let Some(is_text) = self.is_text.get_mut(block.index()) {
            *is_text = false;
        }
    }
}

impl Index {
    /// Keeps the data with which [`Matching`] reads hashes, for all blocks that are registered from now
    /// on.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there is no memory; then nothing has changed.
    pub(crate) fn keep_tokens(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        if self.known.is_none() {
            let mut known = Known::default();
            known.grow(num_blocks, self.block_size(), self.verify)?;
            self.known = Some(Box::new(known));
        }
        Ok(())
    }

    /// Whether the index keeps the data with which [`Matching`] reads hashes.
    pub(crate) const fn keeps_tokens(&self) -> bool {
        self.known.is_some()
    }

    /// Keeps the tokens of blocks that have just been registered as the blocks of `chain` from
    /// `position` on. `before` is the block of the position before; `None` if it is unknown.
    #[inline]
    pub(crate) fn note_known(
        &mut self,
        blocks: &[BlockId],
        chain: &HashChain,
        position: usize,
        before: Option<BlockId>,
    ) {
        if self.known.is_some() {
            self.note_tokens(blocks, chain, position, before);
        }
    }

    #[inline(never)]
    fn note_tokens(
        &mut self,
        blocks: &[BlockId],
        chain: &HashChain,
        position: usize,
        mut before: Option<BlockId>,
    ) {
        let size = self.block_size();
        let Some(known) = self.known.as_deref_mut() else { return };
        let mut position = position;
        let mut blocks = blocks;
        while let Some((&first, rest)) = blocks.split_first() {
            let text = chain.text_blocks(position).min(blocks.len());
            if text == 0 {
                known.forget(first);
                known.lead(before, first);
                (before, position, blocks) = (Some(first), position + 1, rest);
                continue;
            }
            let tokens = chain.tokens().get(position * size..).unwrap_or(&[]).chunks_exact(size);
            let parents = position - 1..position - 1 + text;
            let digests = chain.hashes().get(parents.clone()).unwrap_or(&[]);
            let fingerprints = chain.fingerprints().get(parents).unwrap_or(&[]);
            blocks[..text.min(LOOKAHEAD)].iter().for_each(|&block| known.ask(block.get(), size));
            for (nth, (&block, tokens)) in blocks[..text].iter().zip(tokens).enumerate() {
                if let Some(later) = blocks[..text].get(nth + LOOKAHEAD) {
                    known.ask(later.get(), size);
                }
                known.lead(before, block);
                let at = block.index();
                if let Some(is_text) = known.is_text.get_mut(at) {
                    *is_text = true;
                }
                if let (Some(slot), Some(parent)) = (known.parents.get_mut(at), digests.get(nth)) {
                    *slot = *parent;
                }
                let slot = known.parent_fingerprints.get_mut(at);
                if let (Some(slot), Some(parent)) = (slot, fingerprints.get(nth)) {
                    *slot = *parent;
                }
                if let Some(slots) = known.tokens.get_mut(at * size..(at + 1) * size) {
                    copy(slots, tokens);
                }
                before = Some(block);
            }
            (position, blocks) = (position + text, &blocks[text..]);
        }
    }
}

/// Copies the tokens of one block. Blocks of 16 tokens are copied without a call of memcpy.
#[inline(always)]
fn copy(slots: &mut [u32], tokens: &[u32]) {
    match (slots.as_chunks_mut::<16>(), tokens.as_chunks::<16>()) {
        (([slots], []), ([tokens], [])) => *slots = *tokens,
        _ => slots.copy_from_slice(tokens),
    }
}

/// Compares the tokens of two blocks. Blocks of 16 tokens are compared without a call of memcmp.
#[inline(always)]
pub(super) fn equal_tokens(a: &[u32], b: &[u32]) -> bool {
    match (a.as_chunks::<16>(), b.as_chunks::<16>()) {
        (([a], []), ([b], [])) => a == b,
        _ => a == b,
    }
}

/// Reads the hashes of a prompt from the blocks of an index: see [`KnownBlocks`].
pub(crate) struct Matching<'a> {
    index: &'a Index,
    known: &'a Known,
    records: &'a Records,
    /// The block that was found or followed last.
    last: u32,
}

impl<'a> Matching<'a> {
    /// Returns `None` if the index keeps no tokens.
    pub(crate) fn new(index: &'a Index, records: &'a Records) -> Option<Self> {
        Some(Self { index, known: index.known.as_deref()?, records, last: 0 })
    }

    /// Whether `block` contains `tokens` after a block with the state `parent`.
    #[inline(always)]
    fn continues(&self, block: u32, parent: &ChainState, tokens: &[u32]) -> bool {
        let (at, size, known) = (block as usize, tokens.len(), self.known);
        if !self.records.at(block).is_registered() || known.is_text.get(at) != Some(&true) {
            return false;
        }
        let has_parent = match known.parents.get(at) {
            Some(digest) => *digest == parent.digest(),
            None => known.parent_fingerprints.get(at) == Some(&parent.fingerprint()),
        };
        let kept = if known.tokens.is_empty() { &self.index.tokens } else { &known.tokens };
        has_parent && kept.get(at * size..(at + 1) * size).is_some_and(|kept| equal_tokens(kept, tokens))
    }

    /// Returns the state of a registered block.
    #[inline(always)]
    fn state(&self, block: u32) -> ChainState {
        let fingerprint = self.index.fingerprints.get(block as usize).copied().unwrap_or(0);
        ChainState::new(self.records.at(block).hash, fingerprint)
    }

    /// Returns the block that probably follows `block`. The branch is for speed: in most chains, the
    /// next block has the next id, and the processor then continues before it has read the guess.
    #[inline(always)]
    fn guess(&self, block: u32) -> u32 {
        let (guess, neighbour) =
            (self.known.next.get(block as usize).copied().unwrap_or(0), block.wrapping_add(1));
        if guess == neighbour { black_box(neighbour) } else { guess }
    }
}

impl KnownBlocks for Matching<'_> {
    fn find(&mut self, state: &ChainState) -> bool {
        let digest = state.digest();
        let Some(found) = self.index.head_of_name(self.records, Name::from(&digest)) else { return false };
        self.last = found.get();
        self.state(self.last) == *state
    }

    fn follow(&mut self, state: &ChainState, tokens: &[u32], states: &mut KnownStates<'_>) {
        let size = self.index.block_size();
        let mut state = *state;
        let mut guesses = [0; LOOKAHEAD];
        for tokens in tokens.chunks(LOOKAHEAD * size) {
            // The guesses of several blocks are read first, so that their cache lines are loaded at the
            // same time.
            let mut next = self.last;
            for guess in &mut guesses[..tokens.len() / size] {
                next = self.guess(next);
                *guess = next;
                prefetch(self.records.at(next));
                self.known.ask(next, size);
            }
            for (tokens, &guess) in tokens.chunks_exact(size).zip(&guesses) {
                if !self.continues(guess, &state, tokens) {
                    return;
                }
                state = self.state(guess);
                self.last = guess;
                states.push(state.digest(), state.fingerprint());
            }
        }
    }
}
