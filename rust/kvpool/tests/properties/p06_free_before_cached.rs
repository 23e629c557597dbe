//! Property 6: a block with a cached content is allocated only if no free block is left.
//!
//! In vllm#42948 and vllm#42656, blocks without a hash were queued after cached blocks, so contents
//! were evicted although free blocks existed.
//!
//! An implementation fails this test if it has one queue for both kinds of blocks, and adds every
//! released block to its end.

use super::*;

/// In vllm#42948 and #42656, the allocator took cached blocks although blocks without content were
/// free, or it put blocks that had lost their hash in the middle of the eviction order.
#[test]
fn property_06_cached_blocks_are_evicted_only_when_no_free_block_is_left() {
    for cached in 0..=3 {
        for (uncached, untouched, dropped) in [(0, 1, 0), (1, 0, 1), (2, 1, 1), (0, 2, 2), (1, 1, 0)] {
            let usable = cached + uncached + untouched + dropped;
            for n in 0..=usable {
                let mut pool = pool(usable);
                // Releases all blocks in one call, in an order that mixes cached blocks and blocks
                // without content.
                let kept = fill(&mut pool, &(0..(B * cached) as u32).collect::<Vec<_>>());
                let registered_only = pool.allocate(dropped).unwrap();
                let chain = chain(&(50..50 + (B * dropped) as u32).collect::<Vec<_>>());
                pool.register(&registered_only, &chain, 0).unwrap(); // its KV is never written
                let plain = pool.allocate(uncached).unwrap();
                let mixed: Vec<_> = [kept, registered_only, plain].concat();
                pool.release(&mixed).unwrap();
                let free = usable - cached;
                assert_eq!(sums(&pool), (free, cached, 0, 0));
                let hashed: BTreeSet<_> = all_blocks(&pool).filter(|&b| pool.hash_of(b).is_some()).collect();
                assert_eq!(hashed.len(), cached);
                let victims = pool.eviction_order();

                let got = pool.allocate(n).unwrap();

                let carried: Vec<_> = got.iter().copied().filter(|block| hashed.contains(block)).collect();
                assert_eq!(carried, victims[..n.saturating_sub(free)], "allocate({n}) of {free} free");
                assert_eq!(pool.stats().evicted as usize, carried.len());
                assert!(
                    got.iter().all(|&block| pool.hash_of(block).is_none()),
                    "what is handed out has no hash"
                );
            }
        }
    }
}
