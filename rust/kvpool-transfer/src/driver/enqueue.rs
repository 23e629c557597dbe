//! Enqueues work on a stream: kernel launches, and copies by the copy engine.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::ptr::null_mut;

use super::api::BatchAttributes;
use super::context::{Context, StreamHandle};
use super::objects::Table;
use crate::error::CudaError;
use crate::memory::Span;
use crate::words::Pair;

/// Largest number of pairs that fit into the parameters of one kernel launch.
pub(crate) const MAX_PAIRS: usize = 480;

/// Largest number of descriptors in a batched call. A driver crashed with 51,828 descriptors (vLLM
/// #49276).
const MAX_DESCRIPTORS: usize = 4096;

/// The parameters of the kernels, as `block_copy.cu` declares them.
#[repr(C)]
struct Params {
    src_planes: u64,
    dst_planes: u64,
    nbytes: i64,
    chunk_bytes: i64,
    device_pairs: u64,
    src_blocks: i64,
    dst_blocks: i64,
    status: u64,
    num_planes: i32,
    num_pairs: i32,
    num_chunks: i32,
    reserved: i32,
    pairs: [[i32; 2]; MAX_PAIRS],
}

const _: () = assert!(size_of::<Params>() == 80 + 8 * MAX_PAIRS, "the layout of block_copy.cu");

/// The source or the destination of a kernel copy: the region table and the number of blocks of its
/// store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Side<'a> {
    pub(crate) table: &'a Table,
    pub(crate) num_blocks: u64,
}

/// The blocks that a kernel copies.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Blocks<'a> {
    /// Checked pairs, which are passed to the kernel as parameters.
    Pairs(&'a [Pair]),
    /// `n` rows of two 64-bit block ids in device memory. The kernel checks the ids.
    OnDevice { address: u64, n: u64 },
}

/// The number and size of the thread blocks that a kernel may use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    /// Largest number of thread blocks. `threads` is the number of threads in each.
    pub(crate) ctas: u32,
    pub(crate) threads: u32,
    /// Number of bytes that a thread block copies at a time.
    pub(crate) chunk: u64,
}

impl Grid {
    /// The grid for copies within a device. It has one thread block per chunk, and the smallest thread
    /// blocks that fill a multiprocessor. Persistent thread blocks, which copy several chunks one after
    /// the other, are 5 to 10 % slower (`benches/results/gpu.md`).
    pub(crate) const ON_DEVICE: Self = Self { ctas: i32::MAX as u32, threads: 64, chunk: 8 << 10 };

    /// Returns the grid for copies over the link between host and device. A few thread blocks with many
    /// threads saturate the link.
    pub(crate) const fn link(ctas: u32) -> Self {
        Self { ctas, threads: 512, chunk: 16 << 10 }
    }
}

impl Context {
    /// Launches the kernels that copy the regions with the indices `rows` between two stores. Each
    /// region has `nbytes` bytes per block.
    pub(crate) fn launch(
        &self,
        stream: StreamHandle,
        grid: Grid,
        [src, dst]: [Side<'_>; 2],
        rows: Range<usize>,
        nbytes: u64,
        blocks: Blocks<'_>,
    ) -> Result<(), CudaError> {
        let status = self.status.get().map_or(0, |status| status.device_address);
        let bits = src.table.alignment | dst.table.alignment | nbytes;
        let kernel_index = match bits.trailing_zeros() {
            4.. => 0,
            3 => 1,
            2 => 2,
            _ => 3,
        };
        let kernel = self.kernels[kernel_index];
        let width = [16, 8, 4, 1][kernel_index];
        let chunk_bytes = nbytes.min(grid.chunk).next_multiple_of(16);
        // With four accesses per thread, a small piece needs only a few threads. Use more and smaller
        // thread blocks in that case.
        let threads = (chunk_bytes / width / 4).next_multiple_of(32).clamp(32, grid.threads.into()) as u32;
        let most = grid.ctas.max(1).saturating_mul(grid.threads / threads).min(Grid::ON_DEVICE.ctas);
        let num_chunks = nbytes.div_ceil(chunk_bytes);
        // A row of the region table is two numbers of 8 bytes each.
        let first_row = rows.start as u64 * 16;
        let mut params = Params {
            src_planes: src.table.memory.address + first_row,
            dst_planes: dst.table.memory.address + first_row,
            nbytes: nbytes as i64,
            chunk_bytes: chunk_bytes as i64,
            device_pairs: 0,
            src_blocks: src.num_blocks as i64,
            dst_blocks: dst.num_blocks as i64,
            status,
            num_planes: rows.len() as i32,
            num_pairs: 0,
            num_chunks: num_chunks as i32,
            reserved: 0,
            pairs: [[-1; 2]; MAX_PAIRS],
        };
        let go = |params: &mut Params| {
            let work = params.num_pairs as u64 * rows.len() as u64 * num_chunks;
            let ctas = work.clamp(1, most.into()) as u32;
            let mut arguments = [(&raw mut *params).cast::<c_void>()];
            let api = self.api;
            // SAFETY: the kernel's only parameter is a `Params`, which it gets by value. The tables,
            // stores and streams exist.
            let code = unsafe {
                let none = null_mut();
                (api.launch)(kernel, ctas, 1, 1, threads, 1, 1, 0, stream.raw(), arguments.as_mut_ptr(), none)
            };
            self.note(code, "cuLaunchKernel")
        };
        let _current = self.enter()?;
        match blocks {
            Blocks::OnDevice { address, n } => {
                params.device_pairs = address;
                params.num_pairs = n as i32;
                go(&mut params)
            }
            Blocks::Pairs(pairs) => pairs.chunks(MAX_PAIRS).try_for_each(|part| {
                for (slot, pair) in params.pairs.iter_mut().zip(part) {
                    *slot = [pair.src as i32, pair.dst as i32];
                }
                params.num_pairs = part.len() as i32;
                go(&mut params)
            }),
        }
    }

    /// Copies spans (contiguous pieces of memory) with the copy engine, using one call per span.
    pub(crate) fn memcpy(&self, stream: StreamHandle, spans: &[Span]) -> Result<(), CudaError> {
        let _current = self.enter()?;
        let api = self.api;
        spans.iter().try_for_each(|span| {
            // SAFETY: the spans are in memory of stores, which live until the copy has ended.
            let code = unsafe { (api.memcpy)(span.dst, span.src, span.nbytes as usize, stream.raw()) };
            self.note(code, "cuMemcpyAsync")
        })
    }

    /// Copies spans with the copy engine, with thousands of spans per call. If `any_order` is true, the
    /// copy engine may read sources before earlier work on the stream has finished.
    pub(crate) fn batch(
        &self,
        stream: StreamHandle,
        spans: &[Span],
        any_order: bool,
    ) -> Result<(), CudaError> {
        const IN_STREAM_ORDER: c_int = 1;
        const IN_ANY_ORDER: c_int = 3;
        const OVERLAP_WITH_COMPUTE: u32 = 1;
        let Some(batch) = self.api.batch else { return self.memcpy(stream, spans) };
        let _current = self.enter()?;
        let (mut sources, mut targets, mut sizes) = (Vec::new(), Vec::new(), Vec::new());
        for part in spans.chunks(MAX_DESCRIPTORS) {
            sources.clear();
            targets.clear();
            sizes.clear();
            for span in part {
                sources.push(span.src);
                targets.push(span.dst);
                sizes.push(span.nbytes as usize);
            }
            let source_order = if any_order { IN_ANY_ORDER } else { IN_STREAM_ORDER };
            let mut attributes =
                BatchAttributes { source_order, flags: OVERLAP_WITH_COMPUTE, ..BatchAttributes::default() };
            // All spans have the same copy attributes. So the array of attributes has one item, which applies
            // from span `first` = 0 on.
            let (mut first, mut failed) = (0_usize, 0_usize);
            // SAFETY: the arrays have `part.len()` entries each and are read during the call only.
            let code = unsafe {
                batch(
                    targets.as_mut_ptr(),
                    sources.as_mut_ptr(),
                    sizes.as_mut_ptr(),
                    part.len(),
                    &raw mut attributes,
                    &raw mut first,
                    1,
                    &raw mut failed,
                    stream.raw(),
                )
            };
            self.note(code, "cuMemcpyBatchAsync")?;
        }
        Ok(())
    }
}
