//! Replays on a [`BlockPool`].

use crate::{Check, Ids, JournalHeader, PoolOperation};
use hashbrown::HashMap;
use kvpool::hash::Verify;
use kvpool::retention::TenantId;
use kvpool::{BlockId, BlockPool, InvariantViolation, PoolConfig, PoolError, Ticket};

use crate::contents::Contents;
use crate::error::ReplayError;
use crate::journaled::{Journaled, Recordable};
use crate::numbers::Numbers;
use crate::observers::{Observed, Observers};
use crate::ops::pool as op;
use crate::subject::{Answer, Step, Subject, memory};
use crate::value::{ToValue, Value};
use kvpool_observe::{ManagerWatchConfig, PoolWatch, WatchConfig};

/// A pool that a journal is replayed on.
#[derive(Debug)]
pub struct PoolSubject {
    pool: Journaled<BlockPool>,
    contents: Contents,
    /// Blocks of the recorded run -> blocks of this one, where operations run on their own.
    renamed: HashMap<BlockId, BlockId>,
}

impl PoolSubject {
    /// The pool, to look at.
    #[must_use]
    pub fn pool(&self) -> &BlockPool {
        &self.pool
    }

    /// The numbers of the contents so far.
    pub(crate) fn numbers(&self) -> Numbers {
        self.contents.numbers()
    }

    fn made(
        header: &JournalHeader,
        make: impl FnOnce(PoolConfig, &WatchConfig) -> Result<Journaled<BlockPool>, PoolError>,
    ) -> Result<Self, ReplayError> {
        let config = header.pool_config(kvpool_policies::ALL)?;
        let algorithm = header.manager_config(kvpool_policies::ALL)?.algorithm;
        // Tokens are made up: fingerprints tell the same contents apart.
        let verify = config.verify.min(Verify::Fingerprint);
        let contents = Contents::new(algorithm, config.block_size, verify)?;
        let watch = watch_config(header)?;
        let pool = make(PoolConfig { verify, ..config }, &watch)?;
        Ok(Self { pool, contents, renamed: HashMap::new() })
    }

    /// Stops, and begins again as another process does. Returns how many blocks are warm.
    pub(crate) fn restart(&mut self, header: &JournalHeader) -> Result<usize, ReplayError> {
        let image = self.pool.image()?;
        let config = header.pool_config(kvpool_policies::ALL)?;
        let verify = config.verify.min(Verify::Fingerprint);
        let config = PoolConfig { verify, num_blocks: self.pool.num_blocks(), ..config };
        let mut pool = BlockPool::new(config)?.watched(&watch_config(header)?)?;
        if let Some(now) = self.pool.retention_time() {
            pool.advance_time(now)?;
        }
        let restored = pool.restore(&image, 0.0, |_| true)?;
        self.pool = pool.into();
        self.renamed.clear();
        Ok(restored.blocks)
    }

    /// The block of this run that stands for a recorded one; one that was never handed out stays what it was called.
    fn rename(&self, block: BlockId) -> BlockId {
        self.renamed.get(&block).copied().unwrap_or(block)
    }

    fn rename_all(&self, blocks: &mut Ids) {
        let renamed: Vec<BlockId> = blocks.unpack().into_iter().map(|block| self.rename(block)).collect();
        *blocks = Ids::pack(&renamed);
    }
}

fn answered<T: crate::Outcome + ToValue + std::fmt::Debug>(
    result: &Result<T, PoolError>,
    blocks: impl FnOnce(&T) -> Vec<BlockId>,
) -> Answer {
    Answer {
        check: Check::of(result),
        refused: result.is_err(),
        blocks: result.as_ref().map_or_else(|_| Vec::new(), blocks),
        swap: None,
        told: match result {
            Ok(answer) => format!("{answer:?}"),
            Err(error) => format!("refused: {error}"),
        },
        value: result.value(),
    }
}

/// What a recorded pool was watched by, with a digest.
fn watch_config(header: &JournalHeader) -> Result<WatchConfig, ReplayError> {
    let ManagerWatchConfig { event_capacity, advisor, .. } = header.watch_config(kvpool_policies::ALL)?;
    Ok(WatchConfig { event_capacity, digest: true, advisor, ..WatchConfig::default() })
}

impl Subject for PoolSubject {
    type Operation = PoolOperation;

    fn new(header: &JournalHeader) -> Result<Self, ReplayError> {
        Self::made(header, |config, watch| Ok(BlockPool::new(config)?.watched(watch)?.into()))
    }

    fn recorded(header: &JournalHeader) -> Result<Self, ReplayError> {
        let journal = memory()?;
        Self::made(header, |config, watch| Journaled::with_watch(config, watch, journal))
    }

    fn watch(&mut self, header: &JournalHeader, observers: &Observers) -> Result<(), ReplayError> {
        let recorded = watch_config(header)?;
        let advisor = observers.advisor.clone().or(recorded.advisor);
        let watch = WatchConfig { advisor, metrics: observers.metrics, ..recorded };
        Ok(self.pool.unrecorded(|pool| pool.watch(&watch))?)
    }

    fn observed(&self) -> Observed<'_> {
        Observed::Pool(&self.pool)
    }

    fn take_image(&mut self) -> Vec<u8> {
        self.pool.take_journal().and_then(|mut journal| journal.image()).unwrap_or_default()
    }

    fn run(&mut self, operation: &PoolOperation) -> Result<Answer, ReplayError> {
        use PoolOperation as O;
        let Self { pool, contents, .. } = self;
        let none = |_: &()| Vec::new();
        let count = |_: &usize| Vec::new();
        let taken = |changes: &Vec<(usize, BlockId)>| changes.iter().map(|&(_, block)| block).collect();
        Ok(match operation {
            O::Allocate { blocks } => answered(&pool.apply(op::Allocate { blocks: *blocks }), Vec::clone),
            O::Acquire { blocks } => answered(&pool.apply(op::Acquire { blocks: &blocks.unpack() }), none),
            O::Release { blocks } => answered(&pool.apply(op::Release { blocks: &blocks.unpack() }), none),
            O::ReleaseTable { blocks } => {
                answered(&pool.apply(op::ReleaseTable { blocks: &blocks.unpack() }), none)
            }
            O::ReleaseAfter { blocks, step } => {
                answered(&pool.apply(op::ReleaseAfter { blocks: &blocks.unpack(), step: *step }), none)
            }
            O::CompleteStep { step } => answered(&pool.apply(op::CompleteStep { step: *step }), count),
            O::Match { chain, max_blocks, tenant } => {
                let (chain, tenant) = (&contents.chain(chain)?, tenant.map(TenantId));
                answered(&pool.apply(op::Match { chain, max_blocks: *max_blocks, tenant }), Vec::clone)
            }
            O::Register { blocks, chain, start } => {
                let (blocks, chain) = (&blocks.unpack(), &contents.chain(chain)?);
                answered(&pool.apply(op::Register { blocks, chain, start: *start }), |_| Vec::new())
            }
            O::MarkComputed { blocks } => {
                answered(&pool.apply(op::MarkComputed { blocks: &blocks.unpack() }), none)
            }
            O::RegisterLink { block, link } => {
                let (block, link) = (BlockId::new(*block), &contents.link(link)?);
                answered(&pool.apply(op::RegisterLink { block, link }), |&block| vec![block])
            }
            O::AcquireRegistered { link } => {
                answered(&pool.apply(op::AcquireRegistered { link: &contents.link(link)? }), |block| {
                    block.iter().copied().collect()
                })
            }
            O::MarkAccessed { blocks, time } => {
                answered(&pool.apply(op::MarkAccessed { blocks: &blocks.unpack(), time: *time }), none)
            }
            O::Evict { blocks } => answered(&pool.apply(op::DropCached { blocks: &blocks.unpack() }), count),
            O::LookupRefreshing { chain, start, max_blocks } => {
                let (chain, start, max_blocks) = (&contents.chain(chain)?, *start, *max_blocks);
                answered(&pool.apply(op::LookupRefreshing { chain, start, max_blocks }), |found| {
                    found.blocks().to_vec()
                })
            }
            O::AcquireMatch { blocks, chain, start } => {
                let found = &contents.found(chain, *start, blocks.unpack())?;
                answered(&pool.apply(op::AcquireMatch { found }), none)
            }
            O::RegisterTable { blocks, chain, start } => {
                let (blocks, chain, start) = (&blocks.unpack(), &contents.chain(chain)?, *start);
                answered(&pool.apply(op::RegisterTable { blocks, chain, start }), taken)
            }
            O::Adopt { blocks, chain, start } => {
                let (blocks, chain, start) = (&blocks.unpack(), &contents.chain(chain)?, *start);
                answered(&pool.apply(op::Adopt { blocks, chain, start }), taken)
            }
            O::Disown { blocks } => answered(&pool.apply(op::Disown { blocks: &blocks.unpack() }), none),
            O::EvictNext { blocks } => answered(&pool.apply(op::Evict { blocks: *blocks }), Vec::clone),
            O::Reset => answered(&pool.apply(op::Reset), count),
            O::BumpEpoch => answered(&pool.apply(op::BumpEpoch), |_| Vec::new()),
            O::Resize { num_blocks } => answered(&pool.apply(op::Resize { num_blocks: *num_blocks }), none),
            O::Retain { blocks, retention } => {
                let (blocks, retention) = (&blocks.unpack(), retention.retention());
                answered(&pool.apply(op::Retain { blocks, retention }), |_| Vec::new())
            }
            O::Signal { blocks, signal } => {
                let (blocks, signal) = (&blocks.unpack(), signal.signal());
                answered(&pool.apply(op::Signal { blocks, signal }), none)
            }
            O::AssignTenant { blocks, tenant } => {
                let (blocks, tenant) = (&blocks.unpack(), TenantId(*tenant));
                answered(&pool.apply(op::AssignTenant { blocks, tenant }), none)
            }
            O::AdvanceTime { now } => answered(&pool.apply(op::AdvanceTime { now: *now }), count),
            O::Fence => answered(&pool.apply(op::Fence), |_| Vec::new()),
            O::ReleaseUntil { blocks, ticket } => {
                let (blocks, ticket) = (&blocks.unpack(), Ticket::new(*ticket));
                answered(&pool.apply(op::ReleaseUntil { blocks, ticket }), none)
            }
            O::EndFence { ticket } => {
                answered(&pool.apply(op::EndFence { ticket: Ticket::new(*ticket) }), count)
            }
            O::TakeEvents => {
                let events = pool.apply(op::TakeEvents);
                Answer {
                    check: Check::of(&events),
                    told: format!("{} events", events.events.len()),
                    value: Value::Number(events.events.len() as u64),
                    ..Answer::default()
                }
            }
        })
    }

    fn resolve(&mut self, operation: &PoolOperation) -> Result<PoolOperation, ReplayError> {
        Ok(match operation.clone() {
            PoolOperation::Match { chain, max_blocks, tenant } => {
                PoolOperation::Match { chain: self.contents.whole(&chain)?, max_blocks, tenant }
            }
            PoolOperation::Register { blocks, chain, start } => {
                PoolOperation::Register { blocks, chain: self.contents.whole(&chain)?, start }
            }
            PoolOperation::LookupRefreshing { chain, start, max_blocks } => {
                PoolOperation::LookupRefreshing { chain: self.contents.whole(&chain)?, start, max_blocks }
            }
            PoolOperation::RegisterTable { blocks, chain, start } => {
                PoolOperation::RegisterTable { blocks, chain: self.contents.whole(&chain)?, start }
            }
            PoolOperation::Adopt { blocks, chain, start } => {
                PoolOperation::Adopt { blocks, chain: self.contents.whole(&chain)?, start }
            }
            other => other,
        })
    }

    fn run_alone(&mut self, step: &Step<PoolOperation>) -> Result<Answer, ReplayError> {
        use PoolOperation as O;
        let mut operation = step.operation.clone();
        match &mut operation {
            O::Acquire { blocks }
            | O::Release { blocks }
            | O::ReleaseTable { blocks }
            | O::ReleaseAfter { blocks, .. }
            | O::Register { blocks, .. }
            | O::AcquireMatch { blocks, .. }
            | O::RegisterTable { blocks, .. }
            | O::Adopt { blocks, .. }
            | O::Disown { blocks }
            | O::MarkComputed { blocks }
            | O::MarkAccessed { blocks, .. }
            | O::Evict { blocks }
            | O::Retain { blocks, .. }
            | O::Signal { blocks, .. }
            | O::AssignTenant { blocks, .. } => self.rename_all(blocks),
            O::RegisterLink { block, .. } => *block = self.rename(BlockId::new(*block)).get(),
            _ => {}
        }
        match &mut operation {
            O::Match { chain, .. }
            | O::Register { chain, .. }
            | O::LookupRefreshing { chain, .. }
            | O::AcquireMatch { chain, .. }
            | O::RegisterTable { chain, .. }
            | O::Adopt { chain, .. }
                if chain.epoch == step.epoch =>
            {
                chain.epoch = self.pool.epoch();
            }
            O::RegisterLink { link, .. } | O::AcquireRegistered { link } if link.epoch == step.epoch => {
                link.epoch = self.pool.epoch();
            }
            _ => {}
        }
        let answer = self.run(&operation)?;
        self.renamed.extend(step.answer.blocks.iter().copied().zip(answer.blocks.iter().copied()));
        Ok(answer)
    }

    fn epoch(&self) -> u64 {
        self.pool.epoch()
    }

    fn digest(&mut self) -> u64 {
        self.pool.unrecorded(Recordable::digest).unwrap_or(0)
    }

    fn check(&mut self) -> Result<(), InvariantViolation> {
        self.pool.check_invariants()
    }
}
