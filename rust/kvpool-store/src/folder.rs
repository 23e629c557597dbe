//! A shared folder: one file per object, on NFS or any other file system that several machines share.
//!
//! - **File**: `NAMESPACE/AB/ABCD…-GROUP`. It contains a page with the header, followed by the payload.
//! - **Write**: the store writes a temporary file in the same folder and then renames it. Therefore no
//!   reader sees a part of a file. No write waits for the disk (`fsync`).
//! - **Bound**: it covers the objects that this store wrote, and those that existed when it was opened.
//!   The newest objects that fit are kept, and the others are removed.
//! - **Start**: lists names, sizes and times of the files of this namespace. Removes older generations
//!   of this namespace, and does not touch other namespaces.
//! - **Several engines**: an engine finds the objects of another engine with
//!   [`Store::probe`](crate::Store::probe). Each engine has its own bound.
//! - **A process that is killed during a write** leaves its temporary file. A store that opens the
//!   folder at least an hour later removes that file.
//!
//! For the local disk of one machine use [`disk`](crate::disk): it has one file, no names, direct I/O,
//! and a strict bound.

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use kvpool::BlockHash;

use crate::backend::Backend;
use crate::error::{BackendError, StoreError};
use crate::generation::{self, Generation};
use crate::header::{Header, TokenRange};
use crate::namespace::{Namespace, NamespaceDigest};
use crate::object::{Object, ObjectKey, ObjectMut, ObjectName, PAGE, Place, pages, places};
use crate::private::{self, Access, For};

/// Settings of a shared folder.
///
/// ```
/// use kvpool_store::folder::{FolderBackend, FolderConfig};
/// let folder = std::env::temp_dir().join(format!("kvpool-folder-doc-{}", std::process::id()));
/// let backend = FolderBackend::open(FolderConfig {
///     folder: folder.clone(),
///     capacity_bytes: 1 << 20,
///     max_payload: 64 << 10,
///     group: false,
/// })?;
/// # drop(backend);
/// # std::fs::remove_dir_all(folder).unwrap();
/// # Ok::<(), kvpool_store::StoreError>(())
/// ```
#[derive(Clone, Debug)]
pub struct FolderConfig {
    /// Path of the folder. It is created if it does not exist.
    pub folder: PathBuf,
    /// Largest number of bytes that the objects of this store take.
    pub capacity_bytes: u64,
    /// Largest number of bytes of a payload.
    pub max_payload: u32,
    /// Whether all users of the folder's group can read and write the files. If true, files have mode
    /// 0660 and folders have mode 2770. If false, files have mode 0600.
    pub group: bool,
}

/// A back end that stores objects in a shared folder.
#[derive(Debug)]
pub struct FolderBackend {
    config: FolderConfig,
    places: u32,
    /// Random number in the names of this process's temporary files. No other process uses this number.
    own: u64,
    written: AtomicU64,
}

/// Age from which a store removes a temporary file, because the process that wrote it was probably killed.
const ABANDONED: Duration = Duration::from_secs(60 * 60);
const TEMPORARY: &str = ".tmp";

impl FolderBackend {
    /// Opens a folder, or creates it.
    ///
    /// # Errors
    /// [`StoreError::InvalidConfig`]; [`StoreError::Backend`] if the folder cannot be created.
    pub fn open(config: FolderConfig) -> Result<Arc<Self>, StoreError> {
        let places = places(config.capacity_bytes, object_bytes(&config));
        let payload = u64::from(config.max_payload);
        for (field, value, sound, expected) in [
            ("max_payload", payload, payload > 0, "at least 1"),
            ("capacity_bytes", config.capacity_bytes, places > 0, "room for an object"),
        ] {
            if !sound {
                return Err(StoreError::InvalidConfig { field, value: value.to_string(), expected });
            }
        }
        private::make_folder(&config.folder, access(&config))
            .map_err(BackendError::io("making the folder"))?;
        generation::remove_abandoned(&config.folder, ABANDONED)
            .map_err(BackendError::io("reading the folder"))?;
        let own = RandomState::new().hash_one(std::process::id());
        Ok(Arc::new(Self { config, places, own, written: AtomicU64::new(0) }))
    }

    /// Returns the path of an object's file, and its parts.
    fn at(&self, name: &ObjectName) -> At {
        let text = name.to_string();
        let (namespace, file) = text.split_once('/').unwrap_or(("", &text));
        let path = self.config.folder.join(namespace).join(&file[..2]).join(file);
        At { namespace: namespace.to_owned(), file: file.to_owned(), path }
    }

    /// Opens the folder that contains an object's file. Does not follow links inside of the store's
    /// folder.
    fn folder_of(&self, at: &At, make: Option<Access>) -> io::Result<OwnedFd> {
        let root = private::open_folder(&self.config.folder)?;
        let part = at.path.parent().unwrap_or(&at.path);
        let namespace = private::folder_at(&root, &at.namespace, make, part.parent().unwrap_or(part))?;
        private::folder_at(&namespace, &at.file[..2], make, part)
    }

    /// Writes an object to a temporary file in its folder, and renames the file.
    fn put(&self, at: &At, object: &Object<'_>) -> io::Result<()> {
        let access = access(&self.config);
        let folder = self.folder_of(at, Some(access))?;
        let nth = self.written.fetch_add(1, Ordering::Relaxed);
        let fresh = format!("{:016x}-{nth}{TEMPORARY}", self.own);
        let mut file =
            private::open_at(&folder, &fresh, For::Making, access, &at.path.with_file_name(&fresh))?;
        let written = file
            .write_all(&object.header.0)
            .and_then(|()| file.write_all(&object.pages[..object.len as usize]))
            .and_then(|()| private::rename_at(&folder, &fresh, &at.file));
        written.inspect_err(|_| drop(private::remove_at(&folder, &fresh)))
    }

    /// Removes the objects and the texts of all other generations of this namespace.
    fn remove_older(&self, namespace: &Namespace) -> io::Result<()> {
        let (current, served) = (namespace.digest(), namespace.without_generation());
        for path in read_dir(&self.config.folder)? {
            let digest = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".json")?.parse().ok());
            let Some(digest) = digest.filter(|&digest: &NamespaceDigest| digest != current) else { continue };
            let Some(other) = private::read_text(&path).and_then(|text| Namespace::from_json(&text).ok())
            else {
                continue;
            };
            if other.digest() == digest && other.has_generation() && other.without_generation() == served {
                // Another engine may remove the same folder at the same time. The text is removed last.
                // If the process is killed before that, the next start still finds the text and
                // finishes the removal.
                match fs::remove_dir_all(self.config.folder.join(digest.to_string())) {
                    Err(error) if !is_absent(&error) => return Err(error),
                    _ => drop(fs::remove_file(path)),
                }
            }
        }
        Ok(())
    }

    /// Lists the objects' files of a namespace, oldest first, and the temporary files of killed
    /// processes.
    fn files(&self, namespace: NamespaceDigest) -> io::Result<(Vec<Found>, Vec<PathBuf>)> {
        let (mut found, mut abandoned) = (Vec::new(), Vec::new());
        let folder = self.config.folder.join(namespace.to_string());
        if fs::symlink_metadata(&folder).is_ok_and(|folder| folder.is_symlink()) {
            return Err(private::link(&folder));
        }
        for folder in read_dir(&folder)? {
            if !fs::symlink_metadata(&folder).is_ok_and(|folder| folder.is_dir()) {
                continue;
            }
            for path in read_dir(&folder)? {
                let Ok(file) = fs::symlink_metadata(&path) else { continue }; // removed meanwhile
                let modified = file.modified()?;
                if path.extension().is_some_and(|end| end == "tmp") {
                    let age = SystemTime::now().duration_since(modified).unwrap_or_default();
                    abandoned.extend((age > ABANDONED).then_some(path));
                } else if let Some(key) = path.file_name().and_then(|name| key_of(name.to_str()?)) {
                    let len = file.len().saturating_sub(PAGE as u64);
                    found.push(Found { modified, key, len: u32::try_from(len).unwrap_or(u32::MAX), path });
                }
            }
        }
        found.sort_by_key(|file| (file.modified, file.key));
        Ok((found, abandoned))
    }
}

/// The path of an object's file, the name of its folder, and the name of the file.
struct At {
    namespace: String,
    file: String,
    path: PathBuf,
}

const fn access(config: &FolderConfig) -> Access {
    if config.group { Access::Group } else { Access::Owner }
}

struct Found {
    modified: SystemTime,
    key: ObjectKey,
    len: u32,
    path: PathBuf,
}

const fn object_bytes(config: &FolderConfig) -> u64 {
    (PAGE + pages(config.max_payload as usize)) as u64
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Lists the entries of a folder. Returns an empty list if the folder does not exist.
fn read_dir(folder: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(folder) {
        Err(error) if is_absent(&error) => Ok(Vec::new()),
        entries => entries?.map(|entry| Ok(entry?.path())).collect(),
    }
}

fn key_of(name: &str) -> Option<ObjectKey> {
    let (hash, group) = name.split_once('-')?;
    let mut bytes = [0; 32];
    if hash.len() != 2 * bytes.len() || !hash.is_ascii() {
        return None;
    }
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&hash[2 * at..2 * at + 2], 16).ok()?;
    }
    let key = ObjectKey { hash: BlockHash::from_bytes(bytes), group: group.parse().ok()? };
    let namespace = NamespaceDigest::from_bytes([0; 32]);
    // Accept only the exact name that the store writes for a key, so that a key has only one file.
    ObjectName { namespace, key }.to_string().ends_with(&format!("/{name}")).then_some(key)
}

impl Backend for FolderBackend {
    fn name(&self) -> &'static str {
        "folder"
    }

    fn places(&self) -> u32 {
        self.places
    }

    fn object_bytes(&self) -> u64 {
        object_bytes(&self.config)
    }

    fn max_payload(&self) -> u32 {
        self.config.max_payload
    }

    fn is_shared(&self) -> bool {
        true
    }

    /// Reports a header for each file without reading it: the key comes from the file name, and the
    /// checksum is 0. This is safe because every load compares the header in the file.
    fn restore(
        &self,
        namespace: NamespaceDigest,
        found: &mut dyn FnMut(Place, &[u8]),
    ) -> Result<(), BackendError> {
        let (mut files, abandoned) = self.files(namespace).map_err(BackendError::io("reading the folder"))?;
        let beyond = files.len().saturating_sub(self.places as usize);
        let old = files.drain(..beyond).map(|file| file.path);
        for path in old.chain(abandoned) {
            drop(fs::remove_file(path)); // ignore errors: another process may have removed it
        }
        for (place, file) in (0..).zip(files) {
            let tokens = TokenRange::default();
            let header = Header { namespace, key: file.key, tokens, len: file.len, checksum: 0 };
            found(place, &header.encode());
        }
        Ok(())
    }

    fn generation(&self, of: NamespaceDigest) -> Result<Option<Generation>, BackendError> {
        generation::read_record(&self.config.folder, of)
    }

    fn record_generation(
        &self,
        of: NamespaceDigest,
        generation: Generation,
        replaces: bool,
    ) -> Result<(), BackendError> {
        generation::write_record(&self.config.folder, of, generation, replaces, access(&self.config))
    }

    /// Stores the text of the namespace. Also removes the objects of older generations of this
    /// namespace, because no store that is opened from now on can find them.
    fn describe(&self, namespace: &Namespace) -> Result<(), BackendError> {
        let path = self.config.folder.join(format!("{}.json", namespace.digest()));
        private::replace(&path, namespace.to_json().as_bytes(), access(&self.config))
            .map_err(BackendError::io("writing the text of the namespace"))?;
        self.remove_older(namespace).map_err(BackendError::io("removing an older generation"))
    }

    fn write(
        &self,
        _: Place,
        name: &ObjectName,
        replaces: &[ObjectName],
        object: Object<'_>,
    ) -> Result<(), BackendError> {
        self.clear(None, replaces)?;
        self.put(&self.at(name), &object).map_err(BackendError::io("writing an object"))
    }

    fn read(&self, _: Option<Place>, name: &ObjectName, into: ObjectMut<'_>) -> Result<(), BackendError> {
        let failed = BackendError::io("reading an object");
        let at = self.at(name);
        let opened = self.folder_of(&at, None).and_then(|folder| {
            private::open_at(&folder, &at.file, For::Reading, access(&self.config), &at.path)
        });
        let mut file = match opened {
            Err(error) if is_absent(&error) => return Err(BackendError::Absent),
            file => file.map_err(&failed)?,
        };
        let payload = &mut into.pages[..into.len as usize];
        match file.read_exact(&mut into.header.0).and_then(|()| file.read_exact(payload)) {
            // The file is too short. Return success, because the checksums detect the missing bytes.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
            read => read.map_err(failed),
        }
    }

    fn exist(&self, names: &[ObjectName]) -> Result<Vec<bool>, BackendError> {
        let there = names.iter().map(|name| match fs::symlink_metadata(self.at(name).path) {
            Err(error) if is_absent(&error) => Ok(false),
            file => file.map(|file| file.is_file()),
        });
        there.collect::<Result<_, _>>().map_err(BackendError::io("asking for objects"))
    }

    fn clear(&self, _: Option<Place>, names: &[ObjectName]) -> Result<(), BackendError> {
        for name in names {
            let at = self.at(name);
            let removed = self.folder_of(&at, None).and_then(|folder| private::remove_at(&folder, &at.file));
            match removed {
                Err(error) if !is_absent(&error) => {
                    return Err(BackendError::io("removing an object")(error));
                }
                _ => {}
            }
        }
        Ok(())
    }
}
