//! Why a block was not found: the reasons, and an explanation made of them.

use std::ops::Range;

use kvpool::groups::GroupSpec;
use kvpool::{Outlook, RequestId};

/// When something happened: the manager has no clock of its own.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct When {
    /// Admissions and resumptions until then, the one that did it included.
    pub admission: u64,
    /// The time that [`CacheManager::advance_time`](kvpool::CacheManager::advance_time) was told last,
    /// if it was and is remembered.
    pub time: Option<f64>,
}

/// Who a block had to go for, or who computes it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Requester {
    /// A request of the same tenant, salt and user.
    Request(RequestId),
    /// A request of another one, whose id is not told.
    Another,
    /// It is not remembered.
    Unknown,
}

/// Why a block of a prompt had to be computed.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum MissReason {
    /// No prompt with these tokens came before.
    NeverSeen,
    /// None that is remembered: never seen, or longer ago than the record reaches.
    NotRemembered,
    /// Up to this token it is like a prompt that came before, and differs from there on: of the last
    /// eight that differ, the one it is like the longest.
    Diverged {
        /// The first token that differs, counted from the start of the prompt.
        token: usize,
    },
    /// It was cached, and evicted for the blocks of another request.
    Evicted {
        /// When.
        when: When,
        /// The policy that chose it; `priority` if retention put it in a rank of its own.
        policy: &'static str,
        /// For whom.
        requester: Requester,
        /// What the policy thought of it, if it says so.
        outlook: Option<Outlook>,
    },
    /// It was cached until its time to live ran out, and evicted before it was used again.
    Expired {
        /// When it was evicted.
        when: When,
        /// For whom.
        requester: Requester,
    },
    /// It was cached, but said not to be used again (an end of life, `no_cache`), and evicted.
    EndOfLife {
        /// When it was evicted.
        when: When,
        /// For whom.
        requester: Requester,
    },
    /// It was cached, and evicted because its tenant was above its ceiling.
    TenantCeiling {
        /// When it was evicted.
        when: When,
        /// For whom.
        requester: Requester,
    },
    /// It was cached, and dropped by its id.
    DroppedById {
        /// When.
        when: When,
    },
    /// It was cached until a reset.
    Reset {
        /// When.
        when: When,
    },
    /// The same tokens were seen in another epoch.
    OtherEpoch {
        /// The epoch.
        epoch: u64,
    },
    /// The same tokens were seen under another salt.
    OtherSalt,
    /// The same tokens were seen under another adapter, or under none.
    OtherAdapter,
    /// The same tokens were seen with other extra keys: tenant, user, multimodal items, or several
    /// kinds at once.
    OtherKeys,
    /// A running request has the same content and has not committed it yet.
    BeingComputed {
        /// Which.
        by: Requester,
    },
    /// It was asked for before, but never committed: its request ended, was preempted, or cannot publish.
    NotComputed,
    /// Cached blocks with its hash hold another content.
    Collision,
    /// It is cached, but a lookup does not reach it: a block before it is missing.
    Unreachable,
    /// It comes behind a block that nobody has seen.
    Behind,
    /// The whole prompt is cached; its last token is always left to compute.
    LastToken,
    /// The last tokens of the prompt fill no block; only full blocks are cached.
    TooShort,
    /// Of a model with several KV-cache groups: groups of full attention have it cached, or, where
    /// there are none, it was computed before; but no hit ends behind it that all groups can serve.
    Unserved {
        /// The group that reaches least; `None` if none is to blame but what hits are multiples of.
        group: Option<u16>,
    },
    /// Of one KV-cache group: its tokens were computed before, and the group has kept nothing of them:
    /// a window or chunk was given up, or no state was copied there. See [`kvpool::groups::Keep`].
    NotKept,
}

impl MissReason {
    /// Names of all reasons, as users read them.
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

    /// Its position in [`Self::NAMES`].
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

    /// The reason's name, as users read it.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        Self::NAMES[self.index()]
    }

    /// When the content left the cache, if that is the reason.
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

    /// For requester it left the cache, or who computes it, if that is the reason.
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

    /// The first token that differs, if that is the reason.
    #[must_use]
    pub const fn token(&self) -> Option<usize> {
        if let Self::Diverged { token } = self { Some(*token) } else { None }
    }

    /// The epoch that it was seen in, if that is the reason.
    #[must_use]
    pub const fn epoch(&self) -> Option<u64> {
        if let Self::OtherEpoch { epoch } = self { Some(*epoch) } else { None }
    }

    /// The KV-cache group that is to blame, if that is the reason.
    #[must_use]
    pub const fn group(&self) -> Option<u16> {
        if let Self::Unserved { group } = self { *group } else { None }
    }

    /// What evicted it, if that is the reason.
    #[must_use]
    pub const fn policy(&self) -> Option<&'static str> {
        if let Self::Evicted { policy, .. } = self { Some(*policy) } else { None }
    }

    /// What the policy that evicted it thought of it, if that is the reason and it says so.
    #[must_use]
    pub const fn outlook(&self) -> Option<Outlook> {
        if let Self::Evicted { outlook, .. } = self { *outlook } else { None }
    }

    /// The same reason but for the time, and what was thought of it then.
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

/// Blocks, one after the other, that had to be computed for the same reason.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct MissSpan {
    /// Positions in the block table.
    pub blocks: Range<usize>,
    /// Positions of their tokens in the prompt.
    pub tokens: Range<usize>,
    /// Why. Where it is an eviction, the time, and the outlook, are those of the first block, which of
    /// a chain goes last.
    pub reason: MissReason,
}

/// Why a request had to compute what it did, when it was admitted or resumed last.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Explanation {
    /// The request.
    pub request: RequestId,
    /// Which admission it was, resumptions included, counted from 1.
    pub admission: u64,
    /// Whether it was resumed: its tokens are those that it had by then.
    pub resumed: bool,
    /// Tokens per block.
    pub block_size: usize,
    /// Tokens of its prompt.
    pub prompt_tokens: usize,
    /// Of those, tokens whose KV was cached.
    pub cached_tokens: usize,
    /// The rest, from the first missed block to the end of the prompt.
    pub spans: Vec<MissSpan>,
    /// With several KV-cache groups, how far each alone would have served the prompt. Blocks are hash
    /// units then.
    pub groups: Vec<GroupReach>,
}

/// How far one KV-cache group alone would have served a prompt, and why no further.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct GroupReach {
    /// The group.
    pub group: u16,
    /// What it keeps.
    pub spec: GroupSpec,
    /// Tokens of the longest hit that it could have served.
    pub reach_tokens: usize,
    /// Whether it is to blame for the length of the hit: no other reaches less.
    pub limits: bool,
    /// Why it serves no more; empty if no hit of this prompt can be longer. Blocks are those of the
    /// group's table.
    ///
    /// Of full attention, the first block that is missing. Of other groups, the longest hit that the
    /// group could have served once, and the first block that this lacks now; and the longest hit whose
    /// tokens were computed, if it kept nothing for that; or, if there is neither, what is said of the
    /// first token that was never computed. `tokens` are those that the group would have served
    /// besides.
    pub ends: Vec<MissSpan>,
}

impl Explanation {
    /// Spans at most: what comes behind so many is one more, [`MissReason::Behind`].
    pub const MAX_SPANS: usize = 64;

    /// One block more.
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

/// Tokens that were computed, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MissCounts([u64; MissReason::NAMES.len()]);

impl MissCounts {
    /// Tokens that were computed for the reason of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<u64> {
        MissReason::NAMES.iter().position(|&known| known == name).map(|at| self.0[at])
    }

    /// Every reason's name and its tokens.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        MissReason::NAMES.into_iter().zip(self.0)
    }

    /// Tokens of all reasons.
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

/// Tokens that requests had to compute, by reason: those of first admissions, and those of resumptions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MissStats {
    /// They sum up to [`ManagerStats::computed_tokens`](kvpool::ManagerStats::computed_tokens) and what
    /// a connector brought ([`ManagerStats::external_tokens`](kvpool::ManagerStats::external_tokens)).
    pub admitted: MissCounts,
    /// They sum up to [`ManagerStats::resumed_tokens`](kvpool::ManagerStats::resumed_tokens) less those
    /// that hit.
    pub resumed: MissCounts,
    /// Of those that are [`MissReason::Unserved`], in both, the tokens that each KV-cache group is to
    /// blame for.
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
