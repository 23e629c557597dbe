//! Draws the arguments of a manager's calls, by their kinds.

use kvpool::retention::TenantId;
use kvpool::{AdmitOptions, Part, RequestState, RetentionRange, Ticket, Until};
use kvpool_journal::calls::Slot;
use kvpool_journal::{
    AppendRecord, ChainRecord, ComputedRecord, CoveredRecord, EndedRecord, Filled, ForksRecord, IdRecord,
    LoadedRecord, Name, OptionsRecord, PartRecord, PlanRecord, Planned, RangeRecord, TurnRecord, UntilRecord,
};

use super::Weights;
use super::pool::{retention, signal};
use crate::bytes::Bytes;
use crate::world::manager::ManagerWorld;
use crate::world::pool::pack;
use crate::world::prompts::Path;
use crate::world::requests::{NUMBERS, batch, id, named, number};

const USUAL: &[(&str, u8)] = &[
    ("admit", 28),
    ("append", 20),
    ("commit", 20),
    ("release", 10),
    ("fork", 8),
    ("resume", 8),
    ("take_plan", 8),
    ("commit_step", 10),
    ("append_tokens", 6),
    ("external_done", 6),
    ("complete_swap", 10),
    ("begin_swap_in", 8),
    ("drop_cached", 1),
    ("trim_window", 2),
    ("bump_epoch", 1),
    ("reset", 1),
    ("resize", 1),
    ("take_events", 1),
    ("retain_prefix", 2),
    ("set_tenant", 2),
    ("retain", 2),
    ("advance_time", 2),
    ("extend_encoder", 2),
    ("abort_swap", 2),
    ("fence", 2),
    ("end_session", 2),
    ("evict", 2),
];

/// How often each call is drawn in a phase in which requests finish, so that a reset can succeed.
const DRAINING: &[(&str, u8)] = &[
    ("admit", 0),
    ("append", 1),
    ("fork", 0),
    ("fork_batch", 0),
    ("resume", 0),
    ("commit_step", 0),
    ("begin_swap_out", 0),
    ("release", 20),
    ("take_plan", 12),
    ("reset", 20),
    ("external_done", 12),
    ("complete_step", 8),
    ("end_fence", 8),
];

/// How often each call is drawn in a run in which the laboratory itself reads the events. The call
/// `take_events` is never drawn there, because it would take events that the laboratory has to check.
const LATE: &[(&str, u8)] = &[("take_events", 0)];

pub(crate) const fn weights(world: &ManagerWorld) -> Weights {
    match (world.is_draining(), world.setting.looks > 1) {
        (false, false) => &[USUAL],
        (false, true) => &[LATE, USUAL],
        (true, false) => &[DRAINING, USUAL],
        (true, true) => &[LATE, DRAINING, USUAL],
    }
}

/// The states in which a call accepts a request. An empty list means every state. A call that is not
/// listed accepts only running requests.
const STATES: &[(&str, &[RequestState])] = &[
    ("resume", &[RequestState::Preempted]),
    ("begin_swap_in", &[RequestState::Swapped]),
    ("preempt", &[RequestState::Running, RequestState::Running, RequestState::Swapped]),
    ("external_done", &[RequestState::Loading, RequestState::Releasing]),
    ("release", ANY),
    ("retain", ANY),
    ("set_tenant", ANY),
    ("end_session", ANY),
    ("release_batch", ANY),
    ("release_batch_with", ANY),
    ("append", APPENDABLE),
    ("append_tokens", APPENDABLE),
];
const ANY: &[RequestState] = &[];
const APPENDABLE: &[RequestState] = &[RequestState::Running, RequestState::Running, RequestState::Preempted];

/// The name of the call that is being drawn, and data that its arguments share, such as the request.
#[derive(Debug, Default)]
pub struct Draft {
    call: &'static str,
    /// The request.
    request: Option<i64>,
    /// The numbers of the requests that were drawn for the batch of the call.
    rows: Vec<i64>,
    /// Number of tokens of the prompt that was drawn for the call.
    tokens: usize,
}

impl Draft {
    pub(crate) fn of(call: &'static str) -> Self {
        Self { call, ..Self::default() }
    }

    fn states(&self) -> &'static [RequestState] {
        let states = STATES.iter().find(|(call, _)| *call == self.call);
        states.map_or(&[RequestState::Running], |(_, states)| states)
    }
}

/// Draws a request in one of `states`. Listing a state twice doubles its probability.
fn request(bytes: &mut Bytes<'_>, world: &ManagerWorld, states: &[RequestState]) -> Option<i64> {
    let state = bytes.pick(states);
    let fits = |number: &i64| {
        let found = world.info(*number).map(|info| info.state);
        found.is_some() && (state.is_none() || found == state.copied())
    };
    let fitting: Vec<_> = world.numbers().filter(fits).collect();
    bytes.pick(&fitting).copied()
}

fn new(bytes: &mut Bytes<'_>, world: &ManagerWorld) -> Option<i64> {
    let unknown: Vec<_> = world.numbers().filter(|&number| world.info(number).is_none()).collect();
    bytes.pick(&unknown).copied()
}

fn any(bytes: &mut Bytes<'_>) -> i64 {
    bytes.below(NUMBERS.end as usize + 1) as i64
}

/// Draws up to three different requests in one of `states`.
fn several(bytes: &mut Bytes<'_>, world: &ManagerWorld, states: &[RequestState]) -> Vec<i64> {
    let mut all: Vec<i64> = Vec::new();
    for _ in 0..1 + bytes.below(3) {
        all.extend(request(bytes, world, states).filter(|number| !all.contains(number)));
    }
    all
}

fn names(numbers: &[i64]) -> Vec<Name> {
    numbers.iter().map(|&number| Name::Id(id(number))).collect()
}

fn content(bytes: &mut Bytes<'_>) -> u32 {
    bytes.below(3) as u32
}

/// Draws a prompt of a few contents: a known prompt, a shortened or extended one, or a new one. Some
/// prompts have tokens after the last full block.
fn prompt(bytes: &mut Bytes<'_>, world: &mut ManagerWorld) -> ChainRecord {
    let mut path = Path::new();
    let known = world.prompts.all().len();
    if known > 0 && bytes.below(4) > 0 {
        path = world.prompts.all().nth(bytes.below(known.min(256))).cloned().unwrap_or_default();
    }
    let is_hybrid = world.layers.is_some();
    let (more, longest) = (if is_hybrid { 9 } else { 4 }, world.setting.scale.prompt);
    let keeps = if is_hybrid { bytes.below(longest + 1) } else { longest };
    path.truncate(keeps);
    for _ in 0..bytes.below(more) {
        path.push(content(bytes));
    }
    path.truncate(longest);
    let epoch = world.manager().pool().epoch();
    let mut chain = world.prompts.chain(&path, epoch);
    chain.tokens += bytes.below(world.setting.block_size);
    chain
}

fn part(bytes: &mut Bytes<'_>, tokens: usize) -> Part {
    if bytes.below(2) == 0 {
        return Part::WHOLE;
    }
    let allocate_tokens = bytes.one_in(2).then(|| bytes.below(6));
    let external_tokens = if bytes.one_in(2) { bytes.below(tokens) } else { 0 };
    Part { allocate_tokens, external_tokens, compute_all: bytes.one_in(8) }
}

fn range(bytes: &mut Bytes<'_>) -> RetentionRange {
    let start = bytes.below(8);
    let end = bytes.one_in(2).then(|| start + 1 + bytes.below(6));
    RetentionRange { start, end, retention: retention(bytes) }
}

fn options(bytes: &mut Bytes<'_>, world: &ManagerWorld, tokens: usize) -> OptionsRecord {
    let part = part(bytes, tokens);
    if !world.setting.retention || bytes.one_in(2) {
        return (&AdmitOptions { part, ..AdmitOptions::default() }).into();
    }
    let tenant = bytes.one_in(2).then(|| TenantId(bytes.below(3) as u32));
    let ranges = (0..bytes.below(3)).map(|_| range(bytes)).collect();
    (&AdmitOptions { part, tenant, no_cache: bytes.one_in(4), ranges }).into()
}

/// Draws when released blocks become allocatable: mostly immediately, otherwise when a step or a fence
/// ends.
fn until(bytes: &mut Bytes<'_>, world: &ManagerWorld) -> UntilRecord {
    let until = match bytes.below(4) {
        2 => Until::Step(world.step() + bytes.below(3) as u64),
        3 => bytes.pick(&world.tickets).map_or(Until::Now, |&ticket| Until::Ticket(Ticket::new(ticket))),
        _ => Until::Now,
    };
    until.into()
}

/// Draws a number of tokens that a call accepts for a request.
fn length(bytes: &mut Bytes<'_>, world: &ManagerWorld, call: &str, number: Option<i64>) -> usize {
    let info = number.and_then(|number| world.info(number));
    let (tokens, computed) = info.map_or((0, 0), |info| (info.tokens, info.computed_tokens));
    match call {
        "commit" | "commit_batch" => {
            if number.is_some_and(|number| world.waits_for_copy(number)) {
                return computed;
            }
            if let (Some(layers), Some(number)) = (&world.layers, number) {
                let checkpoint = world.manager().next_checkpoint(&id(number)).ok().flatten();
                let asked = match bytes.below(4) {
                    0 | 1 => tokens,
                    2 => checkpoint.unwrap_or(tokens),
                    _ => tokens.saturating_sub(bytes.below(6)),
                };
                return layers.committable(number, tokens, asked);
            }
            let slots = info.map_or(0, |info| info.blocks * world.setting.block_size);
            let most = tokens.min(slots);
            if bytes.below(4) > 0 { most } else { computed + bytes.below(most.saturating_sub(computed) + 1) }
        }
        "truncate" | "truncate_batch" => {
            let least = world.layers.as_ref().zip(number).map_or(0, |(layers, n)| layers.least_length(n));
            tokens.saturating_sub(bytes.below(4)).max(least).max(1)
        }
        "extend_encoder" => bytes.below(7),
        "trim_window" => bytes.below(8),
        _ => tokens + bytes.below(5),
    }
}

/// Draws the contents of the blocks that become full when each request gets the number of tokens of its
/// row.
fn filled(bytes: &mut Bytes<'_>, world: &mut ManagerWorld, rows: &[(i64, usize)]) -> Filled {
    let epoch = world.manager().pool().epoch();
    world.requests.filled(rows, &mut world.prompts, epoch, || content(bytes))
}

fn append(bytes: &mut Bytes<'_>, world: &mut ManagerWorld, draft: &mut Draft) -> AppendRecord {
    let numbers = several(bytes, world, draft.states());
    let is_steady = bytes.one_in(2);
    let counts: Vec<_> = numbers.iter().map(|_| if is_steady { 1 } else { bytes.below(5) }).collect();
    let rows: Vec<_> = numbers.iter().copied().zip(counts.iter().copied()).collect();
    let all = |number: i64| world.info(number).map_or(0, |info| info.tokens);
    let hybrid = world.layers.as_ref().map(|_| hybrid_counts(bytes, world, &rows));
    let accepts = hybrid.as_ref().is_some_and(|(_, accepted)| *accepted);
    let computed = match bytes.below(8) {
        _ if hybrid.is_some() => hybrid.map_or(ComputedRecord::Nothing, |(computed, _)| computed),
        _ if numbers.iter().any(|&number| world.waits_for_copy(number)) => ComputedRecord::Nothing,
        0..3 => ComputedRecord::Nothing,
        3..6 => ComputedRecord::AllButLast,
        _ => {
            let count = |&(number, count): &(i64, usize)| {
                let least = world.info(number).map_or(0, |info| info.computed_tokens);
                (all(number) + bytes.below(count + 1)).max(least)
            };
            ComputedRecord::Counts(rows.iter().map(count).collect())
        }
    };
    let covered = match bytes.below(4) {
        0 | 1 => CoveredRecord::All,
        2 => CoveredRecord::Lookahead(bytes.below(5)),
        _ => {
            let count = |&(number, count): &(i64, usize)| all(number) + bytes.below(count + 4);
            CoveredRecord::Each(rows.iter().map(count).collect())
        }
    };
    let most_changes = bytes.one_in(12).then(|| bytes.below(5));
    let ends = counts.iter().scan(0, |end, count| {
        *end += count;
        Some(*end)
    });
    let offsets =
        if is_steady && bytes.one_in(2) { Vec::new() } else { [0].into_iter().chain(ends).collect() };
    // The tokens of this append are accepted drafts, which the engine has already chosen. So their
    // contents are not drawn.
    let filled =
        if accepts { filled(&mut Bytes::new(&[]), world, &rows) } else { filled(bytes, world, &rows) };
    let tokens = counts.iter().sum();
    AppendRecord { rows: batch(&numbers), tokens, offsets, computed, covered, most_changes, filled }
}

/// Draws the number of computed tokens that an append reports for a request of a hybrid model (full
/// attention together with windows or states). The number is always one that an engine may report. Also
/// returns whether some of these tokens are accepted drafts.
fn hybrid_counts(
    bytes: &mut Bytes<'_>,
    world: &ManagerWorld,
    rows: &[(i64, usize)],
) -> (ComputedRecord, bool) {
    let Some(layers) = &world.layers else { return (ComputedRecord::Nothing, false) };
    let known = |number: i64| world.info(number).map_or(0, |info| info.tokens);
    let can = |number: i64, count: usize, computed: usize| {
        layers.can_commit(world.manager(), number, (known(number), count), computed)
    };
    let steady =
        |&(number, count): &(i64, usize)| count == 0 || can(number, count, known(number) + count - 1);
    match bytes.below(8) {
        0..3 => (ComputedRecord::Nothing, false),
        3..5 if rows.iter().all(steady) => {
            (ComputedRecord::AllButLast, rows.iter().any(|&(_, count)| count > 1))
        }
        _ => {
            let mut accepts = false;
            let mut count_of = |&(number, count): &(i64, usize)| {
                let known = known(number);
                let all = known + bytes.below(count + 1);
                if can(number, count, all) {
                    accepts |= all > known;
                    return all;
                }
                let committed = world.info(number).map_or(0, |info| info.computed_tokens);
                let less = layers.committable(number, known, known);
                if can(number, count, less) { less } else { committed }
            };
            let counts = rows.iter().map(&mut count_of).collect();
            (ComputedRecord::Counts(counts), accepts)
        }
    }
}

fn turn(bytes: &mut Bytes<'_>, world: &mut ManagerWorld, draft: &Draft) -> Option<TurnRecord> {
    let number = request(bytes, world, draft.states())?;
    let tokens = bytes.below(7);
    let lookahead = if bytes.one_in(3) { bytes.below(5) } else { 0 };
    let filled = filled(bytes, world, &[(number, tokens)]);
    Some(TurnRecord { request: Name::Id(id(number)), tokens, lookahead, filled })
}

fn plan(bytes: &mut Bytes<'_>, world: &mut ManagerWorld) -> PlanRecord {
    let mut all: Vec<Planned> = Vec::new();
    for _ in 0..1 + bytes.below(4) {
        let one = planned(bytes, world);
        all.extend(one.filter(|one| all.iter().all(|other| planned_of(other) != planned_of(one))));
    }
    PlanRecord { planned: all, stale: false }
}

fn planned_of(planned: &Planned) -> i64 {
    match planned {
        Planned::Admit { request: IdRecord(id), .. } => number(id),
        Planned::Resume { request, .. }
        | Planned::Append { request, .. }
        | Planned::Preempt { request, .. }
        | Planned::Release { request, .. } => named(request),
    }
}

fn planned(bytes: &mut Bytes<'_>, world: &mut ManagerWorld) -> Option<Planned> {
    Some(match bytes.below(16) {
        0..6 => {
            let (request, prompt) = (IdRecord(id(new(bytes, world)?)), prompt(bytes, world));
            let options = options(bytes, world, prompt.tokens);
            Planned::Admit { request, prompt, options }
        }
        6..8 => {
            let number = request(bytes, world, &[RequestState::Preempted])?;
            let part = part(bytes, world.info(number)?.tokens).into();
            Planned::Resume { request: name(number), part, rehashed: None }
        }
        8..12 => {
            let number = request(bytes, world, APPENDABLE)?;
            let tokens = bytes.below(5);
            let covered = world.info(number)?.tokens + tokens + bytes.below(4).saturating_sub(1);
            let filled = filled(bytes, world, &[(number, tokens)]);
            Planned::Append { request: name(number), tokens, covered, filled }
        }
        12 | 13 => {
            let number = request(bytes, world, &[RequestState::Running, RequestState::Swapped])?;
            Planned::Preempt { request: name(number), until: until(bytes, world) }
        }
        _ => Planned::Release { request: name(request(bytes, world, ANY)?), until: until(bytes, world) },
    })
}

/// Draws a valid argument for the call. Returns false if none exists, for example because no request is
/// running.
pub(crate) fn fill(
    slot: Slot<'_>,
    bytes: &mut Bytes<'_>,
    world: &mut ManagerWorld,
    draft: &mut Draft,
) -> bool {
    match slot {
        Slot::NewRequest(record) => {
            let number = new(bytes, world);
            *record = IdRecord(id(number.unwrap_or_else(|| any(bytes))));
            return number.is_some();
        }
        Slot::Prompt(record) => {
            record.chain = prompt(bytes, world);
            draft.tokens = record.chain.tokens;
            return draft.tokens > 0;
        }
        Slot::Options(record) => *record = options(bytes, world, draft.tokens),
        Slot::Request(name) => {
            draft.request = request(bytes, world, draft.states());
            *name = Name::Id(id(draft.request.unwrap_or_else(|| any(bytes))));
            return draft.request.is_some();
        }
        Slot::Requests(list) => {
            *list = names(&several(bytes, world, draft.states()));
            return !list.is_empty();
        }
        Slot::Batch(rows) => {
            draft.rows = several(bytes, world, draft.states());
            *rows = batch(&draft.rows);
            return !draft.rows.is_empty();
        }
        Slot::Forks(ForksRecord { parents, children }) => {
            let mut all: Vec<i64> = Vec::new();
            for _ in 0..1 + bytes.below(2) {
                all.extend(new(bytes, world).filter(|number| !all.contains(number)));
            }
            let of: Vec<_> =
                all.iter().filter_map(|_| request(bytes, world, &[RequestState::Running])).collect();
            *parents = names(&of);
            *children = all.iter().map(|&number| IdRecord(id(number))).collect();
            return !of.is_empty() && of.len() == all.len();
        }
        Slot::Ending(EndedRecord { requests, signals }) => {
            *requests = names(&several(bytes, world, ANY));
            *signals = requests.iter().map(|_| signal(bytes).into()).collect();
            return !requests.is_empty();
        }
        Slot::Portion(record) => {
            let tokens = draft.request.and_then(|number| world.info(number)).map_or(0, |info| info.tokens);
            *record = part(bytes, tokens).into();
        }
        Slot::Rehashed(_) => {} // contents keep their keys in every epoch
        Slot::Reuse(record) => *record = until(bytes, world),
        Slot::Length(n) => *n = length(bytes, world, draft.call, draft.request),
        Slot::Lengths(list) => {
            *list = draft.rows.iter().map(|&row| length(bytes, world, draft.call, Some(row))).collect();
        }
        Slot::Append(record) => {
            *record = append(bytes, world, draft);
            return !crate::world::requests::rows(&record.rows).is_empty();
        }
        Slot::Turn(record) => match turn(bytes, world, draft) {
            Some(turn) => *record = turn,
            None => {
                record.request = Name::Id(id(any(bytes)));
                return false;
            }
        },
        Slot::Plan(record) => {
            *record = plan(bytes, world);
            return !record.planned.is_empty();
        }
        Slot::Load(record) => {
            let info = draft.request.and_then(|number| world.info(number));
            let (from, end) = info.map_or((0, 0), |info| (info.computed_tokens, info.external_end));
            *record = match bytes.below(4) {
                0 | 1 => LoadedRecord::All,
                2 => LoadedRecord::First(from + bytes.below(end.saturating_sub(from) + 1)),
                _ => {
                    let start = from + bytes.below(end.saturating_sub(from) + 1);
                    LoadedRecord::AllBut(std::iter::once(start..start + bytes.below(4)).collect())
                }
            };
        }
        Slot::Swap(swap) => match bytes.pick(&world.swaps) {
            Some(open) => *swap = *open,
            None => return false,
        },
        Slot::Ranges(ranges) => {
            *ranges = (0..1 + bytes.below(2)).map(|_| RangeRecord::from(&range(bytes))).collect();
        }
        Slot::Ticket(n) => match bytes.pick(&world.tickets) {
            Some(open) => *n = *open,
            None => return false,
        },
        Slot::Step(n) => *n = world.step() + bytes.below(3) as u64,
        Slot::Seconds(n) => *n = world.now + bytes.below(3) as f64,
        Slot::Tenant(n) => *n = bytes.below(3) as u32,
        Slot::Count(n) => *n = bytes.below(5),
        Slot::Size(n) => {
            *n = world.manager().pool().num_blocks() + bytes.below(2);
            return *n <= world.setting.scale.blocks;
        }
        Slot::Named(ids) => {
            let all = world.manager().pool().num_blocks() - 1;
            *ids = pack(&(0..1 + bytes.below(3)).map(|_| 1 + bytes.below(all)).collect::<Vec<_>>());
        }
        _ => return false, // an argument of another subject
    }
    true
}

/// Makes a list of requests invalid: replaces one of them by another request, or lists one twice.
fn others<T: Clone>(list: &mut Vec<T>, bytes: &mut Bytes<'_>, make: impl Fn(i64) -> T) {
    match (bytes.below(3), list.first().cloned()) {
        (0, Some(first)) => list.push(first),
        (1, _) => list.iter_mut().for_each(|one| *one = make(any(bytes))),
        _ => *list = (0..bytes.below(4)).map(|_| make(any(bytes))).collect(),
    }
}

fn name(number: i64) -> Name {
    Name::Id(id(number))
}

/// Replaces an argument by one that may be invalid, so that the manager may refuse the call.
pub(crate) fn spoil(slot: Slot<'_>, bytes: &mut Bytes<'_>, world: &mut ManagerWorld) {
    let num_blocks = world.manager().pool().num_blocks();
    let is_hybrid = world.layers.is_some();
    match slot {
        Slot::NewRequest(record) => *record = IdRecord(id(any(bytes))),
        Slot::Request(name) => *name = Name::Id(id(any(bytes))),
        Slot::Requests(list) => others(list, bytes, name),
        Slot::Batch(rows) => {
            let mut numbers = crate::world::requests::rows(rows);
            others(&mut numbers, bytes, |number| number);
            *rows = batch(&numbers);
        }
        Slot::Forks(ForksRecord { parents, children }) => match bytes.below(4) {
            0 => others(parents, bytes, name),
            1 => others(children, bytes, |number| IdRecord(id(number))),
            2 => drop(children.pop()),
            _ => {
                // Fork one request twice into the same child, which the manager has to refuse.
                parents.extend(parents.first().cloned());
                children.extend(children.first().cloned());
            }
        },
        Slot::Ending(EndedRecord { requests, signals }) => {
            others(requests, bytes, name);
            *signals = requests.iter().map(|_| signal(bytes).into()).collect();
        }
        Slot::Prompt(record) => match bytes.below(3) {
            0 => record.chain.epoch += 1,
            1 => record.foreign = true,
            _ => record.chain = world.prompts.chain(&[], world.manager().pool().epoch()),
        },
        Slot::Options(record) => {
            let options = record.options();
            let part = Part { external_tokens: bytes.below(12), ..options.part };
            let tenant = bytes.one_in(4).then_some(TenantId(1));
            *record = (&AdmitOptions { part, tenant, ..options }).into();
        }
        Slot::Portion(record) => {
            *record = PartRecord::from(Part { external_tokens: bytes.below(12), ..record.part() });
        }
        Slot::Reuse(until) => {
            *until = match bytes.below(2) {
                0 => UntilRecord::Ticket(bytes.below(8) as u64),
                _ => UntilRecord::Step(bytes.below(world.step().min(200) as usize + 3) as u64),
            };
        }
        // The simulated engine of a hybrid model must follow all rules, so draw only numbers that the
        // manager has to refuse.
        Slot::Length(n) if is_hybrid => *n = [0, WRONG_LENGTH][bytes.below(2)],
        Slot::Length(n) => *n = bytes.below(16),
        Slot::Lengths(list) => match bytes.below(3) {
            0 => drop(list.pop()),
            1 => list.push(bytes.below(12)),
            _ if is_hybrid => list.iter_mut().for_each(|n| *n = WRONG_LENGTH),
            _ => list.iter_mut().for_each(|n| *n = bytes.below(16)),
        },
        Slot::Append(record) => spoil_append(record, bytes, world),
        Slot::Turn(record) => {
            record.request = Name::Id(id(any(bytes)));
            let (epoch, ManagerWorld { requests, prompts, .. }) = (world.manager().pool().epoch(), world);
            requests.fit_turn(record, prompts, epoch);
        }
        Slot::Plan(record) => match bytes.below(4) {
            0 => record.stale = true,
            1 => record.planned.clear(),
            _ => {
                if let Some(one) = bytes.pick(&record.planned).cloned() {
                    record.planned.push(one);
                }
            }
        },
        Slot::Load(record) => *record = LoadedRecord::First(bytes.below(16)),
        Slot::Swap(swap) => *swap = bytes.below(8) as u64,
        Slot::Ranges(ranges) => {
            let range = RetentionRange { start: 4, end: Some(bytes.below(5)), retention: retention(bytes) };
            ranges.push(RangeRecord::from(&range));
        }
        Slot::Ticket(n) => *n = bytes.below(8) as u64,
        Slot::Step(n) => *n = bytes.below(world.step().min(200) as usize + 2) as u64,
        Slot::Seconds(n) => *n = [*n - 3.0, f64::NAN, f64::INFINITY][bytes.below(3)],
        Slot::Tenant(n) => *n = bytes.below(9) as u32,
        Slot::Count(n) => *n = bytes.below(num_blocks + 3),
        Slot::Size(n) => *n = bytes.below(num_blocks + 2).min(world.setting.scale.blocks),
        Slot::Named(ids) => {
            let blocks: Vec<_> = (0..bytes.below(5)).map(|_| bytes.below(num_blocks + 2)).collect();
            *ids = pack(&blocks);
        }
        _ => {} // an argument of another subject
    }
}

/// A number of tokens that is too large for any request.
const WRONG_LENGTH: usize = 1000;

fn spoil_append(record: &mut AppendRecord, bytes: &mut Bytes<'_>, world: &mut ManagerWorld) {
    let numbers = crate::world::requests::rows(&record.rows);
    match bytes.below(6) {
        0 | 5 => {
            let mut numbers = numbers;
            others(&mut numbers, bytes, |number| number);
            record.rows = batch(&numbers);
        }
        1 => record.tokens += 1,
        2 => drop(record.offsets.pop()),
        3 => {
            let least = if world.layers.is_some() { WRONG_LENGTH } else { 0 };
            record.computed =
                ComputedRecord::Counts(numbers.iter().map(|_| least + bytes.below(16)).collect());
        }
        _ => record.covered = CoveredRecord::Each((0..bytes.below(4)).map(|_| bytes.below(16)).collect()),
    }
    let (epoch, ManagerWorld { requests, prompts, .. }) = (world.manager().pool().epoch(), world);
    requests.fit_append(record, prompts, epoch);
}
