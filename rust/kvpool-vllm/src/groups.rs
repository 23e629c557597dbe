//! `Growth`: what a step asks of one KV-cache group of a running request.
//!
//! The arithmetic of vLLM's `allocate_slots` for requests that go on: which blocks of a table no token reads any more, how many it
//! lacks, how many are full. What tokens read is [`kvpool::groups`]'.

use kvpool::groups::{Blocks, GroupSpec, Tokens};

/// A step of a request, in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Computed, and not in flight: no step that runs reads before them, and none takes them back.
    pub settled: usize,
    /// That need slots: computed ones, those of this step, lookahead.
    pub slots: usize,
    /// Whose KV is final after this step.
    pub cacheable: usize,
}

/// What the step asks of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Growth {
    /// Leading blocks of the table that no token reads any more.
    pub dead: usize,
    /// Blocks that the table lacks.
    pub missing: usize,
    /// Blocks that are full and final.
    pub full: usize,
}

impl Growth {
    /// Of a group whose table has so many blocks. `retained` tokens before what is read are kept all the same.
    #[must_use]
    pub fn of(spec: &GroupSpec, step: Step, table: usize, retained: usize) -> Self {
        let reach = spec.kind.reach(Tokens(step.settled)).minus(Tokens(retained));
        Self {
            dead: spec.full_blocks(reach).min(Blocks(table)).0,
            missing: spec.covering(Tokens(step.slots)).minus(Blocks(table)).0,
            full: spec.full_blocks(Tokens(step.cacheable)).0,
        }
    }
}

#[cfg(test)]
mod tests {
    use kvpool::groups::{GroupKind, GroupSpec};

    use super::{Growth, Step};

    #[test]
    fn a_window_gives_up_what_lies_left_of_it() {
        let window = GroupSpec::new(GroupKind::Sliding { window: 4 }, 2);
        let step = Step { settled: 7, slots: 9, cacheable: 8 };
        // The next token is 7: it reads 4 to 7.
        assert_eq!(Growth::of(&window, step, 4, 0), Growth { dead: 2, missing: 1, full: 4 });
        assert_eq!(Growth::of(&window, step, 4, 1).dead, 1);
        assert_eq!(Growth::of(&window, step, 1, 0).dead, 1, "no more than there are");
        assert_eq!(Growth::of(&window, step, 6, 0).missing, 0);
    }

    #[test]
    fn a_state_is_the_last_token_s() {
        let state = GroupSpec::new(GroupKind::State, 4);
        let dead = |settled| Growth::of(&state, Step { settled, ..Step::default() }, 9, 0).dead;
        assert_eq!([0, 1, 4, 5, 8, 9].map(dead), [0, 0, 0, 1, 1, 2]);
    }
}
