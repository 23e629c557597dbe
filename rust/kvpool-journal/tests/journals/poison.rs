//! The journal of a poisoned pool (a pool that has detected a broken invariant) contains all operations
//! up to the one that detected the fault.

use std::io::Write;
use std::sync::{Arc, Mutex};

use kvpool::{
    AdmitOptions, BlockPool, CacheManager, ExtraKeys, Fault, ManagerConfig, ManagerError, PoolConfig,
    PoolError,
};
use kvpool_journal::{
    Entry, Journal, JournalConfig, JournalReader, Journaled, ManagerCall, ManagerCalls, PoolCall, PoolCalls,
    Recordable, Tail,
};
use kvpool_observe::{ManagerScrubber, Scrubber, WatchConfig};

/// A file that can be read while the journal is open.
#[derive(Clone, Default)]
pub(crate) struct Shared(Arc<Mutex<Vec<u8>>>);

impl Shared {
    pub(crate) fn journal(&self) -> Journal {
        Journal::to_writer(Box::new(self.clone()), JournalConfig::default()).unwrap()
    }

    pub(crate) fn operations<O: serde::de::DeserializeOwned>(&self) -> Vec<O> {
        let bytes = self.0.lock().unwrap().clone();
        let reader = JournalReader::new(&bytes).unwrap();
        assert_eq!(reader.tail(), Tail::Complete);
        let operation = |entry| match entry {
            Entry::Operation(operation, _) => Some(operation),
            _ => None,
        };
        reader.records().filter_map(|entry| operation(entry.unwrap().1)).collect()
    }
}

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn pool(sink: &Shared) -> Journaled<BlockPool> {
    let config = PoolConfig { num_blocks: 16, ..PoolConfig::default() };
    // The scrubber needs a pool that updates a digest at every change. The journal of such a small pool
    // does not enable that.
    let watch = WatchConfig { digest: true, ..WatchConfig::default() };
    let mut pool = Journaled::<BlockPool>::with_watch(config, &watch, sink.journal()).unwrap();
    let blocks = pool.allocate(3).unwrap();
    pool.release(&blocks[..1]).unwrap();
    assert!(sink.operations::<PoolCall>().is_empty());
    let _counted = pool.unrecorded(Recordable::digest);
    assert!(pool.unrecorded(|pool| pool.inject(Fault::References(blocks[2], 5))));
    pool
}

#[test]
fn a_scrubber_that_poisons_a_pool_writes_its_journal() {
    let sink = Shared::default();
    let mut pool = pool(&sink);
    let mut scrubber = Scrubber::default();
    assert!(matches!(pool.unrecorded(|pool| scrubber.scrub(pool, 16)), Err(PoolError::Poisoned { .. })));
    let written = sink.operations();
    assert!(matches!(written[..], [PoolCall::Allocate { .. }, PoolCall::Release { .. }]), "{written:?}");
}

#[test]
fn an_operation_that_poisons_a_pool_writes_its_journal_and_is_its_last() {
    let sink = Shared::default();
    let mut pool = pool(&sink);
    assert!(pool.unrecorded(|pool| pool.inject(Fault::NumHeld(9))));
    assert!(matches!(pool.allocate(1), Err(PoolError::Poisoned { .. })));
    let written = sink.operations();
    assert!(
        matches!(
            written[..],
            [PoolCall::Allocate { .. }, PoolCall::Release { .. }, PoolCall::Allocate { .. }]
        ),
        "{written:?}"
    );
}

fn manager(sink: &Shared, tier: usize) -> Journaled<CacheManager> {
    let config = ManagerConfig { num_blocks: 16, host_blocks: 8, block_size: 4, ..ManagerConfig::default() };
    let mut manager = Journaled::<CacheManager>::with_journal(config, sink.journal()).unwrap();
    let prompt = manager.prepare(&[1, 2, 3, 4, 5], ExtraKeys::default()).unwrap();
    manager.admit("a".into(), prompt, &AdmitOptions::default()).unwrap();
    assert!(sink.operations::<ManagerCall>().is_empty());
    assert!(manager.unrecorded(|manager| manager.pools_to_corrupt()[tier].inject(Fault::NumHeld(7))));
    manager
}

fn is_poisoned<T>(result: &Result<T, ManagerError>) -> bool {
    matches!(result, Err(ManagerError::Pool(PoolError::Poisoned { .. })))
}

#[test]
fn a_poisoned_manager_writes_its_journal_whichever_tier_is_broken() {
    for tier in 0..2 {
        let sink = Shared::default();
        let mut manager = manager(&sink, tier);
        let mut scrubber = ManagerScrubber::default();
        assert!(is_poisoned(&manager.unrecorded(|manager| scrubber.scrub(manager, 1))));
        let written = sink.operations();
        assert!(matches!(written[..], [ManagerCall::Admit { .. }]), "tier {tier}: {written:?}");
        // The manager refuses later calls, too. The journal writes them immediately.
        assert!(is_poisoned(&manager.release("a".into(), kvpool::Until::Now)));
        assert_eq!(sink.operations::<ManagerCall>().len(), 2);
    }
}
