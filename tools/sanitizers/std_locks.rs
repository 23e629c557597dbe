//! Announces the slow paths of the standard library's locks to ThreadSanitizer.
//!
//! The standard library of a stable toolchain is compiled without instrumentation. Its inline functions
//! are compiled again in the crates that call them, so ThreadSanitizer sees a lock for which no thread
//! waits. It does not see the functions below, which run if a thread waits. The linker replaces them
//! (`--wrap`). Each replacement calls the original function, and announces the order of memory accesses
//! that the original establishes.
//!
//! `tools/sanitizers.py` replaces `@NAME@` with the mangled name of a function, and compiles this file
//! to one object.

#![crate_type = "lib"]
#![feature(thread_local)]
#![no_std]

extern crate std;

use core::cell::Cell;
use std::panic::Location;
use std::sync::OnceState;
use std::time::Duration;

unsafe extern "C" {
    /// Announces that the code after this call sees all writes before other threads' `__tsan_release`
    /// at this address.
    fn __tsan_acquire(address: *const u8);
    /// Announces that all writes so far are seen by the code after other threads' `__tsan_acquire` at
    /// this address.
    fn __tsan_release(address: *const u8);
}

/// The address of a lock's state word, or of a lock that begins with its state word.
type Word = *const u8;

unsafe extern "Rust" {
    #[link_name = "__real_@lock_contended@"]
    fn lock_contended(mutex: Word);
    #[link_name = "__real_@read_contended@"]
    fn read_contended(lock: Word);
    #[link_name = "__real_@write_contended@"]
    fn write_contended(lock: Word);
    #[link_name = "__real_@condvar_wait@"]
    fn condvar_wait(condvar: Word, mutex: Word);
    #[link_name = "__real_@condvar_wait_timeout@"]
    fn condvar_wait_timeout(condvar: Word, mutex: Word, timeout: Duration) -> bool;
    #[link_name = "__real_@once_call@"]
    fn once_call(once: Word, ignores_poison: bool, run: &mut dyn FnMut(&OnceState),
        caller: &'static Location<'static>);
    #[link_name = "__real_@scope_thread_ended@"]
    fn scope_thread_ended(scope: Word, panicked: bool);
}

/// One of the two 32-bit words of an `RwLock` is its state. The compiler chooses their order, so
/// announce both.
unsafe fn acquire_rwlock(lock: Word) {
    unsafe {
        __tsan_acquire(lock);
        __tsan_acquire(lock.add(4));
    }
}

#[unsafe(export_name = "__wrap_@lock_contended@")]
unsafe fn lock_contended_announced(mutex: Word) {
    unsafe {
        lock_contended(mutex);
        __tsan_acquire(mutex);
    }
}

#[unsafe(export_name = "__wrap_@read_contended@")]
unsafe fn read_contended_announced(lock: Word) {
    unsafe {
        read_contended(lock);
        acquire_rwlock(lock);
    }
}

#[unsafe(export_name = "__wrap_@write_contended@")]
unsafe fn write_contended_announced(lock: Word) {
    unsafe {
        write_contended(lock);
        acquire_rwlock(lock);
    }
}

#[unsafe(export_name = "__wrap_@condvar_wait@")]
unsafe fn condvar_wait_announced(condvar: Word, mutex: Word) {
    unsafe {
        __tsan_release(mutex);
        condvar_wait(condvar, mutex);
        __tsan_acquire(mutex);
    }
}

#[unsafe(export_name = "__wrap_@condvar_wait_timeout@")]
unsafe fn condvar_wait_timeout_announced(condvar: Word, mutex: Word, timeout: Duration) -> bool {
    unsafe {
        __tsan_release(mutex);
        let notified = condvar_wait_timeout(condvar, mutex, timeout);
        __tsan_acquire(mutex);
        notified
    }
}

#[unsafe(export_name = "__wrap_@once_call@")]
unsafe fn once_call_announced(
    once: Word,
    ignores_poison: bool,
    run: &mut dyn FnMut(&OnceState),
    caller: &'static Location<'static>,
) {
    let mut announced = |state: &OnceState| {
        run(state);
        // Announce the release before the original function marks the value as complete. Other threads
        // may read the value as soon as it is marked.
        unsafe { __tsan_release(once) };
    };
    unsafe {
        once_call(once, ignores_poison, &mut announced, caller);
        __tsan_acquire(once);
    }
}

#[unsafe(export_name = "__wrap_@scope_thread_ended@")]
unsafe fn scope_thread_ended_announced(scope: Word, panicked: bool) {
    unsafe {
        // The counter of running threads is one of the first words of `ScopeData`. The compiler chooses
        // their order, so announce all of them.
        for offset in [0, 8, 16] {
            __tsan_release(scope.add(offset));
        }
        scope_thread_ended(scope, panicked);
    }
}

/// Address of the reference counter that this thread has changed last.
#[thread_local]
static COUNTER: Cell<Word> = Cell::new(core::ptr::null());

unsafe extern "C" {
    #[link_name = "__real___tsan_atomic64_fetch_add"]
    fn fetch_add(counter: Word, value: u64, order: i32) -> u64;
    #[link_name = "__real___tsan_atomic64_fetch_sub"]
    fn fetch_sub(counter: Word, value: u64, order: i32) -> u64;
    #[link_name = "__real___tsan_atomic_thread_fence"]
    fn thread_fence(order: i32);
}

#[unsafe(export_name = "__wrap___tsan_atomic64_fetch_add")]
unsafe extern "C" fn fetch_add_noted(counter: Word, value: u64, order: i32) -> u64 {
    COUNTER.set(counter);
    unsafe { fetch_add(counter, value, order) }
}

#[unsafe(export_name = "__wrap___tsan_atomic64_fetch_sub")]
unsafe extern "C" fn fetch_sub_noted(counter: Word, value: u64, order: i32) -> u64 {
    COUNTER.set(counter);
    unsafe { fetch_sub(counter, value, order) }
}

/// ThreadSanitizer ignores fences. `Arc` decrements a counter, and executes a fence if the result is
/// zero. After the fence, this thread sees everything that other threads released with that counter.
#[unsafe(export_name = "__wrap___tsan_atomic_thread_fence")]
unsafe extern "C" fn thread_fence_announced(order: i32) {
    unsafe {
        thread_fence(order);
        if !COUNTER.get().is_null() {
            __tsan_acquire(COUNTER.get());
        }
    }
}
