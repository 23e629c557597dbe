//! The model of a manager: computes the expected answer of each call, and updates the records of the
//! manager's callers and engine.

use std::collections::BTreeSet;

use crate::model::reference::{ReferenceManager, ReferenceOutcome, ReferencePool, ReferenceStep};
use kvpool::{Part, PlannedOperation, RequestState, Until};
use kvpool_journal::{
    Answer, AppendRecord, ComputedRecord, CoveredRecord, ForksRecord, IdRecord, Ids, LoadedRecord,
    ManagerCall as C, Name, OptionsRecord, PlanRecord, Planned, TurnRecord, UntilRecord, Value,
};

use super::pool::Expected;
use crate::Failure;
use crate::oracle::hits::Content;
use crate::oracle::layers::Load;
use crate::world::manager::{ManagerWorld, Setting};
use crate::world::pool::{changes, unpack};
use crate::world::prompts::Prompts;
use crate::world::requests::{Requests, contents, counted, named, number, rows, tokens};

/// The model of a manager. It consists of the reference manager, and of answers to calls that the
/// reference manager does not support.
#[derive(Clone, Debug)]
pub struct Model {
    manager: ReferenceManager,
    block_size: usize,
    epoch: u64,
    /// Whether the policy uses the time that the caller passes, and the latest time that was passed.
    time: (bool, Option<f64>),
}

fn count(n: usize) -> Value {
    Value::Number(n as u64)
}

fn blocks(blocks: &[usize]) -> Value {
    Value::List(blocks.iter().map(|&block| count(block)).collect())
}

fn pair((left, right): (usize, usize)) -> Value {
    Value::List(vec![count(left), count(right)])
}

fn done(fine: bool) -> Expected {
    if fine { Expected::Is(Value::Nothing) } else { Expected::Refused }
}

fn known(value: Option<Value>) -> Expected {
    value.map_or(Expected::Refused, Expected::Is)
}

fn changed(changes: &[(usize, usize)]) -> Value {
    let change = |&(at, block): &(usize, usize)| Value::Change(vec![at as u64, block as u64], 0);
    Value::List(changes.iter().map(change).collect())
}

/// Converts the changes that an append makes in the block tables of a batch to the answer that the
/// manager must give.
fn changed_rows(changes: &[(usize, usize, usize)]) -> Value {
    let change = |&(row, at, block): &(usize, usize, usize)| {
        Value::Change(vec![row as u64, at as u64, block as u64], 0)
    };
    Value::List(changes.iter().map(change).collect())
}

pub(crate) fn numbers(names: &[Name]) -> Vec<i64> {
    names.iter().map(named).collect()
}

/// Returns, for each request of an append, its number and the appended tokens.
fn appended(append: &AppendRecord, requests: &Requests, prompts: &Prompts) -> Vec<(i64, Vec<u32>)> {
    let mut contents = contents(&append.filled, prompts).into_iter();
    let row =
        |(number, count)| (number, requests.new_tokens(number, count, prompts.block_size, &mut contents));
    counted(append).into_iter().map(row).collect()
}

fn spoken(turn: &TurnRecord, requests: &Requests, prompts: &Prompts) -> Vec<u32> {
    let mut contents = contents(&turn.filled, prompts).into_iter();
    requests.new_tokens(named(&turn.request), turn.tokens, prompts.block_size, &mut contents)
}

/// Returns whether the lists in the arguments of an append have matching lengths.
fn is_sound(append: &AppendRecord) -> bool {
    let len = rows(&append.rows).len();
    let offsets = &append.offsets;
    let ascends = offsets.windows(2).all(|pair| pair[0] <= pair[1]);
    let fits = match offsets.len() {
        0 => append.tokens == len,
        1 => len == 0 && offsets[0] == 0, // tokens without a request are skipped
        n => n == len + 1 && offsets[0] == 0 && offsets[len] == append.tokens && ascends,
    };
    let of_all = |counts: &Vec<usize>| counts.len() == len;
    fits && match &append.computed {
        ComputedRecord::Counts(counts) => of_all(counts),
        _ => true,
    } && match &append.covered {
        CoveredRecord::Each(counts) => of_all(counts),
        _ => true,
    }
}

/// Returns whether the options of an admission contain retention hints. Hints need a pool with
/// retention, which the model does not support.
fn has_hints(options: &OptionsRecord) -> bool {
    options.options().has_hints()
}

impl Model {
    /// Creates the model of a new manager.
    #[must_use]
    pub fn new(setting: &Setting, keeps_time: bool) -> Self {
        let Setting { num_blocks, host_blocks, block_size, .. } = *setting;
        let drops = setting.duplicates == kvpool::DuplicatePolicy::DropOnRelease;
        let pool = |blocks| ReferencePool::new(blocks, block_size, drops);
        let host = (host_blocks > 0).then(|| pool(host_blocks));
        let manager = ReferenceManager::new(pool(num_blocks), host, setting.share());
        Self { manager, block_size, epoch: 0, time: (keeps_time, None) }
    }

    /// Returns the reference manager that the model contains.
    #[must_use]
    pub const fn manager(&self) -> &ReferenceManager {
        &self.manager
    }

    /// Returns the expected answer of an admission: the number of cached tokens, and the table.
    fn admission(&self, number: i64, cached: usize) -> Value {
        let table = &self.manager.requests[&number].blocks;
        Value::List(vec![count(cached * self.block_size), blocks(table)])
    }

    /// Applies a call to the model. Returns the answer that the manager must give. For a step, the
    /// manager's plan determines which operations fit; the model does not check that.
    pub(crate) fn expected(
        &mut self,
        call: &C,
        planned: &[PlannedOperation],
        requests: &Requests,
        prompts: &Prompts,
    ) -> Expected {
        let model = &mut self.manager;
        let runs = |model: &ReferenceManager, request| model.is(named(request), RequestState::Running);
        match call {
            C::Admit { request: IdRecord(id), prompt, options } => {
                let fits = !has_hints(options) && !prompt.foreign && prompt.chain.epoch == self.epoch;
                let (all, part) = (tokens(&prompt.chain, prompts), options.options().part);
                let admitted = fits.then(|| model.admit(number(id), &all, b"", part)).flatten();
                known(admitted.map(|cached| self.admission(number(id), cached)))
            }
            C::Resume { request, part, .. } => {
                let resumed = model.resume(named(request), part.part());
                known(resumed.map(|cached| self.admission(named(request), cached)))
            }
            C::Release { request, until } => done(model.release(named(request), until.until())),
            C::Preempt { request, until } => done(model.preempt(named(request), until.until())),
            C::Append { append } => self.append(append, requests, prompts),
            C::AppendTokens { turn } => {
                let new = spoken(turn, requests, prompts);
                let changes = model.append_tokens(named(&turn.request), &new, turn.lookahead);
                known(changes.map(|changes| changed(&changes)))
            }
            C::Commit { request, computed_tokens } => {
                known(model.commit(named(request), *computed_tokens).map(count))
            }
            C::CommitBatch { rows: batch, computed_tokens } => {
                let all: Vec<_> = rows(batch).into_iter().zip(computed_tokens.iter().copied()).collect();
                let fits = rows(batch).len() == computed_tokens.len();
                known(fits.then(|| model.commit_batch(&all)).flatten().map(count))
            }
            C::Fork { parent, child: IdRecord(child) } => done(model.fork(named(parent), number(child))),
            C::Truncate { request, tokens, until } => {
                done(model.truncate(named(request), *tokens, until.until()))
            }
            C::TrimWindow { request, window } => known(model.trim(named(request), *window).map(count)),
            C::TakePlan {} => {
                let plan = model.take_plan();
                let copy = |(src, dst)| Value::List(vec![pair(src), pair(dst)]);
                Expected::Is(Value::List(plan.into_iter().map(copy).collect()))
            }
            C::BeginSwapOut { requests } => {
                known(model.begin_swap(&numbers(requests), true).map(Value::Number))
            }
            C::BeginSwapIn { requests } => {
                known(model.begin_swap(&numbers(requests), false).map(Value::Number))
            }
            C::CompleteSwap { swap } => {
                let moved = model.complete_swap(*swap);
                known(moved.map(|moved| Value::List(moved.into_iter().map(pair).collect())))
            }
            C::AbortSwap { swap } => done(model.abort_swap(*swap)),
            C::CommitStep { plan } => self.step(plan, planned, requests, prompts),
            C::Retain { .. } | C::SetTenant { .. } | C::RetainPrefix { .. } | C::EndSession { .. } => {
                Expected::Refused
            }
            C::AdvanceTime { now } => {
                let (keeps, latest) = self.time;
                let fits = keeps && now.is_finite() && latest.is_none_or(|latest| *now >= latest);
                self.time.1 = if fits { Some(*now) } else { latest };
                known(fits.then(|| count(0)))
            }
            C::CompleteStep { step } => Expected::Is(count(model.complete_step(*step))),
            C::BumpEpoch {} => {
                model.bump_epoch();
                self.epoch += 1;
                Expected::Is(Value::Number(self.epoch))
            }
            C::Reset {} => known(model.reset().map(count)),
            C::Evict { blocks } => self.drop_cached(blocks),
            C::Resize { num_blocks } => {
                let fits = *num_blocks >= model.device().num_blocks();
                if fits {
                    model.pools[0].resize(*num_blocks);
                }
                done(fits)
            }
            C::TakeEvents {} => Expected::Done, // the laboratory takes them itself
            C::TruncateBatch { rows: batch, tokens, until } => {
                let all: Vec<_> = rows(batch).into_iter().zip(tokens.iter().copied()).collect();
                done(rows(batch).len() == tokens.len() && model.truncate_batch(&all, until.until()))
            }
            C::Extend { request, tokens } => {
                known(model.extend(named(request), *tokens).map(|changes| changed(&changes)))
            }
            C::ExternalDone { request, loaded } => {
                known(model.external_done(named(request), loaded.loaded()).map(count))
            }
            C::Fence {} => Expected::Is(Value::Number(model.fence())),
            C::EndFence { ticket } => known(model.end_fence(*ticket).map(count)),
            C::EvictNext { blocks: n } => Expected::Is(blocks(&model.pools[0].evict(*n))),
            C::ReleaseBatch { requests, until } => {
                done(model.release_batch(&numbers(requests), until.until()))
            }
            C::ForkBatch { forks } => {
                let all = forked(forks);
                done(forks.parents.len() == forks.children.len() && model.fork_batch(&all))
            }
            // The model has no group that caches an encoder's output, so the call is refused.
            C::ExtendEncoder { request, .. } => known(runs(model, request).then(|| changed(&[]))),
            C::ReleaseBatchWith { ended, until } => {
                done(model.release_batch(&numbers(&ended.requests), until.until()))
            }
        }
    }

    fn append(&mut self, append: &AppendRecord, requests: &Requests, prompts: &Prompts) -> Expected {
        if !is_sound(append) {
            return Expected::Refused;
        }
        let all = appended(append, requests, prompts);
        let mut grown = self.manager.clone();
        let changes = grown.append_ragged(&all, append.computed.computed(), append.covered.covered());
        let changes = changes.filter(|all| append.most_changes.is_none_or(|most| all.len() <= most));
        if changes.is_some() {
            self.manager = grown;
        }
        known(changes.map(|changes| changed_rows(&changes)))
    }

    fn drop_cached(&mut self, ids: &Ids) -> Expected {
        let (pool, ids) = (&mut self.manager.pools[0], unpack(ids));
        if !ids.iter().all(|&block| block > 0 && block < pool.num_blocks()) {
            return Expected::Refused;
        }
        let before = pool.registered().0;
        pool.drop_cached(&ids);
        Expected::Is(count(before - pool.registered().0))
    }

    fn step(
        &mut self,
        plan: &PlanRecord,
        planned: &[PlannedOperation],
        requests: &Requests,
        prompts: &Prompts,
    ) -> Expected {
        if plan.stale {
            return Expected::Refused;
        }
        let steps: Vec<_> = planned.iter().map(|one| step(one, plan, requests, prompts)).collect();
        // A valid plan guarantees that every planned operation fits.
        let Some(outcomes) = self.manager.commit_step(&steps) else {
            return Expected::RefusedAs("a plan that does not fit");
        };
        let outcome = |outcome: &ReferenceOutcome| match outcome {
            ReferenceOutcome::Admitted(table, cached) => {
                Value::List(vec![count(cached * self.block_size), blocks(table)])
            }
            ReferenceOutcome::Appended(changes) => changed(changes),
            ReferenceOutcome::Ended => Value::Nothing,
        };
        Expected::Is(Value::List(outcomes.iter().map(outcome).collect()))
    }
}

fn forked(ForksRecord { parents, children }: &ForksRecord) -> Vec<(i64, i64)> {
    let children = children.iter().map(|IdRecord(child)| number(child));
    numbers(parents).into_iter().zip(children).collect()
}

/// Converts a planned operation for the model. Its tokens are those that the recorded plan contains.
fn step(
    planned: &PlannedOperation,
    plan: &PlanRecord,
    requests: &Requests,
    prompts: &Prompts,
) -> ReferenceStep {
    let new = |number| planned_tokens(plan, number, requests, prompts);
    match planned {
        PlannedOperation::Admit { id, options, staged, .. } => {
            let number = number(id);
            ReferenceStep::Admit(number, new(number), Vec::new(), options.part, staged.cached_tokens)
        }
        PlannedOperation::Resume { id, part, staged, .. } => {
            ReferenceStep::Resume(number(id), *part, staged.cached_tokens)
        }
        PlannedOperation::Append { id, slots, overwritten, .. } => {
            let number = number(id);
            ReferenceStep::Append(number, new(number), 0, Some(*slots), !overwritten.is_empty())
        }
        PlannedOperation::Preempt { id, until } => ReferenceStep::Preempt(number(id), *until),
        PlannedOperation::Release { id, until } => ReferenceStep::Release(number(id), *until),
    }
}

/// Returns the tokens with which a plan admits a request, or which it appends to the request. A plan
/// has at most one operation per request.
fn planned_tokens(plan: &PlanRecord, of: i64, requests: &Requests, prompts: &Prompts) -> Vec<u32> {
    let tokens = plan.planned.iter().find_map(|one| match one {
        Planned::Admit { request: IdRecord(id), prompt, .. } if number(id) == of => {
            Some(tokens(prompt, prompts))
        }
        Planned::Append { request, tokens, filled, .. } if named(request) == of => {
            let mut contents = contents(filled, prompts).into_iter();
            Some(requests.new_tokens(of, *tokens, prompts.block_size, &mut contents))
        }
        _ => None,
    });
    tokens.unwrap_or_default()
}

/// Returns the part of the prompt for which a planned admission or resumption allocates blocks.
fn planned_part(plan: &PlanRecord, of: i64) -> Part {
    let part = plan.planned.iter().find_map(|one| match one {
        Planned::Admit { request: IdRecord(id), options, .. } if number(id) == of => {
            Some(options.options().part)
        }
        Planned::Resume { request, part, .. } if named(request) == of => Some(part.part()),
        _ => None,
    });
    part.unwrap_or(Part::WHOLE)
}

/// Returns the number of token slots that a request has after a planned append.
fn planned_slots(plan: &PlanRecord, of: i64) -> usize {
    let slots = plan.planned.iter().find_map(|one| match one {
        Planned::Append { request, covered, .. } if named(request) == of => Some(*covered),
        _ => None,
    });
    slots.unwrap_or(0)
}

/// The kind of a planned operation that a step executed, with its request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Done {
    Admitted(i64),
    Resumed(i64),
    Appended(i64),
    Ended,
}

impl Done {
    pub(crate) fn of(planned: &PlannedOperation) -> Self {
        match planned {
            PlannedOperation::Admit { id, .. } => Self::Admitted(number(id)),
            PlannedOperation::Resume { id, .. } => Self::Resumed(number(id)),
            PlannedOperation::Append { id, .. } => Self::Appended(number(id)),
            PlannedOperation::Preempt { .. } | PlannedOperation::Release { .. } => Self::Ended,
        }
    }
}

/// Before a call that commits, lets the engine write the KV that the call commits, and a connector the
/// KV that it has loaded. For a hybrid model, returns the expected result if the call completes a load.
///
/// # Errors
/// A layer reads other data than the engine wrote for it.
pub(crate) fn before(world: &mut ManagerWorld, call: &C) -> Result<Option<Load>, Failure> {
    match call {
        C::Commit { request, computed_tokens } => write(world, named(request), &[], *computed_tokens)?,
        C::CommitBatch { rows: batch, computed_tokens } => {
            for (number, &asked) in rows(batch).into_iter().zip(computed_tokens) {
                write(world, number, &[], asked)?;
            }
        }
        C::Append { append } if append.computed != ComputedRecord::Nothing && is_sound(append) => {
            for (row, (number, new)) in
                appended(append, &world.requests, &world.prompts).into_iter().enumerate()
            {
                let all = world.requests.tokens.get(&number).map_or(0, Vec::len) + new.len();
                let asked = match &append.computed {
                    ComputedRecord::Counts(counts) => counts[row],
                    _ => all.saturating_sub(usize::from(!new.is_empty())),
                };
                write(world, number, &new, asked)?;
            }
        }
        C::ExternalDone { request, loaded } => {
            let loaded = loaded.clone();
            let arrived = move |info: &kvpool::RequestInfo| {
                let (from, end) = (info.computed_tokens, info.external_end);
                let lost = |token: &usize| match &loaded {
                    LoadedRecord::AllBut(ranges) => ranges.iter().any(|range| range.contains(token)),
                    _ => false,
                };
                let first = if let LoadedRecord::First(tokens) = loaded { tokens.min(end) } else { end };
                (from..first).find(lost).unwrap_or(first)
            };
            return Ok(load(world, named(request), arrived));
        }
        C::Truncate { request, tokens, .. } => cuts(world, named(request), *tokens),
        C::TruncateBatch { rows: batch, tokens, .. } => {
            rows(batch).into_iter().zip(tokens).for_each(|(number, &keep)| cuts(world, number, keep));
        }
        _ => {}
    }
    Ok(None)
}

fn cuts(world: &mut ManagerWorld, number: i64, keep: usize) {
    if let Some(layers) = &mut world.layers {
        layers.before_cut(number, keep);
    }
}

fn write(world: &mut ManagerWorld, number: i64, new: &[u32], asked: usize) -> Result<(), Failure> {
    let Some(info) = world.info(number).filter(|info| info.state == RequestState::Running) else {
        return Ok(());
    };
    let Some(known) = world.requests.tokens.get(&number) else { return Ok(()) };
    let manager = world.subject.manager();
    if let Some(layers) = &mut world.layers {
        return layers.before_commit(&mut world.memory, manager, (number, known, new), asked);
    }
    let tokens = [known.as_slice(), new].concat();
    world.memory.write(manager, number, (&tokens, known.len()), info.computed_tokens..asked);
    Ok(())
}

fn load(
    world: &mut ManagerWorld,
    number: i64,
    end: impl FnOnce(&kvpool::RequestInfo) -> usize,
) -> Option<Load> {
    let loads = [RequestState::Loading, RequestState::Releasing];
    let info = world.info(number).filter(|info| loads.contains(&info.state))?;
    let tokens = world.requests.tokens.get(&number)?;
    let (manager, end) = (world.subject.manager(), end(&info));
    if let Some(layers) = &mut world.layers {
        return layers.load(&mut world.memory, manager, (number, tokens), end);
    }
    world.memory.write(manager, number, (tokens, tokens.len()), info.computed_tokens..end);
    None
}

/// After a call that succeeded, updates the records of the callers and of the engine.
///
/// # Errors
/// A plan cannot be executed.
pub(crate) fn after(
    world: &mut ManagerWorld,
    call: &C,
    answer: &Answer,
    planned: &[Done],
) -> Result<(), Failure> {
    match call {
        C::Admit { request: IdRecord(id), prompt, options } => {
            let all = tokens(&prompt.chain, &world.prompts);
            world.requests.tokens.insert(number(id), all);
            admitted(world, number(id), options.options().part);
        }
        C::Resume { request, part, .. } => admitted(world, named(request), part.part()),
        C::Append { append } => {
            let all = appended(append, &world.requests, &world.prompts);
            for (row, (number, new)) in all.into_iter().enumerate() {
                let known = world.requests.tokens.get(&number).map_or(0, Vec::len) + new.len();
                let computed = match &append.computed {
                    ComputedRecord::Counts(counts) => Some(counts[row]),
                    ComputedRecord::AllButLast if !new.is_empty() => Some(known - 1),
                    _ => None,
                };
                let covered = match &append.covered {
                    CoveredRecord::All => known,
                    CoveredRecord::Lookahead(slots) => known + slots,
                    CoveredRecord::Each(counts) => counts[row],
                };
                grown(world, number, &new, computed, covered)?;
            }
        }
        C::AppendTokens { turn } => {
            let (number, new) = (named(&turn.request), spoken(turn, &world.requests, &world.prompts));
            let known = world.requests.tokens.get(&number).map_or(0, Vec::len) + new.len();
            grown(world, number, &new, None, known + turn.lookahead)?;
        }
        C::Commit { request, computed_tokens } => committed(world, named(request), *computed_tokens),
        C::CommitBatch { rows: batch, computed_tokens } => {
            let all = rows(batch).into_iter().zip(computed_tokens);
            all.for_each(|(number, &computed)| committed(world, number, computed));
        }
        C::Extend { request, tokens } => grown(world, named(request), &[], None, *tokens)?,
        C::Fork { parent, child: IdRecord(child) } => fork(world, named(parent), number(child)),
        C::ForkBatch { forks } => {
            forked(forks).into_iter().for_each(|(parent, child)| fork(world, parent, child));
        }
        C::Truncate { request, tokens, until } => {
            world.whole &= *until == UntilRecord::Now;
            truncate(world, named(request), *tokens)?;
        }
        C::TruncateBatch { rows: batch, tokens, until } => {
            // If the release waits for a step or fence, the last blocks of a prefix may remain held
            // while its first blocks are evicted. Then the check that every cached block has a cached
            // parent does not apply.
            world.whole &= *until == UntilRecord::Now;
            let mut all = rows(batch).into_iter().zip(tokens);
            all.try_for_each(|(number, &keep)| truncate(world, number, keep))?;
        }
        C::TrimWindow { .. } => world.whole &= answer.value == count(0),
        C::TakePlan {} => {
            world.memory.execute(copies(&answer.value))?;
        }
        C::BeginSwapOut { requests } => {
            world.swaps.extend(answer.swap);
            for number in numbers(requests) {
                let known = world.requests.tokens.get(&number).map_or(0, Vec::len);
                world.layers.iter_mut().for_each(|layers| layers.moved(number, known));
            }
        }
        C::BeginSwapIn { .. } => world.swaps.extend(answer.swap),
        C::CompleteSwap { swap } | C::AbortSwap { swap } => world.swaps.retain(|other| other != swap),
        C::CommitStep { plan } => {
            for &one in planned {
                match one {
                    Done::Admitted(number) => {
                        let all = planned_tokens(plan, number, &world.requests, &world.prompts);
                        world.requests.tokens.insert(number, all);
                        admitted(world, number, planned_part(plan, number));
                    }
                    Done::Resumed(number) => admitted(world, number, planned_part(plan, number)),
                    Done::Appended(number) => {
                        let new = planned_tokens(plan, number, &world.requests, &world.prompts);
                        grown(world, number, &new, None, planned_slots(plan, number))?;
                    }
                    Done::Ended => {}
                }
            }
        }
        C::AdvanceTime { now } => world.now = *now,
        C::CompleteStep { step } => {
            world.completed = world.completed.max(Some(*step));
            world.memory.ended(|until| matches!(until, Until::Step(of) if of <= *step));
        }
        C::BumpEpoch {} => {
            world.whole = true;
            world.memory.change_weights();
        }
        C::Reset {} => {
            // A request that survives a reset holds no blocks and reads nothing. When it continues, it
            // may hold blocks without the start of their prefix. Then the check that every cached block
            // has a cached parent does not apply.
            world.whole |= world.subject.manager().num_requests() == 0;
            world.memory.change_weights();
            world.layers.iter_mut().for_each(|layers| layers.change_weights(world.memory.weights()));
        }
        C::Evict { blocks } => world.whole &= unpack(blocks).is_empty(),
        C::Fence {} => {
            if let Value::Number(ticket) = answer.value {
                world.tickets.push(ticket);
            }
        }
        C::EndFence { ticket } => {
            world.tickets.retain(|open| open != ticket);
            world.memory.ended(|until| until == UntilRecord::Ticket(*ticket).until());
        }
        C::Release { .. }
        | C::Preempt { .. }
        | C::Retain { .. }
        | C::SetTenant { .. }
        | C::RetainPrefix { .. }
        | C::Resize { .. }
        | C::TakeEvents {}
        | C::ExternalDone { .. }
        | C::EndSession { .. }
        | C::EvictNext { .. }
        | C::ReleaseBatch { .. }
        | C::ExtendEncoder { .. }
        | C::ReleaseBatchWith { .. } => {}
    }
    let manager = world.subject.manager();
    world.requests.tokens.retain(|&number, _| manager.contains(&crate::world::requests::id(number)));
    world.layers.iter_mut().for_each(|layers| layers.forget(manager));
    Ok(())
}

/// Returns the requests that a call has admitted or resumed, and whether they compute all their tokens.
fn admissions(call: &C, planned: &[Done]) -> Vec<(i64, bool)> {
    match call {
        C::Admit { request: IdRecord(id), options, .. } => {
            vec![(number(id), options.options().part.compute_all)]
        }
        C::Resume { request, part, .. } => vec![(named(request), part.part().compute_all)],
        C::CommitStep { plan } => {
            let admitted = |&one: &Done| match one {
                Done::Admitted(number) | Done::Resumed(number) => {
                    Some((number, planned_part(plan, number).compute_all))
                }
                _ => None,
            };
            planned.iter().filter_map(admitted).collect()
        }
        _ => Vec::new(),
    }
}

/// Checks the explanations of misses after a call that succeeded. `cached` contains the contents that
/// were cached before the call.
///
/// # Errors
/// The first explanation that is wrong.
pub(crate) fn explain(
    world: &mut ManagerWorld,
    call: &C,
    planned: &[Done],
    load: Option<Load>,
    cached: &BTreeSet<Content>,
) -> Result<(), Failure> {
    let Some(explained) = &mut world.explained else { return Ok(()) };
    let manager = world.subject.manager();
    if let (C::ExternalDone { request, .. }, Some(load)) = (call, load) {
        explained.loaded(manager, named(request), load.tokens);
    }
    for (number, computes_all) in admissions(call, planned) {
        // If a step has several operations, one may evict blocks that another one looks up, so `cached`
        // is not exact.
        let cached = Some(cached).filter(|_| planned.len() < 2);
        explained.admitted(manager, number, cached, computes_all)?;
    }
    match call {
        C::Fork { parent, child: IdRecord(child) } => explained.forked(named(parent), number(child)),
        C::ForkBatch { forks } => {
            forked(forks).into_iter().for_each(|(parent, child)| explained.forked(parent, child));
        }
        // A change of epoch ends the check of explanations: the digests of a hasher differ in every
        // epoch, but the artificial keys of the laboratory do not.
        C::BumpEpoch {} => {
            world.explained = None;
            return Ok(());
        }
        _ => {}
    }
    explained.note(manager)
}

fn admitted(world: &mut ManagerWorld, number: i64, part: Part) {
    world.memory.admitted(number);
    let known = world.requests.tokens.get(&number).map_or(0, Vec::len);
    if let Some(layers) = &mut world.layers {
        layers.admitted(world.subject.manager(), number, known, part, world.memory.weights());
    }
}

/// Records that a request got the tokens `new` and, if `computed` is given, that it has committed this
/// number of tokens. Its tables cover `slots` tokens.
fn grown(
    world: &mut ManagerWorld,
    number: i64,
    new: &[u32],
    computed: Option<usize>,
    slots: usize,
) -> Result<(), Failure> {
    let tokens = world.requests.tokens.entry(number).or_default();
    tokens.extend(new);
    let Some(layers) = &mut world.layers else { return Ok(()) };
    layers.grown(world.subject.manager(), number, (tokens.len(), new.len()), computed, slots)
}

fn committed(world: &mut ManagerWorld, number: i64, computed: usize) {
    world.layers.iter_mut().for_each(|layers| layers.committed(number, computed));
}

fn fork(world: &mut ManagerWorld, parent: i64, child: i64) {
    let tokens = world.requests.tokens.get(&parent).cloned().unwrap_or_default();
    world.requests.tokens.insert(child, tokens);
    world.memory.forked(parent, child);
    let known = world.requests.tokens.get(&parent).map_or(0, Vec::len);
    world.layers.iter_mut().for_each(|layers| layers.forked(parent, child, known));
}

fn truncate(world: &mut ManagerWorld, number: i64, keep: usize) -> Result<(), Failure> {
    if let Some(tokens) = world.requests.tokens.get_mut(&number) {
        tokens.truncate(keep);
    }
    world.layers.iter_mut().try_for_each(|layers| layers.cut(number, keep))
}

fn copies(value: &Value) -> Vec<kvpool::Transfer> {
    let Value::List(copies) = value else { return Vec::new() };
    let place = |value: &Value| {
        let (tier, block) = changes(&Value::List(vec![value.clone()])).first().copied()?;
        Some(kvpool::Place { tier, block: kvpool::BlockId::new(block as u32) })
    };
    let copy = |value: &Value| match value {
        Value::List(ends) => Some(kvpool::Transfer { src: place(ends.first()?)?, dst: place(ends.get(1)?)? }),
        _ => None,
    };
    copies.iter().filter_map(copy).collect()
}
