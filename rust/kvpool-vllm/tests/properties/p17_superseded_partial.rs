//! Property 17: a block that is cached for its first tokens can become full and be cached for all of
//! them. After that, a lookup of the first tokens misses, and no event refers to them again.
//!
//! Bugs: vllm#49125: the digest of the first tokens remained in the map, referred to a block with other
//! tokens, and was removed once more later.
//!
//! An implementation fails this property if it overwrites the old hash with the new one.

use super::*;

/// The tokens of the block in this test. Each of its first 1, 2 or 3 tokens can be a cached part.
const PROMPT: [u8; 4] = [7, 7, 8, 8];

#[derive(Clone, Copy, Debug)]
enum Way {
    /// The partly filled block becomes full and is cached for all of its tokens.
    Full,
    /// The keys are first removed directly, as vLLM does when it replaces them.
    Taken,
    /// A copy-on-write moves the keys to another block, which becomes full.
    Moved,
}

/// Tests all combinations: every set of cached parts, every way in which the block becomes full, one or
/// two blocks with these parts, and both orders of the later calls.
#[test]
fn property_17_a_superseded_part_is_neither_found_nor_published_again() {
    for parts in 1..8u8 {
        let lengths: Vec<usize> = (1..=3).filter(|length| parts & (1 << (length - 1)) != 0).collect();
        for way in [Way::Full, Way::Taken, Way::Moved] {
            for shared in [false, true] {
                for policy in policies() {
                    promote(policy, &lengths, way, shared);
                }
            }
        }
    }
}

fn promote(policy: EvictionPolicy, lengths: &[usize], way: Way, shared: bool) {
    let what = format!("{policy:?}, {lengths:?}, {way:?}, shared: {shared}");
    let mut pool = Pool::with_policy(5, true, policy).unwrap();
    // For each key, its number of blocks according to the events.
    let mut told: BTreeMap<Vec<u8>, i32> = BTreeMap::new();
    let gone = |told: &mut BTreeMap<Vec<u8>, i32>, removed: &[Removed]| {
        for one in removed {
            let copies = told.get_mut(one.key.as_bytes()).unwrap_or_else(|| panic!("{what}: {one:?}"));
            *copies -= 1;
            assert!(*copies >= 0, "{what}: {one:?} is told twice");
            assert_eq!(one.last_copy, *copies == 0, "{what}: {one:?}");
        }
    };
    let mut block = take(&mut pool, 1)[0];
    let other = take(&mut pool, 1)[0];
    for &length in lengths {
        // The key of another part becomes a further key of the block. vLLM itself removes the key of a
        // shorter part.
        pool.insert_hash(key(&PROMPT[..length]), block, Some(length as u32));
        *told.entry(key(&PROMPT[..length]).as_bytes().to_vec()).or_default() += 1;
    }
    if shared {
        pool.insert_hash(key(&PROMPT[..lengths[0]]), other, Some(lengths[0] as u32));
        *told.entry(key(&PROMPT[..lengths[0]]).as_bytes().to_vec()).or_default() += 1;
    }
    match way {
        Way::Full => {}
        Way::Taken => {
            let removed = pool.remove_hashes(block);
            assert_eq!(removed.len(), lengths.len(), "{what}");
            gone(&mut told, &removed);
        }
        Way::Moved => {
            let fresh = take(&mut pool, 1)[0];
            pool.move_hashes(block, fresh).unwrap();
            for &length in lengths {
                assert!(!pool.keys().leads_to(&key(&PROMPT[..length]), block), "{what}");
                assert!(pool.keys().leads_to(&key(&PROMPT[..length]), fresh), "{what}");
            }
            pool.free([block]).unwrap();
            block = fresh;
        }
    }

    gone(&mut told, &cache(&mut pool, &[block], &PROMPT));
    *told.entry(key(&PROMPT).as_bytes().to_vec()).or_default() += 1;

    let check = |pool: &Pool, told: &BTreeMap<Vec<u8>, i32>| {
        for length in 1..=3 {
            let part = key(&PROMPT[..length]);
            let left = shared && length == lengths[0];
            assert!(!pool.keys().leads_to(&part, block), "{what}: {length} tokens lead to the full block");
            assert_eq!(pool.find(&part), left.then_some(other), "{what}: {length} tokens");
            assert_eq!(told.get(part.as_bytes()).copied().unwrap_or(0), i32::from(left), "{what}");
        }
        assert_eq!(pool.keys().further_keys(block), [], "{what}");
        pool.check_invariants().unwrap();
    };
    check(&pool, &told);
    assert_eq!(pool.find(&key(&PROMPT)), Some(block));
    // The block is freed and allocated again. The only event is the removal of its whole content.
    pool.free([block]).unwrap();
    check(&pool, &told);
    let (mut removed, mut all) = (Vec::new(), Vec::new());
    let free = pool.num_free();
    pool.allocate(free, &mut all, Some(&mut removed)).unwrap();
    assert_eq!(removed, [Removed { block, key: key(&PROMPT), last_copy: true }], "{what}");
    gone(&mut told, &removed);
    check(&pool, &told);
}
