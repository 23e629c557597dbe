//! Property 20: if several blocks have the same content and one of them is evicted, lookups still find
//! the content. The blocks may be removed in any order: every index entry always belongs to a block
//! with the hash of the entry.
//!
//! In kvcached#401 and nano#219, the entry of a hash contained only one block. It was removed with that
//! block, or remained after the block got another content.
//!
//! An implementation fails this test if it maps each hash to one block, and the last copy overwrites or
//! removes this entry.

use super::histories::*;
use super::*;

/// In ovg-project/kvcached#401 and nano#219, two blocks had the same content. After one was evicted,
/// lookups no longer found the content, or an entry remained for a block with another content. This
/// test removes the copies in every order and in every way.
#[test]
fn property_20_copies_of_a_content_can_go_in_any_order() {
    let chain = chain(&[1, 2, 3, 4]);
    for order in permutations(3) {
        for ways in 0..27 {
            let mut pool = pool(9);
            let copies: Vec<_> = (0..3).map(|_| fill(&mut pool, &[1, 2, 3, 4])).collect();
            for (nth, &copy) in order.iter().enumerate() {
                let table = &copies[copy];
                match ways / 3usize.pow(nth as u32) % 3 {
                    0 => {
                        pool.release_table(table).unwrap();
                        assert_eq!(pool.drop_cached(table).unwrap(), 2);
                    }
                    1 => assert_eq!(pool.drop_cached(table).unwrap(), 2), // while it is held
                    _ => {
                        // An allocation of all blocks without references evicts the copy.
                        pool.release_table(table).unwrap();
                        pool.allocate(pool.num_available()).unwrap();
                    }
                }
                pool.check_invariants().unwrap();
                let left: Vec<_> = order[nth + 1..].iter().map(|&copy| &copies[copy]).collect();
                let found = pool.match_and_acquire(&chain, 2).unwrap();
                assert_eq!(
                    found.is_empty(),
                    left.is_empty(),
                    "{order:?}, {ways}: a copy is left and not found"
                );
                if let Some(&oldest) = order[nth + 1..].iter().min() {
                    assert_eq!(found, copies[oldest], "{order:?}, {ways}: not the oldest copy that is left");
                }
                for (at, block) in found.iter().enumerate() {
                    assert!(
                        left.iter().any(|table| table[at] == *block),
                        "{order:?}, {ways}: {block:?} is not a copy"
                    );
                    assert_eq!(pool.hash_of(*block), Some(chain.hashes()[at]));
                }
                pool.release_table(&found).unwrap();
            }
            assert_eq!(pool.stats().registered, 0);
        }
    }
}

/// A lookup guesses the next block of a chain from the ids of the previous blocks. The guessed block
/// may be a newer copy. The lookup still has to return the oldest copy, which an earlier version did
/// not.
#[test]
fn property_20_a_run_of_ids_leads_to_no_younger_copy() {
    let tokens = [1, 2, 3, 4, 5, 6, 7, 8];
    for step in [1, 2] {
        let mut pool = pool(24);
        // The ids of a table's blocks differ by 1, or by 2.
        let spread = |blocks: Vec<BlockId>| blocks.into_iter().step_by(step).collect::<Vec<_>>();
        let mut copy = || {
            let blocks = spread(pool.allocate(4 * step).unwrap());
            pool.register(&blocks, &chain(&tokens), 0).unwrap();
            pool.mark_computed(&blocks).unwrap();
            blocks
        };
        let (older, younger) = (copy(), copy());
        pool.drop_cached(&older[..2]).unwrap();
        let expected = [&younger[..2], &older[2..]].concat();
        assert_eq!(pool.match_and_acquire(&chain(&tokens), 4).unwrap(), expected);
        // A guessed block must not be returned if its KV is not written, or if it has lost its content.
        pool.release(&expected).unwrap();
        pool.drop_cached(&older[2..]).unwrap();
        pool.drop_cached(&younger[2..]).unwrap();
        pool.register(&younger[2..3], &chain(&tokens), 2).unwrap();
        assert_eq!(pool.match_and_acquire(&chain(&tokens), 4).unwrap(), younger[..2]);
        pool.check_invariants().unwrap();
    }
}

/// Tests kvcached#401 and nano#219 with every short history of a pool: the index contains each
/// registered block under its hash, and every block that a lookup returns has the requested hash.
#[test]
fn property_20_every_entry_names_a_block_with_its_hash() {
    every_history(4, |world, act, history| {
        world.act(act);
        world.pool.check_invariants().unwrap();
        let copies = world.copies();
        let found = world.pool.match_and_acquire(world.prompt(), 2).unwrap();
        for (block, hash) in found.iter().zip(world.prompt().hashes()) {
            assert_eq!(world.pool.hash_of(*block), Some(*hash), "{history:?}");
        }
        let expected = world.prompt().hashes().iter().take_while(|hash| copies.contains_key(hash)).count();
        assert_eq!(found.len(), expected, "{history:?}: a dangling or a lost entry");
    });
    // Tests the index without a pool: no two chains share an entry, and no entry of a removed block
    // remains.
    let mut index = PrefixIndex::new(8, B, Verify::None).unwrap();
    let (one, two) = (chain(&[1, 2]), chain(&[3, 4]));
    for (block, chain) in [(1, &one), (2, &two), (3, &one), (4, &one), (5, &two)] {
        index.insert(id(block), chain, 0).unwrap();
    }
    for order in permutations(3) {
        let mut index = index.clone();
        for (nth, &at) in order.iter().enumerate() {
            assert!(index.remove(id([1, 3, 4][at])));
            let left = index.copies(&one.hashes()[0]);
            assert_eq!(left.len(), 2 - nth);
            assert!(left.iter().all(|&block| index.hash_of(block) == Some(one.hashes()[0])));
            assert_eq!(raw(&index.copies(&two.hashes()[0])), [2, 5]);
            index.check_invariants().unwrap();
        }
        assert_eq!(index.num_hashes(), 1);
    }
}
