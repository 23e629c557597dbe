//! A journal as a test: made by `kvpool journal export`.
#![cfg_attr(rustfmt, rustfmt_skip)]
#![allow(clippy::allow_attributes, clippy::unit_arg, clippy::unwrap_used, unused, reason = "made by a program")]

use std::sync::Arc;

use kvpool_journal::{Check, Outcome};
use kvpool::retention::{Keep, Priority, Retention, RetentionConfig, TenantId, TenantLimits, Then, Ttl};
use kvpool::{BlockHasher, BlockId, BlockPool, ChainLink, ExtraKeys, HashChain, HashCursor, HasherConfig, Match, PoolConfig};
use kvpool_observe::{PoolWatch, WatchConfig};

fn ids(ids: &[u32]) -> Vec<BlockId> {
    ids.iter().copied().map(BlockId::new).collect()
}

fn hasher(algorithm: &str, verify: &str, block_size: usize) -> Arc<BlockHasher> {
    let (seed, algorithm, verify) = (Some("0".into()), algorithm.parse().unwrap(), verify.parse().unwrap());
    Arc::new(BlockHasher::new(HasherConfig { algorithm, block_size, verify, seed, ..HasherConfig::default() }).unwrap())
}

/// A block by the number of its content.
fn block(block_size: usize, content: u32) -> Vec<u32> {
    std::iter::repeat_n(0, block_size - 1).chain([content]).collect()
}

/// A chain of the blocks of a prompt.
fn chain(algorithm: &str, verify: &str, block_size: usize, contents: &[u32], epoch: u64) -> HashChain {
    let extra = ExtraKeys { epoch, ..ExtraKeys::default() };
    let mut cursor = HashCursor::new(hasher(algorithm, verify, block_size), extra).unwrap();
    for &content in contents {
        cursor.append(&block(block_size, content));
    }
    cursor.chain().clone()
}

/// The same without its tokens, as digests that were computed elsewhere.
fn digests(algorithm: &str, verify: &str, block_size: usize, contents: &[u32], epoch: u64) -> HashChain {
    let whole = chain(algorithm, verify, block_size, contents, epoch);
    HashChain::from_digests(algorithm.parse().unwrap(), block_size, epoch, whole.hashes().to_vec()).unwrap()
}

/// The last block of a prompt.
fn link(algorithm: &str, verify: &str, block_size: usize, contents: &[u32], epoch: u64) -> ChainLink {
    let (hasher, extra) = (hasher(algorithm, verify, block_size), ExtraKeys { epoch, ..ExtraKeys::default() });
    let mut last = None;
    for &content in contents {
        last = Some(ChainLink::new(&hasher, last.as_ref(), &block(block_size, content), &extra).unwrap());
    }
    last.unwrap()
}

/// Compares an answer with the recorded one, by the check that journals have.
#[track_caller]
fn same(answer: impl Outcome + std::fmt::Debug, check: u32) {
    assert_eq!(Check::of(&answer), check, "the answer is {answer:?}");
}

fn part_0(pool: &mut BlockPool) {
    // 0: []
    same(pool.allocate(0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 1: [#1]
    same(pool.allocate(1), 0x6af8de86);
    pool.check_invariants().unwrap();
    // 2: [#2, #3, #4, #5, #6]
    same(pool.allocate(5), 0x8e989490);
    pool.check_invariants().unwrap();
    // 3: [#7]
    same(pool.allocate(1), 0x92da957d);
    pool.check_invariants().unwrap();
    // 4: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[1, 2, 3, 4], 0), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 5: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[5, 6, 7, 8], 0), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 6: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[5, 6, 7, 8, 9], 0), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 7: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[1, 2, 10, 11, 12], 0), 4), 0x50caa327);
    pool.check_invariants().unwrap();
    // 8: []
    same(pool.match_and_acquire_for(&chain("sha256", "none", 2, &[5, 6, 7, 8, 13, 14], 0), usize::MAX, TenantId(1)), 0x50caa327);
    pool.check_invariants().unwrap();
    // 9: Registered { blocks: 0, collided: false }
    same(pool.register(&ids(&[]), &chain("sha256", "none", 2, &[5, 6, 7, 8, 9, 15, 16], 0), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 10: ()
    same(pool.mark_computed(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 11: Registered { blocks: 0, collided: false }
    same(pool.register(&ids(&[]), &chain("sha256", "none", 2, &[5, 6, 17], 0), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 12: ()
    same(pool.mark_computed(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 13: Registered { blocks: 1, collided: false }
    same(pool.register(&ids(&[2]), &chain("sha256", "none", 2, &[1], 0), 0), 0xe88aa583);
    pool.check_invariants().unwrap();
    // 14: ()
    same(pool.mark_computed(&ids(&[2])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 15: refused: 0 blocks from position 2 do not fit a hash chain of 0 full blocks
    same(pool.register(&ids(&[]), &chain("sha256", "none", 2, &[], 0), 2), 0xf0ece5ea);
    pool.check_invariants().unwrap();
    // 16: ()
    same(pool.release(&ids(&[7])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 17: ()
    same(pool.release(&ids(&[2, 3, 4, 5, 6])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 18: ()
    same(pool.release(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 19: ()
    same(pool.release_table(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 20: Ticket(0)
    same(pool.fence(), 0x50caa327);
    pool.check_invariants().unwrap();
    // 21: ()
    same(pool.release_until(&ids(&[1]), kvpool::Ticket::new(0)), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 22: refused: ticket 1 is not open: it has ended already, or is of another pool (1 are open)
    same(pool.end_fence(kvpool::Ticket::new(1)), 0xa243eb80);
    pool.check_invariants().unwrap();
    // 23: 0
    same(pool.complete_step(1), 0x50caa327);
    pool.check_invariants().unwrap();
    // 24: ()
    same(pool.acquire(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 25: None
    same(pool.acquire_registered(&link("sha256", "none", 2, &[5, 6, 7], 0)), 0x50caa327);
    pool.check_invariants().unwrap();
    // 26: HintReport { accepted: 0, clipped: 0, ignored: 0 }
    same(pool.retain(&ids(&[]), Retention { keep: Keep::Priority(Priority::new(35).unwrap()), ttl: Some(Ttl::Idle(3.0)), then: Then::Demote }), 0x532a9d3d);
    pool.check_invariants().unwrap();
    // 27: ()
    same(pool.resize(65), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 28: 1 events
    same(pool.take_events().events.len(), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 29: []
    same(pool.register_table(&ids(&[]), &chain("sha256", "none", 2, &[5, 18, 19, 20], 0), 2), 0x50caa327);
    pool.check_invariants().unwrap();
    // 30: []
    same(pool.adopt(&ids(&[64, 63]), &chain("sha256", "none", 2, &[5, 21], 0), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 31: ()
    same(pool.acquire_match(&Match::new(&chain("sha256", "none", 2, &[], 0), 0, &ids(&[])).unwrap()), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 32: refused: the hash chain was made with blake3, this pool has registered blocks hashed with sha256
    same(pool.register(&ids(&[]), &chain("blake3", "none", 2, &[22, 23, 24, 25, 26], 0), 0), 0x1971647c);
    pool.check_invariants().unwrap();
    // 33: refused: the hash chain was made with blake3, this pool has registered blocks hashed with sha256
    same(pool.match_and_acquire(&chain("blake3", "none", 2, &[22, 23, 24, 25, 26], 0), 0), 0x1971647c);
    pool.check_invariants().unwrap();
    // 34: [#6, #5, #4]
    same(pool.allocate(3), 0xab382b3d);
    pool.check_invariants().unwrap();
    // 35: []
    same(pool.allocate(0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 36: [#3, #7]
    same(pool.allocate(2), 0xd341c564);
    pool.check_invariants().unwrap();
    // 37: [#8, #9, #10]
    same(pool.allocate(3), 0x99ac4df2);
    pool.check_invariants().unwrap();
    // 38: [#2]
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[1, 2, 10, 11, 27, 28], 0), 4), 0x4e8a9fd1);
    pool.check_invariants().unwrap();
    // 39: [#2]
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[1, 2, 10, 29, 30, 31], 0), 6), 0x4e8a9fd1);
    pool.check_invariants().unwrap();
    // 40: refused: the hash chain belongs to epoch 1, the pool is in epoch 0: hash the tokens again
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[32, 33, 34, 35, 36], 1), 6), 0x32911419);
    pool.check_invariants().unwrap();
    // 41: [#2]
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[1, 2, 10], 0), 2), 0x4e8a9fd1);
    pool.check_invariants().unwrap();
    // 42: [#2]
    same(pool.match_and_acquire_for(&chain("sha256", "none", 2, &[1, 2, 10, 11, 12, 37, 38, 39], 0), usize::MAX, TenantId(1)), 0x4e8a9fd1);
    pool.check_invariants().unwrap();
    // 43: Registered { blocks: 3, collided: false }
    same(pool.register(&ids(&[8, 9, 10]), &chain("sha256", "none", 2, &[1, 2, 10], 0), 0), 0xbb143b6c);
    pool.check_invariants().unwrap();
    // 44: ()
    same(pool.mark_computed(&ids(&[8, 9, 10])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 45: refused: the hash chain belongs to epoch 1, the pool is in epoch 0: hash the tokens again
    same(pool.register(&ids(&[6, 5, 4]), &chain("sha256", "none", 2, &[40, 41, 42, 43, 44, 45, 46], 1), 0), 0x32911419);
    pool.check_invariants().unwrap();
    // 46: refused: block 6 is not registered: register it before marking it computed
    same(pool.mark_computed(&ids(&[6, 5, 4])), 0x9d3ec4b0);
    pool.check_invariants().unwrap();
    // 47: Registered { blocks: 2, collided: false }
    same(pool.register(&ids(&[6, 5]), &chain("sha256", "none", 2, &[47, 48], 0), 0), 0x83f1241f);
    pool.check_invariants().unwrap();
    // 48: ()
    same(pool.mark_computed(&ids(&[6, 5])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 49: refused: block 6 is already registered
    same(pool.register(&ids(&[6, 5, 4]), &chain("sha256", "none", 2, &[5, 6, 7, 8, 49, 50], 0), 1), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 50: ()
    same(pool.release(&ids(&[6, 5, 4])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 51: ()
    same(pool.release(&ids(&[64, 63, 3, 7])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 52: ()
    same(pool.release(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 53: ()
    same(pool.release_table(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 54: refused: ticket 1 is not open: it has ended already, or is of another pool (1 are open)
    same(pool.release_until(&ids(&[2]), kvpool::Ticket::new(1)), 0xa243eb80);
    pool.check_invariants().unwrap();
    // 55: 0
    same(pool.complete_step(2), 0x50caa327);
    pool.check_invariants().unwrap();
    // 56: ()
    same(pool.acquire(&ids(&[2])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 57: Some(#9)
    same(pool.acquire_registered(&link("sha256", "none", 2, &[1, 2], 0)), 0xea7ad4e1);
    pool.check_invariants().unwrap();
    // 58: ()
    same(pool.mark_accessed(&ids(&[2]), 58.0), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 59: 1
    same(pool.drop_cached(&ids(&[39, 2])), 0xcc9804cd);
    pool.check_invariants().unwrap();
    // 60: 6 events
    same(pool.take_events().events.len(), 0xc9de4644);
    pool.check_invariants().unwrap();
    // 61: refused: the hash chain belongs to epoch 1, the pool is in epoch 0: hash the tokens again
    same(pool.register_table(&ids(&[]), &chain("sha256", "none", 2, &[51, 52, 53], 1), 1), 0x32911419);
    pool.check_invariants().unwrap();
    // 62: refused: 8 blocks from position 0 do not fit a hash chain of 7 full blocks
    same(pool.adopt(&ids(&[62, 61, 60, 59, 58, 57, 56, 32]), &chain("sha256", "none", 2, &[1, 2, 10, 11, 12, 54, 55], 0), 0), 0xf0ece5ea);
    pool.check_invariants().unwrap();
    // 63: ()
    same(pool.acquire_match(&Match::new(&chain("sha256", "none", 2, &[1, 2, 10], 0), 1, &ids(&[9, 10])).unwrap()), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 64: refused: the hash chain was made with blake3, this pool has registered blocks hashed with sha256
    same(pool.register(&ids(&[2, 9, 10]), &chain("blake3", "none", 2, &[22, 23, 24, 56], 0), 0), 0x1971647c);
    pool.check_invariants().unwrap();
    // 65: refused: the hash chain was made with blake3, this pool has registered blocks hashed with sha256
    same(pool.match_and_acquire(&chain("blake3", "none", 2, &[22, 23, 24, 56], 0), 0), 0x1971647c);
    pool.check_invariants().unwrap();
    // 66: []
    same(pool.allocate(0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 67: [#7]
    same(pool.allocate(1), 0x92da957d);
    pool.check_invariants().unwrap();
    // 68: [#3, #4, #11, #12]
    same(pool.allocate(4), 0x72266914);
    pool.check_invariants().unwrap();
    // 69: [#13, #14, #15, #16, #17]
    same(pool.allocate(5), 0x27cba1d5);
    pool.check_invariants().unwrap();
    // 70: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[57], 0), 4), 0x50caa327);
    pool.check_invariants().unwrap();
    // 71: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[58, 59, 60, 61, 62], 0), 3), 0x50caa327);
    pool.check_invariants().unwrap();
    // 72: refused: the hash chain belongs to epoch 1, the pool is in epoch 0: hash the tokens again
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[40, 41, 42, 63, 64, 65], 1), 6), 0x32911419);
    pool.check_invariants().unwrap();
    // 73: [#8, #9, #10]
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[1, 2, 10, 29], 0), 5), 0x99ac4df2);
    pool.check_invariants().unwrap();
    // 74: [#64]
    same(pool.match_and_acquire_for(&chain("sha256", "none", 2, &[5, 6, 7, 66], 0), usize::MAX, TenantId(1)), 0xaa256c19);
    pool.check_invariants().unwrap();
    // 75: refused: the hash chain belongs to epoch 1, the pool is in epoch 0: hash the tokens again
    same(pool.register(&ids(&[8]), &chain("sha256", "none", 2, &[40], 1), 0), 0x32911419);
    pool.check_invariants().unwrap();
    // 76: ()
    same(pool.mark_computed(&ids(&[8])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 77: Registered { blocks: 1, collided: false }
    same(pool.register(&ids(&[2]), &chain("sha256", "none", 2, &[5, 6, 7, 66], 0), 0), 0xe88aa583);
    pool.check_invariants().unwrap();
    // 78: ()
    same(pool.mark_computed(&ids(&[2])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 79: refused: the hash chain belongs to epoch 1, the pool is in epoch 0: hash the tokens again
    same(pool.register(&ids(&[2]), &chain("sha256", "none", 2, &[67, 68, 69], 1), 0), 0x32911419);
    pool.check_invariants().unwrap();
    // 80: ()
    same(pool.mark_computed(&ids(&[2])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 81: Registered { blocks: 0, collided: false }
    same(pool.register(&ids(&[]), &chain("sha256", "none", 2, &[1, 70], 0), 2), 0x50caa327);
    pool.check_invariants().unwrap();
    // 82: ()
    same(pool.release(&ids(&[2])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 83: ()
    same(pool.release(&ids(&[8, 9, 10, 2, 2, 13, 14, 15, 16, 17])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 84: ()
    same(pool.release(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 85: ()
    same(pool.release_table(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 86: ()
    same(pool.release_after(&ids(&[2, 9, 10, 7, 3, 4, 11, 12, 64]), 1), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 87: 0
    same(pool.complete_step(2), 0x50caa327);
    pool.check_invariants().unwrap();
    // 88: ()
    same(pool.acquire(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 89: refused: block 10 is already registered
    same(pool.register_link(BlockId::new(10), &link("sha256", "none", 2, &[1], 0)), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 90: HintReport { accepted: 0, clipped: 0, ignored: 0 }
    same(pool.retain(&ids(&[]), Retention { keep: Keep::Demoted, ttl: None, then: Then::Demote }), 0x532a9d3d);
    pool.check_invariants().unwrap();
    // 91: refused: block 0 is the null block: it cannot be evicted
    same(pool.drop_cached(&ids(&[30, 0])), 0x88ee79af);
    pool.check_invariants().unwrap();
    // 92: 0 events
    same(pool.take_events().events.len(), 0x00000000);
    pool.check_invariants().unwrap();
    // 93: []
    same(pool.register_table(&ids(&[]), &chain("sha256", "none", 2, &[], 0), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 94: [(0, #8)]
    same(pool.adopt(&ids(&[62, 61, 60, 59, 58]), &chain("sha256", "none", 2, &[1, 71, 72, 73, 74], 0), 0), 0x76b6eaa6);
    pool.check_invariants().unwrap();
    // 95: Match { start: 0, blocks: [#8, #61, #60, #59], algorithm: Sha256, block_size: 2, epoch: 0, hashes: [a6c788dd7b153def0000000000000000000000000000000000000000
    same(pool.lookup_refreshing(&chain("sha256", "none", 2, &[1, 71, 72, 73, 74], 0), 0, 4), 0x15912fd1);
    pool.check_invariants().unwrap();
    // 96: ()
    same(pool.acquire_match(&Match::new(&chain("sha256", "none", 2, &[1, 71, 72, 73], 0), 0, &ids(&[8, 61, 60, 59])).unwrap()), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 97: refused: the hash chain was made with xxh3, this pool has registered blocks hashed with sha256
    same(pool.register(&ids(&[]), &chain("xxh3", "none", 2, &[75, 76, 77, 78, 79], 0), 0), 0x1971647c);
    pool.check_invariants().unwrap();
    // 98: refused: the hash chain was made with xxh3, this pool has registered blocks hashed with sha256
    same(pool.match_and_acquire(&chain("xxh3", "none", 2, &[75, 76, 77, 78, 79], 0), 0), 0x1971647c);
    pool.check_invariants().unwrap();
    // 99: [#12]
    same(pool.allocate(1), 0x6161ccdc);
    pool.check_invariants().unwrap();
    // 100: [#11, #4, #3, #7]
    same(pool.allocate(4), 0xb1852826);
    pool.check_invariants().unwrap();
    // 101: [#17, #16, #15, #14, #13]
    same(pool.allocate(5), 0x7605e3c6);
    pool.check_invariants().unwrap();
    // 102: [#18, #19, #20]
    same(pool.allocate(3), 0x16131f33);
    pool.check_invariants().unwrap();
    // 103: [#64]
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[5, 6, 7, 80], 0), 5), 0xaa256c19);
    pool.check_invariants().unwrap();
    // 104: [#64]
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[5, 6, 7, 8, 49, 81], 0), 1), 0xaa256c19);
    pool.check_invariants().unwrap();
    // 105: [#8]
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[1, 2, 10, 82, 83, 84, 85], 0), 1), 0x36a8d7ba);
    pool.check_invariants().unwrap();
    // 106: [#64]
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[5, 6, 7, 8, 13], 0), 6), 0xaa256c19);
    pool.check_invariants().unwrap();
    // 107: []
    same(pool.match_and_acquire_for(&chain("sha256", "none", 2, &[86], 0), usize::MAX, TenantId(1)), 0x50caa327);
    pool.check_invariants().unwrap();
    // 108: refused: block 8 is already registered
    same(pool.register(&ids(&[8, 61, 60, 59, 58, 17]), &chain("sha256", "none", 2, &[5, 6, 7, 8, 49, 87], 0), 0), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 109: refused: block 17 is not registered: register it before marking it computed
    same(pool.mark_computed(&ids(&[8, 61, 60, 59, 58, 17])), 0x9d3ec4b0);
    pool.check_invariants().unwrap();
    // 110: Registered { blocks: 3, collided: false }
    same(pool.register(&ids(&[18, 19, 20]), &chain("sha256", "none", 2, &[1, 71, 88, 89, 90], 0), 0), 0xbb143b6c);
    pool.check_invariants().unwrap();
    // 111: ()
    same(pool.mark_computed(&ids(&[18, 19, 20])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 112: Registered { blocks: 4, collided: false }
    same(pool.register(&ids(&[11, 4, 3, 7]), &chain("sha256", "none", 2, &[5, 6, 7, 66], 0), 0), 0xcf32a195);
    pool.check_invariants().unwrap();
    // 113: ()
    same(pool.mark_computed(&ids(&[11, 4, 3, 7])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 114: refused: block 18 is already registered
    same(pool.register(&ids(&[18, 19, 20]), &chain("sha256", "none", 2, &[5, 6, 91, 92], 0), 0), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 115: ()
    same(pool.release(&ids(&[64, 8, 64])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 116: ()
    same(pool.release(&ids(&[2, 9, 8, 9, 10, 8, 61, 60, 59, 12])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 117: ()
    same(pool.release(&ids(&[11, 4, 3, 7])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 118: ()
    same(pool.release_table(&ids(&[18, 19, 20])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 119: refused: ticket 2 is not open: it has ended already, or is of another pool (1 are open)
    same(pool.release_until(&ids(&[]), kvpool::Ticket::new(2)), 0xa243eb80);
    pool.check_invariants().unwrap();
    // 120: 0
    same(pool.complete_step(4), 0x50caa327);
    pool.check_invariants().unwrap();
    // 121: ()
    same(pool.acquire(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 122: Some(#64)
    same(pool.acquire_registered(&link("sha256", "none", 2, &[5], 0)), 0xaa256c19);
    pool.check_invariants().unwrap();
    // 123: ()
    same(pool.mark_accessed(&ids(&[64]), 61.0), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 124: 1
    same(pool.bump_epoch(), 0xcc9804cd);
    pool.check_invariants().unwrap();
    // 125: 1 events
    same(pool.take_events().events.len(), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 126: []
    same(pool.register_table(&ids(&[]), &chain("sha256", "none", 2, &[67, 68, 69, 93], 1), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 127: ()
    same(pool.disown(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 128: ()
    same(pool.acquire_match(&Match::new(&chain("sha256", "none", 2, &[], 1), 0, &ids(&[])).unwrap()), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 129: refused: the hash chain belongs to epoch 0, the pool is in epoch 1: hash the tokens again
    same(pool.register(&ids(&[8, 61]), &chain("xxh3", "none", 2, &[94, 95], 0), 0), 0x32911419);
    pool.check_invariants().unwrap();
    // 130: refused: the hash chain belongs to epoch 0, the pool is in epoch 1: hash the tokens again
    same(pool.match_and_acquire(&chain("xxh3", "none", 2, &[94, 95], 0), 0), 0x32911419);
    pool.check_invariants().unwrap();
    // 131: [#18, #19]
    same(pool.allocate(2), 0x8493bcd3);
    pool.check_invariants().unwrap();
    // 132: []
    same(pool.allocate(0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 133: []
    same(pool.allocate(0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 134: [#20, #11]
    same(pool.allocate(2), 0x8fc9b6f8);
    pool.check_invariants().unwrap();
    // 135: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[40, 41], 1), 1), 0x50caa327);
    pool.check_invariants().unwrap();
    // 136: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[32, 33, 96], 1), 2), 0x50caa327);
    pool.check_invariants().unwrap();
    // 137: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[32, 33, 34, 97, 98, 99], 1), 6), 0x50caa327);
    pool.check_invariants().unwrap();
    // 138: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[100, 101, 102, 103], 1), 6), 0x50caa327);
    pool.check_invariants().unwrap();
    // 139: []
    same(pool.match_and_acquire_for(&chain("sha256", "none", 2, &[32, 33, 34, 97, 104], 1), usize::MAX, TenantId(1)), 0x50caa327);
    pool.check_invariants().unwrap();
    // 140: Registered { blocks: 1, collided: false }
    same(pool.register(&ids(&[64]), &chain("sha256", "none", 2, &[40, 41], 1), 0), 0xe88aa583);
    pool.check_invariants().unwrap();
    // 141: ()
    same(pool.mark_computed(&ids(&[64])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 142: Registered { blocks: 2, collided: false }
    same(pool.register(&ids(&[20, 11]), &chain("sha256", "none", 2, &[67, 68, 69, 105], 1), 0), 0x83f1241f);
    pool.check_invariants().unwrap();
    // 143: ()
    same(pool.mark_computed(&ids(&[20, 11])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 144: refused: block 20 is already registered
    same(pool.register(&ids(&[20, 11]), &chain("sha256", "none", 2, &[106, 107, 108, 109], 1), 0), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 145: ()
    same(pool.mark_computed(&ids(&[20, 11])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 146: refused: block 20 is already registered
    same(pool.register(&ids(&[20, 11]), &chain("sha256", "none", 2, &[40, 41, 42, 63], 1), 0), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 147: ()
    same(pool.release(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 148: ()
    same(pool.release(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 149: ()
    same(pool.release(&ids(&[8, 61, 60, 59, 58, 17, 16, 15, 14, 13, 64])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 150: ()
    same(pool.release_table(&ids(&[64])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 151: ()
    same(pool.release_after(&ids(&[]), 2), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 152: refused: ticket 1 is not open: it has ended already, or is of another pool (1 are open)
    same(pool.end_fence(kvpool::Ticket::new(1)), 0xa243eb80);
    pool.check_invariants().unwrap();
    // 153: 0
    same(pool.complete_step(5), 0x50caa327);
    pool.check_invariants().unwrap();
    // 154: ()
    same(pool.acquire(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 155: #11
    same(pool.register_link(BlockId::new(19), &link("sha256", "none", 2, &[67, 68], 1)), 0xa4ba4296);
    pool.check_invariants().unwrap();
    // 156: HintReport { accepted: 0, clipped: 0, ignored: 0 }
    same(pool.retain(&ids(&[]), Retention { keep: Keep::Demoted, ttl: None, then: Then::Demote }), 0x532a9d3d);
    pool.check_invariants().unwrap();
    // 157: refused: 3 blocks are active and 1 fenced: release them first, or bump the epoch, which always succeeds
    same(pool.reset(), 0xde9294cb);
    pool.check_invariants().unwrap();
    // 158: 3 events
    same(pool.take_events().events.len(), 0x74ef2322);
    pool.check_invariants().unwrap();
    // 159: []
    same(pool.register_table(&ids(&[]), &chain("sha256", "none", 2, &[40, 41, 42, 110], 1), 2), 0x50caa327);
    pool.check_invariants().unwrap();
    // 160: [#64]
    same(pool.evict(4), 0xaa256c19);
    pool.check_invariants().unwrap();
    // 161: ()
    same(pool.acquire_match(&Match::new(&chain("sha256", "none", 2, &[67, 68], 1), 1, &ids(&[11])).unwrap()), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 162: refused: the hash chain belongs to epoch 0, the pool is in epoch 1: hash the tokens again
    same(pool.register(&ids(&[11]), &chain("xxh3", "none", 3, &[111, 112, 113, 114, 115], 0), 0), 0x32911419);
    pool.check_invariants().unwrap();
    // 163: refused: the hash chain belongs to epoch 0, the pool is in epoch 1: hash the tokens again
    same(pool.match_and_acquire(&chain("xxh3", "none", 3, &[111, 112, 113, 114, 115], 0), 0), 0x32911419);
    pool.check_invariants().unwrap();
    // 164: []
    same(pool.allocate(0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 165: [#64]
    same(pool.allocate(1), 0xaa256c19);
    pool.check_invariants().unwrap();
    // 166: [#19]
    same(pool.allocate(1), 0xcc5e7137);
    pool.check_invariants().unwrap();
    // 167: []
    same(pool.allocate(0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 168: [#20, #11]
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[67, 68, 69, 105, 116, 117], 1), 3), 0x8fc9b6f8);
    pool.check_invariants().unwrap();
    // 169: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[40, 41, 42, 110, 118, 119], 1), 1), 0x50caa327);
    pool.check_invariants().unwrap();
    // 170: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[32, 33, 120, 121, 122], 1), 6), 0x50caa327);
    pool.check_invariants().unwrap();
    // 171: [#20, #11]
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[67, 68, 69, 123, 124, 125], 1), 3), 0x8fc9b6f8);
    pool.check_invariants().unwrap();
    // 172: refused: the hash chain belongs to epoch 2, the pool is in epoch 1: hash the tokens again
    same(pool.match_and_acquire_for(&chain("sha256", "none", 2, &[126, 127, 128, 129, 130, 131, 132, 133, 134], 2), usize::MAX, TenantId(1)), 0x32911419);
    pool.check_invariants().unwrap();
    // 173: refused: block 20 is already registered
    same(pool.register(&ids(&[20, 11, 20, 11]), &chain("sha256", "none", 2, &[67, 68, 69, 123], 1), 0), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 174: ()
    same(pool.mark_computed(&ids(&[20, 11, 20, 11])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 175: refused: block 20 is already registered
    same(pool.register(&ids(&[20]), &chain("sha256", "none", 2, &[135], 1), 0), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 176: ()
    same(pool.mark_computed(&ids(&[20])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 177: Registered { blocks: 0, collided: false }
    same(pool.register(&ids(&[]), &chain("sha256", "none", 2, &[32, 33, 34, 97, 136, 137], 1), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 178: ()
    same(pool.mark_computed(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 179: refused: block 11 is already registered
    same(pool.register(&ids(&[18, 11, 20, 11]), &chain("sha256", "none", 2, &[40, 41, 42, 43, 44, 45, 138, 139], 1), 2), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 180: ()
    same(pool.release(&ids(&[20, 11, 20, 11])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 181: ()
    same(pool.release(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 182: ()
    same(pool.release(&ids(&[64])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 183: ()
    same(pool.release_table(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 184: refused: ticket 3 is not open: it has ended already, or is of another pool (1 are open)
    same(pool.release_until(&ids(&[]), kvpool::Ticket::new(3)), 0xa243eb80);
    pool.check_invariants().unwrap();
    // 185: 0
    same(pool.complete_step(7), 0x50caa327);
    pool.check_invariants().unwrap();
    // 186: ()
    same(pool.acquire(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 187: Some(#11)
    same(pool.acquire_registered(&link("sha256", "none", 2, &[67, 68], 1)), 0x4dc11388);
    pool.check_invariants().unwrap();
    // 188: ()
    same(pool.mark_accessed(&ids(&[11]), 19.0), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 189: 0
    same(pool.drop_cached(&ids(&[4, 7])), 0x50caa327);
    pool.check_invariants().unwrap();
    // 190: 1 events
    same(pool.take_events().events.len(), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 191: []
    same(pool.register_table(&ids(&[]), &chain("sha256", "none", 2, &[40, 41, 42, 43, 140, 141, 142, 143], 1), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 192: []
    same(pool.evict(3), 0x50caa327);
    pool.check_invariants().unwrap();
    // 193: ()
    same(pool.acquire_match(&Match::new(&chain("sha256", "none", 2, &[], 1), 0, &ids(&[])).unwrap()), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 194: refused: block 11 is already registered
    same(pool.register(&ids(&[18, 11, 20, 11]), &digests("sha256", "none", 2, &[67, 68, 69, 123, 144, 145, 146], 1), 0), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 195: []
    same(pool.match_and_acquire(&digests("sha256", "none", 2, &[67, 68, 69, 123, 144, 145, 146], 1), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 196: [#64, #13, #14, #15]
    same(pool.allocate(4), 0x70153e88);
    pool.check_invariants().unwrap();
    // 197: [#16, #17, #58, #59, #60]
    same(pool.allocate(5), 0xff411fcd);
    pool.check_invariants().unwrap();
    // 198: [#61, #8, #4]
    same(pool.allocate(3), 0x9ca93374);
    pool.check_invariants().unwrap();
    // 199: [#3, #7, #2, #9, #10]
    same(pool.allocate(5), 0x17458227);
    pool.check_invariants().unwrap();
    // 200: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[147, 148], 1), 6), 0x50caa327);
    pool.check_invariants().unwrap();
    // 201: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[32, 33, 34, 35, 36, 149], 1), 2), 0x50caa327);
    pool.check_invariants().unwrap();
    // 202: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[32, 33, 34, 97, 136, 150, 151, 152, 153], 1), 3), 0x50caa327);
    pool.check_invariants().unwrap();
    // 203: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[154, 155, 156, 157, 158], 1), 5), 0x50caa327);
    pool.check_invariants().unwrap();
    // 204: []
    same(pool.match_and_acquire_for(&chain("sha256", "none", 2, &[32, 33, 34, 97, 136], 1), usize::MAX, TenantId(1)), 0x50caa327);
    pool.check_invariants().unwrap();
    // 205: refused: block 11 is already registered
    same(pool.register(&ids(&[18, 11, 20, 11, 3, 7]), &chain("sha256", "none", 2, &[32, 33, 34, 97, 136, 159], 1), 0), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 206: refused: block 18 is not registered: register it before marking it computed
    same(pool.mark_computed(&ids(&[18, 11, 20, 11, 3, 7])), 0x9d3ec4b0);
    pool.check_invariants().unwrap();
    // 207: Registered { blocks: 0, collided: false }
    same(pool.register(&ids(&[]), &chain("sha256", "none", 2, &[], 1), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 208: ()
    same(pool.mark_computed(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 209: Registered { blocks: 0, collided: false }
    same(pool.register(&ids(&[]), &chain("sha256", "none", 2, &[], 1), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 210: ()
    same(pool.mark_computed(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 211: refused: the hash chain belongs to epoch 2, the pool is in epoch 1: hash the tokens again
    same(pool.register(&ids(&[18, 11, 20, 11]), &chain("sha256", "none", 2, &[126, 127, 160, 161], 2), 0), 0x32911419);
    pool.check_invariants().unwrap();
    // 212: ()
    same(pool.release(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 213: ()
    same(pool.release(&ids(&[18, 11, 20, 11, 3, 7, 2, 9, 10])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 214: ()
    same(pool.release(&ids(&[11])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 215: ()
    same(pool.release_table(&ids(&[64, 13, 14, 15, 16, 17, 58, 59, 60, 61, 8, 4])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 216: Ticket(1)
    same(pool.fence(), 0xcc9804cd);
    pool.check_invariants().unwrap();
    // 217: ()
    same(pool.release_until(&ids(&[11, 19]), kvpool::Ticket::new(1)), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 218: 0
    same(pool.complete_step(8), 0x50caa327);
    pool.check_invariants().unwrap();
    // 219: ()
    same(pool.acquire(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 220: Some(#11)
    same(pool.acquire_registered(&link("sha256", "none", 2, &[67, 68], 1)), 0x4dc11388);
    pool.check_invariants().unwrap();
    // 221: HintReport { accepted: 0, clipped: 0, ignored: 0 }
    same(pool.retain(&ids(&[]), Retention { keep: Keep::Pinned, ttl: Some(Ttl::Idle(3.0)), then: Then::Normal }), 0x532a9d3d);
    pool.check_invariants().unwrap();
    // 222: 2
    same(pool.bump_epoch(), 0xe88aa583);
    pool.check_invariants().unwrap();
    // 223: 1 events
    same(pool.take_events().events.len(), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 224: []
    same(pool.register_table(&ids(&[]), &chain("sha256", "none", 2, &[162, 163, 164, 165, 166], 2), 1), 0x50caa327);
    pool.check_invariants().unwrap();
    // 225: refused: block 11 is fenced: cannot disown it
    same(pool.disown(&ids(&[11])), 0xbb5e3b2e);
    pool.check_invariants().unwrap();
    // 226: refused: the hash chain belongs to epoch 0, the pool is in epoch 2: hash the tokens again
    same(pool.lookup_refreshing(&chain("sha256", "none", 2, &[1, 71, 72, 73, 74], 0), 1, 0), 0x32911419);
    pool.check_invariants().unwrap();
    // 227: ()
    same(pool.acquire_match(&Match::new(&chain("sha256", "none", 2, &[], 1), 0, &ids(&[])).unwrap()), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 228: refused: the hash chain belongs to epoch 0, the pool is in epoch 2: hash the tokens again
    same(pool.register(&ids(&[]), &chain("xxh3", "none", 2, &[75, 76, 77, 167, 168], 0), 0), 0x32911419);
    pool.check_invariants().unwrap();
    // 229: refused: the hash chain belongs to epoch 0, the pool is in epoch 2: hash the tokens again
    same(pool.match_and_acquire(&chain("xxh3", "none", 2, &[75, 76, 77, 167, 168], 0), 0), 0x32911419);
    pool.check_invariants().unwrap();
    // 230: [#20, #64, #13, #14, #15]
    same(pool.allocate(5), 0xa912a2fc);
    pool.check_invariants().unwrap();
    // 231: [#16, #17, #58, #59, #60]
    same(pool.allocate(5), 0xff411fcd);
    pool.check_invariants().unwrap();
    // 232: [#61, #8, #4, #10, #9]
    same(pool.allocate(5), 0x0da74034);
    pool.check_invariants().unwrap();
    // 233: [#2, #7, #3, #18, #63]
    same(pool.allocate(5), 0xdaecd7d9);
    pool.check_invariants().unwrap();
    // 234: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[169, 170, 171], 2), 1), 0x50caa327);
    pool.check_invariants().unwrap();
    // 235: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[162, 163, 172, 173, 174, 175], 2), 5), 0x50caa327);
    pool.check_invariants().unwrap();
    // 236: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[162, 163, 172, 173, 174, 176], 2), 4), 0x50caa327);
    pool.check_invariants().unwrap();
    // 237: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[162, 163, 177, 178], 2), 3), 0x50caa327);
    pool.check_invariants().unwrap();
    // 238: []
    same(pool.match_and_acquire_for(&chain("sha256", "none", 2, &[179, 180, 181, 182, 183], 2), usize::MAX, TenantId(1)), 0x50caa327);
    pool.check_invariants().unwrap();
    // 239: Registered { blocks: 3, collided: false }
    same(pool.register(&ids(&[20, 64, 13]), &chain("sha256", "none", 2, &[162, 163, 164], 2), 0), 0xbb143b6c);
    pool.check_invariants().unwrap();
    // 240: ()
    same(pool.mark_computed(&ids(&[20, 64, 13])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 241: Registered { blocks: 0, collided: false }
    same(pool.register(&ids(&[]), &chain("sha256", "none", 2, &[126, 184, 185, 186], 2), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 242: ()
    same(pool.mark_computed(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 243: Registered { blocks: 0, collided: false }
    same(pool.register(&ids(&[]), &chain("sha256", "none", 2, &[162, 187], 2), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 244: ()
    same(pool.mark_computed(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 245: Registered { blocks: 0, collided: false }
    same(pool.register(&ids(&[]), &chain("sha256", "none", 2, &[188, 189, 190], 2), 2), 0x50caa327);
    pool.check_invariants().unwrap();
    // 246: ()
    same(pool.release(&ids(&[16, 17, 58, 59, 60, 2, 7, 3, 18, 63])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 247: ()
    same(pool.release(&ids(&[11])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 248: ()
    same(pool.release(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 249: ()
    same(pool.release_table(&ids(&[20, 64, 13, 14, 15, 61, 8, 4, 10, 9])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
}

fn part_1(pool: &mut BlockPool) {
    // 250: ()
    same(pool.release_after(&ids(&[]), 2), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 251: 1
    same(pool.end_fence(kvpool::Ticket::new(0)), 0xcc9804cd);
    pool.check_invariants().unwrap();
    // 252: 0
    same(pool.complete_step(8), 0x50caa327);
    pool.check_invariants().unwrap();
    // 253: ()
    same(pool.acquire(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 254: Some(#20)
    same(pool.acquire_registered(&link("sha256", "none", 2, &[162], 2)), 0xe00fb0e1);
    pool.check_invariants().unwrap();
    // 255: HintReport { accepted: 0, clipped: 0, ignored: 0 }
    same(pool.retain(&ids(&[]), Retention { keep: Keep::Demoted, ttl: None, then: Then::Demote }), 0x532a9d3d);
    pool.check_invariants().unwrap();
    // 256: 1
    same(pool.drop_cached(&ids(&[20, 6])), 0xcc9804cd);
    pool.check_invariants().unwrap();
    // 257: 4 events
    same(pool.take_events().events.len(), 0x30be82d6);
    pool.check_invariants().unwrap();
    // 258: []
    same(pool.register_table(&ids(&[20]), &chain("sha256", "none", 2, &[188, 189, 191, 192], 2), 2), 0x50caa327);
    pool.check_invariants().unwrap();
    // 259: ()
    same(pool.disown(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 260: refused: the hash chain belongs to epoch 0, the pool is in epoch 2: hash the tokens again
    same(pool.lookup_refreshing(&chain("sha256", "none", 2, &[1, 71, 72, 73, 74], 0), 1, 0), 0x32911419);
    pool.check_invariants().unwrap();
    // 261: ()
    same(pool.acquire_match(&Match::new(&chain("sha256", "none", 2, &[], 1), 0, &ids(&[])).unwrap()), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 262: refused: the hash chain belongs to epoch 0, the pool is in epoch 2: hash the tokens again
    same(pool.register(&ids(&[]), &chain("xxh3", "none", 2, &[75, 76, 77, 193, 194, 195], 0), 0), 0x32911419);
    pool.check_invariants().unwrap();
    // 263: refused: the hash chain belongs to epoch 0, the pool is in epoch 2: hash the tokens again
    same(pool.match_and_acquire(&chain("xxh3", "none", 2, &[75, 76, 77, 193, 194, 195], 0), 0), 0x32911419);
    pool.check_invariants().unwrap();
    // 264: []
    same(pool.allocate(0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 265: [#1, #14]
    same(pool.allocate(2), 0x3069a828);
    pool.check_invariants().unwrap();
    // 266: [#15, #61, #8, #4, #10]
    same(pool.allocate(5), 0xb232fef7);
    pool.check_invariants().unwrap();
    // 267: [#9, #63, #18, #3, #7]
    same(pool.allocate(5), 0xb052871f);
    pool.check_invariants().unwrap();
    // 268: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[162], 2), 6), 0x50caa327);
    pool.check_invariants().unwrap();
    // 269: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[162, 163, 172, 173, 196, 197], 2), 3), 0x50caa327);
    pool.check_invariants().unwrap();
    // 270: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[162, 198, 199], 2), 4), 0x50caa327);
    pool.check_invariants().unwrap();
    // 271: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[179], 2), 3), 0x50caa327);
    pool.check_invariants().unwrap();
    // 272: []
    same(pool.match_and_acquire_for(&chain("sha256", "none", 2, &[], 2), usize::MAX, TenantId(1)), 0x50caa327);
    pool.check_invariants().unwrap();
    // 273: Registered { blocks: 4, collided: false }
    same(pool.register(&ids(&[15, 61, 8, 4]), &chain("sha256", "none", 2, &[200, 201, 202, 203], 2), 0), 0xcf32a195);
    pool.check_invariants().unwrap();
    // 274: ()
    same(pool.mark_computed(&ids(&[15, 61, 8, 4])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 275: Registered { blocks: 0, collided: false }
    same(pool.register(&ids(&[]), &chain("sha256", "none", 2, &[162, 163, 172, 173, 204, 205, 206, 207], 2), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 276: ()
    same(pool.mark_computed(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 277: Registered { blocks: 2, collided: false }
    same(pool.register(&ids(&[1, 14]), &chain("sha256", "none", 2, &[179, 208], 2), 0), 0x83f1241f);
    pool.check_invariants().unwrap();
    // 278: ()
    same(pool.mark_computed(&ids(&[1, 14])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 279: refused: block 1 is already registered
    same(pool.register(&ids(&[1, 14]), &chain("sha256", "none", 2, &[162, 163, 172, 209, 210], 2), 0), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 280: ()
    same(pool.release(&ids(&[1, 14])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 281: ()
    same(pool.release(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 282: ()
    same(pool.release(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 283: ()
    same(pool.release_table(&ids(&[20])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 284: refused: ticket 4 is not open: it has ended already, or is of another pool (1 are open)
    same(pool.release_until(&ids(&[15, 61, 8, 4, 10, 9, 63, 18, 3, 7]), kvpool::Ticket::new(4)), 0xa243eb80);
    pool.check_invariants().unwrap();
    // 285: refused: ticket 5 is not open: it has ended already, or is of another pool (1 are open)
    same(pool.end_fence(kvpool::Ticket::new(5)), 0xa243eb80);
    pool.check_invariants().unwrap();
    // 286: 0
    same(pool.complete_step(10), 0x50caa327);
    pool.check_invariants().unwrap();
    // 287: ()
    same(pool.acquire(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 288: #7
    same(pool.register_link(BlockId::new(7), &link("sha256", "none", 2, &[126], 2)), 0xf6f67b0a);
    pool.check_invariants().unwrap();
    // 289: refused: ttl is a time to live: must be a clock: call advance_time(now) first
    same(pool.retain(&ids(&[15, 61, 8, 4, 10, 9, 63, 18, 3, 7]), Retention { keep: Keep::Demoted, ttl: Some(Ttl::Absolute(2.0)), then: Then::Demote }), 0x706efb3a);
    pool.check_invariants().unwrap();
    // 290: refused: 10 blocks are active and 2 fenced: release them first, or bump the epoch, which always succeeds
    same(pool.reset(), 0xde9294cb);
    pool.check_invariants().unwrap();
    // 291: 7 events
    same(pool.take_events().events.len(), 0x2511a610);
    pool.check_invariants().unwrap();
    // 292: []
    same(pool.allocate(0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 293: [#2, #60, #59, #58, #17]
    same(pool.allocate(5), 0xb8fda53a);
    pool.check_invariants().unwrap();
    // 294: [#16, #6, #5, #12]
    same(pool.allocate(4), 0x1c06878c);
    pool.check_invariants().unwrap();
    // 295: [#21, #22, #23, #24]
    same(pool.allocate(4), 0xd83df433);
    pool.check_invariants().unwrap();
    // 296: [#1]
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[179, 180, 181, 211, 212, 213], 2), 1), 0x6af8de86);
    pool.check_invariants().unwrap();
    // 297: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[214, 215, 216, 217], 2), 4), 0x50caa327);
    pool.check_invariants().unwrap();
    // 298: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[162, 163, 172, 218, 219], 2), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 299: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[162, 163, 177, 178], 2), 1), 0x50caa327);
    pool.check_invariants().unwrap();
    // 300: []
    same(pool.match_and_acquire_for(&chain("sha256", "none", 2, &[162, 163, 172, 173, 196, 197, 220], 2), usize::MAX, TenantId(1)), 0x50caa327);
    pool.check_invariants().unwrap();
    // 301: refused: block 15 is already registered
    same(pool.register(&ids(&[15, 61, 8, 4]), &chain("sha256", "none", 2, &[221, 222, 223, 224], 2), 0), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 302: ()
    same(pool.mark_computed(&ids(&[15, 61, 8, 4])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 303: Registered { blocks: 0, collided: false }
    same(pool.register(&ids(&[]), &chain("sha256", "none", 2, &[162, 187], 2), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 304: ()
    same(pool.mark_computed(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 305: Registered { blocks: 0, collided: false }
    same(pool.register(&ids(&[]), &chain("sha256", "none", 2, &[214, 225, 226], 2), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 306: ()
    same(pool.mark_computed(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 307: Registered { blocks: 0, collided: false }
    same(pool.register(&ids(&[]), &chain("sha256", "none", 2, &[126, 127, 128, 129, 227], 2), 1), 0x50caa327);
    pool.check_invariants().unwrap();
    // 308: ()
    same(pool.release(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 309: ()
    same(pool.release(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 310: ()
    same(pool.release(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 311: ()
    same(pool.release_table(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 312: Ticket(2)
    same(pool.fence(), 0xe88aa583);
    pool.check_invariants().unwrap();
    // 313: ()
    same(pool.release_until(&ids(&[1]), kvpool::Ticket::new(2)), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 314: 0
    same(pool.complete_step(11), 0x50caa327);
    pool.check_invariants().unwrap();
    // 315: ()
    same(pool.acquire(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 316: None
    same(pool.acquire_registered(&link("sha256", "none", 2, &[162, 163, 172], 2)), 0x50caa327);
    pool.check_invariants().unwrap();
    // 317: ()
    same(pool.mark_accessed(&ids(&[]), 8.0), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 318: refused: block 0 is the null block: it cannot be evicted
    same(pool.drop_cached(&ids(&[0, 3])), 0x88ee79af);
    pool.check_invariants().unwrap();
    // 319: 0 events
    same(pool.take_events().events.len(), 0x00000000);
    pool.check_invariants().unwrap();
    // 320: []
    same(pool.register_table(&ids(&[]), &chain("sha256", "none", 2, &[126, 228, 229], 2), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 321: [#13, #64, #14, #20]
    same(pool.evict(4), 0xaffe1d48);
    pool.check_invariants().unwrap();
    // 322: ()
    same(pool.acquire_match(&Match::new(&chain("sha256", "none", 2, &[], 2), 0, &ids(&[])).unwrap()), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 323: Registered { blocks: 0, collided: false }
    same(pool.register(&ids(&[]), &digests("sha256", "none", 2, &[126, 127, 230, 231], 2), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 324: []
    same(pool.match_and_acquire(&digests("sha256", "none", 2, &[126, 127, 230, 231], 2), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 325: [#13, #64, #14, #20, #25]
    same(pool.allocate(5), 0x5eda3bf4);
    pool.check_invariants().unwrap();
    // 326: [#26]
    same(pool.allocate(1), 0xc8ceb12c);
    pool.check_invariants().unwrap();
    // 327: [#27]
    same(pool.allocate(1), 0x4b1d7ff1);
    pool.check_invariants().unwrap();
    // 328: [#28, #29, #30, #31]
    same(pool.allocate(4), 0x1e3346b8);
    pool.check_invariants().unwrap();
    // 329: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[126, 127, 128, 129, 227], 2), 6), 0x50caa327);
    pool.check_invariants().unwrap();
    // 330: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[162, 163, 232, 233, 234, 235], 2), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 331: [#15, #61]
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[200, 201, 202], 2), 2), 0xaa738b40);
    pool.check_invariants().unwrap();
    // 332: refused: the hash chain belongs to epoch 3, the pool is in epoch 2: hash the tokens again
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[], 3), 3), 0x32911419);
    pool.check_invariants().unwrap();
    // 333: []
    same(pool.match_and_acquire_for(&chain("sha256", "none", 2, &[162, 163, 172, 173, 236], 2), usize::MAX, TenantId(1)), 0x50caa327);
    pool.check_invariants().unwrap();
    // 334: Registered { blocks: 4, collided: false }
    same(pool.register(&ids(&[28, 29, 30, 31]), &chain("sha256", "none", 2, &[179, 180, 181, 182, 183, 237], 2), 0), 0xcf32a195);
    pool.check_invariants().unwrap();
    // 335: ()
    same(pool.mark_computed(&ids(&[28, 29, 30, 31])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 336: Registered { blocks: 1, collided: false }
    same(pool.register(&ids(&[26]), &chain("sha256", "none", 2, &[179, 180, 238, 239, 240], 2), 0), 0xe88aa583);
    pool.check_invariants().unwrap();
    // 337: ()
    same(pool.mark_computed(&ids(&[26])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 338: refused: block 15 is already registered
    same(pool.register(&ids(&[15, 61, 8, 4, 10, 9, 63]), &chain("sha256", "none", 2, &[162, 163, 172, 173, 241, 242, 243], 2), 0), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 339: refused: block 10 is not registered: register it before marking it computed
    same(pool.mark_computed(&ids(&[15, 61, 8, 4, 10, 9, 63])), 0x9d3ec4b0);
    pool.check_invariants().unwrap();
    // 340: refused: block 15 is already registered
    same(pool.register(&ids(&[15, 61]), &chain("sha256", "none", 2, &[162, 163, 172, 244, 245], 2), 0), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 341: ()
    same(pool.release(&ids(&[28, 29, 30, 31])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 342: ()
    same(pool.release(&ids(&[16, 6, 5, 12, 21, 22, 23, 24, 13, 64, 14, 20, 25, 27])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 343: ()
    same(pool.release(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 344: ()
    same(pool.release_table(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 345: ()
    same(pool.release_until(&ids(&[]), kvpool::Ticket::new(2)), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 346: 0
    same(pool.complete_step(12), 0x50caa327);
    pool.check_invariants().unwrap();
    // 347: ()
    same(pool.acquire(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 348: refused: block 61 is already registered
    same(pool.register_link(BlockId::new(61), &link("sha256", "none", 2, &[162, 163, 172], 2)), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 349: ()
    same(pool.mark_accessed(&ids(&[26]), 0.0), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 350: 3
    same(pool.bump_epoch(), 0x27b54459);
    pool.check_invariants().unwrap();
    // 351: 8 events
    same(pool.take_events().events.len(), 0x617d05ac);
    pool.check_invariants().unwrap();
    // 352: []
    same(pool.register_table(&ids(&[]), &chain("sha256", "none", 2, &[246, 247, 248, 249], 3), 1), 0x50caa327);
    pool.check_invariants().unwrap();
    // 353: []
    same(pool.adopt(&ids(&[62]), &chain("sha256", "none", 2, &[250], 3), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 354: refused: block 26 no longer holds what it did when it matched (block 0 of the match): look it up again
    same(pool.acquire_match(&Match::new(&chain("sha256", "none", 2, &[251, 252], 3), 0, &ids(&[26, 62])).unwrap()), 0xbf5c0fa3);
    pool.check_invariants().unwrap();
    // 355: Registered { blocks: 2, collided: false }
    same(pool.register(&ids(&[15, 61]), &digests("sha256", "none", 2, &[253, 254, 255, 256, 257], 3), 0), 0x83f1241f);
    pool.check_invariants().unwrap();
    // 356: []
    same(pool.match_and_acquire(&digests("sha256", "none", 2, &[253, 254, 255, 256, 257], 3), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 357: [#28, #29, #30]
    same(pool.allocate(3), 0x5a757b52);
    pool.check_invariants().unwrap();
    // 358: [#31, #27, #25]
    same(pool.allocate(3), 0xd3b60e76);
    pool.check_invariants().unwrap();
    // 359: [#20]
    same(pool.allocate(1), 0xe00fb0e1);
    pool.check_invariants().unwrap();
    // 360: [#14, #64, #13, #24]
    same(pool.allocate(4), 0xc7a8fdf1);
    pool.check_invariants().unwrap();
    // 361: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[253, 254, 255, 256, 258], 3), 2), 0x50caa327);
    pool.check_invariants().unwrap();
    // 362: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[253, 254, 255, 256, 259], 3), 6), 0x50caa327);
    pool.check_invariants().unwrap();
    // 363: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[251, 252, 260, 261, 262, 263], 3), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 364: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[246, 247, 248, 264, 265, 266, 267, 268, 269], 3), 3), 0x50caa327);
    pool.check_invariants().unwrap();
    // 365: refused: the hash chain belongs to epoch 4, the pool is in epoch 3: hash the tokens again
    same(pool.match_and_acquire_for(&chain("sha256", "none", 2, &[270, 271, 272, 273], 4), usize::MAX, TenantId(1)), 0x32911419);
    pool.check_invariants().unwrap();
    // 366: refused: block 15 is already registered
    same(pool.register(&ids(&[15, 61]), &chain("sha256", "none", 2, &[253, 254, 255, 274, 275, 276], 3), 0), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 367: ()
    same(pool.mark_computed(&ids(&[15, 61])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 368: refused: block 62 is already registered
    same(pool.register(&ids(&[26, 62, 28, 29, 30, 20]), &chain("sha256", "none", 2, &[253, 254, 255, 256, 258, 277], 3), 0), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 369: refused: block 26 is not registered: register it before marking it computed
    same(pool.mark_computed(&ids(&[26, 62, 28, 29, 30, 20])), 0x9d3ec4b0);
    pool.check_invariants().unwrap();
    // 370: Registered { blocks: 3, collided: false }
    same(pool.register(&ids(&[31, 27, 25]), &chain("sha256", "none", 2, &[251, 252, 278, 279, 280], 3), 0), 0xbb143b6c);
    pool.check_invariants().unwrap();
    // 371: ()
    same(pool.mark_computed(&ids(&[31, 27, 25])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 372: refused: block 31 is already registered
    same(pool.register(&ids(&[31, 27, 25]), &chain("sha256", "none", 2, &[251, 252, 281, 282, 283], 3), 0), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 373: ()
    same(pool.release(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 374: ()
    same(pool.release(&ids(&[31, 27, 25])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 375: ()
    same(pool.release(&ids(&[26, 62, 28, 29, 30, 20])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 376: ()
    same(pool.release_table(&ids(&[15, 61, 8, 4, 10, 9, 63, 18, 3, 7, 2, 60, 59, 58, 17, 14, 64, 13, 24])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 377: ()
    same(pool.release_after(&ids(&[]), 0), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 378: 0
    same(pool.complete_step(14), 0x50caa327);
    pool.check_invariants().unwrap();
    // 379: ()
    same(pool.acquire(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 380: Some(#61)
    same(pool.acquire_registered(&link("sha256", "none", 2, &[253, 254], 3)), 0x3925d9b8);
    pool.check_invariants().unwrap();
    // 381: 0
    same(pool.advance_time(29.0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 382: 1
    same(pool.drop_cached(&ids(&[15, 7])), 0xcc9804cd);
    pool.check_invariants().unwrap();
    // 383: 7 events
    same(pool.take_events().events.len(), 0x2511a610);
    pool.check_invariants().unwrap();
    // 384: []
    same(pool.register_table(&ids(&[]), &chain("sha256", "none", 2, &[251, 284, 285, 286], 3), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 385: refused: block 61 is held by others, too: cannot disown it
    same(pool.disown(&ids(&[15, 61, 61])), 0xbb5e3b2e);
    pool.check_invariants().unwrap();
    // 386: Match { start: 2, blocks: [], algorithm: Sha256, block_size: 2, epoch: 3, hashes: [], fingerprints: [], tokens: [], parent: None, link: None }
    same(pool.lookup_refreshing(&chain("sha256", "none", 2, &[250], 3), 2, 6), 0x90ab661a);
    pool.check_invariants().unwrap();
    // 387: ()
    same(pool.acquire_match(&Match::new(&chain("sha256", "none", 2, &[], 3), 0, &ids(&[])).unwrap()), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 388: Registered { blocks: 0, collided: false }
    same(pool.register(&ids(&[]), &digests("sha256", "none", 2, &[253], 3), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 389: []
    same(pool.match_and_acquire(&digests("sha256", "none", 2, &[253], 3), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 390: [#8]
    same(pool.allocate(1), 0x36a8d7ba);
    pool.check_invariants().unwrap();
    // 391: []
    same(pool.allocate(0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 392: [#4]
    same(pool.allocate(1), 0xe7f3daa8);
    pool.check_invariants().unwrap();
    // 393: [#10, #9, #63, #18]
    same(pool.allocate(4), 0x71d4e6b4);
    pool.check_invariants().unwrap();
    // 394: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[253, 254, 255, 256, 287, 288, 289], 3), 2), 0x50caa327);
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
    .and_then(|pool| pool.watched(&WatchConfig { event_capacity: 8, ..WatchConfig::default() })).unwrap();
    part_0(&mut pool);
    part_1(&mut pool);
}
