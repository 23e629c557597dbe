//! Shrinking and export.

use kvpool::testing::minimize;
use kvpool::{BlockPool, CacheManager, ManagerConfig, PoolConfig};
use kvpool_journal::{Goal, Language, Options, export, replay, shrink};
use proptest::prelude::*;

use super::world::{calls, ring, run_manager, settings};

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// No single item can be left out of what is left, and what is left still fails.
    #[test]
    fn what_is_left_is_minimal(items in prop::collection::vec(0u8..20, 0..40), needed in prop::collection::vec(0u8..20, 1..4)) {
        let fails = |items: &[u8]| {
            let mut rest = items.iter();
            needed.iter().all(|needed| rest.any(|item| item == needed))
        };
        if fails(&items) {
            let least = minimize(items, &mut |items| fails(items));
            prop_assert_eq!(least, needed.clone());
        }
    }

    /// The same answer by the fewest operations, from a journal of many: each of those left is needed, and the journal of them
    /// replays.
    #[test]
    fn an_answer_shrinks(config in settings(), calls in calls(60), at in any::<u32>()) {
        let mut manager = CacheManager::with_journal(config, ring(1)).unwrap();
        run_manager(&mut manager, &calls);
        let mut journal = manager.take_journal().unwrap();
        let operations = journal.operations();
        let image = journal.image().unwrap();
        if operations == 0 {
            return Ok(());
        }
        let wanted = u64::from(at) % operations;
        let shrunk = shrink(&image, Goal::Answer(wanted), &mut |_| true).unwrap().unwrap();
        prop_assert!(shrunk.operations.len() <= wanted as usize + 1);
        prop_assert!(!shrunk.operations.is_empty());
        let report = replay(&shrunk.journal, Options { check_every: 1, ..Options::default() }, &mut |_| true).unwrap();
        prop_assert_eq!(report.difference, None);
        prop_assert_eq!(report.operations, shrunk.operations.len() as u64);
        for language in [Language::Rust, Language::Python] {
            prop_assert!(export(&shrunk.journal, language).unwrap().contains("check_invariants"));
        }
    }
}

#[test]
fn a_sound_journal_has_nothing_to_shrink() {
    let mut manager =
        CacheManager::with_journal(ManagerConfig { num_blocks: 8, ..ManagerConfig::default() }, ring(1))
            .unwrap();
    run_manager(&mut manager, &[(0, 1, 2, 3), (12, 1, 2, 3), (17, 1, 2, 3)]);
    let image = manager.take_journal().unwrap().image().unwrap();
    assert!(shrink(&image, Goal::Broken, &mut |_| true).unwrap().is_none());
    assert!(shrink(&image, Goal::Answer(99), &mut |_| true).unwrap().is_none());
}

#[test]
fn out_of_blocks_shrinks_to_the_allocation_that_needs_it() {
    let mut pool =
        BlockPool::with_journal(PoolConfig { num_blocks: 9, ..PoolConfig::default() }, ring(1)).unwrap();
    for _ in 0..20 {
        let blocks = pool.allocate(4).unwrap();
        pool.release(&blocks).unwrap();
    }
    let held = pool.allocate(7).unwrap();
    pool.release(&held[..2]).unwrap();
    assert!(pool.allocate(4).is_err());
    let last = pool.journal().unwrap().operations() - 1;
    let image = pool.take_journal().unwrap().image().unwrap();
    let shrunk = shrink(&image, Goal::Answer(last), &mut |_| true).unwrap().unwrap();
    assert_eq!(shrunk.before, 43);
    let operations: Vec<&str> =
        shrunk.operations.iter().map(|told| told.split(" -> ").next().unwrap()).collect();
    assert_eq!(operations, ["allocate 7 blocks", "release 2 blocks: 1 2", "allocate 4 blocks"]);
}

/// The exported texts compile and run: `exported_manager.rs` and `exported_pool.rs` are tests beside this one. With
/// `KVPOOL_BLESS=1` they are written anew.
#[test]
fn exported_tests_are_these() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let bless = std::env::var_os("KVPOOL_BLESS").is_some();
    for (name, image) in [("exported_manager.rs", scripted_manager()), ("exported_pool.rs", scripted_pool())]
    {
        let text = export(&image, Language::Rust).unwrap();
        let path = folder.join(name);
        if bless {
            std::fs::write(&path, &text).unwrap();
        }
        let committed = std::fs::read_to_string(&path).unwrap();
        assert!(committed == text, "{name} is made anew with KVPOOL_BLESS=1");
    }
}

/// Every kind of call once or more, by numbers that are always the same.
fn script(most: u32) -> Vec<super::world::Call> {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 8
    };
    (0..most).map(|at| (at as u8, next(), next(), next())).collect()
}

fn scripted_settings() -> ManagerConfig {
    ManagerConfig {
        num_blocks: 24,
        block_size: 2,
        host_blocks: 12,
        event_capacity: 8,
        retention: Some(kvpool::retention::RetentionConfig { pin_budget: 2, tenants: Vec::new() }),
        ..ManagerConfig::default()
    }
}

fn scripted_manager() -> Vec<u8> {
    let mut manager = CacheManager::with_journal(scripted_settings(), ring(1)).unwrap();
    run_manager(&mut manager, &script(96));
    manager.take_journal().unwrap().image().unwrap()
}

fn scripted_pool() -> Vec<u8> {
    let hashed_by = CacheManager::new(scripted_settings()).unwrap();
    let mut pool =
        BlockPool::with_journal(super::world::pool_settings(&scripted_settings()), ring(1)).unwrap();
    super::world::run_pool(&mut pool, &hashed_by, &script(72));
    pool.take_journal().unwrap().image().unwrap()
}
