//! Tests a short soak of every configuration, and that a soak finds planted defects.
#![expect(clippy::unwrap_used, reason = "a test stops at the first error")]

#[path = "../../rust/kvpool/tests/common/counting.rs"]
mod counting;

use kvpool_lab::Failure;
use kvpool_lab::run::random::Until;
use kvpool_lab::run::soak::{PRESETS, Planted, Report, Settings, soak};

/// Returns the bytes of heap that this thread has allocated, so that other tests are not counted.
fn heap() -> usize {
    counting::counts().1.try_into().unwrap()
}

fn run(calls: u64, round: u64, planted: Option<Planted>) -> Result<Report, Failure> {
    let (until, heap) = (Until::Calls(calls * PRESETS.len() as u64), Some(heap as fn() -> usize));
    soak(&Settings { until, round, heap, planted, blocks: 512, ..Settings::default() }, |_| {})
}

/// In a short soak, the use of heap memory does not grow, and every configuration evicts, preempts and
/// refuses requests.
#[test]
fn every_configuration_passes_a_short_soak() {
    let report = run(40_000, 4_000, None).unwrap();
    assert!(report.heap.judged, "{:?}", report.heap);
    for one in &report.configurations {
        let ((held, cached), has_host) = (one.filling, one.name != "hazard");
        assert!(held > 0.5 && cached > 0.01, "the pool is full: {one:?}");
        assert!(one.hit_rate > 0.05 && one.hit_rate < 0.95 && one.forgotten > 100, "{one:?}");
        let counts = [one.admissions, one.refusals, one.preemptions, one.evictions];
        assert!(counts.iter().all(|&count| count > 20), "{one:?}");
        assert_eq!(one.swapped.1 > 20 && one.copies > 100, has_host, "{one:?}");
    }
    let missing: Vec<_> =
        ["admit", "append", "commit_step", "complete_swap", "resize", "bump_epoch", "reset"]
            .into_iter()
            .filter(|name| report.times.iter().all(|(call, _)| call != name))
            .collect();
    assert!(missing.is_empty(), "{missing:?}");
    assert!(report.to_string().contains("| lru "), "{report}");
}

#[test]
fn the_same_seed_gives_the_same_digest() {
    let digest = |seed| {
        let settings =
            Settings { seed, until: Until::Calls(1), round: 2_000, blocks: 128, ..Settings::default() };
        soak(&settings, |_| {}).unwrap().digest
    };
    assert_eq!(digest(5), digest(5));
    assert_ne!(digest(5), digest(6));
}

#[test]
fn a_leak_is_found() {
    let found = run(40_000, 4_000, Some(Planted::Leak)).unwrap_err();
    assert_eq!(found.kind, "heap", "{found}");
}

#[test]
fn a_reference_that_is_never_released_is_found() {
    let found = run(1, 2_000, Some(Planted::Reference)).unwrap_err();
    assert_eq!(found.kind, "held blocks", "{found}");
}

/// A soak finds KV of earlier weights. All sums and invariants hold, so only the KV that requests read
/// shows this defect.
#[test]
fn kv_of_earlier_weights_is_found() {
    let found = run(1, 2_000, Some(Planted::StaleHit)).unwrap_err();
    assert!(found.kind.starts_with("memory of a "), "{found}");
}
