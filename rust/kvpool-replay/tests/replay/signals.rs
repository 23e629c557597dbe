//! What signals at release may cost `hazard` where they are wrong: half a point of what it hits without them.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "the figures are what the run is for")]

use kvpool::{Finish, Signal};
use kvpool_policies::HAZARD;
use kvpool_replay::generate::{GeneratorConfig, generate};
use kvpool_replay::sizing::{Blocks, Form, References, run_policy};

/// The most that a signal may cost, in points of the block hit rate.
const MOST: f64 = 0.5;

/// A number of a request's own: the finalizer of `SplitMix64`.
const fn mixed(index: usize) -> usize {
    let mut mixed = (index as u64).wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed ^ (mixed >> 31)) as usize
}

/// Hits in per cent with these finish reasons, at some shares of the different blocks.
fn hits(without: &References, finish: impl Fn(usize) -> Finish) -> Vec<f64> {
    let mut told = without.clone();
    told.change_signals(|index, signal| Signal { finish: finish(index), ..signal });
    let capacity = |percent: usize| told.unique_blocks() * percent / 100;
    let run = |percent| run_policy(&told, capacity(percent), HAZARD, Form::Pool).unwrap();
    [2, 5, 10, 20].into_iter().map(|percent| 100.0 * run(percent).outcome().block_rate()).collect()
}

#[test]
fn wrong_signals_cost_half_a_point_at_most() {
    for (seed, agents) in [(1, 0.6), (2, 0.2)] {
        let config =
            GeneratorConfig { seed, requests: 4000, agent_fraction: agents, ..GeneratorConfig::default() };
        let references = References::new(&generate(&config).unwrap(), Blocks::All).unwrap();
        // What a clairvoyant would say: the prompt comes back, or it does not.
        let comes_back = |index: usize| references.runs().live(index) >= references.request_len(index);
        let right = |index| if comes_back(index) { Finish::ToolCalls } else { Finish::Stop };
        let without = hits(&references, |_| Finish::Unknown);
        let (told, shuffled, random) = (
            hits(&references, right),
            hits(&references, |index| right(mixed(index) % references.requests())),
            hits(&references, |index| {
                [Finish::Unknown, Finish::Stop, Finish::ToolCalls][mixed(index) / 7 % 3]
            }),
        );
        println!("without {without:.2?}, right {told:.2?}, shuffled {shuffled:.2?}, random {random:.2?}");
        for wrong in [&shuffled, &random] {
            assert!(
                without.iter().zip(wrong).all(|(without, wrong)| wrong + MOST >= *without),
                "without {without:.2?}, wrong {wrong:.2?}"
            );
        }
        let gain = told.iter().zip(&without).map(|(told, without)| told - without).fold(f64::MIN, f64::max);
        assert!(gain > MOST, "the signals of this trace would be worth something: {gain:.2}");
    }
}
