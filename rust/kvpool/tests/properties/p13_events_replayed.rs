//! Property 13: after every call, a set that was built from all events contains exactly the hashes that
//! a lookup can match. `Stored` is reported exactly when the number of computed copies of a content
//! goes from 0 to 1, and `Removed` exactly when it goes from 1 to 0.
//!
//! In vllm#55092, a removal was reported while another copy was present.
//!
//! An implementation fails this test if it reports events for each block instead of each content.

use super::histories::*;
use super::*;

/// In vllm#55092, a removal was reported while another copy was present. This test checks that `Stored`
/// is reported exactly when a content gets its first computed copy, and `Removed` exactly when it loses
/// the last one. So the replayed events give the hashes that a lookup can match.
#[test]
fn property_13_events_report_the_first_copy_of_a_content_and_the_end_of_the_last() {
    every_history(4, |world, act, history| {
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
        // A lookup finds exactly the hashes that the replayed events report as cached.
        let found = world.pool.match_and_acquire(world.prompt(), 2).unwrap();
        let hashes = world.prompt().hashes();
        assert_eq!(found.len(), hashes.iter().take_while(|hash| after.contains(hash)).count(), "{history:?}");
    });
}
