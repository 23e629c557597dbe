//! Before each lookup that acquires blocks, compares the results of a probe and of a lookup that
//! acquires none with the model. Both must change nothing.

use crate::model::reference::indices;
use kvpool_journal::{ChainRecord, PoolCall};

use crate::Failure;
use crate::failure::same;
use crate::world::pool::PoolWorld;

pub(crate) fn check(world: &mut PoolWorld, call: &PoolCall) -> Result<(), Failure> {
    match call {
        PoolCall::Match { chain, max_blocks, .. } => look(world, chain, 0, *max_blocks),
        PoolCall::LookupRefreshing { chain, start, max_blocks } => look(world, chain, *start, *max_blocks),
        _ => Ok(()),
    }
}

fn look(world: &mut PoolWorld, record: &ChainRecord, start: usize, most: usize) -> Result<(), Failure> {
    let chain = world.subject.chain(record).map_err(|error| Failure::new("replay", error.to_string()))?;
    let (path, refused) = (world.prompts.path(record), world.model.refuses_lookup(record));
    let (pool, reference) = (world.pool(), world.model.pool());
    let before = (pool.free_order(), pool.eviction_order(), pool.stats());
    let (probe, found) = (pool.probe(&chain, most), pool.lookup(&chain, start, most));
    same("state after a lookup", &(pool.free_order(), pool.eviction_order(), pool.stats()), &before)?;
    same("outcome of lookup and probe", &(found.is_err(), probe.is_err()), &(refused, refused))?;
    let (Ok(probe), Ok(found)) = (probe, found) else { return Ok(()) };

    let expected = world.model.find(&path, start, most);
    same("blocks of lookup", &(found.start(), indices(found.blocks())), &(start, expected.clone()))?;
    let hashes = chain.hashes().get(start..).and_then(|hashes| hashes.get(..found.len())).unwrap_or(&[]);
    same("hashes of lookup", &found.hashes(), &hashes)?;
    if record.has_tokens {
        let last = found.link().map(kvpool::ChainLink::hash);
        same("link of lookup", &last, &found.hashes().last().copied())?;
    }
    let cached = world.model.find(&path, 0, most);
    let idle = cached.iter().filter(|&&block| reference.references(block).0 == 0).count();
    let counted = (probe.cached_blocks, probe.idle_blocks, probe.pending_blocks);
    let asked = path.len().min(most);
    let is_pending = |at: &usize| {
        let content = reference.content(b"", &path, *at);
        (1..reference.num_blocks()).any(|block| reference.registered_content(block) == Some(&content))
    };
    let pending = (cached.len()..asked).take_while(is_pending).count();
    same("probe", &counted, &(cached.len(), idle, pending))?;
    let indexed: Vec<bool> = (0..chain.len()).map(|at| pool.is_indexed(&chain, at)).collect();
    let expected: Vec<bool> = (0..path.len()).map(|at| is_pending(&at)).collect();
    same("is_indexed", &indexed, &expected)?;
    world.subject.teach_match(found); // a later call acquires this match
    Ok(())
}
