//! The state with which a replay of a manager reconstructs the arguments of recorded calls.
//!
//! Owns: the request in each slot, the previous batch, and the contents of prompts. A slot is a small
//! number that a manager assigns to a request. In a replay as in the recorded run, the next new request
//! gets the slot of a released request.

use kvpool::{CacheManager, Covered, ManagerConfig, ManagerError, RequestId, RequestRef, StepPlan};

use crate::contents::Contents;
use crate::error::{ReplayError, zeros};
use crate::{AppendRecord, Filled, IdRecord, Name, PlanRecord, Planned, Rows, TurnRecord};

/// The requests of a replayed manager, and the contents of their prompts.
#[derive(Debug)]
pub struct Requests {
    pub(crate) contents: Contents,
    /// The id of the request in each slot. A slot keeps the id after the release, because no record
    /// refers to the slot until another request has it.
    slots: Vec<Option<RequestId>>,
    /// The slots of the requests in the batch that was recorded last.
    rows: Vec<u32>,
    /// The ids of the requests that the present call creates unless it is refused.
    new: Vec<RequestId>,
}

/// Borrows ids.
pub(crate) fn refs(ids: &[RequestId]) -> Vec<RequestRef<'_>> {
    ids.iter().map(RequestId::as_ref).collect()
}

impl Requests {
    pub(crate) const fn new(contents: Contents) -> Self {
        Self { contents, slots: Vec::new(), rows: Vec::new(), new: Vec::new() }
    }

    /// Removes all requests. This is called at the point where the journal continues in a new process.
    pub(crate) fn clear(&mut self) {
        self.slots.clear();
        self.rows.clear();
    }

    /// Returns the id of a request that a record refers to by slot or by id.
    pub(crate) fn id(&self, name: &Name) -> Result<RequestId, ReplayError> {
        match name {
            Name::Id(id) => Ok(id.clone()),
            Name::Slot(slot) => {
                let known = self.slots.get(*slot as usize).and_then(Clone::clone);
                known.ok_or(ReplayError::UnknownSlot { slot: *slot })
            }
        }
    }

    pub(crate) fn ids(&self, names: &[Name]) -> Result<Vec<RequestId>, ReplayError> {
        names.iter().map(|name| self.id(name)).collect()
    }

    /// Returns the requests of a batch. Stores their slots, because the next record may be
    /// [`Rows::Same`].
    pub(crate) fn batch(&mut self, rows: &Rows) -> Result<Vec<RequestId>, ReplayError> {
        match rows {
            Rows::Ids(ids) => return Ok(ids.iter().map(|IdRecord(id)| id.clone()).collect()),
            Rows::Slots(slots) => self.rows.clone_from(slots),
            Rows::Same => {}
        }
        self.rows.iter().map(|&slot| self.id(&Name::Slot(slot))).collect()
    }

    /// Remembers the id of a request that the call may create.
    pub(crate) fn expect(&mut self, IdRecord(id): &IdRecord) -> RequestId {
        self.new.push(id.clone());
        id.clone()
    }

    /// Stores the slots of the requests that the call has created.
    pub(crate) fn enter(&mut self, manager: &CacheManager) {
        for id in self.new.drain(..) {
            if let Some(slot) = manager.slot_of(&id) {
                self.slots.resize_with(self.slots.len().max(slot + 1), || None);
                self.slots[slot] = Some(id);
            }
        }
    }

    /// Replaces the digests of a request's prompt, because the manager hashes it again in another
    /// epoch.
    pub(crate) fn rehash(&mut self, manager: &CacheManager, id: RequestRef<'_>, filled: Option<&Filled>) {
        if let (Some(filled), Ok(cursor)) = (filled, manager.cursor(id)) {
            self.contents.rehash(cursor, filled);
        }
    }

    /// Returns the requests of an append, and the tokens to append.
    pub(crate) fn append_arguments(
        &mut self,
        manager: &CacheManager,
        append: &AppendRecord,
    ) -> Result<(Vec<RequestId>, Vec<u32>), ReplayError> {
        let ids = self.batch(&append.rows)?;
        let (mut keys, mut prints) = (append.filled.keys.unpack(), append.filled.fingerprints.unpack());
        let mut spelled = zeros(append.tokens)?;
        for (row, id) in ids.iter().enumerate() {
            if let (Ok(cursor), Some(tokens)) = (manager.cursor(id), spelled.get_mut(append.ends(row))) {
                tokens.copy_from_slice(&self.contents.appended(
                    cursor,
                    tokens.len(),
                    &mut keys,
                    &mut prints,
                )?);
            }
        }
        Ok((ids, spelled))
    }

    /// Returns the request to which a call appends tokens, and these tokens.
    pub(crate) fn turn_arguments(
        &mut self,
        manager: &CacheManager,
        TurnRecord { request, tokens, filled, .. }: &TurnRecord,
    ) -> Result<(RequestId, Vec<u32>), ReplayError> {
        let id = self.id(request)?;
        let tokens = self.spell(manager, &id, *tokens, filled)?;
        Ok((id, tokens))
    }

    fn spell(
        &mut self,
        manager: &CacheManager,
        id: &RequestId,
        tokens: usize,
        filled: &Filled,
    ) -> Result<Vec<u32>, ReplayError> {
        let Ok(cursor) = manager.cursor(id) else { return zeros(tokens) };
        let (mut keys, mut prints) = (filled.keys.unpack(), filled.fingerprints.unpack());
        self.contents.appended(cursor, tokens, &mut keys, &mut prints)
    }

    /// Makes the plan of a recorded step, with the methods of the manager.
    pub(crate) fn plan(
        &mut self,
        manager: &CacheManager,
        PlanRecord { planned, stale }: &PlanRecord,
    ) -> Result<StepPlan, ReplayError> {
        let mut plan = manager.plan_step();
        for one in planned {
            // Ignore a refusal. If the recorded run planned the operation, the answer of the step then
            // has one outcome less, so the replay detects the difference.
            let _refused = match one {
                Planned::Admit { request, prompt, options } => {
                    let (id, cursor) = (self.expect(request), self.contents.cursor(prompt, false)?);
                    let planned = manager.plan_admit_with(&mut plan, id, cursor, &options.options());
                    planned.map_err(ManagerError::from)
                }
                Planned::Resume { request, part, rehashed } => {
                    let id = self.id(request)?;
                    self.rehash(manager, id.as_ref(), rehashed.as_ref());
                    manager.plan_resume_with(&mut plan, &id, part.part())
                }
                Planned::Append { request, tokens, covered, filled } => {
                    let id = self.id(request)?;
                    let spelled = self.spell(manager, &id, *tokens, filled)?;
                    let rows = kvpool::Rows {
                        requests: &[id.as_ref()],
                        tokens: &spelled,
                        offsets: &[0, spelled.len()],
                        covered: Covered::Each(&[*covered]),
                        ..kvpool::Rows::default()
                    };
                    manager.plan_append_ragged(&mut plan, &rows)
                }
                Planned::Preempt { request, until } => {
                    manager.plan_preempt(&mut plan, &self.id(request)?, until.until())
                }
                Planned::Release { request, until } => {
                    manager.plan_release(&mut plan, &self.id(request)?, until.until())
                }
            };
        }
        if *stale {
            // A manager refuses the plan of another manager in the same way as a plan for an earlier
            // state.
            let other = ManagerConfig { num_blocks: 2, ..ManagerConfig::default() };
            plan = CacheManager::new(other)?.plan_step();
        }
        Ok(plan)
    }
}
