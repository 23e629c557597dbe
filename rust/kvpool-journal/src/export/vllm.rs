//! Writes the calls of vLLM's pool. Rust calls `kvpool_vllm::Pool`. Python calls `VllmPool`, the class
//! on which the plug-in's `BlockPool` is built.

use kvpool_vllm::Key;

use super::slots::unmade;
use super::source::Source;
use crate::calls::{Slot, Slots, VllmCall, Words};
use crate::error::ReplayError;
use crate::subject::Step;
use crate::vllm::VllmSubject;

pub(super) fn call(
    source: &mut Source<'_>,
    step: &Step<VllmCall>,
    _: &VllmSubject,
) -> Result<(), ReplayError> {
    source.begin(step.number, &step.answer)?;
    let mut call = step.operation.clone();
    let arguments = source.arguments.of(call.slots(), &|_, _| 0);
    if source.is_rust() {
        return source.expect_rust(&in_rust(call.call(), &arguments), step.answer.check);
    }
    match in_python(&mut call, &arguments, source.num_blocks()) {
        Ok(call) => source.expect_python(&call, &step.answer.value),
        Err(reason) => source.leave_out(step.number, &step.answer, reason),
    }
}

fn in_rust(name: &str, arguments: &str) -> String {
    match name {
        "allocate" | "cache_full" => format!("{name}(pool, {arguments})"),
        "claim" => format!("pool.claim({arguments}, None)"),
        "insert_hash" => format!("pool.insert_hash_behind({arguments})"),
        "remove_from_index" => format!("pool.{name}(&{arguments})"),
        "pop_from_queue" => format!("Ids(pool.pop_from_queue({arguments}))"),
        _ => format!("pool.{name}({arguments})"),
    }
}

fn in_python(call: &mut VllmCall, arguments: &str, num_blocks: usize) -> Result<String, &'static str> {
    let is_known = |block: &u32| (*block as usize) < num_blocks;
    let are_known = call.slots().into_iter().all(|slot| match slot {
        Slot::Object(block) => is_known(block),
        Slot::At(start) => start.before.as_ref().is_none_or(is_known),
        Slot::Claimed(blocks) | Slot::Objects(blocks) | Slot::Freed(blocks) => blocks.iter().all(is_known),
        _ => true,
    });
    if !are_known {
        return Err("the pool has no such block");
    }
    if let Some(reason) = unmade(call.slots()) {
        return Err(reason);
    }
    let name = match call.call() {
        "insert_in_index" => "index_insert",
        "remove_from_index" => "index_remove",
        "clear_index" => "index_clear",
        "pop_from_queue" => "queue_pop",
        "remove_from_queue" => "queue_remove",
        "push_to_queue" => "queue_push",
        name => name,
    };
    Ok(match call {
        VllmCall::CacheFull { blocks, keys, .. } => {
            format!("answer({name}, pool, {arguments}, {})", group(blocks, keys)?)
        }
        VllmCall::Allocate { .. }
        | VllmCall::Claim { .. }
        | VllmCall::SetRefCount { .. }
        | VllmCall::SetHash { .. } => format!("answer({name}, pool, {arguments})"),
        VllmCall::ResetHash { .. } => format!("answer(table(pool, [{arguments}])[0].{name})"),
        _ => format!("answer(pool.{name}{}{arguments})", if arguments.is_empty() { "" } else { ", " }),
    })
}

/// Returns the KV-cache group of a call's keys. All keys of one Python call belong to the same group,
/// and the null block has no key.
fn group(blocks: &[u32], keys: &[Option<Key>]) -> Result<u32, &'static str> {
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
    Ok(group)
}
