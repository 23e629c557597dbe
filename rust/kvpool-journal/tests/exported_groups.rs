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
    // 0: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#1, #2, #3, #4],
    //     other_tables: [[#5], [#6, #7, #8, #9], [], [#10, #11], [#12,...
    same(manager.admit_with("kept", prompt(manager, &[1, 2, 3, 4], 1, 0),
        &AdmitOptions { part: Part { allocate_tokens: Some(8), external_tokens: 0, compute_all: false },
        tenant: None, no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0x89d28e8f);
    manager.check_invariants().unwrap();
    // 1: [TableChange { index: 0, block: #20, group: 3 }, TableChange { index: 1, block: #21, group: 3 }]
    same(manager.extend_encoder("kept", 3), 0x24899b14);
    manager.check_invariants().unwrap();
    // 2: 13
    same(manager.commit("kept", 8), 0x9c238e04);
    manager.check_invariants().unwrap();
    // 3: [TableChange { index: 4, block: #22, group: 0 }, TableChange { index: 5, block: #23, group: 0 },
    //     TableChange { index: 6, block: #24, group: 0 }, TableChange ...
    same(manager.append_tokens("kept", &[5, 0], 2), 0x31c229bc);
    manager.check_invariants().unwrap();
    // 4: TransferPlan { transfers: [Transfer { src: Place { tier: 0, block: #5 }, dst: Place { tier: 0,
    //     block: #10 } }] }
    same(manager.take_plan(), 0x7798c045);
    manager.check_invariants().unwrap();
    // 5: ()
    same(manager.release("kept", Until::Now), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 6: Admission { cached_tokens: 8, cached_blocks: 4, external_tokens: 0, block_ids: [#1, #2, #3, #4,
    //     #22], other_tables: [[#23], [#0, #0, #8, #9, #24], [], [#0, #...
    same(manager.admit_with("kept", prompt(manager, &[1, 2, 3, 4], 1, 0),
        &AdmitOptions { part: Part { allocate_tokens: Some(8), external_tokens: 0, compute_all: false },
        tenant: None, no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0xc4528355);
    manager.check_invariants().unwrap();
    // 7: [TableChange { index: 0, block: #27, group: 3 }, TableChange { index: 1, block: #28, group: 3 }]
    same(manager.extend_encoder("kept", 3), 0x0b13b509);
    manager.check_invariants().unwrap();
    // 8: 0
    same(manager.commit("kept", 8), 0x50caa327);
    manager.check_invariants().unwrap();
    // 9: [TableChange { index: 5, block: #29, group: 0 }, TableChange { index: 6, block: #20, group: 0 },
    //     TableChange { index: 1, block: #21, group: 1 }, TableChange ...
    same(manager.append_tokens("kept", &[6, 0], 2), 0xefb4ba77);
    manager.check_invariants().unwrap();
    // 10: TransferPlan { transfers: [Transfer { src: Place { tier: 0, block: #10 }, dst: Place { tier: 0,
    //     block: #23 } }] }
    same(manager.take_plan(), 0xef199bee);
    manager.check_invariants().unwrap();
    // 11: ()
    same(manager.release("kept", Until::Now), 0x9c2fa0b5);
    manager.check_invariants().unwrap();
    // 12: Admission { cached_tokens: 0, cached_blocks: 0, external_tokens: 0, block_ids: [#22, #29, #20,
    //     #23], other_tables: [[#21], [#30, #24, #31, #32], [], [#27, #...
    same(manager.admit_with("kept", prompt(manager, &[1, 2, 3, 4], 1, 0),
        &AdmitOptions { part: Part { allocate_tokens: Some(8), external_tokens: 0, compute_all: true },
        tenant: None, no_cache: false, ranges: vec![] }).map_err(|refused| refused.error), 0x1c584bc9);
    manager.check_invariants().unwrap();
    // 13: [TableChange { index: 0, block: #19, group: 3 }, TableChange { index: 1, block: #35, group: 3 }]
    same(manager.extend_encoder("kept", 3), 0xe62ff8e5);
    manager.check_invariants().unwrap();
    // 14: 13
    same(manager.commit("kept", 8), 0x9c238e04);
    manager.check_invariants().unwrap();
    // 15: [TableChange { index: 4, block: #27, group: 0 }, TableChange { index: 5, block: #36, group: 0 },
    //     TableChange { index: 6, block: #37, group: 0 }, TableChange...
    same(manager.append_tokens("kept", &[7, 0], 2), 0xf1cfe013);
    manager.check_invariants().unwrap();
    // 16: TransferPlan { transfers: [] }
    same(manager.take_plan(), 0x50caa327);
    manager.check_invariants().unwrap();
    // 17: ()
    same(manager.release("kept", Until::Now), 0x9c2fa0b5);
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
        groups: Groups::new(vec![GroupSpec { keep: kvpool::groups::Keep::All, margin: 0,
            ..GroupSpec::new(GroupKind::Full, 2) },
            GroupSpec { keep: kvpool::groups::Keep::All, margin: 0, ..GroupSpec::new(GroupKind::State, 2) },
            GroupSpec { keep: kvpool::groups::Keep::All, margin: 0,
            ..GroupSpec::new(GroupKind::Chunked { chunk: 5 }, 2) },
            GroupSpec { keep: kvpool::groups::Keep::All, margin: 0, ..GroupSpec::new(GroupKind::Cross, 2) },
            GroupSpec { keep: kvpool::groups::Keep::Every(6), margin: 0,
            ..GroupSpec::new(GroupKind::Sliding { window: 3 }, 4) },
            GroupSpec { keep: kvpool::groups::Keep::All, margin: 0, sink_tokens: 3,
            ..GroupSpec::new(GroupKind::Sliding { window: 3 }, 2) },
            GroupSpec { keep: kvpool::groups::Keep::Nothing, margin: 0,
            ..GroupSpec::new(GroupKind::Full, 2) }], Some(2)).ok(),
        ..ManagerConfig::default()
    })
    .and_then(|pool| {
        pool.watched(&ManagerWatchConfig { event_capacity: 8, ..ManagerWatchConfig::default() })
    }).unwrap();
    part_0(&mut manager);
}
