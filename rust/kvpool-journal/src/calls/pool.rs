//! The table of the calls of a pool that a journal records.

use kvpool::retention::HintReport;
use kvpool::{BlockId, BlockPool, Match, PoolConfig, PoolError, Registered};
use kvpool_observe::{EventBatch, PoolWatch, WatchConfig};

use super::kinds::{
    AtMost, Block, Chain, Count, Ended, ForTenant, Found, Free, Held, Hint, Link, Named, Part, Place,
    Seconds, Size, Start, Step, Table, Tenant, Ticket, Until,
};
use super::table::calls;
use crate::contents::Contents;
use crate::journaled::{Recordable, tracks_changes};
use crate::{JournalConfig, JournalHeader};

type Answer<T> = Result<T, PoolError>;

calls! {
    /// A recorded call of a [`BlockPool`].
    pub enum PoolCall of BlockPool;
    /// The calls of a [`BlockPool`]. Each method runs the call and, if there is a journal, records it.
    pub trait PoolCalls;

    Allocate allocate(blocks: Count) -> Answer<Vec<BlockId>>, "{blocks}";
    Acquire acquire(blocks: Held) -> Answer<()>, "{blocks}";
    Release release(blocks: Held) -> Answer<()>, "{blocks}";
    ReleaseTable release_table(blocks: Table) -> Answer<()>, "{blocks}";
    ReleaseAfter release_after(blocks: Table, step: Step) -> Answer<()>, "{blocks} after step {step}";
    CompleteStep complete_step(step: Step) -> Answer<usize>, "step {step}";
    /// If the argument `tenant` is given, this is a call of [`BlockPool::match_and_acquire_for`].
    Match match_and_acquire(chain: Chain, max_blocks: AtMost, tenant: ForTenant) -> Answer<Vec<BlockId>>,
        found |found| found.as_ref().map_or(0, Vec::len), "{chain}{max_blocks}{tenant}",
        |pool| match tenant {
            None => pool.match_and_acquire(chain, max_blocks),
            Some(tenant) => pool.match_and_acquire_for(chain, max_blocks, tenant),
        };
    Register register(blocks: Part, chain: Chain, start: Start) -> Answer<Registered>, known start,
        "{blocks}; from block {start} of {chain}";
    MarkComputed mark_computed(blocks: Table) -> Answer<()>, "{blocks}";
    RegisterLink register_link(block: Block, link: Link) -> Answer<BlockId>, "block {block} to {link}";
    AcquireRegistered acquire_registered(link: Place) -> Answer<Option<BlockId>>, "{link}";
    MarkAccessed mark_accessed(blocks: Named, time: Seconds) -> Answer<()>, "{blocks} at {time}";
    Evict drop_cached(blocks: Named) -> Answer<usize>, "{blocks}";
    Reset reset() -> Answer<usize>, "";
    BumpEpoch bump_epoch() -> Answer<u64>, "";
    Resize resize(num_blocks: Size) -> Answer<()>, "to {num_blocks}";
    Retain retain(blocks: Named, retention: Hint) -> Answer<HintReport>, "{blocks}; {retention}";
    AssignTenant assign_tenant(blocks: Named, tenant: Tenant) -> Answer<()>, "{blocks}; tenant {tenant}";
    AdvanceTime advance_time(now: Seconds) -> Answer<usize>, "to {now} s";
    TakeEvents take_events() -> EventBatch, "";
    Fence fence() -> Answer<kvpool::Ticket>, "";
    ReleaseUntil release_until(blocks: Table, ticket: Until) -> Answer<()>, "{blocks} until ticket {ticket}";
    EndFence end_fence(ticket: Ticket) -> Answer<usize>, "ticket {ticket}";
    EvictNext evict(blocks: Count) -> Answer<Vec<BlockId>>, "{blocks}";
    LookupRefreshing lookup_refreshing(chain: Chain, start: Start, max_blocks: AtMost) -> Answer<Match>,
        found |found| found.as_ref().map_or(0, |found| start.saturating_add(found.len())).min(chain.len()),
        "{chain} from block {start}{max_blocks}";
    AcquireMatch acquire_match(found: Found) -> Answer<()>, "{found}";
    RegisterTable register_table(blocks: Part, chain: Chain, start: Start) -> Answer<Vec<(usize, BlockId)>>,
        known start, "{blocks}; from block {start} of {chain}";
    Adopt adopt(blocks: Free, chain: Chain, start: Start) -> Answer<Vec<(usize, BlockId)>>,
        known start, "{blocks}; from block {start} of {chain}";
    Disown disown(blocks: Table) -> Answer<()>, "{blocks}";
    Signal signal(blocks: Named, signal: Ended) -> Answer<()>, "{blocks}; {signal}";
}

impl Recordable for BlockPool {
    type Config = PoolConfig;
    type Watch = WatchConfig;
    type Error = PoolError;
    type Record = PoolCall;
    type Memory = Contents;

    fn create(config: PoolConfig, watch: &WatchConfig, journal: JournalConfig) -> Result<Self, PoolError> {
        let mut pool = Self::new(config)?.watched(watch)?;
        if tracks_changes(pool.num_blocks(), journal) {
            pool.keep_digest()?;
        }
        Ok(pool)
    }

    fn header(config: &PoolConfig, watch: &WatchConfig, journal: JournalConfig) -> JournalHeader {
        JournalHeader::of_pool(config, watch, journal)
    }

    fn digest(&mut self) -> Option<u64> {
        self.state_digest().or_else(|| Some(self.state_digest_from_scratch()))
    }

    fn is_poisoned(&self) -> bool {
        self.poison_reason().is_some()
    }
}
