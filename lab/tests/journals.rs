//! Journals of random runs that once reached something new: they replay bit by bit.

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
        assert_eq!(report.operations, report.digests, "{}", path.display());
        operations += report.operations;
    }
    assert!(operations > 300, "{operations}");
}
