//! A journal as a test: made by `kvpool journal export`.
#![cfg_attr(rustfmt, rustfmt_skip)]
#![allow(clippy::allow_attributes, clippy::single_range_in_vec_init, clippy::unit_arg, clippy::unwrap_used, unused, reason = "made by a program")]

use kvpool::retention::{Keep, Priority, Retention, RetentionConfig, TenantId, TenantLimits, Then, Ttl};
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
    // 29: refused: block 15 is not of this pool: it has blocks 0 to 13
    same(pool.retain(&[4, 15], Retention { keep: Keep::Priority(Priority::new(52).unwrap()), ttl: Some(Ttl::Idle(1.0)), then: Then::Demote }), 0xb2687c42);
    // 30: refused: this pool has no retention: make it with a retention configuration to retain blocks
    same(pool.retain(&[11, 3], Retention { keep: Keep::Priority(Priority::new(76).unwrap()), ttl: Some(Ttl::Absolute(0.0)), then: Then::Demote }), 0x63316531);
    // 31: refused: this pool has no retention: make it with a retention configuration to assign tenants
    same(pool.assign_tenant(&[6], TenantId(0)), 0x63316531);
    // 32: refused: this pool has no retention: make it with a retention configuration to keep time
    same(pool.advance_time(15.0), 0x63316531);
    // 33: ()
    same(pool.signal(&[7, 3], kvpool::Signal { finish: kvpool::Finish::Unknown, output_tokens: None }), 0x9c2fa0b5);
    // 34: true
    same(pool.remove_from_queue(11), 0x9c2fa0b5);
    // 35: ()
    same(pool.push_to_queue(&[11], false), 0x00000000);
    // 36: Ids([12])
    same(allocate(pool, 1), 0x004c2e49);
    // 37: Ids([2])
    same(allocate(pool, 1), 0xe88aa583);
    // 38: refused: Cannot get 4 free blocks from the pool (2 are free)
    same(allocate(pool, 4), 0xc4d3bd8a);
    // 39: Ids([13, 11])
    same(allocate(pool, 2), 0xad83d009);
    // 40: ()
    same(pool.free(Vec::<u32>::from([3, 4])), 0x9c2fa0b5);
    // 41: ()
    same(pool.free(Vec::<u32>::from([5, 6])), 0x9c2fa0b5);
    // 42: ()
    same(pool.free(Vec::<u32>::from([7])), 0x9c2fa0b5);
    // 43: ()
    same(cache_full(pool, Start { first: 3, before: None }, &[], &[], 4), 0x9c2fa0b5);
    // 44: ()
    same(cache_full(pool, Start { first: 3, before: None }, &[11, 13], &[None, None], 4), 0x9c2fa0b5);
    // 45: ()
    same(cache_full(pool, Start { first: 2, before: None }, &[11, 13], &[Some(key("050000000707070707070707070707070707070707070707070707070707070700000000")), Some(key("060000000707070707070707070707070707070707070707070707070707070700000001"))], 4), 0x9c2fa0b5);
    // 46: true
    same(pool.insert_hash_behind(key("070000000707070707070707070707070707070707070707070707070707070700000000"), 6, Some(5), 0, Some(&key("060000000707070707070707070707070707070707070707070707070707070700000001"))), 0x9c2fa0b5);
    // 47: []
    same(pool.evict(0, false), 0x50caa327);
    // 48: ()
    same(pool.move_hashes(2, 3), 0x9c2fa0b5);
    // 49: refused: block 29 is not of this pool: it has blocks 0 to 13
    same(pool.touch(&[29]), 0xb2687c42);
    // 50: ()
    same(pool.free(Vec::<u32>::from([])), 0x9c2fa0b5);
    // 51: []
    same(pool.remove_hashes(12), 0x00000000);
    // 52: ()
    same(pool.chain_group(0), 0x00000000);
    // 53: Ids([])
    same(Ids(pool.pop_from_queue(0)), 0x00000000);
    // 54: ()
    same(pool.push_to_queue(&[], true), 0x00000000);
    // 55: false
    same(pool.reset(), 0x00000000);
    // 56: Ids([7])
    same(Ids(pool.pop_from_queue(1)), 0x2511a610);
    // 57: ()
    same(pool.claim(&[7], None), 0x9c2fa0b5);
    // 58: ()
    same(pool.unpin(&[8]), 0x9c2fa0b5);
    // 59: ()
    same(pool.insert_in_index(key("060000000707070707070707070707070707070707070707070707070707070700000001"), 4), 0x9c2fa0b5);
    // 60: false
    same(pool.remove_from_index(&key("060000000707070707070707070707070707070707070707070707070707070700000000"), 2), 0x00000000);
    // 61: ()
    same(pool.clear_index(), 0x00000000);
    // 62: ()
    same(pool.set_ref_count(2, 1), 0x00000000);
    // 63: ()
    same(pool.set_hash(1, key("070000000707070707070707070707070707070707070707070707070707070700000000"), Some(51)), 0x00000000);
    // 64: ()
    same(pool.reset_hash(11), 0x00000000);
    // 65: refused: this pool has no retention: make it with a retention configuration to retain blocks
    same(pool.retain(&[4, 1], Retention { keep: Keep::Pinned, ttl: Some(Ttl::Idle(2.0)), then: Then::Demote }), 0x63316531);
    // 66: refused: this pool has no retention: make it with a retention configuration to retain blocks
    same(pool.retain(&[3, 4], Retention { keep: Keep::Demoted, ttl: Some(Ttl::Idle(5.0)), then: Then::Demote }), 0x63316531);
    // 67: refused: this pool has no retention: make it with a retention configuration to assign tenants
    same(pool.assign_tenant(&[13], TenantId(1)), 0x63316531);
    // 68: refused: this pool has no retention: make it with a retention configuration to keep time
    same(pool.advance_time(6.0), 0x63316531);
    // 69: ()
    same(pool.signal(&[0, 8], kvpool::Signal { finish: kvpool::Finish::Aborted, output_tokens: None }), 0x9c2fa0b5);
    // 70: false
    same(pool.remove_from_queue(2), 0x00000000);
    // 71: Ids([5, 3, 4])
    same(allocate(pool, 3), 0x39026599);
    // 72: refused: Cannot get 3 free blocks from the pool (2 are free)
    same(allocate(pool, 3), 0x5e688dfc);
    // 73: Ids([6])
    same(allocate(pool, 1), 0xbb143b6c);
    // 74: refused: Cannot get 3 free blocks from the pool (1 are free)
    same(allocate(pool, 3), 0x5e688dfc);
    // 75: ()
    same(pool.free(Vec::<u32>::from([])), 0x9c2fa0b5);
    // 76: ()
    same(pool.free(Vec::<u32>::from([])), 0x9c2fa0b5);
    // 77: ()
    same(pool.free(Vec::<u32>::from([])), 0x9c2fa0b5);
    // 78: ()
    same(cache_full(pool, Start { first: 1, before: None }, &[], &[], 4), 0x9c2fa0b5);
    // 79: ()
    same(cache_full(pool, Start { first: 2, before: None }, &[], &[], 4), 0x9c2fa0b5);
    // 80: ()
    same(cache_full(pool, Start { first: 0, before: None }, &[6, 4], &[None, None], 4), 0x9c2fa0b5);
    // 81: true
    same(pool.insert_hash_behind(key("030000000707070707070707070707070707070707070707070707070707070700000000"), 11, Some(41), 0, Some(&key("070000000707070707070707070707070707070707070707070707070707070700000001"))), 0x9c2fa0b5);
    // 82: []
    same(pool.evict(6, true), 0x50caa327);
    // 83: refused: block 9 is cached already, for 12 tokens: it can't be cached for 0
    same(pool.move_hashes(4, 9), 0xaf513b64);
    // 84: refused: block 37 is not of this pool: it has blocks 0 to 13
    same(pool.touch(&[37]), 0xb2687c42);
    // 85: ()
    same(pool.free(Vec::<u32>::from([9])), 0x9c2fa0b5);
    // 86: []
    same(pool.remove_hashes(5), 0x00000000);
    // 87: Ids([])
    same(Ids(pool.pop_from_queue(0)), 0x00000000);
    // 88: ()
    same(pool.push_to_queue(&[], true), 0x00000000);
    // 89: false
    same(pool.reset(), 0x00000000);
    // 90: Ids([8])
    same(Ids(pool.pop_from_queue(1)), 0x617d05ac);
    // 91: ()
    same(pool.claim(&[8], None), 0x9c2fa0b5);
    // 92: refused: block 9 has no references: it is freed more often than it was taken
    same(pool.unpin(&[9]), 0xd6ba3c14);
    // 93: ()
    same(pool.insert_in_index(key("000000000707070707070707070707070707070707070707070707070707070700000001"), 3), 0x9c2fa0b5);
    // 94: false
    same(pool.remove_from_index(&key("030000000707070707070707070707070707070707070707070707070707070700000000"), 5), 0x00000000);
    // 95: ()
    same(pool.clear_index(), 0x00000000);
    // 96: ()
    same(pool.set_ref_count(8, 1), 0x00000000);
    // 97: ()
    same(pool.set_hash(6, key("050000000707070707070707070707070707070707070707070707070707070700000000"), Some(5)), 0x00000000);
    // 98: ()
    same(pool.reset_hash(4), 0x00000000);
    // 99: refused: this pool has no retention: make it with a retention configuration to retain blocks
    same(pool.retain(&[6, 6], Retention { keep: Keep::Priority(Priority::new(47).unwrap()), ttl: Some(Ttl::Idle(3.0)), then: Then::Demote }), 0x63316531);
    // 100: refused: this pool has no retention: make it with a retention configuration to retain blocks
    same(pool.retain(&[0, 6], Retention { keep: Keep::Priority(Priority::new(70).unwrap()), ttl: Some(Ttl::Idle(6.0)), then: Then::Demote }), 0x63316531);
    // 101: refused: this pool has no retention: make it with a retention configuration to assign tenants
    same(pool.assign_tenant(&[0], TenantId(1)), 0x63316531);
    // 102: refused: this pool has no retention: make it with a retention configuration to keep time
    same(pool.advance_time(17.0), 0x63316531);
    // 103: ()
    same(pool.signal(&[8, 0], kvpool::Signal { finish: kvpool::Finish::Length, output_tokens: None }), 0x9c2fa0b5);
    // 104: false
    same(pool.remove_from_queue(1), 0x00000000);
    // 105: refused: Cannot get 3 free blocks from the pool (1 are free)
    same(allocate(pool, 3), 0x5e688dfc);
    // 106: refused: Cannot get 2 free blocks from the pool (1 are free)
    same(allocate(pool, 2), 0xfeb41d02);
    // 107: Ids([9])
    same(allocate(pool, 1), 0x4b5b00db);
    // 108: refused: Cannot get 2 free blocks from the pool (0 are free)
    same(allocate(pool, 2), 0xfeb41d02);
    // 109: ()
    same(pool.free(Vec::<u32>::from([10, 1])), 0x9c2fa0b5);
    // 110: ()
    same(pool.free(Vec::<u32>::from([12, 2, 13])), 0x9c2fa0b5);
    // 111: ()
    same(pool.free(Vec::<u32>::from([11, 7])), 0x9c2fa0b5);
    // 112: ()
    same(cache_full(pool, Start { first: 1, before: None }, &[], &[], 4), 0x9c2fa0b5);
    // 113: ()
    same(cache_full(pool, Start { first: 0, before: None }, &[], &[], 4), 0x9c2fa0b5);
    // 114: ()
    same(cache_full(pool, Start { first: 0, before: None }, &[9], &[Some(key("040000000707070707070707070707070707070707070707070707070707070700000000"))], 4), 0x9c2fa0b5);
    // 115: true
    same(pool.insert_hash_behind(key("050000000707070707070707070707070707070707070707070707070707070700000001"), 10, Some(44), 2, Some(&key("040000000707070707070707070707070707070707070707070707070707070700000000"))), 0x9c2fa0b5);
    // 116: []
    same(pool.evict(12, true), 0x50caa327);
    // 117: refused: block 1 is cached already, for 51 tokens: it can't be cached for 0
    same(pool.move_hashes(4, 1), 0xaf513b64);
    // 118: refused: block 28 is not of this pool: it has blocks 0 to 13
    same(pool.touch(&[28]), 0xb2687c42);
    // 119: ()
    same(pool.free(Vec::<u32>::from([4])), 0x9c2fa0b5);
    // 120: []
    same(pool.remove_hashes(2), 0x00000000);
    // 121: Ids([4, 7])
    same(Ids(pool.pop_from_queue(2)), 0x0b41b87a);
    // 122: ()
    same(pool.push_to_queue(&[4, 7], true), 0x00000000);
    // 123: false
    same(pool.reset(), 0x00000000);
    // 124: Ids([])
    same(Ids(pool.pop_from_queue(0)), 0x00000000);
    // 125: ()
    same(pool.claim(&[], None), 0x9c2fa0b5);
    // 126: ()
    same(pool.unpin(&[5]), 0x9c2fa0b5);
    // 127: ()
    same(pool.insert_in_index(key("040000000707070707070707070707070707070707070707070707070707070700000001"), 9), 0x9c2fa0b5);
    // 128: false
    same(pool.remove_from_index(&key("070000000707070707070707070707070707070707070707070707070707070700000000"), 3), 0x00000000);
    // 129: ()
    same(pool.clear_index(), 0x00000000);
    // 130: ()
    same(pool.set_ref_count(11, 0), 0x00000000);
    // 131: ()
    same(pool.set_hash(11, key("040000000707070707070707070707070707070707070707070707070707070700000001"), Some(38)), 0x00000000);
    // 132: ()
    same(pool.reset_hash(12), 0x00000000);
    // 133: refused: this pool has no retention: make it with a retention configuration to retain blocks
    same(pool.retain(&[1, 8], Retention { keep: Keep::Demoted, ttl: None, then: Then::Demote }), 0x63316531);
    // 134: refused: this pool has no retention: make it with a retention configuration to retain blocks
    same(pool.retain(&[1, 12], Retention { keep: Keep::Demoted, ttl: Some(Ttl::Absolute(1.0)), then: Then::Demote }), 0x63316531);
    // 135: refused: this pool has no retention: make it with a retention configuration to assign tenants
    same(pool.assign_tenant(&[12], TenantId(0)), 0x63316531);
    // 136: refused: this pool has no retention: make it with a retention configuration to keep time
    same(pool.advance_time(9.0), 0x63316531);
    // 137: ()
    same(pool.signal(&[3, 7], kvpool::Signal { finish: kvpool::Finish::Length, output_tokens: None }), 0x9c2fa0b5);
    // 138: true
    same(pool.remove_from_queue(7), 0x9c2fa0b5);
    // 139: ()
    same(pool.push_to_queue(&[7], false), 0x00000000);
    // 140: Ids([4, 12, 2])
    same(allocate(pool, 3), 0x3b1d994a);
    // 141: Ids([])
    same(allocate(pool, 0), 0x9c2fa0b5);
    // 142: Ids([10, 13, 5])
    same(allocate(pool, 3), 0x8ec52c69);
    // 143: Ids([11, 7, 1])
    same(allocate(pool, 3), 0xbec4c0c6);
    // 144: ()
    same(pool.free(Vec::<u32>::from([3])), 0x9c2fa0b5);
    // 145: ()
    same(pool.free(Vec::<u32>::from([4])), 0x9c2fa0b5);
    // 146: ()
    same(pool.free(Vec::<u32>::from([6, 8])), 0x9c2fa0b5);
    // 147: ()
    same(cache_full(pool, Start { first: 3, before: None }, &[1, 7], &[None, None], 4), 0x9c2fa0b5);
    // 148: ()
    same(cache_full(pool, Start { first: 0, before: None }, &[], &[], 4), 0x9c2fa0b5);
    // 149: ()
    same(cache_full(pool, Start { first: 3, before: None }, &[1], &[Some(key("010000000707070707070707070707070707070707070707070707070707070700000001"))], 4), 0x9c2fa0b5);
    // 150: false
    same(pool.insert_hash_behind(key("010000000707070707070707070707070707070707070707070707070707070700000001"), 12, Some(49), 3, Some(&key("080000000707070707070707070707070707070707070707070707070707070700000001"))), 0x00000000);
    // 151: [Removed { block: 1, key: 0100000007070707070707070707070707070707070707070707070707070707/1, last_copy: false }]
    same(pool.evict(1, false), 0x5efbdd73);
    // 152: ()
    same(pool.move_hashes(3, 2), 0x9c2fa0b5);
    // 153: refused: block 30 is not of this pool: it has blocks 0 to 13
    same(pool.touch(&[30]), 0xb2687c42);
    // 154: ()
    same(pool.free(Vec::<u32>::from([12])), 0x9c2fa0b5);
    // 155: []
    same(pool.remove_hashes(10), 0x00000000);
    // 156: Ids([8, 4])
    same(Ids(pool.pop_from_queue(2)), 0x1e958e1c);
    // 157: ()
    same(pool.push_to_queue(&[8, 4], true), 0x00000000);
    // 158: false
    same(pool.reset(), 0x00000000);
    // 159: Ids([8])
    same(Ids(pool.pop_from_queue(1)), 0x617d05ac);
    // 160: ()
    same(pool.claim(&[8], None), 0x9c2fa0b5);
    // 161: ()
    same(pool.unpin(&[9]), 0x9c2fa0b5);
    // 162: ()
    same(pool.insert_in_index(key("010000000707070707070707070707070707070707070707070707070707070700000001"), 2), 0x9c2fa0b5);
    // 163: false
    same(pool.remove_from_index(&key("000000000707070707070707070707070707070707070707070707070707070700000001"), 6), 0x00000000);
    // 164: ()
    same(pool.clear_index(), 0x00000000);
    // 165: ()
    same(pool.set_ref_count(12, 0), 0x00000000);
    // 166: ()
    same(pool.set_hash(11, key("060000000707070707070707070707070707070707070707070707070707070700000001"), Some(52)), 0x00000000);
    // 167: ()
    same(pool.reset_hash(6), 0x00000000);
    // 168: refused: block 15 is not of this pool: it has blocks 0 to 13
    same(pool.retain(&[6, 15], Retention { keep: Keep::Priority(Priority::new(61).unwrap()), ttl: Some(Ttl::Idle(6.0)), then: Then::Demote }), 0xb2687c42);
    // 169: refused: this pool has no retention: make it with a retention configuration to retain blocks
    same(pool.retain(&[8, 8], Retention { keep: Keep::Demoted, ttl: Some(Ttl::Idle(7.0)), then: Then::Demote }), 0x63316531);
    // 170: refused: this pool has no retention: make it with a retention configuration to assign tenants
    same(pool.assign_tenant(&[3], TenantId(2)), 0x63316531);
    // 171: refused: this pool has no retention: make it with a retention configuration to keep time
    same(pool.advance_time(8.0), 0x63316531);
    // 172: ()
    same(pool.signal(&[3, 9], kvpool::Signal { finish: kvpool::Finish::Stop, output_tokens: Some(674) }), 0x9c2fa0b5);
    // 173: false
    same(pool.remove_from_queue(2), 0x00000000);
    // 174: Ids([6, 4])
    same(allocate(pool, 2), 0xc4069bb7);
    // 175: Ids([3, 12, 9])
    same(allocate(pool, 3), 0x7cca6353);
    // 176: refused: Cannot get 4 free blocks from the pool (0 are free)
    same(allocate(pool, 4), 0xc4d3bd8a);
    // 177: refused: Cannot get 3 free blocks from the pool (0 are free)
    same(allocate(pool, 3), 0x5e688dfc);
}

#[test]
fn journal() {
    let mut pool = Pool::with_policy(14, true, kvpool_policies::by_name("s3-fifo").unwrap()).unwrap();
    part_0(&mut pool);
}
