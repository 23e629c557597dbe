//! The life of requests: admission, decode steps, prefill in chunks, drafts, forks, roll-back, windows, preemption, the end.

use kvpool::{Admission, HashCursor, RequestRef, RequestState};

use super::books::Entry;
use super::content::{extra_keys, next_tag, root_tag, token};
use super::driver::Driver;
use super::meter::{Meter, Operation};
use super::{Wrong, ensure};

/// Requests of a decode step.
const BATCH: usize = 32;

/// Tokens of a chunk of prefill.
const CHUNK: usize = 512;

impl Driver {
    /// Hashes the drawn prompt.
    pub(super) fn prepare(&self, identity: u64, meter: &mut Meter) -> Result<HashCursor, Wrong> {
        let extra = extra_keys(identity);
        Ok(meter.time(Operation::Prepare, || self.manager.prepare(&self.tokens, extra))?)
    }

    pub(super) fn admit(&mut self, meter: &mut Meter) -> Result<(), Wrong> {
        let drawn = self.library.draw(&mut self.chance, &mut self.tokens);
        let cursor = self.prepare(drawn.identity, meter)?;
        let probe = self
            .chance
            .percent(30)
            .then(|| meter.time(Operation::Probe, || self.manager.probe(&cursor)))
            .transpose()?;
        let id = self.fresh_id();
        let hints = self.request_hints(drawn);
        let before = self.observe(false);
        let name = id.clone();
        let (result, time) = if hints.has_hints() {
            Meter::clock(|| self.manager.admit_with(name, cursor, &hints))
        } else {
            Meter::clock(|| self.manager.admit(name, cursor))
        };
        let hinted = if hints.has_hints() { Operation::AdmitWith } else { Operation::Admit };
        meter.count(if result.is_ok() { hinted } else { Operation::AdmitRefused }, time);
        match result {
            Ok(admission) => {
                let same = probe.is_none_or(|probe| probe.cached_blocks == admission.cached_blocks);
                ensure(same, || format!("{probe:?} was probed, {admission:?} admitted"))?;
                let (tags, weights) = (self.tags(drawn.identity), self.weights);
                let entry =
                    Entry::new(id, drawn.identity, weights, drawn.stream, tags, admission.cached_tokens);
                self.seat_new(entry, &admission)
            }
            Err(refused) => {
                self.books.expected.refusals += 1;
                let whole = refused.cursor.num_tokens() == self.tokens.len();
                ensure(whole, || "a refused admission handed back another prompt".into())?;
                self.out_of_blocks(&before, &refused.error)
            }
        }
    }

    /// Books a new request.
    pub(super) fn seat_new(&mut self, entry: Entry, admission: &Admission) -> Result<(), Wrong> {
        let expected = &mut self.books.expected;
        expected.admissions += 1;
        expected.prompt_tokens += entry.tags.len() as u64;
        expected.hit_tokens += admission.cached_tokens as u64;
        let key = self.books.enter(entry);
        self.check_seat(key, admission)
    }

    /// Checks what a request got: cached blocks hold its own prefix, the others are nobody else's.
    pub(super) fn check_seat(&mut self, key: usize, admission: &Admission) -> Result<(), Wrong> {
        let entry = self.books.get(key)?;
        let Admission { cached_tokens, cached_blocks, block_ids, .. } = admission;
        let tokens = entry.tags.len();
        let block_size = self.block_size();
        let sound = *cached_tokens == cached_blocks * block_size
            && *cached_tokens < tokens
            && block_ids.len() == tokens.div_ceil(block_size);
        ensure(sound, || format!("request {} with {tokens} tokens got {admission:?}", entry.id))?;
        self.store
            .read_back(0, block_ids, &entry.tags, *cached_tokens, entry.weights, false)
            .map_err(|Wrong(what)| Wrong(format!("request {} hit a block, but {what}", entry.id)))?;
        let pool = self.pool();
        for &block in &block_ids[*cached_blocks..] {
            let alone = pool.ref_count(block) == Some(1) && !pool.is_registered(block);
            ensure(alone, || {
                let references = pool.ref_count(block);
                format!("request {} was given block {block}, which has {references:?} references", entry.id)
            })?;
        }
        block_ids[*cached_blocks..].iter().for_each(|&block| self.store.wipe(0, block));
        let last = block_ids.last().map_or(0, |block| block.get());
        self.note(u64::from(last) << 32 | *cached_tokens as u64);
        Ok(())
    }

    /// Hands planned copies out and makes them: before any KV is written.
    pub(super) fn settle_copies(&mut self, meter: &mut Meter) -> Result<(), Wrong> {
        if self.manager.tiers().num_planned() > 0 { self.take_plan(meter) } else { Ok(()) }
    }

    /// Writes the KV of a request's tokens up to `to`, which are not computed yet.
    pub(super) fn compute(&mut self, key: usize, to: usize) -> Result<(), Wrong> {
        let entry = self.books.get(key)?;
        let table = self.manager.block_table(&entry.id)?;
        self.store.write(table, &entry.tags, entry.computed, to, entry.weights);
        Ok(())
    }

    /// A decode step: some running requests get a token each.
    pub(super) fn decode(&mut self, meter: &mut Meter) -> Result<(), Wrong> {
        let commit_first = self.chance.percent(75);
        let running = self.books.in_state(RequestState::Running);
        let start = self.chance.below(running.len());
        let mut keys = Vec::with_capacity(BATCH);
        for nth in 0..running.len().min(BATCH) {
            let key = running[(start + nth) % running.len()];
            let entry = self.books.get(key)?;
            // What has a prompt to compute does that in chunks.
            if !commit_first || entry.tags.len() - entry.computed <= CHUNK / 4 {
                keys.push(key);
            }
        }
        if commit_first {
            self.settle_copies(meter)?;
            for &key in &keys {
                self.compute(key, self.books.get(key)?.tags.len())?;
            }
        }
        let entries = keys.iter().map(|&key| self.books.get(key)).collect::<Result<Vec<_>, _>>()?;
        let ids: Vec<RequestRef<'_>> = entries.iter().map(|entry| entry.id.as_ref()).collect();
        let tokens: Vec<_> = entries.iter().map(|entry| token(entry.stream, entry.tags.len())).collect();
        let before = self.observe(false);
        let computed = if commit_first { kvpool::Computed::AllButLast } else { kvpool::Computed::Nothing };
        let (result, time) = Meter::clock(|| self.manager.append(&ids, &tokens, computed));
        meter.count(if result.is_ok() { Operation::Append } else { Operation::AppendRefused }, time);
        let changes = match result {
            Ok(changes) => changes,
            Err(error) => {
                self.out_of_blocks(&before, &error)?;
                return self.make_room(meter);
            }
        };
        for change in &changes {
            let table = self.manager.block_table(ids[change.row])?;
            let there = table.get(change.index) == Some(&change.block);
            ensure(there, || format!("{change:?} of {} is not in {table:?}", ids[change.row]))?;
            self.store.wipe(0, change.block);
        }
        for (&key, &token) in keys.iter().zip(&tokens) {
            self.extend(key, &[token], commit_first)?;
        }
        self.note(changes.len() as u64);
        for key in keys {
            if self.books.get(key)?.tags.len() > 2 * self.library.longest() {
                self.end_request(key, meter)?;
            }
        }
        Ok(())
    }

    /// Books appended tokens.
    pub(super) fn extend(&mut self, key: usize, tokens: &[u32], commit_first: bool) -> Result<(), Wrong> {
        let entry = self.books.get_mut(key)?;
        if commit_first {
            entry.computed = entry.tags.len();
        }
        for &token in tokens {
            let before = entry.tags.last().copied().unwrap_or(root_tag(entry.identity));
            entry.tags.push(next_tag(before, token));
        }
        self.books.expected.appended_tokens += tokens.len() as u64;
        Ok(())
    }

    /// After a refusal: the request that came last gives way.
    fn make_room(&mut self, meter: &mut Meter) -> Result<(), Wrong> {
        let Some(&last) = self.books.in_state(RequestState::Running).last() else { return Ok(()) };
        if self.chance.percent(50) {
            self.preempt_one(last, meter)
        } else {
            self.swap_out_group(&[last], meter)
        }
    }

    /// Chunks of prompts are computed and committed.
    pub(super) fn prefill(&mut self, meter: &mut Meter) -> Result<(), Wrong> {
        let (mut keys, mut ends) = (Vec::new(), Vec::new());
        for _ in 0..6 {
            let Some(key) = self.pick(RequestState::Running) else { break };
            let entry = self.books.get(key)?;
            if entry.computed < entry.tags.len() && !keys.contains(&key) {
                ends.push(entry.tags.len().min(entry.computed + CHUNK));
                keys.push(key);
            }
        }
        self.settle_copies(meter)?;
        for (&key, &end) in keys.iter().zip(&ends) {
            self.compute(key, end)?;
        }
        if keys.len() > 1 && self.chance.percent(50) {
            let entries = keys.iter().map(|&key| self.books.get(key)).collect::<Result<Vec<_>, _>>()?;
            let ids: Vec<_> = entries.iter().map(|entry| entry.id.as_ref()).collect();
            let registered = meter.time(Operation::CommitBatch, || self.manager.commit_batch(&ids, &ends))?;
            self.note(registered as u64);
        } else {
            for (&key, &end) in keys.iter().zip(&ends) {
                let id = self.books.get(key)?.id.as_ref();
                let registered = meter.time(Operation::Commit, || self.manager.commit(id, end))?;
                self.note(registered as u64);
            }
        }
        for (&key, &end) in keys.iter().zip(&ends) {
            self.books.get_mut(key)?.computed = end;
        }
        Ok(())
    }

    /// Drafts are appended, computed, and in part rejected.
    pub(super) fn speculate(&mut self, meter: &mut Meter) -> Result<(), Wrong> {
        let Some(key) = self.pick(RequestState::Running) else { return Ok(()) };
        let (drafts, lookahead) = (self.chance.between(1, 6), self.chance.below(9));
        let entry = self.books.get(key)?;
        let (stream, tokens) = (entry.stream, entry.tags.len());
        let drafted: Vec<_> = (tokens..tokens + drafts).map(|position| token(stream, position)).collect();
        let before = self.observe(false);
        let id = self.books.get(key)?.id.as_ref();
        let (result, time) = Meter::clock(|| self.manager.append_tokens(id, &drafted, lookahead));
        meter.count(if result.is_ok() { Operation::AppendTokens } else { Operation::AppendRefused }, time);
        let changes = match result {
            Ok(changes) => changes,
            Err(error) => return self.out_of_blocks(&before, &error),
        };
        changes.iter().for_each(|change| self.store.wipe(0, change.block));
        self.extend(key, &drafted, false)?;
        self.settle_copies(meter)?;
        let all = tokens + drafts;
        let keep = all - self.chance.below(drafts + 1);
        self.compute(key, all)?;
        // Either way around: only what is accepted is committed, or everything is and some of it taken back.
        if self.chance.percent(50) {
            self.commit_to(key, all, meter)?;
            self.truncate_to(key, keep, meter)
        } else {
            self.truncate_to(key, keep, meter)?;
            self.commit_to(key, keep, meter)
        }
    }

    fn commit_to(&mut self, key: usize, computed: usize, meter: &mut Meter) -> Result<(), Wrong> {
        let id = self.books.get(key)?.id.as_ref();
        let registered = meter.time(Operation::Commit, || self.manager.commit(id, computed))?;
        self.books.get_mut(key)?.computed = computed;
        self.note(registered as u64);
        Ok(())
    }

    fn truncate_to(&mut self, key: usize, keep: usize, meter: &mut Meter) -> Result<(), Wrong> {
        let id = self.books.get(key)?.id.as_ref();
        meter.time(Operation::Truncate, || self.manager.truncate(id, keep, None))?;
        // What comes next is mostly something else than what was rejected.
        let stream = self.chance.percent(70).then(|| self.library.fresh_stream());
        let entry = self.books.get_mut(key)?;
        if keep < entry.tags.len() {
            entry.stream = stream.unwrap_or(entry.stream);
        }
        entry.tags.truncate(keep);
        entry.computed = entry.computed.min(keep);
        Ok(())
    }

    pub(super) fn fork(&mut self, meter: &mut Meter) -> Result<(), Wrong> {
        let Some(key) = self.pick(RequestState::Running) else { return Ok(()) };
        for _ in 0..self.chance.between(1, 3) {
            let (id, stream) = (self.fresh_id(), self.library.fresh_stream());
            let child = self.books.get(key)?.child(id, stream);
            let (parent, name) = (self.books.get(key)?.id.as_ref(), child.id.clone());
            meter.time(Operation::Fork, || self.manager.fork(parent, name))?;
            self.books.enter(child);
            self.books.expected.forks += 1;
        }
        Ok(())
    }

    /// Takes back some tokens of an answer.
    pub(super) fn truncate(&mut self, meter: &mut Meter) -> Result<(), Wrong> {
        let Some(key) = self.pick(RequestState::Running) else { return Ok(()) };
        let (back, block_size) = (self.chance.between(0, 40), self.block_size());
        let entry = self.books.get(key)?;
        let keep = entry.tags.len().saturating_sub(back).max(entry.trimmed * block_size).max(1);
        self.truncate_to(key, keep, meter)
    }

    pub(super) fn trim(&mut self, meter: &mut Meter) -> Result<(), Wrong> {
        let Some(key) = self.pick(RequestState::Running) else { return Ok(()) };
        let window = self.chance.between(16, self.library.longest());
        let entry = self.books.get(key)?;
        let expected =
            (entry.computed.saturating_sub(window) / self.block_size()).saturating_sub(entry.trimmed);
        let trimmed = meter.time(Operation::Trim, || self.manager.trim_window(entry.id.as_ref(), window))?;
        ensure(trimmed == expected, || {
            format!("a window of {window} trimmed {trimmed} blocks of {}, expected {expected}", entry.id)
        })?;
        self.books.get_mut(key)?.trimmed += trimmed;
        Ok(())
    }

    pub(super) fn resume(&mut self, meter: &mut Meter) -> Result<(), Wrong> {
        let Some(key) = self.pick(RequestState::Preempted) else { return Ok(()) };
        let before = self.observe(false);
        let id = self.books.get(key)?.id.as_ref();
        let (result, time) = Meter::clock(|| self.manager.resume(id));
        meter.count(if result.is_ok() { Operation::Resume } else { Operation::ResumeRefused }, time);
        match result {
            Ok(admission) => self.seat_again(key, &admission),
            Err(error) => {
                self.books.expected.refusals += 1;
                self.out_of_blocks(&before, &error)
            }
        }
    }

    /// Books a request that runs again.
    pub(super) fn seat_again(&mut self, key: usize, admission: &Admission) -> Result<(), Wrong> {
        self.books.set_state(key, RequestState::Running)?;
        let weights = self.weights;
        let entry = self.books.get_mut(key)?;
        (entry.weights, entry.computed) = (weights, admission.cached_tokens);
        let tokens = entry.tags.len() as u64;
        let expected = &mut self.books.expected;
        expected.resumptions += 1;
        expected.resumed_tokens += tokens;
        expected.resumed_hit_tokens += admission.cached_tokens as u64;
        self.check_seat(key, admission)
    }
}
