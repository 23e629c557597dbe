//! A journal as a test: made by `kvpool journal export`.
#![cfg_attr(rustfmt, rustfmt_skip)]
#![allow(clippy::allow_attributes, clippy::unit_arg, clippy::unwrap_used, unused, reason = "made by a program")]

use std::sync::Arc;

use kvpool_journal::{Check, Outcome};
use kvpool::retention::{Keep, Priority, Retention, RetentionConfig, TenantId, TenantLimits, Then, Ttl};
use kvpool::{BlockHasher, BlockId, BlockPool, ChainLink, ExtraKeys, HashChain, HashCursor, HasherConfig, PoolConfig};
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
    // 29: refused: the hash chain was made with blake3, this pool has registered blocks hashed with sha256
    same(pool.register(&ids(&[]), &chain("blake3", "none", 2, &[18, 19, 20, 21], 0), 0), 0x1971647c);
    pool.check_invariants().unwrap();
    // 30: refused: the hash chain was made with blake3, this pool has registered blocks hashed with sha256
    same(pool.match_and_acquire(&chain("blake3", "none", 2, &[18, 19, 20, 21], 0), 0), 0x1971647c);
    pool.check_invariants().unwrap();
    // 31: [#6, #5, #4]
    same(pool.allocate(3), 0xab382b3d);
    pool.check_invariants().unwrap();
    // 32: [#3, #7, #8, #9, #10]
    same(pool.allocate(5), 0xca733fd3);
    pool.check_invariants().unwrap();
    // 33: [#11, #12, #13, #14, #15]
    same(pool.allocate(5), 0x04e3136b);
    pool.check_invariants().unwrap();
    // 34: [#16]
    same(pool.allocate(1), 0xb3aecdf2);
    pool.check_invariants().unwrap();
    // 35: [#2]
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[1, 22, 23, 24, 25], 0), 4), 0x4e8a9fd1);
    pool.check_invariants().unwrap();
    // 36: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[5, 6, 7, 26, 27, 28], 0), 6), 0x50caa327);
    pool.check_invariants().unwrap();
    // 37: [#2]
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[1, 29, 30, 31], 0), 6), 0x4e8a9fd1);
    pool.check_invariants().unwrap();
    // 38: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[1, 32], 0), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 39: [#2]
    same(pool.match_and_acquire_for(&chain("sha256", "none", 2, &[1, 2, 10, 11, 33, 34], 0), usize::MAX, TenantId(1)), 0x4e8a9fd1);
    pool.check_invariants().unwrap();
    // 40: Registered { blocks: 0, collided: false }
    same(pool.register(&ids(&[]), &chain("sha256", "none", 2, &[1, 2, 10, 35, 36, 37], 0), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 41: ()
    same(pool.mark_computed(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 42: refused: the hash chain belongs to epoch 1, the pool is in epoch 0: hash the tokens again
    same(pool.register(&ids(&[]), &chain("sha256", "none", 2, &[38, 39, 40, 41, 42], 1), 0), 0x32911419);
    pool.check_invariants().unwrap();
    // 43: ()
    same(pool.mark_computed(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 44: Registered { blocks: 1, collided: false }
    same(pool.register(&ids(&[16]), &chain("sha256", "none", 2, &[1, 2, 10], 0), 0), 0xe88aa583);
    pool.check_invariants().unwrap();
    // 45: ()
    same(pool.mark_computed(&ids(&[16])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 46: Registered { blocks: 8, collided: false }
    same(pool.register(&ids(&[3, 7, 8, 9, 10, 11, 12, 13]), &chain("sha256", "none", 2, &[1, 2, 10, 11, 12, 43, 44, 45], 0), 0), 0x57b4a7a2);
    pool.check_invariants().unwrap();
    // 47: ()
    same(pool.release(&ids(&[3, 7, 8, 9, 10, 11, 12, 13, 14, 15, 2])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 48: ()
    same(pool.release(&ids(&[2])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 49: ()
    same(pool.release(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 50: ()
    same(pool.release_table(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 51: refused: ticket 3 is not open: it has ended already, or is of another pool (1 are open)
    same(pool.release_until(&ids(&[]), kvpool::Ticket::new(3)), 0xa243eb80);
    pool.check_invariants().unwrap();
    // 52: 0
    same(pool.complete_step(3), 0x50caa327);
    pool.check_invariants().unwrap();
    // 53: ()
    same(pool.acquire(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 54: Some(#2)
    same(pool.acquire_registered(&link("sha256", "none", 2, &[1], 0)), 0x4e8a9fd1);
    pool.check_invariants().unwrap();
    // 55: 0
    same(pool.advance_time(53.0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 56: 1
    same(pool.drop_cached(&ids(&[9, 2])), 0xcc9804cd);
    pool.check_invariants().unwrap();
    // 57: 0 events
    same(pool.take_events().events.len(), 0x00000000);
    pool.check_invariants().unwrap();
    // 58: refused: the hash chain was made for blocks of 3 tokens, the pool has blocks of 2
    same(pool.register(&ids(&[]), &chain("xxh3", "none", 3, &[], 0), 0), 0x65dd85c7);
    pool.check_invariants().unwrap();
    // 59: refused: the hash chain was made for blocks of 3 tokens, the pool has blocks of 2
    same(pool.match_and_acquire(&chain("xxh3", "none", 3, &[], 0), 0), 0x65dd85c7);
    pool.check_invariants().unwrap();
    // 60: []
    same(pool.allocate(0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 61: [#15, #14, #13, #12]
    same(pool.allocate(4), 0x5eaa2257);
    pool.check_invariants().unwrap();
    // 62: []
    same(pool.allocate(0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 63: [#11]
    same(pool.allocate(1), 0x4dc11388);
    pool.check_invariants().unwrap();
    // 64: [#16]
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[1, 2, 10, 11, 12, 46, 47], 0), 3), 0xb3aecdf2);
    pool.check_invariants().unwrap();
    // 65: [#16]
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[1, 2, 10, 48, 49, 50], 0), 5), 0xb3aecdf2);
    pool.check_invariants().unwrap();
    // 66: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[5], 0), 4), 0x50caa327);
    pool.check_invariants().unwrap();
    // 67: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[5, 6, 7, 51], 0), 2), 0x50caa327);
    pool.check_invariants().unwrap();
    // 68: []
    same(pool.match_and_acquire_for(&chain("sha256", "none", 2, &[52, 53, 54], 0), usize::MAX, TenantId(1)), 0x50caa327);
    pool.check_invariants().unwrap();
    // 69: refused: block 16 is already registered
    same(pool.register(&ids(&[16]), &chain("sha256", "none", 2, &[55], 0), 0), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 70: ()
    same(pool.mark_computed(&ids(&[16])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 71: refused: block 16 is already registered
    same(pool.register(&ids(&[16, 16]), &chain("sha256", "none", 2, &[5, 6, 7, 8, 56], 0), 0), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 72: ()
    same(pool.mark_computed(&ids(&[16, 16])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 73: Registered { blocks: 0, collided: false }
    same(pool.register(&ids(&[]), &chain("sha256", "none", 2, &[1, 2, 10, 11, 12, 57], 0), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 74: ()
    same(pool.mark_computed(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 75: Registered { blocks: 1, collided: false }
    same(pool.register(&ids(&[15]), &chain("sha256", "none", 2, &[58], 0), 0), 0xe88aa583);
    pool.check_invariants().unwrap();
    // 76: ()
    same(pool.release(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 77: ()
    same(pool.release(&ids(&[15, 14, 13, 12, 16])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 78: ()
    same(pool.release(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 79: ()
    same(pool.release_table(&ids(&[16, 16])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 80: refused: ticket 2 is not open: it has ended already, or is of another pool (1 are open)
    same(pool.release_until(&ids(&[]), kvpool::Ticket::new(2)), 0xa243eb80);
    pool.check_invariants().unwrap();
    // 81: 0
    same(pool.complete_step(4), 0x50caa327);
    pool.check_invariants().unwrap();
    // 82: ()
    same(pool.acquire(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 83: ()
    same(pool.mark_accessed(&ids(&[]), 98.0), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 84: 1
    same(pool.bump_epoch(), 0xcc9804cd);
    pool.check_invariants().unwrap();
    // 85: 1 events
    same(pool.take_events().events.len(), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 86: refused: the hash chain belongs to epoch 0, the pool is in epoch 1: hash the tokens again
    same(pool.register(&ids(&[]), &chain("xxh3", "none", 3, &[59, 60, 61], 0), 0), 0x32911419);
    pool.check_invariants().unwrap();
    // 87: refused: the hash chain belongs to epoch 0, the pool is in epoch 1: hash the tokens again
    same(pool.match_and_acquire(&chain("xxh3", "none", 3, &[59, 60, 61], 0), 0), 0x32911419);
    pool.check_invariants().unwrap();
    // 88: [#16, #12, #13]
    same(pool.allocate(3), 0x34f9b132);
    pool.check_invariants().unwrap();
    // 89: [#14, #15, #10]
    same(pool.allocate(3), 0x3e265d66);
    pool.check_invariants().unwrap();
    // 90: []
    same(pool.allocate(0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 91: [#9, #8]
    same(pool.allocate(2), 0xe288987d);
    pool.check_invariants().unwrap();
    // 92: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[62], 1), 4), 0x50caa327);
    pool.check_invariants().unwrap();
    // 93: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[63, 64, 65, 66, 67, 68, 69], 1), 6), 0x50caa327);
    pool.check_invariants().unwrap();
    // 94: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[70, 71, 72, 73], 1), 4), 0x50caa327);
    pool.check_invariants().unwrap();
    // 95: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[], 1), 6), 0x50caa327);
    pool.check_invariants().unwrap();
    // 96: []
    same(pool.match_and_acquire_for(&chain("sha256", "none", 2, &[70, 74, 75, 76, 77], 1), usize::MAX, TenantId(1)), 0x50caa327);
    pool.check_invariants().unwrap();
    // 97: refused: the hash chain belongs to epoch 2, the pool is in epoch 1: hash the tokens again
    same(pool.register(&ids(&[]), &chain("sha256", "none", 2, &[78, 79, 80, 81], 2), 0), 0x32911419);
    pool.check_invariants().unwrap();
    // 98: ()
    same(pool.mark_computed(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 99: Registered { blocks: 2, collided: false }
    same(pool.register(&ids(&[9, 8]), &chain("sha256", "none", 2, &[70, 71, 72, 73, 82, 83, 84, 85], 1), 0), 0x83f1241f);
    pool.check_invariants().unwrap();
    // 100: ()
    same(pool.mark_computed(&ids(&[9, 8])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 101: Registered { blocks: 0, collided: false }
    same(pool.register(&ids(&[]), &chain("sha256", "none", 2, &[70, 71, 72, 73, 82], 1), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 102: ()
    same(pool.mark_computed(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 103: refused: block 9 is already registered
    same(pool.register(&ids(&[9, 8]), &chain("sha256", "none", 2, &[38, 39, 40], 1), 1), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 104: ()
    same(pool.release(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 105: ()
    same(pool.release(&ids(&[16, 12, 13])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 106: ()
    same(pool.release(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 107: ()
    same(pool.release_table(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 108: refused: ticket 5 is not open: it has ended already, or is of another pool (1 are open)
    same(pool.release_until(&ids(&[6, 5, 4, 2, 2, 11, 14, 15, 10]), kvpool::Ticket::new(5)), 0xa243eb80);
    pool.check_invariants().unwrap();
    // 109: 1
    same(pool.end_fence(kvpool::Ticket::new(0)), 0xcc9804cd);
    pool.check_invariants().unwrap();
    // 110: 0
    same(pool.complete_step(4), 0x50caa327);
    pool.check_invariants().unwrap();
    // 111: ()
    same(pool.acquire(&ids(&[6, 5, 4, 2, 2, 11, 14, 15, 10])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 112: None
    same(pool.acquire_registered(&link("sha256", "none", 2, &[70, 71, 72], 1)), 0x50caa327);
    pool.check_invariants().unwrap();
    // 113: ()
    same(pool.mark_accessed(&ids(&[6, 5, 4, 2, 2, 11, 14, 15, 10]), 27.0), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 114: 0
    same(pool.drop_cached(&ids(&[14, 2])), 0x50caa327);
    pool.check_invariants().unwrap();
    // 115: 2 events
    same(pool.take_events().events.len(), 0x185f416b);
    pool.check_invariants().unwrap();
    // 116: refused: the hash chain belongs to epoch 0, the pool is in epoch 1: hash the tokens again
    same(pool.register(&ids(&[]), &chain("xxh3", "none", 3, &[59, 86, 87], 0), 0), 0x32911419);
    pool.check_invariants().unwrap();
    // 117: refused: the hash chain belongs to epoch 0, the pool is in epoch 1: hash the tokens again
    same(pool.match_and_acquire(&chain("xxh3", "none", 3, &[59, 86, 87], 0), 0), 0x32911419);
    pool.check_invariants().unwrap();
    // 118: [#1]
    same(pool.allocate(1), 0x6af8de86);
    pool.check_invariants().unwrap();
    // 119: [#13, #12, #16]
    same(pool.allocate(3), 0x8c7b326a);
    pool.check_invariants().unwrap();
    // 120: [#7, #3]
    same(pool.allocate(2), 0xa32405dc);
    pool.check_invariants().unwrap();
    // 121: [#17, #18, #19, #20, #21]
    same(pool.allocate(5), 0xb5c3afa8);
    pool.check_invariants().unwrap();
    // 122: [#9, #8]
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[70, 71, 72, 73, 88, 89], 1), 2), 0xe288987d);
    pool.check_invariants().unwrap();
    // 123: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[38, 39, 40, 90, 91, 92], 1), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 124: [#9, #8]
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[70, 71, 72, 93, 94], 1), 5), 0xe288987d);
    pool.check_invariants().unwrap();
    // 125: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[38, 39, 40, 95], 1), 5), 0x50caa327);
    pool.check_invariants().unwrap();
    // 126: []
    same(pool.match_and_acquire_for(&chain("sha256", "none", 2, &[38, 39, 40, 90, 91, 96, 97, 98, 99], 1), usize::MAX, TenantId(1)), 0x50caa327);
    pool.check_invariants().unwrap();
    // 127: Registered { blocks: 1, collided: false }
    same(pool.register(&ids(&[17]), &chain("sha256", "none", 2, &[62], 1), 0), 0xe88aa583);
    pool.check_invariants().unwrap();
    // 128: ()
    same(pool.mark_computed(&ids(&[17])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 129: Registered { blocks: 4, collided: false }
    same(pool.register(&ids(&[6, 5, 4, 2]), &chain("sha256", "none", 2, &[100, 101, 102, 103], 1), 0), 0xcf32a195);
    pool.check_invariants().unwrap();
    // 130: ()
    same(pool.mark_computed(&ids(&[6, 5, 4, 2])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 131: refused: block 17 is already registered
    same(pool.register(&ids(&[17, 18, 19, 20]), &chain("sha256", "none", 2, &[70, 71, 72, 104], 1), 0), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 132: refused: block 18 is not registered: register it before marking it computed
    same(pool.mark_computed(&ids(&[17, 18, 19, 20])), 0x9d3ec4b0);
    pool.check_invariants().unwrap();
    // 133: Registered { blocks: 1, collided: false }
    same(pool.register(&ids(&[7]), &chain("sha256", "none", 2, &[63, 64], 1), 1), 0xe88aa583);
    pool.check_invariants().unwrap();
    // 134: ()
    same(pool.release(&ids(&[6, 5, 4, 2, 2, 11, 14, 15, 10])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 135: ()
    same(pool.release(&ids(&[17, 18, 19, 20, 21, 9, 8])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 136: ()
    same(pool.release(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 137: ()
    same(pool.release_table(&ids(&[7, 3])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 138: Ticket(1)
    same(pool.fence(), 0xcc9804cd);
    pool.check_invariants().unwrap();
    // 139: ()
    same(pool.release_until(&ids(&[]), kvpool::Ticket::new(1)), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 140: refused: ticket 0 is not open: it has ended already, or is of another pool (1 are open)
    same(pool.end_fence(kvpool::Ticket::new(0)), 0xa243eb80);
    pool.check_invariants().unwrap();
    // 141: 0
    same(pool.complete_step(4), 0x50caa327);
    pool.check_invariants().unwrap();
    // 142: ()
    same(pool.acquire(&ids(&[9, 8, 13, 12, 16, 9, 8])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 143: refused: block 8 is already registered
    same(pool.register_link(BlockId::new(8), &link("sha256", "none", 2, &[38], 1)), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 144: refused: the time 31 is before 53, which was passed earlier: time does not go backwards
    same(pool.advance_time(31.0), 0xee1b8acc);
    pool.check_invariants().unwrap();
    // 145: 2
    same(pool.drop_cached(&ids(&[9, 8])), 0xe88aa583);
    pool.check_invariants().unwrap();
    // 146: 7 events
    same(pool.take_events().events.len(), 0x2511a610);
    pool.check_invariants().unwrap();
    // 147: refused: the hash chain belongs to epoch 0, the pool is in epoch 1: hash the tokens again
    same(pool.register(&ids(&[9, 8, 13]), &chain("xxh3", "none", 3, &[59, 60, 61], 0), 0), 0x32911419);
    pool.check_invariants().unwrap();
    // 148: refused: the hash chain belongs to epoch 0, the pool is in epoch 1: hash the tokens again
    same(pool.match_and_acquire(&chain("xxh3", "none", 3, &[59, 60, 61], 0), 0), 0x32911419);
    pool.check_invariants().unwrap();
    // 149: [#7, #3, #21, #20]
    same(pool.allocate(4), 0x71067cb3);
    pool.check_invariants().unwrap();
    // 150: [#19]
    same(pool.allocate(1), 0xcc5e7137);
    pool.check_invariants().unwrap();
    // 151: [#18]
    same(pool.allocate(1), 0x4850b378);
    pool.check_invariants().unwrap();
    // 152: [#22]
    same(pool.allocate(1), 0x184f305a);
    pool.check_invariants().unwrap();
    // 153: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[38, 39, 40, 95], 1), 5), 0x50caa327);
    pool.check_invariants().unwrap();
    // 154: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[38, 39, 105, 106], 1), 1), 0x50caa327);
    pool.check_invariants().unwrap();
    // 155: refused: the hash chain belongs to epoch 2, the pool is in epoch 1: hash the tokens again
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[107, 108, 109, 110], 2), 1), 0x32911419);
    pool.check_invariants().unwrap();
    // 156: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[38, 39, 111], 1), 5), 0x50caa327);
    pool.check_invariants().unwrap();
    // 157: refused: the hash chain belongs to epoch 2, the pool is in epoch 1: hash the tokens again
    same(pool.match_and_acquire_for(&chain("sha256", "none", 2, &[112, 113, 114, 115, 116], 2), usize::MAX, TenantId(1)), 0x32911419);
    pool.check_invariants().unwrap();
    // 158: Registered { blocks: 4, collided: false }
    same(pool.register(&ids(&[9, 8, 13, 12]), &chain("sha256", "none", 2, &[70, 71, 72, 117], 1), 0), 0xcf32a195);
    pool.check_invariants().unwrap();
    // 159: ()
    same(pool.mark_computed(&ids(&[9, 8, 13, 12])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 160: Registered { blocks: 0, collided: false }
    same(pool.register(&ids(&[]), &chain("sha256", "none", 2, &[38, 39, 111, 118], 1), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 161: ()
    same(pool.mark_computed(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 162: Registered { blocks: 0, collided: false }
    same(pool.register(&ids(&[]), &chain("sha256", "none", 2, &[70, 119, 120], 1), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 163: ()
    same(pool.mark_computed(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 164: refused: block 6 is already registered
    same(pool.register(&ids(&[6, 5]), &chain("sha256", "none", 2, &[38, 39, 40, 90], 1), 2), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 165: ()
    same(pool.release(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 166: ()
    same(pool.release(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 167: ()
    same(pool.release(&ids(&[9, 8, 13, 12, 16, 9, 8])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 168: ()
    same(pool.release_table(&ids(&[9, 8, 13, 12, 16, 9, 8, 19, 18, 22])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 169: Ticket(2)
    same(pool.fence(), 0xe88aa583);
    pool.check_invariants().unwrap();
    // 170: ()
    same(pool.release_until(&ids(&[]), kvpool::Ticket::new(2)), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 171: refused: ticket 5 is not open: it has ended already, or is of another pool (2 are open)
    same(pool.end_fence(kvpool::Ticket::new(5)), 0xa243eb80);
    pool.check_invariants().unwrap();
    // 172: 0
    same(pool.complete_step(6), 0x50caa327);
    pool.check_invariants().unwrap();
    // 173: ()
    same(pool.acquire(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 174: #13
    same(pool.register_link(BlockId::new(20), &link("sha256", "none", 2, &[70, 71, 72], 1)), 0x9c238e04);
    pool.check_invariants().unwrap();
    // 175: ()
    same(pool.assign_tenant(&ids(&[6, 5, 4, 2, 2, 11, 14, 15, 10, 1, 7, 3, 21, 13]), TenantId(1)), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 176: refused: 13 blocks are active and 0 fenced: release them first, or bump the epoch, which always succeeds
    same(pool.reset(), 0xde9294cb);
    pool.check_invariants().unwrap();
    // 177: 4 events
    same(pool.take_events().events.len(), 0x30be82d6);
    pool.check_invariants().unwrap();
    // 178: refused: the hash chain belongs to epoch 0, the pool is in epoch 1: hash the tokens again
    same(pool.register(&ids(&[]), &chain("xxh3", "none", 2, &[121, 122, 123, 124, 125, 126], 0), 0), 0x32911419);
    pool.check_invariants().unwrap();
    // 179: refused: the hash chain belongs to epoch 0, the pool is in epoch 1: hash the tokens again
    same(pool.match_and_acquire(&chain("xxh3", "none", 2, &[121, 122, 123, 124, 125, 126], 0), 0), 0x32911419);
    pool.check_invariants().unwrap();
    // 180: [#20, #16, #19, #18, #22]
    same(pool.allocate(5), 0xd7d72019);
    pool.check_invariants().unwrap();
    // 181: [#23, #24, #25, #26]
    same(pool.allocate(4), 0x39dc89f2);
    pool.check_invariants().unwrap();
    // 182: [#27, #28]
    same(pool.allocate(2), 0xbfb7f285);
    pool.check_invariants().unwrap();
    // 183: [#29, #30, #31, #32, #33]
    same(pool.allocate(5), 0xb8ceb8e0);
    pool.check_invariants().unwrap();
    // 184: [#9, #8, #13]
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[70, 71, 72, 73], 1), 6), 0xa47b0003);
    pool.check_invariants().unwrap();
    // 185: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[127], 1), 3), 0x50caa327);
    pool.check_invariants().unwrap();
    // 186: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[38, 39, 40, 90, 91, 128], 1), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 187: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[63, 64, 65, 66, 67, 129, 130, 131], 1), 4), 0x50caa327);
    pool.check_invariants().unwrap();
    // 188: refused: the hash chain belongs to epoch 2, the pool is in epoch 1: hash the tokens again
    same(pool.match_and_acquire_for(&chain("sha256", "none", 2, &[132, 133], 2), usize::MAX, TenantId(1)), 0x32911419);
    pool.check_invariants().unwrap();
    // 189: Registered { blocks: 0, collided: false }
    same(pool.register(&ids(&[]), &chain("sha256", "none", 2, &[38], 1), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 190: ()
    same(pool.mark_computed(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 191: refused: block 6 is already registered
    same(pool.register(&ids(&[6, 5, 4]), &chain("sha256", "none", 2, &[63, 134, 135], 1), 0), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 192: ()
    same(pool.mark_computed(&ids(&[6, 5, 4])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 193: Registered { blocks: 0, collided: false }
    same(pool.register(&ids(&[]), &chain("sha256", "none", 2, &[38, 136, 137, 138], 1), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 194: ()
    same(pool.mark_computed(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 195: refused: block 6 is already registered
    same(pool.register(&ids(&[6, 5, 4, 2, 2, 11, 14, 15]), &chain("sha256", "none", 2, &[63, 64, 65, 66, 67, 139, 140, 141], 1), 0), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 196: ()
    same(pool.release(&ids(&[23, 24, 25, 26])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 197: ()
    same(pool.release(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 198: ()
    same(pool.release(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 199: ()
    same(pool.release_table(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 200: ()
    same(pool.release_after(&ids(&[]), 0), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 201: 0
    same(pool.complete_step(8), 0x50caa327);
    pool.check_invariants().unwrap();
    // 202: ()
    same(pool.acquire(&ids(&[27, 28, 29, 30, 31, 32, 33, 9, 8, 13])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 203: None
    same(pool.acquire_registered(&link("sha256", "none", 2, &[38, 39, 142], 1)), 0x50caa327);
    pool.check_invariants().unwrap();
    // 204: HintReport { accepted: 0, clipped: 0, ignored: 0 }
    same(pool.retain(&ids(&[]), Retention { keep: Keep::Pinned, ttl: Some(Ttl::Absolute(1.0)), then: Then::Normal }), 0x532a9d3d);
    pool.check_invariants().unwrap();
    // 205: 1
    same(pool.drop_cached(&ids(&[33, 5])), 0xcc9804cd);
    pool.check_invariants().unwrap();
    // 206: 1 events
    same(pool.take_events().events.len(), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 207: refused: the hash chain belongs to epoch 0, the pool is in epoch 1: hash the tokens again
    same(pool.register(&ids(&[6, 5, 4]), &chain("blake3", "none", 2, &[18, 143, 144], 0), 0), 0x32911419);
    pool.check_invariants().unwrap();
    // 208: refused: the hash chain belongs to epoch 0, the pool is in epoch 1: hash the tokens again
    same(pool.match_and_acquire(&chain("blake3", "none", 2, &[18, 143, 144], 0), 0), 0x32911419);
    pool.check_invariants().unwrap();
    // 209: [#26, #25, #24, #23, #34]
    same(pool.allocate(5), 0x2f71ac40);
    pool.check_invariants().unwrap();
    // 210: [#35, #36, #37]
    same(pool.allocate(3), 0x7579824a);
    pool.check_invariants().unwrap();
    // 211: [#38, #39, #40, #41, #42]
    same(pool.allocate(5), 0xa8808a30);
    pool.check_invariants().unwrap();
    // 212: []
    same(pool.allocate(0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 213: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[38, 39, 40, 41, 42, 145], 1), 2), 0x50caa327);
    pool.check_invariants().unwrap();
    // 214: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[38, 39, 40, 90, 91, 92, 146, 147, 148], 1), 3), 0x50caa327);
    pool.check_invariants().unwrap();
    // 215: [#6]
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[100, 101, 102, 103, 149], 1), 5), 0x1e131507);
    pool.check_invariants().unwrap();
    // 216: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[38, 39, 40, 90, 91], 1), 2), 0x50caa327);
    pool.check_invariants().unwrap();
    // 217: []
    same(pool.match_and_acquire_for(&chain("sha256", "none", 2, &[38, 39, 40, 90, 91, 150], 1), usize::MAX, TenantId(1)), 0x50caa327);
    pool.check_invariants().unwrap();
    // 218: Registered { blocks: 0, collided: false }
    same(pool.register(&ids(&[]), &chain("sha256", "none", 2, &[], 1), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 219: ()
    same(pool.mark_computed(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 220: Registered { blocks: 0, collided: false }
    same(pool.register(&ids(&[]), &chain("sha256", "none", 2, &[], 1), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 221: ()
    same(pool.mark_computed(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 222: refused: the hash chain belongs to epoch 2, the pool is in epoch 1: hash the tokens again
    same(pool.register(&ids(&[38, 39, 40, 41]), &chain("sha256", "none", 2, &[132, 151, 152, 153], 2), 0), 0x32911419);
    pool.check_invariants().unwrap();
    // 223: refused: block 38 is not registered: register it before marking it computed
    same(pool.mark_computed(&ids(&[38, 39, 40, 41])), 0x9d3ec4b0);
    pool.check_invariants().unwrap();
    // 224: Registered { blocks: 5, collided: false }
    same(pool.register(&ids(&[27, 28, 29, 30, 31]), &chain("sha256", "none", 2, &[38, 39, 40, 95, 154], 1), 0), 0x6888a322);
    pool.check_invariants().unwrap();
    // 225: ()
    same(pool.release(&ids(&[38, 39, 40, 41, 42])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 226: ()
    same(pool.release(&ids(&[27, 28, 29, 30, 31, 32, 33, 9, 8, 13])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 227: ()
    same(pool.release(&ids(&[6, 5, 4, 2, 2, 11, 14, 15, 10, 1, 7, 3, 21, 13, 20, 16, 19, 18, 22, 26, 25, 24, 23, 34, 35, 36, 37])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 228: ()
    same(pool.release_table(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 229: ()
    same(pool.release_until(&ids(&[]), kvpool::Ticket::new(1)), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 230: refused: ticket 3 is not open: it has ended already, or is of another pool (2 are open)
    same(pool.end_fence(kvpool::Ticket::new(3)), 0xa243eb80);
    pool.check_invariants().unwrap();
    // 231: 0
    same(pool.complete_step(8), 0x50caa327);
    pool.check_invariants().unwrap();
    // 232: ()
    same(pool.acquire(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 233: refused: block 6 is already registered
    same(pool.register_link(BlockId::new(6), &link("sha256", "none", 2, &[70, 71], 1)), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 234: HintReport { accepted: 2, clipped: 7, ignored: 2 }
    same(pool.retain(&ids(&[27, 28, 29, 30, 31, 32, 33, 9, 8, 13, 6]), Retention { keep: Keep::Pinned, ttl: Some(Ttl::Idle(1.0)), then: Then::Normal }), 0xe11a8517);
    pool.check_invariants().unwrap();
    // 235: refused: block 0 is the null block: it cannot be evicted
    same(pool.drop_cached(&ids(&[14, 0])), 0x88ee79af);
    pool.check_invariants().unwrap();
    // 236: 0 events
    same(pool.take_events().events.len(), 0x00000000);
    pool.check_invariants().unwrap();
    // 237: refused: the hash chain belongs to epoch 0, the pool is in epoch 1: hash the tokens again
    same(pool.register(&ids(&[]), &chain("xxh3", "none", 3, &[59, 60, 155], 0), 0), 0x32911419);
    pool.check_invariants().unwrap();
    // 238: refused: the hash chain belongs to epoch 0, the pool is in epoch 1: hash the tokens again
    same(pool.match_and_acquire(&chain("xxh3", "none", 3, &[59, 60, 155], 0), 0), 0x32911419);
    pool.check_invariants().unwrap();
    // 239: [#37, #36, #35, #34]
    same(pool.allocate(4), 0x31d74836);
    pool.check_invariants().unwrap();
    // 240: [#23, #24, #25, #26, #22]
    same(pool.allocate(5), 0xb589a7c3);
    pool.check_invariants().unwrap();
    // 241: [#18, #19, #16, #20, #21]
    same(pool.allocate(5), 0x961f4a84);
    pool.check_invariants().unwrap();
    // 242: [#3, #7, #1, #10, #15]
    same(pool.allocate(5), 0xe1efa8c5);
    pool.check_invariants().unwrap();
    // 243: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[38, 39, 40, 90, 91, 96, 156, 157], 1), 4), 0x50caa327);
    pool.check_invariants().unwrap();
    // 244: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[38, 39, 40, 41], 1), 3), 0x50caa327);
    pool.check_invariants().unwrap();
    // 245: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[38, 39, 40, 90, 91, 96], 1), 1), 0x50caa327);
    pool.check_invariants().unwrap();
    // 246: [#17]
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[62, 158, 159], 1), 1), 0x77fef2c3);
    pool.check_invariants().unwrap();
    // 247: []
    same(pool.match_and_acquire_for(&chain("sha256", "none", 2, &[38, 39, 40, 90, 91, 96], 1), usize::MAX, TenantId(1)), 0x50caa327);
    pool.check_invariants().unwrap();
    // 248: refused: block 27 is already registered
    same(pool.register(&ids(&[27, 28, 29, 30, 31, 32]), &chain("sha256", "none", 2, &[38, 39, 40, 90, 91, 150], 1), 0), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 249: refused: block 32 is not registered: register it before marking it computed
    same(pool.mark_computed(&ids(&[27, 28, 29, 30, 31, 32])), 0x9d3ec4b0);
    pool.check_invariants().unwrap();
}

fn part_1(pool: &mut BlockPool) {
    // 250: Registered { blocks: 4, collided: false }
    same(pool.register(&ids(&[23, 24, 25, 26]), &chain("sha256", "none", 2, &[38, 39, 111, 118], 1), 0), 0xcf32a195);
    pool.check_invariants().unwrap();
    // 251: ()
    same(pool.mark_computed(&ids(&[23, 24, 25, 26])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 252: refused: block 23 is already registered
    same(pool.register(&ids(&[23, 24, 25, 26, 22]), &chain("sha256", "none", 2, &[63, 64, 65, 160, 161], 1), 0), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 253: refused: block 22 is not registered: register it before marking it computed
    same(pool.mark_computed(&ids(&[23, 24, 25, 26, 22])), 0x9d3ec4b0);
    pool.check_invariants().unwrap();
    // 254: refused: block 23 is already registered
    same(pool.register(&ids(&[23, 24]), &chain("sha256", "none", 2, &[38, 39, 162], 1), 1), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 255: ()
    same(pool.release(&ids(&[18, 19, 16, 20, 21, 17])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 256: ()
    same(pool.release(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 257: ()
    same(pool.release(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 258: ()
    same(pool.release_table(&ids(&[27, 28, 29, 30, 31, 32, 33, 9, 8, 13, 6, 37, 36, 35, 34])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 259: ()
    same(pool.release_after(&ids(&[]), 3), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 260: refused: ticket 4 is not open: it has ended already, or is of another pool (2 are open)
    same(pool.end_fence(kvpool::Ticket::new(4)), 0xa243eb80);
    pool.check_invariants().unwrap();
    // 261: 0
    same(pool.complete_step(9), 0x50caa327);
    pool.check_invariants().unwrap();
    // 262: ()
    same(pool.acquire(&ids(&[23, 24, 25, 26, 22, 3, 7, 1, 10, 15])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 263: HintReport { accepted: 4, clipped: 0, ignored: 6 }
    same(pool.retain(&ids(&[23, 24, 25, 26, 22, 3, 7, 1, 10, 15]), Retention { keep: Keep::Priority(Priority::new(80).unwrap()), ttl: None, then: Then::Normal }), 0x566b2227);
    pool.check_invariants().unwrap();
    // 264: 2
    same(pool.bump_epoch(), 0xe88aa583);
    pool.check_invariants().unwrap();
    // 265: 5 events
    same(pool.take_events().events.len(), 0xcd6c219e);
    pool.check_invariants().unwrap();
    // 266: refused: the hash chain belongs to epoch 0, the pool is in epoch 2: hash the tokens again
    same(pool.register(&ids(&[]), &chain("blake3", "none", 2, &[18, 143, 163, 164, 165], 0), 0), 0x32911419);
    pool.check_invariants().unwrap();
    // 267: refused: the hash chain belongs to epoch 0, the pool is in epoch 2: hash the tokens again
    same(pool.match_and_acquire(&chain("blake3", "none", 2, &[18, 143, 163, 164, 165], 0), 0), 0x32911419);
    pool.check_invariants().unwrap();
    // 268: [#9, #6, #8, #13]
    same(pool.allocate(4), 0x29682805);
    pool.check_invariants().unwrap();
    // 269: [#17, #4]
    same(pool.allocate(2), 0x78378010);
    pool.check_invariants().unwrap();
    // 270: [#2, #12, #27, #28, #29]
    same(pool.allocate(5), 0xa96ad23f);
    pool.check_invariants().unwrap();
    // 271: []
    same(pool.allocate(0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 272: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[166, 167, 168, 169, 170], 2), 2), 0x50caa327);
    pool.check_invariants().unwrap();
    // 273: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[166, 167, 171, 172, 173], 2), 4), 0x50caa327);
    pool.check_invariants().unwrap();
    // 274: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[132, 151, 174, 175, 176, 177], 2), 1), 0x50caa327);
    pool.check_invariants().unwrap();
    // 275: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[178, 179, 180], 2), 4), 0x50caa327);
    pool.check_invariants().unwrap();
    // 276: []
    same(pool.match_and_acquire_for(&chain("sha256", "none", 2, &[132, 181, 182, 183], 2), usize::MAX, TenantId(1)), 0x50caa327);
    pool.check_invariants().unwrap();
    // 277: Registered { blocks: 0, collided: false }
    same(pool.register(&ids(&[]), &chain("sha256", "none", 2, &[112, 113, 184, 185], 2), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 278: ()
    same(pool.mark_computed(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 279: Registered { blocks: 0, collided: false }
    same(pool.register(&ids(&[]), &chain("sha256", "none", 2, &[78, 186, 187, 188, 189, 190, 191, 192], 2), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 280: ()
    same(pool.mark_computed(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 281: Registered { blocks: 1, collided: false }
    same(pool.register(&ids(&[9]), &chain("sha256", "none", 2, &[112], 2), 0), 0xe88aa583);
    pool.check_invariants().unwrap();
    // 282: ()
    same(pool.mark_computed(&ids(&[9])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 283: Registered { blocks: 0, collided: false }
    same(pool.register(&ids(&[]), &chain("sha256", "none", 2, &[112, 113, 184, 193, 194, 195], 2), 2), 0x50caa327);
    pool.check_invariants().unwrap();
    // 284: ()
    same(pool.release(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 285: ()
    same(pool.release(&ids(&[23, 24, 25, 26, 22, 3, 7, 1, 10, 15])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 286: ()
    same(pool.release(&ids(&[9, 6, 8, 13, 17, 4, 2, 12, 27, 28, 29])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 287: ()
    same(pool.release_table(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 288: refused: ticket 3 is not open: it has ended already, or is of another pool (2 are open)
    same(pool.release_until(&ids(&[23, 24, 25, 26, 22, 3, 7, 1, 10, 15]), kvpool::Ticket::new(3)), 0xa243eb80);
    pool.check_invariants().unwrap();
    // 289: 0
    same(pool.end_fence(kvpool::Ticket::new(2)), 0x50caa327);
    pool.check_invariants().unwrap();
    // 290: 0
    same(pool.complete_step(11), 0x50caa327);
    pool.check_invariants().unwrap();
    // 291: ()
    same(pool.acquire(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 292: None
    same(pool.acquire_registered(&link("sha256", "none", 2, &[112, 113, 184], 2)), 0x50caa327);
    pool.check_invariants().unwrap();
    // 293: ()
    same(pool.mark_accessed(&ids(&[]), 97.0), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 294: 3
    same(pool.bump_epoch(), 0x27b54459);
    pool.check_invariants().unwrap();
    // 295: 2 events
    same(pool.take_events().events.len(), 0x185f416b);
    pool.check_invariants().unwrap();
    // 296: refused: the hash chain belongs to epoch 0, the pool is in epoch 3: hash the tokens again
    same(pool.register(&ids(&[]), &chain("xxh3", "none", 2, &[121, 122, 196, 197, 198], 0), 0), 0x32911419);
    pool.check_invariants().unwrap();
    // 297: refused: the hash chain belongs to epoch 0, the pool is in epoch 3: hash the tokens again
    same(pool.match_and_acquire(&chain("xxh3", "none", 2, &[121, 122, 196, 197, 198], 0), 0), 0x32911419);
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
