//! Tests which users can read the files of stores, snapshots and slots, and that no link inside of a
//! folder is followed.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test stops at the first error")]

mod common;

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread;

use common::folder::Folder;
use common::{AGES, LEN, always, at, get, key, namespace, put};
use kvpool_store::disk::{DiskBackend, DiskConfig};
use kvpool_store::folder::{FolderBackend, FolderConfig};
use kvpool_store::warm::{Cold, PoolImage, SlotHeaders, load, save};
use kvpool_store::{Arena, Backend, ObjectName, Store, StoreError, Why};

const PRECIOUS: &str = "precious";

fn disk(folder: &Path) -> Result<Arc<dyn Backend>, StoreError> {
    let config = DiskConfig { free_floor: 0, io_uring: false, ..DiskConfig::new(folder, 1 << 20, LEN) };
    Ok(DiskBackend::open(&config)?)
}

fn shared(folder: &Path, group: bool) -> Result<Arc<dyn Backend>, StoreError> {
    let config = FolderConfig { folder: folder.to_owned(), capacity_bytes: 1 << 20, max_payload: LEN, group };
    Ok(FolderBackend::open(config)?)
}

fn store(backend: Arc<dyn Backend>) -> (Store, Arc<Arena>) {
    let arena = Arena::new(2, LEN).unwrap();
    (Store::open(backend, arena.clone(), &namespace(1), always()).unwrap(), arena)
}

/// Returns the path and the mode of each file and folder inside of a folder.
fn modes(folder: &Path) -> Vec<(PathBuf, bool, u32)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let about = fs::symlink_metadata(&path).unwrap();
        found.push((path.clone(), about.is_dir(), about.permissions().mode() & 0o7777));
        if about.is_dir() {
            found.extend(modes(&path));
        }
    }
    found
}

/// Checks the modes of all files. The test changes the umask of the process, so no other test may check
/// modes.
#[test]
fn files_are_their_owners_alone_or_the_groups_whatever_the_umask() {
    let folder = Folder::new();
    for (umask, group, files, folders) in [(0, false, 0o600, 0o700), (0o077, true, 0o660, 0o2770)] {
        let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(umask));
        let inside = folder.path().join(umask.to_string());
        let mut places = vec![inside.join("shared")];
        let (mut kept, arena) = store(shared(&places[0], group).unwrap());
        put(&mut kept, &arena, 1, at(0)).unwrap();
        if !group {
            places.push(inside.join("disk"));
            let (mut kept, arena) = store(disk(&places[1]).unwrap());
            put(&mut kept, &arena, 1, at(0)).unwrap();
            save(&places[1].join("index"), &PoolImage::default(), namespace(1).digest(), 0).unwrap();
            SlotHeaders::open(&places[1].join("slots"), namespace(1).digest(), 4).unwrap();
        }
        rustix::process::umask(before);
        for place in places {
            let found = modes(&place);
            assert!(found.len() >= 4, "{found:?}");
            assert_eq!(fs::metadata(&place).unwrap().permissions().mode() & 0o7777, folders);
            for (path, is_folder, mode) in found {
                assert_eq!(mode, if is_folder { folders } else { files }, "{}", path.display());
            }
        }
    }
}

/// Replaces a file with a link to `victim`, whose content the test can check afterwards.
fn lead_away(path: &Path, victim: &Path) {
    drop(fs::remove_file(path));
    fs::write(victim, PRECIOUS).unwrap();
    symlink(victim, path).unwrap();
}

#[test]
fn a_symbolic_link_is_refused_and_its_target_does_not_change() {
    let folder = Folder::new();
    let (inside, victim) = (folder.path().join("disk"), folder.path().join("victim"));
    store(disk(&inside).unwrap()).0.close();
    let files: Vec<_> = modes(&inside).into_iter().map(|(path, ..)| path).collect();
    assert!(files.len() >= 5, "{files:?}");
    for path in &files {
        let is_text = path.extension().is_some_and(|end| end == "json");
        let before = fs::read(path).unwrap();
        lead_away(path, &victim);
        let opened = disk(&inside)
            .and_then(|backend| Store::open(backend, Arena::new(2, LEN).unwrap(), &namespace(1), always()));
        match opened {
            // The store replaces the link with a new file that contains the text of the namespace.
            Ok(store) => {
                store.close();
                assert!(is_text && !path.is_symlink(), "{}", path.display());
            }
            Err(error) => {
                let expected = format!("{} is a symbolic link", path.display());
                assert!(!is_text && error.to_string().contains(&expected), "{error}");
            }
        }
        assert_eq!(fs::read_to_string(&victim).unwrap(), PRECIOUS, "{}", path.display());
        fs::remove_file(path).unwrap();
        fs::write(path, before).unwrap();
    }
    store(disk(&inside).unwrap()).0.close();
}

#[test]
fn links_in_a_shared_folder_are_followed_nowhere() {
    let folder = Folder::new();
    let (inside, victim) = (folder.path().join("shared"), folder.path().join("victim"));
    let (mut kept, arena) = store(shared(&inside, false).unwrap());
    put(&mut kept, &arena, 1, at(0)).unwrap();
    let name = ObjectName { namespace: kept.namespace().digest(), key: key(1) }.to_string();
    let (of, file) = name.split_once('/').unwrap();
    let path = inside.join(of).join(&file[..2]).join(file);
    let whole = fs::read(&path).unwrap();
    // The file of an object is a link. The store does not read through it, even if the link leads to a
    // copy of the object.
    lead_away(&path, &victim);
    fs::write(&victim, &whole).unwrap();
    assert_eq!(get(&mut kept, &arena, 1, at(1)), Err(Why::Failed));
    assert!(kept.stats().last_error.unwrap().contains(&format!("{} is a symbolic link", path.display())));
    assert_eq!(fs::read(&victim).unwrap(), whole);
    fs::remove_file(&path).unwrap();
    // A folder of objects is a link. The store writes nothing through it.
    let elsewhere = folder.path().join("elsewhere");
    fs::create_dir_all(&elsewhere).unwrap();
    let part = ObjectName { namespace: kept.namespace().digest(), key: key(2) }.to_string();
    let part = inside.join(&part[..of.len() + 3]);
    for (n, link) in [(2, part), (3, inside.join(of))] {
        drop(fs::remove_dir_all(&link));
        symlink(&elsewhere, &link).unwrap();
        assert_eq!(put(&mut kept, &arena, n, at(60 * n)), Err(Why::Failed));
        let error = kept.stats().last_error.unwrap();
        assert!(error.contains(&format!("{} is a symbolic link", link.display())), "{error}");
        assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
    }
    // When a store opens, it does not list the objects of a namespace through a link.
    let opened =
        Store::open(shared(&inside, false).unwrap(), Arena::new(2, LEN).unwrap(), &namespace(1), always());
    assert!(opened.unwrap_err().to_string().contains("is a symbolic link"));
    fs::remove_file(inside.join(of)).unwrap();
    put(&mut kept, &arena, 4, at(300)).unwrap();
}

#[test]
fn snapshots_and_slots_neither_follow_links_nor_read_what_a_link_names() {
    let folder = Folder::new();
    let (path, victim) = (folder.path().join("index"), folder.path().join("victim"));
    let (of, image) = (namespace(1).digest(), PoolImage { block_size: 4, ..PoolImage::default() });
    // `save` writes a new file and renames it, so it follows no link at either of these two paths.
    for link in [folder.path().join("index.new"), path.clone()] {
        lead_away(&link, &victim);
        save(&path, &image, of, 7).unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), PRECIOUS);
        assert_eq!(load(&path, of).unwrap().image, image);
    }
    fs::rename(&path, &victim).unwrap();
    symlink(&victim, &path).unwrap();
    assert!(matches!(load(&path, of),
            Err(Cold::Unreadable(error)) if error.to_string().contains("is a symbolic link")));
    let slots = folder.path().join("slots");
    lead_away(&slots, &victim);
    let error = SlotHeaders::open(&slots, of, 4).unwrap_err();
    assert!(error.to_string().contains(&format!("{} is a symbolic link", slots.display())), "{error}");
    assert_eq!(fs::read_to_string(&victim).unwrap(), PRECIOUS);
}

/// Opening a pipe normally waits until another process opens its other end.
#[test]
fn a_pipe_instead_of_a_file_does_not_block() {
    let folder = Folder::new();
    let inside = folder.path().join("shared");
    let (mut kept, arena) = store(shared(&inside, false).unwrap());
    put(&mut kept, &arena, 1, at(0)).unwrap();
    let object =
        modes(&inside).into_iter().map(|(path, ..)| path).find(|path| path.to_string_lossy().ends_with("-0"));
    let pipes = [object.unwrap(), folder.path().join("index"), folder.path().join("slots")];
    for pipe in &pipes {
        drop(fs::remove_file(pipe));
        rustix::fs::mknodat(rustix::fs::CWD, pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    }
    let (send, done) = mpsc::channel();
    thread::spawn(move || {
        let found = get(&mut kept, &arena, 1, at(1));
        let error = kept.stats().last_error.unwrap();
        let cold = load(&pipes[1], namespace(1).digest()).unwrap_err();
        let slots = SlotHeaders::open(&pipes[2], namespace(1).digest(), 4).unwrap_err();
        send.send((found, error, cold.to_string(), slots)).unwrap();
    });
    let (found, error, cold, slots) = done.recv_timeout(AGES).unwrap();
    assert_eq!(found, Err(Why::Failed));
    for text in [error, cold, slots.to_string()] {
        assert!(text.contains("is no regular file"), "{text}");
    }
    assert_eq!(slots.kind(), ErrorKind::PermissionDenied);
}
