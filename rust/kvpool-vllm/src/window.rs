//! The lookup of a sliding window: the rightmost run of cached blocks that is long enough to attend from.
//!
//! vLLM probes every block from the right until such a run is complete, and says that it would rather
//! skip. This skips: a window is probed from its left end, so that a miss rules out every window that
//! contains it. A prompt without a hit costs one probe per window instead of one per block.

use crate::key::Key;
use crate::pool::Pool;

/// What a lookup found: blocks `first..end`, all cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The first block of the run.
    pub first: usize,
    /// One past its last block.
    pub end: usize,
}

/// The rightmost run of `need` cached blocks in `0..len` whose end `may_end` accepts; if there is none,
/// the run from block 0 to the largest such end, which needs nothing before it. `cached(i)` is asked
/// once per block, and again for the first `need`; `may_end(end)` gets one past the last block of a
/// run.
pub fn find_window(
    len: usize,
    need: usize,
    mut cached: impl FnMut(usize) -> bool,
    may_end: impl Fn(usize) -> bool,
) -> Window {
    let mut end = len;
    // Blocks from `known` to `end` were asked, and are cached.
    let mut known = end;
    while end >= need && need > 0 {
        if !may_end(end) {
            end -= 1;
            known = known.min(end);
            continue;
        }
        let first = end - need;
        let Some(miss) = (first..known).find(|&block| !cached(block)) else { return Window { first, end } };
        end = miss;
        known = first;
    }
    let run = (0..len.min(need.saturating_sub(1))).find(|&block| !cached(block));
    let run = run.unwrap_or_else(|| len.min(need.saturating_sub(1)));
    let end = (0..=run).rev().find(|&end| end == 0 || may_end(end)).unwrap_or(0);
    Window { first: 0, end }
}

/// How a window ends, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowSearch {
    /// Blocks of a window that a hit needs.
    pub need: usize,
    /// Tokens per block.
    pub block_size: usize,
    /// The length of a hit is a multiple of this.
    pub alignment: usize,
    /// Blocks after the end of a hit, which are computed again.
    pub shift: usize,
}

impl Pool {
    /// The block of each key; `None` if a key leads nowhere.
    #[must_use]
    pub fn find_all(&self, keys: &[Key]) -> Option<Vec<u32>> {
        keys.iter().map(|key| self.find(key)).collect()
    }

    /// The rightmost window of blocks that several groups have, with null blocks before it, group by group.
    /// Also returns whether the window has all blocks that a hit needs. `keys` has one key per group for each
    /// block.
    #[must_use]
    pub fn find_window(&self, keys: &[Key], groups: usize, search: WindowSearch) -> (Vec<Vec<u32>>, bool) {
        let WindowSearch { need, block_size, alignment, shift } = search;
        let keys_of = |at: usize| &keys[at * groups..(at + 1) * groups];
        let may_end = |end: usize| {
            block_size == alignment
                || (end.saturating_sub(shift) * block_size).is_multiple_of(alignment.max(1))
        };
        let cached = |at: usize| keys_of(at).iter().all(|key| self.find(key).is_some());
        let blocks = keys.len().checked_div(groups).unwrap_or(0);
        let window = find_window(blocks, need, cached, may_end);
        let table = |group: usize| {
            let run = (window.first..window.end).map(|at| self.find(&keys_of(at)[group]).unwrap_or(0));
            std::iter::repeat_n(0, window.first).chain(run).collect()
        };
        ((0..groups).map(table).collect(), need > 0 && window.end - window.first == need)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Window, find_window};

    /// vLLM's way: every block from the right.
    fn one_by_one(cached: &[bool], need: usize, may_end: impl Fn(usize) -> bool) -> Window {
        let mut run = 0;
        for block in (0..cached.len()).rev() {
            if !cached[block] {
                run = 0;
            } else if run > 0 || may_end(block + 1) {
                run += 1;
                if run >= need {
                    return Window { first: block, end: block + run };
                }
            }
        }
        Window { first: 0, end: run }
    }

    proptest! {
        #[test]
        fn it_finds_what_probing_every_block_finds(
            cached in prop::collection::vec(prop::bool::weighted(0.8), 0..40),
            need in 1..9usize,
            step in 1..5usize,
            shift in 0..2usize,
        ) {
            let may_end = |end: usize| (end - shift.min(end)).is_multiple_of(step);
            let found = find_window(cached.len(), need, |block| cached[block], may_end);
            prop_assert_eq!(found, one_by_one(&cached, need, may_end));
        }
    }

    #[test]
    fn a_miss_costs_one_probe_per_window() {
        let mut probes = 0;
        let mut miss = |_| {
            probes += 1;
            false
        };
        assert_eq!(find_window(2048, 64, &mut miss, |_| true), Window { first: 0, end: 0 });
        assert!(probes <= 2048 / 64 + 1, "{probes} probes");
    }
}
