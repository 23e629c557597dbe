//! Defines the results of admissions and of lookups without admission.

use crate::BlockId;
use crate::tiers::Fit;

/// The result of an admission.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Admission {
    /// Number of leading tokens whose KV is cached. The engine computes the tokens after them. The
    /// number is a multiple of the block size, and less than the length of the prompt.
    pub cached_tokens: usize,
    /// Number of leading blocks of the table that are cached. Other requests may share these blocks, so
    /// the engine must not write to them.
    pub cached_blocks: usize,
    /// Number of tokens after the cached ones that a connector has to load now: see
    /// [`crate::CacheManager::external_done`].
    pub external_tokens: usize,
    /// The whole block table of the request. If the model has several KV-cache groups, the table of the
    /// first group.
    pub block_ids: Vec<BlockId>,
    /// The block tables of the other groups: see [`crate::CacheManager::group_table`].
    pub other_tables: Vec<Vec<BlockId>>,
    /// Number of tokens that a hit could have if only the groups of full attention limited it. It is
    /// above [`Self::cached_tokens`] if another group no longer has the blocks for a longer hit.
    pub full_tokens: usize,
}

/// The result of looking a prompt up without admitting it: see [`crate::CacheManager::fit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AdmissionFit {
    /// Whether the prompt would be admitted now.
    pub fit: Fit,
    /// Number of leading tokens of the prompt that are cached.
    pub cached_tokens: usize,
    /// Number of blocks that the admission would allocate.
    pub new_blocks: usize,
    /// Number of tokens, after the cached and external tokens, for which blocks could be allocated now.
    /// This is the largest possible [`crate::Part::allocate_tokens`].
    pub fitting_tokens: usize,
    /// Whether the prompt can ever be computed in this pool, in chunks of
    /// [`crate::Part::allocate_tokens`] or as a whole. The answer depends only on the groups, the
    /// number of blocks, the length of the prompt and the [`crate::Part`].
    pub can_ever_fit: bool,
}

/// The part of one KV-cache group in an admission that was only looked up: see
/// [`crate::CacheManager::fit_groups`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupFit {
    /// Number of tokens that a hit could have if only this group limited it.
    pub reach_tokens: usize,
    /// Number of blocks that the admission would allocate in this group.
    pub new_blocks: usize,
}
