//! `CacheManager` against the reference model: every result, every block table, both orders of both tiers, the planned copies
//! and all invariants, after every operation.
//!
//! The model knows LRU's order. Under another policy victims differ and with them all that follows, so results are not compared
//! then; what remains is that nothing panics, that a refused call changes nothing, all invariants, and that the device's cache
//! stays closed: as long as holders hold whole prefixes, no block is cached whose parent is not.

mod arguments;
mod batches;
mod operation;
mod step;
mod written;

use std::collections::BTreeMap;

pub use arguments::{Arrived, Room, Rows as OperationRows, Said};
use kvpool::{
    Admission, AdmitOptions, BlockHash, CacheManager, Computed, DuplicatePolicy, ExtraKeys, Fit,
    ManagerConfig, ManagerError, NewBlock, Part, Place, RequestRef, RequestState, Rows, SwapId, TableChange,
    Ticket, Until,
};
use kvpool_observe::{BlockEvent, ManagerScrubber, ManagerWatch, ManagerWatchConfig};
use kvpool_testing::{ReferenceManager, ReferencePool, indices};
use operation::LAST_ID;
pub use operation::{Operation, Planned, Setting};

use written::{PROMPT, REFS, TABLE, admission, answered, compared, options, rows_text, until_text};

use crate::case::{Failure, Machine, Script, holds, same};
use crate::text;

const BLOCK_SIZE: usize = 2;
const MOST_BLOCKS: usize = 20;

/// The manager, and the model if it can say what happens.
#[derive(Debug)]
pub struct Manager {
    manager: CacheManager,
    scrubber: ManagerScrubber,
    model: Option<ReferenceManager>,
    /// Swaps under way, oldest first.
    swaps: Vec<u64>,
    /// By the events: the hashes that can be matched, with their parents.
    matchable: BTreeMap<BlockHash, Option<BlockHash>>,
    /// No holder has given up the start of a prefix, and no block was dropped by id.
    whole: bool,
}

/// What the core says of a request, and what the model does.
type Seen = (RequestState, usize, usize, usize, Vec<usize>);
/// Tier and block of a source, and of a destination.
type Copy = ((usize, usize), (usize, usize));

fn place(place: Place) -> (usize, usize) {
    (place.tier, place.block.index())
}

fn pairs(changes: &[TableChange]) -> Vec<(usize, usize)> {
    changes.iter().map(|change| (change.index, change.block.index())).collect()
}

fn changes(changes: &[NewBlock]) -> Vec<(usize, usize, usize)> {
    changes.iter().map(|new| (new.row, new.index, new.block.index())).collect()
}

/// Rows as the core takes them: requests, tokens, offsets.
fn flat(rows: &OperationRows) -> (Vec<RequestRef<'_>>, Vec<u32>, Vec<usize>) {
    let requests = rows.iter().map(|&(id, _)| RequestRef::Int(id)).collect();
    let tokens = rows.iter().flat_map(|(_, tokens)| tokens.clone()).collect();
    let ends = rows.iter().scan(0, |end, (_, tokens)| {
        *end += tokens.len();
        Some(*end)
    });
    (requests, tokens, std::iter::once(0).chain(ends).collect())
}

fn admitted(admission: &Admission) -> (Vec<usize>, usize) {
    (indices(&admission.block_ids), admission.cached_blocks)
}

/// Compares with what the model says, if it says something.
fn agree<T: PartialEq + std::fmt::Debug>(kind: &str, found: &T, expected: Option<T>) -> Result<(), Failure> {
    expected.map_or(Ok(()), |expected| same(kind, found, &expected))
}

impl Manager {
    fn extra(salted: bool) -> ExtraKeys {
        ExtraKeys { salt: salted.then(|| b"s".to_vec().into_boxed_slice()), ..Default::default() }
    }

    fn table(&self, id: i64) -> Option<Vec<usize>> {
        self.manager.block_table(id).ok().map(indices)
    }

    fn seen(&self, id: i64) -> Option<Seen> {
        let info = self.manager.request(id).ok()?;
        Some((info.state, info.tier, info.tokens, info.computed_tokens, self.table(id)?))
    }

    fn copies(&self) -> Vec<Copy> {
        self.manager.tiers().pending_copies().map(|copy| (place(copy.src), place(copy.dst))).collect()
    }

    /// Everything that a refused call must not change.
    fn observe(&self) -> impl PartialEq + std::fmt::Debug + use<> {
        let pools: Vec<_> = (0..self.manager.tiers().len())
            .filter_map(|tier| self.manager.tiers().pool(tier).ok())
            .map(|pool| (pool.free_order(), pool.eviction_order(), pool.stats()))
            .collect();
        let requests: Vec<_> = (0..=i64::from(LAST_ID)).map(|id| self.seen(id)).collect();
        (pools, requests, self.copies())
    }

    fn admit(
        &mut self,
        id: i64,
        tokens: &[u32],
        salted: bool,
        part: Part,
        script: &mut Script,
    ) -> Result<bool, Failure> {
        let salt: &[u8] = if salted { b"s" } else { b"" };
        let asked = part != Part::WHOLE && part.external_tokens < tokens.len();
        let model = self.model.as_ref().filter(|_| asked);
        let fitting = model
            .map(|model| model.fit(tokens, salt, part))
            .map(|(cached, fitting)| (cached * BLOCK_SIZE, fitting));
        let expected = self.model.as_mut().map(|model| {
            let cached = model.admit(id, tokens, salt, part)?;
            Some((model.requests[&id].blocks.clone(), cached))
        });
        script.line(|| {
            let prompt = format!("prompt(&manager, &{tokens:?}, {})", text::salt(salt));
            let call = match part == Part::WHOLE {
                true => format!("manager.admit({id}, {prompt})"),
                false => format!("manager.admit_with({id}, {prompt}, &{})", options(part)),
            };
            admission(&call, expected.as_ref())
        });
        let cursor = self.manager.prepare(tokens, Self::extra(salted));
        let cursor = cursor.map_err(|error| Failure::new("hashing", error.to_string()))?;
        let fit = self.manager.fit(&cursor, part).ok();
        same("outcome of fit", &fit.is_some(), &(part.external_tokens < tokens.len()))?;
        if let Some(fit) = fit {
            agree("what is hit, and tokens that fit", &(fit.cached_tokens, fit.fitting_tokens), fitting)?;
        }
        let found = self.manager.admit_with(id, cursor, &AdmitOptions { part, ..Default::default() }).ok();
        if let Some(found) = &found {
            let promised = fit.map(|fit| (fit.fit, fit.cached_tokens, fit.new_blocks));
            let new = found.block_ids.len() - found.cached_blocks;
            same("a fit", &promised, &Some((Fit::Ok, found.cached_blocks * BLOCK_SIZE, new)))?;
        }
        agree("result of admit", &found.as_ref().map(admitted), expected)?;
        Ok(found.is_some())
    }

    fn append(
        &mut self,
        ids: &[i64],
        token: u32,
        commit: bool,
        script: &mut Script,
    ) -> Result<bool, Failure> {
        let rows: Vec<_> = ids.iter().map(|&id| (id, token)).collect();
        let expected = self.model.as_mut().map(|model| model.append(&rows, commit));
        script.line(|| {
            let tokens = vec![token; ids.len()];
            let computed = if commit { "AllButLast" } else { "Nothing" };
            let call = format!("manager.append(&refs(&{ids:?}), &{tokens:?}, Computed::{computed})");
            answered(&call, expected.as_ref().map(Option::is_some))
        });
        let refs: Vec<_> = ids.iter().map(|&id| RequestRef::Int(id)).collect();
        let computed = if commit { Computed::AllButLast } else { Computed::Nothing };
        let found = self.manager.append(&refs, &vec![token; ids.len()], computed).ok();
        let found = found.map(|all| changes(&all));
        agree("result of append", &found, expected)?;
        Ok(found.is_some())
    }

    fn append_ragged(
        &mut self,
        rows: &OperationRows,
        said: &Said,
        room: &Room,
        most: Option<usize>,
        script: &mut Script,
    ) -> Result<bool, Failure> {
        let (computed, covered) = (said.computed(), room.covered());
        let expected = self.model.as_mut().map(|model| {
            let mut changed = model.clone();
            let changes = changed.append_ragged(rows, computed, covered)?;
            let fits = most.is_none_or(|most| changes.len() <= most);
            fits.then(|| {
                *model = changed;
                changes
            })
        });
        script.line(|| {
            let call = format!("manager.append_ragged(&{})", rows_text(rows, computed, covered, most));
            answered(&call, expected.as_ref().map(Option::is_some))
        });
        let (requests, tokens, offsets) = flat(rows);
        let (requests, tokens, offsets) = (&requests[..], &tokens[..], &offsets[..]);
        let rows = Rows { requests, tokens, offsets, computed, covered, most_changes: most };
        let found = self.manager.append_ragged(&rows).ok().map(|all| changes(&all));
        agree("result of append_ragged", &found, expected)?;
        Ok(found.is_some())
    }

    fn append_tokens(
        &mut self,
        id: i64,
        tokens: &[u32],
        lookahead: usize,
        script: &mut Script,
    ) -> Result<bool, Failure> {
        let expected = self.model.as_mut().map(|model| model.append_tokens(id, tokens, lookahead));
        script.line(|| {
            let call = format!("manager.append_tokens({id}, &{tokens:?}, {lookahead})");
            answered(&call, expected.as_ref().map(Option::is_some))
        });
        let found = self.manager.append_tokens(id, tokens, lookahead).ok().map(|changes| pairs(&changes));
        agree("result of append_tokens", &found, expected)?;
        Ok(found.is_some())
    }

    /// A call that succeeds or not, and says no more that is compared.
    fn call<T>(
        &mut self,
        name: &'static str,
        arguments: &str,
        call: impl FnOnce(&mut CacheManager) -> Result<T, ManagerError>,
        modelled: impl FnOnce(&mut ReferenceManager) -> bool,
        script: &mut Script,
    ) -> Result<bool, Failure> {
        let expected = self.model.as_mut().map(modelled);
        script.line(|| answered(&format!("manager.{name}({arguments})"), expected));
        let found = call(&mut self.manager).is_ok();
        agree(&format!("outcome of {name}"), &found, expected)?;
        Ok(found)
    }

    fn begin_swap(&mut self, ids: &[i64], out: bool, script: &mut Script) -> Result<bool, Failure> {
        let expected = self.model.as_mut().map(|model| model.begin_swap(ids, out));
        let name = if out { "begin_swap_out" } else { "begin_swap_in" };
        script.line(|| {
            let call = format!("manager.{name}(&refs(&{ids:?})).ok().map(SwapId::get)");
            compared(&call, expected.map(|expected| format!("{expected:?}")))
        });
        let refs: Vec<_> = ids.iter().map(|&id| RequestRef::Int(id)).collect();
        let begun = if out { self.manager.begin_swap_out(&refs) } else { self.manager.begin_swap_in(&refs) };
        let found = begun.ok().map(SwapId::get);
        agree(&format!("result of {name}"), &found, expected)?;
        self.swaps.extend(found);
        Ok(found.is_some())
    }

    /// The `nth` swap under way, or one that never was.
    fn swap(&self, nth: usize) -> u64 {
        if self.swaps.is_empty() { 999 } else { self.swaps[nth % self.swaps.len()] }
    }

    fn complete_swap(&mut self, nth: usize, script: &mut Script) -> Result<bool, Failure> {
        let swap = self.swap(nth);
        let expected = self.model.as_mut().map(|model| model.complete_swap(swap));
        script.line(|| {
            let call = format!("manager.complete_swap(SwapId::from_number({swap}))");
            answered(&call, expected.as_ref().map(Option::is_some))
        });
        let found = self.manager.complete_swap(SwapId::from_number(swap)).ok();
        let found =
            found.map(|all| all.iter().map(|(old, new)| (old.index(), new.index())).collect::<Vec<_>>());
        agree("result of complete_swap", &found, expected)?;
        self.swaps.retain(|&other| found.is_none() || other != swap);
        Ok(found.is_some())
    }

    fn take_plan(&mut self, script: &mut Script) -> Result<bool, Failure> {
        let expected = self.model.as_mut().map(ReferenceManager::take_plan);
        script.line(|| {
            let expected = expected.as_ref().map(|plan| plan.len().to_string());
            compared("manager.take_plan().unwrap().len()", expected)
        });
        let plan = self.manager.take_plan();
        let plan = plan.map_err(|error| Failure::new("outcome of take_plan", error.to_string()))?;
        let found = plan.transfers().iter().map(|copy| (place(copy.src), place(copy.dst))).collect();
        agree("copies of take_plan", &found, expected)?;
        let rounds = plan.rounds(&[]).map(|rounds| rounds.iter().map(Vec::len).sum());
        same("copies in the rounds of a plan", &rounds, &Ok(plan.len()))?;
        Ok(true)
    }

    fn run(&mut self, operation: &Operation, script: &mut Script) -> Result<bool, Failure> {
        match operation {
            Operation::Admit(id, tokens, salted, part) => self.admit(*id, tokens, *salted, *part, script),
            Operation::AppendRagged(rows, said, room, most) => {
                self.append_ragged(rows, said, room, *most, script)
            }
            &Operation::Extend(id, slots) => {
                let expected = self.model.as_mut().map(|model| model.extend(id, slots));
                script.line(|| {
                    let call = format!("manager.extend({id}, {slots})");
                    answered(&call, expected.as_ref().map(Option::is_some))
                });
                let found = self.manager.extend(id, slots).ok().map(|changes| pairs(&changes));
                agree("result of extend", &found, expected)?;
                Ok(found.is_some())
            }
            Operation::ExternalDone(id, arrived) => self.external_done(*id, arrived, script),
            Operation::Fence => {
                let expected = self.model.as_mut().map(ReferenceManager::fence);
                script.line(|| {
                    let expected = expected.map(|ticket| ticket.to_string());
                    compared("manager.fence().unwrap().get()", expected)
                });
                let ticket = self.manager.fence().map(Ticket::get);
                let ticket = ticket.map_err(|error| Failure::new("outcome of fence", error.to_string()))?;
                agree("result of fence", &ticket, expected)?;
                Ok(true)
            }
            &Operation::EndFence(ticket) => {
                let arguments = format!("Ticket::new({})", ticket.get());
                let modelled = |model: &mut ReferenceManager| model.end_fence(ticket.get()).is_some();
                self.call("end_fence", &arguments, |m| m.end_fence(ticket), modelled, script)
            }
            Operation::TruncateBatch(rows, until) => {
                let (ids, lengths): (Vec<_>, Vec<_>) = rows.iter().copied().unzip();
                let refs: Vec<_> = ids.iter().map(|&id| RequestRef::Int(id)).collect();
                let arguments = format!("&refs(&{ids:?}), &{lengths:?}, {}", until_text(*until));
                let call = |m: &mut CacheManager| m.truncate_batch(&refs, &lengths, *until);
                let modelled = |model: &mut ReferenceManager| model.truncate_batch(rows, *until);
                self.call("truncate_batch", &arguments, call, modelled, script)
            }
            Operation::Append(ids, token, commit) => self.append(ids, *token, *commit, script),
            Operation::AppendTokens(id, tokens, lookahead) => {
                self.append_tokens(*id, tokens, *lookahead, script)
            }
            &Operation::Commit(id, n) => self.commit(id, n, script),
            &Operation::CommitAll(id) => {
                let all = self.manager.request(id).map_or(0, |info| info.tokens);
                self.commit(id, all, script)
            }
            &Operation::Fork(parent, child) => {
                let arguments = format!("{parent}, {child}");
                self.call("fork", &arguments, |m| m.fork(parent, child), |m| m.fork(parent, child), script)
            }
            &Operation::Truncate(id, n) => {
                let (arguments, now) = (format!("{id}, {n}, Until::Now"), Until::Now);
                self.call(
                    "truncate",
                    &arguments,
                    |m| m.truncate(id, n, now),
                    |m| m.truncate(id, n, now),
                    script,
                )
            }
            &Operation::Trim(id, window) => {
                let expected = self.model.as_mut().map(|model| model.trim(id, window));
                script.line(|| {
                    let expected = expected.map(|expected| format!("{expected:?}"));
                    compared(&format!("manager.trim_window({id}, {window}).ok()"), expected)
                });
                let found = self.manager.trim_window(id, window).ok();
                self.whole &= found.is_none_or(|trimmed| trimmed == 0);
                agree("result of trim_window", &found, expected)?;
                Ok(found.is_some())
            }
            &Operation::Preempt(id, end) => {
                let arguments = format!("{id}, {}", until_text(end));
                self.call("preempt", &arguments, |m| m.preempt(id, end), |m| m.preempt(id, end), script)
            }
            &Operation::Resume(id, part) => {
                let expected = self.model.as_mut().map(|model| {
                    let cached = model.resume(id, part)?;
                    Some((model.requests[&id].blocks.clone(), cached))
                });
                script.line(|| {
                    let call = match part == Part::WHOLE {
                        true => format!("manager.resume({id})"),
                        false => format!("manager.resume_with({id}, {part:?})"),
                    };
                    admission(&call, expected.as_ref())
                });
                let found = self.manager.resume_with(id, part).ok();
                agree("result of resume", &found.as_ref().map(admitted), expected)?;
                Ok(found.is_some())
            }
            &Operation::Release(id, end) => {
                let arguments = format!("{id}, {}", until_text(end));
                self.call("release", &arguments, |m| m.release(id, end), |m| m.release(id, end), script)
            }
            &Operation::CompleteStep(step) => {
                let modelled = |model: &mut ReferenceManager| {
                    model.complete_step(step);
                    true
                };
                self.call("complete_step", &step.to_string(), |m| m.complete_step(step), modelled, script)
            }
            Operation::Step(operations, commit) => self.step(operations, *commit, script),
            Operation::SwapOut(ids) => self.begin_swap(ids, true, script),
            Operation::SwapIn(ids) => self.begin_swap(ids, false, script),
            Operation::TakePlan => self.take_plan(script),
            &Operation::CompleteSwap(nth) => self.complete_swap(nth, script),
            &Operation::AbortSwap(nth) => {
                let swap = self.swap(nth);
                let arguments = format!("SwapId::from_number({swap})");
                let id = SwapId::from_number(swap);
                let modelled = |model: &mut ReferenceManager| model.abort_swap(swap);
                let done = self.call("abort_swap", &arguments, |m| m.abort_swap(id), modelled, script)?;
                self.swaps.retain(|&other| !done || other != swap);
                Ok(done)
            }
            Operation::Evict(ids) => {
                let fine = ids.iter().all(|&block| block > 0 && block < self.manager.pool().num_blocks());
                let blocks = kvpool_testing::block_ids(ids);
                let modelled = |model: &mut ReferenceManager| {
                    if fine {
                        model.pools[0].drop_cached(ids);
                    }
                    fine
                };
                self.whole &= !fine || ids.is_empty();
                let arguments = format!("&block_ids(&{ids:?})");
                self.call("drop_cached", &arguments, |m| m.drop_cached(&blocks), modelled, script)
            }
            &Operation::EvictNext(n) => self.evict_next(n, script),
            Operation::ForkBatch(rows) => self.fork_batch(rows, script),
            Operation::ReleaseBatch(ids, until) => self.release_batch(ids, *until, script),
            &Operation::EndSession(id, end) => {
                let arguments = format!("{id}, {}", until_text(end));
                // Only without retention is there a model, and without it no session ends.
                self.call("end_session", &arguments, |m| m.end_session(id, end), |_| false, script)
            }
            Operation::Reset => self.reset(script),
            Operation::BumpEpoch => {
                let modelled = |model: &mut ReferenceManager| {
                    model.bump_epoch();
                    true
                };
                self.call("bump_epoch", "", CacheManager::bump_epoch, modelled, script)
            }
            Operation::Grow => {
                let larger = self.manager.pool().num_blocks() + 1;
                let fine = larger <= MOST_BLOCKS;
                let asked = if fine { larger } else { larger - 2 };
                let modelled = |model: &mut ReferenceManager| {
                    if fine {
                        model.pools[0].resize(asked);
                    }
                    fine
                };
                self.call("resize", &asked.to_string(), |m| m.resize(asked), modelled, script)
            }
        }
    }

    /// A reset; if it is refused, everybody gives up his blocks, and it is tried again: only fences refuse it then.
    fn reset(&mut self, script: &mut Script) -> Result<bool, Failure> {
        let before = self.observe();
        if self.call("reset", "", CacheManager::reset, |m| m.reset().is_some(), script)? {
            return Ok(true);
        }
        same("what a refused reset left", &self.observe(), &before)?;
        let mut changed = false;
        for swap in std::mem::take(&mut self.swaps) {
            let (arguments, id) = (format!("SwapId::from_number({swap})"), SwapId::from_number(swap));
            let modelled = |model: &mut ReferenceManager| model.abort_swap(swap);
            changed |= self.call("abort_swap", &arguments, |m| m.abort_swap(id), modelled, script)?;
        }
        changed |= self.manager.tiers().num_planned() > 0;
        self.take_plan(script)?;
        for id in 0..=i64::from(LAST_ID) {
            if self.manager.request(id).is_ok_and(|info| info.external_end > info.computed_tokens) {
                changed |= self.external_done(id, &Arrived::All, script)?;
            }
        }
        let known: Vec<_> = (0..=i64::from(LAST_ID)).filter(|&id| self.manager.contains(id)).collect();
        for id in known {
            let arguments = format!("{id}, None");
            changed |= self.call(
                "preempt",
                &arguments,
                |m| m.preempt(id, None),
                |m| m.preempt(id, Until::Now),
                script,
            )?;
        }
        Ok(self.call("reset", "", CacheManager::reset, |m| m.reset().is_some(), script)? || changed)
    }

    fn external_done(&mut self, id: i64, arrived: &Arrived, script: &mut Script) -> Result<bool, Failure> {
        let arguments = match arrived {
            Arrived::AllBut(range) => format!("{id}, Loaded::AllBut(std::slice::from_ref(&({range:?})))"),
            other => format!("{id}, Loaded::{other:?}"),
        };
        let loaded = arrived.loaded();
        let call = |m: &mut CacheManager| m.external_done(id, loaded);
        self.call("external_done", &arguments, call, |m| m.external_done(id, loaded).is_some(), script)
    }

    fn commit(&mut self, id: i64, n: usize, script: &mut Script) -> Result<bool, Failure> {
        let arguments = format!("{id}, {n}");
        self.call("commit", &arguments, |m| m.commit(id, n), |m| m.commit(id, n).is_some(), script)
    }

    fn compare(&mut self) -> Result<(), Failure> {
        self.manager.check_invariants()?;
        let digest = self.manager.state_digest();
        same("digest of the state", &digest, &Some(self.manager.state_digest_from_scratch()))?;
        same("scrub", &self.scrubber.scrub(&mut self.manager, 2).map(|_| ()), &Ok(()))?;
        if let Some(model) = &self.model {
            for (tier, expected) in model.pools.iter().enumerate() {
                let Ok(pool) = self.manager.tiers().pool(tier) else { continue };
                same("free order", &indices(&pool.free_order()), &expected.free)?;
                same("eviction order", &indices(&pool.eviction_order()), &expected.eviction_order())?;
                let stats = pool.stats();
                let sums = (stats.free, stats.cached_free, stats.active, stats.fenced);
                same("sums", &sums, &expected.sums())?;
            }
            for id in 0..=i64::from(LAST_ID) {
                let expected = model.requests.get(&id).map(|request| {
                    let (tokens, table) = (request.tokens.len(), request.blocks.clone());
                    (request.state, request.tier, tokens, request.computed, table)
                });
                same("a request", &self.seen(id), &expected)?;
            }
            same("planned copies", &self.copies(), &model.planned_copies())?;
            same("KV", &model.check_kv(), &Ok(()))?;
        }
        self.replay_events()
    }

    /// Events replayed into a set: with every hash that can be matched, its parent can, as long as prefixes are whole.
    fn replay_events(&mut self) -> Result<(), Failure> {
        for event in self.manager.take_events().events {
            match event {
                BlockEvent::Stored { hash, parent, .. } => {
                    let twice = self.matchable.insert(hash, parent).is_some();
                    holds("events", !twice, || format!("{hash:?} is stored twice"))?;
                }
                BlockEvent::Removed { hash, .. } => {
                    let known = self.matchable.remove(&hash).is_some();
                    holds("events", known, || format!("{hash:?} is removed and was not stored"))?;
                }
                BlockEvent::Cleared { .. } => {
                    self.matchable.clear();
                    self.whole = true;
                }
                _ => {}
            }
        }
        let orphan = self.matchable.values().flatten().find(|parent| !self.matchable.contains_key(*parent));
        // A block whose turn came while a planned copy held it is free when the plan is handed out, and its parent before.
        let settled = self.manager.tiers().num_planned() == 0;
        holds("closedness", !self.whole || !settled || orphan.is_none(), || {
            format!("a block is cached, and its parent {orphan:?} is not: no lookup reaches it")
        })
    }
}

impl Machine for Manager {
    type Setting = Setting;
    type Operation = Operation;

    fn new(setting: &Setting) -> Result<Self, Failure> {
        let Setting { num_blocks, host_blocks, watermark, verify, duplicates, eviction, retention } =
            *setting;
        let watermark = if watermark { 0.2 } else { 0.0 };
        let config = ManagerConfig {
            num_blocks,
            host_blocks,
            block_size: BLOCK_SIZE,
            watermark,
            verify,
            duplicates,
            eviction,
            retention: retention.then(kvpool::retention::RetentionConfig::default),
            ..Default::default()
        };
        let watch = ManagerWatchConfig { event_capacity: 1000, digest: true, ..Default::default() };
        let manager = CacheManager::new(config).and_then(|manager| manager.watched(&watch));
        let manager = manager.map_err(|error| Failure::new("setting", error.to_string()))?;
        let scrubber = ManagerScrubber::default();
        let pool =
            |blocks| ReferencePool::new(blocks, BLOCK_SIZE, duplicates == DuplicatePolicy::DropOnRelease);
        let host = (host_blocks > 0).then(|| pool(host_blocks));
        let model = setting.is_modelled().then(|| ReferenceManager::new(pool(num_blocks), host, watermark));
        Ok(Self { manager, scrubber, model, swaps: Vec::new(), matchable: BTreeMap::new(), whole: true })
    }

    fn apply(&mut self, operation: &Operation, script: &mut Script) -> Result<(), Failure> {
        let before = self.observe();
        if !self.run(operation, script)? {
            same("what a refused call left", &self.observe(), &before)?;
        }
        self.compare()
    }

    fn simpler_settings(setting: &Setting) -> Vec<Setting> {
        let Setting { num_blocks, host_blocks, .. } = *setting;
        let simplest = Setting {
            num_blocks,
            host_blocks: 0,
            watermark: false,
            verify: kvpool::Verify::None,
            duplicates: DuplicatePolicy::Keep,
            eviction: kvpool_policies::LRU,
            retention: false,
        };
        let candidates = [
            simplest.clone(),
            Setting { host_blocks, ..simplest },
            Setting { host_blocks: 0, ..setting.clone() },
            Setting { watermark: false, ..setting.clone() },
            Setting { retention: false, ..setting.clone() },
            Setting { verify: kvpool::Verify::None, ..setting.clone() },
            Setting { duplicates: DuplicatePolicy::Keep, ..setting.clone() },
        ];
        let blocks = (2..num_blocks).map(|num_blocks| Setting { num_blocks, ..setting.clone() });
        candidates.into_iter().filter(|other| other != setting).chain(blocks).collect()
    }

    fn simpler_operations(operation: &Operation) -> Vec<Operation> {
        operation.simpler()
    }

    const ITEMS: &[(&str, &str)] = &[
        ("&block_ids(", "use kvpool_testing::block_ids;\n"),
        ("indices", "use kvpool_testing::indices;\n"),
        ("manager", "use kvpool::*;\n"),
        ("watched(", text::OBSERVE),
        ("prompt(&", PROMPT),
        ("&refs(", REFS),
        ("(table)", TABLE),
        ("closed(", text::CLOSED),
    ];

    fn opening(setting: &Setting) -> Vec<String> {
        let Setting { num_blocks, host_blocks, watermark, verify, duplicates, eviction, retention } =
            *setting;
        let mut fields = text::settings(verify, duplicates, eviction, retention);
        if host_blocks > 0 {
            fields.push_str(&format!("host_blocks: {host_blocks}, "));
        }
        if watermark {
            fields.push_str("watermark: 0.2, ");
        }
        if retention {
            fields.push_str("retention: Some(retention::RetentionConfig::default()), ");
        }
        let watched = text::MANAGER_EVENTS;
        vec![format!(
            "let mut manager = CacheManager::new(ManagerConfig {{ num_blocks: {num_blocks}, block_size: {BLOCK_SIZE}, {fields}..Default::default() }}).unwrap(){watched};"
        )]
    }

    fn closing(&self) -> Vec<String> {
        let mut lines = vec!["manager.check_invariants().unwrap();".to_owned()];
        if self.whole && self.manager.tiers().num_planned() == 0 {
            lines.push("closed(manager.take_events());".into());
        }
        let Some(model) = &self.model else { return lines };
        for (tier, pool) in model.pools.iter().enumerate() {
            let (free, evictable) = (text::list(&pool.free), text::list(&pool.eviction_order()));
            lines.push(format!("let pool = manager.tiers().pool({tier}).unwrap();"));
            lines.push(format!("assert_eq!(indices(&pool.free_order()), {free});"));
            lines.push(format!("assert_eq!(indices(&pool.eviction_order()), {evictable});"));
        }
        for (id, request) in &model.requests {
            let blocks = text::list(&request.blocks);
            lines.push(format!("assert_eq!(indices(manager.block_table({id}).unwrap()), {blocks});"));
        }
        lines
    }
}
