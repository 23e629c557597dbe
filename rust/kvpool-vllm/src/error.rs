//! What the pool refuses. A refused call has changed nothing.

use thiserror::Error;

/// `n` items for a pool's blocks, or the refusal of a pool that does not fit in memory.
pub(crate) fn filled<T: Clone>(n: usize, item: T) -> Result<Vec<T>, kvpool::PoolError> {
    let mut items = Vec::new();
    items.try_reserve_exact(n).map_err(|_| no_memory(n))?;
    items.resize(n, item);
    Ok(items)
}

/// The refusal of a pool that does not fit in memory.
pub(crate) fn no_memory(num_blocks: usize) -> kvpool::PoolError {
    kvpool::PoolError::config(
        "num_gpu_blocks",
        num_blocks,
        "few enough for the pool's arrays to fit in memory",
    )
}

/// A refusal of [`Pool`](crate::Pool).
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum VllmError {
    /// Fewer blocks are free than were asked for. The text is vLLM's.
    #[error("Cannot get {wanted} free blocks from the pool ({free} are free)")]
    OutOfBlocks {
        /// Blocks asked for.
        wanted: usize,
        /// Blocks that are free.
        free: usize,
    },
    /// A block is freed more often than it has references. vLLM's own pool counts below zero here and
    /// hands the block out twice later.
    #[error("block {block} has no references: it is freed more often than it was taken")]
    NotHeld {
        /// The block.
        block: u32,
    },
    /// An id that is no block of the pool.
    #[error("block {block} is not of this pool: it has blocks 0 to {last}")]
    UnknownBlock {
        /// The id.
        block: u32,
        /// The highest id of the pool.
        last: u32,
    },
    /// A block that is to be cached carries a hash of as many tokens, or more, already.
    #[error("block {block} is cached already, for {cached} tokens: it can't be cached for {wanted}")]
    AlreadyCached {
        /// The block.
        block: u32,
        /// Tokens of the prefix it is cached for; 0 if that is not known.
        cached: u32,
        /// Tokens of the prefix it should be cached for.
        wanted: u32,
    },
    /// A digest or key with more bytes than any of vLLM's.
    #[error("{len} bytes are too many for a key: at most {max}")]
    KeyTooLong {
        /// Bytes that were given.
        len: usize,
        /// The most there may be.
        max: usize,
    },
    /// A setting of a KV-cache group that can't be.
    #[error("{field} is {value}: must be {expected}")]
    Setting {
        /// The setting.
        field: &'static str,
        /// Its value.
        value: Box<str>,
        /// The values that are allowed.
        expected: Box<str>,
    },
    /// Groups that can't be looked up together; the text says why.
    #[error("{0}")]
    Families(String),
    /// The pool can't be made.
    #[error(transparent)]
    Pool(#[from] kvpool::PoolError),
}

impl VllmError {
    #[cold]
    pub(crate) fn setting(field: &'static str, value: &impl ToString, expected: impl Into<Box<str>>) -> Self {
        Self::Setting { field, value: value.to_string().into(), expected: expected.into() }
    }
}
