//! A small number for each content of a journal, by which an exported test writes its prompts.
//!
//! Two keys have one number where they are of the same tokens: a prompt that is hashed again in another
//! epoch has other keys, and what came in that epoch in another prompt has these, too.
//!
//! Costs: 40 bytes per distinct content of a journal.

use crate::ContentKey;
use hashbrown::HashMap;

/// The number of a block that nothing is known of but that something comes behind it.
const UNKNOWN: u32 = 0;

/// Numbers of contents, from 1.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    by_key: HashMap<u64, u32>,
    /// The number of the content before.
    parents: HashMap<u32, u32>,
}

/// Sets of tokens, each named by its least.
struct Sets(Vec<u32>);

impl Sets {
    fn least(&mut self, token: u32) -> u32 {
        let mut at = token;
        while let Some(&next) = self.0.get(at as usize).filter(|&&next| next != at) {
            at = next;
        }
        // What was walked is looked up at once the next time.
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
    /// Numbers of the contents with these tokens; `same` are pairs that stand for one content.
    pub(crate) fn new(
        tokens: &HashMap<ContentKey, u32>,
        same: &[(u32, u32)],
        parent: impl Fn(u32) -> Option<u32>,
    ) -> Self {
        let most = tokens.values().copied().max().map_or(0, |most| most + 1);
        let mut sets = Sets((0..most).collect());
        same.iter().for_each(|&(one, other)| sets.join(one, other));
        // A link names the block before it without a fingerprint.
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

    /// The number of a content.
    pub(crate) fn of(&self, key: u64) -> u32 {
        self.by_key.get(&key).copied().unwrap_or(UNKNOWN)
    }

    /// The numbers from the start of a chain to the block with this key at `depth`.
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
