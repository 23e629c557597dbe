//! Tests back ends that several engines share: a folder and a Redis server. One engine reads the
//! objects that another engine wrote, and never gets wrong bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use crate::common::folder::Folder;
use crate::common::redis::Server;
use crate::common::{LEN, Numbers, always, at, finish, get, key, namespace, put, settle};
use kvpool_store::folder::{FolderBackend, FolderConfig};
use kvpool_store::redis::RedisBackend;
use kvpool_store::{
    Arena, Backend, Generation, HEADER_BYTES, NamespaceDigest, ObjectName, PAGE, Presence, Store,
    StoreConfig, StoreError, Why,
};
use proptest::collection::vec;
use proptest::prelude::*;

/// A shared back end. The test can inspect and damage its objects without a store.
#[derive(Debug)]
enum Shared {
    Folder(Folder),
    Redis(Server),
}

/// Returns one back end of each kind that works on this machine.
fn all() -> Vec<Shared> {
    let redis = Server::start(&[]).map(Shared::Redis);
    [Shared::Folder(Folder::new())].into_iter().chain(redis).collect()
}

impl Shared {
    fn backend(&self, places: u64) -> Arc<dyn Backend> {
        match self {
            Self::Folder(folder) => FolderBackend::open(folder_config(folder, places)).unwrap(),
            Self::Redis(server) => RedisBackend::open(server.config(places)).unwrap(),
        }
    }

    fn open(&self, places: u64) -> (Store, Arc<Arena>) {
        self.open_as(1, places, always())
    }

    fn open_as(&self, model: u8, places: u64, config: StoreConfig) -> (Store, Arc<Arena>) {
        let arena = Arena::new(2, LEN).unwrap();
        (Store::open(self.backend(places), arena.clone(), &namespace(model), config).unwrap(), arena)
    }

    fn objects(&self) -> usize {
        match self {
            Self::Folder(folder) => files(folder.path().to_owned()).len(),
            Self::Redis(server) => {
                let all: usize = String::from_utf8(server.ask(&[b"DBSIZE"])).unwrap().parse().unwrap();
                all - server_texts(server)
            }
        }
    }

    /// Returns the digest of the namespace with its generation, which the headers of objects contain.
    fn carried(&self) -> NamespaceDigest {
        let generation = self.backend(1).generation(namespace(1).digest()).unwrap().unwrap();
        namespace(1).of_generation(generation).digest()
    }

    fn name(&self, n: u64) -> String {
        ObjectName { namespace: self.carried(), key: key(n) }.to_string()
    }

    /// Changes the stored bytes of an object: the header, followed by the payload. In a folder, the
    /// header is a whole page.
    fn change(&self, n: u64, how: impl FnOnce(&mut Vec<u8>)) {
        match self {
            Self::Folder(folder) => {
                let path = file(folder, self.carried(), n);
                let mut bytes = fs::read(&path).unwrap();
                how(&mut bytes);
                fs::write(path, bytes).unwrap();
            }
            Self::Redis(server) => {
                let name = format!("kvpool/{}", self.name(n));
                let mut bytes = server.ask(&[b"GET", name.as_bytes()]);
                how(&mut bytes);
                server.ask(&[b"SET", name.as_bytes(), &bytes]);
            }
        }
    }

    fn flip(&self, n: u64, bit: usize) {
        let page = if matches!(self, Self::Folder(_)) { PAGE } else { HEADER_BYTES };
        let byte = bit / 8 % (HEADER_BYTES + LEN as usize);
        let byte = if byte < HEADER_BYTES { byte } else { byte - HEADER_BYTES + page };
        self.change(n, |bytes| bytes[byte] ^= 1 << (bit % 8));
    }

    fn empty(&self) {
        match self {
            Self::Folder(folder) => {
                for file in files(folder.path().to_owned()) {
                    fs::remove_file(file).unwrap();
                }
            }
            Self::Redis(server) => drop(server.ask(&[b"FLUSHALL"])),
        }
    }
}

fn file(folder: &Folder, namespace: NamespaceDigest, n: u64) -> PathBuf {
    let name = ObjectName { namespace, key: key(n) }.to_string();
    let (namespace, file) = name.split_once('/').unwrap();
    folder.path().join(namespace).join(&file[..2]).join(file)
}

fn folder_config(folder: &Folder, places: u64) -> FolderConfig {
    FolderConfig {
        folder: folder.path().to_owned(),
        capacity_bytes: places * 3 * PAGE as u64,
        max_payload: LEN,
        group: false,
    }
}

/// Returns the number of values on the server that are not objects, but texts and generations of
/// namespaces.
fn server_texts(server: &Server) -> usize {
    let count = |pattern| {
        let script = format!("return #redis.call('keys', '{pattern}')");
        String::from_utf8(server.ask(&[b"EVAL", script.as_bytes(), b"0"])).unwrap().parse::<usize>().unwrap()
    };
    count("kvpool/*.json") + count("kvpool/*.generation")
}

/// Returns the files of objects, including those that are being written.
fn files(folder: PathBuf) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let objects = files
        .into_iter()
        .filter(|file| file.extension().is_none_or(|end| end != "json" && end != "generation"));
    objects.chain(folders.into_iter().flat_map(self::files)).collect()
}

#[test]
fn one_store_reads_objects_of_another() {
    for shared in all() {
        let (mut one, arena) = shared.open(8);
        (0..5).for_each(|n| put(&mut one, &arena, n, at(0)).unwrap());
        let (mut other, arena) = shared.open(8);
        (0..5).for_each(|n| assert_eq!(get(&mut other, &arena, n, at(0)), Ok(())));
        assert_eq!(get(&mut other, &arena, 5, at(0)), Err(Why::Absent));
        // A store with other weights looks for another name. Its load is a miss, and no object is
        // counted as damaged.
        let (mut stranger, arena) = shared.open_as(2, 8, always());
        assert_eq!(get(&mut stranger, &arena, 1, at(0)), Err(Why::Absent));
        put(&mut stranger, &arena, 1, at(0)).unwrap();
        assert_eq!((stranger.stats().damaged, shared.objects()), (0, 6));
    }
}

/// The number of objects in the back end equals the number of written objects minus evicted and removed
/// ones.
#[test]
fn removed_objects_are_removed_from_the_back_end() {
    for shared in all() {
        let (mut store, arena) = shared.open(3);
        (0..7).for_each(|n| put(&mut store, &arena, n, at(0)).unwrap());
        settle(&mut store, at(0));
        assert_eq!((shared.objects(), store.stats().evicted), (3, 4), "{shared:?}");
        store.remove(&[key(4), key(5)], at(0));
        settle(&mut store, at(0));
        assert_eq!(shared.objects(), 1);
        // After a renewal to other weights, the store removes the earlier objects under their old
        // names.
        store.renew(&namespace(3), at(0)).unwrap();
        settle(&mut store, at(0));
        assert_eq!(shared.objects(), 0, "{shared:?}");
        put(&mut store, &arena, 6, at(0)).unwrap();
        assert_eq!(get(&mut store, &arena, 6, at(0)), Ok(()));
        store.check_invariants().unwrap();
    }
}

#[test]
fn flipped_bits_are_never_served() {
    let flips: u64 = std::env::var("KVPOOL_STORE_FLIPS").map_or(300, |flips| flips.parse().unwrap());
    for shared in all() {
        let (mut store, arena) = shared.open(4);
        let mut numbers = Numbers(7);
        for _ in 0..flips {
            put(&mut store, &arena, 1, at(0)).unwrap();
            shared.flip(1, numbers.below(8 * (HEADER_BYTES as u64 + u64::from(LEN))) as usize);
            let (mut other, arena) = shared.open_as(1, 4, StoreConfig { workers: 1, ..always() });
            // Remove a value whose magic number was changed. Such a value is not counted as an object.
            assert!(
                matches!(get(&mut other, &arena, 1, at(0)), Err(Why::Damaged | Why::Absent)),
                "{shared:?}"
            );
            store.remove(&[key(1)], at(0));
            settle(&mut store, at(0));
            assert_eq!(shared.objects(), 0);
        }
    }
}

#[test]
fn short_long_and_strange_values_are_misses() {
    for shared in all() {
        let lengths = [0, 1, 8, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 1, PAGE, PAGE + 1];
        for len in lengths {
            let (mut store, arena) = shared.open(4);
            put(&mut store, &arena, 1, at(0)).unwrap();
            shared.change(1, |bytes| bytes.truncate(len));
            assert!(matches!(get(&mut store, &arena, 1, at(0)), Err(Why::Damaged | Why::Absent)), "{len}");
            settle(&mut store, at(0));
            assert_eq!(shared.objects(), 0);
        }
        let (mut store, arena) = shared.open(4);
        put(&mut store, &arena, 1, at(0)).unwrap();
        shared.change(1, |bytes| bytes.extend_from_slice(&[9; 100_000]));
        assert_eq!(get(&mut store, &arena, 1, at(0)), Ok(()), "what stands behind it is nobody's");
        put(&mut store, &arena, 2, at(0)).unwrap();
        assert_eq!(get(&mut store, &arena, 2, at(0)), Ok(()), "the connection is where it should be");
    }
}

#[derive(Clone, Debug)]
enum Operation {
    Put(usize, u64),
    Get(usize, u64),
    Remove(usize, u64),
    Probe(usize),
    Flip(u64, usize),
    Reopen(usize),
    Empty,
}

fn operations() -> impl Strategy<Value = Operation> {
    let one = (0_usize..2, 0_u64..6);
    prop_oneof![
        6 => one.clone().prop_map(|(store, n)| Operation::Put(store, n)),
        6 => one.clone().prop_map(|(store, n)| Operation::Get(store, n)),
        2 => one.prop_map(|(store, n)| Operation::Remove(store, n)),
        2 => (0_usize..2).prop_map(Operation::Probe),
        1 => (0_u64..6, 0_usize..100_000).prop_map(|(n, bit)| Operation::Flip(n, bit)),
        1 => (0_usize..2).prop_map(Operation::Reopen),
        1 => Just(Operation::Empty),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Two stores that share a back end behave like a model. If a store does not know the current state
    /// of the back end, its load is a miss, after which it knows the state.
    #[test]
    fn two_stores_equal_their_model(histories in vec(vec(operations(), 1..40), 2)) {
        for (shared, history) in all().into_iter().zip(histories) {
            let config = StoreConfig { believed_for: at(0), ..always() };
            let mut stores = [shared.open_as(1, 32, config), shared.open_as(1, 32, config)];
            // `there` contains the numbers of the objects in the back end, and whether a test changed
            // their bytes. `own` contains, for each store, the objects that it expects in the back end.
            let mut there = BTreeMap::new();
            let mut own = [BTreeSet::new(), BTreeSet::new()];
            for operation in history {
                match operation {
                    Operation::Put(s, n) => {
                        let (store, arena) = &mut stores[s];
                        prop_assert_eq!(put(store, arena, n, at(0)), Ok(()));
                        if own[s].insert(n) {
                            there.insert(n, false);
                        }
                    }
                    Operation::Get(s, n) => {
                        let (store, arena) = &mut stores[s];
                        let got = get(store, arena, n, at(0));
                        settle(store, at(0));
                        match there.get(&n) {
                            Some(false) => prop_assert_eq!(got, Ok(())),
                            damaged => {
                                prop_assert!(got == Err(Why::Absent) || damaged.is_some()
                                    && got == Err(Why::Damaged));
                                own[s].remove(&n);
                                // Damaged bytes remain until they are overwritten. Only the store that
                                // wrote the object removes them.
                                if shared.objects() < there.len() {
                                    there.remove(&n);
                                }
                            }
                        }
                    }
                    Operation::Remove(s, n) => {
                        let store = &mut stores[s].0;
                        prop_assert_eq!(store.remove(&[key(n)], at(0)), usize::from(own[s].remove(&n)));
                        settle(store, at(0));
                        there.remove(&n);
                    }
                    Operation::Probe(s) => {
                        let store = &mut stores[s].0;
                        store.probe(&(0..6).map(key).collect::<Vec<_>>(), at(0));
                        let answers = finish(store, at(0)).remove(0).objects;
                        settle(store, at(0));
                        for n in 0..6 {
                            let expected = if there.contains_key(&n) { Ok(()) } else { Err(Why::Absent) };
                            prop_assert_eq!(answers[n as usize], expected);
                        }
                        own[s].retain(|n| there.contains_key(n));
                    }
                    Operation::Flip(n, bit) => {
                        if there.get(&n) == Some(&false) {
                            shared.flip(n, bit);
                            there.insert(n, true);
                        }
                    }
                    Operation::Reopen(s) => {
                        stores[s] = shared.open_as(1, 32, config);
                        own[s].clear();
                        if matches!(shared, Shared::Folder(_)) {
                            own[s].extend(there.keys().copied()); // a store lists the folder when it opens
                        }
                    }
                    Operation::Empty => {
                        shared.empty();
                        there.clear();
                        // The server has lost the record of the generation. The first store that asks whether
                        // objects exist writes it again.
                        let store = &mut stores[0].0;
                        store.probe(&[key(9)], at(0));
                        settle(store, at(0));
                    }
                }
                prop_assert_eq!(shared.objects(), there.len());
                stores.iter().for_each(|(store, _)| store.check_invariants().unwrap());
            }
        }
    }
}

#[test]
fn a_folder_is_listed_newest_last_and_bounded() {
    let folder = Folder::new();
    let open = |places| {
        let backend = FolderBackend::open(folder_config(&folder, places)).unwrap();
        let arena = Arena::new(2, LEN).unwrap();
        (Store::open(backend, arena.clone(), &namespace(1), always()).unwrap(), arena)
    };
    let (mut whole, arena) = open(8);
    let carried = whole.namespace().digest();
    for n in 0..6 {
        put(&mut whole, &arena, n, at(0)).unwrap();
        let old = std::time::SystemTime::UNIX_EPOCH + at(1000 * n + 1);
        fs::File::options().write(true).open(file(&folder, carried, n)).unwrap().set_modified(old).unwrap();
    }
    // A temporary file of a killed writer is old, and is removed. A temporary file that is being
    // written is new. Other files are never removed.
    let leaves = |name: &str| file(&folder, carried, 1).with_file_name(name);
    for (name, seconds) in [("0-0.tmp", 1), ("0-1.tmp", u64::from(u32::MAX)), ("notes", 1)] {
        let file = fs::File::create(leaves(name)).unwrap();
        file.set_modified(std::time::SystemTime::UNIX_EPOCH + at(seconds)).unwrap();
    }
    let (store, _) = open(4);
    assert_eq!(store.stats().restored, 4);
    let here = |store: &Store, n| store.contains(&key(n), at(0)) == Presence::Here;
    assert_eq!([0, 1, 2, 5].map(|n| here(&store, n)), [false, false, true, true]);
    assert!(!file(&folder, carried, 1).exists() && file(&folder, carried, 2).exists());
    assert_eq!(["0-0.tmp", "0-1.tmp", "notes"].map(|name| leaves(name).exists()), [false, true, true]);
}

#[test]
fn the_next_start_removes_files_of_older_generations() {
    let folder = Folder::new();
    let open = |model| {
        let backend = FolderBackend::open(folder_config(&folder, 8)).unwrap();
        let arena = Arena::new(2, LEN).unwrap();
        (Store::open(backend, arena.clone(), &namespace(model), always()).unwrap(), arena)
    };
    for model in 1..3 {
        let (mut store, arena) = open(model);
        put(&mut store, &arena, 1, at(0)).unwrap();
    }
    // Record a new generation without removing files, as a process does that is killed during a
    // renewal.
    let backend = FolderBackend::open(folder_config(&folder, 8)).unwrap();
    backend.record_generation(namespace(1).digest(), Generation::fresh(), true).unwrap();
    assert_eq!(files(folder.path().to_owned()).len(), 2);
    let (store, _) = open(1);
    assert_eq!((store.stats().restored, files(folder.path().to_owned()).len()), (0, 1));
    assert_eq!(
        fs::read_dir(folder.path()).unwrap().count(),
        3 + 2,
        "a text each, a generation each, one's objects"
    );
    assert_eq!(open(2).0.stats().restored, 1);
}

/// Without a valid record, the next start begins a new generation and finds no earlier object.
#[test]
fn a_lost_or_damaged_generation_is_a_cold_start() {
    for shared in all() {
        for damage in [&b""[..], b"not a generation", b"0123456789abcdef0123456789abcdeF0"] {
            let (mut store, arena) = shared.open(4);
            put(&mut store, &arena, 1, at(0)).unwrap();
            let before = shared.carried();
            let record = format!("{}.generation", namespace(1).digest());
            match &shared {
                Shared::Folder(folder) if damage.is_empty() => {
                    fs::remove_file(folder.path().join(record)).unwrap();
                }
                Shared::Folder(folder) => fs::write(folder.path().join(record), damage).unwrap(),
                Shared::Redis(server) => {
                    let key = format!("kvpool/{record}");
                    let _ = if damage.is_empty() {
                        server.ask(&[b"DEL", key.as_bytes()])
                    } else {
                        server.ask(&[b"SET", key.as_bytes(), damage])
                    };
                }
            }
            let (mut other, arena) = shared.open(4);
            assert_eq!(get(&mut other, &arena, 1, at(0)), Err(Why::Absent));
            assert_ne!(shared.carried(), before);
        }
    }
}

/// A running store writes the record to an emptied server again, so a store that is opened later shares
/// its objects.
#[test]
fn a_server_that_was_emptied_has_the_generation_again() {
    let Some(server) = Server::start(&[]) else { return };
    let shared = Shared::Redis(server);
    let (mut store, arena) = shared.open(4);
    shared.empty();
    store.probe(&[key(1)], at(0));
    settle(&mut store, at(0));
    put(&mut store, &arena, 1, at(0)).unwrap();
    let (mut other, arena) = shared.open(4);
    assert_eq!(get(&mut other, &arena, 1, at(0)), Ok(()));
}

#[test]
fn a_folder_that_cannot_be_written_to_is_a_miss() {
    let folder = Folder::new();
    let shared = Shared::Folder(folder);
    let (mut store, arena) = shared.open(4);
    let Shared::Folder(folder) = &shared else { return };
    fs::write(folder.path().join(store.namespace().digest().to_string()), "a file").unwrap();
    assert_eq!(put(&mut store, &arena, 1, at(0)), Err(Why::Failed));
    assert!(store.stats().last_error.unwrap().contains("writing an object failed"));
    let config =
        FolderConfig { folder: "/proc/none".into(), capacity_bytes: 1 << 20, max_payload: LEN, group: false };
    assert!(matches!(FolderBackend::open(config.clone()), Err(StoreError::Backend(_))));
    let config = FolderConfig { capacity_bytes: 100, ..config };
    let error = FolderBackend::open(config).unwrap_err();
    assert!(matches!(error, StoreError::InvalidConfig { field: "capacity_bytes", .. }));
}
