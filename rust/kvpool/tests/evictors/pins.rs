//! Tests blocks that a planned copy pins, with every policy. Their position in the order of eviction
//! follows from their last release. The laboratory checks random histories.

use super::*;
use kvpool::{BlockPool, BlockState, CacheManager, ManagerConfig, PoolConfig, RequestRef, Tiers};

const PROMPT: &[u8] = &[0, 0, 1];

struct Copied {
    tiers: Tiers,
    /// The blocks of a prompt. No request holds them, but a planned copy pins the second block.
    table: Vec<BlockId>,
}

impl Copied {
    /// Computes the prompt, and plans a copy of its second block, as if a request had been truncated
    /// inside of this block and then got a token. Then all of its blocks are released.
    fn new(kind: Kind) -> Self {
        let config = PoolConfig { num_blocks: 8, block_size: BLOCK_SIZE, ..Default::default() };
        let evictor = kind.build(8, &RetentionConfig::default());
        let mut tiers = Tiers::with_evictor(vec![config], evictor).unwrap();
        let pool = tiers.pool_mut(0).unwrap();
        let table = compute(pool, PROMPT);
        pool.release(&table[2..]).unwrap();
        let own = tiers.copy_on_write(0, table[1]).unwrap();
        assert_ne!(own, table[1]);
        tiers.pool_mut(0).unwrap().release_table(&[table[0], own]).unwrap();
        Self { tiers, table }
    }

    fn pool(&mut self) -> &mut BlockPool {
        self.tiers.pool_mut(0).unwrap()
    }

    fn found(&mut self) -> usize {
        self.pool().probe(&chain(0, PROMPT), 3).unwrap().cached_blocks
    }
}

/// Allocates and registers the blocks of a prompt, and marks them computed. The caller holds them.
fn compute(pool: &mut BlockPool, path: &[u8]) -> Vec<BlockId> {
    let table = pool.allocate(path.len()).unwrap();
    pool.register(&table, &chain(0, path), 0).unwrap();
    pool.mark_computed(&table).unwrap();
    table
}

/// In an earlier version, the block was added to the order only at the end of its pin, so after its
/// parent.
#[test]
fn a_pinned_block_is_evicted_before_its_parent() {
    for kind in Kind::all() {
        let mut copied = Copied::new(kind);
        let [first, second, third] = copied.table[..] else { panic!("three blocks") };
        assert_eq!(copied.pool().state(second), Some(BlockState::Fenced), "{kind:?}");
        assert_eq!(copied.pool().eviction_order(), [third, first], "{kind:?}: what can be had");
        assert_eq!((copied.pool().num_available(), copied.found()), (5, 3), "{kind:?}");
        copied.tiers.take_plan().unwrap();
        assert_eq!(copied.pool().eviction_order(), [third, second, first], "{kind:?}");
        for left in [2, 1, 0] {
            let free = copied.pool().stats().free;
            copied.pool().allocate(free + 1).unwrap();
            assert_eq!(copied.found(), left, "{kind:?}");
            copied.tiers.check_invariants().unwrap();
        }
    }
}

/// While the block is pinned, all other blocks are allocated. The block can be hit as long as it is
/// pinned. When the pin ends, the block is free, because its parents were evicted.
#[test]
fn a_pinned_block_whose_turn_comes_is_free_when_its_pin_ends() {
    for kind in Kind::all() {
        let mut copied = Copied::new(kind);
        let [first, second, third] = copied.table[..] else { panic!("three blocks") };
        let all = copied.pool().allocate(5).unwrap();
        assert!(all.contains(&first) && all.contains(&third) && !all.contains(&second), "{kind:?}");
        assert!(copied.pool().allocate(1).is_err());
        assert!(copied.pool().is_computed(second), "{kind:?}: it is still pinned");
        copied.tiers.check_invariants().unwrap();
        copied.tiers.take_plan().unwrap();
        assert_eq!(copied.pool().stats().registered, 0, "{kind:?}: no lookup can reach it");
        assert_eq!(copied.pool().state(second), Some(BlockState::Free), "{kind:?}");
        copied.tiers.check_invariants().unwrap();
    }
}

/// The pool needed the pinned block for an allocation, but kept it. Then another request computes the
/// parent again, and hits the block before its pin ends. When that request releases the block, it is
/// cached like any other block.
#[test]
fn a_pinned_block_that_is_hit_after_its_turn_has_a_place_again() {
    for kind in Kind::all() {
        let mut copied = Copied::new(kind);
        let second = copied.table[1];
        let all = copied.pool().allocate(5).unwrap();
        copied.pool().release(&all).unwrap();
        let again = compute(copied.pool(), &PROMPT[..1]);
        let hit = copied.pool().match_and_acquire(&chain(0, PROMPT), 3).unwrap();
        assert_eq!(hit, [again[0], second], "{kind:?}");
        copied.pool().release(&again).unwrap();
        copied.pool().release_table(&hit).unwrap();
        copied.tiers.take_plan().unwrap();
        assert_eq!(copied.pool().eviction_order(), [second, again[0]], "{kind:?}");
        copied.tiers.check_invariants().unwrap();
    }
}

/// While the block is pinned, the policy chooses it for eviction, and its parent is evicted. In an
/// earlier version, an aborted swap then added the block to the order again.
#[test]
fn a_swap_does_not_find_a_pinned_block_that_was_to_be_evicted() {
    let request = [RequestRef::Int(1)];
    let mut manager = CacheManager::new(ManagerConfig {
        num_blocks: 8,
        block_size: 2,
        host_blocks: 8,
        ..Default::default()
    })
    .unwrap();
    let prompt = manager.prepare(&[1, 2, 3, 4, 5], ExtraKeys::default()).unwrap();
    manager.admit(1, prompt.clone()).unwrap();
    manager.commit(1, 5).unwrap();
    let out = manager.begin_swap_out(&request).unwrap();
    manager.take_plan().unwrap();
    manager.complete_swap(out).unwrap();
    // Another request is truncated inside of the second block, and then writes to a copy of it.
    manager.admit(2, prompt.clone()).unwrap();
    manager.truncate(2, 3, None).unwrap();
    manager.append_tokens(2, &[7], 0).unwrap();
    manager.release(2, None).unwrap();
    manager.evict(1).unwrap();
    let back = manager.begin_swap_in(&request).unwrap();
    manager.take_plan().unwrap();
    manager.abort_swap(back).unwrap();
    let stats = manager.pool().stats();
    assert_eq!((stats.registered, stats.cached_free), (0, 0), "nothing is cached whose parent is not");
    manager.check_invariants().unwrap();
}

/// The content of the block can be removed by id or by a reset of all contents. Its pin still ends
/// correctly.
#[test]
fn the_content_of_a_pinned_block_can_be_dropped() {
    for kind in Kind::all() {
        for by_id in [false, true] {
            let mut copied = Copied::new(kind);
            let second = copied.table[1];
            if by_id {
                assert_eq!(copied.pool().drop_cached(&[second]).unwrap(), 1, "{kind:?}");
            } else {
                copied.pool().bump_epoch().unwrap();
            }
            assert!(!copied.pool().is_registered(second), "{kind:?}");
            copied.tiers.check_invariants().unwrap();
            copied.tiers.take_plan().unwrap();
            assert_eq!(copied.pool().state(second), Some(BlockState::Free), "{kind:?}");
            copied.tiers.check_invariants().unwrap();
        }
    }
}
