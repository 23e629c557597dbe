//! [`Pool::check_invariants`]: V1 to V4, as [`Pool`]'s module states them, recounted.

use kvpool::InvariantViolation;

use crate::pool::Pool;

impl Pool {
    /// Recounts everything from scratch.
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn check_invariants(&self) -> Result<(), InvariantViolation> {
        self.queue.check_invariants()?;
        for block in 0..self.num_blocks() as u32 {
            let held = self.ref_count(block) > 0 || block == 0;
            if held == self.queue.contains(block) {
                return Err(InvariantViolation::new(
                    "V2 (a block is queued exactly if it has no references)",
                    format!("block {block} has {} references", self.ref_count(block)),
                ));
            }
            let is_told = self.queue.depth_of(block).is_some();
            let is_misplaced = is_told && !held && !self.queue.is_cached(block);
            let is_hashed = self.keys.hash_of(block).is_some();
            if self.keeps_history() && block != 0 && (is_told != is_hashed || is_misplaced) {
                return Err(InvariantViolation::new(
                    "V4 (the evictor knows what carries a hash, and holds it if it is free)",
                    format!("block {block}: known {is_told}, hashed {is_hashed}, misplaced {is_misplaced}"),
                ));
            }
            let keys =
                self.keys.hash_of(block).map(|(key, _)| key).into_iter().chain(self.keys.further_keys(block));
            for key in keys {
                if !self.keys.leads_to(key, block) {
                    return Err(InvariantViolation::new(
                        "V3 (a key leads to what carries it)",
                        format!("block {block} carries {key:?}, which does not lead to it"),
                    ));
                }
            }
        }
        for key in self.keys.iter() {
            for block in self.keys.copies(key) {
                let carried = self.keys.hash_of(block).is_some_and(|(hash, _)| hash == key)
                    || self.keys.further_keys(block).contains(key);
                if !carried {
                    return Err(InvariantViolation::new(
                        "V3 (a key leads to what carries it)",
                        format!("{key:?} leads to block {block}, which does not carry it"),
                    ));
                }
            }
        }
        Ok(())
    }
}
