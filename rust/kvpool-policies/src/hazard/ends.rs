//! `Ends`: finds the block of a class that is evicted first. It is the oldest or the newest idle block
//! of the class.
//!
//! The *hazard* of a block is the rate at which blocks of its class and age are used again. In most
//! classes the hazard falls with age, so the oldest block has the lowest worth. If blocks of a class
//! are used again only after a long time, the hazard rises with age. Then the newest block has the
//! lowest worth, because the cache would have to keep it the longest. In a loop larger than the cache,
//! evicting the oldest block first never hits. Evicting the newest block first keeps a part of the
//! loop.
//!
//! The newest block of a class is the head of the last release. [`crate::Closed`] parks it and its
//! descendants until it finds the last block of the chain, and evicts that block.
//!
//! Costs: one lookup of a worth, and another one if younger blocks may have a lower worth. Each takes
//! O(1), or O(bins) when a class is first used after worths were learned.

use super::clock::Clock;
use super::states::States;
use super::table::{Table, newer};
use super::tails::Run;
use crate::block_lists::BlockLists;
use kvpool::BlockId;

pub(super) struct Ends<'a> {
    pub(super) lists: &'a BlockLists<States>,
    pub(super) clock: Clock,
    pub(super) table: &'a mut Table,
}

impl Ends<'_> {
    /// Returns the end of `class` (its oldest or its newest block) with the lower worth (expected hits
    /// per tick), and its rank in the order of eviction. Of two blocks with equal worth, the older one
    /// has the lower rank.
    #[inline]
    pub(super) fn least(&mut self, class: u16) -> Option<(u64, Run)> {
        let stamp = |block: BlockId| Some(self.lists.members.get(block)?.stamp);
        let rank = |worth: u32, age: u32| u64::from(worth) << 32 | u64::from(u32::MAX - age);
        let run = Run { class, stamp: stamp(self.lists.front(class.into())?)?, oldest: true };
        let old = self.clock.age(run.stamp);
        let worths = self.table.worths(class);
        let oldest = (rank(worths.at(old), old), run);
        let run = Run { class, stamp: stamp(self.lists.back(class.into())?)?, oldest: false };
        let young = self.clock.age(run.stamp);
        // The front of a list is usually the oldest block. A block that was put back after it was set
        // aside is also at the front, and may be younger.
        if young <= old && !worths.may_rise(old) {
            return Some(oldest);
        }
        let newest = (rank(newer(worths.at(young)), young), run);
        Some(if newest.0 < oldest.0 { newest } else { oldest })
    }
}

#[cfg(test)]
mod tests {
    use super::super::age;
    use super::*;

    #[test]
    fn late_reuse_evicts_the_newest_and_falling_hazard_the_oldest() {
        let (old, new) = (BlockId::new(1), BlockId::new(2));
        let mut lists = BlockLists::<States>::new(4, 3).unwrap();
        let mut clock = Clock::default();
        clock.set_callers_time(0.0);
        clock.set_callers_time(20.0);
        let mut table = Table::new().unwrap();
        table.event(1, age::bin(30 * age::SECOND), 1000); // class 1 comes back after half a minute
        table.event(2, age::bin(age::SECOND), 1000); // class 2 comes back after a second
        table.learn();
        for (class, least) in [(1, new), (2, old), (3, old)] {
            lists.clear();
            lists.members.get_mut(new).unwrap().stamp = clock.now();
            lists.push_back(class, old);
            lists.push_back(class, new);
            let mut ends = Ends { lists: &lists, clock, table: &mut table };
            assert_eq!(ends.least(class as u16).map(|(_, run)| run.oldest), Some(least == old), "{class}");
            assert_eq!(ends.least(0), None);
        }
        // The block that was put back is at the front of the list, but is younger than the block at the
        // back.
        lists.clear();
        lists.members.get_mut(new).unwrap().stamp = clock.now();
        lists.push_back(2, old);
        lists.push_front(2, new);
        let mut ends = Ends { lists: &lists, clock, table: &mut table };
        assert!(ends.least(2).is_some_and(|(_, run)| !run.oldest));
    }
}
