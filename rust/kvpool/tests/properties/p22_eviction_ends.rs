//! Property 22: an eviction never starts another eviction, a commit allocates no block, and a call that
//! evicts n blocks always ends, after it has evicted min(n, evictable) blocks.
//!
//! In sglang#27631 and trtllm#17926, an eviction ran inside another eviction, or a commit needed a
//! block when none was available.
//!
//! An implementation fails this test if inserting into the cache evicts blocks, or if an eviction loop
//! counts requested blocks instead of freed blocks.
//!
//! `evictors/leases.rs` tests every policy.

use super::*;

/// Records the calls of a policy.
#[derive(Debug, Default)]
struct Log {
    inside: AtomicBool,
    inserts: AtomicUsize,
    removals: AtomicUsize,
    evictions: AtomicUsize,
    calls: AtomicUsize,
}

/// An LRU evictor that records every call, and whether the call was made during another call.
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

/// In sglang#27631 and trtllm#17926, an eviction started another one, a commit of computed blocks
/// allocated blocks and could fail, or an eviction loop did not end. Here the pool must call the policy
/// once per victim, and never for a commit.
#[test]
fn property_22_one_eviction_per_victim_and_none_for_a_commit() {
    for cached in 0..=4usize {
        for n in 0..=6usize {
            let log = Arc::new(Log::default());
            let evictor = Watched(LruEvictor::new(0).unwrap(), Arc::clone(&log));
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

            // Held blocks can be committed without a new block and without a call of the policy, even
            // if the pool is full.
            let available = pool.num_available();
            let before = (pool.stats().allocated, log.calls.load(Ordering::Relaxed));
            let chain = chain(&(100..100 + (B * n) as u32).collect::<Vec<_>>());
            pool.register(&got, &chain, 0).unwrap();
            pool.mark_computed(&got).unwrap();
            assert_eq!((pool.stats().allocated, log.calls.load(Ordering::Relaxed)), before);
            assert_eq!(pool.num_available(), available);

            // Everything can be evicted. Then an eviction finds nothing.
            pool.release_table(&got).unwrap();
            assert_eq!(pool.allocate(6).unwrap().len(), 6);
            assert!(pool.allocate(1).is_err());
            pool.check_invariants().unwrap();
        }
    }
    // The pool of this manager is full. A commit needs no block.
    let mut engine = Engine::new(3);
    engine.admit(1, &[1, 2, 3, 4, 5]).unwrap();
    assert_eq!(engine.manager.pool().num_available(), 0);
    let allocated = engine.manager.stats().pool.allocated;
    assert_eq!(engine.manager.commit(1, 5).unwrap(), 2);
    assert_eq!(engine.manager.stats().pool.allocated, allocated);
}
