//! `kvpool_vllm::Pool` against a model of vLLM's pool: every answer, the queue, what blocks carry, what keys lead to, all invariants.
//!
//! The model knows LRU's order. Under any other policy it takes the pool's own after each operation, after a check that it has the
//! same blocks. Where parts are written by hand, references and hashes need not fit each other: what must hold then is what
//! `check_representation` recounts, and still all that the model says.

pub mod calls;
mod model;
mod operation;

use std::fmt::Debug;

use kvpool_vllm::Pool;
use model::Model;
pub use model::{Block, Entry, Removal, Stored};
pub use operation::{Blocks, Operation, Setting};

use crate::case::{Failure, Machine, Script, holds, same};

/// The pool and the model.
#[derive(Debug)]
pub struct VllmPool {
    setting: Setting,
    pool: Pool,
    model: Model,
}

/// Compares an answer with the model's. The call, and in a test its text, is made of a name and arguments.
fn answers<T: PartialEq + Debug>(
    script: &mut Script,
    name: &str,
    arguments: impl FnOnce() -> String,
    expected: &T,
    call: impl FnOnce() -> T,
) -> Result<(), Failure> {
    script.line(|| {
        let call = format!("{name}({})", arguments());
        match format!("{expected:?}").as_str() {
            "()" => format!("{call};"),
            expected => format!("assert_eq!(said({call}), {expected:?});"),
        }
    });
    same(&format!("answer of {name}"), &call(), expected)
}

fn sorted<T: Ord>(items: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut items: Vec<T> = items.into_iter().collect();
    items.sort_unstable();
    items
}

impl VllmPool {
    fn is_lru(&self) -> bool {
        self.setting.eviction == kvpool_policies::LRU
    }

    fn some(&self, blocks: &Blocks) -> Vec<u32> {
        let (all, from, n) = match blocks {
            Blocks::These(blocks) => return blocks.clone(),
            Blocks::Held(from, n) => (self.model.held(), from, n),
            Blocks::Bare(from, n) => (self.model.bare(), from, n),
            Blocks::Loose(from, n) => (self.model.loose(), from, n),
        };
        all.iter().copied().skip(from % all.len().max(1)).take(*n).collect()
    }

    fn run(&mut self, operation: &Operation, script: &mut Script) -> Result<(), Failure> {
        use calls::key;
        let some = |blocks| self.some(blocks);
        match operation {
            Operation::Allocate(n) => {
                let expected = self.model.allocate(*n);
                let call = || calls::allocate(&mut self.pool, *n);
                answers(script, "allocate", || format!("&mut pool, {n}"), &expected, call)
            }
            Operation::Touch(blocks) => {
                let blocks = some(blocks);
                let expected = self.model.touch(&blocks);
                let call = || self.pool.touch(&blocks);
                answers(script, "pool.touch", || format!("&{blocks:?}"), &expected, call)
            }
            Operation::Free(blocks) => {
                let blocks = some(blocks);
                let expected = self.model.free(&blocks);
                let call = || self.pool.free(blocks.iter().copied());
                answers(script, "pool.free", || format!("{blocks:?}"), &expected, call)
            }
            Operation::Unpin(blocks) => {
                let blocks = some(blocks);
                let expected = self.model.unpin(&blocks);
                let call = || self.pool.unpin(&blocks);
                answers(script, "pool.unpin", || format!("&{blocks:?}"), &expected, call)
            }
            Operation::CacheFull(first, before, blocks, keys, size) => {
                let blocks = some(blocks);
                let keys: Vec<_> = keys.iter().copied().cycle().take(blocks.len()).collect();
                let expected = self.model.cache_full(*first, &blocks, &keys, *size);
                let arguments =
                    || format!("&mut pool, ({first}, {before:?}), &{blocks:?}, &{keys:?}, {size}");
                let call = || calls::cache_full(&mut self.pool, (*first, *before), &blocks, &keys, *size);
                answers(script, "cache_full", arguments, &expected, call)
            }
            Operation::InsertHash(nth, block, tokens, depth, parent) => {
                let expected = self.model.insert_hash(*nth, *block, *tokens);
                let arguments = || {
                    let parent =
                        parent.map_or_else(|| "None".into(), |parent| format!("Some(&key({parent}))"));
                    format!("key({nth}), {block}, {tokens:?}, {depth}, {parent}")
                };
                let parent = parent.map(key);
                let call =
                    || self.pool.insert_hash_behind(key(*nth), *block, *tokens, *depth, parent.as_ref());
                answers(script, "pool.insert_hash_behind", arguments, &expected, call)
            }
            Operation::RemoveHashes(block) => {
                let expected = self.model.remove_hashes(*block);
                let call = || calls::remove_hashes(&mut self.pool, *block);
                answers(script, "remove_hashes", || format!("&mut pool, {block}"), &expected, call)
            }
            Operation::MoveHashes(from, to) => {
                let expected = self.model.move_hashes(*from, *to);
                let call = || self.pool.move_hashes(*from, *to);
                answers(script, "pool.move_hashes", || format!("{from}, {to}"), &expected, call)
            }
            Operation::Evict(block, reuse_first) => {
                let expected = self.model.evict(*block, *reuse_first);
                let arguments = || format!("&mut pool, {block}, {reuse_first}");
                let call = || calls::evict(&mut self.pool, *block, *reuse_first);
                answers(script, "evict", arguments, &expected, call)
            }
            Operation::Reset => {
                let expected = self.model.reset();
                answers(script, "pool.reset", String::new, &expected, || self.pool.reset())
            }
            Operation::FindRun(keys, times, group) => {
                let keys = keys.repeat(*times);
                let find = |&nth: &usize| self.model.find(calls::in_group(nth, *group));
                let expected: Vec<u32> = keys.iter().map_while(find).collect();
                let call = || calls::find_run(&self.pool, &keys, *group);
                answers(script, "find_run", || format!("&pool, &{keys:?}, {group}"), &expected, call)
            }
            Operation::ChainGroup(group) => {
                let call = || self.pool.chain_group(*group);
                answers(script, "pool.chain_group", || format!("{group}"), &(), call)
            }
            _ if self.setting.by_hand => self.run_by_hand(operation, script),
            _ => Ok(()),
        }
    }

    fn run_by_hand(&mut self, operation: &Operation, script: &mut Script) -> Result<(), Failure> {
        use calls::key;
        let some = |blocks| self.some(blocks);
        match operation {
            Operation::SetHash(nth, block, tokens) => {
                if let Some(block) = self.model.blocks.get_mut(*block as usize) {
                    block.hash = Some((*nth, *tokens));
                }
                let call = || self.pool.set_hash(*block, key(*nth), *tokens);
                answers(script, "pool.set_hash", || format!("{block}, key({nth}), {tokens:?}"), &(), call)
            }
            Operation::ResetHash(block) => {
                if let Some(block) = self.model.blocks.get_mut(*block as usize) {
                    block.hash = None;
                }
                let call = || self.pool.reset_hash(*block);
                answers(script, "pool.reset_hash", || format!("{block}"), &(), call)
            }
            Operation::InsertInIndex(nth, block) => {
                let expected = self.model.insert_in_index(*nth, *block);
                let call = || self.pool.insert_in_index(key(*nth), *block);
                answers(script, "pool.insert_in_index", || format!("key({nth}), {block}"), &expected, call)
            }
            Operation::RemoveFromIndex(nth, block) => {
                let expected = self.model.remove_from_index(*nth, *block);
                let call = || self.pool.remove_from_index(&key(*nth), *block);
                answers(script, "pool.remove_from_index", || format!("&key({nth}), {block}"), &expected, call)
            }
            Operation::ClearIndex => {
                self.model.clear_index();
                answers(script, "pool.clear_index", String::new, &(), || self.pool.clear_index())
            }
            Operation::SetRefCount(block, count) => {
                if let Some(block) = self.model.blocks.get_mut(*block as usize) {
                    block.refs = *count;
                }
                let call = || self.pool.set_ref_count(*block, *count);
                answers(script, "pool.set_ref_count", || format!("{block}, {count}"), &(), call)
            }
            Operation::PopFromQueue(n) => {
                let expected = self.model.pop_from_queue(*n);
                let call = || self.pool.pop_from_queue(*n);
                answers(script, "pool.pop_from_queue", || format!("{n}"), &expected, call)
            }
            Operation::RemoveFromQueue(block) => {
                let expected = self.model.remove_from_queue(*block);
                let call = || self.pool.remove_from_queue(*block);
                answers(script, "pool.remove_from_queue", || format!("{block}"), &expected, call)
            }
            Operation::PushToQueue(blocks, front) => {
                let blocks = some(blocks);
                self.model.push_to_queue(&blocks, *front);
                let call = || self.pool.push_to_queue(&blocks, *front);
                answers(script, "pool.push_to_queue", || format!("&{blocks:?}, {front}"), &(), call)
            }
            Operation::Claim(blocks) => {
                let blocks = some(blocks);
                let expected = self.model.claim(&blocks);
                let call = || calls::claim(&mut self.pool, &blocks);
                answers(script, "claim", || format!("&mut pool, &{blocks:?}"), &expected, call)
            }
            Operation::SetNumFree(count) => {
                let expected = self.model.set_num_free(*count);
                let call = || calls::set_num_free(&mut self.pool, *count);
                answers(script, "set_num_free", || format!("&mut pool, {count}"), &expected, call)
            }
            _ => Ok(()),
        }
    }

    fn check_invariants(&self) -> Result<(), Failure> {
        let by_hand = self.setting.by_hand;
        let checked = if by_hand { self.pool.check_representation() } else { self.pool.check_invariants() };
        Ok(checked?)
    }

    fn compare(&mut self) -> Result<(), Failure> {
        self.check_invariants()?;
        let (pool, model) = (&self.pool, &self.model);
        let order: Vec<u32> = pool.order().collect();
        holds("peek", order.starts_with(&pool.peek(3)), || format!("{:?} of {order:?}", pool.peek(3)))?;
        if self.is_lru() {
            same("order", &order, &model.queue)?;
        } else {
            let (found, expected) = (sorted(order.iter().copied()), sorted(model.queue.iter().copied()));
            same("blocks of the queue", &found, &expected)?;
        }
        same("free blocks", &pool.num_free(), &model.num_free())?;
        same("removals", &pool.removals(), &model.removals)?;
        same("blocks", &calls::blocks(pool), &model.blocks)?;
        same("keys", &calls::entries(pool), &model.entries())?;
        self.compare_views()?;
        // Who goes first is the policy's affair; the next call starts from its order.
        self.model.queue = order;
        Ok(())
    }

    /// The other ways to ask for the same.
    fn compare_views(&self) -> Result<(), Failure> {
        let (pool, model, keys) = (&self.pool, &self.model, self.pool.keys());
        let ids = || 0..model.blocks.len() as u32;
        for number in 0..calls::KEYS {
            let (key, first) = (calls::key(number), model.find(number));
            same("first block of a key", &(pool.find(&key), keys.first(&key)), &(first, first))?;
            let led_to = ids().filter(|&block| keys.leads_to(&key, block)).collect();
            same("blocks that a key leads to", &led_to, &sorted(keys.copies(&key)))?;
        }
        let listed = sorted(keys.iter().map(|key| calls::number(&key)));
        let leading: Vec<usize> = model.entries().into_iter().map(|(number, _)| number).collect();
        same("keys that lead somewhere", &listed, &leading)?;
        same("number of keys", &(keys.len(), keys.is_empty()), &(leading.len(), leading.is_empty()))?;
        let further = ids().filter(|&id| !model.blocks[id as usize].further.is_empty()).collect();
        same("blocks with further keys", &sorted(keys.blocks_with_further_keys()), &further)?;
        let unused = ids().skip(1).filter(|&id| model.blocks[id as usize].refs == 0).count();
        same("blocks without references", &pool.num_evictable(&ids().collect::<Vec<_>>()), &unused)
    }
}

impl Machine for VllmPool {
    type Setting = Setting;
    type Operation = Operation;

    fn new(setting: &Setting) -> Result<Self, Failure> {
        let pool = Pool::with_policy(setting.num_blocks, setting.caching, setting.eviction);
        let pool = pool.map_err(|error| Failure::new("setting", error.to_string()))?;
        let model = Model::new(setting.num_blocks, setting.caching, calls::KEYS);
        Ok(Self { setting: setting.clone(), pool, model })
    }

    fn apply(&mut self, operation: &Operation, script: &mut Script) -> Result<(), Failure> {
        self.run(operation, script)?;
        self.compare()
    }

    fn simpler_settings(setting: &Setting) -> Vec<Setting> {
        setting.simpler()
    }

    fn simpler_operations(operation: &Operation) -> Vec<Operation> {
        operation.simpler()
    }

    const ITEMS: &[(&str, &str)] =
        &[("pool", "use kvpool_fuzz::targets::vllm_pool::calls::*;\nuse kvpool_vllm::Pool;\n")];

    fn opening(setting: &Setting) -> Vec<String> {
        let Setting { num_blocks, caching, eviction, .. } = setting;
        let policy = format!("kvpool_policies::by_name({:?}).unwrap()", eviction.name());
        vec![format!("let mut pool = Pool::with_policy({num_blocks}, {caching}, {policy}).unwrap();")]
    }

    fn closing(&self) -> Vec<String> {
        let check = if self.setting.by_hand { "check_representation" } else { "check_invariants" };
        let mut lines = vec![format!("pool.{check}().unwrap();")];
        let mut line = |seen: &str, expected: &dyn Debug| {
            lines.push(format!("assert_eq!(said({seen}), {:?});", format!("{expected:?}")));
        };
        if self.is_lru() {
            line("pool.order().collect::<Vec<_>>()", &self.model.queue);
        }
        line("pool.num_free()", &self.model.num_free());
        line("blocks(&pool)", &self.model.blocks);
        line("entries(&pool)", &self.model.entries());
        lines
    }
}
