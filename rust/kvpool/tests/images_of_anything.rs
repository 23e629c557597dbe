//! Tests images with random contents. An image is either refused completely, and the pool remains
//! empty, or the restored pool is valid and works.
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

use std::sync::Arc;

use crate::numbers::Numbers;
use kvpool::retention::{
    Keep, Priority, Retention, RetentionConfig, SavedRetention, TenantId, TenantLimits, Then, Ttl,
};
use kvpool::{
    BlockHash, BlockHasher, BlockId, BlockPool, DuplicatePolicy, ExtraKeys, HashCursor, HasherConfig,
    PoolConfig, PoolImage,
};

const BLOCKS: usize = 24;

fn config(seed: u64) -> PoolConfig {
    let policies = kvpool_policies::ALL;
    let eviction = policies[seed as usize % policies.len()];
    let retained = !seed.is_multiple_of(3) && eviction != kvpool_policies::LAST_ACCESS;
    let retention = retained.then(|| RetentionConfig {
        pin_budget: 3,
        tenants: vec![TenantLimits { tenant: TenantId(1), floor: 1, ceiling: Some(4) }],
    });
    let duplicates =
        if seed.is_multiple_of(2) { DuplicatePolicy::Keep } else { DuplicatePolicy::DropOnRelease };
    PoolConfig { num_blocks: BLOCKS, block_size: 1, eviction, retention, duplicates, ..PoolConfig::default() }
}

fn fresh(config: &PoolConfig) -> BlockPool {
    let mut pool = BlockPool::new(config.clone()).unwrap();
    if config.retention.is_some() {
        pool.advance_time(10.0).unwrap();
    }
    pool
}

fn serve(pool: &mut BlockPool, hasher: &Arc<BlockHasher>, numbers: &mut Numbers) {
    let extra = ExtraKeys { epoch: pool.epoch(), ..ExtraKeys::default() };
    let mut cursor = HashCursor::new(hasher.clone(), extra).unwrap();
    let (family, tokens) = (numbers.below(5) as u32, 1 + numbers.below(9) as u32);
    cursor.append(&(0..tokens).map(|at| if at < 2 { 1 } else { family }).collect::<Vec<_>>());
    let mut table = pool.match_and_acquire(cursor.chain(), numbers.below(9)).unwrap();
    let hits = table.len();
    if pool.allocate_into(cursor.chain().len() - hits, &mut table).is_ok() {
        pool.register(&table[hits..], cursor.chain(), hits).unwrap();
        pool.mark_computed(&table[hits..]).unwrap();
    }
    pool.release_table(&table).unwrap();
}

fn hash(numbers: &mut Numbers, image: &PoolImage) -> BlockHash {
    match numbers.below(4) {
        0 => BlockHash::from_bytes([numbers.below(3) as u8; 32]),
        _ => image
            .blocks
            .get(numbers.below(image.blocks.len()))
            .map_or(BlockHash::from_bytes([9; 32]), |saved| saved.hash),
    }
}

fn number(numbers: &mut Numbers) -> f64 {
    const ODD: [f64; 9] =
        [0.0, -0.0, -1.0, 1.0, 1e300, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, f64::MIN_POSITIVE];
    ODD[numbers.below(ODD.len())]
}

fn said(numbers: &mut Numbers) -> SavedRetention {
    let keep = match numbers.below(4) {
        0 => Keep::Pinned,
        1 => Keep::Demoted,
        _ => Keep::Priority(Priority::new(numbers.below(101) as u8).unwrap()),
    };
    let ttl = match numbers.below(4) {
        0 => Some(Ttl::Idle(number(numbers))),
        1 => Some(Ttl::Absolute(number(numbers))),
        _ => None,
    };
    let then = if numbers.below(2) == 0 { Then::Demote } else { Then::Normal };
    let remaining = (numbers.below(2) == 0).then(|| number(numbers));
    let tenant = (numbers.below(2) == 0).then(|| TenantId(numbers.below(3) as u32));
    SavedRetention { retention: Retention { keep, ttl, then }, remaining, tenant }
}

/// Changes one random field of an image.
fn change(image: &mut PoolImage, numbers: &mut Numbers) {
    const DEPTHS: [u32; 5] = [0, 1, 5, 1 << 30, u32::MAX];
    let id = |numbers: &mut Numbers| BlockId::new(numbers.below(BLOCKS + 2) as u32);
    let at = numbers.below(image.blocks.len());
    let other = hash(numbers, image);
    let kind = numbers.below(14);
    match kind {
        0 => image.free.push(id(numbers)),
        1 => image.free.clear(),
        2 => image.free.iter_mut().for_each(|block| *block = id(numbers)),
        3 => image.epoch = [0, 1, u64::MAX][numbers.below(3)],
        4 => image.algorithm = None,
        5 if numbers.below(9) == 0 => image.num_blocks = numbers.below(99),
        _ => {}
    }
    let Some(saved) = image.blocks.get_mut(at) else { return };
    match kind {
        6 => saved.block = id(numbers),
        7 => saved.hash = other,
        8 => saved.parent = Some(other),
        9 => saved.behind = Some(id(numbers)),
        10 => saved.depth = DEPTHS[numbers.below(DEPTHS.len())],
        11 => saved.copy = DEPTHS[numbers.below(DEPTHS.len())],
        12 => saved.group = [0, 1, 7, u16::MAX - 1, u16::MAX][numbers.below(5)],
        13 => saved.said = Some(said(numbers)),
        _ => {}
    }
}

fn as_new(pool: &BlockPool) {
    assert_eq!(pool.poison_reason(), None);
    let stats = pool.stats();
    assert_eq!((stats.free, stats.registered, stats.epoch), (pool.num_usable(), 0, 0));
    pool.check_invariants().unwrap();
}

#[test]
fn an_image_is_refused_whole_or_makes_a_sound_pool() {
    let hasher =
        Arc::new(BlockHasher::new(HasherConfig { block_size: 1, ..HasherConfig::default() }).unwrap());
    let (mut refused, mut restored) = (0, 0);
    for seed in 0..1500 {
        let (config, mut numbers) = (config(seed), Numbers(seed));
        let mut pool = fresh(&config);
        for _ in 0..numbers.below(25) {
            serve(&mut pool, &hasher, &mut numbers);
        }
        let sound = pool.image().unwrap();
        let mut image = sound.clone();
        for _ in 0..1 + numbers.below(4) {
            change(&mut image, &mut numbers);
        }
        let mut again = fresh(&config);
        let elapsed = numbers.below(3) as f64;
        match again.restore(&image, elapsed, |_| numbers.below(9) > 0) {
            Ok(told) => {
                restored += 1;
                assert_eq!(told.blocks + told.refused, image.blocks.len());
            }
            Err(_) => {
                refused += 1;
                as_new(&again);
                again.restore(&sound, 0.0, |_| true).unwrap();
            }
        }
        again.check_invariants().unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
        for _ in 0..20 {
            serve(&mut again, &hasher, &mut numbers);
            again.check_invariants().unwrap_or_else(|broken| panic!("seed {seed}, later: {broken}"));
        }
        assert_eq!(again.num_available(), again.num_usable(), "seed {seed}");
    }
    assert!(refused > 150 && restored > 150, "{refused} refused, {restored} restored");
}
