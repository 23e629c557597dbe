//! `Closed`: makes an evictor of any policy, one that keeps the cache prefix-closed.
//!
//! Owns: the parent of every block, how many cached-free children it has, and which blocks are idle. A policy says who is next;
//! a victim that is in use, or on which cached-free blocks hang, is *parked*: it leaves the order, and is next of its kind
//! again as soon as the last obstacle is gone. So the policy's order is followed as closely as closedness allows, and a block
//! is never evicted before its cached descendants, whatever policy, priorities or hints say.
//!
//! Invariants, recounted by `check_invariants`:
//! - E2: `children` counts the idle blocks whose parent this is. A child in use has its parent, or a copy of it, in use too, as
//!   long as holders hold whole prefixes; where they do not, a held child does not keep its parent.
//! - E3: every idle block is parked or in the order; a parked one that is idle has children. Among idle blocks there is always
//!   a leaf, so there is always a victim.
//!
//! A parent can lose its content before its children: dropped by id, or as one of several copies. Then its generation moves on,
//! and what its children noted is stale: they count as having no parent until, at their next release, the pool names another
//! copy of it.
//!
//! Copies of a content leave no hole, as long as holders hold whole prefixes: every idle block hangs on a computed copy of the
//! content before its own, and that copy stays. A copy with idle children is not evicted, nor dropped as a duplicate
//! ([`Evictor::has_dependents`]). A lookup that takes a child through *another* copy of its parent frees the copy that it was
//! linked to; that one may go while the child is in use, for the child's holder holds the other copy, and at the child's
//! release the pool links it to a copy that is left ([`Evictor::relink`]). So it does with a child that was registered
//! behind a copy whose holder never computed it. What remains open is what callers do to contents by id:
//! [`crate::BlockPool::drop_cached`] of a parent leaves idle children that no lookup reaches until somebody computes it again, or
//! they are evicted.
//!
//! Costs: O(1) amortized on top of the policy: each parking is paid for by what put the block into the order, a release, a
//! hint, or the end of its last child. One eviction asks a block at most once: what is parked comes back only when the victim
//! is gone. So it parks fewer blocks than are cached or in use; the bound is reached when all of them are one chain whose
//! order is the wrong way round (measured: up to 719 blocks on a chat trace, 9,000 on an agentic one, under ARC; a quarter of
//! that under LRU; on average 0.25 to 1.2 per eviction). 32 bytes per block.

use std::cmp::Reverse;

use super::policy::{Content, Policy};
use super::ranks::Ranks;
use super::{Candidate, Evictor};
use crate::block::BlockId;
use crate::error::{InvariantViolation, PoolError, ensure};
use crate::list::try_reserve;
use crate::retention::{EvictionCause, Hint, Retain, Retention, RetentionConfig, RetentionStats, TenantId};

/// What is known of a block's content.
#[derive(Clone, Copy, Debug, Default)]
struct Node {
    key: u64,
    /// 0: none.
    parent: u32,
    /// Of the parent, when it was noted.
    parent_generation: u32,
    /// Contents that this block has lost.
    generation: u32,
    /// Idle blocks whose parent this is.
    children: u32,
    depth: u32,
    flags: u8,
}

impl Node {
    /// It has a content.
    const KNOWN: u8 = 1;
    /// No reference: it may be evicted.
    const IDLE: u8 = 2;
    /// Given up by the order, and not gone.
    const PARKED: u8 = 4;
    /// It is one of its parent's `children`.
    const COUNTED: u8 = 8;

    const fn is(self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Whether its flags and count can be at once.
    const fn is_sound(self) -> bool {
        (self.is(Self::KNOWN) || self.flags == 0)
            && (self.is(Self::IDLE) || !self.is(Self::COUNTED))
            && (self.parent != 0 || !self.is(Self::COUNTED))
            && !(self.is(Self::IDLE) && self.is(Self::PARKED) && self.children == 0)
    }

    const fn content(self) -> Content {
        Content { key: self.key, depth: self.depth }
    }
}

/// A policy as a prefix-closed evictor, with retention if it is asked for.
///
/// ```
/// use kvpool::evictor::policies::Recency;
/// use kvpool::{BlockId, Candidate, Closed, Content, Evictor};
/// let id = BlockId::new;
/// let mut evictor = Closed::new(Recency::new(8)?, 8, None)?;
/// evictor.registered(id(1), Content { key: 11, depth: 0 }, None);
/// evictor.registered(id(2), Content { key: 22, depth: 1 }, Some(id(1)));
/// evictor.insert(&mut [Candidate { block: id(1), depth: 0 }]);
/// evictor.insert(&mut [Candidate { block: id(2), depth: 1 }]);
/// // The least recently released is 1; but 2 hangs on it.
/// assert_eq!(evictor.order(), [id(2), id(1)]);
/// # Ok::<(), kvpool::PoolError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Closed<P> {
    order: Ranks<P>,
    nodes: Vec<Node>,
    idle: usize,
    /// A child left a parent that had none: a link, or a count, was wrong.
    torn: bool,
}

impl<P: Policy + Clone> Closed<P> {
    /// An empty evictor for blocks `1..num_blocks`, with all its memory taken.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] for limits that do not fit into the pool, or if there is no memory.
    pub fn new(policy: P, num_blocks: usize, retention: Option<&RetentionConfig>) -> Result<Self, PoolError> {
        let mut closed = Self {
            order: Ranks::new(policy, num_blocks, retention)?,
            nodes: Vec::new(),
            idle: 0,
            torn: false,
        };
        closed.grow(num_blocks)?;
        Ok(closed)
    }

    /// The policy.
    pub const fn policy(&self) -> &P {
        self.order.policy()
    }

    fn node(&self, block: BlockId) -> Node {
        self.nodes.get(block.index()).copied().unwrap_or_default()
    }

    /// The entry of a real block of the pool.
    fn node_mut(&mut self, block: BlockId) -> Option<&mut Node> {
        self.nodes.get_mut(block.index()).filter(|_| !block.is_null())
    }

    fn set(&mut self, block: BlockId, flag: u8, on: bool) {
        if let Some(node) = self.nodes.get_mut(block.index()) {
            node.flags = if on { node.flags | flag } else { node.flags & !flag };
        }
    }

    /// Counts `block`, which becomes idle, with its parent, if that still has the content that it had.
    fn join_parent(&mut self, block: BlockId) {
        let Node { parent, parent_generation, .. } = self.node(block);
        if let Some(parent) = self.nodes.get_mut(parent as usize).filter(|_| parent != 0)
            && parent.generation == parent_generation
        {
            parent.children = parent.children.saturating_add(1);
            self.set(block, Node::COUNTED, true);
        }
    }

    /// `block` stops being an idle child. Its parent may be free to go.
    fn leave_parent(&mut self, block: BlockId) {
        let Node { parent, parent_generation, .. } = self.node(block);
        if !self.node(block).is(Node::COUNTED) {
            return;
        }
        self.set(block, Node::COUNTED, false);
        if let Some(node) = self.nodes.get_mut(parent as usize)
            && node.generation == parent_generation
        {
            self.torn |= node.children == 0; // the scrubber's to find
            node.children = node.children.saturating_sub(1);
            if node.children == 0 && node.is(Node::IDLE) {
                self.unpark(BlockId::new(parent));
            }
        }
    }

    fn unpark(&mut self, block: BlockId) {
        if self.node(block).is(Node::PARKED) {
            self.set(block, Node::PARKED, false);
            self.order.unpop(block);
        }
    }

    /// `block`, if it is idle, is so no more. Returns whether it was.
    fn end_idle(&mut self, block: BlockId) -> bool {
        let was_idle = self.node(block).is(Node::IDLE);
        if was_idle {
            self.set(block, Node::IDLE, false);
            self.idle = self.idle.wrapping_sub(1); // found by the sums, if it is wrong
            self.leave_parent(block);
        }
        was_idle
    }

    /// The content of `block` is gone, and so is everything that was known of it.
    fn end_content(&mut self, block: BlockId) {
        if let Some(node) = self.nodes.get_mut(block.index()) {
            *node = Node { generation: node.generation.wrapping_add(1), ..Node::default() };
        }
    }

    fn apply(&mut self, block: BlockId, retention: Retention) -> Result<Hint, PoolError> {
        let node = self.node(block);
        if !node.is(Node::KNOWN) {
            return Ok(Hint::Ignored);
        }
        // A parked block goes back to where it came from, moves from there, and is parked anew when its turn comes.
        self.unpark(block);
        self.order.retain(block, node.content(), node.is(Node::IDLE), retention)
    }
}

impl<P: Policy + Clone> Evictor for Closed<P> {
    fn name(&self) -> &'static str {
        self.order.policy().name()
    }

    fn wants_history(&self) -> bool {
        true
    }

    fn registered(&mut self, block: BlockId, content: Content, parent: Option<BlockId>) {
        if self.node(block).is(Node::KNOWN) {
            self.remove(block); // contents end before new ones begin
        }
        let parent = parent.filter(|&parent| parent != block && self.node(parent).is(Node::KNOWN));
        let generation = parent.map_or(0, |parent| self.node(parent).generation);
        let Some(node) = self.node_mut(block) else { return };
        node.key = content.key;
        node.depth = content.depth;
        node.parent = parent.map_or(0, BlockId::get);
        node.parent_generation = generation;
        node.flags = Node::KNOWN;
        self.order.admit(block, content);
    }

    fn parent(&self, block: BlockId) -> Option<BlockId> {
        let node = self.node(block);
        let parent = BlockId::new(node.parent);
        (node.parent != 0 && self.node(parent).generation == node.parent_generation).then_some(parent)
    }

    fn relink(&mut self, block: BlockId, parent: BlockId) {
        let known = parent != block && self.node(parent).is(Node::KNOWN);
        if !known || !self.node(block).is(Node::KNOWN) || self.node(block).is(Node::IDLE) {
            return;
        }
        let generation = self.node(parent).generation;
        if let Some(node) = self.node_mut(block) {
            node.parent = parent.get();
            node.parent_generation = generation;
        }
    }

    fn has_dependents(&self, block: BlockId) -> bool {
        self.node(block).children > 0
    }

    fn hit(&mut self, block: BlockId) -> bool {
        let was_idle = self.end_idle(block);
        self.unpark(block); // whoever orders it now knows it as given up
        let node = self.node(block);
        if node.is(Node::KNOWN) {
            self.order.hit(block, node.content());
        }
        was_idle
    }

    fn insert(&mut self, candidates: &mut [Candidate]) {
        if !candidates.is_sorted_by_key(|candidate| Reverse(candidate.depth)) {
            candidates.sort_by_key(|candidate| Reverse(candidate.depth));
        }
        self.order.begin_release();
        for &mut Candidate { block, depth } in candidates {
            if self.node(block).is(Node::IDLE) || self.node_mut(block).is_none() {
                continue;
            }
            if !self.node(block).is(Node::KNOWN) {
                // Nobody said what it holds: a content of its own.
                let key = u64::from(block.get());
                self.registered(block, Content { key, depth }, None);
            }
            self.set(block, Node::IDLE, true);
            self.idle += 1;
            self.join_parent(block);
            self.unpark(block);
            self.order.release(block);
        }
    }

    fn remove(&mut self, block: BlockId) -> bool {
        let was_idle = self.end_idle(block);
        if self.node(block).is(Node::KNOWN) {
            self.order.forget(block);
            self.end_content(block);
        }
        was_idle
    }

    fn evict(&mut self) -> Option<BlockId> {
        if self.idle == 0 {
            return None; // a policy that were asked would age what others hold
        }
        loop {
            let nodes = &self.nodes;
            let idle = |block: BlockId| nodes.get(block.index()).is_some_and(|node| node.is(Node::IDLE));
            let victim = self.order.pop(idle)?;
            let node = self.node(victim);
            if !node.is(Node::IDLE) || node.children > 0 {
                self.set(victim, Node::PARKED, node.is(Node::KNOWN));
                continue;
            }
            self.end_idle(victim);
            self.order.evicted(victim, node.content());
            self.end_content(victim);
            return Some(victim);
        }
    }

    fn cause(&self) -> EvictionCause {
        self.order.cause()
    }

    fn clear(&mut self) {
        for node in &mut self.nodes {
            *node = Node { generation: node.generation.wrapping_add(1), ..Node::default() };
        }
        self.idle = 0;
        self.order.clear();
    }

    fn retention(&self) -> Option<&dyn Retain> {
        if self.order.has_retention() { Some(self) } else { None }
    }

    fn retention_mut(&mut self) -> Option<&mut dyn Retain> {
        if self.order.has_retention() { Some(self) } else { None }
    }

    fn len(&self) -> usize {
        self.idle
    }

    fn contains(&self, block: BlockId) -> bool {
        self.node(block).is(Node::IDLE)
    }

    fn order(&self) -> Vec<BlockId> {
        let mut clone = self.clone();
        std::iter::from_fn(|| clone.evict()).collect()
    }

    fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        try_reserve(&mut self.nodes, num_blocks)?;
        self.order.grow(num_blocks)?;
        self.nodes.resize(num_blocks.max(self.nodes.len()), Node::default());
        Ok(())
    }

    fn check_block(&self, block: BlockId) -> Result<(), InvariantViolation> {
        self.order.check_block(block)?;
        ensure(!self.torn, "E2 (idle children are counted)", || {
            "a child left a parent that had none".into()
        })?;
        let node = self.node(block);
        ensure(node.is_sound(), "E3 (a parked block has a reason)", || format!("{block:?}: {node:?}"))?;
        let parent = self.nodes.get(node.parent as usize);
        let counted = node.is(Node::COUNTED)
            && parent.is_some_and(|parent| parent.generation == node.parent_generation);
        let counts = parent.is_some_and(|parent| parent.children > 0);
        ensure(parent.is_some() && (!counted || counts), "E2 (idle children are counted)", || {
            format!("{block:?}: {node:?}, its parent {parent:?}")
        })
    }

    #[cfg(feature = "fault-injection")]
    fn corrupt(&mut self, block: BlockId, what: usize, to: u32) -> bool {
        match what {
            15 => {
                let node = self.node(block);
                // That the parent's content is gone, or was never noted, is nothing wrong; the next release looks for another.
                // Nor is another copy of it.
                let stale = self
                    .nodes
                    .get(to as usize)
                    .is_some_and(|other| other.generation != node.parent_generation);
                let copy = node.parent != to
                    && self.node(BlockId::new(to)).key == self.node(BlockId::new(node.parent)).key;
                if !node.is(Node::KNOWN)
                    || node.parent == 0
                    || stale
                    || copy
                    || (to == 0 && !node.is(Node::COUNTED))
                {
                    return false;
                }
                self.node_mut(block).is_some_and(|node| std::mem::replace(&mut node.parent, to) != to)
            }
            what => self.order.corrupt(block, what, to),
        }
    }

    fn check_invariants(&self) -> Result<(), InvariantViolation> {
        self.order.check_invariants(|block| self.node(block).is(Node::KNOWN))?;
        let mut children = vec![0_u32; self.nodes.len()];
        for node in self.nodes.iter().filter(|node| node.is(Node::COUNTED)) {
            let parent = self.nodes.get(node.parent as usize);
            let same = parent.is_some_and(|parent| parent.generation == node.parent_generation);
            if let Some(children) = children.get_mut(node.parent as usize) {
                *children += u32::from(same);
            }
        }
        let mut idle = 0;
        for (index, node) in self.nodes.iter().enumerate() {
            idle += usize::from(node.is(Node::IDLE));
            ensure(node.children == children[index], "E2 (idle children are counted)", || {
                format!("block {index}: {} counted, {} found", node.children, children[index])
            })?;
            ensure(node.is_sound(), "E3 (a parked block has a reason)", || {
                format!("block {index}: {node:?}")
            })?;
        }
        ensure(idle == self.idle, "E1 (the order is that of the blocks held)", || {
            format!("{} counted, {idle} found", self.idle)
        })
    }
}

impl<P: Policy + Clone> Retain for Closed<P> {
    fn retain(&mut self, block: BlockId, retention: Retention) -> Result<Hint, PoolError> {
        retention.check()?;
        self.apply(block, retention)
    }

    fn assign(&mut self, block: BlockId, tenant: TenantId) {
        let node = self.node(block);
        if node.is(Node::KNOWN) {
            self.order.assign(block, tenant, node.is(Node::IDLE) && !node.is(Node::PARKED));
        }
    }

    fn advance_time(&mut self, now: f64) -> Result<usize, PoolError> {
        self.order.set_time(now)?;
        let mut expired = 0;
        while let Some((block, retention)) = self.order.pop_expired() {
            self.apply(block, retention)?;
            self.order.mark_expired(block);
            expired += 1;
        }
        Ok(expired)
    }

    fn now(&self) -> Option<f64> {
        self.order.now()
    }

    fn tenant_blocks(&self, tenant: TenantId) -> usize {
        self.order.tenant_blocks(tenant)
    }

    fn stats(&self) -> RetentionStats {
        self.order.stats()
    }
}
