//! A journal as a test: made by `kvpool journal export`.
#![cfg_attr(rustfmt, rustfmt_skip)]
#![allow(clippy::allow_attributes, clippy::single_range_in_vec_init, clippy::unit_arg, clippy::unwrap_used, unused, reason = "made by a program")]

use std::sync::Arc;

use kvpool_journal::{Check, Outcome};
use kvpool::retention::{Keep, Priority, Retention, RetentionConfig, TenantId, TenantLimits, Then, Ttl};
use kvpool::{
    AdmitOptions, BlockHasher, BlockId, CacheManager, Computed, Covered, ExtraKeys, HashCursor, HasherConfig, Loaded,
    ManagerConfig, Part, RetentionRange, Rows, SwapId, Until, Verify,
};
use kvpool_observe::{ManagerWatch, ManagerWatchConfig};

fn ids(ids: &[u32]) -> Vec<BlockId> {
    ids.iter().copied().map(BlockId::new).collect()
}

/// Full blocks by the number of their content, and a tail of zeros.
fn tokens(block_size: usize, contents: &[u32], tail: usize) -> Vec<u32> {
    let block = |&content: &u32| std::iter::repeat_n(0, block_size - 1).chain([content]);
    contents.iter().flat_map(block).chain(std::iter::repeat_n(0, tail)).collect()
}

/// A prompt that was hashed in an epoch.
fn prompt(manager: &CacheManager, contents: &[u32], tail: usize, epoch: u64) -> HashCursor {
    let tokens = tokens(manager.pool().block_size(), contents, tail);
    let mut cursor = manager.prepare(&tokens, ExtraKeys::default()).unwrap();
    cursor.rebase(epoch).unwrap();
    cursor
}

/// A prompt that another hasher hashed.
fn foreign(manager: &CacheManager, contents: &[u32], tail: usize, epoch: u64) -> HashCursor {
    let (algorithm, block_size) = (manager.hasher().algorithm(), manager.pool().block_size());
    let verify = if manager.hasher().has_fingerprints() { Verify::Fingerprint } else { Verify::None };
    let config = HasherConfig { algorithm, block_size, verify, seed: Some("foreign".into()), ..HasherConfig::default() };
    let hasher = Arc::new(BlockHasher::new(config).unwrap());
    let mut cursor = HashCursor::new(hasher, ExtraKeys { epoch, ..ExtraKeys::default() }).unwrap();
    cursor.append(&tokens(block_size, contents, tail));
    cursor
}

/// Compares an answer with the recorded one, by the check that journals have.
#[track_caller]
fn same(answer: impl Outcome + std::fmt::Debug, check: u32) {
    assert_eq!(Check::of(&answer), check, "the answer is {answer:?}");
}

fn part_0(manager: &mut CacheManager) {
    // 0: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#1, #2, #3] }
    same(manager.admit_with(90i64, prompt(manager, &[1, 2], 1, 0), &AdmitOptions::default()).map_err(|refused| refused.error), 0x915b4580);
    manager.check_invariants().unwrap();
    // 1: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#4, #5, #6] }
    same(manager.admit_with(91i64, prompt(manager, &[1, 2], 1, 0), &AdmitOptions::default()).map_err(|refused| refused.error), 0x3f2dafd9);
    manager.check_invariants().unwrap();
    // 2: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#7, #8, #9] }
    same(manager.admit_with(92i64, prompt(manager, &[1, 2], 1, 0), &AdmitOptions::default()).map_err(|refused| refused.error), 0xb17be99b);
    manager.check_invariants().unwrap();
    // 3: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#10, #11, #12] }
    same(manager.admit_with(93i64, prompt(manager, &[1, 2], 1, 0), &AdmitOptions::default()).map_err(|refused| refused.error), 0x141e6389);
    manager.check_invariants().unwrap();
    // 4: [TableChange { index: 3, block: #13 }, TableChange { index: 4, block: #14 }]
    same(manager.append_tokens(90i64, &[3, 0, 4], 2), 0x389a52d4);
    manager.check_invariants().unwrap();
    // 5: 6
    same(manager.commit_batch(&[90i64.into(), 91i64.into()], &[8, 5]), 0xbb143b6c);
    manager.check_invariants().unwrap();
    // 6: 3
    same(manager.trim_window(90i64, 2), 0x27b54459);
    manager.check_invariants().unwrap();
    // 7: SwapId(0)
    same(manager.begin_swap_out(&[91i64.into()]), 0x50caa327);
    manager.check_invariants().unwrap();
    // 8: TransferPlan { transfers: [Transfer { src: Place { tier: 0, block: #4 }, dst: Place { tier: 1, block: #1 } }, Transfer { src: Place { tier: 0, block: #5 }, d
    same(manager.take_plan(), 0x4983be1c);
    manager.check_invariants().unwrap();
    // 9: [(#4, #1), (#5, #2), (#6, #3)]
    same(manager.complete_swap(SwapId::from_number(0)), 0x261af9ab);
    manager.check_invariants().unwrap();
    // 10: SwapId(1)
    same(manager.begin_swap_in(&[91i64.into()]), 0xcc9804cd);
    manager.check_invariants().unwrap();
    // 11: TransferPlan { transfers: [Transfer { src: Place { tier: 1, block: #3 }, dst: Place { tier: 0, block: #6 } }] }
    same(manager.take_plan(), 0xcc264c51);
    manager.check_invariants().unwrap();
    // 12: [(#1, #1), (#2, #2), (#3, #6)]
    same(manager.complete_swap(SwapId::from_number(1)), 0x6d2d72d3);
    manager.check_invariants().unwrap();
    // 13: ()
    same(manager.preempt(92i64, Until::Now), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 14: ()
    same(manager.fork(93i64, "fork"), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 15: [Admitted(Admission { cached_tokens: 4, cached_blocks: 2, external_tokens: 0, block_ids: [#1, #2, #7] }), Admitted(Admission { cached_tokens: 4, cached_bloc
    let mut plan = manager.plan_step();
    let _ = manager.plan_admit_with(&mut plan, 95i64, prompt(manager, &[1, 2], 1, 0), &AdmitOptions::default());
    let _ = manager.plan_resume_with(&mut plan, 92i64, Part::WHOLE);
    let _ = manager.plan_append_ragged(&mut plan, &Rows { requests: &[91i64.into()], tokens: &[5, 0, 6], offsets: &[0, 3], computed: Computed::Nothing, covered: Covered::Each(&[8]), most_changes: None });
    let _ = manager.plan_preempt(&mut plan, 93i64, Until::Now);
    let _ = manager.plan_release(&mut plan, 90i64, Until::Step(3));
    same(manager.commit_step(&mut plan), 0x65e3c781);
    manager.check_invariants().unwrap();
    // 16: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 17: 2
    same(manager.complete_step(3), 0xe88aa583);
    manager.check_invariants().unwrap();
    // 18: ()
    same(manager.preempt(92i64, Until::Now), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 19: 1
    same(manager.bump_epoch(), 0xcc9804cd);
    manager.check_invariants().unwrap();
    // 20: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#3, #13, #4] }
    same(manager.admit_with("again", prompt(manager, &[1, 2], 1, 1), &AdmitOptions::default()).map_err(|refused| refused.error), 0xadaefee3);
    manager.check_invariants().unwrap();
    // 21: 2
    same(manager.commit("again", 5), 0xe88aa583);
    manager.check_invariants().unwrap();
    // 22: Admission { cached_tokens: 4, cached_blocks: 2, external_tokens: 0, block_ids: [#3, #13, #5] }
    same(manager.resume_with(92i64, Part::WHOLE), 0xfa5b2244);
    manager.check_invariants().unwrap();
    // 23: ()
    same(manager.release(91i64, Until::Now), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 24: ()
    same(manager.release(92i64, Until::Now), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 25: ()
    same(manager.release(93i64, Until::Now), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 26: ()
    same(manager.release(95i64, Until::Now), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 27: ()
    same(manager.release("fork", Until::Now), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 28: ()
    same(manager.release("again", Until::Now), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 29: 2
    same(manager.reset(), 0xe88aa583);
    manager.check_invariants().unwrap();
    // 30: ()
    same(manager.resize(65), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 31: []
    same(manager.evict(1), 0x50caa327);
    manager.check_invariants().unwrap();
    // 32: refused: ttl is a time to live: must be a clock: call advance_time(now) first
    same(manager.admit_with(4i64, prompt(manager, &[9, 10, 11, 12], 0, 99), &AdmitOptions { part: Part::WHOLE, tenant: Some(TenantId(1)), no_cache: false, ranges: vec![RetentionRange { start: 6, end: None, retention: Retention { keep: Keep::Priority(Priority::new(35).unwrap()), ttl: Some(Ttl::Absolute(0.0)), then: Then::Demote } }] }).map_err(|refused| refused.error), 0x706efb3a);
    manager.check_invariants().unwrap();
    // 33: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#3, #13, #4, #10, #11] }
    same(manager.admit_with(2i64, prompt(manager, &[13, 14, 15, 16], 1, 1), &AdmitOptions::default()).map_err(|refused| refused.error), 0x2f0efe2a);
    manager.check_invariants().unwrap();
    // 34: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#12, #1, #2, #7, #5, #6, #9] }
    same(manager.admit_with(5i64, prompt(manager, &[17, 18, 19, 20, 21, 22, 23], 0, 1), &AdmitOptions::default()).map_err(|refused| refused.error), 0x419e5562);
    manager.check_invariants().unwrap();
    // 35: refused: the hash chain belongs to epoch 99, the pool is in epoch 1: hash the tokens again
    same(manager.admit_with(0i64, prompt(manager, &[24, 25, 26, 27, 28, 29], 0, 99), &AdmitOptions { part: Part { allocate_tokens: Some(2), external_tokens: 0 }, tenant: None, no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0x32911419);
    manager.check_invariants().unwrap();
    // 36: refused: request 5 is known already: release it before admitting it again
    same(manager.admit_with(5i64, prompt(manager, &[13, 14, 30, 31], 1, 1), &AdmitOptions { part: Part::WHOLE, tenant: Some(TenantId(1)), no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 37: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#8, #14] }
    same(manager.admit_with(3i64, prompt(manager, &[17, 18, 19, 20], 0, 1), &AdmitOptions { part: Part { allocate_tokens: Some(4), external_tokens: 0 }, tenant: Some(TenantId(1)), no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0x50f53a4c);
    manager.check_invariants().unwrap();
    // 38: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#15, #16, #17, #18, #19, #20] }
    same(manager.admit_with("\"\\4", prompt(manager, &[17, 18, 19, 20, 32], 1, 1), &AdmitOptions::default()).map_err(|refused| refused.error), 0xb8510263);
    manager.check_invariants().unwrap();
    // 39: refused: no request has the id 4: admit it first
    same(manager.append_ragged(&Rows { requests: &[3i64.into(), 4i64.into(), 5i64.into()], tokens: &[0, 0, 0], offsets: &[], computed: Computed::AllButLast, covered: Covered::All, most_changes: None }), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 40: []
    same(manager.append_ragged(&Rows { requests: &[], tokens: &[], offsets: &[], computed: Computed::Nothing, covered: Covered::All, most_changes: None }), 0x50caa327);
    manager.check_invariants().unwrap();
    // 41: [NewBlock { row: 1, index: 2, block: #21 }, NewBlock { row: 1, index: 3, block: #22 }, NewBlock { row: 1, index: 4, block: #23 }, NewBlock { row: 2, index: 
    same(manager.append_ragged(&Rows { requests: &[2i64.into(), 3i64.into(), 5i64.into()], tokens: &[33, 0, 0], offsets: &[], computed: Computed::AllButLast, covered: Covered::All, most_changes: None }), 0x3c095eb1);
    manager.check_invariants().unwrap();
    // 42: refused: no request has the id 0: admit it first
    same(manager.append_tokens(0i64, &[0, 0, 0, 0, 0, 0], 1), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 43: refused: request 5 has 15 tokens, blocks for 15, 14 computed: cannot set computed to 2
    same(manager.commit(5i64, 2), 0x95d0ab31);
    manager.check_invariants().unwrap();
    // 44: 1
    same(manager.commit(2i64, 10), 0xcc9804cd);
    manager.check_invariants().unwrap();
    // 45: refused: no request has the id 1: admit it first
    same(manager.commit(1i64, 3), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 46: 0
    same(manager.commit_batch(&[], &[]), 0x50caa327);
    manager.check_invariants().unwrap();
    // 47: ()
    same(manager.preempt(3i64, Until::Now), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 48: Admission { cached_tokens: 8, cached_blocks: 4, external_tokens: 0, block_ids: [#8, #14, #21, #22, #23] }
    same(manager.resume_with(3i64, Part::WHOLE), 0xa52a27dd);
    manager.check_invariants().unwrap();
    // 49: ()
    same(manager.release(2i64, Until::Now), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 50: ()
    same(manager.release(5i64, Until::Step(6)), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 51: refused: no request has the id 4: admit it first
    same(manager.fork(4i64, 2i64), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 52: refused: no request has the id 1: admit it first
    same(manager.truncate(1i64, 1, Until::Now), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 53: refused: no request has the id 5: admit it first
    same(manager.trim_window(5i64, 4), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 54: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 55: refused: no request has the id 5: admit it first
    same(manager.begin_swap_out(&[5i64.into()]), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 56: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 57: refused: swap 2 is not under way: it was completed or aborted, or never begun
    same(manager.complete_swap(SwapId::from_number(2)), 0x1a3c0d27);
    manager.check_invariants().unwrap();
    // 58: []
    let mut plan = manager.plan_step();
    same(manager.commit_step(&mut plan), 0x50caa327);
    manager.check_invariants().unwrap();
    // 59: refused: ttl is a time to live: must be a clock: call advance_time(now) first
    same(manager.retain(3i64, &[RetentionRange { start: 2, end: None, retention: Retention { keep: Keep::Demoted, ttl: Some(Ttl::Absolute(2.0)), then: Then::Demote } }]), 0x706efb3a);
    manager.check_invariants().unwrap();
    // 60: HintReport { accepted: 2, clipped: 0, ignored: 6 }
    same(manager.retain_prefix(&prompt(manager, &[13, 14, 15, 34, 35, 36, 37, 38, 39], 0, 1), &[RetentionRange { start: 2, end: None, retention: Retention { keep: Keep::Demoted, ttl: None, then: Then::Normal } }]), 0x9079d3b7);
    manager.check_invariants().unwrap();
    // 61: 0
    same(manager.advance_time(17.0), 0x50caa327);
    manager.check_invariants().unwrap();
    // 62: 0
    same(manager.complete_step(0), 0x50caa327);
    manager.check_invariants().unwrap();
    // 63: 2
    same(manager.bump_epoch(), 0xe88aa583);
    manager.check_invariants().unwrap();
    // 64: 5 events
    same(manager.take_events().events.len(), 0xcd6c219e);
    manager.check_invariants().unwrap();
    // 65: refused: no request has the id 1: admit it first
    same(manager.append_ragged(&Rows { requests: &[1i64.into(), 2i64.into(), 3i64.into()], tokens: &[], offsets: &[0, 0, 0, 0], computed: Computed::AllButLast, covered: Covered::All, most_changes: None }), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 66: []
    same(manager.append_ragged(&Rows { requests: &[3i64.into()], tokens: &[], offsets: &[0, 0], computed: Computed::Nothing, covered: Covered::Each(&[9]), most_changes: None }), 0x50caa327);
    manager.check_invariants().unwrap();
    // 67: refused: no request has the id 1: admit it first
    same(manager.extend(1i64, 7), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 68: refused: no request has the id 1: admit it first
    same(manager.external_done(1i64, Loaded::AllBut(&[5..6])), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 69: refused: ticket 0 is not open: it has ended already, or is of another pool (0 are open)
    same(manager.truncate_batch(&[2i64.into()], &[1], Until::Ticket(kvpool::Ticket::new(0))), 0xa243eb80);
    manager.check_invariants().unwrap();
    // 70: Ticket(0)
    same(manager.fence(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 71: refused: request 3 is known already: release it before admitting it again
    same(manager.admit_with(3i64, prompt(manager, &[40, 41, 42], 0, 2), &AdmitOptions { part: Part { allocate_tokens: Some(2), external_tokens: 0 }, tenant: None, no_cache: true, ranges: vec![RetentionRange { start: 3, end: None, retention: Retention { keep: Keep::Priority(Priority::new(80).unwrap()), ttl: Some(Ttl::Idle(0.0)), then: Then::Normal } }] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 72: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#3, #13, #4, #10, #11, #25, #26, #27] }
    same(manager.admit_with(1i64, prompt(manager, &[43, 44, 45, 46, 47, 48, 49], 1, 2), &AdmitOptions::default()).map_err(|refused| refused.error), 0x89bebb2f);
    manager.check_invariants().unwrap();
    // 73: refused: request 3 is known already: release it before admitting it again
    same(manager.admit_with(3i64, prompt(manager, &[50, 51], 0, 2), &AdmitOptions { part: Part { allocate_tokens: Some(2), external_tokens: 0 }, tenant: None, no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 74: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#28, #29, #30, #31, #32, #33, #34] }
    same(manager.admit_with(4i64, prompt(manager, &[52, 53, 54, 55, 56, 57], 1, 2), &AdmitOptions::default()).map_err(|refused| refused.error), 0xedd804a0);
    manager.check_invariants().unwrap();
    // 75: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#35, #36, #37, #38, #39, #40, #41] }
    same(manager.admit_with(5i64, prompt(manager, &[58, 59, 60, 61, 62, 63, 64], 0, 2), &AdmitOptions { part: Part::WHOLE, tenant: None, no_cache: false, ranges: vec![RetentionRange { start: 6, end: None, retention: Retention { keep: Keep::Priority(Priority::new(35).unwrap()), ttl: Some(Ttl::Absolute(0.0)), then: Then::Demote } }] }).map_err(|refused| refused.error), 0x21dc47fb);
    manager.check_invariants().unwrap();
    // 76: refused: request 4 is known already: release it before admitting it again
    same(manager.admit_with(4i64, prompt(manager, &[52, 53, 54], 0, 2), &AdmitOptions::default()).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 77: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#42, #43, #44, #45, #46, #47] }
    same(manager.admit_with("a\u{301}2", prompt(manager, &[40, 41, 42, 65, 66, 67], 0, 2), &AdmitOptions::default()).map_err(|refused| refused.error), 0xef3fccd4);
    manager.check_invariants().unwrap();
    // 78: refused: no request has the id 0: admit it first
    same(manager.append_ragged(&Rows { requests: &[0i64.into(), 1i64.into()], tokens: &[0, 0], offsets: &[], computed: Computed::Nothing, covered: Covered::All, most_changes: None }), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 79: refused: no request has the id 0: admit it first
    same(manager.append_ragged(&Rows { requests: &[4i64.into(), 5i64.into(), 0i64.into()], tokens: &[0, 0, 0], offsets: &[], computed: Computed::Nothing, covered: Covered::All, most_changes: None }), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 80: [NewBlock { row: 3, index: 7, block: #48 }]
    same(manager.append_ragged(&Rows { requests: &[1i64.into(), 3i64.into(), 4i64.into(), 5i64.into()], tokens: &[70, 32, 71, 0], offsets: &[], computed: Computed::AllButLast, covered: Covered::All, most_changes: None }), 0x6689f27f);
    manager.check_invariants().unwrap();
    // 81: [TableChange { index: 5, block: #49 }, TableChange { index: 6, block: #50 }, TableChange { index: 7, block: #51 }, TableChange { index: 8, block: #52 }, Tab
    same(manager.append_tokens(3i64, &[0, 72, 0, 73, 0, 74, 0, 75, 0, 76, 0, 77, 0, 78], 4), 0x31f1eba6);
    manager.check_invariants().unwrap();
    // 82: refused: request 5 has 15 tokens, blocks for 15, 14 computed: cannot set computed to 12
    same(manager.commit(5i64, 12), 0x95d0ab31);
    manager.check_invariants().unwrap();
    // 83: 1
    same(manager.commit(4i64, 14), 0xcc9804cd);
    manager.check_invariants().unwrap();
    // 84: refused: no request has the id 2: admit it first
    same(manager.commit(2i64, 3), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 85: 0
    same(manager.commit_batch(&[], &[]), 0x50caa327);
    manager.check_invariants().unwrap();
    // 86: ()
    same(manager.preempt(1i64, Until::Now), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 87: refused: no request has the id 2: admit it first
    same(manager.resume_with(2i64, Part::WHOLE), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 88: ()
    same(manager.release(1i64, Until::Now), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 89: refused: no request has the id 2: admit it first
    same(manager.release(2i64, Until::Now), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 90: refused: no request has the id 0: admit it first
    same(manager.fork(0i64, 0i64), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 91: refused: no request has the id 1: admit it first
    same(manager.truncate(1i64, 6, Until::Now), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 92: refused: no request has the id 2: admit it first
    same(manager.trim_window(2i64, 1), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 93: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 94: SwapId(2)
    same(manager.begin_swap_out(&[3i64.into(), 4i64.into()]), 0xe88aa583);
    manager.check_invariants().unwrap();
    // 95: TransferPlan { transfers: [Transfer { src: Place { tier: 0, block: #8 }, dst: Place { tier: 1, block: #1 } }, Transfer { src: Place { tier: 0, block: #14 },
    same(manager.take_plan(), 0xec0ef35d);
    manager.check_invariants().unwrap();
    // 96: refused: swap 1 is not under way: it was completed or aborted, or never begun
    same(manager.complete_swap(SwapId::from_number(1)), 0x1a3c0d27);
    manager.check_invariants().unwrap();
    // 97: [Admitted(Admission { cached_tokens: 8, cached_blocks: 4, external_tokens: 0, block_ids: [#35, #36, #37, #38, #27, #58, #59] }), Released]
    let mut plan = manager.plan_step();
    let _ = manager.plan_admit_with(&mut plan, 2i64, prompt(manager, &[58, 59, 60, 61, 79, 80, 81], 0, 2), &AdmitOptions::default());
    let _ = manager.plan_release(&mut plan, 3i64, Until::Now);
    same(manager.commit_step(&mut plan), 0x77d8b57f);
    manager.check_invariants().unwrap();
    // 98: HintReport { accepted: 2, clipped: 2, ignored: 0 }
    same(manager.retain(5i64, &[RetentionRange { start: 7, end: None, retention: Retention { keep: Keep::Pinned, ttl: None, then: Then::Normal } }]), 0xe98c93ea);
    manager.check_invariants().unwrap();
    // 99: HintReport { accepted: 0, clipped: 0, ignored: 4 }
    same(manager.retain_prefix(&prompt(manager, &[40, 41, 42, 82], 0, 2), &[RetentionRange { start: 1, end: None, retention: Retention { keep: Keep::Demoted, ttl: None, then: Then::Normal } }]), 0x82632420);
    manager.check_invariants().unwrap();
    // 100: refused: the time 9 is before 17, which was passed earlier: time does not go backwards
    same(manager.advance_time(9.0), 0xee1b8acc);
    manager.check_invariants().unwrap();
    // 101: 0
    same(manager.complete_step(2), 0x50caa327);
    manager.check_invariants().unwrap();
    // 102: refused: 44 blocks are active and 8 fenced: release them first, or bump the epoch, which always succeeds
    same(manager.reset(), 0xde9294cb);
    manager.check_invariants().unwrap();
    // 103: 5 events
    same(manager.take_events().events.len(), 0xcd6c219e);
    manager.check_invariants().unwrap();
    // 104: refused: request 2 has 14 tokens, blocks for 14, 8 computed: cannot set computed to 16
    same(manager.append_ragged(&Rows { requests: &[2i64.into(), 3i64.into(), 4i64.into()], tokens: &[0, 0], offsets: &[0, 0, 0, 2], computed: Computed::Counts(&[16, 26, 16]), covered: Covered::All, most_changes: None }), 0x95d0ab31);
    manager.check_invariants().unwrap();
    // 105: refused: request 3 is releasing: cannot append to it
    same(manager.append_ragged(&Rows { requests: &[3i64.into(), 4i64.into()], tokens: &[0, 0, 0, 0, 0], offsets: &[0, 2, 5], computed: Computed::Nothing, covered: Covered::Lookahead(3), most_changes: None }), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 106: refused: request 3 is releasing: cannot extend it
    same(manager.extend(3i64, 0), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 107: refused: request 5 is running: cannot end its load
    same(manager.external_done(5i64, Loaded::AllBut(&[1..1])), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 108: refused: request 4 is moving: cannot truncate it
    same(manager.truncate_batch(&[4i64.into(), 5i64.into()], &[11, 12], Until::Step(5)), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 109: refused: ticket 3 is not open: it has ended already, or is of another pool (1 are open)
    same(manager.end_fence(kvpool::Ticket::new(3)), 0xa243eb80);
    manager.check_invariants().unwrap();
    // 110: refused: request 4 is known already: release it before admitting it again
    same(manager.admit_with(4i64, prompt(manager, &[52, 86, 87, 88], 0, 2), &AdmitOptions { part: Part::WHOLE, tenant: None, no_cache: false, ranges: vec![RetentionRange { start: 0, end: None, retention: Retention { keep: Keep::Demoted, ttl: Some(Ttl::Idle(3.0)), then: Then::Demote } }] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 111: refused: request 3 is known already: release it before admitting it again
    same(manager.admit_with(3i64, prompt(manager, &[89], 1, 2), &AdmitOptions { part: Part { allocate_tokens: Some(4), external_tokens: 3 }, tenant: Some(TenantId(1)), no_cache: false, ranges: vec![RetentionRange { start: 3, end: None, retention: Retention { keep: Keep::Priority(Priority::new(80).unwrap()), ttl: Some(Ttl::Idle(0.0)), then: Then::Normal } }] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 112: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 6, block_ids: [#60, #61, #62, #63] }
    same(manager.admit_with(0i64, prompt(manager, &[40, 41, 42, 65], 0, 2), &AdmitOptions { part: Part { allocate_tokens: Some(1), external_tokens: 6 }, tenant: Some(TenantId(1)), no_cache: true, ranges: vec![] }).map_err(|refused| refused.error), 0xf331260c);
    manager.check_invariants().unwrap();
    // 113: refused: request 3 is known already: release it before admitting it again
    same(manager.admit_with(3i64, prompt(manager, &[89], 1, 2), &AdmitOptions { part: Part { allocate_tokens: Some(0), external_tokens: 0 }, tenant: Some(TenantId(1)), no_cache: false, ranges: vec![RetentionRange { start: 3, end: None, retention: Retention { keep: Keep::Demoted, ttl: None, then: Then::Demote } }] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 114: refused: request 0 is known already: release it before admitting it again
    same(manager.admit_with(0i64, prompt(manager, &[43, 44, 45, 46, 47, 90, 91], 0, 2), &AdmitOptions { part: Part { allocate_tokens: Some(4), external_tokens: 0 }, tenant: None, no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 115: refused: request 0 is known already: release it before admitting it again
    same(manager.admit_with(0i64, prompt(manager, &[40, 41, 42, 65], 1, 2), &AdmitOptions { part: Part { allocate_tokens: Some(2), external_tokens: 0 }, tenant: None, no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 116: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#64] }
    same(manager.admit_with("\u{202e}x3", prompt(manager, &[], 1, 2), &AdmitOptions::default()).map_err(|refused| refused.error), 0xdbd8eee5);
    manager.check_invariants().unwrap();
    // 117: refused: request 4 is moving: cannot append to it
    same(manager.append_ragged(&Rows { requests: &[4i64.into(), 5i64.into(), 0i64.into()], tokens: &[0, 0, 0], offsets: &[], computed: Computed::AllButLast, covered: Covered::All, most_changes: None }), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 118: refused: request 3 is releasing: cannot append to it
    same(manager.append_ragged(&Rows { requests: &[3i64.into(), 4i64.into(), 5i64.into()], tokens: &[0, 0, 0], offsets: &[], computed: Computed::Nothing, covered: Covered::All, most_changes: None }), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 119: [NewBlock { row: 0, index: 7, block: #26 }]
    same(manager.append_ragged(&Rows { requests: &[2i64.into(), 5i64.into()], tokens: &[0, 94], offsets: &[], computed: Computed::AllButLast, covered: Covered::All, most_changes: None }), 0xf54f2603);
    manager.check_invariants().unwrap();
    // 120: refused: no request has the id 1: admit it first
    same(manager.append_tokens(1i64, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 1), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 121: refused: no request has the id 1: admit it first
    same(manager.commit(1i64, 15), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 122: 1
    same(manager.commit(5i64, 16), 0xcc9804cd);
    manager.check_invariants().unwrap();
    // 123: 0
    same(manager.commit(2i64, 15), 0x50caa327);
    manager.check_invariants().unwrap();
    // 124: 0
    same(manager.commit_batch(&[], &[]), 0x50caa327);
    manager.check_invariants().unwrap();
    // 125: ()
    same(manager.preempt(5i64, Until::Now), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 126: refused: request 2 is running: cannot resume it
    same(manager.resume_with(2i64, Part::WHOLE), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 127: ()
    same(manager.release(0i64, Until::Now), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 128: HintReport { accepted: 0, clipped: 0, ignored: 0 }
    same(manager.end_session(4i64, Until::Now), 0x532a9d3d);
    manager.check_invariants().unwrap();
    // 129: refused: request 0 is releasing: cannot fork it
    same(manager.fork(0i64, 0i64), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 130: refused: request 4 is releasing: cannot truncate it
    same(manager.truncate(4i64, 8, Until::Now), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 131: 4
    same(manager.trim_window(2i64, 6), 0x83f1241f);
    manager.check_invariants().unwrap();
    // 132: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 133: refused: request 3 is releasing: cannot swap it in
    same(manager.begin_swap_in(&[3i64.into()]), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 134: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 135: refused: swap 1 is not under way: it was completed or aborted, or never begun
    same(manager.complete_swap(SwapId::from_number(1)), 0x1a3c0d27);
    manager.check_invariants().unwrap();
    // 136: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 137: 0
    same(manager.complete_step(0), 0x50caa327);
    manager.check_invariants().unwrap();
    // 138: refused: the manager has changed since this step was begun: begin a new one
    let mut plan = manager.plan_step();
    // It changes nothing, but the plan is stale now.
    manager.drop_cached(&[]).unwrap();
    same(manager.commit_step(&mut plan), 0x0a350b6b);
    manager.check_invariants().unwrap();
    // 139: HintReport { accepted: 3, clipped: 0, ignored: 0 }
    same(manager.retain(4i64, &[RetentionRange { start: 8, end: None, retention: Retention { keep: Keep::Demoted, ttl: None, then: Then::Demote } }]), 0x8b026246);
    manager.check_invariants().unwrap();
    // 140: HintReport { accepted: 0, clipped: 0, ignored: 6 }
    same(manager.retain_prefix(&prompt(manager, &[52, 53, 54, 55, 56, 95, 96], 0, 2), &[RetentionRange { start: 2, end: None, retention: Retention { keep: Keep::Demoted, ttl: None, then: Then::Normal } }]), 0x75e42557);
    manager.check_invariants().unwrap();
    // 141: 0
    same(manager.advance_time(30.0), 0x50caa327);
    manager.check_invariants().unwrap();
    // 142: 0
    same(manager.complete_step(4), 0x50caa327);
    manager.check_invariants().unwrap();
    // 143: 3
    same(manager.bump_epoch(), 0x27b54459);
    manager.check_invariants().unwrap();
    // 144: 6 events
    same(manager.take_events().events.len(), 0xc9de4644);
    manager.check_invariants().unwrap();
    // 145: refused: no request has the id 1: admit it first
    same(manager.append_ragged(&Rows { requests: &[1i64.into(), 2i64.into()], tokens: &[0, 0, 0], offsets: &[0, 1, 3], computed: Computed::AllButLast, covered: Covered::Each(&[2, 16]), most_changes: None }), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 146: []
    same(manager.append_ragged(&Rows { requests: &[], tokens: &[], offsets: &[0], computed: Computed::Counts(&[]), covered: Covered::All, most_changes: None }), 0x50caa327);
    manager.check_invariants().unwrap();
    // 147: []
    same(manager.extend(2i64, 1), 0x50caa327);
    manager.check_invariants().unwrap();
    // 148: refused: no request has the id 1: admit it first
    same(manager.external_done(1i64, Loaded::AllBut(&[0..0])), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 149: refused: no request has the id 1: admit it first
    same(manager.truncate_batch(&[1i64.into()], &[1], Until::Now), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 150: refused: ticket 4 is not open: it has ended already, or is of another pool (1 are open)
    same(manager.end_fence(kvpool::Ticket::new(4)), 0xa243eb80);
    manager.check_invariants().unwrap();
    // 151: refused: request 2 is known already: release it before admitting it again
    same(manager.admit_with(2i64, prompt(manager, &[98, 99, 100, 101], 1, 3), &AdmitOptions { part: Part::WHOLE, tenant: None, no_cache: false, ranges: vec![RetentionRange { start: 6, end: None, retention: Retention { keep: Keep::Pinned, ttl: None, then: Then::Normal } }] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 152: refused: request 0 is known already: release it before admitting it again
    same(manager.admit_with(0i64, prompt(manager, &[102, 103], 0, 3), &AdmitOptions { part: Part { allocate_tokens: Some(1), external_tokens: 0 }, tenant: None, no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 153: refused: request 4 is known already: release it before admitting it again
    same(manager.admit_with(4i64, prompt(manager, &[98, 99, 104, 105], 1, 3), &AdmitOptions { part: Part::WHOLE, tenant: Some(TenantId(1)), no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 154: refused: request 3 is known already: release it before admitting it again
    same(manager.admit_with(3i64, prompt(manager, &[106], 0, 3), &AdmitOptions { part: Part { allocate_tokens: Some(4), external_tokens: 0 }, tenant: Some(TenantId(1)), no_cache: false, ranges: vec![RetentionRange { start: 6, end: None, retention: Retention { keep: Keep::Priority(Priority::new(80).unwrap()), ttl: Some(Ttl::Absolute(3.0)), then: Then::Normal } }] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 155: refused: request 2 is known already: release it before admitting it again
    same(manager.admit_with(2i64, prompt(manager, &[107, 108, 109, 110], 0, 3), &AdmitOptions { part: Part::WHOLE, tenant: Some(TenantId(1)), no_cache: false, ranges: vec![RetentionRange { start: 0, end: None, retention: Retention { keep: Keep::Pinned, ttl: Some(Ttl::Idle(5.0)), then: Then::Normal } }] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 156: refused: request 0 is known already: release it before admitting it again
    same(manager.admit_with(0i64, prompt(manager, &[98, 111, 112, 113], 1, 3), &AdmitOptions { part: Part { allocate_tokens: Some(6), external_tokens: 0 }, tenant: None, no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 157: refused: request "\u{202e}x3" is known already: release it before admitting it again
    same(manager.admit_with("\u{202e}x3", prompt(manager, &[114, 115], 1, 3), &AdmitOptions::default()).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 158: refused: request 0 is releasing: cannot append to it
    same(manager.append_ragged(&Rows { requests: &[0i64.into(), 1i64.into(), 2i64.into()], tokens: &[0, 0, 0], offsets: &[], computed: Computed::Nothing, covered: Covered::All, most_changes: None }), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 159: []
    same(manager.append_ragged(&Rows { requests: &[2i64.into()], tokens: &[117], offsets: &[], computed: Computed::Nothing, covered: Covered::All, most_changes: None }), 0x50caa327);
    manager.check_invariants().unwrap();
    // 160: [NewBlock { row: 0, index: 8, block: #35 }]
    same(manager.append_ragged(&Rows { requests: &[2i64.into()], tokens: &[0], offsets: &[], computed: Computed::AllButLast, covered: Covered::All, most_changes: None }), 0x1af7b5ad);
    manager.check_invariants().unwrap();
    // 161: refused: no request has the id 1: admit it first
    same(manager.append_tokens(1i64, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 4), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 162: refused: request 3 is releasing: cannot commit tokens of it
    same(manager.commit(3i64, 4), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 163: refused: request 5 is preempted: cannot commit tokens of it
    same(manager.commit(5i64, 16), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 164: refused: request 5 is preempted: cannot commit tokens of it
    same(manager.commit(5i64, 16), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 165: refused: request 3 is releasing: cannot commit tokens of it
    same(manager.commit_batch(&[3i64.into()], &[24]), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 166: refused: request 0 is releasing: cannot preempt it
    same(manager.preempt(0i64, Until::Step(9)), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 167: refused: request 3 is releasing: cannot resume it
    same(manager.resume_with(3i64, Part::WHOLE), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 168: refused: request 3 is releasing: cannot release it once more
    same(manager.end_session(3i64, Until::Now), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 169: ()
    same(manager.release(2i64, Until::Now), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 170: refused: no request has the id 1: admit it first
    same(manager.fork(1i64, 4i64), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 171: refused: no request has the id 1: admit it first
    same(manager.truncate(1i64, 7, Until::Now), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 172: refused: no request has the id 1: admit it first
    same(manager.trim_window(1i64, 3), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 173: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 174: refused: no request has the id 2: admit it first
    same(manager.begin_swap_in(&[2i64.into()]), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 175: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 176: refused: swap 3 is not under way: it was completed or aborted, or never begun
    same(manager.complete_swap(SwapId::from_number(3)), 0x1a3c0d27);
    manager.check_invariants().unwrap();
    // 177: []
    let mut plan = manager.plan_step();
    same(manager.commit_step(&mut plan), 0x50caa327);
    manager.check_invariants().unwrap();
    // 178: HintReport { accepted: 0, clipped: 0, ignored: 0 }
    same(manager.retain(4i64, &[RetentionRange { start: 2, end: None, retention: Retention { keep: Keep::Pinned, ttl: Some(Ttl::Absolute(0.0)), then: Then::Normal } }]), 0x532a9d3d);
    manager.check_invariants().unwrap();
    // 179: HintReport { accepted: 0, clipped: 0, ignored: 4 }
    same(manager.retain(4i64, &[RetentionRange { start: 7, end: None, retention: Retention { keep: Keep::Demoted, ttl: None, then: Then::Normal } }]), 0x82632420);
    manager.check_invariants().unwrap();
    // 180: refused: the time 6 is before 30, which was passed earlier: time does not go backwards
    same(manager.advance_time(6.0), 0xee1b8acc);
    manager.check_invariants().unwrap();
    // 181: 8
    same(manager.complete_step(6), 0xcf32a195);
    manager.check_invariants().unwrap();
    // 182: refused: block 0 is the null block: it cannot be evicted
    same(manager.drop_cached(&ids(&[19, 0])), 0x88ee79af);
    manager.check_invariants().unwrap();
    // 183: 0 events
    same(manager.take_events().events.len(), 0x00000000);
    manager.check_invariants().unwrap();
    // 184: refused: request 3 is releasing: cannot append to it
    same(manager.append_ragged(&Rows { requests: &[3i64.into()], tokens: &[0, 0, 0], offsets: &[0, 3], computed: Computed::Nothing, covered: Covered::All, most_changes: None }), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 185: refused: no request has the id 2: admit it first
    same(manager.append_ragged(&Rows { requests: &[2i64.into()], tokens: &[0], offsets: &[0, 1], computed: Computed::Counts(&[3]), covered: Covered::All, most_changes: None }), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 186: refused: no request has the id 1: admit it first
    same(manager.extend(1i64, 10), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 187: refused: request 3 is releasing: cannot end its load
    same(manager.external_done(3i64, Loaded::AllBut(&[0..2])), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 188: refused: no request has the id 2: admit it first
    same(manager.truncate_batch(&[2i64.into(), 3i64.into()], &[1, 22], Until::Now), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 189: Ticket(1)
    same(manager.fence(), 0xcc9804cd);
    manager.check_invariants().unwrap();
    // 190: refused: request 0 is known already: release it before admitting it again
    same(manager.admit_with(0i64, prompt(manager, &[98, 99, 104, 105, 119, 120], 0, 3), &AdmitOptions { part: Part { allocate_tokens: Some(2), external_tokens: 0 }, tenant: Some(TenantId(1)), no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 191: refused: request 5 is known already: release it before admitting it again
    same(manager.admit_with(5i64, prompt(manager, &[98, 99, 104, 105, 121, 122, 123, 124, 125], 0, 3), &AdmitOptions { part: Part { allocate_tokens: None, external_tokens: 5 }, tenant: None, no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 192: refused: request 3 is known already: release it before admitting it again
    same(manager.admit_with(3i64, prompt(manager, &[98, 99, 104, 105], 0, 3), &AdmitOptions { part: Part { allocate_tokens: Some(6), external_tokens: 0 }, tenant: Some(TenantId(1)), no_cache: true, ranges: vec![] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 193: refused: request 4 is known already: release it before admitting it again
    same(manager.admit_with(4i64, prompt(manager, &[126], 1, 3), &AdmitOptions::default()).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 194: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#12, #1, #2, #7, #5, #6] }
    same(manager.admit_with(2i64, prompt(manager, &[17, 18, 19, 20, 127, 128], 0, 3), &AdmitOptions::default()).map_err(|refused| refused.error), 0xb9586e58);
    manager.check_invariants().unwrap();
    // 195: refused: request 2 is known already: release it before admitting it again
    same(manager.admit_with(2i64, prompt(manager, &[129, 130, 131, 132, 133, 134, 135, 136], 1, 99), &AdmitOptions::default()).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 196: refused: request "\"\\4" is known already: release it before admitting it again
    same(manager.admit_with("\"\\4", prompt(manager, &[98, 137], 1, 3), &AdmitOptions::default()).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 197: refused: request 3 is releasing: cannot append to it
    same(manager.append_ragged(&Rows { requests: &[2i64.into(), 3i64.into(), 4i64.into()], tokens: &[0, 0, 0], offsets: &[], computed: Computed::Nothing, covered: Covered::All, most_changes: None }), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 198: refused: request 3 is releasing: cannot append to it
    same(manager.append_ragged(&Rows { requests: &[3i64.into(), 4i64.into()], tokens: &[0, 0], offsets: &[], computed: Computed::AllButLast, covered: Covered::All, most_changes: None }), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 199: [NewBlock { row: 0, index: 6, block: #9 }]
    same(manager.append_ragged(&Rows { requests: &[2i64.into()], tokens: &[0], offsets: &[], computed: Computed::AllButLast, covered: Covered::All, most_changes: None }), 0x3df9c348);
    manager.check_invariants().unwrap();
    // 200: refused: request 3 is releasing: cannot append to it
    same(manager.append_tokens(3i64, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 0), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 201: refused: request 2 has 13 tokens, blocks for 13, 12 computed: cannot set computed to 8
    same(manager.commit(2i64, 8), 0x95d0ab31);
    manager.check_invariants().unwrap();
    // 202: refused: request 0 is releasing: cannot commit tokens of it
    same(manager.commit(0i64, 8), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 203: refused: request 0 is releasing: cannot commit tokens of it
    same(manager.commit(0i64, 8), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 204: refused: request 5 is preempted: cannot commit tokens of it
    same(manager.commit_batch(&[5i64.into(), 0i64.into()], &[16, 8]), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 205: refused: request 4 is releasing: cannot preempt it
    same(manager.preempt(4i64, Until::Step(10)), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 206: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#24, #27, #58, #59, #26, #35, #36, #37] }
    same(manager.resume_with(5i64, Part::WHOLE), 0xb0274dfe);
    manager.check_invariants().unwrap();
    // 207: refused: request 4 is releasing: cannot release it once more
    same(manager.release(4i64, Until::Now), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 208: ()
    same(manager.release(2i64, Until::Now), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 209: refused: request 4 is known already: release it before admitting it again
    same(manager.fork(5i64, 4i64), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 210: ()
    same(manager.truncate(5i64, 12, Until::Now), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 211: refused: request 3 is releasing: cannot trim it
    same(manager.trim_window(3i64, 3), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 212: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 213: refused: no request has the id 1: admit it first
    same(manager.begin_swap_in(&[1i64.into(), 2i64.into()]), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 214: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 215: refused: swap 3 is not under way: it was completed or aborted, or never begun
    same(manager.complete_swap(SwapId::from_number(3)), 0x1a3c0d27);
    manager.check_invariants().unwrap();
    // 216: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 217: 0
    same(manager.complete_step(0), 0x50caa327);
    manager.check_invariants().unwrap();
    // 218: refused: the manager has changed since this step was begun: begin a new one
    let mut plan = manager.plan_step();
    // It changes nothing, but the plan is stale now.
    manager.drop_cached(&[]).unwrap();
    same(manager.commit_step(&mut plan), 0x0a350b6b);
    manager.check_invariants().unwrap();
    // 219: HintReport { accepted: 0, clipped: 0, ignored: 4 }
    same(manager.retain(3i64, &[RetentionRange { start: 0, end: None, retention: Retention { keep: Keep::Demoted, ttl: Some(Ttl::Idle(6.0)), then: Then::Demote } }]), 0x82632420);
    manager.check_invariants().unwrap();
    // 220: refused: no request has the id 2: admit it first
    same(manager.retain(2i64, &[RetentionRange { start: 7, end: None, retention: Retention { keep: Keep::Demoted, ttl: None, then: Then::Normal } }]), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 221: refused: the time 19 is before 30, which was passed earlier: time does not go backwards
    same(manager.advance_time(19.0), 0xee1b8acc);
    manager.check_invariants().unwrap();
    // 222: 0
    same(manager.complete_step(6), 0x50caa327);
    manager.check_invariants().unwrap();
    // 223: 0
    same(manager.drop_cached(&ids(&[39, 3])), 0x50caa327);
    manager.check_invariants().unwrap();
    // 224: 6 events
    same(manager.take_events().events.len(), 0xc9de4644);
    manager.check_invariants().unwrap();
    // 225: []
    same(manager.append_ragged(&Rows { requests: &[], tokens: &[], offsets: &[0], computed: Computed::AllButLast, covered: Covered::All, most_changes: None }), 0x50caa327);
    manager.check_invariants().unwrap();
    // 226: []
    same(manager.append_ragged(&Rows { requests: &[], tokens: &[], offsets: &[0], computed: Computed::Nothing, covered: Covered::All, most_changes: None }), 0x50caa327);
    manager.check_invariants().unwrap();
    // 227: refused: request 3 is releasing: cannot extend it
    same(manager.extend(3i64, 5), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 228: 0
    same(manager.external_done(0i64, Loaded::All), 0x50caa327);
    manager.check_invariants().unwrap();
    // 229: refused: no request has the id 1: admit it first
    same(manager.truncate_batch(&[1i64.into(), 2i64.into()], &[1, 1], Until::Now), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 230: Ticket(2)
    same(manager.fence(), 0xe88aa583);
    manager.check_invariants().unwrap();
    // 231: Admission { cached_tokens: 2, cached_blocks: 1, external_tokens: 0, block_ids: [#12, #60] }
    same(manager.admit_with(2i64, prompt(manager, &[17, 18], 0, 3), &AdmitOptions { part: Part::WHOLE, tenant: Some(TenantId(1)), no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0x0a567047);
    manager.check_invariants().unwrap();
    // 232: refused: request 2 is known already: release it before admitting it again
    same(manager.admit_with(2i64, prompt(manager, &[98, 99, 104, 146, 147, 148, 149], 0, 3), &AdmitOptions { part: Part::WHOLE, tenant: None, no_cache: false, ranges: vec![RetentionRange { start: 6, end: None, retention: Retention { keep: Keep::Priority(Priority::new(80).unwrap()), ttl: Some(Ttl::Absolute(4.0)), then: Then::Normal } }] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 233: refused: request 3 is known already: release it before admitting it again
    same(manager.admit_with(3i64, prompt(manager, &[17, 150, 151, 152], 1, 3), &AdmitOptions { part: Part { allocate_tokens: Some(3), external_tokens: 6 }, tenant: None, no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 234: refused: request 2 is known already: release it before admitting it again
    same(manager.admit_with(2i64, prompt(manager, &[98, 153, 154], 0, 3), &AdmitOptions { part: Part::WHOLE, tenant: None, no_cache: false, ranges: vec![RetentionRange { start: 3, end: None, retention: Retention { keep: Keep::Priority(Priority::new(80).unwrap()), ttl: Some(Ttl::Idle(3.0)), then: Then::Normal } }] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 235: refused: request 2 is known already: release it before admitting it again
    same(manager.admit_with(2i64, prompt(manager, &[58, 59, 60], 0, 3), &AdmitOptions { part: Part { allocate_tokens: None, external_tokens: 2 }, tenant: None, no_cache: false, ranges: vec![RetentionRange { start: 6, end: None, retention: Retention { keep: Keep::Demoted, ttl: None, then: Then::Demote } }] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 236: refused: request 4 is known already: release it before admitting it again
    same(manager.admit_with(4i64, prompt(manager, &[114, 115, 155, 156, 157, 158], 1, 3), &AdmitOptions { part: Part::WHOLE, tenant: Some(TenantId(1)), no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 237: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#61, #62, #63, #36, #37] }
    same(manager.admit_with("\u{0}0", prompt(manager, &[98, 99, 159, 160], 1, 3), &AdmitOptions::default()).map_err(|refused| refused.error), 0x7a42c919);
    manager.check_invariants().unwrap();
    // 238: refused: no request has the id 0: admit it first
    same(manager.append_ragged(&Rows { requests: &[0i64.into(), 1i64.into()], tokens: &[0, 0], offsets: &[], computed: Computed::AllButLast, covered: Covered::All, most_changes: None }), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 239: []
    same(manager.append_ragged(&Rows { requests: &[], tokens: &[], offsets: &[], computed: Computed::Nothing, covered: Covered::All, most_changes: None }), 0x50caa327);
    manager.check_invariants().unwrap();
    // 240: [NewBlock { row: 0, index: 2, block: #9 }, NewBlock { row: 1, index: 6, block: #38 }]
    same(manager.append_ragged(&Rows { requests: &[2i64.into(), 5i64.into()], tokens: &[0, 0], offsets: &[], computed: Computed::AllButLast, covered: Covered::All, most_changes: None }), 0x64c1a0bf);
    manager.check_invariants().unwrap();
    // 241: refused: no request has the id 1: admit it first
    same(manager.append_tokens(1i64, &[0, 0, 0, 0, 0, 0, 0, 0], 4), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 242: refused: request 5 has 13 tokens, blocks for 13, 12 computed: cannot set computed to 3
    same(manager.commit(5i64, 3), 0x95d0ab31);
    manager.check_invariants().unwrap();
    // 243: refused: no request has the id 0: admit it first
    same(manager.commit(0i64, 3), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 244: refused: no request has the id 1: admit it first
    same(manager.commit(1i64, 3), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 245: refused: no request has the id 1: admit it first
    same(manager.commit_batch(&[1i64.into(), 2i64.into()], &[1, 5]), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 246: refused: no request has the id 1: admit it first
    same(manager.preempt(1i64, Until::Step(7)), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 247: refused: request 3 is releasing: cannot resume it
    same(manager.resume_with(3i64, Part::WHOLE), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 248: refused: no request has the id 1: admit it first
    same(manager.end_session(1i64, Until::Ticket(kvpool::Ticket::new(1))), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 249: ()
    same(manager.release(2i64, Until::Now), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
}

fn part_1(manager: &mut CacheManager) {
    // 250: refused: request 4 is known already: release it before admitting it again
    same(manager.fork(5i64, 4i64), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 251: refused: request 4 is releasing: cannot truncate it
    same(manager.truncate(4i64, 11, Until::Now), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 252: refused: request 3 is releasing: cannot trim it
    same(manager.trim_window(3i64, 6), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 253: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 254: refused: request 4 is releasing: cannot swap it out
    same(manager.begin_swap_out(&[4i64.into(), 5i64.into()]), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 255: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 256: refused: swap 3 is not under way: it was completed or aborted, or never begun
    same(manager.complete_swap(SwapId::from_number(3)), 0x1a3c0d27);
    manager.check_invariants().unwrap();
    // 257: []
    let mut plan = manager.plan_step();
    same(manager.commit_step(&mut plan), 0x50caa327);
    manager.check_invariants().unwrap();
    // 258: HintReport { accepted: 0, clipped: 0, ignored: 3 }
    same(manager.retain(3i64, &[RetentionRange { start: 2, end: None, retention: Retention { keep: Keep::Priority(Priority::new(80).unwrap()), ttl: None, then: Then::Normal } }]), 0x77781cc6);
    manager.check_invariants().unwrap();
    // 259: refused: no request has the id 1: admit it first
    same(manager.set_tenant(1i64, TenantId(0)), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 260: refused: the time 24 is before 30, which was passed earlier: time does not go backwards
    same(manager.advance_time(24.0), 0xee1b8acc);
    manager.check_invariants().unwrap();
    // 261: 0
    same(manager.complete_step(7), 0x50caa327);
    manager.check_invariants().unwrap();
    // 262: 0
    same(manager.drop_cached(&ids(&[34, 4])), 0x50caa327);
    manager.check_invariants().unwrap();
    // 263: 6 events
    same(manager.take_events().events.len(), 0xc9de4644);
    manager.check_invariants().unwrap();
    // 264: []
    same(manager.append_ragged(&Rows { requests: &[], tokens: &[], offsets: &[0], computed: Computed::Nothing, covered: Covered::All, most_changes: None }), 0x50caa327);
    manager.check_invariants().unwrap();
    // 265: refused: no request has the id 1: admit it first
    same(manager.append_ragged(&Rows { requests: &[1i64.into(), 2i64.into(), 3i64.into()], tokens: &[0, 0, 0, 0, 0, 0, 0], offsets: &[0, 3, 6, 7], computed: Computed::AllButLast, covered: Covered::All, most_changes: None }), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 266: refused: no request has the id 0: admit it first
    same(manager.extend(0i64, 4), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 267: refused: request 3 is releasing: cannot end its load
    same(manager.external_done(3i64, Loaded::All), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 268: refused: request 3 is releasing: cannot truncate it
    same(manager.truncate_batch(&[3i64.into(), 4i64.into()], &[23, 13], Until::Step(12)), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 269: refused: ticket 7 is not open: it has ended already, or is of another pool (3 are open)
    same(manager.end_fence(kvpool::Ticket::new(7)), 0xa243eb80);
    manager.check_invariants().unwrap();
    // 270: refused: request 5 is known already: release it before admitting it again
    same(manager.admit_with(5i64, prompt(manager, &[], 1, 3), &AdmitOptions { part: Part { allocate_tokens: None, external_tokens: 5 }, tenant: Some(TenantId(1)), no_cache: false, ranges: vec![RetentionRange { start: 3, end: None, retention: Retention { keep: Keep::Priority(Priority::new(80).unwrap()), ttl: None, then: Then::Normal } }] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 271: refused: request 4 is known already: release it before admitting it again
    same(manager.admit_with(4i64, prompt(manager, &[129, 130, 131, 132, 133], 1, 99), &AdmitOptions { part: Part::WHOLE, tenant: None, no_cache: true, ranges: vec![] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 272: refused: request 3 is known already: release it before admitting it again
    same(manager.admit_with(3i64, prompt(manager, &[114, 115, 161, 162, 163], 0, 3), &AdmitOptions { part: Part { allocate_tokens: Some(4), external_tokens: 0 }, tenant: None, no_cache: false, ranges: vec![RetentionRange { start: 3, end: None, retention: Retention { keep: Keep::Priority(Priority::new(80).unwrap()), ttl: None, then: Then::Normal } }] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 273: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#9, #39, #40, #41, #48, #3, #13] }
    same(manager.admit_with(2i64, prompt(manager, &[98, 99, 104, 164, 165, 166], 1, 3), &AdmitOptions { part: Part::WHOLE, tenant: None, no_cache: false, ranges: vec![RetentionRange { start: 6, end: None, retention: Retention { keep: Keep::Priority(Priority::new(80).unwrap()), ttl: None, then: Then::Normal } }] }).map_err(|refused| refused.error), 0xef151a8b);
    manager.check_invariants().unwrap();
    // 274: refused: request 5 is known already: release it before admitting it again
    same(manager.admit_with(5i64, prompt(manager, &[167, 168, 169], 0, 3), &AdmitOptions { part: Part::WHOLE, tenant: Some(TenantId(1)), no_cache: false, ranges: vec![RetentionRange { start: 0, end: None, retention: Retention { keep: Keep::Pinned, ttl: None, then: Then::Normal } }] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 275: refused: request 3 is known already: release it before admitting it again
    same(manager.admit_with(3i64, prompt(manager, &[98, 153, 170, 171], 0, 3), &AdmitOptions { part: Part { allocate_tokens: Some(1), external_tokens: 0 }, tenant: None, no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 276: Admission { cached_tokens: 6, cached_blocks: 3, external_tokens: 0, block_ids: [#12, #1, #2, #4, #10] }
    same(manager.admit_with("\u{1b}[31m1", prompt(manager, &[17, 18, 19, 172], 1, 3), &AdmitOptions::default()).map_err(|refused| refused.error), 0x184d3885);
    manager.check_invariants().unwrap();
    // 277: refused: no request has the id 1: admit it first
    same(manager.append_ragged(&Rows { requests: &[1i64.into(), 2i64.into(), 3i64.into()], tokens: &[0, 0, 0], offsets: &[], computed: Computed::Nothing, covered: Covered::All, most_changes: None }), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 278: refused: no request has the id 1: admit it first
    same(manager.append_ragged(&Rows { requests: &[1i64.into(), 2i64.into()], tokens: &[0, 0], offsets: &[], computed: Computed::Nothing, covered: Covered::All, most_changes: None }), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 279: []
    same(manager.append_ragged(&Rows { requests: &[2i64.into(), 5i64.into()], tokens: &[175, 176], offsets: &[], computed: Computed::AllButLast, covered: Covered::All, most_changes: None }), 0x50caa327);
    manager.check_invariants().unwrap();
    // 280: refused: no request has the id 0: admit it first
    same(manager.append_tokens(0i64, &[0, 0, 0, 0, 0, 0], 4), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 281: refused: request 4 is releasing: cannot commit tokens of it
    same(manager.commit(4i64, 3), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 282: refused: no request has the id 0: admit it first
    same(manager.commit(0i64, 3), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 283: refused: no request has the id 0: admit it first
    same(manager.commit(0i64, 3), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 284: 0
    same(manager.commit_batch(&[], &[]), 0x50caa327);
    manager.check_invariants().unwrap();
    // 285: refused: request 3 is releasing: cannot preempt it
    same(manager.preempt(3i64, Until::Step(11)), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 286: refused: no request has the id 0: admit it first
    same(manager.resume_with(0i64, Part::WHOLE), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 287: refused: no request has the id 1: admit it first
    same(manager.release(1i64, Until::Ticket(kvpool::Ticket::new(5))), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 288: ()
    same(manager.release(5i64, Until::Now), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 289: refused: request 4 is releasing: cannot fork it
    same(manager.fork(4i64, 4i64), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 290: refused: request 3 is releasing: cannot truncate it
    same(manager.truncate(3i64, 9, Until::Now), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 291: refused: request 3 is releasing: cannot trim it
    same(manager.trim_window(3i64, 0), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 292: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 293: refused: request 4 is releasing: cannot swap it out
    same(manager.begin_swap_out(&[4i64.into()]), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 294: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 295: refused: swap 0 is not under way: it was completed or aborted, or never begun
    same(manager.abort_swap(SwapId::from_number(0)), 0x1a3c0d27);
    manager.check_invariants().unwrap();
    // 296: []
    let mut plan = manager.plan_step();
    same(manager.commit_step(&mut plan), 0x50caa327);
    manager.check_invariants().unwrap();
    // 297: HintReport { accepted: 0, clipped: 0, ignored: 6 }
    same(manager.retain(4i64, &[RetentionRange { start: 3, end: None, retention: Retention { keep: Keep::Priority(Priority::new(35).unwrap()), ttl: Some(Ttl::Absolute(3.0)), then: Then::Demote } }]), 0x75e42557);
    manager.check_invariants().unwrap();
    // 298: HintReport { accepted: 0, clipped: 0, ignored: 5 }
    same(manager.retain_prefix(&prompt(manager, &[114, 115, 155, 156, 177, 178], 1, 3), &[RetentionRange { start: 2, end: None, retention: Retention { keep: Keep::Demoted, ttl: None, then: Then::Normal } }]), 0x0e83446b);
    manager.check_invariants().unwrap();
}

#[test]
fn journal() {
    let mut manager = CacheManager::new(ManagerConfig {
        num_blocks: 64,
        block_size: 2,
        duplicates: "keep".parse().unwrap(),
        eviction: kvpool_policies::by_name("lru").unwrap(),
        verify: "none".parse().unwrap(),
        retention: Some(RetentionConfig { pin_budget: 2, tenants: vec![] }),
        algorithm: "sha256".parse().unwrap(),
        watermark: 0.0,
        host_blocks: 32,
        ..ManagerConfig::default()
    })
    .and_then(|pool| pool.watched(&ManagerWatchConfig { event_capacity: 8, ..ManagerWatchConfig::default() })).unwrap();
    part_0(&mut manager);
    part_1(&mut manager);
}
