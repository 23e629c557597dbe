//! Implements the changes of the index: registering blocks, removing them, and marking them computed.
//!
//! A ring is a circular, doubly linked list of the blocks with the same hash. Its links are in the
//! blocks' records, so each change is O(1) for any number of blocks. A block that is alone in its ring
//! links to itself.

use super::Inserted;
use super::index::{Index, Visibility};
use super::table::Home;
use crate::block::BlockId;
use crate::error::{InvariantViolation, ensure};
use crate::hash::{BlockHash, HashChain, LinkRef, Verify};
use crate::list::Link;
use crate::record::{ByBlock, COMPUTED, CONTENT, DEPTH, HEAD, Name, REGISTERED, Record, Records};

/// Number of blocks whose cache lines are loaded together, so that the loads overlap.
pub(crate) const LOOKAHEAD: usize = 16;
/// Number of blocks whose buckets are loaded together when blocks are removed. The pool evicts this number
/// of blocks together.
const REMOVED: usize = 64;

impl Index {
    /// Registers blocks for the contents of a chain from `position` on. `hashes` are the hashes of
    /// these contents. The blocks must not include the null block. Stops at the first block that is
    /// already registered, or whose hash another block already has. Returns the number of blocks
    /// registered. The caller passes the block at which the call stopped to [`Self::insert`].
    #[inline]
    pub(crate) fn insert_run(
        &mut self,
        records: &mut Records,
        chain: &HashChain,
        position: usize,
        blocks: &[BlockId],
        hashes: &[BlockHash],
    ) -> usize {
        self.algorithm = Some(chain.algorithm());
        let done = self.enter_run(records, blocks, hashes, (0, 0), |at| (position + at) as u32);
        if self.verify > Verify::None || self.keeps_parents() {
            for (at, &block) in blocks[..done].iter().enumerate() {
                if let Some(link) = chain.link(position + at) {
                    self.note_more(block, &link);
                }
            }
        }
        done
    }

    /// Registers blocks under these hashes in a group. The blocks must not include the null block.
    /// Stops at the first block that is already registered, or whose name already exists. Returns the
    /// number of blocks registered. `flags` is [`COMPUTED`], to mark the blocks computed, or 0.
    #[inline]
    pub(super) fn enter_run(
        &mut self,
        records: &mut Records,
        blocks: &[BlockId],
        hashes: &[BlockHash],
        (group, flags): (u16, u32),
        depth_of: impl Fn(usize) -> u32,
    ) -> usize {
        let (mut done, mut homes) = (0, [Home::default(); LOOKAHEAD]);
        let hashes = &hashes[..hashes.len().min(blocks.len())];
        self.table.find_homes(hashes.iter().map(|hash| Name { hash, group }), &mut homes);
        for (at, (&block, hash)) in blocks.iter().zip(hashes).enumerate() {
            let home = homes[at % LOOKAHEAD];
            if let Some(hash) = hashes.get(at + LOOKAHEAD) {
                homes[at % LOOKAHEAD] = self.table.find_home(Name { hash, group });
            }
            let (id, name) = (block.get(), Name { hash, group });
            if records.at(id).is_registered()
                || !self.table.insert_new(home, id, |head| records.at(head).is_named(name))
            {
                break;
            }
            if let Some(record) = records.of_mut(block) {
                record.hash = *hash;
                record.group = group;
                record.ring = Link { prev: id, next: id };
                let depth = depth_of(at) & DEPTH;
                record.flags = (record.flags & !CONTENT) | depth | REGISTERED | HEAD | flags;
            }
            done += 1;
        }
        self.registered = self.registered.wrapping_add(done);
        done
    }

    /// Registers a block that is not registered. Does not mark it computed. The caller has checked that
    /// the algorithm, the block size and the depth of the content fit this index.
    #[inline]
    pub(crate) fn insert(&mut self, records: &mut Records, block: BlockId, link: &LinkRef<'_>) -> Inserted {
        self.algorithm = Some(link.algorithm);
        self.insert_in(records, block, link, 0)
    }

    /// Does the work of [`Self::insert`], for any group. `link.algorithm` is ignored.
    #[inline]
    pub(super) fn insert_in(
        &mut self,
        records: &mut Records,
        block: BlockId,
        link: &LinkRef<'_>,
        group: u16,
    ) -> Inserted {
        let (id, name) = (block.get(), Name { hash: &link.hash, group });
        let home = self.table.home(name);
        let (computed, uncomputed) = self.heads_of(records, home, name);
        if computed.or(uncomputed).is_some_and(|copy| !self.verifies_link(copy, link)) {
            return Inserted::Collision;
        }
        let mut head = 0;
        let mut ring = Link { prev: id, next: id };
        if let Some(first) = uncomputed {
            ring = Link { prev: records.at(first).ring.prev, next: first };
            if !self.mirrors(records, ring.prev, first) {
                return Inserted::Collision; // nothing is linked to a broken ring
            }
            set_next(records, ring.prev, id);
            set_prev(records, first, id);
        } else {
            self.torn |= !self.table.insert(home, id);
            self.mixed += usize::from(computed.is_some());
            head = HEAD;
        }
        if let Some(record) = records.of_mut(block) {
            record.hash = link.hash;
            record.group = group;
            record.ring = ring;
            record.flags = (record.flags & !CONTENT) | (link.depth & DEPTH) | REGISTERED | head;
        }
        self.registered = self.registered.wrapping_add(1);
        if self.verify > Verify::None || self.keeps_parents() {
            self.note_more(block, link);
        }
        if let Some(known) = &mut self.known {
            known.forget(block);
        }
        Inserted::Registered
    }

    /// Stores the fingerprint, the tokens and the parent hash of a block, as far as the index has lists
    /// for them.
    pub(super) fn note_more(&mut self, block: BlockId, link: &LinkRef<'_>) {
        if let Some(slot) = self.fingerprints.get_mut(block.index()) {
            *slot = link.fingerprint.unwrap_or_default();
        }
        let (size, at) = (self.block_size(), block.index() * self.block_size());
        if let (Some(tokens), Some(slots)) = (link.tokens, self.tokens.get_mut(at..at + size)) {
            slots.copy_from_slice(tokens);
        }
        if let Some(slot) = self.parents.get_mut(block.index()) {
            // Always overwrites the old value, which may be the parent hash of an earlier content.
            *slot = link.parent.unwrap_or(link.hash);
        }
    }

    /// Marks a registered block as computed, so that lookups may return it.
    #[inline]
    pub(crate) fn mark_computed(&mut self, records: &mut Records, block: BlockId) -> Visibility {
        let id = block.get();
        let Some(record) = records.of_mut(block) else { return Visibility::Unchanged };
        let (ring, flags) = (record.ring, record.flags);
        if flags & COMPUTED != 0 {
            return Visibility::Unchanged;
        }
        let alone = flags & HEAD != 0 && ring.next == id;
        // Nearly every content has only one block. The ring of this block becomes a ring of computed
        // blocks, and no link changes.
        if alone && self.mixed == 0 {
            record.flags = flags | COMPUTED;
            return Visibility::Appeared;
        }
        self.mark_copy(records, block, alone)
    }

    #[inline(never)]
    fn mark_copy(&mut self, records: &mut Records, block: BlockId, alone: bool) -> Visibility {
        let (id, Record { hash, group, .. }) = (block.get(), *records.at(block.get()));
        let name = Name { hash: &hash, group };
        let computed = self.ring_of(records, name, true);
        let moves = !alone || computed.is_some();
        if moves && !self.leave_ring(records, id) {
            return Visibility::Unchanged;
        }
        let flags = records.at(id).flags;
        set_flags(records, id, flags | COMPUTED);
        if let Some(head) = computed {
            self.mixed = self.mixed.saturating_sub(usize::from(alone));
            self.link_before(records, id, head);
            return Visibility::Unchanged;
        }
        if moves {
            self.torn |= !self.table.insert(self.table.home(name), id);
            self.mixed += 1; // the ring that it left still has blocks
            if let Some(record) = records.of_mut(block) {
                record.ring = Link { prev: id, next: id };
                record.flags |= HEAD;
            }
        }
        Visibility::Appeared
    }

    /// Whether `prev` and `next` follow each other in a ring, and link to each other. If they do not,
    /// sets `torn`: the index is broken.
    fn mirrors(&mut self, records: &Records, prev: u32, next: u32) -> bool {
        let (before, behind) = (records.at(prev), records.at(next));
        let sound = before.ring.next == next
            && behind.ring.prev == prev
            && before.is_named(behind.name())
            && before.is_computed() == behind.is_computed();
        self.torn |= !sound;
        sound
    }

    /// Adds `id`, which has just become computed, to the end of the ring whose first block is `head`.
    fn link_before(&mut self, records: &mut Records, id: u32, head: u32) {
        let tail = records.at(head).ring.prev;
        if !self.mirrors(records, tail, head) {
            return;
        }
        if let Some(record) = records.of_mut(BlockId::new(id)) {
            record.ring = Link { prev: tail, next: head };
        }
        set_next(records, tail, id);
        set_prev(records, head, id);
    }

    /// Removes `id` from its ring. If it was the head (the first block, which the table contains), the
    /// next block becomes the head. Returns false if its links did not match those of its neighbours.
    #[inline]
    fn leave_ring(&mut self, records: &mut Records, id: u32) -> bool {
        let Record { hash, group, ring: Link { prev, next: successor }, flags, .. } = *records.at(id);
        let alone = successor == id && prev == id;
        let sound = alone || (self.mirrors(records, prev, id) && self.mirrors(records, id, successor));
        if sound && !alone {
            set_next(records, prev, successor);
            set_prev(records, successor, prev);
        }
        if flags & HEAD != 0 {
            let home = self.table.home(Name { hash: &hash, group });
            // If the links do not match, the content is removed from the table. That is safer than
            // lookups that return another content.
            if sound && successor != id {
                self.torn |= !self.table.replace(home, id, successor);
                let flags = records.at(successor).flags;
                set_flags(records, successor, flags | HEAD);
            } else {
                self.torn |= !self.table.remove(home, id);
            }
            set_flags(records, id, flags & !HEAD);
        }
        sound
    }

    #[inline]
    pub(crate) fn remove(&mut self, records: &mut Records, block: BlockId) -> Visibility {
        let home = self.table.home(records.at(block.get()).name());
        self.forget_interior(&[block]);
        self.remove_from(records, block, home)
    }

    #[inline]
    fn forget_interior(&mut self, blocks: &[BlockId]) {
        if let Some(interior) = &mut self.interior {
            blocks.iter().for_each(|&block| interior.remove(block));
        }
    }

    #[inline(always)]
    fn remove_from(&mut self, records: &mut Records, block: BlockId, home: Home) -> Visibility {
        let id = block.get();
        let Record { ring, flags, .. } = *records.at(id);
        let alone = flags & HEAD != 0 && ring == Link { prev: id, next: id };
        if alone && self.mixed == 0 {
            self.torn |= !self.table.remove(home, id);
            forget(records.of_mut(block));
            self.registered = self.registered.wrapping_sub(1); // `check_sums` finds a wrong count
            return if flags & COMPUTED != 0 { Visibility::Vanished } else { Visibility::Unchanged };
        }
        self.remove_copy(records, block)
    }

    /// Removes registered blocks from the index. Calls `gone` for each block, with its former name and
    /// with the effect of the removal on lookups.
    #[inline]
    pub(crate) fn remove_run(
        &mut self,
        records: &mut Records,
        blocks: &[BlockId],
        mut gone: impl FnMut(BlockId, Name<'_>, Visibility),
    ) {
        self.forget_interior(blocks);
        let mut homes = [Home::default(); REMOVED];
        for blocks in blocks.chunks(REMOVED) {
            self.table.find_homes(blocks.iter().map(|block| records.at(block.get()).name()), &mut homes);
            for (&block, &home) in blocks.iter().zip(&homes) {
                let visibility = self.remove_from(records, block, home);
                // The removal only clears flags of the record, so the former name can still be read.
                gone(block, records.at(block.get()).name(), visibility);
            }
        }
    }

    #[inline(never)]
    fn remove_copy(&mut self, records: &mut Records, block: BlockId) -> Visibility {
        let id = block.get();
        let Record { hash, group, ring, flags, .. } = *records.at(id);
        let sound = self.leave_ring(records, id);
        let last = flags & HEAD != 0 && (ring.next == id || !sound);
        let name = Name { hash: &hash, group };
        if last && self.mixed > 0 && self.ring_of(records, name, flags & COMPUTED == 0).is_some() {
            self.mixed = self.mixed.saturating_sub(1);
        }
        forget(records.of_mut(block));
        self.registered = self.registered.wrapping_sub(1);
        if last && flags & COMPUTED != 0 { Visibility::Vanished } else { Visibility::Unchanged }
    }

    /// Removes all blocks, and resets the algorithm. O(blocks).
    pub(crate) fn clear(&mut self, records: &mut Records) {
        self.table.clear();
        if let Some(interior) = &mut self.interior {
            interior.clear();
        }
        records.iter_mut().for_each(|record| forget(Some(record)));
        self.registered = 0;
        self.mixed = 0;
    }

    /// Checks one block: see [`super::PrefixIndex::check_block`].
    pub(crate) fn check_block(&self, records: &Records, block: BlockId) -> Result<(), InvariantViolation> {
        ensure(!self.torn, "P1 (the ring links of neighbours match each other)", || {
            "a change has found links that do not match".into()
        })?;
        if block.is_null() {
            let heads = self.table.len();
            let counted = heads <= self.registered && self.registered < records.len();
            ensure(counted && self.mixed <= heads / 2, "P3 (rings are counted)", || {
                format!("{heads} rings, {} pairs, {} blocks", self.mixed, self.registered)
            })?;
        }
        let Some(record) = records.of(block) else { return Ok(()) };
        if !record.is_registered() || block.is_null() {
            let content = record.flags & CONTENT;
            return ensure(content == 0, "P1 (an unregistered block has no content)", || {
                format!("{block:?} has the flags {content:x}")
            });
        }
        let head = self.ring_of(records, record.name(), record.is_computed());
        let leads = head.is_some_and(|head| records.at(head).is(HEAD))
            && record.is(HEAD) == (head == Some(block.get()));
        ensure(leads, "P1 (the table leads to the head of a block's ring)", || {
            format!("{block:?} (a head: {}), but the table leads to {head:?}", record.is(HEAD))
        })?;
        let neighbour = |id: u32| {
            let other = records.of(BlockId::new(id));
            other.filter(|other| other.is_registered() && other.is_named(record.name()))
        };
        let Link { prev, next } = record.ring;
        let (before, behind) = (neighbour(prev), neighbour(next));
        let alone = next == block.get() && !record.is(HEAD);
        let mirrored = !alone
            && before.is_some_and(|before| before.ring.next == block.get())
            && behind.is_some_and(|behind| behind.ring.prev == block.get());
        ensure(mirrored, "P1 (the ring links of neighbours match each other)", || {
            format!("{block:?}: {prev} before, {next} after")
        })?;
        let alike =
            |other: Option<&Record>| other.is_none_or(|other| other.is_computed() == record.is_computed());
        ensure(alike(before) && alike(behind), "P2 (all blocks of a ring are computed, or none is)", || {
            format!("{block:?}, between {prev} and {next}")
        })
    }

    /// Checks all invariants: see [`super::PrefixIndex::check_invariants`].
    pub(crate) fn check_invariants(&self, records: &Records) -> Result<(), InvariantViolation> {
        let (mut in_rings, mut mixed) = (0, 0);
        self.check_block(records, BlockId::new(0))?;
        self.table.check_invariants(|id| records.at(id).name())?;
        for head in self.table.iter() {
            let Record { hash, group, flags, .. } = *records.at(head);
            let name = Name { hash: &hash, group };
            ensure(flags & HEAD != 0, "P1 (a table entry is the head of its ring)", || format!("#{head}"))?;
            let computed = flags & COMPUTED != 0;
            mixed += usize::from(computed && self.ring_of(records, name, false).is_some());
            for copy in self.copies(records, name) {
                let member = records.at(copy.get());
                if member.is_computed() != computed {
                    continue;
                }
                in_rings += 1;
                ensure(member.is_registered(), "P3 (a ring has only registered blocks)", || {
                    format!("{copy:?} in the ring of #{head}")
                })?;
                ensure(member.is(HEAD) == (copy.get() == head), "P1 (a ring has one head)", || {
                    format!("{copy:?}")
                })?;
                let mirrored = records.at(member.ring.next).ring.prev == copy.get();
                ensure(mirrored, "P1 (the ring links of neighbours match each other)", || {
                    format!("{copy:?}")
                })?;
            }
        }
        ensure(mixed == self.mixed, "P3 (rings are counted)", || {
            format!("{mixed} hashes have two rings, {} counted", self.mixed)
        })?;
        self.interior.as_ref().map_or(Ok(()), |interior| interior.check_invariants(records))?;
        let flagged = records.iter().filter(|record| record.is_registered()).count();
        ensure(
            in_rings == flagged && flagged == self.registered,
            "P1 (every registered block is in a ring)",
            || format!("{in_rings} in rings, {flagged} flagged, {} counted", self.registered),
        )
    }
}

#[inline]
fn set_next(records: &mut Records, of: u32, next: u32) {
    if let Some(record) = records.of_mut(BlockId::new(of)) {
        record.ring.next = next;
    }
}

#[inline]
fn set_prev(records: &mut Records, of: u32, prev: u32) {
    if let Some(record) = records.of_mut(BlockId::new(of)) {
        record.ring.prev = prev;
    }
}

#[inline]
fn set_flags(records: &mut Records, of: u32, flags: u32) {
    if let Some(record) = records.of_mut(BlockId::new(of)) {
        record.flags = flags;
    }
}

/// Removes the content of a record, by clearing its flags.
#[inline]
fn forget(record: Option<&mut Record>) {
    if let Some(record) = record {
        record.flags &= !CONTENT;
    }
}

#[cfg(feature = "fault-injection")]
impl Index {
    /// Overwrites one value of the index, for tests, and adjusts no other value. `what` selects the
    /// value. 7 is the number of registered blocks. 8 is the registered bit of a block that is not
    /// registered. The others are values of a registered block: 0 is its backward link, 1 its forward
    /// link, 2 one bit of its hash, 3 its computed bit, 4 its depth, 5 the block in its table entry, 6
    /// its table entry, which is removed, and 9 one bit of its group. Returns false if there is no such
    /// value, or if it is already equal.
    pub(crate) fn corrupt(&mut self, records: &mut Records, block: BlockId, what: usize, to: u32) -> bool {
        if what == 7 {
            return std::mem::replace(&mut self.registered, to as usize) != to as usize;
        }
        let home = self.table.home(records.at(block.get()).name());
        let Some(record) = records.of_mut(block) else { return false };
        let registered = record.is_registered();
        let replace = |slot: &mut u32, to: u32| std::mem::replace(slot, to) != to;
        match what {
            0 if registered => replace(&mut record.ring.prev, to),
            1 if registered => replace(&mut record.ring.next, to),
            2 if registered => {
                let mut bytes = *record.hash.as_bytes();
                bytes[to as usize % 32] ^= 1 << (to / 32 % 8);
                record.hash = BlockHash::from_bytes(bytes);
                true
            }
            3 if registered => {
                record.flags ^= COMPUTED;
                true
            }
            4 if registered => {
                let changed = (record.flags & !DEPTH) | (to & DEPTH);
                replace(&mut record.flags, changed)
            }
            5 if registered && to != block.get() => self.table.replace(home, block.get(), to),
            6 if registered => self.table.remove(home, block.get()),
            8 if !registered && !block.is_null() => {
                record.flags |= REGISTERED;
                true
            }
            9 if registered => {
                record.group ^= 1 << (to % 16);
                true
            }
            _ => false,
        }
    }
}
