//! `GhostCache`: what a policy would hit, at the scale of the sample.
//!
//! Owns: which sampled keys would be cached under one policy. It is the evictor that a pool would have,
//! [`Closed`] included, over keys instead of blocks: slots are its block ids. So it keeps the sample
//! prefix-closed, as the pool does its blocks: what a lookup finds is a prefix of its sampled blocks,
//! and there is no hole that the sample could miss.
//!
//! A lookup is done with at once: its hits are taken, as many victims evicted as there are new keys,
//! these admitted, and then everything is released in one go, deepest first. A lookup of more keys than
//! there are slots is kept as far as it goes.
//!
//! Costs: those of the evictor per sampled reference, 50 to 200 ns; 23 bytes per slot and the evictor's
//! own 10 to 120; `adaptive` up to 455.
//!
//! [`Closed`]: kvpool_policies::Closed

use super::keys::KeyTable;
use kvpool::BlockId;
use kvpool::parts::ensure;
use kvpool::parts::try_reserve;
use kvpool::{Candidate, Content, EvictionPolicy, Evictor};
use kvpool::{InvariantViolation, PoolError};

/// What an evictor holds per block, at most: of those that come with kvpool. A test counts it.
fn evictor_bytes(policy: EvictionPolicy) -> usize {
    match policy.name() {
        "lru" => 16,
        // The shadows of `adaptive` follow 8,192 blocks' worth of keys in however small a cache.
        "adaptive" => 480,
        _ => 96,
    }
}
/// What it holds besides, whatever its size: `hazard` has its table of classes.
fn fixed_bytes(policy: EvictionPolicy) -> usize {
    if policy.name() == "hazard" { 340_000 } else { 4096 }
}

/// A sampled key of a lookup.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sampled {
    pub(super) key: u64,
    /// Its position in its chain.
    pub(super) depth: u32,
}

/// A cache of keys under one policy.
#[derive(Debug)]
pub(super) struct GhostCache {
    pub(super) policy: EvictionPolicy,
    evictor: Box<dyn Evictor>,
    history: bool,
    keys: KeyTable,
    /// The lookup at hand.
    held: Vec<Candidate>,
    /// Weight of the references that it hit.
    pub(super) hits: f64,
}

impl GhostCache {
    /// An empty cache, with all its memory taken.
    pub(super) fn new(policy: EvictionPolicy, slots: usize) -> Result<Self, PoolError> {
        let evictor = policy.build(slots + 1, None)?;
        let history = evictor.wants_history();
        let mut ghost = Self { policy, evictor, history, keys: KeyTable::new(), held: Vec::new(), hits: 0.0 };
        ghost.keys.grow(slots)?;
        try_reserve(&mut ghost.held, slots)?;
        Ok(ghost)
    }

    /// Looks the sampled keys of a lookup up, root first, and keeps them; `parent` is the block before
    /// the first, if it may be known. Returns how many it hit.
    pub(super) fn refer(&mut self, sampled: &[Sampled], parent: Option<u64>) -> usize {
        // In the order in which a pool does it: hold what is found, evict for all that is missing,
        // store that.
        let (mut hits, mut missing) = (0, 0);
        for &Sampled { key, .. } in sampled {
            let Some(found) = self.keys.find(key) else {
                missing += 1;
                continue;
            };
            hits += usize::from(missing == 0); // behind what is missing nothing is a hit
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

    /// Gives a new key a slot; `None` if the lookup holds all.
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
        ensure(self.evictor.len() == self.keys.len(), "D2 (a ghost cache releases what it holds)", || {
            format!(
                "{}: {} keys, {} with the evictor",
                self.policy.name(),
                self.keys.len(),
                self.evictor.len()
            )
        })
    }
}
