//! What an operation answers, as numbers, texts and lists: what an exported test compares.

use kvpool::retention::HintReport;
use kvpool::{
    Admission, BlockId, Match, NewBlock, Registered, StepOutcome, SwapId, TableChange, Ticket, Transfer,
    TransferPlan,
};
use kvpool_vllm::Removed;

use crate::ops::vllm::Ids;

/// An answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Value {
    /// There is none to give.
    #[default]
    Nothing,
    /// Yes or no.
    Flag(bool),
    /// A count, a block, a swap.
    Number(u64),
    /// What a refusal says.
    Text(String),
    /// A key of vLLM's, or its digest.
    Bytes(Vec<u8>),
    /// Several, in order.
    List(Vec<Self>),
    /// A change of a table, and the number of its group: of interest with several.
    Change(Vec<u64>, u16),
}

/// What has such a value.
pub(crate) trait ToValue {
    fn value(&self) -> Value;
}

impl<T: ToValue, E: std::fmt::Display> ToValue for Result<T, E> {
    fn value(&self) -> Value {
        match self {
            Ok(answer) => answer.value(),
            Err(refusal) => Value::Text(refusal.to_string()),
        }
    }
}

impl<T: ToValue> ToValue for [T] {
    fn value(&self) -> Value {
        Value::List(self.iter().map(T::value).collect())
    }
}

impl<T: ToValue> ToValue for Vec<T> {
    fn value(&self) -> Value {
        self.as_slice().value()
    }
}

impl<T: ToValue> ToValue for Option<T> {
    fn value(&self) -> Value {
        self.as_ref().map_or(Value::Nothing, T::value)
    }
}

impl<T: ToValue, U: ToValue> ToValue for (T, U) {
    fn value(&self) -> Value {
        Value::List(vec![self.0.value(), self.1.value()])
    }
}

impl ToValue for () {
    fn value(&self) -> Value {
        Value::Nothing
    }
}

impl ToValue for bool {
    fn value(&self) -> Value {
        Value::Flag(*self)
    }
}

impl ToValue for usize {
    fn value(&self) -> Value {
        Value::Number(*self as u64)
    }
}

impl ToValue for u64 {
    fn value(&self) -> Value {
        Value::Number(*self)
    }
}

impl ToValue for BlockId {
    fn value(&self) -> Value {
        Value::Number(self.get().into())
    }
}

impl ToValue for Ticket {
    fn value(&self) -> Value {
        Value::Number(self.get())
    }
}

impl ToValue for SwapId {
    fn value(&self) -> Value {
        Value::Number(self.get())
    }
}

impl ToValue for Registered {
    fn value(&self) -> Value {
        self.blocks.value()
    }
}

impl ToValue for Match {
    fn value(&self) -> Value {
        self.blocks().value()
    }
}

impl ToValue for HintReport {
    fn value(&self) -> Value {
        [self.accepted, self.clipped, self.ignored].as_slice().value()
    }
}

impl ToValue for Admission {
    fn value(&self) -> Value {
        let mut values = vec![self.cached_tokens.value(), self.block_ids.value()];
        values.extend(self.other_tables.iter().map(ToValue::value));
        Value::List(values)
    }
}

impl ToValue for NewBlock {
    fn value(&self) -> Value {
        Value::Change(vec![self.row as u64, self.index as u64, self.block.get().into()], self.group)
    }
}

impl ToValue for TableChange {
    fn value(&self) -> Value {
        Value::Change(vec![self.index as u64, self.block.get().into()], self.group)
    }
}

impl ToValue for StepOutcome {
    fn value(&self) -> Value {
        match self {
            Self::Admitted(admission) => admission.value(),
            Self::Appended(changes) => changes.value(),
            _ => Value::Nothing,
        }
    }
}

impl ToValue for Transfer {
    fn value(&self) -> Value {
        ((self.src.tier, self.src.block), (self.dst.tier, self.dst.block)).value()
    }
}

impl ToValue for TransferPlan {
    fn value(&self) -> Value {
        self.transfers().value()
    }
}

impl ToValue for Removed {
    fn value(&self) -> Value {
        Value::List(vec![Value::Bytes(self.key.as_bytes().to_vec()), Value::Flag(self.last_copy)])
    }
}

impl<T: AsRef<[u32]>> ToValue for Ids<T> {
    fn value(&self) -> Value {
        Value::List(self.0.as_ref().iter().map(|&block| Value::Number(block.into())).collect())
    }
}
