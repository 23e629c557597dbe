//! A journal as a test: made by `kvpool journal export`.
#![cfg_attr(rustfmt, rustfmt_skip)]
#![allow(clippy::allow_attributes, clippy::unit_arg, clippy::unwrap_used, unused, reason = "made by a program")]

use std::sync::Arc;

use kvpool_journal::{Check, Outcome};
use kvpool::retention::{Keep, Priority, Retention, RetentionConfig, TenantId, TenantLimits, Then, Ttl};
use kvpool::{
    BlockHasher, BlockId, CacheManager, ExtraKeys, HashCursor, HasherConfig, ManagerConfig, RequestHints, RetentionRange,
    SwapId, Verify,
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
    // 0: Admission { cached_tokens: 0, cached_blocks: 0, block_ids: [#1, #2, #3] }
    same(manager.admit_with(90i64, prompt(manager, &[1, 2], 1, 0), &RequestHints::default()).map_err(|refused| refused.error), 0x9043ab4d);
    manager.check_invariants().unwrap();
    // 1: Admission { cached_tokens: 0, cached_blocks: 0, block_ids: [#4, #5, #6] }
    same(manager.admit_with(91i64, prompt(manager, &[1, 2], 1, 0), &RequestHints::default()).map_err(|refused| refused.error), 0x4d2f69e1);
    manager.check_invariants().unwrap();
    // 2: Admission { cached_tokens: 0, cached_blocks: 0, block_ids: [#7, #8, #9] }
    same(manager.admit_with(92i64, prompt(manager, &[1, 2], 1, 0), &RequestHints::default()).map_err(|refused| refused.error), 0x9c458c95);
    manager.check_invariants().unwrap();
    // 3: Admission { cached_tokens: 0, cached_blocks: 0, block_ids: [#10, #11, #12] }
    same(manager.admit_with(93i64, prompt(manager, &[1, 2], 1, 0), &RequestHints::default()).map_err(|refused| refused.error), 0xe2fcb50b);
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
    same(manager.preempt(92i64, None), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 14: ()
    same(manager.fork(93i64, "fork"), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 15: [Admitted(Admission { cached_tokens: 4, cached_blocks: 2, block_ids: [#1, #2, #7] }), Admitted(Admission { cached_tokens: 4, cached_blocks: 2, block_ids: [#
    let mut plan = manager.plan_step();
    let _ = manager.plan_admit_with(&mut plan, 95i64, prompt(manager, &[1, 2], 1, 0), &RequestHints::default());
    let _ = manager.plan_resume(&mut plan, 92i64);
    let _ = manager.plan_append(&mut plan, 91i64, &[5, 0, 6]);
    let _ = manager.plan_preempt(&mut plan, 93i64, None);
    let _ = manager.plan_release(&mut plan, 90i64, Some(3));
    same(manager.commit_step(&mut plan), 0xbb16ffd2);
    manager.check_invariants().unwrap();
    // 16: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 17: 2
    same(manager.complete_step(3), 0xe88aa583);
    manager.check_invariants().unwrap();
    // 18: ()
    same(manager.preempt(92i64, None), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 19: 1
    same(manager.bump_epoch(), 0xcc9804cd);
    manager.check_invariants().unwrap();
    // 20: Admission { cached_tokens: 0, cached_blocks: 0, block_ids: [#3, #13, #4] }
    same(manager.admit_with("again", prompt(manager, &[1, 2], 1, 1), &RequestHints::default()).map_err(|refused| refused.error), 0xd54753d6);
    manager.check_invariants().unwrap();
    // 21: 2
    same(manager.commit("again", 5), 0xe88aa583);
    manager.check_invariants().unwrap();
    // 22: Admission { cached_tokens: 4, cached_blocks: 2, block_ids: [#3, #13, #5] }
    same(manager.resume(92i64), 0x6777c418);
    manager.check_invariants().unwrap();
    // 23: HintReport { accepted: 0, clipped: 0, ignored: 0 }
    same(manager.release_with(91i64, None, false), 0x532a9d3d);
    manager.check_invariants().unwrap();
    // 24: HintReport { accepted: 0, clipped: 0, ignored: 0 }
    same(manager.release_with(92i64, None, false), 0x532a9d3d);
    manager.check_invariants().unwrap();
    // 25: HintReport { accepted: 0, clipped: 0, ignored: 0 }
    same(manager.release_with(93i64, None, false), 0x532a9d3d);
    manager.check_invariants().unwrap();
    // 26: HintReport { accepted: 0, clipped: 0, ignored: 0 }
    same(manager.release_with(95i64, None, false), 0x532a9d3d);
    manager.check_invariants().unwrap();
    // 27: HintReport { accepted: 0, clipped: 0, ignored: 0 }
    same(manager.release_with("fork", None, false), 0x532a9d3d);
    manager.check_invariants().unwrap();
    // 28: HintReport { accepted: 0, clipped: 0, ignored: 0 }
    same(manager.release_with("again", None, false), 0x532a9d3d);
    manager.check_invariants().unwrap();
    // 29: 2
    same(manager.reset(), 0xe88aa583);
    manager.check_invariants().unwrap();
    // 30: refused: ttl is a time to live: must be a clock: call advance_time(now) first
    same(manager.admit_with(4i64, prompt(manager, &[9, 10, 11, 12], 0, 99), &RequestHints { tenant: Some(TenantId(1)), no_cache: false, ranges: vec![RetentionRange { start: 6, end: None, retention: Retention { keep: Keep::Priority(Priority::new(35).unwrap()), ttl: Some(Ttl::Absolute(0.0)), then: Then::Demote } }] }).map_err(|refused| refused.error), 0x706efb3a);
    manager.check_invariants().unwrap();
    // 31: Admission { cached_tokens: 0, cached_blocks: 0, block_ids: [#3, #13, #4, #10, #11] }
    same(manager.admit_with(2i64, prompt(manager, &[13, 14, 15, 16], 1, 1), &RequestHints::default()).map_err(|refused| refused.error), 0xf3a2aaff);
    manager.check_invariants().unwrap();
    // 32: Admission { cached_tokens: 0, cached_blocks: 0, block_ids: [#12, #1, #2, #7, #5, #6, #9] }
    same(manager.admit_with(5i64, prompt(manager, &[17, 18, 19, 20, 21, 22, 23], 0, 1), &RequestHints::default()).map_err(|refused| refused.error), 0x98bccdc3);
    manager.check_invariants().unwrap();
    // 33: refused: the hash chain belongs to epoch 99, the pool is in epoch 1: hash the tokens again
    same(manager.admit_with(0i64, prompt(manager, &[24, 25, 26, 27, 28, 29], 0, 99), &RequestHints::default()).map_err(|refused| refused.error), 0x32911419);
    manager.check_invariants().unwrap();
    // 34: refused: request 5 is known already: release it before admitting it again
    same(manager.admit_with(5i64, prompt(manager, &[13, 14, 30, 31], 1, 1), &RequestHints { tenant: Some(TenantId(1)), no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 35: Admission { cached_tokens: 0, cached_blocks: 0, block_ids: [#8, #14, #15, #16] }
    same(manager.admit_with(3i64, prompt(manager, &[17, 18, 19, 20], 0, 1), &RequestHints { tenant: Some(TenantId(1)), no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0x4caea2c5);
    manager.check_invariants().unwrap();
    // 36: Admission { cached_tokens: 0, cached_blocks: 0, block_ids: [#17, #18, #19, #20, #21, #22] }
    same(manager.admit_with("\"\\4", prompt(manager, &[17, 18, 19, 20, 32], 1, 1), &RequestHints::default()).map_err(|refused| refused.error), 0xed693997);
    manager.check_invariants().unwrap();
    // 37: refused: no request has the id 4: admit it first
    same(manager.append(&[3i64.into(), 4i64.into(), 5i64.into()], &[0, 0, 0], true), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 38: []
    same(manager.append(&[], &[], false), 0x50caa327);
    manager.check_invariants().unwrap();
    // 39: [NewBlock { row: 1, index: 4, block: #23 }, NewBlock { row: 2, index: 7, block: #24 }]
    same(manager.append(&[2i64.into(), 3i64.into(), 5i64.into()], &[33, 0, 0], true), 0x061c6c41);
    manager.check_invariants().unwrap();
    // 40: refused: no request has the id 0: admit it first
    same(manager.append_tokens(0i64, &[0, 0, 0, 0, 0, 0], 1), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 41: refused: request 5 has 15 tokens, 14 of them computed: cannot set computed to 2
    same(manager.commit(5i64, 2), 0x95d0ab31);
    manager.check_invariants().unwrap();
    // 42: 1
    same(manager.commit(2i64, 10), 0xcc9804cd);
    manager.check_invariants().unwrap();
    // 43: refused: no request has the id 1: admit it first
    same(manager.commit(1i64, 3), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 44: 0
    same(manager.commit_batch(&[], &[]), 0x50caa327);
    manager.check_invariants().unwrap();
    // 45: ()
    same(manager.preempt(3i64, None), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 46: Admission { cached_tokens: 8, cached_blocks: 4, block_ids: [#8, #14, #15, #16, #23] }
    same(manager.resume(3i64), 0x05bed858);
    manager.check_invariants().unwrap();
    // 47: HintReport { accepted: 0, clipped: 0, ignored: 0 }
    same(manager.release_with(2i64, None, false), 0x532a9d3d);
    manager.check_invariants().unwrap();
    // 48: HintReport { accepted: 0, clipped: 0, ignored: 0 }
    same(manager.release_with(5i64, Some(6), false), 0x532a9d3d);
    manager.check_invariants().unwrap();
    // 49: refused: no request has the id 4: admit it first
    same(manager.fork(4i64, 2i64), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 50: refused: no request has the id 1: admit it first
    same(manager.truncate(1i64, 1), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 51: refused: no request has the id 5: admit it first
    same(manager.trim_window(5i64, 4), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 52: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 53: refused: no request has the id 5: admit it first
    same(manager.begin_swap_out(&[5i64.into()]), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 54: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 55: refused: swap 2 is not under way: it was completed or aborted, or never begun
    same(manager.complete_swap(SwapId::from_number(2)), 0x1a3c0d27);
    manager.check_invariants().unwrap();
    // 56: []
    let mut plan = manager.plan_step();
    same(manager.commit_step(&mut plan), 0x50caa327);
    manager.check_invariants().unwrap();
    // 57: refused: ttl is a time to live: must be a clock: call advance_time(now) first
    same(manager.retain(3i64, &[RetentionRange { start: 2, end: None, retention: Retention { keep: Keep::Demoted, ttl: Some(Ttl::Absolute(2.0)), then: Then::Demote } }]), 0x706efb3a);
    manager.check_invariants().unwrap();
    // 58: HintReport { accepted: 2, clipped: 0, ignored: 6 }
    same(manager.retain_prefix(&prompt(manager, &[13, 14, 15, 34, 35, 36, 37, 38, 39], 0, 1), &[RetentionRange { start: 2, end: None, retention: Retention { keep: Keep::Demoted, ttl: None, then: Then::Normal } }]), 0x9079d3b7);
    manager.check_invariants().unwrap();
    // 59: 0
    same(manager.advance_time(17.0), 0x50caa327);
    manager.check_invariants().unwrap();
    // 60: 0
    same(manager.complete_step(0), 0x50caa327);
    manager.check_invariants().unwrap();
    // 61: 2
    same(manager.bump_epoch(), 0xe88aa583);
    manager.check_invariants().unwrap();
    // 62: 5 events
    same(manager.take_events().events.len(), 0xcd6c219e);
    manager.check_invariants().unwrap();
    // 63: refused: the hash chain belongs to epoch 99, the pool is in epoch 2: hash the tokens again
    same(manager.admit_with(1i64, prompt(manager, &[40, 41], 0, 99), &RequestHints { tenant: None, no_cache: false, ranges: vec![RetentionRange { start: 3, end: None, retention: Retention { keep: Keep::Pinned, ttl: Some(Ttl::Absolute(2.0)), then: Then::Normal } }] }).map_err(|refused| refused.error), 0x32911419);
    manager.check_invariants().unwrap();
    // 64: refused: request 3 is known already: release it before admitting it again
    same(manager.admit_with(3i64, prompt(manager, &[42, 43, 44, 45, 46, 47], 0, 2), &RequestHints { tenant: None, no_cache: false, ranges: vec![RetentionRange { start: 6, end: None, retention: Retention { keep: Keep::Pinned, ttl: None, then: Then::Normal } }] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 65: Admission { cached_tokens: 0, cached_blocks: 0, block_ids: [#3, #13, #4, #10, #11, #25] }
    same(manager.admit_with(1i64, prompt(manager, &[42, 43, 44, 48, 49, 50], 0, 2), &RequestHints::default()).map_err(|refused| refused.error), 0x77b9d551);
    manager.check_invariants().unwrap();
    // 66: refused: request 1 is known already: release it before admitting it again
    same(manager.admit_with(1i64, prompt(manager, &[17, 18, 19, 54, 55], 0, 2), &RequestHints::default()).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 67: Admission { cached_tokens: 0, cached_blocks: 0, block_ids: [#26, #27, #28, #29] }
    same(manager.admit_with(2i64, prompt(manager, &[42, 43, 44], 1, 2), &RequestHints { tenant: None, no_cache: true, ranges: vec![] }).map_err(|refused| refused.error), 0xdaae4ad2);
    manager.check_invariants().unwrap();
    // 68: refused: request 3 is known already: release it before admitting it again
    same(manager.admit_with(3i64, prompt(manager, &[42, 43, 44, 45, 56, 57, 58, 59], 1, 2), &RequestHints::default()).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 69: Admission { cached_tokens: 0, cached_blocks: 0, block_ids: [#30, #31, #32] }
    same(manager.admit_with("\u{202e}x3", prompt(manager, &[42, 43, 44], 0, 2), &RequestHints::default()).map_err(|refused| refused.error), 0x581edeee);
    manager.check_invariants().unwrap();
    // 70: [NewBlock { row: 0, index: 6, block: #33 }]
    same(manager.append(&[1i64.into(), 2i64.into()], &[0, 60], true), 0xad6fd583);
    manager.check_invariants().unwrap();
    // 71: []
    same(manager.append(&[3i64.into()], &[21], false), 0x50caa327);
    manager.check_invariants().unwrap();
    // 72: [NewBlock { row: 1, index: 4, block: #34 }, NewBlock { row: 2, index: 5, block: #35 }]
    same(manager.append(&[1i64.into(), 2i64.into(), 3i64.into()], &[61, 0, 0], true), 0x5da81f7f);
    manager.check_invariants().unwrap();
    // 73: refused: no request has the id 5: admit it first
    same(manager.append_tokens(5i64, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 0), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 74: refused: no request has the id 4: admit it first
    same(manager.commit(4i64, 9), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 75: 0
    same(manager.commit(2i64, 9), 0x50caa327);
    manager.check_invariants().unwrap();
    // 76: refused: no request has the id 0: admit it first
    same(manager.commit(0i64, 3), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 77: refused: no request has the id 4: admit it first
    same(manager.commit_batch(&[4i64.into()], &[1]), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 78: ()
    same(manager.preempt(2i64, Some(1)), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 79: refused: request 3 is running: cannot resume it
    same(manager.resume(3i64), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 80: refused: no request has the id 5: admit it first
    same(manager.release_with(5i64, None, true), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 81: refused: no request has the id 4: admit it first
    same(manager.release_with(4i64, None, false), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 82: refused: request 2 is preempted: cannot fork it
    same(manager.fork(2i64, 4i64), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 83: ()
    same(manager.truncate(3i64, 10), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 84: 6
    same(manager.trim_window(1i64, 1), 0xbb143b6c);
    manager.check_invariants().unwrap();
    // 85: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 86: refused: request 2 is preempted: cannot swap it out
    same(manager.begin_swap_out(&[1i64.into(), 2i64.into()]), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 87: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 88: refused: swap 3 is not under way: it was completed or aborted, or never begun
    same(manager.complete_swap(SwapId::from_number(3)), 0x1a3c0d27);
    manager.check_invariants().unwrap();
    // 89: [Released, Preempted]
    let mut plan = manager.plan_step();
    let _ = manager.plan_release(&mut plan, 1i64, None);
    let _ = manager.plan_preempt(&mut plan, 3i64, None);
    same(manager.commit_step(&mut plan), 0x2fc8afa1);
    manager.check_invariants().unwrap();
    // 90: refused: no request has the id 1: admit it first
    same(manager.retain(1i64, &[RetentionRange { start: 3, end: None, retention: Retention { keep: Keep::Demoted, ttl: None, then: Then::Demote } }]), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 91: HintReport { accepted: 0, clipped: 0, ignored: 0 }
    same(manager.retain(2i64, &[RetentionRange { start: 1, end: None, retention: Retention { keep: Keep::Demoted, ttl: None, then: Then::Normal } }]), 0x532a9d3d);
    manager.check_invariants().unwrap();
    // 92: 0
    same(manager.advance_time(36.0), 0x50caa327);
    manager.check_invariants().unwrap();
    // 93: 0
    same(manager.complete_step(2), 0x50caa327);
    manager.check_invariants().unwrap();
    // 94: refused: 9 blocks are active and 8 fenced: release them first, or bump the epoch, which always succeeds
    same(manager.reset(), 0xde9294cb);
    manager.check_invariants().unwrap();
    // 95: 7 events
    same(manager.take_events().events.len(), 0x2511a610);
    manager.check_invariants().unwrap();
    // 96: Admission { cached_tokens: 0, cached_blocks: 0, block_ids: [#8, #14, #15, #16, #23, #33, #35] }
    same(manager.admit_with(5i64, prompt(manager, &[62, 63, 64, 65, 66, 67], 1, 2), &RequestHints::default()).map_err(|refused| refused.error), 0xaadf1b56);
    manager.check_invariants().unwrap();
    // 97: refused: request 2 is known already: release it before admitting it again
    same(manager.admit_with(2i64, prompt(manager, &[42, 43, 44, 48], 0, 2), &RequestHints::default()).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 98: Admission { cached_tokens: 0, cached_blocks: 0, block_ids: [#34, #36, #37, #38, #39] }
    same(manager.admit_with(0i64, prompt(manager, &[17, 18, 19, 68], 1, 2), &RequestHints::default()).map_err(|refused| refused.error), 0x0d5f16da);
    manager.check_invariants().unwrap();
    // 99: refused: request 0 is known already: release it before admitting it again
    same(manager.admit_with(0i64, prompt(manager, &[62], 1, 2), &RequestHints::default()).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 100: refused: request 2 is known already: release it before admitting it again
    same(manager.admit_with(2i64, prompt(manager, &[24, 25, 26, 69], 0, 99), &RequestHints::default()).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 101: refused: request 0 is known already: release it before admitting it again
    same(manager.admit_with(0i64, prompt(manager, &[42, 43, 44], 1, 2), &RequestHints { tenant: None, no_cache: false, ranges: vec![RetentionRange { start: 0, end: None, retention: Retention { keep: Keep::Pinned, ttl: Some(Ttl::Absolute(1.0)), then: Then::Normal } }] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 102: Admission { cached_tokens: 2, cached_blocks: 1, block_ids: [#3, #40, #41] }
    same(manager.admit_with("a\u{301}2", prompt(manager, &[42, 70], 1, 2), &RequestHints::default()).map_err(|refused| refused.error), 0xbca0918a);
    manager.check_invariants().unwrap();
    // 103: refused: request 3 is preempted: cannot append to it
    same(manager.append(&[3i64.into(), 4i64.into()], &[0, 0], true), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 104: []
    same(manager.append(&[], &[], true), 0x50caa327);
    manager.check_invariants().unwrap();
    // 105: []
    same(manager.append(&[0i64.into(), 5i64.into()], &[71, 72], true), 0x50caa327);
    manager.check_invariants().unwrap();
    // 106: refused: no request has the id 4: admit it first
    same(manager.append_tokens(4i64, &[0, 0, 0, 0, 0, 0, 0, 0, 0], 0), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 107: refused: no request has the id 1: admit it first
    same(manager.commit(1i64, 11), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 108: refused: no request has the id 4: admit it first
    same(manager.commit(4i64, 3), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 109: refused: request 3 is preempted: cannot commit tokens of it
    same(manager.commit(3i64, 10), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 110: refused: no request has the id 1: admit it first
    same(manager.commit_batch(&[0i64.into(), 1i64.into()], &[10, 1]), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 111: refused: request 3 is preempted: cannot preempt it
    same(manager.preempt(3i64, None), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 112: refused: request 0 is running: cannot resume it
    same(manager.resume(0i64), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 113: HintReport { accepted: 0, clipped: 0, ignored: 0 }
    same(manager.release_with(0i64, None, false), 0x532a9d3d);
    manager.check_invariants().unwrap();
    // 114: HintReport { accepted: 0, clipped: 0, ignored: 0 }
    same(manager.release_with(3i64, None, true), 0x532a9d3d);
    manager.check_invariants().unwrap();
    // 115: refused: no request has the id 4: admit it first
    same(manager.fork(4i64, 3i64), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 116: refused: no request has the id 3: admit it first
    same(manager.truncate(3i64, 11), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 117: refused: no request has the id 4: admit it first
    same(manager.trim_window(4i64, 6), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 118: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 119: refused: no request has the id 1: admit it first
    same(manager.begin_swap_in(&[1i64.into(), 2i64.into()]), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 120: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 121: refused: swap 4 is not under way: it was completed or aborted, or never begun
    same(manager.abort_swap(SwapId::from_number(4)), 0x1a3c0d27);
    manager.check_invariants().unwrap();
    // 122: [Released]
    let mut plan = manager.plan_step();
    let _ = manager.plan_release(&mut plan, 5i64, None);
    same(manager.commit_step(&mut plan), 0xe7f3daa8);
    manager.check_invariants().unwrap();
    // 123: refused: no request has the id 1: admit it first
    same(manager.retain(1i64, &[RetentionRange { start: 0, end: None, retention: Retention { keep: Keep::Pinned, ttl: Some(Ttl::Absolute(3.0)), then: Then::Normal } }]), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 124: HintReport { accepted: 2, clipped: 0, ignored: 1 }
    same(manager.retain_prefix(&prompt(manager, &[17, 18, 19, 73], 1, 2), &[RetentionRange { start: 3, end: None, retention: Retention { keep: Keep::Priority(Priority::new(35).unwrap()), ttl: Some(Ttl::Idle(3.0)), then: Then::Demote } }]), 0x64615e55);
    manager.check_invariants().unwrap();
    // 125: refused: the time 21 is before 36, which was passed earlier: time does not go backwards
    same(manager.advance_time(21.0), 0xee1b8acc);
    manager.check_invariants().unwrap();
    // 126: 0
    same(manager.complete_step(2), 0x50caa327);
    manager.check_invariants().unwrap();
    // 127: ()
    same(manager.resize(65), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 128: 2 events
    same(manager.take_events().events.len(), 0x185f416b);
    manager.check_invariants().unwrap();
    // 129: Admission { cached_tokens: 6, cached_blocks: 3, block_ids: [#34, #36, #37, #35, #39, #42, #43] }
    same(manager.admit_with(4i64, prompt(manager, &[17, 18, 19, 20, 21, 74], 1, 2), &RequestHints::default()).map_err(|refused| refused.error), 0xe19df662);
    manager.check_invariants().unwrap();
    // 130: refused: request 2 is known already: release it before admitting it again
    same(manager.admit_with(2i64, prompt(manager, &[40, 75, 76, 77, 78], 0, 99), &RequestHints::default()).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 131: refused: request 2 is known already: release it before admitting it again
    same(manager.admit_with(2i64, prompt(manager, &[17, 18, 19, 68], 1, 2), &RequestHints::default()).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 132: Admission { cached_tokens: 4, cached_blocks: 2, block_ids: [#34, #36, #44, #45, #46] }
    same(manager.admit_with(3i64, prompt(manager, &[17, 18, 79, 80], 1, 2), &RequestHints { tenant: Some(TenantId(1)), no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0xdce035ad);
    manager.check_invariants().unwrap();
    // 133: Admission { cached_tokens: 0, cached_blocks: 0, block_ids: [#47, #48] }
    same(manager.admit_with(0i64, prompt(manager, &[81], 1, 2), &RequestHints::default()).map_err(|refused| refused.error), 0x7f5f9ca8);
    manager.check_invariants().unwrap();
    // 134: Admission { cached_tokens: 2, cached_blocks: 1, block_ids: [#3, #49, #50, #51, #52, #53] }
    same(manager.admit_with(5i64, prompt(manager, &[42, 70, 82, 83, 84], 1, 2), &RequestHints { tenant: None, no_cache: false, ranges: vec![RetentionRange { start: 0, end: None, retention: Retention { keep: Keep::Pinned, ttl: Some(Ttl::Idle(0.0)), then: Then::Normal } }] }).map_err(|refused| refused.error), 0x0b44d605);
    manager.check_invariants().unwrap();
    // 135: refused: request "\"\\4" is known already: release it before admitting it again
    same(manager.admit_with("\"\\4", prompt(manager, &[17, 18, 19, 20, 85, 86, 87], 0, 2), &RequestHints::default()).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 136: refused: no request has the id 1: admit it first
    same(manager.append(&[5i64.into(), 0i64.into(), 1i64.into()], &[0, 0, 0], false), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 137: []
    same(manager.append(&[], &[], true), 0x50caa327);
    manager.check_invariants().unwrap();
    // 138: []
    same(manager.append(&[0i64.into(), 3i64.into(), 4i64.into(), 5i64.into()], &[90, 91, 92, 93], true), 0x50caa327);
    manager.check_invariants().unwrap();
    // 139: [TableChange { index: 6, block: #54 }, TableChange { index: 7, block: #55 }, TableChange { index: 8, block: #56 }, TableChange { index: 9, block: #57 }, Ta
    same(manager.append_tokens(5i64, &[0, 94, 0, 95, 0, 96, 0, 97, 0, 98, 0], 4), 0x10c705f8);
    manager.check_invariants().unwrap();
    // 140: 0
    same(manager.commit(0i64, 3), 0x50caa327);
    manager.check_invariants().unwrap();
    // 141: refused: no request has the id 1: admit it first
    same(manager.commit(1i64, 3), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 142: 6
    same(manager.commit(5i64, 23), 0xbb143b6c);
    manager.check_invariants().unwrap();
    // 143: 0
    same(manager.commit_batch(&[], &[]), 0x50caa327);
    manager.check_invariants().unwrap();
    // 144: refused: no request has the id 1: admit it first
    same(manager.preempt(1i64, Some(6)), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 145: refused: no request has the id 1: admit it first
    same(manager.resume(1i64), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 146: HintReport { accepted: 0, clipped: 0, ignored: 0 }
    same(manager.release_with(2i64, None, false), 0x532a9d3d);
    manager.check_invariants().unwrap();
    // 147: refused: no request has the id 2: admit it first
    same(manager.release_with(2i64, Some(2), false), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 148: ()
    same(manager.fork(0i64, 1i64), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 149: ()
    same(manager.truncate(4i64, 10), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 150: 4
    same(manager.trim_window(3i64, 0), 0x83f1241f);
    manager.check_invariants().unwrap();
    // 151: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 152: SwapId(2)
    same(manager.begin_swap_out(&[0i64.into()]), 0xe88aa583);
    manager.check_invariants().unwrap();
    // 153: TransferPlan { transfers: [Transfer { src: Place { tier: 0, block: #47 }, dst: Place { tier: 1, block: #1 } }, Transfer { src: Place { tier: 0, block: #48 
    same(manager.take_plan(), 0xad77d4a8);
    manager.check_invariants().unwrap();
    // 154: refused: swap 5 is not under way: it was completed or aborted, or never begun
    same(manager.abort_swap(SwapId::from_number(5)), 0x1a3c0d27);
    manager.check_invariants().unwrap();
    // 155: [Released]
    let mut plan = manager.plan_step();
    let _ = manager.plan_release(&mut plan, 4i64, None);
    same(manager.commit_step(&mut plan), 0xe7f3daa8);
    manager.check_invariants().unwrap();
    // 156: refused: no request has the id 2: admit it first
    same(manager.retain(2i64, &[RetentionRange { start: 6, end: None, retention: Retention { keep: Keep::Demoted, ttl: Some(Ttl::Absolute(4.0)), then: Then::Demote } }]), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 157: refused: no request has the id 2: admit it first
    same(manager.retain(2i64, &[RetentionRange { start: 1, end: None, retention: Retention { keep: Keep::Demoted, ttl: None, then: Then::Normal } }]), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 158: refused: the time 1 is before 36, which was passed earlier: time does not go backwards
    same(manager.advance_time(1.0), 0xee1b8acc);
    manager.check_invariants().unwrap();
    // 159: 0
    same(manager.complete_step(3), 0x50caa327);
    manager.check_invariants().unwrap();
    // 160: refused: 28 blocks are active and 8 fenced: release them first, or bump the epoch, which always succeeds
    same(manager.reset(), 0xde9294cb);
    manager.check_invariants().unwrap();
    // 161: 8 events
    same(manager.take_events().events.len(), 0x617d05ac);
    manager.check_invariants().unwrap();
    // 162: refused: request 3 is known already: release it before admitting it again
    same(manager.admit_with(3i64, prompt(manager, &[62, 63, 64, 65], 0, 2), &RequestHints::default()).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 163: refused: request 0 is known already: release it before admitting it again
    same(manager.admit_with(0i64, prompt(manager, &[17, 18, 19, 68], 0, 2), &RequestHints::default()).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 164: refused: request 3 is known already: release it before admitting it again
    same(manager.admit_with(3i64, prompt(manager, &[17, 18, 99, 100], 0, 2), &RequestHints { tenant: Some(TenantId(1)), no_cache: true, ranges: vec![] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 165: refused: request 3 is known already: release it before admitting it again
    same(manager.admit_with(3i64, prompt(manager, &[101, 102, 103, 104], 0, 2), &RequestHints { tenant: Some(TenantId(1)), no_cache: false, ranges: vec![RetentionRange { start: 6, end: None, retention: Retention { keep: Keep::Demoted, ttl: Some(Ttl::Idle(2.0)), then: Then::Demote } }] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 166: Admission { cached_tokens: 4, cached_blocks: 2, block_ids: [#34, #36, #43] }
    same(manager.admit_with(2i64, prompt(manager, &[17, 18, 105], 0, 2), &RequestHints { tenant: None, no_cache: false, ranges: vec![RetentionRange { start: 3, end: None, retention: Retention { keep: Keep::Demoted, ttl: None, then: Then::Demote } }] }).map_err(|refused| refused.error), 0x1f20c3ef);
    manager.check_invariants().unwrap();
    // 167: refused: request 1 is known already: release it before admitting it again
    same(manager.admit_with(1i64, prompt(manager, &[17, 18, 99, 100, 106], 1, 2), &RequestHints { tenant: Some(TenantId(1)), no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 168: Admission { cached_tokens: 8, cached_blocks: 4, block_ids: [#3, #13, #4, #10, #62] }
    same(manager.admit_with("\u{1b}[31m1", prompt(manager, &[42, 43, 44, 48], 1, 2), &RequestHints::default()).map_err(|refused| refused.error), 0x5b37d322);
    manager.check_invariants().unwrap();
    // 169: [NewBlock { row: 0, index: 2, block: #63 }, NewBlock { row: 1, index: 3, block: #64 }, NewBlock { row: 2, index: 5, block: #29 }]
    same(manager.append(&[1i64.into(), 2i64.into(), 3i64.into()], &[0, 0, 0], false), 0x6ed0ffe7);
    manager.check_invariants().unwrap();
    // 170: refused: no request has the id 4: admit it first
    same(manager.append(&[4i64.into(), 5i64.into()], &[0, 0], true), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 171: []
    same(manager.append(&[1i64.into(), 2i64.into(), 3i64.into(), 5i64.into()], &[108, 109, 110, 111], true), 0x50caa327);
    manager.check_invariants().unwrap();
    // 172: [TableChange { index: 14, block: #28 }, TableChange { index: 15, block: #27 }, TableChange { index: 16, block: #26 }, TableChange { index: 17, block: #25 }
    same(manager.append_tokens(5i64, &[0, 112, 0, 113, 0, 114, 0, 115, 0, 116, 0, 117, 0, 118], 2), 0x4a8ea9c1);
    manager.check_invariants().unwrap();
    // 173: refused: request 1 has 6 tokens, 5 of them computed: cannot set computed to 4
    same(manager.commit(1i64, 4), 0x95d0ab31);
    manager.check_invariants().unwrap();
    // 174: refused: no request has the id 4: admit it first
    same(manager.commit(4i64, 3), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 175: refused: no request has the id 4: admit it first
    same(manager.commit(4i64, 3), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 176: 0
    same(manager.commit_batch(&[], &[]), 0x50caa327);
    manager.check_invariants().unwrap();
    // 177: ()
    same(manager.preempt(3i64, Some(9)), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 178: Admission { cached_tokens: 10, cached_blocks: 5, block_ids: [#34, #36, #44, #45, #46, #33] }
    same(manager.resume(3i64), 0x615c3f2e);
    manager.check_invariants().unwrap();
    // 179: HintReport { accepted: 3, clipped: 0, ignored: 2 }
    same(manager.release_with(3i64, None, true), 0x72c9e2a4);
    manager.check_invariants().unwrap();
    // 180: refused: no request has the id 3: admit it first
    same(manager.release_with(3i64, None, false), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 181: refused: request 1 is known already: release it before admitting it again
    same(manager.fork(2i64, 1i64), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 182: ()
    same(manager.truncate(1i64, 2), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 183: refused: no request has the id 3: admit it first
    same(manager.trim_window(3i64, 6), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 184: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 185: refused: no request has the id 4: admit it first
    same(manager.begin_swap_in(&[4i64.into()]), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 186: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 187: [(#47, #1), (#48, #2)]
    same(manager.complete_swap(SwapId::from_number(2)), 0xef8a1f8a);
    manager.check_invariants().unwrap();
    // 188: [Released]
    let mut plan = manager.plan_step();
    let _ = manager.plan_release(&mut plan, 5i64, None);
    same(manager.commit_step(&mut plan), 0xe7f3daa8);
    manager.check_invariants().unwrap();
    // 189: refused: no request has the id 3: admit it first
    same(manager.retain(3i64, &[RetentionRange { start: 5, end: None, retention: Retention { keep: Keep::Pinned, ttl: None, then: Then::Normal } }]), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 190: refused: no request has the id 4: admit it first
    same(manager.retain(4i64, &[RetentionRange { start: 4, end: None, retention: Retention { keep: Keep::Demoted, ttl: None, then: Then::Normal } }]), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 191: refused: the time 2 is before 36, which was passed earlier: time does not go backwards
    same(manager.advance_time(2.0), 0xee1b8acc);
    manager.check_invariants().unwrap();
    // 192: 0
    same(manager.complete_step(5), 0x50caa327);
    manager.check_invariants().unwrap();
    // 193: refused: 21 blocks are active and 10 fenced: release them first, or bump the epoch, which always succeeds
    same(manager.reset(), 0xde9294cb);
    manager.check_invariants().unwrap();
    // 194: 8 events
    same(manager.take_events().events.len(), 0x617d05ac);
    manager.check_invariants().unwrap();
    // 195: Admission { cached_tokens: 2, cached_blocks: 1, block_ids: [#8, #59, #60] }
    same(manager.admit_with(3i64, prompt(manager, &[62, 119, 120], 0, 2), &RequestHints::default()).map_err(|refused| refused.error), 0x9dc78b40);
    manager.check_invariants().unwrap();
    // 196: refused: request 0 is known already: release it before admitting it again
    same(manager.admit_with(0i64, prompt(manager, &[17, 121, 122, 123], 1, 2), &RequestHints { tenant: None, no_cache: false, ranges: vec![RetentionRange { start: 3, end: None, retention: Retention { keep: Keep::Demoted, ttl: None, then: Then::Demote } }] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 197: refused: request 3 is known already: release it before admitting it again
    same(manager.admit_with(3i64, prompt(manager, &[62, 63, 64, 124, 125, 126, 127, 128], 0, 2), &RequestHints { tenant: None, no_cache: false, ranges: vec![RetentionRange { start: 6, end: None, retention: Retention { keep: Keep::Pinned, ttl: Some(Ttl::Absolute(0.0)), then: Then::Normal } }] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 198: refused: request 2 is known already: release it before admitting it again
    same(manager.admit_with(2i64, prompt(manager, &[17, 18, 19, 20], 1, 2), &RequestHints { tenant: Some(TenantId(1)), no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 199: refused: request 0 is known already: release it before admitting it again
    same(manager.admit_with(0i64, prompt(manager, &[42, 43, 44, 45, 129, 130], 0, 2), &RequestHints::default()).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 200: refused: request 0 is known already: release it before admitting it again
    same(manager.admit_with(0i64, prompt(manager, &[17, 18, 19, 20, 85, 86, 87], 0, 2), &RequestHints { tenant: Some(TenantId(1)), no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 201: Admission { cached_tokens: 2, cached_blocks: 1, block_ids: [#34, #61, #28] }
    same(manager.admit_with("\u{1f600}5", prompt(manager, &[17, 131], 1, 2), &RequestHints::default()).map_err(|refused| refused.error), 0x2b7fee6f);
    manager.check_invariants().unwrap();
    // 202: refused: no request has the id 4: admit it first
    same(manager.append(&[4i64.into(), 5i64.into(), 0i64.into()], &[0, 0, 0], true), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 203: refused: no request has the id 5: admit it first
    same(manager.append(&[5i64.into(), 0i64.into()], &[0, 0], false), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 204: [NewBlock { row: 0, index: 1, block: #27 }, NewBlock { row: 1, index: 4, block: #26 }, NewBlock { row: 2, index: 3, block: #25 }]
    same(manager.append(&[1i64.into(), 2i64.into(), 3i64.into()], &[0, 0, 0], true), 0x768f40c0);
    manager.check_invariants().unwrap();
    // 205: [TableChange { index: 5, block: #11 }, TableChange { index: 6, block: #38 }, TableChange { index: 7, block: #63 }, TableChange { index: 8, block: #33 }, Ta
    same(manager.append_tokens(2i64, &[132, 0, 133, 0, 134, 0, 135, 0, 136, 0, 137, 0, 138, 0], 3), 0x3718376b);
    manager.check_invariants().unwrap();
    // 206: refused: no request has the id 5: admit it first
    same(manager.commit(5i64, 0), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 207: refused: no request has the id 5: admit it first
    same(manager.commit(5i64, 3), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 208: 0
    same(manager.commit(3i64, 7), 0x50caa327);
    manager.check_invariants().unwrap();
    // 209: 0
    same(manager.commit_batch(&[1i64.into()], &[3]), 0x50caa327);
    manager.check_invariants().unwrap();
    // 210: ()
    same(manager.preempt(1i64, None), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 211: refused: request 2 is running: cannot resume it
    same(manager.resume(2i64), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 212: refused: no request has the id 5: admit it first
    same(manager.release_with(5i64, None, false), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 213: HintReport { accepted: 3, clipped: 0, ignored: 0 }
    same(manager.release_with(3i64, None, true), 0x8b026246);
    manager.check_invariants().unwrap();
    // 214: ()
    same(manager.fork(2i64, 5i64), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 215: ()
    same(manager.truncate(2i64, 1), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 216: refused: request 1 is preempted: cannot trim it
    same(manager.trim_window(1i64, 5), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 217: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 218: refused: no request has the id 3: admit it first
    same(manager.begin_swap_in(&[3i64.into()]), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 219: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 220: refused: swap 0 is not under way: it was completed or aborted, or never begun
    same(manager.abort_swap(SwapId::from_number(0)), 0x1a3c0d27);
    manager.check_invariants().unwrap();
    // 221: []
    let mut plan = manager.plan_step();
    same(manager.commit_step(&mut plan), 0x50caa327);
    manager.check_invariants().unwrap();
    // 222: refused: no request has the id 3: admit it first
    same(manager.retain(3i64, &[RetentionRange { start: 2, end: None, retention: Retention { keep: Keep::Priority(Priority::new(80).unwrap()), ttl: Some(Ttl::Idle(5.0)), then: Then::Normal } }]), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 223: HintReport { accepted: 1, clipped: 0, ignored: 4 }
    same(manager.retain_prefix(&prompt(manager, &[17, 18, 19, 68, 71], 1, 2), &[RetentionRange { start: 1, end: None, retention: Retention { keep: Keep::Demoted, ttl: None, then: Then::Normal } }]), 0x45cb2b29);
    manager.check_invariants().unwrap();
    // 224: refused: the time 23 is before 36, which was passed earlier: time does not go backwards
    same(manager.advance_time(23.0), 0xee1b8acc);
    manager.check_invariants().unwrap();
    // 225: 8
    same(manager.complete_step(7), 0xcf32a195);
    manager.check_invariants().unwrap();
    // 226: 0
    same(manager.drop_cached(&ids(&[1, 5])), 0x50caa327);
    manager.check_invariants().unwrap();
    // 227: 7 events
    same(manager.take_events().events.len(), 0x2511a610);
    manager.check_invariants().unwrap();
    // 228: Admission { cached_tokens: 2, cached_blocks: 1, block_ids: [#34, #12, #1, #2, #7] }
    same(manager.admit_with(3i64, prompt(manager, &[17, 139, 140, 141], 1, 2), &RequestHints::default()).map_err(|refused| refused.error), 0xb78df06a);
    manager.check_invariants().unwrap();
    // 229: refused: request 2 is known already: release it before admitting it again
    same(manager.admit_with(2i64, prompt(manager, &[42, 142, 143], 0, 2), &RequestHints { tenant: None, no_cache: false, ranges: vec![RetentionRange { start: 3, end: None, retention: Retention { keep: Keep::Priority(Priority::new(80).unwrap()), ttl: Some(Ttl::Idle(3.0)), then: Then::Normal } }] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 230: refused: request 2 is known already: release it before admitting it again
    same(manager.admit_with(2i64, prompt(manager, &[144, 145, 146], 0, 2), &RequestHints { tenant: None, no_cache: false, ranges: vec![RetentionRange { start: 6, end: None, retention: Retention { keep: Keep::Demoted, ttl: None, then: Then::Demote } }] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 231: Admission { cached_tokens: 6, cached_blocks: 3, block_ids: [#8, #14, #15, #5, #6, #9, #24] }
    same(manager.admit_with(4i64, prompt(manager, &[62, 63, 64, 124, 147, 148], 1, 2), &RequestHints { tenant: Some(TenantId(1)), no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0x59bb6242);
    manager.check_invariants().unwrap();
    // 232: refused: request 0 is known already: release it before admitting it again
    same(manager.admit_with(0i64, prompt(manager, &[42, 43, 149, 150], 1, 2), &RequestHints { tenant: Some(TenantId(1)), no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 233: refused: request 0 is known already: release it before admitting it again
    same(manager.admit_with(0i64, prompt(manager, &[42, 43, 44, 45, 56, 151, 152], 1, 2), &RequestHints::default()).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 234: Admission { cached_tokens: 4, cached_blocks: 2, block_ids: [#34, #36, #25, #27, #60] }
    same(manager.admit_with("\u{0}0", prompt(manager, &[17, 18, 79, 80, 153], 0, 2), &RequestHints::default()).map_err(|refused| refused.error), 0xa7f4d21c);
    manager.check_invariants().unwrap();
    // 235: []
    same(manager.append(&[], &[], false), 0x50caa327);
    manager.check_invariants().unwrap();
    // 236: []
    same(manager.append(&[], &[], true), 0x50caa327);
    manager.check_invariants().unwrap();
    // 237: [NewBlock { row: 0, index: 0, block: #59 }]
    same(manager.append(&[2i64.into(), 3i64.into(), 4i64.into(), 5i64.into()], &[154, 155, 156, 157], true), 0xa87295ad);
    manager.check_invariants().unwrap();
    // 238: refused: request 0 is swapped: cannot append to it
    same(manager.append_tokens(0i64, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 1), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 239: refused: request 1 is preempted: cannot commit tokens of it
    same(manager.commit(1i64, 15), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 240: refused: request 1 is preempted: cannot commit tokens of it
    same(manager.commit(1i64, 3), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 241: refused: request 1 is preempted: cannot commit tokens of it
    same(manager.commit(1i64, 3), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 242: 2
    same(manager.commit_batch(&[3i64.into(), 4i64.into()], &[10, 14]), 0xe88aa583);
    manager.check_invariants().unwrap();
    // 243: refused: request 1 is preempted: cannot preempt it
    same(manager.preempt(1i64, None), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 244: refused: request 2 is running: cannot resume it
    same(manager.resume(2i64), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 245: HintReport { accepted: 0, clipped: 0, ignored: 0 }
    same(manager.release_with(5i64, None, false), 0x532a9d3d);
    manager.check_invariants().unwrap();
    // 246: HintReport { accepted: 0, clipped: 0, ignored: 0 }
    same(manager.release_with(4i64, None, false), 0x532a9d3d);
    manager.check_invariants().unwrap();
    // 247: refused: request 0 is known already: release it before admitting it again
    same(manager.fork(3i64, 0i64), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 248: refused: request 1 is preempted: cannot truncate it
    same(manager.truncate(1i64, 2), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 249: refused: no request has the id 4: admit it first
    same(manager.trim_window(4i64, 5), 0x7fa138ec);
    manager.check_invariants().unwrap();
}

fn part_1(manager: &mut CacheManager) {
    // 250: TransferPlan { transfers: [Transfer { src: Place { tier: 0, block: #34 }, dst: Place { tier: 0, block: #59 } }] }
    same(manager.take_plan(), 0x7f19087c);
    manager.check_invariants().unwrap();
    // 251: refused: request 2 is running: cannot swap it in
    same(manager.begin_swap_in(&[2i64.into()]), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 252: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 253: refused: swap 2 is not under way: it was completed or aborted, or never begun
    same(manager.complete_swap(SwapId::from_number(2)), 0x1a3c0d27);
    manager.check_invariants().unwrap();
    // 254: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 255: 0
    same(manager.complete_step(0), 0x50caa327);
    manager.check_invariants().unwrap();
    // 256: refused: the manager has changed since this step was begun: begin a new one
    let mut plan = manager.plan_step();
    // It changes nothing, but the plan is stale now.
    manager.drop_cached(&[]).unwrap();
    same(manager.commit_step(&mut plan), 0x0a350b6b);
    manager.check_invariants().unwrap();
    // 257: refused: no request has the id 4: admit it first
    same(manager.retain(4i64, &[RetentionRange { start: 1, end: None, retention: Retention { keep: Keep::Pinned, ttl: Some(Ttl::Absolute(2.0)), then: Then::Normal } }]), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 258: ()
    same(manager.set_tenant(1i64, TenantId(0)), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 259: refused: the time 7 is before 36, which was passed earlier: time does not go backwards
    same(manager.advance_time(7.0), 0xee1b8acc);
    manager.check_invariants().unwrap();
    // 260: 0
    same(manager.complete_step(7), 0x50caa327);
    manager.check_invariants().unwrap();
    // 261: 3
    same(manager.bump_epoch(), 0x27b54459);
    manager.check_invariants().unwrap();
    // 262: 2 events
    same(manager.take_events().events.len(), 0x185f416b);
    manager.check_invariants().unwrap();
    // 263: refused: request 0 is known already: release it before admitting it again
    same(manager.admit_with(0i64, prompt(manager, &[163, 164, 165, 166, 167], 1, 3), &RequestHints { tenant: Some(TenantId(1)), no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 264: refused: request 3 is known already: release it before admitting it again
    same(manager.admit_with(3i64, prompt(manager, &[168, 169, 170, 171, 172, 173, 174, 175, 176], 0, 3), &RequestHints::default()).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 265: refused: request 3 is known already: release it before admitting it again
    same(manager.admit_with(3i64, prompt(manager, &[163, 164, 165, 166, 167, 177], 0, 3), &RequestHints { tenant: Some(TenantId(1)), no_cache: true, ranges: vec![] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 266: refused: request 1 is known already: release it before admitting it again
    same(manager.admit_with(1i64, prompt(manager, &[163, 164, 178, 179], 1, 3), &RequestHints { tenant: None, no_cache: true, ranges: vec![] }).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 267: Admission { cached_tokens: 0, cached_blocks: 0, block_ids: [#49] }
    same(manager.admit_with(5i64, prompt(manager, &[], 1, 3), &RequestHints { tenant: Some(TenantId(1)), no_cache: false, ranges: vec![RetentionRange { start: 3, end: None, retention: Retention { keep: Keep::Priority(Priority::new(80).unwrap()), ttl: None, then: Then::Normal } }] }).map_err(|refused| refused.error), 0x15797a9e);
    manager.check_invariants().unwrap();
    // 268: refused: the hash chain belongs to epoch 99, the pool is in epoch 3: hash the tokens again
    same(manager.admit_with(4i64, prompt(manager, &[180, 181, 182, 183, 184], 1, 99), &RequestHints { tenant: None, no_cache: true, ranges: vec![] }).map_err(|refused| refused.error), 0x32911419);
    manager.check_invariants().unwrap();
    // 269: refused: request "\u{202e}x3" is known already: release it before admitting it again
    same(manager.admit_with("\u{202e}x3", prompt(manager, &[168, 169, 185, 186, 187], 0, 3), &RequestHints::default()).map_err(|refused| refused.error), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 270: [NewBlock { row: 0, index: 1, block: #50 }, NewBlock { row: 1, index: 5, block: #51 }]
    same(manager.append(&[2i64.into(), 3i64.into()], &[0, 0], true), 0x22b394d7);
    manager.check_invariants().unwrap();
    // 271: []
    same(manager.append(&[], &[], true), 0x50caa327);
    manager.check_invariants().unwrap();
    // 272: []
    same(manager.append(&[2i64.into(), 3i64.into(), 5i64.into()], &[188, 189, 190], true), 0x50caa327);
    manager.check_invariants().unwrap();
    // 273: refused: request 1 is preempted: cannot append to it
    same(manager.append_tokens(1i64, &[0, 0, 0, 0, 0, 0, 0, 0, 0], 4), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 274: refused: request 1 is preempted: cannot commit tokens of it
    same(manager.commit(1i64, 15), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 275: refused: request 1 is preempted: cannot commit tokens of it
    same(manager.commit(1i64, 3), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 276: 0
    same(manager.commit(2i64, 4), 0x50caa327);
    manager.check_invariants().unwrap();
    // 277: refused: request 0 is swapped: cannot commit tokens of it
    same(manager.commit_batch(&[0i64.into(), 1i64.into()], &[4, 3]), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 278: refused: no request has the id 4: admit it first
    same(manager.preempt(4i64, Some(9)), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 279: refused: request 0 is swapped: cannot resume it
    same(manager.resume(0i64), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 280: HintReport { accepted: 0, clipped: 0, ignored: 0 }
    same(manager.release_with(0i64, Some(8), false), 0x532a9d3d);
    manager.check_invariants().unwrap();
    // 281: refused: no request has the id 0: admit it first
    same(manager.release_with(0i64, None, false), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 282: refused: request 2 is known already: release it before admitting it again
    same(manager.fork(3i64, 2i64), 0xb3c17b21);
    manager.check_invariants().unwrap();
    // 283: refused: no request has the id 0: admit it first
    same(manager.truncate(0i64, 1), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 284: refused: request 1 is preempted: cannot trim it
    same(manager.trim_window(1i64, 3), 0x5a85f989);
    manager.check_invariants().unwrap();
    // 285: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 286: refused: no request has the id 4: admit it first
    same(manager.begin_swap_in(&[4i64.into()]), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 287: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 288: refused: swap 3 is not under way: it was completed or aborted, or never begun
    same(manager.complete_swap(SwapId::from_number(3)), 0x1a3c0d27);
    manager.check_invariants().unwrap();
    // 289: [Preempted, Admitted(Admission { cached_tokens: 0, cached_blocks: 0, block_ids: [#49, #52] })]
    let mut plan = manager.plan_step();
    let _ = manager.plan_preempt(&mut plan, 5i64, None);
    let _ = manager.plan_resume(&mut plan, 1i64);
    same(manager.commit_step(&mut plan), 0x6ee317bb);
    manager.check_invariants().unwrap();
    // 290: refused: no request has the id 4: admit it first
    same(manager.retain(4i64, &[RetentionRange { start: 8, end: None, retention: Retention { keep: Keep::Pinned, ttl: Some(Ttl::Absolute(4.0)), then: Then::Normal } }]), 0x7fa138ec);
    manager.check_invariants().unwrap();
    // 291: HintReport { accepted: 0, clipped: 0, ignored: 1 }
    same(manager.retain_prefix(&prompt(manager, &[196, 197, 198], 1, 3), &[RetentionRange { start: 5, end: None, retention: Retention { keep: Keep::Pinned, ttl: Some(Ttl::Idle(3.0)), then: Then::Normal } }]), 0xdf1d5f7b);
    manager.check_invariants().unwrap();
    // 292: 0
    same(manager.advance_time(42.0), 0x50caa327);
    manager.check_invariants().unwrap();
    // 293: 2
    same(manager.complete_step(8), 0xe88aa583);
    manager.check_invariants().unwrap();
    // 294: []
    same(manager.evict(3), 0x50caa327);
    manager.check_invariants().unwrap();
    // 295: 0 events
    same(manager.take_events().events.len(), 0x00000000);
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
