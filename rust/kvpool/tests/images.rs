//! Tests images of pools. A restored pool continues as if it had never stopped, lookups do not find
//! blocks that were refused, and invalid images are refused completely.
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

use std::sync::Arc;

use crate::numbers::Numbers;
use kvpool::groups::{GroupKind, GroupSpec, Groups};
use kvpool::retention::{Keep, Priority, Retention, RetentionConfig, TenantId, TenantLimits, Then, Ttl};
use kvpool::{
    BlockHasher, BlockId, BlockPool, CacheManager, ExtraKeys, HashAlgorithm, HashChain, HashCursor,
    HasherConfig, ManagerConfig, PoolConfig, PoolError, PoolImage, SavedBlock, Verify,
};

fn chain(hasher: &Arc<BlockHasher>, family: u32, blocks: u32, epoch: u64) -> HashChain {
    let mut cursor = HashCursor::new(hasher.clone(), ExtraKeys { epoch, ..ExtraKeys::default() }).unwrap();
    cursor.append(&(0..blocks).map(|at| if at < 2 { at } else { family * 100 + at }).collect::<Vec<_>>());
    cursor.chain().clone()
}

fn hasher() -> Arc<BlockHasher> {
    Arc::new(BlockHasher::new(HasherConfig { block_size: 1, ..HasherConfig::default() }).unwrap())
}

fn config() -> PoolConfig {
    PoolConfig { num_blocks: 40, block_size: 1, ..PoolConfig::default() }
}

/// A pool that serves prompts, and the tables of running prompts.
struct World {
    pool: BlockPool,
    hasher: Arc<BlockHasher>,
    tables: Vec<Vec<BlockId>>,
}

impl World {
    fn new(config: PoolConfig) -> Self {
        Self { pool: BlockPool::new(config).unwrap(), hasher: hasher(), tables: Vec::new() }
    }

    /// Makes one random operation. Returns a text that describes its result.
    fn operate(&mut self, numbers: &mut Numbers) -> String {
        let kind = numbers.below(10);
        let (family, blocks) = (numbers.below(7) as u32, 1 + numbers.below(9) as u32);
        match kind {
            0..=4 => {
                let chain = chain(&self.hasher, family, blocks, self.pool.epoch());
                let mut table = self.pool.match_and_acquire(&chain, usize::MAX).unwrap();
                let hits = table.len();
                if self.pool.allocate_into(chain.len() - hits, &mut table).is_err() {
                    self.pool.release_table(&table).unwrap();
                    return format!("refused with {hits} hits");
                }
                self.pool.register(&table[hits..], &chain, hits).unwrap();
                self.pool.mark_computed(&table[hits..]).unwrap();
                self.tables.push(table.clone());
                format!("{hits} hits of {table:?}")
            }
            5..=7 if !self.tables.is_empty() => {
                let table = self.tables.remove(numbers.below(self.tables.len()));
                format!("{:?}", self.pool.release_table(&table))
            }
            8 => format!("{:?}", self.pool.drop_cached(&[BlockId::new(1 + family)])),
            9 => format!("{:?}", self.pool.evict(blocks as usize / 3)),
            _ => String::new(),
        }
    }

    fn stop(&mut self) {
        for table in std::mem::take(&mut self.tables) {
            self.pool.release_table(&table).unwrap();
        }
    }

    /// Saves the pool in an image, and restores it in a new pool with this configuration.
    fn restarted(&self, config: PoolConfig) -> Self {
        let image = self.pool.image().unwrap();
        let mut pool = BlockPool::new(config).unwrap();
        let restored = pool.restore(&image, 0.0, |_| true).unwrap();
        assert_eq!((restored.blocks, restored.refused), (image.blocks.len(), 0));
        pool.check_invariants().unwrap();
        assert_eq!(pool.image().unwrap(), image);
        Self { pool, hasher: self.hasher.clone(), tables: Vec::new() }
    }
}

/// With LRU and without references, the restored pool is exactly the same: every later call returns the
/// same result.
#[test]
fn a_restored_pool_behaves_as_without_the_restart() {
    for seed in 0..150 {
        let mut numbers = Numbers(seed);
        let mut world = World::new(config());
        for _ in 0..numbers.below(120) {
            world.operate(&mut numbers);
        }
        if seed % 5 == 0 {
            world.stop();
            world.pool.bump_epoch().unwrap();
            for _ in 0..30 {
                world.operate(&mut numbers);
            }
        }
        world.stop();
        let mut again = world.restarted(config());
        assert_eq!(again.pool.epoch(), world.pool.epoch());
        let (mut ones, mut others) = (Numbers(seed + 1000), Numbers(seed + 1000));
        for nth in 0..120 {
            assert_eq!(world.operate(&mut ones), again.operate(&mut others), "seed {seed}, operation {nth}");
            assert_eq!(world.pool.eviction_order(), again.pool.eviction_order());
            assert_eq!(world.pool.free_order(), again.pool.free_order());
            again.pool.check_invariants().unwrap();
        }
    }
}

/// With any policy, the blocks of the restored pool have the same contents and the same order of
/// eviction as those of the saved pool.
#[test]
fn every_policy_has_its_order_again() {
    for &eviction in kvpool_policies::ALL {
        for seed in 0..12 {
            let retention = (seed % 2 == 0).then(RetentionConfig::default);
            let config = PoolConfig { eviction, retention, ..config() };
            let Ok(pool) = BlockPool::new(config.clone()) else { continue };
            let mut numbers = Numbers(seed);
            let mut world = World { pool, hasher: hasher(), tables: Vec::new() };
            for _ in 0..80 {
                world.operate(&mut numbers);
            }
            world.stop();
            let order = world.pool.eviction_order();
            let image = world.pool.image().unwrap();
            let mut again = BlockPool::new(config).unwrap();
            again.restore(&image, 0.0, |_| true).unwrap();
            again.check_invariants().unwrap();
            assert_eq!(again.image().unwrap().blocks.len(), image.blocks.len());
            // The order of the next evictions is restored, but the statistics of a policy are not, so
            // later evictions may differ. LRU has no statistics, so its order remains the same.
            if eviction == kvpool_policies::LRU {
                assert_eq!(again.eviction_order(), order, "{}, seed {seed}", eviction.name());
            }
            for saved in &image.blocks {
                assert_eq!(again.name_of(saved.block).unwrap().hash, &saved.hash);
                assert!(again.is_computed(saved.block));
            }
        }
    }
}

/// Blocks that were held become cached, and are evicted after all other blocks, because their requests
/// will be admitted again.
#[test]
fn a_block_that_was_in_use_is_cached_and_evicted_last() {
    let mut world = World::new(config());
    let mut numbers = Numbers(3);
    for _ in 0..40 {
        world.operate(&mut numbers);
    }
    let idle = world.pool.eviction_order();
    assert!(!world.tables.is_empty() && !idle.is_empty());
    let image = world.pool.image().unwrap();
    let mut again = BlockPool::new(config()).unwrap();
    again.restore(&image, 0.0, |_| true).unwrap();
    assert_eq!(again.eviction_order()[..idle.len()], idle);
    assert_eq!(again.num_available(), again.num_usable());
    again.check_invariants().unwrap();
}

#[test]
fn a_saved_block_that_the_check_refuses_is_a_miss() {
    let mut world = World::new(config());
    let chain = chain(&world.hasher, 1, 8, 0);
    let table = world.pool.allocate(8).unwrap();
    world.pool.register_table(&table, &chain, 0).unwrap();
    world.pool.release_table(&table).unwrap();
    let image = world.pool.image().unwrap();
    let mut again = BlockPool::new(config()).unwrap();
    let restored = again.restore(&image, 0.0, |saved| saved.block != table[5]).unwrap();
    assert_eq!((restored.blocks, restored.refused), (7, 1));
    assert_eq!(again.match_and_acquire(&chain, 8).unwrap(), table[..5]);
    assert!(again.free_order().contains(&table[5]));
    again.check_invariants().unwrap();
}

#[test]
fn retention_lasts() {
    let limits = TenantLimits { tenant: TenantId(4), floor: 1, ceiling: Some(9) };
    let retention = Some(RetentionConfig { pin_budget: 2, tenants: vec![limits] });
    let config = PoolConfig { eviction: kvpool_policies::LRU, retention, ..config() };
    let hasher = hasher();
    let mut pool = BlockPool::new(config.clone()).unwrap();
    pool.advance_time(100.0).unwrap();
    let keep = |priority| Retention::of(Keep::Priority(Priority::new(priority).unwrap()));
    let said = [
        Retention::NORMAL,
        keep(80),
        Retention::PINNED,
        Retention::END_OF_LIFE,
        Retention { ttl: Some(Ttl::Absolute(50.0)), then: Then::Demote, ..keep(60) },
        Retention { ttl: Some(Ttl::Idle(50.0)), ..keep(70) },
        Retention { ttl: Some(Ttl::Absolute(5.0)), then: Then::Demote, ..keep(90) },
    ];
    for (family, retention) in (0..).zip(said) {
        let mut cursor = HashCursor::new(hasher.clone(), ExtraKeys::default()).unwrap();
        cursor.append(&[family]);
        let block = pool.allocate(1).unwrap();
        pool.register_table(&block, cursor.chain(), 0).unwrap();
        pool.retain(&block, retention).unwrap();
        if family == 1 {
            pool.assign_tenant(&block, TenantId(4)).unwrap();
        }
        pool.release(&block).unwrap();
    }
    pool.advance_time(120.0).unwrap();
    let (order, stats) = (pool.eviction_order(), pool.retention_stats().unwrap());
    let image = pool.image().unwrap();
    let mut again = BlockPool::new(config.clone()).unwrap();
    again.advance_time(7.0).unwrap(); // another clock
    again.restore(&image, 10.0, |_| true).unwrap();
    again.check_invariants().unwrap();
    let restored = again.retention_stats().unwrap();
    assert_eq!(again.eviction_order(), order);
    assert_eq!(
        (restored.pinned, restored.above_normal, restored.demoted),
        (stats.pinned, stats.above_normal, stats.demoted)
    );
    assert_eq!((restored.with_ttl, again.tenant_blocks(TenantId(4)).unwrap()), (2, 1));
    // 20 seconds had passed before the image, and 10 more until the restart. Both times to live have 20
    // seconds left.
    assert_eq!(again.advance_time(26.9).unwrap(), 0);
    assert_eq!(again.advance_time(27.0).unwrap(), 2);

    let mut late = BlockPool::new(config.clone()).unwrap();
    late.advance_time(0.0).unwrap();
    late.restore(&image, 1000.0, |_| true).unwrap();
    let ended = late.retention_stats().unwrap();
    assert_eq!((ended.with_ttl, ended.above_normal, ended.demoted), (0, 1, stats.demoted + 1));
    let mut clockless = BlockPool::new(config).unwrap();
    assert!(matches!(clockless.restore(&image, 0.0, |_| true), Err(PoolError::InvalidConfig { .. })));
    assert_eq!(clockless.stats().cached_free, 0);
    let mut plain = BlockPool::new(PoolConfig { retention: None, ..self::config() }).unwrap();
    plain.restore(&image, 0.0, |_| true).unwrap();
}

#[test]
fn an_image_of_another_pool_is_refused_as_a_whole() {
    let mut world = World::new(config());
    let mut numbers = Numbers(9);
    for _ in 0..60 {
        world.operate(&mut numbers);
    }
    world.stop();
    let image = world.pool.image().unwrap();
    let refuse = |image: &PoolImage, config: PoolConfig, elapsed: f64| {
        let mut pool = BlockPool::new(config).unwrap();
        let refused = pool.restore(image, elapsed, |_| true);
        assert!(matches!(refused, Err(PoolError::InvalidConfig { .. })), "{refused:?}");
        assert_eq!((pool.stats().free, pool.epoch()), (pool.num_usable(), 0));
        pool.check_invariants().unwrap();
    };
    refuse(&image, PoolConfig { block_size: 2, ..config() }, 0.0);
    refuse(&image, PoolConfig { num_blocks: 5, ..config() }, 0.0);
    refuse(&image, PoolConfig { verify: Verify::Fingerprint, ..config() }, 0.0);
    for elapsed in [-1.0, f64::NAN, f64::INFINITY] {
        refuse(&image, config(), elapsed);
    }
    let with = |change: fn(&mut Vec<SavedBlock>)| {
        let mut image = image.clone();
        change(&mut image.blocks);
        image
    };
    refuse(&with(|blocks| blocks[1].block = blocks[0].block), config(), 0.0);
    refuse(&with(|blocks| blocks[1].block = BlockId::new(0)), config(), 0.0);
    refuse(&with(|blocks| blocks[1].block = BlockId::new(40)), config(), 0.0);
    refuse(&with(|blocks| blocks[1].group = u16::MAX), config(), 0.0);
    let mut used = World::new(config());
    used.pool.allocate(1).unwrap();
    assert!(used.pool.restore(&image, 0.0, |_| true).is_err());
}

/// Requests that are admitted again hit the blocks that the previous process had computed.
#[test]
fn a_manager_is_warm() {
    let config = ManagerConfig { num_blocks: 40, block_size: 4, ..ManagerConfig::default() };
    let mut manager = CacheManager::new(config.clone()).unwrap();
    let prompt: Vec<u32> = (0..30).collect();
    manager.admit("a", manager.prepare(&prompt, ExtraKeys::default()).unwrap()).unwrap();
    manager.commit("a", 30).unwrap();
    let image = manager.image().unwrap(); // while the manager runs
    let mut again = CacheManager::new(config).unwrap();
    assert_eq!(again.restore(&image, 0.0, |_| true).unwrap().blocks, 7);
    let admitted = again.admit("b", again.prepare(&prompt, ExtraKeys::default()).unwrap()).unwrap();
    assert_eq!(admitted.cached_tokens, 28);
    assert_eq!(admitted.block_ids[..7], manager.block_table("a").unwrap()[..7]);
    again.check_invariants().unwrap();
    assert!(again.restore(&image, 0.0, |_| true).is_err());
}

/// Random requests on a restored manager get the same results as on the original manager.
#[test]
fn a_restored_manager_behaves_as_without_the_restart() {
    for seed in 0..60 {
        let config = ManagerConfig { num_blocks: 40, block_size: 2, ..ManagerConfig::default() };
        let mut manager = CacheManager::new(config.clone()).unwrap();
        let mut numbers = Numbers(seed);
        let serve = |manager: &mut CacheManager, id: u64, numbers: &mut Numbers| {
            let family = numbers.below(6) as u32;
            let prompt: Vec<u32> =
                (0..1 + numbers.below(20) as u32).map(|at| if at < 4 { 1 } else { family }).collect();
            let cursor = manager.prepare(&prompt, ExtraKeys::default()).unwrap();
            let admitted =
                manager.admit(id, cursor).map(|admission| (admission.cached_tokens, admission.block_ids));
            let admitted = admitted.map_err(|refused| refused.error.to_string());
            if admitted.is_ok() {
                manager.commit(id, prompt.len()).unwrap();
                let appended = manager.append(
                    &[kvpool::RequestId::from(id).as_ref()],
                    &[family],
                    kvpool::Computed::Nothing,
                );
                let done = format!("{admitted:?} {appended:?}");
                manager.release(id, None).unwrap();
                return done;
            }
            format!("{admitted:?}")
        };
        for id in 0..numbers.below(50) as u64 {
            serve(&mut manager, id, &mut numbers);
        }
        let mut again = CacheManager::new(config).unwrap();
        again.restore(&manager.image().unwrap(), 0.0, |_| true).unwrap();
        let (mut ones, mut others) = (Numbers(seed + 1000), Numbers(seed + 1000));
        for id in 100..150 {
            assert_eq!(
                serve(&mut manager, id, &mut ones),
                serve(&mut again, id, &mut others),
                "seed {seed}, request {id}"
            );
            again.check_invariants().unwrap();
        }
        assert_eq!(manager.pool().eviction_order(), again.pool().eviction_order());
    }
}

/// The manager compares the settings of an image with its own settings, and never uses those of the
/// image.
#[test]
fn an_image_of_other_settings_is_refused_whole() {
    let groups = |window, block_tokens| {
        let window = GroupSpec::new(GroupKind::Sliding { window }, block_tokens);
        Some(Groups::new(vec![GroupSpec::new(GroupKind::Full, 4), window], None).unwrap())
    };
    let usual =
        || ManagerConfig { num_blocks: 30, block_size: 4, groups: groups(8, 4), ..ManagerConfig::default() };
    let seeded = |seed: &str| ManagerConfig {
        algorithm: HashAlgorithm::Blake3,
        key: Some([seed.len() as u8; 32]),
        ..usual()
    };
    let configs = [
        usual(),
        ManagerConfig { algorithm: HashAlgorithm::Blake3, ..usual() },
        seeded("a"),
        seeded("ab"),
        ManagerConfig { groups: groups(12, 4), ..usual() },
        ManagerConfig { groups: groups(8, 8), ..usual() },
        ManagerConfig { groups: None, ..usual() },
    ];
    let prompt: Vec<u32> = (0..20).collect();
    for (saved, restored) in
        (0..configs.len()).flat_map(|one| (0..configs.len()).map(move |other| (one, other)))
    {
        let mut first = CacheManager::new(configs[saved].clone()).unwrap();
        first.admit("a", first.prepare(&prompt, ExtraKeys::default()).unwrap()).unwrap();
        first.commit("a", 20).unwrap();
        first.release("a", None).unwrap();
        let image = first.image().unwrap();
        let mut next = CacheManager::new(configs[restored].clone()).unwrap();
        let outcome = next.restore(&image, 0.0, |_| true);
        if saved == restored {
            assert!(outcome.unwrap().blocks > 0);
        } else {
            let error = outcome.unwrap_err().to_string();
            assert!(
                error.contains("settings is ") || error.contains("algorithm is "),
                "{saved} {restored}: {error}"
            );
            assert_eq!(next.stats().pool.registered, 0, "nothing has changed");
        }
        // The manager can admit a prompt that it has hashed, whether or not it has restored the image.
        next.admit("b", next.prepare(&prompt[1..], ExtraKeys::default()).unwrap()).unwrap();
        next.commit("b", 19).unwrap();
        next.check_invariants().unwrap();
    }
}

/// In this image, two contents each have the other as their parent. If both were restored, neither
/// could be evicted before the other.
#[test]
fn contents_that_name_each_other_as_parents_cost_hits_at_most() {
    let config = || PoolConfig { eviction: kvpool_policies::S3_FIFO, ..config() };
    let served = || {
        let mut world = World::new(config());
        for family in 0..4 {
            let chain = chain(&world.hasher, family, 6, 0);
            let mut table = world.pool.match_and_acquire(&chain, usize::MAX).unwrap();
            let hits = table.len();
            world.pool.allocate_into(6 - hits, &mut table).unwrap();
            world.pool.register(&table[hits..], &chain, hits).unwrap();
            world.pool.mark_computed(&table[hits..]).unwrap();
            world.pool.release_table(&table).unwrap();
        }
        world.pool.image().unwrap()
    };
    let pairs = [(0, 1, [1, 1]), (2, 7, [2, 2]), (3, 9, [1, 5]), (4, 4, [3, 3])];
    for ((one, other, depths), told, operations) in pairs
        .into_iter()
        .flat_map(|pair| [false, true].map(|told| (pair, told)))
        .flat_map(|(pair, told)| [0, 300].map(|n| (pair, told, n)))
    {
        let mut image = served();
        let [first, second] = [one, other].map(|at| image.blocks[at]);
        for (at, of, depth) in [(one, second, depths[0]), (other, first, depths[1])] {
            let saved = &mut image.blocks[at];
            (saved.parent, saved.depth) = (Some(of.hash), depth);
            saved.behind = told.then_some(of.block);
        }
        let mut world = World::new(config());
        world.pool.restore(&image, 0.0, |_| true).unwrap();
        world.pool.check_invariants().unwrap();
        let mut numbers = Numbers(1);
        for _ in 0..operations {
            world.operate(&mut numbers);
            world.pool.check_invariants().unwrap();
        }
        world.stop();
        world.pool.evict(40).unwrap();
        assert_eq!((world.pool.poison_reason(), world.pool.stats().cached_free), (None, 0));
        world.pool.check_invariants().unwrap();
    }
}

/// The pool's epoch becomes that of the image, and later epochs are counted from there. So an epoch
/// without enough room for later ones is refused.
#[test]
fn an_epoch_that_leaves_no_room_for_others_is_refused() {
    let image = |epoch| PoolImage { block_size: 1, num_blocks: 40, epoch, ..PoolImage::default() };
    let mut pool = BlockPool::new(config()).unwrap();
    for epoch in [u64::MAX, 1 << 63] {
        let refused = pool.restore(&image(epoch), 0.0, |_| true).unwrap_err();
        assert!(matches!(refused, PoolError::InvalidConfig { field: "epoch", .. }), "{refused}");
    }
    pool.restore(&image(u64::MAX >> 1), 0.0, |_| true).unwrap();
    assert_eq!(pool.bump_epoch().unwrap(), 1 << 63);
}
