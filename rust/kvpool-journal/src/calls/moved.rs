//! Translates the calls of one run into calls of another run, which has other blocks, swaps, or another
//! epoch.

use hashbrown::HashMap;
use kvpool::BlockId;

use super::{Mention, Slot};
use crate::{Answer, Ids};

/// The ids in which two runs of the same calls differ.
#[derive(Debug, Default)]
pub struct Moved {
    /// Maps blocks of the recorded run to blocks of this run.
    blocks: HashMap<BlockId, BlockId>,
    /// Maps swaps of the recorded run to swaps of this run.
    swaps: HashMap<u64, u64>,
}

impl Moved {
    /// Returns the block of this run for a recorded block. A block that was never handed out keeps its
    /// id.
    fn block(&self, block: BlockId) -> BlockId {
        self.blocks.get(&block).copied().unwrap_or(block)
    }

    /// Replaces the ids in the arguments of a recorded call by those of this run. Prompts of the epoch
    /// `from` become prompts of the epoch `to`.
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

    /// Records the answers of a call in the recorded run and in this one.
    pub fn learn(&mut self, recorded: &Answer, own: &Answer) {
        self.blocks.extend(recorded.blocks.iter().copied().zip(own.blocks.iter().copied()));
        self.swaps.extend(recorded.swap.zip(own.swap));
    }

    /// Forgets everything, because a new process begins.
    pub(crate) fn clear(&mut self) {
        self.blocks.clear();
        self.swaps.clear();
    }
}
