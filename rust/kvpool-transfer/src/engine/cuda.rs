//! The device side of an engine: per direction, one stream for the link, one stream for the kernels of
//! staged copies, and staging buffers.
//!
//! A staged copy alternates between two buffers: while the copy engine moves one buffer, a kernel fills
//! or empties the other. A buffer is written again only after the event that marks the end of its last
//! use.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use hashbrown::HashMap;

use super::job::{Job, Shape};
use crate::driver::{Blocks, Context, DeviceMemory, Event, Grid, Side, Stream, StreamHandle, Table};
use crate::error::{CudaError, TransferError};
use crate::memory::Span;
use crate::planner::{Direction, Question};
use crate::runs::{cut, runs, singles};
use crate::store::{Pinning, Store};
use crate::words::{DeviceMapping, Method, Pair};

/// A staging buffer on the device, and the event that marks the end of its last use.
struct Slot {
    memory: DeviceMemory,
    free: Option<Arc<Event>>,
}

/// The streams and staging buffers of one direction.
struct Lane {
    link: Stream,
    /// The stream for the kernels of staged copies. The copy engine has its own stream (`link`).
    beside: Stream,
    slots: Vec<Slot>,
    slot_bytes: u64,
    next: usize,
    /// For each host store, by its handle, and for each buffer: the region table of the store's blocks
    /// in that buffer.
    layouts: HashMap<i64, (Weak<Store>, Vec<Table>)>,
}

/// Number of staging buffers per direction. The engine moves one while it fills the other.
pub(super) const SLOTS: usize = 2;

impl Lane {
    fn new(context: &Arc<Context>) -> Result<Self, CudaError> {
        Ok(Self {
            link: Stream::new(context)?,
            beside: Stream::new(context)?,
            slots: Vec::new(),
            slot_bytes: 0,
            next: 0,
            layouts: HashMap::new(),
        })
    }

    /// Creates the buffers of this direction, and the region tables of the host store's blocks in them,
    /// if they are missing or too small.
    fn prepare(
        &mut self,
        context: &Arc<Context>,
        host: &Arc<Store>,
        shape: &Shape,
        slot_bytes: u64,
    ) -> Result<(), CudaError> {
        if self.slots.is_empty() || self.slot_bytes < slot_bytes {
            // Free the old buffers before the new ones are allocated, because there may not be enough
            // memory for both.
            self.layouts.clear();
            self.slots.clear();
            let make = |_| Ok(Slot { memory: DeviceMemory::new(context, slot_bytes)?, free: None });
            self.slots = (0..SLOTS).map(make).collect::<Result<_, CudaError>>()?;
            self.slot_bytes = slot_bytes;
        }
        if !self.layouts.contains_key(&host.handle()) {
            self.layouts.retain(|_, (store, _)| store.strong_count() > 0);
            let tables = self.slots.iter().map(|slot| {
                let regions = shape.regions(host, slot.memory.address);
                context.upload(host.in_table_order(&regions), false)
            });
            let tables = tables.collect::<Result<_, _>>()?;
            self.layouts.insert(host.handle(), (Arc::downgrade(host), tables));
        }
        Ok(())
    }
}

/// The device side of an engine. A lock of the engine protects it.
pub(super) struct Cuda {
    pub(super) context: Arc<Context>,
    on_device: Stream,
    to_device: Lane,
    to_host: Lane,
    staging_bytes: u64,
}

/// How to enqueue a job: direction, method and stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    pub(super) direction: Direction,
    pub(super) method: Method,
    /// The caller's stream. `None` means a stream of the engine.
    pub(super) inline: Option<StreamHandle>,
    /// True if no unfinished work writes to the source.
    pub(super) settled: bool,
    /// Number of thread blocks of a kernel that copies over the link between host and device.
    pub(super) link_ctas: u32,
}

/// Launches the kernels of a job: one launch for up to 480 pairs of blocks, and separate launches for
/// regions of different length.
fn launch(
    context: &Context,
    stream: StreamHandle,
    grid: Grid,
    sides: [Side<'_>; 2],
    job: &Job,
    blocks: Blocks<'_>,
) -> Result<(), CudaError> {
    for group in job.src.groups() {
        let rows = job.src.rows(group, &job.range);
        if !rows.is_empty() {
            context.launch(stream, grid, sides, rows, group.nbytes, blocks)?;
        }
    }
    Ok(())
}

impl Cuda {
    pub(super) fn new(context: Arc<Context>, staging_bytes: u64) -> Result<Self, CudaError> {
        Ok(Self {
            on_device: Stream::new(&context)?,
            to_device: Lane::new(&context)?,
            to_host: Lane::new(&context)?,
            context,
            staging_bytes,
        })
    }

    const fn lane(&mut self, direction: Direction) -> &mut Lane {
        match direction {
            Direction::ToHost => &mut self.to_host,
            _ => &mut self.to_device,
        }
    }

    /// Returns the engine's stream for a direction.
    pub(super) fn stream(&self, direction: Direction) -> StreamHandle {
        match direction {
            Direction::OnDevice => self.on_device.handle(),
            Direction::ToDevice => self.to_device.link.handle(),
            Direction::ToHost => self.to_host.link.handle(),
        }
    }

    /// Collects the properties of a job that determine the planner's choice.
    pub(super) fn question(
        &self,
        job: &Job,
        direction: Direction,
        inline: Option<StreamHandle>,
        capturing: bool,
    ) -> Question {
        let host = (direction != Direction::OnDevice).then(|| job.host());
        // A part of the regions is one contiguous piece of each block only if the offsets of the
        // regions ascend.
        let packed = |host: &Arc<Store>| {
            let packed = host.packed();
            packed.is_some_and(|it| job.range.len() == it.offsets.len() || it.offsets.is_sorted())
        };
        Question {
            direction,
            // Within a device, the planner does not need the number of descriptors, so do not count
            // them. Counting may require a sort.
            descriptors: if host.is_some() { job.num_spans() } else { job.pairs.len() as u64 },
            bytes: job.nbytes(),
            pinned: host.is_none_or(|host| host.is_pinned()),
            packed: host.is_some_and(packed),
            has_batch: self.context.has_batch(),
            capturing,
            legacy_stream: inline.is_some_and(StreamHandle::is_legacy),
            coherent: self.context.coherent,
            inline: inline.is_some(),
        }
    }

    /// Enqueues a copy. If an error occurs halfway, waits until the enqueued part has finished.
    pub(super) fn enqueue(&mut self, job: &Job, way: Way) -> Result<(), TransferError> {
        self.context.check_alive()?;
        self.try_enqueue(job, way).inspect_err(|_| self.drain(way.direction, way.inline))
    }

    /// Waits until the streams of a direction, or the caller's stream, are idle. After that, no
    /// enqueued work uses a store.
    pub(super) fn drain(&mut self, direction: Direction, inline: Option<StreamHandle>) {
        let stream = inline.unwrap_or_else(|| self.stream(direction));
        let beside = self.lane(direction).beside.handle();
        for stream in [stream, beside] {
            // Ignore errors: if the context was lost, there is no work to wait for.
            let _ = self.context.synchronize(stream);
        }
    }

    fn try_enqueue(&mut self, job: &Job, way: Way) -> Result<(), TransferError> {
        let stream = way.inline.unwrap_or_else(|| self.stream(way.direction));
        match way.method {
            Method::Staged => self.staged(job, way),
            Method::Kernel => self.kernel(stream, job, way, Blocks::Pairs(&job.pairs)),
            Method::Batch => {
                let ours = matches!(job.src.pinning(), Pinning::Registered { .. });
                let any_order = way.direction == Direction::ToDevice
                    && way.inline.is_none()
                    && way.settled
                    && ours
                    && !job.src.captured.load(Ordering::Acquire);
                Ok(self.context.batch(stream, &job.spans(), any_order)?)
            }
            _ => Ok(self.context.memcpy(stream, &job.spans())?),
        }
    }

    /// Enqueues a copy on the caller's stream. The block ids are in `mapping`, which is memory of the
    /// device.
    pub(super) fn enqueue_mapped(
        &self,
        job: &Job,
        way: Way,
        stream: StreamHandle,
        mapping: DeviceMapping,
    ) -> Result<(), TransferError> {
        let DeviceMapping { address, rows, .. } = mapping;
        self.kernel(stream, job, way, Blocks::OnDevice { address, n: rows })
    }

    /// Enqueues kernels that copy the blocks of a job.
    fn kernel(
        &self,
        stream: StreamHandle,
        job: &Job,
        way: Way,
        blocks: Blocks<'_>,
    ) -> Result<(), TransferError> {
        let (src, dst) = (job.src.table(&self.context)?, job.dst.table(&self.context)?);
        let sides = [
            Side { table: &src, num_blocks: job.src.num_blocks() },
            Side { table: &dst, num_blocks: job.dst.num_blocks() },
        ];
        let grid = match way.direction {
            Direction::OnDevice => Grid::ON_DEVICE,
            _ => Grid::link(way.link_ctas),
        };
        Ok(launch(&self.context, stream, grid, sides, job, blocks)?)
    }

    /// Returns the number of bytes in a staging buffer. It has room for at least one block of this
    /// shape.
    pub(super) fn slot_bytes(&self, shape: &Shape) -> u64 {
        self.staging_bytes.max(shape.stride)
    }

    /// Copies all blocks of a job between the device and a pinned host store, through the staging
    /// buffers.
    fn staged(&mut self, job: &Job, way: Way) -> Result<(), TransferError> {
        let shape = Shape::of(job.host());
        let per_slot = (self.slot_bytes(&shape) / shape.stride) as usize;
        let host = job.host().clone();
        let (offset, nbytes) = shape.part(&host, &job.range);
        let base = host.packed().map_or(0, |packed| packed.base);
        let merge = shape.whole && job.range.len() == host.regions().len();
        self.begin(way)?;
        let mut order = job.pairs.to_vec();
        let to_host = way.direction == Direction::ToHost;
        order.sort_unstable_by_key(|pair| if to_host { pair.dst } else { pair.src });
        for part in order.chunks(per_slot) {
            let spans = |slot: u64| {
                // Pair each block of the host store with its position in the staging buffer.
                let places = part.iter().enumerate().map(|(place, pair)| {
                    let block = if to_host { pair.dst } else { pair.src };
                    Pair { src: block, dst: place as u32 }
                });
                let places: Vec<_> = places.collect();
                let mut parts = if merge { runs(&places) } else { singles(&places) };
                if let Pinning::Registered { blocks } = host.pinning() {
                    parts = cut(&parts, blocks, |run| run.src);
                }
                let span = |run: crate::runs::Run| {
                    let outer = base + u64::from(run.src) * shape.stride + offset;
                    let inner = slot + u64::from(run.dst) * shape.stride + offset;
                    let nbytes = u64::from(run.len - 1) * shape.stride + nbytes;
                    if to_host {
                        Span { src: inner, dst: outer, nbytes }
                    } else {
                        Span { src: outer, dst: inner, nbytes }
                    }
                };
                parts.into_iter().map(span).collect::<Vec<_>>()
            };
            self.stage(job, way, &shape, part, spans)?;
        }
        if way.inline.is_none() && !to_host {
            let lane = self.lane(way.direction);
            for slot in &lane.slots {
                if let Some(free) = &slot.free {
                    free.let_follow(lane.link.handle())?;
                }
            }
        }
        Ok(())
    }

    /// Prepares a staged copy to the host. The stream of its kernels waits for the work for which the
    /// stream of the copy engine already waits.
    pub(super) fn begin(&mut self, way: Way) -> Result<(), TransferError> {
        if way.inline.is_none() && way.direction == Direction::ToHost {
            let lane = &self.to_host;
            Event::record(&self.context, lane.link.handle())?.let_follow(lane.beside.handle())?;
        }
        Ok(())
    }

    /// Copies a part of a job that fits into one staging buffer, and returns the event at its end.
    /// `spans` is called with the buffer's address and returns the pieces for the copy engine.
    pub(super) fn stage(
        &mut self,
        job: &Job,
        way: Way,
        shape: &Shape,
        part: &[Pair],
        spans: impl FnOnce(u64) -> Vec<Span>,
    ) -> Result<Arc<Event>, TransferError> {
        let context = self.context.clone();
        let slot_bytes = self.slot_bytes(shape);
        let host = job.host().clone();
        let to_host = way.direction == Direction::ToHost;
        let lane = self.lane(way.direction);
        lane.prepare(&context, &host, shape, slot_bytes)?;
        let index = lane.next;
        lane.next = (index + 1) % SLOTS;
        let (link, beside) = match way.inline {
            Some(stream) => (stream, stream),
            None => (lane.link.handle(), lane.beside.handle()),
        };
        let address = lane.slots[index].memory.address;
        let spans = spans(address);
        let first = if to_host { beside } else { link };
        let second = if to_host { link } else { beside };
        if let Some(free) = &lane.slots[index].free {
            free.let_follow(first)?;
        }
        let dma = |stream: StreamHandle| match context.has_batch() && !stream.is_legacy() {
            true => context.batch(stream, &spans, false),
            false => context.memcpy(stream, &spans),
        };
        if !to_host {
            dma(first)?;
            if first != second {
                Event::record(&context, first)?.let_follow(second)?;
            }
        }
        let device = if to_host { &job.src } else { &job.dst };
        let table = device.table(&context)?;
        let lane = self.lane(way.direction);
        let slot_side = Side { table: &lane.layouts[&host.handle()].1[index], num_blocks: part.len() as u64 };
        let device_side = Side { table: &table, num_blocks: device.num_blocks() };
        let places = part.iter().enumerate().map(|(place, pair)| {
            let place = place as u32;
            if to_host { Pair { src: pair.src, dst: place } } else { Pair { src: place, dst: pair.dst } }
        });
        let places: Vec<_> = places.collect();
        let sides = if to_host { [device_side, slot_side] } else { [slot_side, device_side] };
        let kernels = if to_host { first } else { second };
        launch(&context, kernels, Grid::ON_DEVICE, sides, job, Blocks::Pairs(&places))?;
        if to_host {
            if first != second {
                Event::record(&context, first)?.let_follow(second)?;
            }
            dma(second)?;
        }
        let free = Arc::new(Event::record(&context, second)?);
        self.lane(way.direction).slots[index].free = Some(free.clone());
        Ok(free)
    }
}
