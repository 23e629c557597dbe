//! Errors: wrong calls, failures of back ends, and reasons why an object was not moved.
//!
//! A store never fails a request. If a back end fails for an object, the result of that object is a
//! [`Why`], which the engine treats as a miss. [`StoreError`] is for calls with wrong arguments, and
//! for stores that cannot be opened. A call that returns a `StoreError` has changed nothing.

use std::io;
use std::path::PathBuf;

/// The reason why one object was not loaded, stored or removed. The engine treats every reason as a
/// miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Why {
    /// The object does not exist.
    Absent,
    /// The object is being written, and may exist later.
    Pending,
    /// The bytes belonged to another object, or were damaged. The store removes them.
    Damaged,
    /// The back end returned an error.
    Failed,
    /// The back end has no room, although the store has not reached its capacity.
    Full,
    /// The deadline passed. The slot remains in use until the back end has finished.
    TimedOut,
    /// The circuit breaker is open, because the back end has failed too often recently.
    Unavailable,
    /// The store's queue of tasks is full, or a shared back end has not yet removed an older object of this
    /// name.
    Busy,
    /// The object was not admitted, because this was its first offer or the offer had
    /// [`Admit::Never`](crate::Admit).
    NotAdmitted,
    /// Running transfers use all places of the back end, so the store cannot evict an object to make room.
    NoRoom,
}

impl Why {
    /// Returns the name of the reason that bindings and tools display.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Pending => "pending",
            Self::Damaged => "damaged",
            Self::Failed => "failed",
            Self::Full => "full",
            Self::TimedOut => "timed_out",
            Self::Unavailable => "unavailable",
            Self::Busy => "busy",
            Self::NotAdmitted => "not_admitted",
            Self::NoRoom => "no_room",
        }
    }
}

/// A failure of a back end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// The object does not exist.
    #[error("no such object")]
    Absent,
    /// The back end has no room left.
    #[error("no room left")]
    Full,
    /// Any other error of the system.
    #[error("{operation} failed: {error}")]
    Io {
        /// The operation that failed.
        operation: &'static str,
        /// The error of the system.
        error: io::Error,
    },
}

impl BackendError {
    /// Converts the error of an operation. Returns [`BackendError::Full`] if the disk or quota is full.
    pub fn io(operation: &'static str) -> impl Fn(io::Error) -> Self {
        move |error| match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full,
            _ => Self::Io { operation, error },
        }
    }
}

/// A call with wrong arguments, or a store that cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A setting of the store or back end is out of range.
    #[error("{field} is {value}: must be {expected}")]
    InvalidConfig {
        /// Name of the setting.
        field: &'static str,
        /// Value of the setting.
        value: String,
        /// The allowed values.
        expected: &'static str,
    },
    /// The arena has no such slot.
    #[error("slot {slot} is outside this arena: it has {slots}")]
    UnknownSlot {
        /// Number of the slot.
        slot: u32,
        /// Number of slots of the arena.
        slots: u32,
    },
    /// A running transfer or another guard uses the slot of the arena.
    #[error("slot {slot} is in use: a transfer or a guard has it")]
    SlotBusy {
        /// Number of the slot.
        slot: u32,
    },
    /// The payload is empty, or longer than a slot or a place.
    #[error("a payload of {len} bytes: from 1 to {most} fit")]
    PayloadLength {
        /// Length of the payload in bytes.
        len: u32,
        /// Largest length that fits.
        most: u32,
    },
    /// The memory cannot be allocated.
    #[error("no memory for {bytes} bytes: {error}")]
    NoMemory {
        /// Number of bytes that the arena requested.
        bytes: u64,
        /// Error message of the operating system.
        error: String,
    },
    /// Another process, or another store of this process, uses the folder.
    #[error("{} is in use by process {owner}: only one store at a time can use a folder", path.display())]
    FolderInUse {
        /// The folder.
        path: PathBuf,
        /// Process id that the other process recorded in the folder; 0 if it recorded none.
        owner: u32,
    },
    /// The disk has less room than the capacity, or no room at all.
    #[error(
        "{}: the disk has room for {taken} of the {wanted} bytes of capacity_bytes (an object takes \
         {object_bytes} bytes): {free} bytes are free or already belong to this store, and {floor} of \
         them have to stay free (free_floor_bytes). Each rank and each replica on a disk allocates its \
         own capacity_bytes at once: give each of them a share of the disk",
        path.display()
    )]
    NoRoom {
        /// The folder.
        path: PathBuf,
        /// The capacity in bytes.
        wanted: u64,
        /// Bytes that are free on the disk or already belong to this store.
        free: u64,
        /// Number of bytes of the disk that the store must leave free.
        floor: u64,
        /// Number of bytes of the disk that one object takes.
        object_bytes: u64,
        /// Number of bytes of the disk that the store can take now.
        taken: u64,
    },
    /// The folder contains no store.
    #[error("{} has no objects of a store: no such folder, or nothing was ever stored there", path.display())]
    NoStore {
        /// The folder.
        path: PathBuf,
    },
    /// The folder was opened for reading, and the call would change it.
    #[error("{} was opened for reading only", path.display())]
    ReadOnly {
        /// The folder.
        path: PathBuf,
    },
    /// The back end did not record the renewal. This store no longer finds older objects.
    #[error(
        "the back end did not record the renewal: {0}. This store no longer finds older objects, but \
         a store that is opened later may find them: renew again before another store is opened there"
    )]
    NotRenewed(#[source] BackendError),
    /// The back end cannot be opened.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// A thread cannot be started.
    #[error("cannot start a worker: {0}")]
    Worker(io::Error),
}
