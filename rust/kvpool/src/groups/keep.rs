//! Which blocks of a group are worth a place in the index.
//!
//! A hit can end only where every group has kept what a token there reads. Full attention keeps
//! everything; a window, a chunk or a state that kept everything would fill the pool with blocks that
//! no hit needs. So a sparse group keeps what hits need that end at some *boundaries*: every so many
//! tokens, where the prompt ends (it will be asked again, alone or with more behind it), and at
//! *junctions*, where a hit of the full groups went further than this group's (the next request with
//! this prefix turns off there, too; Marconi, 2025; vLLM's `prefix_cache_retention_interval`).
//!
//! Costs: O(1) per block and boundary.

use super::{Blocks, GroupSpec, Groups, Keep, Tokens};

/// Where hits of a request's tokens are expected to end, beside those of [`Keep::Every`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Boundaries {
    /// Tokens of the prompt: a later request that has them all computes the last one itself.
    pub prompt: Tokens,
    /// Where the hit of the full groups ended when the request was admitted, if that of another group
    /// ended before.
    pub junction: Option<Tokens>,
}

impl Groups {
    /// Whether the block of a group at a position stays cached when it is full.
    #[must_use]
    pub fn kept(&self, group: usize, at: Blocks, boundaries: Boundaries) -> bool {
        self.kept_of(group, boundaries).is_some_and(|kept| kept.keeps(at))
    }

    /// The first boundary behind `after` tokens at which a hit needs something that a group keeps:
    /// where the state of a request is worth a copy next. O(1).
    #[must_use]
    pub fn next_kept(&self, group: usize, after: Tokens, boundaries: Boundaries) -> Option<Tokens> {
        let kept = self.kept_of(group, boundaries)?;
        kept.ends(after.plus(Tokens(1))).filter(|&boundary| boundary > after).min()
    }

    /// What a group keeps of a request; `None` if it caches nothing. O(groups).
    #[must_use]
    pub(crate) fn kept_of(&self, group: usize, boundaries: Boundaries) -> Option<Kept<'_>> {
        let spec = self.specs.get(group).filter(|spec| spec.is_cached())?;
        let interval = match spec.keep {
            Keep::All => Some(self.alignment),
            Keep::Every(interval) => interval.checked_next_multiple_of(self.alignment),
            Keep::Junctions | Keep::Nothing => None,
        };
        let Boundaries { prompt, junction } = boundaries;
        let replays = [prompt.minus(Tokens(1)), prompt].map(|limit| self.longest_possible(limit));
        let junction = junction.map_or(Tokens::ZERO, |tokens| self.align(tokens));
        Some(Kept { spec, fixed: [replays[0], replays[1], junction], interval })
    }
}

/// Where hits of a request are expected to end, as far as a group is concerned.
pub(crate) struct Kept<'a> {
    spec: &'a GroupSpec,
    /// At the end of the prompt, and at a junction; a hit of no tokens needs nothing.
    fixed: [Tokens; 3],
    /// And at every multiple of this.
    interval: Option<usize>,
}

impl Kept<'_> {
    /// Whether the block at a position stays cached when it is full.
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
        // Of all multiples the first that needs something behind the block reaches back the furthest.
        let behind = spec.tokens(at.plus(Blocks(1)).minus(Blocks(spec.margin))).max(Tokens(1));
        self.ends(behind).any(is_needed)
    }

    /// The fixed ones, and the first multiple from `behind` on.
    fn ends(&self, behind: Tokens) -> impl Iterator<Item = Tokens> {
        let next = self.interval.and_then(|interval| behind.0.checked_next_multiple_of(interval));
        self.fixed.into_iter().chain(next.map(Tokens))
    }
}
