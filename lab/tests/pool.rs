//! Compares random calls of a pool with the model.
//!
//! `KVPOOL_MODEL_OPERATIONS` sets the number of calls (default 100,000).

use kvpool_journal::{Language, Options, replay};
use kvpool_lab::run::random::{Bytes, Until, random};
use kvpool_lab::run::report::{journal, report, test};
use kvpool_lab::run::run;
use kvpool_lab::world::pool::PoolWorld;

fn calls() -> u64 {
    std::env::var("KVPOOL_MODEL_OPERATIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(100_000)
}

#[test]
fn a_pool_answers_as_its_model() {
    let outcome = random::<PoolWorld>(1, Until::Calls(calls()));
    assert!(outcome.calls >= calls() || outcome.failed.is_some());
    if let Some(report) = outcome.failed.and_then(|failed| report(&failed)) {
        panic!("{report}");
    }
}

#[test]
fn journals_of_random_calls_replay_bit_by_bit_and_are_tests() {
    let mut operations = 0;
    for bytes in Bytes::new(2).take(60) {
        let run = run::<PoolWorld>(&bytes);
        let image = journal(&run, run.steps.len()).unwrap();
        let options = Options { check_every: 1, ..Options::default() };
        let report = replay(&image, options, &mut |_| true).unwrap();
        let all = run.steps.len() as u64;
        assert_eq!((report.operations, report.digests, report.difference), (all, all, None));
        let text = test(&image, Language::Rust).unwrap();
        assert!(text.lines().filter(|line| line.contains("pool.")).count() >= run.steps.len());
        operations += all;
    }
    assert!(operations > 2000, "{operations}");
}
