//! A model of `explain` that remembers everything: each content by its whole hash, its tokens, why it
//! left the cache and for which request. It also remembers the retention hints of each block. Nothing
//! in the model is bounded, and it does not use the record of the explainer under test.

use std::collections::{BTreeMap, BTreeSet};

use kvpool::{BlockHash, BlockId, CacheManager, ExtraKeys, RequestId, RequestState};
use kvpool_observe::explain::{MissSpan, Requester, When};
use kvpool_observe::{Explanation, MissReason};

use super::BLOCK;

/// When and why a content left the cache, as recorded by the model.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Departure {
    /// The names of the possible reasons, and the name of the policy if the content was evicted.
    /// Several reasons are possible if several copies were removed by the same operation.
    pub(super) causes: BTreeSet<(&'static str, Option<String>)>,
    admission: u64,
    time: Option<f64>,
    requester: Option<(RequestId, ExtraKeys)>,
    epoch: u64,
}

#[derive(Clone, Debug)]
struct Content {
    parent: Option<BlockHash>,
    tokens: Vec<u32>,
    /// The number of contents that were requested before this one. The explainer compares only the
    /// latest contents with the same parent.
    order: usize,
    cached: bool,
    departure: Option<Departure>,
    /// Number of requests that requested this content and did not find it.
    asked: usize,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BlockHints {
    pub(super) demoted: bool,
    pub(super) priority: bool,
    /// The time at which the block's time to live ends, and whether the block is demoted at that time.
    pub(super) deadline: Option<(f64, bool)>,
    pub(super) expired: bool,
}

impl BlockHints {
    fn cause(self, policy: &str) -> (&'static str, Option<String>) {
        match self {
            Self { expired: true, .. } => ("expired", None),
            Self { demoted: true, .. } => ("end-of-life", None),
            Self { priority: true, .. } => ("evicted", Some("priority".into())),
            _ => ("evicted", Some(policy.into())),
        }
    }
}

/// The model: the whole history of a manager.
#[derive(Debug, Default)]
pub(super) struct Model {
    contents: BTreeMap<BlockHash, Content>,
    /// The extra keys with which the tokens of each first block were seen. Only the last four per first
    /// block are stored.
    contexts: BTreeMap<Vec<u32>, Vec<ExtraKeys>>,
    /// Like the field `contexts`, but without a limit on the number of extra keys.
    all_contexts: BTreeMap<Vec<u32>, Vec<ExtraKeys>>,
    /// Contents that lookups could find after the last operation, by block.
    cached: BTreeMap<BlockId, BlockHash>,
    pub(super) said: BTreeMap<BlockId, BlockHints>,
    policy: String,
    strict: bool,
    pub(super) time: Option<f64>,
    pub(super) admissions: u64,
    /// Number of missed tokens by reason, of first admissions and of resumptions.
    pub(super) misses: [BTreeMap<&'static str, u64>; 2],
}

fn adapter(extra: &ExtraKeys) -> Option<Box<[u8]>> {
    extra.adapter.as_ref().map(|adapter| adapter.id.clone())
}

fn same_principal(a: &ExtraKeys, b: &ExtraKeys) -> bool {
    a.salt == b.salt && a.tenant == b.tenant && a.user == b.user
}

/// Compares the extra keys of two prompts with the same tokens. Returns the reason that an explanation
/// has to report, and the number of keys that differ.
fn difference(own: &ExtraKeys, other: &ExtraKeys) -> (usize, MissReason) {
    let mut reasons = Vec::new();
    if own.epoch != other.epoch {
        reasons.push(MissReason::OtherEpoch { epoch: other.epoch });
    }
    if own.salt != other.salt {
        reasons.push(MissReason::OtherSalt);
    }
    if adapter(own) != adapter(other) {
        reasons.push(MissReason::OtherAdapter);
    }
    match &reasons[..] {
        [] => (0, MissReason::NotRemembered),
        [one] => (1, one.clone()),
        more => (more.len(), MissReason::OtherKeys),
    }
}

#[derive(Clone, Copy)]
pub(super) struct Prompt<'a> {
    pub(super) tokens: &'a [u32],
    pub(super) hashes: &'a [BlockHash],
    pub(super) extra: &'a ExtraKeys,
}

/// A running request, with the fields that are needed to explain the misses of other requests for the
/// same blocks.
pub(super) struct Runner {
    pub(super) id: RequestId,
    pub(super) extra: ExtraKeys,
    pub(super) hashes: Vec<BlockHash>,
    /// Number of blocks of its prompt. The later blocks were appended, so the record of the explainer
    /// may not contain them.
    pub(super) asked: usize,
    pub(super) published: usize,
}

impl Model {
    /// Makes a model for a pool with this policy. `strict` is true if the record of the explainer under
    /// test is large enough to remember everything.
    pub(super) fn new(policy: &str, strict: bool) -> Self {
        Self { policy: policy.into(), strict, ..Self::default() }
    }

    /// Compares the pool with its state before the operation `kind`, and records which contents were
    /// added and removed. `requester` is the request that ran the operation.
    pub(super) fn observe(
        &mut self,
        manager: &CacheManager,
        kind: Option<&'static str>,
        requester: Option<&(RequestId, ExtraKeys)>,
        epoch: u64,
    ) {
        let pool = manager.pool();
        let blocks = (1..pool.num_blocks() as u32).map(BlockId::new).filter(|&block| pool.is_computed(block));
        let now: BTreeMap<_, _> = blocks.map(|block| (block, pool.hash_of(block).unwrap())).collect();
        let left: BTreeSet<_> = now.values().copied().collect();
        let mut departures = BTreeMap::<BlockHash, Departure>::new();
        for (block, hash) in std::mem::take(&mut self.cached) {
            if now.get(&block) == Some(&hash) {
                continue;
            }
            let said = self.said.remove(&block).unwrap_or_default();
            if !left.contains(&hash) {
                let cause = kind.map_or_else(|| said.cause(&self.policy), |kind| (kind, None));
                let (admission, time) = (self.admissions, self.time);
                let causes = BTreeSet::new();
                let requester = requester.cloned();
                let new = Departure { causes, admission, time, requester, epoch };
                departures.entry(hash).or_insert(new).causes.insert(cause);
            }
        }
        for (hash, departure) in departures {
            let content = self.contents.get_mut(&hash).unwrap();
            (content.cached, content.departure) = (false, Some(departure));
        }
        for hash in left {
            let content = self.contents.get_mut(&hash).unwrap();
            if !content.cached {
                (content.cached, content.departure) = (true, None);
            }
        }
        self.cached = now;
    }

    /// Records that a request requested blocks of a prompt, or computed them.
    pub(super) fn enter(
        &mut self,
        hashes: &[BlockHash],
        tokens: &[u32],
        blocks: std::ops::Range<usize>,
        asked: bool,
    ) {
        for at in blocks {
            let order = self.contents.len();
            let content = self.contents.entry(hashes[at]).or_insert_with(|| Content {
                parent: at.checked_sub(1).map(|before| hashes[before]),
                tokens: tokens[at * BLOCK..(at + 1) * BLOCK].to_vec(),
                order,
                cached: false,
                departure: None,
                asked: 0,
            });
            content.asked += usize::from(asked);
        }
    }

    /// Records that a first block was missed with these extra keys.
    pub(super) fn enter_context(&mut self, tokens: &[u32], extra: &ExtraKeys) {
        let seen = self.contexts.entry(tokens[..BLOCK].to_vec()).or_default();
        if !seen.contains(extra) {
            seen.push(extra.clone());
            seen.drain(..seen.len().saturating_sub(4));
        }
        self.all_contexts.entry(tokens[..BLOCK].to_vec()).or_default().push(extra.clone());
    }

    /// Returns the contents with this parent, latest first. For first blocks, the extra keys are
    /// ignored.
    fn siblings(&self, parent: Option<BlockHash>) -> Vec<&Content> {
        let mut siblings: Vec<_> =
            self.contents.values().filter(|content| content.parent == parent).collect();
        siblings.sort_by_key(|content| std::cmp::Reverse(content.order));
        siblings
    }

    /// Returns every correct reason for the block at `position`. There are several only if they are
    /// equally correct. Tests cannot construct a [`When`], so the result copies the time of `given`. If
    /// it is the time of this block (`own_time`), checks it first.
    fn reasons(
        &self,
        explanation: &Explanation,
        (given, own_time): (&MissReason, bool),
        Prompt { tokens, hashes, extra }: Prompt<'_>,
        position: usize,
        runners: &[Runner],
    ) -> Vec<MissReason> {
        let (hits, reusable) = (explanation.cached_tokens / BLOCK, (tokens.len() - 1) / BLOCK);
        let parent = position.checked_sub(1).map(|at| hashes[at]);
        let Some(content) = self.contents.get(&hashes[position]) else {
            return vec![self.unknown(tokens, extra, position, parent)];
        };
        if content.cached {
            let last = position == hits && position >= reusable;
            return vec![if last { MissReason::LastToken } else { MissReason::Unreachable }];
        }
        let computing = |runner: &&Runner| {
            runner.published <= position
                && runner.extra.epoch == extra.epoch
                && runner.hashes.get(position) == Some(&hashes[position])
        };
        let by: Vec<_> = runners.iter().filter(computing).collect();
        let mut reasons: Vec<_> = by
            .iter()
            .map(|runner| {
                let same = same_principal(&runner.extra, extra);
                let by = if same { Requester::Request(runner.id.clone()) } else { Requester::Another };
                MissReason::BeingComputed { by }
            })
            .collect();
        // The record remembers at most two of the requests that requested the same content.
        if by.iter().all(|runner| runner.asked <= position) || content.asked > 2 {
            reasons.extend(self.departed(content, (given, own_time), extra));
        }
        reasons
    }

    fn departed(
        &self,
        content: &Content,
        (given, own_time): (&MissReason, bool),
        extra: &ExtraKeys,
    ) -> Vec<MissReason> {
        let Some(departure) = &content.departure else { return vec![MissReason::NotComputed] };
        let right = |when: &When| {
            let time = when.time == departure.time || (!self.strict && when.time.is_none());
            !own_time || (when.admission == departure.admission && time)
        };
        let requester = match &departure.requester {
            None => Requester::Unknown,
            Some((id, theirs)) if same_principal(theirs, extra) => Requester::Request(id.clone()),
            Some(_) => Requester::Another,
        };
        let mut reasons = Vec::new();
        if departure.causes.iter().any(|(name, _)| *name == "other-epoch") {
            return vec![MissReason::OtherEpoch { epoch: departure.epoch }];
        }
        for when in given.when().into_iter().filter(right) {
            for (name, policy) in &departure.causes {
                let requester = requester.clone();
                reasons.push(match *name {
                    "dropped-by-id" => MissReason::DroppedById { when },
                    "reset" => MissReason::Reset { when },
                    "expired" => MissReason::Expired { when, requester },
                    "end-of-life" => MissReason::EndOfLife { when, requester },
                    _ => {
                        let policy = policy.as_deref().unwrap_or_default();
                        let names = kvpool_policies::ALL.iter().map(|policy| policy.name());
                        let known = names.chain(["priority"]).find(|&known| known == policy);
                        // The model does not predict the policy's outlook, and only checks whether
                        // there is one.
                        let outlook = given.outlook();
                        assert_eq!(outlook.is_some(), policy == "hazard");
                        MissReason::Evicted { when, policy: known.unwrap(), requester, outlook }
                    }
                });
            }
        }
        reasons
    }

    fn unknown(
        &self,
        tokens: &[u32],
        extra: &ExtraKeys,
        position: usize,
        parent: Option<BlockHash>,
    ) -> MissReason {
        let own = &tokens[position * BLOCK..(position + 1) * BLOCK];
        if position == 0
            && let Some(seen) = self.contexts.get(own)
        {
            let differences = seen.iter().rev().map(|seen| difference(extra, seen));
            return differences.min_by_key(|(respects, _)| *respects).unwrap().1;
        }
        if parent.is_some_and(|parent| !self.contents.contains_key(&parent)) {
            return MissReason::Behind;
        }
        let siblings = self.siblings(parent);
        let common = |content: &&Content| content.tokens.iter().zip(own).take_while(|(a, b)| a == b).count();
        match siblings.iter().take(8).map(common).max() {
            Some(BLOCK) => MissReason::OtherKeys,
            Some(common) if common > 0 || position > 0 => {
                MissReason::Diverged { token: position * BLOCK + common }
            }
            _ => MissReason::NeverSeen,
        }
    }

    /// Returns whether some content with the same parent differs from these tokens exactly at `token`.
    pub(super) fn diverges(&self, Prompt { tokens, hashes, .. }: Prompt<'_>, token: usize) -> bool {
        let position = token / BLOCK;
        let own = &tokens[position * BLOCK..(position + 1) * BLOCK];
        let parent = position.checked_sub(1).map(|at| hashes[at]);
        self.contents.values().filter(|content| content.parent == parent).any(|content| {
            let common = content.tokens.iter().zip(own).take_while(|(a, b)| a == b).count();
            position * BLOCK + common == token
        })
    }

    /// Returns whether the first block's tokens were ever seen with extra keys for which `right` is the
    /// reason to report.
    pub(super) fn differs(
        &self,
        Prompt { tokens, extra, .. }: Prompt<'_>,
        right: impl Fn(&MissReason) -> bool,
    ) -> bool {
        let seen = self.all_contexts.get(&tokens[..BLOCK]);
        seen.is_some_and(|seen| seen.iter().any(|seen| right(&difference(extra, seen).1)))
    }

    /// Pairs the reason that an explanation gives for each block with the reasons that are correct.
    pub(super) fn expected(
        &mut self,
        explanation: &Explanation,
        prompt: Prompt<'_>,
        runners: &[Runner],
    ) -> Vec<(usize, MissReason, Vec<MissReason>)> {
        let Prompt { tokens, hashes, .. } = prompt;
        let mut expected = Vec::new();
        let mut next = explanation.cached_tokens / BLOCK;
        for MissSpan { blocks, tokens: of_span, reason, .. } in &explanation.spans {
            assert_eq!((blocks.start, of_span.start), (next, next * BLOCK));
            assert_eq!(of_span.end, (blocks.end * BLOCK).min(tokens.len()));
            next = blocks.end;
            let counts = &mut self.misses[usize::from(explanation.resumed)];
            *counts.entry(reason.name()).or_default() += of_span.len() as u64;
            for position in blocks.clone() {
                let right = if position == hashes.len() {
                    vec![MissReason::TooShort]
                } else {
                    let given = (reason, position == blocks.start);
                    self.reasons(explanation, given, prompt, position, runners)
                };
                expected.push((position, reason.clone(), right));
            }
        }
        assert_eq!(next, tokens.len().div_ceil(BLOCK));
        expected
    }
}

pub(super) fn is_running(manager: &CacheManager, id: &RequestId) -> bool {
    manager.request(id).is_ok_and(|info| info.state == RequestState::Running)
}
