//! Redis or Valkey: stores objects as values of a server that several engines share.
//!
//! - **Key**: `kvpool/` and the name of the object: its namespace, the digest of its prefix, its group.
//!   Objects of other weights have other keys.
//! - **Value**: header and payload, in one `SET`. A write sends the payload from the slot to the
//!   socket, and a load receives the payload from the socket into the slot.
//! - **Bound**: the capacity limits the objects that this store wrote, as on a disk. For all stores
//!   together, set the server's `maxmemory` and an eviction policy.
//! - **Generation**: the record `kvpool/NAMESPACE.generation`, which never expires. An engine that asks
//!   whether objects exist also writes the record, if the server has lost it.
//! - **Start**: the store does not list the server's keys. [`Store::probe`](crate::Store::probe) finds
//!   the objects that other stores wrote, or that this store wrote before a restart.
//! - **Age**: values expire after [`RedisConfig::time_to_live`], so that the objects of a store that
//!   has been closed disappear.
//! - **Restart, failover**: the client connects again. Objects that the server has lost are misses.
//! - **A blocked server**: a call ends after [`RedisConfig::timeout`] without a byte, and its
//!   connection is closed. No further bytes arrive then.
//! - **A slow server**: a call ends after `timeout` plus one second for every 4 MiB that it moves, even
//!   if bytes still arrive.
//! - **An endless reply**: a reply has at most the requested bytes plus 1 MiB. The connection of a
//!   longer reply is closed.
//!
//! Each worker of the store has a connection of its own while it runs a task. Needs Redis 4.0 or later,
//! or any Valkey. A cluster needs a proxy, or a node that has all keys, because redirections are
//! errors.

mod inspect;
mod resp;
mod stream;
#[cfg(feature = "tls")]
mod tls;

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

pub use self::inspect::{Inspector, Scanned, Seen};
use self::resp::{Fault, Reply, Resp, append, command};
pub use self::stream::Address;
use self::stream::{Limits, Place as Where, Stream};
#[cfg(feature = "tls")]
pub use self::tls::Tls;
use crate::backend::Backend;
use crate::error::{BackendError, StoreError};
use crate::generation::Generation;
use crate::header::HEADER_BYTES;
use crate::namespace::{Namespace, NamespaceDigest};
use crate::object::{Object, ObjectMut, ObjectName, Place, places};

/// Address of a server, and settings for its use.
///
/// ```
/// use kvpool_store::redis::{Address, RedisConfig};
/// let address = Address::Tcp("localhost".into(), 6379);
/// // At most 1 GiB for payloads of at most 64 KiB.
/// let config = RedisConfig { protocol: 3, ..RedisConfig::new(address, 1 << 30, 64 << 10) };
/// assert_eq!(config.database, 0);
/// ```
#[derive(Clone)]
pub struct RedisConfig {
    /// Address of the server.
    pub address: Address,
    /// Name of the user, for servers with user accounts.
    pub username: Option<String>,
    /// Password of the user.
    pub password: Option<String>,
    /// Number of the database on the server.
    pub database: u32,
    /// Version of the Redis protocol (RESP): 2 or 3.
    pub protocol: u32,
    /// Largest number of bytes that the objects of this store take.
    pub capacity_bytes: u64,
    /// Largest number of bytes in a payload; at most 512 MiB minus the size of a header.
    pub max_payload: u32,
    /// Time after its write at which a value expires; at least a second. With `None`, values never
    /// expire.
    pub time_to_live: Option<Duration>,
    /// Longest time without any byte sent or received. A whole call may take this time plus one second
    /// for every 4 MiB that it moves.
    pub timeout: Duration,
}

impl RedisConfig {
    /// Returns settings with default values for the other fields: no user, database 0, protocol 2, a
    /// time to live of one day, a timeout of 5 seconds.
    #[must_use]
    pub const fn new(address: Address, capacity_bytes: u64, max_payload: u32) -> Self {
        Self {
            address,
            username: None,
            password: None,
            database: 0,
            protocol: 2,
            capacity_bytes,
            max_payload,
            time_to_live: Some(Duration::from_secs(24 * 60 * 60)),
            timeout: Duration::from_secs(5),
        }
    }
}

/// Does not print the password.
impl fmt::Debug for RedisConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisConfig")
            .field("address", &self.address)
            .field("username", &self.username)
            .field("database", &self.database)
            .field("capacity_bytes", &self.capacity_bytes)
            .finish_non_exhaustive()
    }
}

type Connection = Resp<Stream>;

/// A back end that stores objects on a Redis or Valkey server.
#[derive(Debug)]
pub struct RedisBackend {
    config: RedisConfig,
    at: Where,
    places: u32,
    /// Connections that no worker uses now. The lock is held only for a push or a pop.
    idle: Mutex<Vec<Connection>>,
    /// The command that writes the record of the served namespace's generation, if the server has none.
    /// Empty until the generation is known.
    record: Mutex<Vec<u8>>,
}

/// Number of bytes that a server needs for a value besides its content: the key, the server's own
/// structures, and the allocator's rounding. The measured values are 300 to 360.
const VALUE_OVERHEAD: u64 = 400;
/// Largest number of bytes in a Redis value.
const LONGEST: u32 = 512 << 20;

/// Largest number of bytes in a reply in addition to the requested bytes: statuses, errors, and
/// messages that the server pushes.
const SMALL: u64 = 1 << 20;
/// Estimated number of bytes for the name of one object in a command or a reply.
const NAME: u64 = 256;
/// Slowest accepted transfer rate, in bytes per second. It determines by how much the time limit of a
/// call grows with the number of bytes.
const SLOWEST: f64 = (4 << 20) as f64;

fn object_bytes(config: &RedisConfig) -> u64 {
    HEADER_BYTES as u64 + u64::from(config.max_payload) + VALUE_OVERHEAD
}

impl RedisBackend {
    /// Connects to a server, and checks that the server accepts the user.
    ///
    /// # Errors
    /// [`StoreError::InvalidConfig`]; [`StoreError::Backend`] if the server is unreachable or refuses
    /// the connection.
    pub fn open(config: RedisConfig) -> Result<Arc<Self>, StoreError> {
        let places = places(config.capacity_bytes, object_bytes(&config));
        let longest = u64::from(LONGEST) - HEADER_BYTES as u64;
        let payload = u64::from(config.max_payload);
        let lives = config.time_to_live.map_or(1, |lives| lives.as_secs());
        let timeout = config.timeout.as_millis() as u64;
        for (field, value, sound, expected) in [
            ("max_payload", payload, (1..=longest).contains(&payload), "from 1 to 512 MiB less a header"),
            ("capacity_bytes", config.capacity_bytes, places > 0, "room for an object"),
            ("protocol", u64::from(config.protocol), (2..=3).contains(&config.protocol), "2 or 3"),
            ("time_to_live", lives, lives > 0, "at least a second"),
            ("timeout", timeout, timeout > 0, "at least a millisecond"),
        ] {
            if !sound {
                return Err(StoreError::InvalidConfig { field, value: value.to_string(), expected });
            }
        }
        let at = config.address.ready().map_err(BackendError::io("reading certificates"))?;
        let backend = Self { config, at, places, idle: Mutex::default(), record: Mutex::default() };
        backend.call("asking the server", 0, |server| {
            server.send(&[&command(&[b"PING"])])?;
            done(server)
        })?;
        Ok(Arc::new(backend))
    }

    fn connect(&self, limits: Limits) -> Result<Connection, Fault> {
        let RedisConfig { username, password, database, protocol, .. } = &self.config;
        let mut server = Resp::new(Stream::connect(&self.at, limits)?);
        server.begin(SMALL);
        let mut greetings = Vec::new();
        if *protocol == 3 {
            greetings.push(command(&[b"HELLO", b"3"]));
        }
        match (username, password) {
            (Some(user), Some(password)) => {
                greetings.insert(0, command(&[b"AUTH", user.as_bytes(), password.as_bytes()]));
            }
            (None, Some(password)) => greetings.insert(0, command(&[b"AUTH", password.as_bytes()])),
            (_, None) => {}
        }
        if *database != 0 {
            greetings.push(command(&[b"SELECT", database.to_string().as_bytes()]));
        }
        for greeting in greetings {
            server.send(&[&greeting])?;
            done(&mut server)?;
        }
        Ok(server)
    }

    /// Calls the function `work` with a connection to the server. If the server has closed an idle
    /// connection, calls `work` once again with a new one.
    ///
    /// The whole call has a time limit. It grows with `bytes`, the number of bytes that the call moves
    /// in addition to statuses.
    fn call<T>(
        &self,
        operation: &'static str,
        bytes: u64,
        mut work: impl FnMut(&mut Connection) -> Result<T, Fault>,
    ) -> Result<T, BackendError> {
        let fail = |fault| match fault {
            Fault::Broken(error) => BackendError::Io { operation, error },
            Fault::Refused(why) if why.starts_with("OOM") => BackendError::Full,
            Fault::Refused(why) => BackendError::Io { operation, error: io::Error::other(why) },
        };
        let timeout = self.config.timeout;
        let whole = timeout.saturating_add(Duration::from_secs_f64(bytes as f64 / SLOWEST));
        let limits = Limits { timeout, until: Instant::now().checked_add(whole) };
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let pooled = idle().pop();
        if let Some(mut server) = pooled {
            server.begin(bytes.saturating_add(SMALL)).limit(limits);
            match work(&mut server) {
                Err(Fault::Broken(error)) if is_closed(&error) => idle().clear(),
                Err(fault @ Fault::Broken(_)) => return Err(fail(fault)),
                result => {
                    idle().push(server);
                    return result.map_err(fail);
                }
            }
        }
        let mut server = self.connect(limits).map_err(fail)?;
        server.begin(bytes.saturating_add(SMALL));
        let result = work(&mut server);
        if !matches!(result, Err(Fault::Broken(_))) {
            idle().push(server);
        }
        result.map_err(fail)
    }
}

/// Whether an I/O error means that the server has closed the connection, possibly long ago.
fn is_closed(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | NotConnected | UnexpectedEof)
}

fn done(server: &mut Connection) -> Result<(), Fault> {
    match server.reply()? {
        Reply::Error(why) => Err(Fault::Refused(why)),
        Reply::Bulk(len) => Ok(server.finish(len)?),
        Reply::Done | Reply::Integer(_) | Reply::Null => Ok(()),
    }
}

fn key(name: &ObjectName) -> Vec<u8> {
    format!("kvpool/{name}").into_bytes()
}

/// Encodes the command that removes objects. It is `UNLINK`, with which the server frees the memory in
/// the background.
fn unlink(names: &[ObjectName]) -> Vec<u8> {
    let keys: Vec<_> = names.iter().map(key).collect();
    let arguments: Vec<_> = [&b"UNLINK"[..]].into_iter().chain(keys.iter().map(Vec::as_slice)).collect();
    if keys.is_empty() { Vec::new() } else { command(&arguments) }
}

/// Returns the server's key for the record of a namespace's generation.
fn record_key(of: NamespaceDigest) -> Vec<u8> {
    format!("kvpool/{of}.generation").into_bytes()
}

fn record_unless_there(record: &[u8], generation: Generation) -> Vec<u8> {
    command(&[b"SET", record, generation.to_string().as_bytes(), b"NX"])
}

impl Backend for RedisBackend {
    fn name(&self) -> &'static str {
        "redis"
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

    fn restore(&self, _: NamespaceDigest, _: &mut dyn FnMut(Place, &[u8])) -> Result<(), BackendError> {
        Ok(())
    }

    fn generation(&self, of: NamespaceDigest) -> Result<Option<Generation>, BackendError> {
        let record = record_key(of);
        let get = command(&[b"GET", &record]);
        let found = self.call("reading the generation of a namespace", 0, |server| {
            server.send(&[&get])?;
            match server.reply()? {
                Reply::Bulk(Generation::TEXT_BYTES) => {
                    let mut text = [0; Generation::TEXT_BYTES];
                    server.take(&mut text)?;
                    server.finish(0)?;
                    Ok(Generation::of_record(&text))
                }
                Reply::Bulk(other) => {
                    server.finish(other)?;
                    Ok(None)
                }
                Reply::Error(why) => Err(Fault::Refused(why)),
                Reply::Null | Reply::Done | Reply::Integer(_) => Ok(None),
            }
        })?;
        if let Some(found) = found {
            *self.record.lock().unwrap_or_else(PoisonError::into_inner) = record_unless_there(&record, found);
        }
        Ok(found)
    }

    /// The record never expires, because it has to outlive the objects.
    fn record_generation(
        &self,
        of: NamespaceDigest,
        generation: Generation,
        replaces: bool,
    ) -> Result<(), BackendError> {
        let record = record_key(of);
        let set = match replaces {
            true => command(&[b"SET", &record, generation.to_string().as_bytes()]),
            false => record_unless_there(&record, generation),
        };
        self.call("writing the generation of a namespace", 0, |server| {
            server.send(&[&set])?;
            done(server)
        })
    }

    fn describe(&self, namespace: &Namespace) -> Result<(), BackendError> {
        let key = format!("kvpool/{}.json", namespace.digest());
        let set = command(&[b"SET", key.as_bytes(), namespace.to_json().as_bytes()]);
        self.call("writing the text of the namespace", set.len() as u64, |server| {
            server.send(&[&set])?;
            done(server)
        })
    }

    fn write(
        &self,
        _: Place,
        name: &ObjectName,
        replaces: &[ObjectName],
        object: Object<'_>,
    ) -> Result<(), BackendError> {
        let (payload, lives) = (&object.pages[..object.len as usize], self.config.time_to_live);
        let mut before = unlink(replaces);
        before.extend_from_slice(if lives.is_some() { b"*5\r\n" } else { b"*3\r\n" });
        append(&mut before, b"SET");
        append(&mut before, &key(name));
        before.extend_from_slice(format!("${}\r\n", HEADER_BYTES + payload.len()).as_bytes());
        before.extend_from_slice(&object.header.0[..HEADER_BYTES]);
        let mut behind = b"\r\n".to_vec();
        if let Some(lives) = lives {
            append(&mut behind, b"EX");
            append(&mut behind, lives.as_secs().to_string().as_bytes());
        }
        self.call("writing an object", (before.len() + payload.len()) as u64, |server| {
            server.send(&[&before, payload, &behind])?;
            let gone = if replaces.is_empty() { Ok(()) } else { done(server) };
            let kept = done(server);
            gone.and(kept)
        })
    }

    fn read(&self, _: Option<Place>, name: &ObjectName, into: ObjectMut<'_>) -> Result<(), BackendError> {
        let get = command(&[b"GET", &key(name)]);
        let ObjectMut { header, pages, len } = into;
        let found = self.call(
            "reading an object",
            HEADER_BYTES as u64 + u64::from(self.config.max_payload),
            |server| {
                server.send(&[&get])?;
                match server.reply()? {
                    Reply::Bulk(total) => {
                        // If the value has another length, read only the bytes that fit. The header or
                        // the checksum will then differ.
                        let front = total.min(HEADER_BYTES);
                        server.take(&mut header.0[..front])?;
                        let payload = (total - front).min(len as usize);
                        server.take(&mut pages[..payload])?;
                        server.finish(total - front - payload)?;
                        Ok(true)
                    }
                    Reply::Error(why) => Err(Fault::Refused(why)),
                    Reply::Null | Reply::Done | Reply::Integer(_) => Ok(false),
                }
            },
        )?;
        if found { Ok(()) } else { Err(BackendError::Absent) }
    }

    fn exist(&self, names: &[ObjectName]) -> Result<Vec<bool>, BackendError> {
        let asked: Vec<_> = names.iter().flat_map(|name| command(&[b"EXISTS", &key(name)])).collect();
        // Write the record of the generation with each question, if it is missing. This restores it
        // after the server was emptied, so that an engine that starts now finds the objects of this
        // engine. It also counts as a use, so a server that evicts the least recently used keys keeps
        // the record.
        let record = self.record.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.call("asking for objects", NAME * names.len() as u64, |server| {
            server.send(&[&record, &asked])?;
            // A server without free memory refuses the record. It still answers whether the objects
            // exist.
            if !record.is_empty()
                && let Err(fault @ Fault::Broken(_)) = done(server)
            {
                return Err(fault);
            }
            let answers = names.iter().map(|_| server.reply()).collect::<Result<Vec<_>, _>>()?;
            answers
                .into_iter()
                .map(|answer| match answer {
                    Reply::Error(why) => Err(Fault::Refused(why)),
                    answer => Ok(answer == Reply::Integer(1)),
                })
                .collect()
        })
    }

    fn clear(&self, _: Option<Place>, names: &[ObjectName]) -> Result<(), BackendError> {
        if names.is_empty() {
            return Ok(());
        }
        self.call("removing objects", NAME * names.len() as u64, |server| {
            server.send(&[&unlink(names)])?;
            done(server)
        })
    }
}
