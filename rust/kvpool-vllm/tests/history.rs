//! Policies that keep a history. The pool notifies them of the contents of its blocks: their parents,
//! their depths and their uses. Each test checks the order in which blocks are reused.
#![expect(clippy::unwrap_used, reason = "a test stops at the first error")]

use kvpool::evictor::{self, Policy};
use kvpool::{BlockId, EvictionPolicy, InvariantViolation, PoolError};
use kvpool_policies::eviction_policy;
use kvpool_vllm::{Key, Pool, Start};

const BLOCK_SIZE: usize = 4;
/// The number of the group with full attention. Group 1 is a sliding window.
const CHAINED: u32 = 0;

fn key(prompt: &[u8], group: u32) -> Key {
    let mut digest = [0; 32];
    digest[..prompt.len()].copy_from_slice(prompt);
    digest[31] = prompt.len() as u8;
    Key::new(&digest, group).unwrap()
}

/// Returns the key of the block after `prompt`, if this block is half full.
fn half(prompt: &[u8], group: u32) -> Key {
    let mut digest = [0xff; 32];
    digest[..prompt.len()].copy_from_slice(prompt);
    Key::new(&digest, group).unwrap()
}

fn policies() -> impl Iterator<Item = EvictionPolicy> {
    let has_history = |policy: &EvictionPolicy| policy.build(2, None).unwrap().wants_history();
    kvpool_policies::ALL.iter().copied().filter(has_history)
}

fn pool(policy: &str) -> Pool {
    let mut pool = Pool::with_policy(8, true, kvpool_policies::by_name(policy).unwrap()).unwrap();
    pool.chain_group(CHAINED);
    pool
}

fn take(pool: &mut Pool, n: usize) -> Vec<u32> {
    let mut taken = Vec::new();
    pool.allocate(n, &mut taken, None).unwrap();
    pool.check_invariants().unwrap();
    taken
}

/// Caches consecutive blocks of a table, beginning at `start`. The key of each block is that of the
/// prompt up to and including this block.
fn cache(pool: &mut Pool, start: Start, blocks: &[u32], prompt: &[u8], group: u32) {
    let key_of = |i: usize| Some(key(&prompt[..=start.first + i], group));
    pool.cache_full(start, blocks, key_of, BLOCK_SIZE, &mut Vec::new(), None).unwrap();
}

/// Caches prompts of one block each, and frees their blocks.
fn singles(pool: &mut Pool, prompts: &[u8]) {
    let blocks = take(pool, prompts.len());
    for (&block, &prompt) in blocks.iter().zip(prompts) {
        cache(pool, Start::at(0), &[block], &[prompt], CHAINED);
        pool.free([block]).unwrap();
    }
}

fn cached(pool: &Pool) -> Vec<u32> {
    pool.order().filter(|&block| pool.keys().hash_of(block).is_some()).collect()
}

#[test]
fn the_pool_notifies_a_use_of_a_free_block() {
    let mut pool = pool("s3-fifo");
    singles(&mut pool, &[1, 2, 3]);
    pool.touch(&[1]).unwrap();
    pool.free([1]).unwrap();
    pool.touch(&[3]).unwrap();
    pool.free([3]).unwrap();
    pool.touch(&[3]).unwrap();
    pool.free([3]).unwrap();
    assert_eq!(cached(&pool), [2, 1, 3]);
}

#[test]
fn the_pool_notifies_a_use_of_a_block_in_use() {
    let mut pool = pool("s3-fifo");
    let blocks = take(&mut pool, 2);
    cache(&mut pool, Start::at(0), &[1], &[1], CHAINED);
    cache(&mut pool, Start::at(0), &[2], &[2], CHAINED);
    pool.touch(&[1]).unwrap();
    pool.free([1, 1]).unwrap();
    pool.free([2]).unwrap();
    assert_eq!((blocks, cached(&pool)), (vec![1, 2], vec![2, 1]));
}

#[test]
fn an_evicted_content_that_comes_back_is_known_again() {
    let reused = |prompt: u8| {
        let mut pool = pool("arc");
        singles(&mut pool, &[1, 2, 3, 4, 5, 6, 7]);
        for _ in 0..4 {
            pool.touch(&[1]).unwrap();
            pool.free([1]).unwrap();
        }
        // Six blocks were used once, and they are reused first. Block 1 was used often, and is reused
        // last.
        assert_eq!(take(&mut pool, 7).last(), Some(&1));
        for (block, prompt) in (1..8).zip([prompt, 12, 13, 14, 15, 16, 17]) {
            cache(&mut pool, Start::at(0), &[block], &[prompt], CHAINED);
            pool.free([block]).unwrap();
        }
        cached(&pool).iter().position(|&block| block == 1)
    };
    // If block 1 gets the same key again, the policy remembers its uses, and it is reused last. If it
    // gets another key, the policy treats it as new, and it is reused first.
    assert_eq!((reused(1), reused(11)), (Some(6), Some(0)));
}

#[test]
fn a_chain_is_evicted_from_its_end_whatever_call_cached_it() {
    let mut pool = pool("s3-fifo");
    let table = take(&mut pool, 3);
    cache(&mut pool, Start::at(0), &table[..2], &[1, 2, 3], CHAINED);
    cache(&mut pool, Start { first: 2, before: Some(table[1]) }, &table[2..], &[1, 2, 3], CHAINED);
    // The blocks are freed from the start of the prompt. Still, the last block is reused first, because
    // the other blocks are its ancestors.
    for &block in &table {
        pool.free([block]).unwrap();
    }
    assert_eq!(cached(&pool), [3, 2, 1]);
}

#[test]
fn a_block_after_an_uncached_block_has_no_parent() {
    let mut pool = pool("s3-fifo");
    let table = take(&mut pool, 3);
    cache(&mut pool, Start::at(0), &table[..1], &[1], CHAINED);
    cache(&mut pool, Start { first: 2, before: Some(table[1]) }, &table[2..], &[1, 2, 3], CHAINED);
    for block in table {
        pool.free([block]).unwrap();
    }
    assert_eq!(cached(&pool), [1, 3]);
    // The null block, as the parent of a block, does not count as a parent.
    let mut pool = self::pool("s3-fifo");
    take(&mut pool, 1);
    cache(&mut pool, Start { first: 1, before: Some(0) }, &[1], &[1, 2], CHAINED);
    pool.free([1]).unwrap();
    assert_eq!(cached(&pool), [1]);
}

#[test]
fn a_block_may_have_a_parent_with_its_own_key() {
    // Block 1 is the parent of block 2. Here block 1 gets the same key as block 2.
    let mut pool = pool("s3-fifo");
    let table = take(&mut pool, 2);
    pool.insert_hash(key(&[1, 2], CHAINED), 1, Some(8));
    cache(&mut pool, Start { first: 1, before: Some(1) }, &table[1..], &[1, 2], CHAINED);
    pool.check_invariants().unwrap();
    pool.free([1]).unwrap();
    pool.free([2]).unwrap();
    assert_eq!(cached(&pool), [2, 1]);
    pool.check_invariants().unwrap();
}

#[test]
fn a_window_is_no_chain() {
    let mut pool = pool("s3-fifo");
    let table = take(&mut pool, 3);
    cache(&mut pool, Start::at(0), &table, &[1, 2, 3], 1);
    pool.free([1]).unwrap();
    pool.free([3, 2]).unwrap();
    // The block that has left the window is reused first, although the other blocks are later in the
    // prompt.
    assert_eq!(cached(&pool), [1, 3, 2]);
}

/// A policy that first evicts the block with the smallest depth.
#[derive(Clone, Debug)]
struct ByDepth {
    depths: Vec<u32>,
    order: Vec<BlockId>,
}

impl ByDepth {
    fn new(num_blocks: usize) -> Result<Self, PoolError> {
        Ok(Self { depths: vec![0; num_blocks], order: Vec::new() })
    }
}

impl Policy for ByDepth {
    fn name(&self) -> &'static str {
        "by-depth"
    }
    fn admit(&mut self, block: BlockId, content: evictor::Content) {
        self.depths[block.index()] = content.depth;
    }
    fn hit(&mut self, _: BlockId) {}
    fn release(&mut self, block: BlockId) {
        self.take(block);
        self.order.push(block);
    }
    fn pop(&mut self) -> Option<BlockId> {
        let least = self.order.iter().copied().min_by_key(|block| self.depths[block.index()])?;
        self.take(least);
        Some(least)
    }
    fn take(&mut self, block: BlockId) {
        self.order.retain(|&other| other != block);
    }
    fn unpop(&mut self, block: BlockId) {
        self.release(block);
    }
    fn forget(&mut self, block: BlockId) {
        self.take(block);
    }
    fn clear(&mut self) {
        self.order.clear();
    }
    fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        self.depths.resize(num_blocks, 0);
        Ok(())
    }
    fn check_invariants(&self) -> Result<(), InvariantViolation> {
        Ok(())
    }
}

#[test]
fn blocks_of_one_release_are_evicted_from_the_end_of_the_table() {
    let mut pool = pool("s3-fifo");
    let table = take(&mut pool, 3);
    cache(&mut pool, Start::at(0), &table[..2], &[1, 2, 3], 1);
    cache(&mut pool, Start::at(2), &table[2..], &[1, 2, 3], 1);
    pool.free(table).unwrap();
    assert_eq!(cached(&pool), [3, 2, 1]);
    // The block with the largest depth is reused last, although it was freed first.
    let by_depth = || {
        let mut pool = Pool::with_policy(8, true, eviction_policy!("by-depth", ByDepth::new)).unwrap();
        pool.chain_group(CHAINED);
        pool
    };
    let mut pool = by_depth();
    let table = take(&mut pool, 2);
    cache(&mut pool, Start::at(2), &table[..1], &[1, 2, 3], CHAINED);
    pool.free([1]).unwrap();
    cache(&mut pool, Start::at(0), &table[1..], &[9], CHAINED);
    pool.free([2]).unwrap();
    assert_eq!(cached(&pool), [2, 1]);
    // A content keeps its depth when it is moved to another block.
    let mut pool = by_depth();
    let table = take(&mut pool, 3);
    cache(&mut pool, Start::at(2), &table[..1], &[1, 2, 3], CHAINED);
    pool.move_hashes(1, 3).unwrap();
    pool.free([3]).unwrap();
    cache(&mut pool, Start::at(0), &table[1..2], &[9], CHAINED);
    pool.free([2]).unwrap();
    assert_eq!(cached(&pool), [2, 3]);
}

#[test]
fn a_group_is_chained_from_the_call_of_chain_group_on() {
    let mut pool = Pool::with_policy(8, true, kvpool_policies::S3_FIFO).unwrap();
    let table = take(&mut pool, 4);
    cache(&mut pool, Start::at(0), &table[..2], &[1, 2], 5);
    pool.chain_group(5);
    pool.chain_group(5);
    cache(&mut pool, Start::at(0), &table[2..], &[3, 4], 5);
    for block in table {
        pool.free([block]).unwrap();
    }
    assert_eq!(cached(&pool), [1, 2, 4, 3]);
}

#[test]
fn each_of_two_copies_has_its_own_parent() {
    let mut pool = pool("s3-fifo");
    let table = take(&mut pool, 4);
    cache(&mut pool, Start::at(0), &table[..2], &[1, 2], CHAINED);
    cache(&mut pool, Start::at(0), &table[2..], &[1, 2], CHAINED);
    pool.free([1, 3, 2]).unwrap();
    // Block 3 is the parent of block 4, which is in use. Only a cached-free block keeps its parent
    // cached, so block 3 may be evicted.
    assert_eq!(cached(&pool), [2, 1, 3]);
    pool.free([4]).unwrap();
    assert_eq!(cached(&pool), [2, 1, 4, 3]);
}

#[test]
fn a_partial_block_has_the_block_of_its_parents_key_as_parent() {
    let mut pool = pool("s3-fifo");
    let table = take(&mut pool, 2);
    let parent = key(&[1], CHAINED);
    cache(&mut pool, Start::at(0), &table[..1], &[1], CHAINED);
    pool.insert_hash_behind(half(&[1], CHAINED), 2, Some(6), 1, Some(&parent));
    pool.free([1]).unwrap();
    pool.free([2]).unwrap();
    assert_eq!(cached(&pool), [2, 1]);
    // The uses of a partial block do not count for the full block that replaces it.
    for _ in 0..3 {
        pool.touch(&[2]).unwrap();
        pool.free([2]).unwrap();
    }
    pool.touch(&[2]).unwrap();
    singles(&mut pool, &[9]);
    pool.touch(&[3]).unwrap();
    pool.free([3]).unwrap();
    cache(&mut pool, Start { first: 1, before: Some(1) }, &[2], &[1, 2], CHAINED);
    pool.free([2]).unwrap();
    pool.check_invariants().unwrap();
    assert_eq!(cached(&pool), [2, 1, 3]);
}

#[test]
fn a_free_block_whose_hash_is_dropped_is_reused_next() {
    for drop in [0, 1, 2, 3] {
        let mut pool = pool("s3-fifo");
        singles(&mut pool, &[1, 2, 3]);
        match drop {
            0 | 1 => assert_eq!(pool.evict(2, drop == 1).unwrap().len(), 1),
            2 => assert_eq!(pool.remove_hashes(2).len(), 1),
            _ => {
                pool.reset_hash(2);
                assert!(pool.remove_from_index(&key(&[2], CHAINED), 2));
            }
        }
        pool.check_invariants().unwrap();
        assert_eq!(pool.order().collect::<Vec<_>>(), [2, 4, 5, 6, 7, 1, 3], "way {drop}");
        assert_eq!(take(&mut pool, 7), [2, 4, 5, 6, 7, 1, 3]);
    }
}

#[test]
fn children_of_a_dropped_block_have_no_parent() {
    let mut pool = pool("s3-fifo");
    let table = take(&mut pool, 3);
    cache(&mut pool, Start::at(0), &table, &[1, 2, 3], CHAINED);
    for block in table {
        pool.free([block]).unwrap();
    }
    assert_eq!(cached(&pool), [3, 2, 1]);
    pool.evict(2, true).unwrap();
    assert_eq!(pool.order().collect::<Vec<_>>(), [2, 4, 5, 6, 7, 1, 3]);
}

#[test]
fn a_reset_forgets_the_history_and_every_block_is_free_again() {
    let mut pool = pool("s3-fifo");
    singles(&mut pool, &[1, 2, 3]);
    for _ in 0..3 {
        pool.touch(&[1]).unwrap();
        pool.free([1]).unwrap();
    }
    assert!(pool.reset());
    pool.check_invariants().unwrap();
    assert_eq!(pool.order().collect::<Vec<_>>(), [4, 5, 6, 7, 2, 3, 1]);
    assert_eq!(take(&mut pool, 7), [4, 5, 6, 7, 2, 3, 1]);
    for block in [1, 2] {
        cache(&mut pool, Start::at(0), &[block], &[block as u8], CHAINED);
        pool.free([block]).unwrap();
    }
    assert_eq!(cached(&pool), [1, 2], "what was used often before the reset is not known");
}

#[test]
fn an_unpinned_free_block_can_get_a_hash() {
    for policy in policies() {
        let mut pool = Pool::with_policy(4, true, policy).unwrap();
        take(&mut pool, 2);
        pool.unpin(&[1, 2]).unwrap();
        assert!(pool.insert_hash(key(&[1], CHAINED), 1, Some(4)));
        pool.check_invariants().unwrap();
        let mut all = pool.order().collect::<Vec<_>>();
        all.sort_unstable();
        assert_eq!(all, [1, 2, 3], "{policy:?}");
        pool.touch(&[1, 2]).unwrap();
        pool.free([2, 1]).unwrap();
        assert_eq!(pool.order().collect::<Vec<_>>(), [2, 3, 1], "{policy:?}");
    }
}

#[test]
fn the_invented_content_of_a_block_without_a_hash_ends_with_its_reuse() {
    let mut pool = pool("s3-fifo");
    take(&mut pool, 2);
    for _ in 0..3 {
        pool.unpin(&[1]).unwrap();
        pool.touch(&[1]).unwrap();
    }
    pool.unpin(&[1]).unwrap();
    pool.unpin(&[2]).unwrap();
    assert_eq!(pool.order().collect::<Vec<_>>(), [3, 4, 5, 6, 7, 1, 2]);
}

#[test]
fn a_further_key_is_no_new_content() {
    let mut pool = pool("s3-fifo");
    singles(&mut pool, &[1, 2]);
    pool.touch(&[1]).unwrap();
    pool.touch(&[1]).unwrap();
    pool.insert_hash(half(&[1], CHAINED), 1, Some(6));
    pool.free([1, 1]).unwrap();
    assert_eq!(cached(&pool), [2, 1], "the two uses before it count");
}

#[test]
fn what_is_taken_out_of_the_queue_by_hand_is_known_until_somebody_claims_it() {
    let mut pool = pool("s3-fifo");
    singles(&mut pool, &[1]);
    let taken = pool.pop_from_queue(7);
    assert_eq!((taken.last(), pool.find(&key(&[1], CHAINED))), (Some(&1), Some(1)));
    pool.check_representation().unwrap();
    let mut removed = Vec::new();
    pool.claim(&taken, Some(&mut removed)).unwrap();
    assert_eq!((removed.len(), pool.find(&key(&[1], CHAINED))), (1, None));
    pool.check_invariants().unwrap();
}

#[test]
fn what_is_popped_and_claimed_was_evicted_as_far_as_the_policy_knows() {
    // The pool notifies the policy in the same way as in an ordinary allocation. When the content is
    // cached again, the policy recognizes it.
    let reused = |by_hand: bool| {
        let mut pool = pool("arc");
        singles(&mut pool, &[1, 2, 3, 4, 5, 6, 7]);
        for _ in 0..4 {
            pool.touch(&[1]).unwrap();
            pool.free([1]).unwrap();
        }
        if by_hand {
            let taken = pool.pop_from_queue(7);
            pool.claim(&taken, None).unwrap();
        } else {
            take(&mut pool, 7);
        }
        for (block, prompt) in (1..8).zip([1, 12, 13, 14, 15, 16, 17]) {
            cache(&mut pool, Start::at(0), &[block], &[prompt], CHAINED);
            pool.free([block]).unwrap();
        }
        cached(&pool)
    };
    assert_eq!(reused(true), reused(false));
    assert_eq!(reused(true).last(), Some(&1));
}

#[test]
fn without_caching_a_policy_gets_no_notifications() {
    for policy in policies() {
        let mut pool = Pool::with_policy(4, false, policy).unwrap();
        assert!(!pool.keeps_history());
        take(&mut pool, 2);
        pool.insert_hash(key(&[1], CHAINED), 1, Some(4));
        pool.free([2, 1]).unwrap();
        pool.check_invariants().unwrap();
        assert_eq!(pool.order().collect::<Vec<_>>(), [2, 1, 3], "{policy:?}");
    }
    assert!(!Pool::new(4, true).unwrap().keeps_history());
}
