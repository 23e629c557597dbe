//! What is said of the future, what is asked of the past, and what the events say: retention, tenants, time, advice, events.

use std::collections::HashSet;

use kvpool::retention::{Keep, Priority, Retention, TenantId, Then, Ttl};
use kvpool::{
    AdmitOptions, BlockHash, BlockId, BlockPool, ManagerError, PoolError, RequestState, RetentionRange,
};
use kvpool_observe::{BlockEvent, EventBatch, ManagerWatch, PoolWatch};

use super::content::Drawn;
use super::driver::Driver;
use super::meter::{Meter, Operation};
use super::{Wrong, ensure};

/// The set of matchable hashes, as a consumer of the events has it.
#[derive(Debug)]
pub(crate) struct Mirror {
    enabled: bool,
    hashes: HashSet<BlockHash>,
}

impl Mirror {
    pub(crate) fn new(enabled: bool) -> Self {
        Self { enabled, hashes: HashSet::new() }
    }

    fn snapshot(pool: &BlockPool) -> HashSet<BlockHash> {
        let blocks = (1..pool.num_blocks() as u32).map(BlockId::new);
        blocks.filter(|&block| pool.is_computed(block)).filter_map(|block| pool.hash_of(block)).collect()
    }

    /// Replays events; after a loss, takes a snapshot as a consumer must.
    fn replay(&mut self, batch: &EventBatch, pool: &BlockPool) -> Result<(), Wrong> {
        ensure(self.enabled || batch.events.is_empty(), || "events of a pool that records none".into())?;
        if batch.dropped > 0 {
            self.hashes = Self::snapshot(pool);
            return Ok(());
        }
        for event in &batch.events {
            let fits = match event {
                BlockEvent::Stored { hash, .. } => self.hashes.insert(*hash),
                BlockEvent::Removed { hash, .. } => self.hashes.remove(hash),
                _ => {
                    self.hashes.clear();
                    true
                }
            };
            ensure(fits, || format!("{event:?} says nothing new"))?;
        }
        Ok(())
    }

    /// Replays events, and compares the set with the pool's content. O(blocks).
    pub(crate) fn check_after(&mut self, batch: &EventBatch, pool: &BlockPool) -> Result<(), Wrong> {
        self.replay(batch, pool)?;
        let content = if self.enabled { Self::snapshot(pool) } else { HashSet::new() };
        ensure(self.hashes == content, || {
            format!("the events leave {} hashes, the pool has {}", self.hashes.len(), content.len())
        })
    }
}

impl Driver {
    fn some_tenant(&mut self) -> TenantId {
        // One more than there are with limits.
        TenantId(self.chance.between(1, 5) as u32)
    }

    fn some_retention(&mut self) -> Retention {
        let keep = match self.chance.below(10) {
            0 => Keep::Pinned,
            1 => Keep::Demoted,
            _ => Keep::Priority(Priority::new(self.chance.between(0, 100) as u8).unwrap_or(Priority::NORMAL)),
        };
        let seconds = self.chance.below(200) as f64;
        // There is no time to live before there is a clock.
        let ttl = match self.chance.below(4) {
            _ if self.time == 0.0 => None,
            0 => Some(Ttl::Idle(seconds)),
            1 => Some(Ttl::Absolute(seconds)),
            _ => None,
        };
        let then = if self.chance.percent(30) { Then::Demote } else { Then::Normal };
        Retention { keep, ttl, then }
    }

    fn some_ranges(&mut self, tokens: usize) -> Vec<RetentionRange> {
        let ranges = (0..self.chance.between(1, 3)).map(|_| {
            let start = self.chance.below(tokens);
            let end = self.chance.percent(70).then(|| start + self.chance.between(1, tokens));
            RetentionRange { start, end, retention: self.some_retention() }
        });
        ranges.collect()
    }

    /// What is said of a request when it is admitted: nothing without retention.
    pub(super) fn request_hints(&mut self, drawn: Drawn) -> AdmitOptions {
        let mut hints = AdmitOptions::default();
        if !self.preset.retention {
            return hints;
        }
        hints.tenant = self.chance.percent(60).then(|| self.some_tenant());
        hints.no_cache = drawn.scan && self.chance.percent(50);
        if drawn.system > 0 && self.chance.percent(30) {
            let retention = self.some_retention();
            hints.ranges = vec![RetentionRange { start: 0, end: Some(drawn.system), retention }];
        }
        hints
    }

    pub(super) fn hint(&mut self, meter: &mut Meter) -> Result<(), Wrong> {
        let state = if self.chance.percent(80) { RequestState::Running } else { RequestState::Preempted };
        let Some(key) = self.pick(state) else { return Ok(()) };
        let tokens = self.books.get(key)?.tags.len();
        let (ranges, tenant) = (self.some_ranges(tokens), self.some_tenant());
        let start = self.chance.below(tokens);
        let drawn = self.library.draw(&mut self.chance, &mut self.tokens);
        let cursor = self.prepare(drawn.identity, meter)?;
        let id = self.books.get(key)?.id.as_ref();
        let manager = &mut self.manager;
        let report = match self.chance.below(5) {
            0 => meter.time(Operation::Retain, || manager.retain(id, &ranges)),
            1 => meter.time(Operation::Retain, || manager.end_of_life(id, start)),
            2 => {
                meter.time(Operation::Retain, || manager.set_tenant(id, tenant).map(|()| Default::default()))
            }
            3 => meter.time(Operation::RetainPrefix, || manager.retain_prefix(&cursor, &ranges)),
            _ => meter.time(Operation::RetainPrefix, || manager.end_of_life_of(&cursor, start)),
        };
        match report {
            Ok(report) => {
                ensure(self.preset.retention, || format!("hints without retention gave {report:?}"))?;
                self.note((report.accepted + report.clipped) as u64);
                Ok(())
            }
            Err(error) => self.no_retention(&error),
        }
    }

    fn no_retention(&self, error: &ManagerError) -> Result<(), Wrong> {
        let refused = matches!(error, ManagerError::Pool(PoolError::NoRetention { .. }));
        ensure(refused && !self.preset.retention, || format!("a hint was refused: {error}"))
    }

    pub(super) fn advance_time(&mut self, meter: &mut Meter) -> Result<(), Wrong> {
        let now = self.time + self.chance.below(80) as f64 / 4.0;
        match meter.time(Operation::AdvanceTime, || self.manager.advance_time(now)) {
            Ok(expired) => {
                self.time = now;
                self.note(expired as u64);
                Ok(())
            }
            Err(error) => self.no_retention(&error),
        }
    }

    pub(super) fn events(&mut self, meter: &mut Meter) -> Result<(), Wrong> {
        let batch = meter.time(Operation::TakeEvents, || self.manager.take_events());
        self.note(batch.events.len() as u64);
        if self.chance.percent(2) {
            self.mirror.check_after(&batch, self.manager.pool())
        } else {
            self.mirror.replay(&batch, self.manager.pool())
        }
    }

    /// Looks, and now and then asks for advice.
    pub(super) fn look(&mut self, meter: &mut Meter) -> Result<(), Wrong> {
        if self.chance.percent(2) {
            let advice = meter.time(Operation::Advice, || self.manager.pool().advice());
            return ensure(advice.is_some() == self.preset.advisor, || {
                format!("{:?} gave {advice:?}", self.preset)
            });
        }
        let Some(key) = self.pick(RequestState::Running) else { return Ok(()) };
        let id = self.books.get(key)?.id.as_ref();
        let (info, blocks, running) = meter.time(Operation::Look, || {
            let running = self.manager.stats().running;
            (self.manager.request(id), self.manager.block_table(id).map(<[_]>::len), running)
        });
        let expected = self.books.in_state(RequestState::Running).len();
        ensure(running == expected, || {
            format!("running: {expected} in the books, {running} in the manager")
        })?;
        ensure(info?.blocks == blocks?, || format!("request {id}: its table is not as long as it says"))
    }
}
