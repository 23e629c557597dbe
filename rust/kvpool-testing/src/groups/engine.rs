//! The engine: its layers read and write cells token by token, and its connector writes external tokens.

use super::{
    Admission, BlockId, Computed, Covered, GroupKind, Kv, Loaded, ManagerError, Part, Place, RequestRef,
    RequestState, Rows, World,
};
use kvpool::groups::{GroupSpec, Keep};

/// The engine's own record of a request.
#[derive(Clone, Debug, Default)]
pub(super) struct Engine {
    pub(super) tokens: Vec<u32>,
    /// Tokens that a draft model proposes. The engine has written their KV and states.
    pub(super) drafts: Vec<u32>,
    /// Number of tokens whose KV and states are written, committed or not.
    pub(super) progress: usize,
    pub(super) committed: usize,
    /// Number of slots that the engine may write.
    pub(super) covered: usize,
    /// The weights that its KV was computed with.
    pub(super) weights: u64,
    /// Numbers of tokens at growths with slots for drafts that no commit has reached.
    pub(super) drafting: Vec<usize>,
    /// The request has lost tokens after such a growth.
    pub(super) is_cut: bool,
    /// By group: the first token that was computed or loaded for this request, if the group caches nothing;
    /// else 0.
    pub(super) from: Vec<usize>,
}

impl Engine {
    /// How many computed tokens the engine commits. A number between two steps would mean accepted drafts of
    /// the first one, and all tokens after a truncation would mean that the request has kept those.
    pub(super) fn committable(&self, computed: usize) -> usize {
        let oldest = self.drafting.first().copied().unwrap_or(computed);
        let all = self.tokens.len() + usize::from(self.is_cut);
        if (oldest..all).contains(&computed) { oldest } else { computed }
    }

    pub(super) fn commit(&mut self, computed: usize) {
        self.committed = computed;
        self.drafting.retain(|&tokens| tokens > computed);
        self.is_cut &= !self.drafting.is_empty();
    }

    /// Loses all tokens but the first ones, and its drafts.
    pub(super) fn truncate(&mut self, tokens: usize) {
        self.tokens.truncate(tokens);
        self.drafts.clear();
        self.drafting.retain(|&at| at < tokens);
        self.is_cut = !self.drafting.is_empty();
    }

    /// The tables cover `slots`.
    pub(super) fn grow(&mut self, slots: usize) {
        self.covered = self.covered.max(slots);
        if slots > self.tokens.len() {
            self.drafting.push(self.tokens.len());
        }
    }

    /// Rejects all drafts. The engine has to ask for slots of drafts again.
    pub(super) fn forget_drafts(&mut self) {
        self.drafts.clear();
        self.covered = self.covered.min(self.tokens.len());
    }
}

/// Whether the token at position `at` reads the one at position `read`, as models define it.
fn reads(spec: &GroupSpec, at: usize, read: usize) -> bool {
    match spec.kind {
        GroupKind::Full => true,
        GroupKind::Sliding { window } => read + window > at || read < spec.sink_tokens,
        GroupKind::Chunked { chunk } => read >= at / chunk * chunk,
        _ => false,
    }
}

const fn caches(spec: &GroupSpec) -> bool {
    !matches!(spec.keep, Keep::Nothing)
}

impl World {
    pub(super) fn cell(&self, block: BlockId, at: usize) -> Option<Kv> {
        let cells = self.memory.get(&Place { tier: 0, block })?;
        cells.get(at).copied().flatten()
    }

    fn write(&mut self, block: BlockId, at: usize, kv: Option<Kv>) {
        assert!(!block.is_null(), "the engine writes to the null block");
        let cells = self.memory.entry(Place { tier: 0, block }).or_default();
        cells.resize(cells.len().max(at + 1), None);
        cells[at] = kv;
    }

    /// Reads all cells that the token at a position needs, and writes the token's own. The state after a
    /// draft has its own entry.
    fn compute_token(&mut self, id: i64, tokens: &[u32], tables: &[Vec<BlockId>], at: usize) {
        let Engine { weights, ref from, tokens: ref known, .. } = self.engines[&id];
        let (from, drafts) = (from.clone(), (at + 1).saturating_sub(known.len()));
        let kv = |upto: usize| Kv::of(weights, b"", &tokens[..upto]);
        for (group, spec) in self.specs.clone().into_iter().enumerate() {
            let (table, size, from) = (&tables[group], spec.block_tokens, from[group]);
            match spec.kind {
                GroupKind::Cross => {}
                GroupKind::State => {
                    if at > from {
                        let found = self.cell(table[drafts.saturating_sub(1)], 0);
                        assert_eq!(found, Some(kv(at)), "group {group}, state of {id} before token {at}");
                    }
                    self.write(table[drafts], 0, Some(kv(at + 1)));
                }
                _ => {
                    // Sinks whose beginning was hit, in a group that caches nothing, are no sinks.
                    let sink_tokens = if from == 0 { spec.sink_tokens } else { 0 };
                    let read_here = GroupSpec { sink_tokens, ..spec };
                    for read in (from..at).filter(|&read| reads(&read_here, at, read)) {
                        let found = self.cell(table[read / size], read % size);
                        let own = Some(kv(read + 1));
                        assert_eq!(found, own, "group {group} of {id}: token {at} reads {read}");
                    }
                    self.write(table[at / size], at % size, Some(kv(at + 1)));
                }
            }
        }
    }

    pub(super) fn compute(&mut self, id: i64, upto: usize) {
        self.execute_plan();
        if self.is_running(id) {
            let (all, tables) = (self.tokens(id), self.tables(id));
            let Engine { progress, covered, .. } = self.engines[&id];
            for at in progress..upto.min(all.len()).min(covered) {
                self.compute_token(id, &all, &tables, at);
                self.engines.get_mut(&id).unwrap().progress = at + 1;
            }
        }
    }

    /// Computes all tokens of a request and then drafts, as far as every group has slots for them.
    pub(super) fn draft(&mut self, id: i64, drafts: usize) {
        self.compute(id, usize::MAX);
        if !self.is_running(id) {
            return;
        }
        let (mut all, tables) = (self.tokens(id), self.tables(id));
        let Engine { progress, covered, .. } = self.engines[&id];
        let known = all.len();
        if progress < known {
            return;
        }
        let states = self.specs.iter().zip(&tables).filter(|(spec, _)| spec.kind == GroupKind::State);
        let slots = states.map(|(_, table)| table.len() - 1).min().unwrap_or(usize::MAX);
        let drafts = drafts.min(slots).min(covered.saturating_sub(known));
        all.extend((0..drafts as u32).map(|at| at % 2));
        for at in known..all.len() {
            self.compute_token(id, &all, &tables, at);
        }
        self.engines.get_mut(&id).unwrap().drafts = all.split_off(known);
    }

    pub(super) fn admitted(&mut self, id: i64, tokens: Vec<u32>, admission: &Admission, part: Part) {
        let (cached, all) = (admission.cached_tokens, tokens.len());
        let ready = cached + admission.external_tokens;
        let covered = part.allocate_tokens.map_or(all, |n| (ready + n).min(all));
        let tables = self.tables(id);
        // The manager may leave null entries for external tokens in groups that cache nothing.
        let first = |(spec, table): (&GroupSpec, &Vec<BlockId>)| match table.get(cached / spec.block_tokens) {
            _ if caches(spec) => 0,
            Some(block) if spec.kind != GroupKind::State && !block.is_null() => cached,
            _ => ready,
        };
        let from = self.specs.iter().zip(&tables).map(first).collect();
        let (progress, committed, weights) = (cached, cached, self.weights);
        let engine = Engine { tokens, progress, committed, covered, weights, from, ..Engine::default() };
        self.engines.insert(id, engine);
    }

    /// Whether a request can be computed from `loaded` on, if a connector has loaded `loaded` of `end`
    /// external tokens.
    fn could_go_on(&self, id: i64, tables: &[Vec<BlockId>], loaded: usize, end: usize) -> bool {
        let covered = self.engines[&id].covered;
        let go_on = |(spec, table): (&GroupSpec, &Vec<BlockId>)| match spec.kind {
            GroupKind::Cross => true,
            GroupKind::State => loaded == end || loaded == 0 || !caches(spec),
            _ => {
                let is_read = |at: &usize| caches(spec) && reads(spec, loaded, *at);
                let mut needed = (0..loaded).filter(is_read).chain(loaded..covered.max(loaded + 1));
                needed.all(|at| table.get(at / spec.block_tokens).is_none_or(|block| !block.is_null()))
            }
        };
        self.specs.iter().zip(tables).all(go_on)
    }

    /// A connector writes external tokens and skips null entries. It writes the state after the last external
    /// token, or garbage if tokens were lost.
    pub(super) fn load(&mut self, id: i64, lost: usize) -> Result<(), ManagerError> {
        let request = self.manager.request(id)?;
        let (from, end) = (request.computed_tokens, request.external_end);
        let upto = end.saturating_sub(lost).max(from);
        let mut goes_on = None;
        if self.state(id) == Some(RequestState::Loading) {
            // The plan copies the block that the hit ends in, before the connector writes to the copy.
            self.execute_plan();
            let (tokens, tables) = (self.tokens(id), self.tables(id));
            let weights = self.engines[&id].weights;
            let kv = |upto: usize| Some(Kv::of(weights, b"", &tokens[..upto]));
            for (group, spec) in self.specs.clone().into_iter().enumerate() {
                match spec.kind {
                    GroupKind::Cross => {}
                    GroupKind::State => {
                        let state = if upto == end { kv(end) } else { None };
                        self.write(tables[group][0], 0, state);
                    }
                    _ => {
                        for at in from..upto {
                            let block = tables[group][at / spec.block_tokens];
                            if !block.is_null() {
                                self.write(block, at % spec.block_tokens, kv(at + 1));
                            }
                        }
                    }
                }
            }
            goes_on = Some(self.could_go_on(id, &tables, upto, end));
        }
        self.manager.external_done(id, Loaded::First(upto))?;
        if let Some(goes_on) = goes_on {
            let state = if goes_on { RequestState::Running } else { RequestState::Preempted };
            assert_eq!(self.state(id), Some(state), "{upto} of {end} external tokens of {id} came");
        }
        if let Some(engine) = self.engines.get_mut(&id) {
            (engine.progress, engine.committed) = (upto, upto);
        }
        self.engines.retain(|&id, _| self.manager.contains(id));
        Ok(())
    }

    /// A step of each request appends its accepted drafts and its sampled tokens, with slots for the next
    /// drafts.
    pub(super) fn append(
        &mut self,
        ids: &[i64],
        tokens: usize,
        lookahead: usize,
        commits: bool,
        accepted: usize,
    ) -> Result<(), ManagerError> {
        let requests: Vec<RequestRef<'_>> = ids.iter().map(|&id| id.into()).collect();
        let (mut new, mut offsets, mut computed) = (Vec::new(), vec![0], Vec::new());
        for id in ids {
            let drafts = self.engines.get(id).map_or(&[][..], |engine| &engine.drafts);
            let accepted = &drafts[..if commits { accepted.min(drafts.len()) } else { 0 }];
            let progress = self.engines.get(id).map_or(0, |engine| engine.committable(engine.progress));
            computed.push(progress + accepted.len());
            new.extend_from_slice(accepted);
            new.extend((0..tokens as u32).map(|at| at % 2));
            offsets.push(new.len());
        }
        let said = if commits { Computed::Counts(&computed) } else { Computed::Nothing };
        let covered = Covered::Lookahead(lookahead);
        let (tokens, offsets) = (&new[..], &offsets[..]);
        let rows = Rows { requests: &requests, tokens, offsets, computed: said, covered, ..Rows::default() };
        self.manager.append_ragged(&rows)?;
        for (row, id) in ids.iter().enumerate() {
            let (is_running, tables) = (self.is_running(*id), self.tables(*id));
            let engine = self.engines.get_mut(id).unwrap();
            engine.tokens.extend_from_slice(&tokens[offsets[row]..offsets[row + 1]]);
            engine.drafts.clear();
            let all = engine.tokens.len();
            if is_running {
                if commits {
                    engine.progress = engine.progress.max(computed[row]);
                    engine.commit(computed[row]);
                }
                engine.grow(all + lookahead);
                let states = self.specs.iter().zip(&tables).filter(|(spec, _)| spec.kind == GroupKind::State);
                states.for_each(|(_, table)| assert!(table.len() > lookahead, "a state for each draft"));
            }
        }
        Ok(())
    }
}
