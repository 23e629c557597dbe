//! `Chained`: a prefix-closed order for callers that release blocks one at a time (stream form) and do
//! not pass the parents of blocks.
//!
//! The order derives the parents from the releases. The blocks of a request are released deepest first,
//! so the parent of each block is the next block that is released. As in a pool, a block is evicted
//! only after its descendants. So chains are evicted from their ends, under any policy.

use kvpool::{
    BlockId, Content, Evictor, InvariantViolation, NULL_BLOCK, Outlook, Policy, PoolError, Release, Signal,
};

use super::{Closed, Node};

/// A policy as a prefix-closed order, for callers that cannot pass the parents of blocks to an
/// [`Evictor`].
///
/// ```
/// use kvpool::{BlockId, Content, Policy, Release};
/// use kvpool_policies::{Chained, S3Fifo};
/// let id = BlockId::new;
/// let mut order = Chained::new(S3Fifo::new(8)?, 8)?;
/// order.begin_release(&Release { length: 1, ..Release::default() });
/// order.admit(id(1), Content { key: 11, depth: 0 });
/// order.release(id(1));
/// order.begin_release(&Release { length: 2, known: 1, ..Release::default() });
/// order.admit(id(2), Content { key: 22, depth: 1 });
/// order.release(id(2));
/// order.release(id(1));
/// // S3-FIFO alone evicts block 1 first, because it was admitted first. But block 2 depends on it.
/// assert_eq!(std::iter::from_fn(|| order.pop()).collect::<Vec<_>>(), [id(2), id(1)]);
/// # Ok::<(), kvpool::PoolError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Chained<P> {
    closed: Closed<P>,
    /// The block of the current request that was released last.
    last_released: BlockId,
    left: u32,
}

impl<P: Policy + Clone> Chained<P> {
    /// Makes an empty order for blocks `1..num_blocks`, and allocates all its memory.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there is not enough memory for this number of blocks.
    pub fn new(policy: P, num_blocks: usize) -> Result<Self, PoolError> {
        Ok(Self { closed: Closed::new(policy, num_blocks, None)?, last_released: NULL_BLOCK, left: 0 })
    }

    /// Returns the flags of a block. `None` if the order has no such block.
    fn flags(&self, block: BlockId) -> Option<u8> {
        self.closed.nodes.get(block.index()).filter(|_| !block.is_null()).map(|node| node.flags)
    }

    fn begin_wait(&mut self, block: BlockId, flags: u8) {
        if flags & Node::KNOWN == 0 {
            self.closed.register_unknown(block, 0);
        }
        if flags & Node::IDLE == 0 {
            self.closed.begin_idle(block);
        }
    }

    /// Makes `parent` the parent of `child`, if `child` is idle and deeper. Because of the depths,
    /// links never form a cycle.
    fn replace_parent(&mut self, child: BlockId, parent: BlockId) {
        let deeper = self.closed.node(child).depth > self.closed.node(parent).depth;
        if deeper && self.closed.contains(child) && self.closed.parent(child) != Some(parent) {
            // Make the child not idle for a moment, so that the old and the new parent count their idle
            // children correctly.
            self.closed.end_idle(child);
            self.closed.set_parent(child, parent);
            self.closed.begin_idle(child);
        }
    }
}

impl<P: Policy + Clone> Policy for Chained<P> {
    fn name(&self) -> &'static str {
        self.closed.name()
    }

    fn admit(&mut self, block: BlockId, content: Content) {
        self.closed.registered(block, content, None);
    }

    fn hit(&mut self, block: BlockId) {
        self.closed.hit(block);
    }

    fn begin_release(&mut self, release: &Release<'_>) {
        (self.last_released, self.left) = (NULL_BLOCK, release.length);
        self.closed.order.policy.begin_release(release);
    }

    fn wants_signals(&self) -> bool {
        self.closed.wants_signals()
    }

    fn signal(&mut self, block: BlockId, signal: Signal) {
        self.closed.signal(&[block], signal);
    }

    fn keeps_time(&self) -> bool {
        self.closed.keeps_time()
    }

    fn set_time(&mut self, now: f64) {
        self.closed.order.policy.set_time(now);
    }

    fn release(&mut self, block: BlockId) {
        let Some(flags) = self.flags(block) else { return };
        self.begin_wait(block, flags);
        self.closed.unpark(block);
        self.closed.order.release(block);
        if self.left > 0 {
            self.left -= 1;
            let child = std::mem::replace(&mut self.last_released, block);
            self.replace_parent(child, block);
        }
    }

    fn pop(&mut self) -> Option<BlockId> {
        self.closed.next_victim(Node::end_wait).map(|(victim, _)| victim)
    }

    fn take(&mut self, block: BlockId) {
        if self.closed.end_idle(block) {
            self.closed.unpark(block);
            self.closed.order.policy.take(block);
        }
    }

    fn unpop(&mut self, block: BlockId) {
        if let Some(flags) = self.flags(block).filter(|flags| flags & Node::IDLE == 0) {
            self.begin_wait(block, flags);
            self.closed.order.unpop(block);
        }
    }

    fn evicted(&mut self, block: BlockId, content: Content) {
        self.closed.end_idle(block);
        self.closed.order.evicted(block, content);
        if let Some(node) = self.closed.node_mut(block) {
            node.end_content();
        }
    }

    fn outlook(&self, block: BlockId) -> Option<Outlook> {
        self.closed.outlook(block)
    }

    fn forget(&mut self, block: BlockId) {
        self.closed.remove(block);
    }

    fn clear(&mut self) {
        self.closed.clear();
        (self.last_released, self.left) = (NULL_BLOCK, 0);
    }

    fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        self.closed.grow(num_blocks)
    }

    fn check_block(&self, block: BlockId) -> Result<(), InvariantViolation> {
        self.closed.check_block(block)
    }

    #[cfg(feature = "fault-injection")]
    fn corrupt(&mut self, block: BlockId, what: usize, to: u32) -> bool {
        self.closed.corrupt(block, what, to)
    }

    fn check_invariants(&self) -> Result<(), InvariantViolation> {
        self.closed.check_invariants()
    }
}
