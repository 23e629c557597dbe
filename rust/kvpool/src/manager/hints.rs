//! Stores hints about a request: how long ranges of its tokens are worth keeping, its tenant, and
//! whether it is a scan, which reads its tokens only once.
//!
//! This module stores the hints of a request as token ranges that do not overlap, and determines the
//! blocks that each hint applies to. [`super::retention`] decides when hints take effect.
//!
//! The rules:
//! - A block belongs to a range if its *last* token does, because only whole blocks can be matched. So
//!   a range that ends inside a block does not include that block. A hint that tokens will not be used
//!   again, and that begins inside a block, includes it.
//! - The last hint wins: a later range replaces earlier ones where they overlap. A range also wins over
//!   `no_cache`.
//! - An absolute time to live starts when the hint is given, even if the block is registered later. An
//!   idle time to live runs only while no request holds the block, so for blocks in use it starts at
//!   their release.
//!
//! Costs: O(ranges) memory per request with hints. To apply the hints takes one call of the pool per
//! sequence of consecutive blocks with the same hint.

use std::ops::Range;

use crate::groups::{Blocks, GroupKind, Groups};
use crate::hash::HashCursor;
use crate::retention::{HintReport, Keep, Retention, TenantId, Then, Ttl};
use crate::sequence::{Part, Sequence};
use crate::{BlockId, BlockPool, PoolError};

/// A hint about a range of a request's tokens.
///
/// ```
/// use kvpool::RetentionRange;
/// use kvpool::retention::{Keep, Priority, Retention};
/// // The system prompt of 512 tokens is kept longer. Tokens from 4,096 on will not be used again.
/// let retention = Retention::of(Keep::Priority(Priority::new(80)?));
/// let ranges = [RetentionRange { start: 0, end: Some(512), retention }, RetentionRange::end_of_life(4096)];
/// assert_eq!(ranges[1].end, None);
/// # Ok::<(), kvpool::PoolError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetentionRange {
    /// The first token of the range.
    pub start: usize,
    /// Index of the token after the last token of the range. `None` includes all later tokens that the
    /// request has or will get.
    pub end: Option<usize>,
    /// The hint.
    pub retention: Retention,
}

impl RetentionRange {
    /// Makes the hint that the tokens from `start` on will not be used again.
    #[must_use]
    pub const fn end_of_life(start: usize) -> Self {
        Self { start, end: None, retention: Retention::END_OF_LIFE }
    }
}

/// Options of an admission: the part of the prompt that gets blocks, and hints about the request.
///
/// ```
/// use kvpool::{AdmitOptions, Part};
/// // A batch job reads a document once, in chunks of 512 tokens.
/// let part = Part { allocate_tokens: Some(512), ..Part::WHOLE };
/// let scan = AdmitOptions { part, no_cache: true, ..AdmitOptions::default() };
/// assert!(scan.has_hints());
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AdmitOptions {
    /// The part of the prompt for which blocks are allocated now, and the tokens that a connector
    /// loads.
    pub part: Part,
    /// The tenant of the blocks that the request registers.
    pub tenant: Option<TenantId>,
    /// Whether the request is a scan, which reads its tokens only once. The blocks that it registers
    /// will not be used again.
    pub no_cache: bool,
    /// Hints about ranges of the request's tokens. Where ranges overlap, the later one wins.
    pub ranges: Vec<RetentionRange>,
}

impl AdmitOptions {
    /// Whether the options contain a hint. Hints need a manager with retention.
    #[must_use]
    pub const fn has_hints(&self) -> bool {
        self.tenant.is_some() || self.no_cache || !self.ranges.is_empty()
    }
}

/// A range of tokens with its hint, as it is stored for a request. An absolute time to live is stored
/// as the time at which it ends.
#[derive(Clone, Copy, Debug)]
struct Span {
    start: usize,
    end: usize,
    retention: Retention,
    until: Option<f64>,
}

impl Span {
    /// Returns the hint of the range at time `now`. `None` if its time to live has ended. But a hint
    /// that demotes the blocks when its time ends is still returned.
    fn at(&self, now: Option<f64>) -> Option<Retention> {
        let (Some(until), Some(now)) = (self.until, now) else { return Some(self.retention) };
        match self.retention.then {
            // The remaining time is limited to a finite number, because the pool would refuse an
            // infinite one while hints are applied.
            _ if now < until => {
                let left = (until - now).min(f64::MAX);
                Some(Retention { ttl: Some(Ttl::Absolute(left)), ..self.retention })
            }
            then => (then == Then::Demote).then_some(Retention::END_OF_LIFE),
        }
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Hints {
    tenant: Option<TenantId>,
    no_cache: bool,
    /// The ranges of tokens with hints, in ascending order and without overlaps.
    spans: Vec<Span>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    All,
    /// Only the ranges of tokens that will not be used again.
    Ends,
}

impl Hints {
    /// Converts the hints in the options of an admission, which were checked and given at time `now`,
    /// to their stored form.
    pub(super) fn new(given: &AdmitOptions, now: Option<f64>) -> Self {
        Self { tenant: given.tenant, no_cache: given.no_cache, ..Self::of(&given.ranges, now) }
    }

    pub(super) const fn tenant(&self) -> Option<TenantId> {
        self.tenant
    }

    pub(super) fn of(ranges: &[RetentionRange], now: Option<f64>) -> Self {
        let mut hints = Self::default();
        for range in ranges {
            let until = match range.retention.ttl {
                Some(Ttl::Absolute(seconds)) => now.map(|now| (now + seconds).min(f64::MAX)),
                _ => None,
            };
            let end = range.end.unwrap_or(usize::MAX);
            hints.overlay(Span { start: range.start, end, retention: range.retention, until });
        }
        hints
    }

    /// Adds later hints about the same request. They replace earlier hints where both overlap.
    pub(super) fn extend(&mut self, later: &Self) {
        self.tenant = later.tenant.or(self.tenant);
        self.no_cache |= later.no_cache;
        later.spans.iter().for_each(|&span| self.overlay(span));
    }

    /// Adds a range. It replaces earlier ranges where they overlap.
    fn overlay(&mut self, new: Span) {
        let mut spans = Vec::with_capacity(self.spans.len() + 2);
        for &old in &self.spans {
            if old.start < new.start {
                spans.push(Span { end: old.end.min(new.start), ..old });
            }
            if old.end > new.end {
                spans.push(Span { start: old.start.max(new.end), ..old });
            }
        }
        spans.push(new);
        spans.sort_unstable_by_key(|span| span.start);
        self.spans = spans;
    }

    /// Splits the block positions in `positions` into parts that have the same hint. Calls `each` with
    /// each part and its hint.
    fn stretches(
        &self,
        positions: Range<usize>,
        block_size: usize,
        own_from: usize,
        now: Option<f64>,
        scope: Scope,
        mut each: impl FnMut(Range<usize>, Retention) -> Result<(), PoolError>,
    ) -> Result<(), PoolError> {
        let Range { start: mut at, end } = positions;
        for span in self.spans.iter().map(Some).chain([None]) {
            let tokens = span.map_or([usize::MAX; 2], |span| [span.start, span.end]);
            let [from, to] = tokens.map(|token| (token / block_size).clamp(at, end.max(at)));
            let without_range = at.max(own_from)..from;
            if self.no_cache && scope == Scope::All && !without_range.is_empty() {
                each(without_range, Retention::END_OF_LIFE)?;
            }
            let given = span.and_then(|span| span.at(now)).filter(|_| from < to);
            if let Some(given) = given.filter(|given| scope == Scope::All || given.keep == Keep::Demoted) {
                each(from..to, given)?;
            }
            at = to;
        }
        Ok(())
    }

    /// Applies the hints to the registered blocks of a request at some positions of its tables.
    pub(super) fn apply(
        &self,
        sequence: &Sequence,
        own_from: usize,
        pool: &mut BlockPool,
        positions: Range<usize>,
        scope: Scope,
    ) -> Result<HintReport, PoolError> {
        let mut report = HintReport::default();
        if sequence.tier != 0 {
            return Ok(report);
        }
        let size = sequence.main.block_tokens;
        for table in sequence.tables() {
            // `positions` are those of the first group. This converts one to the position of the same
            // tokens in the table of this group.
            let at = |position: usize| position.saturating_mul(size) / table.block_tokens;
            let end = positions.end.min(usize::MAX / size);
            let end = at(end).min(table.published).min(table.blocks.len());
            let start = at(positions.start).max(table.trimmed);
            if start >= end {
                continue;
            }
            let (blocks, own_from) = (&table.blocks, at(own_from));
            if let Some(tenant) = self.tenant.filter(|_| scope == Scope::All) {
                pool.assign_tenant(&blocks[start.max(own_from).min(end)..end], tenant)?;
            }
            let now = pool.retention_time();
            self.stretches(start..end, table.block_tokens, own_from, now, scope, |stretch, retention| {
                report.add(pool.retain(&blocks[stretch], retention)?);
                Ok(())
            })?;
        }
        Ok(report)
    }

    /// Applies the hints to the cached blocks of a hash chain. The chain was hashed in the pool's
    /// current epoch.
    pub(super) fn apply_to_chain(
        &self,
        pool: &mut BlockPool,
        cursor: &HashCursor,
        groups: Option<&Groups>,
    ) -> Result<HintReport, PoolError> {
        if let Some(groups) = groups {
            return self.apply_to_chain_in_groups(pool, cursor, groups);
        }
        let found = pool.find_prefix(cursor.chain(), 0, usize::MAX)?.blocks;
        let now = pool.retention_time();
        let hashes = cursor.chain().hashes();
        let mut report = HintReport::default();
        self.stretches(0..hashes.len(), pool.block_size(), 0, now, Scope::All, |stretch, retention| {
            let cached = stretch.start.min(found.len())..stretch.end.min(found.len());
            report.ignored += stretch.len() - cached.len();
            if retention.keep != Keep::Demoted {
                report.add(pool.retain(&found[cached], retention)?);
                return Ok(());
            }
            // Blocks that are demoted earlier are evicted earlier, so the last block of the chain is
            // demoted first.
            for hash in hashes[cached].iter().rev() {
                report.add(end_life_of(pool, pool.copies(hash), retention)?);
            }
            Ok(())
        })?;
        Ok(report)
    }

    /// Does the work of [`Self::apply_to_chain`] for models with several KV-cache groups. Each group
    /// keeps only the blocks that its hits need, so any position of the chain may be cached or missing.
    /// The hints apply to every cached block. Missing blocks count as ignored only in groups of full
    /// attention.
    fn apply_to_chain_in_groups(
        &self,
        pool: &mut BlockPool,
        cursor: &HashCursor,
        groups: &Groups,
    ) -> Result<HintReport, PoolError> {
        let (chain, now) = (cursor.chain(), pool.retention_time());
        let mut report = HintReport::default();
        for (group, spec) in groups.specs().iter().enumerate().filter(|(_, spec)| spec.is_cached()) {
            let positions = chain.len() * groups.unit() / spec.block_tokens;
            self.stretches(0..positions, spec.block_tokens, 0, now, Scope::All, |stretch, retention| {
                for at in stretch.rev() {
                    let mut copies = pool.copies_in_group(groups, chain, group, Blocks(at))?;
                    report.ignored += usize::from(copies.is_empty() && spec.kind == GroupKind::Full);
                    report.add(if retention.keep == Keep::Demoted {
                        end_life_of(pool, copies, retention)?
                    } else {
                        copies.truncate(1);
                        pool.retain(&copies, retention)?
                    });
                }
                Ok(())
            })?;
        }
        Ok(report)
    }
}

/// Gives the hint that a content will not be used again to all blocks with the content that no request
/// holds. A block that only a running step (a fence) holds also gets the hint.
fn end_life_of(
    pool: &mut BlockPool,
    mut copies: Vec<BlockId>,
    end: Retention,
) -> Result<HintReport, PoolError> {
    let all = copies.len();
    copies.retain(|&copy| pool.num_holders(copy) == 0);
    let ignored = all - copies.len();
    let mut report = pool.retain(&copies, end)?;
    report.ignored += ignored;
    Ok(report)
}
