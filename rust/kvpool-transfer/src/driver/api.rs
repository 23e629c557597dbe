//! Looks up the functions of the CUDA driver at run time.
//!
//! Nothing links to CUDA. The library is loaded at the first request for a device, so that one binary
//! runs with every driver from 12.0 on, and also without a driver. `cuMemcpyBatchAsync` needs driver
//! 12.8 and is optional. It is looked up with its version, because a lookup by name alone would find a
//! later signature.

use std::error::Error as _;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use libloading::Library;

use crate::error::{CudaError, Unavailable};

pub(super) type Handle = *mut c_void;
pub(super) type Code = c_int;

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Location {
    kind: c_int,
    id: c_int,
}

/// `CUmemcpyAttributes`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BatchAttributes {
    pub(super) source_order: c_int,
    pub(super) source_hint: Location,
    pub(super) destination_hint: Location,
    pub(super) flags: c_uint,
}

/// Signature of `cuMemcpyBatchAsync` in driver 12.8.
pub(super) type BatchFn = unsafe extern "C" fn(
    *mut u64,
    *mut u64,
    *mut usize,
    usize,
    *mut BatchAttributes,
    *mut usize,
    usize,
    *mut usize,
    Handle,
) -> Code;

/// Declares the table of functions and the code that loads it, from one list of fields, symbols and
/// arguments.
macro_rules! table {
    ($($field:ident = $symbol:literal ($($argument:ty),*);)*) => {
        /// The driver's functions.
        pub(super) struct Api {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) -> Code,)*
            pub(super) batch: Option<BatchFn>,
            pub(super) version: i32,
            // The functions stay valid while the library is loaded. It is never unloaded.
            _library: Library,
        }

        impl Api {
            fn load(name: &str) -> Result<Self, Unavailable> {
                // SAFETY: the CUDA driver's initialisers have no requirements on their loader.
                let library = unsafe { Library::new(name) }.map_err(|error| Unavailable::NoLibrary {
                    library: name.to_owned(),
                    reason: error.source().map_or_else(|| error.to_string(), ToString::to_string),
                })?;
                $(
                    // SAFETY: the signature is that of cuda.h for this symbol, unchanged since it was
                    // introduced.
                    let $field = *unsafe {
                        library.get::<unsafe extern "C" fn($($argument),*) -> Code>($symbol.as_bytes())
                    }
                    .map_err(|_| Unavailable::MissingSymbol { library: name.to_owned(), symbol: $symbol })?;
                )*
                Ok(Self { $($field,)* batch: None, version: 0, _library: library })
            }
        }
    };
}

table! {
    init = "cuInit" (c_uint);
    driver_version = "cuDriverGetVersion" (*mut c_int);
    error_name = "cuGetErrorName" (Code, *mut *const c_char);
    proc_address = "cuGetProcAddress_v2" (*const c_char, *mut Handle, c_int, u64, *mut c_int);
    device_count = "cuDeviceGetCount" (*mut c_int);
    device_get = "cuDeviceGet" (*mut c_int, c_int);
    device_name = "cuDeviceGetName" (*mut c_char, c_int, c_int);
    device_attribute = "cuDeviceGetAttribute" (*mut c_int, c_int, c_int);
    device_pci = "cuDeviceGetPCIBusId" (*mut c_char, c_int, c_int);
    primary_retain = "cuDevicePrimaryCtxRetain" (*mut Handle, c_int);
    context_get = "cuCtxGetCurrent" (*mut Handle);
    context_set = "cuCtxSetCurrent" (Handle);
    priority_range = "cuCtxGetStreamPriorityRange" (*mut c_int, *mut c_int);
    library_load = "cuLibraryLoadData" (*mut Handle, *const c_void, *mut c_void, *mut c_void, c_uint,
        *mut c_void, *mut c_void, c_uint);
    library_kernel = "cuLibraryGetKernel" (*mut Handle, Handle, *const c_char);
    launch = "cuLaunchKernel" (Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle,
        *mut *mut c_void, *mut *mut c_void);
    memcpy = "cuMemcpyAsync" (u64, u64, usize, Handle);
    alloc = "cuMemAlloc_v2" (*mut u64, usize);
    free = "cuMemFree_v2" (u64);
    host_alloc = "cuMemHostAlloc" (*mut *mut c_void, usize, c_uint);
    host_free = "cuMemFreeHost" (*mut c_void);
    host_register = "cuMemHostRegister_v2" (*mut c_void, usize, c_uint);
    host_unregister = "cuMemHostUnregister" (*mut c_void);
    host_device_pointer = "cuMemHostGetDevicePointer_v2" (*mut u64, *mut c_void, c_uint);
    stream_create = "cuStreamCreateWithPriority" (*mut Handle, c_uint, c_int);
    stream_destroy = "cuStreamDestroy_v2" (Handle);
    stream_wait = "cuStreamWaitEvent" (Handle, Handle, c_uint);
    stream_capturing = "cuStreamIsCapturing" (Handle, *mut c_int);
    capture_mode = "cuThreadExchangeStreamCaptureMode" (*mut c_int);
    stream_synchronize = "cuStreamSynchronize" (Handle);
    event_create = "cuEventCreate" (*mut Handle, c_uint);
    event_record = "cuEventRecord" (Handle, Handle);
    event_query = "cuEventQuery" (Handle);
    event_synchronize = "cuEventSynchronize" (Handle);
    event_elapsed = "cuEventElapsedTime" (*mut f32, Handle, Handle);
    event_destroy = "cuEventDestroy_v2" (Handle);
}

/// The oldest supported driver: 12.0 introduced libraries that are not bound to a context.
const OLDEST: i32 = 12_000;

/// Environment variable with the path of a library that is loaded instead of the driver. It is meant
/// for a test double, or for a driver at an unusual path.
const LIBRARY_VARIABLE: &str = "KVPOOL_LIBCUDA";

static API: OnceLock<Result<Api, Unavailable>> = OnceLock::new();

/// Returns the function table of the driver. The first call loads and initialises the driver. Every
/// later call returns the same result.
///
/// # Errors
/// [`Unavailable`] if the driver cannot be loaded or initialised.
pub(super) fn api() -> Result<&'static Api, Unavailable> {
    API.get_or_init(|| {
        let name = std::env::var(LIBRARY_VARIABLE).unwrap_or_else(|_| "libcuda.so.1".to_owned());
        let mut api = Api::load(&name)?;
        // SAFETY: `version` outlives the call. The driver's version may be read before it is
        // initialised.
        let code = unsafe { (api.driver_version)(&raw mut api.version) };
        api.check(code, "cuDriverGetVersion").map_err(Unavailable::Init)?;
        if api.version < OLDEST {
            return Err(Unavailable::TooOld { version: api.version });
        }
        // SAFETY: the function only requires that its flags are 0.
        let code = unsafe { (api.init)(0) };
        api.check(code, "cuInit").map_err(Unavailable::Init)?;
        api.batch = api.find_batch();
        Ok(api)
    })
    .as_ref()
    .map_err(Clone::clone)
}

impl Api {
    pub(super) fn check(&self, code: Code, call: &'static str) -> Result<(), CudaError> {
        if code == 0 { Ok(()) } else { Err(CudaError { code, name: self.name_of(code), call }) }
    }

    fn name_of(&self, code: Code) -> String {
        let mut name = std::ptr::null();
        // SAFETY: `name` outlives the call, which points it to a constant text of the driver.
        unsafe {
            if (self.error_name)(code, &raw mut name) == 0 && !name.is_null() {
                return CStr::from_ptr(name).to_string_lossy().into_owned();
            }
        }
        "an error without a name".to_owned()
    }

    fn find_batch(&self) -> Option<BatchFn> {
        let (mut found, mut status) = (std::ptr::null_mut(), 0);
        let name = c"cuMemcpyBatchAsync".as_ptr();
        // SAFETY: `found` and `status`, to which the driver writes, outlive the call.
        let code = unsafe { (self.proc_address)(name, &raw mut found, 12_080, 0, &raw mut status) };
        if code != 0 || found.is_null() {
            return None;
        }
        // SAFETY: the request was for version 12.8, so the driver returns the function with that
        // version's signature.
        Some(unsafe { std::mem::transmute::<Handle, BatchFn>(found) })
    }
}
