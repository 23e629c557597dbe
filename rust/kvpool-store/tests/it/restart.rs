//! When a store opens, it uses the header copy and does not read every place. Every load checks the
//! object itself. Therefore an error in the copy or in the slab never leads to wrong bytes.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use crate::common::folder::{Folder, SLOT, config, copied, copy_of, open};
use crate::common::{LEN, Numbers, always, at, get, key, namespace, put, settle};
use kvpool_store::disk::Inspector;
use kvpool_store::{Header, PAGE, Store, TokenRange, Why};

/// Number of places, of which a store checks only a part when it opens.
const PLACES: u64 = 300;

fn filled(folder: &Folder, objects: u64) -> Store {
    let (mut store, arena) = open(&config(folder.path(), PLACES), always());
    for n in 0..objects {
        put(&mut store, &arena, n, at(0)).unwrap();
    }
    store
}

/// Loads every object that may exist, and checks that the result is either the right bytes or a miss.
/// Returns the number of objects found.
fn load_all(folder: &Folder, objects: u64) -> u64 {
    let (mut store, arena) = open(&config(folder.path(), PLACES), always());
    let restored = store.stats().restored;
    let there = (0..objects).filter(|&n| get(&mut store, &arena, n, at(0)).is_ok()).count() as u64;
    settle(&mut store, at(0));
    let stats = store.stats();
    assert_eq!(restored - there, stats.damaged + stats.lost, "what was believed and is not there is gone");
    assert_eq!(stats.objects, there);
    store.check_invariants().unwrap();
    store.close();
    there
}

fn flip(path: &PathBuf, byte: u64, bit: u64) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut there = [0];
    file.read_exact_at(&mut there, byte).unwrap();
    file.write_all_at(&[there[0] ^ 1 << bit], byte).unwrap();
}

#[test]
fn the_copy_contains_the_header_of_every_place() {
    let folder = Folder::new();
    let mut store = filled(&folder, PLACES / 2);
    store.remove(&[3, 5, 8].map(key), at(0));
    settle(&mut store, at(0));
    store.close();
    let known = copied(&folder);
    assert!(known.iter().all(Option::is_some) && known.len() as u64 == PLACES);
    let slab = File::open(folder.slab()).unwrap();
    for (place, known) in (0..).zip(known) {
        let mut there = [0; 112];
        slab.read_exact_at(&mut there, place * SLOT).unwrap();
        assert_eq!(known, Some(there), "place {place}");
    }
    assert_eq!(load_all(&folder, PLACES), PLACES / 2 - 3);
}

/// A store checks only a part of the places when it opens. If the header at another place is damaged,
/// the store uses its copy, and the load detects the damage.
#[test]
fn what_the_copy_knows_is_not_read_at_the_start() {
    let folder = Folder::new();
    filled(&folder, PLACES).close();
    for place in 0..PLACES {
        if place % 4 != 0 {
            flip(&folder.slab(), place * SLOT + 50, 1);
        }
    }
    let (mut store, arena) = open(&config(folder.path(), PLACES), always());
    assert_eq!(store.stats().restored, PLACES, "300 places: every fourth is looked at");
    let got: Vec<_> = (0..PLACES).map(|n| get(&mut store, &arena, n, at(0))).collect();
    assert_eq!(got.iter().filter(|got| **got == Err(Why::Damaged)).count() as u64, PLACES * 3 / 4);
    assert_eq!(got.iter().filter(|got| got.is_ok()).count() as u64, PLACES / 4);
}

/// A store checks a part of the places when it opens. If the header at one of them differs from its
/// copy, the store reads all places.
#[test]
fn a_copy_that_differs_in_one_place_is_not_used() {
    let folder = Folder::new();
    filled(&folder, PLACES).close();
    for place in 0..PLACES {
        flip(&folder.slab(), place * SLOT + 50, 1);
    }
    let (store, _) = open(&config(folder.path(), PLACES), always());
    assert_eq!((store.stats().restored, store.stats().foreign), (0, PLACES));
}

/// If only the file of header copies is damaged, no object is lost, because the store reads the places
/// whose copies are unknown.
#[test]
fn flipped_bits_of_the_copy_lose_nothing() {
    let folder = Folder::new();
    filled(&folder, PLACES).close();
    let mut numbers = Numbers(3);
    for _ in 0..20 {
        for _ in 0..20 {
            let entry = numbers.below(PLACES) * 128 + numbers.below(120);
            flip(&copy_of(&folder), PAGE as u64 + entry, numbers.below(8));
        }
        let unknown = copied(&folder).iter().filter(|known| known.is_none()).count();
        assert!(unknown > 0, "the flips are seen");
        assert_eq!(load_all(&folder, PLACES), PLACES);
        assert!(copied(&folder).iter().all(Option::is_some), "it is made whole again");
    }
    flip(&copy_of(&folder), 3, 0); // damages the header of the copy itself
    assert_eq!(load_all(&folder, PLACES), PLACES);
}

#[test]
fn damaged_foreign_and_missing_copies_lose_no_objects() {
    let (folder, other) = (Folder::new(), Folder::new());
    filled(&folder, PLACES).close();
    filled(&other, 0).close();
    let path = copy_of(&folder);
    let mut numbers = Numbers(4);
    for round in 0..20 {
        match round % 4 {
            0 => {
                File::options()
                    .write(true)
                    .open(&path)
                    .unwrap()
                    .set_len(numbers.below(PLACES * 128))
                    .unwrap();
            }
            1 => {
                let noise: Vec<u8> = (0..PLACES * 128).map(|_| numbers.below(256) as u8).collect();
                std::fs::write(&path, noise).unwrap();
            }
            2 => drop(std::fs::copy(copy_of(&other), &path).unwrap()),
            _ => std::fs::remove_file(&path).unwrap(),
        }
        assert_eq!(load_all(&folder, PLACES), PLACES, "round {round}");
    }
}

/// After a power loss, the file of header copies may be from any earlier moment. Objects that are
/// missing in it may be lost, but no load returns wrong bytes.
#[test]
fn an_old_copy_serves_no_wrong_bytes() {
    let mut numbers = Numbers(5);
    for changed in [1, 20, 299] {
        let folder = Folder::new();
        filled(&folder, PLACES).close();
        let old = std::fs::read(copy_of(&folder)).unwrap();
        let (mut store, arena) = open(&config(folder.path(), PLACES), always());
        for _ in 0..changed {
            put(&mut store, &arena, PLACES + numbers.below(PLACES), at(0)).unwrap();
        }
        let now = store.stats().objects;
        store.close();
        // Take each entry from the old or from the new file, at random.
        let mut mixed = std::fs::read(copy_of(&folder)).unwrap();
        for place in 0..PLACES as usize {
            let entry = PAGE + place * 128..PAGE + place * 128 + 128;
            if numbers.below(2) == 0 {
                mixed[entry.clone()].copy_from_slice(&old[entry]);
            }
        }
        let in_place = File::options().write(true).open(copy_of(&folder)).unwrap();
        in_place.write_all_at(&mixed, 0).unwrap();
        let there = load_all(&folder, 2 * PLACES);
        assert!(now - there <= changed, "{changed} were written, {} are lost", now - there);
    }
}

/// The slab was deleted, and the file of header copies describes the deleted slab. The new slab may
/// have the inode number of the old one.
#[test]
fn a_new_slab_is_empty_although_a_copy_exists() {
    let folder = Folder::new();
    filled(&folder, PLACES).close();
    std::fs::remove_file(folder.slab()).unwrap();
    assert_eq!(load_all(&folder, PLACES), 0);
    filled(&folder, 7).close();
    assert_eq!(load_all(&folder, PLACES), 7);
    // Open the folder with fewer places, and then with more. The objects in the places that were cut
    // off are lost.
    filled(&folder, PLACES).close();
    open(&config(folder.path(), 10), always()).0.close();
    let (store, _) = open(&config(folder.path(), PLACES), always());
    assert_eq!((store.stats().restored, store.stats().foreign), (10, 0));
}

#[test]
fn a_place_that_a_tool_clears_is_not_restored() {
    let folder = Folder::new();
    filled(&folder, PLACES).close();
    let inspector = Inspector::exclusive(folder.path()).unwrap();
    (100..200).for_each(|place| inspector.clear(place).unwrap());
    drop(inspector);
    let (store, _) = open(&config(folder.path(), PLACES), always());
    assert_eq!(store.stats().restored, PLACES - 100);
}

/// The slab contains a header of another namespace and a damaged header. The file of header copies
/// contains them as well, and every start counts them.
#[test]
fn foreign_headers_are_counted_at_every_start() {
    let folder = Folder::new();
    filled(&folder, 5).close();
    std::fs::remove_file(copy_of(&folder)).unwrap();
    let slab = File::options().write(true).open(folder.slab()).unwrap();
    let (namespace, tokens) = (namespace(2).digest(), TokenRange { first: 0, count: 16 });
    let other = Header { namespace, key: key(1), tokens, len: LEN, checksum: 1 };
    slab.write_all_at(&other.encode(), 7 * SLOT).unwrap();
    slab.write_all_at(b"kvpoolob, and nothing that fits", 9 * SLOT).unwrap();
    for _ in 0..3 {
        let (store, _) = open(&config(folder.path(), PLACES), always());
        assert_eq!((store.stats().restored, store.stats().foreign), (5, 2));
        store.close();
    }
}
