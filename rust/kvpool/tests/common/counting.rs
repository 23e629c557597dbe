//! A memory allocator that counts the allocations of each thread. Each test binary that uses it
//! includes this module, because a binary can have only one allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// Number of allocations of this thread, and number of bytes that are allocated now.
    static COUNTS: Cell<(usize, isize)> = const { Cell::new((0, 0)) };
}

/// Returns the number of allocations of this thread so far, and the number of bytes that are allocated
/// now.
pub(crate) fn counts() -> (usize, isize) {
    COUNTS.get()
}

struct Counting;

fn count(allocations: usize, bytes: isize) {
    // Allocations of a thread that is ending are not counted.
    let _ = COUNTS.try_with(|counts| {
        let (before, held) = counts.get();
        counts.set((before + allocations, held + bytes));
    });
}

// SAFETY: every call is passed unchanged to the system's allocator. The counting itself allocates
// nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(1, layout.size() as isize);
        // SAFETY: the caller guarantees the same conditions that `System` requires.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(0, -(layout.size() as isize));
        // SAFETY: the caller guarantees the same conditions that `System` requires, and `pointer` came
        // from `System`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;
