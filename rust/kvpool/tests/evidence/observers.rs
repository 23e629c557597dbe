//! Who watches changes nothing: managers that run the same random operations give the same answers and evict in the same order,
//! whatever watches them, under every policy, with a host tier, with and without retention.
//!
//! `KVPOOL_OBSERVED_RUNS` sets how many random histories there are of each (default 25).

use kvpool::journal::{Journal, JournalConfig};
use kvpool::retention::{Keep, Priority, Retention, RetentionConfig, TenantId, TenantLimits};
use kvpool::{
    AdvisorConfig, CacheManager, DuplicatePolicy, EvictionPolicy, ExplainConfig, ExtraKeys, ManagerConfig,
    RequestRef, RetentionRange, SwapId,
};

use super::world::Numbers;

const BLOCK_SIZE: usize = 2;
const IDS: i64 = 6;

/// What watches a manager.
#[derive(Clone, Copy, Debug)]
enum Observer {
    Events,
    Digest,
    Journal,
    Explain,
    Advisor,
    All,
}

const OBSERVERS: [Observer; 6] = [
    Observer::Events,
    Observer::Digest,
    Observer::Journal,
    Observer::Explain,
    Observer::Advisor,
    Observer::All,
];

fn manager(config: ManagerConfig, observer: Option<Observer>) -> CacheManager {
    let wants =
        |of: fn(Observer) -> bool| observer.is_some_and(|one| of(one) || matches!(one, Observer::All));
    let config = ManagerConfig {
        event_capacity: if wants(|one| matches!(one, Observer::Events)) { 16 } else { 0 },
        digest: wants(|one| matches!(one, Observer::Digest)),
        scrub_blocks: if wants(|one| matches!(one, Observer::Digest)) { 3 } else { 0 },
        explain: wants(|one| matches!(one, Observer::Explain)).then(ExplainConfig::default),
        advisor: wants(|one| matches!(one, Observer::Advisor)).then(AdvisorConfig::default),
        ..config
    };
    if wants(|one| matches!(one, Observer::Journal)) {
        let journal = Journal::ring(1 << 20, JournalConfig::default()).unwrap();
        CacheManager::with_journal(config, journal).unwrap()
    } else {
        CacheManager::new(config).unwrap()
    }
}

/// A manager under random operations. Which they are depends on numbers and on its answers alone.
struct Run {
    manager: CacheManager,
    numbers: Numbers,
    swaps: Vec<SwapId>,
    now: f64,
    step: u64,
    /// Swaps in that were completed.
    back: usize,
}

impl Run {
    fn id(&mut self) -> i64 {
        self.numbers.below(IDS as usize) as i64
    }

    /// Few prompts that share prefixes.
    fn tokens(&mut self) -> Vec<u32> {
        let (prompt, blocks) = (self.numbers.below(4) as u32, 1 + self.numbers.below(4));
        (0..blocks * BLOCK_SIZE + 1).map(|at| if at < 2 * BLOCK_SIZE { prompt / 2 } else { prompt }).collect()
    }

    fn hint(&mut self) -> Retention {
        match self.numbers.below(4) {
            0 => Retention::END_OF_LIFE,
            1 => Retention::PINNED,
            _ => Retention::of(Keep::Priority(Priority::new(self.numbers.below(101) as u8).unwrap())),
        }
    }

    /// One random operation, and what it answered.
    fn operate(&mut self) -> String {
        let (id, other) = (self.id(), self.id());
        let after = Some(self.step).filter(|_| self.numbers.below(4) == 0);
        match self.numbers.below(32) {
            0..=6 => {
                let tokens = self.tokens();
                let cursor = self.manager.prepare(&tokens, ExtraKeys::default()).unwrap();
                let answer = self.manager.admit(id, cursor).map_err(|refused| refused.error);
                format!("admit {id} {tokens:?}: {answer:?}")
            }
            7..=10 => {
                let all = self.manager.request(id).map_or(0, |info| info.tokens);
                format!("commit {id}: {:?}", self.manager.commit(id, all))
            }
            11..=12 => {
                let token = self.numbers.below(2) as u32;
                format!("append {id}: {:?}", self.manager.append_tokens(id, &[token, 1], 0))
            }
            13..=14 => {
                let keep = 1 + self.numbers.below(8);
                format!("truncate {id} to {keep}: {:?}", self.manager.truncate(id, keep))
            }
            15 => format!("fork {id}: {:?}", self.manager.fork(id, other)),
            16..=17 => format!("release {id}: {:?}", self.manager.release(id, after)),
            18 => format!("preempt {id}: {:?}", self.manager.preempt(id, after)),
            19 => format!("resume {id}: {:?}", self.manager.resume(id)),
            20..=21 => {
                let answer = self.manager.begin_swap_out(&[RequestRef::Int(id)]);
                self.swaps.extend(answer.as_ref().ok());
                format!("swap {id} out: {answer:?}")
            }
            22..=23 => {
                let answer = self.manager.begin_swap_in(&[RequestRef::Int(id)]);
                self.swaps.extend(answer.as_ref().ok());
                format!("swap {id} in: {answer:?}")
            }
            24..=26 => self.end_swap(),
            27 => format!("plan: {:?}", self.manager.take_plan()),
            28 => {
                self.step += 1;
                format!("complete: {:?}", self.manager.complete_step(self.step - 1))
            }
            29..=30 => {
                let (start, retention) = (self.numbers.below(6), self.hint());
                let range = RetentionRange { start, end: Some(start + BLOCK_SIZE), retention };
                format!("retain {id} {range:?}: {:?}", self.manager.retain(id, &[range]))
            }
            _ => {
                self.now += 1.0;
                format!("time: {:?}", self.manager.advance_time(self.now))
            }
        }
    }

    fn end_swap(&mut self) -> String {
        if self.swaps.is_empty() {
            return String::new();
        }
        let swap = self.swaps.remove(0);
        if self.numbers.below(5) == 0 {
            return format!("abort: {:?}", self.manager.abort_swap(swap));
        }
        let plan = self.manager.take_plan();
        let before = self.manager.stats().swapped_in;
        let answer = self.manager.complete_swap(swap);
        self.back += (self.manager.stats().swapped_in - before) as usize;
        format!("{plan:?}: {answer:?}")
    }

    /// What anybody can see of it.
    fn observe(&self) -> String {
        let mut seen = format!("{:?} {:?}", self.manager.stats().pool, self.manager.retention_stats());
        for tier in 0..self.manager.tiers().len() {
            let pool = self.manager.tiers().pool(tier).unwrap();
            pool.check_invariants().unwrap();
            seen += &format!(" {:?} {:?} {:?}", pool.free_order(), pool.eviction_order(), pool.stats());
        }
        for id in 0..IDS {
            seen += &format!(" {:?} {:?}", self.manager.request(id).ok(), self.manager.block_table(id).ok());
        }
        seen
    }
}

fn runs() -> u64 {
    std::env::var("KVPOOL_OBSERVED_RUNS").ok().and_then(|n| n.parse().ok()).unwrap_or(25)
}

#[test]
fn no_answer_and_no_eviction_depends_on_who_watches() {
    let limits = |tenant, floor, ceiling| TenantLimits { tenant: TenantId(tenant), floor, ceiling };
    let retention = RetentionConfig { pin_budget: 2, tenants: vec![limits(0, 2, None)] };
    let mut back = 0;
    for &eviction in EvictionPolicy::ALL {
        for retention in [None, Some(retention.clone())] {
            if eviction.build(8, retention.as_ref()).is_err() {
                continue; // a policy without hints
            }
            for seed in 0..runs() {
                let duplicates = DuplicatePolicy::ALL[seed as usize % 2];
                let config = ManagerConfig {
                    num_blocks: 10 + seed as usize % 4,
                    block_size: BLOCK_SIZE,
                    eviction,
                    duplicates,
                    retention: retention.clone(),
                    host_blocks: 8 + seed as usize % 5,
                    ..ManagerConfig::default()
                };
                let run = |observer| Run {
                    manager: manager(config.clone(), observer),
                    numbers: Numbers(seed),
                    swaps: Vec::new(),
                    now: 0.0,
                    step: 0,
                    back: 0,
                };
                let observer = OBSERVERS[seed as usize % OBSERVERS.len()];
                let (mut bare, mut watched) = (run(None), run(Some(observer)));
                for nth in 0..150 {
                    let what = format!("{eviction:?}, seed {seed}, operation {nth}, {observer:?}");
                    let (alone, seen) = (bare.operate(), watched.operate());
                    assert_eq!(alone, seen, "{what}");
                    assert_eq!(bare.observe(), watched.observe(), "{what}: {alone}");
                    if nth % 7 == 0 {
                        watched.manager.take_events();
                        watched.manager.state_digest();
                    }
                }
                back += bare.back;
            }
        }
    }
    assert!(back > 0, "nothing was ever swapped in");
}
