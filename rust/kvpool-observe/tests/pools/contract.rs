//! Tests that the notifications of a pool are complete: an observer that uses only notifications can
//! derive the content of every block, and which blocks have changed. The test covers every policy, and
//! observers that attach late.

use std::collections::{BTreeMap, HashSet};

use kvpool::observe::{
    BlockView, Blocks, ClearCause, Computed, ContentView, NewContents, PoolObserver, Removed,
};
use kvpool::{BlockId, BlockPool};
use kvpool_observe::{BlockEvent, PoolWatch, WatchConfig};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

use super::traffic::{Traffic, duplicates, operations, policies};

/// An observer that rebuilds the state of a pool from its notifications.
#[derive(Debug, Default)]
struct Listener {
    contents: BTreeMap<BlockId, ContentView>,
    findable: HashSet<kvpool::BlockHash>,
    changed: HashSet<BlockId>,
    epoch: u64,
}

impl PoolObserver for Listener {
    fn changed(&mut self, blocks: &[BlockId]) {
        self.changed.extend(blocks);
    }

    fn registered(&mut self, new: &NewContents<'_>, blocks: Blocks<'_>) {
        for &block in new.blocks {
            let content = ContentView { computed: false, ..blocks.get(block).content.unwrap() };
            assert_eq!(self.contents.insert(block, content), None, "{block:?} had a content");
        }
    }

    fn computed(&mut self, computed: &Computed) {
        let known = self.contents.get_mut(&computed.block).unwrap();
        assert_eq!((known.hash, known.computed), (computed.content.hash, false));
        known.computed = true;
        assert_eq!(self.findable.insert(computed.content.hash), computed.first);
    }

    fn removed(&mut self, removed: &Removed) {
        assert_eq!(self.contents.remove(&removed.block), Some(removed.content));
        let others = self.contents.values().any(|other| other.computed && other.hash == removed.content.hash);
        assert_eq!(removed.last, removed.content.computed && !others, "{removed:?}");
        if removed.last {
            assert!(self.findable.remove(&removed.content.hash));
        }
    }

    fn cleared(&mut self, _cause: ClearCause, epoch: u64) {
        self.contents.clear();
        self.findable.clear();
        self.epoch = epoch;
        self.changed.extend((0..64).map(BlockId::new));
    }
}

fn views(pool: &BlockPool) -> Vec<BlockView> {
    (0..pool.num_blocks() as u32).map(|block| pool.blocks().get(BlockId::new(block))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 600,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn notifications_describe_the_whole_pool(
        eviction in policies(),
        duplicates in duplicates(),
        operations in operations(50),
    ) {
        let mut run = Traffic::new(eviction, duplicates);
        run.pool.observe(Box::new(Listener::default())).unwrap();
        for operation in &operations {
            let before = views(&run.pool);
            run.run(operation, &mut ());
            run.pool.check_invariants().unwrap();
            let (after, listener) = (views(&run.pool), run.pool.observer::<Listener>().unwrap());
            for (block, view) in after.iter().enumerate() {
                let id = BlockId::new(block as u32);
                prop_assert_eq!(listener.contents.get(&id), view.content.as_ref(), "{:?}", operation);
                let same = before.get(block).is_none_or(|before| before == view);
                prop_assert!(same || listener.changed.contains(&id), "{:?} of {:?}", id, operation);
            }
            let epoch = listener.epoch;
            prop_assert_eq!(epoch, run.pool.epoch());
            run.pool.observer_mut::<Listener>().unwrap().0.changed.clear();
        }
    }

    /// If observers are attached to a pool that is in use, digests include the earlier contents, events
    /// cover only later changes, and the pool returns the same blocks as without observers.
    #[test]
    fn observers_may_come_late(
        eviction in policies(),
        duplicates in duplicates(),
        first in operations(30),
        then in operations(30),
    ) {
        let (mut run, mut alone) = (Traffic::new(eviction, duplicates), Traffic::new(eviction, duplicates));
        first.iter().for_each(|operation| run.run(operation, &mut ()));
        let findable = |run: &Traffic| -> HashSet<_> {
            let computed = views(&run.pool).into_iter().filter_map(|view| view.content)
                .filter(|content| content.computed);
            computed.map(|content| content.hash).collect()
        };
        let mut known = findable(&run);
        let watch = WatchConfig { event_capacity: 1000, digest: true, ..WatchConfig::default() };
        run.pool.watch(&watch).unwrap();
        then.iter().for_each(|operation| run.run(operation, &mut ()));
        first.iter().chain(&then).for_each(|operation| alone.run(operation, &mut ()));
        prop_assert_eq!(run.pool.state_digest(), Some(alone.pool.state_digest_from_scratch()));
        prop_assert_eq!(run.pool.eviction_order(), alone.pool.eviction_order());
        run.pool.check_invariants().unwrap();
        for event in run.pool.take_events().events {
            match event {
                BlockEvent::Stored { hash, .. } => prop_assert!(known.insert(hash)),
                BlockEvent::Removed { hash, .. } => prop_assert!(known.remove(&hash)),
                _ => known.clear(),
            }
        }
        prop_assert_eq!(known, findable(&run));
    }
}
