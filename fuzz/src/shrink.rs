//! Shrinks a failing case: finds a small case that fails in the same way.
//!
//! The shrinker uses delta debugging ([`minimize`]) over decoded operations, not over bytes. Then it
//! simplifies arguments and the setting. It repeats both until nothing more can be removed. It needs no
//! fuzzer: it only checks whether a case still fails with the same [`Failure::kind`].
//!
//! Cost: some hundred runs for a case of a hundred operations. A case ends at its failure, so the
//! shrinker first cuts all operations after the failure.

use kvpool_lab::failure::Failure;

use crate::case::{Case, Machine};
use crate::minimize;

/// Shrinks a case that fails. Returns it with its failure, or `None` if it does not fail.
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
    /// Returns a size that decreases with every accepted step: the number of operations, then the
    /// length of their text.
    fn size(&self) -> (usize, usize) {
        let written = format!("{:?} {:?}", self.case.setting, self.case.operations);
        (self.case.operations.len(), written.len())
    }

    /// Makes `smaller` the current case if it fails in the same way.
    fn keep(&mut self, smaller: Case<M>) -> bool {
        match smaller.run() {
            Err((_, failure)) if failure.kind == self.failure.kind => {
                (self.case, self.failure) = (smaller, failure);
                true
            }
            _ => false,
        }
    }

    fn leave_out(&mut self) {
        let operations = self.case.operations.clone();
        minimize(operations, &mut |operations| {
            self.keep(Case { setting: self.case.setting.clone(), operations: operations.to_vec() })
        });
    }

    fn simplify(&mut self) {
        // Try simpler settings with the operations of the current case. The current case may be shorter
        // than the one from which the settings were derived.
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
            // Stay at this operation as long as it becomes simpler.
            at += usize::from(!kept);
        }
    }
}
