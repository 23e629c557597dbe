//! Changes of the index: blocks enter and leave the ring of their hash, and become computed.
//!
//! A ring is doubly linked through the entries, so each change is O(1), however many copies a hash has.

use super::{COMPUTED, Entry, HEAD, Inserted, PrefixIndex, REGISTERED, Visibility};
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
        Self::check_depth(position)?;
        let Some(link) = chain.link(position) else {
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
        let (computed, uncomputed) = self.heads_of(&link.hash);
        if computed.or(uncomputed).is_some_and(|copy| !self.verifies_link(copy, link)) {
            return Inserted::Collision;
        }
        let (prev, next) = if let Some(head) = uncomputed {
            // At the end of the ring.
            let tail = self.entries[head as usize].prev;
            if !self.mirrors(tail, head) {
                return Inserted::Collision; // not over what cannot be trusted
            }
            self.entries[tail as usize].next = id;
            self.entries[head as usize].prev = id;
            (tail, head)
        } else {
            self.insert_head(id, &link.hash);
            self.mixed += usize::from(computed.is_some());
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
        if let Some(slot) = self.parents.get_mut(block.index()) {
            // Always written: what the block held before had another one.
            *slot = link.parent.unwrap_or(link.hash);
        }
        self.registered = self.registered.wrapping_add(1);
        self.content_sum = self.content_sum.wrapping_add(self.content_check(block));
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
        let Entry { hash, next, depth_and_flags: flags, .. } = self.entries[block.index()];
        if flags & COMPUTED != 0 {
            return Visibility::Unchanged;
        }
        let alone = flags & HEAD != 0 && next == id;
        // Of nearly every content there is one copy: its ring becomes one of computed copies as it is.
        let computed = if alone && self.mixed == 0 { None } else { self.ring_of(&hash, true) };
        let moves = !alone || computed.is_some();
        if moves && !self.leave_ring(id) {
            return Visibility::Unchanged;
        }
        self.entries[block.index()].depth_and_flags |= COMPUTED;
        self.content_sum = self.content_sum.wrapping_add(u64::from(COMPUTED));
        if let Some(head) = computed {
            self.mixed = self.mixed.saturating_sub(usize::from(alone));
            let tail = self.entries[head as usize].prev;
            self.link_after(id, tail);
            return Visibility::Unchanged;
        }
        if moves {
            self.insert_head(id, &hash);
            self.mixed += 1; // the ring that it left has others
            let entry = &mut self.entries[block.index()];
            (entry.prev, entry.next) = (id, id);
            entry.depth_and_flags |= HEAD;
        }
        Visibility::Appeared
    }

    /// Whether `prev` and `next` are neighbours in a ring that say so of each other. Tears the index if they do not.
    fn mirrors(&mut self, prev: u32, next: u32) -> bool {
        let forward = self.entries.get(prev as usize).filter(|entry| entry.next == next);
        let backward = self.entries.get(next as usize).filter(|entry| entry.prev == prev);
        let sound = match (forward, backward) {
            (Some(before), Some(behind)) => {
                before.hash == behind.hash && before.is(COMPUTED) == behind.is(COMPUTED)
            }
            _ => false,
        };
        self.torn |= !sound;
        sound
    }

    fn unlink(&mut self, id: u32) -> bool {
        let (prev, next) = (self.entries[id as usize].prev, self.entries[id as usize].next);
        if !self.mirrors(prev, id) || !self.mirrors(id, next) {
            return false;
        }
        self.entries[prev as usize].next = next;
        self.entries[next as usize].prev = prev;
        true
    }

    fn link_after(&mut self, id: u32, prev: u32) {
        let Some(next) = self.entries.get(prev as usize).map(|entry| entry.next) else {
            self.torn = true;
            return;
        };
        if !self.mirrors(prev, next) {
            return;
        }
        self.entries[id as usize].prev = prev;
        self.entries[id as usize].next = next;
        self.entries[prev as usize].next = id;
        self.entries[next as usize].prev = id;
    }

    fn move_head(&mut self, hash: &BlockHash, from: u32, to: u32) {
        match self.table.find_mut(self.table_key.hash(hash), |&head| head == from) {
            Some(slot) => *slot = to,
            None => self.torn = true,
        }
        self.entries[from as usize].depth_and_flags &= !HEAD;
        self.entries[to as usize].depth_and_flags |= HEAD;
    }

    /// Enters a ring in the table, with `id` as its head.
    fn insert_head(&mut self, id: u32, hash: &BlockHash) {
        let (entries, key) = (&self.entries, self.table_key);
        let rehash = |&head: &u32| entries.get(head as usize).map_or(0, |entry| key.hash(&entry.hash));
        self.table.insert_unique(key.hash(hash), id, rehash);
        self.heads += 1;
    }

    /// Takes `id` out of its ring, which the next one heads then, or which is gone. Returns whether its links were sound.
    fn leave_ring(&mut self, id: u32) -> bool {
        let Entry { hash, next: heir, depth_and_flags: flags, .. } = self.entries[id as usize];
        let sound = self.unlink(id);
        if flags & HEAD != 0 {
            // What hangs on broken links is not found any more, rather than somebody else's content.
            if sound && heir != id {
                self.move_head(&hash, id, heir);
            } else {
                self.remove_head(id);
            }
        }
        sound
    }

    /// Takes the entry of the ring that `id` heads out of the table.
    fn remove_head(&mut self, id: u32) {
        let at = self.table_key.hash(&self.entries[id as usize].hash);
        match self.table.find_entry(at, |&head| head == id) {
            Ok(slot) => {
                slot.remove();
            }
            Err(_) => self.torn = true,
        }
        self.heads = self.heads.wrapping_sub(1);
        self.entries[id as usize].depth_and_flags &= !HEAD;
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
        let Entry { hash, next, depth_and_flags: flags, .. } = self.entries[block.index()];
        let sound = self.leave_ring(id);
        let last = flags & HEAD != 0 && (next == id || !sound);
        if last && self.mixed > 0 && self.ring_of(&hash, flags & COMPUTED == 0).is_some() {
            self.mixed = self.mixed.saturating_sub(1);
        }
        self.entries[block.index()].depth_and_flags = 0;
        let gone = self.entries[block.index()].check(flags);
        self.content_sum = self.content_sum.wrapping_sub(gone);
        self.registered = self.registered.wrapping_sub(1); // found by the sums, if it is wrong
        if last && flags & COMPUTED != 0 { Visibility::Vanished } else { Visibility::Unchanged }
    }

    /// Forgets everything, the algorithm too. O(blocks).
    pub fn clear(&mut self) {
        self.table.clear();
        for entry in &mut self.entries {
            entry.depth_and_flags = 0;
        }
        self.registered = 0;
        self.content_sum = 0;
        self.heads = 0;
        self.mixed = 0;
    }

    /// Whether one block is found by the hash that it is registered under, and its links and bits agree with those of its
    /// neighbours; or has none, if it is not registered. Of block 0: what is counted. O(1).
    ///
    /// # Errors
    /// The broken invariant.
    pub fn check_block(&self, block: BlockId) -> Result<(), InvariantViolation> {
        ensure(!self.torn, "P1 (ring links mirror each other)", || "a change met links that do not".into())?;
        if block.is_null() {
            let counted = self.heads == self.table.len() && self.heads <= self.registered;
            let paired = self.mixed <= self.heads / 2 && self.registered <= self.num_blocks;
            ensure(counted && paired, "P3 (rings are counted)", || {
                let (table, heads, mixed) = (self.table.len(), self.heads, self.mixed);
                format!("{table} in the table, {heads} rings, {mixed} pairs, {} blocks", self.registered)
            })?;
        }
        let Some(entry) = self.entries.get(block.index()) else { return Ok(()) };
        if !entry.is(REGISTERED) || block.is_null() {
            return ensure(entry.depth_and_flags == 0, "P1 (what is not registered has no content)", || {
                format!("{block:?}: {:x}", entry.depth_and_flags)
            });
        }
        let head = self.ring_of(&entry.hash, entry.is(COMPUTED));
        let leads = head.is_some_and(|head| self.entries[head as usize].is(HEAD))
            && entry.is(HEAD) == (head == Some(block.get()));
        ensure(leads, "P1 (the table leads to the head of a block's ring)", || {
            format!("{block:?}, a head: {}, is found by {head:?}", entry.is(HEAD))
        })?;
        let neighbour = |id: u32| {
            let other = self.entries.get(id as usize);
            other.filter(|other| other.is(REGISTERED) && other.hash == entry.hash)
        };
        let (before, behind) = (neighbour(entry.prev), neighbour(entry.next));
        let alone = entry.next == block.get() && !entry.is(HEAD);
        let mirrored = !alone
            && before.is_some_and(|before| before.next == block.get())
            && behind.is_some_and(|behind| behind.prev == block.get());
        ensure(mirrored, "P1 (ring links mirror each other)", || {
            format!("{block:?}: {} before, {} behind", entry.prev, entry.next)
        })?;
        let alike =
            |other: Option<&Entry>| other.is_none_or(|other| other.is(COMPUTED) == entry.is(COMPUTED));
        ensure(alike(before) && alike(behind), "P2 (a ring is of computed copies, or of others)", || {
            format!("{block:?}, between {} and {}", entry.prev, entry.next)
        })
    }

    /// Recounts rings, flags and table from scratch.
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn check_invariants(&self) -> Result<(), InvariantViolation> {
        let (mut in_rings, mut mixed) = (0, 0);
        self.check_block(BlockId::new(0))?;
        for &head in &self.table {
            let Some(entry) = self.entries.get(head as usize).filter(|entry| entry.is(HEAD)) else {
                return Err(InvariantViolation::new(
                    "P1 (a table entry is the head of its ring)",
                    format!("#{head}"),
                ));
            };
            let computed = entry.is(COMPUTED);
            mixed += usize::from(computed && self.ring_of(&entry.hash, false).is_some());
            let copies = self.copies(&entry.hash).into_iter();
            for copy in copies.filter(|copy| self.entries[copy.index()].is(COMPUTED) == computed) {
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
                ensure(
                    self.entries.get(member.next as usize).is_some_and(|next| next.prev == copy.get()),
                    "P1 (ring links mirror each other)",
                    || format!("{copy:?}"),
                )?;
            }
        }
        ensure(mixed == self.mixed, "P3 (rings are counted)", || {
            format!("{mixed} hashes have two, {} counted", self.mixed)
        })?;
        let flagged = self.entries.iter().filter(|entry| entry.is(REGISTERED)).count();
        ensure(
            in_rings == flagged && flagged == self.registered,
            "P1 (every registered block is in a ring)",
            || format!("{in_rings} in rings, {flagged} flagged, {} counted", self.registered),
        )
    }
}

#[cfg(feature = "fault-injection")]
impl PrefixIndex {
    /// Changes what is noted of a registered block behind the index' back: 0 its link backward, 1 its link forward, 2 a byte of
    /// its hash, 3 its computed bit, 4 its depth, 5 where the table leads that leads to it, 6 whether the table leads to it, 7 (of
    /// any block) the number of registered blocks, 8 (of one that is not registered) that it is. False if there is no such thing,
    /// or if it is so already.
    pub(crate) fn corrupt(&mut self, block: BlockId, what: usize, to: u32) -> bool {
        if what == 7 {
            return std::mem::replace(&mut self.registered, to as usize) != to as usize;
        }
        let at = self.entries.get(block.index()).map_or(0, |entry| self.table_key.hash(&entry.hash));
        let Some(entry) = self.entries.get_mut(block.index()) else { return false };
        let registered = entry.is(REGISTERED);
        let replace = |slot: &mut u32, to: u32| std::mem::replace(slot, to) != to;
        match what {
            0 if registered => replace(&mut entry.prev, to),
            1 if registered => replace(&mut entry.next, to),
            2 if registered => {
                let mut bytes = *entry.hash.as_bytes();
                bytes[to as usize % 32] ^= 1 << (to / 32 % 8);
                entry.hash = BlockHash::from_bytes(bytes);
                true
            }
            3 if registered => {
                entry.depth_and_flags ^= COMPUTED;
                true
            }
            4 if registered => {
                let changed = (entry.depth_and_flags & !super::DEPTH) | (to & super::DEPTH);
                replace(&mut entry.depth_and_flags, changed)
            }
            5 if registered && to != block.get() => {
                let found = self.table.find_mut(at, |&head| head == block.get());
                found.map(|slot| *slot = to).is_some()
            }
            6 if registered => {
                let found = self.table.find_entry(at, |&head| head == block.get());
                found.map(hashbrown::hash_table::OccupiedEntry::remove).is_ok()
            }
            8 if !registered && !block.is_null() => {
                entry.depth_and_flags |= REGISTERED;
                true
            }
            _ => false,
        }
    }
}
