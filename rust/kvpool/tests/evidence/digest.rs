//! Tests the digests of pools and managers: they have fixed values, equal histories give equal digests,
//! and a digest that is not used costs nothing. The laboratory and `manager_tables` check that a digest
//! equals a digest computed from scratch after any operation.

use std::sync::Arc;

use kvpool::{
    BlockHasher, BlockPool, CacheManager, Computed, ExtraKeys, HashChain, HashCursor, HasherConfig,
    ManagerConfig, PoolConfig,
};
use kvpool_observe::{ManagerWatch, ManagerWatchConfig, PoolWatch, WatchConfig};

fn chain(tokens: &[u32]) -> HashChain {
    let hasher = BlockHasher::new(HasherConfig { block_size: 2, ..HasherConfig::default() }).unwrap();
    let mut cursor = HashCursor::new(Arc::new(hasher), ExtraKeys::default()).unwrap();
    cursor.append(tokens);
    cursor.chain().clone()
}

fn pool(digest: bool) -> BlockPool {
    let config = PoolConfig { num_blocks: 16, block_size: 2, ..PoolConfig::default() };
    BlockPool::new(config).unwrap().watched(&WatchConfig { digest, ..WatchConfig::default() }).unwrap()
}

/// Makes a fixed sequence of operations on a pool. Returns the pool's digest after each of them.
fn history(pool: &mut BlockPool) -> Vec<u64> {
    let mut digests = Vec::new();
    let mut note = |pool: &BlockPool| digests.push(pool.state_digest_from_scratch());
    note(pool);
    let blocks = pool.allocate(4).unwrap();
    note(pool);
    pool.register(&blocks[..3], &chain(&[1, 2, 3, 4, 5, 6]), 0).unwrap();
    note(pool);
    pool.mark_computed(&blocks[..2]).unwrap();
    note(pool);
    pool.acquire(&blocks[1..3]).unwrap();
    note(pool);
    pool.release_after(&blocks, 7).unwrap();
    note(pool);
    pool.complete_step(7).unwrap();
    note(pool);
    pool.bump_epoch().unwrap();
    note(pool);
    pool.resize(20).unwrap();
    note(pool);
    digests
}

/// The digests of a fixed history have the specified values, which are the same on every host and in
/// every version.
#[test]
fn fixed_digests() {
    assert_eq!(history(&mut pool(false)), GOLDEN);
    let mut all = GOLDEN.to_vec();
    all.dedup();
    assert_eq!(all.len(), GOLDEN.len(), "every operation changed the digest");
}

/// The specified digests. Another program computed the same values from the specification.
const GOLDEN: [u64; 9] = [
    11_764_873_721_137_770_305,
    8_137_770_036_356_820_961,
    13_255_115_518_711_130_315,
    16_808_673_833_206_866_167,
    7_691_557_211_343_795_452,
    6_815_295_526_349_580_974,
    11_880_476_192_397_331_279,
    17_053_809_849_827_256_255,
    2_072_410_008_542_936_940,
];

#[test]
fn without_the_setting_there_is_none() {
    let mut off = pool(false);
    assert_eq!(off.state_digest(), None);
    let mut on = pool(true);
    assert_eq!(
        on.state_digest(),
        Some(off.state_digest_from_scratch()),
        "the setting is no part of the state"
    );
    let mut manager = CacheManager::new(ManagerConfig::default()).unwrap();
    assert_eq!(manager.state_digest(), None);
}

/// The digest of a pool is updated at each read. A block that several operations changed in between
/// counts once. So the digest does not depend on how often it was read.
#[test]
fn the_digest_does_not_depend_on_how_often_it_is_read() {
    let (mut seldom, mut often, mut light) = (pool(true), pool(true), pool(false));
    light.keep_digest().unwrap();
    let mut last = None;
    for round in 0..20_u32 {
        for pool in [&mut seldom, &mut often, &mut light] {
            let blocks = pool.allocate(3).unwrap();
            pool.register(&blocks, &chain(&[round % 3, 2, 3, 4, 5, 6]), 0).unwrap();
            pool.mark_computed(&blocks[..2]).unwrap();
            pool.release_table(&blocks).unwrap();
        }
        let now = often.state_digest();
        assert_ne!(now, last);
        last = now;
        assert_eq!(light.state_digest(), now);
        light.check_invariants().unwrap();
    }
    assert_eq!(seldom.state_digest(), last);
}

/// A manager's digest includes all of its tiers and its own counters.
#[test]
fn a_manager_has_one() {
    let config = ManagerConfig { num_blocks: 16, block_size: 2, host_blocks: 8, ..Default::default() };
    let digest = ManagerWatchConfig { digest: true, ..Default::default() };
    let mut manager = CacheManager::new(config).unwrap().watched(&digest).unwrap();
    let mut digests = vec![manager.state_digest().unwrap()];
    let prompt = manager.prepare(&[1, 2, 3, 4, 5], ExtraKeys::default()).unwrap();
    manager.admit("a", prompt).unwrap();
    digests.push(manager.state_digest().unwrap());
    manager.append(&["a".into()], &[6], Computed::AllButLast).unwrap();
    digests.push(manager.state_digest().unwrap());
    let swap = manager.begin_swap_out(&["a".into()]).unwrap();
    digests.push(manager.state_digest().unwrap());
    manager.take_plan().unwrap();
    digests.push(manager.state_digest().unwrap());
    manager.complete_swap(swap).unwrap();
    digests.push(manager.state_digest().unwrap());
    assert_eq!(digests, MANAGER);
    assert_eq!(manager.state_digest(), Some(manager.state_digest_from_scratch()));
}

const MANAGER: [u64; 6] = [
    14_938_558_925_913_296_316,
    8_363_953_418_673_529_171,
    1_237_466_662_011_137_106,
    5_772_977_802_396_092_866,
    11_125_198_223_590_121_937,
    16_016_572_434_953_108_278,
];
