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
    // 0: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#1, #2, #3, #4], other_tables: [[#5], [#6, #7, #8, #9], [], [#10, #11], [#12,
    same(manager.admit_with("kept", prompt(manager, &[1, 2, 3, 4], 1, 0), &AdmitOptions { part: Part { allocate_tokens: Some(8), external_tokens: 0, compute_all: false }, tenant: None, no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0x89d28e8f);
    manager.check_invariants().unwrap();
    // 1: [TableChange { index: 0, block: #20, group: 3 }, TableChange { index: 1, block: #21, group: 3 }]
    same(manager.extend_encoder("kept", 3), 0x24899b14);
    manager.check_invariants().unwrap();
    // 2: 13
    same(manager.commit("kept", 8), 0x9c238e04);
    manager.check_invariants().unwrap();
    // 3: [TableChange { index: 4, block: #22, group: 0 }, TableChange { index: 5, block: #23, group: 0 }, TableChange { index: 6, block: #24, group: 0 }, TableChange 
    same(manager.append_tokens("kept", &[5, 0], 2), 0x31c229bc);
    manager.check_invariants().unwrap();
    // 4: TransferPlan { transfers: [Transfer { src: Place { tier: 0, block: #5 }, dst: Place { tier: 0, block: #10 } }] }
    same(manager.take_plan(), 0x7798c045);
    manager.check_invariants().unwrap();
    // 5: ()
    same(manager.release("kept", Until::Now), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 6: Admission { cached_tokens: 8, cached_blocks: 4, external_tokens: 0, block_ids: [#1, #2, #3, #4, #22], other_tables: [[#23], [#0, #0, #8, #9, #24], [], [#0, #
    same(manager.admit_with("kept", prompt(manager, &[1, 2, 3, 4], 1, 0), &AdmitOptions { part: Part { allocate_tokens: Some(8), external_tokens: 0, compute_all: false }, tenant: None, no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0xc4528355);
    manager.check_invariants().unwrap();
    // 7: [TableChange { index: 0, block: #27, group: 3 }, TableChange { index: 1, block: #28, group: 3 }]
    same(manager.extend_encoder("kept", 3), 0x0b13b509);
    manager.check_invariants().unwrap();
    // 8: 0
    same(manager.commit("kept", 8), 0x50caa327);
    manager.check_invariants().unwrap();
    // 9: [TableChange { index: 5, block: #29, group: 0 }, TableChange { index: 6, block: #20, group: 0 }, TableChange { index: 1, block: #21, group: 1 }, TableChange 
    same(manager.append_tokens("kept", &[6, 0], 2), 0xefb4ba77);
    manager.check_invariants().unwrap();
    // 10: TransferPlan { transfers: [Transfer { src: Place { tier: 0, block: #10 }, dst: Place { tier: 0, block: #23 } }] }
    same(manager.take_plan(), 0xef199bee);
    manager.check_invariants().unwrap();
    // 11: ()
    same(manager.release("kept", Until::Now), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 12: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#22, #29, #20, #23], other_tables: [[#21], [#30, #24, #31, #32], [], [#27, #
    same(manager.admit_with("kept", prompt(manager, &[1, 2, 3, 4], 1, 0), &AdmitOptions { part: Part { allocate_tokens: Some(8), external_tokens: 0, compute_all: true }, tenant: None, no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0x1c584bc9);
    manager.check_invariants().unwrap();
    // 13: [TableChange { index: 0, block: #19, group: 3 }, TableChange { index: 1, block: #35, group: 3 }]
    same(manager.extend_encoder("kept", 3), 0xe62ff8e5);
    manager.check_invariants().unwrap();
    // 14: 13
    same(manager.commit("kept", 8), 0x9c238e04);
    manager.check_invariants().unwrap();
    // 15: [TableChange { index: 4, block: #27, group: 0 }, TableChange { index: 5, block: #36, group: 0 }, TableChange { index: 6, block: #37, group: 0 }, TableChange
    same(manager.append_tokens("kept", &[7, 0], 2), 0xf1cfe013);
    manager.check_invariants().unwrap();
    // 16: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 17: ()
    same(manager.release("kept", Until::Now), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 18: refused: this pool has no retention: make it with a retention configuration to take hints
    same(manager.admit_with(0i64, prompt(manager, &[8, 9, 10, 11], 1, 99), &AdmitOptions { part: Part { allocate_tokens: Some(3), external_tokens: 0, compute_all: false }, tenant: Some(TenantId(1)), no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 19: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#27, #36, #37], other_tables: [[#21], [#38, #39, #40], [], [#41, #42], [#19,
    same(manager.admit_with(3i64, prompt(manager, &[12, 13, 14, 15, 16], 0, 0), &AdmitOptions { part: Part { allocate_tokens: Some(5), external_tokens: 0, compute_all: false }, tenant: None, no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0x4783547f);
    manager.check_invariants().unwrap();
    // 20: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#47, #16, #26], other_tables: [[#17], [#18, #48, #49], [], [#50, #51], [#52,
    same(manager.admit_with(0i64, prompt(manager, &[17, 18, 19], 1, 0), &AdmitOptions { part: Part { allocate_tokens: Some(6), external_tokens: 0, compute_all: false }, tenant: None, no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0x8c1a34db);
    manager.check_invariants().unwrap();
    // 21: refused: request 3 is known already: release it before admitting it again
    same(manager.admit_with(3i64, prompt(manager, &[17, 18, 19, 20, 21], 0, 0), &AdmitOptions { part: Part { allocate_tokens: Some(3), external_tokens: 6, compute_all: false }, tenant: None, no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 22: refused: this pool has no retention: make it with a retention configuration to take hints
    same(manager.admit_with(0i64, prompt(manager, &[12, 22, 23], 0, 0), &AdmitOptions { part: Part { allocate_tokens: Some(5), external_tokens: 0, compute_all: false }, tenant: None, no_cache: true, ranges: vec![] }).map_err(|refused| refused.error), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 23: refused: this pool has no retention: make it with a retention configuration to take hints
    same(manager.admit_with(4i64, prompt(manager, &[17, 24, 25, 26], 0, 0), &AdmitOptions { part: Part { allocate_tokens: None, external_tokens: 0, compute_all: true }, tenant: None, no_cache: false, ranges: vec![RetentionRange { start: 6, end: None, retention: Retention { keep: Keep::Pinned, ttl: Some(Ttl::Idle(3.0)), then: Then::Normal } }] }).map_err(|refused| refused.error), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 24: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#58, #59, #60, #61, #62], other_tables: [[#63], [#64, #65, #66, #67, #68], [
    same(manager.admit_with("\u{202e}x3", prompt(manager, &[12, 13, 14, 27], 1, 0), &AdmitOptions::default()).map_err(|refused| refused.error), 0x99b61c31);
    manager.check_invariants().unwrap();
    // 25: refused: request 0 has 8 tokens, blocks for 6, 0 computed: cannot set computed to 7
    same(manager.append_ragged(&Rows { requests: &[0i64.into()], tokens: &[0], offsets: &[], computed: Computed::AllButLast, covered: Covered::All, most_changes: None }), 0x95d0ab31);
    manager.check_invariants().unwrap();
    // 26: refused: no request has the id 5: admit it first
    same(manager.append_ragged(&Rows { requests: &[5i64.into(), 0i64.into()], tokens: &[0, 0], offsets: &[], computed: Computed::Nothing, covered: Covered::All, most_changes: None }), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 27: refused: request 0 has 8 tokens, blocks for 6, 0 computed: cannot set computed to 7
    same(manager.append_ragged(&Rows { requests: &[0i64.into(), 3i64.into()], tokens: &[0, 0], offsets: &[], computed: Computed::AllButLast, covered: Covered::All, most_changes: None }), 0x95d0ab31);
    manager.check_invariants().unwrap();
    // 28: [TableChange { index: 3, block: #82, group: 0 }, TableChange { index: 4, block: #83, group: 0 }, TableChange { index: 5, block: #84, group: 0 }, TableChange
    same(manager.append_tokens(3i64, &[0, 31, 0, 32, 0, 33, 0, 34, 0, 35, 0, 36, 0, 37, 0, 38], 2), 0x6100ebdf);
    manager.check_invariants().unwrap();
    // 29: refused: no request has the id 5: admit it first
    same(manager.commit(5i64, 10), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 30: refused: no request has the id 5: admit it first
    same(manager.commit(5i64, 3), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 31: refused: no request has the id 2: admit it first
    same(manager.commit(2i64, 3), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 32: refused: no request has the id 2: admit it first
    same(manager.commit_batch(&[2i64.into()], &[1]), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 33: ()
    same(manager.preempt(0i64, Until::Now), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 34: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#47, #16, #26, #17], other_tables: [[#18], [#48, #49, #50, #51], [], [#52, #
    same(manager.resume_with(0i64, Part::WHOLE), 0x51596e39);
    manager.check_invariants().unwrap();
    // 35: refused: no request has the id 4: admit it first
    same(manager.release(4i64, Until::Ticket(kvpool::Ticket::new(1))), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 36: refused: no request has the id 4: admit it first
    same(manager.release(4i64, Until::Now), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 37: refused: no request has the id 5: admit it first
    same(manager.fork(5i64, 1i64), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 38: ()
    same(manager.truncate(3i64, 10, Until::Now), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 39: refused: no request has the id 2: admit it first
    same(manager.trim_window(2i64, 5), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 40: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 41: refused: request 3 is running: cannot swap it in
    same(manager.begin_swap_in(&[3i64.into(), 4i64.into()]), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 42: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 43: refused: swap 3 is not under way: it was completed or aborted, or never begun
    same(manager.complete_swap(SwapId::from_number(3)), 0x1a3c0d27);
    manager.check_invariants().unwrap();
    // 44: [Preempted]
    let mut plan = manager.plan_step();
    let _ = manager.plan_preempt(&mut plan, 3i64, Until::Now);
    same(manager.commit_step(&mut plan), 0xc2541e64);
    manager.check_invariants().unwrap();
    // 45: refused: this pool has no retention: make it with a retention configuration to retain blocks
    same(manager.retain(5i64, &[RetentionRange { start: 7, end: None, retention: Retention { keep: Keep::Pinned, ttl: None, then: Then::Normal } }]), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 46: refused: this pool has no retention: make it with a retention configuration to retain blocks
    same(manager.retain_prefix(&prompt(manager, &[17, 24, 25, 39, 40, 41, 42, 43, 44], 0, 0), &[RetentionRange { start: 1, end: None, retention: Retention { keep: Keep::Pinned, ttl: Some(Ttl::Idle(2.0)), then: Then::Normal } }]), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 47: refused: this pool has no retention: make it with a retention configuration to keep time
    same(manager.advance_time(22.0), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 48: 0
    same(manager.complete_step(0), 0x50caa327);
    manager.check_invariants().unwrap();
    // 49: ()
    same(manager.resize(128), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 50: 7 events
    same(manager.take_events().events.len(), 0x2511a610);
    manager.check_invariants().unwrap();
    // 51: refused: no request has the id 1: admit it first
    same(manager.append_ragged(&Rows { requests: &[0i64.into(), 1i64.into()], tokens: &[0], offsets: &[0, 1, 1], computed: Computed::Nothing, covered: Covered::Each(&[7, 1]), most_changes: None }), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 52: refused: no request has the id 4: admit it first
    same(manager.append_ragged(&Rows { requests: &[4i64.into(), 5i64.into(), 0i64.into()], tokens: &[0, 0, 0, 0, 0], offsets: &[0, 2, 3, 5], computed: Computed::AllButLast, covered: Covered::Each(&[2, 2, 8]), most_changes: None }), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 53: []
    same(manager.extend(0i64, 4), 0x50caa327);
    manager.check_invariants().unwrap();
    // 54: refused: no request has the id 5: admit it first
    same(manager.external_done(5i64, Loaded::All), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 55: refused: request 3 is preempted: cannot truncate it
    same(manager.truncate_batch(&[3i64.into()], &[9], Until::Now), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 56: refused: no request has the id 2: admit it first
    same(manager.release_batch_with(&[(2i64.into(), kvpool::Signal { finish: kvpool::Finish::ToolCalls, output_tokens: Some(10172921) })], Until::Now), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 57: refused: no request has the id 2: admit it first
    same(manager.fork_batch(&[2i64.into()], &[1i64.into()]), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 58: refused: ticket 3 is not open: it has ended already, or is of another pool (0 are open)
    same(manager.end_fence(kvpool::Ticket::new(3)), 0xa243eb80);
    manager.check_invariants().unwrap();
    // 59: refused: this pool has no retention: make it with a retention configuration to take hints
    same(manager.admit_with(1i64, prompt(manager, &[], 1, 0), &AdmitOptions { part: Part::WHOLE, tenant: Some(TenantId(1)), no_cache: false, ranges: vec![RetentionRange { start: 0, end: None, retention: Retention { keep: Keep::Demoted, ttl: Some(Ttl::Absolute(2.0)), then: Then::Demote } }] }).map_err(|refused| refused.error), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 60: refused: request 0 is known already: release it before admitting it again
    same(manager.admit_with(0i64, prompt(manager, &[12, 13, 14, 27, 47], 1, 0), &AdmitOptions { part: Part { allocate_tokens: Some(2), external_tokens: 0, compute_all: false }, tenant: None, no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 61: refused: this pool has no retention: make it with a retention configuration to take hints
    same(manager.admit_with(3i64, prompt(manager, &[17, 48, 49, 50], 1, 0), &AdmitOptions { part: Part { allocate_tokens: Some(2), external_tokens: 0, compute_all: true }, tenant: None, no_cache: false, ranges: vec![RetentionRange { start: 0, end: None, retention: Retention { keep: Keep::Priority(Priority::new(80).unwrap()), ttl: Some(Ttl::Idle(6.0)), then: Then::Normal } }] }).map_err(|refused| refused.error), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 62: refused: this pool has no retention: make it with a retention configuration to take hints
    same(manager.admit_with(1i64, prompt(manager, &[51, 52, 53], 1, 0), &AdmitOptions { part: Part { allocate_tokens: None, external_tokens: 4, compute_all: false }, tenant: Some(TenantId(1)), no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 63: refused: this pool has no retention: make it with a retention configuration to take hints
    same(manager.admit_with(4i64, prompt(manager, &[51, 52, 54], 1, 0), &AdmitOptions { part: Part { allocate_tokens: None, external_tokens: 0, compute_all: true }, tenant: None, no_cache: false, ranges: vec![RetentionRange { start: 3, end: None, retention: Retention { keep: Keep::Pinned, ttl: Some(Ttl::Absolute(0.0)), then: Then::Normal } }] }).map_err(|refused| refused.error), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 64: refused: this pool has no retention: make it with a retention configuration to take hints
    same(manager.admit_with(3i64, prompt(manager, &[12, 13, 14, 27, 55, 56], 1, 0), &AdmitOptions { part: Part { allocate_tokens: Some(0), external_tokens: 0, compute_all: true }, tenant: None, no_cache: true, ranges: vec![RetentionRange { start: 6, end: None, retention: Retention { keep: Keep::Priority(Priority::new(35).unwrap()), ttl: None, then: Then::Demote } }] }).map_err(|refused| refused.error), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 65: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#27, #36, #37, #82, #83, #21], other_tables: [[#38], [#39, #40, #95, #96, #4
    same(manager.admit_with("\u{1b}[31m1", prompt(manager, &[12, 13, 57, 58, 59], 1, 0), &AdmitOptions::default()).map_err(|refused| refused.error), 0xac69c306);
    manager.check_invariants().unwrap();
    // 66: refused: no request has the id 5: admit it first
    same(manager.append_ragged(&Rows { requests: &[5i64.into(), 0i64.into()], tokens: &[0, 0], offsets: &[], computed: Computed::AllButLast, covered: Covered::All, most_changes: None }), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 67: refused: no request has the id 1: admit it first
    same(manager.append_ragged(&Rows { requests: &[1i64.into(), 2i64.into(), 3i64.into()], tokens: &[0, 0, 0], offsets: &[], computed: Computed::AllButLast, covered: Covered::All, most_changes: None }), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 68: []
    same(manager.append_ragged(&Rows { requests: &[0i64.into()], tokens: &[61], offsets: &[], computed: Computed::AllButLast, covered: Covered::All, most_changes: None }), 0x50caa327);
    manager.check_invariants().unwrap();
    // 69: [TableChange { index: 4, block: #14, group: 0 }, TableChange { index: 5, block: #7, group: 0 }, TableChange { index: 6, block: #6, group: 0 }, TableChange {
    same(manager.append_tokens(0i64, &[0, 62, 0, 63, 0, 64, 0, 65, 0, 66, 0, 67, 0, 68], 0), 0xf9f74382);
    manager.check_invariants().unwrap();
    // 70: refused: no request has the id 2: admit it first
    same(manager.commit(2i64, 2), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 71: refused: no request has the id 1: admit it first
    same(manager.commit(1i64, 3), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 72: 26
    same(manager.commit(0i64, 22), 0x69e6be79);
    manager.check_invariants().unwrap();
    // 73: refused: request 3 is preempted: cannot commit tokens of it
    same(manager.commit_batch(&[3i64.into()], &[10]), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 74: refused: no request has the id 2: admit it first
    same(manager.preempt(2i64, Until::Step(1)), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 75: refused: request 0 is running: cannot resume it
    same(manager.resume_with(0i64, Part { allocate_tokens: None, external_tokens: 7, compute_all: false }), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 76: ()
    same(manager.release(0i64, Until::Now), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 77: refused: no request has the id 5: admit it first
    same(manager.end_session(5i64, Until::Step(0)), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 78: refused: no request has the id 5: admit it first
    same(manager.fork(5i64, 4i64), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 79: refused: no request has the id 1: admit it first
    same(manager.truncate(1i64, 3, Until::Now), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 80: refused: no request has the id 5: admit it first
    same(manager.trim_window(5i64, 3), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 81: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 82: refused: no request has the id 0: admit it first
    same(manager.begin_swap_in(&[0i64.into(), 1i64.into()]), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 83: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 84: refused: swap 1 is not under way: it was completed or aborted, or never begun
    same(manager.abort_swap(SwapId::from_number(1)), 0x1a3c0d27);
    manager.check_invariants().unwrap();
    // 85: [Admitted(Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#18, #110, #11, #9, #4], other_tables: [[#8], [#104, #105, #93, #9
    let mut plan = manager.plan_step();
    let _ = manager.plan_resume_with(&mut plan, 3i64, Part::WHOLE);
    same(manager.commit_step(&mut plan), 0x8cd4a67a);
    manager.check_invariants().unwrap();
    // 86: refused: this pool has no retention: make it with a retention configuration to retain blocks
    same(manager.retain(4i64, &[RetentionRange { start: 7, end: None, retention: Retention { keep: Keep::Pinned, ttl: None, then: Then::Normal } }]), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 87: refused: this pool has no retention: make it with a retention configuration to retain blocks
    same(manager.retain_prefix(&prompt(manager, &[12, 13, 14, 15], 0, 0), &[RetentionRange { start: 3, end: None, retention: Retention { keep: Keep::Demoted, ttl: None, then: Then::Normal } }]), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 88: refused: this pool has no retention: make it with a retention configuration to keep time
    same(manager.advance_time(8.0), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 89: 0
    same(manager.complete_step(0), 0x50caa327);
    manager.check_invariants().unwrap();
    // 90: refused: 76 blocks are active and 0 fenced: release them first, or bump the epoch, which always succeeds
    same(manager.reset(), 0xde9294cb);
    manager.check_invariants().unwrap();
    // 91: 4 events
    same(manager.take_events().events.len(), 0x30be82d6);
    manager.check_invariants().unwrap();
    // 92: []
    same(manager.append_ragged(&Rows { requests: &[], tokens: &[], offsets: &[0], computed: Computed::Counts(&[]), covered: Covered::All, most_changes: None }), 0x50caa327);
    manager.check_invariants().unwrap();
    // 93: refused: no request has the id 1: admit it first
    same(manager.append_ragged(&Rows { requests: &[1i64.into(), 2i64.into()], tokens: &[0], offsets: &[0, 1, 1], computed: Computed::AllButLast, covered: Covered::Lookahead(3), most_changes: None }), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 94: refused: no request has the id 5: admit it first
    same(manager.extend(5i64, 3), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 95: refused: request 3 is running: cannot end its load
    same(manager.external_done(3i64, Loaded::AllBut(&[0..2])), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 96: refused: ticket 2 is not open: it has ended already, or is of another pool (0 are open)
    same(manager.truncate_batch(&[1i64.into(), 2i64.into()], &[1, 1], Until::Ticket(kvpool::Ticket::new(2))), 0xa243eb80);
    manager.check_invariants().unwrap();
    // 97: refused: no request has the id 5: admit it first
    same(manager.release_batch_with(&[(5i64.into(), kvpool::Signal { finish: kvpool::Finish::ToolCalls, output_tokens: Some(11664355) })], Until::Now), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 98: ()
    same(manager.fork_batch(&[], &[]), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 99: Ticket(0)
    same(manager.fence(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 100: refused: this pool has no retention: make it with a retention configuration to take hints
    same(manager.admit_with(2i64, prompt(manager, &[12, 13, 14, 27, 69], 0, 0), &AdmitOptions { part: Part::WHOLE, tenant: Some(TenantId(1)), no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 101: refused: this pool has no retention: make it with a retention configuration to take hints
    same(manager.admit_with(2i64, prompt(manager, &[51, 52], 1, 0), &AdmitOptions { part: Part::WHOLE, tenant: None, no_cache: true, ranges: vec![] }).map_err(|refused| refused.error), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 102: refused: request 0: 6 external tokens, must be from 0 to 3
    same(manager.admit_with(0i64, prompt(manager, &[70, 71], 0, 0), &AdmitOptions { part: Part { allocate_tokens: Some(2), external_tokens: 6, compute_all: false }, tenant: None, no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0x43472e22);
    manager.check_invariants().unwrap();
    // 103: refused: this pool has no retention: make it with a retention configuration to take hints
    same(manager.admit_with(0i64, prompt(manager, &[12, 13, 14, 27], 0, 0), &AdmitOptions { part: Part { allocate_tokens: Some(0), external_tokens: 0, compute_all: true }, tenant: Some(TenantId(1)), no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 104: refused: this pool has no retention: make it with a retention configuration to take hints
    same(manager.admit_with(1i64, prompt(manager, &[12, 13, 14, 27, 69], 0, 0), &AdmitOptions { part: Part::WHOLE, tenant: Some(TenantId(1)), no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 105: refused: this pool has no retention: make it with a retention configuration to take hints
    same(manager.admit_with(4i64, prompt(manager, &[], 1, 0), &AdmitOptions { part: Part::WHOLE, tenant: Some(TenantId(1)), no_cache: false, ranges: vec![RetentionRange { start: 0, end: None, retention: Retention { keep: Keep::Priority(Priority::new(80).unwrap()), ttl: None, then: Then::Normal } }] }).map_err(|refused| refused.error), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 106: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#12, #1, #34, #28, #32, #23], other_tables: [[#25], [#31, #20, #24, #33, #2
    same(manager.admit_with("a\u{301}2", prompt(manager, &[72, 73, 74, 75, 76], 1, 0), &AdmitOptions::default()).map_err(|refused| refused.error), 0x1183078f);
    manager.check_invariants().unwrap();
    // 107: [NewBlock { row: 0, index: 5, block: #85, group: 0 }, NewBlock { row: 0, index: 5, block: #99, group: 2 }, NewBlock { row: 0, index: 5, block: #117, group:
    same(manager.append_ragged(&Rows { requests: &[3i64.into()], tokens: &[0], offsets: &[], computed: Computed::AllButLast, covered: Covered::All, most_changes: None }), 0xd7932fae);
    manager.check_invariants().unwrap();
    // 108: []
    same(manager.append_ragged(&Rows { requests: &[], tokens: &[], offsets: &[], computed: Computed::Nothing, covered: Covered::All, most_changes: None }), 0x50caa327);
    manager.check_invariants().unwrap();
    // 109: []
    same(manager.append_ragged(&Rows { requests: &[3i64.into()], tokens: &[77], offsets: &[], computed: Computed::AllButLast, covered: Covered::All, most_changes: None }), 0x50caa327);
    manager.check_invariants().unwrap();
    // 110: refused: no request has the id 0: admit it first
    same(manager.append_tokens(0i64, &[0, 0, 0, 0, 0, 0, 0], 4), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 111: refused: no request has the id 4: admit it first
    same(manager.commit(4i64, 9), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 112: refused: no request has the id 0: admit it first
    same(manager.commit(0i64, 3), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 113: refused: no request has the id 1: admit it first
    same(manager.commit(1i64, 3), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 114: refused: no request has the id 1: admit it first
    same(manager.commit_batch(&[1i64.into()], &[1]), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 115: refused: no request has the id 0: admit it first
    same(manager.preempt(0i64, Until::Now), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 116: refused: no request has the id 1: admit it first
    same(manager.resume_with(1i64, Part::WHOLE), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 117: ()
    same(manager.release(3i64, Until::Now), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 118: refused: no request has the id 1: admit it first
    same(manager.end_session(1i64, Until::Now), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 119: refused: no request has the id 3: admit it first
    same(manager.fork(3i64, 4i64), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 120: refused: no request has the id 1: admit it first
    same(manager.truncate(1i64, 10, Until::Now), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 121: refused: no request has the id 5: admit it first
    same(manager.trim_window(5i64, 3), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 122: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 123: refused: no request has the id 0: admit it first
    same(manager.begin_swap_out(&[0i64.into()]), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 124: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 125: refused: swap 1 is not under way: it was completed or aborted, or never begun
    same(manager.complete_swap(SwapId::from_number(1)), 0x1a3c0d27);
    manager.check_invariants().unwrap();
    // 126: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 127: 0
    same(manager.complete_step(0), 0x50caa327);
    manager.check_invariants().unwrap();
    // 128: refused: the manager has changed since this step was begun: begin a new one
    let mut plan = manager.plan_step();
    // It changes nothing, but the plan is stale now.
    manager.drop_cached(&[]).unwrap();
    same(manager.commit_step(&mut plan), 0x0a350b6b);
    manager.check_invariants().unwrap();
    // 129: refused: this pool has no retention: make it with a retention configuration to retain blocks
    same(manager.retain(4i64, &[RetentionRange { start: 2, end: None, retention: Retention { keep: Keep::Pinned, ttl: Some(Ttl::Idle(2.0)), then: Then::Normal } }]), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 130: refused: this pool has no retention: make it with a retention configuration to assign tenants
    same(manager.set_tenant(3i64, TenantId(0)), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 131: refused: this pool has no retention: make it with a retention configuration to keep time
    same(manager.advance_time(16.0), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 132: 0
    same(manager.complete_step(0), 0x50caa327);
    manager.check_invariants().unwrap();
    // 133: 2
    same(manager.drop_cached(&ids(&[9, 7])), 0xe88aa583);
    manager.check_invariants().unwrap();
    // 134: 7 events
    same(manager.take_events().events.len(), 0x2511a610);
    manager.check_invariants().unwrap();
    // 135: refused: no request has the id 2: admit it first
    same(manager.append_ragged(&Rows { requests: &[2i64.into()], tokens: &[0, 0, 0], offsets: &[0, 3], computed: Computed::Counts(&[3]), covered: Covered::Lookahead(3), most_changes: Some(5) }), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 136: refused: no request has the id 1: admit it first
    same(manager.append_ragged(&Rows { requests: &[1i64.into(), 2i64.into()], tokens: &[0], offsets: &[0, 1, 1], computed: Computed::AllButLast, covered: Covered::Each(&[2, 2]), most_changes: None }), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 137: refused: no request has the id 0: admit it first
    same(manager.extend_encoder(0i64, 1), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 138: refused: no request has the id 5: admit it first
    same(manager.external_done(5i64, Loaded::AllBut(&[5..5])), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 139: refused: no request has the id 3: admit it first
    same(manager.truncate_batch(&[3i64.into()], &[1], Until::Now), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 140: ()
    same(manager.release_batch(&[], Until::Step(6)), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 141: refused: no request has the id 4: admit it first
    same(manager.fork_batch(&[4i64.into(), 5i64.into()], &[4i64.into(), 5i64.into()]), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 142: refused: ticket 6 is not open: it has ended already, or is of another pool (1 are open)
    same(manager.end_fence(kvpool::Ticket::new(6)), 0xa243eb80);
    manager.check_invariants().unwrap();
    // 143: refused: this pool has no retention: make it with a retention configuration to take hints
    same(manager.admit_with(2i64, prompt(manager, &[51, 52, 54, 78, 79, 80, 81], 1, 0), &AdmitOptions { part: Part::WHOLE, tenant: Some(TenantId(1)), no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 144: refused: this pool has no retention: make it with a retention configuration to take hints
    same(manager.admit_with(2i64, prompt(manager, &[], 1, 0), &AdmitOptions { part: Part { allocate_tokens: None, external_tokens: 0, compute_all: true }, tenant: Some(TenantId(1)), no_cache: false, ranges: vec![RetentionRange { start: 0, end: None, retention: Retention { keep: Keep::Priority(Priority::new(80).unwrap()), ttl: None, then: Then::Normal } }] }).map_err(|refused| refused.error), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 145: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#7, #9, #85], other_tables: [[#8], [#99, #107, #117], [], [#91, #92], [#3, 
    same(manager.admit_with(3i64, prompt(manager, &[17, 18], 1, 0), &AdmitOptions { part: Part { allocate_tokens: Some(5), external_tokens: 0, compute_all: false }, tenant: None, no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0x2036029a);
    manager.check_invariants().unwrap();
    // 146: refused: this pool has no retention: make it with a retention configuration to take hints
    same(manager.admit_with(4i64, prompt(manager, &[17, 24, 25, 39, 82], 1, 0), &AdmitOptions { part: Part { allocate_tokens: None, external_tokens: 0, compute_all: true }, tenant: Some(TenantId(1)), no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 147: refused: this pool has no retention: make it with a retention configuration to take hints
    same(manager.admit_with(5i64, prompt(manager, &[17, 24, 83, 84], 1, 0), &AdmitOptions { part: Part { allocate_tokens: None, external_tokens: 5, compute_all: false }, tenant: Some(TenantId(1)), no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 148: refused: this pool has no retention: make it with a retention configuration to take hints
    same(manager.admit_with(4i64, prompt(manager, &[12, 13, 14, 27], 0, 0), &AdmitOptions { part: Part::WHOLE, tenant: Some(TenantId(1)), no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 149: refused: request "\u{202e}x3" is known already: release it before admitting it again
    same(manager.admit_with("\u{202e}x3", prompt(manager, &[85, 86, 87], 1, 0), &AdmitOptions::default()).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 150: refused: no request has the id 2: admit it first
    same(manager.append_ragged(&Rows { requests: &[2i64.into()], tokens: &[0], offsets: &[], computed: Computed::AllButLast, covered: Covered::All, most_changes: None }), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 151: []
    same(manager.append_ragged(&Rows { requests: &[], tokens: &[], offsets: &[], computed: Computed::Nothing, covered: Covered::All, most_changes: None }), 0x50caa327);
    manager.check_invariants().unwrap();
    // 152: []
    same(manager.append_ragged(&Rows { requests: &[3i64.into()], tokens: &[88], offsets: &[], computed: Computed::AllButLast, covered: Covered::All, most_changes: None }), 0x50caa327);
    manager.check_invariants().unwrap();
    // 153: refused: no request has the id 2: admit it first
    same(manager.append_tokens(2i64, &[0, 0, 0, 0], 2), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 154: refused: no request has the id 2: admit it first
    same(manager.commit(2i64, 15), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 155: refused: no request has the id 0: admit it first
    same(manager.commit(0i64, 3), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 156: refused: no request has the id 0: admit it first
    same(manager.commit(0i64, 3), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 157: 3
    same(manager.commit_batch(&[3i64.into()], &[6]), 0x27b54459);
    manager.check_invariants().unwrap();
    // 158: refused: no request has the id 5: admit it first
    same(manager.preempt(5i64, Until::Now), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 159: refused: no request has the id 0: admit it first
    same(manager.resume_with(0i64, Part { allocate_tokens: None, external_tokens: 7, compute_all: false }), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 160: refused: no request has the id 4: admit it first
    same(manager.end_session(4i64, Until::Now), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 161: refused: no request has the id 4: admit it first
    same(manager.end_session(4i64, Until::Step(5)), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 162: refused: no request has the id 4: admit it first
    same(manager.fork(4i64, 1i64), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 163: refused: no request has the id 4: admit it first
    same(manager.truncate(4i64, 12, Until::Now), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 164: refused: no request has the id 2: admit it first
    same(manager.trim_window(2i64, 1), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 165: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 166: refused: no request has the id 4: admit it first
    same(manager.begin_swap_out(&[3i64.into(), 4i64.into()]), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 167: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 168: refused: swap 4 is not under way: it was completed or aborted, or never begun
    same(manager.abort_swap(SwapId::from_number(4)), 0x1a3c0d27);
    manager.check_invariants().unwrap();
    // 169: []
    let mut plan = manager.plan_step();
    same(manager.commit_step(&mut plan), 0x50caa327);
    manager.check_invariants().unwrap();
    // 170: refused: this pool has no retention: make it with a retention configuration to retain blocks
    same(manager.retain(0i64, &[RetentionRange { start: 1, end: None, retention: Retention { keep: Keep::Demoted, ttl: Some(Ttl::Absolute(3.0)), then: Then::Demote } }]), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 171: refused: this pool has no retention: make it with a retention configuration to retain blocks
    same(manager.retain_prefix(&prompt(manager, &[51, 52, 54, 89], 0, 0), &[RetentionRange { start: 0, end: None, retention: Retention { keep: Keep::Demoted, ttl: None, then: Then::Normal } }]), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 172: refused: this pool has no retention: make it with a retention configuration to keep time
    same(manager.advance_time(29.0), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 173: 0
    same(manager.complete_step(0), 0x50caa327);
    manager.check_invariants().unwrap();
    // 174: refused: 92 blocks are active and 0 fenced: release them first, or bump the epoch, which always succeeds
    same(manager.reset(), 0xde9294cb);
    manager.check_invariants().unwrap();
    // 175: 5 events
    same(manager.take_events().events.len(), 0xcd6c219e);
    manager.check_invariants().unwrap();
    // 176: refused: no request has the id 5: admit it first
    same(manager.append_ragged(&Rows { requests: &[5i64.into(), 0i64.into(), 1i64.into()], tokens: &[0, 0, 0, 0, 0], offsets: &[0, 2, 3, 5], computed: Computed::Counts(&[3, 3, 3]), covered: Covered::Each(&[3, 3, 3]), most_changes: None }), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 177: []
    same(manager.append_ragged(&Rows { requests: &[], tokens: &[], offsets: &[0], computed: Computed::Nothing, covered: Covered::All, most_changes: None }), 0x50caa327);
    manager.check_invariants().unwrap();
    // 178: refused: no request has the id 1: admit it first
    same(manager.extend_encoder(1i64, 7), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 179: refused: no request has the id 5: admit it first
    same(manager.external_done(5i64, Loaded::All), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 180: ()
    same(manager.truncate_batch(&[], &[], Until::Ticket(kvpool::Ticket::new(0))), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 181: ()
    same(manager.release_batch(&[3i64.into()], Until::Ticket(kvpool::Ticket::new(0))), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 182: refused: no request has the id 4: admit it first
    same(manager.fork_batch(&[4i64.into()], &[1i64.into()]), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 183: Ticket(1)
    same(manager.fence(), 0xcc9804cd);
    manager.check_invariants().unwrap();
    // 184: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#97, #115], other_tables: [[#14], [#57, #53], [], [#51], [#17, #56], [#50, 
    same(manager.admit_with(3i64, prompt(manager, &[90], 1, 0), &AdmitOptions { part: Part { allocate_tokens: Some(4), external_tokens: 0, compute_all: false }, tenant: None, no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0xde3ddea0);
    manager.check_invariants().unwrap();
    // 185: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#52], other_tables: [[#49], [#55], [], [#16], [#48], [#54]], full_tokens: 6
    same(manager.admit_with(0i64, prompt(manager, &[12, 13, 14], 1, 0), &AdmitOptions { part: Part { allocate_tokens: Some(1), external_tokens: 0, compute_all: false }, tenant: None, no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0x94f56ff9);
    manager.check_invariants().unwrap();
    // 186: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#47, #84, #90, #4], other_tables: [[#89], [#86, #94, #88, #93], [], [#11, #
    same(manager.admit_with(5i64, prompt(manager, &[12, 91, 92, 93], 0, 0), &AdmitOptions::default()).map_err(|refused| refused.error), 0x2ad77448);
    manager.check_invariants().unwrap();
    // 187: refused: this pool has no retention: make it with a retention configuration to take hints
    same(manager.admit_with(0i64, prompt(manager, &[72, 73, 94, 95, 96, 97, 98], 1, 0), &AdmitOptions { part: Part { allocate_tokens: Some(4), external_tokens: 0, compute_all: false }, tenant: None, no_cache: true, ranges: vec![] }).map_err(|refused| refused.error), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 188: refused: this pool has no retention: make it with a retention configuration to take hints
    same(manager.admit_with(3i64, prompt(manager, &[12, 13, 14, 27, 47, 99, 100], 1, 0), &AdmitOptions { part: Part { allocate_tokens: Some(3), external_tokens: 6, compute_all: false }, tenant: None, no_cache: false, ranges: vec![RetentionRange { start: 3, end: None, retention: Retention { keep: Keep::Demoted, ttl: None, then: Then::Demote } }] }).map_err(|refused| refused.error), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 189: refused: this pool has no retention: make it with a retention configuration to take hints
    same(manager.admit_with(3i64, prompt(manager, &[8, 9, 101, 102, 103, 104], 1, 99), &AdmitOptions { part: Part { allocate_tokens: Some(4), external_tokens: 0, compute_all: false }, tenant: Some(TenantId(1)), no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 190: refused: request "a\u{301}2" is known already: release it before admitting it again
    same(manager.admit_with("a\u{301}2", prompt(manager, &[51, 52, 54, 105, 106, 107], 0, 0), &AdmitOptions::default()).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 191: []
    same(manager.append_ragged(&Rows { requests: &[], tokens: &[], offsets: &[], computed: Computed::AllButLast, covered: Covered::All, most_changes: None }), 0x50caa327);
    manager.check_invariants().unwrap();
    // 192: []
    same(manager.append_ragged(&Rows { requests: &[], tokens: &[], offsets: &[], computed: Computed::Nothing, covered: Covered::All, most_changes: None }), 0x50caa327);
    manager.check_invariants().unwrap();
    // 193: refused: request 0 has 8 tokens, blocks for 1, 0 computed: cannot set computed to 7
    same(manager.append_ragged(&Rows { requests: &[0i64.into(), 3i64.into(), 5i64.into()], tokens: &[0, 0, 0], offsets: &[], computed: Computed::AllButLast, covered: Covered::All, most_changes: None }), 0x95d0ab31);
    manager.check_invariants().unwrap();
    // 194: refused: no request has the id 1: admit it first
    same(manager.append_tokens(1i64, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 4), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 195: 0
    same(manager.commit(3i64, 0), 0x50caa327);
    manager.check_invariants().unwrap();
    // 196: 3
    same(manager.commit(3i64, 3), 0x27b54459);
    manager.check_invariants().unwrap();
    // 197: 0
    same(manager.commit(3i64, 3), 0x50caa327);
    manager.check_invariants().unwrap();
    // 198: refused: no request has the id 4: admit it first
    same(manager.commit_batch(&[4i64.into(), 5i64.into()], &[1, 8]), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 199: ()
    same(manager.preempt(0i64, Until::Step(5)), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 200: refused: request 3 is running: cannot resume it
    same(manager.resume_with(3i64, Part { allocate_tokens: None, external_tokens: 8, compute_all: false }), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 201: ()
    same(manager.release(5i64, Until::Ticket(kvpool::Ticket::new(1))), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 202: refused: no request has the id 2: admit it first
    same(manager.release(2i64, Until::Now), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 203: refused: no request has the id 5: admit it first
    same(manager.fork(5i64, 2i64), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 204: refused: no request has the id 5: admit it first
    same(manager.truncate(5i64, 8, Until::Now), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 205: refused: no request has the id 4: admit it first
    same(manager.trim_window(4i64, 5), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 206: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 207: refused: request 0 is preempted: cannot swap it in
    same(manager.begin_swap_in(&[0i64.into()]), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 208: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 209: refused: swap 1 is not under way: it was completed or aborted, or never begun
    same(manager.complete_swap(SwapId::from_number(1)), 0x1a3c0d27);
    manager.check_invariants().unwrap();
    // 210: []
    let mut plan = manager.plan_step();
    same(manager.commit_step(&mut plan), 0x50caa327);
    manager.check_invariants().unwrap();
    // 211: refused: this pool has no retention: make it with a retention configuration to retain blocks
    same(manager.retain(3i64, &[RetentionRange { start: 6, end: None, retention: Retention { keep: Keep::Demoted, ttl: Some(Ttl::Idle(5.0)), then: Then::Demote } }]), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 212: refused: this pool has no retention: make it with a retention configuration to retain blocks
    same(manager.retain(3i64, &[RetentionRange { start: 0, end: None, retention: Retention { keep: Keep::Demoted, ttl: None, then: Then::Normal } }]), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 213: refused: this pool has no retention: make it with a retention configuration to keep time
    same(manager.advance_time(14.0), 0x7674d45f);
    manager.check_invariants().unwrap();
    // 214: 0
    same(manager.complete_step(1), 0x50caa327);
    manager.check_invariants().unwrap();
    // 215: 1
    same(manager.bump_epoch(), 0xcc9804cd);
    manager.check_invariants().unwrap();
    // 216: 8 events
    same(manager.take_events().events.len(), 0x617d05ac);
    manager.check_invariants().unwrap();
    // 217: refused: no request has the id 1: admit it first
    same(manager.append_ragged(&Rows { requests: &[0i64.into(), 1i64.into(), 2i64.into()], tokens: &[0, 0, 0, 0, 0, 0, 0], offsets: &[0, 3, 6, 7], computed: Computed::Nothing, covered: Covered::Lookahead(3), most_changes: None }), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 218: []
    same(manager.append_ragged(&Rows { requests: &[], tokens: &[], offsets: &[0], computed: Computed::AllButLast, covered: Covered::Lookahead(3), most_changes: None }), 0x50caa327);
    manager.check_invariants().unwrap();
    // 219: refused: no request has the id 4: admit it first
    same(manager.extend(4i64, 2), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 220: refused: no request has the id 4: admit it first
    same(manager.external_done(4i64, Loaded::All), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 221: refused: no request has the id 4: admit it first
    same(manager.truncate_batch(&[4i64.into()], &[1], Until::Step(2)), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 222: refused: no request has the id 1: admit it first
    same(manager.release_batch(&[1i64.into()], Until::Now), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 223: refused: request 0 is preempted: cannot fork it
    same(manager.fork_batch(&[0i64.into()], &[2i64.into()]), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 224: 12
    same(manager.end_fence(kvpool::Ticket::new(0)), 0x004c2e49);
    manager.check_invariants().unwrap();
}

#[test]
fn journal() {
    let mut manager = CacheManager::new(ManagerConfig {
        num_blocks: 128,
        block_size: 2,
        duplicates: "keep".parse().unwrap(),
        eviction: kvpool_policies::by_name("lru").unwrap(),
        verify: "none".parse().unwrap(),
        algorithm: "sha256".parse().unwrap(),
        watermark: 0.0,
        host_blocks: 32,
        groups: { use kvpool::groups::{GroupKind, GroupSpec, Groups}; Groups::new(vec![GroupSpec { keep: kvpool::groups::Keep::All, margin: 0, ..GroupSpec::new(GroupKind::Full, 2) }, GroupSpec { keep: kvpool::groups::Keep::All, margin: 0, ..GroupSpec::new(GroupKind::State, 2) }, GroupSpec { keep: kvpool::groups::Keep::All, margin: 0, ..GroupSpec::new(GroupKind::Chunked { chunk: 5 }, 2) }, GroupSpec { keep: kvpool::groups::Keep::All, margin: 0, ..GroupSpec::new(GroupKind::Cross, 2) }, GroupSpec { keep: kvpool::groups::Keep::Every(6), margin: 0, ..GroupSpec::new(GroupKind::Sliding { window: 3 }, 4) }, GroupSpec { keep: kvpool::groups::Keep::All, margin: 0, sink_tokens: 3, ..GroupSpec::new(GroupKind::Sliding { window: 3 }, 2) }, GroupSpec { keep: kvpool::groups::Keep::Nothing, margin: 0, ..GroupSpec::new(GroupKind::Full, 2) }], Some(2)).ok() },
        ..ManagerConfig::default()
    })
    .and_then(|pool| pool.watched(&ManagerWatchConfig { event_capacity: 8, ..ManagerWatchConfig::default() })).unwrap();
    part_0(&mut manager);
}
