//! Measures the effect of correct and wrong finish signals on `hazard`, on generated traces of agents
//! and chats.

#![expect(clippy::expect_used, reason = "a test stops at the first error")]

use std::collections::HashMap;

use kvpool::{Finish, Signal};
use kvpool_replay::{
    generate::{GeneratorConfig, generate},
    sizing::{Blocks, Form, References, run_policy},
    trace::Trace,
};

/// Capacities in percent of the unique blocks.
const SIZES: [usize; 2] = [2, 5];
/// Largest allowed loss of hit rate through wrong signals, in percentage points.
const BOUND: f64 = 0.5;
const FINISHES: [Finish; 3] = [Finish::Unknown, Finish::Stop, Finish::ToolCalls];

/// Returns a pseudorandom number.
fn random(index: usize, salt: u64) -> usize {
    let number = (index as u64 ^ salt << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((number ^ number >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 33) as usize
}

fn trace(seed: u64) -> Trace {
    let (agent_fraction, chat_fraction) = if seed.is_multiple_of(2) { (0.2, 0.6) } else { (0.6, 0.2) };
    let config = GeneratorConfig {
        seed,
        requests: 8_000,
        agent_fraction,
        chat_fraction,
        ..GeneratorConfig::default()
    };
    generate(&config).expect("a sound configuration")
}

/// Returns the correct signal for each request: tool calls if a later request uses the last full block
/// of its prompt, otherwise the end of a turn.
fn right(trace: &Trace) -> Vec<Finish> {
    let last_full = |ids: &[u64]| ids.iter().rev().nth(1).copied();
    let mut last_use = HashMap::new();
    for (index, request) in trace.requests().iter().enumerate() {
        last_use.extend(request.hash_ids.iter().map(|&id| (id, index)));
    }
    let requests = trace.requests().iter().enumerate();
    let again = |index, ids: &[u64]| last_full(ids).is_some_and(|id| last_use.get(&id) > Some(&index));
    requests
        .map(
            |(index, request)| if again(index, &request.hash_ids) { Finish::ToolCalls } else { Finish::Stop },
        )
        .collect()
}

/// Returns the hit rates of the policy `hazard` in percent, one per capacity. `told` returns the signal
/// of each request.
fn hits(references: &References, told: impl Fn(usize, Signal) -> Signal) -> [f64; SIZES.len()] {
    let hazard = kvpool_policies::by_name("hazard").expect("a policy");
    let mut references = references.clone();
    references.change_signals(told);
    SIZES.map(|percent| {
        let capacity = references.unique_blocks() * percent / 100;
        run_policy(&references, capacity, hazard, Form::Pool).expect("memory").outcome().block_rate() * 100.0
    })
}

#[test]
fn wrong_signals_cost_little_and_right_ones_help() {
    let mut gained = 0.0;
    for seed in [4, 8] {
        let trace = trace(seed);
        let references = References::new(&trace, Blocks::All).expect("memory");
        let (right, requests) = (right(&trace), trace.requests().len());
        let without = hits(&references, |_, _| Signal::default());
        let told = hits(&references, |index, signal| Signal { finish: right[index], ..signal });
        gained += told.iter().sum::<f64>() - without.iter().sum::<f64>();
        let shuffled = hits(&references, |index, signal| {
            let finish = right[random(index, 1) % requests];
            Signal { finish, ..signal }
        });
        let noise = hits(&references, |index, _| {
            let finish = FINISHES[random(index, 2) % FINISHES.len()];
            Signal { finish, output_tokens: Some((random(index, 3) % 800) as u32) }
        });
        for (what, hits) in [("another request's reason", shuffled), ("noise", noise)] {
            for ((hits, without), percent) in hits.iter().zip(without).zip(SIZES) {
                assert!(hits + BOUND >= without, "{what}, trace {seed}, {percent} %: {hits} of {without}");
            }
        }
    }
    let mean = gained / (2 * SIZES.len()) as f64;
    assert!(mean > 0.3, "right reasons are worth {mean} points");
}
