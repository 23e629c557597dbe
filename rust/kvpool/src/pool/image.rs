//! `PoolImage`: what a pool has cached, as plain data, and a pool made warm again by it.
//!
//! Owns: which parts of a pool's state outlive it. They are contents with their blocks, the order of
//! eviction, the order of free blocks, retention with what is left of times to live, tenants, and the
//! epoch. Not: references and fences, since who held them is gone; what a policy has counted; names
//! inside of blocks; counters.
//!
//! An image is believed block by block: a block is restored only if its caller says that the KV in it
//! is that of its hash. What is refused is free, and its content a miss.
//!
//! Of a pool with LRU and without retention in which nobody holds a block the restored pool goes on
//! exactly as the one that was saved. With other policies, and with retention, the order of eviction is
//! the one of that moment, and from there on what they have not counted yet may make another.
//!
//! Costs: an image O(blocks), 120 bytes per cached block; a restore O(blocks log blocks).

use super::BlockPool;
use crate::block::BlockId;
use crate::error::PoolError;
use crate::hash::{BlockHash, HashAlgorithm, Verify};
use crate::record::{ByBlock, HEAD, Name};
use crate::retention::{Retention, Said, Then, Ttl, no_clock};

/// One cached block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SavedBlock {
    /// Which it is: its KV stayed there.
    pub block: BlockId,
    /// The hash of its content.
    pub hash: BlockHash,
    /// Its KV-cache group.
    pub group: u16,
    /// Its position in its chain.
    pub depth: u32,
    /// How many copies of its content are older.
    pub copy: u32,
    /// The hash of what is before it, if that is known.
    pub parent: Option<BlockHash>,
    /// The block that it hangs on in the order of eviction, if the policy knows.
    pub behind: Option<BlockId>,
    /// What was said of it; nothing without retention.
    pub said: Option<Said>,
}

/// What a pool has cached: see [`BlockPool::image`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PoolImage {
    /// Tokens per block.
    pub block_size: usize,
    /// Blocks of the pool, null block included.
    pub num_blocks: usize,
    /// What its hashes are made with, if it had any.
    pub algorithm: Option<HashAlgorithm>,
    /// Other settings that its contents depend on, as text. The owner of the pool compares them. Empty if
    /// unknown.
    pub settings: String,
    /// Its epoch: hashes are of it.
    pub epoch: u64,
    /// The next to be evicted first; those that somebody held behind all others.
    pub blocks: Vec<SavedBlock>,
    /// Free blocks, the next to be handed out first.
    pub free: Vec<BlockId>,
}

/// What became of an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Blocks that are cached again.
    pub blocks: usize,
    /// Blocks that the caller refused.
    pub refused: usize,
}

/// The positions of an image's contents in their chains.
struct Positions<'a>(Vec<(&'a BlockHash, u16, u32)>);

impl<'a> Positions<'a> {
    fn of(blocks: &[&'a SavedBlock]) -> Self {
        let mut positions: Vec<_> =
            blocks.iter().map(|saved| (&saved.hash, saved.group, saved.depth)).collect();
        positions.sort_unstable();
        Self(positions)
    }

    /// Whether every copy of `parent`'s content is before `child`. A parent that the image does not contain
    /// may be.
    fn is_before(&self, parent: &BlockHash, child: &SavedBlock) -> bool {
        let first = self.0.partition_point(|&(hash, group, _)| (hash, group) < (parent, child.group));
        let copies =
            self.0.iter().skip(first).take_while(|&&(hash, group, _)| (hash, group) == (parent, child.group));
        copies.into_iter().all(|&(_, _, depth)| depth < child.depth)
    }
}

impl BlockPool {
    /// What is cached, with its order and retention. Contents that no lookup leads to, or that are not
    /// computed, are left out. O(blocks).
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
        // As if they were released now, all at once: of a chain the deepest goes first.
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

    /// Makes this pool, which has done nothing yet, what an image says: its blocks are cached-free, in
    /// the order in which they would have been evicted. `agrees` is asked of every block whether its KV
    /// is still that of its hash; one of which it is not is free. `elapsed` seconds have gone by on the
    /// clock of times to live: one that ran out meanwhile has ended as it was to end. Tell the time
    /// first ([`Self::advance_time`]) if there may be any.
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
    /// [`PoolError::InvalidConfig`] if the pool is not as new, if it has another block size, another
    /// algorithm or fewer blocks, if it verifies hits, of which an image has not what it compares, if a block
    /// is named twice or is the null block, or if the epoch leaves no room for others; then nothing has
    /// changed.
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
            // Parents before what hangs on them.
            by_depth.sort_by_key(|saved| (saved.depth, saved.copy));
        } else if by_depth.iter().any(|saved| saved.copy > 0) {
            by_depth.sort_by_key(|saved| saved.copy);
        }
        let positions = Positions::of(&by_depth);
        self.acquire_blocks(&by_depth.iter().map(|saved| saved.block).collect::<Vec<_>>())?;
        for saved in &by_depth {
            let name = Name { hash: &saved.hash, group: saved.group };
            // A parent is before its child. Any other parent would make a ring of blocks that wait for each
            // other.
            let before = saved.parent.filter(|parent| positions.is_before(parent, saved));
            // The parent that the policy knows, if it is what the index knows.
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

    /// Copies of the content of a block that a lookup prefers to it.
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

    /// What was said of a block, as far as it lasts.
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

    /// Puts those of some blocks that are free in front of the others, in this order.
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
