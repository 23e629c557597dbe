//! Small examples that were computed by hand from the papers' pseudocode. Block n has content n. The
//! cache has 4 blocks unless stated otherwise.

use kvpool::evictor::Policy;
use kvpool_policies::{AdaptiveReplacement, S3Fifo};

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

/// Evicts `count` blocks.
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

#[test]
fn s3_fifo_evicts_content_used_once_and_keeps_returning_content() {
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
    add(&mut s3, &[1, 2]); // both ghosts: they enter main
    hit(&mut s3, &[1, 1, 1, 1, 1, 1]);
    hit(&mut s3, &[2, 2, 2]);
    // Both blocks pass through main three times, because of their hits. Then the older one is evicted
    // first.
    assert_eq!(evict(&mut s3, 2), [1, 2]);
}

/// At first, T1 = {1, 2, 3, 4} and p = 0. Block 2 is hit and moves to T2. Then ghosts of B1 raise p
/// until the victims come from T2.
#[test]
fn arc_learns_from_its_ghosts() {
    let mut arc = AdaptiveReplacement::new(5).unwrap();
    add(&mut arc, &[1, 2, 3, 4]);
    hit(&mut arc, &[2]);
    assert_eq!(evict(&mut arc, 2), [1, 3], "T1 is above its target of 0");
    // B1 may be only as long as T2. So the ghost of content 1 was dropped, and 3 is a ghost.
    add(&mut arc, &[1]);
    assert_eq!(evict(&mut arc, 1), [4]);
    // Now T1 = {1}, T2 = {2}, B1 = {4}. When 4 is admitted again, p becomes 1, and 4 enters T2.
    add(&mut arc, &[4]);
    assert_eq!(evict(&mut arc, 1), [2], "T1 is not above its target: the oldest of T2");
    // Now T1 = {1}, T2 = {4}, B2 = {2}. When 2 is admitted again, p becomes 0, and the victim comes
    // from T1.
    add(&mut arc, &[2]);
    assert_eq!(evict(&mut arc, 3), [1, 4, 2]);
}
