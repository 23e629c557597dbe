//! Settings and operations of a manager, from bytes.

use arbitrary::{Arbitrary, Result as Decoded, Unstructured};
use kvpool::{DuplicatePolicy, EvictionPolicy, Verify};

use crate::bytes::{after, pick, simpler_list, smaller, some, tokens, up_to};

/// Requests are named 0 to this.
pub(crate) const LAST_ID: u8 = 5;

/// What the manager is made with.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// Blocks of the device, null block included.
    pub num_blocks: usize,
    /// Blocks of the host, null block included; 0 for no host tier.
    pub host_blocks: usize,
    /// Whether a fifth of the pool is left to running requests.
    pub watermark: bool,
    /// How hits are verified.
    pub verify: Verify,
    /// What happens to duplicates.
    pub duplicates: DuplicatePolicy,
    /// Who is evicted first. The model knows LRU; with another policy results are not compared, invariants and closedness are.
    pub eviction: EvictionPolicy,
}

impl Setting {
    pub(crate) fn is_lru(&self) -> bool {
        self.eviction == EvictionPolicy::LRU
    }
}

impl<'a> Arbitrary<'a> for Setting {
    fn arbitrary(bytes: &mut Unstructured<'a>) -> Decoded<Self> {
        let num_blocks = 3 + up_to(bytes, 14)?;
        let host_blocks = [0, 2, 3, 5, 8, 12][up_to(bytes, 5)?];
        let flags: u8 = bytes.arbitrary()?;
        let verify = if flags & 1 == 0 { Verify::None } else { Verify::Tokens };
        let duplicates = if flags & 6 == 6 { DuplicatePolicy::DropOnRelease } else { DuplicatePolicy::Keep };
        // LRU two times of three.
        let policies = kvpool_policies::ALL;
        let eviction =
            policies[up_to(bytes, 3 * policies.len() as u8 - 1)?.saturating_sub(2 * policies.len())];
        Ok(Self { num_blocks, host_blocks, watermark: flags & 8 != 0, verify, duplicates, eviction })
    }
}

/// What a step plan may do.
#[derive(Clone, Debug, PartialEq)]
pub enum Planned {
    /// A new request with these tokens.
    Admit(i64, Vec<u32>),
    /// A preempted one.
    Resume(i64),
    /// Tokens for a running one.
    Append(i64, Vec<u32>),
    /// Preemption, when a step has ended or at once.
    Preempt(i64, Option<u64>),
    /// The end of a request, when a step has ended or at once.
    Release(i64, Option<u64>),
}

impl<'a> Arbitrary<'a> for Planned {
    fn arbitrary(bytes: &mut Unstructured<'a>) -> Decoded<Self> {
        let kind = pick(bytes, &[6, 3, 4, 2, 3])?;
        let id = id(bytes)?;
        Ok(match kind {
            0 => Self::Admit(id, tokens(bytes, 8)?),
            1 => Self::Resume(id),
            2 => Self::Append(id, tokens(bytes, 4)?),
            3 => Self::Preempt(id, after(bytes)?),
            _ => Self::Release(id, after(bytes)?),
        })
    }
}

/// What is done to a manager.
#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    /// A new request: id, tokens, whether it has a salt.
    Admit(i64, Vec<u32>, bool),
    /// A token for each of these requests, committed first or not.
    Append(Vec<i64>, u32, bool),
    /// Tokens for a request, and room for more.
    AppendTokens(i64, Vec<u32>, usize),
    /// So many tokens of a request are computed.
    Commit(i64, usize),
    /// All of them are.
    CommitAll(i64),
    /// A second request over the blocks of the first.
    Fork(i64, i64),
    /// A request keeps so many tokens.
    Truncate(i64, usize),
    /// A request gives up what is before a window.
    Trim(i64, usize),
    /// Preemption by recompute.
    Preempt(i64, Option<u64>),
    /// The end of one.
    Resume(i64),
    /// The end of a request.
    Release(i64, Option<u64>),
    /// A step ends.
    CompleteStep(u64),
    /// A plan of several operations: those that fit are committed, or all are dropped.
    Step(Vec<Planned>, bool),
    /// Preemption by swap.
    SwapOut(Vec<i64>),
    /// The end of one.
    SwapIn(Vec<i64>),
    /// The copies that are planned are handed out.
    TakePlan,
    /// The copies of a swap are done.
    CompleteSwap(usize),
    /// A swap is taken back.
    AbortSwap(usize),
    /// Blocks are dropped from the index.
    Evict(Vec<usize>),
    /// Everything cached is forgotten, if nobody holds a block.
    Reset,
    /// A new epoch begins.
    BumpEpoch,
    /// One block more.
    Grow,
}

fn id(bytes: &mut Unstructured<'_>) -> Decoded<i64> {
    Ok(up_to(bytes, LAST_ID)? as i64)
}

fn ids(bytes: &mut Unstructured<'_>) -> Decoded<Vec<i64>> {
    Ok(some(bytes, 3, LAST_ID)?.into_iter().map(|id| id as i64).collect())
}

impl<'a> Arbitrary<'a> for Operation {
    fn arbitrary(bytes: &mut Unstructured<'a>) -> Decoded<Self> {
        const WEIGHTS: [u8; 22] = [12, 8, 5, 3, 10, 6, 4, 2, 3, 4, 6, 2, 6, 4, 4, 4, 5, 2, 1, 1, 1, 1];
        Ok(match pick(bytes, &WEIGHTS)? {
            0 => Self::Admit(id(bytes)?, tokens(bytes, 9)?, pick(bytes, &[9, 1])? == 1),
            1 => {
                let flags: u8 = bytes.arbitrary()?;
                Self::Append(ids(bytes)?, u32::from(flags >> 1 & 1), flags & 1 != 0)
            }
            2 => Self::AppendTokens(id(bytes)?, tokens(bytes, 7)?, up_to(bytes, 4)?),
            3 => Self::Commit(id(bytes)?, up_to(bytes, 12)?),
            4 => Self::CommitAll(id(bytes)?),
            5 => Self::Fork(id(bytes)?, id(bytes)?),
            6 => Self::Truncate(id(bytes)?, up_to(bytes, 12)?),
            7 => Self::Trim(id(bytes)?, up_to(bytes, 7)?),
            8 => Self::Preempt(id(bytes)?, after(bytes)?),
            9 => Self::Resume(id(bytes)?),
            10 => Self::Release(id(bytes)?, after(bytes)?),
            11 => Self::CompleteStep(up_to(bytes, 9)? as u64),
            12 => {
                let commit = pick(bytes, &[3, 1])? == 0;
                let len = 1 + up_to(bytes, 3)?;
                Self::Step((0..len).map(|_| bytes.arbitrary()).collect::<Decoded<_>>()?, commit)
            }
            13 => Self::SwapOut(ids(bytes)?),
            14 => Self::SwapIn(ids(bytes)?),
            15 => Self::TakePlan,
            16 => Self::CompleteSwap(up_to(bytes, 2)?),
            17 => Self::AbortSwap(up_to(bytes, 2)?),
            18 => Self::Evict(some(bytes, 3, 17)?),
            19 => Self::Reset,
            20 => Self::BumpEpoch,
            _ => Self::Grow,
        })
    }
}

fn simpler_tokens(tokens: &[u32]) -> Vec<Vec<u32>> {
    let zeros = vec![0; tokens.len()];
    let zeros = (zeros != tokens).then_some(zeros);
    zeros.into_iter().chain(smaller(tokens.len()).map(|len| tokens[..len].to_vec())).collect()
}

fn simpler_ids(id: i64) -> impl Iterator<Item = i64> {
    smaller(id.unsigned_abs() as usize).map(|id| id as i64)
}

impl Planned {
    /// The operation that does the same at once.
    fn alone(&self) -> Operation {
        match self.clone() {
            Self::Admit(id, tokens) => Operation::Admit(id, tokens, false),
            Self::Resume(id) => Operation::Resume(id),
            Self::Append(id, tokens) => Operation::AppendTokens(id, tokens, 0),
            Self::Preempt(id, after) => Operation::Preempt(id, after),
            Self::Release(id, after) => Operation::Release(id, after),
        }
    }

    fn simpler(&self) -> Vec<Self> {
        match self {
            Self::Admit(id, tokens) => {
                simpler_tokens(tokens).into_iter().map(|tokens| Self::Admit(*id, tokens)).collect()
            }
            Self::Append(id, tokens) => {
                simpler_tokens(tokens).into_iter().map(|tokens| Self::Append(*id, tokens)).collect()
            }
            Self::Preempt(id, Some(_)) => vec![Self::Preempt(*id, None)],
            Self::Release(id, Some(_)) => vec![Self::Release(*id, None)],
            Self::Resume(_) | Self::Preempt(_, None) | Self::Release(_, None) => Vec::new(),
        }
    }
}

impl Operation {
    /// Simpler ones, the simplest first.
    pub(crate) fn simpler(&self) -> Vec<Self> {
        match self {
            Self::Admit(id, tokens, salted) => {
                let plain = salted.then(|| Self::Admit(*id, tokens.clone(), false));
                let prompts =
                    simpler_tokens(tokens).into_iter().map(|tokens| Self::Admit(*id, tokens, *salted));
                let ids = simpler_ids(*id).map(|id| Self::Admit(id, tokens.clone(), *salted));
                plain.into_iter().chain(prompts).chain(ids).collect()
            }
            Self::Append(ids, token, commit) => {
                let lists = simpler_list(ids).into_iter().map(|ids| Self::Append(ids, *token, *commit));
                let zero = (*token > 0).then(|| Self::Append(ids.clone(), 0, *commit));
                lists.chain(zero).chain(commit.then(|| Self::Append(ids.clone(), *token, false))).collect()
            }
            Self::AppendTokens(id, tokens, lookahead) => {
                let fewer = smaller(*lookahead).map(|n| Self::AppendTokens(*id, tokens.clone(), n));
                let shorter = simpler_tokens(tokens)
                    .into_iter()
                    .map(|tokens| Self::AppendTokens(*id, tokens, *lookahead));
                fewer.chain(shorter).collect()
            }
            Self::Commit(id, n) => smaller(*n).map(|n| Self::Commit(*id, n)).collect(),
            Self::CommitAll(id) => simpler_ids(*id).map(Self::CommitAll).collect(),
            Self::Fork(parent, child) => {
                let parents = simpler_ids(*parent).map(|parent| Self::Fork(parent, *child));
                parents.chain(simpler_ids(*child).map(|child| Self::Fork(*parent, child))).collect()
            }
            Self::Truncate(id, n) => smaller(*n).map(|n| Self::Truncate(*id, n)).collect(),
            Self::Trim(id, n) => smaller(*n).map(|n| Self::Trim(*id, n)).collect(),
            Self::Preempt(id, after) => {
                let now = after.map(|_| Self::Preempt(*id, None));
                now.into_iter().chain(simpler_ids(*id).map(|id| Self::Preempt(id, *after))).collect()
            }
            Self::Resume(id) => simpler_ids(*id).map(Self::Resume).collect(),
            Self::Release(id, after) => {
                let now = after.map(|_| Self::Release(*id, None));
                now.into_iter().chain(simpler_ids(*id).map(|id| Self::Release(id, *after))).collect()
            }
            Self::CompleteStep(step) => {
                smaller(*step as usize).map(|step| Self::CompleteStep(step as u64)).collect()
            }
            Self::Step(planned, commit) => {
                let mut simpler = Vec::new();
                if let ([one], true) = (&planned[..], commit) {
                    simpler.push(one.alone());
                }
                for at in 0..planned.len() {
                    let mut fewer = planned.clone();
                    fewer.remove(at);
                    simpler.push(Self::Step(fewer, *commit));
                }
                for (at, one) in planned.iter().enumerate() {
                    for one in one.simpler() {
                        let mut other = planned.clone();
                        other[at] = one;
                        simpler.push(Self::Step(other, *commit));
                    }
                }
                simpler
            }
            Self::SwapOut(ids) => simpler_list(ids).into_iter().map(Self::SwapOut).collect(),
            Self::SwapIn(ids) => simpler_list(ids).into_iter().map(Self::SwapIn).collect(),
            Self::CompleteSwap(nth) => smaller(*nth).map(Self::CompleteSwap).collect(),
            Self::AbortSwap(nth) => smaller(*nth).map(Self::AbortSwap).collect(),
            Self::Evict(ids) => simpler_list(ids).into_iter().map(Self::Evict).collect(),
            Self::TakePlan | Self::Reset | Self::BumpEpoch | Self::Grow => Vec::new(),
        }
    }
}
