//! `Table`: digest -> block, for the heads of the rings of an index.
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
use crate::hash::BlockHash;
use crate::list::no_memory;

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
    /// A byte of the digest of each, never 0; 0 where there is none.
    tags: [u8; SLOTS],
    /// Entries that passed it.
    passed: u32,
}

const _: () = assert!(size_of::<Bucket>() == 64);

const BLANK: Bucket = Bucket { ids: [EMPTY; SLOTS], tags: [0; SLOTS], passed: 0 };

impl Bucket {
    /// A mask of the slots that may have `tag`: bit 7 of byte i for slot i. A slot behind one that has it may be named without
    /// having it.
    #[inline]
    fn matches(&self, tag: u8) -> u128 {
        const LOW: u128 = u128::from_ne_bytes([1; 16]) >> (8 * (16 - SLOTS));
        let mut bytes = [0; 16];
        bytes[..SLOTS].copy_from_slice(&self.tags);
        let differ = u128::from_le_bytes(bytes) ^ (LOW * u128::from(tag));
        differ.wrapping_sub(LOW) & !differ & (LOW << 7)
    }

    /// The first entry with `tag` that `leads` accepts, as its slot.
    #[inline]
    fn find(&self, tag: u8, mut leads: impl FnMut(u32) -> bool) -> Option<usize> {
        let mut matches = self.matches(tag);
        while matches != 0 {
            let slot = matches.trailing_zeros() as usize / 8;
            if self.tags[slot] == tag && leads(self.ids[slot]) {
                return Some(slot);
            }
            matches &= matches - 1;
        }
        None
    }
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

    /// Where `digest` goes.
    #[inline]
    pub(crate) fn home(&self, digest: &BlockHash) -> Home {
        let bytes = digest.as_bytes();
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[8 * at + i])) ^ self.key[at];
        let fold = |a: u64, b: u64| {
            let product = u128::from(a) * u128::from(b);
            product as u64 ^ (product >> 64) as u64
        };
        let mixed = fold(word(0), word(1)) ^ fold(word(2), word(3));
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
        bucket.find(home.tag, |_| true).map_or(EMPTY, |slot| bucket.ids[slot])
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
            if bucket.passed == 0 {
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
            let Some(slot) = bucket.tags.iter().position(|&tag| tag == 0) else {
                bucket.passed = bucket.passed.wrapping_add(1);
                at = next;
                continue;
            };
            bucket.ids[slot] = id;
            bucket.tags[slot] = home.tag;
            self.len += 1;
            return true;
        }
        false
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
            bucket.passed = bucket.passed.saturating_sub(1);
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

    /// Takes the entries of `before`, whose digests `digest_of` knows. O(blocks).
    pub(crate) fn rebuild<'a>(&mut self, before: &Self, digest_of: impl Fn(u32) -> &'a BlockHash) {
        for id in before.iter() {
            self.insert(self.home(digest_of(id)), id);
        }
    }

    /// Forgets every entry. O(blocks).
    pub(crate) fn clear(&mut self) {
        self.buckets.fill(BLANK);
        self.len = 0;
    }

    /// Every entry, in an order that says nothing.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let entries = |bucket: &Bucket| std::array::from_fn::<_, SLOTS, _>(|slot| (bucket.tags[slot], bucket.ids[slot]));
        self.buckets.iter().flat_map(entries).filter(|(tag, _)| *tag != 0).map(|(_, id)| id)
    }

    /// Recounts entries, and those that passed each bucket.
    ///
    /// # Errors
    /// The broken invariant.
    pub(crate) fn check_invariants<'a>(
        &self,
        digest_of: impl Fn(u32) -> &'a BlockHash,
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
                let home = self.home(digest_of(id));
                ensure(home.tag == tag, NAME, || format!("block {id} has tag {tag}, not {}", home.tag))?;
                let mut at = home.bucket as usize;
                while at != found {
                    passed[at] += 1;
                    at = self.after(at);
                }
            }
        }
        ensure(len == self.len, NAME, || format!("{len} entries, {} counted", self.len))?;
        let wrong = passed.iter().zip(&self.buckets).position(|(&passed, bucket)| passed != bucket.passed);
        ensure(wrong.is_none(), NAME, || format!("bucket {wrong:?}"))
    }
}

/// The key is a secret.
impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("entries", &self.len).finish_non_exhaustive()
    }
}
