//! Searches for the longest hit that every group can serve.
//!
//! The search begins with the groups of full attention, because they need every block from the first
//! on. Every other group is *sparse*: it only needs a stretch of blocks before the end of the hit. If
//! the hit is longer, its stretch does not begin earlier. So if a block in the stretch is missing, no
//! hit is possible that ends after this block and before the current length.
//!
//! The search then continues with the hit that ends before the missing block, so the length only
//! decreases. A stretch is looked up from its first block on, because a missing block there excludes
//! the most lengths.
//!
//! Costs: each block of a sparse group is looked up at most once. This is O(stretch) per group if the
//! first length is possible, and O(blocks) at worst. In a group that has nothing cached, one block per
//! stretch is looked up. vLLM repeats its lookups until no group shortens the hit, with the same
//! result.

use super::{Blocks, GroupSpec, Groups, HashUnits, Tokens};
use crate::block::{BlockId, NULL_BLOCK};

/// Looks up cached blocks by group and position. Callers of [`Groups::longest_hit`] implement it.
pub trait Cached {
    /// Appends the cached blocks of a group at the positions `first..end`, up to the first that is not
    /// cached.
    fn find_run(&mut self, group: usize, first: Blocks, end: Blocks, out: &mut Vec<BlockId>);

    /// Returns the cached block that contains the most leading hash units of the block at a position,
    /// and their number. The number is at most `most`, which is less than the number of units in a
    /// block. This is only called for groups with [`GroupSpec::partial_hits`].
    fn find_leading(&mut self, group: usize, at: Blocks, most: HashUnits) -> Option<(HashUnits, BlockId)> {
        let _ = (group, at, most);
        None
    }
}

/// A hit with one block table per group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupHit {
    /// The length of the hit, which is a multiple of [`Groups::alignment`].
    pub tokens: Tokens,
    /// The table of each group up to this length, with the null block at positions that need no block.
    /// If the hit ends inside a block of a group, that block is the last block of the table. Only its
    /// first tokens belong to the hit, so the request has to write to a copy of it.
    pub tables: Vec<Vec<BlockId>>,
    /// Number of tokens that the groups of full attention alone could hit. Without such groups, this is
    /// the limit of the search.
    pub full_tokens: Tokens,
}

/// The state of the search in a sparse group.
struct Sparse<'a> {
    group: usize,
    spec: &'a GroupSpec,
    table: Vec<BlockId>,
    /// A buffer that every lookup reuses.
    run: Vec<BlockId>,
    /// All blocks from this position on that a hit may need were looked up, and are cached. At first,
    /// no block was.
    from: usize,
    /// Number of leading blocks with attention sinks that are cached.
    sinks: usize,
}

impl Sparse<'_> {
    /// Returns the first missing block of a hit of this length.
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

    /// Returns the length of the longest hit of at most `limit` tokens for which the attention sinks
    /// are cached.
    fn within_sinks(&mut self, limit: Tokens, cached: &mut impl Cached) -> Tokens {
        let sinks = self.spec.sink_blocks().min(self.spec.full_blocks(limit));
        cached.find_run(self.group, Blocks::ZERO, sinks, &mut self.table);
        self.table.truncate(sinks.0);
        self.sinks = self.table.len();
        if self.sinks < sinks.0 { self.spec.ending_before(Blocks(self.sinks)) } else { limit }
    }

    /// Makes the table of a hit of this length.
    fn into_table(mut self, length: Tokens) -> Vec<BlockId> {
        let (Blocks(first), _) = self.spec.needed(length);
        self.table.resize(self.spec.full_blocks(length).0, NULL_BLOCK);
        let end = first.min(self.table.len());
        self.table[self.spec.sink_blocks().0.min(end)..end].fill(NULL_BLOCK);
        self.table
    }
}

impl Groups {
    /// Returns the length of the longest hit of at most `limit` tokens, if everything is cached. The
    /// limit also includes the blocks after the hit that speculation reads.
    #[must_use]
    pub fn longest_possible(&self, limit: Tokens) -> Tokens {
        let caching = self.specs.iter().filter(|spec| spec.is_cached());
        let each = caching.map(|spec| spec.ending_within(limit));
        self.align(each.min().unwrap_or(Tokens::ZERO))
    }

    /// Searches for one more block of which only the first tokens are cached, and appends it to the
    /// table. Returns the number of these tokens. The hit remains within `limit`.
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
        // Number of consecutive groups that have accepted the current length.
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

/// Looks up blocks of one group of a model as if it were the only group.
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
