//! What back ends move: objects, by place and by name, in whole pages.

use std::fmt;
use std::str::FromStr;

use kvpool::BlockHash;

use crate::namespace::NamespaceDigest;

/// Bytes of a page: what direct I/O is aligned to.
pub const PAGE: usize = 4096;

/// Bytes of the whole pages that `len` bytes take.
pub(crate) const fn pages(len: usize) -> usize {
    len.next_multiple_of(PAGE)
}

/// How many objects of at most `object_bytes` fit `capacity_bytes`: the places of a back end that is
/// bounded so.
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

/// What an object is found by: the digest of a whole prefix, and the KV-cache group whose bytes they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// The block's hash: all 32 bytes of it.
    pub hash: BlockHash,
    /// The KV-cache group; 0 where there is only one.
    pub group: u32,
}

/// What a back end finds an object by, where it has no place of it: whose it is, and its key. As text
/// `namespace/hash-group`, in hexadecimal but for the group.
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
