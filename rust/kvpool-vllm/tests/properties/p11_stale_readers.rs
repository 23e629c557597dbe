//! Property 11 for vLLM's lookups: a reader may keep the blocks of a lookup without holding references.
//! If it compares [`Pool::removals`] before and after reading, it never accepts data that a later owner
//! of the blocks wrote.
//!
//! Bugs: mooncake#850, vllm#47021: the result of a lookup was used after its blocks had been given to
//! another request.
//!
//! An implementation fails this property if it checks after reading whether the key still has the
//! block. Meanwhile the key may have lost the block and got it back.

use std::cell::Cell;

use proptest::test_runner::{Config, FileFailurePersistence, TestRunner};

use super::*;

/// The prompts of the requests. The first two prompts have their first block in common.
const PROMPTS: [[u8; 8]; 3] = [[1, 1, 1, 1, 2, 2, 2, 2], [1, 1, 1, 1, 3, 3, 3, 3], [4, 4, 4, 4, 5, 5, 5, 5]];

#[derive(Clone, Debug)]
enum Act {
    Serve(usize, bool),
    End(usize),
    Evict(u32),
    Reset,
    Part(usize),
    LookUp(usize),
    CopyOne,
}

/// A reader that copies the data of some blocks, one block at a time.
struct Reader {
    removals: u64,
    blocks: Vec<u32>,
    expected: Vec<u64>,
    copied: Vec<u64>,
}

#[test]
fn property_11_a_lookup_is_valid_exactly_until_a_removal() {
    let act = prop_oneof![
        5 => (0usize..3, any::<bool>()).prop_map(|(prompt, looks)| Act::Serve(prompt, looks)),
        4 => (0usize..4).prop_map(Act::End),
        1 => (0u32..6).prop_map(Act::Evict),
        1 => Just(Act::Reset),
        1 => (0usize..3).prop_map(Act::Part),
        3 => (0usize..3).prop_map(Act::LookUp),
        6 => Just(Act::CopyOne),
    ];
    let (accepted, torn) = (Cell::new(0), Cell::new(0));
    let runner = &mut TestRunner::new(Config {
        cases: 1000,
        source_file: Some(file!()),
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..Config::default()
    });
    let setting = (prop::sample::select(policies().collect::<Vec<_>>()), prop::collection::vec(act, 1..100));
    let result = runner.run(&setting, |(policy, acts)| {
        let mut pool = Pool::with_policy(6, true, policy).unwrap();
        let mut memory = [0u64; 6];
        let (mut tables, mut stamp): (Vec<Vec<u32>>, u64) = (Vec::new(), 0);
        let mut reader: Option<Reader> = None;
        let found = |pool: &Pool, prompt: usize| -> Vec<u32> {
            (1..=2).map_while(|blocks| pool.find(&key(&PROMPTS[prompt][..blocks * B]))).collect()
        };
        for act in acts {
            match act {
                Act::Serve(prompt, looks) => {
                    let mut table = if looks { found(&pool, prompt) } else { Vec::new() };
                    pool.touch(&table).unwrap();
                    let hits = table.len();
                    if pool.allocate(2 - hits, &mut table, None).is_err() {
                        pool.free(table).unwrap();
                        continue;
                    }
                    // The request that owns the blocks writes them immediately. They are cached later.
                    stamp += 1;
                    table[hits..].iter().for_each(|&block| memory[block as usize] = stamp);
                    let key_of = |at: usize| Some(key(&PROMPTS[prompt][..(hits + at + 1) * B]));
                    let start = Start { first: hits, before: hits.checked_sub(1).map(|last| table[last]) };
                    pool.cache_full(start, &table[hits..], key_of, B, &mut Vec::new(), None).unwrap();
                    tables.push(table);
                }
                Act::End(nth) if !tables.is_empty() => {
                    let table = tables.remove(nth % tables.len());
                    pool.free(table.into_iter().rev()).unwrap();
                }
                Act::End(_) => {}
                Act::Evict(block) => drop(pool.evict(block, true).unwrap()),
                Act::Reset => drop(pool.reset()),
                Act::Part(prompt) => {
                    // Caches a block under the start of a prompt. Later the block gets other data.
                    let Some(table) = (pool.num_free() > 0).then(|| take(&mut pool, 1)) else { continue };
                    stamp += 1;
                    memory[table[0] as usize] = stamp;
                    pool.insert_hash(key(&PROMPTS[prompt][..2]), table[0], Some(2));
                    tables.push(table);
                }
                Act::LookUp(prompt) => {
                    let blocks = found(&pool, prompt);
                    let expected = blocks.iter().map(|&block| memory[block as usize]).collect();
                    let (removals, copied) = (pool.removals(), Vec::new());
                    reader =
                        Some(Reader { removals, blocks, expected, copied }).filter(|r| !r.blocks.is_empty());
                }
                Act::CopyOne => {
                    let Some(one) = &mut reader else { continue };
                    one.copied.push(memory[one.blocks[one.copied.len()] as usize]);
                    if one.copied.len() < one.blocks.len() {
                        continue;
                    }
                    let is_valid = pool.removals() == one.removals;
                    assert!(!is_valid || one.copied == one.expected, "{:?} was accepted", one.copied);
                    accepted.set(accepted.get() + usize::from(is_valid));
                    torn.set(torn.get() + usize::from(one.copied != one.expected));
                    reader = None;
                }
            }
            pool.check_invariants().unwrap();
        }
        Ok(())
    });
    result.unwrap_or_else(|failure| panic!("{failure}"));
    let (accepted, torn) = (accepted.get(), torn.get());
    assert!(accepted > 100 && torn > 50, "{accepted} lookups stood, {torn} were of later owners");
}
