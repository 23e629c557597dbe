//! `Arena`: host memory in slots, into and out of which objects are moved without another copy.
//!
//! Owns: the memory, and who has a slot. [`Arena::read`] shares a slot, [`Arena::write`] takes it alone; neither waits. A transfer
//! holds the guard of its slot until the back end has ended, so the slot of a load that timed out stays taken for exactly as long
//! as something may still write to it, and nothing has to remember that.
//!
//! Invariants: a slot has any number of readers or one writer; the memory is never moved; slots begin and end on pages of 4 KiB, as
//! direct I/O wants.
//!
//! Cost: one mapping, made at once and touched when used; 4 bytes per slot. A guard is one atomic operation.

#![expect(unsafe_code, reason = "slices of the mapping: by the guards alone, which exclude each other")]

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use memmap2::{MmapMut, MmapRaw};

use crate::backend::{PAGE, pages};
use crate::error::StoreError;

/// The state of a slot that has a writer; any other is its number of readers.
const WRITER: u32 = u32::MAX;

/// Memory in slots of one size.
///
/// ```
/// use kvpool_store::Arena;
/// let arena = Arena::new(2, 64)?;
/// arena.write(1)?.fill(7);
/// let (one, other) = (arena.read(1)?, arena.read(1)?);
/// assert_eq!(one[..], [7; 64]);
/// assert!(arena.write(1).is_err());
/// # drop(other);
/// # Ok::<(), kvpool_store::StoreError>(())
/// ```
#[derive(Debug)]
pub struct Arena {
    memory: MmapRaw,
    slot_bytes: usize,
    states: Box<[AtomicU32]>,
}

impl Arena {
    /// Zeroed memory for `slots` slots of `slot_bytes`.
    ///
    /// # Errors
    /// [`StoreError::InvalidConfig`] for none of either, [`StoreError::NoMemory`].
    pub fn new(slots: u32, slot_bytes: u32) -> Result<Arc<Self>, StoreError> {
        for (field, value) in [("slots", slots), ("slot_bytes", slot_bytes)] {
            if value == 0 {
                return Err(StoreError::InvalidConfig { field, value: 0, expected: "at least 1" });
            }
        }
        let slot_bytes = slot_bytes as usize;
        let bytes = pages(slot_bytes).saturating_mul(slots as usize);
        let memory = MmapMut::map_anon(bytes)
            .map_err(|error| StoreError::NoMemory { bytes: bytes as u64, error: error.to_string() })?;
        let states = (0..slots).map(|_| AtomicU32::new(0)).collect();
        Ok(Arc::new(Self { memory: memory.into(), slot_bytes, states }))
    }

    /// Number of slots.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.states.len() as u32 // made from a u32
    }

    /// Bytes of a slot.
    #[must_use]
    pub const fn slot_bytes(&self) -> u32 {
        self.slot_bytes as u32 // made from a u32
    }

    fn state(&self, slot: u32) -> Result<&AtomicU32, StoreError> {
        self.states.get(slot as usize).ok_or(StoreError::UnknownSlot { slot, slots: self.slots() })
    }

    /// Shares a slot for reading.
    ///
    /// # Errors
    /// [`StoreError::UnknownSlot`]; [`StoreError::SlotBusy`] while something writes to it.
    pub fn read(self: &Arc<Self>, slot: u32) -> Result<Reading, StoreError> {
        self.state(slot)?
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, |readers| {
                readers.checked_add(1).filter(|&readers| readers < WRITER)
            })
            .map_err(|_| StoreError::SlotBusy { slot })?;
        Ok(Reading { arena: Arc::clone(self), slot })
    }

    /// Takes a slot for writing.
    ///
    /// # Errors
    /// [`StoreError::UnknownSlot`]; [`StoreError::SlotBusy`] while something reads it or writes to it.
    pub fn write(self: &Arc<Self>, slot: u32) -> Result<Writing, StoreError> {
        self.state(slot)?
            .compare_exchange(0, WRITER, Ordering::Acquire, Ordering::Relaxed)
            .map_err(|_| StoreError::SlotBusy { slot })?;
        Ok(Writing { arena: Arc::clone(self), slot })
    }

    /// Where a slot begins. In bounds: guards have slots that exist.
    fn begin(&self, slot: u32) -> *mut u8 {
        self.memory.as_mut_ptr().wrapping_add(slot as usize * pages(self.slot_bytes))
    }

    /// Bytes of the pages that a payload of `len` takes in a slot.
    fn span(&self, len: u32) -> usize {
        pages(len as usize).min(pages(self.slot_bytes))
    }
}

/// A slot that nothing writes to.
#[derive(Debug)]
pub struct Reading {
    arena: Arc<Arena>,
    slot: u32,
}

impl Reading {
    /// The whole pages of a payload's first `len` bytes; what stands behind these has no meaning.
    pub(crate) fn pages(&self, len: u32) -> &[u8] {
        let len = self.arena.span(len);
        // SAFETY: inside the mapping, which lives as long as the arena; initialised, since the mapping began as zeros; and this
        // guard counts as a reader, so `Arena::write` gives out no slice of the slot until it is dropped.
        unsafe { std::slice::from_raw_parts(self.arena.begin(self.slot), len) }
    }
}

impl Deref for Reading {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.pages(self.arena.slot_bytes())[..self.arena.slot_bytes]
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.arena.states[self.slot as usize].fetch_sub(1, Ordering::Release);
    }
}

/// A slot that is the holder's alone.
#[derive(Debug)]
pub struct Writing {
    arena: Arc<Arena>,
    slot: u32,
}

impl Writing {
    fn whole(&self) -> &[u8] {
        // SAFETY: as in `Reading::pages`; the only guard of the slot is this one.
        unsafe { std::slice::from_raw_parts(self.arena.begin(self.slot), pages(self.arena.slot_bytes)) }
    }

    /// The whole pages of a payload's first `len` bytes.
    pub(crate) fn pages(&mut self, len: u32) -> &mut [u8] {
        let len = self.arena.span(len);
        // SAFETY: as in `Reading::pages`; the only guard of the slot is this one, and it is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.arena.begin(self.slot), len) }
    }
}

impl Deref for Writing {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.whole()[..self.arena.slot_bytes]
    }
}

impl DerefMut for Writing {
    fn deref_mut(&mut self) -> &mut [u8] {
        let bytes = self.arena.slot_bytes;
        &mut self.pages(bytes as u32)[..bytes] // made from a u32
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.arena.states[self.slot as usize].store(0, Ordering::Release);
    }
}

/// Slots are laid out in whole pages, or direct I/O of one would reach into the next.
const _: () = assert!(PAGE.is_power_of_two());
