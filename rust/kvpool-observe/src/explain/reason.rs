//! `MissReason`: why a block was not found. `Explanation`: the reasons for one request.

use std::ops::Range;

use kvpool::groups::GroupSpec;
use kvpool::{Outlook, RequestId};

/// The time of an event. The manager has no clock, so the time is a number of admissions.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct When {
    /// The number of admissions and resumptions until the event, including the admission or resumption
    /// that caused it.
    pub admission: u64,
    /// The latest time that was passed to
    /// [`CacheManager::advance_time`](kvpool::CacheManager::advance_time) before the event. `None` if
    /// there was none, or if it is no longer remembered.
    pub time: Option<f64>,
}

/// The request for which a block was evicted, or that is computing the block.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Requester {
    /// A request with the same tenant, salt and user.
    Request(RequestId),
    /// A request with another tenant, salt or user. Its id is not disclosed.
    Another,
    /// The explainer does not remember which request it was.
    Unknown,
}

/// The reason why a block of a prompt had to be computed.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum MissReason {
    /// No earlier prompt had these tokens.
    NeverSeen,
    /// No prompt with these tokens is remembered. Either there was none, or it was removed from the
    /// bounded record.
    NotRemembered,
    /// The prompt equals an earlier prompt up to this token, and differs at it. If there are several
    /// such prompts, the latest eight are compared, and the one with the longest common part counts.
    Diverged {
        /// The first token that differs, counted from the start of the prompt.
        token: usize,
    },
    /// The block was cached, and was evicted to make room for another request.
    Evicted {
        /// The time at which the block was evicted.
        when: When,
        /// The policy that chose the block. `priority` if the block was pinned, or if its priority was
        /// not normal.
        policy: &'static str,
        /// The request for which the block was evicted.
        requester: Requester,
        /// The policy's estimate of the block's further use, if the policy makes one.
        outlook: Option<Outlook>,
    },
    /// The block was cached until its time to live ended, and was evicted without being used again.
    Expired {
        /// The time at which the block was evicted.
        when: When,
        /// The request for which the block was evicted.
        requester: Requester,
    },
    /// The block was cached, but marked as not to be used again (an end of life, `no_cache`), and was
    /// evicted.
    EndOfLife {
        /// The time at which the block was evicted.
        when: When,
        /// The request for which the block was evicted.
        requester: Requester,
    },
    /// The block was cached, and was evicted because its tenant was above its ceiling.
    TenantCeiling {
        /// The time at which the block was evicted.
        when: When,
        /// The request for which the block was evicted.
        requester: Requester,
    },
    /// The block was cached, and the caller dropped it by its block id.
    DroppedById {
        /// The time at which the caller dropped the block.
        when: When,
    },
    /// The block was cached until the pool was reset.
    Reset {
        /// The time at which the pool was reset.
        when: When,
    },
    /// An earlier prompt had these tokens in another epoch (another version of the weights).
    OtherEpoch {
        /// The epoch.
        epoch: u64,
    },
    /// An earlier prompt had these tokens under another salt.
    OtherSalt,
    /// These tokens were seen under another adapter, or without an adapter.
    OtherAdapter,
    /// These tokens were seen with other extra keys: another tenant, user or multimodal item, or
    /// several differences at once.
    OtherKeys,
    /// A running request has the same content and has not committed it yet.
    BeingComputed {
        /// The running request that computes the content.
        by: Requester,
    },
    /// The block was requested before, but never became available to other requests: its request
    /// finished or was preempted before it computed the block, or does not share its blocks.
    NotComputed,
    /// The block's hash equals that of cached blocks that have another content (a collision).
    Collision,
    /// The block is cached, but a lookup does not reach it, because an earlier block of the prompt is
    /// missing.
    Unreachable,
    /// An earlier block of the prompt was never seen or is not remembered, so nothing is known about
    /// this block.
    Behind,
    /// The whole prompt is cached, but the engine always has to compute the last token.
    LastToken,
    /// The block is the last block of the prompt and not full. Only full blocks are cached.
    TooShort,
    /// With several KV-cache groups: the block is cached in the full-attention groups (or, without such
    /// groups, was computed before), but not all groups can serve a hit that covers it.
    Unserved {
        /// The KV-cache group whose longest possible hit is the shortest. `None` if only the alignment
        /// of hits is the cause.
        group: Option<u16>,
    },
    /// In one KV-cache group: the tokens were computed before, but the group did not cache them. It
    /// discarded its window or chunk, or copied no state there. See [`kvpool::groups::Keep`].
    NotKept,
}

impl MissReason {
    /// The names of all reasons, as they appear in explanations and metrics.
    pub const NAMES: [&'static str; 22] = [
        "never-seen",
        "not-remembered",
        "diverged",
        "evicted",
        "expired",
        "end-of-life",
        "tenant-ceiling",
        "dropped-by-id",
        "reset",
        "other-epoch",
        "other-salt",
        "other-adapter",
        "other-keys",
        "being-computed",
        "not-computed",
        "collision",
        "unreachable",
        "behind",
        "last-token",
        "too-short",
        "unserved",
        "not-kept",
    ];

    pub(super) const fn index(&self) -> usize {
        match self {
            Self::NeverSeen => 0,
            Self::NotRemembered => 1,
            Self::Diverged { .. } => 2,
            Self::Evicted { .. } => 3,
            Self::Expired { .. } => 4,
            Self::EndOfLife { .. } => 5,
            Self::TenantCeiling { .. } => 6,
            Self::DroppedById { .. } => 7,
            Self::Reset { .. } => 8,
            Self::OtherEpoch { .. } => 9,
            Self::OtherSalt => 10,
            Self::OtherAdapter => 11,
            Self::OtherKeys => 12,
            Self::BeingComputed { .. } => 13,
            Self::NotComputed => 14,
            Self::Collision => 15,
            Self::Unreachable => 16,
            Self::Behind => 17,
            Self::LastToken => 18,
            Self::TooShort => 19,
            Self::Unserved { .. } => 20,
            Self::NotKept => 21,
        }
    }

    /// Returns the name of the reason, as users see it in explanations and metrics.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        Self::NAMES[self.index()]
    }

    /// The time at which the content left the cache; `None` if the reason has no time.
    #[must_use]
    pub const fn when(&self) -> Option<When> {
        match self {
            Self::Evicted { when, .. }
            | Self::Expired { when, .. }
            | Self::EndOfLife { when, .. }
            | Self::TenantCeiling { when, .. }
            | Self::DroppedById { when }
            | Self::Reset { when } => Some(*when),
            _ => None,
        }
    }

    /// The request for which the content was evicted, or that computes it; `None` if the reason has no
    /// such request.
    #[must_use]
    pub const fn requester(&self) -> Option<&Requester> {
        match self {
            Self::Evicted { requester, .. }
            | Self::Expired { requester, .. }
            | Self::EndOfLife { requester, .. }
            | Self::TenantCeiling { requester, .. }
            | Self::BeingComputed { by: requester } => Some(requester),
            _ => None,
        }
    }

    /// Returns the position of the first token that differs, for [`Self::Diverged`].
    #[must_use]
    pub const fn token(&self) -> Option<usize> {
        if let Self::Diverged { token } = self { Some(*token) } else { None }
    }

    /// The epoch in which the tokens were seen, for [`Self::OtherEpoch`].
    #[must_use]
    pub const fn epoch(&self) -> Option<u64> {
        if let Self::OtherEpoch { epoch } = self { Some(*epoch) } else { None }
    }

    /// Returns the KV-cache group that limited the hit, for [`Self::Unserved`].
    #[must_use]
    pub const fn group(&self) -> Option<u16> {
        if let Self::Unserved { group } = self { *group } else { None }
    }

    /// Returns the name of the policy that evicted the content, for [`Self::Evicted`].
    #[must_use]
    pub const fn policy(&self) -> Option<&'static str> {
        if let Self::Evicted { policy, .. } = self { Some(*policy) } else { None }
    }

    /// The estimate of the block's further use, from the policy that evicted it, for [`Self::Evicted`].
    /// `None` if the policy makes no estimate.
    #[must_use]
    pub const fn outlook(&self) -> Option<Outlook> {
        if let Self::Evicted { outlook, .. } = self { *outlook } else { None }
    }

    /// Returns whether two reasons are equal. Ignores the time and the estimate of further use.
    fn continues(&self, before: &Self) -> bool {
        match (self, before) {
            (
                Self::Evicted { policy, requester, .. },
                Self::Evicted { policy: before_policy, requester: before_requester, .. },
            ) => policy == before_policy && requester == before_requester,
            _ if self.when().is_some() => {
                self.index() == before.index() && self.requester() == before.requester()
            }
            _ => self == before,
        }
    }
}

/// Consecutive blocks that had to be computed for the same reason.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct MissSpan {
    /// The positions of the blocks in the block table.
    pub blocks: Range<usize>,
    /// The positions of the blocks' tokens in the prompt.
    pub tokens: Range<usize>,
    /// The reason. For an eviction, the time and the estimate of further use are those of the first
    /// block. It was evicted last, because a chain is evicted from its end.
    pub reason: MissReason,
}

/// The explanation of one request: why it had to compute blocks at its last admission or resumption.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Explanation {
    /// The request.
    pub request: RequestId,
    /// The number of the admission, counted from 1. Resumptions count too.
    pub admission: u64,
    /// Whether the request was resumed. Its tokens are then those that it had at the resumption.
    pub resumed: bool,
    /// The number of tokens of each block.
    pub block_size: usize,
    /// The number of tokens of the prompt.
    pub prompt_tokens: usize,
    /// The number of tokens of the prompt with cached KV.
    pub cached_tokens: usize,
    /// The missed blocks, from the first one to the end of the prompt.
    pub spans: Vec<MissSpan>,
    /// For each KV-cache group, the longest hit that it could have served alone; empty with one group.
    /// With several groups, the "blocks" of this explanation are hash units, the parts of a prompt that
    /// have a digest.
    pub groups: Vec<GroupReach>,
}

/// The longest hit that one KV-cache group could have served alone, and why it could not serve more.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct GroupReach {
    /// The group.
    pub group: u16,
    /// The specification of the KV-cache group.
    pub spec: GroupSpec,
    /// The length in tokens of the longest hit that the group could have served.
    pub reach_tokens: usize,
    /// Whether the group limits the hit: its longest possible hit is not longer than that of any other
    /// group.
    pub limits: bool,
    /// Why the group cannot serve a longer hit; empty if no longer hit of this prompt is possible. The
    /// block positions are those of the group's block table. `tokens` are the tokens that the longer
    /// hit would have covered in addition.
    ///
    /// For full attention, there is one span: the first block that is missing. For other groups, there
    /// is a span for each of these that applies:
    /// - the longest hit that the group could have served at an earlier time, with the first block of
    ///   it that is missing now;
    /// - the longest hit for which all tokens were computed, if the group did not cache the blocks that
    ///   the hit needs;
    /// - if neither applies, the reason for the first token that was never computed.
    pub ends: Vec<MissSpan>,
}

impl Explanation {
    /// The maximum number of spans (runs of blocks with one reason) of an explanation. If there are
    /// more, all later blocks form one additional span with [`MissReason::Behind`].
    pub const MAX_SPANS: usize = 64;

    /// Adds the next missed block of the prompt, with its reason.
    pub(super) fn push(&mut self, reason: MissReason) {
        let block = self.spans.last().map_or(self.cached_tokens / self.block_size, |span| span.blocks.end);
        let end = ((block + 1) * self.block_size).min(self.prompt_tokens);
        let reason = if self.spans.len() < Self::MAX_SPANS { reason } else { MissReason::Behind };
        if let Some(last) = self.spans.last_mut().filter(|last| reason.continues(&last.reason)) {
            (last.blocks.end, last.tokens.end) = (block + 1, end);
            return;
        }
        let start = block * self.block_size;
        self.spans.push(MissSpan { blocks: block..block + 1, tokens: start..end, reason });
    }
}

/// The number of tokens that had to be computed, by the reason of the miss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MissCounts([u64; MissReason::NAMES.len()]);

impl MissCounts {
    /// Returns the number of tokens for the reason with this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<u64> {
        MissReason::NAMES.iter().position(|&known| known == name).map(|at| self.0[at])
    }

    /// Iterates over all reasons: the name and the number of tokens.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        MissReason::NAMES.into_iter().zip(self.0)
    }

    /// Returns the number of tokens for all reasons together.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    fn add(&mut self, explanation: &Explanation) {
        for span in &explanation.spans {
            self.0[span.reason.index()] += span.tokens.len() as u64;
        }
    }
}

/// The number of tokens that requests had to compute, by reason. First admissions and resumptions are
/// counted separately.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MissStats {
    /// Tokens at first admissions. The sum is
    /// [`ManagerStats::computed_tokens`](kvpool::ManagerStats::computed_tokens) plus the tokens that a
    /// connector supplied ([`ManagerStats::external_tokens`](kvpool::ManagerStats::external_tokens)).
    pub admitted: MissCounts,
    /// Tokens at resumptions. The sum is
    /// [`ManagerStats::resumed_tokens`](kvpool::ManagerStats::resumed_tokens) minus the tokens that
    /// hit.
    pub resumed: MissCounts,
    /// The tokens with [`MissReason::Unserved`], at admissions and resumptions, by the KV-cache group
    /// that limited the hit.
    pub unserved: Vec<u64>,
}

impl MissStats {
    pub(super) fn add(&mut self, explanation: &Explanation) {
        let counts = if explanation.resumed { &mut self.resumed } else { &mut self.admitted };
        counts.add(explanation);
        self.unserved.resize(explanation.groups.len(), 0);
        for span in &explanation.spans {
            if let Some(sum) = span.reason.group().and_then(|group| self.unserved.get_mut(usize::from(group)))
            {
                *sum += span.tokens.len() as u64;
            }
        }
    }
}
