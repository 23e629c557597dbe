//! Checks that `fit` and `plan_step` change nothing, and that the admission or commit after them has
//! the result that they have predicted.

use kvpool::{AdmissionFit, Fit, ManagerError, StepPlan};
use kvpool_journal::calls::{Slot, Slots};
use kvpool_journal::{Answer, ManagerCall, OptionsRecord, PromptRecord, Value};

use crate::Failure;
use crate::failure::{holds, same};
use crate::world::manager::{ManagerWorld, Setting};
use crate::world::requests::tokens;

fn replay(error: &kvpool_journal::ReplayError) -> Failure {
    Failure::new("replay", error.to_string())
}

pub(crate) fn plan(world: &mut ManagerWorld, call: &ManagerCall) -> Result<Option<StepPlan>, Failure> {
    let mut call = call.clone();
    let plan = call.slots().into_iter().find_map(|slot| match slot {
        Slot::Plan(plan) => Some(plan.clone()),
        _ => None,
    });
    plan.filter(|plan| !plan.stale)
        .map(|plan| world.subject.plan(&plan).map_err(|error| replay(&error)))
        .transpose()
}

/// Checks that a plan can be committed only once, and that it is stale after any change.
pub(crate) fn is_stale(world: &mut ManagerWorld, plan: &mut Option<StepPlan>) -> Result<(), Failure> {
    let Some(plan) = plan else { return Ok(()) };
    let outcome = world.subject.unrecorded(|manager| manager.commit_step(plan));
    holds("a plan is committed once", matches!(outcome, Err(ManagerError::StaleStep)), || {
        format!("committed again: {outcome:?}")
    })
}

/// Calls `fit` before an admission, and plans an admission of the same prompt. Returns the result of
/// `fit`.
pub(crate) fn fit(world: &mut ManagerWorld, call: &ManagerCall) -> Result<Option<AdmissionFit>, Failure> {
    let mut call = call.clone();
    let (mut prompt, mut options) = (None::<PromptRecord>, None::<OptionsRecord>);
    for slot in call.slots() {
        match slot {
            Slot::Prompt(record) => prompt = Some(record.clone()),
            Slot::Options(record) => options = Some(record.clone()),
            _ => {}
        }
    }
    let (Some(prompt), Some(options)) = (prompt, options) else { return Ok(None) };
    let (part, cursor) =
        (options.options().part, world.subject.cursor(&prompt).map_err(|error| replay(&error))?);
    let manager = world.subject.manager();
    let fit = manager.fit(&cursor, part);
    let is_current = !prompt.foreign && prompt.chain.epoch == manager.pool().epoch();
    let is_sound = is_current && part.external_tokens < cursor.num_tokens();
    same("outcome of fit", &fit.is_ok(), &is_sound)?;
    let Ok(fit) = fit else { return Ok(None) };
    super::hits::check(world, &cursor, &prompt.chain, part, &fit)?;
    super::hits::check_known(manager, &cursor)?;
    if let Some(model) = &world.model {
        let (size, all) = (world.setting.block_size, tokens(&prompt.chain, &world.prompts));
        let (cached, fitting) = model.manager().fit(&all, &[], part);
        let fits = all.len().div_ceil(size) < manager.pool().num_blocks();
        let expected = (cached * size, fitting, fits);
        same("a fit", &(fit.cached_tokens, fit.fitting_tokens, fit.can_ever_fit), &expected)?;
    }
    // The manager does not know this request id, so a refusal can only be caused by the prompt.
    let mut plan = manager.plan_step();
    match manager.plan_admit_with(&mut plan, "another", cursor, &options.options()) {
        Ok(cached) => {
            same("what a planned admission finds", &(fit.fit, cached), &(Fit::Ok, fit.cached_tokens))?;
        }
        Err(refused) => {
            same("prompt of a refusal", &refused.cursor.num_tokens(), &prompt.chain.tokens)?;
            if let ManagerError::OutOfBlocks(refusal) = refused.error {
                let later = match fit.fit {
                    Fit::InChunks if !fit.can_ever_fit && world.layers.is_some() => Fit::InChunks,
                    _ if fit.can_ever_fit => Fit::Later,
                    _ => Fit::Never,
                };
                let missing = refusal.needed - refusal.available;
                same(
                    "a refusal",
                    &(refusal.can_ever_fit, refusal.fitting_tokens, refusal.missing, later),
                    &(fit.can_ever_fit, fit.fitting_tokens, missing, fit.fit),
                )?;
            }
        }
    }
    Ok(Some(fit))
}

/// Checks that the admission has the result that the call of `fit` before it has predicted.
pub(crate) fn check_fit(
    fit: Option<&AdmissionFit>,
    answer: &Answer,
    setting: &Setting,
) -> Result<(), Failure> {
    let (Some(fit), Value::List(values), false) = (fit, &answer.value, answer.refused) else { return Ok(()) };
    let (cached, blocks) = (Value::Number(fit.cached_tokens as u64), answer.blocks.len());
    if !setting.groups.is_empty() {
        return same("an admission that fits", &(fit.fit, values.first()), &(Fit::Ok, Some(&cached)));
    }
    let promised = (Fit::Ok, Some(&cached), fit.cached_tokens / setting.block_size + fit.new_blocks);
    same("an admission that fits", &(fit.fit, values.first(), blocks), &promised)
}
