//! Compares the metrics of pools and managers with a small model. The model compares the pool before
//! and after each call to find hits, newly computed blocks and lost contents.

use std::collections::BTreeMap;

use kvpool::retention::{Keep, Priority, Retention, RetentionConfig, TenantId, TenantLimits, Then, Ttl};
use kvpool::{
    AdmitOptions, BlockHash, BlockId, BlockPool, CacheManager, ExtraKeys, ManagerConfig, PoolConfig,
    PoolError, RetentionRange,
};
use kvpool_observe::metrics::{Histogram, MAX_TENANTS};
use kvpool_observe::{ManagerWatch, ManagerWatchConfig, PoolMetrics, PoolWatch, WatchConfig};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

use super::traffic::{Check, Reason, Traffic, chain, duplicates, operations, policies};

const METERED: WatchConfig =
    WatchConfig { event_capacity: 0, digest: false, advisor: None, payloads: false, metrics: true, more: () };

fn pool(config: PoolConfig) -> BlockPool {
    BlockPool::new(PoolConfig { block_size: 1, ..config }).unwrap()
}

/// The expected values of a histogram, in the order in which they occur. They are put into buckets at
/// the end.
#[derive(Debug, Default)]
struct Values(Vec<f64>);

impl Values {
    fn is(&self, histogram: &Histogram) -> bool {
        let mut counts = vec![0; histogram.bounds().len() + 1];
        for value in &self.0 {
            counts[histogram.bounds().iter().take_while(|&end| end < value).count()] += 1;
        }
        let sum: f64 = self.0.iter().sum();
        counts == histogram.counts() && (sum - histogram.sum()).abs() <= 1e-9 * (1.0 + sum)
    }
}

/// The content of a block: its hash, the times at which it became computed and at which it was last hit
/// (if known), and its number of hits. The number is `None` if the content existed before the watch
/// began.
type Held = (BlockHash, Option<f64>, Option<f64>, Option<u32>);

#[derive(Debug, Default)]
struct Model {
    now: Option<f64>,
    held: BTreeMap<BlockId, Held>,
    stored: u64,
    evicted: u64,
    dropped: u64,
    cleared: u64,
    ages: Values,
    gaps: Values,
    lifetimes: Values,
    idle: Values,
    hits: Values,
    tenants: BTreeMap<Option<u32>, (u64, u64)>,
}

impl Model {
    fn new(pool: &BlockPool) -> Self {
        let mut model = Self::default();
        model.see(pool, Reason::Dropped);
        model.stored = model.held.len() as u64;
        model.held.values_mut().for_each(|held| held.3 = None);
        model
    }

    /// Compares the model with the pool. Every content that was removed since the latest comparison was
    /// removed for `reason`.
    fn see(&mut self, pool: &BlockPool, reason: Reason) {
        for id in 0..pool.num_blocks() as u32 {
            let block = BlockId::new(id);
            let hash = pool.hash_of(block).filter(|_| pool.is_computed(block));
            if self.held.get(&block).map(|held| held.0) == hash {
                continue;
            }
            if let Some((_, born, used, hits)) = self.held.remove(&block) {
                self.gone(reason, born, used, hits);
            }
            if let Some(hash) = hash {
                self.stored += 1;
                self.held.insert(block, (hash, self.now, self.now, Some(0)));
            }
        }
    }

    fn gone(&mut self, reason: Reason, born: Option<f64>, used: Option<f64>, hits: Option<u32>) {
        match reason {
            Reason::Evicted => {
                self.evicted += 1;
                self.lifetimes.0.extend(born.map(|born| self.now.unwrap() - born));
                self.idle.0.extend(used.map(|used| self.now.unwrap() - used));
                self.hits.0.extend(hits.map(f64::from));
            }
            Reason::Dropped => self.dropped += 1,
            Reason::Cleared => self.cleared += 1,
        }
    }

    fn hit(&mut self, blocks: &[BlockId], asked: usize, tenant: Option<u32>) {
        for block in blocks {
            let (_, born, used, hits) = self.held.get_mut(block).unwrap();
            self.ages.0.extend(born.map(|born| self.now.unwrap() - born));
            self.gaps.0.extend(used.map(|used| self.now.unwrap() - used));
            *used = used.and(self.now);
            *hits = hits.map(|hits| hits + 1);
        }
        let counts = self.tenants.entry(tenant).or_default();
        counts.0 += blocks.len() as u64;
        counts.1 += (asked - blocks.len()) as u64;
    }

    fn compare(&self, metrics: &PoolMetrics) {
        assert_eq!(metrics.time, self.now);
        let counted = (metrics.stored, metrics.evicted(), metrics.dropped, metrics.cleared);
        assert_eq!(counted, (self.stored, self.evicted, self.dropped, self.cleared));
        assert!(self.ages.is(&metrics.age_at_hit), "{:?} {:?}", self.ages, metrics.age_at_hit);
        assert!(self.gaps.is(&metrics.reuse_gap), "{:?} {:?}", self.gaps, metrics.reuse_gap);
        assert!(self.lifetimes.is(&metrics.lifetime), "{:?} {:?}", self.lifetimes, metrics.lifetime);
        assert!(self.idle.is(&metrics.idle_before_eviction), "{:?}", self.idle);
        assert!(self.hits.is(&metrics.hits_before_eviction), "{:?}", self.hits);
        let nobody = metrics.tenants.nobody;
        let mut tenants: BTreeMap<_, _> = metrics
            .tenants
            .iter()
            .map(|(tenant, counts)| (Some(tenant.0), (counts.hits, counts.misses)))
            .collect();
        if self.tenants.contains_key(&None) {
            tenants.insert(None, (nobody.hits, nobody.misses));
        }
        assert_eq!(tenants, self.tenants);
    }
}

impl Check for Option<Model> {
    fn looked_up(&mut self, blocks: &[BlockId], asked: usize, tenant: Option<u32>) {
        if let Some(model) = self {
            model.hit(blocks, asked, tenant);
        }
    }

    fn changed(&mut self, pool: &mut BlockPool, reason: Reason, _fresh: &[BlockId]) {
        if let Some(model) = self {
            model.see(pool, reason);
        }
    }

    fn time_passed(&mut self, now: f64) {
        if let Some(model) = self {
            model.now = Some(now);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    })]

    /// The metrics count every event of the pool in the right bucket, with every policy, and from any
    /// start of the watch.
    #[test]
    fn what_is_counted_is_what_happened(
        operations in operations(100),
        begin in 0..30_usize,
        num_blocks in 3..30_usize,
        eviction in policies(),
        duplicates in duplicates(),
    ) {
        let (mut traffic, mut model) = (Traffic::sized(num_blocks, eviction, duplicates), None);
        for (at, operation) in operations.iter().enumerate() {
            if at == begin {
                traffic.pool.watch(&METERED).unwrap();
                model = Some(Model::new(&traffic.pool));
            }
            traffic.run(operation, &mut model);
            traffic.pool.check_invariants().unwrap();
            if let Some(model) = &model {
                model.compare(&traffic.pool.metrics().unwrap());
            }
        }
    }
}

#[test]
fn a_pool_without_metrics_reports_none() {
    let mut pool = pool(PoolConfig::default());
    assert_eq!(pool.metrics(), None);
    pool.observe_time(5.0).unwrap();
    pool.observe_time(4.0).unwrap(); // no observer is attached
    let mut manager = CacheManager::new(ManagerConfig::default()).unwrap();
    assert_eq!(manager.metrics(), []);
    manager.observe_time(f64::NAN).unwrap();
}

#[test]
fn time_does_not_go_backwards() {
    let mut pool = pool(PoolConfig::default());
    pool.watch(&METERED).unwrap();
    assert!(matches!(pool.observe_time(f64::NAN), Err(PoolError::InvalidConfig { .. })));
    assert!(matches!(pool.observe_time(f64::INFINITY), Err(PoolError::InvalidConfig { .. })));
    assert_eq!(pool.metrics().unwrap().time, None);
    pool.observe_time(-3.0).unwrap();
    pool.observe_time(-3.0).unwrap();
    assert!(matches!(pool.observe_time(-3.5), Err(PoolError::TimeBackwards { .. })));
    assert_eq!(pool.metrics().unwrap().time, Some(-3.0));
}

/// Retention and metrics share one clock in every tier. A time in the past changes nothing.
#[test]
fn retention_and_metrics_share_one_clock() {
    let config = ManagerConfig {
        num_blocks: 9,
        host_blocks: 9,
        eviction: kvpool_policies::LRU,
        retention: Some(RetentionConfig::default()),
        ..ManagerConfig::default()
    };
    let watch = ManagerWatchConfig { metrics: true, ..ManagerWatchConfig::default() };
    let mut manager = CacheManager::new(config).unwrap().watched(&watch).unwrap();
    manager.advance_time(7.0).unwrap();
    let times = |manager: &CacheManager| manager.metrics().iter().map(|tier| tier.time).collect::<Vec<_>>();
    assert_eq!(times(&manager), [Some(7.0), Some(7.0)]);
    manager.observe_time(9.0).unwrap();
    manager.advance_time(8.0).unwrap();
    assert_eq!(times(&manager), [Some(9.0), Some(9.0)]);
    manager.check_invariants().unwrap();
}

/// Each tier has its own metrics. Swapped-out content has an age in the host tier, and hits are counted
/// only for the device.
#[test]
fn every_tier_has_its_own() {
    let config = ManagerConfig { num_blocks: 9, host_blocks: 9, block_size: 2, ..ManagerConfig::default() };
    let watch = ManagerWatchConfig { metrics: true, ..ManagerWatchConfig::default() };
    let mut manager = CacheManager::new(config).unwrap().watched(&watch).unwrap();
    manager.observe_time(10.0).unwrap();
    let prompt = manager.prepare(&[1, 2, 3, 4, 5], ExtraKeys::default()).unwrap();
    manager.admit("a", prompt.clone()).unwrap();
    manager.commit("a", 5).unwrap();
    let id = kvpool::RequestId::from("a");
    let swap = manager.begin_swap_out(&[id.as_ref()]).unwrap();
    manager.take_plan().unwrap();
    manager.complete_swap(swap).unwrap();
    manager.observe_time(14.0).unwrap();
    let swap = manager.begin_swap_in(&[id.as_ref()]).unwrap();
    manager.take_plan().unwrap();
    manager.complete_swap(swap).unwrap();
    manager.admit("b", prompt).unwrap();
    let [device, host] = &manager.metrics()[..] else { panic!("two tiers") };
    assert_eq!((device.age_at_hit.count(), host.age_at_hit.count()), (2, 0));
    assert!(device.stored >= 2 && host.stored >= 2);
    manager.check_invariants().unwrap();
}

/// Each cause of an eviction is counted under its own name, and their sum equals the pool's count.
#[test]
fn evictions_have_causes() {
    let limits = TenantLimits { tenant: TenantId(1), floor: 0, ceiling: Some(2) };
    let retention = Some(RetentionConfig { tenants: vec![limits], ..RetentionConfig::default() });
    let eviction = kvpool_policies::LRU;
    let config =
        ManagerConfig { num_blocks: 13, block_size: 1, eviction, retention, ..ManagerConfig::default() };
    let watch = ManagerWatchConfig { metrics: true, ..ManagerWatchConfig::default() };
    let mut manager = CacheManager::new(config).unwrap().watched(&watch).unwrap();
    manager.advance_time(0.0).unwrap();
    let serve =
        |manager: &mut CacheManager, id: &'static str, first: u32, tokens: u32, options: &AdmitOptions| {
            let prompt: Vec<u32> = (first..first + tokens).collect();
            let cursor = manager.prepare(&prompt, ExtraKeys::default()).unwrap();
            manager.admit_with(id, cursor, options).unwrap();
            manager.commit(id, tokens as usize).unwrap();
            manager.release(id, None).unwrap();
        };
    let ranges = |retention| AdmitOptions {
        ranges: vec![RetentionRange { start: 0, end: None, retention }],
        ..AdmitOptions::default()
    };
    let low = Retention::of(Keep::Priority(Priority::new(10).unwrap()));
    serve(&mut manager, "low", 100, 2, &ranges(low));
    serve(&mut manager, "over", 200, 2, &ranges(Retention::END_OF_LIFE));
    let greedy = AdmitOptions { tenant: Some(TenantId(1)), ..AdmitOptions::default() };
    serve(&mut manager, "greedy", 300, 4, &greedy);
    let brief = Retention { then: Then::Demote, ttl: Some(Ttl::Absolute(1.0)), ..Retention::NORMAL };
    serve(&mut manager, "brief", 400, 2, &ranges(brief));
    serve(&mut manager, "plain", 500, 2, &AdmitOptions::default());
    manager.advance_time(5.0).unwrap();
    serve(&mut manager, "all", 600, 12, &AdmitOptions::default());
    let metrics = &manager.metrics()[0];
    let causes: Vec<_> = metrics.evictions().filter(|&(_, count)| count > 0).collect();
    let expected =
        [("policy", 4), ("priority", 2), ("end-of-life", 2), ("expired", 2), ("tenant-ceiling", 2)];
    assert_eq!(causes, expected);
    assert_eq!(metrics.evicted(), manager.stats().pool.evicted);
    manager.check_invariants().unwrap();
}

/// All tenants after the first ones are counted together, because a metric with a label for the tenant
/// must have a bounded number of values.
#[test]
fn tenants_are_bounded() {
    let mut pool = pool(PoolConfig { num_blocks: 9, ..PoolConfig::default() });
    pool.watch(&METERED).unwrap();
    for tenant in 0..MAX_TENANTS as u32 + 10 {
        pool.match_and_acquire_for(&chain(1, 2, 0), 2, TenantId(tenant)).unwrap();
    }
    pool.match_and_acquire(&chain(1, 3, 0), 3).unwrap();
    let metrics = pool.metrics().unwrap();
    let known: Vec<_> = metrics.tenants.iter().map(|(tenant, counts)| (tenant.0, counts.misses)).collect();
    assert_eq!(known, (0..MAX_TENANTS as u32).map(|tenant| (tenant, 2)).collect::<Vec<_>>());
    assert_eq!((metrics.tenants.others.misses, metrics.tenants.nobody.misses), (20, 3));
}
