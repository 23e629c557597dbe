//! The owner of a pool, and the calls that lock it: a pool is made alone, or is one tier of several.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex};

use kvpool::{BlockId, BlockPool, PoolError, PoolImage, Restored, SavedBlock, TierError, Tiers};
use kvpool_journal::{Journal, Journaled, Outcome, PoolCall, Recording};
use kvpool_observe::{FeedBatch, PoolWatch, Scrubber};

use super::PyBlockPool;
use crate::clock::Clock;
use crate::convert::block;
use crate::enter::{LONG, Locked, enter_guarded, enter_measured, enter_sized};
use crate::errors::OrRaise;
use crate::parts::unknown_block;
use crate::python::prelude::*;

/// The scrubbers, which check the records of a few blocks per call, by tier. A thread takes this lock while
/// it holds the lock of a pool.
pub(crate) type Scrubbers = Arc<Mutex<HashMap<usize, Scrubber>>>;

/// The object that owns a pool, and through which calls reach the pool.
pub(super) enum Held {
    /// A pool that was made alone. It may have a journal.
    Own(Box<Locked<Journaled<BlockPool>>>),
    /// The pool of one tier of a `TieredPool`. It has no journal, because copies and swaps are not operations
    /// of a pool.
    Tier(Arc<Locked<Tiers>>, usize),
}

/// A locked pool.
pub(super) enum Entered<'a> {
    Own(&'a mut Journaled<BlockPool>),
    Tier(&'a mut BlockPool),
}

impl Deref for Entered<'_> {
    type Target = BlockPool;

    fn deref(&self) -> &BlockPool {
        match self {
            Self::Own(pool) => pool,
            Self::Tier(pool) => pool,
        }
    }
}

impl Recording for Entered<'_> {
    type Subject = BlockPool;

    #[inline]
    fn call<B, A: Outcome>(
        &mut self,
        before: impl FnOnce(&BlockPool, &mut Journal) -> B,
        run: impl FnOnce(&mut BlockPool) -> A,
        after: impl FnOnce(B, &BlockPool, &mut Journal, &A) -> Option<PoolCall>,
    ) -> A {
        match self {
            Self::Own(pool) => pool.call(before, run, after),
            Self::Tier(pool) => run(pool),
        }
    }
}

impl Entered<'_> {
    pub(super) fn unrecorded<R>(&mut self, call: impl FnOnce(&mut BlockPool) -> R) -> R {
        match self {
            Self::Own(pool) => pool.unrecorded(call),
            Self::Tier(pool) => call(pool),
        }
    }

    /// Returns the pool with its journal. `None` for the pool of a tier.
    pub(super) fn journaled(&mut self) -> Option<&mut Journaled<BlockPool>> {
        match self {
            Self::Own(pool) => Some(pool),
            Self::Tier(_) => None,
        }
    }
}

impl PyBlockPool {
    pub(crate) fn new(tiers: Arc<Locked<Tiers>>, scrubbers: Scrubbers, tier: usize) -> Self {
        Self { held: Held::Tier(tiers, tier), scrubbers, health: None, clock: Clock::default() }
    }

    /// Locks the pool and runs an operation on it that processes `size` blocks.
    pub(super) fn run<R: Send>(
        &self,
        py: Python<'_>,
        size: usize,
        call: impl FnOnce(&mut Entered<'_>) -> Result<R, PoolError> + Send,
    ) -> PyResult<R> {
        match &self.held {
            Held::Own(pool) => {
                let call = |pool: &mut _| call(&mut Entered::Own(pool));
                let done = match self.health {
                    Some(_) => enter_guarded(py, pool, call)?,
                    None => enter_sized(py, pool, size, call),
                };
                done.or_raise(py)
            }
            Held::Tier(tiers, tier) => {
                enter_sized(py, tiers, size, |tiers| in_tier(tiers, *tier, call)).or_raise(py)
            }
        }
    }

    /// Locks the pool and runs an operation that ends fences. Its size is the number of fenced blocks.
    pub(super) fn ending(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut Entered<'_>) -> Result<usize, PoolError> + Send,
    ) -> PyResult<usize> {
        match &self.held {
            Held::Own(_) if self.health.is_some() => self.run(py, 0, call),
            Held::Own(pool) => {
                let call = |pool: &mut _| call(&mut Entered::Own(pool));
                enter_measured(py, pool, |pool| pool.num_fenced(), call).or_raise(py)
            }
            Held::Tier(tiers, tier) => {
                let fenced = |tiers: &Tiers| tiers.pool(*tier).map_or(0, BlockPool::num_fenced);
                let end = |tiers: &mut Tiers| in_tier(tiers, *tier, call);
                enter_measured(py, tiers, fenced, end).or_raise(py)
            }
        }
    }

    /// Locks the pool and runs a short call that cannot fail.
    pub(super) fn get<R: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut Entered<'_>) -> R + Send,
    ) -> PyResult<R> {
        self.run(py, 0, |pool| Ok(call(pool)))
    }

    /// Makes the pool record its changes for a publisher of events. Returns the number of tokens per block.
    pub(crate) fn keep_feed(&self, py: Python<'_>, capacity: usize) -> PyResult<usize> {
        self.run(py, LONG, |pool| {
            pool.unrecorded(|pool| pool.keep_feed(capacity).map(|()| pool.block_size()))
        })
    }

    pub(crate) fn take_feed(&self, py: Python<'_>, batch: &mut FeedBatch) -> PyResult<()> {
        self.get(py, |pool| pool.unrecorded(|pool| pool.take_feed(batch)))
    }

    /// Returns the records of the cached content, which `save_index` writes to a file.
    pub(crate) fn saved_image(&self, py: Python<'_>) -> PyResult<PoolImage> {
        self.run(py, LONG, |pool| BlockPool::image(pool))
    }

    /// Restores the cached content of a new pool from the records in a file of `save_index`.
    pub(crate) fn restore_image(
        &self,
        py: Python<'_>,
        image: &PoolImage,
        elapsed: f64,
        agrees: impl FnMut(&SavedBlock) -> bool + Send,
    ) -> PyResult<Restored> {
        self.run(py, LONG, |pool| match pool {
            Entered::Own(pool) => pool.restore(image, elapsed, agrees),
            Entered::Tier(pool) => pool.restore(image, elapsed, agrees),
        })
    }

    /// Returns the content of the journal if it is a ring in memory.
    pub(super) fn image(&self, py: Python<'_>) -> PyResult<Option<Vec<u8>>> {
        self.run(py, LONG, |pool| Ok(pool.journaled().and_then(Journaled::journal_image)))
    }

    /// Looks up a property of one block.
    pub(super) fn look<R: Send>(
        &self,
        py: Python<'_>,
        block_id: &Bound<'_, PyAny>,
        call: impl FnOnce(&BlockPool, BlockId) -> R + Send,
    ) -> PyResult<R> {
        let id = block(block_id)?;
        let (known, last, value) =
            self.get(py, |pool| (id.index() < pool.num_blocks(), pool.num_blocks() - 1, call(pool, id)))?;
        if known { Ok(value) } else { Err(unknown_block(py, id, last)) }
    }

    /// Looks up a property of several blocks. The pool must have all of them.
    pub(super) fn look_all<R: Send>(
        &self,
        py: Python<'_>,
        blocks: &[BlockId],
        call: impl Fn(&BlockPool, BlockId) -> Option<R> + Send + Sync,
    ) -> PyResult<Vec<R>> {
        let (found, last) = self.run(py, blocks.len(), |pool| {
            let each = blocks.iter().map(|&id| call(pool, id).ok_or(id));
            Ok((each.collect::<Result<Vec<R>, BlockId>>(), pool.num_blocks() - 1))
        })?;
        found.map_err(|id| unknown_block(py, id, last))
    }
}

fn in_tier<R>(
    tiers: &mut Tiers,
    tier: usize,
    call: impl FnOnce(&mut Entered<'_>) -> Result<R, PoolError>,
) -> Result<R, TierError> {
    Ok(call(&mut Entered::Tier(tiers.pool_mut(tier)?))?)
}
