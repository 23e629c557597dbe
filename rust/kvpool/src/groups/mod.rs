//! KV-cache groups: what a hybrid model keeps of a request.
//!
//! Most models of today mix layers that read everything with layers that read a window, a chunk, or a
//! recurrent state. Layers that keep the same are a *group*. A request has one block table per group,
//! all of them with blocks of one pool, and a hit of length L is of use only if every group still has
//! what a token at position L reads.
//!
//! Owns: the arithmetic of that, and nothing else: no blocks, no tables. Everything follows from one
//! function,
//! [`GroupKind::reach`]: the first token that the token at a position reads. What lies before it is dead, and a hit needs what lies
//! behind it.
//!
//! - [`GroupSpec`]: kind, block size, what stays cached, margin; [`Groups`]: the groups of a model, checked.
//! - [`Groups::longest_hit`]: the longest L that is legal in every group, in one walk (`hit`).
//! - [`Groups::kept`]: which blocks of a group are worth a place in the index (`keep`).
//! - [`Groups::peak_blocks`]: how many blocks a lone request takes, chunk by chunk (`peak`).
//! - [`Tokens`], [`HashUnits`], [`Blocks`]: three units that cannot be mixed (`units`).
//!
//! Costs: see each; no allocation but for what a hit returns.
//!
//! The kinds and their rules are those of vLLM 0.33 (`v1/kv_cache_interface.py`,
//! `v1/core/single_type_kv_cache_manager.py`); the walk is our own: one pass instead of a fixed point.

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

/// The groups of a model, which are numbered from 0 on.
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
/// # Ok::<(), kvpool::PoolError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Groups {
    specs: Vec<GroupSpec>,
    unit: usize,
    alignment: usize,
}

impl Groups {
    /// Groups with these specs. `unit` is how many tokens are hashed at a time; without one, as many as
    /// every block size is a multiple of.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`]: no group, or more than a name can tell apart; sizes that are 0; block sizes that are no
    /// multiples of the unit, or have no common multiple in range.
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

    /// The groups.
    #[must_use]
    pub fn specs(&self) -> &[GroupSpec] {
        &self.specs
    }

    /// Tokens of a hash unit.
    #[must_use]
    pub const fn unit(&self) -> usize {
        self.unit
    }

    /// What the length of a hit is a multiple of: the least common multiple of all block sizes, of the
    /// unit in the place of those of groups with [`GroupSpec::partial_hits`].
    #[must_use]
    pub const fn alignment(&self) -> Tokens {
        Tokens(self.alignment)
    }

    /// The longest hit of at most so many tokens, as far as block sizes go.
    #[must_use]
    pub const fn align(&self, tokens: Tokens) -> Tokens {
        Tokens(tokens.0 - tokens.0 % self.alignment)
    }

    /// These groups without hits that end inside blocks.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if the block sizes have no common multiple in range.
    pub fn in_whole_blocks(&self) -> Result<Self, PoolError> {
        let specs = self.specs.iter().map(|spec| GroupSpec { partial_hits: false, ..*spec });
        Self::new(specs.collect(), Some(self.unit))
    }

    /// Hash units behind which a hit can end inside a block ([`GroupSpec::partial_hits`]), at most: 0
    /// without such blocks.
    #[must_use]
    pub fn interior_units(&self) -> usize {
        let partial = self.specs.iter().filter(|spec| spec.partial_hits);
        partial.map(|spec| spec.block_tokens / self.unit - 1).max().unwrap_or(0)
    }

    /// Hash units that one block of a pool holds. A group of full attention holds every token, so its block
    /// counts: the smallest one of several. Without such a group the largest block of the cached groups
    /// counts. At least 1.
    #[must_use]
    pub fn units_per_block(&self) -> usize {
        let cached = || self.specs.iter().filter(|spec| spec.is_cached());
        let full = cached().filter(|spec| spec.kind.is_full()).map(|spec| spec.block_tokens).min();
        let tokens = full.or_else(|| cached().map(|spec| spec.block_tokens).max());
        tokens.map_or(1, |tokens| tokens / self.unit)
    }

    /// The hash unit whose digest names the block of a group at a position: the last one in it, for a
    /// digest stands for everything before it. `None` of a group that caches nothing.
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
