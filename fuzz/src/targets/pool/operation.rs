//! Settings and operations of a pool, from bytes.

use arbitrary::{Arbitrary, Result as Decoded, Unstructured};
use kvpool::{DuplicatePolicy, EvictionPolicy, Verify};

use crate::bytes::{pick, simpler_list, smaller, some, tokens, up_to};

/// What the pool is made with.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// Blocks, null block included.
    pub num_blocks: usize,
    /// How hits are verified.
    pub verify: Verify,
    /// What happens to duplicates; dropped under LRU alone, whose order the model knows.
    pub duplicates: DuplicatePolicy,
    /// Who is evicted first.
    pub eviction: EvictionPolicy,
    /// Whether hints are listened to.
    pub retention: bool,
    /// Whether holders hold whole prefixes: operations that break them up do nothing then, and the cache must stay closed.
    pub whole: bool,
}

impl Setting {
    /// The setting in which as little as possible is special.
    pub(crate) const fn simplest(num_blocks: usize) -> Self {
        Self {
            num_blocks,
            verify: Verify::None,
            duplicates: DuplicatePolicy::Keep,
            eviction: kvpool_policies::LRU,
            retention: false,
            whole: false,
        }
    }

    /// Whether the reference model knows the order of eviction. Of another order it follows the pool.
    pub(crate) fn is_lru(&self) -> bool {
        self.eviction == kvpool_policies::LRU && !self.retention
    }
}

impl<'a> Arbitrary<'a> for Setting {
    fn arbitrary(bytes: &mut Unstructured<'a>) -> Decoded<Self> {
        let num_blocks = 3 + up_to(bytes, 10)?;
        let verify = [Verify::None, Verify::Fingerprint, Verify::Tokens][pick(bytes, &[4, 1, 2])?];
        // LRU half of the time.
        let policies = kvpool_policies::ALL;
        let eviction = policies[up_to(bytes, 2 * policies.len() as u8 - 1)?.saturating_sub(policies.len())];
        let flags: u8 = bytes.arbitrary()?;
        let retention = flags & 1 != 0 && flags & 2 != 0 && eviction != kvpool_policies::LAST_ACCESS;
        let setting =
            Self { verify, eviction, retention, whole: flags & 4 != 0, ..Self::simplest(num_blocks) };
        let drop = flags & 8 != 0 && setting.is_lru();
        let duplicates = if drop { DuplicatePolicy::DropOnRelease } else { DuplicatePolicy::Keep };
        Ok(Self { duplicates, ..setting })
    }
}

/// Few different prompts, so that prefixes are shared.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompt {
    /// A salt, or none.
    pub salt: Vec<u8>,
    /// Its tokens.
    pub tokens: Vec<u32>,
}

impl<'a> Arbitrary<'a> for Prompt {
    fn arbitrary(bytes: &mut Unstructured<'a>) -> Decoded<Self> {
        let salt = if pick(bytes, &[9, 1])? == 1 { b"s".to_vec() } else { Vec::new() };
        Ok(Self { salt, tokens: tokens(bytes, 9)? })
    }
}

impl Prompt {
    pub(crate) fn simpler(&self) -> Vec<Self> {
        let mut simpler = Vec::new();
        if !self.salt.is_empty() {
            simpler.push(Self { salt: Vec::new(), tokens: self.tokens.clone() });
        }
        let zeros = vec![0; self.tokens.len()];
        if zeros != self.tokens {
            simpler.push(Self { tokens: zeros, salt: self.salt.clone() });
        }
        let shorter = smaller(self.tokens.len())
            .map(|len| Self { tokens: self.tokens[..len].to_vec(), salt: self.salt.clone() });
        simpler.extend(shorter);
        simpler
    }
}

/// What is done to a pool. Ids run over both ends of what there is; tables are those that the target keeps.
#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    /// Takes so many blocks.
    Allocate(usize),
    /// One reference more to each of these blocks.
    Acquire(Vec<usize>),
    /// A second holder of a table.
    AcquireTable(usize),
    /// One reference fewer to each of these blocks.
    Release(Vec<usize>),
    /// A table is released, tail first.
    ReleaseTable(usize),
    /// A table is released when this step ends.
    ReleaseAfter(usize, u64),
    /// This step ends.
    CompleteStep(u64),
    /// A request: lookup, allocation of the rest, registered and computed.
    Serve(Prompt),
    /// A request that is not computed yet.
    Begin(Prompt),
    /// Blocks of a table as a prompt's blocks from this one on.
    Register(usize, Prompt, usize),
    /// These blocks as a prompt's first ones.
    RegisterRaw(Vec<usize>, Prompt),
    /// The KV of these blocks is written.
    MarkComputed(Vec<usize>),
    /// The KV of a table is written.
    MarkTable(usize),
    /// A lookup of at most so many blocks.
    Match(Prompt, usize),
    /// A block of a table as a prompt's last one, or whoever holds that content already.
    Promote(usize, usize, Prompt),
    /// These blocks are dropped from the index.
    Evict(Vec<usize>),
    /// These blocks were accessed at this time.
    MarkAccessed(Vec<usize>, u8),
    /// These blocks are kept: demoted, pinned, or at a priority, perhaps for a time.
    Retain(Vec<usize>, u8),
    /// These blocks are a tenant's.
    Assign(Vec<usize>, u8),
    /// So much time passes.
    Advance(u8),
    /// Everything cached is forgotten, if nobody holds a block.
    Reset,
    /// A new epoch begins.
    BumpEpoch,
    /// One block more, or a refusal.
    Grow,
    /// A lookup that holds nothing, of at most so many blocks from this one on; it counts as a use, or not.
    Lookup(Prompt, (usize, usize), bool),
    /// What a lookup found, perhaps long ago, is acquired.
    AcquireMatch(usize),
    /// Blocks of a table, computed, as a prompt's blocks from this one on.
    RegisterTable(usize, Prompt, usize),
    /// These ids of an engine's own as a prompt's blocks from this one on.
    Adopt(Vec<usize>, Prompt, usize),
    /// The last free blocks as all of a prompt's.
    AdoptLast(Prompt),
    /// A table is given back, contents and all.
    Disown(usize),
    /// The next so many victims are evicted.
    EvictNext(usize),
}

impl<'a> Arbitrary<'a> for Operation {
    fn arbitrary(bytes: &mut Unstructured<'a>) -> Decoded<Self> {
        const WEIGHTS: [u8; 30] =
            [6, 1, 1, 2, 10, 3, 2, 10, 4, 6, 1, 2, 6, 8, 3, 1, 1, 3, 1, 2, 1, 1, 1, 5, 4, 4, 1, 3, 2, 2];
        let operation = pick(bytes, &WEIGHTS)?;
        let table = |bytes: &mut Unstructured<'a>| up_to(bytes, 7);
        let ids = |bytes: &mut Unstructured<'a>| some(bytes, 4, 15);
        Ok(match operation {
            0 => Self::Allocate(up_to(bytes, 6)?),
            1 => Self::Acquire(ids(bytes)?),
            2 => Self::AcquireTable(table(bytes)?),
            3 => Self::Release(ids(bytes)?),
            4 => Self::ReleaseTable(table(bytes)?),
            5 => Self::ReleaseAfter(table(bytes)?, up_to(bytes, 11)? as u64),
            6 => Self::CompleteStep(up_to(bytes, 11)? as u64),
            7 => Self::Serve(bytes.arbitrary()?),
            8 => Self::Begin(bytes.arbitrary()?),
            9 => Self::Register(table(bytes)?, bytes.arbitrary()?, pick(bytes, &[4, 1])?),
            10 => Self::RegisterRaw(ids(bytes)?, bytes.arbitrary()?),
            11 => Self::MarkComputed(ids(bytes)?),
            12 => Self::MarkTable(table(bytes)?),
            13 => Self::Match(bytes.arbitrary()?, up_to(bytes, 5)?),
            14 => Self::Promote(table(bytes)?, up_to(bytes, 3)?, bytes.arbitrary()?),
            15 => Self::Evict(ids(bytes)?),
            16 => Self::MarkAccessed(ids(bytes)?, bytes.arbitrary()?),
            17 => Self::Retain(ids(bytes)?, bytes.arbitrary()?),
            18 => Self::Assign(ids(bytes)?, bytes.arbitrary()?),
            19 => Self::Advance(up_to(bytes, 8)? as u8),
            20 => Self::Reset,
            21 => Self::BumpEpoch,
            22 => Self::Grow,
            23 => Self::Lookup(
                bytes.arbitrary()?,
                (pick(bytes, &[3, 1])?, up_to(bytes, 5)?),
                pick(bytes, &[1, 1])? == 1,
            ),
            24 => Self::AcquireMatch(up_to(bytes, 7)?),
            25 => Self::RegisterTable(table(bytes)?, bytes.arbitrary()?, pick(bytes, &[4, 1])?),
            26 => Self::Adopt(ids(bytes)?, bytes.arbitrary()?, pick(bytes, &[4, 1])?),
            27 => Self::AdoptLast(bytes.arbitrary()?),
            28 => Self::Disown(table(bytes)?),
            _ => Self::EvictNext(up_to(bytes, 4)?),
        })
    }
}

impl Operation {
    /// Whether holders hold whole prefixes after it, if they did before.
    pub(crate) const fn keeps_prefixes_whole(&self) -> bool {
        !matches!(
            self,
            Self::Acquire(_)
                | Self::Release(_)
                | Self::Register(..)
                | Self::RegisterRaw(..)
                | Self::MarkComputed(_)
                | Self::Promote(..)
                | Self::Evict(_)
                | Self::MarkAccessed(..)
                | Self::Lookup(_, (1.., _), _)
                | Self::RegisterTable(..)
                | Self::Adopt(..)
                | Self::Disown(_)
        )
    }

    /// Simpler ones, the simplest first.
    pub(crate) fn simpler(&self) -> Vec<Self> {
        let prompts = |prompt: &Prompt, with: &dyn Fn(Prompt) -> Self| -> Vec<Self> {
            prompt.simpler().into_iter().map(with).collect()
        };
        let lists = |list: &[usize], with: &dyn Fn(Vec<usize>) -> Self| -> Vec<Self> {
            simpler_list(list).into_iter().map(with).collect()
        };
        let numbers = |number: usize, with: &dyn Fn(usize) -> Self| -> Vec<Self> {
            smaller(number).map(with).collect()
        };
        match self {
            Self::Allocate(n) => numbers(*n, &Self::Allocate),
            Self::Acquire(ids) => lists(ids, &Self::Acquire),
            Self::AcquireTable(nth) => numbers(*nth, &Self::AcquireTable),
            Self::Release(ids) => lists(ids, &Self::Release),
            Self::ReleaseTable(nth) => numbers(*nth, &Self::ReleaseTable),
            Self::ReleaseAfter(nth, step) => {
                let mut simpler = vec![Self::ReleaseTable(*nth)];
                simpler.extend(numbers(*nth, &|nth| Self::ReleaseAfter(nth, *step)));
                simpler.extend(numbers(*step as usize, &|step| Self::ReleaseAfter(*nth, step as u64)));
                simpler
            }
            Self::CompleteStep(step) => numbers(*step as usize, &|step| Self::CompleteStep(step as u64)),
            Self::Serve(prompt) => prompts(prompt, &Self::Serve),
            Self::Begin(prompt) => prompts(prompt, &Self::Begin),
            Self::Register(nth, prompt, start) => {
                let mut simpler = prompts(prompt, &|prompt| Self::Register(*nth, prompt, *start));
                simpler.extend(numbers(*nth, &|nth| Self::Register(nth, prompt.clone(), *start)));
                simpler.extend(numbers(*start, &|start| Self::Register(*nth, prompt.clone(), start)));
                simpler
            }
            Self::RegisterRaw(ids, prompt) => {
                let mut simpler = prompts(prompt, &|prompt| Self::RegisterRaw(ids.clone(), prompt));
                simpler.extend(lists(ids, &|ids| Self::RegisterRaw(ids, prompt.clone())));
                simpler
            }
            Self::MarkComputed(ids) => lists(ids, &Self::MarkComputed),
            Self::MarkTable(nth) => numbers(*nth, &Self::MarkTable),
            Self::Match(prompt, most) => {
                let mut simpler = prompts(prompt, &|prompt| Self::Match(prompt, *most));
                simpler.extend(numbers(*most, &|most| Self::Match(prompt.clone(), most)));
                simpler
            }
            Self::Promote(nth, at, prompt) => {
                let mut simpler = prompts(prompt, &|prompt| Self::Promote(*nth, *at, prompt));
                simpler.extend(numbers(*nth, &|nth| Self::Promote(nth, *at, prompt.clone())));
                simpler.extend(numbers(*at, &|at| Self::Promote(*nth, at, prompt.clone())));
                simpler
            }
            Self::Evict(ids) => lists(ids, &Self::Evict),
            Self::MarkAccessed(ids, time) => lists(ids, &|ids| Self::MarkAccessed(ids, *time)),
            Self::Retain(ids, how) => lists(ids, &|ids| Self::Retain(ids, *how)),
            Self::Assign(ids, tenant) => lists(ids, &|ids| Self::Assign(ids, *tenant)),
            Self::Advance(by) => numbers(usize::from(*by), &|by| Self::Advance(by as u8)),
            Self::Reset | Self::BumpEpoch | Self::Grow => Vec::new(),
            Self::Lookup(prompt, run, refresh) => {
                let mut simpler = prompts(prompt, &|prompt| Self::Lookup(prompt, *run, *refresh));
                simpler.extend(refresh.then(|| Self::Lookup(prompt.clone(), *run, false)));
                simpler
                    .extend(numbers(run.0, &|start| Self::Lookup(prompt.clone(), (start, run.1), *refresh)));
                simpler.extend(numbers(run.1, &|most| Self::Lookup(prompt.clone(), (run.0, most), *refresh)));
                simpler
            }
            Self::AcquireMatch(nth) => numbers(*nth, &Self::AcquireMatch),
            Self::RegisterTable(nth, prompt, start) => {
                let mut simpler = prompts(prompt, &|prompt| Self::RegisterTable(*nth, prompt, *start));
                simpler.extend(numbers(*nth, &|nth| Self::RegisterTable(nth, prompt.clone(), *start)));
                simpler.extend(numbers(*start, &|start| Self::RegisterTable(*nth, prompt.clone(), start)));
                simpler
            }
            Self::Adopt(ids, prompt, start) => {
                let mut simpler = prompts(prompt, &|prompt| Self::Adopt(ids.clone(), prompt, *start));
                simpler.extend(lists(ids, &|ids| Self::Adopt(ids, prompt.clone(), *start)));
                simpler.extend(numbers(*start, &|start| Self::Adopt(ids.clone(), prompt.clone(), start)));
                simpler
            }
            Self::AdoptLast(prompt) => prompts(prompt, &Self::AdoptLast),
            Self::Disown(nth) => numbers(*nth, &Self::Disown),
            Self::EvictNext(n) => numbers(*n, &Self::EvictNext),
        }
    }
}
