//! Defines KV-cache groups, which determine the blocks of a request that a hybrid model needs.
//!
//! Most current models combine layers that read all previous tokens with layers that read a window, a
//! chunk, or a recurrent state. Layers that need the KV of the same tokens form a *group*. A request
//! has one block table per group, and all tables take blocks from one pool. A hit of length L is only
//! usable if every group still has the blocks that a token at position L reads.
//!
//! This module only computes positions and lengths; it stores no blocks. All results follow from one
//! function, [`GroupKind::reach`], which returns the first token that the token at a position reads.
//! The KV of the tokens before that one is no longer needed. A hit needs the KV of the tokens from that
//! one on.
//!
//! - [`GroupSpec`] describes one group: its kind, block size, kept blocks and margin. [`Groups`]
//!   contains the checked groups of a model.
//! - [`Groups::longest_hit`] finds the longest hit that every group can serve, in one pass (`hit`).
//! - [`Groups::kept`] selects the blocks of a group that are worth keeping in the index (`keep`).
//! - [`Groups::peak_blocks`] returns the number of blocks that a single request takes if its prompt is
//!   computed in chunks (`peak`).
//! - [`Tokens`], [`HashUnits`] and [`Blocks`] are separate types for three units, so that they cannot
//!   be mixed up (`units`).
//!
//! Costs: see each function. No memory is allocated except for the results of hits.
//!
//! The kinds and their rules are those of vLLM 0.33 (`v1/kv_cache_interface.py`,
//! `v1/core/single_type_kv_cache_manager.py`). Only the search for hits differs: kvpool needs one pass
//! over the groups, and vLLM repeats its lookups.

mod hit;
pub(crate) mod keep;
mod peak;
mod spec;
mod units;

pub use hit::{Cached, GroupHit};
pub use keep::Boundaries;
pub use spec::{GroupKind, GroupSpec, Keep};
pub use units::{Blocks, HashUnits, Tokens};

use crate::error::PoolError;
use crate::record::Name;

/// The KV-cache groups of a model, numbered from 0 on.
///
/// ```
/// use kvpool::groups::{GroupKind, GroupSpec, Groups};
/// // Gemma 3: a window of 1,024 tokens beside full attention.
/// let groups = Groups::new(
///     vec![
///         GroupSpec::new(GroupKind::Full, 16),
///         GroupSpec::new(GroupKind::Sliding { window: 1024 }, 16),
///     ],
///     None,
/// )?;
/// assert_eq!((groups.unit(), groups.alignment().0), (16, 16));
///
/// // A manager hashes prompts in units, so `block_size` is the unit.
/// use kvpool::{CacheManager, ManagerConfig};
/// let block_size = groups.unit();
/// let config = ManagerConfig { block_size, groups: Some(groups), ..Default::default() };
/// let manager = CacheManager::new(config)?;
/// assert_eq!(manager.pool().block_size(), 16);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Groups {
    specs: Vec<GroupSpec>,
    unit: usize,
    alignment: usize,
}

impl Groups {
    /// Makes the groups of a model from their specs. `unit` is the number of tokens per hash. If it is
    /// `None`, the unit is the greatest common divisor of the block sizes of the groups that cache
    /// blocks.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there is no group, or more groups than group numbers; if a size
    /// is 0; if a block size is not a multiple of the unit; if the block sizes have no common multiple
    /// in range.
    pub fn new(specs: Vec<GroupSpec>, unit: Option<usize>) -> Result<Self, PoolError> {
        let most = usize::from(Name::MAX_GROUP) + 1;
        if specs.is_empty() || specs.len() > most {
            return Err(PoolError::config("groups", specs.len(), format!("from 1 to {most} groups")));
        }
        specs.iter().try_for_each(GroupSpec::check)?;
        let cached = || specs.iter().filter(|spec| spec.is_cached());
        let divisor = cached().fold(0, |divisor, spec| gcd(divisor, spec.block_tokens));
        let unit = unit.unwrap_or(divisor.max(1));
        if unit == 0 || !divisor.is_multiple_of(unit) {
            let allowed = format!("at least 1 token, and a divisor of every block size: of {divisor}");
            return Err(PoolError::config("unit", unit, allowed));
        }
        let common = |so_far: usize, size: usize| (so_far / gcd(so_far, size)).checked_mul(size);
        let Some(alignment) = cached().map(|spec| spec.granularity(unit)).try_fold(1, common) else {
            return Err(PoolError::config("groups", "of these block sizes", "a common multiple in range"));
        };
        Ok(Self { specs, unit, alignment })
    }

    /// The specs of the groups.
    #[must_use]
    pub fn specs(&self) -> &[GroupSpec] {
        &self.specs
    }

    /// Number of tokens in a hash unit, that is, per hash.
    #[must_use]
    pub const fn unit(&self) -> usize {
        self.unit
    }

    /// The alignment of hits: the length of every hit is a multiple of this number. It is the least
    /// common multiple of all block sizes. For a group with [`GroupSpec::partial_hits`], the hash unit
    /// is used instead of the block size.
    #[must_use]
    pub const fn alignment(&self) -> Tokens {
        Tokens(self.alignment)
    }

    /// Rounds `tokens` down to a possible length of a hit.
    #[must_use]
    pub const fn align(&self, tokens: Tokens) -> Tokens {
        Tokens(tokens.0 - tokens.0 % self.alignment)
    }

    /// Returns these groups without hits that end inside blocks.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if the block sizes have no common multiple in range.
    pub fn in_whole_blocks(&self) -> Result<Self, PoolError> {
        let specs = self.specs.iter().map(|spec| GroupSpec { partial_hits: false, ..*spec });
        Self::new(specs.collect(), Some(self.unit))
    }

    /// The largest number of hash units of a block after which a hit can end inside the block. 0 if no
    /// group has [`GroupSpec::partial_hits`].
    #[must_use]
    pub fn interior_units(&self) -> usize {
        let partial = self.specs.iter().filter(|spec| spec.partial_hits);
        partial.map(|spec| spec.block_tokens / self.unit - 1).max().unwrap_or(0)
    }

    /// Number of hash units that observers count as one block, because groups have blocks of different
    /// sizes. It is the size of the smallest block of the groups of full attention, because these hold
    /// every token. Without such a group, it is the size of the largest block that is cached. At least
    /// 1.
    #[must_use]
    pub fn units_per_block(&self) -> usize {
        let cached = || self.specs.iter().filter(|spec| spec.is_cached());
        let full = cached().filter(|spec| spec.kind.is_full()).map(|spec| spec.block_tokens).min();
        let tokens = full.or_else(|| cached().map(|spec| spec.block_tokens).max());
        tokens.map_or(1, |tokens| tokens / self.unit)
    }

    /// Returns the hash unit under whose digest the block at a position of a group's table is
    /// registered. It is the last unit in the block, because its digest covers everything before it.
    /// `None` for a group that caches nothing.
    #[must_use]
    pub fn naming_unit(&self, group: usize, at: Blocks) -> Option<HashUnits> {
        let spec = self.specs.get(group).filter(|spec| spec.is_cached())?;
        let per_block = spec.block_tokens / self.unit;
        Some(HashUnits(at.0.checked_add(1)?.checked_mul(per_block)?.checked_sub(1)?))
    }
}

const fn gcd(a: usize, b: usize) -> usize {
    let (mut a, mut b) = (a, b);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
