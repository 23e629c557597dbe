//! `Slots`: how many blocks a request needs, for one group of full attention.
//!
//! The arithmetic of vLLM's `KVCacheManager.allocate_slots` for the configuration that most models have: one group, whose
//! blocks are kept until the request ends. It is here, apart from everything that reads Python objects, so that it can
//! be read and tested.

/// What one call of `allocate_slots` asks for, in tokens and blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Tokens of the request that are computed, hits of this call included.
    pub computed: usize,
    /// Tokens to be computed now.
    pub new: usize,
    /// Slots beyond those, for speculation.
    pub lookahead: usize,
    /// Tokens of the request by now.
    pub num_tokens: usize,
    /// Blocks in its table.
    pub table: usize,
    /// Blocks of the hit that are not in the table yet.
    pub hits: usize,
    /// Those of them that are free now, and will not be once they are held.
    pub evictable: usize,
    /// Blocks that must stay free: the watermark.
    pub watermark: usize,
    /// Blocks that others rely on.
    pub reserved: usize,
    /// Whether all of its tokens must find room, not only those of this call.
    pub whole: bool,
}

/// The geometry of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots {
    /// Tokens per block.
    pub block_size: usize,
    /// Tokens that a request may have.
    pub max_model_len: usize,
}

impl Slots {
    /// Blocks to allocate for `demand` if `free` blocks are free; `None` if they may not be taken.
    #[must_use]
    pub fn plan(&self, demand: &Demand, free: usize) -> Option<usize> {
        if demand.whole {
            let tokens = demand.num_tokens.min(self.max_model_len);
            let required = self.missing(demand, tokens) + demand.evictable + demand.watermark;
            if required > free {
                return None;
            }
        }
        let computed = demand.computed.min(self.max_model_len);
        let tokens = (computed + demand.new + demand.lookahead).min(self.max_model_len);
        let missing = self.missing(demand, tokens);
        // What is reserved may exceed what is free.
        let available = free.checked_sub(demand.reserved)?;
        (missing + demand.evictable + demand.watermark <= available).then_some(missing)
    }

    /// Blocks that `tokens` need beyond the table and the hits.
    fn missing(&self, demand: &Demand, tokens: usize) -> usize {
        tokens.div_ceil(self.block_size).saturating_sub(demand.table + demand.hits)
    }

    /// Blocks that are full after the call, less the tokens that a later step computes again.
    #[must_use]
    pub fn full_blocks(&self, demand: &Demand, recomputed: usize) -> usize {
        let computed = demand.computed.min(self.max_model_len);
        (computed + demand.new).min(demand.num_tokens).saturating_sub(recomputed) / self.block_size
    }
}

#[cfg(test)]
mod tests {
    use super::{Demand, Slots};

    const SLOTS: Slots = Slots { block_size: 4, max_model_len: 32 };

    #[test]
    fn a_decode_step_needs_a_block_when_the_last_one_is_full() {
        let demand = Demand { computed: 7, new: 1, num_tokens: 8, table: 2, ..Demand::default() };
        assert_eq!(SLOTS.plan(&demand, 0), Some(0));
        assert_eq!(SLOTS.plan(&Demand { computed: 8, num_tokens: 9, ..demand }, 0), None);
        assert_eq!(SLOTS.plan(&Demand { computed: 8, num_tokens: 9, ..demand }, 1), Some(1));
    }

    #[test]
    fn blocks_of_rejected_drafts_are_no_debt() {
        let demand = Demand { computed: 5, new: 1, num_tokens: 6, table: 4, ..Demand::default() };
        assert_eq!(SLOTS.plan(&demand, 0), Some(0));
    }

    #[test]
    fn hits_that_are_free_count_as_taken() {
        let demand =
            Demand { computed: 8, new: 4, num_tokens: 12, hits: 2, evictable: 2, ..Demand::default() };
        assert_eq!(SLOTS.plan(&demand, 2), None);
        assert_eq!(SLOTS.plan(&demand, 3), Some(1));
    }

    #[test]
    fn the_watermark_and_what_is_reserved_stay_free() {
        let demand = Demand { new: 4, num_tokens: 4, watermark: 2, reserved: 3, ..Demand::default() };
        assert_eq!(SLOTS.plan(&demand, 5), None);
        assert_eq!(SLOTS.plan(&demand, 6), Some(1));
        assert_eq!(SLOTS.plan(&demand, 2), None);
    }

    #[test]
    fn a_first_chunk_may_have_to_wait_for_the_whole_request() {
        let demand = Demand { new: 4, num_tokens: 20, ..Demand::default() };
        assert_eq!(SLOTS.plan(&demand, 1), Some(1));
        assert_eq!(SLOTS.plan(&Demand { whole: true, ..demand }, 4), None);
        assert_eq!(SLOTS.plan(&Demand { whole: true, ..demand }, 5), Some(1));
        // What is reserved counts for this call's blocks, not for the rest.
        assert_eq!(SLOTS.plan(&Demand { whole: true, reserved: 4, ..demand }, 5), Some(1));
    }

    #[test]
    fn nothing_grows_beyond_the_model() {
        let demand = Demand { computed: 40, new: 8, num_tokens: 60, whole: true, ..Demand::default() };
        assert_eq!(SLOTS.plan(&demand, 8), Some(8));
        assert_eq!(SLOTS.full_blocks(&demand, 0), 10);
    }

    #[test]
    fn drafts_are_not_cached() {
        let demand = Demand { computed: 7, new: 5, num_tokens: 9, ..Demand::default() };
        assert_eq!(SLOTS.full_blocks(&demand, 0), 2);
        assert_eq!(SLOTS.full_blocks(&demand, 2), 1);
        assert_eq!(SLOTS.full_blocks(&demand, 20), 0);
    }
}
