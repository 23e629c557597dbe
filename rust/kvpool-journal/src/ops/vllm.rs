//! The operations of vLLM's [`Pool`].
//!
//! What is withheld ([`Pool::set_num_free`]) is in no journal, and neither is a call that only this refuses: it changes nothing.

use crate::{Check, Journal, Outcome, VllmOperation};
use kvpool::retention::{HintReport, Retention, TenantId};
use kvpool_vllm::{Demand, Key, Pool, Removed, Slots, Start, VllmError};

use super::operations;
use crate::{Journaled, Operation};

/// Block ids as an answer. Their check does not say how many they are.
#[derive(Clone, Debug)]
pub struct Ids<T>(pub T);

impl<T: AsRef<[u32]>> Outcome for Ids<T> {
    fn add_to(&self, check: &mut Check) {
        self.0.as_ref().iter().for_each(|&block| check.add(block.into()));
    }
}

type Plain<T> = T;

operations! { Pool, Plain, VllmOperation;
    /// [`Pool::touch`].
    Touch<'a> { blocks: &'a [u32] } -> Result<(), VllmError>,
        |pool| pool.touch(blocks), |_, _| VllmOperation::Touch { blocks: blocks.to_vec() };
    /// [`Pool::unpin`].
    Unpin<'a> { blocks: &'a [u32] } -> Result<(), VllmError>,
        |pool| pool.unpin(blocks), |_, _| VllmOperation::Unpin { blocks: blocks.to_vec() };
    /// [`Pool::insert_hash_behind`]; [`Pool::insert_hash`] is this at depth 0, without a parent.
    InsertHash<'a> {
        key: Key, block: u32, num_tokens: Option<u32>, depth: u32, parent: Option<&'a Key>
    } -> bool,
        |pool| pool.insert_hash_behind(key, block, num_tokens, depth, parent),
        |_, _| VllmOperation::InsertHash { key, block, num_tokens, depth, parent: parent.copied() };
    /// [`Pool::insert_in_index`].
    InsertInIndex { key: Key, block: u32 } -> Result<(), VllmError>,
        |pool| pool.insert_in_index(key, block), |_, _| VllmOperation::InsertInIndex { key, block };
    /// [`Pool::remove_from_index`].
    RemoveFromIndex { key: Key, block: u32 } -> bool,
        |pool| pool.remove_from_index(&key, block), |_, _| VllmOperation::RemoveFromIndex { key, block };
    /// [`Pool::clear_index`].
    ClearIndex {} -> (), Pool::clear_index, |_, _| VllmOperation::ClearIndex;
    /// [`Pool::remove_hashes`].
    RemoveHashes { block: u32 } -> Vec<Removed>,
        |pool| pool.remove_hashes(block), |_, _| VllmOperation::RemoveHashes { block };
    /// [`Pool::move_hashes`].
    MoveHashes { from: u32, to: u32 } -> Result<(), VllmError>,
        |pool| pool.move_hashes(from, to), |_, _| VllmOperation::MoveHashes { from, to };
    /// [`Pool::evict`].
    Evict { block: u32, reuse_first: bool } -> Result<Vec<Removed>, VllmError>,
        |pool| pool.evict(block, reuse_first), |_, _| VllmOperation::Evict { block, reuse_first };
    /// [`Pool::reset`].
    Reset {} -> bool,
        Pool::reset,
        |pool, _| (pool.num_free() == pool.core().num_available()).then_some(VllmOperation::Reset);
    /// [`Pool::set_ref_count`].
    SetRefCount { block: u32, count: i32 } -> (),
        |pool| pool.set_ref_count(block, count), |_, _| VllmOperation::SetRefCount { block, count };
    /// [`Pool::set_hash`].
    SetHash { block: u32, key: Key, num_tokens: Option<u32> } -> (),
        |pool| pool.set_hash(block, key, num_tokens),
        |_, _| VllmOperation::SetHash { block, key, num_tokens };
    /// [`Pool::reset_hash`].
    ResetHash { block: u32 } -> (),
        |pool| pool.reset_hash(block), |_, _| VllmOperation::ResetHash { block };
    /// [`Pool::chain_group`]; told the first time.
    ChainGroup { group: u32 } -> (),
        |pool| pool.chain_group(group),
        |pool, _| (!pool.is_chained(group)).then_some(VllmOperation::ChainGroup { group });
    /// [`Pool::pop_from_queue`].
    PopFromQueue { blocks: usize } -> Ids<Vec<u32>>,
        |pool| Ids(pool.pop_from_queue(blocks)), |_, _| VllmOperation::QueuePop { blocks };
    /// [`Pool::remove_from_queue`].
    RemoveFromQueue { block: u32 } -> bool,
        |pool| pool.remove_from_queue(block), |_, _| VllmOperation::QueueRemove { block };
    /// [`Pool::push_to_queue`].
    PushToQueue<'a> { blocks: &'a [u32], front: bool } -> (),
        |pool| pool.push_to_queue(blocks, front),
        |_, _| VllmOperation::QueuePush { blocks: blocks.to_vec(), front };
    /// [`Pool::retain`].
    Retain<'a> { blocks: &'a [u32], retention: Retention } -> Result<HintReport, VllmError>,
        |pool| pool.retain(blocks, retention),
        |_, _| VllmOperation::Retain { blocks: blocks.to_vec(), retention: retention.into() };
    /// [`Pool::assign_tenant`].
    AssignTenant<'a> { blocks: &'a [u32], tenant: TenantId } -> Result<(), VllmError>,
        |pool| pool.assign_tenant(blocks, tenant),
        |_, _| VllmOperation::AssignTenant { blocks: blocks.to_vec(), tenant: tenant.0 };
    /// [`Pool::advance_time`].
    AdvanceTime { now: f64 } -> Result<usize, VllmError>,
        |pool| pool.advance_time(now), |_, _| VllmOperation::AdvanceTime { now };
    /// [`Pool::signal`].
    Signal<'a> { blocks: &'a [u32], signal: kvpool::Signal } -> Result<(), VllmError>,
        |pool| pool.signal(blocks, signal),
        |_, _| VllmOperation::Signal { blocks: blocks.to_vec(), signal: signal.into() };
}

/// [`Pool::allocate`].
#[derive(Debug)]
#[expect(missing_docs, reason = "the fields are the arguments of the call named")]
pub struct Allocate<'a> {
    pub blocks: usize,
    pub out: &'a mut Vec<u32>,
    pub removed: Option<&'a mut Vec<Removed>>,
}

impl<'a> Operation<Pool> for Allocate<'a> {
    type Answer = Result<Ids<&'a [u32]>, VllmError>;
    type Before = Option<VllmOperation>;

    fn before(&self, pool: &Pool, _: &mut Journal) -> Self::Before {
        let is_withheld = self.blocks > pool.num_free() && self.blocks <= pool.core().num_available();
        (!is_withheld).then_some(VllmOperation::Allocate { blocks: self.blocks })
    }

    #[inline]
    fn run(self, pool: &mut Pool) -> Self::Answer {
        let Self { blocks, out, removed } = self;
        let first = out.len();
        pool.allocate(blocks, out, removed)?;
        Ok(Ids(&out[first..]))
    }

    fn record(asked: Self::Before, _: &Pool, _: &mut Journal, _: &Self::Answer) -> Option<VllmOperation> {
        asked
    }
}

/// [`Pool::claim`].
#[derive(Debug)]
#[expect(missing_docs, reason = "the fields are the arguments of the call named")]
pub struct Claim<'a> {
    pub blocks: &'a [u32],
    pub removed: Option<&'a mut Vec<Removed>>,
}

impl<'a> Operation<Pool> for Claim<'a> {
    type Answer = Result<(), VllmError>;
    type Before = &'a [u32];

    fn before(&self, _: &Pool, _: &mut Journal) -> &'a [u32] {
        self.blocks
    }

    #[inline]
    fn run(self, pool: &mut Pool) -> Self::Answer {
        pool.claim(self.blocks, self.removed)
    }

    fn record(blocks: &[u32], _: &Pool, _: &mut Journal, _: &Self::Answer) -> Option<VllmOperation> {
        Some(VllmOperation::Claim { blocks: blocks.to_vec() })
    }
}

/// [`Pool::free`]. A journal goes through the blocks once more; it leaves the null block out.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the field is the argument of the call named")]
pub struct Free<I> {
    pub blocks: I,
}

impl<I: IntoIterator<Item = u32> + Clone> Operation<Pool> for Free<I> {
    type Answer = Result<(), VllmError>;
    type Before = Vec<u32>;

    fn before(&self, _: &Pool, _: &mut Journal) -> Vec<u32> {
        self.blocks.clone().into_iter().filter(|&block| block != 0).collect()
    }

    #[inline]
    fn run(self, pool: &mut Pool) -> Self::Answer {
        pool.free(self.blocks)
    }

    fn record(blocks: Vec<u32>, _: &Pool, _: &mut Journal, _: &Self::Answer) -> Option<VllmOperation> {
        Some(VllmOperation::Free { blocks })
    }
}

/// [`Pool::cache_full`]. A journal asks for each key once more.
#[derive(Debug)]
#[expect(missing_docs, reason = "the fields are the arguments of the call named")]
pub struct CacheFull<'a, K> {
    pub start: Start,
    pub blocks: &'a [u32],
    pub key_of: K,
    pub block_size: usize,
    pub removed: &'a mut Vec<Removed>,
    pub stored: Option<&'a mut Vec<Option<bool>>>,
}

impl<K: Fn(usize) -> Option<Key>> Operation<Pool> for CacheFull<'_, K> {
    type Answer = Result<(), VllmError>;
    type Before = VllmOperation;

    fn before(&self, _: &Pool, _: &mut Journal) -> VllmOperation {
        VllmOperation::CacheFull {
            first: self.start.first,
            before: self.start.before,
            blocks: self.blocks.to_vec(),
            keys: (0..self.blocks.len()).map(&self.key_of).collect(),
            block_size: self.block_size,
        }
    }

    #[inline]
    fn run(self, pool: &mut Pool) -> Self::Answer {
        pool.cache_full(self.start, self.blocks, self.key_of, self.block_size, self.removed, self.stored)
    }

    fn record(asked: VllmOperation, _: &Pool, _: &mut Journal, _: &Self::Answer) -> Option<VllmOperation> {
        Some(asked)
    }
}

impl Journaled<Pool> {
    /// Takes the blocks that `demand` needs, if they may be taken ([`Pool::plan_slots`]): holds its `hits`, which are cached, and
    /// allocates the others into `out`: two operations. False, and nothing has changed, if they may not. What is evicted goes to
    /// `removed`.
    ///
    /// # Errors
    /// [`VllmError::UnknownBlock`] among the hits.
    pub fn take_slots(
        &mut self,
        slots: Slots,
        demand: Demand,
        hits: &[u32],
        out: &mut Vec<u32>,
        removed: Option<&mut Vec<Removed>>,
    ) -> Result<bool, VllmError> {
        let Some(blocks) = self.plan_slots(slots, demand, hits) else { return Ok(false) };
        self.apply(Touch { blocks: hits })?;
        self.apply(Allocate { blocks, out, removed })?;
        Ok(true)
    }
}
