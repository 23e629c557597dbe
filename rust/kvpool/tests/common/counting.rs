//! The allocator of test binaries that count what a thread allocates: a module of each, since an
//! allocator is a binary's.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// Allocations of this thread, and bytes that it holds of them.
    static COUNTS: Cell<(usize, isize)> = const { Cell::new((0, 0)) };
}

/// Allocations of this thread so far, and bytes that it holds of them.
pub(crate) fn counts() -> (usize, isize) {
    COUNTS.get()
}

struct Counting;

fn count(allocations: usize, bytes: isize) {
    // A thread that is going away counts no more.
    let _ = COUNTS.try_with(|counts| {
        let (before, held) = counts.get();
        counts.set((before + allocations, held + bytes));
    });
}

// SAFETY: every call is passed on to the system's allocator as it came; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(1, layout.size() as isize);
        // SAFETY: the caller's promise is the one that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(0, -(layout.size() as isize));
        // SAFETY: as above; `pointer` came from `System`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;
