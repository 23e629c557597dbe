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

use kvpool::retention::{Keep, Priority, Retention, RetentionConfig, TenantId, TenantLimits, Then, Ttl};
use kvpool_journal::{Check, Outcome};
use kvpool_vllm::{Key, Pool, Start, VllmError};

/// The ids of blocks that a call returns.
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

/// Checks that an answer has the expected checksum. A journal stores one checksum per answer.
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
    same(cache_full(pool, Start { first: 1, before: None }, &[10, 9],
        &[Some(key("080000000707070707070707070707070707070707070707070707070707070700000000")),
        Some(key("000000000707070707070707070707070707070707070707070707070707070700000001"))], 4),
        0x9c2fa0b5);
    // 8: ()
    same(cache_full(pool, Start { first: 1, before: None }, &[], &[], 4), 0x9c2fa0b5);
    // 9: ()
    same(cache_full(pool, Start { first: 1, before: None }, &[10, 9], &[None, None], 4), 0x9c2fa0b5);
    // 10: true
    same(
        pool.insert_hash_behind(
        key("020000000707070707070707070707070707070707070707070707070707070700000000"), 3, Some(24), 1,
        Some(&key("000000000707070707070707070707070707070707070707070707070707070700000000"))), 0x9c2fa0b5);
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
    same(pool.insert_in_index(key("040000000707070707070707070707070707070707070707070707070707070700000000"),
        7), 0x9c2fa0b5);
    // 24: false
    same(
        pool.remove_from_index(
        &key("020000000707070707070707070707070707070707070707070707070707070700000000"), 1), 0x00000000);
    // 25: ()
    same(pool.clear_index(), 0x00000000);
    // 26: ()
    same(pool.set_ref_count(1, 1), 0x00000000);
    // 27: ()
    same(pool.set_hash(13, key("020000000707070707070707070707070707070707070707070707070707070700000001"),
        Some(1)), 0x00000000);
    // 28: ()
    same(pool.reset_hash(1), 0x00000000);
    // 29: refused: block 15 is not of this pool: it has blocks 0 to 13
    same(pool.retain(&[4, 15],
        Retention { keep: Keep::Priority(Priority::new(52).unwrap()), ttl: Some(Ttl::Idle(1.0)),
        then: Then::Demote }), 0xb2687c42);
    // 30: refused: this pool has no retention: make it with a retention configuration to retain blocks
    same(pool.retain(&[11, 3],
        Retention { keep: Keep::Priority(Priority::new(76).unwrap()), ttl: Some(Ttl::Absolute(0.0)),
        then: Then::Demote }), 0x63316531);
    // 31: refused: this pool has no retention: make it with a retention configuration to assign tenants
    same(pool.assign_tenant(&[6], TenantId(0)), 0x63316531);
    // 32: refused: this pool has no retention: make it with a retention configuration to keep time
    same(pool.advance_time(15.0), 0x63316531);
    // 33: ()
    same(pool.signal(&[7, 3], kvpool::Signal { finish: kvpool::Finish::Unknown, output_tokens: None }),
        0x9c2fa0b5);
    // 34: true
    same(pool.remove_from_queue(11), 0x9c2fa0b5);
    // 35: ()
    same(pool.push_to_queue(&[11], false), 0x00000000);
}

#[test]
fn journal() {
    let mut pool = Pool::with_policy(14, true, kvpool_policies::by_name("s3-fifo").unwrap()).unwrap();
    part_0(&mut pool);
}
