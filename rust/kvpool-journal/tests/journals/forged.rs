//! Makes journals with arbitrary records in valid frames, to test that a reader validates them.

use kvpool_journal::{Entry, MAGIC};
use serde::Serialize;

fn frame(operations: u32, records: &[u8]) -> Vec<u8> {
    let payload = [&0u64.to_le_bytes()[..], &operations.to_le_bytes(), records].concat();
    let checksum = xxhash_rust::xxh3::xxh3_64(&payload);
    [&(payload.len() as u32).to_le_bytes()[..], &checksum.to_le_bytes(), &payload].concat()
}

/// Returns a journal with the magic number and the header of another journal, followed by the given
/// entries.
pub(crate) fn journal<O: Serialize>(image: &[u8], entries: &[(u64, Entry<O>)]) -> Vec<u8> {
    let at = MAGIC.len();
    let length = u32::from_le_bytes(image[at..at + 4].try_into().unwrap()) as usize;
    let records: Vec<u8> =
        entries.iter().flat_map(|(_, entry)| postcard::to_stdvec(entry).unwrap()).collect();
    let operations = entries.iter().filter(|(_, entry)| matches!(entry, Entry::Operation(..))).count();
    [&image[..at + 12 + length], &frame(operations as u32, &records)].concat()
}
