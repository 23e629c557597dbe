//! Resident turnover: does a cache still change?
//!
//! Owns [`Turnover`], which follows the insertions of one simulation. Of each window of `capacity`
//! insertions into the full cache it says which share of the blocks resident at the window's end came
//! in during it, 0 to 1. An order by insertion alone has 1 always; a policy that stagnates comes down
//! towards 0, because new contents go at once.
//!
//! Costs: O(1) per insertion, O(blocks) per window; 8 bytes per block.

#[derive(Clone, Debug)]
pub(super) struct Turnover {
    capacity: u64,
    /// By block: the number of the insertion that brought its content; 0 for none.
    since: Vec<u64>,
    insertions: u64,
    /// Insertions before the present window.
    before: u64,
    shares: Vec<f64>,
}

impl Turnover {
    /// For block ids below `num_ids`.
    pub(super) fn new(capacity: usize, num_ids: usize) -> Self {
        let capacity = capacity.max(1) as u64;
        Self { capacity, since: vec![0; num_ids], insertions: 0, before: 0, shares: Vec::new() }
    }

    pub(super) fn insertions(&self) -> u64 {
        self.insertions
    }

    /// A content came into `block`; `full` says that another had to go for it.
    pub(super) fn insert(&mut self, block: usize, full: bool) {
        self.insertions += 1;
        self.since[block] = self.insertions;
        if !full {
            self.before = self.insertions; // the first window begins when the cache is full
        }
    }

    /// The content of `block` is gone.
    pub(super) fn evict(&mut self, block: usize) {
        self.since[block] = 0;
    }

    /// Ends the window if it is over; to be called when as many blocks are resident as can be.
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
