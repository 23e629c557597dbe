//! The operations of a [`BlockPool`].

use crate::{ChainRecord, Ids, Journal, LinkRecord, PoolOperation};
use kvpool::hash::{ChainLink, HashChain};
use kvpool::retention::{HintReport, Retention, TenantId};
use kvpool::{BlockId, BlockPool, PoolError, Registered, Ticket};
use kvpool_observe::{EventBatch, PoolWatch};

use super::operations;
use crate::Operation;

type Answer<T> = Result<T, PoolError>;

operations! { BlockPool, Answer, PoolOperation;
    /// [`BlockPool::allocate`].
    Allocate { blocks: usize } -> Vec<BlockId>,
        |pool| pool.allocate(blocks), |_, _| PoolOperation::Allocate { blocks };
    /// [`BlockPool::acquire`].
    Acquire<'a> { blocks: &'a [BlockId] } -> (),
        |pool| pool.acquire(blocks), |_, _| PoolOperation::Acquire { blocks: Ids::pack(blocks) };
    /// [`BlockPool::release`].
    Release<'a> { blocks: &'a [BlockId] } -> (),
        |pool| pool.release(blocks), |_, _| PoolOperation::Release { blocks: Ids::pack(blocks) };
    /// [`BlockPool::release_table`].
    ReleaseTable<'a> { blocks: &'a [BlockId] } -> (),
        |pool| pool.release_table(blocks), |_, _| PoolOperation::ReleaseTable { blocks: Ids::pack(blocks) };
    /// [`BlockPool::release_after`].
    ReleaseAfter<'a> { blocks: &'a [BlockId], step: u64 } -> (),
        |pool| pool.release_after(blocks, step),
        |_, _| PoolOperation::ReleaseAfter { blocks: Ids::pack(blocks), step };
    /// [`BlockPool::fence`].
    Fence {} -> Ticket, BlockPool::fence, |_, _| PoolOperation::Fence;
    /// [`BlockPool::release_until`].
    ReleaseUntil<'a> { blocks: &'a [BlockId], ticket: Ticket } -> (),
        |pool| pool.release_until(blocks, ticket),
        |_, _| PoolOperation::ReleaseUntil { blocks: Ids::pack(blocks), ticket: ticket.get() };
    /// [`BlockPool::end_fence`].
    EndFence { ticket: Ticket } -> usize,
        |pool| pool.end_fence(ticket), |_, _| PoolOperation::EndFence { ticket: ticket.get() };
    /// [`BlockPool::complete_step`].
    CompleteStep { step: u64 } -> usize,
        |pool| pool.complete_step(step), |_, _| PoolOperation::CompleteStep { step };
    /// [`BlockPool::register`].
    Register<'a> { blocks: &'a [BlockId], chain: &'a HashChain, start: usize } -> Registered,
        |pool| pool.register(blocks, chain, start),
        |pool, journal| {
            let chain = chain_record(pool, journal, chain, start);
            PoolOperation::Register { blocks: Ids::pack(blocks), chain, start }
        };
    /// [`BlockPool::mark_computed`].
    MarkComputed<'a> { blocks: &'a [BlockId] } -> (),
        |pool| pool.mark_computed(blocks), |_, _| PoolOperation::MarkComputed { blocks: Ids::pack(blocks) };
    /// [`BlockPool::register_link`].
    RegisterLink<'a> { block: BlockId, link: &'a ChainLink } -> BlockId,
        |pool| pool.register_link(block, link),
        |_, journal| PoolOperation::RegisterLink { block: block.get(), link: journal.link(link) };
    /// [`BlockPool::acquire_registered`].
    AcquireRegistered<'a> { link: &'a ChainLink } -> Option<BlockId>,
        |pool| pool.acquire_registered(link),
        |_, _| PoolOperation::AcquireRegistered { link: LinkRecord::new(link) };
    /// [`BlockPool::mark_accessed`].
    MarkAccessed<'a> { blocks: &'a [BlockId], time: f64 } -> (),
        |pool| pool.mark_accessed(blocks, time),
        |_, _| PoolOperation::MarkAccessed { blocks: Ids::pack(blocks), time };
    /// [`BlockPool::drop_cached`].
    DropCached<'a> { blocks: &'a [BlockId] } -> usize,
        |pool| pool.drop_cached(blocks), |_, _| PoolOperation::Evict { blocks: Ids::pack(blocks) };
    /// [`BlockPool::register_table`].
    RegisterTable<'a> { blocks: &'a [BlockId], chain: &'a HashChain, start: usize } -> Vec<(usize, BlockId)>,
        |pool| pool.register_table(blocks, chain, start),
        |pool, journal| {
            let chain = chain_record(pool, journal, chain, start);
            PoolOperation::RegisterTable { blocks: Ids::pack(blocks), chain, start }
        };
    /// [`BlockPool::adopt`].
    Adopt<'a> { blocks: &'a [BlockId], chain: &'a HashChain, start: usize } -> Vec<(usize, BlockId)>,
        |pool| pool.adopt(blocks, chain, start),
        |pool, journal| {
            let chain = chain_record(pool, journal, chain, start);
            PoolOperation::Adopt { blocks: Ids::pack(blocks), chain, start }
        };
    /// [`BlockPool::disown`].
    Disown<'a> { blocks: &'a [BlockId] } -> (),
        |pool| pool.disown(blocks), |_, _| PoolOperation::Disown { blocks: Ids::pack(blocks) };
    /// [`BlockPool::acquire_match`].
    AcquireMatch<'a> { found: &'a kvpool::Match } -> (),
        |pool| pool.acquire_match(found),
        |_, journal| {
            let (blocks, start) = (Ids::pack(found.blocks()), found.start());
            PoolOperation::AcquireMatch { blocks, chain: journal.part(found), start }
        };
    /// [`BlockPool::evict`].
    Evict { blocks: usize } -> Vec<BlockId>,
        |pool| pool.evict(blocks), |_, _| PoolOperation::EvictNext { blocks };
    /// [`BlockPool::reset`].
    Reset {} -> usize, BlockPool::reset, |_, _| PoolOperation::Reset;
    /// [`BlockPool::bump_epoch`].
    BumpEpoch {} -> u64, BlockPool::bump_epoch, |_, _| PoolOperation::BumpEpoch;
    /// [`BlockPool::resize`].
    Resize { num_blocks: usize } -> (),
        |pool| pool.resize(num_blocks), |_, _| PoolOperation::Resize { num_blocks };
    /// [`BlockPool::retain`].
    Retain<'a> { blocks: &'a [BlockId], retention: Retention } -> HintReport,
        |pool| pool.retain(blocks, retention),
        |_, _| PoolOperation::Retain { blocks: Ids::pack(blocks), retention: retention.into() };
    /// [`BlockPool::assign_tenant`].
    AssignTenant<'a> { blocks: &'a [BlockId], tenant: TenantId } -> (),
        |pool| pool.assign_tenant(blocks, tenant),
        |_, _| PoolOperation::AssignTenant { blocks: Ids::pack(blocks), tenant: tenant.0 };
    /// [`BlockPool::signal`].
    Signal<'a> { blocks: &'a [BlockId], signal: kvpool::Signal } -> (),
        |pool| pool.signal(blocks, signal),
        |_, _| PoolOperation::Signal { blocks: Ids::pack(blocks), signal: signal.into() };
    /// [`BlockPool::advance_time`].
    AdvanceTime { now: f64 } -> usize,
        |pool| pool.advance_time(now), |_, _| PoolOperation::AdvanceTime { now };
}

/// What is written of a chain. Of its first `indexed` blocks the last, if it is in the index now, was recorded before.
fn chain_record(pool: &BlockPool, journal: &mut Journal, chain: &HashChain, indexed: usize) -> ChainRecord {
    let is_indexed = indexed.checked_sub(1).is_some_and(|last| pool.is_indexed(chain, last));
    let tokens = chain.len().saturating_mul(chain.block_size());
    journal.chain(chain, tokens, if is_indexed { indexed } else { 0 })
}

/// [`BlockPool::match_and_acquire`]; with a tenant, [`BlockPool::match_and_acquire_for`].
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the fields are the arguments of the call named")]
pub struct Match<'a> {
    pub chain: &'a HashChain,
    pub max_blocks: usize,
    pub tenant: Option<TenantId>,
}

impl Operation<BlockPool> for Match<'_> {
    type Answer = Result<Vec<BlockId>, PoolError>;
    type Before = Self;

    fn before(&self, _: &BlockPool, _: &mut Journal) -> Self {
        *self
    }

    #[inline]
    fn run(self, pool: &mut BlockPool) -> Self::Answer {
        match self.tenant {
            None => pool.match_and_acquire(self.chain, self.max_blocks),
            Some(tenant) => pool.match_and_acquire_for(self.chain, self.max_blocks, tenant),
        }
    }

    fn record(
        asked: Self,
        pool: &BlockPool,
        journal: &mut Journal,
        found: &Self::Answer,
    ) -> Option<PoolOperation> {
        let found = found.as_ref().map_or(0, Vec::len);
        Some(PoolOperation::Match {
            chain: chain_record(pool, journal, asked.chain, found),
            max_blocks: asked.max_blocks,
            tenant: asked.tenant.map(|tenant| tenant.0),
        })
    }
}

/// [`BlockPool::lookup_refreshing`]. One that refreshes nothing is no operation.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the fields are the arguments of the call named")]
pub struct LookupRefreshing<'a> {
    pub chain: &'a HashChain,
    pub start: usize,
    pub max_blocks: usize,
}

impl Operation<BlockPool> for LookupRefreshing<'_> {
    type Answer = Result<kvpool::Match, PoolError>;
    type Before = Self;

    fn before(&self, _: &BlockPool, _: &mut Journal) -> Self {
        *self
    }

    #[inline]
    fn run(self, pool: &mut BlockPool) -> Self::Answer {
        pool.lookup_refreshing(self.chain, self.start, self.max_blocks)
    }

    fn record(
        asked: Self,
        pool: &BlockPool,
        journal: &mut Journal,
        found: &Self::Answer,
    ) -> Option<PoolOperation> {
        let Self { chain, start, max_blocks } = asked;
        let found = found.as_ref().map_or(0, |found| start.saturating_add(found.len()));
        let chain = chain_record(pool, journal, chain, found.min(chain.len()));
        Some(PoolOperation::LookupRefreshing { chain, start, max_blocks })
    }
}

/// [`PoolWatch::take_events`].
#[derive(Clone, Copy, Debug)]
pub struct TakeEvents;

impl Operation<BlockPool> for TakeEvents {
    type Answer = EventBatch;
    type Before = ();

    fn before(&self, _: &BlockPool, _: &mut Journal) {}

    fn run(self, pool: &mut BlockPool) -> EventBatch {
        pool.take_events()
    }

    fn record((): (), _: &BlockPool, _: &mut Journal, _: &EventBatch) -> Option<PoolOperation> {
        Some(PoolOperation::TakeEvents)
    }
}
