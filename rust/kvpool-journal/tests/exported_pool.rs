//! A journal as a test: made by `kvpool journal export`.
#![cfg_attr(rustfmt, rustfmt_skip)]
#![allow(clippy::allow_attributes, clippy::unit_arg, clippy::unwrap_used, unused, reason = "made by a program")]

use std::sync::Arc;

use kvpool::journal::{Check, Outcome};
use kvpool::retention::{Keep, Priority, Retention, RetentionConfig, TenantId, TenantLimits, Then, Ttl};
use kvpool::{BlockHasher, BlockId, BlockPool, ChainLink, ExtraKeys, HashChain, HashCursor, HasherConfig, PoolConfig};

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
    // 20: ()
    same(pool.release_after(&ids(&[1]), 3), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 21: 0
    same(pool.complete_step(1), 0x50caa327);
    pool.check_invariants().unwrap();
    // 22: ()
    same(pool.acquire(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 23: None
    same(pool.acquire_registered(&link("sha256", "none", 2, &[5, 6, 7], 0)), 0x50caa327);
    pool.check_invariants().unwrap();
    // 24: HintReport { accepted: 0, clipped: 0, ignored: 0 }
    same(pool.retain(&ids(&[]), Retention { keep: Keep::Priority(Priority::new(35).unwrap()), ttl: Some(Ttl::Idle(3.0)), then: Then::Demote }), 0x532a9d3d);
    pool.check_invariants().unwrap();
    // 25: ()
    same(pool.resize(65), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 26: 1 events
    same(pool.take_events().events.len(), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 27: refused: the hash chain was made with blake3, this pool has registered blocks hashed with sha256
    same(pool.register(&ids(&[]), &chain("blake3", "none", 2, &[18, 19, 20, 21], 0), 0), 0x1971647c);
    pool.check_invariants().unwrap();
    // 28: refused: the hash chain was made with blake3, this pool has registered blocks hashed with sha256
    same(pool.match_and_acquire(&chain("blake3", "none", 2, &[18, 19, 20, 21], 0), 0), 0x1971647c);
    pool.check_invariants().unwrap();
    // 29: [#6, #5, #4]
    same(pool.allocate(3), 0xab382b3d);
    pool.check_invariants().unwrap();
    // 30: [#3, #7, #8, #9, #10]
    same(pool.allocate(5), 0xca733fd3);
    pool.check_invariants().unwrap();
    // 31: [#11, #12, #13, #14, #15]
    same(pool.allocate(5), 0x04e3136b);
    pool.check_invariants().unwrap();
    // 32: [#16]
    same(pool.allocate(1), 0xb3aecdf2);
    pool.check_invariants().unwrap();
    // 33: [#2]
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[1, 22, 23, 24, 25], 0), 4), 0x4e8a9fd1);
    pool.check_invariants().unwrap();
    // 34: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[5, 6, 7, 26, 27, 28], 0), 6), 0x50caa327);
    pool.check_invariants().unwrap();
    // 35: [#2]
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[1, 29, 30, 31], 0), 6), 0x4e8a9fd1);
    pool.check_invariants().unwrap();
    // 36: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[1, 32], 0), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 37: [#2]
    same(pool.match_and_acquire_for(&chain("sha256", "none", 2, &[1, 2, 10, 11, 33, 34], 0), usize::MAX, TenantId(1)), 0x4e8a9fd1);
    pool.check_invariants().unwrap();
    // 38: Registered { blocks: 0, collided: false }
    same(pool.register(&ids(&[]), &chain("sha256", "none", 2, &[1, 2, 10, 35, 36, 37], 0), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 39: ()
    same(pool.mark_computed(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 40: refused: the hash chain belongs to epoch 1, the pool is in epoch 0: hash the tokens again
    same(pool.register(&ids(&[]), &chain("sha256", "none", 2, &[38, 39, 40, 41, 42], 1), 0), 0x32911419);
    pool.check_invariants().unwrap();
    // 41: ()
    same(pool.mark_computed(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 42: Registered { blocks: 1, collided: false }
    same(pool.register(&ids(&[16]), &chain("sha256", "none", 2, &[1, 2, 10], 0), 0), 0xe88aa583);
    pool.check_invariants().unwrap();
    // 43: ()
    same(pool.mark_computed(&ids(&[16])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 44: Registered { blocks: 8, collided: false }
    same(pool.register(&ids(&[3, 7, 8, 9, 10, 11, 12, 13]), &chain("sha256", "none", 2, &[1, 2, 10, 11, 12, 43, 44, 45], 0), 0), 0x57b4a7a2);
    pool.check_invariants().unwrap();
    // 45: ()
    same(pool.release(&ids(&[3, 7, 8, 9, 10, 11, 12, 13, 14, 15, 2])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 46: ()
    same(pool.release(&ids(&[2])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 47: ()
    same(pool.release(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 48: ()
    same(pool.release_table(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 49: ()
    same(pool.release_after(&ids(&[]), 2), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 50: 1
    same(pool.complete_step(3), 0xcc9804cd);
    pool.check_invariants().unwrap();
    // 51: ()
    same(pool.acquire(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 52: Some(#2)
    same(pool.acquire_registered(&link("sha256", "none", 2, &[1], 0)), 0x4e8a9fd1);
    pool.check_invariants().unwrap();
    // 53: 0
    same(pool.advance_time(53.0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 54: 1
    same(pool.drop_cached(&ids(&[9, 2])), 0xcc9804cd);
    pool.check_invariants().unwrap();
    // 55: 0 events
    same(pool.take_events().events.len(), 0x00000000);
    pool.check_invariants().unwrap();
    // 56: refused: the hash chain was made for blocks of 3 tokens, the pool has blocks of 2
    same(pool.register(&ids(&[]), &chain("xxh3", "none", 3, &[], 0), 0), 0x65dd85c7);
    pool.check_invariants().unwrap();
    // 57: refused: the hash chain was made for blocks of 3 tokens, the pool has blocks of 2
    same(pool.match_and_acquire(&chain("xxh3", "none", 3, &[], 0), 0), 0x65dd85c7);
    pool.check_invariants().unwrap();
    // 58: []
    same(pool.allocate(0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 59: [#1, #15, #14, #13]
    same(pool.allocate(4), 0x24b198ad);
    pool.check_invariants().unwrap();
    // 60: []
    same(pool.allocate(0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 61: [#12]
    same(pool.allocate(1), 0x6161ccdc);
    pool.check_invariants().unwrap();
    // 62: [#16]
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[1, 2, 10, 11, 12, 46, 47], 0), 3), 0xb3aecdf2);
    pool.check_invariants().unwrap();
    // 63: [#16]
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[1, 2, 10, 48, 49, 50], 0), 5), 0xb3aecdf2);
    pool.check_invariants().unwrap();
    // 64: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[5], 0), 4), 0x50caa327);
    pool.check_invariants().unwrap();
    // 65: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[5, 6, 7, 51], 0), 2), 0x50caa327);
    pool.check_invariants().unwrap();
    // 66: []
    same(pool.match_and_acquire_for(&chain("sha256", "none", 2, &[52, 53, 54], 0), usize::MAX, TenantId(1)), 0x50caa327);
    pool.check_invariants().unwrap();
    // 67: refused: block 16 is already registered
    same(pool.register(&ids(&[16]), &chain("sha256", "none", 2, &[55], 0), 0), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 68: ()
    same(pool.mark_computed(&ids(&[16])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 69: refused: block 16 is already registered
    same(pool.register(&ids(&[16, 16]), &chain("sha256", "none", 2, &[5, 6, 7, 8, 56], 0), 0), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 70: ()
    same(pool.mark_computed(&ids(&[16, 16])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 71: Registered { blocks: 0, collided: false }
    same(pool.register(&ids(&[]), &chain("sha256", "none", 2, &[1, 2, 10, 11, 12, 57], 0), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 72: ()
    same(pool.mark_computed(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 73: Registered { blocks: 1, collided: false }
    same(pool.register(&ids(&[1]), &chain("sha256", "none", 2, &[58], 0), 0), 0xe88aa583);
    pool.check_invariants().unwrap();
    // 74: ()
    same(pool.release(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 75: ()
    same(pool.release(&ids(&[1, 15, 14, 13, 16])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 76: ()
    same(pool.release(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 77: ()
    same(pool.release_table(&ids(&[16, 16])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 78: ()
    same(pool.release_after(&ids(&[]), 2), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 79: 0
    same(pool.complete_step(4), 0x50caa327);
    pool.check_invariants().unwrap();
    // 80: ()
    same(pool.acquire(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 81: ()
    same(pool.mark_accessed(&ids(&[]), 98.0), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 82: 1
    same(pool.bump_epoch(), 0xcc9804cd);
    pool.check_invariants().unwrap();
    // 83: 1 events
    same(pool.take_events().events.len(), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 84: refused: the hash chain belongs to epoch 0, the pool is in epoch 1: hash the tokens again
    same(pool.register(&ids(&[]), &chain("xxh3", "none", 3, &[59, 60, 61], 0), 0), 0x32911419);
    pool.check_invariants().unwrap();
    // 85: refused: the hash chain belongs to epoch 0, the pool is in epoch 1: hash the tokens again
    same(pool.match_and_acquire(&chain("xxh3", "none", 3, &[59, 60, 61], 0), 0), 0x32911419);
    pool.check_invariants().unwrap();
    // 86: [#16, #13, #14]
    same(pool.allocate(3), 0x783d1dee);
    pool.check_invariants().unwrap();
    // 87: [#15, #1, #11]
    same(pool.allocate(3), 0x93e5a842);
    pool.check_invariants().unwrap();
    // 88: []
    same(pool.allocate(0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 89: [#10, #9]
    same(pool.allocate(2), 0x108e3e53);
    pool.check_invariants().unwrap();
    // 90: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[62], 1), 4), 0x50caa327);
    pool.check_invariants().unwrap();
    // 91: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[63, 64, 65, 66, 67, 68, 69], 1), 6), 0x50caa327);
    pool.check_invariants().unwrap();
    // 92: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[70, 71, 72, 73], 1), 4), 0x50caa327);
    pool.check_invariants().unwrap();
    // 93: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[], 1), 6), 0x50caa327);
    pool.check_invariants().unwrap();
    // 94: []
    same(pool.match_and_acquire_for(&chain("sha256", "none", 2, &[70, 74, 75, 76, 77], 1), usize::MAX, TenantId(1)), 0x50caa327);
    pool.check_invariants().unwrap();
    // 95: refused: the hash chain belongs to epoch 2, the pool is in epoch 1: hash the tokens again
    same(pool.register(&ids(&[]), &chain("sha256", "none", 2, &[78, 79, 80, 81], 2), 0), 0x32911419);
    pool.check_invariants().unwrap();
    // 96: ()
    same(pool.mark_computed(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 97: Registered { blocks: 2, collided: false }
    same(pool.register(&ids(&[10, 9]), &chain("sha256", "none", 2, &[70, 71, 72, 73, 82, 83, 84, 85], 1), 0), 0x83f1241f);
    pool.check_invariants().unwrap();
    // 98: ()
    same(pool.mark_computed(&ids(&[10, 9])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 99: Registered { blocks: 0, collided: false }
    same(pool.register(&ids(&[]), &chain("sha256", "none", 2, &[70, 71, 72, 73, 82], 1), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 100: ()
    same(pool.mark_computed(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 101: refused: block 10 is already registered
    same(pool.register(&ids(&[10, 9]), &chain("sha256", "none", 2, &[38, 39, 40], 1), 1), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 102: ()
    same(pool.release(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 103: ()
    same(pool.release(&ids(&[16, 13, 14])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 104: ()
    same(pool.release(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 105: ()
    same(pool.release_table(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 106: ()
    same(pool.release_after(&ids(&[6, 5, 4, 2, 2, 12, 15, 1, 11]), 1), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 107: 0
    same(pool.complete_step(4), 0x50caa327);
    pool.check_invariants().unwrap();
    // 108: ()
    same(pool.acquire(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 109: None
    same(pool.acquire_registered(&link("sha256", "none", 2, &[70, 71, 72], 1)), 0x50caa327);
    pool.check_invariants().unwrap();
    // 110: ()
    same(pool.mark_accessed(&ids(&[]), 27.0), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 111: 0
    same(pool.drop_cached(&ids(&[14, 2])), 0x50caa327);
    pool.check_invariants().unwrap();
    // 112: 2 events
    same(pool.take_events().events.len(), 0x185f416b);
    pool.check_invariants().unwrap();
    // 113: refused: the hash chain belongs to epoch 0, the pool is in epoch 1: hash the tokens again
    same(pool.register(&ids(&[]), &chain("xxh3", "none", 3, &[59, 86, 87], 0), 0), 0x32911419);
    pool.check_invariants().unwrap();
    // 114: refused: the hash chain belongs to epoch 0, the pool is in epoch 1: hash the tokens again
    same(pool.match_and_acquire(&chain("xxh3", "none", 3, &[59, 86, 87], 0), 0), 0x32911419);
    pool.check_invariants().unwrap();
    // 115: [#11]
    same(pool.allocate(1), 0x4dc11388);
    pool.check_invariants().unwrap();
    // 116: [#1, #15, #12]
    same(pool.allocate(3), 0xef5fcaa0);
    pool.check_invariants().unwrap();
    // 117: [#2, #4]
    same(pool.allocate(2), 0xfbc78dbf);
    pool.check_invariants().unwrap();
    // 118: [#5, #6, #14, #13, #16]
    same(pool.allocate(5), 0x653aa5ac);
    pool.check_invariants().unwrap();
    // 119: [#10, #9]
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[70, 71, 72, 73, 88, 89], 1), 2), 0x108e3e53);
    pool.check_invariants().unwrap();
    // 120: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[38, 39, 40, 90, 91, 92], 1), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 121: [#10, #9]
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[70, 71, 72, 93, 94], 1), 5), 0x108e3e53);
    pool.check_invariants().unwrap();
    // 122: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[38, 39, 40, 95], 1), 5), 0x50caa327);
    pool.check_invariants().unwrap();
    // 123: []
    same(pool.match_and_acquire_for(&chain("sha256", "none", 2, &[38, 39, 40, 90, 91, 96, 97, 98, 99], 1), usize::MAX, TenantId(1)), 0x50caa327);
    pool.check_invariants().unwrap();
    // 124: Registered { blocks: 1, collided: false }
    same(pool.register(&ids(&[5]), &chain("sha256", "none", 2, &[62], 1), 0), 0xe88aa583);
    pool.check_invariants().unwrap();
    // 125: ()
    same(pool.mark_computed(&ids(&[5])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 126: Registered { blocks: 0, collided: false }
    same(pool.register(&ids(&[]), &chain("sha256", "none", 2, &[100, 101, 102, 103], 1), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 127: ()
    same(pool.mark_computed(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 128: refused: block 5 is already registered
    same(pool.register(&ids(&[5, 6, 14, 13]), &chain("sha256", "none", 2, &[70, 71, 72, 104], 1), 0), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 129: refused: block 6 is not registered: register it before marking it computed
    same(pool.mark_computed(&ids(&[5, 6, 14, 13])), 0x9d3ec4b0);
    pool.check_invariants().unwrap();
    // 130: Registered { blocks: 1, collided: false }
    same(pool.register(&ids(&[2]), &chain("sha256", "none", 2, &[63, 64], 1), 1), 0xe88aa583);
    pool.check_invariants().unwrap();
    // 131: ()
    same(pool.release(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 132: ()
    same(pool.release(&ids(&[5, 6, 14, 13, 16, 10, 9])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 133: ()
    same(pool.release(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 134: ()
    same(pool.release_table(&ids(&[2, 4])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 135: ()
    same(pool.release_after(&ids(&[]), 2), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 136: 0
    same(pool.complete_step(4), 0x50caa327);
    pool.check_invariants().unwrap();
    // 137: ()
    same(pool.acquire(&ids(&[10, 9, 1, 15, 12, 10, 9])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 138: refused: block 9 is already registered
    same(pool.promote(BlockId::new(9), &link("sha256", "none", 2, &[38], 1)), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 139: refused: the time 31 is before 53, which was passed earlier: time does not go backwards
    same(pool.advance_time(31.0), 0xee1b8acc);
    pool.check_invariants().unwrap();
    // 140: 1
    same(pool.drop_cached(&ids(&[9, 8])), 0xcc9804cd);
    pool.check_invariants().unwrap();
    // 141: 2 events
    same(pool.take_events().events.len(), 0x185f416b);
    pool.check_invariants().unwrap();
    // 142: refused: the hash chain belongs to epoch 0, the pool is in epoch 1: hash the tokens again
    same(pool.register(&ids(&[10, 9, 1]), &chain("xxh3", "none", 3, &[59, 60, 61], 0), 0), 0x32911419);
    pool.check_invariants().unwrap();
    // 143: refused: the hash chain belongs to epoch 0, the pool is in epoch 1: hash the tokens again
    same(pool.match_and_acquire(&chain("xxh3", "none", 3, &[59, 60, 61], 0), 0), 0x32911419);
    pool.check_invariants().unwrap();
    // 144: [#2, #4, #16, #13]
    same(pool.allocate(4), 0xc60a8d9a);
    pool.check_invariants().unwrap();
    // 145: [#14]
    same(pool.allocate(1), 0x98ee0f66);
    pool.check_invariants().unwrap();
    // 146: [#6]
    same(pool.allocate(1), 0x1e131507);
    pool.check_invariants().unwrap();
    // 147: [#8]
    same(pool.allocate(1), 0x36a8d7ba);
    pool.check_invariants().unwrap();
    // 148: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[38, 39, 40, 95], 1), 5), 0x50caa327);
    pool.check_invariants().unwrap();
    // 149: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[38, 39, 105, 106], 1), 1), 0x50caa327);
    pool.check_invariants().unwrap();
    // 150: refused: the hash chain belongs to epoch 2, the pool is in epoch 1: hash the tokens again
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[107, 108, 109, 110], 2), 1), 0x32911419);
    pool.check_invariants().unwrap();
    // 151: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[38, 39, 111], 1), 5), 0x50caa327);
    pool.check_invariants().unwrap();
    // 152: refused: the hash chain belongs to epoch 2, the pool is in epoch 1: hash the tokens again
    same(pool.match_and_acquire_for(&chain("sha256", "none", 2, &[112, 113, 114, 115, 116], 2), usize::MAX, TenantId(1)), 0x32911419);
    pool.check_invariants().unwrap();
    // 153: refused: block 10 is already registered
    same(pool.register(&ids(&[10, 9, 1, 15]), &chain("sha256", "none", 2, &[70, 71, 72, 117], 1), 0), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 154: refused: block 9 is not registered: register it before marking it computed
    same(pool.mark_computed(&ids(&[10, 9, 1, 15])), 0x9d3ec4b0);
    pool.check_invariants().unwrap();
    // 155: Registered { blocks: 0, collided: false }
    same(pool.register(&ids(&[]), &chain("sha256", "none", 2, &[38, 39, 111, 118], 1), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 156: ()
    same(pool.mark_computed(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 157: Registered { blocks: 0, collided: false }
    same(pool.register(&ids(&[]), &chain("sha256", "none", 2, &[70, 119, 120], 1), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 158: ()
    same(pool.mark_computed(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 159: Registered { blocks: 2, collided: false }
    same(pool.register(&ids(&[11, 2]), &chain("sha256", "none", 2, &[38, 39, 40, 90], 1), 2), 0x83f1241f);
    pool.check_invariants().unwrap();
    // 160: ()
    same(pool.release(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 161: ()
    same(pool.release(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 162: ()
    same(pool.release(&ids(&[10, 9, 1, 15, 12, 10, 9])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 163: ()
    same(pool.release_table(&ids(&[10, 9, 1, 15, 12, 10, 9, 14, 6, 8])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 164: ()
    same(pool.release_after(&ids(&[]), 1), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 165: 0
    same(pool.complete_step(6), 0x50caa327);
    pool.check_invariants().unwrap();
    // 166: ()
    same(pool.acquire(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 167: #13
    same(pool.promote(BlockId::new(13), &link("sha256", "none", 2, &[70, 71, 72], 1)), 0x9c238e04);
    pool.check_invariants().unwrap();
    // 168: ()
    same(pool.assign_tenant(&ids(&[11, 2, 4, 16, 13]), TenantId(1)), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 169: refused: 5 blocks are active and 0 fenced: release them first, or bump the epoch, which always succeeds
    same(pool.reset(), 0xde9294cb);
    pool.check_invariants().unwrap();
    // 170: 0 events
    same(pool.take_events().events.len(), 0x00000000);
    pool.check_invariants().unwrap();
    // 171: refused: the hash chain belongs to epoch 0, the pool is in epoch 1: hash the tokens again
    same(pool.register(&ids(&[]), &chain("xxh3", "none", 2, &[121, 122, 123, 124, 125, 126], 0), 0), 0x32911419);
    pool.check_invariants().unwrap();
    // 172: refused: the hash chain belongs to epoch 0, the pool is in epoch 1: hash the tokens again
    same(pool.match_and_acquire(&chain("xxh3", "none", 2, &[121, 122, 123, 124, 125, 126], 0), 0), 0x32911419);
    pool.check_invariants().unwrap();
    // 173: [#9, #1, #15, #12, #14]
    same(pool.allocate(5), 0x4aa60288);
    pool.check_invariants().unwrap();
    // 174: [#6, #8, #7, #3]
    same(pool.allocate(4), 0xb4db4311);
    pool.check_invariants().unwrap();
    // 175: [#17, #18]
    same(pool.allocate(2), 0x82e04b94);
    pool.check_invariants().unwrap();
    // 176: [#19, #20, #21, #22, #23]
    same(pool.allocate(5), 0x13fb537b);
    pool.check_invariants().unwrap();
    // 177: [#10]
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[70, 71, 72, 73], 1), 6), 0xc9ac942f);
    pool.check_invariants().unwrap();
    // 178: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[127], 1), 3), 0x50caa327);
    pool.check_invariants().unwrap();
    // 179: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[38, 39, 40, 90, 91, 128], 1), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 180: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[63, 64, 65, 66, 67, 129, 130, 131], 1), 4), 0x50caa327);
    pool.check_invariants().unwrap();
    // 181: refused: the hash chain belongs to epoch 2, the pool is in epoch 1: hash the tokens again
    same(pool.match_and_acquire_for(&chain("sha256", "none", 2, &[132, 133], 2), usize::MAX, TenantId(1)), 0x32911419);
    pool.check_invariants().unwrap();
    // 182: Registered { blocks: 0, collided: false }
    same(pool.register(&ids(&[]), &chain("sha256", "none", 2, &[38], 1), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 183: ()
    same(pool.mark_computed(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 184: refused: block 11 is already registered
    same(pool.register(&ids(&[11, 2, 4]), &chain("sha256", "none", 2, &[63, 134, 135], 1), 0), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 185: refused: block 4 is not registered: register it before marking it computed
    same(pool.mark_computed(&ids(&[11, 2, 4])), 0x9d3ec4b0);
    pool.check_invariants().unwrap();
    // 186: Registered { blocks: 0, collided: false }
    same(pool.register(&ids(&[]), &chain("sha256", "none", 2, &[38, 136, 137, 138], 1), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 187: ()
    same(pool.mark_computed(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 188: refused: block 11 is already registered
    same(pool.register(&ids(&[11, 2, 4, 16, 13, 9, 1, 15]), &chain("sha256", "none", 2, &[63, 64, 65, 66, 67, 139, 140, 141], 1), 0), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 189: ()
    same(pool.release(&ids(&[6, 8, 7, 3])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 190: ()
    same(pool.release(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 191: ()
    same(pool.release(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 192: ()
    same(pool.release_table(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 193: ()
    same(pool.release_after(&ids(&[]), 0), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 194: 0
    same(pool.complete_step(8), 0x50caa327);
    pool.check_invariants().unwrap();
    // 195: ()
    same(pool.acquire(&ids(&[17, 18, 19, 20, 21, 22, 23, 10])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 196: None
    same(pool.acquire_registered(&link("sha256", "none", 2, &[38, 39, 142], 1)), 0x50caa327);
    pool.check_invariants().unwrap();
    // 197: HintReport { accepted: 0, clipped: 0, ignored: 0 }
    same(pool.retain(&ids(&[]), Retention { keep: Keep::Pinned, ttl: Some(Ttl::Absolute(1.0)), then: Then::Normal }), 0x532a9d3d);
    pool.check_invariants().unwrap();
    // 198: 1
    same(pool.drop_cached(&ids(&[33, 5])), 0xcc9804cd);
    pool.check_invariants().unwrap();
    // 199: 1 events
    same(pool.take_events().events.len(), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 200: refused: the hash chain belongs to epoch 0, the pool is in epoch 1: hash the tokens again
    same(pool.register(&ids(&[11, 2, 4]), &chain("blake3", "none", 2, &[18, 143, 144], 0), 0), 0x32911419);
    pool.check_invariants().unwrap();
    // 201: refused: the hash chain belongs to epoch 0, the pool is in epoch 1: hash the tokens again
    same(pool.match_and_acquire(&chain("blake3", "none", 2, &[18, 143, 144], 0), 0), 0x32911419);
    pool.check_invariants().unwrap();
    // 202: [#5, #3, #7, #8, #6]
    same(pool.allocate(5), 0xbeffccad);
    pool.check_invariants().unwrap();
    // 203: [#24, #25, #26]
    same(pool.allocate(3), 0x58ebce01);
    pool.check_invariants().unwrap();
    // 204: [#27, #28, #29, #30, #31]
    same(pool.allocate(5), 0xbdec1f2b);
    pool.check_invariants().unwrap();
    // 205: []
    same(pool.allocate(0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 206: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[38, 39, 40, 41, 42, 145], 1), 2), 0x50caa327);
    pool.check_invariants().unwrap();
    // 207: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[38, 39, 40, 90, 91, 92, 146, 147, 148], 1), 3), 0x50caa327);
    pool.check_invariants().unwrap();
    // 208: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[100, 101, 102, 103, 149], 1), 5), 0x50caa327);
    pool.check_invariants().unwrap();
    // 209: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[38, 39, 40, 90, 91], 1), 2), 0x50caa327);
    pool.check_invariants().unwrap();
    // 210: []
    same(pool.match_and_acquire_for(&chain("sha256", "none", 2, &[38, 39, 40, 90, 91, 150], 1), usize::MAX, TenantId(1)), 0x50caa327);
    pool.check_invariants().unwrap();
    // 211: Registered { blocks: 0, collided: false }
    same(pool.register(&ids(&[]), &chain("sha256", "none", 2, &[], 1), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 212: ()
    same(pool.mark_computed(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 213: Registered { blocks: 0, collided: false }
    same(pool.register(&ids(&[]), &chain("sha256", "none", 2, &[], 1), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 214: ()
    same(pool.mark_computed(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 215: refused: the hash chain belongs to epoch 2, the pool is in epoch 1: hash the tokens again
    same(pool.register(&ids(&[27, 28, 29, 30]), &chain("sha256", "none", 2, &[132, 151, 152, 153], 2), 0), 0x32911419);
    pool.check_invariants().unwrap();
    // 216: refused: block 27 is not registered: register it before marking it computed
    same(pool.mark_computed(&ids(&[27, 28, 29, 30])), 0x9d3ec4b0);
    pool.check_invariants().unwrap();
    // 217: Registered { blocks: 5, collided: false }
    same(pool.register(&ids(&[17, 18, 19, 20, 21]), &chain("sha256", "none", 2, &[38, 39, 40, 95, 154], 1), 0), 0x6888a322);
    pool.check_invariants().unwrap();
    // 218: ()
    same(pool.release(&ids(&[27, 28, 29, 30, 31])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 219: ()
    same(pool.release(&ids(&[17, 18, 19, 20, 21, 22, 23, 10])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 220: ()
    same(pool.release(&ids(&[11, 2, 4, 16, 13, 9, 1, 15, 12, 14, 5, 3, 7, 8, 6, 24, 25, 26])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 221: ()
    same(pool.release_table(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 222: ()
    same(pool.release_after(&ids(&[]), 0), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 223: 0
    same(pool.complete_step(8), 0x50caa327);
    pool.check_invariants().unwrap();
    // 224: ()
    same(pool.acquire(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 225: refused: block 10 is already registered
    same(pool.promote(BlockId::new(10), &link("sha256", "none", 2, &[70, 71], 1)), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 226: HintReport { accepted: 2, clipped: 4, ignored: 2 }
    same(pool.retain(&ids(&[17, 18, 19, 20, 21, 22, 23, 10]), Retention { keep: Keep::Pinned, ttl: Some(Ttl::Idle(1.0)), then: Then::Normal }), 0x27c964d1);
    pool.check_invariants().unwrap();
    // 227: refused: block 0 is the null block: it cannot be evicted
    same(pool.drop_cached(&ids(&[14, 0])), 0x88ee79af);
    pool.check_invariants().unwrap();
    // 228: 0 events
    same(pool.take_events().events.len(), 0x00000000);
    pool.check_invariants().unwrap();
    // 229: refused: the hash chain belongs to epoch 0, the pool is in epoch 1: hash the tokens again
    same(pool.register(&ids(&[]), &chain("xxh3", "none", 3, &[59, 60, 155], 0), 0), 0x32911419);
    pool.check_invariants().unwrap();
    // 230: refused: the hash chain belongs to epoch 0, the pool is in epoch 1: hash the tokens again
    same(pool.match_and_acquire(&chain("xxh3", "none", 3, &[59, 60, 155], 0), 0), 0x32911419);
    pool.check_invariants().unwrap();
    // 231: [#26, #25, #24, #6]
    same(pool.allocate(4), 0xae2adcda);
    pool.check_invariants().unwrap();
    // 232: [#8, #7, #3, #5, #14]
    same(pool.allocate(5), 0xd80d6c0d);
    pool.check_invariants().unwrap();
    // 233: [#12, #15, #1, #9, #13]
    same(pool.allocate(5), 0xf319aba8);
    pool.check_invariants().unwrap();
    // 234: [#16, #4, #2, #11, #31]
    same(pool.allocate(5), 0x9e43c573);
    pool.check_invariants().unwrap();
    // 235: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[38, 39, 40, 90, 91, 96, 156, 157], 1), 4), 0x50caa327);
    pool.check_invariants().unwrap();
    // 236: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[38, 39, 40, 41], 1), 3), 0x50caa327);
    pool.check_invariants().unwrap();
    // 237: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[38, 39, 40, 90, 91, 96], 1), 1), 0x50caa327);
    pool.check_invariants().unwrap();
    // 238: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[62, 158, 159], 1), 1), 0x50caa327);
    pool.check_invariants().unwrap();
    // 239: []
    same(pool.match_and_acquire_for(&chain("sha256", "none", 2, &[38, 39, 40, 90, 91, 96], 1), usize::MAX, TenantId(1)), 0x50caa327);
    pool.check_invariants().unwrap();
    // 240: refused: block 17 is already registered
    same(pool.register(&ids(&[17, 18, 19, 20, 21, 22]), &chain("sha256", "none", 2, &[38, 39, 40, 90, 91, 150], 1), 0), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 241: refused: block 22 is not registered: register it before marking it computed
    same(pool.mark_computed(&ids(&[17, 18, 19, 20, 21, 22])), 0x9d3ec4b0);
    pool.check_invariants().unwrap();
    // 242: Registered { blocks: 4, collided: false }
    same(pool.register(&ids(&[8, 7, 3, 5]), &chain("sha256", "none", 2, &[38, 39, 111, 118], 1), 0), 0xcf32a195);
    pool.check_invariants().unwrap();
    // 243: ()
    same(pool.mark_computed(&ids(&[8, 7, 3, 5])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 244: refused: block 8 is already registered
    same(pool.register(&ids(&[8, 7, 3, 5, 14]), &chain("sha256", "none", 2, &[63, 64, 65, 160, 161], 1), 0), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 245: refused: block 14 is not registered: register it before marking it computed
    same(pool.mark_computed(&ids(&[8, 7, 3, 5, 14])), 0x9d3ec4b0);
    pool.check_invariants().unwrap();
    // 246: refused: block 8 is already registered
    same(pool.register(&ids(&[8, 7]), &chain("sha256", "none", 2, &[38, 39, 162], 1), 1), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 247: ()
    same(pool.release(&ids(&[12, 15, 1, 9, 13])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 248: ()
    same(pool.release(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 249: ()
    same(pool.release(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
}

fn part_1(pool: &mut BlockPool) {
    // 250: ()
    same(pool.release_table(&ids(&[17, 18, 19, 20, 21, 22, 23, 10, 26, 25, 24, 6])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 251: ()
    same(pool.release_after(&ids(&[]), 3), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 252: 0
    same(pool.complete_step(9), 0x50caa327);
    pool.check_invariants().unwrap();
    // 253: ()
    same(pool.acquire(&ids(&[8, 7, 3, 5, 14, 16, 4, 2, 11, 31])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 254: HintReport { accepted: 4, clipped: 0, ignored: 6 }
    same(pool.retain(&ids(&[8, 7, 3, 5, 14, 16, 4, 2, 11, 31]), Retention { keep: Keep::Priority(Priority::new(80).unwrap()), ttl: None, then: Then::Normal }), 0x566b2227);
    pool.check_invariants().unwrap();
    // 255: 2
    same(pool.bump_epoch(), 0xe88aa583);
    pool.check_invariants().unwrap();
    // 256: 5 events
    same(pool.take_events().events.len(), 0xcd6c219e);
    pool.check_invariants().unwrap();
    // 257: refused: the hash chain belongs to epoch 0, the pool is in epoch 2: hash the tokens again
    same(pool.register(&ids(&[]), &chain("blake3", "none", 2, &[18, 143, 163, 164, 165], 0), 0), 0x32911419);
    pool.check_invariants().unwrap();
    // 258: refused: the hash chain belongs to epoch 0, the pool is in epoch 2: hash the tokens again
    same(pool.match_and_acquire(&chain("blake3", "none", 2, &[18, 143, 163, 164, 165], 0), 0), 0x32911419);
    pool.check_invariants().unwrap();
    // 259: [#10, #17, #18, #19]
    same(pool.allocate(4), 0x625efd36);
    pool.check_invariants().unwrap();
    // 260: [#20, #21]
    same(pool.allocate(2), 0xfeb20e3e);
    pool.check_invariants().unwrap();
    // 261: [#22, #23, #26, #25, #24]
    same(pool.allocate(5), 0x4992c2c9);
    pool.check_invariants().unwrap();
    // 262: []
    same(pool.allocate(0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 263: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[166, 167, 168, 169, 170], 2), 2), 0x50caa327);
    pool.check_invariants().unwrap();
    // 264: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[166, 167, 171, 172, 173], 2), 4), 0x50caa327);
    pool.check_invariants().unwrap();
    // 265: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[132, 151, 174, 175, 176, 177], 2), 1), 0x50caa327);
    pool.check_invariants().unwrap();
    // 266: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[178, 179, 180], 2), 4), 0x50caa327);
    pool.check_invariants().unwrap();
    // 267: []
    same(pool.match_and_acquire_for(&chain("sha256", "none", 2, &[132, 181, 182, 183], 2), usize::MAX, TenantId(1)), 0x50caa327);
    pool.check_invariants().unwrap();
    // 268: Registered { blocks: 0, collided: false }
    same(pool.register(&ids(&[]), &chain("sha256", "none", 2, &[112, 113, 184, 185], 2), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 269: ()
    same(pool.mark_computed(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 270: Registered { blocks: 0, collided: false }
    same(pool.register(&ids(&[]), &chain("sha256", "none", 2, &[78, 186, 187, 188, 189, 190, 191, 192], 2), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 271: ()
    same(pool.mark_computed(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 272: Registered { blocks: 1, collided: false }
    same(pool.register(&ids(&[10]), &chain("sha256", "none", 2, &[112], 2), 0), 0xe88aa583);
    pool.check_invariants().unwrap();
    // 273: ()
    same(pool.mark_computed(&ids(&[10])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 274: Registered { blocks: 0, collided: false }
    same(pool.register(&ids(&[]), &chain("sha256", "none", 2, &[112, 113, 184, 193, 194, 195], 2), 2), 0x50caa327);
    pool.check_invariants().unwrap();
    // 275: ()
    same(pool.release(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 276: ()
    same(pool.release(&ids(&[8, 7, 3, 5, 14, 16, 4, 2, 11, 31])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 277: ()
    same(pool.release(&ids(&[10, 17, 18, 19, 20, 21, 22, 23, 26, 25, 24])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 278: ()
    same(pool.release_table(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 279: ()
    same(pool.release_after(&ids(&[8, 7, 3, 5, 14, 16, 4, 2, 11, 31]), 1), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 280: 0
    same(pool.complete_step(11), 0x50caa327);
    pool.check_invariants().unwrap();
    // 281: ()
    same(pool.acquire(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 282: None
    same(pool.acquire_registered(&link("sha256", "none", 2, &[112, 113, 184], 2)), 0x50caa327);
    pool.check_invariants().unwrap();
    // 283: ()
    same(pool.mark_accessed(&ids(&[]), 97.0), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 284: 3
    same(pool.bump_epoch(), 0x27b54459);
    pool.check_invariants().unwrap();
    // 285: 2 events
    same(pool.take_events().events.len(), 0x185f416b);
    pool.check_invariants().unwrap();
    // 286: refused: the hash chain belongs to epoch 0, the pool is in epoch 3: hash the tokens again
    same(pool.register(&ids(&[]), &chain("xxh3", "none", 2, &[121, 122, 196, 197, 198], 0), 0), 0x32911419);
    pool.check_invariants().unwrap();
    // 287: refused: the hash chain belongs to epoch 0, the pool is in epoch 3: hash the tokens again
    same(pool.match_and_acquire(&chain("xxh3", "none", 2, &[121, 122, 196, 197, 198], 0), 0), 0x32911419);
    pool.check_invariants().unwrap();
}

#[test]
fn journal() {
    let mut pool = BlockPool::new(PoolConfig {
        num_blocks: 64,
        block_size: 2,
        duplicates: "keep".parse().unwrap(),
        eviction: "lru".parse().unwrap(),
        verify: "none".parse().unwrap(),
        event_capacity: 8,
        retention: Some(RetentionConfig { pin_budget: 2, tenants: vec![] }),
        ..PoolConfig::default()
    }).unwrap();
    part_0(&mut pool);
    part_1(&mut pool);
}
