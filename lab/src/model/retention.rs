//! Models the pool's reports about hints: how many hints were applied, how many blocks are retained,
//! and how many times to live have expired. Tests of the policies check how hints change the order of
//! eviction.

use std::collections::BTreeMap;

use crate::model::reference::ReferencePool;
use kvpool::retention::{Keep, Priority, Retention, RetentionStats, Then, Ttl};

/// The only tenant to which the laboratory gives limits.
pub(crate) const TENANT: u32 = 1;

/// The hints that apply to one block.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Entry {
    keep: Keep,
    /// The block's time to live after its last use, in seconds.
    idle: Option<f64>,
    deadline: Option<f64>,
    then: Then,
    tenant: bool,
}

const UNSAID: Entry = Entry {
    keep: Keep::Priority(Priority::NORMAL),
    idle: None,
    deadline: None,
    then: Then::Normal,
    tenant: false,
};

/// The hints of all blocks of a pool.
#[derive(Clone, Debug, Default)]
pub struct Retained {
    pin_budget: usize,
    entries: BTreeMap<usize, Entry>,
    now: Option<f64>,
    expired: u64,
}

/// The content of each block, and whether the block was cached-free, before a call. Whether a call
/// changes hints depends on both.
#[derive(Clone, Debug)]
pub(crate) struct Before(Vec<(Option<Vec<u32>>, bool)>);

impl Before {
    pub(crate) fn of(pool: &ReferencePool) -> Self {
        let block = |block| {
            let content = pool.registered_content(block).map(|(_, _, path)| path.clone());
            (content, pool.evictable.contains(&block))
        };
        Self((0..pool.num_blocks()).map(block).collect())
    }
}

impl Retained {
    pub(crate) fn new(pin_budget: usize) -> Self {
        Self { pin_budget, ..Self::default() }
    }

    pub(crate) const fn now(&self) -> Option<f64> {
        self.now
    }

    fn pinned(&self) -> usize {
        self.count(|entry| entry.keep == Keep::Pinned)
    }

    fn count(&self, is: impl Fn(&Entry) -> bool) -> usize {
        self.entries.values().filter(|entry| is(entry)).count()
    }

    /// Returns the value that [`kvpool::BlockPool::retention_stats`] must return.
    pub(crate) fn stats(&self) -> RetentionStats {
        let priority = |entry: &Entry| match entry.keep {
            Keep::Priority(priority) => Some(priority),
            _ => None,
        };
        RetentionStats {
            demoted: self.count(|entry| entry.keep == Keep::Demoted),
            below_normal: self.count(|entry| priority(entry).is_some_and(|own| own < Priority::NORMAL)),
            above_normal: self.count(|entry| priority(entry).is_some_and(|own| own > Priority::NORMAL)),
            pinned: self.pinned(),
            with_ttl: self.count(|entry| entry.deadline.is_some()),
            expired: self.expired,
        }
    }

    pub(crate) fn tenant_blocks(&self) -> usize {
        self.count(|entry| entry.tenant)
    }

    /// Applies a hint to a block. Returns three numbers, each 0 or 1: of accepted, of shortened
    /// (clipped) and of ignored hints.
    pub(crate) fn retain(&mut self, block: usize, hint: Retention, idle: bool) -> [usize; 3] {
        let full = self.pinned() >= self.pin_budget;
        let Some(entry) = self.entries.get_mut(&block) else { return [0, 0, 1] };
        let clipped = hint.keep == Keep::Pinned && entry.keep != Keep::Pinned && full;
        entry.keep = if clipped { Keep::Priority(Priority::MAX) } else { hint.keep };
        entry.then = hint.then;
        entry.idle = if let Some(Ttl::Idle(seconds)) = hint.ttl { Some(seconds) } else { None };
        entry.deadline = match hint.ttl {
            Some(Ttl::Idle(seconds)) if idle => self.now.map(|now| now + seconds),
            Some(Ttl::Absolute(seconds)) => self.now.map(|now| now + seconds),
            _ => None,
        };
        if clipped { [0, 1, 0] } else { [1, 0, 0] }
    }

    /// Assigns a block to a tenant, unless its content already has one.
    pub(crate) fn assign(&mut self, block: usize, tenant: u32) {
        if let Some(entry) = self.entries.get_mut(&block) {
            entry.tenant |= tenant == TENANT;
        }
    }

    pub(crate) fn advance(&mut self, now: f64) -> usize {
        self.now = Some(now);
        let due: Vec<usize> = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.deadline.is_some_and(|deadline| deadline <= now))
            .map(|(&block, _)| block)
            .collect();
        for block in &due {
            let demotes = self.entries.get(block).is_some_and(|entry| entry.then == Then::Demote);
            let hint = if demotes { Retention::END_OF_LIFE } else { Retention::NORMAL };
            self.retain(*block, hint, false);
        }
        self.expired += due.len() as u64;
        due.len()
    }

    /// Updates the hints after a call that changed contents and holders. `hits` contains the blocks
    /// that lookups acquired.
    pub(crate) fn follow(&mut self, before: &Before, pool: &ReferencePool, hits: &[usize]) {
        for block in 1..pool.num_blocks() {
            let content = pool.registered_content(block).map(|(_, _, path)| path);
            let (old, was_idle) = before.0.get(block).cloned().unwrap_or_default();
            if old.as_ref() != content {
                self.entries.remove(&block);
            }
            if content.is_none() {
                continue;
            }
            let entry = self.entries.entry(block).or_insert(UNSAID);
            let is_hit = hits.contains(&block);
            if is_hit {
                entry.deadline = entry.deadline.filter(|_| entry.idle.is_none());
                entry.keep = if entry.keep == Keep::Demoted { UNSAID.keep } else { entry.keep };
            }
            if pool.evictable.contains(&block) && (is_hit || !was_idle) {
                let starts = entry.idle.and_then(|seconds| Some(self.now? + seconds));
                entry.deadline = starts.or(entry.deadline);
            }
        }
    }
}
