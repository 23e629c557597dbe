//! The types for objects: keys, names, places, and the whole pages in which back ends move their bytes.

use std::fmt;
use std::str::FromStr;

use kvpool::BlockHash;

use crate::namespace::NamespaceDigest;

/// Number of bytes in a page. Direct I/O requires this alignment.
pub const PAGE: usize = 4096;

/// Number of bytes in the whole pages that hold `len` bytes.
pub(crate) const fn pages(len: usize) -> usize {
    len.next_multiple_of(PAGE)
}

/// Returns how many objects of at most `object_bytes` fit into `capacity_bytes`. This is the number of
/// places of a bounded back end.
#[must_use]
pub fn places(capacity_bytes: u64, object_bytes: u64) -> Place {
    u32::try_from(capacity_bytes / object_bytes.max(1)).unwrap_or(u32::MAX - 1)
}

/// A page that contains a header, followed by zeros.
#[derive(Clone)]
#[repr(C, align(4096))]
pub struct Page(pub [u8; PAGE]);

impl Page {
    /// Allocates a page of zeros on the heap.
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

/// Number of a place. A place holds at most one object.
pub type Place = u32;

/// Identifies an object within a namespace: the digest of a whole prefix, and the KV-cache group of the
/// bytes.
///
/// ```
/// use kvpool_store::ObjectKey;
/// let key = ObjectKey { hash: [1; 32].into(), group: 0 };
/// assert_ne!(key, ObjectKey { group: 1, ..key });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// All 32 bytes of the block's hash.
    pub hash: BlockHash,
    /// Number of the KV-cache group; 0 if there is only one.
    pub group: u32,
}

/// Identifies an object in a back end that has no places: its namespace and its key. Its text is
/// `namespace/hash-group`, in hexadecimal except for the group.
///
/// ```
/// use kvpool_store::{NamespaceDigest, ObjectKey, ObjectName};
/// let key = ObjectKey { hash: [0xab; 32].into(), group: 1 };
/// let name = ObjectName { namespace: NamespaceDigest::from_bytes([7; 32]), key };
/// let text = name.to_string();
/// assert!(text.ends_with("abab-1"));
/// assert_eq!(text.parse(), Ok(name));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ObjectName {
    /// Digest of the namespace.
    pub namespace: NamespaceDigest,
    /// Key of the object within the namespace.
    pub key: ObjectKey,
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/", self.namespace)?;
        self.key.hash.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, "-{}", self.key.group)
    }
}

/// The error for text that is not the name of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the name of an object: a name has the form NAMESPACE/HASH-GROUP")]
pub struct ParseNameError;

/// Accepts only the exact text that `Display` writes, so that an object has exactly one name.
impl FromStr for ObjectName {
    type Err = ParseNameError;

    fn from_str(text: &str) -> Result<Self, ParseNameError> {
        let (namespace, rest) = text.split_once('/').ok_or(ParseNameError)?;
        let (hash, group) = rest.split_once('-').ok_or(ParseNameError)?;
        // The digest of a namespace and the hash of a block have the same text format: 32 bytes.
        let digest = |text: &str| text.parse::<NamespaceDigest>().map_err(|_| ParseNameError);
        let hash = BlockHash::from_bytes(*digest(hash)?.as_bytes());
        let key = ObjectKey { hash, group: group.parse().map_err(|_| ParseNameError)? };
        let name = Self { namespace: digest(namespace)?, key };
        if name.to_string() == text { Ok(name) } else { Err(ParseNameError) }
    }
}

/// The bytes of an object to write.
#[derive(Clone, Copy, Debug)]
pub struct Object<'a> {
    /// The page that contains the header, followed by zeros.
    pub header: &'a Page,
    /// The pages of the payload.
    pub pages: &'a [u8],
    /// Number of bytes of the payload.
    pub len: u32,
}

/// The memory into which an object is read.
#[derive(Debug)]
pub struct ObjectMut<'a> {
    /// The page of the header.
    pub header: &'a mut Page,
    /// The pages of the payload.
    pub pages: &'a mut [u8],
    /// Number of bytes of the payload.
    pub len: u32,
}
