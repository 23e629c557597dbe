//! The lookup of a sliding window: finds the last consecutive cached blocks of a prompt that fill the
//! whole window.
//!
//! vLLM looks up every block from the right until it has found enough of them. Its source notes that
//! skipping would be better. This lookup skips: it looks up the blocks of a window from the left, so
//! that one missing block rules out every window that contains it. A prompt without a hit therefore
//! costs one lookup per window instead of one per block.

use crate::key::Key;
use crate::pool::Pool;

/// The result of a lookup: the blocks `first..end`, which are all cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Position in the prompt of the first block of the hit.
    pub first: usize,
    /// Position in the prompt after the last block of the hit.
    pub end: usize,
}

/// Finds the last `need` consecutive cached blocks in `0..len` whose end is allowed. Otherwise returns
/// the largest number of cached blocks from block 0 on whose end is allowed. These need no blocks
/// before them.
///
/// `may_end(end)` returns whether a hit may end before block `end`. `cached(i)` is called once per
/// block, and again for the first `need` blocks.
///
/// ```
/// use kvpool_vllm::{Window, find_window};
/// // Blocks 0 to 4 are cached, and the window needs 2 blocks.
/// let found = find_window(8, 2, |block| block < 5, |_| true);
/// assert_eq!(found, Window { first: 3, end: 5 });
/// ```
pub fn find_window(
    len: usize,
    need: usize,
    mut cached: impl FnMut(usize) -> bool,
    may_end: impl Fn(usize) -> bool,
) -> Window {
    let mut end = len;
    // From here on, all blocks at the positions `known..end` are cached.
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

/// The size of a window in blocks, and the positions at which a hit may end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowSearch {
    /// Number of consecutive cached blocks that a hit needs.
    pub need: usize,
    /// Number of tokens per block.
    pub block_size: usize,
    /// Hits have a multiple of this number of tokens.
    pub alignment: usize,
    /// Number of blocks after the end of a hit that must also be cached, because they are computed
    /// again.
    pub shift: usize,
}

impl Pool {
    /// Returns the block of each key. `None` if any key has no block.
    #[must_use]
    pub fn find_all(&self, keys: &[Key]) -> Option<Vec<u32>> {
        keys.iter().map(|key| self.find(key)).collect()
    }

    /// Finds the last window of blocks that are cached in all of several groups. Returns its blocks for
    /// each group, after null blocks for the positions before it, and whether the window has all blocks
    /// that a hit needs. `keys` contains one key per block and group, all groups of a block together.
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

    /// Does the lookup in the same way as vLLM, which looks up every block from the right.
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
        fn the_lookup_equals_probing_every_block(
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
