//! Turnover: measures whether the contents of a cache still change.
//!
//! [`Turnover`] tracks the insertions of one simulation. For each window of `capacity` insertions into
//! the full cache, it computes a share, 0 to 1: the part of the blocks in the cache at the end of the
//! window that were inserted during the window. If blocks are evicted in the order of their insertion,
//! the share is always 1. For a policy that stagnates it approaches 0, because the policy evicts new
//! contents at once.
//!
//! Costs: O(1) per insertion, O(blocks) per window; 8 bytes per block.

#[derive(Clone, Debug)]
pub(super) struct Turnover {
    capacity: u64,
    /// For each block of the cache, the number of the insertion that filled it; 0 if it is empty.
    since: Vec<u64>,
    insertions: u64,
    /// Number of insertions until the start of the current window.
    before: u64,
    shares: Vec<f64>,
}

impl Turnover {
    /// Creates a measurement for a cache of `capacity` blocks, whose block ids are below `num_ids`.
    pub(super) fn new(capacity: usize, num_ids: usize) -> Self {
        let capacity = capacity.max(1) as u64;
        Self { capacity, since: vec![0; num_ids], insertions: 0, before: 0, shares: Vec::new() }
    }

    pub(super) fn insertions(&self) -> u64 {
        self.insertions
    }

    /// Counts an insertion into `block`. `full` says whether another block has to be evicted for it.
    pub(super) fn insert(&mut self, block: usize, full: bool) {
        self.insertions += 1;
        self.since[block] = self.insertions;
        if !full {
            self.before = self.insertions; // the first window begins when the cache is full
        }
    }

    pub(super) fn evict(&mut self, block: usize) {
        self.since[block] = 0;
    }

    /// Ends the window if it is complete. Call it when the cache is full.
    pub(super) fn end_window(&mut self) {
        if self.insertions - self.before < self.capacity {
            return;
        }
        let newer = self.since.iter().filter(|&&since| since > self.before).count();
        self.shares.push(newer as f64 / self.capacity as f64);
        self.before = self.insertions;
    }

    pub(super) fn into_shares(self) -> Vec<f64> {
        self.shares
    }
}
