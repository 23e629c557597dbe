//! Property 1 for vLLM's queue: if one call frees a block twice, the block loses two references and is
//! queued once. If a call frees a block more often than it has references, the call frees nothing.
//!
//! Bugs: vllm#42571: freeing `[b, b]` with two references queued `b` twice, and two requests were given
//! it.
//!
//! An implementation fails this property if it first drops all counts, and then queues each id in the
//! list whose count is 0.

use super::*;

#[test]
fn property_01_a_block_freed_twice_in_one_call_is_queued_once() {
    let calls: Vec<Vec<u32>> = (0..=4u32)
        .flat_map(|length| {
            (0..4u32.pow(length)).map(move |n| (0..length).map(|digit| n / 4u32.pow(digit) % 4).collect())
        })
        .collect();
    for cached in [false, true] {
        for call in &calls {
            // Block 1 has one reference, block 2 has two, and block 3 has three. Block 0 is the null
            // block, which is never freed.
            let mut pool = Pool::new(6, true).unwrap();
            let table = take(&mut pool, 3);
            assert_eq!(table, [1, 2, 3]);
            if cached {
                cache(&mut pool, &table, &[1; 12]);
            }
            pool.touch(&[2, 3, 3]).unwrap();
            let named = |block: u32| call.iter().filter(|&&other| other == block).count() as i32;
            let fits = (1..=3).all(|block| named(block) <= block as i32);

            let result = pool.free(call.iter().copied());

            assert_eq!(result.is_ok(), fits, "{call:?}: {result:?}");
            let left = |block: u32| block as i32 - if fits { named(block) } else { 0 };
            (1..=3).for_each(|block| assert_eq!(pool.ref_count(block), left(block), "{call:?}"));
            let queued = order(&pool);
            let distinct: BTreeSet<_> = queued.iter().copied().collect();
            let idle: BTreeSet<_> = (1..=3).filter(|&block| left(block) == 0).chain([4, 5]).collect();
            assert_eq!((queued.len(), pool.num_free()), (distinct.len(), distinct.len()), "{call:?}");
            assert_eq!(distinct, idle, "{call:?}: a block without references is queued, and no other");
            pool.check_invariants().unwrap();
        }
    }
}

/// A call that frees a block without references is refused, even if it also frees other blocks.
#[test]
fn property_01_a_block_without_references_cannot_be_freed() {
    for call in [vec![3], vec![1, 3], vec![3, 1], vec![1, 1], vec![9]] {
        let mut pool = Pool::new(5, true).unwrap();
        take(&mut pool, 2);
        let before = order(&pool);
        let result = pool.free(call.clone());
        let refused = matches!(result, Err(VllmError::NotHeld { .. } | VllmError::UnknownBlock { .. }));
        assert!(refused, "{call:?}: {result:?}");
        assert_eq!((order(&pool), pool.ref_count(1), pool.ref_count(2)), (before, 1, 1));
    }
}
