//! Objects of the driver: streams, events, memory, registrations, region tables. The `Drop` of each
//! object frees it.
//!
//! A drop ignores errors, because the driver may already be unloaded when a process exits.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Arc;

use super::api::Handle;
use super::context::{Context, StreamHandle};
use crate::error::CudaError;
use crate::memory::Span;
use crate::region::Region;

#[derive(Debug)]
pub(crate) struct Stream {
    context: Arc<Context>,
    raw: Handle,
}

// SAFETY: driver handles may be used by any thread.
unsafe impl Send for Stream {}
// SAFETY: several threads may use driver handles at the same time, because the driver does its own
// locking.
unsafe impl Sync for Stream {}

impl Stream {
    const NON_BLOCKING: u32 = 1;

    /// Creates a stream that does not wait for the legacy default stream. It has the lowest priority,
    /// so the model's kernels run before it.
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self, CudaError> {
        let _current = context.enter()?;
        let api = context.api;
        let (mut lowest, mut highest, mut raw) = (0, 0, null_mut());
        // SAFETY: the variables to which the driver writes outlive the calls.
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
            // SAFETY: the stream belongs to this object. The driver finishes the work that is on it.
            unsafe { (self.context.api.stream_destroy)(self.raw) };
        }
    }
}

#[derive(Debug)]
pub(crate) struct Event {
    context: Arc<Context>,
    raw: Handle,
}

// SAFETY: driver handles may be used by any thread.
unsafe impl Send for Event {}
// SAFETY: several threads may use driver handles at the same time, because the driver does its own
// locking.
unsafe impl Sync for Event {}

impl Event {
    const NOT_READY: i32 = 600;

    pub(crate) fn record(context: &Arc<Context>, stream: StreamHandle) -> Result<Self, CudaError> {
        let _current = context.enter()?;
        let api = context.api;
        let mut raw = null_mut();
        // SAFETY: the variable to which the driver writes outlives the call.
        context.note(unsafe { (api.event_create)(&raw mut raw, 0) }, "cuEventCreate")?;
        let event = Self { context: context.clone(), raw };
        // SAFETY: the event belongs to this object; the caller ensures that the stream exists.
        context.note(unsafe { (api.event_record)(raw, stream.raw()) }, "cuEventRecord")?;
        Ok(event)
    }

    /// Whether this event was not recorded in the capture of `stream`. A stream that is being captured
    /// cannot wait for such an event.
    pub(crate) fn is_outside_of(&self, stream: StreamHandle) -> Result<bool, CudaError> {
        self.context.is_capturing(stream)
    }

    pub(crate) fn let_follow(&self, stream: StreamHandle) -> Result<(), CudaError> {
        self.context.wait(stream, self.raw as u64)
    }

    /// Whether the work before the event has finished.
    pub(crate) fn is_done(&self) -> Result<bool, CudaError> {
        let _current = self.context.enter()?;
        // SAFETY: the event belongs to this object.
        match unsafe { (self.context.api.event_query)(self.raw) } {
            Self::NOT_READY => Ok(false),
            code => self.context.note(code, "cuEventQuery").map(|()| true),
        }
    }

    /// Waits until the work before the event has finished.
    pub(crate) fn synchronize(&self) -> Result<(), CudaError> {
        let _current = self.context.enter()?;
        // SAFETY: the event belongs to this object.
        self.context.note(unsafe { (self.context.api.event_synchronize)(self.raw) }, "cuEventSynchronize")
    }

    /// Returns the seconds since an earlier event, or 0 if the driver cannot measure them. Both events
    /// must have finished.
    pub(crate) fn seconds_since(&self, start: &Self) -> f64 {
        let mut milliseconds = 0.0_f32;
        let Ok(_current) = self.context.enter() else { return 0.0 };
        // SAFETY: both events are alive, and the output outlives the call.
        let code = unsafe { (self.context.api.event_elapsed)(&raw mut milliseconds, start.raw, self.raw) };
        if code == 0 { f64::from(milliseconds) / 1e3 } else { 0.0 }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(_current) = self.context.enter() {
            // SAFETY: the event belongs to this object; the driver keeps the parts that it still needs.
            unsafe { (self.context.api.event_destroy)(self.raw) };
        }
    }
}

#[derive(Debug)]
pub(crate) struct DeviceMemory {
    context: Arc<Context>,
    pub(crate) address: u64,
}

impl DeviceMemory {
    pub(crate) fn new(context: &Arc<Context>, nbytes: u64) -> Result<Self, CudaError> {
        let _current = context.enter()?;
        let mut address = 0;
        // SAFETY: the variable to which the driver writes outlives the call.
        context.note(unsafe { (context.api.alloc)(&raw mut address, nbytes as usize) }, "cuMemAlloc")?;
        Ok(Self { context: context.clone(), address })
    }

    /// Copies words of this process to the memory. When this returns, the bytes are on the device.
    pub(crate) fn fill(&self, words: &[u64]) -> Result<(), CudaError> {
        let nbytes = size_of_val(words) as u64;
        let span = Span { src: words.as_ptr() as u64, dst: self.address, nbytes };
        // A copy from pageable memory may arrive after its call has returned, and the engine's streams
        // do not wait for the default stream. A kernel that is launched now could then read the old
        // content. Therefore the copy is enqueued on a separate stream, and this function waits for
        // that stream.
        let uploads = self.context.uploads();
        self.context.memcpy(uploads, &[span])?;
        self.context.synchronize(uploads)
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if let Ok(_current) = self.context.enter() {
            // SAFETY: the memory belongs to this object; the driver waits for work that uses it.
            unsafe { (self.context.api.free)(self.address) };
        }
    }
}

/// Page-locked memory that the driver allocated and that devices can access.
#[derive(Debug)]
pub(crate) struct PinnedMemory {
    context: Arc<Context>,
    pointer: *mut c_void,
    /// The address at which devices access the memory.
    pub(crate) device_address: u64,
}

// SAFETY: this is plain memory; the code that uses its address orders its accesses.
unsafe impl Send for PinnedMemory {}
// SAFETY: as above.
unsafe impl Sync for PinnedMemory {}

impl PinnedMemory {
    const PORTABLE_AND_MAPPED: u32 = 1 | 2;

    pub(crate) fn new(context: &Arc<Context>, nbytes: u64) -> Result<Self, CudaError> {
        let _current = context.enter()?;
        let api = context.api;
        let mut pointer = null_mut();
        // SAFETY: the variable to which the driver writes outlives the call.
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
            // SAFETY: the memory belongs to this object.
            unsafe { (self.context.api.host_free)(self.pointer) };
        }
    }
}

/// Page-locks host memory. Dropping the registration unlocks it.
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
        // SAFETY: the range is a mapping of the store. The store unmaps it after this registration was
        // dropped.
        let code = unsafe { (api.host_register)(pointer, nbytes as usize, Self::PORTABLE_AND_MAPPED) };
        context.note(code, "cuMemHostRegister")?;
        Ok(Self { context: context.clone(), address })
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Ok(_current) = self.context.enter() {
            // SAFETY: `new` registered the address.
            unsafe { (self.context.api.host_unregister)(self.address as *mut c_void) };
        }
    }
}

/// The region table of a store, in memory that kernels can read. For each region, it contains the
/// address of block 0, and the distance in bytes from one block to the next (the stride).
#[derive(Debug)]
pub(crate) struct Table {
    pub(super) memory: DeviceMemory,
    /// Bitwise OR of all addresses and strides. The number of its trailing zero bits limits the width
    /// of memory accesses.
    pub(super) alignment: u64,
}

impl Context {
    pub(crate) fn register(self: &Arc<Self>, address: u64, nbytes: u64) -> Result<Registration, CudaError> {
        Registration::new(self, address, nbytes)
    }

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
