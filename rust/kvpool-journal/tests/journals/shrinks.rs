//! Shrinking and export.

use kvpool::testing::minimize;
use kvpool::{BlockPool, CacheManager, ManagerConfig, PoolConfig};
use kvpool_journal::{Goal, Language, Options, replay, shrink};
use proptest::prelude::*;

use super::exports::exported;
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
            prop_assert!(exported(&shrunk.journal, language).unwrap().contains("check_invariants"));
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
