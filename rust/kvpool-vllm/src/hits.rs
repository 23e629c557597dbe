//! `Hits`: finds the blocks of a request's longest hit, in each group.
//!
//! [`Lookup`] finds the length of a hit, and `Hits` its blocks in the pool. Groups that keep the same
//! blocks form a family and are looked up together. The hit of full attention is stored for the next
//! lookup ([`LastHit`]). The caller provides the digests of a request.

use crate::error::VllmError;
use crate::group::Group;
use crate::last_hit::{Digests, LastHit};
use crate::lookup::{Family, Found, Index, Lookup, Reads};

/// The blocks of a hit in one group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupFound {
    /// Number of null blocks at the start of the group's table. No token reads the blocks of the hit
    /// that they replace.
    pub nulls: usize,
    /// Number of blocks that follow the null blocks and are not in the list `blocks`, because they are
    /// the first blocks of the group's [`LastHit`].
    pub known: usize,
    /// The blocks of the hit after the null blocks and the `known` blocks.
    pub blocks: Vec<u32>,
    /// Number of tokens that the null blocks and the blocks of the hit cover together.
    pub tokens: usize,
}

/// Finds the hits of requests in all groups of a model.
///
/// ```
/// use kvpool_vllm::{Group, Hits};
/// // One group of full attention with blocks of 16 tokens, which is a family of its own.
/// let groups = [Group::new("full", 0, 16, 1)?];
/// let hits = Hits::new(&groups, 16, vec![(vec![0], false, 0)])?;
/// # drop(hits);
/// # Ok::<(), kvpool_vllm::VllmError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Hits {
    lookup: Lookup,
    /// For each family (groups that are looked up together), the indices of its groups in the list of
    /// groups.
    members: Vec<Vec<usize>>,
    /// vLLM's number of each group, which is part of its blocks' keys.
    numbers: Vec<u32>,
}

impl Hits {
    /// Prepares lookups in these groups. Each family lists the indices of its groups. Its second part
    /// is whether draft heads (EAGLE, MTP) have to recompute the end of a hit. Its third part is how
    /// many tokens after a hit are looked up in that case. Hits end at multiples of `alignment` tokens.
    ///
    /// # Errors
    /// [`VllmError::Families`] for a family without groups or with unknown groups, and for block sizes
    /// that are not multiples of the tokens of a digest.
    pub fn new(
        groups: &[Group],
        alignment: usize,
        families: Vec<(Vec<usize>, bool, usize)>,
    ) -> Result<Self, VllmError> {
        let wrong = |text: String| Err(VllmError::Families(text));
        let mut unit = 1;
        let mut kinds = Vec::with_capacity(families.len());
        for (members, drops, margin) in &families {
            let known = groups.len();
            if let Some(member) = members.iter().find(|&&member| member >= known) {
                return wrong(format!("families names group {member}: there are {known}"));
            }
            let Some(group) = members.first().map(|&first| &groups[first]) else {
                return wrong("families has one without groups".to_owned());
            };
            unit = group.unit();
            let (reads, block_tokens) = (group.retention.reads, group.spec.block_tokens);
            kinds.push(Family { reads, block_tokens, drops: *drops, margin: *margin });
        }
        let Some(lookup) = Lookup::new(kinds, unit, alignment) else {
            return wrong(format!(
                "alignment is {alignment}: block sizes must be multiples of the tokens of a digest"
            ));
        };
        let members = families.into_iter().map(|(members, ..)| members).collect();
        Ok(Self { lookup, members, numbers: groups.iter().map(|group| group.number).collect() })
    }

    /// Finds the longest hit of a request, with at most `limit` tokens. Returns its blocks in each
    /// group, its number of tokens, and how many more tokens the group with the longest match has
    /// cached. `last` contains the last hit of each group.
    ///
    /// # Errors
    /// The errors of `digests`.
    pub fn find<D: Digests>(
        &self,
        digests: &D,
        last: &mut [LastHit],
        limit: usize,
    ) -> Result<(Vec<GroupFound>, usize, usize), D::Error> {
        let mut asked = Asked { hits: self, digests, last };
        let hit = self.lookup.find(limit, digests.len(), &mut asked)?;
        Ok((asked.blocks(&hit.found)?, hit.tokens, hit.longest.saturating_sub(hit.tokens)))
    }

    /// Finds the longest hit in each group alone, as if the model had no other group. Each hit has at
    /// most `limit` tokens.
    ///
    /// # Errors
    /// The errors of `digests`.
    pub fn find_each<D: Digests>(
        &self,
        digests: &D,
        last: &mut [LastHit],
        limit: usize,
    ) -> Result<Vec<GroupFound>, D::Error> {
        let mut asked = Asked { hits: self, digests, last };
        let found = self.lookup.find_each(limit, digests.len(), &mut asked)?;
        asked.blocks(&found)
    }
}

struct Asked<'a, D> {
    hits: &'a Hits,
    digests: &'a D,
    last: &'a mut [LastHit],
}

impl<D: Digests> Asked<'_, D> {
    /// Returns, for each group of a family (groups that are looked up together), the block that it has
    /// under the request's digest number `unit`. `None` if any of the groups has no such block.
    fn at(&self, family: usize, unit: usize) -> Result<Option<Vec<u32>>, D::Error> {
        let key = |&member: &usize| self.digests.key(unit, self.hits.numbers[member]);
        let keys = self.hits.members[family].iter().map(key).collect::<Result<Vec<_>, _>>()?;
        Ok(self.digests.look(|pool| pool.find_all(&keys)))
    }

    /// Returns the blocks of the hit in each group. A group that is in no family (and so is not looked
    /// up) has none.
    fn blocks(&self, found: &[Found]) -> Result<Vec<GroupFound>, D::Error> {
        let mut groups = vec![GroupFound::default(); self.hits.numbers.len()];
        for (family, found) in found.iter().enumerate() {
            let (members, scale) = (&self.hits.members[family], self.hits.lookup.scale(family));
            let is_full = self.hits.lookup.families()[family].reads == Reads::Full;
            let (known, blocks) = if is_full { (found.end, 0..0) } else { (0, found.first..found.end) };
            for &member in members {
                let nulls = found.first;
                groups[member] = GroupFound { nulls, known, blocks: Vec::new(), tokens: found.tokens };
            }
            for unit in blocks.map(|block| (block + 1) * scale - 1).chain(found.tail) {
                let each = self.at(family, unit)?.unwrap_or_default();
                members.iter().zip(each).for_each(|(&member, block)| groups[member].blocks.push(block));
            }
        }
        Ok(groups)
    }
}

impl<D: Digests> Index for Asked<'_, D> {
    type Error = D::Error;

    fn run(&mut self, family: usize, blocks: usize) -> Result<usize, D::Error> {
        let (mut run, scale) = (blocks, self.hits.lookup.scale(family));
        for &member in &self.hits.members[family] {
            let last = &mut self.last[member];
            run = last.look(self.digests, self.hits.numbers[member], scale, run)?.min(run);
        }
        Ok(run)
    }

    fn has(&mut self, family: usize, unit: usize) -> Result<bool, D::Error> {
        Ok(self.at(family, unit)?.is_some())
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::ops::Range;

    use super::{GroupFound, Hits};
    use crate::pool::{Pool, history::Start};
    use crate::{Digests, Group, Key, LastHit};

    /// A request in a test. Its digest number n consists of bytes with the value n + 1.
    struct Plain<'a>(usize, &'a Pool);

    impl Digests for Plain<'_> {
        type Error = Infallible;

        fn len(&self) -> usize {
            self.0
        }

        fn key(&self, unit: usize, group: u32) -> Result<Key, Infallible> {
            Ok(key(unit, group))
        }

        fn find_run(
            &self,
            blocks: Range<usize>,
            scale: usize,
            group: u32,
            out: &mut Vec<u32>,
        ) -> Result<(), Infallible> {
            let digests: Vec<_> = blocks.map(|at| key((at + 1) * scale - 1, group)).collect();
            self.1.find_run(digests.iter().map(Key::digest), group, out);
            Ok(())
        }

        fn look<R>(&self, look: impl FnOnce(&Pool) -> R) -> R {
            look(self.1)
        }
    }

    fn key(unit: usize, group: u32) -> Key {
        Key::new(&[unit as u8 + 1; 32], group).unwrap()
    }

    /// Makes a pool with a group of full attention and a group with a window of 3 tokens, in which the
    /// second block is missing. Blocks have 2 tokens and one digest.
    fn cached() -> (Pool, Vec<Group>) {
        let mut pool = Pool::new(20, true).unwrap();
        pool.allocate(12, &mut Vec::new(), None).unwrap();
        for group in 0..2 {
            let blocks: Vec<u32> = (1..5).map(|at| group * 6 + at).collect();
            let key_of = |at| (group == 0 || at != 1).then(|| key(at, group));
            pool.cache_full(Start::at(0), &blocks, key_of, 2, &mut Vec::new(), None).unwrap();
        }
        let window = Group { number: 1, ..Group::new("sliding", 3, 2, 1).unwrap() };
        (pool, vec![Group::new("full", 0, 2, 1).unwrap(), window])
    }

    #[test]
    fn a_hit_is_null_where_a_window_reads_nothing() {
        let (pool, groups) = cached();
        let hits = Hits::new(&groups, 2, vec![(vec![0], false, 2), (vec![1], false, 2)]).unwrap();
        let mut last = vec![LastHit::default(); 2];
        let full = |known, tokens| GroupFound { known, tokens, ..GroupFound::default() };
        let (found, tokens, more) = hits.find(&Plain(9, &pool), &mut last, 17).unwrap();
        let window = GroupFound { nulls: 3, known: 0, blocks: vec![10], tokens: 8 };
        assert_eq!((found, tokens, more), (vec![full(4, 8), window], 8, 0));
        assert_eq!((last[0].blocks(), last[0].changes()), (&[1, 2, 3, 4][..], 1));
        // With a lower limit, the hit ends at the window's first block. For full attention, the earlier
        // lookup already contains the result.
        let (found, tokens, more) = hits.find(&Plain(9, &pool), &mut last, 5).unwrap();
        let window = GroupFound { nulls: 0, known: 0, blocks: vec![7], tokens: 2 };
        assert_eq!((found, tokens, more), (vec![full(1, 2), window], 2, 2));
        let each = hits.find_each(&Plain(9, &pool), &mut last, 5).unwrap();
        assert_eq!(each.iter().map(|found| found.tokens).collect::<Vec<_>>(), [4, 2]);
    }

    #[test]
    fn a_lookup_ends_at_its_limit_although_later_blocks_are_cached() {
        let (pool, mut last) = (cached().0, LastHit::default());
        for _ in 0..2 {
            assert_eq!(last.look(&Plain(9, &pool), 0, 1, 2).unwrap(), 2);
            assert_eq!(last.blocks(), [1, 2]);
        }
    }

    #[test]
    fn families_with_missing_groups_are_refused() {
        let (_, groups) = cached();
        let text = |alignment, members: Vec<usize>| {
            Hits::new(&groups, alignment, vec![(members, false, 0)]).unwrap_err().to_string()
        };
        assert_eq!(text(2, vec![2]), "families names group 2: there are 2");
        assert_eq!(text(2, vec![]), "families has one without groups");
        assert!(text(0, vec![0]).starts_with("alignment is 0"));
    }
}
