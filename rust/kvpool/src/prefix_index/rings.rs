//! Changes of the index: blocks enter and leave the ring of their hash, and become computed.
//!
//! A ring is doubly linked through the entries, so each change is O(1), however many copies a hash has.

use super::{COMPUTED, DEPTH, Entry, HEAD, Inserted, PrefixIndex, REGISTERED, Visibility};
use crate::block::BlockId;
use crate::error::{InvariantViolation, PoolError, ensure};
use crate::free_list::check_id;
use crate::hash::{BlockHash, HashChain, LinkRef, Verify};

impl PrefixIndex {
    /// Registers `block` as the chain's block `position`, not yet computed. O(1).
    ///
    /// # Errors
    /// [`PoolError::AlreadyRegistered`]; ids and positions out of range; what [`Self::check_chain`] finds.
    pub fn insert(
        &mut self,
        block: BlockId,
        chain: &HashChain,
        position: usize,
    ) -> Result<Inserted, PoolError> {
        check_id(block, self.num_blocks, "registered")?;
        self.check_chain(chain)?;
        let Some(link) = chain.link(position).filter(|_| position <= DEPTH as usize) else {
            return Err(PoolError::ChainTooShort { start: position, blocks: 1, chain: chain.len() });
        };
        if self.contains(block) {
            return Err(PoolError::AlreadyRegistered { block });
        }
        Ok(self.insert_checked(block, &link))
    }

    /// [`Self::insert`] after all checks.
    #[inline]
    pub(crate) fn insert_checked(&mut self, block: BlockId, link: &LinkRef<'_>) -> Inserted {
        let id = block.get();
        self.algorithm = Some(link.algorithm);
        let mut flags = REGISTERED;
        let (prev, next) = if let Some(head) = self.head_of(&link.hash) {
            if !self.verifies_link(head, link) {
                return Inserted::Collision;
            }
            // Uncomputed: at the end of the ring.
            let tail = self.entries[head as usize].prev;
            self.entries[tail as usize].next = id;
            self.entries[head as usize].prev = id;
            (tail, head)
        } else {
            let (entries, key) = (&self.entries, self.table_key);
            let at = key.hash(&link.hash);
            self.table.insert_unique(at, id, |&head| key.hash(&entries[head as usize].hash));
            flags |= HEAD;
            (id, id)
        };
        if block.index() >= self.entries.len() {
            self.extend_to(block);
        }
        self.entries[block.index()] =
            Entry { hash: link.hash, prev, next, depth_and_flags: link.depth | flags };
        if let Some(slot) = self.fingerprints.get_mut(block.index()) {
            *slot = link.fingerprint.unwrap_or_default();
        }
        if self.verify >= Verify::Tokens
            && let Some(tokens) = link.tokens
        {
            let at = block.index() * self.block_size;
            self.tokens[at..at + self.block_size].copy_from_slice(tokens);
        }
        if let (Some(slot), Some(parent)) = (self.parents.get_mut(block.index()), link.parent) {
            *slot = parent;
        }
        self.registered += 1;
        Inserted::Registered
    }

    /// Sets the computed bit of a registered block: from now on a lookup may return it. O(1); doing it again is a no-op.
    ///
    /// # Errors
    /// [`PoolError::NotRegistered`]; ids out of range.
    pub fn mark_computed(&mut self, block: BlockId) -> Result<(), PoolError> {
        check_id(block, self.num_blocks, "marked computed")?;
        if !self.contains(block) {
            return Err(PoolError::NotRegistered { block });
        }
        self.mark_computed_checked(block);
        Ok(())
    }

    pub(crate) fn mark_computed_checked(&mut self, block: BlockId) -> Visibility {
        let id = block.get();
        if self.entries[block.index()].is(COMPUTED) {
            return Visibility::Unchanged;
        }
        self.entries[block.index()].depth_and_flags |= COMPUTED;
        if self.entries[block.index()].is(HEAD) {
            return Visibility::Appeared;
        }
        // Move it to where computed copies are: behind a computed head, or before an uncomputed one.
        let hash = self.entries[block.index()].hash;
        let Some(head) = self.head_of(&hash) else { return Visibility::Unchanged };
        self.unlink(id);
        if self.entries[head as usize].is(COMPUTED) {
            self.link_after(id, head);
            return Visibility::Unchanged;
        }
        let tail = self.entries[head as usize].prev;
        self.link_after(id, tail);
        self.move_head(&hash, head, id);
        Visibility::Appeared
    }

    fn unlink(&mut self, id: u32) {
        let (prev, next) = (self.entries[id as usize].prev, self.entries[id as usize].next);
        self.entries[prev as usize].next = next;
        self.entries[next as usize].prev = prev;
    }

    fn link_after(&mut self, id: u32, prev: u32) {
        let next = self.entries[prev as usize].next;
        self.entries[id as usize].prev = prev;
        self.entries[id as usize].next = next;
        self.entries[prev as usize].next = id;
        self.entries[next as usize].prev = id;
    }

    fn move_head(&mut self, hash: &BlockHash, from: u32, to: u32) {
        if let Some(slot) = self.table.find_mut(self.table_key.hash(hash), |&head| head == from) {
            *slot = to;
        }
        self.entries[from as usize].depth_and_flags &= !HEAD;
        self.entries[to as usize].depth_and_flags |= HEAD;
    }

    /// Takes `block` out of the index: no lookup finds it any more. Returns whether it was registered. O(1).
    pub fn remove(&mut self, block: BlockId) -> bool {
        if !self.contains(block) {
            return false;
        }
        self.remove_checked(block);
        true
    }

    pub(crate) fn remove_checked(&mut self, block: BlockId) -> Visibility {
        let id = block.get();
        let Entry { next: heir, depth_and_flags: flags, .. } = self.entries[block.index()];
        let mut visibility = Visibility::Unchanged;
        if flags & HEAD != 0 {
            let at = self.table_key.hash(&self.entries[block.index()].hash);
            if heir == id {
                if let Ok(slot) = self.table.find_entry(at, |&head| head == id) {
                    slot.remove();
                }
            } else {
                let hash = self.entries[block.index()].hash;
                self.move_head(&hash, id, heir);
            }
            let heir_is_visible = heir != id && self.entries[heir as usize].is(COMPUTED);
            if flags & COMPUTED != 0 && !heir_is_visible {
                visibility = Visibility::Vanished;
            }
        }
        self.unlink(id);
        self.entries[block.index()].depth_and_flags = 0;
        self.registered -= 1;
        visibility
    }

    /// Forgets everything. O(blocks).
    pub fn clear(&mut self) {
        self.table.clear();
        for entry in &mut self.entries {
            entry.depth_and_flags = 0;
        }
        self.registered = 0;
    }

    /// Recounts rings, flags and table from scratch.
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn check_invariants(&self) -> Result<(), InvariantViolation> {
        let mut in_rings = 0;
        for &head in &self.table {
            let entry = &self.entries[head as usize];
            ensure(entry.is(HEAD), "P1 (a table entry is the head of its ring)", || format!("#{head}"))?;
            let mut uncomputed_seen = false;
            for copy in self.copies(&entry.hash) {
                let member = &self.entries[copy.index()];
                in_rings += 1;
                ensure(
                    member.hash == entry.hash && member.is(REGISTERED),
                    "P3 (a ring has one hash)",
                    || format!("{copy:?} in the ring of #{head}"),
                )?;
                ensure(member.is(HEAD) == (copy.get() == head), "P1 (a ring has one head)", || {
                    format!("{copy:?}")
                })?;
                ensure(!(uncomputed_seen && member.is(COMPUTED)), "P2 (computed copies come first)", || {
                    format!("{copy:?} in the ring of #{head}")
                })?;
                uncomputed_seen |= !member.is(COMPUTED);
                ensure(
                    self.entries[member.next as usize].prev == copy.get(),
                    "P1 (ring links mirror each other)",
                    || format!("{copy:?}"),
                )?;
            }
        }
        let flagged = self.entries.iter().filter(|entry| entry.is(REGISTERED)).count();
        ensure(
            in_rings == flagged && flagged == self.registered,
            "P1 (every registered block is in a ring)",
            || format!("{in_rings} in rings, {flagged} flagged, {} counted", self.registered),
        )
    }
}
