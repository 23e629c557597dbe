//! Contains an exact model of LRU's order of eviction with retention. It is simple and slow: every list
//! is a vector, and every count is recomputed.
//!
//! The model stores the position of each block, and implements the rules in the module docs of
//! `kvpool::retention` and `kvpool::evictor::closed` one by one. Every operation is O(n).

use std::cmp::Reverse;

use kvpool::retention::{Hint, Keep, Retention, RetentionConfig, Then, Ttl};

/// Ranks are the levels of the order of eviction: demoted, priorities 0 to 100, pinned.
const DEMOTED: usize = 0;
const NORMAL: usize = 36;
const HIGHEST: usize = 101;
const PINNED: usize = 102;

/// A list of blocks in the order of eviction.
type List = Vec<usize>;

#[derive(Clone, Debug)]
struct Block {
    known: bool,
    idle: bool,
    /// Whether the block was the next victim and has to wait until its children are evicted.
    parked: bool,
    /// The parent block, and the number of the parent's content. The number is needed because a block
    /// has several contents over time.
    parent: Option<(usize, u64)>,
    contents: u64,
    rank: usize,
    tenant: Option<usize>,
    deadline: Option<f64>,
    idle_ttl: Option<f64>,
    then: Then,
}

const UNKNOWN: Block = Block {
    known: false,
    idle: false,
    parked: false,
    parent: None,
    contents: 0,
    rank: NORMAL,
    tenant: None,
    deadline: None,
    idle_ttl: None,
    then: Then::Normal,
};

#[derive(Clone, Debug)]
struct Tenant {
    id: u32,
    floor: usize,
    ceiling: Option<usize>,
    /// The tenant's blocks that are not in use, except pinned and parked blocks. The least recently
    /// released block is first.
    idle: List,
    /// The blocks that were the next victim, but were not evicted because the tenant was not above its
    /// floor.
    aside: List,
}

/// The model of LRU with retention.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    blocks: Vec<Block>,
    ranks: Vec<List>,
    tenants: Vec<Tenant>,
    pin_budget: usize,
    now: Option<f64>,
}

impl Model {
    pub(crate) fn new(num_blocks: usize, config: &RetentionConfig) -> Self {
        let mut limits = config.tenants.clone();
        limits.sort_by_key(|limits| limits.tenant);
        let tenant = |limits: &kvpool::retention::TenantLimits| Tenant {
            id: limits.tenant.0,
            floor: limits.floor,
            ceiling: limits.ceiling,
            idle: Vec::new(),
            aside: Vec::new(),
        };
        Self {
            blocks: vec![UNKNOWN; num_blocks],
            ranks: vec![Vec::new(); PINNED + 1],
            tenants: limits.iter().map(tenant).collect(),
            pin_budget: config.pin_budget,
            now: None,
        }
    }

    pub(crate) fn is_idle(&self, block: usize) -> bool {
        self.blocks[block].idle
    }

    pub(crate) fn is_known(&self, block: usize) -> bool {
        self.blocks[block].known
    }

    pub(crate) fn children(&self, block: usize) -> usize {
        let parent = Some((block, self.blocks[block].contents));
        self.blocks.iter().filter(|child| child.idle && child.parent == parent).count()
    }

    fn count(&self, tenant: usize) -> usize {
        self.blocks.iter().filter(|block| block.tenant == Some(tenant)).count()
    }

    pub(crate) fn tenant_blocks(&self, id: u32) -> usize {
        self.tenants.iter().position(|tenant| tenant.id == id).map_or(0, |tenant| self.count(tenant))
    }

    /// Returns five numbers of blocks: demoted, below normal priority, above normal priority, pinned,
    /// and with a running time to live.
    pub(crate) fn gauges(&self) -> [usize; 5] {
        let known = || self.blocks.iter().filter(|block| block.known);
        let of = |ranks: std::ops::RangeInclusive<usize>| known().filter(|b| ranks.contains(&b.rank)).count();
        let with_ttl = known().filter(|block| block.deadline.is_some()).count();
        [of(DEMOTED..=DEMOTED), of(1..=NORMAL - 1), of(NORMAL + 1..=HIGHEST), of(PINNED..=PINNED), with_ttl]
    }

    fn is_under_floor(&self, block: usize) -> bool {
        let tenant = self.blocks[block].tenant;
        tenant.is_some_and(|tenant| self.count(tenant) <= self.tenants[tenant].floor)
    }

    /// Removes a block from all lists of ranks and tenants.
    fn detach(&mut self, block: usize) {
        let tenants = self.tenants.iter_mut().flat_map(|tenant| [&mut tenant.idle, &mut tenant.aside]);
        self.ranks.iter_mut().chain(tenants).for_each(|list| list.retain(|&other| other != block));
    }

    fn list_with_tenant(&mut self, block: usize, in_front: bool) {
        let Block { rank, tenant: Some(tenant), .. } = self.blocks[block] else { return };
        let idle = &mut self.tenants[tenant].idle;
        match (rank, in_front) {
            (PINNED, _) => {}
            (_, true) if idle.contains(&block) => {}
            (_, true) => idle.insert(0, block),
            (_, false) => {
                idle.retain(|&other| other != block);
                idle.push(block);
            }
        }
    }

    /// Makes a block the next victim of its rank.
    fn put_first(&mut self, block: usize) {
        let rank = self.blocks[block].rank;
        self.ranks[rank].insert(0, block);
        self.list_with_tenant(block, true);
    }

    /// Returns a block that was set aside for a tenant's floor to the order, if the tenant is
    /// above its floor.
    fn spare_another(&mut self, tenant: usize) {
        if self.count(tenant) > self.tenants[tenant].floor && !self.tenants[tenant].aside.is_empty() {
            let block = self.tenants[tenant].aside.remove(0);
            self.put_first(block);
        }
    }

    fn unpark(&mut self, block: usize) {
        if std::mem::take(&mut self.blocks[block].parked) {
            self.put_first(block);
        }
    }

    fn end_idle(&mut self, block: usize) {
        if !std::mem::take(&mut self.blocks[block].idle) {
            return;
        }
        if let Some((parent, contents)) = self.blocks[block].parent
            && self.blocks[parent].contents == contents
            && self.blocks[parent].idle
            && self.children(parent) == 0
        {
            self.unpark(parent);
        }
    }

    fn end_content(&mut self, block: usize) {
        self.detach(block);
        self.blocks[block] = Block { contents: self.blocks[block].contents + 1, ..UNKNOWN };
    }

    pub(crate) fn registered(&mut self, block: usize, parent: Option<usize>) {
        self.remove(block);
        let parent = parent.filter(|&parent| parent != block && self.blocks[parent].known);
        self.blocks[block].known = true;
        self.blocks[block].parent = parent.map(|parent| (parent, self.blocks[parent].contents));
    }

    pub(crate) fn hit(&mut self, block: usize) {
        self.end_idle(block);
        if !self.blocks[block].known {
            return;
        }
        self.unpark(block);
        let tenant = self.blocks[block].tenant;
        let evictable = tenant.filter(|&tenant| {
            let Tenant { idle, aside, .. } = &self.tenants[tenant];
            idle.contains(&block) && !aside.contains(&block)
        });
        self.detach(block);
        if self.blocks[block].idle_ttl.is_some() {
            self.blocks[block].deadline = None;
        }
        if self.blocks[block].rank == DEMOTED {
            self.blocks[block].rank = NORMAL; // the hint was wrong
        }
        if let Some(tenant) = evictable {
            self.spare_another(tenant);
        }
    }

    /// Makes `parent` the parent of the content of `block`.
    pub(crate) fn relink(&mut self, block: usize, parent: usize) {
        if parent != block
            && self.blocks[parent].known
            && self.blocks[block].known
            && !self.blocks[block].idle
        {
            self.blocks[block].parent = Some((parent, self.blocks[parent].contents));
        }
    }

    pub(crate) fn parent(&self, block: usize) -> Option<usize> {
        let (parent, contents) = self.blocks[block].parent?;
        (self.blocks[parent].contents == contents).then_some(parent)
    }

    /// Releases blocks. Each is given as (block, depth), in any order.
    pub(crate) fn release(&mut self, released: &[(usize, u32)]) {
        let mut released = released.to_vec();
        released.sort_by_key(|&(_, depth)| Reverse(depth));
        for (block, _) in released {
            if self.blocks[block].idle {
                continue;
            }
            if !self.blocks[block].known {
                self.registered(block, None);
            }
            self.detach(block);
            self.blocks[block].idle = true;
            if let (Some(now), Some(seconds)) = (self.now, self.blocks[block].idle_ttl) {
                self.blocks[block].deadline = Some(now + seconds);
            }
            let rank = self.blocks[block].rank;
            self.ranks[rank].push(block);
            self.list_with_tenant(block, false);
        }
    }

    pub(crate) fn remove(&mut self, block: usize) {
        self.end_idle(block);
        if self.blocks[block].known {
            self.end_content(block);
        }
    }

    fn pop(&mut self) -> Option<usize> {
        let take = |model: &mut Self, block: usize| {
            model.detach(block);
            Some(block)
        };
        if let Some(&block) = self.ranks[DEMOTED].first() {
            return take(self, block);
        }
        for tenant in 0..self.tenants.len() {
            let Tenant { ceiling, idle, .. } = &self.tenants[tenant];
            if let (Some(ceiling), Some(&block)) = (ceiling, idle.first())
                && self.count(tenant) > *ceiling
            {
                return take(self, block);
            }
        }
        while let Some(&block) = self.ranks[DEMOTED + 1..PINNED].iter().flatten().next() {
            if !self.is_under_floor(block) {
                return take(self, block);
            }
            let tenant = self.blocks[block].tenant.unwrap();
            let rank = self.blocks[block].rank;
            self.ranks[rank].remove(0);
            self.tenants[tenant].aside.push(block);
        }
        let aside = self.tenants.iter().flat_map(|tenant| &tenant.aside);
        let last = aside.chain(&self.ranks[PINNED]).next().copied();
        last.and_then(|block| take(self, block))
    }

    pub(crate) fn evict(&mut self) -> Option<usize> {
        loop {
            let block = self.pop()?;
            if self.children(block) == 0 {
                self.end_idle(block);
                self.end_content(block);
                return Some(block);
            }
            self.blocks[block].parked = true;
        }
    }

    /// Returns whether a policy may choose a block as the next victim. It may if the block has no
    /// cached children, and no block of a lower rank could be evicted. Limits of tenants change the
    /// order of ranks.
    pub(crate) fn may_go(&self, block: usize) -> bool {
        let is_leaf = |&block: &usize| self.blocks[block].idle && self.children(block) == 0;
        let leaves = (1..self.blocks.len()).filter(is_leaf);
        let lowest = leaves.map(|leaf| self.blocks[leaf].rank).min();
        let is_lowest = lowest == Some(self.blocks[block].rank);
        is_leaf(&block) && (is_lowest || !self.tenants.is_empty() && lowest != Some(DEMOTED))
    }

    pub(crate) fn order(&self) -> Vec<usize> {
        let mut copy = self.clone();
        std::iter::from_fn(|| copy.evict()).collect()
    }

    /// Applies a retention hint. Returns `None` for a time to live before the clock is set.
    pub(crate) fn retain(&mut self, block: usize, retention: Retention) -> Option<Hint> {
        if !self.blocks[block].known {
            return Some(Hint::Ignored);
        }
        self.unpark(block);
        let deadline = match retention.ttl {
            None => None,
            Some(Ttl::Absolute(seconds)) => Some(self.now? + seconds),
            Some(Ttl::Idle(seconds)) => {
                let until = self.now? + seconds;
                self.blocks[block].idle.then_some(until) // it does not run while the block is in use
            }
        };
        let pinned = self.blocks.iter().filter(|block| block.rank == PINNED).count();
        let full = pinned >= self.pin_budget && self.blocks[block].rank != PINNED;
        let rank = match retention.keep {
            Keep::Demoted => DEMOTED,
            Keep::Priority(priority) => usize::from(priority.get()) + 1,
            Keep::Pinned if full => HIGHEST,
            _ => PINNED,
        };
        let clipped = retention.keep == Keep::Pinned && full;
        self.blocks[block].deadline = deadline;
        self.blocks[block].then = retention.then;
        self.blocks[block].idle_ttl = match retention.ttl {
            Some(Ttl::Idle(seconds)) => Some(seconds),
            _ => None,
        };
        if self.blocks[block].rank != rank {
            self.detach(block);
            self.blocks[block].rank = rank;
            if self.blocks[block].idle {
                self.ranks[rank].push(block);
                self.list_with_tenant(block, false);
            }
        }
        Some(if clipped { Hint::Clipped } else { Hint::Accepted })
    }

    pub(crate) fn assign(&mut self, block: usize, id: u32) {
        let Some(tenant) = self.tenants.iter().position(|tenant| tenant.id == id) else { return };
        let Block { known: true, tenant: None, idle, parked, .. } = self.blocks[block] else { return };
        self.blocks[block].tenant = Some(tenant);
        if idle && !parked {
            self.list_with_tenant(block, false);
        }
        self.spare_another(tenant);
    }

    /// Sets the time. Returns the number of hints that ended, or `None` if the time is earlier than
    /// before.
    pub(crate) fn advance_time(&mut self, now: f64) -> Option<usize> {
        if self.now.is_some_and(|before| now < before) {
            return None;
        }
        self.now = Some(now);
        let due = |b: &usize| self.blocks[*b].deadline.filter(|&deadline| deadline <= now);
        let mut due: Vec<_> = (0..self.blocks.len()).filter_map(|b| Some((due(&b)?, b))).collect();
        due.sort_by(|a, b| a.partial_cmp(b).unwrap());
        for &(_, block) in &due {
            let then = match self.blocks[block].then {
                Then::Demote => Retention::END_OF_LIFE,
                _ => Retention::NORMAL,
            };
            self.retain(block, then);
        }
        Some(due.len())
    }

    pub(crate) fn clear(&mut self) {
        for block in 0..self.blocks.len() {
            self.end_content(block);
        }
    }

    pub(crate) fn grow(&mut self, num_blocks: usize) {
        self.blocks.resize(num_blocks.max(self.blocks.len()), UNKNOWN);
    }
}
