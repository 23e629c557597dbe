//! Tests with several processes. A process that is killed during a write leaves complete objects or
//! nothing. A second process that opens the same folder is refused.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};

use crate::common::folder::{Folder, SLOT, config, copied, open};
use crate::common::{LEN, always, at, finish, get, key, payload};
use kvpool_store::disk::{DiskBackend, DiskConfig};
use kvpool_store::{Admit, Presence, Put, StoreError, TokenRange, Why};

const PLACES: u64 = 16;
/// Number of lines by which the writer may be ahead of the test. For each line, it writes two objects.
const AHEAD: usize = 4;

/// Number of times that a writer is killed.
fn kills() -> u64 {
    std::env::var("KVPOOL_STORE_KILLS").map_or(10, |kills| kills.parse().unwrap())
}

/// Returns one combination of settings per number: direct I/O or the page cache, and `io_uring` (if
/// available) or threads.
fn configured(folder: &std::path::Path, nth: u64) -> DiskConfig {
    DiskConfig {
        direct: nth.is_multiple_of(2),
        io_uring: (nth / 2).is_multiple_of(2),
        ..config(folder, PLACES)
    }
}

/// The writer process. It writes two objects for each line that it receives, and prints the objects
/// that it has written.
#[test]
fn writer() {
    let Ok(folder) = std::env::var("KVPOOL_STORE_WRITES") else { return }; // not the other process
    let first: u64 = std::env::var("KVPOOL_STORE_FIRST").unwrap().parse().unwrap();
    let (mut store, arena) = open(&configured(folder.as_ref(), first), always());
    let mut told = std::io::stdout();
    for n in (first..).step_by(2) {
        // Wait for a line of input, so that this process is at most `AHEAD` lines ahead of the test.
        std::io::stdin().read_line(&mut String::new()).unwrap();
        for slot in 0..2 {
            arena.write(slot).unwrap().copy_from_slice(&payload(n + u64::from(slot), LEN));
        }
        let offer = |slot: u32| Put {
            key: key(n + u64::from(slot)),
            tokens: TokenRange { first: 0, count: 16 },
            len: LEN,
            slot,
            admit: Some(Admit::Always),
        };
        store.put(&[offer(0), offer(1)], at(0)).unwrap();
        assert_eq!(finish(&mut store, at(0))[0].objects, [Ok(()); 2]);
        writeln!(told, "written {}", n + 1).unwrap();
    }
}

fn start(folder: &std::path::Path, first: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["kill::writer", "--exact", "--nocapture"])
        .env("KVPOOL_STORE_WRITES", folder)
        .env("KVPOOL_STORE_FIRST", first.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Reads `lines` lines of the writer's output. Returns the last object that the writer has reported.
/// The writer may be a few lines ahead.
fn follow(writer: &mut Child, lines: u64) -> u64 {
    let mut orders = writer.stdin.take().unwrap();
    orders.write_all(&[b'\n'; AHEAD]).unwrap();
    let said = BufReader::new(writer.stdout.as_mut().unwrap()).lines();
    let mut written =
        said.map_while(Result::ok).filter_map(|line| line.strip_prefix("written ")?.parse().ok());
    let mut last = 0;
    for _ in 0..lines {
        last = written.next().unwrap();
        orders.write_all(b"\n").unwrap();
    }
    writer.stdin = Some(orders);
    last
}

#[test]
fn a_killed_writer_leaves_objects_or_nothing() {
    let folder = Folder::new();
    let mut first = 0;
    for round in 0..kills() {
        let mut writer = start(folder.path(), first);
        // Kill the writer at an arbitrary moment. It depends on the machine, on the number of lines,
        // and on the length of this loop.
        let last = follow(&mut writer, 1 + round * 7 % 23);
        (0..round * 3571 % 50_000).for_each(|n| _ = std::hint::black_box(n));
        writer.kill().unwrap();
        writer.wait().unwrap();
        // Whenever the writer was killed, the copy of a place's header is either correct or marked as
        // unknown.
        let slab = std::fs::File::open(folder.slab()).unwrap();
        for (place, known) in (0..).zip(copied(&folder)) {
            let mut there = [0; 112];
            slab.read_exact_at(&mut there, place * SLOT).unwrap();
            assert!(known.is_none_or(|known| known == there), "the copy is wrong at place {place}");
        }
        let (mut store, arena) = open(&configured(folder.path(), round), always());
        assert_eq!(store.stats().foreign, 0, "a torn header");
        // The objects that the writer reported exist, except for those that it evicted afterwards.
        let end = last + 2 * AHEAD as u64 + 3;
        let here: Vec<_> = (0..end).filter(|&n| store.contains(&key(n), at(0)) == Presence::Here).collect();
        assert!(here.contains(&last) && here.contains(&(last - 1)), "{last} of {here:?}");
        assert_eq!(here.len() as u64, store.stats().restored, "objects that nobody wrote");
        // The header of an object that was being written may be complete while its payload is not. A
        // load detects this and removes the object.
        let mut torn = 0;
        for n in 0..end {
            let expected = match get(&mut store, &arena, n, at(0)) {
                Err(Why::Damaged) if n > last => {
                    torn += 1;
                    true
                }
                got => got.is_ok(),
            };
            assert_eq!(expected, here.contains(&n), "object {n} of {here:?}");
        }
        assert!(torn <= AHEAD as u64 + 1, "{torn} torn objects of a writer that is {AHEAD} ahead");
        assert_eq!(store.stats().damaged, torn);
        store.check_invariants().unwrap();
        store.close();
        first = last + 100 + round % 4;
    }
}

#[test]
fn the_second_process_is_refused() {
    let folder = Folder::new();
    let mut writer = start(folder.path(), 0);
    follow(&mut writer, 1);
    let refused = DiskBackend::open(&config(folder.path(), PLACES)).unwrap_err();
    assert!(matches!(refused, StoreError::FolderInUse { owner, .. } if owner == writer.id()), "{refused}");
    writer.kill().unwrap();
    writer.wait().unwrap();
    DiskBackend::open(&config(folder.path(), PLACES)).unwrap();
}
