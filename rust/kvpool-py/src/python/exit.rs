//! Prevents the exit of the interpreter from unwinding Rust frames.
//!
//! CPython before 3.14 ends every other thread that asks for the interpreter while the process exits,
//! by `pthread_exit`. On Linux glibc then unwinds the stack of that thread. A Rust frame cannot be
//! unwound that way, and the process aborts. PyO3 parks a thread that attaches itself. It does not park
//! a thread that runs Python code for a call of ours, such as a generator of tokens.
//!
//! [`protect`] gives the calling thread a cleanup handler, once. glibc calls a handler when it leaves
//! the frame that contains the handler's record. A record outside of the stack counts as left at once,
//! so the handler runs before the first frame is unwound. It parks the thread for ever if frames of
//! this library are on its stack. CPython 3.14 does the same to every thread.
//!
//! The record is that of the Linux Standard Base (`_pthread_cleanup_push`), which glibc and musl have.
//! Other systems do not unwind.

pub(crate) fn park() -> ! {
    loop {
        std::thread::park();
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn protect() {}

#[cfg(target_os = "linux")]
pub(crate) use linux::protect;

#[cfg(target_os = "linux")]
mod linux {
    use std::cell::{Cell, UnsafeCell};
    use std::ffi::{c_int, c_void};
    use std::ptr;

    type Routine = extern "C" fn(*mut c_void);
    type Push = unsafe extern "C" fn(*mut c_void, Routine, *mut c_void);
    type Pop = unsafe extern "C" fn(*mut c_void, c_int);
    type Trace = extern "C" fn(*mut c_void, *mut c_void) -> c_int;

    unsafe extern "C" {
        fn _Unwind_Backtrace(trace: Trace, state: *mut c_void) -> c_int;
        fn _Unwind_GetIP(frame: *mut c_void) -> usize;
    }

    thread_local! {
        static IS_PROTECTED: Cell<bool> = const { Cell::new(false) };
        static HANDLER: Handler = Handler::new();
    }

    /// Protects the calling thread for the rest of its life. Costs one read of a thread-local flag.
    #[inline]
    pub(crate) fn protect() {
        if !IS_PROTECTED.get() {
            register();
        }
    }

    #[cold]
    fn register() {
        IS_PROTECTED.set(true);
        // The access to the thread-local fails only while the thread's locals are being dropped. Such a
        // thread does not run Python code again.
        let _ = HANDLER.try_with(|_| ());
    }

    /// The record of a cleanup handler in the C library: four machine words in glibc, three in musl.
    #[derive(Default)]
    struct Record(UnsafeCell<[usize; 4]>);

    /// A cleanup handler that is registered for the thread that made it.
    struct Handler {
        /// The record is on the heap. A thread-local may be on the thread's stack, where the handler would
        /// not be called at once.
        record: Box<Record>,
        pop: Option<Pop>,
    }

    impl Handler {
        fn new() -> Self {
            let record = Box::<Record>::default();
            let (push, pop) =
                (function::<Push>(c"_pthread_cleanup_push"), function::<Pop>(c"_pthread_cleanup_pop"));
            let (Some(push), Some(pop)) = (push, pop) else { return Self { record, pop: None } };
            // SAFETY: the record stays at one address until `drop` removes it from this thread's list.
            unsafe { push(record.0.get().cast(), on_exit, ptr::null_mut()) };
            Self { record, pop: Some(pop) }
        }
    }

    impl Drop for Handler {
        fn drop(&mut self) {
            if let Some(pop) = self.pop {
                // SAFETY: the record is on the list of this thread, because thread-locals belong to one
                // thread. With 0, the handler is not called.
                unsafe { pop(self.record.0.get().cast(), 0) };
            }
        }
    }

    /// Returns the function of the C library called `name`. It is looked up at run time, because releases of
    /// glibc have different versions of the symbol.
    fn function<F: Copy>(name: &std::ffi::CStr) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        // SAFETY: the name ends with 0.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        // SAFETY: `F` is the type of the function that has this name; both are pointers.
        (!found.is_null()).then(|| unsafe { std::mem::transmute_copy(&found) })
    }

    extern "C" fn on_exit(_: *mut c_void) {
        if would_unwind() {
            crate::python::exit::park();
        }
    }

    /// The state of a walk over the frames of the stack, from the frame of the handler to its callers.
    struct Walk {
        library: *mut c_void,
        has_left: bool,
        has_returned: bool,
    }

    /// Whether an exit of the thread would unwind frames of this library. Frames of the handler itself do not
    /// count.
    fn would_unwind() -> bool {
        let mut walk =
            Walk { library: library_of(on_exit as *const () as usize), has_left: false, has_returned: false };
        // SAFETY: the pointer is that of a `Walk`, as `look` expects, and `look` does not unwind.
        unsafe { _Unwind_Backtrace(look, (&raw mut walk).cast()) };
        walk.has_returned
    }

    extern "C" fn look(frame: *mut c_void, walk: *mut c_void) -> c_int {
        // SAFETY: `would_unwind` passes the walk only to this function.
        let walk = unsafe { &mut *walk.cast::<Walk>() };
        // SAFETY: the frame comes from the unwinder, and is valid during this call.
        let is_ours = library_of(unsafe { _Unwind_GetIP(frame) }) == walk.library;
        walk.has_left |= !is_ours;
        walk.has_returned |= is_ours && walk.has_left;
        c_int::from(walk.has_returned) // anything but 0 ends the walk
    }

    /// Returns the base address of the library that contains an address.
    fn library_of(address: usize) -> *mut c_void {
        let mut found = libc::Dl_info {
            dli_fname: ptr::null(),
            dli_fbase: ptr::null_mut(),
            dli_sname: ptr::null(),
            dli_saddr: ptr::null_mut(),
        };
        // SAFETY: the function only writes to `found`.
        unsafe { libc::dladdr(ptr::without_provenance(address), &raw mut found) };
        found.dli_fbase
    }
}
