//! A warm restart: what a pool had cached, in a file, and whose bytes lie in each of its blocks.
//!
//! The KV of a block outlives a process where its memory does: a file in `/dev/shm`, a segment that
//! somebody else holds, pages of a GPU in another process. What is lost is the index. Two files bring
//! it back:
//!
//! | file | says | written |
//! |---|---|---|
//! | a snapshot ([`save`], [`load`]) | contents by block, the order of eviction, retention: a [`PoolImage`] | now and then, by any thread: the image is a copy |
//! | slot headers ([`SlotHeaders`]) | what lies in each block now, with the checksum of its bytes | around each write of a block |
//!
//! **A snapshot is believed by nobody.** Since it was written blocks have been given to others. A block
//! is restored only if its slot's header says the same hash, in the same namespace, and, if it is asked
//! for, if the bytes there have the header's checksum. A slot's header goes before its bytes are
//! overwritten and comes back when they are whole, so whatever a crash leaves half done is a miss.
//!
//! **Damage costs hits.** A snapshot is chunks with a checksum each: one that is torn keeps what is
//! before the tear, and what is kept first is what would have been evicted last. A snapshot of another
//! namespace (other weights, another layout) or of another format is a cold start, and no error.
//!
//! Costs: an image 75 ns per block, of the thread that has the pool; the file 104 bytes per block, with
//! one `fsync` of it and one of its folder.

mod file;
mod slots;

pub use file::{Cold, Snapshot, load, save};
pub use kvpool::PoolImage;
pub use slots::{Headers, SlotHeaders};
