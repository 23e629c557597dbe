//! `Backend`: where objects are kept. As little as possible: a back end moves bytes, and may fail, stall, forget or lie.
//!
//! Everything else is the [`Store`](crate::Store)'s, for all of them alike: checks, index, bound, eviction, admission, deadlines.
//!
//! A back end has *places*, numbered from 0. The store never has more than one object at a place, so `places * object_bytes` bounds
//! what it takes. A slab writes objects where their places are; a server of keys and values goes by their names alone, and deletes
//! what the store says a new object replaces. Others may write to a server, too: then it is asked for what this store does not know of.

use std::fmt;
use std::str::FromStr;

use kvpool::BlockHash;

use crate::error::BackendError;
use crate::header::ObjectKey;
use crate::namespace::{Namespace, NamespaceDigest};
use crate::transfer::Transfer;

/// Bytes of a page: what direct I/O is aligned to.
pub const PAGE: usize = 4096;

/// Bytes of the whole pages that `len` bytes take.
pub(crate) const fn pages(len: usize) -> usize {
    len.next_multiple_of(PAGE)
}

/// How many objects of at most `object_bytes` fit `capacity_bytes`: the places of a back end that is bounded so.
#[must_use]
pub fn places(capacity_bytes: u64, object_bytes: u64) -> Place {
    u32::try_from(capacity_bytes / object_bytes.max(1)).unwrap_or(u32::MAX - 1)
}

/// A page of its own: a header, and zeros behind it.
#[derive(Clone)]
#[repr(C, align(4096))]
pub struct Page(pub [u8; PAGE]);

impl Page {
    /// A page of zeros, on the heap.
    #[must_use]
    pub fn zeroed() -> Box<Self> {
        Box::new(Self([0; PAGE]))
    }
}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Page")
    }
}

/// Where an object is, by number.
pub type Place = u32;

/// What a back end finds an object by, where it has no place of it: whose it is, and its key. As text `namespace/hash-group`, in
/// hexadecimal but for the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ObjectName {
    /// Digest of the namespace.
    pub namespace: NamespaceDigest,
    /// The key in it.
    pub key: ObjectKey,
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/", self.namespace)?;
        self.key.hash.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, "-{}", self.key.group)
    }
}

/// Text that is no name of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no name of an object: it is NAMESPACE/HASH-GROUP")]
pub struct ParseNameError;

/// What its text says; exactly that text, so an object has one name.
impl FromStr for ObjectName {
    type Err = ParseNameError;

    fn from_str(text: &str) -> Result<Self, ParseNameError> {
        let (namespace, rest) = text.split_once('/').ok_or(ParseNameError)?;
        let (hash, group) = rest.split_once('-').ok_or(ParseNameError)?;
        // The digest of a namespace is written as a block's hash is: 32 bytes.
        let digest = |text: &str| text.parse::<NamespaceDigest>().map_err(|_| ParseNameError);
        let hash = BlockHash::from_bytes(*digest(hash)?.as_bytes());
        let key = ObjectKey { hash, group: group.parse().map_err(|_| ParseNameError)? };
        let name = Self { namespace: digest(namespace)?, key };
        if name.to_string() == text { Ok(name) } else { Err(ParseNameError) }
    }
}

/// A store of objects. Called by worker threads, several at once, never twice at once for one place; every call may block.
///
/// Payloads come as whole pages of page-aligned memory. What stands behind the first `len` bytes has no meaning and need not be kept.
pub trait Backend: fmt::Debug + Send + Sync {
    /// Its name, as users write it.
    fn name(&self) -> &'static str;

    /// How many objects it may hold. Always the same.
    fn places(&self) -> u32;

    /// Bytes that one object takes at most, with all that hangs on it.
    fn object_bytes(&self) -> u64;

    /// The longest payload.
    fn max_payload(&self) -> u32;

    /// Whether others write to it as well: then an object may be there that this store does not know of.
    fn is_shared(&self) -> bool {
        false
    }

    /// Tells of everything at its places that may be a header, in the order of the places: called once, before what follows. A shared
    /// back end may tell of nothing, or of what `namespace` has there.
    ///
    /// # Errors
    /// [`BackendError`] if it cannot be told what is there.
    fn restore(
        &self,
        namespace: NamespaceDigest,
        found: &mut dyn FnMut(Place, &[u8]),
    ) -> Result<(), BackendError>;

    /// Keeps the text of a namespace, for who looks at the objects from outside. Called once, at the start.
    ///
    /// # Errors
    /// [`BackendError`]: then objects have a digest alone. The store goes on.
    fn describe(&self, _namespace: &Namespace) -> Result<(), BackendError> {
        Ok(())
    }

    /// Writes an object to `place`, where those that are named `replaces` may be, which MUST be gone before it is there. If the process
    /// ends in the middle, what is at the place MUST NOT be a header with another payload, short of what checksums find.
    ///
    /// # Errors
    /// [`BackendError`]. Then anything may be at the place; the store clears it.
    fn write(
        &self,
        place: Place,
        name: &ObjectName,
        replaces: &[ObjectName],
        object: Object<'_>,
    ) -> Result<(), BackendError>;

    /// A way for one worker to have several transfers on their way at once. Without one it has one call after the other.
    fn lane(&self) -> Option<Box<dyn Lane + '_>> {
        None
    }

    /// Reads what is at `place`, or has the name where no place is known, into `header` and the pages of a payload of `len` bytes. It
    /// need not check anything.
    ///
    /// # Errors
    /// [`BackendError`]; [`BackendError::Absent`] if it knows that there is no such object.
    fn read(&self, place: Option<Place>, name: &ObjectName, into: ObjectMut<'_>) -> Result<(), BackendError>;

    /// Which objects are there. Asked of shared back ends alone.
    ///
    /// # Errors
    /// [`BackendError`].
    fn exist(&self, names: &[ObjectName]) -> Result<Vec<bool>, BackendError> {
        Ok(vec![false; names.len()])
    }

    /// Makes sure that no object is at `place`, where those of `names` may be: not after a restart either. Without a place those of the
    /// names go, wherever they are.
    ///
    /// # Errors
    /// [`BackendError`]: they may be there still. The store tries again where it knows the place.
    fn clear(&self, place: Option<Place>, names: &[ObjectName]) -> Result<(), BackendError>;
}

/// Several transfers of one worker at once. It does for each what [`Backend::read`] or [`Backend::write`] does.
///
/// Dropping it waits for what is on its way: until then memory of transfers is not let go.
pub trait Lane: fmt::Debug {
    /// How many may be on their way.
    fn room(&self) -> usize;

    /// Begins one. What cannot be begun has ended at once.
    fn start(&mut self, transfer: Transfer);

    /// Waits for one to end. `None` if that cannot be had any more: the lane is of no use, and what it has stays taken.
    fn next(&mut self) -> Option<(Transfer, Result<(), BackendError>)>;
}

/// An object's bytes.
#[derive(Clone, Copy, Debug)]
pub struct Object<'a> {
    /// The header, and zeros.
    pub header: &'a Page,
    /// The payload's pages.
    pub pages: &'a [u8],
    /// Bytes of the payload.
    pub len: u32,
}

/// Where an object's bytes go.
#[derive(Debug)]
pub struct ObjectMut<'a> {
    /// The header's page.
    pub header: &'a mut Page,
    /// The payload's pages.
    pub pages: &'a mut [u8],
    /// Bytes of the payload.
    pub len: u32,
}
