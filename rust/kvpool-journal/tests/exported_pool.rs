//! A journal as a test: made by `kvpool journal export`.
#![cfg_attr(rustfmt, rustfmt_skip)]
#![allow(clippy::allow_attributes, clippy::single_range_in_vec_init, clippy::unit_arg, clippy::unwrap_used, unused, reason = "made by a program")]

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
    // 0: [#1, #2, #3, #4, #5]
    same(pool.allocate(5), 0x14a41444);
    pool.check_invariants().unwrap();
    // 1: [#6]
    same(pool.allocate(1), 0x1e131507);
    pool.check_invariants().unwrap();
    // 2: [#7, #8, #9, #10, #11]
    same(pool.allocate(5), 0x80bee67c);
    pool.check_invariants().unwrap();
    // 3: [#12, #13, #14, #15]
    same(pool.allocate(4), 0x825a639a);
    pool.check_invariants().unwrap();
    // 4: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[1, 2, 3, 4, 5, 6], 0), 1), 0x50caa327);
    pool.check_invariants().unwrap();
    // 5: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[1], 0), 6), 0x50caa327);
    pool.check_invariants().unwrap();
    // 6: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[7, 8, 9, 10, 11, 12], 0), 2), 0x50caa327);
    pool.check_invariants().unwrap();
    // 7: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[13, 14, 15], 0), 2), 0x50caa327);
    pool.check_invariants().unwrap();
    // 8: []
    same(pool.match_and_acquire_for(&chain("sha256", "none", 2, &[1, 2, 3, 4], 0), usize::MAX, TenantId(1)), 0x50caa327);
    pool.check_invariants().unwrap();
    // 9: Registered { blocks: 0, collided: false }
    same(pool.register(&ids(&[]), &chain("sha256", "none", 2, &[16, 17, 18, 19], 0), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 10: ()
    same(pool.mark_computed(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 11: Registered { blocks: 4, collided: false }
    same(pool.register(&ids(&[12, 13, 14, 15]), &chain("sha256", "none", 2, &[20, 21, 22, 23], 0), 0), 0xcf32a195);
    pool.check_invariants().unwrap();
    // 12: ()
    same(pool.mark_computed(&ids(&[12, 13, 14, 15])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 13: Registered { blocks: 0, collided: false }
    same(pool.register(&ids(&[]), &chain("sha256", "none", 2, &[1, 2, 3, 4, 24], 0), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 14: ()
    same(pool.mark_computed(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 15: Registered { blocks: 5, collided: false }
    same(pool.register(&ids(&[1, 2, 3, 4, 5]), &chain("sha256", "none", 2, &[20, 25, 26, 27, 28], 0), 0), 0x6888a322);
    pool.check_invariants().unwrap();
    // 16: ()
    same(pool.release(&ids(&[12, 13, 14, 15])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 17: ()
    same(pool.release(&ids(&[7, 8, 9, 10, 11])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 18: ()
    same(pool.release(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 19: ()
    same(pool.release_table(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 20: refused: ticket 5 is not open: it has ended already, or is of another pool (0 are open)
    same(pool.release_until(&ids(&[]), kvpool::Ticket::new(5)), 0xa243eb80);
    pool.check_invariants().unwrap();
    // 21: refused: ticket 5 is not open: it has ended already, or is of another pool (0 are open)
    same(pool.end_fence(kvpool::Ticket::new(5)), 0xa243eb80);
    pool.check_invariants().unwrap();
    // 22: 0
    same(pool.complete_step(2), 0x50caa327);
    pool.check_invariants().unwrap();
    // 23: ()
    same(pool.acquire(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 24: 0
    same(pool.advance_time(37.0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 25: 2
    same(pool.drop_cached(&ids(&[4, 5])), 0xe88aa583);
    pool.check_invariants().unwrap();
    // 26: 4 events
    same(pool.take_events().events.len(), 0x30be82d6);
    pool.check_invariants().unwrap();
    // 27: []
    same(pool.register_table(&ids(&[]), &chain("sha256", "none", 2, &[7, 8, 9, 10, 29], 0), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 28: [(0, #12), (1, #13)]
    same(pool.adopt(&ids(&[63, 62, 61, 60]), &chain("sha256", "none", 2, &[20, 21, 30, 31], 0), 0), 0xb501df8c);
    pool.check_invariants().unwrap();
    // 29: Match { start: 0, blocks: [#12, #13, #61], algorithm: Sha256, block_size: 2, epoch: 0, hashes: [a6c788dd7b153def00000000000000000000000000000000000000000000
    same(pool.lookup_refreshing(&chain("sha256", "none", 2, &[20, 21, 30, 31], 0), 0, 3), 0x65c4717a);
    pool.check_invariants().unwrap();
    // 30: ()
    same(pool.acquire_match(&Match::new(&chain("sha256", "none", 2, &[20, 21, 30], 0), 0, &ids(&[12, 13, 61])).unwrap()), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 31: refused: the hash chain was made with blake3, this pool has registered blocks hashed with sha256
    same(pool.register(&ids(&[]), &chain("blake3", "none", 2, &[], 0), 0), 0x1971647c);
    pool.check_invariants().unwrap();
    // 32: refused: the hash chain was made with blake3, this pool has registered blocks hashed with sha256
    same(pool.match_and_acquire(&chain("blake3", "none", 2, &[], 0), 0), 0x1971647c);
    pool.check_invariants().unwrap();
    // 33: []
    same(pool.allocate(0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 34: [#11]
    same(pool.allocate(1), 0x4dc11388);
    pool.check_invariants().unwrap();
    // 35: []
    same(pool.allocate(0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 36: [#10, #9, #8, #7, #16]
    same(pool.allocate(5), 0xb3e124d9);
    pool.check_invariants().unwrap();
    // 37: [#12, #13]
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[20, 21, 32], 0), 6), 0x1e54e7b5);
    pool.check_invariants().unwrap();
    // 38: [#12, #13, #61]
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[20, 21, 30, 33, 34, 35, 36], 0), 4), 0xe6ab405b);
    pool.check_invariants().unwrap();
    // 39: [#12]
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[20, 25, 26, 27, 28], 0), 1), 0x6161ccdc);
    pool.check_invariants().unwrap();
    // 40: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[7, 8, 9], 0), 3), 0x50caa327);
    pool.check_invariants().unwrap();
    // 41: []
    same(pool.match_and_acquire_for(&chain("sha256", "none", 2, &[1, 2, 3, 4, 37, 38], 0), usize::MAX, TenantId(1)), 0x50caa327);
    pool.check_invariants().unwrap();
    // 42: refused: block 12 is already registered
    same(pool.register(&ids(&[12, 13, 61]), &chain("sha256", "none", 2, &[1, 2, 39, 40, 41], 0), 0), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 43: ()
    same(pool.mark_computed(&ids(&[12, 13, 61])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 44: refused: block 12 is already registered
    same(pool.register(&ids(&[12, 13]), &chain("sha256", "none", 2, &[1, 2, 3], 0), 0), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 45: ()
    same(pool.mark_computed(&ids(&[12, 13])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 46: Registered { blocks: 0, collided: false }
    same(pool.register(&ids(&[]), &chain("sha256", "none", 2, &[16, 42], 0), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 47: ()
    same(pool.mark_computed(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 48: refused: block 12 is already registered
    same(pool.register(&ids(&[12, 13, 61]), &chain("sha256", "none", 2, &[20, 21, 30, 33, 43], 0), 2), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 49: ()
    same(pool.release(&ids(&[12, 13, 61])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 50: ()
    same(pool.release(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 51: ()
    same(pool.release(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 52: ()
    same(pool.release_table(&ids(&[12, 13, 61, 60, 11, 10, 9, 8, 7, 16])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 53: ()
    same(pool.release_after(&ids(&[]), 1), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 54: 0
    same(pool.complete_step(3), 0x50caa327);
    pool.check_invariants().unwrap();
    // 55: ()
    same(pool.acquire(&ids(&[1, 2, 3, 4, 5, 6, 12, 13, 61, 12])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 56: ()
    same(pool.assign_tenant(&ids(&[]), TenantId(2)), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 57: ()
    same(pool.signal(&ids(&[]), kvpool::Signal { finish: kvpool::Finish::Stop, output_tokens: None }), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 58: 0
    same(pool.drop_cached(&ids(&[21, 4])), 0x50caa327);
    pool.check_invariants().unwrap();
    // 59: 2 events
    same(pool.take_events().events.len(), 0x185f416b);
    pool.check_invariants().unwrap();
    // 60: []
    same(pool.register_table(&ids(&[]), &chain("sha256", "none", 2, &[20, 21, 30, 44, 45, 46], 0), 1), 0x50caa327);
    pool.check_invariants().unwrap();
    // 61: refused: 5 blocks from position 0 do not fit a hash chain of 4 full blocks
    same(pool.adopt(&ids(&[63, 62, 59, 58, 12]), &chain("sha256", "none", 2, &[20, 21, 30, 33], 0), 0), 0xf0ece5ea);
    pool.check_invariants().unwrap();
    // 62: ()
    same(pool.acquire_match(&Match::new(&chain("sha256", "none", 2, &[], 0), 0, &ids(&[])).unwrap()), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 63: refused: the hash chain was made with xxh3, this pool has registered blocks hashed with sha256
    same(pool.register(&ids(&[]), &chain("xxh3", "none", 2, &[47, 48, 49, 50, 51, 52], 0), 0), 0x1971647c);
    pool.check_invariants().unwrap();
    // 64: refused: the hash chain was made with xxh3, this pool has registered blocks hashed with sha256
    same(pool.match_and_acquire(&chain("xxh3", "none", 2, &[47, 48, 49, 50, 51, 52], 0), 0), 0x1971647c);
    pool.check_invariants().unwrap();
    // 65: [#11, #10, #9, #8]
    same(pool.allocate(4), 0x9c3b9298);
    pool.check_invariants().unwrap();
    // 66: [#7, #16, #17, #18, #19]
    same(pool.allocate(5), 0x7812dfe7);
    pool.check_invariants().unwrap();
    // 67: []
    same(pool.allocate(0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 68: [#20, #21, #22, #23, #24]
    same(pool.allocate(5), 0x91a4fd19);
    pool.check_invariants().unwrap();
    // 69: [#12, #13]
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[20, 21, 32, 53, 54], 0), 6), 0x1e54e7b5);
    pool.check_invariants().unwrap();
    // 70: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[1, 2, 55], 0), 2), 0x50caa327);
    pool.check_invariants().unwrap();
    // 71: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[1, 2, 3, 56, 57], 0), 1), 0x50caa327);
    pool.check_invariants().unwrap();
    // 72: [#12]
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[20, 21, 30, 33, 34, 35, 36, 58], 0), 1), 0x6161ccdc);
    pool.check_invariants().unwrap();
    // 73: []
    same(pool.match_and_acquire_for(&chain("sha256", "none", 2, &[16, 17, 18, 59, 60, 61, 62], 0), usize::MAX, TenantId(1)), 0x50caa327);
    pool.check_invariants().unwrap();
    // 74: refused: block 1 is already registered
    same(pool.register(&ids(&[1, 2, 3, 4, 5, 6, 12, 13]), &chain("sha256", "none", 2, &[1, 2, 3, 4, 24, 63, 64, 65], 0), 0), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 75: refused: block 4 is not registered: register it before marking it computed
    same(pool.mark_computed(&ids(&[1, 2, 3, 4, 5, 6, 12, 13])), 0x9d3ec4b0);
    pool.check_invariants().unwrap();
    // 76: refused: block 12 is already registered
    same(pool.register(&ids(&[12, 13]), &chain("sha256", "none", 2, &[66, 67, 68], 0), 0), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 77: ()
    same(pool.mark_computed(&ids(&[12, 13])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 78: refused: block 1 is already registered
    same(pool.register(&ids(&[1, 2, 3, 4, 5]), &chain("sha256", "none", 2, &[1, 2, 39, 40, 41], 0), 0), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 79: refused: block 4 is not registered: register it before marking it computed
    same(pool.mark_computed(&ids(&[1, 2, 3, 4, 5])), 0x9d3ec4b0);
    pool.check_invariants().unwrap();
    // 80: refused: block 1 is already registered
    same(pool.register(&ids(&[1, 2, 3]), &chain("sha256", "none", 2, &[1, 2, 39, 40, 41], 0), 2), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 81: ()
    same(pool.release(&ids(&[1, 2, 3, 4, 5, 6, 12, 13, 61, 12])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 82: ()
    same(pool.release(&ids(&[12, 13])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 83: ()
    same(pool.release(&ids(&[11, 10, 9, 8, 20, 21, 22, 23, 24])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 84: ()
    same(pool.release_table(&ids(&[12, 13, 1, 2, 3, 4, 5, 6, 12, 13, 61, 12, 7, 16, 17, 18, 19])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 85: ()
    same(pool.release_after(&ids(&[12]), 1), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 86: 0
    same(pool.complete_step(3), 0x50caa327);
    pool.check_invariants().unwrap();
    // 87: ()
    same(pool.acquire(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 88: HintReport { accepted: 0, clipped: 0, ignored: 0 }
    same(pool.retain(&ids(&[]), Retention { keep: Keep::Priority(Priority::new(80).unwrap()), ttl: Some(Ttl::Idle(2.0)), then: Then::Normal }), 0x532a9d3d);
    pool.check_invariants().unwrap();
    // 89: 0
    same(pool.drop_cached(&ids(&[6, 8])), 0x50caa327);
    pool.check_invariants().unwrap();
    // 90: 0 events
    same(pool.take_events().events.len(), 0x00000000);
    pool.check_invariants().unwrap();
    // 91: []
    same(pool.register_table(&ids(&[]), &chain("sha256", "none", 2, &[13], 0), 1), 0x50caa327);
    pool.check_invariants().unwrap();
    // 92: [#15]
    same(pool.evict(1), 0x1f586eae);
    pool.check_invariants().unwrap();
    // 93: ()
    same(pool.acquire_match(&Match::new(&chain("sha256", "none", 2, &[], 0), 0, &ids(&[])).unwrap()), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 94: refused: the hash chain was made for blocks of 3 tokens, the pool has blocks of 2
    same(pool.register(&ids(&[]), &chain("xxh3", "none", 3, &[69, 70], 0), 0), 0x65dd85c7);
    pool.check_invariants().unwrap();
    // 95: refused: the hash chain was made for blocks of 3 tokens, the pool has blocks of 2
    same(pool.match_and_acquire(&chain("xxh3", "none", 3, &[69, 70], 0), 0), 0x65dd85c7);
    pool.check_invariants().unwrap();
    // 96: []
    same(pool.allocate(0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 97: []
    same(pool.allocate(0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 98: [#15, #1]
    same(pool.allocate(2), 0x733f6892);
    pool.check_invariants().unwrap();
    // 99: [#2, #3]
    same(pool.allocate(2), 0x66a6d5ea);
    pool.check_invariants().unwrap();
    // 100: [#12, #13]
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[20, 21, 71, 72, 73], 0), 5), 0x1e54e7b5);
    pool.check_invariants().unwrap();
    // 101: [#12, #13, #61]
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[20, 21, 30, 33, 74, 75, 76], 0), 3), 0xe6ab405b);
    pool.check_invariants().unwrap();
    // 102: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[1, 2, 77, 78], 0), 5), 0x50caa327);
    pool.check_invariants().unwrap();
    // 103: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[79, 80, 81], 0), 6), 0x50caa327);
    pool.check_invariants().unwrap();
    // 104: []
    same(pool.match_and_acquire_for(&chain("sha256", "none", 2, &[1, 2, 3, 82, 83, 84, 85], 0), usize::MAX, TenantId(1)), 0x50caa327);
    pool.check_invariants().unwrap();
    // 105: refused: block 12 is already registered
    same(pool.register(&ids(&[2, 3, 12, 13]), &chain("sha256", "none", 2, &[16, 17, 18, 86], 0), 0), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 106: refused: block 2 is not registered: register it before marking it computed
    same(pool.mark_computed(&ids(&[2, 3, 12, 13])), 0x9d3ec4b0);
    pool.check_invariants().unwrap();
    // 107: Registered { blocks: 0, collided: false }
    same(pool.register(&ids(&[]), &chain("sha256", "none", 2, &[87, 88, 89, 90], 0), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 108: ()
    same(pool.mark_computed(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 109: Registered { blocks: 2, collided: false }
    same(pool.register(&ids(&[15, 1]), &chain("sha256", "none", 2, &[7, 8, 9, 91, 92, 93, 94], 0), 0), 0x83f1241f);
    pool.check_invariants().unwrap();
    // 110: ()
    same(pool.mark_computed(&ids(&[15, 1])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 111: refused: block 12 is already registered
    same(pool.register(&ids(&[2, 3, 12, 13, 12]), &chain("sha256", "none", 2, &[20, 21, 71, 72, 73], 0), 0), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 112: ()
    same(pool.release(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 113: ()
    same(pool.release(&ids(&[15, 1])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 114: ()
    same(pool.release(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 115: ()
    same(pool.release_table(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 116: ()
    same(pool.release_after(&ids(&[]), 4), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 117: 0
    same(pool.complete_step(3), 0x50caa327);
    pool.check_invariants().unwrap();
    // 118: ()
    same(pool.acquire(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 119: refused: block 61 is already registered
    same(pool.register_link(BlockId::new(61), &link("sha256", "none", 2, &[1, 2, 95], 0)), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 120: ()
    same(pool.assign_tenant(&ids(&[]), TenantId(0)), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 121: ()
    same(pool.signal(&ids(&[]), kvpool::Signal { finish: kvpool::Finish::Stop, output_tokens: Some(8728302) }), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 122: 0
    same(pool.drop_cached(&ids(&[18, 6])), 0x50caa327);
    pool.check_invariants().unwrap();
    // 123: 3 events
    same(pool.take_events().events.len(), 0x74ef2322);
    pool.check_invariants().unwrap();
    // 124: []
    same(pool.register_table(&ids(&[]), &chain("sha256", "none", 2, &[1, 2, 3, 96, 97, 98], 0), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 125: []
    same(pool.adopt(&ids(&[63, 62]), &chain("sha256", "none", 2, &[1, 2], 0), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 126: ()
    same(pool.acquire_match(&Match::new(&chain("sha256", "none", 2, &[], 0), 0, &ids(&[])).unwrap()), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 127: Registered { blocks: 0, collided: false }
    same(pool.register(&ids(&[]), &digests("sha256", "none", 2, &[87, 99], 0), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 128: []
    same(pool.match_and_acquire(&digests("sha256", "none", 2, &[87, 99], 0), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 129: [#4]
    same(pool.allocate(1), 0xe7f3daa8);
    pool.check_invariants().unwrap();
    // 130: [#5, #6]
    same(pool.allocate(2), 0xb74a8401);
    pool.check_invariants().unwrap();
    // 131: [#7, #16]
    same(pool.allocate(2), 0x0ddc6f72);
    pool.check_invariants().unwrap();
    // 132: [#17, #18]
    same(pool.allocate(2), 0x82e04b94);
    pool.check_invariants().unwrap();
    // 133: [#63, #62]
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[1, 2, 39], 0), 4), 0x0b294a61);
    pool.check_invariants().unwrap();
    // 134: [#63, #62]
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[1, 2, 3, 4, 5, 6, 100], 0), 3), 0x0b294a61);
    pool.check_invariants().unwrap();
    // 135: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[20, 21, 30, 101], 0), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 136: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[1, 2, 3, 4, 37, 102, 103, 104], 0), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 137: [#15, #1]
    same(pool.match_and_acquire_for(&chain("sha256", "none", 2, &[7, 8, 9], 0), usize::MAX, TenantId(1)), 0x733f6892);
    pool.check_invariants().unwrap();
    // 138: refused: block 12 is already registered
    same(pool.register(&ids(&[2, 3, 12, 13, 12, 13, 61, 63]), &chain("sha256", "none", 2, &[7, 8, 9, 10, 29, 105, 106, 107], 0), 0), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 139: refused: block 2 is not registered: register it before marking it computed
    same(pool.mark_computed(&ids(&[2, 3, 12, 13, 12, 13, 61, 63])), 0x9d3ec4b0);
    pool.check_invariants().unwrap();
    // 140: Registered { blocks: 0, collided: false }
    same(pool.register(&ids(&[]), &chain("sha256", "none", 2, &[20, 21, 30, 33, 108, 109], 0), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 141: ()
    same(pool.mark_computed(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 142: refused: block 15 is already registered
    same(pool.register(&ids(&[4, 17, 18, 15, 1]), &chain("sha256", "none", 2, &[1, 2, 3, 4, 110, 111], 0), 0), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 143: refused: block 4 is not registered: register it before marking it computed
    same(pool.mark_computed(&ids(&[4, 17, 18, 15, 1])), 0x9d3ec4b0);
    pool.check_invariants().unwrap();
    // 144: Registered { blocks: 3, collided: false }
    same(pool.register(&ids(&[4, 17, 18]), &chain("sha256", "none", 2, &[1, 2, 112, 113], 0), 1), 0xbb143b6c);
    pool.check_invariants().unwrap();
    // 145: ()
    same(pool.release(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 146: ()
    same(pool.release(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 147: ()
    same(pool.release(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 148: ()
    same(pool.release_table(&ids(&[2, 3, 12, 13, 12, 13, 61, 63, 62, 5, 6, 63, 62])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 149: ()
    same(pool.release_after(&ids(&[]), 1), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 150: 0
    same(pool.complete_step(4), 0x50caa327);
    pool.check_invariants().unwrap();
    // 151: ()
    same(pool.acquire(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 152: refused: block 62 is already registered
    same(pool.register_link(BlockId::new(62), &link("sha256", "none", 2, &[20, 21], 0)), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 153: ()
    same(pool.assign_tenant(&ids(&[63, 62]), TenantId(0)), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 154: ()
    same(pool.signal(&ids(&[63, 62]), kvpool::Signal { finish: kvpool::Finish::Stop, output_tokens: Some(12659760) }), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 155: 0
    same(pool.drop_cached(&ids(&[6, 5])), 0x50caa327);
    pool.check_invariants().unwrap();
    // 156: 2 events
    same(pool.take_events().events.len(), 0x185f416b);
    pool.check_invariants().unwrap();
    // 157: [(0, #13)]
    same(pool.register_table(&ids(&[7, 16]), &chain("sha256", "none", 2, &[20, 21, 114, 115, 116, 117], 0), 1), 0xde104784);
    pool.check_invariants().unwrap();
    // 158: [(0, #12), (1, #13), (2, #61)]
    same(pool.adopt(&ids(&[59, 58, 57, 56, 55, 54, 53]), &chain("sha256", "none", 2, &[20, 21, 30, 118, 119, 120, 121], 0), 0), 0x4cb329b1);
    pool.check_invariants().unwrap();
    // 159: ()
    same(pool.acquire_match(&Match::new(&chain("sha256", "none", 2, &[], 0), 0, &ids(&[])).unwrap()), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 160: refused: the hash chain was made with blake3, this pool has registered blocks hashed with sha256
    same(pool.register(&ids(&[13, 16, 12, 13, 61, 56, 55, 54]), &chain("blake3", "none", 2, &[122, 123, 124, 125, 126, 127, 128, 129], 0), 0), 0x1971647c);
    pool.check_invariants().unwrap();
    // 161: refused: the hash chain was made with blake3, this pool has registered blocks hashed with sha256
    same(pool.match_and_acquire(&chain("blake3", "none", 2, &[122, 123, 124, 125, 126, 127, 128, 129], 0), 0), 0x1971647c);
    pool.check_invariants().unwrap();
    // 162: [#7, #2, #3, #5, #6]
    same(pool.allocate(5), 0xf8f8d04a);
    pool.check_invariants().unwrap();
    // 163: [#19, #24, #23]
    same(pool.allocate(3), 0xc39468b8);
    pool.check_invariants().unwrap();
    // 164: [#22]
    same(pool.allocate(1), 0x184f305a);
    pool.check_invariants().unwrap();
    // 165: [#21]
    same(pool.allocate(1), 0xa43ff7ab);
    pool.check_invariants().unwrap();
    // 166: [#12, #13, #61]
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[20, 21, 30, 33, 108, 130, 131, 132, 133], 0), 5), 0xe6ab405b);
    pool.check_invariants().unwrap();
    // 167: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[1, 134, 135], 0), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 168: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[16, 136, 137, 138], 0), 3), 0x50caa327);
    pool.check_invariants().unwrap();
    // 169: [#12]
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[20, 21, 30, 33, 34], 0), 1), 0x6161ccdc);
    pool.check_invariants().unwrap();
    // 170: [#15, #1]
    same(pool.match_and_acquire_for(&chain("sha256", "none", 2, &[7, 8, 9, 10], 0), usize::MAX, TenantId(1)), 0x733f6892);
    pool.check_invariants().unwrap();
    // 171: refused: block 13 is already registered
    same(pool.register(&ids(&[13, 16, 12, 13, 61, 56]), &chain("sha256", "none", 2, &[7, 8, 139, 140, 141, 142], 0), 0), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 172: ()
    same(pool.mark_computed(&ids(&[13, 16, 12, 13, 61, 56])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 173: refused: block 4 is already registered
    same(pool.register(&ids(&[4, 17, 18, 15, 1, 22]), &chain("sha256", "none", 2, &[1, 2, 3, 143, 144, 145], 0), 0), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 174: refused: block 22 is not registered: register it before marking it computed
    same(pool.mark_computed(&ids(&[4, 17, 18, 15, 1, 22])), 0x9d3ec4b0);
    pool.check_invariants().unwrap();
    // 175: refused: block 13 is already registered
    same(pool.register(&ids(&[13, 16, 12, 13]), &chain("sha256", "none", 2, &[20, 21, 30, 33], 0), 0), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 176: ()
    same(pool.mark_computed(&ids(&[13, 16, 12, 13])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 177: Registered { blocks: 3, collided: false }
    same(pool.register(&ids(&[19, 24, 23]), &chain("sha256", "none", 2, &[20, 21, 30, 33, 108, 109, 146], 0), 0), 0xbb143b6c);
    pool.check_invariants().unwrap();
    // 178: ()
    same(pool.release(&ids(&[4, 17, 18, 15, 1, 22, 21])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 179: ()
    same(pool.release(&ids(&[7, 2, 3, 5, 6, 15, 1])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 180: ()
    same(pool.release(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 181: ()
    same(pool.release_table(&ids(&[63, 62, 12, 13, 61])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 182: Ticket(0)
    same(pool.fence(), 0x50caa327);
    pool.check_invariants().unwrap();
    // 183: ()
    same(pool.release_until(&ids(&[19, 24, 23]), kvpool::Ticket::new(0)), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 184: 0
    same(pool.complete_step(4), 0x50caa327);
    pool.check_invariants().unwrap();
    // 185: ()
    same(pool.acquire(&ids(&[13, 16, 12, 13, 61, 56, 55, 54, 53, 12])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 186: HintReport { accepted: 0, clipped: 0, ignored: 0 }
    same(pool.retain(&ids(&[]), Retention { keep: Keep::Pinned, ttl: Some(Ttl::Idle(1.0)), then: Then::Normal }), 0x532a9d3d);
    pool.check_invariants().unwrap();
    // 187: refused: 8 blocks are active and 3 fenced: release them first, or bump the epoch, which always succeeds
    same(pool.reset(), 0xde9294cb);
    pool.check_invariants().unwrap();
    // 188: 5 events
    same(pool.take_events().events.len(), 0xcd6c219e);
    pool.check_invariants().unwrap();
    // 189: refused: block 13 is already registered
    same(pool.register_table(&ids(&[13, 16]), &chain("sha256", "none", 2, &[1, 2, 3, 4], 0), 2), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 190: ()
    same(pool.disown(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 191: Match { start: 2, blocks: [#61, #56, #55, #54], algorithm: Sha256, block_size: 2, epoch: 0, hashes: [bc7d4ea8fca66ff900000000000000000000000000000000000000
    same(pool.lookup_refreshing(&chain("sha256", "none", 2, &[20, 21, 30, 118, 119, 120, 121], 0), 2, 4), 0x70b18683);
    pool.check_invariants().unwrap();
    // 192: ()
    same(pool.acquire_match(&Match::new(&chain("sha256", "none", 2, &[20, 21, 30, 118, 119, 120], 0), 2, &ids(&[61, 56, 55, 54])).unwrap()), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 193: refused: the hash chain was made with xxh3, this pool has registered blocks hashed with sha256
    same(pool.register(&ids(&[]), &chain("xxh3", "none", 2, &[47, 48, 49, 147, 148], 0), 0), 0x1971647c);
    pool.check_invariants().unwrap();
    // 194: refused: the hash chain was made with xxh3, this pool has registered blocks hashed with sha256
    same(pool.match_and_acquire(&chain("xxh3", "none", 2, &[47, 48, 49, 147, 148], 0), 0), 0x1971647c);
    pool.check_invariants().unwrap();
    // 195: [#6, #5, #3]
    same(pool.allocate(3), 0x8ce9fb15);
    pool.check_invariants().unwrap();
    // 196: []
    same(pool.allocate(0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 197: [#2, #7]
    same(pool.allocate(2), 0x37182cf8);
    pool.check_invariants().unwrap();
    // 198: [#21]
    same(pool.allocate(1), 0xa43ff7ab);
    pool.check_invariants().unwrap();
    // 199: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[1], 0), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 200: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[16, 17], 0), 6), 0x50caa327);
    pool.check_invariants().unwrap();
    // 201: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[149, 150, 151, 152], 0), 3), 0x50caa327);
    pool.check_invariants().unwrap();
    // 202: [#63, #62]
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[1, 2, 3, 4, 153, 154, 155], 0), 2), 0x0b294a61);
    pool.check_invariants().unwrap();
    // 203: [#12, #13, #61]
    same(pool.match_and_acquire_for(&chain("sha256", "none", 2, &[20, 21, 30, 33, 108], 0), usize::MAX, TenantId(1)), 0xe6ab405b);
    pool.check_invariants().unwrap();
    // 204: refused: block 13 is already registered
    same(pool.register(&ids(&[13, 16, 12, 13, 61, 56]), &chain("sha256", "none", 2, &[1, 2, 3, 4, 37, 156], 0), 0), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 205: ()
    same(pool.mark_computed(&ids(&[13, 16, 12, 13, 61, 56])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 206: refused: block 13 is already registered
    same(pool.register(&ids(&[13, 16, 12]), &chain("sha256", "none", 2, &[7, 8, 157], 0), 0), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 207: ()
    same(pool.mark_computed(&ids(&[13, 16, 12])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 208: Registered { blocks: 2, collided: false }
    same(pool.register(&ids(&[6, 5]), &chain("sha256", "none", 2, &[79, 80], 0), 0), 0x83f1241f);
    pool.check_invariants().unwrap();
    // 209: ()
    same(pool.mark_computed(&ids(&[6, 5])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 210: Registered { blocks: 1, collided: false }
    same(pool.register(&ids(&[21]), &chain("sha256", "none", 2, &[149, 150, 151], 0), 1), 0xe88aa583);
    pool.check_invariants().unwrap();
    // 211: ()
    same(pool.release(&ids(&[13, 16, 12, 13, 61, 56, 55, 54, 53, 12, 12, 13, 61])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 212: ()
    same(pool.release(&ids(&[6, 5, 3])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 213: ()
    same(pool.release(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 214: ()
    same(pool.release_table(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 215: Ticket(1)
    same(pool.fence(), 0xcc9804cd);
    pool.check_invariants().unwrap();
    // 216: ()
    same(pool.release_until(&ids(&[]), kvpool::Ticket::new(1)), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 217: refused: ticket 4 is not open: it has ended already, or is of another pool (2 are open)
    same(pool.end_fence(kvpool::Ticket::new(4)), 0xa243eb80);
    pool.check_invariants().unwrap();
    // 218: 0
    same(pool.complete_step(5), 0x50caa327);
    pool.check_invariants().unwrap();
    // 219: ()
    same(pool.acquire(&ids(&[21])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 220: refused: block 21 is already registered
    same(pool.register_link(BlockId::new(21), &link("sha256", "none", 2, &[20], 0)), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 221: HintReport { accepted: 3, clipped: 13, ignored: 2 }
    same(pool.retain(&ids(&[13, 16, 12, 13, 61, 56, 55, 54, 53, 12, 61, 56, 55, 54, 2, 7, 63, 62]), Retention { keep: Keep::Pinned, ttl: Some(Ttl::Idle(5.0)), then: Then::Normal }), 0x377acec2);
    pool.check_invariants().unwrap();
    // 222: ()
    same(pool.resize(65), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 223: 2 events
    same(pool.take_events().events.len(), 0x185f416b);
    pool.check_invariants().unwrap();
    // 224: []
    same(pool.register_table(&ids(&[]), &chain("sha256", "none", 2, &[20, 158, 159], 0), 1), 0x50caa327);
    pool.check_invariants().unwrap();
    // 225: refused: the hash chain belongs to epoch 1, the pool is in epoch 0: hash the tokens again
    same(pool.adopt(&ids(&[64, 59, 58, 57, 52, 51, 50]), &chain("sha256", "none", 2, &[160, 161, 162, 163, 164, 165, 166], 1), 0), 0x32911419);
    pool.check_invariants().unwrap();
    // 226: ()
    same(pool.acquire_match(&Match::new(&chain("sha256", "none", 2, &[20, 21], 0), 1, &ids(&[13])).unwrap()), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 227: refused: the hash chain was made for blocks of 3 tokens, the pool has blocks of 2
    same(pool.register(&ids(&[21]), &chain("xxh3", "none", 3, &[69, 167, 168], 0), 0), 0x65dd85c7);
    pool.check_invariants().unwrap();
    // 228: refused: the hash chain was made for blocks of 3 tokens, the pool has blocks of 2
    same(pool.match_and_acquire(&chain("xxh3", "none", 3, &[69, 167, 168], 0), 0), 0x65dd85c7);
    pool.check_invariants().unwrap();
    // 229: [#3, #22, #18, #17]
    same(pool.allocate(4), 0x039dd042);
    pool.check_invariants().unwrap();
    // 230: [#4, #20, #8, #9]
    same(pool.allocate(4), 0x91f849b3);
    pool.check_invariants().unwrap();
    // 231: [#10, #11]
    same(pool.allocate(2), 0xf9f13dcf);
    pool.check_invariants().unwrap();
    // 232: [#25, #26, #27, #28, #29]
    same(pool.allocate(5), 0xb84a8d4c);
    pool.check_invariants().unwrap();
    // 233: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[16, 17, 18, 169, 170, 171, 172], 0), 2), 0x50caa327);
    pool.check_invariants().unwrap();
    // 234: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[173], 0), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 235: refused: the hash chain belongs to epoch 1, the pool is in epoch 0: hash the tokens again
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[174, 175, 176, 177, 178, 179, 180, 181], 1), 2), 0x32911419);
    pool.check_invariants().unwrap();
    // 236: [#63, #62]
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[1, 2, 3, 4, 5, 6], 0), 5), 0x0b294a61);
    pool.check_invariants().unwrap();
    // 237: [#63, #62]
    same(pool.match_and_acquire_for(&chain("sha256", "none", 2, &[1, 2, 3, 4, 153], 0), usize::MAX, TenantId(1)), 0x0b294a61);
    pool.check_invariants().unwrap();
    // 238: refused: block 13 is already registered
    same(pool.register(&ids(&[13, 16, 12]), &chain("sha256", "none", 2, &[20, 21, 30], 0), 0), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 239: ()
    same(pool.mark_computed(&ids(&[13, 16, 12])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 240: refused: block 21 is already registered
    same(pool.register(&ids(&[21, 63, 62]), &chain("sha256", "none", 2, &[20, 21, 30, 33, 108], 0), 0), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 241: ()
    same(pool.mark_computed(&ids(&[21, 63, 62])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 242: Registered { blocks: 2, collided: false }
    same(pool.register(&ids(&[10, 11]), &chain("sha256", "none", 2, &[1, 2, 39, 40, 41], 0), 0), 0x83f1241f);
    pool.check_invariants().unwrap();
    // 243: ()
    same(pool.mark_computed(&ids(&[10, 11])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 244: refused: block 21 is already registered
    same(pool.register(&ids(&[21, 63, 62]), &chain("sha256", "none", 2, &[20, 21, 30, 33, 74, 182], 0), 2), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 245: ()
    same(pool.release(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 246: ()
    same(pool.release(&ids(&[13, 16, 12, 13, 61, 56, 55, 54, 53, 12, 61, 56, 55, 54, 2, 7, 63, 62, 3, 22, 18, 17, 4, 20, 8, 9, 63, 62])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 247: ()
    same(pool.release(&ids(&[21, 13, 25, 26, 27, 28, 29])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 248: ()
    same(pool.release_table(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 249: Ticket(2)
    same(pool.fence(), 0xe88aa583);
    pool.check_invariants().unwrap();
}

fn part_1(pool: &mut BlockPool) {
    // 250: ()
    same(pool.release_until(&ids(&[10, 11]), kvpool::Ticket::new(2)), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 251: refused: ticket 5 is not open: it has ended already, or is of another pool (3 are open)
    same(pool.end_fence(kvpool::Ticket::new(5)), 0xa243eb80);
    pool.check_invariants().unwrap();
    // 252: 0
    same(pool.complete_step(7), 0x50caa327);
    pool.check_invariants().unwrap();
    // 253: ()
    same(pool.acquire(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 254: Some(#62)
    same(pool.acquire_registered(&link("sha256", "none", 2, &[1, 2], 0)), 0x9d0018e5);
    pool.check_invariants().unwrap();
    // 255: ()
    same(pool.assign_tenant(&ids(&[21, 63, 62]), TenantId(2)), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 256: ()
    same(pool.signal(&ids(&[21, 63, 62]), kvpool::Signal { finish: kvpool::Finish::Stop, output_tokens: Some(14190530) }), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 257: 0
    same(pool.drop_cached(&ids(&[18, 7])), 0x50caa327);
    pool.check_invariants().unwrap();
    // 258: 1 events
    same(pool.take_events().events.len(), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 259: []
    same(pool.register_table(&ids(&[]), &chain("sha256", "none", 2, &[20, 21, 30, 33, 74], 0), 2), 0x50caa327);
    pool.check_invariants().unwrap();
    // 260: ()
    same(pool.disown(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 261: Match { start: 2, blocks: [#61, #56, #55], algorithm: Sha256, block_size: 2, epoch: 0, hashes: [bc7d4ea8fca66ff90000000000000000000000000000000000000000000
    same(pool.lookup_refreshing(&chain("sha256", "none", 2, &[20, 21, 30, 118, 119, 120, 121], 0), 2, 3), 0x4d3c306e);
    pool.check_invariants().unwrap();
    // 262: ()
    same(pool.acquire_match(&Match::new(&chain("sha256", "none", 2, &[20, 21, 30, 118, 119], 0), 2, &ids(&[61, 56, 55])).unwrap()), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 263: refused: the hash chain was made for blocks of 3 tokens, the pool has blocks of 2
    same(pool.register(&ids(&[62]), &chain("xxh3", "none", 3, &[69, 167, 183], 0), 0), 0x65dd85c7);
    pool.check_invariants().unwrap();
    // 264: refused: the hash chain was made for blocks of 3 tokens, the pool has blocks of 2
    same(pool.match_and_acquire(&chain("xxh3", "none", 3, &[69, 167, 183], 0), 0), 0x65dd85c7);
    pool.check_invariants().unwrap();
    // 265: []
    same(pool.allocate(0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 266: [#29, #28]
    same(pool.allocate(2), 0x995647a2);
    pool.check_invariants().unwrap();
    // 267: [#27]
    same(pool.allocate(1), 0x4b1d7ff1);
    pool.check_invariants().unwrap();
    // 268: [#26]
    same(pool.allocate(1), 0xc8ceb12c);
    pool.check_invariants().unwrap();
    // 269: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[16, 184, 185, 186], 0), 4), 0x50caa327);
    pool.check_invariants().unwrap();
    // 270: [#12, #13, #61]
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[20, 21, 30, 33], 0), 5), 0xe6ab405b);
    pool.check_invariants().unwrap();
    // 271: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[16], 0), 1), 0x50caa327);
    pool.check_invariants().unwrap();
    // 272: refused: the hash chain belongs to epoch 1, the pool is in epoch 0: hash the tokens again
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[187, 188, 189, 190, 191, 192], 1), 5), 0x32911419);
    pool.check_invariants().unwrap();
    // 273: [#15, #1]
    same(pool.match_and_acquire_for(&chain("sha256", "none", 2, &[7, 8, 9, 193, 194], 0), usize::MAX, TenantId(1)), 0x733f6892);
    pool.check_invariants().unwrap();
    // 274: Registered { blocks: 0, collided: false }
    same(pool.register(&ids(&[]), &chain("sha256", "none", 2, &[1, 2, 3, 56], 0), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 275: ()
    same(pool.mark_computed(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 276: refused: block 61 is already registered
    same(pool.register(&ids(&[61, 56, 55, 27, 15, 1]), &chain("sha256", "none", 2, &[1, 2, 3, 4, 37, 195], 0), 0), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 277: refused: block 27 is not registered: register it before marking it computed
    same(pool.mark_computed(&ids(&[61, 56, 55, 27, 15, 1])), 0x9d3ec4b0);
    pool.check_invariants().unwrap();
    // 278: Registered { blocks: 0, collided: false }
    same(pool.register(&ids(&[]), &chain("sha256", "none", 2, &[1, 2, 39, 40, 41], 0), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 279: ()
    same(pool.mark_computed(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 280: refused: 0 blocks from position 2 do not fit a hash chain of 1 full blocks
    same(pool.register(&ids(&[]), &chain("sha256", "none", 2, &[20], 0), 2), 0xf0ece5ea);
    pool.check_invariants().unwrap();
    // 281: ()
    same(pool.release(&ids(&[21, 63, 62])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 282: ()
    same(pool.release(&ids(&[61, 56, 55, 27, 15, 1])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 283: ()
    same(pool.release(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 284: ()
    same(pool.release_table(&ids(&[62, 12, 13, 61])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 285: ()
    same(pool.release_until(&ids(&[29, 28, 26]), kvpool::Ticket::new(0)), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 286: 0
    same(pool.complete_step(8), 0x50caa327);
    pool.check_invariants().unwrap();
    // 287: ()
    same(pool.acquire(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 288: Some(#63)
    same(pool.acquire_registered(&link("sha256", "none", 2, &[1], 0)), 0x11629b33);
    pool.check_invariants().unwrap();
    // 289: ()
    same(pool.assign_tenant(&ids(&[]), TenantId(1)), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 290: ()
    same(pool.signal(&ids(&[]), kvpool::Signal { finish: kvpool::Finish::Stop, output_tokens: Some(3936694) }), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 291: 0
    same(pool.drop_cached(&ids(&[37, 4])), 0x50caa327);
    pool.check_invariants().unwrap();
    // 292: 0 events
    same(pool.take_events().events.len(), 0x00000000);
    pool.check_invariants().unwrap();
    // 293: []
    same(pool.allocate(0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 294: []
    same(pool.allocate(0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 295: [#27, #25, #9, #8, #20]
    same(pool.allocate(5), 0xa14283aa);
    pool.check_invariants().unwrap();
    // 296: []
    same(pool.allocate(0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 297: [#12]
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[20, 21, 30], 0), 1), 0x6161ccdc);
    pool.check_invariants().unwrap();
    // 298: [#12, #13, #61]
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[20, 21, 30, 33, 74], 0), 5), 0xe6ab405b);
    pool.check_invariants().unwrap();
    // 299: [#12, #13, #61]
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[20, 21, 30, 33, 74], 0), 3), 0xe6ab405b);
    pool.check_invariants().unwrap();
    // 300: []
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[16, 17, 196, 197, 198], 0), 4), 0x50caa327);
    pool.check_invariants().unwrap();
    // 301: []
    same(pool.match_and_acquire_for(&chain("sha256", "none", 2, &[], 0), usize::MAX, TenantId(1)), 0x50caa327);
    pool.check_invariants().unwrap();
    // 302: refused: the hash chain belongs to epoch 1, the pool is in epoch 0: hash the tokens again
    same(pool.register(&ids(&[]), &chain("sha256", "none", 2, &[187, 188, 199, 200, 201, 202], 1), 0), 0x32911419);
    pool.check_invariants().unwrap();
    // 303: ()
    same(pool.mark_computed(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 304: Registered { blocks: 0, collided: false }
    same(pool.register(&ids(&[]), &chain("sha256", "none", 2, &[], 0), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 305: ()
    same(pool.mark_computed(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 306: Registered { blocks: 0, collided: false }
    same(pool.register(&ids(&[]), &chain("sha256", "none", 2, &[20, 21, 30, 33, 34, 35], 0), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 307: ()
    same(pool.mark_computed(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 308: refused: block 12 is already registered
    same(pool.register(&ids(&[12]), &chain("sha256", "none", 2, &[1, 2, 3, 4, 153, 154], 0), 0), 0x47a87b56);
    pool.check_invariants().unwrap();
    // 309: ()
    same(pool.release(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 310: ()
    same(pool.release(&ids(&[12, 13, 61, 12, 13, 61])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 311: ()
    same(pool.release(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 312: ()
    same(pool.release_table(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 313: ()
    same(pool.release_after(&ids(&[63, 27, 25, 9, 8, 20]), 1), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 314: 6
    same(pool.end_fence(kvpool::Ticket::new(0)), 0xbb143b6c);
    pool.check_invariants().unwrap();
    // 315: 0
    same(pool.complete_step(8), 0x50caa327);
    pool.check_invariants().unwrap();
    // 316: ()
    same(pool.acquire(&ids(&[])), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 317: ()
    same(pool.mark_accessed(&ids(&[12]), 87.0), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 318: 1
    same(pool.bump_epoch(), 0xcc9804cd);
    pool.check_invariants().unwrap();
    // 319: 1 events
    same(pool.take_events().events.len(), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 320: []
    same(pool.register_table(&ids(&[]), &chain("sha256", "none", 2, &[174, 175, 176, 203], 1), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 321: []
    same(pool.adopt(&ids(&[64, 59, 58, 57, 52]), &chain("sha256", "none", 2, &[187, 204, 205, 206, 207], 1), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 322: Match { start: 2, blocks: [], algorithm: Sha256, block_size: 2, epoch: 1, hashes: [], fingerprints: [], tokens: [], parent: Some(129015e11ea1a4d20000000000
    same(pool.lookup_refreshing(&chain("sha256", "none", 2, &[187, 204, 205, 206, 207], 1), 2, 0), 0x90ab661a);
    pool.check_invariants().unwrap();
    // 323: ()
    same(pool.acquire_match(&Match::new(&chain("sha256", "none", 2, &[], 1), 0, &ids(&[])).unwrap()), 0x9c2fa0b5);
    pool.check_invariants().unwrap();
    // 324: Registered { blocks: 0, collided: false }
    same(pool.register(&ids(&[]), &digests("sha256", "none", 2, &[208, 209, 210, 211, 212, 213], 1), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 325: []
    same(pool.match_and_acquire(&digests("sha256", "none", 2, &[208, 209, 210, 211, 212, 213], 1), 0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 326: [#13, #16, #63, #61, #62]
    same(pool.allocate(5), 0x967dec85);
    pool.check_invariants().unwrap();
    // 327: [#56]
    same(pool.allocate(1), 0x3436cb5f);
    pool.check_invariants().unwrap();
    // 328: []
    same(pool.allocate(0), 0x50caa327);
    pool.check_invariants().unwrap();
    // 329: [#55]
    same(pool.allocate(1), 0x9010a994);
    pool.check_invariants().unwrap();
    // 330: [#64]
    same(pool.match_and_acquire(&chain("sha256", "none", 2, &[187, 188, 189, 214, 215, 216, 217], 1), 6), 0xaa256c19);
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
