//! The answers of operations as numbers, texts and lists. An exported test compares them.

use kvpool::retention::HintReport;
use kvpool::{
    Admission, BlockId, Match, NewBlock, Registered, StepOutcome, SwapId, TableChange, Ticket, Transfer,
    TransferPlan,
};
use kvpool_observe::EventBatch;
use kvpool_vllm::Removed;

use crate::Outcome;

/// An answer in a form that an exported test can compare.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Value {
    /// The call has no return value.
    #[default]
    Nothing,
    /// A truth value.
    Flag(bool),
    /// A count, a block id, or the id of a swap.
    Number(u64),
    /// The error message of a call that was refused.
    Text(String),
    /// The bytes of a key of vLLM, or of its digest.
    Bytes(Vec<u8>),
    /// A list of values, in the order in which the call returned them.
    List(Vec<Self>),
    /// A change of a block table, and the number of its group. The number of the KV-cache group only
    /// matters if there are several groups.
    Change(Vec<u64>, u16),
}

/// The answer of an operation, in all forms that a replay, a shrinker or an export needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// The 32-bit check of the whole answer, as in the journal.
    pub check: u32,
    /// Whether the call was refused.
    pub refused: bool,
    /// Ids of the blocks that the call returned to its caller, in order.
    pub blocks: Vec<BlockId>,
    /// Id of the swap that the call began, if it began one.
    pub swap: Option<u64>,
    /// The answer as readable text.
    pub told: String,
    /// The answer in the form that a test compares.
    pub value: Value,
}

/// A type that calls return, from which an [`Answer`] can be made.
pub(crate) trait Reply: Outcome + std::fmt::Debug {
    /// Returns the answer in the form that a test compares.
    fn value(&self) -> Value;

    /// Returns the answer as readable text.
    fn told(&self) -> String {
        format!("{self:?}")
    }

    /// Whether the call was refused.
    fn refused(&self) -> bool {
        false
    }

    /// Returns the ids of the blocks that the call returned to its caller, in order.
    fn blocks(&self) -> Vec<BlockId> {
        Vec::new()
    }

    /// Returns the id of the swap that the call began.
    fn swap(&self) -> Option<u64> {
        None
    }
}

impl<T: Reply, E: Outcome + std::fmt::Debug + std::fmt::Display> Reply for Result<T, E> {
    fn value(&self) -> Value {
        match self {
            Ok(answer) => answer.value(),
            Err(refusal) => Value::Text(refusal.to_string()),
        }
    }

    fn told(&self) -> String {
        match self {
            Ok(answer) => answer.told(),
            Err(error) => format!("refused: {error}"),
        }
    }

    fn refused(&self) -> bool {
        self.is_err()
    }

    fn blocks(&self) -> Vec<BlockId> {
        self.as_ref().map_or_else(|_| Vec::new(), T::blocks)
    }

    fn swap(&self) -> Option<u64> {
        self.as_ref().ok().and_then(T::swap)
    }
}

impl<T: Reply> Reply for [T] {
    fn value(&self) -> Value {
        Value::List(self.iter().map(T::value).collect())
    }

    fn blocks(&self) -> Vec<BlockId> {
        self.iter().flat_map(T::blocks).collect()
    }
}

impl<T: Reply> Reply for Vec<T> {
    fn value(&self) -> Value {
        self.as_slice().value()
    }

    fn blocks(&self) -> Vec<BlockId> {
        self.as_slice().blocks()
    }
}

impl<T: Reply> Reply for Option<T> {
    fn value(&self) -> Value {
        self.as_ref().map_or(Value::Nothing, T::value)
    }

    fn blocks(&self) -> Vec<BlockId> {
        self.iter().flat_map(T::blocks).collect()
    }
}

impl<T: Reply, U: Reply> Reply for (T, U) {
    fn value(&self) -> Value {
        Value::List(vec![self.0.value(), self.1.value()])
    }

    fn blocks(&self) -> Vec<BlockId> {
        self.1.blocks()
    }
}

impl Reply for () {
    fn value(&self) -> Value {
        Value::Nothing
    }
}

impl Reply for bool {
    fn value(&self) -> Value {
        Value::Flag(*self)
    }
}

/// Implements `Reply` for answers that are one number.
macro_rules! numbers {
    ($($answer:ty: |$given:ident| $number:expr;)*) => { $(
        impl Reply for $answer {
            fn value(&self) -> Value {
                let $given = *self;
                Value::Number($number)
            }
        }
    )* };
}

numbers! {
    usize: |n| n as u64;
    u64: |n| n;
    Ticket: |ticket| ticket.get();
}

impl Reply for BlockId {
    fn value(&self) -> Value {
        Value::Number(self.get().into())
    }

    fn blocks(&self) -> Vec<BlockId> {
        vec![*self]
    }
}

impl Reply for SwapId {
    fn value(&self) -> Value {
        Value::Number(self.get())
    }

    fn swap(&self) -> Option<u64> {
        Some(self.get())
    }
}

impl Reply for Registered {
    fn value(&self) -> Value {
        self.blocks.value()
    }
}

impl Reply for Match {
    fn value(&self) -> Value {
        self.blocks().value()
    }

    fn blocks(&self) -> Vec<BlockId> {
        self.blocks().to_vec()
    }
}

impl Reply for HintReport {
    fn value(&self) -> Value {
        [self.accepted, self.clipped, self.ignored].as_slice().value()
    }
}

impl Reply for Admission {
    fn value(&self) -> Value {
        let mut values = vec![self.cached_tokens.value(), self.block_ids.value()];
        values.extend(self.other_tables.iter().map(Reply::value));
        Value::List(values)
    }

    fn blocks(&self) -> Vec<BlockId> {
        [&self.block_ids].into_iter().chain(&self.other_tables).flatten().copied().collect()
    }
}

impl Reply for NewBlock {
    fn value(&self) -> Value {
        Value::Change(vec![self.row as u64, self.index as u64, self.block.get().into()], self.group)
    }

    fn blocks(&self) -> Vec<BlockId> {
        vec![self.block]
    }
}

impl Reply for TableChange {
    fn value(&self) -> Value {
        Value::Change(vec![self.index as u64, self.block.get().into()], self.group)
    }

    fn blocks(&self) -> Vec<BlockId> {
        vec![self.block]
    }
}

impl Reply for StepOutcome {
    fn value(&self) -> Value {
        match self {
            Self::Admitted(admission) => admission.value(),
            Self::Appended(changes) => changes.value(),
            _ => Value::Nothing,
        }
    }

    fn blocks(&self) -> Vec<BlockId> {
        match self {
            Self::Admitted(admission) => admission.blocks(),
            Self::Appended(changes) => changes.blocks(),
            _ => Vec::new(),
        }
    }
}

impl Reply for Transfer {
    fn value(&self) -> Value {
        ((self.src.tier, self.src.block), (self.dst.tier, self.dst.block)).value()
    }
}

impl Reply for TransferPlan {
    fn value(&self) -> Value {
        self.transfers().value()
    }
}

impl Reply for Removed {
    fn value(&self) -> Value {
        Value::List(vec![Value::Bytes(self.key.as_bytes().to_vec()), Value::Flag(self.last_copy)])
    }
}

impl Reply for EventBatch {
    fn value(&self) -> Value {
        self.events.len().value()
    }

    fn told(&self) -> String {
        format!("{} events", self.events.len())
    }
}
