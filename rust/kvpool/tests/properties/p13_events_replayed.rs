//! Property 13: after every call, the events replayed into a set give the matchable hashes. The number
//! of live copies of a content goes from 0 to 1 exactly if `Stored` is reported, and from 1 to 0
//! exactly if `Removed` is.
//!
//! Bugs: vllm#55092: a removal was reported while another copy was present.
//!
//! Fails it: events per block instead of per content.

use super::histories::*;
use super::*;

/// vllm#55092: a removal was reported while another copy was present. A content's number of computed
/// copies leaves 0 exactly if `Stored` is reported, and reaches 0 exactly if `Removed` is. So the
/// replayed events are the matchable hashes.
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
        // The hashes that events report as matchable are those that a lookup finds.
        let found = world.pool.match_and_acquire(world.prompt(), 2).unwrap();
        let hashes = world.prompt().hashes();
        assert_eq!(found.len(), hashes.iter().take_while(|hash| after.contains(hash)).count(), "{history:?}");
    });
}
