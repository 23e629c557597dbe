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
use kvpool::retention::{Keep, Priority, Retention, RetentionConfig, TenantId, TenantLimits, Then, Ttl};
use kvpool::{
    BlockHasher, BlockId, BlockPool, ChainLink, ExtraKeys, HashChain, HashCursor, HasherConfig, Match,
    PoolConfig,
};
use kvpool_observe::{PoolWatch, WatchConfig};

fn ids(ids: &[u32]) -> Vec<BlockId> {
    ids.iter().copied().map(BlockId::new).collect()
}

fn hasher(algorithm: &str, verify: &str, block_size: usize) -> Arc<BlockHasher> {
    let (seed, algorithm, verify) = (Some("0".into()), algorithm.parse().unwrap(), verify.parse().unwrap());
    let config = HasherConfig { algorithm, block_size, verify, seed, ..HasherConfig::default() };
    Arc::new(BlockHasher::new(config).unwrap())
}

/// Returns the tokens of a block, given the number of its content.
fn block(block_size: usize, content: u32) -> Vec<u32> {
    std::iter::repeat_n(0, block_size - 1).chain([content]).collect()
}

/// Returns the hash chain of a prompt, given the contents of its blocks.
fn chain(algorithm: &str, verify: &str, block_size: usize, contents: &[u32], epoch: u64) -> HashChain {
    let extra = ExtraKeys { epoch, ..ExtraKeys::default() };
    let mut cursor = HashCursor::new(hasher(algorithm, verify, block_size), extra).unwrap();
    for &content in contents {
        cursor.append(&block(block_size, content));
    }
    cursor.chain().clone()
}

/// Returns the hash chain of a prompt as digests without tokens, as another process would send it.
fn digests(algorithm: &str, verify: &str, block_size: usize, contents: &[u32], epoch: u64) -> HashChain {
    let whole = chain(algorithm, verify, block_size, contents, epoch);
    let hashes = whole.hashes().to_vec();
    HashChain::from_digests(algorithm.parse().unwrap(), block_size, epoch, hashes).unwrap()
}

/// Returns the link of the last block of a prompt.
fn link(algorithm: &str, verify: &str, block_size: usize, contents: &[u32], epoch: u64) -> ChainLink {
    let hasher = hasher(algorithm, verify, block_size);
    let extra = ExtraKeys { epoch, ..ExtraKeys::default() };
    let mut last = None;
    for &content in contents {
        last = Some(ChainLink::new(&hasher, last.as_ref(), &block(block_size, content), &extra).unwrap());
    }
    last.unwrap()
}

/// Checks that an answer has the expected checksum. A journal stores one checksum per answer.
#[track_caller]
fn same(answer: impl Outcome + std::fmt::Debug, check: u32) {
    assert_eq!(Check::of(&answer), check, "the answer is {answer:?}");
}

fn part_0(pool: &mut BlockPool) {
    // 0: [#1, #2, #3, #4, #5]
    same(pool.allocate(5), 0x14a41444);
    pool.check_invariants().unwrap();
    // 1: Registered { blocks: 4, collided: false }
    same(pool.register(&ids(&[1, 2, 3, 4]), &chain("sha256", "none", 2, &[1, 2, 3, 4], 0), 0), 0xcf32a195);
    pool.check_invariants().unwrap();
    // 2: ()
    same(pool.mark_computed(&ids(&[1, 2, 3, 4])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 3: ()
    same(pool.release(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 4: [#6, #7, #8, #9]
    same(pool.allocate(4), 0x6af26549);
    pool.check_invariants().unwrap();
    // 5: [#1, #2, #3]
    same(pool.match_and_acquire_for(&chain("sha256", "none", 2, &[1, 2, 3, 5, 6, 7], 0), usize::MAX,
        TenantId(1)), 0x6ba93545);
    pool.check_invariants().unwrap();
    // 6: [#1]
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[1], 0), 6), 0x6af8de86);
    pool.check_invariants().unwrap();
    // 7: refused: block 1 is already registered
    same(pool.register(&ids(&[1, 2, 3]), &chain("sha256", "none", 2, &[8, 9, 10, 11, 12, 13], 0), 2),
        0x47a87b56);
    pool.check_invariants().unwrap();
    // 8: ()
    same(pool.release_table(&ids(&[1, 2, 3])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 9: ()
    same(pool.acquire(&ids(&[1, 2, 3, 4, 5])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 10: refused: ticket 0 is not open: it has ended already, or is of another pool (0 are open)
    same(pool.release_until(&ids(&[1, 2, 3, 4, 5]), kvpool::Ticket::new(0)), 0xa243eb80);
    pool.check_invariants().unwrap();
    // 11: refused: block 1 is already registered
    same(pool.register_link(BlockId::new(1), &link("sha256", "none", 2, &[1], 0)), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 12: ()
    same(pool.assign_tenant(&ids(&[1, 2, 3, 4, 5]), TenantId(0)), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 13: ()
    same(pool.signal(&ids(&[1, 2, 3, 4, 5]),
        kvpool::Signal { finish: kvpool::Finish::Stop, output_tokens: None }), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 14: 0
    same(pool.drop_cached(&ids(&[14, 6])), 0x50caa327);
    pool.check_invariants().unwrap();
    // 15: 4 events
    same(pool.take_events().events.len(), 0x30be82d6);
    pool.check_invariants().unwrap();
    // 16: []
    same(pool.register_table(&ids(&[]), &chain("sha256", "none", 2, &[14, 15, 16, 17, 18, 19, 20, 21], 0), 2),
        0x50caa327);
    pool.check_invariants().unwrap();
    // 17: [(0, #1)]
    same(pool.adopt(&ids(&[63, 62, 61, 60, 59]), &chain("sha256", "none", 2, &[1, 22, 23, 24, 25], 0), 0),
        0x0e865852);
    pool.check_invariants().unwrap();
    // 18: Match { start: 0, blocks: [#1], algorithm: Sha256, block_size: 2, epoch: 0, hashes:
    //     [5db2b27f18a66d4a000000000000000000000000000000000000000000000000], fing...
    same(pool.lookup_refreshing(&chain("sha256", "none", 2, &[1, 22, 23, 24, 25], 0), 0, 1), 0x056939b1);
    pool.check_invariants().unwrap();
    // 19: ()
    same(pool.acquire_match(&Match::new(&chain("sha256", "none", 2, &[1], 0), 0, &ids(&[1])).unwrap()),
        0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 20: refused: block 1 is already registered
    same(pool.register(&ids(&[1, 62, 61, 60, 59, 1]),
        &digests("sha256", "none", 2, &[14, 15, 16, 17, 18, 19, 20, 21, 26], 0), 0), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 21: []
    same(pool.match_and_acquire(&digests("sha256", "none", 2, &[14, 15, 16, 17, 18, 19, 20, 21, 26], 0), 0),
        0x50caa327);
    pool.check_invariants().unwrap();
}

#[test]
fn journal() {
    let mut pool = BlockPool::new(PoolConfig {
        num_blocks: 64,
        block_size: 2,
        duplicates: "keep".parse().unwrap(),
        eviction: kvpool_policies::by_name("lru").unwrap(),
        verify: "none".parse().unwrap(),
        retention: Some(RetentionConfig { pin_budget: 2, tenants: vec![] }),
        ..PoolConfig::default()
    })
    .and_then(|pool| {
        pool.watched(&WatchConfig { event_capacity: 8, ..WatchConfig::default() })
    }).unwrap();
    part_0(&mut pool);
}
