//! What can be asked of a pool and of a manager, as plain data: one variant per call that changes anything.
//!
//! The order of variants is the format: new ones go to the end.

use kvpool::retention::{Keep, Priority, Retention, TenantId, Then, Ttl};
use kvpool::{RequestHints, RequestId, RetentionRange};
use serde::{Deserialize, Serialize};

use crate::settings::{RequestIdRecord, request_ids};
use crate::{ChainRecord, Ids, Keys, LinkRecord};

/// One entry of a journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Entry<O> {
    /// An operation, and the check of its result.
    Operation(O, u32),
    /// The digest of the state after the operations so far.
    Digest(u64),
}

/// A call of a [`kvpool::BlockPool`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are the arguments of the calls named")]
pub enum PoolOperation {
    /// [`kvpool::BlockPool::allocate`]
    Allocate { blocks: usize },
    /// [`kvpool::BlockPool::acquire`]
    Acquire { blocks: Ids },
    /// [`kvpool::BlockPool::release`]
    Release { blocks: Ids },
    /// [`kvpool::BlockPool::release_table`]
    ReleaseTable { blocks: Ids },
    /// [`kvpool::BlockPool::release_after`]
    ReleaseAfter { blocks: Ids, step: u64 },
    /// [`kvpool::BlockPool::complete_step`]
    CompleteStep { step: u64 },
    /// [`kvpool::BlockPool::match_and_acquire_for`]
    Match { chain: ChainRecord, max_blocks: usize, tenant: Option<u32> },
    /// [`kvpool::BlockPool::register`]
    Register { blocks: Ids, chain: ChainRecord, start: usize },
    /// [`kvpool::BlockPool::mark_computed`]
    MarkComputed { blocks: Ids },
    /// [`kvpool::BlockPool::register_link`]
    RegisterLink { block: u32, link: LinkRecord },
    /// [`kvpool::BlockPool::acquire_registered`]
    AcquireRegistered { link: LinkRecord },
    /// [`kvpool::BlockPool::mark_accessed`]
    MarkAccessed { blocks: Ids, time: f64 },
    /// [`kvpool::BlockPool::drop_cached`]
    Evict { blocks: Ids },
    /// [`kvpool::BlockPool::reset`]
    Reset,
    /// [`kvpool::BlockPool::bump_epoch`]
    BumpEpoch,
    /// [`kvpool::BlockPool::resize`]
    Resize { num_blocks: usize },
    /// [`kvpool::BlockPool::retain`]
    Retain { blocks: Ids, retention: RetentionRecord },
    /// [`kvpool::BlockPool::assign_tenant`]
    AssignTenant { blocks: Ids, tenant: u32 },
    /// [`kvpool::BlockPool::advance_time`]
    AdvanceTime { now: f64 },
    /// [`kvpool_observe::PoolWatch::take_events`]
    TakeEvents,
    /// [`kvpool::BlockPool::fence`]
    Fence,
    /// [`kvpool::BlockPool::release_until`]
    ReleaseUntil { blocks: Ids, ticket: u64 },
    /// [`kvpool::BlockPool::end_fence`]
    EndFence { ticket: u64 },
    /// [`kvpool::BlockPool::evict`]; `Evict` is of blocks that are named.
    EvictNext { blocks: usize },
    /// [`kvpool::BlockPool::lookup_refreshing`]
    LookupRefreshing { chain: ChainRecord, start: usize, max_blocks: usize },
    /// [`kvpool::BlockPool::acquire_match`]; the chain is its part from `start` on.
    AcquireMatch { blocks: Ids, chain: ChainRecord, start: usize },
    /// [`kvpool::BlockPool::register_table`]
    RegisterTable { blocks: Ids, chain: ChainRecord, start: usize },
    /// [`kvpool::BlockPool::adopt`]
    Adopt { blocks: Ids, chain: ChainRecord, start: usize },
    /// [`kvpool::BlockPool::disown`]
    Disown { blocks: Ids },
}

/// A call of a [`kvpool::CacheManager`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are the arguments of the calls named")]
pub enum ManagerOperation {
    /// [`kvpool::CacheManager::admit_with`]; `foreign` is a prompt of another hasher.
    Admit {
        #[serde(with = "RequestIdRecord")]
        request: RequestId,
        prompt: ChainRecord,
        foreign: bool,
        hints: HintsRecord,
    },
    /// [`kvpool::CacheManager::resume`]; `rehashed` are the keys of a prompt that was hashed again.
    Resume { request: Name, rehashed: Option<Rehashed> },
    /// [`kvpool::CacheManager::release_with`]
    Release { request: Name, after_step: Option<u64>, end_of_life: bool },
    /// [`kvpool::CacheManager::preempt`]
    Preempt { request: Name, after_step: Option<u64> },
    /// [`kvpool::CacheManager::append`]; `filled` are the keys of the blocks that became full, row by row.
    Append { rows: Rows, tokens: usize, commit_first: bool, filled: Keys, fingerprints: Keys },
    /// [`kvpool::CacheManager::append_tokens`]
    AppendTokens { request: Name, tokens: usize, lookahead: usize, filled: Keys, fingerprints: Keys },
    /// [`kvpool::CacheManager::commit`]
    Commit { request: Name, computed_tokens: usize },
    /// [`kvpool::CacheManager::commit_batch`]
    CommitBatch { rows: Rows, computed_tokens: Vec<usize> },
    /// [`kvpool::CacheManager::fork`]
    Fork {
        parent: Name,
        #[serde(with = "RequestIdRecord")]
        child: RequestId,
    },
    /// [`kvpool::CacheManager::truncate`]
    Truncate { request: Name, tokens: usize },
    /// [`kvpool::CacheManager::trim_window`]
    TrimWindow { request: Name, window: usize },
    /// [`kvpool::CacheManager::take_plan`]
    TakePlan,
    /// [`kvpool::CacheManager::begin_swap_out`]
    BeginSwapOut { requests: Vec<Name> },
    /// [`kvpool::CacheManager::begin_swap_in`]
    BeginSwapIn { requests: Vec<Name> },
    /// [`kvpool::CacheManager::complete_swap`]
    CompleteSwap { swap: u64 },
    /// [`kvpool::CacheManager::abort_swap`]
    AbortSwap { swap: u64 },
    /// [`kvpool::CacheManager::commit_step`]; `stale` is a plan of an earlier state or of another manager.
    CommitStep { planned: Vec<Planned>, stale: bool },
    /// [`kvpool::CacheManager::retain`]
    Retain { request: Name, ranges: Vec<RangeRecord> },
    /// [`kvpool::CacheManager::set_tenant`]
    SetTenant { request: Name, tenant: u32 },
    /// [`kvpool::CacheManager::retain_prefix`]
    RetainPrefix { prompt: ChainRecord, foreign: bool, ranges: Vec<RangeRecord> },
    /// [`kvpool::CacheManager::advance_time`]
    AdvanceTime { now: f64 },
    /// [`kvpool::CacheManager::complete_step`]
    CompleteStep { step: u64 },
    /// [`kvpool::CacheManager::bump_epoch`]
    BumpEpoch,
    /// [`kvpool::CacheManager::reset`]
    Reset,
    /// [`kvpool::CacheManager::drop_cached`]
    Evict { blocks: Ids },
    /// [`kvpool::CacheManager::resize`]
    Resize { num_blocks: usize },
    /// [`kvpool_observe::ManagerWatch::take_events`]
    TakeEvents,
    /// [`kvpool::CacheManager::evict`]; `Evict` is of blocks that are named.
    EvictNext { blocks: usize },
}

/// One operation of a step that was planned.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are the arguments of the calls named")]
pub enum Planned {
    /// [`kvpool::CacheManager::plan_admit_with`]
    Admit {
        #[serde(with = "RequestIdRecord")]
        request: RequestId,
        prompt: ChainRecord,
        hints: HintsRecord,
    },
    /// [`kvpool::CacheManager::plan_resume`]
    Resume { request: Name, rehashed: Option<Rehashed> },
    /// [`kvpool::CacheManager::plan_append`]
    Append { request: Name, tokens: usize, filled: Keys, fingerprints: Keys },
    /// [`kvpool::CacheManager::plan_preempt`]
    Preempt { request: Name, after_step: Option<u64> },
    /// [`kvpool::CacheManager::plan_release`]
    Release { request: Name, after_step: Option<u64> },
}

/// The keys and fingerprints of all blocks of a prompt that was hashed again, after an epoch bump.
pub type Rehashed = (Keys, Keys);

/// A request: by its slot, a small number that the manager gives at admission and gives again after release; by its id where
/// no request has it, and wherever slots may differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Name {
    /// A request that the manager knows.
    Slot(u32),
    /// By id.
    Id(#[serde(with = "RequestIdRecord")] RequestId),
}

/// The requests of a batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Rows {
    /// Those of the batch that was recorded before this one.
    Same,
    /// By slot.
    Slots(Vec<u32>),
    /// By id: a batch that names a request which does not exist, or one twice; and wherever slots may differ.
    Ids(#[serde(with = "request_ids")] Vec<RequestId>),
}

/// What was said of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RetentionRecord {
    /// 0 to 100 are priorities, 101 is pinned, 102 demoted.
    keep: u8,
    /// Seconds; false is idle, true absolute.
    ttl: Option<(bool, f64)>,
    demote_then: bool,
}

const PINNED: u8 = 101;
const DEMOTED: u8 = 102;

impl From<Retention> for RetentionRecord {
    fn from(retention: Retention) -> Self {
        let keep = match retention.keep {
            Keep::Priority(priority) => priority.get(),
            Keep::Pinned => PINNED,
            Keep::Demoted => DEMOTED,
            // Kinds that came later: they get numbers here when they come.
            _ => Priority::NORMAL.get(),
        };
        let ttl = retention.ttl.and_then(|ttl| match ttl {
            Ttl::Idle(seconds) => Some((false, seconds)),
            Ttl::Absolute(seconds) => Some((true, seconds)),
            _ => None,
        });
        Self { keep, ttl, demote_then: retention.then == Then::Demote }
    }
}

impl RetentionRecord {
    /// What it was.
    #[must_use]
    pub fn retention(&self) -> Retention {
        let keep = match self.keep {
            PINNED => Keep::Pinned,
            DEMOTED.. => Keep::Demoted,
            priority => Keep::Priority(Priority::new(priority).unwrap_or(Priority::MAX)),
        };
        let ttl = self.ttl.map(|(absolute, seconds)| match absolute {
            true => Ttl::Absolute(seconds),
            false => Ttl::Idle(seconds),
        });
        Retention { keep, ttl, then: if self.demote_then { Then::Demote } else { Then::Normal } }
    }
}

/// What was said of a range of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RangeRecord {
    start: usize,
    end: Option<usize>,
    retention: RetentionRecord,
}

impl From<&RetentionRange> for RangeRecord {
    fn from(range: &RetentionRange) -> Self {
        Self { start: range.start, end: range.end, retention: range.retention.into() }
    }
}

impl RangeRecord {
    /// What it was.
    #[must_use]
    pub fn range(&self) -> RetentionRange {
        RetentionRange { start: self.start, end: self.end, retention: self.retention.retention() }
    }
}

/// What was said of a request at its admission.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HintsRecord {
    tenant: Option<u32>,
    no_cache: bool,
    ranges: Vec<RangeRecord>,
}

impl From<&RequestHints> for HintsRecord {
    fn from(hints: &RequestHints) -> Self {
        let ranges = hints.ranges.iter().map(RangeRecord::from).collect();
        Self { tenant: hints.tenant.map(|tenant| tenant.0), no_cache: hints.no_cache, ranges }
    }
}

impl HintsRecord {
    /// What they were.
    #[must_use]
    pub fn hints(&self) -> RequestHints {
        let ranges = self.ranges.iter().map(RangeRecord::range).collect();
        RequestHints { tenant: self.tenant.map(TenantId), no_cache: self.no_cache, ranges }
    }
}
