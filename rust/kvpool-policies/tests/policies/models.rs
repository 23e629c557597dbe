//! A second implementation of each policy, written from its definition. It stores the blocks in
//! vectors, and searches them from end to end.

use std::collections::HashMap;

use kvpool::evictor::{Content, Policy};
use kvpool::{BlockId, InvariantViolation, PoolError};

fn drop_from(list: &mut Vec<BlockId>, block: BlockId) -> bool {
    let before = list.len();
    list.retain(|&member| member != block);
    list.len() < before
}

fn pop_front(list: &mut Vec<BlockId>) -> Option<BlockId> {
    if list.is_empty() { None } else { Some(list.remove(0)) }
}

/// Defines the methods that all models have in common.
macro_rules! common {
    ($name:literal, $grow:expr) => {
        fn name(&self) -> &'static str {
            $name
        }

        fn clear(&mut self) {
            let blocks = self.blocks;
            *self = Self::default();
            self.grow(blocks).unwrap();
        }

        fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError> {
            self.blocks = self.blocks.max(num_blocks);
            let grow: fn(&mut Self, usize) = $grow;
            grow(self, self.blocks - 1);
            Ok(())
        }

        fn check_invariants(&self) -> Result<(), InvariantViolation> {
            Ok(())
        }
    };
}

/// The model of the LRU policy.
#[derive(Debug, Default)]
pub(crate) struct Lru {
    blocks: usize,
    queue: Vec<BlockId>,
}

impl Policy for Lru {
    fn admit(&mut self, _: BlockId, _: Content) {}

    fn hit(&mut self, block: BlockId) {
        drop_from(&mut self.queue, block);
    }

    fn release(&mut self, block: BlockId) {
        drop_from(&mut self.queue, block);
        self.queue.push(block);
    }

    fn pop(&mut self) -> Option<BlockId> {
        pop_front(&mut self.queue)
    }

    fn take(&mut self, block: BlockId) {
        drop_from(&mut self.queue, block);
    }

    fn unpop(&mut self, block: BlockId) {
        self.queue.insert(0, block);
    }

    fn forget(&mut self, block: BlockId) {
        drop_from(&mut self.queue, block);
    }

    common!("lru", |_, _| {});
}

/// The model of the S3-FIFO policy.
#[derive(Debug, Default)]
pub(crate) struct S3Fifo {
    blocks: usize,
    small: Vec<BlockId>,
    main: Vec<BlockId>,
    /// For each block, whether it is in the main queue, and its number of hits.
    states: HashMap<BlockId, (bool, u32)>,
    ghosts: Vec<u64>,
    small_share: usize,
    most_ghosts: usize,
}

impl Policy for S3Fifo {
    fn admit(&mut self, block: BlockId, content: Content) {
        let ghost = self.ghosts.contains(&content.key);
        self.ghosts.retain(|&key| key != content.key);
        self.states.insert(block, (ghost, 0));
    }

    fn hit(&mut self, block: BlockId) {
        let hits = &mut self.states.entry(block).or_default().1;
        *hits = (*hits + 1).min(3);
    }

    fn release(&mut self, block: BlockId) {
        if self.small.contains(&block) || self.main.contains(&block) {
            return;
        }
        if self.states[&block].0 { self.main.push(block) } else { self.small.push(block) }
    }

    fn pop(&mut self) -> Option<BlockId> {
        loop {
            if self.small.len() >= self.small_share || self.main.is_empty() {
                let block = pop_front(&mut self.small)?;
                if self.states[&block].1 == 0 {
                    return Some(block);
                }
                self.states.insert(block, (true, 0));
                self.main.push(block);
            } else {
                let block = pop_front(&mut self.main)?;
                let hits = &mut self.states.get_mut(&block).unwrap().1;
                if *hits == 0 {
                    return Some(block);
                }
                *hits -= 1;
                self.main.push(block);
            }
        }
    }

    fn take(&mut self, block: BlockId) {
        drop_from(&mut self.small, block);
        drop_from(&mut self.main, block);
    }

    fn unpop(&mut self, block: BlockId) {
        let queue = if self.states[&block].0 { &mut self.main } else { &mut self.small };
        queue.insert(0, block);
    }

    fn evicted(&mut self, block: BlockId, content: Content) {
        if !self.states[&block].0 {
            self.ghosts.retain(|&key| key != content.key);
            self.ghosts.push(content.key);
            let over = self.ghosts.len().saturating_sub(self.most_ghosts);
            self.ghosts.drain(..over);
        }
    }

    fn forget(&mut self, block: BlockId) {
        self.take(block);
    }

    common!("s3-fifo", |model, capacity| {
        model.small_share = (capacity / 10).max(1);
        model.most_ghosts = capacity * 9 / 10;
    });
}

/// The model of ARC. The target size of T1 is in units of 2^-32 blocks.
#[derive(Debug, Default)]
pub(crate) struct Arc {
    blocks: usize,
    t1: Vec<BlockId>,
    t2: Vec<BlockId>,
    b1: Vec<u64>,
    b2: Vec<u64>,
    /// The blocks that belong to T2, even if they are in use.
    again: Vec<BlockId>,
    target: i128,
    from_b2: bool,
    capacity: usize,
}

const ONE: i128 = 1 << 32;

impl Policy for Arc {
    fn admit(&mut self, block: BlockId, content: Content) {
        let (b1, b2) = (self.b1.len() as i128, self.b2.len() as i128);
        let (in_b1, in_b2) = (self.b1.contains(&content.key), self.b2.contains(&content.key));
        if in_b1 {
            self.target = (self.target + ONE.max(b2 * ONE / b1)).min(self.capacity as i128 * ONE);
        }
        if in_b2 {
            self.target = (self.target - ONE.max(b1 * ONE / b2)).max(0);
        }
        self.b1.retain(|&key| key != content.key);
        self.b2.retain(|&key| key != content.key);
        self.from_b2 = in_b2;
        if in_b1 || in_b2 {
            self.again.push(block);
        }
    }

    fn hit(&mut self, block: BlockId) {
        self.take(block);
        if !self.again.contains(&block) {
            self.again.push(block);
        }
    }

    fn release(&mut self, block: BlockId) {
        self.take(block);
        if self.again.contains(&block) { self.t2.push(block) } else { self.t1.push(block) }
    }

    fn pop(&mut self) -> Option<BlockId> {
        let t1 = self.t1.len() as i128;
        let replace_t1 = t1 >= 1 && (t1 * ONE > self.target || (self.from_b2 && t1 == self.target / ONE));
        if replace_t1 || self.t2.is_empty() { pop_front(&mut self.t1) } else { pop_front(&mut self.t2) }
    }

    fn take(&mut self, block: BlockId) {
        drop_from(&mut self.t1, block);
        drop_from(&mut self.t2, block);
    }

    fn unpop(&mut self, block: BlockId) {
        let list = if self.again.contains(&block) { &mut self.t2 } else { &mut self.t1 };
        list.insert(0, block);
    }

    fn evicted(&mut self, block: BlockId, content: Content) {
        let was_again = drop_from(&mut self.again, block);
        self.b1.retain(|&key| key != content.key);
        self.b2.retain(|&key| key != content.key);
        if was_again {
            self.b2.push(content.key);
        } else {
            self.b1.push(content.key);
        }
        // This keeps |T1| + |B1| and |B1| + |B2| at most equal to the capacity. T1 counts every block
        // that is not in T2.
        let t1 = self.capacity - self.again.len();
        while t1 + self.b1.len() > self.capacity {
            self.b1.remove(0);
        }
        while self.b1.len() + self.b2.len() > self.capacity {
            self.b2.remove(0);
        }
    }

    fn forget(&mut self, block: BlockId) {
        self.take(block);
        drop_from(&mut self.again, block);
    }

    common!("arc", |model, capacity| model.capacity = capacity);
}
