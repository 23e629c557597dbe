//! Who watches changes nothing: managers that run the same random operations give the same answers and evict in the same order,
//! whatever watches them, under every policy, with a host tier, with and without retention.
//!
//! `KVPOOL_OBSERVED_RUNS` sets how many random histories there are of each (default 4), each with every observer.

use super::numbers::Numbers;
use kvpool::retention::{Keep, Priority, Retention, RetentionConfig, TenantId, TenantLimits};
use kvpool::{
    AdmitOptions, CacheManager, DuplicatePolicy, ExtraKeys, ManagerConfig, ManagerError, RequestRef,
    RequestState, RetentionRange, SwapId,
};
use kvpool_journal::{
    Journal, JournalConfig, Journaled, ManagerCalls, Observed, Observers, Options, Recordable, observe,
};
use kvpool_observe::{AdvisorConfig, ExplainConfig, ManagerWatch, ManagerWatchConfig};

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
    Metrics,
    All,
}

const OBSERVERS: [Observer; 7] = [
    Observer::Events,
    Observer::Digest,
    Observer::Journal,
    Observer::Explain,
    Observer::Advisor,
    Observer::Metrics,
    Observer::All,
];

fn manager(config: ManagerConfig, observer: Option<Observer>) -> Journaled<CacheManager> {
    let wants =
        |of: fn(Observer) -> bool| observer.is_some_and(|one| of(one) || matches!(one, Observer::All));
    let watch = ManagerWatchConfig {
        event_capacity: if wants(|one| matches!(one, Observer::Events)) { 16 } else { 0 },
        digest: wants(|one| matches!(one, Observer::Digest)),
        scrub_blocks: if wants(|one| matches!(one, Observer::Digest)) { 3 } else { 0 },
        explain: wants(|one| matches!(one, Observer::Explain)).then(ExplainConfig::default),
        advisor: wants(|one| matches!(one, Observer::Advisor)).then(AdvisorConfig::default),
        metrics: wants(|one| matches!(one, Observer::Metrics)),
        ..ManagerWatchConfig::default()
    };
    if wants(|one| matches!(one, Observer::Journal)) {
        let journal = Journal::ring(1 << 20, JournalConfig::default()).unwrap();
        Journaled::with_watch(config, &watch, journal).unwrap()
    } else {
        CacheManager::new(config).unwrap().watched(&watch).unwrap().into()
    }
}

/// A manager under random operations. Which they are depends on numbers and on its answers alone.
struct Run {
    manager: Journaled<CacheManager>,
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

    /// A request in this state, if there is one.
    fn one(&mut self, state: RequestState) -> i64 {
        let is = |id: &i64| self.manager.request(*id).is_ok_and(|request| request.state == state);
        let ids: Vec<_> = (0..IDS).filter(is).collect();
        if ids.is_empty() { self.id() } else { ids[self.numbers.below(ids.len())] }
    }

    /// Prompts of which some share prefixes, and more than fit into the pool.
    fn tokens(&mut self) -> Vec<u32> {
        let (prompt, blocks) = (self.numbers.below(12) as u32, 1 + self.numbers.below(4));
        (0..blocks * BLOCK_SIZE + 1).map(|at| if at < BLOCK_SIZE { prompt / 2 } else { prompt }).collect()
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
        let (any, running) = (self.id(), self.one(RequestState::Running));
        let after = Some(self.step).filter(|_| self.numbers.below(4) == 0);
        match self.numbers.below(40) {
            0..=8 => self.admit(),
            9..=10 => format!("commit {running}: {:?}", self.commit(running)),
            11..=12 => {
                let token = self.numbers.below(2) as u32;
                format!(
                    "append {running}: {:?}",
                    self.manager.append_tokens(running.into(), &[token, 1], &[], 0)
                )
            }
            13..=14 => {
                let keep = 1 + self.numbers.below(8);
                format!(
                    "truncate {running} to {keep}: {:?}",
                    self.manager.truncate(running.into(), keep, kvpool::Until::Now)
                )
            }
            15 => format!("fork {running}: {:?}", self.manager.fork(running.into(), any.into())),
            16..=18 => format!("release {running}: {:?}", self.manager.release(running.into(), after.into())),
            19 => format!("preempt {running}: {:?}", self.manager.preempt(running.into(), after.into())),
            20 => {
                let id = self.one(RequestState::Preempted);
                format!("resume {id}: {:?}", self.manager.resume(id.into(), kvpool::Part::WHOLE))
            }
            21..=23 => {
                let answer = self.manager.begin_swap_out(&[RequestRef::Int(running)]);
                self.swaps.extend(answer.as_ref().ok());
                format!("swap {running} out: {answer:?}")
            }
            24..=26 => {
                let id = self.one(RequestState::Swapped);
                let answer = self.manager.begin_swap_in(&[RequestRef::Int(id)]);
                self.swaps.extend(answer.as_ref().ok());
                format!("swap {id} in: {answer:?}")
            }
            27..=32 => self.end_swap(),
            33 => format!("plan: {:?}", self.manager.take_plan()),
            34 => {
                self.step += 1;
                format!("complete: {:?}", self.manager.complete_step(self.step - 1))
            }
            35..=38 => {
                let (start, retention) = (self.numbers.below(4), self.hint());
                let range = RetentionRange { start, end: Some(start + BLOCK_SIZE), retention };
                format!("retain {running} {range:?}: {:?}", self.manager.retain(running.into(), &[range]))
            }
            _ => {
                self.now += 1.0;
                format!("time: {:?}", self.manager.advance_time(self.now))
            }
        }
    }

    /// A new request, mostly computed at once.
    fn admit(&mut self) -> String {
        let id = (0..IDS).find(|&id| !self.manager.contains(id)).unwrap_or(0);
        let tokens = self.tokens();
        let cursor = self.manager.prepare(&tokens, ExtraKeys::default()).unwrap();
        let answer =
            self.manager.admit(id.into(), cursor, &AdmitOptions::default()).map_err(|refused| refused.error);
        let computed = answer.is_ok() && self.numbers.below(4) > 0;
        let computed = computed.then(|| self.commit(id));
        format!("admit {id} {tokens:?}: {answer:?}, {computed:?}")
    }

    fn commit(&mut self, id: i64) -> Result<usize, ManagerError> {
        let all = self.manager.request(id).map_or(0, |info| info.tokens);
        self.manager.commit(id.into(), all)
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
    std::env::var("KVPOOL_OBSERVED_RUNS").ok().and_then(|n| n.parse().ok()).unwrap_or(2)
}

/// Runs one history with every observer and with none. Returns how many requests were swapped in.
fn compare(config: &ManagerConfig, seed: u64) -> usize {
    let run = |observer| Run {
        manager: manager(config.clone(), observer),
        numbers: Numbers(seed),
        swaps: Vec::new(),
        now: 0.0,
        step: 0,
        back: 0,
    };
    let (mut bare, mut watched) = (run(None), OBSERVERS.map(|observer| run(Some(observer))));
    for nth in 0..150 {
        let answer = bare.operate();
        let seen = bare.observe();
        for (run, observer) in watched.iter_mut().zip(OBSERVERS) {
            let what = format!("{:?}, seed {seed}, operation {nth}, {observer:?}", config.eviction);
            assert_eq!(run.operate(), answer, "{what}");
            assert_eq!(run.observe(), seen, "{what}: {answer}");
            if nth % 7 == 0 {
                run.manager.take_events();
                run.manager.unrecorded(Recordable::digest);
            }
        }
    }
    let [.., watched] = &mut watched;
    observed_again(&mut watched.manager);
    bare.back
}

/// A replay with the same observers says what the run said.
fn observed_again(manager: &mut Journaled<CacheManager>) {
    let image = manager.journal_image().unwrap();
    let observers =
        Observers { explain: Some(ExplainConfig::default()), metrics: true, ..Observers::default() };
    let mut seen = 0;
    let mut look = |operations, observed: Observed<'_>| {
        let Observed::Manager(again) = observed else { return };
        seen += 1;
        if operations == manager.journal().unwrap().operations() {
            assert_eq!(again.metrics(), manager.metrics());
            assert_eq!(again.advice(), manager.advice());
            let missed = [again, &**manager].map(|one| one.misses().unwrap().admitted.total());
            assert_eq!(missed[0], missed[1]);
        }
    };
    let report = observe(&image, &observers, Options::default(), 40, &mut look, &mut |_| true).unwrap();
    assert_eq!(report.difference, None);
    assert_eq!(seen, report.operations.div_ceil(40));
}

#[test]
fn no_answer_and_no_eviction_depends_on_who_watches() {
    let limits = |tenant, floor, ceiling| TenantLimits { tenant: TenantId(tenant), floor, ceiling };
    let retention = RetentionConfig { pin_budget: 2, tenants: vec![limits(0, 2, None)] };
    let mut back = 0;
    for &eviction in kvpool_policies::ALL {
        for retention in [None, Some(retention.clone())] {
            if eviction.build(8, retention.as_ref()).is_err() {
                continue; // a policy without hints
            }
            // With retention alone LRU knows what hangs on what, and without it, in the host tier, it does not.
            let times = if eviction == kvpool_policies::LRU { 8 } else { 1 };
            for seed in 0..times * runs() {
                let config = ManagerConfig {
                    num_blocks: 10 + seed as usize % 4,
                    block_size: BLOCK_SIZE,
                    eviction,
                    duplicates: DuplicatePolicy::ALL[seed as usize % 2],
                    retention: retention.clone(),
                    host_blocks: 8 + seed as usize % 5,
                    ..ManagerConfig::default()
                };
                back += compare(&config, seed);
            }
        }
    }
    assert!(back > 0, "nothing was ever swapped in");
}
