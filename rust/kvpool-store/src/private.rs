//! Opens and creates files and folders that only their owner can access.
//!
//! A new file has mode 0600 and a new folder has mode 0700, unless a group shares them. Opening a file
//! never follows a link. The file must be a regular file of this user or of the owner of its folder;
//! other files are refused. The owner of a folder is trusted, because that user can replace any file in
//! it. The path of a folder may contain links.

use std::fs::{self, DirBuilder, File};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, fchmod, fcntl_getfl, fcntl_setfl, fstat, mkdirat};
use rustix::fs::{openat, renameat, statat, unlinkat};
use rustix::io::Errno;
use rustix::process::geteuid;

/// Largest number of bytes that are read of a namespace's text.
const LONGEST_TEXT: u64 = 1 << 20;

/// The purpose for which a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum For {
    /// Opens an existing file for reading.
    Reading,
    /// Opens an existing file for reading and writing.
    Writing,
    /// Opens a file for reading and writing, and creates it if it does not exist.
    Keeping,
    /// Creates a new file for writing. If the file exists, opening fails.
    Making,
}

/// The users who have access to new files and folders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Only this user.
    Owner,
    /// This user and the group of the file have access. The umask has no effect.
    Group,
}

impl Access {
    const fn file(self) -> Mode {
        if matches!(self, Self::Group) { Mode::from_raw_mode(0o660) } else { Mode::from_raw_mode(0o600) }
    }

    const fn folder(self) -> Mode {
        if matches!(self, Self::Group) { Mode::from_raw_mode(0o2770) } else { Mode::from_raw_mode(0o700) }
    }

    /// Sets the mode of a new file that a group shares, because the umask may have removed the bits of
    /// the group.
    pub(crate) fn settle(self, made: impl AsFd) -> io::Result<()> {
        if self == Self::Group { Ok(fchmod(made, self.file())?) } else { Ok(()) }
    }

    fn settle_folder(self, made: impl AsFd) -> io::Result<()> {
        if self == Self::Group { Ok(fchmod(made, self.folder())?) } else { Ok(()) }
    }
}

fn refused(path: &Path, why: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, format!("{} {why}", path.display()))
}

/// Returns the error for a link where a file or folder is expected.
pub(crate) fn link(path: &Path) -> io::Error {
    refused(path, "is a symbolic link: kvpool follows none. Remove the link")
}

/// Opens a file by its path.
///
/// # Errors
/// [`io::ErrorKind::PermissionDenied`], with the path, for a link, for anything that is not a regular
/// file, and for a file of another user. Other errors of the system.
pub(crate) fn open(path: &Path, what_for: For) -> io::Result<File> {
    open_with(path, what_for, OFlags::empty())
}

/// Like [`open`], with additional flags of the system call.
pub(crate) fn open_with(path: &Path, what_for: For, more: OFlags) -> io::Result<File> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    open_in(CWD, path, what_for, more, Access::Owner, || Ok(fs::metadata(folder)?.uid()), path)
}

/// Opens a file inside an open folder. `path` is only used in errors.
///
/// # Errors
/// Like [`open`].
pub(crate) fn open_at(
    folder: &OwnedFd,
    name: &str,
    what_for: For,
    access: Access,
    path: &Path,
) -> io::Result<File> {
    let owner = || Ok(fstat(folder)?.st_uid);
    open_in(folder, Path::new(name), what_for, OFlags::empty(), access, owner, path)
}

fn open_in(
    folder: impl AsFd,
    name: &Path,
    what_for: For,
    more: OFlags,
    access: Access,
    owner_of_folder: impl FnOnce() -> io::Result<u32>,
    path: &Path,
) -> io::Result<File> {
    let how = match what_for {
        For::Reading => OFlags::RDONLY,
        For::Writing => OFlags::RDWR,
        For::Keeping => OFlags::RDWR | OFlags::CREATE,
        For::Making => OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL,
    };
    // Open without blocking. Otherwise opening a pipe would wait for a process at its other end.
    let flags = how | more | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = openat(folder, name, flags, access.file()).map_err(|error| match error {
        Errno::LOOP => link(path),
        Errno::NXIO => refused(path, "is no regular file"),
        error => error.into(),
    })?;
    let about = fstat(&file)?;
    if FileType::from_raw_mode(about.st_mode) != FileType::RegularFile {
        return Err(refused(path, "is no regular file"));
    }
    let user = geteuid().as_raw();
    if access == Access::Owner && !is_trusted(about.st_uid, user, owner_of_folder)? {
        let why = format!("belongs to user {}, but this process runs as user {user}", about.st_uid);
        return Err(refused(path, why));
    }
    // Clear the flag again. Otherwise `io_uring` would not wait for this file either.
    fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    if what_for == For::Making {
        access.settle(&file)?;
    }
    Ok(file.into())
}

/// Returns whether `owner` (the owner of a file) is this user or the owner of the file's folder.
fn is_trusted(owner: u32, user: u32, owner_of_folder: impl FnOnce() -> io::Result<u32>) -> io::Result<bool> {
    Ok(owner == user || owner == owner_of_folder()?)
}

/// Creates a folder and its missing parents.
pub(crate) fn make_folder(path: &Path, access: Access) -> io::Result<()> {
    let there = path.is_dir();
    DirBuilder::new().recursive(true).mode(access.folder().as_raw_mode()).create(path)?;
    if !there {
        access.settle_folder(File::open(path)?)?;
    }
    Ok(())
}

/// Opens a folder by its path. The path may contain links, because it comes from the configuration of
/// the store.
pub(crate) fn open_folder(path: &Path) -> io::Result<OwnedFd> {
    Ok(openat(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Opens a folder inside an open folder. With `make`, creates the folder if it does not exist. Errors
/// name `path`.
///
/// # Errors
/// Like [`open`], if the folder is a link; [`io::ErrorKind::NotFound`],
/// [`io::ErrorKind::NotADirectory`].
pub(crate) fn folder_at(
    folder: &OwnedFd,
    name: &str,
    make: Option<Access>,
    path: &Path,
) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match (openat(folder, name, flags, Mode::empty()), make) {
        (Err(Errno::NOENT), Some(access)) => {
            let made = match mkdirat(folder, name, access.folder()) {
                Err(Errno::EXIST) => false, // another process has created it
                made => made.map(|()| true)?,
            };
            let opened = openat(folder, name, flags, Mode::empty())?;
            if made {
                access.settle_folder(&opened)?;
            }
            Ok(opened)
        }
        (Err(error @ (Errno::LOOP | Errno::NOTDIR)), _) => {
            let about = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
            let is_link = FileType::from_raw_mode(about.st_mode) == FileType::Symlink;
            Err(if is_link { link(path) } else { error.into() })
        }
        (opened, _) => Ok(opened?),
    }
}

pub(crate) fn remove_at(folder: &OwnedFd, name: &str) -> io::Result<()> {
    Ok(unlinkat(folder, name, AtFlags::empty())?)
}

pub(crate) fn rename_at(folder: &OwnedFd, from: &str, to: &str) -> io::Result<()> {
    Ok(renameat(folder, from, folder, to)?)
}

/// Reads at most `most` bytes of a file.
///
/// # Errors
/// Like [`open`].
pub(crate) fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path, For::Reading)?.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads the text of a namespace. Returns `None` if it is missing or unreadable.
pub(crate) fn read_text(path: &Path) -> Option<String> {
    String::from_utf8(read(path, LONGEST_TEXT).ok()?).ok()
}

/// Creates a temporary file, which the caller renames later. Removes an older file of the same name.
///
/// # Errors
/// Like [`open`].
pub(crate) fn make_anew(path: &Path) -> io::Result<File> {
    match open(path, For::Making) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            fs::remove_file(path)?;
            open(path, For::Making)
        }
        made => made,
    }
}

/// Replaces a small file. If the path is a link, replaces the link and not its target.
pub(crate) fn replace(path: &Path, bytes: &[u8], access: Access) -> io::Result<()> {
    // No other process or thread uses this name, because the keys come from the system's random
    // numbers.
    let nonce = RandomState::new().hash_one(std::process::id());
    let fresh = path.with_extension(format!("{nonce:016x}.tmp"));
    let written = open(&fresh, For::Making).and_then(|mut file| {
        access.settle(&file)?;
        file.write_all(bytes)?;
        fs::rename(&fresh, path)
    });
    written.inspect_err(|_| drop(fs::remove_file(&fresh)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_another_user_is_refused_unless_that_user_owns_the_folder() {
        for (owner, user, of_folder, expected) in
            [(7, 7, 8, true), (7, 8, 8, false), (7, 8, 7, true), (0, 8, 8, false), (8, 0, 0, false)]
        {
            assert_eq!(
                is_trusted(owner, user, || Ok(of_folder)).unwrap(),
                expected,
                "{owner} {user} {of_folder}"
            );
        }
    }
}
