use std::sync::Arc;

use kvpool_testing::block_ids;
use kvpool_testing::indices;
use kvpool::*;
use kvpool_observe::*;

fn extra(salt: &[u8], epoch: u64) -> ExtraKeys {
    let salt = (!salt.is_empty()).then(|| salt.into());
    ExtraKeys { salt, epoch, ..Default::default() }
}

fn hasher() -> Arc<BlockHasher> {
    let config = HasherConfig { block_size: 2, verify: Verify::Tokens, ..Default::default() };
    Arc::new(BlockHasher::new(config).unwrap())
}

fn chain(salt: &[u8], tokens: &[u32], epoch: u64) -> HashChain {
    let mut cursor = HashCursor::new(hasher(), extra(salt, epoch)).unwrap();
    cursor.append(tokens);
    cursor.chain().clone()
}

fn closed(batch: EventBatch) {
    let mut cached = std::collections::BTreeMap::new();
    for event in batch.events {
        match event {
            BlockEvent::Stored { hash, parent, .. } => drop(cached.insert(hash, parent)),
            BlockEvent::Removed { hash, .. } => drop(cached.remove(&hash)),
            _ => cached.clear(),
        }
    }
    assert!(cached.values().flatten().all(|parent| cached.contains_key(parent)));
}

#[test]
fn written() {
    let mut pool = BlockPool::new(PoolConfig { num_blocks: 4, block_size: 2, verify: Verify::Fingerprint, duplicates: DuplicatePolicy::DropOnRelease, ..Default::default() }).unwrap().watched(&WatchConfig { event_capacity: 1000, ..Default::default() }).unwrap();
    pool.complete_step(3).unwrap();
    assert_eq!(pool.allocate(5).ok().map(|blocks| indices(&blocks)), None);
    assert_eq!(pool.allocate(5).ok().map(|blocks| indices(&blocks)), None);
    assert!(pool.acquire(&block_ids(&[])).is_ok());
    assert_eq!(pool.allocate(0).ok().map(|blocks| indices(&blocks)), Some(vec![]));
    assert!(pool.acquire(&block_ids(&[])).is_ok());
    assert_eq!(pool.allocate(0).ok().map(|blocks| indices(&blocks)), Some(vec![]));
    assert_eq!(pool.allocate(3).ok().map(|blocks| indices(&blocks)), Some(vec![1, 2, 3]));
    assert_eq!(indices(&pool.match_and_acquire(&chain(b"", &[0, 0, 0], 0), 1).unwrap()), Vec::<usize>::new());
    assert_eq!(pool.allocate(1).ok().map(|blocks| indices(&blocks)), None);
    assert!(pool.release(&block_ids(&[])).is_ok());
    assert_eq!(pool.allocate(3).ok().map(|blocks| indices(&blocks)), None);
    assert!(pool.release_table(&block_ids(&[1, 2, 3])).is_ok());
    assert_eq!(pool.allocate(0).ok().map(|blocks| indices(&blocks)), Some(vec![]));
    assert_eq!(pool.allocate(3).ok().map(|blocks| indices(&blocks)), Some(vec![1, 2, 3]));
    assert_eq!(pool.allocate(6).ok().map(|blocks| indices(&blocks)), None);
    assert_eq!(pool.allocate(2).ok().map(|blocks| indices(&blocks)), None);
    assert!(pool.mark_computed(&block_ids(&[1, 2, 3])).is_err());
    assert_eq!(pool.allocate(2).ok().map(|blocks| indices(&blocks)), None);
    assert!(pool.release_table(&block_ids(&[1, 2, 3])).is_ok());
    assert_eq!(pool.allocate(5).ok().map(|blocks| indices(&blocks)), None);
    assert!(pool.acquire(&block_ids(&[])).is_ok());
    assert_eq!(pool.allocate(3).ok().map(|blocks| indices(&blocks)), Some(vec![1, 2, 3]));
    assert_eq!(pool.allocate(3).ok().map(|blocks| indices(&blocks)), None);
    assert!(pool.resize(5).is_ok());
    assert_eq!(indices(&pool.match_and_acquire(&chain(b"", &[0, 0, 0, 0, 1, 0, 0, 0, 0], 0), 0).unwrap()), Vec::<usize>::new());
    assert_eq!(pool.allocate(6).ok().map(|blocks| indices(&blocks)), None);
    assert!(pool.release_table(&block_ids(&[1, 2, 3])).is_ok());
    assert_eq!(pool.allocate(6).ok().map(|blocks| indices(&blocks)), None);
    assert_eq!(pool.allocate(0).ok().map(|blocks| indices(&blocks)), Some(vec![]));
    assert_eq!(indices(&pool.match_and_acquire(&chain(b"", &[], 0), 0).unwrap()), Vec::<usize>::new());
    assert_eq!(pool.allocate(0).ok().map(|blocks| indices(&blocks)), Some(vec![]));
    assert!(pool.register(&block_ids(&[]), &chain(b"", &[], 0), 0).is_ok());
    assert!(pool.mark_computed(&block_ids(&[])).is_ok());
    assert!(pool.release_table(&block_ids(&[])).is_ok());
    assert_eq!(pool.allocate(0).ok().map(|blocks| indices(&blocks)), Some(vec![]));
    assert!(pool.acquire(&block_ids(&[])).is_ok());
    assert_eq!(pool.allocate(4).ok().map(|blocks| indices(&blocks)), Some(vec![1, 2, 3, 4]));
    assert_eq!(pool.allocate(4).ok().map(|blocks| indices(&blocks)), None);
    assert!(pool.mark_computed(&block_ids(&[1, 2, 3, 4])).is_err());
    assert!(pool.mark_computed(&block_ids(&[1, 2, 3, 4])).is_err());
    assert_eq!(pool.allocate(6).ok().map(|blocks| indices(&blocks)), None);
    assert_eq!(pool.allocate(4).ok().map(|blocks| indices(&blocks)), None);
    assert_eq!(pool.allocate(0).ok().map(|blocks| indices(&blocks)), Some(vec![]));
    assert!(pool.release_table(&block_ids(&[1, 2, 3, 4])).is_ok());
    assert_eq!(indices(&pool.match_and_acquire(&chain(b"", &[0, 0, 0, 0, 0], 0), 4).unwrap()), Vec::<usize>::new());
    assert_eq!(pool.allocate(0).ok().map(|blocks| indices(&blocks)), Some(vec![]));
    assert_eq!(pool.allocate(0).ok().map(|blocks| indices(&blocks)), Some(vec![]));
    assert!(pool.release_table(&block_ids(&[])).is_ok());
    assert!(pool.acquire(&block_ids(&[])).is_ok());
    assert_eq!(pool.allocate(3).ok().map(|blocks| indices(&blocks)), Some(vec![1, 2, 3]));
    assert_eq!(pool.allocate(6).ok().map(|blocks| indices(&blocks)), None);
    assert_eq!(pool.allocate(4).ok().map(|blocks| indices(&blocks)), None);
    assert_eq!(pool.allocate(4).ok().map(|blocks| indices(&blocks)), None);
    assert_eq!(indices(&pool.match_and_acquire(&chain(b"", &[0, 0, 0, 0, 0, 0], 0), 2).unwrap()), Vec::<usize>::new());
    assert_eq!(pool.allocate(6).ok().map(|blocks| indices(&blocks)), None);
    assert!(pool.acquire(&block_ids(&[1, 2, 3])).is_ok());
    assert_eq!(indices(&pool.match_and_acquire(&chain(b"", &[0, 0], 0), 1).unwrap()), Vec::<usize>::new());
    assert_eq!(pool.allocate(1).ok().map(|blocks| indices(&blocks)), Some(vec![4]));
    assert!(pool.register(&block_ids(&[4]), &chain(b"", &[0, 0], 0), 0).is_ok());
    assert!(pool.mark_computed(&block_ids(&[4])).is_ok());
    assert_eq!(indices(&pool.match_and_acquire(&chain(b"", &[0], 0), 0).unwrap()), Vec::<usize>::new());
    assert_eq!(pool.allocate(0).ok().map(|blocks| indices(&blocks)), Some(vec![]));
    assert!(pool.register(&block_ids(&[]), &chain(b"", &[0], 0), 0).is_ok());
    assert_eq!(pool.allocate(3).ok().map(|blocks| indices(&blocks)), None);
    assert!(pool.acquire(&block_ids(&[4])).is_ok());
    assert_eq!(indices(&pool.match_and_acquire(&chain(b"", &[0, 0, 0, 0, 1, 0, 0, 0, 0], 0), 4).unwrap()), [4]);
    assert_eq!(indices(&pool.match_and_acquire(&chain(b"", &[1, 0, 0, 0, 0], 0), 1).unwrap()), Vec::<usize>::new());
    assert_eq!(pool.allocate(5).ok().map(|blocks| indices(&blocks)), None);
    assert!(pool.mark_computed(&block_ids(&[4])).is_ok());
    assert_eq!(pool.allocate(3).ok().map(|blocks| indices(&blocks)), None);
    assert!(pool.release_table(&block_ids(&[1, 2, 3])).is_ok());
    assert!(pool.reset().is_err());
    assert_eq!(pool.allocate(5).ok().map(|blocks| indices(&blocks)), None);
    assert_eq!(pool.allocate(2).ok().map(|blocks| indices(&blocks)), None);
    assert_eq!(pool.allocate(1).ok().map(|blocks| indices(&blocks)), None);
    assert_eq!(pool.allocate(2).ok().map(|blocks| indices(&blocks)), None);
    assert_eq!(pool.allocate(6).ok().map(|blocks| indices(&blocks)), None);
    assert_eq!(indices(&pool.match_and_acquire(&chain(b"", &[0, 0, 0, 0, 0, 0], 0), 0).unwrap()), Vec::<usize>::new());
    pool.bump_epoch().unwrap();
    assert_eq!(pool.allocate(3).ok().map(|blocks| indices(&blocks)), None);
    assert!(pool.acquire(&block_ids(&[1, 2, 3])).is_ok());
    assert!(pool.release_table(&block_ids(&[1, 2, 3])).is_ok());
    assert_eq!(pool.allocate(4).ok().map(|blocks| indices(&blocks)), None);
    assert_eq!(pool.allocate(2).ok().map(|blocks| indices(&blocks)), None);
    assert_eq!(indices(&pool.match_and_acquire(&chain(b"", &[0, 0, 0, 0, 0], 1), 2).unwrap()), Vec::<usize>::new());
    assert_eq!(pool.allocate(2).ok().map(|blocks| indices(&blocks)), None);
    assert!(pool.release(&block_ids(&[])).is_ok());
    assert_eq!(indices(&pool.match_and_acquire(&chain(b"", &[0, 0, 1, 0], 1), 3).unwrap()), Vec::<usize>::new());
    assert!(pool.release_table(&block_ids(&[1, 2, 3])).is_ok());
    assert_eq!(indices(&pool.match_and_acquire(&chain(b"", &[0, 0, 0, 0, 0], 1), 2).unwrap()), Vec::<usize>::new());
    assert_eq!(pool.allocate(2).ok().map(|blocks| indices(&blocks)), Some(vec![1, 2]));
    assert!(pool.register(&block_ids(&[1, 2]), &chain(b"", &[0, 0, 0, 0, 0], 1), 0).is_ok());
    assert!(pool.mark_computed(&block_ids(&[1, 2])).is_ok());
    assert_eq!(pool.allocate(6).ok().map(|blocks| indices(&blocks)), None);
    assert_eq!(pool.allocate(3).ok().map(|blocks| indices(&blocks)), None);
    assert_eq!(indices(&pool.match_and_acquire(&chain(b"", &[0, 0, 0, 0, 0, 0], 1), 3).unwrap()), [1, 2]);
    assert_eq!(pool.allocate(1).ok().map(|blocks| indices(&blocks)), Some(vec![3]));
    assert!(pool.register(&block_ids(&[3]), &chain(b"", &[0, 0, 0, 0, 0, 0], 1), 2).is_ok());
    assert!(pool.mark_computed(&block_ids(&[3])).is_ok());
    assert_eq!(pool.allocate(0).ok().map(|blocks| indices(&blocks)), Some(vec![]));
    assert_eq!(pool.allocate(5).ok().map(|blocks| indices(&blocks)), None);
    assert!(pool.release_table(&block_ids(&[])).is_ok());
    assert!(pool.mark_computed(&block_ids(&[4])).is_err());
    assert!(pool.acquire(&block_ids(&[4])).is_ok());
    assert_eq!(indices(&pool.match_and_acquire(&chain(b"", &[], 1), 0).unwrap()), Vec::<usize>::new());
    assert_eq!(indices(&pool.match_and_acquire(&chain(b"", &[0, 0], 1), 1).unwrap()), [1]);
    assert_eq!(pool.allocate(0).ok().map(|blocks| indices(&blocks)), Some(vec![]));
    assert!(pool.register(&block_ids(&[]), &chain(b"", &[0, 0], 1), 1).is_ok());
    assert!(pool.mark_computed(&block_ids(&[])).is_ok());
    assert_eq!(pool.allocate(2).ok().map(|blocks| indices(&blocks)), None);
    assert!(pool.acquire(&block_ids(&[4])).is_ok());
    assert_eq!(pool.allocate(2).ok().map(|blocks| indices(&blocks)), None);
    assert_eq!(pool.allocate(3).ok().map(|blocks| indices(&blocks)), None);
    assert!(pool.resize(6).is_ok());
    assert_eq!(indices(&pool.match_and_acquire(&chain(b"", &[1, 1, 1, 1, 1, 1], 1), 5).unwrap()), Vec::<usize>::new());
    assert_eq!(pool.allocate(4).ok().map(|blocks| indices(&blocks)), None);
    assert!(pool.acquire(&block_ids(&[1, 2, 3])).is_ok());
    assert!(pool.release_table(&block_ids(&[1, 2])).is_ok());
    assert_eq!(indices(&pool.match_and_acquire(&chain(b"", &[0, 0, 0, 0, 1, 0], 1), 3).unwrap()), [1, 2]);
    assert_eq!(pool.allocate(1).ok().map(|blocks| indices(&blocks)), Some(vec![5]));
    assert!(pool.register(&block_ids(&[5]), &chain(b"", &[0, 0, 0, 0, 1, 0], 1), 2).is_ok());
    assert!(pool.mark_computed(&block_ids(&[5])).is_ok());
    assert!(pool.resize(7).is_ok());
    assert_eq!(indices(&pool.match_and_acquire(&chain(b"", &[0, 0], 1), 1).unwrap()), [1]);
    assert_eq!(pool.allocate(0).ok().map(|blocks| indices(&blocks)), Some(vec![]));
    assert!(pool.register(&block_ids(&[]), &chain(b"", &[0, 0], 1), 1).is_ok());
    assert!(pool.release_table(&block_ids(&[1, 2, 3])).is_ok());
    assert_eq!(pool.allocate(0).ok().map(|blocks| indices(&blocks)), Some(vec![]));
    assert_eq!(pool.allocate(0).ok().map(|blocks| indices(&blocks)), Some(vec![]));
    assert_eq!(pool.allocate(0).ok().map(|blocks| indices(&blocks)), Some(vec![]));
    assert!(pool.acquire(&block_ids(&[4])).is_ok());
    assert_eq!(pool.allocate(0).ok().map(|blocks| indices(&blocks)), Some(vec![]));
    assert_eq!(pool.allocate(6).ok().map(|blocks| indices(&blocks)), None);
    assert_eq!(pool.allocate(4).ok().map(|blocks| indices(&blocks)), None);
    assert_eq!(indices(&pool.match_and_acquire(&chain(b"", &[0, 0, 0], 1), 1).unwrap()), [1]);
    assert_eq!(pool.allocate(0).ok().map(|blocks| indices(&blocks)), Some(vec![]));
    assert!(pool.register(&block_ids(&[]), &chain(b"", &[0, 0, 0], 1), 1).is_ok());
    assert!(pool.acquire(&block_ids(&[4])).is_ok());
    assert_eq!(pool.allocate(5).ok().map(|blocks| indices(&blocks)), None);
    assert_eq!(pool.allocate(1).ok().map(|blocks| indices(&blocks)), Some(vec![6]));
    assert!(pool.acquire(&block_ids(&[4])).is_ok());
    assert_eq!(pool.allocate(4).ok().map(|blocks| indices(&blocks)), None);
    assert_eq!(pool.allocate(6).ok().map(|blocks| indices(&blocks)), None);
    assert_eq!(pool.allocate(1).ok().map(|blocks| indices(&blocks)), None);
    assert_eq!(pool.allocate(1).ok().map(|blocks| indices(&blocks)), None);
    assert!(pool.mark_computed(&block_ids(&[1, 2, 5])).is_ok());
    assert!(pool.release_table(&block_ids(&[4])).is_ok());
    assert_eq!(indices(&pool.match_and_acquire(&chain(b"", &[0, 0, 0, 0, 0, 0], 1), 1).unwrap()), [1]);
    assert_eq!(pool.allocate(0).ok().map(|blocks| indices(&blocks)), Some(vec![]));
    pool.check_invariants().unwrap();
    assert_eq!(indices(&pool.free_order()), Vec::<usize>::new());
    assert_eq!(indices(&pool.eviction_order()), Vec::<usize>::new());
    closed(pool.take_events());
}
