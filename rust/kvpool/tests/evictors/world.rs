//! A pool with any policy, and a model of it that knows everything but the order of eviction: who holds what, which contents
//! there are and what they hang on, and what was said of them. Where the policy chooses, the model asks whether it may.

mod steps;

use std::collections::BTreeMap;

use super::*;
use kvpool::{BlockPool, BlockState, DuplicatePolicy, PoolConfig, PoolError, TierError, Tiers};
pub(crate) use steps::Step;

const DEMOTED: usize = 0;
const NORMAL: usize = 36;
const HIGHEST: usize = 101;
const PINNED: usize = 102;

/// A path, in an epoch.
type Content = (u64, Vec<u8>);

#[derive(Clone, Debug)]
struct Block {
    references: usize,
    /// Of fences and of pins.
    fences: usize,
    pins: usize,
    content: Option<Content>,
    computed: bool,
    /// How many victims there were when pins alone were left of its references.
    released: usize,
    /// The block that it hangs on, and which of that block's contents.
    parent: Option<(usize, u64)>,
    /// Contents that the block has lost.
    contents: u64,
    rank: usize,
    tenant: Option<u32>,
    deadline: Option<f64>,
    idle_ttl: Option<f64>,
    then: Then,
}

impl Block {
    fn new(contents: u64) -> Self {
        Self {
            references: 0,
            fences: 0,
            pins: 0,
            content: None,
            computed: false,
            released: 0,
            parent: None,
            contents,
            rank: NORMAL,
            tenant: None,
            deadline: None,
            idle_ttl: None,
            then: Then::Normal,
        }
    }

    fn is_idle(&self) -> bool {
        self.references == 0 && self.computed
    }
}

pub(crate) struct World {
    pub(crate) kind: Kind,
    /// One tier, for planned copies.
    tiers: Tiers,
    config: RetentionConfig,
    drop_duplicates: bool,
    blocks: Vec<Block>,
    /// By content: its blocks; a lookup takes the first, if it is computed.
    copies: BTreeMap<Content, Vec<usize>>,
    tables: Vec<(Vec<usize>, Vec<u8>)>,
    fences: BTreeMap<u64, Vec<usize>>,
    /// Planned copies: destination and source.
    planned: BTreeMap<usize, usize>,
    pinned: Vec<usize>,
    completed: Option<u64>,
    now: Option<f64>,
    pub(crate) victims: Vec<usize>,
}

const MOST_BLOCKS: usize = 20;

impl World {
    pub(crate) fn new(
        kind: Kind,
        num_blocks: usize,
        config: &RetentionConfig,
        drop_duplicates: bool,
    ) -> Self {
        let duplicates = if drop_duplicates { DuplicatePolicy::DropOnRelease } else { DuplicatePolicy::Keep };
        let settings = PoolConfig { num_blocks, block_size: BLOCK_SIZE, duplicates, ..Default::default() };
        let tiers = Tiers::with_evictor(vec![settings], kind.build(num_blocks, config)).unwrap();
        Self {
            kind,
            tiers,
            config: config.clone(),
            drop_duplicates,
            blocks: vec![Block::new(0); num_blocks],
            copies: BTreeMap::new(),
            tables: Vec::new(),
            fences: BTreeMap::new(),
            planned: BTreeMap::new(),
            pinned: Vec::new(),
            completed: None,
            now: None,
            victims: Vec::new(),
        }
    }

    pub(crate) fn pool(&self) -> &BlockPool {
        self.tiers.pool(0).unwrap()
    }

    pub(crate) fn pool_mut(&mut self) -> &mut BlockPool {
        self.tiers.pool_mut(0).unwrap()
    }

    fn epoch(&self) -> u64 {
        self.pool().epoch()
    }

    fn idle(&self) -> impl Iterator<Item = usize> + '_ {
        (1..self.blocks.len()).filter(|&block| self.blocks[block].is_idle())
    }

    fn is_free(&self, block: usize) -> bool {
        self.blocks[block].references == 0 && !self.blocks[block].computed
    }

    fn available(&self) -> usize {
        (1..self.blocks.len()).filter(|&block| self.blocks[block].references == 0).count()
    }

    /// What has a place in the order of eviction, first to last: what is cached-free, and what pins alone hold until its turn comes.
    fn waiting(&self) -> Vec<usize> {
        indices(&self.pool().order_with_pinned())
    }

    /// Whether one of those that are `waiting` hangs on `block` and the content that it has.
    fn has_waiting_child(&self, block: usize, waiting: &[usize]) -> bool {
        let parent = Some((block, self.blocks[block].contents));
        waiting.iter().any(|&child| self.blocks[child].parent == parent)
    }

    fn tenant_blocks(&self, tenant: u32) -> usize {
        self.blocks.iter().filter(|block| block.tenant == Some(tenant)).count()
    }

    fn limits_of(&self, block: usize) -> Option<(usize, &TenantLimits)> {
        let tenant = self.blocks[block].tenant?;
        let limits = self.config.tenants.iter().find(|limits| limits.tenant.0 == tenant)?;
        Some((self.tenant_blocks(tenant), limits))
    }

    fn is_above_ceiling(&self, block: usize) -> bool {
        self.limits_of(block).is_some_and(|(count, limits)| limits.ceiling.is_some_and(|most| count > most))
    }

    fn is_under_floor(&self, block: usize) -> bool {
        self.limits_of(block).is_some_and(|(count, limits)| count <= limits.floor)
    }

    /// Properties 12 and 23, of the first that is `waiting`: nobody needs it, nothing hangs on it, and nothing that may go stands before
    /// it in the order that `kvpool::retention` states.
    fn check_victim(&self, victim: usize, waiting: &[usize]) {
        let block = &self.blocks[victim];
        assert!(block.is_idle(), "property 12: #{victim} is in use: {block:?}");
        let is_leaf = |&block: &usize| !self.has_waiting_child(block, waiting);
        if !self.kind.is_closed() {
            return;
        }
        assert!(is_leaf(&victim), "#{victim} goes before its cached children");
        let leaves: Vec<_> = self.idle().filter(is_leaf).collect();
        let rank = |block: usize| self.blocks[block].rank;
        let lowest = leaves.iter().map(|&block| rank(block)).min().unwrap();
        if self.config.tenants.is_empty() || lowest == DEMOTED {
            assert_eq!(rank(victim), lowest, "#{victim} of {leaves:?}");
            return;
        }
        let unpinned = |block: usize| rank(block) != PINNED;
        if leaves.iter().any(|&block| unpinned(block) && self.is_above_ceiling(block)) {
            assert!(unpinned(victim) && self.is_above_ceiling(victim), "#{victim}: a ceiling is exceeded");
            return;
        }
        // Blocks that no floor can protect.
        let open = |&block: &usize| self.limits_of(block).is_none_or(|(_, limits)| limits.floor == 0);
        if let Some(lowest) = leaves.iter().copied().filter(open).map(rank).filter(|&r| r != PINNED).min() {
            assert!(rank(victim) <= lowest && !self.is_under_floor(victim), "#{victim} is under a floor");
        }
        assert!(unpinned(victim) || !leaves.iter().any(|&block| unpinned(block)), "#{victim} is pinned");
    }

    fn end_content(&mut self, block: usize) {
        let Block { references, fences, pins, contents, .. } = self.blocks[block];
        if let Some(content) = self.blocks[block].content.take() {
            let copies = self.copies.get_mut(&content).unwrap();
            copies.retain(|&copy| copy != block);
            if copies.is_empty() {
                self.copies.remove(&content);
            }
            self.blocks[block] = Block { references, fences, pins, ..Block::new(contents + 1) };
        }
    }

    /// Allocates; checks that it succeeds exactly if it can, what it takes, and in which order.
    pub(crate) fn allocate(&mut self, n: usize) -> Option<Vec<usize>> {
        let (order, available) = (indices(&self.pool().eviction_order()), self.available());
        let waiting = self.waiting();
        assert_eq!(order.len(), self.idle().count());
        let evicted = self.pool().stats().evicted;
        let got = match self.pool_mut().allocate(n) {
            Ok(got) => indices(&got),
            Err(error) => {
                assert!(matches!(error, PoolError::OutOfBlocks(_)), "{error}");
                assert!(n > available, "property 23: {n} of {available} available blocks are refused");
                return None;
            }
        };
        assert!(n <= available && got.len() == n);
        self.note_taken(&got, &order, &waiting, evicted);
        Some(got)
    }

    /// What was handed out: free blocks, then victims, in the order that was announced. There were `evicted` before, and these were
    /// `waiting`.
    fn note_taken(&mut self, got: &[usize], order: &[usize], waiting: &[usize], evicted: u64) {
        let free = got.iter().filter(|&&block| self.is_free(block)).count();
        let victims = &got[free..];
        assert!(got[..free].iter().all(|&block| self.is_free(block)), "free ones first");
        assert!(victims.is_empty() || (1..self.blocks.len()).filter(|&b| self.is_free(b)).count() == free);
        assert_eq!(self.pool().stats().evicted - evicted, victims.len() as u64, "property 22");
        assert_eq!(victims, &order[..victims.len()], "the order that was announced");
        for &victim in victims {
            let turn = waiting.iter().position(|&block| block == victim).unwrap();
            self.check_victim(victim, &waiting[turn..]);
            self.end_content(victim);
        }
        self.victims.extend(victims);
        got.iter().for_each(|&block| self.blocks[block].references = 1);
    }

    /// The holder of `block` wants to write to it: the block that he may write to, with a copy planned if it is another one.
    fn copy_on_write(&mut self, block: usize) -> Option<usize> {
        let Block { references, fences, pins, .. } = self.blocks[block];
        let writable =
            references - fences == 1 && references - pins == 1 && self.blocks[block].content.is_none();
        let (order, available) = (indices(&self.pool().eviction_order()), self.available());
        let (waiting, evicted) = (self.waiting(), self.pool().stats().evicted);
        let own = match self.tiers.copy_on_write(0, id(block)) {
            Ok(own) => own.index(),
            Err(TierError::Pool(PoolError::OutOfBlocks(_))) => {
                assert!(!writable && available == 0);
                return None;
            }
            Err(error) => panic!("{error}"),
        };
        assert_eq!(own == block, writable);
        if own != block {
            self.note_taken(&[own], &order, &waiting, evicted);
            let source = self.planned.get(&block).copied().unwrap_or(block);
            self.planned.insert(own, source);
            for end in [source, own].into_iter().filter(|&end| self.blocks[end].pins == 0).collect::<Vec<_>>()
            {
                let block = &mut self.blocks[end];
                block.references += 1;
                block.fences += 1;
                block.pins += 1;
                self.pinned.push(end);
            }
            let turn = waiting.iter().position(|&block| block == own).map_or(0, |turn| turn + 1);
            self.drop_references(&[block], &waiting[turn..]);
        }
        Some(own)
    }

    /// The plan is handed out. A block that only pins held has its place in the order, unless its turn came meanwhile.
    fn take_plan(&mut self) {
        self.tiers.take_plan().unwrap();
        self.planned.clear();
        for block in std::mem::take(&mut self.pinned) {
            let Block { references, fences, pins, .. } = &mut self.blocks[block];
            (*references, *fences, *pins) = (*references - 1, *fences - 1, *pins - 1);
            if *references == 0 && self.pool().state(id(block)) == Some(BlockState::Free) {
                let overtaken = self.victims.len() > self.blocks[block].released;
                assert!(overtaken || !self.blocks[block].computed, "#{block} was dropped before its turn");
                self.end_content(block);
            }
        }
    }

    /// A lookup takes a block, held or not.
    fn hit(&mut self, block: usize) {
        self.blocks[block].references += 1;
        if self.blocks[block].idle_ttl.is_some() {
            self.blocks[block].deadline = None; // it runs while the block is idle
        }
        if self.blocks[block].rank == DEMOTED {
            self.blocks[block].rank = NORMAL;
        }
    }

    fn lookup(&mut self, path: &[u8], most: usize) -> Vec<usize> {
        let epoch = self.epoch();
        let chain = chain(epoch, path);
        let head = |end: &usize| {
            let copies = self.copies.get(&(epoch, path[..*end].to_vec()))?;
            copies.first().copied().filter(|&block| self.blocks[block].computed)
        };
        let expected: Vec<_> = (1..=path.len().min(most)).map_while(|end| head(&end)).collect();
        let held_before: Vec<_> = expected.iter().map(|&block| self.blocks[block].references > 0).collect();
        let overtaken: Vec<_> = expected.iter().copied().filter(|&block| self.is_overtaken(block)).collect();
        let found = indices(&self.pool_mut().match_and_acquire(&chain, most).unwrap());
        assert_eq!(
            found, expected,
            "property 12: hits on cached blocks, held ({held_before:?}) or not, succeed"
        );
        found.iter().for_each(|&block| self.hit(block));
        overtaken.into_iter().for_each(|block| self.hang_on_a_copy(block));
        found
    }

    /// Whether pins alone hold a block whose turn has come: who takes it then puts its content back into the order, behind whichever
    /// copy of its parent a lookup goes through.
    fn is_overtaken(&self, block: usize) -> bool {
        let Block { references, pins, computed, .. } = self.blocks[block];
        pins > 0 && references == pins && computed && !self.waiting().contains(&block)
    }

    fn hang_on_a_copy(&mut self, block: usize) {
        let Some((epoch, path)) = self.blocks[block].content.clone() else { return };
        let copies = self.copies.get(&(epoch, path[..path.len() - 1].to_vec()));
        let parent = copies.and_then(|copies| copies.first()).copied();
        self.blocks[block].parent = parent.map(|parent| (parent, self.blocks[parent].contents));
    }

    fn register(&mut self, blocks: &[usize], path: &[u8], start: usize) -> bool {
        let twice = (1..blocks.len()).any(|at| blocks[..at].contains(&blocks[at]));
        let fits = start + blocks.len() <= path.len()
            && !twice
            && blocks.iter().all(|&b| self.blocks[b].references > 0 && self.blocks[b].content.is_none());
        let ids: Vec<_> = blocks.iter().map(|&block| id(block)).collect();
        let chain = chain(self.epoch(), path);
        assert_eq!(self.pool_mut().register(&ids, &chain, start).is_ok(), fits);
        if !fits {
            return false;
        }
        for (at, &block) in blocks.iter().enumerate() {
            let before = at.checked_sub(1).map(|before| blocks[before]);
            self.note_content(block, &path[..start + at + 1], before);
        }
        true
    }

    fn note_content(&mut self, block: usize, path: &[u8], before: Option<usize>) {
        let epoch = self.epoch();
        let on_index = self.copies.get(&(epoch, path[..path.len() - 1].to_vec())).and_then(|c| c.first());
        let parent = before.or(on_index.copied());
        self.blocks[block].parent = parent.map(|parent| (parent, self.blocks[parent].contents));
        self.blocks[block].content = Some((epoch, path.to_vec()));
        self.copies.entry((epoch, path.to_vec())).or_default().push(block);
    }

    fn mark(&mut self, blocks: &[usize]) {
        let valid = blocks.iter().all(|&block| self.blocks[block].content.is_some());
        let ids: Vec<_> = blocks.iter().map(|&block| id(block)).collect();
        assert_eq!(self.pool_mut().mark_computed(&ids).is_ok(), valid);
        for &block in blocks.iter().filter(|_| valid) {
            if let (Some(content), false) = (self.blocks[block].content.clone(), self.blocks[block].computed)
            {
                self.blocks[block].computed = true;
                let copies = self.copies.get_mut(&content).unwrap();
                copies.retain(|&copy| copy != block);
                // Behind those that became computed before it, and before all others.
                let computed = copies.iter().take_while(|&&copy| self.blocks[copy].computed).count();
                copies.insert(computed, block);
            }
        }
    }

    fn can_release(&self, blocks: &[usize]) -> bool {
        let named = |block: usize| blocks.iter().filter(|&&other| other == block).count();
        blocks.iter().all(|&b| self.blocks[b].references - self.blocks[b].fences >= named(b))
    }

    /// Blocks lose a reference each. Those that were `waiting` before had a place in the order.
    fn drop_references(&mut self, blocks: &[usize], waiting: &[usize]) {
        let mut idle = Vec::new();
        for &block in blocks {
            self.blocks[block].references -= 1;
            let Block { references, pins, .. } = self.blocks[block];
            idle.extend(Some(block).filter(|_| references == pins));
        }
        // Those that are released here wait from then on, all together.
        let has_dependents = |&block: &usize| self.kind.is_closed() && self.has_waiting_child(block, waiting);
        let dependents: Vec<_> = idle.iter().map(has_dependents).collect();
        let mut cached = Vec::new();
        for (&block, dependents) in idle.iter().zip(dependents) {
            let Block { content, computed, .. } = self.blocks[block].clone();
            let twin = content.is_some_and(|content| {
                self.copies[&content].iter().any(|&copy| copy != block && self.blocks[copy].computed)
            });
            if computed && !(twin && self.drop_duplicates && !dependents) {
                cached.push(block);
            } else {
                self.end_content(block);
            }
        }
        for block in cached {
            self.blocks[block].released = self.victims.len();
            if let (Some(now), Some(seconds)) = (self.now, self.blocks[block].idle_ttl) {
                self.blocks[block].deadline = Some(now + seconds);
            }
            self.relink(block);
        }
    }

    /// A block whose parent's content is gone, or was never computed, hangs on another copy of it from now on.
    fn relink(&mut self, block: usize) {
        let lives = |&(parent, contents): &(usize, u64)| {
            self.blocks[parent].contents == contents && self.blocks[parent].computed
        };
        if self.blocks[block].parent.as_ref().is_some_and(lives) {
            return;
        }
        let before = self.blocks[block].parent;
        self.hang_on_a_copy(block);
        self.blocks[block].parent = self.blocks[block].parent.or(before);
    }

    fn release(&mut self, blocks: &[usize]) {
        let valid = self.can_release(blocks);
        let ids: Vec<_> = blocks.iter().map(|&block| id(block)).collect();
        let waiting = self.waiting();
        assert_eq!(self.pool_mut().release(&ids).is_ok(), valid);
        if valid {
            self.drop_references(blocks, &waiting);
        }
    }

    fn release_table(&mut self, table: &[usize]) {
        let tail_first: Vec<_> = table.iter().rev().copied().collect();
        self.release(&tail_first);
    }

    pub(crate) fn admit(&mut self, path: &[u8]) -> bool {
        let Some(new) = self.begin(path) else { return false };
        self.mark(&new);
        true
    }

    /// Returns the blocks that are not computed yet; the table is the last one.
    fn begin(&mut self, path: &[u8]) -> Option<Vec<usize>> {
        let mut table = self.lookup(path, usize::MAX);
        let cached = table.len();
        let Some(new) = self.allocate(path.len() - cached) else {
            self.release_table(&table);
            return None;
        };
        assert!(self.register(&new, path, cached));
        table.extend(&new);
        self.tables.push((table, path.to_vec()));
        Some(new)
    }

    fn take_table(&mut self, nth: usize) -> Option<(Vec<usize>, Vec<u8>)> {
        if self.tables.is_empty() { None } else { Some(self.tables.remove(nth % self.tables.len())) }
    }

    fn table(&self, nth: usize) -> Vec<usize> {
        if self.tables.is_empty() { Vec::new() } else { self.tables[nth % self.tables.len()].0.clone() }
    }

    pub(crate) fn check(&self) {
        self.pool().check_invariants().unwrap();
        let stats = self.pool().stats();
        assert_eq!((stats.cached_free, self.pool().num_available()), (self.idle().count(), self.available()));
        for block in 1..self.blocks.len() {
            let Block { references, content, computed, .. } = &self.blocks[block];
            let seen = (
                self.pool().ref_count(id(block)),
                self.pool().is_registered(id(block)),
                self.pool().is_computed(id(block)),
            );
            assert_eq!(seen, (Some(*references as u32), content.is_some(), *computed), "#{block}");
        }
        let Some(stats) = self.pool().retention_stats() else {
            assert!(!self.kind.has_retention());
            return;
        };
        let known = || self.blocks.iter().filter(|block| block.content.is_some());
        let pinned = known().filter(|block| block.rank == PINNED).count();
        assert!(pinned <= self.config.pin_budget, "property 23: pins are within their budget");
        let demoted = known().filter(|block| block.rank == DEMOTED).count();
        let with_ttl = known().filter(|block| block.deadline.is_some()).count();
        assert_eq!((stats.pinned, stats.demoted, stats.with_ttl), (pinned, demoted, with_ttl));
    }

    pub(crate) fn has_copies(&self) -> bool {
        self.copies.values().any(|copies| copies.len() > 1)
    }

    /// For holders that hold whole prefixes: a lookup can reach every cached block, through one copy or another of what is
    /// before it. Pins hold no prefixes, and what they alone hold is not cached for anybody.
    pub(crate) fn check_reachable(&self) {
        let computed = |content: &Content| {
            self.copies.get(content).is_some_and(|copies| self.blocks[copies[0]].computed)
        };
        let is_cached = |&copy: &usize| {
            let Block { references, pins, .. } = self.blocks[copy];
            self.blocks[copy].computed && (references == 0 || references > pins)
        };
        for (content, _) in self.copies.iter().filter(|(_, copies)| copies.iter().any(is_cached)) {
            let (epoch, path) = content;
            let reachable = (1..path.len()).all(|end| computed(&(*epoch, path[..end].to_vec())));
            assert!(reachable, "{content:?} is cached, what it continues is not ({:?})", self.kind);
        }
    }
}
