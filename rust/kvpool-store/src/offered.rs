//! `OfferedBlocks`: the blocks of hash chains that were offered to a store, and that the store has not
//! lost since.
//!
//! An engine saves a conversation after each turn. With this record, it looks only at the blocks of
//! the last turn, and at blocks that the store lost: a write that was refused or failed, and objects
//! that were evicted, removed, damaged or missing.
//!
//! Owns: the set of offered blocks, and the log of losses. The store reports every loss.
//!
//! A digest identifies a whole prefix, so a block has one position in every chain that contains it.
//! Therefore a chain contains a lost block exactly if it has the lost digest at the block's position.
//!
//! Invariant: when a block was offered, all blocks before it in its chain were offered, too. Since then
//! each of them either is still in the set, or was lost, and its loss is in the log after the entry's
//! `losses`. If losses were dropped from the log, entries with older numbers are compared block by block.
//!
//! Cost: about 60 bytes per offered block, 40 per logged loss, and 70 per block with another name.

use std::collections::VecDeque;

use hashbrown::HashMap;
use kvpool::{BlockHash, HashCursor};

/// A block to be offered to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnofferedBlock {
    /// Position of the block in its chain.
    pub position: usize,
    /// Name of the block in the store.
    pub name: BlockHash,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    position: u32,
    /// Number of losses before all blocks up to this one were offered.
    losses: u64,
}

/// The blocks that were offered to a store and not lost since.
///
/// Blocks have names: their digests in epoch 0. A manager's epoch counts changes of weights in one
/// process, and the store's namespace already identifies the weights.
#[derive(Debug, Default)]
pub struct OfferedBlocks {
    /// Offered blocks, by name.
    offered: HashMap<BlockHash, Entry>,
    /// The last losses, oldest first.
    log: VecDeque<(BlockHash, u32)>,
    /// Number of losses that are no longer in `log`.
    dropped: u64,
    /// The names of blocks whose epoch is not 0, by digest.
    names: HashMap<BlockHash, BlockHash>,
    /// Largest number of losses in the log: the last `most` of a caller.
    most: usize,
    /// Number of blocks at which a call has looked.
    #[cfg(test)]
    looked_at: std::cell::Cell<usize>,
}

impl OfferedBlocks {
    /// Marks the first `blocks` blocks of a chain as offered. Returns those that were not offered
    /// before or were lost since, in ascending order. The caller MUST offer them to the store, and
    /// report each block that it does not offer with [`Self::lose`], unless the store has the object.
    ///
    /// If more than `most` blocks would be remembered, forgets all of them first. Then every block of
    /// a chain is returned once more. Choose at least the number of blocks of all live chains.
    ///
    /// Costs: O(returned blocks + losses since the previous call for this chain), but at most
    /// O(`blocks`).
    ///
    /// # Panics
    /// If the chain has fewer than `blocks` blocks.
    pub fn offer(&mut self, cursor: &HashCursor, blocks: usize, most: usize) -> Vec<UnofferedBlock> {
        self.most = most;
        let mut unoffered = self.unoffered(cursor, blocks);
        if self.offered.len() + unoffered.len() > most && !self.offered.is_empty() {
            self.forget_all();
            unoffered = self.unoffered(cursor, blocks);
        }
        let losses = self.losses();
        for &UnofferedBlock { position, name } in &unoffered {
            self.offered.insert(name, Entry { position: position as u32, losses });
        }
        let last = blocks.checked_sub(1).and_then(|last| self.name(cursor, last));
        if let Some(entry) = last.and_then(|name| self.offered.get_mut(&name)) {
            entry.losses = losses;
        }
        unoffered
    }

    fn unoffered(&mut self, cursor: &HashCursor, blocks: usize) -> Vec<UnofferedBlock> {
        let last = (0..blocks).rev().find_map(|at| Some((at, *self.offered.get(&self.name(cursor, at)?)?)));
        let (first, losses) = last.map_or((0, 0), |(at, entry)| (at + 1, entry.losses));
        let mut unoffered = Vec::new();
        let logged = losses.checked_sub(self.dropped).map(|skipped| self.log.range(skipped as usize..));
        match logged.filter(|logged| logged.len() < first) {
            Some(logged) => {
                let positions = logged.map(|&(name, position)| (position as usize, name));
                let lost = positions.filter(|&(at, name)| at < first && self.name(cursor, at) == Some(name));
                unoffered.extend(lost);
                unoffered.sort_unstable_by_key(|&(at, _)| at);
                unoffered.dedup();
            }
            None => unoffered.extend((0..first).filter_map(|at| Some((at, self.name(cursor, at)?)))),
        }
        unoffered.extend((first..).zip(self.new_names(cursor, first, blocks)));
        unoffered
            .into_iter()
            .filter(|(_, name)| !self.offered.contains_key(name))
            .map(|(position, name)| UnofferedBlock { position, name })
            .collect()
    }

    /// Returns the names of all full blocks of a chain. O(blocks), plus one hash for each block whose
    /// epoch is not 0, unless its name is remembered. At most `most` names are remembered.
    pub fn names(&mut self, cursor: &HashCursor, most: usize) -> Vec<BlockHash> {
        let blocks = cursor.chain().len();
        let mut names: Vec<_> = (0..blocks).map_while(|at| self.name(cursor, at)).collect();
        if self.names.len() + blocks - names.len() > most {
            self.forget_all();
            names.clear();
        }
        names.extend(self.new_names(cursor, names.len(), blocks));
        names
    }

    /// Returns the name of a block, if it is known.
    fn name(&self, cursor: &HashCursor, at: usize) -> Option<BlockHash> {
        #[cfg(test)]
        self.looked_at.set(self.looked_at.get() + 1);
        let digest = cursor.chain().hashes()[at];
        if cursor.epoch() == 0 { Some(digest) } else { self.names.get(&digest).copied() }
    }

    /// Returns the names of the blocks from `first` on, and remembers them.
    fn new_names(&mut self, cursor: &HashCursor, first: usize, blocks: usize) -> Vec<BlockHash> {
        let digests = &cursor.chain().hashes()[first..blocks];
        if cursor.epoch() == 0 || digests.is_empty() {
            return digests.to_vec();
        }
        // If the name of the block before is not remembered, hash the chain from its first block on.
        let before = first.checked_sub(1).and_then(|before| self.name(cursor, before));
        let from = if before.is_some() { first } else { 0 };
        let names = cursor.hashes_in_epoch(0, from..blocks, before).split_off(first - from);
        self.names.extend(digests.iter().copied().zip(names.iter().copied()));
        names
    }

    /// Records that the store does not have an object. Has no effect if the block was not offered.
    pub fn lose(&mut self, name: &BlockHash) {
        let Some(entry) = self.offered.remove(name) else { return };
        self.log.push_back((*name, entry.position));
        if self.log.len() > self.most {
            self.log.pop_front();
            self.dropped += 1;
        }
    }

    /// Forgets all blocks, for example because the store has changed its namespace.
    pub(crate) fn forget_all(&mut self) {
        self.offered.clear();
        self.names.clear();
        self.dropped = self.losses();
        self.log.clear();
    }

    fn losses(&self) -> u64 {
        self.dropped + self.log.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Arc;

    use kvpool::{BlockHasher, ExtraKeys, HasherConfig};
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const MANY: usize = 1 << 20;

    fn cursor(epoch: u64, tokens: &[u32]) -> HashCursor {
        let hasher = BlockHasher::new(HasherConfig { block_size: 1, ..HasherConfig::default() }).unwrap();
        let mut cursor =
            HashCursor::new(Arc::new(hasher), ExtraKeys { epoch, ..ExtraKeys::default() }).unwrap();
        cursor.append(tokens);
        cursor
    }

    fn positions(unoffered: &[UnofferedBlock]) -> Vec<usize> {
        unoffered.iter().map(|block| block.position).collect()
    }

    /// Offers a conversation after each of 1000 turns. Returns the largest number of blocks at which one
    /// call has looked.
    fn looked_at_by_turns(
        epoch: u64,
        mut refuse: impl FnMut(&mut OfferedBlocks, &[UnofferedBlock]),
    ) -> usize {
        let mut offered = OfferedBlocks::default();
        let mut conversation = cursor(epoch, &[]);
        let turns = (0..1000_u32).map(|turn| {
            conversation.append(&[turn; 6]);
            offered.looked_at.set(0);
            let unoffered = offered.offer(&conversation, conversation.chain().len(), MANY);
            refuse(&mut offered, &unoffered);
            offered.looked_at.get()
        });
        turns.max().unwrap()
    }

    #[test]
    fn a_turn_looks_at_its_own_blocks_however_long_the_conversation_is() {
        for epoch in [0, 3] {
            let most = looked_at_by_turns(epoch, |_, unoffered| assert_eq!(unoffered.len(), 6));
            assert!(most <= 10, "{most} blocks of a turn of 6");
        }
    }

    /// As with the admission policy that writes an object at its second offer.
    #[test]
    fn a_turn_looks_at_few_blocks_if_each_block_is_refused_once() {
        let mut refused = HashSet::new();
        let most = looked_at_by_turns(0, |offered, unoffered| {
            assert!(unoffered.len() <= 12);
            let names = unoffered.iter().map(|block| block.name);
            names.filter(|name| refused.insert(*name)).for_each(|name| offered.lose(&name));
        });
        assert!(most <= 40, "{most} blocks of a turn of 6");
    }

    #[test]
    fn only_lost_blocks_of_a_chain_are_offered_again() {
        let mut offered = OfferedBlocks::default();
        let (one, other) = (cursor(0, &[1, 2, 3, 4, 5]), cursor(0, &[1, 2, 9, 9]));
        assert_eq!(positions(&offered.offer(&one, 4, MANY)), [0, 1, 2, 3]);
        assert_eq!(positions(&offered.offer(&other, 4, MANY)), [2, 3]);
        for at in [3, 1, 2] {
            offered.lose(&one.chain().hashes()[at]);
        }
        assert_eq!(positions(&offered.offer(&other, 4, MANY)), [1], "the others are not in this chain");
        assert_eq!(positions(&offered.offer(&one, 5, MANY)), [2, 3, 4]);
        offered.forget_all();
        assert_eq!(positions(&offered.offer(&one, 2, MANY)), [0, 1]);
    }

    #[derive(Clone, Debug)]
    enum Operation {
        /// Offers the first blocks of a chain. The bits of the second number are the refused blocks.
        Offer {
            chain: usize,
            blocks: usize,
            refused: u16,
        },
        Lose {
            chain: usize,
            at: usize,
        },
        Names(usize),
        ForgetAll,
    }

    fn operations() -> impl Strategy<Value = Operation> {
        let chain = 0..6_usize;
        prop_oneof![
            8 => (chain.clone(), 0..=12_usize, prop_oneof![Just(0), any::<u16>()])
                .prop_map(|(chain, blocks, refused)| Operation::Offer { chain, blocks, refused }),
            6 => (chain.clone(), 0..12_usize).prop_map(|(chain, at)| Operation::Lose { chain, at }),
            1 => chain.prop_map(Operation::Names),
            1 => Just(Operation::ForgetAll),
        ]
    }

    proptest! {
        /// The model is the set of blocks that a store has.
        #[test]
        fn the_blocks_that_the_store_does_not_have_are_offered(
            epoch in prop_oneof![Just(0_u64), Just(2)],
            most in prop_oneof![Just(MANY), 1..40_usize],
            operations in vec(operations(), 1..80),
        ) {
            // Six chains: they differ from the third or from the eighth block on.
            let tokens = |of: usize| (0..12).map(|at| match at {
                0..3 => 0,
                3..8 => of as u32 % 2,
                _ => of as u32,
            }).collect::<Vec<_>>();
            let chains: Vec<_> = (0..6).map(|of| cursor(epoch, &tokens(of))).collect();
            let names: Vec<_> = (0..6).map(|of| cursor(0, &tokens(of)).chain().hashes().to_vec()).collect();
            let mut offered = OfferedBlocks::default();
            let mut stored = HashSet::new();
            for operation in operations {
                match operation {
                    Operation::Offer { chain, blocks, refused } => {
                        let unoffered = offered.offer(&chains[chain], blocks, most);
                        let lacking: Vec<_> =
                            (0..blocks).filter(|&at| !stored.contains(&names[chain][at])).collect();
                        let found = positions(&unoffered);
                        if most == MANY {
                            prop_assert_eq!(&found, &lacking);
                        }
                        prop_assert!(found.is_sorted() && lacking.iter().all(|at| found.contains(at)));
                        for UnofferedBlock { position, name } in unoffered {
                            prop_assert_eq!(name, names[chain][position]);
                            if refused >> position & 1 == 0 {
                                stored.insert(name);
                            } else if !stored.contains(&name) {
                                offered.lose(&name);
                            }
                        }
                        prop_assert!(offered.offered.len() <= most.max(blocks));
                    }
                    Operation::Lose { chain, at } => {
                        stored.remove(&names[chain][at]);
                        offered.lose(&names[chain][at]);
                    }
                    Operation::Names(chain) => {
                        prop_assert_eq!(&offered.names(&chains[chain], most), &names[chain]);
                    }
                    Operation::ForgetAll => {
                        offered.forget_all();
                        stored.clear();
                    }
                }
            }
        }
    }
}
