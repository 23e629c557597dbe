//! A process that writes snapshots is killed at an arbitrary moment. Afterwards the folder contains one
//! complete snapshot.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::Numbers;
use crate::common::folder::Folder;
use kvpool::{BlockHash, BlockId, PoolImage, SavedBlock};
use kvpool_store::NamespaceDigest;
use kvpool_store::warm::{load, save};

const OURS: NamespaceDigest = NamespaceDigest::from_bytes([7; 32]);

/// Returns the snapshot with this number. Snapshots differ in the number of their blocks, and in every
/// block.
fn image(number: u64) -> PoolImage {
    let count = 15_000 + number as u32 % 7 * 1000;
    let hash = |n: u32| {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        bytes[8..12].copy_from_slice(&n.to_le_bytes());
        BlockHash::from_bytes(bytes)
    };
    let saved = |n: u32| SavedBlock {
        block: BlockId::new(n),
        hash: hash(n),
        group: 0,
        depth: n % 100,
        copy: 0,
        parent: (!n.is_multiple_of(100)).then(|| hash(n - 1)),
        behind: None,
        said: None,
    };
    PoolImage {
        block_size: 16,
        num_blocks: 30_000,
        epoch: number,
        blocks: (1..=count).map(saved).collect(),
        free: (count + 1..30_000).map(BlockId::new).collect(),
        ..PoolImage::default()
    }
}

/// The process that the test kills: it writes one snapshot after another.
#[test]
fn writer() {
    let Ok(path) = std::env::var("KVPOOL_WARM_WRITER") else { return }; // not the other process
    let first: u64 = std::env::var("KVPOOL_WARM_FIRST").unwrap().parse().unwrap();
    let mut told = std::io::stdout();
    for number in first.. {
        let image = image(number);
        writeln!(told, "begins {number}").unwrap();
        save(path.as_ref(), &image, OURS, number).unwrap();
    }
}

/// Number of times that the writer is killed.
fn kills() -> u64 {
    std::env::var("KVPOOL_STORE_KILLS").map_or(10, |kills| kills.parse().unwrap())
}

/// Starts a process that writes snapshots, beginning with number `first`, and kills it. Returns the
/// number of the last snapshot that it began.
fn kill(path: &Path, first: u64, numbers: &mut Numbers) -> u64 {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["warm_kills::writer", "--exact", "--nocapture"])
        .env("KVPOOL_WARM_WRITER", path)
        .env("KVPOOL_WARM_FIRST", first.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut begun = || loop {
        let line = lines.next()?.ok()?;
        if let Some(number) = line.strip_prefix("begins ") {
            return number.parse().ok();
        }
    };
    let last = first + numbers.below(4);
    while begun().is_some_and(|number: u64| number < last) {}
    // Kill the writer at an arbitrary moment, which depends on the machine and on the length of this
    // loop.
    (0..numbers.below(3_000_000)).for_each(|n| _ = std::hint::black_box(n));
    child.kill().unwrap();
    child.wait().unwrap();
    std::iter::from_fn(begun).last().unwrap_or(last)
}

#[test]
fn a_killed_writer_leaves_a_whole_snapshot() {
    let folder = Folder::new();
    fs::create_dir_all(folder.path()).unwrap();
    let path = folder.path().join("pool.warm");
    save(&path, &image(0), OURS, 0).unwrap();
    let (mut numbers, mut newest, mut halves) = (Numbers(1), 0, 0);
    for _ in 0..kills() {
        let begun = kill(&path, newest + 1, &mut numbers);
        let half = fs::read_dir(folder.path()).unwrap().count() > 1;
        halves += u64::from(half);
        let found = load(&path, OURS).unwrap();
        assert!((newest..=begun).contains(&found.saved_at), "{} of {newest} to {begun}", found.saved_at);
        assert_eq!(found.lost, 0);
        assert!(found.image == image(found.saved_at), "snapshot {} is another one", found.saved_at);
        newest = found.saved_at;
    }
    // An incomplete file of the killed process does not disturb the next `save`, which removes it.
    save(&path, &image(newest + 1), OURS, newest + 1).unwrap();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    assert!(
        kills() < 10 || halves > 0 && newest > 0,
        "{halves} were killed while they wrote, {newest} before"
    );
}
