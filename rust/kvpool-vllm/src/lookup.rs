//! `Lookup`: the longest hit of a request in several KV-cache groups, as vLLM's coordinator finds it.
//!
//! Groups that keep the same are a [`Family`]: they are asked together, and a block counts only if all
//! of them have it. Families take turns. Each accepts the length so far or shortens it, and when one
//! has shortened it, all of them look again. Full attention looks once: what it has of a length, it has
//! of a shorter one.
//!
//! The core's own walk ([`kvpool::groups::Groups::longest_hit`]) finds the same where nothing is
//! computed again behind a hit. With EAGLE or MTP vLLM does not always find the longest, nor only what
//! is legal: a family that has looked behind its hit once does not do so again at a length that another
//! family with such heads has shortened. A drop-in hits what vLLM hits, so the order of its questions
//! is kept here, and its answers for each kind.
//!
//! Costs: of full attention one question per block that it has; of the others a few per length that is
//! tried, and of states one per block from the right. Nothing is allocated but for the families'
//! answers.

use crate::window::find_window;

/// What the layers of a family read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// Everything.
    Full,
    /// So many tokens, the last one included.
    Window(usize),
    /// What is before a token in its chunk of so many tokens.
    Chunk(usize),
    /// The state behind the token before.
    State,
}

/// Groups of one kind, size and reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Family {
    /// What their layers read.
    pub reads: Reads,
    /// Tokens per block.
    pub block_tokens: usize,
    /// Whether what lies before the end of a hit is computed again, for heads that read it.
    pub drops: bool,
    /// Tokens behind a length that are looked up for that; 0 where a hit loses them instead.
    pub margin: usize,
}

/// What is cached of a request, by family: a question of a family is one of all its groups.
pub trait Index {
    /// Why it cannot say.
    type Error;

    /// How many of the first `blocks` blocks are cached, from the first on.
    ///
    /// # Errors
    /// [`Self::Error`].
    fn run(&mut self, family: usize, blocks: usize) -> Result<usize, Self::Error>;

    /// Whether something is cached under the digest of a unit.
    ///
    /// # Errors
    /// [`Self::Error`].
    fn has(&mut self, family: usize, unit: usize) -> Result<bool, Self::Error>;
}

/// What a family has of a hit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Its tokens.
    pub tokens: usize,
    /// Its blocks `first..end`; nothing before them is needed.
    pub first: usize,
    /// One past the last of them.
    pub end: usize,
    /// Behind those, the block under the digest of this unit: the hit ends inside of it.
    pub tail: Option<usize>,
}

/// A hit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupsHit {
    /// Its tokens.
    pub tokens: usize,
    /// The longest that any family had while lengths were tried: where it is longer, the others lag behind.
    pub longest: usize,
    /// By family what is found.
    pub found: Vec<Found>,
}

/// The families of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lookup {
    families: Vec<Family>,
    /// Tokens of a digest.
    unit: usize,
    /// What the length of a hit is a multiple of.
    alignment: usize,
    /// Whether one turn is enough: a family alone, or one beside full attention.
    one_turn: bool,
}

impl Lookup {
    /// Of families in the order in which they are asked, full attention first. Block sizes are
    /// multiples of `unit`, and either divide `alignment` or are multiples of it. `None` of sizes that
    /// are not.
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

    /// The families.
    #[must_use]
    pub fn families(&self) -> &[Family] {
        &self.families
    }

    /// Digests per block of a family.
    #[must_use]
    pub fn scale(&self, family: usize) -> usize {
        self.families.get(family).map_or(1, |family| family.block_tokens / self.unit)
    }

    /// The hit of at most `limit` tokens, of a request with so many digests.
    ///
    /// # Errors
    /// Those of the index.
    pub fn find<I: Index>(&self, limit: usize, units: usize, index: &mut I) -> Result<GroupsHit, I::Error> {
        let hashed = units.saturating_mul(self.unit);
        let mut hit =
            GroupsHit { tokens: limit, longest: 0, found: vec![Found::default(); self.families.len()] };
        let mut asked = vec![false; self.families.len()];
        // Families that have looked behind the length of the hit: once per length.
        let mut proven = vec![false; self.families.len()];
        loop {
            let mut length = hit.tokens;
            for (at, family) in self.families.iter().enumerate() {
                if family.reads == Reads::Full && asked[at] {
                    length = length.min(hit.found[at].tokens);
                    continue;
                }
                let drops = family.drops && !proven[at];
                // States are never computed again behind a hit.
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

    /// What each family alone has of at most `limit` tokens.
    ///
    /// # Errors
    /// Those of the index.
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

    /// What a family has of at most `most` tokens; with `drops`, less what is computed again.
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
        // Digests inside of blocks lead somewhere, too.
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
                        true // so that nothing more is asked
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

    /// The most blocks, up to so many, after which a hit may end.
    fn aligned(&self, mut blocks: usize, size: usize) -> usize {
        while size != self.alignment && !(blocks * size).is_multiple_of(self.alignment) {
            blocks -= 1;
        }
        blocks
    }
}

/// The last of some units under whose digest something is cached.
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
