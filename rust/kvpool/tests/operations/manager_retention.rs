//! Tests the retention hints of a manager with single cases, and with random requests and hints. The
//! random tests compare the manager with a model that stores the hints of every registered block.
//!
//! After every operation, the numbers of blocks per kind of hint in the model and in the manager are
//! equal, and all invariants hold. An admission may only fail if too few blocks are free or cached-free
//! (property 23: hints never make an allocation fail).
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first error")]

use std::collections::BTreeMap;

use kvpool::groups::{self, GroupKind, GroupSpec, Groups};
use kvpool::retention::{
    HintReport, Keep, Priority, Retention, RetentionConfig, RetentionStats, TenantId, TenantLimits, Then, Ttl,
};
use kvpool::{
    AdmitOptions, BlockHash, BlockId, CacheManager, ExtraKeys, HashCursor, ManagerConfig, ManagerError,
    PoolError, RequestRef, RetentionRange,
};
use kvpool_observe::{ManagerWatch, ManagerWatchConfig};
use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence, TestRunner};

const B: usize = 2;
const ALICE: TenantId = TenantId(1);
const PIN_BUDGET: usize = 2;

fn manager(usable: usize, host_blocks: usize) -> CacheManager {
    let tenants = vec![TenantLimits { tenant: ALICE, floor: 1, ceiling: Some(4) }];
    CacheManager::new(ManagerConfig {
        num_blocks: usable + 1,
        block_size: B,
        eviction: kvpool_policies::LRU,
        retention: Some(RetentionConfig { pin_budget: PIN_BUDGET, tenants }),
        host_blocks,
        ..ManagerConfig::default()
    })
    .unwrap()
}

fn prompt(manager: &CacheManager, tokens: &[u32]) -> HashCursor {
    manager.prepare(tokens, ExtraKeys::default()).unwrap()
}

/// Admits and computes a request.
#[expect(clippy::needless_pass_by_value, reason = "hints are made where they are used")]
fn run(manager: &mut CacheManager, id: i64, tokens: &[u32], hints: AdmitOptions) {
    let cursor = prompt(manager, tokens);
    manager.admit_with(id, cursor, &hints).unwrap();
    manager.commit(id, tokens.len()).unwrap();
}

fn counting(n: u32) -> Vec<u32> {
    (0..n).collect()
}

fn ranges(start: usize, end: Option<usize>, retention: Retention) -> Vec<RetentionRange> {
    vec![RetentionRange { start, end, retention }]
}

fn hinted(start: usize, end: Option<usize>, retention: Retention) -> AdmitOptions {
    AdmitOptions { ranges: ranges(start, end, retention), ..AdmitOptions::default() }
}

fn priority(number: u8) -> Retention {
    Retention::of(Keep::Priority(Priority::new(number).unwrap()))
}

fn stats(manager: &CacheManager) -> RetentionStats {
    manager.check_invariants().unwrap();
    manager.retention_stats().unwrap()
}

fn order(manager: &CacheManager) -> Vec<BlockId> {
    manager.pool().eviction_order()
}

const fn accepted(accepted: usize) -> HintReport {
    HintReport { accepted, clipped: 0, ignored: 0 }
}

#[test]
fn a_block_belongs_to_a_range_if_its_last_token_does() {
    for (start, end, blocks) in [
        (0, Some(4), 2),
        (0, Some(3), 1),
        (1, Some(2), 1),
        (0, Some(1), 0),
        (1, None, 3),
        (2, None, 2),
        (3, None, 2),
    ] {
        let mut manager = manager(8, 0);
        run(&mut manager, 1, &[1, 2, 3, 4, 5, 6, 7], hinted(start, end, priority(80)));
        assert_eq!(stats(&manager).above_normal, blocks, "{start}..{end:?}");
    }
}

#[test]
fn a_hint_reaches_what_is_registered_later() {
    let mut manager = manager(8, 0);
    let cursor = prompt(&manager, &[1, 2, 3, 4]);
    manager.admit_with(1, cursor, &hinted(2, None, priority(90))).unwrap();
    assert_eq!(stats(&manager).above_normal, 0);
    manager.commit(1, 3).unwrap();
    assert_eq!(stats(&manager).above_normal, 0);
    manager.commit(1, 4).unwrap();
    manager.append_tokens(1, &[5, 6], 0).unwrap();
    manager.commit(1, 6).unwrap();
    assert_eq!(stats(&manager).above_normal, 2);
}

#[test]
fn the_last_range_wins_and_leaves_the_rest_of_the_first() {
    let mut manager = manager(8, 0);
    run(&mut manager, 1, &[1, 2, 3, 4, 5, 6], hinted(0, None, priority(90)));
    assert_eq!(manager.retain(1, &ranges(2, Some(4), priority(10))).unwrap(), accepted(1));
    assert_eq!((stats(&manager).above_normal, stats(&manager).below_normal), (2, 1));
    // The first range of hints has no end, so it also applies to blocks that are registered later.
    manager.append_tokens(1, &[7, 8], 0).unwrap();
    manager.commit(1, 8).unwrap();
    assert_eq!((stats(&manager).above_normal, stats(&manager).below_normal), (3, 1));
}

/// In an earlier version, blocks that were swapped in had no parents unless events were recorded. The
/// first block of a prompt was evicted first, and the rest of the prompt could not be hit any more.
#[test]
fn swapped_in_blocks_keep_their_parents() {
    for event_capacity in [0, 16] {
        let mut manager = CacheManager::new(ManagerConfig {
            num_blocks: 5,
            block_size: B,
            eviction: kvpool_policies::LRU,
            retention: Some(RetentionConfig::default()),
            host_blocks: 5,
            ..ManagerConfig::default()
        })
        .unwrap()
        .watched(&ManagerWatchConfig { event_capacity, ..ManagerWatchConfig::default() })
        .unwrap();
        let swap = |manager: &mut CacheManager, out: bool| {
            let ids = [RequestRef::Int(1)];
            let swap = if out { manager.begin_swap_out(&ids) } else { manager.begin_swap_in(&ids) }.unwrap();
            manager.take_plan().unwrap();
            manager.complete_swap(swap).unwrap();
        };
        run(&mut manager, 1, &[1, 2, 3, 4, 5, 6], AdmitOptions::default());
        swap(&mut manager, true);
        // While request 1 is in the host, another request takes its blocks on the device. The contents
        // in these blocks have other parents.
        run(&mut manager, 2, &[9, 8, 7, 6, 5, 4, 3, 2], AdmitOptions::default());
        manager.release(2, None).unwrap();
        swap(&mut manager, false);
        let tables = manager.block_table(1).unwrap().to_vec();
        manager.retain(1, &ranges(0, Some(2), Retention::END_OF_LIFE)).unwrap();
        manager.release(1, None).unwrap();
        let last_first: Vec<_> = tables.iter().rev().copied().collect();
        let of_it: Vec<_> = order(&manager).into_iter().filter(|block| tables.contains(block)).collect();
        assert_eq!(of_it, last_first, "{event_capacity} events");
        stats(&manager);
    }
}

#[test]
fn a_scan_is_evicted_first_and_does_not_change_blocks_it_hits() {
    let mut manager = manager(6, 0);
    run(&mut manager, 1, &[1, 2, 3, 4], AdmitOptions::default());
    manager.release(1, None).unwrap();
    let no_cache = AdmitOptions { no_cache: true, ..AdmitOptions::default() };
    run(&mut manager, 2, &[1, 2, 3, 4, 5, 6, 7, 8], no_cache);
    let scanned = manager.block_table(2).unwrap()[2..].to_vec();
    assert_eq!(stats(&manager).demoted, 2);
    manager.release(2, None).unwrap();
    assert_eq!(order(&manager)[..2], [scanned[1], scanned[0]]);
    // A later request hits a demoted block of the scan. The block was used again, so its demotion ends.
    let cursor = prompt(&manager, &[1, 2, 3, 4, 5, 6, 9]);
    assert_eq!(manager.admit(3, cursor).unwrap().cached_blocks, 3);
    assert_eq!(stats(&manager).demoted, 1);
}

#[test]
fn the_end_of_a_session_leaves_the_shared_prompt_to_the_others() {
    let mut manager = manager(9, 0);
    let system = [1, 2, 3, 4];
    for (id, own) in [(1, [10, 11, 12, 13]), (2, [20, 21, 22, 23])] {
        run(&mut manager, id, &[&system[..], &own].concat(), AdmitOptions::default());
    }
    let (first, second) =
        (manager.block_table(1).unwrap().to_vec(), manager.block_table(2).unwrap().to_vec());
    manager.release(2, None).unwrap();
    // Request 1 ends its session. It alone holds the system prompt, but request 2 has also used it, and
    // blocks of request 2 are children of its blocks. So the system prompt stays.
    assert_eq!(manager.end_session(1, None).unwrap(), accepted(4));
    let order = order(&manager);
    assert_eq!(order[..2], [first[3], first[2]], "the session goes first, its tail before its head");
    assert_eq!(order[2..], [second[3], second[2], second[1], second[0]]);
    // A later request hits two blocks of the session, which are then no longer demoted.
    let cursor = prompt(&manager, &[1, 2, 3, 4, 9]);
    assert_eq!(manager.admit(3, cursor).unwrap().cached_blocks, 2);
    assert_eq!(stats(&manager).demoted, 2);
}

#[test]
fn the_end_of_a_session_spares_blocks_of_others() {
    let mut manager = manager(9, 0);
    run(&mut manager, 1, &[1, 2, 3, 4, 5], AdmitOptions::default());
    run(&mut manager, 2, &[1, 2, 3, 4, 5, 6], AdmitOptions::default());
    let report = manager.end_session(2, None).unwrap();
    assert_eq!(report, HintReport { accepted: 1, clipped: 0, ignored: 2 });
    assert_eq!(stats(&manager).demoted, 1);
}

#[test]
fn an_end_of_life_of_shared_blocks_takes_effect_after_the_last_release() {
    let mut manager = manager(9, 0);
    run(&mut manager, 1, &[1, 2, 3, 4], AdmitOptions::default());
    run(&mut manager, 2, &[1, 2, 3, 4, 5], AdmitOptions::default());
    assert_eq!(manager.end_of_life(1, 2).unwrap().ignored, 1);
    manager.release(2, None).unwrap();
    assert_eq!(stats(&manager).demoted, 0);
    manager.release(1, None).unwrap();
    assert_eq!(stats(&manager).demoted, 1);
}

#[test]
fn a_fence_does_not_count_as_a_holder() {
    let mut manager = manager(9, 0);
    run(&mut manager, 1, &[1, 2, 3, 4, 5], AdmitOptions::default());
    run(&mut manager, 2, &[1, 2, 3, 4, 5], AdmitOptions::default());
    manager.release(1, Some(7)).unwrap();
    assert_eq!(manager.end_session(2, Some(8)).unwrap(), accepted(2));
    manager.complete_step(8).unwrap();
    assert_eq!(stats(&manager).demoted, 2);
}

/// Returns a manager with three groups: full attention with blocks of four tokens, a sliding window
/// with blocks of two tokens, and a state that is kept every four tokens.
fn grouped(usable: usize) -> CacheManager {
    let state = GroupSpec { keep: groups::Keep::Every(4), ..GroupSpec::new(GroupKind::State, 4) };
    let window = GroupSpec::new(GroupKind::Sliding { window: 3 }, 2);
    let specs = vec![GroupSpec::new(GroupKind::Full, 4), window, state];
    CacheManager::new(ManagerConfig {
        num_blocks: usable + 1,
        block_size: 2,
        groups: Some(Groups::new(specs, Some(2)).unwrap()),
        eviction: kvpool_policies::LRU,
        retention: Some(RetentionConfig { pin_budget: PIN_BUDGET, tenants: Vec::new() }),
        ..ManagerConfig::default()
    })
    .unwrap()
}

/// In an earlier version, the end of a session only demoted blocks of the first group, and only if each
/// block was one hash unit. The other blocks remained cached until they were the oldest blocks.
#[test]
fn the_end_of_a_session_reaches_every_group_of_a_request_that_holds_nothing() {
    let mut manager = grouped(40);
    run(&mut manager, 1, &counting(9), AdmitOptions::default());
    manager.take_plan().unwrap();
    manager.preempt(1, None).unwrap();
    let cached = stats(&manager);
    let there = manager.pool().stats().cached_free;
    assert!(there > 2, "blocks of several groups: {cached:?}");
    let report = manager.end_session(1, None).unwrap();
    assert_eq!(report, HintReport { accepted: there, clipped: 0, ignored: 0 });
    assert_eq!(manager.stats().hints, report);
    assert_eq!(stats(&manager).demoted, there);
    manager.check_invariants().unwrap();
}

#[test]
fn a_session_that_cannot_end_keeps_its_hints() {
    let mut manager = manager(9, 0);
    run(&mut manager, 1, &[1, 2, 3, 4, 5], AdmitOptions::default());
    let ticket = manager.fence().unwrap();
    manager.end_fence(ticket).unwrap();
    let before = (stats(&manager), manager.stats());
    let error = manager.end_session(1, ticket).unwrap_err();
    assert!(matches!(error, ManagerError::Pool(PoolError::UnknownTicket { .. })), "{error:?}");
    assert_eq!((stats(&manager), manager.stats()), before);
}

#[test]
fn a_chain_reaches_every_group() {
    let mut manager = grouped(40);
    run(&mut manager, 1, &counting(9), AdmitOptions::default());
    manager.take_plan().unwrap();
    manager.release(1, None).unwrap();
    let there = manager.pool().stats().cached_free;
    let cursor = prompt(&manager, &counting(9));
    // Sets a priority for the second block of the first group, and for the blocks of the other groups
    // with the same tokens.
    let report = manager.retain_prefix(&cursor, &ranges(4, Some(8), priority(3))).unwrap();
    assert!(report.accepted > 1 && report.accepted < there, "{report:?} of {there}");
    assert_eq!(report.ignored, 0);
    assert_eq!(manager.end_of_life_of(&cursor, 0).unwrap().accepted, there);
    assert_eq!(stats(&manager).demoted, there);
    // This prompt was never computed. It would need two blocks of full attention, which are reported as
    // ignored.
    let other = prompt(&manager, &[9, 8, 7, 6, 5, 4, 3, 2]);
    assert_eq!(
        manager.end_of_life_of(&other, 0).unwrap(),
        HintReport { accepted: 0, clipped: 0, ignored: 2 }
    );
    manager.check_invariants().unwrap();
}

#[test]
fn nor_is_it_of_a_request_that_was_preempted_or_of_a_chain() {
    let mut manager = manager(9, 0);
    run(&mut manager, 1, &[1, 2, 3, 4, 5], AdmitOptions::default());
    manager.preempt(1, Some(7)).unwrap();
    assert_eq!(manager.end_session(1, None).unwrap(), accepted(2));
    run(&mut manager, 2, &[7, 8, 9], AdmitOptions::default());
    manager.release(2, Some(7)).unwrap();
    assert_eq!(manager.end_of_life_of(&prompt(&manager, &[7, 8, 9]), 0).unwrap(), accepted(1));
    manager.complete_step(7).unwrap();
    assert_eq!(stats(&manager).demoted, 3);
}

#[test]
fn content_without_a_request_ends_by_its_chain() {
    let mut manager = manager(9, 0);
    run(&mut manager, 1, &[1, 2, 3, 4, 5, 6], AdmitOptions::default());
    manager.release(1, None).unwrap();
    run(&mut manager, 2, &[1, 2, 9], AdmitOptions::default());
    // The prompt has five blocks. Two are not cached and one is in use, so the hint applies to two.
    let cursor = prompt(&manager, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    let report = manager.end_of_life_of(&cursor, 0).unwrap();
    assert_eq!(report, HintReport { accepted: 2, clipped: 0, ignored: 3 });
    let report = manager.retain_prefix(&cursor, &ranges(0, Some(4), Retention::PINNED)).unwrap();
    assert_eq!(report, accepted(2));
    assert_eq!((stats(&manager).pinned, stats(&manager).demoted), (2, 1));
}

#[test]
fn all_copies_of_a_content_end() {
    let mut manager = manager(9, 0);
    for id in [1, 2] {
        let cursor = prompt(&manager, &[1, 2, 3, 4]);
        manager.admit(id, cursor).unwrap();
    }
    for id in [1, 2] {
        manager.commit(id, 4).unwrap(); // computed twice, cached twice
        manager.release(id, None).unwrap();
    }
    let cursor = prompt(&manager, &[1, 2, 3, 4]);
    assert_eq!(manager.end_of_life_of(&cursor, 2).unwrap(), accepted(2));
}

#[test]
fn hints_survive_preemption_and_swaps() {
    for swap in [false, true] {
        let mut manager = manager(6, 6);
        let hints = AdmitOptions {
            tenant: Some(ALICE),
            no_cache: true,
            ranges: ranges(0, Some(2), priority(90)),
            ..AdmitOptions::default()
        };
        run(&mut manager, 1, &[1, 2, 3, 4], hints);
        if swap {
            let out = manager.begin_swap_out(&[1.into()]).unwrap();
            manager.take_plan().unwrap();
            manager.complete_swap(out).unwrap();
        } else {
            manager.preempt(1, None).unwrap();
        }
        // Another request evicts all blocks of the first request.
        let cursor = prompt(&manager, &(20..32).collect::<Vec<_>>());
        manager.admit(2, cursor).unwrap();
        assert_eq!(stats(&manager), RetentionStats::default());
        assert_eq!(manager.tenant_blocks(ALICE).unwrap(), 0);
        manager.release(2, None).unwrap();
        if swap {
            let back = manager.begin_swap_in(&[1.into()]).unwrap();
            manager.take_plan().unwrap();
            manager.complete_swap(back).unwrap();
        } else {
            manager.resume(1).unwrap();
            manager.commit(1, 4).unwrap();
        }
        assert_eq!((stats(&manager).above_normal, stats(&manager).demoted), (1, 1), "swap: {swap}");
        assert_eq!(manager.tenant_blocks(ALICE).unwrap(), 2);
    }
}

#[test]
fn a_fork_has_its_parents_hints_and_its_own_from_there() {
    let mut manager = manager(9, 0);
    run(&mut manager, 1, &[1, 2], AdmitOptions { no_cache: true, ..AdmitOptions::default() });
    manager.fork(1, 2).unwrap();
    manager.retain(2, &ranges(2, None, priority(70))).unwrap();
    for id in [1, 2] {
        manager.append_tokens(id, &[id as u32 + 10, 9], 0).unwrap();
        manager.commit(id, 4).unwrap();
    }
    assert_eq!((stats(&manager).demoted, stats(&manager).above_normal), (2, 1));
}

#[test]
fn blocks_from_before_a_fork_do_not_count_for_the_fork() {
    let mut manager = manager(9, 0);
    run(&mut manager, 1, &[1, 2, 3, 4], AdmitOptions::default());
    manager.fork(1, 2).unwrap();
    manager.set_tenant(2, ALICE).unwrap();
    assert_eq!(manager.tenant_blocks(ALICE).unwrap(), 0);
    manager.append_tokens(2, &[5, 6], 0).unwrap();
    manager.commit(2, 6).unwrap();
    assert_eq!(manager.tenant_blocks(ALICE).unwrap(), 1);
}

#[test]
fn blocks_that_a_resumed_request_computes_again_count_as_its_own() {
    let mut manager = manager(4, 0);
    run(&mut manager, 1, &[1, 2, 3, 4], AdmitOptions::default());
    manager.release(1, None).unwrap();
    run(&mut manager, 2, &[1, 2, 3, 4, 5, 6], AdmitOptions { no_cache: true, ..AdmitOptions::default() });
    assert_eq!(stats(&manager).demoted, 1, "two blocks were hit");
    manager.preempt(2, None).unwrap();
    let cursor = prompt(&manager, &(20..28).collect::<Vec<_>>());
    manager.admit(3, cursor).unwrap();
    manager.release(3, None).unwrap();
    assert_eq!(manager.resume(2).unwrap().cached_blocks, 0);
    manager.commit(2, 6).unwrap();
    assert_eq!(stats(&manager).demoted, 3);
}

#[test]
fn a_hint_about_a_swapped_request_waits_for_its_return() {
    let mut manager = manager(4, 4);
    run(&mut manager, 1, &[1, 2, 3, 4], AdmitOptions::default());
    let out = manager.begin_swap_out(&[1.into()]).unwrap();
    manager.take_plan().unwrap();
    manager.complete_swap(out).unwrap();
    // The request's blocks in the host tier have the same ids as another request's blocks on the
    // device.
    run(&mut manager, 2, &(20..28).collect::<Vec<_>>(), AdmitOptions::default());
    assert_eq!(manager.retain(1, &ranges(0, None, priority(90))).unwrap(), HintReport::default());
    assert_eq!(stats(&manager).above_normal, 0);
    manager.release(2, None).unwrap();
    let back = manager.begin_swap_in(&[1.into()]).unwrap();
    manager.take_plan().unwrap();
    manager.complete_swap(back).unwrap();
    assert_eq!(stats(&manager).above_normal, 2);
}

#[test]
fn what_is_written_over_a_hit_is_the_requests_own() {
    let mut manager = manager(9, 0);
    run(&mut manager, 1, &[1, 2, 3, 4, 5], AdmitOptions::default());
    run(&mut manager, 2, &[1, 2, 3, 4, 5], AdmitOptions { no_cache: true, ..AdmitOptions::default() });
    assert_eq!(stats(&manager).demoted, 0, "both blocks were hit");
    manager.truncate(2, 2, None).unwrap();
    manager.append_tokens(2, &[8, 9], 0).unwrap();
    manager.commit(2, 4).unwrap();
    assert_eq!(stats(&manager).demoted, 1);
}

#[test]
fn an_absolute_time_to_live_counts_from_the_hint() {
    let mut manager = manager(8, 0);
    manager.advance_time(100.0).unwrap();
    let kept = Retention { ttl: Some(Ttl::Absolute(10.0)), then: Then::Demote, ..priority(90) };
    let cursor = prompt(&manager, &[1, 2, 3, 4]);
    manager.admit_with(1, cursor, &hinted(0, None, kept)).unwrap();
    manager.advance_time(108.0).unwrap();
    manager.commit(1, 2).unwrap();
    assert_eq!((stats(&manager).above_normal, stats(&manager).with_ttl), (1, 1));
    assert_eq!(manager.advance_time(110.0).unwrap(), 1);
    manager.commit(1, 4).unwrap();
    assert_eq!((stats(&manager).above_normal, stats(&manager).demoted), (0, 2));
}

/// In an earlier version, if a request ran longer than the idle time to live of its hint, the hint
/// ended for its own blocks.
#[test]
fn a_request_keeps_its_retention_however_long_it_runs() {
    let mut manager = manager(8, 0);
    manager.advance_time(0.0).unwrap();
    let kept = Retention { ttl: Some(Ttl::Idle(10.0)), ..priority(90) };
    run(&mut manager, 1, &[1, 2, 3, 4, 5], hinted(0, None, kept));
    let seen = |manager: &CacheManager| (stats(manager).above_normal, stats(manager).with_ttl);
    assert_eq!(manager.advance_time(1000.0).unwrap(), 0);
    assert_eq!(seen(&manager), (2, 0));
    // A preempted request does not use its blocks, so their idle time runs. A resumed request uses
    // them.
    manager.preempt(1, None).unwrap();
    assert_eq!(seen(&manager), (2, 2));
    manager.advance_time(1009.0).unwrap();
    manager.resume(1).unwrap();
    assert_eq!(manager.advance_time(2000.0).unwrap(), 0);
    manager.release(1, None).unwrap();
    assert_eq!(manager.advance_time(2009.0).unwrap(), 0);
    assert_eq!(manager.advance_time(2010.0).unwrap(), 2);
    assert_eq!(seen(&manager), (0, 0));
}

#[test]
fn a_planned_admission_takes_its_hints_with_it() {
    let mut manager = manager(8, 0);
    run(&mut manager, 1, &[1, 2, 3], AdmitOptions::default());
    let mut step = manager.plan_step();
    let cursor = prompt(&manager, &[1, 2, 3, 4]);
    manager.plan_admit_with(&mut step, 2, cursor, &hinted(0, None, priority(90))).unwrap();
    assert_eq!(stats(&manager).above_normal, 0);
    manager.commit_step(&mut step).unwrap();
    assert_eq!(stats(&manager).above_normal, 1, "the hit");
    manager.commit(2, 4).unwrap();
    assert_eq!(stats(&manager).above_normal, 2);
}

#[test]
fn wrong_arguments_are_refused_and_change_nothing() {
    let mut bare =
        CacheManager::new(ManagerConfig { num_blocks: 8, block_size: B, ..Default::default() }).unwrap();
    let cursor = prompt(&bare, &[1, 2, 3]);
    let refused = bare.admit_with(1, cursor, &hinted(0, None, priority(1))).unwrap_err();
    let no_retention =
        |error: &ManagerError| matches!(error, ManagerError::Pool(PoolError::NoRetention { .. }));
    assert!(no_retention(&refused.error));
    bare.admit_with(1, *refused.cursor, &AdmitOptions::default()).unwrap();
    for error in [
        bare.retain(1, &[]).unwrap_err(),
        bare.set_tenant(1, ALICE).unwrap_err(),
        bare.end_of_life(1, 0).unwrap_err(),
        bare.end_session(1, None).unwrap_err(),
        bare.advance_time(1.0).unwrap_err(),
        bare.tenant_blocks(ALICE).unwrap_err(),
    ] {
        assert!(no_retention(&error), "{error}");
    }
    assert!(bare.contains(1) && bare.retention_stats().is_none());

    let mut manager = manager(8, 0);
    run(&mut manager, 1, &[1, 2, 3, 4], AdmitOptions::default());
    let timed = Retention { ttl: Some(Ttl::Idle(1.0)), ..priority(90) };
    let unknown = manager.retain(9, &[]).unwrap_err();
    assert!(matches!(unknown, ManagerError::UnknownRequest { .. }));
    for (wrong, field) in [
        (ranges(4, Some(4), priority(1)), "range is 4..4: must be a start before its end"),
        (
            ranges(0, None, timed),
            "ttl is a time to live: must be given after the time is set \
             (advance_time, in Python clock.advance)",
        ),
        (
            ranges(0, None, Retention { ttl: Some(Ttl::Absolute(f64::NAN)), ..priority(90) }),
            "ttl is NaN: must be a number of seconds, not negative",
        ),
    ] {
        let both = [&ranges(0, None, priority(90))[..], &wrong].concat();
        assert_eq!(manager.retain(1, &both).unwrap_err().to_string(), field);
        let hints = AdmitOptions { ranges: both, ..AdmitOptions::default() };
        let cursor = prompt(&manager, &[7]);
        assert_eq!(manager.admit_with(2, cursor, &hints).unwrap_err().to_string(), field);
    }
    assert_eq!(stats(&manager), RetentionStats::default());
    assert!(!manager.contains(2));
    manager.advance_time(5.0).unwrap();
    let back = manager.advance_time(4.0).unwrap_err();
    assert!(matches!(back, ManagerError::Pool(PoolError::TimeBackwards { .. })), "{back}");
    manager.retain(1, &ranges(0, None, timed)).unwrap();
    assert_eq!(manager.stats().hints, accepted(2));
    assert_eq!(manager.stats().retention, manager.retention_stats());
}

// --- The model ---

#[derive(Clone, Debug)]
enum Operation {
    Admit { id: i64, tokens: Vec<u32>, hints: AdmitOptions },
    Append { id: i64, tokens: Vec<u32> },
    Commit { id: i64, share: f64 },
    Retain { id: i64, ranges: Vec<RetentionRange> },
    SetTenant(i64),
    EndOfLife { id: i64, start: usize },
    Preempt(i64),
    Resume(i64),
    Fork { parent: i64, child: i64 },
    Truncate { id: i64, share: f64 },
    Release { id: i64, after: Option<u64>, end: bool },
    RetainChain { tokens: Vec<u32>, ranges: Vec<RetentionRange> },
    CompleteStep(u64),
    Time(u32),
}

fn retention() -> impl Strategy<Value = Retention> {
    let keep = prop_oneof![
        Just(Keep::Demoted),
        Just(Keep::Pinned),
        (0u8..=100).prop_map(|p| Keep::Priority(Priority::new(p).unwrap())),
        Just(Keep::Priority(Priority::NORMAL)),
    ];
    let ttl = prop_oneof![
        Just(None),
        (0u32..4).prop_map(|s| Some(Ttl::Idle(s.into()))),
        (0u32..4).prop_map(|s| Some(Ttl::Absolute(s.into()))),
    ];
    let then = prop_oneof![Just(Then::Normal), Just(Then::Demote)];
    (keep, ttl, then).prop_map(|(keep, ttl, then)| Retention { keep, ttl, then })
}

fn some_ranges() -> impl Strategy<Value = Vec<RetentionRange>> {
    let range = (0usize..9, prop::option::of(1usize..6), retention()).prop_map(|(start, len, retention)| {
        RetentionRange { start, end: len.map(|len| start + len), retention }
    });
    prop::collection::vec(range, 0..3)
}

fn operation() -> impl Strategy<Value = Operation> {
    let id = || 0i64..4;
    let tokens = || prop::collection::vec(0u32..2, 1..10);
    let hints = (prop::option::of(Just(ALICE)), any::<bool>(), some_ranges()).prop_map(
        |(tenant, no_cache, ranges)| AdmitOptions { tenant, no_cache, ranges, ..AdmitOptions::default() },
    );
    prop_oneof![
        8 => (id(), tokens(), hints).prop_map(|(id, tokens, hints)| Operation::Admit { id, tokens, hints }),
        4 => (id(), tokens()).prop_map(|(id, tokens)| Operation::Append { id, tokens }),
        9 => (id(), 0.0..1.3f64).prop_map(|(id, share)| Operation::Commit { id, share }),
        3 => (id(), some_ranges()).prop_map(|(id, ranges)| Operation::Retain { id, ranges }),
        1 => id().prop_map(Operation::SetTenant),
        1 => (id(), 0usize..8).prop_map(|(id, start)| Operation::EndOfLife { id, start }),
        2 => id().prop_map(Operation::Preempt),
        3 => id().prop_map(Operation::Resume),
        1 => (id(), id()).prop_map(|(parent, child)| Operation::Fork { parent, child }),
        1 => (id(), 0.0..1.0f64).prop_map(|(id, share)| Operation::Truncate { id, share }),
        5 => (id(), prop::option::weighted(0.2, 0u64..9), any::<bool>())
            .prop_map(|(id, after, end)| Operation::Release { id, after, end }),
        2 => (tokens(), some_ranges()).prop_map(|(tokens, ranges)| Operation::RetainChain { tokens, ranges }),
        1 => (0u64..9).prop_map(Operation::CompleteStep),
        3 => (0u32..3).prop_map(Operation::Time),
    ]
}

/// The hints of a registered block in the model.
#[derive(Clone, Copy, Debug)]
struct BlockHints {
    hash: BlockHash,
    keep: Keep,
    idle: Option<f64>,
    deadline: Option<f64>,
    then: Then,
}

impl BlockHints {
    const fn nothing(hash: BlockHash) -> Self {
        Self { hash, keep: Keep::Priority(Priority::NORMAL), idle: None, deadline: None, then: Then::Normal }
    }
}

/// The hints that the test has given for a request, each with the time of the call.
#[derive(Clone, Debug, Default)]
struct Known {
    tokens: Vec<u32>,
    no_cache: bool,
    /// The hints, oldest first.
    said: Vec<(RetentionRange, f64)>,
    published: usize,
    own_from: usize,
}

impl Known {
    fn of_token(&self, token: usize) -> Option<(RetentionRange, f64)> {
        let covers = |range: &RetentionRange| range.start <= token && range.end.is_none_or(|end| token < end);
        self.said.iter().rev().find(|(range, _)| covers(range)).copied()
    }
}

/// Whether the policy has chosen a block for eviction while only planned copies held it.
fn is_overtaken(manager: &CacheManager, block: BlockId) -> bool {
    let own = manager.tiers().pending_copies().filter(|copy| copy.src.tier == copy.dst.tier);
    let pins: usize =
        own.map(|copy| usize::from(copy.src.block == block) + usize::from(copy.dst.block == block)).sum();
    let held = manager.pool().ref_count(block).unwrap_or(0) as usize;
    pins > 0 && held == pins && !is_idle(manager, block)
}

/// Whether a block is in the order of eviction: no request or fence holds it, and the policy has not
/// chosen it for eviction.
fn is_idle(manager: &CacheManager, block: BlockId) -> bool {
    manager.pool().order_with_pinned().contains(&block)
}

#[derive(Default)]
struct Model {
    blocks: BTreeMap<BlockId, BlockHints>,
    requests: BTreeMap<i64, Known>,
    now: f64,
    expired: u64,
}

impl Model {
    /// Applies a hint to a block in the model. Returns `None` if the hint has no effect.
    fn say(&mut self, block: BlockId, retention: Retention, in_use: bool) {
        let pinned = |said: &&BlockHints| said.keep == Keep::Pinned;
        let pins = self.blocks.values().filter(pinned).count();
        let now = self.now;
        let Some(said) = self.blocks.get_mut(&block) else { return };
        let full = pins >= PIN_BUDGET && said.keep != Keep::Pinned;
        said.keep = match retention.keep {
            Keep::Pinned if full => Keep::Priority(Priority::MAX),
            keep => keep,
        };
        said.then = retention.then;
        (said.idle, said.deadline) = match retention.ttl {
            // The idle time runs only while the block is not in use.
            Some(Ttl::Idle(seconds)) => (Some(seconds), Some(now + seconds).filter(|_| !in_use)),
            Some(Ttl::Absolute(seconds)) => (None, Some(now + seconds)),
            _ => (None, None),
        };
    }

    /// Applies all hints of a request to one block of its table. `at` is the position of the block.
    fn apply(
        &mut self,
        known: &Known,
        at: usize,
        block: BlockId,
        (holders, in_use): (u32, bool),
        ends_only: bool,
    ) {
        let retention = match known.of_token((at + 1) * B - 1) {
            Some((range, since)) => match range.retention.ttl {
                Some(Ttl::Absolute(seconds)) if since + seconds > self.now => {
                    Retention { ttl: Some(Ttl::Absolute(since + seconds - self.now)), ..range.retention }
                }
                Some(Ttl::Absolute(_)) if range.retention.then == Then::Demote => Retention::END_OF_LIFE,
                Some(Ttl::Absolute(_)) => return,
                _ => range.retention,
            },
            None if known.no_cache && at >= known.own_from && !ends_only => Retention::END_OF_LIFE,
            None => return,
        };
        let end = retention.keep == Keep::Demoted;
        if (end || !ends_only) && !(end && holders > 1) {
            self.say(block, retention, in_use);
        }
    }

    fn hit(&mut self, block: BlockId) {
        if let Some(said) = self.blocks.get_mut(&block) {
            if said.keep == Keep::Demoted {
                said.keep = Keep::Priority(Priority::NORMAL);
            }
            said.deadline = said.deadline.filter(|_| said.idle.is_none());
        }
    }

    fn stats(&self) -> RetentionStats {
        let count =
            |test: &dyn Fn(&BlockHints) -> bool| self.blocks.values().filter(|said| test(said)).count();
        let priority = |said: &BlockHints| match said.keep {
            Keep::Priority(priority) => Some(priority),
            _ => None,
        };
        RetentionStats {
            demoted: count(&|said| said.keep == Keep::Demoted),
            below_normal: count(&|said| priority(said).is_some_and(|p| p < Priority::NORMAL)),
            above_normal: count(&|said| priority(said).is_some_and(|p| p > Priority::NORMAL)),
            pinned: count(&|said| said.keep == Keep::Pinned),
            with_ttl: count(&|said| said.deadline.is_some()),
            expired: self.expired,
        }
    }
}

struct Pair {
    manager: CacheManager,
    model: Model,
}

impl Pair {
    fn table(&self, id: i64) -> Vec<BlockId> {
        self.manager.block_table(id).map(<[_]>::to_vec).unwrap_or_default()
    }

    fn holders(&self, block: BlockId) -> u32 {
        self.manager.pool().num_holders(block)
    }

    fn apply(&mut self, id: i64, known: &Known, positions: std::ops::Range<usize>, ends_only: bool) {
        for (at, block) in self.table(id).into_iter().enumerate() {
            if positions.contains(&at) && at < known.published {
                let holders = self.holders(block);
                self.model.apply(known, at, block, (holders, true), ends_only);
            }
        }
    }

    /// Returns whether enough blocks are available for these tokens, some of which may be cached. A
    /// valid admission may only be refused if they are not.
    fn fits(&self, tokens: &[u32]) -> bool {
        let probe = self.manager.probe(&prompt(&self.manager, tokens)).unwrap();
        let needed = tokens.len().div_ceil(B) - probe.cached_blocks;
        needed + probe.idle_blocks <= self.manager.pool().num_available()
    }

    fn placed(&mut self, id: i64, cached: usize) {
        for block in self.table(id).into_iter().take(cached) {
            self.model.hit(block);
        }
        self.forget_evicted();
        let known = self.model.requests.get_mut(&id).expect("it was placed");
        known.published = cached;
        known.own_from = known.own_from.min(cached);
        let known = known.clone();
        self.apply(id, &known, 0..cached, false);
    }

    fn forget_evicted(&mut self) {
        let pool = self.manager.pool();
        self.model.blocks.retain(|&block, said| pool.hash_of(block) == Some(said.hash));
        for block in (1..pool.num_blocks() as u32).map(BlockId::new) {
            if let Some(hash) = pool.hash_of(block) {
                self.model.blocks.entry(block).or_insert(BlockHints::nothing(hash));
            }
        }
    }

    fn apply_operation(&mut self, operation: &Operation) {
        let now = self.model.now;
        match operation.clone() {
            Operation::Admit { id, tokens, hints } => {
                let (known, fits) = (self.model.requests.contains_key(&id), self.fits(&tokens));
                let cursor = prompt(&self.manager, &tokens);
                let admitted = self.manager.admit_with(id, cursor, &hints);
                assert_eq!(admitted.is_ok(), !known && fits, "only a lack of blocks refuses: {admitted:?}");
                if let Ok(admission) = admitted {
                    let said = hints.ranges.into_iter().map(|range| (range, now)).collect();
                    let own_from = admission.cached_blocks;
                    let known = Known { tokens, no_cache: hints.no_cache, said, published: 0, own_from };
                    self.model.requests.insert(id, known);
                    self.placed(id, admission.cached_blocks);
                }
            }
            Operation::Resume(id) => {
                if let Ok(admission) = self.manager.resume(id) {
                    self.placed(id, admission.cached_blocks);
                }
            }
            Operation::Append { id, tokens } => {
                if self.manager.append_tokens(id, &tokens, 0).is_ok() {
                    self.model.requests.get_mut(&id).unwrap().tokens.extend(tokens);
                }
            }
            Operation::Commit { id, share } => {
                let tokens = self.manager.request(id).map_or(0, |request| request.tokens);
                let computed = (tokens as f64 * share) as usize;
                if self.manager.commit(id, computed).is_ok() {
                    self.forget_evicted();
                    let known = self.model.requests.get_mut(&id).unwrap();
                    let before = known.published;
                    known.published = known.published.max(computed / B);
                    let known = known.clone();
                    self.apply(id, &known, before..known.published, false);
                }
            }
            Operation::EndOfLife { id, start } => {
                let range = RetentionRange { start, end: None, retention: Retention::END_OF_LIFE };
                let done = self.manager.end_of_life(id, start).is_ok();
                self.said(id, &[range], done);
            }
            Operation::Retain { id, ranges } => {
                let done = self.manager.retain(id, &ranges).is_ok();
                self.said(id, &ranges, done);
            }
            Operation::SetTenant(id) => {
                assert_eq!(self.manager.set_tenant(id, ALICE).is_ok(), self.model.requests.contains_key(&id));
            }
            Operation::Preempt(id) => {
                if self.manager.preempt(id, None).is_ok() {
                    self.model.requests.get_mut(&id).unwrap().published = 0;
                }
            }
            Operation::Fork { parent, child } => {
                if self.manager.fork(parent, child).is_ok() {
                    let mut known = self.model.requests[&parent].clone();
                    known.own_from = known.published;
                    self.model.requests.insert(child, known);
                }
            }
            Operation::Truncate { id, share } => {
                let tokens = self.manager.request(id).map_or(0, |request| request.tokens);
                let kept = ((tokens as f64 * share) as usize).max(1);
                if self.manager.truncate(id, kept, None).is_ok() {
                    let known = self.model.requests.get_mut(&id).unwrap();
                    known.tokens.truncate(kept);
                    known.published = known.published.min(kept / B);
                    known.own_from = known.own_from.min(known.published);
                }
            }
            Operation::Release { id, after, end } => self.release(id, after, end),
            Operation::RetainChain { tokens, ranges } => self.retain_chain(&tokens, &ranges),
            Operation::CompleteStep(step) => {
                self.manager.complete_step(step).unwrap();
            }
            Operation::Time(seconds) => {
                self.model.now += f64::from(seconds);
                let due =
                    |said: &BlockHints| said.deadline.is_some_and(|deadline| deadline <= self.model.now);
                let expired: Vec<_> = self
                    .model
                    .blocks
                    .iter()
                    .filter(|(_, said)| due(said))
                    .map(|(&b, s)| (b, s.then))
                    .collect();
                assert_eq!(self.manager.advance_time(self.model.now).unwrap(), expired.len());
                for (block, then) in expired {
                    self.model.expired += 1;
                    let demote = then == Then::Demote;
                    let now = if demote { Retention::END_OF_LIFE } else { Retention::NORMAL };
                    self.model.say(block, now, false);
                }
            }
        }
    }

    fn said(&mut self, id: i64, ranges: &[RetentionRange], done: bool) {
        assert_eq!(done, self.model.requests.contains_key(&id), "hints are never refused");
        let Some(known) = self.model.requests.get_mut(&id) else { return };
        let new: Vec<_> = ranges.iter().map(|&range| (range, self.model.now)).collect();
        known.said.extend(new.iter().copied());
        let only = Known { no_cache: false, said: new, ..known.clone() };
        self.apply(id, &only, 0..usize::MAX, false);
    }

    fn release(&mut self, id: i64, after: Option<u64>, end: bool) {
        let Some(known) = self.model.requests.get(&id).cloned() else {
            let refused = if end {
                self.manager.end_session(id, after).is_err()
            } else {
                self.manager.release(id, after).is_err()
            };
            return assert!(refused);
        };
        let range = RetentionRange { start: 0, end: None, retention: Retention::END_OF_LIFE };
        let all = Known { said: vec![(range, self.model.now)], ..known.clone() };
        if end && self.manager.request(id).unwrap().state == kvpool::RequestState::Preempted {
            // A preempted request has no table. The manager finds its blocks that are still cached by
            // the hashes of its tokens.
            self.chain_said(&prompt(&self.manager, &known.tokens), &all);
        } else if end {
            self.apply(id, &all, 0..usize::MAX, false);
        }
        self.apply(id, &known, 0..usize::MAX, true);
        if end {
            self.manager.end_session(id, after).unwrap();
        } else {
            self.manager.release(id, after).unwrap();
        }
        self.model.requests.remove(&id);
    }

    fn retain_chain(&mut self, tokens: &[u32], ranges: &[RetentionRange]) {
        let cursor = prompt(&self.manager, tokens);
        let said = ranges.iter().map(|&range| (range, self.model.now)).collect();
        let said = Known { said, ..Known::default() };
        let ignored = self.chain_said(&cursor, &said);
        assert_eq!(self.manager.retain_prefix(&cursor, ranges).unwrap().ignored, ignored);
    }

    /// Applies the hints for a chain to its cached blocks. Returns the number of blocks on which the
    /// hints had no effect.
    fn chain_said(&mut self, cursor: &HashCursor, said: &Known) -> usize {
        let found = self.manager.pool().probe(cursor.chain(), usize::MAX).unwrap().cached_blocks;
        let mut ignored = 0;
        // Ranges are applied in ascending order. An end of life is applied to the last block first.
        for (at, hash) in cursor.chain().hashes().iter().enumerate() {
            let Some((range, _)) = said.of_token((at + 1) * B - 1) else { continue };
            if range.retention.ttl == Some(Ttl::Absolute(0.0)) && range.retention.then == Then::Normal {
                continue; // over before it began
            }
            if at >= found {
                ignored += 1;
                continue;
            }
            let copies = self.manager.pool().copies(hash);
            let ends =
                range.retention.keep == Keep::Demoted || range.retention.ttl == Some(Ttl::Absolute(0.0));
            if !ends {
                let in_use = !is_idle(&self.manager, copies[0]);
                self.model.apply(said, at, copies[0], (0, in_use), false);
                continue;
            }
            for block in copies {
                // A block that only a fence or a planned copy holds still has its content, so only
                // holders are counted.
                let held = self.manager.pool().num_holders(block) > 0;
                let in_use = !is_idle(&self.manager, block);
                ignored += usize::from(held);
                self.model.apply(said, at, block, (if held { 2 } else { 0 }, in_use), false);
            }
        }
        ignored
    }

    fn step(&mut self, operation: &Operation) {
        let blocks = (0..self.manager.pool().num_blocks() as u32).map(BlockId::new);
        let before: Vec<bool> = blocks.clone().map(|block| is_idle(&self.manager, block)).collect();
        let overtaken_before: Vec<bool> = blocks.map(|block| is_overtaken(&self.manager, block)).collect();
        self.apply_operation(operation);
        self.forget_evicted();
        // If the policy chose a pinned block for eviction, the block remains cached as long as it is
        // pinned, but has no hints. It may have lost its last holder in the same operation.
        for (&block, said) in &mut self.model.blocks {
            if is_overtaken(&self.manager, block) && !overtaken_before[block.index()] {
                *said = BlockHints::nothing(said.hash);
            }
        }
        // If a block has just lost its last holder, its idle time starts now.
        for (block, said) in &mut self.model.blocks {
            let idle = || !before[block.index()] && is_idle(&self.manager, *block);
            if let Some(seconds) = said.idle.filter(|_| idle()) {
                said.deadline = Some(self.model.now + seconds);
            }
        }
        self.manager.check_invariants().unwrap();
        assert_eq!(self.manager.retention_stats().unwrap(), self.model.stats(), "{:?}", self.model.blocks);
    }
}

#[test]
fn hints_act_as_in_the_model_and_never_fail_an_allocation() {
    let config = Config {
        // `PROPTEST_CASES` raises the number of cases.
        cases: 2 * Config::default().cases,
        source_file: Some(file!()),
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..Config::default()
    };
    let operations = (5usize..10, prop::collection::vec(operation(), 1..60));
    TestRunner::new(config)
        .run(&operations, |(usable, operations)| {
            let mut pair = Pair { manager: manager(usable, 0), model: Model::default() };
            pair.manager.advance_time(0.0).unwrap();
            for operation in &operations {
                pair.step(operation);
            }
            Ok(())
        })
        .unwrap();
}
