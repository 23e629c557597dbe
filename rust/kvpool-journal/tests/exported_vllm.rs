//! A journal as a test: made by `kvpool journal export`.
#![cfg_attr(rustfmt, rustfmt_skip)]
#![allow(clippy::allow_attributes, clippy::single_range_in_vec_init, clippy::unit_arg, clippy::unwrap_used, unused, reason = "made by a program")]

use kvpool_journal::{Check, Outcome};
use kvpool_vllm::{Key, Pool, Start, VllmError};

/// Blocks by id, as an answer.
#[derive(Debug)]
struct Ids(Vec<u32>);

impl Outcome for Ids {
    fn add_to(&self, check: &mut Check) {
        self.0.iter().for_each(|&block| check.add(block.into()));
    }
}

fn key(digits: &str) -> Key {
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
    Key::from_bytes(&(0..digits.len()).step_by(2).map(byte).collect::<Vec<u8>>()).unwrap()
}

fn allocate(pool: &mut Pool, blocks: usize) -> Result<Ids, VllmError> {
    let mut ids = Vec::new();
    pool.allocate(blocks, &mut ids, None)?;
    Ok(Ids(ids))
}

fn cache_full(
    pool: &mut Pool, start: Start, blocks: &[u32], keys: &[Option<Key>], block_size: usize,
) -> Result<(), VllmError> {
    pool.cache_full(start, blocks, |at| keys.get(at).copied().flatten(), block_size, &mut Vec::new(), None)
}

/// Compares an answer with the recorded one, by the check that journals have.
#[track_caller]
fn same(answer: impl Outcome + std::fmt::Debug, check: u32) {
    assert_eq!(Check::of(&answer), check, "the answer is {answer:?}");
}

fn part_0(pool: &mut Pool) {
    // 0: Ids([1, 2, 3])
    same(allocate(pool, 3), 0x2295cf42);
    // 1: Ids([4])
    same(allocate(pool, 1), 0x83f1241f);
    // 2: Ids([5, 6, 7, 8])
    same(allocate(pool, 4), 0x3f85b364);
    // 3: Ids([9, 10])
    same(allocate(pool, 2), 0x48be6244);
    // 4: ()
    same(pool.free(Vec::<u32>::from([])), 0x9c2fa0b5);
    // 5: ()
    same(pool.free(Vec::<u32>::from([])), 0x9c2fa0b5);
    // 6: ()
    same(pool.free(Vec::<u32>::from([1])), 0x9c2fa0b5);
    // 7: ()
    same(cache_full(pool, Start { first: 1, before: None }, &[10, 9], &[Some(key("080000000707070707070707070707070707070707070707070707070707070700000000")), Some(key("000000000707070707070707070707070707070707070707070707070707070700000001"))], 4), 0x9c2fa0b5);
    // 8: ()
    same(cache_full(pool, Start { first: 1, before: None }, &[], &[], 4), 0x9c2fa0b5);
    // 9: ()
    same(cache_full(pool, Start { first: 1, before: None }, &[10, 9], &[None, None], 4), 0x9c2fa0b5);
    // 10: true
    same(pool.insert_hash_behind(key("020000000707070707070707070707070707070707070707070707070707070700000000"), 3, Some(24), 1, Some(&key("000000000707070707070707070707070707070707070707070707070707070700000000"))), 0x9c2fa0b5);
    // 11: []
    same(pool.evict(0, false), 0x50caa327);
    // 12: ()
    same(pool.move_hashes(3, 0), 0x9c2fa0b5);
    // 13: refused: block 29 is not of this pool: it has blocks 0 to 13
    same(pool.touch(&[29]), 0xb2687c42);
    // 14: refused: block 1 has no references: it is freed more often than it was taken
    same(pool.free(Vec::<u32>::from([1])), 0xd6ba3c14);
    // 15: []
    same(pool.remove_hashes(3), 0x00000000);
    // 16: ()
    same(pool.chain_group(1), 0x00000000);
    // 17: Ids([1])
    same(Ids(pool.pop_from_queue(1)), 0x9c2fa0b5);
    // 18: ()
    same(pool.push_to_queue(&[1], true), 0x00000000);
    // 19: false
    same(pool.reset(), 0x00000000);
    // 20: Ids([1])
    same(Ids(pool.pop_from_queue(1)), 0x9c2fa0b5);
    // 21: ()
    same(pool.claim(&[1], None), 0x9c2fa0b5);
    // 22: ()
    same(pool.unpin(&[2]), 0x9c2fa0b5);
    // 23: ()
    same(pool.insert_in_index(key("040000000707070707070707070707070707070707070707070707070707070700000000"), 7), 0x9c2fa0b5);
    // 24: false
    same(pool.remove_from_index(&key("020000000707070707070707070707070707070707070707070707070707070700000000"), 1), 0x00000000);
    // 25: ()
    same(pool.clear_index(), 0x00000000);
    // 26: ()
    same(pool.set_ref_count(1, 1), 0x00000000);
    // 27: ()
    same(pool.set_hash(13, key("020000000707070707070707070707070707070707070707070707070707070700000001"), Some(1)), 0x00000000);
    // 28: ()
    same(pool.reset_hash(1), 0x00000000);
    // 29: false
    same(pool.remove_from_queue(4), 0x00000000);
    // 30: Ids([11, 12, 2])
    same(allocate(pool, 3), 0x5634ff85);
    // 31: refused: Cannot get 4 free blocks from the pool (1 are free)
    same(allocate(pool, 4), 0xc4d3bd8a);
    // 32: Ids([])
    same(allocate(pool, 0), 0x9c2fa0b5);
    // 33: refused: Cannot get 2 free blocks from the pool (1 are free)
    same(allocate(pool, 2), 0xfeb41d02);
    // 34: ()
    same(pool.free(Vec::<u32>::from([3])), 0x9c2fa0b5);
    // 35: ()
    same(pool.free(Vec::<u32>::from([4, 5, 6])), 0x9c2fa0b5);
    // 36: ()
    same(pool.free(Vec::<u32>::from([7])), 0x9c2fa0b5);
    // 37: ()
    same(cache_full(pool, Start { first: 2, before: None }, &[2], &[Some(key("070000000707070707070707070707070707070707070707070707070707070700000000"))], 4), 0x9c2fa0b5);
    // 38: ()
    same(cache_full(pool, Start { first: 2, before: None }, &[], &[], 4), 0x9c2fa0b5);
    // 39: refused: block 2 is cached already, for 12 tokens: it can't be cached for 12
    same(cache_full(pool, Start { first: 2, before: None }, &[2], &[Some(key("040000000707070707070707070707070707070707070707070707070707070700000000"))], 4), 0xaf513b64);
    // 40: true
    same(pool.insert_hash_behind(key("010000000707070707070707070707070707070707070707070707070707070700000001"), 1, Some(51), 4, Some(&key("070000000707070707070707070707070707070707070707070707070707070700000001"))), 0x9c2fa0b5);
    // 41: []
    same(pool.evict(10, false), 0x50caa327);
    // 42: refused: block 1 is cached already, for 51 tokens: it can't be cached for 0
    same(pool.move_hashes(3, 1), 0xaf513b64);
    // 43: ()
    same(pool.touch(&[10]), 0x9c2fa0b5);
    // 44: ()
    same(pool.free(Vec::<u32>::from([10])), 0x9c2fa0b5);
    // 45: []
    same(pool.remove_hashes(6), 0x00000000);
    // 46: Ids([7])
    same(Ids(pool.pop_from_queue(1)), 0x2511a610);
    // 47: ()
    same(pool.push_to_queue(&[7], false), 0x00000000);
    // 48: false
    same(pool.reset(), 0x00000000);
    // 49: Ids([])
    same(Ids(pool.pop_from_queue(0)), 0x00000000);
    // 50: ()
    same(pool.claim(&[], None), 0x9c2fa0b5);
    // 51: ()
    same(pool.unpin(&[8]), 0x9c2fa0b5);
    // 52: ()
    same(pool.insert_in_index(key("040000000707070707070707070707070707070707070707070707070707070700000000"), 6), 0x9c2fa0b5);
    // 53: false
    same(pool.remove_from_index(&key("060000000707070707070707070707070707070707070707070707070707070700000000"), 13), 0x00000000);
    // 54: ()
    same(pool.clear_index(), 0x00000000);
    // 55: ()
    same(pool.set_ref_count(10, 1), 0x00000000);
    // 56: ()
    same(pool.set_hash(5, key("070000000707070707070707070707070707070707070707070707070707070700000001"), Some(52)), 0x00000000);
    // 57: ()
    same(pool.reset_hash(4), 0x00000000);
    // 58: false
    same(pool.remove_from_queue(2), 0x00000000);
    // 59: Ids([4, 6, 3])
    same(allocate(pool, 3), 0xcf4344b1);
    // 60: Ids([13, 7, 8, 5])
    same(allocate(pool, 4), 0x27be46ae);
    // 61: refused: Cannot get 4 free blocks from the pool (0 are free)
    same(allocate(pool, 4), 0xc4d3bd8a);
    // 62: refused: Cannot get 2 free blocks from the pool (0 are free)
    same(allocate(pool, 2), 0xfeb41d02);
    // 63: ()
    same(pool.free(Vec::<u32>::from([9])), 0x9c2fa0b5);
    // 64: ()
    same(pool.free(Vec::<u32>::from([])), 0x9c2fa0b5);
    // 65: ()
    same(pool.free(Vec::<u32>::from([10, 1, 11])), 0x9c2fa0b5);
    // 66: ()
    same(cache_full(pool, Start { first: 3, before: None }, &[5], &[Some(key("040000000707070707070707070707070707070707070707070707070707070700000001"))], 4), 0x9c2fa0b5);
    // 67: refused: block 5 is cached already, for 16 tokens: it can't be cached for 4
    same(cache_full(pool, Start { first: 0, before: None }, &[5, 8], &[Some(key("080000000707070707070707070707070707070707070707070707070707070700000000")), Some(key("000000000707070707070707070707070707070707070707070707070707070700000001"))], 4), 0xaf513b64);
    // 68: ()
    same(cache_full(pool, Start { first: 1, before: None }, &[5], &[None], 4), 0x9c2fa0b5);
    // 69: true
    same(pool.insert_hash_behind(key("000000000707070707070707070707070707070707070707070707070707070700000000"), 4, Some(8), 1, Some(&key("020000000707070707070707070707070707070707070707070707070707070700000000"))), 0x9c2fa0b5);
    // 70: []
    same(pool.evict(0, true), 0x50caa327);
    // 71: ()
    same(pool.move_hashes(5, 8), 0x9c2fa0b5);
    // 72: refused: block 37 is not of this pool: it has blocks 0 to 13
    same(pool.touch(&[37]), 0xb2687c42);
    // 73: ()
    same(pool.free(Vec::<u32>::from([8])), 0x9c2fa0b5);
    // 74: []
    same(pool.remove_hashes(0), 0x00000000);
    // 75: Ids([])
    same(Ids(pool.pop_from_queue(0)), 0x00000000);
    // 76: ()
    same(pool.push_to_queue(&[], false), 0x00000000);
    // 77: false
    same(pool.reset(), 0x00000000);
    // 78: Ids([10, 11])
    same(Ids(pool.pop_from_queue(2)), 0x961d6062);
    // 79: ()
    same(pool.claim(&[10, 11], None), 0x9c2fa0b5);
    // 80: ()
    same(pool.unpin(&[12]), 0x9c2fa0b5);
    // 81: ()
    same(pool.insert_in_index(key("020000000707070707070707070707070707070707070707070707070707070700000001"), 6), 0x9c2fa0b5);
    // 82: false
    same(pool.remove_from_index(&key("010000000707070707070707070707070707070707070707070707070707070700000001"), 4), 0x00000000);
    // 83: ()
    same(pool.clear_index(), 0x00000000);
    // 84: ()
    same(pool.set_ref_count(8, 0), 0x00000000);
    // 85: ()
    same(pool.set_hash(5, key("060000000707070707070707070707070707070707070707070707070707070700000001"), Some(19)), 0x00000000);
    // 86: ()
    same(pool.reset_hash(0), 0x00000000);
    // 87: false
    same(pool.remove_from_queue(7), 0x00000000);
    // 88: Ids([9])
    same(allocate(pool, 1), 0x4b5b00db);
    // 89: Ids([1, 8, 12])
    same(allocate(pool, 3), 0xbc43db99);
    // 90: refused: Cannot get 4 free blocks from the pool (0 are free)
    same(allocate(pool, 4), 0xc4d3bd8a);
    // 91: refused: Cannot get 2 free blocks from the pool (0 are free)
    same(allocate(pool, 2), 0xfeb41d02);
    // 92: ()
    same(pool.free(Vec::<u32>::from([2, 4])), 0x9c2fa0b5);
    // 93: ()
    same(pool.free(Vec::<u32>::from([6, 3, 13])), 0x9c2fa0b5);
    // 94: ()
    same(pool.free(Vec::<u32>::from([7, 8])), 0x9c2fa0b5);
    // 95: ()
    same(cache_full(pool, Start { first: 1, before: None }, &[], &[], 4), 0x9c2fa0b5);
    // 96: ()
    same(cache_full(pool, Start { first: 3, before: None }, &[12], &[Some(key("070000000707070707070707070707070707070707070707070707070707070700000000"))], 4), 0x9c2fa0b5);
    // 97: refused: block 12 is cached already, for 16 tokens: it can't be cached for 12
    same(cache_full(pool, Start { first: 2, before: None }, &[12, 8], &[Some(key("020000000707070707070707070707070707070707070707070707070707070700000000")), Some(key("030000000707070707070707070707070707070707070707070707070707070700000001"))], 4), 0xaf513b64);
    // 98: true
    same(pool.insert_hash_behind(key("070000000707070707070707070707070707070707070707070707070707070700000001"), 0, Some(51), 2, Some(&key("050000000707070707070707070707070707070707070707070707070707070700000001"))), 0x9c2fa0b5);
    // 99: []
    same(pool.evict(5, false), 0x50caa327);
    // 100: ()
    same(pool.move_hashes(8, 1), 0x9c2fa0b5);
    // 101: refused: block 21 is not of this pool: it has blocks 0 to 13
    same(pool.touch(&[21]), 0xb2687c42);
    // 102: ()
    same(pool.free(Vec::<u32>::from([])), 0x9c2fa0b5);
    // 103: []
    same(pool.remove_hashes(3), 0x00000000);
    // 104: ()
    same(pool.chain_group(0), 0x00000000);
    // 105: Ids([7, 8])
    same(Ids(pool.pop_from_queue(2)), 0xfcc3f63b);
    // 106: ()
    same(pool.push_to_queue(&[7, 8], false), 0x00000000);
    // 107: false
    same(pool.reset(), 0x00000000);
    // 108: Ids([6])
    same(Ids(pool.pop_from_queue(1)), 0xc9de4644);
    // 109: ()
    same(pool.claim(&[6], None), 0x9c2fa0b5);
    // 110: ()
    same(pool.unpin(&[5]), 0x9c2fa0b5);
    // 111: ()
    same(pool.insert_in_index(key("000000000707070707070707070707070707070707070707070707070707070700000000"), 1), 0x9c2fa0b5);
    // 112: false
    same(pool.remove_from_index(&key("000000000707070707070707070707070707070707070707070707070707070700000001"), 12), 0x00000000);
    // 113: ()
    same(pool.clear_index(), 0x00000000);
    // 114: ()
    same(pool.set_ref_count(9, 1), 0x00000000);
    // 115: ()
    same(pool.set_hash(10, key("050000000707070707070707070707070707070707070707070707070707070700000001"), Some(44)), 0x00000000);
    // 116: ()
    same(pool.reset_hash(12), 0x00000000);
    // 117: true
    same(pool.remove_from_queue(4), 0x9c2fa0b5);
    // 118: ()
    same(pool.push_to_queue(&[4], false), 0x00000000);
    // 119: Ids([3, 13, 5])
    same(allocate(pool, 3), 0xe2f83b08);
    // 120: Ids([7, 8])
    same(allocate(pool, 2), 0x7041cbdb);
    // 121: refused: Cannot get 3 free blocks from the pool (2 are free)
    same(allocate(pool, 3), 0x5e688dfc);
    // 122: Ids([2])
    same(allocate(pool, 1), 0xe88aa583);
    // 123: ()
    same(pool.free(Vec::<u32>::from([10])), 0x9c2fa0b5);
    // 124: ()
    same(pool.free(Vec::<u32>::from([11, 9, 1])), 0x9c2fa0b5);
    // 125: ()
    same(pool.free(Vec::<u32>::from([8])), 0x9c2fa0b5);
    // 126: ()
    same(cache_full(pool, Start { first: 3, before: None }, &[2], &[None], 4), 0x9c2fa0b5);
    // 127: ()
    same(cache_full(pool, Start { first: 2, before: None }, &[2], &[None], 4), 0x9c2fa0b5);
    // 128: ()
    same(cache_full(pool, Start { first: 2, before: None }, &[2], &[Some(key("070000000707070707070707070707070707070707070707070707070707070700000001"))], 4), 0x9c2fa0b5);
    // 129: true
    same(pool.insert_hash_behind(key("040000000707070707070707070707070707070707070707070707070707070700000001"), 11, Some(57), 0, Some(&key("080000000707070707070707070707070707070707070707070707070707070700000001"))), 0x9c2fa0b5);
    // 130: [Removed { block: 11, key: 0400000007070707070707070707070707070707070707070707070707070707/1, last_copy: true }]
    same(pool.evict(11, true), 0x8baa99d2);
    // 131: ()
    same(pool.move_hashes(12, 5), 0x9c2fa0b5);
    // 132: refused: block 17 is not of this pool: it has blocks 0 to 13
    same(pool.touch(&[17]), 0xb2687c42);
    // 133: ()
    same(pool.free(Vec::<u32>::from([6])), 0x9c2fa0b5);
    // 134: []
    same(pool.remove_hashes(12), 0x00000000);
    // 135: Ids([6])
    same(Ids(pool.pop_from_queue(1)), 0xc9de4644);
    // 136: ()
    same(pool.push_to_queue(&[6], true), 0x00000000);
    // 137: false
    same(pool.reset(), 0x00000000);
    // 138: Ids([6, 11])
    same(Ids(pool.pop_from_queue(2)), 0x5d06399a);
    // 139: ()
    same(pool.claim(&[6, 11], None), 0x9c2fa0b5);
    // 140: ()
    same(pool.unpin(&[12]), 0x9c2fa0b5);
    // 141: ()
    same(pool.insert_in_index(key("030000000707070707070707070707070707070707070707070707070707070700000001"), 5), 0x9c2fa0b5);
    // 142: false
    same(pool.remove_from_index(&key("000000000707070707070707070707070707070707070707070707070707070700000000"), 9), 0x00000000);
    // 143: ()
    same(pool.clear_index(), 0x00000000);
    // 144: ()
    same(pool.set_ref_count(8, 0), 0x00000000);
    // 145: ()
    same(pool.set_hash(8, key("000000000707070707070707070707070707070707070707070707070707070700000000"), Some(24)), 0x00000000);
    // 146: ()
    same(pool.reset_hash(3), 0x00000000);
    // 147: false
    same(pool.remove_from_queue(13), 0x00000000);
    // 148: Ids([])
    same(allocate(pool, 0), 0x9c2fa0b5);
    // 149: Ids([])
    same(allocate(pool, 0), 0x9c2fa0b5);
    // 150: Ids([9, 1])
    same(allocate(pool, 2), 0x9d0a8cf6);
    // 151: Ids([10, 4])
    same(allocate(pool, 2), 0x7005de3d);
    // 152: ()
    same(pool.free(Vec::<u32>::from([6, 3])), 0x9c2fa0b5);
    // 153: ()
    same(pool.free(Vec::<u32>::from([13])), 0x9c2fa0b5);
    // 154: ()
    same(pool.free(Vec::<u32>::from([])), 0x9c2fa0b5);
    // 155: ()
    same(cache_full(pool, Start { first: 0, before: None }, &[4, 10], &[Some(key("020000000707070707070707070707070707070707070707070707070707070700000001")), Some(key("030000000707070707070707070707070707070707070707070707070707070700000000"))], 4), 0x9c2fa0b5);
    // 156: ()
    same(cache_full(pool, Start { first: 0, before: None }, &[4, 10], &[None, None], 4), 0x9c2fa0b5);
    // 157: refused: block 4 is cached already, for 4 tokens: it can't be cached for 4
    same(cache_full(pool, Start { first: 0, before: None }, &[4], &[Some(key("010000000707070707070707070707070707070707070707070707070707070700000001"))], 4), 0xaf513b64);
    // 158: true
    same(pool.insert_hash_behind(key("040000000707070707070707070707070707070707070707070707070707070700000000"), 0, Some(31), 1, Some(&key("050000000707070707070707070707070707070707070707070707070707070700000001"))), 0x9c2fa0b5);
    // 159: [Removed { block: 4, key: 0200000007070707070707070707070707070707070707070707070707070707/1, last_copy: true }]
    same(pool.evict(4, true), 0x5ae772db);
    // 160: ()
    same(pool.move_hashes(2, 9), 0x9c2fa0b5);
    // 161: ()
    same(pool.touch(&[4]), 0x9c2fa0b5);
    // 162: refused: block 12 has no references: it is freed more often than it was taken
    same(pool.free(Vec::<u32>::from([12])), 0xd6ba3c14);
    // 163: []
    same(pool.remove_hashes(12), 0x00000000);
    // 164: Ids([12, 13])
    same(Ids(pool.pop_from_queue(2)), 0xa06bfcd0);
    // 165: ()
    same(pool.push_to_queue(&[12, 13], false), 0x00000000);
    // 166: false
    same(pool.reset(), 0x00000000);
    // 167: Ids([6, 3])
    same(Ids(pool.pop_from_queue(2)), 0xc4133456);
    // 168: ()
    same(pool.claim(&[6, 3], None), 0x9c2fa0b5);
    // 169: ()
    same(pool.unpin(&[5]), 0x9c2fa0b5);
    // 170: ()
    same(pool.insert_in_index(key("080000000707070707070707070707070707070707070707070707070707070700000001"), 12), 0x9c2fa0b5);
    // 171: false
    same(pool.remove_from_index(&key("080000000707070707070707070707070707070707070707070707070707070700000000"), 3), 0x00000000);
    // 172: ()
    same(pool.clear_index(), 0x00000000);
    // 173: ()
    same(pool.set_ref_count(0, 0), 0x00000000);
    // 174: ()
    same(pool.set_hash(3, key("040000000707070707070707070707070707070707070707070707070707070700000000"), Some(8)), 0x00000000);
    // 175: ()
    same(pool.reset_hash(13), 0x00000000);
    // 176: false
    same(pool.remove_from_queue(3), 0x00000000);
}

#[test]
fn journal() {
    let mut pool = Pool::with_policy(14, true, kvpool_policies::by_name("s3-fifo").unwrap()).unwrap();
    part_0(&mut pool);
}
