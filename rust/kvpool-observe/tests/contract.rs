//! What a pool tells its observer, against the pool itself: whoever only listens knows at every moment which block holds what, and has
//! heard of every block that looks otherwise than before. With every policy, and for observers that come late.
#![expect(clippy::unwrap_used, reason = "a test stops at the first error")]

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use kvpool::observe::{
    BlockView, Blocks, ClearCause, Computed, ContentView, NewContents, PoolObserver, Removed,
};
use kvpool::{
    BlockHasher, BlockId, BlockPool, DuplicatePolicy, EvictionPolicy, ExtraKeys, HashCursor, HasherConfig,
    PoolConfig,
};
use kvpool_observe::{BlockEvent, PoolWatch, WatchConfig};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

const BLOCKS: usize = 9;

/// Everything that was heard.
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

#[derive(Clone, Debug)]
enum Operation {
    Serve { tokens: Vec<u32>, computed: usize },
    Release { nth: usize, after: Option<u64> },
    Share { nth: usize },
    Complete { step: u64 },
    Drop { block: u32 },
    Epoch,
    Grow,
}

fn operation() -> impl Strategy<Value = Operation> {
    let tokens = prop::collection::vec(0..2_u32, 1..5);
    prop_oneof![
        6 => (tokens, 0..6_usize).prop_map(|(tokens, computed)| Operation::Serve { tokens, computed }),
        5 => (0..8_usize, prop::option::of(0..4_u64)).prop_map(|(nth, after)| Operation::Release { nth, after }),
        1 => (0..8_usize).prop_map(|nth| Operation::Share { nth }),
        1 => (0..4_u64).prop_map(|step| Operation::Complete { step }),
        1 => (1..BLOCKS as u32).prop_map(|block| Operation::Drop { block }),
        1 => Just(Operation::Epoch),
        1 => Just(Operation::Grow),
    ]
}

struct Run {
    pool: BlockPool,
    hasher: Arc<BlockHasher>,
    tables: Vec<Vec<BlockId>>,
}

impl Run {
    fn new(eviction: EvictionPolicy, duplicates: DuplicatePolicy) -> Self {
        let config =
            PoolConfig { num_blocks: BLOCKS, block_size: 1, eviction, duplicates, ..PoolConfig::default() };
        let hasher = HasherConfig { block_size: 1, ..HasherConfig::default() };
        Self {
            pool: BlockPool::new(config).unwrap(),
            hasher: Arc::new(BlockHasher::new(hasher).unwrap()),
            tables: Vec::new(),
        }
    }

    fn run(&mut self, operation: &Operation) {
        let pool = &mut self.pool;
        match operation {
            Operation::Serve { tokens, computed } => {
                let extra = ExtraKeys { epoch: pool.epoch(), ..ExtraKeys::default() };
                let mut prompt = HashCursor::new(self.hasher.clone(), extra).unwrap();
                prompt.append(tokens);
                let mut table = pool.match_and_acquire(prompt.chain(), tokens.len() - 1).unwrap();
                let hits = table.len();
                if pool.allocate_into(tokens.len() - hits, &mut table).is_ok() {
                    pool.register(&table[hits..], prompt.chain(), hits).unwrap();
                    let end = table.len().min(hits + computed);
                    pool.mark_computed(&table[hits..end]).unwrap();
                }
                self.tables.push(table);
            }
            Operation::Release { nth, after } if *nth < self.tables.len() => {
                let table = self.tables.swap_remove(*nth);
                match after {
                    None => pool.release_table(&table).unwrap(),
                    Some(step) => pool.release_after(&table, *step).unwrap(),
                }
            }
            Operation::Share { nth } if *nth < self.tables.len() => {
                let table = self.tables[*nth].clone();
                pool.acquire(&table).unwrap();
                self.tables.push(table);
            }
            Operation::Complete { step } => drop(pool.complete_step(*step).unwrap()),
            Operation::Drop { block } => drop(pool.drop_cached(&[BlockId::new(*block)]).unwrap()),
            Operation::Epoch => drop(pool.bump_epoch().unwrap()),
            Operation::Grow if pool.num_blocks() < 2 * BLOCKS => pool.resize(pool.num_blocks() + 1).unwrap(),
            _ => {}
        }
    }

    fn views(&self) -> Vec<BlockView> {
        (0..self.pool.num_blocks() as u32).map(|block| self.pool.blocks().get(BlockId::new(block))).collect()
    }
}

fn policies() -> impl Strategy<Value = EvictionPolicy> {
    prop_oneof![Just(kvpool_policies::LRU), prop::sample::select(kvpool_policies::ALL)]
}

fn duplicates() -> impl Strategy<Value = DuplicatePolicy> {
    prop::sample::select(DuplicatePolicy::ALL)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 600,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn whoever_listens_knows_what_there_is(
        eviction in policies(),
        duplicates in duplicates(),
        operations in prop::collection::vec(operation(), 1..50),
    ) {
        let mut run = Run::new(eviction, duplicates);
        run.pool.observe(Box::new(Listener::default())).unwrap();
        for operation in &operations {
            let before = run.views();
            run.run(operation);
            run.pool.check_invariants().unwrap();
            let (after, listener) = (run.views(), run.pool.observer::<Listener>().unwrap());
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

    /// Digests count what was there before; events tell what comes and goes from then on; and nothing is done otherwise.
    #[test]
    fn observers_may_come_late(
        eviction in policies(),
        duplicates in duplicates(),
        first in prop::collection::vec(operation(), 0..30),
        then in prop::collection::vec(operation(), 1..30),
    ) {
        let (mut run, mut alone) = (Run::new(eviction, duplicates), Run::new(eviction, duplicates));
        first.iter().for_each(|operation| run.run(operation));
        let findable = |run: &Run| -> HashSet<_> {
            let computed = run.views().into_iter().filter_map(|view| view.content).filter(|content| content.computed);
            computed.map(|content| content.hash).collect()
        };
        let mut known = findable(&run);
        let watch = WatchConfig { event_capacity: 1000, digest: true, ..WatchConfig::default() };
        run.pool.watch(&watch).unwrap();
        then.iter().for_each(|operation| run.run(operation));
        first.iter().chain(&then).for_each(|operation| alone.run(operation));
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
