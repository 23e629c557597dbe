//! Tasks that have not ended yet, with the jobs to which they belong.

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

#[derive(Clone, Debug)]
pub(super) struct Flight {
    pub(super) kind: Kind,
    pub(super) key: Option<ObjectKey>,
    /// For a probe, the keys of the objects that the back end is asked for. They are consecutive
    /// objects of the job. For a write or a clearing, the keys of the objects that the task removes.
    pub(super) asked: Vec<ObjectKey>,
    pub(super) place: Option<Place>,
    pub(super) len: u32,
    /// The job to which the results belong, and the index of the first object of this task in the job.
    /// `None` after the deadline, because the job then already has its results.
    pub(super) report: Option<(JobId, usize)>,
    /// The guard of the slot into which a staged load will copy its payload.
    pub(super) staged_slot: Option<StagedSlot>,
}

impl Flight {
    pub(super) const fn of(kind: Kind) -> Self {
        Self { kind, key: None, asked: Vec::new(), place: None, len: 0, report: None, staged_slot: None }
    }

    /// Returns for how many objects of its job this task has results.
    pub(super) fn objects(&self) -> usize {
        if self.kind == Kind::Probe { self.asked.len() } else { 1 }
    }
}
