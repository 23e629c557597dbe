//! Properties 21 to 25: counters, victims, what is evictable, failed steps, token accounting.

use super::histories::*;
use super::*;

/// sglang#35270, mllm#656, trtllm#12834: running counters drifted from what was really there. After every history, the
/// counters equal a recount that uses nothing but the lists and the references, and they add up.
#[test]
fn property_21_counters_equal_a_recount_and_add_up() {
    every_history(5, |world, act, history| {
        world.act(act);
        let (free, cached_free, active, fenced) = sums(&world.pool);
        assert_eq!(recount(&world.pool), (free, cached_free, active, fenced), "{history:?}");
        assert_eq!(free + cached_free + active + fenced, 4, "{history:?}");
        assert_eq!(world.pool.num_available(), free + cached_free, "{history:?}");
        let registered = all_blocks(&world.pool).filter(|&b| world.pool.hash_of(b).is_some()).count();
        assert_eq!(world.pool.stats().registered, registered, "{history:?}");
    });
}

/// What a policy was asked to do.
#[derive(Debug, Default)]
struct Log {
    inside: AtomicBool,
    inserts: AtomicUsize,
    removals: AtomicUsize,
    evictions: AtomicUsize,
    calls: AtomicUsize,
}

/// LRU that notes every call, and every call made while another one is running.
#[derive(Debug)]
struct Watched(LruEvictor, Arc<Log>);

impl Watched {
    fn enter<T>(&mut self, counter: fn(&Log) -> &AtomicUsize, call: impl FnOnce(&mut LruEvictor) -> T) -> T {
        assert!(!self.1.inside.swap(true, Ordering::Relaxed), "the policy was re-entered");
        counter(&self.1).fetch_add(1, Ordering::Relaxed);
        self.1.calls.fetch_add(1, Ordering::Relaxed);
        let result = call(&mut self.0);
        self.1.inside.store(false, Ordering::Relaxed);
        result
    }
}

impl Evictor for Watched {
    fn name(&self) -> &'static str {
        "watched"
    }
    fn insert(&mut self, candidates: &mut [Candidate]) {
        self.enter(|log| &log.inserts, |lru| lru.insert(candidates));
    }
    fn remove(&mut self, block: BlockId) -> bool {
        self.enter(|log| &log.removals, |lru| lru.remove(block))
    }
    fn evict(&mut self) -> Option<BlockId> {
        self.enter(|log| &log.evictions, Evictor::evict)
    }
    fn len(&self) -> usize {
        self.0.len()
    }
    fn contains(&self, block: BlockId) -> bool {
        self.0.contains(block)
    }
    fn order(&self) -> Vec<BlockId> {
        self.0.order()
    }
    fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        self.0.grow(num_blocks)
    }
    fn check_invariants(&self) -> Result<(), InvariantViolation> {
        self.0.check_invariants()
    }
}

/// sglang#27631, trtllm#17926: an eviction started another one; committing computed blocks allocated and could fail; an
/// eviction loop did not end. One call of the policy per victim, none for a commit.
#[test]
fn property_22_one_eviction_per_victim_and_none_for_a_commit() {
    for cached in 0..=4usize {
        for n in 0..=6usize {
            let log = Arc::new(Log::default());
            let evictor = Watched(LruEvictor::new(0), Arc::clone(&log));
            let config = PoolConfig { num_blocks: 7, block_size: B, ..Default::default() };
            let mut pool = BlockPool::with_evictor(config, Box::new(evictor)).unwrap();
            cache(&mut pool, &(0..(B * cached) as u32).collect::<Vec<_>>());
            let before = log.calls.load(Ordering::Relaxed);
            let got = pool.allocate(n).unwrap();
            let victims = n.saturating_sub(6 - cached);
            assert_eq!(got.len(), n);
            assert_eq!(log.evictions.load(Ordering::Relaxed), victims, "evict({n}) of {cached} cached");
            assert_eq!(pool.stats().cached_free, cached - victims);
            assert!(pool.allocate(7 - n).is_err());
            assert_eq!(log.calls.load(Ordering::Relaxed) - before, victims, "a refused call asks nothing");

            // The pool is full or not: what is held can be committed, without a block and without the policy.
            let available = pool.num_available();
            let before = (pool.stats().allocated, log.calls.load(Ordering::Relaxed));
            let chain = chain(&(100..100 + (B * n) as u32).collect::<Vec<_>>());
            pool.register(&got, &chain, 0).unwrap();
            pool.mark_computed(&got).unwrap();
            assert_eq!((pool.stats().allocated, log.calls.load(Ordering::Relaxed)), before);
            assert_eq!(pool.num_available(), available);

            // Everything can be evicted, and then it is over.
            pool.release_table(&got).unwrap();
            assert_eq!(pool.allocate(6).unwrap().len(), 6);
            assert!(pool.allocate(1).is_err());
            pool.check_invariants().unwrap();
        }
    }
    // The same through a manager whose pool is full: a commit needs no block.
    let mut engine = Engine::new(3);
    engine.admit(1, &[1, 2, 3, 4, 5]).unwrap();
    assert_eq!(engine.manager.pool().num_available(), 0);
    let allocated = engine.manager.stats().pool.allocated;
    assert_eq!(engine.manager.commit(1, 5).unwrap(), 2);
    assert_eq!(engine.manager.stats().pool.allocated, allocated);
}

/// vllm#55461, mooncake#2286, #3028: blocks that were said to be evictable could not be evicted. For every policy, whatever
/// was hit, shared, fenced and dropped before: all that is available can be allocated, at once or one by one.
#[test]
fn property_23_what_is_evictable_can_be_allocated() {
    for &eviction in EvictionPolicy::ALL {
        for duplicates in [DuplicatePolicy::Keep, DuplicatePolicy::DropOnRelease] {
            for n in 1..=12 {
                for singly in [false, true] {
                    let config = PoolConfig {
                        num_blocks: 13,
                        block_size: B,
                        eviction,
                        duplicates,
                        ..Default::default()
                    };
                    let mut pool = BlockPool::new(config).unwrap();
                    let first = fill(&mut pool, &[1, 2, 3, 4, 5, 6]);
                    let copy = fill(&mut pool, &[1, 2, 3, 4]);
                    let other = fill(&mut pool, &[7, 8, 9, 10]);
                    pool.release(&[first[2], first[0], first[1]]).unwrap();
                    pool.release_after(&copy, 1).unwrap();
                    let hit = pool.match_and_acquire(&chain(&[1, 2]), 1).unwrap();
                    pool.release_table(&other).unwrap();
                    pool.complete_step(1).unwrap();
                    pool.evict(&other[..1]).unwrap();
                    pool.release_table(&hit).unwrap();
                    assert_eq!(pool.num_available(), 12);
                    assert!(pool.stats().cached_free >= 4);
                    let got: BTreeSet<_> = if singly {
                        (0..n).flat_map(|_| pool.allocate(1).unwrap()).collect()
                    } else {
                        pool.allocate(n).unwrap().into_iter().collect()
                    };
                    assert_eq!(
                        (got.len(), pool.num_available()),
                        (n, 12 - n),
                        "{eviction:?}, {duplicates:?}"
                    );
                    pool.check_invariants().unwrap();
                }
            }
        }
    }
}

/// trtllm#15018, lmdeploy#4917: the blocks of a step that failed, or of a request that was aborted, were found by others.
#[test]
fn property_24_a_failed_step_is_never_matchable() {
    let prompt = [1, 2, 3, 4, 5, 6, 7];
    for fence in [None, Some(1)] {
        for committed in 0..=7usize {
            for preempt in [false, true] {
                let mut engine = Engine::new(10);
                engine.admit(1, &prompt).unwrap();
                engine.compute(1, committed);
                engine.write(1, 7); // the step was launched, wrote what it wrote, and failed: no commit follows
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

/// NeMo-RL#4018: after an update of the weights, requests were given KV of the old ones, by way of requests that had been
/// running, preempted or hashed before it. For every algorithm: vLLM's digests do not contain the epoch.
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
        let mut plan = engine.manager.begin_step();
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
        // The running request goes on with KV of both weights: never published, also not when it ends.
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
        // Preempted ones are computed anew, from the first token, and published from then on.
        assert_eq!(engine.resume(2).unwrap().cached_tokens, 0, "{algorithm}");
        engine.compute_all(2);
        assert_eq!(engine.resume(3).unwrap().cached_tokens, 8, "{algorithm}");
        assert_eq!(engine.admit(5, &prompt).unwrap().cached_tokens, 8, "{algorithm}");
        engine.check();
    }
}

/// vllm#25780, #43736: hits and prompt tokens were counted again on every retry of an admission and after every
/// preemption, so that hit rates exceeded 1 or fell with load.
#[test]
fn property_25_each_prompt_token_counts_once() {
    let mut engine = Engine::new(8);
    let prompts: [&[u32]; 3] = [&[1, 2, 3, 4, 5], &[1, 2, 3, 4, 6, 7, 8], &[1, 2, 9, 9, 9, 9]];
    let counts = |engine: &Engine| {
        let stats = engine.manager.stats();
        (stats.prompt_tokens, stats.hit_tokens, stats.computed_tokens, stats.admissions)
    };
    engine.admit(0, prompts[0]).unwrap();
    assert_eq!(counts(&engine), (5, 0, 5, 1));
    engine.compute_all(0);
    engine.admit(1, prompts[1]).unwrap(); // 2 blocks hit
    assert_eq!(counts(&engine), (12, 4, 8, 2));
    engine.admit(7, &[50, 51, 52, 53]).unwrap();
    assert_eq!(counts(&engine), (16, 4, 12, 3));
    for attempt in 0..5 {
        let before = counts(&engine);
        let error = engine.admit(2, prompts[2]).unwrap_err(); // 1 block hit, 2 more needed, 1 there
        assert!(matches!(error, ManagerError::OutOfBlocks(_)));
        assert_eq!(counts(&engine), before, "a refused admission counts nothing");
        assert_eq!(engine.manager.stats().refusals, attempt + 1);
    }
    for round in 0..4 {
        engine.manager.preempt(1, None).unwrap();
        engine.resume(1).unwrap();
        assert_eq!(counts(&engine), (16, 4, 12, 3), "a preemption counts no prompt again");
        assert_eq!(engine.manager.stats().resumed_tokens, 7 * (round + 1));
        assert_eq!(engine.manager.stats().resumed_hit_tokens, 4 * (round + 1));
    }
    engine.release(7, None);
    engine.admit(2, prompts[2]).unwrap();
    assert_eq!(counts(&engine), (22, 6, 16, 4));
    // Decoding adds no prompt tokens.
    engine.append(2, 1).unwrap();
    engine.compute_all(2);
    assert_eq!(counts(&engine), (22, 6, 16, 4));
}

proptest! {
    /// vllm#25780, #43736, for any calls: the counters equal the sums over first admissions.
    #[test]
    fn property_25_hits_and_computed_tokens_sum_to_prompt_tokens(usable in 3usize..9, calls in calls()) {
        let mut engine = Engine::new(usable);
        let mut seen = BTreeSet::new();
        let (mut prompt_tokens, mut hit_tokens) = (0, 0);
        play(&mut engine, &calls, |engine| {
            let stats = engine.manager.stats();
            // A request that is new since the last call was just admitted.
            for id in engine.requests.keys() {
                if seen.insert(*id) {
                    let info = engine.manager.request(*id).unwrap();
                    prompt_tokens += info.tokens as u64;
                    hit_tokens += info.cached_tokens as u64;
                }
            }
            seen.retain(|id| engine.requests.contains_key(id));
            assert_eq!((stats.prompt_tokens, stats.hit_tokens), (prompt_tokens, hit_tokens));
            assert_eq!(stats.hit_tokens + stats.computed_tokens, stats.prompt_tokens);
        });
    }
}
