//! Each policy once more, from its definition alone: vectors, searched from end to end.

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

/// What no model does in a way of its own.
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

/// FIFO and LRU.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    lru: bool,
    queue: Vec<BlockId>,
}

impl Queue {
    pub(crate) fn new(lru: bool) -> Self {
        Self { lru, ..Self::default() }
    }
}

impl Policy for Queue {
    fn name(&self) -> &'static str {
        "fifo or lru"
    }

    fn admit(&mut self, _: BlockId, _: Content) {}

    fn hit(&mut self, block: BlockId) {
        if self.lru {
            drop_from(&mut self.queue, block);
        }
    }

    fn release(&mut self, block: BlockId) {
        if self.lru || !self.queue.contains(&block) {
            drop_from(&mut self.queue, block);
            self.queue.push(block);
        }
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

    fn clear(&mut self) {
        self.queue.clear();
    }

    fn grow(&mut self, _: usize) -> Result<(), PoolError> {
        Ok(())
    }

    fn check_invariants(&self) -> Result<(), InvariantViolation> {
        Ok(())
    }
}

/// SIEVE: one queue, the newest last, and the place that the hand looks at next.
#[derive(Debug, Default)]
pub(crate) struct Sieve {
    blocks: usize,
    queue: Vec<BlockId>,
    hand: usize,
    visited: HashMap<BlockId, bool>,
}

impl Sieve {
    fn wrap(&mut self) {
        if self.hand >= self.queue.len() {
            self.hand = 0;
        }
    }
}

impl Policy for Sieve {
    fn admit(&mut self, block: BlockId, _: Content) {
        self.visited.insert(block, false);
    }

    fn hit(&mut self, block: BlockId) {
        self.visited.insert(block, true);
    }

    fn release(&mut self, block: BlockId) {
        if !self.queue.contains(&block) {
            self.queue.push(block);
        }
    }

    fn pop(&mut self) -> Option<BlockId> {
        loop {
            self.wrap();
            let block = *self.queue.get(self.hand)?;
            if !self.visited.insert(block, false).unwrap_or(false) {
                self.queue.remove(self.hand);
                self.wrap();
                return Some(block);
            }
            self.hand += 1;
        }
    }

    fn take(&mut self, block: BlockId) {
        if let Some(at) = self.queue.iter().position(|&member| member == block) {
            self.queue.remove(at);
            self.hand -= usize::from(at < self.hand);
            self.wrap();
        }
    }

    fn unpop(&mut self, block: BlockId) {
        self.wrap();
        self.queue.insert(self.hand, block);
    }

    fn forget(&mut self, block: BlockId) {
        self.take(block);
        self.visited.remove(&block);
    }

    common!("sieve", |_, _| {});
}

/// S3-FIFO.
#[derive(Debug, Default)]
pub(crate) struct S3Fifo {
    blocks: usize,
    small: Vec<BlockId>,
    main: Vec<BlockId>,
    /// By block: whether it is one of main's, and its hits.
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

/// ARC; the target in 1 / 2^32.
#[derive(Debug, Default)]
pub(crate) struct Arc {
    blocks: usize,
    t1: Vec<BlockId>,
    t2: Vec<BlockId>,
    b1: Vec<u64>,
    b2: Vec<u64>,
    /// Blocks with content that belong to T2.
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
        // |T1| + |B1| is the capacity at most, |T1| being all that is not T2's; and so is |B1| + |B2|.
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

/// 2Q, full version.
#[derive(Debug, Default)]
pub(crate) struct TwoQ {
    blocks: usize,
    a1_in: Vec<BlockId>,
    a_m: Vec<BlockId>,
    a1_out: Vec<u64>,
    /// Blocks that belong to Am.
    proven: Vec<BlockId>,
    k_in: usize,
    k_out: usize,
}

impl Policy for TwoQ {
    fn admit(&mut self, block: BlockId, content: Content) {
        if self.a1_out.contains(&content.key) {
            self.proven.push(block);
        }
        self.a1_out.retain(|&key| key != content.key);
    }

    fn hit(&mut self, block: BlockId) {
        drop_from(&mut self.a_m, block);
    }

    fn release(&mut self, block: BlockId) {
        if self.proven.contains(&block) {
            drop_from(&mut self.a_m, block);
            self.a_m.push(block);
        } else if !self.a1_in.contains(&block) {
            self.a1_in.push(block);
        }
    }

    fn pop(&mut self) -> Option<BlockId> {
        if self.a1_in.len() > self.k_in || self.a_m.is_empty() {
            pop_front(&mut self.a1_in)
        } else {
            pop_front(&mut self.a_m)
        }
    }

    fn take(&mut self, block: BlockId) {
        drop_from(&mut self.a1_in, block);
        drop_from(&mut self.a_m, block);
    }

    fn unpop(&mut self, block: BlockId) {
        let list = if self.proven.contains(&block) { &mut self.a_m } else { &mut self.a1_in };
        list.insert(0, block);
    }

    fn evicted(&mut self, block: BlockId, content: Content) {
        if !drop_from(&mut self.proven, block) {
            self.a1_out.retain(|&key| key != content.key);
            self.a1_out.push(content.key);
            if self.a1_out.len() > self.k_out {
                self.a1_out.remove(0);
            }
        }
    }

    fn forget(&mut self, block: BlockId) {
        self.take(block);
        drop_from(&mut self.proven, block);
    }

    common!("2q", |model, capacity| {
        model.k_in = (capacity / 4).max(1);
        model.k_out = (capacity / 2).max(1);
    });
}

/// LFU, LFU-DA and GDSF: the least `age + uses * cost`, of equals the least recently released.
#[derive(Debug, Default)]
pub(crate) struct Weighted {
    aging: bool,
    /// The depth at which cost is doubled; 0: all cost the same.
    doubling: u64,
    /// By block: uses and cost.
    uses: HashMap<BlockId, (u64, u64)>,
    /// By block: its key, and when it was released.
    ranks: HashMap<BlockId, (u64, u64)>,
    order: Vec<BlockId>,
    age: u64,
    releases: u64,
}

impl Weighted {
    pub(crate) fn new(aging: bool, doubling: u32) -> Self {
        Self { aging, doubling: u64::from(doubling), ..Self::default() }
    }
}

impl Policy for Weighted {
    fn name(&self) -> &'static str {
        "lfu, lfu-da or gdsf"
    }

    fn admit(&mut self, block: BlockId, content: Content) {
        let deeper = u64::from(content.depth) * 65536;
        self.uses.insert(block, (1, 65536 + deeper.checked_div(self.doubling).unwrap_or(0)));
    }

    fn hit(&mut self, block: BlockId) {
        self.take(block);
        self.uses.get_mut(&block).unwrap().0 += 1;
    }

    fn release(&mut self, block: BlockId) {
        self.take(block);
        self.releases += 1;
        let (uses, cost) = self.uses[&block];
        self.ranks.insert(block, (self.age + uses * cost, self.releases));
        self.order.push(block);
    }

    fn pop(&mut self) -> Option<BlockId> {
        let least = self.order.iter().copied().min_by_key(|block| self.ranks[block])?;
        self.take(least);
        Some(least)
    }

    fn take(&mut self, block: BlockId) {
        drop_from(&mut self.order, block);
    }

    fn unpop(&mut self, block: BlockId) {
        self.order.push(block);
    }

    fn evicted(&mut self, block: BlockId, _: Content) {
        if self.aging {
            self.age = self.age.max(self.ranks[&block].0);
        }
    }

    fn forget(&mut self, block: BlockId) {
        self.take(block);
    }

    fn clear(&mut self) {
        *self = Self { aging: self.aging, doubling: self.doubling, ..Self::default() };
    }

    fn grow(&mut self, _: usize) -> Result<(), PoolError> {
        Ok(())
    }

    fn check_invariants(&self) -> Result<(), InvariantViolation> {
        Ok(())
    }
}

/// LRFU: sums that halve with every half-life, linear between powers of 2; no key is kept, all are decayed when asked.
#[derive(Debug, Default)]
pub(crate) struct Lrfu {
    half_life: u64,
    ghosts_per_block: usize,
    blocks: usize,
    now: i128,
    step: i128,
    /// By block: log2 of its sum at that time, and whether it is in use.
    sums: HashMap<BlockId, (i128, i128, bool)>,
    /// By block: log2 of its sum when it was released, at that time, and which release that was.
    released: HashMap<BlockId, (i128, i128, u64)>,
    order: Vec<BlockId>,
    /// Key, log2 of its sum, at that time.
    ghosts: Vec<(u64, i128, i128)>,
    releases: u64,
}

impl Lrfu {
    pub(crate) fn new(half_life: u32, ghosts_per_block: usize) -> Self {
        Self { half_life: u64::from(half_life), ghosts_per_block, ..Self::default() }
    }

    /// log2 of 1 more than 2^log2.
    fn one_more(log2: i128) -> i128 {
        let (floor, fraction) = (log2.div_euclid(ONE), log2.rem_euclid(ONE));
        let sum =
            ONE + if floor >= 0 { (ONE + fraction) << floor } else { (ONE + fraction) >> (-floor).min(63) };
        let mut power = 0;
        while sum >= ONE << (power + 1) {
            power += 1;
        }
        power * ONE + (sum >> power) - ONE
    }

    fn log2(&self, block: BlockId) -> i128 {
        let (log2, at, held) = self.sums[&block];
        if held { log2 } else { log2 - (self.now - at) }
    }
}

impl Policy for Lrfu {
    fn name(&self) -> &'static str {
        "lrfu"
    }

    fn admit(&mut self, block: BlockId, content: Content) {
        self.now += self.step;
        let ghost = self.ghosts.iter().find(|(key, ..)| *key == content.key);
        let log2 = ghost.map_or(0, |(_, log2, at)| Self::one_more(log2 - (self.now - at)));
        self.ghosts.retain(|(key, ..)| *key != content.key);
        self.sums.insert(block, (log2, 0, true));
    }

    fn hit(&mut self, block: BlockId) {
        self.take(block);
        let log2 = Self::one_more(self.log2(block));
        self.sums.insert(block, (log2, 0, true));
    }

    fn release(&mut self, block: BlockId) {
        self.take(block);
        self.releases += 1;
        let log2 = self.log2(block);
        self.sums.insert(block, (log2, self.now, false));
        self.released.insert(block, (log2, self.now, self.releases));
        self.order.push(block);
    }

    fn pop(&mut self) -> Option<BlockId> {
        let least = self.order.iter().copied().min_by_key(|block| {
            let (log2, at, release) = self.released[block];
            (log2 - (self.now - at), release)
        })?;
        self.take(least);
        Some(least)
    }

    fn take(&mut self, block: BlockId) {
        drop_from(&mut self.order, block);
    }

    fn unpop(&mut self, block: BlockId) {
        self.order.push(block);
    }

    fn evicted(&mut self, block: BlockId, content: Content) {
        let (log2, at, _) = self.sums[&block];
        self.ghosts.retain(|(key, ..)| *key != content.key);
        self.ghosts.push((content.key, log2, at));
        let over = self.ghosts.len().saturating_sub((self.blocks - 1) * self.ghosts_per_block);
        self.ghosts.drain(..over);
    }

    fn forget(&mut self, block: BlockId) {
        self.take(block);
    }

    fn clear(&mut self) {
        let (half_life, ghosts_per_block, blocks) = (self.half_life, self.ghosts_per_block, self.blocks);
        *self = Self { half_life, ghosts_per_block, ..Self::default() };
        self.grow(blocks).unwrap();
    }

    fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        self.blocks = self.blocks.max(num_blocks);
        let admissions_in_16_half_lives = (self.blocks as i128 - 1) * i128::from(self.half_life);
        self.step = (16 * ONE / admissions_in_16_half_lives.max(1)).max(1);
        Ok(())
    }

    fn check_invariants(&self) -> Result<(), InvariantViolation> {
        Ok(())
    }
}
