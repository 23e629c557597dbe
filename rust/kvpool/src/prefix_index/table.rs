//! `Table`: name -> block, for the heads of the rings of an index. A name is a digest and its group.
//!
//! Owns: where an entry is. It holds block ids and one byte of each digest; whether an id is the one that is looked for is for the
//! caller to say, who has the digests. Several entries may have one digest.
//!
//! A bucket is one cache line of twelve entries. What finds its own bucket full goes to the next that is not, and each bucket
//! that it passes counts it: a search goes on exactly as long as entries have passed, so a removal leaves no tombstone, and the
//! table never has to be built anew. It is as large as its pool at construction: nothing here allocates behind that.
//!
//! Digests of ours are uniform, but chains made elsewhere may carry anything, so where a digest goes depends on a random key of
//! the table: nobody can choose digests that meet. Nothing depends on the order that this gives.
//!
//! Invariant: an entry is in its own bucket or in one behind it, and every bucket that it passed counts it.
//!
//! Costs: all operations O(1): at two thirds full, as the table of a pool is with every block registered, one search in ten looks
//! at a second bucket. 8 bytes per block.

use std::fmt;
use std::hash::BuildHasher;

use crate::error::{InvariantViolation, PoolError, ensure};
use crate::list::no_memory;
use crate::record::Name;

/// Entries of a bucket.
const SLOTS: usize = 12;
/// Entries per bucket in a table that is as full as it gets.
const LOAD: usize = 8;
/// The null block: no entry.
const EMPTY: u32 = 0;

/// One cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Bucket {
    ids: [u32; SLOTS],
    /// A byte of the digest of each, never 0; 0 where there is none. The last four bytes are no tags: how many entries passed it.
    tags: [u8; 16],
}

const _: () = assert!(size_of::<Bucket>() == 64);

const BLANK: Bucket = Bucket { ids: [EMPTY; SLOTS], tags: [0; 16] };

impl Bucket {
    /// The tags of the first eight slots, and of the rest.
    #[inline(always)]
    fn words(&self) -> (u64, u64) {
        let word = |from: usize| u64::from_le_bytes(std::array::from_fn(|at| self.tags[from + at]));
        (word(0), word(8))
    }

    /// The slot of the first entry with `tag` that `leads` accepts. It may be asked of a slot behind one that has it, too.
    #[inline(always)]
    fn find(&self, tag: u8, mut leads: impl FnMut(u32) -> bool) -> Option<usize> {
        let (low, high) = self.words();
        let mut matches = equal_bytes(low, tag);
        while matches != 0 {
            let slot = (matches.trailing_zeros() / 8) as usize;
            if leads(self.ids[slot & 7]) {
                return Some(slot);
            }
            matches &= matches - 1;
        }
        let mut matches = equal_bytes(high, tag) & OF_REST;
        while matches != 0 {
            let slot = 8 + (matches.trailing_zeros() / 8) as usize;
            if slot < SLOTS && leads(self.ids[slot]) {
                return Some(slot);
            }
            matches &= matches - 1;
        }
        None
    }

    /// Puts an entry in the first slot that has none; false if there is no such slot.
    #[inline(always)]
    fn put(&mut self, tag: u8, id: u32) -> bool {
        let (low, high) = self.words();
        let (low, high) = (equal_bytes(low, 0), equal_bytes(high, 0) & OF_REST);
        // The first that is named has it.
        let slot = (if low != 0 { low.trailing_zeros() } else { 64 + high.trailing_zeros() } / 8) as usize;
        if slot >= SLOTS {
            return false;
        }
        self.ids[slot] = id;
        self.tags[slot] = tag;
        true
    }

    /// Entries that passed it.
    #[inline]
    fn passed(&self) -> u32 {
        let [.., a, b, c, d] = self.tags;
        u32::from_le_bytes([a, b, c, d])
    }

    fn set_passed(&mut self, passed: u32) {
        self.tags[SLOTS..].copy_from_slice(&passed.to_le_bytes());
    }
}

/// Of the second word of tags, those that are some.
const OF_REST: u64 = u64::MAX >> (8 * (16 - SLOTS));

/// The bytes of `word` that are `byte`: bit 7 of each. A byte above one that is may be named without being so.
#[inline(always)]
const fn equal_bytes(word: u64, byte: u8) -> u64 {
    const LOW: u64 = u64::from_ne_bytes([1; 8]);
    let differ = word ^ (LOW * byte as u64);
    differ.wrapping_sub(LOW) & !differ & (LOW << 7)
}

/// Where a digest is looked for: its bucket, and its tag.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Home {
    bucket: u32,
    tag: u8,
}

#[derive(Clone)]
pub(crate) struct Table {
    buckets: Vec<Bucket>,
    len: usize,
    key: [u64; 4],
}

impl Table {
    /// An empty table without room.
    pub(crate) fn new() -> Self {
        let state = std::collections::hash_map::RandomState::new();
        Self { buckets: Vec::new(), len: 0, key: std::array::from_fn(|at| state.hash_one(at)) }
    }

    /// The memory of a table for `entries` entries, in place of this one's: see [`Self::rebuild`].
    pub(crate) fn prepare(&self, entries: usize) -> Result<Self, PoolError> {
        let mut buckets = Vec::new();
        let wanted = entries.div_ceil(LOAD).max(1);
        buckets.try_reserve_exact(wanted).map_err(|_| no_memory(entries))?;
        buckets.resize(wanted, BLANK);
        Ok(Self { buckets, len: 0, key: self.key })
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Where a name goes. Group 0 is nothing but the digest.
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
        Home { bucket: bucket as u32, tag: (mixed as u8).max(1) }
    }

    #[inline]
    fn bucket(&self, at: usize) -> &Bucket {
        self.buckets.get(at).unwrap_or(&BLANK)
    }

    #[inline]
    const fn after(&self, at: usize) -> usize {
        if at + 1 < self.buckets.len() { at + 1 } else { 0 }
    }

    /// The first entry at home whose tag is the digest's, 0 without one: most likely the one that is looked for. Reads one line,
    /// and no digest.
    #[inline]
    pub(crate) fn first_guess(&self, home: Home) -> u32 {
        let bucket = self.bucket(home.bucket as usize);
        bucket.find(home.tag, |_| true).and_then(|slot| bucket.ids.get(slot)).map_or(EMPTY, |&id| id)
    }

    /// Asks for the lines of several names at once: what is done with them next does not wait for one after the other. Returns
    /// where they go.
    #[inline]
    pub(crate) fn homes<'a, const N: usize>(&self, names: impl Iterator<Item = Name<'a>>) -> [Home; N] {
        let mut homes = [Home { bucket: 0, tag: 0 }; N];
        let mut read = 0;
        for (home, name) in homes.iter_mut().zip(names) {
            *home = self.home(name);
            read ^= self.bucket(home.bucket as usize).tags[0];
        }
        std::hint::black_box(read);
        homes
    }

    /// The bucket and the slot of the first entry that `leads` accepts.
    #[inline]
    fn locate(&self, home: Home, mut leads: impl FnMut(u32) -> bool) -> Option<(usize, usize)> {
        let mut at = home.bucket as usize;
        for _ in 0..self.buckets.len() {
            let bucket = self.bucket(at);
            if let Some(slot) = bucket.find(home.tag, &mut leads) {
                return Some((at, slot));
            }
            if bucket.passed() == 0 {
                break;
            }
            at = self.after(at);
        }
        None
    }

    /// The first entry that `leads` accepts.
    #[inline]
    pub(crate) fn find(&self, home: Home, leads: impl FnMut(u32) -> bool) -> Option<u32> {
        self.locate(home, leads).map(|(at, slot)| self.buckets[at].ids[slot])
    }

    /// Enters `id`. False, and nothing changed, if the table is full: more entries than the pool has blocks.
    #[inline]
    pub(crate) fn insert(&mut self, home: Home, id: u32) -> bool {
        if self.len >= self.buckets.len() * SLOTS || id == EMPTY {
            return false;
        }
        let mut at = home.bucket as usize;
        for _ in 0..self.buckets.len() {
            let next = self.after(at);
            let Some(bucket) = self.buckets.get_mut(at) else { return false };
            if bucket.put(home.tag, id) {
                self.len += 1;
                return true;
            }
            bucket.set_passed(bucket.passed().wrapping_add(1));
            at = next;
        }
        false
    }

    /// Enters `id`, unless `same` accepts an entry. False, and nothing changed, if it does, or if the table is full.
    #[inline(always)]
    pub(crate) fn insert_new(&mut self, home: Home, id: u32, mut same: impl FnMut(u32) -> bool) -> bool {
        if let Some(bucket) = self.buckets.get_mut(home.bucket as usize)
            && bucket.passed() == 0
            && bucket.find(home.tag, &mut same).is_none()
            && id != EMPTY
            && bucket.put(home.tag, id)
        {
            self.len += 1;
            return true;
        }
        self.find(home, same).is_none() && self.insert(home, id)
    }

    /// Takes the entry of `id` out. False, and nothing changed, if there is none.
    #[inline]
    pub(crate) fn remove(&mut self, home: Home, id: u32) -> bool {
        let Some((found, slot)) = self.locate(home, |entry| entry == id) else { return false };
        self.buckets[found].ids[slot] = EMPTY;
        self.buckets[found].tags[slot] = 0;
        self.len = self.len.wrapping_sub(1); // found by the check, if it is wrong
        let mut at = home.bucket as usize;
        while at != found {
            let bucket = &mut self.buckets[at];
            bucket.set_passed(bucket.passed().saturating_sub(1));
            at = self.after(at);
        }
        true
    }

    /// Puts `to` in the place of `from`, whose digest it has. False, and nothing changed, if there is none.
    pub(crate) fn replace(&mut self, home: Home, from: u32, to: u32) -> bool {
        let Some((at, slot)) = self.locate(home, |entry| entry == from) else { return false };
        self.buckets[at].ids[slot] = to;
        true
    }

    /// Takes the entries of `before`, whose names `name_of` knows. O(blocks).
    pub(crate) fn rebuild<'a>(&mut self, before: &Self, name_of: impl Fn(u32) -> Name<'a>) {
        for id in before.iter() {
            self.insert(self.home(name_of(id)), id);
        }
    }

    /// Forgets every entry. O(blocks).
    pub(crate) fn clear(&mut self) {
        self.buckets.fill(BLANK);
        self.len = 0;
    }

    /// Every entry, in an order that says nothing.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let entries = |bucket: &Bucket| {
            std::array::from_fn::<_, SLOTS, _>(|slot| (bucket.tags[slot], bucket.ids[slot]))
        };
        self.buckets.iter().flat_map(entries).filter(|(tag, _)| *tag != 0).map(|(_, id)| id)
    }

    /// Recounts entries, and those that passed each bucket.
    ///
    /// # Errors
    /// The broken invariant.
    pub(crate) fn check_invariants<'a>(
        &self,
        name_of: impl Fn(u32) -> Name<'a>,
    ) -> Result<(), InvariantViolation> {
        const NAME: &str = "P4 (buckets count what passed them)";
        let (mut passed, mut len) = (vec![0; self.buckets.len()], 0);
        for (found, bucket) in self.buckets.iter().enumerate() {
            for (&tag, &id) in bucket.tags.iter().zip(&bucket.ids) {
                ensure((tag == 0) == (id == EMPTY), NAME, || format!("block {id} with tag {tag}"))?;
                if tag == 0 {
                    continue;
                }
                len += 1;
                let home = self.home(name_of(id));
                ensure(home.tag == tag, NAME, || format!("block {id} has tag {tag}, not {}", home.tag))?;
                let mut at = home.bucket as usize;
                while at != found {
                    passed[at] += 1;
                    at = self.after(at);
                }
            }
        }
        ensure(len == self.len, NAME, || format!("{len} entries, {} counted", self.len))?;
        let wrong = passed.iter().zip(&self.buckets).position(|(&passed, bucket)| passed != bucket.passed());
        ensure(wrong.is_none(), NAME, || format!("bucket {wrong:?}"))
    }
}

/// The key is a secret.
impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("entries", &self.len).finish_non_exhaustive()
    }
}
