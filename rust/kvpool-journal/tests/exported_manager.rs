//! A test with the calls of a recorded journal, written by `kvpool journal export`.
#![cfg_attr(rustfmt, rustfmt_skip)]
#![allow(
    clippy::allow_attributes,
    clippy::single_range_in_vec_init,
    clippy::unit_arg,
    clippy::unwrap_used,
    unused,
    reason = "written by a program"
)]

use std::sync::Arc;

use kvpool_journal::{Check, Outcome};
use kvpool::groups::{GroupKind, GroupSpec, Groups};
use kvpool::retention::{Keep, Priority, Retention, RetentionConfig, TenantId, TenantLimits, Then, Ttl};
use kvpool::{
    AdmitOptions, BlockHasher, BlockId, CacheManager, Computed, Covered, ExtraKeys, HashCursor,
    HasherConfig, Loaded, ManagerConfig, Part, RetentionRange, Rows, SwapId, Until, Verify,
};
use kvpool_observe::{ManagerWatch, ManagerWatchConfig};

fn ids(ids: &[u32]) -> Vec<BlockId> {
    ids.iter().copied().map(BlockId::new).collect()
}

/// Returns one full block per number of a content, and then `tail` zeros.
fn tokens(block_size: usize, contents: &[u32], tail: usize) -> Vec<u32> {
    let block = |&content: &u32| std::iter::repeat_n(0, block_size - 1).chain([content]);
    contents.iter().flat_map(block).chain(std::iter::repeat_n(0, tail)).collect()
}

/// Returns a prompt that is hashed for an epoch.
fn prompt(manager: &CacheManager, contents: &[u32], tail: usize, epoch: u64) -> HashCursor {
    let tokens = tokens(manager.pool().block_size(), contents, tail);
    let mut cursor = manager.prepare(&tokens, ExtraKeys::default()).unwrap();
    cursor.rebase(epoch).unwrap();
    cursor
}

/// Returns a prompt that is hashed by another hasher than the manager's.
fn foreign(manager: &CacheManager, contents: &[u32], tail: usize, epoch: u64) -> HashCursor {
    let (algorithm, block_size) = (manager.hasher().algorithm(), manager.pool().block_size());
    let verify = if manager.hasher().has_fingerprints() { Verify::Fingerprint } else { Verify::None };
    let seed = Some("foreign".into());
    let config = HasherConfig { algorithm, block_size, verify, seed, ..HasherConfig::default() };
    let hasher = Arc::new(BlockHasher::new(config).unwrap());
    let mut cursor = HashCursor::new(hasher, ExtraKeys { epoch, ..ExtraKeys::default() }).unwrap();
    cursor.append(&tokens(block_size, contents, tail));
    cursor
}

/// Checks that an answer has the expected checksum. A journal stores one checksum per answer.
#[track_caller]
fn same(answer: impl Outcome + std::fmt::Debug, check: u32) {
    assert_eq!(Check::of(&answer), check, "the answer is {answer:?}");
}

fn part_0(manager: &mut CacheManager) {
    // 0: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#1, #2, #3],
    //     other_tables: [], full_tokens: 0 }
    same(manager.admit_with(90i64, prompt(manager, &[1, 2], 1, 0),
        &AdmitOptions::default()).map_err(|refused| refused.error), 0x915b4580);
    manager.check_invariants().unwrap();
    // 1: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#4, #5, #6],
    //     other_tables: [], full_tokens: 0 }
    same(manager.admit_with(91i64, prompt(manager, &[1, 2], 1, 0),
        &AdmitOptions::default()).map_err(|refused| refused.error), 0x3f2dafd9);
    manager.check_invariants().unwrap();
    // 2: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#7, #8, #9],
    //     other_tables: [], full_tokens: 0 }
    same(manager.admit_with(92i64, prompt(manager, &[1, 2], 1, 0),
        &AdmitOptions::default()).map_err(|refused| refused.error), 0xb17be99b);
    manager.check_invariants().unwrap();
    // 3: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#10, #11, #12],
    //     other_tables: [], full_tokens: 0 }
    same(manager.admit_with(93i64, prompt(manager, &[1, 2], 1, 0),
        &AdmitOptions::default()).map_err(|refused| refused.error), 0x141e6389);
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
    // 8: TransferPlan { transfers: [Transfer { src: Place { tier: 0, block: #4 }, dst: Place { tier: 1,
    //     block: #1 } }, Transfer { src: Place { tier: 0, block: #5 }, d...
    same(manager.take_plan(), 0x4983be1c);
    manager.check_invariants().unwrap();
    // 9: [(#4, #1), (#5, #2), (#6, #3)]
    same(manager.complete_swap(SwapId::from_number(0)), 0x261af9ab);
    manager.check_invariants().unwrap();
    // 10: SwapId(1)
    same(manager.begin_swap_in(&[91i64.into()]), 0xcc9804cd);
    manager.check_invariants().unwrap();
    // 11: TransferPlan { transfers: [Transfer { src: Place { tier: 1, block: #3 }, dst: Place { tier: 0,
    //     block: #6 } }] }
    same(manager.take_plan(), 0xcc264c51);
    manager.check_invariants().unwrap();
    // 12: [(#1, #1), (#2, #2), (#3, #6)]
    same(manager.complete_swap(SwapId::from_number(1)), 0x6d2d72d3);
    manager.check_invariants().unwrap();
    // 13: ()
    same(manager.preempt(92i64, Until::Now), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 14: ()
    same(manager.fork(93i64,
        concat!("a fork, \"of\" the request 93 \\, whose id does not fit into one literal of an e",
        "xported test")), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 15: [Admitted(Admission { cached_tokens: 4, cached_blocks: 2, external_tokens: 0, block_ids: [#1, #2,
    //     #7], other_tables: [], full_tokens: 4 }), Admitted(Admissi...
    let mut plan = manager.plan_step();
    let _ = manager.plan_admit_with(&mut plan, 95i64, prompt(manager, &[1, 2], 1, 0),
        &AdmitOptions::default());
    let _ = manager.plan_resume_with(&mut plan, 92i64, Part::WHOLE);
    let _ = manager.plan_append_ragged(&mut plan,
        &Rows { requests: &[91i64.into()], tokens: &[5, 0, 6], offsets: &[0, 3], computed: Computed::Nothing,
        covered: Covered::Each(&[8]), most_changes: None });
    let _ = manager.plan_preempt(&mut plan, 93i64, Until::Now);
    let _ = manager.plan_release(&mut plan, 90i64, Until::Step(3));
    same(manager.commit_step(&mut plan), 0x65e3c781);
    manager.check_invariants().unwrap();
    // 16: 2
    same(manager.complete_step(3), 0xe88aa583);
    manager.check_invariants().unwrap();
    // 17: ()
    same(manager.preempt(92i64, Until::Now), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 18: 1
    same(manager.bump_epoch(), 0xcc9804cd);
    manager.check_invariants().unwrap();
    // 19: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#3, #13, #4],
    //     other_tables: [], full_tokens: 0 }
    same(manager.admit_with("again", prompt(manager, &[1, 2], 1, 1),
        &AdmitOptions::default()).map_err(|refused| refused.error), 0xadaefee3);
    manager.check_invariants().unwrap();
    // 20: 2
    same(manager.commit("again", 5), 0xe88aa583);
    manager.check_invariants().unwrap();
    // 21: Admission { cached_tokens: 4, cached_blocks: 2, external_tokens: 0, block_ids: [#3, #13, #5],
    //     other_tables: [], full_tokens: 4 }
    same(manager.resume_with(92i64, Part::WHOLE), 0xfa5b2244);
    manager.check_invariants().unwrap();
    // 22: Admission { cached_tokens: 4, cached_blocks: 2, external_tokens: 0, block_ids: [#3, #13, #8],
    //     other_tables: [], full_tokens: 4 }
    same(manager.admit_with((-7i64), prompt(manager, &[1, 2], 1, 1),
        &AdmitOptions::default()).map_err(|refused| refused.error), 0xe1cdc29e);
    manager.check_invariants().unwrap();
    // 23: ()
    same(manager.release_batch(&[91i64.into(), 92i64.into(), 93i64.into(), 95i64.into(),
        concat!("a fork, \"of\" the request 93 \\, whose id does not fit into one literal of an e",
        "xported test").into(), "again".into(), (-7i64).into()], Until::Now), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 24: 2
    same(manager.reset(), 0xe88aa583);
    manager.check_invariants().unwrap();
    // 25: ()
    same(manager.resize(65), 0x9c2fa0b5);
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
    .and_then(|pool| {
        pool.watched(&ManagerWatchConfig { event_capacity: 8, ..ManagerWatchConfig::default() })
    }).unwrap();
    part_0(&mut manager);
}
