//! `Inspector`: lists, verifies and removes the objects of a server, for people and tools, while
//! engines use the server.
//!
//! The inspector lists keys in pages. Each page needs one round trip for its keys and one for the
//! headers of its objects. If the server adds or evicts a key meanwhile, the listing may omit this key.
//! A key may be listed twice while the server's hash table grows or shrinks. The inspector removes only
//! the objects that the caller names.

use std::io;

use super::resp::{Fault, Reply, command};
use super::{Connection, RedisBackend, RedisConfig, done};
use crate::error::{BackendError, StoreError};
use crate::header::{HEADER_BYTES, Header, Mismatch};
use crate::namespace::{Namespace, NamespaceDigest};
use crate::object::ObjectName;

/// Approximate number of keys per page.
const PAGE_KEYS: &[u8] = b"512";
/// Largest number of bytes that the inspector reads of a key or of a namespace's text.
const TEXT: usize = 1 << 20;
/// Largest number of bytes in a page of keys. `PAGE_MOST` is the largest number of keys in it. An
/// ordinary page has less than a hundredth of either.
const PAGE_BYTES: u64 = 16 << 20;
const PAGE_MOST: usize = 1 << 16;

/// A server whose objects are inspected.
#[derive(Debug)]
pub struct Inspector(std::sync::Arc<RedisBackend>);

/// An object on the server.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Name of the object on the server.
    pub name: ObjectName,
    /// The header, or the reason why no engine would accept the object.
    pub header: Result<Header, Mismatch>,
}

/// One page of the listing of the server's keys.
#[derive(Clone, Debug, Default)]
pub struct Scanned {
    /// Cursor of the next page; 0 after the last page.
    pub next: u64,
    /// The objects of the page, including those that no engine would accept.
    pub objects: Vec<Seen>,
    /// The namespaces whose text is in this page. The value is `None` if the text is damaged.
    pub namespaces: Vec<(NamespaceDigest, Option<Namespace>)>,
    /// Number of keys of other applications in this page.
    pub others: u64,
}

impl Inspector {
    /// Connects to a server. Ignores the settings `capacity_bytes` and `max_payload`.
    ///
    /// # Errors
    /// Like [`RedisBackend::open`].
    pub fn open(config: RedisConfig) -> Result<Self, StoreError> {
        let bounds = RedisConfig { capacity_bytes: 1 << 20, max_payload: 1, ..config };
        RedisBackend::open(bounds).map(Self)
    }

    /// Returns the number of keys in the database, including those of other applications.
    ///
    /// # Errors
    /// [`BackendError`] if the server does not answer.
    pub fn keys(&self) -> Result<u64, BackendError> {
        self.0.call("counting keys", 0, |server| {
            server.send(&[&command(&[b"DBSIZE"])])?;
            match server.reply()? {
                Reply::Integer(keys) if keys >= 0 => Ok(keys.cast_unsigned()),
                reply => Err(unexpected(reply)),
            }
        })
    }

    /// Returns the page of keys at `cursor`. The cursor of the first page is 0. With `verify`, reads
    /// all bytes of each object and compares the checksums.
    ///
    /// # Errors
    /// [`BackendError`] if the server does not answer.
    pub fn scan(&self, cursor: u64, verify: bool) -> Result<Scanned, BackendError> {
        let (next, keys) = self.0.call("listing keys", PAGE_BYTES, |server| {
            server.send(&[&command(&[b"SCAN", cursor.to_string().as_bytes(), b"COUNT", PAGE_KEYS])])?;
            page(server)
        })?;
        let mut scanned = Scanned { next, ..Scanned::default() };
        let mut names = Vec::new();
        for key in keys {
            match Key::of(&key) {
                Key::Object(name) => names.push(name),
                Key::Namespace(digest) => {
                    let text = self.text(&key)?;
                    let namespace = text.and_then(|text| Namespace::from_json(&text).ok());
                    let namespace = namespace.filter(|namespace| namespace.digest() == digest);
                    scanned.namespaces.push((digest, namespace));
                }
                Key::Generation => {}
                Key::Other => scanned.others += 1,
            }
        }
        let headers = self.headers(&names)?;
        for (name, header) in names.into_iter().zip(headers) {
            let Some((bytes, header)) = header else { continue }; // removed meanwhile
            let mut header = Header::seen(&header, &name, bytes);
            if verify
                && let Ok(intact) = header
                && let Some(value) = self.value(&name, bytes)?
            {
                header = intact.verify(value.get(HEADER_BYTES..).unwrap_or_default()).map(|()| intact);
            }
            scanned.objects.push(Seen { name, header });
        }
        Ok(scanned)
    }

    /// Removes objects from the server.
    ///
    /// # Errors
    /// [`BackendError`] if the server does not answer.
    pub fn remove(&self, names: &[ObjectName]) -> Result<(), BackendError> {
        crate::backend::Backend::clear(self.0.as_ref(), None, names)
    }

    /// Removes the text of a namespace, and the record of its generation.
    ///
    /// # Errors
    /// [`BackendError`] if the server does not answer.
    pub fn forget(&self, namespace: NamespaceDigest) -> Result<(), BackendError> {
        self.0.call("removing the text of a namespace", 0, |server| {
            let text = format!("kvpool/{namespace}.json");
            server.send(&[&command(&[b"UNLINK", text.as_bytes(), &super::record_key(namespace)])])?;
            done(server)
        })
    }

    /// Returns the length and the first bytes of each object's value, in one round trip. `None` for a
    /// value that is missing.
    fn headers(&self, names: &[ObjectName]) -> Result<Vec<Option<Front>>, BackendError> {
        let last = (HEADER_BYTES - 1).to_string();
        let asked: Vec<_> = names
            .iter()
            .flat_map(|name| {
                let key = super::key(name);
                [command(&[b"STRLEN", &key]), command(&[b"GETRANGE", &key, b"0", last.as_bytes()])]
            })
            .flatten()
            .collect();
        self.0.call("reading headers", 2 * super::NAME * names.len() as u64, |server| {
            server.send(&[&asked])?;
            let mut found = Vec::with_capacity(names.len());
            for _ in names {
                let bytes = server.reply()?;
                let header = string(server, HEADER_BYTES)?;
                found.push(match (bytes, header) {
                    (Reply::Integer(bytes), Some(header)) if bytes > 0 => {
                        Some((bytes.cast_unsigned(), header))
                    }
                    (Reply::Integer(_), _) => None,
                    // The value is no string but, for example, a list, so it has no header.
                    _ => Some((0, Vec::new())),
                });
            }
            Ok(found)
        })
    }

    /// Returns the whole value of an object. Returns `None` if it is missing or longer than `bytes`
    /// bytes.
    fn value(&self, name: &ObjectName, bytes: u64) -> Result<Option<Vec<u8>>, BackendError> {
        let get = command(&[b"GET", &super::key(name)]);
        let bytes = bytes.min(u64::from(super::LONGEST));
        let most = usize::try_from(bytes).unwrap_or(usize::MAX);
        self.0.call("reading an object", bytes, |server| {
            server.send(&[&get])?;
            string(server, most)
        })
    }

    fn text(&self, key: &[u8]) -> Result<Option<String>, BackendError> {
        self.0.call("reading the text of a namespace", TEXT as u64, |server| {
            server.send(&[&command(&[b"GET", key])])?;
            Ok(string(server, TEXT)?.and_then(|text| String::from_utf8(text).ok()))
        })
    }
}

/// The length of a value in bytes, and its first bytes.
type Front = (u64, Vec<u8>);

fn unexpected(reply: Reply) -> Fault {
    match reply {
        Reply::Error(why) => Fault::Refused(why),
        reply => Fault::Refused(format!("a reply of an unexpected type: {reply:?}")),
    }
}

/// Reads a string of at most `most` bytes. Skips a longer string. Returns `None` if the reply contains
/// no string of at most this length.
fn string(server: &mut Connection, most: usize) -> Result<Option<Vec<u8>>, Fault> {
    match server.reply()? {
        Reply::Bulk(len) if len <= most => {
            let mut bytes = vec![0; len];
            server.take(&mut bytes)?;
            server.finish(0)?;
            Ok(Some(bytes))
        }
        Reply::Bulk(len) => {
            server.finish(len)?;
            Ok(None)
        }
        Reply::Done | Reply::Integer(_) | Reply::Null | Reply::Error(_) => Ok(None),
    }
}

/// Reads the reply of the command SCAN: the cursor of the next page as a string, and an array of keys.
fn page(server: &mut Connection) -> Result<(u64, Vec<Vec<u8>>), Fault> {
    if let Err(reply) = server.array()? {
        return Err(unexpected(reply));
    }
    let next = string(server, 32)?.and_then(|text| String::from_utf8(text).ok()?.parse().ok());
    let next = next.ok_or_else(|| Fault::Refused("a page without the number of the next".into()))?;
    let keys = server.array()?.map_err(unexpected)?;
    if keys > PAGE_MOST {
        // Close the connection with this error. Otherwise the client would read the rest of this reply
        // as the replies of later commands.
        let why = format!("a page of {keys} keys: at most {PAGE_MOST} are read");
        return Err(Fault::Broken(io::Error::new(io::ErrorKind::InvalidData, why)));
    }
    let keys =
        (0..keys).map(|_| string(server, TEXT).map(Option::unwrap_or_default)).collect::<Result<_, _>>()?;
    Ok((next, keys))
}

/// The content of a key on the server.
enum Key {
    Object(ObjectName),
    Namespace(NamespaceDigest),
    /// The record of a namespace's generation.
    Generation,
    Other,
}

impl Key {
    fn of(key: &[u8]) -> Self {
        let Some(text) = std::str::from_utf8(key).ok().and_then(|key| key.strip_prefix("kvpool/")) else {
            return Self::Other;
        };
        if let Some(digest) = text.strip_suffix(".json").and_then(|digest| digest.parse().ok()) {
            return Self::Namespace(digest);
        }
        let record = text.strip_suffix(".generation").map(str::parse::<NamespaceDigest>);
        if record.is_some_and(|digest| digest.is_ok()) {
            return Self::Generation;
        }
        text.parse().map_or(Self::Other, Self::Object)
    }
}
