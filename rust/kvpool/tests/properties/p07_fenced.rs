//! Property 7: a block that is released with a fence for step s can be allocated when s or a later step
//! has completed, and not before.
//!
//! In vllm#45357 and tpu-inference#3449, a running step wrote to a block that had been allocated to
//! another request.
//!
//! An implementation fails this test if a release ignores running steps, or if a fence only ends with
//! its own step and not with a later one.

use super::*;

/// In vllm#45357 and tpu-inference#3449, with asynchronous scheduling, a freed block was allocated
/// while a running step could still write to it, or a fenced block never became available. The test
/// tries every order of three fenced releases and three completions.
#[test]
fn property_07_a_fenced_block_comes_back_exactly_when_its_step_completes() {
    for shared in [false, true] {
        for order in permutations(6) {
            let mut pool = pool(3);
            let blocks = pool.allocate(3).unwrap();
            if shared {
                pool.acquire(&blocks[1..2]).unwrap(); // a second holder, which keeps it
            }
            let (mut fenced_on, mut completed) = (BTreeMap::new(), 0);
            for &event in &order {
                if event < 3 {
                    let step = event as u64 + 1;
                    pool.release_after(&blocks[event..=event], step).unwrap();
                    fenced_on.insert(blocks[event], step);
                } else {
                    let step = event as u64 - 2;
                    pool.complete_step(step).unwrap();
                    completed = completed.max(step);
                }
                let mut allocatable = 0;
                for &block in &blocks {
                    let expected = match fenced_on.get(&block) {
                        _ if shared && block == blocks[1] => BlockState::Active,
                        None => BlockState::Active,
                        Some(step) if *step > completed => BlockState::Fenced,
                        Some(_) => BlockState::Free,
                    };
                    assert_eq!(pool.state(block), Some(expected), "{order:?}, {block:?} after event {event}");
                    allocatable += usize::from(expected == BlockState::Free);
                }
                let too_many = pool.allocate(allocatable + 1);
                assert!(matches!(too_many, Err(PoolError::OutOfBlocks(_))), "{order:?}: {too_many:?}");
                assert_eq!(pool.num_available(), allocatable);
            }
            let last = pool.allocate(if shared { 2 } else { 3 }).unwrap();
            assert!(!shared || !last.contains(&blocks[1]));
        }
    }
}

/// Tests vllm#45357 with KV. A request ends while its step runs, another request is admitted at once,
/// and the running step writes late. The KV of no request is overwritten, and a lookup can still hit a
/// fenced block.
#[test]
fn property_07_a_late_write_of_a_running_step_damages_no_other_request() {
    for preempt in [false, true] {
        let mut engine = Engine::new(6);
        engine.admit(1, &[1, 2, 3, 4, 5]).unwrap();
        engine.compute(1, 4);
        let table = engine.manager.block_table(1).unwrap().to_vec();
        if preempt {
            engine.manager.preempt(1, Some(8)).unwrap();
        } else {
            engine.release(1, Some(8));
        }
        // Request 2 has the same prefix. It hits the fenced blocks, because they are computed and a
        // fence allows reads.
        let admission = engine.admit(2, &[1, 2, 3, 4, 6]).unwrap();
        assert_eq!(admission.block_ids[..2], table[..2]);
        assert!(!admission.block_ids.contains(&table[2]), "a fenced block was handed out");
        engine.admit(3, &[7, 7, 7]).unwrap();
        engine.compute_all(3);
        engine.compute_all(2);
        assert!(engine.manager.block_table(3).unwrap().iter().all(|block| !table.contains(block)));
        engine.memory[table[2].index()] = (99, vec![5]); // step 8 writes late
        engine.check();
        // The completion of an earlier step ends no fence. The completion of the step itself ends all
        // of its fences, once.
        assert_eq!(engine.manager.complete_step(7).unwrap(), 0);
        assert_eq!(engine.manager.pool().state(table[2]), Some(BlockState::Fenced));
        assert_eq!(engine.manager.complete_step(8).unwrap(), 3);
        assert_eq!(engine.manager.pool().state(table[2]), Some(BlockState::Free));
        assert_eq!(engine.manager.complete_step(8).unwrap(), 0);
        engine.check();
    }
}
