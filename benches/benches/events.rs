//! Measures the cost of KV events in two places. One is the scheduler's step: the pool's per-block
//! operations with a feed (the log of changes that the publisher reads). The other is the publisher,
//! which encodes the feed in a separate thread.
//!
//! Limits: with events, storing a block costs a step at most 25 ns more (`store_fed` less `store`), and
//! so does evicting one (`churn_fed` less `churn`). `publish` is the publisher's complete work per
//! stored and removed block: its state, the changes, and the bytes. `encode` is the time for the bytes
//! alone.
#![expect(clippy::unwrap_used, reason = "a bench stops at the first error")]

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kvpool::{BlockHasher, BlockId, BlockPool, ExtraKeys, HashChain, HashCursor, HasherConfig, PoolError};
use kvpool_benches::{REQUEST_BLOCKS, pool, store, time};
use kvpool_observe::publish::{
    Digest, Event, Form, Group, GroupName, Label, Publisher, SinkConfig, base, encode,
};
use kvpool_observe::{FeedBatch, PoolWatch};

const SIZES: [usize; 2] = [1 << 14, 1 << 17];
const TOKENS: usize = 16;

/// Returns prompts with token ids like those of real vocabularies. Most ids need five bytes.
fn chains(count: usize) -> Vec<HashChain> {
    let hasher = Arc::new(BlockHasher::new(HasherConfig::default()).unwrap());
    let mut token = 1_u32;
    let mut next = || {
        token = token.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (token >> 8) % 128_000
    };
    let chain = |_| {
        let prompt: Vec<u32> = (0..REQUEST_BLOCKS * TOKENS).map(|_| next()).collect();
        let mut cursor = HashCursor::new(hasher.clone(), ExtraKeys::default()).unwrap();
        cursor.append(&prompt);
        cursor.chain().clone()
    };
    (0..count).map(chain).collect()
}

struct State {
    pool: BlockPool,
    chains: Vec<HashChain>,
    turn: usize,
    table: Vec<BlockId>,
    batch: FeedBatch,
}

impl State {
    fn new(num_blocks: usize, fed: bool) -> Self {
        let mut pool = pool(num_blocks).unwrap();
        if fed {
            pool.keep_feed(1 << 22).unwrap();
        }
        // Use twice the number of prompts that fit into the pool, so that each prompt has been evicted
        // when it is used again.
        let chains = chains(2 * num_blocks / REQUEST_BLOCKS);
        Self { pool, chains, turn: 0, table: Vec::new(), batch: FeedBatch::default() }
    }

    fn store(&mut self) -> Result<(), PoolError> {
        self.turn = (self.turn + 1) % self.chains.len();
        store(&mut self.pool, &self.chains[self.turn], &mut self.table)
    }

    fn release(&mut self) -> Result<(), PoolError> {
        self.pool.release_table(&self.table)?;
        self.pool.take_feed(&mut self.batch);
        Ok(())
    }

    fn forget(&mut self) -> Result<(), PoolError> {
        self.pool.drop_cached(&self.table)?;
        self.release()
    }
}

fn steps(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("events");
    group.throughput(Throughput::Elements(REQUEST_BLOCKS as u64));
    for size in SIZES {
        for fed in [false, true] {
            let id = |name: &str| BenchmarkId::new(format!("{name}{}", if fed { "_fed" } else { "" }), size);
            let mut state = State::new(size, fed);
            group.bench_function(id("store"), |bencher| {
                bencher.iter_custom(|n| time(n, &mut state, State::store, State::forget).unwrap());
            });
            for _ in 0..state.chains.len() {
                state.store().unwrap();
                state.release().unwrap();
            }
            group.bench_function(id("churn"), |bencher| {
                bencher.iter_custom(|n| time(n, &mut state, State::store, State::release).unwrap());
            });
        }
    }
    group.finish();
}

fn publisher(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("events");
    group.throughput(Throughput::Elements(REQUEST_BLOCKS as u64));
    for size in SIZES {
        let mut state = State::new(size, true);
        let mut publisher = Publisher::new(vec![Group::full(TOKENS)], 0, base(1)).unwrap();
        publisher.add(SinkConfig { replay_batches: 100, ..SinkConfig::default() });
        for _ in 0..state.chains.len() {
            state.store().unwrap();
            state.release().unwrap();
            publisher.take_in(0, &state.batch);
            publisher.flush(0.0, 1e9);
        }
        state.store().unwrap();
        state.release().unwrap();
        group.bench_function(BenchmarkId::new("publish", size), |bencher| {
            bencher.iter_custom(|n| {
                let mut both = (&mut state, &mut publisher);
                let turn = |(state, publisher): &mut (&mut State, &mut Publisher)| {
                    publisher.take_in(0, &state.batch);
                    black_box(publisher.flush(0.0, 1e9));
                    Ok::<_, PoolError>(())
                };
                let next = |(state, _): &mut (&mut State, &mut Publisher)| {
                    state.store()?;
                    state.release()
                };
                time(n, &mut both, turn, next).unwrap()
            });
        });
    }
    let chain = chains(1).remove(0);
    let digests: Vec<_> = chain.hashes().iter().map(|&hash| Digest::new(hash, 32)).collect();
    let (name, label) = (GroupName::default(), Label::default());
    let event = [Event::Stored {
        tier: 0,
        group: &name,
        hashes: &digests,
        parent: None,
        tokens: chain.tokens(),
        block_tokens: TOKENS,
        label: &label,
        extra: &[],
    }];
    for (form, of) in Form::NAMES {
        group.bench_function(BenchmarkId::new("encode", form), |bencher| {
            bencher.iter(|| encode(of, 0.0, 0, black_box(&event)));
        });
    }
    group.finish();
}

criterion_group!(benches, steps, publisher);
criterion_main!(benches);
