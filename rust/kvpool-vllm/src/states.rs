//! `States`: where an aligned recurrent state of a request is, and where it goes.
//!
//! vLLM lets a state go on in its block until the block's tokens are full; it then moves to the next
//! one, and the block before keeps a copy that can be hit. Behind the running state stand blocks for
//! states of drafts, which move along. Positions that no state ends at, within a chunk of a prompt, are
//! null. This is the arithmetic of vLLM 0.32 and 0.33 (`MambaManager`, mode `align`); tables are the
//! caller's.

use kvpool::groups::GroupSpec;

use crate::groups::Arrival;

/// What a group of aligned states is like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct States {
    /// Blocks behind the running state, for drafts.
    pub speculative: usize,
    /// Whether heads compute the end of a hit again.
    pub drops: bool,
    /// Tokens behind a block that are in its digest; `None` where vLLM knows no such digests.
    pub lookahead: Option<usize>,
    /// Whether the state at a junction is cached, too.
    pub junctions: bool,
}

/// How a table grows when its state moves on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Move {
    /// The position of the state until now; none of a request without a hit that comes.
    pub from: Option<usize>,
    /// Null blocks that are appended: nothing ends there.
    pub nulls: usize,
    /// Blocks from this position on go behind those, for drafts.
    pub drafts: (usize, usize),
}

/// A table has no block for the state and its drafts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoState;

impl States {
    /// What a request that comes asks, with `hits` blocks of its first `computed` tokens, and `main`
    /// behind this step: no more than a state and its drafts.
    #[must_use]
    pub fn arrival(&self, spec: &GroupSpec, computed: usize, main: usize, hits: usize) -> Arrival {
        let required = main.div_ceil(spec.block_tokens).saturating_add(self.speculative);
        let missing = required.saturating_sub(hits).min(1 + self.speculative);
        Arrival { missing, ..Arrival::of(spec, computed, 0, hits, 0, usize::MAX) }
    }

    /// How the table of a request that comes grows, of `len` blocks of its hit.
    #[must_use]
    pub fn first_move(&self, spec: &GroupSpec, len: usize, main: usize) -> Option<Move> {
        let end = main.div_ceil(spec.block_tokens);
        let nulls = end.saturating_sub(1).saturating_sub(len);
        let grows = end.saturating_add(self.speculative) > len;
        grows.then(|| Move { from: len.checked_sub(1), nulls, drafts: (0, 0) })
    }

    /// How a table of `len` blocks grows for `main` tokens, if it does.
    ///
    /// # Errors
    /// [`NoState`] of a table that is too short to have a state.
    pub fn next_move(&self, spec: &GroupSpec, len: usize, main: usize) -> Result<Option<Move>, NoState> {
        let end = main.div_ceil(spec.block_tokens);
        if end.saturating_add(self.speculative) <= len {
            return Ok(None);
        }
        let skipped = end.saturating_sub(1);
        let from = len.checked_sub(1 + self.speculative).ok_or(NoState)?;
        let drafts = (from + 1, skipped.clamp(from + 1, len));
        Ok(Some(Move { from: Some(from), nulls: skipped.saturating_sub(len), drafts }))
    }

    /// Whether the state before, at position `last`, is of no use once so many tokens are settled.
    #[must_use]
    pub const fn is_past(&self, spec: &GroupSpec, last: usize, settled: usize) -> bool {
        last < settled.div_ceil(spec.block_tokens).saturating_sub(1)
    }

    /// The last position in a prompt whose state the next request with this prompt can use; `unit` are
    /// the tokens of a digest.
    #[must_use]
    pub const fn tail(&self, prompt: usize, unit: usize) -> usize {
        let lookahead = match self.lookahead {
            Some(tokens) if tokens > 1 => tokens,
            _ => 1,
        };
        let most = if self.drops { prompt } else { prompt.saturating_sub(lookahead) };
        let end = most - most % unit;
        if self.drops { end.saturating_sub(unit) } else { end }
    }
}

#[cfg(test)]
mod tests {
    use kvpool::groups::{GroupKind, GroupSpec};

    use super::{Move, NoState, States};

    const SPEC: GroupSpec = GroupSpec::new(GroupKind::State, 4);

    #[test]
    fn a_state_stays_until_its_block_is_full_and_leaves_nulls_within_a_chunk() {
        let states = States::default();
        assert_eq!(states.next_move(&SPEC, 1, 4), Ok(None));
        let next = Move { from: Some(0), nulls: 0, drafts: (1, 1) };
        assert_eq!(states.next_move(&SPEC, 1, 5), Ok(Some(next)));
        // Tokens 5 to 16 in one step: the states at 8 and 12 are never there.
        assert_eq!(states.next_move(&SPEC, 1, 16), Ok(Some(Move { nulls: 2, ..next })));
        assert_eq!(states.next_move(&SPEC, 0, 1), Err(NoState));
    }

    #[test]
    fn drafts_move_along() {
        let states = States { speculative: 2, ..States::default() };
        assert_eq!(states.next_move(&SPEC, 3, 4), Ok(None));
        // The state goes from 0 to 1, where the first draft's was: that one goes behind the other.
        assert_eq!(states.next_move(&SPEC, 3, 5), Ok(Some(Move { from: Some(0), nulls: 0, drafts: (1, 1) })));
        assert_eq!(
            states.next_move(&SPEC, 3, 12),
            Ok(Some(Move { from: Some(0), nulls: 0, drafts: (1, 2) }))
        );
        assert_eq!(states.next_move(&SPEC, 2, 12), Err(NoState));
    }

    #[test]
    fn who_comes_takes_a_state_and_its_drafts_whatever_the_prompt() {
        let states = States { speculative: 1, ..States::default() };
        assert_eq!(states.arrival(&SPEC, 0, 40, 0).missing, 2);
        assert_eq!(states.arrival(&SPEC, 8, 8, 2).missing, 1, "its state is that of the hit");
        assert_eq!(states.first_move(&SPEC, 0, 40), Some(Move { from: None, nulls: 9, drafts: (0, 0) }));
        assert_eq!(states.first_move(&SPEC, 2, 12), Some(Move { from: Some(1), nulls: 0, drafts: (0, 0) }));
        assert_eq!(States::default().first_move(&SPEC, 2, 8), None);
    }

    #[test]
    fn the_state_before_goes_when_a_settled_token_is_in_the_next_block() {
        let past = |settled| States::default().is_past(&SPEC, 0, settled);
        assert_eq!([0, 4, 5, 8].map(past), [false, false, true, true]);
    }

    #[test]
    fn the_end_of_a_prompt_is_where_the_same_prompt_goes_on() {
        let tail = |drops, lookahead| States { drops, lookahead, ..States::default() }.tail(16, 4);
        assert_eq!([tail(false, None), tail(false, Some(5)), tail(true, None)], [12, 8, 12]);
        assert_eq!(States::default().tail(17, 4), 16);
        assert_eq!(States::default().tail(0, 4), 0);
    }
}
