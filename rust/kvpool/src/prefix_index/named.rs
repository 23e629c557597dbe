//! Contents that somebody else names: computed from the start, in any group, by a hash function that
//! the index does not know.

use super::index::{Index, Visibility};
use crate::block::BlockId;
use crate::hash::{BlockHash, HashAlgorithm, LinkRef};
use crate::record::{ByBlock, COMPUTED, DEPTH, HIDDEN, Records};

impl Index {
    /// What is noted of a content with this hash at `depth`.
    pub(crate) fn link(hash: BlockHash, depth: u32, parent: Option<BlockHash>) -> LinkRef<'static> {
        // Nothing compares the algorithm: the index keeps that of its chains.
        let algorithm = HashAlgorithm::default();
        LinkRef { algorithm, hash, fingerprint: None, tokens: None, depth, parent }
    }

    /// Registers blocks, which are real, as computed ones, at these depths and behind nothing, as long
    /// as they are not registered and nothing has that name. Returns how many.
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

    /// Registers one block, which is real and not registered, as a computed one: the youngest of its
    /// name. Returns whether it is the only one.
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

    /// Takes a registered block away from its name, and leaves it everything else that it has.
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

    /// Nobody knows any more how deep in its chain the content of `block` is.
    pub(crate) fn forget_depth(records: &mut Records, block: BlockId) {
        if let Some(record) = records.of_mut(block) {
            record.flags &= !DEPTH;
        }
    }
}
