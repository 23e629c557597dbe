//! Executes the plans of a block manager: rounds of copies between tiers.
//!
//! Copies within a store come from copy-on-write. The step that follows writes KV to their
//! destinations, so they are enqueued in the order of the caller's stream. Copies between stores are
//! swaps. A swap keeps its blocks reserved at both ends until it has finished, so it can run
//! concurrently with the steps.
//!
//! There is one exception. If a block to be read is itself the destination of a planned copy, the plan
//! reads the source of that copy instead. Therefore a swap and a copy-on-write may read the same block.
//! After the plan was returned, such a block may be overwritten. In that case the caller's stream waits
//! for the swap.

use std::sync::{Arc, PoisonError};

use hashbrown::HashSet;

use super::job::Job;
use super::transfer::Transfer;
use super::{After, Options, TransferEngine};
use crate::driver::StreamHandle;
use crate::error::TransferError;
use crate::planner::Direction;
use crate::store::Store;
use crate::words::Device;
use crate::words::Method;

/// A copy of one block, to another tier or within its tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Move {
    /// Index of the tier and id of the block to read.
    pub src: (usize, u32),
    /// Index of the tier and id of the block to write.
    pub dst: (usize, u32),
}

/// The copies of one round that have the same source tier and the same destination tier.
struct Leg {
    job: Job,
    direction: Option<Direction>,
    local: bool,
    /// Whether any of these copies reads a block that a copy within a store also reads.
    reads_shared: bool,
}

impl TransferEngine {
    /// Executes the rounds of a plan. `stores` contains one store per tier. Copies within a store are
    /// enqueued on `stream`; on the CPU they are finished when this returns. All other copies are
    /// returned as transfers, which wait for the work that is on `stream` now. A round waits for the
    /// earlier rounds. O(copies).
    ///
    /// # Errors
    /// Like [`Self::submit`], before anything is enqueued. If the driver refuses a copy halfway, no
    /// transfer is under way when this returns.
    pub fn execute(
        self: &Arc<Self>,
        rounds: &[Vec<Move>],
        stores: &[Arc<Store>],
        stream: StreamHandle,
    ) -> Result<Vec<Arc<Transfer>>, TransferError> {
        let local: HashSet<(usize, u32)> =
            rounds.iter().flatten().filter(|one| one.src.0 == one.dst.0).map(|one| one.src).collect();
        let legs = rounds.iter().map(|round| self.legs(round, stores, &local));
        let legs = legs.collect::<Result<Vec<_>, _>>()?;
        if let Some(cuda) = &self.cuda
            && legs.iter().flatten().any(|leg| !leg.local)
            && cuda.lock().unwrap_or_else(PoisonError::into_inner).context.is_capturing(stream)?
        {
            return Err(TransferError::Capturing("a plan with swaps cannot be captured"));
        }
        let mut transfers: Vec<Arc<Transfer>> = Vec::new();
        let result = legs.into_iter().try_for_each(|round| {
            // Wait for the transfers of the earlier rounds, because this round reads the blocks that
            // they write.
            transfers.iter().try_for_each(|transfer| self.let_wait(stream, transfer))?;
            self.execute_round(round, stream, &mut transfers)
        });
        if let Err(error) = result {
            for transfer in &transfers {
                let _ = transfer.sleep(None);
            }
            return Err(error);
        }
        Ok(transfers)
    }

    /// Groups the copies of a round by their tiers, and checks them. `local` contains all blocks that
    /// are read by copies within a store, in any round.
    fn legs(
        &self,
        round: &[Move],
        stores: &[Arc<Store>],
        local: &HashSet<(usize, u32)>,
    ) -> Result<Vec<Leg>, TransferError> {
        let mut tiers: Vec<(usize, usize)> = round.iter().map(|one| (one.src.0, one.dst.0)).collect();
        tiers.sort_unstable();
        tiers.dedup();
        let store = |tier: usize| {
            stores.get(tier).ok_or_else(|| TransferError::Argument {
                name: "stores",
                value: format!("{} stores", stores.len()),
                expected: format!("one store per tier; the plan has a copy of tier {tier}"),
            })
        };
        tiers
            .into_iter()
            .map(|(from, to)| {
                let (src, dst) = (store(from)?, store(to)?);
                let direction = self.direction(src, dst)?;
                let moves: Vec<_> = round.iter().filter(|one| (one.src.0, one.dst.0) == (from, to)).collect();
                let pairs = moves.iter().map(|one| (i64::from(one.src.1), i64::from(one.dst.1)));
                let job = self.check(src, dst, pairs, None)?;
                let reads_shared = from != to && moves.iter().any(|one| local.contains(&one.src));
                Ok(Leg { job, direction, local: from == to, reads_shared })
            })
            .collect()
    }

    fn execute_round(
        self: &Arc<Self>,
        legs: Vec<Leg>,
        stream: StreamHandle,
        transfers: &mut Vec<Arc<Transfer>>,
    ) -> Result<(), TransferError> {
        let after = if self.device == Device::Cpu { After::Nothing } else { After::Stream(stream) };
        let options = Options { after, ..Options::default() };
        // Submit swaps before the copies within stores. A swap waits for the work that is on the stream
        // now, and need not wait for these copies.
        let (local, swaps): (Vec<_>, Vec<_>) = legs.into_iter().partition(|leg| leg.local);
        for Leg { job, direction, reads_shared, .. } in swaps {
            let transfer = self.start(job, direction, &options)?;
            transfers.push(transfer.clone());
            if reads_shared {
                self.let_wait(stream, &transfer)?;
            }
        }
        local.iter().try_for_each(|leg| self.copy_checked(&leg.job, leg.direction, stream, Method::Auto))
    }

    /// Makes later work wait for a transfer. On a device this is later work on the stream; on the CPU
    /// it is all later work of this thread.
    fn let_wait(&self, stream: StreamHandle, transfer: &Transfer) -> Result<(), TransferError> {
        if self.device == Device::Cpu {
            transfer.sleep(None)?;
            transfer.error().map_or(Ok(()), Err)
        } else {
            transfer.wait_on(stream)
        }
    }
}
