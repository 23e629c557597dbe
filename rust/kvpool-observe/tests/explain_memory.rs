//! Tests the memory of an explainer: it allocates all memory at construction, and its size is the
//! documented one. A manager without an explainer allocates nothing for it.
//!
//! This is a test binary of its own because it counts the allocations of the whole process.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

#[path = "../../kvpool/tests/common/counting.rs"]
mod counting;

use kvpool::{CacheManager, ExtraKeys, ManagerConfig};
use kvpool_observe::{ExplainConfig, ManagerWatch, ManagerWatchConfig};

const BLOCK: usize = 16;

fn manager(num_blocks: usize, records: Option<usize>, explain: bool) -> CacheManager {
    let explain = explain.then_some(ExplainConfig { records, requests: 10 });
    let config = ManagerConfig { num_blocks, block_size: BLOCK, ..ManagerConfig::default() };
    let watch = ManagerWatchConfig { explain, ..ManagerWatchConfig::default() };
    CacheManager::new(config).unwrap().watched(&watch).unwrap()
}

/// Returns the additional memory of a manager with an explainer, in bytes.
fn bytes(num_blocks: usize, records: Option<usize>) -> isize {
    let start = counting::counts().1;
    let plain = manager(num_blocks, None, false);
    let without = counting::counts().1 - start;
    drop(plain);
    let explaining = manager(num_blocks, records, true);
    let with = counting::counts().1 - start;
    drop(explaining);
    with - without
}

#[test]
fn a_record_takes_the_documented_memory() {
    let (small, large) = (bytes(100, Some(1 << 16)), bytes(100, Some(1 << 18)));
    let each = (large - small) as f64 / f64::from((1 << 18) - (1 << 16));
    println!("{each:.2} bytes per record, {small} in all of 2^16");
    assert!(each <= (95 + 4 * BLOCK) as f64, "{each} bytes per record");
    // By default, the record has room for twice the number of the pool's blocks, at least 1,024 and at
    // most 2^20. All other memory of the explainer is less than a megabyte.
    for (num_blocks, records) in [(10, 1 << 10), (10_001, 20_000), (1 << 21, 1 << 20)] {
        let held = bytes(num_blocks, None) as f64 / (95 + 4 * BLOCK) as f64;
        let most = f64::from(records) + (1 << 20) as f64 / (95 + 4 * BLOCK) as f64;
        assert!((f64::from(records) * 0.98..most).contains(&held), "{num_blocks} blocks: room for {held}");
    }
}

/// Runs 300 prompts of 4 to 7 blocks in turn in a pool of 200 blocks. Each prompt shares half of its
/// tokens with others.
#[test]
fn memory_does_not_grow() {
    let mut manager = manager(201, Some(512), true);
    let mut held = 0;
    for turn in 0..6_000_u32 {
        let which = turn * 7 % 300;
        let shared = (which / 10) * 1000;
        let own = 1_000_000 + which * 1000;
        let blocks = 4 + (which % 4) as usize;
        let prompt: Vec<u32> = (shared..).take(2 * BLOCK).chain((own..).take((blocks - 2) * BLOCK)).collect();
        let cursor = manager.prepare(&prompt, ExtraKeys::default()).unwrap();
        manager.admit(1, cursor).unwrap();
        manager.commit(1, prompt.len()).unwrap();
        manager.release(1, None).unwrap();
        drop(prompt);
        // From this turn on, the record is full, and so is the list of explanations of the last
        // requests. Each explanation has one or two spans.
        if turn == 3_000 {
            held = counting::counts().1;
        }
        let more = counting::counts().1 - held;
        assert!(turn <= 3_000 || more.abs() < 10 * 300, "turn {turn}: {more} bytes more than before");
    }
    assert!(manager.misses().unwrap().admitted.get("evicted") > Some(0));
    manager.check_invariants().unwrap();
}
