//! Tests policies that only implement the [`Evictor`] trait, like those of third parties. The pool
//! treats them like its own policies.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, as tests do")]

use std::cmp::Reverse;
use std::sync::Arc;

use kvpool::hash::HashChain;
use kvpool::{
    BlockHasher, BlockId, BlockPool, BlockState, Candidate, DuplicatePolicy, Evictor, ExtraKeys, HashCursor,
    HasherConfig, InvariantViolation, PoolConfig, PoolError, Refusal,
};

const B: usize = 2;
/// The largest number of blocks for which these policies have memory.
const MOST_BLOCKS: usize = 40;

/// A policy with one of two orders: the blocks that were cached first are evicted first (FIFO), or the
/// most recently used ones (MRU). Both evict the deepest block of one release first.
#[derive(Debug)]
struct Custom {
    most_recent: bool,
    /// The blocks that can be evicted, by release, the oldest release first. Within a release, they are
    /// in the order of eviction.
    releases: Vec<Vec<BlockId>>,
    num_blocks: usize,
    /// The blocks in the order in which they were first cached. Only FIFO uses this list.
    seen: Vec<BlockId>,
}

impl Custom {
    fn boxed(most_recent: bool) -> Box<dyn Evictor> {
        Box::new(Self { most_recent, releases: Vec::new(), num_blocks: 0, seen: Vec::new() })
    }
}

impl Evictor for Custom {
    fn name(&self) -> &'static str {
        if self.most_recent { "mru" } else { "fifo" }
    }

    fn insert(&mut self, candidates: &mut [Candidate]) {
        candidates.sort_by_key(|candidate| Reverse(candidate.depth));
        let fresh: Vec<_> = candidates.iter().map(|c| c.block).filter(|&b| !self.contains(b)).collect();
        assert!(fresh.iter().all(|b| b.index() < self.num_blocks), "the pool announced its size");
        self.seen.extend(fresh.iter().copied().filter(|b| !self.seen.contains(b)).collect::<Vec<_>>());
        self.releases.extend(Some(fresh).filter(|fresh| !fresh.is_empty()));
    }

    fn remove(&mut self, block: BlockId) -> bool {
        let held = self.contains(block);
        self.releases.iter_mut().for_each(|release| release.retain(|&b| b != block));
        self.releases.retain(|release| !release.is_empty());
        held
    }

    fn evict(&mut self) -> Option<BlockId> {
        let victim = self.order().first().copied()?;
        self.remove(victim);
        self.seen.retain(|&b| b != victim);
        Some(victim)
    }

    fn len(&self) -> usize {
        self.releases.iter().map(Vec::len).sum()
    }

    fn contains(&self, block: BlockId) -> bool {
        self.releases.iter().flatten().any(|&b| b == block)
    }

    fn order(&self) -> Vec<BlockId> {
        if self.most_recent {
            return self.releases.iter().rev().flatten().copied().collect();
        }
        self.seen.iter().copied().filter(|&block| self.contains(block)).collect()
    }

    fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        if num_blocks > MOST_BLOCKS {
            let expected = format!("at most {MOST_BLOCKS}");
            return Err(PoolError::config("num_blocks", num_blocks, expected));
        }
        self.num_blocks = num_blocks;
        Ok(())
    }

    fn check_invariants(&self) -> Result<(), InvariantViolation> {
        let unknown = self.releases.iter().flatten().find(|block| !self.seen.contains(block));
        unknown
            .map_or(Ok(()), |block| Err(InvariantViolation::new("C1", format!("{block:?} was never seen"))))
    }
}

fn pool(usable: usize, most_recent: bool) -> BlockPool {
    let config = PoolConfig { num_blocks: usable + 1, block_size: B, ..Default::default() };
    BlockPool::with_evictor(config, Custom::boxed(most_recent)).unwrap()
}

fn chain(tokens: &[u32]) -> HashChain {
    let hasher = BlockHasher::new(HasherConfig { block_size: B, ..Default::default() }).unwrap();
    let mut cursor = HashCursor::new(Arc::new(hasher), ExtraKeys::default()).unwrap();
    cursor.append(tokens);
    cursor.chain().clone()
}

fn fill(pool: &mut BlockPool, tokens: &[u32]) -> Vec<BlockId> {
    let chain = chain(tokens);
    let blocks = pool.allocate(chain.len()).unwrap();
    pool.register(&blocks, &chain, 0).unwrap();
    pool.mark_computed(&blocks).unwrap();
    blocks
}

fn raw(blocks: &[BlockId]) -> Vec<u32> {
    blocks.iter().map(|block| block.get()).collect()
}

#[test]
fn the_policy_alone_decides_the_order_of_victims() {
    for (most_recent, expected, after_hit) in
        [(true, [6, 5, 4, 3, 2, 1], [2, 1, 6, 5, 4, 3]), (false, [2, 1, 4, 3, 6, 5], [2, 1, 4, 3, 6, 5])]
    {
        let mut pool = pool(6, most_recent);
        for tokens in [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]] {
            let table = fill(&mut pool, &tokens);
            pool.release_table(&table).unwrap();
            pool.check_invariants().unwrap();
        }
        assert_eq!(raw(&pool.eviction_order()), expected);
        // A hit removes blocks from the order. Their release adds them again at the position that the
        // policy chooses.
        let hit = pool.match_and_acquire(&chain(&[1, 2, 3, 4]), 2).unwrap();
        assert_eq!((raw(&hit), pool.stats().cached_free), (vec![1, 2], 4));
        assert!(!pool.eviction_order().contains(&hit[0]));
        pool.release_table(&hit).unwrap();
        assert_eq!(raw(&pool.eviction_order()), after_hit);
        for victim in after_hit {
            assert_eq!(raw(&pool.allocate(1).unwrap()), [victim]);
            pool.check_invariants().unwrap();
        }
        assert_eq!((pool.stats().evicted, pool.num_available()), (6, 0));
        assert!(pool.match_and_acquire(&chain(&[1, 2, 3, 4]), 2).unwrap().is_empty());
    }
}

#[test]
fn every_operation_of_the_pool_works_with_a_policy_of_others() {
    for most_recent in [false, true] {
        for duplicates in [DuplicatePolicy::Keep, DuplicatePolicy::DropOnRelease] {
            let config = PoolConfig { num_blocks: 8, block_size: B, duplicates, ..Default::default() };
            let mut pool = BlockPool::with_evictor(config, Custom::boxed(most_recent)).unwrap();
            let (one, two) = (fill(&mut pool, &[1, 2, 3, 4]), fill(&mut pool, &[1, 2, 3, 4]));
            pool.release_table(&one).unwrap();
            pool.release_after(&two, 3).unwrap();
            pool.check_invariants().unwrap();
            let before = (pool.free_order(), pool.eviction_order(), pool.stats());
            assert!(matches!(
                pool.allocate(8),
                Err(PoolError::OutOfBlocks(Refusal { needed: 8, fenced: 2, .. }))
            ));
            assert!(pool.release(&two).is_err());
            assert_eq!((pool.free_order(), pool.eviction_order(), pool.stats()), before);
            pool.complete_step(3).unwrap();
            pool.check_invariants().unwrap();
            let kept = if duplicates == DuplicatePolicy::Keep { 4 } else { 2 };
            assert_eq!(pool.stats().cached_free, kept);
            pool.resize(10).unwrap(); // the policy gets blocks 8 and 9, too
            assert_eq!(pool.drop_cached(&pool.eviction_order()[..1]).unwrap(), 1);
            pool.check_invariants().unwrap();
            assert_eq!(pool.num_available(), 9);
            let all = pool.allocate(9).unwrap();
            pool.release(&all).unwrap();
            let long: Vec<_> = (0..18).collect();
            let table = fill(&mut pool, &long);
            pool.release_table(&table).unwrap();
            assert_eq!(pool.stats().cached_free, 9);
            assert!(
                pool.state(table[8]) == Some(BlockState::CachedFree) && pool.eviction_order()[0] == table[8]
            );
            assert_eq!(pool.bump_epoch().unwrap(), 1);
            assert_eq!((pool.stats().free, pool.stats().cached_free), (9, 0));
            assert_eq!(pool.reset().unwrap(), 0);
            pool.check_invariants().unwrap();
        }
    }
}

#[test]
fn a_policy_that_holds_blocks_already_is_refused() {
    let mut policy = Custom::boxed(true);
    policy.grow(3).unwrap();
    policy.insert(&mut [Candidate { block: BlockId::new(2), depth: 0 }]);
    let config = PoolConfig { num_blocks: 4, block_size: B, ..Default::default() };
    let error = BlockPool::with_evictor(config, policy).unwrap_err();
    assert_eq!(error.to_string(), "evictor is mru with 1 blocks: must be empty");
}

#[test]
fn a_policy_that_cannot_grow_leaves_the_pool_as_it_was() {
    let mut pool = pool(9, true);
    let table = fill(&mut pool, &[1, 2, 3, 4]);
    pool.release_table(&table).unwrap();
    let before = (pool.free_order(), pool.eviction_order(), pool.stats());
    let error = pool.resize(MOST_BLOCKS + 1).unwrap_err();
    assert_eq!(error.to_string(), "num_blocks is 41: must be at most 40");
    assert_eq!((pool.free_order(), pool.eviction_order(), pool.stats()), before);
    pool.check_invariants().unwrap();
    assert!(pool.allocate(10).is_err());
    pool.resize(MOST_BLOCKS).unwrap();
    assert_eq!(pool.num_available(), 39);
    pool.check_invariants().unwrap();
    assert_eq!(pool.allocate(39).unwrap().len(), 39);
}
