//! Tests parts of the crate one by one: keys, the index of keys, and the number of blocks that a call
//! needs. The last is compared with vLLM's formulas.
#![expect(clippy::unwrap_used, reason = "a test stops at the first error")]

use kvpool::groups::{GroupKind, GroupSpec};
use kvpool_vllm::{Arrival, Finals, Growth, Key, Pool, Room, Start, Step, VllmError, find_window};
use proptest::prelude::*;

fn key(nth: u8) -> Key {
    Key::new(&[nth; 16], 0).unwrap()
}

#[test]
fn a_content_is_the_start_of_the_digest_combined_with_the_group() {
    let digest = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];
    let content = |digest: &[u8], group| Key::new(digest, group).unwrap().content();
    assert_eq!(content(&digest, 0), 0x0807_0605_0403_0201);
    assert_ne!(content(&digest, 1), content(&digest, 0));
    let mut other = digest;
    other[7] = 0;
    assert_ne!(content(&other, 0), content(&digest, 0));
    // The method `content` also accepts a key without a digest.
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
    // These lengths exceed 255, so a length that is stored as one byte would be wrong in the error.
    assert_eq!(Key::new(&[1; 260], 0), Err(VllmError::KeyTooLong { len: 260, max: 35 }));
    assert_eq!(Key::from_bytes(&[1; 260]), Err(VllmError::KeyTooLong { len: 260, max: 39 }));
}

#[test]
fn a_key_shorter_than_its_group_number_has_no_digest() {
    for len in 0..4 {
        let key = Key::from_bytes(&[7; 4][..len]).unwrap();
        assert_eq!((key.as_bytes().len(), key.digest()), (len, &[][..]));
    }
    assert_eq!(Key::from_bytes(&[1, 2]).unwrap().group(), 0x0102);
    assert_eq!(Key::new(&[], 5).unwrap().as_bytes(), [0, 0, 0, 5]);
}

#[test]
fn a_pool_without_a_null_block_is_refused() {
    let error = Pool::new(0, true).unwrap_err().to_string();
    assert!(error.contains("num_gpu_blocks"), "{error}");
}

/// Returns a pool of `num_blocks` blocks that are all in use.
fn in_use(num_blocks: usize) -> Pool {
    let mut pool = Pool::new(num_blocks, true).unwrap();
    pool.allocate(num_blocks - 1, &mut Vec::new(), None).unwrap();
    pool
}

#[test]
fn zeros_at_the_end_of_a_key_count() {
    let (short, long) = (Key::from_bytes(&[1, 0]).unwrap(), Key::from_bytes(&[1, 0, 0]).unwrap());
    assert_ne!(short, long);
    let mut pool = in_use(4);
    pool.insert_hash(short, 1, None);
    pool.insert_hash(long, 2, None);
    assert_eq!((pool.find(&short), pool.find(&long), pool.keys().len()), (Some(1), Some(2), 2));
}

#[test]
fn a_digest_differs_from_its_prefix_padded_with_zeros() {
    // The digests may come in any order of lengths. The core stores padded digests of one length, and
    // the pool's overlay stores those of other lengths.
    for lengths in [[16, 17, 32, 15], [32, 16, 17, 31], [17, 16, 32, 0]] {
        let keys: Vec<Key> = lengths.iter().map(|&len| Key::new(&[0; 32][..len], 0).unwrap()).collect();
        let mut pool = in_use(6);
        for (&key, block) in keys.iter().zip(1..) {
            assert!(pool.insert_hash(key, block, None), "{lengths:?}");
        }
        for (key, block) in keys.iter().zip(1..) {
            assert_eq!((pool.find(key), pool.keys().copies(key)), (Some(block), vec![block]), "{lengths:?}");
        }
        assert_eq!((pool.keys().len(), pool.keys().iter().count()), (4, 4));
        pool.check_invariants().unwrap();
    }
}

/// Regression test: token counts of 2^31 and more lost their highest bit if the last count of one call
/// was above 2^32. Random calls found this bug.
#[test]
fn a_run_beyond_the_last_token_count_keeps_its_counts() {
    let mut pool = in_use(3);
    let key_of = |at: usize| Some(key(at as u8));
    let mut cache = |first, blocks: &[u32]| {
        pool.cache_full(Start::at(first), blocks, key_of, 1 << 30, &mut Vec::new(), None)
    };
    cache(2, &[1, 2]).unwrap();
    for (first, block, cached) in [(2, 1, 3 << 30), (3, 2, u32::MAX)] {
        assert_eq!(cache(first, &[block]), Err(VllmError::AlreadyCached { block, cached, wanted: cached }));
    }
}

#[test]
fn digests_of_one_run_that_differ_in_length_alone_are_different_keys() {
    for lengths in [[16, 32], [32, 16]] {
        let keys = lengths.map(|len| Key::new(&[0; 32][..len], 0).unwrap());
        let (mut pool, mut stored) = (in_use(3), Vec::new());
        let key_of = |at: usize| Some(keys[at]);
        pool.cache_full(Start::at(0), &[1, 2], key_of, 4, &mut Vec::new(), Some(&mut stored)).unwrap();
        assert_eq!(stored, [Some(true), Some(true)]);
        assert_eq!((pool.find(&keys[0]), pool.find(&keys[1])), (Some(1), Some(2)));
    }
}

#[test]
fn a_group_is_not_its_low_bits() {
    let groups = [0, 1, 65_533, 65_534, 65_535, 65_536, 65_537, u32::MAX];
    let keys = groups.map(|group| Key::new(&[7; 32], group).unwrap());
    let mut pool = in_use(9);
    for (key, block) in keys.into_iter().zip(1..) {
        assert!(pool.insert_hash(key, block, Some(4)));
    }
    pool.check_invariants().unwrap();
    pool.free((1..9).rev()).unwrap();
    for (key, block) in keys.iter().zip(1..) {
        assert_eq!((pool.find(key), pool.keys().hash_of(block)), (Some(block), Some((*key, Some(4)))));
    }
    let mut removed = Vec::new();
    pool.allocate(8, &mut Vec::new(), Some(&mut removed)).unwrap();
    assert_eq!(
        removed.iter().map(|gone| gone.key).collect::<Vec<_>>(),
        keys.into_iter().rev().collect::<Vec<_>>()
    );
    assert!(removed.iter().all(|gone| gone.last_copy) && pool.keys().is_empty());
    pool.check_invariants().unwrap();
}

proptest! {
    /// Keys are different if their digests differ in one byte, or if their groups differ in one byte.
    /// The pool distinguishes them.
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
        let mut pool = in_use(4);
        prop_assert!(pool.insert_hash(one, 1, None));
        prop_assert_eq!(pool.find(&other), None);
        prop_assert!(pool.insert_hash(other, 2, None));
        prop_assert_eq!((pool.find(&one), pool.find(&other)), (Some(1), Some(2)));
    }

    /// One lookup of consecutive keys finds the same blocks as separate lookups of these keys, for any
    /// digests and any cached blocks.
    #[test]
    fn a_run_is_found_as_its_keys_are(
        lengths in prop::collection::vec(prop::sample::select(&[32usize, 32, 32, 16, 0][..]), 1..150),
        known in prop::collection::vec(prop::bool::weighted(0.97), 150),
        by_hand in prop::collection::vec(prop::bool::weighted(0.05), 150),
        group in prop::sample::select(&[0u32, 65_535, 70_000][..]),
    ) {
        let digests: Vec<Vec<u8>> =
            lengths.iter().enumerate().map(|(n, &len)| [n as u8; 32][..len].to_vec()).collect();
        let mut pool = in_use(151);
        for (n, digest) in digests.iter().enumerate() {
            let (key, block) = (Key::new(digest, group).unwrap(), n as u32 + 1);
            if by_hand[n] {
                pool.insert_in_index(key, block).unwrap();
            } else if known[n] {
                pool.insert_hash(key, block, None);
            }
        }
        let one_by_one: Vec<u32> =
            digests.iter().map_while(|digest| pool.find(&Key::new(digest, group).unwrap())).collect();
        let mut found = vec![9];
        pool.find_run(digests.iter().map(Vec::as_slice), group, &mut found);
        prop_assert_eq!(&found[1..], one_by_one);
    }
}

#[test]
fn a_key_can_have_two_blocks_and_ends_with_the_last() {
    let mut pool = in_use(4);
    assert!(pool.insert_hash(key(0), 1, Some(4)));
    assert!(!pool.keys().was_shared(&key(0)));
    assert!(!pool.insert_hash(key(0), 2, Some(4)));
    assert!(!pool.insert_hash(key(0), 3, Some(4)));
    assert_eq!(
        (pool.keys().copies(&key(0)), pool.keys().len(), pool.keys().was_shared(&key(0))),
        (vec![1, 2, 3], 1, true)
    );
    // A key that a block already has, as its hash or as a further key, is not added again.
    assert!(!pool.insert_hash(key(0), 1, None) && !pool.insert_hash(key(0), 2, None));
    let gone: Vec<_> = [1, 2].into_iter().flat_map(|block| pool.remove_hashes(block)).collect();
    assert_eq!(gone.iter().map(|gone| gone.last_copy).collect::<Vec<_>>(), [false, false]);
    // The method `was_shared` returns true until no block has the key any more.
    assert_eq!((pool.find(&key(0)), pool.keys().was_shared(&key(0))), (Some(3), true));
    assert!(pool.remove_hashes(3)[0].last_copy && pool.keys().is_empty());
    assert!(!pool.keys().was_shared(&key(0)));
    assert!(pool.insert_hash(key(0), 2, None));
    assert!(!pool.keys().was_shared(&key(0)));
}

#[test]
fn a_second_key_of_a_block_is_removed_with_its_hash() {
    let mut pool = in_use(4);
    pool.insert_hash(key(0), 1, Some(4));
    assert!(pool.insert_hash(key(1), 1, Some(2)));
    assert_eq!((pool.keys().copies(&key(1)), pool.keys().was_shared(&key(1))), (vec![1], false));
    // Block 2 gets, as its hash, the key that is already the second key of block 1.
    assert!(!pool.insert_hash(key(1), 2, Some(2)));
    assert_eq!((pool.find(&key(1)), pool.keys().hash_of(2)), (Some(1), Some((key(1), Some(2)))));
    pool.check_invariants().unwrap();
    let mut told = |block| -> Vec<_> {
        pool.remove_hashes(block).into_iter().map(|gone| (gone.key, gone.last_copy)).collect()
    };
    assert_eq!(told(1), [(key(0), true), (key(1), false)]);
    assert_eq!(told(2), [(key(1), true)]);
    assert!(pool.keys().is_empty() && pool.keys().further_keys(1).is_empty());
    pool.check_invariants().unwrap();
}

#[test]
fn the_hash_of_a_block_that_is_a_further_key_of_another_stays_in_order() {
    let mut pool = in_use(5);
    for block in [2, 3] {
        pool.insert_hash(key(1), block, Some(2));
    }
    pool.insert_hash(key(0), 1, Some(4));
    pool.insert_hash(key(1), 1, Some(2));
    pool.insert_hash(key(1), 4, Some(2));
    assert_eq!(pool.keys().copies(&key(1)), [2, 3, 1, 4]);
    pool.check_invariants().unwrap();
    pool.free([2, 3, 4, 1]).unwrap();
    assert_eq!(pool.order().collect::<Vec<_>>(), [2, 3, 4, 1]);
    pool.touch(&[2]).unwrap();
    assert_eq!(pool.keys().hash_of(2), Some((key(1), Some(2))));
    pool.free([2]).unwrap();
    assert_eq!((pool.order().collect::<Vec<_>>(), pool.find(&key(1))), (vec![3, 4, 1, 2], Some(2)));
    pool.check_invariants().unwrap();
}

#[test]
fn a_block_that_carries_nothing_has_nothing_to_take() {
    let mut pool = in_use(2);
    pool.insert_hash(key(0), 1, None);
    assert!(pool.remove_hashes(0).is_empty() && pool.remove_hashes(9).is_empty());
    assert!(!pool.insert_hash(key(1), 9, None));
    assert_eq!(pool.keys().len(), 1);
    assert!(!pool.remove_from_index(&key(1), 1) && !pool.remove_from_index(&key(0), 0));
    assert!(pool.remove_from_index(&key(0), 1) && !pool.remove_from_index(&key(0), 1));
}

#[test]
fn a_hash_that_is_written_over_still_leads_to_the_block() {
    let mut pool = in_use(3);
    pool.insert_hash(key(0), 1, Some(4));
    pool.set_hash(1, key(1), None);
    assert_eq!((pool.find(&key(0)), pool.find(&key(1))), (Some(1), None));
    pool.reset_hash(1);
    let keys = pool.keys();
    assert_eq!(
        (keys.hash_of(1).is_none(), keys.copies(&key(0)), keys.was_shared(&key(0))),
        (true, vec![1], false)
    );
    assert!(pool.remove_from_index(&key(0), 1) && pool.keys().is_empty());
}

#[test]
fn a_pool_with_many_keys_finds_each_and_forgets_all() {
    let mut pool = in_use(3000);
    let nth = |block: u32| Key::new(&block.to_le_bytes().repeat(8), block % 3).unwrap();
    (1..3000).for_each(|block| assert!(pool.insert_hash(nth(block), block, None)));
    assert!((1..3000).all(|block| pool.find(&nth(block)) == Some(block)));
    // Every second key is removed, and the other keys are still found.
    (2..3000).step_by(2).for_each(|block| assert!(pool.remove_hashes(block)[0].last_copy));
    assert!((1..3000).all(|block| pool.find(&nth(block)) == (block % 2 == 1).then_some(block)));
    assert_eq!((pool.keys().len(), pool.keys().iter().count()), (1500, 1500));
    pool.free(1..3000).unwrap();
    assert!(pool.reset() && pool.keys().is_empty());
    assert!((1..3000).all(|block| pool.keys().hash_of(block).is_none()));
}

#[test]
fn a_queue_stays_one_list_after_any_manual_change() {
    let mut pool = Pool::new(6, true).unwrap();
    let order = |pool: &Pool| pool.order().collect::<Vec<_>>();
    assert_eq!((pool.pop_from_queue(4), order(&pool)), (vec![1, 2, 3, 4], vec![5]));
    // Taking blocks out of the queue directly does not count a reference.
    assert_eq!((pool.ref_count(1), pool.num_free()), (0, 1));
    pool.push_to_queue(&[4, 3], false);
    pool.push_to_queue(&[2, 1], true);
    assert_eq!(order(&pool), [2, 1, 5, 4, 3]);
    // `peek` returns the queue in its order, and returns fewer blocks if the queue is shorter.
    assert_eq!(
        (pool.peek(2), pool.peek(4), pool.peek(9)),
        (vec![2, 1], vec![2, 1, 5, 4], vec![2, 1, 5, 4, 3])
    );
    assert!(pool.remove_from_queue(1) && pool.remove_from_queue(4));
    assert!(!pool.remove_from_queue(4) && !pool.remove_from_queue(9) && !pool.remove_from_queue(0));
    assert_eq!(pool.pop_from_queue(9), [2, 5, 3]);
    assert_eq!(pool.num_free(), 0);
    // A block that is passed twice is added once. An id that is not a block is ignored.
    pool.push_to_queue(&[2, 0, 2, 9], true);
    pool.push_to_queue(&[2], false);
    assert_eq!(order(&pool), [2]);
    pool.check_representation().unwrap();
}

/// A call of vLLM's `allocate_slots` for one group of full attention. The methods are vLLM's formulas.
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
    /// A running request has a table and no hits. A new request has no table.
    is_running: bool,
}

impl Case {
    /// Computes vLLM's `get_num_blocks_to_allocate`. A running request has no hits. For a new request,
    /// free blocks among its hits are added, because the hit takes them out of the free blocks.
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
        is_running in any::<bool>(),
    ) -> Case {
        let (runs, comes) = (i64::from(is_running), i64::from(!is_running));
        let (table, hits) = (table * runs, hits * comes);
        Case {
            block_size, max_model_len, num_computed: num_computed * runs, new_computed: new_computed * comes,
            new, lookahead, num_tokens, table, hits, evictable: evictable.min(hits), watermark, reserved,
            whole: whole && !is_running, recomputed, is_running,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn slots_equal_vllms_formulas(case in case()) {
        let size = |value: i64| usize::try_from(value).unwrap();
        let spec = GroupSpec::new(GroupKind::Full, size(case.block_size));
        let [computed, tokens] = [case.num_computed + case.new_computed, case.num_tokens]
            .map(|tokens| size(tokens.min(case.max_model_len)));
        let main = computed + size(case.new);
        let slots = (main + size(case.lookahead)).min(size(case.max_model_len));
        let comes = |slots| Arrival::of(&spec, computed, slots, size(case.hits), 0, usize::MAX).missing;
        let missing = if case.is_running {
            Growth::of(&spec, Step { slots, ..Step::default() }, size(case.table), 0).missing
        } else {
            comes(slots)
        };
        let taken = size(case.evictable);
        let (reserved, watermark) = (size(case.reserved), size(case.watermark));
        // Every number of free blocks is tried, because a difference of one block can change the
        // result.
        for free in 0..40 {
            let whole = Room { reserved: 0, watermark }.fits(comes(tokens) + taken, size(free));
            let fits = Room { reserved, watermark }.fits(missing + taken, size(free));
            let planned = ((whole || !case.whole) && fits).then_some(missing);
            prop_assert_eq!(planned, case.allocated(free).map(size));
        }
        let finals = Finals {
            alignment: None,
            recomputed: size(case.recomputed),
            drops: false,
            block_tokens: size(case.block_size),
        };
        let full = finals.of(main.min(size(case.num_tokens))) / size(case.block_size);
        prop_assert_eq!(full, size(case.full_blocks()));
    }
}

proptest! {
    /// Each lookup of a block looks up one key per group, so the number of lookups is bounded.
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
