//! `Store`: describes the memory of one tier's blocks as a list of regions.
//!
//! Owns: the regions, the object that keeps their memory alive, and the region table that kernels read
//! on a device. A host pool also owns its memory and its registrations with the driver. A handle
//! identifies a store. The store lives until its last transfer has finished. A closed store refuses new
//! work.
//!
//! Costs: O(regions log regions) to create; a lookup by handle takes about 20 ns.

mod compare;
mod guards;
mod host;
mod packed;

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::AtomicI64;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, RwLock, Weak};

use hashbrown::HashMap;

use crate::driver::{Context, Registration, Table};
use crate::error::TransferError;
use crate::memory::{self, HostMemory, PageKind};
use crate::region::{self, Region};
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::words::Device;
pub(crate) use compare::Relation;
use guards::Guards;
pub(crate) use guards::{Accessor, Claim};
pub use host::{HostOptions, NumaNode};
pub(crate) use packed::Packed;
use packed::packed;

impl std::str::FromStr for Device {
    type Err = TransferError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let ordinal = name.strip_prefix("cuda").map(|rest| rest.strip_prefix(':').unwrap_or("0").parse());
        match (name, ordinal) {
            ("cpu", _) => Ok(Self::Cpu),
            ("cuda", _) => Ok(Self::Cuda(0)),
            (_, Some(Ok(ordinal))) if name.starts_with("cuda:") => Ok(Self::Cuda(ordinal)),
            _ => Err(TransferError::Argument {
                name: "device",
                value: format!("{name:?}"),
                expected: "cpu, cuda or cuda:N".into(),
            }),
        }
    }
}

/// Regions whose pieces have the same length. One kernel launch copies all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) nbytes: u64,
    /// The group's rows in the region table.
    pub(crate) rows: Range<usize>,
}

/// How host memory is page-locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pinning {
    /// The memory is not page-locked.
    Pageable,
    /// The owner of the memory has page-locked it. Each region is within one registration with the
    /// driver.
    Owner,
    /// This store has page-locked the memory with several calls of the driver. Each of these
    /// registrations has `blocks` blocks.
    Registered { blocks: u32 },
}

/// The blocks of one tier, described by regions.
pub struct Store {
    handle: i64,
    device: Device,
    num_blocks: u64,
    bytes_per_block: u64,
    regions: Vec<Region>,
    /// The indices of the regions, in the order of the region table: by length, and by index for equal
    /// lengths.
    order: Vec<u32>,
    groups: Vec<Group>,
    /// Type of the elements in each region, if known. A copy between different types is refused.
    kinds: Vec<Arc<str>>,
    packed: Option<Packed>,
    pinning: Pinning,
    why_pageable: Option<String>,
    closed: AtomicBool,
    /// Number of transfers under way that write to the store.
    pub(crate) writers: AtomicUsize,
    /// Whether a captured graph may write to the store at any time.
    pub(crate) captured: AtomicBool,
    /// The accesses to the blocks, if the store is host memory.
    guards: Arc<Guards>,
    relations: Mutex<HashMap<i64, Relation>>,
    tables: Mutex<HashMap<u32, Arc<Table>>>,
    // Fields are dropped in this order. Drop the registrations before the memory that they lock.
    registrations: Vec<Registration>,
    memory: Option<HostMemory>,
    keep_alive: Option<Box<dyn Any + Send + Sync>>,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Store(handle={}, device={}, blocks={}, regions={}, bytes_per_block={})",
            self.handle,
            self.device,
            self.num_blocks,
            self.regions.len(),
            self.bytes_per_block
        )
    }
}

static NEXT_HANDLE: AtomicI64 = AtomicI64::new(1);
static STORES: LazyLock<RwLock<HashMap<i64, Weak<Store>>>> = LazyLock::new(RwLock::default);

impl Store {
    /// Creates a store over memory that the caller owns. `kinds` contains the element type of each
    /// region, or is empty. `pinned` declares that the host memory is page-locked, and that each region
    /// is within one allocation.
    ///
    /// # Safety
    /// Every piece of every block is memory of `device` that is readable and writable as long as
    /// `keep_alive` lives. While a call or a transfer reads a block, no other code writes to the block.
    /// While a call or a transfer writes to a block, no other code accesses the block. The store itself
    /// ensures this for its own calls and transfers. The caller orders the accesses of different stores
    /// to the same memory, and every other access to that memory.
    ///
    /// # Errors
    /// [`TransferError::Layout`], [`TransferError::Unavailable`] for a device without a driver,
    /// [`TransferError::Cuda`].
    #[expect(unsafe_code, reason = "the caller vouches for the addresses of the store")]
    pub unsafe fn new(
        regions: Vec<Region>,
        num_blocks: u64,
        device: Device,
        kinds: Vec<Arc<str>>,
        pinned: bool,
        keep_alive: Option<Box<dyn Any + Send + Sync>>,
    ) -> Result<Arc<Self>, TransferError> {
        let mut regions = regions;
        if num_blocks == 1 {
            // With a single block, no address depends on the stride.
            regions.iter_mut().for_each(|region| region.stride = region.nbytes);
        }
        region::check(&regions, num_blocks)?;
        let pinning = if pinned && device == Device::Cpu { Pinning::Owner } else { Pinning::Pageable };
        let packed = packed(&regions, false);
        let mut store = Self::bare(regions, num_blocks, device, kinds, packed);
        store.pinning = pinning;
        store.keep_alive = keep_alive;
        Self::enlist(store)
    }

    /// Creates a store over blocks in a buffer of the engine. It has no handle, so callers cannot find
    /// it.
    pub(crate) fn view(regions: Vec<Region>, num_blocks: u64) -> Self {
        Self::bare(regions, num_blocks, Device::Cpu, Vec::new(), None)
    }

    fn bare(
        regions: Vec<Region>,
        num_blocks: u64,
        device: Device,
        kinds: Vec<Arc<str>>,
        packed: Option<Packed>,
    ) -> Self {
        let mut order: Vec<u32> = (0..regions.len() as u32).collect();
        order.sort_by_key(|&index| regions[index as usize].nbytes);
        let mut groups: Vec<Group> = Vec::new();
        for (row, &index) in order.iter().enumerate() {
            let nbytes = regions[index as usize].nbytes;
            match groups.last_mut() {
                Some(group) if group.nbytes == nbytes => group.rows.end = row + 1,
                _ => groups.push(Group { nbytes, rows: row..row + 1 }),
            }
        }
        Self {
            handle: NEXT_HANDLE.fetch_add(1, Ordering::Relaxed),
            device,
            num_blocks,
            bytes_per_block: regions.iter().map(|region| region.nbytes).sum(),
            regions,
            order,
            groups,
            kinds,
            packed,
            pinning: Pinning::Pageable,
            why_pageable: None,
            closed: AtomicBool::new(false),
            writers: AtomicUsize::new(0),
            captured: AtomicBool::new(false),
            guards: Arc::default(),
            relations: Mutex::default(),
            tables: Mutex::default(),
            registrations: Vec::new(),
            memory: None,
            keep_alive: None,
        }
    }

    /// Registers a store under its handle, and uploads its region table to its device.
    fn enlist(store: Self) -> Result<Arc<Self>, TransferError> {
        if let Device::Cuda(ordinal) = store.device {
            store.table(&Context::of(ordinal)?)?;
        }
        let store = Arc::new(store);
        let mut stores = STORES.write().unwrap_or_else(PoisonError::into_inner);
        stores.insert(store.handle, Arc::downgrade(&store));
        Ok(store)
    }

    /// Returns the store with this handle.
    ///
    /// # Errors
    /// [`TransferError::UnknownStore`].
    pub fn by_handle(handle: i64) -> Result<Arc<Self>, TransferError> {
        let stores = STORES.read().unwrap_or_else(PoisonError::into_inner);
        stores.get(&handle).and_then(Weak::upgrade).ok_or(TransferError::UnknownStore { handle })
    }

    /// Returns the handle of the store. A handle is never used twice within a process.
    #[must_use]
    pub const fn handle(&self) -> i64 {
        self.handle
    }

    /// Returns the device to which the memory of the store belongs.
    #[must_use]
    pub const fn device(&self) -> Device {
        self.device
    }

    /// Returns the number of blocks.
    #[must_use]
    pub const fn num_blocks(&self) -> u64 {
        self.num_blocks
    }

    /// Returns the number of bytes in a block, over all regions.
    #[must_use]
    pub const fn bytes_per_block(&self) -> u64 {
        self.bytes_per_block
    }

    /// Returns the regions of the store.
    #[must_use]
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// Whether the host memory of the store is page-locked.
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        self.pinning != Pinning::Pageable
    }

    /// Returns the reason why a host pool is not page-locked although its settings allow it.
    #[must_use]
    pub fn why_pageable(&self) -> Option<&str> {
        self.why_pageable.as_deref()
    }

    /// Returns the kind of pages of a host pool. `None` if another owner provided the memory.
    #[must_use]
    pub fn pages(&self) -> Option<PageKind> {
        self.memory.as_ref().map(|memory| memory.pages)
    }

    /// Whether each block is one contiguous piece of memory.
    #[must_use]
    pub const fn is_packed(&self) -> bool {
        self.packed.is_some()
    }

    pub(crate) const fn packed(&self) -> Option<&Packed> {
        self.packed.as_ref()
    }

    pub(crate) const fn pinning(&self) -> Pinning {
        self.pinning
    }

    pub(crate) fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// Returns the rows of the region table for those regions of a group whose indices are in `range`.
    /// These rows are consecutive, because the indices within a group ascend.
    pub(crate) fn rows(&self, group: &Group, range: &Range<usize>) -> Range<usize> {
        let members = &self.order[group.rows.clone()];
        let first = members.partition_point(|&index| (index as usize) < range.start);
        let behind = members.partition_point(|&index| (index as usize) < range.end);
        group.rows.start + first..group.rows.start + behind.max(first)
    }

    /// Closes the store, which then refuses new work.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Whether the store was closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub(crate) fn check_open(&self) -> Result<(), TransferError> {
        if self.is_closed() { Err(TransferError::StoreClosed { handle: self.handle }) } else { Ok(()) }
    }

    /// Returns the region table on a device. Uploads the table if the device does not have it yet.
    ///
    /// # Errors
    /// [`TransferError::Cuda`].
    pub(crate) fn table(&self, context: &Arc<Context>) -> Result<Arc<Table>, TransferError> {
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(table) = tables.get(&context.ordinal) {
            return Ok(table.clone());
        }
        let rows = self.in_table_order(&self.regions);
        let table = Arc::new(context.upload(rows, self.device == Device::Cpu)?);
        tables.insert(context.ordinal, table.clone());
        Ok(table)
    }

    /// Iterates over regions in the order of the region table.
    pub(crate) fn in_table_order<'a>(&'a self, regions: &'a [Region]) -> impl Iterator<Item = Region> + 'a {
        self.order.iter().map(|&index| regions[index as usize])
    }

    pub(crate) fn has_table(&self, ordinal: u32) -> bool {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&ordinal)
    }

    /// Returns the bytes of a block of a host store, one region after the other. Waits while a call or
    /// a transfer writes to the block. O(bytes).
    ///
    /// # Errors
    /// [`TransferError::Block`], [`TransferError::StoreClosed`], [`TransferError::Devices`] for a store
    /// on a device.
    #[expect(unsafe_code, reason = "reads the store's own memory")]
    pub fn read_block(&self, block: i64) -> Result<Vec<u8>, TransferError> {
        let block = self.own(block)?;
        let _guard = self.guard(block, false);
        let mut bytes = Vec::with_capacity(self.bytes_per_block as usize);
        for region in &self.regions {
            // SAFETY: `own` checked the block against a host store, and the code that created the store
            // guarantees its memory. No other code writes to the block while the guard lives.
            bytes.extend(unsafe { memory::read(region.at(block), region.nbytes) });
        }
        Ok(bytes)
    }

    /// Writes the bytes of a block of a host store, one region after the other. Waits while a call or a
    /// transfer accesses the block. O(bytes).
    ///
    /// # Errors
    /// Like [`Self::read_block`]; [`TransferError::LayoutMismatch`] for too few or too many bytes.
    #[expect(unsafe_code, reason = "writes the store's own memory")]
    pub fn write_block(&self, block: i64, mut bytes: &[u8]) -> Result<(), TransferError> {
        let block = self.own(block)?;
        if bytes.len() as u64 != self.bytes_per_block {
            let (given, needed) = (bytes.len(), self.bytes_per_block);
            return Err(TransferError::LayoutMismatch(format!("{given} bytes for a block of {needed}")));
        }
        let _guard = self.guard(block, true);
        for region in &self.regions {
            let (piece, rest) = bytes.split_at(region.nbytes as usize);
            // SAFETY: as in `read_block`. No other code accesses the block while the guard lives.
            unsafe { memory::write(region.at(block), piece) };
            bytes = rest;
        }
        Ok(())
    }

    /// Whether a call or a transfer accesses the host memory of the store, so that a copy may have to
    /// wait. A copy by a device is counted until a query finds that it has finished.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.guards.is_busy()
    }

    /// Checks that the store is an open host store that has this block.
    fn own(&self, block: i64) -> Result<u64, TransferError> {
        self.check_open()?;
        if self.device != Device::Cpu {
            return Err(TransferError::Devices { engine: Device::Cpu, src: self.device, dst: Device::Cpu });
        }
        let id = u64::try_from(block).ok().filter(|&id| id < self.num_blocks);
        id.ok_or(TransferError::Block { block, num_blocks: self.num_blocks })
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        STORES.write().unwrap_or_else(PoisonError::into_inner).remove(&self.handle);
    }
}
