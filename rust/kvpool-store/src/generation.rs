//! `Generation`: identifies the valid contents of a namespace. A new generation is a cold start.
//!
//! Owns: the record that a back end keeps for each namespace, which is one random value. Objects
//! contain the digest of the namespace combined with that value ([`Namespace::of_generation`]).
//! Replacing the record therefore invalidates all earlier objects at once, on every back end. This
//! includes objects that other engines are still writing.
//!
//! A lost or damaged record is replaced by a new one, which is also a cold start. The value is random
//! and not a counter, so processes need not agree on the next one.

use std::fmt;
use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::path::Path;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use crate::error::BackendError;
use crate::namespace::{Namespace, NamespaceDigest, ParseDigestError};
use crate::private::{self, Access, For};

/// A random value that identifies the valid contents of a namespace. Every renewal draws a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generation([u8; 16]);

impl Generation {
    /// Number of characters in the text of a generation.
    pub const TEXT_BYTES: usize = 32;

    /// Draws a new random value of 128 bits.
    #[must_use]
    pub fn fresh() -> Self {
        let seed = (std::process::id(), SystemTime::now());
        let mut bytes = [0; 16];
        // The keys of each `RandomState` come from the system's random numbers.
        for half in bytes.chunks_exact_mut(8) {
            half.copy_from_slice(&RandomState::new().hash_one(seed).to_le_bytes());
        }
        Self(bytes)
    }

    /// Parses a record. Returns `None` if the record is damaged.
    #[must_use]
    pub fn of_record(record: &[u8]) -> Option<Self> {
        std::str::from_utf8(record).ok()?.parse().ok()
    }
}

/// Writes the 32 hexadecimal digits that a record contains.
impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Generation {
    type Err = ParseDigestError;

    fn from_str(text: &str) -> Result<Self, ParseDigestError> {
        // Parse the text twice in a row as a namespace digest, because that parser accepts 64
        // hexadecimal digits.
        let digest: NamespaceDigest = format!("{text}{text}").parse()?;
        let (bytes, _) =
            digest.as_bytes().split_first_chunk().ok_or(ParseDigestError { text: text.into() })?;
        Ok(Self(*bytes))
    }
}

/// Key of the generation in [`Namespace::extra`].
const GENERATION: &str = "kvpool generation";

impl Namespace {
    /// Returns this namespace with the generation in [`Self::extra`]. Objects contain the digest of the
    /// result.
    #[must_use]
    pub fn of_generation(&self, generation: Generation) -> Self {
        let mut namespace = self.clone();
        namespace.extra.insert(GENERATION.into(), generation.to_string());
        namespace
    }

    /// Returns this namespace without its generation. This is the inverse of [`Self::of_generation`].
    #[must_use]
    pub fn without_generation(&self) -> Self {
        let mut namespace = self.clone();
        namespace.extra.remove(GENERATION);
        namespace
    }

    /// Whether the namespace has a generation. The caller of a store passes a namespace without a
    /// generation. The store adds the generation before it passes the namespace to the back end.
    #[must_use]
    pub fn has_generation(&self) -> bool {
        self.extra.contains_key(GENERATION)
    }
}

/// Reads the record of a namespace from a folder.
///
/// # Errors
/// [`BackendError`] if the record exists but cannot be read.
pub(crate) fn read_record(folder: &Path, of: NamespaceDigest) -> Result<Option<Generation>, BackendError> {
    match private::read(&record_path(folder, of), 2 * Generation::TEXT_BYTES as u64) {
        Ok(record) => Ok(Generation::of_record(&record)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(BackendError::io("reading the generation of a namespace")(error)),
    }
}

/// Writes the record of a namespace into a folder, and waits until it is on the disk. If `replaces` is
/// false, an existing record remains.
///
/// # Errors
/// [`BackendError`] if the record cannot be written. The folder then has the old record or the new one.
pub(crate) fn write_record(
    folder: &Path,
    of: NamespaceDigest,
    generation: Generation,
    replaces: bool,
    access: Access,
) -> Result<(), BackendError> {
    let path = record_path(folder, of);
    // The random value in this name ensures that no other process or thread uses the name.
    let fresh = folder.join(format!("{of}.{}.tmp", Generation::fresh()));
    let written = private::open(&fresh, For::Making).and_then(|mut file| {
        access.settle(&file)?;
        file.write_all(generation.to_string().as_bytes())?;
        file.sync_all()?;
        if replaces {
            return fs::rename(&fresh, &path);
        }
        match fs::hard_link(&fresh, &path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            // The file system has no hard links, which are the only way to keep an existing record. If
            // several processes create the record at once, the record that is written last is valid.
            Err(_) if !path.exists() => fs::rename(&fresh, &path),
            linked => linked,
        }
    });
    drop(fs::remove_file(&fresh)); // fails if the file was renamed
    written
        .and_then(|()| File::open(folder)?.sync_all())
        .map_err(BackendError::io("writing the generation of a namespace"))
}

/// Removes temporary files of at least this age. A process that is killed while it writes a record
/// leaves such a file.
pub(crate) fn remove_abandoned(folder: &Path, age: Duration) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let old = |modified: SystemTime| modified.elapsed().is_ok_and(|elapsed| elapsed >= age);
        if path.extension().is_some_and(|end| end == "tmp")
            && fs::symlink_metadata(&path).and_then(|file| file.modified()).is_ok_and(old)
        {
            drop(fs::remove_file(path)); // ignore errors: another process may have removed it
        }
    }
    Ok(())
}

fn record_path(folder: &Path, of: NamespaceDigest) -> std::path::PathBuf {
    folder.join(format!("{of}.generation"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_whole_or_not_at_all() {
        let one = Generation::fresh();
        assert_ne!(one, Generation::fresh());
        assert_eq!(Generation::of_record(one.to_string().as_bytes()), Some(one));
        for end in 0..Generation::TEXT_BYTES {
            assert_eq!(Generation::of_record(&one.to_string().as_bytes()[..end]), None);
        }
        assert_eq!(Generation::of_record(&[b'g'; Generation::TEXT_BYTES]), None);
        assert_eq!(Generation::of_record(&[0; Generation::TEXT_BYTES]), None);
    }

    #[test]
    fn an_existing_record_stays_unless_replaced() {
        let folder = std::env::temp_dir().join(format!("kvpool-generation-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (of, one, other) =
            (NamespaceDigest::from_bytes([7; 32]), Generation::fresh(), Generation::fresh());
        assert_eq!(read_record(&folder, of).unwrap(), None);
        for (generation, replaces, expected) in [(one, false, one), (other, false, one), (other, true, other)]
        {
            write_record(&folder, of, generation, replaces, Access::Owner).unwrap();
            assert_eq!(read_record(&folder, of).unwrap(), Some(expected));
        }
        fs::write(folder.join("left.tmp"), "by a process that was killed").unwrap();
        for (age, left) in [(Duration::from_secs(3600), 2), (Duration::ZERO, 1)] {
            remove_abandoned(&folder, age).unwrap();
            assert_eq!(fs::read_dir(&folder).unwrap().count(), left);
        }
        fs::remove_dir_all(folder).unwrap();
    }
}
