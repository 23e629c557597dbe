//! Property 2: a block is on at most one list. Releasing a block without references is an error that
//! changes nothing.
//!
//! In trtllm#14937, a block was free and cached at the same time.
//!
//! An implementation fails this test if a release decrements the count before it checks it, or if it
//! limits the count to 0 and adds the block to a list again.

use super::*;

#[test]
fn property_02_a_block_is_on_one_list_and_an_unheld_block_cannot_be_released() {
    // A pool checks a release with different code while a fence is open. So this tests both cases.
    for fence in [true, false] {
        let mut pool = pool(6);
        cache(&mut pool, &[1, 2, 3, 4]); // #1, #2
        let active = pool.allocate(2).unwrap(); // #3, #4
        pool.release_after(&active[..1], 1).unwrap();
        if !fence {
            pool.complete_step(1).unwrap();
        }
        let places = |pool: &BlockPool, b: BlockId| {
            let on = |list: Vec<BlockId>| list.iter().filter(|&&other| other == b).count();
            on(pool.free_order()) + on(pool.eviction_order()) + usize::from(pool.ref_count(b) > Some(0))
        };
        for (block, state) in [
            (1, BlockState::CachedFree),
            (3, if fence { BlockState::Fenced } else { BlockState::Free }),
            (4, BlockState::Active),
            (5, BlockState::Free),
            (6, BlockState::Free),
        ] {
            let block = id(block);
            assert_eq!((pool.state(block), places(&pool, block)), (Some(state), 1), "{block:?}");
            if state == BlockState::Active {
                continue;
            }
            let before = observe(&pool);
            for call in [vec![block], vec![id(4), block], vec![block, id(4)]] {
                for result in [pool.release(&call), pool.release_table(&call), pool.release_after(&call, 9)] {
                    let refused =
                        matches!(result, Err(PoolError::NotHeld { block: b, held: 0, .. }) if b == block);
                    assert!(refused, "{call:?} of a {state:?} block: {result:?}");
                }
                assert_eq!(observe(&pool), before, "{call:?}");
            }
            assert_eq!(places(&pool, block), 1);
        }
        // The null block is never added to a list.
        assert!(pool.release(&[BlockId::default()]).is_err());
        assert_eq!(places(&pool, id(0)), 0);
    }
}
