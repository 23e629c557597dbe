//! Property 15 for the source of vLLM's events: a call that caches several blocks reports one entry per
//! block, in order, even for blocks that a mask excluded. Removed contents are reported with one entry
//! per key.
//!
//! Bugs: vllm#44451: hashes, tokens and extra keys of an event were filtered differently, and had
//! different lengths.
//!
//! An implementation fails this property if it returns only the stored blocks, without their positions
//! among all blocks.

use super::*;

proptest! {
    #[test]
    fn property_15_an_event_of_a_run_has_one_entry_per_block(
        known in prop::collection::vec(any::<bool>(), 6),
        parts in prop::collection::vec(any::<bool>(), 6),
        masked in prop::collection::vec(any::<bool>(), 6),
        first in 0usize..4,
        policy in prop::sample::select(policies().collect::<Vec<_>>()),
    ) {
        let prompt: Vec<u8> = (0..24).collect();
        let key_at = |position: usize| key(&prompt[..(position + 1) * B]);
        let part_of = |position: usize| key(&prompt[..position * B + 2]);
        let mut pool = Pool::with_policy(13, true, policy).unwrap();
        // Some of the contents are already cached in other blocks. Some of the request's own blocks are
        // already cached for their first half.
        for position in (0..6).filter(|&position| known[position]) {
            let other = take(&mut pool, 1);
            pool.insert_hash(key_at(position), other[0], Some(((position + 1) * B) as u32));
        }
        let blocks = take(&mut pool, 6);
        for position in (first..6).filter(|&position| parts[position]) {
            pool.insert_hash(part_of(position), blocks[position], Some((position * B + 2) as u32));
        }
        let (mut removed, mut stored) = (Vec::new(), Vec::new());
        let key_of = |at: usize| (!masked[first + at]).then(|| key_at(first + at));

        pool.cache_full(Start::at(first), &blocks[first..], key_of, B, &mut removed,
            Some(&mut stored)).unwrap();

        let expected: Vec<_> = (first..6).map(|at| (!masked[at]).then_some(!known[at])).collect();
        prop_assert_eq!(stored, expected);
        let made_way: Vec<_> = (first..6).filter(|&at| parts[at] && !masked[at]).collect();
        let told: Vec<_> = removed.iter().map(|gone| (gone.block, gone.key, gone.last_copy)).collect();
        let gone: Vec<_> = made_way.iter().map(|&at| (blocks[at], part_of(at), true)).collect();
        prop_assert_eq!(told, gone);
        for at in first..6 {
            prop_assert_eq!(pool.keys().leads_to(&key_at(at), blocks[at]), !masked[at]);
        }
        pool.check_invariants().unwrap();
    }
}
