//! Tests that shrinking a journal leaves only the operations that a failure needs, and exports the
//! result.

use kvpool::retention::{RetentionConfig, TenantId, TenantLimits};
use kvpool::{BlockPool, CacheManager, ManagerConfig, PoolConfig};
use kvpool_journal::{Goal, Journaled, Language, Options, PoolCalls, minimize, replay, shrink};
use proptest::prelude::*;

use super::exports::exported;
use super::world::{EVENTS, any_settings, calls, recorded_manager, ring, run_manager};

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// The items that [`minimize`] leaves still fail, and none of them can be removed.
    #[test]
    fn the_shrunk_list_is_minimal(items in prop::collection::vec(0u8..20, 0..40),
        needed in prop::collection::vec(0u8..20, 1..4)) {
        let fails = |items: &[u8]| {
            let mut rest = items.iter();
            needed.iter().all(|needed| rest.any(|item| item == needed))
        };
        if fails(&items) {
            let least = minimize(items, &mut |items| fails(items));
            prop_assert_eq!(least, needed.clone());
        }
    }

    /// Shrinking a long journal finds the fewest operations that give the same answer. Each remaining
    /// operation is needed, and the journal of these operations can be replayed.
    #[test]
    fn an_answer_shrinks(config in any_settings(), calls in calls(60), at in any::<u32>()) {
        let mut manager = recorded_manager(config, EVENTS, ring(1));
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
        let report = replay(&shrunk.journal, Options { check_every: 1, ..Options::default() },
            &mut |_| true).unwrap();
        prop_assert_eq!(report.difference, None);
        prop_assert_eq!(report.operations, shrunk.operations.len() as u64);
        for language in [Language::Rust, Language::Python] {
            prop_assert!(exported(&shrunk.journal, language).unwrap().contains("check_invariants"));
        }
    }
}

#[test]
fn a_sound_journal_has_nothing_to_shrink() {
    let mut manager = Journaled::<CacheManager>::with_journal(
        ManagerConfig { num_blocks: 8, ..ManagerConfig::default() },
        ring(1),
    )
    .unwrap();
    run_manager(&mut manager, &[(0, 1, 2, 3), (12, 1, 2, 3), (17, 1, 2, 3)]);
    let image = manager.take_journal().unwrap().image().unwrap();
    assert!(shrink(&image, Goal::Broken, &mut |_| true).unwrap().is_none());
    assert!(shrink(&image, Goal::Answer(99), &mut |_| true).unwrap().is_none());
}

#[test]
fn out_of_blocks_shrinks_to_the_allocation_that_needs_it() {
    let mut pool =
        Journaled::<BlockPool>::with_journal(PoolConfig { num_blocks: 9, ..PoolConfig::default() }, ring(1))
            .unwrap();
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

/// If a prompt is shortened, an append may fill blocks that the recorded append did not fill. The
/// shrinker gives such a block a new content, and not the content that the journal records first.
#[test]
fn blocks_that_only_a_shorter_prompt_fills_are_new_contents() {
    let tenants = vec![TenantLimits { tenant: TenantId(1), floor: 1, ceiling: Some(3) }];
    let config = ManagerConfig {
        num_blocks: 19,
        block_size: 2,
        eviction: kvpool_policies::S3_FIFO,
        retention: Some(RetentionConfig { pin_budget: 2, tenants }),
        watermark: 0.1,
        host_blocks: 8,
        ..ManagerConfig::default()
    };
    #[rustfmt::skip]
    let calls = [(249, 0, 0, 988993901),
        (32, 1818593544, 234872318, 2369770274),
        (0, 2896562986, 0, 0),
        (0, 1041344583, 1926527592, 197535508),
        (0, 4165330804, 0, 0),
        (0, 0, 0, 930063518),
        (106, 2211596916, 165522957, 642980260),
        (7, 0, 458192802, 0),
        (21, 0, 0, 0),
        (135, 13777879, 0, 0),
        (31, 0, 0, 3162192),
        (122, 933520797, 660617813, 1023357382),
        (15, 4021944068, 2143279724, 1204928930),
        (128, 2508740435, 2305685070, 1831536026),
        (87, 1691628061, 2438901201, 3747591600),
        (90, 3864009074, 470880594, 3659049085),
        (211, 4029737587, 4274030930, 1798682779),
        (73, 2131286887, 1365055668, 1689787405),
        (146, 350339595, 197868799, 2399049733),
        (5, 3777799932, 3515136304, 683657054),
        (161, 1413920428, 3690649892, 1268251451),
        (60, 1303154356, 1895089476, 1559549967),
        (245, 1109979416, 2891178451, 2452533638),
        (151, 822995660, 3713023266, 2039593431),
        (105, 359840145, 975828470, 2910132018),
        (97, 545404939, 3589308722, 4219410268),
        (152, 516366757, 1714230677, 21597112),
        (88, 2344081271, 2730525831, 3496091688),
        (118, 1973000847, 3125713321, 1554304379),
        (165, 153238390, 2729455783, 242529450),
        (202, 3055774802, 2682328167, 3954950419),
        (251, 3805023526, 3535114861, 3042339174),
        (94, 3423943066, 1343373035, 2975261441),
        (57, 4229782589, 2195737950, 612322518),
        (165, 1424931113, 3682948460, 3272796699),
        (17, 2962534413, 4228097001, 1220778430),
        (119, 584663090, 2380014271, 2815526560),
        (220, 1071756731, 1993949266, 698005787),
        (180, 3029798602, 4008651177, 3994655441),
        (23, 620095273, 3101554089, 2311392019),
        (119, 3136682831, 1830002878, 2960387326),
        (132, 1736447838, 1262558454, 1425328928),
        (93, 505365151, 2387395641, 3479169751),
        (129, 582818516, 3954158185, 360972149),
        (73, 1725736593, 2602005576, 177932533),
        (230, 2483835706, 4231487523, 700878363),
        (237, 295250898, 1573449616, 1350121056)];
    let mut manager = recorded_manager(config, EVENTS, ring(1));
    run_manager(&mut manager, &calls);
    let image = manager.take_journal().unwrap().image().unwrap();
    let shrunk = shrink(&image, Goal::Answer(45), &mut |_| true).unwrap().unwrap();
    let report =
        replay(&shrunk.journal, Options { check_every: 1, ..Options::default() }, &mut |_| true).unwrap();
    assert_eq!(report.difference, None);
}
