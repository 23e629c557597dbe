//! Compares the order of eviction, the order of the free list, the numbers of blocks in each state, the
//! counters and every block of a pool with the model.

use crate::model::reference::indices;
use kvpool::retention::TenantId;
use kvpool::{BlockId, BlockPool, BlockState};

use crate::Failure;
use crate::failure::same;
use crate::model::pool::{Counted, Model};
use crate::model::retention::{Retained, TENANT};
use crate::world::prompts::Prompts;

pub(crate) fn check(pool: &BlockPool, model: &Model, prompts: &Prompts) -> Result<(), Failure> {
    let reference = model.pool();
    same("free order", &indices(&pool.free_order()), &reference.free)?;
    if model.knows_order() {
        same("eviction order", &indices(&pool.eviction_order()), &reference.eviction_order())?;
    }
    let stats = pool.stats();
    same("sums", &(stats.free, stats.cached_free, stats.active, stats.fenced), &reference.sums())?;
    same("registered", &(stats.registered, stats.registered_active), &reference.registered())?;
    same("epoch", &stats.epoch, &model.epoch())?;
    let counted = Counted {
        allocated: stats.allocated,
        evicted: stats.evicted,
        hits: stats.hits,
        misses: stats.misses,
        collisions: stats.collisions,
    };
    same("counters", &counted, &model.counted())?;
    same("duplicates dropped", &stats.duplicates_dropped, &reference.dropped())?;
    same(
        "blocks",
        &(pool.num_blocks(), pool.num_usable()),
        &(reference.num_blocks(), reference.num_blocks() - 1),
    )?;
    same("available", &pool.num_available(), &reference.available())?;
    same("retention", &pool.retention_stats(), &model.retained().map(Retained::stats))?;
    if let Some(retained) = model.retained() {
        let blocks = pool.tenant_blocks(TenantId(TENANT)).ok();
        same("blocks of a tenant", &blocks, &Some(retained.tenant_blocks()))?;
        same("time", &pool.retention_time(), &retained.now())?;
    }
    (1..pool.num_blocks()).try_for_each(|block| check_block(pool, model, prompts, block))
}

fn check_block(pool: &BlockPool, model: &Model, prompts: &Prompts, block: usize) -> Result<(), Failure> {
    let (id, reference) = (BlockId::new(block as u32), model.pool());
    let (references, fences) = reference.references(block);
    let found = (pool.ref_count(id).map(|n| n as usize), pool.fence_references(id) as usize);
    same("references", &found, &(Some(references), fences))?;
    same("holders", &(pool.num_holders(id) as usize), &(references - fences))?;
    let state = match (references, fences) {
        (0, _) if reference.evictable.contains(&block) => BlockState::CachedFree,
        (0, _) => BlockState::Free,
        (references, fences) if references == fences => BlockState::Fenced,
        _ => BlockState::Active,
    };
    same("state of a block", &pool.state(id), &Some(state))?;
    let content = reference.registered_content(block);
    same(
        "hash of a block",
        &pool.hash_of(id).map(|hash| hash.key()),
        &content.map(|(_, _, path)| prompts.key(path, pool.epoch())),
    )?;
    same("computed", &pool.is_computed(id), &reference.is_computed(block))?;
    same("registered", &pool.is_registered(id), &reference.is_registered(block))?;
    same("depth of a block", &pool.depth_of(id), &content.map(|(_, _, path)| path.len() as u32 - 1))?;
    // Compare the copies of each content in the order in which lookups return them.
    let copies = pool.hash_of(id).map_or_else(Vec::new, |hash| indices(&pool.copies(&hash)));
    same("copies", &copies.as_slice(), &reference.copies_of(block))?;
    let parent = content.filter(|(_, _, path)| path.len() > 1);
    let parent = parent.map(|(_, _, path)| prompts.key(&path[..path.len() - 1], pool.epoch()));
    same("parent of a block", &pool.parent_of(id).map(|hash| hash.key()), &parent)
}
