//! `GhostCache`: simulates a policy on the sampled keys, to estimate its hit rate.
//!
//! Owns: which sampled keys would be cached under one policy. It uses the same evictor as a pool,
//! including [`Closed`], over keys instead of blocks: the numbers of its slots are the block ids. So
//! the sample stays prefix-closed, like the blocks of the pool. A lookup finds a prefix of its sampled
//! blocks, never one with a hole.
//!
//! A lookup is completed in one call: its hits are acquired, one victim is evicted per new key without
//! a free slot, the new keys are added, and then all are released at once, deepest first. If a lookup
//! has more keys than there are slots, the excess keys are not stored.
//!
//! Costs: those of the evictor per sampled reference, 50 to 200 ns. Memory: 23 bytes per slot plus the
//! evictor's 10 to 120, or up to 455 for `adaptive`.
//!
//! [`Closed`]: kvpool_policies::Closed

use super::keys::KeyTable;
use kvpool::BlockId;
use kvpool::parts::ensure;
use kvpool::parts::try_reserve;
use kvpool::{Candidate, Content, EvictionPolicy, Evictor};
use kvpool::{InvariantViolation, PoolError};

/// The maximum memory of an evictor per block, in bytes, for kvpool's policies. A test checks it.
fn evictor_bytes(policy: EvictionPolicy) -> usize {
    match policy.name() {
        "lru" => 16,
        // The shadow caches of `adaptive` follow at least 8,192 blocks' worth of keys, even in a small
        // cache.
        "adaptive" => 480,
        _ => 96,
    }
}
/// The memory of an evictor that does not depend on its size, in bytes. `hazard` has a table of
/// classes.
fn fixed_bytes(policy: EvictionPolicy) -> usize {
    if policy.name() == "hazard" { 340_000 } else { 4096 }
}

/// A sampled key of a lookup.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sampled {
    pub(super) key: u64,
    /// The position in its chain.
    pub(super) depth: u32,
}

/// A cache of keys under one policy.
#[derive(Debug)]
pub(super) struct GhostCache {
    pub(super) policy: EvictionPolicy,
    evictor: Box<dyn Evictor>,
    history: bool,
    keys: KeyTable,
    /// The blocks of the current lookup.
    held: Vec<Candidate>,
    /// The weight of the references that hit.
    pub(super) hits: f64,
}

impl GhostCache {
    /// Makes an empty cache and allocates all of its memory.
    pub(super) fn new(policy: EvictionPolicy, slots: usize) -> Result<Self, PoolError> {
        let evictor = policy.build(slots + 1, None)?;
        let history = evictor.wants_history();
        let mut ghost = Self { policy, evictor, history, keys: KeyTable::new(), held: Vec::new(), hits: 0.0 };
        ghost.keys.grow(slots)?;
        try_reserve(&mut ghost.held, slots)?;
        Ok(ghost)
    }

    /// Looks up the sampled keys of a lookup, root first, and stores the missing ones. `parent` is the
    /// key of the block before the first, if it is known. Returns the number of hits.
    pub(super) fn refer(&mut self, sampled: &[Sampled], parent: Option<u64>) -> usize {
        // The order is that of a pool: acquire the blocks that are found, evict for all that are
        // missing, store those.
        let (mut hits, mut missing) = (0, 0);
        for &Sampled { key, .. } in sampled {
            let Some(found) = self.keys.find(key) else {
                missing += 1;
                continue;
            };
            hits += usize::from(missing == 0); // nothing after a missing key is a hit
            self.evictor.hit(BlockId::new(found));
        }
        while self.keys.capacity() - self.keys.len() < missing
            && let Some(victim) = self.evictor.evict()
        {
            self.keys.remove(victim.get());
        }
        self.held.clear();
        let mut parent = parent.and_then(|key| self.keys.find(key)).map(BlockId::new);
        for &Sampled { key, depth } in sampled {
            parent = match self.keys.find(key) {
                Some(found) => Some(BlockId::new(found)),
                None => self.admit(key, depth, parent),
            };
            self.held.extend(parent.map(|block| Candidate { block, depth }));
        }
        self.held.reverse();
        self.evictor.insert(&mut self.held);
        hits
    }

    /// Gives a new key a slot. `None` if the lookup uses all slots.
    fn admit(&mut self, key: u64, depth: u32, parent: Option<BlockId>) -> Option<BlockId> {
        let block = BlockId::new(self.keys.insert(key)?);
        if self.history {
            self.evictor.registered(block, Content { key, depth }, parent);
        }
        Some(block)
    }

    pub(super) fn clear(&mut self) {
        self.evictor.clear();
        self.keys.clear();
    }

    pub(super) fn heap_bytes(&self) -> usize {
        let held = size_of::<Candidate>() * self.held.capacity();
        self.keys.heap_bytes()
            + held
            + evictor_bytes(self.policy) * (self.keys.capacity() + 1)
            + fixed_bytes(self.policy)
    }

    pub(super) fn check_invariants(&self) -> Result<(), InvariantViolation> {
        self.evictor.check_invariants()?;
        ensure(
            self.evictor.len() == self.keys.len(),
            "AV2 (a ghost cache releases all blocks after a lookup)",
            || {
                format!(
                    "{}: {} keys, {} of them evictable",
                    self.policy.name(),
                    self.keys.len(),
                    self.evictor.len()
                )
            },
        )
    }
}
