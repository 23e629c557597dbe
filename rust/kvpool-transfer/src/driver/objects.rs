//! What the driver hands out, each freed by its `Drop`: streams, events, memory, registrations, region
//! tables.
//!
//! A drop cannot report an error and must not wait for one: at the end of a process the driver may be
//! gone before these are.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Arc;

use super::api::Handle;
use super::context::{Context, StreamHandle};
use crate::error::CudaError;
use crate::memory::Span;
use crate::region::Region;

/// A stream of the engine's own.
#[derive(Debug)]
pub(crate) struct Stream {
    context: Arc<Context>,
    raw: Handle,
}

// SAFETY: driver handles may be used by any thread.
unsafe impl Send for Stream {}
// SAFETY: as above; the driver locks.
unsafe impl Sync for Stream {}

impl Stream {
    const NON_BLOCKING: u32 = 1;

    /// A stream that does not wait for the legacy default stream, at the lowest priority: the model's
    /// kernels go first.
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self, CudaError> {
        let _current = context.enter()?;
        let api = context.api;
        let (mut lowest, mut highest, mut raw) = (0, 0, null_mut());
        // SAFETY: the outputs outlive the calls.
        unsafe {
            api.check(
                (api.priority_range)(&raw mut lowest, &raw mut highest),
                "cuCtxGetStreamPriorityRange",
            )?;
            let code = (api.stream_create)(&raw mut raw, Self::NON_BLOCKING, lowest);
            api.check(code, "cuStreamCreateWithPriority")?;
        }
        Ok(Self { context: context.clone(), raw })
    }

    pub(crate) fn handle(&self) -> StreamHandle {
        StreamHandle::from_raw(self.raw as u64)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Ok(_current) = self.context.enter() {
            // SAFETY: the stream is ours; work that it holds is finished by the driver.
            unsafe { (self.context.api.stream_destroy)(self.raw) };
        }
    }
}

/// An event that takes the time.
#[derive(Debug)]
pub(crate) struct Event {
    context: Arc<Context>,
    raw: Handle,
}

// SAFETY: driver handles may be used by any thread.
unsafe impl Send for Event {}
// SAFETY: as above; the driver locks.
unsafe impl Sync for Event {}

impl Event {
    const NOT_READY: i32 = 600;

    /// An event recorded on a stream.
    pub(crate) fn record(context: &Arc<Context>, stream: StreamHandle) -> Result<Self, CudaError> {
        let _current = context.enter()?;
        let api = context.api;
        let mut raw = null_mut();
        // SAFETY: the output outlives the call.
        context.note(unsafe { (api.event_create)(&raw mut raw, 0) }, "cuEventCreate")?;
        let event = Self { context: context.clone(), raw };
        // SAFETY: the event is ours; whoever names a stream vouches for it.
        context.note(unsafe { (api.event_record)(raw, stream.raw()) }, "cuEventRecord")?;
        Ok(event)
    }

    /// Whether a stream is being captured, and so cannot wait for an event from outside of the capture.
    pub(crate) fn is_outside_of(&self, stream: StreamHandle) -> Result<bool, CudaError> {
        self.context.is_capturing(stream)
    }

    /// Makes a stream wait for it.
    pub(crate) fn let_follow(&self, stream: StreamHandle) -> Result<(), CudaError> {
        self.context.wait(stream, self.raw as u64)
    }

    /// Whether the work before it has ended.
    pub(crate) fn is_done(&self) -> Result<bool, CudaError> {
        let _current = self.context.enter()?;
        // SAFETY: the event is ours.
        match unsafe { (self.context.api.event_query)(self.raw) } {
            Self::NOT_READY => Ok(false),
            code => self.context.note(code, "cuEventQuery").map(|()| true),
        }
    }

    /// Waits until the work before it has ended.
    pub(crate) fn synchronize(&self) -> Result<(), CudaError> {
        let _current = self.context.enter()?;
        // SAFETY: the event is ours.
        self.context.note(unsafe { (self.context.api.event_synchronize)(self.raw) }, "cuEventSynchronize")
    }

    /// Seconds since an earlier event; both have ended.
    pub(crate) fn seconds_since(&self, start: &Self) -> f64 {
        let mut milliseconds = 0.0_f32;
        let Ok(_current) = self.context.enter() else { return 0.0 };
        // SAFETY: both events are ours, the output outlives the call.
        let code = unsafe { (self.context.api.event_elapsed)(&raw mut milliseconds, start.raw, self.raw) };
        if code == 0 { f64::from(milliseconds) / 1e3 } else { 0.0 }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(_current) = self.context.enter() {
            // SAFETY: the event is ours; the driver keeps what it still needs of it.
            unsafe { (self.context.api.event_destroy)(self.raw) };
        }
    }
}

/// Memory on a device.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    context: Arc<Context>,
    pub(crate) address: u64,
}

impl DeviceMemory {
    pub(crate) fn new(context: &Arc<Context>, nbytes: u64) -> Result<Self, CudaError> {
        let _current = context.enter()?;
        let mut address = 0;
        // SAFETY: the output outlives the call.
        context.note(unsafe { (context.api.alloc)(&raw mut address, nbytes as usize) }, "cuMemAlloc")?;
        Ok(Self { context: context.clone(), address })
    }

    /// Fills it from this process; the bytes are there on return.
    pub(crate) fn fill(&self, words: &[u64]) -> Result<(), CudaError> {
        let nbytes = size_of_val(words) as u64;
        let span = Span { src: words.as_ptr() as u64, dst: self.address, nbytes };
        // A copy from pageable memory may arrive after its call, and streams of ours do not wait for
        // the default stream: a kernel launched now could read what was there before. So it goes on a
        // stream that is waited for.
        let uploads = self.context.uploads();
        self.context.memcpy(uploads, &[span])?;
        self.context.synchronize(uploads)
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if let Ok(_current) = self.context.enter() {
            // SAFETY: the memory is ours; the driver waits for work that uses it.
            unsafe { (self.context.api.free)(self.address) };
        }
    }
}

/// Page-locked memory of the driver's, which devices reach.
#[derive(Debug)]
pub(crate) struct PinnedMemory {
    context: Arc<Context>,
    pointer: *mut c_void,
    /// Where devices see it.
    pub(crate) device_address: u64,
}

// SAFETY: plain memory; whoever uses its address keeps order.
unsafe impl Send for PinnedMemory {}
// SAFETY: as above.
unsafe impl Sync for PinnedMemory {}

impl PinnedMemory {
    const PORTABLE_AND_MAPPED: u32 = 1 | 2;

    pub(crate) fn new(context: &Arc<Context>, nbytes: u64) -> Result<Self, CudaError> {
        let _current = context.enter()?;
        let api = context.api;
        let mut pointer = null_mut();
        // SAFETY: the output outlives the call.
        let code = unsafe { (api.host_alloc)(&raw mut pointer, nbytes as usize, Self::PORTABLE_AND_MAPPED) };
        context.note(code, "cuMemHostAlloc")?;
        let mut memory = Self { context: context.clone(), pointer, device_address: 0 };
        memory.device_address = context.device_pointer(pointer as u64)?;
        Ok(memory)
    }

    pub(crate) fn address(&self) -> u64 {
        self.pointer as u64
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        if let Ok(_current) = self.context.enter() {
            // SAFETY: the memory is ours.
            unsafe { (self.context.api.host_free)(self.pointer) };
        }
    }
}

/// Host memory that is page-locked as long as this lives.
#[derive(Debug)]
pub(crate) struct Registration {
    context: Arc<Context>,
    address: u64,
}

impl Registration {
    const PORTABLE_AND_MAPPED: u32 = 1 | 2;

    fn new(context: &Arc<Context>, address: u64, nbytes: u64) -> Result<Self, CudaError> {
        let _current = context.enter()?;
        let api = context.api;
        let pointer = address as *mut c_void;
        // SAFETY: the range is a mapping that the store owns, and unmaps after this was dropped.
        let code = unsafe { (api.host_register)(pointer, nbytes as usize, Self::PORTABLE_AND_MAPPED) };
        context.note(code, "cuMemHostRegister")?;
        Ok(Self { context: context.clone(), address })
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Ok(_current) = self.context.enter() {
            // SAFETY: registered by `new`.
            unsafe { (self.context.api.host_unregister)(self.address as *mut c_void) };
        }
    }
}

/// The regions of a store, where kernels read them: address of block 0 and stride of each.
#[derive(Debug)]
pub(crate) struct Table {
    pub(super) memory: DeviceMemory,
    /// All addresses and strides, or-ed: what they have in common with a power of two decides how wide
    /// accesses can be.
    pub(super) alignment: u64,
}

impl Context {
    /// Page-locks memory of a store's.
    pub(crate) fn register(self: &Arc<Self>, address: u64, nbytes: u64) -> Result<Registration, CudaError> {
        Registration::new(self, address, nbytes)
    }

    /// Uploads a region table.
    pub(crate) fn upload(
        self: &Arc<Self>,
        regions: impl Iterator<Item = Region>,
        on_host: bool,
    ) -> Result<Table, CudaError> {
        let mut rows = Vec::new();
        for region in regions {
            let base = if on_host { self.device_pointer(region.base)? } else { region.base };
            rows.extend([base, region.stride]);
        }
        let memory = DeviceMemory::new(self, size_of_val(rows.as_slice()) as u64)?;
        memory.fill(&rows)?;
        Ok(Table { memory, alignment: rows.iter().fold(0, |bits, &row| bits | row) })
    }
}
