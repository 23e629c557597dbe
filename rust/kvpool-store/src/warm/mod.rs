//! A warm restart: a file with the cached blocks of a pool, and a file with the owner of each block's
//! bytes.
//!
//! The KV of a block outlives a process if its memory does: a file in `/dev/shm`, a segment that
//! another process holds, pages of a GPU in another process. Only the index is lost. Two files restore
//! it:
//!
//! - A snapshot ([`save`], [`load`]) contains the hashes by block, the order of eviction, and
//!   retention: a [`PoolImage`]. It is written from time to time, by any thread, because the image is a
//!   copy.
//! - Slot headers ([`SlotHeaders`]) contain the key of the bytes in each block now, and their checksum.
//!   They are written before and after each write of a block.
//!
//! **A snapshot alone is not trusted.** Since it was written, blocks may have been reused. A block is
//! restored only if its slot's header has the same hash and the same namespace. On request, the bytes
//! must also have the header's checksum. A slot's header is cleared before its bytes are overwritten,
//! and written when they are complete. So a write that a crash interrupts is a miss.
//!
//! **Damage costs hits.** A snapshot consists of chunks with a checksum each. If it is truncated, the
//! chunks before that point are used. Blocks that would be evicted last are at the beginning. A
//! snapshot of another namespace (other weights, another layout) or of another format is a cold start,
//! not an error.
//!
//! Costs: an image takes 75 ns per block on the thread that owns the pool. The file has 104 bytes per
//! block, and needs one `fsync` for itself and one for its folder.

mod file;
mod slots;

pub use file::{Cold, Snapshot, load, save};
pub use kvpool::PoolImage;
pub use slots::{Headers, SlotHeaders};
