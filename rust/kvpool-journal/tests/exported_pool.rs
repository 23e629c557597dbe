//! A journal as a test: made by `kvpool journal export`.
#![cfg_attr(rustfmt, rustfmt_skip)]
#![allow(clippy::allow_attributes, unused_imports, unused_variables, unused_mut, dead_code, reason = "made by a program")]

use std::sync::Arc;

use kvpool::retention::{Keep, Priority, Retention, RetentionConfig, TenantId, TenantLimits, Then, Ttl};
use kvpool::{BlockHasher, BlockId, BlockPool, ChainLink, ExtraKeys, HashChain, HashCursor, HasherConfig, PoolConfig};

fn ids(ids: &[u32]) -> Vec<BlockId> {
    ids.iter().copied().map(BlockId::new).collect()
}

#[test]
fn journal() {
    let config = PoolConfig {
        num_blocks: 24,
        block_size: 2,
        duplicates: "keep".parse().unwrap(),
        eviction: "lru".parse().unwrap(),
        verify: "none".parse().unwrap(),
        event_capacity: 8,
        retention: Some(RetentionConfig { pin_budget: 2, tenants: vec![] }),
        ..PoolConfig::default()
    };
    let (block_size, verify) = (config.block_size, config.verify);
    let hasher = Arc::new(BlockHasher::new(HasherConfig { block_size, verify, ..HasherConfig::default() }).unwrap());
    let mut pool = BlockPool::new(config).unwrap();
    // A block by the number of its content.
    let block = |content: u32| -> Vec<u32> { std::iter::repeat_n(0, block_size - 1).chain([content]).collect() };
    let chain = |contents: &[u32], epoch: u64| -> HashChain {
        let mut cursor = HashCursor::new(hasher.clone(), ExtraKeys { epoch, ..ExtraKeys::default() }).unwrap();
        for &content in contents {
            cursor.append(&block(content));
        }
        cursor.chain().clone()
    };
    let link = |contents: &[u32], epoch: u64| -> ChainLink {
        let extra = ExtraKeys { epoch, ..ExtraKeys::default() };
        let mut last = None;
        for &content in contents {
            last = Some(ChainLink::new(&hasher, last.as_ref(), &block(content), &extra).unwrap());
        }
        last.unwrap()
    };

    // 0: [#1, #2, #3]
    let _ = pool.allocate(3);
    pool.check_invariants().unwrap();
    // 1: [#4]
    let _ = pool.allocate(1);
    pool.check_invariants().unwrap();
    // 2: [#5, #6, #7, #8, #9]
    let _ = pool.allocate(5);
    pool.check_invariants().unwrap();
    // 3: []
    let _ = pool.allocate(0);
    pool.check_invariants().unwrap();
    // 4: []
    let _ = pool.match_and_acquire(&chain(&[1, 2], 0), 6);
    pool.check_invariants().unwrap();
    // 5: []
    let _ = pool.match_and_acquire(&chain(&[3, 4], 0), 5);
    pool.check_invariants().unwrap();
    // 6: []
    let _ = pool.match_and_acquire(&chain(&[5, 6, 7, 8, 9, 10], 0), 5);
    pool.check_invariants().unwrap();
    // 7: []
    let _ = pool.match_and_acquire(&chain(&[3, 11], 0), 6);
    pool.check_invariants().unwrap();
    // 8: []
    let _ = pool.match_and_acquire_for(&chain(&[12], 0), usize::MAX, TenantId(1));
    pool.check_invariants().unwrap();
    // 9: Registered { blocks: 0, collided: false }
    let _ = pool.register(&ids(&[]), &chain(&[3, 4, 13, 14, 15, 16, 17, 18, 19], 0), 0);
    pool.check_invariants().unwrap();
    // 10: ()
    let _ = pool.mark_computed(&ids(&[]));
    pool.check_invariants().unwrap();
    // 11: Registered { blocks: 2, collided: false }
    let _ = pool.register(&ids(&[1, 2]), &chain(&[20, 21], 0), 0);
    pool.check_invariants().unwrap();
    // 12: ()
    let _ = pool.mark_computed(&ids(&[1, 2]));
    pool.check_invariants().unwrap();
    // 13: refused: block 1 is already registered
    let _ = pool.register(&ids(&[1, 2, 3, 5]), &chain(&[22, 23, 24, 25], 0), 0);
    pool.check_invariants().unwrap();
    // 14: refused: block 3 is not registered: register it before marking it computed
    let _ = pool.mark_computed(&ids(&[1, 2, 3, 5]));
    pool.check_invariants().unwrap();
    // 15: refused: block 1 is already registered
    let _ = pool.register(&ids(&[1, 2, 3, 5]), &chain(&[26, 27, 28, 29], 0), 0);
    pool.check_invariants().unwrap();
    // 16: ()
    let _ = pool.release(&ids(&[4]));
    pool.check_invariants().unwrap();
    // 17: ()
    let _ = pool.release(&ids(&[1, 2, 3, 5, 6, 7, 8, 9]));
    pool.check_invariants().unwrap();
    // 18: ()
    let _ = pool.release(&ids(&[]));
    pool.check_invariants().unwrap();
    // 19: ()
    let _ = pool.release_table(&ids(&[]));
    pool.check_invariants().unwrap();
    // 20: ()
    let _ = pool.release_after(&ids(&[]), 3);
    pool.check_invariants().unwrap();
    // 21: 0
    let _ = pool.complete_step(1);
    pool.check_invariants().unwrap();
    // 22: ()
    let _ = pool.acquire(&ids(&[]));
    pool.check_invariants().unwrap();
    // 23: Some(#1)
    let _ = pool.acquire_registered(&link(&[20], 0));
    pool.check_invariants().unwrap();
    // 24: ()
    let _ = pool.mark_accessed(&ids(&[]), 46.0);
    pool.check_invariants().unwrap();
    // 25: refused: 1 blocks are active and 0 fenced: release them first, or bump the epoch, which always succeeds
    let _ = pool.reset();
    pool.check_invariants().unwrap();
    // 26: 2 events
    let _ = pool.take_events();
    pool.check_invariants().unwrap();
    // 27: [#9]
    let _ = pool.allocate(1);
    pool.check_invariants().unwrap();
    // 28: [#8, #7, #6, #5]
    let _ = pool.allocate(4);
    pool.check_invariants().unwrap();
    // 29: []
    let _ = pool.allocate(0);
    pool.check_invariants().unwrap();
    // 30: []
    let _ = pool.allocate(0);
    pool.check_invariants().unwrap();
    // 31: []
    let _ = pool.match_and_acquire(&chain(&[30, 31], 0), 4);
    pool.check_invariants().unwrap();
    // 32: [#1]
    let _ = pool.match_and_acquire(&chain(&[20, 21, 32], 0), 1);
    pool.check_invariants().unwrap();
    // 33: []
    let _ = pool.match_and_acquire(&chain(&[33, 34, 35, 36], 0), 6);
    pool.check_invariants().unwrap();
    // 34: []
    let _ = pool.match_and_acquire(&chain(&[26, 37, 38, 39, 40, 41, 42, 43], 0), 5);
    pool.check_invariants().unwrap();
    // 35: []
    let _ = pool.match_and_acquire_for(&chain(&[3, 4, 13, 14, 44, 45], 0), usize::MAX, TenantId(1));
    pool.check_invariants().unwrap();
    // 36: Registered { blocks: 4, collided: false }
    let _ = pool.register(&ids(&[8, 7, 6, 5]), &chain(&[26, 37, 38, 39, 40, 46, 47], 0), 0);
    pool.check_invariants().unwrap();
    // 37: ()
    let _ = pool.mark_computed(&ids(&[8, 7, 6, 5]));
    pool.check_invariants().unwrap();
    // 38: Registered { blocks: 0, collided: false }
    let _ = pool.register(&ids(&[]), &chain(&[20, 48, 49, 50, 51, 52, 53], 0), 0);
    pool.check_invariants().unwrap();
    // 39: ()
    let _ = pool.mark_computed(&ids(&[]));
    pool.check_invariants().unwrap();
    // 40: refused: block 1 is already registered
    let _ = pool.register(&ids(&[9, 1]), &chain(&[20, 48, 49, 50, 51, 52, 53], 0), 0);
    pool.check_invariants().unwrap();
    // 41: refused: block 9 is not registered: register it before marking it computed
    let _ = pool.mark_computed(&ids(&[9, 1]));
    pool.check_invariants().unwrap();
    // 42: refused: block 8 is already registered
    let _ = pool.register(&ids(&[8, 7, 6, 5]), &chain(&[20, 48, 49, 50, 54], 0), 1);
    pool.check_invariants().unwrap();
    // 43: ()
    let _ = pool.release(&ids(&[8, 7, 6, 5]));
    pool.check_invariants().unwrap();
    // 44: ()
    let _ = pool.release(&ids(&[9, 1]));
    pool.check_invariants().unwrap();
    // 45: ()
    let _ = pool.release(&ids(&[]));
    pool.check_invariants().unwrap();
    // 46: ()
    let _ = pool.release_table(&ids(&[1]));
    pool.check_invariants().unwrap();
    // 47: ()
    let _ = pool.release_after(&ids(&[]), 3);
    pool.check_invariants().unwrap();
    // 48: 0
    let _ = pool.complete_step(3);
    pool.check_invariants().unwrap();
    // 49: ()
    let _ = pool.acquire(&ids(&[]));
    pool.check_invariants().unwrap();
    // 50: ()
    let _ = pool.assign_tenant(&ids(&[]), TenantId(0));
    pool.check_invariants().unwrap();
    // 51: refused: block id 27 is outside this pool: ids run from 1 to 23
    let _ = pool.evict(&ids(&[27, 1]));
    pool.check_invariants().unwrap();
    // 52: 4 events
    let _ = pool.take_events();
    pool.check_invariants().unwrap();
    // 53: [#9]
    let _ = pool.allocate(1);
    pool.check_invariants().unwrap();
    // 54: [#3, #4, #10, #11]
    let _ = pool.allocate(4);
    pool.check_invariants().unwrap();
    // 55: [#12, #13]
    let _ = pool.allocate(2);
    pool.check_invariants().unwrap();
    // 56: [#14, #15, #16, #17, #18]
    let _ = pool.allocate(5);
    pool.check_invariants().unwrap();
    // 57: [#1]
    let _ = pool.match_and_acquire(&chain(&[20, 48, 49, 50, 55, 56], 0), 1);
    pool.check_invariants().unwrap();
    // 58: []
    let _ = pool.match_and_acquire(&chain(&[3, 4, 13, 14, 15], 0), 4);
    pool.check_invariants().unwrap();
    // 59: []
    let _ = pool.match_and_acquire(&chain(&[3, 11, 57, 58], 0), 4);
    pool.check_invariants().unwrap();
    // 60: []
    let _ = pool.match_and_acquire(&chain(&[5, 6, 7, 59, 60], 0), 4);
    pool.check_invariants().unwrap();
    // 61: [#8, #7, #6]
    let _ = pool.match_and_acquire_for(&chain(&[26, 37, 38, 61, 62], 0), usize::MAX, TenantId(1));
    pool.check_invariants().unwrap();
    // 62: Registered { blocks: 0, collided: false }
    let _ = pool.register(&ids(&[]), &chain(&[33, 34, 35, 36], 0), 0);
    pool.check_invariants().unwrap();
    // 63: ()
    let _ = pool.mark_computed(&ids(&[]));
    pool.check_invariants().unwrap();
    // 64: Registered { blocks: 2, collided: false }
    let _ = pool.register(&ids(&[12, 13]), &chain(&[5, 6, 7, 8, 63, 64, 65, 66], 0), 0);
    pool.check_invariants().unwrap();
    // 65: ()
    let _ = pool.mark_computed(&ids(&[12, 13]));
    pool.check_invariants().unwrap();
    // 66: Registered { blocks: 0, collided: false }
    let _ = pool.register(&ids(&[]), &chain(&[26, 37, 38, 67], 0), 0);
    pool.check_invariants().unwrap();
    // 67: ()
    let _ = pool.mark_computed(&ids(&[]));
    pool.check_invariants().unwrap();
    // 68: Registered { blocks: 1, collided: false }
    let _ = pool.register(&ids(&[9]), &chain(&[33, 68, 69, 70], 0), 0);
    pool.check_invariants().unwrap();
    // 69: ()
    let _ = pool.release(&ids(&[12, 13]));
    pool.check_invariants().unwrap();
    // 70: ()
    let _ = pool.release(&ids(&[9]));
    pool.check_invariants().unwrap();
    // 71: ()
    let _ = pool.release(&ids(&[]));
    pool.check_invariants().unwrap();
    // 72: ()
    let _ = pool.release_table(&ids(&[]));
    pool.check_invariants().unwrap();
    // 73: ()
    let _ = pool.release_after(&ids(&[3, 4, 10, 11, 14, 15, 16, 17, 18, 1]), 3);
    pool.check_invariants().unwrap();
    // 74: 0
    let _ = pool.complete_step(5);
    pool.check_invariants().unwrap();
    // 75: ()
    let _ = pool.acquire(&ids(&[]));
    pool.check_invariants().unwrap();
    // 76: Some(#8)
    let _ = pool.acquire_registered(&link(&[26], 0));
    pool.check_invariants().unwrap();
    // 77: HintReport { accepted: 0, clipped: 0, ignored: 0 }
    let _ = pool.retain(&ids(&[]), Retention { keep: Keep::Demoted, ttl: None, then: Then::Demote });
    pool.check_invariants().unwrap();
    // 78: refused: block 0 is the null block: it cannot be evicted
    let _ = pool.evict(&ids(&[21, 0]));
    pool.check_invariants().unwrap();
    // 79: 2 events
    let _ = pool.take_events();
    pool.check_invariants().unwrap();
}
