//! Calls of one run in another: other blocks, another epoch.

use hashbrown::HashMap;
use kvpool::BlockId;

use super::Slot;
use crate::{Answer, Ids};

/// The differences between the answers of two runs of the same calls.
#[derive(Debug, Default)]
pub struct Moved {
    /// Blocks of the recorded run -> blocks of this one.
    blocks: HashMap<BlockId, BlockId>,
}

impl Moved {
    /// The block of this run that stands for a recorded one. A block that was never handed out keeps its id.
    fn block(&self, block: BlockId) -> BlockId {
        self.blocks.get(&block).copied().unwrap_or(block)
    }

    fn rename(&self, block: &mut u32) {
        *block = self.block(BlockId::new(*block)).get();
    }

    fn all(&self, ids: &mut Ids) {
        *ids = Ids::pack(&ids.unpack().into_iter().map(|block| self.block(block)).collect::<Vec<_>>());
    }

    /// Makes the arguments of a recorded call those of this run. Prompts of the epoch `from` become ones of
    /// the epoch `to`.
    pub fn translate(&self, slots: Vec<Slot<'_>>, from: u64, to: u64) {
        let epoch = |epoch: &mut u64| *epoch = if *epoch == from { to } else { *epoch };
        for slot in slots {
            match slot {
                Slot::Held(ids) | Slot::Part(ids) | Slot::Table(ids) | Slot::Named(ids) | Slot::Free(ids) => {
                    self.all(ids);
                }
                Slot::Numbers(blocks)
                | Slot::Claimed(blocks)
                | Slot::Objects(blocks)
                | Slot::Freed(blocks) => {
                    blocks.iter_mut().for_each(|block| self.rename(block));
                }
                Slot::Block(block) | Slot::Id(block) | Slot::Object(block) => self.rename(block),
                Slot::At(start) => start.before.iter_mut().for_each(|block| self.rename(block)),
                Slot::Found(found) => {
                    self.all(&mut found.blocks);
                    epoch(&mut found.chain.epoch);
                }
                Slot::Chain(chain) => epoch(&mut chain.epoch),
                Slot::Link(link) => epoch(&mut link.epoch),
                Slot::Count(_)
                | Slot::AtMost(_)
                | Slot::Start(_)
                | Slot::Size(_)
                | Slot::Step(_)
                | Slot::Ticket(_)
                | Slot::Until(_)
                | Slot::Seconds(_)
                | Slot::Tenant(_)
                | Slot::ForTenant(_)
                | Slot::Hint(_)
                | Slot::Ended(_)
                | Slot::Hash(_)
                | Slot::Parent(_)
                | Slot::Tokens(_)
                | Slot::Depth(_)
                | Slot::Group(_)
                | Slot::References(_)
                | Slot::Flag(_)
                | Slot::QueueEnd(_)
                | Slot::Hashes(_) => {}
            }
        }
    }

    /// Notes what a call answered in the recorded run and in this one.
    pub fn learn(&mut self, recorded: &Answer, own: &Answer) {
        self.blocks.extend(recorded.blocks.iter().copied().zip(own.blocks.iter().copied()));
    }

    /// Forgets everything: a new process begins.
    pub(crate) fn clear(&mut self) {
        self.blocks.clear();
    }
}
