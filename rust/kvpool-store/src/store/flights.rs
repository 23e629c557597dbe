//! What is on its way: tasks that workers have, or will, and the jobs that wait for them.

use crate::calls::JobId;
use crate::error::Why;
use crate::object::{ObjectKey, Place};
use crate::queue::Lent;

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

/// A task that a worker has, or will.
#[derive(Clone, Debug)]
pub(super) struct Flight {
    pub(super) kind: Kind,
    pub(super) key: Option<ObjectKey>,
    /// What is asked for: the answers go to as many objects of the job, one behind the other. Of a
    /// write, or a clearing: what is removed.
    pub(super) asked: Vec<ObjectKey>,
    pub(super) place: Option<Place>,
    pub(super) len: u32,
    /// Whom to tell: nobody once the deadline has passed.
    pub(super) tell: Option<(JobId, usize)>,
    /// The slot of a load that is staged.
    pub(super) lent: Option<Lent>,
}

impl Flight {
    pub(super) const fn of(kind: Kind) -> Self {
        Self { kind, key: None, asked: Vec::new(), place: None, len: 0, tell: None, lent: None }
    }

    /// Objects of its job that it decides of.
    pub(super) fn objects(&self) -> usize {
        if self.kind == Kind::Probe { self.asked.len() } else { 1 }
    }
}
