//! `BlockPool` against the reference model: every result, both orders, the sums, the events and all invariants.
//!
//! The model knows LRU's order. Under any other policy, and with hints, it takes the pool's own order before each operation,
//! after a check that it has the same blocks: which block goes first is the policy's affair then, everything else the model's.
//! Where holders hold whole prefixes, no lookup may miss a cached block for want of what is before it, whatever the policy.

mod operation;

use std::collections::BTreeMap;
use std::sync::Arc;

use kvpool::retention::{Keep, Priority, Retention, RetentionConfig, TenantId, TenantLimits, Then, Ttl};
use kvpool::{
    BlockHash, BlockHasher, BlockId, BlockPool, ChainLink, DuplicatePolicy, ExtraKeys, HashCursor,
    HasherConfig, Match, PoolConfig, PoolStats, Ticket,
};
use kvpool_observe::{BlockEvent, PoolWatch, Scrubber, WatchConfig};
use kvpool_testing::{Content, ReferencePool, block_ids, indices};
pub use operation::{Operation, Prompt, Setting};

use crate::case::{Failure, Machine, Script, holds, same};
use crate::text;

const BLOCK_SIZE: usize = 2;
const MOST_BLOCKS: usize = 15;
/// Steps from this one on stand for tickets.
const TICKETS: u64 = 10;

/// The pool, the model, and the tables that are held in both.
#[derive(Debug)]
pub struct Pool {
    setting: Setting,
    pool: BlockPool,
    scrubber: Scrubber,
    model: ReferencePool,
    hasher: Arc<BlockHasher>,
    tables: Vec<Vec<usize>>,
    found: Vec<Found>,
    /// By the events: the hashes that can be matched, with their parents.
    matchable: BTreeMap<BlockHash, Option<BlockHash>>,
    now: f64,
}

/// What a lookup found, what the blocks held, and the expression of its chain.
#[derive(Debug)]
struct Found {
    found: Match,
    contents: Vec<Content>,
    chain: String,
}

/// Everything that a refused call must not change.
type Observed = (Vec<usize>, Vec<usize>, PoolStats);

impl Pool {
    fn extra(&self, salt: &[u8]) -> ExtraKeys {
        let salt = (!salt.is_empty()).then(|| salt.to_vec().into_boxed_slice());
        ExtraKeys { salt, epoch: self.pool.epoch(), ..Default::default() }
    }

    fn cursor(&self, prompt: &Prompt) -> Result<HashCursor, Failure> {
        let cursor = HashCursor::new(Arc::clone(&self.hasher), self.extra(&prompt.salt));
        let mut cursor = cursor.map_err(|error| Failure::new("hashing", error.to_string()))?;
        cursor.append(&prompt.tokens);
        Ok(cursor)
    }

    /// The expression of a prompt's chain.
    fn chain(&self, prompt: &Prompt) -> String {
        let epoch = self.pool.epoch();
        format!("&chain({}, &{:?}, {epoch})", text::salt(&prompt.salt), prompt.tokens)
    }

    fn observe(&self) -> Observed {
        (indices(&self.pool.free_order()), indices(&self.pool.eviction_order()), self.pool.stats())
    }

    fn table(&self, nth: usize) -> Vec<usize> {
        if self.tables.is_empty() { Vec::new() } else { self.tables[nth % self.tables.len()].clone() }
    }

    fn take_table(&mut self, nth: usize) -> Vec<usize> {
        if self.tables.is_empty() { Vec::new() } else { self.tables.remove(nth % self.tables.len()) }
    }

    fn keep_table(&mut self, table: Vec<usize>) {
        if !table.is_empty() && self.tables.len() < 12 {
            self.tables.push(table);
        }
    }

    fn allocate(&mut self, n: usize, script: &mut Script) -> Result<Option<Vec<usize>>, Failure> {
        let expected = self.model.allocate(n);
        script.line(|| {
            if !self.setting.is_lru() {
                // Who is evicted is the policy's choice: what it chose here may be what is wrong.
                return text::outcome(&format!("pool.allocate({n})"), expected.is_some());
            }
            let expected = text::option(expected.as_ref());
            format!("assert_eq!(pool.allocate({n}).ok().map(|blocks| indices(&blocks)), {expected});")
        });
        let found = self.pool.allocate(n).ok().map(|blocks| indices(&blocks));
        same("blocks of allocate", &found, &expected)?;
        Ok(found)
    }

    fn look_up(&mut self, prompt: &Prompt, most: usize, script: &mut Script) -> Result<Vec<usize>, Failure> {
        let cursor = self.cursor(prompt)?;
        let expected = self.model.lookup(&prompt.salt, &prompt.tokens, most, false);
        let probe = self.pool.probe(cursor.chain(), most);
        same("blocks that a probe finds", &probe.map(|probe| probe.cached_blocks), &Ok(expected.len()))?;
        script.line(|| {
            let (chain, expected) = (self.chain(prompt), text::list(&expected));
            format!("assert_eq!(indices(&pool.match_and_acquire({chain}, {most}).unwrap()), {expected});")
        });
        self.model.lookup(&prompt.salt, &prompt.tokens, most, true);
        let found = self.pool.match_and_acquire(cursor.chain(), most).map(|blocks| indices(&blocks));
        same("blocks of match_and_acquire", &found, &Ok(expected.clone()))?;
        Ok(expected)
    }

    fn register(
        &mut self,
        blocks: &[usize],
        prompt: &Prompt,
        start: usize,
        script: &mut Script,
    ) -> Result<bool, Failure> {
        let cursor = self.cursor(prompt)?;
        let expected = self.model.register(blocks, &prompt.salt, &prompt.tokens, start);
        script.line(|| {
            let chain = self.chain(prompt);
            text::outcome(&format!("pool.register(&block_ids(&{blocks:?}), {chain}, {start})"), expected)
        });
        let found = self.pool.register(&block_ids(blocks), cursor.chain(), start);
        same("outcome of register", &found.is_ok(), &expected)?;
        holds("collision", !found.is_ok_and(|done| done.collided), || "of equal contents".into())?;
        Ok(expected)
    }

    fn mark(&mut self, blocks: &[usize], script: &mut Script) -> Result<bool, Failure> {
        let expected = self.model.mark_computed(blocks);
        script.line(|| text::outcome(&format!("pool.mark_computed(&block_ids(&{blocks:?}))"), expected));
        let found = self.pool.mark_computed(&block_ids(blocks)).is_ok();
        same("outcome of mark_computed", &found, &expected)?;
        Ok(expected)
    }

    fn release(&mut self, blocks: &[usize], script: &mut Script) -> Result<bool, Failure> {
        let expected = self.model.release(blocks);
        script.line(|| text::outcome(&format!("pool.release(&block_ids(&{blocks:?}))"), expected));
        same("outcome of release", &self.pool.release(&block_ids(blocks)).is_ok(), &expected)?;
        Ok(expected)
    }

    fn release_table(&mut self, nth: usize, script: &mut Script) -> Result<bool, Failure> {
        let table = self.take_table(nth);
        let tail_first: Vec<_> = table.iter().rev().copied().collect();
        let expected = self.model.release(&tail_first);
        script.line(|| text::outcome(&format!("pool.release_table(&block_ids(&{table:?}))"), expected));
        same("outcome of release", &self.pool.release_table(&block_ids(&table)).is_ok(), &expected)?;
        Ok(expected)
    }

    fn acquire(&mut self, blocks: &[usize], script: &mut Script) -> Result<bool, Failure> {
        let expected = self.model.acquire(blocks);
        script.line(|| text::outcome(&format!("pool.acquire(&block_ids(&{blocks:?}))"), expected));
        same("outcome of acquire", &self.pool.acquire(&block_ids(blocks)).is_ok(), &expected)?;
        if expected {
            self.keep_table(blocks.to_vec());
        }
        Ok(expected)
    }

    /// A request up to its registered blocks: those that are not computed; `None` if they do not fit.
    fn begin(&mut self, prompt: &Prompt, script: &mut Script) -> Result<Option<Vec<usize>>, Failure> {
        let full = prompt.tokens.len() / BLOCK_SIZE;
        let mut table = self.look_up(prompt, full, script)?;
        let start = table.len();
        if !self.setting.is_lru() {
            self.follow()?; // what the lookup took is out of the order
        }
        let new = self.allocate(full - start, script)?;
        if let Some(new) = &new {
            self.register(new, prompt, start, script)?;
            table.extend(new);
            self.tables.push(table);
        } else {
            table.reverse();
            self.release(&table, script)?;
        }
        Ok(new)
    }

    fn promote(
        &mut self,
        nth: usize,
        at: usize,
        prompt: &Prompt,
        script: &mut Script,
    ) -> Result<bool, Failure> {
        let mut table = self.take_table(nth);
        let last = (prompt.tokens.len() / BLOCK_SIZE).checked_sub(1);
        let (Some(last), false) = (last, table.is_empty()) else {
            self.keep_table(table);
            return Ok(true);
        };
        let slot = at % table.len();
        let expected = self.model.promote(table[slot], &prompt.salt, &prompt.tokens, last);
        script.line(|| {
            let (salt, epoch) = (text::salt(&prompt.salt), self.pool.epoch());
            let tokens = &prompt.tokens[..(last + 1) * BLOCK_SIZE];
            format!(
                "assert_eq!(pool.register_link(BlockId::new({}), &link({salt}, &{tokens:?}, {epoch})).ok().map(BlockId::index), {expected:?});",
                table[slot]
            )
        });
        let mut link: Option<ChainLink> = None;
        for tokens in prompt.tokens.chunks_exact(BLOCK_SIZE) {
            let next = ChainLink::new(&self.hasher, link.as_ref(), tokens, &self.extra(&prompt.salt));
            link = Some(next.map_err(|error| Failure::new("hashing", error.to_string()))?);
        }
        let Some(link) = link else { return Ok(true) };
        let found = self.pool.register_link(block_ids(&[table[slot]])[0], &link).ok().map(BlockId::index);
        same("block of promote", &found, &expected)?;
        if let Some(held) = found {
            table[slot] = held;
        }
        self.keep_table(table);
        Ok(found.is_some())
    }

    fn weak_lookup(
        &mut self,
        prompt: &Prompt,
        run @ (start, most): (usize, usize),
        refresh: bool,
        script: &mut Script,
    ) -> Result<bool, Failure> {
        let cursor = self.cursor(prompt)?;
        let call = if refresh { "lookup_refreshing" } else { "lookup" };
        let expected = self.model.find_run(&prompt.salt, &prompt.tokens, run, refresh);
        let chain = self.chain(prompt);
        script.line(|| {
            let expected = text::list(&expected);
            format!(
                "assert_eq!(indices(pool.{call}({chain}, {start}, {most}).unwrap().blocks()), {expected});"
            )
        });
        let before = self.observe();
        let found = match refresh {
            true => self.pool.lookup_refreshing(cursor.chain(), start, most),
            false => self.pool.lookup(cursor.chain(), start, most),
        };
        let found = found.map_err(|error| Failure::new(call, error.to_string()))?;
        same("blocks of a lookup", &indices(found.blocks()), &expected)?;
        if !refresh {
            same("what a lookup left", &self.observe(), &before)?;
        }
        let positions = start..start + expected.len();
        let content = |position| self.model.content(&prompt.salt, &prompt.tokens, position);
        let contents = positions.map(content).collect();
        self.found.truncate(7);
        self.found.insert(0, Found { found, contents, chain });
        Ok(true)
    }

    fn acquire_match(&mut self, nth: usize, script: &mut Script) -> Result<bool, Failure> {
        let Some(Found { found, contents, chain }) = self.found.get(nth % self.found.len().max(1)) else {
            return Ok(true);
        };
        let blocks = indices(found.blocks());
        let expected = self.model.acquire_match(&blocks, contents);
        script.line(|| {
            let start = found.start();
            let found = format!("Match::new({chain}, {start}, &block_ids(&{blocks:?})).unwrap()");
            text::outcome(&format!("pool.acquire_match(&{found})"), expected)
        });
        same("outcome of acquire_match", &self.pool.acquire_match(found).is_ok(), &expected)?;
        if expected {
            self.keep_table(blocks);
        }
        Ok(expected)
    }

    /// Registers or adopts blocks; returns what the caller holds then.
    fn enter(
        &mut self,
        call: &str,
        blocks: &[usize],
        prompt: &Prompt,
        start: usize,
        script: &mut Script,
    ) -> Result<Option<Vec<usize>>, Failure> {
        let cursor = self.cursor(prompt)?;
        let (salt, tokens, ids) = (&prompt.salt, &prompt.tokens, block_ids(blocks));
        let adopts = call == "adopt";
        let expected = match adopts {
            true => self.model.adopt(blocks, salt, tokens, start),
            false => self.model.register_table(blocks, salt, tokens, start),
        };
        script.line(|| {
            let call = format!("pool.{call}(&block_ids(&{blocks:?}), {}, {start})", self.chain(prompt));
            text::outcome(&call, expected.is_some())
        });
        let found = match adopts {
            true => self.pool.adopt(&ids, cursor.chain(), start),
            false => self.pool.register_table(&ids, cursor.chain(), start),
        };
        let plain = |&(at, block): &(usize, BlockId)| (at, block.index());
        let found = found.ok().map(|changes| changes.iter().map(plain).collect::<Vec<_>>());
        same("changes of a table", &found, &expected)?;
        Ok(found.map(|changes| {
            let mut table = blocks.to_vec();
            changes.into_iter().for_each(|(at, block)| table[at] = block);
            table
        }))
    }

    fn disown(&mut self, nth: usize, script: &mut Script) -> Result<bool, Failure> {
        let table = self.table(nth);
        let expected = self.model.disown(&table);
        script.line(|| text::outcome(&format!("pool.disown(&block_ids(&{table:?}))"), expected));
        same("outcome of disown", &self.pool.disown(&block_ids(&table)).is_ok(), &expected)?;
        if expected {
            self.take_table(nth);
        }
        Ok(expected)
    }

    /// Hints: they change nothing but the order. Returns whether the call succeeded, and its Rust.
    fn hint(&mut self, operation: &Operation, script: &mut Script) -> bool {
        match operation {
            Operation::MarkAccessed(ids, time) => {
                script.line(|| format!("let _ = pool.mark_accessed(&block_ids(&{ids:?}), {time}.0);"));
                self.pool.mark_accessed(&block_ids(ids), f64::from(*time)).is_ok()
            }
            Operation::Retain(ids, how) => {
                let keep = match how % 8 {
                    0 | 1 => Keep::Demoted,
                    2 | 3 => Keep::Pinned,
                    other => Keep::Priority(Priority::new(other * 12).unwrap_or(Priority::NORMAL)),
                };
                let seconds = f64::from(how / 32);
                let ttl = match how / 8 % 4 {
                    2 => Some(Ttl::Idle(seconds)),
                    3 => Some(Ttl::Absolute(seconds)),
                    _ => None,
                };
                let then = if how & 128 == 0 { Then::Normal } else { Then::Demote };
                script.line(|| {
                    let keep = match keep {
                        Keep::Priority(priority) => {
                            format!("Keep::Priority(Priority::new({}).unwrap())", priority.get())
                        }
                        other => format!("Keep::{other:?}"),
                    };
                    let ttl = ttl.map_or_else(|| "None".into(), |ttl| format!("Some(Ttl::{ttl:?})"));
                    format!("let _ = pool.retain(&block_ids(&{ids:?}), Retention {{ keep: {keep}, ttl: {ttl}, then: Then::{then:?} }});")
                });
                self.pool.retain(&block_ids(ids), Retention { keep, ttl, then }).is_ok()
            }
            Operation::Assign(ids, tenant) => {
                let tenant = u32::from(tenant % 3);
                script.line(|| {
                    format!("let _ = pool.assign_tenant(&block_ids(&{ids:?}), TenantId({tenant}));")
                });
                self.pool.assign_tenant(&block_ids(ids), TenantId(tenant)).is_ok()
            }
            Operation::Advance(by) => {
                // From 0 on; one second back now and then, which is refused.
                let next = if *by == 8 { self.now - 1.0 } else { self.now + f64::from(*by) };
                script.line(|| format!("let _ = pool.advance_time({next:?});"));
                let advanced = self.pool.advance_time(next).is_ok();
                if advanced {
                    self.now = next;
                }
                advanced
            }
            _ => true,
        }
    }

    /// Runs the operation on both, and says whether it succeeded, in both or in neither.
    fn run(&mut self, operation: &Operation, script: &mut Script) -> Result<bool, Failure> {
        match operation {
            Operation::Allocate(n) => {
                let table = self.allocate(*n, script)?;
                let done = table.is_some();
                self.tables.extend(table.filter(|table| !table.is_empty()));
                Ok(done)
            }
            Operation::Acquire(ids) => self.acquire(ids, script),
            Operation::AcquireTable(nth) => self.acquire(&self.table(*nth), script),
            Operation::Release(ids) => {
                let done = self.release(ids, script)?;
                if done {
                    // Tables that may have lost a reference are nobody's now.
                    self.tables.retain(|table| table.iter().all(|block| !ids.contains(block)));
                }
                Ok(done)
            }
            Operation::ReleaseTable(nth) => self.release_table(*nth, script),
            // The last two steps stand for tickets, which end in any order.
            Operation::ReleaseAfter(nth, step @ TICKETS..) => {
                let ticket = self.model.open_tickets().get((step - TICKETS) as usize).copied();
                let ticket = if let Some(ticket) = ticket {
                    ticket
                } else {
                    let ticket = self.model.fence();
                    script.line(|| format!("assert_eq!(pool.fence().unwrap().get(), {ticket});"));
                    same("ticket of fence", &self.pool.fence().map(Ticket::get).ok(), &Some(ticket))?;
                    ticket
                };
                let table = self.take_table(*nth);
                let expected = self.model.release_until(&table, ticket);
                script.line(|| {
                    let call = format!("pool.release_until(&block_ids(&{table:?}), Ticket::new({ticket}))");
                    text::outcome(&call, expected)
                });
                let found = self.pool.release_until(&block_ids(&table), Ticket::new(ticket)).is_ok();
                same("outcome of release_until", &found, &expected)?;
                Ok(expected)
            }
            Operation::CompleteStep(step @ TICKETS..) => {
                let ticket = self.model.open_tickets().get((step - TICKETS) as usize).copied().unwrap_or(99);
                let expected = self.model.end_fence(ticket);
                script.line(|| {
                    format!("assert_eq!(pool.end_fence(Ticket::new({ticket})).ok(), {expected:?});")
                });
                let found = self.pool.end_fence(Ticket::new(ticket)).ok();
                same("outcome of end_fence", &found, &expected)?;
                Ok(expected.is_some())
            }
            Operation::ReleaseAfter(nth, step) => {
                let table = self.take_table(*nth);
                let expected = self.model.release_after(&table, *step);
                script.line(|| {
                    text::outcome(&format!("pool.release_after(&block_ids(&{table:?}), {step})"), expected)
                });
                let found = self.pool.release_after(&block_ids(&table), *step).is_ok();
                same("outcome of release_after", &found, &expected)?;
                Ok(expected)
            }
            Operation::CompleteStep(step) => {
                self.model.complete_step(*step);
                script.line(|| format!("pool.complete_step({step}).unwrap();"));
                same("outcome of complete_step", &self.pool.complete_step(*step).is_ok(), &true)?;
                Ok(true)
            }
            Operation::Serve(prompt) => {
                let new = self.begin(prompt, script)?;
                if let Some(new) = &new {
                    self.mark(new, script)?;
                }
                Ok(true)
            }
            Operation::Begin(prompt) => self.begin(prompt, script).map(|_| true),
            Operation::Register(nth, prompt, start) => {
                let table = self.table(*nth);
                let fits = (prompt.tokens.len() / BLOCK_SIZE).saturating_sub(*start).min(table.len());
                self.register(&table[..fits], prompt, *start, script)
            }
            Operation::RegisterRaw(blocks, prompt) => self.register(blocks, prompt, 0, script),
            Operation::MarkComputed(ids) => self.mark(ids, script),
            Operation::MarkTable(nth) => self.mark(&self.table(*nth), script),
            Operation::Match(prompt, most) => {
                let table = self.look_up(prompt, *most, script)?;
                self.tables.extend(Some(table).filter(|table| !table.is_empty()));
                Ok(true)
            }
            Operation::Promote(nth, at, prompt) => self.promote(*nth, *at, prompt, script),
            Operation::Evict(ids) => {
                let fine = ids.iter().all(|&block| block > 0 && block < self.pool.num_blocks());
                script.line(|| text::outcome(&format!("pool.drop_cached(&block_ids(&{ids:?}))"), fine));
                same("outcome of drop_cached", &self.pool.drop_cached(&block_ids(ids)).is_ok(), &fine)?;
                if fine {
                    self.model.drop_cached(ids);
                }
                Ok(fine)
            }
            Operation::Reset => {
                let fine = self.model.reset();
                script.line(|| text::outcome("pool.reset()", fine));
                same("outcome of reset", &self.pool.reset().is_ok(), &fine)?;
                Ok(fine)
            }
            Operation::BumpEpoch => {
                self.model.bump_epoch();
                script.line(|| "pool.bump_epoch().unwrap();".into());
                same("outcome of bump_epoch", &self.pool.bump_epoch().is_ok(), &true)?;
                Ok(true)
            }
            Operation::Grow => {
                let larger = self.pool.num_blocks() + 1;
                let fine = larger <= MOST_BLOCKS;
                let asked = if fine { larger } else { larger - 2 };
                script.line(|| text::outcome(&format!("pool.resize({asked})"), fine));
                same("outcome of resize", &self.pool.resize(asked).is_ok(), &fine)?;
                if fine {
                    self.model.resize(asked);
                }
                Ok(fine)
            }
            Operation::Lookup(prompt, run, refresh) => self.weak_lookup(prompt, *run, *refresh, script),
            Operation::AcquireMatch(nth) => self.acquire_match(*nth, script),
            Operation::RegisterTable(nth, prompt, start) => {
                let mut table = self.table(*nth);
                let fits = (prompt.tokens.len() / BLOCK_SIZE).saturating_sub(*start).min(table.len());
                let Some(now) = self.enter("register_table", &table[..fits], prompt, *start, script)? else {
                    return Ok(false);
                };
                table[..fits].copy_from_slice(&now);
                self.take_table(*nth);
                self.keep_table(table);
                Ok(true)
            }
            Operation::Adopt(ids, prompt, start) => {
                let table = self.enter("adopt", ids, prompt, *start, script)?;
                let done = table.is_some();
                self.keep_table(table.unwrap_or_default());
                Ok(done)
            }
            Operation::AdoptLast(prompt) => {
                let full = prompt.tokens.len() / BLOCK_SIZE;
                let last: Vec<_> = self.model.free.iter().rev().take(full).copied().collect();
                let table = self.enter("adopt", &last, prompt, 0, script)?;
                self.tables.extend(table.filter(|table| !table.is_empty()));
                Ok(true)
            }
            Operation::Disown(nth) => self.disown(*nth, script),
            Operation::EvictNext(n) => {
                let expected = self.model.evict(*n);
                script.line(|| match self.setting.is_lru() {
                    true => {
                        let expected = text::list(&expected);
                        format!("assert_eq!(indices(&pool.evict({n}).unwrap()), {expected});")
                    }
                    false => text::outcome(&format!("pool.evict({n})"), true),
                });
                let found = self.pool.evict(*n).map(|blocks| indices(&blocks));
                same("blocks of evict", &found, &Ok(expected))?;
                Ok(true)
            }
            Operation::MarkAccessed(..)
            | Operation::Retain(..)
            | Operation::Assign(..)
            | Operation::Advance(_) => Ok(self.hint(operation, script)),
        }
    }

    /// Where the policy chooses, the model takes its order; the blocks must be the same.
    fn follow(&mut self) -> Result<(), Failure> {
        let order = indices(&self.pool.eviction_order());
        let (mut found, mut expected) = (order.clone(), self.model.evictable.clone());
        found.sort_unstable();
        expected.sort_unstable();
        same("cached-free blocks", &found, &expected)?;
        self.model.evictable = order;
        Ok(())
    }

    fn compare(&mut self) -> Result<(), Failure> {
        self.pool.check_invariants()?;
        let digest = self.pool.state_digest();
        same("digest of the state", &digest, &Some(self.pool.state_digest_from_scratch()))?;
        same("scrub", &self.scrubber.scrub(&mut self.pool, 2).map(|_| ()), &Ok(()))?;
        same("free order", &indices(&self.pool.free_order()), &self.model.free)?;
        if self.setting.is_lru() {
            same("eviction order", &indices(&self.pool.eviction_order()), &self.model.evictable)?;
        } else {
            self.follow()?;
        }
        let stats = self.pool.stats();
        let sums = (stats.free, stats.cached_free, stats.active, stats.fenced);
        same("sums", &sums, &self.model.sums())?;
        same("registered", &(stats.registered, stats.registered_active), &self.model.registered())?;
        self.replay_events()
    }

    /// Events replayed into a set are the hashes that can be matched; where holders hold whole prefixes, with each its parent.
    fn replay_events(&mut self) -> Result<(), Failure> {
        let batch = self.pool.take_events();
        same("events dropped", &batch.dropped, &0)?;
        for event in batch.events {
            match event {
                BlockEvent::Stored { hash, parent, .. } => {
                    let twice = self.matchable.insert(hash, parent).is_some();
                    holds("events", !twice, || format!("{hash:?} is stored twice"))?;
                }
                BlockEvent::Removed { hash, .. } => {
                    let known = self.matchable.remove(&hash).is_some();
                    holds("events", known, || format!("{hash:?} is removed and was not stored"))?;
                }
                _ => self.matchable.clear(),
            }
        }
        let live: std::collections::BTreeSet<_> = (1..self.pool.num_blocks())
            .map(|block| block_ids(&[block])[0])
            .filter(|&block| self.pool.is_computed(block))
            .filter_map(|block| self.pool.hash_of(block))
            .collect();
        holds("events", live.iter().eq(self.matchable.keys()), || {
            format!("{} hashes can be matched, {} by the events", live.len(), self.matchable.len())
        })?;
        let orphan = self.matchable.values().flatten().find(|parent| !self.matchable.contains_key(*parent));
        holds("closedness", !self.setting.whole || orphan.is_none(), || {
            format!("a block is cached, and its parent {orphan:?} is not: no lookup reaches it")
        })
    }
}

impl Machine for Pool {
    type Setting = Setting;
    type Operation = Operation;

    fn new(setting: &Setting) -> Result<Self, Failure> {
        let wrong = |error: &dyn ToString| Failure::new("setting", error.to_string());
        let Setting { num_blocks, verify, duplicates, eviction, retention, .. } = *setting;
        let config = HasherConfig { block_size: BLOCK_SIZE, verify, ..Default::default() };
        let hasher = BlockHasher::new(config).map_err(|error| wrong(&error))?;
        let third = (num_blocks - 1) / 3;
        let limits = TenantLimits { tenant: TenantId(1), floor: third / 2, ceiling: Some(third) };
        let retention = retention.then(|| RetentionConfig { pin_budget: third, tenants: vec![limits] });
        let config = PoolConfig {
            num_blocks,
            block_size: BLOCK_SIZE,
            verify,
            duplicates,
            eviction,
            retention,
            ..PoolConfig::default()
        };
        let watch =
            WatchConfig { event_capacity: 1000, digest: true, advisor: None, ..WatchConfig::default() };
        let pool = BlockPool::new(config).and_then(|pool| pool.watched(&watch));
        let drop = duplicates == DuplicatePolicy::DropOnRelease;
        Ok(Self {
            setting: setting.clone(),
            pool: pool.map_err(|error| wrong(&error))?,
            scrubber: Scrubber::default(),
            model: ReferencePool::new(num_blocks, BLOCK_SIZE, drop),
            hasher: Arc::new(hasher),
            tables: Vec::new(),
            found: Vec::new(),
            matchable: BTreeMap::new(),
            now: 0.0,
        })
    }

    fn apply(&mut self, operation: &Operation, script: &mut Script) -> Result<(), Failure> {
        if self.setting.whole && !operation.keeps_prefixes_whole() {
            return Ok(());
        }
        let before = self.observe();
        if !self.run(operation, script)? {
            same("what a refused call left", &self.observe(), &before)?;
        }
        self.compare()
    }

    fn simpler_settings(setting: &Setting) -> Vec<Setting> {
        let simplest = Setting { whole: setting.whole, ..Setting::simplest(setting.num_blocks) };
        let candidates = [
            Setting::simplest(setting.num_blocks),
            simplest,
            Setting { verify: kvpool::Verify::None, ..setting.clone() },
            Setting { duplicates: DuplicatePolicy::Keep, ..setting.clone() },
            Setting { retention: false, ..setting.clone() },
        ];
        let blocks = (2..setting.num_blocks).map(|num_blocks| Setting { num_blocks, ..setting.clone() });
        candidates.into_iter().filter(|other| other != setting).chain(blocks).collect()
    }

    fn simpler_operations(operation: &Operation) -> Vec<Operation> {
        operation.simpler()
    }

    const ITEMS: &[(&str, &str)] = &[
        ("extra(", "use std::sync::Arc;\n\n"),
        ("Retention", "use kvpool::retention::*;\n"),
        ("block_ids", "use kvpool_testing::block_ids;\n"),
        ("indices", "use kvpool_testing::indices;\n"),
        ("pool", "use kvpool::*;\n"),
        ("watched(", text::OBSERVE),
        ("hasher()", EXTRA),
        ("&chain(", CHAIN),
        ("&link(", LINK),
        ("closed(", text::CLOSED),
    ];

    fn opening(setting: &Setting) -> Vec<String> {
        let Setting { num_blocks, verify, duplicates, eviction, retention, .. } = *setting;
        let mut fields = text::settings(verify, duplicates, eviction, retention);
        if retention {
            let third = (num_blocks - 1) / 3;
            fields.push_str(&format!("retention: Some(RetentionConfig {{ pin_budget: {third}, tenants: vec![TenantLimits {{ tenant: TenantId(1), floor: {}, ceiling: Some({third}) }}] }}), ", third / 2));
        }
        let watched = if setting.whole { text::EVENTS } else { "" };
        vec![format!(
            "let mut pool = BlockPool::new(PoolConfig {{ num_blocks: {num_blocks}, block_size: {BLOCK_SIZE}, {fields}..Default::default() }}).unwrap(){watched};"
        )]
    }

    fn closing(&self) -> Vec<String> {
        let mut lines = vec![
            "pool.check_invariants().unwrap();".to_owned(),
            format!("assert_eq!(indices(&pool.free_order()), {});", text::list(&self.model.free)),
        ];
        if self.setting.is_lru() {
            let evictable = text::list(&self.model.evictable);
            lines.push(format!("assert_eq!(indices(&pool.eviction_order()), {evictable});"));
        }
        if self.setting.whole {
            lines.push("closed(pool.take_events());".into());
        }
        lines
    }
}

const EXTRA: &str = "
fn extra(salt: &[u8], epoch: u64) -> ExtraKeys {
    let salt = (!salt.is_empty()).then(|| salt.into());
    ExtraKeys { salt, epoch, ..Default::default() }
}

fn hasher() -> Arc<BlockHasher> {
    let config = HasherConfig { block_size: 2, verify: Verify::Tokens, ..Default::default() };
    Arc::new(BlockHasher::new(config).unwrap())
}
";

const CHAIN: &str = "
fn chain(salt: &[u8], tokens: &[u32], epoch: u64) -> HashChain {
    let mut cursor = HashCursor::new(hasher(), extra(salt, epoch)).unwrap();
    cursor.append(tokens);
    cursor.chain().clone()
}
";

const LINK: &str = "
fn link(salt: &[u8], tokens: &[u32], epoch: u64) -> ChainLink {
    let next = |before: Option<ChainLink>, tokens| {
        Some(ChainLink::new(&hasher(), before.as_ref(), tokens, &extra(salt, epoch)).unwrap())
    };
    tokens.chunks_exact(2).fold(None, next).unwrap()
}
";
