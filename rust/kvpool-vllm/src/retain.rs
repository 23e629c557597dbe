//! Selects the blocks of a request that vLLM caches in each group. [`Finals`] computes up to which
//! token blocks are cached, and [`Retention`] selects blocks before that token.
//!
//! A hit can end only at a position where every group has the blocks that it needs. Therefore blocks of
//! windows and states that no hit can use are not indexed. Hits are expected to end at *boundaries*:
//! - at regular intervals: vLLM's `prefix_cache_retention_interval`, for which `None` means every
//!   position at which a hit can end, and 0 means none,
//! - at the end of the prompt ([`replays`]),
//! - at the *junction*, the position at which this request diverged from an earlier one.
//!
//! The core expresses the same rules in other terms ([`kvpool::groups::Keep`]). This module selects
//! exactly the same blocks as vLLM.
//!
//! Costs: O(boundaries) per block.

use crate::lookup::Reads;

/// Computes how many tokens of a group are final: they will not be computed again, so their blocks may
/// be cached.
///
/// ```
/// use kvpool_vllm::Finals;
/// // Hits end at multiples of 8 tokens.
/// let finals = Finals { alignment: Some(8), recomputed: 0, drops: false, block_tokens: 4 };
/// assert_eq!([7, 8, 15].map(|tokens| finals.of(tokens)), [0, 8, 8]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finals {
    /// Hits have a multiple of this number of tokens. `None` for a model with a single group.
    pub alignment: Option<usize>,
    /// Number of tokens at the end of a request that a later step may compute again.
    pub recomputed: usize,
    /// Whether draft heads (EAGLE, MTP) have to recompute the end of a hit. A lookup then needs the block
    /// after the end of the hit. Therefore that block is cached as well.
    pub drops: bool,
    /// Number of tokens per block.
    pub block_tokens: usize,
}

impl Finals {
    /// Returns how many of the first `tokens` tokens, which are all computed, may be cached.
    #[must_use]
    pub const fn of(&self, tokens: usize) -> usize {
        let settled = tokens.saturating_sub(self.recomputed);
        let Some(alignment) = self.alignment else { return settled };
        let aligned = tokens - tokens % alignment;
        if !self.drops || aligned == 0 {
            return aligned;
        }
        let more = settled - settled % alignment + self.block_tokens;
        if more < settled { more } else { settled }
    }
}

/// The properties of a request that determine which of its blocks are cached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prompt {
    /// Number of tokens of the prompt.
    pub tokens: usize,
    /// Position at which the request diverged from an earlier prompt. It is 0 if there is no such
    /// prompt.
    pub junction: usize,
    /// Number of tokens of the request that were computed before this step.
    pub computed: usize,
    /// Number of digests of the request.
    pub digests: usize,
    /// vLLM's `prefix_cache_retention_interval`.
    pub interval: Option<usize>,
}

/// The settings of a model that determine which blocks its groups keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retains {
    /// Number of tokens in a block of vLLM's scheduler. It can be larger than a block of a group.
    pub scheduler_block: usize,
    /// Whether draft heads have to recompute the end of a hit in any group.
    pub drops: bool,
    /// Whether the vLLM version is 0.33 or later, which keeps more blocks at the position at which a
    /// request diverged from an earlier one (junction).
    pub by_series_33: bool,
}

impl Retains {
    /// Returns the positions at which later hits are expected to end: the end of this prompt, and its
    /// junction (the position at which it diverged from an earlier prompt). If draft heads recompute
    /// the end of a hit, `before` also adds the position that is this number of tokens before the
    /// junction.
    pub(crate) fn boundaries(&self, prompt: &Prompt, before: Option<usize>) -> Vec<usize> {
        let mut ends = replays(prompt.tokens, self.scheduler_block, self.drops).to_vec();
        if prompt.junction > 0 {
            ends.push(prompt.junction);
            ends.extend(before.and_then(|tokens| prompt.junction.checked_sub(tokens)));
        }
        ends
    }
}

/// Returns where the hit of a later request can end. The first number is for a request with the same
/// prompt, the second for one that continues the prompt.
fn replays(prompt: usize, scheduler_block: usize, drops: bool) -> [usize; 2] {
    let again = prompt.saturating_sub(1);
    if !drops {
        return [again; 2];
    }
    let ends = |tokens: usize| (tokens - tokens % scheduler_block).saturating_sub(scheduler_block);
    [ends(again), ends(prompt)]
}

/// Selects the blocks of a group that are cached, so that lookups can find them.
///
/// ```
/// use kvpool_vllm::{Reads, Retention};
/// // A window of 4 tokens in blocks of 2 tokens; hits end at multiples of 8 tokens.
/// let window = Retention { reads: Reads::Window(4), block_tokens: 2, alignment: 8, drops: false };
/// let kept: Vec<_> = (0..8).filter(|&at| window.keeps(at, None, &[])).collect();
/// assert_eq!(kept, [2, 3, 6, 7]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Which earlier tokens the layers of the group read for each token.
    pub reads: Reads,
    /// Number of tokens per block.
    pub block_tokens: usize,
    /// Hits have a multiple of this number of tokens.
    pub alignment: usize,
    /// Whether draft heads have to recompute the end of a hit, as in [`Finals::drops`].
    pub drops: bool,
}

impl Retention {
    /// Whether the block at position `at` is indexed. Blocks of windows and states are indexed only if
    /// a hit that ends at a multiple of `interval` tokens, or at one of `boundaries`, needs them.
    #[must_use]
    pub fn keeps(&self, at: usize, interval: Option<usize>, boundaries: &[usize]) -> bool {
        let size = self.block_tokens;
        match self.reads {
            Reads::Full | Reads::Chunk(_) => true,
            Reads::State => {
                let Some(interval) = interval else { return true };
                let per_segment = interval / size;
                let ends = |&tokens: &usize| (tokens - tokens % self.alignment) / size == at + 1;
                interval > 0 && (per_segment <= 1 || (at + 1).is_multiple_of(per_segment))
                    || boundaries.iter().any(ends)
            }
            Reads::Window(window) => {
                if !self.alignment.is_multiple_of(size) {
                    return true;
                }
                let shift = usize::from(self.drops);
                let need = window.saturating_sub(1).div_ceil(size) + shift;
                let per_segment = interval.unwrap_or(self.alignment) / size;
                let in_segment = interval != Some(0)
                    && (need >= per_segment
                        || at >= shift && (at - shift) % per_segment >= per_segment - need);
                let at_end = |&tokens: &usize| {
                    let end = (tokens - tokens % self.alignment) / size + shift;
                    (end.saturating_sub(need)..end).contains(&at)
                };
                in_segment || interval.is_some() && boundaries.iter().any(at_end)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Finals, Retention, replays};
    use crate::lookup::Reads;

    fn kept(of: Retention, blocks: usize, interval: Option<usize>, boundaries: &[usize]) -> Vec<usize> {
        (0..blocks).filter(|&at| of.keeps(at, interval, boundaries)).collect()
    }

    #[test]
    fn a_single_group_caches_settled_tokens() {
        let alone = Finals { alignment: None, recomputed: 2, drops: true, block_tokens: 4 };
        assert_eq!([0, 1, 9].map(|tokens| alone.of(tokens)), [0, 0, 7]);
    }

    #[test]
    fn several_groups_cache_to_the_alignment_and_a_dropped_block() {
        let of = Finals { alignment: Some(8), recomputed: 0, drops: false, block_tokens: 4 };
        assert_eq!([7, 8, 15, 16].map(|tokens| of.of(tokens)), [0, 8, 8, 16]);
        let drops = Finals { drops: true, ..of };
        assert_eq!([7, 8, 11, 12, 15, 16].map(|tokens| drops.of(tokens)), [0, 8, 11, 12, 12, 16]);
        // The last 2 of 17 tokens may be computed again, so 15 are final. A hit can use 8 of them, and
        // the block after it is also cached.
        assert_eq!(Finals { recomputed: 2, ..drops }.of(17), 12);
    }

    #[test]
    fn a_prompt_is_replayed_to_its_last_token_or_a_block_before_that() {
        assert_eq!(replays(16, 8, false), [15, 15]);
        assert_eq!(replays(16, 8, true), [0, 8]);
        assert_eq!(replays(17, 8, true), [8, 8]);
        assert_eq!(replays(0, 8, true), [0, 0]);
    }

    #[test]
    fn a_window_keeps_the_blocks_of_a_hit_at_a_boundary() {
        let of = Retention { reads: Reads::Window(5), block_tokens: 2, alignment: 8, drops: false };
        // Blocks 2 and 3 of every four are kept, because a hit of 8 tokens reads the last 4 tokens.
        assert_eq!(kept(of, 9, None, &[]), [2, 3, 6, 7]);
        assert_eq!(kept(of, 9, Some(16), &[]), [6, 7]);
        assert_eq!(kept(of, 9, Some(0), &[]), []);
        assert_eq!(kept(of, 9, Some(0), &[15, 3]), [2, 3]);
        // Every block is needed by some hit, because hits end at multiples of 4 tokens.
        assert_eq!(kept(Retention { alignment: 4, ..of }, 4, None, &[]), [0, 1, 2, 3]);
        // Hits end at multiples of 3 tokens, which are not the ends of blocks. In this case all blocks
        // are kept.
        assert_eq!(kept(Retention { alignment: 3, ..of }, 3, Some(0), &[]), [0, 1, 2]);
    }

    #[test]
    fn a_dropping_window_keeps_a_block_after_the_boundary() {
        let of = Retention { reads: Reads::Window(3), block_tokens: 2, alignment: 8, drops: true };
        assert_eq!(kept(of, 10, None, &[]), [3, 4, 7, 8]);
        assert_eq!(kept(of, 10, Some(0), &[8]), [3, 4]);
    }

    #[test]
    fn a_state_is_kept_where_a_segment_or_a_boundary_ends() {
        let of = Retention { reads: Reads::State, block_tokens: 2, alignment: 4, drops: true };
        assert_eq!(kept(of, 4, None, &[]), [0, 1, 2, 3]);
        assert_eq!(kept(of, 6, Some(6), &[]), [2, 5]);
        assert_eq!(kept(of, 3, Some(2), &[]), [0, 1, 2]);
        assert_eq!(kept(of, 6, Some(0), &[7, 3, 9]), [1, 3]);
    }

    #[test]
    fn full_attention_and_chunks_keep_everything() {
        for reads in [Reads::Full, Reads::Chunk(8)] {
            let of = Retention { reads, block_tokens: 2, alignment: 8, drops: false };
            assert_eq!(kept(of, 3, Some(0), &[]), [0, 1, 2]);
        }
    }
}
