//! `States`: what is known of each block, and its place among those of its class.
//!
//! Owns: one entry of 16 bytes per block. A block that waits is on the list of its class, so its class
//! is the number of its list.
//!
//! Invariant: what is on a list has a class. What has a class and is on no list is put aside: a block
//! hangs on it.
//!
//! Costs: 16 bytes per block.

use super::class::{self, CLASSES, History};
use crate::block_lists::Members;
use kvpool::parts::{Link, Links, try_reserve};
use kvpool::{BlockId, PoolError};

/// What is known of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct State {
    /// Its last release, or its last use while it is held.
    pub(super) stamp: u32,
    /// At its last release; in use, what was said of the request that will release it.
    pub(super) class: u16,
    pub(super) history: History,
}

/// Of a block without a content.
pub(super) const UNKNOWN: State = State { stamp: 0, class: class::UNSAID, history: History::NEW };

/// Two are compared as one number: runs of blocks are found by it.
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

/// By block.
#[derive(Clone, Debug, Default)]
pub(super) struct States(Vec<Entry>);

impl States {
    /// With the null block.
    pub(super) const fn len(&self) -> usize {
        self.0.len()
    }

    /// That of a real block.
    #[inline]
    pub(super) fn get(&self, block: BlockId) -> Option<&State> {
        self.0.get(block.index()).filter(|_| !block.is_null()).map(|entry| &entry.state)
    }

    /// That of a real block, to be changed: not the class of one that is on a list.
    #[inline]
    pub(super) fn get_mut(&mut self, block: BlockId) -> Option<&mut State> {
        self.entry_mut(block).map(|entry| &mut entry.state)
    }

    #[inline]
    pub(super) fn entry_mut(&mut self, block: BlockId) -> Option<&mut Entry> {
        self.0.get_mut(block.index()).filter(|_| !block.is_null())
    }

    /// All of them.
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
        // Taken off a list it keeps its class: it teaches with it when it comes back.
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
