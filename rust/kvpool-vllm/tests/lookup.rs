//! The lookup over several groups: compares it with the core's lookup, and tests the cases in which
//! vLLM's result is different.
#![expect(clippy::unwrap_used, reason = "a test stops at the first error")]

use std::convert::Infallible;

use kvpool::BlockId;
use kvpool::groups::{Blocks, Cached, GroupKind, GroupSpec, Groups, Tokens};
use kvpool_vllm::{Family, Found, GroupsHit, Index, Lookup, Reads};
use proptest::prelude::*;

const UNIT: usize = 2;

/// For each family of groups: which units (tokens of one digest) are cached, and how many units a block
/// has.
#[derive(Clone, Debug, Default)]
struct Units(Vec<Vec<bool>>, Vec<usize>);

impl Index for Units {
    type Error = Infallible;

    fn run(&mut self, family: usize, blocks: usize) -> Result<usize, Infallible> {
        let scale = self.1[family];
        Ok((0..blocks).take_while(|block| self.0[family][(block + 1) * scale - 1]).count())
    }

    fn has(&mut self, family: usize, unit: usize) -> Result<bool, Infallible> {
        Ok(self.0[family][unit])
    }
}

/// Lets the core's lookup read the same cached units.
impl Cached for Units {
    fn find_run(&mut self, group: usize, first: Blocks, end: Blocks, out: &mut Vec<BlockId>) {
        let scale = self.1[group];
        let cached = |block: &usize| self.0[group][(block + 1) * scale - 1];
        out.extend((first.0..end.0).take_while(cached).map(|block| BlockId::new(block as u32 + 1)));
    }
}

fn family(reads: Reads, block_tokens: usize) -> Family {
    Family { reads, block_tokens, drops: false, margin: 0 }
}

fn find(families: Vec<Family>, alignment: usize, limit: usize, cached: &[&[usize]]) -> GroupsHit {
    let scales = families.iter().map(|family| family.block_tokens / UNIT).collect();
    let units = |which: &&[usize]| (0..32).map(|unit| which.contains(&unit)).collect();
    let mut index = Units(cached.iter().map(units).collect(), scales);
    let lookup = Lookup::new(families, UNIT, alignment).unwrap();
    let Ok(hit) = lookup.find(limit, 32, &mut index);
    hit
}

proptest! {
    /// If no family recomputes the end of a hit, the result is the longest hit that all families can
    /// serve.
    #[test]
    fn the_hit_is_the_longest_that_all_families_serve(
        kinds in prop::collection::vec((0..4usize, 1..4usize, 2..14usize), 1..4),
        cached in prop::collection::vec(prop::collection::vec(prop::bool::weighted(0.8), 48), 3),
        limit in 0..96usize,
    ) {
        let mut specs = Vec::new();
        for &(kind, blocks, span) in &kinds {
            let size = blocks * UNIT;
            specs.push(match kind {
                0 => GroupSpec::new(GroupKind::Full, size),
                1 => GroupSpec::new(GroupKind::Sliding { window: span }, size),
                // In vLLM, a chunk consists of whole blocks, and all families have blocks of the same
                // size.
                2 if kinds.iter().all(|&(_, other, _)| other == blocks) =>
                    GroupSpec::new(GroupKind::Chunked { chunk: span * size }, size),
                _ => GroupSpec::new(GroupKind::State, size),
            });
        }
        specs.sort_by_key(|spec| !spec.kind.is_full());
        let of = |spec: &GroupSpec| family(match spec.kind {
            GroupKind::Sliding { window } => Reads::Window(window),
            GroupKind::Chunked { chunk } => Reads::Chunk(chunk),
            GroupKind::State => Reads::State,
            _ => Reads::Full,
        }, spec.block_tokens);
        let scales = specs.iter().map(|spec| spec.block_tokens / UNIT).collect();
        let mut index = Units(cached, scales);
        let groups = Groups::new(specs.clone(), Some(UNIT)).unwrap();
        let expected = groups.longest_hit(Tokens(limit), &mut index);
        let lookup = Lookup::new(specs.iter().map(of).collect(), UNIT, groups.alignment().0).unwrap();
        let Ok(hit) = lookup.find(limit, 48, &mut index);
        prop_assert_eq!(hit.tokens, expected.tokens.0);
        for (found, table) in hit.found.iter().zip(&expected.tables) {
            let blocks: Vec<_> = (0..found.end)
                .map(|at| if at < found.first { 0 } else { at as u32 + 1 }).collect();
            let expected: Vec<_> = table.iter().map(|block| block.get()).collect();
            prop_assert_eq!((blocks, found.tail), (expected, None));
        }
    }
}

#[test]
fn a_hit_inside_a_block_ends_where_full_attention_and_a_state_both_have_a_digest() {
    let families = vec![family(Reads::Full, 8), family(Reads::State, 8)];
    // Full attention has block 0, and partial blocks with the first 4 and the first 6 tokens of block
    // 1. There are states after 4, 12 and 18 tokens.
    let hit = find(families, UNIT, 19, &[&[3, 5, 6], &[1, 5, 8]]);
    assert_eq!((hit.tokens, hit.longest), (12, 14));
    assert_eq!(hit.found[0], Found { tokens: 12, first: 0, end: 1, tail: Some(6) });
    assert_eq!(hit.found[1], Found { tokens: 12, first: 1, end: 1, tail: Some(5) });
}

#[test]
fn a_digest_s_tokens_are_dropped_where_hits_end_inside_blocks() {
    let full = Family { drops: true, margin: UNIT, ..family(Reads::Full, 8) };
    let hit = find(vec![full, family(Reads::State, 8)], UNIT, 12, &[&[3, 6], &[4, 5]]);
    assert_eq!(hit.tokens, 12); // the limit cuts the hit to 14 tokens, and the drop leaves 12
    assert_eq!(hit.found[0].tail, Some(6));
}

#[test]
fn a_family_with_a_margin_does_not_look_again_when_another_shortens_the_hit() {
    let dropping = |window| Family { drops: true, margin: UNIT, ..family(Reads::Window(window), UNIT) };
    let all: Vec<_> = (0..8).collect();
    // The first family has blocks 5 to 7 and block 3; a hit of 14 tokens needs one block more. The
    // second family has no blocks after token 8.
    let hit = find(
        vec![family(Reads::Full, UNIT), dropping(3), dropping(5)],
        UNIT,
        16,
        &[&all, &[3, 5, 6, 7], &[2, 3, 4]],
    );
    assert_eq!(hit.tokens, 8);
    assert_eq!(hit.found[1], Found { tokens: 8, first: 3, end: 4, tail: None });
}

#[test]
fn a_window_that_drops_a_block_ends_at_the_alignment() {
    let window = || Family { drops: true, ..family(Reads::Window(7), UNIT) };
    let tokens = |cached: &[usize]| find(vec![window()], 2 * UNIT, 16, &[cached]).tokens;
    assert_eq!(tokens(&[1, 2, 3, 4]), 8); // the window and the block that is computed again
    assert_eq!(tokens(&[0, 1, 2]), 0); // the aligned start of the prompt, without its last block
    assert_eq!(tokens(&[]), 0);
}

#[test]
fn a_hit_that_drops_its_end_inside_a_block_has_no_tail() {
    let full = Family { drops: true, ..family(Reads::Full, 2 * UNIT) };
    let lookup = Lookup::new(vec![full], UNIT, UNIT).unwrap();
    // Block 0 is cached, and the first unit of block 1.
    let mut index = Units(vec![vec![false, true, true, false]], vec![2]);
    let Ok(each) = lookup.find_each(8, 4, &mut index);
    assert_eq!(each, [Found { tokens: 4, first: 0, end: 1, tail: None }]);
}

#[test]
fn a_group_alone_loses_the_block_that_is_computed_again() {
    let alone = Family { drops: true, ..family(Reads::Full, UNIT) };
    let hit = find(vec![alone], UNIT, 7, &[&[0, 1, 2, 3]]);
    assert_eq!((hit.tokens, hit.found[0].end), (4, 2));
}

#[test]
fn each_family_alone_has_its_own_length() {
    let lookup = Lookup::new(vec![family(Reads::Full, 2), family(Reads::State, 2)], 2, 2).unwrap();
    let mut index = Units(vec![vec![true; 5], vec![false, true, false, false, false]], vec![1, 1]);
    let Ok(each) = lookup.find_each(9, 5, &mut index);
    assert_eq!(each.iter().map(|found| found.tokens).collect::<Vec<_>>(), [8, 4]);
}

#[test]
fn sizes_that_no_digest_divides_are_refused() {
    assert_eq!(Lookup::new(vec![family(Reads::Full, 3)], 2, 2), None);
    assert_eq!(Lookup::new(vec![family(Reads::Full, 2)], 0, 2), None);
    assert_eq!(Lookup::new(vec![family(Reads::Full, 2)], 2, 0), None);
}
