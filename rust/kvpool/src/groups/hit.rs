//! Searches for the longest hit that every KV-cache group can serve.
//!
//! The search begins with the groups of full attention, because they need every block from the first
//! on. Every other group is *sparse*: it only needs the last blocks before the end of the hit, its
//! *stretch*. The stretch of a longer hit does not begin earlier. So if a block of the stretch is not
//! cached, no hit is possible that ends between this block and the current end.
//!
//! The search then continues with the hit that ends before the block that is not cached, so the length
//! only decreases. A stretch is looked up from its first block on: if an early block is not cached,
//! most lengths are excluded.
//!
//! Costs: each block of a sparse group is looked up at most once. The lookups of a group take O(blocks
//! of the stretch) if the first length is possible, and O(blocks of the prompt) at worst. In a group
//! that has nothing cached, one block per stretch is looked up. vLLM repeats its lookups until no group
//! shortens the hit, with the same result.

use super::{Blocks, GroupSpec, Groups, HashUnits, Tokens};
use crate::block::{BlockId, NULL_BLOCK};

/// Looks up cached blocks by group and position. Callers of [`Groups::longest_hit`] implement it.
pub trait Cached {
    /// Appends to `out` the cached blocks of a group at the positions `first..end`. Stops at the first
    /// position whose block is not cached.
    fn find_run(&mut self, group: usize, first: Blocks, end: Blocks, out: &mut Vec<BlockId>);

    /// Searches for a cached block that begins like the block at a position, and returns the one with
    /// the most equal hash units, and their number. The number is at most `most`, which is less than
    /// the number of units in a block. This is only called for groups with [`GroupSpec::partial_hits`].
    fn find_leading(&mut self, group: usize, at: Blocks, most: HashUnits) -> Option<(HashUnits, BlockId)> {
        let _ = (group, at, most);
        None
    }
}

/// The result of the search: the length of the hit, and one block table per group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupHit {
    /// The length of the hit, which is a multiple of [`Groups::alignment`].
    pub tokens: Tokens,
    /// The table of each group up to this length, with the null block at positions that need no block.
    /// If the hit ends inside a block of a group, that block is the last block of the table. Only its
    /// first tokens belong to the hit, so the request has to write to a copy of it.
    pub tables: Vec<Vec<BlockId>>,
    /// Number of tokens that a hit could have if only the groups of full attention limited it. Without
    /// such groups, this is the limit of the search.
    pub full_tokens: Tokens,
}

/// The state of the search in one sparse group, whose hits only need the last blocks before their end.
struct Sparse<'a> {
    group: usize,
    spec: &'a GroupSpec,
    table: Vec<BlockId>,
    /// The blocks that a lookup finds. Every lookup reuses this list.
    run: Vec<BlockId>,
    /// The blocks from this position on that a hit needs are known to be cached. At first, this is the
    /// end of the table, because nothing was looked up.
    from: usize,
    /// Number of leading blocks with attention sinks (the first tokens of the prompt, which every token
    /// reads) that are cached.
    sinks: usize,
}

impl Sparse<'_> {
    /// Returns the first block that a hit of this length needs and that is not cached, or `None` if all
    /// are cached.
    fn missing(&mut self, length: Tokens, cached: &mut impl Cached) -> Option<Blocks> {
        let (Blocks(first), Blocks(end)) = self.spec.needed(length);
        let first = first.max(self.sinks);
        self.from = self.from.min(end);
        if self.table.len() < end {
            self.table.resize(end, NULL_BLOCK);
        }
        if first >= self.from {
            return None;
        }
        self.run.clear();
        cached.find_run(self.group, Blocks(first), Blocks(self.from), &mut self.run);
        let run = self.run.len().min(self.from - first);
        self.table[first..first + run].copy_from_slice(&self.run[..run]);
        let is_whole = first + run == self.from;
        self.from = first;
        if is_whole { None } else { Some(Blocks(first + run)) }
    }

    /// Looks up the blocks with attention sinks. Returns the length of the longest hit, at most `limit`
    /// tokens, that the cached ones allow.
    fn within_sinks(&mut self, limit: Tokens, cached: &mut impl Cached) -> Tokens {
        let sinks = self.spec.sink_blocks().min(self.spec.full_blocks(limit));
        cached.find_run(self.group, Blocks::ZERO, sinks, &mut self.table);
        self.table.truncate(sinks.0);
        self.sinks = self.table.len();
        if self.sinks < sinks.0 { self.spec.ending_before(Blocks(self.sinks)) } else { limit }
    }

    fn into_table(mut self, length: Tokens) -> Vec<BlockId> {
        let (Blocks(first), _) = self.spec.needed(length);
        self.table.resize(self.spec.full_blocks(length).0, NULL_BLOCK);
        let end = first.min(self.table.len());
        self.table[self.spec.sink_blocks().0.min(end)..end].fill(NULL_BLOCK);
        self.table
    }
}

impl Groups {
    /// Returns the length of the longest hit of at most `limit` tokens, if everything is cached.
    /// `limit` also includes the blocks after the hit that are cached but that speculation has to
    /// compute again.
    #[must_use]
    pub fn longest_possible(&self, limit: Tokens) -> Tokens {
        let caching = self.specs.iter().filter(|spec| spec.is_cached());
        let each = caching.map(|spec| spec.ending_within(limit));
        self.align(each.min().unwrap_or(Tokens::ZERO))
    }

    /// Searches for one more block of which only the first tokens match, and appends it to the table.
    /// Returns the number of these tokens. The hit does not become longer than `limit`.
    fn find_leading(
        &self,
        group: usize,
        limit: Tokens,
        table: &mut Vec<BlockId>,
        cached: &mut impl Cached,
    ) -> Tokens {
        let (spec, at) = (self.specs[group], Blocks(table.len()));
        let left = limit.minus(spec.tokens(at)).0.min(spec.block_tokens - 1);
        let most = HashUnits(left / self.unit);
        let found = if spec.partial_hits && most.0 > 0 { cached.find_leading(group, at, most) } else { None };
        let Some((units, block)) = found else { return Tokens::ZERO };
        table.push(block);
        Tokens(units.0.min(most.0) * self.unit)
    }

    /// Returns the longest hit of at most `limit` tokens that every group can serve. Its length is a
    /// multiple of [`Self::alignment`]. For each group that caches blocks, all blocks of
    /// [`GroupSpec::needed`] are cached.
    pub fn longest_hit(&self, limit: Tokens, cached: &mut impl Cached) -> GroupHit {
        let mut tables = vec![Vec::new(); self.specs.len()];
        let mut full_tokens = limit;
        let caching = || self.specs.iter().enumerate().filter(|(_, spec)| spec.is_cached());
        for (group, spec) in caching().filter(|(_, spec)| spec.kind.is_full()) {
            let most = spec.full_blocks(full_tokens).plus(Blocks(spec.margin));
            let most = most.min(spec.full_blocks(limit));
            cached.find_run(group, Blocks::ZERO, most, &mut tables[group]);
            let whole = spec.ending_before(Blocks(tables[group].len()));
            full_tokens =
                full_tokens.min(whole.plus(self.find_leading(group, limit, &mut tables[group], cached)));
        }
        let mut length = self.align(full_tokens).min(self.longest_possible(limit));
        let sparse = |(group, spec)| Sparse {
            group,
            spec,
            table: Vec::new(),
            run: Vec::new(),
            from: usize::MAX,
            sinks: 0,
        };
        let mut sparse: Vec<_> = caching().filter(|(_, spec)| !spec.kind.is_full()).map(sparse).collect();
        for group in sparse.iter_mut().filter(|group| group.spec.sink_tokens > 0) {
            length = length.min(self.align(group.within_sinks(length, cached)));
        }
        let (mut agreed, mut at) = (0, 0);
        while agreed < sparse.len() && length > Tokens::ZERO {
            let group = &mut sparse[at];
            match group.missing(length, cached) {
                Some(miss) => (length, agreed) = (self.align(group.spec.ending_before(miss)), 0),
                None => (agreed, at) = (agreed + 1, (at + 1) % sparse.len()),
            }
        }
        for (group, spec) in caching().filter(|(_, spec)| spec.kind.is_full()) {
            tables[group].truncate(spec.covering(length).0);
        }
        for group in sparse {
            let at = group.group;
            tables[at] = if length > Tokens::ZERO { group.into_table(length) } else { Vec::new() };
        }
        GroupHit { tokens: length, tables, full_tokens }
    }

    /// Returns the length of the longest hit of at most `limit` tokens that one group alone can serve.
    /// It is a multiple of [`Groups::alignment`]. If the group caches nothing, it does not limit hits,
    /// and the result is `limit`, rounded down.
    pub fn longest_alone(&self, group: usize, limit: Tokens, cached: &mut impl Cached) -> Tokens {
        let spec = self.specs[group];
        if !spec.is_cached() {
            return self.align(limit);
        }
        let alone = Self { specs: vec![spec], unit: self.unit, alignment: self.alignment };
        alone.longest_hit(limit, &mut Alone { group, cached }).tokens
    }
}

/// Looks up blocks of one group, as if the model had no other groups.
struct Alone<'a, C> {
    group: usize,
    cached: &'a mut C,
}

impl<C: Cached> Cached for Alone<'_, C> {
    fn find_run(&mut self, _: usize, first: Blocks, end: Blocks, out: &mut Vec<BlockId>) {
        self.cached.find_run(self.group, first, end, out);
    }

    fn find_leading(&mut self, _: usize, at: Blocks, most: HashUnits) -> Option<(HashUnits, BlockId)> {
        self.cached.find_leading(self.group, at, most)
    }
}
