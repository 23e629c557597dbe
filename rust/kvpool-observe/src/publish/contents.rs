//! `Contents`: what can be found in a pool, in each of its tiers, with its tokens, and what of it
//! consumers were told.
//!
//! A pool tells of hashes that come and go. Consumers want more: the tokens of each, its place in its
//! chain, and nothing that no lookup can reach. So this holds a copy of what the pools hold, brought up
//! to date away from their steps, and says what has changed since consumers were told last
//! ([`Contents::settle`]), or all of it ([`Contents::snapshot`]).
//!
//! Owns: which contents are *open*, and in which tiers: those in which they are, with tokens that are
//! known, and in groups where a block is of no use without the one before it at the start of a chain,
//! or behind a parent that is open in the same tier or a faster one. Those are what a lookup can reach,
//! and what is told. What hangs on a content that was dropped is not told any more until that is back;
//! nor is what the device holds behind a block that only host memory has, which no lookup there gets
//! to.
//!
//! Invariants, which [`Contents::check`] recounts: the table leads to each node and to no other; a node
//! that holds nothing and has no children is free; every child names its parent; a node is open exactly
//! where the rule says so; nothing closed is told behind a settling.
//!
//! Memory: per content 80 bytes, its tokens, and 8 for the table. Costs: O(1) per change, some 100 ns;
//! a parent that goes or comes back costs what hangs on it.

mod checks;
mod telling;

use std::sync::Arc;

use hashbrown::HashTable;
use kvpool::BlockHash;

use crate::publish::event::{Digest, Extra, Label};

/// No node.
const NONE: u32 = u32::MAX;

/// Tiers that a content can be in.
pub const MAX_TIERS: u8 = 8;

/// The tiers of a set of them, a bit each, the fastest first.
fn tiers(mut bits: u8) -> impl Iterator<Item = u8> {
    std::iter::from_fn(move || {
        let tier = bits.trailing_zeros();
        // Away with the lowest one; of none there is none.
        bits &= bits.checked_sub(1)?;
        Some(tier as u8)
    })
}

/// What a block was hashed with beside tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    /// What it shares with the other blocks of its request.
    pub label: Arc<Label>,
    /// What was its own.
    pub extra: Option<Arc<[Extra]>>,
}

#[derive(Clone, Debug)]
struct Node {
    digest: Digest,
    group: u16,
    /// Tiers that hold it, a bit each.
    tiers: u8,
    /// Tiers that consumers know it in.
    told: u8,
    /// Of the tiers that hold it, those in which it is open.
    open: u8,
    has_tokens: bool,
    /// Whether it waits for a settling.
    dirty: bool,
    parent: u32,
    first_child: u32,
    next: u32,
    before: u32,
    keys: Option<Box<Keys>>,
}

/// What changed, in the order in which it is to be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Everything that was told is void.
    Cleared,
    /// A run of nodes, each the parent of the next.
    Stored { tier: u8, nodes: Vec<u32> },
    /// Contents of a group.
    Removed { tier: u8, group: u16, digests: Vec<Digest> },
}

/// A content and what hangs on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival<'a> {
    pub(crate) tier: u8,
    pub(crate) digest: Digest,
    pub(crate) group: u16,
    pub(crate) parent: Option<Digest>,
    pub(crate) tokens: Option<&'a [u32]>,
}

/// The contents of one worker's pools.
#[derive(Clone, Debug)]
pub struct Contents {
    /// Tokens of a block, by group, and whether it is of no use without the one before it.
    groups: Vec<(usize, bool)>,
    /// Room for the tokens of each node.
    stride: usize,
    nodes: Vec<Node>,
    tokens: Vec<u32>,
    table: HashTable<u32>,
    free: Vec<u32>,
    /// Chains begin below this: a node of no content.
    first_root: u32,
    dirty: Vec<u32>,
    /// Whether all that was told is void.
    cleared: bool,
    /// Contents per tier.
    counts: [usize; MAX_TIERS as usize],
    /// The node of the latest arrival: the parent of the next, most often.
    latest: u32,
    ignored: u64,
    /// Of [`Self::update`], kept for its room.
    waiting: Vec<u32>,
}

impl Contents {
    /// By group: tokens of a block, and whether one is of no use without the one before it. Contents of
    /// other groups are ignored, and counted.
    #[must_use]
    pub fn new(groups: &[(usize, bool)]) -> Self {
        Self {
            stride: groups.iter().map(|&(tokens, _)| tokens).max().unwrap_or(0),
            groups: groups.to_vec(),
            nodes: Vec::new(),
            tokens: Vec::new(),
            table: HashTable::new(),
            free: Vec::new(),
            first_root: NONE,
            dirty: Vec::new(),
            cleared: false,
            counts: [0; MAX_TIERS as usize],
            latest: NONE,
            ignored: 0,
            waiting: Vec::new(),
        }
    }

    /// Contents in a tier.
    #[must_use]
    pub fn len(&self, tier: u8) -> usize {
        self.counts.get(usize::from(tier)).copied().unwrap_or(0)
    }

    /// Whether no tier holds anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.counts.iter().all(|&count| count == 0)
    }

    /// Changes of groups or tiers that there are not.
    #[must_use]
    pub const fn ignored(&self) -> u64 {
        self.ignored
    }

    /// Contents that are held and can't be told: their tokens are not known, or what is before them is
    /// not here.
    #[must_use]
    pub fn untold(&self) -> usize {
        self.nodes.iter().filter(|node| node.tiers != 0 && node.open == 0).count()
    }

    fn slot_of(hash: &BlockHash, group: u16) -> u64 {
        // A digest's bytes are as good as random; the high ones choose a bucket's tag.
        (hash.key() ^ u64::from(group)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    fn find(&self, digest: &Digest, group: u16) -> Option<u32> {
        let nodes = &self.nodes;
        let is_it = |&at: &u32| {
            nodes.get(at as usize).is_some_and(|node| node.digest.hash == digest.hash && node.group == group)
        };
        self.table.find(Self::slot_of(&digest.hash, group), is_it).copied()
    }

    fn node(&self, at: u32) -> Option<&Node> {
        self.nodes.get(at as usize)
    }

    /// A new node that holds nothing.
    fn add(&mut self, digest: Digest, group: u16) -> u32 {
        let node = Node {
            digest,
            group,
            tiers: 0,
            told: 0,
            open: 0,
            has_tokens: false,
            dirty: false,
            parent: NONE,
            first_child: NONE,
            next: NONE,
            before: NONE,
            keys: None,
        };
        let at = if let Some(at) = self.free.pop() {
            self.nodes[at as usize] = node;
            at
        } else {
            self.nodes.push(node);
            self.tokens.resize(self.nodes.len() * self.stride, 0);
            (self.nodes.len() - 1) as u32
        };
        let nodes = &self.nodes;
        self.table.insert_unique(Self::slot_of(&digest.hash, group), at, |&at| {
            nodes.get(at as usize).map_or(0, |node| Self::slot_of(&node.digest.hash, node.group))
        });
        at
    }

    /// The first of the siblings below a node, or of the chains.
    fn head_mut(&mut self, parent: u32) -> &mut u32 {
        match self.nodes.get_mut(parent as usize) {
            Some(node) => &mut node.first_child,
            None => &mut self.first_root,
        }
    }

    fn link(&mut self, at: u32, parent: u32) {
        let next = std::mem::replace(self.head_mut(parent), at);
        if let Some(next) = self.nodes.get_mut(next as usize) {
            next.before = at;
        }
        if let Some(node) = self.nodes.get_mut(at as usize) {
            (node.parent, node.next, node.before) = (parent, next, NONE);
        }
    }

    fn unlink(&mut self, at: u32) {
        let Some(node) = self.nodes.get(at as usize) else { return };
        let (parent, next, before) = (node.parent, node.next, node.before);
        match self.nodes.get_mut(before as usize) {
            Some(before) => before.next = next,
            None => *self.head_mut(parent) = next,
        }
        if let Some(next) = self.nodes.get_mut(next as usize) {
            next.before = before;
        }
        if let Some(node) = self.nodes.get_mut(at as usize) {
            (node.parent, node.next, node.before) = (NONE, NONE, NONE);
        }
    }

    /// Frees a node that holds nothing, on which nothing hangs, and which consumers need not be told of
    /// any more.
    fn free_if_idle(&mut self, at: u32) {
        let mut at = at;
        while let Some(node) = self.nodes.get(at as usize) {
            if node.tiers != 0 || node.first_child != NONE || node.dirty || self.is_free(at) {
                return;
            }
            let (digest, group, parent) = (node.digest, node.group, node.parent);
            self.unlink(at);
            let found = self.table.find_entry(Self::slot_of(&digest.hash, group), |&found| found == at);
            if let Ok(entry) = found {
                entry.remove();
            }
            if self.latest == at {
                self.latest = NONE;
            }
            let node = &mut self.nodes[at as usize];
            node.keys = None;
            node.group = FREE;
            self.free.push(at);
            at = parent;
        }
    }

    fn is_free(&self, at: u32) -> bool {
        self.nodes.get(at as usize).is_none_or(|node| node.group == FREE)
    }

    fn mark(&mut self, at: u32) {
        if let Some(node) = self.nodes.get_mut(at as usize)
            && !node.dirty
        {
            node.dirty = true;
            self.dirty.push(at);
        }
    }

    /// The tiers in which the rule says that a node is open.
    fn may_open(&self, at: u32) -> u8 {
        let Some(node) = self.node(at).filter(|node| node.has_tokens) else { return 0 };
        let parent = self.node(node.parent).filter(|_| self.is_chained(node.group));
        // No faster than the fastest of its parent's.
        let fastest = parent.map_or(0, |parent| parent.open.trailing_zeros());
        node.tiers & 0xff_u8.checked_shl(fastest).unwrap_or(0)
    }

    /// Opens or closes a node and what hangs on it, as the rule says.
    fn update(&mut self, at: u32) {
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.push(at);
        while let Some(at) = waiting.pop() {
            let open = self.may_open(at);
            let Some(node) = self.nodes.get_mut(at as usize).filter(|node| node.open != open) else {
                continue;
            };
            let fastest = node.open.trailing_zeros();
            node.open = open;
            // What hangs on it asks for its fastest tier alone.
            let mut child = if open.trailing_zeros() == fastest { NONE } else { node.first_child };
            self.mark(at);
            while let Some(node) = self.node(child) {
                waiting.push(child);
                child = node.next;
            }
        }
        self.waiting = waiting;
    }

    fn is_chained(&self, group: u16) -> bool {
        self.groups.get(usize::from(group)).is_none_or(|&(_, chained)| chained)
    }

    fn is_known(&mut self, tier: u8, group: u16) -> bool {
        let known = usize::from(group) < self.groups.len() && tier < MAX_TIERS;
        self.ignored += u64::from(!known);
        known
    }

    /// A content can be found in a tier.
    pub(crate) fn stored(&mut self, arrival: Arrival<'_>) {
        let Arrival { tier, digest, group, parent, tokens } = arrival;
        if !self.is_known(tier, group) {
            return;
        }
        let before = parent.map_or(NONE, |parent| self.node_of_parent(&parent, group));
        let at = self.find(&digest, group).unwrap_or_else(|| {
            let at = self.add(digest, group);
            self.link(at, before);
            at
        });
        if self.node(at).is_some_and(|node| node.tiers == 0) {
            self.hang(at, before);
        }
        let bit = 1 << tier;
        if let Some(node) = self.nodes.get_mut(at as usize)
            && node.tiers & bit == 0
        {
            node.tiers |= bit;
            self.counts[usize::from(tier)] += 1;
        }
        self.latest = at;
        self.give_tokens(at, tokens);
        self.mark(at);
        self.update(at);
        // What is named as its parent need not be: of one that was here already nothing changes.
        self.free_if_idle(before);
    }

    /// The node of what is named as a parent. What is not here may come: then this waits for it.
    fn node_of_parent(&mut self, parent: &Digest, group: u16) -> u32 {
        let latest = self.node(self.latest);
        if latest.is_some_and(|node| node.digest.hash == parent.hash && node.group == group) {
            return self.latest;
        }
        self.find(parent, group).unwrap_or_else(|| {
            let ghost = self.add(*parent, group);
            self.link(ghost, NONE);
            ghost
        })
    }

    /// Moves a node below another parent.
    fn hang(&mut self, at: u32, before: u32) {
        let Some(parent) = self.node(at).map(|node| node.parent).filter(|&parent| parent != before) else {
            return;
        };
        if !self.is_below(before, at) {
            self.unlink(at);
            self.link(at, before);
            self.free_if_idle(parent);
        }
    }

    /// Whether a node hangs on another one: what names such a parent is no chain.
    fn is_below(&self, at: u32, other: u32) -> bool {
        let mut at = at;
        while let Some(node) = self.node(at) {
            if at == other {
                return true;
            }
            at = node.parent;
        }
        false
    }

    fn give_tokens(&mut self, at: u32, tokens: Option<&[u32]>) {
        let Some(group) = self.node(at).map(|node| node.group) else { return };
        let len = self.block_tokens(group);
        let Some(node) = self.nodes.get_mut(at as usize) else { return };
        let Some(tokens) = tokens.filter(|tokens| tokens.len() == len && !node.has_tokens) else { return };
        let start = at as usize * self.stride;
        self.tokens[start..start + len].copy_from_slice(tokens);
        node.has_tokens = true;
    }

    /// What is before a content, its tokens, and what it was hashed with beside them, if it is here.
    pub(crate) fn learned(
        &mut self,
        digest: &Digest,
        group: u16,
        parent: Option<&Digest>,
        tokens: Option<&[u32]>,
        keys: Option<&Keys>,
    ) {
        let held = |&at: &u32| self.node(at).is_some_and(|node| node.tiers != 0);
        let Some(at) = self.find(digest, group).filter(held) else { return };
        if let Some(parent) = parent {
            let before = self.node_of_parent(parent, group);
            if self.node(at).is_some_and(|node| node.told == 0) {
                self.hang(at, before);
            }
            self.free_if_idle(before);
        }
        self.give_tokens(at, tokens);
        if let (Some(node), Some(keys)) = (self.nodes.get_mut(at as usize), keys)
            && node.told == 0
        {
            node.keys = Some(Box::new(keys.clone()));
        }
        self.update(at);
    }

    /// A content can no longer be found in a tier.
    pub(crate) fn removed(&mut self, tier: u8, digest: &Digest, group: u16) {
        if !self.is_known(tier, group) {
            return;
        }
        if let Some(at) = self.find(digest, group) {
            self.take(at, tier);
        }
    }

    fn take(&mut self, at: u32, tier: u8) {
        let bit = 1 << tier;
        let Some(node) = self.nodes.get_mut(at as usize).filter(|node| node.tiers & bit != 0) else { return };
        node.tiers &= !bit;
        self.counts[usize::from(tier)] -= 1;
        self.mark(at);
        self.update(at);
    }

    /// A tier holds nothing any more.
    pub(crate) fn cleared(&mut self, tier: u8) {
        if tier >= MAX_TIERS {
            return;
        }
        for at in 0..self.nodes.len() as u32 {
            if !self.is_free(at) {
                self.take(at, tier);
            }
        }
        if self.is_empty() {
            // One word for all of them, instead of one for each.
            self.cleared = true;
            for node in &mut self.nodes {
                node.told = 0;
            }
        }
    }

    /// What an event says of a node: its digest, its tokens, and what it was hashed with beside them.
    pub(crate) fn told(&self, at: u32) -> Option<(Digest, &[u32], Option<&Keys>)> {
        let node = self.node(at)?;
        let len = self.block_tokens(node.group);
        let start = at as usize * self.stride;
        Some((node.digest, self.tokens.get(start..start + len)?, node.keys.as_deref()))
    }

    /// The group of a node, and what is before it.
    pub(crate) fn place(&self, at: u32) -> Option<(u16, Option<Digest>)> {
        let node = self.node(at)?;
        Some((node.group, self.node(node.parent).map(|parent| parent.digest)))
    }

    /// Tokens of a block of a group.
    pub(crate) fn block_tokens(&self, group: u16) -> usize {
        self.groups.get(usize::from(group)).map_or(0, |&(tokens, _)| tokens)
    }
}

/// The group of a node that is free: that of contents that no lookup can ask for, which are never told.
const FREE: u16 = u16::MAX;
