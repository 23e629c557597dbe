//! What admissions return, and what they would return.

use crate::BlockId;
use crate::tiers::Fit;

/// What a request got.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Admission {
    /// Leading tokens whose KV is cached: the engine computes from here on. A multiple of the block
    /// size, and less than the prompt.
    pub cached_tokens: usize,
    /// Leading blocks of the table that are cached, shared, and not to be written.
    pub cached_blocks: usize,
    /// Tokens behind the cached ones that a connector loads now: [`crate::CacheManager::external_done`].
    pub external_tokens: usize,
    /// The whole block table; that of the first group.
    pub block_ids: Vec<BlockId>,
    /// The block tables of the other groups: see [`crate::CacheManager::group_table`].
    pub other_tables: Vec<Vec<BlockId>>,
    /// How far the groups of full attention alone would have gone: more than [`Self::cached_tokens`] if
    /// another group had given up, or never kept, what a longer hit needs.
    pub full_tokens: usize,
}

/// What an admission would find: see [`crate::CacheManager::fit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AdmissionFit {
    /// Whether it would be admitted.
    pub fit: Fit,
    /// Leading tokens that are cached.
    pub cached_tokens: usize,
    /// Blocks that it would take besides.
    pub new_blocks: usize,
    /// Tokens behind the cached and external ones that could get blocks now: the most for
    /// [`crate::Part::allocate_tokens`].
    pub fitting_tokens: usize,
    /// Whether the prompt can ever be computed in this pool, in chunks of
    /// [`crate::Part::allocate_tokens`] or as a whole. Depends on the groups, the number of blocks, the
    /// length of the prompt and the [`crate::Part`] alone.
    pub can_ever_fit: bool,
}

/// What an admission would find in a group: see [`crate::CacheManager::fit_groups`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupFit {
    /// How far the group alone would serve a hit.
    pub reach_tokens: usize,
    /// Blocks that the admission would take in it, besides those that are cached.
    pub new_blocks: usize,
}
