//! `Context`: one device, with the kernels loaded on it.
//!
//! Owns: the primary context (which torch uses, too), the loaded kernels, and the status word in which
//! kernels report bad ids. A context also records a sticky error, which is an error after which every
//! call of the driver fails. Later work is then refused with the original error as the cause.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError};

use hashbrown::HashMap;

use super::api::{Api, Code, Handle, api};
use super::objects::PinnedMemory;
use crate::error::{CudaError, TransferError, Unavailable};
use crate::words::Device;

/// Compiled kernels for every device since Turing, and PTX for later devices. `cuda/build_fatbin.py`
/// builds this file.
static FATBIN: &[u8] = include_bytes!("../../../../cuda/block_copy.fatbin");

/// A stream of the caller or of the engine. The values 0 and 1 mean the legacy default stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamHandle(u64);

impl StreamHandle {
    /// Returns the stream with this driver handle (`torch.cuda.Stream.cuda_stream`).
    #[must_use]
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    pub(super) const fn raw(self) -> Handle {
        self.0 as Handle
    }

    pub(crate) const fn is_legacy(self) -> bool {
        self.0 <= 1
    }
}

/// One CUDA device.
#[derive(Debug)]
pub(crate) struct Context {
    pub(super) api: &'static Api,
    raw: Handle,
    pub(crate) ordinal: u32,
    pub(crate) name: String,
    /// Address of the device on the PCI bus.
    pub(crate) pci: String,
    /// The driver's version: 1000 * major + 10 * minor.
    pub(crate) driver_version: i32,
    /// The host's NUMA node nearest to the device, if the driver knows it.
    pub(crate) numa_node: Option<u32>,
    /// Whether the device can access pageable host memory coherently.
    pub(crate) coherent: bool,
    /// Whether page-locked host memory has a different address on the device.
    pub(crate) needs_device_pointers: bool,
    pub(super) kernels: [Handle; 4],
    /// A stream for uploads of small tables to the device. Each upload waits until it has finished.
    uploads: Handle,
    pub(super) status: OnceLock<PinnedMemory>,
    lost: Mutex<Option<CudaError>>,
}

// SAFETY: driver handles may be used by any thread that has made the context current.
unsafe impl Send for Context {}
// SAFETY: several threads may use driver handles at the same time, because the driver does its own
// locking.
unsafe impl Sync for Context {}

impl std::fmt::Debug for Api {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Api(version={})", self.version)
    }
}

/// While this guard exists, the context is current for this thread. Dropping the guard restores the
/// former context and capture mode. The guard also relaxes the thread's capture mode, because in
/// torch's mode even a query of an event would invalidate the capture of a graph.
pub(crate) struct Current<'a> {
    context: &'a Context,
    former: Handle,
    former_mode: c_int,
}

/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: c_int = 2;

impl Drop for Current<'_> {
    fn drop(&mut self) {
        let api = self.context.api;
        // SAFETY: `former_mode` is the mode that this thread had before, and outlives the call.
        unsafe { (api.capture_mode)(&raw mut self.former_mode) };
        if self.former != self.context.raw {
            // SAFETY: the driver returned this context as the current one in `enter`.
            unsafe { (api.context_set)(self.former) };
        }
    }
}

static CONTEXTS: LazyLock<Mutex<HashMap<u32, Arc<Context>>>> = LazyLock::new(Mutex::default);

/// Converts a buffer into which a driver call wrote text.
fn text(bytes: &[u8]) -> String {
    CStr::from_bytes_until_nul(bytes).map(|text| text.to_string_lossy().into_owned()).unwrap_or_default()
}

impl Context {
    /// Returns the device with the number `ordinal`. It is opened once per process.
    ///
    /// # Errors
    /// [`TransferError::Unavailable`]; [`TransferError::Cuda`] if the kernels cannot be loaded.
    pub(crate) fn of(ordinal: u32) -> Result<Arc<Self>, TransferError> {
        let api = api()?;
        let mut contexts = CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(context) = contexts.get(&ordinal) {
            return Ok(context.clone());
        }
        let context = Self::open(api, ordinal)?;
        // The status word is in mapped host memory. The context owns this memory. Like the context, it
        // is never freed.
        let status = PinnedMemory::new(&context, 64)?;
        // SAFETY: these 64 bytes were just allocated, and no other code has their address.
        unsafe { crate::memory::write(status.address(), &[0; 64]) };
        context.status.get_or_init(|| status);
        contexts.insert(ordinal, context.clone());
        Ok(context)
    }

    fn open(api: &'static Api, ordinal: u32) -> Result<Arc<Self>, TransferError> {
        let mut count = 0;
        // SAFETY: the variable to which the driver writes outlives the call.
        api.check(unsafe { (api.device_count)(&raw mut count) }, "cuDeviceGetCount")?;
        let devices = u32::try_from(count).unwrap_or(0);
        if ordinal >= devices {
            return Err(Unavailable::NoDevice { ordinal, devices }.into());
        }
        let (mut device, mut raw): (c_int, Handle) = (0, null_mut());
        let (mut name, mut pci) = ([0_u8; 256], [0_u8; 64]);
        // SAFETY: the variables to which the driver writes outlive the calls, and have the lengths that are
        // passed.
        unsafe {
            api.check((api.device_get)(&raw mut device, ordinal as c_int), "cuDeviceGet")?;
            api.check((api.device_name)(name.as_mut_ptr().cast(), 256, device), "cuDeviceGetName")?;
            api.check((api.device_pci)(pci.as_mut_ptr().cast(), 64, device), "cuDeviceGetPCIBusId")?;
            api.check((api.primary_retain)(&raw mut raw, device), "cuDevicePrimaryCtxRetain")?;
        }
        let attribute = |id: c_int| {
            let mut value = 0;
            // SAFETY: the variable to which the driver writes outlives the call.
            let code = unsafe { (api.device_attribute)(&raw mut value, id, device) };
            // An older driver may not know this attribute. Treat it as 0, as if the device did not have the
            // property.
            if code == 0 { value } else { 0 }
        };
        let numa_node = u32::try_from(attribute(134)).ok().filter(|_| api.version >= 12_020);
        let mut context = Self {
            api,
            raw,
            ordinal,
            name: text(&name),
            pci: text(&pci),
            driver_version: api.version,
            numa_node,
            coherent: attribute(100) == 1,
            needs_device_pointers: attribute(91) == 0,
            kernels: [null_mut(); 4],
            uploads: null_mut(),
            status: OnceLock::new(),
            lost: Mutex::new(None),
        };
        context.load_kernels()?;
        Ok(Arc::new(context))
    }

    /// Loads the kernels and creates the stream for uploads. Both exist until the process ends.
    fn load_kernels(&mut self) -> Result<(), CudaError> {
        let mut library = null_mut();
        let current = self.enter()?;
        let api = current.context.api;
        let mut kernels = [null_mut(); 4];
        let names = [c"kvpool_copy_16", c"kvpool_copy_8", c"kvpool_copy_4", c"kvpool_copy_1"];
        let none = null_mut();
        // SAFETY: the image is a fat binary that knows its own length; the options are empty; the
        // outputs outlive the calls.
        unsafe {
            let image = FATBIN.as_ptr().cast::<c_void>();
            let code = (api.library_load)(&raw mut library, image, none, none, 0, none, none, 0);
            api.check(code, "cuLibraryLoadData")?;
            for (kernel, name) in kernels.iter_mut().zip(names) {
                api.check((api.library_kernel)(kernel, library, name.as_ptr()), "cuLibraryGetKernel")?;
            }
        }
        let mut uploads = null_mut();
        const NON_BLOCKING: u32 = 1;
        // SAFETY: the variable to which the driver writes outlives the call.
        let code = unsafe { (api.stream_create)(&raw mut uploads, NON_BLOCKING, 0) };
        api.check(code, "cuStreamCreateWithPriority")?;
        drop(current);
        (self.kernels, self.uploads) = (kernels, uploads);
        Ok(())
    }

    pub(crate) fn enter(&self) -> Result<Current<'_>, CudaError> {
        let api = self.api;
        let mut former = null_mut();
        // SAFETY: the variable to which the driver writes outlives the call.
        self.note(unsafe { (api.context_get)(&raw mut former) }, "cuCtxGetCurrent")?;
        if former != self.raw {
            // SAFETY: the primary context is retained and never released.
            self.note(unsafe { (api.context_set)(self.raw) }, "cuCtxSetCurrent")?;
        }
        let mut mode = RELAXED;
        // SAFETY: `mode` outlives the call, which exchanges it with the thread's mode.
        self.note(unsafe { (api.capture_mode)(&raw mut mode) }, "cuThreadExchangeStreamCaptureMode")?;
        Ok(Current { context: self, former, former_mode: mode })
    }

    /// Converts a result code into a result, and records a sticky error.
    pub(super) fn note(&self, code: Code, call: &'static str) -> Result<(), CudaError> {
        self.api.check(code, call).inspect_err(|error| {
            if error.is_sticky() {
                self.lost.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| error.clone());
            }
        })
    }

    pub(crate) fn check_alive(&self) -> Result<(), TransferError> {
        match &*self.lost.lock().unwrap_or_else(PoisonError::into_inner) {
            None => Ok(()),
            Some(cause) => {
                Err(TransferError::Poisoned { device: Device::Cuda(self.ordinal), cause: cause.clone() })
            }
        }
    }

    pub(super) fn uploads(&self) -> StreamHandle {
        StreamHandle(self.uploads as u64)
    }

    /// Whether the driver has `cuMemcpyBatchAsync`, which copies many pieces per call.
    pub(crate) const fn has_batch(&self) -> bool {
        self.api.batch.is_some()
    }

    /// Whether a stream is being captured into a graph.
    pub(crate) fn is_capturing(&self, stream: StreamHandle) -> Result<bool, CudaError> {
        let _current = self.enter()?;
        let mut status = 0;
        // SAFETY: the output outlives the call; the caller ensures that the stream exists.
        let code = unsafe { (self.api.stream_capturing)(stream.raw(), &raw mut status) };
        self.note(code, "cuStreamIsCapturing")?;
        Ok(status != 0)
    }

    /// Whether an event was recorded while a stream was captured into a graph. Handle 0 stands for no
    /// event.
    pub(crate) fn is_captured(&self, event: u64) -> Result<bool, CudaError> {
        const CAPTURED_EVENT: Code = 907;
        const NOT_READY: Code = 600;
        if event == 0 {
            return Ok(false);
        }
        let _current = self.enter()?;
        // SAFETY: the caller ensures that the event exists.
        match unsafe { (self.api.event_query)(event as Handle) } {
            CAPTURED_EVENT => Ok(true),
            NOT_READY => Ok(false),
            code => self.note(code, "cuEventQuery").map(|()| false),
        }
    }

    pub(crate) fn wait(&self, stream: StreamHandle, event: u64) -> Result<(), CudaError> {
        let _current = self.enter()?;
        // SAFETY: the caller ensures that the stream and the event exist.
        self.note(unsafe { (self.api.stream_wait)(stream.raw(), event as Handle, 0) }, "cuStreamWaitEvent")
    }

    pub(crate) fn synchronize(&self, stream: StreamHandle) -> Result<(), CudaError> {
        let _current = self.enter()?;
        // SAFETY: the stream exists: the engine owns it, or its caller does.
        self.note(unsafe { (self.api.stream_synchronize)(stream.raw()) }, "cuStreamSynchronize")
    }

    /// Returns the address at which the device accesses page-locked host memory.
    pub(crate) fn device_pointer(&self, address: u64) -> Result<u64, CudaError> {
        let _current = self.enter()?;
        let mut seen = 0;
        // SAFETY: the variable to which the driver writes outlives the call.
        let code = unsafe { (self.api.host_device_pointer)(&raw mut seen, address as *mut c_void, 0) };
        self.note(code, "cuMemHostGetDevicePointer").map(|()| seen)
    }

    /// Returns whether a kernel has found an id out of range in the rows of a device mapping since the
    /// last call.
    pub(crate) fn take_status(&self) -> bool {
        let Some(status) = self.status.get() else { return false };
        // SAFETY: the 64 aligned bytes live as long as the context. Kernels write to them with
        // whole-word stores, and the threads of engines access them through this atomic.
        unsafe { AtomicU32::from_ptr(status.address() as *mut u32) }.swap(0, Ordering::AcqRel) != 0
    }
}
