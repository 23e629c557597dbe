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
    let mut pool = BlockPool::new(PoolConfig { num_blocks: 7, block_size: 2, verify: Verify::Fingerprint, eviction: kvpool_policies::by_name("lru").unwrap(), retention: Some(RetentionConfig { pin_budget: 2, tenants: vec![TenantLimits { tenant: TenantId(1), floor: 1, ceiling: Some(2) }] }), ..Default::default() }).unwrap();
    assert!(pool.allocate(1).is_ok());
    assert!(pool.release(&block_ids(&[])).is_ok());
    assert!(pool.reset().is_err());
    assert!(pool.acquire(&block_ids(&[1])).is_ok());
    assert!(pool.acquire(&block_ids(&[4])).is_err());
    assert!(pool.allocate(0).is_ok());
    pool.complete_step(9).unwrap();
    assert!(pool.allocate(3).is_ok());
    assert!(pool.allocate(5).is_err());
    assert!(pool.register(&block_ids(&[]), &chain(b"", &[0, 0, 0], 0), 0).is_ok());
    assert!(pool.release_after(&block_ids(&[1]), 6).is_ok());
    assert!(pool.acquire(&block_ids(&[1])).is_ok());
    assert!(pool.allocate(6).is_err());
    assert!(pool.resize(8).is_ok());
    assert!(pool.disown(&block_ids(&[2, 3, 4])).is_ok());
    assert!(pool.release_table(&block_ids(&[1])).is_ok());
    assert!(pool.release_table(&block_ids(&[1])).is_ok());
    assert!(pool.allocate(6).is_ok());
    assert!(pool.allocate(3).is_err());
    assert!(pool.release_table(&block_ids(&[1, 2, 3, 4, 5, 6])).is_ok());
    assert!(pool.release_table(&block_ids(&[])).is_ok());
    assert_eq!(indices(pool.lookup(&chain(b"", &[1, 1, 1, 1], 0), 0, 4).unwrap().blocks()), Vec::<usize>::new());
    assert!(pool.register(&block_ids(&[]), &chain(b"", &[1, 0, 0, 0, 0, 0], 0), 0).is_ok());
    assert!(pool.allocate(5).is_ok());
    assert!(pool.release_table(&block_ids(&[1, 2, 3, 4, 5])).is_ok());
    assert!(pool.acquire_match(&Match::new(&chain(b"", &[1, 1, 1, 1], 0), 0, &block_ids(&[])).unwrap()).is_ok());
    assert!(pool.allocate(0).is_ok());
    assert!(pool.allocate(1).is_ok());
    assert_eq!(pool.register_link(BlockId::new(1), &link(b"", &[0, 0, 0, 0, 0, 0], 0)).ok().map(BlockId::index), Some(1));
    assert!(pool.allocate(3).is_ok());
    assert!(pool.acquire(&block_ids(&[2, 3, 4])).is_ok());
    assert!(pool.allocate(1).is_ok());
    assert_eq!(indices(pool.lookup_refreshing(&chain(b"", &[0, 0], 0), 0, 3).unwrap().blocks()), Vec::<usize>::new());
    assert!(pool.allocate(6).is_err());
    assert!(pool.acquire(&block_ids(&[2, 3, 4])).is_ok());
    assert!(pool.register(&block_ids(&[2, 3]), &chain(b"", &[0, 0, 0, 0, 1], 0), 0).is_ok());
    assert!(pool.reset().is_err());
    assert!(pool.release_table(&block_ids(&[2, 3, 4])).is_ok());
    assert!(pool.allocate(6).is_err());
    assert!(pool.allocate(2).is_ok());
    assert!(pool.release_table(&block_ids(&[1])).is_ok());
    assert!(pool.release_table(&block_ids(&[5])).is_ok());
    pool.complete_step(3).unwrap();
    assert_eq!(pool.register_link(BlockId::new(2), &link(b"s", &[1, 1, 1, 1, 1, 1, 1, 1], 0)).ok().map(BlockId::index), None);
    assert!(pool.allocate(2).is_ok());
    assert!(pool.allocate(3).is_err());
    assert!(pool.release_after(&block_ids(&[6, 7]), 7).is_ok());
    assert!(pool.allocate(0).is_ok());
    assert_eq!(pool.register_link(BlockId::new(4), &link(b"", &[0, 0, 0, 0, 0, 0, 0, 0], 0)).ok().map(BlockId::index), Some(4));
    assert!(pool.allocate(0).is_ok());
    assert!(pool.allocate(2).is_ok());
    assert!(pool.allocate(6).is_err());
    assert!(pool.acquire(&block_ids(&[2, 3, 4])).is_ok());
    assert!(pool.register(&block_ids(&[]), &chain(b"", &[0], 0), 0).is_ok());
    assert_eq!(indices(&pool.match_and_acquire(&chain(b"", &[1, 0, 0], 0), 2).unwrap()), Vec::<usize>::new());
    assert!(pool.acquire(&block_ids(&[])).is_ok());
    assert!(pool.allocate(2).is_err());
    assert!(pool.allocate(1).is_err());
    assert!(pool.allocate(2).is_err());
    assert!(pool.acquire(&block_ids(&[5, 6])).is_ok());
    assert!(pool.allocate(0).is_ok());
    assert_eq!(indices(&pool.match_and_acquire(&chain(b"", &[1, 1, 1, 1, 1, 1, 1], 0), 3).unwrap()), Vec::<usize>::new());
    assert!(pool.allocate(3).is_err());
    assert!(pool.release(&block_ids(&[])).is_ok());
    assert!(pool.allocate(2).is_err());
    assert!(pool.release(&block_ids(&[])).is_ok());
    assert!(pool.allocate(4).is_err());
    assert!(pool.allocate(0).is_ok());
    assert!(pool.register_table(&block_ids(&[2, 3, 4]), &chain(b"", &[1, 0, 0, 0, 0, 0], 0), 0).is_err());
    assert!(pool.disown(&block_ids(&[2, 3, 4])).is_err());
    assert!(pool.allocate(2).is_err());
    assert!(pool.adopt(&block_ids(&[]), &chain(b"", &[0, 0, 0, 0, 0, 0, 0, 0], 0), 0).is_ok());
    assert!(pool.register(&block_ids(&[7, 6]), &chain(b"", &[0, 0, 0, 0, 0, 0, 1], 0), 0).is_ok());
    assert!(pool.allocate(0).is_ok());
    assert!(pool.allocate(6).is_err());
    assert!(pool.release_table(&block_ids(&[2, 3, 4])).is_ok());
    assert!(pool.allocate(2).is_err());
    assert!(pool.allocate(2).is_err());
    assert!(pool.mark_computed(&block_ids(&[5, 1])).is_err());
    assert!(pool.release_table(&block_ids(&[2, 3, 4])).is_ok());
    assert!(pool.allocate(4).is_err());
    assert_eq!(indices(&pool.match_and_acquire(&chain(b"", &[1, 0, 0], 0), 1).unwrap()), Vec::<usize>::new());
    assert!(pool.allocate(1).is_err());
    assert!(pool.release(&block_ids(&[])).is_ok());
    assert!(pool.allocate(3).is_err());
    assert_eq!(indices(&pool.match_and_acquire(&chain(b"", &[0, 0, 0, 0, 0, 0, 1], 0), 3).unwrap()), Vec::<usize>::new());
    assert!(pool.allocate(3).is_err());
    assert!(pool.release(&block_ids(&[])).is_ok());
    assert!(pool.register(&block_ids(&[7]), &chain(b"", &[0, 0, 0], 0), 0).is_err());
    assert!(pool.allocate(0).is_ok());
    assert!(pool.allocate(3).is_err());
    assert!(pool.acquire(&block_ids(&[7, 6])).is_ok());
    assert!(pool.allocate(1).is_err());
    assert!(pool.allocate(0).is_ok());
    assert!(pool.allocate(4).is_err());
    assert!(pool.release_table(&block_ids(&[5, 1])).is_ok());
    assert_eq!(indices(&pool.match_and_acquire(&chain(b"", &[0, 0, 0, 0, 1, 0, 0, 0], 0), 4).unwrap()), Vec::<usize>::new());
    assert!(pool.allocate(4).is_err());
    assert!(pool.release(&block_ids(&[])).is_ok());
    assert!(pool.allocate(2).is_err());
    assert!(pool.allocate(2).is_err());
    assert!(pool.acquire(&block_ids(&[7, 6])).is_ok());
    assert_eq!(indices(&pool.match_and_acquire(&chain(b"", &[0, 0, 0, 0, 0, 0, 0, 0, 0], 0), 4).unwrap()), Vec::<usize>::new());
    assert!(pool.allocate(4).is_err());
    assert!(pool.release(&block_ids(&[])).is_ok());
    assert!(pool.disown(&block_ids(&[2, 3, 4])).is_ok());
    assert!(pool.allocate(2).is_ok());
    assert!(pool.release_table(&block_ids(&[5, 6])).is_ok());
    assert!(pool.allocate(4).is_err());
    assert!(pool.allocate(0).is_ok());
    assert!(pool.allocate(0).is_ok());
    assert!(pool.allocate(2).is_ok());
    assert!(pool.acquire(&block_ids(&[7, 6])).is_ok());
    assert!(pool.allocate(1).is_ok());
    assert_eq!(indices(&pool.match_and_acquire(&chain(b"", &[], 0), 1).unwrap()), Vec::<usize>::new());
    assert!(pool.adopt(&block_ids(&[]), &chain(b"", &[1, 0], 0), 0).is_ok());
    pool.complete_step(6).unwrap();
    assert!(pool.disown(&block_ids(&[7, 6])).is_err());
    assert!(pool.allocate(1).is_err());
    assert!(pool.register(&block_ids(&[7]), &chain(b"", &[0, 0, 0], 0), 0).is_err());
    assert!(pool.register(&block_ids(&[]), &chain(b"", &[0], 0), 0).is_ok());
    assert!(pool.acquire(&block_ids(&[7, 6])).is_ok());
    assert!(pool.acquire(&block_ids(&[7, 6])).is_ok());
    assert_eq!(pool.end_fence(Ticket::new(99)).ok(), None);
    assert!(pool.release_table(&block_ids(&[7, 6])).is_ok());
    assert_eq!(indices(pool.lookup(&chain(b"", &[0, 0], 0), 1, 1).unwrap().blocks()), Vec::<usize>::new());
    assert!(pool.acquire(&block_ids(&[7, 6])).is_ok());
    assert!(pool.release_table(&block_ids(&[7, 6])).is_ok());
    assert_eq!(indices(&pool.match_and_acquire(&chain(b"", &[1], 0), 0).unwrap()), Vec::<usize>::new());
    assert!(pool.allocate(0).is_ok());
    assert!(pool.register(&block_ids(&[]), &chain(b"", &[1], 0), 0).is_ok());
    assert!(pool.allocate(2).is_err());
    assert_eq!(indices(&pool.match_and_acquire(&chain(b"", &[], 0), 1).unwrap()), Vec::<usize>::new());
    assert_eq!(indices(&pool.match_and_acquire(&chain(b"", &[], 0), 0).unwrap()), Vec::<usize>::new());
    assert!(pool.allocate(0).is_ok());
    assert!(pool.register(&block_ids(&[]), &chain(b"", &[], 0), 0).is_ok());
    assert!(pool.mark_computed(&block_ids(&[])).is_ok());
    assert_eq!(indices(&pool.match_and_acquire(&chain(b"", &[0, 0, 0, 0, 0], 0), 2).unwrap()), Vec::<usize>::new());
    assert!(pool.allocate(2).is_err());
    assert!(pool.release(&block_ids(&[])).is_ok());
    assert!(pool.allocate(4).is_err());
    assert!(pool.mark_computed(&block_ids(&[7, 6])).is_ok());
    assert_eq!(indices(&pool.match_and_acquire(&chain(b"", &[0, 0, 0], 0), 1).unwrap()), [7]);
    assert!(pool.allocate(0).is_ok());
    assert!(pool.register(&block_ids(&[]), &chain(b"", &[0, 0, 0], 0), 1).is_ok());
    assert!(pool.mark_computed(&block_ids(&[])).is_ok());
    assert_eq!(indices(pool.lookup_refreshing(&chain(b"", &[1, 0, 0, 0, 0], 0), 0, 2).unwrap().blocks()), Vec::<usize>::new());
    assert!(pool.acquire(&block_ids(&[5, 6, 7, 0])).is_err());
    pool.check_invariants().unwrap();
    assert_eq!(indices(&pool.free_order()), Vec::<usize>::new());
}
