//! Shrinks a run: finds the fewest and smallest calls that fail for the same cause.

use kvpool_journal::calls::{Moved, Simpler, Slots};
use kvpool_journal::{Answer, Step, minimize};

use super::{Run, step};
use crate::failure::{Failure, guarded};
use crate::world::{Call, World};

/// Makes some calls of a run again in a new world. Block ids may then differ, so the ids in the
/// arguments are replaced by those that the same calls return in the new world.
pub fn again<W: World>(run: &Run<W>, setting: &W::Setting, steps: &[Step<Call<W>>]) -> Run<W> {
    let mut made: Vec<Step<Call<W>>> = Vec::new();
    let outcome = guarded(|| {
        let (mut world, mut moved) = (W::new(setting, run.memory.as_ref())?, Moved::default());
        for one in steps {
            let (mut call, epoch) = (one.operation.clone(), world.epoch());
            moved.translate(call.slots(), one.epoch, epoch);
            world.fit(&mut call);
            made.push(step(made.len(), call.clone(), epoch, Answer::default()));
            let answer = world.make(&call)?;
            moved.learn(&one.answer, &answer);
            if let Some(last) = made.last_mut() {
                last.answer = answer;
            }
        }
        Ok(())
    });
    Run { setting: setting.clone(), steps: made, failure: outcome.err(), memory: run.memory.clone() }
}

/// Returns the fewest and smallest calls that fail for the same cause as a run, or `None` if its calls
/// do not fail again.
#[must_use]
pub fn shrink<W: World>(run: &Run<W>) -> Option<(Run<W>, Failure)> {
    let failure = run.failure.clone()?;
    let fails = |setting: &W::Setting, steps: &[Step<Call<W>>]| {
        again(run, setting, steps).failure.is_some_and(|found| found.kind == failure.kind)
    };
    let (mut setting, mut least) = (run.setting.clone(), run.steps.clone());
    if !fails(&setting, &least) {
        return None;
    }
    loop {
        let before = (least.len(), format!("{setting:?}"));
        least = minimize(least, &mut |steps| fails(&setting, steps));
        while let Some(simpler) = W::simpler(&setting).into_iter().find(|simpler| fails(simpler, &least)) {
            setting = simpler;
        }
        simplify(&mut least, &|steps| fails(&setting, steps));
        if before == (least.len(), format!("{setting:?}")) {
            break;
        }
    }
    let least = again(run, &setting, &least);
    let failure = least.failure.clone()?;
    Some((least, failure))
}

/// Makes arguments smaller as long as the run still fails for the same cause.
fn simplify<C: Simpler + Clone>(steps: &mut Vec<Step<C>>, fails: &dyn Fn(&[Step<C>]) -> bool) {
    for at in 0..steps.len() {
        let mut tried = 0;
        while let Some(simpler) = steps[at].operation.simpler(tried) {
            let mut changed = steps.clone();
            changed[at].operation = simpler;
            if fails(&changed) {
                (*steps, tried) = (changed, 0);
            } else {
                tried += 1;
            }
        }
    }
}
