//! `Contexts`: remembers the extra keys of the first blocks of prompts.
//!
//! Two different hashes show that two prompts differ, but not whether the difference is in their tokens
//! or in their extra keys. So for each first block, this type stores a fingerprint of the tokens alone,
//! and fingerprints of the extra keys that apply to the block: adapter, salt, tenant, user, multimodal
//! items and epoch. The keys themselves are not stored.
//!
//! The memory is bounded: the latest [`Contexts::FIRST_BLOCKS`] first blocks are remembered, and for
//! each of them the latest [`Contexts::EACH`] combinations of extra keys (contexts).
//!
//! Costs: O(1) per prompt whose first block was missed; 160 bytes per first block.

use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

use kvpool::parts::try_reserve;
use kvpool::{ExtraKeys, PoolError};
use kvpool_policies::parts::Slots;

use super::reason::MissReason;

/// Fingerprints of the extra keys that apply to a first block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Context {
    epoch: u64,
    salt: u64,
    adapter: u64,
    /// The combined fingerprint of the tenant, the user and the multimodal items.
    others: u64,
}

/// Returns a fingerprint of an optional extra key. `kind` ensures that equal bytes in keys of two kinds
/// give different fingerprints.
fn fingerprint(kind: u64, bytes: Option<&[u8]>) -> u64 {
    bytes.map_or(0, |bytes| xxh3_64_with_seed(bytes, kind) | 1)
}

impl Context {
    pub(super) fn new(extra: &ExtraKeys, block_size: usize) -> Self {
        let adapter = extra.adapter.as_ref().map_or(0, |adapter| {
            let path = adapter.path.as_deref().map(str::as_bytes);
            fingerprint(2, Some(&adapter.id)) ^ fingerprint(3, path).rotate_left(1)
        });
        let principal = principal(extra, None) ^ fingerprint(4, extra.salt.as_deref());
        // The sum ignores the order of the multimodal items, because the hasher sorts them.
        let items = extra.multimodal.iter().filter(|item| item.length > 0 && item.offset < block_size as u64);
        let items = items.map(|item| fingerprint(item.offset << 32 ^ item.length, Some(&item.identifier)));
        Self {
            epoch: extra.epoch,
            salt: fingerprint(4, extra.salt.as_deref()),
            adapter,
            others: items.fold(principal, u64::wrapping_add),
        }
    }

    /// Returns the number of extra keys in which two contexts differ, and the reason that an
    /// explanation then reports.
    fn difference(&self, other: &Self) -> (usize, MissReason) {
        let differs = [
            (self.epoch != other.epoch, MissReason::OtherEpoch { epoch: other.epoch }),
            (self.salt != other.salt, MissReason::OtherSalt),
            (self.adapter != other.adapter, MissReason::OtherAdapter),
            (self.others != other.others, MissReason::OtherKeys),
        ];
        let mut reasons = differs.into_iter().filter_map(|(differs, reason)| differs.then_some(reason));
        match (reasons.next(), reasons.count()) {
            (None, _) => (0, MissReason::NotRemembered),
            (Some(reason), 0) => (1, reason),
            (Some(_), more) => (1 + more, MissReason::OtherKeys),
        }
    }
}

/// Computes a fingerprint of the principal of a request: its salt, tenant and user, and its tenant for
/// retention. An explanation discloses the id of another request only if both have the same principal.
pub(super) fn principal(extra: &ExtraKeys, tenant: Option<u32>) -> u64 {
    fingerprint(4, extra.salt.as_deref())
        ^ fingerprint(5, extra.tenant.as_deref()).rotate_left(1)
        ^ fingerprint(6, extra.user.as_deref()).rotate_left(2)
        ^ fingerprint(7, tenant.map(u32::to_le_bytes).as_ref().map(<[u8; 4]>::as_slice)).rotate_left(3)
}

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// The latest combinations of extra keys with which the first block was seen, oldest first.
    contexts: [Context; Contexts::EACH],
    len: u8,
}

/// The remembered first blocks, each with the contexts in which it was seen.
#[derive(Debug)]
pub(super) struct Contexts {
    /// The fingerprints of the tokens of first blocks, indexed by the number of the first block. Entry
    /// 0 is unused.
    keys: Vec<u64>,
    seen: Vec<Seen>,
    slots: Slots,
    /// The number of the oldest first block, which a new one gets if all numbers are in use.
    next: usize,
}

impl Contexts {
    pub(super) const FIRST_BLOCKS: usize = 4096;
    pub(super) const EACH: usize = 4;

    pub(super) fn new() -> Result<Self, PoolError> {
        let (mut keys, mut seen, mut slots) = (vec![0], vec![Seen::default()], Slots::new());
        try_reserve(&mut keys, Self::FIRST_BLOCKS + 1)?;
        try_reserve(&mut seen, Self::FIRST_BLOCKS + 1)?;
        slots.reserve(Self::FIRST_BLOCKS)?;
        slots.rebuild(Self::FIRST_BLOCKS, &keys, std::iter::empty());
        Ok(Self { keys, seen, slots, next: 1 })
    }

    fn key(tokens: &[u32]) -> u64 {
        let mut hasher = Xxh3::new();
        tokens.iter().for_each(|token| hasher.update(&token.to_le_bytes()));
        hasher.digest()
    }

    /// Returns why a first block with these tokens is unknown in this context. The reason is the
    /// difference to the most similar remembered context, or to the latest of several equally similar
    /// ones. `None` if the tokens are unknown in every context.
    pub(super) fn find(&self, tokens: &[u32], context: &Context) -> Option<MissReason> {
        let seen = &self.seen[self.slots.find(&self.keys, Self::key(tokens))? as usize];
        let differences =
            seen.contexts[..usize::from(seen.len)].iter().rev().map(|one| context.difference(one));
        differences.min_by_key(|(respects, _)| *respects).map(|(_, reason)| reason)
    }

    /// Records that a first block with these tokens was seen in a context.
    pub(super) fn insert(&mut self, tokens: &[u32], context: Context) {
        let key = Self::key(tokens);
        let number = self.slots.find(&self.keys, key).unwrap_or_else(|| self.begin(key));
        let Seen { contexts, len } = &mut self.seen[number as usize];
        if contexts[..usize::from(*len)].contains(&context) {
            return;
        }
        if usize::from(*len) == Self::EACH {
            contexts.rotate_left(1);
        } else {
            *len += 1;
        }
        contexts[usize::from(*len) - 1] = context;
    }

    /// Assigns a number to a new key. It is an unused number, or the number of the oldest key, which is
    /// removed.
    fn begin(&mut self, key: u64) -> u32 {
        if self.keys.len() <= Self::FIRST_BLOCKS {
            self.keys.push(key);
            self.seen.push(Seen::default());
        } else {
            let number = self.next;
            self.next = if number == Self::FIRST_BLOCKS { 1 } else { number + 1 };
            self.slots.remove(&self.keys, self.keys[number]);
            (self.keys[number], self.seen[number]) = (key, Seen::default());
            self.slots.insert(&self.keys, number as u32);
            return number as u32;
        }
        let number = self.keys.len() as u32 - 1;
        self.slots.insert(&self.keys, number);
        number
    }
}
