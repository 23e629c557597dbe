//! Property 6 for vLLM's queue: a block that has a key is allocated only if no block without a key is
//! free.
//!
//! Bugs: vllm#42948, vllm#42656: blocks without a hash were queued after cached blocks, and the cache
//! lost blocks without need.
//!
//! An implementation fails this property if it adds every freed block at the end of one queue.

use super::*;

/// Tests every policy, several numbers of blocks with and without a key, and both orders in which the
/// two kinds are freed.
#[test]
fn property_06_a_block_with_a_key_is_reused_last() {
    for policy in policies() {
        for cached in 0..=3usize {
            for plain in 0..=3usize {
                for cached_first in [true, false] {
                    for n in 0..=cached + plain {
                        let mut pool = Pool::with_policy(cached + plain + 1, true, policy).unwrap();
                        let with_key = take(&mut pool, cached);
                        let without = take(&mut pool, plain);
                        cache(&mut pool, &with_key, &[1; 12]);
                        let tables = [with_key.clone(), without];
                        let (first, second) = if cached_first { (0, 1) } else { (1, 0) };
                        pool.free(tables[first].iter().rev().copied()).unwrap();
                        pool.free(tables[second].iter().rev().copied()).unwrap();

                        let mut removed = Vec::new();
                        let mut got = Vec::new();
                        pool.allocate(n, &mut got, Some(&mut removed)).unwrap();

                        let victims = got.iter().filter(|block| with_key.contains(block)).count();
                        assert_eq!(
                            victims,
                            n.saturating_sub(plain),
                            "{policy:?}: {n} of {cached} and {plain}"
                        );
                        assert_eq!(removed.len(), victims);
                        assert!(got.iter().all(|&block| pool.keys().hash_of(block).is_none()));
                        pool.check_invariants().unwrap();
                    }
                }
            }
        }
    }
}
