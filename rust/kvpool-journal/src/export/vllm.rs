//! Calls of vLLM's pool: Rust calls `kvpool_vllm::Pool`, Python the class behind the plug-in's `BlockPool`.

use crate::VllmOperation;
use kvpool_vllm::Key;

use super::source::Source;
use super::text::{hex, seconds};
use crate::error::ReplayError;
use crate::subject::Step;
use crate::value::Value;

pub(super) fn call(source: &mut Source<'_>, step: &Step<VllmOperation>) -> Result<(), ReplayError> {
    source.begin(step.number, &step.answer)?;
    let said = match &step.operation {
        VllmOperation::Retain { retention, .. } => source.arguments.retention(&retention.retention()),
        &VllmOperation::AdvanceTime { now } => seconds(now, source.is_rust()),
        VllmOperation::Signal { signal, .. } => source.arguments.signal(signal.signal()),
        _ => String::new(),
    };
    if source.is_rust() {
        return source.expect_rust(&in_rust(&step.operation, &said), step.answer.check);
    }
    match in_python(&step.operation, source.num_blocks(), &said) {
        Ok(call) => source.expect_python(&call, &step.answer.value),
        Err(_) if step.answer.refused => {
            source.remark("Python cannot ask this; it was refused, and changed nothing.")
        }
        Err(reason) => Err(ReplayError::NoCall { operation: step.number, reason }),
    }
}

fn rust_key(key: &Key) -> String {
    format!("key(\"{}\")", hex(key.as_bytes()))
}

/// `said` is what was said of blocks, or what time it is.
fn in_rust(operation: &VllmOperation, said: &str) -> String {
    use VllmOperation as O;
    match operation {
        O::Allocate { blocks } => format!("allocate(pool, {blocks})"),
        O::Claim { blocks } => format!("pool.claim(&{blocks:?}, None)"),
        O::Touch { blocks } => format!("pool.touch(&{blocks:?})"),
        O::Free { blocks } => format!("pool.free(Vec::<u32>::from({blocks:?}))"),
        O::Unpin { blocks } => format!("pool.unpin(&{blocks:?})"),
        O::InsertHash { key, block, num_tokens, depth, parent } => {
            let parent = parent
                .as_ref()
                .map_or_else(|| "None".into(), |parent| format!("Some(&{})", rust_key(parent)));
            format!("pool.insert_hash_behind({}, {block}, {num_tokens:?}, {depth}, {parent})", rust_key(key))
        }
        O::CacheFull { first, before, blocks, keys, block_size } => {
            let keys: Vec<String> = keys
                .iter()
                .map(|key| {
                    key.as_ref().map_or_else(|| "None".into(), |key| format!("Some({})", rust_key(key)))
                })
                .collect();
            let start = format!("Start {{ first: {first}, before: {before:?} }}");
            format!("cache_full(pool, {start}, &{blocks:?}, &[{}], {block_size})", keys.join(", "))
        }
        O::InsertInIndex { key, block } => format!("pool.insert_in_index({}, {block})", rust_key(key)),
        O::RemoveFromIndex { key, block } => {
            format!("pool.remove_from_index(&{}, {block})", rust_key(key))
        }
        O::ClearIndex => "pool.clear_index()".into(),
        O::RemoveHashes { block } => format!("pool.remove_hashes({block})"),
        O::MoveHashes { from, to } => format!("pool.move_hashes({from}, {to})"),
        O::Evict { block, reuse_first } => format!("pool.evict({block}, {reuse_first})"),
        O::Reset => "pool.reset()".into(),
        O::SetRefCount { block, count } => format!("pool.set_ref_count({block}, {count})"),
        O::SetHash { block, key, num_tokens } => {
            format!("pool.set_hash({block}, {}, {num_tokens:?})", rust_key(key))
        }
        O::ResetHash { block } => format!("pool.reset_hash({block})"),
        O::ChainGroup { group } => format!("pool.chain_group({group})"),
        O::QueuePop { blocks } => format!("Ids(pool.pop_from_queue({blocks}))"),
        O::QueueRemove { block } => format!("pool.remove_from_queue({block})"),
        O::QueuePush { blocks, front } => format!("pool.push_to_queue(&{blocks:?}, {front})"),
        O::Retain { blocks, .. } => format!("pool.retain(&{blocks:?}, {said})"),
        O::AssignTenant { blocks, tenant } => {
            format!("pool.assign_tenant(&{blocks:?}, TenantId({tenant}))")
        }
        O::AdvanceTime { .. } => format!("pool.advance_time({said})"),
        O::Signal { blocks, .. } => format!("pool.signal(&{blocks:?}, {said})"),
    }
}

fn python_key(key: &Key) -> String {
    super::text::value(&Value::Bytes(key.as_bytes().to_vec()))
}

fn or_none<T: std::fmt::Display>(item: Option<T>) -> String {
    item.map_or_else(|| "None".into(), |item| item.to_string())
}

fn flag(is: bool) -> String {
    super::text::value(&Value::Flag(is))
}

/// The blocks that a call takes as objects.
fn objects(operation: &VllmOperation) -> &[u32] {
    use VllmOperation as O;
    match operation {
        O::Claim { blocks }
        | O::Touch { blocks }
        | O::Free { blocks }
        | O::Unpin { blocks }
        | O::CacheFull { blocks, .. }
        | O::QueuePush { blocks, .. } => blocks,
        O::SetRefCount { block, .. } | O::SetHash { block, .. } | O::ResetHash { block } => {
            std::slice::from_ref(block)
        }
        _ => &[],
    }
}

fn in_python(operation: &VllmOperation, num_blocks: usize, said: &str) -> Result<String, &'static str> {
    use VllmOperation as O;
    if objects(operation).iter().any(|&block| block as usize >= num_blocks) {
        return Err("the pool has no such block");
    }
    Ok(match operation {
        O::Allocate { blocks } => format!("answer(allocate, pool, {blocks})"),
        O::Claim { blocks } => format!("answer(claim, pool, {blocks:?})"),
        O::Touch { blocks } => format!("answer(pool.touch, table(pool, {blocks:?}))"),
        O::Free { blocks } => format!("answer(pool.free, table(pool, {blocks:?}))"),
        O::Unpin { blocks } => format!("answer(pool.unpin, table(pool, {blocks:?}))"),
        O::InsertHash { key, block, num_tokens, depth, parent } => {
            let (tokens, parent) = (or_none(*num_tokens), or_none(parent.as_ref().map(python_key)));
            format!("answer(pool.insert_hash, {}, {block}, {tokens}, {depth}, {parent})", python_key(key))
        }
        O::CacheFull { first, before, blocks, keys, block_size } => {
            cache_full(*first, *before, blocks, keys, *block_size)?
        }
        O::InsertInIndex { key, block } => {
            format!("answer(pool.index_insert, {}, {block})", python_key(key))
        }
        O::RemoveFromIndex { key, block } => {
            format!("answer(pool.index_remove, {}, {block})", python_key(key))
        }
        O::ClearIndex => "answer(pool.index_clear)".into(),
        O::RemoveHashes { block } => format!("answer(pool.remove_hashes, {block})"),
        O::MoveHashes { from, to } => format!("answer(pool.move_hashes, {from}, {to})"),
        O::Evict { block, reuse_first } => format!("answer(pool.evict, {block}, {})", flag(*reuse_first)),
        O::Reset => "answer(pool.reset)".into(),
        O::SetRefCount { block, count } => format!("answer(set_ref_count, pool, {block}, {count})"),
        O::SetHash { block, key, num_tokens } => {
            format!("answer(set_hash, pool, {block}, {}, {})", python_key(key), or_none(*num_tokens))
        }
        O::ResetHash { block } => format!("answer(table(pool, [{block}])[0].reset_hash)"),
        O::ChainGroup { group } => format!("answer(pool.chain_group, {group})"),
        O::QueuePop { blocks } => format!("answer(pool.queue_pop, {blocks})"),
        O::QueueRemove { block } => format!("answer(pool.queue_remove, {block})"),
        O::QueuePush { blocks, front } => {
            format!("answer(pool.queue_push, table(pool, {blocks:?}), {})", flag(*front))
        }
        O::Retain { blocks, .. } => format!("answer(pool.retain, {blocks:?}, {said})"),
        O::AssignTenant { blocks, tenant } => format!("answer(pool.assign_tenant, {blocks:?}, {tenant})"),
        O::AdvanceTime { .. } => format!("answer(pool.advance_time, {said})"),
        O::Signal { blocks, .. } => format!("answer(pool.signal, {blocks:?}, {said})"),
    })
}

/// One call has the keys of one group, and none for the null block.
fn cache_full(
    first: usize,
    before: Option<u32>,
    blocks: &[u32],
    keys: &[Option<Key>],
    block_size: usize,
) -> Result<String, &'static str> {
    if blocks.iter().zip(keys).any(|(&block, key)| block == 0 && key.is_some()) {
        return Err("it caches the null block");
    }
    if keys.iter().flatten().any(|key| key.as_bytes().len() < 4) {
        return Err("it has a key without a group");
    }
    let mut groups = keys.iter().flatten().map(Key::group);
    let group = groups.next().unwrap_or(0);
    if groups.any(|other| other != group) {
        return Err("it caches blocks of several groups at once");
    }
    let digests: Vec<String> = keys
        .iter()
        .map(|key| {
            key.as_ref()
                .map_or_else(|| "None".into(), |key| super::text::value(&Value::Bytes(key.digest().to_vec())))
        })
        .collect();
    let (before, digests) = (or_none(before), digests.join(", "));
    Ok(format!("answer(cache_full, pool, {first}, {before}, {blocks:?}, [{digests}], {block_size}, {group})"))
}
