//! `TransferPlan`: which blocks' bytes go where, as plain data.
//!
//! A plan is one *simultaneous* assignment: every transfer reads what its source held before any of
//! them wrote. Executors work in order, so [`TransferPlan::rounds`] splits a plan where blocks overlap:
//! within a round nothing is read that the round writes, and a block is read in an earlier round than
//! it is written. A cycle needs one scratch block. [`runs`] merges consecutive ids of a round into one
//! copy each (vLLM #35990: 193 copies became 3).
//!
//! The core makes plans; who executes them is not its business. Costs: O(n log n) for n transfers.
//!
//! ```
//! use kvpool::{BlockId, Place, Transfer, TransferPlan, runs};
//! let at = |tier, block| Place { tier, block: BlockId::new(block) };
//! let copy = |src, dst| Transfer { src: at(0, src), dst: at(0, dst) };
//! let plan = TransferPlan::new(vec![copy(1, 2), copy(2, 3), copy(7, 9), copy(8, 10)])?;
//! let rounds = plan.rounds(&[])?;
//! assert_eq!(rounds[0], [copy(2, 3), copy(7, 9), copy(8, 10)]); // block 2 is read ...
//! assert_eq!(rounds[1], [copy(1, 2)]);                          // ... before it is written
//! assert_eq!(runs(&rounds[0])[1].len, 2);
//!
//! let swap = TransferPlan::new(vec![copy(1, 2), copy(2, 1)])?;
//! assert!(swap.rounds(&[]).is_err());
//! assert_eq!(swap.rounds(&[at(0, 5)])?.len(), 3);
//! # Ok::<(), kvpool::PlanError>(())
//! ```

use std::collections::{BTreeMap, BTreeSet};

use hashbrown::{HashMap, HashSet};

use crate::BlockId;

/// A block of a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The tier: 0 is the device.
    pub tier: usize,
    /// The block.
    pub block: BlockId,
}

/// The bytes of one block, to be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Transfer {
    /// Read.
    pub src: Place,
    /// Written.
    pub dst: Place,
}

/// Consecutive blocks, to be copied to consecutive blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The first block read.
    pub src: Place,
    /// The first block written.
    pub dst: Place,
    /// Blocks.
    pub len: usize,
}

/// What is wrong with a plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "its message says what a field is")]
pub enum PlanError {
    /// Two transfers write one block.
    #[error("block {} of tier {} is written twice by one plan", .place.block, .place.tier)]
    DuplicateDestination { place: Place },
    /// The null block holds no KV.
    #[error("the null block is {role} of a transfer")]
    NullBlock { role: &'static str },
    /// A scratch block that the plan itself uses, or that is named twice.
    #[error("block {} of tier {} cannot be a scratch block: it is used already", .place.block, .place.tier)]
    ScratchInUse { place: Place },
    /// Blocks change places in a cycle, and there is no scratch block left to keep one of them.
    #[error("the plan has {cycles} cycles and was given {scratch} scratch blocks: one each is needed")]
    NeedsScratch { cycles: usize, scratch: usize },
}

/// Transfers of one step, checked: no destination twice, no null block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TransferPlan {
    transfers: Vec<Transfer>,
}

impl TransferPlan {
    /// A plan of these transfers. Those from a block to itself are left out.
    ///
    /// # Errors
    /// [`PlanError::DuplicateDestination`], [`PlanError::NullBlock`].
    pub fn new(mut transfers: Vec<Transfer>) -> Result<Self, PlanError> {
        let mut written = HashSet::with_capacity(transfers.len());
        for Transfer { src, dst } in &transfers {
            for (place, role) in [(src, "the source"), (dst, "the destination")] {
                if place.block.is_null() {
                    return Err(PlanError::NullBlock { role });
                }
            }
            if !written.insert(*dst) {
                return Err(PlanError::DuplicateDestination { place: *dst });
            }
        }
        transfers.retain(|transfer| transfer.src != transfer.dst);
        Ok(Self { transfers })
    }

    /// The transfers, in the order in which they were planned.
    #[must_use]
    pub fn transfers(&self) -> &[Transfer] {
        &self.transfers
    }

    /// Number of transfers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.transfers.len()
    }

    /// Whether nothing is to be copied.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.transfers.is_empty()
    }

    /// Splits the plan into rounds that are executed one after the other, each in any order or at once;
    /// of each, transfers are sorted by tiers and blocks. `scratch` blocks keep one block of each cycle
    /// meanwhile; their content is lost.
    ///
    /// # Errors
    /// [`PlanError::NeedsScratch`], [`PlanError::ScratchInUse`].
    pub fn rounds(&self, scratch: &[Place]) -> Result<Vec<Vec<Transfer>>, PlanError> {
        self.check_scratch(scratch)?;
        let writer: HashMap<Place, usize> =
            self.transfers.iter().enumerate().map(|(at, transfer)| (transfer.dst, at)).collect();
        // A transfer comes after every one that reads what it writes: `next` is who writes what this
        // one reads.
        let next: Vec<Option<usize>> = self.transfers.iter().map(|t| writer.get(&t.src).copied()).collect();
        let mut readers = vec![0usize; self.transfers.len()];
        for &at in next.iter().flatten() {
            readers[at] += 1;
        }
        let mut round = vec![0usize; self.transfers.len()];
        let mut ready: Vec<usize> = (0..readers.len()).filter(|&at| readers[at] == 0).collect();
        while let Some(at) = ready.pop() {
            if let Some(after) = next[at] {
                round[after] = round[after].max(round[at] + 1);
                readers[after] -= 1;
                if readers[after] == 0 {
                    ready.push(after);
                }
            }
        }
        let (placed, waiting): (Vec<_>, Vec<_>) = (0..readers.len()).partition(|&at| readers[at] == 0);
        let cycles = cycles_of(&next, &waiting);
        if cycles.len() > scratch.len() {
            return Err(PlanError::NeedsScratch { cycles: cycles.len(), scratch: scratch.len() });
        }
        let mut rounds = BTreeMap::<usize, Vec<Transfer>>::new();
        let mut put = |round, transfer| rounds.entry(round).or_default().push(transfer);
        placed.iter().for_each(|&at| put(round[at], self.transfers[at]));
        for (cycle, &kept) in cycles.iter().zip(scratch) {
            // The first one's source is kept and written at the end. Others outside of the cycle may
            // read its blocks: each member waits for its own readers.
            let first = self.transfers[cycle[0]];
            put(0, Transfer { src: first.src, dst: kept });
            let mut last = 0;
            for &at in &cycle[1..] {
                last = round[at].max(last + 1);
                put(last, self.transfers[at]);
            }
            put(round[cycle[0]].max(last + 1), Transfer { src: kept, dst: first.dst });
        }
        let mut rounds: Vec<_> = rounds.into_values().collect();
        let order = |t: &Transfer| (t.src.tier, t.dst.tier, t.src, t.dst);
        rounds.iter_mut().for_each(|round| round.sort_unstable_by_key(order));
        Ok(rounds)
    }

    fn check_scratch(&self, scratch: &[Place]) -> Result<(), PlanError> {
        let mut used: HashSet<Place> = self.transfers.iter().flat_map(|t| [t.src, t.dst]).collect();
        for &place in scratch {
            if place.block.is_null() {
                return Err(PlanError::NullBlock { role: "scratch" });
            }
            if !used.insert(place) {
                return Err(PlanError::ScratchInUse { place });
            }
        }
        Ok(())
    }
}

/// The cycles among the transfers that wait for each other. In each, a transfer is followed by the one
/// that writes what it reads.
fn cycles_of(next: &[Option<usize>], waiting: &[usize]) -> Vec<Vec<usize>> {
    let mut waiting: BTreeSet<usize> = waiting.iter().copied().collect();
    let mut cycles = Vec::new();
    while let Some(start) = waiting.pop_first() {
        let mut cycle = vec![start];
        while let Some(at) = next[cycle[cycle.len() - 1]].filter(|at| waiting.remove(at)) {
            cycle.push(at);
        }
        cycles.push(cycle);
    }
    cycles
}

/// Merges the transfers of a round into runs of consecutive blocks; runs out of a tier and into it are
/// apart. The transfers are taken in the order in which [`TransferPlan::rounds`] sorts them.
#[must_use]
pub fn runs(round: &[Transfer]) -> Vec<Run> {
    let mut out: Vec<Run> = Vec::new();
    for &Transfer { src, dst } in round {
        let continues = |start: Place, len: usize, place: Place| {
            start.tier == place.tier
                && u64::from(start.block.get()) + len as u64 == u64::from(place.block.get())
        };
        match out.last_mut() {
            Some(run) if continues(run.src, run.len, src) && continues(run.dst, run.len, dst) => run.len += 1,
            _ => out.push(Run { src, dst, len: 1 }),
        }
    }
    out
}
