//! Replays journals of random runs and compares every answer. Each run reached new behaviour when it
//! was recorded.
//!
//! The journal `manager-060` has resets while the host caches blocks of earlier swaps, while a request
//! is swapped out to the host, and after a change of epoch. In an earlier version, content of the host
//! survived these resets.

use std::fs;
use std::path::Path;

use kvpool_journal::{Options, Tail, replay};

#[test]
fn the_journals_replay_bit_by_bit() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/journals");
    let mut operations = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let options = Options { check_every: 1, ..Options::default() };
        let report = replay(&fs::read(&path).unwrap(), options, &mut |_| true).unwrap();
        assert_eq!((report.difference, report.tail), (None, Tail::Complete), "{}", path.display());
        let is_of_vllm = path.file_name().unwrap().to_string_lossy().starts_with("vllm");
        // A journal of vLLM's pool has no digests.
        assert_eq!(report.digests, if is_of_vllm { 0 } else { report.operations }, "{}", path.display());
        operations += report.operations;
    }
    assert!(operations > 600, "{operations}");
}
