//! The parts by themselves: keys, the table of keys, and the arithmetic of slots against vLLM's formulas.
#![expect(clippy::unwrap_used, reason = "a test stops at the first error")]

use kvpool::EvictionPolicy;
use kvpool_vllm::{Demand, Key, Keys, Queue, Slots, VllmError, find_window};
use proptest::prelude::*;

fn key(nth: u8) -> Key {
    Key::new(&[nth; 16], 0).unwrap()
}

#[test]
fn a_content_is_the_digest_s_first_bytes_told_apart_by_the_group() {
    let digest = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];
    let content = |digest: &[u8], group| Key::new(digest, group).unwrap().content();
    assert_eq!(content(&digest, 0), 0x0807_0605_0403_0201);
    assert_ne!(content(&digest, 1), content(&digest, 0));
    let mut other = digest;
    other[7] = 0;
    assert_ne!(content(&other, 0), content(&digest, 0));
    // A digest too short for it is no error.
    assert_eq!(Key::from_bytes(&[]).unwrap().content(), 0);
}

#[test]
fn a_key_is_the_digest_and_then_the_group_big_endian() {
    let key = Key::new(&[0xab; 16], 0x0102_0304).unwrap();
    assert_eq!(key.as_bytes(), [&[0xab; 16][..], &[1, 2, 3, 4]].concat());
    assert_eq!((key.digest(), key.group()), (&[0xab; 16][..], 0x0102_0304));
    assert_eq!(Key::from_bytes(key.as_bytes()), Ok(key));
    assert_eq!(format!("{key:?}"), format!("{}/16909060", "ab".repeat(16)));
}

#[test]
fn a_key_has_at_most_39_bytes() {
    let longest = Key::new(&[1; 35], u32::MAX).unwrap();
    assert_eq!((longest.as_bytes().len(), longest.digest(), longest.group()), (39, &[1; 35][..], u32::MAX));
    assert_eq!(Key::new(&[1; 36], 0), Err(VllmError::KeyTooLong { len: 36, max: 35 }));
    assert_eq!(Key::from_bytes(&[1; 39]).unwrap().as_bytes(), [1; 39]);
    assert_eq!(Key::from_bytes(&[1; 40]), Err(VllmError::KeyTooLong { len: 40, max: 39 }));
    // More than one byte can count: a length is never cut.
    assert_eq!(Key::new(&[1; 260], 0), Err(VllmError::KeyTooLong { len: 260, max: 35 }));
    assert_eq!(Key::from_bytes(&[1; 260]), Err(VllmError::KeyTooLong { len: 260, max: 39 }));
}

#[test]
fn what_is_shorter_than_a_group_is_a_key_of_no_digest() {
    for len in 0..4 {
        let key = Key::from_bytes(&[7; 4][..len]).unwrap();
        assert_eq!((key.as_bytes().len(), key.digest()), (len, &[][..]));
    }
    assert_eq!(Key::from_bytes(&[1, 2]).unwrap().group(), 0x0102);
    assert_eq!(Key::new(&[], 5).unwrap().as_bytes(), [0, 0, 0, 5]);
}

#[test]
fn zeros_at_the_end_of_a_key_count() {
    let (short, long) = (Key::from_bytes(&[1, 0]).unwrap(), Key::from_bytes(&[1, 0, 0]).unwrap());
    assert_ne!(short, long);
    let mut keys = Keys::new(4).unwrap();
    keys.give(short, 1, None);
    keys.give(long, 2, None);
    assert_eq!((keys.first(&short), keys.first(&long), keys.len()), (Some(1), Some(2), 2));
}

proptest! {
    /// Digests that differ in one byte and groups that differ in one are different keys; the table tells them apart.
    #[test]
    fn keys_that_differ_anywhere_are_two(
        digest in prop::collection::vec(any::<u8>(), 16..=32),
        group in any::<u32>(),
        at in any::<prop::sample::Index>(),
        change in 1u8..,
    ) {
        let one = Key::new(&digest, group).unwrap();
        let mut bytes = one.as_bytes().to_vec();
        let at = at.index(bytes.len());
        bytes[at] ^= change;
        let other = Key::from_bytes(&bytes).unwrap();
        prop_assert_ne!(one, other);
        let mut keys = Keys::new(4).unwrap();
        prop_assert_eq!(keys.give(one, 1, None), Some(0));
        prop_assert_eq!(keys.first(&other), None);
        prop_assert_eq!(keys.give(other, 2, None), Some(0));
        prop_assert_eq!((keys.first(&one), keys.first(&other)), (Some(1), Some(2)));
    }
}

#[test]
fn a_key_of_one_block_becomes_one_of_two_and_goes_with_the_last() {
    let mut keys = Keys::new(4).unwrap();
    assert_eq!(keys.give(key(0), 1, Some(4)), Some(0));
    assert!(!keys.was_shared(&key(0)));
    assert_eq!(keys.give(key(0), 2, Some(4)), Some(1));
    assert_eq!(keys.give(key(0), 3, Some(4)), Some(2));
    assert_eq!((keys.copies(&key(0)), keys.len(), keys.was_shared(&key(0))), (vec![1, 2, 3], 1, true));
    // What it has is not given again, wherever it stands.
    assert_eq!((keys.give(key(0), 1, None), keys.give(key(0), 2, None)), (None, None));
    let mut gone = Vec::new();
    keys.take(&[1], |_, key, left| gone.push((key, left)));
    keys.take(&[2], |_, key, left| gone.push((key, left)));
    assert_eq!(gone, [(key(0), 2), (key(0), 1)]);
    // It was shared until it leads nowhere.
    assert_eq!((keys.first(&key(0)), keys.was_shared(&key(0))), (Some(3), true));
    keys.take(&[3], |_, key, left| gone.push((key, left)));
    assert_eq!(gone.last(), Some(&(key(0), 0)));
    assert!(keys.is_empty());
    assert!(!keys.was_shared(&key(0)));
    assert_eq!(keys.give(key(0), 2, None), Some(0));
    assert!(!keys.was_shared(&key(0)));
}

#[test]
fn a_further_key_is_one_of_its_own_and_goes_with_the_hash() {
    let mut keys = Keys::new(4).unwrap();
    keys.give(key(0), 1, Some(4));
    assert_eq!(keys.give(key(1), 1, Some(2)), Some(0));
    assert_eq!((keys.copies(&key(1)), keys.was_shared(&key(1))), (vec![1], false));
    // It is the hash of another block as well.
    assert_eq!(keys.give(key(1), 2, Some(2)), Some(1));
    assert_eq!((keys.first(&key(1)), keys.hash_of(2).map(|(key, _)| *key)), (Some(1), Some(key(1))));
    let mut gone = Vec::new();
    keys.take(&[1], |_, key, left| gone.push((key, left)));
    assert_eq!(gone, [(key(0), 0), (key(1), 1)]);
    assert_eq!((keys.first(&key(1)), keys.further_keys(1).len()), (Some(2), 0));
    keys.take(&[2], |_, key, left| gone.push((key, left)));
    assert_eq!(gone[2], (key(1), 0));
    assert!(keys.is_empty());
}

#[test]
fn a_block_that_carries_nothing_has_nothing_to_take() {
    let mut keys = Keys::new(2).unwrap();
    keys.give(key(0), 1, None);
    let mut gone = 0;
    keys.take(&[0], |_, _, _| gone += 1);
    keys.take(&[9], |_, _, _| gone += 1);
    assert_eq!((gone, keys.len(), keys.give(key(1), 9, None)), (0, 1, None));
    assert_eq!(keys.remove(&key(1), 1), None);
    assert_eq!(keys.remove(&key(0), 0), None);
    assert_eq!((keys.remove(&key(0), 1), keys.remove(&key(0), 1)), (Some(0), None));
}

#[test]
fn a_hash_that_is_written_over_still_leads_to_the_block() {
    let mut keys = Keys::new(3).unwrap();
    keys.give(key(0), 1, Some(4));
    keys.set_hash(1, key(1), None);
    assert_eq!((keys.first(&key(0)), keys.first(&key(1))), (Some(1), None));
    keys.reset_hash(1);
    assert_eq!(
        (keys.hash_of(1).is_none(), keys.copies(&key(0)), keys.was_shared(&key(0))),
        (true, vec![1], false)
    );
    assert_eq!(keys.remove(&key(0), 1), Some(0));
    assert!(keys.is_empty());
}

#[test]
fn a_table_with_many_keys_finds_each_and_forgets_all() {
    let mut keys = Keys::new(3000).unwrap();
    let nth = |block: u32| Key::new(&block.to_le_bytes().repeat(8), block % 3).unwrap();
    (0..3000).for_each(|block| assert_eq!(keys.give(nth(block), block, None), Some(0)));
    assert!((0..3000).all(|block| keys.first(&nth(block)) == Some(block)));
    // Every second one goes; the others are still found.
    (0..3000).step_by(2).for_each(|block| keys.take(&[block], |_, _, left| assert_eq!(left, 0)));
    assert!((0..3000).all(|block| keys.first(&nth(block)) == (block % 2 == 1).then_some(block)));
    assert_eq!((keys.len(), keys.iter().count()), (1500, 1500));
    keys.clear();
    assert!(keys.is_empty());
    assert!((0..3000).all(|block| keys.hash_of(block).is_none()));
}

#[test]
fn a_queue_reads_as_one_list() {
    let mut queue = Queue::new(6, EvictionPolicy::LRU).unwrap();
    assert_eq!(
        (queue.len(), queue.is_empty(), queue.contains(0), queue.contains(1)),
        (5, false, false, true)
    );
    let mut out = Vec::new();
    queue.pop_front_n(4, &mut out);
    assert_eq!((&out[..], queue.order()), (&[1, 2, 3, 4][..], vec![5]));
    queue.push_back_n(&[4, 3]);
    queue.push_front_n(&[2, 1]);
    assert_eq!(queue.order(), [2, 1, 5, 4, 3]);
    // Both parts are reached, in their order, and no further than there are blocks.
    assert_eq!(
        (queue.peek(2), queue.peek(4), queue.peek(9)),
        (vec![2, 1], vec![2, 1, 5, 4], vec![2, 1, 5, 4, 3])
    );
    assert!(queue.remove(1) && queue.remove(4) && !queue.remove(4) && !queue.remove(9));
    out.clear();
    queue.pop_front_n(9, &mut out);
    assert_eq!((out, queue.is_empty()), (vec![2, 5, 3], true));
    queue.check_invariants().unwrap();
}

/// `allocate_slots` as vLLM has it for one group of full attention, word for word of its formulas: the blocks to allocate
/// and the number of full blocks afterwards, or `None`.
#[derive(Debug)]
struct Case {
    block_size: i64,
    max_model_len: i64,
    num_computed: i64,
    new_computed: i64,
    new: i64,
    lookahead: i64,
    num_tokens: i64,
    table: i64,
    hits: i64,
    evictable: i64,
    watermark: i64,
    reserved: i64,
    whole: bool,
    recomputed: i64,
}

impl Case {
    /// `get_num_blocks_to_allocate`: a running request has no hits, another's that are free will not be.
    fn blocks_to_allocate(&self, num_tokens: i64) -> i64 {
        let required = (num_tokens + self.block_size - 1) / self.block_size;
        0.max(required - (self.hits + self.table)) + self.evictable
    }

    fn allocated(&self, free: i64) -> Option<i64> {
        let local = self.num_computed + self.new_computed;
        let total = local.min(self.max_model_len);
        if self.whole {
            let full = self.num_tokens.min(self.max_model_len);
            if self.blocks_to_allocate(full) + self.watermark > free {
                return None;
            }
        }
        let need_slot = (total + self.new + self.lookahead).min(self.max_model_len);
        if self.blocks_to_allocate(need_slot) + self.watermark > free - self.reserved {
            return None;
        }
        let required = (need_slot + self.block_size - 1) / self.block_size;
        Some(0.max(required - (self.table + self.hits)))
    }

    fn full_blocks(&self) -> i64 {
        let total = (self.num_computed + self.new_computed).min(self.max_model_len);
        let to_cache = (total + self.new).min(self.num_tokens);
        0.max(to_cache - self.recomputed) / self.block_size
    }
}

prop_compose! {
    fn case()(
        block_size in 1i64..6,
        (max_model_len, num_tokens) in (1i64..60, 0i64..70),
        (num_computed, new_computed, new, lookahead) in (0i64..50, 0i64..20, 0i64..30, 0i64..6),
        (table, hits) in (0i64..14, 0i64..6),
        evictable in 0i64..6,
        (watermark, reserved, recomputed) in (0i64..4, 0i64..12, 0i64..8),
        whole in any::<bool>(),
    ) -> Case {
        Case {
            block_size, max_model_len, num_computed, new_computed, new, lookahead, num_tokens, table, hits,
            evictable: evictable.min(hits), watermark, reserved, whole, recomputed,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn slots_are_what_vllms_formulas_say(case in case()) {
        let size = |value: i64| usize::try_from(value).unwrap();
        let slots = Slots { block_size: size(case.block_size), max_model_len: size(case.max_model_len) };
        let demand = Demand {
            computed: size(case.num_computed + case.new_computed),
            new: size(case.new),
            lookahead: size(case.lookahead),
            num_tokens: size(case.num_tokens),
            table: size(case.table),
            hits: size(case.hits),
            evictable: size(case.evictable),
            watermark: size(case.watermark),
            reserved: size(case.reserved),
            whole: case.whole,
        };
        // Every number of free blocks: what decides is one block more or less.
        for free in 0..40 {
            let planned = slots.plan(&demand, size(free));
            prop_assert_eq!(planned, case.allocated(free).map(size));
            // What is planned can be taken: the hits first, then the new blocks.
            prop_assert!(planned.is_none_or(|missing| missing + demand.evictable <= size(free)));
        }
        prop_assert_eq!(slots.full_blocks(&demand, size(case.recomputed)), size(case.full_blocks()));
    }
}

proptest! {
    /// Each probe is a lookup of a key in every group.
    #[test]
    fn a_window_asks_for_a_block_once_and_for_the_first_ones_again(
        cached in prop::collection::vec(prop::bool::weighted(0.8), 0..40),
        need in 1..9usize,
    ) {
        let mut asked = vec![0; cached.len()];
        let count = |block: usize| {
            asked[block] += 1;
            cached[block]
        };
        find_window(cached.len(), need, count, |_| true);
        prop_assert!(asked.iter().skip(need).all(|&times| times <= 1), "{asked:?}");
        prop_assert!(asked.iter().all(|&times| times <= 2), "{asked:?}");
    }
}
