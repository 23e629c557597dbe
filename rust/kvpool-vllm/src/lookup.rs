//! `Lookup`: finds the longest hit of a request in several KV-cache groups, as vLLM's coordinator does.
//!
//! Groups that keep the same blocks form a [`Family`]. They are looked up together, and a block is a
//! hit only if all of them have it. The families take turns. Each one accepts the present length of the
//! hit or shortens it. After a family has shortened the length, all families look again. Only full
//! attention does not look again, because its blocks for a length include those for any shorter length.
//!
//! The core's own algorithm ([`kvpool::groups::Groups::longest_hit`]) finds the same length, unless the
//! end of a hit is recomputed. With EAGLE or MTP, vLLM does not always find the longest hit, and may
//! even find an invalid one. The reason: a family that recomputes the end of a hit looks beyond that
//! end only once, and not again after another such family has shortened the length. A drop-in
//! replacement has to hit exactly the tokens that vLLM hits. Therefore this module keeps the order of
//! vLLM's lookups, and their results for each kind of group.
//!
//! Costs: full attention needs one lookup per cached block. Windows and chunks need a few lookups per
//! length that they try. States need one lookup per block, from the end of the prompt. Memory is
//! allocated only for the results of the families.

use crate::window::find_window;

/// Which earlier tokens the layers of a family of groups read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// All earlier tokens.
    Full,
    /// The given number of last tokens, including the present token.
    Window(usize),
    /// The earlier tokens of the same chunk. Chunks have the given number of tokens.
    Chunk(usize),
    /// Only the recurrent state after the previous token.
    State,
}

/// Groups of the same kind, with the same block size and the same window or chunk.
///
/// ```
/// use kvpool_vllm::{Family, Lookup, Reads};
/// let full = Family { reads: Reads::Full, block_tokens: 16, drops: false, margin: 0 };
/// let window = Family { reads: Reads::Window(128), ..full };
/// let lookup = Lookup::new(vec![full, window], 16, 16).unwrap();
/// assert_eq!(lookup.scale(1), 1); // one digest per block
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Family {
    /// Which earlier tokens the layers of the family of groups read.
    pub reads: Reads,
    /// Number of tokens per block.
    pub block_tokens: usize,
    /// Whether draft heads (EAGLE, MTP) have to recompute the end of a hit.
    pub drops: bool,
    /// If `drops` is set, the number of tokens that are looked up after the present length of the hit,
    /// because the recomputed end is dropped from the result. If it is 0, the hit itself becomes
    /// shorter.
    pub margin: usize,
}

/// The index in which the blocks of one request are looked up, family by family. A block counts as
/// cached only if all groups of the family have it.
pub trait Index {
    /// The error that a failed lookup returns.
    type Error;

    /// Returns how many of the request's first `blocks` blocks are cached without a gap.
    ///
    /// # Errors
    /// [`Self::Error`] if the lookup fails.
    fn run(&mut self, family: usize, blocks: usize) -> Result<usize, Self::Error>;

    /// Whether a block is cached under the request's digest number `unit`.
    ///
    /// # Errors
    /// [`Self::Error`] if the lookup fails.
    fn has(&mut self, family: usize, unit: usize) -> Result<bool, Self::Error>;
}

/// The blocks of a hit that one family (groups that are looked up together) needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Number of tokens of the hit in this family of groups.
    pub tokens: usize,
    /// Position in the prompt of the first block that the family of groups needs. The needed blocks are
    /// `first..end`.
    pub first: usize,
    /// Position in the prompt after the last block that the family of groups needs.
    pub end: usize,
    /// If the hit ends inside of a block, the number of the digest that identifies this block.
    pub tail: Option<usize>,
}

/// The hit of a request in all families of groups of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupsHit {
    /// Number of tokens of the hit.
    pub tokens: usize,
    /// Largest number of tokens that any family of groups had cached. If it exceeds `tokens`, other
    /// families had fewer.
    pub longest: usize,
    /// For each family of groups, the blocks of the hit that it needs.
    pub found: Vec<Found>,
}

/// Finds the longest hits of requests in all families of groups of a model (a family is looked up
/// together).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lookup {
    families: Vec<Family>,
    /// Number of tokens that one digest covers.
    unit: usize,
    /// Hits have a multiple of this number of tokens.
    alignment: usize,
    /// Whether a lookup is complete after one turn per family of groups. This is the case for a single
    /// family, and for full attention with one other family.
    one_turn: bool,
}

impl Lookup {
    /// Creates a lookup of these families, which take turns in this order. Full attention has to be
    /// first. `unit` is the number of tokens per digest. Hits have a multiple of `alignment` tokens.
    /// Returns `None` if a size is 0, or if a block size is not a multiple of `unit`.
    #[must_use]
    pub fn new(families: Vec<Family>, unit: usize, alignment: usize) -> Option<Self> {
        let fits = |family: &Family| {
            let size = family.block_tokens;
            unit > 0 && alignment > 0 && size > 0 && size.is_multiple_of(unit)
        };
        let one_turn = match families.as_slice() {
            [_] => true,
            [first, _] => first.reads == Reads::Full,
            _ => false,
        };
        families.iter().all(fits).then_some(Self { families, unit, alignment, one_turn })
    }

    /// Returns the families.
    #[must_use]
    pub fn families(&self) -> &[Family] {
        &self.families
    }

    /// Returns the number of digests per block in this family of groups.
    #[must_use]
    pub fn scale(&self, family: usize) -> usize {
        self.families.get(family).map_or(1, |family| family.block_tokens / self.unit)
    }

    /// Finds the longest hit, with at most `limit` tokens, of a request with `units` digests.
    ///
    /// # Errors
    /// The errors of `index`.
    pub fn find<I: Index>(&self, limit: usize, units: usize, index: &mut I) -> Result<GroupsHit, I::Error> {
        let hashed = units.saturating_mul(self.unit);
        let mut hit =
            GroupsHit { tokens: limit, longest: 0, found: vec![Found::default(); self.families.len()] };
        let mut asked = vec![false; self.families.len()];
        // Whether each family has already looked beyond the end of a hit of the present length. A
        // family does so once per length.
        let mut proven = vec![false; self.families.len()];
        loop {
            let mut length = hit.tokens;
            for (at, family) in self.families.iter().enumerate() {
                if family.reads == Reads::Full && asked[at] {
                    length = length.min(hit.found[at].tokens);
                    continue;
                }
                let drops = family.drops && !proven[at];
                // A family of groups with states never looks beyond the end of a hit.
                let margin = if drops && family.reads != Reads::State { family.margin } else { 0 };
                let most = length.saturating_add(margin).min(hashed);
                let found = self.look(at, most, drops, units, index)?;
                if drops {
                    proven[at] = true;
                } else if found.tokens < length {
                    proven.fill(false);
                }
                length = found.tokens;
                (hit.found[at], asked[at]) = (found, true);
                hit.longest = hit.longest.max(length);
            }
            if length >= hit.tokens {
                break;
            }
            hit.tokens = length;
            if self.one_turn {
                break;
            }
        }
        for (family, found) in
            self.families.iter().zip(&mut hit.found).filter(|(family, _)| family.reads == Reads::Full)
        {
            let blocks = hit.tokens.div_ceil(family.block_tokens);
            if blocks <= found.end {
                *found = Found { end: blocks, tail: None, ..*found };
            }
            found.tokens = hit.tokens;
        }
        Ok(hit)
    }

    /// Finds the longest hit of each family alone, as if the model had no other family. Each hit has at
    /// most `limit` tokens.
    ///
    /// # Errors
    /// The errors of `index`.
    pub fn find_each<I: Index>(
        &self,
        limit: usize,
        units: usize,
        index: &mut I,
    ) -> Result<Vec<Found>, I::Error> {
        let hashed = units.saturating_mul(self.unit);
        let alone = |(at, family): (usize, &Family)| {
            let margin = if family.drops && family.reads != Reads::State { family.margin } else { 0 };
            self.look(at, limit.saturating_add(margin).min(hashed), family.drops, units, index)
        };
        self.families.iter().enumerate().map(alone).collect()
    }

    /// Finds the longest hit of one family, with at most `most` tokens. If `drops` is set, the end that
    /// has to be recomputed is not part of the result.
    fn look<I: Index>(
        &self,
        at: usize,
        most: usize,
        drops: bool,
        units: usize,
        index: &mut I,
    ) -> Result<Found, I::Error> {
        let Family { reads, block_tokens: size, .. } = self.families[at];
        let (blocks, scale) = (most / size, size / self.unit);
        // If hits may end inside of blocks, a digest inside of a block can also identify a cached
        // block.
        let inside = self.alignment < size && size.is_multiple_of(self.alignment);
        match reads {
            Reads::Full => {
                let run = index.run(at, blocks)?;
                let mut found = Found { tokens: run * size, first: 0, end: run, tail: None };
                if inside {
                    let last = (run * scale + scale - 1).min(most / self.unit).min(units);
                    if let Some(unit) = last_cached(run * scale..last, at, index)? {
                        (found.tokens, found.tail) = ((unit + 1) * self.unit, Some(unit));
                    }
                }
                if drops {
                    found.tokens = found.tokens.saturating_sub(self.alignment.min(size));
                }
                found.tokens -= found.tokens % self.alignment;
                let blocks = found.tokens.div_ceil(size);
                if blocks <= run {
                    (found.end, found.tail) = (blocks, None);
                }
                Ok(found)
            }
            Reads::Window(window) => {
                let (need, shift) =
                    (window.saturating_sub(1).div_ceil(size) + usize::from(drops), usize::from(drops));
                let any = size == self.alignment;
                let may_end =
                    |end: usize| any || (end.saturating_sub(shift) * size).is_multiple_of(self.alignment);
                let (mut failed, need) = (None, need.max(1));
                let cached = |block: usize| match index.has(at, (block + 1) * scale - 1) {
                    Ok(has) => has,
                    Err(error) => {
                        failed.get_or_insert(error);
                        true // ends the search
                    }
                };
                let window = find_window(blocks, need, cached, may_end);
                if let Some(error) = failed {
                    return Err(error);
                }
                let mut end = window.end;
                if window.end - window.first < need {
                    end = self.aligned(end, size);
                }
                if drops && end > 0 {
                    end = self.aligned(end - 1, size);
                }
                Ok(Found { tokens: end * size, first: window.first.min(end), end, tail: None })
            }
            Reads::Chunk(chunk) => {
                let first = (most - most % chunk.max(1)) / size;
                let mut end = first;
                while end < blocks && index.has(at, (end + 1) * scale - 1)? {
                    end += 1;
                }
                Ok(Found { tokens: end * size, first, end, tail: None })
            }
            Reads::State if inside => {
                let last = last_cached(0..(most / self.unit).min(units), at, index)?;
                Ok(last.map_or_else(Found::default, |unit| {
                    let first = unit / scale;
                    Found { tokens: (unit + 1) * self.unit, first, end: first, tail: Some(unit) }
                }))
            }
            Reads::State => {
                for end in (1..=blocks)
                    .rev()
                    .filter(|end| (end * size).is_multiple_of(self.alignment) || size == self.alignment)
                {
                    if index.has(at, end * scale - 1)? {
                        return Ok(Found { tokens: end * size, first: end - 1, end, tail: None });
                    }
                }
                Ok(Found::default())
            }
        }
    }

    /// Returns the largest number of whole blocks, up to `blocks`, with which a hit may end.
    fn aligned(&self, mut blocks: usize, size: usize) -> usize {
        while size != self.alignment && !(blocks * size).is_multiple_of(self.alignment) {
            blocks -= 1;
        }
        blocks
    }
}

/// Returns the last digest of a range (by its number in the request) that identifies a cached block.
fn last_cached<I: Index>(
    units: std::ops::Range<usize>,
    family: usize,
    index: &mut I,
) -> Result<Option<usize>, I::Error> {
    for unit in units.rev() {
        if index.has(family, unit)? {
            return Ok(Some(unit));
        }
    }
    Ok(None)
}
