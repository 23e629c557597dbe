//! Registers contents under names from the caller. Such blocks are computed from the start, may be in
//! any group, and may use a hash function that the index does not know.

use super::index::{Index, Visibility};
use crate::block::BlockId;
use crate::hash::{BlockHash, HashAlgorithm, LinkRef};
use crate::record::{ByBlock, COMPUTED, DEPTH, HIDDEN, Records};

impl Index {
    /// Makes the description of a content with this hash at position `depth` of its chain.
    pub(crate) fn link(hash: BlockHash, depth: u32, parent: Option<BlockHash>) -> LinkRef<'static> {
        // The value of this field does not matter, because no code compares it. The index stores the
        // algorithm of its chains itself.
        let algorithm = HashAlgorithm::default();
        LinkRef { algorithm, hash, fingerprint: None, tokens: None, depth, parent }
    }

    /// Registers blocks, which must not include the null block, at these depths and without parents,
    /// and marks them computed. Stops at the first block that is already registered, or whose name
    /// already exists. Returns the number of new registrations.
    #[inline]
    pub(crate) fn insert_named_run(
        &mut self,
        records: &mut Records,
        blocks: &[BlockId],
        hashes: &[BlockHash],
        group: u16,
        depth: impl Fn(usize) -> u32,
    ) -> usize {
        let done = self.enter_run(records, blocks, hashes, (group, COMPUTED), &depth);
        if self.keeps_parents() {
            for (at, (&block, &hash)) in blocks[..done].iter().zip(hashes).enumerate() {
                self.note_more(block, &Self::link(hash, depth(at), None));
            }
        }
        done
    }

    /// Registers one block that is not yet registered, and marks it computed. It becomes the newest
    /// block with its name. Returns whether no other computed block has this name.
    pub(crate) fn insert_named(
        &mut self,
        records: &mut Records,
        block: BlockId,
        link: &LinkRef<'_>,
        group: u16,
    ) -> bool {
        self.insert_in(records, block, link, group);
        self.mark_computed(records, block) == Visibility::Appeared
    }

    /// Removes the name of a registered block. Everything else about the block remains.
    pub(crate) fn hide(&mut self, records: &mut Records, block: BlockId) -> Visibility {
        let record = *records.at(block.get());
        let parent = self.parent_of(records, block);
        let visibility = self.remove(records, block);
        let link = Self::link(record.hash, record.depth(), parent);
        self.insert_in(records, block, &link, HIDDEN);
        if record.is_computed() {
            self.mark_computed(records, block);
        }
        visibility
    }

    /// Resets the depth of the content of `block` in its chain to 0.
    pub(crate) fn forget_depth(records: &mut Records, block: BlockId) {
        if let Some(record) = records.of_mut(block) {
            record.flags &= !DEPTH;
        }
    }
}
