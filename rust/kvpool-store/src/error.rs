//! What a caller did wrong, what a back end could not do, and why an object was not moved.
//!
//! A store never fails a request: what a back end cannot do is a [`Why`] of one object, a miss.
//! [`StoreError`] is for calls that are wrong by themselves, and for what cannot be opened; a call that
//! returns one has changed nothing.

use std::io;
use std::path::PathBuf;

/// Why one object was not loaded, stored or removed. To the request it is a miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Why {
    /// It is not there.
    Absent,
    /// It is being written: later it may be there.
    Pending,
    /// Other bytes were there; they are removed.
    Damaged,
    /// The back end failed.
    Failed,
    /// The back end has no room, though the store's bound is not reached.
    Full,
    /// The deadline passed. The slot stays taken until the back end is known to have ended.
    TimedOut,
    /// The breaker is open: the back end failed too often of late.
    Unavailable,
    /// The queue is full; or a shared back end is still asked to remove an object of this name.
    Busy,
    /// Not admitted: it has to be offered again, or was offered with [`Admit::Never`](crate::Admit).
    NotAdmitted,
    /// Every place is in use by a transfer.
    NoRoom,
}

impl Why {
    /// Its name, as bindings and tools show it.
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

/// What a back end could not do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// There is no such object.
    #[error("no such object")]
    Absent,
    /// No room left.
    #[error("no room left")]
    Full,
    /// Anything else.
    #[error("{operation} failed: {error}")]
    Io {
        /// What was tried.
        operation: &'static str,
        /// What came of it.
        error: io::Error,
    },
}

impl BackendError {
    /// The error of an operation; [`BackendError::Full`] where the system says that.
    pub fn io(operation: &'static str) -> impl Fn(io::Error) -> Self {
        move |error| match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full,
            _ => Self::Io { operation, error },
        }
    }
}

/// A call that is wrong, or a store that cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A setting outside its range.
    #[error("{field} is {value}: must be {expected}")]
    InvalidConfig {
        /// The setting.
        field: &'static str,
        /// Its value.
        value: String,
        /// What is allowed.
        expected: &'static str,
    },
    /// A slot that the arena does not have.
    #[error("slot {slot} is outside this arena: it has {slots}")]
    UnknownSlot {
        /// The slot.
        slot: u32,
        /// How many there are.
        slots: u32,
    },
    /// A slot that a transfer, or another guard, has.
    #[error("slot {slot} is in use: a transfer or a guard has it")]
    SlotBusy {
        /// The slot.
        slot: u32,
    },
    /// A payload that no slot or no place has room for.
    #[error("a payload of {len} bytes: from 1 to {most} fit")]
    PayloadLength {
        /// Its length.
        len: u32,
        /// What fits.
        most: u32,
    },
    /// The memory cannot be had.
    #[error("no memory for {bytes} bytes: {error}")]
    NoMemory {
        /// Bytes that were asked for.
        bytes: u64,
        /// What the system says.
        error: String,
    },
    /// Another process, or another store of this one, has the folder.
    #[error("{} is in use by process {owner}: one store has a folder", path.display())]
    FolderInUse {
        /// The folder.
        path: PathBuf,
        /// Who has it, as it says itself; 0 if it has not said.
        owner: u32,
    },
    /// A capacity that the disk has no room for: none at all, or for less than was asked for.
    #[error(
        "{}: {taken} bytes of the disk can be taken for objects of {object_bytes}, of the {wanted} bytes of capacity_bytes: {free} are free or \
         this store's already, and {floor} stay free (free_floor_bytes). Each rank and each replica on a disk takes its own capacity_bytes \
         at once: give each of them a share of the disk",
        path.display()
    )]
    NoRoom {
        /// The folder.
        path: PathBuf,
        /// The capacity.
        wanted: u64,
        /// Bytes that are free on the disk, or this store's already.
        free: u64,
        /// Bytes that stay free.
        floor: u64,
        /// Bytes of the disk per object.
        object_bytes: u64,
        /// Bytes that can be taken.
        taken: u64,
    },
    /// A folder without objects.
    #[error("{} has no objects of a store: no such folder, or nothing was ever kept there", path.display())]
    NoStore {
        /// The folder.
        path: PathBuf,
    },
    /// A change of a folder that was opened to be looked at.
    #[error("{} was opened to be looked at alone", path.display())]
    ReadOnly {
        /// The folder.
        path: PathBuf,
    },
    /// A renewal that the back end has not recorded. The store itself finds nothing of before any more.
    #[error(
        "the back end did not record the renewal: {0}. This store finds nothing of before, but one that is opened later may: \
         renew again before anything else is opened there"
    )]
    NotRenewed(#[source] BackendError),
    /// The back end cannot be opened.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// A thread cannot be started.
    #[error("cannot start a worker: {0}")]
    Worker(io::Error),
}
