//! The books: what the driver knows of its requests, by itself.
//!
//! Owns: every live request's id, state, tags and computed tokens, and the counters that the manager must show. Nothing here is
//! read from the manager, so a difference is somebody's mistake.

use kvpool::{ManagerStats, RequestId, RequestState};

use super::Wrong;
use super::content::Tag;

/// A live request.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) id: RequestId,
    pub(crate) state: RequestState,
    pub(crate) identity: u64,
    /// The weights that its KV is computed with.
    pub(crate) weights: u64,
    /// What it goes on with.
    pub(crate) stream: u64,
    /// The tag of each of its prefixes.
    pub(crate) tags: Vec<Tag>,
    pub(crate) computed: usize,
    /// Leading blocks of its table that are trimmed.
    pub(crate) trimmed: usize,
    /// The step that its blocks are fenced until, of one that was released while it moved.
    pub(crate) until: Option<u64>,
    /// Where it is in the list of its state.
    place: usize,
}

impl Entry {
    /// A request that runs.
    pub(crate) fn new(
        id: RequestId,
        identity: u64,
        weights: u64,
        stream: u64,
        tags: Vec<Tag>,
        cached: usize,
    ) -> Self {
        let state = RequestState::Running;
        Self {
            id,
            state,
            identity,
            weights,
            stream,
            tags,
            computed: cached,
            trimmed: 0,
            until: None,
            place: 0,
        }
    }

    /// A second request with the same tokens, which goes on with others.
    pub(crate) fn child(&self, id: RequestId, stream: u64) -> Self {
        Self { id, stream, ..self.clone() }
    }
}

/// The states, as indices.
const fn list_of(state: RequestState) -> usize {
    match state {
        RequestState::Running => 0,
        RequestState::Preempted => 1,
        RequestState::Swapped => 2,
        RequestState::Moving => 3,
        _ => 4,
    }
}

/// Live requests, and what was counted of them and of those before.
#[derive(Debug, Default)]
pub(crate) struct Books {
    entries: Vec<Option<Entry>>,
    free: Vec<usize>,
    lists: [Vec<usize>; 5],
    /// The monotone counters that the manager must show.
    pub(crate) expected: ManagerStats,
}

impl Books {
    /// Enters a request; returns its key.
    pub(crate) fn enter(&mut self, mut entry: Entry) -> usize {
        let list = &mut self.lists[list_of(entry.state)];
        entry.place = list.len();
        let key = self.free.pop().unwrap_or(self.entries.len());
        list.push(key);
        if key == self.entries.len() {
            self.entries.push(Some(entry));
        } else {
            self.entries[key] = Some(entry);
        }
        key
    }

    fn unlist(&mut self, list: usize, place: usize) {
        self.lists[list].swap_remove(place);
        if let Some(&moved) = self.lists[list].get(place)
            && let Some(moved) = self.entries[moved].as_mut()
        {
            moved.place = place;
        }
    }

    /// Strikes a request out.
    pub(crate) fn strike(&mut self, key: usize) -> Result<Entry, Wrong> {
        let entry = self.entries.get_mut(key).and_then(Option::take);
        let entry = entry.ok_or_else(|| Wrong(format!("the books have no request {key}")))?;
        self.unlist(list_of(entry.state), entry.place);
        self.free.push(key);
        Ok(entry)
    }

    pub(crate) fn get(&self, key: usize) -> Result<&Entry, Wrong> {
        let entry = self.entries.get(key).and_then(Option::as_ref);
        entry.ok_or_else(|| Wrong(format!("the books have no request {key}")))
    }

    pub(crate) fn get_mut(&mut self, key: usize) -> Result<&mut Entry, Wrong> {
        let entry = self.entries.get_mut(key).and_then(Option::as_mut);
        entry.ok_or_else(|| Wrong(format!("the books have no request {key}")))
    }

    /// Changes a request's state.
    pub(crate) fn set_state(&mut self, key: usize, state: RequestState) -> Result<(), Wrong> {
        let (before, place) = (self.get(key)?.state, self.get(key)?.place);
        self.unlist(list_of(before), place);
        let list = &mut self.lists[list_of(state)];
        let place = list.len();
        list.push(key);
        let entry = self.get_mut(key)?;
        (entry.state, entry.place) = (state, place);
        Ok(())
    }

    /// The weights have changed, and no request holds a block: what each computes from now on is theirs.
    pub(crate) fn forget_weights(&mut self, weights: u64) {
        self.entries.iter_mut().flatten().for_each(|entry| entry.weights = weights);
    }

    /// Keys of the requests in a state.
    pub(crate) fn in_state(&self, state: RequestState) -> &[usize] {
        &self.lists[list_of(state)]
    }

    /// Live requests.
    pub(crate) fn len(&self) -> usize {
        self.lists.iter().map(Vec::len).sum()
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().flatten()
    }

    /// Compares counters and gauges with the manager's.
    pub(crate) fn compare(&self, found: &ManagerStats) -> Result<(), Wrong> {
        let expected = &self.expected;
        let count = |state| self.in_state(state).len() as u64;
        let pairs = [
            ("running", count(RequestState::Running), found.running as u64),
            ("preempted", count(RequestState::Preempted), found.preempted as u64),
            ("swapped", count(RequestState::Swapped), found.swapped as u64),
            ("moving", count(RequestState::Moving), found.moving as u64),
            ("releasing", count(RequestState::Releasing), found.releasing as u64),
            ("admissions", expected.admissions, found.admissions),
            ("prompt tokens", expected.prompt_tokens, found.prompt_tokens),
            ("hit tokens", expected.hit_tokens, found.hit_tokens),
            ("hit and computed tokens", expected.prompt_tokens, found.hit_tokens + found.computed_tokens),
            ("refusals", expected.refusals, found.refusals),
            ("appended tokens", expected.appended_tokens, found.appended_tokens),
            ("preemptions", expected.preemptions, found.preemptions),
            ("preempted tokens", expected.preempted_tokens, found.preempted_tokens),
            ("resumptions", expected.resumptions, found.resumptions),
            ("resumed tokens", expected.resumed_tokens, found.resumed_tokens),
            ("resumed hit tokens", expected.resumed_hit_tokens, found.resumed_hit_tokens),
            ("forks", expected.forks, found.forks),
            ("swapped out", expected.swapped_out, found.swapped_out),
            ("swapped in", expected.swapped_in, found.swapped_in),
            ("copied blocks", expected.copied_blocks, found.copied_blocks),
        ];
        match pairs.into_iter().find(|(_, expected, found)| expected != found) {
            None => Ok(()),
            Some((name, expected, found)) => {
                Err(Wrong(format!("{name}: {expected} in the books, {found} in the manager")))
            }
        }
    }
}
