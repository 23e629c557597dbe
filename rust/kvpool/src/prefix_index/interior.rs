//! `Interior`: names of the hash units inside blocks, for hits that end there
//! ([`crate::groups::GroupSpec::partial_hits`]).
//!
//! A block of several hash units is registered under the digest of its last one. Its *interior* are the
//! units before, each of which stands for the prefix that ends with it. A lookup that found whole
//! blocks goes on here for the block behind them.
//!
//! Owns: an index over records of its own, one per unit that can lie inside a block, so rings, copies
//! and checks are those of [`Index`]. Of several blocks that begin alike the one that was named first
//! is found.
//!
//! Invariants: P4: only registered blocks have an interior; a block that leaves the index takes it
//! along. P5: of a block the first units are named, without a gap: what is found behind `n` units is
//! found behind each fewer.
//!
//! Costs: 72 bytes per unit, all of it at construction; O(units) per block that is named or leaves.

use super::index::Index;
use crate::block::{BlockId, MAX_BLOCKS};
use crate::error::{InvariantViolation, PoolError, ensure};
use crate::hash::{BlockHash, Verify};
use crate::list::try_reserve;
use crate::record::{ByBlock, Name, Record, Records, blank, grow};

/// What is inside the blocks of a pool.
#[derive(Clone, Debug)]
pub(crate) struct Interior {
    /// Units inside a block, at most.
    per_block: usize,
    /// By unit; a block's own are neighbours.
    records: Vec<Record>,
    index: Index,
    /// Reused by every call.
    units: Vec<BlockId>,
}

impl Interior {
    /// Nothing is named. Blocks have at most `per_block` units inside.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] for more units than there are numbers, or than there is memory for.
    pub(super) fn new(num_blocks: usize, per_block: usize) -> Result<Self, PoolError> {
        let units = Self::count(num_blocks, per_block)?;
        let index = Index::new(units, 1, Verify::None)?;
        Ok(Self { per_block, records: blank(units)?, index, units: Vec::with_capacity(per_block) })
    }

    /// Records for so many blocks. The null block has some, too, so that no unit has its number.
    fn count(num_blocks: usize, per_block: usize) -> Result<usize, PoolError> {
        let units = num_blocks.checked_mul(per_block).filter(|&units| units <= MAX_BLOCKS);
        units.ok_or_else(|| {
            let allowed = format!("at most {MAX_BLOCKS} hash units inside {num_blocks} blocks");
            PoolError::config("partial_hits", format!("{per_block} a block"), allowed)
        })
    }

    /// Makes room for blocks up to `num_blocks - 1`. Nothing has changed if there is no memory.
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

    /// Names the first units of a real block, which has none that are named, in a group.
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

    /// Whether something inside a block is named.
    pub(super) fn names(&self, block: BlockId) -> bool {
        self.units_of(block).next().is_some_and(|first| self.records.at(first.get()).is_registered())
    }

    /// The block that has a unit of this name inside.
    pub(super) fn find(&self, name: Name<'_>) -> Option<BlockId> {
        let unit = self.index.head_of_name(&self.records, name)?;
        Some(BlockId::new(unit.get() / self.per_block as u32))
    }

    /// Forgets what is inside a block.
    pub(super) fn remove(&mut self, block: BlockId) {
        let of_block = self.units_of(block);
        let Self { records, index, units, .. } = self;
        units.clear();
        units.extend(of_block.take_while(|unit| records.at(unit.get()).is_registered()));
        index.remove_run(records, units, |_, _, _| {});
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.index.clear(&mut self.records);
    }

    /// P4 and P5, and those of its own index. `blocks` are the records of the pool's.
    pub(super) fn check_invariants(&self, blocks: &Records) -> Result<(), InvariantViolation> {
        self.index.check_invariants(&self.records)?;
        for (at, units) in self.records.chunks(self.per_block).enumerate() {
            let named = units.iter().filter(|unit| unit.is_registered()).count();
            let leading = units.iter().take_while(|unit| unit.is_registered()).count();
            ensure(named == leading, "P5 (the first units of a block are named)", || {
                format!("{named} of block {at}, the first {leading}")
            })?;
            let registered = blocks.at(at as u32).is_registered();
            ensure(named == 0 || registered, "P4 (what has an interior is registered)", || {
                format!("block {at} is not, and has {named} units")
            })?;
        }
        Ok(())
    }
}

/// What an index knows of the units inside its blocks.
impl Index {
    /// From now on units inside blocks can be named, at most `per_block` of each.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there are too many, or no memory; then nothing has changed.
    pub(crate) fn keep_interior(&mut self, num_blocks: usize, per_block: usize) -> Result<(), PoolError> {
        self.interior = Some(Box::new(Interior::new(num_blocks, per_block)?));
        Ok(())
    }

    /// Names the first units inside a registered block, as far as there is room, if none is named.
    pub(crate) fn name_interior(&mut self, block: BlockId, hashes: &[BlockHash], group: u16) {
        if let Some(interior) = self.interior.as_mut().filter(|interior| !interior.names(block)) {
            interior.name(block, hashes, group);
        }
    }

    /// The block that was named first of those with a unit of this name inside.
    pub(crate) fn find_interior(&self, name: Name<'_>) -> Option<BlockId> {
        self.interior.as_ref()?.find(name)
    }

    /// Units inside a block that can be named.
    pub(crate) fn interior_units(&self) -> usize {
        self.interior.as_ref().map_or(0, |interior| interior.per_block())
    }
}
