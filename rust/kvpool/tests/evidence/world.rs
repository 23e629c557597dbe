//! Runs random operations on a pool, and keeps separate records of the holders of each block and of the
//! content that the engine has written into it. The records show whether a result is right. They do not
//! predict which block a call returns.

use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) use crate::numbers::Numbers;
use kvpool::retention::{Keep, Priority, Retention, RetentionConfig, TenantId, TenantLimits, Then, Ttl};
use kvpool::{
    BlockHasher, BlockId, BlockPool, ChainLink, DuplicatePolicy, EvictionPolicy, ExtraKeys, HashCursor,
    HasherConfig, PoolConfig, PoolError, Verify,
};
use kvpool_observe::{PoolWatch, ScrubReport, Scrubber, WatchConfig};

const BLOCK_SIZE: usize = 2;

/// The settings of a pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub(crate) num_blocks: usize,
    pub(crate) eviction: EvictionPolicy,
    pub(crate) retention: bool,
    pub(crate) verify: Verify,
    pub(crate) duplicates: DuplicatePolicy,
    pub(crate) digest: bool,
}

impl Setting {
    /// Returns every policy, most of them also with retention.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let verify = [Verify::None, Verify::Tokens];
        let duplicates = DuplicatePolicy::ALL;
        kvpool_policies::ALL.iter().flat_map(move |&eviction| {
            [false, true]
                .into_iter()
                .filter(move |&retention| !retention || eviction != kvpool_policies::LAST_ACCESS)
                .map(move |retention| Self {
                    num_blocks: 14,
                    eviction,
                    retention,
                    verify: verify[usize::from(retention)],
                    duplicates: duplicates[eviction.name().len() % 2],
                    digest: true,
                })
        })
    }

    fn retention(self) -> Option<RetentionConfig> {
        let limits = |tenant, floor, ceiling| TenantLimits { tenant: TenantId(tenant), floor, ceiling };
        let tenants = vec![limits(0, 3, None), limits(1, 1, Some(4))];
        self.retention.then_some(RetentionConfig { pin_budget: 2, tenants })
    }
}

/// The epoch of a block's content, and all tokens of its chain up to the end of the block.
type Content = (u64, Vec<u32>);

pub(crate) struct World {
    pub(crate) pool: BlockPool,
    /// The scrubber of the pool. It continues where it stopped at its last call.
    scrubber: Scrubber,
    hasher: Arc<BlockHasher>,
    numbers: Numbers,
    /// The block tables that the test holds, each with its tokens.
    tables: Vec<(Vec<BlockId>, Vec<u32>)>,
    /// The block tables that were released with a fence, each with the step that ends the fence.
    fenced: Vec<(u64, Vec<BlockId>)>,
    /// For each block, the content that the engine has written into it.
    memory: BTreeMap<BlockId, Content>,
    step: u64,
    now: f64,
    retention: bool,
}

impl World {
    pub(crate) fn new(setting: Setting, seed: u64) -> Self {
        let Setting { num_blocks, eviction, verify, duplicates, digest, .. } = setting;
        let retention = setting.retention();
        let hasher =
            BlockHasher::new(HasherConfig { block_size: BLOCK_SIZE, verify, ..Default::default() }).unwrap();
        let config = PoolConfig {
            num_blocks,
            block_size: BLOCK_SIZE,
            verify,
            duplicates,
            eviction,
            retention,
            ..PoolConfig::default()
        };
        let watch = WatchConfig { event_capacity: 8, digest, advisor: None, ..WatchConfig::default() };
        Self {
            pool: BlockPool::new(config).unwrap().watched(&watch).unwrap(),
            scrubber: Scrubber::default(),
            hasher: Arc::new(hasher),
            numbers: Numbers(seed),
            tables: Vec::new(),
            fenced: Vec::new(),
            memory: BTreeMap::new(),
            step: 0,
            now: 0.0,
            retention: setting.retention,
        }
    }

    /// Makes a world, and then `operations` random operations in it. No fault is injected.
    pub(crate) fn after(setting: Setting, seed: u64, operations: usize) -> Self {
        let mut world = Self::new(setting, seed);
        for _ in 0..operations {
            world.step().unwrap();
        }
        world
    }

    /// Returns how many references `block` should have, according to the test's own records.
    fn references(&self, block: BlockId) -> usize {
        let held =
            self.tables.iter().map(|(table, _)| table).chain(self.fenced.iter().map(|(_, table)| table));
        held.flatten().filter(|&&other| other == block).count()
    }

    /// Whether the pool has as many references to each block as the test's own records.
    pub(crate) fn agrees(&self) -> bool {
        let mut blocks = (1..self.pool.num_blocks() as u32).map(BlockId::new);
        blocks.all(|block| self.pool.ref_count(block) == Some(self.references(block) as u32))
    }

    fn cursor(&self, tokens: &[u32]) -> HashCursor {
        let extra = ExtraKeys { epoch: self.pool.epoch(), ..ExtraKeys::default() };
        let mut cursor = HashCursor::new(Arc::clone(&self.hasher), extra).unwrap();
        cursor.append(tokens);
        cursor
    }

    fn content(&self, tokens: &[u32], position: usize) -> Content {
        (self.pool.epoch(), tokens[..(position + 1) * BLOCK_SIZE].to_vec())
    }

    /// Draws one of a few random prompts that share prefixes.
    fn prompt(&mut self) -> Vec<u32> {
        let (prompt, blocks) = (self.numbers.below(4) as u32, 1 + self.numbers.below(4));
        let tokens = (0..blocks * BLOCK_SIZE).map(|at| if at < 2 * BLOCK_SIZE { prompt / 2 } else { prompt });
        tokens.collect()
    }

    /// Checks that no other holder has the newly allocated blocks. Their old contents are removed from
    /// the test's own records.
    fn take(&mut self, blocks: &[BlockId]) {
        for (at, &block) in blocks.iter().enumerate() {
            assert!(block.get() > 0 && block.index() < self.pool.num_blocks(), "{block:?} is no block");
            assert_eq!(self.references(block), 0, "{block:?} was handed out, and somebody holds it");
            assert!(!blocks[..at].contains(&block), "{block:?} was handed out twice");
            self.memory.remove(&block);
        }
    }

    /// Checks that a block that was hit has the expected content.
    fn check_hit(&self, block: BlockId, content: &Content) {
        assert_eq!(self.memory.get(&block), Some(content), "{block:?} was hit, and holds something else");
    }

    /// Allocates blocks. If the allocation fails, releases the blocks in `taken`, which were acquired
    /// before.
    fn allocate(&mut self, n: usize, taken: &[BlockId]) -> Result<Option<Vec<BlockId>>, PoolError> {
        match self.pool.allocate(n) {
            Ok(blocks) => {
                self.take(&blocks);
                Ok(Some(blocks))
            }
            Err(PoolError::OutOfBlocks(_)) => {
                self.pool.release(taken)?;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn register(&mut self, blocks: &[BlockId], tokens: &[u32], start: usize) -> Result<(), PoolError> {
        let chain = self.cursor(tokens).chain().clone();
        let registered = self.pool.register(blocks, &chain, start)?.blocks;
        let computed = registered - usize::from(registered > 0 && self.numbers.below(4) == 0);
        for (at, &block) in blocks[..computed].iter().enumerate() {
            self.memory.insert(block, self.content(tokens, start + at));
        }
        self.pool.mark_computed(&blocks[..computed])
    }

    fn nth(&mut self) -> Option<usize> {
        if self.tables.is_empty() { None } else { Some(self.numbers.below(self.tables.len())) }
    }

    /// Makes one random operation.
    ///
    /// # Errors
    /// Every error of the pool, except a refusal because of missing blocks.
    pub(crate) fn step(&mut self) -> Result<(), PoolError> {
        if self.retention && self.numbers.below(4) == 0 {
            return self.hint();
        }
        match self.numbers.below(30) {
            0..=8 => self.serve(),
            9..=11 => self.compute_again(),
            12..=18 => self.release(),
            19..=20 => self.fork(),
            21 => self.release_after(),
            22..=23 => self.complete_step(),
            24 => self.promote(),
            25 => self.evict(),
            26 => self.probe(),
            27 => self.access(),
            28 => self.count(), // may also scrub
            _ => self.rarely(),
        }
    }

    fn serve(&mut self) -> Result<(), PoolError> {
        let tokens = self.prompt();
        let chain = self.cursor(&tokens).chain().clone();
        let mut table = self.pool.match_and_acquire(&chain, usize::MAX)?;
        for (at, &block) in table.iter().enumerate() {
            self.check_hit(block, &self.content(&tokens, at));
        }
        let hits = table.len();
        let Some(new) = self.allocate(chain.len() - hits, &table)? else { return Ok(()) };
        table.extend(&new);
        self.tables.push((table, tokens.clone()));
        self.register(&new, &tokens, hits)
    }

    /// Computes a prompt that may already be cached, without looking it up. So its blocks are copies of
    /// cached blocks.
    fn compute_again(&mut self) -> Result<(), PoolError> {
        let tokens = self.prompt();
        let Some(table) = self.allocate(tokens.len() / BLOCK_SIZE, &[])? else { return Ok(()) };
        self.tables.push((table.clone(), tokens.clone()));
        self.register(&table, &tokens, 0)
    }

    fn release(&mut self) -> Result<(), PoolError> {
        let Some(nth) = self.nth() else { return Ok(()) };
        let (table, _) = self.tables.swap_remove(nth);
        self.pool.release_table(&table)
    }

    fn fork(&mut self) -> Result<(), PoolError> {
        let Some(nth) = self.nth() else { return Ok(()) };
        let copy = self.tables[nth].clone();
        self.pool.acquire(&copy.0)?;
        self.tables.push(copy);
        Ok(())
    }

    fn release_after(&mut self) -> Result<(), PoolError> {
        let Some(nth) = self.nth() else { return Ok(()) };
        let (table, _) = self.tables.swap_remove(nth);
        self.step += 1;
        self.fenced.push((self.step, table.clone()));
        self.pool.release_after(&table, self.step)
    }

    fn complete_step(&mut self) -> Result<(), PoolError> {
        let step = self.step.saturating_sub(self.numbers.below(2) as u64);
        self.fenced.retain(|&(fence, _)| fence > step);
        self.pool.complete_step(step).map(|_| ())
    }

    fn promote(&mut self) -> Result<(), PoolError> {
        let tokens = self.prompt();
        let Some(own) = self.allocate(1, &[])? else { return Ok(()) };
        let extra = ExtraKeys { epoch: self.pool.epoch(), ..ExtraKeys::default() };
        let link = ChainLink::new(&self.hasher, None, &tokens[..BLOCK_SIZE], &extra).unwrap();
        let block = self.pool.register_link(own[0], &link)?;
        if self.pool.is_computed(block) {
            self.check_hit(block, &self.content(&tokens, 0));
        } else {
            self.pool.mark_computed(&[block])?;
            self.memory.insert(block, self.content(&tokens, 0));
        }
        self.tables.push((vec![block], tokens[..BLOCK_SIZE].to_vec()));
        Ok(())
    }

    fn evict(&mut self) -> Result<(), PoolError> {
        let block = BlockId::new(1 + self.numbers.below(self.pool.num_blocks() - 1) as u32);
        self.pool.drop_cached(&[block]).map(|_| ())
    }

    fn probe(&mut self) -> Result<(), PoolError> {
        let tokens = self.prompt();
        let chain = self.cursor(&tokens).chain().clone();
        let cached = self.pool.probe(&chain, usize::MAX)?.cached_blocks;
        for at in 0..cached {
            let content = self.content(&tokens, at);
            assert!(self.memory.values().any(|other| *other == content), "nobody has computed {content:?}");
        }
        Ok(())
    }

    fn access(&mut self) -> Result<(), PoolError> {
        let Some(nth) = self.nth() else { return Ok(()) };
        let time = self.numbers.below(100) as f64;
        self.pool.mark_accessed(&self.tables[nth].0.clone(), time)
    }

    /// Updates the digest or scrubs a few blocks, so that faults occur both in blocks that the digest
    /// includes and in other blocks.
    fn count(&mut self) -> Result<(), PoolError> {
        self.pool.state_digest();
        let blocks = self.numbers.below(4);
        self.scrub(blocks).map(|_| ())
    }

    /// Checks the next `blocks` blocks of the pool.
    pub(crate) fn scrub(&mut self, blocks: usize) -> Result<ScrubReport, PoolError> {
        self.scrubber.scrub(&mut self.pool, blocks)
    }

    fn hint(&mut self) -> Result<(), PoolError> {
        let Some(nth) = self.nth().filter(|_| self.retention) else { return Ok(()) };
        let table = self.tables[nth].0.clone();
        let ttl = Some(Ttl::Absolute(2.0)).filter(|_| self.now > 0.0);
        match self.numbers.below(6) {
            0 => {
                self.now += 1.0;
                self.pool.advance_time(self.now).map(|_| ())
            }
            1 => self.pool.assign_tenant(&table, TenantId(self.numbers.below(3) as u32)),
            2 => self.pool.retain(&table, Retention::PINNED).map(|_| ()),
            3 => self.pool.retain(&table, Retention::END_OF_LIFE).map(|_| ()),
            at => {
                let keep = Keep::Priority(Priority::new(at as u8 * 20)?);
                self.pool.retain(&table, Retention { keep, ttl, then: Then::Demote }).map(|_| ())
            }
        }
    }

    fn rarely(&mut self) -> Result<(), PoolError> {
        match self.numbers.below(4) {
            0 => self.pool.bump_epoch().map(|_| ()),
            1 if self.pool.num_blocks() < 18 => self.pool.resize(self.pool.num_blocks() + 1),
            _ => {
                self.pool.take_events();
                Ok(())
            }
        }
    }
}
