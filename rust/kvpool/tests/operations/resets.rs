//! Tests resets with several tiers. Content of any tier may be used again, so either all tiers are
//! reset, or none.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test stops at the first error")]

use kvpool::{
    BlockId, CacheManager, ExtraKeys, HashCursor, ManagerConfig, ManagerError, PoolConfig, PoolError,
    RequestRef, TierError, Tiers,
};

const BLOCK_SIZE: usize = 4;

fn manager() -> CacheManager {
    let config =
        ManagerConfig { num_blocks: 8, host_blocks: 8, block_size: BLOCK_SIZE, ..ManagerConfig::default() };
    CacheManager::new(config).unwrap()
}

/// Runs a request with two computed blocks.
fn serve(manager: &mut CacheManager, id: i64) {
    let prompt = manager.prepare(&[1, 2, 3, 4, 5, 6, 7, 8], ExtraKeys::default()).unwrap();
    manager.admit(id, prompt).unwrap();
    manager.commit(id, 8).unwrap();
}

/// Swaps a request out. Returns the number of copied blocks.
fn swap_out(manager: &mut CacheManager, id: i64) -> usize {
    let swap = manager.begin_swap_out(&[RequestRef::Int(id)]).unwrap();
    let copies = manager.take_plan().unwrap().len();
    manager.complete_swap(swap).unwrap();
    copies
}

fn registered(manager: &CacheManager) -> [usize; 2] {
    [0, 1].map(|tier| manager.tiers().pool(tier).unwrap().stats().registered)
}

/// Returns the state of both tiers, which a refused reset must not change.
fn observe(manager: &CacheManager) -> impl PartialEq + std::fmt::Debug + use<> {
    let pools = [0, 1].map(|tier| manager.tiers().pool(tier).unwrap());
    pools.map(|pool| (pool.free_order(), pool.eviction_order(), pool.stats()))
}

fn refused(manager: &mut CacheManager) -> ManagerError {
    let before = observe(manager);
    let error = manager.reset().unwrap_err();
    assert_eq!(observe(manager), before);
    error
}

/// In an earlier version, the host tier kept cached blocks of the old weights after a reset. The next
/// request that was swapped out and in used them.
#[test]
fn a_reset_forgets_the_host_tier_too() {
    let mut manager = manager();
    serve(&mut manager, 1);
    assert_eq!(swap_out(&mut manager, 1), 2);
    manager.release(1, None).unwrap();
    assert_eq!(registered(&manager), [2, 2]);
    assert_eq!(manager.reset().unwrap(), 4);
    assert_eq!(registered(&manager), [0, 0]);
    serve(&mut manager, 2);
    assert_eq!(swap_out(&mut manager, 2), 2, "blocks of the new weights are copied");
    manager.check_invariants().unwrap();
}

/// A reset is refused while a request is swapped out, because the request would bring its content back
/// to the device.
#[test]
fn a_reset_is_refused_while_a_request_is_swapped_out() {
    let mut manager = manager();
    serve(&mut manager, 1);
    swap_out(&mut manager, 1);
    assert_eq!(manager.pool().stats().active, 0);
    let error = refused(&mut manager);
    assert_eq!(error, ManagerError::Tier(TierError::InUse { tier: 1, active: 2, fenced: 0 }));
    assert!(error.to_string().starts_with("2 blocks of tier 1 are active and 0 fenced: "), "{error}");
    manager.preempt(1, None).unwrap();
    assert_eq!(manager.reset().unwrap(), 4);
    assert_eq!(manager.resume(1).unwrap().cached_tokens, 0);
}

/// A reset is refused during a swap, because the swap holds blocks in both tiers.
#[test]
fn a_reset_is_refused_while_a_swap_is_under_way() {
    let mut manager = manager();
    serve(&mut manager, 1);
    let swap = manager.begin_swap_out(&[RequestRef::Int(1)]).unwrap();
    for _ in 0..2 {
        let error = refused(&mut manager);
        assert_eq!(error, ManagerError::Pool(PoolError::InUse { active: 2, fenced: 0 }));
        manager.take_plan().unwrap();
    }
    manager.abort_swap(swap).unwrap();
    refused(&mut manager);
    manager.release(1, None).unwrap();
    assert_eq!(manager.reset().unwrap(), 2);
}

/// A reset is refused while blocks of the host or of the device are fenced, because a step may still
/// access them.
#[test]
fn a_reset_is_refused_while_a_step_fences_blocks_of_the_host() {
    let mut manager = manager();
    serve(&mut manager, 1);
    swap_out(&mut manager, 1);
    manager.release(1, Some(3)).unwrap();
    let error = refused(&mut manager);
    assert!(error.to_string().starts_with("0 blocks of tier 1 are active and 2 fenced: "), "{error}");
    manager.complete_step(3).unwrap();
    assert_eq!(manager.reset().unwrap(), 4);
    assert_eq!(registered(&manager), [0, 0]);
}

/// If any tier is in use, the other tiers keep their content.
#[test]
fn tiers_are_reset_together_or_not_at_all() {
    let each = PoolConfig { num_blocks: 8, block_size: BLOCK_SIZE, ..PoolConfig::default() };
    let hasher = manager().hasher().clone();
    let mut prompt = HashCursor::new(hasher, ExtraKeys::default()).unwrap();
    prompt.append(&[1, 2, 3, 4, 5, 6, 7, 8]);
    for held in 0..3 {
        let mut tiers = Tiers::new(vec![each.clone(), each.clone(), each.clone()]).unwrap();
        for tier in 0..3 {
            let pool = tiers.pool_mut(tier).unwrap();
            let table = pool.allocate(2).unwrap();
            pool.register(&table, prompt.chain(), 0).unwrap();
            pool.mark_computed(&table).unwrap();
            pool.release_table(&table[usize::from(tier == held)..]).unwrap();
        }
        let registered = |tiers: &Tiers| [0, 1, 2].map(|tier| tiers.pool(tier).unwrap().stats().registered);
        let expected = match held {
            0 => TierError::Pool(PoolError::InUse { active: 1, fenced: 0 }),
            tier => TierError::InUse { tier, active: 1, fenced: 0 },
        };
        assert_eq!(tiers.reset(), Err(expected));
        assert_eq!(registered(&tiers), [2, 2, 2]);
        let pool = tiers.pool_mut(held).unwrap();
        let mine: Vec<_> =
            (1..8).map(BlockId::new).filter(|&block| pool.ref_count(block) == Some(1)).collect();
        pool.release(&mine).unwrap();
        assert_eq!(tiers.reset(), Ok(6));
        assert_eq!(registered(&tiers), [0, 0, 0]);
        tiers.check_invariants().unwrap();
    }
}
