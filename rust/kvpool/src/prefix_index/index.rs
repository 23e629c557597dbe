//! `Index` is the prefix index. It stores its data in the records of a pool, or of a
//! [`super::PrefixIndex`]. This file contains the lookups, and `rings.rs` the changes.

use std::fmt;

use super::interior::Interior;
use super::known::{Known, equal_tokens};
use super::rings::LOOKAHEAD;
use super::table::{Home, Table};
use crate::block::BlockId;
use crate::error::PoolError;
use crate::hash::{BlockHash, Fingerprint, HashAlgorithm, HashChain, LinkRef, MAX_BLOCK_SIZE, Verify};
use crate::list::{no_memory, try_reserve};
use crate::record::{ByBlock, HEAD, MAX_POSITIONS, Name, Record, Records};

/// Whether a change makes a content visible to lookups, or removes it from their view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Visibility {
    Unchanged,
    Appeared,
    Vanished,
}

/// The prefix index: a hash table, and the data of blocks that their records have no room for.
#[derive(Clone)]
pub(crate) struct Index {
    /// The first block, or head, of each ring, by hash. A ring is a circular list of blocks with the
    /// same hash.
    pub(super) table: Table,
    block_size: usize,
    pub(super) verify: Verify,
    /// The algorithm of the block that was registered last. All registered blocks must have the same
    /// algorithm, because digests of different algorithms cannot be compared. An empty index has no
    /// algorithm.
    pub(super) algorithm: Option<HashAlgorithm>,
    /// The fingerprints of all blocks, and in the next list their tokens. A list is empty if the index
    /// does not compare its values.
    pub(super) fingerprints: Vec<Fingerprint>,
    pub(super) tokens: Vec<u32>,
    /// The parent hash of each block. Empty unless an evictor or an observer needs these hashes. If the
    /// parent of a block is unknown, the list contains the block's own hash, because no content is its
    /// own parent.
    pub(super) parents: Vec<BlockHash>,
    pub(super) registered: usize,
    /// Number of hashes that have two rings: one of computed blocks, and one of uncomputed blocks.
    pub(super) mixed: usize,
    /// Whether a change has found links that do not match each other, or a table entry that is not the
    /// head of a ring. The index is then broken: some contents can no longer be found.
    pub(super) torn: bool,
    /// The hashes of units inside of blocks. `None` if no group of the model allows hits that end
    /// inside a block.
    pub(super) interior: Option<Box<Interior>>,
    /// The data with which prompts are matched by their tokens, if the index keeps them.
    pub(super) known: Option<Box<Known>>,
}

impl Index {
    pub(crate) fn new(num_blocks: usize, block_size: usize, verify: Verify) -> Result<Self, PoolError> {
        if !(1..=MAX_BLOCK_SIZE).contains(&block_size) {
            return Err(PoolError::config(
                "block_size",
                block_size,
                format!("from 1 to {MAX_BLOCK_SIZE} tokens"),
            ));
        }
        let mut index = Self {
            table: Table::new().prepare(num_blocks - 1)?,
            block_size,
            verify,
            algorithm: None,
            fingerprints: Vec::new(),
            tokens: Vec::new(),
            parents: Vec::new(),
            registered: 0,
            mixed: 0,
            torn: false,
            interior: None,
            known: None,
        };
        index.grow_arrays(num_blocks)?;
        Ok(index)
    }

    /// Allocates memory for a pool of `num_blocks` blocks. Changes nothing if there is not enough
    /// memory. O(blocks).
    pub(crate) fn grow(&mut self, records: &Records, num_blocks: usize) -> Result<(), PoolError> {
        let mut table = self.table.prepare(num_blocks - 1)?;
        self.grow_arrays(num_blocks)?;
        self.interior.as_mut().map_or(Ok(()), |interior| interior.grow(num_blocks))?;
        let (size, verify) = (self.block_size, self.verify);
        self.known.as_mut().map_or(Ok(()), |known| known.grow(num_blocks, size, verify))?;
        table.rebuild(&self.table, |id| records.at(id).name());
        self.table = table;
        Ok(())
    }

    fn grow_arrays(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        let of_fingerprints = if self.verify >= Verify::Fingerprint { num_blocks } else { 0 };
        let of_tokens =
            if self.verify >= Verify::Tokens { num_blocks.saturating_mul(self.block_size) } else { 0 };
        let of_parents = if self.keeps_parents() { num_blocks } else { 0 };
        try_reserve(&mut self.fingerprints, of_fingerprints)?;
        try_reserve(&mut self.tokens, of_tokens).map_err(|_| no_memory(num_blocks))?;
        try_reserve(&mut self.parents, of_parents)?;
        self.fingerprints.resize(of_fingerprints, 0);
        self.tokens.resize(of_tokens, 0);
        self.parents.resize(of_parents, BlockHash::from_bytes([0; 32]));
        Ok(())
    }

    pub(crate) const fn keeps_parents(&self) -> bool {
        !self.parents.is_empty()
    }

    /// Stores the parent hash of each block that is registered from now on. The parents of blocks that
    /// are already registered remain unknown.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there is no memory; then nothing has changed.
    pub(crate) fn keep_parents(&mut self, records: &Records) -> Result<(), PoolError> {
        if self.keeps_parents() {
            return Ok(());
        }
        try_reserve(&mut self.parents, records.len())?;
        self.parents.extend(records.iter().map(|record| record.hash));
        Ok(())
    }

    /// Whether a change of the index has found links that do not match each other.
    pub(crate) fn is_torn(&self) -> bool {
        self.torn || self.interior.as_ref().is_some_and(|interior| interior.is_torn())
    }

    pub(crate) const fn num_registered(&self) -> usize {
        self.registered
    }

    pub(crate) fn num_hashes(&self) -> usize {
        self.table.len().saturating_sub(self.mixed) // `check_sums` finds a wrong count
    }

    /// Sets the algorithm of the registered hashes. Used for restored blocks, because only the caller
    /// knows how their hashes were computed.
    pub(crate) const fn set_algorithm(&mut self, algorithm: Option<HashAlgorithm>) {
        self.algorithm = algorithm;
    }

    pub(crate) const fn algorithm(&self) -> Option<HashAlgorithm> {
        if self.registered == 0 { None } else { self.algorithm }
    }

    pub(crate) const fn verify(&self) -> Verify {
        self.verify
    }

    pub(crate) const fn block_size(&self) -> usize {
        self.block_size
    }

    pub(crate) fn hash_of(records: &Records, block: BlockId) -> Option<BlockHash> {
        records.of(block).filter(|record| record.is_registered()).map(|record| record.hash)
    }

    pub(crate) fn depth_of(records: &Records, block: BlockId) -> Option<u32> {
        records.of(block).filter(|record| record.is_registered()).map(Record::depth)
    }

    pub(crate) fn parent_of(&self, records: &Records, block: BlockId) -> Option<BlockHash> {
        let record = records.of(block).filter(|record| record.is_registered() && record.depth() > 0)?;
        self.parents.get(block.index()).copied().filter(|parent| *parent != record.hash)
    }

    /// Returns the parent hash that is stored for a registered block. The block's own hash means that
    /// the parent is unknown.
    pub(crate) fn noted_parent(&self, records: &Records, block: BlockId) -> Option<BlockHash> {
        let record = records.of(block).filter(|record| record.is_registered())?;
        Some(self.parents.get(block.index()).copied().unwrap_or(record.hash))
    }

    pub(crate) fn copies(&self, records: &Records, name: Name<'_>) -> Vec<BlockId> {
        let (computed, others) = self.heads_of(records, self.table.home(name), name);
        let mut out = Vec::new();
        for head in computed.into_iter().chain(others) {
            let mut at = head;
            // The loop makes at most as many steps as the pool has blocks, so it also ends if the ring
            // is broken.
            while out.len() < records.len() && records.at(at).is_named(name) {
                out.push(BlockId::new(at));
                at = records.at(at).ring.next;
                if at == head {
                    break;
                }
            }
        }
        out
    }

    /// Returns another computed block with the same content as `block`: the one that a lookup would
    /// find without `block`.
    pub(crate) fn other_computed_copy(&self, records: &Records, block: BlockId) -> Option<BlockId> {
        let record = records.of(block).filter(|record| record.is_registered())?;
        // The ring of computed blocks begins with the block that lookups find. If `block` is this one,
        // the next block is returned.
        let first = record.is(HEAD) && record.is_computed();
        let other = if first { record.ring.next } else { self.ring_of(records, record.name(), true)? };
        let copy = records.at(other);
        let found = other != block.get() && copy.is_computed() && copy.is_named(record.name());
        found.then_some(BlockId::new(other))
    }

    /// Returns the block with this name that a lookup finds: the oldest computed block, or, if none is
    /// computed, the oldest uncomputed block.
    #[inline]
    fn head_of(&self, records: &Records, home: Home, name: Name<'_>) -> Option<u32> {
        let mut uncomputed = None;
        let leads = |head: u32| {
            let record = records.at(head);
            if !record.is_named(name) {
                return false;
            }
            if !record.is_computed() {
                uncomputed = Some(head);
            }
            record.is_computed()
        };
        self.table.find(home, leads).or(uncomputed)
    }

    /// Returns the first block of one of the two rings with this name: of the ring of computed blocks,
    /// or of the ring of uncomputed blocks.
    pub(super) fn ring_of(&self, records: &Records, name: Name<'_>, computed: bool) -> Option<u32> {
        self.table.find(self.table.home(name), |head| {
            let record = records.at(head);
            record.is_computed() == computed && record.is_named(name)
        })
    }

    /// Returns the first blocks of the two rings with this name: of the ring of computed blocks, and of
    /// the ring of uncomputed blocks.
    #[inline]
    pub(super) fn heads_of(
        &self,
        records: &Records,
        home: Home,
        name: Name<'_>,
    ) -> (Option<u32>, Option<u32>) {
        let (mut computed, mut uncomputed) = (None, None);
        self.table.find(home, |head| {
            let record = records.at(head);
            if record.is_named(name) {
                *(if record.is_computed() { &mut computed } else { &mut uncomputed }) = Some(head);
            }
            computed.is_some() && uncomputed.is_some()
        });
        (computed, uncomputed)
    }

    /// Whether the fingerprint and the tokens of `block` match those of `chain` at `position`. Compares
    /// only the values that the index verifies.
    #[inline]
    fn verifies(&self, block: u32, chain: &HashChain, position: usize) -> bool {
        self.verify == Verify::None
            || chain.link(position).is_some_and(|link| self.verifies_link(block, &link))
    }

    pub(super) fn verifies_link(&self, block: u32, link: &LinkRef<'_>) -> bool {
        if self.verify >= Verify::Fingerprint && !self.has_fingerprint(block, link.fingerprint.as_ref()) {
            return false;
        }
        self.verify < Verify::Tokens || link.tokens == self.block_tokens(block as usize)
    }

    #[inline(always)]
    fn has_fingerprint(&self, block: u32, fingerprint: Option<&Fingerprint>) -> bool {
        fingerprint == self.fingerprints.get(block as usize)
    }

    pub(crate) fn holds(&self, records: &Records, block: BlockId, content: &LinkRef<'_>) -> bool {
        let record = records.at(block.get());
        record.is_computed()
            && record.is_named(Name::from(&content.hash))
            && self.verifies_link(block.get(), content)
    }

    pub(super) fn block_tokens(&self, block: usize) -> Option<&[u32]> {
        self.tokens.get(block * self.block_size..(block + 1) * self.block_size)
    }

    /// Returns the block with this name that a lookup finds, computed or not.
    #[inline]
    pub(crate) fn head_of_name(&self, records: &Records, name: Name<'_>) -> Option<BlockId> {
        self.head_of(records, self.table.home(name), name).map(BlockId::new)
    }

    /// Returns the content of a registered block, with all data that another tier's pool needs to
    /// register the same content.
    pub(crate) fn link_of(&self, records: &Records, block: BlockId) -> Option<LinkRef<'_>> {
        Some(LinkRef {
            algorithm: self.algorithm?,
            hash: Self::hash_of(records, block)?,
            fingerprint: self.fingerprints.get(block.index()).copied(),
            tokens: self.block_tokens(block.index()),
            depth: Self::depth_of(records, block)?,
            parent: self.parent_of(records, block),
        })
    }

    /// Returns the block with this content that a lookup finds, computed or not. Returns `Err(())` if
    /// blocks with the same hash have another content.
    pub(crate) fn find_link(&self, records: &Records, link: &LinkRef<'_>) -> Result<Option<BlockId>, ()> {
        let Some(head) = self.head_of_name(records, Name::from(&link.hash)) else { return Ok(None) };
        if self.verifies_link(head.get(), link) { Ok(Some(head)) } else { Err(()) }
    }

    /// Checks that blocks with this algorithm and block size can be registered in this index.
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

    /// Checks that `last`, the highest position of a chain to register, is one that the index can
    /// store.
    pub(crate) const fn check_depth(last: usize) -> Result<(), PoolError> {
        if last < MAX_POSITIONS {
            return Ok(());
        }
        Err(PoolError::TooDeep { position: last, most: MAX_POSITIONS - 1 })
    }

    pub(crate) fn check_chain(&self, chain: &HashChain) -> Result<(), PoolError> {
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

    /// Appends the computed blocks with these hashes in `group` to `out`. Stops at the first hash
    /// without a computed block. If several blocks have the same hash, takes the oldest.
    ///
    /// For speed, the function first guesses the id of the next block: most blocks of a chain were
    /// allocated together, so each id usually differs from the one before by the same number. To test a
    /// guess, the function reads only the record of the guessed block, which it has to read in any
    /// case. If a guess fails, the function reads the hash table for several hashes together, so that
    /// these reads overlap. The first guess may use the last two blocks that are already in `out`.
    ///
    /// `is_content` checks that a block has the content of the hash at this position of `hashes`.
    /// Returns whether the call stopped because a block has the hash and another content.
    #[inline]
    pub(crate) fn find_run(
        &self,
        records: &Records,
        hashes: &[BlockHash],
        group: u16,
        is_content: impl Fn(u32, usize) -> bool,
        out: &mut Vec<BlockId>,
    ) -> bool {
        let (first, mut homes) = (out.len(), [Home::default(); LOOKAHEAD]);
        loop {
            if let [.., before, last] = out[..] {
                let (last, step) = (last.get(), last.get().wrapping_sub(before.get()));
                let (mut next, found) = (last, out.len() - first);
                let guessed = (found..).zip(&hashes[found..]).take_while(|&(at, hash)| {
                    next = next.wrapping_add(step);
                    records.at(next).leads_to(Name { hash, group }) && is_content(next, at)
                });
                let guessed = 1..guessed.count() as u32 + 1; // no more than blocks
                out.extend(guessed.map(|nth| BlockId::new(last.wrapping_add(step.wrapping_mul(nth)))));
            }
            // Without two blocks, no guess is possible. So the first read of the table is for two
            // hashes only.
            let asked = if out.len() < 2 { 2 } else { LOOKAHEAD };
            let found = out.len() - first;
            let Some(hashes) = hashes[found..].chunks(asked).next() else { return false };
            self.table.find_homes(hashes.iter().map(|hash| Name { hash, group }), &mut homes);
            let (mut guesses, mut read) = ([0; LOOKAHEAD], 0);
            for (guess, &home) in guesses.iter_mut().zip(&homes).take(hashes.len()) {
                *guess = self.table.first_guess(home);
                read ^= records.at(*guess).flags;
            }
            std::hint::black_box(read);
            for (at, (hash, &guess)) in (found..).zip(hashes.iter().zip(&guesses)) {
                let name = Name { hash, group };
                if records.at(guess).leads_to(name) && is_content(guess, at) {
                    out.push(BlockId::new(guess));
                    continue;
                }
                let Some(head) = self.head_of_name(records, name) else { return false };
                if !is_content(head.get(), at) {
                    return true;
                }
                if !records.at(head.get()).is_computed() {
                    return false;
                }
                out.push(head);
            }
        }
    }

    /// Finds the computed blocks of `chain` from position `start` on, at most `most`, like
    /// [`Self::find_run`], and verifies them as the index is configured.
    pub(crate) fn find_chain(
        &self,
        records: &Records,
        chain: &HashChain,
        start: usize,
        most: usize,
        out: &mut Vec<BlockId>,
    ) -> bool {
        let hashes = chain.hashes().get(start..).unwrap_or(&[]);
        let hashes = &hashes[..most.min(hashes.len())];
        if self.verify == Verify::None {
            return self.find_run(records, hashes, 0, |_, _| true, out);
        }
        let fingerprints = chain.fingerprints().get(start..).unwrap_or(&[]);
        if self.verify == Verify::Fingerprint {
            let is_content = |block: u32, at: usize| self.has_fingerprint(block, fingerprints.get(at));
            return self.find_run(records, hashes, 0, is_content, out);
        }
        let is_content = |block: u32, at: usize| {
            let tokens = chain.block_tokens(start + at);
            let kept = self.block_tokens(block as usize);
            self.has_fingerprint(block, fingerprints.get(at))
                && tokens.zip(kept).is_some_and(|(tokens, kept)| equal_tokens(tokens, kept))
        };
        self.find_run(records, hashes, 0, is_content, out)
    }

    /// Returns the computed block with the content of the chain's block at `position`, if there is one.
    /// Returns `Err(())` if the blocks with this hash have another content.
    #[inline(never)]
    pub(crate) fn find_or_collision(
        &self,
        records: &Records,
        chain: &HashChain,
        position: usize,
    ) -> Result<Option<BlockId>, ()> {
        let Some(head) = self.head_at(records, chain, position) else { return Ok(None) };
        if !self.verifies(head, chain, position) {
            return Err(());
        }
        Ok(records.at(head).is_computed().then_some(BlockId::new(head)))
    }

    fn head_at(&self, records: &Records, chain: &HashChain, position: usize) -> Option<u32> {
        let name = Name::from(chain.hashes().get(position)?);
        self.head_of(records, self.table.home(name), name)
    }

    /// Whether some block, computed or not, is registered under the chain's hash at `position`.
    pub(crate) fn is_registered(&self, records: &Records, chain: &HashChain, position: usize) -> bool {
        let head = self.head_at(records, chain, position);
        head.is_some_and(|head| self.verifies(head, chain, position))
    }
}

/// Prints counts, but no contents and no key. The tokens that verify a hit come from users' prompts,
/// and the table's key is a secret.
impl fmt::Debug for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Index")
            .field("block_size", &self.block_size)
            .field("verify", &self.verify)
            .field("algorithm", &self.algorithm)
            .field("registered", &self.registered)
            .finish_non_exhaustive()
    }
}
