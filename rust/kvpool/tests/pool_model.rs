//! The whole pool against the reference model: random operations, valid and not, with every result, both orders, the sums,
//! the events and all invariants compared after each.
//!
//! `KVPOOL_MODEL_OPERATIONS` sets how many operations run in all (default 200,000).
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test stops at the first error")]

use std::collections::BTreeSet;
use std::sync::Arc;

use kvpool::{
    BlockHash, BlockHasher, BlockId, BlockPool, ChainLink, DuplicatePolicy, ExtraKeys, HashCursor,
    HasherConfig, Match, PoolConfig, PoolError, Ticket, Verify,
};
use kvpool_observe::{BlockEvent, PoolWatch, Scrubber, WatchConfig};
use kvpool_testing::{Content, ReferencePool, block_ids, indices};
use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence, TestRunner};

const BLOCK_SIZE: usize = 2;

#[derive(Clone, Debug)]
enum Operation {
    Allocate(usize),
    /// Ids drawn from `0..num_blocks + 2`: some are null, unknown or not held.
    Acquire(Vec<usize>),
    Release(Vec<usize>),
    /// Releases what is really held: the `nth` table that the test keeps.
    ReleaseTable(usize),
    ReleaseAfter(usize, u64),
    CompleteStep(u64),
    Fence,
    /// A table until the nth open ticket ends, or until one that is not open.
    ReleaseUntil(usize, usize),
    EndFence(usize),
    Register {
        table: usize,
        prompt: Prompt,
        start: usize,
    },
    RegisterRaw {
        blocks: Vec<usize>,
        prompt: Prompt,
    },
    MarkComputed(Vec<usize>),
    MarkTable(usize),
    Match {
        prompt: Prompt,
        max: usize,
    },
    /// Of at most so many blocks from this one on; it counts as a use, or not.
    Lookup {
        prompt: Prompt,
        run: (usize, usize),
        refresh: bool,
    },
    /// The nth of what lookups found, perhaps long ago.
    AcquireMatch(usize),
    /// What an engine has computed: blocks of a table, as far as the prompt has them; whole tables at times.
    RegisterTable {
        table: usize,
        prompt: Prompt,
        start: usize,
    },
    RegisterTableRaw {
        blocks: Vec<usize>,
        prompt: Prompt,
    },
    /// Free blocks, from the end of the list or any.
    Adopt {
        blocks: Vec<usize>,
        prompt: Prompt,
        start: usize,
    },
    AdoptLast {
        prompt: Prompt,
        start: usize,
    },
    Disown(Vec<usize>),
    DisownTable(usize),
    DropCached(Vec<usize>),
    Evict(usize),
    Reset,
    BumpEpoch,
    Grow,
    /// Counts what changed since the last time.
    Digest,
}

/// Few different prompts, so that prefixes are shared.
#[derive(Clone, Debug)]
struct Prompt {
    salt: Vec<u8>,
    tokens: Vec<u32>,
}

fn prompt() -> impl Strategy<Value = Prompt> {
    let salt = prop_oneof![9 => Just(vec![]), 1 => Just(b"s".to_vec())];
    let token = prop_oneof![7 => Just(0u32), 1 => Just(1u32)];
    (salt, prop::collection::vec(token, 0..9)).prop_map(|(salt, tokens)| Prompt { salt, tokens })
}

fn operation() -> impl Strategy<Value = Operation> {
    let ids = || prop::collection::vec(0usize..16, 0..5);
    prop_oneof![
        6 => (0usize..6).prop_map(Operation::Allocate),
        1 => ids().prop_map(Operation::Acquire),
        2 => ids().prop_map(Operation::Release),
        6 => (0usize..8).prop_map(Operation::ReleaseTable),
        3 => (0usize..8, 0u64..12).prop_map(|(table, step)| Operation::ReleaseAfter(table, step)),
        2 => (0u64..12).prop_map(Operation::CompleteStep),
        1 => Just(Operation::Fence),
        3 => (0usize..8, 0usize..4).prop_map(|(table, nth)| Operation::ReleaseUntil(table, nth)),
        2 => (0usize..4).prop_map(Operation::EndFence),
        8 => (0usize..8, prompt(), prop_oneof![4 => Just(0usize), 1 => Just(1usize)]).prop_map(|(table, prompt, start)| Operation::Register { table, prompt, start }),
        1 => (ids(), prompt()).prop_map(|(blocks, prompt)| Operation::RegisterRaw { blocks, prompt }),
        2 => ids().prop_map(Operation::MarkComputed),
        8 => (0usize..8).prop_map(Operation::MarkTable),
        8 => (prompt(), 0usize..5).prop_map(|(prompt, max)| Operation::Match { prompt, max }),
        4 => (prompt(), (0usize..3, 0usize..5), any::<bool>()).prop_map(|(prompt, run, refresh)| Operation::Lookup { prompt, run, refresh }),
        4 => (0usize..8).prop_map(Operation::AcquireMatch),
        5 => (0usize..8, prompt(), 0usize..2).prop_map(|(table, prompt, start)| Operation::RegisterTable { table, prompt, start }),
        1 => (ids(), prompt()).prop_map(|(blocks, prompt)| Operation::RegisterTableRaw { blocks, prompt }),
        1 => (ids(), prompt(), 0usize..2).prop_map(|(blocks, prompt, start)| Operation::Adopt { blocks, prompt, start }),
        4 => (prompt(), 0usize..2).prop_map(|(prompt, start)| Operation::AdoptLast { prompt, start }),
        1 => ids().prop_map(Operation::Disown),
        1 => (0usize..8).prop_map(Operation::DisownTable),
        1 => ids().prop_map(Operation::DropCached),
        1 => (0usize..4).prop_map(Operation::Evict),
        1 => Just(Operation::Reset),
        1 => Just(Operation::BumpEpoch),
        1 => Just(Operation::Grow),
        4 => Just(Operation::Digest),
    ]
}

/// The core, the model, and the tables that the test holds in both.
struct Pair {
    pool: BlockPool,
    scrubber: Scrubber,
    model: ReferencePool,
    hasher: Arc<BlockHasher>,
    tables: Vec<Vec<usize>>,
    /// What lookups found, and what the blocks held.
    found: Vec<(Match, Vec<Content>)>,
    matchable: BTreeSet<BlockHash>,
}

impl Pair {
    fn new(num_blocks: usize, verify: Verify, duplicates: DuplicatePolicy) -> Self {
        let hasher =
            BlockHasher::new(HasherConfig { block_size: BLOCK_SIZE, verify, ..Default::default() }).unwrap();
        let config =
            PoolConfig { num_blocks, block_size: BLOCK_SIZE, verify, duplicates, ..Default::default() };
        let watch =
            WatchConfig { event_capacity: 1000, digest: true, advisor: None, ..WatchConfig::default() };
        Self {
            pool: BlockPool::new(config).unwrap().watched(&watch).unwrap(),
            scrubber: Scrubber::default(),
            model: ReferencePool::new(num_blocks, BLOCK_SIZE, duplicates == DuplicatePolicy::DropOnRelease),
            hasher: Arc::new(hasher),
            tables: Vec::new(),
            found: Vec::new(),
            matchable: BTreeSet::new(),
        }
    }

    fn cursor(&self, prompt: &Prompt) -> HashCursor {
        let salt = (!prompt.salt.is_empty()).then(|| prompt.salt.clone().into_boxed_slice());
        let extra = ExtraKeys { salt, epoch: self.pool.epoch(), ..Default::default() };
        let mut cursor = HashCursor::new(self.hasher.clone(), extra).unwrap();
        cursor.append(&prompt.tokens);
        cursor
    }

    fn table(&self, nth: usize) -> Vec<usize> {
        if self.tables.is_empty() { Vec::new() } else { self.tables[nth % self.tables.len()].clone() }
    }

    fn apply(&mut self, operation: &Operation) {
        let before = (self.pool.free_order(), self.pool.eviction_order(), self.pool.stats());
        let succeeded = self.run(operation);
        if !succeeded {
            let after = (self.pool.free_order(), self.pool.eviction_order(), self.pool.stats());
            assert_eq!(before, after, "a failed {operation:?} changed the pool");
        }
        self.check(operation);
    }

    /// Runs the operation on both, and says whether it succeeded (in both, or in neither).
    fn run(&mut self, operation: &Operation) -> bool {
        match operation {
            Operation::Allocate(n) => {
                let got = self.pool.allocate(*n).ok().map(|blocks| indices(&blocks));
                assert_eq!(got, self.model.allocate(*n));
                self.tables.extend(got.clone().filter(|table| !table.is_empty()));
                got.is_some()
            }
            Operation::Acquire(ids) => {
                let done = self.pool.acquire(&block_ids(ids)).is_ok();
                assert_eq!(done, self.model.acquire(ids));
                if done && !ids.is_empty() {
                    self.tables.push(ids.clone());
                }
                done
            }
            Operation::Release(ids) => {
                // Ids that the test holds through tables may be released here: forget those tables first.
                let done = self.pool.release(&block_ids(ids)).is_ok();
                assert_eq!(done, self.model.release(ids));
                if done {
                    self.tables.retain(|table| table.iter().all(|b| !ids.contains(b)));
                }
                done
            }
            Operation::ReleaseTable(nth) => {
                let table = self.table(*nth);
                let done = self.pool.release_table(&block_ids(&table)).is_ok();
                let tail_first: Vec<_> = table.iter().rev().copied().collect();
                assert_eq!(done, self.model.release(&tail_first));
                self.forget_table(*nth);
                done
            }
            Operation::ReleaseAfter(nth, step) => {
                let table = self.table(*nth);
                let done = self.pool.release_after(&block_ids(&table), *step).is_ok();
                assert_eq!(done, self.model.release_after(&table, *step));
                self.forget_table(*nth);
                done
            }
            Operation::CompleteStep(step) => {
                self.pool.complete_step(*step).unwrap();
                self.model.complete_step(*step);
                true
            }
            Operation::Fence => {
                assert_eq!(self.pool.fence().unwrap().get(), self.model.fence());
                true
            }
            Operation::ReleaseUntil(nth, ticket) => {
                let (table, ticket) = (self.table(*nth), self.ticket(*ticket));
                let done = self.pool.release_until(&block_ids(&table), Ticket::new(ticket)).is_ok();
                assert_eq!(done, self.model.release_until(&table, ticket));
                if done {
                    self.forget_table(*nth);
                }
                done
            }
            Operation::EndFence(nth) => {
                let ticket = self.ticket(*nth);
                let ended = self.pool.end_fence(Ticket::new(ticket)).ok();
                assert_eq!(ended, self.model.end_fence(ticket));
                ended.is_some()
            }
            Operation::Register { table, prompt, start } => {
                let table = self.table(*table);
                let fits = (prompt.tokens.len() / BLOCK_SIZE).saturating_sub(*start).min(table.len());
                self.register(&table[..fits], prompt, *start)
            }
            Operation::RegisterRaw { blocks, prompt } => self.register(blocks, prompt, 0),
            Operation::MarkComputed(ids) => {
                let done = self.pool.mark_computed(&block_ids(ids)).is_ok();
                assert_eq!(done, self.model.mark_computed(ids));
                done
            }
            Operation::MarkTable(nth) => {
                let table = self.table(*nth);
                let done = self.pool.mark_computed(&block_ids(&table)).is_ok();
                assert_eq!(done, self.model.mark_computed(&table));
                done
            }
            Operation::Match { prompt, max } => {
                let cursor = self.cursor(prompt);
                let probe = self.pool.probe(cursor.chain(), *max).unwrap();
                let expected = self.model.lookup(&prompt.salt, &prompt.tokens, *max, false);
                assert_eq!(probe.cached_blocks, expected.len());
                let got = indices(&self.pool.match_and_acquire(cursor.chain(), *max).unwrap());
                assert_eq!(got, self.model.lookup(&prompt.salt, &prompt.tokens, *max, true));
                self.tables.extend(Some(got).filter(|table| !table.is_empty()));
                true
            }
            Operation::Lookup { prompt, run: run @ (start, most), refresh } => {
                let cursor = self.cursor(prompt);
                let chain = cursor.chain();
                let stats = self.pool.stats();
                let found = match refresh {
                    true => self.pool.lookup_refreshing(chain, *start, *most).unwrap(),
                    false => self.pool.lookup(chain, *start, *most).unwrap(),
                };
                let expected = self.model.find_run(&prompt.salt, &prompt.tokens, *run, *refresh);
                assert_eq!((found.start(), indices(found.blocks())), (*start, expected.clone()));
                assert_eq!(
                    found.hashes(),
                    chain.hashes().get(*start..).map_or(&[][..], |all| &all[..found.len()])
                );
                let last = found.hashes().last().copied();
                assert_eq!(found.link().map(ChainLink::hash), last);
                assert_eq!(self.pool.stats().hits, stats.hits);
                let contents = (*start..*start + found.len())
                    .map(|position| self.model.content(&prompt.salt, &prompt.tokens, position));
                self.found.push((found, contents.collect()));
                if self.found.len() > 8 {
                    self.found.remove(0);
                }
                true
            }
            Operation::AcquireMatch(nth) => {
                let Some((found, contents)) = self.found.get(nth % self.found.len().max(1)) else {
                    return true;
                };
                let hits = self.pool.stats().hits;
                let got = self.pool.acquire_match(found);
                let blocks = indices(found.blocks());
                assert_eq!(got.is_ok(), self.model.acquire_match(&blocks, contents));
                if got.is_ok() {
                    assert_eq!(self.pool.stats().hits - hits, blocks.len() as u64);
                    self.tables.extend(Some(blocks).filter(|table| !table.is_empty()));
                } else {
                    assert!(matches!(got, Err(PoolError::StaleMatch { .. })), "{got:?}");
                }
                got.is_ok()
            }
            Operation::RegisterTable { table, prompt, start } => {
                let nth = *table;
                let mut table = self.table(nth);
                let fits = (prompt.tokens.len() / BLOCK_SIZE).saturating_sub(*start).min(table.len());
                let Some(changes) = self.register_table(&table[..fits], prompt, *start) else { return false };
                for (at, block) in changes {
                    table[at] = block;
                }
                if !table.is_empty() {
                    let at = nth % self.tables.len();
                    self.tables[at] = table;
                }
                true
            }
            Operation::RegisterTableRaw { blocks, prompt } => {
                let done = self.register_table(blocks, prompt, 0);
                // Tables that may have lost a reference are nobody's now.
                if done.as_ref().is_some_and(|changes| !changes.is_empty()) {
                    self.tables.retain(|table| table.iter().all(|b| !blocks.contains(b)));
                }
                done.is_some()
            }
            Operation::Adopt { blocks, prompt, start } => self.adopt(blocks, prompt, *start),
            Operation::AdoptLast { prompt, start } => {
                let fits = (prompt.tokens.len() / BLOCK_SIZE).saturating_sub(*start);
                let blocks: Vec<_> = self.model.free.iter().rev().take(fits).copied().collect();
                self.adopt(&blocks, prompt, *start)
            }
            Operation::Disown(ids) => self.disown(ids),
            Operation::DisownTable(nth) => self.disown(&self.table(*nth)),
            Operation::Evict(n) => {
                let evicted = self.pool.stats().evicted;
                let victims = indices(&self.pool.evict(*n).unwrap());
                assert_eq!(victims, self.model.evict(*n));
                assert_eq!(self.pool.stats().evicted - evicted, victims.len() as u64);
                true
            }
            Operation::DropCached(ids) => {
                let valid = ids.iter().all(|&b| b > 0 && b < self.pool.num_blocks());
                assert_eq!(self.pool.drop_cached(&block_ids(ids)).is_ok(), valid);
                if valid {
                    self.model.drop_cached(ids);
                }
                valid
            }
            Operation::Reset => {
                let done = self.pool.reset().is_ok();
                assert_eq!(done, self.model.reset());
                done
            }
            Operation::BumpEpoch => {
                self.pool.bump_epoch().unwrap();
                self.model.bump_epoch();
                true
            }
            Operation::Digest => {
                self.scrubber.scrub(&mut self.pool, 3).unwrap();
                let digest = self.pool.state_digest();
                assert_eq!(digest, Some(self.pool.state_digest_from_scratch()));
                true
            }
            Operation::Grow => {
                let larger = self.pool.num_blocks() + 1;
                let allowed = larger <= 15;
                if allowed {
                    self.pool.resize(larger).unwrap();
                    self.model.resize(larger);
                } else {
                    assert!(self.pool.resize(larger - 2).is_err());
                }
                allowed
            }
        }
    }

    fn register(&mut self, blocks: &[usize], prompt: &Prompt, start: usize) -> bool {
        let chain = self.cursor(prompt);
        let done = self.pool.register(&block_ids(blocks), chain.chain(), start).is_ok();
        assert_eq!(done, self.model.register(blocks, &prompt.salt, &prompt.tokens, start));
        done
    }

    fn register_table(
        &mut self,
        blocks: &[usize],
        prompt: &Prompt,
        start: usize,
    ) -> Option<Vec<(usize, usize)>> {
        let cursor = self.cursor(prompt);
        let got = self.pool.register_table(&block_ids(blocks), cursor.chain(), start).ok();
        let got = got.map(|changes| plain(&changes));
        assert_eq!(got, self.model.register_table(blocks, &prompt.salt, &prompt.tokens, start));
        got
    }

    fn adopt(&mut self, blocks: &[usize], prompt: &Prompt, start: usize) -> bool {
        let cursor = self.cursor(prompt);
        let got = self.pool.adopt(&block_ids(blocks), cursor.chain(), start).ok();
        let got = got.map(|changes| plain(&changes));
        assert_eq!(got, self.model.adopt(blocks, &prompt.salt, &prompt.tokens, start));
        let Some(changes) = got else { return false };
        let mut table = blocks.to_vec();
        for (at, block) in changes {
            table[at] = block;
        }
        self.tables.extend(Some(table).filter(|table| !table.is_empty()));
        true
    }

    fn disown(&mut self, blocks: &[usize]) -> bool {
        let done = self.pool.disown(&block_ids(blocks)).is_ok();
        assert_eq!(done, self.model.disown(blocks));
        if done {
            self.tables.retain(|table| table.iter().all(|b| !blocks.contains(b)));
        }
        done
    }

    /// The nth open ticket, or one that is not open.
    fn ticket(&self, nth: usize) -> u64 {
        let open = self.model.open_tickets();
        open.get(nth).copied().unwrap_or_else(|| open.first().map_or(7, |first| first.wrapping_sub(1)))
    }

    fn forget_table(&mut self, nth: usize) {
        if !self.tables.is_empty() {
            let at = nth % self.tables.len();
            self.tables.remove(at);
        }
    }

    fn check(&mut self, operation: &Operation) {
        self.pool.check_invariants().unwrap_or_else(|violation| panic!("{violation} after {operation:?}"));
        assert_eq!(indices(&self.pool.free_order()), self.model.free, "free order after {operation:?}");
        assert_eq!(
            indices(&self.pool.eviction_order()),
            self.model.evictable,
            "eviction order after {operation:?}"
        );
        let stats = self.pool.stats();
        assert_eq!((stats.free, stats.cached_free, stats.active, stats.fenced), self.model.sums());
        assert_eq!((stats.registered, stats.registered_active), self.model.registered());
        // Which copy hits, and which one after it.
        for block in 1..self.pool.num_blocks() {
            let hash = self.pool.hash_of(block_ids(&[block])[0]);
            let copies = hash.map_or_else(Vec::new, |hash| indices(&self.pool.copies(&hash)));
            assert_eq!(copies, self.model.copies_of(block), "of block {block}, after {operation:?}");
        }
        // Property 13: events replayed into a set are the matchable hashes.
        let batch = self.pool.take_events();
        assert_eq!(batch.dropped, 0);
        for event in batch.events {
            match event {
                BlockEvent::Stored { hash, .. } => assert!(self.matchable.insert(hash), "stored twice"),
                BlockEvent::Removed { hash, .. } => {
                    assert!(self.matchable.remove(&hash), "removed, not stored");
                }
                _ => self.matchable.clear(),
            }
        }
        let live: BTreeSet<_> = (1..self.pool.num_blocks())
            .map(|b| block_ids(&[b])[0])
            .filter(|&b| self.pool.is_computed(b))
            .filter_map(|b| self.pool.hash_of(b))
            .collect();
        assert_eq!(live, self.matchable, "events after {operation:?}");
    }
}

fn plain(changes: &[(usize, BlockId)]) -> Vec<(usize, usize)> {
    changes.iter().map(|&(at, block)| (at, block.index())).collect()
}

fn operations_in_all() -> u32 {
    std::env::var("KVPOOL_MODEL_OPERATIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(200_000)
}

#[test]
fn pool_equals_the_reference_model() {
    const LENGTH: u32 = 100;
    let cases = operations_in_all().div_ceil(LENGTH);
    let mut runner = TestRunner::new(Config {
        cases,
        source_file: Some(file!()),
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..Config::default()
    });
    let setting = (
        3usize..14,
        prop_oneof![Just(Verify::None), Just(Verify::Fingerprint), Just(Verify::Tokens)],
        prop_oneof![Just(DuplicatePolicy::Keep), Just(DuplicatePolicy::DropOnRelease)],
        prop::collection::vec(operation(), LENGTH as usize),
    );
    let result = runner.run(&setting, |(num_blocks, verify, duplicates, operations)| {
        let mut pair = Pair::new(num_blocks, verify, duplicates);
        for operation in &operations {
            pair.apply(operation);
        }
        Ok(())
    });
    result.unwrap_or_else(|failure| panic!("{failure}"));
}
