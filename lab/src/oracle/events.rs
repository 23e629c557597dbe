//! Events, replayed into a map, are the contents that can be matched, with their parents.

use std::collections::BTreeMap;

use kvpool::{BlockHash, BlockId, BlockPool};
use kvpool_observe::{BlockEvent, EventBatch};

use crate::Failure;
use crate::failure::{holds, same};
use crate::world::prompts::Prompts;

/// A consumer of events.
#[derive(Clone, Debug, Default)]
pub struct Follower {
    /// The hashes that can be matched, with those before them.
    matchable: BTreeMap<BlockHash, Option<BlockHash>>,
    /// The epoch of the events.
    epoch: u64,
}

impl Follower {
    /// A content that can be matched while the content before it cannot.
    #[must_use]
    pub fn orphan(&self) -> Option<BlockHash> {
        self.matchable.values().flatten().copied().find(|parent| !self.matchable.contains_key(parent))
    }

    /// Takes events; compares what can be matched with the blocks of the pool.
    pub(crate) fn follow(
        &mut self,
        batch: EventBatch,
        pool: &BlockPool,
        prompts: &Prompts,
    ) -> Result<(), Failure> {
        same("events dropped", &batch.dropped, &0)?;
        for event in batch.events {
            match event {
                BlockEvent::Stored { hash, parent, depth, group, .. } => {
                    let twice = self.matchable.insert(hash, parent).is_some();
                    holds("events", !twice, || format!("{hash:?} is stored twice"))?;
                    same("group of an event", &group, &0)?;
                    let path = prompts.by_key(hash.key());
                    same("depth of an event", &(depth as usize + 1), &path.len())?;
                    let before = (path.len() > 1).then(|| prompts.key(&path[..path.len() - 1], self.epoch));
                    same("parent of an event", &parent.map(|parent| parent.key()), &before)?;
                }
                BlockEvent::Removed { hash, .. } => {
                    let known = self.matchable.remove(&hash).is_some();
                    holds("events", known, || format!("{hash:?} is removed and was not stored"))?;
                }
                BlockEvent::Cleared { epoch } => {
                    holds("events", epoch == self.epoch || epoch == self.epoch + 1, || {
                        format!("epoch {epoch} begins after {}", self.epoch)
                    })?;
                    self.epoch = epoch;
                    self.matchable.clear();
                }
                other => return Err(Failure::new("events", format!("{other:?} is of no pool"))),
            }
        }
        same("epoch of the events", &self.epoch, &pool.epoch())?;
        let mut live: Vec<BlockHash> = (1..pool.num_blocks() as u32)
            .map(BlockId::new)
            .filter(|&block| pool.is_computed(block))
            .filter_map(|block| pool.hash_of(block))
            .collect();
        live.sort_unstable();
        live.dedup();
        holds("events", live.iter().eq(self.matchable.keys()), || {
            format!("{} contents can be matched, {} by the events", live.len(), self.matchable.len())
        })
    }
}
