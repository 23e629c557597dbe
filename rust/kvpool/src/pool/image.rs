//! A [`PoolImage`] is the cached content of a pool as plain data. A new pool can restore it.
//!
//! An image contains the contents with their blocks, the order of eviction, the order of free blocks,
//! retention with the remaining part of each time to live, tenants, and the epoch. It contains no
//! references and no fences, because their holders do not survive a restart. It also contains no
//! statistics of the policy, no counters, and no hashes of units inside of blocks.
//!
//! A pool does not trust an image: it restores a block only if the caller confirms that the block's KV
//! matches its hash. A refused block is free, and lookups do not find its content.
//!
//! If a pool uses LRU without retention and no block is held, the restored pool continues exactly like
//! the saved one. With other policies, or with retention, the order of eviction is the same as when the
//! image was made. After further operations it may differ, because the statistics of the policy are
//! lost.
//!
//! Costs: an image takes O(blocks) time and 120 bytes per cached block. A restore takes O(blocks log
//! blocks).

use super::BlockPool;
use crate::block::BlockId;
use crate::error::PoolError;
use crate::hash::{BlockHash, HashAlgorithm, Verify};
use crate::record::{ByBlock, HEAD, Name};
use crate::retention::{Retention, SavedRetention, Then, Ttl, no_clock};

/// One cached block in an image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SavedBlock {
    /// The id of the block. Its KV must still be in memory under this id.
    pub block: BlockId,
    /// The hash of its content.
    pub hash: BlockHash,
    /// The number of the KV-cache group of the content.
    pub group: u16,
    /// The position of the content in its hash chain.
    pub depth: u32,
    /// Number of blocks with the same content that a lookup returns in preference to this block.
    pub copy: u32,
    /// The hash of the previous content in the hash chain, if known.
    pub parent: Option<BlockHash>,
    /// The block that the eviction policy stores as this block's parent, if the policy stores parents.
    /// Parents are evicted after their children.
    pub behind: Option<BlockId>,
    /// The retention hint of the block. `None` if the pool has no retention or the block has no hint.
    pub said: Option<SavedRetention>,
}

/// The cached content of a pool: see [`BlockPool::image`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PoolImage {
    /// Tokens per block.
    pub block_size: usize,
    /// Number of blocks in the pool, including the null block.
    pub num_blocks: usize,
    /// The algorithm of the hashes. `None` if no block was registered.
    pub algorithm: Option<HashAlgorithm>,
    /// Other settings that the contents depend on, as text. Empty if unknown. The pool ignores this
    /// text; the pool's owner, for instance a manager, compares it with its own settings.
    pub settings: String,
    /// The pool's epoch when the image was made. The hashes belong to this epoch.
    pub epoch: u64,
    /// The cached blocks in the order of eviction, the next victim first. Blocks that were in use come
    /// last.
    pub blocks: Vec<SavedBlock>,
    /// The free blocks in the order of allocation.
    pub free: Vec<BlockId>,
}

/// The result of a restore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Number of blocks of the image whose content is cached again.
    pub blocks: usize,
    /// Number of blocks of the image that the caller's check refused. They are free.
    pub refused: usize,
}

/// The hash, the group and the position in the hash chain of each content of an image, sorted.
struct Positions<'a>(Vec<(&'a BlockHash, u16, u32)>);

impl<'a> Positions<'a> {
    fn of(blocks: &[&'a SavedBlock]) -> Self {
        let mut positions: Vec<_> =
            blocks.iter().map(|saved| (&saved.hash, saved.group, saved.depth)).collect();
        positions.sort_unstable();
        Self(positions)
    }

    /// Whether every block with the content `parent` has a lower position in its hash chain than
    /// `child`. True if the image does not contain `parent`.
    fn is_before(&self, parent: &BlockHash, child: &SavedBlock) -> bool {
        let first = self.0.partition_point(|&(hash, group, _)| (hash, group) < (parent, child.group));
        let copies =
            self.0.iter().skip(first).take_while(|&&(hash, group, _)| (hash, group) == (parent, child.group));
        copies.into_iter().all(|&(_, _, depth)| depth < child.depth)
    }
}

/// # Images: cached content over a restart
///
/// A [`PoolImage`] is the cached content of a pool as plain data, which a new pool can restore.
impl BlockPool {
    /// Returns the cached content, with its order of eviction and its retention. Omits hidden contents,
    /// which no lookup can find, and contents that are not computed. O(blocks).
    ///
    /// # Errors
    /// Only if the pool is poisoned.
    pub fn image(&self) -> Result<PoolImage, PoolError> {
        self.check_poison()?;
        let mut order = self.eviction_order();
        let mut held: Vec<_> = (1..self.num_blocks() as u32)
            .filter(|&block| {
                let record = self.records.at(block);
                record.references > 0 && record.is_registered() && record.is_computed()
            })
            .map(BlockId::new)
            .collect();
        // Held blocks are saved as if all of them were released now, so the last block of a chain comes
        // first in the eviction order.
        held.sort_by_key(|&block| std::cmp::Reverse(self.records.at(block.get()).depth()));
        order.extend(held);
        let saved = |block: BlockId| {
            let Name { hash, group } = self.name_of(block)?;
            let said = self.order.retention().and_then(|retention| retention.said(block));
            Some(SavedBlock {
                block,
                hash: *hash,
                group,
                depth: self.records.at(block.get()).depth(),
                copy: self.copies_before(block, Name { hash, group }),
                parent: self.index.parent_of(&self.records, block),
                behind: self.order.parent(block),
                said,
            })
        };
        Ok(PoolImage {
            block_size: self.block_size(),
            num_blocks: self.num_blocks(),
            algorithm: self.index.algorithm(),
            settings: String::new(),
            epoch: self.epoch,
            blocks: order.into_iter().filter_map(saved).collect(),
            free: self.free_order(),
        })
    }

    /// Restores an image into this pool, which must be new. The blocks of the image become cached-free,
    /// in the order of eviction of the saved pool. `agrees` is called for every block and returns
    /// whether its KV still matches its hash. If it returns false, the block becomes free.
    ///
    /// `elapsed` is the number of seconds since the image was made, on the clock of times to live. A
    /// time to live that ended in these seconds has the same effect as in a pool that was not
    /// restarted. If the image may contain times to live, call [`Self::advance_time`] first.
    ///
    /// ```
    /// use kvpool::{BlockHasher, BlockPool, ExtraKeys, HashCursor, HasherConfig, PoolConfig};
    /// let hasher = BlockHasher::new(HasherConfig { block_size: 2, ..Default::default() })?;
    /// let mut prompt = HashCursor::new(hasher.into(), ExtraKeys::default())?;
    /// prompt.append(&[1, 2, 3, 4]);
    /// let config = PoolConfig { num_blocks: 9, block_size: 2, ..Default::default() };
    /// let mut pool = BlockPool::new(config.clone())?;
    /// let table = pool.allocate(2)?;
    /// pool.register_table(&table, prompt.chain(), 0)?;
    /// pool.release_table(&table)?;
    /// let image = pool.image()?;
    ///
    /// let mut next = BlockPool::new(config)?; // another process
    /// let restored = next.restore(&image, 0.0, |saved| saved.block != table[1])?;
    /// assert_eq!((restored.blocks, restored.refused), (1, 1));
    /// assert_eq!(next.match_and_acquire(prompt.chain(), 2)?, table[..1]);
    /// # Ok::<(), kvpool::PoolError>(())
    /// ```
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] in these cases, and nothing has changed then: the pool is not new;
    /// it has another block size, another algorithm or fewer blocks; it verifies hits, because an image
    /// does not contain the data that a verification compares; the image contains a block twice, or the
    /// null block; its epoch is so high that no epochs are left; a group number or a time to live of
    /// the image is not valid; `elapsed` is not a finite number, or is negative.
    pub fn restore(
        &mut self,
        image: &PoolImage,
        elapsed: f64,
        mut agrees: impl FnMut(&SavedBlock) -> bool,
    ) -> Result<Restored, PoolError> {
        self.check_poison()?;
        self.check_image(image, elapsed)?;
        let (blocks, refused): (Vec<&SavedBlock>, Vec<&SavedBlock>) =
            image.blocks.iter().partition(|saved| agrees(saved));
        self.epoch = image.epoch;
        let mut by_depth = blocks.clone();
        if self.keeps_parents() || self.history {
            by_depth.sort_by_key(|saved| (saved.depth, saved.copy));
        } else if by_depth.iter().any(|saved| saved.copy > 0) {
            by_depth.sort_by_key(|saved| saved.copy);
        }
        let positions = Positions::of(&by_depth);
        self.acquire_blocks(&by_depth.iter().map(|saved| saved.block).collect::<Vec<_>>())?;
        for saved in &by_depth {
            let name = Name { hash: &saved.hash, group: saved.group };
            // A parent must be earlier in the chain than its child. Otherwise two blocks could each be
            // the parent of the other, and neither would ever be evicted.
            let before = saved.parent.filter(|parent| positions.is_before(parent, saved));
            let behind = saved.behind.filter(|&block| self.is_registered(block)).and_then(|block| {
                if self.records.of(block).is_none_or(|record| record.depth() >= saved.depth) {
                    return None;
                }
                let hash = *self.name_of(block).filter(|parent| parent.group == name.group)?.hash;
                before.is_none_or(|parent| parent == hash).then_some((block, hash))
            });
            let (parent, hash) = behind.filter(|_| saved.depth > 0).unzip();
            self.register_behind_hash(saved.block, name, saved.depth, before.or(hash), parent)?;
            self.retain_saved(saved, elapsed)?;
        }
        if image.algorithm.is_some() {
            self.index.set_algorithm(image.algorithm);
        }
        for saved in &blocks {
            self.release(&[saved.block])?;
            let remaining = saved.said.and_then(|said| said.remaining).map(|seconds| seconds - elapsed);
            if let (Some(retention), Some(seconds)) =
                (self.order.retention_mut(), remaining.filter(|&s| s > 0.0))
            {
                retention.set_remaining(saved.block, seconds);
            }
        }
        self.order_free(&image.free)?;
        Ok(Restored { blocks: blocks.len(), refused: refused.len() })
    }

    /// Returns the number of blocks with the same content that a lookup returns in preference to this
    /// block.
    fn copies_before(&self, block: BlockId, name: Name<'_>) -> u32 {
        if self.records.at(block.get()).is(HEAD) {
            return 0;
        }
        self.copies_named(name).iter().position(|&copy| copy == block).unwrap_or(0) as u32
    }

    fn check_image(&self, image: &PoolImage, elapsed: f64) -> Result<(), PoolError> {
        let refused = |field, value: String, expected: String| Err(PoolError::config(field, value, expected));
        if self.allocator.num_free() != self.num_usable() || self.epoch != 0 {
            let found = format!(
                "{} of {} blocks free, in epoch {}",
                self.allocator.num_free(),
                self.num_usable(),
                self.epoch
            );
            return refused("pool", found, "one that has done nothing yet".into());
        }
        if self.verify() != Verify::None {
            return refused(
                "verify",
                self.verify().name().into(),
                "none: an image has nothing to compare".into(),
            );
        }
        if image.epoch > u64::MAX / 2 {
            return refused("epoch", image.epoch.to_string(), format!("at most {}", u64::MAX / 2));
        }
        if let (Some(saved), Some(own)) = (image.algorithm, self.index.algorithm())
            && saved != own
        {
            return refused("algorithm", saved.name().into(), own.name().into());
        }
        if image.block_size != self.block_size() {
            return refused("block_size", image.block_size.to_string(), self.block_size().to_string());
        }
        if !(elapsed.is_finite() && elapsed >= 0.0) {
            return refused("elapsed", elapsed.to_string(), "a number of seconds, 0 or more".into());
        }
        let mut known = vec![false; self.num_blocks()];
        for saved in &image.blocks {
            let fresh = known.get_mut(saved.block.index()).filter(|known| !**known && !saved.block.is_null());
            let Some(fresh) = fresh else {
                let expected = format!("each at most once, 1 to {}", self.num_blocks() - 1);
                return refused("block", saved.block.to_string(), expected);
            };
            *fresh = true;
            self.check_group(saved.group)?;
            let Some(said) = saved.said.filter(|_| self.has_retention()) else { continue };
            said.retention.check()?;
            if said.retention.ttl.is_some() && self.retention_time().is_none() {
                return Err(no_clock());
            }
            if said.remaining.is_some_and(|seconds| !seconds.is_finite()) {
                return refused("remaining", format!("{:?}", said.remaining), "a number of seconds".into());
            }
        }
        Ok(())
    }

    fn retain_saved(&mut self, saved: &SavedBlock, elapsed: f64) -> Result<(), PoolError> {
        let (Some(said), Some(retention)) = (saved.said, self.order.retention_mut()) else { return Ok(()) };
        if let Some(tenant) = said.tenant {
            retention.assign(saved.block, tenant);
        }
        let left = said.remaining.map(|seconds| seconds - elapsed);
        let lasting = match (said.retention.ttl, left) {
            (Some(_), Some(left)) if left <= 0.0 => match said.retention.then {
                Then::Demote => Retention::END_OF_LIFE,
                Then::Normal => Retention::NORMAL,
            },
            (Some(Ttl::Absolute(_)), Some(left)) => {
                Retention { ttl: Some(Ttl::Absolute(left)), ..said.retention }
            }
            _ => said.retention,
        };
        if lasting != Retention::NORMAL {
            retention.retain(saved.block, lasting)?;
        }
        Ok(())
    }

    /// Moves the blocks in `order`, which are free, to the front of the free list, in this order.
    fn order_free(&mut self, order: &[BlockId]) -> Result<(), PoolError> {
        let mut seen = vec![false; self.num_blocks()];
        let free: Vec<_> = order
            .iter()
            .copied()
            .filter(|block| {
                let fresh = seen.get_mut(block.index()).is_some_and(|seen| !std::mem::replace(seen, true));
                let record = self.records.of(*block);
                fresh
                    && !block.is_null()
                    && record.is_some_and(|record| record.is_free() && !record.is_registered())
            })
            .collect();
        self.acquire_blocks(&free)?;
        free.iter().rev().try_for_each(|&block| self.release(&[block]))
    }
}
