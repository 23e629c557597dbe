//! The file of a snapshot: a header, and chunks of records.
//!
//! Owns: the format. All numbers are little endian.
//!
//! | bytes of the header | field |
//! |---|---|
//! | 0..8 | `kvpwarm2` |
//! | 8..40 | digest of the namespace |
//! | 40..48 | milliseconds since 1970 when it was saved |
//! | 48..56 | epoch |
//! | 56..60, 60..64 | tokens per block; blocks of the pool, null block included |
//! | 64..68, 68..72 | records of blocks, records of free blocks |
//! | 72 | algorithm of the hashes: its index in [`HashAlgorithm::ALL`] plus 1, or 0 |
//! | 76..80 | bytes of the settings |
//! | 80..88 | XXH3-64 of bytes 0 to 80 and of the settings |
//!
//! The settings of the pool's owner follow as text. After them are chunks of [`PER_CHUNK`] records of
//! 104 bytes, beginning with the block that would be evicted last. Then follow chunks of 4-byte ids of
//! free blocks. Each chunk ends with the XXH3-64 of its bytes, seeded with the number of the chunk. A
//! damaged or misplaced chunk is skipped, and the other chunks are used.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use kvpool::hash::HashAlgorithm;
use kvpool::retention::{Keep, Priority, Retention, SavedRetention, TenantId, Then, Ttl};
use kvpool::{BlockHash, BlockId, PoolImage, SavedBlock};
use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

use crate::namespace::NamespaceDigest;
use crate::private;

const MAGIC: [u8; 8] = *b"kvpwarm2";
const HEADER: usize = 88;
const CHECKED: usize = 80;
/// Number of bytes in the record of a block.
const RECORD: usize = 104;
/// Number of records per chunk.
const PER_CHUNK: usize = 1024;

/// The content of a snapshot that [`load`] has read.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// The cached blocks of the pool. Blocks whose records were damaged are missing.
    pub image: PoolImage,
    /// Milliseconds since 1970 when the snapshot was saved.
    pub saved_at: u64,
    /// Number of block records that could not be read. These blocks are misses.
    pub lost: usize,
}

/// The reason why a snapshot cannot be used, so that the process starts with an empty cache.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Cold {
    /// The file does not exist.
    #[error("there is no snapshot")]
    Absent,
    /// The file cannot be read.
    #[error("the snapshot cannot be read: {0}")]
    Unreadable(#[source] io::Error),
    /// The file is not a snapshot, has another format, or has a damaged header.
    #[error("the file is not a snapshot, has another format, or has a damaged header")]
    NoSnapshot,
    /// The snapshot belongs to another namespace, for example to other weights or another layout.
    #[error("the snapshot is of namespace {found}, not of {wanted}")]
    Namespace {
        /// Namespace of the snapshot.
        found: NamespaceDigest,
        /// Requested namespace.
        wanted: NamespaceDigest,
    },
}

/// Writes a snapshot. It replaces an older snapshot completely or not at all. This waits for the disk,
/// so do not call it on the scheduler's thread. Two calls for one path must not run at the same time.
///
/// ```
/// use kvpool_store::warm::{PoolImage, load, save};
/// use kvpool_store::NamespaceDigest;
/// # let path = std::env::temp_dir().join(format!("kvpool-warm-doc-{}", std::process::id()));
/// let namespace = NamespaceDigest::from_bytes([7; 32]);
/// let image = PoolImage { block_size: 16, num_blocks: 1000, ..PoolImage::default() };
/// save(&path, &image, namespace, 1_764_000_000_000)?;
/// assert_eq!(load(&path, namespace).unwrap().image, image);
/// assert!(load(&path, NamespaceDigest::from_bytes([8; 32])).is_err()); // other weights: cold
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// The error of the system. The older snapshot is then unchanged.
pub fn save(path: &Path, image: &PoolImage, namespace: NamespaceDigest, saved_at: u64) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    // The name is constant, so that the next call replaces a file that a crash has left.
    name.push(".new");
    let fresh = path.with_file_name(name);
    let written = write(&fresh, image, namespace, saved_at).and_then(|()| fs::rename(&fresh, path));
    if written.is_err() {
        // Ignore an error of the removal, because the first error is returned.
        let _ = fs::remove_file(&fresh);
    }
    written?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

fn write(path: &Path, image: &PoolImage, namespace: NamespaceDigest, saved_at: u64) -> io::Result<()> {
    let file = private::make_anew(path)?;
    let mut out = BufWriter::with_capacity(1 << 20, &file);
    out.write_all(&header(image, namespace, saved_at))?;
    out.write_all(image.settings.as_bytes())?;
    let (mut chunk, mut number) = (Vec::with_capacity(PER_CHUNK * RECORD), 0);
    let mut end = |chunk: &mut Vec<u8>, out: &mut BufWriter<&File>| -> io::Result<()> {
        out.write_all(chunk)?;
        out.write_all(&xxh3_64_with_seed(chunk, number).to_le_bytes())?;
        number += 1;
        chunk.clear();
        Ok(())
    };
    for (at, saved) in image.blocks.iter().rev().enumerate() {
        chunk.extend_from_slice(&encode(saved));
        if (at + 1) % PER_CHUNK == 0 || at + 1 == image.blocks.len() {
            end(&mut chunk, &mut out)?;
        }
    }
    for ids in image.free.chunks(PER_CHUNK) {
        ids.iter().for_each(|id| chunk.extend_from_slice(&id.get().to_le_bytes()));
        end(&mut chunk, &mut out)?;
    }
    out.flush()?;
    file.sync_all()
}

fn header(image: &PoolImage, namespace: NamespaceDigest, saved_at: u64) -> [u8; HEADER] {
    let algorithm = image.algorithm.and_then(|one| HashAlgorithm::ALL.iter().position(|&other| other == one));
    let mut bytes = [0; HEADER];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..40].copy_from_slice(namespace.as_bytes());
    bytes[40..48].copy_from_slice(&saved_at.to_le_bytes());
    bytes[48..56].copy_from_slice(&image.epoch.to_le_bytes());
    let counts = [image.block_size, image.num_blocks, image.blocks.len(), image.free.len()];
    for (at, count) in counts.into_iter().enumerate() {
        bytes[56 + 4 * at..60 + 4 * at].copy_from_slice(&(count as u32).to_le_bytes());
    }
    bytes[72] = algorithm.map_or(0, |place| place as u8 + 1);
    bytes[76..CHECKED].copy_from_slice(&(image.settings.len() as u32).to_le_bytes());
    let sum = checksum(&bytes, image.settings.as_bytes());
    bytes[CHECKED..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// Returns the checksum of the header's first bytes and of the settings.
fn checksum(header: &[u8; HEADER], settings: &[u8]) -> u64 {
    let mut hasher = Xxh3::new();
    hasher.update(&header[..CHECKED]);
    hasher.update(settings);
    hasher.digest()
}

/// Reads a snapshot.
///
/// # Errors
/// [`Cold`] if the snapshot cannot be used at all. Other damage is counted in [`Snapshot::lost`].
pub fn load(path: &Path, namespace: NamespaceDigest) -> Result<Snapshot, Cold> {
    match private::read(path, u64::MAX) {
        Ok(bytes) => read(&bytes, namespace),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Cold::Absent),
        Err(error) => Err(Cold::Unreadable(error)),
    }
}

fn read(bytes: &[u8], wanted: NamespaceDigest) -> Result<Snapshot, Cold> {
    let header: &[u8; HEADER] = bytes.first_chunk().ok_or(Cold::NoSnapshot)?;
    let rest = bytes.get(HEADER..).unwrap_or_default();
    let (settings, rest) = rest.split_at_checked(u32_at(header, 76) as usize).ok_or(Cold::NoSnapshot)?;
    if header[..8] != MAGIC || checksum(header, settings) != u64_at(header, CHECKED) {
        return Err(Cold::NoSnapshot);
    }
    let settings = String::from_utf8(settings.to_vec()).map_err(|_| Cold::NoSnapshot)?;
    let found = NamespaceDigest::from_bytes(array(header, 8));
    if found != wanted {
        return Err(Cold::Namespace { found, wanted });
    }
    let [block_size, num_blocks, blocks, free] = [56, 60, 64, 68].map(|at| u32_at(header, at) as usize);
    let algorithm =
        usize::from(header[72]).checked_sub(1).and_then(|place| HashAlgorithm::ALL.get(place).copied());
    let mut reader = Chunks { bytes: rest, number: 0 };
    let (mut records, mut ids) = (Vec::new(), Vec::new());
    reader.take(blocks, RECORD, |record| records.extend(decode(record)));
    reader.take(free, 4, |id| ids.push(BlockId::new(u32_at(id, 0))));
    records.reverse();
    let lost = blocks.saturating_sub(records.len());
    let epoch = u64_at(header, 48);
    let image = PoolImage { block_size, num_blocks, algorithm, settings, epoch, blocks: records, free: ids };
    Ok(Snapshot { image, saved_at: u64_at(header, 40), lost })
}

struct Chunks<'a> {
    bytes: &'a [u8],
    number: u64,
}

impl Chunks<'_> {
    /// Reads `records` records of `length` bytes from the next chunks, and calls `each` for every one.
    /// Skips the records of damaged chunks.
    fn take(&mut self, records: usize, length: usize, mut each: impl FnMut(&[u8])) {
        let mut left = records;
        while left > 0 && !self.bytes.is_empty() {
            let count = left.min(PER_CHUNK);
            let Some((chunk, rest)) = self.bytes.split_at_checked(count * length) else {
                self.bytes = &[];
                return;
            };
            let Some((sum, rest)) = rest.split_at_checked(8) else {
                self.bytes = &[];
                return;
            };
            if xxh3_64_with_seed(chunk, self.number) == u64_at(sum, 0) {
                chunk.chunks_exact(length).for_each(&mut each);
            }
            (self.bytes, self.number, left) = (rest, self.number + 1, left - count);
        }
    }
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..at + N).and_then(|part| part.try_into().ok()).unwrap_or([0; N])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(bytes, at))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(bytes, at))
}

const PARENT: u8 = 1;
const SAID: u8 = 2;
const TENANT: u8 = 4;
const DEMOTES: u8 = 8;
const IDLE: u8 = 16;
const TTL: u8 = 32;
const RUNNING: u8 = 64;

/// Encodes the record of a block.
///
/// | bytes | field |
/// |---|---|
/// | 0..32, 32..64 | hash of the block; hash of its parent |
/// | 64..68, 68..72, 72..76 | block id; depth in the hash chain; number of older copies |
/// | 76..80 | the block that this one depends on for eviction, or 0 |
/// | 80..82, 82, 83 | KV-cache group; flags; rank: 0 demoted, a priority plus 1, or 102 pinned |
/// | 84..88, 88..96, 96..104 | tenant; time to live; remaining time to live |
fn encode(saved: &SavedBlock) -> [u8; RECORD] {
    let mut bytes = [0; RECORD];
    bytes[..32].copy_from_slice(saved.hash.as_bytes());
    let mut flags = 0;
    if let Some(parent) = &saved.parent {
        flags |= PARENT;
        bytes[32..64].copy_from_slice(parent.as_bytes());
    }
    let numbers = [saved.block.get(), saved.depth, saved.copy, saved.behind.map_or(0, BlockId::get)];
    for (at, number) in numbers.into_iter().enumerate() {
        bytes[64 + 4 * at..68 + 4 * at].copy_from_slice(&number.to_le_bytes());
    }
    bytes[80..82].copy_from_slice(&saved.group.to_le_bytes());
    if let Some(SavedRetention { retention, remaining, tenant }) = saved.said {
        flags |= SAID;
        bytes[83] = match retention.keep {
            Keep::Demoted => 0,
            Keep::Priority(priority) => priority.get() + 1,
            Keep::Pinned => 102,
        };
        flags |= if retention.then == Then::Demote { DEMOTES } else { 0 };
        if let Some(tenant) = tenant {
            flags |= TENANT;
            bytes[84..88].copy_from_slice(&tenant.0.to_le_bytes());
        }
        let ttl = match retention.ttl {
            Some(Ttl::Idle(seconds)) => {
                flags |= TTL | IDLE;
                seconds
            }
            Some(Ttl::Absolute(seconds)) => {
                flags |= TTL;
                seconds
            }
            _ => 0.0,
        };
        bytes[88..96].copy_from_slice(&ttl.to_le_bytes());
        if let Some(seconds) = remaining {
            flags |= RUNNING;
            bytes[96..104].copy_from_slice(&seconds.to_le_bytes());
        }
    }
    bytes[82] = flags;
    bytes
}

/// Decodes a record. Returns `None` if its rank is invalid.
fn decode(bytes: &[u8]) -> Option<SavedBlock> {
    let flags = bytes[82];
    let is = |flag| flags & flag != 0;
    let seconds = |at| f64::from_bits(u64_at(bytes, at));
    let keep = match bytes[83] {
        0 => Keep::Demoted,
        102 => Keep::Pinned,
        rank => Keep::Priority(Priority::new(rank - 1).ok()?),
    };
    let ttl = if is(IDLE) { Ttl::Idle(seconds(88)) } else { Ttl::Absolute(seconds(88)) };
    let then = if is(DEMOTES) { Then::Demote } else { Then::Normal };
    let said = SavedRetention {
        retention: Retention { keep, ttl: is(TTL).then_some(ttl), then },
        remaining: is(RUNNING).then(|| seconds(96)),
        tenant: is(TENANT).then(|| TenantId(u32_at(bytes, 84))),
    };
    Some(SavedBlock {
        hash: BlockHash::from_bytes(array(bytes, 0)),
        parent: is(PARENT).then(|| BlockHash::from_bytes(array(bytes, 32))),
        block: BlockId::new(u32_at(bytes, 64)),
        depth: u32_at(bytes, 68),
        copy: u32_at(bytes, 72),
        behind: Some(u32_at(bytes, 76)).filter(|&block| block != 0).map(BlockId::new),
        group: u16::from_le_bytes(array(bytes, 80)),
        said: is(SAID).then_some(said),
    })
}
