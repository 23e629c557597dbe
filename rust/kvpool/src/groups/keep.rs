//! Selects the blocks of a KV-cache group that should remain cached.
//!
//! A hit can only end at a position if every group has kept the blocks that a token at this position
//! reads. Full attention keeps all blocks. If a window, a chunk or a state kept all blocks, the pool
//! would fill with blocks that no hit needs. So a sparse group only keeps the blocks for hits that end
//! at *boundaries*:
//!
//! - at multiples of a number of tokens;
//! - at the end of the prompt, because the prompt will be sent again, alone or with more tokens after
//!   it;
//! - at *junctions*: positions at which the hit of the full groups ended, when it was longer than the
//!   hit of this group. The next request with this prefix will probably also differ from that position
//!   on (Marconi, 2025; vLLM's `prefix_cache_retention_interval`).
//!
//! Costs: O(1) for each pair of a block and a boundary.

use super::{Blocks, GroupSpec, Groups, Keep, Tokens};

/// The positions at which later hits of a request's tokens are expected to end, in addition to the
/// multiples of [`Keep::Every`].
///
/// ```
/// use kvpool::groups::{Blocks, Boundaries, GroupKind, GroupSpec, Groups, Keep, Tokens};
/// let window = GroupSpec { keep: Keep::Junctions, ..GroupSpec::new(GroupKind::Sliding { window: 16 }, 16) };
/// let groups = Groups::new(vec![GroupSpec::new(GroupKind::Full, 16), window], None)?;
/// let boundaries = Boundaries { prompt: Tokens(160), junction: None };
/// // The window only keeps the blocks for hits that end with the prompt, or one block before.
/// let kept = (0..10).filter(|&at| groups.kept(1, Blocks(at), boundaries));
/// assert_eq!(kept.collect::<Vec<_>>(), [8, 9]);
/// # Ok::<(), kvpool::PoolError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Boundaries {
    /// Number of tokens in the prompt. A later request with the same prompt computes the last token
    /// again.
    pub prompt: Tokens,
    /// The position at which the hit of the groups of full attention ended at admission, if the hit of
    /// another group was shorter.
    pub junction: Option<Tokens>,
}

impl Groups {
    /// Whether the block at a position of a group's table is to be registered when it is full.
    #[must_use]
    pub fn kept(&self, group: usize, at: Blocks, boundaries: Boundaries) -> bool {
        self.kept_of(group, boundaries).is_some_and(|kept| kept.keeps(at))
    }

    /// Returns the first boundary above `after` tokens at which a hit needs blocks that a group keeps
    /// cached. At this token count, a copy of the request's recurrent state should be made. O(1).
    #[must_use]
    pub fn next_kept(&self, group: usize, after: Tokens, boundaries: Boundaries) -> Option<Tokens> {
        let kept = self.kept_of(group, boundaries)?;
        kept.ends(after.plus(Tokens(1))).filter(|&boundary| boundary > after).min()
    }

    /// Returns the rule that selects the blocks of a request that a group keeps cached. `None` if the
    /// group caches nothing. O(groups).
    #[must_use]
    pub(crate) fn kept_of(&self, group: usize, boundaries: Boundaries) -> Option<KeptBlocks<'_>> {
        let spec = self.specs.get(group).filter(|spec| spec.is_cached())?;
        let interval = match spec.keep {
            Keep::All => Some(self.alignment),
            Keep::Every(interval) => interval.checked_next_multiple_of(self.alignment),
            Keep::Junctions | Keep::Nothing => None,
        };
        let Boundaries { prompt, junction } = boundaries;
        let replays = [prompt.minus(Tokens(1)), prompt].map(|limit| self.longest_possible(limit));
        let junction = junction.map_or(Tokens::ZERO, |tokens| self.align(tokens));
        Some(KeptBlocks { spec, fixed: [replays[0], replays[1], junction], interval })
    }
}

/// The boundaries of one group: the token counts at which later hits are expected to end.
pub(crate) struct KeptBlocks<'a> {
    spec: &'a GroupSpec,
    /// Single boundaries: the end of the prompt, the end without its last token, and the junction. 0
    /// stands for a boundary that does not exist, because a hit of 0 tokens needs no blocks.
    fixed: [Tokens; 3],
    /// Every multiple of this number of tokens is also a boundary.
    interval: Option<usize>,
}

impl KeptBlocks<'_> {
    /// Whether the block at a position is to be registered when it is full.
    #[must_use]
    pub(crate) fn keeps(&self, at: Blocks) -> bool {
        let Self { spec, .. } = *self;
        if spec.kind.is_full() || spec.keep == Keep::All || at < spec.sink_blocks() {
            return true;
        }
        let is_needed = |boundary| {
            let (first, end) = spec.needed(boundary);
            (first..end).contains(&at)
        };
        // Only the first multiple after the block is checked. A hit that ends at a later multiple needs
        // no earlier blocks.
        let behind = spec.tokens(at.plus(Blocks(1)).minus(Blocks(spec.margin))).max(Tokens(1));
        self.ends(behind).any(is_needed)
    }

    /// Returns the single boundaries, and the first multiple of the interval that is at least `behind`.
    fn ends(&self, behind: Tokens) -> impl Iterator<Item = Tokens> {
        let next = self.interval.and_then(|interval| behind.0.checked_next_multiple_of(interval));
        self.fixed.into_iter().chain(next.map(Tokens))
    }
}
