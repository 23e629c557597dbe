//! Checks events: a map that is updated from events must contain exactly the contents that lookups can
//! find, with their parents.

use std::collections::BTreeMap;

use kvpool::{BlockHash, BlockId, BlockPool};
use kvpool_observe::{BlockEvent, EventBatch};

use crate::Failure;
use crate::failure::{holds, same};
use crate::world::prompts::Prompts;

/// A content: the hash of a block, and its KV-cache group.
type Content = (BlockHash, u16);

/// A subscriber that updates its own map from events.
#[derive(Clone, Debug, Default)]
pub struct Follower {
    /// The hashes that lookups can find according to the events, with their parents.
    matchable: BTreeMap<Content, Option<Content>>,
    /// The epoch that the pool has according to the events.
    epoch: u64,
    /// The contents that were stored since the last call of `take_stored`, as keys and groups.
    stored: Vec<(u64, u16)>,
}

impl Follower {
    /// Returns a content that lookups cannot find although its child is stored.
    #[must_use]
    pub fn orphan(&self) -> Option<(BlockHash, u16)> {
        self.matchable.values().flatten().copied().find(|parent| !self.matchable.contains_key(parent))
    }

    /// Returns the contents that events have reported as stored since the last call.
    pub(crate) fn take_stored(&mut self) -> Vec<(u64, u16)> {
        std::mem::take(&mut self.stored)
    }

    /// Reads new events, and compares the contents that lookups can find according to the events with
    /// the blocks of the pool. If the blocks of a KV-cache group have parents, `chained` returns the
    /// number of keys per block.
    pub(crate) fn follow(
        &mut self,
        batch: EventBatch,
        pool: &BlockPool,
        prompts: &Prompts,
        chained: impl Fn(u16) -> Option<usize>,
    ) -> Result<(), Failure> {
        same("events dropped", &batch.dropped, &0)?;
        for event in batch.events {
            match event {
                BlockEvent::Stored { hash, parent, depth, group, .. } => {
                    self.stored.push((hash.key(), group));
                    let before = parent.map(|parent| (parent, group));
                    let twice = self.matchable.insert((hash, group), before).is_some();
                    holds("events", !twice, || format!("{hash:?} of group {group} is stored twice"))?;
                    let path = prompts.by_key(hash.key());
                    same("depth of an event", &(depth as usize + 1), &path.len())?;
                    let units = chained(group);
                    let before = units.filter(|&units| path.len() > units);
                    let before = before.map(|units| prompts.key(&path[..path.len() - units], self.epoch));
                    same("parent of an event", &parent.map(|parent| parent.key()), &before)?;
                }
                BlockEvent::Removed { hash, group, .. } => {
                    let known = self.matchable.remove(&(hash, group)).is_some();
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
        let mut live: Vec<Content> = (1..pool.num_blocks() as u32)
            .map(BlockId::new)
            .filter(|&block| pool.is_computed(block))
            .filter_map(|block| pool.name_of(block).map(|name| (*name.hash, name.group)))
            .collect();
        live.sort_unstable();
        live.dedup();
        holds("events", live.iter().eq(self.matchable.keys()), || {
            format!("{} contents can be matched, {} by the events", live.len(), self.matchable.len())
        })
    }
}
