//! `Record`: a bounded record of contents that are cached, were cached, or were requested.
//!
//! The record stores, for each remembered content, its tokens, its predecessor, and its status: cached,
//! removed (and why), or never computed. A content is identified by the key of its hash, so one entry
//! serves every chain that contains the content.
//!
//! When the record is full, an entry is removed for each new one. Contents that are not cached are
//! removed first, in the order in which they left the cache or were last requested. Cached contents are
//! removed only while they are more than half of all entries. So a record of twice the pool's size
//! remembers every cached content, and the same number of contents that are no longer cached.
//!
//! **Doubt.** An entry is *in doubt* if entries of its descendants may have been removed from the
//! record. The start of prompts also has an entry, as the parent of all first blocks. It is in doubt
//! once the entry of any first block was removed. If a parent is not in doubt, a child without an entry
//! was never seen.
//!
//! Claim: if a content was seen and has no entry, then its parent's entry, if there is one, is in
//! doubt. Reason: the removal of the content's entry put the parent in doubt. An entry of the parent
//! that is made later is in doubt too, unless it is proved that the parent was never seen before.
//!
//! **Groups.** With several KV-cache groups, each hash unit has an entry, which contains its tokens and
//! whether they were ever computed. This entry also describes the unit's content in the first group.
//! The contents that other groups cache have separate entries, which contain only their status.
//!
//! Invariants, recounted by [`Record::check_invariants`]: X1: an entry is found by its key, and is on
//! the list of its status. X2: siblings are linked both ways, and to the parent that they refer to.
//!
//! Costs: O(1) per operation. A walk over siblings ends after [`SIBLINGS`]. The memory is 95 bytes per
//! content plus 4 per token, reserved at construction and written as contents are added.

use std::fmt;

use kvpool::parts::{ensure, try_reserve};
use kvpool::{BlockId, InvariantViolation, PoolError};
use kvpool_policies::parts::BlockLists;
use kvpool_policies::parts::Slots;

use crate::changes::Cause;

/// The maximum number of contents after the same previous block that a lookup in the record compares,
/// starting with the latest.
pub(super) const SIBLINGS: usize = 8;

/// The numbers of the two lists of entries: `GONE` for contents that are not cached, and `CACHED`.
const GONE: usize = 0;
const CACHED: usize = 1;

/// The number that stands for no entry, and for no request.
const NONE: u32 = 0;
const NO_REQUEST: u32 = u32::MAX;

/// A reference to the previous content in a hash chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Before {
    /// No predecessor: the content is the first block of prompts.
    Start,
    /// The content before it in the chain, given by its key.
    Key(u64),
}

/// The status of a content in the record: cached, removed from the cache, computed, or only requested.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Status {
    Cached,
    /// The content was removed from the cache. The fields contain the cause, the number of the
    /// operation that removed it, and the number of admissions until then.
    Gone(Cause, u64, u64),
    /// The content was computed, but is not cached. With KV-cache groups, other groups may have cached
    /// a part of it.
    Written,
    /// A prompt requested the content, but no request ever computed it.
    NotComputed,
    /// A prompt requested the content, and no request has computed it since then. The content may have
    /// been computed before, because an earlier entry of it may have been removed.
    Unknown,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Why the content was removed from the cache. The value is valid only if the flag
    /// [`Entry::COMPUTED`] is set and the entry is on the list of contents that are not cached.
    cause: Cause,
    operation: u64,
    admission: u64,
    /// The slots of up to two requests that compute the content: the latest request, and an earlier one
    /// that was still computing the content when the latest was admitted.
    owners: [u32; 2],
    /// The number of contents that have used this entry so far. It shows whether a stored link to the
    /// entry still means the same content.
    generation: u32,
    parent: u32,
    /// The `generation` of the parent's entry at the time of the link.
    parent_generation: u32,
    /// The entry of the latest content that follows this one in a chain.
    child: u32,
    /// The entries of the next later and the next earlier content with the same parent.
    later: u32,
    earlier: u32,
    flags: u8,
}

impl Entry {
    /// Flag: the content has been cached at some time.
    const COMPUTED: u8 = 1;
    /// Flag: entries of contents that follow this one may have been removed.
    const DOUBT: u8 = 2;
    /// Flag: the content is the first block of prompts.
    const START: u8 = 4;
    /// Flag: the entry is in the list of its parent's children.
    const LINKED: u8 = 8;
    /// Flag: the tokens of the content are known.
    const TOKENS: u8 = 16;
    /// Flag: the content had never been seen when its entry was made.
    const NEW: u8 = 32;
    /// Flag: the tokens of the content were computed, whether or not a KV-cache group cached them.
    const WRITTEN: u8 = 64;

    const EMPTY: Self = Self {
        cause: Cause::ById,
        operation: 0,
        admission: 0,
        owners: [NO_REQUEST; 2],
        generation: 0,
        parent: NONE,
        parent_generation: 0,
        child: NONE,
        later: NONE,
        earlier: NONE,
        flags: 0,
    };

    const fn is(self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

pub(super) struct Record {
    capacity: usize,
    block_size: usize,
    /// The keys of the contents, indexed by the number of the entry. Entry 0 represents the start of
    /// prompts.
    keys: Vec<u64>,
    entries: Vec<Entry>,
    tokens: Vec<u32>,
    slots: Slots,
    lists: BlockLists,
}

/// Prints only the sizes of the record, because its tokens are users' prompts.
impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = self.keys.len().saturating_sub(1);
        f.debug_struct("Record")
            .field("capacity", &self.capacity)
            .field("known", &known)
            .finish_non_exhaustive()
    }
}

impl Record {
    pub(super) fn new(capacity: usize, block_size: usize) -> Result<Self, PoolError> {
        let too_many = |_: PoolError| {
            PoolError::config(
                "records",
                capacity,
                format!("few enough to fit in memory with {block_size} tokens each"),
            )
        };
        let take = || {
            let (mut keys, mut entries, mut slots) = (vec![0], vec![Entry::EMPTY], Slots::new());
            let mut tokens = vec![0; block_size];
            try_reserve(&mut keys, capacity + 1)?;
            try_reserve(&mut entries, capacity + 1)?;
            try_reserve(&mut tokens, (capacity + 1).saturating_mul(block_size))?;
            slots.reserve(capacity)?;
            slots.rebuild(capacity, &keys, std::iter::empty());
            let lists = BlockLists::new(2, capacity + 1)?;
            Ok(Self { capacity, block_size, keys, entries, tokens, slots, lists })
        };
        take().map_err(too_many)
    }

    pub(super) fn find(&self, key: u64) -> Option<u32> {
        self.slots.find(&self.keys, key)
    }

    fn entry(&self, number: u32) -> Entry {
        self.entries[number as usize]
    }

    fn entry_mut(&mut self, number: u32) -> &mut Entry {
        &mut self.entries[number as usize]
    }

    pub(super) fn status(&self, number: u32) -> Status {
        let entry = self.entry(number);
        if self.lists.list_of(BlockId::new(number)) == Some(CACHED) {
            Status::Cached
        } else if entry.is(Entry::COMPUTED) {
            Status::Gone(entry.cause, entry.operation, entry.admission)
        } else if entry.is(Entry::WRITTEN) {
            Status::Written
        } else if entry.is(Entry::NEW) {
            Status::NotComputed
        } else {
            Status::Unknown
        }
    }

    /// Returns the slots (small numbers that the manager assigns) of the requests that may be computing
    /// the content.
    pub(super) fn owners(&self, number: u32) -> impl Iterator<Item = usize> {
        self.entry(number).owners.into_iter().filter(|&owner| owner != NO_REQUEST).map(|owner| owner as usize)
    }

    /// Records that the request in `slot` computes the content. `still` returns whether an earlier
    /// request still computes it too.
    pub(super) fn own(&mut self, number: u32, slot: usize, still: impl Fn(usize) -> bool) {
        let first = self.owners(number).find(|&owner| owner != slot && still(owner));
        let slot = u32::try_from(slot).unwrap_or(NO_REQUEST);
        self.entry_mut(number).owners = first.map_or([slot, NO_REQUEST], |first| [first as u32, slot]);
    }

    /// Returns the entry of the previous content, or `None` if that content has no entry. The start of
    /// prompts always has an entry.
    pub(super) fn parent(&self, before: Before) -> Option<u32> {
        match before {
            Before::Start => Some(NONE),
            Before::Key(key) => self.find(key),
        }
    }

    pub(super) fn in_doubt(&self, parent: u32) -> bool {
        self.entry(parent).is(Entry::DOUBT)
    }

    /// Iterates over the tokens of the latest contents that follow this entry's content.
    pub(super) fn behind(&self, parent: u32) -> impl Iterator<Item = &[u32]> {
        let first = self.entry(parent).child;
        let siblings = std::iter::successors(Some(first), |&at| Some(self.entry(at).earlier));
        let known = siblings.take(SIBLINGS).take_while(|&at| at != NONE);
        known.filter_map(|at| {
            let start = at as usize * self.block_size;
            let tokens = self.tokens.get(start..start + self.block_size);
            tokens.filter(|_| self.entry(at).is(Entry::TOKENS))
        })
    }

    /// Returns the entry of a content, and adds it if necessary. `hint` is the number of the entry that
    /// probably belongs to the previous content; it saves a lookup.
    pub(super) fn enter(&mut self, key: u64, before: Before, tokens: Option<&[u32]>, hint: u32) -> u32 {
        let found = self.find(key);
        let number = found.unwrap_or_else(|| self.begin(key));
        if found.is_some() && self.lists.list_of(BlockId::new(number)) == Some(GONE) {
            self.put(number, GONE);
        }
        let parent = match before {
            Before::Start => Some(NONE),
            Before::Key(key) if hint != NONE && self.keys.get(hint as usize) == Some(&key) => Some(hint),
            Before::Key(key) => self.find(key),
        };
        if found.is_none() {
            let doubt = parent.is_none_or(|parent| self.in_doubt(parent));
            self.entry_mut(number).flags |= if doubt { Entry::DOUBT } else { Entry::NEW };
        }
        if let Some(tokens) = tokens.filter(|tokens| tokens.len() == self.block_size)
            && !self.entry(number).is(Entry::TOKENS)
        {
            let start = number as usize * self.block_size;
            self.tokens[start..start + self.block_size].copy_from_slice(tokens);
            self.entry_mut(number).flags |= Entry::TOKENS;
        }
        if before == Before::Start {
            self.entry_mut(number).flags |= Entry::START;
        }
        if let Some(parent) = parent.filter(|&parent| parent != number) {
            self.link(number, parent);
        }
        number
    }

    /// Records that the tokens of an entry were computed, even if no KV-cache group caches them.
    pub(super) fn written(&mut self, number: u32) {
        self.entry_mut(number).flags |= Entry::WRITTEN;
    }

    /// Records that lookups can find the content with this key from now on.
    pub(super) fn appeared(&mut self, key: u64) {
        let number = self.enter_key(key);
        self.entry_mut(number).flags |= Entry::COMPUTED;
        self.put(number, CACHED);
    }

    /// Records that lookups can no longer find the content with this key.
    pub(super) fn departed(&mut self, key: u64, cause: Cause, operation: u64, admission: u64) {
        let number = self.enter_key(key);
        self.put(number, GONE);
        self.leave(number, cause, operation, admission);
    }

    /// Records that lookups can no longer find any content.
    pub(super) fn cleared(&mut self, cause: Cause, operation: u64, admission: u64) {
        while let Some(number) = self.lists.front(CACHED) {
            self.put(number.get(), GONE);
            self.leave(number.get(), cause, operation, admission);
        }
    }

    fn leave(&mut self, number: u32, cause: Cause, operation: u64, admission: u64) {
        let entry = self.entry_mut(number);
        (entry.cause, entry.operation, entry.admission) = (cause, operation, admission);
        entry.flags |= Entry::COMPUTED;
    }

    fn enter_key(&mut self, key: u64) -> u32 {
        self.find(key).unwrap_or_else(|| {
            let number = self.begin(key);
            self.entry_mut(number).flags |= Entry::DOUBT;
            number
        })
    }

    /// Moves an entry to the end of one of the two lists of entries, so that it is removed last.
    fn put(&mut self, number: u32, list: usize) {
        let number = BlockId::new(number);
        self.lists.remove(number);
        self.lists.push_back(list, number);
    }

    /// Makes an entry for a new content. If the record is full, removes another entry and reuses its
    /// number.
    fn begin(&mut self, key: u64) -> u32 {
        let number = if self.keys.len() <= self.capacity {
            self.keys.push(0);
            self.entries.push(Entry::EMPTY);
            self.tokens.resize(self.keys.len() * self.block_size, 0);
            self.keys.len() as u32 - 1
        } else {
            self.forget_one()
        };
        self.keys[number as usize] = key;
        self.slots.insert(&self.keys, number);
        self.put(number, GONE);
        number
    }

    fn forget_one(&mut self) -> u32 {
        let from = if self.lists.len(CACHED) > self.capacity / 2 { CACHED } else { GONE };
        let front = self.lists.front(from).or_else(|| self.lists.front(1 - from));
        let number = front.map_or(NONE, BlockId::get); // a full record has an entry in one of the lists
        self.lists.remove(BlockId::new(number));
        self.unlink(number);
        let entry = self.entry(number);
        if entry.is(Entry::START) {
            self.entry_mut(NONE).flags |= Entry::DOUBT;
        } else if entry.parent != NONE && self.entry(entry.parent).generation == entry.parent_generation {
            self.entry_mut(entry.parent).flags |= Entry::DOUBT;
        }
        self.slots.remove(&self.keys, self.keys[number as usize]);
        let generation = entry.generation.wrapping_add(1);
        *self.entry_mut(number) = Entry { generation, ..Entry::EMPTY };
        number
    }

    /// Links the entry `number` to `parent` as its latest child, unless it is already linked to it.
    fn link(&mut self, number: u32, parent: u32) {
        let generation = self.entry(parent).generation;
        let entry = self.entry(number);
        let linked = entry.is(Entry::LINKED);
        if linked && entry.parent == parent && entry.parent_generation == generation {
            return;
        }
        self.unlink(number);
        let earlier = self.entry(parent).child;
        if earlier != NONE {
            self.entry_mut(earlier).later = number;
        }
        self.entry_mut(parent).child = number;
        let entry = self.entry_mut(number);
        (entry.parent, entry.parent_generation) = (parent, generation);
        (entry.later, entry.earlier) = (NONE, earlier);
        entry.flags |= Entry::LINKED;
    }

    /// Removes the entry `number` from the list of its parent's children. The list remains valid even
    /// if the parent's entry was removed.
    fn unlink(&mut self, number: u32) {
        let Entry { parent, parent_generation, later, earlier, .. } = self.entry(number);
        if !self.entry(number).is(Entry::LINKED) {
            return;
        }
        if later != NONE {
            self.entry_mut(later).earlier = earlier;
        } else if self.entry(parent).generation == parent_generation {
            self.entry_mut(parent).child = earlier;
        }
        if earlier != NONE {
            self.entry_mut(earlier).later = later;
        }
        let entry = self.entry_mut(number);
        (entry.later, entry.earlier) = (NONE, NONE);
        entry.flags &= !Entry::LINKED;
    }

    /// Checks X1 and X2 from scratch. `cached` are the sorted keys of all contents that lookups can
    /// find.
    pub(super) fn check_invariants(&self, cached: &[u64]) -> Result<(), InvariantViolation> {
        const FOUND: &str = "X1 (an entry is found by its key, and is on the list of its status)";
        const LINKED: &str = "X2 (siblings are linked both ways, and to their parent)";
        self.lists.check_invariants()?;
        let used = self.keys.len() - 1;
        let listed = self.lists.len(GONE) + self.lists.len(CACHED);
        ensure(used == listed && self.slots.count() == used && used <= self.capacity, FOUND, || {
            format!(
                "{used} of {} entries used, {listed} on lists, {} in the table",
                self.capacity,
                self.slots.count()
            )
        })?;
        for number in 1..=used as u32 {
            let (key, entry) = (self.keys[number as usize], self.entry(number));
            let is_cached = self.lists.list_of(BlockId::new(number)) == Some(CACHED);
            // Accept a cached content whose entry says otherwise: if the entry was removed and the
            // content then requested again, the new entry does not show that it is cached.
            let unknown = !entry.is(Entry::COMPUTED) && !entry.is(Entry::NEW);
            let is_right = is_cached == cached.binary_search(&key).is_ok() || (unknown && !is_cached);
            let right = self.find(key) == Some(number) && is_right;
            ensure(right, FOUND, || {
                format!("entry {number} ({key:x}), on the list of cached contents: {is_cached}")
            })?;
            let has_parent =
                entry.is(Entry::LINKED) && self.entry(entry.parent).generation == entry.parent_generation;
            let (later, earlier) = (self.entry(entry.later), self.entry(entry.earlier));
            let first = entry.later == NONE && has_parent;
            let linked = (entry.later == NONE || later.earlier == number)
                && (entry.earlier == NONE || earlier.later == number)
                && (!first || self.entry(entry.parent).child == number);
            ensure(linked, LINKED, || format!("entry {number}: {entry:?}"))?;
        }
        Ok(())
    }
}
