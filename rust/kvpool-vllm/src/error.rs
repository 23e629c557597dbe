//! Errors of the pool. A refused call has changed nothing.

use thiserror::Error;

/// Allocates `n` items for the blocks of a pool. Returns an error if they do not fit in memory.
pub(crate) fn filled<T: Clone>(n: usize, item: T) -> Result<Vec<T>, kvpool::PoolError> {
    let mut items = Vec::new();
    items.try_reserve_exact(n).map_err(|_| no_memory(n))?;
    items.resize(n, item);
    Ok(items)
}

/// Returns the error of a pool that does not fit in memory.
pub(crate) fn no_memory(num_blocks: usize) -> kvpool::PoolError {
    kvpool::PoolError::config(
        "num_gpu_blocks",
        num_blocks,
        "few enough for the pool's arrays to fit in memory",
    )
}

/// The error of a refused call of [`Pool`](crate::Pool).
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum VllmError {
    /// Fewer blocks are free than requested. The text is vLLM's.
    #[error("Cannot get {wanted} free blocks from the pool ({free} are free)")]
    OutOfBlocks {
        /// Number of requested blocks.
        wanted: usize,
        /// Number of free blocks.
        free: usize,
    },
    /// A block is freed more often than it has references. In this case vLLM's own pool counts below
    /// zero, and hands the block out twice later.
    #[error("block {block} has no references: it is freed more often than it was taken")]
    NotHeld {
        /// The block.
        block: u32,
    },
    /// The pool has no block with this id.
    #[error("block {block} is not of this pool: it has blocks 0 to {last}")]
    UnknownBlock {
        /// The id.
        block: u32,
        /// The highest id of the pool.
        last: u32,
    },
    /// The block to cache already has a hash of the same number of tokens, or of more.
    #[error("block {block} is cached already, for {cached} tokens: it can't be cached for {wanted}")]
    AlreadyCached {
        /// The block.
        block: u32,
        /// Number of tokens of its prefix; 0 if unknown.
        cached: u32,
        /// Number of tokens of the prefix to cache.
        wanted: u32,
    },
    /// A digest or key has more bytes than any of vLLM's.
    #[error("{len} bytes are too many for a key: at most {max}")]
    KeyTooLong {
        /// Number of bytes passed.
        len: usize,
        /// Largest number of bytes.
        max: usize,
    },
    /// A setting of a KV-cache group is outside of its range.
    #[error("{field} is {value}: must be {expected}")]
    Setting {
        /// Name of the setting.
        field: &'static str,
        /// Value of the setting.
        value: Box<str>,
        /// The allowed values.
        expected: Box<str>,
    },
    /// Groups that cannot be looked up together; the text states the reason.
    #[error("{0}")]
    Families(String),
    /// The core returned an error.
    #[error(transparent)]
    Pool(#[from] kvpool::PoolError),
}

impl VllmError {
    #[cold]
    pub(crate) fn setting(field: &'static str, value: &impl ToString, expected: impl Into<Box<str>>) -> Self {
        Self::Setting { field, value: value.to_string().into(), expected: expected.into() }
    }
}
