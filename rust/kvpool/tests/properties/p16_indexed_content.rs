//! Property 16: every block is indexed under the hash of the tokens that are really in it. After
//! truncations and appends, a chain equals the chain of the current tokens.
//!
//! In vllm#49377, blocks were indexed under hashes of rejected drafts.
//!
//! An implementation fails this test if it hashes scheduled tokens instead of committed tokens, or if a
//! truncation does not remove the digests of the removed tokens.

use super::histories::*;
use super::*;

#[test]
fn property_16_a_rejected_draft_is_never_indexed() {
    let mut pool = pool(8);
    let mut cursor = HashCursor::new(hasher(), ExtraKeys::default()).unwrap();
    cursor.append(&[1, 2, 3]);
    cursor.append(&[90, 91, 92]); // drafts, which fill blocks 1 and 2
    cursor.truncate(4).unwrap(); // one draft is accepted
    cursor.append(&[5, 6]);
    assert_eq!(*cursor.chain(), chain(&[1, 2, 3, 90, 5, 6]));
    let blocks = pool.allocate(3).unwrap();
    pool.register(&blocks, cursor.chain(), 0).unwrap();
    pool.mark_computed(&blocks).unwrap();
    let matched =
        |pool: &mut BlockPool, tokens: &[u32]| pool.match_and_acquire(&chain(tokens), 3).unwrap().len();
    assert_eq!(matched(&mut pool, &[1, 2, 3, 90, 5, 6]), 3);
    assert_eq!(matched(&mut pool, &[1, 2, 3, 90, 91, 92]), 2);

    // The manager does not index full blocks whose tokens are not committed, after any number of
    // appends.
    let mut engine = Engine::new(8);
    engine.admit(1, &[1, 2, 3]).unwrap();
    engine.compute_all(1);
    for token in [4, 5, 6, 7] {
        engine.append(1, token).unwrap();
    }
    assert_eq!(engine.manager.pool().stats().registered, 1);
    engine.compute(1, 5);
    assert_eq!(engine.manager.pool().stats().registered, 2);
    engine.check_index();
}

proptest! {
    /// Tests vllm#49377 with random histories of appends, partial commits, preemptions, resumptions,
    /// evictions and rehashing. Every block that can be hit is indexed under the hash of its real KV.
    #[test]
    fn property_16_every_index_entry_names_the_kv_that_was_written(usable in 3usize..9, calls in calls()) {
        play(&mut Engine::new(usable), &calls, |engine| engine.check_index());
    }
}
