use std::sync::Arc;

use kvpool::retention::*;
use kvpool_testing::block_ids;
use kvpool_testing::indices;
use kvpool::*;

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

fn link(salt: &[u8], tokens: &[u32], epoch: u64) -> ChainLink {
    let next = |before: Option<ChainLink>, tokens| {
        Some(ChainLink::new(&hasher(), before.as_ref(), tokens, &extra(salt, epoch)).unwrap())
    };
    tokens.chunks_exact(2).fold(None, next).unwrap()
}

#[test]
fn written() {
    let mut pool = BlockPool::new(PoolConfig { num_blocks: 6, block_size: 2, verify: Verify::Fingerprint, ..Default::default() }).unwrap();
    assert_eq!(pool.allocate(1).ok().map(|blocks| indices(&blocks)), Some(vec![1]));
    assert!(pool.mark_computed(&block_ids(&[1])).is_err());
    assert_eq!(indices(pool.lookup_refreshing(&chain(b"", &[0, 0, 0, 0, 0, 0, 0, 0], 0), 0, 1).unwrap().blocks()), Vec::<usize>::new());
    assert!(pool.mark_computed(&block_ids(&[4])).is_err());
    assert_eq!(pool.allocate(6).ok().map(|blocks| indices(&blocks)), None);
    pool.complete_step(2).unwrap();
    assert!(pool.acquire_match(&Match::new(&chain(b"", &[0, 0, 0, 0, 0, 0, 0, 0], 0), 0, &block_ids(&[])).unwrap()).is_ok());
    assert_eq!(pool.allocate(2).ok().map(|blocks| indices(&blocks)), Some(vec![2, 3]));
    assert_eq!(pool.allocate(4).ok().map(|blocks| indices(&blocks)), None);
    assert!(pool.register(&block_ids(&[]), &chain(b"s", &[0], 0), 0).is_ok());
    assert_eq!(pool.allocate(1).ok().map(|blocks| indices(&blocks)), Some(vec![4]));
    assert!(pool.acquire_match(&Match::new(&chain(b"", &[0, 0, 0, 0, 0, 0, 0, 0], 0), 0, &block_ids(&[])).unwrap()).is_ok());
    assert!(pool.disown(&block_ids(&[4])).is_ok());
    assert_eq!(pool.allocate(4).ok().map(|blocks| indices(&blocks)), None);
    assert_eq!(indices(pool.lookup_refreshing(&chain(b"", &[1, 0], 0), 0, 4).unwrap().blocks()), Vec::<usize>::new());
    assert!(pool.disown(&block_ids(&[1])).is_ok());
    assert_eq!(pool.allocate(1).ok().map(|blocks| indices(&blocks)), Some(vec![1]));
    assert!(pool.acquire(&block_ids(&[1])).is_ok());
    assert_eq!(indices(&pool.match_and_acquire(&chain(b"", &[], 0), 0).unwrap()), Vec::<usize>::new());
    assert_eq!(pool.allocate(4).ok().map(|blocks| indices(&blocks)), None);
    assert_eq!(pool.allocate(0).ok().map(|blocks| indices(&blocks)), Some(vec![]));
    assert!(pool.register(&block_ids(&[2]), &chain(b"", &[0, 0], 0), 0).is_ok());
    assert_eq!(indices(&pool.match_and_acquire(&chain(b"", &[0, 0, 0, 0, 0], 0), 2).unwrap()), Vec::<usize>::new());
    assert_eq!(pool.allocate(2).ok().map(|blocks| indices(&blocks)), Some(vec![4, 5]));
    assert!(pool.register(&block_ids(&[4, 5]), &chain(b"", &[0, 0, 0, 0, 0], 0), 0).is_ok());
    assert!(pool.mark_computed(&block_ids(&[4, 5])).is_ok());
    assert_eq!(pool.allocate(3).ok().map(|blocks| indices(&blocks)), None);
    assert!(pool.adopt(&block_ids(&[]), &chain(b"", &[0, 0, 0, 0], 0), 0).is_ok());
    assert_eq!(pool.allocate(3).ok().map(|blocks| indices(&blocks)), None);
    assert_eq!(pool.allocate(4).ok().map(|blocks| indices(&blocks)), None);
    assert_eq!(pool.allocate(1).ok().map(|blocks| indices(&blocks)), None);
    assert_eq!(pool.register_link(BlockId::new(1), &link(b"", &[0, 0, 0, 0], 0)).ok().map(BlockId::index), Some(5));
    assert!(pool.acquire(&block_ids(&[5])).is_ok());
    assert!(pool.mark_computed(&block_ids(&[2, 3])).is_err());
    let _ = pool.mark_accessed(&block_ids(&[12]), 122.0);
    assert_eq!(indices(&pool.match_and_acquire(&chain(b"", &[], 0), 0).unwrap()), Vec::<usize>::new());
    assert_eq!(pool.allocate(0).ok().map(|blocks| indices(&blocks)), Some(vec![]));
    assert!(pool.register(&block_ids(&[]), &chain(b"", &[], 0), 0).is_ok());
    assert_eq!(pool.allocate(4).ok().map(|blocks| indices(&blocks)), None);
    assert!(pool.mark_computed(&block_ids(&[5])).is_ok());
    assert_eq!(indices(&pool.match_and_acquire(&chain(b"", &[1, 1], 0), 2).unwrap()), Vec::<usize>::new());
    assert_eq!(pool.allocate(5).ok().map(|blocks| indices(&blocks)), None);
    assert_eq!(pool.allocate(1).ok().map(|blocks| indices(&blocks)), None);
    assert!(pool.acquire(&block_ids(&[])).is_ok());
    let _ = pool.retain(&block_ids(&[]), Retention { keep: Keep::Priority(Priority::new(48).unwrap()), ttl: None, then: Then::Normal });
    assert!(pool.mark_computed(&block_ids(&[2, 3])).is_err());
    assert_eq!(pool.allocate(2).ok().map(|blocks| indices(&blocks)), None);
    assert_eq!(pool.allocate(6).ok().map(|blocks| indices(&blocks)), None);
    assert_eq!(pool.allocate(3).ok().map(|blocks| indices(&blocks)), None);
    assert_eq!(indices(&pool.match_and_acquire(&chain(b"", &[], 0), 1).unwrap()), Vec::<usize>::new());
    assert!(pool.adopt(&block_ids(&[]), &chain(b"", &[0, 0, 1, 0, 0], 0), 0).is_ok());
    assert_eq!(indices(&pool.match_and_acquire(&chain(b"", &[0, 0, 0, 0], 0), 2).unwrap()), [4, 5]);
    assert_eq!(pool.allocate(0).ok().map(|blocks| indices(&blocks)), Some(vec![]));
    assert!(pool.register(&block_ids(&[]), &chain(b"", &[0, 0, 0, 0], 0), 2).is_ok());
    assert!(pool.mark_computed(&block_ids(&[])).is_ok());
    let _ = pool.advance_time(3.0);
    assert_eq!(pool.allocate(6).ok().map(|blocks| indices(&blocks)), None);
    assert_eq!(pool.allocate(6).ok().map(|blocks| indices(&blocks)), None);
    assert_eq!(indices(&pool.match_and_acquire(&chain(b"", &[0, 0, 0], 0), 1).unwrap()), [4]);
    assert_eq!(pool.allocate(0).ok().map(|blocks| indices(&blocks)), Some(vec![]));
    assert!(pool.register(&block_ids(&[]), &chain(b"", &[0, 0, 0], 0), 1).is_ok());
    assert!(pool.mark_computed(&block_ids(&[])).is_ok());
    assert_eq!(indices(&pool.match_and_acquire(&chain(b"", &[0, 0], 0), 1).unwrap()), [4]);
    assert!(pool.acquire(&block_ids(&[1])).is_ok());
    assert_eq!(pool.allocate(6).ok().map(|blocks| indices(&blocks)), None);
    assert_eq!(pool.allocate(0).ok().map(|blocks| indices(&blocks)), Some(vec![]));
    assert!(pool.acquire(&block_ids(&[4])).is_ok());
    assert!(pool.acquire(&block_ids(&[0, 1, 0])).is_err());
    assert_eq!(pool.allocate(0).ok().map(|blocks| indices(&blocks)), Some(vec![]));
    assert_eq!(pool.allocate(2).ok().map(|blocks| indices(&blocks)), None);
    assert_eq!(indices(&pool.match_and_acquire(&chain(b"", &[0], 0), 0).unwrap()), Vec::<usize>::new());
    assert_eq!(pool.allocate(0).ok().map(|blocks| indices(&blocks)), Some(vec![]));
    assert!(pool.register(&block_ids(&[]), &chain(b"", &[0], 0), 0).is_ok());
    assert!(pool.mark_computed(&block_ids(&[])).is_ok());
    assert!(pool.release_table(&block_ids(&[4, 5])).is_ok());
    assert_eq!(pool.allocate(3).ok().map(|blocks| indices(&blocks)), None);
    assert!(pool.acquire(&block_ids(&[3, 7, 1, 0])).is_err());
    assert_eq!(pool.allocate(5).ok().map(|blocks| indices(&blocks)), None);
    assert_eq!(pool.allocate(4).ok().map(|blocks| indices(&blocks)), None);
    assert_eq!(pool.allocate(5).ok().map(|blocks| indices(&blocks)), None);
    assert_eq!(pool.allocate(1).ok().map(|blocks| indices(&blocks)), None);
    assert!(pool.acquire(&block_ids(&[])).is_ok());
    assert_eq!(pool.allocate(4).ok().map(|blocks| indices(&blocks)), None);
    assert_eq!(pool.allocate(3).ok().map(|blocks| indices(&blocks)), None);
    assert_eq!(pool.allocate(6).ok().map(|blocks| indices(&blocks)), None);
    assert_eq!(pool.allocate(3).ok().map(|blocks| indices(&blocks)), None);
    assert!(pool.acquire(&block_ids(&[12])).is_err());
    assert!(pool.release_table(&block_ids(&[1])).is_ok());
    assert_eq!(pool.allocate(0).ok().map(|blocks| indices(&blocks)), Some(vec![]));
    pool.check_invariants().unwrap();
    assert_eq!(indices(&pool.free_order()), Vec::<usize>::new());
    assert_eq!(indices(&pool.eviction_order()), Vec::<usize>::new());
}
