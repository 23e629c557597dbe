//! The advisor: estimates hit rates of other pool sizes, of other policies, and of each tenant, from
//! the pool's own traffic.
//!
//! [`PoolWatch::advice`](crate::PoolWatch::advice) returns the estimates. They use a sample of the
//! blocks that lookups request, in bounded memory. Without an advisor, these estimates require a
//! recorded trace and the command `kvpool size`.
//!
//! | question | estimator |
//! |---|---|
//! | LRU at an eighth to eight times the pool's size | a [`SampledStack`] of all tenants |
//! | other policies at the pool's size | one simulated cache per policy, over sampled keys |
//! | each tenant, in the shared pool and in one of its own | distances in both stacks |
//!
//! This module contains `Advisor`, with its window and its tenants. An advisor consists of
//! [`SampledStack`], [`DistanceHistogram`] and [`Fenwick`], which `kvpool-replay` also uses, and of
//! ghost caches (simulated caches of sampled keys). All of these store their keys in key tables.
//!
//! **References.** A reference is a block that a lookup requested, whether it hit or missed. It is
//! counted when the pool acquires the match. Probes and refused admissions are not counted, so a
//! retried request is counted once. A resumed request is looked up, and counted, again. Blocks that
//! were registered without a lookup, such as those of answers, are not references. They still enter the
//! stack, where the chain up to them becomes the most recently used. Blocks that
//! [`BlockPool::drop_cached`](kvpool::BlockPool::drop_cached) drops by id remain in the stack.
//!
//! **Groups.** Prompts are hashed in units: a block, or a part of a block that is hashed at a time.
//! With several KV-cache groups, a reference is a hash unit that a prompt requested, and a hit is a
//! unit that all groups served. Each unit is counted once, although every group that caches it uses a
//! block or a part of one. So the measured hit rates, also those of tenants, are exact. The sizes of
//! curves and the estimates of policies are those of a pool in which only full attention uses blocks.
//! Internally, a size is a number of hash units. A block of the pool contains
//! [`Groups::units_per_block`](kvpool::groups::Groups::units_per_block) of them.
//!
//! **The sample.** A share R of the keys is sampled: the keys with a hash below a threshold. A key is
//! the first 8 bytes of a block hash. R is chosen so that the keys of eight pools fit into
//! [`max_sampled_blocks`](AdvisorConfig::max_sampled_blocks). So the rate changes only with the size of
//! the pool, and keys deeper in the stack than eight pools are removed.
//!
//! The number of sampled references, scaled by 1/R, differs from the number of references seen. The
//! difference, positive or negative, is counted as hits at distance 1 (the correction of SHARDS-adj).
//! The reason is that the difference comes from the few very hot blocks, such as the first block of a
//! common system prompt, which may or may not be in the sample.
//!
//! **The window.** After every [`window`](AdvisorConfig::window) references, all counts are halved,
//! including those of tenants and of the pool's own hits. So estimates mostly reflect the last one to
//! two windows, and the weight of older traffic is 1/8 after three windows. The stack and the ghost
//! caches need no halving, because new keys replace old ones.
//!
//! **A new epoch or a reset** empties the pool, so the advisor also empties the stack and the ghost
//! caches. The misses after it occur in the pool too, and lose weight with each window.
//!
//! **A resize** that makes the pool larger lowers the rate. The stack keeps the keys that are still in
//! the sample. The ghost caches start empty.
//!
//! **Tenants** get a slot in the order of their first reference, at most
//! [`max_tenants`](AdvisorConfig::max_tenants). If there are more tenants, the tenant with the fewest
//! references loses its slot at the end of a window, unless the tenants without a slot together had
//! fewer.
//!
//! **The error** of the estimates comes from the sample. It is about one percentage point with the
//! default of 2,048 sampled blocks per pool. `tests/replay/advisor.rs` in `kvpool-replay` compares the
//! estimates with exact curves and with replays of each policy. The estimates do not cover two effects:
//! retention, and running requests that hold blocks and so leave fewer blocks for cached contents.
//!
//! Costs. A reference that is not sampled takes a multiplication and a comparison (7 instructions), and
//! so does a registered block that is not sampled. A sampled reference takes 480 instructions for the
//! curve (about 100 ns), 450 for its tenant, and 190 for the ghost cache of LRU. Other policies take
//! more; `adaptive` takes as much as four others. The average per reference is R times that, with R =
//! `max_sampled_blocks` / 8 / blocks of the pool. On a pool of 65,536 blocks with four policies,
//! without `adaptive`, it is 80 instructions. For comparison: without an advisor, a reference takes 280
//! instructions, including its share of storing and releasing.
//!
//! Memory: 54 bytes per sampled block; per slot 34 bytes for the ghost cache of LRU, at most 94 for
//! other policies and up to 480 for `adaptive`; 0.34 MB for the classes of `hazard`; per tenant 38
//! bytes per slot and 16 kB. All of it is allocated at construction. With the default settings it is
//! less than 4 MiB. It does not depend on the size of the pool.

mod advice;
mod config;
mod fenwick;
mod ghost;
mod histogram;
mod keys;
mod stack;
mod tally;

pub use advice::{Advice, CurvePoint, PolicyAdvice, TenantAdvice};
pub use config::AdvisorConfig;
use config::{DEEPEST, Scale};
#[doc(hidden)]
pub use fenwick::Fenwick; // used by the sizing of kvpool-replay
use ghost::{GhostCache, Sampled};
pub use histogram::DistanceHistogram;
use kvpool::BlockHash;
use kvpool::observe::Lookup;
use kvpool::parts::ensure;
use kvpool::parts::try_reserve;
use kvpool::retention::TenantId;
use kvpool::{InvariantViolation, PoolError};
pub use stack::{Bound, SampledStack, Touch};
use tally::{Tally, Tenant};

/// The sizes for which hit rates are estimated, in eighths of the pool's size.
const EIGHTHS: [u64; 11] = [1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64];

/// The advisor of one pool: the estimators, and the counts of references.
#[derive(Debug)]
pub(crate) struct Advisor {
    config: AdvisorConfig,
    units_per_block: usize,
    scale: Scale,
    stack: SampledStack,
    all: Tally,
    ghosts: Vec<GhostCache>,
    /// The number of references since the simulated caches were last empty, and an estimate of this
    /// number from the sampled references. Both are halved with the other counts.
    ghosts_since: (f64, f64),
    tenants: Vec<Tenant>,
    spare_tenants: Vec<Tenant>,
    untracked: f64,
    seen: u64,
    /// The number of references since all counts were last halved.
    in_window: u64,
    /// The sampled keys of the current lookup or registration. The list is stored here so that every
    /// call reuses its memory.
    scratch: Sample,
}

/// The sampled keys of consecutive blocks of one hash chain, first block first.
#[derive(Clone, Debug, Default)]
struct Sample {
    kept: Vec<Sampled>,
    /// The number of sampled keys that do not fit into the list `kept`. No cache of an estimated size
    /// contains these blocks, because it would also have to contain the blocks before them.
    beyond: usize,
}

impl Sample {
    fn len(&self) -> usize {
        self.kept.len() + self.beyond
    }
}

impl Advisor {
    /// Makes an advisor for a pool of `usable` blocks of `units_per_block` hash units (parts with a
    /// digest) each, and allocates all its memory.
    pub(crate) fn new(
        config: &AdvisorConfig,
        usable: usize,
        units_per_block: usize,
    ) -> Result<Self, PoolError> {
        config.check()?;
        let scale = config.scale(usable.saturating_mul(units_per_block));
        let mut tenants = Vec::new();
        try_reserve(&mut tenants, config.max_tenants)?;
        let spare = (0..config.max_tenants).map(|_| Tenant::new(config, scale));
        let mut advisor = Self {
            stack: SampledStack::new(scale.rate, config.seed, Bound::Depth(config.max_sampled_blocks))?,
            all: Tally::new()?,
            ghosts: ghosts_of(config, scale)?,
            ghosts_since: (0.0, 0.0),
            tenants,
            spare_tenants: spare.collect::<Result<_, _>>()?,
            untracked: 0.0,
            seen: 0,
            in_window: 0,
            scratch: Sample::default(),
            units_per_block,
            scale,
            config: config.clone(),
        };
        try_reserve(&mut advisor.scratch.kept, config.max_sampled_blocks)?;
        Ok(advisor)
    }

    /// Counts a lookup after the pool has acquired its match.
    pub(crate) fn looked_up(&mut self, lookup: &Lookup<'_>) {
        let mut sample = std::mem::take(&mut self.scratch);
        self.sample(lookup.hashes, lookup.depth, &mut sample);
        self.refer(lookup, &sample);
        self.scratch = sample;
    }

    fn refer(&mut self, lookup: &Lookup<'_>, sample: &Sample) {
        let references = lookup.hashes.len() as u64;
        self.pass(references);
        self.all.count(references, lookup.hits);
        self.ghosts_since.0 += references as f64;
        let tenant = lookup.tenant.and_then(|tenant| self.tenant(tenant, references));
        if let Some(tenant) = tenant.and_then(|at| self.tenants.get_mut(at)) {
            tenant.tally.count(references, lookup.hits);
        }
        if sample.kept.is_empty() {
            return;
        }
        let weight = 1.0 / self.stack.rate();
        self.ghosts_since.1 += sample.len() as f64 * weight;
        let mut tenant = tenant.and_then(|at| self.tenants.get_mut(at));
        self.all.count_sampled(sample.len(), weight);
        self.stack.begin();
        if let Some(tenant) = &mut tenant {
            tenant.tally.count_sampled(sample.len(), weight);
            tenant.stack.begin();
        }
        for sampled in sample.kept.iter().rev() {
            let distance = self.stack.touch(sampled.key).and_then(|touch| touch.distance);
            if let Some(distance) = distance {
                self.all.distances.add(distance, weight);
            }
            let Some(tenant) = &mut tenant else { continue };
            if let Some(distance) = distance {
                tenant.tally.distances.add(distance, weight);
            }
            if let Some(distance) = tenant.stack.touch(sampled.key).and_then(|touch| touch.distance) {
                tenant.alone.add(distance, weight);
            }
        }
        let parent = lookup.parent.map(|hash| hash.key());
        for ghost in &mut self.ghosts {
            ghost.hits += ghost.refer(&sample.kept, parent) as f64 * weight;
        }
    }

    /// Adds the registered blocks `start..end` of a chain. Does not count them as references.
    pub(crate) fn registered(&mut self, hashes: &[BlockHash], start: usize, end: usize) {
        let new = |hash: &BlockHash| self.stack.is_sampled(hash.key()) && !self.stack.contains(hash.key());
        if !hashes.get(start..end).unwrap_or(&[]).iter().any(new) {
            return;
        }
        let mut sample = std::mem::take(&mut self.scratch);
        self.sample(hashes.get(..end).unwrap_or(&[]), 0, &mut sample);
        self.stack.begin();
        for sampled in sample.kept.iter().rev() {
            self.stack.touch(sampled.key);
        }
        for ghost in &mut self.ghosts {
            ghost.refer(&sample.kept, None);
        }
        self.scratch = sample;
    }

    /// Collects the sampled keys of consecutive blocks. The first block is at position `depth` of its
    /// chain.
    fn sample(&self, hashes: &[BlockHash], depth: u32, into: &mut Sample) {
        into.kept.clear();
        into.beyond = 0;
        for (position, hash) in hashes.iter().enumerate() {
            let key = hash.key();
            if !self.stack.is_sampled(key) {
                continue;
            }
            if into.kept.len() == self.config.max_sampled_blocks {
                into.beyond += 1;
            } else {
                into.kept.push(Sampled { key, depth: depth.saturating_add(position as u32) });
            }
        }
    }

    /// Adds `references` to the number of references in the present window, and halves all counts at
    /// the end of a window.
    fn pass(&mut self, references: u64) {
        self.seen = self.seen.saturating_add(references);
        if self.in_window >= self.scale.window {
            self.end_window();
        }
        self.in_window = self.in_window.saturating_add(references);
    }

    fn end_window(&mut self) {
        self.in_window = 0;
        let fewest = self.tenants.iter().map(|tenant| tenant.tally.references()).enumerate();
        let fewest = fewest.min_by(|a, b| a.1.total_cmp(&b.1));
        if let Some((at, references)) = fewest
            && references < self.untracked
        {
            let mut tenant = self.tenants.swap_remove(at);
            tenant.clear();
            self.spare_tenants.push(tenant);
        }
        self.all.halve();
        self.tenants.iter_mut().for_each(Tenant::halve);
        self.untracked *= 0.5;
        self.ghosts_since = (self.ghosts_since.0 * 0.5, self.ghosts_since.1 * 0.5);
        self.ghosts.iter_mut().for_each(|ghost| ghost.hits *= 0.5);
    }

    /// Returns the index of a tenant's counts. Returns `None` if the tenant has no counts, and the
    /// advisor already counts the maximum number of tenants.
    fn tenant(&mut self, tenant: TenantId, references: u64) -> Option<usize> {
        if let Some(at) = self.tenants.iter().position(|known| known.id == tenant) {
            return Some(at);
        }
        let Some(mut spare) = self.spare_tenants.pop() else {
            self.untracked += references as f64;
            return None;
        };
        spare.id = tenant;
        self.tenants.push(spare);
        Some(self.tenants.len() - 1)
    }

    /// Empties the LRU stacks and the simulated caches, because the pool has removed all cached
    /// contents.
    pub(crate) fn forget(&mut self) {
        self.stack.clear();
        self.ghosts.iter_mut().for_each(GhostCache::clear);
        for tenant in self.tenants.iter_mut().chain(&mut self.spare_tenants) {
            tenant.stack.clear();
        }
    }

    /// Allocates simulated caches for another pool size. Does not change the advisor, so that an error
    /// changes nothing.
    pub(crate) fn prepare_resize(&self, usable: usize) -> Result<Resized, PoolError> {
        let scale = self.config.scale(usable.saturating_mul(self.units_per_block));
        let ghosts = if scale == self.scale { None } else { Some(ghosts_of(&self.config, scale)?) };
        Ok(Resized { scale, ghosts })
    }

    /// Completes a resize of the pool: replaces the simulated caches by those that were allocated for
    /// the new size.
    pub(crate) fn resize(&mut self, resized: Resized) {
        self.scale = resized.scale;
        let Some(ghosts) = resized.ghosts else { return };
        self.ghosts = ghosts;
        self.ghosts_since = (0.0, 0.0);
        self.stack.lower_rate(self.scale.rate);
        for tenant in self.tenants.iter_mut().chain(&mut self.spare_tenants) {
            tenant.stack.lower_rate(self.scale.rate);
        }
    }

    /// Computes the estimates. O(buckets + policies + tenants): about 50 us.
    pub(crate) fn advice(&self) -> Advice {
        let units_per_block = self.units_per_block as u64;
        let capacity_blocks = self.scale.usable / units_per_block;
        let eighths = |eighths: &u64| (capacity_blocks * eighths / 8).max(1);
        let (seen, all) = (self.seen, &self.all);
        let curve = |tally: &Tally, distances: &DistanceHistogram, most: u64| {
            let sizes = EIGHTHS.iter().filter(|&&eighths| eighths <= most).map(eighths);
            let at_most = |blocks| distances.at_most(blocks * units_per_block);
            let point = |blocks| CurvePoint { blocks, block_hit_rate: tally.rate(at_most(blocks)) };
            sizes.map(point).collect::<Vec<_>>()
        };
        let (references, counted) = self.ghosts_since;
        let policies = self.ghosts.iter().map(|ghost| PolicyAdvice {
            policy: ghost.policy,
            block_hit_rate: tally::rate(ghost.hits, references, counted),
            capacity_blocks,
            references: references.round() as u64,
        });
        let mut tenants: Vec<_> = self.tenants.iter().collect();
        tenants.sort_unstable_by_key(|tenant| tenant.id);
        let tenants = tenants.into_iter().map(|tenant| TenantAdvice {
            tenant: tenant.id,
            references: tenant.tally.references().round() as u64,
            sampled_references: tenant.tally.sampled().round() as u64,
            hit_rate: tenant.tally.hit_rate(),
            curve: curve(&tenant.tally, &tenant.tally.distances, u64::MAX),
            alone: curve(&tenant.tally, &tenant.alone, 8),
        });
        Advice {
            capacity_blocks,
            rate: self.stack.rate(),
            window: self.scale.window,
            seen,
            references: all.references().round() as u64,
            sampled_references: all.sampled().round() as u64,
            hit_rate: all.hit_rate(),
            curve: curve(all, &all.distances, u64::MAX),
            policies: policies.collect(),
            tenants: tenants.collect(),
            untracked_references: self.untracked.round() as u64,
            memory_bytes: self.heap_bytes(),
        }
    }

    fn heap_bytes(&self) -> usize {
        let tenants = self.tenants.iter().chain(&self.spare_tenants);
        let places = self.tenants.capacity() + self.spare_tenants.capacity();
        size_of::<Self>()
            + self.stack.heap_bytes()
            + self.all.distances.heap_bytes()
            + self.ghosts.iter().map(|ghost| size_of::<GhostCache>() + ghost.heap_bytes()).sum::<usize>()
            + tenants.map(Tenant::heap_bytes).sum::<usize>()
            + size_of::<Tenant>() * places
            + size_of::<Sampled>() * self.scratch.kept.capacity()
    }

    /// Checks the invariants from scratch. AV1: counts do not exceed the number of references. AV2:
    /// simulated caches hold no block between lookups. AV3: LRU stacks contain only sampled keys, each
    /// once, and no more than their bound.
    pub(crate) fn check_invariants(&self) -> Result<(), InvariantViolation> {
        ensure(self.all.is_sound(), "AV1 (counts do not exceed the references seen)", || {
            format!("{:?}", self.all)
        })?;
        for tenant in &self.tenants {
            ensure(tenant.tally.is_sound(), "AV1 (counts do not exceed the references seen)", || {
                format!("{tenant:?}")
            })?;
        }
        self.ghosts.iter().try_for_each(GhostCache::check_invariants)?;
        let stacks =
            self.tenants.iter().map(|tenant| (&tenant.stack, self.config.max_sampled_blocks / DEEPEST));
        for (stack, most) in stacks.chain([(&self.stack, self.config.max_sampled_blocks)]) {
            let keys = stack.keys().count();
            let strays = stack.keys().filter(|&key| !stack.contains(key)).count();
            let sound = strays == 0 && keys == stack.followed() && keys <= most;
            ensure(sound, "AV3 (followed keys are sampled and distinct, and within the bound)", || {
                format!(
                    "{strays} of {keys} keys are not sampled or not found, {} counted, at most {most}",
                    stack.followed()
                )
            })?;
        }
        Ok(())
    }
}

/// The simulated caches that were allocated for a resize, with the new sampling rate.
#[derive(Debug)]
pub(crate) struct Resized {
    scale: Scale,
    ghosts: Option<Vec<GhostCache>>,
}

fn ghosts_of(config: &AdvisorConfig, scale: Scale) -> Result<Vec<GhostCache>, PoolError> {
    config.policies.iter().map(|&policy| GhostCache::new(policy, scale.slots)).collect()
}
