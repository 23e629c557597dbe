//! [`Pool::check_invariants`] recomputes the invariants V1 to V4 from the core and the overlays. The
//! module of [`Pool`] defines these invariants.

use kvpool::{BlockId, BlockState, InvariantViolation};

use crate::pool::Pool;

fn ensure(
    holds: bool,
    name: &'static str,
    detail: impl FnOnce() -> String,
) -> Result<(), InvariantViolation> {
    if holds { Ok(()) } else { Err(InvariantViolation::new(name, detail())) }
}

impl Pool {
    /// Recomputes all counts and relations of keys, blocks and queue, including those of the core, and
    /// checks the invariants V1 to V4.
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn check_invariants(&self) -> Result<(), InvariantViolation> {
        self.check_representation()?;
        let keys = self.keys();
        for block in 0..self.num_blocks() as u32 {
            let held = self.ref_count(block) > 0 || block == 0;
            let is_queued = self.is_queued(block);
            ensure(held != is_queued, "V2 (a block is queued exactly if it has no references)", || {
                format!("block {block} has {} references", self.ref_count(block))
            })?;
            let is_cached = self.core().state(BlockId::new(block)) == Some(BlockState::CachedFree);
            let misplaced = self.keeps_history() && is_queued && self.is_hashed(block) && !is_cached;
            ensure(!misplaced, "V4 (what carries a hash is among the cached ones)", || {
                format!("block {block} is at the front of the queue")
            })?;
            let hash = keys.hash_of(block).map(|(key, _)| key);
            for key in hash.iter().chain(keys.further_keys(block)) {
                ensure(keys.leads_to(key, block), "V3 (a key leads to what carries it)", || {
                    format!("block {block} carries {key:?}, which does not lead to it")
                })?;
            }
        }
        for key in keys.iter() {
            for block in keys.copies(&key) {
                let carried = keys.hash_of(block).is_some_and(|(hash, _)| hash == key)
                    || keys.further_keys(block).contains(&key);
                ensure(carried, "V3 (a key leads to what carries it)", || {
                    format!("{key:?} leads to block {block}, which does not carry it")
                })?;
            }
        }
        Ok(())
    }

    /// Checks only the invariants that hold even after vLLM has written counts or hashes directly:
    /// those of the core, V1, and the first half of V4.
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn check_representation(&self) -> Result<(), InvariantViolation> {
        const V1: &str = "V1 (a key leads somewhere in the core or in the overlay, not in both)";
        const V4: &str = "V4 (a block in use is registered exactly if it carries a hash)";
        self.core().check_invariants()?;
        let mut hidden = 0;
        for block in 1..self.num_blocks() as u32 {
            let id = BlockId::new(block);
            hidden += usize::from(self.core().is_hidden(id));
            let (is_registered, is_hashed) = (self.core().is_registered(id), self.is_hashed(block));
            let sound = self.held(block) == 0 || is_registered == (is_hashed && self.caching);
            ensure(sound, V4, || format!("block {block}: registered {is_registered}, hashed {is_hashed}"))?;
            let is_twice = self.core().name_of(id).is_some() && self.overlay.hashes.contains_key(&block);
            ensure(!is_twice, V1, || format!("block {block} has two hashes"))?;
        }
        ensure(hidden == self.hidden, V4, || format!("{hidden} hidden, {} counted", self.hidden))?;
        let twice = self.overlay.index.keys().find(|key| !self.regular_copies(key).is_empty());
        ensure(twice.is_none(), V1, || format!("{twice:?}"))?;
        let empty = self.overlay.index.iter().find(|(_, copies)| copies.blocks.is_empty());
        ensure(empty.is_none(), V1, || format!("{empty:?} leads nowhere"))
    }
}
