//! Compares the block tables and states of requests, the planned copies, and the pool of every tier
//! with the model.

use crate::model::reference::{ReferencePool, indices};
use kvpool::{BlockId, CacheManager, Place};

use crate::Failure;
use crate::failure::same;
use crate::model::manager::Model;
use crate::world::prompts::Prompts;
use crate::world::requests::{NUMBERS, id, path};

const fn place(place: Place) -> (usize, usize) {
    (place.tier, place.block.index())
}

pub(crate) fn check(manager: &CacheManager, model: &Model, prompts: &Prompts) -> Result<(), Failure> {
    let reference = model.manager();
    for number in NUMBERS {
        let expected = reference.requests.get(&number).map(|request| {
            let external = request.external.unwrap_or(request.computed);
            let counts = (request.tokens.len(), request.computed, external);
            (request.state, request.tier, counts, request.blocks.clone())
        });
        let found = manager.request(&id(number)).ok().map(|info| {
            let table = manager.block_table(&id(number)).map(indices).unwrap_or_default();
            let counts = (info.tokens, info.computed_tokens, info.external_end);
            (info.state, info.tier, counts, table)
        });
        same("a request", &found, &expected)?;
    }
    let copies: Vec<_> =
        manager.tiers().pending_copies().map(|copy| (place(copy.src), place(copy.dst))).collect();
    same("planned copies", &copies, &reference.planned_copies())?;
    same("swaps", &manager.num_swaps(), &reference.swaps().len())?;
    same("KV of the model", &reference.check_kv(), &Ok(()))?;
    for (tier, expected) in reference.pools.iter().enumerate() {
        let pool = manager.tiers().pool(tier);
        let pool = pool.map_err(|error| Failure::new("tiers", error.to_string()))?;
        check_pool(pool, expected, prompts)?;
    }
    same("tiers", &manager.tiers().len(), &reference.pools.len())
}

fn check_pool(pool: &kvpool::BlockPool, expected: &ReferencePool, prompts: &Prompts) -> Result<(), Failure> {
    same("free order", &indices(&pool.free_order()), &expected.free)?;
    same("eviction order", &indices(&pool.eviction_order()), &expected.eviction_order())?;
    let stats = pool.stats();
    same("sums", &(stats.free, stats.cached_free, stats.active, stats.fenced), &expected.sums())?;
    same("registered", &(stats.registered, stats.registered_active), &expected.registered())?;
    same("duplicates dropped", &stats.duplicates_dropped, &expected.dropped())?;
    same("blocks", &pool.num_blocks(), &expected.num_blocks())?;
    for block in 1..pool.num_blocks() {
        let at = BlockId::new(block as u32);
        let references = pool.ref_count(at).map(|n| n as usize);
        let found = (references, pool.fence_references(at) as usize);
        let (references, fences) = expected.references(block);
        same("references", &found, &(Some(references), fences))?;
        let content = expected.registered_content(block);
        let key = content.map(|(_, epoch, tokens)| prompts.key(&path(tokens, prompts.block_size), *epoch));
        same("hash of a block", &pool.hash_of(at).map(|hash| hash.key()), &key)?;
        same("computed", &pool.is_computed(at), &expected.is_computed(block))?;
        let copies = pool.hash_of(at).map_or_else(Vec::new, |hash| indices(&pool.copies(&hash)));
        same("copies", &copies.as_slice(), &expected.copies_of(block))?;
    }
    Ok(())
}
