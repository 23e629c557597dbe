//! Tests journals of vLLM's pool: a sequence that contains every call, and the calls that a journal
//! omits.

use kvpool::retention::{Keep, Priority, Retention, TenantId, Then, Ttl};
use kvpool::{EvictionPolicy, Finish, Signal};
use kvpool_journal::{Entry, JournalReader, Journaled, VllmCall, VllmCalls, VllmConfig};
use kvpool_vllm::{Key, Pool, Start};

use super::world::{Call, ring};

fn key(number: u32) -> Key {
    let mut digest = [7; 32];
    digest[..4].copy_from_slice(&(number % 9).to_le_bytes());
    Key::new(&digest, number % 2).unwrap()
}

pub(crate) fn recorded(num_blocks: usize, caching: bool, policy: EvictionPolicy) -> Journaled<Pool> {
    let retention = None;
    Journaled::with_journal(VllmConfig { num_blocks, caching, policy, retention }, ring(1)).unwrap()
}

pub(crate) fn run(pool: &mut Journaled<Pool>, calls: &[Call]) {
    let mut held: Vec<u32> = Vec::new();
    for &(call, a, b, c) in calls {
        let block = a % 14;
        match call % 34 {
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
                let _ = pool.cache_full(
                    Start { first: (c % 4) as usize, before: None },
                    &blocks,
                    |at: usize| (c % 3 > 0).then(|| key(b + at as u32)),
                    4,
                    &mut Vec::new(),
                    None,
                );
            }
            11 => {
                let (key, num_tokens, parent) = (key(b), Some(c % 64), Some(&key(c)));
                pool.insert_hash(key, block, num_tokens, c % 5, parent);
            }
            12 => drop(pool.evict(block, c.is_multiple_of(2))),
            13 => drop(pool.move_hashes(block, b % 14)),
            14 => drop(pool.touch(&[a % 40])),
            15 => drop(pool.free([b % 14])),
            16 => drop(pool.remove_hashes(block)),
            17 => pool.chain_group(b % 2),
            18 => {
                let taken = pool.pop_from_queue((b % 3) as usize).0;
                pool.push_to_queue(&taken, c.is_multiple_of(2));
            }
            19 => {
                pool.reset();
            }
            20 => {
                let taken = pool.pop_from_queue((b % 3) as usize).0;
                if pool.claim(&taken, None).is_ok() {
                    held.extend(taken);
                }
            }
            21 => {
                let some: Vec<u32> = held.drain(..held.len().min(1)).collect();
                let _ = pool.unpin(&some);
            }
            22 => drop(pool.insert_in_index(key(b), block)),
            23 => drop(pool.remove_from_index(key(b), block)),
            24 => pool.clear_index(),
            25 => pool.set_ref_count(block, pool.ref_count(block)),
            26 => pool.set_hash(block, key(b), Some(c % 64)),
            27 => pool.reset_hash(block),
            // These two calls set retention hints. A pool without retention refuses them.
            28 | 29 => {
                let ttl = [None, Some(Ttl::Idle(f64::from(c % 8))), Some(Ttl::Absolute(f64::from(c % 8)))];
                let keep = match b % 4 {
                    0 => Keep::Demoted,
                    1 => Keep::Pinned,
                    _ => Keep::Priority(Priority::new((c % 101) as u8).unwrap()),
                };
                let retention = Retention { keep, ttl: ttl[(c % 3) as usize], then: Then::Demote };
                drop(pool.retain(&[block, b % 16], retention));
            }
            30 => drop(pool.assign_tenant(&[block], TenantId(b % 3))),
            31 => drop(pool.advance_time(f64::from(a % 20))),
            32 => {
                let finish =
                    [Finish::Unknown, Finish::Stop, Finish::Length, Finish::Aborted][(c % 4) as usize];
                let signal = Signal { finish, output_tokens: b.is_multiple_of(2).then_some(b % 900) };
                drop(pool.signal(&[block, a % 16], signal));
            }
            _ => {
                if pool.remove_from_queue(block) {
                    pool.push_to_queue(&[block], b.is_multiple_of(2));
                }
            }
        }
    }
}

fn records(pool: &mut Journaled<Pool>) -> Vec<VllmCall> {
    let image = pool.journal_image().unwrap();
    let entries = JournalReader::new(&image).unwrap().records().collect::<Result<Vec<_>, _>>().unwrap();
    let operation = |entry| match entry {
        Entry::Operation(operation, _) => Some(operation),
        Entry::Digest(_) => None,
    };
    entries.into_iter().filter_map(|(_, entry)| operation(entry)).collect()
}

#[test]
fn withheld_counts_and_their_refusals_are_not_recorded() {
    let mut pool = recorded(8, true, kvpool_policies::LRU);
    let mut out = Vec::new();
    pool.unrecorded(|pool| pool.set_num_free(2)).unwrap();
    pool.allocate(3, &mut out, None).unwrap_err();
    assert!(!pool.reset());
    let blocks = 8;
    pool.allocate(blocks, &mut out, None).unwrap_err();
    assert_eq!(records(&mut pool), [VllmCall::Allocate { blocks }]);
    assert!(out.is_empty());
}

#[test]
fn a_group_is_recorded_once_and_a_free_without_its_null_blocks() {
    let mut pool = recorded(8, true, kvpool_policies::LRU);
    pool.chain_group(3);
    pool.chain_group(3);
    pool.allocate(2, &mut Vec::new(), None).unwrap();
    pool.free([2, 0, 1]).unwrap();
    let told = [
        VllmCall::ChainGroup { group: 3 },
        VllmCall::Allocate { blocks: 2 },
        VllmCall::Free { blocks: vec![2, 1] },
    ];
    assert_eq!(records(&mut pool), told);
}
