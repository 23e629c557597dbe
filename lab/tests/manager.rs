//! Compares random calls of a manager with the model.
//!
//! `KVPOOL_MODEL_OPERATIONS` sets the number of calls (default 100,000).

use kvpool_lab::run::random::{Until, random};
use kvpool_lab::run::report::report;
use kvpool_lab::world::manager::ManagerWorld;

fn calls() -> u64 {
    std::env::var("KVPOOL_MODEL_OPERATIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(100_000)
}

#[test]
fn a_manager_answers_as_its_model() {
    let outcome = random::<ManagerWorld>(1, Until::Calls(calls()));
    assert!(outcome.calls >= calls() || outcome.failed.is_some());
    if let Some(report) = outcome.failed.and_then(|failed| report(&failed)) {
        panic!("{report}");
    }
}
