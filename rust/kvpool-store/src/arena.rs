//! `Arena`: host memory that is divided into slots. Objects are moved into and out of slots without
//! another copy.
//!
//! Owns: the memory, and the state of each slot. [`Arena::read`] returns a shared guard of a slot, and
//! [`Arena::write`] an exclusive guard; neither waits. A transfer holds the guard of its slot until the
//! back end has finished. If a load times out, its slot therefore remains in use for exactly as long as
//! the back end may still write to it.
//!
//! The memory belongs to the arena ([`Arena::new`]) or to an engine ([`Arena::over`]). Slots in the
//! arena's own memory begin and end at pages of 4 KiB, as direct I/O requires. If the slots of an
//! engine do not, workers copy the payloads through pages of their own.
//!
//! Invariants: a slot has any number of readers or one writer. The memory is never moved, and lives as
//! long as the arena.
//!
//! Cost: one mapping, and 4 bytes per slot. The mapping is made at construction, and its pages are
//! allocated at their first use. From 2 MiB on it uses huge pages. A guard costs one atomic operation.

#![expect(unsafe_code, reason = "makes slices of the memory, only by guards, which exclude each other")]

use std::any::Any;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use memmap2::{Advice, MmapMut, MmapRaw};

use crate::error::StoreError;
use crate::object::{PAGE, pages};

/// Value of a slot's state while the slot has a writer. Any other value is the number of readers.
const WRITER: u32 = u32::MAX;
/// Number of bytes in a huge page.
const HUGE: usize = 2 << 20;

/// Memory that is divided into slots of equal size.
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
    memory: Memory,
    /// Size of a slot in bytes. The field `stride` is the distance in bytes from one slot to the next.
    slot_bytes: usize,
    stride: usize,
    states: Box<[AtomicU32]>,
}

#[derive(Debug)]
struct Memory {
    begin: NonNull<u8>,
    /// The owner of the memory. As long as this field exists, the memory stays allocated at its address.
    _owner: Box<dyn Any + Send + Sync>,
}

// SAFETY: the pointer refers to memory that `_owner` keeps alive, and the owner may be sent to any
// thread. Only the guards use the pointer.
unsafe impl Send for Memory {}
// SAFETY: only the guards use the pointer, and the guards of one slot exclude each other on all
// threads.
unsafe impl Sync for Memory {}

impl Arena {
    /// Allocates zeroed memory for `slots` slots of `slot_bytes`.
    ///
    /// # Errors
    /// [`StoreError::InvalidConfig`] if `slots` or `slot_bytes` is 0; [`StoreError::NoMemory`].
    pub fn new(slots: u32, slot_bytes: u32) -> Result<Arc<Self>, StoreError> {
        check(slots, slot_bytes)?;
        let stride = pages(slot_bytes as usize);
        let bytes = stride.saturating_mul(slots as usize);
        let no_memory = |error: String| StoreError::NoMemory { bytes: bytes as u64, error };
        // Use huge pages if the system has them and the memory is large enough. A transfer then
        // consists of few pieces, and a disk moves more of them at once, above all a virtual disk.
        let huge = bytes >= HUGE;
        let mapped = if huge { bytes.next_multiple_of(HUGE).saturating_add(HUGE) } else { bytes };
        let mapping = MmapMut::map_anon(mapped).map_err(|error| no_memory(error.to_string()))?;
        if huge {
            drop(mapping.advise(Advice::HugePage)); // ignore errors: small pages also work
        }
        let mapping: MmapRaw = mapping.into();
        let first = mapping.as_mut_ptr();
        let begin = if huge { first.wrapping_add(first.align_offset(HUGE).min(HUGE)) } else { first };
        let begin = NonNull::new(begin).ok_or_else(|| no_memory("no address".into()))?;
        Self::of(Memory { begin, _owner: Box::new(mapping) }, slots, slot_bytes, stride)
    }

    /// Uses memory of an engine: `slots` contiguous slots of `slot_bytes`. Transfers need no copy
    /// exactly if the memory begins at a page and `slot_bytes` is a multiple of the page size
    /// ([`Self::is_paged`]).
    ///
    /// # Errors
    /// [`StoreError::InvalidConfig`] if `slots` or `slot_bytes` is 0; [`StoreError::NoMemory`].
    ///
    /// # Safety
    /// `begin` MUST be the address of `slots * slot_bytes` initialised bytes. They must remain at this
    /// address until `owner` is dropped. While a transfer uses a slot, no other code may write to it.
    /// If the transfer is a load, no other code may read it either.
    pub unsafe fn over(
        begin: NonNull<u8>,
        slots: u32,
        slot_bytes: u32,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Result<Arc<Self>, StoreError> {
        check(slots, slot_bytes)?;
        Self::of(Memory { begin, _owner: owner }, slots, slot_bytes, slot_bytes as usize)
    }

    fn of(memory: Memory, slots: u32, slot_bytes: u32, stride: usize) -> Result<Arc<Self>, StoreError> {
        let mut states = Vec::new();
        states.try_reserve_exact(slots as usize).map_err(|error| StoreError::NoMemory {
            bytes: u64::from(slots) * size_of::<AtomicU32>() as u64,
            error: format!("the states of {slots} slots: {error}"),
        })?;
        states.extend((0..slots).map(|_| AtomicU32::new(0)));
        let states = states.into_boxed_slice();
        Ok(Arc::new(Self { memory, slot_bytes: slot_bytes as usize, stride, states }))
    }

    /// Whether slots begin and end at page boundaries.
    #[must_use]
    pub fn is_paged(&self) -> bool {
        self.memory.begin.addr().get().is_multiple_of(PAGE) && self.stride.is_multiple_of(PAGE)
    }

    /// Returns the address and the length in bytes of the memory, for bindings. The caller has to
    /// ensure that its own accesses do not overlap with transfers.
    #[must_use]
    pub fn memory(&self) -> (NonNull<u8>, usize) {
        (self.memory.begin, self.stride * self.states.len())
    }

    /// Number of bytes from one slot to the next.
    #[must_use]
    pub const fn stride(&self) -> usize {
        self.stride
    }

    /// Number of slots.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.states.len() as u32 // the value was a u32
    }

    /// Number of payload bytes that fit into a slot.
    #[must_use]
    pub const fn slot_bytes(&self) -> u32 {
        self.slot_bytes as u32 // the value was a u32
    }

    fn state(&self, slot: u32) -> Result<&AtomicU32, StoreError> {
        self.states.get(slot as usize).ok_or(StoreError::UnknownSlot { slot, slots: self.slots() })
    }

    /// Returns a shared guard of a slot.
    ///
    /// # Errors
    /// [`StoreError::UnknownSlot`]; [`StoreError::SlotBusy`] while the slot has a writer.
    pub fn read(self: &Arc<Self>, slot: u32) -> Result<Reading, StoreError> {
        self.state(slot)?
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, |readers| {
                readers.checked_add(1).filter(|&readers| readers < WRITER)
            })
            .map_err(|_| StoreError::SlotBusy { slot })?;
        Ok(Reading { arena: Arc::clone(self), slot })
    }

    /// Returns an exclusive guard of a slot.
    ///
    /// # Errors
    /// [`StoreError::UnknownSlot`]; [`StoreError::SlotBusy`] while the slot has a reader or a writer.
    pub fn write(self: &Arc<Self>, slot: u32) -> Result<Writing, StoreError> {
        self.state(slot)?
            .compare_exchange(0, WRITER, Ordering::Acquire, Ordering::Relaxed)
            .map_err(|_| StoreError::SlotBusy { slot })?;
        Ok(Writing { arena: Arc::clone(self), slot })
    }

    /// Returns the address of a slot. It is in bounds, because guards exist only for existing slots.
    fn begin(&self, slot: u32) -> *mut u8 {
        self.memory.begin.as_ptr().wrapping_add(slot as usize * self.stride)
    }

    /// Returns the number of bytes in the pages that a payload of `len` bytes uses in a slot. `None` if
    /// slots are not paged.
    fn span(&self, len: u32) -> Option<usize> {
        self.is_paged().then(|| pages(len as usize).min(self.stride))
    }
}

fn check(slots: u32, slot_bytes: u32) -> Result<(), StoreError> {
    match [("slots", slots), ("slot_bytes", slot_bytes)].into_iter().find(|&(_, value)| value == 0) {
        Some((field, _)) => {
            Err(StoreError::InvalidConfig { field, value: "0".into(), expected: "at least 1" })
        }
        None => Ok(()),
    }
}

/// Shared guard of a slot. No code writes to the slot while this guard exists.
#[derive(Debug)]
pub struct Reading {
    arena: Arc<Arena>,
    slot: u32,
}

impl Reading {
    fn first(&self, len: usize) -> &[u8] {
        // SAFETY: the slice is inside the memory, because no caller passes a `len` above the distance between
        // slots. The memory is initialised and lives as long as the arena. This guard counts as a reader, so
        // `Arena::write` returns no slice of the slot until the guard is dropped.
        unsafe { std::slice::from_raw_parts(self.arena.begin(self.slot), len) }
    }

    /// Returns the whole pages that contain the first `len` bytes of the payload. The bytes after these
    /// are undefined. `None` if slots are not paged.
    pub(crate) fn pages(&self, len: u32) -> Option<&[u8]> {
        self.arena.span(len).map(|bytes| self.first(bytes))
    }
}

impl Deref for Reading {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.first(self.arena.slot_bytes)
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.arena.states[self.slot as usize].fetch_sub(1, Ordering::Release);
    }
}

/// Exclusive guard of a slot. Only the owner of this guard accesses the slot.
#[derive(Debug)]
pub struct Writing {
    arena: Arc<Arena>,
    slot: u32,
}

impl Writing {
    fn first(&mut self, len: usize) -> &mut [u8] {
        // SAFETY: as in `Reading::first`; this is the only guard of the slot, and it is borrowed
        // mutably.
        unsafe { std::slice::from_raw_parts_mut(self.arena.begin(self.slot), len) }
    }

    /// Returns the whole pages that contain the first `len` bytes of the payload. `None` if slots are
    /// not paged.
    pub(crate) fn pages(&mut self, len: u32) -> Option<&mut [u8]> {
        let bytes = self.arena.span(len)?;
        Some(self.first(bytes))
    }
}

impl Writing {
    /// Like the method `pages`, but returns a shared slice.
    pub(crate) fn shared_pages(&self, len: u32) -> Option<&[u8]> {
        let bytes = self.arena.span(len)?;
        // SAFETY: as in `Reading::first`; this guard is the only one of the slot, and the slice borrows
        // the guard.
        Some(unsafe { std::slice::from_raw_parts(self.arena.begin(self.slot), bytes) })
    }
}

impl Deref for Writing {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: as in `Reading::first`; this guard is the only one of the slot.
        unsafe { std::slice::from_raw_parts(self.arena.begin(self.slot), self.arena.slot_bytes) }
    }
}

impl DerefMut for Writing {
    fn deref_mut(&mut self) -> &mut [u8] {
        let bytes = self.arena.slot_bytes;
        self.first(bytes)
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.arena.states[self.slot as usize].store(0, Ordering::Release);
    }
}
