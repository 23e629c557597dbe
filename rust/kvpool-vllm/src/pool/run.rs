//! Caches full blocks and looks them up, many at a time.
//!
//! Consecutive blocks are passed to the core in one call if they are *plain*: the core can store their
//! keys, which belong to one group, and the blocks are in use and have no key yet. The first block that
//! is not plain is cached alone.
//!
//! Costs: those of the core, and a copy of each digest. A policy that keeps a history is notified of
//! each block separately.

use kvpool::{BlockHash, BlockId, Name, PoolError};

use crate::error::VllmError;
use crate::key::{Key, padded};
use crate::pool::hashes::NO_TOKENS;
use crate::pool::history::Start;
use crate::pool::{Pool, Removed};

const LOOKUP: usize = 64;

impl Pool {
    /// Caches full blocks of one table, whose positions begin at `start`. `key_of` returns the key of
    /// each entry of `blocks`. Blocks without a key are skipped. If a block has a hash of fewer tokens,
    /// that hash is replaced, and the block's old keys are appended to `removed`. If `stored` is given,
    /// one entry per block is appended to it: whether its key is new to the index, or `None` for a
    /// skipped block.
    ///
    /// # Errors
    /// [`VllmError::AlreadyCached`] for a block that is cached for the same number of tokens or more.
    /// [`VllmError::UnknownBlock`] for an unknown id.
    pub fn cache_full(
        &mut self,
        start: Start,
        blocks: &[u32],
        key_of: impl Fn(usize) -> Option<Key>,
        block_size: usize,
        removed: &mut Vec<Removed>,
        mut stored: Option<&mut Vec<Option<bool>>>,
    ) -> Result<(), VllmError> {
        let tokens_of = |position: usize| {
            let tokens = start.first.saturating_add(position + 1).saturating_mul(block_size);
            u32::try_from(tokens).unwrap_or(u32::MAX)
        };
        let mut report = |is_new: Option<bool>| {
            if let Some(stored) = stored.as_deref_mut() {
                stored.push(is_new);
            }
        };
        // Usually all blocks are plain (in use and without a key; see the top of this file), and plain
        // blocks need no check here.
        let (mut plain, mut group) = self.gather_plain(blocks, &key_of);
        for (position, &block) in blocks.iter().enumerate().skip(plain) {
            self.check(block)?;
            if let Some(cached) = self.tokens_of(block)
                && cached.is_none_or(|cached| cached >= tokens_of(position))
                && key_of(position).is_some()
            {
                let cached = cached.unwrap_or(0);
                return Err(VllmError::AlreadyCached { block, cached, wanted: tokens_of(position) });
            }
        }
        // If the core refuses several plain blocks in one call, this is the number of them that are
        // still to be cached one by one.
        let (mut at, mut singles_left) = (0, 0);
        loop {
            if plain > 0 {
                let tokens_of = |i: usize| ((start.first + at + i + 1) * block_size) as u32;
                let most = (start.first.saturating_add(at + plain)).saturating_mul(block_size);
                if most < NO_TOKENS as usize && self.cache_plain(group, tokens_of, &mut report)? {
                    at += plain;
                } else {
                    singles_left = plain;
                }
            }
            let Some(&block) = blocks.get(at) else { return Ok(()) };
            if let Some(key) = key_of(at) {
                if self.is_hashed(block) {
                    self.remove_hashes_into(block, &mut Some(&mut *removed))?;
                }
                let depth = u32::try_from(start.first + at).unwrap_or(u32::MAX);
                let before = at.checked_sub(1).map_or(start.before, |before| Some(blocks[before]));
                let is_new = self.give(key, block, Some(tokens_of(at)), (depth, before))?;
                report(Some(is_new == Some(true)));
            } else {
                report(None);
            }
            at += 1;
            singles_left = singles_left.saturating_sub(1);
            (plain, group) =
                if singles_left > 0 { (0, 0) } else { self.gather_plain(&blocks[at..], |i| key_of(at + i)) };
        }
    }

    /// Collects the blocks at the start of the list that are in use and have no key, and their names in
    /// the core. Returns their number and their group.
    #[inline]
    fn gather_plain(&mut self, blocks: &[u32], key_of: impl Fn(usize) -> Option<Key>) -> (usize, u16) {
        self.ids.clear();
        self.batch.clear();
        let mut group = None;
        if self.keeps_history() || !self.caching || self.num_blocks < 2 {
            return (0, 0);
        }
        self.ids.reserve(blocks.len());
        self.batch.reserve(blocks.len());
        for (position, &block) in blocks.iter().enumerate() {
            let id = BlockId::new(block);
            // This also skips blocks that have a hash, because a block in use is registered exactly if
            // it has one.
            if self.held(block) == 0 || self.core.is_registered(id) {
                break;
            }
            let Some(key) = key_of(position) else { break };
            if position == 0 {
                self.learn_length(&key);
            }
            let Some((hash, of)) = self.regular_name(&key, None) else { break };
            if *group.get_or_insert(of) != of {
                break;
            }
            self.ids.push(id);
            self.batch.push(hash);
        }
        (self.ids.len(), group.unwrap_or(0))
    }

    /// Caches the blocks that [`Self::gather_plain`] has collected, in one call of the core. If the
    /// core refuses them, changes nothing and returns false.
    #[inline]
    fn cache_plain(
        &mut self,
        group: u16,
        tokens_of: impl Fn(usize) -> u32,
        report: &mut impl FnMut(Option<bool>),
    ) -> Result<bool, PoolError> {
        let mut copies: Vec<BlockId> = Vec::new();
        let Self { core, marks, ids, batch, .. } = self;
        let registered = core.register_named(ids, batch, group, |position, is_new| {
            if let Some(mark) = ids.get(position).and_then(|id| marks.get_mut(id.index())) {
                *mark = tokens_of(position);
            }
            if !is_new {
                copies.extend(ids.get(position));
            }
            report(Some(is_new));
        });
        match registered {
            Ok(()) => {}
            // The core refuses a block that occurs twice in the list. Cached one by one, its second key
            // replaces the first.
            Err(PoolError::AlreadyRegistered { .. }) => return Ok(false),
            Err(error) => return Err(error),
        }
        copies.into_iter().for_each(|block| self.mark_shared(block.get()));
        Ok(true)
    }

    /// Looks up consecutive digests of a request in one group. Appends their blocks to `out`, up to the
    /// first digest without a block. The blocks are the same as those that [`Self::find`] returns.
    pub fn find_run<'a>(&self, digests: impl IntoIterator<Item = &'a [u8]>, group: u32, out: &mut Vec<u32>) {
        let mut digests = digests.into_iter();
        let core_group = u16::try_from(group).ok().filter(|&group| group <= Name::MAX_GROUP);
        let (mut hashes, mut found) = ([BlockHash::from_bytes([0; 32]); LOOKUP], Vec::with_capacity(LOOKUP));
        let are_whole = self.digest_len == 32;
        loop {
            // Collect up to `LOOKUP` digests, but stop at the first that the core cannot store.
            let (mut asked, mut other) = (0, None);
            while asked < LOOKUP
                && let Some(digest) = digests.next()
            {
                hashes[asked] = match digest.first_chunk() {
                    Some(whole) if are_whole && digest.len() == 32 => BlockHash::from_bytes(*whole),
                    _ => match padded(digest).filter(|_| digest.len() == self.digest_len) {
                        Some(hash) => hash,
                        None => {
                            other = Some(digest);
                            break;
                        }
                    },
                };
                asked += 1;
            }
            let known = found.len();
            if let Some(group) = core_group {
                self.core.find_named_run(&hashes[..asked], group, &mut found);
            }
            out.extend(found[known..].iter().map(|block: &BlockId| block.get()));
            // The overlay may contain digests that the core does not store, so look them up there.
            let unknown = hashes[found.len() - known..asked].iter();
            let unknown = unknown.filter_map(|hash| hash.as_bytes().get(..self.digest_len)).chain(other);
            for digest in unknown {
                let key = Key::new(digest, group).ok().filter(|_| !self.overlay.index.is_empty());
                let Some(block) = key.and_then(|key| self.find(&key)) else { return };
                out.push(block);
            }
            if asked < LOOKUP && other.is_none() {
                return;
            }
        }
    }
}
