//! Property 1: if one release contains a block twice, the block loses two references and is added to a
//! list once. After any calls, the number of free blocks equals the length of the free list in both
//! directions, and the number of blocks without references equals the length of both lists.
//!
//! In vllm#42571 and dynamo#13398, `free([b, b])` of a block with two references linked `b` once and
//! counted it twice, or the reverse.
//!
//! An implementation fails this test if it drops references one by one, and then adds a block to the
//! list for each of its occurrences with a count of 0.

use super::*;

#[test]
fn property_01_a_block_freed_twice_in_one_call_is_queued_once() {
    // Makes every release of up to five ids of three blocks that have 1, 2 and 3 references. The blocks
    // are cached or not.
    let calls: Vec<Vec<u32>> = (0..=5u32)
        .flat_map(|length| {
            (0..3u32.pow(length)).map(move |n| (0..length).map(|digit| n / 3u32.pow(digit) % 3 + 1).collect())
        })
        .collect();
    assert_eq!(calls.len(), 364);
    for cached in [false, true] {
        for call in &calls {
            let mut pool = pool(5);
            let blocks =
                if cached { fill(&mut pool, &[1, 2, 3, 4, 5, 6]) } else { pool.allocate(3).unwrap() };
            assert_eq!(raw(&blocks), [1, 2, 3]);
            pool.acquire(&ids(&[2, 3, 3])).unwrap();
            let named = |b: u32| call.iter().filter(|&&other| other == b).count() as u32;
            let fits = (1..=3).all(|b| named(b) <= b);

            let result = pool.release(&ids(call));

            assert_eq!(result.is_ok(), fits, "{call:?}: {result:?}");
            let left = |b: u32| if fits { b - named(b) } else { b };
            let idle = (1..=3).filter(|&b| left(b) == 0).count();
            (1..=3).for_each(|b| assert_eq!(pool.ref_count(id(b)), Some(left(b)), "{call:?}"));
            let order = if cached { pool.eviction_order() } else { pool.free_order() };
            let distinct: BTreeSet<_> = order.iter().collect();
            assert_eq!(distinct.len(), order.len(), "{call:?} queued a block twice: {order:?}");
            let expected = if cached { (2, idle, 3 - idle, 0) } else { (2 + idle, 0, 3 - idle, 0) };
            assert_eq!((sums(&pool), recount(&pool)), (expected, expected), "{call:?}");
            pool.check_invariants().unwrap(); // walks every list in both directions
        }
    }
}
