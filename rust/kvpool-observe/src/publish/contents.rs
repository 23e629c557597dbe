//! `Contents`: a copy of the contents of a worker's pools, by tier, with their tokens. It also stores
//! which contents were reported to consumers.
//!
//! A pool reports only which hashes were stored and removed. Consumers also need the tokens of each
//! hash and its position in its chain, and they must not get contents that no lookup can reach. So this
//! type keeps a copy of the pools' contents, which is updated outside of engine steps. It returns what
//! has changed since the last report ([`Contents::settle`]), or everything ([`Contents::snapshot`]).
//!
//! Only *open* contents are reported. A content is open in a tier if the tier has it, its tokens are
//! known, and a lookup can reach it. In some groups, such as full attention, a hit on a block needs all
//! earlier blocks. There, a lookup reaches a content at the start of a chain, or a content with a
//! parent that is open in the same tier or a faster one. If a content is dropped, its descendants are
//! reported as removed until it is computed again. Blocks on the device are also not reported if their
//! parent is only in host memory, because no lookup on the device reaches them.
//!
//! Each content is a node of a tree. Invariants, which [`Contents::check`] recounts: every node is
//! found through the table, and every entry of the table refers to a node. A node without tiers and
//! children is free. Every child refers to its parent. A node is open exactly in the tiers that the
//! above rule allows. After [`Contents::settle`], only open contents are marked as reported.
//!
//! Memory: 80 bytes per content, its tokens, and 8 bytes for the table. Costs: O(1) per change, about
//! 100 ns. If a parent is removed or stored again, the change costs O(descendants).

mod checks;
mod reporting;

use std::sync::Arc;

use hashbrown::HashTable;
use kvpool::BlockHash;

use crate::publish::event::{Digest, Extra, Label};

/// The index that stands for no node.
const NONE: u32 = u32::MAX;

/// The maximum number of tiers of a worker.
pub const MAX_TIERS: u8 = 8;

/// Iterates over the numbers of the tiers in a bit set, fastest first.
fn tiers(mut bits: u8) -> impl Iterator<Item = u8> {
    std::iter::from_fn(move || {
        let tier = bits.trailing_zeros();
        bits &= bits.checked_sub(1)?;
        Some(tier as u8)
    })
}

/// The extra keys of a block, as they appear in events.
///
/// ```
/// use std::sync::Arc;
/// use kvpool_observe::publish::{Extra, Keys, Label};
/// let label = Arc::new(Label { lora_name: Some("adapter".into()), ..Label::default() });
/// let keys = Keys { label, extra: Some([Extra::Text("adapter".into())].into()) };
/// assert_eq!(keys.label.salt, None);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    /// The keys that the block shares with the other blocks of its request.
    pub label: Arc<Label>,
    /// The extra keys that this block does not share with the other blocks of its request.
    pub extra: Option<Arc<[Extra]>>,
}

#[derive(Clone, Debug)]
struct Node {
    digest: Digest,
    group: u16,
    /// The tiers that have the content, as a set of bits.
    tiers: u8,
    /// The tiers in which the content was reported to consumers, as a set of bits.
    reported: u8,
    /// The tiers in which a lookup can reach the content ("open"), as a set of bits.
    open: u8,
    has_tokens: bool,
    /// Whether the node is in the list of changed nodes, which the next [`Contents::settle`] reports.
    dirty: bool,
    parent: u32,
    first_child: u32,
    next: u32,
    before: u32,
    keys: Option<Box<Keys>>,
}

/// A change to report. Changes are in the order in which consumers must get them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// All contents were removed. Earlier reports are no longer valid.
    Cleared,
    /// Several contents were stored. Each one is the parent of the next.
    Stored { tier: u8, nodes: Vec<u32> },
    /// Contents of one KV-cache group were removed from a tier.
    Removed { tier: u8, group: u16, digests: Vec<Digest> },
}

/// A content that was stored, with its parent and tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival<'a> {
    pub(crate) tier: u8,
    pub(crate) digest: Digest,
    pub(crate) group: u16,
    pub(crate) parent: Option<Digest>,
    pub(crate) tokens: Option<&'a [u32]>,
}

/// The contents of one worker's pools.
///
/// ```
/// use kvpool_observe::publish::{Digest, Group, Publisher, base};
/// let mut publisher = Publisher::new(vec![Group::full(2)], 0, base(1_700_000_000))?;
/// publisher.stored(0, 0, Digest::of_number(7), None, Some(&[1, 2]));
/// // The parent, 8, was never stored.
/// publisher.stored(0, 0, Digest::of_number(9), Some(Digest::of_number(8)), Some(&[5, 6]));
/// assert_eq!((publisher.contents().len(0), publisher.contents().untold()), (2, 1));
/// # Ok::<(), kvpool_observe::publish::PublisherError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Contents {
    /// For each KV-cache group, the number of tokens of a block, and whether a hit on a block needs the
    /// block's parent.
    groups: Vec<(usize, bool)>,
    /// The number of tokens for which each node has room: the block size of the largest group.
    stride: usize,
    nodes: Vec<Node>,
    tokens: Vec<u32>,
    table: HashTable<u32>,
    free: Vec<u32>,
    /// The first of the nodes without a parent, which are the starts of chains.
    first_root: u32,
    dirty: Vec<u32>,
    /// Whether the next report must begin with [`Change::Cleared`], because all contents were removed
    /// or earlier reports are no longer valid.
    cleared: bool,
    /// The number of contents in each tier.
    counts: [usize; MAX_TIERS as usize],
    /// The node that was stored last. It is usually the parent of the node that is stored next.
    latest: u32,
    ignored: u64,
    /// The nodes that [`Self::update`] still has to process. The list is stored here so that its memory
    /// is reused.
    waiting: Vec<u32>,
}

impl Contents {
    /// Makes an empty copy. `groups` contains, for each group, the number of tokens of a block, and
    /// whether a hit on a block needs the block's parent. Contents of other groups are ignored, and
    /// [`Self::ignored`] counts them.
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

    /// Returns the number of contents in a tier.
    #[must_use]
    pub fn len(&self, tier: u8) -> usize {
        self.counts.get(usize::from(tier)).copied().unwrap_or(0)
    }

    /// Returns whether no tier has a content.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.counts.iter().all(|&count| count == 0)
    }

    /// The number of changes that were ignored, because their group or tier is unknown.
    #[must_use]
    pub const fn ignored(&self) -> u64 {
        self.ignored
    }

    /// The number of contents that cannot be reported, because their tokens are unknown or their parent
    /// is missing.
    #[must_use]
    pub fn untold(&self) -> usize {
        self.nodes.iter().filter(|node| node.tiers != 0 && node.open == 0).count()
    }

    fn slot_of(hash: &BlockHash, group: u16) -> u64 {
        // The bytes of a digest are practically random, so the first eight of them are enough. Multiply
        // them, because the hash table also uses the high bits of the result.
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

    /// Adds a node for a content that no tier has.
    fn add(&mut self, digest: Digest, group: u16) -> u32 {
        let node = Node {
            digest,
            group,
            tiers: 0,
            reported: 0,
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

    /// Returns the first child of a node. For [`NONE`], returns the first node that has no parent.
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

    /// Frees a node that is not needed: no tier has its content, it has no children, and all its
    /// changes are reported. Then does the same for its parent.
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

    /// Returns the tiers in which a lookup can reach a node's content, as a set of bits (see the module
    /// documentation).
    fn may_open(&self, at: u32) -> u8 {
        let Some(node) = self.node(at).filter(|node| node.has_tokens) else { return 0 };
        let parent = self.node(node.parent).filter(|_| self.is_chained(node.group));
        let fastest = parent.map_or(0, |parent| parent.open.trailing_zeros());
        node.tiers & 0xff_u8.checked_shl(fastest).unwrap_or(0)
    }

    /// Computes again in which tiers lookups can reach a node and its descendants, and marks the nodes
    /// that change.
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
            // Children need an update only if the fastest tier in which lookups can reach the node has
            // changed.
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
            self.reparent(at, before);
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
        // The parent's node may be unused now: if the content was already present, it keeps its earlier
        // parent.
        self.free_if_idle(before);
    }

    /// Returns the node of a parent. If the parent is unknown, adds an empty node for it, which is
    /// filled when the parent is stored.
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

    /// Moves a node to another parent, unless that parent is the node itself or one of its descendants.
    fn reparent(&mut self, at: u32, before: u32) {
        let Some(parent) = self.node(at).map(|node| node.parent).filter(|&parent| parent != before) else {
            return;
        };
        if !self.is_below(before, at) {
            self.unlink(at);
            self.link(at, before);
            self.free_if_idle(parent);
        }
    }

    /// Whether a node is `other` or a descendant of `other`.
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

    /// Sets the parent, tokens and extra keys of a content, if a tier has it. The parent and the extra
    /// keys do not change after the content was reported.
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
            if self.node(at).is_some_and(|node| node.reported == 0) {
                self.reparent(at, before);
            }
            self.free_if_idle(before);
        }
        self.give_tokens(at, tokens);
        if let (Some(node), Some(keys)) = (self.nodes.get_mut(at as usize), keys)
            && node.reported == 0
        {
            node.keys = Some(Box::new(keys.clone()));
        }
        self.update(at);
    }

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
            // Report one event that removes everything, instead of one removal per content.
            self.cleared = true;
            for node in &mut self.nodes {
                node.reported = 0;
            }
        }
    }

    /// Returns the parts of a node that an event contains: its digest, its tokens and its extra keys.
    pub(crate) fn reported(&self, at: u32) -> Option<(Digest, &[u32], Option<&Keys>)> {
        let node = self.node(at)?;
        let len = self.block_tokens(node.group);
        let start = at as usize * self.stride;
        Some((node.digest, self.tokens.get(start..start + len)?, node.keys.as_deref()))
    }

    /// Returns the KV-cache group of a node, and the digest of its parent.
    pub(crate) fn place(&self, at: u32) -> Option<(u16, Option<Digest>)> {
        let node = self.node(at)?;
        Some((node.group, self.node(node.parent).map(|parent| parent.digest)))
    }

    pub(crate) fn block_tokens(&self, group: u16) -> usize {
        self.groups.get(usize::from(group)).map_or(0, |&(tokens, _)| tokens)
    }
}

/// The group number of a free node. No lookup can request this group, so a free node is never reported.
const FREE: u16 = u16::MAX;
