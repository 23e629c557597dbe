//! Property 24: lookups never find uncommitted blocks of a failed step or an aborted request. After an
//! epoch bump, lookups find no block that was committed before it, not even blocks of requests that
//! were running during the bump.
//!
//! In trtllm#15018, lmdeploy#4917 and NeMo-RL#4018, requests reused KV that was never written, or that
//! was written with older weights.
//!
//! An implementation fails this test if it indexes blocks when they are allocated, or if it clears the
//! index but lets running requests add their old blocks again.

use super::*;

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

/// In NeMo-RL#4018, requests got KV of old weights after an update, from requests that had been
/// running, preempted or hashed before the update. The test covers every algorithm, because vLLM's
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

        // A plan and a prompt from before the bump are refused. The error returns the prompt.
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
        // The running request continues with KV of old and new weights. Its blocks are never
        // registered, not even when it ends.
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
        // Preempted requests are computed again from the first token. Their blocks are then registered.
        assert_eq!(engine.resume(2).unwrap().cached_tokens, 0, "{algorithm}");
        engine.compute_all(2);
        assert_eq!(engine.resume(3).unwrap().cached_tokens, 8, "{algorithm}");
        assert_eq!(engine.admit(5, &prompt).unwrap().cached_tokens, 8, "{algorithm}");
        engine.check();
    }
}

/// Tests trtllm#15018 for engines that register blocks before the step that writes them. Lookups do not
/// find the blocks until the engine marks them as computed, and the engine does not do this after a
/// failed step.
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
