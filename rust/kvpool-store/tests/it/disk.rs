//! Tests the disk back end: written objects can be read, damaged objects are misses, and no load
//! returns wrong bytes.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::time::Duration;

use crate::common::folder::{Folder, SLOT, config, open};
use crate::common::{LEN, Numbers, always, at, get, key, namespace, put, settle};
use kvpool_store::disk::{DiskBackend, DiskConfig, Inspector};
use kvpool_store::{
    Arena, Backend, HEADER_BYTES, Header, HeaderError, Mismatch, PAGE, Presence, Put, Store, StoreError,
    TokenRange, Why,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Number of bit flips in this test.
fn flips() -> u64 {
    std::env::var("KVPOOL_STORE_FLIPS").map_or(300, |flips| flips.parse().unwrap())
}

fn filled(config: &DiskConfig, objects: u64) -> (Store, std::sync::Arc<Arena>) {
    let (mut store, arena) = open(config, always());
    for n in 0..objects {
        put(&mut store, &arena, n, at(0)).unwrap();
    }
    (store, arena)
}

/// Writes objects with direct I/O, if the file system supports it, and through the page cache. The
/// resulting file is the same.
#[test]
fn stored_objects_are_there_after_a_restart() {
    let mut folders = vec![Folder::new()];
    // `/dev/shm` is a file system in memory, which may not support direct I/O.
    folders.extend(std::path::Path::new("/dev/shm").is_dir().then(|| Folder::in_folder("/dev/shm")));
    for folder in folders {
        let direct = DiskConfig { direct: true, ..config(folder.path(), 5) };
        filled(&direct, 5).0.close();
        for config in [direct, config(folder.path(), 5)] {
            let (mut store, arena) = open(&config, always());
            assert_eq!((store.stats().restored, store.stats().bytes), (5, 5 * SLOT));
            (0..5).for_each(|n| assert_eq!(get(&mut store, &arena, n, at(0)), Ok(())));
            store.remove(&[key(3)], at(0));
            settle(&mut store, at(0));
            put(&mut store, &arena, 3, at(0)).unwrap();
            store.close();
        }
    }
}

/// Memory that an engine lends to the store may have slots at any address and of any size. If the slots
/// are not whole pages, payloads are copied through pages. Nothing outside of the slots changes.
#[test]
fn slots_of_an_engine_need_not_be_of_pages() {
    let folder = Folder::new();
    let direct = DiskConfig { direct: true, ..config(folder.path(), 5) };
    for (shift, slot_bytes) in [(0, LEN), (1, LEN), (64, 2 * PAGE as u32), (0, 2 * PAGE as u32)] {
        let mut memory = vec![0_u8; 4 * slot_bytes as usize + PAGE + shift];
        let page = memory.as_ptr().align_offset(PAGE);
        let begin = NonNull::new(memory[page + shift..].as_mut_ptr()).unwrap();
        // SAFETY: the four slots are inside of `memory`. The arena keeps that memory, and only the
        // arena accesses it.
        let arena = unsafe { Arena::over(begin, 4, slot_bytes, Box::new(memory)) }.unwrap();
        assert_eq!(arena.is_paged(), (shift | slot_bytes as usize).is_multiple_of(PAGE));
        let disk = DiskBackend::open(&direct).unwrap();
        let mut store = Store::open(disk, arena.clone(), &namespace(1), always()).unwrap();
        (0..3).for_each(|slot| arena.write(slot).unwrap().fill(200 + slot as u8));
        for n in 0..5 {
            put(&mut store, &arena, n, at(0)).unwrap();
        }
        for n in 0..5 {
            assert_eq!(
                get(&mut store, &arena, n, at(0)),
                Ok(()),
                "object {n} in slots of {slot_bytes} + {shift}"
            );
        }
        let untouched = arena.read(2).unwrap();
        assert!(untouched.iter().all(|&byte| byte == 202));
        assert!(arena.read(3).unwrap().iter().all(|&byte| byte == 0));
        drop(untouched);
        store.remove(&[0, 1, 2, 3, 4].map(key), at(0));
        settle(&mut store, at(0));
        store.close();
    }
}

/// The event file is readable from the end of a task until the store has processed it. A thread without
/// access to the store can wait for it.
#[test]
fn the_event_file_is_readable_until_ends_are_taken_in() {
    let folder = Folder::new();
    let (mut store, arena) = open(&config(folder.path(), 5), always());
    let waiter = store.waiter();
    let readable = |wait: Duration| {
        let timeout = Timespec::try_from(wait).unwrap();
        poll(&mut [PollFd::new(&waiter, PollFlags::IN)], Some(&timeout)).unwrap() == 1
    };
    assert!(!readable(Duration::ZERO));
    arena.write(0).unwrap().fill(1);
    let tokens = TokenRange { first: 0, count: 16 };
    store.put(&[Put { key: key(0), tokens, len: LEN, slot: 0, admit: None }], at(0)).unwrap();
    assert!(readable(crate::common::AGES));
    let mut out = Vec::new();
    store.poll(at(0), &mut out);
    assert_eq!(out[0].objects, [Ok(())]);
    assert!(!readable(Duration::ZERO));
}

#[test]
fn a_folder_is_looked_at_from_outside() {
    let folder = Folder::new();
    assert!(matches!(Inspector::look(folder.path()), Err(StoreError::NoStore { .. })));
    assert!(matches!(Inspector::exclusive(&folder.path().join("none")), Err(StoreError::NoStore { .. })));
    let (store, _) = filled(&config(folder.path(), 5), 4);
    // While a store has the folder open, an inspector can only read headers.
    let inspector = Inspector::look(folder.path()).unwrap();
    assert_eq!((inspector.places(), inspector.object_bytes()), (5, SLOT));
    let headers: Vec<_> = (0..5).filter_map(|place| inspector.header(place).unwrap().unwrap()).collect();
    assert_eq!(headers.len(), 4);
    let carried = store.namespace().clone();
    assert_eq!(carried.without_generation(), namespace(1));
    assert!(headers.iter().all(|header| header.namespace == carried.digest() && header.len == LEN));
    assert_eq!(inspector.namespaces().unwrap(), [(carried.digest(), Some(carried.clone()))].into());
    assert!(matches!(inspector.clear(0), Err(StoreError::ReadOnly { .. })));
    assert!(matches!(inspector.forget(carried.digest()), Err(StoreError::ReadOnly { .. })));
    assert!(matches!(Inspector::exclusive(folder.path()), Err(StoreError::FolderInUse { .. })));
    store.close();

    let inspector = Inspector::exclusive(folder.path()).unwrap();
    assert!(DiskBackend::open(&config(folder.path(), 5)).is_err(), "one has the folder");
    let verified = || {
        (0..5).map(|place| inspector.verify(place).unwrap().map(|found| found.is_some())).collect::<Vec<_>>()
    };
    assert_eq!(verified(), [Ok(true), Ok(true), Ok(true), Ok(true), Ok(false)]);
    let slab = File::options().write(true).open(folder.slab()).unwrap();
    slab.write_all_at(&[0], SLOT + PAGE as u64 + 77).unwrap(); // no payload contains a zero
    slab.write_all_at(&[0xff], 2 * SLOT + 92).unwrap(); // changes the length in the header
    let found = verified();
    assert!(matches!(found[1], Err(Mismatch::Payload { .. })), "{found:?}");
    assert!(matches!(found[2], Err(Mismatch::Header(HeaderError::Damaged { .. }))), "{found:?}");
    (1..3).for_each(|place| inspector.clear(place).unwrap());
    assert_eq!(verified(), [Ok(true), Ok(false), Ok(false), Ok(true), Ok(false)]);
    inspector.forget(carried.digest()).unwrap();
    inspector.forget(carried.digest()).unwrap();
    assert!(inspector.namespaces().unwrap().is_empty());
    drop(inspector);
    let (store, _) = open(&config(folder.path(), 5), always());
    assert_eq!((store.stats().restored, store.stats().foreign), (2, 0));
}

/// A valid header may contain a length that is larger than a place, for example if another slab was
/// copied over this one. The object is then damaged.
#[test]
fn a_header_that_claims_more_than_a_place_has_is_damaged() {
    let folder = Folder::new();
    filled(&config(folder.path(), 2), 1).0.close();
    let slab = File::options().write(true).open(folder.slab()).unwrap();
    for len in [0, 2 * PAGE as u32 + 1, u32::MAX] {
        let header = Header {
            namespace: namespace(1).digest(),
            key: key(1),
            tokens: TokenRange { first: 0, count: 16 },
            len,
            checksum: 0,
        };
        slab.write_all_at(&header.encode(), SLOT).unwrap();
        let verified = Inspector::exclusive(folder.path()).unwrap().verify(1).unwrap();
        assert!(matches!(verified, Err(Mismatch::Length { .. })), "{verified:?}");
    }
}

#[test]
fn a_damaged_text_of_a_namespace_is_none() {
    let folder = Folder::new();
    let (store, _) = filled(&config(folder.path(), 2), 1);
    let digest = store.namespace().digest();
    store.close();
    let path = folder.path().join(format!("{digest}.json"));
    for text in [namespace(2).to_json(), "{".into(), String::new()] {
        std::fs::write(&path, text).unwrap();
        assert_eq!(Inspector::look(folder.path()).unwrap().namespaces().unwrap(), [(digest, None)].into());
    }
}

#[test]
fn the_file_never_grows() {
    let folder = Folder::new();
    let bytes = 4 * SLOT + SLOT / 2;
    let (store, _) = filled(&DiskConfig { capacity_bytes: bytes, ..config(folder.path(), 4) }, 40);
    let size = || folder.slab().metadata().unwrap().len();
    assert_eq!((size(), store.stats().capacity_bytes, store.stats().objects), (4 * SLOT, 4 * SLOT, 4));
    store.close();
    // Open the folder with a smaller capacity, and then with a larger one. The objects in the places
    // that were cut off are lost, and the places that are added are empty.
    let (store, _) = open(&config(folder.path(), 2), always());
    assert_eq!((size(), store.stats().restored), (2 * SLOT, 2));
    store.close();
    let (store, _) = open(&config(folder.path(), 9), always());
    assert_eq!((size(), store.stats().restored, store.stats().foreign), (9 * SLOT, 2, 0));
    store.close();
    // If the size of a slot changes, the store creates a new file and removes the old one.
    let longer = DiskConfig { max_payload: 3 * LEN, ..config(folder.path(), 9) };
    let disk = DiskBackend::open(&longer).unwrap();
    assert!(!folder.slab().exists() && disk.object_bytes() == 5 * PAGE as u64);
}

#[test]
fn no_room_above_the_floor_is_refused() {
    let folder = Folder::new();
    let floor = DiskConfig { free_floor: u64::MAX, ..config(folder.path(), 4) };
    let error = DiskBackend::open(&floor).unwrap_err();
    assert!(matches!(error, StoreError::NoRoom { floor: u64::MAX, taken: 0, .. }), "{error}");
    let text = error.to_string();
    assert!(
        [&*folder.path().display().to_string(), "capacity_bytes", "each replica"]
            .iter()
            .all(|word| text.contains(word))
    );
    // If the capacity is too small for one object, the error names the setting instead of the disk.
    for capacity_bytes in [0, 1, SLOT - 1] {
        let error =
            DiskBackend::open(&DiskConfig { capacity_bytes, ..config(folder.path(), 4) }).unwrap_err();
        let expected =
            format!("capacity_bytes is {capacity_bytes}: must be at least the bytes of one object");
        assert!(error.to_string().starts_with(&expected), "{error}");
    }
    let none = DiskConfig { max_payload: 0, ..config(folder.path(), 4) };
    assert_eq!(DiskBackend::open(&none).unwrap_err().to_string(), "max_payload is 0: must be at least 1");
    // The back end that could not be opened has released the lock of the folder.
    DiskBackend::open(&config(folder.path(), 4)).unwrap();
}

/// If the disk has less room than the capacity, the store reports the shortage, and finds its objects
/// again at later starts. A second store on this disk finds no room at all, and its error contains the
/// path of the folder.
#[test]
fn a_capacity_above_the_room_of_the_disk_is_reported() {
    let memory = std::path::Path::new("/dev/shm");
    let (folder, next) = (Folder::in_folder(memory), Folder::in_folder(memory));
    let disk = rustix::fs::statvfs(memory).unwrap();
    let small = |folder: &Folder| DiskConfig {
        capacity_bytes: 1 << 50,
        free_floor: (disk.f_bavail * disk.f_frsize).saturating_sub(64 << 20),
        ..config(folder.path(), 1)
    };
    let told = |text: &str, folder: &Folder| {
        assert!(text.starts_with(&folder.path().display().to_string()), "{text}");
        assert!(
            text.contains("1125899906842624 bytes of capacity_bytes") && text.contains("each replica"),
            "{text}"
        );
    };
    for restored in [0, 1, 1] {
        let backend = DiskBackend::open(&small(&folder)).unwrap();
        told(backend.shortage().unwrap(), &folder);
        assert!(u64::from(backend.places()) * SLOT <= 64 << 20);
        let arena = Arena::new(2, LEN).unwrap();
        let mut store = Store::open(backend, arena.clone(), &namespace(1), always()).unwrap();
        assert_eq!(store.stats().restored, restored);
        put(&mut store, &arena, 1, at(0)).unwrap();
        assert_eq!(get(&mut store, &arena, 1, at(0)), Ok(()));
        store.close();
    }
    let error = DiskBackend::open(&small(&next)).unwrap_err();
    assert!(matches!(error, StoreError::NoRoom { taken: 0, .. }), "{error}");
    told(&error.to_string(), &next);
    assert_eq!(DiskBackend::open(&config(next.path(), 1)).unwrap().shortage(), None);
}

#[test]
fn another_namespace_is_a_cold_start_and_its_bytes_stay_unread() {
    let folder = Folder::new();
    filled(&config(folder.path(), 4), 4).0.close();
    let arena = Arena::new(2, LEN).unwrap();
    let disk = DiskBackend::open(&config(folder.path(), 4)).unwrap();
    let mut store = Store::open(disk, arena.clone(), &namespace(2), always()).unwrap();
    assert_eq!((store.stats().restored, store.stats().foreign), (0, 4));
    (0..4).for_each(|n| assert_eq!(get(&mut store, &arena, n, at(0)), Err(Why::Absent)));
    put(&mut store, &arena, 2, at(0)).unwrap();
    assert_eq!(get(&mut store, &arena, 2, at(0)), Ok(()));
    store.close();
    assert_eq!(open(&config(folder.path(), 4), always()).0.stats().foreign, 1);
}

/// A store of another namespace uses the folder for a while. It takes free places first. Afterwards the
/// first store still finds its objects, except for those that were overwritten because no free place
/// was left.
#[test]
fn empty_places_are_taken_before_those_of_other_namespaces() {
    let folder = Folder::new();
    filled(&config(folder.path(), 5), 3).0.close();
    let arena = Arena::new(2, LEN).unwrap();
    let disk = DiskBackend::open(&config(folder.path(), 5)).unwrap();
    let mut store = Store::open(disk, arena.clone(), &namespace(2), always()).unwrap();
    for n in 0..3 {
        put(&mut store, &arena, n, at(0)).unwrap();
    }
    store.close();
    assert_eq!(open(&config(folder.path(), 5), always()).0.stats().restored, 2);
}

/// Flips random bits in headers and payloads, while the store is open and before it is opened.
#[test]
fn every_flipped_bit_is_a_miss() {
    let folder = Folder::new();
    let config = config(folder.path(), 4);
    let (mut store, mut arena) = filled(&config, 4);
    let mut numbers = Numbers(18);
    for flip in 0..flips() {
        let file = File::options().read(true).write(true).open(folder.slab()).unwrap();
        let slot = numbers.below(4);
        let header = HEADER_BYTES as u64;
        // Half of the flips are in headers, because headers have few bytes.
        let byte = numbers.below(if flip % 2 == 0 { header } else { header + u64::from(LEN) });
        let offset = slot * SLOT + if byte < header { byte } else { byte - header + PAGE as u64 };
        let mut there = [0];
        file.read_exact_at(&mut there, offset).unwrap();
        file.write_all_at(&[there[0] ^ 1 << numbers.below(8)], offset).unwrap();
        if flip % 20 < 2 {
            store.close();
            (store, arena) = open(&config, always());
            let damaged = byte < header;
            assert_eq!(store.stats().restored, 4 - u64::from(damaged), "byte {byte}");
            // With a bit flipped in the first 8 bytes (the magic number), the bytes are no header, so
            // the place is not counted as foreign.
            assert_eq!(store.stats().foreign, u64::from(damaged && byte >= 8), "byte {byte}");
        }
        let missed: Vec<_> = (0..4).filter(|&n| get(&mut store, &arena, n, at(0)).is_err()).collect();
        assert_eq!(missed.len(), 1, "byte {byte} of slot {slot}");
        settle(&mut store, at(0));
        put(&mut store, &arena, missed[0], at(0)).unwrap();
    }
    store.check_invariants().unwrap();
}

#[test]
fn truncated_and_foreign_files_are_misses() {
    let folder = Folder::new();
    let config = config(folder.path(), 4);
    let mut numbers = Numbers(7);
    for _ in 0..30 {
        filled(&config, 4).0.close();
        let end = numbers.below(4 * SLOT + 1);
        File::options().write(true).open(folder.slab()).unwrap().set_len(end).unwrap();
        let (mut store, arena) = open(&config, always());
        let whole = (0..4).filter(|&n| get(&mut store, &arena, n, at(0)).is_ok()).count() as u64;
        let payload_end = |slot: u64| slot * SLOT + PAGE as u64 + u64::from(LEN);
        assert_eq!(whole, (0..4).filter(|&slot| payload_end(slot) <= end).count() as u64, "cut at {end}");
        store.close();
    }
    let noise: Vec<u8> = (0..4 * SLOT).map(|_| numbers.below(256) as u8).collect();
    std::fs::write(folder.slab(), noise).unwrap();
    let (mut store, arena) = open(&config, always());
    assert_eq!((store.stats().objects, store.contains(&key(0), at(0))), (0, Presence::Absent));
    put(&mut store, &arena, 0, at(0)).unwrap();
    assert_eq!(get(&mut store, &arena, 0, at(0)), Ok(()));
}

#[test]
fn a_file_that_is_cut_while_open_is_misses() {
    let folder = Folder::new();
    let (mut store, arena) = filled(&config(folder.path(), 4), 4);
    File::options().write(true).open(folder.slab()).unwrap().set_len(SLOT + 5000).unwrap();
    let got: Vec<_> = (0..4).map(|n| get(&mut store, &arena, n, at(0)).is_ok()).collect();
    assert_eq!(got.iter().filter(|&&ok| ok).count(), 1);
    assert_eq!(store.stats().damaged + store.stats().lost, 3);
    store.check_invariants().unwrap();
}

#[test]
fn one_store_has_a_folder() {
    let folder = Folder::new();
    let (store, _) = open(&config(folder.path(), 4), always());
    let refused = DiskBackend::open(&config(folder.path(), 4)).unwrap_err();
    assert!(
        matches!(refused, StoreError::FolderInUse { owner, .. } if owner == std::process::id()),
        "{refused}"
    );
    store.close();
    DiskBackend::open(&config(folder.path(), 4)).unwrap();
}
