//! Measures the bytes per block of a pool, with every policy, and of vLLM's pool: all memory that was
//! allocated for it, divided by the number of blocks.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a report, not a library")]

use std::alloc::System;

use kvpool::{BlockPool, PoolConfig, Verify};
use kvpool_benches::{REQUEST_BLOCKS, fill, vllm};
use kvpool_vllm::Pool;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

fn main() {
    println!("blocks    verify       bytes per block (empty / full, with open fences)");
    for num_blocks in [1 << 16, 1 << 22] {
        for policy in [kvpool_policies::LRU, kvpool_policies::ARC, kvpool_policies::HAZARD] {
            let region = Region::new(ALLOCATOR);
            let config = PoolConfig { num_blocks, eviction: policy, ..PoolConfig::default() };
            let mut pool = BlockPool::new(config).unwrap();
            let held = || {
                let change = region.change();
                (change.bytes_allocated as i64 - change.bytes_deallocated as i64) as f64 / num_blocks as f64
            };
            let empty = held();
            drop(fill(&mut pool).unwrap());
            println!("{num_blocks:<9} {:<12} {empty:.1} / {:.1}", policy.name(), held());
        }
    }
    for num_blocks in [1 << 16, 100_000, 1 << 20, 1 << 24] {
        {
            let region = Region::new(ALLOCATOR);
            let held = || {
                let change = region.change();
                change.bytes_allocated as i64 - change.bytes_deallocated as i64
            };
            let mut pool = Pool::new(num_blocks, true).unwrap();
            let empty = held();
            drop(vllm::fill(&mut pool).unwrap());
            let (empty, full) = (empty as f64 / num_blocks as f64, held() as f64 / num_blocks as f64);
            println!("{num_blocks:<9} vllm's face  {empty:.1} / {full:.1}");
        }
        for verify in [Verify::None, Verify::Fingerprint] {
            let region = Region::new(ALLOCATOR);
            let held = || {
                let change = region.change();
                // Do not add reallocations, because `bytes_allocated` already includes allocations that
                // grew in place.
                change.bytes_allocated as i64 - change.bytes_deallocated as i64
            };
            let config = PoolConfig { num_blocks, verify, ..PoolConfig::default() };
            let mut pool = BlockPool::new(config).unwrap();
            let empty = held();
            let mut full = empty;
            if verify == Verify::None {
                let chains = fill(&mut pool).unwrap();
                drop(chains);
                let blocks = pool.allocate(REQUEST_BLOCKS).unwrap();
                pool.release_after(&blocks, 1).unwrap();
                drop(blocks);
                full = held();
            }
            println!(
                "{num_blocks:<9} {:<12} {:.1} / {:.1}",
                verify.name(),
                empty as f64 / num_blocks as f64,
                full as f64 / num_blocks as f64
            );
        }
    }
}
