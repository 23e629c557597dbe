//! Replays traces for hybrid models, which have several KV-cache groups.
//!
//! [`Grouped`] is lookup mode for such a model, and [`Reach`] measures how many tokens each group alone
//! could have served. As with a single group, lookup mode runs requests one after the other, without
//! time. It uses the manager, which implements groups: only full blocks can hit, and the last token of
//! a prompt is always computed.
//!
//! A prompt is computed in chunks, as in a server: blocks that leave a window are released after each
//! chunk, and a chunk ends where a state has to be kept.
//!
//! **Where prompts end.** The next turn of a session continues at the end of the previous prompt, so
//! windows and states are useful mainly there. A trace shows that position only for whole blocks: the
//! partial last block of a prompt has an id of its own, and the next turn, which continues the block,
//! has another id. Therefore prompts end with their last whole block here
//! ([`Form::Named`](super::prefetch::Form)). The rest is computed and not stored. Outputs are omitted,
//! because no prompt of a trace repeats them.

use kvpool::groups::{GroupSpec, Groups, Tokens};
use kvpool::{
    AdmitOptions, CacheManager, HashCursor, InvariantViolation, ManagerError, Part, PoolStats, RequestRef,
    Until,
};
use kvpool_journal::{Journaled, ManagerCalls};

use super::ReplayError;
use super::prefetch::Prefetch;
use super::prefetch::indexed_tokens;
use super::report::{GroupReport, HitCounts, share};
use crate::trace::Trace;

/// For each group, the number of prompt tokens that it could have served alone.
#[derive(Clone, Debug, Default)]
pub(super) struct Reach {
    by_group: Vec<u64>,
}

impl Reach {
    /// Returns how many tokens of a prompt each group could serve alone now. Changes nothing.
    pub(super) fn of(manager: &CacheManager, prompt: &HashCursor) -> Result<Vec<Tokens>, ManagerError> {
        let Some(groups) = manager.groups() else { return Ok(Vec::new()) };
        let limit = Tokens(prompt.num_tokens().saturating_sub(1));
        Ok(manager.pool().reach_of_groups(groups, prompt.chain(), limit)?)
    }

    /// Adds the result of `of` for one request to the sums. Call it only after the request is admitted.
    pub(super) fn add(&mut self, found: &[Tokens]) {
        self.by_group.resize(found.len(), 0);
        self.by_group.iter_mut().zip(found).for_each(|(sum, tokens)| *sum += tokens.0 as u64);
    }

    /// Makes the reports of all groups. `unserved` contains the number of tokens that missed because of
    /// each group. It is `None` if explanations are disabled.
    pub(super) fn report(&self, groups: &Groups, tokens: u64, unserved: Option<&[u64]>) -> Vec<GroupReport> {
        let reach = self.by_group.iter().copied().chain(std::iter::repeat(0));
        let report = |(group, (spec, reach_tokens)): (usize, (&GroupSpec, u64))| {
            let (kind, span, block_tokens) = (spec.kind.name(), spec.kind.span(), spec.block_tokens);
            let reach_rate = share(reach_tokens, tokens);
            let unserved_tokens = unserved.map(|unserved| unserved.get(group).copied().unwrap_or(0));
            GroupReport { kind, span, block_tokens, reach_tokens, reach_rate, unserved_tokens }
        };
        groups.specs().iter().zip(reach).enumerate().map(report).collect()
    }
}

#[derive(Debug)]
pub(super) struct Grouped {
    pub(super) manager: Journaled<CacheManager>,
    /// The maximum number of prompt tokens that are computed at a time.
    chunk: usize,
    done: usize,
    pub(super) hits: HitCounts,
    pub(super) last_half: HitCounts,
    pub(super) reach: Reach,
    /// The number of prompts of which the pool could store only a part.
    pub(super) cut_short: u64,
}

impl Grouped {
    pub(super) fn new(manager: Journaled<CacheManager>, chunk: usize) -> Self {
        Self {
            manager,
            chunk,
            done: 0,
            hits: HitCounts::default(),
            last_half: HitCounts::default(),
            reach: Reach::default(),
            cut_short: 0,
        }
    }

    pub(super) fn advance(
        &mut self,
        trace: &Trace,
        prompts: &mut Prefetch,
        requests: usize,
    ) -> Result<usize, ReplayError> {
        let all = trace.requests().len();
        for index in self.done..all.min(self.done.saturating_add(requests)) {
            let prompt = prompts.next()?;
            let found = Reach::of(&self.manager, &prompt)?;
            let cached = self.run(index as i64, prompt)?;
            self.reach.add(&found);
            let request = &trace.requests()[index];
            let (tokens, unit) = (u64::from(request.input_length), self.manager.pool().block_size());
            let indexed = indexed_tokens(request, trace.block_tokens());
            self.hits.add(tokens, indexed, (cached / unit) as u64, unit as u64);
            if index >= all / 2 {
                self.last_half.add(tokens, indexed, (cached / unit) as u64, unit as u64);
            }
            self.done = index + 1;
        }
        Ok(self.done)
    }

    /// Admits, computes and releases one request. Returns the number of its cached tokens.
    fn run(&mut self, id: i64, prompt: HashCursor) -> Result<usize, ReplayError> {
        let tokens = prompt.num_tokens();
        let part = Part { allocate_tokens: Some(0), ..Part::WHOLE };
        let options = AdmitOptions { part, ..AdmitOptions::default() };
        let admission = match self.manager.admit(id.into(), prompt, &options) {
            Ok(admission) => admission,
            Err(refused) => match refused.error {
                // The prompt has no whole block, so it has no hit.
                ManagerError::EmptyPrompt { .. } => return Ok(0),
                // The pool has fewer blocks than the states of all groups need.
                ManagerError::OutOfBlocks(_) => {
                    self.cut_short += 1;
                    return Ok(0);
                }
                error => return Err(error.into()),
            },
        };
        let request = RequestRef::Int(id);
        let mut computed = admission.cached_tokens;
        let mut chunk = self.chunk;
        while computed < tokens {
            let end = tokens.min(computed.saturating_add(chunk));
            let end = self.manager.next_checkpoint(request)?.map_or(end, |checkpoint| end.min(checkpoint));
            match self.manager.extend(request, end) {
                Ok(_) => {}
                // Try again with smaller chunks, down to one block.
                Err(ManagerError::OutOfBlocks(_)) if chunk > self.manager.pool().block_size() => {
                    chunk /= 2;
                    continue;
                }
                Err(ManagerError::OutOfBlocks(_)) => {
                    self.cut_short += 1;
                    break;
                }
                Err(error) => return Err(error.into()),
            }
            self.manager.commit(request, end)?;
            // Take and drop the plan for the copies of states. An engine would execute it, but a replay
            // has no bytes to copy.
            self.manager.take_plan()?;
            computed = end;
        }
        self.manager.release(request, Until::Now)?;
        Ok(admission.cached_tokens)
    }

    pub(super) fn pool_stats(&self) -> PoolStats {
        self.manager.stats().pool
    }

    pub(super) fn check_invariants(&self) -> Result<(), InvariantViolation> {
        self.manager.check_invariants()
    }
}
