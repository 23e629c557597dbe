//! What must hold between turns and after calls: sums, books, KV, nothing changed by what was refused, nothing held at the end.

use kvpool::{BlockId, BlockPool, ManagerError, ManagerStats, PoolStats, RequestState};
use kvpool_observe::ManagerWatch;

use super::books::Entry;
use super::driver::Driver;
use super::meter::Meter;
use super::{Wrong, ensure};

/// What a refused call must leave as it was.
#[derive(Debug, PartialEq)]
pub(crate) struct Observed {
    stats: ManagerStats,
    host: Option<PoolStats>,
    planned: usize,
    /// Free order, eviction order and block tables: long, so rarely looked at.
    orders: Option<Vec<Vec<BlockId>>>,
}

impl Driver {
    pub(super) fn observe(&self, orders: bool) -> Observed {
        let tiers = self.manager.tiers();
        let pools = (0..tiers.len()).filter_map(|tier| tiers.pool(tier).ok());
        let orders = orders.then(|| {
            let tables = self.books.iter().filter_map(|entry| self.manager.block_table(&entry.id).ok());
            let tables = tables.map(<[_]>::to_vec);
            pools.flat_map(|pool| [pool.free_order(), pool.eviction_order()]).chain(tables).collect()
        });
        let host = tiers.pool(1).ok().map(BlockPool::stats);
        // A refusal is counted; nothing else of it may show.
        let mut stats = self.manager.stats();
        stats.refusals = 0;
        Observed { stats, host, planned: tiers.num_planned(), orders }
    }

    /// Checks that a refused call has changed nothing.
    pub(super) fn unchanged(&self, before: &Observed, what: &str) -> Result<(), Wrong> {
        let after = self.observe(before.orders.is_some());
        ensure(*before == after, || format!("{what} changed something:\n  {before:?}\n  {after:?}"))
    }

    /// Checks a refusal for want of blocks; any other error is not expected.
    pub(super) fn out_of_blocks(&self, before: &Observed, error: &ManagerError) -> Result<(), Wrong> {
        let ManagerError::OutOfBlocks(refusal) = error else {
            return Err(Wrong(format!("an error that was not expected: {error}")));
        };
        let sound =
            refusal.needed > refusal.available && refusal.missing == refusal.needed - refusal.available;
        ensure(sound, || format!("a refusal that does not add up: {refusal:?}"))?;
        self.unchanged(before, "a call that was refused for want of blocks")
    }

    /// Compares a request's computed tokens with what it wrote.
    pub(super) fn read_back(&self, entry: &Entry, every_slot: bool) -> Result<(), Wrong> {
        let tier = match entry.state {
            RequestState::Running => 0,
            RequestState::Swapped => 1,
            _ => return Ok(()),
        };
        // A copy that is planned has not been made yet.
        if self.manager.tiers().num_planned() > 0 {
            return Ok(());
        }
        let table = self.manager.block_table(&entry.id)?;
        let read = self.store.read_back(tier, table, &entry.tags, entry.computed, entry.weights, every_slot);
        read.map_err(|Wrong(what)| Wrong(format!("request {}: {what}", entry.id)))
    }

    /// Checks all sums and the books, in time O(live requests). Changes nothing but the digest and the mean filling.
    pub(crate) fn check_sums(&mut self) -> Result<(), Wrong> {
        let stats = self.manager.stats();
        let tiers = self.manager.tiers();
        for tier in 0..tiers.len() {
            let pool = tiers.pool(tier)?.stats();
            let sum = pool.free + pool.cached_free + pool.active + pool.fenced;
            ensure(sum == pool.usable, || {
                format!("tier {tier}: {sum} blocks in all, of {}: {pool:?}", pool.usable)
            })?;
        }
        ensure(stats.pool.usable + 1 == self.blocks, || {
            format!("{} usable blocks, made with {}", stats.pool.usable, self.blocks)
        })?;
        self.books.compare(&stats)?;
        for entry in self.books.iter() {
            let info = self.manager.request(&entry.id)?;
            let expected = (entry.state, entry.tags.len(), entry.computed);
            let found = (info.state, info.tokens, info.computed_tokens);
            ensure(found == expected, || {
                format!("request {}: {expected:?} in the books, {found:?} in the manager", entry.id)
            })?;
            let enough =
                info.blocks * self.block_size() >= info.tokens || info.state == RequestState::Preempted;
            ensure(enough, || format!("request {} has too few blocks: {info:?}", entry.id))?;
        }
        let usable = stats.pool.usable as f64;
        self.filling.samples += 1;
        self.filling.held += (stats.pool.active + stats.pool.fenced) as f64 / usable;
        self.filling.cached += stats.pool.cached_free as f64 / usable;
        self.filling.free += stats.pool.free as f64 / usable;
        let shown = format!("{stats:?}");
        shown.bytes().for_each(|byte| self.note(u64::from(byte)));
        Ok(())
    }

    /// Recounts everything from scratch and reads back every slot of every request. Changes nothing.
    pub(crate) fn check_all(&self, meter: &mut Meter) -> Result<(), Wrong> {
        meter.time_check(|| self.manager.check_invariants())?;
        self.books.iter().try_for_each(|entry| self.read_back(entry, true))
    }

    /// Ends everything: then nobody holds a block, and a reset forgets the rest.
    pub(crate) fn drain(&mut self, meter: &mut Meter) -> Result<(), Wrong> {
        while !self.swaps.is_empty() {
            self.end_swap(meter)?;
        }
        self.take_plan(meter)?;
        for state in [RequestState::Running, RequestState::Preempted, RequestState::Swapped] {
            while let Some(key) = self.pick(state) {
                self.end_request(key, meter)?;
            }
        }
        self.end_steps(self.step, meter)?;
        let tiers = self.manager.tiers();
        for tier in 0..tiers.len() {
            let stats = tiers.pool(tier)?.stats();
            ensure(stats.active + stats.fenced == 0, || {
                format!("every request has ended, and tier {tier} still has blocks in use: {stats:?}")
            })?;
        }
        self.check_sums()?;
        let done = self.try_reset(meter)?;
        let pools = self.pool_stats()?;
        ensure(done && pools.iter().all(|stats| stats.free == stats.usable), || {
            format!("every request has ended, and a reset left {pools:?}")
        })?;
        self.mirror.check_after(&self.manager.take_events(), self.manager.pool())?;
        self.manager.check_invariants()?;
        self.check_sums()
    }
}
