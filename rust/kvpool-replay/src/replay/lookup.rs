//! Lookup mode: each request is looked up and stored at once.

use kvpool::{BlockPool, InvariantViolation, PoolStats, Signal};
use kvpool_journal::Journaled;
use kvpool_journal::PoolCalls;

use super::ReplayError;
use super::prefetch::{Prefetch, indexed_tokens};
use super::report::HitCounts;
use crate::trace::Trace;

#[derive(Debug)]
pub(super) struct Lookup {
    pub(super) pool: Journaled<BlockPool>,
    done: usize,
    pub(super) hits: HitCounts,
    pub(super) last_half: HitCounts,
}

impl Lookup {
    pub(super) fn new(pool: Journaled<BlockPool>) -> Self {
        Self { pool, done: 0, hits: HitCounts::default(), last_half: HitCounts::default() }
    }

    pub(super) fn advance(
        &mut self,
        trace: &Trace,
        prompts: &mut Prefetch,
        requests: usize,
    ) -> Result<usize, ReplayError> {
        let all = trace.requests().len();
        for index in self.done..all.min(self.done.saturating_add(requests)) {
            let prompt = prompts.next()?;
            let chain = prompt.chain();
            let request = &trace.requests()[index];
            if self.pool.keeps_time() {
                self.pool.advance_time(request.timestamp_ms / 1000.0)?;
            }
            let mut table = self.pool.match_and_acquire(chain, usize::MAX, None)?;
            let hits = table.len();
            // If a prompt is larger than the pool, only the part that fits is stored.
            let missing = (chain.len() - hits).min(self.pool.num_available());
            table.extend(self.pool.allocate(missing)?);
            self.pool.register(&table[hits..], chain, hits)?;
            self.pool.mark_computed(&table[hits..])?;
            if self.pool.wants_signals() {
                let finish = trace.labels().get(index).finish;
                let signal = Signal { finish, output_tokens: Some(request.output_length) };
                self.pool.signal(&table, signal)?;
            }
            self.pool.release_table(&table)?;
            let indexed = indexed_tokens(request, trace.block_tokens());
            let block_size = self.pool.block_size() as u64;
            self.hits.add(u64::from(request.input_length), indexed, hits as u64, block_size);
            if index >= all / 2 {
                self.last_half.add(u64::from(request.input_length), indexed, hits as u64, block_size);
            }
            self.done = index + 1;
        }
        Ok(self.done)
    }

    pub(super) fn pool_stats(&self) -> PoolStats {
        self.pool.stats()
    }

    pub(super) fn check_invariants(&self) -> Result<(), InvariantViolation> {
        self.pool.check_invariants()
    }
}
