//! Tests of every format: the requests that are read, the notes about them, and a typed error with line
//! and field for invalid input.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

use std::{io::Write, path::PathBuf};

use flate2::{Compression, write::GzEncoder};
use kvpool::Finish;
use kvpool_replay::{
    error::TraceError,
    formats::{ReadNotes, TraceFormat, write_trace},
    labels::Label,
    reader::{ReadOptions, ReadTrace, TraceLoader, read_trace},
    trace::Trace,
};

fn read(text: &str) -> Result<ReadTrace, TraceError> {
    read_trace(text.as_bytes(), &ReadOptions::default())
}

#[expect(clippy::needless_pass_by_value, reason = "made where it is called")]
fn read_with(text: &str, options: ReadOptions) -> Result<ReadTrace, TraceError> {
    read_trace(text.as_bytes(), &options)
}

fn error_of(text: &str) -> String {
    read(text).unwrap_err().to_string()
}

fn ids(trace: &Trace) -> Vec<Vec<u64>> {
    trace.requests().iter().map(|request| request.hash_ids.to_vec()).collect()
}

fn times(trace: &Trace) -> Vec<f64> {
    trace.requests().iter().map(|request| request.timestamp_ms).collect()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// A temporary folder, which is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("kvpool-formats-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.0.join(name), bytes).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

const MOONCAKE: &str = r#"{"timestamp": 5, "input_length": 600, "output_length": 9, "hash_ids": [0, 1]}
"#;
const SESSIONS: &str = concat!(
    r#"{"session_id": "a", "timestamp": 1000, "input_length": 600, "output_length": 9, "#,
    r#""hash_ids": [0, 1]}"#,
    "\n",
    r#"{"session_id": "a", "delay": 250.5, "input_length": 1100, "hash_ids": [0, 2, 3]}"#,
    "\n",
    r#"{"session_id": 7, "timestamp": 400, "input_length": 20, "output_length": 3, "#,
    r#""hash_ids": [8]}"#,
    "\n",
    r#"{"session_id": "a", "input_length": 1100, "output_length": 1, "hash_ids": [0, 2, 3]}"#,
    "\n",
    r#"{"input_length": 9, "output_length": 1, "hash_ids": [9]}"#,
    "\n",
);
const BAILIAN: &str = concat!(
    r#"{"chat_id": 10, "parent_chat_id": -1, "timestamp": 0.5, "input_length": 40, "#,
    r#""output_length": 5, "type": "text", "turn": 1, "hash_ids": [100, 101, 102]}"#,
    "\n",
    r#"{"chat_id": 11, "parent_chat_id": 10, "timestamp": 61.114, "input_length": 48, "#,
    r#""output_length": 5, "type": "search", "turn": 2, "hash_ids": [100, 101, 103]}"#,
    "\n",
    r#"{"chat_id": 12, "parent_chat_id": 3, "timestamp": 61.114, "input_length": 20, "#,
    r#""output_length": 0, "hash_ids": [101, 100]}"#,
    "\n",
    r#"{"chat_id": 13, "parent_chat_id": 12, "timestamp": 62, "input_length": 32, "#,
    r#""output_length": 0, "type": "text", "hash_ids": [101, 101]}"#,
    "\n",
);
const DOCUMENT: &str = concat!(
    r#"{"id": "s1", "models": ["m"], "block_size": 64, "hash_id_scope": "local", "#,
    r#""tool_tokens": 9, "requests": ["#,
    "\n",
    r#"  {"t": 1.5, "type": "s", "model": "big", "in": 200, "out": 7, "hash_ids": [1, 2, 3], "#,
    r#""stop": ""},"#,
    "\n",
    r#"  {"t": 4, "type": "subagent", "agent_id": "x", "subagent_type": "Explore", "requests": ["#,
    "\n",
    r#"    {"t": 0, "type": "n", "model": "small", "in": 64, "out": 1, "hash_ids": [9]},"#,
    "\n",
    r#"    {"type": "subagent", "agent_id": 2, "requests": ["#,
    "\n",
    r#"      {"t": 2, "type": "n", "in": 130, "out": 1, "hash_ids": [9, 8]}]}]},"#,
    "\n",
    r#"  {"t": 3, "type": "n", "model": "big", "in": 260, "out": 2, "hash_ids": [1, 2, 3, 4], "#,
    r#""think_time": 0.25}"#,
    "\n",
    "]}",
);
const ROWS: &str = r#"{"block_size": 64, "hash_ids": [5, 6], "input_length": 128}
{"block_size": 64, "hash_ids": [5, 7], "input_length": 100, "timestamp": 12.5, "output_length": 3}
{"block_tokens": [64, 64, 10], "hash_ids": [6, 6, 6], "input_length": 138}
"#;
const EVENTS: &str = concat!(
    r#"{"ts": 1700000000.5, "events": [{"type": "BlockStored", "block_hashes": [11, 12], "#,
    r#""parent_block_hash": null, "token_ids": [1, 2], "block_size": 16, "medium": "GPU"}], "#,
    r#""data_parallel_rank": 0}"#,
    "\n",
    r#"{"ts": 1700000001.0, "events": [{"type": "BlockStored", "block_hashes": [13], "#,
    r#""parent_block_hash": 12, "token_ids": [], "block_size": 16, "medium": null}]}"#,
    "\n",
    r#"[1700000002.0, [["BlockStored", [14], 12, [1], 16, null, "GPU"], ["BlockRemoved", [13], "#,
    r#""GPU"], ["BlockStored", [99], null, [], 0, null, "CPU"]], 0]"#,
    "\n",
);

/// One valid trace per format.
const GOOD: [(TraceFormat, &str); 6] = [
    (TraceFormat::Mooncake, MOONCAKE),
    (TraceFormat::MooncakeSessions, SESSIONS),
    (TraceFormat::Bailian, BAILIAN),
    (TraceFormat::KvCacheTester, DOCUMENT),
    (TraceFormat::BlockRows, ROWS),
    (TraceFormat::KvEvents, EVENTS),
];

#[test]
fn formats_are_detected_by_the_first_record() {
    for (format, text) in GOOD {
        let found = read(text).unwrap();
        assert_eq!(found.format, format);
        assert_eq!(format.name().parse::<TraceFormat>().unwrap(), format);
        // The result is the same if the caller names the format, if the file has a byte order mark and
        // blank lines, or if it is compressed.
        let named = ReadOptions { format: Some(format), ..ReadOptions::default() };
        assert_eq!(read_with(text, named.clone()).unwrap(), found);
        let wrapped = format!("\u{feff}\r\n  \n{}", text.replace('\n', "\r\n\r\n"));
        assert_eq!(read(&wrapped).unwrap().trace.requests(), found.trace.requests(), "{format}");
        assert_eq!(read_trace(&gzip(text.as_bytes())[..], &named).unwrap(), found);
        let mut loader =
            TraceLoader::from_reader(std::io::Cursor::new(text.to_owned()), &ReadOptions::default()).unwrap();
        while !loader.advance(1).unwrap() {}
        assert_eq!((loader.bytes_read(), loader.total_bytes()), (text.len() as u64, None));
        assert_eq!(loader.finish().unwrap(), found);
    }
    let error = "weka".parse::<TraceFormat>().unwrap_err();
    assert_eq!(
        error.to_string(),
        "unknown format \"weka\", known: mooncake, mooncake-sessions, bailian, kv-cache-tester, \
         block-rows, kv-events"
    );
}

#[test]
fn empty_inputs_are_errors_in_every_format() {
    for format in TraceFormat::ALL {
        let named = ReadOptions { format: Some(*format), ..ReadOptions::default() };
        for text in ["", " \n\n", "\u{feff}"] {
            let error = read_with(text, named.clone()).unwrap_err();
            assert!(matches!(error, TraceError::Empty { .. }), "{format}: {error}");
        }
    }
}

#[test]
fn sessions_are_placed_and_put_in_order() {
    let ReadTrace { trace, notes, .. } = read(SESSIONS).unwrap();
    // The expected order by arrival: the request without a session at 0, session 7 at 400, and then the
    // turns of session a. The first is at 1000, the second 250.5 ms later, and the third at the time of
    // the second.
    assert_eq!(times(&trace), [0.0, 400.0, 1000.0, 1250.5, 1250.5]);
    assert_eq!(ids(&trace), [vec![9], vec![8], vec![0, 1], vec![0, 2, 3], vec![0, 2, 3]]);
    assert_eq!(trace.requests()[3].output_length, 0);
    assert_eq!((notes.records, notes.reordered, notes.untimed), (5, 2, 3));
    assert_eq!(trace.labels().sessions(), ["7", "a"]);
    let labels: Vec<Label<'_>> = (0..5).map(|index| trace.labels().get(index)).collect();
    assert_eq!(labels[0], Label::default());
    assert_eq!(labels[3], Label { session: Some("a"), think_ms: Some(250.5), ..Label::default() });

    // The finish reason of a turn is kept when the trace is read and written again.
    let ended = SESSIONS.replace("\"delay\": 250.5", "\"delay\": 250.5, \"finish_reason\": \"tool_use\"");
    let trace = read(&ended).unwrap().trace;
    assert_eq!(trace.labels().get(3).finish, Finish::ToolCalls);
    let mut written = Vec::new();
    write_trace(&trace, TraceFormat::MooncakeSessions, &mut written).unwrap();
    let written = String::from_utf8(written).unwrap();
    assert!(written.contains(r#""finish_reason": "tool_calls", "#), "{written}");
    let named = ReadOptions { format: Some(TraceFormat::MooncakeSessions), ..ReadOptions::default() };
    let again = read_trace(written.as_bytes(), &named).unwrap().trace;
    assert_eq!(again.labels().get(3).finish, Finish::ToolCalls);

    let back = SESSIONS.replace("\"delay\": 250.5", "\"timestamp\": 999");
    assert_eq!(
        error_of(&back),
        "line 2: timestamp 999 ms is before 1000 ms of line 1; sort the trace by timestamp (read as \
         mooncake-sessions)"
    );
    // Ids identify prefixes in this format, too, so an id that follows two different ids is an error.
    let conflict = SESSIONS.replace("[8]", "[2]");
    assert_eq!(
        error_of(&conflict),
        "line 2: id 2 follows id 0, but in line 3 it follows nothing (it is the first id); an id names a \
         whole prefix and has one parent (read as mooncake-sessions)"
    );
}

#[test]
fn bailian_is_in_seconds_and_its_ids_are_contents() {
    let ReadTrace { trace, notes, .. } = read(BAILIAN).unwrap();
    assert_eq!(trace.block_tokens(), 16);
    assert_eq!(times(&trace), [500.0, 61114.0, 61114.0, 62000.0]);
    // Id 101 after id 100 becomes another prefix id than id 101 at the start of a prompt. An id may
    // occur twice in a prompt.
    assert_eq!(ids(&trace), [vec![0, 1, 2], vec![0, 1, 3], vec![4, 5], vec![4, 6]]);
    assert_eq!(notes, ReadNotes { records: 4, unchained: 3, ..ReadNotes::default() });
    let sessions: Vec<_> =
        (0..4).map(|index| trace.labels().get(index).session.unwrap().to_owned()).collect();
    // The parent of the third request, chat 3, was not recorded. The fourth request continues the
    // third, so both are in session 3.
    assert_eq!(sessions, ["10", "10", "3", "3"]);
    assert_eq!(trace.labels().kinds(), ["text", "search"]);
    assert_eq!(trace.labels().get(2).kind, None);

    let unsorted = BAILIAN.replace("61.114", "0.25");
    assert_eq!(
        error_of(&unsorted),
        "line 2: timestamp 250 ms is before 500 ms of line 1; sort the trace by timestamp (read as bailian)"
    );
    let sorted = read_with(&unsorted, ReadOptions { sort: true, ..ReadOptions::default() }).unwrap();
    assert_eq!(times(&sorted.trace), [250.0, 250.0, 500.0, 62000.0]);
    assert_eq!(sorted.notes.reordered, 2);
}

#[test]
fn documents_have_sub_agents_and_ids_of_their_own() {
    let ReadTrace { trace, notes, .. } = read(DOCUMENT).unwrap();
    assert_eq!((trace.block_tokens(), notes.records), (64, 1));
    // The times of the outer sub-agent are before its own start at 4 s, so they are counted from that
    // start. The inner sub-agent has no start of its own, so its times are counted from the same start
    // as those of the outer one.
    assert_eq!(times(&trace), [1500.0, 3000.0, 4000.0, 6000.0]);
    assert_eq!(ids(&trace), [vec![0, 1, 2], vec![0, 1, 2, 5], vec![3], vec![3, 4]]);
    let label = |index| trace.labels().get(index);
    assert_eq!(
        label(1),
        Label { session: Some("s1"), kind: Some("big"), think_ms: Some(250.0), ..Label::default() }
    );
    assert_eq!(label(2), Label { session: Some("s1/x"), kind: Some("small"), ..Label::default() });
    assert_eq!(label(3), Label { session: Some("s1/x/2"), ..Label::default() });

    // If the times of a sub-agent are not before its start, they already count from the start of the
    // session, and do not change.
    let absolute = DOCUMENT.replace("{\"t\": 0, ", "{\"t\": 4, ").replace("{\"t\": 2, ", "{\"t\": 5, ");
    assert_eq!(times(&read(&absolute).unwrap().trace), [1500.0, 3000.0, 4000.0, 5000.0]);
}

#[test]
fn documents_can_be_in_one_file_or_in_a_folder() {
    let small = |name: &str, scope: &str, t: f64| {
        format!(
            "{{\"id\": \"{name}\", \"block_size\": 64, {scope}\"requests\": [{{\"t\": {t}, \"in\": \
             70, \"out\": 1, \"hash_ids\": [1]}}, {{\"t\": 9, \"in\": 140, \"out\": 1, \"hash_ids\": [1, \
             2]}}]}}"
        )
    };
    let three = [small("a", "", 0.0), small("b", "", 2.0), small("c", "", 1.0)];
    let joined = read(&three.concat()).unwrap();
    assert_eq!(times(&joined.trace), [0.0, 1000.0, 2000.0, 9000.0, 9000.0, 9000.0]);
    // With local ids, the documents have no blocks in common. With global ids, they have the same
    // blocks.
    assert_eq!(joined.trace.summary().unique_blocks, 6);
    let global = three.concat().replace("\"requests\"", "\"hash_id_scope\": \"global\", \"requests\"");
    assert_eq!(read(&global).unwrap().trace.summary().unique_blocks, 2);
    // If one session runs at a time, each document begins at the last arrival of the previous one. If
    // two run at a time, the third document waits for the first.
    let at_once = |sessions| {
        let options = ReadOptions { sessions_at_once: Some(sessions), ..ReadOptions::default() };
        times(&read_with(&three.concat(), options).unwrap().trace)
    };
    assert_eq!(at_once(1), [0.0, 9000.0, 11_000.0, 18_000.0, 19_000.0, 27_000.0]);
    assert_eq!(at_once(2), [0.0, 2000.0, 9000.0, 9000.0, 10_000.0, 18_000.0]);
    assert_eq!(at_once(3), times(&joined.trace));
    assert_eq!(read(&three.join("\n\n")).unwrap().trace, joined.trace);
    let pretty = three.join("\n").replace(',', ",\n").replace('{', "\n{\n");
    assert_eq!(read(&pretty).unwrap().trace, joined.trace);

    let folder = Folder::new("documents");
    folder.write("trace_2.json.gz", &gzip(three[1].as_bytes()));
    folder.write("trace_1.json", three[0].as_bytes());
    folder.write("trace_3.jsonl", format!("{}\n", three[2]).as_bytes());
    folder.write("README.md", b"not a trace");
    let mut loader = TraceLoader::open(&folder.0, &ReadOptions::default()).unwrap();
    while !loader.advance(100).unwrap() {}
    assert_eq!(Some(loader.bytes_read()), loader.total_bytes());
    assert_eq!(loader.finish().unwrap().trace, joined.trace);

    folder.write("trace_4.json", three[0].replace("\"in\": 140", "\"in\": -1").as_bytes());
    let error = Trace::from_path(&folder.0, &ReadOptions::default()).unwrap_err();
    assert!(matches!(error.root(), TraceError::BadNumber { line: 1, .. }), "{error}");
    let tail = "trace_4.json: line 1: \"requests[1].in\" is -1; allowed: a whole number from 0 to \
         4294967295 (read as kv-cache-tester)";
    assert!(error.to_string().ends_with(tail), "{error}");

    let empty = Folder::new("empty");
    empty.write("README.md", b"");
    let error = Trace::from_path(&empty.0, &ReadOptions::default()).unwrap_err();
    assert!(matches!(error, TraceError::EmptyFolder { .. }), "{error}");
}

#[test]
fn rows_contain_their_block_size() {
    let ReadTrace { trace, notes, .. } = read(ROWS).unwrap();
    assert_eq!(trace.block_tokens(), 64);
    assert_eq!(times(&trace), [0.0, 12.5, 12.5]);
    // Id 6 occurs four times: after 5, at the start of a prompt, after 6, and after the second 6. It
    // gets four different prefix ids.
    assert_eq!(ids(&trace), [vec![0, 1], vec![0, 2], vec![3, 4, 5]]);
    assert_eq!((notes.untimed, notes.unchained, notes.regrouped), (2, 3, 0));
    let one = r#"{"block_tokens": 16, "hash_ids": [1, 2], "input_length": 30}"#;
    assert_eq!(read(one).unwrap().trace.block_tokens(), 16);
    // If the rows have neither `block_size` nor `block_tokens`, the caller has to pass the block size.
    let unsaid = ROWS.replace("\"block_size\": 64, ", "").replace("[64, 64, 10]", "null");
    let options = ReadOptions {
        format: Some(TraceFormat::BlockRows),
        block_tokens: Some(64),
        ..ReadOptions::default()
    };
    assert_eq!(read_with(&unsaid, options).unwrap().trace, trace);
}

/// The request with blocks of 16 tokens has an id for its partial block, and the other requests do not.
/// Regression test: which of the requests was refused depended on the order of a hash map.
#[test]
fn mixed_conventions_of_partial_blocks_give_the_same_error_each_time() {
    let row = |size: usize, ids: &[u64]| {
        format!("{{\"block_size\": {size}, \"hash_ids\": {ids:?}, \"input_length\": 70}}\n")
    };
    let text = format!("{}{}{}", row(16, &[0, 1, 2, 3, 4]), row(32, &[0, 1]), row(64, &[0]));
    let error = error_of(&text);
    for _ in 0..30 {
        assert_eq!(error_of(&text), error);
    }
}

#[test]
fn block_sizes_are_brought_to_one_or_refused() {
    let rows = |sizes: [usize; 3]| {
        let row = |size: usize, first: u64| {
            let ids: Vec<_> = (first..first + 128_usize.div_ceil(size) as u64).collect();
            format!("{{\"block_size\": {size}, \"hash_ids\": {ids:?}, \"input_length\": 128}}\n")
        };
        format!("{}{}{}", row(sizes[0], 0), row(sizes[1], 0), row(sizes[2], 0))
    };
    // Blocks of 16 and 32 tokens are converted to blocks of 64. Ids of different sizes never match.
    let mixed = read(&rows([16, 64, 32])).unwrap();
    assert_eq!((mixed.trace.block_tokens(), mixed.notes.regrouped), (64, 2));
    assert_eq!(ids(&mixed.trace), [vec![0, 1], vec![2, 3], vec![4, 5]]);
    let same = read(&rows([16, 64, 16])).unwrap();
    assert_eq!(ids(&same.trace), [vec![0, 1], vec![2, 3], vec![0, 1]]);
    let smaller = ReadOptions { block_tokens: Some(16), ..ReadOptions::default() };
    let small = read_with(&rows([16, 64, 16]), smaller).unwrap();
    assert_eq!((small.trace.block_tokens(), small.notes.regrouped), (16, 1));
    assert_eq!(small.trace.summary().unique_blocks, 16);
    // In this format, a partial last block has no id, whatever the block size.
    let document = |size: u32, ids: &str| {
        format!(
            r#"{{"block_size": {size}, "requests": [{{"t": 0, "in": 100, "out": 1, "hash_ids": {ids}}}]}}"#
        )
    };
    let documents = read(&format!("{}{}", document(32, "[1, 2, 3]"), document(64, "[1]"))).unwrap();
    assert_eq!(ids(&documents.trace), [vec![0], vec![1]]);
    let error = read(&rows([64, 48, 64])).unwrap_err();
    assert!(matches!(error.root(), TraceError::BlockSizes { line: Some(2), from: 48, to: 64 }), "{error}");
    assert_eq!(
        error.to_string(),
        "line 2: blocks of 48 tokens cannot be made into blocks of 64: one must divide the other (read \
         as block-rows)"
    );
    // The message about a wrong number of ids names the block size of the row itself.
    let short = rows([16, 64, 16]).replace("[0, 1, 2, 3, 4, 5, 6, 7]", "[0, 1, 2]");
    assert!(
        error_of(&short)
            .starts_with("line 1: 3 hash_ids for input_length 128; expected 8 at 16 tokens a block")
    );
}

#[test]
fn requests_are_reconstructed_from_events() {
    let ReadTrace { trace, notes, .. } = read(EVENTS).unwrap();
    // The blocks 11, 12 and 13 belong to one request. Block 14 also follows 12, but block 13 already
    // does, so block 14 belongs to a second request.
    assert_eq!(times(&trace), [0.0, 1500.0]);
    assert_eq!(ids(&trace).iter().map(Vec::len).collect::<Vec<_>>(), [3, 3]);
    assert_eq!(trace.requests()[0].hash_ids[..2], trace.requests()[1].hash_ids[..2]);
    assert_ne!(trace.requests()[0].hash_ids[2], trace.requests()[1].hash_ids[2]);
    assert_eq!((trace.block_tokens(), trace.requests()[0].input_length), (16, 48));
    assert_eq!(notes, ReadNotes { records: 3, skipped_events: 2, ..ReadNotes::default() });
}

/// Returns the text of batches of KV events. Each batch has one event and its time in seconds.
fn batches(events: &[(f64, &str)]) -> String {
    events.iter().map(|(ts, event)| format!("{{\"ts\": {ts}, \"events\": [{event}]}}\n")).collect()
}

fn stored(hashes: &str, parent: &str) -> String {
    format!(
        "{{\"type\": \"BlockStored\", \"block_hashes\": {hashes}, \"parent_block_hash\": \
         {parent}, \"block_size\": 4}}"
    )
}

fn lengths(text: &str, event_gap_ms: f64) -> Vec<u32> {
    let trace = read_with(text, ReadOptions { event_gap_ms, ..ReadOptions::default() }).unwrap().trace;
    trace.requests().iter().map(|request| request.input_length).collect()
}

#[test]
fn a_chain_continues_only_within_the_gap() {
    let text =
        batches(&[(0.0, &stored("[1, 2]", "null")), (4.0, &stored("[3]", "2")), (10.0, &stored("[4]", "3"))]);
    assert_eq!(lengths(&text, 5000.0), [12, 16]);
    assert_eq!(lengths(&text, 6000.0), [16]);
    assert_eq!(lengths(&text, f64::INFINITY), [16]);
    assert_eq!(lengths(&text, 0.0), [8, 12, 16]);
}

#[test]
fn a_chain_does_not_go_on_after_a_removal_a_clear_or_on_another_rank() {
    for between in [
        r#"{"type": "BlockRemoved", "block_hashes": [2], "medium": "GPU"}"#,
        r#"{"type": "AllBlocksCleared"}"#,
        r#"["AllBlocksCleared"]"#,
    ] {
        let text = batches(&[(0.0, &stored("[1, 2]", "null")), (0.1, between), (0.2, &stored("[3]", "2"))]);
        assert_eq!(lengths(&text, f64::INFINITY), [8, 12], "{between}");
    }
    // An event of another tier, of another KV-cache group or of an unknown type does not end a request.
    for between in [
        r#"{"type": "BlockRemoved", "block_hashes": [2], "medium": "CPU"}"#,
        r#"{"type": "BlockRemoved", "block_hashes": [2], "group_idx": 1}"#,
        r#"{"type": "CacheEviction", "block_hashes": "?"}"#,
    ] {
        let text = batches(&[(0.0, &stored("[1, 2]", "null")), (0.1, between), (0.2, &stored("[3]", "2"))]);
        assert_eq!(lengths(&text, f64::INFINITY), [12], "{between}");
    }
    let other_rank = batches(&[(0.0, &stored("[1, 2]", "null")), (0.2, &stored("[3]", "2"))])
        .replace("\"ts\": 0.2", "\"data_parallel_rank\": 1, \"ts\": 0.2");
    assert_eq!(lengths(&other_rank, f64::INFINITY), [8, 12]);
    // If the events store a block a second time, the reader concludes that a second request has computed it.
    let again = batches(&[(0.0, &stored("[1, 2]", "null")), (0.2, &stored("[2]", "1"))]);
    assert_eq!(lengths(&again, f64::INFINITY), [8, 8]);
}

#[test]
fn events_of_any_spelling_and_beginning() {
    // KV events of kvpool itself have one hash each, and neither a time nor a block size.
    let ours = r#"{"type": "stored", "hash": "aa", "parent": null, "depth": 0, "block_id": 1}
{"type": "stored", "hash": "bb", "parent": "aa", "depth": 1, "block_id": 2}
{"type": "removed", "hash": "bb", "block_id": 2}
{"type": "stored", "hash": "cc", "parent": "zz", "depth": 7, "block_id": 3}
"#;
    let options = ReadOptions { block_tokens: Some(4), ..ReadOptions::default() };
    let read = read_with(ours, options).unwrap();
    assert_eq!(read.trace.requests().iter().map(|one| one.input_length).collect::<Vec<_>>(), [8, 8]);
    // The parent `zz` was never stored. The reader assumes that it is the only block before the run.
    assert_eq!((read.notes.unknown_parents, read.notes.untimed, read.notes.skipped_events), (1, 4, 1));
    assert_eq!(
        error_of(ours),
        "line 1: \"block_size\" is missing; needed: block_hashes, block_size (or --trace-block-size) \
         (read as kv-events)"
    );
    // A signed hash and an unsigned hash with the same 64 bits are equal.
    let signed = batches(&[(0.0, &stored("[-1]", "null")), (0.1, &stored("[5]", "18446744073709551615"))]);
    assert_eq!(lengths(&signed, 1000.0), [8]);
    let conflict = batches(&[(0.0, &stored("[1, 2]", "null")), (0.1, &stored("[2]", "null"))]);
    let error = read_with(&conflict, ReadOptions::default()).unwrap_err();
    assert!(matches!(error.root(), TraceError::HashConflict { line: 2, hash } if hash == "2"), "{error}");
    // Events in which a block is its own ancestor are an error.
    for hashes in ["[1, 1]", "[1, 2, 1]"] {
        let error =
            read_with(&batches(&[(0.0, &stored(hashes, "null"))]), ReadOptions::default()).unwrap_err();
        assert!(matches!(error.root(), TraceError::HashConflict { .. }), "{error}");
    }
}

#[test]
fn formats_do_not_mix() {
    for (assumed, first) in GOOD {
        for (other, second) in GOOD {
            if assumed == other || first == DOCUMENT || second == DOCUMENT {
                continue;
            }
            // If a line of the second format is also valid in the first one, it is no error.
            let second = second.lines().next().unwrap();
            let lines = first.lines().count() as u64;
            let result = read(&format!("{first}{second}\n"));
            let takes_more = matches!(
                (assumed, other),
                (TraceFormat::MooncakeSessions, TraceFormat::Mooncake | TraceFormat::BlockRows)
                    | (TraceFormat::Bailian, _)
                    | (TraceFormat::KvEvents, _)
                    | (TraceFormat::BlockRows, _)
            );
            match result {
                Err(TraceError::MixedFormats { line, found, assumed: begins }) => {
                    assert_eq!((line, found, begins), (lines + 1, other, assumed));
                }
                Err(error) => assert!(takes_more, "{assumed}, then {other}: {error}"),
                Ok(_) => assert!(takes_more, "{assumed}, then {other}"),
            }
        }
    }
    assert_eq!(
        error_of(&format!("{MOONCAKE}{BAILIAN}")),
        "line 2: a record of bailian in a trace that begins as mooncake; a trace has one format"
    );
    assert_eq!(
        error_of(&format!("{BAILIAN}{MOONCAKE}")),
        "line 5: a record of mooncake in a trace that begins as bailian; a trace has one format"
    );
    assert_eq!(
        error_of(&format!("{ROWS}{EVENTS}")),
        "line 4: a record of kv-events in a trace that begins as block-rows; a trace has one format"
    );
    // If the caller names the format, the reader uses that format and does not detect it.
    let named =
        ReadOptions { format: Some(TraceFormat::Mooncake), block_tokens: Some(16), ..ReadOptions::default() };
    let first = BAILIAN.lines().next().unwrap();
    assert_eq!(times(&read_with(first, named).unwrap().trace), [0.5]);
}

#[test]
fn errors_name_field_and_format() {
    let bad = |text: &str, from: &str, to: &str| error_of(&text.replacen(from, to, 1));
    for (text, from, to, message) in [
        (SESSIONS, "\"a\"", "[]", "line 1: \"session_id\" is an array; allowed: a string or a whole number"),
        (SESSIONS, "250.5", "-1", "line 2: \"delay\" is -1; allowed: ms, 0 or more"),
        (SESSIONS, "[0, 1]", "[0, \"1\"]", "line 1: \"hash_ids[1]\" is a string; allowed: a whole number"),
        (
            SESSIONS,
            "\"input_length\": 600, ",
            "",
            "line 1: \"input_length\" is missing; needed: input_length, hash_ids",
        ),
        (BAILIAN, "61.114", "-1", "line 2: \"timestamp\" is -1; allowed: s, 0 or more"),
        (
            BAILIAN,
            "\"chat_id\": 11",
            "\"chat_id\": \"x\"",
            "line 2: \"chat_id\" is a string; allowed: a whole number",
        ),
        (BAILIAN, "\"turn\": 2", "\"turn\": 2.5", "line 2: \"turn\" is 2.5; allowed: a whole number from 0"),
        (
            BAILIAN,
            "\"output_length\": 5, ",
            "",
            "line 1: \"output_length\" is missing; needed: chat_id, timestamp,",
        ),
        (
            BAILIAN,
            "[100, 101, 103]",
            "[100]",
            "line 2: 1 hash_ids for input_length 48; expected 3 at 16 tokens a block",
        ),
        (
            DOCUMENT,
            "\"block_size\": 64",
            "\"block_size\": 0",
            "line 1: \"block_size\" is 0; allowed: a whole number from 1",
        ),
        (
            DOCUMENT,
            "\"local\"",
            "\"here\"",
            "line 1: \"hash_id_scope\" is a string; allowed: local or global",
        ),
        (
            DOCUMENT,
            "\"in\": 260, ",
            "",
            "line 1: \"requests[2].in\" is missing; needed: t, in, out, hash_ids",
        ),
        (
            DOCUMENT,
            "\"in\": 130",
            "\"in\": []",
            "line 1: \"requests[1].requests[1].requests[0].in\" is an array;",
        ),
        (DOCUMENT, "\"t\": 1.5", "\"t\": -1.5", "line 1: \"requests[0].t\" is -1.5; allowed: s, 0 or more"),
        (
            DOCUMENT,
            "[1, 2, 3, 4]",
            "[1, 2]",
            "line 1: 2 hash_ids for input_length 260; expected 4 at 64 tokens a block",
        ),
        (DOCUMENT, "\"in\": 64, ", "\"in\" 64, ", "line 4, column 50: not valid JSON: expected `:`"),
        (
            ROWS,
            "\"block_size\": 64",
            "\"block_size\": 0",
            "line 1: \"block_size\" is 0; allowed: a whole number from 1",
        ),
        (
            ROWS,
            "[64, 64, 10]",
            "[64, 32, 10]",
            "line 3: \"block_tokens[1]\" is 32; allowed: the block size of the row",
        ),
        (
            ROWS,
            "[64, 64, 10]",
            "[64, 64, 65]",
            "line 3: \"block_tokens[2]\" is 65; allowed: the block size of the row",
        ),
        (
            ROWS,
            "[64, 64, 10]",
            "[64, 64]",
            "line 3: \"block_tokens\" is 2 long; allowed: one number per entry of hash_ids",
        ),
        (
            ROWS,
            "[64, 64, 10]",
            "[10]",
            "line 3: \"block_size\" is missing; needed: hash_ids, input_length, block_size",
        ),
        (ROWS, "12.5", "-2", "line 2: \"timestamp\" is -2; allowed: ms, 0 or more"),
        (EVENTS, "1700000001.0", "\"now\"", "line 2: \"ts\" is a string; allowed: s, 0 or more"),
        (
            EVENTS,
            "[13]",
            "[1.5]",
            "line 2: \"events[0].block_hashes[0]\" is 1.5; allowed: a whole number or a string",
        ),
        (
            EVENTS,
            "\"block_hashes\": [13], ",
            "",
            "line 2: \"events[0].block_hashes\" is missing; needed: block_hashes",
        ),
        (
            EVENTS,
            "[14]",
            "[{}]",
            "line 3: \"[1][0].block_hashes[0]\" is an object; allowed: a whole number or a string",
        ),
        (
            EVENTS,
            "[14], 12, [1], 16",
            "[14], 12, [1], 0",
            "line 3: \"[1][0].block_size\" is 0; allowed: a whole number from 1",
        ),
        (
            EVENTS,
            "[14], 12, [1], 16",
            "[14], 12, [1], 8",
            "line 3: \"[1][0].block_size\" is 8; allowed: the block_size of the",
        ),
    ] {
        let found = bad(text, from, to);
        assert!(found.starts_with(message), "{from} as {to}: {found}");
        let format = GOOD.iter().find(|good| good.1 == text).unwrap().0;
        assert!(found.ends_with(&format!(" (read as {format})")), "{found}");
    }
}

#[test]
fn limits_hold_in_every_format() {
    for (format, text) in GOOD {
        let all = read(text).unwrap().trace;
        for limit in 1..=all.requests().len() {
            let options = ReadOptions { limit: Some(limit), ..ReadOptions::default() };
            let some = read_with(text, options).unwrap().trace;
            assert_eq!(some.requests(), &all.requests()[..limit], "{format}");
        }
        let longest = ReadOptions { max_line_bytes: 40, ..ReadOptions::default() };
        let error = read_with(text, longest).unwrap_err();
        assert!(matches!(error, TraceError::LineTooLong { line: 1, limit: 40 }), "{format}: {error}");
    }
    // The limit applies to one document, not to a line with several documents, as `cat` makes from
    // files without a newline at the end.
    let one = r#"{"block_size": 64, "requests": [{"t": 0, "in": 64, "out": 1, "hash_ids": [1]}]}"#;
    let options = ReadOptions { max_line_bytes: one.len(), ..ReadOptions::default() };
    assert_eq!(read_with(&one.repeat(1000), options).unwrap().trace.requests().len(), 1000);
    let options = ReadOptions { max_line_bytes: one.len() - 1, ..ReadOptions::default() };
    assert!(matches!(read_with(one, options), Err(TraceError::LineTooLong { line: 1, .. })));
    // The limit also applies to a document that consists of many short lines.
    let endless = format!("{{\"requests\": [\n{}", "1,\n".repeat(2_000_000));
    let error =
        read_with(&endless, ReadOptions { max_line_bytes: 1 << 20, ..ReadOptions::default() }).unwrap_err();
    assert!(matches!(error, TraceError::LineTooLong { line: 1, .. }), "{error}");
}

#[test]
fn huge_claims_are_refused_before_memory_is() {
    // Converted to blocks of one token, these two short documents would become eight billion blocks.
    let huge =
        r#"{"block_size": 4294967295, "requests": [{"t": 0, "in": 4294967294, "out": 1, "hash_ids": []}]}"#;
    let options = ReadOptions { block_tokens: Some(1), ..ReadOptions::default() };
    let error = read_with(&format!("{huge}\n{huge}"), options).unwrap_err();
    assert!(matches!(error.root(), TraceError::TooManyBlocks { to: 1, .. }), "{error}");
    let trace = read(huge).unwrap().trace;
    let error = trace.with_block_tokens(1).unwrap_err();
    assert!(matches!(error, TraceError::TooManyBlocks { to: 1, .. }), "{error}");
    // Each event becomes a request with all blocks before it, so 60,000 events have too many block
    // references in total.
    let chain: String = (1..60_000)
        .map(|hash| {
            format!(
                "{{\"ts\": {hash}, \"events\": [{}]}}\n",
                stored(&format!("[{hash}]"), &(hash - 1).to_string())
            )
        })
        .collect();
    let error = read_with(&chain, ReadOptions { event_gap_ms: 0.0, ..ReadOptions::default() }).unwrap_err();
    assert!(matches!(error.root(), TraceError::TooManyBlocks { .. }), "{error}");
}
