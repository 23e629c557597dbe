//! Tests that a small or malicious file cannot cause high costs: an error is one short line that a
//! terminal can show, and sizes in a line are checked before memory is allocated.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

use std::collections::HashSet;

use kvpool_replay::{
    error::TraceError,
    formats::TraceFormat,
    reader::{ReadOptions, read_trace},
    trace::{Trace, TraceRequest},
};
use serde_json::{Value, json};

fn records() -> [(TraceFormat, Value); 6] {
    let ids = json!([1]);
    [
        (
            TraceFormat::Mooncake,
            json!({"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": ids}),
        ),
        (
            TraceFormat::MooncakeSessions,
            json!({"session_id": "a", "timestamp": 0, "delay": 1, "input_length": 9,
                "output_length": 1, "hash_ids": ids}),
        ),
        (
            TraceFormat::Bailian,
            json!({"chat_id": 1, "parent_chat_id": -1, "timestamp": 0, "input_length": 9, "output_length": 1,
                   "type": "text", "turn": 1, "hash_ids": ids}),
        ),
        (
            TraceFormat::KvCacheTester,
            json!({"id": "s", "block_size": 4, "hash_id_scope": "local", "requests": [
                {"t": 0, "in": 5, "out": 1, "hash_ids": ids, "think_time": 1, "model": "m", "type": "s"},
                {"t": 0, "type": "subagent", "agent_id": "x", "requests": []}]}),
        ),
        (
            TraceFormat::BlockRows,
            json!({"block_size": 16, "block_tokens": 16, "hash_ids": ids, "input_length": 9,
                "timestamp": 0, "output_length": 1}),
        ),
        (
            TraceFormat::KvEvents,
            json!({"ts": 0, "events": [{"type": "BlockStored", "block_hashes": [1], "parent_block_hash": null,
                   "block_size": 16, "medium": "GPU", "group_idx": 0}]}),
        ),
    ]
}

/// Returns copies of the record. In each copy, another value is replaced by an invalid one.
fn replaced(record: &Value, by: &Value) -> Vec<Value> {
    let mut found = vec![by.clone()];
    match record {
        Value::Object(object) => {
            for (name, value) in object {
                found.extend(replaced(value, by).into_iter().map(|new| {
                    let mut object = object.clone();
                    object.insert(name.clone(), new);
                    Value::Object(object)
                }));
            }
        }
        Value::Array(values) => {
            for (place, value) in values.iter().enumerate() {
                found.extend(replaced(value, by).into_iter().map(|new| {
                    let mut values = values.clone();
                    values[place] = new;
                    Value::Array(values)
                }));
            }
        }
        _ => {}
    }
    found
}

#[test]
fn no_error_prints_a_long_value_or_a_control_character() {
    let long = "\u{1b}]0;title\u{7}\u{9b}31m".repeat(10_000);
    let mut refused = 0;
    for (format, record) in records() {
        let options = ReadOptions { format: Some(format), ..ReadOptions::default() };
        read_trace(record.to_string().as_bytes(), &options).unwrap();
        let bad = [json!(long), json!({ long.as_str(): 1 }), json!([[long]]), json!(1e300), json!(-1e300)];
        for line in bad.iter().flat_map(|value| replaced(&record, value)) {
            // Repeat the line, because some fields contain names that must not occur twice.
            let text = format!("{line}\n{line}\n");
            let Err(error) = read_trace(text.as_bytes(), &options) else { continue };
            let message = error.to_string();
            assert!(message.len() < 500, "{format}: {} bytes: {}", message.len(), &message[..400]);
            assert!(!message.chars().any(char::is_control), "{format}: {message:?}");
            refused += 1;
        }
    }
    assert!(refused > 150, "{refused}");
}

#[test]
fn a_block_hash_of_megabytes_is_cut_and_escaped() {
    let hash = format!("\u{1b}[2J{}", "x".repeat(1 << 20));
    let stored = |parent: &str| {
        json!({"type": "stored", "hash": hash, "parent": parent, "block_size": 16}).to_string() + "\n"
    };
    let error = read_trace((stored("a") + &stored("b")).as_bytes(), &ReadOptions::default()).unwrap_err();
    assert!(matches!(error.root(), TraceError::HashConflict { line: 2, .. }));
    let message = error.to_string();
    assert!(
        message.starts_with("line 2: block \\u{1b}[2Jxxx") && message.contains("xxx... was stored"),
        "{message}"
    );
}

#[test]
fn a_time_of_three_hundred_digits_is_written_short() {
    let request =
        |timestamp_ms| TraceRequest { timestamp_ms, input_length: 9, output_length: 1, hash_ids: [7].into() };
    let error = Trace::new(vec![request(1e300), request(2.5)], 16).unwrap_err();
    let message = "line 2: timestamp 2.5 ms is before 1e300 ms of line 1; sort the trace by timestamp";
    assert_eq!(error.to_string(), message);
}

/// Two prompts of 2^31 tokens, in four blocks each, that share half of them.
fn two_lines() -> Trace {
    let request = |timestamp_ms, hash_ids: &[u64]| TraceRequest {
        timestamp_ms,
        input_length: 1 << 31,
        output_length: 1,
        hash_ids: hash_ids.into(),
    };
    Trace::new(vec![request(0.0, &[1, 2, 3, 4]), request(1.0, &[1, 2, 5, 6])], 1 << 29).unwrap()
}

#[test]
fn one_entry_of_the_table_stands_for_all_parts_of_a_block() {
    let request = |input_length, hash_ids: &[u64]| TraceRequest {
        timestamp_ms: 0.0,
        input_length,
        output_length: 1,
        hash_ids: hash_ids.into(),
    };
    let requests = vec![request(100, &[1, 2]), request(128, &[1, 3]), request(128, &[1, 2])];
    let trace = Trace::new(requests, 64).unwrap().with_block_tokens(16).unwrap();
    let ids = |index: usize| &trace.requests()[index].hash_ids[..];
    assert_eq!(ids(0), [0, 1, 2, 3, 4, 5, 6]);
    // The full block 2 becomes four small blocks, so it gets four ids, although the first prompt has
    // tokens for only three of them.
    assert_eq!(ids(1), [0, 1, 2, 3, 8, 9, 10, 11]);
    assert_eq!(ids(2), [0, 1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn a_few_ids_become_many() {
    let trace = two_lines().with_block_tokens(1 << 14).unwrap();
    let [first, second] = trace.requests() else { panic!("{} requests", trace.requests().len()) };
    assert!(first.hash_ids.iter().copied().eq(0..1 << 17));
    assert_eq!(first.hash_ids[..1 << 16], second.hash_ids[..1 << 16]);
    assert!(second.hash_ids[1 << 16..].iter().copied().eq(1 << 17..3 << 16));
    assert_eq!(trace.summary().unique_blocks, 3 << 16);
}

#[test]
fn the_number_of_blocks_of_a_trace_is_bounded() {
    let error = two_lines().with_block_tokens(1).unwrap_err();
    assert!(matches!(error, TraceError::TooManyBlocks { to: 1, limit: 1_073_741_824 }));
}

#[test]
fn different_ids_are_counted_whether_they_are_near_or_far_apart() {
    for stride in [1, 3, 64, 1000, u64::MAX / 700] {
        let requests: Vec<_> = (0..60_u64)
            .map(|number| TraceRequest {
                timestamp_ms: 0.0,
                input_length: 160,
                output_length: 0,
                hash_ids: (0..10).map(|place| (number / 3 * 10 + place) * stride).collect(),
            })
            .collect();
        let expected: HashSet<u64> =
            requests.iter().flat_map(|request| request.hash_ids.iter().copied()).collect();
        let trace = Trace::new(requests, 16).unwrap();
        assert_eq!(trace.summary().unique_blocks, expected.len() as u64, "{stride}");
    }
}
