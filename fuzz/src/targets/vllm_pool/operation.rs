//! Settings and operations of vLLM's pool, from bytes.

use arbitrary::{Arbitrary, Result as Decoded, Unstructured};
use kvpool::EvictionPolicy;

use super::calls::{GROUPS, KEYS, PLAIN_KEYS};
use crate::bytes::{pick, simpler_list, smaller, up_to};

/// Numbers of tokens: none, few, and those around the most that the pool notes without help.
const TOKENS: [Option<u32>; 8] =
    [None, Some(4), Some(8), Some(12), Some(3), Some((1 << 31) - 2), Some((1 << 31) - 1), Some(u32::MAX)];
/// Counts that are written: near the core's, and far from them.
const COUNTS: [i32; 8] = [0, 1, 2, 3, -1, 65, 66, -70];
/// Sizes of blocks: the large one makes numbers of tokens that do not fit in 31 bits.
const BLOCK_SIZES: [usize; 2] = [4, 1 << 29];
/// Digests of a lookup come this often: more than the pool looks up at once.
const TIMES: [usize; 2] = [1, 40];

/// What the pool is made with.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// Blocks, null block included.
    pub num_blocks: usize,
    /// Whether blocks keep their hashes.
    pub caching: bool,
    /// Who is evicted first; the model knows the order of LRU.
    pub eviction: EvictionPolicy,
    /// Whether parts are written by hand; operations that do it do nothing otherwise, and every invariant must hold.
    pub by_hand: bool,
}

impl<'a> Arbitrary<'a> for Setting {
    fn arbitrary(bytes: &mut Unstructured<'a>) -> Decoded<Self> {
        let num_blocks = 1 + up_to(bytes, 8)?;
        let flags: u8 = bytes.arbitrary()?;
        // LRU half of the time.
        let policies = kvpool_policies::ALL;
        let eviction = policies[up_to(bytes, 2 * policies.len() as u8 - 1)?.saturating_sub(policies.len())];
        Ok(Self { num_blocks, caching: flags & 3 != 3, eviction, by_hand: flags & 4 != 0 })
    }
}

impl Setting {
    pub(super) fn simpler(&self) -> Vec<Self> {
        let candidates = [
            Self { by_hand: false, ..self.clone() },
            Self { eviction: kvpool_policies::LRU, ..self.clone() },
            Self { caching: true, ..self.clone() },
        ];
        let blocks = (1..self.num_blocks).map(|num_blocks| Self { num_blocks, ..self.clone() });
        candidates.into_iter().filter(|other| other != self).chain(blocks).collect()
    }
}

/// Which blocks a call is about.
#[derive(Clone, Debug, PartialEq)]
pub enum Blocks {
    /// These: some of the null block, some of no block.
    These(Vec<u32>),
    /// So many of the references that there are, from so far in.
    Held(usize, usize),
    /// So many that have references and no hash.
    Bare(usize, usize),
    /// So many that have no references and are not in the queue.
    Loose(usize, usize),
}

impl<'a> Arbitrary<'a> for Blocks {
    fn arbitrary(bytes: &mut Unstructured<'a>) -> Decoded<Self> {
        let kind = pick(bytes, &[4, 6, 4, 1])?;
        if kind == 0 {
            let len = up_to(bytes, 4)?;
            return Ok(Self::These((0..len).map(|_| id(bytes)).collect::<Decoded<_>>()?));
        }
        let (n, from) = (1 + up_to(bytes, 3)?, up_to(bytes, 7)?);
        Ok([Self::Held, Self::Bare, Self::Loose][kind - 1](from, n))
    }
}

impl Blocks {
    fn simpler(&self) -> Vec<Self> {
        let fewer = |from: usize, n: usize, with: fn(usize, usize) -> Self| -> Vec<Self> {
            let shorter = smaller(n).map(|n| with(from, n));
            shorter.chain(smaller(from).map(|from| with(from, n))).collect()
        };
        match self {
            Self::These(ids) => simpler_list(ids).into_iter().map(Self::These).collect(),
            Self::Held(from, n) => fewer(*from, *n, Self::Held),
            Self::Bare(from, n) => fewer(*from, *n, Self::Bare),
            Self::Loose(from, n) => fewer(*from, *n, Self::Loose),
        }
    }
}

/// What is done to the pool. Keys are numbers; ids run over both ends of what there is.
#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    /// Takes so many blocks.
    Allocate(usize),
    /// One reference more.
    Touch(Blocks),
    /// One reference fewer.
    Free(Blocks),
    /// The same, to the back of the queue.
    Unpin(Blocks),
    /// Full blocks of a table from this one on, behind that block, under these keys in turn, of a small size or a large one.
    CacheFull(usize, Option<u32>, Blocks, Vec<Option<usize>>, usize),
    /// A key for a block that stands for so many tokens, at a depth and behind a key.
    InsertHash(usize, u32, Option<u32>, u32, Option<usize>),
    /// All keys of a block go.
    RemoveHashes(u32),
    /// All keys of a block are another's.
    MoveHashes(u32, u32),
    /// A block is not cached any more, and reused first or not.
    Evict(u32, bool),
    /// Everything cached is forgotten, if nobody holds a block.
    Reset,
    /// A lookup of these keys' digests, once or often, in one group.
    FindRun(Vec<usize>, usize, u32),
    /// A group's blocks are of no use without those before them.
    ChainGroup(u32),
    /// By hand: a block's hash.
    SetHash(usize, u32, Option<u32>),
    /// By hand: a block has no hash.
    ResetHash(u32),
    /// By hand: a key leads to a block.
    InsertInIndex(usize, u32),
    /// By hand: a key does not lead to a block.
    RemoveFromIndex(usize, u32),
    /// By hand: no key leads anywhere.
    ClearIndex,
    /// By hand: references of a block.
    SetRefCount(u32, i32),
    /// By hand: so many blocks leave the queue.
    PopFromQueue(usize),
    /// By hand: a block leaves the queue.
    RemoveFromQueue(u32),
    /// By hand: blocks are put at the front of the queue, or at its back.
    PushToQueue(Blocks, bool),
    /// By hand: blocks that left the queue are somebody's.
    Claim(Blocks),
    /// By hand: so many blocks count as free.
    SetNumFree(usize),
}

fn id(bytes: &mut Unstructured<'_>) -> Decoded<u32> {
    Ok(up_to(bytes, 10)? as u32)
}

/// Mostly one of the first: few, so that blocks share them.
fn key(bytes: &mut Unstructured<'_>) -> Decoded<usize> {
    let at = up_to(bytes, 39)?;
    Ok(if at < 40 - (KEYS - PLAIN_KEYS) { at % PLAIN_KEYS } else { at + KEYS - 40 })
}

fn one_of<T: Copy>(bytes: &mut Unstructured<'_>, all: &[T]) -> Decoded<T> {
    Ok(all[up_to(bytes, all.len() as u8 - 1)?])
}

/// One of them, or none.
fn maybe<T>(
    bytes: &mut Unstructured<'_>,
    value: fn(&mut Unstructured<'_>) -> Decoded<T>,
) -> Decoded<Option<T>> {
    Ok(if pick(bytes, &[3, 1])? == 0 { None } else { Some(value(bytes)?) })
}

impl<'a> Arbitrary<'a> for Operation {
    fn arbitrary(bytes: &mut Unstructured<'a>) -> Decoded<Self> {
        // Low, so that the small values that the driver prefers are more than one operation.
        const WEIGHTS: [u8; 23] = [2, 1, 2, 1, 3, 2, 1, 1, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1];
        Ok(match pick(bytes, &WEIGHTS)? {
            0 => Self::Allocate(up_to(bytes, 6)?),
            1 => Self::Touch(bytes.arbitrary()?),
            2 => Self::Free(bytes.arbitrary()?),
            3 => Self::Unpin(bytes.arbitrary()?),
            4 => {
                let (first, size) = (up_to(bytes, 2)?, BLOCK_SIZES[pick(bytes, &[15, 1])?]);
                let keys = 1 + up_to(bytes, 3)?;
                let some = |bytes: &mut Unstructured<'_>| {
                    Ok(if pick(bytes, &[1, 7])? == 0 { None } else { Some(key(bytes)?) })
                };
                let keys = (0..keys).map(|_| some(bytes)).collect::<Decoded<_>>()?;
                Self::CacheFull(first, maybe(bytes, id)?, bytes.arbitrary()?, keys, size)
            }
            5 => {
                let (key_of, tokens) = (key(bytes)?, one_of(bytes, &TOKENS)?);
                Self::InsertHash(key_of, id(bytes)?, tokens, up_to(bytes, 3)? as u32, maybe(bytes, key)?)
            }
            6 => Self::RemoveHashes(id(bytes)?),
            7 => Self::MoveHashes(id(bytes)?, id(bytes)?),
            8 => Self::Evict(id(bytes)?, bytes.arbitrary()?),
            9 => Self::Reset,
            10 => {
                let len = up_to(bytes, 4)?;
                let keys = (0..len).map(|_| key(bytes)).collect::<Decoded<_>>()?;
                Self::FindRun(keys, one_of(bytes, &TIMES)?, one_of(bytes, &GROUPS)?)
            }
            11 => Self::ChainGroup(one_of(bytes, &GROUPS)?),
            12 => Self::SetHash(key(bytes)?, id(bytes)?, one_of(bytes, &TOKENS)?),
            13 => Self::ResetHash(id(bytes)?),
            14 => Self::InsertInIndex(key(bytes)?, id(bytes)?),
            15 => Self::RemoveFromIndex(key(bytes)?, id(bytes)?),
            16 => Self::ClearIndex,
            17 => Self::SetRefCount(id(bytes)?, one_of(bytes, &COUNTS)?),
            18 => Self::PopFromQueue(up_to(bytes, 3)?),
            19 => Self::RemoveFromQueue(id(bytes)?),
            20 => Self::PushToQueue(bytes.arbitrary()?, bytes.arbitrary()?),
            21 => Self::Claim(bytes.arbitrary()?),
            _ => Self::SetNumFree(up_to(bytes, 9)?),
        })
    }
}

impl Operation {
    /// Simpler ones, the simplest first.
    pub(super) fn simpler(&self) -> Vec<Self> {
        let sets = |blocks: &Blocks, with: &dyn Fn(Blocks) -> Self| -> Vec<Self> {
            blocks.simpler().into_iter().map(with).collect()
        };
        let numbers = |number: usize, with: &dyn Fn(usize) -> Self| -> Vec<Self> {
            smaller(number).map(with).collect()
        };
        match self {
            Self::Allocate(n) => numbers(*n, &Self::Allocate),
            Self::Touch(blocks) => sets(blocks, &Self::Touch),
            Self::Free(blocks) => sets(blocks, &Self::Free),
            Self::Unpin(blocks) => sets(blocks, &Self::Unpin),
            Self::CacheFull(first, before, blocks, keys, size) => {
                let with =
                    |first, before, blocks, keys, size| Self::CacheFull(first, before, blocks, keys, size);
                let plain = with(0, None, blocks.clone(), keys.clone(), BLOCK_SIZES[0]);
                let mut simpler = vec![plain];
                simpler.retain(|plain| plain != self);
                simpler.extend(sets(blocks, &|blocks| with(*first, *before, blocks, keys.clone(), *size)));
                let lists = simpler_list(keys).into_iter().filter(|keys| !keys.is_empty());
                simpler.extend(lists.map(|keys| with(*first, *before, blocks.clone(), keys, *size)));
                simpler
            }
            Self::InsertHash(key, block, tokens, depth, parent) => {
                let mut simpler = vec![Self::InsertHash(*key, *block, None, 0, None)];
                simpler.push(Self::InsertHash(*key, *block, *tokens, 0, None));
                simpler.retain(|plain| plain != self);
                simpler.extend(numbers(*key, &|key| Self::InsertHash(key, *block, *tokens, *depth, *parent)));
                simpler
            }
            Self::Evict(block, true) => vec![Self::Evict(*block, false)],
            Self::FindRun(keys, times, group) => {
                let mut simpler = numbers(*times, &|times| Self::FindRun(keys.clone(), times, *group));
                let lists = simpler_list(keys).into_iter();
                simpler.extend(lists.map(|keys| Self::FindRun(keys, *times, *group)));
                simpler
            }
            Self::SetHash(key, block, tokens) => numbers(*key, &|key| Self::SetHash(key, *block, *tokens)),
            Self::InsertInIndex(key, block) => numbers(*key, &|key| Self::InsertInIndex(key, *block)),
            Self::RemoveFromIndex(key, block) => numbers(*key, &|key| Self::RemoveFromIndex(key, *block)),
            Self::PopFromQueue(n) => numbers(*n, &Self::PopFromQueue),
            Self::PushToQueue(blocks, front) => sets(blocks, &|blocks| Self::PushToQueue(blocks, *front)),
            Self::Claim(blocks) => sets(blocks, &Self::Claim),
            Self::SetNumFree(n) => numbers(*n, &Self::SetNumFree),
            _ => Vec::new(),
        }
    }
}
