//! `Interior` stores hashes of parts of blocks, for hits that end inside a block
//! ([`crate::groups::GroupSpec::partial_hits`]).
//!
//! A hash unit is a fixed number of tokens: a prompt has one digest per unit, which identifies the
//! whole prefix up to the end of the unit. A block of several units is registered under the digest of
//! its last unit. The digests of the units before the last, with the group, are their *names*. A lookup
//! first finds whole blocks, and then searches this structure for a part of one more block.
//!
//! `Interior` contains a separate [`Index`] with one record per unit inside a block. If several blocks
//! begin with the same units, a lookup finds the block that was named first.
//!
//! Invariants:
//! - P5: the named units of a block are its first units, without a gap. So if a lookup finds the first
//!   `n` units of a block, it also finds every smaller number of units.
//! - P6: only registered blocks have named units. A block that is removed from the index loses these
//!   names.
//!
//! Costs: 72 bytes per unit, which are all allocated at construction. Registering or removing the names
//! of a block takes O(units).

use super::index::Index;
use crate::block::{BlockId, MAX_BLOCKS};
use crate::error::{InvariantViolation, PoolError, ensure};
use crate::hash::{BlockHash, Verify};
use crate::list::try_reserve;
use crate::record::{ByBlock, Name, Record, Records, blank, grow};

/// Maps the names of hash units to the blocks that contain these units.
#[derive(Clone, Debug)]
pub(crate) struct Interior {
    /// The largest number of units per block that can have names.
    per_block: usize,
    /// One record per unit. The records of a block's units are next to each other.
    records: Vec<Record>,
    index: Index,
    /// A list of unit ids whose memory every call reuses.
    units: Vec<BlockId>,
}

impl Interior {
    /// Makes a map without names. Each block can have at most `per_block` named units.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there are more units than ids, or not enough memory.
    pub(super) fn new(num_blocks: usize, per_block: usize) -> Result<Self, PoolError> {
        let units = Self::count(num_blocks, per_block)?;
        let index = Index::new(units, 1, Verify::None)?;
        Ok(Self { per_block, records: blank(units)?, index, units: Vec::with_capacity(per_block) })
    }

    /// Returns the number of unit records for `num_blocks` blocks. The null block also has records, so
    /// that no unit of another block has id 0.
    fn count(num_blocks: usize, per_block: usize) -> Result<usize, PoolError> {
        let units = num_blocks.checked_mul(per_block).filter(|&units| units <= MAX_BLOCKS);
        units.ok_or_else(|| {
            let allowed = format!("at most {MAX_BLOCKS} hash units inside {num_blocks} blocks");
            PoolError::config("partial_hits", format!("{per_block} a block"), allowed)
        })
    }

    /// Allocates memory for a pool of `num_blocks` blocks. Changes nothing if there is not enough
    /// memory.
    pub(super) fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        let units = Self::count(num_blocks, self.per_block)?;
        try_reserve(&mut self.records, units)?;
        self.index.grow(&self.records, units)?;
        grow(&mut self.records, units)
    }

    pub(super) const fn per_block(&self) -> usize {
        self.per_block
    }

    pub(super) fn is_torn(&self) -> bool {
        self.index.is_torn()
    }

    fn units_of(&self, block: BlockId) -> impl Iterator<Item = BlockId> + use<> {
        let first = block.get() * self.per_block as u32;
        (first..first + self.per_block as u32).map(BlockId::new)
    }

    /// Registers the names of a block's first units in a group. The block must not be the null block,
    /// and must have no named units.
    pub(super) fn name(&mut self, block: BlockId, hashes: &[BlockHash], group: u16) {
        let of_block = self.units_of(block);
        let Self { records, index, units, .. } = self;
        units.clear();
        units.extend(of_block.take(hashes.len()));
        let mut done = 0;
        while done < units.len() {
            done += index.insert_named_run(records, &units[done..], &hashes[done..], group, |_| 0);
            if let (Some(&copy), Some(&hash)) = (units.get(done), hashes.get(done)) {
                index.insert_named(records, copy, &Index::link(hash, 0, None), group);
                done += 1;
            }
        }
    }

    pub(super) fn names(&self, block: BlockId) -> bool {
        self.units_of(block).next().is_some_and(|first| self.records.at(first.get()).is_registered())
    }

    /// Returns the block that contains the unit with this name. If several do, returns the one that was
    /// named first.
    pub(super) fn find(&self, name: Name<'_>) -> Option<BlockId> {
        let unit = self.index.head_of_name(&self.records, name)?;
        Some(BlockId::new(unit.get() / self.per_block as u32))
    }

    pub(super) fn remove(&mut self, block: BlockId) {
        let of_block = self.units_of(block);
        let Self { records, index, units, .. } = self;
        units.clear();
        units.extend(of_block.take_while(|unit| records.at(unit.get()).is_registered()));
        index.remove_run(records, units, |_, _, _| {});
    }

    /// Removes all names.
    pub(super) fn clear(&mut self) {
        self.index.clear(&mut self.records);
    }

    /// Checks that the named units of each block are its first units (P5), that only registered blocks
    /// have them (P6), and the invariants of the separate index. `blocks` are the records of the pool.
    pub(super) fn check_invariants(&self, blocks: &Records) -> Result<(), InvariantViolation> {
        self.index.check_invariants(&self.records)?;
        for (at, units) in self.records.chunks(self.per_block).enumerate() {
            let named = units.iter().filter(|unit| unit.is_registered()).count();
            let leading = units.iter().take_while(|unit| unit.is_registered()).count();
            ensure(named == leading, "P5 (the first units of a block are named)", || {
                format!("block {at} has {named} named units, but only {leading} without a gap")
            })?;
            let registered = blocks.at(at as u32).is_registered();
            ensure(named == 0 || registered, "P6 (a block with named units is registered)", || {
                format!("block {at} is not registered, and has {named} named units")
            })?;
        }
        Ok(())
    }
}

impl Index {
    /// Allocates memory for the names of at most `per_block` units per block.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there are too many units, or not enough memory. Nothing has
    /// changed then.
    pub(crate) fn keep_interior(&mut self, num_blocks: usize, per_block: usize) -> Result<(), PoolError> {
        self.interior = Some(Box::new(Interior::new(num_blocks, per_block)?));
        Ok(())
    }

    /// Registers the names of the first units inside a registered block, up to the maximum per block.
    /// Does nothing if units of the block already have names.
    pub(crate) fn name_interior(&mut self, block: BlockId, hashes: &[BlockHash], group: u16) {
        if let Some(interior) = self.interior.as_mut().filter(|interior| !interior.names(block)) {
            interior.name(block, hashes, group);
        }
    }

    /// Returns the block that was named first among those that contain a unit with this name.
    pub(crate) fn find_interior(&self, name: Name<'_>) -> Option<BlockId> {
        self.interior.as_ref()?.find(name)
    }

    /// Number of units inside each block that can have names.
    pub(crate) fn interior_units(&self) -> usize {
        self.interior.as_ref().map_or(0, |interior| interior.per_block())
    }
}
