//! Property 4: a call that fails at any point changes nothing.
//!
//! In vllm#24228, a call that failed had already changed blocks, counters or keys.
//!
//! An implementation fails this test if one loop both checks elements and changes state. The invalid
//! element may be the first, a middle or the last element.

use super::*;

/// Inserts each id of `bad` into `good` at the first, a middle and the last position. Checks that
/// `call` fails with each of these lists and changes nothing. `call` must succeed with `good` alone,
/// which shows that only the bad id made it fail.
fn fails_everywhere(
    name: &str,
    good: &[u32],
    bad: &[u32],
    call: impl Fn(&mut BlockPool, &[BlockId]) -> Result<(), PoolError>,
) {
    for fence in [true, false] {
        let mut pool = crowded_pool(fence);
        pool.take_events();
        let before = observe(&pool);
        for &bad in bad {
            for at in [0, good.len() / 2, good.len()] {
                let mut named = good.to_vec();
                named.insert(at, bad);
                let result = call(&mut pool, &ids(&named));
                assert!(result.is_err(), "{name}({named:?}) succeeded");
                assert_eq!(observe(&pool), before, "{name}({named:?}) failed and changed the pool");
                assert!(
                    pool.take_events().events.is_empty(),
                    "{name}({named:?}) failed and reported a change"
                );
                pool.check_invariants().unwrap();
            }
        }
        call(&mut pool, &ids(good)).unwrap();
        assert_ne!(observe(&pool), before, "{name}({good:?}) does something");
    }
}

/// Returns a pool with blocks in every state. Blocks 1 and 2 are cached, and 3 and 4 are held and
/// registered. Block 5 has two references, and 6 is registered but not computed. Block 7 is fenced, or
/// it is free and no fence is open. Blocks 8 and 9 are held, and 10 to 12 are free.
fn crowded_pool(fence: bool) -> BlockPool {
    let mut pool = pool(12).watched(&events(100)).unwrap();
    cache(&mut pool, &[1, 2, 3, 4]);
    let held = pool.match_and_acquire(&chain(&[1, 2, 3, 4]), 2).unwrap();
    assert_eq!(raw(&fill(&mut pool, &[5, 6, 7, 8])), [3, 4]);
    pool.release_table(&held).unwrap();
    assert_eq!(raw(&pool.allocate(5).unwrap()), [5, 6, 7, 8, 9]);
    pool.acquire(&ids(&[5])).unwrap();
    pool.register(&ids(&[6]), &chain(&[9, 9]), 0).unwrap();
    pool.release_after(&ids(&[7]), 3).unwrap();
    assert_eq!(sums(&pool), (3, 2, 6, 1));
    if !fence {
        pool.complete_step(3).unwrap();
    }
    pool
}

/// In vllm#24228, a call that failed in the middle had already changed blocks or counters. This test
/// makes every call that can fail with an invalid first, middle and last element. The order of free
/// blocks, the order of eviction, the counts, states and hashes must remain the same.
#[test]
fn property_04_a_failed_call_of_the_pool_changes_nothing() {
    let (null, unknown, free, cached, fenced) = (0, 13, 10, 1, 7);
    fails_everywhere("acquire", &[3, 5, 5, 8], &[null, unknown, free, cached], BlockPool::acquire);
    let unreleasable = [null, unknown, free, cached, fenced, 8];
    let mine = [3, 8, 5, 5, 6]; // contains block 8 more often than it has references
    fails_everywhere("release", &mine, &unreleasable, BlockPool::release);
    fails_everywhere("release_table", &mine, &unreleasable, BlockPool::release_table);
    fails_everywhere("release_after", &mine, &unreleasable, |pool, ids| pool.release_after(ids, 4));
    fails_everywhere("release_after", &mine, &unreleasable, |pool, ids| {
        pool.complete_step(1)?;
        pool.release_after(ids, 1) // the step is complete: released at once
    });
    fails_everywhere("mark_computed", &[3, 6, 4], &[null, unknown, free, 8], |pool, ids| {
        pool.mark_computed(ids)
    });
    fails_everywhere("drop_cached", &[2, 3, 6, 8], &[null, unknown], |pool, ids| {
        pool.drop_cached(ids).map(drop)
    });
    let long = chain(&[20, 21, 22, 23, 24, 25, 26, 27]);
    fails_everywhere("register", &[5, 8, 9], &[null, unknown, free, cached, 3, 6, 8], |pool, ids| {
        pool.register(ids, &long, 0).map(drop)
    });
    // The pool detects that a chain has too few blocks when it reaches the end of the chain.
    let mut pool = crowded_pool(true);
    let before = observe(&pool);
    for (blocks, start) in [(&[5, 8, 9][..], 2), (&[5][..], 4), (&[][..], 5), (&[5][..], 9)] {
        let result = pool.register(&ids(blocks), &long, start);
        assert_eq!(result, Err(PoolError::ChainTooShort { start, blocks: blocks.len(), chain: 4 }));
        assert_eq!(observe(&pool), before);
    }
}

/// Returns a manager with blocks of two tokens. 2 of 9 blocks are available. Requests 1 and 3 have two
/// full blocks each, so their next token needs another block. Request 2 has three tokens, and request 4
/// is preempted.
fn crowded_manager() -> CacheManager {
    let config = ManagerConfig { num_blocks: 10, block_size: B, ..Default::default() };
    let mut manager = CacheManager::new(config).unwrap();
    for (id, tokens) in [(1, &[1, 2, 3, 4][..]), (2, &[5, 6, 7]), (3, &[8, 9, 10, 11]), (4, &[1, 2, 5, 5, 5])]
    {
        let prompt = manager.prepare(tokens, ExtraKeys::default()).unwrap();
        manager.admit(id, prompt).unwrap();
    }
    manager.commit(4, 4).unwrap();
    manager.commit(1, 2).unwrap();
    manager.preempt(4, None).unwrap();
    let prompt = manager.prepare(&[30], ExtraKeys::default()).unwrap();
    manager.admit(5, prompt).unwrap();
    assert_eq!(manager.pool().num_available(), 2);
    manager
}

/// Tests vllm#24228 with the manager: batches whose first, middle or last request is invalid,
/// admissions that fail after their match, and plans that fail.
#[test]
fn property_04_a_failed_call_of_the_manager_changes_nothing() {
    let mut manager = crowded_manager();
    let before = observe_manager(&manager);
    let unchanged = |manager: &CacheManager, what: &dyn std::fmt::Debug| {
        assert_eq!(observe_manager(manager), before, "{what:?} failed and changed the manager");
        manager.check_invariants().unwrap();
    };
    // The invalid rows are an unknown request, a request that appears twice, and a preempted request. A
    // preempted request may get tokens, but its tokens cannot be committed.
    for bad in [9, 2, 4] {
        for at in 0..=3 {
            let mut batch = vec![1, 2, 3];
            batch.insert(at, bad);
            let refs: Vec<_> = batch.iter().map(|&id| RequestRef::Int(id)).collect();
            for commit_first in [Computed::Nothing, Computed::AllButLast] {
                if bad != 4 {
                    assert!(manager.append(&refs, &[0; 4], commit_first).is_err(), "{batch:?}");
                }
                unchanged(&manager, &(&batch, commit_first));
            }
            assert!(manager.commit_batch(&refs, &[4, 3, 4, 4]).is_err(), "{batch:?}");
            unchanged(&manager, &batch);
        }
    }
    // Requests 1, 3 and 6 need one block each, but only two are available. So the last of these rows
    // fails.
    let prompt = manager.prepare(&[40, 41], ExtraKeys::default()).unwrap();
    let mut full = crowded_manager();
    full.admit(6, prompt).unwrap();
    let before_full = observe_manager(&full);
    for batch in [[1, 2, 3, 6], [6, 3, 2, 1], [2, 1, 6, 3]] {
        let refs: Vec<_> = batch.iter().map(|&id| RequestRef::Int(id)).collect();
        for commit_first in [Computed::Nothing, Computed::AllButLast] {
            let result = full.append(&refs, &[0; 4], commit_first);
            assert!(
                matches!(result, Err(ManagerError::OutOfBlocks(refusal)) if (
                    refusal.needed, refusal.missing) == (3, 2)),
                "{result:?}"
            );
            assert_eq!(observe_manager(&full), before_full);
        }
    }
    // Tests counts that are too large or that decrease, at each position.
    for at in 0..3 {
        for (good, bad) in [([4, 3, 4], 99), ([4, 3, 4], usize::MAX)] {
            let mut counts = good;
            counts[at] = bad;
            let result = manager.commit_batch(&[1.into(), 2.into(), 3.into()], &counts);
            assert!(matches!(result, Err(ManagerError::BadComputedCount { .. })), "{result:?}");
            unchanged(&manager, &counts);
        }
    }
    // Request 1 already has 2 computed tokens, so a commit of 1 token is refused.
    let result = manager.commit_batch(&[3.into(), 2.into(), 1.into()], &[4, 3, 1]);
    assert!(
        matches!(result, Err(ManagerError::BadComputedCount { asked: 1, computed: 2, .. })),
        "{result:?}"
    );
    unchanged(&manager, &"a count that goes back");
    // The prompt has two cached blocks, one of which is held. There are no blocks for the rest of the
    // prompt.
    let long = [1, 2, 5, 5, 50, 51, 52, 53];
    let prompt = manager.prepare(&long, ExtraKeys::default()).unwrap();
    assert_eq!(manager.probe(&prompt).unwrap().cached_blocks, 2);
    let refused = manager.admit(8, prompt).unwrap_err();
    assert!(matches!(refused.error, ManagerError::OutOfBlocks(_)));
    unchanged(&manager, &"admit");
    assert!(manager.append_tokens(1, &[0; 99], 0).is_err());
    unchanged(&manager, &"append_tokens");
    // A plan that fails or is dropped changes nothing. A stale plan is refused completely.
    let mut plan = manager.plan_step();
    manager.plan_preempt(&mut plan, 3, None).unwrap();
    manager.plan_admit(&mut plan, 8, *refused.cursor).unwrap();
    assert!(manager.plan_append(&mut plan, 1, &[0; 99], 0).is_err());
    assert!(manager.plan_release(&mut plan, 9, None).is_err());
    unchanged(&manager, &"a plan");
    manager.complete_step(0).unwrap();
    assert_eq!(manager.commit_step(&mut plan), Err(ManagerError::StaleStep));
    unchanged(&manager, &"a stale plan");
    // Calls with only the valid rows succeed. So the invalid rows made the calls above fail.
    assert_eq!(manager.commit_batch(&[1.into(), 2.into(), 3.into()], &[4, 3, 4]).unwrap(), 4);
    assert_eq!(
        manager.append(&[1.into(), 2.into(), 3.into()], &[0; 3], Computed::AllButLast).unwrap().len(),
        2
    );
    // The resumption finds cached blocks, and then fails because there are not enough blocks for the
    // rest.
    let before = observe_manager(&manager);
    assert!(matches!(manager.resume(4), Err(ManagerError::OutOfBlocks(_))));
    assert_eq!(observe_manager(&manager), before);
}
