//! Computes the largest number of blocks that a single request holds while its prompt is computed.
//!
//! This number depends only on the groups, the length of the prompt and the chunk size. Cached content
//! does not matter, because a hit is not used if it needs more blocks than are available.

use super::{Blocks, GroupKind, GroupSpec, Groups, Tokens};

impl GroupSpec {
    /// Returns the positions `first..end` of a group's table that contain the null block. The first
    /// `ready` tokens of the request were hit or loaded when it was admitted. Its first `settled`
    /// tokens are computed.
    #[must_use]
    pub fn given_up(&self, ready: Tokens, settled: Tokens) -> (Blocks, Blocks) {
        let dead = self.dead(settled);
        if self.is_cached() {
            return (self.sink_blocks().min(dead), dead);
        }
        // A group without caching has no blocks for tokens that were hit, not even for attention sinks.
        let absent = self.full_blocks(ready);
        let first = if absent > Blocks::ZERO { Blocks::ZERO } else { self.sink_blocks().min(dead) };
        (first, dead.max(absent))
    }

    /// Returns the number of blocks in a group's table, without null blocks, if its first `covered`
    /// tokens have blocks. `ready` and `settled` have the same meaning as in [`Self::given_up`].
    fn held(&self, ready: Tokens, settled: Tokens, covered: Tokens) -> usize {
        match self.kind {
            GroupKind::State => 1,
            GroupKind::Cross => 0,
            _ => {
                let (first, end) = self.given_up(ready, settled);
                self.covering(covered).0.saturating_sub(end.minus(first).0)
            }
        }
    }

    /// Returns an upper bound of [`Self::held`] during a prefill in chunks of `chunk` tokens. Only for
    /// groups that release blocks.
    fn most_held(&self, chunk: usize) -> usize {
        let span = self.kind.span().unwrap_or(0).saturating_add(self.sink_tokens);
        span.saturating_add(chunk).div_ceil(self.block_tokens).saturating_add(2)
    }
}

impl Groups {
    /// Returns the largest number of blocks that a single request holds while tokens `start..tokens` of
    /// its prompt are computed in chunks of `chunk` tokens. A chunk has at least 1 token, and gets
    /// blocks after the previous chunk is committed. O(1) with full attention, else O(chunks) at worst.
    ///
    /// ```
    /// use kvpool::groups::{GroupKind, GroupSpec, Groups, Tokens};
    /// let window = GroupSpec::new(GroupKind::Sliding { window: 64 }, 16);
    /// let groups = Groups::new(vec![GroupSpec::new(GroupKind::Full, 16), window], None)?;
    /// let peak = |chunk| groups.peak_blocks(Tokens(1600), Tokens(0), chunk);
    /// assert_eq!((peak(1600), peak(64)), (200, 108));
    /// # Ok::<(), kvpool::PoolError>(())
    /// ```
    #[must_use]
    pub fn peak_blocks(&self, tokens: Tokens, start: Tokens, chunk: usize) -> usize {
        let chunk = chunk.max(1);
        let (start, rest) = (start.min(tokens), tokens.minus(start).0);
        // Groups of full attention release no blocks. So the numbers of blocks of earlier chunks are
        // only checked as far as they can be above that of the last chunk.
        let grows = |spec: &&GroupSpec| spec.kind.is_full();
        let given_up = self.specs.iter().filter(|spec| !grows(spec));
        let bound = given_up.fold(0_usize, |sum, spec| sum.saturating_add(spec.most_held(chunk)));
        let mut peak = 0;
        for nth in (0..rest.div_ceil(chunk).max(1)).rev() {
            let from = start.plus(Tokens(nth.saturating_mul(chunk)));
            let covered = from.plus(Tokens(chunk)).min(tokens);
            let held = |sum: usize, spec: &GroupSpec| sum.saturating_add(spec.held(start, from, covered));
            peak = peak.max(self.specs.iter().fold(0, held));
            let full = self.specs.iter().filter(grows).fold(0, held);
            if full.saturating_add(bound) <= peak {
                break;
            }
        }
        peak
    }
}
