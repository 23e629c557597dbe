//! Which blocks of a group are worth a place in the index.
//!
//! A hit can end only where every group has kept what a token there reads. Full attention keeps everything; a window, a chunk or a
//! state that kept everything would fill the pool with blocks that no hit needs. So a sparse group keeps what hits need that end
//! at some *boundaries*: every so many tokens, where the prompt ends (it will be asked again, alone or with more behind it), and at
//! *junctions*, where a hit of the full groups went further than this group's (the next request with this prefix turns off there, too;
//! Marconi, 2025; vLLM's `prefix_cache_retention_interval`).
//!
//! Costs: O(1) per block and boundary.

use super::{Blocks, GroupSpec, Groups, Keep, Tokens};

/// Where hits of a request's tokens are expected to end, beside those of [`Keep::Every`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Boundaries {
    /// Tokens of the prompt: a later request that has them all computes the last one itself.
    pub prompt: Tokens,
    /// Where the hit of the full groups ended when the request was admitted, if that of another group ended before.
    pub junction: Option<Tokens>,
}

impl Groups {
    /// Whether the block of a group at a position stays cached when it is full.
    #[must_use]
    pub fn kept(&self, group: usize, at: Blocks, boundaries: Boundaries) -> bool {
        let Some(spec) = self.specs.get(group).filter(|spec| spec.kind.is_cached()) else { return false };
        if spec.kind.is_full() || spec.keep == Keep::All {
            return true;
        }
        // Of all multiples the first that needs something behind the block reaches back the furthest.
        let behind = spec.tokens(at.plus(Blocks(1)).minus(Blocks(spec.margin))).max(Tokens(1));
        self.boundaries_of(spec, behind, boundaries).any(|boundary| is_needed(spec, at, boundary))
    }

    /// The first boundary behind `after` tokens at which a hit needs something that a group keeps: where the state of a request is
    /// worth a copy next. O(1).
    #[must_use]
    pub fn next_kept(&self, group: usize, after: Tokens, boundaries: Boundaries) -> Option<Tokens> {
        let spec = self.specs.get(group).filter(|spec| spec.kind.is_cached())?;
        let behind = after.plus(Tokens(1));
        self.boundaries_of(spec, behind, boundaries).filter(|&boundary| boundary > after).min()
    }

    /// Where hits are expected to end: at the end of the prompt, at a junction, and at the first multiple from `behind` on.
    fn boundaries_of(
        &self,
        spec: &GroupSpec,
        behind: Tokens,
        boundaries: Boundaries,
    ) -> impl Iterator<Item = Tokens> {
        let interval = match spec.keep {
            Keep::All => Some(self.alignment),
            Keep::Every(interval) => interval.checked_next_multiple_of(self.alignment),
            Keep::Junctions => None,
        };
        let replays =
            [boundaries.prompt.minus(Tokens(1)), boundaries.prompt].map(|limit| self.longest_possible(limit));
        let junction = boundaries.junction.map(|tokens| self.align(tokens));
        let next = interval.and_then(|interval| behind.0.checked_next_multiple_of(interval)).map(Tokens);
        replays.into_iter().chain(junction).chain(next)
    }
}

/// Whether a hit that ends at a boundary needs a block.
fn is_needed(spec: &GroupSpec, at: Blocks, boundary: Tokens) -> bool {
    let (first, end) = spec.needed(boundary);
    (first..end).contains(&at)
}
