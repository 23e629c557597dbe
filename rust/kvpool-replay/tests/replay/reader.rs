//! Tests of the reader: valid traces, plain or compressed and from any source, and a typed error with
//! line, field and value for each invalid trace.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

use std::io::{self, BufReader, Read, Write};

use flate2::{Compression, write::GzEncoder};
use kvpool_replay::{
    error::TraceError,
    reader::{ReadOptions, TraceReader},
    trace::{Trace, TraceRequest, write_jsonl},
};
use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};

const GOOD: &str = r#"{"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]}
{"timestamp": 10.5, "input_length": 1024, "output_length": 0, "hash_ids": [0, 1]}
{"timestamp": 10.5, "input_length": 1, "output_length": 7, "hash_ids": [18446744073709551615]}
"#;

fn read(bytes: &[u8]) -> Result<Trace, TraceError> {
    Trace::from_reader(bytes, &ReadOptions::default())
}

/// Returns the error of a trace whose first line is valid and whose second line is `line`.
fn error_of(line: &str) -> TraceError {
    let first = GOOD.lines().next().unwrap();
    read(format!("{first}\n{line}\n").as_bytes()).unwrap_err()
}

fn request(timestamp_ms: f64, input_length: u32, ids: &[u64]) -> TraceRequest {
    TraceRequest { timestamp_ms, input_length, output_length: 1, hash_ids: ids.into() }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn reads_a_trace_and_writes_it_back() {
    let trace = read(GOOD.as_bytes()).unwrap();
    assert_eq!(trace.block_tokens(), 512);
    assert_eq!(trace.requests().len(), 3);
    assert_eq!(trace.requests()[1].timestamp_ms, 10.5);
    assert_eq!(trace.requests()[2].hash_ids[..], [u64::MAX]);
    assert_eq!(trace.requests()[0].full_blocks(512), [0, 1]);

    let summary = trace.summary();
    assert_eq!((summary.requests, summary.span_ms), (3, 10.5));
    assert_eq!((summary.input_tokens, summary.output_tokens, summary.longest_input), (2125, 12, 1100));
    assert_eq!((summary.block_references, summary.partial_blocks, summary.unique_blocks), (6, 2, 4));

    let mut written = Vec::new();
    write_jsonl(&trace, &mut written).unwrap();
    assert_eq!(String::from_utf8(written).unwrap(), GOOD);
}

#[test]
fn wrappings_do_not_matter() {
    let trace = read(GOOD.as_bytes()).unwrap();
    let crlf = GOOD.replace('\n', "\r\n");
    let blank = format!("\n  \n{}\n\n", GOOD.replace('\n', "\n\t\n"));
    let bom = format!("\u{feff}{GOOD}");
    for text in [GOOD.trim_end(), &crlf, &blank, &bom] {
        assert_eq!(read(text.as_bytes()).unwrap(), trace);
        assert_eq!(read(&gzip(text.as_bytes())).unwrap(), trace);
    }
    // The gzip file has two members, split in the middle of a line, as `cat a.gz b.gz` makes them.
    let (start, end) = GOOD.as_bytes().split_at(100);
    assert_eq!(read(&[gzip(start), gzip(end)].concat()).unwrap(), trace);
    // A line with unknown fields of every type, and with its fields in another order.
    let line = concat!(
        r#"{"hash_ids": [3], "x": {"y": [null, "\ud83d\ude00", 1e3]}, "output_length": 2, "#,
        r#""input_length": 9, "timestamp": 1}"#,
    );
    assert_eq!(read(line.as_bytes()).unwrap().requests()[0].hash_ids[..], [3]);
}

/// A reader that returns one byte at a time and is often interrupted, like a slow pipe.
struct Trickle<'a>(&'a [u8], u32);

impl Read for Trickle<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.1 += 1;
        if self.1.is_multiple_of(3) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let size = buffer.len().min(1);
        self.0.read(&mut buffer[..size])
    }
}

#[test]
fn reads_from_pipes_and_files() {
    let trace = read(GOOD.as_bytes()).unwrap();
    for bytes in [GOOD.as_bytes(), &gzip(GOOD.as_bytes())] {
        let pipe = BufReader::with_capacity(1, Trickle(bytes, 0));
        assert_eq!(Trace::from_reader(pipe, &ReadOptions::default()).unwrap(), trace);
        // The name of the file does not end in `.gz`, although its content is compressed.
        let path = std::env::temp_dir().join(format!("kvpool-reader-{}-{}", std::process::id(), bytes.len()));
        std::fs::write(&path, bytes).unwrap();
        let read = Trace::from_path(&path, &ReadOptions::default());
        std::fs::remove_file(&path).unwrap();
        assert_eq!(read.unwrap(), trace);
        let error = Trace::from_path(&path, &ReadOptions::default()).unwrap_err();
        assert!(matches!(error, TraceError::Open { path: ref p, .. } if *p == path));
        assert!(error.to_string().starts_with("cannot open "), "{error}");
    }
}

#[test]
fn options_are_obeyed() {
    let options = ReadOptions { limit: Some(2), ..ReadOptions::default() };
    // The reader does not read lines after the limit of requests, so an invalid line there is no error.
    let text = GOOD.lines().take(2).collect::<Vec<_>>().join("\n") + "\nnot json";
    assert_eq!(Trace::from_reader(text.as_bytes(), &options).unwrap().requests().len(), 2);
    let mut reader = TraceReader::new(text.as_bytes(), &options).unwrap();
    assert_eq!((reader.by_ref().count(), reader.lines()), (2, 2));

    for (options, text) in [
        (ReadOptions { limit: Some(0), ..ReadOptions::default() }, "limit is 0; allowed: 1 or more requests"),
        (
            ReadOptions { block_tokens: Some(0), ..ReadOptions::default() },
            "block_tokens is 0; allowed: 1 or more tokens",
        ),
        (
            ReadOptions { max_line_bytes: 0, ..ReadOptions::default() },
            "max_line_bytes is 0; allowed: 1 or more bytes",
        ),
    ] {
        assert_eq!(Trace::from_reader(GOOD.as_bytes(), &options).unwrap_err().to_string(), text);
    }

    let longest = GOOD.lines().map(str::len).max().unwrap();
    let exact = ReadOptions { max_line_bytes: longest, ..ReadOptions::default() };
    assert!(Trace::from_reader(GOOD.as_bytes(), &exact).is_ok());
    let short = ReadOptions { max_line_bytes: longest - 1, ..ReadOptions::default() };
    let error = Trace::from_reader(GOOD.as_bytes(), &short).unwrap_err();
    assert!(matches!(error, TraceError::LineTooLong { limit, .. } if limit == longest - 1), "{error}");
    // The reader refuses a line that never ends at its limit of bytes, before memory runs out.
    let endless = BufReader::new(io::repeat(b' '));
    let error = Trace::from_reader(endless, &short).unwrap_err();
    assert!(matches!(error, TraceError::LineTooLong { line: 1, .. }), "{error}");
}

#[test]
fn empty_inputs_are_errors() {
    for (bytes, lines) in [(&b""[..], 0), (b"\n\n", 2), (b" \r\n\t", 2), (b"\xef\xbb\xbf", 1)] {
        for bytes in [bytes, &gzip(bytes)] {
            assert!(matches!(read(bytes), Err(TraceError::Empty { lines: l }) if l == lines), "{bytes:?}");
        }
    }
    assert!(matches!(Trace::new(Vec::new(), 512), Err(TraceError::Empty { .. })));
}

#[test]
fn lines_that_are_no_requests() {
    for (line, message) in [
        ("{", "line 2, column 1: not valid JSON: EOF while parsing an object"),
        ("nonsense", "line 2, column 2: not valid JSON: expected ident"),
        ("[0, 1, 2, [0]]", "line 2: an array instead of an object with timestamp"),
        ("7", "line 2: a number instead of an object"),
        ("\"x\"", "line 2: a string instead of an object"),
        ("null", "line 2: null instead of an object"),
        ("{} {}", "line 2, column 4: not valid JSON: trailing characters"),
        ("{}", "line 2: \"timestamp\" is missing; needed: timestamp, input_length"),
        (r#"{"timestamp": 1, "input_length": 3, "hash_ids": [0]}"#, "line 2: \"output_length\" is missing"),
        (
            r#"{"timestamp": 1, "timestamp": 1, "input_length": 3, "output_length": 1, "hash_ids": [0]}"#,
            "line 2, column 28: not valid JSON: duplicate field `timestamp`",
        ),
        (
            r#"{"timestamp": 1e999, "input_length": 3, "output_length": 1, "hash_ids": [0]}"#,
            "line 2, column 19: not valid JSON: number out of range",
        ),
        (
            r#"{"timestamp": NaN, "input_length": 3, "output_length": 1, "hash_ids": [0]}"#,
            "line 2, column 15: not valid JSON: expected value",
        ),
    ] {
        let error = error_of(line).to_string();
        assert!(error.starts_with(message), "{line}: {error}");
    }
}

#[test]
fn values_out_of_range() {
    const U32: &str = "; allowed: a whole number from 0 to 4294967295";
    const U64: &str = "; allowed: a whole number from 0 to 18446744073709551615";
    const MS: &str = "; allowed: ms, 0 or more";
    for (field, value, found, allowed) in [
        ("timestamp", "-1", "-1", MS),
        ("timestamp", "-0.5", "-0.5", MS),
        ("timestamp", "\"9\"", "a string", MS),
        ("timestamp", "null", "null", MS),
        ("input_length", "-3", "-3", U32),
        ("input_length", "2.5", "2.5", U32),
        ("input_length", "4294967296", "4294967296", U32),
        ("input_length", "0", "0", "; allowed: a whole number from 1 to 4294967295"),
        ("input_length", "true", "a boolean", U32),
        ("output_length", "-1", "-1", U32),
        ("output_length", "1e30", "1e30", U32),
        ("output_length", "{}", "an object", U32),
        ("hash_ids", "5", "a number", "; allowed: an array of whole numbers, one per block"),
    ] {
        let mut line =
            serde_json::json!({"timestamp": 1, "input_length": 9, "output_length": 1, "hash_ids": [0]});
        line[field] = serde_json::from_str(value).unwrap();
        let error = error_of(&line.to_string());
        assert_eq!(error.line(), Some(2));
        let text = error.to_string().replace("1e+30", "1e30");
        assert_eq!(text, format!("line 2: \"{field}\" is {found}{allowed}"));
    }
    for (id, found) in
        [("-1", "-1"), ("1.5", "1.5"), ("18446744073709551616", "1.8446744073709552e19"), ("[]", "an array")]
    {
        let line =
            format!(r#"{{"timestamp": 1, "input_length": 600, "output_length": 1, "hash_ids": [0, {id}]}}"#);
        let text = error_of(&line).to_string().replace("e+19", "e19");
        assert_eq!(text, format!("line 2: \"hash_ids[1]\" is {found}{U64}"));
    }
}

#[test]
fn counts_must_fit_the_length() {
    let line = |length: u32, ids: &str| {
        format!(r#"{{"timestamp": 11, "input_length": {length}, "output_length": 1, "hash_ids": [{ids}]}}"#)
    };
    for (length, ids, message) in [
        (
            64,
            "0, 1, 2, 3",
            "line 2: 4 hash_ids for input_length 64; expected 1 at 512 tokens a block; the count fits \
             16-token blocks: try --trace-block-size 16",
        ),
        (
            130,
            "0, 1, 3",
            "expected 1 at 512 tokens a block; the count fits 64-token blocks: try --trace-block-size 64",
        ),
        (
            5000,
            "0, 1",
            "line 2: 2 hash_ids for input_length 5000; expected 10 at 512 tokens a block; the count fits \
             4096-token blocks: try --trace-block-size 4096",
        ),
        (
            5000,
            "0, 1, 2, 3, 4, 5, 6",
            "line 2: 7 hash_ids for input_length 5000; expected 10 at 512 tokens a block",
        ),
        (
            20,
            "",
            "line 2: 0 hash_ids for input_length 20; expected 1 at 512 tokens a block, as line 1 gives \
             an id to its partial last block",
        ),
    ] {
        let error = error_of(&line(length, ids)).to_string();
        assert!(error.ends_with(message), "{error}");
    }
    // The error is in the first line, so no earlier line shows whether partial blocks have ids.
    let error = read(line(6758, "0, 1").as_bytes()).unwrap_err();
    assert!(matches!(error, TraceError::BlockCount { expected: 14, convention_line: None, .. }), "{error}");
}

#[test]
fn time_and_prefixes_are_checked() {
    let error = Trace::new(vec![request(5.0, 1, &[0]), request(4.5, 1, &[0])], 512).unwrap_err();
    assert_eq!(
        error.to_string(),
        "line 2: timestamp 4.5 ms is before 5 ms of line 1; sort the trace by timestamp"
    );
    let error = Trace::new(vec![request(f64::NAN, 1, &[0])], 512).unwrap_err();
    assert_eq!(error.to_string(), "line 1: \"timestamp\" is NaN; allowed: ms, 0 or more");

    for (ids, message) in [
        (&[7, 2][..], "line 3: id 2 follows id 7, but in line 1 it follows id 1;"),
        (&[2, 9], "line 3: id 2 follows nothing (it is the first id), but in line 1 it follows id 1;"),
        (&[9, 0], "line 3: id 0 follows id 9, but in line 1 it follows nothing (it is the first id);"),
        (&[0, 1, 5, 1], "line 3: id 1 occurs at hash_ids[1] and hash_ids[3];"),
        (&[9, 9], "line 3: id 9 occurs at hash_ids[0] and hash_ids[1];"),
        (&[8, 9, 8, 9], "line 3: id 8 occurs at hash_ids[0] and hash_ids[2];"),
    ] {
        let requests = vec![
            request(0.0, 48, &[0, 1, 2]),
            request(0.0, 48, &[0, 1, 3]),
            request(0.0, ids.len() as u32 * 16, ids),
        ];
        let error = Trace::new(requests.clone(), 16).unwrap_err();
        assert!(error.to_string().starts_with(message), "{error}");
        assert_eq!(error.line(), Some(3));
        // Without the check of prefixes, the reader accepts ids that follow different ids.
        let mut text = Vec::new();
        for request in &requests {
            let ids = &request.hash_ids;
            writeln!(
                text,
                r#"{{"timestamp": 0, "input_length": {}, "output_length": 1, "hash_ids": {ids:?}}}"#,
                request.input_length
            )
            .unwrap();
        }
        let options = ReadOptions { block_tokens: Some(16), check_prefixes: false, ..ReadOptions::default() };
        assert_eq!(Trace::from_reader(&text[..], &options).unwrap().requests(), requests);
    }
}

#[test]
fn damaged_gzip_differs_from_truncated_gzip() {
    let whole = gzip(GOOD.as_bytes());
    for cut in 2..whole.len() {
        let error = read(&whole[..cut]).unwrap_err();
        assert!(matches!(error, TraceError::TruncatedGzip { .. }), "cut at {cut}: {error}");
    }
    let mut bad_sum = whole.clone();
    let at = bad_sum.len() - 6;
    bad_sum[at] ^= 1;
    let error = read(&bad_sum).unwrap_err();
    assert!(matches!(error, TraceError::CorruptGzip { .. }), "{error}");
    let error = read(&[&whole[..], b"trailing"].concat()).unwrap_err();
    assert!(matches!(error, TraceError::CorruptGzip { .. } | TraceError::TruncatedGzip { .. }), "{error}");
}

#[test]
fn failing_reads_name_the_line() {
    struct Failing;
    impl Read for Failing {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::ErrorKind::PermissionDenied.into())
        }
    }
    let error = Trace::from_reader(BufReader::new(Failing), &ReadOptions::default()).unwrap_err();
    assert!(matches!(error, TraceError::Io { line: 1, .. }), "{error}");
    let cut = BufReader::new(GOOD.as_bytes().chain(Failing));
    let error = Trace::from_reader(cut, &ReadOptions::default()).unwrap_err();
    assert!(matches!(error, TraceError::Io { line: 4, .. }), "{error}");
}

#[test]
fn the_iterator_ends_for_good_after_an_error() {
    let text = format!("{GOOD}oops\n{GOOD}");
    let mut reader = TraceReader::new(text.as_bytes(), &ReadOptions::default()).unwrap();
    assert_eq!(reader.by_ref().take_while(Result::is_ok).count(), 3);
    assert!(reader.next().is_none() && reader.next().is_none());
}

/// Bytes, bits, lines and pieces of JSON are changed at random. The result is a trace or an error, and
/// an accepted trace satisfies the rules when it is checked again.
#[test]
fn mutated_input_never_panics() {
    const PIECES: [&str; 16] = [
        "{",
        "}",
        "[",
        "]",
        ",",
        "-",
        "\"",
        "\n",
        "1e400",
        "null",
        "0.5",
        "99999999999999999999",
        "[[[[[[[[",
        "\\u",
        "\u{feff}",
        "\"hash_ids\": [",
    ];
    let mut rng = ChaCha8Rng::seed_from_u64(11);
    let mut outcomes = [0; 2];
    for round in 0..30_000 {
        let mut bytes = if round % 4 == 0 { gzip(GOOD.as_bytes()) } else { GOOD.as_bytes().to_vec() };
        for _ in 0..=rng.next_u32() % 3 {
            let at = rng.next_u32() as usize % (bytes.len() + 1);
            let end = (at + rng.next_u32() as usize % 8).min(bytes.len());
            match rng.next_u32() % 5 {
                0 if at < bytes.len() => bytes[at] = rng.next_u32() as u8,
                1 if at < bytes.len() => bytes[at] ^= 1 << (rng.next_u32() % 8),
                2 => drop(bytes.drain(at..end)),
                3 => bytes.truncate(at.max(1)),
                _ => {
                    let piece = PIECES[rng.next_u32() as usize % PIECES.len()];
                    drop(bytes.splice(at..end, piece.bytes()));
                }
            }
        }
        let result = read(&bytes);
        outcomes[usize::from(result.is_ok())] += 1;
        match result {
            Ok(trace) => assert_eq!(Trace::new(trace.requests().to_vec(), 512).unwrap(), trace),
            Err(error) => assert!(error.to_string().len() < 400, "{error}"),
        }
    }
    assert!(outcomes.iter().all(|&count| count > 300), "{outcomes:?}");
}

#[test]
fn deep_nesting_is_an_error() {
    for open in ["[", "{\"a\":"] {
        let deep = format!("{{\"x\": {}", open.repeat(200_000));
        assert!(matches!(read(deep.as_bytes()), Err(TraceError::NotJson { .. })));
    }
}
