//! Deliberate faults that `make test-asan` and `make test-tsan` must report. `cargo test` does not run
//! them, because each has undefined behaviour.
//!
//! Every test violates one requirement of [`Store::new`].

use std::sync::{Arc, Barrier};
use std::thread;

use kvpool_transfer::{Device, Region, Store};

/// Returns a store over one block of `bytes` bytes at an address.
fn store(address: *mut u8, bytes: u64) -> Arc<Store> {
    let region = Region { base: address as u64, stride: bytes, nbytes: bytes };
    // SAFETY: this call violates the requirements on purpose, because this is the deliberate fault.
    unsafe { Store::new(vec![region], 1, Device::Cpu, Vec::new(), false, None) }.expect("a layout")
}

#[test]
fn read_out_of_bounds() {
    let mut memory = vec![0_u8; 64];
    store(memory.as_mut_ptr(), 65).read_block(0).expect("a block");
}

#[test]
fn read_after_free() {
    let mut memory = vec![0_u8; 64];
    let store = store(memory.as_mut_ptr(), 64);
    drop(memory);
    store.read_block(0).expect("a block");
}

/// Two stores use the same memory. A guard excludes only accesses through the same store, so the writes
/// through the two stores run at the same time.
#[test]
fn data_race() {
    let mut memory = vec![0_u8; 64];
    let stores = [(); 2].map(|()| store(memory.as_mut_ptr(), 64));
    let start = Barrier::new(2);
    thread::scope(|scope| {
        for store in &stores {
            scope.spawn(|| {
                start.wait();
                store.write_block(0, &[1; 64]).expect("a block");
            });
        }
    });
}
