//! Settings and operations of a manager, from bytes.

use arbitrary::{Arbitrary, Result as Decoded, Unstructured};
use kvpool::{DuplicatePolicy, EvictionPolicy, Part, Ticket, Until, Verify};

use super::arguments::{
    Arrived, Room, Rows, Said, counts, id, ids, part, rows, simpler_end, simpler_ids, simpler_parts,
    simpler_rows, simpler_tokens, ticket, until, without,
};
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
    /// Whether sessions can end: what they leave goes first. The model does not know that order, either.
    pub retention: bool,
}

impl Setting {
    /// Whether the model knows the order of eviction.
    pub(crate) fn is_modelled(&self) -> bool {
        self.eviction == kvpool_policies::LRU && !self.retention
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
        // An order that the caller states takes no hints.
        let (watermark, retention) = (flags & 8 != 0, flags & 48 == 48 && eviction.name() != "last-accessed");
        Ok(Self { num_blocks, host_blocks, watermark, verify, duplicates, eviction, retention })
    }
}

/// What a step plan may do.
#[derive(Clone, Debug, PartialEq)]
pub enum Planned {
    /// A new request with these tokens, or a part of it.
    Admit(i64, Vec<u32>, Part),
    /// A preempted one.
    Resume(i64, Part),
    /// Tokens for a running or preempted one, and room for more.
    Append(i64, Vec<u32>, usize),
    /// The same for several.
    AppendRagged(Rows, Room),
    /// Preemption, at once or when a fence ends.
    Preempt(i64, Until),
    /// The end of a request, at once or when a fence ends.
    Release(i64, Until),
}

impl<'a> Arbitrary<'a> for Planned {
    fn arbitrary(bytes: &mut Unstructured<'a>) -> Decoded<Self> {
        // As for operations: the later half is newer.
        let kind = pick(bytes, &[6, 3, 4, 2, 3, 4, 2, 2, 4, 2, 4])?;
        let id = id(bytes)?;
        Ok(match kind {
            0 => Self::Admit(id, tokens(bytes, 8)?, Part::WHOLE),
            1 => Self::Resume(id, Part::WHOLE),
            2 => Self::Append(id, tokens(bytes, 4)?, 0),
            3 => Self::Preempt(id, after(bytes)?.into()),
            4 => Self::Release(id, after(bytes)?.into()),
            5 => Self::Admit(id, tokens(bytes, 8)?, part(bytes)?),
            6 => Self::Resume(id, part(bytes)?),
            7 => Self::Append(id, tokens(bytes, 4)?, up_to(bytes, 4)?),
            8 => {
                let mut all = vec![(id, tokens(bytes, 4)?)];
                all.extend(rows(bytes, 2)?);
                let room = Room::decode(bytes, all.len())?;
                Self::AppendRagged(all, room)
            }
            9 => Self::Preempt(id, ticket(bytes)?.into()),
            _ => Self::Release(id, ticket(bytes)?.into()),
        })
    }
}

/// What is done to a manager.
#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    /// A new request: id, tokens, whether it has a salt, how much of it.
    Admit(i64, Vec<u32>, bool, Part),
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
    Preempt(i64, Until),
    /// The end of one.
    Resume(i64, Part),
    /// The end of a request.
    Release(i64, Until),
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
    /// Tokens for each of these requests, what is computed of them and what has blocks; refused with more changes than so many.
    AppendRagged(Rows, Said, Room, Option<usize>),
    /// Blocks for so many tokens of a request.
    Extend(i64, usize),
    /// What a connector has loaded of a request.
    ExternalDone(i64, Arrived),
    /// A fence opens.
    Fence,
    /// It ends.
    EndFence(Ticket),
    /// Requests keep so many tokens.
    TruncateBatch(Vec<(i64, usize)>, Until),
    /// The next victims are evicted, so many.
    EvictNext(usize),
    /// The end of a request whose session ends.
    EndSession(i64, Until),
    /// Second requests: parents and children.
    ForkBatch(Vec<(i64, i64)>),
    /// The end of requests.
    ReleaseBatch(Vec<i64>, Until),
}

impl<'a> Arbitrary<'a> for Operation {
    fn arbitrary(bytes: &mut Unstructured<'a>) -> Decoded<Self> {
        // 94, 94 of what came later, and the rest of a byte's 256 of what came last: a byte always means what it did.
        const WEIGHTS: [u8; 36] = [
            12, 8, 5, 3, 10, 6, 4, 2, 3, 4, 6, 2, 6, 4, 4, 4, 5, 2, 1, 1, 1, 1, //
            14, 6, 22, 8, 14, 6, 6, 6, 5, 7, //
            18, 14, 18, 18,
        ];
        Ok(match pick(bytes, &WEIGHTS)? {
            0 => Self::Admit(id(bytes)?, tokens(bytes, 9)?, pick(bytes, &[9, 1])? == 1, Part::WHOLE),
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
            8 => Self::Preempt(id(bytes)?, after(bytes)?.into()),
            9 => Self::Resume(id(bytes)?, Part::WHOLE),
            10 => Self::Release(id(bytes)?, after(bytes)?.into()),
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
            21 => Self::Grow,
            22 => Self::Admit(id(bytes)?, tokens(bytes, 9)?, false, part(bytes)?),
            23 => Self::Resume(id(bytes)?, part(bytes)?),
            24 => {
                let rows = rows(bytes, 3)?;
                let said = match pick(bytes, &[2, 2, 1])? {
                    0 => Said::Nothing,
                    1 => Said::AllButLast,
                    _ => Said::Counts(counts(bytes, rows.len())?),
                };
                let room = Room::decode(bytes, rows.len())?;
                let most = if pick(bytes, &[7, 1])? == 0 { None } else { Some(up_to(bytes, 4)?) };
                Self::AppendRagged(rows, said, room, most)
            }
            25 => Self::Extend(id(bytes)?, up_to(bytes, 14)?),
            26 => {
                let (id, kind) = (id(bytes)?, pick(bytes, &[2, 1, 1])?);
                let from = if kind > 0 { up_to(bytes, 9)? } else { 0 };
                let arrived = match kind {
                    0 => Arrived::All,
                    1 => Arrived::First(from),
                    _ => Arrived::AllBut(from..from + up_to(bytes, 3)?),
                };
                Self::ExternalDone(id, arrived)
            }
            27 => Self::Fence,
            28 => Self::EndFence(ticket(bytes)?),
            29 => Self::Release(id(bytes)?, ticket(bytes)?.into()),
            30 => Self::Preempt(id(bytes)?, ticket(bytes)?.into()),
            31 => {
                let rows = (0..up_to(bytes, 3)?).map(|_| Ok((id(bytes)?, up_to(bytes, 12)?)));
                Self::TruncateBatch(rows.collect::<Decoded<_>>()?, until(bytes)?)
            }
            32 => Self::EvictNext(up_to(bytes, 4)?),
            33 => Self::EndSession(id(bytes)?, until(bytes)?),
            34 => {
                let rows = (0..up_to(bytes, 3)?).map(|_| Ok((id(bytes)?, id(bytes)?)));
                Self::ForkBatch(rows.collect::<Decoded<_>>()?)
            }
            _ => Self::ReleaseBatch(ids(bytes)?, until(bytes)?),
        })
    }
}

impl Planned {
    /// The operation that does the same at once.
    fn alone(&self) -> Operation {
        match self.clone() {
            Self::Admit(id, tokens, part) => Operation::Admit(id, tokens, false, part),
            Self::Resume(id, part) => Operation::Resume(id, part),
            Self::Append(id, tokens, lookahead) => Operation::AppendTokens(id, tokens, lookahead),
            Self::AppendRagged(rows, room) => Operation::AppendRagged(rows, Said::Nothing, room, None),
            Self::Preempt(id, until) => Operation::Preempt(id, until),
            Self::Release(id, until) => Operation::Release(id, until),
        }
    }

    fn simpler(&self) -> Vec<Self> {
        match self {
            Self::Admit(id, tokens, part) => {
                let parts =
                    simpler_parts(*part).into_iter().map(|part| Self::Admit(*id, tokens.clone(), part));
                let prompts =
                    simpler_tokens(tokens).into_iter().map(|tokens| Self::Admit(*id, tokens, *part));
                parts.chain(prompts).collect()
            }
            Self::Resume(id, part) => {
                simpler_parts(*part).into_iter().map(|part| Self::Resume(*id, part)).collect()
            }
            Self::Append(id, tokens, lookahead) => {
                let fewer = smaller(*lookahead).map(|n| Self::Append(*id, tokens.clone(), n));
                let shorter =
                    simpler_tokens(tokens).into_iter().map(|tokens| Self::Append(*id, tokens, *lookahead));
                fewer.chain(shorter).collect()
            }
            Self::AppendRagged(rows, room) => {
                let fewer = (0..rows.len()).map(|at| Self::AppendRagged(without(rows, at), room.without(at)));
                let plain = room.simpler().map(|room| Self::AppendRagged(rows.clone(), room));
                let shorter =
                    simpler_rows(rows).into_iter().map(|rows| Self::AppendRagged(rows, room.clone()));
                fewer.chain(plain).chain(shorter).collect()
            }
            Self::Preempt(id, until) => {
                simpler_end(*until).map(|now| Self::Preempt(*id, now)).into_iter().collect()
            }
            Self::Release(id, until) => {
                simpler_end(*until).map(|now| Self::Release(*id, now)).into_iter().collect()
            }
        }
    }
}

impl Operation {
    /// Simpler ones, the simplest first.
    pub(crate) fn simpler(&self) -> Vec<Self> {
        match self {
            Self::Admit(id, tokens, salted, part) => {
                let plain = salted.then(|| Self::Admit(*id, tokens.clone(), false, *part));
                let parts = simpler_parts(*part);
                let parts = parts.into_iter().map(|part| Self::Admit(*id, tokens.clone(), *salted, part));
                let prompts = simpler_tokens(tokens);
                let prompts = prompts.into_iter().map(|tokens| Self::Admit(*id, tokens, *salted, *part));
                let ids = simpler_ids(*id).map(|id| Self::Admit(id, tokens.clone(), *salted, *part));
                plain.into_iter().chain(parts).chain(prompts).chain(ids).collect()
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
            Self::Preempt(id, until) => {
                let now = simpler_end(*until).map(|now| Self::Preempt(*id, now));
                now.into_iter().chain(simpler_ids(*id).map(|id| Self::Preempt(id, *until))).collect()
            }
            Self::Resume(id, part) => {
                let parts = simpler_parts(*part).into_iter().map(|part| Self::Resume(*id, part));
                parts.chain(simpler_ids(*id).map(|id| Self::Resume(id, *part))).collect()
            }
            Self::Release(id, until) => {
                let now = simpler_end(*until).map(|now| Self::Release(*id, now));
                now.into_iter().chain(simpler_ids(*id).map(|id| Self::Release(id, *until))).collect()
            }
            Self::CompleteStep(step) => {
                smaller(*step as usize).map(|step| Self::CompleteStep(step as u64)).collect()
            }
            Self::Step(planned, commit) => {
                let mut simpler = Vec::new();
                if let ([one], true) = (&planned[..], commit) {
                    simpler.push(one.alone());
                }
                simpler.extend((0..planned.len()).map(|at| Self::Step(without(planned, at), *commit)));
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
            Self::AppendRagged(rows, said, room, most) => {
                let fewer = (0..rows.len()).map(|at| {
                    let said = match said {
                        Said::Counts(counts) => Said::Counts(without(counts, at)),
                        other => other.clone(),
                    };
                    Self::AppendRagged(without(rows, at), said, room.without(at), *most)
                });
                let (any, nothing) = (most.map(|_| None), (*said != Said::Nothing).then_some(Said::Nothing));
                let any = any.map(|most| Self::AppendRagged(rows.clone(), said.clone(), room.clone(), most));
                let nothing = nothing.map(|said| Self::AppendRagged(rows.clone(), said, room.clone(), *most));
                let plain = room.simpler();
                let plain = plain.map(|room| Self::AppendRagged(rows.clone(), said.clone(), room, *most));
                let shorter = simpler_rows(rows)
                    .into_iter()
                    .map(|rows| Self::AppendRagged(rows, said.clone(), room.clone(), *most));
                fewer.chain(any).chain(nothing).chain(plain).chain(shorter).collect()
            }
            Self::Extend(id, n) => smaller(*n).map(|n| Self::Extend(*id, n)).collect(),
            Self::ExternalDone(id, arrived) => {
                let all = (*arrived != Arrived::All).then_some(Self::ExternalDone(*id, Arrived::All));
                all.into_iter()
                    .chain(simpler_ids(*id).map(|id| Self::ExternalDone(id, arrived.clone())))
                    .collect()
            }
            Self::EndFence(ticket) => {
                smaller(ticket.get() as usize).map(|n| Self::EndFence(Ticket::new(n as u64))).collect()
            }
            Self::TruncateBatch(rows, until) => {
                let now = simpler_end(*until).map(|now| Self::TruncateBatch(rows.clone(), now));
                let fewer = (0..rows.len()).map(|at| Self::TruncateBatch(without(rows, at), *until));
                now.into_iter().chain(fewer).collect()
            }
            Self::EvictNext(n) => smaller(*n).map(Self::EvictNext).collect(),
            Self::EndSession(id, until) => {
                let now = simpler_end(*until).map(|now| Self::EndSession(*id, now));
                now.into_iter().chain([Self::Release(*id, *until)]).collect()
            }
            Self::ForkBatch(rows) => {
                let alone =
                    if let [(parent, child)] = rows[..] { Some(Self::Fork(parent, child)) } else { None };
                alone
                    .into_iter()
                    .chain((0..rows.len()).map(|at| Self::ForkBatch(without(rows, at))))
                    .collect()
            }
            Self::ReleaseBatch(ids, until) => {
                let alone = if let [id] = ids[..] { Some(Self::Release(id, *until)) } else { None };
                let now = simpler_end(*until).map(|now| Self::ReleaseBatch(ids.clone(), now));
                let fewer = simpler_list(ids).into_iter().map(|ids| Self::ReleaseBatch(ids, *until));
                alone.into_iter().chain(now).chain(fewer).collect()
            }
            Self::TakePlan | Self::Reset | Self::BumpEpoch | Self::Grow | Self::Fence => Vec::new(),
        }
    }
}
