//! Tests many concurrent transfers, with `io_uring` and with threads. Both give the same results and
//! the right bytes, even for objects that are damaged, truncated or removed meanwhile. If the kernel
//! has no `io_uring`, that half of the test is skipped with a message. If `CI` is set, it fails
//! instead.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use crate::common::folder::{Folder, SLOT, config};
use crate::common::{LEN, Numbers, always, at, key, namespace, payload, settle};
use kvpool_store::disk::{DiskBackend, DiskConfig, Io};
use kvpool_store::{Arena, Get, PAGE, Put, Store, StoreConfig, TokenRange, Why};

const PLACES: u64 = 96;
/// Number of slots. It is larger than the number of transfers that all workers together have in flight.
const SLOTS: u32 = 64;

fn is_there() -> bool {
    match Io::found() {
        Io::Uring => true,
        Io::Threads { why } => {
            assert!(std::env::var_os("CI").is_none(), "no io_uring: {why}");
            not_tested(&why);
            false
        }
    }
}

#[expect(clippy::print_stderr, reason = "a test that is not run says so")]
fn not_tested(why: &str) {
    eprintln!("NOT TESTED: io_uring: {why}");
}

/// Runs the test once with `io_uring` and once with threads, each with a store in its own folder.
fn each(direct: bool, staged: bool, mut test: impl FnMut(&DiskConfig, &mut Store, &Arc<Arena>)) {
    let kinds = if is_there() { &[false, true][..] } else { &[false] };
    for &io_uring in kinds {
        let folder = Folder::new();
        let config = DiskConfig { direct, io_uring, ..config(folder.path(), PLACES) };
        let (mut store, arena) = open(&config, staged);
        test(&config, &mut store, &arena);
        store.check_invariants().unwrap();
        store.close();
    }
}

fn open(config: &DiskConfig, staged: bool) -> (Store, Arc<Arena>) {
    let arena = Arena::new(SLOTS, LEN).unwrap();
    let disk = DiskBackend::open(config).unwrap();
    assert_eq!(*disk.io() == Io::Uring, config.io_uring);
    let how = StoreConfig { staged, ..always() };
    (Store::open(disk, arena.clone(), &namespace(1), how).unwrap(), arena)
}

fn put_all(store: &mut Store, arena: &Arc<Arena>, objects: &[u64]) -> Vec<Result<(), Why>> {
    let mut ended = Vec::new();
    for objects in objects.chunks(SLOTS as usize) {
        let offers: Vec<_> = (0..)
            .zip(objects)
            .map(|(slot, &n)| {
                arena.write(slot).unwrap()[..LEN as usize].copy_from_slice(&payload(n, LEN));
                Put { key: key(n), tokens: TokenRange { first: 0, count: 16 }, len: LEN, slot, admit: None }
            })
            .collect();
        store.put(&offers, at(0)).unwrap();
        ended.extend(settle(store, at(0)).pop().unwrap().objects);
    }
    ended
}

/// Loads all objects with one call and checks their bytes. The slots of misses contain zeros.
fn get_all(store: &mut Store, arena: &Arc<Arena>, objects: &[u64]) -> Vec<Result<(), Why>> {
    let mut ended = Vec::new();
    for objects in objects.chunks(SLOTS as usize) {
        (0..SLOTS).for_each(|slot| arena.write(slot).unwrap().fill(0));
        let wanted: Vec<_> =
            (0..).zip(objects).map(|(slot, &n)| Get { key: key(n), len: LEN, slot }).collect();
        store.get(&wanted, at(0)).unwrap();
        let got = settle(store, at(0)).pop().unwrap().objects;
        for ((slot, &n), got) in (0..).zip(objects).zip(&got) {
            let slot = arena.read(slot).unwrap();
            match got {
                Ok(()) => assert!(slot[..LEN as usize] == payload(n, LEN), "wrong bytes of {n}"),
                Err(_) => assert!(slot.iter().all(|&byte| byte == 0), "bytes of {n}, which missed"),
            }
        }
        ended.extend(got);
    }
    ended
}

#[test]
fn what_is_put_is_got_whatever_else_is_on_its_way() {
    for (direct, staged) in [(false, false), (true, false), (true, true)] {
        let all: Vec<u64> = (0..PLACES).collect();
        each(direct, staged, |config, store, arena| {
            assert!(put_all(store, arena, &all).iter().all(Result::is_ok));
            assert!(get_all(store, arena, &all).iter().all(Result::is_ok));
            assert_eq!(store.stats().loads, PLACES);
            let _ = config;
        });
    }
}

/// Both kinds of I/O return the same results for random operations on many objects at once: a place is
/// written, removed and written again while other places are read.
#[test]
fn both_answer_the_same() {
    let mut histories = Vec::new();
    each(false, false, |_, store, arena| {
        let (mut numbers, mut history) = (Numbers(31), Vec::new());
        for _ in 0..60 {
            let some: BTreeSet<u64> = (0..numbers.below(60)).map(|_| numbers.below(2 * PLACES)).collect();
            let some: Vec<u64> = some.into_iter().collect();
            match numbers.below(4) {
                0 => history.push(put_all(store, arena, &some)),
                1 => {
                    store.remove(&some.iter().map(|&n| key(n)).collect::<Vec<_>>(), at(0));
                    settle(store, at(0));
                }
                _ => history.push(get_all(store, arena, &some)),
            }
        }
        histories.push(history);
    });
    assert!(histories.iter().all(|history| *history == histories[0]));
    assert!(histories[0].iter().flatten().any(|end| *end == Err(Why::Absent)));
}

/// After bits were flipped and the file was truncated, loads of the affected objects are misses. A read
/// that returns too few bytes is repeated.
#[test]
fn a_damaged_or_truncated_object_is_a_miss() {
    let all: Vec<u64> = (0..PLACES).collect();
    for direct in [false, true] {
        each(direct, false, |config, store, arena| {
            put_all(store, arena, &all);
            let path = config.folder.join(format!("objects-{SLOT}.slab"));
            let slab = File::options().read(true).write(true).open(path).unwrap();
            for place in (0..PLACES / 2).step_by(3) {
                let mut there = [0];
                let byte = place * SLOT + if place % 2 == 0 { 40 } else { PAGE as u64 + 77 };
                slab.read_exact_at(&mut there, byte).unwrap();
                slab.write_all_at(&[there[0] ^ 4], byte).unwrap();
            }
            slab.set_len(PLACES / 2 * SLOT + SLOT / 3).unwrap();
            let got = get_all(store, arena, &all);
            assert_eq!(got.iter().filter(|got| got.is_ok()).count() as u64, PLACES / 2 - PLACES / 6);
            assert_eq!(store.stats().objects, PLACES / 2 - PLACES / 6);
            slab.set_len(PLACES * SLOT).unwrap();
            settle(store, at(0));
            put_all(store, arena, &all);
            assert!(get_all(store, arena, &all).iter().all(Result::is_ok));
        });
    }
}

/// A store is dropped or closed while all transfers are running. Every object that is found afterwards
/// is complete, and no call blocks forever.
#[test]
fn an_end_in_the_middle_leaves_objects_or_nothing() {
    let all: Vec<u64> = (0..u64::from(SLOTS)).collect();
    each(true, false, |config, _, _| {
        for round in 0..10_u64 {
            let folder = Folder::new();
            let config = DiskConfig { folder: folder.path().to_owned(), ..config.clone() };
            let (mut store, arena) = open(&config, false);
            let offers: Vec<_> = (0..SLOTS)
                .map(|slot| {
                    let n = u64::from(slot);
                    arena.write(slot).unwrap()[..LEN as usize].copy_from_slice(&payload(n, LEN));
                    Put {
                        key: key(n),
                        tokens: TokenRange { first: 0, count: 16 },
                        len: LEN,
                        slot,
                        admit: None,
                    }
                })
                .collect();
            store.put(&offers, at(0)).unwrap();
            (0..round * 4001).for_each(|n| _ = std::hint::black_box(n));
            store.close();
            assert!((0..SLOTS).all(|slot| arena.write(slot).is_ok()));
            let (mut store, arena) = open(&config, false);
            assert_eq!(store.stats().foreign, 0);
            let restored = store.stats().restored;
            let got = get_all(&mut store, &arena, &all);
            assert_eq!(got.iter().filter(|got| got.is_ok()).count() as u64, restored);
            store.close();
        }
    });
}

#[test]
fn unused_io_uring_is_reported_with_the_reason() {
    let folder = Folder::new();
    let off = DiskConfig { io_uring: false, ..config(folder.path(), 2) };
    let disk = DiskBackend::open(&off).unwrap();
    assert_eq!(disk.io().to_string(), "threads (no io_uring: switched off)");
}
