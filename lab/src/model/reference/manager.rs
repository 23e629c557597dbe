//! The reference model of the manager: requests with their block tables, and one reference pool per
//! tier.
//!
//! Every method returns whether it succeeded: `false` or `None` means that the call was refused. A
//! refused call changes nothing. Hints, retention and statistics are not modelled.
//!
//! A commit writes KV. A planned copy is made immediately in the model, because an engine executes the
//! plan before the step writes anything. [`ReferenceManager::check_kv`] checks that every request, and
//! every lookup in every tier, reads the right KV.

use std::collections::BTreeMap;

use super::{Kv, ReferencePool};
use kvpool::{Computed, Covered, Loaded, Part, RequestState, Until};

/// The number of a tier, and a block in it.
type Place = (usize, usize);

/// A request of the model. While it is preempted, its table is empty.
#[derive(Clone, Debug, PartialEq)]
pub struct ReferenceRequest {
    /// The state of the request, which determines where its blocks are.
    pub state: RequestState,
    /// The number of the tier that has the request's blocks.
    pub tier: usize,
    /// The cache salt of the request.
    pub salt: Vec<u8>,
    /// The tokens of the prompt, followed by the appended tokens.
    pub tokens: Vec<u32>,
    /// The block table. Entries before a sliding window, whose blocks were released, are 0.
    pub blocks: Vec<usize>,
    /// Number of the request's tokens whose KV is written.
    pub computed: usize,
    /// Number of blocks at the start of the request's table that lookups can find.
    pub published: usize,
    /// Number of leading blocks that were released because a window has moved past them.
    pub trimmed: usize,
    /// Position of the first token after those that a connector loads.
    pub external: Option<usize>,
    /// The positions and ids of blocks that were released because a window moved past them, and that
    /// were registered.
    left: Vec<(usize, usize)>,
    /// The pending release of the request. It takes effect once no swap moves the request and no
    /// connector loads tokens for it.
    leaving: Option<Until>,
    epoch: u64,
}

impl ReferenceRequest {
    fn new(tokens: &[u32], salt: &[u8]) -> Self {
        Self {
            state: RequestState::Preempted,
            tier: 0,
            salt: salt.to_vec(),
            tokens: tokens.to_vec(),
            blocks: Vec::new(),
            computed: 0,
            published: 0,
            trimmed: 0,
            external: None,
            left: Vec::new(),
            leaving: None,
            epoch: 0,
        }
    }
}

/// One operation of a step plan, as the model executes it.
#[derive(Clone, Debug, PartialEq)]
pub enum ReferenceStep {
    /// A new request: its id, tokens and salt, the part of the prompt to allocate blocks for, and the
    /// number of cached tokens that the plan uses.
    Admit(i64, Vec<u32>, Vec<u8>, Part, usize),
    /// Resumes a preempted request: its id, the part of the prompt to allocate blocks for, and the
    /// number of cached tokens that the plan uses.
    Resume(i64, Part, usize),
    /// Appends tokens to a running or preempted request. The next two fields ask for room for more
    /// tokens, or for a total number of tokens. The last field states whether the plan overwrites
    /// registered blocks in place.
    Append(i64, Vec<u32>, usize, Option<usize>, bool),
    /// Preempts a running request. The second field is the condition under which its blocks become
    /// allocatable.
    Preempt(i64, Until),
    /// Ends a request.
    Release(i64, Until),
}

/// What a planned operation returns when its plan is committed.
#[derive(Clone, Debug, PartialEq)]
pub enum ReferenceOutcome {
    /// For an admission or resumption: the block table, and the number of its blocks that were cached.
    Admitted(Vec<usize>, usize),
    /// For an append: the changed positions of the block table, with their new blocks.
    Appended(Vec<(usize, usize)>),
    /// For a preemption: the request has released its blocks.
    Ended,
}

/// The move of one block: source, destination, references, whether its KV is copied, and whether its
/// content becomes that of the destination.
#[derive(Clone, Debug)]
struct Moved {
    src: usize,
    dst: usize,
    references: usize,
    copied: bool,
    registered: bool,
}

#[derive(Clone, Debug)]
struct Swap {
    ids: Vec<i64>,
    to: usize,
    moved: Vec<Moved>,
    taken: bool,
}

/// The manager's reference model.
#[derive(Clone, Debug)]
pub struct ReferenceManager {
    /// The device's pool, followed by the host's pool if there is a host tier.
    pub pools: Vec<ReferencePool>,
    /// The requests of the manager, by id.
    pub requests: BTreeMap<i64, ReferenceRequest>,
    watermark: f64,
    block_size: usize,
    /// Planned copies: source, destination, and the swap to which they belong.
    planned: Vec<(Place, Place, Option<u64>)>,
    swaps: BTreeMap<u64, Swap>,
    next_swap: u64,
    /// Number of times that the weights of the simulated model changed. Each reset and each new epoch
    /// changes them.
    weights: u64,
}

impl ReferenceManager {
    /// Creates a manager without requests over a device pool and an optional host pool.
    #[must_use]
    pub fn new(pool: ReferencePool, host: Option<ReferencePool>, watermark: f64) -> Self {
        let block_size = pool.block_size;
        let pools = std::iter::once(pool).chain(host).collect();
        let (requests, planned, swaps) = (BTreeMap::new(), Vec::new(), BTreeMap::new());
        Self { pools, requests, watermark, block_size, planned, swaps, next_swap: 0, weights: 0 }
    }

    /// Returns the reference pool of the device.
    #[must_use]
    pub fn device(&self) -> &ReferencePool {
        &self.pools[0]
    }

    /// Returns whether the request with this id exists and is in this state.
    #[must_use]
    pub fn is(&self, id: i64, state: RequestState) -> bool {
        self.requests.get(&id).is_some_and(|request| request.state == state)
    }

    fn reserve(&self) -> usize {
        let active = [RequestState::Running, RequestState::Loading];
        let running = self.requests.values().any(|request| active.contains(&request.state));
        let share = (self.watermark * (self.device().num_blocks() - 1) as f64) as usize;
        if running { share } else { 0 }
    }

    /// Looks up the cached prefix of a prompt and acquires at most `most` of its blocks.
    fn look_up(&mut self, request: &ReferenceRequest, most: usize) -> Vec<usize> {
        self.pools[0].lookup(&request.salt, &request.tokens, most, true)
    }

    /// Returns the number of blocks of a prompt's longest hit. At least the last token must remain to
    /// be computed.
    fn longest(&self, request: &ReferenceRequest, part: Part) -> usize {
        let most = request.tokens.len().saturating_sub(1) / self.block_size;
        self.clone().look_up(request, if part.compute_all { 0 } else { most }).len()
    }

    /// Returns the number of blocks of an admission with this number of cached tokens. The blocks cover
    /// the cached or external tokens and the part after them that is admitted.
    fn blocks_of(&self, tokens: usize, cached: usize, part: Part) -> usize {
        let ready = (cached * self.block_size).max(part.external_tokens);
        let covered = part.allocate_tokens.map_or(tokens, |chunk| tokens.min(ready + chunk));
        covered.div_ceil(self.block_size)
    }

    /// Allocates blocks after an acquired match. Returns the number of blocks that were cached.
    fn install(
        &mut self,
        id: i64,
        mut request: ReferenceRequest,
        found: Vec<usize>,
        part: Part,
    ) -> Option<usize> {
        let cached = found.len();
        let missing = self.blocks_of(request.tokens.len(), cached, part) - cached;
        request.blocks = found;
        request.blocks.extend(self.pools[0].allocate(missing)?);
        (request.published, request.computed) = (cached, cached * self.block_size);
        request.external = Some(part.external_tokens).filter(|&end| end > request.computed);
        let loads = request.external.is_some();
        request.state = if loads { RequestState::Loading } else { RequestState::Running };
        request.epoch = self.device().epoch;
        self.requests.insert(id, request);
        Some(cached)
    }

    /// Admits a request with a hit of at most `most` blocks, and allocates the other blocks. Works on a
    /// copy of the model, so a call that does not fit changes nothing.
    fn place_behind(
        &mut self,
        id: i64,
        request: &ReferenceRequest,
        part: Part,
        most: usize,
    ) -> Option<usize> {
        let mut changed = self.clone();
        let found = changed.look_up(request, most);
        let missing = self.blocks_of(request.tokens.len(), found.len(), part) - found.len();
        if missing > 0 && missing + self.reserve() > changed.device().available() {
            return None;
        }
        let cached = changed.install(id, request.clone(), found, part)?;
        *self = changed;
        Some(cached)
    }

    /// Like the method `place_behind`, with the longest hit for which enough blocks are available. That
    /// may be a hit of no blocks.
    fn place(&mut self, id: i64, request: &ReferenceRequest, part: Part) -> Option<usize> {
        if part.external_tokens >= request.tokens.len() {
            return None;
        }
        let longest = self.longest(request, part);
        (0..=longest).rev().find_map(|most| self.place_behind(id, request, part, most))
    }

    /// Admits a request. Returns the number of cached blocks.
    pub fn admit(&mut self, id: i64, tokens: &[u32], salt: &[u8], part: Part) -> Option<usize> {
        if tokens.is_empty() || self.requests.contains_key(&id) {
            return None;
        }
        self.place(id, &ReferenceRequest::new(tokens, salt), part)
    }

    /// Resumes a preempted request. Returns the number of cached blocks.
    pub fn resume(&mut self, id: i64, part: Part) -> Option<usize> {
        if !self.is(id, RequestState::Preempted) {
            return None;
        }
        self.place(id, &self.requests[&id].clone(), part)
    }

    /// Returns the result that an admission would have: the blocks of its hit, and the largest chunk
    /// that fits after it. Tries all lengths. If the admission is refused, returns the longest hit with
    /// room for one more token, or the longest hit if there is none.
    #[must_use]
    pub fn fit(&self, tokens: &[u32], salt: &[u8], part: Part) -> (usize, usize) {
        let request = ReferenceRequest::new(tokens, salt);
        let longest = self.longest(&request, part);
        let fitting = |most: usize| {
            let fits = |&chunk: &usize| {
                let part = Part { allocate_tokens: Some(chunk), ..part };
                self.clone().place_behind(i64::MAX, &request, part, most).is_some()
            };
            let ready = (most * self.block_size).max(part.external_tokens);
            (0..=tokens.len() - ready).filter(fits).max().unwrap_or(0)
        };
        let placed = self.clone().place(i64::MAX, &request, part);
        let refused = || (0..=longest).rev().find(|&most| fitting(most) > 0).unwrap_or(longest);
        let cached = placed.unwrap_or_else(refused);
        (cached, fitting(cached))
    }

    /// Returns the number of token slots that the table has to cover after an append of `more` tokens,
    /// if the caller asks for `asked` slots in total. New tokens that fit into existing blocks always
    /// count.
    fn slots(&self, request: &ReferenceRequest, more: usize, asked: usize) -> usize {
        asked.max((request.tokens.len() + more).min(request.blocks.len() * self.block_size))
    }

    /// Returns the positions in the table of the existing blocks that the next tokens are written to:
    /// those with slots after the last token.
    fn touched(&self, request: &ReferenceRequest, slots: usize) -> std::ops::Range<usize> {
        self.touched_after(request, request.tokens.len(), slots)
    }

    /// Like the method `touched`, but the slots begin after a given number of tokens.
    fn touched_after(
        &self,
        request: &ReferenceRequest,
        tokens: usize,
        slots: usize,
    ) -> std::ops::Range<usize> {
        let first = (tokens / self.block_size).min(request.blocks.len());
        let end = slots.div_ceil(self.block_size).min(request.blocks.len());
        if slots > tokens { first..end.max(first) } else { first..first }
    }

    fn missing(&self, request: &ReferenceRequest, slots: usize) -> usize {
        slots.div_ceil(self.block_size).saturating_sub(request.blocks.len())
    }

    /// Returns the number of blocks that an append allocates, and how many of them are avoidable:
    /// copies of registered blocks that no other request holds. For each block, `given_up` contains the
    /// number of references that earlier requests of the batch give up because they copy the block.
    fn needed(&self, id: i64, slots: usize, given_up: &mut BTreeMap<usize, usize>) -> (usize, usize) {
        let request = &self.requests[&id];
        let (mut needed, mut avoidable) = (self.missing(request, slots), 0);
        for &block in &request.blocks[self.touched(request, slots)] {
            let given_up = given_up.entry(block).or_default();
            let alone = self.device().users(block) - *given_up == 1;
            if !alone || self.device().is_registered(block) {
                *given_up += 1;
                needed += 1;
                avoidable += usize::from(alone);
            }
        }
        (needed, avoidable)
    }

    /// Returns the maximum number of tokens of a request that the engine may report as computed. Slots
    /// after the request's last token only count if no other request holds their block.
    fn computable(&self, request: &ReferenceRequest) -> usize {
        let covered = request.blocks.len() * self.block_size;
        let is_own = |&slot: &usize| {
            let block = request.blocks[slot / self.block_size];
            self.device().users(block) == 1 && !self.device().is_registered(block)
        };
        let tokens = request.tokens.len();
        (tokens..covered).take_while(is_own).last().map_or(tokens.min(covered), |last| last + 1)
    }

    /// Returns whether enough blocks are available for an append that needs `needed` blocks, and
    /// whether copies have to be avoided for that. `avoidable` is the number of copies that can be
    /// avoided.
    fn can_grow(&self, needed: usize, avoidable: usize) -> Option<bool> {
        let available = self.device().available();
        (needed - avoidable <= available).then_some(needed > available)
    }

    /// Appends tokens to several requests. Running requests get blocks. Returns the changes of the
    /// block tables, each as request (row), position and block.
    pub fn append_ragged(
        &mut self,
        rows: &[(i64, Vec<u32>)],
        computed: Computed<'_>,
        covered: Covered<'_>,
    ) -> Option<Vec<(usize, usize, usize)>> {
        self.append_rows(rows, computed, covered, None)
    }

    /// Like the method `append_ragged`. If a step's plan has already decided whether cached content is
    /// overwritten in place, that decision is passed.
    fn append_rows(
        &mut self,
        rows: &[(i64, Vec<u32>)],
        computed: Computed<'_>,
        covered: Covered<'_>,
        in_place: Option<bool>,
    ) -> Option<Vec<(usize, usize, usize)>> {
        let twice = |at: usize| rows[..at].iter().any(|(other, _)| *other == rows[at].0);
        let appendable = |id| self.is(id, RequestState::Running) || self.is(id, RequestState::Preempted);
        if (0..rows.len()).any(|at| twice(at) || !appendable(rows[at].0)) {
            return None;
        }
        // Returns for each request (row) the number of its slots, and the number of its computed tokens
        // if the call contains it.
        let (mut given_up, mut needed, mut avoidable, mut targets) = (BTreeMap::new(), 0, 0, Vec::new());
        for (row, (id, tokens)) in rows.iter().enumerate() {
            let request = &self.requests[id];
            let all = request.tokens.len() + tokens.len();
            let asked = match covered {
                Covered::All => all,
                Covered::Lookahead(slots) => all + slots,
                Covered::Each(counts) => counts[row],
            };
            let slots = self.slots(request, tokens.len(), asked);
            let computed = match computed {
                Computed::AllButLast if !tokens.is_empty() => Some(all - 1),
                Computed::Counts(counts) => Some(counts[row]),
                _ => None,
            };
            if request.state == RequestState::Running {
                let computable = self.computable(request).min(all);
                if computed.is_some_and(|n| n < request.computed || n > computable) {
                    return None;
                }
                let needs = self.needed(*id, slots, &mut given_up);
                (needed, avoidable) = (needed + needs.0, avoidable + needs.1);
            }
            targets.push((request.tokens.len(), slots, computed));
        }
        let short = self.can_grow(needed, avoidable)?;
        let in_place = in_place.unwrap_or(short);
        // Commit the computed tokens before blocks are allocated, because their blocks must be in the
        // index when the allocation evicts blocks.
        for ((id, tokens), &(_, _, computed)) in rows.iter().zip(&targets) {
            self.requests.get_mut(id)?.tokens.extend(tokens);
            if let Some(computed) = computed {
                self.commit(*id, computed);
            }
        }
        let mut changes = Vec::new();
        for (row, ((id, _), (before, slots, _))) in rows.iter().zip(targets).enumerate() {
            if self.is(*id, RequestState::Running) {
                let changed = self.grow(*id, before, slots, in_place)?;
                changes.extend(changed.into_iter().map(|(index, block)| (row, index, block)));
            }
        }
        Some(changes)
    }

    /// Appends one token to each of several requests. Returns the changes of the block tables, each as
    /// request (row), position and block.
    pub fn append(&mut self, rows: &[(i64, u32)], commit: bool) -> Option<Vec<(usize, usize, usize)>> {
        let rows: Vec<_> = rows.iter().map(|&(id, token)| (id, vec![token])).collect();
        let computed = if commit { Computed::AllButLast } else { Computed::Nothing };
        self.append_ragged(&rows, computed, Covered::All)
    }

    /// Appends tokens to a request, with room for more. Returns the changes of its block table, each as
    /// position and block.
    pub fn append_tokens(
        &mut self,
        id: i64,
        tokens: &[u32],
        lookahead: usize,
    ) -> Option<Vec<(usize, usize)>> {
        let rows = [(id, tokens.to_vec())];
        let changes = self.append_ragged(&rows, Computed::Nothing, Covered::Lookahead(lookahead))?;
        Some(changes.into_iter().map(|(_, index, block)| (index, block)).collect())
    }

    /// Makes the table of a running request cover a number of token slots. Returns the changes of the
    /// table, each as position and block.
    pub fn extend(&mut self, id: i64, slots: usize) -> Option<Vec<(usize, usize)>> {
        let request = self.requests.get(&id).filter(|_| self.is(id, RequestState::Running))?;
        let (before, slots) = (request.tokens.len(), self.slots(request, 0, slots));
        let (needed, avoidable) = self.needed(id, slots, &mut BTreeMap::new());
        let in_place = self.can_grow(needed, avoidable)?;
        self.grow(id, before, slots, in_place)
    }

    /// Extends the table of a request to a number of slots. The request had `before` tokens before the
    /// call. With `in_place`, cached content that no other request holds is overwritten.
    fn grow(&mut self, id: i64, before: usize, slots: usize, in_place: bool) -> Option<Vec<(usize, usize)>> {
        let mut request = self.requests.get(&id)?.clone();
        let mut changes = Vec::new();
        // The slots of accepted drafts already contain KV.
        for index in self.touched_after(&request, before.max(request.computed), slots) {
            let block = request.blocks[index];
            if self.device().users(block) == 1 && in_place {
                self.pools[0].drop_cached(&[block]);
            }
            if self.device().users(block) == 1 && !self.device().is_registered(block) {
                continue;
            }
            request.blocks[index] = self.pools[0].allocate(1)?[0];
            changes.push((index, request.blocks[index]));
            if index * self.block_size < before {
                self.plan_copy((0, block), (0, request.blocks[index]));
            }
            self.pools[0].release(&[block]);
        }
        let missing = self.missing(&request, slots);
        let fresh = self.pools[0].allocate(missing)?;
        changes.extend(fresh.iter().enumerate().map(|(at, &block)| (request.blocks.len() + at, block)));
        request.blocks.extend(fresh);
        self.requests.insert(id, request);
        Some(changes)
    }

    /// Returns the block that contains the content of a given block now. If a planned copy will fill
    /// the given block, the result is the source of the copy.
    fn resolve(&self, place: Place) -> Place {
        self.planned.iter().find(|copy| copy.1 == place).map_or(place, |copy| copy.0)
    }

    fn plan_copy(&mut self, src: Place, dst: Place) {
        self.copy_kv(src, dst);
        let src = self.resolve(src);
        self.pools[src.0].pin(src.1);
        self.pools[dst.0].pin(dst.1);
        self.planned.push((src, dst, None));
    }

    fn copy_kv(&mut self, src: Place, dst: Place) {
        self.pools[dst.0].blocks[dst.1].kv = self.pools[src.0].blocks[src.1].kv.clone();
    }

    /// Compares every slot that a request has computed, and every slot that a lookup may return, with
    /// its expected content.
    ///
    /// # Errors
    /// The first slot with other content. KV that a request computed before a change of weights is no
    /// error for that request.
    pub fn check_kv(&self) -> Result<(), String> {
        for (tier, pool) in self.pools.iter().enumerate() {
            pool.check_kv(self.weights).map_err(|wrong| format!("tier {tier}: {wrong}"))?;
        }
        for (id, request) in &self.requests {
            for at in request.trimmed * self.block_size..request.computed {
                let block = request.blocks[at / self.block_size];
                let found = self.pools[request.tier].blocks[block].kv[at % self.block_size];
                let expected = Kv::of(self.weights, &request.salt, &request.tokens[..=at]);
                let kept = request.epoch != self.device().epoch;
                if found.is_none_or(|kv| kv.prefix != expected.prefix || (kv != expected && !kept)) {
                    return Err(format!("request {id} reads {found:?} for token {at}, not {expected:?}"));
                }
            }
        }
        Ok(())
    }

    /// Returns the copies that are planned and not yet taken by the engine, in order.
    #[must_use]
    pub fn planned_copies(&self) -> Vec<(Place, Place)> {
        self.planned.iter().map(|&(src, dst, _)| (src, dst)).collect()
    }

    /// Returns the planned copies, except for those whose destination is no longer needed, and empties
    /// the plan.
    pub fn take_plan(&mut self) -> Vec<(Place, Place)> {
        let wanted = |(tier, block): Place| {
            let pool = &self.pools[tier];
            pool.holders(block) > 0 || pool.blocks[block].computed
        };
        let plan = self.planned_copies().into_iter().filter(|&(_, dst)| wanted(dst)).collect();
        self.planned.clear();
        self.swaps.values_mut().for_each(|swap| swap.taken = true);
        self.pools.iter_mut().for_each(ReferencePool::unpin);
        plan
    }

    /// Commits computed tokens. Registers the full blocks, unless the epoch has changed since they were
    /// computed or a fork has registered them. Returns the number of registered blocks.
    pub fn commit(&mut self, id: i64, computed: usize) -> Option<usize> {
        if !self.is(id, RequestState::Running) {
            return None;
        }
        let request = self.requests.get_mut(&id)?;
        let covered = request.blocks.len() * self.block_size;
        if computed > request.tokens.len().min(covered) || computed < request.computed {
            return None;
        }
        let before = self.pools[0].registered().0;
        for at in request.computed..computed {
            let block = request.blocks[at / self.block_size];
            let kv = Kv::of(self.weights, &request.salt, &request.tokens[..=at]);
            self.pools[0].blocks[block].kv[at % self.block_size] = Some(kv);
        }
        request.computed = computed;
        if request.epoch == self.pools[0].epoch {
            for at in request.published..computed / self.block_size {
                let block = request.blocks[at..=at].to_vec();
                if !self.pools[0].is_registered(block[0]) {
                    self.pools[0].register(&block, &request.salt, &request.tokens, at);
                    self.pools[0].mark_computed(&block);
                }
            }
            request.published = request.published.max(computed / self.block_size);
        }
        Some(self.pools[0].registered().0 - before)
    }

    /// Commits computed tokens of all given requests, or of none if one of them is refused.
    pub fn commit_batch(&mut self, rows: &[(i64, usize)]) -> Option<usize> {
        let twice = |at: usize| rows[..at].iter().any(|(other, _)| *other == rows[at].0);
        if (0..rows.len()).any(twice) {
            return None;
        }
        let mut changed = self.clone();
        let registered =
            rows.iter().map(|&(id, computed)| changed.commit(id, computed)).sum::<Option<_>>()?;
        *self = changed;
        Some(registered)
    }

    /// Creates a second request that shares the blocks of the first.
    pub fn fork(&mut self, parent: i64, child: i64) -> bool {
        if !self.is(parent, RequestState::Running) || self.requests.contains_key(&child) {
            return false;
        }
        let twin = self.requests[&parent].clone();
        self.pools[0].acquire(&twin.blocks[twin.trimmed..]);
        self.requests.insert(child, twin);
        true
    }

    /// Forks requests. Each row contains a parent request and the id of its child. All parents must be
    /// running before the call.
    pub fn fork_batch(&mut self, rows: &[(i64, i64)]) -> bool {
        let mut changed = self.clone();
        let done = rows.iter().all(|&(parent, _)| self.is(parent, RequestState::Running))
            && rows.iter().all(|&(parent, child)| changed.fork(parent, child));
        if done {
            *self = changed;
        }
        done
    }

    /// Releases all given requests one after another, or none of them.
    pub fn release_batch(&mut self, ids: &[i64], until: Until) -> bool {
        let twice = |at: usize| ids[..at].contains(&ids[at]);
        let mut changed = self.clone();
        let done =
            self.is_sound(until) && (0..ids.len()).all(|at| !twice(at) && changed.release(ids[at], until));
        if done {
            *self = changed;
        }
        done
    }

    /// Shortens several running requests, each to a number of tokens.
    pub fn truncate_batch(&mut self, rows: &[(i64, usize)], until: Until) -> bool {
        let twice = |at: usize| rows[..at].iter().any(|(other, _)| *other == rows[at].0);
        let mut changed = self.clone();
        let done = self.is_sound(until)
            && (0..rows.len()).all(|at| !twice(at) && changed.truncate(rows[at].0, rows[at].1, until));
        if done {
            *self = changed;
        }
        done
    }

    /// Shortens a running request to its first `keep` tokens.
    pub fn truncate(&mut self, id: i64, keep: usize, until: Until) -> bool {
        let size = self.block_size;
        if !self.is_sound(until) {
            return false;
        }
        let Some(request) = self.requests.get_mut(&id).filter(|r| r.state == RequestState::Running) else {
            return false;
        };
        if !((request.trimmed * size).max(1)..=request.tokens.len()).contains(&keep) {
            return false;
        }
        request.tokens.truncate(keep);
        let mut dropped = request.blocks.split_off(keep.div_ceil(size).min(request.blocks.len()));
        dropped.reverse();
        (request.computed, request.published) =
            (request.computed.min(keep), request.published.min(keep / size));
        self.pools[0].release_until_then(&dropped, until)
    }

    /// Releases the blocks of a running request that are before its window. Returns their number.
    pub fn trim(&mut self, id: i64, window: usize) -> Option<usize> {
        let size = self.block_size;
        let request = self.requests.get_mut(&id).filter(|r| r.state == RequestState::Running)?;
        let gone = request.trimmed..(request.computed.saturating_sub(window) / size).max(request.trimmed);
        request.trimmed = gone.end;
        let trimmed: Vec<_> = gone.clone().map(|at| (at, request.blocks[at])).collect();
        request.blocks[gone.clone()].fill(0);
        self.pools[0].release(&trimmed.iter().rev().map(|&(_, block)| block).collect::<Vec<_>>());
        let stays = |&(_, block): &(usize, usize)| self.pools[0].is_registered(block);
        request.left.extend(trimmed.into_iter().filter(stays));
        Some(gone.len())
    }

    /// Returns whether the condition of a release is valid: if it is a fence, the fence must be open.
    fn is_sound(&self, until: Until) -> bool {
        match until {
            Until::Ticket(ticket) => self.device().open_tickets().contains(&ticket.get()),
            _ => true,
        }
    }

    /// Acquires again the blocks that a request released because a window moved past them, if they
    /// still have their content and no references. So they enter the order of eviction together with
    /// the other blocks of the request when these are released.
    fn take_left(&mut self, id: i64) -> Vec<usize> {
        let (pool, request) = (&mut self.pools[0], &self.requests[&id]);
        if request.tier != 0 || request.epoch != pool.epoch {
            return Vec::new();
        }
        let fits = |at: usize| (at + 1) * pool.block_size <= request.tokens.len();
        let is_own = |&&(at, block): &&(usize, usize)| {
            let own = fits(at).then(|| pool.content(&request.salt, &request.tokens, at));
            pool.references(block).0 == 0 && own.is_some() && pool.registered_content(block) == own.as_ref()
        };
        let left: Vec<_> = request.left.iter().filter(is_own).map(|&(_, block)| block).collect();
        left.iter().for_each(|&block| pool.hold(block));
        left
    }

    fn give_up(&mut self, id: i64, until: Until) {
        if !self.requests.contains_key(&id) {
            return;
        }
        let mut blocks: Vec<_> = self.take_left(id).into_iter().rev().collect();
        if self.device().holds_back(until) {
            self.pools[0].release(&blocks);
            blocks.clear();
        }
        let Some(request) = self.requests.get_mut(&id) else { return };
        blocks.extend(request.blocks[request.trimmed..].iter().rev());
        self.pools[request.tier].release_until_then(&blocks, until);
        let ReferenceRequest { tokens, salt, .. } = &*request;
        *request = ReferenceRequest::new(tokens, salt);
    }

    /// Preempts a running or swapped request. Its tokens will be computed again.
    pub fn preempt(&mut self, id: i64, until: Until) -> bool {
        let holds = self.is(id, RequestState::Running) || self.is(id, RequestState::Swapped);
        let done = holds && self.is_sound(until);
        if done {
            self.give_up(id, until);
        }
        done
    }

    /// Ends a request. If a swap moves the request or a connector loads its tokens, records the release
    /// and applies it afterwards.
    pub fn release(&mut self, id: i64, until: Until) -> bool {
        let sound = self.is_sound(until) && !self.is(id, RequestState::Releasing);
        let on_its_way = self.is(id, RequestState::Moving) || self.is(id, RequestState::Loading);
        let Some(request) = self.requests.get_mut(&id).filter(|_| sound) else { return false };
        request.leaving = Some(until);
        if on_its_way {
            request.state = RequestState::Releasing;
        } else {
            self.leave(id);
        }
        true
    }

    /// Ends a request whose release was recorded. If the fence of the release has ended in the
    /// meantime, the blocks are released immediately.
    fn leave(&mut self, id: i64) {
        let until = self.requests[&id].leaving.filter(|&until| self.is_sound(until)).unwrap_or(Until::Now);
        self.give_up(id, until);
        self.requests.remove(&id);
    }

    /// Ends a load: the loaded tokens become computed tokens, and the request is running. Returns the
    /// number of registered blocks.
    pub fn external_done(&mut self, id: i64, loaded: Loaded<'_>) -> Option<usize> {
        let request = self.requests.get_mut(&id)?;
        let end = request.external?;
        let failed = |token: &usize| match loaded {
            Loaded::AllBut(ranges) => ranges.iter().any(|range| range.contains(token)),
            _ => false,
        };
        let usable = match loaded {
            Loaded::First(tokens) => tokens,
            _ => (request.computed..end).find(failed).unwrap_or(end),
        };
        if usable < request.computed || usable > end {
            return None;
        }
        request.external = None;
        if request.leaving.is_some() {
            self.leave(id);
            return Some(0);
        }
        request.state = RequestState::Running;
        self.commit(id, usable)
    }

    /// Opens a fence in every tier. Returns its number.
    pub fn fence(&mut self) -> u64 {
        self.pools.iter_mut().rev().fold(0, |_, pool| pool.fence())
    }

    /// Ends a fence in every tier. Returns the number of references that it held.
    pub fn end_fence(&mut self, ticket: u64) -> Option<usize> {
        self.pools.iter_mut().map(|pool| pool.end_fence(ticket)).sum()
    }

    /// Ends the fences of a step and of earlier ones. Returns the number of references that they held.
    pub fn complete_step(&mut self, step: u64) -> usize {
        self.pools.iter_mut().map(|pool| pool.complete_step(step)).sum()
    }

    /// Removes all cached content in every tier and starts a new epoch.
    pub fn bump_epoch(&mut self) {
        self.weights += 1;
        self.pools.iter_mut().for_each(ReferencePool::bump_epoch);
    }

    /// Removes all cached content in every tier, if no block has a reference. Returns the number of
    /// removed contents.
    pub fn reset(&mut self) -> Option<usize> {
        let is_idle = self.pools.iter().all(ReferencePool::is_idle);
        let registered = self.pools.iter().map(|pool| pool.registered().0).sum();
        is_idle.then(|| {
            self.weights += 1;
            self.pools.iter_mut().for_each(ReferencePool::forget);
            registered
        })
    }

    /// Executes a plan of these operations. First all matches are acquired, then blocks are released,
    /// then blocks are allocated. Returns `None` if an operation does not fit. In that case the
    /// manager's plan was wrong, and the model must not be used any more.
    pub fn commit_step(&mut self, planned: &[ReferenceStep]) -> Option<Vec<ReferenceOutcome>> {
        let mut matched = BTreeMap::new();
        for operation in planned {
            let (id, request, part, most) = match operation {
                ReferenceStep::Admit(id, tokens, salt, part, cached) => {
                    (*id, ReferenceRequest::new(tokens, salt), *part, *cached)
                }
                ReferenceStep::Resume(id, part, cached) => {
                    (*id, self.requests.get(id)?.clone(), *part, *cached)
                }
                _ => continue,
            };
            let found = self.look_up(&request, most / self.block_size);
            matched.insert(id, (request, found, part));
        }
        for operation in planned {
            let done = match *operation {
                ReferenceStep::Preempt(id, until) => self.preempt(id, until),
                ReferenceStep::Release(id, until) => self.release(id, until),
                _ => true,
            };
            if !done {
                return None;
            }
        }
        let outcome = |operation: &ReferenceStep| match operation {
            ReferenceStep::Admit(id, ..) | ReferenceStep::Resume(id, ..) => {
                let (request, found, part) = matched.remove(id)?;
                let cached = self.install(*id, request, found, part)?;
                Some(ReferenceOutcome::Admitted(self.requests[id].blocks.clone(), cached))
            }
            ReferenceStep::Append(id, tokens, lookahead, covered, in_place) => {
                let covered = covered.as_slice();
                let covered =
                    if covered.is_empty() { Covered::Lookahead(*lookahead) } else { Covered::Each(covered) };
                let rows = [(*id, tokens.clone())];
                let changes = self.append_rows(&rows, Computed::Nothing, covered, Some(*in_place))?;
                let changes = changes.into_iter().map(|(_, index, block)| (index, block)).collect();
                Some(ReferenceOutcome::Appended(changes))
            }
            ReferenceStep::Preempt(..) | ReferenceStep::Release(..) => Some(ReferenceOutcome::Ended),
        };
        planned.iter().map(outcome).collect()
    }

    /// Starts to move requests to the host or back to the device. Returns the number of the swap.
    pub fn begin_swap(&mut self, ids: &[i64], out: bool) -> Option<u64> {
        let (state, from, to) =
            if out { (RequestState::Running, 0, 1) } else { (RequestState::Swapped, 1, 0) };
        let twice = (1..ids.len()).any(|at| ids[..at].contains(&ids[at]));
        if self.pools.len() < 2 || ids.is_empty() || twice || !ids.iter().all(|&id| self.is(id, state)) {
            return None;
        }
        let mut moved: Vec<Moved> = Vec::new();
        for &src in ids.iter().map(|id| &self.requests[id]).flat_map(|r| &r.blocks[r.trimmed..]) {
            if let Some(known) = moved.iter_mut().find(|known| known.src == src) {
                known.references += 1;
                continue;
            }
            let content = self.pools[from].content_of(src);
            let found = content.and_then(|content| self.pools[to].find_in_place(content));
            let registered = content.is_some();
            let (dst, copied) = (found.unwrap_or(0), found.is_none());
            moved.push(Moved { src, dst, references: 1, copied, registered });
        }
        let mut changed = self.clone();
        let target = &mut changed.pools[to];
        for known in moved.iter().filter(|known| !known.copied) {
            (0..known.references).for_each(|_| target.hold(known.dst));
        }
        let fresh = moved.iter().filter(|known| known.copied).count();
        if fresh > target.available().saturating_sub(if out { 0 } else { self.reserve() }) {
            return None;
        }
        let mut fresh = target.allocate(fresh)?.into_iter();
        let id = self.next_swap;
        for known in moved.iter_mut().filter(|known| known.copied) {
            known.dst = fresh.next()?;
            changed.pools[to].blocks[known.dst].references = known.references;
            changed.copy_kv((from, known.src), (to, known.dst));
            let src = changed.resolve((from, known.src));
            changed.planned.push((src, (to, known.dst), Some(id)));
        }
        let taken = moved.iter().all(|known| !known.copied);
        changed.next_swap += 1;
        changed.swaps.insert(id, Swap { ids: ids.to_vec(), to, moved, taken });
        for request in changed.requests.iter_mut().filter(|(id, _)| ids.contains(id)) {
            request.1.state = RequestState::Moving;
        }
        *self = changed;
        Some(id)
    }

    /// Completes a swap whose copies the engine has taken. Returns pairs of old and new blocks.
    pub fn complete_swap(&mut self, swap: u64) -> Option<Vec<(usize, usize)>> {
        self.swaps.get(&swap).filter(|swap| swap.taken)?;
        let Swap { ids, to, moved, .. } = self.swaps.remove(&swap)?;
        let from = 1 - to;
        for known in moved.iter().filter(|known| known.copied && known.registered) {
            if let Some(content) = self.pools[from].content_of(known.src).cloned() {
                self.pools[to].register_copy(known.dst, &content);
            }
        }
        self.pools[from].release(&references(&moved, |known| known.src));
        for id in &ids {
            let Some(request) = self.requests.get_mut(id) else { continue };
            for block in &mut request.blocks[request.trimmed..] {
                *block = moved.iter().find(|known| known.src == *block).map_or(*block, |known| known.dst);
            }
            request.tier = to;
            self.arrive(*id);
        }
        Some(moved.iter().map(|known| (known.src, known.dst)).collect())
    }

    /// Aborts a swap.
    pub fn abort_swap(&mut self, swap: u64) -> bool {
        let Some(Swap { ids, to, moved, .. }) = self.swaps.remove(&swap) else { return false };
        self.planned.retain(|copy| copy.2 != Some(swap));
        self.pools[to].release(&references(&moved, |known| known.dst));
        ids.iter().for_each(|&id| self.arrive(id));
        true
    }

    /// Updates the state of a request whose swap is complete. If the request was released during the
    /// swap, ends it.
    fn arrive(&mut self, id: i64) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        request.state = if request.tier == 1 { RequestState::Swapped } else { RequestState::Running };
        if request.leaving.is_some() {
            self.leave(id);
        }
    }

    /// Returns the numbers of the swaps that are not completed yet.
    #[must_use]
    pub fn swaps(&self) -> Vec<u64> {
        self.swaps.keys().copied().collect()
    }
}

/// Returns the source or destination blocks of a swap's moves, last block first, each as often as it
/// has references.
fn references(moved: &[Moved], end: impl Fn(&Moved) -> usize) -> Vec<usize> {
    moved.iter().rev().flat_map(|known| vec![end(known); known.references]).collect()
}
