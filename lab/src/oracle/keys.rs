//! Checks the keys of vLLM's pool: compares the key of each block and the blocks of each key with the
//! model, by every call that reads them.

use kvpool_vllm::{Key, Pool};

use crate::Failure;
use crate::failure::same;
use crate::model::vllm::Model;
use crate::world::vllm_keys::{GROUPS, Keys};

/// Compares the keys of all blocks, and the blocks of all keys in the index, with the model.
pub(crate) fn check(pool: &Pool, model: &Model, drawn: &Keys) -> Result<(), Failure> {
    same("removals", &pool.removals(), &model.removals)?;
    let keys = pool.keys();
    for (id, block) in (0..).zip(&model.blocks) {
        same("hash of a block", &keys.hash_of(id), &block.hash)?;
        same("further keys of a block", &keys.further_keys(id), &block.further.as_slice())?;
    }
    for key in drawn.all() {
        let entry = model.entry(key);
        let first = entry.copies.first().copied();
        same("first block of a key", &(pool.find(key), keys.first(key)), &(first, first))?;
        same("blocks of a key", &keys.copies(key), &entry.copies)?;
        same("whether a key was shared", &keys.was_shared(key), &entry.was_shared)?;
    }
    Ok(())
}

fn bytes<'a>(keys: impl Iterator<Item = &'a Key>) -> Vec<Vec<u8>> {
    let mut keys: Vec<Vec<u8>> = keys.map(|key| key.as_bytes().to_vec()).collect();
    keys.sort();
    keys
}

/// Checks the other calls that read keys, and lookups of several keys at once.
pub(crate) fn look(pool: &Pool, model: &Model, drawn: &Keys) -> Result<(), Failure> {
    let keys = pool.keys();
    let ids = || 0..model.blocks.len() as u32;
    for key in drawn.all() {
        let leads: Vec<u32> = ids().filter(|&id| keys.leads_to(key, id)).collect();
        let mut expected = model.entry(key).copies.clone();
        expected.sort_unstable();
        same("blocks that a key leads to", &leads, &expected)?;
    }
    let listed: Vec<Key> = keys.iter().collect();
    same("keys that lead somewhere", &bytes(listed.iter()), &bytes(model.leading()))?;
    let number = model.leading().count();
    same("number of keys", &(keys.len(), keys.is_empty()), &(number, number == 0))?;
    let mut further: Vec<u32> = keys.blocks_with_further_keys().collect();
    further.sort_unstable();
    let expected: Vec<u32> = ids().filter(|&id| !model.blocks[id as usize].further.is_empty()).collect();
    same("blocks with further keys", &further, &expected)?;
    GROUPS.iter().try_for_each(|&group| find_runs(pool, model, drawn, group))
}

/// Number of digests of one lookup: more than the pool looks up at once.
const MANY: usize = 70;

/// Checks lookups of a few and of many digests that lead to blocks, with an unknown digest at either
/// end.
fn find_runs(pool: &Pool, model: &Model, drawn: &Keys, group: u32) -> Result<(), Failure> {
    let in_group = |key: &Key| Key::new(key.digest(), group).ok();
    let (found, missing): (Vec<Key>, Vec<Key>) =
        drawn.all().iter().filter_map(in_group).partition(|key| model.find(key).is_some());
    // Which keys come first depends on the state, so that all keys are tried in the course of a run.
    let turn = model.removals as usize + model.leading().count();
    let cycle = |len: usize| found.iter().cycle().skip(turn % found.len().max(1)).take(len);
    let stop = missing.iter().cycle().skip(turn % missing.len().max(1)).take(1);
    for len in [found.len().min(3), MANY] {
        let run: Vec<&Key> = cycle(len).chain(stop.clone()).chain(cycle(2)).collect();
        let mut blocks = vec![u32::MAX];
        pool.find_run(run.iter().map(|key| key.digest()), group, &mut blocks);
        let expected = run.iter().map_while(|key| model.find(key));
        let expected: Vec<u32> = std::iter::once(u32::MAX).chain(expected).collect();
        same("run of digests", &blocks, &expected)?;
    }
    Ok(())
}
