//! Properties of any trace and any bytes: a written trace can be read again, chaining and regrouping
//! preserve shared prefixes, and nothing panics.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

use std::collections::HashMap;

use kvpool_replay::{
    formats::{TraceFormat, write_trace},
    labels::{Label, Labels},
    reader::{ReadOptions, read_trace},
    stats::TraceStats,
    trace::{Trace, TraceRequest},
};
use proptest::prelude::*;

/// A request of a made trace: the time since the previous request in ms, the contents of its full
/// blocks, the number of tokens of its partial last block, and its session.
type MadeRequest = (u16, Vec<u8>, u8, Option<u8>);

/// A random trace: its requests, and whether partial last blocks get ids.
#[derive(Clone, Debug)]
struct Made {
    requests: Vec<MadeRequest>,
    listed: bool,
}

const BLOCK: usize = 8;

fn made() -> impl Strategy<Value = Made> {
    let request =
        (0..2000_u16, prop::collection::vec(0..3_u8, 0..9), 0..BLOCK as u8, prop::option::of(0..4_u8));
    (prop::collection::vec(request, 1..20), any::<bool>())
        .prop_map(|(requests, listed)| Made { requests, listed })
}

impl Made {
    /// Returns the ids of a request's block contents (one per full block, and one for the partial block
    /// if `listed`) and its number of tokens.
    fn contents(&self, index: usize) -> (Vec<u64>, u32) {
        let (_, full, partial, _) = &self.requests[index];
        let mut ids: Vec<u64> = full.iter().map(|&content| u64::from(content)).collect();
        if *partial > 0 && self.listed {
            ids.push(100 + u64::from(*partial));
        }
        // A prompt must have at least one token, so a prompt without blocks gets one full block.
        let tokens = full.len() * BLOCK + usize::from(*partial);
        if tokens == 0 { (vec![0], BLOCK as u32) } else { (ids, tokens as u32) }
    }

    /// Returns the text of the made trace in Bailian's format.
    fn bailian(&self) -> String {
        let mut time = 0_u64;
        let line = |(index, request): (usize, &MadeRequest)| {
            time += u64::from(request.0);
            let (ids, tokens) = self.contents(index);
            format!(
                "{{\"chat_id\": {index}, \"timestamp\": {}, \"input_length\": \
                 {tokens}, \"output_length\": 1, \"hash_ids\": {ids:?}}}\n",
                time as f64 / 1e3
            )
        };
        self.requests.iter().enumerate().map(line).collect()
    }

    fn trace(&self) -> Trace {
        let options = ReadOptions { block_tokens: Some(BLOCK), ..ReadOptions::default() };
        let read = read_trace(self.bailian().as_bytes(), &options).unwrap();
        assert_eq!(read.format, TraceFormat::Bailian);
        let mut labels = Labels::default();
        for (_, _, _, session) in &self.requests {
            let name = session.map(|session| session.to_string());
            labels.push(Label { session: name.as_deref(), kind: Some("k"), ..Label::default() });
        }
        read.trace.with_labels(labels).unwrap()
    }
}

/// Returns the number of ids that two requests have in common at their start.
fn shared(left: &[u64], right: &[u64]) -> usize {
    left.iter().zip(right).take_while(|(left, right)| left == right).count()
}

proptest! {
    /// Two prompts share exactly the blocks at their start that have the same contents.
    #[test]
    fn chaining_is_exact(made in made()) {
        let trace = made.trace();
        for left in 0..made.requests.len() {
            for right in 0..made.requests.len() {
                let expected = shared(&made.contents(left).0, &made.contents(right).0);
                let (left, right) = (&trace.requests()[left].hash_ids, &trace.requests()[right].hash_ids);
                prop_assert_eq!(shared(left, right), expected);
            }
        }
        // The trace that was read passes the checks of `Trace::new`.
        prop_assert!(Trace::new(trace.requests().to_vec(), BLOCK).is_ok());
        prop_assert_eq!(TraceStats::new(&trace).prefix_violations, 0);
    }

    /// After a conversion to another block size, two prompts share as many tokens as whole blocks of
    /// the new size allow.
    #[test]
    fn regrouping_is_exact(made in made(), size in prop::sample::select(vec![1, 2, 4, 16, 24, 64])) {
        let trace = made.trace();
        let other = trace.with_block_tokens(size).unwrap();
        prop_assert!(Trace::new(other.requests().to_vec(), size).is_ok());
        prop_assert_eq!(other.block_tokens(), size);
        let partial = other.requests().iter().any(|one| !(one.input_length as usize).is_multiple_of(size));
        prop_assert_eq!(other.lists_partial_blocks(), trace.lists_partial_blocks() || !partial);
        for left in 0..made.requests.len() {
            for right in 0..left {
                let of = |trace: &Trace, index: usize| trace.requests()[index].hash_ids.clone();
                let before = shared(&of(&trace, left), &of(&trace, right));
                let after = shared(&of(&other, left), &of(&other, right));
                let lengths = [left, right].map(|index| trace.requests()[index].input_length as usize);
                // Number of tokens that are known to be equal. Both prompts must share the blocks of
                // the new size that these tokens fill, and also the last block if both prompts end in
                // it.
                let tokens = (before * BLOCK).min(lengths[0]).min(lengths[1]);
                let ends = trace.lists_partial_blocks() && lengths[0] == lengths[1] && tokens == lengths[0];
                let expected = if ends { tokens.div_ceil(size) } else { tokens / size };
                prop_assert_eq!(after, expected, "{} tokens of {:?}", tokens, lengths);
            }
        }
        // The conversion to smaller blocks and back gives the same number of blocks and the same hits.
        // Traces without ids for partial blocks are left out, because their small blocks may not show
        // that partial blocks have no ids.
        if BLOCK.is_multiple_of(size) && trace.lists_partial_blocks() {
            let back = other.with_block_tokens(BLOCK).unwrap();
            for (left, right) in trace.requests().iter().zip(back.requests()) {
                prop_assert_eq!(left.hash_ids.len(), right.hash_ids.len());
            }
            prop_assert_eq!(TraceStats::new(&trace).ideal_block_hit_rate,
                TraceStats::new(&back).ideal_block_hit_rate);
        }
    }

    #[test]
    fn written_traces_are_read_again(made in made()) {
        let trace = made.trace();
        for format in TraceFormat::ALL.iter().copied().filter(|format| format.is_written()) {
            let mut text = Vec::new();
            write_trace(&trace, format, &mut text).unwrap();
            let options =
                ReadOptions { format: Some(format), block_tokens: Some(BLOCK), ..ReadOptions::default() };
            let again = read_trace(&text[..], &options).unwrap();
            prop_assert_eq!(again.trace.requests(), trace.requests());
            prop_assert_eq!(again.notes.unchained, 0);
            if format == TraceFormat::Mooncake {
                continue;
            }
            // Requests of one session are in one session again, and different sessions are different
            // again. A request without a session may get one of its own.
            let sessions = |trace: &Trace, index| trace.labels().session_number(index);
            let mut names = HashMap::new();
            for index in 0..trace.requests().len() {
                let Some(session) = sessions(&trace, index) else { continue };
                let found = sessions(&again.trace, index);
                prop_assert!(found.is_some());
                prop_assert_eq!(*names.entry(session).or_insert(found), found);
            }
            let different: std::collections::HashSet<_> = names.values().collect();
            prop_assert_eq!(different.len(), names.len());
        }
    }

    /// Compares the statistics with a simple count that keeps all whole prefixes in a set.
    #[test]
    fn ideal_hits_are_those_of_whole_prefixes(made in made()) {
        let trace = made.trace();
        let stats = TraceStats::new(&trace);
        let mut seen = std::collections::HashSet::new();
        let [mut hits, mut references, mut hit_tokens, mut tokens, mut late_hits, mut late] = [0_u64; 6];
        for (index, request) in trace.requests().iter().enumerate() {
            let ids = &request.hash_ids;
            let found = (1..=ids.len()).take_while(|&end| seen.contains(&ids[..end])).count() as u64;
            seen.extend((1..=ids.len()).map(|end| &ids[..end]));
            let length = u64::from(request.input_length);
            let of_these = (found * BLOCK as u64).min(length);
            (hits, references) = (hits + found, references + ids.len() as u64);
            (hit_tokens, tokens) = (hit_tokens + of_these, tokens + length);
            if index >= trace.requests().len() / 2 {
                (late_hits, late) = (late_hits + of_these, late + length);
            }
        }
        let share = |part: u64, whole: u64| if whole == 0 { 0.0 } else { part as f64 / whole as f64 };
        prop_assert_eq!(stats.ideal_block_hit_rate, share(hits, references));
        prop_assert_eq!(stats.ideal_token_hit_rate, share(hit_tokens, tokens));
        prop_assert_eq!(stats.ideal_last_half_token_hit_rate, share(late_hits, late));
        prop_assert_eq!((stats.block_references, stats.unique_blocks), (references, seen.len() as u64));
    }
}

/// One valid trace per format. The tests damage these traces.
const SEEDS: [&str; 6] = [
    "{\"timestamp\": 5, \"input_length\": 600, \"output_length\": 9, \"hash_ids\": [0, 1]}\n",
    "{\"session_id\": \"a\", \"timestamp\": 3, \"input_length\": 600, \"hash_ids\": [0, \
     1]}\n{\"session_id\": \"a\", \"delay\": 2, \"input_length\": 9, \"hash_ids\": [3]}\n",
    "{\"chat_id\": 1, \"parent_chat_id\": -1, \"timestamp\": 0.5, \"input_length\": \
     40, \"output_length\": 5, \"type\": \"text\", \"turn\": 1, \"hash_ids\": [4, 4, 2]}\n",
    "{\"id\": \"s\", \"block_size\": 64, \"requests\": [{\"t\": 1.5, \"type\": \"s\", \"in\": \
     130, \"out\": 7, \"hash_ids\": [1, 2]}, {\"t\": 4, \"type\": \"subagent\", \"agent_id\": \
     5, \"requests\": [{\"t\": 0, \"in\": 64, \"out\": 1, \"hash_ids\": [9]}]}]}\n",
    "{\"block_size\": 64, \"hash_ids\": [5, 6], \"input_length\": 128}\n{\"block_size\": \
     16, \"block_tokens\": [16, 4], \"hash_ids\": [5, 6], \"input_length\": 20, \"timestamp\": 3}\n",
    "{\"ts\": 17.5, \"events\": [{\"type\": \"BlockStored\", \"block_hashes\": [1, \
     2], \"parent_block_hash\": 7, \"block_size\": 16, \"medium\": \"GPU\"}]}\n[18, [[\"BlockStored\", \
     [3], 2, [], 16], [\"BlockRemoved\", [3], \"GPU\"], [\"AllBlocksCleared\"]], 0]\n",
];
const PIECES: [&str; 22] = [
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "\\",
    "\n",
    "-",
    "1e400",
    "null",
    "0.5",
    "99999999999999999999",
    "4294967295",
    "[[[[[[[[",
    "\\u",
    "\u{feff}",
    "\"requests\": [",
    "\"type\": \"subagent\"",
    "\"hash_ids\": [",
    "\u{1f}\u{8b}",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    /// If bytes, bits or pieces of a file are changed at random, reading it returns a valid trace or a
    /// short error of one line, and never panics. This holds for every format and for all options.
    #[test]
    fn damaged_input_is_a_trace_or_an_error(
        seed in 0..SEEDS.len(),
        named in prop::option::of(prop::sample::select(TraceFormat::ALL)),
        block_tokens in prop::option::of(prop::sample::select(vec![1_usize, 16, 64, 512])),
        sort in any::<bool>(),
        sessions_at_once in prop::option::of(1..3_usize),
        changes in prop::collection::vec((
            any::<prop::sample::Index>(), 0..5_u8, any::<u8>(), 0..8_usize), 0..4),
    ) {
        let mut bytes = SEEDS[seed].repeat(2).into_bytes();
        for (at, what, byte, length) in changes {
            let at = at.index(bytes.len() + 1);
            let end = (at + length).min(bytes.len());
            match what {
                0 if at < bytes.len() => bytes[at] = byte,
                1 if at < bytes.len() => bytes[at] ^= 1 << (byte % 8),
                2 => drop(bytes.drain(at..end)),
                3 => bytes.truncate(at),
                _ => drop(bytes.splice(at..end, PIECES[usize::from(byte) % PIECES.len()].bytes())),
            }
        }
        let options = ReadOptions {
            format: named, block_tokens, sort, sessions_at_once, ..ReadOptions::default() };
        match read_trace(&bytes[..], &options) {
            Ok(read) => {
                let size = read.trace.block_tokens();
                let checked = Trace::new(read.trace.requests().to_vec(), size).unwrap();
                prop_assert_eq!(checked.requests(), read.trace.requests());
                prop_assert_eq!(TraceStats::new(&read.trace).prefix_violations, 0);
                // The conversion to any block size succeeds or returns an error.
                drop(read.trace.with_block_tokens(32));
            }
            Err(error) => {
                let text = error.to_string();
                prop_assert!(text.len() < 500 && !text.contains('\n'), "{}", text);
            }
        }
    }

    /// Reads random bytes.
    #[test]
    fn any_bytes_are_an_error_or_a_trace(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        named in prop::option::of(prop::sample::select(TraceFormat::ALL)),
    ) {
        let options = ReadOptions { format: named, ..ReadOptions::default() };
        if let Err(error) = read_trace(&bytes[..], &options) {
            prop_assert!(error.to_string().len() < 500);
        }
    }
}

#[test]
fn labels_are_as_many_as_requests() {
    let request = TraceRequest { timestamp_ms: 0.0, input_length: 1, output_length: 1, hash_ids: [1].into() };
    let trace = Trace::new(vec![request], 16).unwrap();
    let mut labels = Labels::default();
    assert_eq!(trace.clone().with_labels(labels.clone()).unwrap(), trace);
    labels.push(Label::default());
    labels.push(Label::default());
    let error = trace.with_labels(labels).unwrap_err();
    assert_eq!(error.to_string(), "2 labels for 1 requests; allowed: one per request, or none");
}

#[test]
fn deep_nesting_is_an_error() {
    for open in ["[", "{\"requests\": [", "{\"events\": [", "{\"type\": \"subagent\", \"requests\": ["] {
        for format in TraceFormat::ALL {
            let options = ReadOptions { format: Some(*format), ..ReadOptions::default() };
            let deep = open.repeat(100_000);
            assert!(read_trace(deep.as_bytes(), &options).is_err());
        }
        assert!(read_trace(open.repeat(100_000).as_bytes(), &ReadOptions::default()).is_err());
    }
}
