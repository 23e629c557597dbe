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
    // 0: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#1, #2, #3], other_tables: [], full_tokens: 0 }
    same(manager.admit_with(90i64, prompt(manager, &[1, 2], 1, 0), &AdmitOptions::default()).map_err(|refused| refused.error), 0x915b4580);
    manager.check_invariants().unwrap();
    // 1: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#4, #5, #6], other_tables: [], full_tokens: 0 }
    same(manager.admit_with(91i64, prompt(manager, &[1, 2], 1, 0), &AdmitOptions::default()).map_err(|refused| refused.error), 0x3f2dafd9);
    manager.check_invariants().unwrap();
    // 2: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#7, #8, #9], other_tables: [], full_tokens: 0 }
    same(manager.admit_with(92i64, prompt(manager, &[1, 2], 1, 0), &AdmitOptions::default()).map_err(|refused| refused.error), 0xb17be99b);
    manager.check_invariants().unwrap();
    // 3: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#10, #11, #12], other_tables: [], full_tokens: 0 }
    same(manager.admit_with(93i64, prompt(manager, &[1, 2], 1, 0), &AdmitOptions::default()).map_err(|refused| refused.error), 0x141e6389);
    manager.check_invariants().unwrap();
    // 4: [TableChange { index: 3, block: #13, group: 0 }, TableChange { index: 4, block: #14, group: 0 }]
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
    // 15: [Admitted(Admission { cached_tokens: 4, cached_blocks: 2, external_tokens: 0, block_ids: [#1, #2, #7], other_tables: [], full_tokens: 4 }), Admitted(Admissi
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
    // 20: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#3, #13, #4], other_tables: [], full_tokens: 0 }
    same(manager.admit_with("again", prompt(manager, &[1, 2], 1, 1), &AdmitOptions::default()).map_err(|refused| refused.error), 0xadaefee3);
    manager.check_invariants().unwrap();
    // 21: 2
    same(manager.commit("again", 5), 0xe88aa583);
    manager.check_invariants().unwrap();
    // 22: Admission { cached_tokens: 4, cached_blocks: 2, external_tokens: 0, block_ids: [#3, #13, #5], other_tables: [], full_tokens: 4 }
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
    // 32: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#3, #13, #4, #10, #11], other_tables: [], full_tokens: 0 }
    same(manager.admit_with(5i64, prompt(manager, &[9, 10, 11, 12], 1, 1), &AdmitOptions::default()).map_err(|refused| refused.error), 0x2f0efe2a);
    manager.check_invariants().unwrap();
    // 33: refused: ttl is a time to live: must be a clock: call advance_time(now) first
    same(manager.admit_with(1i64, prompt(manager, &[13, 14, 15], 0, 1), &AdmitOptions { part: Part::WHOLE, tenant: Some(TenantId(1)), no_cache: false, ranges: vec![RetentionRange { start: 6, end: None, retention: Retention { keep: Keep::Priority(Priority::new(35).unwrap()), ttl: Some(Ttl::Idle(5.0)), then: Then::Demote } }] }).map_err(|refused| refused.error), 0x706efb3a);
    manager.check_invariants().unwrap();
    // 34: refused: request 5 is known already: release it before admitting it again
    same(manager.admit_with(5i64, prompt(manager, &[16, 17, 18], 0, 1), &AdmitOptions { part: Part::WHOLE, tenant: None, no_cache: true, ranges: vec![RetentionRange { start: 0, end: None, retention: Retention { keep: Keep::Pinned, ttl: None, then: Then::Normal } }] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 35: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#12, #1, #2], other_tables: [], full_tokens: 0 }
    same(manager.admit_with(3i64, prompt(manager, &[16, 17, 18, 19, 20, 21, 22], 1, 1), &AdmitOptions { part: Part { allocate_tokens: Some(6), external_tokens: 0, compute_all: false }, tenant: None, no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0x8f7aa479);
    manager.check_invariants().unwrap();
    // 36: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 3, block_ids: [#7, #5, #6, #9], other_tables: [], full_tokens: 0 }
    same(manager.admit_with(0i64, prompt(manager, &[9, 23, 24, 25, 26, 27], 1, 1), &AdmitOptions { part: Part { allocate_tokens: Some(4), external_tokens: 3, compute_all: false }, tenant: None, no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0x87baa7f6);
    manager.check_invariants().unwrap();
    // 37: refused: request 5 is known already: release it before admitting it again
    same(manager.admit_with(5i64, prompt(manager, &[28, 29, 30], 0, 1), &AdmitOptions::default()).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 38: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#8, #14, #15, #16, #17], other_tables: [], full_tokens: 0 }
    same(manager.admit_with("\"\\4", prompt(manager, &[9, 23, 24, 31, 32], 0, 1), &AdmitOptions::default()).map_err(|refused| refused.error), 0x7c72469b);
    manager.check_invariants().unwrap();
    // 39: [NewBlock { row: 0, index: 3, block: #18, group: 0 }, NewBlock { row: 0, index: 4, block: #19, group: 0 }, NewBlock { row: 0, index: 5, block: #20, group: 0
    same(manager.append_ragged(&Rows { requests: &[3i64.into()], tokens: &[33], offsets: &[], computed: Computed::Nothing, covered: Covered::All, most_changes: None }), 0xa560dfb2);
    manager.check_invariants().unwrap();
    // 40: []
    same(manager.append_ragged(&Rows { requests: &[], tokens: &[], offsets: &[], computed: Computed::Nothing, covered: Covered::All, most_changes: None }), 0x50caa327);
    manager.check_invariants().unwrap();
    // 41: [NewBlock { row: 0, index: 8, block: #23, group: 0 }]
    same(manager.append_ragged(&Rows { requests: &[3i64.into(), 5i64.into()], tokens: &[0, 34], offsets: &[], computed: Computed::AllButLast, covered: Covered::All, most_changes: None }), 0x54a201bc);
    manager.check_invariants().unwrap();
    // 42: refused: no request has the id 4: admit it first
    same(manager.append_tokens(4i64, &[0, 0, 0, 0, 0, 0, 0, 0], 3), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 43: refused: request 5 has 10 tokens, blocks for 10, 9 computed: cannot set computed to 12
    same(manager.commit(5i64, 12), 0x95d0ab31);
    manager.check_invariants().unwrap();
    // 44: refused: no request has the id 1: admit it first
    same(manager.commit(1i64, 3), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 45: 0
    same(manager.commit(3i64, 17), 0x50caa327);
    manager.check_invariants().unwrap();
    // 46: refused: no request has the id 1: admit it first
    same(manager.commit_batch(&[1i64.into()], &[1]), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 47: ()
    same(manager.preempt(3i64, Until::Now), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 48: Admission { cached_tokens: 16, cached_blocks: 8, external_tokens: 0, block_ids: [#12, #1, #2, #18, #19, #20, #21, #22, #23], other_tables: [], full_tokens: 
    same(manager.resume_with(3i64, Part { allocate_tokens: None, external_tokens: 7, compute_all: false }), 0x4a62ad05);
    manager.check_invariants().unwrap();
    // 49: HintReport { accepted: 8, clipped: 0, ignored: 0 }
    same(manager.end_session(3i64, Until::Now), 0xd210a28c);
    manager.check_invariants().unwrap();
    // 50: refused: no request has the id 1: admit it first
    same(manager.end_session(1i64, Until::Now), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 51: refused: no request has the id 1: admit it first
    same(manager.fork(1i64, 2i64), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 52: ()
    same(manager.truncate(5i64, 1, Until::Now), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 53: refused: no request has the id 4: admit it first
    same(manager.trim_window(4i64, 4), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 54: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 55: refused: no request has the id 2: admit it first
    same(manager.begin_swap_out(&[2i64.into()]), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 56: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 57: refused: swap 4 is not under way: it was completed or aborted, or never begun
    same(manager.complete_swap(SwapId::from_number(4)), 0x1a3c0d27);
    manager.check_invariants().unwrap();
    // 58: []
    let mut plan = manager.plan_step();
    same(manager.commit_step(&mut plan), 0x50caa327);
    manager.check_invariants().unwrap();
    // 59: refused: no request has the id 1: admit it first
    same(manager.retain(1i64, &[RetentionRange { start: 8, end: None, retention: Retention { keep: Keep::Priority(Priority::new(35).unwrap()), ttl: Some(Ttl::Idle(4.0)), then: Then::Demote } }]), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 60: HintReport { accepted: 0, clipped: 0, ignored: 8 }
    same(manager.retain_prefix(&prompt(manager, &[9, 23, 24, 31, 32, 35, 36, 37], 1, 1), &[RetentionRange { start: 1, end: None, retention: Retention { keep: Keep::Demoted, ttl: None, then: Then::Normal } }]), 0xd40ee768);
    manager.check_invariants().unwrap();
    // 61: 0
    same(manager.advance_time(42.0), 0x50caa327);
    manager.check_invariants().unwrap();
    // 62: 0
    same(manager.complete_step(1), 0x50caa327);
    manager.check_invariants().unwrap();
    // 63: 2
    same(manager.bump_epoch(), 0xe88aa583);
    manager.check_invariants().unwrap();
    // 64: 5 events
    same(manager.take_events().events.len(), 0xcd6c219e);
    manager.check_invariants().unwrap();
    // 65: refused: no request has the id 4: admit it first
    same(manager.append_ragged(&Rows { requests: &[4i64.into(), 5i64.into()], tokens: &[], offsets: &[0, 0, 0], computed: Computed::AllButLast, covered: Covered::All, most_changes: None }), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 66: []
    same(manager.append_ragged(&Rows { requests: &[], tokens: &[], offsets: &[0], computed: Computed::AllButLast, covered: Covered::All, most_changes: None }), 0x50caa327);
    manager.check_invariants().unwrap();
    // 67: refused: no request has the id 2: admit it first
    same(manager.extend(2i64, 7), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 68: 0
    same(manager.external_done(0i64, Loaded::All), 0x50caa327);
    manager.check_invariants().unwrap();
    // 69: refused: no request has the id 2: admit it first
    same(manager.truncate_batch(&[2i64.into()], &[1], Until::Step(5)), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 70: ()
    same(manager.release_batch(&[], Until::Step(7)), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 71: refused: no request has the id 1: admit it first
    same(manager.fork_batch(&[1i64.into()], &[0i64.into()]), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 72: refused: ticket 1 is not open: it has ended already, or is of another pool (0 are open)
    same(manager.end_fence(kvpool::Ticket::new(1)), 0xa243eb80);
    manager.check_invariants().unwrap();
    // 73: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#13, #4, #10, #12, #1], other_tables: [], full_tokens: 0 }
    same(manager.admit_with(4i64, prompt(manager, &[38, 39, 40, 41, 42], 0, 2), &AdmitOptions::default()).map_err(|refused| refused.error), 0x80feb39d);
    manager.check_invariants().unwrap();
    // 74: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 8, block_ids: [#2, #18, #19, #20, #21], other_tables: [], full_tokens: 0 }
    same(manager.admit_with(2i64, prompt(manager, &[38, 39, 40, 43, 44], 0, 2), &AdmitOptions { part: Part { allocate_tokens: None, external_tokens: 8, compute_all: false }, tenant: None, no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0xfb2a2260);
    manager.check_invariants().unwrap();
    // 75: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#22], other_tables: [], full_tokens: 0 }
    same(manager.admit_with(1i64, prompt(manager, &[], 1, 2), &AdmitOptions { part: Part::WHOLE, tenant: Some(TenantId(1)), no_cache: false, ranges: vec![RetentionRange { start: 0, end: None, retention: Retention { keep: Keep::Priority(Priority::new(80).unwrap()), ttl: None, then: Then::Normal } }] }).map_err(|refused| refused.error), 0xfd47c055);
    manager.check_invariants().unwrap();
    // 76: refused: request 4 is known already: release it before admitting it again
    same(manager.admit_with(4i64, prompt(manager, &[38, 45], 1, 2), &AdmitOptions::default()).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 77: refused: request 2 is known already: release it before admitting it again
    same(manager.admit_with(2i64, prompt(manager, &[46, 47, 48, 49], 0, 2), &AdmitOptions { part: Part::WHOLE, tenant: None, no_cache: false, ranges: vec![RetentionRange { start: 3, end: None, retention: Retention { keep: Keep::Demoted, ttl: Some(Ttl::Idle(2.0)), then: Then::Demote } }] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 78: refused: request 0 is known already: release it before admitting it again
    same(manager.admit_with(0i64, prompt(manager, &[50, 51, 52, 53], 1, 2), &AdmitOptions { part: Part { allocate_tokens: Some(3), external_tokens: 0, compute_all: true }, tenant: Some(TenantId(1)), no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 79: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#11, #23, #24], other_tables: [], full_tokens: 0 }
    same(manager.admit_with("\u{202e}x3", prompt(manager, &[46, 47, 54], 0, 2), &AdmitOptions::default()).map_err(|refused| refused.error), 0xee35b106);
    manager.check_invariants().unwrap();
    // 80: refused: request 2 is loading: cannot append to it
    same(manager.append_ragged(&Rows { requests: &[2i64.into()], tokens: &[0], offsets: &[], computed: Computed::AllButLast, covered: Covered::All, most_changes: None }), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 81: refused: request 0 has 14 tokens, blocks for 8, 3 computed: cannot set computed to 13
    same(manager.append_ragged(&Rows { requests: &[5i64.into(), 0i64.into(), 1i64.into()], tokens: &[0, 0, 0], offsets: &[], computed: Computed::AllButLast, covered: Covered::All, most_changes: None }), 0x95d0ab31);
    manager.check_invariants().unwrap();
    // 82: refused: request 0 has 14 tokens, blocks for 8, 3 computed: cannot set computed to 13
    same(manager.append_ragged(&Rows { requests: &[0i64.into(), 1i64.into(), 4i64.into(), 5i64.into()], tokens: &[0, 0, 0, 0], offsets: &[], computed: Computed::AllButLast, covered: Covered::All, most_changes: None }), 0x95d0ab31);
    manager.check_invariants().unwrap();
    // 83: [TableChange { index: 1, block: #25, group: 0 }, TableChange { index: 2, block: #26, group: 0 }, TableChange { index: 3, block: #27, group: 0 }, TableChange
    same(manager.append_tokens(1i64, &[61, 0, 62, 0, 63, 0, 64, 0, 65], 2), 0x4fa7d593);
    manager.check_invariants().unwrap();
    // 84: refused: request 0 has 13 tokens, blocks for 8, 3 computed: cannot set computed to 15
    same(manager.commit(0i64, 15), 0x95d0ab31);
    manager.check_invariants().unwrap();
    // 85: refused: request 0 has 13 tokens, blocks for 8, 3 computed: cannot set computed to 13
    same(manager.commit(0i64, 13), 0x95d0ab31);
    manager.check_invariants().unwrap();
    // 86: 5
    same(manager.commit(4i64, 10), 0x1f1185a0);
    manager.check_invariants().unwrap();
    // 87: 0
    same(manager.commit_batch(&[5i64.into()], &[1]), 0x50caa327);
    manager.check_invariants().unwrap();
    // 88: ()
    same(manager.preempt(1i64, Until::Now), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 89: refused: no request has the id 3: admit it first
    same(manager.resume_with(3i64, Part { allocate_tokens: None, external_tokens: 0, compute_all: true }), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 90: refused: no request has the id 3: admit it first
    same(manager.release(3i64, Until::Step(5)), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 91: ()
    same(manager.release(0i64, Until::Now), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 92: refused: no request has the id 3: admit it first
    same(manager.fork(3i64, 5i64), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 93: refused: no request has the id 0: admit it first
    same(manager.truncate(0i64, 3, Until::Now), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 94: 0
    same(manager.trim_window(5i64, 5), 0x50caa327);
    manager.check_invariants().unwrap();
    // 95: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 96: refused: request 2 is loading: cannot swap it out
    same(manager.begin_swap_out(&[2i64.into(), 3i64.into()]), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 97: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 98: refused: swap 3 is not under way: it was completed or aborted, or never begun
    same(manager.complete_swap(SwapId::from_number(3)), 0x1a3c0d27);
    manager.check_invariants().unwrap();
    // 99: []
    let mut plan = manager.plan_step();
    same(manager.commit_step(&mut plan), 0x50caa327);
    manager.check_invariants().unwrap();
    // 100: refused: no request has the id 3: admit it first
    same(manager.retain(3i64, &[RetentionRange { start: 8, end: None, retention: Retention { keep: Keep::Priority(Priority::new(35).unwrap()), ttl: Some(Ttl::Idle(3.0)), then: Then::Demote } }]), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 101: refused: no request has the id 0: admit it first
    same(manager.set_tenant(0i64, TenantId(1)), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 102: refused: the time 17 is before 42, which was passed earlier: time does not go backwards
    same(manager.advance_time(17.0), 0xee1b8acc);
    manager.check_invariants().unwrap();
    // 103: 0
    same(manager.complete_step(2), 0x50caa327);
    manager.check_invariants().unwrap();
    // 104: 3
    same(manager.bump_epoch(), 0x27b54459);
    manager.check_invariants().unwrap();
    // 105: 6 events
    same(manager.take_events().events.len(), 0xc9de4644);
    manager.check_invariants().unwrap();
    // 106: refused: no request has the id 0: admit it first
    same(manager.append_ragged(&Rows { requests: &[0i64.into(), 1i64.into()], tokens: &[0], offsets: &[0, 1, 1], computed: Computed::Nothing, covered: Covered::Lookahead(3), most_changes: None }), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 107: refused: request 5 has 3 tokens, blocks for 2, 1 computed: cannot set computed to 3
    same(manager.append_ragged(&Rows { requests: &[5i64.into(), 0i64.into(), 1i64.into()], tokens: &[0, 0, 0], offsets: &[0, 2, 3, 3], computed: Computed::Counts(&[3, 3, 12]), covered: Covered::All, most_changes: Some(0) }), 0x95d0ab31);
    manager.check_invariants().unwrap();
    // 108: refused: request 2 is loading: cannot extend it
    same(manager.extend(2i64, 9), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 109: refused: request 5 is running: cannot end its load
    same(manager.external_done(5i64, Loaded::All), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 110: ()
    same(manager.truncate_batch(&[], &[], Until::Now), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 111: refused: no request has the id 0: admit it first
    same(manager.release_batch(&[0i64.into(), 1i64.into()], Until::Now), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 112: ()
    same(manager.fork_batch(&[], &[]), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 113: Ticket(0)
    same(manager.fence(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 114: refused: request 4 is known already: release it before admitting it again
    same(manager.admit_with(4i64, prompt(manager, &[67, 68, 69], 0, 3), &AdmitOptions { part: Part::WHOLE, tenant: Some(TenantId(1)), no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 115: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 3, block_ids: [#7, #5, #6, #9], other_tables: [], full_tokens: 0 }
    same(manager.admit_with(0i64, prompt(manager, &[38, 39, 40, 73], 0, 3), &AdmitOptions { part: Part { allocate_tokens: Some(4), external_tokens: 3, compute_all: false }, tenant: Some(TenantId(1)), no_cache: true, ranges: vec![] }).map_err(|refused| refused.error), 0x87baa7f6);
    manager.check_invariants().unwrap();
    // 116: refused: request 4 is known already: release it before admitting it again
    same(manager.admit_with(4i64, prompt(manager, &[67, 74, 75, 76], 0, 3), &AdmitOptions { part: Part::WHOLE, tenant: None, no_cache: false, ranges: vec![RetentionRange { start: 3, end: None, retention: Retention { keep: Keep::Priority(Priority::new(35).unwrap()), ttl: Some(Ttl::Absolute(4.0)), then: Then::Demote } }] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 117: refused: request 2 is known already: release it before admitting it again
    same(manager.admit_with(2i64, prompt(manager, &[77, 78, 79], 0, 3), &AdmitOptions { part: Part { allocate_tokens: None, external_tokens: 8, compute_all: false }, tenant: None, no_cache: false, ranges: vec![RetentionRange { start: 3, end: None, retention: Retention { keep: Keep::Pinned, ttl: None, then: Then::Normal } }] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 118: refused: request 1 is known already: release it before admitting it again
    same(manager.admit_with(1i64, prompt(manager, &[67, 68, 80, 81, 82, 83, 84], 1, 3), &AdmitOptions { part: Part { allocate_tokens: None, external_tokens: 7, compute_all: false }, tenant: Some(TenantId(1)), no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 119: refused: request 5 is known already: release it before admitting it again
    same(manager.admit_with(5i64, prompt(manager, &[77, 85], 1, 3), &AdmitOptions { part: Part { allocate_tokens: None, external_tokens: 0, compute_all: true }, tenant: None, no_cache: true, ranges: vec![] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 120: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#22, #25, #26, #27, #28, #29], other_tables: [], full_tokens: 0 }
    same(manager.admit_with("\u{1b}[31m1", prompt(manager, &[38, 86, 87, 88, 89], 1, 3), &AdmitOptions::default()).map_err(|refused| refused.error), 0x6c5b5fe5);
    manager.check_invariants().unwrap();
    // 121: [NewBlock { row: 0, index: 5, block: #30, group: 0 }]
    same(manager.append_ragged(&Rows { requests: &[4i64.into(), 5i64.into()], tokens: &[0, 9], offsets: &[], computed: Computed::AllButLast, covered: Covered::All, most_changes: None }), 0xbbddc35c);
    manager.check_invariants().unwrap();
    // 122: refused: request 0 is loading: cannot append to it
    same(manager.append_ragged(&Rows { requests: &[5i64.into(), 0i64.into()], tokens: &[0, 0], offsets: &[], computed: Computed::Nothing, covered: Covered::All, most_changes: None }), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 123: [NewBlock { row: 1, index: 1, block: #31, group: 0 }]
    same(manager.append_ragged(&Rows { requests: &[4i64.into(), 5i64.into()], tokens: &[90, 0], offsets: &[], computed: Computed::AllButLast, covered: Covered::All, most_changes: None }), 0xd0fc491b);
    manager.check_invariants().unwrap();
    // 124: refused: request 0 is loading: cannot append to it
    same(manager.append_tokens(0i64, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 2), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 125: refused: request 5 has 3 tokens, blocks for 3, 2 computed: cannot set computed to 10
    same(manager.commit(5i64, 10), 0x95d0ab31);
    manager.check_invariants().unwrap();
    // 126: 0
    same(manager.commit(5i64, 3), 0x50caa327);
    manager.check_invariants().unwrap();
    // 127: refused: request 2 is loading: cannot commit tokens of it
    same(manager.commit(2i64, 10), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 128: 0
    same(manager.commit_batch(&[], &[]), 0x50caa327);
    manager.check_invariants().unwrap();
    // 129: ()
    same(manager.preempt(5i64, Until::Now), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 130: refused: request 2 is loading: cannot resume it
    same(manager.resume_with(2i64, Part::WHOLE), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 131: ()
    same(manager.release(0i64, Until::Step(8)), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 132: refused: ticket 6 is not open: it has ended already, or is of another pool (1 are open)
    same(manager.release(4i64, Until::Ticket(kvpool::Ticket::new(6))), 0xa243eb80);
    manager.check_invariants().unwrap();
    // 133: refused: request 1 is preempted: cannot fork it
    same(manager.fork(1i64, 4i64), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 134: refused: no request has the id 3: admit it first
    same(manager.truncate(3i64, 4, Until::Now), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 135: refused: request 5 is preempted: cannot trim it
    same(manager.trim_window(5i64, 6), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 136: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 137: refused: request 1 is preempted: cannot swap it out
    same(manager.begin_swap_out(&[1i64.into()]), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 138: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 139: refused: swap 2 is not under way: it was completed or aborted, or never begun
    same(manager.abort_swap(SwapId::from_number(2)), 0x1a3c0d27);
    manager.check_invariants().unwrap();
    // 140: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 141: 0
    same(manager.complete_step(0), 0x50caa327);
    manager.check_invariants().unwrap();
    // 142: refused: the manager has changed since this step was begun: begin a new one
    let mut plan = manager.plan_step();
    // It changes nothing, but the plan is stale now.
    manager.drop_cached(&[]).unwrap();
    same(manager.commit_step(&mut plan), 0x0a350b6b);
    manager.check_invariants().unwrap();
    // 143: HintReport { accepted: 0, clipped: 0, ignored: 0 }
    same(manager.retain(1i64, &[RetentionRange { start: 8, end: None, retention: Retention { keep: Keep::Pinned, ttl: Some(Ttl::Idle(4.0)), then: Then::Normal } }]), 0x532a9d3d);
    manager.check_invariants().unwrap();
    // 144: ()
    same(manager.set_tenant(2i64, TenantId(2)), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 145: refused: the time 9 is before 42, which was passed earlier: time does not go backwards
    same(manager.advance_time(9.0), 0xee1b8acc);
    manager.check_invariants().unwrap();
    // 146: 0
    same(manager.complete_step(4), 0x50caa327);
    manager.check_invariants().unwrap();
    // 147: 4
    same(manager.bump_epoch(), 0x83f1241f);
    manager.check_invariants().unwrap();
    // 148: 1 events
    same(manager.take_events().events.len(), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 149: []
    same(manager.append_ragged(&Rows { requests: &[1i64.into()], tokens: &[0, 96], offsets: &[0, 2], computed: Computed::AllButLast, covered: Covered::Each(&[11]), most_changes: None }), 0x50caa327);
    manager.check_invariants().unwrap();
    // 150: []
    same(manager.append_ragged(&Rows { requests: &[], tokens: &[], offsets: &[0], computed: Computed::Nothing, covered: Covered::Lookahead(3), most_changes: None }), 0x50caa327);
    manager.check_invariants().unwrap();
    // 151: refused: request 0 is releasing: cannot extend it
    same(manager.extend(0i64, 5), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 152: refused: request 1 is preempted: cannot end its load
    same(manager.external_done(1i64, Loaded::All), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 153: ()
    same(manager.truncate_batch(&[], &[], Until::Step(5)), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 154: ()
    same(manager.release_batch(&[5i64.into()], Until::Now), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 155: ()
    same(manager.fork_batch(&[], &[]), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 156: refused: ticket 6 is not open: it has ended already, or is of another pool (1 are open)
    same(manager.end_fence(kvpool::Ticket::new(6)), 0xa243eb80);
    manager.check_invariants().unwrap();
    // 157: refused: request 2 is known already: release it before admitting it again
    same(manager.admit_with(2i64, prompt(manager, &[97, 98, 99, 100, 101], 0, 4), &AdmitOptions { part: Part::WHOLE, tenant: Some(TenantId(1)), no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 158: refused: request 2 is known already: release it before admitting it again
    same(manager.admit_with(2i64, prompt(manager, &[97, 98, 99, 100, 102, 103, 104], 1, 4), &AdmitOptions { part: Part { allocate_tokens: None, external_tokens: 5, compute_all: true }, tenant: None, no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 159: refused: request 4 is known already: release it before admitting it again
    same(manager.admit_with(4i64, prompt(manager, &[105, 106, 107, 108, 109], 0, 4), &AdmitOptions { part: Part::WHOLE, tenant: Some(TenantId(1)), no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 160: refused: request 4 is known already: release it before admitting it again
    same(manager.admit_with(4i64, prompt(manager, &[110, 111, 112, 113, 114, 115], 0, 99), &AdmitOptions { part: Part::WHOLE, tenant: None, no_cache: false, ranges: vec![RetentionRange { start: 0, end: None, retention: Retention { keep: Keep::Priority(Priority::new(35).unwrap()), ttl: Some(Ttl::Idle(2.0)), then: Then::Demote } }] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 161: refused: request 0 is known already: release it before admitting it again
    same(manager.admit_with(0i64, prompt(manager, &[116, 117, 118, 119, 120, 121, 122, 123, 124], 1, 4), &AdmitOptions { part: Part { allocate_tokens: Some(6), external_tokens: 0, compute_all: false }, tenant: None, no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 162: refused: request 2 is known already: release it before admitting it again
    same(manager.admit_with(2i64, prompt(manager, &[125, 126, 127, 128, 129], 0, 99), &AdmitOptions::default()).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 163: refused: request "\"\\4" is known already: release it before admitting it again
    same(manager.admit_with("\"\\4", prompt(manager, &[130, 131, 132, 133], 0, 4), &AdmitOptions::default()).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 164: refused: no request has the id 3: admit it first
    same(manager.append_ragged(&Rows { requests: &[3i64.into(), 4i64.into()], tokens: &[0, 0], offsets: &[], computed: Computed::AllButLast, covered: Covered::All, most_changes: None }), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 165: refused: no request has the id 5: admit it first
    same(manager.append_ragged(&Rows { requests: &[4i64.into(), 5i64.into()], tokens: &[0, 0], offsets: &[], computed: Computed::AllButLast, covered: Covered::All, most_changes: None }), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 166: [NewBlock { row: 0, index: 6, block: #3, group: 0 }]
    same(manager.append_ragged(&Rows { requests: &[4i64.into()], tokens: &[0], offsets: &[], computed: Computed::AllButLast, covered: Covered::All, most_changes: None }), 0x83878084);
    manager.check_invariants().unwrap();
    // 167: refused: no request has the id 3: admit it first
    same(manager.append_tokens(3i64, &[0], 0), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 168: refused: no request has the id 3: admit it first
    same(manager.commit(3i64, 0), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 169: 0
    same(manager.commit(4i64, 13), 0x50caa327);
    manager.check_invariants().unwrap();
    // 170: refused: no request has the id 5: admit it first
    same(manager.commit(5i64, 3), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 171: refused: request 2 is loading: cannot commit tokens of it
    same(manager.commit_batch(&[2i64.into(), 3i64.into()], &[10, 1]), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 172: refused: request 0 is releasing: cannot preempt it
    same(manager.preempt(0i64, Until::Step(5)), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 173: refused: no request has the id 3: admit it first
    same(manager.resume_with(3i64, Part::WHOLE), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 174: refused: no request has the id 5: admit it first
    same(manager.end_session(5i64, Until::Now), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 175: refused: request 0 is releasing: cannot release it once more
    same(manager.release(0i64, Until::Step(6)), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 176: refused: no request has the id 3: admit it first
    same(manager.fork(3i64, 2i64), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 177: refused: no request has the id 3: admit it first
    same(manager.truncate(3i64, 13, Until::Now), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 178: refused: request 1 is preempted: cannot trim it
    same(manager.trim_window(1i64, 5), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 179: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 180: refused: request 2 is loading: cannot swap it in
    same(manager.begin_swap_in(&[2i64.into(), 3i64.into()]), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 181: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 182: refused: swap 1 is not under way: it was completed or aborted, or never begun
    same(manager.complete_swap(SwapId::from_number(1)), 0x1a3c0d27);
    manager.check_invariants().unwrap();
    // 183: [Released]
    let mut plan = manager.plan_step();
    let _ = manager.plan_release(&mut plan, 2i64, Until::Now);
    same(manager.commit_step(&mut plan), 0xe7f3daa8);
    manager.check_invariants().unwrap();
    // 184: HintReport { accepted: 0, clipped: 0, ignored: 2 }
    same(manager.retain(4i64, &[RetentionRange { start: 7, end: None, retention: Retention { keep: Keep::Priority(Priority::new(80).unwrap()), ttl: Some(Ttl::Absolute(1.0)), then: Then::Normal } }]), 0xaaaa5b8e);
    manager.check_invariants().unwrap();
    // 185: HintReport { accepted: 0, clipped: 0, ignored: 2 }
    same(manager.retain_prefix(&prompt(manager, &[105, 106, 107, 134, 135], 1, 4), &[RetentionRange { start: 6, end: None, retention: Retention { keep: Keep::Pinned, ttl: Some(Ttl::Idle(4.0)), then: Then::Normal } }]), 0xaaaa5b8e);
    manager.check_invariants().unwrap();
    // 186: refused: the time 32 is before 42, which was passed earlier: time does not go backwards
    same(manager.advance_time(32.0), 0xee1b8acc);
    manager.check_invariants().unwrap();
    // 187: 0
    same(manager.complete_step(6), 0x50caa327);
    manager.check_invariants().unwrap();
    // 188: 5
    same(manager.bump_epoch(), 0x1f1185a0);
    manager.check_invariants().unwrap();
    // 189: 1 events
    same(manager.take_events().events.len(), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 190: []
    same(manager.append_ragged(&Rows { requests: &[1i64.into()], tokens: &[0, 136, 0], offsets: &[0, 3], computed: Computed::AllButLast, covered: Covered::Each(&[13]), most_changes: None }), 0x50caa327);
    manager.check_invariants().unwrap();
    // 191: refused: no request has the id 5: admit it first
    same(manager.append_ragged(&Rows { requests: &[4i64.into(), 5i64.into(), 0i64.into()], tokens: &[0, 0, 0, 0, 0], offsets: &[0, 2, 3, 5], computed: Computed::AllButLast, covered: Covered::All, most_changes: None }), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 192: refused: no request has the id 5: admit it first
    same(manager.extend(5i64, 10), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 193: 0
    same(manager.external_done(0i64, Loaded::All), 0x50caa327);
    manager.check_invariants().unwrap();
    // 194: ()
    same(manager.truncate_batch(&[], &[], Until::Step(13)), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 195: refused: ticket 2 is not open: it has ended already, or is of another pool (1 are open)
    same(manager.release_batch(&[5i64.into()], Until::Ticket(kvpool::Ticket::new(2))), 0xa243eb80);
    manager.check_invariants().unwrap();
    // 196: refused: request 1 is preempted: cannot fork it
    same(manager.fork_batch(&[1i64.into(), 2i64.into()], &[3i64.into(), 4i64.into()]), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 197: refused: ticket 7 is not open: it has ended already, or is of another pool (1 are open)
    same(manager.end_fence(kvpool::Ticket::new(7)), 0xa243eb80);
    manager.check_invariants().unwrap();
    // 198: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#31, #32], other_tables: [], full_tokens: 0 }
    same(manager.admit_with(3i64, prompt(manager, &[139, 140, 141, 142], 0, 5), &AdmitOptions { part: Part { allocate_tokens: Some(3), external_tokens: 0, compute_all: false }, tenant: None, no_cache: false, ranges: vec![RetentionRange { start: 3, end: None, retention: Retention { keep: Keep::Priority(Priority::new(80).unwrap()), ttl: Some(Ttl::Absolute(4.0)), then: Then::Normal } }] }).map_err(|refused| refused.error), 0xa976c52d);
    manager.check_invariants().unwrap();
    // 199: refused: request 2 is known already: release it before admitting it again
    same(manager.admit_with(2i64, prompt(manager, &[143], 0, 5), &AdmitOptions::default()).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 200: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 2, block_ids: [#33, #34, #35, #36, #37, #38, #39, #40], other_tables: [], full_tokens: 0 }
    same(manager.admit_with(5i64, prompt(manager, &[143, 144, 145, 146, 147, 148, 149], 1, 5), &AdmitOptions { part: Part { allocate_tokens: None, external_tokens: 2, compute_all: true }, tenant: None, no_cache: false, ranges: vec![RetentionRange { start: 0, end: None, retention: Retention { keep: Keep::Demoted, ttl: None, then: Then::Demote } }] }).map_err(|refused| refused.error), 0x07d655f1);
    manager.check_invariants().unwrap();
    // 201: refused: request 4 is known already: release it before admitting it again
    same(manager.admit_with(4i64, prompt(manager, &[143, 144, 145, 146, 150], 0, 5), &AdmitOptions { part: Part::WHOLE, tenant: Some(TenantId(1)), no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 202: refused: request 3 is known already: release it before admitting it again
    same(manager.admit_with(3i64, prompt(manager, &[143, 144, 151, 152, 153], 1, 5), &AdmitOptions { part: Part { allocate_tokens: Some(3), external_tokens: 0, compute_all: true }, tenant: None, no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 203: refused: request 3 is known already: release it before admitting it again
    same(manager.admit_with(3i64, prompt(manager, &[154, 155, 156, 157, 158, 159, 160], 0, 5), &AdmitOptions { part: Part { allocate_tokens: Some(4), external_tokens: 0, compute_all: false }, tenant: None, no_cache: false, ranges: vec![RetentionRange { start: 3, end: None, retention: Retention { keep: Keep::Demoted, ttl: Some(Ttl::Idle(5.0)), then: Then::Demote } }] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 204: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#41, #42, #43, #44, #45, #46, #47], other_tables: [], full_tokens: 0 }
    same(manager.admit_with("\u{1f600}5", prompt(manager, &[143, 144, 145, 146, 161, 162], 1, 5), &AdmitOptions::default()).map_err(|refused| refused.error), 0xf7f7b657);
    manager.check_invariants().unwrap();
    // 205: []
    same(manager.append_ragged(&Rows { requests: &[], tokens: &[], offsets: &[], computed: Computed::Nothing, covered: Covered::All, most_changes: None }), 0x50caa327);
    manager.check_invariants().unwrap();
    // 206: refused: request 2 is releasing: cannot append to it
    same(manager.append_ragged(&Rows { requests: &[2i64.into(), 3i64.into()], tokens: &[0, 0], offsets: &[], computed: Computed::Nothing, covered: Covered::All, most_changes: None }), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 207: refused: request 3 has 9 tokens, blocks for 4, 0 computed: cannot set computed to 8
    same(manager.append_ragged(&Rows { requests: &[3i64.into(), 4i64.into()], tokens: &[0, 0], offsets: &[], computed: Computed::AllButLast, covered: Covered::All, most_changes: None }), 0x95d0ab31);
    manager.check_invariants().unwrap();
    // 208: []
    same(manager.append_tokens(1i64, &[164, 0, 165, 0, 166, 0, 167, 0, 168, 0, 169, 0, 170], 2), 0x50caa327);
    manager.check_invariants().unwrap();
    // 209: refused: request 5 is loading: cannot commit tokens of it
    same(manager.commit(5i64, 3), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 210: refused: request 1 is preempted: cannot commit tokens of it
    same(manager.commit(1i64, 28), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 211: 0
    same(manager.commit(4i64, 13), 0x50caa327);
    manager.check_invariants().unwrap();
    // 212: refused: no request has the id 0: admit it first
    same(manager.commit_batch(&[0i64.into()], &[1]), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 213: refused: request 1 is preempted: cannot preempt it
    same(manager.preempt(1i64, Until::Now), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 214: refused: request 3 is running: cannot resume it
    same(manager.resume_with(3i64, Part { allocate_tokens: Some(0), external_tokens: 3, compute_all: false }), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 215: ()
    same(manager.release(1i64, Until::Now), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 216: refused: ticket 2 is not open: it has ended already, or is of another pool (1 are open)
    same(manager.release(3i64, Until::Ticket(kvpool::Ticket::new(2))), 0xa243eb80);
    manager.check_invariants().unwrap();
    // 217: refused: request 5 is loading: cannot fork it
    same(manager.fork(5i64, 5i64), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 218: refused: no request has the id 0: admit it first
    same(manager.truncate(0i64, 11, Until::Now), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 219: 6
    same(manager.trim_window(4i64, 1), 0xbb143b6c);
    manager.check_invariants().unwrap();
    // 220: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 221: refused: request 5 is loading: cannot swap it in
    same(manager.begin_swap_in(&[5i64.into()]), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 222: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 223: refused: swap 1 is not under way: it was completed or aborted, or never begun
    same(manager.complete_swap(SwapId::from_number(1)), 0x1a3c0d27);
    manager.check_invariants().unwrap();
    // 224: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 225: 0
    same(manager.complete_step(0), 0x50caa327);
    manager.check_invariants().unwrap();
    // 226: refused: the manager has changed since this step was begun: begin a new one
    let mut plan = manager.plan_step();
    // It changes nothing, but the plan is stale now.
    manager.drop_cached(&[]).unwrap();
    same(manager.commit_step(&mut plan), 0x0a350b6b);
    manager.check_invariants().unwrap();
    // 227: HintReport { accepted: 0, clipped: 0, ignored: 0 }
    same(manager.retain(2i64, &[RetentionRange { start: 0, end: None, retention: Retention { keep: Keep::Priority(Priority::new(35).unwrap()), ttl: Some(Ttl::Absolute(4.0)), then: Then::Demote } }]), 0x532a9d3d);
    manager.check_invariants().unwrap();
    // 228: HintReport { accepted: 0, clipped: 0, ignored: 2 }
    same(manager.retain_prefix(&prompt(manager, &[139, 171, 172, 173], 0, 5), &[RetentionRange { start: 4, end: None, retention: Retention { keep: Keep::Demoted, ttl: None, then: Then::Normal } }]), 0xaaaa5b8e);
    manager.check_invariants().unwrap();
    // 229: refused: the time 29 is before 42, which was passed earlier: time does not go backwards
    same(manager.advance_time(29.0), 0xee1b8acc);
    manager.check_invariants().unwrap();
    // 230: 0
    same(manager.complete_step(7), 0x50caa327);
    manager.check_invariants().unwrap();
    // 231: refused: 37 blocks are active and 4 fenced: release them first, or bump the epoch, which always succeeds
    same(manager.reset(), 0xde9294cb);
    manager.check_invariants().unwrap();
    // 232: 0 events
    same(manager.take_events().events.len(), 0x00000000);
    manager.check_invariants().unwrap();
    // 233: refused: request 2 is releasing: cannot append to it
    same(manager.append_ragged(&Rows { requests: &[2i64.into()], tokens: &[], offsets: &[0, 0], computed: Computed::Counts(&[12]), covered: Covered::Lookahead(3), most_changes: None }), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 234: refused: request 2 is releasing: cannot append to it
    same(manager.append_ragged(&Rows { requests: &[2i64.into(), 3i64.into()], tokens: &[0, 0, 0, 0, 0, 0], offsets: &[0, 3, 6], computed: Computed::Counts(&[12, 10]), covered: Covered::Lookahead(3), most_changes: None }), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 235: [TableChange { index: 2, block: #13, group: 0 }, TableChange { index: 3, block: #4, group: 0 }, TableChange { index: 4, block: #10, group: 0 }, TableChange
    same(manager.extend(3i64, 12), 0x26ae9e4c);
    manager.check_invariants().unwrap();
    // 236: refused: no request has the id 0: admit it first
    same(manager.external_done(0i64, Loaded::First(7)), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 237: refused: no request has the id 1: admit it first
    same(manager.truncate_batch(&[1i64.into(), 2i64.into()], &[1, 10], Until::Now), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 238: refused: ticket 5 is not open: it has ended already, or is of another pool (1 are open)
    same(manager.release_batch_with(&[], Until::Ticket(kvpool::Ticket::new(5))), 0xa243eb80);
    manager.check_invariants().unwrap();
    // 239: refused: no request has the id 1: admit it first
    same(manager.fork_batch(&[1i64.into()], &[4i64.into()]), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 240: refused: ticket 4 is not open: it has ended already, or is of another pool (1 are open)
    same(manager.end_fence(kvpool::Ticket::new(4)), 0xa243eb80);
    manager.check_invariants().unwrap();
    // 241: refused: request 2 is known already: release it before admitting it again
    same(manager.admit_with(2i64, prompt(manager, &[139, 176, 177, 178, 179], 1, 5), &AdmitOptions { part: Part::WHOLE, tenant: None, no_cache: false, ranges: vec![RetentionRange { start: 0, end: None, retention: Retention { keep: Keep::Pinned, ttl: Some(Ttl::Idle(2.0)), then: Then::Normal } }] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 242: refused: request 2 is known already: release it before admitting it again
    same(manager.admit_with(2i64, prompt(manager, &[154, 155, 156, 180, 181, 182], 1, 5), &AdmitOptions::default()).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 243: refused: request 2 is known already: release it before admitting it again
    same(manager.admit_with(2i64, prompt(manager, &[183, 184, 185, 186, 187, 188], 0, 5), &AdmitOptions::default()).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 244: refused: request 2 is known already: release it before admitting it again
    same(manager.admit_with(2i64, prompt(manager, &[154, 189], 0, 5), &AdmitOptions::default()).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 245: refused: request 5 is known already: release it before admitting it again
    same(manager.admit_with(5i64, prompt(manager, &[143], 0, 5), &AdmitOptions { part: Part { allocate_tokens: None, external_tokens: 0, compute_all: true }, tenant: None, no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 246: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#1, #30, #48], other_tables: [], full_tokens: 0 }
    same(manager.admit_with(0i64, prompt(manager, &[143, 144, 145, 146, 190, 191, 192, 193], 1, 5), &AdmitOptions { part: Part { allocate_tokens: Some(6), external_tokens: 0, compute_all: false }, tenant: None, no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0xb5cbbb8f);
    manager.check_invariants().unwrap();
    // 247: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#49, #50, #51, #52, #53, #54], other_tables: [], full_tokens: 0 }
    same(manager.admit_with("a\u{301}2", prompt(manager, &[143, 144, 151, 194, 195, 196], 0, 5), &AdmitOptions::default()).map_err(|refused| refused.error), 0x5183c8ff);
    manager.check_invariants().unwrap();
    // 248: refused: request 5 is loading: cannot append to it
    same(manager.append_ragged(&Rows { requests: &[5i64.into(), 0i64.into(), 1i64.into()], tokens: &[0, 0, 0], offsets: &[], computed: Computed::Nothing, covered: Covered::All, most_changes: None }), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 249: []
    same(manager.append_ragged(&Rows { requests: &[], tokens: &[], offsets: &[], computed: Computed::AllButLast, covered: Covered::All, most_changes: None }), 0x50caa327);
    manager.check_invariants().unwrap();
}

fn part_1(manager: &mut CacheManager) {
    // 250: refused: request 0 has 18 tokens, blocks for 6, 0 computed: cannot set computed to 17
    same(manager.append_ragged(&Rows { requests: &[0i64.into(), 3i64.into(), 4i64.into()], tokens: &[0, 0, 0], offsets: &[], computed: Computed::AllButLast, covered: Covered::All, most_changes: None }), 0x95d0ab31);
    manager.check_invariants().unwrap();
    // 251: refused: out of blocks: 12 needed, 10 available, 2 missing; 4 more are fenced until their step completes
    same(manager.append_tokens(0i64, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 3), 0x90b583d7);
    manager.check_invariants().unwrap();
    // 252: refused: request 4 has 13 tokens, blocks for 13, 13 computed: cannot set computed to 8
    same(manager.commit(4i64, 8), 0x95d0ab31);
    manager.check_invariants().unwrap();
    // 253: refused: no request has the id 1: admit it first
    same(manager.commit(1i64, 3), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 254: refused: request 5 is loading: cannot commit tokens of it
    same(manager.commit(5i64, 15), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 255: 0
    same(manager.commit_batch(&[], &[]), 0x50caa327);
    manager.check_invariants().unwrap();
    // 256: refused: request 5 is loading: cannot preempt it
    same(manager.preempt(5i64, Until::Now), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 257: refused: request 0 is running: cannot resume it
    same(manager.resume_with(0i64, Part { allocate_tokens: Some(0), external_tokens: 0, compute_all: false }), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 258: HintReport { accepted: 0, clipped: 0, ignored: 0 }
    same(manager.end_session(3i64, Until::Step(7)), 0x532a9d3d);
    manager.check_invariants().unwrap();
    // 259: ()
    same(manager.release(4i64, Until::Ticket(kvpool::Ticket::new(0))), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 260: ()
    same(manager.fork(0i64, 4i64), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 261: refused: no request has the id 3: admit it first
    same(manager.truncate(3i64, 10, Until::Now), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 262: refused: request 2 is releasing: cannot trim it
    same(manager.trim_window(2i64, 3), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 263: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 264: refused: request 4 is running: cannot swap it in
    same(manager.begin_swap_in(&[4i64.into(), 5i64.into()]), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 265: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 266: refused: swap 4 is not under way: it was completed or aborted, or never begun
    same(manager.abort_swap(SwapId::from_number(4)), 0x1a3c0d27);
    manager.check_invariants().unwrap();
    // 267: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 268: 0
    same(manager.complete_step(0), 0x50caa327);
    manager.check_invariants().unwrap();
    // 269: refused: the manager has changed since this step was begun: begin a new one
    let mut plan = manager.plan_step();
    // It changes nothing, but the plan is stale now.
    manager.drop_cached(&[]).unwrap();
    same(manager.commit_step(&mut plan), 0x0a350b6b);
    manager.check_invariants().unwrap();
    // 270: HintReport { accepted: 0, clipped: 0, ignored: 0 }
    same(manager.retain(2i64, &[RetentionRange { start: 7, end: None, retention: Retention { keep: Keep::Priority(Priority::new(80).unwrap()), ttl: Some(Ttl::Absolute(1.0)), then: Then::Normal } }]), 0x532a9d3d);
    manager.check_invariants().unwrap();
    // 271: refused: no request has the id 3: admit it first
    same(manager.set_tenant(3i64, TenantId(0)), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 272: refused: the time 7 is before 42, which was passed earlier: time does not go backwards
    same(manager.advance_time(7.0), 0xee1b8acc);
    manager.check_invariants().unwrap();
    // 273: 4
    same(manager.complete_step(9), 0x83f1241f);
    manager.check_invariants().unwrap();
    // 274: 0
    same(manager.drop_cached(&ids(&[20, 5])), 0x50caa327);
    manager.check_invariants().unwrap();
    // 275: 0 events
    same(manager.take_events().events.len(), 0x00000000);
    manager.check_invariants().unwrap();
    // 276: refused: no request has the id 1: admit it first
    same(manager.append_ragged(&Rows { requests: &[0i64.into(), 1i64.into()], tokens: &[0, 0, 0], offsets: &[0, 2, 3], computed: Computed::Nothing, covered: Covered::Each(&[17, 1]), most_changes: None }), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 277: refused: request 4 has 19 tokens, blocks for 6, 0 computed: cannot set computed to 18
    same(manager.append_ragged(&Rows { requests: &[4i64.into(), 5i64.into(), 0i64.into()], tokens: &[0, 0, 0, 0, 0, 0], offsets: &[0, 2, 5, 6], computed: Computed::AllButLast, covered: Covered::All, most_changes: None }), 0x95d0ab31);
    manager.check_invariants().unwrap();
    // 278: refused: no request has the id 3: admit it first
    same(manager.extend(3i64, 13), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 279: 1
    same(manager.external_done(5i64, Loaded::AllBut(&[2..5])), 0xcc9804cd);
    manager.check_invariants().unwrap();
    // 280: refused: request 2 is releasing: cannot truncate it
    same(manager.truncate_batch(&[2i64.into()], &[9], Until::Step(14)), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 281: refused: no request has the id 3: admit it first
    same(manager.release_batch_with(&[(3i64.into(), kvpool::Signal { finish: kvpool::Finish::ToolCalls, output_tokens: Some(4433257) })], Until::Now), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 282: ()
    same(manager.fork_batch(&[], &[]), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 283: refused: ticket 2 is not open: it has ended already, or is of another pool (1 are open)
    same(manager.end_fence(kvpool::Ticket::new(2)), 0xa243eb80);
    manager.check_invariants().unwrap();
    // 284: refused: request 4 is known already: release it before admitting it again
    same(manager.admit_with(4i64, prompt(manager, &[110, 111, 112, 113, 114, 211, 212, 213], 1, 99), &AdmitOptions::default()).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 285: refused: request 2 is known already: release it before admitting it again
    same(manager.admit_with(2i64, prompt(manager, &[143, 144, 145, 146, 214, 215], 0, 5), &AdmitOptions { part: Part::WHOLE, tenant: Some(TenantId(1)), no_cache: true, ranges: vec![] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 286: refused: request 2 is known already: release it before admitting it again
    same(manager.admit_with(2i64, prompt(manager, &[139, 140, 141, 216, 217, 218, 219], 0, 5), &AdmitOptions::default()).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 287: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [], other_tables: [], full_tokens: 0 }
    same(manager.admit_with(3i64, prompt(manager, &[139, 140, 141, 216, 220], 1, 5), &AdmitOptions { part: Part { allocate_tokens: Some(0), external_tokens: 0, compute_all: false }, tenant: None, no_cache: false, ranges: vec![RetentionRange { start: 3, end: None, retention: Retention { keep: Keep::Priority(Priority::new(80).unwrap()), ttl: Some(Ttl::Absolute(1.0)), then: Then::Normal } }] }).map_err(|refused| refused.error), 0x73d424ca);
    manager.check_invariants().unwrap();
    // 288: refused: request 0 is known already: release it before admitting it again
    same(manager.admit_with(0i64, prompt(manager, &[221, 222, 223, 224, 225, 226, 227, 228], 1, 99), &AdmitOptions { part: Part { allocate_tokens: Some(3), external_tokens: 0, compute_all: false }, tenant: None, no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 289: refused: request 5 is known already: release it before admitting it again
    same(manager.admit_with(5i64, prompt(manager, &[143, 144, 145, 146, 150, 229, 230], 0, 5), &AdmitOptions { part: Part::WHOLE, tenant: Some(TenantId(1)), no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 290: refused: request "\u{1f600}5" is known already: release it before admitting it again
    same(manager.admit_with("\u{1f600}5", prompt(manager, &[143, 144, 145, 146, 190, 231], 1, 5), &AdmitOptions::default()).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 291: refused: request 0 has 18 tokens, blocks for 6, 0 computed: cannot set computed to 17
    same(manager.append_ragged(&Rows { requests: &[0i64.into(), 1i64.into(), 2i64.into()], tokens: &[0, 0, 0], offsets: &[], computed: Computed::AllButLast, covered: Covered::All, most_changes: None }), 0x95d0ab31);
    manager.check_invariants().unwrap();
    // 292: []
    same(manager.append_ragged(&Rows { requests: &[], tokens: &[], offsets: &[], computed: Computed::AllButLast, covered: Covered::All, most_changes: None }), 0x50caa327);
    manager.check_invariants().unwrap();
    // 293: refused: request 0 has 18 tokens, blocks for 6, 0 computed: cannot set computed to 17
    same(manager.append_ragged(&Rows { requests: &[0i64.into(), 3i64.into(), 4i64.into(), 5i64.into()], tokens: &[0, 0, 0, 0], offsets: &[], computed: Computed::AllButLast, covered: Covered::All, most_changes: None }), 0x95d0ab31);
    manager.check_invariants().unwrap();
    // 294: [TableChange { index: 3, block: #7, group: 0 }, TableChange { index: 4, block: #5, group: 0 }, TableChange { index: 5, block: #6, group: 0 }, TableChange {
    same(manager.append_tokens(4i64, &[237, 0, 238], 4), 0x14bd4c86);
    manager.check_invariants().unwrap();
    // 295: 4
    same(manager.commit(4i64, 8), 0x83f1241f);
    manager.check_invariants().unwrap();
    // 296: refused: request 2 is releasing: cannot commit tokens of it
    same(manager.commit(2i64, 10), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 297: 6
    same(manager.commit(5i64, 15), 0xbb143b6c);
    manager.check_invariants().unwrap();
    // 298: 0
    same(manager.commit_batch(&[], &[]), 0x50caa327);
    manager.check_invariants().unwrap();
    // 299: ()
    same(manager.preempt(0i64, Until::Now), 0x9c2fa0b5);
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
