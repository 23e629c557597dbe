//! Assigns a small number to each content of a journal. An exported test uses these numbers to write
//! its prompts.
//!
//! Two keys have the same number if they belong to the same tokens in different epochs: a prompt that
//! is hashed again in another epoch gets other keys.
//!
//! Costs: 40 bytes per distinct content of a journal.

use crate::ContentKey;
use hashbrown::HashMap;

/// The number of a content for which the journal has no record of its own, only records that refer to
/// it as a parent.
const UNKNOWN: u32 = 0;

/// Maps the keys of contents to their numbers, which begin at 1.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    by_key: HashMap<u64, u32>,
    /// Maps the number of a content to the number of the content before it.
    parents: HashMap<u32, u32>,
}

/// Disjoint sets (union-find) of the tokens that represent the same content. The smallest token of a
/// set identifies the set.
struct Sets(Vec<u32>);

impl Sets {
    fn least(&mut self, token: u32) -> u32 {
        let mut at = token;
        while let Some(&next) = self.0.get(at as usize).filter(|&&next| next != at) {
            at = next;
        }
        // Link the token directly to the smallest, so that the next lookup takes one step.
        if let Some(place) = self.0.get_mut(token as usize) {
            *place = at;
        }
        at
    }

    fn join(&mut self, one: u32, other: u32) {
        let (one, other) = (self.least(one), self.least(other));
        if let Some(place) = self.0.get_mut(one.max(other) as usize) {
            *place = one.min(other);
        }
    }
}

impl Numbers {
    /// Assigns numbers to the contents of these tokens. `same` contains pairs of tokens that represent
    /// the same content.
    pub(crate) fn new(
        tokens: &HashMap<ContentKey, u32>,
        same: &[(u32, u32)],
        parent: impl Fn(u32) -> Option<u32>,
    ) -> Self {
        let most = tokens.values().copied().max().map_or(0, |most| most + 1);
        let mut sets = Sets((0..most).collect());
        same.iter().for_each(|&(one, other)| sets.join(one, other));
        // The record of a link contains the key of its parent without the fingerprint, so number the
        // contents by key only.
        let mut entries: Vec<(u64, u32)> = tokens.iter().map(|(&(key, _), &token)| (key, token)).collect();
        entries.sort_unstable();
        for pair in entries.windows(2) {
            if let [(key, token), (next, other)] = pair
                && key == next
            {
                sets.join(*token, *other);
            }
        }
        let mut numbers = Self::default();
        for (key, token) in entries {
            let number = sets.least(token) + 1;
            numbers.by_key.insert(key, number);
            if let Some(before) = parent(token) {
                numbers.parents.insert(number, sets.least(before) + 1);
            }
        }
        numbers
    }

    pub(crate) fn of(&self, key: u64) -> u32 {
        self.by_key.get(&key).copied().unwrap_or(UNKNOWN)
    }

    /// Returns the numbers of a chain's contents, from its start to the block with this key at `depth`.
    pub(crate) fn path(&self, key: u64, depth: u32) -> Vec<u32> {
        let mut path = Vec::new();
        let mut at = Some(self.of(key));
        while let Some(number) = at.filter(|_| path.len() <= depth as usize) {
            path.push(number);
            at = self.parents.get(&number).copied();
        }
        path.resize(depth as usize + 1, UNKNOWN);
        path.reverse();
        path
    }
}
