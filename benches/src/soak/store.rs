//! Where the KV would be: one number per token slot and tier, written, copied and read back as an engine would.
//!
//! Owns: what every slot holds, and the writes that steps under way have still to make. A block that is handed out is wiped, so
//! whoever reads it before writing it finds [`NOTHING`]; a fenced block is written to until its step completes, so whoever got
//! it too early finds somebody else's numbers.

use std::collections::BTreeMap;

use kvpool::{BlockId, Place, TransferPlan};

use super::Wrong;
use super::content::{Tag, cell};

/// What a slot holds that nobody has written since its block was handed out.
pub(crate) const NOTHING: u64 = 0;

/// KV by tier and slot.
#[derive(Debug)]
pub(crate) struct Store {
    block_size: usize,
    tiers: Vec<Vec<u64>>,
    /// Writes of steps under way to the device's slots.
    late: BTreeMap<u64, Vec<(usize, u64)>>,
    /// Reused by copies.
    moving: Vec<u64>,
}

impl Store {
    /// Empty slots for pools of so many blocks.
    pub(crate) fn new(block_size: usize, blocks: &[usize]) -> Self {
        let tiers = blocks.iter().map(|blocks| vec![NOTHING; blocks * block_size]).collect();
        Self { block_size, tiers, late: BTreeMap::new(), moving: Vec::new() }
    }

    /// Slots for more blocks of the device.
    pub(crate) fn grow(&mut self, blocks: usize) {
        self.tiers[0].resize(blocks * self.block_size, NOTHING);
    }

    const fn slot(&self, block: BlockId, offset: usize) -> usize {
        block.index() * self.block_size + offset
    }

    /// Forgets what a block held.
    pub(crate) fn wipe(&mut self, tier: usize, block: BlockId) {
        let from = self.slot(block, 0);
        self.tiers[tier][from..from + self.block_size].fill(NOTHING);
    }

    /// Writes the device's KV of tokens `from..to` of a request.
    pub(crate) fn write(&mut self, table: &[BlockId], tags: &[Tag], from: usize, to: usize, weights: u64) {
        for position in from..to {
            let block = table[position / self.block_size];
            if !block.is_null() {
                let slot = self.slot(block, position % self.block_size);
                self.tiers[0][slot] = cell(tags[position], weights);
            }
        }
    }

    /// Notes that `step`, under way, has still to write the KV of a request's tokens from `from` on.
    pub(crate) fn write_later(
        &mut self,
        step: u64,
        table: &[BlockId],
        tags: &[Tag],
        from: usize,
        weights: u64,
    ) {
        let block_size = self.block_size;
        let slots = (from..tags.len()).filter_map(|position| {
            let block = table[position / block_size];
            let slot = block.index() * block_size + position % block_size;
            (!block.is_null()).then(|| (slot, cell(tags[position], weights)))
        });
        self.late.entry(step).or_default().extend(slots);
    }

    /// The writes of `step` and of earlier ones happen.
    pub(crate) fn end_step(&mut self, step: u64) {
        while let Some(first) = self.late.first_entry()
            && *first.key() <= step
        {
            for (slot, value) in first.remove() {
                self.tiers[0][slot] = value;
            }
        }
    }

    /// Executes a plan: one simultaneous assignment.
    pub(crate) fn copy(&mut self, plan: &TransferPlan) {
        let mut moving = std::mem::take(&mut self.moving);
        moving.clear();
        for transfer in plan.transfers() {
            moving.extend_from_slice(self.block(transfer.src));
        }
        for (transfer, content) in plan.transfers().iter().zip(moving.chunks_exact(self.block_size)) {
            let from = self.slot(transfer.dst.block, 0);
            self.tiers[transfer.dst.tier][from..from + self.block_size].copy_from_slice(content);
        }
        self.moving = moving;
    }

    fn block(&self, place: Place) -> &[u64] {
        let from = self.slot(place.block, 0);
        &self.tiers[place.tier][from..from + self.block_size]
    }

    /// Compares the first `computed` tokens of a request with what it wrote: one slot per block, the last computed one, or all.
    pub(crate) fn read_back(
        &self,
        tier: usize,
        table: &[BlockId],
        tags: &[Tag],
        computed: usize,
        weights: u64,
        every_slot: bool,
    ) -> Result<(), Wrong> {
        for (index, &block) in table.iter().enumerate() {
            let start = index * self.block_size;
            if start >= computed {
                break;
            }
            if block.is_null() {
                continue;
            }
            let end = (start + self.block_size).min(computed);
            let first = if every_slot { start } else { end - 1 };
            for (position, &tag) in (first..end).zip(&tags[first..end]) {
                let found = self.tiers[tier][self.slot(block, position - start)];
                if found != cell(tag, weights) {
                    let what = if found == NOTHING { "nothing" } else { "the KV of other tokens or weights" };
                    return Err(Wrong(format!(
                        "block {block} of tier {tier} holds {what} where the KV of token {position} is expected"
                    )));
                }
            }
        }
        Ok(())
    }
}
