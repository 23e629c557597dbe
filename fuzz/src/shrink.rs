//! Shrinking: from a failing case to a small one that fails in the same way.
//!
//! Delta debugging over decoded operations, not over bytes: whole halves are left out first, then quarters, at last single
//! operations; then arguments and the setting are made simpler; all of it again until nothing more can go. It needs no fuzzer,
//! and asks only one thing of a case: whether it still fails with the same [`Failure::kind`].
//!
//! Cost: some hundred runs for a case of a hundred operations. A failure is where a case ends: what comes behind it is cut first.

use crate::case::{Case, Failure, Machine};

/// Shrinks a case that fails. Returns it with its failure; `None` if it does not fail.
#[must_use]
pub fn shrink<M: Machine>(case: &Case<M>) -> Option<(Case<M>, Failure)> {
    let (done, failure) = case.run().err()?;
    let mut shrinker = Shrinker { case: case.clone(), failure };
    shrinker.case.operations.truncate(done + 1);
    loop {
        let before = shrinker.size();
        shrinker.leave_out();
        shrinker.simplify();
        if shrinker.size() == before {
            return Some((shrinker.case, shrinker.failure));
        }
    }
}

struct Shrinker<M: Machine> {
    case: Case<M>,
    failure: Failure,
}

impl<M: Machine> Shrinker<M> {
    /// Falls with every step that is kept: operations, then what they are written with.
    fn size(&self) -> (usize, usize) {
        let written = format!("{:?} {:?}", self.case.setting, self.case.operations);
        (self.case.operations.len(), written.len())
    }

    /// Keeps `smaller` if it fails in the same way, up to where it does.
    fn keep(&mut self, mut smaller: Case<M>) -> bool {
        match smaller.run() {
            Err((done, failure)) if failure.kind == self.failure.kind => {
                smaller.operations.truncate(done + 1);
                (self.case, self.failure) = (smaller, failure);
                true
            }
            _ => false,
        }
    }

    fn leave_out(&mut self) {
        let mut chunk = self.case.operations.len().div_ceil(2);
        while chunk > 0 {
            let mut at = 0;
            let mut left_out = false;
            while at < self.case.operations.len() {
                let mut smaller = self.case.clone();
                let end = (at + chunk).min(smaller.operations.len());
                smaller.operations.drain(at..end);
                if self.keep(smaller) {
                    left_out = true;
                } else {
                    at += chunk;
                }
            }
            // Single operations again until none can go; larger chunks once.
            if !(left_out && chunk == 1) {
                chunk /= 2;
            }
        }
    }

    fn simplify(&mut self) {
        // Always from what was kept last: a setting that was tried before must not bring back what has gone.
        while M::simpler_settings(&self.case.setting).into_iter().any(|setting| {
            let operations = self.case.operations.clone();
            self.keep(Case { setting, operations })
        }) {}
        let mut at = 0;
        while at < self.case.operations.len() {
            let simpler = M::simpler_operations(&self.case.operations[at]);
            let kept = simpler.into_iter().any(|operation| {
                let mut smaller = self.case.clone();
                smaller.operations[at] = operation;
                self.keep(smaller)
            });
            // The same again while it becomes simpler.
            at += usize::from(!kept);
        }
    }
}
