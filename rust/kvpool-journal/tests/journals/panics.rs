//! A caller's policy panics during an operation. The operation is then only partly done, so the pool
//! refuses all work from then on, even if the caller catches the panic. The journal contains the
//! operations that led to the panic.

use std::panic::{AssertUnwindSafe, catch_unwind};

use kvpool::{
    AdmitOptions, BlockId, BlockPool, CacheManager, Content, EvictionPolicy, ExtraKeys, InvariantViolation,
    ManagerConfig, Policy, PoolConfig, PoolError, RequestRef,
};
use kvpool_journal::{
    Journal, Journaled, ManagerCall, ManagerCalls, PoolCall, PoolCalls, VllmCall, VllmCalls, VllmConfig,
};
use kvpool_policies::eviction_policy;
use kvpool_vllm::{Key, Pool, Start};

use super::poison::Shared;

/// A first-in-first-out policy that panics when the pool asks it for a victim.
#[derive(Clone, Debug, Default)]
struct Bomb(Vec<BlockId>);

impl Bomb {
    fn new(_num_blocks: usize) -> Result<Self, PoolError> {
        Ok(Self::default())
    }
}

impl Policy for Bomb {
    fn name(&self) -> &'static str {
        "bomb"
    }

    fn admit(&mut self, _: BlockId, _: Content) {}

    fn hit(&mut self, _: BlockId) {}

    fn release(&mut self, block: BlockId) {
        self.0.push(block);
    }

    #[expect(clippy::panic, reason = "what is tested")]
    fn pop(&mut self) -> Option<BlockId> {
        panic!("a policy of the caller's own");
    }

    fn take(&mut self, block: BlockId) {
        self.0.retain(|&other| other != block);
    }

    fn unpop(&mut self, block: BlockId) {
        self.0.push(block);
    }

    fn forget(&mut self, block: BlockId) {
        self.take(block);
    }

    fn clear(&mut self) {
        self.0.clear();
    }

    fn grow(&mut self, _: usize) -> Result<(), PoolError> {
        Ok(())
    }

    fn check_invariants(&self) -> Result<(), InvariantViolation> {
        Ok(())
    }
}

const BOMB: EvictionPolicy = eviction_policy!("bomb", Bomb::new);

const REASON: &str =
    "this pool is poisoned and refuses work: the evictor \"bomb\" panicked in the middle of an operation";

fn request() -> RequestRef<'static> {
    RequestRef::Int(1)
}

#[test]
fn a_policy_that_panics_poisons_its_pool_and_leaves_the_journal() {
    let sink = Shared::default();
    let config = PoolConfig { num_blocks: 4, block_size: 2, eviction: BOMB, ..PoolConfig::default() };
    let mut pool = Journaled::<BlockPool>::with_journal(config, sink.journal()).unwrap();
    let prompt =
        CacheManager::new(ManagerConfig { num_blocks: 4, block_size: 2, ..ManagerConfig::default() })
            .unwrap()
            .prepare(&[1, 2, 3, 4, 5, 6], ExtraKeys::default())
            .unwrap();
    let table = pool.allocate(3).unwrap();
    pool.register(&table, prompt.chain(), 0).unwrap();
    pool.mark_computed(&table).unwrap();
    pool.release_table(&table).unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| pool.allocate(2))).is_err());
    assert_eq!(pool.journal().map(Journal::operations), Some(4));
    // After the panic, calls that only read still work, and do not repair the pool.
    assert_eq!((pool.num_usable(), pool.stats().registered), (3, 3));
    for _ in 0..2 {
        assert_eq!(pool.allocate(1).unwrap_err().to_string(), REASON);
    }
    assert!(matches!(pool.match_and_acquire(prompt.chain(), 3, None), Err(PoolError::Poisoned { .. })));
    let written = sink.operations::<PoolCall>();
    assert!(
        matches!(
            written[..4],
            [
                PoolCall::Allocate { .. },
                PoolCall::Register { .. },
                PoolCall::MarkComputed { .. },
                PoolCall::ReleaseTable { .. },
            ]
        ),
        "{written:?}"
    );
}

#[test]
fn a_policy_that_panics_poisons_its_manager_and_leaves_the_journal() {
    let sink = Shared::default();
    let config = ManagerConfig { num_blocks: 4, block_size: 2, eviction: BOMB, ..ManagerConfig::default() };
    let mut manager = Journaled::<CacheManager>::with_journal(config, sink.journal()).unwrap();
    let mut admit = |tokens: &[u32]| {
        let prompt = manager.prepare(tokens, ExtraKeys::default()).unwrap();
        let admitted = catch_unwind(AssertUnwindSafe(|| {
            manager
                .admit(1.into(), prompt, &AdmitOptions::default())
                .map(drop)
                .map_err(|refused| refused.error)
        }));
        if let Ok(Ok(())) = admitted {
            manager.commit(request(), tokens.len()).unwrap();
            manager.release(request(), kvpool::Until::Now).unwrap();
        }
        admitted
    };
    assert_eq!(admit(&[1, 2, 3, 4, 5, 6]).unwrap(), Ok(()));
    assert!(admit(&[7, 8, 9, 10, 11, 12]).is_err());
    assert_eq!(manager.journal().map(Journal::operations), Some(3));
    let refused = manager.prepare(&[7, 8], ExtraKeys::default()).unwrap_err();
    assert!(refused.to_string().contains("panicked in the middle of an operation"), "{refused}");
    // Without a call after the panic, nothing is written yet. The operations that led to it are written
    // when the manager is dropped.
    assert!(sink.operations::<ManagerCall>().is_empty());
    drop(manager);
    let written = sink.operations::<ManagerCall>();
    assert!(
        matches!(
            written[..],
            [ManagerCall::Admit { .. }, ManagerCall::Commit { .. }, ManagerCall::Release { .. }]
        ),
        "{written:?}"
    );
}

#[test]
fn an_operation_of_vllms_pool_that_panics_is_the_only_one_lost() {
    let sink = Shared::default();
    let config = VllmConfig { num_blocks: 4, caching: true, policy: BOMB, retention: None };
    let mut pool = Journaled::<Pool>::with_journal(config, sink.journal()).unwrap();
    let mut table = Vec::new();
    pool.allocate(3, &mut table, None).unwrap();
    let mut cache = |key_of: fn(usize) -> Option<Key>| {
        let (start, blocks, removed) = (Start::at(0), &*table, &mut Vec::new());
        catch_unwind(AssertUnwindSafe(|| pool.cache_full(start, blocks, key_of, 2, removed, None)))
    };
    // `cache_full` reads all keys before it changes the pool, so this panic leaves the pool intact.
    assert!(cache(|at| [None][at]).is_err());
    cache(|at| Key::new(&[at as u8; 32], 0).ok()).unwrap().unwrap();
    pool.free(table.iter().copied()).unwrap();
    let mut out = Vec::new();
    assert!(catch_unwind(AssertUnwindSafe(|| pool.allocate(2, &mut out, None).map(drop))).is_err());
    assert_eq!(pool.journal().map(Journal::operations), Some(3));
    assert!(sink.operations::<VllmCall>().is_empty());
    assert_eq!(pool.touch(&[1]).unwrap_err().to_string(), REASON);
    let written = sink.operations::<VllmCall>();
    assert!(
        matches!(
            written[..],
            [
                VllmCall::Allocate { .. },
                VllmCall::CacheFull { .. },
                VllmCall::Free { .. },
                VllmCall::Touch { .. },
            ]
        ),
        "{written:?}"
    );
}
