//! `Staging`: memory that payloads pass through, for engines that reuse a slot as soon as they are told.
//!
//! Owns: that memory, one for all workers of a store. The first free slot is taken, so that few are in
//! use and those were used of late: memory that nothing has touched costs more than a copy into memory
//! that was, above all on a virtual machine.
//!
//! Cost: [`Staging::new`] touches as much as workers have on their way in general: [`AT_ONCE`] bytes,
//! less where payloads are small. It grows to the most that is ever on its way, and does not shrink.

use std::sync::{Arc, Mutex, PoisonError};

use crate::arena::{Arena, Writing};
use crate::error::StoreError;

/// Bytes that all workers of a store together have on their way before one that has some takes more:
/// they keep a disk busy, and each may take memory of the workers.
pub(crate) const AT_ONCE: u64 = 64 << 20;
/// Bytes of a huge page: less is not taken at once.
const STEP: u32 = 2 << 20;
/// Payloads that a worker has on its way in general, at most.
const EACH: usize = 8;
/// Slots that are taken at once, where they are small.
const SLOTS: u32 = 64;

#[derive(Debug)]
pub(crate) struct Staging {
    /// Bytes of the longest payload.
    longest: u32,
    arenas: Mutex<Vec<Arc<Arena>>>,
}

impl Staging {
    /// For payloads of at most `longest` bytes.
    pub(crate) fn new(longest: u32, workers: usize) -> Result<Self, StoreError> {
        let staging = Self { longest: longest.max(1), arenas: Mutex::default() };
        let most = (AT_ONCE / u64::from(staging.longest)).max(1);
        let touched = (0..most.min(workers.saturating_mul(EACH) as u64)).map(|_| {
            let mut slot = staging.take()?;
            slot.fill(0);
            Ok(slot)
        });
        // All of them first: they are to be others.
        touched.collect::<Result<Vec<_>, StoreError>>().map(drop)?;
        Ok(staging)
    }

    /// Memory for a payload, that nothing else has until it is dropped.
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
    fn what_was_used_is_used_again() {
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
