//! Pools of host memory, page-locked if possible.

use std::sync::Arc;

use super::packed::packed;
use super::{Pinning, Store};
use crate::driver::{Context, Registration};
use crate::error::TransferError;
use crate::memory::HostMemory;
use crate::region::Region;
use crate::words::Device;

/// The NUMA node of a host pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumaNode {
    /// No particular node.
    Any,
    /// The node nearest to the pool's device, if the driver knows this node.
    Near,
    /// The node with this number.
    Node(u32),
}

/// Settings of a host pool.
#[derive(Clone, Debug)]
pub struct HostOptions {
    /// Whether to page-lock the memory. `None` means that the pool tries to page-lock it, and also
    /// works if this fails.
    pub pinned: Option<bool>,
    /// The NUMA node of the memory.
    pub numa_node: NumaNode,
    /// Whether to use huge pages, if the system has some.
    pub hugepages: bool,
    /// Largest number of bytes that one call to the driver page-locks.
    pub registration_limit: u64,
}

impl Default for HostOptions {
    /// Returns the defaults. They page-lock at most 64 GiB per call: one registration of 512 GiB fails,
    /// and eight of 64 GiB succeed (vLLM PR 51081).
    fn default() -> Self {
        Self { pinned: None, numa_node: NumaNode::Any, hugepages: false, registration_limit: 64 << 30 }
    }
}

/// Alignment of regions within the blocks of a host pool. Blocks have a larger alignment, so that each
/// registration consists of whole pages.
const REGION_ALIGN: u64 = 16;
const BLOCK_ALIGN: u64 = 512;
const PAGE: u64 = 4096;

impl Store {
    /// Creates a host pool of `num_blocks` blocks that have the same regions as `like`. Each block is
    /// contiguous. This call allocates and page-locks the memory. Page-locking takes about 0.1 s per
    /// GB.
    ///
    /// # Errors
    /// [`TransferError::HostMemory`]; [`TransferError::Pinning`] if page-locking was requested and the
    /// driver refuses it.
    pub fn host(num_blocks: u64, like: &Self, options: &HostOptions) -> Result<Arc<Self>, TransferError> {
        let mut end = Some(0_u64);
        let mut offsets = Vec::with_capacity(like.regions.len());
        for region in &like.regions {
            offsets.push(end.unwrap_or(0));
            end = end.and_then(|end| end.checked_add(region.nbytes)?.checked_next_multiple_of(REGION_ALIGN));
        }
        let stride = end.and_then(|end| end.checked_next_multiple_of(BLOCK_ALIGN));
        if num_blocks == 0 || num_blocks > i32::MAX as u64 {
            return Err(TransferError::Layout(format!(
                "a store of {num_blocks} blocks: it has 1 to {}",
                i32::MAX
            )));
        }
        let Some(bytes) = stride.and_then(|stride| num_blocks.checked_mul(stride)) else {
            let reason = format!("{num_blocks} blocks of this size exceed the address space");
            return Err(TransferError::HostMemory { bytes: u64::MAX, reason });
        };
        let stride = bytes / num_blocks;
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
}

/// Page-locks a pool for the device that copies to and from it. Each call page-locks a part that ends
/// at the end of a block and of a page.
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
        return Err(refuse("the pool is for a store on the cpu".into()));
    };
    let context = Context::of(ordinal).map_err(|error| refuse(error.to_string()))?;
    // The size of a block is a multiple of 512 bytes, so 8 blocks always end at a page boundary.
    let per_page = PAGE / BLOCK_ALIGN;
    let blocks =
        (limit / stride / per_page * per_page).clamp(per_page, num_blocks.next_multiple_of(per_page));
    if context.needs_device_pointers && blocks < num_blocks {
        return Err(refuse(
            "this device supports only one registration, and it would exceed the limit".into(),
        ));
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
