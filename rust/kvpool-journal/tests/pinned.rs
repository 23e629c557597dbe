//! Tests that twenty stored journals can still be read. Do not change these files. If a change of the
//! code breaks this test, users cannot read their journals any more.
//!
//! Each journal can be decoded, encodes to the same bytes, and replays with the same answers and
//! digests. The replay is recorded, too, and `again.txt` contains the checksum of these records.
//! Together the twenty journals contain every call.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, as tests do")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use kvpool_journal::{
    Entry, JournalReader, Kind, MAGIC, ManagerSubject, Options, PoolSubject, Subject, Tail, VllmSubject,
    Words, replay,
};

/// Number of bytes in a frame before its payload, which are the length and the checksum. `PAYLOAD_HEAD`
/// is the number of bytes in a payload before its records, which are the number of the first operation
/// and the number of operations.
const FRAME_HEAD: usize = 4 + 8;
const PAYLOAD_HEAD: usize = 8 + 4;

fn pinned() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pinned");
    let mut files: Vec<_> = folder.read_dir().unwrap().map(|file| file.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "journal"));
    files.sort();
    files
}

/// Returns the records of all frames of a journal, concatenated.
fn records(image: &[u8]) -> Vec<u8> {
    let length = |at: usize| u32::from_le_bytes(image[at..at + 4].try_into().unwrap()) as usize;
    let (mut at, mut records) = (MAGIC.len(), Vec::new());
    at += FRAME_HEAD + length(at);
    while at < image.len() {
        let end = at + FRAME_HEAD + length(at);
        records.extend_from_slice(&image[at + FRAME_HEAD + PAYLOAD_HEAD..end]);
        at = end;
    }
    records
}

/// Checks that the journal's records can be decoded and encoded again, and collects the names of its
/// calls. Returns the checksum of the records of its replay.
fn check<S: Subject>(image: &[u8], calls: &mut BTreeSet<String>) -> u64 {
    let reader = JournalReader::new(image).unwrap();
    assert_eq!(reader.tail(), Tail::Complete);
    let entries: Vec<Entry<S::Call>> = reader.records().map(|entry| entry.unwrap().1).collect();
    let encoded: Vec<u8> = entries.iter().flat_map(|entry| postcard::to_stdvec(entry).unwrap()).collect();
    assert_eq!(encoded, records(image));

    let mut subject = S::recorded(reader.header()).unwrap();
    for entry in &entries {
        if let Entry::Operation(operation, _) = entry {
            calls.insert(format!("{:?} {}", reader.header().subject, operation.call()));
            subject.run(operation).unwrap();
        }
    }
    xxhash_rust::xxh3::xxh3_64(&records(&subject.take_image()))
}

#[test]
fn journals_of_before_decode_encode_and_replay_bit_by_bit() {
    let (mut calls, mut again) = (BTreeSet::new(), String::new());
    for file in pinned() {
        let image = std::fs::read(&file).unwrap();
        let reader = JournalReader::new(&image).unwrap();
        let checksum = match reader.header().subject {
            Kind::Pool => check::<PoolSubject>(&image, &mut calls),
            Kind::Manager => check::<ManagerSubject>(&image, &mut calls),
            Kind::VllmPool => check::<VllmSubject>(&image, &mut calls),
        };
        let name = file.file_stem().unwrap().to_str().unwrap();
        again.push_str(&format!("{name} {checksum:016x}\n"));
        let report = replay(&image, Options { check_every: 1, ..Options::default() }, &mut |_| true).unwrap();
        assert_eq!(report.difference, None, "{}", file.display());
        assert_eq!(report.operations, reader.operations(), "{}", file.display());
    }
    assert_eq!(again, include_str!("pinned/again.txt"));
    assert_eq!(calls.len(), 93, "{calls:#?}");
}
