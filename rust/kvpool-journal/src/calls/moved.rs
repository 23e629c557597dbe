//! Calls of one run in another: other blocks, other swaps, another epoch.

use hashbrown::HashMap;
use kvpool::BlockId;

use super::{Mention, Slot};
use crate::{Answer, Ids};

/// The names in two runs of the same calls that differ, by their answers.
#[derive(Debug, Default)]
pub struct Moved {
    /// Blocks of the recorded run -> blocks of this one.
    blocks: HashMap<BlockId, BlockId>,
    /// Swaps of the recorded run -> swaps of this one.
    swaps: HashMap<u64, u64>,
}

impl Moved {
    /// The block of this run that stands for a recorded one. A block that was never handed out keeps its id.
    fn block(&self, block: BlockId) -> BlockId {
        self.blocks.get(&block).copied().unwrap_or(block)
    }

    /// Makes the arguments of a recorded call those of this run. Prompts of the epoch `from` become ones of
    /// the epoch `to`.
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

    /// Notes what a call answered in the recorded run and in this one.
    pub fn learn(&mut self, recorded: &Answer, own: &Answer) {
        self.blocks.extend(recorded.blocks.iter().copied().zip(own.blocks.iter().copied()));
        self.swaps.extend(recorded.swap.zip(own.swap));
    }

    /// Forgets everything: a new process begins.
    pub(crate) fn clear(&mut self) {
        self.blocks.clear();
        self.swaps.clear();
    }
}
