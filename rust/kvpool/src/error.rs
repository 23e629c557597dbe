//! Defines the errors of the pool and its parts.
//!
//! Every message contains the wrong value and the allowed values. A call that returns an error has
//! changed nothing: the order of free blocks, the order of eviction, the reference counts and the index
//! are as before.

use std::fmt;

use crate::block::BlockId;
use crate::hash::{HashAlgorithm, HashError};

/// Describes why blocks were not allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusal {
    /// Number of blocks that the call needed, not counting cached blocks that it would have hit.
    pub needed: usize,
    /// Number of blocks that the call could take: free and cached-free blocks, minus the blocks that a
    /// watermark reserves.
    pub available: usize,
    /// `needed - available`: the number of blocks that must be released first.
    pub missing: usize,
    /// Number of blocks that become available when running steps complete.
    pub fenced: usize,
    /// Whether the call would fit an otherwise empty pool. For an admission, whether the whole prompt
    /// can be computed in such a pool, in chunks (`allocate_tokens` of `kvpool::Part`). If false, the
    /// call will never succeed.
    pub can_ever_fit: bool,
    /// For an admission, whether it can ever succeed if its chunks are smaller. For other calls, the
    /// same as `can_ever_fit`.
    pub fits_in_chunks: bool,
    /// For an admission, the number of tokens that could be admitted now (`allocate_tokens` of
    /// `kvpool::Part`). For other calls, 0.
    pub fitting_tokens: usize,
}

impl Refusal {
    /// Makes the reason for refusing a call that needs `needed` blocks, of which `available` can be
    /// taken.
    #[must_use]
    pub const fn new(needed: usize, available: usize, fenced: usize, can_ever_fit: bool) -> Self {
        let missing = needed.saturating_sub(available);
        let fits_in_chunks = can_ever_fit;
        Self { needed, available, missing, fenced, can_ever_fit, fits_in_chunks, fitting_tokens: 0 }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { needed, available, missing, fenced, can_ever_fit, fits_in_chunks, .. } = self;
        write!(f, "out of blocks: {needed} needed, {available} available, {missing} missing")?;
        match (can_ever_fit, fenced) {
            (false, _) if *fits_in_chunks => {
                write!(f, "; it can never fit this pool at once, but in smaller chunks (allocate_tokens)")
            }
            (false, _) => write!(f, "; it can never fit this pool"),
            (true, 0) => Ok(()),
            (true, fenced) => write!(f, "; {fenced} more are fenced until their step completes"),
        }
    }
}

/// The error of a call of a block pool, or of one of its parts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the error message explains each field")]
pub enum PoolError {
    /// A configuration value is out of range.
    #[error("{field} is {}: must be {}", .detail.value, .detail.expected)]
    InvalidConfig { field: &'static str, detail: Box<ConfigDetail> },
    /// Not enough blocks are available.
    #[error("{0}")]
    OutOfBlocks(Refusal),
    /// The pool has no block with this id.
    #[error("block id {block} is outside this pool: ids run from 1 to {last}")]
    UnknownBlock { block: u64, last: u32 },
    /// The call names the null block, but needs another block.
    #[error("block 0 is the null block: it cannot be {operation}")]
    NullBlock { operation: &'static str },
    /// The call releases more references than the block has (a double free), or acquires a block
    /// without references.
    #[error("block {block} has {held} references: cannot {operation} (reference {position} of this call)")]
    NotHeld { block: BlockId, held: u32, operation: &'static str, position: usize },
    /// A reference count would overflow.
    #[error("block {block} has {held} references: no more can be counted")]
    RefCountOverflow { block: BlockId, held: u32 },
    /// The fence of the ticket has already ended, or belongs to another pool.
    #[error("ticket {ticket} is not open: it has ended already, or is of another pool ({open} are open)")]
    UnknownTicket { ticket: u64, open: usize },
    /// The block is in a state that does not allow the operation. For example, the block would be added
    /// to a list that already contains it, or removed from a list that does not contain it.
    #[error("block {block} is {state}: cannot {operation}")]
    WrongState { block: BlockId, state: &'static str, operation: &'static str },
    /// The block is already registered. A registered block cannot get another content until it is
    /// evicted.
    #[error("block {block} is already registered")]
    AlreadyRegistered { block: BlockId },
    /// The block is not registered, so it has no hash.
    #[error("block {block} is not registered: register it before marking it computed")]
    NotRegistered { block: BlockId },
    /// The call names more blocks than the chain has hashes.
    #[error("{blocks} blocks from position {start} do not fit a hash chain of {chain} full blocks")]
    ChainTooShort { start: usize, blocks: usize, chain: usize },
    /// The position in the chain is larger than the index can store.
    #[error("block {position} of a hash chain is too deep: an index notes positions up to {most}")]
    TooDeep { position: usize, most: usize },
    /// The chain was hashed for another block size.
    #[error("the hash chain was made for blocks of {chain} tokens, the pool has blocks of {pool}")]
    BlockSizeMismatch { chain: usize, pool: usize },
    /// The chain was hashed with another algorithm than the registered blocks.
    #[error("the hash chain was made with {chain}, this pool has registered blocks hashed with {pool}")]
    AlgorithmMismatch { chain: HashAlgorithm, pool: HashAlgorithm },
    /// The chain uses a non-cryptographic hash, but the pool does not verify hits.
    #[error(
        "{algorithm} is not cryptographic: a pool that indexes it must verify hits \
         (verify = \"fingerprint\" or \"tokens\")"
    )]
    UnverifiedAlgorithm { algorithm: HashAlgorithm },
    /// The pool verifies hits, but the chain does not contain the data that a verification compares.
    #[error(
        "the pool verifies hits by {verify}, the hash chain does not carry them: \
         use a hasher with the same setting"
    )]
    MissingVerification { verify: &'static str },
    /// The chain was hashed before the last epoch bump.
    #[error("the hash chain belongs to epoch {chain}, the pool is in epoch {pool}: hash the tokens again")]
    StaleEpoch { chain: u64, pool: u64 },
    /// The pool cannot be reset while blocks are in use.
    #[error(
        "{active} blocks are active and {fenced} fenced: release them first, \
         or bump the epoch, which always succeeds"
    )]
    InUse { active: usize, fenced: usize },
    /// A pool cannot shrink.
    #[error("cannot resize from {from} to {to} blocks: a pool only grows, up to {max} blocks")]
    Shrink { from: usize, to: usize, max: usize },
    /// The call needs retention, but the pool was made without it.
    #[error("this pool has no retention: make it with a retention configuration to {operation}")]
    NoRetention { operation: &'static str },
    /// The time is earlier than a time that was passed before.
    #[error("the time {now} is before {before}, which was passed earlier: time does not go backwards")]
    TimeBackwards { now: Box<str>, before: Box<str> },
    /// A block of the match no longer has the content that the lookup found.
    #[error(
        "block {block} no longer holds what it did when it matched (block {position} of the match): \
         look it up again"
    )]
    StaleMatch { block: BlockId, position: usize },
    /// The hasher returned an error: see [`HashError`].
    #[error(transparent)]
    Hash(Box<HashError>),
    /// An internal invariant is broken. The pool refuses every operation.
    #[error("this pool is poisoned and refuses work: {reason}")]
    Poisoned { reason: String },
}

// Frequent calls return this error type, so it has to be small. Data that only few errors need is
// boxed.
const _: () = assert!(size_of::<PoolError>() <= 48);

impl PoolError {
    /// Makes a [`Self::InvalidConfig`] for a `field` with a value that is not allowed.
    #[must_use]
    pub fn config(field: &'static str, value: impl fmt::Display, expected: impl Into<String>) -> Self {
        let detail = ConfigDetail { value: value.to_string(), expected: expected.into() };
        Self::InvalidConfig { field, detail: Box::new(detail) }
    }
}

impl From<HashError> for PoolError {
    fn from(error: HashError) -> Self {
        Self::Hash(Box::new(error))
    }
}

/// The details of a [`PoolError::InvalidConfig`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConfigDetail {
    /// The value.
    pub value: String,
    /// The allowed values.
    pub expected: String,
}

/// A broken invariant that a check has found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invariant {invariant} is broken: {detail}")]
pub struct InvariantViolation {
    /// The number and the name of the invariant, as listed in design/invariants.md.
    pub invariant: &'static str,
    /// The expected and the actual state.
    pub detail: String,
}

impl InvariantViolation {
    /// Makes the violation of `invariant`.
    #[must_use]
    pub fn new(invariant: &'static str, detail: impl Into<String>) -> Self {
        Self { invariant, detail: detail.into() }
    }
}

/// Returns `Ok` if `holds` is true. Otherwise returns an [`InvariantViolation`] with the text that
/// `detail` returns.
///
/// # Errors
/// The violation, if `holds` is false.
pub fn ensure(
    holds: bool,
    invariant: &'static str,
    detail: impl FnOnce() -> String,
) -> Result<(), InvariantViolation> {
    if holds { Ok(()) } else { Err(InvariantViolation::new(invariant, detail())) }
}
