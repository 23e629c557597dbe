//! Compares a recorded run with the same run on a pool or manager that is restarted. With LRU there is
//! no difference. With other settings the comparison reports the difference.

use super::numbers::Numbers;
use kvpool::groups::{GroupKind, GroupSpec, Groups};
use kvpool::retention::{Keep, Priority, Retention, RetentionConfig, TenantId, TenantLimits, Then, Ttl};
use kvpool::{
    AdmitOptions, BlockHasher, BlockId, CacheManager, Computed, DuplicatePolicy, ExtraKeys, HashCursor,
    HasherConfig, ManagerConfig, RequestRef, RetentionRange, Rows, Until, Verify,
};
use kvpool_journal::{
    Journaled, ManagerCalls, Options, PoolCalls, ReplayError, RestartDifference, RestartReport, VllmConfig,
    replay, replay_restarting,
};

use super::world::{recorded_manager, recorded_pool, ring};

/// The workload of an engine: it serves requests and sometimes pauses.
struct Engine {
    manager: Journaled<CacheManager>,
    numbers: Numbers,
    running: Vec<i64>,
    preempted: Vec<i64>,
    next: i64,
    step: u64,
}

impl Engine {
    fn new(config: ManagerConfig, seed: u64) -> Self {
        let has_retention = config.retention.is_some();
        let mut manager = recorded_manager(config, 64, ring(16));
        if has_retention {
            manager.advance_time(0.0).unwrap();
        }
        let (running, preempted) = (Vec::new(), Vec::new());
        Self { manager, numbers: Numbers(seed), running, preempted, next: 0, step: 0 }
    }

    fn prompt(&mut self) -> Vec<u32> {
        let (family, length) = (self.numbers.below(7) as u32, 1 + self.numbers.below(22));
        (0..length).map(|at| if at < 5 { 1 } else { 10 * family + at as u32 % 3 }).collect()
    }

    fn any(numbers: &mut Numbers, ids: &mut Vec<i64>) -> Option<i64> {
        (!ids.is_empty()).then(|| ids.swap_remove(numbers.below(ids.len())))
    }

    fn turn(&mut self) {
        match self.numbers.below(20) {
            0..6 => {
                let prompt = self.prompt();
                let cursor = self.manager.prepare(&prompt, ExtraKeys::default()).unwrap();
                let tokens = prompt.len();
                let (id, no_cache) = (self.next, self.numbers.below(7) == 0);
                let options = AdmitOptions { no_cache, ..self.hints() };
                self.next += 1;
                if self.manager.admit(id.into(), cursor, &options).is_ok() {
                    let computed_tokens = tokens - self.numbers.below(3).min(tokens - 1);
                    let _ = self.manager.commit(id.into(), computed_tokens);
                    self.running.push(id);
                }
            }
            6..9 => {
                let ids: Vec<RequestRef<'_>> = self.running.iter().map(|&id| id.into()).collect();
                let tokens: Vec<u32> = ids.iter().map(|_| self.numbers.below(3) as u32).collect();
                let rows = Rows {
                    requests: &ids,
                    tokens: &tokens,
                    computed: Computed::AllButLast,
                    ..Rows::default()
                };
                let _ = self.manager.append(&rows);
            }
            9 => {
                if let Some(id) = Self::any(&mut self.numbers, &mut self.running) {
                    self.manager.preempt(id.into(), Until::Now).unwrap();
                    self.preempted.push(id);
                }
            }
            10 => {
                if let Some(id) = Self::any(&mut self.numbers, &mut self.preempted) {
                    let resumed = self.manager.resume(id.into(), kvpool::Part::default());
                    if resumed.is_ok() { &mut self.running } else { &mut self.preempted }.push(id);
                }
            }
            11 => {
                if let Some(&parent) = self.running.first() {
                    let child = self.next;
                    self.next += 1;
                    if self.manager.fork(parent.into(), child.into()).is_ok() {
                        self.running.push(child);
                    }
                }
            }
            12 => {
                if let Some(&id) = self.running.last() {
                    let num_tokens = self.numbers.below(9);
                    let _ = self.manager.truncate(id.into(), num_tokens, Until::Now);
                }
            }
            13 => drop(self.manager.evict(self.numbers.below(4))),
            14 if self.numbers.below(8) == 0 => drop(self.manager.bump_epoch()),
            14 => drop(self.manager.take_events()),
            15 if self.numbers.below(4) == 0 => {
                let num_blocks = self.manager.pool().num_blocks() + self.numbers.below(3);
                self.manager.resize(num_blocks).unwrap();
            }
            15 => {
                // Release a request while one of its steps is still running.
                if let Some(id) = Self::any(&mut self.numbers, &mut self.running) {
                    let ticket = self.manager.fence().unwrap();
                    let until = Until::from(ticket);
                    self.manager.release(id.into(), until).unwrap();
                    self.manager.end_fence(ticket).unwrap();
                }
            }
            16 => {
                self.step += 1;
                let until = Some(self.step).into();
                if let Some(id) = Self::any(&mut self.numbers, &mut self.running) {
                    self.manager.release(id.into(), until).unwrap();
                }
                self.manager.complete_step(self.step).unwrap();
            }
            _ => {
                if let Some(id) = Self::any(&mut self.numbers, &mut self.running) {
                    self.manager.release(id.into(), Until::Now).unwrap();
                }
            }
        }
    }

    /// Returns retention hints for a request, or no hints if the manager has no retention.
    fn hints(&mut self) -> AdmitOptions {
        if self.manager.retention_stats().is_none() {
            return AdmitOptions::default();
        }
        let numbers = &mut self.numbers;
        let now = self.step as f64 + numbers.below(3) as f64;
        self.step = now as u64;
        self.manager.advance_time(now).unwrap();
        let keep = match numbers.below(6) {
            0 => Keep::Pinned,
            1 => Keep::Demoted,
            _ => Keep::Priority(Priority::new(10 * numbers.below(11) as u8).unwrap()),
        };
        let seconds = 1.0 + numbers.below(30) as f64;
        let ttl = [None, Some(Ttl::Idle(seconds)), Some(Ttl::Absolute(seconds))][numbers.below(3)];
        let then = if numbers.below(2) == 0 { Then::Demote } else { Then::Normal };
        let start = numbers.below(6);
        let range = RetentionRange { start, end: None, retention: Retention { keep, ttl, then } };
        let tenant = (numbers.below(3) == 0).then_some(TenantId(1));
        AdmitOptions { ranges: vec![range], tenant, ..AdmitOptions::default() }
    }

    fn idle(&mut self) {
        for id in std::mem::take(&mut self.running).into_iter().chain(std::mem::take(&mut self.preempted)) {
            self.manager.release(id.into(), Until::Now).unwrap();
        }
        // Take the plan of copies, because it holds the source and destination blocks until then.
        self.manager.take_plan().unwrap();
    }

    fn image(mut self) -> Vec<u8> {
        self.manager.take_journal().unwrap().image().unwrap()
    }
}

/// A long run replays with the same block ids. In it, the weights change while requests are waiting, so
/// that their prompts are hashed again and share blocks with other requests in every possible way.
#[test]
fn a_long_day_replays_bit_by_bit() {
    for seed in 0..3 {
        let mut engine = Engine::new(config(seed), seed);
        (0..5000).for_each(|_| engine.turn());
        let report = replay(&engine.image(), Options::default(), &mut |_| true).unwrap();
        assert_eq!(report.difference, None, "seed {seed}");
    }
}

fn day(config: ManagerConfig, seed: u64) -> RestartReport {
    let mut engine = Engine::new(config, seed);
    for _ in 0..6 {
        (0..40).for_each(|_| engine.turn());
        engine.idle();
    }
    let journal = engine.image();
    replay_restarting(&journal, Options { check_every: 8, until: None }, &mut |_| true).unwrap()
}

fn config(seed: u64) -> ManagerConfig {
    let duplicates =
        if seed.is_multiple_of(2) { DuplicatePolicy::Keep } else { DuplicatePolicy::DropOnRelease };
    let (num_blocks, block_size) = (12 + 9 * (seed as usize % 4), 1 + seed as usize / 4 % 3);
    ManagerConfig { num_blocks, block_size, duplicates, ..ManagerConfig::default() }
}

#[test]
fn a_restarted_manager_gives_the_same_answers() {
    let (mut restarts, mut blocks) = (0, 0);
    for seed in 0..60 {
        let report = day(config(seed), seed);
        assert_eq!(report.difference, None, "seed {seed}");
        (restarts, blocks) = (restarts + report.restarts, blocks + report.blocks);
    }
    assert!(restarts > 60 * 6 && blocks > 60 * 6 * 8, "{restarts} restarts with {blocks} blocks");
}

#[test]
fn a_restarted_hybrid_manager_gives_the_same_answers() {
    let mut blocks = 0;
    for seed in 0..30 {
        let config = config(seed);
        let unit = config.block_size;
        let other = [
            GroupKind::Sliding { window: 5 * unit },
            GroupKind::Chunked { chunk: 4 * unit },
            GroupKind::State,
        ][seed as usize % 3];
        let specs = vec![GroupSpec::new(GroupKind::Full, unit), GroupSpec::new(other, 2 * unit)];
        let groups = Some(Groups::new(specs, Some(unit)).unwrap());
        let report = day(ManagerConfig { groups, num_blocks: 40, ..config }, seed);
        assert_eq!(report.difference, None, "seed {seed}");
        assert!(report.restarts >= 6, "{report:?}");
        blocks += report.blocks;
    }
    assert!(blocks > 30 * 6 * 8, "{blocks} blocks");
}

#[test]
fn a_restarted_pool_gives_the_same_answers() {
    for seed in 0..60 {
        let config = ManagerConfig { block_size: 1, ..config(seed) };
        let hasher = HasherConfig { block_size: 1, ..HasherConfig::default() };
        let hasher = std::sync::Arc::new(BlockHasher::new(hasher).unwrap());
        let mut pool = recorded_pool(&config, 64, ring(5));
        let mut numbers = Numbers(seed);
        for _ in 0..40 {
            let mut tables: Vec<Vec<BlockId>> = Vec::new();
            for _ in 0..numbers.below(6) {
                let epoch = pool.epoch();
                let mut cursor =
                    HashCursor::new(hasher.clone(), ExtraKeys { epoch, ..ExtraKeys::default() }).unwrap();
                let family = numbers.below(5) as u32;
                let tokens = 1 + numbers.below(12) as u32;
                cursor
                    .append(&(0..tokens).map(|at| if at < 2 { at } else { 9 + family }).collect::<Vec<_>>());
                let chain = cursor.chain();
                let mut table = pool.match_and_acquire(chain, numbers.below(14), None).unwrap();
                let hits = table.len();
                let Ok(new) = pool.allocate(chain.len() - hits) else {
                    pool.release_table(&table).unwrap();
                    continue;
                };
                table.extend(new);
                if numbers.below(3) > 0 {
                    pool.register(&table[hits..], chain, hits).unwrap();
                    // Leave some blocks of the request without computed contents until it ends.
                    let computed = hits + numbers.below(table.len() - hits + 1);
                    pool.mark_computed(&table[hits..computed]).unwrap();
                } else {
                    for (at, block) in pool.register_table(&table[hits..], chain, hits).unwrap() {
                        table[hits + at] = block;
                    }
                }
                tables.push(table);
            }
            let dropped = [BlockId::new(1 + numbers.below(11) as u32)];
            let _ = pool.drop_cached(&dropped);
            for table in tables {
                pool.release_table(&table).unwrap();
            }
            if numbers.below(30) == 0 {
                pool.bump_epoch().unwrap();
            }
        }
        let journal = pool.take_journal().unwrap().image().unwrap();
        let options = Options { check_every: 3, until: None };
        let report = replay_restarting(&journal, options, &mut |_| true).unwrap();
        assert_eq!(report.difference, None, "seed {seed}");
        assert!(report.restarts >= 30 && report.blocks > 100, "{report:?}");
    }
}

/// The counts of a policy do not survive a restart, and neither does the order of blocks that have the
/// same priority. The comparison finds these differences, which proves that the tests above can fail.
/// Nothing else differs, and the restored state is valid.
#[test]
fn the_comparison_finds_state_that_a_restart_loses() {
    let limits = TenantLimits { tenant: TenantId(1), floor: 2, ceiling: Some(5) };
    let retention = Some(RetentionConfig { pin_budget: 3, tenants: vec![limits] });
    let counting = [kvpool_policies::S3_FIFO, kvpool_policies::ARC];
    let settings = counting.map(|policy| (policy, None));
    for (eviction, retention) in settings.into_iter().chain([(kvpool_policies::LRU, retention)]) {
        let settings = |seed| ManagerConfig { eviction, retention: retention.clone(), ..config(seed) };
        let found: Vec<_> = (0..20).filter_map(|seed| day(settings(seed), seed).difference).collect();
        assert!(!found.is_empty(), "{}", eviction.name());
        for difference in found {
            match difference {
                RestartDifference::Answer { asked, stayed, restarted, .. }
                | RestartDifference::Cached { asked, stayed, restarted, .. } => {
                    assert!(!asked.is_empty() && stayed != restarted);
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn a_pool_without_an_image_is_refused() {
    let refused = |journal: &[u8]| match replay_restarting(journal, Options::default(), &mut |_| true) {
        Err(ReplayError::Settings(reason)) => reason,
        other => panic!("{other:?}"),
    };
    let verified = ManagerConfig { verify: Verify::Tokens, ..config(1) };
    assert!(refused(&Engine::new(verified, 1).image()).contains("verify"));
    let config = VllmConfig { num_blocks: 9, caching: true, policy: kvpool_policies::LRU, retention: None };
    let mut vllm = Journaled::<kvpool_vllm::Pool>::with_journal(config, ring(1)).unwrap();
    assert!(refused(&vllm.take_journal().unwrap().image().unwrap()).contains("vLLM"));
    assert!(replay_restarting(b"notes", Options::default(), &mut |_| true).is_err());

    let mut engine = Engine::new(self::config(1), 1);
    (0..5000).for_each(|_| engine.turn());
    let journal = engine.image();
    let stopped = replay_restarting(&journal, Options::default(), &mut |_| false);
    assert_eq!(stopped, Err(ReplayError::Stopped));
    let until = Options { until: Some(7), check_every: 0 };
    assert_eq!(replay_restarting(&journal, until, &mut |_| true).unwrap().operations, 7);
}
