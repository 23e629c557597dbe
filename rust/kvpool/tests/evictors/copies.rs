//! Tests several copies of one content, with every policy. Whichever copy is evicted, lookups still
//! reach the children of the content as long as they are cached. The laboratory checks random
//! histories.

use super::*;
use kvpool::{BlockPool, DuplicatePolicy, PoolConfig};

const PARENT: &[u8] = &[0];
const CHILD: &[u8] = &[0, 0];

fn pool_of(kind: Kind, duplicates: DuplicatePolicy) -> BlockPool {
    let config = PoolConfig { num_blocks: 8, block_size: BLOCK_SIZE, duplicates, ..Default::default() };
    BlockPool::with_evictor(config, kind.build(8, &RetentionConfig::default())).unwrap()
}

/// Returns pools with every policy and every setting for duplicate blocks (keep or drop).
fn pools() -> impl Iterator<Item = (BlockPool, String)> {
    Kind::all().into_iter().flat_map(|kind| {
        DuplicatePolicy::ALL
            .iter()
            .map(move |&duplicates| (pool_of(kind, duplicates), format!("{kind:?}, {duplicates:?}")))
    })
}

/// Allocates a block and registers it under the content at the end of `path`. The block is not marked
/// as computed.
fn begin(pool: &mut BlockPool, path: &[u8]) -> BlockId {
    let block = pool.allocate(1).unwrap();
    pool.register(&block, &chain(0, path), path.len() - 1).unwrap();
    block[0]
}

fn compute(pool: &mut BlockPool, path: &[u8]) -> BlockId {
    let block = begin(pool, path);
    pool.mark_computed(&[block]).unwrap();
    block
}

/// Gives a hint that makes the pool evict a copy of the parent as early as possible. Without retention,
/// the hint has no effect.
fn demote(pool: &mut BlockPool, block: BlockId) {
    if pool.retention_stats().is_some() {
        pool.retain(&[block], Retention::END_OF_LIFE).unwrap();
    }
}

/// Evicts blocks one by one. As long as the child is cached, a lookup has to reach it.
fn drain(pool: &mut BlockPool, child: BlockId, of: &str) {
    loop {
        pool.check_invariants().unwrap();
        if pool.is_computed(child) {
            let found = pool.probe(&chain(0, CHILD), 2).unwrap().cached_blocks;
            assert_eq!(found, 2, "{of}: the child is cached, and no lookup reaches it");
        }
        if pool.allocate(1).is_err() {
            return assert!(!pool.is_computed(child), "{of}: everything can be evicted");
        }
    }
}

/// A child is linked to one copy of its parent, but its holder holds another copy. The linked copy is
/// evicted or dropped. The child is then linked to a remaining copy.
#[test]
fn a_child_of_an_evicted_copy_gets_another_parent() {
    for (mut pool, of) in pools() {
        let (first, second) = (begin(&mut pool, PARENT), begin(&mut pool, PARENT));
        pool.mark_computed(&[first, second]).unwrap();
        let child = compute(&mut pool, CHILD); // of the second copy; lookups find the first
        pool.release(&[first]).unwrap();
        demote(&mut pool, first);
        let rest = pool.allocate(5).unwrap(); // all available blocks
        assert!(!pool.is_registered(first), "{of}");
        pool.release(&[child, second]).unwrap();
        demote(&mut pool, second);
        assert_eq!(indices(&pool.eviction_order()), indices(&[child, second]), "{of}");
        pool.release(&rest).unwrap();
        drain(&mut pool, child, &of);
    }
}

/// In an earlier version, `DropOnRelease` dropped a copy that had cached children, because another copy
/// without children was in use.
#[test]
fn a_copy_with_cached_children_is_not_dropped() {
    for (mut pool, of) in pools() {
        let first = compute(&mut pool, PARENT);
        let second = pool.allocate(2).unwrap(); // computed at the same time, with one more block
        pool.register(&second, &chain(0, CHILD), 0).unwrap();
        pool.mark_computed(&second).unwrap();
        pool.acquire(&second[..1]).unwrap(); // a fork
        pool.release_table(&second).unwrap();
        pool.release(&second[..1]).unwrap();
        if !of.contains("Plain(lru)") && !of.contains("last-accessed") {
            // LRU and `last-accessed` need not keep the second copy. The first copy is released after
            // the child, so the child is evicted before it.
            assert!(pool.is_registered(second[0]), "{of}: the child hangs on it");
        }
        pool.release(&[first]).unwrap();
        let copies = pool.copies(&chain(0, PARENT).hashes()[0]).len();
        assert_eq!(copies, if of.contains("Keep") { 2 } else { 1 }, "{of}");
        demote(&mut pool, first);
        demote(&mut pool, second[0]);
        drain(&mut pool, second[1], &of);
    }
}

/// In an earlier version, `DropOnRelease` kept only the older of two copies of a parent. LRU evicted
/// this copy before the children of the newer copy, which had been cached later.
#[test]
fn blocks_cached_after_a_dropped_copy_are_evicted_before_the_other_copy() {
    for (mut pool, of) in pools() {
        let (first, second) = (begin(&mut pool, PARENT), begin(&mut pool, PARENT));
        pool.mark_computed(&[first]).unwrap();
        pool.release(&[first]).unwrap();
        let other = compute(&mut pool, &[7]);
        pool.release(&[other]).unwrap();
        pool.mark_computed(&[second]).unwrap(); // later than the first copy, which has no references any more
        let child = compute(&mut pool, CHILD);
        pool.release(&[child, second]).unwrap();
        if of == "Plain(lru), DropOnRelease" {
            assert_eq!(indices(&pool.eviction_order()), indices(&[other, child, first]));
        }
        demote(&mut pool, first);
        drain(&mut pool, child, &of);
    }
}

/// In an earlier version, the child was linked to the oldest copy, and the holder of that copy released
/// it before it was computed. The copy from which the child was really computed was not protected.
#[test]
fn an_uncomputed_copy_is_no_parent() {
    for abort in [false, true] {
        for (mut pool, of) in pools() {
            let (first, second) = (begin(&mut pool, PARENT), begin(&mut pool, PARENT));
            // This is a child of the second copy. Its parent has two copies, and a lookup returns the
            // first of them.
            let child = begin(&mut pool, CHILD);
            pool.mark_computed(&[second, child]).unwrap();
            pool.release(&[child, second]).unwrap();
            demote(&mut pool, second);
            assert_eq!(indices(&pool.eviction_order()), indices(&[child, second]), "{of}");
            if abort {
                pool.release(&[first]).unwrap();
            }
            drain(&mut pool, child, &of);
        }
    }
}

/// A lookup reaches the child through another copy than the copy to which it is linked. The child is
/// then linked to the copy that its holder holds. The previously linked copy has no children left, and
/// can be evicted.
#[test]
fn a_hit_through_another_copy_leaves_no_hole() {
    for (mut pool, of) in pools() {
        let linked = pool.allocate(2).unwrap();
        pool.register(&linked, &chain(0, CHILD), 0).unwrap();
        let other = compute(&mut pool, PARENT); // lookups find the copy that is computed first
        pool.mark_computed(&linked).unwrap();
        pool.release_table(&linked).unwrap();
        pool.release(&[other]).unwrap();
        demote(&mut pool, linked[0]);
        let hit = pool.match_and_acquire(&chain(0, CHILD), 2).unwrap();
        let rest = pool.allocate(pool.num_available()).unwrap();
        assert_eq!(pool.stats().registered, 2, "{of}: only what was hit is left");
        pool.release_table(&hit).unwrap();
        demote(&mut pool, hit[0]);
        assert_eq!(indices(&pool.eviction_order()), indices(&[hit[1], hit[0]]), "{of}");
        pool.release(&rest).unwrap();
        drain(&mut pool, linked[1], &of);
    }
}

/// If a caller removes the content of a parent by id, the child remains cached, no lookup reaches it,
/// and it is evicted in the usual order.
#[test]
fn a_parent_dropped_by_id_leaves_its_child_to_the_order() {
    for (mut pool, of) in pools() {
        let parent = compute(&mut pool, PARENT);
        let child = compute(&mut pool, CHILD);
        pool.release(&[child, parent]).unwrap();
        pool.drop_cached(&[parent]).unwrap();
        assert_eq!(pool.probe(&chain(0, CHILD), 2).unwrap().cached_blocks, 0);
        // After the parent is computed again, lookups reach the child again. A hit links it to the new
        // parent.
        let again = compute(&mut pool, PARENT);
        let hit = pool.match_and_acquire(&chain(0, CHILD), 2).unwrap();
        assert_eq!(hit, [again, child]);
        pool.release_table(&hit).unwrap();
        pool.release(&[again]).unwrap();
        demote(&mut pool, again);
        drain(&mut pool, child, &of);
    }
}
