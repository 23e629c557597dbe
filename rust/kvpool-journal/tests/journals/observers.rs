//! Observers change nothing: managers that run the same random calls evict blocks in the same order
//! with any observers. This is tested under every policy, with a host tier, and with and without
//! retention.

use kvpool::{CacheManager, ManagerConfig};
use kvpool_journal::{Journaled, Observed, Observers, Options, Recordable, observe};
use kvpool_observe::{AdvisorConfig, ExplainConfig, ManagerWatch, ManagerWatchConfig};
use proptest::prelude::*;

use super::world::{Call, any_settings, calls, ring, run_manager};

/// Returns settings with each observer alone, and with all of them together.
fn observers() -> [ManagerWatchConfig; 7] {
    let none = ManagerWatchConfig::default;
    let (explain, advisor) = (Some(ExplainConfig::default()), Some(AdvisorConfig::default()));
    [
        ManagerWatchConfig { event_capacity: 16, ..none() },
        ManagerWatchConfig { digest: true, ..none() },
        ManagerWatchConfig { scrub_blocks: 3, ..none() },
        ManagerWatchConfig { explain, ..none() },
        ManagerWatchConfig { advisor: advisor.clone(), ..none() },
        ManagerWatchConfig { metrics: true, ..none() },
        ManagerWatchConfig {
            event_capacity: 16,
            digest: true,
            scrub_blocks: 3,
            explain,
            advisor,
            metrics: true,
            ..none()
        },
    ]
}

/// Returns the state of a manager that callers can read.
fn seen(manager: &CacheManager) -> impl PartialEq + std::fmt::Debug + use<> {
    let tiers = manager.tiers();
    let pools = (0..tiers.len()).map(|tier| tiers.pool(tier).unwrap());
    let orders: Vec<_> = pools.map(|pool| (pool.free_order(), pool.eviction_order(), pool.stats())).collect();
    (orders, manager.stats(), manager.retention_stats())
}

fn run(manager: &mut Journaled<CacheManager>, calls: &[Call]) {
    run_manager(manager, calls);
    manager.check_invariants().unwrap();
    manager.unrecorded(Recordable::digest);
}

/// A replay with the same observers gives the same reports as the recorded run.
fn observed_again(manager: &mut Journaled<CacheManager>) {
    let image = manager.journal_image().unwrap();
    let observers =
        Observers { explain: Some(ExplainConfig::default()), metrics: true, ..Observers::default() };
    let mut looks = 0;
    let mut look = |operations, observed: Observed<'_>| {
        let Observed::Manager(again) = observed else { return };
        looks += 1;
        if operations == manager.journal().unwrap().operations() {
            assert_eq!(again.metrics(), manager.metrics());
            assert_eq!(again.advice(), manager.advice());
            let missed = [again, &**manager].map(|one| one.misses().unwrap().admitted.total());
            assert_eq!(missed[0], missed[1]);
        }
    };
    let report = observe(&image, &observers, Options::default(), 40, &mut look, &mut |_| true).unwrap();
    assert_eq!(report.difference, None);
    assert_eq!(looks, report.operations.div_ceil(40));
}

fn watched(config: ManagerConfig, watch: &ManagerWatchConfig) -> Journaled<CacheManager> {
    CacheManager::new(config).unwrap().watched(watch).unwrap().into()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn observers_change_no_answer_and_no_eviction(config in any_settings(), calls in calls(160)) {
        let mut bare = watched(config.clone(), &ManagerWatchConfig::default());
        run(&mut bare, &calls);
        for watch in observers() {
            let mut manager = watched(config.clone(), &watch);
            run(&mut manager, &calls);
            prop_assert_eq!(seen(&manager), seen(&bare), "{:?}", watch);
        }
        let [.., all] = observers();
        let mut recorded = Journaled::with_watch(config, &all, ring(7)).unwrap();
        run(&mut recorded, &calls);
        prop_assert_eq!(seen(&recorded), seen(&bare));
        observed_again(&mut recorded);
    }
}
