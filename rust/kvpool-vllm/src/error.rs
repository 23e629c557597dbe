//! Errors of vLLM's pool. A call that returns an error has changed nothing.

use thiserror::Error;

/// Makes a list of `n` copies of `item`. Returns an error if memory is not sufficient.
pub(crate) fn filled<T: Clone>(n: usize, item: T) -> Result<Vec<T>, kvpool::PoolError> {
    let mut items = Vec::new();
    items.try_reserve_exact(n).map_err(|_| no_memory(n))?;
    items.resize(n, item);
    Ok(items)
}

/// Returns the error for a pool whose arrays do not fit in memory.
pub(crate) fn no_memory(num_blocks: usize) -> kvpool::PoolError {
    kvpool::PoolError::config(
        "num_gpu_blocks",
        num_blocks,
        "few enough for the pool's arrays to fit in memory",
    )
}

/// The reason why a call of [`Pool`](crate::Pool) was refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum VllmError {
    /// Fewer blocks are free than requested. The message is the same as vLLM's.
    #[error("Cannot get {wanted} free blocks from the pool ({free} are free)")]
    OutOfBlocks {
        /// Number of blocks that the call requested.
        wanted: usize,
        /// Number of blocks that are free.
        free: usize,
    },
    /// A block is freed more often than it has references. In this case the count in vLLM's own pool
    /// becomes negative, and vLLM later allocates the block twice.
    #[error("block {block} has no references: it is freed more often than it was taken")]
    NotHeld {
        /// Id of the block that would be freed.
        block: u32,
    },
    /// The pool has no block with this id.
    #[error("block {block} is not of this pool: it has blocks 0 to {last}")]
    UnknownBlock {
        /// The unknown id.
        block: u32,
        /// Highest block id that the pool has.
        last: u32,
    },
    /// The block already has a hash that covers at least as many tokens as the new one.
    #[error("block {block} is cached already, for {cached} tokens: it can't be cached for {wanted}")]
    AlreadyCached {
        /// Id of the block that already has a hash.
        block: u32,
        /// Number of tokens that the block's present hash covers; 0 if unknown.
        cached: u32,
        /// Number of tokens that the new hash covers.
        wanted: u32,
    },
    /// A digest or key is longer than any digest or key of vLLM.
    #[error("{len} bytes are too many for a key: at most {max}")]
    KeyTooLong {
        /// Number of bytes that the caller passed.
        len: usize,
        /// Largest number of bytes that is accepted.
        max: usize,
    },
    /// A setting of a KV-cache group is out of range.
    #[error("{field} is {value}: must be {expected}")]
    Setting {
        /// Name of the setting that is out of range.
        field: &'static str,
        /// Value of the setting that is out of range.
        value: Box<str>,
        /// The allowed values.
        expected: Box<str>,
    },
    /// The groups cannot be looked up together. The text is the reason.
    #[error("{0}")]
    Families(String),
    /// The core pool returned this error.
    #[error(transparent)]
    Pool(#[from] kvpool::PoolError),
}

impl VllmError {
    #[cold]
    pub(crate) fn setting(field: &'static str, value: &impl ToString, expected: impl Into<Box<str>>) -> Self {
        Self::Setting { field, value: value.to_string().into(), expected: expected.into() }
    }
}
