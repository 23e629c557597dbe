//! A warm restart: restores the prefix index of a pool from two files, a snapshot and a file of slot
//! headers.
//!
//! The KV of a block outlives a process if its memory does: a file in `/dev/shm`, a segment that
//! another process holds, or pages of a GPU in another process. Only the index is lost. Two files
//! restore it:
//!
//! - A snapshot ([`save`], [`load`]) contains the hash of each block, the order of eviction, and
//!   retention. In memory it is a [`PoolImage`]. Any thread may write it from time to time, because the
//!   image is a copy.
//! - Slot headers ([`SlotHeaders`]) contain, for each block, the key of the bytes that it holds now,
//!   and their checksum. They are written before and after each write of a block.
//!
//! **A snapshot alone is not trusted.** Blocks may have been reused since the snapshot was written. A
//! block is restored only if its slot's header has the same hash and the same namespace. On request,
//! the bytes must also have the header's checksum. A slot's header is cleared before its bytes are
//! overwritten, and written when the bytes are complete. Therefore a write that a crash interrupts
//! leads to a miss.
//!
//! **Damage costs hits.** A snapshot consists of chunks, each with a checksum. If the file is
//! truncated, the chunks before that point are used. The file begins with the blocks that would be
//! evicted last. A snapshot of another namespace (other weights, another layout) or of another format
//! is a cold start, not an error.
//!
//! Costs: an image takes 75 ns per block on the thread that owns the pool. The file has 104 bytes per
//! block, and needs two `fsync` calls: one for itself and one for its folder.

mod file;
mod slots;

pub use file::{Cold, Snapshot, load, save};
pub use kvpool::PoolImage;
pub use slots::{Headers, SlotHeaders};
