//! Tests a poisoned pool, and all layers above it, with a list of all public calls. Every operation is
//! refused with the reason. Calls that return ids or counts on which a caller would act are also
//! refused. Calls for diagnosis still work.

use std::sync::Arc;

use kvpool::retention::{Retention, RetentionConfig, TenantId};
use kvpool::{
    AdmitOptions, BlockHasher, BlockId, BlockPool, CacheManager, ChainLink, Computed, ExtraKeys, Fault,
    HashCursor, HasherConfig, Loaded, ManagerConfig, ManagerError, Match, Part, PoolConfig, PoolError,
    RequestRef, Rows, Ticket, TierError, Tiers, Until,
};
use kvpool_observe::{
    ManagerScrubber, ManagerWatch, ManagerWatchConfig, PoolWatch, Scrubber, TierWatch, WatchConfig,
};

const BLOCK_SIZE: usize = 4;

fn prompt(tokens: u32) -> Vec<u32> {
    (0..tokens).collect()
}

fn hasher() -> Arc<BlockHasher> {
    Arc::new(BlockHasher::new(HasherConfig { block_size: BLOCK_SIZE, ..Default::default() }).unwrap())
}

fn cursor(hasher: &Arc<BlockHasher>, tokens: u32) -> HashCursor {
    let mut cursor = HashCursor::new(Arc::clone(hasher), ExtraKeys::default()).unwrap();
    cursor.append(&prompt(tokens));
    cursor
}

fn config(num_blocks: usize) -> PoolConfig {
    let retention = Some(RetentionConfig::default());
    let eviction = kvpool_policies::LRU;
    PoolConfig { num_blocks, block_size: BLOCK_SIZE, eviction, retention, ..PoolConfig::default() }
}

/// Returns the observers of these pools: their digest, and an event log if `event_capacity` is above 0.
fn watch(event_capacity: usize) -> WatchConfig {
    WatchConfig { event_capacity, digest: true, advisor: None, ..WatchConfig::default() }
}

fn pool() -> BlockPool {
    BlockPool::new(config(16)).unwrap().watched(&watch(0)).unwrap()
}

type PoolCall = (&'static str, fn(&mut BlockPool, &[BlockId], &HashCursor) -> Result<(), PoolError>);

const POOL_CALLS: &[PoolCall] = &[
    ("allocate", |pool, _, _| pool.allocate(1).map(drop)),
    ("allocate_into", |pool, _, _| pool.allocate_into(1, &mut Vec::new())),
    ("acquire", |pool, blocks, _| pool.acquire(blocks)),
    ("release", |pool, blocks, _| pool.release(blocks)),
    ("release_table", |pool, blocks, _| pool.release_table(blocks)),
    ("release_after", |pool, blocks, _| pool.release_after(blocks, 9)),
    ("release_after, over", |pool, blocks, _| pool.release_after(blocks, 0)),
    ("complete_step", |pool, _, _| pool.complete_step(9).map(drop)),
    ("match_and_acquire", |pool, _, cursor| pool.match_and_acquire(cursor.chain(), 9).map(drop)),
    ("match_and_acquire_for", |pool, _, cursor| {
        pool.match_and_acquire_for(cursor.chain(), 9, TenantId(1)).map(drop)
    }),
    ("probe", |pool, _, cursor| pool.probe(cursor.chain(), 9).map(drop)),
    ("register", |pool, blocks, cursor| pool.register(&blocks[2..], cursor.chain(), 2).map(drop)),
    ("mark_computed", |pool, blocks, _| pool.mark_computed(&blocks[..2])),
    ("lookup", |pool, _, cursor| pool.lookup(cursor.chain(), 0, 9).map(drop)),
    ("lookup_refreshing", |pool, _, cursor| pool.lookup_refreshing(cursor.chain(), 0, 9).map(drop)),
    ("acquire_match", |pool, blocks, cursor| {
        pool.acquire_match(&Match::new(cursor.chain(), 0, &blocks[..2])?)
    }),
    ("register_table", |pool, blocks, cursor| pool.register_table(blocks, cursor.chain(), 0).map(drop)),
    ("adopt", |pool, _, cursor| pool.adopt(&[BlockId::new(9)], cursor.chain(), 0).map(drop)),
    ("disown", |pool, blocks, _| pool.disown(&blocks[2..])),
    ("evict", |pool, _, _| pool.evict(1).map(drop)),
    ("release_table_until", |pool, blocks, _| pool.release_table_until(blocks, Until::Step(9))),
    ("register_link", |pool, blocks, cursor| pool.register_link(blocks[2], &link(cursor)).map(drop)),
    ("acquire_registered", |pool, _, cursor| pool.acquire_registered(&link(cursor)).map(drop)),
    ("mark_accessed", |pool, blocks, _| pool.mark_accessed(blocks, 1.0)),
    ("drop_cached", |pool, blocks, _| pool.drop_cached(blocks).map(drop)),
    ("reset", |pool, _, _| pool.reset().map(drop)),
    ("bump_epoch", |pool, _, _| pool.bump_epoch().map(drop)),
    ("resize", |pool, _, _| pool.resize(64)),
    ("retain", |pool, blocks, _| pool.retain(blocks, Retention::PINNED).map(drop)),
    ("assign_tenant", |pool, blocks, _| pool.assign_tenant(blocks, TenantId(1))),
    ("advance_time", |pool, _, _| pool.advance_time(1.0).map(drop)),
    ("tenant_blocks", |pool, _, _| pool.tenant_blocks(TenantId(1)).map(drop)),
    ("scrub", |pool, _, _| Scrubber::default().scrub(pool, 1).map(drop)),
];

fn link(cursor: &HashCursor) -> ChainLink {
    ChainLink::new(cursor.hasher(), None, &prompt(4), &ExtraKeys::default()).unwrap()
}

#[test]
fn a_poisoned_pool_refuses_every_operation() {
    let cursor = cursor(&hasher(), 12);
    for &(name, call) in POOL_CALLS {
        let mut pool = pool();
        let blocks = pool.allocate(3).unwrap();
        pool.register(&blocks[..2], cursor.chain(), 0).unwrap();
        pool.mark_computed(&blocks[..2]).unwrap();
        pool.complete_step(0).unwrap();
        // Some of these calls have invalid arguments. They must report that the pool is poisoned, and
        // not the invalid argument.
        assert!(
            !matches!(call(&mut pool, &blocks, &cursor), Err(PoolError::Poisoned { .. })),
            "{name} before"
        );

        let mut pool = self::pool();
        let blocks = pool.allocate(3).unwrap();
        assert!(pool.inject(Fault::NumHeld(9)));
        let error = Scrubber::default().scrub(&mut pool, 1).unwrap_err();
        for _ in 0..2 {
            assert_eq!(call(&mut pool, &blocks, &cursor), Err(error.clone()), "{name}");
        }
    }
}

/// These calls describe the state for a diagnosis. None of them allocates or acquires a block.
#[test]
fn a_poisoned_pool_can_be_looked_at() {
    let cursor = cursor(&hasher(), 12);
    let mut pool = BlockPool::new(config(16)).unwrap().watched(&watch(9)).unwrap();
    let blocks = pool.allocate(3).unwrap();
    pool.register(&blocks[..2], cursor.chain(), 0).unwrap();
    pool.mark_computed(&blocks[..2]).unwrap();
    assert!(pool.inject(Fault::References(blocks[2], 5)));
    assert!(Scrubber::default().scrub(&mut pool, 16).is_err());

    assert!(pool.poison_reason().unwrap().contains("D"), "{:?}", pool.poison_reason());
    assert!(pool.check_invariants().unwrap_err().to_string().contains("B0"));
    assert_eq!((pool.num_blocks(), pool.num_usable(), pool.block_size(), pool.epoch()), (16, 15, 4, 0));
    assert_eq!((pool.num_available(), pool.num_fenced(), pool.num_references()), (12, 0, 3));
    assert_eq!((pool.ref_count(blocks[2]), pool.num_holders(blocks[2])), (Some(5), 5));
    assert_eq!((pool.fence_references(blocks[2]), pool.num_fence_references()), (0, 0));
    assert!(pool.state(blocks[0]).is_some() && pool.hash_of(blocks[0]).is_some());
    assert!(pool.is_registered(blocks[0]) && pool.is_computed(blocks[0]) && !pool.is_completed(0));
    assert_eq!(pool.copies(&cursor.chain().hashes()[0]), [blocks[0]]);
    assert_eq!((pool.free_order().len(), pool.eviction_order().len()), (12, 0));
    assert_eq!(pool.stats().active, 3);
    assert!(pool.algorithm().is_some() && pool.retention_time().is_none() && pool.has_retention());
    assert!(pool.retention_stats().is_some() && pool.advice().is_none());
    assert_eq!(pool.take_events().events.len(), 2);
    assert_eq!(pool.state_digest(), Some(pool.state_digest_from_scratch()));
}

type ManagerCall = (&'static str, fn(&mut CacheManager, &HashCursor) -> Result<(), ManagerError>);

fn ids(ids: &[&'static str]) -> Vec<RequestRef<'static>> {
    ids.iter().map(|&id| RequestRef::Str(id)).collect()
}

const MANAGER_CALLS: &[ManagerCall] = &[
    ("prepare", |manager, _| manager.prepare(&[1], ExtraKeys::default()).map(drop)),
    ("probe", |manager, cursor| manager.probe(cursor).map(drop)),
    ("request", |manager, _| manager.request("a").map(drop)),
    ("block_table", |manager, _| manager.block_table("a").map(drop)),
    ("cursor", |manager, _| manager.cursor("a").map(drop)),
    ("admit", |manager, cursor| Ok(manager.admit("new", cursor.clone()).map(drop)?)),
    ("admit_with", |manager, cursor| {
        Ok(manager.admit_with("new", cursor.clone(), &AdmitOptions::default()).map(drop)?)
    }),
    ("append", |manager, _| manager.append(&ids(&["a"]), &[7], Computed::Nothing).map(drop)),
    ("append, none", |manager, _| manager.append(&[], &[], Computed::Nothing).map(drop)),
    ("append_tokens", |manager, _| manager.append_tokens("a", &[7], 0).map(drop)),
    ("append_turn", |manager, _| manager.append_turn("a", &[7], &[], 0).map(drop)),
    ("append_ragged", |manager, _| manager.append_ragged(&Rows::default()).map(drop)),
    ("extend", |manager, _| manager.extend("a", 9).map(drop)),
    ("external_done", |manager, _| manager.external_done("loading", Loaded::All).map(drop)),
    ("fit", |manager, cursor| manager.fit(cursor, Part::WHOLE).map(drop)),
    ("fence", |manager, _| manager.fence().map(drop)),
    ("end_fence", |manager, _| manager.end_fence(Ticket::new(0)).map(drop)),
    ("release_batch", |manager, _| manager.release_batch(&[], Until::Now)),
    ("fork_batch", |manager, _| manager.fork_batch(&[], &[])),
    ("truncate_batch", |manager, _| manager.truncate_batch(&[], &[], Until::Now)),
    ("resume_with", |manager, _| manager.resume_with("waiting", Part::WHOLE).map(drop)),
    ("evict", |manager, _| manager.evict(1).map(drop)),
    ("plan_append_ragged", |manager, _| {
        manager.plan_append_ragged(&mut manager.plan_step(), &Rows::default()).map(drop)
    }),
    ("commit", |manager, _| manager.commit("a", 5).map(drop)),
    ("commit_batch", |manager, _| manager.commit_batch(&ids(&["a"]), &[5]).map(drop)),
    ("fork", |manager, _| manager.fork("a", "child")),
    ("truncate", |manager, _| manager.truncate("a", 6, None)),
    ("trim_window", |manager, _| manager.trim_window("a", 99).map(drop)),
    ("take_plan", |manager, _| manager.take_plan().map(drop)),
    ("fit_swap_out", |manager, _| manager.fit_swap_out(&ids(&["a"])).map(drop)),
    ("fit_swap_in", |manager, _| manager.fit_swap_in(&ids(&["out"])).map(drop)),
    ("begin_swap_out", |manager, _| manager.begin_swap_out(&ids(&["a"])).map(drop)),
    ("begin_swap_in", |manager, _| manager.begin_swap_in(&ids(&["out"])).map(drop)),
    ("complete_swap", |manager, _| manager.complete_swap(kvpool::SwapId::from_number(1)).map(drop)),
    ("abort_swap", |manager, _| manager.abort_swap(kvpool::SwapId::from_number(1))),
    ("preempt", |manager, _| manager.preempt("a", None)),
    ("resume", |manager, _| manager.resume("waiting").map(drop)),
    ("release", |manager, _| manager.release("a", None)),
    ("end_session", |manager, _| manager.end_session("a", None).map(drop)),
    ("retain", |manager, _| manager.retain("a", &[]).map(drop)),
    ("set_tenant", |manager, _| manager.set_tenant("a", TenantId(1))),
    ("end_of_life", |manager, _| manager.end_of_life("a", 0).map(drop)),
    ("retain_prefix", |manager, cursor| manager.retain_prefix(cursor, &[]).map(drop)),
    ("end_of_life_of", |manager, cursor| manager.end_of_life_of(cursor, 0).map(drop)),
    ("advance_time", |manager, _| manager.advance_time(1.0).map(drop)),
    ("tenant_blocks", |manager, _| manager.tenant_blocks(TenantId(1)).map(drop)),
    ("complete_step", |manager, _| manager.complete_step(1).map(drop)),
    ("bump_epoch", |manager, _| manager.bump_epoch().map(drop)),
    ("reset", |manager, _| manager.reset().map(drop)),
    ("drop_cached", |manager, _| manager.drop_cached(&[]).map(drop)),
    ("resize", |manager, _| manager.resize(64)),
    ("plan_admit", |manager, cursor| {
        Ok(manager.plan_admit(&mut manager.plan_step(), "new", cursor.clone()).map(drop)?)
    }),
    ("plan_resume", |manager, _| manager.plan_resume(&mut manager.plan_step(), "waiting").map(drop)),
    ("plan_append", |manager, _| manager.plan_append(&mut manager.plan_step(), "a", &[7], 0).map(drop)),
    ("plan_preempt", |manager, _| manager.plan_preempt(&mut manager.plan_step(), "a", None).map(drop)),
    ("plan_release", |manager, _| manager.plan_release(&mut manager.plan_step(), "a", None).map(drop)),
    ("commit_step", |manager, _| {
        let mut plan = manager.plan_step();
        manager.commit_step(&mut plan).map(drop)
    }),
    ("scrub", |manager, _| ManagerScrubber::default().scrub(manager, 1).map(drop)),
];

/// Returns a manager with a running request, a preempted request, a request in the host tier, and a
/// request that is being swapped out.
fn manager() -> CacheManager {
    let retention = Some(RetentionConfig::default());
    let config = ManagerConfig {
        num_blocks: 32,
        host_blocks: 16,
        block_size: BLOCK_SIZE,
        eviction: kvpool_policies::LRU,
        retention,
        ..Default::default()
    };
    let watch = ManagerWatchConfig { digest: true, ..Default::default() };
    let mut manager = CacheManager::new(config).unwrap().watched(&watch).unwrap();
    for (id, first) in [("a", 0), ("waiting", 100), ("out", 200), ("moving", 300)] {
        let tokens: Vec<u32> = (first..first + 6).collect();
        manager.admit(id, manager.prepare(&tokens, ExtraKeys::default()).unwrap()).unwrap();
        manager.commit(id, 4).unwrap();
    }
    let part = Part { external_tokens: 4, ..Part::WHOLE };
    let cursor = manager.prepare(&[400; 6], ExtraKeys::default()).unwrap();
    manager.admit_with("loading", cursor, &AdmitOptions { part, ..AdmitOptions::default() }).unwrap();
    manager.fence().unwrap();
    manager.preempt("waiting", None).unwrap();
    let swap = manager.begin_swap_out(&ids(&["out"])).unwrap();
    manager.take_plan().unwrap();
    manager.complete_swap(swap).unwrap();
    manager.begin_swap_out(&ids(&["moving"])).unwrap();
    manager.take_plan().unwrap();
    manager
}

/// The poisoned pool may be that of the device or that of the host. Most of these calls never use the
/// host's pool, and are refused nevertheless.
#[test]
fn a_manager_with_a_poisoned_pool_refuses_every_operation() {
    for &(name, call) in MANAGER_CALLS {
        let mut healthy = manager();
        let cursor = healthy.prepare(&prompt(9), ExtraKeys::default()).unwrap();
        let before = call(&mut healthy, &cursor);
        assert!(!matches!(before, Err(ManagerError::Pool(PoolError::Poisoned { .. }))), "{name} before");
        for tier in 0..2 {
            let mut manager = manager();
            let cursor = manager.prepare(&prompt(9), ExtraKeys::default()).unwrap();
            assert!(manager.pools_to_corrupt()[tier].inject(Fault::NumHeld(31)));
            let error = ManagerScrubber::default().scrub(&mut manager, 1).unwrap_err();
            assert!(manager.poison_reason().unwrap().contains("B1"));
            for _ in 0..2 {
                assert_eq!(call(&mut manager, &cursor), Err(error.clone()), "{name}, tier {tier}");
            }
            // These calls help with a diagnosis.
            assert!(
                manager.contains("a") && manager.stats().running > 0 && manager.hasher().block_size() == 4
            );
            assert!(manager.retention_stats().is_some() && manager.tiers().num_planned() == 0);
            assert!(manager.check_invariants().is_err() && manager.take_events().events.is_empty());
            assert!(manager.plan_step().is_empty() && manager.state_digest().is_some());
        }
    }
}

#[test]
fn tiers_with_a_poisoned_pool_refuse_every_operation() {
    type Call = (&'static str, fn(&mut Tiers, BlockId) -> Result<(), TierError>);
    const CALLS: &[Call] = &[
        ("is_writable", |tiers, block| tiers.is_writable(0, block).map(drop)),
        ("copy_on_write", |tiers, block| tiers.copy_on_write(0, block).map(drop)),
        ("copy_if_shared", |tiers, block| tiers.copy_if_shared(0, block).map(drop)),
        ("take_plan", |tiers, _| tiers.take_plan().map(drop)),
        ("bump_epoch", |tiers, _| tiers.bump_epoch().map(drop)),
        ("reset", |tiers, _| tiers.reset().map(drop)),
        ("fit_swap", |tiers, block| tiers.fit_swap(&[block], 0, 1, 0).map(drop)),
        ("begin_swap", |tiers, block| tiers.begin_swap(&[block], 0, 1).map(drop)),
        ("swap_mapping", |tiers, _| tiers.swap_mapping(kvpool::SwapId::from_number(0)).map(drop)),
        ("complete_swap", |tiers, _| tiers.complete_swap(kvpool::SwapId::from_number(0)).map(drop)),
        ("abort_swap", |tiers, _| tiers.abort_swap(kvpool::SwapId::from_number(0))),
    ];
    let poisoned = || {
        let mut tiers = Tiers::new(vec![config(16), config(16)]).unwrap();
        (0..2).for_each(|tier| tiers.watch_tier(tier, &watch(0)).unwrap());
        let table = tiers.pool_mut(0).unwrap().allocate(1).unwrap();
        assert!(tiers.pool_mut(1).unwrap().inject(Fault::NumHeld(3)));
        let error = Scrubber::default().scrub(tiers.pool_mut(1).unwrap(), 1).unwrap_err();
        (tiers, table[0], error)
    };
    for &(name, call) in CALLS {
        let (mut tiers, block, error) = poisoned();
        assert_eq!(call(&mut tiers, block), Err(TierError::Pool(error)), "{name}");
    }
}
