//! `States`: the state of each block, and its links in the list of its class.
//!
//! There is one entry of 16 bytes per block. An idle block is on the list of its class. The number of a
//! list is the number of its class.
//!
//! Invariant: a block on a list has a class. A block with a class that is on no list was set aside,
//! because it has children.
//!
//! Costs: 16 bytes per block.

use super::class::{self, CLASSES, History};
use crate::block_lists::Members;
use kvpool::parts::{Link, Links, try_reserve};
use kvpool::{BlockId, PoolError};

/// The state of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct State {
    /// The time of the last release. If the block is held, it is the time of the last use.
    pub(super) stamp: u32,
    /// The class at its last release. For a block in use, the encoded signal of the request that will
    /// release it.
    pub(super) class: u16,
    pub(super) history: History,
}

/// The state of a block that has no content.
pub(super) const UNKNOWN: State = State { stamp: 0, class: class::NO_SIGNAL, history: History::NEW };

/// Compares two states as one number each, because the policy compares states to find runs of equal
/// blocks, and has to be fast.
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

/// The entries, indexed by block.
#[derive(Clone, Debug, Default)]
pub(super) struct States(Vec<Entry>);

impl States {
    /// The number of entries, the null block included.
    pub(super) const fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the state of a block; `None` for the null block.
    #[inline]
    pub(super) fn get(&self, block: BlockId) -> Option<&State> {
        self.0.get(block.index()).filter(|_| !block.is_null()).map(|entry| &entry.state)
    }

    /// Returns the state of a block for changes; `None` for the null block. The caller must not change
    /// the class of a block on a list.
    #[inline]
    pub(super) fn get_mut(&mut self, block: BlockId) -> Option<&mut State> {
        self.entry_mut(block).map(|entry| &mut entry.state)
    }

    #[inline]
    pub(super) fn entry_mut(&mut self, block: BlockId) -> Option<&mut Entry> {
        self.0.get_mut(block.index()).filter(|_| !block.is_null())
    }

    /// Iterates over all states.
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
        // A block that leaves a list keeps its class. When the block is used again, the policy counts
        // the reuse for that class.
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
