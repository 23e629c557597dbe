//! Tests that a replay repeats the recorded run exactly.

use kvpool::{CacheManager, HashAlgorithm, ManagerConfig, Verify};
use kvpool_journal::{Journal, Options, replay};
use kvpool_observe::{ManagerWatch, ManagerWatchConfig};
use proptest::prelude::*;

use super::world::{
    EVENTS, any_settings, calls, recorded_manager, recorded_pool, ring, run_manager, run_pool,
};

fn image(journal: Option<Journal>) -> Vec<u8> {
    journal.unwrap().image().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_manager_replays_bit_by_bit(config in any_settings(), every in 1u32..9, calls in calls(160)) {
        let mut manager = recorded_manager(config, EVENTS, ring(every));
        run_manager(&mut manager, &calls);
        manager.check_invariants().unwrap();
        let recorded = manager.journal().unwrap().operations();
        let image = image(manager.take_journal());
        let report = replay(&image, Options { check_every: 16, ..Options::default() }, &mut |_| true)
            .unwrap();
        prop_assert_eq!(&report.difference, &None);
        prop_assert_eq!(report.operations, recorded);
        prop_assert_eq!(report.digests, recorded / u64::from(every));
    }

    #[test]
    fn a_pool_replays_bit_by_bit(config in any_settings(), every in 1u32..9, calls in calls(160)) {
        let hashed_by = CacheManager::new(ManagerConfig { host_blocks: 0, ..config.clone() }).unwrap();
        let mut pool = recorded_pool(&config, EVENTS, ring(every));
        run_pool(&mut pool, &hashed_by, &calls);
        pool.check_invariants().unwrap();
        let recorded = pool.journal().unwrap().operations();
        let image = image(pool.take_journal());
        let report = replay(&image, Options { check_every: 16, ..Options::default() }, &mut |_| true)
            .unwrap();
        prop_assert_eq!(&report.difference, &None);
        prop_assert_eq!(report.operations, recorded);
        prop_assert_eq!(report.digests, recorded / u64::from(every));
    }

    /// A pool with a journal and a pool without one give the same answers and have the same state.
    #[test]
    fn a_journal_changes_nothing(config in any_settings(), calls in calls(120)) {
        let mut with = recorded_manager(config.clone(), EVENTS, ring(3));
        let watch = ManagerWatchConfig { event_capacity: EVENTS, ..ManagerWatchConfig::default() };
        let mut without = CacheManager::new(config).unwrap().watched(&watch).unwrap().into();
        run_manager(&mut with, &calls);
        run_manager(&mut without, &calls);
        prop_assert_eq!(with.stats(), without.stats());
        prop_assert_eq!(with.pool().free_order(), without.pool().free_order());
        prop_assert_eq!(with.pool().eviction_order(), without.pool().eviction_order());
    }
}

/// A chain without fingerprints does not determine which content of which epoch is the parent of
/// another.
#[test]
fn chains_without_fingerprints_do_not_link_epochs() {
    let config = ManagerConfig {
        num_blocks: 6,
        block_size: 1,
        algorithm: HashAlgorithm::VllmSha256,
        verify: Verify::Fingerprint,
        ..ManagerConfig::default()
    };
    let calls = [
        (29, 0, 645_697_418, 925_995_694),
        (4, 0, 48_599_762, 820_686_646),
        (29, 0, 2_108_030_238, 1_234_372_902),
        (24, 0, 10_827_435, 152_444_412),
        (175, 608_783_182, 2_730_816_013, 0),
        (159, 2_196_128_987, 2_161_759_350, 4_238_412_792),
        (79, 141_905, 762_457, 3_700_157_216),
    ];
    let hashed_by = CacheManager::new(ManagerConfig { host_blocks: 0, ..config.clone() }).unwrap();
    let mut pool = recorded_pool(&config, EVENTS, ring(1));
    run_pool(&mut pool, &hashed_by, &calls);
    let image = image(pool.take_journal());
    let report = replay(&image, Options { check_every: 1, ..Options::default() }, &mut |_| true).unwrap();
    assert_eq!(report.difference, None);
}
