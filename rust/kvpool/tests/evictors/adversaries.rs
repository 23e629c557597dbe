//! Tests every policy with adverse workloads: scans, loops, changing popularity, sessions that end. The
//! workloads are small, artificial, and the same on every host.
//!
//! The tests assert minimum hit rates for every policy. The tables
//! (`cargo test --test evictors adversaries -- --nocapture`) show hits in percent of the requested
//! blocks, and *turnover*: of the blocks that were cached at the start of a phase, the share that is no
//! longer cached at its end.

use std::collections::BTreeSet;

use super::*;
use kvpool::{BlockHash, BlockPool, HashAlgorithm, PoolConfig};

const CAPACITY: usize = 256;

/// The contents of a prompt's blocks, as numbers. Two prompts share a block if they have the same
/// numbers up to its position.
type Prompt = Vec<u64>;

/// The mixing step of `SplitMix64`.
fn mix(state: u64) -> u64 {
    let state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

fn digest(prefix: u64) -> BlockHash {
    let mut bytes = [0; 32];
    for (nth, eight) in bytes.chunks_exact_mut(8).enumerate() {
        eight.copy_from_slice(&mix(prefix ^ (nth as u64) << 56).to_le_bytes());
    }
    BlockHash::from_bytes(bytes)
}

fn chain_of(prompt: &Prompt) -> HashChain {
    let prefixes = prompt.iter().scan(0, |before, &block| {
        *before = mix(*before ^ block);
        Some(digest(*before))
    });
    HashChain::from_digests(HashAlgorithm::Sha256, BLOCK_SIZE, 0, prefixes.collect()).unwrap()
}

/// A pool that serves one request at a time.
struct Server {
    pool: BlockPool,
    served: usize,
}

/// The results of a phase in percent: hits, and blocks that are no longer cached at its end.
#[derive(Clone, Copy, Debug)]
struct Phase {
    hits: f64,
    turnover: f64,
}

impl Server {
    fn new(eviction: EvictionPolicy) -> Self {
        let config =
            PoolConfig { num_blocks: CAPACITY + 1, block_size: BLOCK_SIZE, eviction, ..Default::default() };
        Self { pool: BlockPool::new(config).unwrap(), served: 0 }
    }

    fn serve(&mut self, prompt: &Prompt) -> usize {
        let chain = chain_of(prompt);
        let mut table = self.pool.match_and_acquire(&chain, usize::MAX).unwrap();
        let hits = table.len();
        let new = self.pool.allocate(prompt.len() - hits).unwrap();
        self.pool.register(&new, &chain, hits).unwrap();
        self.pool.mark_computed(&new).unwrap();
        table.extend(new);
        self.served += 1;
        self.pool.mark_accessed(&table, self.served as f64).unwrap(); // only last-accessed uses access times
        self.pool.release_table(&table).unwrap();
        hits
    }

    fn cached(&self) -> BTreeSet<BlockHash> {
        (1..=CAPACITY).filter_map(|block| self.pool.hash_of(id(block))).collect()
    }

    fn run(&mut self, prompts: &[Prompt]) -> Phase {
        let before = self.cached();
        let hits: usize = prompts.iter().map(|prompt| self.serve(prompt)).sum();
        let asked: usize = prompts.iter().map(Vec::len).sum();
        self.pool.check_invariants().unwrap();
        let gone = before.difference(&self.cached()).count();
        let percent = |part: usize, of: usize| 100.0 * part as f64 / of.max(1) as f64;
        Phase { hits: percent(hits, asked), turnover: percent(gone, before.len()) }
    }
}

/// Returns an endless sequence of random numbers below `below`.
fn numbers(seed: u64, below: usize) -> impl Iterator<Item = u64> {
    (0_u64..).map(move |nth| mix(seed ^ mix(nth)) % below as u64)
}

/// Returns `n` requests. Each is for a random one of `prompts` prompts, which have `blocks` blocks.
fn working_set(set: u64, prompts: usize, blocks: u64, n: usize) -> Vec<Prompt> {
    let prompt = |nth| (0..blocks).map(|at| set << 32 | nth << 8 | at).collect();
    numbers(set, prompts).take(n).map(prompt).collect()
}

/// Returns `n` prompts of `blocks` blocks. No two of them share a block.
fn one_shot(set: u64, blocks: u64, n: usize) -> Vec<Prompt> {
    (0..n as u64).map(|nth| (0..blocks).map(|at| 1 << 60 | set << 32 | nth << 8 | at).collect()).collect()
}

/// Returns requests for `prompts` prompts in a loop. Each round requests every prompt once.
fn looping(set: u64, prompts: usize, blocks: u64, rounds: usize) -> Vec<Prompt> {
    let round = || (0..prompts as u64).map(|nth| (0..blocks).map(|at| set << 32 | nth << 8 | at).collect());
    (0..rounds).flat_map(|_| round()).collect()
}

/// Returns requests of agents. At any time there are `live` sessions, which share one system prompt.
/// Each session grows by a block per turn and ends after 12 turns.
fn sessions(live: usize, turns: usize) -> Vec<Prompt> {
    let system = || [1, 2, 3, 4].map(|at: u64| 7 << 60 | at);
    let mut ages: Vec<u64> = (0..live as u64).map(|slot| slot % 12).collect();
    let mut generation = vec![0_u64; live];
    let mut out = Vec::new();
    for slot in numbers(99, live).take(turns) {
        let at = slot as usize;
        ages[at] += 1;
        if ages[at] > 12 {
            (ages[at], generation[at]) = (1, generation[at] + 1);
        }
        let session = 5 << 56 | slot << 40 | generation[at] << 8;
        out.push(system().into_iter().chain((0..ages[at]).map(|turn| session | turn)).collect());
    }
    out
}

/// Returns requests for 40 prompts of 4 blocks. One half of the prompts gets most requests, and this
/// half changes slowly all the time.
fn drifting(n: usize) -> Vec<Prompt> {
    let near = numbers(3, 20).zip(numbers(4, 40)).zip(numbers(5, 4));
    let nth = |(at, ((near, far), which)): (usize, ((u64, u64), u64))| {
        let offset = if which == 0 { far } else { near };
        let prompt = at as u64 / 6 + offset;
        (0..4).map(|block| 3 << 56 | prompt << 8 | block).collect()
    };
    near.take(n).enumerate().map(nth).collect()
}

/// Serves the phases of requests with every policy, and prints a table. Calls `expect` with the results
/// of each policy, which checks them.
fn all(title: &str, phases: &[(&str, Vec<Prompt>)], expect: impl Fn(EvictionPolicy, &[Phase])) {
    let mut table = format!("\n{title}\n{:<14}", "hits/turnover");
    phases.iter().for_each(|(name, _)| table += &format!(" | {name:>22}"));
    let mut results = Vec::new();
    for &policy in kvpool_policies::ALL {
        let mut server = Server::new(policy);
        let figures: Vec<_> = phases.iter().map(|(_, prompts)| server.run(prompts)).collect();
        table += &format!("\n{:<14}", policy.name());
        figures.iter().for_each(|p| table += &format!(" | {:>12.1} / {:>5.1} %", p.hits, p.turnover));
        results.push((policy, figures));
    }
    println!("{table}");
    results.iter().for_each(|(policy, figures)| expect(*policy, figures));
}

/// Returns whether the policy keeps blocks that were used again while it gets many blocks that are used
/// only once.
fn resists_scans(policy: EvictionPolicy) -> bool {
    [kvpool_policies::S3_FIFO, kvpool_policies::ARC].contains(&policy)
}

#[test]
fn a_new_working_set_is_learned() {
    let phases = [
        ("old set", working_set(1, 64, 3, 2000)),
        ("moved: first 512", working_set(2, 64, 3, 512)),
        ("moved: later", working_set(2, 64, 3, 2000)),
    ];
    all("Everything that was popular dies at once (192 blocks of 256)", &phases, |policy, phases| {
        let [_, first, later] = phases else { panic!() };
        assert!(first.hits > 30.0 && later.hits > 90.0, "{policy:?} learns too late: {first:?}, {later:?}");
    });
}

#[test]
fn a_scan_is_forgotten() {
    let hot = working_set(1, 48, 3, 1000);
    let scan = one_shot(1, 6, 1000);
    let mixed = hot.iter().zip(scan).flat_map(|(hot, once)| [hot.clone(), once]).collect();
    let phases = [
        ("hot alone", working_set(1, 48, 3, 1000)),
        ("hot among one-shots", mixed),
        ("pure scan", one_shot(2, 4, 300)),
        ("hot again: first 200", working_set(1, 48, 3, 200)),
        ("hot again: later", working_set(1, 48, 3, 1000)),
    ];
    all("A working set of 144 blocks, and prompts that come once", &phases, |policy, phases| {
        let [alone, mixed, scan, again, later] = phases else { panic!() };
        // Each of the 144 blocks that the scan evicted is missed at most once.
        assert!(
            again.hits >= 100.0 - 100.0 * 144.0 / 600.0 && later.hits > 99.0,
            "{policy:?}: {again:?}, {later:?}"
        );
        assert!(alone.hits > 95.0 && scan.hits == 0.0);
        if resists_scans(policy) {
            assert!(
                mixed.hits > 25.0 && again.hits > 95.0,
                "{policy:?} does not resist: {mixed:?}, {again:?}"
            );
        }
    });
}

#[test]
fn a_loop_that_shrinks_is_kept() {
    let phases = [
        ("loop of 1.25", looping(1, 80, 4, 20)),
        ("loop of 0.5: first 4", looping(2, 32, 4, 4)),
        ("loop of 0.5: later", looping(2, 32, 4, 20)),
    ];
    all("Loops of 1.25 and 0.5 capacities", &phases, |policy, phases| {
        let [large, first, later] = phases else { panic!() };
        // These two policies keep a part of the large loop, because they evict new blocks first. They
        // need some time to detect that the loop has ended.
        let (least_large, least, least_later) = match policy.name() {
            "adaptive" => (60.0, 25.0, 90.0),
            "hazard" => (20.0, 24.0, 99.0),
            _ => (-1.0, 50.0, 99.0),
        };
        assert!(
            large.hits > least_large && first.hits > least && later.hits > least_later,
            "{policy:?}: {large:?}, {first:?}, {later:?}"
        );
    });
}

#[test]
fn dead_sessions_leave() {
    let turns = sessions(12, 6000);
    let quarter = |nth: usize| turns[nth * 1500..(nth + 1) * 1500].to_vec();
    let phases = [("1st quarter", quarter(0)), ("2nd", quarter(1)), ("3rd", quarter(2)), ("4th", quarter(3))];
    all("12 live sessions of up to 12 blocks behind a prompt of 4", &phases, |policy, phases| {
        // `hazard` keeps some blocks that might be used again late. So one block in ten may remain
        // cached for longer than with other policies.
        let least = if policy == kvpool_policies::HAZARD { 85.0 } else { 90.0 };
        for phase in &phases[1..] {
            assert!(phase.hits > 80.0 && phase.turnover > least, "{policy:?} keeps the dead: {phases:?}");
        }
    });
}

#[test]
fn popularity_drifts() {
    let requests = drifting(6000);
    let quarter = |nth: usize| requests[nth * 1500..(nth + 1) * 1500].to_vec();
    let phases = [("1st quarter", quarter(0)), ("2nd", quarter(1)), ("3rd", quarter(2)), ("4th", quarter(3))];
    all("40 prompts of 4 blocks, one replaced every 6 requests", &phases, |policy, phases| {
        for phase in &phases[1..] {
            assert!(phase.hits > 65.0 && phase.turnover > 80.0, "{policy:?} lags behind: {phases:?}");
        }
    });
}

/// Runs `hazard` with a clock. `now` returns the time of each request.
fn timed(phases: &[Vec<Prompt>], now: impl Fn(usize) -> f64) -> Vec<Phase> {
    let mut server = Server::new(kvpool_policies::HAZARD);
    let run = |prompts: &Vec<Prompt>| {
        let before = server.cached();
        let (mut hits, mut asked) = (0, 0);
        for prompt in prompts {
            server.pool.advance_time(now(server.served)).unwrap();
            hits += server.serve(prompt);
            asked += prompt.len();
        }
        server.pool.check_invariants().unwrap();
        let gone = before.difference(&server.cached()).count();
        Phase {
            hits: 100.0 * hits as f64 / asked as f64,
            turnover: 100.0 * gone as f64 / before.len().max(1) as f64,
        }
    };
    phases.iter().map(run).collect()
}

/// One set of prompts is popular for an hour. Then another set becomes popular within a minute.
#[test]
fn hazard_follows_a_workload_that_drifts_within_a_minute() {
    let phases = [working_set(1, 64, 3, 3600), working_set(2, 64, 3, 600), working_set(2, 64, 3, 3600)];
    let figures =
        timed(&phases, |served| if served < 3600 { served as f64 } else { 3600.0 + served as f64 / 10.0 });
    println!("drift within a minute: {figures:?}");
    let [old, minute, later] = figures[..] else { panic!() };
    assert!(old.hits > 90.0 && minute.hits > 60.0 && later.hits > 90.0, "{old:?}, {minute:?}, {later:?}");
}

/// If the ages of blocks never increase, `hazard` would keep blocks that were used twice forever. So it
/// ignores a clock that does not advance.
#[test]
fn hazard_works_with_a_stopped_clock() {
    let phases = [1, 2, 3, 4].map(|set| working_set(set, 64, 3, 2000));
    let mut clocks: Vec<Box<dyn Fn(usize) -> f64>> = vec![Box::new(|_| 0.0), Box::new(|_| 1e9)];
    // This clock advances, and stops in the middle of the test.
    clocks.push(Box::new(|served| (served as f64).min(1500.0)));
    for now in clocks {
        let figures = timed(&phases, now);
        println!("a clock that stands still: {figures:?}");
        // `hazard` uses the stopped clock until it has admitted 8 times as many new blocks as the pool
        // has. During that time, ages do not increase, and the old set remains cached. This happens
        // only once.
        let low = figures.iter().filter(|phase| phase.hits < 90.0).count();
        assert!(low <= 1 && figures.iter().all(|phase| phase.hits > 55.0), "{figures:?}");
        assert!(figures[3].hits > 90.0 && figures[3].turnover > 60.0, "what was popular leaves: {figures:?}");
    }
}

/// One tenant sends prompts that are used only once. It requests ten blocks for every three blocks of
/// the other tenants.
#[test]
fn hazard_protects_reused_content_from_a_flood() {
    let hot = working_set(1, 48, 3, 4000);
    let flooded: Vec<Prompt> =
        hot.iter().cloned().zip(one_shot(1, 10, 4000)).flat_map(|(hot, once)| [hot, once]).collect();
    let halves = [flooded[..4000].to_vec(), flooded[4000..].to_vec()];
    let figures = timed(&halves, |served| served as f64 / 4.0);
    let lru = {
        let mut server = Server::new(kvpool_policies::LRU);
        halves.iter().map(|half| server.run(half)).collect::<Vec<_>>()
    };
    println!("one tenant floods: {figures:?}, lru {lru:?}");
    // At most 23 of 100 blocks can be hits.
    assert!(figures[1].hits > lru[1].hits + 3.0 && figures[1].hits > 15.0, "{figures:?}, lru {lru:?}");
}
