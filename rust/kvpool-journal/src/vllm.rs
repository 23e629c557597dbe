//! Replays on the pool of `kvpool-vllm`.

use crate::{Check, JournalConfig, JournalHeader, Outcome, VllmOperation};
use hashbrown::HashMap;
use kvpool::retention::TenantId;
use kvpool::{BlockId, InvariantViolation};
use kvpool_vllm::{Pool, Start, VllmError};

use crate::error::ReplayError;
use crate::journaled::{Journaled, Recordable, VllmConfig};
use crate::observers::{Observed, Observers};
use crate::ops::vllm as op;
use crate::subject::{Answer, Step, Subject, memory};
use crate::value::ToValue;

/// A pool of vLLM's that a journal is replayed on.
#[derive(Debug)]
pub struct VllmSubject {
    pool: Journaled<Pool>,
    /// Blocks of the recorded run -> blocks of this one, where operations run on their own.
    renamed: HashMap<u32, u32>,
}

fn config(header: &JournalHeader) -> Result<VllmConfig, ReplayError> {
    let config = header.pool_config(kvpool_policies::ALL)?;
    let (num_blocks, policy) = (config.num_blocks, config.eviction);
    Ok(VllmConfig { num_blocks, caching: header.caching, policy, retention: config.retention })
}

fn answered(result: &(impl Outcome + ToValue + std::fmt::Debug)) -> Answer {
    Answer {
        check: Check::of(result),
        told: format!("{result:?}"),
        value: result.value(),
        ..Answer::default()
    }
}

/// Blocks that were handed out.
fn ids(blocks: &[u32]) -> Vec<BlockId> {
    blocks.iter().copied().map(BlockId::new).collect()
}

fn fallible<T: Outcome + ToValue + std::fmt::Debug>(result: &Result<T, VllmError>) -> Answer {
    let told = match result {
        Ok(answer) => format!("{answer:?}"),
        Err(error) => format!("refused: {error}"),
    };
    Answer { told, refused: result.is_err(), ..answered(result) }
}

impl Subject for VllmSubject {
    type Operation = VllmOperation;

    fn new(header: &JournalHeader) -> Result<Self, ReplayError> {
        let pool = Pool::create(config(header)?, &(), JournalConfig::default())?;
        Ok(Self { pool: pool.into(), renamed: HashMap::new() })
    }

    fn recorded(header: &JournalHeader) -> Result<Self, ReplayError> {
        let pool = Journaled::with_journal(config(header)?, memory()?)?;
        Ok(Self { pool, renamed: HashMap::new() })
    }

    fn watch(&mut self, _header: &JournalHeader, _observers: &Observers) -> Result<(), ReplayError> {
        Ok(())
    }

    fn observed(&self) -> Observed<'_> {
        Observed::Vllm(&self.pool)
    }

    fn take_image(&mut self) -> Vec<u8> {
        self.pool.take_journal().and_then(|mut journal| journal.image()).unwrap_or_default()
    }

    fn run(&mut self, operation: &VllmOperation) -> Result<Answer, ReplayError> {
        use VllmOperation as O;
        let pool = &mut self.pool;
        Ok(match operation {
            &O::Allocate { blocks } => {
                let mut out = Vec::new();
                let answer = fallible(&pool.apply(op::Allocate { blocks, out: &mut out, removed: None }));
                Answer { blocks: ids(&out), ..answer }
            }
            O::Claim { blocks } => fallible(&pool.apply(op::Claim { blocks, removed: None })),
            O::Touch { blocks } => fallible(&pool.apply(op::Touch { blocks })),
            O::Free { blocks } => fallible(&pool.apply(op::Free { blocks: blocks.iter().copied() })),
            O::Unpin { blocks } => fallible(&pool.apply(op::Unpin { blocks })),
            &O::InsertHash { key, block, num_tokens, depth, ref parent } => {
                let parent = parent.as_ref();
                answered(&pool.apply(op::InsertHash { key, block, num_tokens, depth, parent }))
            }
            O::CacheFull { first, before, blocks, keys, block_size } => {
                fallible(&pool.apply(op::CacheFull {
                    start: Start { first: *first, before: *before },
                    blocks,
                    key_of: |position: usize| keys.get(position).copied().flatten(),
                    block_size: *block_size,
                    removed: &mut Vec::new(),
                    stored: None,
                }))
            }
            &O::InsertInIndex { key, block } => fallible(&pool.apply(op::InsertInIndex { key, block })),
            &O::RemoveFromIndex { key, block } => answered(&pool.apply(op::RemoveFromIndex { key, block })),
            O::ClearIndex => answered(&pool.apply(op::ClearIndex)),
            &O::RemoveHashes { block } => answered(&pool.apply(op::RemoveHashes { block })),
            &O::MoveHashes { from, to } => fallible(&pool.apply(op::MoveHashes { from, to })),
            &O::Evict { block, reuse_first } => fallible(&pool.apply(op::Evict { block, reuse_first })),
            O::Reset => answered(&pool.apply(op::Reset)),
            &O::SetRefCount { block, count } => answered(&pool.apply(op::SetRefCount { block, count })),
            &O::SetHash { block, key, num_tokens } => {
                answered(&pool.apply(op::SetHash { block, key, num_tokens }))
            }
            &O::ResetHash { block } => answered(&pool.apply(op::ResetHash { block })),
            &O::ChainGroup { group } => answered(&pool.apply(op::ChainGroup { group })),
            &O::QueuePop { blocks } => {
                let taken = pool.apply(op::PopFromQueue { blocks });
                Answer { blocks: ids(&taken.0), ..answered(&taken) }
            }
            &O::QueueRemove { block } => answered(&pool.apply(op::RemoveFromQueue { block })),
            &O::QueuePush { ref blocks, front } => answered(&pool.apply(op::PushToQueue { blocks, front })),
            O::Retain { blocks, retention } => {
                fallible(&pool.apply(op::Retain { blocks, retention: retention.retention() }))
            }
            O::AssignTenant { blocks, tenant } => {
                fallible(&pool.apply(op::AssignTenant { blocks, tenant: TenantId(*tenant) }))
            }
            &O::AdvanceTime { now } => fallible(&pool.apply(op::AdvanceTime { now })),
            O::Signal { blocks, signal } => {
                fallible(&pool.apply(op::Signal { blocks, signal: signal.signal() }))
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
            | O::QueuePush { blocks, .. }
            | O::Retain { blocks, .. }
            | O::AssignTenant { blocks, .. }
            | O::Signal { blocks, .. } => blocks.iter_mut().for_each(rename),
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
            O::Allocate { .. }
            | O::QueuePop { .. }
            | O::ClearIndex
            | O::Reset
            | O::ChainGroup { .. }
            | O::AdvanceTime { .. } => {}
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
