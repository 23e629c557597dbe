//! `Beneath`: the tiers beneath the device in engine mode, such as host memory or a disk.
//!
//! For each tier, this module keeps the hashes of its blocks, and the time at which the link to the
//! tier is free again. The full blocks of a prompt are in every tier once they are computed, as with a
//! write-through offload. Each tier evicts the least recently used block first. Of one prompt, it
//! evicts the last block first.
//!
//! A block that is not on the device is loaded from the first tier that has it, if all blocks before it
//! are cached. It passes through the tiers between. A link moves one load at a time, in the order of
//! admissions. A request runs when all its loaded blocks have arrived.
//!
//! Writing takes no time and does not use the links. A resumed request recomputes the blocks that the
//! device has evicted.
//!
//! Cost: amortised O(1) per block and tier.

use std::collections::{HashMap, VecDeque};

use kvpool::BlockHash;

use super::config::TierConfig;
use super::report::{TierReport, share};

/// The hashes of a tier's blocks, in the order of their last use.
#[derive(Debug, Default)]
struct Lru {
    used: HashMap<BlockHash, u64>,
    /// The uses of all blocks, oldest first, numbered in this order. An entry is out of date if `used`
    /// has a higher number for its block.
    order: VecDeque<(u64, BlockHash)>,
    uses: u64,
}

impl Lru {
    fn touch(&mut self, block: BlockHash) {
        self.uses += 1;
        self.used.insert(block, self.uses);
        self.order.push_back((self.uses, block));
        if self.order.len() > 2 * self.used.len() + 64 {
            self.order.retain(|(number, block)| self.used.get(block) == Some(number));
        }
    }

    fn shrink_to(&mut self, blocks: usize) {
        while self.used.len() > blocks
            && let Some((number, block)) = self.order.pop_front()
        {
            if self.used.get(&block) == Some(&number) {
                self.used.remove(&block);
            }
        }
    }
}

#[derive(Debug)]
struct Tier {
    config: TierConfig,
    holds: Lru,
    free_at_ms: f64,
    block_hits: u64,
    busy_ms: f64,
}

/// For each tier, the number of blocks of a prompt that are loaded from it.
pub(super) type Served = Vec<usize>;

#[derive(Debug)]
pub(super) struct Beneath {
    tiers: Vec<Tier>,
    /// For each admitted request whose prompt is not computed yet, the full blocks of its prompt.
    uncomputed: HashMap<usize, Box<[BlockHash]>>,
}

impl Beneath {
    pub(super) fn new(tiers: &[TierConfig]) -> Self {
        let tier =
            |&config| Tier { config, holds: Lru::default(), free_at_ms: 0.0, block_hits: 0, busy_ms: 0.0 };
        Self { tiers: tiers.iter().map(tier).collect(), uncomputed: HashMap::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tiers.is_empty()
    }

    /// Returns how many of these consecutive blocks each tier can supply. Stops at the first block that
    /// no tier has.
    pub(super) fn served(&self, blocks: &[BlockHash]) -> Served {
        let mut served = vec![0; self.tiers.len()];
        for block in blocks {
            let Some(first) = self.tiers.iter().position(|tier| tier.holds.used.contains_key(block)) else {
                break;
            };
            served[first] += 1;
        }
        served
    }

    /// Records the admission of a request: marks its blocks as the most recently used, and schedules
    /// its load. Returns the time in ms at which all loaded blocks have arrived.
    pub(super) fn admitted(
        &mut self,
        request: usize,
        blocks: Box<[BlockHash]>,
        served: &Served,
        now_ms: f64,
    ) -> f64 {
        for tier in &mut self.tiers {
            for &block in blocks.iter().rev() {
                if tier.holds.used.contains_key(&block) {
                    tier.holds.touch(block);
                }
            }
        }
        self.uncomputed.insert(request, blocks);
        let (mut there_ms, mut moved) = (now_ms, 0);
        for (tier, &blocks) in self.tiers.iter_mut().zip(served).rev() {
            tier.block_hits += blocks as u64;
            moved += blocks;
            if moved > 0 {
                let takes_ms = moved as f64 * tier.config.load_ms_per_block;
                there_ms = there_ms.max(tier.free_at_ms) + takes_ms;
                tier.free_at_ms = there_ms;
                tier.busy_ms += takes_ms;
            }
        }
        there_ms
    }

    /// Stores the full blocks of a request's prompt in every tier, because the prompt is computed now.
    pub(super) fn computed(&mut self, request: usize) {
        let Some(blocks) = self.uncomputed.remove(&request) else { return };
        for tier in &mut self.tiers {
            blocks.iter().rev().for_each(|&block| tier.holds.touch(block));
            tier.holds.shrink_to(tier.config.blocks);
        }
    }

    /// Forgets the blocks of a request that was rejected, because they will not be computed.
    pub(super) fn forget(&mut self, request: usize) {
        self.uncomputed.remove(&request);
    }

    pub(super) fn report(&self, block_size: u64, tokens: u64) -> Vec<TierReport> {
        let report = |tier: &Tier| {
            let token_hits = tier.block_hits * block_size;
            TierReport {
                blocks: tier.config.blocks,
                block_hits: tier.block_hits,
                token_hits,
                token_hit_rate: share(token_hits, tokens),
                busy_seconds: tier.busy_ms / 1000.0,
            }
        };
        self.tiers.iter().map(report).collect()
    }
}
