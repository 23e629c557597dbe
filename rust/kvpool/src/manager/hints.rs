//! What is said of a request: ranges of its tokens, whose it is, and whether it is a scan; and which
//! blocks that concerns.
//!
//! Owns: what was said, in token ranges that do not overlap, and what it comes to at a time. It is kept
//! with the request; [`super::retention`] says when it takes effect.
//!
//! The rules:
//! - A block belongs to a range if its *last* token does: a block is matched whole, so whoever reuses
//!   it reuses its last token. A range that ends inside a block leaves that block out; an end of life
//!   that begins inside a block takes it in.
//! - The last hint wins: a later range replaces earlier ones where they overlap, and a range goes
//!   before `no_cache`.
//! - An absolute time to live counts from the hint, whenever the block is registered. An idle one runs
//!   while nobody holds the block: for blocks in use it starts at their release.
//!
//! Costs: O(ranges) memory per request with hints; O(stretches) to go through them.

use std::ops::Range;

use crate::groups::{Blocks, GroupKind, Groups};
use crate::hash::HashCursor;
use crate::retention::{HintReport, Keep, Retention, TenantId, Then, Ttl};
use crate::sequence::{Part, Sequence};
use crate::{BlockId, BlockPool, PoolError};

/// What is said of a range of a request's tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetentionRange {
    /// The first token.
    pub start: usize,
    /// The token after the last; `None` is all that there are and will be.
    pub end: Option<usize>,
    /// What is said.
    pub retention: Retention,
}

impl RetentionRange {
    /// Tokens from one on will not be used again.
    #[must_use]
    pub const fn end_of_life(start: usize) -> Self {
        Self { start, end: None, retention: Retention::END_OF_LIFE }
    }
}

/// How a request is admitted, and what is known of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AdmitOptions {
    /// How much of its prompt gets blocks now, and what a connector brings.
    pub part: Part,
    /// Whose the blocks are that it registers.
    pub tenant: Option<TenantId>,
    /// It is a scan: the blocks that it registers will not be used again.
    pub no_cache: bool,
    /// Ranges of its tokens; where they overlap, the later one counts.
    pub ranges: Vec<RetentionRange>,
}

impl AdmitOptions {
    /// Whether something is said that needs retention.
    #[must_use]
    pub const fn has_hints(&self) -> bool {
        self.tenant.is_some() || self.no_cache || !self.ranges.is_empty()
    }
}

/// A range as it is kept: its absolute time to live is a deadline.
#[derive(Clone, Copy, Debug)]
struct Span {
    start: usize,
    end: usize,
    retention: Retention,
    until: Option<f64>,
}

impl Span {
    /// What it says at a time: nothing, if its time to live has run out and nothing was to come then.
    fn at(&self, now: Option<f64>) -> Option<Retention> {
        let (Some(until), Some(now)) = (self.until, now) else { return Some(self.retention) };
        match self.retention.then {
            // No time that is left is infinite: the pool would refuse it, in the middle of what applies
            // hints.
            _ if now < until => {
                let left = (until - now).min(f64::MAX);
                Some(Retention { ttl: Some(Ttl::Absolute(left)), ..self.retention })
            }
            then => (then == Then::Demote).then_some(Retention::END_OF_LIFE),
        }
    }
}

/// What the manager keeps of a request's hints.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hints {
    tenant: Option<TenantId>,
    no_cache: bool,
    /// Ascending, not overlapping.
    spans: Vec<Span>,
}

/// Which of the hints are to take effect.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    All,
    /// Ends of life that were said of ranges.
    Ends,
}

impl Hints {
    /// What is kept of hints that are sound, said at `now`.
    pub(super) fn new(said: &AdmitOptions, now: Option<f64>) -> Self {
        Self { tenant: said.tenant, no_cache: said.no_cache, ..Self::of(&said.ranges, now) }
    }

    /// Whose the request is.
    pub(super) const fn tenant(&self) -> Option<TenantId> {
        self.tenant
    }

    /// Ranges, checked before, said at `now`.
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

    /// What is said later of the same request.
    pub(super) fn extend(&mut self, later: &Self) {
        self.tenant = later.tenant.or(self.tenant);
        self.no_cache |= later.no_cache;
        later.spans.iter().for_each(|&span| self.overlay(span));
    }

    /// Puts a span over those there are.
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

    /// Calls `each` with stretches of `positions` and what is said of them.
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
            // Behind the last span there is one more stretch of which none says anything.
            let tokens = span.map_or([usize::MAX; 2], |span| [span.start, span.end]);
            let [from, to] = tokens.map(|token| (token / block_size).clamp(at, end.max(at)));
            let unsaid = at.max(own_from)..from;
            if self.no_cache && scope == Scope::All && !unsaid.is_empty() {
                each(unsaid, Retention::END_OF_LIFE)?;
            }
            let said = span.and_then(|span| span.at(now)).filter(|_| from < to);
            if let Some(said) = said.filter(|said| scope == Scope::All || said.keep == Keep::Demoted) {
                each(from..to, said)?;
            }
            at = to;
        }
        Ok(())
    }

    /// Hints of a request take effect on the blocks at some positions of its table, as far as these are
    /// registered.
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
            // The same tokens in every group.
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

    /// Hints take effect on the cached blocks of a chain of the pool's epoch.
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
            // Tail first.
            for hash in hashes[cached].iter().rev() {
                report.add(end_life_of(pool, pool.copies(hash), retention)?);
            }
            Ok(())
        })?;
        Ok(report)
    }

    /// The same where there are KV-cache groups. Each of them has given up what its hits do not need,
    /// so of a chain there may be blocks of any position: all that are there are reached, and what is
    /// not there counts as ignored in groups of full attention alone.
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

/// All copies of a content are of no use any more. What somebody holds is his to end; a fence is nobody.
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
