//! `States`: the state of each block, and its links in the list of its class.
//!
//! An idle block is on the list whose number is that of its class.
//!
//! Invariant: a block on a list has a class. A block with a class that is on no list was set aside,
//! because it has children.
//!
//! Costs: 16 bytes per block.

use super::class::{self, CLASSES, History};
use crate::block_lists::Members;
use kvpool::parts::{Link, Links, try_reserve};
use kvpool::{BlockId, PoolError};

/// The data that the policy stores for each block, apart from its links.
#[derive(Clone, Copy, Debug)]
pub(super) struct State {
    /// The time of the block's last release, in ticks. For a block in use, the time of the last use.
    pub(super) stamp: u32,
    /// The class of an idle block. For a block in use, the code of the signal of the request that will
    /// release it.
    pub(super) class: u16,
    pub(super) history: History,
}

/// The state of a block without content.
pub(super) const UNKNOWN: State = State { stamp: 0, class: class::NO_SIGNAL, history: History::NEW };

/// Compares two states as one number each. The comparison has to be fast, because the policy makes it
/// for each block of a request.
impl PartialEq for State {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        let whole = |state: &Self| {
            let History { uses, gap } = state.history;
            u64::from(state.stamp)
                | u64::from(state.class) << 32
                | u64::from(uses) << 48
                | u64::from(gap) << 56
        };
        whole(self) == whole(other)
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) link: Link,
    pub(super) state: State,
}

/// The state and the links of each block.
#[derive(Clone, Debug, Default)]
pub(super) struct States(Vec<Entry>);

impl States {
    pub(super) const fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the state of a block. `None` for the null block, and for a block that does not exist.
    #[inline]
    pub(super) fn get(&self, block: BlockId) -> Option<&State> {
        self.0.get(block.index()).filter(|_| !block.is_null()).map(|entry| &entry.state)
    }

    /// Returns the state of a block for changes. `None` for the null block, and for a block that does
    /// not exist. The caller must not change the class of a block on a list.
    #[inline]
    pub(super) fn get_mut(&mut self, block: BlockId) -> Option<&mut State> {
        self.entry_mut(block).map(|entry| &mut entry.state)
    }

    #[inline]
    pub(super) fn entry_mut(&mut self, block: BlockId) -> Option<&mut Entry> {
        self.0.get_mut(block.index()).filter(|_| !block.is_null())
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut State> {
        self.0.iter_mut().map(|entry| &mut entry.state)
    }
}

impl Links for States {
    #[inline]
    fn link(&self, id: u32) -> Option<&Link> {
        self.0.get(id as usize).map(|entry| &entry.link)
    }

    #[inline]
    fn link_mut(&mut self, id: u32) -> Option<&mut Link> {
        self.0.get_mut(id as usize).map(|entry| &mut entry.link)
    }

    fn num_links(&self) -> usize {
        self.0.len()
    }
}

impl Members for States {
    const MOST: usize = CLASSES;

    #[inline]
    fn list_of(&self, id: u32) -> Option<usize> {
        self.0.get(id as usize).filter(|entry| entry.link.is_linked()).map(|entry| entry.state.class.into())
    }

    #[inline]
    fn note(&mut self, id: u32, list: Option<usize>) {
        // A block that leaves a list keeps its class, because the next use of the block counts as a
        // reuse in this class.
        let entry = self.0.get_mut(id as usize).filter(|entry| entry.link.is_linked());
        if let (Some(entry), Some(list)) = (entry, list) {
            entry.state.class = list as u16; // below CLASSES
        }
    }

    fn clear(&mut self) {
        self.0.fill(Entry { link: Link::LOOSE, state: UNKNOWN });
    }

    fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        try_reserve(&mut self.0, num_blocks)?;
        self.0.resize(num_blocks, Entry { link: Link::LOOSE, state: UNKNOWN });
        Ok(())
    }
}
