//! A journal as a test: made by `kvpool journal export`.
#![cfg_attr(rustfmt, rustfmt_skip)]
#![allow(clippy::allow_attributes, unused_imports, unused_variables, unused_mut, dead_code, reason = "made by a program")]

use kvpool::retention::{Keep, Priority, Retention, RetentionConfig, TenantId, TenantLimits, Then, Ttl};
use kvpool::{BlockId, CacheManager, ExtraKeys, ManagerConfig, RequestHints, RetentionRange, SwapId};

fn ids(ids: &[u32]) -> Vec<BlockId> {
    ids.iter().copied().map(BlockId::new).collect()
}

#[test]
fn journal() {
    let mut manager = CacheManager::new(ManagerConfig {
        num_blocks: 24,
        block_size: 2,
        duplicates: "keep".parse().unwrap(),
        eviction: "lru".parse().unwrap(),
        verify: "none".parse().unwrap(),
        event_capacity: 8,
        retention: Some(RetentionConfig { pin_budget: 2, tenants: vec![] }),
        watermark: 0.0,
        host_blocks: 12,
        ..ManagerConfig::default()
    })
    .unwrap();
    let block_size = manager.pool().block_size();
    // Full blocks by the number of their content, and a tail of zeros.
    let tokens = |contents: &[u32], tail: usize| -> Vec<u32> {
        let block = |&content: &u32| std::iter::repeat_n(0, block_size - 1).chain([content]);
        contents.iter().flat_map(block).chain(std::iter::repeat_n(0, tail)).collect()
    };

    // 0: refused: ttl is a time to live: must be a clock: call advance_time(now) first
    let _ = manager.admit_with(3i64, manager.prepare(&tokens(&[1, 2, 3, 4, 5, 6, 7], 0), ExtraKeys::default()).unwrap(), &RequestHints { tenant: None, no_cache: false, ranges: vec![RetentionRange { start: 3, end: None, retention: Retention { keep: Keep::Demoted, ttl: Some(Ttl::Idle(4.0)), then: Then::Demote } }] });
    manager.check_invariants().unwrap();
    // 1: Admission { cached_tokens: 0, cached_blocks: 0, block_ids: [#1] }
    let _ = manager.admit_with(2i64, manager.prepare(&tokens(&[], 1), ExtraKeys::default()).unwrap(), &RequestHints::default());
    manager.check_invariants().unwrap();
    // 2: Admission { cached_tokens: 0, cached_blocks: 0, block_ids: [#2, #3, #4, #5, #6, #7, #8, #9, #10] }
    let _ = manager.admit_with(1i64, manager.prepare(&tokens(&[8, 9, 10, 11, 12, 13, 14, 15, 16], 0), ExtraKeys::default()).unwrap(), &RequestHints::default());
    manager.check_invariants().unwrap();
    // 3: refused: ttl is a time to live: must be a clock: call advance_time(now) first
    let _ = manager.admit_with(2i64, manager.prepare(&tokens(&[17, 18], 1), ExtraKeys::default()).unwrap(), &RequestHints { tenant: Some(TenantId(1)), no_cache: false, ranges: vec![RetentionRange { start: 6, end: None, retention: Retention { keep: Keep::Priority(Priority::new(35).unwrap()), ttl: Some(Ttl::Absolute(3.0)), then: Then::Demote } }] });
    manager.check_invariants().unwrap();
    // 4: refused: ttl is a time to live: must be a clock: call advance_time(now) first
    let _ = manager.admit_with(3i64, manager.prepare(&tokens(&[19, 20], 1), ExtraKeys::default()).unwrap(), &RequestHints { tenant: Some(TenantId(1)), no_cache: false, ranges: vec![RetentionRange { start: 3, end: None, retention: Retention { keep: Keep::Priority(Priority::new(35).unwrap()), ttl: Some(Ttl::Absolute(4.0)), then: Then::Demote } }] });
    manager.check_invariants().unwrap();
    // 5: Admission { cached_tokens: 0, cached_blocks: 0, block_ids: [#11, #12] }
    let _ = manager.admit_with(0i64, manager.prepare(&tokens(&[8, 9], 0), ExtraKeys::default()).unwrap(), &RequestHints { tenant: Some(TenantId(1)), no_cache: true, ranges: vec![] });
    manager.check_invariants().unwrap();
    // 6: Admission { cached_tokens: 0, cached_blocks: 0, block_ids: [#13, #14, #15, #16, #17, #18] }
    let _ = manager.admit_with("r3", manager.prepare(&tokens(&[21, 22, 23, 24, 25, 26], 0), ExtraKeys::default()).unwrap(), &RequestHints::default());
    manager.check_invariants().unwrap();
    // 7: refused: no request has the id 5: admit it first
    let _ = manager.append(&[5i64.into(), 0i64.into()], &[0, 0], true);
    manager.check_invariants().unwrap();
    // 8: [NewBlock { row: 0, index: 9, block: #19 }]
    let _ = manager.append(&[1i64.into()], &[0], true);
    manager.check_invariants().unwrap();
    // 9: [NewBlock { row: 0, index: 2, block: #20 }]
    let _ = manager.append(&[0i64.into(), 1i64.into(), 2i64.into()], &[0, 27, 1], true);
    manager.check_invariants().unwrap();
    // 10: refused: out of blocks: 4 needed, 3 available, 1 missing
    let _ = manager.append_tokens(2i64, &[0, 0, 0, 0], 4);
    manager.check_invariants().unwrap();
    // 11: refused: no request has the id 3: admit it first
    let _ = manager.commit(3i64, 13);
    manager.check_invariants().unwrap();
    // 12: 0
    let _ = manager.commit(0i64, 5);
    manager.check_invariants().unwrap();
    // 13: 1
    let _ = manager.commit(2i64, 2);
    manager.check_invariants().unwrap();
    // 14: 0
    let _ = manager.commit_batch(&[], &[]);
    manager.check_invariants().unwrap();
    // 15: ()
    let _ = manager.preempt(0i64, Some(5));
    manager.check_invariants().unwrap();
    // 16: refused: no request has the id 3: admit it first
    let _ = manager.resume(3i64);
    manager.check_invariants().unwrap();
    // 17: refused: no request has the id 3: admit it first
    let _ = manager.release_with(3i64, None, false);
    manager.check_invariants().unwrap();
    // 18: HintReport { accepted: 0, clipped: 0, ignored: 0 }
    let _ = manager.release_with(2i64, Some(6), false);
    manager.check_invariants().unwrap();
    // 19: refused: no request has the id 2: admit it first
    let _ = manager.fork(2i64, 2i64);
    manager.check_invariants().unwrap();
    // 20: refused: no request has the id 3: admit it first
    let _ = manager.truncate(3i64, 2);
    manager.check_invariants().unwrap();
    // 21: refused: no request has the id 4: admit it first
    let _ = manager.trim_window(4i64, 6);
    manager.check_invariants().unwrap();
    // 22: TransferPlan { transfers: [] }
    let _ = manager.take_plan();
    manager.check_invariants().unwrap();
    // 23: refused: no request has the id 3: admit it first
    let _ = manager.begin_swap_out(&[3i64.into()]);
    manager.check_invariants().unwrap();
    // 24: TransferPlan { transfers: [] }
    let _ = manager.take_plan();
    manager.check_invariants().unwrap();
    // 25: refused: swap 1 is not under way: it was completed or aborted, or never begun
    let _ = manager.abort_swap(SwapId::from_number(1));
    manager.check_invariants().unwrap();
    let mut plan = manager.begin_step();
    // 26: []
    let _ = manager.commit_step(&mut plan);
    manager.check_invariants().unwrap();
    // 27: refused: ttl is a time to live: must be a clock: call advance_time(now) first
    let _ = manager.retain(0i64, &[RetentionRange { start: 3, end: None, retention: Retention { keep: Keep::Demoted, ttl: Some(Ttl::Absolute(4.0)), then: Then::Demote } }]);
    manager.check_invariants().unwrap();
    // 28: refused: no request has the id 5: admit it first
    let _ = manager.set_tenant(5i64, TenantId(0));
    manager.check_invariants().unwrap();
    // 29: 0
    let _ = manager.advance_time(19.0);
    manager.check_invariants().unwrap();
    // 30: 0
    let _ = manager.complete_step(1);
    manager.check_invariants().unwrap();
    // 31: 1
    let _ = manager.bump_epoch();
    manager.check_invariants().unwrap();
    // 32: 3 events
    let _ = manager.take_events();
    manager.check_invariants().unwrap();
    // 33: refused: out of blocks: 6 needed, 3 available, 3 missing; 4 more are fenced until their step completes
    let _ = manager.admit_with(3i64, manager.prepare(&tokens(&[28, 29, 30, 31, 32, 33], 0), ExtraKeys::default()).unwrap(), &RequestHints { tenant: Some(TenantId(1)), no_cache: false, ranges: vec![] });
    manager.check_invariants().unwrap();
    // 34: refused: out of blocks: 7 needed, 3 available, 4 missing; 4 more are fenced until their step completes
    let _ = manager.admit_with(4i64, manager.prepare(&tokens(&[34, 35, 36, 37, 38, 39, 40], 0), ExtraKeys::default()).unwrap(), &RequestHints::default());
    manager.check_invariants().unwrap();
    // 35: refused: request 0 is known already: release it before admitting it again
    let _ = manager.admit_with(0i64, manager.prepare(&tokens(&[41, 42, 43, 44, 45, 46, 47], 1), ExtraKeys::default()).unwrap(), &RequestHints::default());
    manager.check_invariants().unwrap();
    // 36: refused: out of blocks: 7 needed, 3 available, 4 missing; 4 more are fenced until their step completes
    let _ = manager.admit_with(3i64, manager.prepare(&tokens(&[41, 42, 43, 44, 45, 46, 47], 0), ExtraKeys::default()).unwrap(), &RequestHints::default());
    manager.check_invariants().unwrap();
    // 37: refused: out of blocks: 5 needed, 3 available, 2 missing; 4 more are fenced until their step completes
    let _ = manager.admit_with(4i64, manager.prepare(&tokens(&[41, 42, 43, 44, 48], 0), ExtraKeys::default()).unwrap(), &RequestHints { tenant: None, no_cache: false, ranges: vec![RetentionRange { start: 6, end: None, retention: Retention { keep: Keep::Pinned, ttl: Some(Ttl::Absolute(4.0)), then: Then::Normal } }] });
    manager.check_invariants().unwrap();
    // 38: Admission { cached_tokens: 0, cached_blocks: 0, block_ids: [#21, #22, #23] }
    let _ = manager.admit_with(3i64, manager.prepare(&tokens(&[34, 35, 49], 0), ExtraKeys::default()).unwrap(), &RequestHints { tenant: Some(TenantId(1)), no_cache: false, ranges: vec![] });
    manager.check_invariants().unwrap();
    // 39: refused: out of blocks: 3 needed, 0 available, 3 missing; 4 more are fenced until their step completes
    let _ = manager.admit_with("r0", manager.prepare(&tokens(&[34, 35], 1), ExtraKeys::default()).unwrap(), &RequestHints::default());
    manager.check_invariants().unwrap();
    // 40: refused: no request has the id 5: admit it first
    let _ = manager.append(&[5i64.into(), 0i64.into(), 1i64.into()], &[0, 0, 0], false);
    manager.check_invariants().unwrap();
    // 41: []
    let _ = manager.append(&[], &[], false);
    manager.check_invariants().unwrap();
    // 42: refused: out of blocks: 2 needed, 0 available, 2 missing; 4 more are fenced until their step completes
    let _ = manager.append(&[1i64.into(), 3i64.into()], &[0, 0], true);
    manager.check_invariants().unwrap();
    // 43: refused: no request has the id 5: admit it first
    let _ = manager.append_tokens(5i64, &[0, 0, 0, 0, 0, 0, 0, 0], 2);
    manager.check_invariants().unwrap();
    // 44: refused: no request has the id 4: admit it first
    let _ = manager.commit(4i64, 15);
    manager.check_invariants().unwrap();
    // 45: refused: no request has the id 5: admit it first
    let _ = manager.commit(5i64, 3);
    manager.check_invariants().unwrap();
    // 46: refused: no request has the id 4: admit it first
    let _ = manager.commit(4i64, 3);
    manager.check_invariants().unwrap();
    // 47: 0
    let _ = manager.commit_batch(&[], &[]);
    manager.check_invariants().unwrap();
    // 48: ()
    let _ = manager.preempt(3i64, Some(6));
    manager.check_invariants().unwrap();
    // 49: refused: request 1 is running: cannot resume it
    let _ = manager.resume(1i64);
    manager.check_invariants().unwrap();
    // 50: HintReport { accepted: 0, clipped: 0, ignored: 0 }
    let _ = manager.release_with(0i64, None, true);
    manager.check_invariants().unwrap();
    // 51: refused: no request has the id 2: admit it first
    let _ = manager.release_with(2i64, Some(3), false);
    manager.check_invariants().unwrap();
    // 52: refused: no request has the id 4: admit it first
    let _ = manager.fork(4i64, 5i64);
    manager.check_invariants().unwrap();
    // 53: refused: request 3 is preempted: cannot truncate it
    let _ = manager.truncate(3i64, 11);
    manager.check_invariants().unwrap();
    // 54: refused: no request has the id 5: admit it first
    let _ = manager.trim_window(5i64, 6);
    manager.check_invariants().unwrap();
    // 55: TransferPlan { transfers: [] }
    let _ = manager.take_plan();
    manager.check_invariants().unwrap();
    // 56: refused: request 1 is running: cannot swap it in
    let _ = manager.begin_swap_in(&[1i64.into(), 2i64.into()]);
    manager.check_invariants().unwrap();
    // 57: TransferPlan { transfers: [] }
    let _ = manager.take_plan();
    manager.check_invariants().unwrap();
    // 58: refused: swap 1 is not under way: it was completed or aborted, or never begun
    let _ = manager.complete_swap(SwapId::from_number(1));
    manager.check_invariants().unwrap();
    let mut plan = manager.begin_step();
    let _ = manager.plan_preempt(&mut plan, 1i64, None);
    // 59: [Preempted]
    let _ = manager.commit_step(&mut plan);
    manager.check_invariants().unwrap();
    // 60: HintReport { accepted: 0, clipped: 0, ignored: 0 }
    let _ = manager.retain(3i64, &[RetentionRange { start: 4, end: None, retention: Retention { keep: Keep::Demoted, ttl: None, then: Then::Demote } }]);
    manager.check_invariants().unwrap();
    // 61: HintReport { accepted: 0, clipped: 0, ignored: 2 }
    let _ = manager.retain_prefix(&manager.prepare(&tokens(&[34, 35, 36, 50], 0), ExtraKeys::default()).unwrap(), &[RetentionRange { start: 4, end: None, retention: Retention { keep: Keep::Demoted, ttl: None, then: Then::Normal } }]);
    manager.check_invariants().unwrap();
    // 62: refused: the time 11 is before 19, which was passed earlier: time does not go backwards
    let _ = manager.advance_time(11.0);
    manager.check_invariants().unwrap();
    // 63: 0
    let _ = manager.complete_step(1);
    manager.check_invariants().unwrap();
    // 64: 2
    let _ = manager.bump_epoch();
    manager.check_invariants().unwrap();
    // 65: 1 events
    let _ = manager.take_events();
    manager.check_invariants().unwrap();
    // 66: Admission { cached_tokens: 0, cached_blocks: 0, block_ids: [#2, #3, #4, #5] }
    let _ = manager.admit_with(5i64, manager.prepare(&tokens(&[51, 52, 53, 54], 0), ExtraKeys::default()).unwrap(), &RequestHints { tenant: None, no_cache: false, ranges: vec![RetentionRange { start: 3, end: None, retention: Retention { keep: Keep::Priority(Priority::new(35).unwrap()), ttl: Some(Ttl::Absolute(4.0)), then: Then::Demote } }] });
    manager.check_invariants().unwrap();
    // 67: refused: request 3 is known already: release it before admitting it again
    let _ = manager.admit_with(3i64, manager.prepare(&tokens(&[51, 52, 53, 55, 56, 57, 58, 59], 0), ExtraKeys::default()).unwrap(), &RequestHints { tenant: None, no_cache: false, ranges: vec![RetentionRange { start: 3, end: None, retention: Retention { keep: Keep::Demoted, ttl: Some(Ttl::Absolute(2.0)), then: Then::Demote } }] });
    manager.check_invariants().unwrap();
    // 68: refused: request 3 is known already: release it before admitting it again
    let _ = manager.admit_with(3i64, manager.prepare(&tokens(&[60, 61, 62, 63], 0), ExtraKeys::default()).unwrap(), &RequestHints::default());
    manager.check_invariants().unwrap();
    // 69: refused: request 1 is known already: release it before admitting it again
    let _ = manager.admit_with(1i64, manager.prepare(&tokens(&[51], 0), ExtraKeys::default()).unwrap(), &RequestHints::default());
    manager.check_invariants().unwrap();
    // 70: Admission { cached_tokens: 0, cached_blocks: 0, block_ids: [#6, #7] }
    let _ = manager.admit_with(0i64, manager.prepare(&tokens(&[64], 1), ExtraKeys::default()).unwrap(), &RequestHints::default());
    manager.check_invariants().unwrap();
    // 71: refused: request 1 is known already: release it before admitting it again
    let _ = manager.admit_with(1i64, manager.prepare(&tokens(&[65], 1), ExtraKeys::default()).unwrap(), &RequestHints { tenant: Some(TenantId(1)), no_cache: false, ranges: vec![RetentionRange { start: 3, end: None, retention: Retention { keep: Keep::Demoted, ttl: None, then: Then::Demote } }] });
    manager.check_invariants().unwrap();
    // 72: refused: request "r3" is known already: release it before admitting it again
    let _ = manager.admit_with("r3", manager.prepare(&tokens(&[51, 52, 53, 55, 66, 67], 1), ExtraKeys::default()).unwrap(), &RequestHints::default());
    manager.check_invariants().unwrap();
    // 73: []
    let _ = manager.append(&[], &[], false);
    manager.check_invariants().unwrap();
    // 74: [NewBlock { row: 0, index: 4, block: #8 }]
    let _ = manager.append(&[5i64.into(), 0i64.into()], &[0, 68], true);
    manager.check_invariants().unwrap();
    // 75: [NewBlock { row: 0, index: 2, block: #9 }]
    let _ = manager.append(&[0i64.into(), 5i64.into()], &[0, 69], true);
    manager.check_invariants().unwrap();
    // 76: refused: no request has the id 4: admit it first
    let _ = manager.append_tokens(4i64, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 2);
    manager.check_invariants().unwrap();
    // 77: refused: request 0 has 5 tokens, 4 of them computed: cannot set computed to 2
    let _ = manager.commit(0i64, 2);
    manager.check_invariants().unwrap();
    // 78: 1
    let _ = manager.commit(5i64, 10);
    manager.check_invariants().unwrap();
    // 79: refused: request 3 is preempted: cannot commit tokens of it
    let _ = manager.commit(3i64, 6);
    manager.check_invariants().unwrap();
    // 80: 0
    let _ = manager.commit_batch(&[0i64.into()], &[5]);
    manager.check_invariants().unwrap();
    // 81: refused: request 3 is preempted: cannot preempt it
    let _ = manager.preempt(3i64, None);
    manager.check_invariants().unwrap();
    // 82: Admission { cached_tokens: 4, cached_blocks: 2, block_ids: [#2, #3, #10] }
    let _ = manager.resume(3i64);
    manager.check_invariants().unwrap();
    // 83: HintReport { accepted: 0, clipped: 0, ignored: 0 }
    let _ = manager.release_with(0i64, None, false);
    manager.check_invariants().unwrap();
    // 84: HintReport { accepted: 0, clipped: 0, ignored: 0 }
    let _ = manager.release_with(3i64, None, false);
    manager.check_invariants().unwrap();
    // 85: refused: no request has the id 2: admit it first
    let _ = manager.fork(2i64, 4i64);
    manager.check_invariants().unwrap();
    // 86: refused: request 1 is preempted: cannot truncate it
    let _ = manager.truncate(1i64, 9);
    manager.check_invariants().unwrap();
    // 87: refused: request 1 is preempted: cannot trim it
    let _ = manager.trim_window(1i64, 6);
    manager.check_invariants().unwrap();
    // 88: TransferPlan { transfers: [] }
    let _ = manager.take_plan();
    manager.check_invariants().unwrap();
    // 89: refused: no request has the id 2: admit it first
    let _ = manager.begin_swap_out(&[2i64.into()]);
    manager.check_invariants().unwrap();
    // 90: TransferPlan { transfers: [] }
    let _ = manager.take_plan();
    manager.check_invariants().unwrap();
    // 91: refused: swap 1 is not under way: it was completed or aborted, or never begun
    let _ = manager.complete_swap(SwapId::from_number(1));
    manager.check_invariants().unwrap();
    let mut plan = manager.begin_step();
    // 92: []
    let _ = manager.commit_step(&mut plan);
    manager.check_invariants().unwrap();
    // 93: refused: no request has the id 0: admit it first
    let _ = manager.retain(0i64, &[RetentionRange { start: 5, end: None, retention: Retention { keep: Keep::Demoted, ttl: None, then: Then::Demote } }]);
    manager.check_invariants().unwrap();
    // 94: HintReport { accepted: 0, clipped: 0, ignored: 0 }
    let _ = manager.retain_prefix(&manager.prepare(&tokens(&[51, 70], 0), ExtraKeys::default()).unwrap(), &[RetentionRange { start: 5, end: None, retention: Retention { keep: Keep::Demoted, ttl: Some(Ttl::Idle(1.0)), then: Then::Demote } }]);
    manager.check_invariants().unwrap();
    // 95: 0
    let _ = manager.advance_time(20.0);
    manager.check_invariants().unwrap();
    // 96: 0
    let _ = manager.complete_step(2);
    manager.check_invariants().unwrap();
    // 97: refused: block id 36 is outside this pool: ids run from 1 to 23
    let _ = manager.evict(&ids(&[36, 7]));
    manager.check_invariants().unwrap();
    // 98: 7 events
    let _ = manager.take_events();
    manager.check_invariants().unwrap();
}
