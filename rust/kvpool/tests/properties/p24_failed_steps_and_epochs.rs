//! Property 24: blocks of a failed step or an aborted request are never matched. After an epoch bump,
//! no block that was committed before is matched, not even through requests that run across the bump.
//!
//! Bugs: trtllm#15018, lmdeploy#4917, NeMo-RL#4018: KV that was never written, or written with older
//! weights, was reused.
//!
//! Fails it: code that indexes blocks at allocation; or that empties the index and lets running
//! requests fill it again.

use super::*;

/// trtllm#15018, lmdeploy#4917: other requests found the blocks of a failed step or of an aborted
/// request.
#[test]
fn property_24_a_failed_step_is_never_matchable() {
    let prompt = [1, 2, 3, 4, 5, 6, 7];
    for fence in [None, Some(1)] {
        for committed in 0..=7usize {
            for preempt in [false, true] {
                let mut engine = Engine::new(10);
                engine.admit(1, &prompt).unwrap();
                engine.compute(1, committed);
                engine.write(1, 7); // the step was launched, wrote something and failed: no commit follows
                if preempt {
                    engine.manager.preempt(1, fence).unwrap();
                }
                engine.release(1, fence);
                for _ in 0..2 {
                    let cursor = engine.manager.prepare(&prompt, ExtraKeys::default()).unwrap();
                    assert_eq!(engine.manager.probe(&cursor).unwrap().cached_blocks, committed / B);
                    assert_eq!(engine.manager.pool().stats().registered, committed / B);
                    engine.manager.complete_step(1).unwrap();
                }
                assert_eq!(engine.admit(2, &prompt).unwrap().cached_tokens, committed / B * B);
                engine.check_index();
            }
        }
    }
}

/// NeMo-RL#4018: after an update of the weights, requests got KV of the old ones, through requests that
/// had been running, preempted or hashed before it. The test covers every algorithm, because vLLM's
/// digests do not contain the epoch.
#[test]
fn property_24_nothing_from_before_an_epoch_bump_is_matched_after_it() {
    for &algorithm in HashAlgorithm::ALL {
        let verify = if algorithm.is_cryptographic() { Verify::None } else { Verify::Tokens };
        let config = ManagerConfig {
            num_blocks: 41,
            block_size: B,
            algorithm,
            verify,
            seed: Some("0".into()),
            ..Default::default()
        };
        let mut engine = Engine::new(40);
        engine.manager = CacheManager::new(config).unwrap();
        let prompt: Vec<_> = (1..=9).collect();
        for id in 1..=4 {
            engine.admit(id, &prompt).unwrap();
            engine.compute(id, if id == 1 { 9 } else { 8 });
        }
        engine.manager.preempt(2, None).unwrap();
        engine.manager.preempt(3, Some(1)).unwrap();
        engine.release(4, Some(1));
        let old = engine.manager.prepare(&prompt, ExtraKeys::default()).unwrap();
        let mut plan = engine.manager.plan_step();
        engine.manager.plan_admit(&mut plan, 90, old.clone()).unwrap();

        assert_eq!(engine.manager.bump_epoch().unwrap(), 1);

        // A plan and a prompt from before are refused, and the prompt is handed back.
        assert_eq!(engine.manager.commit_step(&mut plan), Err(ManagerError::StaleStep));
        let stale = ManagerError::Pool(PoolError::StaleEpoch { chain: 0, pool: 1 });
        assert_eq!(engine.manager.probe(&old).unwrap_err(), stale);
        let refused = engine.manager.admit(91, old).unwrap_err();
        assert_eq!((refused.error, refused.cursor.num_tokens()), (stale, 9));

        let misses = |engine: &Engine| {
            let cursor = engine.manager.prepare(&prompt, ExtraKeys::default()).unwrap();
            assert_eq!(engine.manager.probe(&cursor).unwrap().cached_blocks, 0, "{algorithm}");
            assert_eq!(engine.manager.pool().stats().registered, 0, "{algorithm}");
        };
        misses(&engine);
        // The running request continues with KV of both weights. Its blocks are never published, not
        // even when it ends.
        for token in 0..5 {
            engine.append(1, token).unwrap();
            engine.compute_all(1);
            misses(&engine);
        }
        engine.manager.complete_step(1).unwrap(); // late messages of the old epoch
        misses(&engine);
        engine.release(1, Some(2));
        engine.manager.complete_step(2).unwrap();
        misses(&engine);
        // Preempted requests are computed again from the first token, and published from then on.
        assert_eq!(engine.resume(2).unwrap().cached_tokens, 0, "{algorithm}");
        engine.compute_all(2);
        assert_eq!(engine.resume(3).unwrap().cached_tokens, 8, "{algorithm}");
        assert_eq!(engine.admit(5, &prompt).unwrap().cached_tokens, 8, "{algorithm}");
        engine.check();
    }
}

/// trtllm#15018, for engines that register before the step that writes: until the engine marks the
/// blocks as computed, they are not matched, whatever happens to them. A failed step never marks them.
#[test]
fn property_24_a_registered_uncomputed_block_is_not_matched() {
    for computed in 0..=3usize {
        for fence in [None, Some(1)] {
            for holders in [1, 2] {
                let mut pool = pool(8);
                let chain = chain(&[1, 2, 3, 4, 5, 6]);
                let blocks = pool.allocate(3).unwrap();
                pool.register(&blocks, &chain, 0).unwrap();
                pool.mark_computed(&blocks[..computed]).unwrap();
                (1..holders).for_each(|_| pool.acquire(&blocks).unwrap());
                let matched = |pool: &mut BlockPool| {
                    let found = pool.match_and_acquire(&chain, 3).unwrap();
                    assert_eq!(pool.probe(&chain, 3).unwrap().cached_blocks, found.len());
                    pool.release_table(&found).unwrap();
                    found.len()
                };
                assert_eq!(matched(&mut pool), computed);
                for _ in 0..holders {
                    match fence {
                        None => pool.release_table(&blocks).unwrap(),
                        Some(step) => pool.release_after(&blocks, step).unwrap(),
                    }
                    assert_eq!(matched(&mut pool), computed);
                }
                pool.complete_step(1).unwrap();
                assert_eq!((matched(&mut pool), pool.stats().registered), (computed, computed));
                assert_eq!(sums(&pool), (8 - computed, computed, 0, 0));
                pool.check_invariants().unwrap();
            }
        }
    }
}
