//! Kills processes before, during and after a renewal. Once the renewal has returned, no earlier object
//! is found.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use crate::common::folder::{Folder, config};
use crate::common::redis::Server;
use crate::common::{LEN, always, at, finish, key, namespace, payload};
use kvpool_store::disk::DiskBackend;
use kvpool_store::folder::{FolderBackend, FolderConfig};
use kvpool_store::redis::{Address, RedisBackend, RedisConfig};
use kvpool_store::{Arena, Backend, Get, ObjectKey, PAGE, Put, Store, TokenRange};

/// Number of objects that the process stores before the renewal of the namespace, and again after it.
const OBJECTS: u32 = 8;
const PLACES: u64 = 32;

/// Number of times that a process is killed on each back end.
fn kills() -> u64 {
    std::env::var("KVPOOL_STORE_KILLS").map_or(10, |kills| kills.parse().unwrap())
}

fn backend(kind: &str, path: &Path) -> Arc<dyn Backend> {
    match kind {
        "disk" => DiskBackend::open(&config(path, PLACES)).unwrap(),
        "folder" => FolderBackend::open(FolderConfig {
            folder: path.to_owned(),
            capacity_bytes: PLACES * 3 * PAGE as u64,
            max_payload: LEN,
            group: false,
        })
        .unwrap(),
        _ => RedisBackend::open(RedisConfig::new(Address::Unix(path.to_owned()), 1 << 20, LEN)).unwrap(),
    }
}

fn open(kind: &str, path: &Path, model: u8) -> (Store, Arc<Arena>) {
    let arena = Arena::new(OBJECTS, LEN).unwrap();
    (Store::open(backend(kind, path), arena.clone(), &namespace(model), always()).unwrap(), arena)
}

/// The payload of an object before or after a renewal.
fn bytes(n: u32, after: bool) -> Vec<u8> {
    payload(u64::from(n) + if after { 1000 } else { 0 }, LEN)
}

/// Returns the key of an object. Each round uses different keys, because a store does not write an
/// object that it already has.
fn name(round: u64, n: u32) -> ObjectKey {
    key(round * u64::from(OBJECTS) + u64::from(n))
}

fn store_all(store: &mut Store, arena: &Arc<Arena>, round: u64, after: bool) {
    let tokens = TokenRange { first: 0, count: 16 };
    let offers: Vec<_> = (0..OBJECTS)
        .map(|n| {
            arena.write(n).unwrap().copy_from_slice(&bytes(n, after));
            Put { key: name(round, n), tokens, len: LEN, slot: n, admit: None }
        })
        .collect();
    store.put(&offers, at(0)).unwrap();
    assert!(finish(store, at(0))[0].objects.iter().all(Result::is_ok));
}

/// Loads all objects. Returns the numbers of those with the bytes from before the renewal, and the
/// number of those with the bytes from after it.
fn found(kind: &str, path: &Path, model: u8, round: u64) -> (Vec<u32>, usize) {
    let (mut store, arena) = open(kind, path, model);
    store
        .get(&(0..OBJECTS).map(|n| Get { key: name(round, n), len: LEN, slot: n }).collect::<Vec<_>>(), at(0))
        .unwrap();
    let outcomes = finish(&mut store, at(0)).remove(0).objects;
    let (mut before, mut after) = (Vec::new(), 0);
    for n in (0..OBJECTS).filter(|&n| outcomes[n as usize].is_ok()) {
        let slot = arena.read(n).unwrap();
        if slot[..] == bytes(n, false) {
            before.push(n);
        } else {
            assert!(slot[..] == bytes(n, true), "bytes of nobody");
            after += 1;
        }
    }
    store.check_invariants().unwrap();
    store.close();
    (before, after)
}

/// The process that is killed. It stores objects, renews, and stores objects again.
#[test]
fn renewer() {
    let Ok(kind) = std::env::var("KVPOOL_STORE_RENEWS") else { return }; // not the other process
    let path = PathBuf::from(std::env::var("KVPOOL_STORE_PLACE").unwrap());
    let to: u8 = std::env::var("KVPOOL_STORE_RENEWED").unwrap().parse().unwrap();
    let round: u64 = std::env::var("KVPOOL_STORE_ROUND").unwrap().parse().unwrap();
    let (mut store, arena) = open(&kind, &path, 1);
    let mut told = std::io::stdout();
    store_all(&mut store, &arena, round, false);
    writeln!(told, "stored").unwrap();
    store.renew(&namespace(to), at(0)).unwrap();
    writeln!(told, "renewed").unwrap();
    store_all(&mut store, &arena, round, true);
    writeln!(told, "stored again").unwrap();
    std::io::stdin().read_line(&mut String::new()).unwrap(); // the other process kills this one
}

/// Kills a process at some moment around its renewal to `to`. Returns the number of lines that the
/// process has printed.
fn kill_around(kind: &str, path: &Path, to: u8, round: u64) -> usize {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["renewals::renewer", "--exact", "--nocapture"])
        .env("KVPOOL_STORE_RENEWS", kind)
        .env("KVPOOL_STORE_PLACE", path)
        .env("KVPOOL_STORE_RENEWED", to.to_string())
        .env("KVPOOL_STORE_ROUND", round.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let mut lines = lines.filter(|line| ["stored", "renewed", "stored again"].contains(&line.as_str()));
    let wanted = if round.is_multiple_of(4) { 3 } else { 1 + round as usize % 2 };
    let read = lines.by_ref().take(wanted).count();
    assert_eq!(read, wanted, "the process has ended");
    // Kill the process at an arbitrary moment, which depends on the machine and on the length of this
    // loop.
    (0..round * 7919 % 200_000).for_each(|n| _ = std::hint::black_box(n));
    child.kill().unwrap();
    child.wait().unwrap();
    read + lines.count()
}

fn kill_and_look(kind: &str, path: &Path) {
    let mut ends = [0; 4];
    for round in 0..kills() {
        // Renew to the same namespace in half of the rounds, and to another one in the others.
        let to = 1 + (round / 2 % 2) as u8;
        let lines = kill_around(kind, path, to, round);
        ends[lines] += 1;
        let (before, after) = found(kind, path, 1, round);
        if lines > 1 {
            assert!(before.is_empty(), "{kind}, round {round}, to {to}: {before:?} of before are found");
        }
        // If the process was killed before the renewal returned, the renewal may or may not be
        // recorded. In both cases, a store finds only objects from before it or only objects from after
        // it.
        assert!(
            before.is_empty() || after == 0,
            "{kind}, round {round}: {before:?} of before, {after} of after"
        );
        if lines == 3 {
            let stored = if to == 1 { after } else { found(kind, path, to, round).1 };
            assert_eq!(stored, OBJECTS as usize, "{kind}, round {round}: what is stored since is found");
        }
    }
    assert!(ends[1] + ends[2] > 0 && ends[3] > 0, "{kind}: killed after so many lines: {ends:?}");
}

#[test]
fn a_killed_process_serves_nothing_of_before_its_renewal_on_a_disk() {
    kill_and_look("disk", Folder::new().path());
}

#[test]
fn a_killed_process_serves_nothing_of_before_its_renewal_in_a_folder() {
    kill_and_look("folder", Folder::new().path());
}

#[test]
fn a_killed_process_serves_nothing_of_before_its_renewal_on_a_server() {
    let Some(server) = Server::start(&[]) else { return };
    kill_and_look("redis", &server.socket());
}
