//! A short soak of every configuration, and that a soak notices what it is for.
#![expect(clippy::unwrap_used, reason = "a test stops at the first error")]

#[path = "../../rust/kvpool/tests/common/counting.rs"]
mod counting;

use std::time::Duration;

use kvpool_benches::soak::{Failure, Limit, PRESETS, Report, Sabotage, Settings, Soak};

/// Small pools, so that everything happens soon.
fn settings(operations: u64) -> Settings {
    Settings {
        limit: Limit::Operations(operations),
        blocks: 512,
        resize_every: 200,
        epoch_every: 4000,
        reset_every: 5000,
        check_every: Some(500),
        line_every: Duration::from_secs(3600),
        orders_every: 20,
        ..Settings::default()
    }
}

fn run(settings: &Settings) -> Result<Report, Failure> {
    Soak::new(settings)?.run(|_| {})
}

/// Every configuration makes some 20,000 operations, and everything that can happen happens.
#[test]
fn every_configuration_stands_a_short_soak() {
    let settings = settings(20_000 * PRESETS.len() as u64);
    let report = run(&settings).unwrap();
    assert_eq!(report.configurations.len(), PRESETS.len());
    for configuration in &report.configurations {
        let (held, cached, free) = configuration.filling;
        assert!(held > 0.5 && cached > 0.05 && free < 0.1, "the pool is full: {configuration:?}");
        assert!(configuration.blocks == (512, 768) && configuration.epochs > 0, "{configuration:?}");
        assert!(configuration.resets > 1, "not at the end alone: {configuration:?}");
        assert!(configuration.hit_rate > 0.1 && configuration.hit_rate < 0.9, "{configuration:?}");
        let counts = [configuration.refusals, configuration.preemptions, configuration.evictions];
        assert!(counts.iter().all(|&count| count > 20), "{configuration:?}");
        let swapped = configuration.swaps.1 > 20 || configuration.name == "hazard"; // which has no host tier
        assert!(swapped && configuration.invalid > 200 && configuration.copies > 100, "{configuration:?}");
    }
    assert!(report.aborts.iter().all(|&(_, times)| times > 10), "{:?}", report.aborts);
    let missing: Vec<_> =
        ["swap in: complete", "commit_step", "bump_epoch", "resize", "advice", "retain_prefix"]
            .into_iter()
            .filter(|name| !report.latencies.iter().any(|(kind, _)| kind.starts_with(name)))
            .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// One seed, one sequence of operations; the lines and recounts on the way make no difference.
#[test]
fn the_same_seed_gives_the_same_digest() {
    let digest = |seed, check_every, line_every| {
        let settings = Settings { seed, check_every, line_every, ..settings(30_000) };
        run(&settings).unwrap().digest
    };
    let (hour, moment) = (Duration::from_secs(3600), Duration::from_millis(1));
    let first = digest(5, Some(500), hour);
    assert_eq!(first, digest(5, None, moment));
    assert_ne!(first, digest(6, None, hour));
}

/// What a planted defect makes the soak say.
fn sabotaged(sabotage: Sabotage) -> String {
    let settings = Settings { sabotage: Some(sabotage), ..settings(200_000) };
    run(&settings).unwrap_err().what
}

#[test]
fn a_forgotten_release_is_noticed() {
    let what = sabotaged(Sabotage::ForgottenRelease);
    assert!(what.ends_with("in the manager") && what.contains("in the books"), "{what}");
}

#[test]
fn lost_copies_are_noticed() {
    let what = sabotaged(Sabotage::LostCopies);
    assert!(what.contains("where the KV of token"), "{what}");
}

#[test]
fn a_step_that_writes_after_its_end_is_noticed() {
    let what = sabotaged(Sabotage::EarlyStep);
    assert!(what.contains("the KV of other tokens"), "{what}");
}

/// Nothing but the KV itself can tell: sums, books and invariants are sound.
#[test]
fn a_change_of_weights_without_a_reset_is_noticed() {
    let what = sabotaged(Sabotage::ForgottenReset);
    assert!(what.contains("hit a block, but") && what.contains("of other tokens or weights"), "{what}");
}

/// The same run without a leak is sound; it is long, because tables and books take until then to reach their size. The heap is that of
/// this thread, on which the soak runs: what other tests hold is not counted.
#[test]
fn a_leak_is_noticed() {
    fn heap() -> usize {
        counting::counts().1.try_into().unwrap()
    }
    let limit = Limit::Operations(1_600_000);
    let presets = PRESETS[..1].to_vec();
    let settings = Settings { limit, presets, heap: Some(heap), ..settings(0) };
    let sound = Settings { check_every: None, ..settings };
    assert!(run(&sound).unwrap().memory.judged, "long enough, and flat");
    let what = run(&Settings { sabotage: Some(Sabotage::Leak), ..sound }).unwrap_err().what;
    assert!(what.starts_with("heap in use grew"), "{what}");
}
