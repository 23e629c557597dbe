//! `Store`: the blocks of one tier as a list of regions.
//!
//! Owns: the regions, whoever keeps their memory alive, the memory itself if it is a host pool of ours, its registrations with
//! the driver, and the table of regions that kernels read on a device. A store is named by its handle, and lives until its
//! last transfer has ended; closing it refuses new work.
//!
//! Costs: O(regions log regions) to make; looking up a handle takes some 20 ns.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, RwLock, Weak};

use hashbrown::HashMap;

use crate::driver::{Context, Registration, Table};
use crate::error::TransferError;
use crate::memory::{self, HostMemory, PageKind};
use crate::region::{self, Region};

/// Where memory lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Device {
    /// In this process.
    Cpu,
    /// On a CUDA device, by its number.
    Cuda(u32),
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

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

/// How the memory of two stores lies to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Relation {
    /// They share no byte.
    Apart,
    /// Block for block the same memory.
    Same,
    /// They see some memory differently.
    Entangled,
}

/// Regions of equal length: one kernel launch copies them together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    /// Bytes of each piece.
    pub(crate) nbytes: u64,
    /// Its part of the region table.
    pub(crate) rows: Range<usize>,
}

/// How host memory is page-locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pinning {
    /// It is not.
    Pageable,
    /// By its owner, each region within one registration.
    Owner,
    /// By this store, so many blocks per registration.
    Registered { blocks: u32 },
}

/// Which part of a block-first layout each region has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Packed {
    /// Address of block 0.
    pub(crate) base: u64,
    /// Bytes from block to block.
    pub(crate) stride: u64,
    /// Bytes of a block.
    pub(crate) nbytes: u64,
    /// Where each region begins within a block.
    pub(crate) offsets: Vec<u64>,
    /// Whether the holes between regions and blocks are nobody's, and may be overwritten.
    pub(crate) owned: bool,
}

/// Which NUMA node a host pool is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumaNode {
    /// None.
    Any,
    /// The one nearest to the device that the pool is for, if the driver knows it.
    Near,
    /// This one.
    Node(u32),
}

/// How to make a host pool.
#[derive(Clone, Debug)]
pub struct HostOptions {
    /// Page-lock its memory: `None` if possible.
    pub pinned: Option<bool>,
    /// Bind it to a NUMA node.
    pub numa_node: NumaNode,
    /// Back it by huge pages, if there are any.
    pub hugepages: bool,
    /// Bytes that one call may page-lock.
    pub registration_limit: u64,
}

impl Default for HostOptions {
    /// One registration of 512 GiB fails where eight of 64 GiB succeed (vLLM PR 51081).
    fn default() -> Self {
        Self { pinned: None, numa_node: NumaNode::Any, hugepages: false, registration_limit: 64 << 30 }
    }
}

/// Blocks of one tier.
pub struct Store {
    handle: i64,
    device: Device,
    num_blocks: u64,
    bytes_per_block: u64,
    regions: Vec<Region>,
    /// Region indices in the order of the region table: by length, then by index.
    order: Vec<u32>,
    groups: Vec<Group>,
    /// What the elements are, per region, if known: a copy between different ones is a mistake.
    kinds: Vec<Arc<str>>,
    packed: Option<Packed>,
    pinning: Pinning,
    why_pageable: Option<String>,
    closed: AtomicBool,
    /// Transfers under way that write to it.
    pub(crate) writers: AtomicUsize,
    /// A graph may write to it at any time.
    pub(crate) captured: AtomicBool,
    relations: Mutex<HashMap<i64, Relation>>,
    tables: Mutex<HashMap<u32, Arc<Table>>>,
    // Dropped in this order: registrations before their memory.
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

/// Alignment of regions within the blocks of a host pool, and of the blocks themselves: whole registrations are whole pages.
const REGION_ALIGN: u64 = 16;
const BLOCK_ALIGN: u64 = 512;
const PAGE: u64 = 4096;

impl Store {
    /// A store of memory that somebody else owns. `kinds` names the elements of each region, or is empty; `pinned` says that
    /// host memory is page-locked, each region within one allocation.
    ///
    /// # Safety
    /// Every piece of every block is memory of `device`, readable and writable as long as `keep_alive` lives.
    ///
    /// # Errors
    /// [`TransferError::Layout`], [`TransferError::Unavailable`] for a device without a driver, [`TransferError::Cuda`].
    #[expect(unsafe_code, reason = "whoever makes a store vouches for its addresses")]
    pub unsafe fn new(
        regions: Vec<Region>,
        num_blocks: u64,
        device: Device,
        kinds: Vec<Arc<str>>,
        pinned: bool,
        keep_alive: Option<Box<dyn Any + Send + Sync>>,
    ) -> Result<Arc<Self>, TransferError> {
        region::check(&regions, num_blocks)?;
        let pinning = if pinned && device == Device::Cpu { Pinning::Owner } else { Pinning::Pageable };
        let packed = packed(&regions, false);
        let mut store = Self::bare(regions, num_blocks, device, kinds, packed);
        store.pinning = pinning;
        store.keep_alive = keep_alive;
        Self::enlist(store)
    }

    /// A host pool of `num_blocks` blocks with the regions of `like`, each block in one piece. Its memory is taken, and
    /// page-locked, here. Page-locking takes some 0.1 s per GB.
    ///
    /// # Errors
    /// [`TransferError::HostMemory`]; [`TransferError::Pinning`] if page-locking was asked for and is refused.
    pub fn host(num_blocks: u64, like: &Self, options: &HostOptions) -> Result<Arc<Self>, TransferError> {
        let mut offset = 0_u64;
        let mut offsets = Vec::with_capacity(like.regions.len());
        for region in &like.regions {
            offsets.push(offset);
            offset = (offset + region.nbytes).next_multiple_of(REGION_ALIGN);
        }
        let stride = offset.next_multiple_of(BLOCK_ALIGN);
        let bytes =
            num_blocks.checked_mul(stride).filter(|_| num_blocks > 0 && num_blocks <= i32::MAX as u64);
        let Some(bytes) = bytes else {
            return Err(TransferError::Layout(format!(
                "a store of {num_blocks} blocks of {stride} bytes: it has 1 to {} blocks",
                i32::MAX
            )));
        };
        let node = match (options.numa_node, like.device) {
            (NumaNode::Node(node), _) => Some(node),
            (NumaNode::Near, Device::Cuda(ordinal)) => Context::of(ordinal)?.numa_node,
            _ => None,
        };
        let memory = HostMemory::new(bytes, options.hugepages, node)?;
        let base = memory.address();
        let regions: Vec<_> = like
            .regions
            .iter()
            .zip(&offsets)
            .map(|(region, offset)| Region { base: base + offset, stride, nbytes: region.nbytes })
            .collect();
        let packed = packed(&regions, true);
        let mut store = Self::bare(regions, num_blocks, Device::Cpu, like.kinds.clone(), packed);
        if options.pinned != Some(false) {
            match pin(like.device, base, num_blocks, stride, options.registration_limit) {
                Ok((blocks, registrations)) => {
                    store.pinning = Pinning::Registered { blocks };
                    store.registrations = registrations;
                }
                Err(error) if options.pinned == Some(true) => return Err(error),
                Err(error) => store.why_pageable = Some(error.to_string()),
            }
        }
        store.memory = Some(memory);
        Self::enlist(store)
    }

    /// Blocks of a buffer of ours, without a handle.
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
            relations: Mutex::default(),
            tables: Mutex::default(),
            registrations: Vec::new(),
            memory: None,
            keep_alive: None,
        }
    }

    /// Enters a store into the register of handles, its region table on its device.
    fn enlist(store: Self) -> Result<Arc<Self>, TransferError> {
        if let Device::Cuda(ordinal) = store.device {
            store.table(&Context::of(ordinal)?)?;
        }
        let store = Arc::new(store);
        let mut stores = STORES.write().unwrap_or_else(PoisonError::into_inner);
        stores.insert(store.handle, Arc::downgrade(&store));
        Ok(store)
    }

    /// The store with this handle.
    ///
    /// # Errors
    /// [`TransferError::UnknownStore`].
    pub fn by_handle(handle: i64) -> Result<Arc<Self>, TransferError> {
        let stores = STORES.read().unwrap_or_else(PoisonError::into_inner);
        stores.get(&handle).and_then(Weak::upgrade).ok_or(TransferError::UnknownStore { handle })
    }

    /// Its handle: never used twice within a process.
    #[must_use]
    pub const fn handle(&self) -> i64 {
        self.handle
    }

    /// Where its memory lives.
    #[must_use]
    pub const fn device(&self) -> Device {
        self.device
    }

    /// Blocks.
    #[must_use]
    pub const fn num_blocks(&self) -> u64 {
        self.num_blocks
    }

    /// Bytes of a block over all regions.
    #[must_use]
    pub const fn bytes_per_block(&self) -> u64 {
        self.bytes_per_block
    }

    /// Its regions.
    #[must_use]
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// Whether its host memory is page-locked.
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        self.pinning != Pinning::Pageable
    }

    /// Why a host pool is not page-locked although that was not forbidden.
    #[must_use]
    pub fn why_pageable(&self) -> Option<&str> {
        self.why_pageable.as_deref()
    }

    /// The pages of a host pool of ours.
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

    /// Indices of a group's regions, those within `range`: ascending, so that they are consecutive rows of the table.
    pub(crate) fn rows(&self, group: &Group, range: &Range<usize>) -> Range<usize> {
        let members = &self.order[group.rows.clone()];
        let first = members.partition_point(|&index| (index as usize) < range.start);
        let behind = members.partition_point(|&index| (index as usize) < range.end);
        group.rows.start + first..group.rows.start + behind.max(first)
    }

    /// Refuses new work.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Whether it was closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Refuses if it was closed.
    pub(crate) fn check_open(&self) -> Result<(), TransferError> {
        if self.is_closed() { Err(TransferError::StoreClosed { handle: self.handle }) } else { Ok(()) }
    }

    /// Refuses if blocks of the two stores differ.
    pub(crate) fn check_alike(&self, dst: &Self) -> Result<(), TransferError> {
        let refuse = |what: String| Err(TransferError::LayoutMismatch(what));
        if self.regions.len() != dst.regions.len() {
            let (src, dst) = (self.regions.len(), dst.regions.len());
            return refuse(format!("the source has {src} regions, the destination {dst}"));
        }
        // Equal groups in equal order mean equal lengths region by region, which is cheap to see.
        if self.groups != dst.groups || self.order != dst.order {
            let pieces = self.regions.iter().zip(&dst.regions).enumerate();
            let differ = pieces.into_iter().find(|(_, (src, dst))| src.nbytes != dst.nbytes);
            if let Some((index, (src, dst))) = differ {
                let (src, dst) = (src.nbytes, dst.nbytes);
                return refuse(format!(
                    "region {index} has {src} bytes in the source, {dst} in the destination"
                ));
            }
        }
        let differ = self.kinds.iter().zip(&dst.kinds).enumerate().find(|(_, (src, dst))| src != dst);
        if let Some((index, (src, dst))) = differ {
            return refuse(format!("region {index} is of {src} in the source, of {dst} in the destination"));
        }
        Ok(())
    }

    /// How its memory lies to that of another store. O(1) if asked before.
    pub(crate) fn relation(&self, other: &Self) -> Relation {
        if self.handle == other.handle {
            return Relation::Same;
        }
        if self.device != other.device {
            return Relation::Apart;
        }
        let mut relations = self.relations.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&known) = relations.get(&other.handle) {
            return known;
        }
        // Handles are never used twice, so what is known stays true; stores that come and go leave a bounded trace.
        if relations.len() >= 64 {
            relations.clear();
        }
        let relation = self.compare(other);
        relations.insert(other.handle, relation);
        relation
    }

    fn compare(&self, other: &Self) -> Relation {
        if self.regions == other.regions {
            return Relation::Same;
        }
        let extents = |store: &Self| {
            let ends = store.regions.iter().map(|region| (region.base, region.end(store.num_blocks)));
            let mut extents: Vec<_> = ends.collect();
            extents.sort_unstable();
            extents
        };
        let theirs = extents(other);
        let mut next = 0;
        let mut reach = 0;
        for (base, end) in extents(self) {
            while next < theirs.len() && theirs[next].0 < end {
                reach = reach.max(theirs[next].1);
                next += 1;
            }
            if reach > base {
                return Relation::Entangled;
            }
        }
        Relation::Apart
    }

    /// The region table on a device, uploaded if it is not there yet.
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

    /// Regions like its own, in the order of the region table.
    pub(crate) fn in_table_order<'a>(&'a self, regions: &'a [Region]) -> impl Iterator<Item = Region> + 'a {
        self.order.iter().map(|&index| regions[index as usize])
    }

    /// Whether the region table is on a device.
    pub(crate) fn has_table(&self, ordinal: u32) -> bool {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&ordinal)
    }

    /// The bytes of a block of a host store, region by region. O(bytes).
    ///
    /// # Errors
    /// [`TransferError::BlockIndex`], [`TransferError::StoreClosed`], [`TransferError::Devices`] for a store on a device.
    #[expect(unsafe_code, reason = "reads the store's own memory")]
    pub fn read_block(&self, block: i64) -> Result<Vec<u8>, TransferError> {
        let block = self.own(block, crate::error::End::Source)?;
        let mut bytes = Vec::with_capacity(self.bytes_per_block as usize);
        for region in &self.regions {
            // SAFETY: `own` checked the block against a host store that whoever made it vouches for.
            bytes.extend(unsafe { memory::read(region.at(block), region.nbytes) });
        }
        Ok(bytes)
    }

    /// Writes the bytes of a block of a host store, region by region. O(bytes).
    ///
    /// # Errors
    /// As [`Self::read_block`]; [`TransferError::LayoutMismatch`] for too few or too many bytes.
    #[expect(unsafe_code, reason = "writes the store's own memory")]
    pub fn write_block(&self, block: i64, mut bytes: &[u8]) -> Result<(), TransferError> {
        let block = self.own(block, crate::error::End::Destination)?;
        if bytes.len() as u64 != self.bytes_per_block {
            let (given, needed) = (bytes.len(), self.bytes_per_block);
            return Err(TransferError::LayoutMismatch(format!("{given} bytes for a block of {needed}")));
        }
        for region in &self.regions {
            let (piece, rest) = bytes.split_at(region.nbytes as usize);
            // SAFETY: as in `read_block`.
            unsafe { memory::write(region.at(block), piece) };
            bytes = rest;
        }
        Ok(())
    }

    /// A block of a host store that is open.
    fn own(&self, block: i64, end: crate::error::End) -> Result<u64, TransferError> {
        self.check_open()?;
        if self.device != Device::Cpu {
            return Err(TransferError::Devices { engine: Device::Cpu, src: self.device, dst: Device::Cpu });
        }
        let id = u64::try_from(block).ok().filter(|&id| id < self.num_blocks);
        id.ok_or(TransferError::BlockIndex { position: 0, end, block, num_blocks: self.num_blocks })
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        STORES.write().unwrap_or_else(PoisonError::into_inner).remove(&self.handle);
    }
}

/// Whether regions make up contiguous blocks; only the owner of the memory may have holes in them, which staging overwrites.
fn packed(regions: &[Region], owned: bool) -> Option<Packed> {
    let stride = regions.first()?.stride;
    let base = regions.iter().map(|region| region.base).min()?;
    let end = regions.iter().map(|region| region.base + region.nbytes).max()?;
    let bytes: u64 = regions.iter().map(|region| region.nbytes).sum();
    let nbytes = end - base;
    let whole = owned || nbytes == bytes;
    (whole && nbytes <= stride && regions.iter().all(|region| region.stride == stride)).then(|| Packed {
        base,
        stride,
        nbytes,
        offsets: regions.iter().map(|region| region.base - base).collect(),
        owned,
    })
}

/// Page-locks a pool for the device of the store that it is made for, in parts that end with whole blocks and whole pages.
fn pin(
    device: Device,
    base: u64,
    num_blocks: u64,
    stride: u64,
    limit: u64,
) -> Result<(u32, Vec<Registration>), TransferError> {
    let bytes = num_blocks * stride;
    let refuse = |reason: String| TransferError::Pinning { bytes, reason };
    let Device::Cuda(ordinal) = device else {
        return Err(refuse("it is for a store on the cpu".into()));
    };
    let context = Context::of(ordinal).map_err(|error| refuse(error.to_string()))?;
    // Blocks are multiples of 512 bytes, so 8 of them end with a page.
    let per_page = PAGE / BLOCK_ALIGN;
    let blocks =
        (limit / stride / per_page * per_page).clamp(per_page, num_blocks.next_multiple_of(per_page));
    if context.needs_device_pointers && blocks < num_blocks {
        return Err(refuse("this device takes one registration only, and it would exceed the limit".into()));
    }
    let mut registrations = Vec::new();
    let mut first = 0;
    while first < num_blocks {
        let count = blocks.min(num_blocks - first);
        let registration = context.register(base + first * stride, count * stride);
        registrations.push(registration.map_err(|error| refuse(error.to_string()))?);
        first += count;
    }
    Ok((blocks as u32, registrations))
}
