//! `GhostCache`: a simulated cache of the sampled keys, to estimate the hit rate of a policy. It stores
//! no KV.
//!
//! The ghost cache uses the same evictor as a pool, including [`Closed`], over keys instead of blocks:
//! the numbers of its slots are the block ids. So, as in the pool, no key is evicted before the keys of
//! its descendants. The keys that a lookup finds are always a prefix of its sampled keys.
//!
//! One call performs a whole lookup. It acquires the keys that hit, evicts one key for each new key
//! without a free slot, adds the new keys, and then releases all keys at once, deepest first. If a
//! lookup has more keys than there are slots, the excess keys are not stored.
//!
//! Costs: those of the evictor, 50 to 200 ns per sampled reference. Memory: 23 bytes per slot plus the
//! evictor's 10 to 120 bytes, or up to 455 bytes for `adaptive`.
//!
//! [`Closed`]: kvpool_policies::Closed

use super::keys::KeyTable;
use kvpool::BlockId;
use kvpool::parts::ensure;
use kvpool::parts::try_reserve;
use kvpool::{Candidate, Content, EvictionPolicy, Evictor};
use kvpool::{InvariantViolation, PoolError};

/// The maximum memory of an evictor of a kvpool policy, in bytes per block. A test checks these values.
fn evictor_bytes(policy: EvictionPolicy) -> usize {
    match policy.name() {
        "lru" => 16,
        // `adaptive` simulates caches of its own, with at least 8,192 blocks, even for a small pool.
        "adaptive" => 480,
        _ => 96,
    }
}
/// The memory of an evictor in bytes, in addition to its memory per block. `hazard` has a table of its
/// classes of blocks.
fn fixed_bytes(policy: EvictionPolicy) -> usize {
    if policy.name() == "hazard" { 340_000 } else { 4096 }
}

/// A sampled block of a lookup, given by its key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sampled {
    pub(super) key: u64,
    /// The position of the block in its hash chain.
    pub(super) depth: u32,
}

/// A simulated cache, which stores keys instead of blocks and uses one eviction policy.
#[derive(Debug)]
pub(super) struct GhostCache {
    pub(super) policy: EvictionPolicy,
    evictor: Box<dyn Evictor>,
    history: bool,
    keys: KeyTable,
    /// The slots that the current lookup uses. To the evictor, each slot is a block.
    held: Vec<Candidate>,
    /// The number of references that hit. It is halved at the end of each window.
    pub(super) hits: f64,
}

impl GhostCache {
    pub(super) fn new(policy: EvictionPolicy, slots: usize) -> Result<Self, PoolError> {
        let evictor = policy.build(slots + 1, None)?;
        let history = evictor.wants_history();
        let mut ghost = Self { policy, evictor, history, keys: KeyTable::new(), held: Vec::new(), hits: 0.0 };
        ghost.keys.grow(slots)?;
        try_reserve(&mut ghost.held, slots)?;
        Ok(ghost)
    }

    /// Simulates a lookup: finds its sampled keys, first block first, and stores the missing ones.
    /// `parent` is the key of the block before the first one, if it is known. Returns the number of
    /// hits.
    pub(super) fn refer(&mut self, sampled: &[Sampled], parent: Option<u64>) -> usize {
        // The order of the operations is the same as in a pool: acquire the blocks that are found,
        // evict blocks for all missing ones, and store those.
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

    /// Assigns a slot to a new key. `None` if the lookup already uses all slots.
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
