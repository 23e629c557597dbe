//! Tests the operations for engines that name blocks and contents themselves. The laboratory of vLLM's
//! pool tests them with random calls.

use kvpool::hash::BlockHash;
use kvpool::{BlockPool, Name, PoolConfig, PoolError, Verify};

#[test]
fn no_name_is_one_of_a_hidden_content_or_of_a_blank_record() {
    let mut pool = BlockPool::new(PoolConfig { num_blocks: 4, ..PoolConfig::default() }).unwrap();
    let blocks = pool.allocate(3).unwrap();
    let hash = BlockHash::from_bytes([0; 32]);
    for group in [Name::MAX_GROUP + 1, u16::MAX] {
        let refused = pool.register_named(&blocks, &[hash; 3], group, |_, _| {});
        assert!(matches!(refused, Err(PoolError::InvalidConfig { field: "group", .. })), "{refused:?}");
        let refused = pool.register_behind(blocks[0], Name { hash: &hash, group }, 0, None);
        assert!(matches!(refused, Err(PoolError::InvalidConfig { field: "group", .. })), "{refused:?}");
        pool.register_hidden(blocks[0], &hash, 0, None).unwrap();
        assert_eq!(pool.find_named(Name { hash: &hash, group }), None);
        assert!(pool.copies_named(Name { hash: &hash, group }).is_empty());
        let mut run = Vec::new();
        pool.find_named_run(&[hash], group, &mut run);
        assert!(run.is_empty());
        pool.drop_cached(&blocks).unwrap();
    }
}

#[test]
fn a_digest_of_zeros_is_not_the_null_blocks() {
    // The slot of a digest is random, so the test uses many tables. Only in some of them could an empty
    // slot be mistaken for a slot with the tag of the digest.
    for _ in 0..2000 {
        let mut pool = BlockPool::new(PoolConfig { num_blocks: 4, ..PoolConfig::default() }).unwrap();
        let blocks = pool.allocate(3).unwrap();
        let hash = BlockHash::from_bytes([0; 32]);
        pool.register_named(&blocks, &[hash; 3], 0, |_, _| {}).unwrap();
        assert_eq!(pool.copies(&hash), blocks);
        pool.hide(blocks[1]).unwrap();
        assert_eq!(pool.copies(&hash), [blocks[0], blocks[2]]);
        pool.check_invariants().unwrap();
    }
}

#[test]
fn verified_content_has_no_names() {
    let config = PoolConfig { num_blocks: 4, verify: Verify::Fingerprint, ..PoolConfig::default() };
    let mut pool = BlockPool::new(config).unwrap();
    let blocks = pool.allocate(1).unwrap();
    let refused = pool.register_named(&blocks, &[BlockHash::from_bytes([1; 32])], 0, |_, _| {});
    assert!(matches!(refused, Err(PoolError::MissingVerification { .. })), "{refused:?}");
    let refused = pool.release_to_back(&blocks);
    assert!(matches!(refused, Err(PoolError::MissingVerification { .. })), "{refused:?}");
    assert_eq!(pool.num_references(), 1);
}

#[test]
fn a_reset_in_order_is_refused_while_a_block_is_held() {
    let mut pool = BlockPool::new(PoolConfig { num_blocks: 4, ..PoolConfig::default() }).unwrap();
    let blocks = pool.allocate(2).unwrap();
    pool.register_named(
        &blocks,
        &[BlockHash::from_bytes([1; 32]), BlockHash::from_bytes([2; 32])],
        0,
        |_, _| {},
    )
    .unwrap();
    pool.release_in_order(&blocks[..1]).unwrap();
    let before = (pool.free_order(), pool.eviction_order());
    let refused = pool.reset_in_order().unwrap_err();
    assert!(refused.to_string().starts_with("1 blocks are active and 0 fenced"), "{refused}");
    assert_eq!((pool.free_order(), pool.eviction_order()), before);
    pool.release_in_order(&blocks[1..]).unwrap();
    pool.reset_in_order().unwrap();
    assert_eq!(
        pool.free_order(),
        [before.0, blocks].concat(),
        "cached blocks follow in the order of eviction"
    );
    pool.check_invariants().unwrap();
}
