//! Registers contents under names from the caller. These contents count as computed at once, may belong
//! to any KV-cache group, and may use a hash function that the index does not know.

use super::index::{Index, Visibility};
use crate::block::BlockId;
use crate::hash::{BlockHash, HashAlgorithm, LinkRef};
use crate::record::{ByBlock, COMPUTED, DEPTH, HIDDEN, Records};

impl Index {
    /// Returns the description of a content: its hash, its position `depth` in its hash chain, and the
    /// hash of the previous content, if known.
    pub(crate) fn link(hash: BlockHash, depth: u32, parent: Option<BlockHash>) -> LinkRef<'static> {
        // Any algorithm can be used here, because no code compares this field. The index stores the
        // algorithm of its chains itself.
        let algorithm = HashAlgorithm::default();
        LinkRef { algorithm, hash, fingerprint: None, tokens: None, depth, parent }
    }

    /// Registers blocks under these hashes in a group, without parent hashes, and marks them computed.
    /// `depth` returns the position of each content in its chain. The blocks must not include the null
    /// block. Stops at the first block that is already registered, or whose name already exists.
    /// Returns the number of blocks registered.
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
        if let Some(known) = &mut self.known {
            blocks[..done].iter().for_each(|&block| known.forget(block));
        }
        if self.keeps_parents() {
            for (at, (&block, &hash)) in blocks[..done].iter().zip(hashes).enumerate() {
                self.note_more(block, &Self::link(hash, depth(at), None));
            }
        }
        done
    }

    /// Registers a block that is not registered, and marks it computed. Lookups prefer older blocks
    /// with the same name. Returns whether no other computed block has this name.
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

    /// Hides a registered block: lookups no longer find it by its name. It keeps its hash, its
    /// position, its parent hash and whether it is computed.
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
