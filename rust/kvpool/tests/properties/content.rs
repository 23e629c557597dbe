//! Properties 13 and 16: events and index entries tell what is really there.

use super::histories::*;
use super::*;

/// vllm#55092: a removal was reported while another copy was resident. A content's number of computed copies goes from 0
/// exactly if `Stored` is reported, and to 0 exactly if `Removed` is; so the events replayed are the matchable hashes.
#[test]
fn property_13_events_say_when_a_content_appears_and_when_its_last_copy_goes() {
    every_history(5, |world, act, history| {
        world.pool.take_events();
        let before: BTreeSet<_> = world.copies().into_keys().collect();
        world.act(act);
        let after: BTreeSet<_> = world.copies().into_keys().collect();
        let mut replayed = before;
        for event in world.pool.take_events().events {
            match event {
                BlockEvent::Stored { hash, .. } => {
                    assert!(replayed.insert(hash), "{history:?}: stored twice");
                }
                BlockEvent::Removed { hash, .. } => {
                    assert!(replayed.remove(&hash), "{history:?}: removed, not there");
                }
                BlockEvent::Cleared { .. } => replayed.clear(),
                _ => panic!("{event:?}"),
            }
        }
        assert_eq!(replayed, after, "{history:?}");
        // What is said to be matchable is what a lookup finds.
        let found = world.pool.match_and_acquire(world.prompt(), 2).unwrap();
        let hashes = world.prompt().hashes();
        assert_eq!(found.len(), hashes.iter().take_while(|hash| after.contains(hash)).count(), "{history:?}");
    });
}

/// vllm#49377: blocks were indexed under hashes of tokens that were never written to them, once drafts had been rejected.
#[test]
fn property_16_a_rejected_draft_is_never_indexed() {
    let mut pool = pool(8);
    let mut cursor = HashCursor::new(hasher(), ExtraKeys::default()).unwrap();
    cursor.append(&[1, 2, 3]);
    cursor.append(&[90, 91, 92]); // drafts: they fill blocks 1 and 2
    cursor.truncate(4).unwrap(); // one is accepted
    cursor.append(&[5, 6]);
    assert_eq!(*cursor.chain(), chain(&[1, 2, 3, 90, 5, 6]));
    let blocks = pool.allocate(3).unwrap();
    pool.register(&blocks, cursor.chain(), 0).unwrap();
    pool.mark_computed(&blocks).unwrap();
    let matched =
        |pool: &mut BlockPool, tokens: &[u32]| pool.match_and_acquire(&chain(tokens), 3).unwrap().len();
    assert_eq!(matched(&mut pool, &[1, 2, 3, 90, 5, 6]), 3);
    assert_eq!(matched(&mut pool, &[1, 2, 3, 90, 91, 92]), 2);

    // Through the manager: full blocks whose tokens are not committed are not indexed, however often they are appended.
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
    /// vllm#49377: every block that can be hit is indexed under the hash of the KV that is really in it, whatever was
    /// appended, committed in parts, preempted, resumed, evicted and rehashed.
    #[test]
    fn property_16_every_index_entry_names_the_kv_that_was_written(usable in 3usize..9, calls in calls()) {
        play(&mut Engine::new(usable), &calls, Engine::check_index);
    }
}
