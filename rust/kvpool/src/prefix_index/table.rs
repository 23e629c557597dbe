//! `Table` is a hash table from names to blocks. A name is the digest of a content and the number of a
//! KV-cache group. Blocks with the same name form a list, called a ring. The table contains only the
//! first block of each ring.
//!
//! An entry contains a block id, one byte of the digest, and as many further bits of the digest as fit
//! next to the id. The table does not store whole digests. So the caller checks the digest of each
//! entry that a search finds. The stored bits already exclude almost every wrong entry. Several entries
//! may have the same digest.
//!
//! A bucket is one cache line with twelve slots, filled from the first slot on. If the bucket of an
//! entry is full, the entry is stored in the next bucket that is not full, and a counter is incremented
//! in each full bucket that it passed. A search continues to the next bucket only if this counter is
//! not 0. So a removed entry needs no mark (tombstone), and the table never has to be rebuilt because
//! of such marks. The size of the table follows from the size of the pool. After the construction, no
//! call allocates memory.
//!
//! Digests that kvpool computes are uniformly distributed, but chains from other sources may contain
//! any bytes. So the bucket of a digest depends on a random key of the table, and an attacker cannot
//! choose digests that share a bucket. No result depends on the order of entries.
//!
//! Invariant P4: an entry is in the bucket of its digest or in a later one. If it is in a later one,
//! the counter of each full bucket before it includes it.
//!
//! Costs: all operations are O(1). If every block of a pool is registered, there are seven entries per
//! bucket on average, and one search in thirty reads a second bucket. The table takes 9 bytes per
//! block.

use std::fmt;
use std::hash::BuildHasher;

use kvpool_prefetch::prefetch;

use crate::error::{InvariantViolation, PoolError, ensure};
use crate::list::no_memory;
use crate::record::Name;

const SLOTS: usize = 12;
/// Average number of entries per bucket when every block of the pool is registered. It determines the
/// number of buckets.
const LOAD: usize = 7;
/// The value of an empty slot. It is the id of the null block, which is never registered.
const EMPTY: u32 = 0;

/// A bucket of the hash table: twelve slots in one cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Bucket {
    /// The entries: a block id in the low bits, and bits of the digest ([`Home::rest`]) above it.
    /// [`EMPTY`] in empty slots.
    entries: [u32; SLOTS],
    /// The tag of each entry: one byte of its digest, with 1 in place of 0. The tag of an empty slot is
    /// 0.
    tags: [u8; SLOTS],
    /// The number of entries in the bucket, plus [`PASSED`] for each entry that is stored in a later
    /// bucket because this one was full.
    counts: u32,
}

const _: () = assert!(size_of::<Bucket>() == 64);

const BLANK: Bucket = Bucket { entries: [EMPTY; SLOTS], tags: [0; SLOTS], counts: 0 };

impl Bucket {
    /// Returns the tags of the first eight slots as one word, and the tags of the other slots as
    /// another.
    #[inline(always)]
    fn words(&self) -> (u64, u64) {
        let low = u64::from_le_bytes(std::array::from_fn(|at| self.tags[at]));
        let high = u32::from_le_bytes(std::array::from_fn(|at| self.tags[8 + at]));
        (low, high.into())
    }

    /// Returns the slot of the first entry that has `tag` and that `leads` accepts. `leads` may also be
    /// called for an entry with another tag, if the entry in the slot before it has `tag`.
    #[inline(always)]
    fn find(&self, tag: u8, mut leads: impl FnMut(u32) -> bool) -> Option<usize> {
        let (low, high) = self.words();
        let mut matches = equal_bytes(low, tag);
        while matches != 0 {
            let slot = (matches.trailing_zeros() / 8) as usize;
            if leads(self.entries[slot & 7]) {
                return Some(slot);
            }
            matches &= matches - 1;
        }
        let mut matches = equal_bytes(high, tag) & u64::from(u32::MAX);
        while matches != 0 {
            let slot = 8 + (matches.trailing_zeros() / 8) as usize;
            if slot < SLOTS && leads(self.entries[slot]) {
                return Some(slot);
            }
            matches &= matches - 1;
        }
        None
    }

    /// Adds an entry in the first free slot. Returns false if the bucket is full.
    #[inline(always)]
    fn put(&mut self, tag: u8, entry: u32) -> bool {
        let slot = (self.counts % PASSED) as usize;
        if slot >= SLOTS {
            return false;
        }
        self.entries[slot] = entry;
        self.tags[slot] = tag;
        self.counts += 1;
        true
    }

    /// Removes the entry in a slot. The bucket's last entry moves to this slot.
    #[inline(always)]
    fn take(&mut self, slot: usize) {
        let last = ((self.counts % PASSED) as usize).clamp(1, SLOTS) - 1;
        (self.entries[slot], self.tags[slot]) = (self.entries[last], self.tags[last]);
        (self.entries[last], self.tags[last]) = (EMPTY, 0); // it may be the same slot
        self.counts = self.counts.wrapping_sub(1);
    }

    /// Returns the number of entries that are stored in a later bucket because this one was full.
    #[inline]
    const fn passed(&self) -> u32 {
        self.counts / PASSED
    }
}

/// The amount that each entry in a later bucket adds to `counts`. It is above the number of slots, so
/// that `counts` can contain both numbers.
const PASSED: u32 = 16;

/// Returns a word with bit 7 set in each byte of `word` that equals `byte`. The bit of the byte after a
/// matching byte may also be set, although that byte does not match.
#[inline(always)]
const fn equal_bytes(word: u64, byte: u8) -> u64 {
    const LOW: u64 = u64::from_ne_bytes([1; 8]);
    let differ = word ^ (LOW * byte as u64);
    differ.wrapping_sub(LOW) & !differ & (LOW << 7)
}

/// The place of a name in the table: its bucket, and the bits of its digest that its entry stores.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Home {
    bucket: u32,
    /// Bits made from the name. The low eight bits are the tag. An entry stores these bits where the
    /// block id leaves bits free.
    rest: u32,
}

impl Home {
    #[inline(always)]
    fn tag(self) -> u8 {
        (self.rest as u8).max(1)
    }
}

#[derive(Clone)]
pub(crate) struct Table {
    buckets: Vec<Bucket>,
    len: usize,
    /// Mask of the low bits of an entry, which contain the block id.
    ids: u32,
    key: [u64; 4],
}

impl Table {
    /// Makes an empty table that cannot store any entry.
    pub(crate) fn new() -> Self {
        let state = std::collections::hash_map::RandomState::new();
        Self { buckets: Vec::new(), len: 0, ids: u32::MAX, key: std::array::from_fn(|at| state.hash_one(at)) }
    }

    /// Makes an empty table with the same key as this one. It has room for `entries` entries, and for
    /// ids up to this number. See [`Self::rebuild`].
    pub(crate) fn prepare(&self, entries: usize) -> Result<Self, PoolError> {
        let mut buckets = Vec::new();
        let wanted = entries.div_ceil(LOAD).max(1);
        buckets.try_reserve_exact(wanted).map_err(|_| no_memory(entries))?;
        buckets.resize(wanted, BLANK);
        let ids = u32::MAX.unbounded_shr((entries as u32).leading_zeros());
        Ok(Self { buckets, len: 0, ids, key: self.key })
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Returns the place of a name in the table. In group 0, it depends only on the digest and on the
    /// table's key.
    #[inline]
    pub(crate) fn home(&self, name: Name<'_>) -> Home {
        const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;
        let bytes = name.hash.as_bytes();
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[8 * at + i])) ^ self.key[at];
        let fold = |a: u64, b: u64| {
            let product = u128::from(a) * u128::from(b);
            product as u64 ^ (product >> 64) as u64
        };
        let group = u64::from(name.group).wrapping_mul(SPREAD);
        let mixed = fold(word(0) ^ group, word(1)) ^ fold(word(2), word(3));
        let bucket = ((mixed >> 32) * self.buckets.len() as u64) >> 32;
        Home { bucket: bucket as u32, rest: mixed as u32 }
    }

    /// Returns the value that a slot stores for the block `id`.
    #[inline(always)]
    fn entry(&self, home: Home, id: u32) -> u32 {
        (home.rest & !self.ids) | id
    }

    /// Returns the block id of an entry, if the bits of the digest in the entry match those of `home`.
    #[inline(always)]
    fn id(&self, home: Home, entry: u32) -> Option<u32> {
        ((entry ^ home.rest) & !self.ids == 0).then_some(entry & self.ids)
    }

    #[inline]
    fn bucket(&self, at: usize) -> &Bucket {
        self.buckets.get(at).unwrap_or(&BLANK)
    }

    #[inline]
    const fn after(&self, at: usize) -> usize {
        if at + 1 < self.buckets.len() { at + 1 } else { 0 }
    }

    /// Returns the block id of the first entry in the bucket of `home` whose stored bits match, or 0.
    /// This is almost always the right entry. The call reads one cache line, and does not compare whole
    /// digests.
    #[inline]
    pub(crate) fn first_guess(&self, home: Home) -> u32 {
        let bucket = self.bucket(home.bucket as usize);
        let found = bucket.find(home.tag(), |entry| self.id(home, entry).is_some());
        found.and_then(|slot| bucket.entries.get(slot)).map_or(EMPTY, |&entry| entry & self.ids)
    }

    /// Returns the place of a name, and starts to load its bucket. Reads of several buckets overlap if
    /// their places are found first.
    #[inline]
    pub(crate) fn find_home(&self, name: Name<'_>) -> Home {
        let home = self.home(name);
        prefetch(self.bucket(home.bucket as usize));
        home
    }

    /// Finds the places of several names, as [`Self::find_home`] does.
    #[inline]
    pub(crate) fn find_homes<'a>(&self, names: impl Iterator<Item = Name<'a>>, homes: &mut [Home]) {
        for (home, name) in homes.iter_mut().zip(names) {
            *home = self.find_home(name);
        }
    }

    /// Returns the bucket and the slot of the first entry of `home` whose block `leads` accepts.
    #[inline]
    fn locate(&self, home: Home, mut leads: impl FnMut(u32) -> bool) -> Option<(usize, usize)> {
        let mut at = home.bucket as usize;
        for _ in 0..self.buckets.len() {
            let bucket = self.bucket(at);
            let accepted = |entry| self.id(home, entry).is_some_and(&mut leads);
            if let Some(slot) = bucket.find(home.tag(), accepted) {
                return Some((at, slot));
            }
            if bucket.passed() == 0 {
                break;
            }
            at = self.after(at);
        }
        None
    }

    /// Returns the block id of the first entry of `home` whose block `leads` accepts.
    #[inline]
    pub(crate) fn find(&self, home: Home, leads: impl FnMut(u32) -> bool) -> Option<u32> {
        self.locate(home, leads).map(|(at, slot)| self.buckets[at].entries[slot] & self.ids)
    }

    /// Adds an entry for the block `id`. Returns false if the table is full. This only happens if there
    /// are more entries than blocks.
    #[inline]
    pub(crate) fn insert(&mut self, home: Home, id: u32) -> bool {
        if self.len >= self.buckets.len() * SLOTS || id == EMPTY {
            return false;
        }
        let (mut at, entry) = (home.bucket as usize, self.entry(home, id));
        for _ in 0..self.buckets.len() {
            let next = self.after(at);
            let Some(bucket) = self.buckets.get_mut(at) else { return false };
            if bucket.put(home.tag(), entry) {
                self.len += 1;
                return true;
            }
            bucket.counts = bucket.counts.wrapping_add(PASSED);
            at = next;
        }
        false
    }

    /// Adds an entry for the block `id`, unless `same` accepts the block of an existing entry. Returns
    /// false, and changes nothing, if `same` accepts one, or if the table is full.
    #[inline(always)]
    pub(crate) fn insert_new(&mut self, home: Home, id: u32, mut same: impl FnMut(u32) -> bool) -> bool {
        let entry = self.entry(home, id);
        let bucket = self.bucket(home.bucket as usize);
        if bucket.counts < SLOTS as u32
            && bucket.find(home.tag(), |entry| self.id(home, entry).is_some_and(&mut same)).is_none()
            && id != EMPTY
            && self.buckets[home.bucket as usize].put(home.tag(), entry)
        {
            self.len += 1;
            return true;
        }
        self.find(home, same).is_none() && self.insert(home, id)
    }

    /// Removes the entry of the block `id`. Returns false, and changes nothing, if there is none.
    #[inline]
    pub(crate) fn remove(&mut self, home: Home, id: u32) -> bool {
        let Some((found, slot)) = self.locate(home, |entry| entry == id) else { return false };
        self.buckets[found].take(slot);
        self.len = self.len.wrapping_sub(1); // the check finds a wrong count
        let mut at = home.bucket as usize;
        while at != found {
            let bucket = &mut self.buckets[at];
            bucket.counts = bucket.counts.checked_sub(PASSED).unwrap_or(bucket.counts);
            at = self.after(at);
        }
        true
    }

    /// Replaces the block `from` in its entry by the block `to`, which has the same digest. Returns
    /// false, and changes nothing, if `from` has no entry.
    pub(crate) fn replace(&mut self, home: Home, from: u32, to: u32) -> bool {
        let Some((at, slot)) = self.locate(home, |entry| entry == from) else { return false };
        self.buckets[at].entries[slot] = self.entry(home, to);
        true
    }

    /// Adds all entries of the table `before` to this table. `name_of` returns the name of a block.
    /// O(blocks).
    pub(crate) fn rebuild<'a>(&mut self, before: &Self, name_of: impl Fn(u32) -> Name<'a>) {
        for id in before.iter() {
            self.insert(self.home(name_of(id)), id);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.buckets.fill(BLANK);
        self.len = 0;
    }

    /// Returns the block ids of all entries, in an order that depends on the random key.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let entries = self.buckets.iter().flat_map(|bucket| bucket.entries);
        entries.filter(|&entry| entry != EMPTY).map(|entry| entry & self.ids)
    }

    /// Checks the table: recounts its entries, and for each bucket the entries that are stored in a
    /// later bucket.
    ///
    /// # Errors
    /// The broken invariant.
    pub(crate) fn check_invariants<'a>(
        &self,
        name_of: impl Fn(u32) -> Name<'a>,
    ) -> Result<(), InvariantViolation> {
        const NAME: &str = "P4 (a bucket counts its entries, and those that passed it)";
        let (mut passed, mut len) = (vec![0; self.buckets.len()], 0);
        for (found, bucket) in self.buckets.iter().enumerate() {
            for (slot, (&tag, &entry)) in (0..).zip(bucket.tags.iter().zip(&bucket.entries)) {
                let is_there = slot < bucket.counts % PASSED;
                ensure((tag != 0) == is_there && (entry != EMPTY) == is_there, NAME, || {
                    format!("entry {entry:x} with tag {tag} in slot {slot}")
                })?;
                if !is_there {
                    continue;
                }
                len += 1;
                let id = entry & self.ids;
                let home = self.home(name_of(id));
                ensure(home.tag() == tag && self.entry(home, id) == entry, NAME, || {
                    format!("block {id} has entry {entry:x} with tag {tag}, expected {home:?}")
                })?;
                let mut at = home.bucket as usize;
                while at != found {
                    passed[at] += 1;
                    at = self.after(at);
                }
            }
        }
        ensure(len == self.len, NAME, || format!("{len} entries, {} counted", self.len))?;
        let wrong = passed.iter().zip(&self.buckets).position(|(&passed, bucket)| passed != bucket.passed());
        ensure(wrong.is_none(), NAME, || format!("bucket {wrong:?} has a wrong count"))
    }
}

/// Formats the table without its key, because the key is a secret.
impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("entries", &self.len).finish_non_exhaustive()
    }
}
