//! Tests two properties with every policy: property 12 for blocks that only a planned copy or a step
//! still needs, and property 22 for the calls of the policy.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::*;
use kvpool::retention::Retain;
use kvpool::{BlockPool, BlockState, Candidate, Content, InvariantViolation, PoolConfig, PoolError, Tiers};

/// In trtllm#12542 and sglang#31427, a block was evicted although a planned copy read its KV or a step
/// still wrote it. With every policy, such a block must never be evicted, and a lookup must find it.
#[test]
fn property_12_a_block_that_a_plan_or_a_step_needs_is_not_evicted() {
    for kind in Kind::all() {
        let (Kind::Plain(eviction) | Kind::Retaining(eviction)) = kind else { continue };
        let retention = kind.has_retention().then(RetentionConfig::default);
        let settings =
            PoolConfig { num_blocks: 9, block_size: BLOCK_SIZE, eviction, retention, ..Default::default() };
        let mut tiers = Tiers::new(vec![settings]).unwrap();
        let pool = tiers.pool_mut(0).unwrap();
        let table = pool.allocate(2).unwrap();
        pool.register(&table, &chain(0, &[0, 1]), 0).unwrap();
        pool.mark_computed(&table).unwrap();
        if kind.has_retention() {
            pool.retain(&table, Retention::END_OF_LIFE).unwrap(); // must not make them available
        }
        // A step may still write to the first block, and a planned copy reads the second block. No
        // request holds these blocks.
        pool.release_after(&table[..1], 5).unwrap();
        let copy = tiers.copy_on_write(0, table[1]).unwrap();
        assert_ne!(copy, table[1]);
        let pool = tiers.pool_mut(0).unwrap();
        assert_eq!(pool.num_holders(table[0]) + pool.num_holders(table[1]), 0);
        assert!(table.iter().all(|&block| pool.state(block) == Some(BlockState::Fenced)), "{kind:?}");

        let all = pool.allocate(5).unwrap();
        assert!(pool.allocate(1).is_err(), "{kind:?}: neither is available");
        assert!(!all.contains(&table[0]) && !all.contains(&table[1]));
        let hit = pool.match_and_acquire(&chain(0, &[0, 1]), 2).unwrap();
        assert_eq!(hit, table, "{kind:?}: both are found");
        pool.release_table(&hit).unwrap();
        assert!(pool.allocate(1).is_err(), "{kind:?}: they are needed as before");

        // The step has completed and the plan was taken. Now the blocks can be evicted.
        assert_eq!(tiers.take_plan().unwrap().transfers().len(), 1);
        let pool = tiers.pool_mut(0).unwrap();
        assert_eq!(indices(&pool.eviction_order()), [table[1].index()], "{kind:?}");
        pool.complete_step(5).unwrap();
        pool.check_invariants().unwrap();
        let mut rest = pool.allocate(2).unwrap();
        rest.sort();
        assert_eq!(rest, table, "{kind:?}");
    }
}

#[derive(Debug, Default)]
pub(crate) struct Log {
    inside: AtomicBool,
    evictions: AtomicUsize,
    calls: AtomicUsize,
    /// The calls of `registered`. Each entry is a block, its depth and its parent.
    registered: Mutex<Vec<(BlockId, u32, Option<BlockId>)>>,
}

/// One call may register any number of blocks of a chain. The parent of each block is the block before
/// it, and that of the first block is the last block that was registered before the call.
#[test]
fn each_block_of_a_long_chain_has_its_parent() {
    const LENGTH: usize = 200;
    let log = Arc::new(Log::default());
    let evictor = Kind::ClosedLru.build(LENGTH + 1, &RetentionConfig::default());
    let config = PoolConfig { num_blocks: LENGTH + 1, block_size: BLOCK_SIZE, ..Default::default() };
    let watched = Box::new(Watched::new(evictor, Arc::clone(&log)));
    let mut pool = BlockPool::with_evictor(config, watched).unwrap();
    let blocks = pool.allocate(LENGTH).unwrap();
    let chain = chain(0, &(0..LENGTH as u8).collect::<Vec<_>>());
    pool.register(&blocks[..70], &chain, 0).unwrap();
    pool.register(&blocks[70..], &chain, 70).unwrap();
    let before = |at: usize| at.checked_sub(1).map(|before| blocks[before]);
    let expected: Vec<_> = (0..LENGTH).map(|at| (blocks[at], at as u32, before(at))).collect();
    assert_eq!(*log.registered.lock().unwrap(), expected);
}

/// An evictor that records its calls, and fails if a call arrives during another call.
#[derive(Debug)]
pub(crate) struct Watched(Box<dyn Evictor>, Arc<Log>);

impl Watched {
    pub(crate) fn new(evictor: Box<dyn Evictor>, log: Arc<Log>) -> Self {
        Self(evictor, log)
    }

    fn enter<T>(&mut self, call: impl FnOnce(&mut dyn Evictor) -> T) -> T {
        assert!(!self.1.inside.swap(true, Ordering::Relaxed), "the policy was re-entered");
        self.1.calls.fetch_add(1, Ordering::Relaxed);
        let result = call(self.0.as_mut());
        self.1.inside.store(false, Ordering::Relaxed);
        result
    }
}

impl Evictor for Watched {
    fn name(&self) -> &'static str {
        self.0.name()
    }
    fn insert(&mut self, candidates: &mut [Candidate]) {
        self.enter(|inner| inner.insert(candidates));
    }
    fn remove(&mut self, block: BlockId) -> bool {
        self.enter(|inner| inner.remove(block))
    }
    fn hit(&mut self, block: BlockId) -> bool {
        self.enter(|inner| inner.hit(block))
    }
    fn wants_history(&self) -> bool {
        self.0.wants_history()
    }
    fn keeps_time(&self) -> bool {
        self.0.keeps_time()
    }
    fn set_time(&mut self, now: f64) -> Result<(), PoolError> {
        self.enter(|inner| inner.set_time(now))
    }
    fn registered(&mut self, block: BlockId, content: Content, parent: Option<BlockId>) {
        self.1.registered.lock().unwrap().push((block, content.depth, parent));
        self.enter(|inner| inner.registered(block, content, parent));
    }
    fn parent(&self, block: BlockId) -> Option<BlockId> {
        self.0.parent(block)
    }
    fn relink(&mut self, block: BlockId, parent: BlockId) {
        self.enter(|inner| inner.relink(block, parent));
    }
    fn has_dependents(&self, block: BlockId) -> bool {
        self.0.has_dependents(block)
    }
    fn renew(&mut self, block: BlockId) -> bool {
        self.enter(|inner| inner.renew(block))
    }
    fn clear(&mut self) {
        self.enter(|inner| inner.clear());
    }
    fn retention(&self) -> Option<&dyn Retain> {
        self.0.retention()
    }
    fn retention_mut(&mut self) -> Option<&mut dyn Retain> {
        self.0.retention_mut()
    }
    fn evict(&mut self) -> Option<BlockId> {
        self.1.evictions.fetch_add(1, Ordering::Relaxed);
        self.enter(|inner| inner.evict())
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

/// Tests sglang#27631 and trtllm#17926. For an allocation of n blocks, the pool calls the policy
/// exactly once for each block that is not free, and never during another call. A commit evicts
/// nothing, and every call ends.
#[test]
fn property_22_one_eviction_per_victim_under_every_policy() {
    for kind in Kind::all() {
        for cached in 0..=5_usize {
            for n in 0..=7_usize {
                let config = RetentionConfig { pin_budget: 2, ..Default::default() };
                let log = Arc::new(Log::default());
                let evictor = Box::new(Watched(kind.build(8, &config), Arc::clone(&log)));
                let settings = PoolConfig { num_blocks: 8, block_size: BLOCK_SIZE, ..Default::default() };
                let mut pool = BlockPool::with_evictor(settings, evictor).unwrap();
                // Two prompts with a common beginning are cached. Hints protect all of their blocks
                // from eviction as far as hints can.
                for path in [&[0, 0, 0][..], &[0, 1, 1]] {
                    let path = &path[..path.len().min(cached)];
                    let mut table = pool.match_and_acquire(&chain(0, path), 9).unwrap();
                    let new = pool
                        .allocate((path.len() - table.len()).min(cached - pool.stats().registered))
                        .unwrap();
                    pool.register(&new, &chain(0, path), table.len()).unwrap();
                    pool.mark_computed(&new).unwrap();
                    if kind.has_retention() && !new.is_empty() {
                        pool.retain(&new[..1], Retention::END_OF_LIFE).unwrap();
                        pool.retain(&new[1..], Retention::PINNED).unwrap();
                    }
                    table.extend(new);
                    pool.release_table(&table).unwrap();
                }
                assert_eq!(pool.stats().cached_free, cached);
                let evictions = log.evictions.load(Ordering::Relaxed);
                let got = pool.allocate(n).unwrap();
                let victims = n.saturating_sub(7 - cached);
                assert_eq!(
                    log.evictions.load(Ordering::Relaxed) - evictions,
                    victims,
                    "{kind:?}: {n} of {cached}"
                );
                assert_eq!((got.len(), pool.stats().cached_free), (n, cached - victims));

                let calls = log.calls.load(Ordering::Relaxed);
                assert!(pool.allocate(8 - n).is_err());
                assert_eq!(log.calls.load(Ordering::Relaxed), calls, "a refused call asks nothing");
                let evictions = log.evictions.load(Ordering::Relaxed);
                let path = vec![2; n];
                pool.register(&got, &chain(0, &path), 0).unwrap();
                pool.mark_computed(&got).unwrap();
                assert_eq!(log.evictions.load(Ordering::Relaxed), evictions, "a commit evicts nothing");
                pool.release_table(&got).unwrap();
                assert_eq!(pool.allocate(7).unwrap().len(), 7, "{kind:?}: everything can be had");
                assert!(pool.allocate(1).is_err());
                pool.check_invariants().unwrap();
            }
        }
    }
}
