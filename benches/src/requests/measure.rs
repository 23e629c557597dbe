//! The measurements of the program `requests`: each round sends the same requests through every
//! variant.
//!
//! Each variant begins with a new manager. All its blocks are written once before the measurement, so
//! that no figure includes page faults of the first use. Times are processor time of the thread. The
//! time to read the clock is subtracted.

use std::hint::black_box;

use cpu_time::ThreadTime;
use kvpool::PoolError;

use super::{Batch, Kvpool, Manager, Map, Radix};
use crate::{REQUEST_BLOCKS, Random, chain, pool, store};

/// Number of tokens per block. Only the measurement `hit_ones_sha256` has blocks of one token.
pub const BLOCK_SIZE: usize = 16;
/// Number of blocks of each pool, including the null block.
pub const POOL_BLOCKS: usize = 1 << 16;
/// Number of tokens of a prompt: full blocks and one more token.
pub const PROMPT: usize = REQUEST_BLOCKS * BLOCK_SIZE + 1;
/// Number of requests that a variant runs for hits. The same number runs for evictions.
const REQUESTS: usize = 100;
/// Number of prompts that fit in the pool together.
const RESIDENT: usize = (POOL_BLOCKS - 1) / (REQUEST_BLOCKS + 1);
/// Number of requests of a decode step.
const BATCH: usize = 256;
/// Number of decode steps of each variant per round.
const STEPS: usize = 128;
/// Number of blocks of the pool whose blocks have one token each, and number of blocks of the prompts
/// in it.
const ONES_BLOCKS: usize = 1 << 20;
const ONES_PROMPTS: usize = 96;
/// Number of blocks of each of the large pools.
const LARGE_BLOCKS: usize = 1 << 24;
/// Number of stores per round in the large pool. The first stores are many times slower, because the
/// caches do not contain the page table entries any more. After other variants have run, 64 stores took
/// up to ten times longer per block.
const LARGE_STORES: usize = 1024;

/// A row of the report: the shortest times of all rounds so far, in ns per block.
#[derive(Clone, Debug)]
pub struct Row {
    /// The name of the row in the report.
    pub name: &'static str,
    /// kvpool.
    pub ns: f64,
    /// The radix tree.
    pub radix_ns: f64,
    /// The time of the yardstick that uses a map of chained hashes.
    pub map_ns: f64,
    /// Number of blocks whose operations a round measures in each variant. For `decode_row` it is the
    /// number of decoded tokens, and for `hit_ones_sha256` the number of blocks of one token.
    pub blocks: usize,
}

impl Row {
    fn new(name: &'static str, blocks: usize) -> Self {
        Self { name, ns: f64::INFINITY, radix_ns: f64::INFINITY, map_ns: f64::INFINITY, blocks }
    }

    fn add(&mut self, kvpool: u64, radix: u64, map: u64) {
        let shorter = |least: &mut f64, total: u64| *least = least.min(total as f64 / self.blocks as f64);
        shorter(&mut self.ns, kvpool);
        shorter(&mut self.radix_ns, radix);
        shorter(&mut self.map_ns, map);
    }
}

/// A clock that adds up the processor time of calls.
#[derive(Debug)]
struct Clock {
    /// The time that is measured for an empty interval, which is subtracted from each measurement.
    reading: u64,
}

impl Clock {
    fn new() -> Self {
        let mut clock = Self { reading: 0 };
        let empty = (0..1000).map(|_| {
            let mut total = 0;
            clock.time(&mut total, || ());
            total
        });
        clock.reading = empty.min().unwrap_or(0);
        clock
    }

    /// Calls a function, and adds its time to `total`.
    fn time<R>(&self, total: &mut u64, call: impl FnOnce() -> R) -> R {
        let start = ThreadTime::now();
        let result = black_box(call());
        *total += (start.elapsed().as_nanos() as u64).saturating_sub(self.reading);
        result
    }
}

/// The times of one variant (kvpool or a yardstick) in one round, in ns.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    cold: u64,
    hit: u64,
    free: u64,
    evicting: u64,
    decode: u64,
}

/// Makes prompt number `nth`. No two prompts have a block in common.
fn prompt(nth: usize, length: usize) -> Vec<u32> {
    (0..length).map(|at| (nth * length + at) as u32).collect()
}

/// The managers with a pool of [`POOL_BLOCKS`], and the prompts that they run.
#[derive(Debug)]
pub struct Bench {
    clock: Clock,
    /// The prompts: first those that fit in the pool together, then those that need evictions.
    prompts: Vec<Vec<u32>>,
    ones: Vec<Vec<u32>>,
    batch: Batch,
    rows: Vec<Row>,
    large: Option<Large>,
}

impl Bench {
    /// Prepares the prompts. With `large`, also prepares the three large pools.
    ///
    /// # Errors
    /// The large pool cannot be allocated.
    pub fn new(large: bool) -> Result<Self, PoolError> {
        let cold = RESIDENT * REQUEST_BLOCKS;
        let warm = REQUESTS * REQUEST_BLOCKS;
        let mut rows = vec![
            Row::new("hit_sha256", warm),
            Row::new("hit_shuffled_sha256", warm),
            Row::new("hit_verified", warm),
            Row::new("cold_sha256", cold),
            Row::new("cold_sha256_no_tokens", cold),
            Row::new("cold_verified", cold),
            Row::new("evicting_sha256", warm),
            Row::new("evicting_verified", warm),
            Row::new("free", warm),
            Row::new("decode_row", BATCH * STEPS),
            Row::new("hit_ones_sha256", ONES_PROMPTS * (PROMPT - 1)),
        ];
        if large {
            rows.push(Row::new("evicting_store_16m", LARGE_STORES * REQUEST_BLOCKS));
        }
        Ok(Self {
            clock: Clock::new(),
            prompts: (0..RESIDENT + REQUESTS).map(|nth| prompt(nth, PROMPT)).collect(),
            ones: (0..ONES_PROMPTS).map(|nth| prompt(nth, PROMPT)).collect(),
            batch: Batch::new((0..BATCH as i64).map(|row| 1_000_000 + row).collect()),
            rows,
            large: if large { Some(Large::new()?) } else { None },
        })
    }

    /// Returns the rows of the report so far.
    #[must_use]
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Runs every variant once, one after the other.
    ///
    /// # Errors
    /// Like the methods of the large pool.
    pub fn round(&mut self) -> Result<(), PoolError> {
        let sha256 = self.pass(Kvpool::sha256(POOL_BLOCKS, BLOCK_SIZE));
        let no_tokens = self.pass(Kvpool::without_tokens(POOL_BLOCKS, BLOCK_SIZE));
        let verified = self.pass(Kvpool::verified(POOL_BLOCKS, BLOCK_SIZE));
        let radix = self.pass(Radix::<BLOCK_SIZE>::new(POOL_BLOCKS));
        let map = self.pass(Map::<BLOCK_SIZE>::new(POOL_BLOCKS));
        let shuffled = [
            self.shuffled(Kvpool::sha256(POOL_BLOCKS, BLOCK_SIZE)),
            self.shuffled(Radix::<BLOCK_SIZE>::new(POOL_BLOCKS)),
            self.shuffled(Map::<BLOCK_SIZE>::new(POOL_BLOCKS)),
        ];
        let ones = [
            self.ones(Kvpool::sha256(ONES_BLOCKS, 1)),
            self.ones(Radix::<1>::new(ONES_BLOCKS)),
            self.ones(Map::<1>::new(ONES_BLOCKS)),
        ];
        let large = self.large.as_mut().map(|large| large.round(&self.clock)).transpose()?;
        for row in &mut self.rows {
            let [kvpool, radix, map] = match row.name {
                "hit_sha256" => [sha256.hit, radix.hit, map.hit],
                "hit_shuffled_sha256" => shuffled,
                "hit_verified" => [verified.hit, radix.hit, map.hit],
                "cold_sha256" => [sha256.cold, radix.cold, map.cold],
                "cold_sha256_no_tokens" => [no_tokens.cold, radix.cold, map.cold],
                "cold_verified" => [verified.cold, radix.cold, map.cold],
                "evicting_sha256" => [sha256.evicting, radix.evicting, map.evicting],
                "evicting_verified" => [verified.evicting, radix.evicting, map.evicting],
                "free" => [sha256.free, radix.free, map.free],
                "decode_row" => [sha256.decode, radix.decode, map.decode],
                "hit_ones_sha256" => ones,
                _ => large.unwrap_or_default(),
            };
            row.add(kvpool, radix, map);
        }
        Ok(())
    }

    /// Runs one variant: cold requests, hits, requests that evict, and decode steps. The pool is full
    /// in the decode steps.
    fn pass(&self, mut manager: impl Manager) -> Times {
        let mut times = Times::default();
        self.warm_up(&mut manager);
        let (resident, more) = self.prompts.split_at(RESIDENT);
        for prompt in resident {
            self.request(&mut manager, prompt, 0, &mut times.cold, &mut 0);
        }
        self.hits(&mut manager, &mut times);
        for prompt in more {
            self.request(&mut manager, prompt, 0, &mut times.evicting, &mut 0);
        }
        self.decode(&mut manager, &mut times.decode);
        times
    }

    /// Writes the memory of all blocks once: fills the pool and then removes the content.
    fn warm_up(&self, manager: &mut impl Manager) {
        let (mut admitted, mut released) = (0, 0);
        for prompt in self.prompts.iter().rev().take(RESIDENT + 1) {
            self.request(manager, prompt, 0, &mut admitted, &mut released);
        }
        manager.reset();
    }

    /// Runs one whole request. The time of admission with hashing and of commit is added to `admitted`,
    /// that of release to `released`.
    fn request(
        &self,
        manager: &mut impl Manager,
        prompt: &[u32],
        cached: usize,
        admitted: &mut u64,
        released: &mut u64,
    ) {
        let hit = self.clock.time(admitted, || {
            let hit = manager.admit(0, prompt);
            manager.commit(0, prompt.len());
            hit
        });
        assert_eq!(hit, Some(cached), "the number of cached blocks");
        self.clock.time(released, || manager.release(0));
    }

    /// Runs hits of cached prompts, in another order than that of their blocks.
    fn hits(&self, manager: &mut impl Manager, times: &mut Times) {
        for nth in 0..REQUESTS {
            let prompt = &self.prompts[nth * 37 % RESIDENT];
            self.request(manager, prompt, REQUEST_BLOCKS, &mut times.hit, &mut times.free);
        }
    }

    /// Runs decode steps of a batch. The lengths of the prompts differ, so that each step completes a
    /// block of one request in sixteen.
    fn decode(&self, manager: &mut impl Manager, total: &mut u64) {
        for (row, &id) in self.batch.ids.iter().enumerate() {
            let first = 1 << 30 | (row as u32) << 10;
            let prompt: Vec<u32> = (first..first + 100 + row as u32 % BLOCK_SIZE as u32).collect();
            assert!(manager.admit(id, &prompt).is_some(), "the pool is too small");
            manager.commit(id, prompt.len());
        }
        for step in 0..STEPS {
            let tokens = [step as u32; BATCH];
            let sufficed = self.clock.time(total, || manager.decode(&self.batch, &tokens));
            assert!(sufficed, "the pool is too small");
        }
    }

    /// Runs hits of prompts whose blocks have ids in random order.
    fn shuffled(&self, mut manager: impl Manager) -> u64 {
        let mut random = Random::new(9);
        let mut ids: Vec<i64> = (1..POOL_BLOCKS as i64).collect();
        for &id in &ids {
            assert!(manager.admit(id, &[id as u32]).is_some(), "the pool is too small");
        }
        for last in (1..ids.len()).rev() {
            ids.swap(last, random.below(last + 1));
        }
        for &id in &ids {
            manager.release(id);
        }
        let mut times = Times::default();
        for prompt in &self.prompts[..RESIDENT] {
            self.request(&mut manager, prompt, 0, &mut times.cold, &mut 0);
        }
        self.hits(&mut manager, &mut times);
        times.hit
    }

    /// Runs hits in a pool whose blocks have one token each.
    fn ones(&self, mut manager: impl Manager) -> u64 {
        let mut hit = 0;
        for prompt in &self.ones {
            self.request(&mut manager, prompt, 0, &mut 0, &mut 0);
        }
        for prompt in &self.ones {
            self.request(&mut manager, prompt, PROMPT - 1, &mut hit, &mut 0);
        }
        hit
    }
}

/// Three full pools of 16 million blocks. The benchmark stores requests in them, without hashing.
#[derive(Debug)]
struct Large {
    pool: kvpool::BlockPool,
    radix: Radix<BLOCK_SIZE>,
    map: Map<BLOCK_SIZE>,
    /// Number of requests that were stored in each large pool so far.
    stored: u64,
}

impl Large {
    fn new() -> Result<Self, PoolError> {
        let mut large = Self {
            pool: pool(LARGE_BLOCKS)?,
            radix: Radix::new(LARGE_BLOCKS),
            map: Map::new(LARGE_BLOCKS),
            stored: 0,
        };
        large.store(&Clock { reading: 0 }, LARGE_BLOCKS / REQUEST_BLOCKS + 1)?;
        Ok(large)
    }

    fn round(&mut self, clock: &Clock) -> Result<[u64; 3], PoolError> {
        self.store(clock, LARGE_STORES)
    }

    /// Stores more requests in each pool, one pool after the other. Returns the times of kvpool, the
    /// radix tree and the map.
    fn store(&mut self, clock: &Clock, requests: usize) -> Result<[u64; 3], PoolError> {
        let mut times = [0; 3];
        let [kvpool, radix, map] = &mut times;
        let stored = self.stored..self.stored + requests as u64;
        self.stored = stored.end;

        let mut table = Vec::with_capacity(REQUEST_BLOCKS);
        for nth in stored.clone() {
            let digests = chain(nth, REQUEST_BLOCKS)?;
            clock.time(kvpool, || store(&mut self.pool, &digests, &mut table))?;
            self.pool.release_table(&table)?;
        }
        // Pass tokens to the radix tree, because it does not use hashes.
        for nth in stored.clone() {
            let tokens = prompt(nth as usize, PROMPT - 1);
            clock.time(radix, || {
                self.radix.admit(0, &tokens);
                self.radix.commit(0, tokens.len());
            });
            self.radix.release(0);
        }
        for nth in stored {
            let mut random = Random::new(nth);
            let hashes = (0..REQUEST_BLOCKS).map(|_| random.word().max(1)).collect();
            clock.time(map, || {
                self.map.admit_hashed(0, hashes, &[]);
                self.map.commit(0, PROMPT - 1);
            });
            self.map.release(0);
        }
        Ok(times)
    }
}
