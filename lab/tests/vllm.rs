//! Compares random calls of vLLM's pool with the model, and replays journals of them.
//!
//! `KVPOOL_MODEL_OPERATIONS` sets the number of calls (default 40,000).

use kvpool_journal::{Goal, Language, Options, Step, VllmCall, VllmSubject, export, record, replay, shrink};
use kvpool_lab::run::random::{Bytes, Until, random};
use kvpool_lab::run::report::report;
use kvpool_lab::run::run;
use kvpool_lab::world::World;
use kvpool_lab::world::vllm::VllmWorld;

fn calls() -> u64 {
    std::env::var("KVPOOL_MODEL_OPERATIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(40_000)
}

#[test]
fn vllms_pool_answers_as_its_model() {
    let outcome = random::<VllmWorld>(1, Until::Calls(calls()));
    assert!(outcome.calls >= calls() || outcome.failed.is_some());
    if let Some(report) = outcome.failed.and_then(|failed| report(&failed)) {
        panic!("{report}");
    }
}

#[test]
fn journals_of_random_calls_replay_shrink_and_are_exported() {
    for (nth, data) in Bytes::new(2).take(30).enumerate() {
        let run = run::<VllmWorld>(&data);
        let header = VllmWorld::header(&run.setting).unwrap();
        let (journal, told) = record::<VllmSubject>(&header, &run.steps).unwrap();
        let report = replay(&journal, Options::default(), &mut |_| true).unwrap();
        assert_eq!((report.difference, run.failure), (None, None), "{:?}", run.setting);
        // The journal may have fewer operations than calls. It does not record a repeated
        // `chain_group`, nor a refusal that is only caused by withheld blocks.
        assert!(report.operations <= told.len() as u64);
        if !run.setting.watched && run.setting.withheld == 0 {
            // The pool that records a journal has given the same answers as the pool without a journal.
            let same = |(step, told): (&Step<VllmCall>, &String)| {
                told.ends_with(&format!("-> {}", step.answer.told))
            };
            assert!(run.steps.iter().zip(&told).all(same), "{told:#?}");
        }
        if report.operations > 0 {
            let wanted = nth as u64 % report.operations;
            let shrunk = shrink(&journal, Goal::Answer(wanted), &mut |_| true).unwrap().unwrap();
            assert!(shrunk.operations.len() as u64 <= wanted + 1);
            let again = replay(&shrunk.journal, Options::default(), &mut |_| true).unwrap();
            assert_eq!(again.difference, None);
        }
        let mut test = Vec::new();
        export(&journal, Language::Rust, 10_000, &mut test, &mut |_| true).unwrap();
        assert!(String::from_utf8(test).unwrap().contains("fn journal()"));
    }
}
