//! The longest hit that is legal in every group.
//!
//! Groups of full attention bound it: they need every block from the first on. Every other group needs
//! a stretch of blocks whose first one only moves right as the hit gets longer. So if one of them is
//! missing in that stretch, no hit is legal that ends behind it and not before: the walk goes on from
//! there, and never comes back. A stretch is asked from its left end, where a miss rules out the most.
//!
//! Costs: each block of a sparse group is asked for at most once: O(its stretch) if the first length is
//! legal, O(blocks) at worst; one block per stretch where a group has nothing. vLLM repeats its lookups
//! until no group shortens the hit; the result is the same.

use super::{Blocks, GroupSpec, Groups, HashUnits, Tokens};
use crate::block::{BlockId, NULL_BLOCK};

/// What is cached, by group and position.
pub trait Cached {
    /// Appends the cached blocks of a group in `first..end`, up to the first that is not cached.
    fn find_run(&mut self, group: usize, first: Blocks, end: Blocks, out: &mut Vec<BlockId>);

    /// The cached block that holds the most of what belongs at a position of a group, at most `most`
    /// hash units, which are fewer than a block has; and how many. Asked of groups with
    /// [`GroupSpec::partial_hits`].
    fn find_leading(&mut self, group: usize, at: Blocks, most: HashUnits) -> Option<(HashUnits, BlockId)> {
        let _ = (group, at, most);
        None
    }
}

/// A hit, group by group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupHit {
    /// Its length: a multiple of [`Groups::alignment`].
    pub tokens: Tokens,
    /// By group its table up to there: the null block where nothing is needed. If the hit ends inside a
    /// block of a group, that block is the last one, and only its first tokens are of use: to be
    /// copied, not to be written to.
    pub tables: Vec<Vec<BlockId>>,
    /// How far the groups of full attention alone would have gone; the limit, if there are none.
    pub full_tokens: Tokens,
}

/// A sparse group while lengths are tried.
struct Sparse<'a> {
    group: usize,
    spec: &'a GroupSpec,
    table: Vec<BlockId>,
    /// Reused by every question.
    run: Vec<BlockId>,
    /// Of what a hit may need, the blocks from here on are asked for and cached: none at first.
    from: usize,
    /// And so many leading blocks: those of sinks.
    sinks: usize,
}

impl Sparse<'_> {
    /// The first block that a hit of this length lacks.
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

    /// The most tokens of a hit of at most `limit` whose sinks are cached.
    fn within_sinks(&mut self, limit: Tokens, cached: &mut impl Cached) -> Tokens {
        let sinks = self.spec.sink_blocks().min(self.spec.full_blocks(limit));
        cached.find_run(self.group, Blocks::ZERO, sinks, &mut self.table);
        self.table.truncate(sinks.0);
        self.sinks = self.table.len();
        if self.sinks < sinks.0 { self.spec.ending_before(Blocks(self.sinks)) } else { limit }
    }

    /// The table of a hit of this length.
    fn into_table(mut self, length: Tokens) -> Vec<BlockId> {
        let (Blocks(first), _) = self.spec.needed(length);
        self.table.resize(self.spec.full_blocks(length).0, NULL_BLOCK);
        let end = first.min(self.table.len());
        self.table[self.spec.sink_blocks().0.min(end)..end].fill(NULL_BLOCK);
        self.table
    }
}

impl Groups {
    /// The longest hit of at most `limit` tokens if everything were cached: what speculation reads
    /// behind it must lie within the limit, too.
    #[must_use]
    pub fn longest_possible(&self, limit: Tokens) -> Tokens {
        let caching = self.specs.iter().filter(|spec| spec.is_cached());
        let each = caching.map(|spec| spec.ending_within(limit));
        self.align(each.min().unwrap_or(Tokens::ZERO))
    }

    /// How many tokens behind the blocks of a table, within `limit`, are cached inside one more, which
    /// is put behind them.
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

    /// The longest hit of at most `limit` tokens that every group can serve: its length is a multiple
    /// of all block sizes, and of each group that caches the blocks of [`GroupSpec::needed`] are
    /// cached.
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
        // So many groups in turn have agreed to this length.
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

    /// The longest hit of at most `limit` tokens that a group alone can serve: a multiple of
    /// [`Groups::alignment`]. All of them, if it caches nothing, for then no hit needs it.
    pub fn longest_alone(&self, group: usize, limit: Tokens, cached: &mut impl Cached) -> Tokens {
        let spec = self.specs[group];
        if !spec.is_cached() {
            return self.align(limit);
        }
        let alone = Self { specs: vec![spec], unit: self.unit, alignment: self.alignment };
        alone.longest_hit(limit, &mut Alone { group, cached }).tokens
    }
}

/// One group of those of a model, as if it were the only one.
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
