//! Converts Rust errors to Python exceptions. No other module maps errors.
//!
//! The classes are Python's own (`kvpool.errors`), because each derives from `KvpoolError` and from a
//! builtin.

use kvpool::{HashError, InvariantViolation, ManagerError, PlanError, PoolError, Refusal, TierError};
use kvpool_journal::JournalError;
use kvpool_observe::{ExplainError, PayloadError};
use kvpool_replay::error::{ExpandError, GeneratorError, TraceError};
use kvpool_replay::replay::ReplayError;
use kvpool_store::StoreError;
use kvpool_transfer::{CudaError, TransferError};
use pyo3::exceptions::{PyTypeError, PyValueError};

use crate::python::prelude::*;

/// Returns an exception of the class `class` of `kvpool.errors`.
pub(crate) fn raise(py: Python<'_>, class: &str, message: impl Into<String>) -> PyErr {
    let build = || {
        let class = crate::python::import(py, "kvpool.errors")?.getattr(class)?;
        class.call1((message.into(),))
    };
    build().map_or_else(|error| error, PyErr::from_value)
}

pub(crate) fn is_kvpool(py: Python<'_>, error: &PyErr) -> bool {
    let base = crate::python::import(py, "kvpool.errors").and_then(|errors| errors.getattr("KvpoolError"));
    base.is_ok_and(|base| error.is_instance(py, &base))
}

/// Whether an exception reaches the caller unchanged: it is one of `kvpool.errors`, or it is neither a
/// `TypeError` nor a `ValueError`, which an argument of the wrong type raises.
pub(crate) fn is_ours(py: Python<'_>, error: &PyErr) -> bool {
    let foreign = error.is_instance_of::<PyTypeError>(py) || error.is_instance_of::<PyValueError>(py);
    !foreign || is_kvpool(py, error)
}

/// Converts an error of a Rust crate to a Python exception.
pub(crate) trait ToPyErr {
    fn to_py_err(&self, py: Python<'_>) -> PyErr;
}

/// Converts the error of a `Result` to a Python exception: `result.or_raise(py)?`.
pub(crate) trait OrRaise<T> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T>;
}

impl<T, E: ToPyErr> OrRaise<T> for Result<T, E> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|error| error.to_py_err(py))
    }
}

fn out_of_blocks(py: Python<'_>, refusal: &Refusal) -> PyErr {
    let error = raise(py, "OutOfBlocksError", refusal.to_string());
    let value = error.value(py);
    let set = value
        .setattr("needed", refusal.needed)
        .and_then(|()| value.setattr("available", refusal.available))
        .and_then(|()| value.setattr("missing", refusal.missing))
        .and_then(|()| value.setattr("fenced", refusal.fenced))
        .and_then(|()| value.setattr("can_ever_fit", refusal.can_ever_fit))
        .and_then(|()| value.setattr("fits_in_chunks", refusal.fits_in_chunks))
        .and_then(|()| value.setattr("fitting_tokens", refusal.fitting_tokens));
    set.map_or_else(|failure| failure, |()| error.clone_ref(py))
}

impl ToPyErr for PoolError {
    fn to_py_err(&self, py: Python<'_>) -> PyErr {
        let class = match self {
            Self::OutOfBlocks(refusal) => return out_of_blocks(py, refusal),
            Self::Hash(error) => return error.to_py_err(py),
            Self::UnknownBlock { .. }
            | Self::NullBlock { .. }
            | Self::NotHeld { .. }
            | Self::RefCountOverflow { .. }
            | Self::WrongState { .. }
            | Self::AlreadyRegistered { .. }
            | Self::NotRegistered { .. } => "InvalidBlockError",
            Self::StaleEpoch { .. } => "StaleEpochError",
            Self::StaleMatch { .. } => "StaleMatchError",
            Self::InUse { .. } => "BlocksInUseError",
            Self::Poisoned { .. } => "PoolPoisonedError",
            Self::NoRetention { .. } => "NoRetentionError",
            Self::TimeBackwards { .. } => "TimeBackwardsError",
            _ => "InvalidArgumentError",
        };
        raise(py, class, self.to_string())
    }
}

impl ToPyErr for TierError {
    fn to_py_err(&self, py: Python<'_>) -> PyErr {
        match self {
            Self::Pool(error) => error.to_py_err(py),
            Self::Plan(error) => error.to_py_err(py),
            Self::InUse { .. } => raise(py, "BlocksInUseError", self.to_string()),
            Self::UnknownSwap { .. } | Self::CopiesNotTaken { .. } => {
                raise(py, "SwapError", self.to_string())
            }
            _ => raise(py, "InvalidArgumentError", self.to_string()),
        }
    }
}

impl ToPyErr for StoreError {
    fn to_py_err(&self, py: Python<'_>) -> PyErr {
        let class = match self {
            Self::UnknownSlot { .. } | Self::InvalidConfig { .. } | Self::PayloadLength { .. } => {
                "InvalidArgumentError"
            }
            Self::SlotBusy { .. } => "SlotBusyError",
            Self::NoMemory { .. } => "TooLargeError",
            Self::FolderInUse { .. } => "StoreInUseError",
            Self::NoStore { .. } => "StoreNotFoundError",
            _ => "StoreError",
        };
        raise(py, class, self.to_string())
    }
}

impl ToPyErr for PlanError {
    fn to_py_err(&self, py: Python<'_>) -> PyErr {
        raise(py, "InvalidArgumentError", self.to_string())
    }
}

impl ToPyErr for ManagerError {
    fn to_py_err(&self, py: Python<'_>) -> PyErr {
        let class = match self {
            Self::Pool(error) => return error.to_py_err(py),
            Self::Hash(error) => return error.to_py_err(py),
            Self::OutOfBlocks(refusal) => return out_of_blocks(py, refusal),
            Self::Tier(error) => return error.to_py_err(py),
            Self::UnknownRequest { .. } => "UnknownRequestError",
            Self::DuplicateRequest { .. } | Self::NamedTwice { .. } => "DuplicateRequestError",
            Self::WrongState { .. } => "RequestStateError",
            Self::StaleStep => "StaleStepError",
            _ => "InvalidArgumentError",
        };
        raise(py, class, self.to_string())
    }
}

impl ToPyErr for ExplainError {
    fn to_py_err(&self, py: Python<'_>) -> PyErr {
        let class = match self {
            Self::UnknownRequest { .. } => "UnknownRequestError",
            _ => "InvalidArgumentError",
        };
        raise(py, class, self.to_string())
    }
}

impl ToPyErr for PayloadError {
    fn to_py_err(&self, py: Python<'_>) -> PyErr {
        let class = match self {
            Self::Pool(error) => return error.to_py_err(py),
            Self::NotRegistered { .. } => "InvalidBlockError",
            Self::Lengths { .. } => "InvalidArgumentError",
            _ => "PayloadError",
        };
        raise(py, class, self.to_string())
    }
}

impl ToPyErr for HashError {
    fn to_py_err(&self, py: Python<'_>) -> PyErr {
        raise(py, "HashingError", self.to_string())
    }
}

impl ToPyErr for InvariantViolation {
    fn to_py_err(&self, py: Python<'_>) -> PyErr {
        raise(py, "InvariantError", self.to_string())
    }
}

impl ToPyErr for TraceError {
    fn to_py_err(&self, py: Python<'_>) -> PyErr {
        let class = match self.root() {
            Self::Open { .. } | Self::Io { .. } | Self::EmptyFolder { .. } => "TraceFileError",
            Self::NotWritten { .. } | Self::BlockSizes { line: None, .. } => "InvalidArgumentError",
            _ => "TraceError",
        };
        raise(py, class, self.to_string())
    }
}

impl ToPyErr for ExpandError {
    fn to_py_err(&self, py: Python<'_>) -> PyErr {
        raise(py, "TraceError", self.to_string())
    }
}

impl ToPyErr for GeneratorError {
    fn to_py_err(&self, py: Python<'_>) -> PyErr {
        raise(py, "InvalidArgumentError", self.to_string())
    }
}

impl ToPyErr for ReplayError {
    fn to_py_err(&self, py: Python<'_>) -> PyErr {
        match self {
            Self::Manager(error) => error.to_py_err(py),
            Self::Expand { .. } => raise(py, "TraceError", self.to_string()),
            Self::Threads { .. } => raise(py, "KvpoolError", self.to_string()),
            _ => raise(py, "InvalidArgumentError", self.to_string()),
        }
    }
}

impl ToPyErr for JournalError {
    fn to_py_err(&self, py: Python<'_>) -> PyErr {
        let class = match self {
            Self::InvalidConfig { .. } => "InvalidArgumentError",
            Self::Exists { .. } => "JournalExistsError",
            Self::Io(_) => "JournalFileError",
            _ => "JournalError",
        };
        raise(py, class, self.to_string())
    }
}

impl ToPyErr for kvpool_journal::ReplayError {
    fn to_py_err(&self, py: Python<'_>) -> PyErr {
        match self {
            Self::Journal(error) => error.to_py_err(py),
            _ => raise(py, "JournalError", self.to_string()),
        }
    }
}

fn cuda_error(py: Python<'_>, cause: &CudaError, message: String) -> PyErr {
    let error = raise(py, "CudaError", message);
    let value = error.value(py);
    let set = value
        .setattr("code", cause.code)
        .and_then(|()| value.setattr("name", &cause.name))
        .and_then(|()| value.setattr("call", cause.call));
    set.map_or_else(|failure| failure, |()| error.clone_ref(py))
}

impl ToPyErr for TransferError {
    fn to_py_err(&self, py: Python<'_>) -> PyErr {
        let class = match self {
            Self::Cuda(cause) | Self::Poisoned { cause, .. } => {
                return cuda_error(py, cause, self.to_string());
            }
            Self::BlockIndex { .. } | Self::Block { .. } | Self::DeviceIndex => "BlockIndexError",
            Self::DuplicateDestination { .. } => "DuplicateDestinationError",
            Self::Overlap { .. } => "OverlappingCopyError",
            Self::Layout(_) => "LayoutError",
            Self::LayoutMismatch(_) | Self::Devices { .. } | Self::MappingDevice { .. } => {
                "LayoutMismatchError"
            }
            Self::StoreClosed { .. }
            | Self::UnknownStore { .. }
            | Self::EngineClosed
            | Self::Forked { .. } => "ClosedError",
            Self::Capturing(_) => "CaptureError",
            Self::Pinning { .. } | Self::HostMemory { .. } => "PinningError",
            Self::Unavailable(_) => "CudaUnavailableError",
            Self::Timeout { .. } => "TransferTimeoutError",
            Self::Panicked { .. } => "KvpoolError",
            _ => "InvalidArgumentError",
        };
        raise(py, class, self.to_string())
    }
}
