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
    // 0: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#1, #2, #3, #4], other_tables: [[#5], [#6, #7, #8, #9], [], [#10, #11]], full
    same(manager.admit_with("kept", prompt(manager, &[1, 2, 3, 4], 1, 0), &AdmitOptions { part: Part { allocate_tokens: Some(8), external_tokens: 0 }, tenant: None, no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0x4c9e2f46);
    manager.check_invariants().unwrap();
    // 1: [TableChange { index: 0, block: #12, group: 3 }, TableChange { index: 1, block: #13, group: 3 }]
    same(manager.extend_encoder("kept", 3), 0x8bcc516a);
    manager.check_invariants().unwrap();
    // 2: 9
    same(manager.commit("kept", 8), 0x4b5b00db);
    manager.check_invariants().unwrap();
    // 3: [TableChange { index: 4, block: #14, group: 0 }, TableChange { index: 5, block: #15, group: 0 }, TableChange { index: 6, block: #16, group: 0 }, TableChange 
    same(manager.append_tokens("kept", &[5, 0], 2), 0x4ae82030);
    manager.check_invariants().unwrap();
    // 4: TransferPlan { transfers: [Transfer { src: Place { tier: 0, block: #5 }, dst: Place { tier: 0, block: #10 } }] }
    same(manager.take_plan(), 0x7798c045);
    manager.check_invariants().unwrap();
    // 5: ()
    same(manager.release("kept", Until::Now), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 6: Admission { cached_tokens: 8, cached_blocks: 4, external_tokens: 0, block_ids: [#1, #2, #3, #4, #14], other_tables: [[#15], [#0, #0, #8, #9, #16], [], [#0, #
    same(manager.admit_with("kept", prompt(manager, &[1, 2, 3, 4], 1, 0), &AdmitOptions { part: Part { allocate_tokens: Some(8), external_tokens: 0 }, tenant: None, no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0x4edf57ff);
    manager.check_invariants().unwrap();
    // 7: [TableChange { index: 0, block: #17, group: 3 }, TableChange { index: 1, block: #18, group: 3 }]
    same(manager.extend_encoder("kept", 3), 0xc28052b6);
    manager.check_invariants().unwrap();
    // 8: 0
    same(manager.commit("kept", 8), 0x50caa327);
    manager.check_invariants().unwrap();
    // 9: [TableChange { index: 5, block: #19, group: 0 }, TableChange { index: 6, block: #12, group: 0 }, TableChange { index: 5, block: #13, group: 2 }, TableChange 
    same(manager.append_tokens("kept", &[6, 0], 2), 0xd2b6acc7);
    manager.check_invariants().unwrap();
    // 10: TransferPlan { transfers: [Transfer { src: Place { tier: 0, block: #10 }, dst: Place { tier: 0, block: #15 } }] }
    same(manager.take_plan(), 0x6c5c6d39);
    manager.check_invariants().unwrap();
    // 11: ()
    same(manager.release("kept", Until::Now), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 12: refused: this pool has no retention: make it with a retention configuration to take hints
    same(manager.admit_with(0i64, prompt(manager, &[7, 8, 9, 10], 1, 99), &AdmitOptions { part: Part { allocate_tokens: Some(3), external_tokens: 0 }, tenant: Some(TenantId(1)), no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 13: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#14, #19, #12], other_tables: [[#15], [#16, #13, #20], [], [#17, #18]], full
    same(manager.admit_with(3i64, prompt(manager, &[11, 12, 13, 14, 15], 0, 0), &AdmitOptions { part: Part { allocate_tokens: Some(5), external_tokens: 0 }, tenant: None, no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0x192ea160);
    manager.check_invariants().unwrap();
    // 14: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#5, #21, #22], other_tables: [[#23], [#24, #25, #26], [], [#27, #28]], full_
    same(manager.admit_with(0i64, prompt(manager, &[16, 17, 18], 1, 0), &AdmitOptions { part: Part { allocate_tokens: Some(6), external_tokens: 0 }, tenant: None, no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0x5faa300e);
    manager.check_invariants().unwrap();
    // 15: refused: request 3 is known already: release it before admitting it again
    same(manager.admit_with(3i64, prompt(manager, &[16, 17, 18, 19, 20], 0, 0), &AdmitOptions { part: Part { allocate_tokens: Some(3), external_tokens: 6 }, tenant: None, no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 16: refused: this pool has no retention: make it with a retention configuration to take hints
    same(manager.admit_with(0i64, prompt(manager, &[11, 21, 22], 0, 0), &AdmitOptions { part: Part { allocate_tokens: Some(5), external_tokens: 0 }, tenant: None, no_cache: true, ranges: vec![] }).map_err(|refused| refused.error), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 17: refused: this pool has no retention: make it with a retention configuration to take hints
    same(manager.admit_with(4i64, prompt(manager, &[16, 23, 24, 25], 0, 0), &AdmitOptions { part: Part::WHOLE, tenant: None, no_cache: false, ranges: vec![RetentionRange { start: 6, end: None, retention: Retention { keep: Keep::Pinned, ttl: Some(Ttl::Idle(3.0)), then: Then::Normal } }] }).map_err(|refused| refused.error), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 18: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#29, #30, #31, #32, #33], other_tables: [[#34], [#35, #36, #37, #38, #39], [
    same(manager.admit_with("\u{202e}x3", prompt(manager, &[11, 12, 13, 26], 1, 0), &AdmitOptions::default()).map_err(|refused| refused.error), 0xe6199cf4);
    manager.check_invariants().unwrap();
    // 19: [NewBlock { row: 0, index: 3, block: #43, group: 0 }, NewBlock { row: 0, index: 3, block: #44, group: 2 }]
    same(manager.append_ragged(&Rows { requests: &[0i64.into()], tokens: &[27], offsets: &[], computed: Computed::AllButLast, covered: Covered::All, most_changes: None }), 0x1e5cd816);
    manager.check_invariants().unwrap();
    // 20: refused: no request has the id 5: admit it first
    same(manager.append_ragged(&Rows { requests: &[5i64.into(), 0i64.into()], tokens: &[0, 0], offsets: &[], computed: Computed::Nothing, covered: Covered::All, most_changes: None }), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 21: [NewBlock { row: 0, index: 4, block: #45, group: 0 }, NewBlock { row: 0, index: 4, block: #46, group: 2 }, NewBlock { row: 0, index: 2, block: #47, group: 4
    same(manager.append_ragged(&Rows { requests: &[0i64.into(), 3i64.into()], tokens: &[0, 0], offsets: &[], computed: Computed::AllButLast, covered: Covered::All, most_changes: None }), 0xa728460e);
    manager.check_invariants().unwrap();
    // 22: [TableChange { index: 6, block: #55, group: 0 }, TableChange { index: 7, block: #56, group: 0 }, TableChange { index: 8, block: #57, group: 0 }, TableChange
    same(manager.append_tokens(3i64, &[28, 0, 29, 0, 30, 0, 31, 0, 32, 0, 33, 0, 34, 0, 35, 0], 2), 0x0a7ff47e);
    manager.check_invariants().unwrap();
    // 23: refused: no request has the id 5: admit it first
    same(manager.commit(5i64, 10), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 24: refused: no request has the id 5: admit it first
    same(manager.commit(5i64, 3), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 25: refused: no request has the id 2: admit it first
    same(manager.commit(2i64, 3), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 26: refused: no request has the id 2: admit it first
    same(manager.commit_batch(&[2i64.into()], &[1]), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 27: ()
    same(manager.preempt(0i64, Until::Now), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 28: Admission { cached_tokens: 8, cached_blocks: 4, external_tokens: 0, block_ids: [#5, #21, #22, #43, #45], other_tables: [[#46], [#0, #0, #26, #44, #47], [], 
    same(manager.resume_with(0i64, Part::WHOLE), 0x4ed18757);
    manager.check_invariants().unwrap();
    // 29: refused: no request has the id 4: admit it first
    same(manager.release(4i64, Until::Ticket(kvpool::Ticket::new(1))), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 30: refused: no request has the id 4: admit it first
    same(manager.release(4i64, Until::Now), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 31: refused: no request has the id 5: admit it first
    same(manager.fork(5i64, 1i64), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 32: ()
    same(manager.truncate(3i64, 10, Until::Now), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 33: refused: no request has the id 2: admit it first
    same(manager.trim_window(2i64, 5), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 34: TransferPlan { transfers: [Transfer { src: Place { tier: 0, block: #23 }, dst: Place { tier: 0, block: #54 } }, Transfer { src: Place { tier: 0, block: #23 
    same(manager.take_plan(), 0x00af31c5);
    manager.check_invariants().unwrap();
    // 35: refused: request 3 is running: cannot swap it in
    same(manager.begin_swap_in(&[3i64.into(), 4i64.into()]), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 36: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 37: refused: swap 3 is not under way: it was completed or aborted, or never begun
    same(manager.complete_swap(SwapId::from_number(3)), 0x1a3c0d27);
    manager.check_invariants().unwrap();
    // 38: [Preempted]
    let mut plan = manager.plan_step();
    let _ = manager.plan_preempt(&mut plan, 3i64, Until::Now);
    same(manager.commit_step(&mut plan), 0xc2541e64);
    manager.check_invariants().unwrap();
    // 39: refused: this pool has no retention: make it with a retention configuration to retain blocks
    same(manager.retain(5i64, &[RetentionRange { start: 7, end: None, retention: Retention { keep: Keep::Pinned, ttl: None, then: Then::Normal } }]), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 40: refused: this pool has no retention: make it with a retention configuration to retain blocks
    same(manager.retain_prefix(&prompt(manager, &[16, 23, 24, 36, 37, 38, 39, 40, 41], 0, 0), &[RetentionRange { start: 1, end: None, retention: Retention { keep: Keep::Pinned, ttl: Some(Ttl::Idle(2.0)), then: Then::Normal } }]), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 41: refused: this pool has no retention: make it with a retention configuration to keep time
    same(manager.advance_time(22.0), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 42: 0
    same(manager.complete_step(0), 0x50caa327);
    manager.check_invariants().unwrap();
    // 43: ()
    same(manager.resize(96), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 44: 8 events
    same(manager.take_events().events.len(), 0x617d05ac);
    manager.check_invariants().unwrap();
    // 45: refused: no request has the id 1: admit it first
    same(manager.append_ragged(&Rows { requests: &[0i64.into(), 1i64.into()], tokens: &[0], offsets: &[0, 1, 1], computed: Computed::Nothing, covered: Covered::Each(&[9, 1]), most_changes: None }), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 46: refused: no request has the id 4: admit it first
    same(manager.append_ragged(&Rows { requests: &[4i64.into(), 5i64.into(), 0i64.into()], tokens: &[0, 0, 0, 0, 0], offsets: &[0, 2, 3, 5], computed: Computed::AllButLast, covered: Covered::Each(&[2, 2, 10]), most_changes: None }), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 47: []
    same(manager.extend(0i64, 4), 0x50caa327);
    manager.check_invariants().unwrap();
    // 48: refused: no request has the id 5: admit it first
    same(manager.external_done(5i64, Loaded::All), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 49: refused: request 3 is preempted: cannot truncate it
    same(manager.truncate_batch(&[3i64.into()], &[9], Until::Now), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 50: refused: no request has the id 2: admit it first
    same(manager.release_batch_with(&[(2i64.into(), kvpool::Signal { finish: kvpool::Finish::ToolCalls, output_tokens: Some(10172921) })], Until::Now), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 51: refused: no request has the id 2: admit it first
    same(manager.fork_batch(&[2i64.into()], &[1i64.into()]), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 52: refused: ticket 3 is not open: it has ended already, or is of another pool (0 are open)
    same(manager.end_fence(kvpool::Ticket::new(3)), 0xa243eb80);
    manager.check_invariants().unwrap();
    // 53: refused: this pool has no retention: make it with a retention configuration to take hints
    same(manager.admit_with(1i64, prompt(manager, &[], 1, 0), &AdmitOptions { part: Part::WHOLE, tenant: Some(TenantId(1)), no_cache: false, ranges: vec![RetentionRange { start: 0, end: None, retention: Retention { keep: Keep::Demoted, ttl: Some(Ttl::Absolute(2.0)), then: Then::Demote } }] }).map_err(|refused| refused.error), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 54: refused: request 0 is known already: release it before admitting it again
    same(manager.admit_with(0i64, prompt(manager, &[11, 12, 13, 26, 44], 1, 0), &AdmitOptions { part: Part { allocate_tokens: Some(2), external_tokens: 0 }, tenant: None, no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 55: refused: this pool has no retention: make it with a retention configuration to take hints
    same(manager.admit_with(3i64, prompt(manager, &[16, 45, 46, 47], 1, 0), &AdmitOptions { part: Part { allocate_tokens: Some(2), external_tokens: 0 }, tenant: None, no_cache: false, ranges: vec![RetentionRange { start: 0, end: None, retention: Retention { keep: Keep::Priority(Priority::new(80).unwrap()), ttl: Some(Ttl::Idle(6.0)), then: Then::Normal } }] }).map_err(|refused| refused.error), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 56: refused: this pool has no retention: make it with a retention configuration to take hints
    same(manager.admit_with(1i64, prompt(manager, &[48, 49, 50], 1, 0), &AdmitOptions { part: Part { allocate_tokens: None, external_tokens: 4 }, tenant: Some(TenantId(1)), no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 57: refused: this pool has no retention: make it with a retention configuration to take hints
    same(manager.admit_with(4i64, prompt(manager, &[48, 49, 51], 1, 0), &AdmitOptions { part: Part::WHOLE, tenant: None, no_cache: false, ranges: vec![RetentionRange { start: 3, end: None, retention: Retention { keep: Keep::Pinned, ttl: Some(Ttl::Absolute(0.0)), then: Then::Normal } }] }).map_err(|refused| refused.error), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 58: refused: this pool has no retention: make it with a retention configuration to take hints
    same(manager.admit_with(3i64, prompt(manager, &[11, 12, 13, 26, 52, 53], 1, 0), &AdmitOptions { part: Part { allocate_tokens: Some(0), external_tokens: 0 }, tenant: None, no_cache: true, ranges: vec![RetentionRange { start: 6, end: None, retention: Retention { keep: Keep::Priority(Priority::new(35).unwrap()), ttl: None, then: Then::Demote } }] }).map_err(|refused| refused.error), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 59: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#15, #53, #23, #73, #74, #75], other_tables: [[#76], [#77, #52, #64, #65, #6
    same(manager.admit_with("\u{1b}[31m1", prompt(manager, &[11, 12, 54, 55, 56], 1, 0), &AdmitOptions::default()).map_err(|refused| refused.error), 0xc676b0df);
    manager.check_invariants().unwrap();
    // 60: refused: no request has the id 5: admit it first
    same(manager.append_ragged(&Rows { requests: &[5i64.into(), 0i64.into()], tokens: &[0, 0], offsets: &[], computed: Computed::AllButLast, covered: Covered::All, most_changes: None }), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 61: refused: no request has the id 1: admit it first
    same(manager.append_ragged(&Rows { requests: &[1i64.into(), 2i64.into(), 3i64.into()], tokens: &[0, 0, 0], offsets: &[], computed: Computed::AllButLast, covered: Covered::All, most_changes: None }), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 62: []
    same(manager.append_ragged(&Rows { requests: &[0i64.into()], tokens: &[58], offsets: &[], computed: Computed::AllButLast, covered: Covered::All, most_changes: None }), 0x50caa327);
    manager.check_invariants().unwrap();
    // 63: [TableChange { index: 5, block: #71, group: 0 }, TableChange { index: 6, block: #72, group: 0 }, TableChange { index: 7, block: #49, group: 0 }, TableChange
    same(manager.append_tokens(0i64, &[0, 59, 0, 60, 0, 61, 0, 62, 0, 63, 0, 64, 0, 65], 0), 0x7ddfa2a1);
    manager.check_invariants().unwrap();
    // 64: refused: no request has the id 2: admit it first
    same(manager.commit(2i64, 2), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 65: refused: no request has the id 1: admit it first
    same(manager.commit(1i64, 3), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 66: 18
    same(manager.commit(0i64, 24), 0xef50a834);
    manager.check_invariants().unwrap();
    // 67: refused: request 3 is preempted: cannot commit tokens of it
    same(manager.commit_batch(&[3i64.into()], &[10]), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 68: refused: no request has the id 2: admit it first
    same(manager.preempt(2i64, Until::Step(1)), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 69: refused: request 0 is running: cannot resume it
    same(manager.resume_with(0i64, Part { allocate_tokens: None, external_tokens: 7 }), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 70: ()
    same(manager.release(0i64, Until::Now), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 71: refused: no request has the id 5: admit it first
    same(manager.end_session(5i64, Until::Step(0)), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 72: refused: no request has the id 5: admit it first
    same(manager.fork(5i64, 4i64), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 73: refused: no request has the id 1: admit it first
    same(manager.truncate(1i64, 3, Until::Now), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 74: refused: no request has the id 5: admit it first
    same(manager.trim_window(5i64, 3), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 75: TransferPlan { transfers: [Transfer { src: Place { tier: 0, block: #46 }, dst: Place { tier: 0, block: #78 } }] }
    same(manager.take_plan(), 0xa67d00bb);
    manager.check_invariants().unwrap();
    // 76: refused: no request has the id 0: admit it first
    same(manager.begin_swap_in(&[0i64.into(), 1i64.into()]), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 77: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 78: refused: swap 1 is not under way: it was completed or aborted, or never begun
    same(manager.abort_swap(SwapId::from_number(1)), 0x1a3c0d27);
    manager.check_invariants().unwrap();
    // 79: [Admitted(Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#46, #82, #84, #85, #86], other_tables: [[#87], [#88, #89, #90, #9
    let mut plan = manager.plan_step();
    let _ = manager.plan_resume_with(&mut plan, 3i64, Part::WHOLE);
    same(manager.commit_step(&mut plan), 0xfb50e292);
    manager.check_invariants().unwrap();
    // 80: refused: this pool has no retention: make it with a retention configuration to retain blocks
    same(manager.retain(4i64, &[RetentionRange { start: 7, end: None, retention: Retention { keep: Keep::Pinned, ttl: None, then: Then::Normal } }]), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 81: refused: this pool has no retention: make it with a retention configuration to retain blocks
    same(manager.retain_prefix(&prompt(manager, &[11, 12, 13, 14], 0, 0), &[RetentionRange { start: 3, end: None, retention: Retention { keep: Keep::Demoted, ttl: None, then: Then::Normal } }]), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 82: refused: this pool has no retention: make it with a retention configuration to keep time
    same(manager.advance_time(8.0), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 83: 0
    same(manager.complete_step(0), 0x50caa327);
    manager.check_invariants().unwrap();
    // 84: refused: 44 blocks are active and 0 fenced: release them first, or bump the epoch, which always succeeds
    same(manager.reset(), 0xde9294cb);
    manager.check_invariants().unwrap();
    // 85: 3 events
    same(manager.take_events().events.len(), 0x74ef2322);
    manager.check_invariants().unwrap();
    // 86: []
    same(manager.append_ragged(&Rows { requests: &[], tokens: &[], offsets: &[0], computed: Computed::Counts(&[]), covered: Covered::All, most_changes: None }), 0x50caa327);
    manager.check_invariants().unwrap();
    // 87: refused: no request has the id 1: admit it first
    same(manager.append_ragged(&Rows { requests: &[1i64.into(), 2i64.into()], tokens: &[0], offsets: &[0, 1, 1], computed: Computed::AllButLast, covered: Covered::Lookahead(3), most_changes: None }), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 88: refused: no request has the id 5: admit it first
    same(manager.extend(5i64, 3), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 89: refused: request 3 is running: cannot end its load
    same(manager.external_done(3i64, Loaded::AllBut(&[0..2])), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 90: refused: ticket 2 is not open: it has ended already, or is of another pool (0 are open)
    same(manager.truncate_batch(&[1i64.into(), 2i64.into()], &[1, 1], Until::Ticket(kvpool::Ticket::new(2))), 0xa243eb80);
    manager.check_invariants().unwrap();
    // 91: refused: no request has the id 5: admit it first
    same(manager.release_batch_with(&[(5i64.into(), kvpool::Signal { finish: kvpool::Finish::ToolCalls, output_tokens: Some(11664355) })], Until::Now), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 92: ()
    same(manager.fork_batch(&[], &[]), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 93: Ticket(0)
    same(manager.fence(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 94: refused: this pool has no retention: make it with a retention configuration to take hints
    same(manager.admit_with(2i64, prompt(manager, &[11, 12, 13, 26, 66], 0, 0), &AdmitOptions { part: Part::WHOLE, tenant: Some(TenantId(1)), no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 95: refused: this pool has no retention: make it with a retention configuration to take hints
    same(manager.admit_with(2i64, prompt(manager, &[48, 49], 1, 0), &AdmitOptions { part: Part::WHOLE, tenant: None, no_cache: true, ranges: vec![] }).map_err(|refused| refused.error), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 96: refused: request 0: 6 external tokens, must be from 0 to 0
    same(manager.admit_with(0i64, prompt(manager, &[67, 68], 0, 0), &AdmitOptions { part: Part { allocate_tokens: Some(2), external_tokens: 6 }, tenant: None, no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0x43472e22);
    manager.check_invariants().unwrap();
    // 97: refused: this pool has no retention: make it with a retention configuration to take hints
    same(manager.admit_with(0i64, prompt(manager, &[11, 12, 13, 26], 0, 0), &AdmitOptions { part: Part { allocate_tokens: Some(0), external_tokens: 0 }, tenant: Some(TenantId(1)), no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 98: refused: this pool has no retention: make it with a retention configuration to take hints
    same(manager.admit_with(1i64, prompt(manager, &[11, 12, 13, 26, 66], 0, 0), &AdmitOptions { part: Part::WHOLE, tenant: Some(TenantId(1)), no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 99: refused: this pool has no retention: make it with a retention configuration to take hints
    same(manager.admit_with(4i64, prompt(manager, &[], 1, 0), &AdmitOptions { part: Part::WHOLE, tenant: Some(TenantId(1)), no_cache: false, ranges: vec![RetentionRange { start: 0, end: None, retention: Retention { keep: Keep::Priority(Priority::new(80).unwrap()), ttl: None, then: Then::Normal } }] }).map_err(|refused| refused.error), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 100: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#7, #6, #10, #11, #9, #8], other_tables: [[#4], [#3, #2, #1, #25, #24, #27]
    same(manager.admit_with("a\u{301}2", prompt(manager, &[69, 70, 71, 72, 73], 1, 0), &AdmitOptions::default()).map_err(|refused| refused.error), 0x2c215dd8);
    manager.check_invariants().unwrap();
    // 101: [NewBlock { row: 0, index: 5, block: #93, group: 0 }, NewBlock { row: 0, index: 5, block: #50, group: 2 }]
    same(manager.append_ragged(&Rows { requests: &[3i64.into()], tokens: &[0], offsets: &[], computed: Computed::AllButLast, covered: Covered::All, most_changes: None }), 0x58561402);
    manager.check_invariants().unwrap();
    // 102: []
    same(manager.append_ragged(&Rows { requests: &[], tokens: &[], offsets: &[], computed: Computed::Nothing, covered: Covered::All, most_changes: None }), 0x50caa327);
    manager.check_invariants().unwrap();
    // 103: []
    same(manager.append_ragged(&Rows { requests: &[3i64.into()], tokens: &[74], offsets: &[], computed: Computed::AllButLast, covered: Covered::All, most_changes: None }), 0x50caa327);
    manager.check_invariants().unwrap();
    // 104: refused: no request has the id 0: admit it first
    same(manager.append_tokens(0i64, &[0, 0, 0, 0, 0, 0, 0], 4), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 105: refused: no request has the id 4: admit it first
    same(manager.commit(4i64, 9), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 106: refused: no request has the id 0: admit it first
    same(manager.commit(0i64, 3), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 107: refused: no request has the id 1: admit it first
    same(manager.commit(1i64, 3), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 108: refused: no request has the id 1: admit it first
    same(manager.commit_batch(&[1i64.into()], &[1]), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 109: refused: no request has the id 0: admit it first
    same(manager.preempt(0i64, Until::Now), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 110: refused: no request has the id 1: admit it first
    same(manager.resume_with(1i64, Part::WHOLE), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 111: ()
    same(manager.release(3i64, Until::Now), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 112: refused: no request has the id 1: admit it first
    same(manager.end_session(1i64, Until::Now), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 113: refused: no request has the id 3: admit it first
    same(manager.fork(3i64, 4i64), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 114: refused: no request has the id 1: admit it first
    same(manager.truncate(1i64, 10, Until::Now), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 115: refused: no request has the id 5: admit it first
    same(manager.trim_window(5i64, 3), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 116: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 117: refused: no request has the id 0: admit it first
    same(manager.begin_swap_out(&[0i64.into()]), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 118: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 119: refused: swap 1 is not under way: it was completed or aborted, or never begun
    same(manager.complete_swap(SwapId::from_number(1)), 0x1a3c0d27);
    manager.check_invariants().unwrap();
    // 120: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 121: 0
    same(manager.complete_step(0), 0x50caa327);
    manager.check_invariants().unwrap();
    // 122: refused: the manager has changed since this step was begun: begin a new one
    let mut plan = manager.plan_step();
    // It changes nothing, but the plan is stale now.
    manager.drop_cached(&[]).unwrap();
    same(manager.commit_step(&mut plan), 0x0a350b6b);
    manager.check_invariants().unwrap();
    // 123: refused: this pool has no retention: make it with a retention configuration to retain blocks
    same(manager.retain(4i64, &[RetentionRange { start: 2, end: None, retention: Retention { keep: Keep::Pinned, ttl: Some(Ttl::Idle(2.0)), then: Then::Normal } }]), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 124: refused: this pool has no retention: make it with a retention configuration to assign tenants
    same(manager.set_tenant(3i64, TenantId(0)), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 125: refused: this pool has no retention: make it with a retention configuration to keep time
    same(manager.advance_time(16.0), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 126: 0
    same(manager.complete_step(0), 0x50caa327);
    manager.check_invariants().unwrap();
    // 127: 0
    same(manager.drop_cached(&ids(&[9, 7])), 0x50caa327);
    manager.check_invariants().unwrap();
    // 128: 3 events
    same(manager.take_events().events.len(), 0x74ef2322);
    manager.check_invariants().unwrap();
    // 129: refused: no request has the id 2: admit it first
    same(manager.append_ragged(&Rows { requests: &[2i64.into()], tokens: &[0, 0, 0], offsets: &[0, 3], computed: Computed::Counts(&[3]), covered: Covered::Lookahead(3), most_changes: Some(5) }), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 130: refused: no request has the id 1: admit it first
    same(manager.append_ragged(&Rows { requests: &[1i64.into(), 2i64.into()], tokens: &[0], offsets: &[0, 1, 1], computed: Computed::AllButLast, covered: Covered::Each(&[2, 2]), most_changes: None }), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 131: refused: no request has the id 0: admit it first
    same(manager.extend_encoder(0i64, 1), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 132: refused: no request has the id 5: admit it first
    same(manager.external_done(5i64, Loaded::AllBut(&[5..5])), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 133: refused: no request has the id 3: admit it first
    same(manager.truncate_batch(&[3i64.into()], &[1], Until::Now), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 134: ()
    same(manager.release_batch(&[], Until::Step(6)), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 135: refused: no request has the id 4: admit it first
    same(manager.fork_batch(&[4i64.into(), 5i64.into()], &[4i64.into(), 5i64.into()]), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 136: refused: ticket 6 is not open: it has ended already, or is of another pool (1 are open)
    same(manager.end_fence(kvpool::Ticket::new(6)), 0xa243eb80);
    manager.check_invariants().unwrap();
    // 137: refused: this pool has no retention: make it with a retention configuration to take hints
    same(manager.admit_with(2i64, prompt(manager, &[48, 49, 51, 75, 76, 77, 78], 1, 0), &AdmitOptions { part: Part::WHOLE, tenant: Some(TenantId(1)), no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 138: refused: this pool has no retention: make it with a retention configuration to take hints
    same(manager.admit_with(2i64, prompt(manager, &[], 1, 0), &AdmitOptions { part: Part::WHOLE, tenant: Some(TenantId(1)), no_cache: false, ranges: vec![RetentionRange { start: 0, end: None, retention: Retention { keep: Keep::Priority(Priority::new(80).unwrap()), ttl: None, then: Then::Normal } }] }).map_err(|refused| refused.error), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 139: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#93, #87, #50], other_tables: [[#95], [#20, #18, #54], [], [#48, #17]], ful
    same(manager.admit_with(3i64, prompt(manager, &[16, 17], 1, 0), &AdmitOptions { part: Part { allocate_tokens: Some(5), external_tokens: 0 }, tenant: None, no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0xfe4bd785);
    manager.check_invariants().unwrap();
    // 140: refused: this pool has no retention: make it with a retention configuration to take hints
    same(manager.admit_with(4i64, prompt(manager, &[16, 23, 24, 36, 79], 1, 0), &AdmitOptions { part: Part::WHOLE, tenant: Some(TenantId(1)), no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 141: refused: this pool has no retention: make it with a retention configuration to take hints
    same(manager.admit_with(5i64, prompt(manager, &[16, 23, 80, 81], 1, 0), &AdmitOptions { part: Part { allocate_tokens: None, external_tokens: 5 }, tenant: Some(TenantId(1)), no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 142: refused: this pool has no retention: make it with a retention configuration to take hints
    same(manager.admit_with(4i64, prompt(manager, &[11, 12, 13, 26], 0, 0), &AdmitOptions { part: Part::WHOLE, tenant: Some(TenantId(1)), no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 143: refused: request "\u{202e}x3" is known already: release it before admitting it again
    same(manager.admit_with("\u{202e}x3", prompt(manager, &[82, 83, 84], 1, 0), &AdmitOptions::default()).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 144: refused: no request has the id 2: admit it first
    same(manager.append_ragged(&Rows { requests: &[2i64.into()], tokens: &[0], offsets: &[], computed: Computed::AllButLast, covered: Covered::All, most_changes: None }), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 145: []
    same(manager.append_ragged(&Rows { requests: &[], tokens: &[], offsets: &[], computed: Computed::Nothing, covered: Covered::All, most_changes: None }), 0x50caa327);
    manager.check_invariants().unwrap();
    // 146: []
    same(manager.append_ragged(&Rows { requests: &[3i64.into()], tokens: &[85], offsets: &[], computed: Computed::AllButLast, covered: Covered::All, most_changes: None }), 0x50caa327);
    manager.check_invariants().unwrap();
    // 147: refused: no request has the id 2: admit it first
    same(manager.append_tokens(2i64, &[0, 0, 0, 0], 2), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 148: refused: no request has the id 2: admit it first
    same(manager.commit(2i64, 15), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 149: refused: no request has the id 0: admit it first
    same(manager.commit(0i64, 3), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 150: refused: no request has the id 0: admit it first
    same(manager.commit(0i64, 3), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 151: 2
    same(manager.commit_batch(&[3i64.into()], &[6]), 0xe88aa583);
    manager.check_invariants().unwrap();
    // 152: refused: no request has the id 5: admit it first
    same(manager.preempt(5i64, Until::Now), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 153: refused: no request has the id 0: admit it first
    same(manager.resume_with(0i64, Part { allocate_tokens: None, external_tokens: 7 }), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 154: refused: no request has the id 4: admit it first
    same(manager.end_session(4i64, Until::Now), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 155: refused: no request has the id 4: admit it first
    same(manager.end_session(4i64, Until::Step(5)), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 156: refused: no request has the id 4: admit it first
    same(manager.fork(4i64, 1i64), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 157: refused: no request has the id 4: admit it first
    same(manager.truncate(4i64, 12, Until::Now), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 158: refused: no request has the id 2: admit it first
    same(manager.trim_window(2i64, 1), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 159: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 160: refused: no request has the id 4: admit it first
    same(manager.begin_swap_out(&[3i64.into(), 4i64.into()]), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 161: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 162: refused: swap 4 is not under way: it was completed or aborted, or never begun
    same(manager.abort_swap(SwapId::from_number(4)), 0x1a3c0d27);
    manager.check_invariants().unwrap();
    // 163: []
    let mut plan = manager.plan_step();
    same(manager.commit_step(&mut plan), 0x50caa327);
    manager.check_invariants().unwrap();
    // 164: refused: this pool has no retention: make it with a retention configuration to retain blocks
    same(manager.retain(0i64, &[RetentionRange { start: 1, end: None, retention: Retention { keep: Keep::Demoted, ttl: Some(Ttl::Absolute(3.0)), then: Then::Demote } }]), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 165: refused: this pool has no retention: make it with a retention configuration to retain blocks
    same(manager.retain_prefix(&prompt(manager, &[48, 49, 51, 86], 0, 0), &[RetentionRange { start: 0, end: None, retention: Retention { keep: Keep::Demoted, ttl: None, then: Then::Normal } }]), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 166: refused: this pool has no retention: make it with a retention configuration to keep time
    same(manager.advance_time(29.0), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 167: 0
    same(manager.complete_step(0), 0x50caa327);
    manager.check_invariants().unwrap();
    // 168: refused: 52 blocks are active and 0 fenced: release them first, or bump the epoch, which always succeeds
    same(manager.reset(), 0xde9294cb);
    manager.check_invariants().unwrap();
    // 169: 6 events
    same(manager.take_events().events.len(), 0xc9de4644);
    manager.check_invariants().unwrap();
    // 170: refused: no request has the id 5: admit it first
    same(manager.append_ragged(&Rows { requests: &[5i64.into(), 0i64.into(), 1i64.into()], tokens: &[0, 0, 0, 0, 0], offsets: &[0, 2, 3, 5], computed: Computed::Counts(&[3, 3, 3]), covered: Covered::Each(&[3, 3, 3]), most_changes: None }), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 171: []
    same(manager.append_ragged(&Rows { requests: &[], tokens: &[], offsets: &[0], computed: Computed::Nothing, covered: Covered::All, most_changes: None }), 0x50caa327);
    manager.check_invariants().unwrap();
    // 172: refused: no request has the id 1: admit it first
    same(manager.extend_encoder(1i64, 7), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 173: refused: no request has the id 5: admit it first
    same(manager.external_done(5i64, Loaded::All), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 174: ()
    same(manager.truncate_batch(&[], &[], Until::Ticket(kvpool::Ticket::new(0))), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 175: ()
    same(manager.release_batch(&[3i64.into()], Until::Ticket(kvpool::Ticket::new(0))), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 176: refused: no request has the id 4: admit it first
    same(manager.fork_batch(&[4i64.into()], &[1i64.into()]), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 177: Ticket(1)
    same(manager.fence(), 0xcc9804cd);
    manager.check_invariants().unwrap();
    // 178: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#12, #19], other_tables: [[#14], [#63, #62], [], [#61]], full_tokens: 0 }
    same(manager.admit_with(3i64, prompt(manager, &[87], 1, 0), &AdmitOptions { part: Part { allocate_tokens: Some(4), external_tokens: 0 }, tenant: None, no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0x715c22cc);
    manager.check_invariants().unwrap();
    // 179: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#60], other_tables: [[#59], [#47], [], [#44]], full_tokens: 6 }
    same(manager.admit_with(0i64, prompt(manager, &[11, 12, 13], 1, 0), &AdmitOptions { part: Part { allocate_tokens: Some(1), external_tokens: 0 }, tenant: None, no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0xbc8a10bf);
    manager.check_invariants().unwrap();
    // 180: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#26, #81, #28, #78], other_tables: [[#83], [#80, #79, #58, #57], [], [#56, 
    same(manager.admit_with(5i64, prompt(manager, &[11, 88, 89, 90], 0, 0), &AdmitOptions::default()).map_err(|refused| refused.error), 0xb3200f45);
    manager.check_invariants().unwrap();
    // 181: refused: this pool has no retention: make it with a retention configuration to take hints
    same(manager.admit_with(0i64, prompt(manager, &[69, 70, 91, 92, 93, 94, 95], 1, 0), &AdmitOptions { part: Part { allocate_tokens: Some(4), external_tokens: 0 }, tenant: None, no_cache: true, ranges: vec![] }).map_err(|refused| refused.error), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 182: refused: this pool has no retention: make it with a retention configuration to take hints
    same(manager.admit_with(3i64, prompt(manager, &[11, 12, 13, 26, 44, 96, 97], 1, 0), &AdmitOptions { part: Part { allocate_tokens: Some(3), external_tokens: 6 }, tenant: None, no_cache: false, ranges: vec![RetentionRange { start: 3, end: None, retention: Retention { keep: Keep::Demoted, ttl: None, then: Then::Demote } }] }).map_err(|refused| refused.error), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 183: refused: this pool has no retention: make it with a retention configuration to take hints
    same(manager.admit_with(3i64, prompt(manager, &[7, 8, 98, 99, 100, 101], 1, 99), &AdmitOptions { part: Part { allocate_tokens: Some(4), external_tokens: 0 }, tenant: Some(TenantId(1)), no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 184: refused: request "a\u{301}2" is known already: release it before admitting it again
    same(manager.admit_with("a\u{301}2", prompt(manager, &[48, 49, 51, 102, 103, 104], 0, 0), &AdmitOptions::default()).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 185: []
    same(manager.append_ragged(&Rows { requests: &[], tokens: &[], offsets: &[], computed: Computed::AllButLast, covered: Covered::All, most_changes: None }), 0x50caa327);
    manager.check_invariants().unwrap();
    // 186: []
    same(manager.append_ragged(&Rows { requests: &[], tokens: &[], offsets: &[], computed: Computed::Nothing, covered: Covered::All, most_changes: None }), 0x50caa327);
    manager.check_invariants().unwrap();
    // 187: [NewBlock { row: 0, index: 1, block: #49, group: 0 }, NewBlock { row: 0, index: 2, block: #72, group: 0 }, NewBlock { row: 0, index: 3, block: #71, group: 
    same(manager.append_ragged(&Rows { requests: &[0i64.into(), 3i64.into(), 5i64.into()], tokens: &[14, 105, 0], offsets: &[], computed: Computed::AllButLast, covered: Covered::All, most_changes: None }), 0x537c5292);
    manager.check_invariants().unwrap();
    // 188: refused: no request has the id 1: admit it first
    same(manager.append_tokens(1i64, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 4), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 189: refused: request 3 has 4 tokens, blocks for 4, 3 computed: cannot set computed to 0
    same(manager.commit(3i64, 0), 0x95d0ab31);
    manager.check_invariants().unwrap();
    // 190: 2
    same(manager.commit(3i64, 4), 0xe88aa583);
    manager.check_invariants().unwrap();
    // 191: 0
    same(manager.commit(3i64, 4), 0x50caa327);
    manager.check_invariants().unwrap();
    // 192: refused: no request has the id 4: admit it first
    same(manager.commit_batch(&[4i64.into(), 5i64.into()], &[1, 9]), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 193: ()
    same(manager.preempt(0i64, Until::Step(5)), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 194: refused: request 3 is running: cannot resume it
    same(manager.resume_with(3i64, Part { allocate_tokens: None, external_tokens: 8 }), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 195: ()
    same(manager.release(5i64, Until::Ticket(kvpool::Ticket::new(1))), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 196: refused: no request has the id 2: admit it first
    same(manager.release(2i64, Until::Now), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 197: refused: no request has the id 5: admit it first
    same(manager.fork(5i64, 2i64), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 198: refused: no request has the id 5: admit it first
    same(manager.truncate(5i64, 8, Until::Now), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 199: refused: no request has the id 4: admit it first
    same(manager.trim_window(4i64, 5), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 200: TransferPlan { transfers: [Transfer { src: Place { tier: 0, block: #83 }, dst: Place { tier: 0, block: #90 } }, Transfer { src: Place { tier: 0, block: #14
    same(manager.take_plan(), 0x04256d64);
    manager.check_invariants().unwrap();
    // 201: refused: request 0 is preempted: cannot swap it in
    same(manager.begin_swap_in(&[0i64.into()]), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 202: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 203: refused: swap 1 is not under way: it was completed or aborted, or never begun
    same(manager.complete_swap(SwapId::from_number(1)), 0x1a3c0d27);
    manager.check_invariants().unwrap();
    // 204: [Admitted(Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#88, #94, #86, #85], other_tables: [[#84], [#82, #46, #18, #20], 
    let mut plan = manager.plan_step();
    let _ = manager.plan_resume_with(&mut plan, 0i64, Part::WHOLE);
    same(manager.commit_step(&mut plan), 0x0a76b9c9);
    manager.check_invariants().unwrap();
    // 205: refused: this pool has no retention: make it with a retention configuration to retain blocks
    same(manager.retain(3i64, &[RetentionRange { start: 6, end: None, retention: Retention { keep: Keep::Demoted, ttl: Some(Ttl::Idle(5.0)), then: Then::Demote } }]), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 206: refused: this pool has no retention: make it with a retention configuration to retain blocks
    same(manager.retain(3i64, &[RetentionRange { start: 0, end: None, retention: Retention { keep: Keep::Demoted, ttl: None, then: Then::Normal } }]), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 207: refused: this pool has no retention: make it with a retention configuration to keep time
    same(manager.advance_time(14.0), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 208: 0
    same(manager.complete_step(1), 0x50caa327);
    manager.check_invariants().unwrap();
    // 209: 1
    same(manager.bump_epoch(), 0xcc9804cd);
    manager.check_invariants().unwrap();
    // 210: 1 events
    same(manager.take_events().events.len(), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 211: refused: no request has the id 1: admit it first
    same(manager.append_ragged(&Rows { requests: &[0i64.into(), 1i64.into(), 2i64.into()], tokens: &[0, 0, 0, 0, 0, 0, 0], offsets: &[0, 3, 6, 7], computed: Computed::Nothing, covered: Covered::Lookahead(3), most_changes: None }), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 212: []
    same(manager.append_ragged(&Rows { requests: &[], tokens: &[], offsets: &[0], computed: Computed::AllButLast, covered: Covered::Lookahead(3), most_changes: None }), 0x50caa327);
    manager.check_invariants().unwrap();
    // 213: refused: no request has the id 4: admit it first
    same(manager.extend(4i64, 2), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 214: refused: no request has the id 4: admit it first
    same(manager.external_done(4i64, Loaded::All), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 215: refused: no request has the id 4: admit it first
    same(manager.truncate_batch(&[4i64.into()], &[1], Until::Step(2)), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 216: refused: no request has the id 1: admit it first
    same(manager.release_batch(&[1i64.into()], Until::Now), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 217: ()
    same(manager.fork_batch(&[0i64.into()], &[2i64.into()]), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 218: 6
    same(manager.end_fence(kvpool::Ticket::new(0)), 0xbb143b6c);
    manager.check_invariants().unwrap();
}

#[test]
fn journal() {
    let mut manager = CacheManager::new(ManagerConfig {
        num_blocks: 96,
        block_size: 2,
        duplicates: "keep".parse().unwrap(),
        eviction: kvpool_policies::by_name("lru").unwrap(),
        verify: "none".parse().unwrap(),
        algorithm: "sha256".parse().unwrap(),
        watermark: 0.0,
        host_blocks: 32,
        groups: { use kvpool::groups::{GroupKind, GroupSpec, Groups}; Groups::new(vec![GroupSpec { keep: kvpool::groups::Keep::All, margin: 0, ..GroupSpec::new(GroupKind::Full, 2) }, GroupSpec { keep: kvpool::groups::Keep::All, margin: 0, ..GroupSpec::new(GroupKind::State, 2) }, GroupSpec { keep: kvpool::groups::Keep::All, margin: 0, ..GroupSpec::new(GroupKind::Chunked { chunk: 5 }, 2) }, GroupSpec { keep: kvpool::groups::Keep::All, margin: 0, ..GroupSpec::new(GroupKind::Cross, 2) }, GroupSpec { keep: kvpool::groups::Keep::Every(6), margin: 0, ..GroupSpec::new(GroupKind::Sliding { window: 3 }, 4) }], Some(2)).ok() },
        ..ManagerConfig::default()
    })
    .and_then(|pool| pool.watched(&ManagerWatchConfig { event_capacity: 8, ..ManagerWatchConfig::default() })).unwrap();
    part_0(&mut manager);
}
