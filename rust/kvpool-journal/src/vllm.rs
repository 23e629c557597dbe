//! Replays on the pool of `kvpool-vllm`.

use hashbrown::HashMap;
use kvpool::{BlockId, InvariantViolation};
use kvpool_record::{Check, JournalHeader, Outcome};
use kvpool_vllm::{Pool, Start, VllmError, VllmOperation};

use crate::error::ReplayError;
use crate::subject::{Answer, Step, Subject, memory};
use crate::value::{ToValue, Value};

/// A pool of vLLM's that a journal is replayed on.
#[derive(Debug)]
pub struct VllmSubject {
    pool: Pool,
    /// Blocks of the recorded run -> blocks of this one, where operations run on their own.
    renamed: HashMap<u32, u32>,
}

/// Block ids as an answer.
#[derive(Debug)]
struct Ids(Vec<u32>);

impl ToValue for Ids {
    fn value(&self) -> Value {
        Value::List(self.0.iter().map(|&block| Value::Number(block.into())).collect())
    }
}

impl Outcome for Ids {
    fn add_to(&self, check: &mut Check) {
        self.0.iter().for_each(|&block| check.add(block.into()));
    }
}

fn answered(result: &(impl Outcome + ToValue + std::fmt::Debug), blocks: &[u32], refused: bool) -> Answer {
    Answer {
        check: Check::of(result),
        refused,
        blocks: blocks.iter().copied().map(BlockId::new).collect(),
        swap: None,
        told: format!("{result:?}"),
        value: result.value(),
    }
}

fn fallible<T: Outcome + ToValue + std::fmt::Debug>(result: &Result<T, VllmError>) -> Answer {
    let told = match result {
        Ok(answer) => format!("{answer:?}"),
        Err(error) => format!("refused: {error}"),
    };
    Answer { told, ..answered(result, &[], result.is_err()) }
}

impl Subject for VllmSubject {
    type Operation = VllmOperation;

    fn new(header: &JournalHeader) -> Result<Self, ReplayError> {
        let config = header.pool_config(kvpool_policies::ALL)?;
        let pool = Pool::with_policy(config.num_blocks, header.caching, config.eviction)?;
        Ok(Self { pool, renamed: HashMap::new() })
    }

    fn recorded(header: &JournalHeader) -> Result<Self, ReplayError> {
        let config = header.pool_config(kvpool_policies::ALL)?;
        let pool = Pool::with_journal(config.num_blocks, header.caching, config.eviction, memory()?)?;
        Ok(Self { pool, renamed: HashMap::new() })
    }

    fn take_image(&mut self) -> Vec<u8> {
        self.pool.take_journal().and_then(|mut journal| journal.image()).unwrap_or_default()
    }

    fn run(&mut self, operation: &VllmOperation) -> Result<Answer, ReplayError> {
        use VllmOperation as O;
        let pool = &mut self.pool;
        Ok(match operation {
            O::Allocate { blocks } => {
                let mut out = Vec::new();
                let result = pool.allocate(*blocks, &mut out, None).map(|()| Ids(out.clone()));
                Answer { blocks: out.into_iter().map(BlockId::new).collect(), ..fallible(&result) }
            }
            O::Claim { blocks } => fallible(&pool.claim(blocks, None)),
            O::Touch { blocks } => fallible(&pool.touch(blocks)),
            O::Free { blocks } => fallible(&pool.free(blocks.iter().copied())),
            O::Unpin { blocks } => fallible(&pool.unpin(blocks)),
            O::InsertHash { key, block, num_tokens, depth, parent } => {
                let is_new = pool.insert_hash_behind(*key, *block, *num_tokens, *depth, parent.as_ref());
                answered(&is_new, &[], false)
            }
            O::CacheFull { first, before, blocks, keys, block_size } => {
                let start = Start { first: *first, before: *before };
                let key_of = |position: usize| keys.get(position).copied().flatten();
                fallible(&pool.cache_full(start, blocks, key_of, *block_size, &mut Vec::new(), None))
            }
            O::InsertInIndex { key, block } => fallible(&pool.insert_in_index(*key, *block)),
            O::RemoveFromIndex { key, block } => answered(&pool.remove_from_index(key, *block), &[], false),
            O::ClearIndex => {
                pool.clear_index();
                answered(&(), &[], false)
            }
            O::RemoveHashes { block } => answered(&pool.remove_hashes(*block), &[], false),
            O::MoveHashes { from, to } => fallible(&pool.move_hashes(*from, *to)),
            O::Evict { block, reuse_first } => fallible(&pool.evict(*block, *reuse_first)),
            O::Reset => answered(&pool.reset(), &[], false),
            O::SetRefCount { block, count } => {
                pool.set_ref_count(*block, *count);
                answered(&(), &[], false)
            }
            O::SetHash { block, key, num_tokens } => {
                pool.set_hash(*block, *key, *num_tokens);
                answered(&(), &[], false)
            }
            O::ResetHash { block } => {
                pool.reset_hash(*block);
                answered(&(), &[], false)
            }
            O::ChainGroup { group } => {
                pool.chain_group(*group);
                answered(&(), &[], false)
            }
            O::QueuePop { blocks } => {
                let out = pool.pop_from_queue(*blocks);
                answered(&Ids(out.clone()), &out, false)
            }
            O::QueueRemove { block } => answered(&pool.remove_from_queue(*block), &[], false),
            O::QueuePush { blocks, front } => {
                pool.push_to_queue(blocks, *front);
                answered(&(), &[], false)
            }
        })
    }

    fn resolve(&mut self, operation: &VllmOperation) -> Result<VllmOperation, ReplayError> {
        Ok(operation.clone())
    }

    fn run_alone(&mut self, step: &Step<VllmOperation>) -> Result<Answer, ReplayError> {
        use VllmOperation as O;
        let mut operation = step.operation.clone();
        let rename = |block: &mut u32| *block = self.renamed.get(block).copied().unwrap_or(*block);
        match &mut operation {
            O::Claim { blocks }
            | O::Touch { blocks }
            | O::Free { blocks }
            | O::Unpin { blocks }
            | O::CacheFull { blocks, .. }
            | O::QueuePush { blocks, .. } => blocks.iter_mut().for_each(rename),
            O::InsertHash { block, .. }
            | O::InsertInIndex { block, .. }
            | O::RemoveFromIndex { block, .. }
            | O::RemoveHashes { block }
            | O::Evict { block, .. }
            | O::SetRefCount { block, .. }
            | O::SetHash { block, .. }
            | O::ResetHash { block }
            | O::QueueRemove { block } => rename(block),
            O::MoveHashes { from, to } => [from, to].into_iter().for_each(rename),
            O::Allocate { .. } | O::QueuePop { .. } | O::ClearIndex | O::Reset | O::ChainGroup { .. } => {}
        }
        let answer = self.run(&operation)?;
        let pairs = step.answer.blocks.iter().zip(&answer.blocks);
        self.renamed.extend(pairs.map(|(recorded, own)| (recorded.get(), own.get())));
        Ok(answer)
    }

    fn epoch(&self) -> u64 {
        0
    }

    fn digest(&mut self) -> u64 {
        0
    }

    /// By hand vLLM may move a block from the queue and write its counts: then the invariants do not hold for a while, and only
    /// answers are compared.
    fn check(&mut self) -> Result<(), InvariantViolation> {
        Ok(())
    }
}
