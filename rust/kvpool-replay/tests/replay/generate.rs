//! Tests of the generator: its output is pinned and consistent, and has the properties that its
//! parameters describe.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

use kvpool_replay::{
    error::GeneratorError,
    expand::TokenExpander,
    generate::{GeneratorConfig, LogNormal, generate},
    reader::ReadOptions,
    trace::{Trace, write_jsonl},
};

fn config(requests: usize) -> GeneratorConfig {
    GeneratorConfig { requests, ..GeneratorConfig::default() }
}

fn bytes(trace: &Trace) -> Vec<u8> {
    let mut out = Vec::new();
    write_jsonl(trace, &mut out).unwrap();
    out
}

/// Computes the 64-bit FNV-1a hash, which is short, specified, and needs no dependency.
fn digest(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |state, &byte| (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The output for a seed must not change, so that published results remain reproducible. A change of
/// the output is a breaking change.
#[test]
fn output_is_pinned() {
    let trace = generate(&config(2_000)).unwrap();
    let file = bytes(&trace);
    let head: Vec<_> = std::str::from_utf8(&file).unwrap().lines().take(3).collect();
    assert_eq!(head, HEAD);
    let summary = trace.summary();
    assert_eq!(
        (summary.input_tokens, summary.output_tokens, summary.block_references, summary.unique_blocks),
        TOTALS
    );
    assert_eq!((file.len(), digest(&file)), FILE);
    let other = generate(&GeneratorConfig { seed: 1, ..config(2_000) }).unwrap();
    assert_eq!(digest(&bytes(&other)), OTHER_SEED);
}

const HEAD: [&str; 3] = [
    r#"{"timestamp": 101, "input_length": 2476, "output_length": 267, "hash_ids": [0, 1, 2, 3, 4]}"#,
    concat!(
        r#"{"timestamp": 235, "input_length": 4836, "output_length": 268, "hash_ids": [0, 1, 2, 3, "#,
        "5, 6, 7, 8, 9, 10]}",
    ),
    concat!(
        r#"{"timestamp": 285, "input_length": 6073, "output_length": 348, "hash_ids": [11, 12, 13, "#,
        "14, 15, 16, 17, 18, 19, 20, 21, 22]}",
    ),
];
const TOTALS: (u64, u64, u64, u64) = (26_115_671, 691_026, 51_975, 11_040);
const FILE: (usize, u64) = (447_736, 0x4ee2_f525_9a46_f824);
const OTHER_SEED: u64 = 0x6cf7_4088_f1b6_1007;

#[test]
fn traces_pass_every_check_at_any_block_size() {
    for (seed, block_tokens) in [(0, 512), (1, 16), (2, 1), (3, 7), (4, 100_000), (5, 64)] {
        let trace = generate(&GeneratorConfig { seed, block_tokens, ..config(300) }).unwrap();
        // Check the counts, times and prefixes of all requests again.
        assert_eq!(Trace::new(trace.requests().to_vec(), block_tokens).unwrap(), trace);
        let options = ReadOptions { block_tokens: Some(block_tokens), ..ReadOptions::default() };
        assert_eq!(Trace::from_reader(&bytes(&trace)[..], &options).unwrap(), trace);
        // Ids are dense and ascend in the order of their first use.
        let mut next = 0;
        for &id in trace.requests().iter().flat_map(|request| &request.hash_ids) {
            assert!(id <= next);
            next += u64::from(id == next);
        }
        assert_eq!(next, trace.summary().unique_blocks);
    }
}

#[test]
fn block_size_changes_ids_alone() {
    let [coarse, fine] = [512, 16].map(|block_tokens| {
        generate(&GeneratorConfig { block_tokens, ..config(500) }).unwrap().into_requests()
    });
    for (coarse, fine) in coarse.iter().zip(&fine) {
        assert_eq!(coarse.timestamp_ms, fine.timestamp_ms);
        assert_eq!((coarse.input_length, coarse.output_length), (fine.input_length, fine.output_length));
        // The block size does not affect the texts: two prompts that share a large block also share the
        // small blocks in it.
        assert_eq!(coarse.hash_ids.len(), fine.hash_ids.len().div_ceil(32));
    }
    for (left, right) in [(0, 100), (3, 250), (17, 499)] {
        let shared = |requests: &[kvpool_replay::trace::TraceRequest]| {
            requests[left].hash_ids.iter().zip(&requests[right].hash_ids).take_while(|(a, b)| a == b).count()
        };
        assert_eq!(shared(&coarse), shared(&fine) / 32);
    }
}

fn ideal_hit_rate(config: &GeneratorConfig) -> f64 {
    let summary = generate(config).unwrap().summary();
    1.0 - summary.unique_blocks as f64 / summary.block_references as f64
}

#[test]
fn kinds_have_their_shapes() {
    let only = |chat_fraction, agent_fraction| {
        ideal_hit_rate(&GeneratorConfig { chat_fraction, agent_fraction, block_tokens: 64, ..config(5_000) })
    };
    let (chat, agent, one_shot) = (only(1.0, 0.0), only(0.0, 1.0), only(0.0, 0.0));
    assert!(agent > 0.85, "{agent}");
    assert!((0.5..0.9).contains(&chat), "{chat}");
    assert!((0.05..0.5).contains(&one_shot), "{one_shot}");

    // With one turn per session, and shared prompts shorter than a block, requests share full blocks
    // only by chance, so there are almost no hits.
    let lonely = GeneratorConfig {
        agent_fraction: 0.0,
        chat_turns: 1.0,
        system_prompt_tokens: LogNormal::new(100.0, 0.0),
        ..config(1_000)
    };
    assert_eq!(ideal_hit_rate(&lonely), 0.0);

    // With a higher skew of popularity, more blocks are shared.
    let skewed = |system_prompt_skew| {
        ideal_hit_rate(&GeneratorConfig {
            system_prompt_skew,
            system_prompts: 5_000,
            chat_fraction: 0.0,
            agent_fraction: 0.0,
            ..config(3_000)
        })
    };
    assert!(skewed(2.0) > skewed(0.0) + 0.05);
}

#[test]
fn rate_and_lengths_are_as_asked() {
    let config = GeneratorConfig {
        rate_per_s: 20.0,
        max_input_tokens: 30_000,
        max_output_tokens: 300,
        ..config(20_000)
    };
    let trace = generate(&config).unwrap();
    let summary = trace.summary();
    assert!((summary.span_ms / 1e6 - 1.0).abs() < 0.03, "{} ms", summary.span_ms);
    assert_eq!(summary.longest_input, 30_000);
    assert!(trace.requests().iter().all(|request| (1..=300).contains(&request.output_length)));
    // In a Poisson process, the standard deviation of the gaps between arrivals equals their mean.
    let gaps: Vec<f64> =
        trace.requests().windows(2).map(|pair| pair[1].timestamp_ms - pair[0].timestamp_ms).collect();
    let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
    let deviation = (gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64).sqrt();
    assert!((deviation / mean - 1.0).abs() < 0.05, "{deviation} {mean}");
}

#[test]
fn extreme_parameters_still_give_valid_traces() {
    let tiny = LogNormal::new(1e-9, 0.0);
    let huge = LogNormal::new(1e9, 5.0);
    for lengths in [tiny, huge] {
        for max_input_tokens in [1, 513, 200_000] {
            let config = GeneratorConfig {
                requests: 200,
                rate_per_s: 1e6,
                max_input_tokens,
                max_output_tokens: u32::MAX,
                system_prompt_tokens: lengths,
                agent_prompt_tokens: lengths,
                chat_user_tokens: lengths,
                chat_output_tokens: lengths,
                chat_pause_s: lengths,
                agent_tool_tokens: lengths,
                agent_output_tokens: lengths,
                agent_pause_s: lengths,
                one_shot_tokens: lengths,
                one_shot_output_tokens: lengths,
                ..GeneratorConfig::default()
            };
            let trace = generate(&config).unwrap();
            assert_eq!(Trace::new(trace.requests().to_vec(), 512).unwrap(), trace);
        }
    }
}

#[test]
fn parameters_out_of_range_are_named() {
    let message = |config: GeneratorConfig| match generate(&config) {
        Err(error @ GeneratorError::Parameter { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    };
    let good = || config(10);
    let bad_lengths = [
        (LogNormal::new(0.0, 1.0), "agent_pause_s is 0; allowed: a median above 0, at most 1e9"),
        (LogNormal::new(f64::NAN, 1.0), "agent_pause_s is NaN; allowed: a median above 0, at most 1e9"),
        (LogNormal::new(1.0, -0.5), "agent_pause_s is -0.5; allowed: a sigma from 0 to 5"),
        (LogNormal::new(1.0, f64::INFINITY), "agent_pause_s is inf; allowed: a sigma from 0 to 5"),
    ];
    for (agent_pause_s, text) in bad_lengths {
        assert_eq!(message(GeneratorConfig { agent_pause_s, ..good() }), text);
    }
    for (config, text) in [
        (config(0), "requests is 0; allowed: 1 to 100000000"),
        (GeneratorConfig { block_tokens: 0, ..good() }, "block_tokens is 0; allowed: 1 or more"),
        (
            GeneratorConfig { rate_per_s: f64::NAN, ..good() },
            "rate_per_s is NaN; allowed: above 0, at most 1e6",
        ),
        (GeneratorConfig { chat_fraction: -0.1, ..good() }, "chat_fraction is -0.1; allowed: 0 to 1"),
        (GeneratorConfig { agent_fraction: f64::NAN, ..good() }, "agent_fraction is NaN; allowed: 0 to 1"),
        (
            GeneratorConfig { chat_fraction: 0.75, agent_fraction: 0.5, ..good() },
            "chat_fraction + agent_fraction is 1.25; allowed: at most 1",
        ),
        (GeneratorConfig { max_input_tokens: 0, ..good() }, "max_input_tokens is 0; allowed: 1 or more"),
        (GeneratorConfig { max_output_tokens: 0, ..good() }, "max_output_tokens is 0; allowed: 1 or more"),
        (GeneratorConfig { system_prompts: 0, ..good() }, "system_prompts is 0; allowed: 1 to 1000000"),
        (
            GeneratorConfig { agent_profiles: 2_000_000, ..good() },
            "agent_profiles is 2000000; allowed: 1 to 1000000",
        ),
        (
            GeneratorConfig { system_prompt_skew: 11.0, ..good() },
            "system_prompt_skew is 11; allowed: 0 to 10",
        ),
        (GeneratorConfig { chat_turns: 0.5, ..good() }, "chat_turns is 0.5; allowed: 1 to 1000000"),
    ] {
        assert_eq!(message(config), text);
    }
}

/// Two generated prompts have the same tokens as far as they share blocks, and different tokens after
/// that.
#[test]
fn tokens_show_the_prefixes_of_the_ids() {
    let trace = generate(&GeneratorConfig { block_tokens: 16, ..config(60) }).unwrap();
    let expander = TokenExpander::new(16).unwrap();
    let prompts: Vec<Vec<u32>> = (0..)
        .zip(trace.requests())
        .map(|(index, request)| {
            let mut tokens = Vec::new();
            expander.expand_request(request, index, &mut tokens).unwrap();
            assert_eq!(tokens.len(), request.input_length as usize);
            tokens
        })
        .collect();
    for (left, left_tokens) in trace.requests().iter().zip(&prompts) {
        for (right, right_tokens) in trace.requests().iter().zip(&prompts) {
            let ids = left.hash_ids.iter().zip(&right.hash_ids).take_while(|(a, b)| a == b).count();
            let tokens = left_tokens.iter().zip(right_tokens).take_while(|(a, b)| a == b).count();
            assert_eq!(tokens.div_ceil(16), ids);
        }
    }
}
