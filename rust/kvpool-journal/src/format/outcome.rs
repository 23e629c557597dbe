//! Checks of answers. A check is a number that is equal in two runs if they gave the same answer.

use kvpool::hash::HashError;
use kvpool::retention::HintReport;
use kvpool::{
    Admission, BlockId, ManagerError, Match, NewBlock, PoolError, Refusal, Refused, Registered, StepOutcome,
    SwapId, TableChange, Ticket, TierError, Transfer, TransferPlan,
};
use kvpool_observe::{BlockEvent, EventBatch};
use kvpool_vllm::{Removed, VllmError};

/// Combines numbers into a check. The result depends on their order. It multiplies by the constant of
/// Fibonacci hashing, which must not change because checks are part of the format of journals.
#[derive(Clone, Copy, Debug)]
pub struct Check(u64);

impl Check {
    /// Returns the check (a 32-bit checksum) of an answer.
    #[must_use]
    pub fn of(outcome: &impl Outcome) -> u32 {
        let mut check = Self(0);
        outcome.add_to(&mut check);
        check.finish()
    }

    /// Adds a number to the check, as a further part of the answer.
    pub fn add(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }

    const fn finish(self) -> u32 {
        (self.0 ^ (self.0 >> 32)) as u32
    }
}

/// An answer from which a check can be computed.
pub trait Outcome {
    /// Adds to the check each part of the answer that a replay has to reproduce.
    fn add_to(&self, check: &mut Check);
}

impl<T: Outcome + ?Sized> Outcome for &T {
    fn add_to(&self, check: &mut Check) {
        (**self).add_to(check);
    }
}

impl<T: Outcome, E: Outcome> Outcome for Result<T, E> {
    fn add_to(&self, check: &mut Check) {
        match self {
            Ok(outcome) => {
                check.add(1);
                outcome.add_to(check);
            }
            Err(error) => {
                check.add(2);
                error.add_to(check);
            }
        }
    }
}

impl<T: Outcome> Outcome for Option<T> {
    fn add_to(&self, check: &mut Check) {
        check.add(u64::from(self.is_some()));
        if let Some(outcome) = self {
            outcome.add_to(check);
        }
    }
}

impl<T: Outcome> Outcome for [T] {
    fn add_to(&self, check: &mut Check) {
        check.add(self.len() as u64);
        self.iter().for_each(|outcome| outcome.add_to(check));
    }
}

impl<T: Outcome> Outcome for Vec<T> {
    fn add_to(&self, check: &mut Check) {
        self.as_slice().add_to(check);
    }
}

impl<T: Outcome, U: Outcome> Outcome for (T, U) {
    fn add_to(&self, check: &mut Check) {
        self.0.add_to(check);
        self.1.add_to(check);
    }
}

impl Outcome for () {
    fn add_to(&self, _: &mut Check) {}
}

/// Implements `Outcome` for answers that are one number.
macro_rules! numbers {
    ($($answer:ty: |$given:ident| $number:expr;)*) => { $(
        impl Outcome for $answer {
            fn add_to(&self, check: &mut Check) {
                let $given = *self;
                check.add($number);
            }
        }
    )* };
}

numbers! {
    bool: |is| is.into();
    usize: |n| n as u64;
    u64: |n| n;
    BlockId: |block| block.get().into();
    Ticket: |ticket| ticket.get();
    SwapId: |swap| swap.get();
}

impl Outcome for Registered {
    fn add_to(&self, check: &mut Check) {
        check.add((self.blocks as u64) << 1 | u64::from(self.collided));
    }
}

impl Outcome for Match {
    fn add_to(&self, check: &mut Check) {
        check.add(self.start() as u64);
        self.blocks().add_to(check);
    }
}

impl Outcome for HintReport {
    fn add_to(&self, check: &mut Check) {
        [self.accepted, self.clipped, self.ignored].as_slice().add_to(check);
    }
}

impl Outcome for Admission {
    fn add_to(&self, check: &mut Check) {
        check.add(self.cached_tokens as u64);
        check.add(self.external_tokens as u64);
        self.block_ids.add_to(check);
        self.other_tables.iter().for_each(|table| table.add_to(check));
    }
}

impl Outcome for NewBlock {
    fn add_to(&self, check: &mut Check) {
        check.add((self.row as u64) << 32 | self.index as u64 | u64::from(self.group) << 48);
        self.block.add_to(check);
    }
}

impl Outcome for TableChange {
    fn add_to(&self, check: &mut Check) {
        check.add(self.index as u64 | u64::from(self.group) << 48);
        self.block.add_to(check);
    }
}

impl Outcome for StepOutcome {
    fn add_to(&self, check: &mut Check) {
        match self {
            Self::Admitted(admission) => admission.add_to(check),
            Self::Appended(changes) => changes.add_to(check),
            Self::Preempted => check.add(3),
            Self::Released => check.add(4),
            _ => check.add(5),
        }
    }
}

impl Outcome for Transfer {
    fn add_to(&self, check: &mut Check) {
        for place in [self.src, self.dst] {
            check.add((place.tier as u64) << 32 | u64::from(place.block.get()));
        }
    }
}

impl Outcome for TransferPlan {
    fn add_to(&self, check: &mut Check) {
        self.transfers().add_to(check);
    }
}

impl Outcome for EventBatch {
    fn add_to(&self, check: &mut Check) {
        self.events.add_to(check);
    }
}

impl Outcome for BlockEvent {
    fn add_to(&self, check: &mut Check) {
        match self {
            Self::Stored { hash, group, block, .. } => {
                check.add(hash.key().wrapping_add(u64::from(*group)));
                block.add_to(check);
            }
            Self::Removed { hash, group, block } => {
                check.add(!hash.key().wrapping_add(u64::from(*group)));
                block.add_to(check);
            }
            Self::Cleared { epoch } => check.add(*epoch),
            _ => check.add(u64::MAX),
        }
    }
}

impl Outcome for Refusal {
    fn add_to(&self, check: &mut Check) {
        [self.needed, self.available, self.fenced].as_slice().add_to(check);
        check.add(u64::from(self.can_ever_fit));
        check.add(self.fitting_tokens as u64);
    }
}

// Each kind of error adds its own number to the check. These numbers are part of the format of
// journals, so new kinds of errors get new numbers.

impl Outcome for PoolError {
    fn add_to(&self, check: &mut Check) {
        check.add(match self {
            Self::OutOfBlocks(refusal) => return refusal.add_to(check),
            Self::InvalidConfig { .. } => 101,
            Self::UnknownBlock { .. } => 102,
            Self::NullBlock { .. } => 103,
            Self::NotHeld { .. } => 104,
            Self::RefCountOverflow { .. } => 105,
            Self::WrongState { .. } => 106,
            Self::AlreadyRegistered { .. } => 107,
            Self::NotRegistered { .. } => 108,
            Self::ChainTooShort { .. } => 109,
            Self::BlockSizeMismatch { .. } => 110,
            Self::AlgorithmMismatch { .. } => 111,
            Self::UnverifiedAlgorithm { .. } => 112,
            Self::MissingVerification { .. } => 113,
            Self::StaleEpoch { .. } => 114,
            Self::InUse { .. } => 115,
            Self::Shrink { .. } => 116,
            Self::NoRetention { .. } => 117,
            Self::TimeBackwards { .. } => 118,
            Self::Hash(error) => return error.add_to(check),
            Self::Poisoned { .. } => 119,
            Self::TooDeep { .. } => 120,
            Self::UnknownTicket { .. } => 121,
            Self::StaleMatch { .. } => 122,
            _ => 199,
        });
    }
}

impl Outcome for HashError {
    fn add_to(&self, check: &mut Check) {
        check.add(201);
    }
}

impl Outcome for TierError {
    fn add_to(&self, check: &mut Check) {
        match self {
            Self::Pool(error) => error.add_to(check),
            _ => check.add(301),
        }
    }
}

impl Outcome for ManagerError {
    fn add_to(&self, check: &mut Check) {
        check.add(match self {
            Self::Tier(error) => return error.add_to(check),
            Self::OutOfBlocks(refusal) => return refusal.add_to(check),
            Self::Pool(error) => return error.add_to(check),
            Self::Hash(error) => return error.add_to(check),
            Self::BadLength { .. } => 401,
            Self::EmptyGroup => 402,
            Self::NoHostTier => 403,
            Self::UnknownRequest { .. } => 404,
            Self::DuplicateRequest { .. } => 405,
            Self::NamedTwice { .. } => 406,
            Self::WrongState { .. } => 407,
            Self::EmptyPrompt { .. } => 408,
            Self::LengthMismatch { .. } => 409,
            Self::BadComputedCount { .. } => 410,
            Self::StaleStep => 411,
            Self::ForeignCursor => 412,
            Self::BadOffset { .. } => 413,
            Self::BadExternalCount { .. } => 414,
            Self::TooManyChanges { .. } => 415,
            // Assign a new number here when you add an error.
            _ => 499,
        });
    }
}

impl Outcome for Refused {
    fn add_to(&self, check: &mut Check) {
        self.error.add_to(check);
    }
}

impl Outcome for Removed {
    fn add_to(&self, check: &mut Check) {
        check.add(u64::from(self.block) << 1 | u64::from(self.last_copy));
        check.add(self.key.content());
    }
}

// Each kind of error adds its own number to the check. These numbers are part of the format of
// journals, so new kinds of errors get new numbers.
impl Outcome for VllmError {
    fn add_to(&self, check: &mut Check) {
        check.add(match self {
            Self::OutOfBlocks { wanted, .. } => (*wanted as u64) << 16 | 501,
            Self::NotHeld { .. } => 502,
            Self::UnknownBlock { .. } => 503,
            Self::AlreadyCached { .. } => 504,
            Self::KeyTooLong { .. } => 505,
            Self::Pool(PoolError::Poisoned { .. }) => 506,
            Self::Pool(_) => 507,
            // Assign a new number here when you add an error.
            _ => 599,
        });
    }
}
