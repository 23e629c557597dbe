//! Records of arguments: the form in which a journal stores arguments, and the conversions in both
//! directions.
//!
//! The order of fields and variants is part of the format. New ones are added at the end.

use std::ops::Range;

use kvpool::retention::{Keep, Priority, Retention, TenantId, Then, Ttl};
use kvpool::{
    AdmitOptions, Computed, Covered, Finish, Loaded, Part, RequestId, RequestRef, RetentionRange, Signal,
    Ticket, Until,
};
use kvpool_vllm::Start;
use serde::{Deserialize, Serialize};

use super::settings::RequestIdRecord;
use crate::{ChainRecord, Filled, Ids};

/// The record of a request's id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdRecord(#[serde(with = "RequestIdRecord")] pub RequestId);

impl From<RequestRef<'_>> for IdRecord {
    fn from(id: RequestRef<'_>) -> Self {
        Self(id.to_owned())
    }
}

/// A prompt. A flag states whether it was hashed by another hasher than the manager's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the first sentence of the type describes them")]
pub struct PromptRecord {
    pub chain: ChainRecord,
    pub foreign: bool,
}

/// Tokens that are appended to the requests of a batch, the number of tokens that are computed, and the
/// number that blocks cover.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "as those of `kvpool::Rows`")]
pub struct AppendRecord {
    pub rows: Rows,
    /// Number of tokens.
    pub tokens: usize,
    pub offsets: Vec<usize>,
    pub computed: ComputedRecord,
    pub covered: CoveredRecord,
    pub most_changes: Option<usize>,
    /// The blocks that became full: those of the first request, then those of the second, and so on.
    pub filled: Filled,
}

impl AppendRecord {
    /// Returns the arguments of the append that this record describes, with the given requests and
    /// tokens.
    #[must_use]
    pub fn rows<'a>(&'a self, requests: &'a [RequestRef<'a>], tokens: &'a [u32]) -> kvpool::Rows<'a> {
        let Self { offsets, computed, covered, most_changes, .. } = self;
        let (computed, covered, most_changes) = (computed.computed(), covered.covered(), *most_changes);
        kvpool::Rows { requests, tokens, offsets, computed, covered, most_changes }
    }

    /// Returns the range of one request's tokens in the list of all appended tokens.
    #[must_use]
    pub fn ends(&self, row: usize) -> Range<usize> {
        match self.offsets.get(row..row + 2) {
            Some(&[start, end]) => start..end,
            _ => row..row + 1,
        }
    }
}

/// Tokens that are appended to one request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "as the arguments of `CacheManager::append_tokens`")]
pub struct TurnRecord {
    pub request: Name,
    /// Number of tokens.
    pub tokens: usize,
    pub lookahead: usize,
    /// The blocks that became full by the appended tokens.
    pub filled: Filled,
}

/// Requests that have ended, with a signal for each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the first sentence of the type describes them")]
pub struct EndedRecord {
    pub requests: Vec<Name>,
    pub signals: Vec<SignalRecord>,
}

/// Requests to fork, with the id of the new request for each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the first sentence of the type describes them")]
pub struct ForksRecord {
    pub parents: Vec<Name>,
    pub children: Vec<IdRecord>,
}

/// A planned step. A flag states whether the plan was made for an earlier state or by another manager.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the first sentence of the type describes them")]
pub struct PlanRecord {
    pub planned: Vec<Planned>,
    pub stale: bool,
}

/// One operation of a planned step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are the arguments of the calls named")]
pub enum Planned {
    /// [`kvpool::CacheManager::plan_admit_with`]
    Admit { request: IdRecord, prompt: ChainRecord, options: OptionsRecord },
    /// [`kvpool::CacheManager::plan_resume_with`]
    Resume { request: Name, part: PartRecord, rehashed: Option<Filled> },
    /// A call of [`kvpool::CacheManager::plan_append_ragged`], with one operation per request.
    /// `covered` is the number of token slots that the request's blocks have afterwards.
    Append { request: Name, tokens: usize, covered: usize, filled: Filled },
    /// [`kvpool::CacheManager::plan_preempt`]
    Preempt { request: Name, until: UntilRecord },
    /// [`kvpool::CacheManager::plan_release`]
    Release { request: Name, until: UntilRecord },
}

/// The part of a prompt that was admitted: the number of tokens to allocate, the number of external
/// tokens, and whether the admission skipped the lookup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartRecord(Option<usize>, usize, bool);

impl From<Part> for PartRecord {
    fn from(part: Part) -> Self {
        Self(part.allocate_tokens, part.external_tokens, part.compute_all)
    }
}

impl PartRecord {
    /// Converts the record to the argument that an admission takes.
    #[must_use]
    pub const fn part(&self) -> Part {
        Part { allocate_tokens: self.0, external_tokens: self.1, compute_all: self.2 }
    }
}

/// When released blocks can be allocated again.
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
    /// Converts the record to the argument that a release takes.
    #[must_use]
    pub const fn until(&self) -> Until {
        match *self {
            Self::Now => Until::Now,
            Self::Step(step) => Until::Step(step),
            Self::Ticket(ticket) => Until::Ticket(Ticket::new(ticket)),
        }
    }
}

/// Which tokens of the requests of a batch have computed KV.
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
    /// Converts the record to the argument that an append takes.
    #[must_use]
    pub fn computed(&self) -> Computed<'_> {
        match self {
            Self::Nothing => Computed::Nothing,
            Self::AllButLast => Computed::AllButLast,
            Self::Counts(counts) => Computed::Counts(counts),
        }
    }
}

/// For which tokens the requests of a batch need blocks.
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
    /// Converts the record to the argument that an append takes.
    #[must_use]
    pub fn covered(&self) -> Covered<'_> {
        match self {
            Self::All => Covered::All,
            Self::Lookahead(slots) => Covered::Lookahead(*slots),
            Self::Each(counts) => Covered::Each(counts),
        }
    }
}

/// The external tokens that a connector has loaded.
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
    /// Converts the record to the value with which the connector reported the load.
    #[must_use]
    pub fn loaded(&self) -> Loaded<'_> {
        match self {
            Self::All => Loaded::All,
            Self::First(tokens) => Loaded::First(*tokens),
            Self::AllBut(ranges) => Loaded::AllBut(ranges),
        }
    }
}

/// A request, by slot or by id. A slot is a small number that the manager assigns at admission and
/// reuses after the release. The id is used if no request has it, and in records that must also be
/// valid in a run with different slots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Name {
    /// The slot of a request that exists.
    Slot(u32),
    /// The id of a request.
    Id(#[serde(with = "RequestIdRecord")] RequestId),
}

/// The requests of a batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Rows {
    /// The requests are the same as in the batch that was recorded before.
    Same,
    /// The requests, by their slots.
    Slots(Vec<u32>),
    /// Ids of the requests. A record contains ids if a request does not exist or occurs twice, and in
    /// records that must also be valid in a run with different slots.
    Ids(Vec<IdRecord>),
}

/// A retention hint for blocks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RetentionRecord {
    /// The kind of hint. 0 to 100: a priority; 101: pinned; 102: demoted.
    keep: u8,
    /// Time to live in seconds. The flag is true for an absolute time, and false for a time since the
    /// last use.
    ttl: Option<(bool, f64)>,
    demote_then: bool,
}

/// The record of a signal, which states how a request ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignalRecord {
    /// How the generation ended. 1: end of turn, 2: tool calls, 3: a limit, 4: aborted; 0 and other
    /// values: unknown.
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
    /// Returns the signal that this record describes.
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
    /// Returns the retention hint that this record describes.
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

/// A retention hint for a range of tokens.
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
    /// Returns the range with its hint that this record describes.
    #[must_use]
    pub fn range(&self) -> RetentionRange {
        RetentionRange { start: self.start, end: self.end, retention: self.retention.retention() }
    }
}

/// The options of an admission, including retention.
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
    /// Returns the options of an admission that this record describes.
    #[must_use]
    pub fn options(&self) -> AdmitOptions {
        let ranges = self.ranges.iter().map(RangeRecord::range).collect();
        let (part, tenant) = (self.part.part(), self.tenant.map(TenantId));
        AdmitOptions { part, tenant, no_cache: self.no_cache, ranges }
    }
}

/// A match: its blocks, the part of a chain that it covers, and the position at which that part begins.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "as those of `kvpool::Match`")]
pub struct MatchRecord {
    pub blocks: Ids,
    pub chain: ChainRecord,
    pub start: usize,
}

/// The start of the blocks that a call caches: their position in the table, and the block before them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "as those of `kvpool_vllm::Start`")]
pub struct StartRecord {
    pub first: usize,
    pub before: Option<u32>,
}

impl From<Start> for StartRecord {
    fn from(Start { first, before }: Start) -> Self {
        Self { first, before }
    }
}

impl From<StartRecord> for Start {
    fn from(StartRecord { first, before }: StartRecord) -> Self {
        Self { first, before }
    }
}
