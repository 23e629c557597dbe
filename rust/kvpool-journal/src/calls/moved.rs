//! Translates the recorded calls of one run for another run, which has different block ids and swap
//! ids, and may have another epoch.

use hashbrown::HashMap;
use kvpool::BlockId;

use super::{Mention, Slot};
use crate::{Answer, Ids};

/// The ids that differ between two runs of the same calls.
#[derive(Debug, Default)]
pub struct Moved {
    /// Maps block ids of the recorded run to those of this run.
    blocks: HashMap<BlockId, BlockId>,
    /// Maps swap ids of the recorded run to those of this run.
    swaps: HashMap<u64, u64>,
}

impl Moved {
    /// Returns the block id of this run for a recorded block id. If no call has returned the block, the
    /// id does not change.
    fn block(&self, block: BlockId) -> BlockId {
        self.blocks.get(&block).copied().unwrap_or(block)
    }

    /// Replaces the ids in the arguments of a recorded call by the ids of this run. Moves prompts from
    /// the epoch `from` to the epoch `to`.
    pub fn translate(&self, slots: Vec<Slot<'_>>, from: u64, to: u64) {
        let epoch = |epoch: &mut u64| *epoch = if *epoch == from { to } else { *epoch };
        for mention in slots.into_iter().flat_map(Slot::mentions) {
            match mention {
                Mention::Block(block) => *block = self.block(BlockId::new(*block)).get(),
                Mention::Blocks(ids) => {
                    let blocks: Vec<_> = ids.unpack().into_iter().map(|block| self.block(block)).collect();
                    *ids = Ids::pack(&blocks);
                }
                Mention::Chain(chain) => epoch(&mut chain.epoch),
                Mention::Epoch(hashed) => epoch(hashed),
                Mention::Swap(swap) => *swap = self.swaps.get(swap).copied().unwrap_or(*swap),
                Mention::Request(_) | Mention::Batch(_) | Mention::Ticket(_) => {}
            }
        }
    }

    /// Compares the answers of a call in the recorded run and in this run, and adds the new ids in them
    /// to the maps.
    pub fn learn(&mut self, recorded: &Answer, own: &Answer) {
        self.blocks.extend(recorded.blocks.iter().copied().zip(own.blocks.iter().copied()));
        self.swaps.extend(recorded.swap.zip(own.swap));
    }

    /// Empties both maps of ids. This is called at the point where the journal continues in a new
    /// process.
    pub(crate) fn clear(&mut self) {
        self.blocks.clear();
        self.swaps.clear();
    }
}
