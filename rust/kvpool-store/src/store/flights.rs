//! Tasks in flight, and the jobs that wait for them.

use crate::calls::JobId;
use crate::error::Why;
use crate::object::{ObjectKey, Place};
use crate::queue::StagedSlot;

#[derive(Debug)]
pub(super) struct Job {
    pub(super) objects: Vec<Result<(), Why>>,
    pub(super) left: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Write,
    Read,
    Probe,
    Clear,
}

/// A task that is queued, or that a worker has.
#[derive(Clone, Debug)]
pub(super) struct Flight {
    pub(super) kind: Kind,
    pub(super) key: Option<ObjectKey>,
    /// The keys of a probe; the answers are for consecutive objects of the job. For a write or a
    /// clearing, the keys of the objects that are removed.
    pub(super) asked: Vec<ObjectKey>,
    pub(super) place: Option<Place>,
    pub(super) len: u32,
    /// The job and the index of its first object, to be settled at the end. `None` after the deadline.
    pub(super) report: Option<(JobId, usize)>,
    /// The slot of a staged load.
    pub(super) staged_slot: Option<StagedSlot>,
}

impl Flight {
    pub(super) const fn of(kind: Kind) -> Self {
        Self { kind, key: None, asked: Vec::new(), place: None, len: 0, report: None, staged_slot: None }
    }

    /// Number of objects of its job that the task settles.
    pub(super) fn objects(&self) -> usize {
        if self.kind == Kind::Probe { self.asked.len() } else { 1 }
    }
}
