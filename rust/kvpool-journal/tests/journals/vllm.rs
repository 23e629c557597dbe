//! Journals of vLLM's pool: random runs, its own calls and vLLM's writes by hand among them.

use kvpool_journal::{Goal, Language, Options, replay, shrink};
use kvpool_vllm::{Key, Pool, Start};
use proptest::prelude::*;

use super::exports::exported;
use super::world::{Call, calls, ring};

fn key(number: u32) -> Key {
    let mut digest = [7; 32];
    digest[..4].copy_from_slice(&(number % 9).to_le_bytes());
    Key::new(&digest, number % 2).unwrap()
}

pub(crate) fn run(pool: &mut Pool, calls: &[Call]) {
    let mut held: Vec<u32> = Vec::new();
    for &(call, a, b, c) in calls {
        let block = a % 14;
        match call % 29 {
            0..4 => {
                let before = held.len();
                if pool.allocate((a % 5) as usize, &mut held, None).is_err() {
                    held.truncate(before);
                }
            }
            4..7 => {
                let some: Vec<u32> = held.drain(..held.len().min(b as usize % 4)).collect();
                let _ = pool.free(some);
            }
            7 => {
                if let Some(found) = pool.find(&key(b)) {
                    pool.touch(&[found]).unwrap();
                    held.push(found);
                }
            }
            8..11 => {
                let blocks: Vec<u32> = held.iter().copied().rev().take(b as usize % 3).collect();
                let keys = |at: usize| (c % 3 > 0).then(|| key(b + at as u32));
                let start = Start { first: (c % 4) as usize, before: None };
                let _ = pool.cache_full(start, &blocks, keys, 4, &mut Vec::new(), None);
            }
            11 => drop(pool.insert_hash_behind(key(b), block, Some(c % 64), c % 5, Some(&key(c)))),
            12 => drop(pool.evict(block, c.is_multiple_of(2))),
            13 => drop(pool.move_hashes(block, b % 14)),
            14 => drop(pool.touch(&[a % 40])),
            15 => drop(pool.free([b % 14])),
            16 => drop(pool.remove_hashes(block)),
            17 => pool.chain_group(b % 2),
            18 => {
                let taken = pool.pop_from_queue((b % 3) as usize);
                pool.push_to_queue(&taken, c.is_multiple_of(2));
            }
            19 => {
                let _ = pool.reset();
            }
            20 => {
                let taken = pool.pop_from_queue((b % 3) as usize);
                if pool.claim(&taken, None).is_ok() {
                    held.extend(taken);
                }
            }
            21 => {
                let some: Vec<u32> = held.drain(..held.len().min(1)).collect();
                let _ = pool.unpin(&some);
            }
            22 => drop(pool.insert_in_index(key(b), block)),
            23 => drop(pool.remove_from_index(&key(b), block)),
            24 => pool.clear_index(),
            25 => pool.set_ref_count(block, pool.ref_count(block)),
            26 => pool.set_hash(block, key(b), Some(c % 64)),
            27 => pool.reset_hash(block),
            _ => {
                if pool.remove_from_queue(block) {
                    pool.push_to_queue(&[block], b.is_multiple_of(2));
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn vllms_pool_replays(policy in prop::sample::select(vec!["lru", "s3-fifo", "arc"]), caching in any::<bool>(), calls in calls(150), at in any::<u32>()) {
        let policy = kvpool_policies::by_name(policy).unwrap();
        let mut pool = Pool::with_journal(14, caching, policy, ring(1)).unwrap();
        let mut without = Pool::with_policy(14, caching, policy).unwrap();
        run(&mut pool, &calls);
        run(&mut without, &calls);
        prop_assert_eq!(pool.order().collect::<Vec<_>>(), without.order().collect::<Vec<_>>());
        let recorded = pool.journal().unwrap().operations();
        let image = pool.take_journal().unwrap().image().unwrap();
        let report = replay(&image, Options::default(), &mut |_| true).unwrap();
        prop_assert_eq!(report.difference, None);
        prop_assert_eq!(report.operations, recorded);
        if recorded > 0 {
            let wanted = u64::from(at) % recorded;
            let shrunk = shrink(&image, Goal::Answer(wanted), &mut |_| true).unwrap().unwrap();
            prop_assert!(shrunk.operations.len() <= wanted as usize + 1);
            let report = replay(&shrunk.journal, Options::default(), &mut |_| true).unwrap();
            prop_assert_eq!(report.difference, None);
        }
        prop_assert!(exported(&image, Language::Rust).unwrap().contains("fn journal()"));
    }
}
