//! Runs: describe the reuses of a trace, many blocks at a time.
//!
//! A [`Run`] is a range of neighbouring blocks of request `to` of which request `from` was the last
//! user before. [`Runs`] finds and stores all runs of a trace. Every reuse of the trace is in exactly
//! one run, and every estimator of this module uses runs instead of references. There are 1 to 2 runs
//! per request, while a request has 24 (chats) to 223 (agents) references.
//!
//! **Why reuses come in runs.** An id has one parent, so the common blocks of two requests are a prefix
//! of both. Therefore:
//!
//! 1. The blocks of which `r` was the last user are always a *suffix* of `r`, because each later
//!    request takes over a prefix.
//! 2. Along a prompt, from its start, the last uses only get older, because each use of a block is a
//!    use of the blocks before it.
//! 3. So the blocks of a request of which `r` was the last user are neighbours, and begin where that
//!    suffix of `r` begins.
//!
//! Consider a recency stack that orders the blocks of a request from the start of its prompt (see
//! [`stack`](super::stack)). In this stack, a run is a range of neighbours as well, and one query
//! covers all of its blocks.
//!
//! The number of runs is small. Consider a tree of all prompts that is walked from the root to a node
//! for each request. The number of runs equals the number of changes of preferred children, as in
//! link-cut trees (Sleator and Tarjan 1983). That is O(log n) amortised per request in the worst case.
//!
//! Costs: one step per reference. A run takes 16 bytes, and 4 more for its position in the order by
//! `from`.

/// Neighbouring blocks of one request of which another request was the last user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The request that used the blocks last before `to`, counted from 0.
    pub from: u32,
    /// The request that uses the blocks again.
    pub to: u32,
    /// The position of the first block, counted from the start of the prompt. It is the same in both
    /// requests.
    pub start: u32,
    /// The number of blocks, at least 1.
    pub count: u32,
}

impl Run {
    /// The position after the last block, counted from the start of the prompt.
    #[must_use]
    pub fn end(&self) -> u32 {
        self.start + self.count
    }
}

/// All runs of a trace, indexed by the request in which they end and by the one in which they begin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Runs {
    /// The runs, sorted by `to`, and then by their position in the prompt.
    runs: Vec<Run>,
    /// For each request, the index in `runs` after the last run that ends in it.
    to_ends: Vec<u32>,
    /// Indices into `runs`, sorted by `from` and then by `to`, which is also the order in the prompt of
    /// `from`.
    by_from: Vec<u32>,
    from_ends: Vec<u32>,
}

impl Runs {
    /// Finds the runs of requests, whose block numbers are below `unique_blocks`.
    pub(super) fn find<'a>(requests: impl Iterator<Item = &'a [u32]>, unique_blocks: usize) -> Self {
        let mut found = Self::default();
        // The last request that used each block; `u32::MAX` before the first use.
        let mut last = vec![u32::MAX; unique_blocks];
        for (to, request) in (0..).zip(requests) {
            let mut open: Option<Run> = None;
            for (depth, &block) in (0..).zip(request) {
                let from = std::mem::replace(&mut last[block as usize], to);
                match &mut open {
                    Some(run) if run.from == from => run.count += 1,
                    _ => {
                        found.runs.extend(open.take());
                        open = (from != u32::MAX).then_some(Run { from, to, start: depth, count: 1 });
                    }
                }
            }
            found.runs.extend(open);
            found.to_ends.push(found.runs.len() as u32);
        }
        found.runs.shrink_to_fit();
        found.sort_by_from(found.to_ends.len());
        found
    }

    /// Sorts by `from` with a counting sort, which preserves the order of `to`.
    fn sort_by_from(&mut self, requests: usize) {
        let mut places = vec![0_u32; requests + 1];
        for run in &self.runs {
            places[run.from as usize + 1] += 1;
        }
        for index in 1..places.len() {
            places[index] += places[index - 1];
        }
        self.from_ends = places[1..].to_vec();
        self.by_from = vec![0; self.runs.len()];
        for (index, run) in (0..).zip(&self.runs) {
            let place = &mut places[run.from as usize];
            self.by_from[*place as usize] = index;
            *place += 1;
        }
    }

    /// The number of runs of the trace.
    #[must_use]
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    /// Whether no block is ever used again.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The runs that end in request `index`, in the order of the prompt. They cover its reused blocks,
    /// from the first block on.
    #[must_use]
    pub fn to(&self, index: usize) -> &[Run] {
        self.runs.get(span(&self.to_ends, index)).unwrap_or_default()
    }

    /// The runs that begin in request `index`, in the order of the prompt. The blocks after the last of
    /// these runs are never used again.
    pub fn from(&self, index: usize) -> impl Iterator<Item = &Run> {
        let places = self.by_from.get(span(&self.from_ends, index)).unwrap_or_default();
        places.iter().filter_map(|&place| self.runs.get(place as usize))
    }

    /// The number of blocks of request `index` that later requests use again, counted from the start of
    /// the prompt.
    #[must_use]
    pub fn live(&self, index: usize) -> u32 {
        let last = self.by_from.get(span(&self.from_ends, index)).and_then(<[u32]>::last);
        last.and_then(|&place| self.runs.get(place as usize)).map_or(0, Run::end)
    }

    pub(super) fn heap_bytes(&self) -> usize {
        size_of::<Run>() * self.runs.capacity()
            + 4 * (self.to_ends.capacity() + self.by_from.capacity() + self.from_ends.capacity())
    }
}

/// Returns the range of items that belong to entry `index`. `ends` contains the end of each entry's
/// range. The range is empty after the last entry.
fn span(ends: &[u32], index: usize) -> std::ops::Range<usize> {
    let start = index.checked_sub(1).and_then(|before| ends.get(before)).copied().unwrap_or(0);
    let end = ends.get(index).copied().unwrap_or(start);
    start as usize..end as usize
}
