//! `Growth` and `Arrival`: how many blocks one step of a request needs in one KV-cache group.
//!
//! They do the arithmetic of vLLM's `allocate_slots`: how many blocks of a table no token reads any
//! more, and how many blocks the table lacks. [`kvpool::groups`] defines which earlier tokens a token
//! reads.

use kvpool::groups::{Blocks, GroupSpec, Tokens};

/// The arguments of one call of vLLM's `allocate_slots`.
///
/// ```
/// use kvpool_vllm::Call;
/// let call = Call { new: 4, lookahead: 2, ..Call::default() };
/// // A request with 10 computed tokens of 14, none of them in flight.
/// let step = call.step(10, 0, 14, 1000);
/// assert_eq!((step.main, step.slots), (14, 16));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// Number of tokens that the engine computes in this step.
    pub new: usize,
    /// Number of slots after those of the new tokens, for draft tokens.
    pub lookahead: usize,
    /// Whether full blocks of the request are cached.
    pub caches: bool,
    /// Whether the pool must have room for all tokens of the request, and not only for those of this
    /// call.
    pub whole: bool,
    /// Number of free blocks that are reserved for other requests.
    pub reserved: usize,
    /// Whether some free blocks (vLLM's watermark) must remain when a waiting request is admitted.
    pub watermark: bool,
}

impl Call {
    /// Returns the step of a request that has `tokens` tokens. `computed` of them are computed, and
    /// `in_flight` of these are in steps that still run. No request has more than `max_len` tokens.
    #[must_use]
    pub fn step(&self, computed: usize, in_flight: usize, tokens: usize, max_len: usize) -> Step {
        let computed = computed.min(max_len);
        let main = computed.saturating_add(self.new);
        Step {
            computed,
            settled: computed.saturating_sub(in_flight),
            slots: main.saturating_add(self.lookahead).min(max_len),
            main,
            cached: if self.caches { main.min(tokens) } else { 0 },
            whole: self.whole.then(|| tokens.min(max_len)),
        }
    }
}

/// One step of a request. All fields are numbers of tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Computed tokens before the step. For an arriving request, these are the tokens of its hit.
    pub computed: usize,
    /// Computed tokens whose steps have ended. Running steps cannot revert these tokens.
    pub settled: usize,
    /// Tokens that need slots: computed tokens, tokens of this step, and slots for draft tokens.
    pub slots: usize,
    /// Tokens that are computed after this step, without draft tokens.
    pub main: usize,
    /// How many of the tokens that the field `main` counts may be cached after this step.
    pub cached: usize,
    /// All tokens of the request. `None` unless the pool must have room for all of them now.
    pub whole: Option<usize>,
}

/// How one step changes the block table of one group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Growth {
    /// Number of blocks at the start of the table that no token reads any more.
    pub dead: usize,
    /// Number of blocks that have to be appended to the table.
    pub missing: usize,
}

impl Growth {
    /// Computes the changes for a group whose table has `table` blocks. `retained` is the number of
    /// tokens that the group keeps although its layers do not read them any more.
    #[must_use]
    pub fn of(spec: &GroupSpec, step: Step, table: usize, retained: usize) -> Self {
        let reach = spec.kind.reach(Tokens(step.settled)).minus(Tokens(retained));
        Self {
            dead: spec.full_blocks(reach).min(Blocks(table)).0,
            missing: spec.covering(Tokens(step.slots)).minus(Blocks(table)).0,
        }
    }
}

/// The number of free blocks that must remain after an allocation.
///
/// ```
/// use kvpool_vllm::Room;
/// let room = Room { reserved: 2, watermark: 1 };
/// assert!(room.fits(7, 10));
/// assert!(!room.fits(8, 10));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Number of blocks that are reserved for other requests.
    pub reserved: usize,
    /// Number of blocks that must remain free when a request arrives.
    pub watermark: usize,
}

impl Room {
    /// Whether an allocation of `blocks` blocks is allowed if `free` blocks are free.
    #[must_use]
    pub const fn fits(self, blocks: usize, free: usize) -> bool {
        blocks.saturating_add(self.reserved).saturating_add(self.watermark) <= free
    }
}

/// The blocks that an arriving request needs in one group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrival {
    /// Number of positions at the start of its table whose tokens no later token reads. The table has
    /// null blocks there.
    pub skipped: usize,
    /// Number of blocks to append after the null blocks and the blocks of the hit.
    pub missing: usize,
}

impl Arrival {
    /// Computes the blocks that a request needs in a group. The group has `hits` blocks of the
    /// request's first `computed` tokens. The request needs `slots` slots, in at most `most` blocks.
    /// `retained` is the number of tokens that the group keeps although its layers do not read them any
    /// more.
    #[must_use]
    pub fn of(
        spec: &GroupSpec,
        computed: usize,
        slots: usize,
        hits: usize,
        retained: usize,
        most: usize,
    ) -> Self {
        let reach = spec.kind.reach(Tokens(computed)).minus(Tokens(retained));
        let skipped = spec.full_blocks(reach).0;
        let required = spec.covering(Tokens(slots)).0.min(most);
        Self { skipped, missing: required.saturating_sub(skipped.max(hits)) }
    }
}

#[cfg(test)]
mod tests {
    use kvpool::groups::{GroupKind, GroupSpec};

    use super::{Arrival, Growth, Step};

    #[test]
    fn a_window_releases_the_blocks_before_it() {
        let window = GroupSpec::new(GroupKind::Sliding { window: 4 }, 2);
        let step = Step { settled: 7, slots: 9, ..Step::default() };
        // The next token has position 7 and reads positions 4 to 7.
        assert_eq!(Growth::of(&window, step, 4, 0), Growth { dead: 2, missing: 1 });
        assert_eq!(Growth::of(&window, step, 4, 1).dead, 1);
        assert_eq!(Growth::of(&window, step, 1, 0).dead, 1, "no more than there are");
        assert_eq!(Growth::of(&window, step, 6, 0).missing, 0);
    }

    #[test]
    fn an_arriving_request_gets_null_blocks_before_its_window() {
        let window = GroupSpec::new(GroupKind::Sliding { window: 4 }, 2);
        let of = |computed, slots, hits, most| Arrival::of(&window, computed, slots, hits, 0, most);
        assert_eq!(of(8, 11, 4, 99), Arrival { skipped: 2, missing: 2 });
        assert_eq!(of(8, 11, 0, 99), Arrival { skipped: 2, missing: 4 });
        assert_eq!(of(0, 11, 0, 3), Arrival { skipped: 0, missing: 3 });
        assert_eq!(of(8, 11, 4, 3), Arrival { skipped: 2, missing: 0 });
    }

    #[test]
    fn a_state_belongs_to_the_last_token() {
        let state = GroupSpec::new(GroupKind::State, 4);
        let dead = |settled| Growth::of(&state, Step { settled, ..Step::default() }, 9, 0).dead;
        assert_eq!([0, 1, 4, 5, 8, 9].map(dead), [0, 0, 0, 1, 1, 2]);
    }
}
