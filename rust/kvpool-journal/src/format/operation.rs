//! What can be asked of a pool and of a manager, as plain data: one variant per call that changes anything.
//!
//! The order of variants is the format: new ones go to the end.

use std::ops::Range;

use kvpool::retention::{Keep, Priority, Retention, TenantId, Then, Ttl};
use kvpool::{
    AdmitOptions, Computed, Covered, Finish, Loaded, Part, RequestId, RetentionRange, Signal, Ticket, Until,
};
use serde::{Deserialize, Serialize};

use super::settings::{RequestIdRecord, request_ids};
use crate::{ChainRecord, Ids, Keys};

/// One entry of a journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Entry<O> {
    /// An operation, and the check of its result.
    Operation(O, u32),
    /// The digest of the state after the operations so far.
    Digest(u64),
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
        options: OptionsRecord,
    },
    /// [`kvpool::CacheManager::resume_with`]; `rehashed` are the keys of a prompt that was hashed again.
    Resume { request: Name, part: PartRecord, rehashed: Option<Rehashed> },
    /// [`kvpool::CacheManager::release`]
    Release { request: Name, until: UntilRecord },
    /// [`kvpool::CacheManager::preempt`]
    Preempt { request: Name, until: UntilRecord },
    /// [`kvpool::CacheManager::append_ragged`]; `filled` are the keys of the blocks that became full, row by row.
    Append {
        rows: Rows,
        tokens: usize,
        offsets: Vec<usize>,
        computed: ComputedRecord,
        covered: CoveredRecord,
        most_changes: Option<usize>,
        filled: Keys,
        fingerprints: Keys,
    },
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
    Truncate { request: Name, tokens: usize, until: UntilRecord },
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
    /// [`kvpool::CacheManager::truncate_batch`]
    TruncateBatch { rows: Rows, tokens: Vec<usize>, until: UntilRecord },
    /// [`kvpool::CacheManager::extend`]
    Extend { request: Name, tokens: usize },
    /// [`kvpool::CacheManager::external_done`]
    ExternalDone { request: Name, loaded: LoadedRecord },
    /// [`kvpool::CacheManager::fence`]
    Fence,
    /// [`kvpool::CacheManager::end_fence`]
    EndFence { ticket: u64 },
    /// [`kvpool::CacheManager::end_session`]
    EndSession { request: Name, until: UntilRecord },
    /// [`kvpool::CacheManager::evict`]; `Evict` is of blocks that are named.
    EvictNext { blocks: usize },
    /// [`kvpool::CacheManager::release_batch`]
    ReleaseBatch { requests: Vec<Name>, until: UntilRecord },
    /// [`kvpool::CacheManager::fork_batch`]
    ForkBatch {
        parents: Vec<Name>,
        #[serde(with = "request_ids")]
        children: Vec<RequestId>,
    },
    /// [`kvpool::CacheManager::extend_encoder`]
    ExtendEncoder { request: Name, tokens: usize },
    /// [`kvpool::CacheManager::release_batch_with`]; a signal for each request.
    ReleaseBatchWith { requests: Vec<Name>, signals: Vec<SignalRecord>, until: UntilRecord },
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
        options: OptionsRecord,
    },
    /// [`kvpool::CacheManager::plan_resume_with`]
    Resume { request: Name, part: PartRecord, rehashed: Option<Rehashed> },
    /// [`kvpool::CacheManager::plan_append_ragged`], row by row; `covered` are the slots that its table covers then.
    Append { request: Name, tokens: usize, covered: usize, filled: Keys, fingerprints: Keys },
    /// [`kvpool::CacheManager::plan_preempt`]
    Preempt { request: Name, until: UntilRecord },
    /// [`kvpool::CacheManager::plan_release`]
    Release { request: Name, until: UntilRecord },
}

/// How much of a prompt was admitted: tokens to allocate, external ones, and whether the admission matched nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartRecord(Option<usize>, usize, bool);

impl From<Part> for PartRecord {
    fn from(part: Part) -> Self {
        Self(part.allocate_tokens, part.external_tokens, part.compute_all)
    }
}

impl PartRecord {
    /// What it was.
    #[must_use]
    pub const fn part(&self) -> Part {
        Part { allocate_tokens: self.0, external_tokens: self.1, compute_all: self.2 }
    }
}

/// When released blocks could be handed out again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "as those of `Until`")]
pub enum UntilRecord {
    #[default]
    Now,
    Step(u64),
    Ticket(u64),
}

impl From<Until> for UntilRecord {
    fn from(until: Until) -> Self {
        match until {
            Until::Now => Self::Now,
            Until::Step(step) => Self::Step(step),
            Until::Ticket(ticket) => Self::Ticket(ticket.get()),
        }
    }
}

impl UntilRecord {
    /// What it was.
    #[must_use]
    pub const fn until(&self) -> Until {
        match *self {
            Self::Now => Until::Now,
            Self::Step(step) => Until::Step(step),
            Self::Ticket(ticket) => Until::Ticket(Ticket::new(ticket)),
        }
    }
}

/// What was computed of a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "as those of `Computed`")]
pub enum ComputedRecord {
    #[default]
    Nothing,
    AllButLast,
    Counts(Vec<usize>),
}

impl From<Computed<'_>> for ComputedRecord {
    fn from(computed: Computed<'_>) -> Self {
        match computed {
            Computed::Nothing => Self::Nothing,
            Computed::AllButLast => Self::AllButLast,
            Computed::Counts(counts) => Self::Counts(counts.to_vec()),
        }
    }
}

impl ComputedRecord {
    /// What it was.
    #[must_use]
    pub fn computed(&self) -> Computed<'_> {
        match self {
            Self::Nothing => Computed::Nothing,
            Self::AllButLast => Computed::AllButLast,
            Self::Counts(counts) => Computed::Counts(counts),
        }
    }
}

/// What was to have blocks of a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "as those of `Covered`")]
pub enum CoveredRecord {
    #[default]
    All,
    Lookahead(usize),
    Each(Vec<usize>),
}

impl From<Covered<'_>> for CoveredRecord {
    fn from(covered: Covered<'_>) -> Self {
        match covered {
            Covered::All => Self::All,
            Covered::Lookahead(slots) => Self::Lookahead(slots),
            Covered::Each(counts) => Self::Each(counts.to_vec()),
        }
    }
}

impl CoveredRecord {
    /// What it was.
    #[must_use]
    pub fn covered(&self) -> Covered<'_> {
        match self {
            Self::All => Covered::All,
            Self::Lookahead(slots) => Covered::Lookahead(*slots),
            Self::Each(counts) => Covered::Each(counts),
        }
    }
}

/// Which external tokens have arrived.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "as those of `Loaded`")]
pub enum LoadedRecord {
    All,
    First(usize),
    AllBut(Vec<Range<usize>>),
}

impl From<Loaded<'_>> for LoadedRecord {
    fn from(loaded: Loaded<'_>) -> Self {
        match loaded {
            Loaded::All => Self::All,
            Loaded::First(tokens) => Self::First(tokens),
            Loaded::AllBut(ranges) => Self::AllBut(ranges.to_vec()),
        }
    }
}

impl LoadedRecord {
    /// What it was.
    #[must_use]
    pub fn loaded(&self) -> Loaded<'_> {
        match self {
            Self::All => Loaded::All,
            Self::First(tokens) => Loaded::First(*tokens),
            Self::AllBut(ranges) => Loaded::AllBut(ranges),
        }
    }
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

/// How a request ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignalRecord {
    /// 0 unknown, 1 end of turn, 2 tool calls, 3 a limit, 4 aborted; any other is unknown.
    finish: u8,
    output_tokens: Option<u32>,
}

impl From<Signal> for SignalRecord {
    fn from(signal: Signal) -> Self {
        let finish = match signal.finish {
            Finish::Unknown => 0,
            Finish::Stop => 1,
            Finish::ToolCalls => 2,
            Finish::Length => 3,
            Finish::Aborted => 4,
        };
        Self { finish, output_tokens: signal.output_tokens }
    }
}

impl SignalRecord {
    /// What it was.
    #[must_use]
    pub const fn signal(self) -> Signal {
        let finish = match self.finish {
            1 => Finish::Stop,
            2 => Finish::ToolCalls,
            3 => Finish::Length,
            4 => Finish::Aborted,
            _ => Finish::Unknown,
        };
        Signal { finish, output_tokens: self.output_tokens }
    }
}

const PINNED: u8 = 101;
const DEMOTED: u8 = 102;

impl From<Retention> for RetentionRecord {
    fn from(retention: Retention) -> Self {
        let keep = match retention.keep {
            Keep::Priority(priority) => priority.get(),
            Keep::Pinned => PINNED,
            Keep::Demoted => DEMOTED,
        };
        let ttl = retention.ttl.map(|ttl| match ttl {
            Ttl::Idle(seconds) => (false, seconds),
            Ttl::Absolute(seconds) => (true, seconds),
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

/// How a request was admitted, and what was said of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OptionsRecord {
    part: PartRecord,
    tenant: Option<u32>,
    no_cache: bool,
    ranges: Vec<RangeRecord>,
}

impl From<&AdmitOptions> for OptionsRecord {
    fn from(options: &AdmitOptions) -> Self {
        let ranges = options.ranges.iter().map(RangeRecord::from).collect();
        let (part, tenant) = (options.part.into(), options.tenant.map(|tenant| tenant.0));
        Self { part, tenant, no_cache: options.no_cache, ranges }
    }
}

impl OptionsRecord {
    /// What they were.
    #[must_use]
    pub fn options(&self) -> AdmitOptions {
        let ranges = self.ranges.iter().map(RangeRecord::range).collect();
        let (part, tenant) = (self.part.part(), self.tenant.map(TenantId));
        AdmitOptions { part, tenant, no_cache: self.no_cache, ranges }
    }
}
