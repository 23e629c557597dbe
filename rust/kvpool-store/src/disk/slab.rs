//! `Slab`: one preallocated file of slots, which are read and written by position.
//!
//! Owns: the file, and the flags with which it was opened. A slot is the page of the header, followed
//! by the pages of the payload. The name of the file contains the size of a slot, so that a file is
//! never read with another size. The file has no other metadata that could be damaged.
//!
//! The slab uses direct I/O (which bypasses the kernel's page cache) if the file system accepts the
//! flag and the first read with it succeeds. Otherwise it uses ordinary I/O.

use std::fs::{self, File};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use rustix::fs::{FallocateFlags, OFlags, fallocate, fstatvfs};
use rustix::io::{Errno, preadv, pwritev};

use super::config::DiskConfig;
use super::copy::ENTRY;
use crate::error::{BackendError, StoreError};
use crate::object::{PAGE, Page, Place, pages, places};
use crate::private::{self, For};

#[derive(Debug)]
pub(super) struct Slab {
    file: File,
    slot_bytes: u64,
    places: u32,
    direct: bool,
    fresh: bool,
    shortage: Option<String>,
}

/// Number of bytes reserved for the other files in the folder: texts of namespaces, lock, and the first
/// page of the header copies.
const OTHER_FILES_BYTES: u64 = 64 << 10;

impl Slab {
    /// Opens or creates the file for `config`, with disk space for every slot. Removes files with other
    /// slot sizes.
    pub(super) fn open(config: &DiskConfig) -> Result<Self, StoreError> {
        let slot_bytes = (PAGE + pages(config.max_payload as usize)) as u64;
        if config.capacity_bytes < slot_bytes {
            return Err(StoreError::InvalidConfig {
                field: "capacity_bytes",
                value: config.capacity_bytes.to_string(),
                expected: "at least the bytes of one object: max_payload rounded up to 4 KiB, plus 4 KiB",
            });
        }
        let name = file_name(slot_bytes, "slab");
        remove_others(&config.folder, &[name.clone(), file_name(slot_bytes, "headers")])
            .map_err(BackendError::io("removing a slab of another slot size"))?;
        let path = config.folder.join(name);
        let opening = BackendError::io("opening the slab");
        let mut file = open(&path, false).map_err(&opening)?;
        let fresh = file.metadata().map_err(&opening)?.len() == 0;
        let (places, shortage) = allocate(&file, slot_bytes, config)?;
        let mut direct = false;
        if config.direct
            && let Ok(other) = open(&path, true)
            && other.read_exact_at(&mut Page::zeroed().0, 0).is_ok()
        {
            (file, direct) = (other, true);
        }
        Ok(Self { file, slot_bytes, places, direct, fresh, shortage })
    }

    /// Opens the slab in a folder to inspect it, without creating or resizing it. Returns `None` if the
    /// folder has no slab.
    pub(super) fn of(folder: &Path, writable: bool) -> Result<Option<Self>, BackendError> {
        let opening = BackendError::io("opening the slab");
        for entry in fs::read_dir(folder).map_err(BackendError::io("reading the folder"))? {
            let entry = entry.map_err(&opening)?;
            let Some(slot_bytes) = slot_bytes_of(&entry.file_name().to_string_lossy(), "slab") else {
                continue;
            };
            let what_for = if writable { For::Writing } else { For::Reading };
            let file = private::open(&entry.path(), what_for).map_err(&opening)?;
            let bytes = file.metadata().map_err(&opening)?.len();
            let places = u32::try_from(bytes / slot_bytes).unwrap_or(u32::MAX - 1);
            let (direct, fresh, shortage) = (false, false, None);
            return Ok(Some(Self { file, slot_bytes, places, direct, fresh, shortage }));
        }
        Ok(None)
    }

    pub(super) const fn places(&self) -> u32 {
        self.places
    }

    pub(super) const fn slot_bytes(&self) -> u64 {
        self.slot_bytes
    }

    pub(super) const fn is_direct(&self) -> bool {
        self.direct
    }

    /// Whether the file was empty when it was opened, which means that no slot was ever written.
    pub(super) const fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// Returns the reason why the slab has fewer slots than the capacity allows, or `None` if it has
    /// all of them.
    pub(super) fn shortage(&self) -> Option<&str> {
        self.shortage.as_deref()
    }

    /// Returns the file of the slab. Its inode identifies the slab.
    pub(super) const fn file(&self) -> &File {
        &self.file
    }

    pub(super) const fn begin(&self, place: Place) -> u64 {
        place as u64 * self.slot_bytes
    }

    pub(super) fn write_header(&self, place: Place, page: &Page) -> Result<(), BackendError> {
        self.file.write_all_at(&page.0, self.begin(place)).map_err(BackendError::io("writing a header"))
    }

    /// Writes a header and its payload in one system call.
    pub(super) fn write(&self, place: Place, header: &Page, payload: &[u8]) -> Result<(), BackendError> {
        let failed = BackendError::io("writing an object");
        let mut done = 0;
        while done < PAGE + payload.len() {
            let behind = &payload[done.saturating_sub(PAGE)..];
            let buffers = [IoSlice::new(&header.0[done.min(PAGE)..]), IoSlice::new(behind)];
            match pwritev(&self.file, &buffers, self.begin(place) + done as u64) {
                Ok(0) => return Err(failed(io::ErrorKind::WriteZero.into())),
                Ok(bytes) => done += bytes,
                Err(Errno::INTR) => {}
                Err(error) => return Err(failed(error.into())),
            }
        }
        Ok(())
    }

    pub(super) fn read_header(&self, place: Place, page: &mut Page) -> Result<(), BackendError> {
        self.read(place, page, &mut [])
    }

    /// Reads a header and its payload in one system call. If the file ends early, the remaining bytes
    /// are unchanged.
    pub(super) fn read(
        &self,
        place: Place,
        header: &mut Page,
        payload: &mut [u8],
    ) -> Result<(), BackendError> {
        let mut done = 0;
        while done < PAGE + payload.len() {
            let behind = &mut payload[done.saturating_sub(PAGE)..];
            let mut buffers = [IoSliceMut::new(&mut header.0[done.min(PAGE)..]), IoSliceMut::new(behind)];
            match preadv(&self.file, &mut buffers, self.begin(place) + done as u64) {
                Ok(0) => break,
                Ok(bytes) => done += bytes,
                Err(Errno::INTR) => {}
                Err(error) => return Err(BackendError::io("reading an object")(error.into())),
            }
        }
        Ok(())
    }
}

fn open(path: &Path, direct: bool) -> io::Result<File> {
    private::open_with(path, For::Keeping, if direct { OFlags::DIRECT } else { OFlags::empty() })
}

/// Returns the name of the file in which a store with this slot size keeps `kind`: the slab or the
/// header copies.
pub(super) fn file_name(slot_bytes: u64, kind: &str) -> String {
    format!("objects-{slot_bytes}.{kind}")
}

/// Parses the size of a slot from the name of a file of this kind.
fn slot_bytes_of(name: &str, kind: &str) -> Option<u64> {
    let bytes: u64 = name.strip_prefix("objects-")?.strip_suffix(kind)?.strip_suffix('.')?.parse().ok()?;
    (bytes > PAGE as u64 && bytes.is_multiple_of(PAGE as u64)).then_some(bytes)
}

fn remove_others(folder: &Path, own: &[String]) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let is_ours = ["slab", "headers"].iter().any(|kind| slot_bytes_of(&name, kind).is_some());
        if is_ours && !own.iter().any(|own| *own == name) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Allocates disk space for the slots that fit the capacity. Leaves `free_floor` bytes of the disk
/// free, and space for the header copies. Returns the number of slots, and the reason if there are
/// fewer slots than the capacity allows.
fn allocate(file: &File, slot_bytes: u64, config: &DiskConfig) -> Result<(u32, Option<String>), StoreError> {
    let asking = BackendError::io("asking for free space");
    let disk = fstatvfs(file).map_err(|error| asking(error.into()))?;
    let headers = fs::symlink_metadata(config.folder.join(file_name(slot_bytes, "headers")));
    let own = (file.metadata().map_err(&asking)?.blocks() + headers.map_or(0, |file| file.blocks())) * 512;
    let free = disk.f_bavail * disk.f_frsize + own;
    let room = free.saturating_sub(config.free_floor).saturating_sub(OTHER_FILES_BYTES);
    let wanted = places(config.capacity_bytes, slot_bytes);
    let taken = wanted.min(places(room, slot_bytes + ENTRY as u64));
    let bytes = u64::from(taken) * slot_bytes;
    let short = || StoreError::NoRoom {
        path: config.folder.clone(),
        wanted: config.capacity_bytes,
        free,
        floor: config.free_floor,
        object_bytes: slot_bytes,
        taken: bytes,
    };
    if taken == 0 {
        return Err(short());
    }
    let sizing = |error: io::Error| match BackendError::io("taking room for the slab")(error) {
        BackendError::Full => short(), // another process has taken the space
        error => error.into(),
    };
    match fallocate(file, FallocateFlags::empty(), 0, bytes) {
        // File systems without `fallocate` leave holes in the file, so that a later write may fail
        // because the disk is full.
        Ok(()) | Err(Errno::OPNOTSUPP) => file.set_len(bytes).map_err(sizing)?,
        Err(error) => return Err(sizing(error.into())),
    }
    Ok((taken, (taken < wanted).then(|| short().to_string())))
}
