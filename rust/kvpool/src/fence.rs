//! `Fences` stores references to released blocks that running steps or transfers still use.
//!
//! With asynchronous scheduling, a request can end while a step that reads or writes its blocks is
//! still running on the device. A release with a *ticket* moves its references to a fence, and the
//! fence drops them when the ticket ends. (In vLLM #45357 and tpu-inference #3449, a running step
//! overwrote blocks that were freed too early.)
//!
//! Tickets may end in any order. A fence can also belong to a numbered step of the engine. The end of a
//! step also ends the fences of all earlier steps.
//!
//! A *pin* is a fence without a ticket. The source and the destination of a copy are pinned from the
//! call that plans the copy until [`crate::Tiers::take_plan`] returns it. All pins end together in that
//! call. So a block needs only one pin, even if several copies read it.
//!
//! This module counts, for each block, the references that belong to fences and pins. It also counts
//! the *fenced* blocks, whose references all belong to fences and pins. The allocator counts all
//! references, including these.
//!
//! Invariants:
//! - F1: the number of a block's fence references is the number of its references in open tickets,
//!   steps and pins. It is at most the number of all references of the block.
//! - F2: a block is fenced exactly if these two numbers are equal and above 0.
//! - F3: the total number of fence references is the sum over all blocks.
//!
//! Costs: O(1) per block, and O(log t) per call for t open tickets. The numbers of a block are in its
//! record. A ticket takes 4 bytes per reference, in memory that the next ticket reuses.

use std::fmt;

use crate::block::BlockId;
use crate::error::{InvariantViolation, ensure};
use crate::record::{ByBlock, Records};

/// Identifies a fence, and is needed to end it. A pool never issues the same ticket twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

impl Ticket {
    /// Makes the ticket with this number.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the number of the ticket. The tickets of a pool are numbered from 0.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// When released blocks may be allocated again.
///
/// ```
/// use kvpool::{BlockPool, PoolConfig, Until};
/// let mut pool = BlockPool::new(PoolConfig { num_blocks: 4, ..PoolConfig::default() })?;
/// let blocks = pool.allocate(3)?;
/// pool.release_until(&blocks[..1], Until::Now)?;
/// pool.release_until(&blocks[1..], Until::Step(7))?; // step 7 still reads them
/// assert_eq!(pool.num_available(), 1);
/// pool.complete_step(7)?;
/// assert_eq!(pool.num_available(), 3);
/// # Ok::<(), kvpool::PoolError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Until {
    /// At once.
    #[default]
    Now,
    /// When this step or a later step is completed: [`crate::BlockPool::complete_step`].
    Step(u64),
    /// When this ticket ends: [`crate::BlockPool::end_fence`].
    Ticket(Ticket),
}

impl From<Ticket> for Until {
    fn from(ticket: Ticket) -> Self {
        Self::Ticket(ticket)
    }
}

/// Converts `None` to [`Until::Now`], and a number to [`Until::Step`].
impl From<Option<u64>> for Until {
    fn from(step: Option<u64>) -> Self {
        step.map_or(Self::Now, Self::Step)
    }
}

/// The fence of one open ticket or step: the blocks to which it holds references.
#[derive(Clone, Debug)]
struct Fence {
    number: u64,
    blocks: Vec<BlockId>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Fences {
    /// The fences of steps, in ascending order. Only steps that hold references are included.
    steps: Vec<Fence>,
    /// The fences of tickets, in ascending order. Every open ticket is included.
    tickets: Vec<Fence>,
    next_ticket: u64,
    /// The pinned blocks: sources and destinations of planned copies. Each block appears once.
    pinned: Vec<BlockId>,
    /// The lists of ended fences, emptied. New fences reuse their memory.
    spare: Vec<Vec<BlockId>>,
    /// Number of blocks whose references all belong to fences and pins.
    fenced: usize,
    completed: Option<u64>,
    /// Number of references that all fences and pins hold.
    total: u64,
}

const MOST_SPARE: usize = 8;

impl Fences {
    pub(crate) const fn num_fenced(&self) -> usize {
        self.fenced
    }

    pub(crate) const fn num_references(&self) -> u64 {
        self.total
    }

    /// Whether `step` has completed, so that a fence on it would end at once.
    pub(crate) fn is_completed(&self, step: u64) -> bool {
        self.completed.is_some_and(|completed| step <= completed)
    }

    pub(crate) const fn completed(&self) -> Option<u64> {
        self.completed
    }

    /// Opens a ticket.
    pub(crate) fn open(&mut self) -> Ticket {
        let number = self.next_ticket;
        self.next_ticket += 1;
        let blocks = self.spare.pop().unwrap_or_default();
        self.tickets.push(Fence { number, blocks });
        Ticket(number)
    }

    /// Whether the fence of `ticket` has begun and not ended.
    pub(crate) fn is_open(&self, ticket: Ticket) -> bool {
        self.tickets.binary_search_by_key(&ticket.0, |fence| fence.number).is_ok()
    }

    pub(crate) const fn num_open(&self) -> usize {
        self.tickets.len()
    }

    /// Moves one existing reference of each block to the fence of `until`. This must be a ticket whose
    /// fence has not ended, or a step that has not completed.
    pub(crate) fn add(&mut self, records: &mut Records, until: Until, blocks: &[BlockId]) {
        let (fences, number) = match until {
            Until::Step(step) => (&mut self.steps, step),
            Until::Ticket(ticket) => (&mut self.tickets, ticket.0),
            Until::Now => return,
        };
        if blocks.is_empty() {
            return;
        }
        let at = fences.binary_search_by_key(&number, |fence| fence.number).unwrap_or_else(|at| {
            fences.insert(at, Fence { number, blocks: self.spare.pop().unwrap_or_default() });
            at
        });
        fences[at].blocks.extend_from_slice(blocks);
        self.count(records, blocks, false);
    }

    /// Turns one existing reference of a block into a pin. The block must not already be pinned. One
    /// pin per block is enough, because all pins end together.
    pub(crate) fn pin(&mut self, records: &mut Records, block: BlockId) {
        self.count(records, &[block], true);
        self.pinned.push(block);
    }

    fn count(&mut self, records: &mut Records, blocks: &[BlockId], pins: bool) {
        for &block in blocks {
            if let Some(record) = records.of_mut(block) {
                record.fences = record.fences.saturating_add(1);
                record.pins = record.pins.saturating_add(u16::from(pins));
                self.fenced = self.fenced.wrapping_add(usize::from(record.is_fenced()));
            }
        }
        self.total = self.total.wrapping_add(blocks.len() as u64);
    }

    /// Subtracts 1 from the number of fenced blocks, because a fenced block gets a holder.
    #[inline]
    pub(crate) fn unfence(&mut self) {
        self.fenced = self.fenced.wrapping_sub(1);
    }

    /// Adds `n` to the number of fenced blocks, because `n` blocks have lost their last holder but
    /// still have references of fences or pins.
    #[inline]
    pub(crate) fn fence(&mut self, n: usize) {
        self.fenced = self.fenced.wrapping_add(n);
    }

    /// Ends the fence of a ticket. Returns its blocks in the order in which they were fenced. For each
    /// block, the caller calls [`Self::end_one`] and drops the reference. Then it returns the list with
    /// [`Self::recycle`]. Returns `None` if the fence has already ended.
    pub(crate) fn close(&mut self, ticket: Ticket) -> Option<Vec<BlockId>> {
        let at = self.tickets.binary_search_by_key(&ticket.0, |fence| fence.number).ok()?;
        Some(self.tickets.remove(at).blocks)
    }

    /// Completes `step` and all earlier steps. Returns their blocks like [`Self::close`].
    pub(crate) fn complete(&mut self, step: u64) -> Vec<BlockId> {
        self.completed = self.completed.max(Some(step));
        let ended = self.steps.partition_point(|fence| fence.number <= step);
        let mut blocks = Vec::new();
        for fence in self.steps.drain(..ended) {
            if blocks.is_empty() {
                blocks = fence.blocks;
            } else {
                blocks.extend_from_slice(&fence.blocks);
            }
        }
        blocks
    }

    pub(crate) fn end_pins(&mut self) -> Vec<BlockId> {
        std::mem::take(&mut self.pinned)
    }

    pub(crate) fn recycle(&mut self, mut blocks: Vec<BlockId>, pins: bool) {
        blocks.clear();
        if pins && self.pinned.is_empty() {
            self.pinned = blocks;
        } else if self.spare.len() < MOST_SPARE && blocks.capacity() > 0 {
            self.spare.push(blocks);
        }
    }

    /// Ends one reference of a block that belongs to a fence or, with `pin`, to a pin. Returns false,
    /// and changes nothing, if the block has none. The counts of fences are then broken (F1).
    #[must_use]
    pub(crate) fn end_one(&mut self, records: &mut Records, block: BlockId, pin: bool) -> bool {
        let Some(record) = records.of_mut(block) else { return false };
        let pins = u16::from(pin);
        if record.fences == 0 || record.fences > record.references || record.pins < pins {
            return false;
        }
        // The caller drops the reference afterwards. Of the references that are left, one may belong to
        // a holder; then the block is not fenced.
        let was_fenced = record.is_fenced();
        let left = record.references - 1;
        record.fences -= 1;
        record.pins -= pins;
        let is_fenced = left > 0 && left == record.fences;
        // A wrong total is not detected here, but by `check_sums`.
        self.fenced = self.fenced.wrapping_sub(usize::from(was_fenced)).wrapping_add(usize::from(is_fenced));
        self.total = self.total.wrapping_sub(1);
        true
    }

    /// Whether the number of references can be right: it must be 0 if there are no fences and no pins.
    /// O(1).
    pub(crate) const fn is_plausible(&self) -> bool {
        let none = self.steps.is_empty() && self.tickets.is_empty() && self.pinned.is_empty();
        !none || self.total == 0
    }

    pub(crate) fn check_invariants(&self, records: &Records) -> Result<(), InvariantViolation> {
        let mut recount = vec![(0_u32, 0_u16); records.len()];
        let open = self.steps.iter().chain(&self.tickets).flat_map(|fence| &fence.blocks);
        open.for_each(|block| recount[block.index()].0 += 1);
        for block in &self.pinned {
            recount[block.index()].0 += 1;
            recount[block.index()].1 += 1;
        }
        let total = recount.iter().map(|&(fences, _)| u64::from(fences)).sum::<u64>();
        ensure(total == self.total, "F3 (fence references are counted)", || {
            format!("{total} found, {} counted", self.total)
        })?;
        let wrong =
            records.iter().zip(&recount).position(|(record, &open)| (record.fences, record.pins) != open);
        ensure(wrong.is_none(), "F1 (fence references are those of open tickets)", || {
            let at = wrong.unwrap_or(0);
            let record = records.at(at as u32);
            format!("block {at}: {} and {} pins, open {:?}", record.fences, record.pins, recount[at])
        })?;
        let exceeds = records.iter().position(|record| record.fences > record.references);
        ensure(exceeds.is_none(), "F1 (a block has at least its fence references)", || {
            format!("block {exceeds:?} has more fence references than references")
        })?;
        let fenced = records.iter().filter(|record| record.is_fenced()).count();
        ensure(fenced == self.fenced, "F2 (fenced blocks are counted)", || {
            format!("{fenced} fenced, {} counted", self.fenced)
        })
    }
}

#[cfg(feature = "fault-injection")]
impl Fences {
    /// Overwrites one value for tests, and adjusts no other. `what` selects it: 0 is the number of a
    /// block's fence references, 1 the number of fenced blocks, 2 the number of all fence references.
    pub(crate) fn corrupt(&mut self, records: &mut Records, block: BlockId, what: usize, to: u32) -> bool {
        match (what, records.of_mut(block)) {
            (0, Some(record)) => std::mem::replace(&mut record.fences, to) != to,
            (1, _) => std::mem::replace(&mut self.fenced, to as usize) != to as usize,
            (2, _) => std::mem::replace(&mut self.total, u64::from(to)) != u64::from(to),
            _ => false,
        }
    }
}
