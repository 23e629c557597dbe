//! Checks the guarantees of the [`Policy`] trait for every policy.

use std::collections::BTreeSet;

use kvpool::BlockId;
use kvpool::evictor::{Candidate, Policy, Release};
use proptest::prelude::*;

use crate::{POLICIES, content, id};

/// Admits and releases a block whose content has this key.
fn add(policy: &mut dyn Policy, block: u32, key: u64) {
    policy.admit(id(block), content(key));
    policy.begin_release(&Release::default());
    policy.release(id(block));
}

fn hit(policy: &mut dyn Policy, block: u32) {
    policy.hit(id(block));
    policy.begin_release(&Release::default());
    policy.release(id(block));
}

fn drain(policy: &mut dyn Policy) -> Vec<u32> {
    std::iter::from_fn(|| policy.pop()).map(BlockId::get).collect()
}

/// Stores 60 contents in 8 blocks, some of them often. Returns the blocks that are cached at the end,
/// with their keys. The depth of a content is `key % 5`.
fn lived_in(policy: &mut dyn Policy) -> Vec<(u32, u64)> {
    let mut held: Vec<(u32, u64)> = Vec::new();
    for step in 0_u64..200 {
        let key = if step % 3 == 0 { step % 7 } else { step * 7 % 60 };
        if let Some(&(block, _)) = held.iter().find(|&&(_, known)| known == key) {
            hit(policy, block);
            continue;
        }
        let block = if held.len() < 8 {
            held.len() as u32 + 1
        } else {
            let victim = policy.pop().unwrap();
            let at = held.iter().position(|&(block, _)| block == victim.get()).unwrap();
            policy.evicted(victim, content(held.swap_remove(at).1));
            victim.get()
        };
        add(policy, block, key);
        held.push((block, key));
    }
    policy.check_invariants().unwrap();
    held
}

#[test]
fn names_are_those_that_users_write() {
    for (name, make) in POLICIES {
        assert_eq!(make(2).unwrap().name(), name);
    }
}

#[test]
fn a_popped_block_comes_back_as_the_next_of_its_kind() {
    for (name, make) in POLICIES {
        let mut policy = make(9).unwrap();
        lived_in(&mut *policy);
        for _ in 0..8 {
            let victim = policy.pop().unwrap();
            policy.unpop(victim);
            policy.unpop(victim); // no effect if the block is in the order
            assert_eq!(policy.pop(), Some(victim), "{name}");
            policy.check_invariants().unwrap();
        }
        assert_eq!(policy.pop(), None, "{name}");
    }
}

#[test]
fn counts_survive_pop_and_unpop() {
    for (name, make) in POLICIES {
        let (mut policy, mut untouched) = (make(9).unwrap(), make(9).unwrap());
        lived_in(&mut *policy);
        lived_in(&mut *untouched);
        let victims: Vec<_> = std::iter::from_fn(|| policy.pop()).collect();
        // The test puts the victims back from the last to the first, each as the next victim. So the
        // order is the same as before.
        victims.iter().rev().for_each(|&victim| policy.unpop(victim));
        let mut restored = drain(&mut *policy);
        let mut expected = drain(&mut *untouched);
        if name == "s3-fifo" {
            // `pop` of S3-FIFO decrements the hit counts of blocks that it skips, so their order may
            // change. The order still contains the same blocks, once each.
            restored.sort_unstable();
            expected.sort_unstable();
        }
        assert_eq!(restored, expected, "{name}");
    }
}

#[test]
fn a_taken_block_is_out_until_it_comes_back() {
    for (name, make) in POLICIES {
        let mut policy = make(9).unwrap();
        let held = lived_in(&mut *policy);
        for &(block, _) in &held {
            policy.take(id(block));
            policy.take(id(block));
            policy.check_invariants().unwrap();
            let mut others: Vec<_> = std::iter::from_fn(|| policy.pop()).collect();
            assert!(others.len() == 7 && !others.contains(&id(block)), "{name}");
            others.reverse();
            others.into_iter().for_each(|other| policy.unpop(other));
            policy.unpop(id(block));
        }
        assert_eq!(drain(&mut *policy).len(), 8, "{name}");
    }
}

#[test]
fn a_forgotten_block_never_comes_back_and_leaves_no_ghost() {
    for (name, make) in POLICIES {
        let (mut forgot, mut never) = (make(9).unwrap(), make(9).unwrap());
        for policy in [&mut *forgot, &mut *never] {
            for block in 1..=4 {
                add(policy, block, u64::from(block));
            }
        }
        add(&mut *forgot, 5, 50);
        hit(&mut *forgot, 5);
        forgot.forget(id(5));
        forgot.check_invariants().unwrap();
        forgot.unpop(id(5)); // the caller puts the block back by mistake
        forgot.forget(id(5));
        // The test gives the removed block its old content again. The policy treats the content as new.
        for policy in [&mut *forgot, &mut *never] {
            add(policy, 5, 50);
            add(policy, 6, 60);
        }
        assert_eq!(drain(&mut *forgot), drain(&mut *never), "{name}");
    }
}

#[test]
fn a_cleared_policy_is_a_new_one() {
    for (name, make) in POLICIES {
        let (mut cleared, mut new) = (make(9).unwrap(), make(9).unwrap());
        lived_in(&mut *cleared);
        cleared.clear();
        cleared.check_invariants().unwrap();
        assert_eq!(cleared.pop(), None, "{name}");
        // If `clear` did not remove everything, the policy would find old ghosts or hit counts for the
        // next blocks.
        let (mut first, mut second) = (lived_in(&mut *cleared), lived_in(&mut *new));
        first.sort_unstable();
        second.sort_unstable();
        assert_eq!(first, second, "{name}");
        assert_eq!(drain(&mut *cleared), drain(&mut *new), "{name}");
    }
}

#[test]
fn a_pool_may_grow_at_any_moment() {
    for (name, make) in POLICIES {
        let mut policy = make(1).unwrap();
        assert_eq!(policy.pop(), None, "{name}");
        add(&mut *policy, 1, 1); // block 1 does not exist yet
        assert_eq!(policy.pop(), None, "{name}");
        for blocks in [2, 2, 3, 9, 5] {
            policy.grow(blocks).unwrap();
            policy.check_invariants().unwrap();
        }
        lived_in(&mut *policy);
        policy.grow(20).unwrap();
        policy.check_invariants().unwrap();
        (9..20).for_each(|block| add(&mut *policy, block, u64::from(block) + 100));
        policy.check_invariants().unwrap();
        let order: BTreeSet<_> = drain(&mut *policy).into_iter().collect();
        assert_eq!(order, (1..20).collect(), "{name}");
    }
}

#[test]
fn the_largest_numbers_are_accepted() {
    for (name, make) in POLICIES {
        let mut policy = make(4).unwrap();
        let deepest = kvpool::evictor::Content { key: u64::MAX, depth: u32::MAX };
        for block in 1..4 {
            policy.admit(id(block), deepest);
            for _ in 0..1000 {
                policy.hit(id(block));
            }
            policy.release(id(block));
        }
        for _ in 0..100 {
            let victim = policy.pop().unwrap_or_else(|| panic!("{name} has a victim"));
            policy.evicted(victim, deepest);
            policy.admit(victim, deepest);
            policy.release(victim);
            policy.check_invariants().unwrap();
        }
    }
}

proptest! {
    /// Makes random calls in any order, of single blocks and of consecutive blocks, also with blocks
    /// that do not exist. The following must hold:
    ///
    /// - No call panics, and every invariant holds.
    /// - Between two returns to the order, a block is popped at most once. There is a victim as long as
    ///   a block is in the order.
    /// - The same calls give the same order, and calls with no blocks change nothing.
    /// - A call with several blocks equals one call per block.
    #[test]
    fn random_calls_keep_the_contract(
        policy in 0..POLICIES.len(),
        calls in prop::collection::vec((0_u8..30, 0_u32..12, 0_u64..16), 1..150),
    ) {
        let (name, make) = POLICIES[policy];
        let (mut policy, mut twin) = (make(8).unwrap(), make(8).unwrap());
        let mut num_blocks = 8;
        // `must` contains the blocks that have to be in the order now, and `may` the blocks that are
        // allowed to be in it.
        let (mut must, mut may) = (BTreeSet::new(), BTreeSet::new());
        for (call, block, key) in calls {
            let real = |block: u32| block > 0 && block < num_blocks;
            let run: Vec<_> = (block..block + 1 + key as u32 % 4).map(id).collect();
            let released: Vec<_> = run.iter().map(|&block| Candidate { block, depth: 0 }).collect();
            let admitted: Vec<_> = run.iter().map(|&block| (block, content(key))).collect();
            let mut popped = [None, None];
            twin.hit_all(&[]);
            twin.release_all(&[]);
            twin.admit_all(&[]);
            for (nth, (policy, popped)) in [&mut policy, &mut twin].into_iter().zip(&mut popped).enumerate() {
                match call {
                    24..26 if nth == 1 => run.iter().for_each(|&block| policy.hit(block)),
                    26..28 if nth == 1 => run.iter().for_each(|&block| policy.release(block)),
                    28..30 if nth == 1 => admitted.iter()
                        .for_each(|&(block, content)| policy.admit(block, content)),
                    0..5 => policy.admit(id(block), content(key)),
                    5..8 => policy.hit(id(block)),
                    8 => policy.begin_release(&Release::default()),
                    9..15 => policy.release(id(block)),
                    15..18 => *popped = policy.pop(),
                    18 => policy.take(id(block)),
                    19 => policy.unpop(id(block)),
                    20 => policy.evicted(id(block), content(key)),
                    21 => policy.forget(id(block)),
                    22 if key == 0 => policy.clear(),
                    24..26 => policy.hit_all(&run),
                    26..28 => policy.release_all(&released),
                    28..30 => policy.admit_all(&admitted),
                    _ => policy.grow(block as usize).unwrap(),
                }
                policy.check_invariants().unwrap();
            }
            match call {
                0..8 | 20 => {
                    must.remove(&block);
                }
                8 => {}
                24..26 | 28..30 => run.iter().for_each(|block| _ = must.remove(&block.get())),
                9..15 | 19 | 26..28 => {
                    let run = if call < 26 { &run[..1] } else { &run[..] };
                    for block in run.iter().map(|block| block.get()).filter(|&block| real(block)) {
                        must.insert(block);
                        may.insert(block);
                    }
                }
                15..18 => {
                    prop_assert_eq!(popped[0], popped[1], "{}", name);
                    match popped[0] {
                        Some(victim) => {
                            prop_assert!(may.remove(&victim.get()), "{name} gives up {victim}");
                            must.remove(&victim.get());
                        }
                        None => prop_assert!(must.is_empty(), "{name} keeps {must:?}"),
                    }
                }
                18 | 21 => {
                    must.remove(&block);
                    may.remove(&block);
                }
                22 if key == 0 => {
                    must.clear();
                    may.clear();
                }
                _ => num_blocks = num_blocks.max(block),
            }
        }
        let rest = drain(&mut *policy);
        prop_assert_eq!(&rest, &drain(&mut *twin));
        let given: BTreeSet<_> = rest.iter().copied().collect();
        prop_assert!(given.len() == rest.len() && given.is_superset(&must)
            && given.is_subset(&may), "{}", name);
    }
}
