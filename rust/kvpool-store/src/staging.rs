//! `Staging`: memory through which payloads are copied, for engines that reuse a slot as soon as they
//! are notified.
//!
//! Owns: that memory, which all workers of a store share. A payload gets the first free piece, so that
//! few pieces are in use and those were used recently. This matters because the first access to new
//! memory costs more than a copy into used memory, above all on a virtual machine.
//!
//! Cost: [`Staging::new`] accesses the memory that workers usually need: [`AT_ONCE`] bytes, or less if
//! payloads are small. The memory grows to the largest amount that is in use at one time, and does not
//! shrink.

use std::sync::{Arc, Mutex, PoisonError};

use crate::arena::{Arena, Writing};
use crate::error::StoreError;

/// Limit of the bytes that all workers of a store have in flight, divided evenly among them. At its
/// share, a worker that already has transfers takes no further one. This amount keeps a disk busy.
pub(crate) const AT_ONCE: u64 = 64 << 20;
/// Number of bytes in a huge page, and in one allocation of staging memory. An allocation is larger if
/// a payload is larger, and smaller if it would have more than [`SLOTS`] pieces.
const STEP: u32 = 2 << 20;
/// Largest number of payloads that a worker usually has in flight.
const EACH: usize = 8;
/// Largest number of pieces in one allocation.
const SLOTS: u32 = 64;

#[derive(Debug)]
pub(crate) struct Staging {
    /// Number of bytes in the longest payload.
    longest: u32,
    arenas: Mutex<Vec<Arc<Arena>>>,
}

impl Staging {
    /// Creates staging memory for payloads of at most `longest` bytes, and accesses the part that
    /// `workers` workers usually need.
    pub(crate) fn new(longest: u32, workers: usize) -> Result<Self, StoreError> {
        let staging = Self { longest: longest.max(1), arenas: Mutex::default() };
        let most = (AT_ONCE / u64::from(staging.longest)).max(1);
        let touched = (0..most.min(workers.saturating_mul(EACH) as u64)).map(|_| {
            let mut slot = staging.take()?;
            slot.fill(0);
            Ok(slot)
        });
        // Hold all pieces until the end, so that each of them is a different one.
        touched.collect::<Result<Vec<_>, StoreError>>().map(drop)?;
        Ok(staging)
    }

    /// Returns memory for one payload. No other transfer uses this memory until the result is dropped.
    pub(crate) fn take(&self) -> Result<Writing, StoreError> {
        let mut arenas = self.arenas.lock().unwrap_or_else(PoisonError::into_inner);
        let free = |arena: &Arc<Arena>| (0..arena.slots()).find_map(|slot| arena.write(slot).ok());
        if let Some(slot) = arenas.iter().find_map(free) {
            return Ok(slot);
        }
        let arena = Arena::new((STEP / self.longest).clamp(1, SLOTS), self.longest)?;
        let slot = arena.write(0)?;
        arenas.push(arena);
        Ok(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn used_slots_are_reused() {
        for longest in [1, 4096, 65536, (1 << 20) + 1, 3 << 20] {
            let staging = Staging::new(longest, 2).unwrap();
            let taken: Vec<_> = (0..100).map(|_| staging.take().unwrap()).collect();
            let places = |taken: &[Writing]| taken.iter().map(|slot| slot.as_ptr()).collect::<Vec<_>>();
            let mut first = places(&taken);
            assert!(taken.iter().all(|slot| slot.len() >= longest as usize));
            drop(taken);
            let again: Vec<_> = (0..100).map(|_| staging.take().unwrap()).collect();
            assert_eq!(places(&again), first);
            first.sort_unstable();
            first.dedup();
            assert_eq!(first.len(), 100);
        }
    }
}
