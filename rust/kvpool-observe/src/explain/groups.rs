//! Of several KV-cache groups: how far each would have served a prompt, why no further, and which of
//! them a hit is short for.
//!
//! How far a group reaches the pool says, from what was cached when the request looked. Why it reaches
//! no further the record says: a hash unit has an entry that knows whether its tokens were ever
//! computed, and what a group caches has one that knows where it stands. What was computed and has no
//! entry of the group was given up and not kept.
//!
//! Costs: O(1) per block behind the reach of a group, and per unit of a prompt that was missed.

use kvpool::groups::{Blocks, GroupSpec, Groups, Tokens};

use super::reason::{GroupReach, MissReason, MissSpan};
use super::record::Status;
use super::{Asked, Explainer, before};
use crate::digest::group_key;

/// A group whose contents are looked for in the record.
#[derive(Clone, Copy)]
struct Group<'a> {
    groups: &'a Groups,
    number: usize,
    spec: GroupSpec,
}

impl Group<'_> {
    /// The tokens of some blocks.
    fn tokens(&self, block: usize) -> std::ops::Range<usize> {
        self.spec.tokens(Blocks(block)).0..self.spec.tokens(Blocks(block + 1)).0
    }

    /// A block of the group that a hit of some length lacks.
    fn lacks(&self, block: usize, tokens: std::ops::Range<usize>, reason: MissReason) -> MissSpan {
        MissSpan { blocks: block..block + 1, tokens, reason }
    }
}

impl Explainer {
    /// How far each group would have served the prompt, and why no further.
    pub(super) fn reach(&self, asked: &Asked<'_>, groups: &Groups) -> Vec<GroupReach> {
        let each = groups.specs().iter().zip(asked.admitted.reach).enumerate();
        let mut reach: Vec<_> = each
            .map(|(number, (&spec, &Tokens(reach_tokens)))| {
                let group = Group { groups, number, spec };
                let ends = self.ends(asked, group, reach_tokens);
                GroupReach { group: number as u16, spec, reach_tokens, limits: false, ends }
            })
            .collect();
        let least = reach.iter().filter(|group| !group.ends.is_empty()).map(|group| group.reach_tokens).min();
        for group in &mut reach {
            group.limits = !group.ends.is_empty() && Some(group.reach_tokens) == least;
        }
        reach
    }

    /// Where the block of a group at a position stands.
    fn status_in(&self, asked: &Asked<'_>, group: Group<'_>, block: usize) -> Option<Status> {
        let unit = group.groups.naming_unit(group.number, Blocks(block))?;
        let hash = asked.request.cursor.chain().hashes().get(unit.0)?;
        Some(self.record.status(self.record.find(group_key(hash.key(), group.number as u16))?))
    }

    /// Whether the tokens of a hash unit, and so all before it, were ever computed.
    fn is_written(&self, asked: &Asked<'_>, unit: usize) -> bool {
        let hash = asked.request.cursor.chain().hashes().get(unit);
        let status =
            hash.and_then(|hash| self.record.find(hash.key())).map(|entry| self.record.status(entry));
        matches!(status, Some(Status::Cached | Status::Gone(..) | Status::Written))
    }

    /// Why a group that reaches so far serves no longer hit; nothing if there can be none.
    fn ends(&self, asked: &Asked<'_>, group: Group<'_>, reach: usize) -> Vec<MissSpan> {
        let Group { groups, spec, .. } = group;
        let limit = Tokens(asked.request.cursor.num_tokens().saturating_sub(1));
        let most = groups.align(spec.ending_within(limit));
        if !spec.is_cached() || reach >= most.0 {
            return Vec::new();
        }
        if spec.kind.is_full() {
            return vec![self.end_of_full(asked, group, reach, most)];
        }
        let step = groups.alignment().0;
        let was_cached =
            |block| matches!(self.status_in(asked, group, block), Some(Status::Cached | Status::Gone(..)));
        // A hit of any length needs the blocks of sinks, as far as they lie before its end.
        let Blocks(sinks) = spec.sink_blocks();
        let never_sink = (0..sinks).find(|&block| !was_cached(block)).unwrap_or(usize::MAX);
        let mut at = spec.needed(Tokens(reach + step)).0.0;
        // Behind the last block so far that was never cached; the longest hits that the group could
        // have served, and could have kept.
        let (mut behind, mut once, mut written) = (0, None, None);
        for length in (reach + step..=most.0).step_by(step) {
            let (Blocks(first), Blocks(end)) = spec.needed(Tokens(length));
            while at < end {
                behind = if was_cached(at) { behind } else { at + 1 };
                at += 1;
            }
            if behind <= first && never_sink >= spec.full_blocks(Tokens(length)).0 {
                once = Some(length);
            }
            if self.is_written(asked, length / groups.unit() - 1) {
                written = Some(length);
            }
        }
        let missing = |length: usize, is_missing: &dyn Fn(Option<Status>) -> bool| {
            let (Blocks(first), Blocks(end)) = spec.needed(Tokens(length));
            let sinks = 0..sinks.min(spec.full_blocks(Tokens(length)).0);
            let block =
                sinks.chain(first..end).find(|&block| is_missing(self.status_in(asked, group, block)));
            block.unwrap_or(end.saturating_sub(1))
        };
        let mut ends = Vec::new();
        if let Some(length) = once {
            let block = missing(length, &|status| status != Some(Status::Cached));
            ends.push(group.lacks(block, reach..length, self.gone_from(asked, group, block)));
        }
        if let Some(length) = written.filter(|&length| once.is_none_or(|once| length > once)) {
            let never = |status| !matches!(status, Some(Status::Cached | Status::Gone(..)));
            ends.push(group.lacks(missing(length, &never), reach..length, MissReason::NotKept));
        }
        if ends.is_empty() {
            let unit = (reach / groups.unit()..).find(|&unit| !self.is_written(asked, unit)).unwrap_or(0);
            let block = unit * groups.unit() / spec.block_tokens;
            ends.push(group.lacks(block, reach..reach + step, self.not_written(asked, unit, true)));
        }
        ends
    }

    /// The first block behind the reach of a group of full attention that it does not have.
    fn end_of_full(&self, asked: &Asked<'_>, group: Group<'_>, reach: usize, most: Tokens) -> MissSpan {
        let spec = group.spec;
        let blocks = reach / spec.block_tokens..spec.covering(most).0 + spec.margin;
        let block = blocks.clone().find(|&block| self.status_in(asked, group, block) != Some(Status::Cached));
        let block = block.unwrap_or(blocks.start);
        group.lacks(block, group.tokens(block), self.missing(asked, group, block, true))
    }

    /// Why a group of full attention does not have a block. `first` if it had all before.
    fn missing(&self, asked: &Asked<'_>, group: Group<'_>, block: usize, first: bool) -> MissReason {
        let (tokens, unit) = (group.tokens(block), group.groups.unit());
        let end = (tokens.end / unit).min(asked.request.cursor.chain().len());
        match (tokens.start / unit..end).find(|&unit| !self.is_written(asked, unit)) {
            Some(unit) => self.not_written(asked, unit, first),
            None => self.gone_from(asked, group, block),
        }
    }

    /// Why a group has no longer what it had cached.
    fn gone_from(&self, asked: &Asked<'_>, group: Group<'_>, block: usize) -> MissReason {
        match self.status_in(asked, group, block) {
            Some(Status::Gone(cause, operation, admission)) => {
                self.departure(cause, operation, admission, asked.principal)
            }
            _ => MissReason::NotRemembered,
        }
    }

    /// Why a hash unit was never computed. `first` if those before it were.
    fn not_written(&self, asked: &Asked<'_>, unit: usize, first: bool) -> MissReason {
        let cursor = asked.request.cursor;
        let hash = cursor.chain().hashes().get(unit);
        match hash.and_then(|hash| self.record.find(hash.key())) {
            Some(entry) => self.standing(asked, unit, entry),
            None => self.unknown(cursor, unit, self.record.parent(before(cursor, unit)), first),
        }
    }

    /// Why a hash unit of the prompt was missed. `unserved` if all before it, behind the hit, was for
    /// the sake of another group.
    pub(super) fn reason_in_groups(
        &self,
        asked: &Asked<'_>,
        reach: &[GroupReach],
        unit: usize,
        unserved: bool,
    ) -> MissReason {
        let Some(groups) = asked.manager.groups() else { return MissReason::NotRemembered };
        let end = (unit + 1) * groups.unit();
        let blame = || {
            let group = reach.iter().find(|group| group.limits).map(|group| group.group);
            MissReason::Unserved { group }
        };
        // The one that has the fewest blocks, whatever hits are multiples of.
        let limit = Tokens(asked.request.cursor.num_tokens().saturating_sub(1));
        let end_of = |group: &&GroupReach| {
            let asked_for = group.spec.tokens(group.spec.full_blocks(limit)).0;
            group.ends.first().map_or(asked_for, |end| end.tokens.start)
        };
        let Some(full) = reach.iter().filter(|group| group.spec.kind.is_full()).min_by_key(end_of) else {
            return if self.is_written(asked, unit) {
                blame()
            } else {
                self.not_written(asked, unit, unserved)
            };
        };
        if end <= asked.admitted.full_tokens {
            return blame();
        }
        let group = Group { groups, number: full.group.into(), spec: full.spec };
        let (block, tokens) = ((end - 1) / full.spec.block_tokens, asked.request.cursor.num_tokens());
        match self.status_in(asked, group, block) {
            _ if full.spec.partial_hits && unserved && end >= tokens => MissReason::LastToken,
            _ if group.tokens(block).end > tokens && !full.spec.partial_hits => MissReason::TooShort,
            Some(Status::Cached) if !unserved => MissReason::Unreachable,
            Some(Status::Cached) if group.tokens(block).end >= tokens => MissReason::LastToken,
            Some(Status::Cached) => blame(),
            _ => self.missing(asked, group, block, unserved),
        }
    }
}
