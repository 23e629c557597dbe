//! `States`: where in a block table the aligned recurrent state of a request is, and how it moves.
//!
//! vLLM updates a state within its block until all tokens of that block are computed. Then the state
//! moves to the next block, and the previous block keeps a copy that can be hit. The table's blocks
//! after the running state hold the states of drafts, and move together with it. Inside of a prompt
//! chunk no state ends, so the table has null blocks at these positions.
//!
//! This is the arithmetic of vLLM 0.32 and 0.33 (`MambaManager`, mode `align`). The caller owns the
//! tables.

use kvpool::groups::GroupSpec;

use crate::groups::Arrival;

/// The rules of a group of aligned recurrent states.
///
/// ```
/// use kvpool_vllm::States;
/// let states = States { speculative: 2, ..States::default() };
/// assert_eq!(states.tail(10, 4), 8); // with one digest per 4 tokens
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct States {
    /// Number of blocks after the running state that hold the states of drafts.
    pub speculative: usize,
    /// Whether draft heads (EAGLE, MTP) have to recompute the end of a hit.
    pub drops: bool,
    /// Number of tokens after a block that also determine the block's digest. `None` if vLLM has no
    /// such digests.
    pub lookahead: Option<usize>,
    /// Whether the state at a junction is also cached. A junction is the position at which a request
    /// diverged from an earlier one.
    pub junctions: bool,
}

/// How a block table changes when its recurrent state moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Move {
    /// Position of the state's block before the move. `None` for an arriving request without a hit.
    pub from: Option<usize>,
    /// Number of null blocks to append. They are at positions at which no state ends.
    pub nulls: usize,
    /// The positions `start..end` of the blocks of drafts that are moved to the end of the table.
    pub drafts: (usize, usize),
}

/// The error for a table that has too few blocks for a state and the states of its drafts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoState;

impl States {
    /// Returns the blocks that an arriving request needs. It has `hits` blocks of its first `computed`
    /// tokens, and `main` computed tokens after this step. It needs new blocks for at most one state
    /// and the states of its drafts.
    #[must_use]
    pub fn arrival(&self, spec: &GroupSpec, computed: usize, main: usize, hits: usize) -> Arrival {
        let required = main.div_ceil(spec.block_tokens).saturating_add(self.speculative);
        let missing = required.saturating_sub(hits).min(1 + self.speculative);
        Arrival { missing, ..Arrival::of(spec, computed, 0, hits, 0, usize::MAX) }
    }

    /// Returns how the table of an arriving request changes. The table has the `len` blocks of the hit.
    #[must_use]
    pub fn first_move(&self, spec: &GroupSpec, len: usize, main: usize) -> Option<Move> {
        let end = main.div_ceil(spec.block_tokens);
        let nulls = end.saturating_sub(1).saturating_sub(len);
        let grows = end.saturating_add(self.speculative) > len;
        grows.then(|| Move { from: len.checked_sub(1), nulls, drafts: (0, 0) })
    }

    /// Returns how a table of `len` blocks changes when `main` tokens are computed. `None` if it has
    /// enough blocks.
    ///
    /// # Errors
    /// [`NoState`] if the table is too short to contain a state.
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

    /// Whether the previous state, at position `last`, is no longer needed when the steps of the first
    /// `settled` tokens have ended.
    #[must_use]
    pub const fn is_past(&self, spec: &GroupSpec, last: usize, settled: usize) -> bool {
        last < settled.div_ceil(spec.block_tokens).saturating_sub(1)
    }

    /// Returns the position in a prompt at which the last state ends that a later request with the same
    /// prompt can use. `unit` is the number of tokens per digest.
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
        // Tokens 5 to 16 are computed in one step, so no state exists after 8 and after 12 tokens.
        assert_eq!(states.next_move(&SPEC, 1, 16), Ok(Some(Move { nulls: 2, ..next })));
        assert_eq!(states.next_move(&SPEC, 0, 1), Err(NoState));
    }

    #[test]
    fn drafts_move_along() {
        let states = States { speculative: 2, ..States::default() };
        assert_eq!(states.next_move(&SPEC, 3, 4), Ok(None));
        // The state moves from position 0 to position 1, which held the state of the first draft. That
        // draft's block moves to the end of the table.
        assert_eq!(states.next_move(&SPEC, 3, 5), Ok(Some(Move { from: Some(0), nulls: 0, drafts: (1, 1) })));
        assert_eq!(
            states.next_move(&SPEC, 3, 12),
            Ok(Some(Move { from: Some(0), nulls: 0, drafts: (1, 2) }))
        );
        assert_eq!(states.next_move(&SPEC, 2, 12), Err(NoState));
    }

    #[test]
    fn an_arriving_request_takes_a_state_and_its_drafts() {
        let states = States { speculative: 1, ..States::default() };
        assert_eq!(states.arrival(&SPEC, 0, 40, 0).missing, 2);
        assert_eq!(states.arrival(&SPEC, 8, 8, 2).missing, 1, "its state is that of the hit");
        assert_eq!(states.first_move(&SPEC, 0, 40), Some(Move { from: None, nulls: 9, drafts: (0, 0) }));
        assert_eq!(states.first_move(&SPEC, 2, 12), Some(Move { from: Some(1), nulls: 0, drafts: (0, 0) }));
        assert_eq!(States::default().first_move(&SPEC, 2, 8), None);
    }

    #[test]
    fn the_previous_state_is_freed_after_a_settled_token_in_the_next_block() {
        let past = |settled| States::default().is_past(&SPEC, 0, settled);
        assert_eq!([0, 4, 5, 8].map(past), [false, false, true, true]);
    }

    #[test]
    fn the_tail_is_the_last_state_that_the_same_prompt_can_use() {
        let tail = |drops, lookahead| States { drops, lookahead, ..States::default() }.tail(16, 4);
        assert_eq!([tail(false, None), tail(false, Some(5)), tail(true, None)], [12, 8, 12]);
        assert_eq!(States::default().tail(17, 4), 16);
        assert_eq!(States::default().tail(0, 4), 0);
    }
}
