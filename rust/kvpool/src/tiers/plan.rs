//! A [`TransferPlan`] lists copies of block contents, as plain data.
//!
//! All transfers of a plan are *simultaneous*: each reads the content that its source had before the
//! plan wrote to any block. An engine that copies one block after the other needs
//! [`TransferPlan::rounds`], which splits the plan so that every block is read in an earlier round than
//! the one that writes it. If transfers form a cycle, an extra *scratch* block temporarily holds the
//! content of one of their blocks. [`runs`] merges consecutive ids of a round into one copy each (vLLM
//! #35990: 193 copies became 3).
//!
//! kvpool only makes plans; the engine executes them. Costs: O(n log n) for n transfers.

use std::collections::{BTreeMap, BTreeSet};

use hashbrown::{HashMap, HashSet};

use crate::BlockId;

/// Identifies a block of a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The number of the tier. 0 is the device.
    pub tier: usize,
    /// The block.
    pub block: BlockId,
}

/// A copy of the bytes of one block.
///
/// A transfer does not name a KV-cache group. A block is only in tables of one group, so copying its
/// memory in every layer is correct, and only the layers of that group need the copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Transfer {
    /// The block that is read.
    pub src: Place,
    /// The block that is written.
    pub dst: Place,
}

/// A copy of consecutive blocks to consecutive blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The first block that is read.
    pub src: Place,
    /// The first block that is written.
    pub dst: Place,
    /// Number of blocks.
    pub len: usize,
}

/// The reason why a plan is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the error message explains each field")]
pub enum PlanError {
    /// Two transfers write the same block.
    #[error("block {} of tier {} is written twice by one plan", .place.block, .place.tier)]
    DuplicateDestination { place: Place },
    /// A transfer reads or writes the null block, which has no KV.
    #[error("the null block is {role} of a transfer")]
    NullBlock { role: &'static str },
    /// A scratch block (which holds the content of a block temporarily) is used by the plan itself, or
    /// appears twice in the list.
    #[error("block {} of tier {} cannot be a scratch block: it is used already", .place.block, .place.tier)]
    ScratchInUse { place: Place },
    /// The transfers form a cycle, and no scratch block is left to hold the content of one of its
    /// blocks.
    #[error("the plan has {cycles} cycles and was given {scratch} scratch blocks: one each is needed")]
    NeedsScratch { cycles: usize, scratch: usize },
}

/// The transfers of one step. No block is the destination of two transfers, and no transfer uses the
/// null block.
///
/// ```
/// use kvpool::{BlockId, Place, Transfer, TransferPlan, runs};
/// let at = |tier, block| Place { tier, block: BlockId::new(block) };
/// let copy = |src, dst| Transfer { src: at(0, src), dst: at(0, dst) };
/// let plan = TransferPlan::new(vec![copy(1, 2), copy(2, 3), copy(7, 9), copy(8, 10)])?;
/// let rounds = plan.rounds(&[])?;
/// assert_eq!(rounds[0], [copy(2, 3), copy(7, 9), copy(8, 10)]); // block 2 is read ...
/// assert_eq!(rounds[1], [copy(1, 2)]);                          // ... before it is written
/// assert_eq!(runs(&rounds[0])[1].len, 2);
///
/// let swap = TransferPlan::new(vec![copy(1, 2), copy(2, 1)])?;
/// assert!(swap.rounds(&[]).is_err());
/// assert_eq!(swap.rounds(&[at(0, 5)])?.len(), 3);
/// # Ok::<(), kvpool::PlanError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TransferPlan {
    transfers: Vec<Transfer>,
}

impl TransferPlan {
    /// Makes a plan of these transfers. Omits transfers from a block to itself.
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

    /// Whether the plan has no transfers.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.transfers.is_empty()
    }

    /// Splits the plan into rounds that are executed one after the other. The transfers of a round can
    /// be executed in any order or at the same time; they are sorted by tiers and blocks. If transfers
    /// form a cycle, a `scratch` block temporarily holds the content of one of their blocks. This
    /// overwrites the scratch block.
    ///
    /// # Errors
    /// [`PlanError::NeedsScratch`], [`PlanError::ScratchInUse`].
    pub fn rounds(&self, scratch: &[Place]) -> Result<Vec<Vec<Transfer>>, PlanError> {
        self.check_scratch(scratch)?;
        let writer: HashMap<Place, usize> =
            self.transfers.iter().enumerate().map(|(at, transfer)| (transfer.dst, at)).collect();
        // A transfer must not be executed before the transfers that read the block that it writes.
        // `next` contains the other direction: for each transfer, the transfer that writes the block
        // that it reads.
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
            // The source of the cycle's first transfer is saved in the scratch block, from which the
            // last transfer writes it. Transfers outside of the cycle may also read blocks of the
            // cycle, so each transfer waits for all readers of its destination.
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

/// Finds the cycles among transfers that wait for each other. Each cycle is a list of transfers. Each
/// transfer in it is followed by the transfer that writes the block that it reads.
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

/// Merges transfers of a round into one copy ([`Run`]) if their source blocks and their destination
/// blocks are consecutive in the same tiers. Pass the transfers in the order of
/// [`TransferPlan::rounds`].
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
