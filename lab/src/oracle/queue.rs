//! Checks that the queue of vLLM's pool contains the blocks of the model, in its order if the model
//! knows the order. Under any policy, a cached block is reused after all blocks without a content and
//! after all free blocks that depend on it.

use kvpool_vllm::Pool;

use crate::Failure;
use crate::failure::{holds, same};
use crate::model::vllm::Model;

fn sorted(blocks: &[u32]) -> Vec<u32> {
    let mut blocks = blocks.to_vec();
    blocks.sort_unstable();
    blocks
}

/// Compares the queue and the number of free blocks. If the model does not know the order of the
/// policy, it copies the order from the pool.
pub(crate) fn check(pool: &Pool, model: &mut Model, knows_order: bool) -> Result<(), Failure> {
    let order: Vec<u32> = pool.order().collect();
    if knows_order {
        same("order", &order, &model.queue)?;
    } else {
        same("blocks of the queue", &sorted(&order), &sorted(&model.queue))?;
    }
    for n in [0, 1, order.len() / 2, order.len() + 1] {
        same("peek", &pool.peek(n).as_slice(), &&order[..n.min(order.len())])?;
    }
    same("free blocks", &pool.num_free(), &model.num_free())?;
    same("blocks of the pool", &pool.num_blocks(), &model.blocks.len())?;
    let references: Vec<i32> = (0..).take(model.blocks.len()).map(|id| pool.ref_count(id)).collect();
    let expected: Vec<i32> = model.blocks.iter().map(|block| block.refs).collect();
    same("references", &references, &expected)?;
    // Also ask about two block ids that the pool does not have. The pool must count them as free.
    let all: Vec<u32> = (0..model.blocks.len() as u32 + 2).collect();
    let unused = model.blocks_that(|_, block| block.refs == 0).len();
    same("blocks without references", &pool.num_evictable(&all), &(unused + 2))?;
    model.follow(order);
    Ok(())
}

/// Checks the order of the queue under a policy whose exact order the model does not know.
pub(crate) fn check_places(model: &Model) -> Result<(), Failure> {
    let cached = model.cached_in_order();
    let are_last = cached.iter().skip_while(|is_cached| !**is_cached).all(|is_cached| *is_cached);
    holds("cached blocks go last", are_last, || format!("{:?}: cached {cached:?}", model.queue))?;
    for (child, parent) in model.free_children() {
        let at = |block: u32| model.queue.iter().position(|&queued| queued == block);
        holds("closedness", at(child) < at(parent), || {
            format!("{parent} goes before {child}, which depends on it: {:?}", model.queue)
        })?;
    }
    Ok(())
}
