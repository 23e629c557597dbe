//! Explanations for several KV-cache groups: how many tokens of a prompt each group could have served,
//! why it could not serve more, and which group limited the hit.
//!
//! The *reach* of a group is the length of the longest hit that the group could serve. The pool
//! computes it from the blocks that were cached at the time of the lookup. The record of the explainer
//! shows why the reach is not longer. In the record, each hash unit has an entry that shows whether its
//! tokens were ever computed, and each content that a group caches has an entry with its status. If a
//! unit was computed and the group has no entry for it, the group discarded the block without caching
//! it.
//!
//! Costs: O(1) per block after the reach of a group, and O(1) per missed hash unit of a prompt.

use kvpool::groups::{Blocks, GroupSpec, Groups, Tokens};

use super::reason::{GroupReach, MissReason, MissSpan};
use super::record::Status;
use super::{AdmissionContext, Explainer, before};
use crate::digest::group_key;

/// One KV-cache group: its number and specification, and the list of all groups.
#[derive(Clone, Copy)]
struct Group<'a> {
    groups: &'a Groups,
    number: usize,
    spec: GroupSpec,
}

impl Group<'_> {
    fn tokens(&self, block: usize) -> std::ops::Range<usize> {
        self.spec.tokens(Blocks(block)).0..self.spec.tokens(Blocks(block + 1)).0
    }

    /// Describes why a hit of a given length is impossible: a block of the group is missing.
    fn lacks(&self, block: usize, tokens: std::ops::Range<usize>, reason: MissReason) -> MissSpan {
        MissSpan { blocks: block..block + 1, tokens, reason }
    }
}

impl Explainer {
    /// Returns the reach of each group: how long a hit on the prompt it could serve, and the reasons
    /// why not a longer one.
    pub(super) fn reach(&self, asked: &AdmissionContext<'_>, groups: &Groups) -> Vec<GroupReach> {
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

    /// Returns the status that the record contains for the group's block at a position.
    fn status_in(&self, asked: &AdmissionContext<'_>, group: Group<'_>, block: usize) -> Option<Status> {
        let unit = group.groups.naming_unit(group.number, Blocks(block))?;
        let hash = asked.request.cursor.chain().hashes().get(unit.0)?;
        Some(self.record.status(self.record.find(group_key(hash.key(), group.number as u16))?))
    }

    /// Whether the tokens of a hash unit (a part of the prompt with a digest) were ever computed. If
    /// they were, all tokens before the unit were computed, too.
    fn is_written(&self, asked: &AdmissionContext<'_>, unit: usize) -> bool {
        let hash = asked.request.cursor.chain().hashes().get(unit);
        let status =
            hash.and_then(|hash| self.record.find(hash.key())).map(|entry| self.record.status(entry));
        matches!(status, Some(Status::Cached | Status::Gone(..) | Status::Written))
    }

    /// Returns the reasons why a group cannot serve a hit of more than `reach` tokens. The list is
    /// empty if the prompt allows no longer hit.
    fn ends(&self, asked: &AdmissionContext<'_>, group: Group<'_>, reach: usize) -> Vec<MissSpan> {
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
        // A hit needs all sink blocks (the first blocks of the prompt, which always stay visible) that
        // lie before its end.
        let Blocks(sinks) = spec.sink_blocks();
        let never_sink = (0..sinks).find(|&block| !was_cached(block)).unwrap_or(usize::MAX);
        let mut at = spec.needed(Tokens(reach + step)).0.0;
        // The loop tries longer and longer hits. `behind` is the position after the last block that the
        // group never cached. `once` is the longest hit that the group could have served at an earlier
        // time. `written` is the longest hit that the group could serve if it had cached all computed
        // tokens.
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

    /// Describes the first missing block of a full-attention group after its longest possible hit. That
    /// block prevents a longer hit.
    fn end_of_full(
        &self,
        asked: &AdmissionContext<'_>,
        group: Group<'_>,
        reach: usize,
        most: Tokens,
    ) -> MissSpan {
        let spec = group.spec;
        let blocks = reach / spec.block_tokens..spec.covering(most).0 + spec.margin;
        let block = blocks.clone().find(|&block| self.status_in(asked, group, block) != Some(Status::Cached));
        let block = block.unwrap_or(blocks.start);
        group.lacks(block, group.tokens(block), self.missing(asked, group, block, true))
    }

    /// Returns why a block is missing in a full-attention group. `first` is true if the group has all
    /// blocks before it.
    fn missing(
        &self,
        asked: &AdmissionContext<'_>,
        group: Group<'_>,
        block: usize,
        first: bool,
    ) -> MissReason {
        let (tokens, unit) = (group.tokens(block), group.groups.unit());
        let end = (tokens.end / unit).min(asked.request.cursor.chain().len());
        match (tokens.start / unit..end).find(|&unit| !self.is_written(asked, unit)) {
            Some(unit) => self.not_written(asked, unit, first),
            None => self.gone_from(asked, group, block),
        }
    }

    /// Returns the reason why a group lacks a block whose tokens were computed.
    fn gone_from(&self, asked: &AdmissionContext<'_>, group: Group<'_>, block: usize) -> MissReason {
        match self.status_in(asked, group, block) {
            Some(Status::Gone(cause, operation, admission)) => {
                self.departure(cause, operation, admission, asked.principal)
            }
            _ => MissReason::NotRemembered,
        }
    }

    /// Returns why a hash unit (a part of the prompt with a digest) was never computed. `first` is true
    /// if all units before it were computed.
    fn not_written(&self, asked: &AdmissionContext<'_>, unit: usize, first: bool) -> MissReason {
        let cursor = asked.request.cursor;
        let hash = cursor.chain().hashes().get(unit);
        match hash.and_then(|hash| self.record.find(hash.key())) {
            Some(entry) => self.standing(asked, unit, entry),
            None => self.unknown(cursor, unit, self.record.parent(before(cursor, unit)), first),
        }
    }

    /// Returns why a hash unit of the prompt was missed. `unserved` is true if all units between the
    /// end of the hit and this unit are cached, and were missed only because another group could not
    /// serve them.
    pub(super) fn reason_in_groups(
        &self,
        asked: &AdmissionContext<'_>,
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
        // Find the full-attention group with the fewest cached tokens from the start of the prompt. Do
        // not use the field `reach`, because it is rounded down to the alignment of hits.
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
