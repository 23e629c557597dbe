//! Small histories worked by hand from the papers' pseudocode. Block n holds content n; a cache of 4 unless said.

use kvpool::evictor::{Content, Policy};
use kvpool_policies::S3Fifo;
use kvpool_policies::{AdaptiveReplacement, Gdsf, Lfu, LfuDa, Lrfu, Sieve, TwoQ};

use crate::{content, id};

fn add(policy: &mut dyn Policy, blocks: &[u32]) {
    for &block in blocks {
        policy.admit(id(block), content(u64::from(block)));
        policy.release(id(block));
    }
}

fn hit(policy: &mut dyn Policy, blocks: &[u32]) {
    for &block in blocks {
        policy.hit(id(block));
        policy.release(id(block));
    }
}

/// Evicts so many.
fn evict(policy: &mut dyn Policy, count: usize) -> Vec<u32> {
    let mut victims = Vec::new();
    for _ in 0..count {
        let victim = policy.pop().unwrap();
        policy.evicted(victim, content(u64::from(victim.get())));
        policy.check_invariants().unwrap();
        victims.push(victim.get());
    }
    victims
}

/// The example of the SIEVE paper in small: the hand stays where the last victim was, so what came after it is looked at
/// before what was spared.
#[test]
fn sieve_goes_on_where_it_stopped() {
    let mut sieve = Sieve::new(8).unwrap();
    add(&mut sieve, &[1, 2, 3, 4]);
    hit(&mut sieve, &[1, 3]);
    assert_eq!(evict(&mut sieve, 1), [2], "1 is spared, its bit cleared");
    add(&mut sieve, &[5]);
    // FIFO would go back to 1; the hand is at 3.
    assert_eq!(evict(&mut sieve, 2), [4, 5], "3 is spared");
    // Behind the newest, the hand goes on with the oldest.
    add(&mut sieve, &[6]);
    assert_eq!(evict(&mut sieve, 3), [1, 3, 6]);
}

#[test]
fn s3_fifo_lets_go_of_what_came_once_and_keeps_what_comes_back() {
    let mut s3 = S3Fifo::new(11).unwrap(); // small 1, ghosts 9
    add(&mut s3, &[1, 2, 3, 4]);
    hit(&mut s3, &[2, 2]);
    assert_eq!(evict(&mut s3, 2), [1, 3], "2 goes on to main, 1 and 3 are ghosts");
    add(&mut s3, &[1]);
    assert_eq!(evict(&mut s3, 1), [4], "1 came back and is in main behind 2");
    assert_eq!(evict(&mut s3, 2), [2, 1], "promotion has used up the count of 2");
    add(&mut s3, &[2]);
    hit(&mut s3, &[2]);
    add(&mut s3, &[5, 6]);
    assert_eq!(evict(&mut s3, 3), [5, 6, 2], "evicted from main it left no ghost: 2 was new");
}

#[test]
fn s3_fifo_counts_to_three() {
    let mut s3 = S3Fifo::new(41).unwrap(); // small 4
    add(&mut s3, &[1, 2]);
    evict(&mut s3, 2);
    add(&mut s3, &[1, 2]); // both ghosts: in main
    hit(&mut s3, &[1, 1, 1, 1, 1, 1]);
    hit(&mut s3, &[2, 2, 2]);
    // Three rounds each, and then the older first.
    assert_eq!(evict(&mut s3, 2), [1, 2]);
}

/// T1 = {1, 2, 3, 4}, p = 0; 2 is hit; then ghosts of B1 raise p until T2 pays.
#[test]
fn arc_learns_from_its_ghosts() {
    let mut arc = AdaptiveReplacement::new(5).unwrap();
    add(&mut arc, &[1, 2, 3, 4]);
    hit(&mut arc, &[2]);
    assert_eq!(evict(&mut arc, 2), [1, 3], "T1 is above its target of 0");
    // B1 may be as long as T2: 1 has been dropped, 3 is there.
    add(&mut arc, &[1]);
    assert_eq!(evict(&mut arc, 1), [4]);
    // T1 = {1}, T2 = {2}, B1 = {4}. 4 comes back: p = 1, and it is T2's.
    add(&mut arc, &[4]);
    assert_eq!(evict(&mut arc, 1), [2], "T1 is not above its target: the oldest of T2");
    // T1 = {1}, T2 = {4}, B2 = {2}. 2 comes back: p = 0, and T1 pays.
    add(&mut arc, &[2]);
    assert_eq!(evict(&mut arc, 3), [1, 4, 2]);
}

/// Kin = 1, Kout = 2 in a cache of 4.
#[test]
fn two_q_wants_a_block_to_come_back() {
    let mut two_q = TwoQ::new(5).unwrap();
    add(&mut two_q, &[1, 2, 3]);
    hit(&mut two_q, &[1, 1]); // the same use still going on
    assert_eq!(evict(&mut two_q, 2), [1, 2]);
    add(&mut two_q, &[1, 4]);
    // A1in = {3, 4}, Am = {1}.
    assert_eq!(evict(&mut two_q, 1), [3]);
    assert_eq!(evict(&mut two_q, 1), [1], "A1in has its share: Am pays, and leaves no ghost");
    // A1out = {2, 3}: 2 goes to Am, 1 is new.
    add(&mut two_q, &[1, 2]);
    assert_eq!(evict(&mut two_q, 3), [4, 2, 1]);
}

#[test]
fn lfu_keeps_what_was_used_often_and_dynamic_aging_lets_it_go() {
    let history = |policy: &mut dyn Policy| {
        add(policy, &[1, 2, 3]);
        hit(policy, &[1, 1, 1, 2]);
        // New ones come in, each for the one before it.
        (4..10).map(|block| (evict(policy, 1)[0], add(policy, &[block])).0).collect::<Vec<_>>()
    };
    let mut lfu = Lfu::new(12).unwrap();
    assert_eq!(history(&mut lfu), [3, 4, 5, 6, 7, 8], "1 and 2 stay for good");
    let mut lfu_da = LfuDa::new(12).unwrap();
    // Keys: 1: 4, 2: 2, 3: 1. Age 1 after 3: 4 comes with 2, behind 2; age 2: 5 with 3; age 2 (4): 6 with 3;
    // age 3 (5): 7 with 4, behind 1; age 3 (6): 8 with 4; age 4 (1): gone.
    assert_eq!(history(&mut lfu_da), [3, 2, 4, 5, 6, 1]);
}

#[test]
fn lrfu_remembers_and_forgets() {
    // A half-life is one capacity of 4 admissions.
    let mut lrfu = Lrfu::with(13, 16 * 4 / 12, 1).unwrap(); // 12 blocks, half-life of 4 admissions (5/16 of 12: 3.75)
    add(&mut lrfu, &[1]);
    hit(&mut lrfu, &[1]); // 2 at time 1
    add(&mut lrfu, &[2, 3]); // 1 at times 2 and 3
    let mut early = lrfu.clone();
    assert_eq!(evict(&mut early, 3), [2, 3, 1], "worth one half-life more");
    add(&mut lrfu, &[4, 5, 6]); // times 4 to 6: more than a half-life later
    assert_eq!(evict(&mut lrfu, 6), [2, 3, 4, 1, 5, 6]);
    // 1 comes back with what is left of its 2, 7 with nothing: the 1 admitted first is worth more.
    add(&mut lrfu, &[1, 7]);
    assert_eq!(evict(&mut lrfu, 2), [7, 1]);
}

/// With a half-life that no history lives to see, only counts matter.
#[test]
fn lrfu_without_decay_is_lfu() {
    let mut lrfu = Lrfu::with(20, u32::MAX, 0).unwrap();
    let blocks: Vec<_> = (1..20).collect();
    add(&mut lrfu, &blocks);
    // Block n is used 1 + 7 n mod 19 times in all, the last uses in no order of the counts.
    let uses = |block: u32| block * 7 % 19;
    for &block in blocks.iter().rev() {
        hit(&mut lrfu, &vec![block; uses(block) as usize]);
    }
    let mut by_uses = blocks.clone();
    by_uses.sort_by_key(|&block| uses(block));
    assert_eq!(evict(&mut lrfu, 19), by_uses);
}

#[test]
fn gdsf_keeps_what_is_dear_to_recompute() {
    let mut gdsf = Gdsf::with_doubling(8, 10).unwrap();
    for (block, depth) in [(1, 0), (2, 30), (3, 10), (4, 0)] {
        gdsf.admit(id(block), Content { key: u64::from(block), depth });
        gdsf.release(id(block));
    }
    hit(&mut gdsf, &[4, 4]); // worth 3 x 1
    // 1: 1, 3: 2, 4: 3, 2: 4.
    assert_eq!(evict(&mut gdsf, 3), [1, 3, 4]);
    // The age is 3: new and cheap is worth as much as old and dear, and was used later.
    gdsf.admit(id(5), Content { key: 5, depth: 0 });
    gdsf.release(id(5));
    assert_eq!(evict(&mut gdsf, 2), [2, 5]);
}
